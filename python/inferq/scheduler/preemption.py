"""Preemption: what becomes of a request that must give up its blocks."""

from __future__ import annotations

import json
from dataclasses import dataclass

from inferq import _core
from inferq.description import Description


class Preemption(Description):
    """A description of what becomes of a request that must give up its blocks: `Recompute` or `Swap`."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Recompute(Preemption):
    """A preempted request loses its context and computes prompt and generated tokens anew.

    The tokens that it has emitted stay emitted: its time to first token is not reset.

    Source: vLLM v0 and v1, Sarathi-Serve.

    Example:
        >>> import inferq as iq
        >>> iq.Recompute().to_json()
        {'kind': 'Recompute'}
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class Swap(Preemption):
    """A preempted request keeps its context on the host and comes back before any is admitted.

    Moving `x` tokens of context costs `base + per_token·x`, charged to the iteration that swaps out and again
    to the one that swaps in. The oldest swapped request returns first.

    Source: li2025 (A.3) with a1 = `per_token`, a2 = `base`; the order of returning is vLLM v0's.

    Args:
        per_token: seconds for each token of context that is moved.
        base: seconds for each move.

    Raises:
        ConfigError: a cost is negative, not finite, or rounds to 0 attoseconds although it is not 0.

    Example:
        >>> import inferq as iq
        >>> iq.VllmV0(preemption=iq.Swap(per_token=2e-7, base=0.001)).preemption.base
        0.001
    """

    per_token: float
    base: float

    def __post_init__(self) -> None:
        """Let the core judge the costs where it reads them: inside a scheduler."""
        Preemption.__post_init__(self)
        policy = {"kind": "VllmV0", "token_budget": 1, "max_seqs": 1, "watermark": 0}
        _core.check("scheduler", json.dumps({**policy, "preemption": self.to_json()}))
