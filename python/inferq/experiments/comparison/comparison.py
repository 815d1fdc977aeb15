"""`Comparison`: what distinguishes systems that served the same requests, in a table, a picture and words."""

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
"""The columns of `Comparison.frame` that hold them."""


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Viewed):
    """What distinguishes systems that served the same requests; made by `inferq.compare`."""

    systems: tuple[str, ...]
    """Their names, in the order given."""

    baseline: str
    """The one that the others are compared with."""

    seeds: tuple[int, ...]
    """Of the runs."""

    confidence: float

    chance: Literal["seeds", "blocks"]
    """Where the intervals come from: runs that differ by their seed, or blocks of one trace,
    which is recorded or synthetic without anything drawn."""

    stopped: str
    """Why there are so many runs and no more."""

    findings: tuple[Finding, ...]
    """What a reader should know before trusting the numbers: about the comparison, then of the runs."""

    by: Literal["class"] | None

    scenario: str
    """JSON that says what was compared: the workload, the systems by name, the seeds, and the options."""

    _rows: tuple[dict[str, Any], ...]
    _values: tuple[dict[str, Any], ...]

    @cached_property
    def frame(self) -> pl.DataFrame:
        """One row for each metric and system, the baseline among them.

        | column | meaning |
        |---|---|
        | `class` | only with `by="class"`; null for all requests together |
        | `metric`, `unit`, `better` | its name, its unit, whether `lower` or `higher` is better |
        | `system` | the system that has this number |
        | `mean`, `half_width` | over the seeds, and half of its interval |
        | `difference`, `difference_half_width` | to the baseline, from pairs, and half of its interval |
        | `relative`, `relative_half_width` | the same two over the baseline's mean |
        | `ratio` | mean over the baseline's mean |
        | `unpaired_half_width` | of the difference, if the systems had not served the same requests (Welch) |
        | `narrowed_by` | by which factor pairing narrows the interval |
        | `p_value` | the chance of so large a difference where there is none |
        | `verdict` | `better` or `worse` (real: the interval excludes 0), `not distinguishable`, or `same` |
        | `holds_together` | whether it is real also when all rows are judged together (Holm) |
        | `samples` | independent numbers behind the difference (of the baseline: behind its mean) |
        | `missing` | runs in which no request tells the number; then there is no mean |

        What there is not is null: the baseline has no difference, one seed has no interval, a relative
        difference to 0 has no value.
        """
        text = dict.fromkeys(("metric", "unit", "better", "system"), pl.String)
        numbers = dict.fromkeys(NUMBERS, pl.Float64)
        judged = {
            "verdict": pl.String,
            "holds_together": pl.Boolean,
            "samples": pl.Int64,
            "missing": pl.Int64,
        }
        schema = {**({"class": pl.String} if self.by else {}), **text, **numbers, **judged}
        return pl.DataFrame(list(self._rows), schema=schema, strict=True)

    @cached_property
    def values(self) -> pl.DataFrame:
        """The numbers of every run: `seed`, `system`, (`class`), `metric`, `value`; null where it has none.

        Rows with the same seed are pairs: those systems served the same requests.
        """
        group = {"class": pl.String} if self.by else {}
        schema = {"seed": pl.UInt64, "system": pl.String, **group, "metric": pl.String, "value": pl.Float64}
        return pl.DataFrame(list(self._values), schema=schema, strict=True)

    def explain(self, width: int = 80) -> str:
        """Every difference with its interval and verdict, the source of chance, and the findings.

        Args:
            width: columns of the text; findings are not wrapped.
        """
        return "\n".join([*self._lines(width), *(f"finding: {text}" for text in self.findings)]).rstrip()

    def _lines(self, width: int) -> list[str]:
        """The lines of `explain` without the findings."""
        others = [name for name in self.systems if name != self.baseline]
        same = f"{', '.join(others)} against {self.baseline}: the same requests for all"
        said = [same if others else self.baseline, self.stopped, self._chance()]
        lines = [part for one in said for part in terminal.wrapped(one, width)]
        for name in others or [self.baseline]:
            lines += ["", terminal.table(of_system(self._rows, self.baseline, name), width)]
        summed = self._summed() if others else []
        lines += ["", *(part for one in summed for part in terminal.wrapped(one, width))]
        return "\n".join(lines).splitlines()

    def plot(self, width: int = PANEL) -> Any:
        """The relative differences with their intervals, as an altair chart of about so many pixels.

        Raises:
            ConfigError: there is no difference to be drawn.
        """
        texts = (one for one in self.frame if one.dtype in (pl.String, pl.Categorical, pl.Enum))
        names = (name for column in texts for name in column.cast(pl.String).drop_nulls().unique())
        return styled(
            of_comparison(self.frame, self.baseline, self.confidence, width), (*names, self.baseline)
        )

    def __str__(self) -> str:
        """As `explain`."""
        return self.explain()

    def __repr__(self) -> str:
        return (
            f"Comparison({', '.join(self.systems)}; baseline {self.baseline}, "
            f"{counted(len(self.seeds), 'seed')}, intervals from {self.chance})"
        )

    def _chance(self) -> str:
        """Where the intervals come from."""
        intervals = f"{percent(self.confidence, 6)} intervals"
        if self.chance == "seeds":
            return f"{intervals} from independent runs (Student's t over the seeds), pair by pair"
        return (
            f"{intervals} from blocks of consecutive arrivals of the trace (jackknife), pair by pair; "
            "they are about requests to come like these, if blocks are long beside what the queue remembers"
        )

    def _summed(self) -> list[str]:
        """How much pairing helped, and what is left when all rows are judged together."""
        judged = [row for row in self._rows if row["p_value"] is not None]
        if not judged:
            return []
        real = [row for row in judged if row["verdict"] in ("better", "worse")]
        together = sum(row["holds_together"] for row in judged)
        by_chance = number((1 - self.confidence) * len(judged), 2)
        lines = [
            f"real, taken one by one: {len(real)} of {len(judged)} differences ({by_chance} would look so by "
            f"chance if there were none); judged together (Holm): {together}"
        ]
        factors = [row["narrowed_by"] for row in judged if row["narrowed_by"] is not None]
        if factors:
            middle, least, most = (
                number(factor, 2) for factor in (statistics.median(factors), min(factors), max(factors))
            )
            lines.append(
                f"serving the same requests narrowed the intervals {middle} times (median; {least} to {most})"
            )
        return lines
