"""One measured run with its simulation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from inferq.experiments.validation.measured_run import MeasuredRun
from inferq.experiments.validation.settings import Assumptions


@dataclass(slots=True)
class ValidatedRun:
    """A run, measured and simulated."""

    run: MeasuredRun
    assumptions: Assumptions
    timing: str
    """The timing model, as text; empty if the run cannot be simulated."""
    simulated: Mapping[str, float]
    exclusion: str = ""
    """The reason why the run is not evaluated. Empty if it is."""
    error: Exception | None = None
    """The error of a run that cannot be simulated."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Properties of the simulated run, or empty: mean batch size, cache hit rate of prompts, …"""
