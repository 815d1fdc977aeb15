"""`inferq.gate`: comparison of scenarios with a committed baseline, also used by the pytest fixture.

The requests of every seed must be bit-identical to those of the baseline. The system is under test: its
description and its code may differ.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

from inferq.checks import shown, whole
from inferq.description import member, read_fields
from inferq.errors import ConfigError, SimulationError, TraceError
from inferq.experiments.arguments import check_options
from inferq.experiments.gates.baseline import Record, read_baseline, write_baseline
from inferq.experiments.gates.gate_report import GateReport, ScenarioVerdict
from inferq.experiments.gates.metric_verdict import MetricVerdict, compare_metric, without_baseline
from inferq.experiments.gates.terms import Terms
from inferq.experiments.model_error import ModelErrors
from inferq.experiments.replication import Task, is_user_defined, run_tasks, workers
from inferq.files import check_writable
from inferq.inputs import path_of
from inferq.progress import Progress
from inferq.results.costs import hourly
from inferq.results.finding import Finding
from inferq.results.findings import of_objectives
from inferq.scenario import Scenario, ScenarioFile
from inferq.simulation.simulate import simulate
from inferq.systems.prices import Prices
from inferq.systems.system import SYSTEMS, System
from inferq.workload.workload import Workload

_MEASURING = ("horizon_s", "warmup", "cooldown")
"""Options of `simulate`, other than the seed, that affect metrics."""

_LONG = 64
"""Longer lists in the description of a system are stored as SHA-256."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A scenario of the gate."""

    name: str
    workload: Workload
    make: Callable[[], System]
    """Returns a fresh system for each run."""

    run: Mapping[str, Any]
    terms: Terms

    @property
    def seeds(self) -> range:
        """The seeds of the runs."""
        first = whole("run.seed", self.run.get("seed", 0), 0, 2**64 - 1)
        return range(first, first + self.terms.seeds)


def gate(
    scenarios: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    baseline: str | os.PathLike[str],
    *,
    prices: Prices | str | os.PathLike[str] | None = None,
    update: bool = False,
    threads: int | None = None,
) -> GateReport:
    """Run scenarios and compare them with a committed baseline.

    The table `[gate]` of each scenario sets the seeds. The requests of a seed are bit-identical, so metrics
    are compared in pairs. A metric regressed if the lower bound of Student's interval of its mean loss is
    beyond the tolerance. Unchanged scenarios give identical bits.

    ```toml
    [gate]                      # all keys are optional
    seeds = 10                  # from the seed of [run]
    confidence = 0.95
    slo = { ttft_s = 0.5, itl_s = 0.1 }     # for goodput; default: columns of the workload

    [gate.tolerance]            # default: these three
    request_goodput = "1%"      # of the baseline
    ttft_p99 = "5%"             # or "20ms", "0.02s"
    itl_p99 = "5%"
    cost_per_request = "2%"     # cost and energy require prices

    [gate.prices.gpu_hour]      # the fields of `Prices`
    h100-80gb = 2.5
    ```

    Args:
        scenarios: TOML files, or directories of them. The name of a scenario is the file name without suffix.
        baseline: the JSON file; it may contain further scenarios.
        prices: prices for scenarios without `[gate.prices]`, or the path of their file.
        update: write the results to the baseline instead of comparing.
        threads: concurrent runs. Default: all cores. It does not change the result.

    Returns:
        The report; `passed` is False if a metric regressed.

    Raises:
        ConfigError: a scenario or the baseline is wrong, there is no baseline, or it has other requests,
            options or seeds; nothing was run. A run that fails is part of the report.
        OSError: a file cannot be read or written.

    Source: Law, Simulation Modeling and Analysis: paired comparison with common random numbers.

    Example:
        >>> import inferq as iq, tempfile, pathlib
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> scenario = '''
        ... [workload]
        ... requests = 200
        ... arrivals = { kind = "Poisson", rate = 4 }
        ... prompt = { kind = "Fixed", tokens = 9 }
        ... output = { kind = "Geometric", mean = 20 }
        ... [engine]
        ... timing = { kind = "Constant", seconds = 0.02 }
        ... scheduler = { kind = "Sarathi" }
        ... kv = "unlimited"
        ... [gate]
        ... seeds = 3
        ... tolerance = { e2e_mean = "1%" }
        ... '''
        >>> _ = (folder / "chat.toml").write_text(scenario)
        >>> iq.gate(folder, folder / "baseline.json", update=True).written
        True
        >>> print(iq.gate(folder, folder / "baseline.json"))
        passed: 1 metric of 1 scenario is identical
        >>> _ = (folder / "chat.toml").write_text(scenario.replace("0.02 }", "0.021 }"))
        >>> iq.gate(folder, folder / "baseline.json").passed
        False
    """
    report = checked(
        read_trials(scenarios, prices=Prices.of(prices)),
        path_of("baseline", baseline),
        update=update,
        threads=threads,
    )
    return accepted(report) if update else report


