"""How does a test suite ask whether a scheduler became worse than it may? By the fixture `inferq_gate`.

pytest loads this module wherever inferq is installed, so that it imports nothing that takes time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:  # every run of pytest in this environment loads this file
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
    """The options, each with `inferq` in its name."""
    group = parser.getgroup("inferq", "inferq: gates on simulated serving")
    group.addoption(
        "--inferq-update", action="store_true", help="write the baseline of inferq_gate instead of obeying it"
    )
    group.addoption(
        "--inferq-baseline", metavar="FILE", help="the baseline, instead of that of the configuration"
    )
    group.addoption(
        "--inferq-summary",
        metavar="FILE",
        help="write what inferq_gate found as Markdown, for a pull request",
    )
    parser.addini("inferq_baseline", f"the baseline of inferq_gate, from the root directory ({_BASELINE})")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse what several processes cannot do: write one file."""
    config.stash[_reports_key] = []
    config.stash[_tests_key] = {}
    if config.getoption("dist", "no") != "no":
        for option in ("--inferq-update", "--inferq-summary"):
            if config.getoption(option):
                raise pytest.UsageError(f"{option}: several processes cannot write one file; run without -n")


class Gate:
    """What the fixture `inferq_gate` returns: call it with a name, a workload and a system."""

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
        """Run a scenario with several seeds; the test fails where a metric is worse than it may become.

        Args:
            name: of the scenario in the baseline; each stands for one scenario.
            workload: a `Workload`, or what it takes.
            system: what serves it, here with the scheduler under test; or a function that makes one, where
                an object cannot be copied. Each run has one of its own.
            tolerance: by metric how much worse it may become, `{"request_goodput": "1%", "ttft_p99": "5ms"}`;
                None takes 1 % of `request_goodput`, and 5 % of `ttft_p99` and of `itl_p99`.
            seeds: how many runs.
            confidence: with which each end of an interval holds.
            slo: objectives for the goodput, `{"ttft_s": …, "itl_s": …}`; None takes the workload's columns.
            prices: of GPUs and tokens, where the tolerance names money or energy.
            seed: of the first run; those after it count on.
            threads: how many runs at once; None takes every core, and one for policies written in Python.
            **run: the other keyword arguments of `simulate`.

        Returns:
            What was found.

        Raises:
            ConfigError: an argument is wrong; it names it.
        """
        __tracebackhide__ = True
        from inferq.errors import ConfigError
        from inferq.experiments.arguments import check_options
        from inferq.experiments.gates.gate import Trial, accepted, checked, maker
        from inferq.experiments.gates.terms import Terms
        from inferq.workload.workload import Workload

        self._take(name)
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

    def _take(self, name: str) -> None:
        """Refuse a name that stands for another scenario already."""
        __tracebackhide__ = True
        if not isinstance(name, str) or not name.strip():
            pytest.fail(f"name: must be a text, is {name!r}")
        other = self._config.stash[_tests_key].setdefault(name, self._test)
        if name in self._names or other != self._test:
            pytest.fail(f"name: {name!r} stands for the scenario of {other} already")
        self._names.add(name)

    def _baseline(self) -> Path:
        """The file: of the command line from where it was typed, of the configuration from the root."""
        given: str | None = self._config.getoption("--inferq-baseline")
        if given:
            return self._config.invocation_params.dir / given
        configured: str = self._config.getini("inferq_baseline")
        return self._config.rootpath / (configured or _BASELINE)


@pytest.fixture
def inferq_gate(request: pytest.FixtureRequest) -> Gate:
    """Hold a scenario against the baseline: `inferq_gate(name, workload, system, tolerance=…)`."""
    return Gate(request.config, request.node.nodeid)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say what was found, also where no test has failed, and write the Markdown."""
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
