"""What does the page of a run say, in which order?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from inferq.errors import ConfigError, TraceError
from inferq.picture.document import Chapter, Document, Grid, Picture
from inferq.picture.limits import bounds
from inferq.picture.numbers import NONE, number, percent, seconds
from inferq.picture.run import throughput

if TYPE_CHECKING:
    import polars as pl

    from inferq.result import Result
    from inferq.simulation import System
    from inferq.theory.verdict import Stability

_LATENCIES = ("ttft", "tbt", "tpot", "e2e", "queue")
_STATISTICS = ("mean", "p50", "p90", "p95", "p99", "max")
_LEGEND = (
    "ttft: arrival to first token; tbt: gaps between tokens; tpot: mean gap of a request; e2e: arrival to "
    "last token; queue: wait for admission. Percentiles are over the measured requests, those of tbt over "
    "all gaps."
)
_MOST_REPLICAS = 32
"""Up to so many replicas are shown one by one."""
_MOST_LETTERS = 60_000
"""A scenario longer than that is cut: one whose law is made of a trace holds all its pairs of lengths."""


def document(result: Result, title: str | None) -> Document:
    """The page: findings first, then numbers, pictures, and what repeats the run."""
    summary = result.summary()
    named = result.requests.lazy().select("class").unique().collect().height
    by_class = result.summary(by="class") if named > 1 else None
    whole = summary.row(0, named=True)
    said = _theory(result)
    chapters = [
        _latency(result, whole, by_class),
        _over_time(result),
        _gaps(result),
        _throughput(result, said),
        _shares(result),
        _scenario(result, said),
    ]
    return Document(
        title=title if title is not None else "What became of the requests?",
        setting=_setting(result),
        findings=tuple(_findings(result, said)),
        facts=tuple(_facts(whole)),
        chapters=tuple(one for one in chapters if one is not None),
    )


def _theory(result: Result) -> Stability | str:
    """What theory says of the scenario, or why it says nothing."""
    from inferq.theory.verdict import stability

    if result._system is None:
        return "what served the requests is not kept"
    try:
        return stability(result._workload, result._system)
    except (ConfigError, TraceError) as error:
        return str(error)


def _findings(result: Result, said: Stability | str) -> list[str]:
    """The findings of the run, what its queue did, and what theory says."""
    told = [f"{one[0].upper()}{one[1:]}{'' if one.endswith('.') else '.'}" for one in result.findings]
    told.append(_seen(result))
    if isinstance(said, str):
        return [*told, f"Theory says nothing about this scenario: {said}."]
    _, _, why = said.explain().splitlines()[0].partition(": ")
    words = {
        "stable": "Theory: stable in the long run",
        "unstable": "Theory: unstable in the long run",
        "unknown": "Theory cannot tell whether this is stable in the long run",
    }
    told.append(f"{words[said.verdict]}: {why}.")
    if said.binding is not None:
        load = "" if said.load is None else f", of which {percent(said.load)} are asked for"
        told.append(
            f"The limit that binds: {said.binding.name}, at most {number(said.binding.capacity_per_s)} "
            f"{_unit(result)} per second{load}."
        )
    return told


def _seen(result: Result) -> str:
    """Whether the number in the system grew during the run."""
    from inferq.theory.drift import observed

    try:
        seen = observed(result)
    except (ConfigError, TraceError) as error:
        return f"Whether the queue grew cannot be told: {error}."
    words = {
        "stable": "The queue did not grow while requests came",
        "unstable": f"The queue grew while requests came, by {percent(seen.growth)} of them",
        "unknown": "Whether the queue grew while requests came cannot be told from this run",
    }
    why = f": {seen.reasons[0]}" if seen.reasons else ""
    return f"{words[seen.verdict]}{why}."


def _facts(whole: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The numbers that people ask for first."""
    return [
        ("finished", f"{whole['completed']:,}"),
        ("rejected or gave up", f"{whole['failed']:,}"),
        ("requests per second", number(whole["request_throughput"])),
        ("within objectives per second", number(whole["request_goodput"])),
        ("output tokens per second", number(whole["output_throughput"])),
        ("TTFT, p50", seconds(whole["p50_ttft_s"])),
        ("TTFT, p99", seconds(whole["p99_ttft_s"])),
        ("gap between tokens, p99", seconds(whole["p99_tbt_s"])),
        ("arrival to last token, p50", seconds(whole["p50_e2e_s"])),
        ("arrival to last token, p99", seconds(whole["p99_e2e_s"])),
    ]


def _latency(result: Result, whole: Mapping[str, Any], by_class: pl.DataFrame | None) -> Chapter:
    rows: list[tuple[str, Mapping[str, Any]]] = []
    if by_class is not None:
        rows = [(str(row["class"]), row) for row in by_class.rows(named=True)]
    rows.append(("all", whole))
    several = by_class is not None
    lines = [
        [
            name if place == 0 else "",
            *([group] if several else []),
            *(seconds(row[f"{one}_{name}_s"]) for one in _STATISTICS),
        ]
        for name in _LATENCIES
        for place, (group, row) in enumerate(rows)
    ]
    header = ["", *(["class"] if several else []), *_STATISTICS]
    grid = Grid(title="", header=header, lines=lines, texts=1 + several, note=_LEGEND)
    pictures = _drawn(
        "Latency by share of requests",
        "How long the given share of the measured requests took at most. The scale widens towards the "
        "slowest, so that the last hundredth has as much room as the tenth before it.",
        result.plot.latency,
    )
    return Chapter(title="How long did requests take?", grids=(grid,), pictures=pictures)


