"""AIPerf: `profile_export.jsonl`, a record for each request of a benchmark.

Source: ai-dynamo/aiperf (Apache-2.0), "Working with Profile Export Files": `metadata.request_start_ns`,
`metrics` with a value and a unit each, `error`.
"""

from __future__ import annotations

from typing import Any

from inferq.workload.traces.log import reading
from inferq.workload.traces.source import Format, Options, Reading, Source

_LENGTHS = {
    "prompt_tokens": ("input_sequence_length",),
    "output_tokens": ("output_sequence_length", "output_token_count"),
}


def _fits(source: Source) -> bool:
    return {"metadata", "metrics"} <= source.keys and "metadata.request_start_ns" in source.columns


def _read(source: Source, options: Options) -> Reading:
    """Times are whole nanoseconds; conversations become sessions where one has several turns.

    Records with an error, those that were cancelled and those of a warm-up phase are left out and counted.
    """
    entries, place = source.records
    left_out = {"failed_requests": 0, "cancelled": 0, "of_warm_up": 0}
    rows: list[int] = []
    columns: dict[str, list[Any]] = {"arrival_s": [], "prompt_tokens": [], "output_tokens": []}
    talks: list[tuple[Any, Any]] = []
    for at, entry in enumerate(entries):
        about, metrics = entry.get("metadata"), entry.get("metrics")
        if not isinstance(about, dict) or not isinstance(metrics, dict):
            raise source.error(f"{place(at)}: has no metadata or no metrics")
        if about.get("benchmark_phase", "profiling") != "profiling":
            left_out["of_warm_up"] += 1
        elif about.get("was_cancelled"):
            left_out["cancelled"] += 1
        elif entry.get("error"):
            left_out["failed_requests"] += 1
        else:
            rows.append(at)
            start = about.get("request_start_ns")
            if type(start) is not int:
                raise source.error(
                    f"{place(at)}: metadata.request_start_ns is {start!r}, must be whole nanoseconds"
                )
            columns["arrival_s"].append(start)
            for name, metric in _LENGTHS.items():
                columns[name].append(_value(metrics, metric, source, place(at)))
            talks.append((about.get("conversation_id"), about.get("turn_index")))
    known = [one for one, turn in talks if one is not None and turn is not None]
    if len(set(known)) < len(known):
        columns["session_id"] = [None if one is None else str(one) for one, _ in talks]
        columns["turn"] = [turn for _, turn in talks]
    return reading(source, columns, rows, place, unit="ns", left_out=left_out)


def _value(metrics: dict[str, Any], names: tuple[str, ...], source: Source, where: str) -> Any:
    for name in names:
        if name in metrics:
            metric = metrics[name]
            return metric.get("value") if isinstance(metric, dict) else metric
    raise source.error(f"{where}: metrics has no {' and no '.join(names)}")


AIPERF = Format("aiperf", _fits, _read)
