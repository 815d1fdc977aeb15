"""Caches whose layers keep different amounts: windows and states next to full attention."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import inferq as iq
from inferq.workload import parts

from .grouped import grouped
from .recordings import (
    Scenario,
    cut_prompts,
    every_iteration,
    recorded,
    vllm_engine_with_groups,
    vllm_outcome,
)

SEEDS = 200

CASES = [*recorded("vllm_hybrid"), *recorded("vllm_mamba")]


def _simulated(scenario: Scenario, *, stepping: bool = False) -> iq.Result:
    with cut_prompts(scenario["requests"], scenario.get("ends", "length")) as requests:
        return iq.simulate(requests, vllm_engine_with_groups(scenario), batches=True, stepping=stepping)


def _free_blocks(scenario: Scenario, result: iq.Result) -> list[int]:
    """Free blocks in each iteration of a run without stretches."""
    used = result.iterations["kv_used_tokens"]
    return [scenario["kv_blocks"] - tokens // scenario["block_tokens"] for tokens in used]


def test_the_recordings_are_complete() -> None:
    scenarios = [case["scenario"] for case in CASES]
    assert len(scenarios) == 119 + 112
    assert sum(scenario["async_scheduling"] for scenario in scenarios) == 89 + 86
    assert sum(scenario["prefix"] for scenario in scenarios) == 97 + 99
    assert sum(scenario.get("ends") == "stop" for scenario in scenarios) == 24 + 21


@pytest.mark.parametrize("stepping", [False, True], ids=["stretches", "stepping"])
@grouped(place=range(len(CASES)))
def test_every_batch_is_vllms(stepping: bool, place: int) -> None:
    scenario, expected = CASES[place]["scenario"], CASES[place]["expected"]
    first = {request: cached for _, request, cached, _ in reversed(expected["admissions"])}
    assert vllm_outcome(_simulated(scenario, stepping=stepping)) == {
        "first_token_us": expected["first_token_us"],
        "finish_us": expected["finish_us"],
        "preemptions": expected["preemptions"],
        "cached_tokens_at_admission": [first[request] for request in range(len(scenario["requests"]))],
        "iterations": [iteration[:2] for iteration in expected["iterations"]],
    }


@grouped(place=range(len(CASES)))
def test_free_blocks_are_vllms_after_every_plan(place: int) -> None:
    scenario, expected = CASES[place]["scenario"], CASES[place]["expected"]
    free = _free_blocks(scenario, _simulated(scenario, stepping=True))
    for now, (start, _, recorded_free) in zip(free, expected["iterations"], strict=True):
        # With asynchronous scheduling, blocks of a request that finishes at the start of a batch are free
        # when it starts, but not when it is planned.
        if not (scenario["async_scheduling"] and start in expected["finish_us"]):
            assert now == recorded_free


EXAMPLE: Scenario = {
    "kv_blocks": 24,
    "block_tokens": 16,
    "max_model_len": 200,
    "token_budget": 64,
    "max_seqs": 8,
    "policy": "fcfs",
    "long_prefill_threshold": 0,
    "reserve_full_prompt": True,
    "prefix": True,
    "retention_interval": 0,
    "async_scheduling": True,
    "price_us": {"base": 1000, "per_token": 10, "per_context_token": 0},
}


def _example(layers: list[Any], **fields: Any) -> tuple[list[int], list[int]]:
    """First tokens and free blocks of four requests, three of which begin like the first one."""
    turns = [(0, 100, 3), (9000, 120, fields.pop("last", 1)), (20_000, 80, fields.pop("third", 1))]
    turns.append((30_000, 70, turns[2][2]))
    rows: list[dict[str, Any]] = [
        {"arrival_us": at, "prompt_tokens": prompt, "output_tokens": output} for at, prompt, output in turns
    ]
    rows[0]["prefix_parts"] = [[1, 100]]
    rows[1]["continues"] = 0
    rows[2]["prefix_parts"] = [[1, 80]]
    rows[3]["prefix_parts"] = [[1, 70]]
    scenario = {**EXAMPLE, "layers": layers, "requests": rows, **fields}
    result = _simulated(scenario, stepping=True)
    return vllm_outcome(result)["first_token_us"], _free_blocks(scenario, result)


def test_a_shared_part_of_a_prompt_hits_from_the_third_request_on() -> None:
    """Checked against vLLM's engine: request 2 hits nothing and recomputes; request 3 hits 64 tokens."""
    first_tokens, free = _example([["full", 1, 0], ["sliding", 1, 40]])
    assert first_tokens == [3000, 10_240, 22_800, 31_060]
    assert free == [16, 10, 11, 13, 11, 16, 14, 15]


def test_retention_of_every_window_lets_the_second_request_hit() -> None:
    first_tokens, _ = _example([["full", 1, 0], ["sliding", 1, 40]], retention_interval=None)
    assert first_tokens[2] == 20_000 + 1000 + 10 * (80 - 64)


