"""What does the page of a capacity say, in which order?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferq.picture.document import Chapter, Document, Grid, Picture
from inferq.picture.limits import bounds
from inferq.picture.numbers import NONE, number, percent, seconds

if TYPE_CHECKING:
    from inferq.experiment.planning.plan import CapacityPlan


def document(plan: CapacityPlan, title: str | None) -> Document:
    """The page: the answer first, then the search, every probe, and what theory knows."""
    chapters = [_search(plan), _probes(plan)]
    if plan.theory is not None:
        said = plan.theory
        folded = (("What theory says, with the numbers put in", said.explain()),)
        grids = (bounds(said),) if said.bounds else ()
        chapters.append(Chapter(title="What does theory know?", grids=grids, folded=folded))
    return Document(
        title=title if title is not None else "How many requests per second?",
        setting=f"The largest rate that keeps {plan.slo}, {plan.requests:,} requests a run.",
        findings=tuple(_sentences(plan.explain())),
        facts=tuple(_facts(plan)),
        chapters=tuple(chapters),
    )


def _sentences(told: str) -> list[str]:
    """The lines of an explanation, those that are indented with the one that they belong to."""
    found: list[str] = []
    for line in told.splitlines():
        if line.startswith(" ") and found:
            found[-1] = f"{found[-1]}; {line.strip()}"
        elif line.strip():
            found.append(line.strip())
    return found


def _facts(plan: CapacityPlan) -> list[tuple[str, str]]:
    rate = f"{plan.rate:.4g}" if plan.rate > 0 else "none"
    facts = [
        ("largest rate that keeps it, per second", rate),
        ("broken for sure at", NONE if plan.high is None else f"{plan.high:.4g}"),
        ("confidence", "these requests" if plan.exact else percent(plan.confidence)),
        ("probes", f"{len(plan.probed):,}"),
    ]
    if plan.ceiling_per_s is not None:
        facts.append(("no policy passes, per second", number(plan.ceiling_per_s)))
    return facts


def _search(plan: CapacityPlan) -> Chapter:
    picture = Picture(
        title="What was tried",
        caption="Each objective at every rate that was tried, with its interval. Dashed what it may be.",
        chart=plan.plot,
    )
    return Chapter(title="Where does it break?", pictures=(picture,))


def _probes(plan: CapacityPlan) -> Chapter:
    """A line for each probe and objective, by rate."""
    several = plan.probes["class"].is_not_null().any()
    lines, last = [], -1
    for row in plan.probes.sort("rate", "probe", maintain_order=True).rows(named=True):
        shown = seconds if row["unit"] == "s" else percent
        between = NONE if row["low"] is None else f"{shown(row['low'])} to {shown(row['high'])}"
        rate = "" if row["probe"] == last else f"{row['rate']:.4g}"
        named = [row["class"] or "all"] if several else []
        values = (shown(row["value"]), between, shown(row["limit"]), f"{row['seeds']:,}")
        lines.append([rate, row["metric"], *named, *values, row["metric_verdict"]])
        last = row["probe"]
    classes = ["class"] if several else []
    header = ["per second", "metric", *classes, "mean", "between", "limit", "seeds", "verdict"]
    grid = Grid(title="", header=header, lines=lines, texts=2 + len(classes), last_is_text=True)
    return Chapter(title="What was tried?", grids=(grid,))
