"""Tables of a GPU that was not measured, scaled from those of a similar GPU.

Each part of an iteration is scaled by the ratio of the rooflines of both GPUs: compute-bound times stay, and
memory-bound times grow with the ratio of bandwidths.
"""

from __future__ import annotations

from typing import Any

from inferq._lazy import np
from inferq.timing.models.roofline import Roofline
from inferq.timing.tables.parts import ChunkPart, DecodePart, Grids, LinearPart

NEIGHBORS = {"a100-40gb": "a100-80gb"}
"""GPUs without measurements, and the measured GPU that replaces each."""


def scaled(grids: Grids, model: str, gpu: str, tensor_parallel: int) -> Grids:
    """The table of a model on `gpu`, from `grids`, measured on its neighbor."""
    here, there = (Roofline(model, name, tensor_parallel) for name in (gpu, NEIGHBORS[gpu]))
    linear, chunk, decode = grids
    tokens = np.array(linear.tokens, dtype=float)
    computed, context = np.array(chunk.chunk, dtype=float)[:, None], np.array(chunk.context, dtype=float)
    pairs = computed * (context + (computed + 1) / 2)
    read = np.multiply.outer(np.array(decode.sequences, dtype=float), np.array(decode.mean_context) + 1.0)

    def linear_s(roofline: Roofline) -> Any:
        memory_s = roofline.linear_weight_s + roofline.linear_activation_s_per_token * tokens
        link_s = roofline.all_reduce_latency_s + roofline.all_reduce_s_per_token * tokens
        experts_s = sum(
            part.base_s
            + part.s_per_token * tokens
            + part.weight_s * (1 - (1 - part.active / part.experts) ** (tokens * part.ranks))
            for part in roofline.experts
        )
        dense_s = np.maximum(roofline.linear_flops_s_per_token * tokens, memory_s)
        return dense_s + experts_s + link_s + roofline.base_s

    def chunk_s(roofline: Roofline) -> Any:
        return np.maximum(
            roofline.chunk_compute_s_per_pair * pairs,
            roofline.chunk_memory_s_per_token * (computed + context),
        )

    def decode_s(roofline: Roofline) -> Any:
        return np.maximum(roofline.decode_compute_s_per_token, roofline.decode_memory_s_per_token) * read

    def times(seconds: Any, ratio: Any) -> Any:
        return np.round(np.asarray(seconds) * ratio, 9).tolist()

    ratios = [part(here) / part(there) for part in (linear_s, chunk_s, decode_s)]
    return Grids(
        LinearPart(linear.tokens, times(linear.seconds, ratios[0])),
        ChunkPart(chunk.chunk, chunk.context, times(chunk.seconds, ratios[1]), shared_s=chunk.shared_s),
        DecodePart(decode.sequences, decode.mean_context, times(decode.seconds, ratios[2])),
    )
