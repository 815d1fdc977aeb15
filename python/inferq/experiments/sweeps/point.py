"""One point of a grid: its scenario, its run, and what comes out."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from inferq.errors import ConfigError
from inferq.experiments.arguments import check_options
from inferq.results.findings import of_objectives
from inferq.results.metric import SUMMARY
from inferq.scenario import Scenario, ScenarioFile
from inferq.simulation.simulate import simulate

Source: TypeAlias = Callable[..., Any] | ScenarioFile
"""What makes a scenario of a point: a function of its values, or a file whose fields they set."""


@dataclass(frozen=True, slots=True)
class PointRun:
    """One run of a sweep: plain values, which travel to where it is run."""

    source: Source
    point: Mapping[str, Any]
    seed: int
    slo: Mapping[str, float | None] | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a task: the numbers of its run, or why there are none."""

    summary: tuple[float | int | None, ...] | None = None
    """In the order of `SUMMARY`; None where the run failed."""

    findings: str | None = None
    """Of the run, with semicolons between them; None where it has none."""

    error: str | None = None
    """The type and the text of what was raised."""


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs tasks; one that shares a process with the sweep can be told to stop."""

    stop: threading.Event | None = None

    def __call__(self, task: PointRun) -> Outcome:
        """The outcome of a task; what it raises is recorded, but for Ctrl-C and exits."""
        try:
            return self._outcome(task)
        except Stopped:
            raise
        except Exception as error:
            return Outcome(error=failure(error))

    def _outcome(self, task: PointRun) -> Outcome:
        self._watch(0, 0)
        workload, system, options = scenario_of(task.source, task.point)
        progress = None if self.stop is None else self._watch
        run = simulate(workload, system, **{"threads": 1, **options}, seed=task.seed, progress=progress)
        row = run.summary(slo=task.slo).row(0, named=True)
        findings = [*of_objectives(task.slo), *run.findings]
        return Outcome(tuple(row[name] for name in SUMMARY), "; ".join(findings) or None)

    def _watch(self, _done: int, _total: int) -> None:
        if self.stop is not None and self.stop.is_set():
            raise Stopped


class Stopped(Exception):
    """The sweep is over before this run is."""


def failure(error: BaseException) -> str:
    """The type and the text of an exception on one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def scenario_of(source: Source, point: Mapping[str, Any]) -> tuple[Any, Any, Mapping[str, Any]]:
    """The workload of a point, what serves it, and the options of its run but for the seed.

    Raises:
        ConfigError: a function that returned something else, options that the sweep sets itself, or a file
            with a wrong field.
    """
    if isinstance(source, ScenarioFile):
        read = source.with_fields(point).scenario()
        return (
            read.workload,
            read.system,
            {name: value for name, value in read.options.items() if name != "seed"},
        )
    parts = source(**point)
    if isinstance(parts, Scenario):
        parts = (parts.workload, parts.system, parts.options)
    if not isinstance(parts, tuple) or not 2 <= len(parts) <= 3:
        raise ConfigError(
            "scenario",
            "must return (workload, system), (workload, system, options) or a Scenario, "
            f"returned {type(parts).__name__}",
        )
    options = parts[2] if len(parts) == 3 else {}
    if not isinstance(options, Mapping):
        raise ConfigError("scenario", f"the options that it returned must be a dict, are {options!r}")
    if "seed" in options:
        raise ConfigError("seed", "the sweep sets it; leave it out of the options and name seeds=[…]")
    if "progress" in options:
        raise ConfigError("progress", "is one for the whole sweep; leave it out of the options")
    check_options(options, but=("threads",))
    return parts[0], parts[1], options


def first_seed(source: Source) -> object:
    """The seed that a file names, else 0."""
    run = source.tables.get("run", {}) if isinstance(source, ScenarioFile) else {}
    return run.get("seed", 0) if isinstance(run, Mapping) else 0


def source_of(scenario: object) -> Source:
    """What makes the scenarios of a sweep.

    Raises:
        ConfigError: it is neither a function nor the path of a file, or a file that is no TOML.
        OSError: the file cannot be read.
    """
    if isinstance(scenario, (str, os.PathLike)):
        read = ScenarioFile.read(Path(scenario))
        return ScenarioFile(read.file, read.tables, read.directory.absolute())
    if not callable(scenario):
        raise ConfigError(
            "scenario",
            "must be a function that returns (workload, system), or the path of a TOML file, "
            f"is {scenario!r}",
        )
    return scenario
