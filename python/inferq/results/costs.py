"""Costs of a run: GPUs, money, power and energy, and revenue from tokens."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from inferq._lazy import NDArray, np, pl
from inferq.errors import ConfigError
from inferq.results.metric import COSTS
from inferq.results.tables import STATUSES, RunTables
from inferq.systems.pools import pools_of
from inferq.systems.prices import Prices
from inferq.systems.system import System
from inferq.timing.hardware.catalog import entries

GPUS_OF_NODE = 8
"""GPUs per node, as for the boards in the catalog."""
SECONDS_OF_HOUR = 3600


@dataclass(frozen=True, slots=True)
class Rented:
    """Consecutive replicas with the same GPUs."""

    card: str
    gpus: int
    """GPUs of one replica."""
    replicas: int


def rented(system: System, prices: Prices) -> Iterator[Rented]:
    """The GPUs of a system in the order of its replicas.

    Raises:
        ConfigError: an engine without a GPU (not made by `Engine.on`), and prices without one.
    """
    for pool in pools_of(system):
        for engine, count, path in zip(pool.engines, pool.counts, pool.paths, strict=True):
            if "gpu" in engine.on_card:
                yield Rented(engine.on_card["gpu"], int(engine.on_card["tensor_parallel"]), count)
            elif prices.card:
                yield Rented(prices.card, 1, count)
            else:
                raise ConfigError(
                    "prices",
                    f"{path or 'the engine'} has no GPU; create it with Engine.on(model, gpu), or "
                    "name the GPU in Prices(card=…)",
                )


def nodes_of(replicas: int, gpus: int) -> int:
    """Nodes for replicas of `gpus` GPUs; a replica spans two nodes only if it is larger than one."""
    each = GPUS_OF_NODE // gpus
    return -(-replicas // each) if each else replicas * -(-gpus // GPUS_OF_NODE)


def hourly(system: System, prices: Prices) -> float:
    """The cost of all GPUs of a system per hour.

    Raises:
        ConfigError: a GPU without a price, or an engine without a GPU.
    """
    return math.fsum(part.replicas * part.gpus * prices.of_gpu(part.card) for part in rented(system, prices))


@dataclass(frozen=True, slots=True)
class Bill:
    """Cost and power of the fleet of a run."""

    gpus: int
    nodes: int
    per_hour: float
    time_s: NDArray[np.float64]
    """Times of the samples of the timeline."""
    watts: NDArray[np.float64]
    """Power of the fleet at each sample; NaN if the power of a GPU is unknown."""

    @classmethod
    def of(cls, tables: RunTables, system: System, prices: Prices) -> Bill:
        """The bill of a run.

        A replica is busy at samples at which it runs a request, and idle at others. Unknown idle power is
        taken as busy power, so that energy is an upper bound; the same holds for all replicas if the timeline
        has no replicas. With autoscaling, the cost per hour is that of the mean number of paid replicas.

        Raises:
            ConfigError: a GPU without a price, or an engine without a GPU.
        """
        hired = list(rented(system, prices))
        replicas = [part.replicas for part in hired]
        alike: Counter[tuple[str, int]] = Counter()
        for part in hired:
            alike[part.card, part.gpus] += part.replicas
        busy, idle = (
            np.repeat([part.gpus * _watts_of(part.card, prices)[place] for part in hired], replicas)
            for place in (0, 1)
        )
        leases = _leases(tables)
        per_hour = hourly(system, prices)
        if leases is not None:
            each = np.repeat([part.gpus * prices.of_gpu(part.card) for part in hired], replicas)
            end_s = float(tables.totals["end_s"])
            scaled = list({replica for replica, _, _ in leases})
            per_hour -= float(each[scaled].sum())
            if end_s:
                per_hour += math.fsum(each[replica] * (to - since) / end_s for replica, since, to in leases)
        samples = tables.frame("timeline")
        time_s, place = np.unique(samples["time_s"].to_numpy(), return_inverse=True)
        if "replica" in samples.columns:
            replica, runs = samples["replica"].to_numpy(), samples["running"].to_numpy() > 0
            watts = np.zeros(time_s.size)
            each_s, power = samples["time_s"].to_numpy(), np.where(runs, busy[replica], idle[replica])
            if leases is not None:
                is_paid = ~np.isin(replica, [leased for leased, _, _ in leases])
                for which, since, to in leases:
                    is_paid |= (replica == which) & (since <= each_s) & (each_s <= to)
                power = np.where(is_paid, power, 0.0)
            np.add.at(watts, place, power)
        else:
            watts = np.full(time_s.size, busy.sum())
        return cls(
            sum(part.replicas * part.gpus for part in hired),
            sum(nodes_of(count, gpus) for (_, gpus), count in alike.items()),
            per_hour,
            time_s,
            watts,
        )

    def mean_watts(self, first_s: float = -math.inf, last_s: float = math.inf) -> float:
        """The mean power in an interval, or of the whole run if the interval has no sample."""
        within = self.watts[(first_s < self.time_s) & (self.time_s <= last_s)]
        return float((within if within.size else self.watts).mean()) if self.watts.size else math.nan


def costs(tables: RunTables, system: System, prices: Prices, row: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of `COSTS` for all measured requests of a run.

    Args:
        tables: the tables of the run.
        system: the system of the run.
        prices: prices of GPUs and tokens.
        row: the row of `Result.summary`.

    Raises:
        ConfigError: as for `Bill.of`.
    """
    bill = Bill.of(tables, system, prices)
    watts, duration_s = bill.mean_watts(), row["duration_s"] or 0.0
    hours = duration_s / SECONDS_OF_HOUR
    tokens = row["output_throughput"] * duration_s
    spent, joules = bill.per_hour * hours, watts * duration_s
    columns = {
        "gpus": bill.gpus,
        "nodes": bill.nodes,
        "cost_per_hour": bill.per_hour,
        "cost_per_request": _over(spent, row["completed"]),
        "cost_per_million_output_tokens": _over(1e6 * spent, tokens),
        "watts": watts,
        "joules_per_request": _over(joules, row["completed"]),
        "joules_per_million_output_tokens": _over(1e6 * joules, tokens),
        "revenue_per_hour": _over(float(paid(tables, prices).sum()), hours) if prices.sells else math.nan,
    }
    return {
        name: None if isinstance(value, float) and math.isnan(value) else value
        for name, value in columns.items()
    }


