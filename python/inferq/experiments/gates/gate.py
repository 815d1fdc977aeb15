"""Has a change made a scenario worse than it may become? `inferq.gate`, and what the pytest fixture shares.

The requests of every seed are those of the baseline, bit for bit, or nothing is compared. The system is what
is under test: its description may differ, and the code behind it.
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

from inferq.checks import whole
from inferq.description import member, read_fields
from inferq.errors import ConfigError, SimulationError, TraceError
from inferq.experiments.arguments import check_options
from inferq.experiments.gates.baseline import Record, read_baseline, write_baseline
from inferq.experiments.gates.gate_report import GateReport, ScenarioVerdict
from inferq.experiments.gates.judgement import fresh, judge
from inferq.experiments.gates.terms import Terms
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
"""The options of `simulate`, beside the seed, that change what is measured."""

_LONG = 64
"""A longer list in the description of a system is told by its SHA-256."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A scenario as the gate runs it."""

    name: str
    workload: Workload
    make: Callable[[], System]
    """A system that has served nothing yet, for each run."""

    run: Mapping[str, Any]
    terms: Terms

    @property
    def seeds(self) -> range:
        """The seeds of its runs."""
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
    """Run scenarios and hold them against a committed baseline: is a metric worse than it may become?

    Each scenario runs with as many seeds as its table `[gate]` says. Because the requests of a seed are the
    same, bit for bit, metrics are compared in pairs; one has become worse if the lower end of Student's
    interval of its mean loss is beyond the tolerance. What is unchanged gives the same bits.

    ```toml
    [gate]                      # all of it optional
    seeds = 10                  # counted from the seed of [run]
    confidence = 0.95
    slo = { ttft_s = 0.5, itl_s = 0.1 }     # what counts as good, else the workload's columns

    [gate.tolerance]            # else these three
    request_goodput = "1%"      # of the baseline
    ttft_p99 = "5%"             # or "20ms", "0.02s"
    itl_p99 = "5%"
    cost_per_request = "2%"     # money and energy, where there are prices

    [gate.prices.gpu_hour]      # the fields of `Prices`
    h100-80gb = 2.5
    ```

    Args:
        scenarios: TOML files, and folders of them. A scenario is called by its file, without the ending.
        baseline: the JSON file; it may hold further scenarios.
        prices: of scenarios that have no `[gate.prices]`, or the path of their file.
        update: write what was found into the file instead of judging by it.
        threads: how many runs at once; None takes every core. It changes no bit of a result.

    Returns:
        What was found; `passed` says whether nothing has become worse.

    Raises:
        ConfigError: a scenario or the baseline is wrong, there is no baseline, or it is one of other
            requests, options or seeds; nothing was run. (A run that fails is in the report, beside those
            that have not.)
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
        read_trials(scenarios, prices=Prices.of(prices)), Path(baseline), update=update, threads=threads
    )
    return accepted(report) if update else report


def read_trials(
    scenarios: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    fields: Mapping[str, object] | None = None,
    prices: Prices | None = None,
) -> list[Trial]:
    """The scenarios in files and folders, by name, each with some fields set by their paths.

    `prices` are for those that have none.

    Raises:
        ConfigError: one is wrong, two have one name, or there is none.
        OSError: a file cannot be read.
    """
    paths = [scenarios] if isinstance(scenarios, (str, os.PathLike)) else list(scenarios)
    files: dict[str, Path] = {}
    for path in (path_of("scenarios", one) for one in paths):
        inside = sorted(path.glob("*.toml")) if path.is_dir() else [path]
        if not inside:
            raise ConfigError(path, "holds no scenario, no file that ends in .toml")
        for file in inside:
            other = files.setdefault(file.stem, file)
            if os.path.realpath(other) != os.path.realpath(file):
                raise ConfigError(file, f"is called {file.stem} like {other}; a name stands for one scenario")
    if not files:
        raise ConfigError("scenarios", "none is named")
    return [_of_file(name, file, fields or {}, prices) for name, file in files.items()]


def _of_file(name: str, file: Path, fields: Mapping[str, object], prices: Prices | None) -> Trial:
    plan = ScenarioFile.read(file).with_fields(fields).scenario() if fields else Scenario.read(file)
    try:
        check_options(plan.options, but=("seed", "threads"), field="run.")
    except ConfigError as error:
        raise error.within(str(file), ": ") from None
    asked = {} if plan.gate is None else plan.gate
    if prices is not None and "prices" not in asked:
        asked = {**asked, "prices": prices.to_json()}
    terms = read_fields("gate", asked, Terms)
    return Trial(name, plan.workload, maker(plan.system), plan.options, terms)


def maker(system: Any) -> Callable[[], System]:
    """What makes the system of each run anew: a function, or copies of an object that has served nothing.

    A policy written in Python may remember what it has seen.

    Raises:
        ConfigError: it is neither a system nor a function that returns one.
    """
    if isinstance(system, SYSTEMS):
        return lambda: copy.deepcopy(system)
    if not callable(system):
        member("system", system, SYSTEMS)

    def made() -> System:
        one = system()
        member("system", one, SYSTEMS)
        return cast("System", one)

    return made


def checked(
    trials: Sequence[Trial],
    baseline: Path,
    *,
    update: bool = False,
    threads: int | None = None,
    accept: str | None = None,
    tell: Callable[[str], object] | None = None,
) -> GateReport:
    """Run scenarios and hold them against a baseline; nothing is written.

    Args:
        trials: the scenarios, at least one.
        baseline: the file.
        update: that the file shall be written afterwards: it need not fit, but it must be possible.
        threads: how many runs at once.
        accept: the command that accepts what was found.
        tell: gets a line before each scenario.

    Raises:
        ConfigError: as `gate`.
        OSError: as `gate`.
    """
    accept = accept or f"iq.gate(…, {str(baseline)!r}, update=True)"
    if threads is not None:
        whole("threads", threads, 1, 2**16 - 1)
    if update:
        check_writable(baseline)
    elif not baseline.exists():
        raise ConfigError(baseline, f"there is no baseline yet; make it with {accept} and commit it")
    records = read_baseline(baseline) if baseline.exists() else {}
    plans = [_planned(trial) for trial in trials]
    problems = [_unfit(trial, plan, records) for trial, plan in zip(trials, plans, strict=True)]
    if not update and any(problems):
        reasons = "; ".join(filter(None, problems))
        raise ConfigError(baseline, f"{reasons}. If that is meant, accept it with {accept}")
    verdicts = []
    for trial, plan, problem in zip(trials, plans, problems, strict=True):
        if tell is not None:
            tell(f"{trial.name}: {trial.terms.seeds} runs")
        verdicts.append(_verdict(trial, plan, records, problem, threads))
    names = {trial.name for trial in trials}
    rest = sorted({*records} - names)
    return GateReport(tuple(verdicts), baseline, accept, update, others=tuple(rest))


def accepted(report: GateReport) -> GateReport:
    """Write what was found into the baseline, beside the other scenarios there, unless a run has failed.

    Raises:
        OSError: the file cannot be written; it is as it was.
    """
    records = {verdict.name: verdict.record for verdict in report.scenarios if verdict.record is not None}
    if len(records) < len(report.scenarios):
        return report
    before = read_baseline(report.baseline) if report.baseline.exists() else {}
    return replace(report, written=write_baseline(report.baseline, {**before, **records}))


def _planned(trial: Trial) -> Record:
    """What will be run, without the values."""
    if trial.workload.is_synthetic and trial.terms.seeds < 2:
        raise ConfigError(
            trial.name, "seeds: must be 2 or more where requests are drawn: one run says nothing of chance"
        )
    for one in trial.terms.tolerances:
        if one.metric.needs_prices and trial.terms.prices is None:
            raise ConfigError(
                trial.name,
                f"tolerance.{one.metric.name}: is told where GPUs have prices; give [gate.prices] or prices",
            )
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
    """Why a baseline does not say what a scenario was like before; empty where it does."""
    if trial.name not in known:
        return f"has no scenario {trial.name}"
    if reason := plan.unlike(known[trial.name]):
        return f"is of another scenario {trial.name}: {reason}"
    names = [one.metric.name for one in trial.terms.tolerances]
    missing = [name for name in names if name not in known[trial.name].values]
    return f"has no {' and no '.join(missing)} of {trial.name}" if missing else ""


def _verdict(
    trial: Trial, plan: Record, known: Mapping[str, Record], problem: str, threads: int | None
) -> ScenarioVerdict:
    """Run a scenario and judge its metrics; where the baseline has a `problem`, they are new."""
    terms, is_known = trial.terms, trial.name in known
    before = known[trial.name] if is_known and not problem else None
    try:
        values, findings = _values(trial, threads)
    except (SimulationError, ConfigError, TraceError) as error:
        return ScenarioVerdict(trial.name, terms, error=str(error))
    now = replace(plan, values=values)
    notes = [f"the baseline {problem}"] if problem and is_known else []
    judgements = []
    for tolerance in terms.tolerances:
        here = values[tolerance.metric.name]
        if before is None:
            judgements.append(fresh(tolerance, here))
        else:
            judgements.append(judge(tolerance, before.values[tolerance.metric.name], here, terms.confidence))
    changes: list[str] = []
    if before is not None:
        changes = before.changes(now)
        if before.inferq != now.inferq:
            notes.append(f"the baseline was made by inferq {before.inferq}, this is {now.inferq}")
        elif not changes and any(one.verdict != "identical" for one in judgements):
            notes.append("the description of the system is the same: what has changed is code")
    notes += of_objectives(terms.slo)
    notes += [finding.about(f"seed {trial.seeds[0]}", seed=trial.seeds[0]) for finding in findings]
    return ScenarioVerdict(trial.name, terms, now, tuple(judgements), tuple(changes), tuple(notes))


def _values(trial: Trial, threads: int | None) -> tuple[dict[str, tuple[float | None, ...]], list[Finding]]:
    """The value of each metric, seed by seed, and what was found in the run of the first seed."""
    metrics = [tolerance.metric for tolerance in trial.terms.tolerances]
    options = {name: value for name, value in trial.run.items() if name != "seed"}
    # Policies written in Python hold the interpreter anyway, and what a class of theirs remembers is theirs.
    if is_user_defined(trial.make()):
        threads = 1
    alone = workers(threads, len(trial.seeds)) == 1
    if not alone:
        options.setdefault("threads", 1)

    def task(seed: int) -> Task[tuple[list[float | None], list[Finding]]]:
        def go(watch: Progress | None) -> tuple[list[float | None], list[Finding]]:
            try:
                result = simulate(trial.workload, trial.make(), seed=seed, progress=watch, **options)
            except (SimulationError, ConfigError, TraceError) as error:
                raise type(error)(f"seed {seed}: {error}") from error
            row = result.summary(slo=trial.terms.slo, prices=trial.terms.prices).row(0, named=True)
            return [metric.of_row(row) for metric in metrics], result.findings

        return go

    runs = run_tasks([task(seed) for seed in trial.seeds], threads)
    columns = zip(*(row for row, _ in runs), strict=True)
    return {metric.name: column for metric, column in zip(metrics, columns, strict=True)}, runs[0][1]


def _short(value: Any) -> Any:
    """A description in which a long list, such as the rows of an `Empirical`, is told by its SHA-256."""
    if isinstance(value, Mapping):
        return {name: _short(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        if len(value) > _LONG:
            digest = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
            return {"rows": len(value), "sha256": digest}
        return [_short(one) for one in value]
    return value
