"""Fleets of M/M/1 replicas against what queueing theory says of their routers, and a disaggregated tandem.

A replica serves one request at a time in the order of arrival, a whole prompt in one iteration of 1 µs a
token, and prompts have a geometric length of mean 10⁶: service is exponential with mean 1 s, but for the
grain. That leaves E[S] = 1 as it is and makes E[S²] 2 − 10⁻⁶ instead of 2: the wait in M/G/1,
λ·E[S²]/(2(1 − ρ)), is off by half a millionth of itself, ten thousand times less than the intervals are wide.

Every interval has a confidence of 99 %: Student's t over independent seeds, of means over all requests after
a warm-up. A test asks for a narrow one, and its seeds are fixed.
"""

from collections.abc import Callable

import numpy as np
import pytest

import inferq as iq

from .arriving import arriving
from .night import NIGHT

SEEDS = 12
STUDENT_99 = 3.1058
"""Student's t with 11 degrees of freedom: 99 % lie within so many standard errors."""

TOKEN_S = 1e-6

HEAVY = [(0.95, 400_000)] if NIGHT else []
"""A load at which queues are long takes a million requests to be sure of."""

LONGER = 3 if NIGHT else 1
"""At night runs have three times as many requests, and intervals must be √3 times as narrow."""


def replica() -> iq.Engine:
    """One whole prompt at a time, 1 µs a token."""
    return iq.Engine(
        timing=iq.PiecewiseLinear(base=0.0, per_token=TOKEN_S, knee=0),
        scheduler=iq.VllmV0(max_seqs=1, token_budget=1_000_000_000),
        kv=iq.KvCache.unlimited(),
    )


def agrees(expected: float, mean_of: Callable[[int], float], narrow: float) -> None:
    """The expected number is in the interval, which on a change is at most so wide to either side."""
    means = [mean_of(seed) for seed in range(1, SEEDS + 1)]
    half_width = STUDENT_99 * float(np.std(means, ddof=1)) / SEEDS**0.5
    says = f"theory {expected:.5f}, simulated {np.mean(means):.5f} ± {half_width:.5f}"
    assert half_width <= narrow * expected / LONGER**0.5, f"too wide to tell: {says}"
    assert abs(float(np.mean(means)) - expected) <= half_width, says


