"""The page of a capacity search: the answer, the search, and the theoretical bounds."""

from __future__ import annotations

import json

from inferq.display.document import ANSWER_FIRST, Chapter, Document, FittedChart, Grid, cut
from inferq.display.text import NONE, amount, counted, number, percent
from inferq.errors import ConfigError
from inferq.experiments.capacity_search.capacity_plan import CapacityPlan
from inferq.reports import identity, verdicts
from inferq.reports.stability import planned
from inferq.results.metric import Metric
from inferq.results.recorded_system import system_from
from inferq.systems.system import System


def document(plan: CapacityPlan, title: str | None) -> Document:
    """The page."""
    chapters = [_probes(plan)]
    if plan.theory is not None:
        verdict = plan.theory
        own = (
            "" if verdict.rate is None else f" at the rate of the workload, {number(verdict.rate)} per second"
        )
        folded = ((f"All theoretical bounds{own}", verdict.explain()),)
        grids = (planned(verdict, "requests", plan.rate or None),) if verdict.bounds else ()
        chapters.append(Chapter(title="Theoretical bounds", grids=grids, folded=folded))
    chapters.append(_reproduction(plan))
    verdict_note, notes = verdicts.answer(verdicts.answer_notes(plan.findings))
    rate = f"{number(plan.rate, 4)} requests per second" if plan.rate > 0 else "No rate meets the SLO"
    return Document(
        title=title if title is not None else f"{rate}: {_named(plan)}" if _named(plan) else rate,
        setting=f"The largest rate that meets {plan.slo}, {plan.requests:,} requests per run.",
        verdict=verdict_note,
        key_facts=tuple(_facts(plan)),
        lead=(_search(plan),),
        setup=_ran(plan),
        notes=notes,
        heads=ANSWER_FIRST,
        chapters=tuple(chapters),
    )


def _system(plan: CapacityPlan) -> System | None:
    """The system. None if it has no JSON form."""
    try:
        return system_from(json.loads(plan.scenario)["system"])
    except (ConfigError, KeyError):
        return None


def _named(plan: CapacityPlan) -> str:
    system = _system(plan)
    return "" if system is None else identity.name_of(system)


def _ran(plan: CapacityPlan) -> tuple[tuple[str, str], ...]:
    system = _system(plan)
    return () if system is None else tuple(identity.of_system(system))


def _facts(plan: CapacityPlan) -> list[tuple[str, str]]:
    rate = number(plan.rate, 4) if plan.rate > 0 else "none"
    facts = [
        ("capacity, requests/s", rate),
        ("SLO missed from, requests/s", number(plan.high, 4)),
        ("confidence", "these requests" if plan.exact else percent(plan.confidence, 6)),
    ]
    if plan.upper_bound_per_s is not None:
        facts.append(("upper bound, requests/s", number(plan.upper_bound_per_s)))
    return facts


def _search(plan: CapacityPlan) -> FittedChart:
    return FittedChart(
        title="Latency against rate",
        caption="Each objective at every rate that was tried, with its interval. Dashed: the limit. Band: "
        "between the largest rate that meets the SLO and the smallest that violates it.",
        chart=plan.plot,
    )


def _probes(plan: CapacityPlan) -> Chapter:
    """A row per probe and objective, by rate."""
    several = plan.probes["class"].is_not_null().any()
    lines, last = [], -1
    for row in plan.probes.sort("rate", "probe", maintain_order=True).rows(named=True):
        value, low, high, limit = (
            amount(row[name], row["unit"]) for name in ("value", "low", "high", "limit")
        )
        interval = NONE if row["low"] is None else f"{low} to {high}"
        rate = "" if row["probe"] == last else number(row["rate"], 4)
        of_class = [row["class"] or "all"] if several else []
        values = (value, interval, limit, f"{row['seeds']:,}")
        margin = row["value"] / row["limit"] - 1 if row["limit"] > 0 else None
        finer = plan.errors.exceeds(row["metric"], margin)
        note = f"; {plan.errors.note(Metric.of(row['metric']), margin)}" if finer else ""
        lines.append([rate, row["metric"], *of_class, *values, f"{row['metric_verdict']}{note}"])
        last = row["probe"]
    classes = ["class"] if several else []
    header = ["per second", "metric", *classes, "mean", "interval", "limit", "seeds", "verdict"]
    grid = Grid(title="", header=header, lines=lines, texts=2 + len(classes), last_is_text=True)
    return Chapter(title="All probes", grids=(grid,))


def _reproduction(plan: CapacityPlan) -> Chapter:
    seeds = max(probe.seeds for probe in plan.probed)
    runs = "One run at each rate" if plan.exact else f"Up to {counted(seeds, 'seed')} at each rate"
    text = f"{runs}. The same scenario and seeds give the same numbers, bit for bit, on every machine."
    return Chapter(title="Reproduce", text=text, folded=(("The scenario as JSON", cut(plan.scenario)),))
