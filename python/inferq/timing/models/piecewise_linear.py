"""PiecewiseLinear: constant up to a number of tokens, then linear (li2025)."""

from __future__ import annotations

from dataclasses import dataclass

from inferq.timing.models.timing_model import TimingModel, TokenCost


@dataclass(frozen=True, kw_only=True, slots=True)
class PiecewiseLinear(TimingModel):
    """Time constant up to `knee` tokens, then linear, with optional attention terms.

    An iteration takes `base + per_token·max(0, tokens − knee) + per_decode·decodes
    + per_context_token·Σ decode contexts + per_prefill_square·Σ c² + per_chunk_context·Σ c·x`. With
    `per_chunk_context = 2·per_prefill_square` attention time of a prompt is independent of its chunks.

    Source: li2025 (2.3) with c = `base`, a = `per_token`, b0 = `knee` (the paper swaps the units of the last
        two in its text), and (A.1) with α = `per_prefill_square`, β = `per_context_token`. `per_decode`, the
        attention of a decode at a fixed length: bari2025 (5), (7).

    Args:
        base: seconds of an iteration of at most `knee` tokens.
        per_token: seconds per token above `knee`.
        knee: tokens up to which an iteration takes `base`.
        per_decode: seconds per decode row, in addition to its token. A row is a decode if the request
            computes its last pending token and has emitted a token before, or emits its first with
            `first_token="decode"`. All other rows are chunks, also those of a recomputation before its last.
        per_context_token: seconds per token of context of each decode row.
        per_prefill_square: seconds per squared token of a chunk.
        per_chunk_context: seconds per token of a chunk and token of its context.

    Raises:
        ConfigError: a coefficient is negative, not finite, or rounds to 0 attoseconds although it is not 0;
            `knee` is not an integer.

    Example:
        Llama-3-70B on two A100 GPUs, as measured in li2025:

        >>> import inferq as iq
        >>> iq.PiecewiseLinear(base=0.0455, per_token=0.0003, knee=64).knee
        64
    """

    base: float
    per_token: float
    knee: int = 0
    per_decode: float = 0
    per_context_token: float = 0
    per_prefill_square: float = 0
    per_chunk_context: float = 0

    def cost(self) -> TokenCost:
        """All terms."""
        return TokenCost(
            self.base,
            self.per_token,
            self.knee,
            self.per_context_token,
            self.per_prefill_square,
            self.per_chunk_context,
            per_decode_s=self.per_decode,
        )

    def shortest_iteration_s(self) -> float:
        """The base."""
        return self.base
