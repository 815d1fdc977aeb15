"""What did the gate find, and may the change pass? `GateReport`, in a table, a log and a pull request."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from inferq._lazy import pl
from inferq.display.text import NONE, amount, counted, number, percent
from inferq.experiments.gates.baseline import Record
from inferq.experiments.gates.judgement import Change, GateVerdict, Judgement
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
"""What each verdict is called in a cell of a table."""

_MOST_LINES = 20
"""Of changes in a description and of notes: what is beyond is counted."""

_HEADER = ("metric", "baseline", "now", "change", "between", "tolerance", "verdict")

_SENTENCE: dict[GateVerdict, str] = {
    "worse": "worse than tolerated",
    "undecided": "undecided",
    "better": "better",
    "within": "within tolerance",
    "identical": "identical",
    "new": "new",
}
"""What each verdict is called in a sentence, the gravest first."""


@dataclass(frozen=True, slots=True)
class ScenarioVerdict:
    """What the gate found of one scenario."""

    name: str
    terms: Terms
    record: Record | None = None
    """What was run, and every seed's values; None where a run has failed."""

    judgements: tuple[Judgement, ...] = ()
    changes: tuple[str, ...] = ()
    """What differs in the description of the system, a line each."""

    notes: tuple[str, ...] = ()
    error: str = ""
    """Why a run has failed."""

    @property
    def passed(self) -> bool:
        """Whether every run came to its end and no metric is worse than it may be."""
        return not self.error and all(one.verdict != "worse" for one in self.judgements)

    @property
    def verdict(self) -> str:
        """The gravest verdict of its metrics, in words."""
        if self.error:
            return "a run has failed"
        verdicts = {one.verdict for one in self.judgements}
        return next(words for verdict, words in _SENTENCE.items() if verdict in verdicts)


