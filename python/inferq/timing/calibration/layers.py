"""A decoder layer and its KV cache in plain PyTorch, for `inferq calibrate`.

A layer is a decoder block: RMS norm, one projection to queries, keys and values (grouped heads), rotary
positions, causal attention over a paged cache, the output projection, RMS norm and a gated MLP, which may be
routed experts. PyTorch loads on first use, so that the module can be imported without it.

Source: the layout of Llama, Qwen3 and Mixtral in their `config.json`; rotary positions in the halved form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from inferq._lazy import functional, torch

Tensor: TypeAlias = Any
"""A tensor of PyTorch, which need not be installed."""
Draw: TypeAlias = Callable[..., Tensor]
"""Returns numbers of mean 0 and variance 1 in a given shape."""

BLOCK_TOKENS = 16
"""Tokens of a block of the cache."""
_EPSILON = 1e-6
_ROTARY_BASE = 500_000.0


@dataclass(frozen=True, slots=True)
class LayerSizes:
    """The sizes of a layer, or of its share on one of several devices.

    Args:
        hidden: width of a token between layers.
        heads: query heads, a multiple of `kv_heads`.
        kv_heads: heads of keys and values.
        head_size: width of a head, even.
        intermediate: width of the MLP, or of each expert.
        experts: experts of the MLP; 1 is a dense MLP without a router.
        active_experts: experts per token.
        qkv_bias: whether queries, keys and values have a bias.
        qk_norm: whether queries and keys are normalized per head.
    """

    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate: int
    experts: int = 1
    active_experts: int = 1
    qkv_bias: bool = False
    qk_norm: bool = False

    @property
    def matrix_weights(self) -> int:
        """Weights in the matrices of the layer, including the router, without norms and biases."""
        attention = 2 * (self.heads + self.kv_heads) * self.head_size
        router = self.experts if self.experts > 1 else 0
        return self.hidden * (attention + 3 * self.experts * self.intermediate + router)


class Layer:
    """The weights of a layer, and its operations on rows of tokens.

    Args:
        sizes: sizes of the layer.
        draw: creates the weights, scaled by 1/√inputs to keep outputs of order 1.
    """

    def __init__(self, sizes: LayerSizes, draw: Draw) -> None:
        def weight(outputs: int, inputs: int) -> Tensor:
            return draw(outputs, inputs).mul_(1 / math.sqrt(inputs))

        def norm_weight(width: int) -> Tensor:
            return draw(width).mul_(0.1).add_(1)

        self.sizes = sizes
        queries = sizes.heads * sizes.head_size
        self.norm_attention = norm_weight(sizes.hidden)
        projected = queries + 2 * sizes.kv_heads * sizes.head_size
        self.qkv = weight(projected, sizes.hidden)
        self.qkv_bias = draw(projected) if sizes.qkv_bias else None
        self.norm_queries: Tensor = norm_weight(sizes.head_size) if sizes.qk_norm else None
        self.norm_keys: Tensor = norm_weight(sizes.head_size) if sizes.qk_norm else None
        self.output = weight(sizes.hidden, queries)
        self.norm_mlp = norm_weight(sizes.hidden)
        self.router = weight(sizes.experts, sizes.hidden) if sizes.experts > 1 else None
        self.gate_up = [weight(2 * sizes.intermediate, sizes.hidden) for _ in range(sizes.experts)]
        self.down = [weight(sizes.hidden, sizes.intermediate) for _ in range(sizes.experts)]

    def project(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of rows (tokens, hidden): each (tokens, heads of its kind, head size)."""
        sizes = self.sizes
        mixed = functional.linear(rms_norm(hidden, self.norm_attention), self.qkv, self.qkv_bias)
        heads = mixed.view(len(hidden), sizes.heads + 2 * sizes.kv_heads, sizes.head_size)
        queries, keys, values = heads.split([sizes.heads, sizes.kv_heads, sizes.kv_heads], dim=1)
        if self.norm_queries is not None:
            queries, keys = rms_norm(queries, self.norm_queries), rms_norm(keys, self.norm_keys)
        return queries, keys, values

    def finish(self, hidden: Tensor, attention: Tensor, routing: Routing | None = None) -> Tensor:
        """The output of the layer: its input, plus projected attention, plus the MLP of both.

        Args:
            hidden: the input rows, (tokens, hidden).
            attention: (tokens, heads, head size).
            routing: the experts of each token, for a captured graph, which requires the tokens per expert in
                advance; the router still runs and weights the experts. None: the router's choice.
        """
        hidden = hidden + functional.linear(attention.flatten(1), self.output)
        normed = rms_norm(hidden, self.norm_mlp)
        if self.router is None:
            return hidden + self._gated(normed, 0)
        shares = functional.linear(normed, self.router).float().softmax(dim=-1)
        best = shares.topk(self.sizes.active_experts, dim=-1).indices
        if routing is None:
            routing = Routing.of(best, self.sizes.experts)
        weights = shares.gather(1, routing.chosen)
        weights = (weights / weights.sum(dim=-1, keepdim=True)).to(hidden.dtype).flatten()
        for expert, rows, indices in routing.groups:
            output_rows = self._gated(normed.index_select(0, rows), expert)
            hidden.index_add_(0, rows, output_rows * weights.index_select(0, indices).unsqueeze(1))
        return hidden

    def _gated(self, rows: Tensor, expert: int) -> Tensor:
        gate, up = functional.linear(rows, self.gate_up[expert]).chunk(2, dim=-1)
        return functional.linear(functional.silu(gate) * up, self.down[expert])