def mean_time(router: iq.Router, replicas: int, load: float, on_change: int) -> Callable[[int], float]:
    """Mean seconds in the system of the requests after the first fifth, each replica with this load."""
    requests = on_change * LONGER
    workload = arriving(requests, replicas * load, iq.dist.Geometric(1 / TOKEN_S), 1)
    cluster = iq.Cluster(replica(), replicas=replicas, router=router)

    def measured(seed: int) -> float:
        result = iq.simulate(workload, cluster, seed=seed, warmup=requests // 5)
        return float(result.requests.filter("measured")["e2e_s"].mean())  # type: ignore[arg-type]

    return measured


# Random: each replica has Poisson arrivals of its own.


@pytest.mark.parametrize(("load", "requests"), [(0.5, 35_000), (0.8, 100_000)])
def test_random_routing_makes_m_m_1_queues(load: float, requests: int) -> None:
    agrees(1 / (1 - load), mean_time(iq.Random(), 4, load, requests), narrow=0.05)


# RoundRobin: every n-th arrival of a Poisson process, so Erlang gaps.


def erlang_m_1(replicas: int, load: float) -> float:
    """Mean time in E_n/M/1: 1/(1 − σ), σ in (0, 1) the root of σ = A*(1 − σ), A* the transform of the gaps.

    Gaps are sums of n exponentials of rate nρ: A*(s) = (nρ/(nρ + s))ⁿ. A* is convex, so that repeated
    substitution from 0 goes up to the root.
    """
    rate, root = replicas * load, 0.0
    for _ in range(100_000):
        root = (rate / (rate + 1 - root)) ** replicas
    return 1 / (1 - root)


def test_one_server_with_erlang_gaps_of_one_phase_is_m_m_1() -> None:
    assert erlang_m_1(1, 0.8) == pytest.approx(5)


@pytest.mark.parametrize(
    ("replicas", "load", "requests"), [(2, 0.5, 35_000), (8, 0.5, 35_000), (8, 0.8, 130_000)]
)
def test_round_robin_makes_queues_with_erlang_arrivals(replicas: int, load: float, requests: int) -> None:
    expected = erlang_m_1(replicas, load)
    assert expected < 1 / (1 - load)
    agrees(expected, mean_time(iq.RoundRobin(), replicas, load, requests), narrow=0.05)


# LeastRequests over two: join the shortest queue.


def shortest_of_two(load: float, widest: int = 60) -> float:
    """Mean time under join-the-shortest-queue with two M/M/1 replicas, from its Markov chain.

    The state is (k, d): the shorter queue has k requests, the other k + d. Arrivals (rate 2ρ) join the
    shorter: (k, d) → (k + 1, d − 1), or (k, 0) → (k, 1). The longer one serves: d → d − 1. The shorter one
    serves: (k − 1, d + 1); of two equal ones either: (k − 1, 1). In k this is a quasi birth and death
    process, so π(k + 1) = π(k)·R for k ≥ 1, R the least root of R²·D + R·L + U = 0 (Neuts). d is cut at
    `widest`, beyond which the probability is below 10⁻³⁰. Little's law makes the mean number a time.
    """
    size = widest + 1
    up, down, within = (np.zeros((size, size)) for _ in range(3))
    for d in range(size):
        if d > 0:
            up[d, d - 1] = 2 * load
            within[d, d - 1] = 1.0
        else:
            within[0, 1] = 2 * load
        if d < widest:
            down[d, d + 1] = 1.0 if d > 0 else 2.0
    empty = within - np.diag((up + within).sum(axis=1))
    within -= np.diag((up + within + down).sum(axis=1))
    rates, inverse = np.zeros((size, size)), np.linalg.inv(within)
    while True:
        following = -(up + rates @ rates @ down) @ inverse
        if np.abs(following - rates).max() < 1e-15:
            break
        rates = following
    # Levels 0 and 1 balance each other, and all probabilities add up to 1.
    identity = np.eye(size)
    balance = np.block([[empty, up], [down, within + rates @ down]])
    beyond = np.linalg.inv(identity - rates)
    balance[:, 0] = np.concatenate([np.ones(size), beyond.sum(axis=1)])
    chances = np.linalg.solve(balance.T, np.concatenate([[1.0], np.zeros(2 * size - 1)]))
    first, second = chances[:size], chances[size:]
    assert first[-1] < 1e-15
    # Σ over k ≥ 1 of π(k) and of k·π(k).
    levels, weighted = second @ beyond, second @ beyond @ beyond
    difference = float((first + levels) @ np.arange(size))
    number = 2 * float(weighted.sum()) + difference
    return number / (2 * load)


def test_the_chain_of_two_queues_lies_between_one_queue_for_both_and_no_coordination() -> None:
    for load in (0.5, 0.8, 0.95):
        # One queue for two servers, M/M/2: 1/(1 − ρ²).
        assert 1 / (1 - load**2) < shortest_of_two(load) < erlang_m_1(2, load)


@pytest.mark.parametrize(("load", "requests"), [(0.5, 35_000), (0.8, 100_000), *HEAVY])
def test_least_requests_over_two_is_join_the_shortest_queue(load: float, requests: int) -> None:
    agrees(shortest_of_two(load), mean_time(iq.LeastRequests(), 2, load, requests), narrow=0.07)


# PowerOfTwo over many: Mitzenmacher's limit, and the next term in 1/n.


def power_of_two_limit(load: float) -> float:
    """Mean time for n → ∞: Σ over i ≥ 1 of ρ^(2^i − 2), Mitzenmacher (2001)."""
    return sum(load ** (2**i - 2) for i in range(1, 12))


def power_of_two(load: float, replicas: int, longest: int = 40) -> float:
    """Mean time with n replicas, but for O(1/n²): the limit and the term C/n.

    Let x_i be the share of replicas with i requests or more. An arrival (rate nρ) raises x_i by 1/n with
    probability p_i = c(x_{i−1}) − c(x_i), a service (rate n) lowers it with x_i − x_{i+1}. Two different
    replicas both have i or more with probability c(x) = x(nx − 1)/(n − 1) = x² − x(1 − x)/n + O(1/n²). So the
    drift is f + g/n with f_i = ρ(x_{i−1}² − x_i²) − (x_i − x_{i+1}) and g_i = ρ(h(x_i) − h(x_{i−1})),
    h(x) = x(1 − x). At the fixed point x_i = ρ^(2^i − 1) let A = f′, and Q the rates of both kinds of jumps
    (they cancel no further: Q is diagonal with twice the rate of each). Then x has covariance W/n with
    A·W + W·Aᵀ + Q = 0, and mean x + V/n with A·V + g + ½·f″·W = 0 (Gast and Van Houdt, A refined mean field
    approximation, 2017). Here f″·W is 2ρ(W_{i−1,i−1} − W_{i,i}).
    """
    share = np.array([load ** (2.0**i - 1) for i in range(longest + 1)])  # x_0 = 1
    x, before = share[1:], share[:-1]
    after = np.append(share[2:], 0.0)
    jacobian = np.diag(-2 * load * x - 1) + np.diag(2 * load * x[:-1], -1) + np.diag(np.ones(longest - 1), 1)
    noise = np.diag(load * (before**2 - x**2) + (x - after))
    identity = np.eye(longest)
    lyapunov = np.kron(jacobian, identity) + np.kron(identity, jacobian)
    variance = np.linalg.solve(lyapunov, -noise.reshape(-1)).reshape(longest, longest).diagonal()
    spread = load * (np.append(0.0, variance[:-1]) - variance)
    distinct = load * (x * (1 - x) - before * (1 - before))
    correction = np.linalg.solve(jacobian, -(spread + distinct))
    return float(x.sum() + correction.sum() / replicas) / load


def test_the_limit_of_the_two_choices_is_the_leading_term() -> None:
    for load in (0.5, 0.9):
        assert power_of_two(load, 10**12) == pytest.approx(power_of_two_limit(load))


@pytest.mark.parametrize(("load", "requests"), [(0.5, 70_000), (0.8, 100_000), *HEAVY])
def test_power_of_two_over_many_is_mitzenmachers_limit_with_its_next_term(load: float, requests: int) -> None:
    replicas = 200
    expected = power_of_two(load, replicas)
    # The next term is all that lies between: it is of order 1/n.
    assert abs(expected / power_of_two_limit(load) - 1) < 10 / replicas
    agrees(expected, mean_time(iq.PowerOfTwo(), replicas, load, requests), narrow=0.0175)


# Prefill, link, decode: a tandem.


def tandem(link_s: float, concurrent: int | None, prefill: int = 1) -> iq.Disaggregated:
    """Prompts take 1 s, one at a time; a transfer takes `link_s`; decodes take no time that counts.

    A decode lasts 1 ns. Transfers end at least as far apart as prompts, so no request waits to decode, and
    `handoff_s` is the wait for the link and the transfer.
    """
    many = iq.Engine(timing=iq.Constant(1e-9), scheduler=iq.Sarathi(), kv=iq.KvCache.unlimited())
    link = iq.Link(link_s, bytes_per_s=1, bytes_per_token=0, concurrent=concurrent)
    return iq.Disaggregated(
        prefill=(replica(), prefill), decode=(many, 1), link=link, prefill_router=iq.Random()
    )


def handed_off(system: iq.Disaggregated, rate: float, requests: int, seed: int) -> dict[str, np.ndarray]:
    """When each request arrived, how long it waited for its prefill, and its hand-off; all in seconds."""
    workload = arriving(requests, rate, round(1 / TOKEN_S), 2)
    rows = iq.simulate(workload, system, seed=seed).requests
    arrival_s, prefilled_s = rows["arrival_s"].to_numpy(), rows["prefilled_s"].to_numpy()
    return {
        "arrival": arrival_s,
        "prefill wait": prefilled_s - arrival_s - 1.0,
        "handoff": rows["handoff_s"].to_numpy(),
    }


def m_d_1(rate: float, service_s: float) -> float:
    """Mean wait by Pollaczek and Khinchine: ρ·D / (2(1 − ρ))."""
    load = rate * service_s
    return load * service_s / (2 * (1 - load))


REQUESTS, WARM_UP = 35_000 * LONGER, 3_500 * LONGER


@pytest.mark.parametrize(("replicas", "load"), [(1, 0.5), (1, 0.8), (3, 0.8)])
def test_the_prefill_side_alone_is_m_d_1(replicas: int, load: float) -> None:
    def wait(seed: int) -> float:
        found = handed_off(tandem(0.1, None, replicas), replicas * load, REQUESTS, seed)
        return float(found["prefill wait"][WARM_UP:].mean())

    agrees(m_d_1(load, 1.0), wait, narrow=0.05)


@pytest.mark.parametrize(("link_s", "concurrent"), [(0.9, 1), (1.0, 1), (1.9, 2), (5.0, None)])
def test_a_link_that_keeps_up_with_one_prefill_replica_keeps_nobody_waiting(
    link_s: float, concurrent: int | None
) -> None:
    # Prompts are done at least 1 s apart, and c lanes take c transfers in each D_link ≤ c seconds.
    found = handed_off(tandem(link_s, concurrent), 0.9, 20_000, seed=1)
    assert found["handoff"] == pytest.approx(np.full(20_000, link_s), abs=1e-8)


def test_a_slow_link_is_a_queue_that_the_prefills_feed() -> None:
    # Two servers in a row with times 1 s and 1.25 s let each request go when they would in the other order
    # (Friedman 1965), and there a request waits for the slow one only: the waits for prefill and link
    # together are those of M/D/1 with D = 1.25 s.
    rate, link_s = 0.6, 1.25
    prefill, both = m_d_1(rate, 1.0), m_d_1(rate, link_s)

    def link_wait(seed: int) -> float:
        return float(
            (handed_off(tandem(link_s, 1), rate, REQUESTS, seed)["handoff"][WARM_UP:] - link_s).mean()
        )

    agrees(both - prefill, link_wait, narrow=0.05)

    # Request for request: each one leaves at 1 s after it would leave the slow server alone.
    found = handed_off(tandem(link_s, 1), rate, 20_000, seed=1)
    gone_s, alone = found["arrival"] + found["prefill wait"] + 1.0 + found["handoff"], 0.0
    for arrival_s, this_s in zip(found["arrival"], gone_s, strict=True):
        alone = max(alone, arrival_s) + link_s
        assert this_s == pytest.approx(alone + 1.0, abs=1e-6)
