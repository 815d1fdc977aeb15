"""VllmV0: whole prompts first, otherwise decodes."""

from __future__ import annotations

import random
from typing import Any

import inferq as iq

from ..policy import NO_COUNT, Described, Policy, drawn_preemption
from ..reference import Replica
from ..worked import SECOND, bounds, drawn, engine, instants, request, simulate, used


def draw(rng: random.Random, longest: int, classes: list[str]) -> Described:
    return {
        "kind": "VllmV0",
        "token_budget": rng.choice([8, 8, 16, 64, 512]),
        "max_seqs": rng.choice([1, 2, 4, 8, 128]),
        "watermark": rng.choice([0.0, 0.0, 0.01, 0.1]),
        "preemption": drawn_preemption(rng),
    }


def rule(replica: Replica, rules: Described) -> None:
    if rest := replica.unfinished:  # resumed, longer than the budget: alone
        return replica.place(rest[0], rest[0].owed)
    for r in replica.queue:  # C2.1: whole inputs; a longer (resumed) one only as the first
        if replica.swapped or (replica.rows and r.owed > replica.budget) or not replica.room(r, r.needs):
            break
        replica.place(r, r.owed, holding=r.needs)
    if not replica.rows:  # C2.2: an admitted prompt stalls the decodes
        replica.decode(replica.ready)  # C2.3
        replica.swap_in()  # C2.4


DESCRIBED = {"kind": "VllmV0", "token_budget": 4096, "max_seqs": 256, "watermark": 0.01}
SWAP = {"kind": "Swap", "per_token": 2e-7, "base": 0.001}
POLICY = Policy(
    examples=[
        (iq.VllmV0(), {**DESCRIBED, "preemption": {"kind": "Recompute"}}),
        (iq.VllmV0(preemption=iq.Swap(per_token=2e-7, base=0.001)), {**DESCRIBED, "preemption": SWAP}),
    ],
    wrong={
        "token_budget": NO_COUNT,
        "max_seqs": NO_COUNT,
        "watermark": [-0.1, 1.1, float("nan"), "0.01", None],
        "preemption": ["recompute", None, iq.Recompute, iq.Constant(1.0)],
    },
    toml={
        'preemption = { kind = "Restart" }': iq.VllmV0(preemption=iq.research.Restart()),
        "token_budget = 64": iq.VllmV0(token_budget=64),
    },
    variants={"VllmV0": draw},
    rule=rule,
    whole_prompts=lambda rules: True,
    on_real_traces={"vllm-v0": iq.VllmV0(token_budget=262_144, max_seqs=256)},
)


# Worked cases.


def vllm_v0(**changed: Any) -> iq.VllmV0:
    return iq.VllmV0(**{"token_budget": 8, "max_seqs": 4, "watermark": 0, **changed})


def test_vllm_v0_alternates() -> None:
    """0: p = 3, o = 3 at 0; 1: p = 2, o = 2 at 0.5. At 1 the new prompt stalls 0's decode."""
    outcome = simulate([request(0, 3, 3), request(0.5, 2, 2)], engine(vllm_v0()))
    assert drawn(outcome) == ["0: 0+3*", "1: 1+2*", "2: 0+1* 1+1*", "3: 0+1*"]
    assert instants(outcome) == [[1, 3, 4], [2, 3]]


def test_vllm_v0_resumed_input_longer_than_the_budget() -> None:
    """Budget 4, 10 blocks. 0 and 1: p = 4, o = 4 at 0; 2: p = 5 at 0.25; 3: p = 1, o = 1 at 5.5.

    .25  2's prompt passes the budget: rejected
    0, 1 one prompt each (4, then 8 blocks)
    2    both decode: 10 blocks
    3    0 finds no block: 1 is preempted, with 4 + 2 known tokens; 0 decodes
    4    1 needs 6 of 4 free: no; 0 emits its last
    5    1 alone: takes 6 blocks, computes 4
    6    1 alone: its last 2, though 3 waits and would fit: its third token
    7    3's prompt, prefill only
    8    1 decodes its last
    """
    rows = [request(0, 4, 4), request(0, 4, 4), request(0.25, 5, 1), request(5.5, 1, 1)]
    outcome = simulate(rows, engine(vllm_v0(token_budget=4), tokens=10))
    assert drawn(outcome) == [
        "0: 0+4*", "1: 1+4*", "2: 0+1* 1+1*", "3: 0+1*", "4: 0+1*", "5: 1+4", "6: 1+2*", "7: 3+1*", "8: 1+1*",
    ]  # fmt: skip
    assert used(outcome) == [4, 8, 10, 6, 7, 6, 6, 7, 7]
    rejected = outcome.requests[2]
    assert (rejected.status, rejected.left, rejected.admitted) == ("rejected", SECOND // 4, None)


def test_vllm_v0_admits_in_the_step_after_the_last_swapped_request_is_back() -> None:
    """Moves at no cost, 4 blocks of 2. 0: p = 3, o = 3; 1: p = 3, o = 5; both at 0; 2: p = 1, o = 1 at 2.5.

    0, 1  both prompts, both decode: 4 blocks, all full
    2     0 finds no block: 1 is swapped out with a context of 4; 0 decodes its last, 3 blocks
    3     1 is swapped in before 2 is admitted, with 3 blocks, and decodes
    4     nothing is swapped any more: 2's prompt, its only token, though 1 has a block for its next
    5, 6  1 decodes its last two
    """
    swap = iq.Swap(per_token=0, base=0)
    rows = [request(0, 3, 3), request(0, 3, 5), request(2.5, 1, 1)]
    outcome = simulate(rows, engine(vllm_v0(preemption=swap), tokens=8, block=2))
    assert drawn(outcome) == [
        "0: 0+3* 1+3*", "1: 0+1* 1+1*", "2: 0+1*", "3: 1+1*", "4: 2+1*", "5: 1+1*", "6: 1+1*",
    ]  # fmt: skip
    assert used(outcome) == [8, 8, 6, 6, 8, 6, 8]


def test_audit_of_vllm_v0() -> None:
    """li2025 (2.6): at 1 the prompt of 1 excludes 0's decode, for which budget and blocks are available."""
    outcome = simulate([request(0, 4, 3), request(0.5, 4, 1)], engine(vllm_v0()))
    assert drawn(outcome) == ["0: 0+4*", "1: 1+4*", "2: 0+1*", "3: 0+1*"]
    assert bounds(outcome) == ["nothing", "broken", "nothing", "nothing"]
