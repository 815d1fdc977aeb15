"""How does the gate say what it found, in a log and in a pull request?"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence

from inferq.experiments.gates.gate_report import GateReport, ScenarioVerdict
from inferq.experiments.gates.judgement import Change, Judgement, Verdict
from inferq.results.metric import Metric

_SAID: dict[Verdict, str] = {
    "identical": "✓ identical",
    "better": "✓ better",
    "within": "✓ within",
    "undecided": "? undecided",
    "worse": "✗ worse",
    "new": "new",
}
_MOST_LINES = 20
"""Of changes in a description and of notes: what is beyond is counted."""

_NONE = "–"
_HEADER = ("metric", "baseline", "now", "change", "between", "tolerance", "verdict")


def lines(report: GateReport) -> Iterator[str]:
    """The report for a log: a sentence, and a line for each metric that is not identical."""
    yield report.headline
    for scenario in report.scenarios:
        if scenario.error:
            yield f"{scenario.name}: {scenario.error}"
        for one in scenario.judgements:
            if one.verdict not in ("identical", "new"):
                note = f" ({one.note})" if one.note else ""
                yield f"{scenario.name}: {one.metric.name} {_sentence(one, scenario)}{note}"
        yield from (f"{scenario.name}: {change}" for change in _some(scenario.changes))
        yield from (f"{scenario.name}: {note}" for note in _some(scenario.notes))
    yield from _notes(report)


def markdown(report: GateReport) -> str:
    """The report for a pull request: what has failed first, what is identical folded."""
    mark = "✓" if report.passed else "✗"
    parts = [f"## {mark} inferq gate {_escaped(report.headline)}"]
    for scenario in sorted(report.scenarios, key=lambda one: (one.passed, _is_settled(one))):
        section = "\n\n".join(_section(scenario))
        if _is_settled(scenario) and not scenario.changes:
            title = f"✓ {html.escape(scenario.name)}: identical"  # no Markdown is read in there
            section = f"<details><summary>{title}</summary>\n\n{section}\n\n</details>"
        parts.append(section)
    if notes := list(_notes(report)):
        parts.append("\n".join(f"- {_escaped(note)}" for note in notes))
    if not report.update and not all(_is_settled(scenario) for scenario in report.scenarios):
        parts.append(f"To accept these numbers as the new baseline:\n\n```sh\n{report.accept}\n```")
    return "\n\n".join(parts) + "\n"


def refused(reason: str) -> str:
    """What a pull request reads where nothing was compared."""
    return f"## ✗ inferq gate: nothing was compared\n\n{_escaped(reason)}\n"


def _section(scenario: ScenarioVerdict) -> Iterator[str]:
    mark = "✓" if scenario.passed else "✗"
    yield f"### {mark} {_escaped(scenario.name)}: {_escaped(scenario.verdict)}"
    if scenario.error:
        yield _escaped(scenario.error)
        return
    terms = scenario.terms
    # an amount stays on one line with its unit
    rows = [[cell.replace(" ", "\u00a0") for cell in _cells(one)] for one in scenario.judgements]
    yield "\n".join([_row(_HEADER), _row(["---", *["---:"] * 5, "---"]), *map(_row, rows)])
    told = [f"Means over {terms.seeds} seed{'' if terms.seeds == 1 else 's'}"]
    if any(one.change is not None for one in scenario.judgements):
        told.append(f"each end of an interval holds with {terms.confidence * 100:.4g} % confidence")
    if terms.slo is not None:
        told.append(f"good: {', '.join(f'{name} ≤ {limit:g}' for name, limit in terms.slo.items())}")
    yield f"<sub>{_escaped('; '.join(told))}.</sub>"
    if scenario.changes:
        listed = "\n".join(f"- `{change.replace('`', chr(39))}`" for change in _some(scenario.changes))
        yield f"What has changed in the description of the system:\n\n{listed}"
    if scenario.notes:
        yield "\n".join(f"- {_escaped(note)}" for note in _some(scenario.notes))


def _cells(one: Judgement) -> list[str]:
    metric, change = one.metric, one.change
    is_worse = one.verdict == "worse"
    verdict = f"**{_SAID[one.verdict]}**" if is_worse else _SAID[one.verdict]
    if one.note:
        verdict += f"<br><sub>{_escaped(one.note)}</sub>"
    sign = "−" if metric.better == "higher" else "+"
    unit = f"{metric.unit}, " if metric.unit != "s" else ""
    if change is None:
        moved, between = "0 %" if one.verdict == "identical" else _NONE, _NONE
    else:
        arrow = "▲" if change.mean > 0 else "▼" if change.mean < 0 else ""
        moved = f"{arrow} {_amount(change.mean, change, metric)}".strip()
        between = _ends(change, metric)
    return [
        f"{metric.name}<br><sub>{unit}{metric.better} is better</sub>",
        *(
            _value(value, metric).removesuffix(f" {metric.unit}") if unit else _value(value, metric)
            for value in (one.baseline, one.now)
        ),
        f"**{moved}**" if is_worse else moved,
        between,
        f"{sign}{one.tolerance}",
        verdict,
    ]


def _sentence(one: Judgement, scenario: ScenarioVerdict) -> str:
    """What became of a metric, in a line."""
    values = f"{_value(one.baseline, one.metric)} → {_value(one.now, one.metric)}"
    if one.change is None:
        return f"{one.verdict}: {values}"
    ends = "" if scenario.terms.seeds == 1 else f" ({_ends(one.change, one.metric)})"
    moved = _amount(one.change.mean, one.change, one.metric)
    return f"{one.verdict}: {values}, {moved}{ends}; tolerance {one.tolerance}"


def _notes(report: GateReport) -> Iterator[str]:
    """What is to be said of the whole."""
    if report.update:
        if report.passed:
            yield f"{'written to' if report.written else 'nothing to write to'} {report.baseline}"
        else:
            yield f"{report.baseline} is as it was: a baseline is of runs that came to their end"
    elif report.passed and any(
        one.verdict == "better" for scenario in report.scenarios for one in scenario.judgements
    ):
        yield f"better than the baseline: keep it, so that losing it again is noticed: {report.accept}"
    if report.others:
        yield f"in the baseline and not run: {', '.join(report.others)}"


def _is_settled(scenario: ScenarioVerdict) -> bool:
    """Whether the baseline says already what was found."""
    return not scenario.error and all(one.verdict == "identical" for one in scenario.judgements)


def _ends(change: Change, metric: Metric) -> str:
    return _scaled((change.low, change.high), change, metric)


def _amount(amount: float, change: Change, metric: Metric) -> str:
    return _scaled((amount,), change, metric)


def _scaled(amounts: Sequence[float], change: Change, metric: Metric) -> str:
    """Changes with their signs, and the unit that they have in common."""
    factor, unit = 1, "" if metric.unit == "share" else f" {metric.unit}"
    if change.is_relative:
        factor, unit = 100, " %"
    elif metric.unit == "s" and max(map(abs, amounts)) < 1:
        factor, unit = 1000, " ms"
    return " … ".join(_signed(amount * factor) for amount in amounts) + unit


def _signed(number: float) -> str:
    """Three digits, the minus as long as the plus."""
    return f"{number:+.3g}".replace("-", "−") if number else "0"


def _value(value: float | None, metric: Metric) -> str:
    if value is None:
        return _NONE
    if metric.unit == "s":
        return f"{value * 1000:.4g} ms" if value < 1 else f"{value:.4g} s"
    return f"{value:.4g}" if metric.unit == "share" else f"{value:,.4g} {metric.unit}"


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
