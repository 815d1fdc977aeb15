"""`Slo`: limits of the latencies of a service."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inferq._lazy import pl
from inferq.checks import finite, nearest, not_negative
from inferq.description import Table
from inferq.display.text import amount, number
from inferq.errors import ConfigError
from inferq.results.finding import Finding
from inferq.results.findings import of_objective
from inferq.results.metric import Metric
from inferq.results.result import Result
from inferq.results.tables import STATUSES

FAILED = Metric.of("failed_share")


@dataclass(frozen=True, slots=True)
class Objective:
    """A metric and its upper limit."""

    metric: Metric
    limit: float
    class_name: str | None = None
    """The class of the requests; None for all requests."""

    def __str__(self) -> str:
        """The metric, with its class."""
        return self.metric.name if self.class_name is None else f"{self.metric.name} of {self.class_name}"


@dataclass(frozen=True, init=False, repr=False, slots=True)
class Slo:
    """Service level objectives: upper limits of percentiles, means or maxima of latencies.

    They apply to all measured requests of a run ("99 % of the requests get their first token within 0.5 s").
    In contrast, each single request meets or misses the columns `ttft_slo_s` and `itl_slo_s` of a workload.

    A failed request has no latency, so a service that rejects slow requests would look fast. Therefore the
    share of measured requests that are rejected, abandoned, lost, or unfinished at `horizon_s` is an
    objective as well. With a horizon, set `cooldown` to exclude requests that arrive too late to finish.

    For a `Network`, `e2e` and `failed_share` refer to jobs, other latencies to stages.

    Args:
        by_class: further objectives for the requests of a class, by its name.
        failed_share: largest share of failed requests, from 0 to 1. Default: 0 for all requests, and no
            objective within `by_class`.
        **limits: non-negative seconds by metric: `ttft`, `itl`, `tpot`, `e2e` or `queue`, then `_mean`,
            `_p50`, `_p90`, `_p95`, `_p99` or `_max`. `tbt` is read as `itl`.

    Raises:
        ConfigError: an unknown metric, a metric that is not a latency, a limit outside its range, nested
            `by_class`, or no objective.

    Source: percentiles as in `Result.summary`; serving benchmarks use P50 and P99 targets of this kind.

    Example:
        >>> import inferq as iq
        >>> iq.Slo(ttft_p99=0.5, by_class={"chat": iq.Slo(itl_p99=0.05)})
        Slo(ttft_p99=0.5, by_class={'chat': Slo(itl_p99=0.05)})
    """

    limits: Mapping[str, float]
    """Seconds by metric."""
    by_class: Mapping[str, Slo]
    failed_share: float | None

    def __init__(
        self,
        *,
        by_class: Mapping[str, Slo] | None = None,
        failed_share: float | None = None,
        **limits: float,
    ) -> None:
        """Check the limits."""
        bounds = {}
        for name, limit in limits.items():
            metric = Metric.of(name, "slo")
            if metric.unit != "s":
                raise ConfigError(f"slo.{name}", "must be a latency, because an SLO sets upper limits")
            bounds[metric.name] = not_negative(f"slo.{name}", limit)
        if failed_share is not None:
            failed_share = finite("slo.failed_share", failed_share)
            if not 0 <= failed_share <= 1:
                raise ConfigError("slo.failed_share", f"must be from 0 to 1, got {failed_share!r}")
        classes = {} if by_class is None else by_class
        if not isinstance(classes, Mapping):
            raise ConfigError("slo.by_class", f"must be a mapping from class to Slo, got {by_class!r}")
        for name, slo in classes.items():
            if not isinstance(name, str) or not isinstance(slo, Slo):
                raise ConfigError(
                    "slo.by_class", f"must be a mapping from class to Slo, got {name!r}: {slo!r}"
                )
            if slo.by_class:
                raise ConfigError(f"slo.by_class[{name!r}]", "must not have by_class itself")
        if not bounds and not classes and failed_share is None:
            raise ConfigError("slo", "must have at least one limit, such as ttft_p99=0.5")
        object.__setattr__(self, "limits", Table(bounds))
        object.__setattr__(self, "by_class", Table(classes))
        object.__setattr__(self, "failed_share", failed_share)

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """All objectives: of all requests with `failed_share`, then of each class."""
        failed = Objective(FAILED, 0.0 if self.failed_share is None else self.failed_share)
        objectives = [*self._latencies(None), failed]
        for name, slo in self.by_class.items():
            objectives += slo._latencies(name)
            if slo.failed_share is not None:
                objectives.append(Objective(FAILED, slo.failed_share, name))
        return tuple(objectives)

    @property
    def questions(self) -> list[Finding]:
        """Findings about limits that look like milliseconds."""
        limits = [
            (objective.metric.name, objective.limit)
            for objective in self.objectives
            if objective.metric.unit == "s"
        ]
        findings = (of_objective(name, limit) for name, limit in limits)
        return [finding for finding in findings if finding is not None]

    def _latencies(self, class_name: str | None) -> list[Objective]:
        return [Objective(Metric.of(name), limit, class_name) for name, limit in self.limits.items()]

    def __str__(self) -> str:
        """The objectives, without a `failed_share` of 0."""
        bounds = [
            f"{objective} ≤ {amount(objective.limit, objective.metric.unit)}"
            for objective in self.objectives
            if objective.limit > 0
        ]
        return " and ".join(bounds) or repr(self)

    def __repr__(self) -> str:
        """The constructor call."""
        parts = [f"{name}={limit:g}" for name, limit in self.limits.items()]
        if self.failed_share is not None:
            parts.append(f"failed_share={self.failed_share:g}")
        if self.by_class:
            parts.append(f"by_class={self.by_class!r}")
        return f"Slo({', '.join(parts)})"


def with_itl_limits(options: Mapping[str, Any], objectives: Sequence[Objective]) -> Mapping[str, Any]:
    """Options of `simulate` that make comparisons of ITL percentiles with their objectives exact."""
    limits = {
        objective.limit
        for objective in objectives
        if objective.metric.quantity == "itl" and objective.metric.statistic.startswith("p")
    }
    return {**options, "itl_limits_s": [*options.get("itl_limits_s", ()), *limits]} if limits else options


def measured(objectives: tuple[Objective, ...], rate: float, result: Result) -> tuple[float, ...]:
    """The value of each objective in a run; infinite if requests failed and no other has a value.

    Args:
        objectives: the objectives.
        rate: requests per second of the run, for error messages.
        result: the run.

    Raises:
        ConfigError: an unknown class, or an objective without values although no request failed.
    """
    classes = result._tables.classes
    named = {objective.class_name for objective in objectives if objective.class_name is not None}
    for name in sorted(named - set(classes)):
        raise ConfigError("slo.by_class", f"the workload has no class {name!r}{nearest(name, classes)}")
    rows: dict[str | None, dict[str, Any]] = {None: result.summary().row(0, named=True)}
    if named:
        by_class = result.summary(by="class").rows(named=True)
        rows.update({str(row["class"]): row for row in by_class})
    failed: dict[str | None, float] = {name: _failed_share(result, name) for name in (None, *named)}
    values = []
    for objective in objectives:
        of_class = objective.class_name
        value = _value(objective, result, rows.get(of_class, {}), failed)
        if value is None and failed[of_class] == 0:
            which = "no request" if of_class is None else f"no request of class {of_class!r}"
            raise ConfigError(
                f"slo.{objective.metric.name}",
                f"{which} of a run at {number(rate, 4)} per second has a value; warm-up, cool-down and "
                "horizon must leave requests, and ITL requires outputs of two or more tokens",
            )
        values.append(math.inf if value is None else value)
    return tuple(values)


def _value(
    objective: Objective, result: Result, row: Mapping[str, Any], failed: Mapping[str | None, float]
) -> float | None:
    """The value of an objective, from the row of its class; None without a value."""
    name, metric = objective.class_name, objective.metric
    if metric == FAILED:
        return failed[name]
    if metric.name.startswith("e2e_") and result.has_jobs:
        if name is not None:
            raise ConfigError(
                f"slo.by_class[{name!r}].{metric.name}",
                "not available, because jobs have stages of several classes",
            )
        return _of_jobs(metric, result)
    return metric.of_row(row) if row else None


def _failed_share(result: Result, class_name: str | None) -> float:
    """The share of measured requests, or jobs of a network, that did not finish; 0 without requests."""
    if class_name is None and result.has_jobs:
        jobs: pl.Series = result.jobs.filter("measured")["status"]
        return float((jobs != "finished").mean() or 0.0)  # type: ignore[arg-type]
    columns = result._tables.requests
    counted = columns["measured"]
    if class_name is not None:
        counted = counted & (columns["class"] == result._tables.classes.index(class_name))
    ended = columns["status"][counted]
    return float((ended != STATUSES.index("finished")).mean()) if ended.size else 0.0


def _of_jobs(metric: Metric, result: Result) -> float | None:
    """A statistic of the E2E of jobs."""
    e2e_s: Any = result.jobs.filter("measured")["e2e_s"].drop_nulls()
    if e2e_s.is_empty():
        return None
    statistic = metric.statistic
    if statistic in ("mean", "max"):
        return float(e2e_s.mean() if statistic == "mean" else e2e_s.max())
    return float(e2e_s.quantile(int(statistic.removeprefix("p")) / 100, "linear"))
