"""`FleetPlan`: the cheapest fleet that meets an SLO, its cost, and the outcome of every candidate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from inferq._lazy import pl
from inferq.display.notebook import Viewed
from inferq.display.text import amount, counted, number, percent
from inferq.experiments.model_error import ModelErrors
from inferq.experiments.plans.candidate import Candidate
from inferq.experiments.plans.candidate_grid import CandidateGrid
from inferq.experiments.plans.candidate_state import CandidateState
from inferq.experiments.plans.outcome import CandidateOutcome, counts
from inferq.experiments.plans.prober import Prober, Trial
from inferq.experiments.plans.question import Question
from inferq.experiments.plans.schedule import Schedule, schedule
from inferq.experiments.plans.sensitivity import sensitivity
from inferq.experiments.plans.simulation import ReplicaFailure, replica_failure
from inferq.experiments.plans.toml import scenario_as_toml
from inferq.results.finding import ANSWER, Finding
from inferq.results.slo import Slo
from inferq.scenario import Scenario
from inferq.simulation.simulate import simulate
from inferq.systems.prices import Prices
from inferq.systems.system import System
from inferq.workload.columns import Table
from inferq.workload.load import Load
from inferq.workload.workload import Workload

_SECONDS_OF_HOUR = 3600
_MOST_UNDECIDED = 5
"""Undecided candidates that findings name."""
_TOLERANCE = "5%"
"""Tolerance of `inferq gate` in the TOML of a plan."""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class FleetPlan(Viewed):
    """The cheapest fleet that meets an SLO, and the outcome of every candidate; made by `inferq.plan`."""

    slo: Slo
    workload: Workload
    question: Question
    """Whether the plan is about a rate, or about exactly the given requests."""
    is_stable: bool
    """Whether the answer also holds for runs of several times the length, if the trace was extended."""
    tuned: bool
    """Whether token budgets were searched."""
    rate: float | None
    """Requests per second of the workload. None if all requests arrive at the same time."""
    grid: CandidateGrid
    prices: Prices | None
    unit: str
    """Unit of costs: the currency per hour, or GPUs."""
    spare: int
    within: float
    confidence: float
    exact: bool
    """Whether nothing is random, so that the answer is about exactly these requests."""
    requests: int
    """Requests of a whole run."""
    seeds: tuple[int, ...]
    outcomes: tuple[CandidateOutcome, ...]
    """Outcomes in the order of the grid. `candidates` also contains choices that make no engine."""
    states: tuple[CandidateState, ...]
    prober: Prober
    stopped: bool
    """Whether the search ran out of time."""
    gaps: tuple[str, ...]
    """Cases in which more replicas were worse."""
    simulated: int
    """Requests of all runs, without runs read from a file."""
    runs: int
    output_tokens_mean: float
    """Mean output tokens of a request."""
    scheduled: Schedule | None = None
    """A schedule to include in the page: `dataclasses.replace(plan, scheduled=plan.schedule(3600))`."""
    command: str = ""
    """The command line of the plan. Empty if it was made in Python."""
    scenario: str
    """The workload, the SLO, the seeds and the options of the runs, as JSON."""

    @cached_property
    def best(self) -> CandidateOutcome | None:
        """The outcome of the chosen candidate. None if no fleet meets the SLO."""
        return next((outcome for outcome in self.outcomes if outcome.kind == "chosen"), None)

    @property
    def units(self) -> int | None:
        """Replicas of the chosen fleet, spare included; groups of replicas if it is disaggregated."""
        return None if self.best is None else self.best.units

    @property
    def fleet(self) -> System | None:
        """The chosen fleet, as `simulate` accepts it. None if no fleet meets the SLO."""
        best = self.best
        return None if best is None or best.units is None else best.candidate.system(best.units)

    @property
    def runner_up(self) -> CandidateOutcome | None:
        """The second-best candidate that meets the SLO. None if there is none."""
        return min(
            (outcome for outcome in self.outcomes if outcome.kind == "meets the SLO"),
            key=lambda outcome: (outcome.cost, _share(outcome.trial), outcome.candidate.place),
            default=None,
        )

    @property
    def cost_per_hour(self) -> float | None:
        """The cost of the fleet per hour. None without prices."""
        return None if self.prices is None or self.best is None else self.best.cost

    @cached_property
    def _run(self) -> tuple[pl.DataFrame, list[Finding]] | None:
        """Summary and findings of a run of the chosen fleet with the first seed."""
        if self.fleet is None:
            return None
        seed = self.seeds[0]
        run = simulate(self.prober.workload_of(seed), self.fleet, seed=seed, **self.prober.options)
        return run.summary(prices=self.priced), run.findings

    @property
    def summary(self) -> pl.DataFrame | None:
        """`Result.summary` of the chosen fleet over all requests of the first seed.

        It contains costs if there are prices. None if no fleet meets the SLO.
        """
        return None if self._run is None else self._run[0]

    @property
    def priced(self) -> Prices | None:
        """The prices of the chosen fleet, also if its engine does not name its GPU."""
        if self.prices is None or self.best is None:
            return None
        return replace(self.prices, card=self.best.candidate.gpu)

    @cached_property
    def replica_failure(self) -> ReplicaFailure | None:
        """Effect of the permanent failure of one replica at peak load.

        Its requests are retried on the remaining replicas (see `Failures`). The objectives are evaluated over
        all requests, one run per seed. It shows whether `spare=1` is enough. None if no fleet meets the SLO,
        or if the fleet is disaggregated, which does not support failures.

        Raises:
            SimulationError: a run fails.
        """
        return replica_failure(self.fleet, self.prober, exact=self.exact, confidence=self.confidence)

    @cached_property
    def varying_load(self) -> Load | None:
        """The load of the requests of the first seed if their rate varies over time, else None."""
        load = Load.of_frame(self.workload.draw(self.seeds[0]).frame)
        return load if load is not None and load.varies else None

    @property
    def undecided(self) -> tuple[CandidateOutcome, ...]:
        """Candidates that may be cheaper."""
        return tuple(outcome for outcome in self.outcomes if outcome.kind == "undecided")

    @property
    def reason(self) -> str | None:
        """If no fleet meets the SLO: the closest candidate, and the bound that rules out the rest."""
        if self.best is not None:
            return None
        tried = [outcome for outcome in self.outcomes if outcome.trial is not None]
        parts = []
        if tried:
            nearest = min(tried, key=lambda outcome: (_share(outcome.trial), outcome.candidate.place))
            assert nearest.trial is not None
            trial = nearest.trial
            parts.append(f"closest: {self.name(nearest.candidate, trial.units)}: {trial.evidence}")
            if trial.worst.objective.metric.quantity in ("itl", "tpot") and not self.tuned:
                parts.append("the token budget may bind the gaps between tokens; tune=True searches it")
        parts += [outcome.reason for outcome in self.outcomes if outcome.kind == "ruled out"][:1]
        return "; ".join(parts) or "no candidate was tried (out of time)"

    def name(self, candidate: Candidate, units: int | None = None) -> str:
        """A candidate by its distinguishing choices, with its size if `units` is given."""
        choices = [
            candidate.labels[axis]
            for axis in self.grid.varied
            if axis not in ("gpu", "tensor_parallel", "engine")
        ]
        size = f"{candidate.gpus} {candidate.gpu}" if units is None else candidate.size(units)
        return ", ".join([size, *choices])

    @cached_property
    def candidates(self) -> pl.DataFrame:
        """One row per candidate: its choices, outcome, size and cost.

        A column for each axis (`gpu`, …); `outcome`; `replicas`, `gpus_in_all` and `nodes` of the smallest
        fleet that meets the SLO, spare included (null if unknown); its `cost` in `unit`; `at_least`, the
        lower bound of the cost (null if no fleet meets the SLO); and `reason`.
        """
        axes = self.grid.axes
        schema: dict[str, Any] = dict.fromkeys((*axes, "outcome"), pl.String)
        schema |= dict.fromkeys(("replicas", "gpus_in_all", "nodes"), pl.Int64)
        schema |= {"cost": pl.Float64, "at_least": pl.Float64, "reason": pl.String}
        rows: list[dict[str, Any]] = []
        for outcome in self.outcomes:
            candidate, units = outcome.candidate, outcome.units
            row = {**candidate.labels, "outcome": outcome.kind, "cost": outcome.cost}
            if units is not None:
                row["replicas"] = units * candidate.replicas_of_unit
                row["gpus_in_all"], row["nodes"] = candidate.gpus_of(units), candidate.nodes_of(units)
            rows.append({**row, "at_least": outcome.at_least, "reason": outcome.reason})
        rows += [
            {
                **{axis: misfit.labels.get(axis, "") for axis in axes},
                "outcome": "does not fit",
                "reason": misfit.reason,
            }
            for misfit in self.grid.misfits
        ]
        return pl.DataFrame(rows, schema)

    @cached_property
    def probes(self) -> pl.DataFrame:
        """One row per fleet that was run and objective.

        `candidate` (its row), `replicas`, `requests` (the first of the workload), `seeds`, `verdict` (of the
        fleet), `metric`, `class`, `limit`, `value` (mean over the seeds), `low` and `high` (null for `exact`
        plans and partial runs).
        """
        rows = [
            (
                *(trial.candidate.place, trial.units * trial.candidate.replicas_of_unit, trial.requests),
                *(trial.seeds, trial.verdict, value.objective.metric.name, value.objective.class_name),
                *(value.objective.limit, value.value, value.low, value.high),
            )
            for trial in self.prober.trials.values()
            for value in trial.values
        ]
        schema: dict[str, Any] = dict.fromkeys(("candidate", "replicas", "requests", "seeds"), pl.Int64)
        schema |= dict.fromkeys(("verdict", "metric", "class"), pl.String)
        schema |= dict.fromkeys(("limit", "value", "low", "high"), pl.Float64)
        return pl.DataFrame(rows, schema=schema, orient="row")

    @cached_property
    def frontier(self) -> pl.DataFrame:
        """Cost against latency: fleets run on all requests, without a cheaper fleet that is as fast.

        `fleet`, `replicas`, `gpus`, `cost`, `share` (largest value divided by its limit), `metric`, `value`,
        `low`, `high`, by cost.
        """
        trials = [
            (state.unit_cost * (trial.units + state.spare), trial.share, state.candidate.place, trial)
            for state in self.states
            for trial in state.whole
        ]
        trials.sort(key=lambda row: row[:3])
        best, rows = float("inf"), []
        for cost, share, _, trial in trials:
            if share < best:
                best = share
                worst, candidate = trial.worst, trial.candidate
                rows.append(
                    (
                        *(self.name(candidate, trial.units), trial.units * candidate.replicas_of_unit),
                        *(candidate.gpus_of(trial.units), cost, share),
                        *(worst.objective.metric.name, worst.value, worst.low, worst.high),
                    )
                )
        schema: dict[str, Any] = {"fleet": pl.String, "replicas": pl.Int64, "gpus": pl.Int64}
        schema |= dict.fromkeys(("cost", "share"), pl.Float64)
        schema |= {"metric": pl.String, **dict.fromkeys(("value", "low", "high"), pl.Float64)}
        return pl.DataFrame(rows, schema=schema, orient="row")

    def sensitivity(self, by: float = 0.1) -> pl.DataFrame:
        """Replicas that the chosen candidate needs after changes of the load.

        Args:
            by: relative change, above 0 and below 1.

        Returns:
            For the rate, the lengths and the engine times, each increased and decreased: `parameter`,
            `factor`, `meets_slo` (whether the chosen fleet still meets the SLO), `replicas` (null if no
            number does), `gpus`, `cost`. Lengths are omitted if the workload describes the content of
            prompts.
        """
        return sensitivity(self._chosen, self.prober, self.within, by)

    @property
    def _chosen(self) -> CandidateState | None:
        return None if self.best is None else self.states[self.best.candidate.place]

    def schedule(
        self, every_s: float = 3600.0, *, startup_s: float = 0.0, workload: Workload | Table | None = None
    ) -> Schedule | None:
        """Replicas needed in each time window, and the savings against a fixed fleet.

        Each window is simulated separately from empty replicas and needs the fewest replicas that meet the
        SLO. The transition between windows is computed, not simulated: replicas start `startup_s` early, and
        drain before they stop.

        Args:
            every_s: length of a window in seconds, above 0.
            startup_s: seconds from the request for a replica, when it is paid, until it serves; 0 or above.
            workload: requests to schedule. Default: the workload of the plan, not extended. For example, plan
                for the busiest hour and schedule the week.

        Returns:
            The schedule for the requests of the first seed. None if no fleet meets the SLO.

        Raises:
            ConfigError: a number is out of range, the workload has sessions or continued prompts, or the
                options of the plan select measured requests (`warmup`, …).
        """
        trace = self.question.trace
        if workload is None and trace is not None:
            workload = trace.draw(self.seeds[0])
        return schedule(self._chosen, self.prober, self.unit, every_s, startup_s, workload)

    def toml(self) -> str:
        """The chosen fleet and the workload as a scenario in TOML, with a `[gate]` for the SLO.

        `inferq gate` compares later runs with it. Data of more than 100 rows is referenced by its SHA-256;
        `Scenario.write` stores it next to the file.
        """
        if self.fleet is None or self.best is None:
            return ""
        gate: dict[str, Any] = {
            "seeds": 1 if self.exact else len(self.seeds),
            "tolerance": dict.fromkeys(self.slo.limits, _TOLERANCE),
        }
        if self.priced is not None:
            gate["tolerance"]["cost_per_million_output_tokens"] = _TOLERANCE
            gate["prices"] = self.priced.to_json()
        scenario = Scenario(
            self.workload, self.fleet, dict(self.prober.options), gate if self.slo.limits else None
        )
        return scenario_as_toml(scenario, self.best.candidate.engine, f"{self.findings[0]}.")

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The answer, its cost, its risk and the runner-up, then assumptions and warnings."""
        return tuple(self._findings())

    def _findings(self) -> Iterator[Finding]:
        if self.best is None:
            yield Finding("no-answer", f"no fleet was found that meets {self.slo}")
            yield Finding(ANSWER, self.reason or "")
        else:
            yield from (Finding(ANSWER, line) for line in self._answer(self.best))
        yield Finding(ANSWER, self._counts())
        if self.best is not None and self.best.trial is not None:
            yield from ModelErrors.of(self.best.candidate.engine).findings_on(self.best.trial.values)
        if self.stopped:
            yield Finding("stopped", "the time limit ended the search; undecided candidates may be cheaper")
        for outcome in self.undecided[:_MOST_UNDECIDED]:
            yield Finding("undecided", f"{self.name(outcome.candidate)}: {outcome.reason}")
        yield from self.slo.questions
        if self._run is not None and not self.stopped:
            yield from (finding.about("run of the chosen fleet") for finding in self._run[1])
        if not self.is_stable:
            yield Finding(
                "run-length",
                f"the answer holds for runs of {self.requests:,} requests; longer runs were not checked",
            )
        yield from (Finding("not-monotonic", gap) for gap in self.gaps)
        yield from (Finding("assumption", note) for note in self.grid.notes)
        if self.prices is None and len({family.gpu for family in self.grid.engines.families}) > 1:
            yield Finding("no-prices", "no prices were given, so GPUs of every type cost the same")
        if self.exact:
            yield Finding(
                "one-sample",
                "the workload is fixed; other requests of the same kind would give another answer",
            )

    def _counts(self) -> str:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in counts(self.outcomes).items())
        misfits = len(self.grid.misfits)
        fitting = f"; {counted(misfits, 'combination')} made no engine" if misfits else ""
        return (
            f"{counted(len(self.outcomes), 'option')}: {kinds}{fitting}; {self.runs:,} runs of "
            f"{self.simulated:,} requests in total"
        )

    def _answer(self, best: CandidateOutcome) -> list[str]:
        candidate, units = best.candidate, best.units
        assert units is not None
        scope = f"for {self.question}"
        if not self.exact:
            scope += f", with {percent(self.confidence, 6)} confidence"
        spare = f", {self.spare} of them spare," if self.spare else ""
        gpus = counted(candidate.gpus_of(units), "GPU")
        lines = [
            f"a fleet of {self.name(candidate, units)}{spare} meets {self.slo} {scope}",
            f"{gpus}, {counted(candidate.nodes_of(units), 'node')}{self._money(best)}",
        ]
        if best.trial is not None:
            lines.append(f"risk: {best.trial.worst}{best.model_error}")
        if self.tuned:
            lines.append(self._setting(best))
        if self.spare and not self.stopped and self.replica_failure is not None:
            lines.append(str(self.replica_failure))
        second = self.runner_up
        if second is not None and second.units is not None:
            lines.append(f"runner-up: {self.name(second.candidate, second.units)}, {second.reason}")
        else:
            lines.append("runner-up: no other candidate is known to meet the SLO")
        return lines

    def _setting(self, best: CandidateOutcome) -> str:
        """The token budget of the answer, and why the server's default is not chosen."""
        labels = best.candidate.labels
        if labels["scheduler"] == "default":
            return "setting: the server's default token budget; no other budget that was tried is cheaper"
        for outcome in self.outcomes:
            if dict(outcome.candidate.labels) == {**labels, "scheduler": "default"}:
                return (
                    f"setting: {labels['scheduler']}; the server's default: {outcome.kind}, {outcome.reason}"
                )
        return f"setting: {labels['scheduler']}"

    def _money(self, best: CandidateOutcome) -> str:
        if self.prices is None or best.cost is None:
            return ""
        money = f", {number(best.cost)} {self.unit}"
        if self.rate is not None:
            request = best.cost / _SECONDS_OF_HOUR / self.rate
            tokens = 1e6 * request / self.output_tokens_mean
            word = f" {self.prices.currency}".rstrip()
            money += f", {number(tokens)}{word} per 10⁶ output tokens, {number(request, 3)}{word} per request"
        return money

    def explain(self) -> str:
        """The findings, one per line."""
        return "\n".join(self.findings)

    def __str__(self) -> str:
        """The text of `explain()`."""
        return self.explain()

    def __repr__(self) -> str:
        """The chosen fleet and the number of candidates."""
        best = self.best
        fleet = "no fleet" if best is None or best.units is None else best.candidate.size(best.units)
        return f"FleetPlan({fleet}; {counted(len(self.outcomes), 'candidate')})"


def _share(trial: Trial | None) -> float:
    return float("inf") if trial is None else trial.share


def shown_value(trial: Trial | None) -> str:
    """The objective with the largest value relative to its limit, as a cell of a table."""
    if trial is None:
        return "–"
    worst = trial.worst
    return f"{worst.objective} {amount(worst.value, worst.objective.metric.unit)}"
