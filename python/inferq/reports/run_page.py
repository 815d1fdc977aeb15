"""The page of a run: verdict, key numbers, charts, tables, and the scenario that repeats it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from inferq._lazy import pl
from inferq.display.document import Chapter, Document, FittedChart, Grid, Note, NoteKind, cut, fitted
from inferq.display.style import styled
from inferq.display.text import counted, number, percent, seconds, sentence
from inferq.errors import ConfigError, TraceError
from inferq.reports import identity, run_charts, run_data, run_tables, verdicts
from inferq.reports.stability import above_at_peak, in_the_long_run, in_this_run, planned
from inferq.results.metric import LABELS, STATISTICS
from inferq.results.replicas import Replicas
from inferq.results.result import Result
from inferq.results.slo import Slo
from inferq.systems.prices import Prices
from inferq.theory.bounds.stability import Stability
from inferq.theory.runs.observed import observed
from inferq.workload.load import Load

_HIT_RATE = (
    " Cache hit rate: share of prompt tokens found in the prefix cache; the band covers the replicas from "
    "lowest to highest."
)
_MOST_CLASSES = 20
"""Classes in the table of latencies."""
_MOST_EVENTS = 400
"""Events of replicas that are listed."""
_LEAD = ("ttft", "itl")
"""Latencies in the chart at the top."""


def document(
    result: Result, title: str | None, slo: Slo | None = None, prices: Prices | None = None
) -> Document:
    """The page of a run."""
    rows, sizes = run_tables.rows(result), run_data.sizes(result)
    theory = run_data.theory(result)
    varying = identity.varying_load(result)
    assessment = verdicts.of_run(result, slo, varying)
    limits = {**run_data.limits(result), **verdicts.limits_of(slo)}
    notes = [*verdicts.questions(slo), *_notes(result, theory, varying)]
    verdict = assessment.verdict
    if verdict is None:
        verdict = next((note for note in notes if note.kind == "critical"), None)
        notes = [note for note in notes if note is not verdict]
    chapters = [
        _latency(result, rows, sizes, assessment, limits),
        _over_time(result),
        _replicas(result),
        _gaps(result, len(sizes), limits),
        _limit(result, theory, varying),
        _shares(result),
        _costs(result, prices),
        _scenario(result, theory),
    ]
    return Document(
        title=title if title is not None else identity.headline(result),
        verdict=verdict,
        lead=_lead(result, sizes, limits),
        setup=tuple([*identity.of_run(result), ("Objectives", assessment.objectives)]),
        notes=tuple(notes),
        key_facts=tuple(_key_facts(result, rows[-1][1])),
        facts=tuple(_facts(result, rows[-1][1])),
        chapters=tuple(chapter for chapter in chapters if chapter is not None),
    )


def _lead(result: Result, sizes: list[tuple[str, int]], limits: run_charts.Limits) -> tuple[FittedChart, ...]:
    """TTFT and ITL by percentile, with the objectives."""
    dashed = " Dashed: the objective." if any(limits.get(name) for name in _LEAD) else ""
    of = "stages" if result.has_jobs else "requests"
    return fitted(
        "TTFT and ITL by percentile",
        f"TTFT over {of}, ITL over all gaps between tokens.{dashed}{_largest(len(sizes))}",
        lambda width: styled(
            run_charts.latency({"": result}, width, limits, _LEAD), run_data.classes(result)
        ),
    )


def _notes(result: Result, theory: Stability | str, varying: Load | None) -> list[Note]:
    """Horizon, findings, queue growth in the run, and theory."""
    notes = [Note(kind="warning", text=text) for text in _cut(result)]
    notes += [Note(kind=finding.severity, text=sentence(finding)) for finding in result.findings]
    condition = "" if varying is None else "If the load of this run repeats"
    unknown = False
    try:
        drift = observed(result)
    except (ConfigError, TraceError) as error:
        notes.append(Note(kind="info", text=f"Queue growth is unknown: {error}."))
    else:
        arrival_s = result.requests.lazy().select("arrival_s").collect()["arrival_s"].to_numpy()
        arriving_s = float(arrival_s.max() - arrival_s.min()) if arrival_s.size else 0.0
        notes.append(Note(kind=verdicts.STABLE[drift.verdict], text=in_this_run(drift, arriving_s)))
        if drift.rate_per_s is None and not isinstance(theory, str) and theory.rate is not None:
            unknown = True
            condition = condition or f"If {_unit(result)} continue to arrive at this rate"
    if varying is not None:
        notes += _peak(result, theory, varying)
    if isinstance(theory, str):
        return [*notes, Note(kind="info", text=f"Theory does not cover this scenario: {theory}.")]
    first, *further = in_the_long_run(theory, _unit(result), given=condition, load=varying)
    kind: NoteKind = "info" if unknown else verdicts.STABLE[theory.verdict]
    return [*notes, Note(kind=kind, text=first), *(Note(kind="info", text=text) for text in further)]


def _peak(result: Result, theory: Stability | str, load: Load) -> Iterator[Note]:
    """The latencies of the requests that arrived at the peak, and whether it exceeds the upper bound."""
    text = f"Load: {load}"
    if not result.has_jobs:
        whole, peak = result.summary().row(0, named=True), run_data.at_peak(result, load)
        latencies = [
            f"{LABELS[name]} P99 {seconds(peak[f'{name}_s'])} ({seconds(whole[f'{name}_p99'])} over the run)"
            for name in ("ttft", "e2e")
            if peak[f"{name}_s"] is not None
        ]
        if latencies:
            text += f"; requests that arrived at the peak: {' and '.join(latencies)}"
    yield Note(kind="info", text=f"{text}.")
    if not isinstance(theory, str) and (above := above_at_peak(theory, load)):
        yield Note(kind="warning", text=above)


def _cut(result: Result) -> list[str]:
    """What the horizon left out. Empty if the run ended by itself or nothing arrived."""
    horizon_s = result._options["horizon_s"]
    arrived, unfinished = _left(result)
    later = result._tables.workload.height - arrived
    if horizon_s is None or not arrived or not unfinished + later:
        return []
    were = "was" if unfinished == 1 else "were"
    parts = [f"{unfinished:,} {_unit(result, unfinished)} {were} unfinished"] if unfinished else []
    if later:
        parts.append(f"{later:,} of {arrived + later:,} had not arrived")
    return [f"The run ended at its horizon of {seconds(horizon_s)}: {' and '.join(parts)}."]


def _left(result: Result) -> tuple[int, int]:
    """Requests, or jobs of a network, that arrived, and those unfinished at the end."""
    rows = (result.jobs if result.has_jobs else result.requests).lazy()
    unfinished = (pl.col("status") == "unfinished").sum().alias("unfinished")
    return rows.select(pl.len().alias("arrived"), unfinished).collect().row(0)


def _key_facts(result: Result, whole: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The four numbers at the top."""
    if result.has_jobs:
        jobs = run_data.jobs(result)[-1]
        yield "E2E of a job, P99", seconds(jobs["p99"])
        yield "TTFT of a stage, P99", seconds(whole["ttft_p99"])
    else:
        yield "TTFT P99", seconds(whole["ttft_p99"])
        yield "ITL P99", seconds(whole["itl_p99"])
    unit = "stages" if result.has_jobs else "requests"
    if {"ttft_slo_s", "itl_slo_s"} & set(result._tables.workload.columns):
        yield f"goodput, {unit}/s", number(whole["request_goodput"])
    else:
        yield f"throughput, {unit}/s", number(whole["request_throughput"])
    used = run_data.kv_use(result)
    if used is not None:
        yield "KV cache in use, mean", percent(used)
    else:
        yield "output tokens/s", number(whole["output_throughput"])


