"""The page about a run: what ran, whether it is good, its numbers and pictures, and what repeats it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferq._lazy import pl
from inferq.display.document import Chapter, Document, Grid, Note, cut, fitted
from inferq.display.style import styled
from inferq.display.text import number, percent, seconds, sentence
from inferq.errors import ConfigError, TraceError
from inferq.reports import identity, run_charts, run_data, run_tables, verdicts
from inferq.reports.stability import in_the_long_run, in_this_run, planned
from inferq.results.metric import STATISTICS
from inferq.results.result import Result
from inferq.results.slo import Slo
from inferq.systems.prices import Prices
from inferq.theory.bounds.stability import Stability
from inferq.theory.runs.observed import observed

_FOUND = (
    " Prompt tokens found: of those that were found in a prefix cache or computed, the share that was found; "
    "its band goes from the replica with the least to the one with the most."
)
_MOST_CLASSES = 20
"""Latencies of so many classes are shown in a table."""


def document(
    result: Result, title: str | None, slo: Slo | None = None, prices: Prices | None = None
) -> Document:
    """The page: what ran and how good it is, then latency, queue, gaps, limits, and what repeats the run."""
    rows, sizes = run_tables.rows(result), run_data.sizes(result)
    theory = run_data.theory(result)
    judged = verdicts.of_run(result, slo)
    limits = {**run_data.limits(result), **verdicts.limits_of(slo)}
    chapters = [
        _latency(result, rows, sizes, judged, limits),
        _over_time(result),
        _gaps(result, len(sizes), limits),
        _limit(result, theory),
        _shares(result),
        _costs(result, prices),
        _scenario(result, theory),
    ]
    return Document(
        title=title if title is not None else identity.headline(result),
        setting="",
        ran=tuple([*identity.of_run(result), ("Objectives", judged.asked)]),
        notes=tuple([*judged.notes, *verdicts.questions(slo), *_notes(result, theory)]),
        facts=tuple(_facts(result, rows[-1][1])),
        chapters=tuple(one for one in chapters if one is not None),
    )


def _notes(result: Result, theory: Stability | str) -> list[Note]:
    """Whether the run was cut, its findings, what its queue did, and what theory says."""
    notes = [Note(kind="warning", text=text) for text in _cut(result)]
    notes += [Note(kind=one.severity, text=sentence(one)) for one in result.findings]
    condition = ""
    try:
        drift = observed(result)
    except (ConfigError, TraceError) as error:
        notes.append(Note(kind="info", text=f"Whether the queue grew cannot be told: {error}."))
    else:
        arrival_s = result.requests.lazy().select("arrival_s").collect()["arrival_s"].to_numpy()
        arriving_s = float(arrival_s.max() - arrival_s.min()) if arrival_s.size else 0.0
        kind = verdicts.STABLE[drift.verdict]
        notes.append(Note(kind=kind, text=in_this_run(drift, arriving_s)))
        if drift.rate_per_s is None and not isinstance(theory, str) and theory.rate is not None:
            condition = f"If {_unit(result)} keep coming at this rate"
    if isinstance(theory, str):
        return [*notes, Note(kind="info", text=f"Theory says nothing about this scenario: {theory}.")]
    first, *further = in_the_long_run(theory, _unit(result), given=condition)
    kind = "info" if condition else verdicts.STABLE[theory.verdict]
    return [*notes, Note(kind=kind, text=first), *(Note(kind="info", text=one) for one in further)]


def _cut(result: Result) -> list[str]:
    """How far the run was when its horizon cut it; nothing where it ended by itself or nothing arrived."""
    horizon_s = result._options["horizon_s"]
    arrived, under_way = _left(result)
    later = result._tables.workload.height - arrived
    if horizon_s is None or not arrived or not under_way + later:
        return []
    were = "was" if under_way == 1 else "were"
    parts = [f"{under_way:,} {_unit(result, under_way)} {were} still under way"] if under_way else []
    if later:
        parts.append(f"{later:,} of {arrived + later:,} had not arrived")
    return [f"The run was cut at {seconds(horizon_s)}: {', and '.join(parts)}."]


def _left(result: Result) -> tuple[int, int]:
    """How many requests, of a network jobs, arrived, and how many of them were still under way at the end."""
    rows = (result.jobs if result.has_jobs else result.requests).lazy()
    under_way = (pl.col("status") == "unfinished").sum().alias("under_way")
    return rows.select(pl.len().alias("arrived"), under_way).collect().row(0)


def _facts(result: Result, whole: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The numbers that matter most; of a network those of its jobs, then those of their stages."""
    facts = []
    stages = ""
    if result.has_jobs:
        stages = " of a stage"
        jobs = run_data.jobs(result)[-1]
        facts = [
            ("finished jobs", f"{jobs['completed']:,}"),
            ("jobs rejected or gave up", f"{jobs['failed']:,}"),
            ("E2E of a job, p50", seconds(jobs["p50"])),
            ("E2E of a job, p99", seconds(jobs["p99"])),
        ]
    under_way = _left(result)[1]
    facts += [
        (f"TTFT{stages}, p50", seconds(whole["ttft_p50"])),
        (f"TTFT{stages}, p99", seconds(whole["ttft_p99"])),
        ("gap between tokens, p99", seconds(whole["itl_p99"])),
        (f"E2E{stages}, p50", seconds(whole["e2e_p50"])),
        (f"E2E{stages}, p99", seconds(whole["e2e_p99"])),
        ("output tokens per second", number(whole["output_throughput"])),
        (f"{'stages' if stages else 'requests'} per second", number(whole["request_throughput"])),
    ]
    if {"ttft_slo_s", "itl_slo_s"} & set(result._tables.workload.columns):
        facts.append(("within objectives per second", number(whole["request_goodput"])))
    facts += [
        ("finished stages" if stages else "finished", f"{whole['completed']:,}"),
        ("stages rejected or gave up" if stages else "rejected or gave up", f"{whole['failed']:,}"),
    ]
    if under_way:
        facts.append(("still under way at the end", f"{under_way:,}"))
    if whole["hit_rate"] is not None:
        facts.append(("hit rate of the prefix cache", percent(whole["hit_rate"])))
    return facts


