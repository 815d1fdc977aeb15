"""Metrics of a run: name, unit and direction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from inferq.checks import nearest
from inferq.display.text import listed
from inferq.errors import ConfigError

LABELS = {"ttft": "TTFT", "itl": "ITL", "tpot": "TPOT", "e2e": "E2E", "queue": "queue"}
"""Latencies in seconds, with their labels on pages; their statistics are `ttft_mean`, … `queue_max`."""
QUANTITIES = tuple(LABELS)
ALIASES = {"tbt": "itl"}
"""Other names of latencies, which are accepted where metrics are named."""
PERCENTILES = (50, 90, 95, 99)
STATISTICS = ("mean", *(f"p{p}" for p in PERCENTILES), "max")
RATES = {
    "request_throughput": "requests/s",
    "output_throughput": "tokens/s",
    "total_token_throughput": "tokens/s",
    "request_goodput": "requests/s",
}
LATENCIES = {
    f"{quantity}_{statistic}": (quantity, statistic) for quantity in QUANTITIES for statistic in STATISTICS
}
COUNTS = ("completed", "failed", "lost", "cached_tokens")
COSTS: dict[str, tuple[str, Literal["lower", "higher"]]] = {
    "gpus": ("", "lower"),
    "nodes": ("", "lower"),
    "cost_per_hour": ("money", "lower"),
    "cost_per_request": ("money", "lower"),
    "cost_per_million_output_tokens": ("money", "lower"),
    "watts": ("W", "lower"),
    "joules_per_request": ("J", "lower"),
    "joules_per_million_output_tokens": ("J", "lower"),
    "revenue_per_hour": ("money", "higher"),
}
"""The columns that `Result.summary` adds with prices: unit and direction."""
SUMMARY = (
    *("completed", "failed", "lost", "duration_s", *RATES),
    *(*LATENCIES, "api_mean", "cached_tokens", "hit_rate"),
)
"""The columns of `Result.summary`, after those of its groups."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of a run: latency, throughput, share of failed requests, hit rate, cost or energy.

    Example:
        >>> from inferq.results.metric import Metric
        >>> Metric.of("ttft_p99")
        Metric(name='ttft_p99', unit='s', better='lower')
    """

    name: str
    """`ttft_p99`, `request_goodput`: a column of `Result.summary`; or `failed_share`."""

    unit: str
    better: Literal["lower", "higher"]

    @classmethod
    def of(cls, name: object, field: str = "metric") -> Metric:
        """The metric of that name.

        Args:
            name: `ttft`, `itl`, `tpot`, `e2e` or `queue` with `_mean`, `_p50`, `_p90`, `_p95`, `_p99` or
                `_max`, all in seconds; a throughput or the goodput; `failed_share`; `hit_rate`; a column of
                `COSTS`. `tbt` is read as `itl`.
            field: the argument that an error names.

        Raises:
            ConfigError: an unknown name.
        """
        metric = _METRICS.get(current_name(name)) if isinstance(name, str) else None
        if metric is None:
            renamed = {f"{statistic}_{quantity}_s": new for new, (quantity, statistic) in LATENCIES.items()}
            if name in renamed:
                raise ConfigError(field, f"{name} is now {renamed[str(name)]}")
            turned = {f"{statistic}_{quantity}": new for new, (quantity, statistic) in LATENCIES.items()}
            if name in turned:
                raise ConfigError(field, f"unknown metric {name!r}; did you mean {turned[str(name)]}?")
            quantity = str(name).removesuffix("_s")
            if quantity in QUANTITIES:
                statistics = listed((f"{quantity}_{statistic}" for statistic in STATISTICS), "or")
                raise ConfigError(field, f"{name} is a column of requests; a metric of a run is {statistics}")
            raise ConfigError(field, f"unknown metric {name!r}{nearest(str(name), _METRICS)}")
        return metric

    @classmethod
    def several(cls, names: object, field: str = "metrics") -> tuple[Metric, ...]:
        """The metrics of several names.

        Raises:
            ConfigError: no name, an unknown name, or a duplicate.
        """
        if isinstance(names, str) or not isinstance(names, Iterable):
            raise ConfigError(field, f"must be a list of names such as ['ttft_p99'], got {names!r}")
        metrics = tuple(cls.of(name, field) for name in names)
        if not metrics:
            raise ConfigError(field, "must name at least one metric")
        if len(set(metrics)) < len(metrics):
            raise ConfigError(field, "must not name a metric twice")
        return metrics

    @property
    def quantity(self) -> str:
        """The latency of a latency metric, `ttft` for `ttft_p99`; else the name."""
        return LATENCIES.get(self.name, (self.name,))[0]

    @property
    def statistic(self) -> str:
        """The statistic of a latency metric, `p99` for `ttft_p99`; else empty."""
        return LATENCIES.get(self.name, ("", ""))[1]

    @property
    def label(self) -> str:
        """The name on pages: `TTFT P99` for `ttft_p99`."""
        if self.name not in LATENCIES:
            return self.name.replace("_", " ")
        statistic = self.statistic
        return f"{LABELS[self.quantity]} {statistic.upper() if statistic.startswith('p') else statistic}"

    @property
    def needs_prices(self) -> bool:
        """Whether the metric is a cost or energy, which requires prices."""
        return self.name in COSTS

    def of_row(self, row: Mapping[str, float | None]) -> float | None:
        """The value in a row of `Result.summary`; None if the run has none.

        Raises:
            ConfigError: the metric requires prices, and none were given.
        """
        if self.needs_prices and self.name not in row:
            raise ConfigError("prices", f"{self.name} requires prices of GPUs; give prices")
        if self.name != "failed_share":
            return row[self.name]
        failed, completed = row["failed"] or 0, row["completed"] or 0
        return failed / (failed + completed) if failed + completed else None


def current_name(name: str) -> str:
    """The name of a metric or a column, with aliases replaced: `itl_p99` for `tbt_p99`."""
    head, joint, rest = name.partition("_")
    return f"{ALIASES.get(head, head)}{joint}{rest}"


_METRICS = {
    metric.name: metric
    for metric in (
        *(Metric(name, unit, "higher") for name, unit in RATES.items()),
        *(Metric(name, "s", "lower") for name in LATENCIES),
        Metric("failed_share", "share", "lower"),
        Metric("hit_rate", "share", "higher"),
        *(Metric(name, unit, better) for name, (unit, better) in COSTS.items()),
    )
}