def _facts(result: Result, whole: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Further numbers; for a network first of its jobs, then of their stages."""
    facts = []
    stages = ""
    if result.has_jobs:
        stages = " of a stage"
        jobs = run_data.jobs(result)[-1]
        facts = [
            ("finished jobs", f"{jobs['completed']:,}"),
            ("failed jobs", f"{jobs['failed']:,}"),
            ("E2E of a job, P50", seconds(jobs["p50"])),
        ]
    unfinished = _left(result)[1]
    facts += [
        (f"TTFT{stages} P50", seconds(whole["ttft_p50"])),
        ("ITL P50", seconds(whole["itl_p50"])),
        ("TPOT P50", seconds(whole["tpot_p50"])),
        (f"E2E{stages} P50", seconds(whole["e2e_p50"])),
        (f"E2E{stages} P99", seconds(whole["e2e_p99"])),
        ("output tokens/s", number(whole["output_throughput"])),
        ("finished stages" if stages else "finished", f"{whole['completed']:,}"),
        ("failed stages" if stages else "failed", f"{whole['failed']:,}"),
    ]
    if unfinished:
        facts.append(("unfinished at the end", f"{unfinished:,}"))
    if (seen := Replicas.of(result._tables)) is not None:
        facts.append(("replica-hours", number(seen.hours, 3)))
        facts.append(("open replicas, mean", number(seen.mean, 3)))
        facts.append(("open replicas, range", f"{seen.least} to {seen.most}"))
    if whole["hit_rate"] is not None:
        facts.append(("cache hit rate", percent(whole["hit_rate"])))
    return facts


def _latency(
    result: Result,
    rows: run_tables.Rows,
    sizes: list[tuple[str, int]],
    assessment: verdicts.Assessment,
    limits: run_charts.Limits,
) -> Chapter:
    shown = {"all", *(name for name, _ in sizes[:_MOST_CLASSES])}
    left_out = (
        f" The table has the {_MOST_CLASSES} classes with the most requests; Result.summary has all "
        f"{len(sizes):,}."
        if len(sizes) > _MOST_CLASSES
        else ""
    )
    network = result.has_jobs
    over = "Percentiles are over measured requests, those of ITL over all gaps."
    api = run_tables.at_the_api(result)
    of_api = f" TTFT and E2E include {api} of API overhead." if api else ""
    client = f" {run_tables.CLIENT}." if "client_mean" in rows[0][1] else ""
    note = f"{run_tables.MEANING}{client}{of_api} {over}{left_out}"
    grids = [
        run_tables.latencies(
            [(name, row) for name, row in rows if name in shown],
            title="Stages" if network else "",
            note=note,
            names=LABELS,
        )
    ]
    if network:
        grids.insert(0, _jobs(result))
    if assessment.grid is not None:
        grids.insert(0, assessment.grid)
    others = tuple(name for name in run_data.MEASURES if name not in _LEAD)
    dashed = " Dashed: the objective." if any(limits.get(name) for name in others) else ""
    charts = fitted(
        "Latency by percentile",
        "The scale gives P90, P99 and P99.9 equal room, so that the slowest requests are visible."
        f"{dashed}{_largest(len(sizes))}",
        lambda width: styled(
            run_charts.latency({"": result}, width, limits, others), run_data.classes(result)
        ),
    )
    return Chapter(title="Latency", grids=tuple(grids), charts=charts)


def _jobs(result: Result) -> Grid:
    """Latency of jobs, from arrival to the last token of their last stage."""
    rows = run_data.jobs(result)
    lines = [
        [
            "all" if row["workflow"] is None else row["workflow"],
            *(f"{row['completed']:,}", f"{row['failed']:,}"),
            *(seconds(row[statistic]) for statistic in STATISTICS),
        ]
        for row in (rows if len(rows) > 2 else rows[-1:])
    ]
    note = "Measured jobs, from arrival to the last token of the last stage."
    return Grid(title="Jobs", header=("jobs", "finished", "failed", *STATISTICS), lines=lines, note=note)


def _largest(classes: int) -> str:
    """A sentence for captions if not every class is drawn."""
    if classes <= run_data.MOST_CLASSES:
        return ""
    return f" The {run_data.MOST_CLASSES} classes with the most requests, of {classes:,}."


def _over_time(result: Result) -> Chapter:
    charts = fitted(
        "Queue and memory over time",
        "Totals over all replicas. Lines are means, bands cover the samples."
        + (_HIT_RATE if run_data.has_hit_rates(result) else ""),
        result.plot.timeline,
    )
    per_replica = "replica" in result.timeline.columns and result.timeline["replica"].n_unique() > 1
    if per_replica or "class" in result.timeline.columns:
        charts += fitted(
            "Waiting requests per replica" if per_replica else "Waiting requests by class",
            "Mean over the replicas; the band reaches the longest queue." if per_replica else "",
            result.plot.queue,
        )
    text = "" if charts else "The run was too short for a sample of queue and memory."
    return Chapter(title="Queue and memory", text=text, charts=charts)


def _gaps(result: Result, classes: int, limits: run_charts.Limits) -> Chapter | None:
    charts = fitted(
        "Distribution of ITL",
        f"Both scales are logarithmic, so that rare long gaps are visible.{_largest(classes)}",
        lambda width: styled(run_charts.gaps({"": result}, width, limits), run_data.classes(result)),
    )
    return Chapter(title="Inter-token latency", charts=charts) if charts else None


def _replicas(result: Result) -> Chapter | None:
    """Replicas over time and their events. None without an autoscaler and without failures."""
    seen = Replicas.of(result._tables)
    if seen is None:
        return None
    lines = [
        [seconds(row["time_s"]), str(row["replica"]), row["event"], f"{row['open']:,}"]
        for row in seen.events.head(_MOST_EVENTS).iter_rows(named=True)
    ]
    text = "\n".join("\t".join(cells) for cells in (["time", "replica", "event", "open after it"], *lines))
    if seen.events.height > _MOST_EVENTS:
        text += f"\n… and {seen.events.height - _MOST_EVENTS:,} more; `Result.fleet_events` has all events"
    charts = fitted(
        "Replicas over time",
        "Open replicas accept requests. A replica is paid from its start request to its end or failure.",
        lambda width: styled(run_charts.replicas(result, width)),
    )
    return Chapter(
        title="Autoscaling and failures",
        text=f"Open replicas: {seen}.",
        charts=charts,
        folded=((counted(seen.events.height, "event"), text),),
    )


def _limit(result: Result, theory: Stability | str, varying: Load | None) -> Chapter:
    """Arrivals and completions, and the load between stability guarantee and upper bound."""
    title = "Capacity"
    charts = fitted(
        "Arrivals and completions",
        f"All {_unit(result)}, measured or not.{_crossed(result, theory)}",
        lambda width: styled(run_charts.throughput(result, theory, width)),
    )
    if isinstance(theory, str) or not theory.bounds:
        return Chapter(title=title, charts=charts)
    rate = theory.rate
    if rate is None and (load := identity.load_of(result)) is not None:
        rate = load.rate_per_s
    peak = None if varying is None else varying.peak_per_s
    if rate is not None:
        charts = (
            *fitted(
                "Load and theoretical limits",
                "Green: a theorem guarantees a bounded queue. Red: no scheduler can sustain this load. Gray: "
                "neither is proved, and the run is the evidence.",
                lambda width: styled(run_charts.limits_of(theory, rate, width, peak)),
            ),
            *charts,
        )
    return Chapter(title=title, grids=(planned(theory, _unit(result), varying=varying),), charts=charts)


def _crossed(result: Result, theory: Stability | str) -> str:
    """A sentence if completions exceed the upper bound for a while, or if the bound is off the chart."""
    if isinstance(theory, str) or theory.binding is None:
        return ""
    rates = run_data.rates(result)
    if rates.is_empty():
        return ""
    limit = theory.binding.capacity_per_s
    top = float(rates["finished"].max() or 0.0)  # type: ignore[arg-type]
    if top > limit:
        return (
            f" Completions may exceed the dashed upper bound of {number(limit)} for a while: it holds in the "
            "long run for requests of mean length."
        )
    if not any(value == limit for value, _ in run_charts.drawn_limits(rates, theory).values()):
        return f" The upper bound of {number(limit)} per second is above this chart."
    return ""


def _shares(result: Result) -> Chapter | None:
    """Replicas, or stages of a network. None for a single one, or for too many to show."""
    grid = run_tables.shares(result)
    if grid is None:
        return None
    return Chapter(title="Stages" if grid.header[0] == "stage" else "Replicas", grids=(grid,))


def _costs(result: Result, prices: Prices | None) -> Chapter | None:
    """Cost and energy of the fleet. None without prices."""
    if prices is None:
        return None
    row = result.summary(prices=prices).row(0, named=True)
    text = (
        "Whole fleet over the time of the measured requests. A replica draws the maximum board power while "
        "it runs a request, and idle power otherwise, so energy is an upper bound."
    )
    return Chapter(title="Cost and energy", text=text, grids=(run_tables.costs(row, prices),))


def _scenario(result: Result, theory: Stability | str) -> Chapter:
    folded = [("Scenario as JSON", cut(result.scenario))]
    if not isinstance(theory, str):
        folded.append(("Theory in detail", theory.explain()))
    text = "The same scenario and seed give the same numbers, bit for bit, on every machine."
    return Chapter(title="Reproduce", text=text, folded=tuple(folded))


def _unit(result: Result, count: int = 2) -> str:
    return ("job" if result.has_jobs else "request") + ("" if count == 1 else "s")
