"""Does the bisection find the edge of stability, where it is known?"""

import pytest

import inferq as iq
from inferq_papers.edge import edge, unit

ONE_SERVER = iq.Engine(timing=iq.Constant(0.5), scheduler=iq.Sarathi(max_seqs=1), kv=iq.KvCache.unlimited())
"""Serves two requests a second."""


def asked(requests: int, arrivals: object) -> iq.Workload:
    return iq.Workload.synthetic(
        requests=requests, arrivals=arrivals, prompt=iq.dist.Fixed(8), output=iq.dist.Fixed(1)
    )


@pytest.mark.parametrize("seed", range(3))
def test_the_edge_of_one_server_is_its_rate_of_service(seed: int):
    # above 2: μ/(1 − ε) and a step; below: a load of 0.98 passes for unstable 3 times in 1,000 (n = 30,000)
    same = unit(asked(40_000, iq.dist.Poisson(1.0)), seed)
    found = edge(lambda rate: iq.simulate(same.speed(rate), ONE_SERVER), 1.0, 3.0, steps=9)
    assert 2 * 0.98 <= found.rate <= 2 / (1 - 0.005) + 2 * found.step
    assert found.low <= found.rate <= found.high
    assert found.step == pytest.approx(2 / 2**10)
    assert len(found.probes) == 11
    said = dict(found.probes)
    assert (said[1.0].verdict, said[3.0].verdict) == ("stable", "unstable")


def test_unit_draws_the_same_requests_and_knows_their_rate():
    same = unit(asked(2000, iq.dist.Poisson(50.0)), 3)
    seen = iq.theory.observed(iq.simulate(same.speed(1.5), ONE_SERVER))
    assert seen.rate_per_s == pytest.approx(1.5, rel=1e-3)


def test_ends_that_do_not_hold_the_edge_are_named():
    same = unit(asked(4000, iq.dist.Deterministic(1.0)))

    def run(rate: float) -> iq.Result:
        return iq.simulate(same.speed(rate), ONE_SERVER)

    with pytest.raises(iq.ConfigError, match="low: the system is not stable at 3"):
        edge(run, 3.0, 4.0)
    with pytest.raises(iq.ConfigError, match=r"high: the system is stable at 1\.5"):
        edge(run, 1.0, 1.5)
    with pytest.raises(iq.ConfigError, match="0 < low < high"):
        edge(run, 2.0, 1.0)
    with pytest.raises(iq.ConfigError, match="steps"):
        edge(run, 1.0, 3.0, steps=0)
    few = unit(asked(100, iq.dist.Poisson(1.0)))
    with pytest.raises(iq.ConfigError, match="too short"):
        edge(lambda rate: iq.simulate(few.speed(rate), ONE_SERVER), 1.0, 3.0)
    at_once = {"arrival_s": [0.0, 0.0], "prompt_tokens": [1, 1], "output_tokens": [1, 1]}
    with pytest.raises(iq.ConfigError, match="at the same time"):
        unit(iq.Workload(at_once))
