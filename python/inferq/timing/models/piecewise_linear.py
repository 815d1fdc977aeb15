"""A flat floor, then a line in tokens (li2025)."""

from __future__ import annotations

from dataclasses import dataclass

from inferq.timing.models.timing_model import TimingModel, TokenCost


@dataclass(frozen=True, kw_only=True, slots=True)
class PiecewiseLinear(TimingModel):
    """A flat floor, then linear in tokens, with optional attention terms.

    An iteration lasts `base + per_token·max(0, tokens − knee) + per_decode·decodes
    + per_context_token·Σ decode contexts + per_prefill_square·Σ c² + per_chunk_context·Σ c·x`. With
    `per_chunk_context = 2·per_prefill_square` a prompt costs the same attention however it is cut.

    Source: li2025 (2.3) with c = `base`, a = `per_token`, b0 = `knee` (the paper swaps the units of the last
        two in its text), and (A.1) with α = `per_prefill_square`, β = `per_context_token`;
        a cost for each decode (`per_decode`), as its attention has at one length: bari2025 (5), (7).

    Args:
        base: seconds of an iteration of at most `knee` tokens.
        per_token: seconds for each token above `knee`.
        knee: tokens up to which an iteration costs only `base`.
        per_decode: seconds for each decode row, beside those of its token. A row is a decode when the request
            computes its last owed token and has emitted before, or makes its first with
            `first_token="decode"`; all other rows are chunks, those of a recomputation before its last too.
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
    per_decode: float = 0
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
            per_decode_s=self.per_decode,
        )

    def shortest_iteration_s(self) -> float:
        """One of few tokens."""
        return self.base
