"""The page of a plan: the fleet to rent, its cost, the other candidates, and the sensitivity."""

from __future__ import annotations

from collections.abc import Iterator

from inferq.display.document import ANSWER_FIRST, Chapter, Document, FittedChart, Grid, cut
from inferq.display.text import counted, number, percent, sentence
from inferq.experiments.plans.charts import of_frontier
from inferq.experiments.plans.fleet_plan import FleetPlan
from inferq.experiments.plans.outcome import ordered
from inferq.experiments.plans.tables import candidates, costs, frontier, windows
from inferq.reports import identity, verdicts

_MOST_ROWS = 200
_MOST_REASONS = 50


def document(plan: FleetPlan, title: str | None) -> Document:
    """The page."""
    verdict, notes = verdicts.answer(verdicts.answer_notes(plan.findings))
    facts = tuple(_facts(plan))
    return Document(
        title=title if title is not None else _headline(plan),
        setting=f"The cheapest fleet that meets {plan.slo}. {counted(len(plan.outcomes), 'candidate')}, "
        f"{plan.requests:,} requests per run.",
        verdict=verdict,
        key_facts=facts[:4],
        lead=_frontier(plan),
        setup=tuple(_ran(plan)),
        notes=notes,
        heads=ANSWER_FIRST,
        facts=facts[4:],
        chapters=tuple(_chapters(plan)),
    )


def _headline(plan: FleetPlan) -> str:
    """The fleet and its load."""
    load = "" if plan.rate is None else f" for {number(plan.rate)} requests per second"
    if plan.varying_load is not None:
        load = f" for {plan.varying_load.short}"
    if plan.fleet is None:
        return f"No fleet was found{load}"
    return f"{identity.name_of(plan.fleet)}: the cheapest fleet{load}"


def _ran(plan: FleetPlan) -> Iterator[tuple[str, str]]:
    """The fleet, the load and the objectives."""
    if plan.fleet is not None:
        yield from identity.of_system(plan.fleet)
    if plan.varying_load is not None:
        yield "Load", str(plan.varying_load)
    elif plan.rate is not None:
        yield "Load", f"{number(plan.rate)} requests per second"
    yield "Objectives", str(plan.slo)


def _facts(plan: FleetPlan) -> Iterator[tuple[str, str]]:
    best = plan.best
    if best is not None and best.units is not None:
        yield "fleet", plan.name(best.candidate, best.units)
        yield "GPUs in total", number(best.candidate.gpus_of(best.units))
        yield "nodes", number(best.candidate.nodes_of(best.units))
        if plan.cost_per_hour is not None:
            yield plan.unit, number(plan.cost_per_hour)
        if plan.priced is not None and plan.summary is not None:
            row, money = plan.summary.row(0, named=True), plan.priced.currency or "cost"
            yield (
                f"{money} per 10⁶ output tokens, until the last token",
                number(row["cost_per_million_output_tokens"], 3),
            )
            yield f"{money} per request, until the last token", number(row["cost_per_request"], 3)
            if row["watts"] is not None:
                yield "J per 10⁶ output tokens, at most", number(row["joules_per_million_output_tokens"])
                yield "J per request, at most", number(row["joules_per_request"])
                yield "W on average, at most", number(row["watts"])
    yield "confidence", "these requests" if plan.exact else percent(plan.confidence, 6)
    yield "simulated requests", number(plan.simulated)


def _frontier(plan: FleetPlan) -> tuple[FittedChart, ...]:
    if not plan.frontier.height:
        return ()
    chart = FittedChart(
        title="Cost against latency",
        caption="Fleets that were simulated with all requests and are not dominated by a cheaper one.",
        chart=lambda width: of_frontier(plan, width),
    )
    return (chart,)


def _chapters(plan: FleetPlan) -> Iterator[Chapter]:
    if plan.frontier.height:
        yield Chapter(title="Cost of a lower latency", grids=(frontier(plan),))
    if plan.scheduled is not None:
        yield Chapter(
            title="Replica schedule",
            text=" ".join(map(sentence, plan.scheduled.explain().splitlines())),
            grids=(windows(plan, _MOST_ROWS),),
        )
    yield _candidates(plan)
    if plan.fleet is not None:
        yield _sensitivity(plan)
    yield _reproduction(plan)


def _candidates(plan: FleetPlan) -> Chapter:
    reasons = [
        f"{plan.name(outcome.candidate)}: {outcome.kind}: {outcome.reason}"
        for outcome in ordered(plan.outcomes)[: _MOST_REASONS + 1]
        if outcome.kind != "chosen"
    ]
    left = len(plan.outcomes) - _MOST_REASONS - 1
    if left > 0:
        reasons.append(f"{left:,} more are in `candidates`.")
    return Chapter(
        title="All candidates",
        grids=(candidates(plan, _MOST_ROWS),),
        folded=(("Reasons", "\n".join(reasons)),) if reasons else (),
    )


def _sensitivity(plan: FleetPlan) -> Chapter:
    lines = [
        [
            *(row["parameter"], f"× {row['factor']:g}", "yes" if row["meets_slo"] else "no"),
            *(number(row["replicas"]), number(row["gpus"])),
            *([] if plan.prices is None else [number(row["cost"])]),
        ]
        for row in plan.sensitivity().rows(named=True)
    ]
    header = ["parameter", "change", "SLO met", "replicas needed", *costs(plan)]
    return Chapter(title="Sensitivity", grids=(Grid(title="", header=header, lines=lines, texts=3),))


def _reproduction(plan: FleetPlan) -> Chapter:
    folded = [("What was run, as JSON", cut(plan.scenario))]
    if plan.command:
        folded.insert(0, ("The command", plan.command))
    if plan.fleet is not None:
        folded.insert(0, ("The fleet as a scenario in TOML, for inferq gate", cut(plan.toml())))
    text = "The same workload, SLO, choices and seeds give the same answer, bit for bit, on every machine."
    return Chapter(title="Reproduce", text=text, folded=tuple(folded))
