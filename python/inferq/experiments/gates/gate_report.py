"""`GateReport`: the result of a gate, as a table, for logs and for pull requests."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from inferq._lazy import pl
from inferq.display.text import NONE, amount, counted, number, percent
from inferq.experiments.gates.baseline import Record
from inferq.experiments.gates.metric_verdict import Change, GateVerdict, MetricVerdict
from inferq.experiments.gates.terms import Terms
from inferq.results.metric import Metric

_CELL: dict[GateVerdict, str] = {
    "identical": "✓ identical",
    "better": "✓ better",
    "within": "✓ within",
    "undecided": "? undecided",
    "worse": "✗ worse",
    "new": "new",
}
"""Verdicts in cells of a table."""

_MOST_LINES = 20
"""Maximum lines of changes and of notes."""

_HEADER = ("metric", "baseline", "now", "change", "interval", "tolerance", "verdict")

_SENTENCE: dict[GateVerdict, str] = {
    "worse": "worse than tolerated",
    "undecided": "undecided",
    "better": "better",
    "within": "within tolerance",
    "identical": "identical",
    "new": "new",
}
"""Verdicts in sentences, the most severe first."""


@dataclass(frozen=True, slots=True)
class ScenarioVerdict:
    """The result of one scenario."""

    name: str
    terms: Terms
    record: Record | None = None
    """What was run, with the values of every seed. None if a run failed."""

    metrics: tuple[MetricVerdict, ...] = ()
    changes: tuple[str, ...] = ()
    """Changes of the description of the system, one line each."""

    notes: tuple[str, ...] = ()
    error: str = ""
    """The error of a failed run."""

    @property
    def passed(self) -> bool:
        """Whether no run failed and no metric regressed beyond its tolerance."""
        return not self.error and all(metric.verdict != "worse" for metric in self.metrics)

    @property
    def verdict(self) -> str:
        """The most severe verdict, as text."""
        if self.error:
            return "a run failed"
        verdicts = {metric.verdict for metric in self.metrics}
        return next(words for verdict, words in _SENTENCE.items() if verdict in verdicts)


@dataclass(frozen=True, slots=True, repr=False)
class GateReport:
    """The result of a gate; made by `inferq.gate`.

    `str` returns a summary and a line for each metric that is not identical.
    """

    scenarios: tuple[ScenarioVerdict, ...]
    baseline: Path
    """The baseline file."""

    accept: str
    """The command that accepts the results."""

    update: bool = False
    """Whether the baseline was to be written."""

    written: bool = False
    """Whether the file changed."""

    others: tuple[str, ...] = ()
    """Scenarios of the baseline that were not run."""

    @property
    def passed(self) -> bool:
        """Whether no metric regressed beyond its tolerance; with `update`, whether no run failed."""
        return all(scenario.passed or (self.update and not scenario.error) for scenario in self.scenarios)

    @property
    def frame(self) -> pl.DataFrame:
        """One row per metric and scenario.

        `scenario`, `metric`, `unit`, `better` (`lower` or `higher`), `seeds`, `baseline` and `now` (means
        over the seeds, in the unit), `change`, `change_low`, `change_high` (from the baseline to now, with
        confidence bounds), `relative` (whether these are shares of the baseline, else in the unit),
        `confidence`, `tolerance`, `verdict`, `note`. Unknown values are null.
        """
        schema = {
            **dict.fromkeys(("scenario", "metric", "unit", "better"), pl.String),
            "seeds": pl.Int64,
            **dict.fromkeys(("baseline", "now", "change", "change_low", "change_high"), pl.Float64),
            "relative": pl.Boolean,
            "confidence": pl.Float64,
            **dict.fromkeys(("tolerance", "verdict", "note"), pl.String),
        }
        return pl.DataFrame(list(self._rows()), schema=schema, orient="row")

    def _rows(self) -> Iterator[tuple[object, ...]]:
        for scenario in self.scenarios:
            for verdict in scenario.metrics:
                metric, change = verdict.metric, verdict.change
                moved: tuple[float | None, ...] = (None,) * 4
                if change is not None:
                    moved = (change.mean, change.low, change.high, change.is_relative)
                yield (
                    *(scenario.name, metric.name, metric.unit, metric.better, scenario.terms.seeds),
                    *(verdict.baseline, verdict.now, *moved, scenario.terms.confidence),
                    *(str(verdict.tolerance), verdict.verdict, verdict.note or None),
                )

    @property
    def headline(self) -> str:
        """One sentence."""
        verdicts = Counter(metric.verdict for scenario in self.scenarios for metric in scenario.metrics)
        failed = [scenario.name for scenario in self.scenarios if scenario.error]
        counts = [f"{verdicts[kind]} {words}" for kind, words in _SENTENCE.items() if verdicts[kind]]
        if failed:
            counts.append(f"a run failed in {', '.join(failed)}")
        metrics, scenarios = sum(verdicts.values()), len(self.scenarios)
        scope = f"{counted(metrics, 'metric')} of {counted(scenarios, 'scenario')}"
        state = ("updated" if self.update else "passed") if self.passed else "failed"
        if self.update and self.passed and not self.written:
            state = "unchanged"
        if len(counts) == 1 and not failed:
            words = counts[0].split(" ", 1)[1]
            return f"{state}: {scope} {'is' if metrics == 1 else 'are'} {words}"
        return f"{state}: {scope}: {', '.join(counts)}" if metrics else f"{state}: {', '.join(counts)}"

    def markdown(self) -> str:
        """The report in GitHub's Markdown: failures first, identical scenarios folded."""
        parts = [f"## {_mark(self.passed)} inferq gate {_escaped(self.headline)}"]
        for scenario in sorted(
            self.scenarios, key=lambda scenario: (scenario.passed, _is_identical(scenario))
        ):
            section = "\n\n".join(_section(scenario))
            if _is_identical(scenario) and not scenario.changes:
                title = f"✓ {html.escape(scenario.name)}: identical"  # Markdown does not apply here
                section = f"<details><summary>{title}</summary>\n\n{section}\n\n</details>"
            parts.append(section)
        if notes := list(self._notes()):
            parts.append("\n".join(f"- {_escaped(note)}" for note in notes))
        if not self.update and not all(_is_identical(scenario) for scenario in self.scenarios):
            parts.append(f"To accept these numbers as the new baseline:\n\n```sh\n{self.accept}\n```")
        return "\n\n".join(parts) + "\n"

    def __repr__(self) -> str:
        """The headline."""
        return f"GateReport({self.headline})"

    def __str__(self) -> str:
        """The headline, and a line for each metric that is not identical."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield self.headline
        for scenario in self.scenarios:
            if scenario.error:
                yield f"{scenario.name}: {scenario.error}"
            for verdict in scenario.metrics:
                if verdict.verdict not in ("identical", "new"):
                    note = f" ({verdict.note})" if verdict.note else ""
                    yield f"{scenario.name}: {verdict.metric.name} {_sentence(verdict, scenario)}{note}"
            yield from (f"{scenario.name}: {text}" for text in _some(scenario.changes))
            yield from (f"{scenario.name}: {text}" for text in _some(scenario.notes))
        yield from self._notes()

    def _notes(self) -> Iterator[str]:
        """Notes about the whole report."""
        if self.update:
            if self.passed:
                yield f"{'written to' if self.written else 'no changes to'} {self.baseline}"
            else:
                yield f"{self.baseline} is unchanged, because a run failed"
        elif self.passed and any(
            metric.verdict == "better" for scenario in self.scenarios for metric in scenario.metrics
        ):
            yield f"better than the baseline; accept it to detect later regressions: {self.accept}"
        if self.others:
            yield f"in the baseline but not run: {', '.join(self.others)}"


def refused(reason: str) -> str:
    """The Markdown report if nothing was compared."""
    return f"## ✗ inferq gate: nothing was compared\n\n{_escaped(reason)}\n"


def _mark(passed: bool) -> str:
    return "✓" if passed else "✗"


def _section(scenario: ScenarioVerdict) -> Iterator[str]:
    yield f"### {_mark(scenario.passed)} {_escaped(scenario.name)}: {_escaped(scenario.verdict)}"
    if scenario.error:
        yield _escaped(scenario.error)
        return
    terms = scenario.terms
    # Values stay on one line with their units.
    rows = [[cell.replace(" ", "\u00a0") for cell in _cells(verdict)] for verdict in scenario.metrics]
    yield "\n".join([_row(_HEADER), _row(["---", *["---:"] * 5, "---"]), *map(_row, rows)])
    basis = [f"Means over {counted(terms.seeds, 'seed')}"]
    if any(metric.change is not None for metric in scenario.metrics):
        basis.append(f"each bound of an interval holds with {percent(terms.confidence, 6)} confidence")
    if terms.slo is not None:
        basis.append(f"goodput: {', '.join(f'{name} ≤ {limit:g}' for name, limit in terms.slo.items())}")
    yield f"<sub>{_escaped('; '.join(basis))}.</sub>"
    if scenario.changes:
        listed = "\n".join(f"- `{change.replace('`', chr(39))}`" for change in _some(scenario.changes))
        yield f"Changes of the description of the system:\n\n{listed}"
    if scenario.notes:
        yield "\n".join(f"- {_escaped(note)}" for note in _some(scenario.notes))


def _cells(verdict: MetricVerdict) -> list[str]:
    metric, change = verdict.metric, verdict.change
    is_worse = verdict.verdict == "worse"
    words = f"**{_CELL[verdict.verdict]}**" if is_worse else _CELL[verdict.verdict]
    if verdict.note:
        words += f"<br><sub>{_escaped(verdict.note)}</sub>"
    sign = "−" if metric.better == "higher" else "+"
    is_rate = metric.unit not in ("s", "share")
    if change is None:
        moved, interval = "0 %" if verdict.verdict == "identical" else NONE, NONE
    else:
        arrow = "▲" if change.mean > 0 else "▼" if change.mean < 0 else ""
        moved = f"{arrow} {_scaled((change.mean,), change, metric)}".strip()
        interval = _scaled((change.low, change.high), change, metric)
    return [
        f"{metric.name}<br><sub>{f'{metric.unit}, ' if is_rate else ''}{metric.better} is better</sub>",
        *(number(value) if is_rate else _value(value, metric) for value in (verdict.baseline, verdict.now)),
        f"**{moved}**" if is_worse else moved,
        interval,
        f"{sign}{verdict.tolerance}",
        words,
    ]


def _sentence(verdict: MetricVerdict, scenario: ScenarioVerdict) -> str:
    """The verdict of a metric, in a line."""
    change, metric = verdict.change, verdict.metric
    values = f"{_value(verdict.baseline, metric)} → {_value(verdict.now, metric)}"
    if change is None:
        return f"{verdict.verdict}: {values}"
    interval = _scaled((change.low, change.high), change, metric)
    ends = "" if scenario.terms.seeds == 1 else f" ({interval})"
    moved = _scaled((change.mean,), change, metric)
    return f"{verdict.verdict}: {values}, {moved}{ends}; tolerance {verdict.tolerance}"


def _is_identical(scenario: ScenarioVerdict) -> bool:
    """Whether all metrics are identical to the baseline."""
    return not scenario.error and all(metric.verdict == "identical" for metric in scenario.metrics)


def _value(value: float | None, metric: Metric) -> str:
    """A value in its unit; a share as a plain number, as in a tolerance."""
    return number(value) if metric.unit == "share" else amount(value, metric.unit)


def _scaled(amounts: Sequence[float], change: Change, metric: Metric) -> str:
    """Signed changes with their common unit."""
    factor, unit = 1, "" if metric.unit == "share" else f" {metric.unit}"
    if change.is_relative:
        factor, unit = 100, " %"
    elif metric.unit == "s" and max(map(abs, amounts)) < 1:
        factor, unit = 1000, " ms"
    return " … ".join(number(value * factor, 3, sign=True) for value in amounts) + unit


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _some(texts: Sequence[str]) -> list[str]:
    """The first texts, and the number of further ones."""
    if len(texts) <= _MOST_LINES:
        return list(texts)
    return [*texts[:_MOST_LINES], f"… and {len(texts) - _MOST_LINES} more"]


def _escaped(text: str) -> str:
    """A text without Markdown or HTML."""
    plain = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
    return "".join(f"\\{letter}" if letter in "\\`*_|[]#~" else letter for letter in plain)
