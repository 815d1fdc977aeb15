"""What a run costs: its GPUs, money, power and energy, and what its tokens earn."""

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
"""GPUs that share a machine, as of the boards that the catalog names."""
SECONDS_OF_HOUR = 3600


@dataclass(frozen=True, slots=True)
class Rented:
    """Replicas of one kind, one after the other."""

    card: str
    gpus: int
    """Of one of them."""
    replicas: int


def rented(system: System, prices: Prices) -> Iterator[Rented]:
    """The cards of a system, in the order of its replicas.

    Raises:
        ConfigError: an engine that `Engine.on` did not make, so that nothing says its card, where the prices
            do not say it either.
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
                    f"{path or 'the engine'} says no card; make it with Engine.on(model, gpu), or name the "
                    "card of such engines in Prices(card=…)",
                )


def nodes_of(replicas: int, gpus: int) -> int:
    """Machines that replicas of so many GPUs fill; none lies on two unless it is larger than one."""
    each = GPUS_OF_NODE // gpus
    return -(-replicas // each) if each else replicas * -(-gpus // GPUS_OF_NODE)


def hourly(system: System, prices: Prices) -> float:
    """What all GPUs of a system cost an hour.

    Raises:
        ConfigError: a card without a price, or an engine without a card.
    """
    return math.fsum(one.replicas * one.gpus * prices.of_gpu(one.card) for one in rented(system, prices))


@dataclass(frozen=True, slots=True)
class Bill:
    """What the fleet of a run takes, and what its requests pay."""

    gpus: int
    nodes: int
    per_hour: float
    time_s: NDArray[np.float64]
    """Of the samples of the timeline."""
    watts: NDArray[np.float64]
    """Of the whole fleet at each of them; NaN where it is not known what a card takes."""

    @classmethod
    def of(cls, tables: RunTables, system: System, prices: Prices) -> Bill:
        """The bill of a run.

        A replica computes at a sample of the timeline at which it runs a request, and waits at the others.
        Where the power of a card that waits is not known it is taken to be that of one that computes, so that
        energy is an upper bound; so are all replicas where the timeline does not tell them apart. One that
        comes or goes is paid for from the asking to its end: an hour costs what their mean number does.

        Raises:
            ConfigError: a card without a price, or an engine without a card.
        """
        hired = list(rented(system, prices))
        alike: Counter[tuple[str, int]] = Counter()
        for one in hired:
            alike[one.card, one.gpus] += one.replicas
        busy, idle = (
            np.repeat(
                [one.gpus * _watts_of(one.card, prices)[place] for one in hired],
                [one.replicas for one in hired],
            )
            for place in (0, 1)
        )
        leases = _leases(tables)
        per_hour = hourly(system, prices)
        if leases is not None:
            each = np.repeat(
                [one.gpus * prices.of_gpu(one.card) for one in hired], [one.replicas for one in hired]
            )
            end_s = float(tables.totals["end_s"])
            coming = list({replica for replica, _, _ in leases})
            per_hour -= float(each[coming].sum())
            if end_s:
                per_hour += math.fsum(each[replica] * (to - since) / end_s for replica, since, to in leases)
        samples = tables.frame("timeline")
        time_s, place = np.unique(samples["time_s"].to_numpy(), return_inverse=True)
        if "replica" in samples.columns:
            replica, runs = samples["replica"].to_numpy(), samples["running"].to_numpy() > 0
            watts = np.zeros(time_s.size)
            each_s, power = samples["time_s"].to_numpy(), np.where(runs, busy[replica], idle[replica])
            if leases is not None:
                is_paid = ~np.isin(replica, [one for one, _, _ in leases])
                for which, since, to in leases:
                    is_paid |= (replica == which) & (since <= each_s) & (each_s <= to)
                power = np.where(is_paid, power, 0.0)
            np.add.at(watts, place, power)
        else:
            watts = np.full(time_s.size, busy.sum())
        return cls(
            sum(one.replicas * one.gpus for one in hired),
            sum(nodes_of(replicas, gpus) for (_, gpus), replicas in alike.items()),
            per_hour,
            time_s,
            watts,
        )

    def mean_watts(self, first_s: float = -math.inf, last_s: float = math.inf) -> float:
        """The mean power after an instant and up to another; of the whole run where no sample is between."""
        within = self.watts[(first_s < self.time_s) & (self.time_s <= last_s)]
        return float((within if within.size else self.watts).mean()) if self.watts.size else math.nan


def costs(tables: RunTables, system: System, prices: Prices, row: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of `COSTS` for all measured requests of a run.

    Args:
        tables: of the run.
        system: what served it.
        prices: of GPUs and tokens.
        row: its `Result.summary`.

    Raises:
        ConfigError: as of `Bill.of`.
    """
    bill = Bill.of(tables, system, prices)
    watts, duration_s = bill.mean_watts(), row["duration_s"] or 0.0
    hours = duration_s / SECONDS_OF_HOUR
    tokens = row["output_throughput"] * duration_s
    spent, joules = bill.per_hour * hours, watts * duration_s
    found = {
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
    return {name: None if isinstance(one, float) and math.isnan(one) else one for name, one in found.items()}


def as_columns(found: Mapping[str, Any]) -> list[pl.Series]:
    """The columns of one row."""
    kinds = {name: pl.Int64 if name in ("gpus", "nodes") else pl.Float64 for name in COSTS}
    return [pl.Series(name, [found[name]], dtype=kinds[name]) for name in COSTS]


def paid(tables: RunTables, prices: Prices) -> NDArray[np.float64]:
    """What each request of a run pays, bundled: lin2026 (21); 0 where it is not measured or not finished."""
    columns = tables.requests
    pays = columns["measured"] & (columns["status"] == STATUSES.index("finished"))
    prompts, outputs = (columns[name].astype(np.float64) for name in ("prompt_tokens", "output_tokens"))
    each: NDArray[np.float64] = pays * (float(prices.prefill) * prompts + float(prices.decode) * outputs)
    return each


def _leases(tables: RunTables) -> list[tuple[int, float, float]] | None:
    """Replicas that come or go, since when and until when they are paid for in seconds; None: none does."""
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
    """The power of a GPU that computes and of one that waits: the user's, else that of the catalog."""
    known = entries("gpus").get(card, {})
    busy = prices.busy_watts.get(card, known.get("busy_watts", math.nan))
    return busy, prices.idle_watts.get(card, known.get("idle_watts", busy))


def _over(amount: float, count: float) -> float:
    return amount / count if count else math.nan
