"""VllmV1: one list of running requests, prompts and decodes."""

from __future__ import annotations

import random
from typing import Any

import inferq as iq

from ..policy import NO_COUNT, Described, Policy
from ..reference import Replica, Request
from ..worked import SECOND, drawn, engine, instants, preemptions, request, simulate, used


def draw(rng: random.Random, longest: int, classes: list[str]) -> Described:
    return {
        "kind": "VllmV1",
        "token_budget": rng.choice([3, 8, 16, 64, 512]),
        "max_seqs": rng.choice([1, 2, 4, 8, 128]),
        "long_prefill_threshold": rng.choice([0, 0, 4, 10]),
        "policy": rng.choice(["fcfs", "priority"]),
        "reserve_full_prompt": rng.choice([True, False]),
        "async_scheduling": False,
    }


def rule(replica: Replica, rules: Described) -> None:
    def rank(r: Request) -> tuple[int, Request]:  # with fcfs the list runs by arrival: the last is worst
        return (r.priority if rules["policy"] == "priority" else 0, r)

    running = replica.of(replica.running)
    lone = len(running) + len(replica.queue) <= 1
    longest = rules["token_budget"] if lone else rules["long_prefill_threshold"] or rules["token_budget"]
    for r in running:  # C1.1, in list order
        if r in replica.running and replica.budget:
            tokens = min(r.owed, longest, replica.budget)  # C1.1.2
            while r in replica.running and replica.lacks(r, r.computed + tokens) > replica.free:
                replica.preempt(replica.victim(max(replica.of(replica.running), key=rank)))  # C1.1.4
            if r in replica.running:
                replica.place(r, tokens)  # C1.1.5
            elif rules["policy"] == "fcfs":  # by priority, continue with the next request
                break
    for r in sorted(replica.queue, key=rank):  # C1.2
        tokens = min(r.owed, longest, replica.budget)  # C1.2.3
        checked = r.needs if rules["reserve_full_prompt"] else r.computed + tokens  # C1.2.4
        if replica.victims or not replica.budget or not replica.room(r, checked):
            return
        replica.place(r, tokens)  # C1.2.6


DESCRIBED = {
    "kind": "VllmV1",
    "token_budget": 2048,
    "max_seqs": 128,
    "long_prefill_threshold": 0,
    "policy": "fcfs",
    "reserve_full_prompt": True,
    "async_scheduling": True,
    "pause_s": None,
    "speculation": None,
}
POLICY = Policy(
    examples=[
        (iq.VllmV1(), DESCRIBED),
        (iq.VllmV1(policy="priority"), {**DESCRIBED, "policy": "priority"}),
        (
            iq.VllmV1(async_scheduling=False, pause_s=0.0),
            {**DESCRIBED, "async_scheduling": False, "pause_s": 0.0},
        ),
        (
            iq.VllmV1(
                speculation=iq.Speculation(tokens=3, acceptance=[0.8, 0.5, 0.4], drafter=iq.Constant(0.002))
            ),
            {
                **DESCRIBED,
                "speculation": {
                    "tokens": 3,
                    "acceptance": [0.8, 0.5, 0.4],
                    "method": "eagle",
                    "seed": 0,
                    "drafter": {"kind": "Constant", "seconds": 0.002},
                    "proposal_rate": None,
                },
            },
        ),
    ],
    wrong={
        "token_budget": NO_COUNT,
        "max_seqs": NO_COUNT,
        "policy": ["spf", "", None, 1],
        "long_prefill_threshold": [-1, 0.5, None],
        "reserve_full_prompt": [1, "yes", None],
        "async_scheduling": [1, "yes", None],
        "pause_s": [-0.001, float("inf"), float("nan"), True, "1"],
        "speculation": [3, True, "eagle"],
    },
    errors=[
        (
            {"async_scheduling": False, "pause_s": 0.001},
            "^pause_s: must be 0 without async_scheduling, got 0.001",
        )
    ],
    toml={
        'policy = "priority"': iq.VllmV1(policy="priority"),
        "speculation = {tokens = 2, acceptance = 0.5, drafter = 0.1}": iq.VllmV1(
            speculation=iq.Speculation(tokens=2, acceptance=0.5, drafter=0.1)
        ),
    },
    variants={"VllmV1": draw},
    rule=rule,
    rare=frozenset({"paused"}),  # its decodes nearly always fit the budget
    on_real_traces={"vllm-v1": iq.VllmV1(token_budget=2048, max_seqs=256, async_scheduling=False)},
)


# Worked cases.


def vllm_v1(**changed: Any) -> iq.VllmV1:
    return iq.VllmV1(**{"token_budget": 8, "max_seqs": 4, "async_scheduling": False, **changed})


