"""Which number of a run is looked at, in which unit, and which way is better?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from inferq.errors import ConfigError
from inferq.results.result import PERCENTILES
from inferq.workload.columns import nearest

if TYPE_CHECKING:
    from inferq.results.result import Result

_MEASURES = ("ttft", "tbt", "tpot", "e2e", "queue")
_STATISTICS = ("mean", *(f"p{share}" for share in PERCENTILES), "max")
_RATES = {
    "request_throughput": "requests/s",
    "request_goodput": "requests/s",
    "output_throughput": "tokens/s",
    "total_token_throughput": "tokens/s",
}


@dataclass(frozen=True, slots=True)
class Metric:
    """A number of a run: a latency, a throughput, the share of requests that failed, or the hit rate.

    Example:
        >>> from inferq.results.metric import Metric
        >>> Metric.of("ttft_p99")
        Metric(name='ttft_p99', column='p99_ttft_s', unit='s', better='lower')
    """

    name: str
    """`ttft_p99`, `request_goodput`, `failed_share`."""

    column: str
    """Of `Result.summary`; empty for a share, which is made of two."""

    unit: str
    better: Literal["lower", "higher"]

    @classmethod
    def of(cls, name: object, field: str = "metric") -> Metric:
        """The metric of that name, or of that column of `Result.summary`.

        Args:
            name: `ttft_p99` or `p99_ttft_s`; `ttft`, `tbt`, `tpot`, `e2e` or `queue` with `mean`, `p50`,
                `p90`, `p95`, `p99` or `max`; a throughput or the goodput; `failed_share`; `hit_rate`.
            field: the argument that an error names.

        Raises:
            ConfigError: there is none of that name.
        """
        found = _KNOWN.get(name) if isinstance(name, str) else None
        if found is None:
            by_column = {metric.column: metric for metric in _KNOWN.values()}
            found = by_column.get(name) if isinstance(name, str) and name else None
        if found is None:
            raise ConfigError(f"{field}: unknown metric {name!r}{nearest(str(name), _KNOWN)}")
        return found

    @classmethod
    def several(cls, names: object, field: str = "metrics") -> tuple[Metric, ...]:
        """The metrics of some names, each once.

        Raises:
            ConfigError: there are none, an unknown one, or one twice.
        """
        if isinstance(names, str) or not isinstance(names, Iterable):
            raise ConfigError(f"{field}: must be names such as ['ttft_p99'], is {names!r}")
        found = tuple(cls.of(name, field) for name in names)
        if not found:
            raise ConfigError(f"{field}: none is named")
        if len(set(found)) < len(found):
            raise ConfigError(f"{field}: one is there twice")
        return found

    def value(self, result: Result, slo: Mapping[str, float | None] | None = None) -> float | None:
        """The number of a run; None where no request tells it, or for `hit_rate` no prefix cache does.

        Args:
            result: the run.
            slo: objectives for the goodput, as `Result.summary` takes them.
        """
        return self.of_row(result.summary(slo=slo).row(0, named=True))

    def of_row(self, row: Mapping[str, float | None]) -> float | None:
        """The number in a row of `Result.summary`; None where no request tells it."""
        if self.column:
            return row[self.column]
        failed, completed = row["failed"] or 0, row["completed"] or 0
        return failed / (failed + completed) if failed + completed else None


def _known() -> dict[str, Metric]:
    found = {name: Metric(name, name, unit, "higher") for name, unit in _RATES.items()}
    for measure in _MEASURES:
        for statistic in _STATISTICS:
            name = f"{measure}_{statistic}"
            found[name] = Metric(name, f"{statistic}_{measure}_s", "s", "lower")
    shares = (Metric("failed_share", "", "share", "lower"), Metric("hit_rate", "hit_rate", "share", "higher"))
    return {**found, **{one.name: one for one in shares}}


_KNOWN = _known()
