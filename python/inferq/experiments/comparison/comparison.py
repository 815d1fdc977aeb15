"""`Comparison`: differences of systems on the same requests, as a table, a chart and text."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from inferq._lazy import pl
from inferq.display import terminal
from inferq.display.notebook import Viewed
from inferq.display.style import PANEL, styled
from inferq.display.text import counted, number, percent
from inferq.experiments.comparison.charts import of_comparison
from inferq.experiments.comparison.tables import of_system
from inferq.results.finding import Finding

NUMBERS = (
    *(
        "mean",
        "half_width",
        "difference",
        "difference_half_width",
        "relative",
        "relative_half_width",
        "ratio",
    ),
    *("unpaired_half_width", "narrowed_by", "p_value"),
)
"""Numeric columns of `Comparison.frame`."""


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Viewed):
    """Differences of systems on the same requests; made by `inferq.compare`."""

    systems: tuple[str, ...]
    """Names of the systems, in the given order."""

    baseline: str
    """The system that others are compared with."""

    seeds: tuple[int, ...]
    """Seeds of the runs."""

    confidence: float

    variation: Literal["seeds", "blocks"]
    """Source of the intervals: runs with different seeds, or blocks of one trace without randomness."""

    stopped: str
    """The number of runs, and the reason for it."""

    findings: tuple[Finding, ...]
    """Findings about the comparison, then about the runs."""

    by: Literal["class"] | None

    scenario: str
    """The workload, the systems by name, the seeds and the options, as JSON."""

    requests: str
    """The number, the source and the rate of the requests."""

    _rows: tuple[dict[str, Any], ...]
    _values: tuple[dict[str, Any], ...]

    @cached_property
    def frame(self) -> pl.DataFrame:
        """One row per metric and system, including the baseline.

        | column | meaning |
        |---|---|
        | `class` | only with `by="class"`; null for all requests |
        | `metric`, `unit`, `better` | name, unit, and whether `lower` or `higher` is better |
        | `system` | name of the system |
        | `mean`, `half_width` | mean over the seeds, and half of its interval |
        | `difference`, `difference_half_width` | difference to the baseline, half of its interval |
        | `relative`, `relative_half_width` | both divided by the baseline's mean |
        | `ratio` | mean divided by the baseline's mean |
        | `unpaired_half_width` | half width without pairing (Welch) |
        | `narrowed_by` | factor by which pairing narrows the interval |
        | `p_value` | probability of a difference of this size if there is none |
        | `verdict` | `better` or `worse` (significant), `not distinguishable`, or `same` |
        | `significant_holm` | whether it is significant after correction for all rows (Holm) |
        | `model_error` | published median error of the metric for these engines, as a share |
        | `note` | that error, if a significant difference is smaller; or that none is published |
        | `samples` | independent samples of the difference (for the baseline: of its mean) |
        | `missing` | runs without a value; then there is no mean |

        Missing values are null: the baseline has no difference, one seed has no interval, and a relative
        difference to 0 is undefined. Published errors are those of measured servers by engine, see the page
        "Accuracy against hardware"; an engine without a GPU has none.
        """
        text = dict.fromkeys(("metric", "unit", "better", "system"), pl.String)
        numbers = dict.fromkeys(NUMBERS, pl.Float64)
        verdicts = {
            "verdict": pl.String,
            "significant_holm": pl.Boolean,
            "model_error": pl.Float64,
            "note": pl.String,
            "samples": pl.Int64,
            "missing": pl.Int64,
        }
        schema = {**({"class": pl.String} if self.by else {}), **text, **numbers, **verdicts}
        return pl.DataFrame(list(self._rows), schema=schema, strict=True)

    @cached_property
    def values(self) -> pl.DataFrame:
        """Values of every run: `seed`, `system`, (`class`), `metric`, `value` (null if missing).

        Rows with the same seed are pairs: the systems served the same requests.
        """
        group = {"class": pl.String} if self.by else {}
        schema = {"seed": pl.UInt64, "system": pl.String, **group, "metric": pl.String, "value": pl.Float64}
        return pl.DataFrame(list(self._values), schema=schema, strict=True)

    def explain(self, width: int = 80) -> str:
        """All differences with intervals and verdicts, the source of the intervals, and the findings.

        Args:
            width: width of the text in columns; findings are not wrapped.
        """
        return "\n".join([*self._lines(width), *(f"finding: {text}" for text in self.findings)]).rstrip()

    def _lines(self, width: int) -> list[str]:
        """The lines of `explain` without the findings."""
        others = [name for name in self.systems if name != self.baseline]
        same = f"{', '.join(others)} against {self.baseline}: the same requests for all"
        header = [same if others else self.baseline, self.stopped, self._source()]
        lines = [part for text in header for part in terminal.wrapped(text, width)]
        for name in others or [self.baseline]:
            lines += ["", terminal.table(of_system(self._rows, self.baseline, name), width)]
        summary = self._summary() if others else []
        lines += ["", *(part for text in summary for part in terminal.wrapped(text, width))]
        return "\n".join(lines).splitlines()

    def plot(self, width: int = PANEL) -> Any:
        """Plot relative differences with their intervals, as an Altair chart of this width in pixels.

        Raises:
            ConfigError: there is no difference to plot.
        """
        texts = (column for column in self.frame if column.dtype in (pl.String, pl.Categorical, pl.Enum))
        names = (name for column in texts for name in column.cast(pl.String).drop_nulls().unique())
        return styled(
            of_comparison(self.frame, self.baseline, self.confidence, width), (*names, self.baseline)
        )

    def __str__(self) -> str:
        """The text of `explain()`."""
        return self.explain()

    def __repr__(self) -> str:
        return (
            f"Comparison({', '.join(self.systems)}; baseline {self.baseline}, "
            f"{counted(len(self.seeds), 'seed')}, intervals from {self.variation})"
        )

    def _source(self) -> str:
        """The source of the intervals."""
        intervals = f"{percent(self.confidence, 6)} intervals"
        if self.variation == "seeds":
            return f"{intervals} from independent runs (Student's t over the seeds), paired"
        return (
            f"{intervals} from blocks of consecutive arrivals of the trace (jackknife), paired; they hold "
            "for similar requests, if blocks are long compared with the memory of the queue"
        )

    def _summary(self) -> list[str]:
        """The number of significant differences, and the effect of pairing."""
        tested = [row for row in self._rows if row["p_value"] is not None]
        if not tested:
            return []
        significant = [row for row in tested if row["verdict"] in ("better", "worse")]
        corrected = sum(row["significant_holm"] for row in tested)
        false_positives = number((1 - self.confidence) * len(tested), 2)
        lines = [
            f"significant at {percent(self.confidence, 6)}: {len(significant)} of {len(tested)} differences "
            f"({false_positives} expected if there were none); after Holm correction: {corrected}"
        ]
        factors = [row["narrowed_by"] for row in tested if row["narrowed_by"] is not None]
        if factors:
            middle, least, most = (
                number(factor, 2) for factor in (statistics.median(factors), min(factors), max(factors))
            )
            lines.append(
                f"paired comparison: intervals {middle} times narrower than unpaired "
                f"(median; {least} to {most})"
            )
        return lines