def _latency(
    result: Result,
    rows: run_tables.Rows,
    sizes: list[tuple[str, int]],
    judged: verdicts.Judged,
    limits: run_charts.Limits,
) -> Chapter:
    shown = {"all", *(name for name, _ in sizes[:_MOST_CLASSES])}
    left_out = (
        f" Shown are the {_MOST_CLASSES} classes with the most requests; Result.summary has all "
        f"{len(sizes):,}."
        if len(sizes) > _MOST_CLASSES
        else ""
    )
    network = result.has_jobs
    over = "Percentiles are over the measured requests, those of ITL over all gaps."
    api = run_tables.at_the_api(result)
    of_api = f" Of every TTFT and E2E {api} are the API's, before the engine and after it." if api else ""
    note = f"{run_tables.MEANING}{of_api} {over}{left_out}"
    kept = [(name, row) for name, row in rows if name in shown]
    title = "Stages" if network else ""
    grids = [run_tables.latencies(kept, title=title, note=note, names=run_tables.NAMES)]
    if network:
        grids.insert(0, _jobs(result))
    if judged.grid is not None:
        grids.insert(0, judged.grid)
    asked = " Dashed in red: the objective." if any(limits.values()) else ""
    pictures = fitted(
        f"Latency by share of {'stages' if network else 'requests'}",
        "How long the given share of what was measured took at most. The scale widens towards the slowest: "
        f"each further nine, 90 %, 99 %, 99.9 %, has as much room.{asked}{_largest(len(sizes))}",
        lambda width: styled(run_charts.latency({"": result}, width, limits), run_data.classes(result)),
    )
    return Chapter(title="Latency", grids=tuple(grids), pictures=pictures)


def _jobs(result: Result) -> Grid:
    """How long jobs took, from arrival to the last token of their last stage."""
    rows = run_data.jobs(result)
    lines = [
        [
            "all" if row["workflow"] is None else row["workflow"],
            *(f"{row['completed']:,}", f"{row['failed']:,}"),
            *(seconds(row[one]) for one in STATISTICS),
        ]
        for row in (rows if len(rows) > 2 else rows[-1:])
    ]
    note = "Measured jobs, from their arrival to the last token of their last stage."
    return Grid(title="Jobs", header=("jobs", "finished", "failed", *STATISTICS), lines=lines, note=note)


def _largest(classes: int) -> str:
    """What a caption says where not every class is drawn."""
    if classes <= run_data.MOST_CLASSES:
        return ""
    return f" Shown are the {run_data.MOST_CLASSES} classes with the most requests, of {classes:,}."


