"""Sarathi: chunked prefills next to all decodes."""

from __future__ import annotations

import random
from typing import Any

import pytest

import inferq as iq

from ..agreement import frame
from ..policy import NO_COUNT, ORDERS, Described, Policy, drawn_preemption
from ..reference import Replica, ordered
from ..worked import (
    SECOND,
    SWAP,
    drawn,
    engine,
    instants,
    linear,
    of_class,
    request,
    simulate,
    used,
)


def draw(rng: random.Random, longest: int, classes: list[str]) -> Described:
    return {
        "kind": "Sarathi",
        "token_budget": rng.choice([3, 8, 16, 64, 512]),
        "max_seqs": rng.choice([1, 2, 4, 8, 128]),
        "watermark": rng.choice([0.0, 0.0, 0.01, 0.1]),
        "preemption": drawn_preemption(rng),
        "order": rng.choice(ORDERS),
    }


def rule(replica: Replica, rules: Described) -> None:
    replica.decode(replica.ready)  # C5.1
    replica.swap_in()  # before any admission
    for r in replica.unfinished:  # C5.2
        replica.place(r, r.owed)
    for r in ordered(replica.queue, rules["order"]):  # C5.3
        swapped = replica.of(replica.swapped)
        if swapped or r in replica.victims or not replica.budget or not replica.room(r, r.needs):
            return  # C8: a step with preemptions may admit, but not its own victims
        replica.place(r, r.owed, holding=r.needs)


DESCRIBED = {
    "kind": "Sarathi",
    "token_budget": 512,
    "max_seqs": 128,
    "order": "fcfs",
    "watermark": 0.01,
    "preemption": {"kind": "Recompute"},
}
POLICY = Policy(
    examples=[
        (iq.Sarathi(), DESCRIBED),
        *[(iq.Sarathi(order=order), {**DESCRIBED, "order": order}) for order in ("spf", "srf", "lpf")],
    ],
    wrong={
        "token_budget": NO_COUNT,
        "max_seqs": NO_COUNT,
        "watermark": [-0.1, 1.1, float("nan"), "0.01", None],
        "preemption": ["recompute", None, iq.Recompute, iq.Constant(1.0)],
        "order": ["lifo", "ljf", "FCFS", "ByKey", len, None, 1, {}],
    },
    errors=[
        ({"order": "ljf"}, "^order: .*'fcfs'.*ByKey"),
        ({"preemption": {"kind": "Swop"}}, r"^preemption\.kind: .*did you mean .?Swap"),
        ({"preemption": {"kind": "Recompute", "cost": 1}}, "^preemption: .*cost"),
    ],
    toml={
        'preemption = { kind = "Restart" }': iq.Sarathi(preemption=iq.research.Restart()),
        'order = "lpf"': iq.Sarathi(order="lpf"),
    },
    variants={"Sarathi": draw},
    rule=rule,
    rare=frozenset({"paused"}),  # its decodes nearly always fit the budget
    on_real_traces={
        "sarathi": iq.Sarathi(token_budget=2048, max_seqs=256),
        "spf": iq.Sarathi(token_budget=2048, max_seqs=256, order="spf"),
    },
)


# Worked cases.


def sarathi(**changed: Any) -> iq.Sarathi:
    return iq.Sarathi(**{"token_budget": 8, "max_seqs": 4, "watermark": 0, **changed})


def test_sarathi_chunks_next_to_decodes() -> None:
    """Budget 4, an iteration takes 10 ms + 1 ms per token. 0: p = 6, o = 3 at 0; 1: p = 3, o = 2 at 12 ms.

    ms   batch                                    length
     0   0 computes 4 of 6                        14
    14   0 its last 2 (first token), 1 2 of 3     14
    28   0 decodes, 1 its last 1 (first token)    12
    40   both decode and leave at 52              12
    """
    rows = [request(0, 6, 3), request(0.012, 3, 2)]
    outcome = simulate(rows, engine(sarathi(token_budget=4), linear(0.01, 0.001)))
    ms = SECOND // 1000
    assert drawn(outcome, ms) == ["0: 0+4", "14: 0+2* 1+2", "28: 0+1* 1+1*", "40: 0+1* 1+1*"]
    assert instants(outcome, ms) == [[28, 40, 52], [40, 52]]
    assert [r.admitted for r in outcome.requests] == [0, 14 * ms]
    assert [r.left for r in outcome.requests] == [52 * ms, 52 * ms]
    assert used(outcome) == [6, 9, 10, 12]  # Sarathi takes the whole prompt at admission: 6, then 3 more


