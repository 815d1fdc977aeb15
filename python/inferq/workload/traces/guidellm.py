"""GuideLLM: the requests of a benchmark in its `benchmarks.json`.

Source: vllm-project/guidellm (Apache-2.0), `GenerativeRequestStats`: `prompt_tokens`, `output_tokens` and
`request_start_time` in seconds since 1970, which before 0.4 was `start_time`.
"""

from __future__ import annotations

from inferq.workload.traces.log import reading
from inferq.workload.traces.source import Format, Options, Reading, Source


def _fits(source: Source) -> bool:
    return "benchmarks" in source.keys


def _read(source: Source, options: Options) -> Reading:
    """The successful requests; those that failed or were cut off are left out and counted."""
    benchmarks = source.records[0][0]["benchmarks"]
    if not isinstance(benchmarks, list) or not benchmarks:
        raise source.error("benchmarks: must be a list with a benchmark")
    if len(benchmarks) > 1:
        raise source.error(
            f"holds {len(benchmarks)} benchmarks, each a load of its own: keep one, as with "
            "jq '.benchmarks |= [.[0]]'"
        )
    requests = benchmarks[0].get("requests") if isinstance(benchmarks[0], dict) else None
    if not isinstance(requests, dict) or not isinstance(requests.get("successful"), list):
        raise source.error(
            "benchmarks[0].requests.successful: is missing: GuideLLM was told to leave them out"
        )
    kept = requests["successful"]
    start = "request_start_time" if any("request_start_time" in one for one in kept) else "start_time"
    names = {"arrival_s": start, "prompt_tokens": "prompt_tokens", "output_tokens": "output_tokens"}
    place = "benchmarks[0].requests.successful[{}]".format
    for at, one in enumerate(kept):
        for name in names.values():
            if not isinstance(one, dict) or one.get(name) is None:
                raise source.error(f"{place(at)}: has no {name}")
    left_out = {f"{name}_requests": len(requests.get(name) or ()) for name in ("errored", "incomplete")}
    columns = {ours: [one[name] for one in kept] for ours, name in names.items()}
    return reading(source, columns, list(range(len(kept))), place, left_out=left_out)


GUIDELLM = Format("guidellm", _fits, _read)
