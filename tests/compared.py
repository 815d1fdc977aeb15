"""Systems and workloads that experiments are tried on; of some the mean wait is known."""

from typing import Any

import inferq as iq

from .arriving import arriving

CHAT = arriving(300, 2, iq.dist.Geometric(500), iq.dist.Geometric(60))


def engine(scheduler: iq.Scheduler | None = None, **fields: Any) -> iq.Engine:
    timing = iq.PiecewiseLinear(base=0.02, per_token=0.0002)
    given: dict[str, Any] = {"timing": timing, "kv": iq.KvCache(tokens=100_000), **fields}
    return iq.Engine(scheduler=scheduler or iq.Sarathi(), **given)


def one_by_one(service_s: float) -> iq.Engine:
    """One request at a time, each served in one iteration: with Poisson arrivals an M/D/1 queue."""
    scheduler = iq.Sarathi(max_seqs=1)
    return iq.Engine(timing=iq.Constant(service_s), scheduler=scheduler, kv=iq.KvCache.unlimited())


def md1(requests: int, rate: float = 1.0) -> iq.Workload:
    one = iq.dist.Fixed(1)
    return iq.Workload.synthetic(requests=requests, arrivals=iq.dist.Poisson(rate), prompt=one, output=one)


def md1_wait_s(service_s: float, rate: float = 1.0) -> float:
    """Mean wait for admission (Pollaczek and Khinchine)."""
    load = rate * service_s
    return load * service_s / (2 * (1 - load))


PAIR = {"sarathi": engine(), "vllm-v0": engine(iq.VllmV0())}
