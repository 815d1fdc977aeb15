"""Hits of an unlimited prefix cache on real traces.

Expected values are counted from the trace files with a set of all earlier blocks, independently of inferq.
"""

from pathlib import Path

import polars as pl
import pytest

import inferq as iq

_BUDGET = 10**9
"""Large enough to compute every prompt in one iteration, so that it is cached for the next request."""


def _cached(workload: iq.Workload, block: int, tokens: int | None = None) -> pl.Series:
    engine = iq.Engine(
        timing=iq.Constant(1e-9),
        scheduler=iq.VllmV1(token_budget=_BUDGET, max_seqs=10**6),
        kv=iq.KvCache(tokens=tokens, block=block, prefix_cache="blocks"),
    )
    return iq.simulate(workload, engine).requests["cached_tokens"]


@pytest.mark.parametrize("block", [512, 128, 16])
@pytest.mark.parametrize("name", ["mooncake_conversation", "mooncake_synthetic"])
def test_the_hits_of_mooncake_are_its_repeated_blocks(name: str, block: int, shared: Path):
    path = shared / "traces" / f"{name}.parquet"
    raw = pl.read_parquet(path)
    seen: set[tuple[int, int]] = set()  # block of 512 and the end of a part of it
    expected = []
    for prompt, hashes in raw.select("prompt_tokens", "prefix_hash_ids").iter_rows():
        parts = [
            (hashes[end // 512 - (end % 512 == 0)], end % 512) for end in range(block, prompt + 1, block)
        ]
        hits = 0
        while hits < (prompt - 1) // block and parts[hits] in seen:
            hits += 1
        expected.append(hits * block)
        seen.update(parts)
    assert _cached(iq.read_trace(path), block).to_list() == expected
    assert iq.read_trace(path).reuse(block).to_list() == expected


def test_a_larger_cache_has_more_hits_on_mooncake(shared: Path):
    workload = iq.read_trace(shared / "traces" / "mooncake_conversation.parquet")
    sizes = [2_000_000, 8_000_000, 32_000_000, None]
    hits = [int(_cached(workload, 512, tokens).sum()) for tokens in sizes]
    assert hits == sorted(hits) and hits[0] < hits[-1]


@pytest.mark.parametrize("block", [16, 1])
def test_the_hits_of_conversations_are_their_earlier_turns(block: int, shared: Path):
    raw = pl.read_parquet(shared / "traces" / "sharegpt_v3_multiturn_partial.parquet").head(8000)
    columns = ["prompt_tokens", "output_tokens", "session_id", "turn"]
    turns = raw.select([name for name in columns if name in raw.columns])
    rows = turns.with_columns(arrival_s=pl.int_range(pl.len()).cast(pl.Float64))
    contexts: dict[str, int] = {}
    expected = []
    for prompt, output, session in turns.select("prompt_tokens", "output_tokens", "session_id").iter_rows():
        before = contexts.get(session, 0)  # the last token of an answer is never computed
        known = min(before - 1, prompt - 1) if 0 < before <= prompt else 0
        expected.append(known // block * block)
        contexts[session] = prompt + output
    assert _cached(iq.Workload(rows), block).to_list() == expected
    assert iq.Workload(rows).reuse(block).to_list() == expected
