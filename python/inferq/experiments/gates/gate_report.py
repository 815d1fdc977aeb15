"""What did the gate find, and may the change pass?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from inferq._lazy import pl
from inferq.experiments.gates.baseline import Record
from inferq.experiments.gates.judgement import Judgement, Verdict
from inferq.experiments.gates.tolerance import Terms

_SAID: dict[Verdict, str] = {
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
        return next(_SAID[one] for one in _SAID if any(told.verdict == one for told in self.judgements))


@dataclass(frozen=True, slots=True, repr=False)
class GateReport:
    """What the gate found; made by `inferq.gate`.

    `str` of it is a sentence and a line for each metric that is not identical.
    """

    scenarios: tuple[ScenarioVerdict, ...]
    baseline: Path
    """The file that was held against."""

    accept: str
    """What a person types to accept what was found."""

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
        number = pl.Float64
        schema = {
            **dict.fromkeys(("scenario", "metric", "unit", "better"), pl.String),
            "seeds": pl.Int64,
            **dict.fromkeys(("baseline", "now", "change", "change_low", "change_high"), number),
            "relative": pl.Boolean,
            "confidence": number,
            **dict.fromkeys(("tolerance", "verdict", "note"), pl.String),
        }
        return pl.DataFrame(list(self._rows()), schema=schema, orient="row")

    def _rows(self) -> Iterator[tuple[object, ...]]:
        for scenario in self.scenarios:
            for one in scenario.judgements:
                metric, change = one.metric, one.change
                told = (None,) * 4
                if change is not None:
                    told = (change.mean, change.low, change.high, change.is_relative)  # type: ignore[assignment]
                yield (
                    *(scenario.name, metric.name, metric.unit, metric.better, scenario.terms.seeds),
                    *(one.baseline, one.now, *told, scenario.terms.confidence),
                    *(str(one.tolerance), one.verdict, one.note or None),
                )

    @property
    def headline(self) -> str:
        """What was found, in a sentence."""
        found = Counter(one.verdict for scenario in self.scenarios for one in scenario.judgements)
        failed = [scenario.name for scenario in self.scenarios if scenario.error]
        counts = [f"{found[one]} {said}" for one, said in _SAID.items() if found[one]]
        if failed:
            counts.append(f"a run has failed in {', '.join(failed)}")
        metrics, scenarios = sum(found.values()), len(self.scenarios)
        asked = f"{_count(metrics, 'metric')} of {_count(scenarios, 'scenario')}"
        state = ("updated" if self.update else "passed") if self.passed else "failed"
        if self.update and self.passed and not self.written:
            state = "unchanged"
        if len(counts) == 1 and not failed:
            said = counts[0].split(" ", 1)[1]
            return f"{state}: {asked} {'is' if metrics == 1 else 'are'} {said}"
        return f"{state}: {asked}: {', '.join(counts)}" if metrics else f"{state}: {', '.join(counts)}"

    def markdown(self) -> str:
        """The report for a pull request, in GitHub's Markdown."""
        from inferq.experiments.gates.wording import markdown

        return markdown(self)

    def __repr__(self) -> str:
        """What was found, in a sentence."""
        return f"GateReport({self.headline})"

    def __str__(self) -> str:
        """A sentence, and a line for each metric that is not identical."""
        from inferq.experiments.gates.wording import lines

        return "\n".join(lines(self))


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
