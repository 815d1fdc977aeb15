"""Orca: requests join and leave at each iteration, with blocks for the longest of all."""

from __future__ import annotations

import random
from typing import Any

import pytest

import inferq as iq

from ..policy import NO_COUNT, Described, Policy
from ..reference import Replica
from ..worked import bounds, drawn, engine, request, simulate, used


def chunked(rng: random.Random, longest: int, classes: list[str]) -> Described:
    return {
        "kind": "Orca",
        "token_budget": rng.choice([3, 8, 16, 64, 512]),
        "max_seqs": rng.choice([1, 2, 4, 8, 128]),
        "chunked": True,
        "max_model_len": int(longest * rng.uniform(0.5, 1.1)) + 1,
    }


def whole(rng: random.Random, longest: int, classes: list[str]) -> Described:
    own = chunked(rng, longest, classes) | {"chunked": False}
    return own | {"token_budget": rng.choice([None, own["token_budget"], longest // 2])}  # so that many fit


def rule(replica: Replica, rules: Described) -> None:
    """C6; li2025 3: prompts first, then decodes; blocks for the maximum length, so no preemption."""
    for r in replica.unfinished:
        replica.place(r, r.owed)
    for r in replica.queue:
        wanted = 1 if rules["chunked"] else r.owed
        if wanted > replica.budget or not replica.room(r, rules["max_model_len"]):
            break
        replica.place(r, r.owed, holding=rules["max_model_len"])
    replica.decode(replica.ready)


DESCRIBED = {"kind": "Orca", "max_seqs": 128, "max_model_len": 8192, "token_budget": None, "chunked": False}
POLICY = Policy(
    examples=[
        (iq.research.Orca(), DESCRIBED),
        (
            iq.research.Orca(max_seqs=8, max_model_len=100, token_budget=64, chunked=True),
            {"kind": "Orca", "max_seqs": 8, "max_model_len": 100, "token_budget": 64, "chunked": True},
        ),
    ],
    wrong={
        "max_seqs": NO_COUNT,
        "max_model_len": NO_COUNT,
        "token_budget": [bad for bad in NO_COUNT if bad is not None],
        "chunked": [1, "yes", None],
    },
    errors=[({"chunked": True, "token_budget": None}, "^token_budget")],
    toml={"token_budget = 64\nchunked = true": iq.research.Orca(token_budget=64, chunked=True)},
    variants={"Orca whole": whole, "Orca chunked": chunked},
    rule=rule,
    whole_prompts=lambda rules: not rules["chunked"],
    impossible=frozenset(
        {"drained", "preempted"}
    ),  # running requests hold all blocks that they will ever need
    on_real_traces={
        "orca": iq.research.Orca(max_model_len=200_000, max_seqs=256),
        "orca-chunked": iq.research.Orca(
            max_model_len=200_000, max_seqs=256, token_budget=2048, chunked=True
        ),
    },
)


# Worked cases.


def orca(**changed: Any) -> iq.research.Orca:
    return iq.research.Orca(**{"max_seqs": 4, "max_model_len": 6, "token_budget": 8, **changed})


def test_orca_reserves_the_longest_request() -> None:
    """14 blocks: two reservations of 6. 0: p = 3, o = 3; 1: p = 5, o = 1; 2: p = 2, o = 2; all at 0.

    0  0 and 1, whole; 2 finds 2 of 6 blocks
    1  1 has left: 2's prompt first, then 0 decodes
    2  0 and 2 decode, their last
    """
    rows = [request(0, 3, 3), request(0, 5, 1), request(0, 2, 2)]
    outcome = simulate(rows, engine(orca(token_budget=10), tokens=14))
    assert drawn(outcome) == ["0: 0+3* 1+5*", "1: 2+2* 0+1*", "2: 0+1* 2+1*"]
    assert used(outcome) == [12, 12, 12]
    assert bounds(outcome) == ["memory", "nothing", "nothing"]


def test_orca_serves_prompts_before_decodes() -> None:
    """Budget 4. 0: p = 1, o = 3 at 0; 1: p = 4 at 0.5 takes the whole budget at 1, and 0 waits."""
    outcome = simulate([request(0, 1, 3), request(0.5, 4, 1)], engine(orca(token_budget=4)))
    assert drawn(outcome) == ["0: 0+1*", "1: 1+4*", "2: 0+1*", "3: 0+1*"]


def test_orca_stops_at_the_first_prompt_that_does_not_fit_the_budget() -> None:
    """Budget 4, prompts 3, 2, 1: 2 would fit next to 0, but 1 precedes it: "broken"."""
    rows = [request(0, 3, 1), request(0, 2, 1), request(0, 1, 1)]
    outcome = simulate(rows, engine(orca(token_budget=4)))
    assert drawn(outcome) == ["0: 0+3*", "1: 1+2* 2+1*"]
    assert bounds(outcome) == ["broken", "nothing"]


def test_orca_without_a_budget_takes_all() -> None:
    rows = [request(0, 3, 1), request(0, 4, 1), request(0, 5, 1)]
    assert drawn(simulate(rows, engine(orca(token_budget=None)))) == ["0: 0+3* 1+4* 2+5*"]


def test_orca_chunked() -> None:
    """Budget 4. 0: p = 6, o = 2; 1: p = 3, o = 1. The started prompt first, then the queue, then decodes."""
    outcome = simulate(
        [request(0, 6, 2), request(0, 3, 1)], engine(orca(token_budget=4, chunked=True, max_model_len=8))
    )
    assert drawn(outcome) == ["0: 0+4", "1: 0+2* 1+2", "2: 1+1* 0+1*"]


@pytest.mark.parametrize(
    ("scheduler", "prompt", "output", "status"),
    [
        (orca(), 4, 2, "finished"),
        (orca(), 4, 3, "rejected"),  # 7 tokens, at most 6
        (orca(token_budget=3), 4, 2, "rejected"),  # its prompt never fits an iteration
        (orca(token_budget=3, chunked=True), 4, 2, "finished"),
        (orca(max_model_len=9), 1, 1, "rejected"),  # 9 blocks of 8
    ],
)
def test_what_can_never_fit_a_reservation(
    scheduler: iq.research.Orca, prompt: int, output: int, status: str
) -> None:
    outcome = simulate([request(0.5, prompt, output)], engine(scheduler, tokens=8))
    assert [r.status for r in outcome.requests] == [status]
