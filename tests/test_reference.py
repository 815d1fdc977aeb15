"""Is the reference itself right? Cases worked out by hand that any scheduler meets, and laws."""

from typing import Any

import pytest

from . import reference
from .policies.sarathi import sarathi
from .policies.vllm_v0 import vllm_v0
from .policies.vllm_v1 import vllm_v1
from .random_scenarios import KINDS, scenario
from .timing_models import each_time
from .worked import SECOND, SLOT, SWAP, Described, drawn, engine, instants, linear, request, simulate, used

# Cases worked out by hand.


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


@pytest.mark.parametrize("scheduler", [sarathi, vllm_v0, vllm_v1])
def test_patience_runs_out_before_the_batch_of_that_instant(scheduler: Any) -> None:
    """One place, taken by 0 until 3. 1 would wait until 3, 2 until 3.5, 3 not at all."""
    rows = [request(0, 1, 3), request(0, 1, 1, patience_s=3), request(0, 1, 1, patience_s=3.5),
            request(0.5, 1, 1, patience_s=0)]  # fmt: skip
    outcome = simulate(rows, engine(scheduler(max_seqs=1)))
    assert [r.status for r in outcome.requests] == ["finished", "abandoned", "finished", "abandoned"]
    assert [r.left for r in outcome.requests] == [3 * SECOND, 3 * SECOND, 4 * SECOND, SECOND // 2]
    assert [r.admitted for r in outcome.requests] == [0, None, 3 * SECOND, None]


@pytest.mark.parametrize("scheduler", [sarathi(watermark=0.5), vllm_v0(watermark=0.5), vllm_v1()])
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
    replica = engine(scheduler, tokens=11, block=4, first_token=first_token)
    outcome = simulate([request(0.5, 5, output)], replica)
    assert [r.status for r in outcome.requests] == [status]
    assert (outcome.requests[0].left == SECOND // 2) == (status == "rejected")


def test_instants_coincide_as_typed() -> None:
    """R1: three slots of 0.1 s end when a request arrives at 0.3; half a nanosecond goes to even."""
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


def test_tiled_gemm() -> None:
    """bari2025 (7): two layers of width 16, tiles of 2 rows, 4 columns and 8 to reduce.

    1 s for each tile, 10 s for a token; budget 4, p = 6, o = 2.

    chunk of 4 at 0:  1 + 40 + 2 · 1·((16/8)·2 + (16/2)·1) = 65
    chunk of 2 at 4:  1 + 20 + 2 · 1·((16/8)·3 + (16/2)·1) = 49
    decode, i = 7:    1 + 10 + 2 · ((16/4)·4 + (16/2)·2) = 75
    """
    timing = {"kind": "TiledGemm", "rows": 2, "columns": 4, "reduction": 8, "width": 16, "layers": 2,
              "linear_s_per_tile": 1, "other_s_per_token": 10, "gemm_s": 1, "gemv_s": 1}  # fmt: skip
    outcome = simulate([request(0, 6, 2)], engine(sarathi(token_budget=4), timing))
    assert [i.length // SECOND for i in outcome.iterations] == [65, 49, 75]


# Laws, on random scenarios.

SEEDS = range(400)


def test_the_future_does_not_change_the_past() -> None:
    """L11, and the horizon: neither dropping later arrivals nor stopping changes what was before.

    Policies that wait for larger batches are excluded: a drain is known at once (R5).
    """
    kinds = [kind for kind in KINDS if "Wait" not in kind]
    for seed in SEEDS[::4]:
        replica, rows, _ = scenario(kinds[seed // 4 % len(kinds)], seed)
        whole = reference.simulate(rows, replica)
        middle = rows[len(rows) // 2]["arrival_s"]
        limit = reference.exact(middle)
        ended = [i for i in whole.iterations if i.start + i.length <= limit]
        begun = [(i.start, i.length, i.kv_used_tokens) for i in whole.iterations if i.start <= limit]
        dropped = reference.simulate([row for row in rows if row["arrival_s"] <= middle], replica)
        stopped = reference.simulate(rows, replica, horizon_s=middle)
        assert len(stopped.requests) == len(dropped.requests)
        for other in (dropped, stopped):
            assert other.iterations[: len(ended)] == ended
            assert [(i.start, i.length, i.kv_used_tokens) for i in other.iterations][: len(begun)] == begun
        assert len(stopped.iterations) == len(begun)
        for r, same in zip(stopped.requests, whole.requests, strict=False):
            assert r.tokens == [token for token in same.tokens if token <= limit]
            assert r.left == (same.left if same.left is not None and same.left <= limit else None)


def test_doubling_every_time_doubles_every_time() -> None:
    """L10, where nothing is rounded: lines of tables, shares of experts and mean lengths are."""

    def doubled(value: Any, name: str = "", is_time: bool = False) -> Any:
        """A description or a row, with twice the value of each time in it."""
        if isinstance(value, dict):
            inside = is_time or name in ("overhead", "preemption")
            return {one: doubled(inner, one, inside) for one, inner in value.items()}
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        is_time = (is_time and not name.endswith("_tokens")) or name.endswith("_s")
        return 2 * value if number and is_time else value

    compared = 0
    for seed in SEEDS[::2]:
        replica, rows, _ = scenario(KINDS[seed // 2 % len(KINDS)], seed)
        timing = replica["timing"]
        is_rounded = timing["kind"] == "TimingTable" or timing.get("experts")
        if is_rounded or replica["scheduler"]["kind"] == "Slai":
            continue
        once = reference.simulate(rows, replica)
        slower = {**doubled(replica), "timing": each_time(replica["timing"], lambda seconds: 2 * seconds)}
        twice = reference.simulate([doubled(row) for row in rows], slower)
        for one, two in zip(once.requests, twice.requests, strict=True):
            assert two.tokens == [2 * token for token in one.tokens]
        assert [i.rows for i in once.iterations] == [i.rows for i in twice.iterations]
        compared += 1
    assert compared > 120
