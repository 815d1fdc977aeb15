"""Requests that arrive after other requests finish.

Examples are the next turn of a conversation and an agent's call that depends on other calls. The core has one
rule for both: a row waits for a number of other rows and arrives a delay after the last of them finishes. If
one of them never finishes, the row never arrives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from inferq._lazy import NDArray, np, pl
from inferq.errors import ConfigError

NO_SESSION = 2**32 - 1
"""Session number for requests without a session, in the core's format."""


@dataclass(frozen=True, slots=True, eq=False)
class Flow:
    """Dependencies between rows in the core's format: `n` rows with `m` dependencies in total."""

    parents: NDArray[np.uint32]
    """Shape `n`: number of rows that each row waits for."""
    children_start: NDArray[np.uint32]
    """Shape `n + 1`: `children[children_start[r]:children_start[r + 1]]` wait for row `r`."""
    children: NDArray[np.uint32]
    """Shape `m`: waiting rows, ascending per awaited row."""
    delay_s: NDArray[np.float64]
    """Seconds from the last awaited finish to the arrival; from `arrival_s` for rows that wait for no row."""

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return the columns under the core's names."""
        return {
            "parents": self.parents,
            "children_start": self.children_start,
            "children": self.children,
            "delay_s": self.delay_s,
        }


def session_flow(frame: pl.DataFrame) -> Flow | None:
    """Return the dependencies of turns on the previous answers; None if there are none.

    A row with `think_s` waits for the nearest earlier row of its session. Without such a row, or without
    `think_s`, it arrives at its `arrival_s`.

    Raises:
        ConfigError: the frame has think times but no sessions.
    """
    if "think_s" not in frame.columns or frame["think_s"].null_count() == frame.height:
        return None
    if "session_id" not in frame.columns:
        raise ConfigError(
            "workload.think_s",
            "requires the column session_id; add it, or use .open_loop() to replay every turn at its "
            "arrival_s",
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
    # Each row has at most one next row in its session, so counts of children are 0 or 1.
    next_row = np.zeros(rows, dtype=np.uint32)
    has_next = np.zeros(rows, dtype=np.uint32)
    next_row[before], has_next[before] = row, 1
    return Flow(parents, starts(has_next), next_row[has_next == 1], delay_s)


def starts(counts: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return the start of each row's entries in one concatenated list, and the list's end.

    Raises:
        ConfigError: there are 2³² entries or more.
    """
    ends = np.cumsum(counts, dtype=np.int64)
    if ends.size and ends[-1] >= 2**32:
        raise ConfigError(
            "workload", f"dependencies between requests must be fewer than 2^32, got {ends[-1]:,}"
        )
    return np.concatenate([[0], ends]).astype(np.uint32)


def sessions(session_id: pl.Series) -> NDArray[np.uint32]:
    """Return the session of each row as a number: from 0 by first row, `NO_SESSION` for null."""
    rows = pl.int_range(session_id.len(), eager=True).alias("row")
    first = pl.DataFrame([session_id.alias("session"), rows]).select(pl.col("row").first().over("session"))
    firsts = first["row"].to_numpy()
    here = session_id.is_not_null().to_numpy()
    numbers = np.cumsum((firsts == np.arange(firsts.size)) & here) - 1
    return np.where(here, numbers[firsts], NO_SESSION).astype(np.uint32)