@pytest.mark.parametrize(
    ("alignment", "first_tokens", "free"),
    [
        (
            None,
            [4000, 11_240, 22_800, 31_060],
            [25, 22, 20, 21, 22, 21, 19, 20, 25, 23, 21, 23],
        ),
        (16, [3000, 10_240, 22_800, 31_060], [25, 20]),
    ],
)
def test_a_prompt_stops_where_a_state_can_be_kept(
    alignment: int | None, first_tokens: list[int], free: list[int]
) -> None:
    """Checked against vLLM's engine."""
    fields = {"checkpoint_alignment": alignment, "kv_blocks": 30, "last": 2, "third": 2}
    found, of_plans = _example(["full", "mamba"], **fields)
    assert found == first_tokens
    assert of_plans[: len(free)] == free


def _drawn(dice: random.Random) -> tuple[iq.Workload, iq.Engine]:
    """A random engine with groups, and requests with shared texts."""
    full = iq.CachedLayers(layers=dice.randint(1, 4), token_bytes=dice.choice([1, 2]))
    if dice.random() < 0.4:
        others = [iq.CachedLayers(layers=dice.randint(1, 6), state=True, token_bytes=full.token_bytes)]
    else:
        others = [
            iq.CachedLayers(
                layers=dice.randint(1, 8), window=dice.randint(2, 120), token_bytes=dice.choice([1, 2])
            )
            for _ in range(dice.randint(1, 2))
        ]
    groups = iq.KvGroups(
        kinds=[full, *others],
        retention_interval=dice.choice([None, 0, 32, 64]),
        saves_states_in_rows=dice.random() < 0.5,
    )
    engine = iq.Engine(
        timing=iq.PiecewiseLinear(base=1e-3, per_token=1e-5, per_context_token=1e-6),
        scheduler=iq.VllmV1(
            token_budget=dice.choice([32, 64, 256]),
            max_seqs=dice.choice([3, 8, 64]),
            long_prefill_threshold=dice.choice([0, 0, 24]),
            policy=dice.choice(["fcfs", "priority"]),
            reserve_full_prompt=dice.random() < 0.5,
            async_scheduling=dice.random() < 0.6,
        ),
        kv=iq.KvCache(
            tokens=16 * dice.randint(150, 900),
            prefix_cache=dice.choice([None, "blocks", "blocks"]),
            groups=groups,
        ),
        max_model_len=dice.choice([None, 700]),
    )
    count = dice.randint(5, 40)
    prompts = [dice.randint(1, 300) for _ in range(count)]
    columns = {
        "arrival_s": sorted(round(dice.uniform(0, 3), 3) for _ in range(count)),
        "prompt_tokens": prompts,
        "output_tokens": [dice.randint(1, 250) for _ in range(count)],
        "priority": [dice.randint(0, 2) for _ in range(count)],
        "prefix_parts": [[[dice.randint(0, 2), dice.randint(1, prompt)]] for prompt in prompts],
    }
    return iq.Workload(pl.DataFrame(columns)), engine


def _drawn_system(dice: random.Random, engine: iq.Engine) -> iq.Engine | iq.Cluster:
    """The engine, or a fleet whose router reads used blocks inside stretches."""
    if dice.random() < 0.7:
        return engine
    failures = iq.Failures(at=[(1.0, 0)], repair_s=0.2) if dice.random() < 0.3 else None
    return iq.Cluster(engine, replicas=2, router=iq.LeastKv(), failures=failures)


@grouped(seed=range(SEEDS))
def test_stretches_equal_stepping(seed: int) -> None:
    dice = random.Random(seed)
    requests, engine = _drawn(dice)
    system, horizon_s = _drawn_system(dice, engine), dice.choice([None, None, 1.5])
    stretches, steps = (
        iq.simulate(requests, system, batches=True, timeline_s=0.01, horizon_s=horizon_s, stepping=stepping)
        for stepping in (False, True)
    )
    assert stretches.requests.equals(steps.requests)
    assert stretches.timeline.equals(steps.timeline)
    assert stretches.block_operations.equals(steps.block_operations)
    assert sorted(every_iteration(stretches)) == sorted(every_iteration(steps))


def test_layers_of_one_kind_are_a_cache_without_groups() -> None:
    requests = iq.Workload(
        pl.DataFrame({"arrival_s": [0.0, 0.1], "prompt_tokens": [90, 40], "output_tokens": [50, 9]})
    )
    plain = iq.KvCache(tokens=480, prefix_cache="blocks")
    grouped_kv = replace(plain, groups=iq.KvGroups(kinds=[iq.CachedLayers(layers=32)]))
    runs = [
        iq.simulate(requests, iq.Engine(timing=iq.Constant(0.01), scheduler=iq.VllmV1(), kv=kv), batches=True)
        for kv in (plain, grouped_kv)
    ]
    assert vllm_outcome(runs[0]) == vllm_outcome(runs[1])


FULL, WINDOW = iq.CachedLayers(layers=2), iq.CachedLayers(layers=2, window=64)
STATE = iq.CachedLayers(layers=2, state=True)


