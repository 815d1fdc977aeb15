"""Is the reference itself right? Against cases worked out by hand, and the laws."""

import random
from typing import Any

import pytest

from .reference import Iteration, Outcome, simulate

Described = dict[str, Any]
SECOND = 10**18  # attoseconds
SLOT = {"kind": "Constant", "seconds": 1}
RECOMPUTE = {"kind": "Recompute"}
SWAP = {"kind": "Swap", "per_token": 0.5, "base": 1}


def sarathi(**changed: Any) -> Described:
    rules = {"token_budget": 8, "max_seqs": 4, "order": "fcfs", "watermark": 0, "preemption": RECOMPUTE}
    return {"kind": "Sarathi", **rules, **changed}


def vllm_v0(**changed: Any) -> Described:
    rules = {"token_budget": 8, "max_seqs": 4, "watermark": 0, "preemption": RECOMPUTE}
    return {"kind": "VllmV0", **rules, **changed}


def vllm_v1(**changed: Any) -> Described:
    rules = {"token_budget": 8, "max_seqs": 4, "long_prefill_threshold": 0, "policy": "fcfs"}
    return {"kind": "VllmV1", **rules, "reserve_full_prompt": True, **changed}


def linear(base: float, per_token: float, per_context_token: float = 0, **changed: Any) -> Described:
    rest = {"knee": 0, "per_prefill_square": 0, "per_chunk_context": 0}
    terms = {"base": base, "per_token": per_token, "per_context_token": per_context_token}
    return {"kind": "PiecewiseLinear", **terms, **rest, **changed}


def engine(scheduler: Described, timing: Described = SLOT, tokens: int | None = None, block: int = 1,
           first_token: str = "prefill") -> Described:  # fmt: skip
    kv = {"tokens": tokens, "block": block, "prefix_cache": None}
    return {"timing": timing, "scheduler": scheduler, "kv": kv, "first_token": first_token}


def request(arrival_s: float, prompt_tokens: int, output_tokens: int, **rest: Any) -> Described:
    return {"arrival_s": arrival_s, "prompt_tokens": prompt_tokens, "output_tokens": output_tokens, **rest}


def drawn(outcome: Outcome, unit: int = SECOND) -> list[str]:
    """Each iteration as 'start: request+tokens …'; a star marks a row that emits."""
    lines = []
    for start, _, rows, *_ in outcome.iterations:
        assert start % unit == 0
        lines.append(f"{start // unit}: " + " ".join(f"{at}+{n}{'*' * emits}" for at, n, emits in rows))
    return lines


def instants(outcome: Outcome, unit: int = SECOND) -> list[list[float]]:
    return [[token / unit for token in r.tokens] for r in outcome.requests]


def used(outcome: Outcome) -> list[int]:
    return [iteration.kv_used_tokens for iteration in outcome.iterations]


# Cases worked out by hand. Blocks of one token unless said.


def test_sarathi_chunks_beside_decodes() -> None:
    """Budget 4, an iteration lasts 10 ms + 1 ms per token. 0: p = 6, o = 3 at 0; 1: p = 3, o = 2 at 12 ms.

    ms   batch                                    length
     0   0 computes 4 of 6                        14
    14   0 its last 2 (first token), 1 2 of 3     14
    28   0 decodes, 1 its last 1 (first token)    12
    40   both decode and leave at 52              12
    """
    rows = [request(0, 6, 3), request(0.012, 3, 2)]
    outcome = simulate(rows, engine(sarathi(token_budget=4), linear(0.01, 0.001)))
    ms = SECOND // 1000
    assert drawn(outcome, ms) == ["0: 0+4", "14: 0+2* 1+2", "28: 0+1* 1+1*", "40: 0+1* 1+1*"]
    assert instants(outcome, ms) == [[28, 40, 52], [40, 52]]
    assert [r.admitted for r in outcome.requests] == [0, 14 * ms]
    assert [r.left for r in outcome.requests] == [52 * ms, 52 * ms]
    assert used(outcome) == [6, 9, 10, 12]  # Sarathi takes the whole prompt at admission: 6, then 3 more


