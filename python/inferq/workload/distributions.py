"""Arrival processes, and distributions of lengths and durations.

A distribution is a plain description that is checked when it is created. The core draws from it, with a
counter-based generator keyed by the seed, the source (arrivals, prompts, outputs, …) and the request. So the
same seed gives the same requests on every machine and under every scheduler. Units: requests per second,
tokens, seconds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from operator import attrgetter
from typing import Any, ClassVar

from inferq import _core
from inferq._lazy import NDArray, np, pl
from inferq.description import D, Description, fields_in
from inferq.errors import ConfigError, TraceError
from inferq.workload.columns import as_frame, checked


class ArrivalProcess(Description):
    """Base class of arrival processes. The first request arrives one gap after time 0."""

    __slots__ = ()
    part: ClassVar[str | None] = "arrivals"


class LengthDistribution(Description):
    """Base class of length distributions, in tokens. Every draw is at least 1."""

    __slots__ = ()
    part: ClassVar[str | None] = "lengths"

    def draw_column(self, n: int, seed: int, stream: int = 0) -> NDArray[np.int32]:
        """Draw `n` lengths in tokens for a column of your own.

        Draw k depends only on the seed, the `stream` and k. A larger `n` keeps the first lengths, and columns
        of different `stream` are independent of each other and of a workload's prompts and outputs.

        Args:
            n: number of lengths, at least 0.
            seed: seed of the run.
            stream: number of the column, at least 0.

        Raises:
            ConfigError: the distribution is `Empirical`, which draws pairs, or a length exceeds 2³¹ − 1.

        Example:
            >>> import inferq as iq
            >>> iq.dist.Uniform(1, 6).draw_column(4, seed=1, stream=2).dtype
            dtype('int32')
        """
        return _core.draw_column(json.dumps(self.to_json()), n, seed, stream)


class DurationDistribution(Description):
    """Base class of duration distributions, in seconds: think times, tool delays, patience."""

    __slots__ = ()
    part: ClassVar[str | None] = "durations"

    def draw(self, n: int, seed: int, stream: int = 0) -> NDArray[np.float64]:
        """Draw `n` durations in seconds, rounded to nanoseconds, such as the delays of a workflow.

        Draw k depends only on the seed, the `stream` and k. A larger `n` keeps the first durations, and
        columns of different `stream` are independent of each other and of a workload's think times and
        patience.

        Args:
            n: number of durations, at least 0.
            seed: seed of the run.
            stream: number of the column, at least 0.

        Example:
            >>> import inferq as iq
            >>> short = iq.dist.Exponential(mean_s=2.0).draw(3, seed=1, stream=4)
            >>> bool((iq.dist.Exponential(mean_s=2.0).draw(9, seed=1, stream=4)[:3] == short).all())
            True
        """
        return _core.draw_durations(json.dumps(self.to_json()), n, seed, "column", stream)


@dataclass(frozen=True, slots=True)
class Poisson(ArrivalProcess):
    """Poisson process: independent exponential gaps with mean `1 / rate`.

    Args:
        rate: requests per second, from 1e-9 to 1e12.

    Raises:
        ConfigError: `rate` is out of range.

    Source: the arrivals of li2025, ao2025, lin2026 and of most serving benchmarks.

    Example:
        >>> import inferq as iq
        >>> iq.dist.Poisson(rate=5.5).to_json()
        {'kind': 'Poisson', 'rate': 5.5}
    """

    rate: float


@dataclass(frozen=True, slots=True)
class Gamma(ArrivalProcess):
    """Independent gamma gaps with mean `1 / rate` and coefficient of variation `cv`.

    With `cv=1` the gaps are exponential; larger values are burstier, smaller values smoother.

    Args:
        rate: requests per second, from 1e-9 to 1e12.
        cv: standard deviation of a gap divided by its mean, from 1e-6 to 1000.

    Raises:
        ConfigError: `rate` or `cv` is out of range.

    Source: ServeGen (arXiv 2505.09999) fits gamma gaps to the clients of production traffic.

    Example:
        >>> import inferq as iq
        >>> iq.dist.Gamma(rate=5, cv=2).to_json()
        {'kind': 'Gamma', 'rate': 5, 'cv': 2}
    """

    rate: float
    cv: float


@dataclass(frozen=True, slots=True)
class Weibull(ArrivalProcess):
    """Independent Weibull gaps with mean `1 / rate`.

    `shape=1` draws the same requests as `Poisson`; smaller values are burstier, larger values smoother. The
    scale is 1 / (rate · Γ(1 + 1/shape)), so the mean gap is exactly `1 / rate`.

    Args:
        rate: requests per second, from 1e-9 to 1e12.
        shape: from 0.1 (coefficient of variation 429) to 1e6.

    Raises:
        ConfigError: `rate` or `shape` is out of range.

    Source: ServeGen (arXiv 2505.09999) fits Weibull gaps to clients if they fit better than gamma gaps.

    Example:
        >>> import inferq as iq
        >>> iq.dist.Weibull(rate=5, shape=0.7).to_json()
        {'kind': 'Weibull', 'rate': 5, 'shape': 0.7}
    """

    rate: float
    shape: float


@dataclass(frozen=True, slots=True)
class OnOff(ArrivalProcess):
    """On/off process: a Poisson process that alternates between `on_rate` and `off_rate`.

    Phases have independent exponential lengths (a Markov-modulated Poisson process with two states). The
    process starts in its stationary distribution: on with probability mean_on_s / (mean_on_s + mean_off_s).
    The mean rate is (on_rate·mean_on_s + off_rate·mean_off_s) / (mean_on_s + mean_off_s). Phases are drawn
    independently of gaps, so a change of rates keeps the phases.

    Args:
        on_rate: requests per second, 0 or from 1e-9 to 1e12.
        off_rate: requests per second, same range; at least one of the two rates is positive.
        mean_on_s: mean length of an on phase in seconds, from 1e-9 to 1e9.
        mean_off_s: mean length of an off phase, same range. Two phases must bring 0.001 requests on average.

    Raises:
        ConfigError: a parameter is out of range.

    Source: Fischer and Meier-Hellstern, "The Markov-modulated Poisson process (MMPP) cookbook", 1993.

    Example:
        >>> import inferq as iq
        >>> iq.dist.OnOff(on_rate=20, mean_on_s=5, mean_off_s=15)
        OnOff(on_rate=20, off_rate=0.0, mean_on_s=5, mean_off_s=15)
    """

    on_rate: float
    off_rate: float = 0.0
    _: KW_ONLY
    mean_on_s: float
    mean_off_s: float


@dataclass(frozen=True, slots=True)
class TimeVarying(ArrivalProcess):
    """Poisson process with a piecewise constant rate: hours of a day, a surge, a ramp in steps.

    The rate is `rates[i]` from `times_s[i]` on. Unit-rate gaps are mapped exactly through the cumulative
    rate; a single piece draws the same requests as `Poisson`. The last rate stays, or all pieces repeat.

    Args:
        times_s: starts of the pieces in seconds, ascending from 0.
        rates: requests per second in each piece, 0 or from 1e-9 to 1e12. The last rate must be positive; with
            a period, any of them.
        period_s: seconds after which the pieces repeat, larger than the last of `times_s`. Default: they do
            not repeat.

    Raises:
        ConfigError: a parameter is out of range; it names the piece.

    Source: the non-homogeneous Poisson process by inversion (Çinlar, "Introduction to Stochastic
    Processes", 1975).

    Example:
        >>> import inferq as iq
        >>> day = iq.dist.TimeVarying(times_s=[0, 28_800, 72_000], rates=[0.5, 6, 2], period_s=86_400)
        >>> day.to_json()["rates"]
        [0.5, 6, 2]
    """

    times_s: Sequence[float]
    rates: Sequence[float]
    period_s: float | None = None


@dataclass(frozen=True, slots=True)
class Deterministic(ArrivalProcess):
    """Constant gaps of `1 / rate`.

    Args:
        rate: requests per second, from 1e-9 to 1e12.

    Raises:
        ConfigError: `rate` is out of range.

    Source: the D of Kendall's D/·/1.

    Example:
        >>> import inferq as iq
        >>> iq.dist.Deterministic(rate=4).to_json()
        {'kind': 'Deterministic', 'rate': 4}
    """

    rate: float


@dataclass(frozen=True, slots=True)
class Fixed(LengthDistribution):
    """Constant length.

    Args:
        tokens: the length, at least 1.

    Raises:
        ConfigError: `tokens` is out of range.

    Source: the single-type settings of ao2025 and nie2026.

    Example:
        >>> import inferq as iq
        >>> iq.dist.Fixed(128).to_json()
        {'kind': 'Fixed', 'tokens': 128}
    """

    tokens: int


@dataclass(frozen=True, slots=True)
class Uniform(LengthDistribution):
    """Uniform integer lengths from `low` to `high`, both included.

    Args:
        low: minimum in tokens, at least 1.
        high: maximum in tokens, at least `low`.

    Raises:
        ConfigError: `low` or `high` is out of range.

    Source: the synthetic loads of li2025 and of most serving benchmarks.

    Example:
        >>> import inferq as iq
        >>> iq.dist.Uniform(10, 20).to_json()
        {'kind': 'Uniform', 'low': 10, 'high': 20}
    """

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class LogUniform(LengthDistribution):
    """Lengths from `low` to `high` with a uniform logarithm: equally many requests in each doubling.

    Args:
        low: minimum in tokens, at least 1.
        high: maximum in tokens, at least `low`.

    Raises:
        ConfigError: `low` or `high` is out of range.

    Source: long-document loads, whose lengths span orders of magnitude.

    Example:
        >>> import inferq as iq
        >>> iq.dist.LogUniform(low=2000, high=128_000).to_json()
        {'kind': 'LogUniform', 'low': 2000, 'high': 128000}
    """

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Lognormal(LengthDistribution):
    """Lognormal lengths with a given mean and median, rounded to integers from 1 to `cap`.

    The underlying normal distribution has mu = ln(median) and sigma² = 2·ln(mean / median).

    Args:
        mean: mean in tokens before rounding and the cap, at least `median`.
        median: median in tokens, at least 1e-9.
        cap: maximum in tokens. Default: the limit of a request.

    Raises:
        ConfigError: `mean`, `median` or `cap` is out of range.

    Source: the usual fit for chat prompts and outputs.

    Example:
        >>> import inferq as iq
        >>> iq.dist.Lognormal(mean=250, median=160, cap=4096).to_json()
        {'kind': 'Lognormal', 'mean': 250, 'median': 160, 'cap': 4096}
    """

    mean: float
    median: float
    cap: int | None = None


@dataclass(frozen=True, slots=True)
class Geometric(LengthDistribution):
    """Geometric lengths 1, 2, 3, …: the request ends after each token with probability `1 / mean`.

    Args:
        mean: mean in tokens before the cap, at least 1.
        cap: maximum in tokens. Default: the limit of a request.

    Raises:
        ConfigError: `mean` or `cap` is out of range.

    Source: the discrete form of the exponential decode times of lin2026.

    Example:
        >>> import inferq as iq
        >>> iq.dist.Geometric(mean=64).to_json()
        {'kind': 'Geometric', 'mean': 64, 'cap': None}
    """

    mean: float
    cap: int | None = None


@dataclass(frozen=True, slots=True)
class PoissonLength(LengthDistribution):
    """Poisson distributed lengths. A draw of 0 becomes 1.

    Args:
        mean: mean in tokens before both limits, from 1e-9 to 1e6.
        cap: maximum in tokens. Default: the limit of a request.

    Raises:
        ConfigError: `mean` or `cap` is out of range.

    Source: the token counts of the networks in li2025 §4.3, with means 32 and 512.

    Example:
        >>> import inferq as iq
        >>> iq.dist.PoissonLength(mean=32).to_json()
        {'kind': 'PoissonLength', 'mean': 32, 'cap': None}
    """

    mean: float
    cap: int | None = None


@dataclass(frozen=True, slots=True)
class Exponential(DurationDistribution):
    """Exponential durations.

    Args:
        mean_s: mean in seconds, from 1e-9 to 1e8.

    Raises:
        ConfigError: `mean_s` is out of range.

    Source: the think times of closed queueing networks; the patience of lin2026.

    Example:
        >>> import inferq as iq
        >>> iq.dist.Exponential(mean_s=7.5).to_json()
        {'kind': 'Exponential', 'mean_s': 7.5}
    """

    mean_s: float


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Empirical(LengthDistribution):
    """Joint prompt and output lengths: rows of a frame, drawn with replacement.

    Args:
        frame: a fixed `Workload`, or any data that `Workload` accepts, with `prompt_tokens` and
            `output_tokens`. Other columns are ignored.

    Raises:
        ConfigError: one of the two columns is missing.
        TraceError: a length is wrong; it names the row and the column.

    Source: the bootstrap of the given trace.

    Example:
        >>> import inferq as iq
        >>> iq.dist.Empirical({"prompt_tokens": [10, 200], "output_tokens": [7, 3]}).to_json()
        {'kind': 'Empirical', 'prompt_tokens': [10, 200], 'output_tokens': [7, 3]}
    """

    frame: pl.DataFrame

    @classmethod
    def from_elsewhere(cls, path: str, description: Mapping[str, Any]) -> Empirical:
        """Read the two columns in the form of `to_json`."""
        try:
            return cls(fields_in(path, description, ("prompt_tokens", "output_tokens")))  # type: ignore[arg-type]
        except (ConfigError, TraceError) as error:
            raise ConfigError(path, str(error)) from None

    def __post_init__(self) -> None:
        """Check and store the two columns."""
        try:
            inner = attrgetter("frame")(self.frame)  # the checked frame of a workload
        except ConfigError:  # a synthetic workload
            raise
        except AttributeError:
            inner = None
        frame = inner if isinstance(inner, pl.DataFrame) else checked(as_frame(self.frame))
        for name in ("prompt_tokens", "output_tokens"):
            if name not in frame.columns:
                raise ConfigError(
                    "Empirical.frame",
                    f"requires the columns prompt_tokens and output_tokens; {name} is missing",
                )
        object.__setattr__(self, "frame", frame.select("prompt_tokens", "output_tokens"))

    def draw_column(self, n: int, seed: int, stream: int = 0) -> NDArray[np.int32]:
        """Raise an error: the distribution draws pairs, not one column."""
        raise ConfigError(
            "Empirical", "draws pairs of prompt and output; use a distribution of a single length"
        )

    def __repr__(self) -> str:
        """Return the number of rows; there may be millions."""
        return f"Empirical({self.frame.height} rows)"

    def to_json(self) -> dict[str, Any]:
        """Return the distribution with all rows as JSON-ready data, in the core's format."""
        return {"kind": "Empirical", **self.frame.to_dict(as_series=False)}


def _family(base: type[D]) -> tuple[type[D], ...]:
    return tuple(kind for kind in globals().values() if isinstance(kind, type) and base in kind.__bases__)


ARRIVAL_PROCESSES = _family(ArrivalProcess)
LENGTH_DISTRIBUTIONS = tuple(kind for kind in _family(LengthDistribution) if kind is not Empirical)
"""Distributions of a single length, without joint ones."""
DURATION_DISTRIBUTIONS = _family(DurationDistribution)