def read_trials(
    scenarios: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    fields: Mapping[str, object] | None = None,
    prices: Prices | None = None,
) -> list[Trial]:
    """Read scenarios from files and directories, and set fields by path.

    `prices` apply to scenarios without prices.

    Raises:
        ConfigError: a scenario is wrong, names are not unique, or there is no scenario.
        OSError: a file cannot be read.
    """
    if not isinstance(scenarios, (str, os.PathLike, Iterable)):
        raise ConfigError("scenarios", f"must be files or directories, got {shown(scenarios)}")
    paths = [scenarios] if isinstance(scenarios, (str, os.PathLike)) else list(scenarios)
    files: dict[str, Path] = {}
    for path in (path_of("scenarios", given) for given in paths):
        inside = sorted(path.glob("*.toml")) if path.is_dir() else [path]
        if not inside:
            raise ConfigError(path, "contains no .toml file")
        for file in inside:
            other = files.setdefault(file.stem, file)
            if os.path.realpath(other) != os.path.realpath(file):
                raise ConfigError(file, f"has the same name as {other}; names must be unique")
    if not files:
        raise ConfigError("scenarios", "must contain at least one file")
    return [_of_file(name, file, fields or {}, prices) for name, file in files.items()]


def _of_file(name: str, file: Path, fields: Mapping[str, object], prices: Prices | None) -> Trial:
    plan = ScenarioFile.read(file).with_fields(fields).scenario() if fields else Scenario.read(file)
    try:
        check_options(plan.options, but=("seed", "threads"), field="run.")
    except ConfigError as error:
        raise error.within(str(file), ": ") from None
    table = {} if plan.gate is None else plan.gate
    if prices is not None and "prices" not in table:
        table = {**table, "prices": prices.to_json()}
    try:
        terms = read_fields("gate", table, Terms)
    except ConfigError as error:
        raise error.within(str(file), ": ") from None
    return Trial(name, plan.workload, maker(plan.system), plan.options, terms)


def maker(system: Any) -> Callable[[], System]:
    """A function that returns a fresh system for each run: copies of a system, or the given function.

    Policies written in Python may have state.

    Raises:
        ConfigError: the argument is neither a system nor a function that returns one.
    """
    if isinstance(system, SYSTEMS):
        return lambda: copy.deepcopy(system)
    if not callable(system):
        member("system", system, SYSTEMS)

    def made() -> System:
        returned = system()
        member("system", returned, SYSTEMS)
        return cast("System", returned)

    return made


def checked(
    trials: Sequence[Trial],
    baseline: Path,
    *,
    update: bool = False,
    threads: int | None = None,
    accept: str | None = None,
    log: Callable[[str], object] | None = None,
) -> GateReport:
    """Run scenarios and compare them with a baseline, without writing.

    Args:
        trials: the scenarios, at least one.
        baseline: the file.
        update: whether the file is written afterwards, so that it may differ but must be writable.
        threads: concurrent runs.
        accept: the command that accepts the results.
        log: called with a line before each scenario.

    Raises:
        ConfigError: as for `gate`.
        OSError: as for `gate`.
    """
    accept = accept or f"iq.gate(…, {str(baseline)!r}, update=True)"
    if threads is not None:
        whole("threads", threads, 1, 2**16 - 1)
    if update:
        check_writable(baseline)
    elif not baseline.exists():
        raise ConfigError(baseline, f"does not exist; create it with {accept} and commit it")
    records = read_baseline(baseline) if baseline.exists() else {}
    plans = [_planned(trial) for trial in trials]
    problems = [_unfit(trial, plan, records) for trial, plan in zip(trials, plans, strict=True)]
    if not update and any(problems):
        reasons = "; ".join(filter(None, problems))
        raise ConfigError(baseline, f"{reasons}. If this is intended, accept it with {accept}")
    verdicts = []
    for trial, plan, problem in zip(trials, plans, problems, strict=True):
        if log is not None:
            log(f"{trial.name}: {trial.terms.seeds} runs")
        verdicts.append(_verdict(trial, plan, records, problem, threads))
    names = {trial.name for trial in trials}
    rest = sorted({*records} - names)
    return GateReport(tuple(verdicts), baseline, accept, update, others=tuple(rest))


def accepted(report: GateReport) -> GateReport:
    """Write the results to the baseline, unless a run failed. Other scenarios in it remain.

    Raises:
        OSError: the file cannot be written; it is unchanged.
    """
    records = {verdict.name: verdict.record for verdict in report.scenarios if verdict.record is not None}
    if len(records) < len(report.scenarios):
        return report
    before = read_baseline(report.baseline) if report.baseline.exists() else {}
    return replace(report, written=write_baseline(report.baseline, {**before, **records}))


