"""Does the count of block operations say what the caches did?"""

from pathlib import Path
from typing import Any, Literal

import polars as pl
import pytest

import inferq as iq

Kind = Literal["blocks", "radix"]


def _engine(kind: Kind | None, tokens: int | None, block: int = 16) -> iq.Engine:
    kv = iq.KvCache(tokens=tokens, block=block, prefix_cache=kind)
    return iq.Engine(timing=iq.Constant(1.0), scheduler=iq.VllmV1(), kv=kv)


def _documents(*documents: int, prompt: int = 40) -> dict[str, Any]:
    """Prompts a minute apart, each about a document of two blocks and half a block of its own."""
    return {
        "arrival_s": [60.0 * row for row in range(len(documents))],
        "prompt_tokens": [prompt] * len(documents),
        "output_tokens": [1] * len(documents),
        "prefix_parts": [[[document, 32]] for document in documents],
    }


@pytest.mark.parametrize("kind", ["blocks", "radix"])
def test_blocks_are_hit_cached_and_evicted(kind: Kind):
    # Five blocks. Document 1 leaves two known and three bare ones; 2 takes these and leaves four known, one
    # bare. Document 1 is found, with the bare block as its third. 3 takes the bare one and the two that were
    # left first, those of 2. So 2 is gone when it is asked for again, and is cached anew in place of 1.
    result = iq.simulate(_documents(1, 2, 1, 3, 2), _engine(kind, 80))
    assert result.requests["cached_tokens"].to_list() == [0, 0, 32, 0, 0]
    assert result.block_operations.rows() == [(0, 2, 8, 4)]


def test_without_a_cache_there_is_nothing_to_count():
    told = iq.simulate(_documents(1, 1), _engine(None, None)).block_operations
    assert told.height == 0
    assert told.columns == ["replica", "hit_blocks", "cached_blocks", "evicted_blocks"]


def test_only_replicas_with_a_cache_have_a_row():
    mixed = iq.Cluster([_engine("blocks", None), _engine(None, None), _engine("radix", None)])
    result = iq.simulate(_documents(*[1] * 9), mixed)
    assert result.block_operations.rows() == [(0, 4, 2, 0), (2, 4, 2, 0)]


def test_a_directory_holds_the_counts(tmp_path: Path):
    workload, engine = _documents(1, 2, 1), _engine("blocks", 80)
    stored = iq.simulate(workload, engine, out=tmp_path / "run")
    told = iq.simulate(workload, engine).block_operations
    assert stored.block_operations.equals(told)
    assert iq.Result.read(tmp_path / "run").block_operations.equals(told)


@pytest.mark.parametrize("kind", ["blocks", "radix"])
@pytest.mark.parametrize("block", [512, 16])
def test_what_a_trace_costs_is_the_blocks_of_its_requests(kind: Kind, block: int, shared: Path):
    """Without preemptions each whole block of a context is found once or computed once."""
    trace = iq.read_trace(shared / "traces" / "mooncake_conversation.parquet").head(4000)
    result = iq.simulate(trace, _engine(kind, None, block))
    [(_, found, cached, evicted)] = result.block_operations.rows()
    told = result.requests.select(
        found=pl.col("cached_tokens").sum() // block,
        whole=((pl.col("prompt_tokens") + pl.col("output_tokens") - 1) // block).sum(),
    )
    assert (found, evicted) == (told["found"].item(), 0)
    # equal blocks that were computed side by side are one in a tree, and each known for itself by hashes
    twice = told["whole"].item() - found - cached
    assert twice == 0 if kind == "blocks" else twice >= 0