def test_an_unfinished_prefill_is_preempted_for_a_decode() -> None:
    """spf, budget 3, 8 blocks. 0: p = 5, o = 1; 1: p = 2, o = 4; both at 0, so 1 runs first.

    2  1 finds no block: it is the latest, but itself last: 0 is preempted. It needs 5 again when 1 ends, at 4
    """
    rows = [request(0, 5, 1), request(0, 2, 4)]
    outcome = simulate(rows, engine(sarathi(order="spf", token_budget=3), tokens=8))
    assert drawn(outcome) == ["0: 1+2* 0+1", "1: 1+1* 0+2", "2: 1+1*", "3: 1+1*", "4: 0+3", "5: 0+2*"]
    assert used(outcome) == [7, 8, 4, 5, 5, 5]
    assert [r.preemptions for r in outcome.requests] == [1, 0]


@pytest.mark.parametrize(
    ("order", "batches"), [("spf", ["2: 0+1* 2+1*", "3: 1+6*"]), ("fcfs", ["2: 0+1*", "3: 1+6* 2+1*"])]
)
def test_sarathi_admits_in_a_step_that_preempted(order: str, batches: list[str]) -> None:
    """7 blocks. 0: p = 1, o = 3; 1: p = 4, o = 3; both at 0; 2: p = 1, o = 1 at 1.5.

    2  0 finds no block: 1 is preempted (5 blocks, 6 known tokens), 4 are free. With spf 2 is the head and
        gets in; with
       fcfs 1 is, and a victim is not taken back in its own step
    """
    rows = [request(0, 1, 3), request(0, 4, 3), request(1.5, 1, 1)]
    outcome = simulate(rows, engine(sarathi(order=order), tokens=7))
    assert drawn(outcome) == ["0: 0+1* 1+4*", "1: 0+1* 1+1*", *batches]


def test_sarathi_does_not_readmit_a_victim_in_the_same_step() -> None:
    """spf, budget 16, 13 blocks, five requests at 0 with o = 3 and p = 1, 1, 1, 4, 1.

    1  all decode: 2 + 2 + 2 + 5 + 2 blocks
    2  0 finds no block: 4 is preempted (2 blocks, for 0 and 1); 2 finds none: 3 is preempted (5 blocks), 4
        are free. 4 is the
       head and needs 3, but waits: 0, 1 and 2 decode alone, and leave
    """
    rows = [request(0, prompt, 3) for prompt in (1, 1, 1, 4, 1)]
    outcome = simulate(rows, engine(sarathi(order="spf", token_budget=16, max_seqs=5), tokens=13))
    assert drawn(outcome)[2:] == ["2: 0+1* 1+1* 2+1*", "3: 4+3* 3+6*"]
    assert used(outcome) == [8, 13, 9, 9]


@pytest.mark.parametrize(("order", "starts"), [("fcfs", [0, 1, 2]), ("spf", [2, 0, 1])])
def test_sarathi_order(order: str, starts: list[int]) -> None:
    """`max_seqs=1`, prompts 5, 2, 2, one token each: spf selects 1, 2 (earlier id first), 0."""
    rows = [request(0, 5, 1), request(0, 2, 1), request(0, 2, 1)]
    outcome = simulate(rows, engine(sarathi(order=order, max_seqs=1)))
    assert [r.admitted for r in outcome.requests] == [second * SECOND for second in starts]


def test_decodes_run_by_arrival_in_any_order_of_the_queue() -> None:
    """spf, budget 9, prompts 5, 2, 2, two tokens each: prefills 1, 2, 0, then decodes 0, 1, 2."""
    rows = [request(0, 5, 2), request(0, 2, 2), request(0, 2, 2)]
    outcome = simulate(rows, engine(sarathi(order="spf", token_budget=9)))
    assert drawn(outcome) == ["0: 1+2* 2+2* 0+5*", "1: 0+1* 1+1* 2+1*"]