@pytest.mark.parametrize(
    ("kinds", "what"),
    [
        ([WINDOW], r"groups\.kinds: must contain layers with full attention"),
        ([], r"groups\.kinds: must contain layers with full attention"),
        ([FULL, WINDOW, STATE], r"groups\.kinds: must not contain both windows and states"),
        ([FULL, replace(STATE, window=64)], r"groups\.kinds\[1\]\.window: must be None"),
        ([FULL, replace(WINDOW, window=1)], r"groups\.kinds\[1\]\.window: must be at least 2 tokens, got 1"),
        ([FULL, replace(WINDOW, layers=0)], r"groups\.kinds\[1\]\.layers: must be at least 1, got 0"),
        (
            [replace(FULL, token_bytes=3), replace(WINDOW, token_bytes=2)],
            r"groups\.kinds\[1\]\.token_bytes: must divide",
        ),
        ([FULL, replace(STATE, token_bytes=2)], r"groups\.kinds: must have equal token_bytes"),
    ],
)
def test_impossible_groups_are_refused(kinds: list[iq.CachedLayers], what: str) -> None:
    with pytest.raises(iq.ConfigError, match=what):
        iq.KvCache(tokens=4096, groups=iq.KvGroups(kinds=kinds))


def _engine(**fields: Any) -> iq.Engine:
    kv = iq.KvCache(tokens=4096, prefix_cache="blocks", groups=iq.KvGroups(kinds=[FULL, WINDOW]))
    return iq.Engine(**{"timing": iq.Constant(0.01), "scheduler": iq.VllmV1(), "kv": kv, **fields})


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        (
            {"scheduler": iq.Sarathi()},
            r"kv\.groups: is supported by the scheduler VllmV1 without speculation only",
        ),
        (
            {"scheduler": iq.VllmV1(speculation=iq.Speculation(tokens=2, acceptance=0.5))},
            r"kv\.groups: .*speculation",
        ),
        ({"first_token": "decode"}, r"first_token: must be \"prefill\" for a cache with groups"),
    ],
)
def test_groups_are_refused_where_they_are_not_supported(fields: dict[str, Any], what: str) -> None:
    with pytest.raises(iq.ConfigError, match=what):
        _engine(**fields)


@pytest.mark.parametrize(
    "system",
    [
        iq.Cluster(_engine(), replicas=2, router=iq.PrefixAffinity()),
        iq.Disaggregated(
            prefill=(_engine(), 1),
            decode=(_engine(), 1),
            link=iq.Link(latency_s=1e-5, bytes_per_token=1.0, bytes_per_s=1e9),
        ),
    ],
    ids=["prefix-aware router", "hand-offs"],
)
def test_systems_that_cannot_use_groups_are_refused(system: iq.Cluster | iq.Disaggregated) -> None:
    rows = {
        "arrival_s": [0.0, 0.1],
        "prompt_tokens": [90, 90],
        "output_tokens": [5, 5],
        "prefix_parts": [[["a", 80]]] * 2,
    }
    with pytest.raises(iq.ConfigError, match=r"kv\.groups: is not supported"):
        iq.simulate(rows, system)


def test_an_engine_with_groups_is_read_from_its_json() -> None:
    engine = _engine()
    rows = {"arrival_s": [0.0], "prompt_tokens": [90], "output_tokens": [50]}
    result = iq.simulate(rows, engine)
    assert iq.Scenario.read(result.scenario).system == engine


def test_conversations_in_parts_equal_the_run_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "ROWS", 4)
    turns = [(session, turn) for turn in range(4) for session in range(6)]
    rows = pl.DataFrame(
        {
            "arrival_s": [0.3 * turn + 0.02 * session for session, turn in turns],
            "prompt_tokens": [40 + 70 * turn for _, turn in turns],
            "output_tokens": [20 + session for session, _ in turns],
            "session_id": [str(session) for session, _ in turns],
            "turn": [turn for _, turn in turns],
        }
    )
    rows.write_parquet(tmp_path / "work.parquet")
    stored = iq.simulate(iq.Workload.scan(tmp_path / "work.parquet"), _engine(), out=tmp_path / "out")
    whole = iq.simulate(rows, _engine())
    assert int(whole.requests["cached_tokens"].sum()) > 0
    assert stored.requests.collect().equals(whole.requests)  # type: ignore[attr-defined]  # a lazy frame
    assert stored.block_operations.equals(whole.block_operations)


def test_theorems_that_count_tokens_in_memory_are_unknown() -> None:
    engine = _engine(scheduler=iq.VllmV1(async_scheduling=False))
    slow = iq.theory.RequestClass(rate=0.1, prompt=100, output=20)
    plain = replace(engine, kv=replace(engine.kv, groups=None))
    name = "every layer keeps every token"
    hypotheses = [h for bound in iq.theory.stability(slow, engine).bounds for h in bound.hypotheses]
    assert any(hypothesis.name == name and hypothesis.met is None for hypothesis in hypotheses)
    assert iq.theory.stability(slow, engine).verdict == "unknown"
    assert iq.theory.stability(slow, plain).verdict == "stable"
