"""The page about a plan: what to rent, what it costs, what rules the others out, what would change it."""

from __future__ import annotations

from collections.abc import Iterator

from inferq.display.document import HEADS, Chapter, Document, FittedPicture, Grid, Note, cut
from inferq.display.text import counted, number, percent, sentence
from inferq.experiments.plans.charts import of_frontier
from inferq.experiments.plans.fleet_plan import FOUND, FleetPlan
from inferq.experiments.plans.tables import candidates, costs, frontier, windows
from inferq.reports import identity, verdicts

_MOST_ROWS = 200
_MOST_REASONS = 50


def document(plan: FleetPlan, title: str | None) -> Document:
    """The page."""
    return Document(
        title=title if title is not None else _headline(plan),
        setting=f"The cheapest fleet that keeps {plan.slo}, of {counted(len(plan.fates), 'candidate')}, "
        f"{plan.requests:,} requests a run.",
        ran=tuple(_ran(plan)),
        notes=tuple(_notes(plan)),
        heads={kind: HEADS[kind] for kind in ("bad", "good", "beware", "plain")},  # the answer first
        facts=tuple(_facts(plan)),
        chapters=tuple(_chapters(plan)),
    )


def _headline(plan: FleetPlan) -> str:
    """What to rent for what load."""
    load = "" if plan.rate is None else f" for {number(plan.rate)} requests per second"
    if plan.fleet is None:
        return f"No fleet was found{load}"
    return f"{identity.name_of(plan.fleet)}: the cheapest fleet{load}"


def _ran(plan: FleetPlan) -> Iterator[tuple[str, str]]:
    """What is to be rented, what comes, and what is to be kept."""
    if plan.fleet is not None:
        yield from identity.of_system(plan.fleet)
    if plan.rate is not None:
        yield "Load", f"{number(plan.rate)} requests per second"
    yield "Objectives", str(plan.slo)


def _notes(plan: FleetPlan) -> Iterator[Note]:
    """The answer, or that there is none, and what else there is to know."""
    for place, text in enumerate(map(sentence, plan.findings)):
        kind: verdicts.Kind = "plain" if place else "bad" if plan.answer is None else "good"
        if text.startswith((FOUND.capitalize(), "Unit")):
            kind = "beware"
        yield Note(kind=kind, text=text)


def _facts(plan: FleetPlan) -> Iterator[tuple[str, str]]:
    answer = plan.answer
    if answer is not None and answer.units is not None:
        yield "fleet", plan.name(answer.candidate, answer.units)
        yield "GPUs in all", number(answer.candidate.gpus_of(answer.units))
        yield "nodes", number(answer.candidate.nodes_of(answer.units))
        if plan.cost_per_hour is not None:
            yield plan.unit, number(plan.cost_per_hour)
        if plan.priced is not None and plan.summary is not None:
            row, money = plan.summary.row(0, named=True), plan.priced.currency or "cost"
            yield (
                f"{money} per 10⁶ output tokens, to the last token",
                number(row["cost_per_million_output_tokens"], 3),
            )
            yield f"{money} per request, to the last token", number(row["cost_per_request"], 3)
            if row["watts"] is not None:
                yield "J per 10⁶ output tokens, at most", number(row["joules_per_million_output_tokens"])
                yield "J per request, at most", number(row["joules_per_request"])
                yield "W on average, at most", number(row["watts"])
    yield "confidence", "these requests" if plan.exact else percent(plan.confidence, 6)
    yield "simulated requests", number(plan.simulated)


def _chapters(plan: FleetPlan) -> Iterator[Chapter]:
    if plan.frontier.height:
        picture = FittedPicture(
            title="Cost against latency",
            caption="Fleets run on all requests, of which no cheaper one is as fast.",
            chart=lambda width: of_frontier(plan, width),
        )
        yield Chapter(title="What a lower latency costs", pictures=(picture,), grids=(frontier(plan),))
    reasons = [
        f"{plan.name(one.candidate)}: {one.kind}: {one.why}"
        for one in plan.fates.ordered(_MOST_REASONS + 1)
        if one.kind != "cheapest"
    ]
    left = len(plan.fates) - _MOST_REASONS - 1
    if left > 0:
        reasons.append(f"{left:,} more are in `candidates`.")
    if plan.scheduled is not None:
        yield Chapter(
            title="A load that changes",
            text=" ".join(map(sentence, plan.scheduled.explain().splitlines())),
            grids=(windows(plan, _MOST_ROWS),),
        )
    yield Chapter(
        title="What rules the others out",
        grids=(candidates(plan, _MOST_ROWS),),
        folded=(("Why, one by one", "\n".join(reasons)),) if reasons else (),
    )
    if plan.fleet is not None:
        lines = [
            [
                *(row["what"], f"× {row['factor']:g}", "yes" if row["keeps"] else "no"),
                *(number(row["replicas"]), number(row["gpus"])),
                *([] if plan.prices is None else [number(row["cost"])]),
            ]
            for row in plan.sensitivity().rows(named=True)
        ]
        header = ["what", "changed", "kept", "replicas needed", *costs(plan)]
        grid = Grid(title="", header=header, lines=lines, texts=3)
        yield Chapter(title="What would change the answer", grids=(grid,))
    folded = [("What was run, as JSON", cut(plan.scenario))]
    if plan.command:
        folded.insert(0, ("The command", plan.command))
    if plan.fleet is not None:
        folded.insert(0, ("The fleet as a scenario in TOML, for inferq gate", cut(plan.toml())))
    text = "The same workload, SLO, choices and seeds give the same answer, bit for bit, on every machine."
    yield Chapter(title="Repeat it", text=text, folded=tuple(folded))
