"""Is the reference right about the schedulers whose requests pause or step out? Cases worked out by hand.

Slots of one second, blocks of one token. Batches are drawn as in `test_reference.py`: 'start: request+tokens
…', a star where a row emits.
"""

import pytest

from .reference import simulate
from .test_reference import SECOND, Described, drawn, engine, instants, request, used
from .test_reference_policies import bounds, of_class, preemptions


def wait(thresholds: int | dict[str, int], max_seqs: int | None = None) -> Described:
    return {"kind": "Wait", "thresholds": thresholds, "max_seqs": max_seqs}


def nested_wait(segments: list[int], thresholds: list[int], prompt_groups: tuple[int, ...] = ()) -> Described:
    rules = {"segments": segments, "thresholds": thresholds, "prompt_groups": list(prompt_groups)}
    return {"kind": "NestedWait", **rules}


# ao2025: WAIT and Nested WAIT.


def test_wait() -> None:
    """a waits for two, b for one. 0: a, 1: b at 0; 2: a at 1; p = 1, o = 2.

    0  b's stage 0 holds one: 1; a's too, but needs two
    1  a's stage 0 holds two; b's nobody, so that 1 pauses
    2  nobody is at a stage 0, and nothing is to come: all are served
    """
    rows = [of_class("a", 0, 1, 2), of_class("b", 0, 1, 2), of_class("a", 1, 1, 2)]
    outcome = simulate(rows, engine(wait({"a": 2, "b": 1})))
    assert drawn(outcome) == ["0: 1+1*", "1: 0+1* 2+1*", "2: 0+1* 1+1* 2+1*"]
    assert bounds(outcome) == ["broken", "broken", "nothing"]
    assert outcome.drains == 1


def test_wait_admits_no_more_than_its_threshold() -> None:
    """Threshold 2, three at 0: two, then one by the drain; and two places bound as a cap."""
    outcome = simulate([request(0, 3, 1)] * 3, engine(wait(2)))
    assert drawn(outcome) == ["0: 0+3* 1+3*", "1: 2+3*"]
    assert bounds(outcome) == ["broken", "nothing"]
    outcome = simulate([request(0, 3, 1)] * 3, engine(wait(3, max_seqs=2)))
    assert drawn(outcome) == ["0: 0+3* 1+3*", "1: 2+3*"]
    assert bounds(outcome) == ["cap", "nothing"]


@pytest.mark.parametrize(("tokens", "bound"), [(5, "memory"), (6, "broken")])
def test_who_pauses_and_lacks_a_block_is_bound_by_memory(tokens: int, bound: str) -> None:
    """a waits for one, b for two. 0: a, 1 and 2: b at 0, o = 2; 3: a, o = 1 at 1; p = 1.

    1  0 decodes (2 blocks) and 3 gets in; 1 and 2 pause with a block each: 5 blocks
    """
    rows = [of_class("a", 0, 1, 2), of_class("b", 0, 1, 2), of_class("b", 0, 1, 2), of_class("a", 1, 1, 1)]
    outcome = simulate(rows, engine(wait({"a": 1, "b": 2}), tokens=tokens))
    assert drawn(outcome) == ["0: 0+1* 1+1* 2+1*", "1: 0+1* 3+1*", "2: 1+1* 2+1*"]
    assert bounds(outcome) == ["nothing", bound, "nothing"]


def test_wait_overflow_admits_nobody() -> None:
    """4 blocks, thresholds of one. 0: a, p = 1, o = 3 and 1: b, p = 2, o = 2 at 0; 2: a, p = 1, o = 1 at 1.

    0  both: 3 blocks
    1  a: 0 decodes, 4 blocks; none is left for 2. b has nobody at stage 0: 1 pauses
    2  0 finds no block: 1, though it pauses, goes and knows 3. Now 2 would fit, but waits
    3  0 has left: 2, and 1 with 3 blocks
    """
    rows = [of_class("a", 0, 1, 3), of_class("b", 0, 2, 2), of_class("a", 1, 1, 1)]
    outcome = simulate(rows, engine(wait({"a": 1, "b": 1}), tokens=4))
    assert drawn(outcome) == ["0: 0+1* 1+2*", "1: 0+1*", "2: 0+1*", "3: 2+1* 1+3*"]
    assert used(outcome) == [3, 4, 3, 4]
    assert preemptions(outcome) == [0, 1, 0]
    assert bounds(outcome) == ["nothing", "memory", "memory", "nothing"]


def test_wait_sends_back_who_was_admitted_last() -> None:
    """4 blocks; a waits for two, b for one. 0: a, p = 1 and 1: b, p = 2, o = 3 at 0; 2: a at 1; 3: b at 2.

    0  1, the first to be admitted
    1  0 and 2; 2 leaves, 3 blocks
    2  1 decodes, 4 blocks; none for 3
    3  1 finds no block: 0, which came before 1 but was admitted after it, goes and knows 2; 1 leaves
    4  3; a's stage 0 holds one of two
    5  nothing is to come: 0's 2 tokens; and at 6, a drain again, its last
    """
    rows = [of_class("a", 0, 1, 3), of_class("b", 0, 2, 3), of_class("a", 1, 1, 1), of_class("b", 2, 1, 1)]
    outcome = simulate(rows, engine(wait({"a": 2, "b": 1}), tokens=4))
    assert drawn(outcome) == [
        "0: 1+2*", "1: 0+1* 2+1*", "2: 1+1*", "3: 1+1*", "4: 3+1*", "5: 0+2*", "6: 0+1*",
    ]  # fmt: skip
    assert preemptions(outcome) == [1, 0, 0, 0]
    assert outcome.drains == 2


