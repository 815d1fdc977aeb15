"""`FleetPlan`: the cheapest fleet that keeps an SLO, what it costs, and what became of every other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any

from inferq._lazy import pl
from inferq.display.notebook import Viewed
from inferq.display.text import amount, counted, number, percent
from inferq.experiments.plans.candidate import Candidate
from inferq.experiments.plans.choices import Choices
from inferq.experiments.plans.fate import Fate, Fates
from inferq.experiments.plans.probing import Prober, Trial
from inferq.experiments.plans.schedule import Schedule, schedule
from inferq.experiments.plans.sensitivity import sensitivity
from inferq.experiments.plans.simulated import Death, death_of
from inferq.experiments.plans.standing import Standings
from inferq.experiments.plans.toml import scenario_as_toml
from inferq.results.slo import Slo
from inferq.simulation.simulate import simulate
from inferq.systems.prices import Prices
from inferq.systems.system import System
from inferq.workload.columns import Table
from inferq.workload.workload import Workload

_SECONDS_OF_HOUR = 3600
_SAID = 5
"""So many undecided candidates are named."""
FOUND = "finding in a run of the fleet"
"""With which words begins what a run of the answer tells."""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class FleetPlan(Viewed):
    """The cheapest fleet that keeps an SLO, and the fate of every candidate; made by `inferq.plan`."""

    slo: Slo
    workload: Workload
    rate: float | None
    """Requests per second that come."""
    choices: Choices
    prices: Prices | None
    unit: str
    """What costs are in: the currency an hour, or GPUs."""
    spare: int
    within: float
    confidence: float
    exact: bool
    """Whether the workload is fixed and nothing else is drawn: the answer is about these very requests."""
    requests: int
    """Of a whole run."""
    seeds: tuple[int, ...]
    fates: Fates
    """In the order of the grid; those after them that make no engine are in `candidates`."""
    standings: Standings
    prober: Prober
    stopped: bool
    """Whether the time was over before the end."""
    gaps: tuple[str, ...]
    """Where more replicas were worse."""
    simulated: int
    """Requests of all runs together, those of a file to resume from aside."""
    runs: int
    output_tokens_mean: float
    """Of a request."""
    scheduled: Schedule | None = None
    """A schedule that the page shows too: `dataclasses.replace(plan, scheduled=plan.schedule(3600))`."""
    command: str = ""
    """The command line that made it; empty where it was made in Python."""
    scenario: str
    """JSON that says what was run: the workload, the SLO, the seeds in order, and the options of the runs."""

    @property
    def answer(self) -> Fate | None:
        """The fate of the cheapest; None where nothing keeps the SLO."""
        return next((one for one in self.fates.of_touched.values() if one.kind == "cheapest"), None)

    @property
    def units(self) -> int | None:
        """How many replicas it has (of pools that are apart: groups of them), spares included."""
        return None if self.answer is None else self.answer.units

    @property
    def fleet(self) -> System | None:
        """The fleet to rent, as `simulate` takes it; None where nothing keeps the SLO."""
        answer = self.answer
        return None if answer is None or answer.units is None else answer.candidate.system(answer.units)

    @property
    def runner_up(self) -> Fate | None:
        """The next best that is known to keep the SLO; None where none is."""
        kept = [one for one in self.fates.of_touched.values() if one.kind == "kept"]
        return min(kept, key=lambda one: (one.cost, _share(one.trial), one.candidate.place), default=None)

    @property
    def cost_per_hour(self) -> float | None:
        """What the fleet costs an hour; None without prices."""
        return None if self.prices is None or self.answer is None else self.answer.cost

    @cached_property
    def _told(self) -> tuple[pl.DataFrame, list[str]] | None:
        """What a run of the planned fleet over all requests of the first seed says, and its findings."""
        if self.fleet is None:
            return None
        seed = self.seeds[0]
        run = simulate(self.prober._whole(seed), self.fleet, seed=seed, **self.prober.options)
        return run.summary(prices=self.priced), run.findings

    @property
    def summary(self) -> pl.DataFrame | None:
        """`Result.summary` of the planned fleet over all requests of the first seed, with its costs.

        The columns of costs are there with prices alone. None where nothing keeps the SLO.
        """
        return None if self._told is None else self._told[0]

    @property
    def priced(self) -> Prices | None:
        """The prices by which the planned fleet is billed, also where its engine says no card."""
        if self.prices is None or self.answer is None:
            return None
        return replace(self.prices, card=self.answer.candidate.card)

    @cached_property
    def death(self) -> Death | None:
        """What becomes of the planned fleet when one replica dies while it has the most to do, for good.

        Its requests are sent to the others, and computed once more (see `Failures`); the objectives are held
        against all requests of these runs, one of each seed. So `spare=1` is proved, or shown not to be
        enough. None where nothing keeps the SLO, or prefill and decode are on replicas apart, which do not
        fail.

        Raises:
            SimulationError: a run that cannot go on.
        """
        return death_of(self)

    @property
    def undecided(self) -> tuple[Fate, ...]:
        """Those that may yet be cheaper."""
        return tuple(self.fates.of_kind("undecided"))

    @property
    def reason(self) -> str | None:
        """Where nothing keeps the SLO: what comes nearest, and which bound forbids more; else None."""
        if self.answer is not None:
            return None
        fates, _ = self.fates.told
        tried = [one for one in fates if one.trial is not None]
        bounds = [one.why for one in fates if one.kind == "ruled out"]
        parts = []
        if tried:
            nearest = min(tried, key=lambda one: (_share(one.trial), one.candidate.place))
            assert nearest.trial is not None
            trial = nearest.trial
            parts.append(f"nearest comes {self.name(nearest.candidate, trial.units)}: {trial.worst}")
        parts += bounds[:1]
        return "; ".join(parts) or "nothing was tried, there was no time"

    def name(self, candidate: Candidate, units: int | None = None) -> str:
        """A candidate by what it has that others have not, with its size where that is given."""
        beside = [
            candidate.labels[axis]
            for axis in self.choices.varied
            if axis not in ("gpu", "tensor_parallel", "engine")
        ]
        size = f"{candidate.gpus} {candidate.card}" if units is None else candidate.size(units)
        return ", ".join([size, *beside])

    @cached_property
    def candidates(self) -> pl.DataFrame:
        """One row for each candidate: its choices, its `fate`, the size and the cost that keep the SLO, why.

        A column for each axis (`gpu` and so on), `fate`, `replicas`, `gpus` and `nodes` (of the fewest that
        keep it, spares included; null where none are known), `cost` (of them, in `unit`), `at_least` (no
        fleet of it that keeps the SLO costs less; null where none keeps it) and `why`.
        """
        fates, which = self.fates.told
        rows = []
        for one in fates:
            of = one.candidate
            sizes = (
                (None, None, None)
                if one.units is None
                else (one.units * of.replicas_of_unit, of.gpus_of(one.units), of.nodes_of(one.units))
            )
            rows.append((one.kind, *sizes, one.cost, one.at_least, one.why))
        schema: dict[str, Any] = {
            "fate": pl.String,
            **dict.fromkeys(("replicas", "gpus_in_all", "nodes"), pl.Int64),
        }
        schema |= {"cost": pl.Float64, "at_least": pl.Float64, "why": pl.String}
        told = pl.DataFrame(rows, schema=schema, orient="row")[which]
        axes = {axis: self.choices.axis(axis) for axis in self.choices.axes}
        labels = [pl.Series(axis, words, pl.String)[chosen] for axis, (words, chosen) in axes.items()]
        misfits = [
            {**{axis: one.labels.get(axis, "") for axis in axes}, "fate": "does not fit", "why": one.why}
            for one in self.choices.engines.misfits
        ]
        found = pl.DataFrame([*labels, *told])
        return pl.concat([found, pl.DataFrame(misfits, found.schema)])

    @cached_property
    def probes(self) -> pl.DataFrame:
        """One row for each fleet and objective that was run, in no order of cost.

        `candidate` (its row), `replicas`, `requests` (the first so many), `seeds`, `verdict` (of the fleet),
        `metric`, `class`, `limit`, `value` (mean over the seeds), `low` and `high` (null for `exact` plans
        and parts).
        """
        rows = [
            (
                *(trial.candidate.place, trial.units * trial.candidate.replicas_of_unit, trial.requests),
                *(trial.seeds, trial.verdict, one.objective.metric.name, one.objective.class_name),
                *(one.objective.limit, one.value, one.low, one.high),
            )
            for trial in self.prober.trials.values()
            for one in trial.judged
        ]
        schema: dict[str, Any] = dict.fromkeys(("candidate", "replicas", "requests", "seeds"), pl.Int64)
        schema |= dict.fromkeys(("verdict", "metric", "class"), pl.String)
        schema |= dict.fromkeys(("limit", "value", "low", "high"), pl.Float64)
        return pl.DataFrame(rows, schema=schema, orient="row")

    @cached_property
    def frontier(self) -> pl.DataFrame:
        """Cost against latency: the fleets run on all requests of which no cheaper one is as fast.

        `fleet`, `replicas`, `gpus`, `cost`, `share` (of its limit, of the objective that is nearest to it),
        `metric`, `value`, `low`, `high`, by cost.
        """
        rows = []
        for standing in self.standings.touched.values():
            for trial in standing.whole:
                cost = standing.unit_cost * (trial.units + standing.spare)
                rows.append((cost, trial.share, standing.candidate.place, trial))
        rows.sort(key=lambda row: row[:3])
        best, shown = float("inf"), []
        for cost, share, _, trial in rows:
            if share < best:
                best = share
                worst, of = trial.worst, trial.candidate
                shown.append(
                    (
                        *(self.name(of, trial.units), trial.units * of.replicas_of_unit),
                        *(of.gpus_of(trial.units), cost, share),
                        *(worst.objective.metric.name, worst.value, worst.low, worst.high),
                    )
                )
        schema: dict[str, Any] = {"fleet": pl.String, "replicas": pl.Int64, "gpus": pl.Int64}
        schema |= dict.fromkeys(("cost", "share"), pl.Float64)
        schema |= {"metric": pl.String, **dict.fromkeys(("value", "low", "high"), pl.Float64)}
        return pl.DataFrame(shown, schema=schema, orient="row")

    def sensitivity(self, by: float = 0.1) -> pl.DataFrame:
        """What would change the answer: the same candidate with more or less of what it was planned for.

        Args:
            by: how much, as a share.

        Returns:
            For the rate, the lengths and the times of the engine, each `by` more and less: `what`, `factor`,
            `keeps` (whether the planned fleet keeps the SLO then), `replicas` (that do; null where no number
            does), `gpus`, `cost`. Lengths are left out where prompts say what they share.
        """
        return sensitivity(self, by)

    def schedule(
        self, every_s: float = 3600.0, *, startup_s: float = 0.0, workload: Workload | Table | None = None
    ) -> Schedule | None:
        """How many replicas each hour needs, and what a fleet saves that has no more than that.

        The requests of each window are run by themselves, from empty replicas on: it needs the fewest that
        keep the SLO over them. The change from one window to the next is counted, not run: what comes is
        started `startup_s` before, what goes finishes first.

        Args:
            every_s: seconds of a window, above 0.
            startup_s: from the moment that a replica is asked for, and paid, until it serves; 0 or above.
            workload: another than that of the plan: a week, say, of which the plan has the busiest hour.

        Returns:
            The schedule of the first seed's requests; None where nothing keeps the SLO.

        Raises:
            ConfigError: a number outside its range; sessions or prompts that go on from others, or options of
                the runs that say which requests count.
        """
        return schedule(self, every_s, startup_s, workload)

    def toml(self) -> str:
        """The planned fleet and the workload as a scenario in TOML, with a `[gate]` over the SLO's metrics.

        `inferq gate` holds later runs against it. Rows of a frame of more than 100 requests are named by
        their SHA-256; `Scenario.write` puts them beside a file.
        """
        return scenario_as_toml(self)

    @property
    def findings(self) -> tuple[str, ...]:
        """The answer, its cost, its risk, its runner-up, and what to know before trusting it."""
        answer = self.answer
        lines = [] if answer is None else self._answer(answer)
        if answer is None:
            lines += [f"no fleet was found that keeps {self.slo}", self.reason or ""]
        misfits = self.choices.engines.misfits
        fitting = f"{counted(len(misfits), 'choice')} made no engine" if misfits else ""
        lines.append(
            "; ".join(
                [
                    ", ".join(f"{count:,} {kind}" for kind, count in self.fates.counts.items()),
                    *filter(None, [fitting]),
                ]
            )
            + f"; {self.runs:,} runs of {self.simulated:,} requests in all"
        )
        if self.stopped:
            lines.append("the time was over: what is undecided may be cheaper")
        undecided = islice(self.fates.of_kind("undecided"), _SAID)
        lines += [f"undecided: {self.name(one.candidate)}: {one.why}" for one in undecided]
        lines += self.slo.questions
        if self._told is not None and not self.stopped:
            lines += [f"{FOUND}: {text}" for text in self._told[1]]
        lines += self.gaps
        lines += self.choices.notes
        if self.prices is None and len({one.card for one in self.choices.engines.families}) > 1:
            lines.append("no prices were given: a GPU of every card counts the same")
        if self.exact:
            lines.append(
                "a fixed workload is one sample: other requests of the same kind would give another answer"
            )
        return tuple(lines)

    def _answer(self, answer: Fate) -> list[str]:
        of, units = answer.candidate, answer.units
        assert units is not None
        sure = "for these very requests" if self.exact else f"with {percent(self.confidence, 6)} confidence"
        spare = f", {self.spare} of them to spare," if self.spare else ""
        gpus = counted(of.gpus_of(units), "GPU")
        lines = [
            f"a fleet of {self.name(of, units)}{spare} keeps {self.slo} {sure}",
            f"{gpus}, {counted(of.nodes_of(units), 'node')}{self._money(answer)}",
        ]
        if answer.trial is not None:
            lines.append(f"risk: {answer.trial.worst}")
        if self.spare and not self.stopped and self.death is not None:
            lines.append(str(self.death))
        second = self.runner_up
        if second is not None and second.units is not None:
            lines.append(f"runner-up: {self.name(second.candidate, second.units)}, {second.why}")
        else:
            lines.append("runner-up: none is known to keep the SLO")
        return lines

    def _money(self, answer: Fate) -> str:
        if self.prices is None or answer.cost is None:
            return ""
        said = f", {number(answer.cost)} {self.unit}"
        if self.rate is not None:
            request = answer.cost / _SECONDS_OF_HOUR / self.rate
            tokens = 1e6 * request / self.output_tokens_mean
            word = f" {self.prices.currency}".rstrip()
            said += f", {number(tokens)}{word} per 10⁶ output tokens, {number(request, 3)}{word} a request"
        return said

    def explain(self) -> str:
        """The findings, a line each."""
        return "\n".join(self.findings)

    def __str__(self) -> str:
        """What `explain()` says."""
        return self.explain()

    def __repr__(self) -> str:
        """The answer and the number of candidates."""
        answer = self.answer
        said = "no fleet" if answer is None or answer.units is None else answer.candidate.size(answer.units)
        return f"FleetPlan({said}; {counted(len(self.fates), 'candidate')})"


def _share(trial: Trial | None) -> float:
    return float("inf") if trial is None else trial.share


def shown_value(trial: Trial | None) -> str:
    """The objective nearest to its limit, as a cell of a table."""
    if trial is None:
        return "–"
    worst = trial.worst
    return f"{worst.objective} {amount(worst.value, worst.objective.metric.unit)}"
