"""The charts of a run, which need theory and are therefore drawn by a package above this one."""

from __future__ import annotations

from typing import Any, Protocol

from inferq.display.style import PANEL


class Charts(Protocol):
    """The charts of a run as Altair charts, `width` pixels wide; `Result.plot`."""

    def __call__(self, width: int = PANEL) -> Any:
        """An overview: latency percentiles, waiting requests, arrivals and completions."""

    def latency(self, width: int = PANEL) -> Any:
        """Latency percentiles of the measured requests."""

    def timeline(self, width: int = PANEL) -> Any:
        """Requests, KV cache and tokens per second over time."""

    def itl(self, width: int = PANEL) -> Any:
        """Histogram of inter-token latency."""

    def queue(self, width: int = PANEL) -> Any:
        """Waiting requests over time."""

    def throughput(self, width: int = PANEL) -> Any:
        """Arrivals and completions per second, with the limits of theory."""
