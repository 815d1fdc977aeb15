"""The page about a capacity: the answer first, then the search, and what theory knows."""

from __future__ import annotations

from inferq.experiments.capacity_search.capacity_plan import CapacityPlan
from inferq.experiments.capacity_search.probe import Probe
from inferq.reports.document import Chapter, Document, Grid, Picture, cut
from inferq.reports.stability import bounds
from inferq.reports.text import NONE, amount, counted, number, percent, sentence


def document(plan: CapacityPlan, title: str | None) -> Document:
    """The page: the answer first, then the search, every probe, and what theory knows."""
    chapters = [_search(plan), _probes(plan)]
    if plan.theory is not None:
        said = plan.theory
        own = "" if said.rate is None else f" at {number(said.rate)} per second, the rate of the workload"
        folded = ((f"What theory says{own}, with the numbers put in", said.explain()),)
        grids = (bounds(said, plan.rate or None),) if said.bounds else ()
        chapters.append(Chapter(title="What does theory know?", grids=grids, folded=folded))
    chapters.append(_repeats(plan))
    return Document(
        title=title if title is not None else "How many requests per second?",
        setting=f"The largest rate that keeps {_objectives(plan)}, {plan.requests:,} requests a run.",
        findings=tuple(_findings(plan)),
        facts=tuple(_facts(plan)),
        chapters=tuple(chapters),
    )


def _findings(plan: CapacityPlan) -> list[str]:
    """The answer, what breaks first above it, and what to know before trusting it."""
    sure = "for these very requests" if plan.exact else f"with {percent(plan.confidence, 6)} confidence"
    told = [f"Up to {number(plan.rate, 4)} per second keep {_objectives(plan)}, {sure}."]
    if plan.rate == 0:
        told = [f"No rate was found that keeps {_objectives(plan)}."]
    if plan.reason is not None:
        told.append(sentence(plan.reason))
    told += [_broken(one) for one in plan.probed if plan.rate > 0 and one.rate == plan.high]
    if plan.undecided:
        first, last = plan.undecided[0].rate, plan.undecided[-1].rate
        where = f"At {number(first, 4)}" if first == last else f"From {number(first, 4)} to {number(last, 4)}"
        told.append(
            f"{where} per second it stayed undecided with {counted(plan.most_seeds, 'seed')}. More seeds or "
            "longer runs would tell."
        )
    if plan.ceiling_per_s is not None:
        share = f" The answer is {percent(plan.rate / plan.ceiling_per_s)} of that." if plan.rate > 0 else ""
        told.append(f"No policy is stable above {number(plan.ceiling_per_s)} per second.{share}")
    elif plan.theory is not None:
        told.append("Theory knows no rate above which nothing is stable.")
    if plan.rate > 0:
        longer = {
            True: "The answer holds only because the runs end",
            False: "Longer runs would say the same",
            None: "Whether longer runs would say the same is not known",
        }
        told.append(sentence(f"{longer[plan.limited_by_length]}: {plan.length.reason}"))
    told += [
        sentence(f"In the run at {number(one.rate, 4)} per second with the first seed: {text}")
        for one in plan.probed
        if one.rate == plan.rate
        for text in one.findings
    ]
    told += [f"Lower rates are not always better. {_broken(one)}" for one in plan.contradictions]
    if plan.exact:
        told.append("A fixed workload is one sample: others of the same kind would give another answer.")
    return told


def _objectives(plan: CapacityPlan) -> str:
    """What must be kept, but for a share of failures that is 0."""
    limits = [f"{one} ≤ {amount(one.limit, one.metric.unit)}" for one in plan.slo.objectives if one.limit > 0]
    return " and ".join(limits) or str(plan.slo)


def _broken(probe: Probe) -> str:
    """What is beyond its limit at a rate."""
    worst = probe.worst
    unit = worst.objective.metric.unit
    return (
        f"At {number(probe.rate, 4)} per second {worst.objective} is {amount(worst.value, unit)}, above the "
        f"limit of {amount(worst.objective.limit, unit)}."
    )


def _facts(plan: CapacityPlan) -> list[tuple[str, str]]:
    rate = number(plan.rate, 4) if plan.rate > 0 else "none"
    facts = [
        ("largest rate that keeps it, per second", rate),
        ("broken for sure at", number(plan.high, 4)),
        ("confidence", "these requests" if plan.exact else percent(plan.confidence, 6)),
        ("probes", f"{len(plan.probed):,}"),
    ]
    if plan.ceiling_per_s is not None:
        facts.append(("no policy passes, per second", number(plan.ceiling_per_s)))
    return facts


def _search(plan: CapacityPlan) -> Chapter:
    picture = Picture(
        title="What was tried",
        caption="Each objective at every rate that was tried, with its interval. Dashed its limit.",
        chart=plan.plot,
    )
    return Chapter(title="Where does it break?", pictures=(picture,))


def _probes(plan: CapacityPlan) -> Chapter:
    """A line for each probe and objective, by rate."""
    several = plan.probes["class"].is_not_null().any()
    lines, last = [], -1
    for row in plan.probes.sort("rate", "probe", maintain_order=True).rows(named=True):
        value, low, high, limit = (
            amount(row[name], row["unit"]) for name in ("value", "low", "high", "limit")
        )
        between = NONE if row["low"] is None else f"{low} to {high}"
        rate = "" if row["probe"] == last else number(row["rate"], 4)
        of_class = [row["class"] or "all"] if several else []
        values = (value, between, limit, f"{row['seeds']:,}")
        lines.append([rate, row["metric"], *of_class, *values, row["metric_verdict"]])
        last = row["probe"]
    classes = ["class"] if several else []
    header = ["per second", "metric", *classes, "mean", "between", "limit", "seeds", "verdict"]
    grid = Grid(title="", header=header, lines=lines, texts=2 + len(classes), last_is_text=True)
    return Chapter(title="What was tried?", grids=(grid,))


def _repeats(plan: CapacityPlan) -> Chapter:
    """What was asked and what served it, and how often."""
    seeds = max(one.seeds for one in plan.probed)
    runs = "One run at each rate" if plan.exact else f"Up to {counted(seeds, 'seed')} at each rate"
    what = f"{runs}. The same scenario and seeds give the same numbers, bit for bit, on every machine."
    return Chapter(
        title="What repeats it?", text=what, folded=(("The scenario as JSON", cut(plan.scenario)),)
    )