def test_vllm_v1_victim_that_is_placed_gives_its_tokens_back() -> None:
    """priority, budget 3, 11 blocks. 0: p = 1, o = 6, priority 1; 1: p = 1, o = 5 and 2: p = 6, o = 1 at 1.

    1-3  0 and 1 compute one token each, 2 the rest, 1: at the end 10 blocks (4, 3, 3)
    4    0 takes the last block; 1 finds none: 0, the worst, leaves the batch; 2 computes 2, not 1
    5    1 and 2 end; 0 (knows 5) finds no room until 6
    """
    rows = [request(0, 1, 6, priority=1), request(1, 1, 5), request(1, 6, 1)]
    outcome = simulate(rows, engine(vllm_v1(token_budget=3, policy="priority"), tokens=11))
    assert drawn(outcome) == [
        "0: 0+1*", "1: 0+1* 1+1* 2+1", "2: 0+1* 1+1* 2+1", "3: 0+1* 1+1* 2+1",
        "4: 1+1* 2+2", "5: 1+1* 2+1*", "6: 0+3", "7: 0+2*", "8: 0+1*",
    ]  # fmt: skip
    assert used(outcome) == [1, 4, 7, 10, 9, 11, 3, 5, 6]


def test_vllm_v1_continues_by_priority_behind_its_own_victim() -> None:
    """priority, 9 blocks. 0: p = 1, o = 5 and 1: p = 1, o = 5, priority 1, at 0; 2: p = 1, o = 3 at 1.

    3  0 takes the ninth block; 1 finds none and is itself the worst: it is preempted, and 2 behind it takes
    one of
       its three (vLLM 0.33; up to 0.32 the running phase ended there)
    4  2 has ended, and 0 takes its last block; 1 knows 4 and finds as many
    5  0 has ended
    """
    rows = [request(0, 1, 5), request(0, 1, 5, priority=1), request(1, 1, 3)]
    outcome = simulate(rows, engine(vllm_v1(policy="priority"), tokens=9))
    assert drawn(outcome) == [
        "0: 0+1* 1+1*", "1: 0+1* 1+1* 2+1*", "2: 0+1* 1+1* 2+1*", "3: 0+1* 2+1*", "4: 0+1* 1+4*", "5: 1+1*",
    ]  # fmt: skip
    assert used(outcome) == [2, 5, 8, 7, 9, 5]


def test_the_first_of_the_running_may_be_its_own_victim() -> None:
    """priority, 5 blocks. 0: p = 2, o = 3, priority 1, at 0; 1: p = 2, o = 3 at 1.

    2  0 finds no block and is itself the worst: it is preempted, and 1 decodes
    """
    rows = [request(0, 2, 3, priority=1), request(1, 2, 3)]
    outcome = simulate(rows, engine(vllm_v1(policy="priority"), tokens=5))
    assert drawn(outcome) == ["0: 0+2*", "1: 0+1* 1+2*", "2: 1+1*", "3: 1+1*", "4: 0+4*"]


def test_several_victims_keep_their_order_and_prefill_their_outputs() -> None:
    """priority, chunks of 12, ten blocks of 4. 0: p = 36, o = 2; 1 and 2: p = 4, o = 3, priority 1; all at 0.

    0  3 + 1 + 1 blocks
    1  3 more for the chunk, one for each decode: all ten are taken
    2  the chunk needs 3: 2 gives 2, then 1 gives 2. 3 (p = o = 1) arrives, is first by priority and would
       fit the block that is left, but the step has preempted
    3  0 takes the last block and ends
    4  all others; 1's gap from 2 to 5 is one
    """
    rows = [request(0, 36, 2), *[request(0, 4, 3, priority=1)] * 2, request(2, 1, 1)]
    scheduler = vllm_v1(
        token_budget=64, long_prefill_threshold=12, policy="priority", reserve_full_prompt=False
    )
    outcome = simulate(rows, engine(scheduler, tokens=40, block=4))
    assert drawn(outcome) == [
        "0: 0+12 1+4* 2+4*", "1: 0+12 1+1* 2+1*", "2: 0+12*", "3: 0+1*", "4: 3+1* 1+6* 2+6*",
    ]  # fmt: skip
    assert [(r.admitted or 0) // SECOND for r in outcome.requests] == [0, 0, 0, 4]
    assert instants(outcome) == [[3, 4], [1, 2, 5], [1, 2, 5], [5]]
    assert preemptions(outcome) == [0, 1, 1, 0]


def test_the_head_of_the_queue_blocks_the_others() -> None:
    """Ten blocks: 1 needs 8 where 5 are free; 2 would fit and waits behind it."""
    rows = [request(0, 5, 2), request(0, 8, 1), request(0, 1, 1)]
    outcome = simulate(rows, engine(vllm_v1(token_budget=64), tokens=10))
    assert [r.admitted for r in outcome.requests] == [0, 2 * SECOND, 2 * SECOND]
