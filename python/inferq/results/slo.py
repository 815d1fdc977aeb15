"""`Slo`: limits that the latencies of a service must keep."""

from __future__ import annotations

import math
from collections.abc import Mapping
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
    """One number that must stay at or below a limit."""

    metric: Metric
    limit: float
    class_name: str | None = None
    """The class whose requests it is about; None for all of them."""

    def __str__(self) -> str:
        """The metric, and of which class."""
        return self.metric.name if self.class_name is None else f"{self.metric.name} of {self.class_name}"


@dataclass(frozen=True, init=False, repr=False, slots=True)
class Slo:
    """Objectives of a population of requests: a percentile, a mean or a maximum that must keep a limit.

    They are about all measured requests of a run together, as operators promise them ("99 % of the requests
    get their first token within half a second"), unlike the columns `ttft_slo_s` and `itl_slo_s` of a
    workload, which each request meets or misses.

    A request that fails has no latency, and a service that turns slow requests away would look fast. So the
    share of the measured requests that are rejected, abandoned, lost, or unfinished at the `horizon_s` of a
    run is an objective as well, with the limit 0 unless told. Under a horizon, `cooldown` leaves out those
    that came too late to finish. With a higher limit the latencies are those of the requests that have them.

    Over a `Network`, `e2e` and the failed are those of jobs, the other latencies those of their stages.

    Args:
        by_class: further objectives for the requests of a class, by its name.
        failed_share: the largest share of requests that may fail, from 0 to 1. None is 0 for all requests
            together, and no objective of its own within `by_class`.
        **limits: seconds, 0 or above, by metric: `ttft`, `itl`, `tpot`, `e2e` or `queue`, then `_mean`,
            `_p50`, `_p90`, `_p95`, `_p99` or `_max`.

    Raises:
        ConfigError: an unknown metric, one that is no latency, a limit outside its range, objectives of
            classes within those of a class, or none at all.

    Source: percentiles as of `Result.summary`; targets of this kind bound P50 and P99 in the serving
        benchmarks that the peers run.

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
                raise ConfigError(f"slo.{name}", "is no latency, and an SLO bounds latencies from above")
            bounds[metric.name] = not_negative(f"slo.{name}", limit)
        if failed_share is not None:
            failed_share = finite("slo.failed_share", failed_share)
            if not 0 <= failed_share <= 1:
                raise ConfigError("slo.failed_share", f"must be from 0 to 1, not {failed_share!r}")
        classes = {} if by_class is None else by_class
        if not isinstance(classes, Mapping):
            raise ConfigError("slo.by_class", f"must be a table of Slo by class, is {by_class!r}")
        for name, slo in classes.items():
            if not isinstance(name, str) or not isinstance(slo, Slo):
                raise ConfigError("slo.by_class", f"must be a table of Slo by class, holds {name!r}: {slo!r}")
            if slo.by_class:
                raise ConfigError(f"slo.by_class[{name!r}]", "has classes of its own, which a class has not")
        if not bounds and not classes and failed_share is None:
            raise ConfigError("slo", "bounds nothing; give a limit such as ttft_p99=0.5")
        object.__setattr__(self, "limits", Table(bounds))
        object.__setattr__(self, "by_class", Table(classes))
        object.__setattr__(self, "failed_share", failed_share)

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """Every objective: those of all requests, the failed among them, then those of each class."""
        failed = Objective(FAILED, 0.0 if self.failed_share is None else self.failed_share)
        objectives = [*self._latencies(None), failed]
        for name, slo in self.by_class.items():
            objectives += slo._latencies(name)
            if slo.failed_share is not None:
                objectives.append(Objective(FAILED, slo.failed_share, name))
        return tuple(objectives)

    @property
    def questions(self) -> list[Finding]:
        """What to ask about limits that look like milliseconds."""
        limits = [(one.metric.name, one.limit) for one in self.objectives if one.metric.unit == "s"]
        findings = (of_objective(name, limit) for name, limit in limits)
        return [finding for finding in findings if finding is not None]

    def _latencies(self, class_name: str | None) -> list[Objective]:
        return [Objective(Metric.of(name), limit, class_name) for name, limit in self.limits.items()]

    def __str__(self) -> str:
        """The objectives, but for a share of failures that must be 0."""
        bounds = [f"{one} ≤ {amount(one.limit, one.metric.unit)}" for one in self.objectives if one.limit > 0]
        return " and ".join(bounds) or repr(self)

    def __repr__(self) -> str:
        """As the call that makes it."""
        parts = [f"{name}={limit:g}" for name, limit in self.limits.items()]
        if self.failed_share is not None:
            parts.append(f"failed_share={self.failed_share:g}")
        if self.by_class:
            parts.append(f"by_class={self.by_class!r}")
        return f"Slo({', '.join(parts)})"


def measured(objectives: tuple[Objective, ...], rate: float, result: Result) -> tuple[float, ...]:
    """The value of each objective in a run; infinite where requests failed and none is left to tell it.

    Args:
        objectives: some.
        rate: of the run, per second, for errors.
        result: the run.

    Raises:
        ConfigError: a class that the workload does not have, or an objective of which no request tells
            anything although none failed.
    """
    classes = result._tables.classes
    named = {one.class_name for one in objectives if one.class_name is not None}
    for name in sorted(named - set(classes)):
        raise ConfigError("slo.by_class", f"the workload has no class {name!r}{nearest(name, classes)}")
    rows: dict[str | None, dict[str, Any]] = {None: result.summary().row(0, named=True)}
    if named:
        by_class = result.summary(by="class").rows(named=True)
        rows.update({str(row["class"]): row for row in by_class})
    failed: dict[str | None, float] = {name: _failed_share(result, name) for name in (None, *named)}
    values = []
    for one in objectives:
        value = _value(one, result, rows.get(one.class_name, {}), failed)
        if value is None and failed[one.class_name] == 0:
            which = "no request" if one.class_name is None else f"no request of class {one.class_name!r}"
            raise ConfigError(
                f"slo.{one.metric.name}",
                f"{which} of a run at {number(rate, 4)} per second tells it: warm-up, "
                "cool-down and horizon must leave some, and gaps between tokens need more than one token",
            )
        values.append(math.inf if value is None else value)
    return tuple(values)


def _value(
    objective: Objective, result: Result, row: Mapping[str, Any], failed: Mapping[str | None, float]
) -> float | None:
    """The value of an objective, from the row of its class; None where no request tells it."""
    name, metric = objective.class_name, objective.metric
    if metric == FAILED:
        return failed[name]
    if metric.name.startswith("e2e_") and result.has_jobs:
        if name is not None:
            raise ConfigError(f"slo.by_class[{name!r}].{metric.name}", "a job has stages of several classes")
        return _of_jobs(metric, result)
    return metric.of_row(row) if row else None


def _failed_share(result: Result, class_name: str | None) -> float:
    """The share of measured requests, of a network: jobs, that did not finish; 0 where there are none."""
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
    """A statistic of the time from the arrival of a job to its last token."""
    e2e_s: Any = result.jobs.filter("measured")["e2e_s"].drop_nulls()
    if e2e_s.is_empty():
        return None
    statistic = metric.statistic
    if statistic in ("mean", "max"):
        return float(e2e_s.mean() if statistic == "mean" else e2e_s.max())
    return float(e2e_s.quantile(int(statistic.removeprefix("p")) / 100, "linear"))
