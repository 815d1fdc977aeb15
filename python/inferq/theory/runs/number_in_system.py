"""The number in the system at each instant of a run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from inferq._lazy import NDArray, np, pl
from inferq.results.result import Result
from inferq.results.tables import FAILED
from inferq.workload.dependencies import session_flow

FIRST_SHARE, LEAST_FIRST = 0.01, 20
"""Share and least number of the first arrivals, whose service time is not yet hidden by a backlog."""
LENGTHS_TO_FILL = 3
"""A run starts empty and fills for this many service times."""


@dataclass(frozen=True, slots=True, eq=False)
class Present:
    """Arrivals and departures of a run, each sorted: N(t) = arrived by t − left by t."""

    counted: str
    arrival_s: NDArray[Any]
    left_s: NDArray[Any]
    """Departures only; units still present at the end are not included."""
    measured_from_s: float
    measured_to_s: float
    service_s: float | None
    """Mean time from arrival to departure without the wait for admission, over the first arrivals."""
    caveats: tuple[str, ...]

    @property
    def first_s(self) -> float:
        """The first arrival; 0 without arrivals."""
        return float(self.arrival_s[0]) if self.arrival_s.size else 0.0

    @property
    def last_s(self) -> float:
        """The last measured arrival; 0 without arrivals."""
        if not self.arrival_s.size:
            return 0.0
        return max(self.first_s, min(float(self.arrival_s[-1]), self.measured_to_s))

    def window(self, start_s: float) -> tuple[float, float]:
        """From `start_s`, but after the system has filled, to the last arrival."""
        filled_s = self.first_s + LENGTHS_TO_FILL * (self.service_s or 0.0)
        return min(max(start_s, filled_s), self.last_s), self.last_s

    def after(self, arrivals: int) -> float:
        """The time of a given arrival."""
        if not self.arrival_s.size:
            return 0.0
        return float(self.arrival_s[min(arrivals, self.arrival_s.size - 1)])

    def arrived_by(self, times_s: NDArray[Any]) -> NDArray[Any]:
        """Number of arrivals up to and including each time."""
        values: NDArray[Any] = np.searchsorted(self.arrival_s, times_s, side="right")
        return values

    def arrivals_in(self, start_s: float, end_s: float) -> int:
        """Number of arrivals after the first time, up to the second."""
        first, last = self.arrived_by(np.array([start_s, end_s]))
        return int(last - first)

    def many(self, times_s: NDArray[Any]) -> NDArray[Any]:
        """Number in the system at each time."""
        values: NDArray[Any] = self.arrived_by(times_s) - np.searchsorted(self.left_s, times_s, side="right")
        return values

    def at(self, time_s: float) -> int:
        """Number in the system at one time."""
        return int(self.many(np.array([time_s]))[0])

    def integral(self, times_s: NDArray[Any]) -> NDArray[Any]:
        """∫ N dt up to each time: Σ (t − arrival)⁺ − Σ (t − left)⁺."""

        def past(events_s: NDArray[Any]) -> NDArray[Any]:
            counts = np.searchsorted(events_s, times_s, side="right")
            sums = np.concatenate([[0.0], np.cumsum(events_s)])
            values: NDArray[Any] = counts * times_s - sums[counts]
            return values

        values: NDArray[Any] = past(self.arrival_s) - past(self.left_s)
        return values


def presence(result: Result) -> Present:
    """Arrivals and departures of requests, of a network's jobs, or of sessions in a closed loop.

    Rejected units never were in the system and are left out.
    """
    rows = result.requests.lazy()
    caveats: list[str] = []
    if "job" in result._tables.requests:
        counted, units = "jobs", _of_jobs(result)
    elif _waits_for_answers(result._tables.workload):
        counted, units = "sessions", _of_sessions(rows.collect(), result._tables.workload)
        caveats.append(
            "users wait for responses, so each session has at most one request in the system; the number of "
            "sessions bounds it at any speed of the engine, so sessions are counted instead"
        )
    else:
        counted = "requests"
        waited_s = pl.col("queue_s").alias("waited_s")
        units = rows.select("arrival_s", "left_s", "status", "measured", waited_s).collect()
    for status, caveat in (
        ("rejected", "{} of {} {} were rejected and are left out"),
        ("abandoned", "{} of {} {} abandoned: their patience bounds the queue"),
    ):
        count = units.filter(pl.col("status") == status).height
        if count:
            caveats.append(caveat.format(f"{count:,}", f"{units.height:,}", counted))
    measured = units.filter("measured")
    bounds = measured["arrival_s"].min(), measured["arrival_s"].max()
    cut = measured.height < units.height
    units = units.filter(pl.col("status") != "rejected").sort("arrival_s")
    return Present(
        counted,
        units["arrival_s"].to_numpy(),
        units["left_s"].drop_nulls().sort().to_numpy(),
        float(bounds[0]) if cut and bounds[0] is not None else 0.0,  # type: ignore[arg-type]
        float(bounds[1]) if cut and bounds[1] is not None else math.inf,  # type: ignore[arg-type]
        _service_s(units),
        tuple(caveats),
    )


def _service_s(units: pl.DataFrame) -> float | None:
    """Mean service time of the first units without the wait for admission; present units count until the end.

    None if none of them was ever served.
    """
    if units.is_empty():
        return None
    first = units.head(max(LEAST_FIRST, int(FIRST_SHARE * units.height)))
    end_s = units["arrival_s"].max()
    took = (pl.col("left_s").fill_null(end_s) - pl.col("arrival_s") - pl.col("waited_s")).clip(lower_bound=0)
    mean_s = first.filter(pl.col("waited_s").is_not_null()).select(took.mean()).item()
    return None if mean_s is None else float(mean_s)


def _of_jobs(result: Result) -> pl.DataFrame:
    """The jobs of a network; their wait is the sum over their stages."""
    waited_s = pl.col("queue_s").sum().alias("waited_s")
    waits = result.requests.lazy().group_by("job").agg(waited_s).collect()
    jobs = result.jobs.select("job", "arrival_s", "left_s", "status", "measured")
    return jobs.join(waits, on="job", how="left", maintain_order="left").drop("job")


def _waits_for_answers(frame: pl.DataFrame) -> bool:
    return session_flow(frame) is not None


def _of_sessions(rows: pl.DataFrame, frame: pl.DataFrame) -> pl.DataFrame:
    """Turns that wait for one another as one unit, from the arrival of the first to the end of the last.

    A turn without `think_s` begins a new unit. A unit whose later turns have not arrived is still present,
    unless an earlier turn never gets a response.
    """
    begins = pl.col("session_id").is_null() | pl.col("think_s").is_null() | pl.col("first")
    turns = (
        frame.with_columns(
            pl.int_range(pl.len(), dtype=pl.UInt32).alias("id"),
            (pl.int_range(pl.len()).over("session_id") == 0).alias("first"),
        )
        .with_columns(pl.when(begins).then(pl.col("id")).alias("chain"))
        .with_columns(
            pl.when(pl.col("session_id").is_null())
            .then(pl.col("id"))
            .otherwise(pl.col("chain").forward_fill().over("session_id"))
            .alias("chain")
        )
        .select("id", "chain", pl.len().over("chain").alias("turns"))
    )
    failed = pl.col("status").is_in(FAILED).any()
    finished = pl.col("left_s").is_not_null().all() & ((pl.len() == pl.col("turns").first()) | failed)
    joined = rows.join(turns, on="id", how="left", maintain_order="left").sort(
        "arrival_s", maintain_order=True
    )
    return (
        joined.group_by("chain", maintain_order=True)
        .agg(
            pl.col("arrival_s").first(),
            pl.when(finished).then(pl.col("left_s").max()).alias("left_s"),
            pl.col("status").last(),
            pl.col("measured").first(),
            pl.col("queue_s").sum().alias("waited_s"),
        )
        .drop("chain")
    )
