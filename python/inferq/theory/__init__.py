"""What does queueing theory say about a scenario, beside what a simulation shows?

Every function takes a `Workload` or request classes with rates, and returns a frozen result with every number
that enters it; `explain()` puts the numbers into the inequality. Formulas come from five papers on LLM
serving, each named where it stands.

| question | call |
|---|---|
| How many tokens can be computed? | `token_capacity` (li2025) |
| What do seats allow, or whole batches? | `seats_capacity`, `request_level_capacity` |
| How much is asked of each engine of a network? | `network_capacity` (li2025) |
| How many requests fit the KV cache over time? | `kv_capacity`, `replicas_needed`, `slot` (nie2026) |
| What do whole tiles allow? | `tile_capacity` (bari2025) |
| Where does the fluid settle? | `fluid` (ao2025) |
| Which thresholds should WAIT use? | `wait_thresholds`, `nested_wait_thresholds` (ao2025) |
| How should a fleet be divided? | `allocation` (lin2026) |
| Is this scenario stable, and which limit binds? | `stability` |
| Was this run stable? | `observed` |
| How far is the run from the theory? | `agree` |

Example:
    >>> import inferq as iq
    >>> chat = iq.theory.RequestClass(rate=10.0, prompt=129, output=112)
    >>> timing = iq.PiecewiseLinear(base=0.0455, per_token=0.0003, knee=64)
    >>> limit = iq.theory.token_capacity(chat, timing, token_budget=512)
    >>> round(limit.capacity_per_s, 2), limit.stable
    (11.81, True)
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inferq.theory.agents import NetworkCapacity, network_capacity
    from inferq.theory.agreement import Agreement, agree
    from inferq.theory.demand import RequestClass
    from inferq.theory.drift import Observed, observed
    from inferq.theory.equilibrium import Fluid, fluid
    from inferq.theory.memory import KvCapacity, kv_capacity, request_memory
    from inferq.theory.nested import NestedWaitThresholds, nested_wait_thresholds
    from inferq.theory.plan import AllocationPlan, allocation
    from inferq.theory.replicas import ReplicasNeeded, replicas_needed
    from inferq.theory.seats import (
        RequestLevelCapacity,
        SeatsCapacity,
        request_level_capacity,
        seats_capacity,
    )
    from inferq.theory.slot_length import slot
    from inferq.theory.statement import Hypothesis, Statement
    from inferq.theory.thresholds import WaitThresholds, wait_thresholds
    from inferq.theory.tiles import TileCapacity, tile_capacity
    from inferq.theory.tokens import TokenCapacity, token_capacity
    from inferq.theory.verdict import Stability, stability

__all__ = [  # noqa: RUF022  # what is asked, the bounds, the plans, the verdicts
    "RequestClass",
    "Hypothesis",
    "Statement",
    "TokenCapacity",
    "token_capacity",
    "SeatsCapacity",
    "seats_capacity",
    "RequestLevelCapacity",
    "request_level_capacity",
    "NetworkCapacity",
    "network_capacity",
    "KvCapacity",
    "kv_capacity",
    "request_memory",
    "slot",
    "ReplicasNeeded",
    "replicas_needed",
    "TileCapacity",
    "tile_capacity",
    "Fluid",
    "fluid",
    "WaitThresholds",
    "wait_thresholds",
    "NestedWaitThresholds",
    "nested_wait_thresholds",
    "AllocationPlan",
    "allocation",
    "Stability",
    "stability",
    "Observed",
    "observed",
    "Agreement",
    "agree",
]

if not TYPE_CHECKING:  # hidden from type checkers, which would otherwise take any name for an attribute
    _HOMES = {
        "agents": ("NetworkCapacity", "network_capacity"),
        "seats": (
            "RequestLevelCapacity",
            "SeatsCapacity",
            "request_level_capacity",
            "seats_capacity",
        ),
        "agreement": ("Agreement", "agree"),
        "plan": ("AllocationPlan", "allocation"),
        "demand": ("RequestClass",),
        "equilibrium": ("Fluid", "fluid"),
        "memory": ("KvCapacity", "kv_capacity", "request_memory"),
        "replicas": ("ReplicasNeeded", "replicas_needed"),
        "slot_length": ("slot",),
        "drift": ("Observed", "observed"),
        "verdict": ("Stability", "stability"),
        "statement": ("Hypothesis", "Statement"),
        "nested": ("NestedWaitThresholds", "nested_wait_thresholds"),
        "thresholds": ("WaitThresholds", "wait_thresholds"),
        "tiles": ("TileCapacity", "tile_capacity"),
        "tokens": ("TokenCapacity", "token_capacity"),
    }
    _HOME = {name: home for home, names in _HOMES.items() for name in names}

    def __getattr__(name):
        """Import a public name when it is first used."""
        from importlib import import_module

        if name not in _HOME:
            raise AttributeError(f"module 'inferq.theory' has no attribute {name!r}")
        value = getattr(import_module(f"inferq.theory.{_HOME[name]}"), name)
        globals()[name] = value
        return value

    def __dir__():
        return sorted({*globals(), *__all__})
