"""Where simulators of real engines go wrong: one worked case for each place, numbers by hand.

All iterations last one second. One item is left out, "a running request that owes nothing is skipped":
without asynchronous scheduling every running request owes at least one token.
"""

from typing import Any

import polars as pl

import inferq as iq
from inferq.scheduler import Scheduler

Row = tuple[int, int, bool]


def _run(scheduler: Scheduler, kv: iq.KvCache, *requests: tuple[float, int, int, int]) -> iq.Result:
    """Requests are (arrival, prompt, output, priority)."""
    columns = ["arrival_s", "prompt_tokens", "output_tokens", "priority"]
    frame = pl.DataFrame(requests, schema=columns, orient="row")
    engine = iq.Engine(timing=iq.Constant(1.0), scheduler=scheduler, kv=kv)
    return iq.simulate(frame, engine, batches=True, stepping=True)


def _batches(result: iq.Result) -> list[list[Row]]:
    """Rows (request, tokens, emits) of each iteration."""
    rows: list[list[Row]] = [[] for _ in range(result.iterations.height)]
    for iteration, request, tokens, emits in result.batches.iter_rows():
        rows[iteration].append((request, tokens, emits))
    return rows


def _column(result: iq.Result, name: str) -> list[Any]:
    return result.requests[name].to_list()


def _two_victims() -> iq.Result:
    """A prompt of 36 in chunks of 12 beside two short requests, in ten blocks of four.

    t=0: 3 + 1 + 1 blocks. t=1: 3 more for the chunk, one for each decode: all ten are taken. t=2: the chunk
    needs 3. Request 2 gives 2, then request 1 gives 2. Request 3 arrives: it comes first by priority and
    would fit the block that is left, but the step has preempted. t=3: request 0 takes the last block and
    ends. t=4: all others.
    """
    scheduler = iq.VllmV1(
        token_budget=64, long_prefill_threshold=12, policy="priority", reserve_full_prompt=False
    )
    requests = [(0.0, 36, 2, 0), (0.0, 4, 3, 1), (0.0, 4, 3, 1), (2.0, 1, 1, 0)]
    return _run(scheduler, iq.KvCache(tokens=40, block=4), *requests)


def test_vllm_v1_several_victims_keep_their_order_and_prefill_their_outputs():
    assert _batches(_two_victims()) == [
        [(0, 12, False), (1, 4, True), (2, 4, True)],
        [(0, 12, False), (1, 1, True), (2, 1, True)],
        [(0, 12, True)],
        [(0, 1, True)],
        [(3, 1, True), (1, 6, True), (2, 6, True)],
    ]


def test_vllm_v1_a_step_that_preempted_admits_nobody():
    assert _column(_two_victims(), "admitted_s") == [0.0, 0.0, 0.0, 4.0]


def test_preemption_does_not_reset_the_time_to_first_token():
    result = _two_victims()
    assert _column(result, "first_token_s") == [3.0, 1.0, 1.0, 5.0]
    assert _column(result, "preemptions") == [0, 1, 1, 0]
    # Tokens of request 1 at 1, 2 and 5: the gap over the preemption is a gap.
    assert _column(result, "max_tbt_s")[1] == 3.0


def test_vllm_v1_what_was_placed_for_a_priority_victim_returns_to_the_budget():
    """Blocks of one, 22 of them; budget 8; chunks of 4 while there is company.

    t=3: request 0 (worst) is placed with one token. Request 1 lacks blocks for its 4, so request 0 goes. Then
    4 tokens of the budget are left for request 2; without the refund they would be 3, as in the steps before.
    """
    scheduler = iq.VllmV1(
        token_budget=8, long_prefill_threshold=4, policy="priority", reserve_full_prompt=False
    )
    requests = [(0.0, 4, 10, 5), (1.0, 16, 1, 0), (1.0, 16, 1, 0)]
    batches = _batches(_run(scheduler, iq.KvCache(tokens=22, block=1), *requests))
    assert batches[:4] == [
        [(0, 4, True)],
        [(0, 1, True), (1, 4, False), (2, 3, False)],
        [(0, 1, True), (1, 4, False), (2, 3, False)],
        [(1, 4, False), (2, 4, False)],
    ]


