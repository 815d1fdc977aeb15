"""The page about several runs side by side: what differs in what ran, in the numbers, and in the pictures."""

from __future__ import annotations

from collections.abc import Mapping

from inferq.display.document import Chapter, Document, Grid, Note, cut, fitted
from inferq.display.style import styled
from inferq.display.text import amount, counted, listed, percent, sentence
from inferq.errors import ConfigError
from inferq.reports import identity, run_charts, verdicts
from inferq.results.metric import COSTS, LATENCIES, Metric
from inferq.results.result import Result
from inferq.results.slo import Slo
from inferq.systems.prices import Prices

MOST = 6
"""Runs on one page: more lines cannot be told apart."""
_SHOWN = (
    *("ttft_p50", "ttft_p99", "itl_p99", "tpot_p50", "e2e_p50", "e2e_p99", "queue_p99"),
    *("request_throughput", "output_throughput", "failed_share", "hit_rate"),
)
_ONE_RUN_EACH = (
    "One run each: a difference may be chance. inferq compare repeats scenarios with several seeds and says "
    "which differences are real."
)


def document(
    results: Mapping[str, Result], title: str | None, slo: Slo | None, prices: Prices | None = None
) -> Document:
    """The page: what differs, the numbers side by side with the change from the first, the same pictures."""
    names = list(results)
    told = {name: dict(identity.of_run(one)) for name, one in results.items()}
    judged = {name: verdicts.of_run(one, slo) for name, one in results.items()}
    notes = verdicts.questions(slo)
    notes += [
        Note(kind=note.kind, text=f"{name}: {note.text}")
        for name, one in judged.items()
        for note in one.notes
    ]
    notes += [
        Note(kind=finding.severity, text=f"{name}: {sentence(finding)}")
        for name, one in results.items()
        for finding in one.findings
    ]
    limits = verdicts.limits_of(slo)
    chapters = [
        Chapter(title="What ran", grids=(_ran(told),)),
        Chapter(
            title="Latency",
            grids=(_numbers(results, prices),),
            pictures=fitted(
                "Latency by share of requests",
                "How long the given share of what was measured took at most, of each run.",
                lambda width: styled(run_charts.latency(results, width, limits), names),
            ),
        ),
        Chapter(
            title="Queue and memory",
            pictures=fitted(
                "Requests that wait",
                "For their admission, over time.",
                lambda width: styled(run_charts.waiting(results, width), names),
            ),
        ),
        Chapter(
            title="Gaps between tokens",
            pictures=fitted(
                "Gaps between tokens",
                "Shares on a scale of logarithms, the same for every run.",
                lambda width: styled(run_charts.gaps(results, width, limits), names),
            ),
        ),
        Chapter(
            title="Repeat it",
            text="Each scenario repeats its run, bit for bit.",
            folded=tuple((f"The scenario of {name}", cut(one.scenario)) for name, one in results.items()),
        ),
    ]
    return Document(
        title=title if title is not None else f"{listed(names)}: {counted(len(names), 'run')} side by side",
        setting="",
        notes=(*notes, Note(kind="warning", text=_ONE_RUN_EACH)),
        chapters=tuple(one for one in chapters if one.grids or one.pictures or one.folded),
    )


def named(results: object) -> dict[str, Result]:
    """Runs by name, from a mapping or a list of them.

    Raises:
        ConfigError: there are none, too many, something else among them, or a name that is no text.
    """
    if isinstance(results, Mapping):
        runs = dict(results)
    else:
        several = list(results)  # type: ignore[call-overload]
        runs = {f"run {place}": one for place, one in enumerate(several, start=1)}
    if not 1 < len(runs) <= MOST:
        raise ConfigError("report", f"shows 2 to {MOST} runs side by side, not {len(runs)}")
    for name, one in runs.items():
        if not isinstance(name, str) or not name.strip():
            raise ConfigError("report", f"the name {name!r} of a run must be a text")
        if not isinstance(one, Result):
            raise ConfigError("report", f"{name} is no run but a {type(one).__name__}")
    return runs


def _ran(told: Mapping[str, Mapping[str, str]]) -> Grid:
    """What ran, a column for each run; what is the same in all is said once."""
    every = list(dict.fromkeys(name for lines in told.values() for name in lines))
    lines = []
    for name in every:
        cells = [lines.get(name, "–") for lines in told.values()]
        lines.append(
            [name, *(cells if len(set(cells)) > 1 else [cells[0], *["the same"] * (len(cells) - 1)])]
        )
    return Grid(title="", header=("", *told), lines=lines, texts=1 + len(told), wraps=True)


def _numbers(results: Mapping[str, Result], prices: Prices | None) -> Grid:
    """The numbers of every run, and how far those of the others are from the first."""
    rows = {name: one.summary(prices=prices).row(0, named=True) for name, one in results.items()}
    first, *others = results
    lines = []
    for metric in map(Metric.of, _SHOWN if prices is None else (*_SHOWN, *COSTS)):
        values = {name: metric.of_row(row) for name, row in rows.items()}
        if all(one is None for one in values.values()):
            continue
        unit = prices.currency if prices is not None and metric.unit == "money" else metric.unit
        cells = [amount(one, unit) for one in values.values()]
        lines.append([_called(metric), *cells, *(_change(values[first], values[one]) for one in others)])
    changes = ["change"] if len(others) == 1 else [f"change of {one}" for one in others]
    return Grid(title="", header=("", *results, *changes), lines=lines)


def _called(metric: Metric) -> str:
    """A metric as the page calls it: `TTFT p99`."""
    if metric.name in LATENCIES:
        quantity = metric.quantity if metric.quantity == "queue" else metric.quantity.upper()
        return f"{quantity} {metric.statistic}"
    return metric.name.replace("_", " ")


def _change(first: float | None, value: float | None) -> str:
    if first is None or value is None:
        return "–"
    if first == value:
        return "the same"
    return percent(value / first - 1, sign=True) if first else "–"
