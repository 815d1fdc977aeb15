"""FasterTransformer: a batch of whole prompts, then its decodes until all end."""

from __future__ import annotations

from typing import Any

import pytest

import inferq as iq

from ..policy import NO_COUNT, Described, Draw, Policy
from ..reference import Replica
from ..worked import bounds, drawn, engine, request, simulate, used


def draw(free: str) -> Draw:
    """Blocks are freed with each request, or with the whole batch."""
    return lambda rng, longest, classes: {
        "kind": "FasterTransformer",
        "max_seqs": rng.choice([1, 2, 4, 128]),
        "max_model_len": int(longest * rng.uniform(0.5, 1)) + 1,
        "free": free,
    }


def rule(replica: Replica, rules: Described) -> None:
    """C7; bari2025 Alg. 3: a batch of whole prompts in one iteration, then its decodes until all end."""
    if replica.running:
        replica.decode(replica.ready)
        return
    for r in replica.queue:
        if not replica.room(r, rules["max_model_len"]):
            return
        replica.place(r, r.owed, holding=rules["max_model_len"])


POLICY = Policy(
    examples=[
        (
            iq.research.FasterTransformer(),
            {"kind": "FasterTransformer", "max_seqs": 128, "max_model_len": 8192, "free": "each"},
        ),
        (
            iq.research.FasterTransformer(free="batch"),
            {"kind": "FasterTransformer", "max_seqs": 128, "max_model_len": 8192, "free": "batch"},
        ),
    ],
    wrong={"max_seqs": NO_COUNT, "max_model_len": NO_COUNT, "free": ["all", "Each", None, True]},
    toml={'free = "batch"': iq.research.FasterTransformer(free="batch")},
    variants={"FasterTransformer each": draw("each"), "FasterTransformer batch": draw("batch")},
    rule=rule,
    impossible=frozenset(
        {"drained", "preempted"}
    ),  # running requests hold all blocks that they will ever need
    rare=frozenset({"paused"}),  # all decodes run together
    on_real_traces={
        "faster-transformer": iq.research.FasterTransformer(
            max_model_len=200_000, max_seqs=256, free="batch"
        ),
    },
)


# Worked cases.


def faster_transformer(**changed: Any) -> iq.research.FasterTransformer:
    return iq.research.FasterTransformer(**{"max_seqs": 2, "max_model_len": 5, **changed})


@pytest.mark.parametrize(
    ("free", "blocks", "third"),
    [("each", [10, 10, 5, 5, 5], "broken"), ("batch", [10, 10, 10, 10, 5], "memory")],
)
def test_faster_transformer(free: str, blocks: list[int], third: str) -> None:
    """`max_seqs=2`, 10 blocks: two reservations of 5. 0: p = 2, o = 2; 1: p = 1, o = 4; 2: p = 1, o = 1.

    0     0 and 1 whole, in one iteration; 2 finds no slot
    1     both decode, 0 leaves at 2
    2, 3  1 alone; a slot is free, and with "each" blocks are, but the batch continues
    4     2
    """
    rows = [request(0, 2, 2), request(0, 1, 4), request(0, 1, 1)]
    outcome = simulate(rows, engine(faster_transformer(free=free), tokens=10))
    assert drawn(outcome) == ["0: 0+2* 1+1*", "1: 0+1* 1+1*", "2: 1+1*", "3: 1+1*", "4: 2+1*"]
    assert used(outcome) == blocks
    assert bounds(outcome) == ["cap", "cap", third, third, "nothing"]


@pytest.mark.parametrize(
    ("longest", "prompt", "output", "status"),
    [(5, 4, 1, "finished"), (5, 4, 2, "rejected"), (9, 1, 1, "rejected")],
)
def test_what_can_never_fit_a_reservation(longest: int, prompt: int, output: int, status: str) -> None:
    """6 tokens exceed 5; 9 blocks exceed 8."""
    scheduler = faster_transformer(max_model_len=longest)
    outcome = simulate([request(0.5, prompt, output)], engine(scheduler, tokens=8))
    assert [r.status for r in outcome.requests] == [status]
