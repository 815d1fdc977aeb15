"""A trace of what every replica did at every instant, for Perfetto's viewer (https://ui.perfetto.dev)."""

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
"""The processes of the trace."""

_FIRST_THREAD = 10
"""Perfetto takes a thread with the number of its process for the main one: ours begin above."""
_SLOWEST = 50
_ROWS = 50_000
"""So many rows become text at once."""

_COUNTED = {"waiting": "requests waiting", "running": "requests running", "kv_used_tokens": "KV tokens"}
"""What the counters of a replica are called."""


def write(
    tables: RunTables, path: str | os.PathLike[str], requests: int | Iterable[int] | None = None
) -> Path:
    """Write a run in the Trace Event Format (JSON), which Perfetto and chrome://tracing open.

    Time 0 of the trace is that of the workload; `ts` and `dur` are microseconds, exact to the nanosecond.

    The process "replicas" has a thread for each replica, with a slice for each stretch of iterations: named
    `prefill`, `decode` or `mixed`, with its `iterations`, `first_ms` and `growth_ms` (length of the first and
    what each further one adds), `prefill_tokens`, `decodes`, `context_tokens` and `kv_used_tokens` (all of
    the first). Beside them its counters at the samples of `Result.timeline`: requests waiting and running,
    and KV tokens; under `GateAndRoute` those of the cluster by class.

    The process "requests" has a thread for each chosen request, with a slice from its arrival until it left,
    and in it `queued`, `prefill`, `hand-off` and `decode`.

    Args:
        tables: of a run with `iterations=True`.
        path: the file; a name that ends in `.gz` is compressed.
        requests: how many, the slowest by `e2e_s`, or their `id`s; None takes the 50 slowest.

    Returns:
        The path.

    Raises:
        ConfigError: the run did not record its iterations, there is no request of that id, or no path or no
            such folder.
        OSError: the file cannot be written.

    Source: Trace Event Format, Google, 2016; how Perfetto reads it: its documentation on other formats.

    Example:
        >>> import inferq as iq, json, tempfile, pathlib
        >>> engine = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.Sarathi(), kv=iq.KvCache(tokens=1000))
        >>> workload = {"arrival_s": [0.0, 0.5], "prompt_tokens": [10, 5], "output_tokens": [3, 1]}
        >>> result = iq.simulate(workload, engine, iterations=True)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     trace = json.loads(result.to_perfetto(pathlib.Path(folder) / "run.json").read_text())
        >>> slices = [one for one in trace["traceEvents"] if one.get("cat") == "iterations"]
        >>> [(one["name"], one["ts"], one["dur"]) for one in slices]
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
    """One event a line, so that the file is never whole in memory."""
    about = {
        "made by": f"inferq {__version__}",
        "findings": [finding.to_json() for finding in tables.findings],
    }
    file.write(f'{{"displayTimeUnit":"ms","otherData":{json.dumps(about)},"traceEvents":[\n')
    timeline = tables.frame("timeline")
    frames = [one for one in (iterations, timeline) if "replica" in one.columns and one.height]
    replicas = 1 + max((int(one["replica"].to_numpy().max()) for one in frames), default=0)
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
    """Texts and columns side by side."""
    return pl.concat_str([pl.lit(one) if isinstance(one, str) else one.cast(pl.String) for one in parts])


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
    # Slices of a thread must not overlap, not even by the rounding of the sum that is the end of one.
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
    """The samples of the timeline: Perfetto makes a track of each name and series."""
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
    """Each chosen request with its phases."""
    events = []
    for place, row in enumerate(chosen.iter_rows(named=True)):
        phases = list(_phases(row, end_s))
        begun, left = phases[0][1], max(end for _, _, end in phases)
        phases = [(name, start, end) for name, start, end in phases if end > start]
        kept = (
            "status",
            "class",
            "replica",
            "prompt_tokens",
            "output_tokens",
            "preemptions",
            "cached_tokens",
        )
        about = {name: row[name] for name in kept if row[name] is not None}
        whole_of_it = (f"request {row['id']}", begun, left)
        for (name, start, end), args in zip(
            [whole_of_it, *phases], [about, *({} for _ in phases)], strict=True
        ):
            event = {
                **{"ph": "X", "cat": "requests", "name": name, "pid": REQUESTS, "tid": first + place},
                **{"ts": start / 1000, "dur": (end - start) / 1000, "args": args},
            }
            events.append(json.dumps(event, separators=(",", ":"), allow_nan=False))
    if events:
        yield ",\n".join(events)


def _phases(row: dict[str, Any], end_s: float) -> Iterator[tuple[str, int, int]]:
    """What a request went through, in whole nanoseconds; what is under way at its end ends there."""
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
    """The rows of the requests that are shown, by arrival."""
    rows = tables.scan()
    if requests is None or isinstance(requests, numbers.Integral):
        count = _SLOWEST if requests is None else whole("requests", requests, 0)
        slowest = rows.sort(["e2e_s", "id"], descending=[True, False], nulls_last=True).head(count)
        return slowest.sort("arrival_s", "id").collect()
    if isinstance(requests, (str, bytes)) or not isinstance(requests, Iterable):
        raise ConfigError("requests", f"must be a number of them, or ids such as [0, 17], is {requests!r}")
    ids = [whole("requests", one, 0) for one in requests]
    chosen = rows.filter(pl.col("id").is_in(ids)).sort("arrival_s", "id").collect()
    missing = sorted(set(ids) - set(chosen["id"].to_list()))
    if missing:
        raise ConfigError("requests", f"there is no request {missing[0]} among those that arrived")
    return chosen


def _lines(frame: pl.DataFrame, line: pl.Expr) -> Iterator[str]:
    """The rows of a frame as text, some at a time."""
    for part in frame.iter_slices(_ROWS):
        yield ",\n".join(part.select(line.alias("line"))["line"].to_list())
