"""Wait: the types whose stage 0 holds its threshold; the others pause (ao2025)."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

import inferq as iq

from ..policy import Described, Policy
from ..reference import Replica, Request
from ..worked import bounds, drawn, engine, of_class, preemptions, request, simulate, used


def draw(rng: random.Random, longest: int, classes: list[str]) -> Described:
    each = {name: rng.choice([1, 2, 3]) for name in classes}
    return {
        "kind": "Wait",
        "thresholds": rng.choice([1, 2, 4, each]),
        "max_seqs": rng.choice([None, None, 2, 8]),
    }


def rule(replica: Replica, rules: Described) -> None:
    """ao2025 Alg. 1: every stage of the types whose stage 0 holds its threshold; the others pause."""
    thresholds = rules["thresholds"]
    entries = {name: [r for r in replica.queue if r.name == name] for name in replica.classes}
    least = {
        name: thresholds if isinstance(thresholds, int) else thresholds[name] for name in replica.classes
    }
    eligible = [name for name in replica.classes if replica.drain or len(entries[name]) >= least[name]]
    decodes = [r for r in replica.ready if r.name in eligible]
    batch_or_overflow(replica, decodes, [entries[name][: least[name]] for name in eligible])


def batch_or_overflow(replica: Replica, decodes: list[Request], admitting: list[list[Request]]) -> None:
    """ao2025 4.1: if blocks are short, the latest admitted returns to stage 0, and none is admitted."""
    while sum(replica.lacks(r, r.computed + 1) for r in decodes if r in replica.running) > replica.free:
        if replica.cache:
            replica.cache.forget_free()  # requests that hit blocks have taken them
        replica.preempt(max(replica.running, key=lambda r: r.admission))
    replica.decode(decodes)
    for entry in admitting if not replica.victims else []:
        for r in entry:
            if not replica.room(r, replica.to_next_token(r)):
                break
            replica.place(r, r.owed, holding=r.needs)


POLICY = Policy(
    examples=[
        (iq.research.Wait(thresholds=4), {"kind": "Wait", "thresholds": 4, "max_seqs": None}),
        (
            iq.research.Wait(thresholds={"code": 2, "chat": 4}, max_seqs=64),
            {"kind": "Wait", "thresholds": {"chat": 4, "code": 2}, "max_seqs": 64},
        ),
    ],
    wrong={
        "thresholds": [0, -1, 2.5, True, "4", None, [4], {}, {3: 4}]
        + [{"chat": bad} for bad in [0, -1, 2.5, True, "4", None]],
        "max_seqs": [0, -1, 2.5, "8"],
    },
    errors=[
        ({"thresholds": {"chat": 1.5}}, r"^thresholds\.chat: .*integer.*1\.5"),
        ({"thresholds": {3: 4}}, "^thresholds: .*3"),
        ({"thresholds": "4"}, "^thresholds: .*integer.* or .*table"),
    ],
    toml={
        "thresholds = 4": iq.research.Wait(thresholds=4),
        "thresholds = { default = 4 }": iq.research.Wait(thresholds={"default": 4}),
    },
    variants={"Wait": draw},
    rule=rule,
    impossible=frozenset(),
    on_real_traces={"wait": iq.research.Wait(thresholds=2)},
)


def test_numpy_values_become_plain() -> None:
    wait = iq.research.Wait(thresholds={np.str_("chat"): np.int32(4)})
    assert wait == iq.research.Wait(thresholds={"chat": 4})
    assert json.dumps(wait.to_json()["thresholds"]) == '{"chat": 4}'


def test_a_description_is_immutable() -> None:
    thresholds = {"chat": 4, "code": 2}
    wait = iq.research.Wait(thresholds=thresholds)
    thresholds["chat"] = 1
    assert wait.thresholds == {"chat": 4, "code": 2}
    wait.to_json()["thresholds"]["chat"] = 1
    assert wait.to_json()["thresholds"]["chat"] == 4
    with pytest.raises(TypeError):
        wait.thresholds["chat"] = 1


def test_tables_are_equal_in_any_order() -> None:
    one, other = iq.research.Wait(thresholds={"a": 1, "b": 2}), iq.research.Wait(thresholds={"b": 2, "a": 1})
    assert one == other and hash(one) == hash(other)
    assert json.dumps(one.to_json()) == json.dumps(other.to_json())
    assert one != iq.research.Wait(thresholds={"a": 1, "b": 3})
    assert repr(one) == "Wait(thresholds={'a': 1, 'b': 2}, max_seqs=None)"


# Worked cases.


def wait(thresholds: int | dict[str, int], max_seqs: int | None = None) -> iq.research.Wait:
    return iq.research.Wait(thresholds=thresholds, max_seqs=max_seqs)


def test_wait() -> None:
    """a waits for two, b for one. 0: a, 1: b at 0; 2: a at 1; p = 1, o = 2.

    0  b's stage 0 holds one: 1; a's too, but needs two
    1  a's stage 0 holds two; b's none, so that 1 pauses
    2  none is at stage 0, and no further arrivals: all are served
    """
    rows = [of_class("a", 0, 1, 2), of_class("b", 0, 1, 2), of_class("a", 1, 1, 2)]
    outcome = simulate(rows, engine(wait({"a": 2, "b": 1})))
    assert drawn(outcome) == ["0: 1+1*", "1: 0+1* 2+1*", "2: 0+1* 1+1* 2+1*"]
    assert bounds(outcome) == ["broken", "broken", "nothing"]
    assert outcome.drains == 1


def test_wait_admits_no_more_than_its_threshold() -> None:
    """Threshold 2, three at 0: two, then one by the drain; and `max_seqs=2` has the same effect."""
    outcome = simulate([request(0, 3, 1)] * 3, engine(wait(2)))
    assert drawn(outcome) == ["0: 0+3* 1+3*", "1: 2+3*"]
    assert bounds(outcome) == ["broken", "nothing"]
    outcome = simulate([request(0, 3, 1)] * 3, engine(wait(3, max_seqs=2)))
    assert drawn(outcome) == ["0: 0+3* 1+3*", "1: 2+3*"]
    assert bounds(outcome) == ["cap", "nothing"]


@pytest.mark.parametrize(("tokens", "bound"), [(5, "memory"), (6, "broken")])
def test_paused_requests_without_a_block_are_bound_by_memory(tokens: int, bound: str) -> None:
    """a waits for one, b for two. 0: a, 1 and 2: b at 0, o = 2; 3: a, o = 1 at 1; p = 1.

    1  0 decodes (2 blocks) and 3 gets in; 1 and 2 pause with a block each: 5 blocks
    """
    rows = [of_class("a", 0, 1, 2), of_class("b", 0, 1, 2), of_class("b", 0, 1, 2), of_class("a", 1, 1, 1)]
    outcome = simulate(rows, engine(wait({"a": 1, "b": 2}), tokens=tokens))
    assert drawn(outcome) == ["0: 0+1* 1+1* 2+1*", "1: 0+1* 3+1*", "2: 1+1* 2+1*"]
    assert bounds(outcome) == ["nothing", bound, "nothing"]


def test_wait_overflow_admits_no_request() -> None:
    """4 blocks, thresholds of one. 0: a, p = 1, o = 3 and 1: b, p = 2, o = 2 at 0; 2: a, p = 1, o = 1 at 1.

    0  both: 3 blocks
    1  a: 0 decodes, 4 blocks; none is left for 2. b has none at stage 0: 1 pauses
    2  0 finds no block: 1, although paused, is preempted with 3 known tokens. Now 2 would fit, but waits
    3  0 has left: 2, and 1 with 3 blocks
    """
    rows = [of_class("a", 0, 1, 3), of_class("b", 0, 2, 2), of_class("a", 1, 1, 1)]
    outcome = simulate(rows, engine(wait({"a": 1, "b": 1}), tokens=4))
    assert drawn(outcome) == ["0: 0+1* 1+2*", "1: 0+1*", "2: 0+1*", "3: 2+1* 1+3*"]
    assert used(outcome) == [3, 4, 3, 4]
    assert preemptions(outcome) == [0, 1, 0]
    assert bounds(outcome) == ["nothing", "memory", "memory", "nothing"]


def test_wait_preempts_the_latest_admitted() -> None:
    """4 blocks; a waits for two, b for one. 0: a, p = 1 and 1: b, p = 2, o = 3 at 0; 2: a at 1; 3: b at 2.

    0  1, the first to be admitted
    1  0 and 2; 2 leaves, 3 blocks
    2  1 decodes, 4 blocks; none for 3
    3  1 finds no block: 0, which arrived before 1 but was admitted after it, is preempted with 2 known
        tokens; 1 ends
    4  3; a's stage 0 holds one of two
    5  no further arrivals: 0's 2 tokens; and at 6, again a drain, its last
    """
    rows = [of_class("a", 0, 1, 3), of_class("b", 0, 2, 3), of_class("a", 1, 1, 1), of_class("b", 2, 1, 1)]
    outcome = simulate(rows, engine(wait({"a": 2, "b": 1}), tokens=4))
    assert drawn(outcome) == [
        "0: 1+2*", "1: 0+1* 2+1*", "2: 1+1*", "3: 1+1*", "4: 3+1*", "5: 0+2*", "6: 0+1*",
    ]  # fmt: skip
    assert preemptions(outcome) == [1, 0, 0, 0]
    assert outcome.drains == 2


def test_wait_plans_again_when_its_whole_batch_is_preempted() -> None:
    """3 blocks, thresholds of one. 0: a, p = 1, o = 2 and 1: b, p = 2, o = 2 at 0; 2: b, p = 1, o = 1 at 1.

    1  b: 1 finds no block and was admitted last: it is preempted, none is left. Planned again at 1, b's head
        needs 3
       of 2 blocks. No further arrivals: 0 decodes, and ends at 2
    2  1's 3 tokens, its second and last; at 3, 2
    """
    rows = [of_class("a", 0, 1, 2), of_class("b", 0, 2, 2), of_class("b", 1, 1, 1)]
    outcome = simulate(rows, engine(wait(1), tokens=3))
    assert drawn(outcome) == ["0: 0+1* 1+2*", "1: 0+1*", "2: 1+3*", "3: 2+1*"]
    assert outcome.drains == 1


@pytest.mark.parametrize("other", [request(1, 9, 1), request(1, 1, 1, patience_s=0)])
def test_drain_comes_after_the_last_event(other: Described) -> None:
    """4 blocks, threshold 2: 0 waits for 1, which is rejected or ends immediately. No arrivals remain."""
    outcome = simulate([request(0, 1, 2), other], engine(wait(2), tokens=4))
    assert drawn(outcome) == ["1: 0+1*", "2: 0+1*"]
    assert outcome.drains == 2


def test_patience_of_admitted_requests_is_not_an_event() -> None:
    """Threshold 2; 0: o = 2, patience until 9. Both run at 1; at 2 no arrivals remain: 0 decodes."""
    rows = [request(0, 1, 2, patience_s=9), request(1, 1, 1, patience_s=9)]
    outcome = simulate(rows, engine(wait(2)))
    assert drawn(outcome) == ["1: 0+1* 1+1*", "2: 0+1*"]
