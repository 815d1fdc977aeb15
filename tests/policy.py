"""What the suites need to know of a built-in scheduler. The file of each, in `policies/`, says it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import inferq as iq

if TYPE_CHECKING:
    from .reference import Replica

Described = dict[str, Any]  # an object as its to_json() gives it
Rule = Callable[["Replica", Described], None]
Draw = Callable[[random.Random, int, list[str]], Described]

# What no parameter takes for a count, a time, a list.
NO_COUNT = (0, -1, 2.5, 2**70, True, "8", None, [8], float("nan"))
NO_LIST = (None, 1, "0", {"a": 0}, {0, 2})
ORDERS = ("fcfs", "spf", "srf", "lpf")


def drawn_preemption(rng: random.Random) -> Described:
    """A move that takes time ends the stretch that it is in; one that takes none does not."""
    swap = {"kind": "Swap", "per_token": rng.choice([0, 1e-6]), "base": rng.choice([0, 0.001])}
    return rng.choice([{"kind": "Recompute"}, {"kind": "Restart"}, swap, swap])


@dataclass(frozen=True, kw_only=True)
class Policy:
    """A built-in scheduler, as users write it, as it must refuse, and what it asks for."""

    examples: Sequence[tuple[iq.Scheduler, Described]]
    """As a user makes it, and all that `to_json()` must then say; the first has only what it must."""
    wrong: Mapping[str, Sequence[Any]]
    """Of each parameter values that must be refused, in the first example."""
    errors: Sequence[tuple[Described, str]] = ()
    """Parameters that are refused, and with which text: '^path: .*what may stand there'."""
    toml: Mapping[str, iq.Scheduler]
    """What stands in a scenario under `kind`, and the scheduler that it means."""
    ways: Mapping[str, Draw]
    """Ways to draw its parameters, each by name: from the chance, the longest request and the classes."""
    rule: Rule | None
    """What it asks for: from the source and the design, not from the Rust. `Replica` is in `reference.py`."""
    bounds: Callable[[Described], tuple[int | None, int | None]] = lambda rules: (
        rules.get("max_seqs"),
        rules.get("token_budget"),
    )
    """How many requests run at most, and how many tokens an iteration has at most."""
    whole_prompts: Callable[[Described], bool] = lambda rules: False
    """Must a prompt fit an iteration?"""
    never: frozenset[str] = field(default=frozenset({"drained"}))
    """What its random scenarios cannot meet, of what `test_against_reference.py` counts."""
    seldom: frozenset[str] = frozenset()
    """What they need not meet."""
    traced: Mapping[str, iq.Scheduler]
    """Ways to serve a real trace to its last request."""
