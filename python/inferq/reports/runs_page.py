"""The page of several runs side by side: setup, metrics and charts."""

from __future__ import annotations

from collections.abc import Mapping

from inferq.display.document import Chapter, Document, Grid, Note, cut, fitted
from inferq.display.style import styled
from inferq.display.text import amount, counted, listed, percent, sentence
from inferq.errors import ConfigError
from inferq.reports import identity, run_charts, verdicts
from inferq.results.metric import COSTS, Metric
from inferq.results.result import Result
from inferq.results.slo import Slo
from inferq.systems.prices import Prices

MOST = 6
"""Runs on one page; more lines are not distinguishable."""
_LEAD, _OTHERS = ("ttft", "itl"), ("tpot", "e2e", "queue")
"""Latencies in the chart at the top, and in that of the chapter."""
_SHOWN = (
    *("ttft_p50", "ttft_p99", "itl_p99", "tpot_p50", "e2e_p50", "e2e_p99", "queue_p99"),
    *("request_throughput", "output_throughput", "failed_share", "hit_rate"),
)
_ONE_RUN_EACH = (
    "Each system has one run, so differences may be due to chance. inferq compare runs several seeds and "
    "reports which differences are significant."
)


def document(
    results: Mapping[str, Result], title: str | None, slo: Slo | None, prices: Prices | None = None
) -> Document:
    """The page: metrics side by side with changes from the first run, charts, and setup."""
    names = list(results)
    setups = {name: dict(identity.of_run(result)) for name, result in results.items()}
    notes = verdicts.questions(slo)
    for name, result in results.items():
        verdict = verdicts.of_run(result, slo, identity.varying_load(result)).verdict
        if verdict is not None:
            notes.append(Note(kind=verdict.kind, text=f"{name}: {verdict.text}"))
    notes += [
        Note(kind=finding.severity, text=f"{name}: {sentence(finding)}")
        for name, result in results.items()
        for finding in result.findings
    ]
    limits = verdicts.limits_of(slo)
    chapters = [
        Chapter(title="Metrics", grids=(_numbers(results, prices),)),
        Chapter(
            title="Latency",
            charts=fitted(
                "Latency by percentile",
                "The scale gives P90, P99 and P99.9 equal room.",
                lambda width: styled(run_charts.latency(results, width, limits, _OTHERS), names),
            ),
        ),
        Chapter(
            title="Queue and memory",
            charts=fitted(
                "Waiting requests",
                "Mean over the replicas.",
                lambda width: styled(run_charts.waiting(results, width), names),
            ),
        ),
        Chapter(
            title="Inter-token latency",
            charts=fitted(
                "Distribution of ITL",
                "Both scales are logarithmic and the same for every run.",
                lambda width: styled(run_charts.gaps(results, width, limits), names),
            ),
        ),
        Chapter(title="Setup", grids=(_setup(setups),)),
        Chapter(
            title="Reproduce",
            text="Each scenario repeats its run, bit for bit.",
            folded=tuple((f"Scenario of {name}", cut(result.scenario)) for name, result in results.items()),
        ),
    ]
    return Document(
        title=title if title is not None else f"{listed(names)}: {counted(len(names), 'run')} side by side",
        lead=fitted(
            "TTFT and ITL by percentile",
            "TTFT over requests, ITL over all gaps between tokens.",
            lambda width: styled(run_charts.latency(results, width, limits, _LEAD), names),
        ),
        notes=(*notes, Note(kind="warning", text=_ONE_RUN_EACH)),
        chapters=tuple(chapter for chapter in chapters if chapter.grids or chapter.charts or chapter.folded),
    )


def named(results: object) -> dict[str, Result]:
    """Runs by name, from a mapping or a list of runs.

    Raises:
        ConfigError: too few or too many runs, another type, or a name that is not text.
    """
    if isinstance(results, Mapping):
        runs = dict(results)
    else:
        several = list(results)  # type: ignore[call-overload]
        runs = {f"run {number}": run for number, run in enumerate(several, start=1)}
    if not 1 < len(runs) <= MOST:
        raise ConfigError("report", f"accepts 2 to {MOST} runs side by side, got {len(runs)}")
    for name, run in runs.items():
        if not isinstance(name, str) or not name.strip():
            raise ConfigError("report", f"names of runs must be non-empty text, got {name!r}")
        if not isinstance(run, Result):
            raise ConfigError("report", f"{name} must be a Result, got {type(run).__name__}")
    return runs


def _setup(setups: Mapping[str, Mapping[str, str]]) -> Grid:
    """The setup of each run in a column; equal cells are not repeated."""
    lines = []
    for name in dict.fromkeys(name for setup in setups.values() for name in setup):
        cells = [setup.get(name, "–") for setup in setups.values()]
        lines.append([name, *(cells if len(set(cells)) > 1 else [cells[0], *["same"] * (len(cells) - 1)])])
    return Grid(title="", header=("", *setups), lines=lines, texts=1 + len(setups), wraps=True)


def _numbers(results: Mapping[str, Result], prices: Prices | None) -> Grid:
    """The metrics of every run, and the changes from the first."""
    rows = {name: result.summary(prices=prices).row(0, named=True) for name, result in results.items()}
    first, *others = results
    lines = []
    for metric in map(Metric.of, _SHOWN if prices is None else (*_SHOWN, *COSTS)):
        values = {name: metric.of_row(row) for name, row in rows.items()}
        if all(value is None for value in values.values()):
            continue
        unit = prices.currency if prices is not None and metric.unit == "money" else metric.unit
        cells = [amount(value, unit) for value in values.values()]
        lines.append([metric.label, *cells, *(_change(values[first], values[name]) for name in others)])
    changes = ["change"] if len(others) == 1 else [f"change of {name}" for name in others]
    return Grid(title="", header=("", *results, *changes), lines=lines)


def _change(first: float | None, value: float | None) -> str:
    if first is None or value is None:
        return "–"
    if first == value:
        return "same"
    return percent(value / first - 1, sign=True) if first else "–"
