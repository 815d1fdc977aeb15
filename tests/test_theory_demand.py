"""Is what theory takes from a workload what the workload's distribution says?"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import inferq as iq
from inferq.theory import RequestClass
from inferq.theory.demands.demand import Demand
from inferq.theory.demands.lengths import Lengths
from inferq.workload.distributions import LengthDistribution

from .refusals import refused

PAIR = iq.dist.Empirical({"prompt_tokens": [1], "output_tokens": [1]})
DISTRIBUTIONS = [
    iq.dist.Fixed(7),
    iq.dist.Uniform(3, 40),
    iq.dist.Uniform(1, 20_000),
    iq.dist.LogUniform(5, 60_000),
    iq.dist.Lognormal(mean=250, median=150, cap=4096),
    iq.dist.Lognormal(mean=40, median=39),
    iq.dist.Geometric(mean=64),
    iq.dist.Geometric(mean=300, cap=500),
    iq.dist.PoissonLength(mean=0.7),
    iq.dist.PoissonLength(mean=512),
]


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=repr)
def test_expectations_over_a_distribution_are_those_of_what_the_core_draws(distribution: LengthDistribution):
    drawn = distribution.draw_column(400_000, seed=5).astype(float)
    taken = Lengths.of(distribution, 1)
    for f in (lambda s: s, lambda s: s * s, lambda s: np.ceil(s / 16)):
        values = f(drawn)
        error = values.std() / math.sqrt(len(drawn))
        # 5 standard errors: missed by a right distribution once in 1.7 million times.
        assert abs(taken.mean(lambda s, o, f=f: f(s) * o) - values.mean()) <= 5 * error + 1e-9 * values.mean()


@given(low=st.integers(1, 30), span=st.integers(0, 30), tokens=st.integers(1, 50))
def test_a_mean_over_independent_lengths_is_the_sum_over_all_pairs(low: int, span: int, tokens: int):
    lengths = Lengths.of(iq.dist.Uniform(low, low + span), iq.dist.Uniform(1, tokens))
    pairs = [(s, o) for s in range(low, low + span + 1) for o in range(1, tokens + 1)]
    by_hand = sum(s * o + o * o for s, o in pairs) / len(pairs)
    assert lengths.mean(lambda s, o: s * o + o * o) == pytest.approx(by_hand, rel=1e-12)
    assert lengths.prompt_mean == pytest.approx(low + span / 2, rel=1e-12)
    assert lengths.decode_mean("prefill") == pytest.approx((tokens + 1) / 2 - 1, rel=1e-12, abs=1e-12)
    assert lengths.most(lambda s, o: s + o) == low + span + tokens


def test_observed_pairs_stay_pairs():
    together = Lengths.observed([10, 1000], [1, 100])
    assert together.mean(lambda s, o: s * o) == (10 + 100_000) / 2
    apart = Lengths.of(iq.dist.Uniform(10, 10), 1)
    mixture = Lengths.mixed([(3.0, together), (1.0, apart)])
    assert mixture.mean(lambda s, o: s * o) == pytest.approx(0.75 * 50_005 + 0.25 * 10)
    assert not mixture.is_fixed
    assert apart.is_fixed


def test_a_distribution_without_a_longest_length_has_no_end():
    assert math.isinf(Lengths.of(iq.dist.Geometric(mean=5), 1).most(lambda s, o: s + o))
    assert Lengths.of(iq.dist.Geometric(mean=5, cap=90), 1).most(lambda s, o: s + o) == 91
    assert Lengths.of(iq.dist.Uniform(1, 100_000), 1).most(lambda s, o: s + o) == 100_001


def synthetic(rate: float, **more: object) -> iq.Workload:
    lengths = {"prompt": iq.dist.Fixed(10), "output": iq.dist.Uniform(1, 9), **more}
    return iq.Workload.synthetic(requests=50, arrivals=iq.dist.Poisson(rate), **lengths)  # type: ignore[arg-type]


def test_a_distribution_is_taken_as_it_is_and_not_as_it_is_drawn():
    demand = Demand.of(synthetic(3.0).speed(2))
    assert demand.rate == 6
    assert demand.poisson is True
    assert demand.lengths.output_mean == 5


def test_a_mix_keeps_its_parts_apart_and_weighs_them_by_their_rates():
    mix = iq.Workload.mix({"chat": synthetic(3.0), "code": synthetic(1.0, prompt=iq.dist.Fixed(90))})
    demand = Demand.of(mix)
    assert demand.rate == 4
    assert demand.shares() == {"chat": 0.75, "code": 0.25}
    assert demand.lengths.prompt_mean == 0.75 * 10 + 0.25 * 90


def test_shares_of_classes_divide_the_rate():
    demand = Demand.of(synthetic(8.0).with_classes({"a": 0.25, "b": 0.75}))
    assert [(one.name, one.rate) for one in demand.classes] == [("a", 2.0), ("b", 6.0)]


def test_a_recorded_workload_counts_its_gaps_and_its_rows():
    rows = {"arrival_s": [0.0, 1.0, 2.0, 6.0], "prompt_tokens": [1, 2, 3, 4], "output_tokens": [4, 3, 2, 1]}
    demand = Demand.of(iq.Workload({**rows, "class": ["a", "b", "a", "a"]}))
    assert demand.rate == 3 / 6
    assert demand.poisson is None
    assert demand.shares() == {"a": 0.75, "b": 0.25}
    assert demand.lengths.mean(lambda s, o: s * o) == (4 + 6 + 6 + 4) / 4
    # Five tokens each; of the ten parts of the span, 0.6 s each, none has more than one request.
    assert demand.peak(lambda s, o: s + o) == pytest.approx(10 / 4)
    # Prompts alone: 4 of 10. Class "b": one request in one part. Of two in turn one has 4 of 10.
    assert demand.peak(lambda s, o: s) == pytest.approx(10 * 4 / 10)
    assert demand.peak(lambda s, o: 1 + 0 * s, name="b") == pytest.approx(10)
    assert demand.peak(lambda s, o: s, turns=2) == pytest.approx(2 * 10 * 4 / 10)


def test_rates_that_change_count_in_the_long_run():
    day = iq.dist.TimeVarying(times_s=[0, 10], rates=[1, 4], period_s=40)
    workload = iq.Workload.synthetic(
        requests=9, arrivals=day, prompt=iq.dist.Fixed(1), output=iq.dist.Fixed(1)
    )
    demand = Demand.of(workload)
    assert demand.rate == (10 * 1 + 30 * 4) / 40
    assert demand.busiest == demand.peak(lambda s, o: s) == 4 / demand.rate
    bursts = iq.dist.OnOff(on_rate=20, mean_on_s=5, mean_off_s=15)
    workload = iq.Workload.synthetic(
        requests=9, arrivals=bursts, prompt=iq.dist.Fixed(1), output=iq.dist.Fixed(1)
    )
    assert Demand.of(workload).rate == 5


def test_a_closed_loop_has_no_rate_of_its_own():
    chat = iq.Workload.sessions(
        sessions=4, arrivals=iq.dist.Poisson(1.0), turns=3, prompt=10, output=20, think=5.0
    )
    demand = Demand.of(chat, needs_rate=False)
    assert demand.rate is None
    assert demand.closed_loop
    with pytest.raises(iq.ConfigError, match="rate: the workload is a closed loop"):
        Demand.of(chat)
    assert Demand.of(chat, rate=2.0).rate == 2


@refused(
    ({"rate": 0, "prompt": 1, "output": 1}, "class 'default': rate: must be a positive number per second"),
    ({"rate": -1.0, "prompt": 1, "output": 1}, "rate"),
    ({"rate": math.nan, "prompt": 1, "output": 1}, "rate"),
    ({"rate": math.inf, "prompt": 1, "output": 1}, "rate"),
    ({"rate": True, "prompt": 1, "output": 1}, "rate"),
    ({"rate": 1, "prompt": 0, "output": 1}, "prompt|tokens"),
    ({"rate": 1, "prompt": 1.5, "output": 1}, "class 'default': prompt: must be a number of tokens"),
    ({"rate": 1, "prompt": 1}, "class 'default': output"),
    ({"rate": 1, "prompt": 1, "output": 1, "name": ""}, "name: must be a non-empty string"),
    ({"rate": 1, "prompt": 1, "output": 1, "abandonment": -1}, "abandonment"),
    (
        {"rate": 1, "prompt": 1, "lengths": iq.dist.Empirical({"prompt_tokens": [1], "output_tokens": [1]})},
        "conflicts with prompt and output",
    ),
)
def test_a_class_that_makes_no_sense_is_refused_by_name(arguments: dict[str, object]):
    RequestClass(**arguments)  # type: ignore[arg-type]


def test_what_is_no_demand_is_refused():
    one = RequestClass(rate=1, prompt=1, output=1)
    for asked, said in [
        ([], "must contain at least one class"),
        ([one, one], r"workload\[1\].name: must be unique, got 'default' twice"),
        ([one, 3], r"workload\[1\]"),
        ("chat", "must be a Workload, a RequestClass"),
        (None, "must be a Workload, a RequestClass"),
    ]:
        with pytest.raises(iq.ConfigError, match=said):
            Demand.of(asked)  # type: ignore[arg-type]
    with pytest.raises(iq.ConfigError, match="rate: must be"):
        Demand.of(one, rate=0)
    with pytest.raises(iq.ConfigError, match="rate: the workload has no arrivals; set rate="):
        Demand.of(iq.Workload({"prompt_tokens": [1], "output_tokens": [1]}))
    with pytest.raises(iq.TraceError, match="no output_tokens"):
        Demand.of(iq.Workload({"arrival_s": [0.0, 1.0], "prompt_tokens": [1, 1]}))
