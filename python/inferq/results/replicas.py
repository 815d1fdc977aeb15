"""The number of replicas over a run with an autoscaler or failures, and its changes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from inferq._lazy import pl
from inferq.display.text import counted, number
from inferq.results.tables import RunTables

_SECONDS_OF_HOUR = 3600


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Replicas:
    """Open replicas, replica-hours and events of a run.

    A replica is open while it accepts requests. It is paid from its start request to its end, failure or the
    end of the run. Replicas without events, of other engines of a `Network`, are not counted.
    """

    over_time: pl.DataFrame
    """One row per change, from 0 to the end of the run: `time_s`, and from then on `open` and `paid`."""
    events: pl.DataFrame
    """One row per event: `time_s`, `replica`, `event` in words, and `open` after it."""
    replica_s: float
    """Paid replica seconds."""

    @classmethod
    def of(cls, tables: RunTables) -> Replicas | None:
        """The replicas of a run. None for a run without an autoscaler and without failures."""
        if not tables.has("fleet_events"):
            return None
        state: dict[int, str] = {}
        changes: dict[float, tuple[int, int]] = {}
        rows = []
        frame = tables.frame("fleet_events").with_columns(pl.col("event").cast(pl.String))
        for at_s, replica, event in frame.select("at_s", "replica", "event").iter_rows():
            before = state.get(replica, "")
            state[replica] = event
            is_open = sum(value == "ready" for value in state.values())
            is_paid = sum(value in ("asked", "ready", "drains") for value in state.values())
            changes[at_s] = is_open, is_paid
            rows.append((at_s, replica, _in_words(before, event), is_open))
        end_s = float(tables.totals["end_s"])
        last = next(reversed(changes.values()), (0, 0))
        steps = [(at_s, *counts) for at_s, counts in changes.items()]
        if not steps or steps[-1][0] < end_s:
            steps.append((end_s, *last))
        return cls(
            over_time=pl.DataFrame(
                steps, {"time_s": pl.Float64, "open": pl.Int64, "paid": pl.Int64}, orient="row"
            ),
            events=pl.DataFrame(
                rows,
                {"time_s": pl.Float64, "replica": pl.Int64, "event": pl.String, "open": pl.Int64},
                orient="row",
            ),
            replica_s=float(tables.totals["replica_time_as"]) / 10**18,
        )

    @property
    def least(self) -> int:
        """The smallest number of open replicas."""
        return int(self.over_time["open"].min() or 0)  # type: ignore[arg-type]

    @property
    def most(self) -> int:
        """The largest number of open replicas."""
        return int(self.over_time["open"].max() or 0)  # type: ignore[arg-type]

    @property
    def mean(self) -> float:
        """The mean number of open replicas over the time of the run."""
        rows = self.over_time.select("time_s", "open").rows()
        span_s: float = rows[-1][0] - rows[0][0]
        if not span_s > 0:
            return float(rows[-1][1])
        return math.fsum(count * (until - since) for (since, count), (until, _) in pairwise(rows)) / span_s

    @property
    def hours(self) -> float:
        """Paid replica-hours."""
        return self.replica_s / _SECONDS_OF_HOUR

    @property
    def counts(self) -> dict[str, int]:
        """Starts, drains and failures, restarts after failures, and canceled starts, if any."""
        kinds = ("start", "canceled start", "drain", "failure", "restart", "canceled restart")
        counts: dict[str, int] = dict(self.events["event"].value_counts().iter_rows())
        return {kind: counts[kind] for kind in kinds if kind in counts}

    def __str__(self) -> str:
        """Minimum, mean and maximum, replica-hours, and the number of events."""
        events = ", ".join(counted(count, kind) for kind, count in self.counts.items()) or "no event"
        return (
            f"minimum {self.least}, mean {number(self.mean, 3)}, maximum {self.most}; "
            f"{number(self.hours, 3)} replica-hours; {events}"
        )


def _in_words(before: str, event: str) -> str:
    """An event of `Result.fleet_events` in words, given the previous event of its replica."""
    if event == "asked":
        return "restart" if before == "died" else "start"
    if event == "ended":
        return {"asked": "canceled start", "died": "canceled restart"}.get(before, "closed")
    return {"ready": "open", "drains": "drain", "died": "failure"}[event]
