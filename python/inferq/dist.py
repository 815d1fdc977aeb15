"""Distributions of arrivals, lengths and durations, in one namespace.

| what | classes |
|---|---|
| arrivals, requests/s | `Poisson`, `Gamma`, `Weibull`, `Deterministic`, `OnOff`, `TimeVarying` |
| lengths, tokens | `Fixed`, `Uniform`, `LogUniform`, `Lognormal`, `Geometric`, `PoissonLength`, `Empirical` |
| durations, seconds | `Exponential` |

Example:
    >>> import inferq as iq
    >>> iq.dist.Lognormal(mean=200, median=120, cap=2048)
    Lognormal(mean=200, median=120, cap=2048)
"""

from inferq.workload.distributions import (
    Deterministic,
    Empirical,
    Exponential,
    Fixed,
    Gamma,
    Geometric,
    Lognormal,
    LogUniform,
    OnOff,
    Poisson,
    PoissonLength,
    TimeVarying,
    Uniform,
    Weibull,
)

__all__ = [
    "Deterministic",
    "Empirical",
    "Exponential",
    "Fixed",
    "Gamma",
    "Geometric",
    "LogUniform",
    "Lognormal",
    "OnOff",
    "Poisson",
    "PoissonLength",
    "TimeVarying",
    "Uniform",
    "Weibull",
]