def test_vllm_v1_the_head_of_the_queue_blocks_the_others():
    """Ten blocks of one: request 1 needs 8 where 5 are free; request 2 would fit and waits behind it."""
    requests = [(0.0, 5, 2, 0), (0.0, 8, 1, 0), (0.0, 1, 1, 0)]
    result = _run(iq.VllmV1(), iq.KvCache(tokens=10, block=1), *requests)
    assert _column(result, "admitted_s") == [0.0, 2.0, 2.0]


def test_sarathi_may_admit_in_a_step_that_preempted_but_not_its_victim():
    """14 blocks of one. t=2: two decodes lack blocks; request 1 goes and frees 9; request 2 is shorter."""
    requests = [(0.0, 4, 6, 0), (0.0, 8, 5, 0), (2.0, 1, 1, 0)]
    scheduler = iq.Sarathi(order="spf", watermark=0.0)
    batches = _batches(_run(scheduler, iq.KvCache(tokens=14, block=1), *requests))
    assert batches[:3] == [
        [(0, 4, True), (1, 8, True)],
        [(0, 1, True), (1, 1, True)],
        [(0, 1, True), (2, 1, True)],
    ]


def test_sarathi_decodes_come_first_and_chunks_take_what_the_budget_leaves():
    batches = _batches(
        _run(iq.Sarathi(token_budget=8), iq.KvCache.unlimited(), (0.0, 4, 4, 0), (0.0, 20, 1, 0))
    )
    assert batches == [
        [(0, 4, True), (1, 4, False)],
        [(0, 1, True), (1, 7, False)],
        [(0, 1, True), (1, 7, False)],
        [(0, 1, True), (1, 2, True)],
    ]


def test_vllm_v0_computes_whole_prompts_without_decodes_and_decodes_without_prompts():
    batches = _batches(_run(iq.VllmV0(), iq.KvCache.unlimited(), (0.0, 4, 3, 0), (1.0, 20, 2, 0)))
    assert batches == [[(0, 4, True)], [(1, 20, True)], [(0, 1, True), (1, 1, True)], [(0, 1, True)]]


def test_the_watermark_counts_only_while_something_else_holds_blocks():
    """100 blocks of one, ten kept: 45 do not go beside 50, but 95 go alone."""
    for scheduler in (iq.Sarathi(watermark=0.1), iq.VllmV0(watermark=0.1)):
        beside = _run(scheduler, iq.KvCache(tokens=100, block=1), (0.0, 50, 4, 0), (1.0, 45, 1, 0))
        assert _column(beside, "admitted_s") == [0.0, 4.0]
        alone = _run(scheduler, iq.KvCache(tokens=100, block=1), (0.0, 95, 4, 0))
        assert _column(alone, "finish_s") == [4.0]
    for scheduler in (iq.Sarathi(watermark=0.0), iq.VllmV0(watermark=0.0)):
        beside = _run(scheduler, iq.KvCache(tokens=100, block=1), (0.0, 50, 4, 0), (1.0, 45, 1, 0))
        assert _column(beside, "admitted_s") == [0.0, 1.0]


def test_a_request_larger_than_the_whole_cache_is_rejected_and_never_looped_on():
    for scheduler in (iq.Sarathi(), iq.VllmV0(), iq.VllmV1(), iq.VllmV1(reserve_full_prompt=False)):
        result = _run(scheduler, iq.KvCache(tokens=64, block=16), (0.0, 60, 6, 0), (0.0, 60, 5, 0))
        assert _column(result, "status") == ["rejected", "finished"]
    too_long = _run(iq.VllmV0(token_budget=50), iq.KvCache.unlimited(), (0.0, 51, 1, 0), (0.0, 50, 1, 0))
    assert _column(too_long, "status") == ["rejected", "finished"]
