"""Preemption: what becomes of a request that must give up its blocks."""

from __future__ import annotations

import json
from dataclasses import dataclass

from inferq import _core
from inferq.description import Description


class Preemption(Description):
    """A description of what becomes of a victim: `Recompute`, `Restart` or `Swap`."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Recompute(Preemption):
    """A preempted request loses its context and computes prompt and generated tokens anew.

    The tokens that it has emitted stay emitted: its time to first token is not reset. What it computes anew
    is priced as chunks of a prompt. Only its last owed token is priced as a decode, where an iteration
    computes that one alone, and not even that one under a policy that says so.

    Source: vLLM v0 and v1, Sarathi-Serve.

    Example:
        >>> import inferq as iq
        >>> iq.Recompute().to_json()
        {'kind': 'Recompute'}
    """


@dataclass(frozen=True, slots=True)
class Restart(Preemption):
    """A preempted request loses its context and the tokens that it has generated, and begins again.

    It waits where a victim waits, owes its prompt alone, and generates all of its output anew. The tokens
    that are thrown away were loaded, paid for and emitted: `output_tokens_per_s`, `iterations`, `batches` and
    the token gaps in `itl` have them, and `discarded_tokens` of each request, a column of runs with such a
    policy alone, counts them. So a finished request has emitted `output_tokens + discarded_tokens` tokens,
    one gap fewer, and `tokens_in_system` rises by what is thrown away.

    Time goes on, as with `Recompute`: `first_token_s` is the first token that was ever emitted, thrown away
    or not, the wait between the last token before the restart and the first one after it is a gap, `tpot_s`
    is (last − first token) / (`output_tokens` − 1).

    Source: ao2025, Proposition 4 and its proof (A.3): preempted prompts restart.

    Example:
        >>> import inferq as iq
        >>> iq.Sarathi(preemption=iq.Restart()).to_json()["preemption"]
        {'kind': 'Restart'}
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
