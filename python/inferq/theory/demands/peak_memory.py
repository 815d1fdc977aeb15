"""What is asked for in the busiest part of a recorded workload, and of the busiest of several replicas?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from inferq._lazy import np, pl

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers: TypeAlias = NDArray[np.float64]

Work: TypeAlias = Callable[[Any, Any], Any]
"""What requests of s prompt and o output tokens ask for, in any unit: arrays in, arrays out."""
PARTS = 10
"""Stretches of equal length into which the span of arrivals is cut."""


def each(s: Any, o: Any) -> Any:
    """Requests, each of which counts 1."""
    return 1.0 + 0 * s + 0 * o


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """Requests in the order in which they were recorded."""

    at: Numbers
    """When each arrives; its place, as of arrivals at even distances, where nothing says when."""
    prompt: Numbers
    output: Numbers
    names: tuple[str, ...]
    """The class of each; empty where all are of one."""

    @classmethod
    def of(cls, frame: pl.DataFrame, *, timed: bool) -> Order:
        """The requests of a frame; their own arrivals count where they are `timed`."""
        at = frame["arrival_s"].to_numpy() if timed else np.arange(frame.height)
        return cls(
            at.astype(np.float64),
            frame["prompt_tokens"].to_numpy().astype(np.float64),
            frame["output_tokens"].to_numpy().astype(np.float64),
            tuple(map(str, frame["class"])) if "class" in frame.columns else (),
        )

    def peak(self, work: Work, *, turns: int = 1, name: str | None = None) -> float:
        """How many times the mean is asked for where most is asked for.

        Args:
            work: what a request asks for.
            turns: replicas that take turns. What the one asks for that is asked for the most then stands
                beside an equal share.
            name: of a class, if only its requests count.

        Returns:
            The most work in a tenth of the span of arrivals, of one replica, times `turns`, over the mean.
        """
        asked = np.asarray(work(self.prompt, self.output), dtype=np.float64)
        if name is not None and self.names:
            asked = asked * (np.array(self.names) == name)
        first, last = float(self.at[0]), float(self.at[-1])
        if not asked.sum() > 0:
            return 1.0
        part = np.zeros(len(asked), dtype=np.int64)
        if last > first:
            part = np.minimum((self.at - first) / (last - first) * PARTS, PARTS - 1).astype(np.int64)
        cell = part * turns + np.arange(len(asked)) % turns
        most = np.bincount(cell, weights=asked, minlength=PARTS * turns).max()
        return float(most * turns * PARTS / asked.sum())
