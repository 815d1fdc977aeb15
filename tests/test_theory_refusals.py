"""Is what makes no sense refused by name, and is what is extreme finite or refused?"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest

import inferq as iq
from inferq.theory import (
    RequestClass,
    agree,
    allocation,
    fluid,
    kv_capacity,
    nested_wait_thresholds,
    observed,
    replicas_needed,
    request_level_capacity,
    request_memory,
    sequence_capacity,
    slot,
    stability,
    tile_capacity,
    token_capacity,
    wait_thresholds,
)

from .arriving import arriving
from .lin2026 import SLOTS
from .refusals import refused

CHAT = RequestClass(rate=3, prompt=129, output=112)
TIMING = iq.PiecewiseLinear(base=0.0455, per_token=0.0003, knee=64)
LLAMA = iq.research.MemoryLinear(base=0.015, per_kv_token=2.6e-7)
TILES = iq.research.TiledGemm(
    rows=4, columns=2, reduction=2, width=8, layers=1,
    linear_s_per_tile=0.5, other_s_per_token=0.01, gemm_s=0.01, gemv_s=0.01,
)  # fmt: skip
HUGE = 10**400


def engine(kv: iq.KvCache, scheduler: iq.Scheduler | None = None) -> iq.Engine:
    return iq.Engine(timing=TIMING, scheduler=scheduler or iq.Sarathi(), kv=kv)


def memory(**more: Any) -> object:
    return kv_capacity(CHAT, **{"kv_tokens": 10_000, "slot_s": 0.02, **more})


def fleet(**more: Any) -> object:
    return replicas_needed(CHAT, **{"kv_tokens": 10_000, "slot_s": 0.02, **more})


def plan(**more: Any) -> Any:
    return allocation(CHAT, **{**SLOTS, "abandonment": 0.1, **more})


# ---- memory below a request


@pytest.mark.parametrize(
    ("system", "field"),
    [
        (engine(iq.KvCache(tokens=200, block=1)), "engine.kv.tokens"),
        (iq.Cluster(engine(iq.KvCache(tokens=200, block=1)), replicas=2), "engines.kv.tokens"),
        (
            engine(iq.KvCache.unlimited(), iq.research.Orca(max_model_len=100)),
            "engine.scheduler.max_model_len",
        ),
        (
            engine(iq.KvCache(tokens=500), iq.research.FasterTransformer(max_model_len=900)),
            "engine.kv.tokens",
        ),
        (
            iq.Disaggregated(
                prefill=(engine(iq.KvCache.unlimited()), 1),
                decode=(engine(iq.KvCache(tokens=200, block=1)), 1),
                link=iq.Link(0.01, 1e9, 1.0),
            ),
            "decode.kv.tokens",
        ),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)  # fmt: skip
def test_a_system_that_can_serve_no_request_is_refused(system: Any, field: str):
    with pytest.raises(iq.ConfigError, match=f"^{field}: "):
        stability(CHAT, system)


def test_what_some_requests_lack_is_said_and_never_stable():
    half = RequestClass(rate=1e-3, prompt=iq.dist.Uniform(1, 100), output=1)
    # With the first token from the prompt the last one is not held: prompts up to 50 fit.
    found = stability(half, engine(iq.KvCache(tokens=50, block=1)))
    assert found.verdict == "unknown"
    assert found.never_served == pytest.approx(0.5)
    first = found.explain().splitlines()[0]
    assert first.startswith(
        "unknown: a share of 0.5 of all requests is too long to be served: a run rejects them"
    )
    fits = engine(iq.KvCache(tokens=100, block=1))
    assert stability(half, fits).never_served == 0
    mixed = iq.Cluster([fits, engine(iq.KvCache(tokens=20, block=1))])
    assert stability(half, mixed).never_served == pytest.approx(0.8)


def test_a_run_that_took_nobody_in_says_so():
    asked = arriving(300, 1, 100, 5)
    text = observed(iq.simulate(asked, engine(iq.KvCache(tokens=32)))).explain()
    assert "not known" not in text
    assert "no data: none of the requests was accepted" in text
    assert "300 of 300 requests were rejected" in text


# ---- thresholds near the limit


def test_least_thresholds_are_found_near_a_load_of_1():
    # One class: n > λ·(d0 + d1·w·n), so n is the next whole number above λ·d0/(1 − load).
    tokens = 11 * (10 + 10 / 2)
    for left in (1e-2, 1e-4, 1e-6):
        rate = 100.0
        one = RequestClass(rate=rate, prompt=10, output=10)
        timing = iq.research.MemoryLinear(base=0.0155, per_kv_token=(1 - left) / (rate * tokens))
        found = wait_thresholds(one, timing, first_token="decode")
        assert found.feasible
        assert found.thresholds["default"] == pytest.approx(
            rate * found.base_s / (1 - found.cache_load), rel=2e-12 / left, abs=1.01
        )
    timing = iq.research.MemoryLinear(base=0.0155, per_kv_token=(1 - 1e-12) / (rate * tokens))
    none = wait_thresholds(one, timing, first_token="decode")
    assert (none.feasible, dict(none.thresholds)) == (False, {})
    assert "below 1, too close for thresholds of at most 2,147,483,647" in none.reason
    nested = nested_wait_thresholds(one, timing, segments=1, iterations=10, first_token="decode")
    assert (nested.feasible, nested.thresholds) == (False, ())


def test_given_results_cannot_be_changed():
    found = wait_thresholds(CHAT, LLAMA)
    assert hash(found) == hash(wait_thresholds(CHAT, LLAMA))
    with pytest.raises(TypeError):
        found.thresholds["default"] = 1  # type: ignore[index]
    rows = agree(CHAT, engine(iq.KvCache.unlimited()), requests=300, seeds=[1]).rows
    with pytest.raises(TypeError):
        rows[0]["theory"] = 1.0  # type: ignore[index]


def test_blocks_of_a_cache_without_a_limit_do_not_matter():
    wait = iq.Engine(timing=LLAMA, scheduler=iq.research.Wait(thresholds=50), kv=iq.KvCache.unlimited())
    assert wait.kv.block == 16
    found = stability(RequestClass(rate=100, prompt=10, output=10), wait)
    assert found.verdict == "stable"
    assert "of not known tokens" not in found.explain()


# ---- a plan is for the cluster that it was made for


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("slots", 8),
        ("chunk", 128),
        ("prices", iq.Prices(prefill=0.1, decode=0.3)),
        ("timing", iq.research.MixedSolo(alpha=0.0174, beta=6.2e-5, solo=0.023)),
        ("abandonment", 0.2),
        ("abandonment", None),
        ("abandonment", {"default": 0.3}),
    ],
)
def test_a_plan_for_another_cluster_is_refused(field: str, value: object):
    made = plan()
    right = {**SLOTS, "abandonment": 0.1, "replicas": 3}
    assert iq.research.GateAndRoute(made, **right).allocation == made.allocation
    assert iq.research.GateAndRoute(made, **{**right, "abandonment": {"default": 0.1}}).slots == 16
    wrong = {**right, field: value}
    with pytest.raises(iq.ConfigError, match=f"^{field}: .* differs from the plan, made for "):
        iq.research.GateAndRoute(made, **wrong)
    assert iq.research.GateAndRoute(made.allocation, **wrong).allocation == made.allocation


# ---- arguments


@refused(
    (lambda: agree(CHAT, engine(iq.KvCache.unlimited()), seeds=1.5), "seeds"),  # type: ignore[arg-type]
    (lambda: agree(CHAT, engine(iq.KvCache.unlimited()), seeds="12"), "seeds"),  # type: ignore[arg-type]
    (lambda: agree(CHAT, engine(iq.KvCache.unlimited()), seeds=[1.5]), r"seeds\[0\]"),  # type: ignore[list-item]
    (lambda: agree(CHAT, engine(iq.KvCache.unlimited()), seeds=[1, -1]), r"seeds\[1\]"),
    (
        lambda: agree(CHAT, engine(iq.KvCache.unlimited()), seeds=[1, 2, 1]),
        r"seeds\[2\]: must be unique, got 1 twice",
    ),
    (lambda: memory(slot_s=1e-320), "slot_s"),
    (lambda: memory(slot_s=1e308), "slot_s"),
    (lambda: memory(slot_s={"default": 1e-320}), r"slot_s\['default'\]"),
    (lambda: memory(kv_tokens=HUGE), "kv_tokens"),
    (lambda: memory(chunk=HUGE), "chunk"),
    (lambda: memory(rate=HUGE), "rate"),
    (lambda: fleet(utilization=1e-320), "utilization"),
    (lambda: plan(tpot_s=1e308), "tpot_s"),
    (lambda: plan(tpot_s=1e-320), "tpot_s"),
    (lambda: plan(decode_fairness_penalty=1e308), "decode_fairness_penalty"),
    (lambda: plan(slots=HUGE), "slots"),
    (lambda: plan(chunk=HUGE), "chunk"),
    (lambda: plan(replicas=HUGE), "replicas"),
    (lambda: plan(seed="x"), "seed"),
    (lambda: plan(abandonment=1e308), "abandonment"),
    (lambda: plan(prices=iq.Prices(prefill=1e-320, decode=1)), "prices.prefill"),
    (lambda: token_capacity(CHAT, TIMING, token_budget=HUGE), "token_budget"),
    (lambda: token_capacity(CHAT, TIMING, token_budget=512, engines=HUGE), "engines"),
    (lambda: sequence_capacity(CHAT, TIMING, max_seqs=HUGE), "max_seqs"),
    (lambda: request_level_capacity(CHAT, TIMING, max_seqs=HUGE), "max_seqs"),
    (lambda: tile_capacity(CHAT, TILES, engines=HUGE), "engines"),
    (lambda: tile_capacity(CHAT, TILES, requests_per_cycle=HUGE), "requests_per_cycle"),
    (lambda: fluid(CHAT, LLAMA, kv_tokens=HUGE), "kv_tokens"),
    (lambda: fluid(CHAT, LLAMA, rate=1e308), "rate"),
    (lambda: RequestClass(rate=1e-320, prompt=1, output=1), "class 'default': rate"),
    (lambda: RequestClass(rate=HUGE, prompt=1, output=1), "class 'default': rate"),
    (lambda: RequestClass(rate=1, prompt=0, output=1), "class 'default': prompt: tokens"),
    (lambda: RequestClass(rate=1, prompt=1, output=1, abandonment=HUGE), "class 'default': abandonment"),
    (lambda: wait_thresholds(CHAT, LLAMA, rate=1e-320, thresholds=3), "rate"),
    (lambda: wait_thresholds(CHAT, LLAMA, rate=1e308), "rate"),
    (lambda: wait_thresholds(CHAT, LLAMA, strict="x"), "strict"),  # type: ignore[arg-type]
    (lambda: wait_thresholds(CHAT, LLAMA, margin=1e308), "margin"),
    (lambda: wait_thresholds(CHAT, LLAMA, thresholds=HUGE), "thresholds"),
    (lambda: wait_thresholds(CHAT, LLAMA, periods=[(1, {"default": 1e308})]), "periods"),
    (lambda: wait_thresholds(CHAT, LLAMA, periods=[(1e308, {"default": 1})]), "periods"),
    (lambda: request_memory("x", 5), "prompt_tokens"),
    (lambda: request_memory({}, 5), "prompt_tokens"),
    (lambda: request_memory(1 + 2j, 5), "prompt_tokens"),
    (lambda: request_memory(True, 5), "prompt_tokens"),
    (lambda: request_memory(5, "x"), "output_tokens"),
    (lambda: request_memory([[1], [2, 3]], 5), "prompt_tokens"),
    (lambda: request_memory([1, 2], [1, 2, 3]), "output_tokens"),
    (lambda: request_memory(1e200, 5), "prompt_tokens"),
    (lambda: request_memory(math.nan, 5), "prompt_tokens"),
    (lambda: request_memory(5, 5, whole_chunks="x"), "whole_chunks"),  # type: ignore[call-overload]
    (lambda: slot({}), "recorded: must be .* the column count is missing"),
    (lambda: slot(None), "recorded: must be .* got None"),  # type: ignore[arg-type]
    (lambda: slot({"count": ["x"], "first_s": [1.0], "growth_s": [0.0]}), "recorded: count"),  # type: ignore[list-item]
    pattern="^{}",
)
def test_an_argument_that_makes_no_sense_is_named(call: Callable[[], object]):
    call()


def test_nothing_is_asked_of_no_requests():
    assert request_memory([], []).shape == (0,)


def numbers_in(result: object) -> list[float]:
    if isinstance(result, float):
        return [result]
    if isinstance(result, (tuple, list)):
        return [one for part in result for one in numbers_in(part)]
    if dataclasses.is_dataclass(result):
        return [
            one for field in dataclasses.fields(result) for one in numbers_in(getattr(result, field.name))
        ]
    return []


@pytest.mark.parametrize("rate", [1e-9, 1e12])
def test_the_ends_of_what_is_allowed_are_finite(rate: float):
    one = RequestClass(rate=rate, prompt=129, output=112)
    most = 2**31 - 1
    found = [
        token_capacity(one, TIMING, token_budget=most, engines=most),
        sequence_capacity(one, TIMING, max_seqs=most, token_budget=1),
        request_level_capacity(one, TIMING, max_seqs=most),
        tile_capacity(one, TILES, requests_per_cycle=most, engines=most),
        fluid(one, LLAMA, kv_tokens=2**62),
        wait_thresholds(one, LLAMA),
        wait_thresholds(one, LLAMA, thresholds=most),
        *(
            kv_capacity(one, kv_tokens=tokens, slot_s=slot_s, chunk=2**62)
            for tokens in (241, 2**62)
            for slot_s in (1e-12, 1e9)
        ),
        replicas_needed(one, kv_tokens=241, slot_s=1e9, utilization=1e-9),
        *(
            allocation(one, **{**SLOTS, "abandonment": 0.1, **more})
            for more in (
                {"tpot_s": 1e9},
                {"decode_fairness_penalty": 1e9},
                {"prefill_fairness_penalty": 1e9},
                {"tpot_penalty": 1e9},
                {"slots": 2**24},
            )
            if rate < 1
        ),
    ]
    for one_found in found:
        assert all(math.isfinite(number) for number in numbers_in(one_found)), one_found
        assert "nan" not in one_found.explain()
