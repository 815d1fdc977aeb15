"""How many replicas at which hour: a load that changes, served by as many as it needs."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from inferq._lazy import np, pl
from inferq.checks import not_negative, positive
from inferq.display.text import amount, counted, number, percent
from inferq.errors import ConfigError
from inferq.experiments.plans.candidate import Candidate
from inferq.experiments.plans.simulated import Followed, followed
from inferq.experiments.replication import at_once
from inferq.progress import Progress
from inferq.results.slo import Objective, measured
from inferq.simulation.simulate import simulate
from inferq.systems.autoscaler import Autoscaler, BySchedule
from inferq.systems.cluster import Cluster
from inferq.workload.columns import Table
from inferq.workload.workload import Workload

if TYPE_CHECKING:
    from inferq.experiments.plans.fleet_plan import FleetPlan

_MOST_WINDOWS = 100_000
_SECONDS_OF_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Window:
    """A part of the time, and what it needs."""

    start_s: float
    end_s: float
    requests: int
    """That arrive in it."""
    units: int | None
    """The fewest that keep the SLO over them; None where no number does."""
    share: float
    """The largest share that a value has of its limit then."""
    longest_s: float
    """From the arrival to the last token of the slowest of them: so long a replica drains at most."""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Schedule:
    """How many replicas each window needs, and what that saves; made by `FleetPlan.schedule`."""

    windows: tuple[Window, ...]
    candidate: Candidate
    unit: str
    unit_cost: float
    """Of a replica, an hour or in GPUs."""
    startup_s: float
    spare: int
    workload: Workload
    """All requests, as they come."""
    objectives: tuple[Objective, ...]
    seed: int
    options: Mapping[str, Any]
    """Of the runs."""

    @property
    def peak(self) -> int | None:
        """The most that a window needs: a fleet that never changes needs them all the time."""
        needs = [one.units for one in self.windows]
        return None if None in needs else max(one for one in needs if one is not None) + self.spare

    @property
    def replica_hours(self) -> float | None:
        """Of the schedule: each from the moment it is started until it has drained.

        A replica that is there for a window is started `startup_s` before it; one that is not there for the
        next finishes what it has, as long as the slowest request of its window takes at most.
        """
        if self.peak is None:
            return None
        seconds, before, drains_s = 0.0, 0, 0.0
        for one in self.windows:
            units = (one.units or 0) + self.spare
            seconds += units * (one.end_s - one.start_s)
            seconds += max(0, units - before) * self.startup_s + max(0, before - units) * drains_s
            before, drains_s = units, one.longest_s
        return (seconds + before * drains_s) / _SECONDS_OF_HOUR

    @property
    def fixed_hours(self) -> float | None:
        """Of a fleet for the peak, over the same time."""
        if self.peak is None:
            return None
        last = self.windows[-1]
        seconds = last.end_s - self.windows[0].start_s + self.startup_s + last.longest_s
        return self.peak * seconds / _SECONDS_OF_HOUR

    @property
    def saved(self) -> float | None:
        """The share of the fixed fleet's replica-hours that it saves; below 0 where it takes more."""
        if self.replica_hours is None or self.fixed_hours is None:
            return None
        return 1 - self.replica_hours / self.fixed_hours

    @cached_property
    def frame(self) -> pl.DataFrame:
        """One row for each window: `start_s`, `end_s`, `requests`, `rate_per_s`, `replicas`, `gpus`, `cost`.

        `cost` is that of the replicas for an hour, or their GPUs; `share` the largest share that a value has
        of its limit.
        """
        rows = []
        for one in self.windows:
            units = None if one.units is None else one.units + self.spare
            sizes = (
                (None, None, None)
                if units is None
                else (
                    units * self.candidate.replicas_of_unit,
                    self.candidate.gpus_of(units),
                    self.unit_cost * units,
                )
            )
            rate = one.requests / (one.end_s - one.start_s)
            rows.append((one.start_s, one.end_s, one.requests, rate, *sizes, one.share))
        schema: dict[str, Any] = {"start_s": pl.Float64, "end_s": pl.Float64, "requests": pl.Int64}
        schema |= {"rate_per_s": pl.Float64, "replicas": pl.Int64, "gpus": pl.Int64}
        return pl.DataFrame(rows, schema={**schema, "cost": pl.Float64, "share": pl.Float64}, orient="row")

    def cluster(self, every_s: float = 15) -> Cluster:
        """The fleet that follows the schedule, to be simulated: does the SLO hold while replicas come and go?

        A replica that a window needs is asked for early enough that it is open when the window begins:
        `startup_s` and a look before. One that is needed no more drains from the next window on.

        Args:
            every_s: seconds between two looks of its autoscaler, above 0.

        Raises:
            ConfigError: a window that no number of replicas serves, or prefill and decode on replicas apart,
                which cannot come and go.

        Example:
            >>> import inferq as iq
            >>> kv = iq.KvCache(tokens=9000)
            >>> engine = iq.Engine(timing=iq.Constant(0.02), scheduler=iq.Sarathi(), kv=kv)
            >>> rates = iq.TimeVarying(times_s=[0, 60, 120], rates=[2, 30, 2])
            >>> lengths = {"prompt": iq.Fixed(200), "output": iq.Fixed(100)}
            >>> day = iq.Workload.synthetic(requests=2100, arrivals=rates, **lengths)
            >>> plan = iq.plan(day, iq.Slo(ttft_p99=0.5), engines=engine)
            >>> hours = plan.schedule(every_s=60, startup_s=10)
            >>> iq.simulate(day, hours.cluster(every_s=1)).summary()["ttft_p99"].item() < 0.5
            True
        """
        if self.peak is None:
            raise ConfigError("schedule", "has a window that no number of replicas serves")
        fixed = self.candidate.system(self.peak)
        if not isinstance(fixed, Cluster):
            raise ConfigError("schedule", "replicas for prefill and for decode apart cannot come and go")
        lead_s = self.startup_s + positive("every_s", every_s)
        starts = {max(0.0, one.start_s - lead) for one in self.windows for lead in (0.0, lead_s)}
        steps: list[tuple[float, int]] = []
        for at_s in sorted(starts):
            first = bisect_right(self.windows, at_s, key=lambda one: one.end_s)
            last = bisect_right(self.windows, at_s, key=lambda one: one.start_s - lead_s)
            needed = max((one.units or 0) + self.spare for one in self.windows[first:last])
            if not steps or steps[-1][1] != needed:
                steps.append((at_s, needed))
        counts = [count for _, count in steps]
        scaler = Autoscaler(
            BySchedule(steps), min=min(counts), max=max(counts), startup_s=self.startup_s, every_s=every_s
        )
        return replace(fixed, replicas=counts[0], autoscaler=scaler)

    @cached_property
    def followed(self) -> Followed | None:
        """What simulation says of it: `cluster()` over all requests, beside the fleet for the peak.

        So what is saved, and whether the SLO holds while replicas come and go, is measured; a window by
        itself begins with empty replicas and knows of no change. None where a window has no number of
        replicas, or prefill and decode are on replicas apart.
        """
        fixed = None if self.peak is None else self.candidate.system(self.peak)
        if not isinstance(fixed, Cluster):
            return None
        return followed(self.cluster(), fixed, self.workload, self.objectives, self.seed, self.options)

    def explain(self) -> str:
        """The peak, what the schedule takes, and what it saves, a line each."""
        peak, taken, fixed = self.peak, self.replica_hours, self.fixed_hours
        if peak is None or taken is None or fixed is None or self.saved is None:
            hopeless = [one for one in self.windows if one.units is None]
            when = amount(hopeless[0].start_s, "s")
            return f"{counted(len(hopeless), 'window')} no number of replicas serves, first from {when} on"
        least = min(one.units or 0 for one in self.windows) + self.spare
        lines = [
            f"{self.candidate.size(peak)} serve the peak, {self.candidate.size(least)} the quietest of "
            f"{counted(len(self.windows), 'window')}",
            f"a fleet for the peak takes {number(fixed)} replica-hours, the schedule {number(taken)}: "
            f"{percent(self.saved)} less",
        ]
        if self.unit != "GPUs":
            word = self.unit.removesuffix("an hour").strip()
            lines.append(
                f"{number(fixed * self.unit_cost)} against {number(taken * self.unit_cost)} {word}".strip()
            )
        lines.append(
            f"started {amount(self.startup_s, 's')} before they are needed; those that go finish first"
        )
        if self.followed is not None:
            lines.append(str(self.followed))
        return "\n".join(lines)

    def __str__(self) -> str:
        """What `explain()` says."""
        return self.explain()

    def __repr__(self) -> str:
        """The peak and the windows."""
        return f"Schedule({counted(len(self.windows), 'window')}, peak {self.peak})"


