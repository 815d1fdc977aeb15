"""ClassPriority: an inner policy for each class in order, with the remaining resources (li2025)."""

from __future__ import annotations

import json
import random

import numpy as np

import inferq as iq

from .. import policies
from ..policy import NO_LIST, Described, Draw, Policy
from ..reference import Replica
from ..worked import bounds, drawn, engine, of_class, preemptions, simulate
from . import k_fcfs, orca, sarathi, vllm_v1


def draw(inner: Draw) -> Draw:
    """Its classes in any order, with this inner policy."""

    def of_way(rng: random.Random, longest: int, classes: list[str]) -> Described:
        own = inner(rng, longest, [])
        return {"kind": "ClassPriority", "order": rng.sample(classes, len(classes)), "inner": own}

    return of_way


def rule(replica: Replica, rules: Described) -> None:
    """The inner policy for one class after another; once a request waits for room, no lower class admits."""
    for name in rules["order"]:
        replica.scope, before, victims = name, replica.refused, len(replica.victims)
        replica.refused = ""
        policies.POLICIES[rules["inner"]["kind"]].rule(replica, rules["inner"])
        waits = any(r.name == name for r in replica.victims[victims:]) or (
            not replica.budget and replica.of(replica.waiting + replica.swapped)
        )
        replica.closed = replica.closed or replica.refused or ("memory" if waits else "")
        replica.refused = replica.refused or before
    replica.scope, replica.closed = None, ""


PARAMETERS = {"token_budget": 64, "k_prefill": 2, "k_decode": 16}
SARATHI = iq.Sarathi().to_json()
POLICY = Policy(
    examples=[
        (
            iq.ClassPriority(order=["urgent", "batch"], inner=iq.Sarathi()),
            {"kind": "ClassPriority", "order": ["urgent", "batch"], "inner": SARATHI},
        ),
        (
            iq.ClassPriority(order=["a"], inner=iq.research.KFcfs(**PARAMETERS)),
            {"kind": "ClassPriority", "order": ["a"], "inner": {"kind": "KFcfs", **PARAMETERS}},
        ),
    ],
    wrong={
        "order": [*NO_LIST, [], [1], ["a", "a"], ["a", None], np.array(3), np.array([[0, 2]])],
        "inner": [
            None,
            "Sarati",
            iq.Sarathi,
            iq.Constant(1.0),
            iq.VllmV0(),
            iq.research.Wait(thresholds=2),
            iq.research.Orca(),
        ],
    },
    errors=[
        ({"order": "ab", "inner": SARATHI}, "^order: .*list of strings.*'ab'"),
        ({"order": ["a", 1], "inner": SARATHI}, r"^order\[1\]: .*string"),
        ({"order": ["a"], "inner": iq.VllmV0().to_json()}, r"^inner\.kind: .*did you mean VllmV1"),
        ({"order": ["a"], "inner": "Sarati"}, "^inner: .*Sarathi"),
        ({"order": ["a"], "inner": {"kind": "Sarath"}}, r"^inner\.kind: .*did you mean Sarathi"),
        ({"order": ["a"], "inner": {"kind": "KFcfs", "token_budget": 8}}, r"^inner\.k_prefill: missing"),
        ({"order": ["a"], "inner": {"kind": "Sarathi", "max_seqs": "x"}}, r"^inner\.max_seqs: "),
    ],
    toml={
        'order = ["default"]\ninner = { kind = "Sarathi", token_budget = 64 }': iq.ClassPriority(
            order=["default"], inner=iq.Sarathi(token_budget=64)
        ),
    },
    variants={
        "ClassPriority Sarathi": draw(sarathi.draw),
        "ClassPriority KFcfs": draw(k_fcfs.draw),
        "ClassPriority Orca": draw(orca.chunked),
        "ClassPriority VllmV1": draw(vllm_v1.draw),
    },
    rule=rule,
    on_real_traces={},
)


def test_numpy_values_become_plain() -> None:
    assert json.dumps(iq.ClassPriority(order=np.array(["a", "b"]), inner=iq.Sarathi()).to_json()["order"])


# Worked cases.