@pytest.mark.parametrize(
    ("timing", "ends"),
    [
        (SLOT, [1, 2, 3]),
        # 1 + (4 - 3) + 4² = 18; 1 + 0 + 2² + 2·4 = 13; 1 + 0 + 6 = 7
        (linear(1, 1, 1, knee=3, per_prefill_square=1, per_chunk_context=1), [18, 31, 38]),
        # 1 + (0 + 4) = 5; 1 + (4 + 2) = 7; 1 + (6 + 1) = 8
        ({"kind": "MemoryLinear", "base": 1, "per_kv_token": 1}, [5, 12, 20]),
        # 5 + 4 = 9; 5 + 2 = 7; 2
        ({"kind": "MixedSolo", "alpha": 5, "beta": 1, "solo": 2}, [9, 16, 18]),
    ],
)
def test_each_timing_model(timing: Described, ends: list[int]) -> None:
    """Budget 4, p = 6, o = 2: a chunk of 4 at context 0, one of 2 at context 4, a decode at context 6."""
    outcome = simulate([request(0, 6, 2)], engine(sarathi(token_budget=4), timing))
    assert [(i.start + i.length) // SECOND for i in outcome.iterations] == ends
    assert instants(outcome) == [ends[1:]]


def test_first_token_decode_needs_one_decode_per_token() -> None:
    """As above: the prompt's last chunk emits nothing, both tokens are decodes, the context ends at 8."""
    outcome = simulate([request(0, 6, 2)], engine(sarathi(token_budget=4), first_token="decode"))
    assert drawn(outcome) == ["0: 0+4", "1: 0+2", "2: 0+1*", "3: 0+1*"]
    assert used(outcome) == [6, 6, 7, 8]
    # As a price: 4 and 6 tokens of chunks' contexts, then decodes at contexts 6 and 7.
    timing = linear(1, 0, 1)
    outcome = simulate([request(0, 6, 2)], engine(sarathi(token_budget=4), timing, first_token="decode"))
    assert [i.length // SECOND for i in outcome.iterations] == [1, 1, 7, 8]


def test_the_tail_of_a_recomputation_is_a_decode_for_the_price() -> None:
    """Budget 3, 7 blocks, an iteration lasts 1 s + 1 s per token of its decodes' contexts. p = 2; o = 6, 3.

    start  batch                                                              blocks  length
      0    0 computes 2*, 1 computes 1 of its 2                                  4      1
      1    0 decodes at context 2, 1 its last 1 (a chunk: it never emitted)      5      1 + 2
      4    0 decodes at 3, 1 at 2                                                7      1 + 5
     10    0 finds no block: 1 goes and owes 2 + 2 tokens; 0 decodes at 4        5      1 + 4
     15    1 needs 4 of 2 free: no; 0 decodes at 5                               6      1 + 5
     21    0 decodes at 6, its last                                              7      1 + 6
     28    1 computes 3 of 4                                                     4      1
     29    1 its last 1, at context 3: it has emitted before, a decode           4      1 + 3
    """
    rows = [request(0, 2, 6), request(0, 2, 3)]
    outcome = simulate(rows, engine(sarathi(token_budget=3), linear(1, 0, 1), tokens=7))
    assert drawn(outcome) == [
        "0: 0+2* 1+1", "1: 0+1* 1+1*", "4: 0+1* 1+1*", "10: 0+1*", "15: 0+1*", "21: 0+1*",
        "28: 1+3", "29: 1+1*",
    ]  # fmt: skip
    assert used(outcome) == [4, 5, 7, 5, 6, 7, 4, 4]
    assert instants(outcome) == [[1, 4, 10, 15, 21, 28], [4, 10, 33]]


@pytest.mark.parametrize("scheduler", [sarathi, vllm_v0])
def test_preemption_by_recompute(scheduler: Any) -> None:
    """8 blocks, slots of 1 s. Both arrive at 0 with p = 3; 0: o = 4, 1: o = 3.

    0  both prompts, 6 blocks
    1  both decode, 8 blocks
    2  0 finds no block: 1 (latest) loses its 4 and waits with 3 + 2 known tokens; 0 decodes, 5 blocks
    3  1 needs 5 of 3 free: no. 0 decodes, 6 blocks, and leaves at 4
    4  1 computes its 5 known tokens, which emits its third and last
    """
    rows = [request(0, 3, 4), request(0, 3, 3, patience_s=1)]  # patience has ended with the admission at 0
    outcome = simulate(rows, engine(scheduler(), tokens=8))
    assert drawn(outcome) == ["0: 0+3* 1+3*", "1: 0+1* 1+1*", "2: 0+1*", "3: 0+1*", "4: 1+5*"]
    assert used(outcome) == [6, 8, 5, 6, 5]
    assert instants(outcome) == [[1, 2, 3, 4], [1, 2, 5]]
    assert [r.preemptions for r in outcome.requests] == [0, 1]
    assert outcome.requests[1].admitted == 0


@pytest.mark.parametrize("scheduler", [sarathi, vllm_v0])
def test_preemption_by_swap(scheduler: Any) -> None:
    """The case above with Swap(0.5 s per token, 1 s): 1 moves its context of 4 out and back, 3 s each.

    2  0 decodes, 1 goes out: 1 + 3 s
    6  1 needs 4 + 1 blocks of 2 free: stays out. 0 decodes, leaves at 7
    7  1 comes back and decodes at once: 1 + 3 s
    """
    outcome = simulate([request(0, 3, 4), request(0, 3, 3)], engine(scheduler(preemption=SWAP), tokens=8))
    assert drawn(outcome) == ["0: 0+3* 1+3*", "1: 0+1* 1+1*", "2: 0+1*", "6: 0+1*", "7: 1+1*"]
    assert used(outcome) == [6, 8, 5, 6, 5]
    assert instants(outcome) == [[1, 2, 6, 7], [1, 2, 11]]


@pytest.mark.parametrize("scheduler", [sarathi, vllm_v0])
def test_the_latest_goes_first_and_itself_last(scheduler: Any) -> None:
    """9 blocks, three times p = 2, o = 4, all at 0.

    2  0 finds no block: 2 goes (3 blocks, knows 4); 0 and 1 decode, 8 blocks
    3  0 takes the last; 1 finds none, 0 is placed: 1 itself goes (knows 5). 0 leaves at 4
    4  1, then 2 are back with 5 and 4 blocks
    """
    outcome = simulate([request(0, 2, 4)] * 3, engine(scheduler(token_budget=9), tokens=9))
    assert drawn(outcome) == [
        "0: 0+2* 1+2* 2+2*", "1: 0+1* 1+1* 2+1*", "2: 0+1* 1+1*", "3: 0+1*", "4: 1+5* 2+4*", "5: 2+1*",
    ]  # fmt: skip
    assert used(outcome) == [6, 9, 8, 5, 9, 5]


@pytest.mark.parametrize(
    ("scheduler", "last", "blocks"),
    [(sarathi, ["32: 2+1* 3+1*"], [6]), (vllm_v0, ["32: 3+1*", "34: 2+1*"], [5, 5])],
)
def test_swapped_requests_come_first(scheduler: Any, last: list[str], blocks: list[int]) -> None:
    """The same with Swap, and 3 with p = 1, o = 1 at 3.

    2    2 goes out with a context of 3: 1 + 2.5 s
    5.5  1 goes out with 4: 1 + 3 s. 3 would fit, but 1 and 2 come first
    9.5  1 and 2 come back, oldest first (3 + 2.5 s), and decode: 9 blocks, none left for 3
    16   3 gets in: beside 2's last decode with Sarathi, before it with VllmV0 (which then holds 4 + 1 blocks)
    """
    rows = [request(0, 2, 4)] * 3 + [request(3, 1, 1)]
    outcome = simulate(rows, engine(scheduler(token_budget=9, preemption=SWAP), tokens=9))
    halves = ["0: 0+2* 1+2* 2+2*", "2: 0+1* 1+1* 2+1*", "4: 0+1* 1+1*", "11: 0+1*", "19: 1+1* 2+1*", *last]
    assert drawn(outcome, SECOND // 2) == halves
    assert used(outcome) == [6, 9, 8, 5, 9, *blocks]


def test_an_unfinished_prefill_goes_before_the_decode_that_needs_its_block() -> None:
    """spf, budget 3, 8 blocks. 0: p = 5, o = 1; 1: p = 2, o = 4; both at 0, so 1 runs first.

    2  1 finds no block: it is the latest, but itself last: 0 goes. It needs 5 again when 1 has left, at 4
    """
    rows = [request(0, 5, 1), request(0, 2, 4)]
    outcome = simulate(rows, engine(sarathi(order="spf", token_budget=3), tokens=8))
    assert drawn(outcome) == ["0: 1+2* 0+1", "1: 1+1* 0+2", "2: 1+1*", "3: 1+1*", "4: 0+3", "5: 0+2*"]
    assert used(outcome) == [7, 8, 4, 5, 5, 5]
    assert [r.preemptions for r in outcome.requests] == [1, 0]


@pytest.mark.parametrize(
    ("order", "batches"), [("spf", ["2: 0+1* 2+1*", "3: 1+6*"]), ("fcfs", ["2: 0+1*", "3: 1+6* 2+1*"])]
)
def test_sarathi_admits_in_a_step_that_preempted(order: str, batches: list[str]) -> None:
    """7 blocks. 0: p = 1, o = 3; 1: p = 4, o = 3; both at 0; 2: p = 1, o = 1 at 1.5.

    2  0 finds no block: 1 goes (5 blocks, knows 6), 4 are free. With spf 2 is the head and gets in; with
       fcfs 1 is, and a victim is not taken back in its own step
    """
    rows = [request(0, 1, 3), request(0, 4, 3), request(1.5, 1, 1)]
    outcome = simulate(rows, engine(sarathi(order=order), tokens=7))
    assert drawn(outcome) == ["0: 0+1* 1+4*", "1: 0+1* 1+1*", *batches]


def test_sarathi_does_not_take_a_victim_back_in_its_own_step() -> None:
    """spf, budget 16, 13 blocks, five requests at 0 with o = 3 and p = 1, 1, 1, 4, 1.

    1  all decode: 2 + 2 + 2 + 5 + 2 blocks
    2  0 finds no block: 4 goes (2 blocks, for 0 and 1); 2 finds none: 3 goes (5 blocks), 4 are free. 4 is the
       head and needs 3, but waits: 0, 1 and 2 decode alone, and leave
    """
    rows = [request(0, prompt, 3) for prompt in (1, 1, 1, 4, 1)]
    outcome = simulate(rows, engine(sarathi(order="spf", token_budget=16, max_seqs=5), tokens=13))
    assert drawn(outcome)[2:] == ["2: 0+1* 1+1* 2+1*", "3: 4+3* 3+6*"]
    assert used(outcome) == [8, 13, 9, 9]


@pytest.mark.parametrize("scheduler", [sarathi, vllm_v0])
@pytest.mark.parametrize(("prompts", "admitted"), [((4, 4), [0, 2]), ((4, 3), [0, 0]), ((9, 1), [0, 2])])
def test_watermark(scheduler: Any, prompts: tuple[int, int], admitted: list[int]) -> None:
    """10 blocks, share 0.3: 3 stay free at admission, save while nothing is held. 0 leaves at 2.

    (4, 4): 6 free - 4 < 3, then 5 - 4 < 3: waits. (4, 3): 6 - 3 = 3: at once. (9, 1): 9 of 10 alone is fine.
    """
    rows = [request(0, prompts[0], 2), request(0, prompts[1], 1)]
    outcome = simulate(rows, engine(scheduler(watermark=0.3, token_budget=16), tokens=10))
    assert [r.admitted for r in outcome.requests] == [second * SECOND for second in admitted]


def test_watermark_is_the_share_that_was_typed() -> None:
    """0.29 of 100 blocks are 29, though 28.999… in floats: 72 - 43 = 29 passes, 72 - 44 does not."""
    for prompt, admitted in ((43, 0), (44, 2)):
        rows = [request(0, 28, 2), request(0, prompt, 1)]
        outcome = simulate(rows, engine(sarathi(watermark=0.29, token_budget=100), tokens=100))
        assert outcome.requests[1].admitted == admitted * SECOND


@pytest.mark.parametrize(("order", "starts"), [("fcfs", [0, 1, 2]), ("spf", [2, 0, 1])])
def test_sarathi_order(order: str, starts: list[int]) -> None:
    """One place, prompts 5, 2, 2, one token each: spf takes 1, 2 (earlier id first), 0."""
    rows = [request(0, 5, 1), request(0, 2, 1), request(0, 2, 1)]
    outcome = simulate(rows, engine(sarathi(order=order, max_seqs=1)))
    assert [r.admitted for r in outcome.requests] == [second * SECOND for second in starts]


def test_decodes_go_by_arrival_whatever_the_order_of_the_queue() -> None:
    """spf, budget 9, prompts 5, 2, 2, two tokens each: prefills 1, 2, 0, then decodes 0, 1, 2."""
    rows = [request(0, 5, 2), request(0, 2, 2), request(0, 2, 2)]
    outcome = simulate(rows, engine(sarathi(order="spf", token_budget=9)))
    assert drawn(outcome) == ["0: 1+2* 2+2* 0+5*", "1: 0+1* 1+1* 2+1*"]


def test_vllm_v0_alternates() -> None:
    """0: p = 3, o = 3 at 0; 1: p = 2, o = 2 at 0.5. At 1 the new prompt stalls 0's decode."""
    outcome = simulate([request(0, 3, 3), request(0.5, 2, 2)], engine(vllm_v0()))
    assert drawn(outcome) == ["0: 0+3*", "1: 1+2*", "2: 0+1* 1+1*", "3: 0+1*"]
    assert instants(outcome) == [[1, 3, 4], [2, 3]]


def test_vllm_v0_resumed_input_longer_than_the_budget() -> None:
    """Budget 4, 10 blocks. 0 and 1: p = 4, o = 4 at 0; 2: p = 5 at 0.25; 3: p = 1, o = 1 at 5.5.

    .25  2's prompt passes the budget: rejected
    0, 1 one prompt each (4, then 8 blocks)
    2    both decode: 10 blocks
    3    0 finds no block: 1 goes, with 4 + 2 known tokens; 0 decodes
    4    1 needs 6 of 4 free: no; 0 emits its last
    5    1 alone: takes 6 blocks, computes 4
    6    1 alone: its last 2, though 3 waits and would fit: its third token
    7    3's prompt, prefill only
    8    1 decodes its last
    """
    rows = [request(0, 4, 4), request(0, 4, 4), request(0.25, 5, 1), request(5.5, 1, 1)]
    outcome = simulate(rows, engine(vllm_v0(token_budget=4), tokens=10))
    assert drawn(outcome) == [
        "0: 0+4*", "1: 1+4*", "2: 0+1* 1+1*", "3: 0+1*", "4: 0+1*", "5: 1+4", "6: 1+2*", "7: 3+1*", "8: 1+1*",
    ]  # fmt: skip
    assert used(outcome) == [4, 8, 10, 6, 7, 6, 6, 7, 7]
    rejected = outcome.requests[2]
    assert (rejected.status, rejected.left, rejected.admitted) == ("rejected", SECOND // 4, None)


def test_sarathi_swaps_out_an_unfinished_prefill() -> None:
    """Budget 3, 8 blocks, Swap. 0: p = 2, o = 5; 1: p = 5, o = 1; both at 0.

    0   0 computes 2*, 1 takes 5 blocks, computes 1: 7 blocks
    1   0 decodes (8 blocks), 1 computes 2 more
    2   0 finds no block: 1 goes out with a context of 3 (1 + 1.5 s); 0 decodes, 4 blocks, until 5.5
    5.5 1 needs 5 of 4 free: no; 0 decodes, and at 6.5 its last
    7.5 1 comes back (2.5 s), computes its last 2: first and only token at 11
    """
    rows = [request(0, 2, 5), request(0, 5, 1)]
    outcome = simulate(rows, engine(sarathi(token_budget=3, preemption=SWAP), tokens=8))
    batches = ["0: 0+2* 1+1", "10: 0+1* 1+2", "20: 0+1*", "55: 0+1*", "65: 0+1*", "75: 1+2*"]
    assert drawn(outcome, SECOND // 10) == batches
    assert used(outcome) == [7, 8, 4, 5, 6, 5]
    assert instants(outcome) == [[1, 2, 5.5, 6.5, 7.5], [11]]


def test_vllm_v1_victim_that_is_placed_gives_its_tokens_back() -> None:
    """priority, budget 3, 11 blocks. 0: p = 1, o = 6, priority 1; 1: p = 1, o = 5 and 2: p = 6, o = 1 at 1.

    1-3  0 and 1 compute one token each, 2 what is left, 1: at the end 10 blocks (4, 3, 3)
    4    0 takes the last block; 1 finds none: 0, the worst, leaves the batch; 2 computes 2, not 1
    5    1 and 2 end; 0 (knows 5) finds no room until 6
    """
    rows = [request(0, 1, 6, priority=1), request(1, 1, 5), request(1, 6, 1)]
    outcome = simulate(rows, engine(vllm_v1(token_budget=3, policy="priority"), tokens=11))
    assert drawn(outcome) == [
        "0: 0+1*", "1: 0+1* 1+1* 2+1", "2: 0+1* 1+1* 2+1", "3: 0+1* 1+1* 2+1",
        "4: 1+1* 2+2", "5: 1+1* 2+1*", "6: 0+3", "7: 0+2*", "8: 0+1*",
    ]  # fmt: skip
    assert used(outcome) == [1, 4, 7, 10, 9, 11, 3, 5, 6]


def test_vllm_v1_ends_its_running_phase_with_its_own_victim() -> None:
    """priority, 9 blocks. 0: p = 1, o = 5 and 1: p = 1, o = 5, priority 1, at 0; 2: p = 1, o = 3 at 1.

    3  0 takes the ninth block; 1 finds none and is itself the worst: it goes, and 2 behind it is not reached
    """
    rows = [request(0, 1, 5), request(0, 1, 5, priority=1), request(1, 1, 3)]
    outcome = simulate(rows, engine(vllm_v1(policy="priority"), tokens=9))
    assert drawn(outcome) == [
        "0: 0+1* 1+1*", "1: 0+1* 1+1* 2+1*", "2: 0+1* 1+1* 2+1*", "3: 0+1*", "4: 0+1* 2+1*",
        "5: 1+4*", "6: 1+1*",
    ]  # fmt: skip
    assert used(outcome) == [2, 5, 8, 6, 8, 4, 5]


def test_an_empty_plan_that_preempted_is_asked_again_at_once() -> None:
    """priority, 5 blocks. 0: p = 2, o = 3, priority 1, at 0; 1: p = 2, o = 3 at 1.

    2  0 finds no block and is itself the worst: nothing is planned. Asked again at 2, VllmV1 decodes 1
    """
    rows = [request(0, 2, 3, priority=1), request(1, 2, 3)]
    outcome = simulate(rows, engine(vllm_v1(policy="priority"), tokens=5))
    assert drawn(outcome) == ["0: 0+2*", "1: 0+1* 1+2*", "2: 1+1*", "3: 1+1*", "4: 0+4*"]


@pytest.mark.parametrize("scheduler", [sarathi, vllm_v0, vllm_v1])
def test_patience_runs_out_before_the_batch_of_that_instant(scheduler: Any) -> None:
    """One place, taken by 0 until 3. 1 would wait until 3, 2 until 3.5, 3 not at all."""
    rows = [request(0, 1, 3), request(0, 1, 1, patience_s=3), request(0, 1, 1, patience_s=3.5),
            request(0.5, 1, 1, patience_s=0)]  # fmt: skip
    outcome = simulate(rows, engine(scheduler(max_seqs=1)))
    assert [r.status for r in outcome.requests] == ["finished", "abandoned", "finished", "abandoned"]
    assert [r.left for r in outcome.requests] == [3 * SECOND, 3 * SECOND, 4 * SECOND, SECOND // 2]
    assert [r.admitted for r in outcome.requests] == [0, None, 3 * SECOND, None]


@pytest.mark.parametrize("scheduler", [sarathi, vllm_v0, vllm_v1])
@pytest.mark.parametrize(
    ("output", "first_token", "status"),
    [
        (4, "prefill", "finished"),
        (5, "prefill", "rejected"),
        (3, "decode", "finished"),
        (4, "decode", "rejected"),
    ],
)
def test_what_can_never_fit(scheduler: Any, output: int, first_token: str, status: str) -> None:
    """11 tokens in blocks of 4 are 2 blocks: p = 5 with a largest context of 8 fits, of 9 does not."""
    replica = engine(scheduler(watermark=0.5), tokens=11, block=4, first_token=first_token)
    outcome = simulate([request(0.5, 5, output)], replica)
    assert [r.status for r in outcome.requests] == [status]
    assert (outcome.requests[0].left == SECOND // 2) == (status == "rejected")


def test_instants_coincide_as_typed() -> None:
    """Rule 1: three slots of 0.1 s end when a request arrives at 0.3; half a nanosecond goes to even."""
    slot = {"kind": "Constant", "seconds": 0.1}
    outcome = simulate([request(0, 1, 9), request(0.3, 1, 1)], engine(sarathi(), slot))
    assert outcome.requests[1].admitted == outcome.iterations[3].start == 3 * SECOND // 10
    outcome = simulate([request(s, 1, 1) for s in (5e-10, 1.5e-9, 2.5e-9, 2.6e-9)], engine(sarathi()))
    assert [r.arrival // 10**9 for r in outcome.requests] == [0, 2, 2, 3]


def test_horizon() -> None:
    """Slots of 1 s, horizon 2: the token at 2 and the batch formed at 2 happen, that batch emits nothing."""
    rows = [request(0, 3, 3), request(2, 1, 1), request(2.5, 1, 1)]
    outcome = simulate(rows, engine(sarathi()), horizon_s=2)
    assert drawn(outcome) == ["0: 0+3*", "1: 0+1*", "2: 0+1 1+1"]
    assert instants(outcome) == [[1, 2], []]
    assert [(r.status, r.left) for r in outcome.requests] == [("unfinished", None)] * 2
    assert [r.admitted for r in outcome.requests] == [0, 2 * SECOND]


# The laws, on random scenarios.


def scenario(seed: int) -> tuple[list[Described], Described]:
    """A small, crowded scenario: all schedulers, timings, conventions, caches tight to unlimited."""
    draw = random.Random(seed)
    budget = draw.choice([3, 8, 16, 64])
    shape = {"token_budget": budget, "max_seqs": draw.choice([1, 2, 3, 5, 20])}
    spill: Described = {"watermark": draw.choice([0, 0.01, 0.1, 0.3])}
    spill["preemption"] = draw.choice([RECOMPUTE, {"kind": "Swap", "per_token": 0.0003, "base": 0.002}])
    scheduler = draw.choice([
        sarathi(**shape, **spill, order=draw.choice(["fcfs", "spf"])),
        vllm_v0(**shape, **spill),
        vllm_v1(**shape, policy=draw.choice(["fcfs", "priority"]), reserve_full_prompt=draw.random() < 0.5,
                long_prefill_threshold=draw.choice([0, 2, 5])),
    ])  # fmt: skip
    timing = draw.choice([
        {"kind": "Constant", "seconds": 0.01},
        linear(0.01, 0.001, 1e-4, knee=draw.choice([0, 4]), per_prefill_square=1e-5, per_chunk_context=2e-5),
        {"kind": "MemoryLinear", "base": 0.01, "per_kv_token": 0.0002},
        {"kind": "MixedSolo", "alpha": 0.012, "beta": 0.001, "solo": 0.01},
    ])  # fmt: skip
    tokens, block = draw.choice([16, 24, 40, 64, None]), draw.choice([1, 4])
    replica = engine(scheduler, timing, tokens, block, draw.choice(["prefill", "decode"]))
    rows, now = [], 0.0
    for _ in range(draw.choice([1, 3, 12, 25])):
        now = round(now + draw.choice([0, 0, 0.01, 0.013, 0.1]), 3)
        rows.append(request(now, draw.randint(1, 14), draw.randint(1, 16), priority=draw.randint(0, 2)))
        if draw.random() < 0.3:
            rows[-1]["patience_s"] = draw.choice([0, 0.01, 0.05, 0.3])
    return rows, replica


SEEDS = range(400)


def emissions(iterations: list[Iteration], at: int) -> list[int]:
    return [i.start + i.length for i in iterations for row, _, emits in i.rows if row == at and emits]


def assert_laws(outcome: Outcome, rows: list[Described], replica: Described) -> None:
    rules, kv = replica["scheduler"], replica["kv"]
    for before, after in zip(outcome.iterations, outcome.iterations[1:], strict=False):
        assert before.start + before.length <= after.start  # L3
    for iteration in outcome.iterations:  # L7
        assert 0 < len(iteration.rows) <= rules["max_seqs"]
        assert len({at for at, _, _ in iteration.rows}) == len(iteration.rows)
        assert 0 < sum(n for _, n, _ in iteration.rows) <= rules["token_budget"]
        assert kv["tokens"] is None or iteration.kv_used_tokens <= kv["tokens"]
    assert len(outcome.requests) == len(rows)  # L1: and each has an end
    for r in outcome.requests:
        assert r.status in ("finished", "rejected", "abandoned")
        assert r.blocks == 0  # L4
        assert r.tokens == emissions(outcome.iterations, r.id)  # L5
        assert len(r.tokens) == (r.output if r.status == "finished" else 0)
        if r.status == "finished":
            starts = [i.start for i in outcome.iterations if r.id in {at for at, _, _ in i.rows}]
            assert r.admitted == min(starts)
            assert r.arrival <= r.admitted < r.tokens[0] == r.first_token  # L2
            assert r.tokens[-1] == r.finish == r.left
            computed = sum(n for i in outcome.iterations for at, n, _ in i.rows if at == r.id)
            once = r.prompt + r.output - (replica["first_token"] == "prefill")
            swaps = rules.get("preemption") is not None and rules["preemption"]["kind"] == "Swap"
            assert computed == once if swaps or r.preemptions == 0 else computed > once
        else:
            assert r.admitted is None
            assert r.left == r.arrival + (r.status == "abandoned") * (r.gives_up - r.arrival)


def assert_blocks(outcome: Outcome, replica: Described) -> None:
    """Where nobody was preempted: the blocks used are those of each live context, or of the prompt held."""
    whole_prompt, block = replica["scheduler"]["kind"] != "VllmV1", replica["kv"]["block"]
    contexts = dict.fromkeys(range(len(outcome.requests)), 0)
    for iteration in outcome.iterations:
        for at, n, _ in iteration.rows:
            contexts[at] += n
        live = [r for r in outcome.requests if contexts[r.id] and (r.left or 0) > iteration.start]
        holds = [max(contexts[r.id], r.prompt if whole_prompt else 0) for r in live]
        assert iteration.kv_used_tokens == sum(-(-tokens // block) * block for tokens in holds)


def test_laws_on_random_scenarios() -> None:
    """L1 to L5 and L7; the draws must reach every status, and preemption by every policy."""
    statuses, preempting = set(), set()
    for seed in SEEDS:
        rows, replica = scenario(seed)
        outcome = simulate(rows, replica)
        assert_laws(outcome, rows, replica)
        statuses |= {r.status for r in outcome.requests}
        if any(r.preemptions for r in outcome.requests):
            rules = replica["scheduler"]
            preempting.add((rules["kind"], rules.get("policy") or rules["preemption"]["kind"]))
        else:
            assert_blocks(outcome, replica)
    assert statuses == {"finished", "rejected", "abandoned"}
    assert preempting == {
        ("Sarathi", "Recompute"), ("Sarathi", "Swap"), ("VllmV0", "Recompute"), ("VllmV0", "Swap"),
        ("VllmV1", "fcfs"), ("VllmV1", "priority"),
    }  # fmt: skip


def test_the_future_does_not_change_the_past() -> None:
    """L11, and the horizon: neither dropping later arrivals nor stopping changes what was before."""
    for seed in SEEDS[::4]:
        rows, replica = scenario(seed)
        whole = simulate(rows, replica)
        middle = rows[len(rows) // 2]["arrival_s"]
        limit = round(middle * 1000) * SECOND // 1000
        ended = [i for i in whole.iterations if i.start + i.length <= limit]
        begun = [(i.start, i.length, i.kv_used_tokens) for i in whole.iterations if i.start <= limit]
        dropped = simulate([row for row in rows if row["arrival_s"] <= middle], replica)
        stopped = simulate(rows, replica, horizon_s=middle)
        assert len(stopped.requests) == len(dropped.requests)
        for other in (dropped, stopped):
            assert other.iterations[: len(ended)] == ended
            assert [(i.start, i.length, i.kv_used_tokens) for i in other.iterations][: len(begun)] == begun
        assert len(stopped.iterations) == len(begun)
        for r, same in zip(stopped.requests, whole.requests, strict=False):
            assert r.tokens == [token for token in same.tokens if token <= limit]
            assert r.left == (same.left if same.left is not None and same.left <= limit else None)


def test_doubling_every_time_doubles_every_time() -> None:
    """L10."""

    def doubled(described: Described) -> Described:
        times = ("arrival_s", "patience_s", "seconds", "base", "per_token", "per_context_token", "alpha",
                 "beta", "per_prefill_square", "per_chunk_context", "per_kv_token", "solo")  # fmt: skip
        inner = {k: doubled(v) for k, v in described.items() if isinstance(v, dict)}
        return {**described, **{k: 2 * described[k] for k in times if k in described}, **inner}

    for seed in SEEDS[::8]:
        rows, replica = scenario(seed)
        once, twice = simulate(rows, replica), simulate([doubled(row) for row in rows], doubled(replica))
        for one, two in zip(once.requests, twice.requests, strict=True):
            assert two.tokens == [2 * token for token in one.tokens]
        assert [i.rows for i in once.iterations] == [i.rows for i in twice.iterations]
