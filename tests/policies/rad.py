"""Rad: a chunk of one tile alone, or all decodes; a cycle has a number of prompts (bari2025)."""

from __future__ import annotations

import random
from math import lcm
from typing import Any

import pytest

import inferq as iq

from ..policy import NO_COUNT, Described, Policy
from ..reference import Replica, Request
from ..worked import bounds, drawn, engine, preemptions, request, simulate, used


def draw(rng: random.Random, longest: int, classes: list[str]) -> Described:
    return {
        "kind": "Rad",
        "rows": rng.choice([2, 4, 8]),
        "columns": rng.choice([1, 2, 4, 6]),
        "reduction": rng.choice([3, 4, 8]),
        "requests_per_cycle": rng.choice([1, 2, 3, 10]),
    }


def tile(rules: Described) -> int:
    return lcm(rules["rows"], rules["columns"], rules["reduction"])


def rule(replica: Replica, rules: Described) -> None:
    """bari2025 Alg. 1: a chunk of one tile alone, or all decodes; a cycle has a number of prompts."""

    def chunk(r: Request) -> None:
        replica.count += r.owed <= tile(rules)  # its prompt is complete
        replica.decoding = False
        replica.place(r, min(tile(rules), r.owed), holding=r.goal)

    if under_way := replica.unfinished:
        return chunk(under_way[0])
    if not replica.ready and (replica.decoding or replica.count >= rules["requests_per_cycle"]):
        replica.count = 0  # the end of a cycle, also of one whose outputs all had length 1
    for head in replica.queue[:1]:
        if replica.count < rules["requests_per_cycle"] and replica.room(head, head.needs):
            return chunk(head)
    replica.decoding = bool(replica.decode(replica.ready))


PARAMETERS = {"rows": 128, "columns": 256, "reduction": 32, "requests_per_cycle": 1000}
TOML = "\n".join(f"{name} = {value}" for name, value in PARAMETERS.items())
POLICY = Policy(
    examples=[(iq.research.Rad(**PARAMETERS), {"kind": "Rad", **PARAMETERS})],
    wrong=dict.fromkeys(PARAMETERS, NO_COUNT),
    toml={TOML: iq.research.Rad(**PARAMETERS)},
    variants={"Rad": draw},
    rule=rule,
    bounds=lambda rules: (rules["columns"], max(rules["columns"], tile(rules))),
    on_real_traces={"rad": iq.research.Rad(rows=256, columns=128, reduction=32, requests_per_cycle=1000)},
)


# Worked cases.


def rad(**changed: Any) -> iq.research.Rad:
    return iq.research.Rad(**{"rows": 2, "columns": 2, "reduction": 1, "requests_per_cycle": 2, **changed})


def test_rad() -> None:
    """Chunks of lcm(2, 2, 1) = 2, two prompts per cycle. 0: p = 3, o = 2; 1: p = 2, o = 3; 2: p = 1, o = 1.

    0, 1  0's prompt in two chunks, alone
    2     1's prompt, the second of the cycle
    3     both decode; 0 leaves at 4
    4     1 decodes alone: a column is free, but the cycle has had its prompts; 1 leaves at 5
    5     the next cycle: 2
    """
    rows = [request(0, 3, 2), request(0, 2, 3), request(0, 1, 1)]
    outcome = simulate(rows, engine(rad()))
    assert drawn(outcome) == ["0: 0+2", "1: 0+1*", "2: 1+2*", "3: 0+1* 1+1*", "4: 1+1*", "5: 2+1*"]
    assert used(outcome) == [3, 3, 5, 7, 4, 1]
    assert bounds(outcome) == ["broken", "broken", "broken", "cap", "broken", "nothing"]


def test_rad_decodes_when_the_columns_are_full() -> None:
    """One column, chunks of 2, three prompts per cycle: each request from its prompt to its end."""
    rows = [request(0, 1, 2), request(0, 1, 2)]
    outcome = simulate(rows, engine(rad(columns=1, requests_per_cycle=3)))
    assert drawn(outcome) == ["0: 0+1*", "1: 0+1*", "2: 1+1*", "3: 1+1*"]


@pytest.mark.parametrize("kind", [iq.research.Rad, iq.research.RadPhased])
def test_a_cycle_of_outputs_of_one_token_ends(kind: type[iq.research.Rad | iq.research.RadPhased]) -> None:
    """One prompt per cycle and no decodes, so that no decode can end a cycle."""
    outcome = simulate(
        [request(0, 1, 1)] * 3, engine(kind(rows=2, columns=2, reduction=1, requests_per_cycle=1))
    )
    assert drawn(outcome) == ["0: 0+1*", "1: 1+1*", "2: 2+1*"]


def test_rad_counts_a_recomputed_prompt_again() -> None:
    """5 blocks, chunks of 2, two per cycle. 0: p = 2, o = 4; 1: p = 2, o = 2; both at 0; 2: p = 1 at 1.

    0, 1  the prompts: 4 blocks
    2     0 takes the last block, 1 finds none: it is itself the last, is preempted and has 3 known tokens
    3, 4  the cycle has had two prompts: 0 decodes to its end, at 5
    5, 6  the next cycle: 1's 3 tokens, in two chunks: its second token
    7     2
    """
    rows = [request(0, 2, 4), request(0, 2, 2), request(1, 1, 1)]
    outcome = simulate(rows, engine(rad(), tokens=5))
    assert drawn(outcome) == [
        "0: 0+2*",
        "1: 1+2*",
        "2: 0+1*",
        "3: 0+1*",
        "4: 0+1*",
        "5: 1+2",
        "6: 1+1*",
        "7: 2+1*",
    ]
    assert used(outcome) == [2, 4, 3, 4, 5, 3, 3, 1]
    assert preemptions(outcome) == [0, 1, 0]