def as_columns(row: Mapping[str, Any]) -> list[pl.Series]:
    """The columns of one row."""
    kinds = {name: pl.Int64 if name in ("gpus", "nodes") else pl.Float64 for name in COSTS}
    return [pl.Series(name, [row[name]], dtype=kinds[name]) for name in COSTS]


def paid(tables: RunTables, prices: Prices) -> NDArray[np.float64]:
    """Bundled revenue of each request, lin2026 (21); 0 if not measured or not finished."""
    columns = tables.requests
    pays = columns["measured"] & (columns["status"] == STATUSES.index("finished"))
    prompts, outputs = (columns[name].astype(np.float64) for name in ("prompt_tokens", "output_tokens"))
    each: NDArray[np.float64] = pays * (float(prices.prefill) * prompts + float(prices.decode) * outputs)
    return each


def _leases(tables: RunTables) -> list[tuple[int, float, float]] | None:
    """Replicas with fleet events, and the start and end of each paid interval in seconds; None if none."""
    if not tables.has("fleet_events"):
        return None
    leases: list[tuple[int, float, float]] = []
    since: dict[int, float] = {}
    for at_s, replica, event in tables.frame("fleet_events").select("at_s", "replica", "event").iter_rows():
        if event in ("asked", "ready"):
            since.setdefault(replica, at_s)
        elif event in ("ended", "died") and replica in since:
            leases.append((replica, since.pop(replica), at_s))
    end_s = float(tables.totals["end_s"])
    return leases + [(replica, at_s, end_s) for replica, at_s in since.items()]


def _watts_of(card: str, prices: Prices) -> tuple[float, float]:
    """Busy and idle power of a GPU: from the prices, else from the catalog."""
    known = entries("gpus").get(card, {})
    busy = prices.busy_watts.get(card, known.get("busy_watts", math.nan))
    return busy, prices.idle_watts.get(card, known.get("idle_watts", busy))


def _over(amount: float, count: float) -> float:
    return amount / count if count else math.nan
