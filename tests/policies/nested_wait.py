"""NestedWait: of each group of prompts the segments before the first short entry (ao2025)."""

from __future__ import annotations

import random

import numpy as np

import inferq as iq

from ..policy import NO_LIST, Described, Draw, Policy
from ..reference import NO_LIMIT, Replica, Request
from ..worked import SECOND, drawn, engine, request, simulate
from .wait import batch_or_overflow


def draw(grouped: bool) -> Draw:
    """All prompts in one group, or in groups by length."""

    def of_way(rng: random.Random, longest: int, classes: list[str]) -> Described:
        segments = sorted(rng.sample([0, 1, 2, 5, 9], rng.choice([1, 2, 3])))
        return {
            "kind": "NestedWait",
            "segments": segments,
            "thresholds": [rng.choice([1, 2, 3]) for _ in segments],
            "prompt_groups": sorted(rng.sample([10, 30, 80], rng.choice([1, 2]))) if grouped else [],
        }

    return of_way


def rule(replica: Replica, rules: Described) -> None:
    """ao2025 Alg. 2: in each group of prompts the segments before the first entry below its threshold."""
    ends = [*rules["prompt_groups"], NO_LIMIT]
    firsts = [0, *(last + 1 for last in rules["segments"])]  # the first stage of each segment
    decodes: list[Request] = []
    admitting: list[list[Request]] = []
    for low, high in zip([0, *ends], ends, strict=False):
        queue = [r for r in replica.queue if low < r.prompt <= high]
        group = sorted(
            (r for r in replica.ready if low < r.prompt <= high), key=lambda r: (r.end, r.admission)
        )
        for at, least in enumerate(rules["thresholds"]):
            entry = queue if at == 0 else [r for r in group if r.stage == firsts[at]]
            if len(entry) < least and not replica.drain:
                break
            after = NO_LIMIT if at + 1 == len(rules["thresholds"]) else firsts[at + 1]
            decodes += [r for r in group if firsts[at] < r.stage < after]
            if at == 0:
                admitting.append(entry[:least])
            else:
                decodes += entry[:least]
    batch_or_overflow(replica, decodes, admitting)


PARAMETERS = {"segments": [0, 2], "thresholds": [3, 3]}
POLICY = Policy(
    examples=[
        (iq.research.NestedWait(**PARAMETERS), {"kind": "NestedWait", **PARAMETERS, "prompt_groups": []}),
        (
            iq.research.NestedWait(segments=(5,), thresholds=(2,), prompt_groups=range(100, 300, 100)),
            {"kind": "NestedWait", "segments": [5], "thresholds": [2], "prompt_groups": [100, 200]},
        ),
    ],
    wrong={
        "segments": [*NO_LIST, [], [2, 0], [1, 1], [-1, 2], [0, 1.5], [0], [0, 1, 2], np.array(3)],
        "thresholds": [*NO_LIST, [], [3], [3, 0], [3, -1], [3, 3, 3], [3, True], np.array([[0, 2]])],
        "prompt_groups": [*NO_LIST, [5, 5], [9, 5], [-1], np.array(3), np.array([[0, 2]])],
    },
    errors=[
        ({"segments": [0, "x"], "thresholds": [3, 3]}, r"^segments\[1\]: .*integer.*'x'"),
        ({"segments": "02", "thresholds": [3, 3]}, "^segments: .*list of non-negative integers.*'02'"),
        ({"segments": [0, 1.5], "thresholds": [3, 3]}, r"^segments\[1\]: "),
    ],
    toml={"segments = [0, 2]\nthresholds = [3, 3]": iq.research.NestedWait(**PARAMETERS)},
    variants={"NestedWait single": draw(False), "NestedWait grouped": draw(True)},
    rule=rule,
    impossible=frozenset({"cap"}),
    on_real_traces={"nested-wait": iq.research.NestedWait(segments=[50, 200], thresholds=[2, 1])},
)


def test_numpy_values_become_plain() -> None:
    nested = iq.research.NestedWait(segments=np.array([0, 2]), thresholds=[np.int64(3), np.uint8(3)])
    assert nested == iq.research.NestedWait(**PARAMETERS)
    assert [type(number) for number in (*nested.segments, *nested.thresholds)] == [int] * 4


