"""What every timing model is, the cost of a token where it has one, and the length of one iteration."""

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
    per_decode_s: float = 0.0


class TimingModel(Description):
    """A description of how long an iteration takes: one of the classes of this folder."""

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