def _over_time(result: Result) -> Chapter:
    pictures = _drawn(
        "The replicas over time",
        "All replicas together. Lines are means, bands go from the least to the largest sample.",
        result.plot.timeline,
    ) + _drawn(
        "The queue over time",
        "Requests that wait for their admission. Where more come than are served it grows and grows.",
        result.plot.queue,
    )
    text = "" if pictures else "The run was too short for a sample of its queue and memory."
    return Chapter(title="What did queue and memory do?", text=text, pictures=pictures)


def _gaps(result: Result) -> Chapter | None:
    pictures = _drawn(
        "Gaps between tokens",
        "Shares on a scale of logarithms, so that rare long gaps can be seen beside the many short ones.",
        result.plot.tbt,
    )
    if not pictures:
        return None
    return Chapter(title="How evenly did tokens come?", pictures=pictures)


def _throughput(result: Result, said: Stability | str) -> Chapter:
    known = None if isinstance(said, str) else said
    pictures = _drawn(
        "Arrivals and completions",
        "All requests, measured or not. Dashed what theory says of the long run; a limit more than eight "
        "times above all that came is left out.",
        lambda: throughput(result, known),
    )
    if known is None or not known.bounds:
        return Chapter(title="How close to the limit?", pictures=pictures)
    grid = bounds(known)
    return Chapter(title="How close to the limit?", grids=(grid,), pictures=pictures)


def _shares(result: Result) -> Chapter | None:
    """How the replicas, or the stages of a network, fared; None where there is one, or too many to read."""
    by = "replica" if result._jobs is None else "stage"
    if not 1 < result.requests.lazy().select(by).unique().collect().height <= _MOST_REPLICAS:
        return None
    lines = [
        [
            NONE if row[by] is None else str(row[by]),
            *(f"{row['completed']:,}", f"{row['failed']:,}", number(row["output_throughput"])),
            *(seconds(row[name]) for name in ("p50_ttft_s", "p99_ttft_s", "p99_e2e_s")),
        ]
        for row in result.summary(by=by).rows(named=True)
    ]
    header = (by, "finished", "failed", "output tokens/s", "p50 ttft", "p99 ttft", "p99 e2e")
    return Chapter(title=f"How did each {by} fare?", grids=(Grid(title="", header=header, lines=lines),))


def _scenario(result: Result, said: Stability | str) -> Chapter:
    text = result.scenario
    if len(text) > _MOST_LETTERS:
        text = (
            f"{text[:_MOST_LETTERS]}\n… {len(text) - _MOST_LETTERS:,} more letters: `Result.scenario` and "
            "`Result.write` have all of it"
        )
    folded = [("The scenario as JSON", text)]
    if not isinstance(said, str):
        folded.append(("What theory says, with the numbers put in", said.explain()))
    what = "The same scenario and seed give the same numbers, bit for bit, on every machine."
    return Chapter(title="What repeats it?", text=what, folded=tuple(folded))


def _setting(result: Result) -> str:
    """How many requests, through what, and what was measured of it."""
    import polars as pl

    rows = result.requests.lazy()
    counted = rows.select(pl.len().alias("all"), pl.col("measured").sum().alias("measured")).collect()
    arrived, measured = counted.row(0)
    told = f"{arrived:,} request{'' if arrived == 1 else 's'}"
    told += "" if result._jobs is None else f" of {result.jobs.height:,} jobs"
    system = "" if result._system is None else f" through {_words(result._system)}"
    left_out = "" if measured == arrived else f"; {measured:,} of them measured"
    return f"{told}{system}, seed {result._options['seed']}{left_out}."


def _words(system: System) -> str:
    """What served the requests, in a line."""
    from inferq.cluster import Cluster
    from inferq.disaggregated import Disaggregated
    from inferq.engine import Engine
    from inferq.gate_and_route import GateAndRoute
    from inferq.network import Network

    if isinstance(system, Engine):
        return f"one replica under {type(system.scheduler).__name__}"
    if isinstance(system, GateAndRoute):
        return f"{system.replicas} replicas under GateAndRoute"
    policies = {type(engine.scheduler).__name__: None for pool in system.pools() for engine in pool.engines}
    under = f"under {' and '.join(policies)}"
    if isinstance(system, Cluster):
        return f"{system.replicas} replicas behind {type(system.router).__name__} {under}"
    if isinstance(system, Disaggregated):
        prefill, decode = (sum(pool.counts) for pool in system.pools())
        return f"{prefill} prefill and {decode} decode replicas {under}"
    assert isinstance(system, Network)
    return f"the engines {', '.join(system.engines)} {under}"


def _unit(result: Result) -> str:
    return "requests" if result._jobs is None else "jobs"


def _drawn(title: str, caption: str, chart: Callable[[], Any]) -> tuple[Picture, ...]:
    """A picture, or none where the run has nothing to draw it from."""
    try:
        made = chart()
    except ConfigError:
        return ()
    return (Picture(title=title, caption=caption, chart=lambda: made),)
