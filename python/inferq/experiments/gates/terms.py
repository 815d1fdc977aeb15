"""The table `[gate]` of a scenario: tolerances, seeds and confidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from inferq.checks import between, whole
from inferq.description import Description, Table
from inferq.errors import ConfigError
from inferq.experiments.margin import Margin
from inferq.results.summary import objectives
from inferq.systems.prices import Prices

TOLERANCE = {"request_goodput": "1%", "ttft_p99": "5%", "itl_p99": "5%"}
"""Default tolerances."""

_MOST_SEEDS = 10_000


@dataclass(frozen=True, slots=True)
class Terms(Description):
    """The table `[gate]` of a scenario.

    Args:
        tolerance: largest accepted regression by metric, see `Margin.of`. Default: 1 % of `request_goodput`,
            5 % of `ttft_p99` and of `itl_p99`.
        seeds: number of runs, from the seed of the run; at least 1, at least 2 for a random workload.
        confidence: confidence level of each bound, above 0.5 and below 1.
        slo: objectives for goodput, `{"ttft_s": …, "itl_s": …}`. Default: those of the workload.
        prices: prices of GPUs and tokens, the fields of `Prices`, for metrics of cost or energy.

    Raises:
        ConfigError: a value is out of range, or a name is unknown.

    Example:
        >>> from inferq.experiments.gates.terms import Terms
        >>> [str(margin) for margin in Terms(tolerance={"ttft_p99": "3%", "itl_max": "0.01s"}).tolerances]
        ['3 %', '10 ms']
    """

    tolerance: Mapping[str, str] | None = None
    seeds: int = 10
    confidence: float = 0.95
    slo: Mapping[str, float] | None = None
    prices: Prices | None = None

    def __post_init__(self) -> None:
        """Check the values, each with its path."""
        given = self.tolerance
        if isinstance(given, Mapping):
            for margin in self.tolerances:
                if margin.is_relative and margin.metric.better == "higher" and margin.amount >= 1:
                    field, text = f"tolerance.{margin.metric.name}", given[margin.metric.name]
                    raise ConfigError(field, f"must be below 100 %, got {text!r}")
            if not given:
                raise ConfigError("tolerance", "must contain at least one metric")
        Description.__post_init__(self)
        if given is not None:  # keeps the given order
            object.__setattr__(self, "tolerance", Table(given, as_given=True))
        whole("seeds", self.seeds, 1, _MOST_SEEDS)
        between("confidence", self.confidence, 0.5, 1)
        objectives(self.slo)

    @property
    def tolerances(self) -> tuple[Margin, ...]:
        """The tolerance of each metric."""
        texts = TOLERANCE if self.tolerance is None else self.tolerance
        return tuple(Margin.of(name, text, "tolerance") for name, text in texts.items())
