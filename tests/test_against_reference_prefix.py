"""Does the fast core find, keep and forget what the slow reference does, where prompts begin alike?"""

import random
from collections import Counter
from functools import cache
from typing import Any

import polars as pl
import pytest

import inferq as iq

from . import reference
from .grouped import grouped
from .test_against_reference import _KINDS, _batches, _rows, _scenario, _seconds

_SEEDS = range(200)

Scenario = tuple[dict[str, Any], list[dict[str, Any]], float | None]


def _shared(rng: random.Random, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same requests with prompts that begin with common texts, or with what an earlier one says."""
    rows: list[dict[str, Any]] = []
    for at, request in enumerate(requests):
        row = {**request, "continues": None, "prefix_parts": None}
        earlier = rng.randrange(at) if at else None
        said = 0 if earlier is None else rows[earlier]["prompt_tokens"] + rows[earlier]["output_tokens"]
        if earlier is not None and said < 400 and rng.random() < 0.3:
            row |= {"continues": earlier, "prompt_tokens": said + rng.choice([0, 1, 5, 20])}
        elif rng.random() < 0.8:
            prompt = row["prompt_tokens"]
            first = max(1, int(prompt * rng.choice([0.2, 0.5, 0.9, 1])))
            parts = [[rng.choice([7, 7, 8]), first]]
            if first < prompt and rng.random() < 0.5:
                parts.append([rng.choice([7, 9]), rng.randint(1, prompt - first)])
            row["prefix_parts"] = parts
        rows.append(row)
    return rows


@cache
def _sharing(kind: str, seed: int) -> Scenario:
    engine, requests, horizon_s = _scenario(kind, seed)
    rng = random.Random(f"sharing {kind} {seed}")
    kv = {**engine["kv"], "prefix_cache": rng.choice(["blocks", "radix"])}
    return {**engine, "kv": kv}, _shared(rng, requests), horizon_s


@cache
def _outcome(kind: str, seed: int) -> reference.Outcome:
    engine, requests, horizon_s = _sharing(kind, seed)
    return reference.simulate(requests, engine, horizon_s)


_TYPES = {
    "patience_s": pl.Float64,
    "tbt_slo_s": pl.Float64,
    "continues": pl.Int32,
    "prefix_parts": pl.List(pl.List(pl.Int64)),
}


@grouped(seed=_SEEDS)
@pytest.mark.parametrize("kind", _KINDS)
def test_the_core_agrees_with_the_reference(kind: str, seed: int) -> None:
    engine, requests, horizon_s = _sharing(kind, seed)
    outcome = _outcome(kind, seed)
    result = iq.simulate(
        iq.Workload(pl.DataFrame(requests, schema_overrides=_TYPES)),
        iq.Engine.from_json(engine),
        horizon_s=horizon_s,
        batches=True,
    )
    columns = ["status", "admitted_s", "first_token_s", "finish_s", "left_s", "max_tbt_s", "preemptions"]
    expected = [
        {**row, "cached_tokens": r.cached} for row, r in zip(_rows(outcome), outcome.requests, strict=True)
    ]
    assert result.requests.select(*columns, "cached_tokens").to_dicts() == expected
    told, known = result.block_operations.row(0), outcome.cache
    assert told == (0, known.found, known.learned, known.forgotten)
    batches = _batches(result)
    for (start, rows, used), iteration in zip(batches, outcome.iterations, strict=False):
        assert rows == sorted(iteration.rows)
        assert start is None or (start, used) == (_seconds(iteration.start), iteration.kv_used_tokens)


@pytest.mark.parametrize("kind", _KINDS)
def test_the_random_scenarios_reach_what_they_are_for(kind: str) -> None:
    """Guards the test above: prefixes are found and not found, and blocks run short."""
    seen: Counter[str] = Counter()
    for seed in _SEEDS:
        outcome = _outcome(kind, seed)
        seen["found"] += sum(r.cached > 0 for r in outcome.requests)
        seen["not found"] += sum(r.cached == 0 for r in outcome.requests)
        seen["preempted"] += sum(r.preemptions > 0 for r in outcome.requests)
    assert seen["found"] > 100 and seen["not found"] > 200
    assert seen["preempted"] > 2 or "Orca" in kind or "FasterTransformer" in kind
