"""What a run costs: its GPUs, money, power and energy, and what its tokens earn."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from inferq._lazy import np, pl
from inferq.errors import ConfigError
from inferq.results.tables import STATUSES, RunTables
from inferq.systems.pools import pools_of
from inferq.systems.prices import Prices
from inferq.systems.system import System
from inferq.timing.hardware.catalogue import entries

GPUS_OF_NODE = 8
"""GPUs that share a machine, as of the boards that the catalogue names."""

COSTS = (
    *("gpus", "nodes", "cost_per_hour", "cost_per_request", "cost_per_million_output_tokens"),
    *("watts", "joules_per_request", "joules_per_million_output_tokens", "revenue_per_hour"),
)
"""The columns of `Result.summary` where prices are given, after the others."""


class Rented(NamedTuple):
    """Replicas of one kind, one after the other."""

    path: str
    card: str
    gpus: int
    """Of one of them."""
    replicas: int


def rented(system: System) -> Iterator[Rented]:
    """The cards of a system, in the order of its replicas.

    Raises:
        ConfigError: an engine that `Engine.on` did not make, so that nothing says its card.
    """
    for pool in pools_of(system):
        for engine, count, path in zip(pool.engines, pool.counts, pool.paths, strict=True):
            if "gpu" not in engine.on_card:
                raise ConfigError(
                    "prices", f"{path or 'the engine'} says no card; make it with Engine.on(model, gpu)"
                )
            yield Rented(path, engine.on_card["gpu"], int(engine.on_card["tensor_parallel"]), count)


def nodes_of(replicas: int, gpus: int) -> int:
    """Machines that replicas of so many GPUs fill; none lies on two unless it is larger than one."""
    each = GPUS_OF_NODE // gpus
    return -(-replicas // each) if each else replicas * -(-gpus // GPUS_OF_NODE)


def watts_of(card: str, prices: Prices) -> tuple[float | None, float | None]:
    """The power of one GPU that computes and of one that waits: the user's, else that of the datasheet."""
    known = entries("gpus").get(card, {})
    return (
        prices.busy_watts.get(card, known.get("busy_watts")),
        prices.idle_watts.get(card, known.get("idle_watts")),
    )


def costs(tables: RunTables, system: System, prices: Prices, row: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of `COSTS` for all measured requests of a run.

    A replica is busy in the share of the samples of the timeline in which it runs a request. Where the power
    of a card that waits is not known it is taken to be that of one that computes, so that energy is an upper
    bound.

    Args:
        tables: of the run.
        system: what served it.
        prices: of GPUs and tokens.
        row: its `Result.summary`.

    Raises:
        ConfigError: a card without a price, or an engine without a card.
    """
    busy = _busy(tables)
    gpus = nodes = first = 0
    per_hour, watts = 0.0, 0.0
    for one in rented(system):
        cards = one.replicas * one.gpus
        gpus += cards
        nodes += nodes_of(one.replicas, one.gpus)
        per_hour += cards * prices.of_gpu(one.card)
        busy_watts, idle_watts = watts_of(one.card, prices)
        if busy_watts is None:
            watts = math.nan
        else:
            idle_watts = busy_watts if idle_watts is None else idle_watts
            shares = [busy.get(replica, 0.0) for replica in range(first, first + one.replicas)]
            watts += one.gpus * sum(s * busy_watts + (1 - s) * idle_watts for s in shares)
        first += one.replicas
    hours = (row["duration_s"] or 0.0) / 3600
    tokens = row["output_throughput"] * (row["duration_s"] or 0.0)
    spent, joules = per_hour * hours, watts * 3600 * hours
    sold = math.nan
    if (prices.prefill or prices.decode) and hours:
        sold = _earned(tables, prices) / hours
    found = {
        "gpus": gpus,
        "nodes": nodes,
        "cost_per_hour": per_hour,
        "cost_per_request": _over(spent, row["completed"]),
        "cost_per_million_output_tokens": _over(1e6 * spent, tokens),
        "watts": watts,
        "joules_per_request": _over(joules, row["completed"]),
        "joules_per_million_output_tokens": _over(1e6 * joules, tokens),
        "revenue_per_hour": sold,
    }
    return {name: None if isinstance(one, float) and math.isnan(one) else one for name, one in found.items()}


def as_columns(found: Mapping[str, Any]) -> list[pl.Series]:
    """The columns of one row."""
    kinds = {name: pl.Int64 if name in ("gpus", "nodes") else pl.Float64 for name in COSTS}
    return [pl.Series(name, [found[name]], dtype=kinds[name]) for name in COSTS]


def _busy(tables: RunTables) -> dict[int, float]:
    """For each replica the share of samples in which it runs a request."""
    samples = tables.timeline
    replicas, runs = samples["replica"], samples["running"] > 0
    count = np.bincount(replicas)
    shares = np.bincount(replicas, weights=runs) / np.maximum(count, 1)
    return {replica: float(share) for replica, share in enumerate(shares)}


def _earned(tables: RunTables, prices: Prices) -> float:
    """What the tokens of finished requests pay, bundled: lin2026 (21)."""
    columns = tables.requests
    paid = columns["measured"] & (columns["status"] == STATUSES.index("finished"))
    prompts, outputs = (float(columns[name][paid].sum()) for name in ("prompt_tokens", "output_tokens"))
    return prices.prefill * prompts + prices.decode * outputs


def _over(amount: float, count: float) -> float:
    return amount / count if count else math.nan