def test_sarathi_swaps_out_an_unfinished_prefill() -> None:
    """Budget 3, 8 blocks, Swap. 0: p = 2, o = 5; 1: p = 5, o = 1; both at 0.

    0   0 computes 2*, 1 takes 5 blocks, computes 1: 7 blocks
    1   0 decodes (8 blocks), 1 computes 2 more
    2   0 finds no block: 1 is swapped out with a context of 3 (1 + 1.5 s); 0 decodes, 4 blocks, until 5.5
    5.5 1 needs 5 of 4 free: no; 0 decodes, and at 6.5 its last
    7.5 1 is swapped in (2.5 s), computes its last 2: first and only token at 11
    """
    rows = [request(0, 2, 5), request(0, 5, 1)]
    outcome = simulate(rows, engine(sarathi(token_budget=3, preemption=SWAP), tokens=8))
    batches = ["0: 0+2* 1+1", "10: 0+1* 1+2", "20: 0+1*", "55: 0+1*", "65: 0+1*", "75: 1+2*"]
    assert drawn(outcome, SECOND // 10) == batches
    assert used(outcome) == [7, 8, 4, 5, 6, 5]
    assert instants(outcome) == [[1, 2, 5.5, 6.5, 7.5], [11]]


def test_sarathi_restarts_a_victim() -> None:
    """8 blocks, Restart. 0 and 1: p = 2, o = 4 at 0.

    0, 1, 2  both prompts, both decode twice: 8 blocks, three tokens each
    3        0 finds no block: 1 is preempted and loses its three tokens; 0 decodes its last
    4        1 begins again with its prompt of 2, not with the 5 tokens that it knew
    5, 6, 7  1 decodes its three others
    """
    rows = [request(0, 2, 4), request(0, 2, 4)]
    described = engine(sarathi(preemption=iq.research.Restart()), tokens=8)
    outcome = simulate(rows, described)
    assert drawn(outcome) == [
        "0: 0+2* 1+2*", "1: 0+1* 1+1*", "2: 0+1* 1+1*", "3: 0+1*", "4: 1+2*", "5: 1+1*", "6: 1+1*", "7: 1+1*",
    ]  # fmt: skip
    assert used(outcome) == [4, 6, 8, 5, 2, 3, 4, 5]
    result = iq.simulate(frame(rows), iq.Engine.from_json(described))
    columns = ["first_token_s", "finish_s", "tpot_s", "max_itl_s", "preemptions", "discarded_tokens"]
    assert result.requests.select(columns).rows() == [(1, 4, 1, 1, 0, 0), (1, 8, 7 / 3, 2, 1, 3)]
    assert result.itl["count"].sum() == (4 - 1) + (
        4 + 3 - 1
    )  # one gap fewer than emitted tokens, discarded or not


QUEUE = [of_class("free", 0, 4, 1), of_class("free", 0, 2, 4), of_class("paying", 0, 3, 1)]


@pytest.mark.parametrize(("order", "admitted"), [("srf", [1, 2, 0]), ("lpf", [0, 2, 1])])
def test_sarathi_queue(order: str, admitted: list[int]) -> None:
    outcome = simulate(QUEUE, engine(sarathi(order=order, max_seqs=1)))
    assert [r.admitted for r in outcome.requests] == [second * SECOND for second in admitted]


@pytest.mark.parametrize(
    ("changed", "tokens", "bound"),
    [
        ({"max_seqs": 1}, None, "cap"),
        ({}, 5, "memory"),
        ({"watermark": 0.5}, 10, "memory"),  # 6 of 10 blocks are free, 5 remain free
        ({"max_seqs": 1}, 5, "cap"),  # the sequence limit is checked first
        ({"token_budget": 4}, None, "broken"),  # full: a larger budget would have loaded more
        ({}, None, "nothing"),
    ],
)
def test_audit_of_sarathi(changed: Described, tokens: int | None, bound: str) -> None:
    """Two prompts of 4 and 2 tokens, at 0."""
    outcome = simulate([request(0, 4, 1), request(0, 2, 1)], engine(sarathi(**changed), tokens=tokens))
    assert outcome.iterations[0].bound == bound
