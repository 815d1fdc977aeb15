"""Does the fast core agree with the slow reference on every timestamp, batch and preemption?"""

import decimal
import math
import random
from typing import Any

import polars as pl
import pytest

import inferq as iq

from . import reference

_SEEDS = range(300)


def _seconds(attoseconds: int | None) -> float | None:
    """The nearest double."""
    with decimal.localcontext(prec=60):
        return None if attoseconds is None else float(decimal.Decimal(attoseconds) / 10**18)


def _timing(rng: random.Random) -> dict[str, Any]:
    return rng.choice(
        [
            {"kind": "Constant", "seconds": rng.choice([0.01, 1.0])},
            {
                "kind": "PiecewiseLinear",
                "base": 0.006,
                "per_token": 3.2e-5,
                "knee": rng.choice([0, 20, 200]),
                "per_context_token": rng.choice([0.0, 4e-8]),
                "per_prefill_square": rng.choice([0.0, 6.5e-10]),
                "per_chunk_context": rng.choice([0.0, 1.3e-9]),
            },
            {"kind": "MemoryLinear", "base": 0.01, "per_kv_token": 1e-5},
            {"kind": "MixedSolo", "alpha": 0.0174, "beta": 6.2e-5, "solo": 0.022},
        ]
    )


def _scheduler(kind: str, rng: random.Random) -> dict[str, Any]:
    limits = {"token_budget": rng.choice([8, 16, 64, 512]), "max_seqs": rng.choice([1, 2, 4, 8, 128])}
    preemption = rng.choice([{"kind": "Recompute"}, {"kind": "Swap", "per_token": 1e-6, "base": 0.001}])
    own: dict[str, dict[str, Any]] = {
        "Sarathi": {"order": rng.choice(["fcfs", "spf"])},
        "VllmV0": {},
        "VllmV1": {
            "long_prefill_threshold": rng.choice([0, 0, 4, 10]),
            "policy": rng.choice(["fcfs", "priority"]),
            "reserve_full_prompt": rng.choice([True, False]),
        },
    }
    if kind != "VllmV1":
        own[kind] |= {"watermark": rng.choice([0.0, 0.01, 0.1]), "preemption": preemption}
    return {"kind": kind, **limits, **own[kind]}


def _scenario(kind: str, seed: int) -> tuple[dict[str, Any], list[dict[str, Any]], float | None]:
    """An engine, requests and a horizon; arrivals often fall on the ends of iterations, KV is often tight."""
    rng = random.Random(f"{kind} {seed}")
    block, prompt, output = rng.choice([1, 4, 7, 16]), rng.choice([20, 60, 200]), rng.choice([1, 5, 40])
    tokens = None if rng.random() < 0.2 else int((prompt + output) * rng.uniform(0.7, 3)) + block
    engine = {
        "timing": _timing(rng),
        "scheduler": _scheduler(kind, rng),
        "kv": {"tokens": tokens, "block": block, "prefix_cache": None},
        "first_token": rng.choice(["prefill", "prefill", "decode"]),
    }
    grid, now, requests = rng.choice([0.01, 1.0, 0.001, 0.0062]), 0.0, []
    for _ in range(rng.randint(1, 25)):
        now = round(now + rng.choice([0, 0, 1, 2, 5, 20]) * grid, 9)
        patience = None if rng.random() < 0.8 else round(rng.choice([0, 1, 5, 20]) * grid, 9)
        requests.append(
            {
                "arrival_s": now,
                "prompt_tokens": rng.randint(1, prompt),
                "output_tokens": rng.randint(1, output),
                "priority": rng.randint(0, 2),
                "patience_s": patience,
            }
        )
    return engine, requests, None if rng.random() < 0.8 else round(rng.uniform(0, now * 1.5), 3)


def _rows(outcome: reference.Outcome) -> list[dict[str, Any]]:
    """What the frame of requests must hold."""
    rows = []
    for request in outcome.requests:
        gaps = [later - earlier for earlier, later in zip(request.tokens, request.tokens[1:], strict=False)]
        rows.append(
            {
                "status": request.status,
                "admitted_s": _seconds(request.admitted),
                "first_token_s": _seconds(request.first_token),
                "finish_s": _seconds(request.finish),
                "left_s": _seconds(request.left),
                "max_tbt_s": _seconds(max(gaps, default=None)),
                "preemptions": request.preemptions,
            }
        )
    return rows


def _batches(result: iq.Result) -> list[tuple[float | None, list[tuple[int, int, bool]], int | None]]:
    """Start, rows and blocks of every iteration; start and blocks only of the first of each stretch."""
    rows: dict[int, list[tuple[int, int, bool]]] = {}
    for iteration, request, tokens, emits in result.batches.iter_rows():
        rows.setdefault(iteration, []).append((request, tokens, emits))
    listed: list[tuple[float | None, list[tuple[int, int, bool]], int | None]] = []
    columns = result.iterations.select("start_s", "count", "kv_used_tokens")
    for place, (start, count, used) in enumerate(columns.iter_rows()):
        listed += [(start, sorted(rows[place]), used)] + [(None, sorted(rows[place]), None)] * (count - 1)
    return listed


@pytest.mark.parametrize("seed", _SEEDS)
@pytest.mark.parametrize("kind", ["Sarathi", "VllmV1", "VllmV0"])
def test_the_core_agrees_with_the_reference(kind: str, seed: int):
    engine, requests, horizon_s = _scenario(kind, seed)
    outcome = reference.simulate(requests, engine, horizon_s)
    result = iq.simulate(
        iq.Workload(pl.DataFrame(requests, schema_overrides={"patience_s": pl.Float64})),
        iq.Engine.from_description(engine),
        horizon_s=horizon_s,
        batches=True,
    )
    columns = ["status", "admitted_s", "first_token_s", "finish_s", "left_s", "max_tbt_s", "preemptions"]
    assert result.requests.select(columns).to_dicts() == _rows(outcome)

    horizon = math.inf if horizon_s is None else horizon_s
    ended = [row for row in outcome.iterations if (_seconds(row.start + row.length) or 0.0) <= horizon]
    batches = _batches(result)
    assert len(batches) == len(ended)
    for (start, rows, used), expected in zip(batches, ended, strict=True):
        assert rows == sorted(expected.rows)
        assert start is None or (start, used) == (_seconds(expected.start), expected.kv_used_tokens)


@pytest.mark.parametrize("kind", ["Sarathi", "VllmV1", "VllmV0"])
def test_the_random_scenarios_reach_what_they_are_for(kind: str):
    """Guards the test above: preemption, rejection, impatience and horizons all happen."""
    seen = {"preempted": 0, "rejected": 0, "abandoned": 0, "unfinished": 0}
    for seed in _SEEDS:
        engine, requests, horizon_s = _scenario(kind, seed)
        for request in reference.simulate(requests, engine, horizon_s).requests:
            seen["preempted"] += request.preemptions > 0
            seen[request.status] = seen.get(request.status, 0) + 1
    assert min(seen.values()) >= 10, seen
