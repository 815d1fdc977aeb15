"""Requests drawn in one call."""

from numbers import Real
from typing import Any

import inferq as iq


def arriving(requests: int, arrivals: Any, prompt: Any, output: Any) -> iq.Workload:
    """A synthetic workload; a number for arrivals is a Poisson rate, one for lengths is that of all."""
    process = iq.dist.Poisson(arrivals) if isinstance(arrivals, Real) else arrivals  # type: ignore[arg-type]
    lengths = [iq.dist.Fixed(one) if isinstance(one, Real) else one for one in (prompt, output)]  # type: ignore[arg-type]
    return iq.Workload.synthetic(requests=requests, arrivals=process, prompt=lengths[0], output=lengths[1])
