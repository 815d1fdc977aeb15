"""Export of a run as a trace for the Perfetto viewer (https://ui.perfetto.dev)."""

from __future__ import annotations

import gzip
import json
import numbers
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from inferq._lazy import pl
from inferq._version import __version__
from inferq.checks import whole
from inferq.errors import ConfigError
from inferq.files import replacing, writable
from inferq.results.tables import RunTables

REPLICAS, REQUESTS = 1, 2
"""Process ids in the trace."""

_FIRST_THREAD = 10
"""The first thread id; Perfetto treats a thread with the id of its process as the main thread."""
_SLOWEST = 50
_ROWS = 50_000
"""Rows that are formatted at once."""

_COUNTED = {"waiting": "requests waiting", "running": "requests running", "kv_used_tokens": "KV tokens"}
"""Names of the counters of a replica, by column."""


def write(
    tables: RunTables, path: str | os.PathLike[str], requests: int | Iterable[int] | None = None
) -> Path:
    """Write a run in the Trace Event Format (JSON), which Perfetto and chrome://tracing open.

    Time 0 is that of the workload; `ts` and `dur` are microseconds, exact to the nanosecond.

    The process "replicas" has a thread for each replica with a slice for each stretch of iterations, named
    `prefill`, `decode` or `mixed`. Its arguments are `iterations`, `first_ms` and `growth_ms` (duration of
    the first iteration, and increase for each further one), `prefill_tokens`, `decodes`, `context_tokens`
    and `kv_used_tokens` (of the first). Counters show the samples of `Result.timeline`: waiting and running
    requests and KV tokens; with `GateAndRoute` those of the cluster by class.

    The process "requests" has a thread for each selected request, with a slice from its arrival to its end
    that contains `queued`, `prefill`, `hand-off` and `decode`.

    Args:
        tables: the tables of a run with `iterations=True`.
        path: the file; a name that ends in `.gz` is compressed.
        requests: the number of the slowest requests by `e2e_s`, or their `id`s. Default: 50.

    Returns:
        The path.

    Raises:
        ConfigError: the run did not record its iterations, an unknown id, or a missing folder.
        OSError: the file cannot be written.

    Source: Trace Event Format, Google, 2016; Perfetto documentation on other formats.

    Example:
        >>> import inferq as iq, json, tempfile, pathlib
        >>> engine = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.Sarathi(), kv=iq.KvCache(tokens=1000))
        >>> workload = {"arrival_s": [0.0, 0.5], "prompt_tokens": [10, 5], "output_tokens": [3, 1]}
        >>> result = iq.simulate(workload, engine, iterations=True)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     trace = json.loads(result.to_perfetto(pathlib.Path(folder) / "run.json").read_text())
        >>> slices = [event for event in trace["traceEvents"] if event.get("cat") == "iterations"]
        >>> [(event["name"], event["ts"], event["dur"]) for event in slices]
        [('prefill', 0.0, 1000000.0), ('mixed', 1000000.0, 1000000.0), ('decode', 2000000.0, 1000000.0)]
    """
    place = writable("path", path)
    iterations, chosen = tables.frame("iterations"), _chosen(tables, requests)
    with replacing(place) as part, _opened(part, place.suffix == ".gz") as file:
        _write(file, tables, iterations, chosen)
    return place


def _opened(part: Path, packed: bool) -> IO[str]:
    if packed:
        return gzip.open(part, "wt", 4, encoding="utf-8")
    return part.open("w", encoding="utf-8")


def _write(file: IO[str], tables: RunTables, iterations: pl.DataFrame, chosen: pl.DataFrame) -> None:
    """Write one event per line, so that the whole file is never in memory."""
    about = {
        "made by": f"inferq {__version__}",
        "findings": [finding.to_json() for finding in tables.findings],
    }
    file.write(f'{{"displayTimeUnit":"ms","otherData":{json.dumps(about)},"traceEvents":[\n')
    timeline = tables.frame("timeline")
    frames = [frame for frame in (iterations, timeline) if "replica" in frame.columns and frame.height]
    replicas = 1 + max((int(frame["replica"].to_numpy().max()) for frame in frames), default=0)
    first = _FIRST_THREAD + replicas
    file.write(",\n".join(_names(replicas, chosen, first)))
    for lines in (
        *_iterations(iterations),
        *_counters(timeline),
        *_requests(chosen, first, tables.totals["end_s"]),
    ):
        if lines:
            file.write(",\n")
            file.write(lines)
    file.write("\n]}\n")


