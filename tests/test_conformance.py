"""Do core and slow reference do what real engines did, step by step? See conformance/README.md."""

from collections import Counter

import pytest

import inferq as iq

from . import reference, reference_sglang, reference_vllm
from .grouped import grouped
from .recordings import (
    Scenario,
    recorded,
    sglang_engine,
    sglang_outcome,
    vllm_engine,
    vllm_outcome,
    workload,
)

VLLM = [*recorded("vllm_v1"), *recorded("vllm_v1_prefix")]
AHEAD = [
    case
    for name in ("vllm_v1_async", "vllm_v1_async_prefix", "vllm_v1_async_stop", "vllm_v1_async_pause")
    for case in recorded(name)
]
DRAFTS = [
    case
    for name in ("vllm_v1_spec", "vllm_v1_async_spec", "vllm_v1_async_spec_stop")
    for case in recorded(name)
]
SGLANG, OVERLAP = recorded("sglang"), recorded("sglang_overlap")


def test_the_recordings_are_complete() -> None:
    assert (len(recorded("vllm_v1")), len(recorded("vllm_v1_prefix")), len(SGLANG)) == (120, 60, 101)
    assert sum(sum(case["expected"]["preemptions"]) > 0 for case in recorded("vllm_v1")) == 20
    assert sum(sum(case["expected"]["retractions"]) > 0 for case in SGLANG) > 20
    assert Counter(case["scenario"].get("ends", "length") for case in AHEAD) == {"length": 210, "stop": 60}
    assert sum(sum(case["expected"]["preemptions"]) > 0 for case in AHEAD) == 86
    assert Counter(case["scenario"].get("ends", "length") for case in OVERLAP) == {"length": 55, "stop": 35}
    assert sum(sum(case["expected"]["retractions"]) > 0 for case in OVERLAP) == 42
    assert Counter(case["scenario"].get("ends", "length") for case in DRAFTS) == {"length": 120, "stop": 30}
    assert sum(sum(case["expected"]["preemptions"]) > 0 for case in DRAFTS) > 40
    kinds = Counter(kind for case in SGLANG for _, kind, _ in case["expected"]["iterations"])
    assert set(kinds) == {"extend", "decode", "mixed"}


def _expected(case: Scenario) -> Scenario:
    """Of a vLLM without prefix cache, nothing was recorded about it."""
    return {"cached_tokens_at_admission": [0] * len(case["scenario"]["requests"]), **case["expected"]}


@grouped(place=range(len(VLLM)))
def test_every_batch_of_the_core_is_vllms(place: int) -> None:
    scenario = VLLM[place]["scenario"]
    result = iq.simulate(workload(scenario["requests"]), vllm_engine(scenario), batches=True)
    assert vllm_outcome(result) == _expected(VLLM[place])


@pytest.mark.parametrize("stepping", [False, True], ids=["stretches", "stepping"])
@grouped(place=range(len(AHEAD)))
def test_every_batch_of_the_core_is_vllms_that_plans_ahead(stepping: bool, place: int) -> None:
    scenario = AHEAD[place]["scenario"]
    requests = workload(scenario["requests"], scenario.get("ends", "length"))
    result = iq.simulate(requests, vllm_engine(scenario), batches=True, stepping=stepping)
    assert vllm_outcome(result) == _expected(AHEAD[place])


@pytest.mark.parametrize("stepping", [False, True], ids=["stretches", "stepping"])
@grouped(place=range(len(DRAFTS)))
def test_every_batch_of_the_core_is_vllms_with_drafts(stepping: bool, place: int) -> None:
    scenario = DRAFTS[place]["scenario"]
    requests = workload(scenario["requests"], scenario.get("ends", "length"))
    result = iq.simulate(requests, vllm_engine(scenario), batches=True, stepping=stepping)
    assert vllm_outcome(result) == _expected(DRAFTS[place])


def _microseconds(instant: int | None) -> int:
    whole, rest = divmod(instant or 0, 10**12)
    assert rest == 0
    return whole


@grouped(place=range(len(VLLM)))
def test_every_batch_of_the_reference_is_vllms(place: int) -> None:
    scenario = VLLM[place]["scenario"]
    rows = [{**row, "arrival_s": row["arrival_us"] / 1e6} for row in scenario["requests"]]
    outcome = reference.simulate(rows, vllm_engine(scenario).to_json())
    assert {
        "first_token_us": [_microseconds(r.first_token) for r in outcome.requests],
        "finish_us": [_microseconds(r.finish) for r in outcome.requests],
        "preemptions": [r.preemptions for r in outcome.requests],
        "cached_tokens_at_admission": [r.cached for r in outcome.requests],
        "iterations": [
            [_microseconds(i.start), [[request, tokens, int(emits)] for request, tokens, emits in i.rows]]
            for i in outcome.iterations
        ],
    } == _expected(VLLM[place])


@pytest.mark.parametrize("stepping", [False, True], ids=["stretches", "stepping"])
@grouped(place=range(len(SGLANG)))
def test_every_step_of_the_core_is_sglangs(stepping: bool, place: int) -> None:
    scenario = SGLANG[place]["scenario"]
    requests = workload(scenario["requests"])
    result = iq.simulate(requests, sglang_engine(scenario), batches=True, stepping=stepping)
    assert sglang_outcome(result) == SGLANG[place]["expected"]


@pytest.mark.parametrize("stepping", [False, True], ids=["stretches", "stepping"])
@grouped(place=range(len(OVERLAP)))
def test_every_step_of_the_core_is_sglangs_that_overlaps(stepping: bool, place: int) -> None:
    scenario = OVERLAP[place]["scenario"]
    requests = workload(scenario["requests"], scenario.get("ends", "length"))
    result = iq.simulate(requests, sglang_engine(scenario), batches=True, stepping=stepping)
    assert sglang_outcome(result) == OVERLAP[place]["expected"]


@grouped(place=range(len(AHEAD)))
def test_every_batch_of_the_reference_is_vllms_that_plans_ahead(place: int) -> None:
    assert reference_vllm.simulate(AHEAD[place]["scenario"]) == AHEAD[place]["expected"]


@grouped(place=range(len(DRAFTS)))
def test_every_batch_of_the_reference_is_vllms_with_drafts(place: int) -> None:
    assert reference_vllm.simulate(DRAFTS[place]["scenario"]) == DRAFTS[place]["expected"]


@grouped(place=range(len(SGLANG)))
def test_every_step_of_the_reference_is_sglangs(place: int) -> None:
    assert reference_sglang.simulate(SGLANG[place]["scenario"]) == SGLANG[place]["expected"]


@grouped(place=range(len(OVERLAP)))
def test_every_step_of_the_reference_is_sglangs_that_overlaps(place: int) -> None:
    assert reference_sglang.simulate(OVERLAP[place]["scenario"]) == OVERLAP[place]["expected"]
