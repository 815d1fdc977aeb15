"""SlotGreedy: by arrival, requests whose next step fits, the others out of memory (nie2026)."""

from __future__ import annotations

import random

import inferq as iq

from ..policy import NO_COUNT, Described, Policy
from ..reference import Replica, Request
from ..worked import bounds, drawn, engine, instants, preemptions, request, simulate, used


def draw(rng: random.Random, longest: int, classes: list[str]) -> Described:
    return {"kind": "SlotGreedy", "chunk": rng.choice([4, 16, 512])}


def rule(replica: Replica, rules: Described) -> None:
    """nie2026 3: by arrival, requests whose next step fits, the others out of memory; then new ones."""
    left = replica.free + sum(r.blocks for r in replica.running)  # transfers keep their blocks
    if replica.cache:  # each counts with all blocks, as if none were shared
        left = replica.total - replica.sent
    steps: dict[Request, int] = {}
    for r in sorted(replica.running + replica.swapped):
        step = min(rules["chunk"], r.owed)
        if (blocks := r.blocks + replica.lacks(r, r.computed + step)) <= left:
            left, steps[r] = left - blocks, step
        else:
            replica.refused = "memory"
    for r in [r for r in replica.running if r not in steps]:
        replica.preempt(r)
    for r, step in steps.items():
        replica.place(r, step)
    for r in replica.queue:
        tokens = r.computed + min(rules["chunk"], r.owed)
        if not replica.room(r, tokens):
            return
        if (left := left + tokens // -replica.block) < 0 and replica.cache:
            replica.refused = "memory"
            return
        replica.place(r, min(rules["chunk"], r.owed))


POLICY = Policy(
    examples=[(iq.research.SlotGreedy(), {"kind": "SlotGreedy", "chunk": 512})],
    wrong={"chunk": NO_COUNT},
    toml={"chunk = 256": iq.research.SlotGreedy(chunk=256)},
    variants={"SlotGreedy": draw},
    rule=rule,
    impossible=frozenset({"drained", "cap"}),
    rare=frozenset({"paused"}),  # decodes nearly always continue
    on_real_traces={"slot-greedy": iq.research.SlotGreedy(chunk=2048)},
)


# Worked cases.


def test_slot_greedy_steps_out_at_no_cost() -> None:
    """6 blocks, chunks of 2. 0: p = 3, o = 3; 1: p = 2, o = 3; 2: p = 1, o = 1; all at 0.

    0  2 + 2 + 1 blocks                     1  0's last 1 and 1's decode: 3 + 3 blocks; 2 has left
    2  0 needs 4, 1 needs 4: it steps out   3  0 needs 5, 1 stays out
    4  1 returns with its 3 and decodes immediately
    """
    rows = [request(0, 3, 3), request(0, 2, 3), request(0, 1, 1)]
    outcome = simulate(rows, engine(iq.research.SlotGreedy(chunk=2), tokens=6))
    assert drawn(outcome) == ["0: 0+2 1+2* 2+1*", "1: 0+1* 1+1*", "2: 0+1*", "3: 0+1*", "4: 1+1*"]
    assert used(outcome) == [5, 6, 4, 5, 4]
    assert instants(outcome) == [[2, 3, 4], [1, 2, 5], [1]]
    assert preemptions(outcome) == [0, 1, 0]
    assert bounds(outcome) == ["broken", "nothing", "memory", "memory", "nothing"]


def test_slot_greedy_skips_requests_that_do_not_fit() -> None:
    """8 blocks, chunks of 4. 0: p = 2, o = 4; 1: p = 4, o = 3; 2: p = 1, o = 3; all at 0.

    0  2 + 4 + 1 blocks                     1  3 + 5; 2 needs 2: it steps out
    2  4; 1 needs 6: out; 2 back with 2     3  5; 1 needs 6: out; 2 with 3
    4  1 with 6
    """
    rows = [request(0, 2, 4), request(0, 4, 3), request(0, 1, 3)]
    outcome = simulate(rows, engine(iq.research.SlotGreedy(chunk=4), tokens=8))
    assert drawn(outcome) == ["0: 0+2* 1+4* 2+1*", "1: 0+1* 1+1*", "2: 0+1* 2+1*", "3: 0+1* 2+1*", "4: 1+1*"]
    assert used(outcome) == [7, 8, 6, 8, 6]
    assert preemptions(outcome) == [0, 1, 1]


def test_slot_greedy_stops_at_the_first_new_request_that_does_not_fit() -> None:
    """4 blocks, chunks of 3. p = 2, 3, 1: 1's first chunk does not fit next to 0, and 2 is behind it."""
    rows = [request(0, 2, 1), request(0, 3, 1), request(0, 1, 1)]
    outcome = simulate(rows, engine(iq.research.SlotGreedy(chunk=3), tokens=4))
    assert drawn(outcome) == ["0: 0+2*", "1: 1+3* 2+1*"]