def _over_time(result: Result) -> Chapter:
    pictures = fitted(
        "Queue and memory over time",
        "All replicas together. Lines are means, bands go from the least to the largest sample."
        + (_FOUND if run_data.has_hit_rates(result) else ""),
        result.plot.timeline,
    )
    per_replica = "replica" in result.timeline.columns and result.timeline["replica"].n_unique() > 1
    if per_replica or "class" in result.timeline.columns:
        pictures += fitted(
            "The queues",
            "Requests that wait for their admission"
            + (
                ": the mean of the replicas, and in the band up to the longest queue." if per_replica else "."
            ),
            result.plot.queue,
        )
    text = "" if pictures else "The run was too short for a sample of its queue and memory."
    return Chapter(title="Queue and memory", text=text, pictures=pictures)


def _gaps(result: Result, classes: int, limits: run_charts.Limits) -> Chapter | None:
    pictures = fitted(
        "Gaps between tokens",
        "Shares on a scale of logarithms, so that rare long gaps can be seen beside the many short ones."
        f"{_largest(classes)}",
        lambda width: styled(run_charts.gaps({"": result}, width, limits), run_data.classes(result)),
    )
    return Chapter(title="Gaps between tokens", pictures=pictures) if pictures else None


def _limit(result: Result, theory: Stability | str) -> Chapter:
    """Arrivals and completions, and where the load stands between what is proved and what is impossible."""
    title = "Distance to the limit"
    pictures = fitted(
        "Arrivals and completions",
        f"All {_unit(result)}, measured or not.{_crossed(result, theory)}",
        lambda width: styled(run_charts.throughput(result, theory, width)),
    )
    if isinstance(theory, str) or not theory.bounds:
        return Chapter(title=title, pictures=pictures)
    rate = theory.rate if theory.rate is not None else identity.arrival_rate(result)
    if rate is not None:
        pictures = (
            *fitted(
                "What theory knows of this load",
                "Up to the green end a theorem proves that the queue stays bounded; beyond the gray no "
                "scheduler keeps up for long; between them nothing is proved, and runs are the evidence.",
                lambda width: styled(run_charts.limits_of(theory, rate, width)),
            ),
            *pictures,
        )
    return Chapter(title=title, grids=(planned(theory, _unit(result)),), pictures=pictures)


def _crossed(result: Result, theory: Stability | str) -> str:
    """What a reader must know where what finished passes a limit, and where a limit is beyond the picture."""
    if isinstance(theory, str) or theory.binding is None:
        return ""
    happened = run_data.rates(result)
    if happened.is_empty():
        return ""
    most = theory.binding.capacity_per_s
    top = float(happened["finished"].max() or 0.0)  # type: ignore[arg-type]
    if top > most:
        return (
            f" What finishes may pass the dashed limit of {number(most)} for a while: it is one of the long "
            "run, for requests of mean length, and holds neither for a stretch of short ones nor for answers "
            "that were begun before."
        )
    if not any(value == most for value, _ in run_charts.drawn_limits(happened, theory).values()):
        return f" The limit of any scheduler, {number(most)} per second, lies far above this picture."
    return ""


def _shares(result: Result) -> Chapter | None:
    """How the replicas, or the stages of a network, fared; None where there is one, or too many to read."""
    grid = run_tables.shares(result)
    if grid is None:
        return None
    return Chapter(title="Stages" if grid.header[0] == "stage" else "Replicas", grids=(grid,))


def _costs(result: Result, prices: Prices | None) -> Chapter | None:
    """What the fleet costs; None without prices."""
    if prices is None:
        return None
    row = result.summary(prices=prices).row(0, named=True)
    text = (
        "Of the whole fleet over the time of the measured requests. A replica takes the power of one that "
        "computes while it runs a request, at most what its board may, and else that of one that waits."
    )
    return Chapter(title="Cost and energy", text=text, grids=(run_tables.costs(row, prices),))


def _scenario(result: Result, theory: Stability | str) -> Chapter:
    folded = [("The scenario as JSON", cut(result.scenario))]
    if not isinstance(theory, str):
        folded.append(("All that theory says, with the numbers put in", theory.explain()))
    what = "The same scenario and seed give the same numbers, bit for bit, on every machine."
    return Chapter(title="Repeat it", text=what, folded=tuple(folded))


def _unit(result: Result, count: int = 2) -> str:
    return ("job" if result.has_jobs else "request") + ("" if count == 1 else "s")
