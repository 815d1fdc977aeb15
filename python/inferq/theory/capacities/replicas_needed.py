"""Number of replicas for a rate."""

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
"""Relative excess over an integer that counts as rounding."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicasNeeded(Statement):
    """The number of replicas for a rate; returned by `replicas_needed`."""

    source: ClassVar[str] = "nie2026 sections 4 and 6"

    rate: float
    """λ, requests per second over the fleet."""
    replicas: int
    """⌈λ/(μ·ρ)⌉."""
    replica: KvCapacity
    """The capacity of one replica with M, b̄, E[g], δ and ρ; its `rate` is λ divided by `replicas`."""

    @property
    def utilization(self) -> float:
        """ρ, the largest utilization of a replica."""
        return self.replica.utilization

    @property
    def load(self) -> float:
        """λ divided by the capacity of the fleet."""
        return self.rate / self.capacity_per_s

    @property
    def capacity_per_s(self) -> float:
        """n·μ, requests per second: above it the fleet is overloaded under any routing."""
        return self.replicas * self.replica.mu

    @property
    def target_per_s(self) -> float:
        """n·ρ·μ, requests per second that need no further replica."""
        return self.replicas * self.replica.target_per_s

    @property
    def stable_below_per_s(self) -> float | None:
        """n·(1 − δ)·μ over whole chunks, requests per second; None for unbounded lengths.

        Below it every replica is stable if each gets an equal share, independent from slot to slot, as with
        random routing of Poisson arrivals.
        """
        below = self.replica.stable_below_per_s
        return None if below is None else self.replicas * below

    def explain(self) -> str:
        """The number of replicas with its inputs, and the capacity of the fleet."""
        replica, n = self.replica, number(self.replicas)
        below = self.stable_below_per_s
        stability = (
            "lengths are unbounded, so no rate is proved stable"
            if below is None
            else f"stable below n·(1 − δ)·μ over whole chunks = {number(below)} with equal shares"
        )
        return "\n".join(
            [
                f"n = ⌈λ/(μ·ρ)⌉ = ⌈{number(self.rate)} / ({number(replica.mu)} · "
                f"{number(self.utilization)})⌉ = ⌈{number(self.rate / replica.target_per_s)}⌉ = {n}",
                f"load λ/(n·μ) = {number(self.load)}; up to n·ρ·μ = {number(self.target_per_s)} requests/s "
                "need no further replica",
                f"overloaded above n·μ = {number(self.capacity_per_s)} requests/s under any routing; "
                f"{stability}",
                "each replica:",
                indent(replica.explain(), "  "),
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
    """Compute the number of replicas that keeps the utilization of each KV cache at or below a target.

    Source: nie2026 section 4, λ/(μ·ρ), and section 6, ⌈λ/μ⌉. With ρ = 1 it is the least number that can be
        stable. ρ up to 1 − δ leaves room for the rates that `kv_capacity` does not guarantee.

    Args:
        workload: requests of the fleet.
        kv_tokens: memory of one replica in tokens.
        slot_s: length of a slot in seconds, or one length per class by name.
        chunk: most prompt tokens of one request in a slot.
        rate: total requests per second. Default: the rate of the workload.
        utilization: ρ, above 0 and at most 1.
        first_token: convention of the engine; nie2026 uses `"decode"`.

    Raises:
        ConfigError: as for `kv_capacity`; or the rate is missing.
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

    def capacity(share: float) -> KvCapacity:
        return kv_capacity(
            demand.at_rate(share),
            kv_tokens=kv_tokens,
            slot_s=slot_s,
            chunk=chunk,
            utilization=utilization,
            first_token=first_token,
        )

    needed = fleet_rate / capacity(fleet_rate).target_per_s
    replicas = max(1, math.ceil(needed * (1 - _ROUNDING)))
    return ReplicasNeeded(rate=fleet_rate, replicas=replicas, replica=capacity(fleet_rate / replicas))
