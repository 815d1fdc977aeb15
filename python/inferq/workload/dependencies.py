"""Requests that arrive only when others have finished.

A turn of a conversation comes when its user has read the answer before it; a call of an agent when the calls
that it needs are done. The core knows one rule for both: a row waits for a number of other rows and arrives
a delay after the last of them finished; when one of them never finishes, it never arrives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from inferq._lazy import NDArray, np, pl
from inferq.errors import ConfigError

NO_SESSION = 2**32 - 1
"""The session of a request that has none, as the core reads it."""


@dataclass(frozen=True, slots=True, eq=False)
class Flow:
    """Rows that wait for rows, as the core reads it: for `n` rows that wait `m` times in all."""

    parents: NDArray[np.uint32]
    """How many rows each of the `n` rows waits for."""
    children_start: NDArray[np.uint32]
    """Shape `n + 1`: those that wait for row `r` are `children[children_start[r]:children_start[r + 1]]`."""
    children: NDArray[np.uint32]
    """Shape `m`: rows, ascending for each row that they wait for."""
    delay_s: NDArray[np.float64]
    """Seconds from the last finish that a row waits for to its arrival; from `arrival_s` where for none."""

    def columns(self) -> dict[str, NDArray[Any]]:
        """The columns of this flow under their names at the core's door."""
        return {
            "parents": self.parents,
            "children_start": self.children_start,
            "children": self.children,
            "delay_s": self.delay_s,
        }


def of_sessions(frame: pl.DataFrame) -> Flow | None:
    """The turns of a workload that wait for the answer before them; None where no turn does.

    A row with `think_s` waits for the nearest earlier row of its session. Without such a row, or without
    `think_s`, it arrives at its `arrival_s`.

    Raises:
        ConfigError: there are think times and no sessions.
    """
    if "think_s" not in frame.columns or frame["think_s"].null_count() == frame.height:
        return None
    if "session_id" not in frame.columns:
        raise ConfigError(
            "workload.think_s",
            "there is no session_id, so no turn knows whose answer it waits for; "
            "add the column, or use .open_loop() to replay every turn at its arrival_s",
        )
    rows = frame.height
    numbered = frame.select("session_id", "think_s", pl.int_range(pl.len(), dtype=pl.Int64).alias("row"))
    waiting = (
        numbered.filter(pl.col("session_id").is_not_null())
        .with_columns(pl.col("row").shift(1).over("session_id").alias("before"))
        .filter(pl.col("before").is_not_null() & pl.col("think_s").is_not_null())
    )
    if waiting.is_empty():
        return None
    row, before = waiting["row"].to_numpy(), waiting["before"].to_numpy()
    parents, delay_s = np.zeros(rows, dtype=np.uint32), np.zeros(rows)
    parents[row] = 1
    delay_s[row] = waiting["think_s"].to_numpy()
    # a row has at most one next row of its session, so that children are counted by 0 and 1
    next_row = np.zeros(rows, dtype=np.uint32)
    has_next = np.zeros(rows, dtype=np.uint32)
    next_row[before], has_next[before] = row, 1
    return Flow(parents, starts(has_next), next_row[has_next == 1], delay_s)


def starts(counts: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Where the entries of each row begin in one list of all, and where the list ends.

    Raises:
        ConfigError: more entries than 32 bits can count.
    """
    ends = np.cumsum(counts, dtype=np.int64)
    if ends.size and ends[-1] >= 2**32:
        raise ConfigError("workload", f"{ends[-1]} waits of one request for another, must be below 2^32")
    return np.concatenate([[0], ends]).astype(np.uint32)


def sessions(session_id: pl.Series) -> NDArray[np.uint32]:
    """The session of each row as a number: from 0 in the order of their first rows, `NO_SESSION` for null."""
    rows = pl.int_range(session_id.len(), eager=True).alias("row")
    first = pl.DataFrame([session_id.alias("session"), rows]).select(pl.col("row").first().over("session"))
    firsts = first["row"].to_numpy()
    here = session_id.is_not_null().to_numpy()
    numbers = np.cumsum((firsts == np.arange(firsts.size)) & here) - 1
    return np.where(here, numbers[firsts], NO_SESSION).astype(np.uint32)
