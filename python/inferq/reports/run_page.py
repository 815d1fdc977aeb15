"""The page about a run: its findings, numbers and pictures, and what repeats it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from inferq._lazy import pl
from inferq.errors import ConfigError, TraceError
from inferq.reports import run_data, run_tables
from inferq.reports.document import Chapter, Document, Grid, Picture, cut
from inferq.reports.run_charts import throughput
from inferq.reports.stability import bounds, in_the_long_run, in_this_run
from inferq.reports.text import counted, number, percent, seconds, sentence
from inferq.results.metric import STATISTICS
from inferq.results.result import Result
from inferq.systems.cluster import Cluster
from inferq.systems.disaggregated import Disaggregated
from inferq.systems.engine import Engine
from inferq.systems.gate_and_route import GateAndRoute
from inferq.systems.pools import pools_of
from inferq.systems.system import System
from inferq.theory.bounds.stability import Stability
from inferq.theory.runs.observed import observed

_FOUND = (
    " Prompts found: of the prompt tokens that were found in a prefix cache or computed, those that were "
    "found; its band goes from the replica with the least to the one with the most."
)
_MOST_CLASSES = 20
"""Latencies of so many classes are shown in a table."""


def document(result: Result, title: str | None) -> Document:
    """The page: findings first, then numbers, pictures, and what repeats the run."""
    rows, sizes = run_tables.rows(result), run_data.sizes(result)
    verdict = run_data.theory(result)
    chapters = [
        _latency(result, rows, sizes),
        _over_time(result),
        _gaps(result, len(sizes)),
        _throughput(result, verdict),
        _shares(result),
        _scenario(result, verdict),
    ]
    return Document(
        title=title if title is not None else "What became of the requests?",
        setting=_setting(result),
        findings=tuple(_findings(result, verdict)),
        facts=tuple(_facts(result, rows[-1][1])),
        chapters=tuple(one for one in chapters if one is not None),
    )


def _findings(result: Result, verdict: Stability | str) -> list[str]:
    """Whether the run was cut, its findings, what its queue did, and what theory says."""
    sentences = [*_cut(result), *(sentence(one) for one in result.findings)]
    condition = ""
    try:
        drift = observed(result)
    except (ConfigError, TraceError) as error:
        sentences.append(f"Whether the queue grew cannot be told: {error}.")
    else:
        arrival_s = result.requests.lazy().select("arrival_s").collect()["arrival_s"].to_numpy()
        arriving_s = float(arrival_s.max() - arrival_s.min()) if arrival_s.size else 0.0
        sentences.append(in_this_run(drift, arriving_s))
        if drift.rate_per_s is None and not isinstance(verdict, str) and verdict.rate is not None:
            condition = f"If {_unit(result)} keep coming at this rate"
    if isinstance(verdict, str):
        return [*sentences, f"Theory says nothing about this scenario: {verdict}."]
    return [*sentences, *in_the_long_run(verdict, _unit(result), given=condition)]


def _cut(result: Result) -> list[str]:
    """How far the run was when its horizon cut it; nothing where it ended by itself."""
    horizon_s = result._options["horizon_s"]
    arrived, under_way = _left(result)
    later = result._tables.workload.height - arrived
    if horizon_s is None or not under_way + later:
        return []
    cut = f"The run was cut at {seconds(horizon_s)}"
    if not arrived:
        return [f"{cut}, before the first of {later:,} {_unit(result, later)} had arrived."]
    were = "was" if under_way == 1 else "were"
    parts = [f"{under_way:,} {_unit(result, under_way)} {were} still under way"] if under_way else []
    if later:
        parts.append(f"{later:,} of {arrived + later:,} had not arrived")
    return [f"{cut}: {', and '.join(parts)}."]


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
            ("job, arrival to last token, p50", seconds(jobs["p50"])),
            ("job, arrival to last token, p99", seconds(jobs["p99"])),
        ]
    under_way = _left(result)[1]
    if under_way:
        facts.append(("still under way at the end", f"{under_way:,}"))
    facts += [
        ("finished stages" if stages else "finished", f"{whole['completed']:,}"),
        ("stages rejected or gave up" if stages else "rejected or gave up", f"{whole['failed']:,}"),
        (f"{'stages' if stages else 'requests'} per second", number(whole["request_throughput"])),
    ]
    if {"ttft_slo_s", "tbt_slo_s"} & set(result._tables.workload.columns):
        facts.append(("within objectives per second", number(whole["request_goodput"])))
    if whole["hit_rate"] is not None:
        facts.append(("hit rate of the prefix cache", percent(whole["hit_rate"])))
    return [
        *facts,
        ("output tokens per second", number(whole["output_throughput"])),
        (f"TTFT{stages}, p50", seconds(whole["ttft_p50"])),
        (f"TTFT{stages}, p99", seconds(whole["ttft_p99"])),
        ("gap between tokens, p99", seconds(whole["tbt_p99"])),
        (f"arrival to last token{stages}, p50", seconds(whole["e2e_p50"])),
        (f"arrival to last token{stages}, p99", seconds(whole["e2e_p99"])),
    ]


def _latency(result: Result, rows: run_tables.Rows, sizes: list[tuple[str, int]]) -> Chapter:
    shown = {"all", *(name for name, _ in sizes[:_MOST_CLASSES])}
    left_out = (
        f" Shown are the {_MOST_CLASSES} classes with the most requests; Result.summary has all "
        f"{len(sizes):,}."
        if len(sizes) > _MOST_CLASSES
        else ""
    )
    network = result.has_jobs
    meaning = " ".join(run_tables.LEGEND)
    note = f"{meaning}. Percentiles are over the measured requests, those of tbt over all gaps.{left_out}"
    kept = [(name, row) for name, row in rows if name in shown]
    grids = [run_tables.latencies(kept, title="Stages" if network else "", note=note)]
    if network:
        grids.insert(0, _jobs(result))
    pictures = _drawn(
        f"Latency by share of {'stages' if network else 'requests'}",
        "How long the given share of what was measured took at most. The scale widens towards the slowest: "
        f"each further nine, 90 %, 99 %, 99.9 %, has as much room.{_largest(len(sizes))}",
        result.plot.latency,
    )
    return Chapter(title="How long did requests take?", grids=tuple(grids), pictures=pictures)


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
    pictures = _drawn(
        "The replicas over time",
        "All replicas together. Lines are means, bands go from the least to the largest sample."
        + (_FOUND if run_data.has_hit_rates(result) else ""),
        result.plot.timeline,
    ) + _drawn(
        "The queue over time",
        "Requests that wait for their admission. Where more come than are served it grows and grows.",
        result.plot.queue,
    )
    text = "" if pictures else "The run was too short for a sample of its queue and memory."
    return Chapter(title="What did queue and memory do?", text=text, pictures=pictures)


def _gaps(result: Result, classes: int) -> Chapter | None:
    pictures = _drawn(
        "Gaps between tokens",
        "Shares on a scale of logarithms, so that rare long gaps can be seen beside the many short ones."
        f"{_largest(classes)}",
        result.plot.tbt,
    )
    if not pictures:
        return None
    return Chapter(title="How evenly did tokens come?", pictures=pictures)


def _throughput(result: Result, verdict: Stability | str) -> Chapter:
    pictures = _drawn(
        "Arrivals and completions",
        "All requests, measured or not. Dashed what theory says of the long run; a limit more than eight "
        "times above all that came is left out.",
        lambda: throughput(result, verdict),
    )
    if isinstance(verdict, str) or not verdict.bounds:
        return Chapter(title="How close to the limit?", pictures=pictures)
    grid = bounds(verdict)
    return Chapter(title="How close to the limit?", grids=(grid,), pictures=pictures)


def _shares(result: Result) -> Chapter | None:
    """How the replicas, or the stages of a network, fared; None where there is one, or too many to read."""
    grid = run_tables.shares(result)
    return None if grid is None else Chapter(title=f"How did each {grid.header[0]} fare?", grids=(grid,))


def _scenario(result: Result, verdict: Stability | str) -> Chapter:
    folded = [("The scenario as JSON", cut(result.scenario))]
    if not isinstance(verdict, str):
        folded.append(("What theory says, with the numbers put in", verdict.explain()))
    what = "The same scenario and seed give the same numbers, bit for bit, on every machine."
    return Chapter(title="What repeats it?", text=what, folded=tuple(folded))


def _setting(result: Result) -> str:
    """How many requests, through what, and what was measured of it."""
    rows = result.requests.lazy().select(pl.len().alias("all"), pl.col("measured").sum())
    arrived, measured = rows.collect().row(0)
    served = counted(arrived, "request")
    if result.has_jobs:
        served += f" of {counted(result.jobs.height, 'job')}"
    system = "" if result._system is None else f" through {_words(result._system)}"
    left_out = "" if measured == arrived else f"; {measured:,} of them measured"
    return f"{served}{system}, seed {result._options['seed']}{left_out}."


def _words(system: System) -> str:
    """What served the requests, in a line."""
    if isinstance(system, Engine):
        return f"one replica under {type(system.scheduler).__name__}"
    if isinstance(system, GateAndRoute):
        return f"{system.replicas} replicas under GateAndRoute"
    policies = {type(engine.scheduler).__name__: None for pool in pools_of(system) for engine in pool.engines}
    under = f"under {' and '.join(policies)}"
    if isinstance(system, Cluster):
        return f"{system.replicas} replicas behind {type(system.router).__name__} {under}"
    if isinstance(system, Disaggregated):
        prefill, decode = (sum(pool.counts) for pool in pools_of(system))
        return f"{prefill} prefill and {decode} decode replicas {under}"
    return f"the engines {', '.join(system.engines)} {under}"


def _unit(result: Result, count: int = 2) -> str:
    return ("job" if result.has_jobs else "request") + ("" if count == 1 else "s")


def _drawn(title: str, caption: str, chart: Callable[[], Any]) -> tuple[Picture, ...]:
    """A picture, or none where the run has nothing to draw it from."""
    try:
        picture = chart()
    except ConfigError:
        return ()
    return (Picture(title=title, caption=caption, chart=lambda: picture),)
