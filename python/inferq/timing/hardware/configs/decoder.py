"""Decoder: the layers of a decoder in their order, as a rule reads them from a `config.json`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from inferq.errors import ConfigError
from inferq.timing.hardware.configs.keys import Keys
from inferq.timing.hardware.formats import Part
from inferq.timing.hardware.layers import Experts, FeedForward, LayerGroup, Mixer


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """A decoder layer, with the names of its modules in the checkpoint.

    Args:
        mixers: its attention or recurrent parts.
        feed_forward: its feed-forward part.
        norms: norms of the model's width.
        parameters: other parameters.
        mixer_path: module of the attention or recurrent part.
        feed_forward_path: module of the feed-forward part.
        experts_path: module of the routed experts. Default: `experts` in the feed-forward part.
        shared_path: module of the shared experts. Default: `shared_experts` in the feed-forward part.
    """

    mixers: tuple[Mixer, ...]
    feed_forward: FeedForward | None
    norms: int = 2
    parameters: int = 0
    mixer_path: str = "self_attn"
    feed_forward_path: str = "mlp"
    experts_path: str | None = None
    shared_path: str | None = None

    def matrices(self, hidden: int) -> Iterator[tuple[Part, str, int]]:
        """Part, module name within the layer and number of weights of every matrix that can be quantized."""
        for mixer in self.mixers:
            for name, weights in mixer.matrices(hidden).items():
                yield mixer.part, f"{self.mixer_path}.{name}", weights
        part = self.feed_forward
        if isinstance(part, Experts):
            names = ("gate_proj", "up_proj", "down_proj") if part.gated else ("up_proj", "down_proj")
            experts_path = self.experts_path or f"{self.feed_forward_path}.experts"
            shared_path = self.shared_path or f"{self.feed_forward_path}.shared_experts"
            for name in names:
                expert = part.experts * part.expert_weights(hidden) // len(names)
                yield "experts", f"{experts_path}.0.{name}", expert
                shared = hidden * part.shared_intermediate
                yield "shared_experts", f"{shared_path}.{name}", shared
            if part.latent is not None:
                for name in ("fc1_latent_proj", "fc2_latent_proj"):
                    yield "shared_experts", f"{self.feed_forward_path}.{name}", hidden * part.latent
        elif part is not None:
            for name, weights in part.matrices(hidden).items():
                yield "dense", f"{self.feed_forward_path}.{name}", weights


@dataclass(frozen=True, kw_only=True, slots=True)
class Decoder:
    """A decoder: its layers in order, and the sizes outside them.

    Args:
        layers: all layers.
        tied: whether the output layer is the embedding.
        parameters: parameters besides layers, embedding, output layer and one vector of the final norm.
    """

    layers: Sequence[Layer]
    tied: bool
    parameters: int = 0

    def groups(self) -> tuple[LayerGroup, ...]:
        """The layers in groups of equal shape, by first appearance."""
        counts: dict[tuple[object, ...], int] = {}
        for layer in self.layers:
            shape = (layer.mixers, layer.feed_forward, layer.norms, layer.parameters)
            counts[shape] = counts.get(shape, 0) + 1
        return tuple(LayerGroup(count, *shape) for shape, count in counts.items())  # type: ignore[arg-type]


def head_size(keys: Keys, heads: int, *names: str) -> int:
    """Numbers per head: the first of the keys that has a value, else width / heads.

    Raises:
        ConfigError: the heads do not divide the width.
    """
    name = keys.first(*(names or ("head_dim",)))
    if name is not None:
        return keys.size(name)
    hidden = keys.size("hidden_size")
    if hidden % heads:
        raise ConfigError(keys.where, f"a hidden_size of {hidden} is not a multiple of {heads} heads")
    return hidden // heads
