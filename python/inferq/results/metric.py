"""The numbers of a run by name: unit, and which way is better."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from inferq.checks import nearest
from inferq.display.text import listed
from inferq.errors import ConfigError

QUANTITIES = ("ttft", "itl", "tpot", "e2e", "queue")
"""What is measured in seconds; their statistics are `ttft_mean`, `ttft_p50`, … `queue_max`."""
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
"""The columns of `Result.summary` where prices are given, after the others, with what they are counted in."""
SUMMARY = (
    *("completed", "failed", "lost", "duration_s", *RATES),
    *(*LATENCIES, "api_mean", "cached_tokens", "hit_rate"),
)
"""The columns of `Result.summary`, after those of its groups."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A number of a run: a latency, a throughput, the share that failed, the hit rate, money or energy.

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
                `COSTS`, which prices tell.
            field: the argument that an error names.

        Raises:
            ConfigError: there is none of that name.
        """
        metric = _METRICS.get(name) if isinstance(name, str) else None
        if metric is None:
            renamed = {f"{statistic}_{quantity}_s": new for new, (quantity, statistic) in LATENCIES.items()}
            if name in renamed:
                raise ConfigError(field, f"{name} is now {renamed[str(name)]}")
            turned = {f"{statistic}_{quantity}": new for new, (quantity, statistic) in LATENCIES.items()}
            if name in turned:
                raise ConfigError(field, f"unknown metric {name!r}; did you mean {turned[str(name)]}?")
            quantity = str(name).removesuffix("_s")
            if quantity in QUANTITIES:
                statistics = listed((f"{quantity}_{one}" for one in STATISTICS), "or")
                raise ConfigError(field, f"{name} is of one request; of a run it is {statistics}")
            raise ConfigError(field, f"unknown metric {name!r}{nearest(str(name), _METRICS)}")
        return metric

    @classmethod
    def several(cls, names: object, field: str = "metrics") -> tuple[Metric, ...]:
        """The metrics of some names, each once.

        Raises:
            ConfigError: there are none, an unknown one, or one twice.
        """
        if isinstance(names, str) or not isinstance(names, Iterable):
            raise ConfigError(field, f"must be names such as ['ttft_p99'], is {names!r}")
        metrics = tuple(cls.of(name, field) for name in names)
        if not metrics:
            raise ConfigError(field, "none is named")
        if len(set(metrics)) < len(metrics):
            raise ConfigError(field, "one is there twice")
        return metrics

    @property
    def quantity(self) -> str:
        """Of a latency, what is measured: `ttft` of `ttft_p99`; else the name."""
        return LATENCIES.get(self.name, (self.name,))[0]

    @property
    def statistic(self) -> str:
        """Of a latency, which statistic: `p99` of `ttft_p99`; `""` of others."""
        return LATENCIES.get(self.name, ("", ""))[1]

    @property
    def needs_prices(self) -> bool:
        """Whether it is money or energy, which runs have where prices are given."""
        return self.name in COSTS

    def of_row(self, row: Mapping[str, float | None]) -> float | None:
        """The number in a row of `Result.summary`; None where nothing tells it.

        Raises:
            ConfigError: it needs prices, and none were given.
        """
        if self.needs_prices and self.name not in row:
            raise ConfigError("prices", f"{self.name} is told where GPUs have prices; give prices")
        if self.name != "failed_share":
            return row[self.name]
        failed, completed = row["failed"] or 0, row["completed"] or 0
        return failed / (failed + completed) if failed + completed else None


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
