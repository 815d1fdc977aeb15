"""What does a scheduler of one's own see, and what does it answer?

A class derived from `Scheduler` with a method `plan` is asked for every batch: it gets a `View` and returns a
`Batch`. See `docs/write-a-scheduler.md`.

Example:
    A policy that serves one request after the other:

    >>> import inferq as iq
    >>> class OneByOne(iq.Scheduler):
    ...     def plan(self, view: iq.View) -> iq.Batch:
    ...         running = view.running
    ...         if len(running) == 0:
    ...             waiting = view.waiting
    ...             return iq.Batch(prefill=[(waiting.id[0], waiting.prompt_left[0])])
    ...         return iq.Batch(decode=running.id)
    >>> engine = iq.Engine(timing=iq.Constant(1.0), scheduler=OneByOne(), kv=iq.KvCache.unlimited())
    >>> workload = {"arrival_s": [0.0, 0.0], "prompt_tokens": [8, 8], "output_tokens": [3, 2]}
    >>> iq.simulate(workload, engine).requests["finish_s"].to_list()
    [3.0, 5.0]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from inferq._core import Batch, Requests, View
from inferq.description import plain
from inferq.errors import ConfigError

if TYPE_CHECKING:
    from inferq.scheduler.scheduler import Scheduler

__all__ = ["Batch", "Requests", "View"]

UNREADABLE = (
    "a scheduler written in Python cannot be read back from a description; build the engine in Python"
)
"""Why such a description is refused."""

_FIELDS: dict[str, tuple[int | None, tuple[Any, ...]]] = {
    "token_budget": (None, (int, type(None))),
    "max_seqs": (None, (int, type(None))),
    "lookahead": (256, (int,)),
}
"""The attributes that the core reads: the value of one that is not there, and the types that it may have."""


def describe(scheduler: Scheduler) -> dict[str, Any]:
    """What the record of a run says of a scheduler that is written in Python.

    Raises:
        ConfigError: it has no `plan`, or an attribute that is no number.
    """
    kind = type(scheduler)
    if not callable(getattr(scheduler, "plan", None)):
        raise ConfigError(f"scheduler: {kind.__name__} has no plan(view), and is no policy of inferq")
    attributes = {
        name: plain(f"scheduler.{name}", getattr(scheduler, name, default), types)
        for name, (default, types) in _FIELDS.items()
    }
    return {"kind": "Python", "name": f"{kind.__module__}.{kind.__qualname__}", **attributes}
