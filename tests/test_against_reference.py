"""Does the fast core agree with the slow reference on every timestamp, batch and preemption?"""

from collections import Counter
from functools import cache

import pytest

from . import random_scenarios, reference
from .agreement import assert_agrees
from .grouped import grouped
from .night import seeds
from .policies import POLICIES
from .random_scenarios import KINDS, scenario

_SEEDS, _SHARING_SEEDS = seeds(240), seeds(75)


@cache
def _outcome(kind: str, seed: int) -> reference.Outcome:
    engine, requests, horizon_s = scenario(kind, seed)
    return reference.simulate(requests, engine, horizon_s)


@cache
def _sharing_outcome(kind: str, seed: int) -> reference.Outcome:
    engine, requests, horizon_s = random_scenarios.sharing(kind, seed)
    return reference.simulate(requests, engine, horizon_s)


@pytest.mark.parametrize("kind", KINDS)
@grouped(seed=_SEEDS)
def test_the_core_agrees_with_the_reference(kind: str, seed: int) -> None:
    engine, requests, horizon_s = scenario(kind, seed)
    assert_agrees(requests, engine, horizon_s, _outcome(kind, seed))


@pytest.mark.parametrize("kind", KINDS)
@grouped(seed=_SHARING_SEEDS)
def test_the_core_agrees_with_the_reference_where_prompts_begin_alike(kind: str, seed: int) -> None:
    engine, requests, horizon_s = random_scenarios.sharing(kind, seed)
    assert_agrees(requests, engine, horizon_s, _sharing_outcome(kind, seed))


def _pauses(outcome: reference.Outcome) -> int:
    """Requests that were left out of a batch between two of theirs, never preempted."""
    places: dict[int, list[int]] = {r.id: [] for r in outcome.requests if r.preemptions == 0}
    for at, iteration in enumerate(outcome.iterations):
        for request, _, _ in iteration.rows:
            places.get(request, []).append(at)
    return sum(at[-1] - at[0] >= len(at) for at in places.values() if at)


@pytest.mark.parametrize("kind", KINDS)
def test_the_random_scenarios_reach_what_they_are_for(kind: str) -> None:
    """Guards the tests above: all that a policy can meet happens, and every reason in the audit."""
    rules = scenario(kind, 0)[0]["scheduler"]
    policy = POLICIES[rules["kind"]]
    impossible = policy.impossible | POLICIES[rules.get("inner", rules)["kind"]].impossible
    everything = {"finished", "rejected", "abandoned", "unfinished", "preempted", "paused", "drained"}
    everything |= {"broken", "cap", "memory", "nothing"}
    seen: Counter[str] = Counter()
    for seed in _SEEDS:
        outcome = _outcome(kind, seed)
        seen.update(request.status for request in outcome.requests)
        seen.update({iteration.bound for iteration in outcome.iterations})
        seen["preempted"] += sum(request.preemptions > 0 for request in outcome.requests)
        seen["paused"] += _pauses(outcome)
        seen["drained"] += outcome.drains
    assert min(seen[what] for what in everything - impossible - policy.rare) > 1, seen
    assert not any(seen[what] for what in impossible), seen

    seen.clear()
    for seed in _SHARING_SEEDS:
        requests = _sharing_outcome(kind, seed).requests
        seen["found"] += sum(r.cached > 0 for r in requests)
        seen["not found"] += sum(r.cached == 0 for r in requests)
        seen["preempted"] += sum(r.preemptions > 0 for r in requests)
    assert seen["found"] > 50 and seen["not found"] > 100
    assert seen["preempted"] > 0 or "preempted" in impossible


def _follows_the_laws(kind: str, seed: int) -> None:
    engine, requests, horizon_s = scenario(kind, seed)
    rules, kv, outcome = engine["scheduler"], engine["kv"], _outcome(kind, seed)
    limits = rules.get("inner", rules)
    most_seqs, most_tokens = POLICIES[limits["kind"]].bounds(limits)
    assert horizon_s is not None or len(outcome.requests) == len(requests)  # L1
    for before, after in zip(outcome.iterations, outcome.iterations[1:], strict=False):
        assert before.start + before.length <= after.start  # L3
    for iteration in outcome.iterations:  # L7
        assert 0 < len(iteration.rows) <= (most_seqs or len(requests))
        assert len({request for request, _, _ in iteration.rows}) == len(iteration.rows)
        tokens = sum(tokens for _, tokens, _ in iteration.rows)
        assert most_tokens is None or tokens <= most_tokens
        assert kv["tokens"] is None or iteration.kv_used_tokens <= kv["tokens"]
    once = {r.id: r.prompt + r.output - (engine["first_token"] == "prefill") for r in outcome.requests}
    keeps = rules["kind"] == "SlotGreedy" or limits.get("preemption", {}).get("kind") == "Swap"
    for r in outcome.requests:
        assert r.status in ("finished", "rejected", "abandoned") or horizon_s is not None  # L1
        assert r.blocks == 0 or r.status == "unfinished"  # L4
        rows = [(i, n, emits) for i in outcome.iterations for at, n, emits in i.rows if at == r.id]
        assert r.discards + r.tokens == [i.start + i.length for i, _, emits in rows if emits]  # L5
        assert (len(r.tokens) == r.output) == (r.status == "finished")
        if r.status == "finished":  # L2
            assert r.admitted == rows[0][0].start
            assert r.arrival <= r.admitted < (r.discards + r.tokens)[0] == r.first_token
            assert r.tokens[-1] == r.finish == r.left
            computed = sum(n for _, n, _ in rows)
            assert computed == once[r.id] if keeps or r.preemptions == 0 else computed > once[r.id]
        elif r.status != "unfinished":
            assert r.admitted is None
            assert r.left == (r.gives_up if r.status == "abandoned" else r.arrival)
    if horizon_s is None and not any(r.preemptions for r in outcome.requests):
        _assert_blocks(outcome, limits["kind"], kv["block"])


def _assert_blocks(outcome: reference.Outcome, kind: str, block: int) -> None:
    """Where nothing was preempted: the blocks used are those of each live context, or of the prompt held."""
    if kind not in ("Sarathi", "VllmV0", "VllmV1"):
        return
    contexts = dict.fromkeys(range(len(outcome.requests)), 0)
    for iteration in outcome.iterations:
        for at, n, _ in iteration.rows:
            contexts[at] += n
        live = [r for r in outcome.requests if contexts[r.id] and (r.left or 0) > iteration.start]
        holds = [max(contexts[r.id], r.prompt if kind != "VllmV1" else 0) for r in live]
        assert iteration.kv_used_tokens == sum(-(-tokens // block) * block for tokens in holds)


@pytest.mark.parametrize("kind", KINDS)
def test_the_reference_follows_the_laws(kind: str) -> None:
    """L1 to L5 and L7; requests `unfinished` at the end of a run without a horizon have been forgotten."""
    for seed in _SEEDS:
        _follows_the_laws(kind, seed)
