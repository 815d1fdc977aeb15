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
    """The timing model, as text."""
    simulated: Mapping[str, float]
    exclusion: str = ""
    """The reason why the run is not evaluated. Empty if it is."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Properties of the simulated run: mean batch size, cache hit rate of prompts, …"""
