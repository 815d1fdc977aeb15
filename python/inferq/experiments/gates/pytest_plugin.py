"""The pytest fixture `inferq_gate`, which fails a test if a scheduler regressed.

pytest loads this module whenever inferq is installed, so it imports nothing slow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:  # loaded by every run of pytest in this environment
    from inferq.experiments.gates.gate_report import GateReport
    from inferq.systems.prices import Prices
    from inferq.systems.system import System
    from inferq.workload.columns import Table
    from inferq.workload.workload import Workload

_BASELINE = "inferq-baseline.json"
_ACCEPT = "pytest --inferq-update"

_reports_key = pytest.StashKey[list[Any]]()
_tests_key = pytest.StashKey[dict[str, str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the command-line options."""
    group = parser.getgroup("inferq", "inferq: gates on simulated serving")
    group.addoption(
        "--inferq-update", action="store_true", help="write the baseline of inferq_gate instead of comparing"
    )
    group.addoption(
        "--inferq-baseline", metavar="FILE", help="baseline of inferq_gate, instead of the configured one"
    )
    group.addoption(
        "--inferq-summary",
        metavar="FILE",
        help="write the report of inferq_gate as Markdown, for a pull request",
    )
    parser.addini("inferq_baseline", f"baseline of inferq_gate, relative to the root directory ({_BASELINE})")


def pytest_configure(config: pytest.Config) -> None:
    """Reject options that write a file from several processes."""
    config.stash[_reports_key] = []
    config.stash[_tests_key] = {}
    if config.getoption("dist", "no") != "no":
        for option in ("--inferq-update", "--inferq-summary"):
            if config.getoption(option):
                raise pytest.UsageError(f"{option} is not supported with several processes; run without -n")


class Gate:
    """The fixture `inferq_gate`: call it with a name, a workload and a system."""

    def __init__(self, config: pytest.Config, test: str) -> None:
        self._config = config
        self._test = test
        self._names: set[str] = set()

    def __call__(
        self,
        name: str,
        workload: Workload | Table,
        system: System | Callable[[], System],
        *,
        tolerance: Mapping[str, str] | None = None,
        seeds: int = 10,
        confidence: float = 0.95,
        slo: Mapping[str, float] | None = None,
        prices: Prices | None = None,
        seed: int = 0,
        threads: int | None = None,
        **run: Any,
    ) -> GateReport:
        """Run a scenario with several seeds; the test fails if a metric regressed beyond its tolerance.

        Args:
            name: unique name of the scenario in the baseline.
            workload: a `Workload`, or anything that `Workload` accepts.
            system: the system under test, or a function that makes one if it cannot be copied. Each run uses
                a fresh one.
            tolerance: largest accepted regression by metric, `{"request_goodput": "1%", "ttft_p99": "5ms"}`.
                Default: 1 % of `request_goodput`, 5 % of `ttft_p99` and of `itl_p99`.
            seeds: number of runs.
            confidence: confidence level of each bound.
            slo: objectives for goodput, `{"ttft_s": …, "itl_s": …}`. Default: columns of the workload.
            prices: prices of GPUs and tokens, for metrics of cost or energy.
            seed: first seed.
            threads: concurrent runs. Default: all cores; one for policies written in Python.
            **run: further arguments of `simulate`.

        Returns:
            The report.

        Raises:
            ConfigError: an argument is wrong.
        """
        __tracebackhide__ = True
        from inferq.errors import ConfigError
        from inferq.experiments.arguments import check_options
        from inferq.experiments.gates.gate import Trial, accepted, checked, maker
        from inferq.experiments.gates.terms import Terms
        from inferq.workload.workload import Workload

        self._register(name)
        terms = Terms(tolerance=tolerance, seeds=seeds, confidence=confidence, slo=slo, prices=prices)
        requests = workload if isinstance(workload, Workload) else Workload(workload)
        options = check_options({**run, "seed": seed}, but=("seed",))
        trial = Trial(name, requests, maker(system), options, terms)
        update = bool(self._config.getoption("--inferq-update"))
        try:
            report = checked([trial], self._baseline(), update=update, threads=threads, accept=_ACCEPT)
            if update:
                report = accepted(report)
        except ConfigError as error:
            pytest.fail(str(error))
        except OSError as error:
            pytest.fail(f"inferq_gate: {error.filename}: {error.strerror}", pytrace=False)
        self._config.stash[_reports_key].append(report)
        if not report.passed:
            pytest.fail(str(report))
        return report

    def _register(self, name: str) -> None:
        """Check that a name is unique."""
        __tracebackhide__ = True
        if not isinstance(name, str) or not name.strip():
            pytest.fail(f"name: must be a non-empty text, got {name!r}")
        other = self._config.stash[_tests_key].setdefault(name, self._test)
        if name in self._names or other != self._test:
            pytest.fail(f"name: {name!r} is already used by {other}")
        self._names.add(name)

    def _baseline(self) -> Path:
        """The baseline: relative to the working directory (command line) or the root (configuration)."""
        given: str | None = self._config.getoption("--inferq-baseline")
        if given:
            return self._config.invocation_params.dir / given
        configured: str = self._config.getini("inferq_baseline")
        return self._config.rootpath / (configured or _BASELINE)


@pytest.fixture
def inferq_gate(request: pytest.FixtureRequest) -> Gate:
    """Compare a scenario with the baseline: `inferq_gate(name, workload, system, tolerance=…)`."""
    return Gate(request.config, request.node.nodeid)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the report, and write it as Markdown."""
    reports = config.stash[_reports_key]
    if not reports:
        return
    scenarios = tuple(verdict for report in reports for verdict in report.scenarios)
    written = any(report.written for report in reports)
    report = replace(reports[0], scenarios=scenarios, written=written, others=())
    terminalreporter.section("inferq gate")
    terminalreporter.write_line(str(report))
    if summary := config.getoption("--inferq-summary"):
        from inferq.files import write_text

        path = config.invocation_params.dir / summary
        try:
            write_text(path, report.markdown())
        except OSError as error:
            raise pytest.UsageError(f"--inferq-summary: {path}: {error.strerror}") from None
