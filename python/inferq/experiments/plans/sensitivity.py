"""Sensitivity of a plan to the request rate, the lengths, and the speed of the engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from inferq._lazy import pl
from inferq.checks import between
from inferq.experiments.plans.candidate_state import CandidateState
from inferq.experiments.plans.limits import NO_LIMIT
from inferq.experiments.plans.prober import Prober
from inferq.experiments.plans.records import Records
from inferq.experiments.plans.search import Search
from inferq.results.slo import Objective
from inferq.workload.workload import Workload

_PROMPT_CONTENT = ("prefix_hashes", "prefix_parts", "continues")


def sensitivity(planned: CandidateState | None, prober: Prober, within: float, by: float) -> pl.DataFrame:
    """Replicas that the planned candidate needs after each change; see `FleetPlan.sensitivity`."""
    by = between("by", by, 0, 1)
    rows: list[tuple[Any, ...]] = []
    if planned is not None:
        assert planned.high is not None
        candidate = planned.candidate
        for parameter, factor, changed in _cases(prober, by):
            state = CandidateState(candidate, NO_LIMIT, planned.sizes, planned.spare, planned.unit_cost)
            state.guess = planned.high
            search = Search(changed, (state,), within, None)
            search.run_steps([(state, search.resolve(state, changed.rungs[-1]))])
            first = next(trial for trial in state.whole if trial.units == planned.sizes[planned.high])
            meets_slo = first.verdict == "met"
            if state.high is None:
                rows.append((parameter, factor, meets_slo, None, None, None))
            else:
                units = planned.sizes[state.high] + planned.spare
                sizes = (units * candidate.replicas_of_unit, candidate.gpus_of(units))
                rows.append((parameter, factor, meets_slo, *sizes, planned.unit_cost * units))
    schema: dict[str, Any] = {"parameter": pl.String, "factor": pl.Float64, "meets_slo": pl.Boolean}
    schema |= {"replicas": pl.Int64, "gpus": pl.Int64, "cost": pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _cases(prober: Prober, by: float) -> Iterator[tuple[str, float, Prober]]:
    """Each changed parameter, its factor, and a prober for it.

    Twice the times give twice the latencies (invariant L10). So an engine whose times change by a factor f is
    equivalent to requests that arrive f times as fast and limits that are 1/f of the original ones.
    """
    whole = {seed: prober.workload_of(seed) for seed in prober.seeds}
    for factor in (1 + by, 1 - by):
        yield "rate", factor, _changed(prober, {seed: drawn.speed(factor) for seed, drawn in whole.items()})
    if not any(name in whole[prober.seeds[0]].frame.columns for name in _PROMPT_CONTENT):
        for factor in (1 + by, 1 - by):
            longer = {seed: _longer(drawn, factor) for seed, drawn in whole.items()}
            yield "lengths", factor, _changed(prober, longer)
    for factor in (1 + by, 1 - by):
        limits = tuple(
            Objective(objective.metric, objective.limit / factor, objective.class_name)
            if objective.metric.unit == "s"
            else objective
            for objective in prober.objectives
        )
        faster = {seed: drawn.speed(factor) for seed, drawn in whole.items()}
        yield "engine times", factor, _changed(prober, faster, limits)


def _longer(workload: Workload, factor: float) -> Workload:
    """The workload with scaled prompt and output lengths, rounded, at least one token."""
    names = ("prompt_tokens", "output_tokens")
    return Workload(
        workload.frame.with_columns(
            (pl.col(name) * factor).round().cast(pl.Int64).clip(lower_bound=1) for name in names
        )
    )


def _changed(
    prober: Prober, drawn: dict[int, Workload], objectives: tuple[Objective, ...] | None = None
) -> Prober:
    return replace(
        prober,
        objectives=objectives or prober.objectives,
        records=Records(None, ""),
        deadline=float("inf"),
        simulated=0,
        runs=0,
        trials={},
        _drawn={seed: Workload(workload.frame) for seed, workload in drawn.items()},
        _heads={},
    )
