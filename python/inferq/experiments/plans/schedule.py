"""Replica schedules for a load that changes over time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

from inferq._lazy import np, pl
from inferq.checks import not_negative, positive
from inferq.display.text import amount, counted, number, percent
from inferq.errors import ConfigError
from inferq.experiments.plans.candidate import Candidate
from inferq.experiments.plans.candidate_state import CandidateState
from inferq.experiments.plans.prober import Prober
from inferq.experiments.plans.simulation import ScheduleRun, run_schedule
from inferq.experiments.replication import run_tasks
from inferq.progress import Progress
from inferq.results.slo import Objective, measured
from inferq.simulation.simulate import simulate
from inferq.systems.autoscaler import Autoscaler, BySchedule
from inferq.systems.cluster import Cluster
from inferq.workload.columns import Table
from inferq.workload.workload import Workload

_MOST_WINDOWS = 100_000
_SECONDS_OF_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Window:
    """A time window and the units it needs."""

    start_s: float
    end_s: float
    requests: int
    """Requests that arrive in the window."""
    units: int | None
    """The fewest units that meet the SLO in the window, without spare. None if no number does."""
    share: float
    """The largest value relative to its limit."""
    longest_s: float
    """Largest E2E latency, which is the longest time that draining takes."""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Schedule:
    """Replicas per time window and the savings; made by `FleetPlan.schedule`."""

    windows: tuple[Window, ...]
    candidate: Candidate
    unit: str
    unit_cost: float
    """Cost of a unit per hour, or its GPUs."""
    startup_s: float
    spare: int
    workload: Workload
    """All requests."""
    objectives: tuple[Objective, ...]
    seed: int
    options: Mapping[str, Any]
    """Options of `simulate`."""

    @property
    def peak(self) -> int | None:
        """Units of the busiest window, spare included, which a fixed fleet needs all the time."""
        needs = [window.units for window in self.windows]
        return None if None in needs else max(units for units in needs if units is not None) + self.spare

    @property
    def replica_hours(self) -> float | None:
        """Replica-hours of the schedule, from the start of each replica until it has drained.

        A replica starts `startup_s` before its first window. After its last window it drains for at most the
        largest E2E latency of that window.
        """
        if self.peak is None:
            return None
        seconds, before, drains_s = 0.0, 0, 0.0
        for window in self.windows:
            units = (window.units or 0) + self.spare
            seconds += units * (window.end_s - window.start_s)
            seconds += max(0, units - before) * self.startup_s + max(0, before - units) * drains_s
            before, drains_s = units, window.longest_s
        return (seconds + before * drains_s) / _SECONDS_OF_HOUR

    @property
    def fixed_hours(self) -> float | None:
        """Replica-hours of a fixed fleet for the peak, over the same time."""
        if self.peak is None:
            return None
        last = self.windows[-1]
        seconds = last.end_s - self.windows[0].start_s + self.startup_s + last.longest_s
        return self.peak * seconds / _SECONDS_OF_HOUR

    @property
    def saved(self) -> float | None:
        """Saved share of the replica-hours of the fixed fleet; negative if the schedule uses more."""
        if self.replica_hours is None or self.fixed_hours is None:
            return None
        return 1 - self.replica_hours / self.fixed_hours

    @cached_property
    def frame(self) -> pl.DataFrame:
        """One row for each window: `start_s`, `end_s`, `requests`, `rate_per_s`, `replicas`, `gpus`, `cost`.

        `cost` is the cost of the replicas per hour, or their GPUs. `share` is the largest value divided by
        its limit.
        """
        rows = []
        for window in self.windows:
            units = None if window.units is None else window.units + self.spare
            sizes = (
                (None, None, None)
                if units is None
                else (
                    units * self.candidate.replicas_of_unit,
                    self.candidate.gpus_of(units),
                    self.unit_cost * units,
                )
            )
            rate = window.requests / (window.end_s - window.start_s)
            rows.append((window.start_s, window.end_s, window.requests, rate, *sizes, window.share))
        schema: dict[str, Any] = {"start_s": pl.Float64, "end_s": pl.Float64, "requests": pl.Int64}
        schema |= {"rate_per_s": pl.Float64, "replicas": pl.Int64, "gpus": pl.Int64}
        return pl.DataFrame(rows, schema={**schema, "cost": pl.Float64, "share": pl.Float64}, orient="row")

    def cluster(self, every_s: float = 15) -> Cluster:
        """A cluster whose autoscaler follows the schedule.

        A replica is requested `startup_s + every_s` before its first window, so that it is ready in time. It
        drains from the end of its last window.

        Args:
            every_s: interval of the autoscaler in seconds, above 0.

        Raises:
            ConfigError: no number of replicas serves one of the windows, or the fleet is disaggregated, which
                does not support autoscaling.

        Example:
            >>> import inferq as iq
            >>> kv = iq.KvCache(tokens=9000)
            >>> engine = iq.Engine(timing=iq.Constant(0.02), scheduler=iq.Sarathi(), kv=kv)
            >>> rates = iq.dist.TimeVarying(times_s=[0, 60, 120], rates=[2, 30, 2])
            >>> lengths = {"prompt": iq.dist.Fixed(200), "output": iq.dist.Fixed(100)}
            >>> day = iq.Workload.synthetic(requests=2100, arrivals=rates, **lengths)
            >>> plan = iq.plan(day, iq.Slo(ttft_p99=0.5), engines=engine)
            >>> hours = plan.schedule(every_s=60, startup_s=10)
            >>> iq.simulate(day, hours.cluster(every_s=1)).summary()["ttft_p99"].item() < 0.5
            True
        """
        if self.peak is None:
            raise ConfigError("schedule", "contains a window that no number of replicas serves")
        fixed = self.candidate.system(self.peak)
        if not isinstance(fixed, Cluster):
            raise ConfigError("schedule", "disaggregated fleets do not support autoscaling")
        lead_s = self.startup_s + positive("every_s", every_s)
        starts = {max(0.0, window.start_s - lead) for window in self.windows for lead in (0.0, lead_s)}
        steps: list[tuple[float, int]] = []
        for at_s in sorted(starts):
            first = bisect_right(self.windows, at_s, key=lambda window: window.end_s)
            last = bisect_right(self.windows, at_s, key=lambda window: window.start_s - lead_s)
            needed = max((window.units or 0) + self.spare for window in self.windows[first:last])
            if not steps or steps[-1][1] != needed:
                steps.append((at_s, needed))
        counts = [count for _, count in steps]
        scaler = Autoscaler(
            BySchedule(steps), min=min(counts), max=max(counts), startup_s=self.startup_s, every_s=every_s
        )
        return replace(fixed, replicas=counts[0], autoscaler=scaler)

    @cached_property
    def run(self) -> ScheduleRun | None:
        """Simulation of `cluster()` over all requests, compared with the fixed fleet for the peak.

        It measures the savings and whether the SLO is met while replicas start and drain. Windows alone
        cannot show that, since each starts with empty replicas. None if no number of replicas serves one of
        the windows, or if the fleet is disaggregated.
        """
        fixed = None if self.peak is None else self.candidate.system(self.peak)
        if not isinstance(fixed, Cluster):
            return None
        return run_schedule(self.cluster(), fixed, self.workload, self.objectives, self.seed, self.options)

    def explain(self) -> str:
        """The peak, the replica-hours and the savings, one per line."""
        peak, hours, fixed = self.peak, self.replica_hours, self.fixed_hours
        if peak is None or hours is None or fixed is None or self.saved is None:
            unserved = [window for window in self.windows if window.units is None]
            start = amount(unserved[0].start_s, "s")
            windows = counted(len(unserved), "window")
            return f"no number of replicas serves {windows}, the first from {start}"
        least = min(window.units or 0 for window in self.windows) + self.spare
        lines = [
            f"peak: {self.candidate.size(peak)}; minimum: {self.candidate.size(least)}, in "
            f"{counted(len(self.windows), 'window')}",
            f"fixed fleet for the peak: {number(fixed)} replica-hours; schedule: {number(hours)}, "
            f"{percent(self.saved)} less",
        ]
        if self.unit != "GPUs":
            word = self.unit.removesuffix("per hour").strip()
            lines.append(
                f"{number(fixed * self.unit_cost)} against {number(hours * self.unit_cost)} {word}".strip()
            )
        lines.append(
            f"replicas start {amount(self.startup_s, 's')} before they are needed and drain before they stop"
        )
        if self.run is not None:
            lines.append(str(self.run))
        return "\n".join(lines)

    def __str__(self) -> str:
        """The text of `explain()`."""
        return self.explain()

    def __repr__(self) -> str:
        """The number of windows and the peak."""
        return f"Schedule({counted(len(self.windows), 'window')}, peak {self.peak})"


def schedule(
    planned: CandidateState | None,
    prober: Prober,
    unit: str,
    every_s: float,
    startup_s: float,
    workload: Workload | Table | None,
) -> Schedule | None:
    """The replicas of the planned candidate in each window; see `FleetPlan.schedule`."""
    every_s, startup_s = positive("every_s", every_s), not_negative("startup_s", startup_s)
    for name in ("warmup", "cooldown", "horizon_s", "max_in_flight"):
        if name in prober.options:
            raise ConfigError(name, "is not supported by schedule, whose windows decide which requests count")
    if planned is None or planned.high is None:
        return None
    seed, units = prober.seeds[0], planned.sizes[planned.high]
    peak = prober.workload_of(seed).frame
    if workload is None:
        whole = peak
    else:
        whole = (workload if isinstance(workload, Workload) else Workload(workload)).ready(seed)
    if "think_s" in whole.columns or "continues" in whole.columns:
        raise ConfigError("workload", "contains sessions or continued prompts, which windows would separate")
    arrivals = whole["arrival_s"].to_numpy()
    count = int(arrivals[-1] // every_s) + 1
    if count > _MOST_WINDOWS:
        raise ConfigError("every_s", f"makes {count:,} windows; at most {_MOST_WINDOWS:,} are supported")
    ends = np.searchsorted(arrivals, every_s * np.arange(count + 1), side="left")
    tokens = np.cumsum(_tokens(whole))
    sustained = float(_tokens(peak).sum()) / max(float(peak["arrival_s"][-1] - peak["arrival_s"][0]), every_s)
    tasks = []
    for place, (first, last) in enumerate(pairwise(ends.tolist())):
        load = float(tokens[last - 1] - (tokens[first - 1] if first else 0)) if last > first else 0.0
        guess = max(1, round(units * load / every_s / sustained))
        span = (every_s * place, every_s * (place + 1))
        tasks.append(
            partial(
                _window,
                prober,
                planned.candidate,
                planned.sizes,
                whole[first:last],
                span,
                bisect_left(planned.sizes, guess),
            )
        )
    return Schedule(
        windows=tuple(run_tasks(tasks, prober.threads)),
        candidate=planned.candidate,
        unit=unit,
        unit_cost=planned.unit_cost,
        startup_s=startup_s,
        spare=planned.spare,
        workload=Workload(whole),
        objectives=prober.objectives,
        seed=seed,
        options=prober.options,
    )


def _tokens(frame: pl.DataFrame) -> Any:
    """Prompt and output tokens of each request."""
    return frame["prompt_tokens"].to_numpy() + frame["output_tokens"].to_numpy().astype(np.int64)


def _window(
    prober: Prober,
    candidate: Candidate,
    sizes: tuple[int, ...],
    frame: pl.DataFrame,
    span: tuple[float, float],
    guess: int,
    watch: Progress | None,
) -> Window:
    """The fewest units that meet the SLO in a window: up from a guess, then down."""
    requests = frame.height
    if requests == 0:
        return Window(*span, 0, sizes[0], 0.0, 0.0)
    workload, objectives = Workload(frame), prober.objectives
    tried: dict[int, tuple[float, float]] = {}

    def meets_slo(place: int) -> bool:
        if place not in tried:
            result = simulate(
                workload,
                candidate.system(sizes[place]),
                seed=prober.seeds[0],
                threads=1,
                progress=watch,
                **prober.options,
            )
            values = measured(objectives, 0.0, result)
            shares = [
                v / o.limit if o.limit else float(v > 0) * 2 for v, o in zip(values, objectives, strict=True)
            ]
            longest_s = result.summary()["e2e_max"].item() or 0.0
            tried[place] = max(shares), longest_s
        return tried[place][0] <= 1

    last = len(sizes) - 1
    place = min(guess, last)
    step = 1
    while not meets_slo(place):
        if place == last:
            return Window(*span, requests, None, *tried[place])
        place, step = min(place + step, last), 2 * step
    step = 1
    while place > 0:
        below = max(0, place - step)
        if below in tried and not meets_slo(below):
            break
        if meets_slo(below):
            place, step = below, 2 * step
        else:
            low = below
            while place - low > 1:
                middle = (low + place) // 2
                low, place = (low, middle) if meets_slo(middle) else (middle, place)
            break
    return Window(*span, requests, sizes[place], *tried[place])
