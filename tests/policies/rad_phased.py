"""RadPhased: the prompts of a cycle one after another, then its decodes (bari2025)."""

from __future__ import annotations

import random
from typing import Any

import pytest

import inferq as iq

from ..policy import NO_COUNT, Described, Policy
from ..reference import Replica
from ..worked import drawn, engine, preemptions, request, simulate, used
from . import rad
from .rad import PARAMETERS, TOML, tile


def draw(rng: random.Random, longest: int, classes: list[str]) -> Described:
    return rad.draw(rng, longest, classes) | {"kind": "RadPhased"}


def rule(replica: Replica, rules: Described) -> None:
    """bari2025 Alg. 2: the prompts of a cycle one after another, then its decodes, a number at a time.

    A cycle ends as soon as none is left of it, also when the replica then stands empty (lines 4 and 16).
    """
    if under_way := replica.unfinished:
        return replica.place(under_way[0], min(tile(rules), under_way[0].owed))
    if not replica.decoding:
        for head in replica.queue[:1]:
            if replica.count < rules["requests_per_cycle"] and replica.room(head, head.needs):
                replica.count += 1
                return replica.place(head, min(tile(rules), head.owed), holding=head.needs)
    active = [r for r in replica.active if r in replica.running]
    others = sorted((r for r in replica.ready if r not in active), key=lambda r: (r.ready, r.id))
    replica.active = active + others[: rules["columns"] - len(active)]
    replica.decoding = bool(replica.active)
    replica.decode(sorted(replica.active))
    if not replica.active:  # the next cycle begins once: nothing of it may fit next to transfers
        begins = replica.count > 0
        replica.count = 0
        if replica.waiting and begins:
            rule(replica, rules)


POLICY = Policy(
    examples=[(iq.research.RadPhased(**PARAMETERS), {"kind": "RadPhased", **PARAMETERS})],
    wrong=dict.fromkeys(PARAMETERS, NO_COUNT),
    toml={TOML: iq.research.RadPhased(**PARAMETERS)},
    variants={"RadPhased": draw},
    rule=rule,
    bounds=lambda rules: (rules["requests_per_cycle"], max(rules["columns"], tile(rules))),
    on_real_traces={
        "rad-phased": iq.research.RadPhased(rows=256, columns=128, reduction=32, requests_per_cycle=200)
    },
)


# Worked cases.


def rad_phased(**changed: Any) -> iq.research.RadPhased:
    return iq.research.RadPhased(
        **{"rows": 2, "columns": 2, "reduction": 1, "requests_per_cycle": 2, **changed}
    )


def test_rad_phased() -> None:
    """Chunks of 2, two columns, three prompts per cycle. p = 2, 3, 1, 1 and o = 3, 2, 2, 1, all at 0.

    0-3  the prompts of 0, 1 (two chunks) and 2
    4    0 and 1 decode, the first two that became ready; 1 leaves at 5
    5    2 takes its place; 0 and 2 leave at 6
    6    the next cycle: 3
    """
    rows = [request(0, 2, 3), request(0, 3, 2), request(0, 1, 2), request(0, 1, 1)]
    outcome = simulate(rows, engine(rad_phased(requests_per_cycle=3)))
    assert drawn(outcome) == [
        "0: 0+2*", "1: 1+2", "2: 1+1*", "3: 2+1*", "4: 0+1* 1+1*", "5: 0+1* 2+1*", "6: 3+1*",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arrival", "batches"),
    [(5, ["5: 1+1*", "6: 2+1*", "7: 1+1*"]), (1, ["1: 1+1*", "2: 1+1*", "3: 2+1*"])],
)
def test_rad_phased_ends_its_cycle_when_no_request_is_left(arrival: float, batches: list[str]) -> None:
    """Two prompts per cycle; 0 (o = 1) ends at 1. 1: o = 2 and 2: o = 1 later, or at the same time.

    Alg. 2 leaves its first loop when none waits: at 5 a cycle begins, 1 and 2 are its prompts. At 1 they
    are there in time: 1 is the second prompt of 0's cycle, and 2 must wait for the next.
    """
    rows = [request(0, 1, 1), request(arrival, 1, 2), request(arrival, 1, 1)]
    outcome = simulate(rows, engine(rad_phased()))
    assert drawn(outcome) == ["0: 0+1*", *batches]


def test_rad_phased_takes_blocks_from_paused_requests() -> None:
    """4 blocks, one column, chunks of 2. 0: p = 2, o = 3; 1: p = 2, o = 2; both at 0.

    2     0 finds no block: 1, which is paused, is preempted and has 3 known tokens
    4, 5  the next cycle: 1's 3 tokens, in two chunks: its second token
    """
    outcome = simulate([request(0, 2, 3), request(0, 2, 2)], engine(rad_phased(columns=1), tokens=4))
    assert drawn(outcome) == ["0: 0+2*", "1: 1+2*", "2: 0+1*", "3: 0+1*", "4: 1+2", "5: 1+1*"]
    assert used(outcome) == [2, 4, 3, 4, 3, 3]
    assert preemptions(outcome) == [0, 1]
