"""Properties of a built-in scheduler for the test suites; each file in `policies/` defines them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import inferq as iq

if TYPE_CHECKING:
    from .reference import Replica

Described = dict[str, Any]  # the result of to_json()
Rule = Callable[["Replica", Described], None]
Draw = Callable[[random.Random, int, list[str]], Described]

# Values that no parameter accepts as a count or a list.
NO_COUNT = (0, -1, 2.5, 2**70, True, "8", None, [8], float("nan"))
NO_LIST = (None, 1, "0", {"a": 0}, {0, 2})
ORDERS = ("fcfs", "spf", "srf", "lpf")


def drawn_preemption(rng: random.Random) -> Described:
    """A swap that takes time ends the current stretch; a swap without time does not."""
    swap = {"kind": "Swap", "per_token": rng.choice([0, 1e-6]), "base": rng.choice([0, 0.001])}
    return rng.choice([{"kind": "Recompute"}, {"kind": "Restart"}, swap, swap])


@dataclass(frozen=True, kw_only=True)
class Policy:
    """A built-in scheduler: how users write it, values that it rejects, and its rule."""

    examples: Sequence[tuple[iq.Scheduler, Described]]
    """Calls of a user with the expected `to_json()`; the first has required fields only."""
    wrong: Mapping[str, Sequence[Any]]
    """Values of each parameter that the first example must reject."""
    errors: Sequence[tuple[Described, str]] = ()
    """Rejected parameters with the text of the error: '^path: .*accepted values'."""
    toml: Mapping[str, iq.Scheduler]
    """The text of a scenario after `kind`, and the scheduler that it describes."""
    variants: Mapping[str, Draw]
    """Generators of its parameters by name, from a random source, the longest request and the classes."""
    rule: Rule | None
    """Its rule, from the source and the design, not from the Rust code. `Replica` is in `reference.py`."""
    bounds: Callable[[Described], tuple[int | None, int | None]] = lambda rules: (
        rules.get("max_seqs"),
        rules.get("token_budget"),
    )
    """Maximum running requests, and maximum tokens of an iteration."""
    whole_prompts: Callable[[Described], bool] = lambda rules: False
    """Whether a prompt must fit in an iteration."""
    impossible: frozenset[str] = field(default=frozenset({"drained"}))
    """Events counted by `test_against_reference.py` that its random scenarios cannot reach."""
    rare: frozenset[str] = frozenset()
    """Events that they need not reach."""
    on_real_traces: Mapping[str, iq.Scheduler]
    """Configurations that serve a real trace completely."""