def schedule(
    plan: FleetPlan, every_s: float, startup_s: float, workload: Workload | Table | None
) -> Schedule | None:
    """The replicas of the planned candidate, window by window; see `FleetPlan.schedule`."""
    every_s, startup_s = positive("every_s", every_s), not_negative("startup_s", startup_s)
    for name in ("warmup", "cooldown", "horizon_s", "max_in_flight"):
        if name in plan.prober.options:
            raise ConfigError(name, "says which requests count; a schedule has windows of its own")
    answer = plan.answer
    if answer is None or answer.units is None:
        return None
    peak = plan.prober._whole(plan.seeds[0]).frame
    if workload is None:
        whole = peak
    else:
        other = workload if isinstance(workload, Workload) else Workload(workload)
        whole = other.ready(plan.seeds[0])
    if "think_s" in whole.columns or "continues" in whole.columns:
        raise ConfigError("workload", "has requests that wait for, or go on from, others: it has no windows")
    arrivals = whole["arrival_s"].to_numpy()
    count = int(arrivals[-1] // every_s) + 1
    if count > _MOST_WINDOWS:
        raise ConfigError("every_s", f"makes {count:,} windows; at most {_MOST_WINDOWS:,}")
    standing = plan.standings[answer.candidate.place]
    ends = np.searchsorted(arrivals, every_s * np.arange(count + 1), side="left")
    tokens = np.cumsum(_tokens(whole))
    carried = float(_tokens(peak).sum()) / max(float(peak["arrival_s"][-1] - peak["arrival_s"][0]), every_s)
    tasks = []
    for place, (first, last) in enumerate(pairwise(ends.tolist())):
        load = float(tokens[last - 1] - (tokens[first - 1] if first else 0)) if last > first else 0.0
        guess = max(1, round((answer.units - standing.spare) * load / every_s / carried))
        tasks.append(
            partial(
                _window,
                plan,
                standing.sizes,
                whole[first:last],
                (every_s * place, every_s * (place + 1)),
                bisect_left(standing.sizes, guess),
            )
        )
    return Schedule(
        windows=tuple(at_once(tasks, plan.prober.threads)),
        candidate=answer.candidate,
        unit=plan.unit,
        unit_cost=standing.unit_cost,
        startup_s=startup_s,
        spare=plan.spare,
        workload=Workload(whole),
        objectives=plan.prober.objectives,
        seed=plan.seeds[0],
        options=plan.prober.options,
    )


def _tokens(frame: pl.DataFrame) -> Any:
    """Prompt and output tokens of each request."""
    return frame["prompt_tokens"].to_numpy() + frame["output_tokens"].to_numpy().astype(np.int64)


def _window(
    plan: FleetPlan,
    sizes: tuple[int, ...],
    frame: pl.DataFrame,
    span: tuple[float, float],
    guess: int,
    watch: Progress | None,
) -> Window:
    """The fewest units that keep the SLO over the requests of a window: from a guess up, then down."""
    requests = frame.height
    if requests == 0:
        return Window(*span, 0, sizes[0], 0.0, 0.0)
    answer, objectives = plan.answer, plan.prober.objectives
    assert answer is not None
    workload = Workload(frame)
    tried: dict[int, tuple[float, float]] = {}

    def keeps(place: int) -> bool:
        if place not in tried:
            result = simulate(
                workload,
                answer.candidate.system(sizes[place]),
                seed=plan.seeds[0],
                threads=1,
                progress=watch,
                **plan.prober.options,
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
    while not keeps(place):
        if place == last:
            return Window(*span, requests, None, *tried[place])
        place, step = min(place + step, last), 2 * step
    step = 1
    while place > 0:
        below = max(0, place - step)
        if below in tried and not keeps(below):
            break
        if keeps(below):
            place, step = below, 2 * step
        else:
            low = below
            while place - low > 1:
                middle = (low + place) // 2
                low, place = (low, middle) if keeps(middle) else (middle, place)
            break
    return Window(*span, requests, sizes[place], *tried[place])