def _names(replicas: int, chosen: pl.DataFrame, first: int) -> Iterator[str]:
    """The names of processes and threads."""

    def named(kind: str, process: int, thread: int, name: str) -> str:
        event = {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}
        return json.dumps(event, separators=(",", ":"))

    yield named("process_name", REPLICAS, _FIRST_THREAD, "replicas")
    for replica in range(replicas):
        yield named("thread_name", REPLICAS, _FIRST_THREAD + replica, f"replica {replica}")
    if chosen.height:
        yield named("process_name", REQUESTS, first, "requests")
    for place, (number, kind) in enumerate(chosen.select("id", "class").iter_rows()):
        yield named("thread_name", REQUESTS, first + place, f"request {number} ({kind})")


def _nanoseconds(column: str) -> pl.Expr:
    return (pl.col(column) * 1e9).round().cast(pl.Int64)


def _microseconds(nanoseconds: pl.Expr) -> pl.Expr:
    """Whole nanoseconds as microseconds with three decimals, without rounding."""
    return _text(nanoseconds // 1000, ".", (nanoseconds % 1000).cast(pl.String).str.zfill(3))


def _text(*parts: str | pl.Expr) -> pl.Expr:
    """Concatenated texts and columns."""
    return pl.concat_str([pl.lit(part) if isinstance(part, str) else part.cast(pl.String) for part in parts])


def _iterations(iterations: pl.DataFrame) -> Iterator[str]:
    """A slice for each stretch, by time within each replica."""
    count = pl.col("count").cast(pl.Float64)
    end_s = pl.col("start_s") + count * pl.col("first_s") + pl.col("growth_s") * (count * (count - 1) / 2)
    start = _nanoseconds("start_s")
    kind = (
        pl.when(pl.col("decodes") == 0)
        .then(pl.lit("prefill"))
        .when(pl.col("prefill_tokens") == 0)
        .then(pl.lit("decode"))
        .otherwise(pl.lit("mixed"))
    )
    # Slices of a thread must not overlap, not even by rounding of their ends.
    stretches = iterations.with_columns(start=start, end_s=end_s, kind=kind).with_columns(
        end=pl.min_horizontal(_nanoseconds("end_s"), pl.col("start").shift(-1).over("replica")),
        first_ms=pl.col("first_s") * 1e3,
        growth_ms=pl.col("growth_s") * 1e3,
    )
    numbers_of = ("prefill_tokens", "decodes", "context_tokens", "kv_used_tokens")
    line = _text(
        '{"ph":"X","cat":"iterations","name":"',
        pl.col("kind"),
        f'","pid":{REPLICAS},"tid":',
        pl.col("replica") + _FIRST_THREAD,
        ',"ts":',
        _microseconds(pl.col("start")),
        ',"dur":',
        _microseconds(pl.col("end") - pl.col("start")),
        ',"args":{"iterations":',
        pl.col("count"),
        *(part for name in ("first_ms", "growth_ms", *numbers_of) for part in (f',"{name}":', pl.col(name))),
        "}}",
    )
    yield from _lines(stretches, line)


def _counters(timeline: pl.DataFrame) -> Iterator[str]:
    """The samples of the timeline; Perfetto creates a track for each name and series."""
    if timeline.is_empty():
        return
    if "class" in timeline.columns:
        series = {name: name.replace("_", " ") for name in timeline.columns[2:]}
        name = pl.col("class").cast(pl.String)
        quoted = name.map_elements(lambda text: json.dumps(text), return_dtype=pl.String)
    else:
        series = _COUNTED
        quoted = _text('"replica ', pl.col("replica"), '"')
    values = [
        (f'{"," if place else ""}"{title}":', pl.col(name))
        for place, (name, title) in enumerate(series.items())
    ]
    line = _text(
        '{"ph":"C","cat":"samples","name":',
        quoted,
        f',"pid":{REPLICAS},"tid":{_FIRST_THREAD},"ts":',
        _microseconds(_nanoseconds("time_s")),
        ',"args":{',
        *(part for pair in values for part in pair),
        "}}",
    )
    yield from _lines(timeline.sort("time_s", maintain_order=True), line)


def _requests(chosen: pl.DataFrame, first: int, end_s: float) -> Iterator[str]:
    """Each selected request with its phases."""
    events = []
    for place, row in enumerate(chosen.iter_rows(named=True)):
        phases = list(_phases(row, end_s))
        start_ns, end_ns = phases[0][1], max(end for _, _, end in phases)
        phases = [(name, start, end) for name, start, end in phases if end > start]
        names = (
            "status",
            "class",
            "replica",
            "prompt_tokens",
            "output_tokens",
            "preemptions",
            "cached_tokens",
        )
        about = {name: row[name] for name in names if row[name] is not None}
        whole_request = (f"request {row['id']}", start_ns, end_ns)
        for (name, start, end), args in zip(
            [whole_request, *phases], [about, *({} for _ in phases)], strict=True
        ):
            event = {
                **{"ph": "X", "cat": "requests", "name": name, "pid": REQUESTS, "tid": first + place},
                **{"ts": start / 1000, "dur": (end - start) / 1000, "args": args},
            }
            events.append(json.dumps(event, separators=(",", ":"), allow_nan=False))
    if events:
        yield ",\n".join(events)


def _phases(row: dict[str, Any], end_s: float) -> Iterator[tuple[str, int, int]]:
    """The phases of a request in integer nanoseconds; an open phase ends with the run."""
    last_s = row["left_s"] if row["left_s"] is not None else max(end_s, row["arrival_s"])
    handed_s = None
    if row.get("handoff_s") is not None:
        handed_s = row["prefilled_s"] + row["handoff_s"]
    steps = [
        ("queued", row["arrival_s"]),
        ("prefill", row["admitted_s"]),
        ("hand-off", row["prefilled_s"] if handed_s is not None else None),
        ("decode", handed_s if handed_s is not None else row["first_token_s"]),
    ]
    reached = [(name, round(start_s * 1e9)) for name, start_s in steps if start_s is not None]
    ends = [start for _, start in reached[1:]] + [round(last_s * 1e9)]
    for (name, start), end in zip(reached, ends, strict=True):
        yield name, start, max(start, end)


def _chosen(tables: RunTables, requests: int | Iterable[int] | None) -> pl.DataFrame:
    """The rows of the selected requests, by arrival."""
    rows = tables.scan()
    if requests is None or isinstance(requests, numbers.Integral):
        count = _SLOWEST if requests is None else whole("requests", requests, 0)
        slowest = rows.sort(["e2e_s", "id"], descending=[True, False], nulls_last=True).head(count)
        return slowest.sort("arrival_s", "id").collect()
    if isinstance(requests, (str, bytes)) or not isinstance(requests, Iterable):
        raise ConfigError("requests", f"must be a count or ids such as [0, 17], got {requests!r}")
    ids = [whole("requests", number, 0) for number in requests]
    chosen = rows.filter(pl.col("id").is_in(ids)).sort("arrival_s", "id").collect()
    missing = sorted(set(ids) - set(chosen["id"].to_list()))
    if missing:
        raise ConfigError("requests", f"no request with id {missing[0]} arrived")
    return chosen


def _lines(frame: pl.DataFrame, line: pl.Expr) -> Iterator[str]:
    """The rows of a frame as text, in batches."""
    for part in frame.iter_slices(_ROWS):
        yield ",\n".join(part.select(line.alias("line"))["line"].to_list())
