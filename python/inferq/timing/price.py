"""What does a model say that one iteration takes?"""

from __future__ import annotations

import json
from collections.abc import Iterable

from inferq import _core
from inferq.checks import MOST_TOKENS, whole
from inferq.errors import ConfigError
from inferq.timing.models import TimingModel


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
