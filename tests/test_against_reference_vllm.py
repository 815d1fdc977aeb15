"""Does `VllmV1` do what the slow reference does that plans ahead as vLLM does, beyond what was recorded?"""

from collections import Counter
from functools import cache
from typing import Any

import inferq as iq

from .grouped import grouped
from .night import seeds
from .random_vllm import scenario, with_drafts
from .recordings import vllm_engine, vllm_outcome, workload
from .reference_vllm import simulate


@cache
def _expected(seed: int) -> dict[str, list[Any]]:
    asked = scenario(seed)
    return {"cached_tokens_at_admission": [0] * len(asked["requests"]), **simulate(asked)}


@grouped(seed=seeds(500))
def test_the_core_agrees_with_the_reference(seed: int) -> None:
    asked = scenario(seed)
    requests, engine = workload(asked["requests"]), vllm_engine(asked)
    stretched = iq.simulate(requests, engine, batches=True)
    assert vllm_outcome(stretched) == _expected(seed)
    if seed % 5 == 0:
        stepped = iq.simulate(requests, engine, stepping=True)
        assert stretched.requests.equals(stepped.requests)
        assert stretched.itl.equals(stepped.itl)
        assert stretched.work_conservation() == stepped.work_conservation()


@cache
def _expected_with_drafts(seed: int) -> dict[str, list[Any]]:
    asked = with_drafts(seed)
    return {"cached_tokens_at_admission": [0] * len(asked["requests"]), **simulate(asked)}


@grouped(seed=seeds(500))
def test_the_core_agrees_with_the_reference_on_drafts(seed: int) -> None:
    asked = with_drafts(seed)
    requests, engine = workload(asked["requests"]), vllm_engine(asked)
    stretched = iq.simulate(requests, engine, batches=True)
    assert vllm_outcome(stretched) == _expected_with_drafts(seed)
    if seed % 5 == 0:
        stepped = iq.simulate(requests, engine, stepping=True)
        assert stretched.requests.equals(stepped.requests)
        assert stretched.itl.equals(stepped.itl)
        assert stretched.work_conservation() == stepped.work_conservation()


def test_the_random_drafts_reach_what_they_are_for() -> None:
    """Guards the test above: drafts cut by budgets, rows in vain, victims, hits, drafters, no proposals."""
    seen: Counter[str] = Counter()
    for seed in range(500):
        asked, expected = with_drafts(seed), _expected_with_drafts(seed)
        row = 1 + asked["speculation"]["tokens"]
        batches = [rows for _, rows in expected["iterations"]]
        seen["preempted"] += sum(expected["preemptions"]) > 0
        seen["found"] += sum(tokens > 0 for tokens in expected["cached_tokens_at_admission"]) > 0
        seen["sync"] += not asked["async_scheduling"]
        seen["ngram"] += asked["speculation"]["method"] == "ngram"
        rate = asked["speculation"].get("proposal_rate")
        rates = [row.get("proposal_rate", 1.0) for row in asked["requests"]] if rate is None else [rate]
        if asked["speculation"]["method"] == "ngram" and any(0 < rate < 1 for rate in rates):
            seen[f"some found, {'ahead' if asked['async_scheduling'] else 'sync'}"] += 1
        seen["several at once"] += any(emitted > 1 for rows in batches for _, _, emitted in rows)
        seen["cut"] += any(
            1 < tokens < row and emitted > 1 for rows in batches for _, tokens, emitted in rows
        )
    assert seen.pop("some found, ahead") > 50 and seen.pop("some found, sync") > 5, seen
    assert min(seen.values()) > 50 and len(seen) == 6, seen


def test_the_random_scenarios_reach_what_they_are_for() -> None:
    """Guards the test above: rows in vain, victims whose last token was in flight, pauses."""
    seen: Counter[str] = Counter()
    for seed in range(500):
        asked, expected = scenario(seed), _expected(seed)
        emitted = Counter(r for _, rows in expected["iterations"] for r, _, emits in rows if emits)
        outputs = [row["output_tokens"] for row in asked["requests"]]
        ends = [
            [start for start, rows in expected["iterations"] if any(r == at for r, _, _ in rows)][-1]
            for at in range(len(outputs))
        ]
        seen["preempted"] += sum(expected["preemptions"]) > 0
        seen["in vain"] += sum(emitted.values()) > sum(outputs)
        seen["found"] += sum(tokens > 0 for tokens in expected["cached_tokens_at_admission"]) > 0
        seen["paused"] += asked["pause_us"] > 0
        seen["sync"] += not asked["async_scheduling"]
        seen["left"] += any(last < finish for last, finish in zip(ends, expected["finish_us"], strict=True))
    assert min(seen[what] for what in ("preempted", "in vain", "found", "paused", "sync")) > 50, seen
