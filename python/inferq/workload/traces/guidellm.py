"""GuideLLM: `benchmarks.json` with the requests of a benchmark.

Source: vllm-project/guidellm (Apache-2.0), `GenerativeRequestStats`: `prompt_tokens`, `output_tokens` and
`request_start_time` in seconds since 1970 (`start_time` before version 0.4).
"""

from __future__ import annotations

from inferq.workload.traces.log import reading
from inferq.workload.traces.source import Format, Options, Reading, Source


def _fits(source: Source) -> bool:
    return "benchmarks" in source.keys


def _read(source: Source, options: Options) -> Reading:
    """Read successful requests; failed and incomplete ones are left out and counted."""
    benchmarks = source.records[0][0]["benchmarks"]
    if not isinstance(benchmarks, list) or not benchmarks:
        raise source.error("benchmarks must be a list with one benchmark")
    if len(benchmarks) > 1:
        raise source.error(
            f"contains {len(benchmarks)} benchmarks, must contain one: select it with "
            "jq '.benchmarks |= [.[0]]'"
        )
    requests = benchmarks[0].get("requests") if isinstance(benchmarks[0], dict) else None
    if not isinstance(requests, dict) or not isinstance(requests.get("successful"), list):
        raise source.error(
            "benchmarks[0].requests.successful is missing: configure GuideLLM to save the requests"
        )
    successful = requests["successful"]
    has_start = any("request_start_time" in request for request in successful)
    start = "request_start_time" if has_start else "start_time"
    names = {"arrival_s": start, "prompt_tokens": "prompt_tokens", "output_tokens": "output_tokens"}
    place = "benchmarks[0].requests.successful[{}]".format
    for at, request in enumerate(successful):
        for name in names.values():
            if not isinstance(request, dict) or request.get(name) is None:
                raise source.error(f"{place(at)}: {name} is missing")
    left_out = {f"{name}_requests": len(requests.get(name) or ()) for name in ("errored", "incomplete")}
    columns = {column: [request[name] for request in successful] for column, name in names.items()}
    return reading(source, columns, list(range(len(successful))), place, left_out=left_out)


GUIDELLM = Format("guidellm", _fits, _read)
