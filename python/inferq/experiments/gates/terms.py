"""What a scenario asks of the gate: how much worse which metric may become, and how sure one must be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from inferq.checks import whole
from inferq.description import Description, Table
from inferq.errors import ConfigError
from inferq.checks import between
from inferq.experiments.margin import Margin
from inferq.results.summary import objectives
from inferq.systems.prices import Prices

TOLERANCE = {"request_goodput": "1%", "ttft_p99": "5%", "itl_p99": "5%"}
"""What is looked at where a scenario does not say."""

_MOST_SEEDS = 10_000


@dataclass(frozen=True, slots=True)
class Terms(Description):
    """What a scenario asks of the gate; its table `[gate]`.

    Args:
        tolerance: by the name of a metric how much worse it may become, see `Margin.of`; None takes 1 % of
            `request_goodput`, and 5 % of `ttft_p99` and of `itl_p99`.
        seeds: how many runs, counted from the seed of the run; at least 1, and at least 2 for what is drawn.
        confidence: with which each end of an interval holds, above 0.5 and below 1.
        slo: objectives for the goodput, `{"ttft_s": …, "itl_s": …}`; None takes those of the workload.
        prices: of GPUs and tokens, the fields of `Prices`, where money or energy is asked for.

    Raises:
        ConfigError: a value outside its range, or an unknown name.

    Example:
        >>> from inferq.experiments.gates.terms import Terms
        >>> [str(one) for one in Terms(tolerance={"ttft_p99": "3%", "itl_max": "0.01s"}).tolerances]
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
            for one in self.tolerances:
                if one.is_relative and one.metric.better == "higher" and one.amount >= 1:
                    field, text = f"tolerance.{one.metric.name}", given[one.metric.name]
                    raise ConfigError(field, f"must be below 100 %, which nothing can lose, is {text!r}")
            if not given:
                raise ConfigError("tolerance", "names no metric")
        Description.__post_init__(self)
        if given is not None:  # in the order in which they are reported
            object.__setattr__(self, "tolerance", Table(given, as_given=True))
        whole("seeds", self.seeds, 1, _MOST_SEEDS)
        between("confidence", self.confidence, 0.5, 1)
        objectives(self.slo)

    @property
    def tolerances(self) -> tuple[Margin, ...]:
        """How much worse each metric may become."""
        texts = TOLERANCE if self.tolerance is None else self.tolerance
        return tuple(Margin.of(name, text, "tolerance") for name, text in texts.items())
