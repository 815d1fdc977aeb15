"""AIPerf: `profile_export.jsonl`, one record per request of a benchmark.

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
    """Read times in whole nanoseconds; conversations with several turns become sessions.

    Failed, canceled and warm-up requests are left out and counted.
    """
    entries, place = source.records
    left_out = {"failed_requests": 0, "canceled_requests": 0, "warm_up_requests": 0}
    rows: list[int] = []
    columns: dict[str, list[Any]] = {"arrival_s": [], "prompt_tokens": [], "output_tokens": []}
    turns: list[tuple[Any, Any]] = []
    for at, entry in enumerate(entries):
        metadata, metrics = entry.get("metadata"), entry.get("metrics")
        if not isinstance(metadata, dict) or not isinstance(metrics, dict):
            raise source.error(f"{place(at)}: must have the objects metadata and metrics")
        if metadata.get("benchmark_phase", "profiling") != "profiling":
            left_out["warm_up_requests"] += 1
        elif metadata.get("was_cancelled"):
            left_out["canceled_requests"] += 1
        elif entry.get("error"):
            left_out["failed_requests"] += 1
        else:
            rows.append(at)
            start = metadata.get("request_start_ns")
            if type(start) is not int:
                raise source.error(
                    f"{place(at)}: metadata.request_start_ns is {start!r}, must be an integer in nanoseconds"
                )
            columns["arrival_s"].append(start)
            for name, metric in _LENGTHS.items():
                columns[name].append(_value(metrics, metric, source, place(at)))
            turns.append((metadata.get("conversation_id"), metadata.get("turn_index")))
    known = [session for session, turn in turns if session is not None and turn is not None]
    if len(set(known)) < len(known):
        columns["session_id"] = [None if session is None else str(session) for session, _ in turns]
        columns["turn"] = [turn for _, turn in turns]
    return reading(source, columns, rows, place, unit="ns", left_out=left_out)


def _value(metrics: dict[str, Any], names: tuple[str, ...], source: Source, place: str) -> Any:
    for name in names:
        if name in metrics:
            metric = metrics[name]
            return metric.get("value") if isinstance(metric, dict) else metric
    raise source.error(f"{place}: metrics must have {' or '.join(names)}")


AIPERF = Format("aiperf", _fits, _read)
