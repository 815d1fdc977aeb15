"""From which laws are arrivals and lengths drawn?

A law is a plain description, checked when it is made. It is drawn in the core, from counters keyed by the
seed, the source (arrivals, prompts, outputs) and the request, so that the same seed gives the same requests
on every machine and under every scheduler. Rates are requests per second, lengths are tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from inferq.description import Description
from inferq.errors import ConfigError

if TYPE_CHECKING:
    import polars as pl

__all__ = [
    "ArrivalLaw",
    "Deterministic",
    "Empirical",
    "Fixed",
    "Gamma",
    "Geometric",
    "LengthLaw",
    "LogUniform",
    "Lognormal",
    "Poisson",
    "Uniform",
]


class ArrivalLaw(Description):
    """A law of arrival times. The first request arrives one gap after time 0."""

    __slots__ = ()
    part: ClassVar[str | None] = "arrivals"


class LengthLaw(Description):
    """A law of lengths, in tokens; every draw is at least 1."""

    __slots__ = ()
    part: ClassVar[str | None] = "lengths"


@dataclass(frozen=True, slots=True)
class Poisson(ArrivalLaw):
    """Independent exponential gaps with mean `1 / rate`: a Poisson process.

    Args:
        rate: requests per second, from 1e-9 to 1e12.

    Raises:
        ConfigError: naming `rate`.

    Source: the arrivals of li2025, ao2025, lin2026 and of most serving benchmarks.

    Example:
        >>> import inferq as iq
        >>> iq.Poisson(rate=5.5).describe()
        {'kind': 'Poisson', 'rate': 5.5}
    """

    rate: float


@dataclass(frozen=True, slots=True)
class Gamma(ArrivalLaw):
    """Independent gamma gaps with mean `1 / rate` and coefficient of variation `cv`.

    `cv=1` is a Poisson process in law, above 1 burstier, below 1 smoother.

    Args:
        rate: requests per second, from 1e-9 to 1e12.
        cv: standard deviation of a gap over its mean, from 1e-6 to 1000.

    Raises:
        ConfigError: naming `rate` or `cv`.

    Source: ServeGen (arXiv 2505.09999) fits gamma gaps to the clients of production traffic.

    Example:
        >>> import inferq as iq
        >>> iq.Gamma(rate=5, cv=2).describe()
        {'kind': 'Gamma', 'rate': 5, 'cv': 2}
    """

    rate: float
    cv: float


@dataclass(frozen=True, slots=True)
class Deterministic(ArrivalLaw):
    """Equal gaps of `1 / rate`.

    Args:
        rate: requests per second, from 1e-9 to 1e12.

    Raises:
        ConfigError: naming `rate`.

    Source: the D of Kendall's D/·/1.

    Example:
        >>> import inferq as iq
        >>> iq.Deterministic(rate=4).describe()
        {'kind': 'Deterministic', 'rate': 4}
    """

    rate: float


@dataclass(frozen=True, slots=True)
class Fixed(LengthLaw):
    """Every length is `tokens`.

    Args:
        tokens: at least 1.

    Raises:
        ConfigError: naming `tokens`.

    Source: the single-type settings of ao2025 and nie2026.

    Example:
        >>> import inferq as iq
        >>> iq.Fixed(128).describe()
        {'kind': 'Fixed', 'tokens': 128}
    """

    tokens: int


@dataclass(frozen=True, slots=True)
class Uniform(LengthLaw):
    """Every whole length from `low` to `high`, both included, is equally likely.

    Args:
        low: fewest tokens, at least 1.
        high: most tokens, at least `low`.

    Raises:
        ConfigError: naming `low` or `high`.

    Source: the synthetic loads of li2025 and of most serving benchmarks.

    Example:
        >>> import inferq as iq
        >>> iq.Uniform(10, 20).describe()
        {'kind': 'Uniform', 'low': 10, 'high': 20}
    """

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class LogUniform(LengthLaw):
    """Lengths from `low` to `high` whose logarithm is uniform: as many requests in each doubling.

    Args:
        low: fewest tokens, at least 1.
        high: most tokens, at least `low`.

    Raises:
        ConfigError: naming `low` or `high`.

    Source: long-document loads, whose lengths span orders of magnitude.

    Example:
        >>> import inferq as iq
        >>> iq.LogUniform(low=2000, high=128_000).describe()
        {'kind': 'LogUniform', 'low': 2000, 'high': 128000}
    """

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Lognormal(LengthLaw):
    """Lognormal lengths with the given mean and median, rounded to whole tokens, at least 1, at most `cap`.

    The parameters of the underlying normal are mu = ln(median) and sigma² = 2·ln(mean / median).

    Args:
        mean: tokens, at least `median`; that of the law before rounding and the cap.
        median: tokens, at least 1e-9.
        cap: longest length, or None for no cap but that of a request.

    Raises:
        ConfigError: naming `mean`, `median` or `cap`.

    Source: the usual fit for chat prompts and outputs.

    Example:
        >>> import inferq as iq
        >>> iq.Lognormal(mean=250, median=160, cap=4096).describe()
        {'kind': 'Lognormal', 'mean': 250, 'median': 160, 'cap': 4096}
    """

    mean: float
    median: float
    cap: int | None = None


@dataclass(frozen=True, slots=True)
class Geometric(LengthLaw):
    """Geometric lengths on 1, 2, 3, …: after each token the request ends with chance `1 / mean`.

    Args:
        mean: tokens, at least 1; that of the law before the cap.
        cap: longest length, or None for no cap but that of a request.

    Raises:
        ConfigError: naming `mean` or `cap`.

    Source: the discrete form of the exponential decode times of lin2026.

    Example:
        >>> import inferq as iq
        >>> iq.Geometric(mean=64).describe()
        {'kind': 'Geometric', 'mean': 64, 'cap': None}
    """

    mean: float
    cap: int | None = None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Empirical(LengthLaw):
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
        >>> iq.Empirical({"prompt_tokens": [10, 200], "output_tokens": [7, 3]}).describe()
        {'kind': 'Empirical', 'prompt_tokens': [10, 200], 'output_tokens': [7, 3]}
    """

    frame: pl.DataFrame

    def __post_init__(self) -> None:
        """Keep the two columns, checked."""
        from inferq.workload import Workload

        source: object = self.frame
        given = source if isinstance(source, Workload) else Workload(source)
        for name in ("prompt_tokens", "output_tokens"):
            if name not in given.frame.columns:
                raise ConfigError(f"Empirical.frame: has no column {name}")
        object.__setattr__(self, "frame", given.frame.select("prompt_tokens", "output_tokens"))

    def __repr__(self) -> str:
        """As a number of rows; there may be millions."""
        return f"Empirical({self.frame.height} rows)"

    def describe(self) -> dict[str, Any]:
        """The law as JSON-ready data, in the form that the core reads: all rows."""
        return {"kind": "Empirical", **self.frame.to_dict(as_series=False)}