def priority(order: list[str], inner: iq.Scheduler) -> iq.ClassPriority:
    return iq.ClassPriority(order=order, inner=inner)


def test_class_priority_takes_blocks_from_the_lowest_class() -> None:
    """4 blocks. 0: free, 1: gold, both p = 2, o = 3 at 0.

    0  gold first; 4 blocks
    1  1 finds no block: 0 is preempted, although 1 arrived later, and has 3 known tokens. It resumes at 3,
        when 1 ends
    """
    rows = [of_class("free", 0, 2, 3), of_class("gold", 0, 2, 3)]
    outcome = simulate(rows, engine(priority(["gold", "free"], sarathi.sarathi()), tokens=4))
    assert drawn(outcome) == ["0: 1+2* 0+2*", "1: 1+1*", "2: 1+1*", "3: 0+3*", "4: 0+1*"]
    assert preemptions(outcome) == [1, 0]


def test_class_priority_latest_of_the_lowest_and_own_victims() -> None:
    """8 blocks. 0: a, 1: b, 2 and 3: c, all p = 2, o = 2 at 0.

    1  0 finds no block: 3 is preempted, two blocks for 0 and 1. 2 finds none, no class is lower: it is
        preempted
    """
    rows = [of_class(name, 0, 2, 2) for name in "abcc"]
    outcome = simulate(rows, engine(priority(["a", "b", "c"], sarathi.sarathi()), tokens=8))
    assert drawn(outcome) == ["0: 0+2* 1+2* 2+2* 3+2*", "1: 0+1* 1+1*", "2: 2+3* 3+3*"]
    assert preemptions(outcome) == [0, 0, 1, 1]


def test_class_priority_gives_what_is_left() -> None:
    """Budget 6, `max_seqs=2`: gold's prompts and decodes first, then one of free, cut to the budget.

    0  1 (gold, p = 4), then 2 of 0's 3; no place for 2 (free)
    1  1 decodes, 0 its last 1; 3 (gold, at 0.5) finds no place, nor does 2
    2  both have left: 3 before 2
    """
    rows = [
        of_class("free", 0, 3, 1),
        of_class("gold", 0, 4, 2),
        of_class("free", 0, 1, 1),
        of_class("gold", 0.5, 2, 1),
    ]
    for inner in (
        sarathi.sarathi(token_budget=6, max_seqs=2),
        orca.orca(token_budget=6, max_seqs=2, chunked=True),
    ):
        outcome = simulate(rows, engine(priority(["gold", "free"], inner)))
        assert drawn(outcome) == ["0: 1+4* 0+2", "1: 1+1* 0+1*", "2: 3+2* 2+1*"]
        assert bounds(outcome)[1] == "cap"


def test_class_priority_holds_lower_classes_back_while_a_higher_one_lacks_blocks() -> None:
    """5 blocks. 0: gold, p = 3, o = 2 at 0. 1: gold, p = 2, o = 1 and 2: free, p = 1, o = 1 at 0.5.

    0  0 takes 3 blocks
    1  0 takes the fourth; 1 needs two, one is free: 1 waits, and 2, which would fit, waits behind it
    2  0 has left: 1, then 2
    """
    rows = [of_class("gold", 0, 3, 2), of_class("gold", 0.5, 2, 1), of_class("free", 0.5, 1, 1)]
    for inner in (sarathi.sarathi(), vllm_v1.vllm_v1()):
        outcome = simulate(rows, engine(priority(["gold", "free"], inner), tokens=5))
        assert drawn(outcome) == ["0: 0+3*", "1: 0+1*", "2: 1+2* 2+1*"]
        assert bounds(outcome)[1] == "memory"


def test_class_priority_k_fcfs_counts_in_each_class() -> None:
    """One prompt and two decodes at a time, of each class."""
    rows = [
        of_class("free", 0, 1, 1),
        of_class("free", 0, 1, 1),
        of_class("gold", 0, 1, 1),
        of_class("gold", 0, 1, 1),
    ]
    outcome = simulate(rows, engine(priority(["gold", "free"], k_fcfs.k_fcfs())))
    assert drawn(outcome) == ["0: 2+1* 0+1*", "1: 3+1* 1+1*"]