def test_a_description_is_immutable() -> None:
    segments = [0, 2]
    nested = iq.research.NestedWait(segments=segments, thresholds=[3, 3])
    segments[0] = 1
    assert list(nested.segments) == [0, 2]


# Worked cases.


def nested_wait(
    segments: list[int], thresholds: list[int], groups: tuple[int, ...] = ()
) -> iq.research.NestedWait:
    return iq.research.NestedWait(segments=segments, thresholds=thresholds, prompt_groups=groups)


def test_nested_wait_figure_6() -> None:
    """ao2025 Figure 6: stage 0 is segment 1, stages 1 and 2 are segment 2, three for each. P1 has id 0.

    0   P1 P2: wait                            1   P3: segment 1; P1 and P2 complete, P3 in segment 2
    5   P4 P5: wait                            7   P6 P7: P4 P5 P6 run; P4 completes, P7 is left
    11  P7 P8: wait                            14  P9 P10: P7 P8 P9 run, and P3 P5 P6 in segment 2
    15  P3 P5 P9 complete; P6 P7 P8 in segment 2, P10 in segment 1: no further arrivals, all are served
    """
    arrivals = [0, 0, 1, 5, 5, 7, 7, 11, 14, 14]
    outputs = [1, 1, 2, 1, 2, 3, 2, 2, 1, 1]
    rows = [request(at, 1, output) for at, output in zip(arrivals, outputs, strict=True)]
    outcome = simulate(rows, engine(nested_wait([0, 2], [3, 3])))
    assert drawn(outcome) == [
        "1: 0+1* 1+1* 2+1*",
        "7: 3+1* 4+1* 5+1*",
        "14: 2+1* 4+1* 5+1* 6+1* 7+1* 8+1*",
        "15: 5+1* 6+1* 7+1* 9+1*",
    ]
    assert [(r.finish or 0) // SECOND for r in outcome.requests] == [2, 2, 15, 8, 15, 16, 16, 16, 15, 16]
    assert outcome.drains == 1


def test_nested_wait_serves_the_first_of_an_entry() -> None:
    """Two for segment 1, one for segment 2. 0 and 1: o = 2 at 0; 2 and 3: o = 1 at 1.

    1  segment 2 has two at its entry and takes one, the first admitted; 1 pauses until the drain
    """
    rows = [*[request(0, 1, 2)] * 2, *[request(1, 1, 1)] * 2]
    outcome = simulate(rows, engine(nested_wait([0, 3], [2, 1])))
    assert drawn(outcome) == ["0: 0+1* 1+1*", "1: 0+1* 2+1* 3+1*", "2: 1+1*"]


def test_nested_wait_stops_at_the_first_segment_that_is_short() -> None:
    """Stages 0 and 1, stage 2, stages from 3 on; the second requires two, the others one. o = 4, 4, 1, 1, 1.

    1     0 is inside segment 1, beside 1 at its entry
    2     0 is at the entry of segment 2, which requires two; 1 continues in segment 1, next to 2
    3     0 and 1 are at the entry of segment 2: both, beside 3
    4     both are at the entry of segment 3, but that of segment 2 is short: 4 alone
    5, 6  no further arrivals: all segments, the first of the entry and then the other
    """
    rows = [request(at, 1, output) for at, output in enumerate([4, 4, 1, 1, 1])]
    outcome = simulate(rows, engine(nested_wait([1, 2, 9], [1, 2, 1])))
    assert drawn(outcome) == [
        "0: 0+1*", "1: 0+1* 1+1*", "2: 1+1* 2+1*", "3: 0+1* 1+1* 3+1*", "4: 4+1*", "5: 0+1*", "6: 1+1*",
    ]  # fmt: skip


def test_nested_wait_groups_by_prompt() -> None:
    """Prompts up to 2, and longer ones; two for each. p = 1 and 3 at 0, 2 at 1, 5 at 4."""
    rows = [request(0, 1, 1), request(0, 3, 1), request(1, 2, 1), request(4, 5, 1)]
    outcome = simulate(rows, engine(nested_wait([0], [2], (2,))))
    assert drawn(outcome) == ["1: 0+1* 2+2*", "4: 1+3* 3+5*"]
    assert outcome.drains == 0
    assert drawn(simulate(rows, engine(nested_wait([0], [2])))) == ["0: 0+1* 1+3*", "4: 2+2* 3+5*"]
