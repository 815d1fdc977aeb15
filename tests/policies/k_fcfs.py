"""KFcfs: tokens of the k oldest requests in each phase (li2025)."""

from __future__ import annotations

import random
from typing import Any

import inferq as iq

from ..policy import NO_COUNT, Described, Policy
from ..reference import Replica
from ..worked import bounds, drawn, engine, request, simulate


def draw(rng: random.Random, longest: int, classes: list[str]) -> Described:
    return {
        "kind": "KFcfs",
        "token_budget": rng.choice([3, 8, 16, 64, 512]),
        "k_prefill": rng.choice([1, 2, 5]),
        "k_decode": rng.choice([1, 3, 64]),
    }


def rule(replica: Replica, rules: Described) -> None:
    """li2025 2.3: tokens of the k oldest requests in each phase, decodes before prompts."""
    replica.decode(replica.ready[: rules["k_decode"]])
    prompts = replica.unfinished[: rules["k_prefill"]]
    for r in prompts:
        replica.place(r, r.owed)
    for r in replica.queue[: rules["k_prefill"] - len(prompts)]:
        if r in replica.victims or not replica.budget or not replica.room(r, r.needs):
            return
        replica.place(r, r.owed, holding=r.needs)


PARAMETERS = {"token_budget": 64, "k_prefill": 2, "k_decode": 16}
POLICY = Policy(
    examples=[(iq.research.KFcfs(**PARAMETERS), {"kind": "KFcfs", **PARAMETERS})],
    wrong=dict.fromkeys(PARAMETERS, NO_COUNT),
    toml={"token_budget = 64\nk_prefill = 2\nk_decode = 16": iq.research.KFcfs(**PARAMETERS)},
    variants={"KFcfs": draw},
    rule=rule,
    impossible=frozenset({"drained", "cap"}),
    on_real_traces={"k-fcfs": iq.research.KFcfs(token_budget=2048, k_prefill=4, k_decode=256)},
)


# Worked cases.


def k_fcfs(**changed: Any) -> iq.research.KFcfs:
    return iq.research.KFcfs(**{"token_budget": 6, "k_prefill": 1, "k_decode": 2, **changed})


def test_k_fcfs_loads_the_oldest_of_each_phase() -> None:
    """Budget 6, one prompt and two decodes at a time. 0, 1, 2: p = 1, o = 4; 3: p = 8, o = 1; all at 0.

    0-2  one prompt each, next to the decodes so far
    3    0 and 1 decode (2 is third), 3 computes 4 of 8
    4    1 and 2 decode, as 0 has left; 3 its last 4
    5, 6 2 decodes
    """
    rows = [*[request(0, 1, 4)] * 3, request(0, 8, 1)]
    outcome = simulate(rows, engine(k_fcfs()))
    assert drawn(outcome) == [
        "0: 0+1*", "1: 0+1* 1+1*", "2: 0+1* 1+1* 2+1*", "3: 0+1* 1+1* 3+4", "4: 1+1* 2+1* 3+4*",
        "5: 2+1*", "6: 2+1*",
    ]  # fmt: skip
    assert (
        bounds(outcome)[:4] == ["broken"] * 4
    )  # the policy did not request the second prompt, or 2's decode


def test_k_fcfs_admits_in_a_step_that_preempted_but_no_victim() -> None:
    """7 blocks, two prompts at a time. 0: p = 1, o = 3; 1: p = 4, o = 3; both at 0; 2: p = 1, o = 1 at 1.5.

    2  0 finds no block: 1 is preempted and heads the queue, so none is admitted
    """
    rows = [request(0, 1, 3), request(0, 4, 3), request(1.5, 1, 1)]
    outcome = simulate(rows, engine(k_fcfs(k_prefill=2, token_budget=8), tokens=7))
    assert drawn(outcome) == ["0: 0+1* 1+4*", "1: 0+1* 1+1*", "2: 0+1*", "3: 1+6* 2+1*"]
