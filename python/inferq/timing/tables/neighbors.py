"""Tables of a card that was not measured, from those of its nearest relative.

A part of an iteration takes as much longer as the roofline of the one card says it does than that of the
other: what computing binds stays, what memory binds grows as bandwidths differ.
"""

from __future__ import annotations

from typing import Any

from inferq._lazy import np
from inferq.timing.models.roofline import Roofline
from inferq.timing.tables.timing_table import ChunkPart, DecodePart, LinearPart, TimingTable, thawed

NEIGHBORS = {"a100-40gb": "a100-80gb"}
"""Cards without measurements, and the card whose tables stand for theirs."""


def as_on(table: TimingTable, model: str, gpu: str, tensor_parallel: int) -> TimingTable:
    """The table of a model on its neighbor, as it would be on `gpu`; its provenance says so."""
    near = NEIGHBORS[gpu]
    here, there = (Roofline(model, one, tensor_parallel) for one in (gpu, near))
    linear, chunk, decode = table.linear, table.chunk, table.decode
    tokens = np.array(linear.tokens, dtype=float)
    computed, context = np.array(chunk.chunk, dtype=float)[:, None], np.array(chunk.context, dtype=float)
    pairs = computed * (context + (computed + 1) / 2)
    read = np.multiply.outer(np.array(decode.sequences, dtype=float), np.array(decode.mean_context) + 1.0)

    def linear_s(one: Roofline) -> Any:
        moved = one.linear_weight_s + one.linear_activation_s_per_token * tokens
        sent = one.all_reduce_latency_s + one.all_reduce_s_per_token * tokens
        return np.maximum(one.linear_flops_s_per_token * tokens, moved) + sent + one.base_s

    def chunk_s(one: Roofline) -> Any:
        return np.maximum(
            one.chunk_compute_s_per_pair * pairs, one.chunk_memory_s_per_token * (computed + context)
        )

    def decode_s(one: Roofline) -> Any:
        return np.maximum(one.decode_compute_s_per_token, one.decode_memory_s_per_token) * read

    def longer(seconds: Any, by: Any) -> Any:
        return np.round(np.asarray(seconds) * by, 9).tolist()

    ratios = [part(here) / part(there) for part in (linear_s, chunk_s, decode_s)]
    said = thawed(table.provenance)
    why = f"no measurement: times of {near}, each part longer by the ratio of the rooflines of both cards"
    return TimingTable(
        linear=LinearPart(linear.tokens, longer(linear.seconds, ratios[0])),
        chunk=ChunkPart(
            chunk.chunk, chunk.context, longer(chunk.seconds, ratios[1]), shared_s=chunk.shared_s
        ),
        decode=DecodePart(decode.sequences, decode.mean_context, longer(decode.seconds, ratios[2])),
        provenance={**said, "gpu": gpu, "notes": [*said.get("notes", ()), why], "derived_from": near},
    )