@dataclass(frozen=True, slots=True, repr=False)
class GateReport:
    """What the gate found; made by `inferq.gate`.

    `str` of it is a sentence and a line for each metric that is not identical.
    """

    scenarios: tuple[ScenarioVerdict, ...]
    baseline: Path
    """The file that was held against."""

    accept: str
    """The command that accepts what was found."""

    update: bool = False
    """Whether the baseline was to be written instead of obeyed."""

    written: bool = False
    """Whether the file has changed."""

    others: tuple[str, ...] = ()
    """Scenarios of the baseline that were not run."""

    @property
    def passed(self) -> bool:
        """Whether no metric is worse than it may be; with `update`, whether every run came to its end."""
        return all(one.passed or (self.update and not one.error) for one in self.scenarios)

    @property
    def frame(self) -> pl.DataFrame:
        """One row for each metric of each scenario.

        `scenario`, `metric`, `unit`, `better` (`lower` or `higher`), `seeds`, `baseline` and `now` (means
        over the seeds, in the unit), `change`, `change_low`, `change_high` (from the baseline to now; each
        end with the confidence), `relative` (whether these are shares of the baseline, else in the unit),
        `confidence`, `tolerance`, `verdict`, `note`. What is not known is null.
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
            for one in scenario.judgements:
                metric, change = one.metric, one.change
                moved: tuple[float | None, ...] = (None,) * 4
                if change is not None:
                    moved = (change.mean, change.low, change.high, change.is_relative)
                yield (
                    *(scenario.name, metric.name, metric.unit, metric.better, scenario.terms.seeds),
                    *(one.baseline, one.now, *moved, scenario.terms.confidence),
                    *(str(one.tolerance), one.verdict, one.note or None),
                )

    @property
    def headline(self) -> str:
        """What was found, in a sentence."""
        verdicts = Counter(one.verdict for scenario in self.scenarios for one in scenario.judgements)
        failed = [scenario.name for scenario in self.scenarios if scenario.error]
        counts = [f"{verdicts[one]} {words}" for one, words in _SENTENCE.items() if verdicts[one]]
        if failed:
            counts.append(f"a run has failed in {', '.join(failed)}")
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
        """The report for a pull request in GitHub's Markdown: what has failed first, the identical folded."""
        parts = [f"## {_mark(self.passed)} inferq gate {_escaped(self.headline)}"]
        for scenario in sorted(self.scenarios, key=lambda one: (one.passed, _is_settled(one))):
            section = "\n\n".join(_section(scenario))
            if _is_settled(scenario) and not scenario.changes:
                title = f"✓ {html.escape(scenario.name)}: identical"  # no Markdown is read in there
                section = f"<details><summary>{title}</summary>\n\n{section}\n\n</details>"
            parts.append(section)
        if notes := list(self._notes()):
            parts.append("\n".join(f"- {_escaped(note)}" for note in notes))
        if not self.update and not all(_is_settled(scenario) for scenario in self.scenarios):
            parts.append(f"To accept these numbers as the new baseline:\n\n```sh\n{self.accept}\n```")
        return "\n\n".join(parts) + "\n"

    def __repr__(self) -> str:
        """What was found, in a sentence."""
        return f"GateReport({self.headline})"

    def __str__(self) -> str:
        """A sentence, and a line for each metric that is not identical."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield self.headline
        for scenario in self.scenarios:
            if scenario.error:
                yield f"{scenario.name}: {scenario.error}"
            for one in scenario.judgements:
                if one.verdict not in ("identical", "new"):
                    note = f" ({one.note})" if one.note else ""
                    yield f"{scenario.name}: {one.metric.name} {_sentence(one, scenario)}{note}"
            yield from (f"{scenario.name}: {text}" for text in _some(scenario.changes))
            yield from (f"{scenario.name}: {text}" for text in _some(scenario.notes))
        yield from self._notes()

    def _notes(self) -> Iterator[str]:
        """What is to be said of the whole."""
        if self.update:
            if self.passed:
                yield f"{'written to' if self.written else 'nothing to write to'} {self.baseline}"
            else:
                yield f"{self.baseline} is as it was: a baseline is of runs that came to their end"
        elif self.passed and any(
            one.verdict == "better" for scenario in self.scenarios for one in scenario.judgements
        ):
            yield f"better than the baseline: keep it, so that losing it again is noticed: {self.accept}"
        if self.others:
            yield f"in the baseline and not run: {', '.join(self.others)}"


def refused(reason: str) -> str:
    """What a pull request reads where nothing was compared."""
    return f"## ✗ inferq gate: nothing was compared\n\n{_escaped(reason)}\n"


def _mark(passed: bool) -> str:
    return "✓" if passed else "✗"


def _section(scenario: ScenarioVerdict) -> Iterator[str]:
    yield f"### {_mark(scenario.passed)} {_escaped(scenario.name)}: {_escaped(scenario.verdict)}"
    if scenario.error:
        yield _escaped(scenario.error)
        return
    terms = scenario.terms
    # an amount stays on one line with its unit
    rows = [[cell.replace(" ", "\u00a0") for cell in _cells(one)] for one in scenario.judgements]
    yield "\n".join([_row(_HEADER), _row(["---", *["---:"] * 5, "---"]), *map(_row, rows)])
    basis = [f"Means over {counted(terms.seeds, 'seed')}"]
    if any(one.change is not None for one in scenario.judgements):
        basis.append(f"each end of an interval holds with {percent(terms.confidence, 6)} confidence")
    if terms.slo is not None:
        basis.append(f"good: {', '.join(f'{name} ≤ {limit:g}' for name, limit in terms.slo.items())}")
    yield f"<sub>{_escaped('; '.join(basis))}.</sub>"
    if scenario.changes:
        listed = "\n".join(f"- `{change.replace('`', chr(39))}`" for change in _some(scenario.changes))
        yield f"What has changed in the description of the system:\n\n{listed}"
    if scenario.notes:
        yield "\n".join(f"- {_escaped(note)}" for note in _some(scenario.notes))


def _cells(one: Judgement) -> list[str]:
    metric, change = one.metric, one.change
    is_worse = one.verdict == "worse"
    verdict = f"**{_CELL[one.verdict]}**" if is_worse else _CELL[one.verdict]
    if one.note:
        verdict += f"<br><sub>{_escaped(one.note)}</sub>"
    sign = "−" if metric.better == "higher" else "+"
    is_rate = metric.unit not in ("s", "share")
    if change is None:
        moved, between = "0 %" if one.verdict == "identical" else NONE, NONE
    else:
        arrow = "▲" if change.mean > 0 else "▼" if change.mean < 0 else ""
        moved = f"{arrow} {_scaled((change.mean,), change, metric)}".strip()
        between = _scaled((change.low, change.high), change, metric)
    return [
        f"{metric.name}<br><sub>{f'{metric.unit}, ' if is_rate else ''}{metric.better} is better</sub>",
        *(number(value) if is_rate else _value(value, metric) for value in (one.baseline, one.now)),
        f"**{moved}**" if is_worse else moved,
        between,
        f"{sign}{one.tolerance}",
        verdict,
    ]


def _sentence(one: Judgement, scenario: ScenarioVerdict) -> str:
    """What became of a metric, in a line."""
    change = one.change
    values = f"{_value(one.baseline, one.metric)} → {_value(one.now, one.metric)}"
    if change is None:
        return f"{one.verdict}: {values}"
    between = _scaled((change.low, change.high), change, one.metric)
    ends = "" if scenario.terms.seeds == 1 else f" ({between})"
    moved = _scaled((change.mean,), change, one.metric)
    return f"{one.verdict}: {values}, {moved}{ends}; tolerance {one.tolerance}"


def _is_settled(scenario: ScenarioVerdict) -> bool:
    """Whether the baseline says already what was found."""
    return not scenario.error and all(one.verdict == "identical" for one in scenario.judgements)


def _value(value: float | None, metric: Metric) -> str:
    """A value in its unit; a share as a plain number, as in a tolerance."""
    return number(value) if metric.unit == "share" else amount(value, metric.unit)


def _scaled(amounts: Sequence[float], change: Change, metric: Metric) -> str:
    """Changes with their signs, and the unit that they have in common."""
    factor, unit = 1, "" if metric.unit == "share" else f" {metric.unit}"
    if change.is_relative:
        factor, unit = 100, " %"
    elif metric.unit == "s" and max(map(abs, amounts)) < 1:
        factor, unit = 1000, " ms"
    return " … ".join(number(one * factor, 3, sign=True) for one in amounts) + unit


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _some(texts: Sequence[str]) -> list[str]:
    """The first of them, and how many more there are."""
    if len(texts) <= _MOST_LINES:
        return list(texts)
    return [*texts[:_MOST_LINES], f"… and {len(texts) - _MOST_LINES} more"]


def _escaped(text: str) -> str:
    """A text in which nothing is taken for Markdown or HTML."""
    plain = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
    return "".join(f"\\{letter}" if letter in "\\`*_|[]#~" else letter for letter in plain)