def test_wait_is_asked_again_when_its_whole_batch_went() -> None:
    """3 blocks, thresholds of one. 0: a, p = 1, o = 2 and 1: b, p = 2, o = 2 at 0; 2: b, p = 1, o = 1 at 1.

    1  b: 1 finds no block and was admitted last: it goes, nobody is left. Asked again at 1, b's head needs 3
       of 2 blocks. Nothing is to come: 0 decodes, and at 2 leaves
    2  1's 3 tokens, its second and last; at 3, 2
    """
    rows = [of_class("a", 0, 1, 2), of_class("b", 0, 2, 2), of_class("b", 1, 1, 1)]
    outcome = simulate(rows, engine(wait(1), tokens=3))
    assert drawn(outcome) == ["0: 0+1* 1+2*", "1: 0+1*", "2: 1+3*", "3: 2+1*"]
    assert outcome.drains == 1


@pytest.mark.parametrize("other", [request(1, 9, 1), request(1, 1, 1, patience_s=0)])
def test_drain_comes_after_the_last_event(other: Described) -> None:
    """4 blocks, threshold 2: 0 waits for 1, which is rejected, or leaves at once. Then nothing is to come."""
    outcome = simulate([request(0, 1, 2), other], engine(wait(2), tokens=4))
    assert drawn(outcome) == ["1: 0+1*", "2: 0+1*"]
    assert outcome.drains == 2


def test_patience_of_the_admitted_is_no_event() -> None:
    """Threshold 2; 0: o = 2, patience until 9. Both go at 1; at 2 nothing is to come: 0 decodes at once."""
    rows = [request(0, 1, 2, patience_s=9), request(1, 1, 1, patience_s=9)]
    outcome = simulate(rows, engine(wait(2)))
    assert drawn(outcome) == ["1: 0+1* 1+1*", "2: 0+1*"]


def test_nested_wait_figure_6() -> None:
    """ao2025 Figure 6: stage 0 is segment 1, stages 1 and 2 are segment 2, three for each. P1 has id 0.

    0   P1 P2: wait                            1   P3: segment 1; P1 and P2 complete, P3 in segment 2
    5   P4 P5: wait                            7   P6 P7: P4 P5 P6 go; P4 completes, P7 is left
    11  P7 P8: wait                            14  P9 P10: P7 P8 P9 go, and P3 P5 P6 in segment 2
    15  P3 P5 P9 complete; P6 P7 P8 in segment 2, P10 in segment 1: nothing is to come, all are served
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
    """Stages 0 and 1, stage 2, stages from 3 on; the second needs two, the others one. o = 4, 4, 1, 1, 1.

    1     0 is inside segment 1, beside 1 at its entry
    2     0 is at the entry of segment 2, which needs two; 1 goes on in segment 1, beside 2
    3     0 and 1 are at the entry of segment 2: both, beside 3
    4     both are at the entry of segment 3, but that of segment 2 is short: 4 alone
    5, 6  nothing is to come: all segments, the first of the entry and then the other
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


# nie2026: stepping out of memory.


def test_slot_greedy_steps_out_at_no_cost() -> None:
    """6 blocks, chunks of 2. 0: p = 3, o = 3; 1: p = 2, o = 3; 2: p = 1, o = 1; all at 0.

    0  2 + 2 + 1 blocks                     1  0's last 1 and 1's decode: 3 + 3 blocks; 2 has left
    2  0 needs 4, 1 needs 4: it steps out   3  0 needs 5, 1 stays out
    4  1 comes back with its 3 and decodes at once
    """
    rows = [request(0, 3, 3), request(0, 2, 3), request(0, 1, 1)]
    outcome = simulate(rows, engine({"kind": "SlotGreedy", "chunk": 2}, tokens=6))
    assert drawn(outcome) == ["0: 0+2 1+2* 2+1*", "1: 0+1* 1+1*", "2: 0+1*", "3: 0+1*", "4: 1+1*"]
    assert used(outcome) == [5, 6, 4, 5, 4]
    assert instants(outcome) == [[2, 3, 4], [1, 2, 5], [1]]
    assert preemptions(outcome) == [0, 1, 0]
    assert bounds(outcome) == ["broken", "nothing", "memory", "memory", "nothing"]


def test_slot_greedy_skips_who_does_not_fit() -> None:
    """8 blocks, chunks of 4. 0: p = 2, o = 4; 1: p = 4, o = 3; 2: p = 1, o = 3; all at 0.

    0  2 + 4 + 1 blocks                     1  3 + 5; 2 needs 2: it steps out
    2  4; 1 needs 6: out; 2 back with 2     3  5; 1 needs 6: out; 2 with 3
    4  1 with 6
    """
    rows = [request(0, 2, 4), request(0, 4, 3), request(0, 1, 3)]
    outcome = simulate(rows, engine({"kind": "SlotGreedy", "chunk": 4}, tokens=8))
    assert drawn(outcome) == ["0: 0+2* 1+4* 2+1*", "1: 0+1* 1+1*", "2: 0+1* 2+1*", "3: 0+1* 2+1*", "4: 1+1*"]
    assert used(outcome) == [7, 8, 6, 8, 6]
    assert preemptions(outcome) == [0, 1, 1]


def test_slot_greedy_stops_at_the_first_new_one_that_does_not_fit() -> None:
    """4 blocks, chunks of 3. p = 2, 3, 1: 1's first chunk does not fit beside 0, and 2 is behind it."""
    rows = [request(0, 2, 1), request(0, 3, 1), request(0, 1, 1)]
    outcome = simulate(rows, engine({"kind": "SlotGreedy", "chunk": 3}, tokens=4))
    assert drawn(outcome) == ["0: 0+2*", "1: 1+3* 2+1*"]
