"""`CapacityPlan`: the largest rate that meets an SLO, with the probes of the search."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from inferq._lazy import pl
from inferq.display.notebook import Viewed
from inferq.display.style import PANEL, styled
from inferq.display.text import counted, number, percent
from inferq.experiments.capacity_search.charts import of_search
from inferq.experiments.capacity_search.probe import Probe
from inferq.experiments.capacity_search.run_length import RunLength
from inferq.experiments.model_error import ModelErrors
from inferq.results.finding import ANSWER, Finding
from inferq.results.slo import Slo
from inferq.theory.bounds.stability import Stability


@dataclass(frozen=True, kw_only=True, repr=False)
class CapacityPlan(Viewed):
    """The largest rate at which a system meets an SLO, and its search; made by `inferq.capacity`.

    Rates are requests per second; jobs per second of a network.
    """

    slo: Slo
    rate: float
    """The largest rate at which the SLO is met with the stated confidence. 0 if there is none."""
    high: float | None
    """The smallest rate above it at which the SLO is violated with confidence. None if there is none."""
    reason: str | None
    """The reason why `rate` is 0 or `high` is None. None if the bracket is closed."""
    confidence: float
    exact: bool
    """Whether nothing is random, so that the answer is about exactly these requests."""
    requests: int
    """Requests of a run; jobs of a network."""
    probed: tuple[Probe, ...]
    """All probes, in the order of the search."""
    length: RunLength
    """Whether longer runs would give the same capacity, and the reason."""
    theory: Stability | None
    """Stability analysis, whose upper bound started the search. None for a function of the rate."""
    most_seeds: int
    """Maximum seeds of a probe."""
    errors: ModelErrors
    """Published errors of the model for the engines of the system."""
    scenario: str
    """The workload (of a function of the rate: at the lowest rate), the system, the seeds and the options of
    the runs, as JSON."""

    @property
    def low(self) -> float:
        """The lower end of the bracket, equal to `rate`."""
        return self.rate

    @property
    def limited_by_length(self) -> bool | None:
        """Whether the SLO is met at this rate only because the runs end. None if unknown."""
        return self.length.limited

    @property
    def upper_bound_per_s(self) -> float | None:
        """The rate above which no policy is stable, from bounds whose hypotheses are met."""
        return None if self.theory is None else upper_bound_of(self.theory)

    @property
    def undecided(self) -> tuple[Probe, ...]:
        """Probes within the bracket that are undecided with `most_seeds`."""
        return tuple(
            probe
            for probe in self._by_rate
            if probe.verdict == "undecided" and self.low < probe.rate < self._top
        )

    @property
    def contradictions(self) -> tuple[Probe, ...]:
        """Probes at rates below the answer that violate the SLO.

        Waiting times usually grow with the rate, but a policy that waits for full batches can be slower at
        low rates.
        """
        return tuple(
            probe for probe in self._by_rate if probe.verdict == "violated" and probe.rate < self.rate
        )

    @property
    def probes(self) -> pl.DataFrame:
        """One row per probe and objective, in the order of the search.

        `probe`, `rate` (per second), `seeds`, `verdict` (of the probe), `metric`, `class` (null for all
        requests), `unit`, `limit`, `value` (mean over the seeds), `low` and `high` (confidence bounds of the
        true mean, corrected for the looks at more seeds, `low` also for the number of objectives; null for
        `exact` plans), `metric_verdict`.
        """
        texts = dict.fromkeys(("metric", "class", "unit"), pl.String)
        numbers = dict.fromkeys(("limit", "value", "low", "high"), pl.Float64)
        return pl.DataFrame(
            [
                (
                    *(place, probe.rate, probe.seeds, probe.verdict),
                    *(value.objective.metric.name, value.objective.class_name, value.objective.metric.unit),
                    *(value.objective.limit, value.value, value.low, value.high, value.verdict),
                )
                for place, probe in enumerate(self.probed)
                for value in probe.values
            ],
            schema={
                **{"probe": pl.Int64, "rate": pl.Float64, "seeds": pl.Int64, "verdict": pl.String},
                **{**texts, **numbers, "metric_verdict": pl.String},
            },
            orient="row",
        )

    def plot(self, width: int = PANEL) -> Any:
        """Plot each objective against the rate, with intervals, limit, bracket and theoretical upper bound.

        Args:
            width: width of the plot in pixels.

        Returns:
            An Altair chart with one panel per objective that is not always 0.
        """
        title = "no rate was found that meets the SLO"
        if self.rate > 0:
            limited = ", limited by the length of the runs" if self.limited_by_length else ""
            title = f"the SLO is met up to {number(self.rate, 4)} per second {self._scope}{limited}"
        chart = of_search(
            self.probes,
            self.slo.objectives,
            rate=self.rate,
            high=self.high,
            upper_bound=self.upper_bound_per_s,
            title=title,
            width=width,
        )

        return styled(chart, self.slo.by_class or ())

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The answer, the first violated objective, the theoretical bound, then warnings."""
        return tuple(self._findings())

    def _findings(self) -> Iterator[Finding]:
        if self.rate > 0:
            yield Finding(ANSWER, f"{self.slo} is met up to {number(self.rate, 4)} per second {self._scope}")
        else:
            yield Finding("no-answer", f"no rate was found that meets {self.slo}")
        yield from self.slo.questions
        if self.reason is not None:
            yield Finding(ANSWER, self.reason)
        if self.rate > 0:
            for probe in self._decisive:
                yield Finding(ANSWER, f"at {probe}{self.errors.note_on(probe.worst)}")
        yield from self.errors.findings_on(value for probe in self._decisive for value in probe.values)
        if self.undecided:
            first, last = (number(self.undecided[end].rate, 4) for end in (0, -1))
            rates = f"at {first}" if first == last else f"from {first} to {last}"
            yield Finding(
                "undecided",
                f"{rates} per second with {counted(self.most_seeds, 'seed')}; use a larger most_seeds or "
                "longer runs",
            )
        yield Finding(ANSWER, self._bound())
        if self.rate > 0:
            yield self._run_length()
        for probe in self.probed:
            if probe.rate == self.rate:
                subject = f"run at {number(probe.rate, 4)} per second with the first seed"
                yield from (finding.about(subject) for finding in probe.findings)
        for probe in self.contradictions:
            yield Finding("not-monotonic", f"a lower rate is worse than the answer: {probe}")
        if self.exact:
            yield Finding(
                "one-sample",
                "the workload is fixed; other requests of the same kind would give another answer",
            )

    def _bound(self) -> str:
        bound = self.upper_bound_per_s
        if bound is None:
            return "theory: no upper bound is known"
        share = f"; the answer is {percent(self.rate / bound)} of it" if self.rate > 0 else ""
        return f"theory: no policy is stable above {number(bound)} per second{share}"

    def _run_length(self) -> Finding:
        limited = self.limited_by_length
        words = {True: "limited by", False: "not limited by", None: "possibly limited by"}
        text = f"{words[limited]} the {self.requests:,} requests of a run; {self.length.reason}"
        return Finding(ANSWER, f"run length: {text}") if limited is False else Finding("run-length", text)

    def explain(self) -> str:
        """The findings, one per line."""
        return "\n".join(self.findings)

    def __str__(self) -> str:
        """The text of `explain()`."""
        return self.explain()

    def __repr__(self) -> str:
        """The bracket and the number of probes."""
        high = "None" if self.high is None else f"{self.high:.6g}"
        return f"CapacityPlan(rate={self.rate:.6g}, high={high}, probes={len(self.probed)})"

    @property
    def _decisive(self) -> list[Probe]:
        """The probes at both ends of the bracket."""
        return [probe for probe in self._by_rate if probe.rate in (self.rate, self.high)]

    @property
    def _by_rate(self) -> list[Probe]:
        return sorted(self.probed, key=lambda probe: probe.rate)

    @property
    def _scope(self) -> str:
        """The confidence of the answer, or that it holds for exactly these requests."""
        return (
            "for exactly these requests" if self.exact else f"with {percent(self.confidence, 6)} confidence"
        )

    @property
    def _top(self) -> float:
        return math.inf if self.high is None else self.high


def upper_bound_of(theory: Stability) -> float | None:
    """The lowest theoretical upper bound whose hypotheses are met."""
    bounds = (
        bound.capacity_per_s for bound in theory.bounds if bound.kind == "upper_bound" and bound.applies
    )
    return min(bounds, default=None)
