"""Columns that define shared prefixes, and their errors."""

from typing import Any

import numpy as np
import polars as pl
import pytest

import inferq as iq

from .refusals import refused


def _engine(block: int = 4, tokens: int | None = None) -> iq.Engine:
    return iq.Engine(
        timing=iq.Constant(1.0),
        scheduler=iq.VllmV1(),
        kv=iq.KvCache(tokens=tokens, block=block, prefix_cache="blocks"),
    )


def _cached(columns: dict[str, Any], block: int = 4, tokens: int | None = None) -> list[int]:
    """Simulate one request every 100 seconds; return the cached tokens."""
    rows = len(columns["prompt_tokens"])
    defaults = {"arrival_s": [100.0 * row for row in range(rows)], "output_tokens": [2] * rows}
    frame = pl.DataFrame({**defaults, **columns})
    return iq.simulate(frame, _engine(block, tokens)).requests["cached_tokens"].to_list()


def test_whole_blocks_are_hits_except_the_last_token():
    # Blocks of 4: 8 of 10 shared tokens; 4 of a prompt of 8 shared tokens, since one must be computed.
    parts = [[["system", 10]], [["system", 10]], [["system", 8]], [["other", 8]]]
    typed = pl.Series("prefix_parts", [[{"text": text, "tokens": n} for text, n in row] for row in parts])
    assert _cached({"prompt_tokens": [12, 30, 8, 8], "prefix_parts": typed}) == [0, 8, 4, 0]


def test_a_text_is_shared_only_after_the_same_texts():
    parts = [[[1, 4], [2, 8]], [[2, 8]], [[1, 4], [2, 4]], [[1, 5], [2, 8]]]
    assert _cached({"prompt_tokens": [16] * 4, "prefix_parts": parts}) == [0, 0, 8, 4]


