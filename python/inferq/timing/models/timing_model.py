"""TimingModel: the base class of timing models, and the duration of one iteration."""

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
    """Coefficients of an iteration's duration by its n tokens and the contexts of its requests.

    base + per_token·max(0, n − knee), plus the terms of `PiecewiseLinear` and `MemoryLinear`.
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
    """The duration of an iteration: the base class of the timing models."""

    __slots__ = ()
    part: ClassVar[str | None] = "timing"
    uncounted: ClassVar[str] = "has no closed form in tokens; see the bounds of stability"
    """The reason why a model has no `cost()`."""

    def cost(self) -> TokenCost | None:
        """The model as a function of tokens and contexts; None if it has no such form."""
        return None

    def shortest_iteration_s(self) -> float:
        """A lower bound on the duration of an iteration; 0 if unknown."""
        return 0.0


def iteration_s(
    model: TimingModel, *, chunks: Iterable[tuple[int, int]] = (), decodes: Iterable[int] = ()
) -> float:
    """Compute the duration of one iteration as the core does, without an engine's overhead.

    Args:
        model: any timing model.
        chunks: tokens of each prefill chunk, and tokens of its request computed before.
        decodes: context of each decode in tokens, before the iteration.

    Returns:
        Seconds, rounded once from integer attoseconds.

    Raises:
        ConfigError: not a timing model, an empty batch, a chunk without tokens, a number that is not an
            integer.

    Example:
        >>> import inferq as iq
        >>> model = iq.PiecewiseLinear(base=0.01, per_token=0.0001, per_context_token=0.000001)
        >>> iq.timing.iteration_s(model, chunks=[(256, 0)], decodes=[1000, 3000])
        0.0398
    """
    if not isinstance(model, TimingModel):
        raise ConfigError("model", f"must be a timing model such as inferq.Constant, got {model!r}")
    rows = []
    for place, chunk in enumerate(chunks):
        try:
            tokens, context = chunk
        except (TypeError, ValueError):
            raise ConfigError(f"chunks[{place}]", f"must be (tokens, context), got {chunk!r}") from None
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
