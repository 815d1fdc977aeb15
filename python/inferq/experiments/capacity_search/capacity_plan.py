"""`CapacityPlan`: the largest rate that keeps an SLO, how it was found, in a table, a picture and words."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from inferq._lazy import pl
from inferq.display.notebook import Viewed
from inferq.display.style import PANEL, styled
from inferq.display.text import counted, number, percent
from inferq.experiments.capacity_search.charts import of_search
from inferq.experiments.capacity_search.probe import Probe
from inferq.experiments.capacity_search.run_length import RunLength
from inferq.results.finding import ANSWER, ONE_SAMPLE, Finding
from inferq.results.slo import Slo
from inferq.theory.bounds.stability import Stability


@dataclass(frozen=True, kw_only=True, repr=False)
class CapacityPlan(Viewed):
    """The largest rate at which a system keeps an SLO, and how that was found; made by `inferq.capacity`.

    Rates are requests per second, of a network: jobs.
    """

    slo: Slo
    rate: float
    """The largest rate at which the SLO is kept with the stated confidence; 0 where none was found."""
    high: float | None
    """The smallest rate above it at which the SLO is broken for sure; None where none was found."""
    reason: str | None
    """Why there is no such rate, or no end to them; None where both ends were found."""
    confidence: float
    exact: bool
    """Whether the workload is fixed and nothing else is drawn: the answer is about these very requests."""
    requests: int
    """How many requests (of a network: jobs) a run has."""
    probed: tuple[Probe, ...]
    """Every rate that was run, in order."""
    length: RunLength
    """Whether longer runs would say the same, and why."""
    theory: Stability | None
    """What is proved about the scenario; its ceiling began the search. None for a function of the rate."""
    most_seeds: int
    """Beyond so many a probe is left undecided."""
    scenario: str
    """JSON that says what was run: the workload (of a function of the rate: at the lowest rate), the system,
    the seeds in order, and the options of the runs."""

    @property
    def low(self) -> float:
        """The lower end of the bracket, which is `rate`."""
        return self.rate

    @property
    def limited_by_length(self) -> bool | None:
        """Whether the SLO is kept at this rate only because the runs end; None where that cannot be told."""
        return self.length.limited

    @property
    def ceiling_per_s(self) -> float | None:
        """The rate above which no policy is stable, of the limits whose hypotheses all hold."""
        return None if self.theory is None else ceiling_of(self.theory)

    @property
    def undecided(self) -> tuple[Probe, ...]:
        """The probes within the bracket: neither kept nor broken for sure, with as many seeds as may be."""
        return tuple(
            one for one in self._by_rate if one.verdict == "undecided" and self.low < one.rate < self._top
        )

    @property
    def contradictions(self) -> tuple[Probe, ...]:
        """The probes at rates below the answer that break the SLO.

        Waiting should grow with the rate. It need not: a policy that waits for company serves a few worse
        than many.
        """
        return tuple(one for one in self._by_rate if one.verdict == "broken" and one.rate < self.rate)

    @property
    def probes(self) -> pl.DataFrame:
        """One row for each probe and objective, in the order in which they were run.

        `probe`, `rate` (per second), `seeds` (that it took), `verdict` (of the probe), `metric`, `class`
        (null for all requests), `unit`, `limit`, `value` (mean over the seeds), `low` and `high` (between
        which the true mean lies, either with a chance that is shared out among the looks at more seeds, `low`
        also among the objectives; null for `exact` plans), `metric_verdict`.
        """
        texts = dict.fromkeys(("metric", "class", "unit"), pl.String)
        numbers = dict.fromkeys(("limit", "value", "low", "high"), pl.Float64)
        return pl.DataFrame(
            [
                (
                    *(place, probe.rate, probe.seeds, probe.verdict),
                    *(one.objective.metric.name, one.objective.class_name, one.objective.metric.unit),
                    *(one.objective.limit, one.value, one.low, one.high, one.verdict),
                )
                for place, probe in enumerate(self.probed)
                for one in probe.judged
            ],
            schema={
                **{"probe": pl.Int64, "rate": pl.Float64, "seeds": pl.Int64, "verdict": pl.String},
                **{**texts, **numbers, "metric_verdict": pl.String},
            },
            orient="row",
        )

    def plot(self, width: int = PANEL) -> Any:
        """The value of each objective against the rate, with its interval, limit, the bracket and theory.

        Args:
            width: pixels to plot on.

        Returns:
            An altair chart, one panel for each objective but those that are 0 throughout.
        """
        title = "no rate was found that keeps the SLO"
        if self.rate > 0:
            limited = ", limited by the length of the runs" if self.limited_by_length else ""
            title = f"{number(self.rate, 4)} per second keep the SLO {self._sure}{limited}"
        chart = of_search(
            self.probes,
            self.slo.objectives,
            rate=self.rate,
            high=self.high,
            ceiling=self.ceiling_per_s,
            title=title,
            width=width,
        )

        return styled(chart, self.slo.by_class or ())

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The answer, the objective that breaks first, theory, and observations that qualify the answer."""
        if self.rate > 0:
            text = f"up to {number(self.rate, 4)} per second keep {self.slo} {self._sure}"
            lines = [Finding(ANSWER, text, {"rate_per_s": self.rate, "confidence": self.confidence})]
        else:
            lines = [Finding("no-answer", f"no rate that keeps {self.slo} was found")]
        lines += self.slo.questions
        if self.reason is not None:
            lines.append(Finding(ANSWER, self.reason))
        if self.rate > 0:
            lines += [
                Finding(ANSWER, f"at {probe}", {"rate_per_s": probe.rate, "verdict": probe.verdict})
                for probe in self._by_rate
                if probe.rate in (self.rate, self.high)
            ]
        if self.undecided:
            first, last = (number(self.undecided[end].rate, 4) for end in (0, -1))
            rates = f"at {first}" if first == last else f"from {first} to {last}"
            lines.append(
                Finding(
                    "undecided",
                    f"{rates} per second, {counted(self.most_seeds, 'seed')} do not decide whether the SLO "
                    "is met; raise most_seeds, or use longer runs",
                    {"low_per_s": self.undecided[0].rate, "high_per_s": self.undecided[-1].rate},
                )
            )
        ceiling = self.ceiling_per_s
        if ceiling is not None:
            share = f": the answer is {percent(self.rate / ceiling)} of that" if self.rate > 0 else ""
            text = f"theory: no policy is stable above {number(ceiling)} per second{share}"
            lines.append(Finding(ANSWER, text, {"upper_bound_per_s": ceiling}))
        elif self.theory is not None:
            lines.append(Finding(ANSWER, "theory: no upper bound is known"))
        if self.rate > 0:
            limited = {True: "limited by", False: "not limited by", None: "perhaps limited by"}
            text = f"{limited[self.limited_by_length]} the {self.requests:,} requests of a run; "
            text += self.length.reason
            if self.limited_by_length is False:
                lines.append(Finding(ANSWER, f"run length: {text}"))
            else:
                lines.append(Finding("run-length", text, {"requests": self.requests}))
        lines += [
            finding.about(f"at {number(probe.rate, 4)} per second, first seed", rate_per_s=probe.rate)
            for probe in self.probed
            if probe.rate == self.rate
            for finding in probe.findings
        ]
        lines += [Finding("not-monotonic", str(text)) for text in self.contradictions]
        if self.exact:
            lines.append(ONE_SAMPLE)
        return tuple(lines)

    def explain(self) -> str:
        """The findings, a line each."""
        return "\n".join(self.findings)

    def __str__(self) -> str:
        """What `explain()` says."""
        return self.explain()

    def __repr__(self) -> str:
        """The bracket and the number of probes."""
        high = "None" if self.high is None else f"{self.high:.6g}"
        return f"CapacityPlan(rate={self.rate:.6g}, high={high}, probes={len(self.probed)})"

    @property
    def _by_rate(self) -> list[Probe]:
        return sorted(self.probed, key=lambda one: one.rate)

    @property
    def _sure(self) -> str:
        """How sure the answer is, and about which requests."""
        return "for these very requests" if self.exact else f"with {percent(self.confidence, 6)} confidence"

    @property
    def _top(self) -> float:
        return math.inf if self.high is None else self.high


def ceiling_of(theory: Stability) -> float | None:
    """The least rate above which a theorem says that nothing is stable, all its hypotheses met."""
    ceilings = (one.capacity_per_s for one in theory.bounds if one.kind == "ceiling" and one.applies)
    return min(ceilings, default=None)
