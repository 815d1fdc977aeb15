"""How long does one iteration take? Every model prices a batch from its shape alone.

The shape of a batch: chunks (`c` tokens of a prompt at context `x`) and decode rows (one token each at some
context), all as they stand before the iteration. Seconds mean what was typed: `0.0455` is exactly 45.5 ms in
the core. A batch that comes out at 0 seconds stops the run with a `SimulationError`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from inferq import _core
from inferq.checks import MOST_TOKENS, whole
from inferq.description import Description
from inferq.errors import ConfigError


@dataclass(frozen=True, slots=True)
class TokenCost:
    """An iteration's length by its n tokens, and what contexts add, request by request.

    base + per_token·max(0, n − knee), and the terms of `PiecewiseLinear` and of `MemoryLinear`.
    """

    base_s: float
    per_token_s: float = 0.0
    knee: int = 0
    per_context_token_s: float = 0.0
    per_prefill_square_s: float = 0.0
    per_chunk_context_s: float = 0.0
    per_kv_token_s: float = 0.0


class TimingModel(Description):
    """A description of how long an iteration takes: one of the classes of this module."""

    __slots__ = ()
    part: ClassVar[str | None] = "timing"
    uncounted: ClassVar[str] = "has no closed form by tokens; see what stability bounds"
    """Why a model has no `cost()`."""

    def cost(self) -> TokenCost | None:
        """The model as a function of tokens and contexts; None where it is no such function."""
        return None

    def shortest_iteration_s(self) -> float:
        """No iteration is shorter; 0 where nothing is known of that."""
        return 0.0


@dataclass(frozen=True, slots=True)
class Constant(TimingModel):
    """Every iteration lasts `seconds`, whatever is in it: one slot of the papers' slotted models.

    Source: nie2026 section 3, li2025 section 4.3.

    Args:
        seconds: length of an iteration in seconds.

    Raises:
        ConfigError: `seconds` is negative, not finite, or rounds to 0 attoseconds although it is not 0.

    Example:
        >>> import inferq as iq
        >>> iq.Constant(0.02).to_json()
        {'kind': 'Constant', 'seconds': 0.02}
    """

    seconds: float

    def cost(self) -> TokenCost:
        """The same for any number of tokens."""
        return TokenCost(self.seconds)

    def shortest_iteration_s(self) -> float:
        """Each is as long."""
        return self.seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class PiecewiseLinear(TimingModel):
    """A flat floor, then linear in tokens, with optional attention terms.

    An iteration lasts `base + per_token·max(0, tokens − knee) + per_context_token·Σ decode contexts
    + per_prefill_square·Σ c² + per_chunk_context·Σ c·x`. With `per_chunk_context = 2·per_prefill_square` a
    prompt costs the same attention however it is cut.

    Source: li2025 (2.3) with c = `base`, a = `per_token`, b0 = `knee` (the paper swaps the units of the last
        two in its text), and (A.1) with α = `per_prefill_square`, β = `per_context_token`.

    Args:
        base: seconds of an iteration of at most `knee` tokens.
        per_token: seconds for each token above `knee`.
        knee: tokens up to which an iteration costs only `base`.
        per_context_token: seconds for each token of context of each decode row.
        per_prefill_square: seconds for each squared token of a chunk.
        per_chunk_context: seconds for each token of a chunk times each token of its context.

    Raises:
        ConfigError: a coefficient is negative, not finite, or rounds to 0 attoseconds although it is not 0;
            `knee` is not a whole number of tokens.

    Example:
        Llama-3-70B on two A100 GPUs, as measured in li2025:

        >>> import inferq as iq
        >>> iq.PiecewiseLinear(base=0.0455, per_token=0.0003, knee=64).knee
        64
    """

    base: float
    per_token: float
    knee: int = 0
    per_context_token: float = 0
    per_prefill_square: float = 0
    per_chunk_context: float = 0

    def cost(self) -> TokenCost:
        """All of its terms."""
        return TokenCost(
            self.base,
            self.per_token,
            self.knee,
            self.per_context_token,
            self.per_prefill_square,
            self.per_chunk_context,
        )

    def shortest_iteration_s(self) -> float:
        """One of few tokens."""
        return self.base


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryLinear(TimingModel):
    """Linear in the KV memory that the batch touches; paused requests cost nothing.

    An iteration lasts `base + per_kv_token·(Σ (x + c) over chunks + Σ (context + 1) over decode rows)`.

    Source: ao2025 (1) with d0 = `base`, d1 = `per_kv_token`.

    Args:
        base: seconds of every iteration.
        per_kv_token: seconds for each token whose keys and values the iteration reads or writes.

    Raises:
        ConfigError: a coefficient is negative, not finite, or rounds to 0 attoseconds although it is not 0.

    Example:
        Llama-2-7B on an A100:

        >>> import inferq as iq
        >>> iq.MemoryLinear(base=0.015, per_kv_token=2.6e-7).base
        0.015
    """

    base: float
    per_kv_token: float

    def cost(self) -> TokenCost:
        """Both of its terms."""
        return TokenCost(self.base, per_kv_token_s=self.per_kv_token)

    def shortest_iteration_s(self) -> float:
        """One that touches no memory."""
        return self.base


@dataclass(frozen=True, kw_only=True, slots=True)
class MixedSolo(TimingModel):
    """Linear in prefill tokens while a prompt is in the batch, otherwise one fixed time.

    An iteration lasts `alpha + beta·(prefill tokens)` when a chunk is present, else `solo`.

    Source: lin2026 (2) and (3), with `solo` = 1/γ.

    Args:
        alpha: seconds of an iteration with a chunk, before its tokens are counted.
        beta: seconds for each prefill token.
        solo: seconds of an iteration of decodes only.

    Raises:
        ConfigError: a number is negative, not finite, or rounds to 0 attoseconds although it is not 0.

    Example:
        >>> import inferq as iq
        >>> iq.MixedSolo(alpha=0.02, beta=0.0001, solo=0.015).solo
        0.015
    """

    alpha: float
    beta: float
    solo: float

    uncounted: ClassVar[str] = "asks whether a prompt is there, not for tokens; use allocation"

    def shortest_iteration_s(self) -> float:
        """One of decodes, or of a short chunk."""
        return min(self.alpha, self.solo)


@dataclass(frozen=True, kw_only=True, slots=True)
class TiledGemm(TimingModel):
    """Matrix products in tiles: a staircase in the tokens of the batch and in each row's context.

    An iteration lasts

    - `linear_s_per_tile·⌈tokens / columns⌉ + other_s_per_token·tokens`, tokens being all that it computes,
    - plus, for each decode row with i = its context + 1,
      `layers·gemv_s·((width / columns)·⌈i / rows⌉ + (width / rows)·⌈i / columns⌉)`,
    - plus, for each chunk of c tokens at context x, `layers·gemm_s·⌈c / columns⌉·((width / reduction)·
      ⌈(x + c) / rows⌉ + (width / rows)·⌈(x + c) / reduction⌉)`.

    Source: bari2025 (7), with t_row = `rows`, t_col = `columns`, t_red = `reduction`, d = `width`,
        N = `layers`, 1/μ_Lin = `linear_s_per_tile`, 1/μ_nLin = `other_s_per_token`, 1/μ(t_row, t_col) of (5)
        = `gemv_s`, 1/(s·μ(t_row, t_col, t_red)) = `gemm_s`. (5) leaves out the number of multiprocessors s
        that (3) has; `gemv_s` is the whole factor, whatever it holds. Assumption 3 names t_row twice where
        t_red is meant.

    Args:
        rows: rows of an output tile, at least 1; divides `width`.
        columns: columns of an output tile, at least 1; divides `width`.
        reduction: length of the reduction tile, at least 1; divides `width`.
        width: dimension of the keys and values of one token in a layer, at least 1.
        linear_s_per_tile: seconds of all linear layers for `columns` tokens.
        other_s_per_token: seconds of everything else, such as activations, for each token.
        gemm_s: seconds of one pair of tiles of a chunk's attention.
        gemv_s: seconds of one pair of tiles of a decode's attention.
        layers: layers of the model, at least 1.

    Raises:
        ConfigError: a number of seconds is negative, not finite, or rounds to 0 attoseconds although it is
            not 0; another number outside its range; a tile size that does not divide `width`.

    Example:
        The tiles of an A100. One token more than two tiles hold costs a third:

        >>> import inferq as iq
        >>> tiles = {"rows": 128, "columns": 256, "reduction": 32, "width": 4096, "layers": 32}
        >>> linear = iq.TiledGemm(**tiles, linear_s_per_tile=1, other_s_per_token=0, gemm_s=0, gemv_s=0)
        >>> scheduler = iq.Sarathi(token_budget=1024)
        >>> engine = iq.Engine(timing=linear, scheduler=scheduler, kv=iq.KvCache.unlimited())
        >>> workload = {"arrival_s": [0.0, 10.0], "prompt_tokens": [512, 513], "output_tokens": [1, 1]}
        >>> iq.simulate(workload, engine).requests["ttft_s"].to_list()
        [2.0, 3.0]
    """

    rows: int
    columns: int
    reduction: int
    width: int
    linear_s_per_tile: float
    other_s_per_token: float
    gemm_s: float
    gemv_s: float
    layers: int

    uncounted: ClassVar[str] = "counts tiles, not tokens; use tile_capacity"

    def shortest_iteration_s(self) -> float:
        """One token, its attention left out."""
        return self.linear_s_per_tile + self.other_s_per_token


def iteration_s(
    model: TimingModel, *, chunks: Iterable[tuple[int, int]] = (), decodes: Iterable[int] = ()
) -> float:
    """Seconds of one iteration, as the core computes them in a run; an engine's overhead is not in them.

    Args:
        model: any timing model.
        chunks: for each prefill chunk its tokens, and the tokens of its request that were computed before.
        decodes: for each decode its context in tokens, before the iteration.

    Returns:
        Seconds, rounded once from whole attoseconds.

    Raises:
        ConfigError: no model, an empty batch, a chunk without tokens, a number that is not whole.

    Example:
        >>> import inferq as iq
        >>> model = iq.PiecewiseLinear(base=0.01, per_token=0.0001, per_context_token=0.000001)
        >>> iq.timing.iteration_s(model, chunks=[(256, 0)], decodes=[1000, 3000])
        0.0398
    """
    if not isinstance(model, TimingModel):
        raise ConfigError("model", f"must be a timing model such as inferq.Constant, is {model!r}")
    rows = []
    for place, chunk in enumerate(chunks):
        try:
            tokens, context = chunk
        except (TypeError, ValueError):
            raise ConfigError(f"chunks[{place}]", f"must be (tokens, context), is {chunk!r}") from None
        rows.append(
            (
                whole(f"chunks[{place}] tokens", tokens, 1, MOST_TOKENS),
                whole(f"chunks[{place}] context", context, 0, MOST_TOKENS),
            )
        )
    contexts = [whole(f"decodes[{place}]", context, 0, MOST_TOKENS) for place, context in enumerate(decodes)]
    if not rows and not contexts:
        raise ConfigError("chunks", "an iteration needs a chunk or a decode")
    seconds, _ = _core.price(json.dumps(model.to_json()), rows, contexts)
    return seconds
