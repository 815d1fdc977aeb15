"""How many replicas does a rate need?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from textwrap import indent
from typing import ClassVar

from inferq.theory.capacities.kv_capacity import KvCapacity, kv_capacity
from inferq.theory.demands.demand import Demand, WorkloadLike
from inferq.theory.demands.lengths import FirstToken
from inferq.theory.statement import Statement, number

_ROUNDING = 1e-9
"""A number of replicas that is above a whole one by a smaller share than this is that whole number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicasNeeded(Statement):
    """How many replicas a rate needs; made by `replicas_needed`."""

    source: ClassVar[str] = "nie2026 sections 4 and 6"

    rate: float
    """λ, requests per second over the fleet."""
    replicas: int
    """⌈λ/(μ·ρ)⌉."""
    replica: KvCapacity
    """What one of them can serve, with M, b̄, E[g], δ and ρ; its `rate` is that of one, λ over `replicas`."""

    @property
    def utilization(self) -> float:
        """ρ, to which a replica shall be used at most."""
        return self.replica.utilization

    @property
    def load(self) -> float:
        """λ over what the fleet can serve at most."""
        return self.rate / self.capacity_per_s

    @property
    def capacity_per_s(self) -> float:
        """n·μ, requests per second: above it the fleet is overloaded, however requests are routed."""
        return self.replicas * self.replica.mu

    @property
    def target_per_s(self) -> float:
        """n·ρ·μ, requests per second: up to here no further replica is needed."""
        return self.replicas * self.replica.target_per_s

    @property
    def stable_below_per_s(self) -> float | None:
        """n·(1 − δ)·μ over whole chunks, requests per second; None where lengths have no end.

        Below it every replica is stable if each gets an equal part, independent from slot to slot, as of a
        Poisson process that is split at random.
        """
        below = self.replica.stable_below_per_s
        return None if below is None else self.replicas * below

    def explain(self) -> str:
        """The number with what enters it, and what the fleet then carries."""
        one, n = self.replica, number(self.replicas)
        below = self.stable_below_per_s
        carried = (
            "lengths have no end, so no rate is known to be stable"
            if below is None
            else f"stable below n·(1 − δ)·μ over whole chunks = {number(below)}, if each gets an equal part"
        )
        return "\n".join(
            [
                f"n = ⌈λ/(μ·ρ)⌉ = ⌈{number(self.rate)} / ({number(one.mu)} · {number(self.utilization)})⌉ = "
                f"⌈{number(self.rate / one.target_per_s)}⌉ = {n}",
                f"load λ/(n·μ) = {number(self.load)}; up to n·ρ·μ = {number(self.target_per_s)} requests/s "
                "no further replica is needed",
                f"overloaded above n·μ = {number(self.capacity_per_s)} requests/s, however requests are "
                f"routed; {carried}",
                "each of them:",
                indent(one.explain(), "  "),
            ]
        )


def replicas_needed(
    workload: WorkloadLike,
    *,
    kv_tokens: int,
    slot_s: float | Mapping[str, float],
    chunk: int = 512,
    rate: float | None = None,
    utilization: float = 0.9,
    first_token: FirstToken = "prefill",
) -> ReplicasNeeded:
    """How many replicas are needed so that none is used beyond a share of what its KV cache can serve.

    Source: nie2026 section 4, λ/(μ·ρ), and section 6, ⌈λ/μ⌉; with ρ = 1 it is the least number that can be
        stable. ρ up to 1 − δ leaves room for what `kv_capacity` cannot promise.

    Args:
        workload: what comes to the fleet.
        kv_tokens: memory of one replica in tokens.
        slot_s: length of a slot in seconds; or that of each class by name.
        chunk: most prompt tokens of one request in a slot.
        rate: requests per second to the fleet, instead of what the workload says.
        utilization: ρ, above 0 and at most 1.
        first_token: the engine's; `"decode"` is nie2026's.

    Raises:
        ConfigError: naming the argument, as `kv_capacity` does; no rate.
        TraceError: a workload without lengths.

    Example:
        >>> import inferq as iq
        >>> half = iq.dist.Uniform(10, 1600)
        >>> chat = iq.theory.RequestClass(rate=40.0, prompt=half, output=half)
        >>> given = {"kv_tokens": 131_000, "slot_s": 0.0372, "first_token": "decode"}
        >>> fleet = iq.theory.replicas_needed(chat, **given)
        >>> fleet.replicas, round(fleet.load, 3), round(fleet.target_per_s, 2)
        (14, 0.876, 41.12)
    """
    demand = Demand.of(workload, rate=rate)
    fleet_rate = demand.rate
    assert fleet_rate is not None

    def one(of_it: float) -> KvCapacity:
        return kv_capacity(
            demand.at_rate(of_it),
            kv_tokens=kv_tokens,
            slot_s=slot_s,
            chunk=chunk,
            utilization=utilization,
            first_token=first_token,
        )

    asked = fleet_rate / one(fleet_rate).target_per_s
    replicas = max(1, math.ceil(asked * (1 - _ROUNDING)))
    return ReplicasNeeded(rate=fleet_rate, replicas=replicas, replica=one(fleet_rate / replicas))
