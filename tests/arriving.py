"""Synthetic workloads in one call."""

from numbers import Real
from typing import Any

import inferq as iq


def arriving(requests: int, arrivals: Any, prompt: Any, output: Any) -> iq.Workload:
    """Create a synthetic workload. Numbers are a Poisson rate or a constant length."""
    process = iq.dist.Poisson(arrivals) if isinstance(arrivals, Real) else arrivals  # type: ignore[arg-type]
    lengths = [iq.dist.Fixed(value) if isinstance(value, Real) else value for value in (prompt, output)]  # type: ignore[arg-type]
    return iq.Workload.synthetic(requests=requests, arrivals=process, prompt=lengths[0], output=lengths[1])
