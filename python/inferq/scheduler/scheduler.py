"""Scheduler: the base class of all policies, built in or written by the user."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import inferq.scheduler
from inferq.description import Answer, Description, plain
from inferq.errors import ConfigError

if TYPE_CHECKING:
    from inferq.scheduler.speculation import Speculation

_READ: dict[str, tuple[int | None, tuple[Any, ...]]] = {
    "token_budget": (None, (int, type(None))),
    "max_seqs": (None, (int, type(None))),
    "lookahead": (256, (int,)),
}
"""Attributes of a user-defined policy that the core reads: their defaults and types."""


class Scheduler(Description):
    """A scheduling policy: a class of `inferq.scheduler`, or your own class derived from this one.

    Your own class has a method `plan(view)`. It is called with a `View` whenever a batch can be formed, and
    returns a `Batch`. None or an empty batch leaves the replica idle until the next event. An exception that
    it raises passes through `simulate` unchanged. An object keeps its state between runs.

    Three attributes, of the class or of the object, are read when a run begins: `token_budget`, maximum
    tokens of an iteration, and `max_seqs`, maximum running requests, both without limit if missing or None;
    and `lookahead`, the number of waiting requests in a view. Default: 256.

    Raises:
        ConfigError: used in an `Engine`, the class has no `plan`, or one of the three attributes is not a
            positive integer.
        SimulationError: in `simulate`, a batch violates a rule; the message names the rule and the request.

    Example:
        See `inferq.scheduler.user_defined` and `docs/guides/write-a-scheduler.md`.
    """

    __slots__ = ()
    part: ClassVar[str | None] = "scheduler"
    unreadable: ClassVar[tuple[str, str] | None] = (
        "Python",
        "a scheduler written in Python cannot be read back from a description; build the engine in Python",
    )

    def __post_init__(self) -> None:
        """Let the core check a built-in policy; user-defined policies check their own fields."""
        if not self.is_user_defined():
            Description.__post_init__(self)

    def __init_subclass__(cls) -> None:
        """Reset properties of batches that may not hold for a derived policy."""
        super().__init_subclass__()
        for name in ("fills_budget", "serves_oldest"):
            if name not in vars(cls):
                setattr(cls, name, vars(Scheduler)[name])

    def token_limit(self) -> int | None:
        """Maximum tokens of an iteration; None: no limit."""
        limit: int | None = getattr(self, "token_budget", None)
        return limit

    def sequence_limit(self) -> int | None:
        """Maximum running requests; None: no limit."""
        limit: int | None = getattr(self, "max_seqs", None)
        return limit

    def reserved_tokens(self) -> int | None:
        """Tokens for which each request reserves blocks; None: its own length."""
        return None

    def chunks_prompts(self) -> bool:
        """Whether a prompt may be longer than the token budget."""
        return True

    def admission_margin(self) -> float:
        """The fraction of all blocks that an admission leaves free."""
        margin: float = getattr(self, "watermark", 0.0)
        return margin

    def fills_budget(self) -> Answer:
        """Whether the policy uses every token that budget, sequence limit and memory allow, li2025 (2.6)."""
        if self.is_user_defined():
            return Answer(None, f"{type(self).__name__} is written in Python")
        return Answer(None, f"no result is known for {type(self).__name__}")

    def serves_oldest(self) -> bool:
        """Whether the oldest requests always advance; False if unknown.

        As many of them as fit the cache at their maximum length are never preempted, and each iteration takes
        as many of their tokens as the budget allows.
        """
        return False

    def is_asynchronous(self) -> bool:
        """Whether each batch is planned during the previous iteration, without its results."""
        return False

    def reads_output_limits(self) -> bool:
        """Whether batches depend on the `max_output_tokens` of requests."""
        return self.is_asynchronous()

    def speculative_decoding(self) -> Speculation | None:
        """The configuration of speculative decoding; None: no speculation."""
        return None

    def waits_for_full_batches(self) -> bool:
        """Whether requests wait until enough of them can fill a batch."""
        return False

    def batching_policy(self) -> Scheduler:
        """The policy that forms batches within a class."""
        return self

    def is_user_defined(self) -> bool:
        """Whether the class is not a built-in policy."""
        return type(self) not in inferq.scheduler.SCHEDULERS

    def to_json(self) -> dict[str, Any]:
        """Return the policy as JSON-ready values with its `kind`, `"Python"` for your own class.

        Raises:
            ConfigError: your own class has no `plan`, or an attribute is not a number.
        """
        if not self.is_user_defined():
            return Description.to_json(self)
        kind = type(self)
        if not callable(getattr(self, "plan", None)):
            raise ConfigError("scheduler", f"{kind.__name__} has no plan(view) and is not a built-in policy")
        attributes = {
            name: plain(f"scheduler.{name}", getattr(self, name, default), types)
            for name, (default, types) in _READ.items()
        }
        return {"kind": "Python", "name": f"{kind.__module__}.{kind.__qualname__}", **attributes}
