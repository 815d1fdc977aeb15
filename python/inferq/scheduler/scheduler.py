"""What is common to all policies, and what becomes of a request that must give up its blocks?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from inferq.description import Answer, Description
from inferq.scheduler import user_defined


class Scheduler(Description):
    """A scheduling policy: a class of `inferq.scheduler`, or one of your own that is derived from this.

    A class of your own has a method `plan(view)`. It is called whenever a batch can be formed, with a `View`,
    and returns a `Batch`; None, or an empty batch, lets the replica idle until the next event. What it raises
    passes through `simulate` untouched. An object that remembers something still does in its next run.

    Three attributes, of the class or of the object, are read when a run begins: `token_budget`, tokens that
    an iteration may load, and `max_seqs`, requests that may run at once, each None or not there for no limit;
    and `lookahead`, how many waiting requests a view shows, 256 if it is not there.

    Raises:
        ConfigError: used in an `Engine`, a class without `plan`, or one of the three attributes that is no
            whole number above 0.
        SimulationError: in `simulate`, a batch that breaks a rule; it names the rule and the request.

    Example:
        See `inferq.scheduler.user_defined` and `docs/write-a-scheduler.md`.
    """

    __slots__ = ()
    part: ClassVar[str | None] = "scheduler"

    def __post_init__(self) -> None:
        """Let the core judge a policy of inferq; the fields of any other are its own affair."""
        if not self.is_written():
            Description.__post_init__(self)

    def __init_subclass__(cls) -> None:
        """What a policy says of its batches holds for no policy that is derived from it."""
        for name in ("fills_budget", "serves_oldest"):
            if name not in vars(cls):
                setattr(cls, name, vars(Scheduler)[name])

    def budget(self) -> int | None:
        """Tokens that an iteration may load; None where there is no such limit."""
        budget: int | None = getattr(self, "token_budget", None)
        return budget

    def seats(self) -> int | None:
        """Requests that may run at once; None where there is no such limit."""
        seats: int | None = getattr(self, "max_seqs", None)
        return seats

    def reserved_tokens(self) -> int | None:
        """Tokens for which each request reserves blocks, none being longer; None: its own alone."""
        return None

    def cuts_prompts(self) -> bool:
        """Whether a prompt may be longer than the budget."""
        return True

    def spared_share(self) -> float:
        """The share of all blocks that an admission leaves free."""
        share: float = getattr(self, "watermark", 0.0)
        return share

    def fills_budget(self) -> Answer:
        """Whether a token is loaded whenever budget, seats and memory have room for one, li2025 (2.6)."""
        if self.is_written():
            return Answer(None, f"{type(self).__name__} is written in Python")
        return Answer(None, f"nothing is known of {type(self).__name__}")

    def serves_oldest(self) -> bool:
        """Whether the oldest requests always go on; False where that is not known.

        As many as fit the cache at their longest are never preempted, and each iteration takes of them what
        the budget holds.
        """
        return False

    def is_written(self) -> bool:
        """Whether this is an object of a class that is no policy of inferq itself."""
        from inferq.scheduler import SCHEDULERS

        return type(self) not in SCHEDULERS

    def to_json(self) -> dict[str, Any]:
        """The policy as JSON-ready values, with its `kind`: `"Python"` for one of your own."""
        return user_defined.describe(self) if self.is_written() else Description.to_json(self)


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
    """A preempted request keeps its context on the host and comes back before anyone is admitted.

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
        from inferq.scheduler.vllm_v1 import VllmV0

        Preemption.__post_init__(self)
        VllmV0(preemption=self)