@dataclass(frozen=True, slots=True)
class Routing:
    """The experts of the tokens of a batch.

    Args:
        chosen: the experts of each token, (tokens, active experts).
        groups: for each expert with tokens: the expert, the rows of its tokens, and their indices in
            `chosen`, counted row by row.
    """

    chosen: Tensor
    groups: list[tuple[int, Tensor, Tensor]]

    @classmethod
    def of(cls, chosen: Tensor, experts: int) -> Routing:
        """The routing with these experts for each token; reads `chosen` on the host."""
        flat = chosen.flatten().cpu()
        order = flat.argsort(stable=True)
        parts = order.split(flat.bincount(minlength=experts).tolist())
        active = chosen.shape[1]
        groups = [
            (expert, (indices // active).to(chosen.device), indices.to(chosen.device))
            for expert, indices in enumerate(parts)
            if len(indices)
        ]
        return cls(chosen, groups)


class PagedCache:
    """Keys and values of some sequences in blocks of 16 tokens.

    Args:
        sequences: number of sequences.
        tokens: capacity per sequence.
        sizes: sizes of the layer.
        draw: creates the initial contents.
        order: the positions of the blocks in memory, a permutation (sequences · blocks of a sequence,); reads
            gather them. None: consecutive, read in place.
    """

    def __init__(
        self, sequences: int, tokens: int, sizes: LayerSizes, draw: Draw, order: Tensor | None
    ) -> None:
        blocks = sequences * blocks_of(tokens)
        self.keys = draw(blocks, BLOCK_TOKENS, sizes.kv_heads, sizes.head_size)
        self.values = draw(blocks, BLOCK_TOKENS, sizes.kv_heads, sizes.head_size)
        self._in_place = order is None
        places = torch.arange(blocks, device=self.keys.device) if order is None else order
        self.tables = places.view(sequences, blocks_of(tokens))
        """The blocks of each sequence, in the order of its tokens."""

    def slots(self, first: int, tokens: int) -> Tensor:
        """The slots of tokens `first` to `first + tokens − 1` of every sequence, sequence by sequence."""
        places = torch.arange(first, first + tokens, device=self.tables.device)
        blocks = self.tables.index_select(1, places // BLOCK_TOKENS)
        return (blocks * BLOCK_TOKENS + places % BLOCK_TOKENS).flatten()

    def write(self, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Write keys and values, (tokens, heads, head size), to `slots`."""
        self.keys.flatten(0, 1).index_copy_(0, slots, keys)
        self.values.flatten(0, 1).index_copy_(0, slots, values)

    def read(self, tokens: int) -> tuple[Tensor, Tensor]:
        """The first `tokens` keys and values of every sequence, (sequences, heads, tokens, head size)."""
        return self._read(self.keys, tokens), self._read(self.values, tokens)

    def _read(self, pool: Tensor, tokens: int) -> Tensor:
        sequences, blocks = self.tables.shape
        gathered = pool if self._in_place else pool.index_select(0, self.tables.flatten())
        return gathered.view(sequences, blocks * BLOCK_TOKENS, *pool.shape[2:])[:, :tokens].transpose(1, 2)


def blocks_of(tokens: int) -> int:
    """Blocks for a number of tokens."""
    return -(-tokens // BLOCK_TOKENS)


def rms_norm(rows: Tensor, weight: Tensor) -> Tensor:
    """Rows divided by the root of their mean square, times a weight."""
    return functional.rms_norm(rows, (len(weight),), weight, _EPSILON)


def rotation(positions: Tensor, head_size: int, dtype: Any) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the angles of positions, each (tokens, 1, head size / 2).

    Component i of position p rotates by p · base^(−2i / head size).
    """
    steps = torch.arange(0, head_size, 2, device=positions.device, dtype=torch.float64) / head_size
    angles = (positions.double().unsqueeze(1) * _ROTARY_BASE**-steps).unsqueeze(1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotated(heads: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate heads (tokens, heads, head size) by the angles of positions; i pairs with i + size / 2."""
    cosine, sine = turn
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


@dataclass(frozen=True, slots=True)
class Attention:
    """The attention of a batch of equal sequences: `tokens` new tokens each at a context of `context`.

    One sequence is a chunk of a prompt; one token each is a step of decodes.

    Args:
        cache: the contexts, with room for the new tokens.
        context: tokens of each sequence computed before.
        tokens: new tokens of each sequence.
        slots: slots of the new tokens.
        turn: angles of their positions, sequence by sequence.
        mask: the causal mask for `scaled_dot_product_attention`.
    """

    cache: PagedCache
    context: int
    tokens: int
    slots: Tensor
    turn: tuple[Tensor, Tensor]
    mask: Tensor

    @classmethod
    def of(cls, cache: PagedCache, context: int, tokens: int, head_size: int, dtype: Any) -> Attention:
        """Create the attention over a cache, with everything that does not depend on the new tokens."""
        positions = torch.arange(context, context + tokens, device=cache.tables.device)
        turn = rotation(positions.repeat(len(cache.tables)), head_size, dtype)
        mask = _mask(tokens, context, cache.tables.device)
        return cls(cache, context, tokens, cache.slots(context, tokens), turn, mask)

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Rotate, write into the cache, attend to all tokens: (sequences · tokens, heads, head size)."""
        self.cache.write(self.slots, rotated(keys, self.turn), values)
        known_keys, known_values = self.cache.read(self.context + self.tokens)
        by_sequence = rotated(queries, self.turn).unflatten(0, (-1, self.tokens)).transpose(1, 2)
        attended = functional.scaled_dot_product_attention(
            by_sequence,
            known_keys,
            known_values,
            attn_mask=self.mask,
            enable_gqa=queries.shape[1] != keys.shape[1],
        )
        return attended.transpose(1, 2).flatten(0, 1)


def _mask(tokens: int, context: int, device: Any) -> Tensor:
    """The causal mask of tokens at a context: token i attends to the context and tokens up to itself."""
    from torch.nn.attention.bias import causal_lower_right

    if tokens == 1:
        return None  # it attends to everything, so that any kernel applies
    if device.type == "cuda":
        return causal_lower_right(tokens, context + tokens)  # a flag of FlashAttention, not a matrix
    return torch.ones(tokens, context + tokens, dtype=torch.bool, device=device).tril(context)


def forward(
    layers: Sequence[Layer], hidden: Tensor, attention: Sequence[Callable[[Tensor, Tensor, Tensor], Tensor]]
) -> Tensor:
    """Pass rows through all layers, each with the attention over its own cache."""
    for layer, attend in zip(layers, attention, strict=True):
        hidden = layer.finish(hidden, attend(*layer.project(hidden)))
    return hidden
