"""Operations of an iteration, which an engine without CUDA graphs launches one by one."""

from __future__ import annotations

from inferq.timing.hardware.layers import (
    Attention,
    Dense,
    FeedForward,
    LatentAttention,
    Mixer,
)
from inferq.timing.hardware.model_shape import ModelShape


def launches(shape: ModelShape, tensor_parallel: int = 1) -> int:
    """Count the operations that the host launches for all layers: one per norm, matrix and fused kernel.

    >>> launches(ModelShape.of("llama-3.1-8b"))  # 32 layers · (2 norms + 5 of attention + 3 of the rest)
    320
    >>> launches(ModelShape.of("llama-3.1-8b"), tensor_parallel=2)  # two all-reduces more in each
    384
    """
    exchanges = 2 if tensor_parallel > 1 else 0
    return sum(
        group.layers
        * (group.norms + sum(map(_of_mixer, group.mixers)) + _of_rest(group.feed_forward) + exchanges)
        for group in shape.groups
    )


def _of_mixer(mixer: Mixer) -> int:
    """Projection, rotation, cache write, attention and output projection; or those of another kind."""
    if isinstance(mixer, Attention):
        return 5 + (2 if mixer.qk_norm else 0)
    if isinstance(mixer, LatentAttention):
        # Projection down, two norms, two projections up, rotation, absorbed keys, cache write, attention,
        # absorbed values, projection out.
        return 11 + (0 if mixer.index is None else 6)
    # Two projections in, convolution, two gates, recurrence, norm, projection out.
    return 8


def _of_rest(part: FeedForward | None) -> int:
    """Two matrices and an activation; for experts also router, selection, sorting and sum."""
    if part is None:
        return 0
    if isinstance(part, Dense):
        return 3
    return 7 + (3 if part.shared_intermediate else 0)
