"""Mooncake: times, lengths and block hashes of requests to Kimi.

Source: kvcache-ai/Mooncake, Apache-2.0; cite Qin et al., "Mooncake", FAST 2025.
"""

from __future__ import annotations

from typing import Any

from inferq._lazy import pl
from inferq.workload.traces.source import Format, Options, Reading, Source

BLOCK_TOKENS = 512
"""Tokens per entry of `hash_ids`; the last block may be partial."""

_FIELDS = ("timestamp", "input_length", "output_length", "hash_ids")


def _fits(source: Source) -> bool:
    return bool({"input_length", "output_length"} & source.keys)


def _read(source: Source, options: Options) -> Reading:
    """Read arrivals since the first request; `hash_ids`, if any, become `prefix_hashes` of 512 tokens."""
    if "chat_id" in source.keys:
        raise source.error("is a Qwen-Bailian trace (it has chat_id), which is not supported")
    place = source.records[1]
    times = source.values("timestamp", (int, float))
    prompts = source.lengths("input_length")
    has_hashes = any("hash_ids" in entry for entry in source.records[0])
    hashes: list[list[Any]] = source.values("hash_ids", list) if has_hashes else []
    for at, (ids, tokens) in enumerate(zip(hashes, prompts, strict=False)):
        if not all(type(hash_id) is int and 0 <= hash_id < 2**63 for hash_id in ids):
            raise source.error(f"{place(at)}: hash_ids must be a list of integers from 0 to below 2^63")
        if len(ids) != -(-tokens // BLOCK_TOKENS):
            raise source.error(
                f"{place(at)}: hash_ids has {len(ids)} entries, must have {-(-tokens // BLOCK_TOKENS)} for "
                f"an input_length of {tokens} in blocks of {BLOCK_TOKENS} tokens"
            )
    for at, time in enumerate(times):
        if not 0 <= time < 9e12:
            raise source.error(f"{place(at)}: timestamp is {time}, must be non-negative milliseconds")
    nanoseconds = pl.Series("timestamp", [round(time * 1_000_000) for time in times], dtype=pl.Int64)
    keys = {key for entry in source.records[0] for key in entry}
    return Reading(
        pl.DataFrame(
            [
                source.since_first(nanoseconds, place),
                prompts.rename("prompt_tokens"),
                source.lengths("output_length").rename("output_tokens"),
                *(_blocks(hashes) if has_hashes else ()),
            ]
        ),
        place,
        columns_left_out=sorted(keys.difference(_FIELDS)),
    )


def _blocks(hashes: list[list[Any]]) -> list[pl.Series]:
    return [
        pl.Series("prefix_hashes", hashes, dtype=pl.List(pl.Int64)),
        pl.Series("prefix_block_tokens", [BLOCK_TOKENS] * len(hashes), dtype=pl.Int32),
    ]


MOONCAKE = Format("mooncake", _fits, _read)
