"""Layer groups: the attention and the feed-forward part of a run of equal decoder layers.

Every size is per layer and for the whole model, before tensor parallelism. `weights` counts matrices, which
are multiplied and may be quantized; `other_parameters` counts biases, norms, convolutions and other vectors,
which stay at 16 bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar, Literal

from inferq.checks import whole
from inferq.errors import ConfigError
from inferq.timing.hardware.formats import Part

RecurrentKind = Literal["gated_delta", "kda", "lightning", "mamba1", "mamba2", "short_conv"]

_SCALE_BYTES = 4
"""Bytes of the scale of an index key."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SparseIndex:
    """The index with which a layer selects the tokens that it attends to (DeepSeek-V3.2, MiniMax-M3).

    Args:
        heads: heads of the index.
        head_size: numbers of an index key.
        topk: tokens that are selected.
        shared: whether the layer uses the selection of an earlier layer, without an index (GLM-5.2).
        key_bytes: bytes of a cached key. Default: 8-bit numbers and a 32-bit scale, as in vLLM for DeepSeek.
    """

    heads: int
    head_size: int
    topk: int
    shared: bool = False
    key_bytes: int | None = None

    def __post_init__(self) -> None:
        """Reject impossible sizes."""
        _positive(self, "heads", "head_size", "topk", "key_bytes")

    @property
    def bytes_per_token(self) -> int:
        """Bytes that a token adds to the cache of the index."""
        if self.shared:
            return 0
        return self.head_size + _SCALE_BYTES if self.key_bytes is None else self.key_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Attention:
    """Attention with a key and a value per key-value head and token.

    It covers the whole context, the last `window` tokens, or the tokens since the last multiple of `chunk`.

    Args:
        heads: query heads.
        kv_heads: key-value heads, a divisor of `heads`.
        head_size: numbers of a query or key of one head.
        value_size: numbers of a value of one head. Default: `head_size`.
        window: tokens of a sliding window.
        chunk: tokens of a chunk (Llama 4).
        qkv_bias: whether queries, keys and values have a bias.
        out_bias: whether the output projection has a bias.
        qk_norm: parameters of the norms of queries and keys.
        gate_size: numbers per head of a gate of the output, projected with the query (Qwen3-Next).
        keys_as_values: whether the value is the key, without a matrix (Gemma 4). Both are cached.
        sinks: whether each head has a learned sink (gpt-oss).
        index: the sparse index; None if a token attends to all tokens.
    """

    heads: int
    kv_heads: int
    head_size: int
    value_size: int | None = None
    window: int | None = None
    chunk: int | None = None
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: int = 0
    gate_size: int = 0
    keys_as_values: bool = False
    sinks: bool = False
    index: SparseIndex | None = None

    part: ClassVar[Part] = "attention"

    def __post_init__(self) -> None:
        """Reject impossible sizes."""
        _positive(self, "heads", "kv_heads", "head_size", "value_size", "window", "chunk")
        if self.heads % self.kv_heads:
            raise ConfigError("kv_heads", f"{self.kv_heads} does not divide {self.heads} heads")

    @property
    def values(self) -> int:
        """Numbers of a value of one head."""
        return self.head_size if self.value_size is None else self.value_size

    def matrices(self, hidden: int) -> Mapping[str, int]:
        """Weights of every matrix, by its name in the checkpoint."""
        return {
            "q_proj": hidden * self.heads * (self.head_size + self.gate_size),
            "k_proj": hidden * self.kv_heads * self.head_size,
            "v_proj": 0 if self.keys_as_values else hidden * self.kv_heads * self.values,
            "o_proj": hidden * self.heads * self.values,
            **self._index_matrices(hidden),
        }

    def _index_matrices(self, hidden: int) -> Mapping[str, int]:
        if self.index is None:
            return {}
        return {
            "index_q_proj": hidden * self.index.heads * self.index.head_size,
            "index_k_proj": hidden * self.index.head_size,
        }

    def weights(self, hidden: int) -> int:
        """Weights of all matrices."""
        return sum(self.matrices(hidden).values())

    def replicated_weights(self, hidden: int, tensor_parallel: int) -> int:
        """Weights that are stored in addition, summed over the GPUs, because they cannot be split.

        With more GPUs than key-value heads, several GPUs store the same head.
        """
        matrices, copies = self.matrices(hidden), max(1, tensor_parallel // self.kv_heads)
        return (copies - 1) * (matrices["k_proj"] + matrices["v_proj"])

    def other_parameters(self, hidden: int) -> int:
        """Biases, norms of queries, keys and index, and sinks."""
        projected = self.heads * self.head_size + self.kv_heads * (self.head_size + self.values)
        biases = (projected if self.qkv_bias else 0) + (hidden if self.out_bias else 0)
        index = 0 if self.index is None else 2 * self.index.head_size
        return biases + self.qk_norm + (self.heads if self.sinks else 0) + index

    @property
    def kv_values_per_token(self) -> int:
        """Numbers cached per token."""
        return self.kv_heads * (self.head_size + self.values)

    @property
    def kv_splits(self) -> int:
        """Pieces into which tensor parallelism can split the cache."""
        return self.kv_heads

    @property
    def limit(self) -> int | None:
        """The most tokens that are cached; None if all are."""
        return self.window if self.chunk is None else self.chunk

    @property
    def pair_flops(self) -> int:
        """Operations per pair of a prefill token and a token that it attends to."""
        return 2 * self.heads * (self.head_size + self.values)

    @property
    def decode_flops(self) -> int:
        """Operations per decode token and token of its context."""
        return self.pair_flops

    @property
    def index_bytes_per_token(self) -> int:
        """Bytes that a token adds to the index."""
        return 0 if self.index is None else self.index.bytes_per_token

    @property
    def state_bytes(self) -> int:
        """No state."""
        return 0

    def __str__(self) -> str:
        """A short description."""
        if self.index is not None:
            kind = f"attention to {self.index.topk:,} tokens of an index"
        elif self.chunk is not None:
            kind = f"attention in chunks of {self.chunk:,} tokens"
        elif self.window is not None:
            kind = f"attention over {self.window:,} tokens"
        else:
            kind = "attention"
        return f"{kind}, {self.heads} heads, {self.kv_heads} of keys and values"


@dataclass(frozen=True, kw_only=True, slots=True)
class LatentAttention:
    """Multi-head latent attention: one latent vector and one rotary part are cached per token.

    Args:
        heads: query heads.
        q_rank: rank of the query projection; None without a low-rank query.
        kv_rank: numbers of the latent vector.
        nope_size: numbers of a query or key of one head without rotation.
        rope_size: numbers of the rotary part, shared by all heads.
        value_size: numbers of a value of one head.
        index: the sparse index; None if a token attends to all tokens.
    """

    heads: int
    q_rank: int | None
    kv_rank: int
    nope_size: int
    rope_size: int
    value_size: int
    index: SparseIndex | None = None

    part: ClassVar[Part] = "attention"

    def __post_init__(self) -> None:
        """Reject impossible sizes."""
        _positive(self, "heads", "q_rank", "kv_rank", "nope_size", "rope_size", "value_size")

    def matrices(self, hidden: int) -> Mapping[str, int]:
        """Weights of every matrix, by its name in the checkpoint."""
        query = self.heads * (self.nope_size + self.rope_size)
        if self.q_rank is None:
            queries = {"q_proj": hidden * query}
        else:
            queries = {"q_a_proj": hidden * self.q_rank, "q_b_proj": self.q_rank * query}
        return {
            **queries,
            "kv_a_proj_with_mqa": hidden * (self.kv_rank + self.rope_size),
            "kv_b_proj": self.kv_rank * self.heads * (self.nope_size + self.value_size),
            "o_proj": self.heads * self.value_size * hidden,
            **self._index_matrices(hidden),
        }

    def _index_matrices(self, hidden: int) -> Mapping[str, int]:
        index = self.index
        if index is None or index.shared:
            return {}
        return {
            "indexer.wq_b": (self.q_rank or hidden) * index.heads * index.head_size,
            "indexer.wk": hidden * index.head_size,
            "indexer.weights_proj": hidden * index.heads,
        }

    def weights(self, hidden: int) -> int:
        """Weights of all matrices."""
        return sum(self.matrices(hidden).values())

    def replicated_weights(self, hidden: int, tensor_parallel: int) -> int:
        """Weights that are stored in addition: every GPU has the projections to the ranks, and the index."""
        split = ("q_proj", "q_b_proj", "kv_b_proj", "o_proj")
        whole_matrices = sum(size for name, size in self.matrices(hidden).items() if name not in split)
        return (tensor_parallel - 1) * whole_matrices

    def other_parameters(self, hidden: int) -> int:
        """Norms of the ranks, and of the index key, which has a bias."""
        index = 0 if self.index is None or self.index.shared else 2 * self.index.head_size
        return (self.q_rank or 0) + self.kv_rank + index

    @property
    def kv_values_per_token(self) -> int:
        """Numbers cached per token: the latent vector and the rotary part."""
        return self.kv_rank + self.rope_size

    @property
    def kv_splits(self) -> int:
        """One: every GPU stores the whole cache."""
        return 1

    @property
    def limit(self) -> int | None:
        """None: all tokens are cached."""
        return None

    @property
    def pair_flops(self) -> int:
        """Operations per pair of a prefill token and a token that it attends to, with expanded keys."""
        return 2 * self.heads * (self.nope_size + self.rope_size + self.value_size)

    @property
    def decode_flops(self) -> int:
        """Operations per decode token and token of its context, with the key matrix absorbed in the query."""
        return 2 * self.heads * (2 * self.kv_rank + self.rope_size)

    @property
    def index_bytes_per_token(self) -> int:
        """Bytes that a token adds to the index."""
        return 0 if self.index is None else self.index.bytes_per_token

    @property
    def state_bytes(self) -> int:
        """No state."""
        return 0

    def __str__(self) -> str:
        """A short description."""
        sparse = "" if self.index is None else f" to {self.index.topk:,} tokens of an index"
        return f"latent attention{sparse}, {self.heads} heads, rank {self.kv_rank} + {self.rope_size}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Recurrent:
    """A mixer with a state of fixed size per sequence: linear attention, state-space layer or convolution.

    Args:
        kind: `"gated_delta"` (Qwen3-Next), `"kda"` (Kimi-Linear), `"lightning"` (MiniMax-M1), `"mamba1"`,
            `"mamba2"` or `"short_conv"` (LFM2).
        heads: heads of the state, by which tensor parallelism splits it.
        inputs: numbers into which the input matrices project a token.
        inner: numbers of a token before the output matrix.
        inner_weights: weights of matrices between inputs and output.
        parameters: convolutions, norms and other vectors.
        conv_values: 16-bit numbers of the convolution's state.
        state_values: numbers of the recurrent state.
        state_bytes_per_value: 2 or 4, bytes of a number of the recurrent state.
    """

    kind: RecurrentKind
    heads: int
    inputs: int
    inner: int
    inner_weights: int = 0
    parameters: int = 0
    conv_values: int = 0
    state_values: int = 0
    state_bytes_per_value: int = 2

    part: ClassVar[Part] = "recurrent"

    def __post_init__(self) -> None:
        """Reject impossible sizes."""
        _positive(self, "heads", "inputs", "inner", "state_bytes_per_value")

    def matrices(self, hidden: int) -> Mapping[str, int]:
        """Weights of every matrix, by its name in the checkpoint."""
        inner = {"x_proj": self.inner_weights} if self.inner_weights else {}
        return {"in_proj": hidden * self.inputs, **inner, "out_proj": self.inner * hidden}

    def weights(self, hidden: int) -> int:
        """Weights of all matrices."""
        return sum(self.matrices(hidden).values())

    def replicated_weights(self, hidden: int, tensor_parallel: int) -> int:
        """0: the heads are split."""
        return 0

    def other_parameters(self, hidden: int) -> int:
        """Convolutions, norms and other vectors."""
        return self.parameters

    @property
    def kv_values_per_token(self) -> int:
        """0: no keys and values are cached."""
        return 0

    @property
    def kv_splits(self) -> int:
        """Pieces into which tensor parallelism can split the state."""
        return self.heads

    @property
    def limit(self) -> int | None:
        """None: no tokens are cached."""
        return None

    @property
    def pair_flops(self) -> int:
        """0: a token attends to the state."""
        return 0

    @property
    def decode_flops(self) -> int:
        """0: a token attends to the state."""
        return 0

    @property
    def index_bytes_per_token(self) -> int:
        """No index."""
        return 0

    @property
    def state_bytes(self) -> int:
        """Bytes per sequence: the last inputs of the convolution and the recurrent state."""
        return 2 * self.conv_values + self.state_values * self.state_bytes_per_value

    def __str__(self) -> str:
        """A short description."""
        return f"{self.kind.replace('_', ' ')}, {self.heads} heads"


Mixer = Attention | LatentAttention | Recurrent


@dataclass(frozen=True, kw_only=True, slots=True)
class Dense:
    """A feed-forward part that every token uses whole.

    Args:
        intermediate: its width.
        gated: whether a third matrix gates the width.
        bias: whether the matrices have biases.
        parameters: other parameters, such as a learned activation.
    """

    intermediate: int
    gated: bool = True
    bias: bool = False
    parameters: int = 0

    def __post_init__(self) -> None:
        """Reject impossible sizes."""
        _positive(self, "intermediate")

    def matrices(self, hidden: int) -> Mapping[str, int]:
        """Weights of every matrix, by its name in the checkpoint."""
        names = ("gate_proj", "up_proj", "down_proj") if self.gated else ("up_proj", "down_proj")
        return dict.fromkeys(names, hidden * self.intermediate)

    def weights(self, hidden: int) -> int:
        """Weights of all matrices."""
        return (3 if self.gated else 2) * hidden * self.intermediate

    def other_parameters(self, hidden: int) -> int:
        """Biases and other vectors."""
        biases = (2 if self.gated else 1) * self.intermediate + hidden
        return (biases if self.bias else 0) + self.parameters

    @property
    def active_width(self) -> int:
        """Width of the feed-forward part of a token."""
        return self.intermediate

    def __str__(self) -> str:
        """A short description."""
        return f"dense, width {self.intermediate:,}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Experts:
    """A feed-forward part of routed experts, of which a token uses some, and of shared ones.

    Args:
        experts: routed experts.
        active: routed experts of a token.
        intermediate: width of a routed expert.
        shared_intermediate: width of all shared experts together; 0 without shared experts.
        router_bias: whether the router has a bias or correction per expert.
        gated: whether a third matrix gates the width.
        bias: whether the matrices of the routed experts have biases (gpt-oss).
        shared_gate: whether a gate of one output weighs the shared experts (Qwen2-MoE).
        latent: width in which the routed experts work; None for the model's width (Nemotron 3 Super).
        parameters: other parameters.
    """

    experts: int
    active: int
    intermediate: int
    shared_intermediate: int = 0
    router_bias: bool = False
    gated: bool = True
    bias: bool = False
    shared_gate: bool = False
    latent: int | None = None
    parameters: int = 0

    def __post_init__(self) -> None:
        """Reject impossible sizes."""
        _positive(self, "experts", "active", "intermediate", "latent")
        if self.active > self.experts:
            raise ConfigError("active_experts", f"{self.active} exceeds the {self.experts} experts")

    @property
    def _matrices(self) -> int:
        return 3 if self.gated else 2

    def expert_weights(self, hidden: int) -> int:
        """Weights of one routed expert."""
        return self._matrices * (self.latent or hidden) * self.intermediate

    def shared_weights(self, hidden: int) -> int:
        """Weights of the shared experts, and of the projections to and from the experts' width."""
        latent = 0 if self.latent is None else 2 * hidden * self.latent
        return self._matrices * hidden * self.shared_intermediate + latent

    def router_weights(self, hidden: int) -> int:
        """Weights of the router."""
        return hidden * self.experts

    def weights(self, hidden: int) -> int:
        """Weights of all matrices."""
        shared = self.shared_weights(hidden) + self.router_weights(hidden)
        return self.experts * self.expert_weights(hidden) + shared

    def _biases(self, experts: int, hidden: int) -> int:
        return experts * ((2 if self.gated else 1) * self.intermediate + hidden) if self.bias else 0

    def other_parameters(self, hidden: int) -> int:
        """Biases, the gate of the shared experts, and other vectors."""
        return self._biases(self.experts, hidden) + self._common_parameters(hidden)

    def active_other_parameters(self, hidden: int) -> int:
        """The same for the experts of one token."""
        return self._biases(self.active, hidden) + self._common_parameters(hidden)

    def _common_parameters(self, hidden: int) -> int:
        router = self.experts if self.router_bias else 0
        return router + (hidden if self.shared_gate else 0) + self.parameters

    @property
    def active_width(self) -> int:
        """Width of the feed-forward part of a token: its routed and the shared experts."""
        return self.active * self.intermediate + self.shared_intermediate

    def __str__(self) -> str:
        """A short description."""
        shared = f" and shared width {self.shared_intermediate:,}" if self.shared_intermediate else ""
        return f"{self.active} of {self.experts} experts of width {self.intermediate:,}{shared}"


FeedForward = Dense | Experts


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Decoder layers of the same shape.

    Args:
        layers: number of layers.
        mixers: attention or recurrent parts; usually one, two in Falcon-H1, none in a layer that has only a
            feed-forward part.
        feed_forward: the feed-forward part; None if the layer has none.
        norms: vectors of the model's width in norms of the layer.
        parameters: other parameters of the layer.
    """

    layers: int
    mixers: tuple[Mixer, ...]
    feed_forward: FeedForward | None
    norms: int = 2
    parameters: int = 0

    def __post_init__(self) -> None:
        """Reject an impossible number of layers."""
        _positive(self, "layers")

    def weights(self, hidden: int) -> int:
        """Weights of the matrices of one layer."""
        feed_forward = 0 if self.feed_forward is None else self.feed_forward.weights(hidden)
        return sum(mixer.weights(hidden) for mixer in self.mixers) + feed_forward

    def active_weights(self, hidden: int) -> int:
        """The part of `weights` that one token uses."""
        part = self.feed_forward
        if not isinstance(part, Experts):
            return self.weights(hidden)
        return self.weights(hidden) - (part.experts - part.active) * part.expert_weights(hidden)

    def other_parameters(self, hidden: int) -> int:
        """Norms, biases and other vectors of one layer."""
        feed_forward = 0 if self.feed_forward is None else self.feed_forward.other_parameters(hidden)
        mixers = sum(mixer.other_parameters(hidden) for mixer in self.mixers)
        return mixers + feed_forward + self.norms * hidden + self.parameters

    def active_other_parameters(self, hidden: int) -> int:
        """The part of `other_parameters` that one token uses."""
        part = self.feed_forward
        if not isinstance(part, Experts):
            return self.other_parameters(hidden)
        unused = part.other_parameters(hidden) - part.active_other_parameters(hidden)
        return self.other_parameters(hidden) - unused

    def part_weights(self, hidden: int) -> Mapping[Part, int]:
        """Weights of one layer by part."""
        parts: dict[Part, int] = {}
        for mixer in self.mixers:
            parts[mixer.part] = parts.get(mixer.part, 0) + mixer.weights(hidden)
        if isinstance(self.feed_forward, Dense):
            parts["dense"] = self.feed_forward.weights(hidden)
        elif isinstance(self.feed_forward, Experts):
            experts = self.feed_forward
            parts["experts"] = experts.experts * experts.expert_weights(hidden)
            parts["shared_experts"] = experts.shared_weights(hidden)
            parts["router"] = experts.router_weights(hidden)
        return parts

    @property
    def kv_values_per_token(self) -> int:
        """Numbers that one layer caches per token."""
        return sum(mixer.kv_values_per_token for mixer in self.mixers)

    @property
    def limit(self) -> int | None:
        """The most tokens that the layer caches; None if it caches all, or none."""
        return next((mixer.limit for mixer in self.mixers if mixer.limit is not None), None)

    @property
    def state_bytes(self) -> int:
        """Bytes of state per sequence of one layer."""
        return sum(mixer.state_bytes for mixer in self.mixers)

    def __str__(self) -> str:
        """A short description."""
        parts = [str(mixer) for mixer in self.mixers]
        if self.feed_forward is not None:
            parts.append(str(self.feed_forward))
        return f"{self.layers} × {'; '.join(parts)}"


def _positive(sizes: object, *names: str) -> None:
    """Reject a size that is not a positive integer; None is a missing optional size."""
    optional = {item.name for item in fields(sizes) if item.default is None}  # type: ignore[arg-type]
    for name in names:
        value = getattr(sizes, name)
        if value is not None or (name not in optional and name != "q_rank"):
            whole(name, value, 1, 2**31 - 1)
