"""Does `VllmV1` do what the real engine did, batch by batch? See conformance/README.md."""

import gzip
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import inferq as iq


def recorded(name: str) -> list[Any]:
    """The cases of a recording, as parameters of a test."""
    path = Path(__file__).parent / "conformance" / f"{name}.json.gz"
    cases: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))["cases"]
    return [pytest.param(case, id=f"{name}-{place}") for place, case in enumerate(cases)]


def _engine(scenario: dict[str, Any]) -> iq.Engine:
    price = {name: microseconds / 1e6 for name, microseconds in scenario["price_us"].items()}
    names = ["token_budget", "max_seqs", "long_prefill_threshold", "policy", "reserve_full_prompt"]
    return iq.Engine(
        timing=iq.PiecewiseLinear(**price),
        scheduler=iq.VllmV1(**{name: scenario[name] for name in names}),
        kv=iq.KvCache(
            tokens=scenario["kv_tokens"],
            block=scenario["block_tokens"],
            prefix_cache="blocks" if scenario["prefix"] else None,
        ),
    )


def microseconds(column: pl.Series) -> list[int]:
    """Times in whole microseconds, as recordings have them."""
    return [round(seconds * 1e6) for seconds in column]


def listed_iterations(result: iq.Result) -> list[list[Any]]:
    """Every iteration as the recording has it: a stretch is `count` of them."""
    rows: dict[int, list[list[int]]] = {}
    for iteration, request, tokens, emits in result.batches.iter_rows():
        rows.setdefault(iteration, []).append([request, tokens, int(emits)])
    listed = []
    columns = result.iterations.select("start_s", "count", "first_s", "growth_s")
    for place, (start, count, first, growth) in enumerate(columns.iter_rows()):
        for j in range(count):
            since = j * first + growth * j * (j - 1) / 2
            listed.append([round((start + since) * 1e6), rows[place]])
    return listed


@pytest.mark.parametrize("case", [*recorded("vllm_v1"), *recorded("vllm_v1_prefix")])
def test_every_batch_is_the_engines_own(case: dict[str, Any]):
    scenario, expected = case["scenario"], case["expected"]
    requests = scenario["requests"]
    frame = pl.DataFrame(
        {
            "arrival_s": [request["arrival_us"] / 1e6 for request in requests],
            "prompt_tokens": [request["prompt_tokens"] for request in requests],
            "output_tokens": [request["output_tokens"] for request in requests],
            "priority": [request.get("priority", 0) for request in requests],
            "prefix_parts": [request.get("prefix_parts") for request in requests],
        },
        schema_overrides={"prefix_parts": pl.List(pl.List(pl.Int64))},
    )
    result = iq.simulate(iq.Workload(frame), _engine(scenario), batches=True)
    assert microseconds(result.requests["first_token_s"]) == expected["first_token_us"]
    assert microseconds(result.requests["finish_s"]) == expected["finish_us"]
    assert result.requests["preemptions"].to_list() == expected["preemptions"]
    assert listed_iterations(result) == expected["iterations"]
    cached = expected.get("cached_tokens_at_admission", [0] * len(requests))
    assert result.requests["cached_tokens"].to_list() == cached
