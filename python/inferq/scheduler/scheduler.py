"""Scheduler: what is common to all policies, those of inferq and those of a user."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import inferq.scheduler
from inferq.description import Answer, Description, plain
from inferq.errors import ConfigError, Renamed

if TYPE_CHECKING:
    from inferq.scheduler.speculation import Speculation

_READ: dict[str, tuple[int | None, tuple[Any, ...]]] = {
    "token_budget": (None, (int, type(None))),
    "max_seqs": (None, (int, type(None))),
    "lookahead": (256, (int,)),
}
"""The attributes of a user-defined policy that the core reads: their defaults, and their types."""


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
        See `inferq.scheduler.user_defined` and `docs/guides/write-a-scheduler.md`.
    """

    __slots__ = ()
    is_written = Renamed("is_user_defined")
    part: ClassVar[str | None] = "scheduler"
    unreadable: ClassVar[tuple[str, str] | None] = (
        "Python",
        "a scheduler written in Python cannot be read back from a description; build the engine in Python",
    )

    def __post_init__(self) -> None:
        """Let the core judge a policy of inferq; the fields of any other are its own affair."""
        if not self.is_user_defined():
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
        if self.is_user_defined():
            return Answer(None, f"{type(self).__name__} is written in Python")
        return Answer(None, f"nothing is known of {type(self).__name__}")

    def serves_oldest(self) -> bool:
        """Whether the oldest requests always go on; False where that is not known.

        As many as fit the cache at their longest are never preempted, and each iteration takes of them what
        the budget holds.
        """
        return False

    def plans_ahead(self) -> bool:
        """Whether each batch is planned while the one before it runs, without its outcome."""
        return False

    def speculates(self) -> Speculation | None:
        """How its requests decode by drafts; None: token by token."""
        return None

    def is_user_defined(self) -> bool:
        """Whether this is an object of a class that is no policy of inferq itself."""
        return type(self) not in inferq.scheduler.SCHEDULERS

    def to_json(self) -> dict[str, Any]:
        """The policy as JSON-ready values, with its `kind`: `"Python"` for one of your own.

        Raises:
            ConfigError: one of your own has no `plan`, or an attribute that is no number.
        """
        if not self.is_user_defined():
            return Description.to_json(self)
        kind = type(self)
        if not callable(getattr(self, "plan", None)):
            raise ConfigError("scheduler", f"{kind.__name__} has no plan(view), and is no policy of inferq")
        attributes = {
            name: plain(f"scheduler.{name}", getattr(self, name, default), types)
            for name, (default, types) in _READ.items()
        }
        return {"kind": "Python", "name": f"{kind.__module__}.{kind.__qualname__}", **attributes}
