"""What would change a plan: another rate, other lengths, another speed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from inferq._lazy import pl
from inferq.experiments.arguments import between
from inferq.experiments.plans.limits import NO_LIMIT
from inferq.experiments.plans.probing import Prober
from inferq.experiments.plans.records import Records
from inferq.experiments.plans.search import Search
from inferq.experiments.plans.standing import Standing
from inferq.results.slo import Objective
from inferq.workload.workload import Workload

if TYPE_CHECKING:
    from inferq.experiments.plans.fleet_plan import FleetPlan

_OF_PROMPTS = ("prefix_hashes", "prefix_parts", "continues")


def sensitivity(plan: FleetPlan, by: float) -> pl.DataFrame:
    """How many replicas the planned candidate needs where a thing is another; see `FleetPlan.sensitivity`."""
    by = between("by", by, 0, 1)
    answer = plan.answer
    rows: list[tuple[Any, ...]] = []
    if answer is not None:
        planned = plan.standings[answer.candidate.place]
        assert planned.high is not None
        for what, factor, prober in _cases(plan, by):
            standing = Standing(answer.candidate, NO_LIMIT, planned.sizes, planned.spare, planned.unit_cost)
            standing.guess = planned.high
            search = Search(prober, plan.standings, plan.within, None)
            search._together([(standing, search._resolve(standing, prober.rungs[-1]))])
            first = next(one for one in standing.whole if one.units == planned.sizes[planned.high])
            found = None if standing.high is None else planned.sizes[standing.high] + planned.spare
            of, kept = answer.candidate, first.verdict == "kept"
            if found is None:
                rows.append((what, factor, kept, None, None, None))
            else:
                sizes = (found * of.replicas_of_unit, of.gpus_of(found), planned.unit_cost * found)
                rows.append((what, factor, kept, *sizes))
    schema: dict[str, Any] = {"what": pl.String, "factor": pl.Float64, "keeps": pl.Boolean}
    schema |= {"replicas": pl.Int64, "gpus": pl.Int64, "cost": pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _cases(plan: FleetPlan, by: float) -> Iterator[tuple[str, float, Prober]]:
    """What is changed, by how much, and what runs it.

    Twice the times give twice the latencies (law L10): an engine whose times are f of what they were is the
    same as requests that come f times as fast, held to limits that are 1/f of what they were.
    """
    seeds = plan.prober.seeds
    whole = {seed: plan.prober._whole(seed) for seed in seeds}
    for factor in (1 + by, 1 - by):
        yield "rate", factor, _prober(plan, {seed: one.speed(factor) for seed, one in whole.items()})
    if not any(name in whole[seeds[0]].frame.columns for name in _OF_PROMPTS):
        for factor in (1 + by, 1 - by):
            yield "lengths", factor, _prober(plan, {s: _longer(one, factor) for s, one in whole.items()})
    for factor in (1 + by, 1 - by):
        limits = tuple(
            Objective(one.metric, one.limit / factor, one.class_name) if one.metric.unit == "s" else one
            for one in plan.prober.objectives
        )
        faster = {seed: one.speed(factor) for seed, one in whole.items()}
        yield "times of the engine", factor, _prober(plan, faster, limits)


def _longer(workload: Workload, factor: float) -> Workload:
    """Prompts and outputs so many times as long, rounded, a token at least."""
    names = ("prompt_tokens", "output_tokens")
    return Workload(
        workload.frame.with_columns(
            (pl.col(name) * factor).round().cast(pl.Int64).clip(lower_bound=1) for name in names
        )
    )


def _prober(
    plan: FleetPlan, drawn: dict[int, Workload], objectives: tuple[Objective, ...] | None = None
) -> Prober:
    return replace(
        plan.prober,
        objectives=objectives or plan.prober.objectives,
        records=Records(None, ""),
        deadline=float("inf"),
        simulated=0,
        runs=0,
        trials={},
        _drawn={seed: Workload(one.frame) for seed, one in drawn.items()},
        _heads={},
    )