@pytest.mark.parametrize("block", [4, 8, 16, 3])
def test_hashes_are_cut_into_the_blocks_of_the_cache(block: int):
    # 20 tokens in hashed blocks of 8: the first two hashes, 16 tokens, are shared.
    hashes = [[5, 6, 7], [5, 6, 9], [6, 5, 7], [5, 6, 7]]
    columns = {"prompt_tokens": [20] * 4, "prefix_hashes": hashes, "prefix_block_tokens": [8] * 4}
    assert _cached(columns, block) == [0, 16 // block * block, 0, 19 // block * block]


def test_a_continuation_reuses_the_prompt_and_answer_of_its_predecessor():
    # Row 1 begins with all 10 + 6 tokens of row 0; the last one was never computed.
    columns = {"prompt_tokens": [10, 20, 30], "output_tokens": [6, 4, 1], "continues": [None, 0, 1]}
    assert _cached(columns, block=1) == [0, 15, 23]
    assert _cached(columns, block=4) == [0, 12, 20]


def test_turns_of_a_session_continue_the_previous_turn():
    columns = {"prompt_tokens": [10, 20, 30], "output_tokens": [6, 4, 1]}
    sessions = {**columns, "session_id": ["a", "a", "a"], "turn": [0, 1, 4]}
    assert _cached(sessions, block=4) == [0, 12, 20]
    assert _cached({**sessions, "session_id": ["a", None, "a"]}, block=4) == [0, 0, 12]
    # A turn that is too short was truncated.
    assert _cached({**sessions, "prompt_tokens": [10, 15, 30]}, block=4) == [0, 0, 16]


@pytest.mark.parametrize("grows", [True, False])
def test_growing_conversations_hit_the_cache(grows: bool):
    chat = iq.Workload.sessions(
        sessions=2,
        arrivals=iq.dist.Deterministic(rate=1),
        turns=3,
        prompt=10,
        output=20,
        think=500.0,
        grows=grows,
    )
    cached = iq.simulate(chat, _engine(block=1)).requests["cached_tokens"].to_list()
    # Prompts of 10, 40 and 70 tokens share 30 and 60; the last shared token was never computed.
    assert sorted(cached) == ([0, 0, 29, 29, 59, 59] if grows else [0] * 6)


def test_a_truncated_conversation_misses_the_cache():
    chat = iq.Workload.sessions(
        sessions=1,
        arrivals=iq.dist.Deterministic(1),
        turns=3,
        prompt=10,
        output=20,
        think=500.0,
        max_context=75,
    )
    assert iq.simulate(chat, _engine(block=1)).requests["cached_tokens"].to_list() == [0, 29, 0]


def test_the_least_recently_used_blocks_are_evicted_first():
    # 11 blocks: two texts of 4 blocks each, then a request with 5 blocks. The ends are evicted first.
    parts = [[[1, 16]], [[2, 16]], None, [[2, 17]], [[1, 17]]]
    typed = pl.Series("prefix_parts", parts, dtype=pl.List(pl.List(pl.Int64)))
    prompts = [16, 16, 19, 18, 18]
    assert _cached({"prompt_tokens": prompts, "prefix_parts": typed}, tokens=44) == [0, 0, 0, 16, 4]


_HASHES = {"prompt_tokens": [20, 20], "prefix_block_tokens": [8, 8]}


@refused(
    (
        _HASHES | {"prefix_hashes": [[1, 2, 3], [1]]},
        "row 1: prefix_hashes has 1 hashes, must have 3 for a prompt of 20 tokens",
    ),
    (_HASHES | {"prefix_hashes": [[1, 2, 3], [1, 2, 3, 4]]}, "row 1: prefix_hashes has 4 hashes"),
    (_HASHES | {"prefix_hashes": [[1, None, 3], [1, 2, 3]]}, "row 0: prefix_hashes contains null"),
    (
        _HASHES | {"prefix_hashes": [[1, 2, 3], [1, 2]], "prefix_block_tokens": [8, 16]},
        "row 1: prefix_block_tokens is 16, must be 8 as in earlier rows",
    ),
    (
        _HASHES | {"prefix_hashes": [[1, 2, 3], [1, 2, 3]], "prefix_block_tokens": [8, None]},
        "row 1: prefix_block_tokens is null, must be set for prefix_hashes",
    ),
    (
        {"prompt_tokens": [20], "prefix_hashes": [[1, 2, 3]]},
        "prefix_hashes requires the column prefix_block_tokens",
    ),
    (
        {"prompt_tokens": [20], "prefix_parts": [[[None, 3]]]},
        "row 0: prefix_parts has null as the name of a text",
    ),
    ({"prompt_tokens": [20], "prefix_parts": [[[1, 0]]]}, "row 0: prefix_parts has 0 tokens"),
    ({"prompt_tokens": [5, 5], "prefix_parts": [[[1, 5]], [[1, 3], [2, 3]]]}, "row 1: prefix_parts has 6"),
    (
        {"prompt_tokens": [5, 6], "continues": [None, 0]},
        "row 1: prompt_tokens is 6, must be at least 7, the tokens of row 0",
    ),
    (
        {"prompt_tokens": [5, 9], "continues": [None, 0], "prefix_parts": [[[1, 5]], [[1, 5]]]},
        "row 1: prefix_parts and continues cannot be combined",
    ),
    (
        {"prompt_tokens": [5, 9, 30], "session_id": [1, 1, 1], "turn": [0, 2, 1]},
        "row 2: turn 1 of session 1 is after turn 2",
    ),
    error=iq.TraceError,
)
def test_a_contradiction_names_its_row(columns: dict[str, Any]):
    _cached(columns)


def test_the_timeline_has_the_hit_rate():
    columns = {"arrival_s": [0.0, 10.0], "prompt_tokens": [20, 20], "output_tokens": [9, 9]}
    work = iq.Workload({**columns, "prefix_parts": [[[1, 20]], [[1, 20]]]})
    timeline = iq.simulate(work, _engine(), timeline_s=5.0).timeline
    # 16 of the 20 tokens of the second request are cached when it is admitted, ten seconds after the first.
    assert timeline["cached_tokens_per_s"].sum() * 5 == 16
    assert timeline["prefill_tokens_per_s"].sum() * 5 == 24


def test_without_a_prefix_cache_prefix_columns_are_ignored():
    columns = {"arrival_s": [0.0], "prompt_tokens": [20], "output_tokens": [1], "prefix_hashes": [[1]]}
    engine = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.VllmV1(), kv=iq.KvCache.unlimited())
    assert iq.simulate(columns, engine).requests["cached_tokens"].to_list() == [0]


def test_results_in_a_directory_are_the_same(tmp_path: Any):
    columns = {"arrival_s": [0.0, 9.0], "prompt_tokens": [20, 20], "output_tokens": [2, 2]}
    work = iq.Workload({**columns, "prefix_parts": [[[1, 20]], [[1, 20]]]})
    stored = iq.simulate(work, _engine(), out=tmp_path / "run")
    whole = iq.simulate(work, _engine())
    assert stored.requests.collect().equals(whole.requests)
    assert whole.requests["cached_tokens"].to_list() == [0, 16]


