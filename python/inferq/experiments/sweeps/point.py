"""One point of a grid: its scenario, its run, and its outcome."""

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
"""The scenario of a point: a function of its values, or a file whose fields they set."""


@dataclass(frozen=True, slots=True)
class PointRun:
    """One run of a sweep, as values that can be pickled."""

    source: Source
    point: Mapping[str, Any]
    seed: int
    slo: Mapping[str, float | None] | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a task: the metrics of its run, or an error."""

    summary: tuple[float | int | None, ...] | None = None
    """In the order of `SUMMARY`. None if the run failed."""

    findings: str | None = None
    """Findings of the run, joined by semicolons. None if there are none."""

    error: str | None = None
    """Type and text of the exception."""


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs tasks. A runner in the process of the sweep stops when `stop` is set."""

    stop: threading.Event | None = None

    def __call__(self, task: PointRun) -> Outcome:
        """The outcome of a task. Exceptions are recorded, except Ctrl-C and exits."""
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
    """The sweep ended before this run."""


def failure(error: BaseException) -> str:
    """Type and text of an exception, on one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def scenario_of(source: Source, point: Mapping[str, Any]) -> tuple[Any, Any, Mapping[str, Any]]:
    """The workload, the system and the options of a point, without the seed.

    Raises:
        ConfigError: the function returned something else, an option is set by the sweep, or a field of the
            file is wrong.
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
            f"got {type(parts).__name__}",
        )
    options = parts[2] if len(parts) == 3 else {}
    if not isinstance(options, Mapping):
        raise ConfigError("scenario", f"must return a dict of options, got {options!r}")
    if "seed" in options:
        raise ConfigError("seed", "is set by the sweep; use seeds=[…] instead of the option")
    if "progress" in options:
        raise ConfigError("progress", "is an argument of the sweep; remove it from the options")
    check_options(options, but=("threads",))
    return parts[0], parts[1], options


def first_seed(source: Source) -> object:
    """The seed of a file. Default: 0."""
    run = source.tables.get("run", {}) if isinstance(source, ScenarioFile) else {}
    return run.get("seed", 0) if isinstance(run, Mapping) else 0


def source_of(scenario: object) -> Source:
    """The scenario argument of a sweep.

    Raises:
        ConfigError: it is neither a function nor the path of a TOML file.
        OSError: the file cannot be read.
    """
    if isinstance(scenario, (str, os.PathLike)):
        read = ScenarioFile.read(Path(scenario))
        return ScenarioFile(read.file, read.tables, read.directory.absolute())
    if not callable(scenario):
        raise ConfigError(
            "scenario",
            "must be a function that returns (workload, system), or the path of a TOML file, "
            f"got {scenario!r}",
        )
    return scenario
