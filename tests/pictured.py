"""Runs for tests of charts and pages."""

import inferq as iq

from .arriving import arriving

ENGINE = iq.Engine(
    timing=iq.PiecewiseLinear(base=0.006, per_token=32e-6, knee=200, per_context_token=40e-9),
    scheduler=iq.Sarathi(token_budget=512, max_seqs=64),
    kv=iq.KvCache(tokens=40_000),
)
SHORT = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.Sarathi(), kv=iq.KvCache(tokens=1000))


def synthetic(requests: int, rate: float, prompt: int, output: int) -> iq.Workload:
    return arriving(requests, rate, iq.dist.Geometric(prompt), iq.dist.Geometric(output))


def run_of_a_fleet(chat: str = "chat", code: str = "code") -> iq.Result:
    """A run of two classes on three replicas."""
    asked = iq.Workload.mix({chat: synthetic(900, 20, 200, 100), code: synthetic(300, 7, 900, 30)})
    return iq.simulate(asked, iq.Cluster(ENGINE, replicas=3, router=iq.LeastRequests()), seed=4, warmup=100)