class Greedy(iq.Scheduler):
    """Plans all decodes, then complete prompts while blocks are free."""

    token_budget = None
    max_seqs = None

    def plan(self, view: Any) -> iq.Batch:
        running, waiting = view.running, view.waiting
        decodes = [int(id) for id, ready in zip(running.id, running.decodes, strict=True) if ready]
        prompts = [(int(id), int(left)) for id, left in zip(waiting.id, waiting.prompt_left, strict=True)]
        return iq.Batch(decode=decodes, prefill=prompts)


@pytest.mark.parametrize("kind", ["blocks", "radix"])
@pytest.mark.parametrize("stepping", [False, True])
def test_a_python_scheduler_plans_only_uncached_tokens(kind: Any, stepping: bool):
    engine = iq.Engine(
        timing=iq.PiecewiseLinear(base=0.0, per_token=1.0, knee=0),
        scheduler=Greedy(),
        kv=iq.KvCache(tokens=1000, block=4, prefix_cache=kind),
    )
    parts = [[["system", 16]], [["system", 16]]]
    columns = {"arrival_s": [0.0, 100.0], "prompt_tokens": [20, 20], "output_tokens": [3, 3]}
    texts = pl.Series("prefix_parts", [[{"text": text, "tokens": n} for text, n in row] for row in parts])
    frame = pl.DataFrame(columns).with_columns(texts)
    result = iq.simulate(frame, engine, stepping=stepping)
    # 20 tokens take 20 seconds, then 4: the 16 tokens of the system prompt are cached.
    assert result.requests["cached_tokens"].to_list() == [0, 16]
    assert result.requests["ttft_s"].to_list() == [20.0, 4.0]


_PARTS = [{"text": "rules", "tokens": 10}, {"text": "7", "tokens": 6}]


@pytest.mark.parametrize(
    "parts",
    [
        [("rules", 10), ("7", 6)],
        (("rules", 10), (7, 6)),
        [["rules", 10], ["7", 6]],
        [{"text": "rules", "tokens": 10}, ("7", np.int64(6))],
        _PARTS,
    ],
)
def test_parts_may_be_any_kind_of_pairs(parts: Any):
    workload = iq.Workload(_apart([20, 20, 20]) | {"prefix_parts": [parts, None, _PARTS]})
    # Blocks of 4: the third request begins with the same 16 tokens as the first.
    assert iq.simulate(workload, _engine()).requests["cached_tokens"].to_list() == [0, 0, 16]


@refused(
    (("rules", 10), "row 1: prefix_parts has 'rules', must be pairs"),
    ([("rules", 10, 1)], r"row 1: prefix_parts has \('rules', 10, 1\), must be pairs"),
    ([(10, "rules")], "row 1: prefix_parts has 'rules' tokens of text 10, must be an integer"),
    ([("rules", 9.5)], "row 1: prefix_parts has 9.5 tokens"),
    ([("rules", True)], "row 1: prefix_parts has True tokens"),
    ([("rules", 1 << 70)], "row 1: prefix_parts has 1180591620717411303424 tokens .*must be below 2"),
    ([(1.5, 3)], "row 1: prefix_parts has the name 1.5, must be a string or an integer"),
    ([(None, 3)], "row 1: prefix_parts has null as the name of a text with 3 tokens"),
    ([("rules", None)], "row 1: prefix_parts has None tokens"),
    ("rules", "row 1: prefix_parts is 'rules', must be a list of pairs"),
    error=iq.TraceError,
)
def test_wrong_parts_are_named_with_their_row(parts: Any):
    columns = _apart([20, 20]) | {"prefix_parts": [[("rules", 10)], parts]}
    iq.simulate(columns, _engine())


def test_hashes_may_be_any_integers_and_rows_of_an_array():
    far = [
        [1 << 63, -1, 3, 4],
        [(1 << 64) - 1, 2, 3, 4],
        [1 << 63, -1, 3, 5],
        [1 << 70, 1, 1, 1],
        [1 << 70] * 4,
    ]
    columns = _apart([16] * 5) | {"prefix_block_tokens": [4] * 5}
    for rows, cached in ((far, [0, 0, 12, 0, 4]), (np.array([[5, 6, 7, 8]] * 5), [0, 12, 12, 12, 12])):
        result = iq.simulate(columns | {"prefix_hashes": rows}, _engine())
        assert result.requests["cached_tokens"].to_list() == cached


def _apart(prompts: list[int]) -> dict[str, Any]:
    """Prompts that arrive every 100 seconds."""
    arrivals = [100.0 * row for row in range(len(prompts))]
    return {"arrival_s": arrivals, "prompt_tokens": prompts, "output_tokens": [2] * len(prompts)}
