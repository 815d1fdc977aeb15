"""Arrival processes, and distributions of lengths and durations.

A distribution is a plain description, checked when it is made. It is drawn in the core, from counters keyed
by the seed, the source (arrivals, prompts, outputs, …) and the request, so that the same seed gives the same
requests on every machine and under every scheduler. Rates are requests per second, lengths are tokens,
durations are seconds.
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
    """An arrival process. The first request arrives one gap after time 0."""

    __slots__ = ()
    part: ClassVar[str | None] = "arrivals"


class LengthDistribution(Description):
    """A distribution of lengths, in tokens; every draw is at least 1."""

    __slots__ = ()
    part: ClassVar[str | None] = "lengths"

    def draw_column(self, n: int, seed: int, stream: int = 0) -> NDArray[np.int32]:
        """`n` lengths for a column that is neither the prompts nor the outputs of a workload, in tokens.

        Draw k is keyed by (seed, the source of such columns, `stream`, k) and nothing else: another `n`
        leaves the first lengths as they were, another `stream` gives a column that is independent.

        Args:
            n: how many, 0 or more.
            seed: that of the run.
            stream: number of the column, 0 or more.

        Raises:
            ConfigError: for an `Empirical` distribution, which draws pairs; for a length beyond 2³¹ − 1
                without a cap.

        Example:
            >>> import inferq as iq
            >>> iq.dist.Uniform(1, 6).draw_column(4, seed=1, stream=2).dtype
            dtype('int32')
        """
        return _core.draw_column(json.dumps(self.to_json()), n, seed, stream)


class DurationDistribution(Description):
    """A distribution of durations in seconds: think times, delays of tools, patience."""

    __slots__ = ()
    part: ClassVar[str | None] = "durations"

    def draw(self, n: int, seed: int, stream: int = 0) -> NDArray[np.float64]:
        """`n` durations in seconds, whole nanoseconds each, for the delays of a workflow and the like.

        Draw k is keyed by (seed, the source of such columns, `stream`, k) and nothing else: another `n`
        leaves the first durations as they were, another `stream` gives a column that is independent. Think
        times and patience of a workload have sources of their own, so they never meet these.

        Args:
            n: how many, 0 or more.
            seed: that of the run.
            stream: number of the column, 0 or more.

        Example:
            >>> import inferq as iq
            >>> short = iq.dist.Exponential(mean_s=2.0).draw(3, seed=1, stream=4)
            >>> bool((iq.dist.Exponential(mean_s=2.0).draw(9, seed=1, stream=4)[:3] == short).all())
            True
        """
        return _core.draw_durations(json.dumps(self.to_json()), n, seed, "column", stream)


@dataclass(frozen=True, slots=True)
class Poisson(ArrivalProcess):
    """Independent exponential gaps with mean `1 / rate`: a Poisson process.

    Args:
        rate: requests per second, from 1e-9 to 1e12.

    Raises:
        ConfigError: naming `rate`.

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

    `cv=1` is a Poisson process in distribution, above 1 burstier, below 1 smoother.

    Args:
        rate: requests per second, from 1e-9 to 1e12.
        cv: standard deviation of a gap over its mean, from 1e-6 to 1000.

    Raises:
        ConfigError: naming `rate` or `cv`.

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

    `shape=1` is `Poisson`, request for request; below 1 burstier, above 1 smoother. The scale is
    1 / (rate · Γ(1 + 1/shape)), so the mean gap is exactly `1 / rate`.

    Args:
        rate: requests per second, from 1e-9 to 1e12.
        shape: from 0.1 (coefficient of variation 429) to 1e6.

    Raises:
        ConfigError: naming `rate` or `shape`.

    Source: ServeGen (arXiv 2505.09999) fits Weibull gaps to clients where they fit better than gamma gaps.

    Example:
        >>> import inferq as iq
        >>> iq.dist.Weibull(rate=5, shape=0.7).to_json()
        {'kind': 'Weibull', 'rate': 5, 'shape': 0.7}
    """

    rate: float
    shape: float


@dataclass(frozen=True, slots=True)
class OnOff(ArrivalProcess):
    """A Poisson process whose rate takes turns: `on_rate` while on, `off_rate` while off.

    Phases have independent exponential lengths (a Markov-modulated Poisson process with two states). It
    starts in its stationary distribution: on with chance mean_on_s / (mean_on_s + mean_off_s). The mean rate
    is (on_rate·mean_on_s + off_rate·mean_off_s) / (mean_on_s + mean_off_s). Phases are drawn apart from the
    gaps, so other rates meet the same phases.

    Args:
        on_rate: requests per second, 0 or from 1e-9 to 1e12.
        off_rate: requests per second, likewise; not both 0.
        mean_on_s: mean length of an on phase in seconds, from 1e-9 to 1e9.
        mean_off_s: mean length of an off phase, likewise. A pair of phases brings 0.001 requests at least.

    Raises:
        ConfigError: naming the parameter.

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
    """A Poisson process with rate `rates[i]` from `times_s[i]` on: hours of a day, a surge, a ramp in steps.

    Gaps are drawn in expected requests and mapped through the cumulative rate, exactly; one piece is
    `Poisson`, request for request. After the last piece its rate stays, or all come again.

    Args:
        times_s: starts of the pieces in seconds, the first 0, ascending.
        rates: requests per second in each piece, 0 or from 1e-9 to 1e12; the last (with a period: one of
            them) above 0, else no further request would ever come.
        period_s: seconds after which the pieces come again, above the last of `times_s`; None for never.

    Raises:
        ConfigError: naming the parameter and the piece.

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
    """Equal gaps of `1 / rate`.

    Args:
        rate: requests per second, from 1e-9 to 1e12.

    Raises:
        ConfigError: naming `rate`.

    Source: the D of Kendall's D/·/1.

    Example:
        >>> import inferq as iq
        >>> iq.dist.Deterministic(rate=4).to_json()
        {'kind': 'Deterministic', 'rate': 4}
    """

    rate: float


@dataclass(frozen=True, slots=True)
class Fixed(LengthDistribution):
    """Every length is `tokens`.

    Args:
        tokens: at least 1.

    Raises:
        ConfigError: naming `tokens`.

    Source: the single-type settings of ao2025 and nie2026.

    Example:
        >>> import inferq as iq
        >>> iq.dist.Fixed(128).to_json()
        {'kind': 'Fixed', 'tokens': 128}
    """

    tokens: int


@dataclass(frozen=True, slots=True)
class Uniform(LengthDistribution):
    """Every whole length from `low` to `high`, both included, is equally likely.

    Args:
        low: fewest tokens, at least 1.
        high: most tokens, at least `low`.

    Raises:
        ConfigError: naming `low` or `high`.

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
    """Lengths from `low` to `high` whose logarithm is uniform: as many requests in each doubling.

    Args:
        low: fewest tokens, at least 1.
        high: most tokens, at least `low`.

    Raises:
        ConfigError: naming `low` or `high`.

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
    """Lognormal lengths with the given mean and median, rounded to whole tokens, at least 1, at most `cap`.

    The parameters of the underlying normal are mu = ln(median) and sigma² = 2·ln(mean / median).

    Args:
        mean: tokens, at least `median`; that of the distribution before rounding and the cap.
        median: tokens, at least 1e-9.
        cap: longest length, or None for no cap but that of a request.

    Raises:
        ConfigError: naming `mean`, `median` or `cap`.

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
    """Geometric lengths on 1, 2, 3, …: after each token the request ends with chance `1 / mean`.

    Args:
        mean: tokens, at least 1; that of the distribution before the cap.
        cap: longest length, or None for no cap but that of a request.

    Raises:
        ConfigError: naming `mean` or `cap`.

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
    """Poisson distributed lengths; 0 counts as 1.

    Args:
        mean: tokens, from 1e-9 to 1e6; that of the distribution before the cap and before 0 counts as 1.
        cap: longest length, or None for no cap but that of a request.

    Raises:
        ConfigError: naming `mean` or `cap`.

    Source: the token sizes of the networks of li2025 §4.3, with means 32 and 512.

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
        mean_s: seconds, from 1e-9 to 1e8.

    Raises:
        ConfigError: naming `mean_s`.

    Source: the think times of closed queueing networks; the patience of lin2026.

    Example:
        >>> import inferq as iq
        >>> iq.dist.Exponential(mean_s=7.5).to_json()
        {'kind': 'Exponential', 'mean_s': 7.5}
    """

    mean_s: float


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Empirical(LengthDistribution):
    """Joint lengths: rows of a frame drawn with replacement, prompt and output of a row staying together.

    Args:
        frame: a fixed `Workload`, or anything that `Workload` takes, with `prompt_tokens` and
            `output_tokens`; further columns are not used.

    Raises:
        ConfigError: when the frame lacks one of the two columns.
        TraceError: naming the row and the column of a wrong length.

    Source: the bootstrap of the trace that is given.

    Example:
        >>> import inferq as iq
        >>> iq.dist.Empirical({"prompt_tokens": [10, 200], "output_tokens": [7, 3]}).to_json()
        {'kind': 'Empirical', 'prompt_tokens': [10, 200], 'output_tokens': [7, 3]}
    """

    frame: pl.DataFrame

    @classmethod
    def from_elsewhere(cls, path: str, description: Mapping[str, Any]) -> Empirical:
        """That of the two columns, as `to_json` has them."""
        try:
            return cls(fields_in(path, description, ("prompt_tokens", "output_tokens")))  # type: ignore[arg-type]
        except (ConfigError, TraceError) as error:
            raise ConfigError(path, str(error)) from None

    def __post_init__(self) -> None:
        """Keep the two columns, checked."""
        try:
            inner = attrgetter("frame")(self.frame)  # of a workload, which is checked already
        except ConfigError:  # of one that is yet to be drawn
            raise
        except AttributeError:
            inner = None
        frame = inner if isinstance(inner, pl.DataFrame) else checked(as_frame(self.frame))
        for name in ("prompt_tokens", "output_tokens"):
            if name not in frame.columns:
                raise ConfigError("Empirical.frame", f"has no column {name}")
        object.__setattr__(self, "frame", frame.select("prompt_tokens", "output_tokens"))

    def draw_column(self, n: int, seed: int, stream: int = 0) -> NDArray[np.int32]:
        """Refused: it draws prompt and output together, not one column."""
        raise ConfigError(
            "Empirical", "draws a prompt and an output together; give a distribution of one length"
        )

    def __repr__(self) -> str:
        """As a number of rows; there may be millions."""
        return f"Empirical({self.frame.height} rows)"

    def to_json(self) -> dict[str, Any]:
        """The distribution as JSON-ready data, in the form that the core reads: all rows."""
        return {"kind": "Empirical", **self.frame.to_dict(as_series=False)}


def _family(base: type[D]) -> tuple[type[D], ...]:
    return tuple(kind for kind in globals().values() if isinstance(kind, type) and base in kind.__bases__)


ARRIVAL_PROCESSES = _family(ArrivalProcess)
LENGTH_DISTRIBUTIONS = tuple(kind for kind in _family(LengthDistribution) if kind is not Empirical)
"""Those of one length: joint ones draw prompt and output together."""
DURATION_DISTRIBUTIONS = _family(DurationDistribution)