def _planned(trial: Trial) -> Record:
    """The record of a scenario, without values."""
    if trial.workload.is_synthetic and trial.terms.seeds < 2:
        raise ConfigError(trial.name, "seeds: must be 2 or more for a random workload: one has no interval")
    for margin in trial.terms.tolerances:
        if margin.metric.needs_prices and trial.terms.prices is None:
            raise ConfigError(trial.name, f"tolerance.{margin.metric.name}: requires [gate.prices] or prices")
    try:
        drawn = "".join(trial.workload.draw(seed).sha256() for seed in trial.seeds)
        system = trial.make()
        if trial.terms.prices is not None:
            hourly(system, trial.terms.prices)
    except (ConfigError, TraceError) as error:
        raise error.within(trial.name, ": ") from None
    return Record(
        inferq=version("inferq"),
        requests=repr(trial.workload),
        requests_sha256=hashlib.sha256(drawn.encode()).hexdigest(),
        run={name: trial.run[name] for name in _MEASURING if name in trial.run},
        seeds=tuple(trial.seeds),
        slo=trial.terms.slo,
        prices=None if trial.terms.prices is None else trial.terms.prices.to_json(),
        system={system.name_of_kind: _short(system.to_json())},
        values={},
    )


def _unfit(trial: Trial, plan: Record, known: Mapping[str, Record]) -> str:
    """The reason why a baseline does not match a scenario. Empty if it does."""
    if trial.name not in known:
        return f"lacks the scenario {trial.name}"
    if reason := plan.unlike(known[trial.name]):
        return f"has another scenario {trial.name}: {reason}"
    names = [margin.metric.name for margin in trial.terms.tolerances]
    missing = [name for name in names if name not in known[trial.name].values]
    return f"lacks {' and '.join(missing)} of {trial.name}" if missing else ""


def _verdict(
    trial: Trial, plan: Record, known: Mapping[str, Record], problem: str, threads: int | None
) -> ScenarioVerdict:
    """Run a scenario and compare its metrics. With a `problem` of the baseline, they are new."""
    terms, is_known = trial.terms, trial.name in known
    before = known[trial.name] if is_known and not problem else None
    try:
        values, findings = _values(trial, threads)
    except (SimulationError, ConfigError, TraceError) as error:
        return ScenarioVerdict(trial.name, terms, error=str(error))
    now = replace(plan, values=values)
    notes = [f"the baseline {problem}"] if problem and is_known else []
    metrics: list[MetricVerdict] = []
    errors = ModelErrors.of(trial.make())
    for tolerance in terms.tolerances:
        here = values[tolerance.metric.name]
        if before is None:
            metrics.append(without_baseline(tolerance, here))
        else:
            there = before.values[tolerance.metric.name]
            verdict = compare_metric(tolerance, there, here, terms.confidence)
            metrics.append(verdict.with_note(errors.note(tolerance.metric, verdict.margin)))
    changes: list[str] = []
    if before is not None:
        changes = before.changes(now)
        if before.inferq != now.inferq:
            notes.append(f"the baseline is from inferq {before.inferq}, this is {now.inferq}")
        elif not changes and any(metric.verdict != "identical" for metric in metrics):
            notes.append("the description of the system is unchanged, so the code changed")
    notes += of_objectives(terms.slo)
    notes += [finding.about(f"seed {trial.seeds[0]}", seed=trial.seeds[0]) for finding in findings]
    return ScenarioVerdict(trial.name, terms, now, tuple(metrics), tuple(changes), tuple(notes))


def _values(trial: Trial, threads: int | None) -> tuple[dict[str, tuple[float | None, ...]], list[Finding]]:
    """The values of each metric by seed, and the findings of the first seed."""
    metrics = [tolerance.metric for tolerance in trial.terms.tolerances]
    options = {name: value for name, value in trial.run.items() if name != "seed"}
    # Policies written in Python hold the GIL, and their classes may have state.
    if is_user_defined(trial.make()):
        threads = 1
    if workers(threads, len(trial.seeds)) > 1:
        options.setdefault("threads", 1)

    def task(seed: int) -> Task[tuple[list[float | None], list[Finding]]]:
        def run_seed(watch: Progress | None) -> tuple[list[float | None], list[Finding]]:
            try:
                result = simulate(trial.workload, trial.make(), seed=seed, progress=watch, **options)
            except (SimulationError, ConfigError, TraceError) as error:
                raise type(error)(f"seed {seed}: {error}") from error
            row = result.summary(slo=trial.terms.slo, prices=trial.terms.prices).row(0, named=True)
            return [metric.of_row(row) for metric in metrics], result.findings

        return run_seed

    runs = run_tasks([task(seed) for seed in trial.seeds], threads)
    columns = zip(*(row for row, _ in runs), strict=True)
    return {metric.name: column for metric, column in zip(metrics, columns, strict=True)}, runs[0][1]


def _short(value: Any) -> Any:
    """A description with long lists, such as the rows of an `Empirical`, replaced by their SHA-256."""
    if isinstance(value, Mapping):
        return {name: _short(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        if len(value) > _LONG:
            digest = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
            return {"rows": len(value), "sha256": digest}
        return [_short(item) for item in value]
    return value
