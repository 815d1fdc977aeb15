"""Preemption: the context of a request that loses its blocks."""

from __future__ import annotations

import json
from dataclasses import dataclass

from inferq import _core
from inferq.description import Description


class Preemption(Description):
    """How a preempted request resumes: `Recompute`, `Restart` or `Swap`."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Recompute(Preemption):
    """A preempted request loses its context and recomputes its prompt and generated tokens.

    Emitted tokens stay emitted: TTFT is not reset. Recomputed tokens cost the same as prefill chunks. The
    last one costs the same as a decode if an iteration computes it alone, unless the policy defines
    otherwise.

    Source: vLLM v0 and v1, Sarathi-Serve.

    Example:
        >>> import inferq as iq
        >>> iq.Recompute().to_json()
        {'kind': 'Recompute'}
    """


@dataclass(frozen=True, slots=True)
class Restart(Preemption):
    """A preempted request loses its context and its generated tokens, and starts again.

    It waits as any victim does, and generates its whole output again. Discarded tokens were computed and
    emitted: `output_tokens_per_s`, `iterations`, `batches` and `itl` include them. The column
    `discarded_tokens`, present only in runs with this preemption, counts them. A finished request has emitted
    `output_tokens + discarded_tokens` tokens, with one gap fewer, and `tokens_in_system` rises by the
    discarded tokens.

    Times are not reset, as with `Recompute`: `first_token_s` is the first token ever emitted, discarded or
    not; the wait between the last token before the restart and the first one after it is a gap; `tpot_s` is
    (last − first token) / (`output_tokens` − 1).

    Source: ao2025, Proposition 4 and its proof (A.3): preempted prompts restart.

    Example:
        >>> import inferq as iq
        >>> iq.Sarathi(preemption=iq.research.Restart()).to_json()["preemption"]
        {'kind': 'Restart'}
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class Swap(Preemption):
    """A preempted request keeps its context on the host and resumes before new requests are admitted.

    Moving `x` tokens of context takes `base + per_token·x`, added to the iteration that swaps out and again
    to the one that swaps in. The oldest swapped request resumes first.

    Source: li2025 (A.3) with a1 = `per_token`, a2 = `base`; the order of resuming is vLLM v0's.

    Args:
        per_token: seconds per moved token of context.
        base: seconds per move.

    Raises:
        ConfigError: a time is negative, not finite, or rounds to 0 attoseconds although it is not 0.

    Example:
        >>> import inferq as iq
        >>> iq.VllmV0(preemption=iq.Swap(per_token=2e-7, base=0.001)).preemption.base
        0.001
    """

    per_token: float
    base: float

    def __post_init__(self) -> None:
        """Let the core check the times as part of a scheduler."""
        Preemption.__post_init__(self)
        policy = {"kind": "VllmV0", "token_budget": 1, "max_seqs": 1, "watermark": 0}
        _core.check("scheduler", json.dumps({**policy, "preemption": self.to_json()}))
