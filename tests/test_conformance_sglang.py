"""Does `Sglang` do what the real engine did, step by step? See conformance/README.md."""

from typing import Any

import polars as pl
import pytest

import inferq as iq

from .test_conformance import listed_iterations, microseconds, recorded


def _engine(scenario: dict[str, Any]) -> iq.Engine:
    price = {name: value / 1e6 for name, value in scenario["price_us"].items()}
    names = ["policy", "max_prefill_tokens", "max_seqs", "mixed", "conservativeness", "ignore_eos"]
    return iq.Engine(
        timing=iq.PiecewiseLinear(**price),
        scheduler=iq.Sglang(
            chunk_tokens=scenario["chunk_tokens"] or None, **{name: scenario[name] for name in names}
        ),
        kv=iq.KvCache(
            tokens=scenario["kv_tokens"],
            block=scenario["page_tokens"],
            prefix_cache="radix" if scenario["prefix"] else None,
        ),
    )


def _workload(requests: list[dict[str, Any]]) -> iq.Workload:
    columns = {
        "arrival_s": [request["arrival_us"] / 1e6 for request in requests],
        "prompt_tokens": [request["prompt_tokens"] for request in requests],
        "output_tokens": [request["output_tokens"] for request in requests],
    }
    if any("prefix_parts" in request or "continues" in request for request in requests):
        columns["prefix_parts"] = [request.get("prefix_parts") for request in requests]
        columns["continues"] = [request.get("continues") for request in requests]
    types: dict[str, Any] = {"prefix_parts": pl.List(pl.List(pl.Int64)), "continues": pl.Int64}
    overrides = {name: types[name] for name in types if name in columns}
    return iq.Workload(pl.DataFrame(columns, schema_overrides=overrides))


def _kind(prefill_tokens: int, decodes: int) -> str:
    return "extend" if decodes == 0 else "mixed" if prefill_tokens > 0 else "decode"


@pytest.mark.parametrize("case", recorded("sglang"))
@pytest.mark.parametrize("stepping", [False, True], ids=["stretches", "stepping"])
def test_every_step_is_the_engines_own(case: dict[str, Any], stepping: bool) -> None:
    scenario, expected = case["scenario"], case["expected"]
    requests = scenario["requests"]
    result = iq.simulate(_workload(requests), _engine(scenario), batches=True, stepping=stepping)
    kinds = [_kind(*row) for row in result.iterations.select("prefill_tokens", "decodes").iter_rows()]
    counts = result.iterations["count"].to_list()
    each = [kind for kind, count in zip(kinds, counts, strict=True) for _ in range(count)]
    steps = [[start, kind, rows] for kind, (start, rows) in zip(each, listed_iterations(result), strict=True)]
    for step, recorded_step in zip(steps, expected["iterations"], strict=False):
        assert step == recorded_step
    assert len(steps) == len(expected["iterations"])
    assert microseconds(result.requests["first_token_s"]) == expected["first_token_us"]
    assert microseconds(result.requests["finish_s"]) == expected["finish_us"]
    assert result.requests["preemptions"].to_list() == expected["retractions"]
    assert result.requests["cached_tokens"].to_list() == expected["cached_tokens_at_admission"]
