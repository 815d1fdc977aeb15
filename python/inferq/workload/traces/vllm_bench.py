"""Results of `vllm bench serve` and SGLang's `bench_serving`: the requests of the benchmark.

Source: `vllm/benchmarks/serve.py` (Apache-2.0): lists `input_lens`, `output_lens`, `ttfts`, `itls`, `errors`
and, in newer versions, `start_times` in seconds of the client's clock.
"""

from __future__ import annotations

from inferq.workload.traces.log import reading
from inferq.workload.traces.source import Format, Options, Reading, Source

_LISTS = {"input_lens", "output_lens"}
_SUMMARY = {"request_throughput", "mean_ttft_ms"}


def _fits(source: Source) -> bool:
    return bool(_LISTS & source.keys) or source.keys >= _SUMMARY


def _read(source: Source, options: Options) -> Reading:
    """Read successful requests with output tokens; without `start_times` there are no arrivals."""
    records = source.records[0]
    if len(records) > 1:
        raise source.error(f"contains {len(records)} results, must contain one")
    result = records[0]
    if not result.keys() >= _LISTS:
        raise source.error(
            "has no requests (input_lens, output_lens): run the benchmark with --save-detailed"
        )
    lists = {
        name: result[name]
        for name in ("input_lens", "output_lens", "start_times", "errors")
        if result.get(name)
    }
    for name, values in lists.items():
        if not isinstance(values, list) or len(values) != len(lists["input_lens"]):
            raise source.error(f"{name} must be a list with as many entries as input_lens")
    errors = lists.get("errors", [""] * len(lists["input_lens"]))
    rows = [
        row for row, output in enumerate(lists["output_lens"]) if not errors[row] and output not in (0, None)
    ]
    names = {"arrival_s": "start_times", "prompt_tokens": "input_lens", "output_tokens": "output_lens"}
    columns = {column: [lists[name][row] for row in rows] for column, name in names.items() if name in lists}
    if "arrival_s" in columns:  # the client's clock has an arbitrary origin
        first = min(columns["arrival_s"])
        columns["arrival_s"] = [time - first for time in columns["arrival_s"]]
    return reading(
        source,
        columns,
        rows,
        "request {}".format,
        left_out={"failed_requests": len(errors) - len(rows)},
    )


VLLM_BENCH = Format("vllm-bench", _fits, _read)
