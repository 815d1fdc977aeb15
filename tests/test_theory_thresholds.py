"""Do the thresholds of WAIT and nested WAIT meet their conditions, and is nothing below them enough?"""

import itertools
import math
from collections.abc import Sequence
from functools import partial

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import inferq as iq
from inferq.theory import RequestClass
from inferq.theory.thresholds.nested_wait_thresholds import exponent
from inferq.theory.thresholds.wait_thresholds import Periods

from .arriving import arriving
from .refusals import refused

wait_thresholds = partial(iq.theory.wait_thresholds, first_token="decode")
"""ao2025 counts a decode for every output token."""
nested_wait_thresholds = partial(iq.theory.nested_wait_thresholds, first_token="decode")
LLAMA = iq.research.MemoryLinear(base=0.015, per_kv_token=2.6e-7)
LOW = [
    RequestClass(name="short", rate=1000, prompt=10, output=10),
    RequestClass(name="long", rate=1000, prompt=10, output=20),
]
Kinds = list[tuple[float, int, int]]


def asked(kinds: Kinds) -> list[RequestClass]:
    return [
        RequestClass(name=str(place), rate=rate, prompt=prompt, output=output)
        for place, (rate, prompt, output) in enumerate(kinds)
    ]


def held(prompt: float, first: int, last: int) -> float:
    """Tokens of one request at each of these stages."""
    return math.fsum(prompt + stage for stage in range(first, last + 1))


def scaled(kinds: Kinds, timing: iq.research.MemoryLinear, load: float) -> Kinds:
    now = timing.per_kv_token * sum(rate * held(prompt, 0, output) for rate, prompt, output in kinds)
    return [(rate * load / now, prompt, output) for rate, prompt, output in kinds]


@st.composite
def known(draw: st.DrawFn) -> tuple[Kinds, iq.research.MemoryLinear]:
    lengths = draw(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 20)), min_size=1, max_size=3))
    kinds = [(draw(st.floats(0.2, 5)), prompt, output) for prompt, output in lengths]
    timing = iq.research.MemoryLinear(
        base=draw(st.floats(1e-3, 0.5)), per_kv_token=draw(st.floats(1e-6, 1e-3))
    )
    return scaled(kinds, timing, draw(st.floats(0.02, 0.7))), timing


def iteration_s(kinds: Kinds, timing: iq.research.MemoryLinear, n: Sequence[int]) -> float:
    """ΔT of (9), stage by stage."""
    tokens = sum(count * held(prompt, 0, output) for count, (_, prompt, output) in zip(n, kinds, strict=True))
    return timing.base + timing.per_kv_token * tokens


def meets_9(kinds: Kinds, timing: iq.research.MemoryLinear, n: Sequence[int], margin: float = 0.0) -> bool:
    lasts_s = iteration_s(kinds, timing, n) * (1 + margin)
    return all(lasts_s < count / rate for count, (rate, _, _) in zip(n, kinds, strict=True))


@given(known(), st.sampled_from([0.0, 0.1, 0.3]))
def test_thresholds_meet_9_and_nothing_below_them_does(
    case: tuple[Kinds, iq.research.MemoryLinear], margin: float
):
    kinds, timing = case
    found = wait_thresholds(asked(kinds), timing, margin=margin)
    n = list(found.thresholds.values())
    assert found.feasible and found.throughput_gap == "1/T"
    assert meets_9(kinds, timing, n, margin)
    assert found.iteration_s == pytest.approx(iteration_s(kinds, timing, n))
    assert found.kv_tokens_needed == pytest.approx(
        sum(count * held(prompt, 0, output) for count, (_, prompt, output) in zip(n, kinds, strict=True))
    )
    # Least in every place: fix one number below, and let all others be as large as they like.
    for place in range(len(n)):
        if n[place] > 1:
            beside = [range(1, n[j] + 4) if j != place else range(1, n[place]) for j in range(len(n))]
            for others in itertools.islice(itertools.product(*beside), 300):
                assert not meets_9(kinds, timing, others, margin)


@settings(max_examples=40)
@given(known())
def test_given_thresholds_are_judged_by_9(case: tuple[Kinds, iq.research.MemoryLinear]):
    kinds, timing = case
    least = list(wait_thresholds(asked(kinds), timing).thresholds.values())
    for n in (least, [count + 1 for count in least], [max(1, count - 1) for count in least]):
        named = {str(place): count for place, count in enumerate(n)}
        judged = wait_thresholds(asked(kinds), timing, thresholds=named)
        assert judged.feasible == meets_9(kinds, timing, n)
        assert bool(judged.reason) == (not judged.feasible)
        assert all((one.queue_bound is not None) == (one.slack > 0) for one in judged.classes)


def test_equality_in_9_is_enough_without_strictness_only():
    # A.3: d0 + 9·d1 = 1 with one request of each type per second and one at each stage.
    kinds, timing = [(1.0, 1, 1), (1.0, 1, 2)], iq.research.MemoryLinear(base=0.55, per_kv_token=0.05)
    equal = wait_thresholds(asked(kinds), timing, kv_tokens=9, strict=False)
    assert equal.thresholds == {"0": 1, "1": 1}
    assert (equal.feasible, equal.throughput_gap) == (True, "1/sqrt(T)")
    assert equal.kv_tokens_needed == 9
    assert [one.slack for one in equal.classes] == pytest.approx([0, 0])
    assert [one.queue_bound for one in equal.classes] == [None, None]
    strict = wait_thresholds(asked(kinds), timing)
    assert strict.thresholds == {"0": 2, "1": 2}
    assert wait_thresholds(asked(kinds), timing, thresholds=1).feasible is False
    assert wait_thresholds(asked(kinds), timing, kv_tokens=9).feasible is False


def test_the_low_demand_of_section_6():
    found = wait_thresholds(LOW, LLAMA, kv_tokens=125_000)
    # 18 at 11 + 21 stages; 15 ms + 0.26 µs · 18 · 585 = 17.74 ms, in which 17.74 requests of each type come.
    assert found.thresholds == {"short": 18, "long": 18}
    assert found.batch_limit == 18 * 32
    assert found.kv_tokens_needed == 18 * 585
    assert found.iteration_s == pytest.approx(0.015 + 2.6e-7 * 18 * 585)
    assert [one.time_in_system_s for one in found.classes] == pytest.approx([0.198, 0.378])
    assert found.scheduler() == iq.research.Wait(thresholds={"short": 18, "long": 18})
    assert found.scheduler(max_seqs=600).max_seqs == 600
    text = found.explain()
    for number in ("0.0177378", "17.7378", "10,530", "125,000", "576", "0.198", "0.378", "69.8249"):
        assert number in text


def test_demand_beyond_the_fluid_has_no_thresholds():
    found = wait_thresholds(LOW, LLAMA, rate=14_000)
    assert found.feasible is False
    assert "not below 1" in found.reason
    assert (dict(found.thresholds), found.classes, found.iteration_s) == ({}, (), None)
    assert (found.kv_tokens_needed, found.throughput_gap, found.batch_limit) == (None, None, None)
    assert "infeasible" in found.explain() and "nan" not in found.explain()
    with pytest.raises(iq.ConfigError, match="thresholds: the load is"):
        found.scheduler()
    # A margin asks for more than the load does.
    assert wait_thresholds(LOW, LLAMA, rate=12_000).feasible is True
    assert wait_thresholds(LOW, LLAMA, rate=12_000, margin=0.2).feasible is False


def test_a_cache_below_the_least_thresholds_is_named():
    found = wait_thresholds(LOW, LLAMA, kv_tokens=10_529)
    assert found.feasible is False
    assert found.reason == "the least thresholds need 10,530 tokens of KV cache, it has 10,529"
    assert found.thresholds == {"short": 18, "long": 18}
    assert wait_thresholds(LOW, LLAMA, kv_tokens=10_530).feasible is True


def test_a_class_of_many_lengths_is_taken_with_means_and_says_so():
    mixed = RequestClass(rate=50, prompt=iq.dist.Uniform(5, 15), output=iq.dist.Uniform(1, 39))
    found = wait_thresholds(mixed, LLAMA)
    met = {one.name: one.met for one in found.hypotheses}
    assert met["all requests of a class have the same lengths"] is False
    n = found.thresholds["default"]
    # Memory with the longest of all: 40 stages with prompts of 15.
    assert found.kv_tokens_needed == n * held(15, 0, 39)
    endless = wait_thresholds(RequestClass(rate=50, prompt=5, output=iq.dist.Geometric(mean=20)), LLAMA)
    assert endless.feasible is True
    assert (endless.kv_tokens_needed, endless.batch_limit) == (None, None)


def test_wait_holds_no_more_than_it_should_and_queues_stay_below_their_bound():
    found = wait_thresholds(LOW, LLAMA, first_token="prefill")
    parts = [arriving(40_000, 1000, 10, o) for o in (10, 20)]
    requests = parts[0].with_classes("short").concat(parts[1].with_classes("long"))
    kv = iq.KvCache(tokens=int(found.kv_tokens_needed or 0), block=1)
    result = iq.simulate(requests, iq.Engine(timing=LLAMA, scheduler=found.scheduler(), kv=kv), seed=4)
    assert result.requests["preemptions"].sum() == 0
    assert result.requests["status"].unique().to_list() == ["finished"]
    # Kingman's bound is on the mean at ends of iterations; Little gives the mean over time, which has the
    # arrivals of half an iteration more at most.
    for one in found.classes:
        waited_s = result.requests.filter(pl.col("class") == one.name)["queue_s"].mean()
        assert isinstance(waited_s, float) and one.queue_bound is not None
        assert one.rate * waited_s <= one.queue_bound + one.arrivals


@st.composite
def windows(draw: st.DrawFn) -> tuple[Periods, float]:
    spans = draw(st.lists(st.integers(1, 9), min_size=2, max_size=5))
    rates = [{"a": float(draw(st.integers(0, 9)))} for _ in spans]
    return Periods(tuple(float(span) for span in spans), tuple(rates)), draw(st.integers(1, 30))


@given(windows())
def test_the_fullest_window_is_the_fullest_of_all(case: tuple[Periods, float]):
    pace, window_s = case
    # All changes are at whole seconds, so a window that begins at one is the fullest.
    seconds = [
        here["a"] for span, here in zip(pace.seconds, pace.rates, strict=True) for _ in range(int(span))
    ]
    turns = seconds * (2 + int(window_s) // len(seconds))
    by_hand = max(sum(turns[start : start + int(window_s)]) for start in range(len(seconds)))
    assert pace.most(window_s, "a") == pytest.approx(by_hand)
    assert pace.mean("a") == pytest.approx(sum(seconds) / len(seconds))


def test_rates_that_change_ask_for_the_fullest_window():
    day = [(10.0, {"short": 3000.0, "long": 200.0}), (30.0, {"short": 200.0, "long": 1500.0})]
    found = wait_thresholds(LOW, LLAMA, periods=day)
    # Iterations are far shorter than the periods: the fullest window is at the larger rate.
    assert found.feasible and found.iteration_s is not None and found.iteration_s < 1
    assert found.thresholds["short"] == math.floor(3000 * found.iteration_s) + 1
    assert found.thresholds["long"] == math.floor(1500 * found.iteration_s) + 1
    met = {one.name: one.met for one in found.hypotheses}
    assert met["constant rates"] is False
    steady = [(5.0, {"short": 1000.0, "long": 1000.0})]
    assert wait_thresholds(LOW, LLAMA, periods=steady).thresholds == {"short": 18, "long": 18}
    # Peaks above what an engine can bear for long are no obstacle, a mean above it is.
    peak = [(0.02, {"short": 30_000.0, "long": 100.0}), (0.2, {"short": 100.0, "long": 100.0})]
    assert wait_thresholds(LOW, LLAMA, periods=peak).feasible is True
    ever = [(1.0, {"short": 30_000.0, "long": 1000.0}), (1.0, {"short": 30_000.0, "long": 8000.0})]
    assert wait_thresholds(LOW, LLAMA, periods=ever).feasible is False


def test_wait_keeps_up_with_rates_that_change():
    day = [(2.0, {"short": 3000.0, "long": 200.0}), (3.0, {"short": 200.0, "long": 1500.0})]
    found = wait_thresholds(LOW, LLAMA, periods=day)
    laws = {
        name: iq.dist.TimeVarying(times_s=[0, 2], rates=[day[0][1][name], day[1][1][name]], period_s=5)
        for name in ("short", "long")
    }
    parts = [
        arriving(number, laws[name], 10, o).with_classes(name)
        for name, o, number in (("short", 10, 26_400), ("long", 20, 19_600))
    ]
    engine = iq.Engine(
        timing=LLAMA, scheduler=found.scheduler(), kv=iq.KvCache.unlimited(), first_token="decode"
    )
    result = iq.simulate(parts[0].concat(parts[1]), engine, seed=2)
    last_s = {
        half: result.requests.filter(pl.col("arrival_s").is_between(*half))["queue_s"].max()
        for half in ((5.0, 10.0), (10.0, 15.0))
    }
    # The busy class waits less than two iterations of n; the other up to n/λ of its slow period: no growth.
    slow_s = max(count / 200 for count in found.thresholds.values())
    assert all(isinstance(wait_s, float) and wait_s < 2 * slow_s for wait_s in last_s.values())


# Nested WAIT.


def four(load: float) -> tuple[Kinds, list[RequestClass]]:
    kinds = scaled([(float(o), 10, o) for o in (20, 40, 80, 160)], LLAMA, load)
    return kinds, asked(kinds)


def runs(ends: Sequence[int]) -> list[tuple[int, int]]:
    return list(zip([0, *(end + 1 for end in ends[:-1])], ends, strict=True))


def meets_10(kinds: Kinds, timing: iq.research.MemoryLinear, ends: Sequence[int], n: Sequence[int]) -> bool:
    """(10) by hand, with all prompts equal."""
    total, prompt = sum(rate for rate, _, _ in kinds), kinds[0][1]
    tokens = sum(count * held(prompt, *run) for count, run in zip(n, runs(ends), strict=True))
    if not timing.base + timing.per_kv_token * tokens < n[0] / total:
        return False
    beyond = [total, *(sum(rate for rate, _, output in kinds if output > end) for end in ends)]
    return all(n[i + 1] * beyond[i] > n[i] * beyond[i + 1] * (1 + 1e-12) for i in range(len(n) - 1))


@st.composite
def unknown(draw: st.DrawFn) -> tuple[Kinds, iq.research.MemoryLinear]:
    outputs = sorted(draw(st.sets(st.integers(1, 25), min_size=2, max_size=3)))
    prompt = draw(st.integers(1, 20))
    kinds = [(draw(st.floats(0.2, 5)), prompt, output) for output in outputs]
    timing = iq.research.MemoryLinear(
        base=draw(st.floats(1e-3, 0.5)), per_kv_token=draw(st.floats(1e-6, 1e-3))
    )
    return scaled(kinds, timing, draw(st.floats(0.02, 0.6))), timing


@given(unknown())
def test_nested_thresholds_meet_10_and_nothing_below_them_does(case: tuple[Kinds, iq.research.MemoryLinear]):
    kinds, timing = case
    ends = [output for _, _, output in kinds]
    found = nested_wait_thresholds(asked(kinds), timing, segments=ends)
    n = found.thresholds
    assert found.feasible and meets_10(kinds, timing, ends, n)
    for place in range(len(n)):
        if n[place] > 1:
            beside = [range(1, n[j] + 4) if j != place else range(1, n[place]) for j in range(len(n))]
            for others in itertools.islice(itertools.product(*beside), 300):
                assert not meets_10(kinds, timing, ends, others)
    # A segment for each length: the load is that of the fluid.
    assert found.segment_load == pytest.approx(
        iq.theory.fluid(asked(kinds), timing, first_token="decode").cache_load
    )
    # (11) without its slips: the sum over all stages, that of the prompt too.
    stages = sum(count * held(kinds[0][1], *run) for count, run in zip(n, runs(ends), strict=True))
    assert found.stages_kv_tokens == pytest.approx(stages)


@given(st.integers(2, 300), st.floats(0.01, 0.99), st.data())
def test_the_exponent_solves_16_and_lemma_8_bounds_it(before: int, share: float, data: st.DataObject):
    count = data.draw(st.integers(math.floor(before * share) + 1, before))
    root = exponent(before, count, share)
    if count == before:
        assert root is None
        return
    assert root is not None
    assert root >= 8 * (count - before * share) / before * (1 - 1e-9)
    log_moment = before * math.log(share + (1 - share) * math.exp(-root)) + (before - count) * root
    assert log_moment == pytest.approx(0, abs=1e-6 * max(1, root))


def test_the_bound_of_the_exponent_that_12_prints_does_not_hold():
    # n_(j−1) = 20, n_j = 11, p = 1/2: Lemma 8 gives 0.4, (12) 0.73, and the root of (16) lies between.
    root = exponent(20, 11, 0.5)
    assert root is not None
    assert 8 * (11 - 10) / 20 <= root < 8 * (11 - 10) / 11


def test_memory_of_nested_wait_by_hand():
    _, classes = four(0.45)
    found = nested_wait_thresholds(classes, LLAMA, segments=[20, 40, 80, 160], iterations=1000, risk=0.05)
    n = found.thresholds
    assert n == (7, 7, 7, 5)
    stages = 7 * (held(10, 0, 20) + held(10, 21, 40) + held(10, 41, 80)) + 5 * held(10, 81, 160)
    assert found.stages_kv_tokens == pytest.approx(stages)
    assert found.queues_kv_tokens == pytest.approx(7 * (10 + 20) + 7 * (10 + 40) + 5 * (10 + 80))
    # Only the last queue makes excursions: 7 places for 7 newcomers at most, but 5 for 7·2/3.
    theta = exponent(7, 5, 2 / 3)
    assert theta is not None
    assert found.excursions_kv_tokens == pytest.approx((10 + 80) * math.log(3 * 1000 / 0.05) / theta)
    assert found.kv_tokens_needed == pytest.approx(
        stages + (found.queues_kv_tokens or 0) + (found.excursions_kv_tokens or 0)
    )
    assert [one.exponent for one in found.parts[:3]] == [None, None, None]
    assert found.scheduler() == iq.research.NestedWait(segments=[20, 40, 80, 160], thresholds=[7, 7, 7, 5])
    text = found.explain()
    for number in ("80,550", "1,000", "0.05", "7", "0.666667"):
        assert number in text


def test_the_printed_ratio_meets_10_with_equality_and_is_refused():
    _, classes = four(0.55)
    judged = nested_wait_thresholds(
        classes, LLAMA, segments=[20, 40, 80, 160], thresholds=[15, 14, 12, 8], iterations=1000
    )
    assert judged.feasible is False
    assert "14 of 15 requests continue" in judged.reason
    assert judged.kv_tokens_needed is None and judged.excursions_kv_tokens is None
    larger = nested_wait_thresholds(classes, LLAMA, segments=[20, 40, 80, 160], thresholds=[16, 15, 13, 9])
    assert larger.feasible is True
    short = nested_wait_thresholds(classes, LLAMA, segments=[20, 40, 80, 160], thresholds=[3, 3, 3, 3])
    assert "the first threshold is 3" in short.reason


def test_fewer_segments_carry_more_load():
    _, classes = four(0.45)
    loads = [
        nested_wait_thresholds(classes, LLAMA, segments=ends).segment_load
        for ends in ([20, 40, 80, 160], [40, 80, 160], [80, 160], [160])
    ]
    assert loads == sorted(loads)
    assert loads[0] == pytest.approx(0.45)
    # One segment: all are kept to the last stage.
    rate = sum(one.rate for one in classes)
    assert loads[-1] == pytest.approx(2.6e-7 * rate * held(10, 0, 160))


def test_segments_by_number_are_equal_parts_and_none_takes_the_least_memory():
    some = RequestClass(rate=30, prompt=62, output=iq.dist.Uniform(1, 200))
    parts = nested_wait_thresholds(some, LLAMA, segments=4)
    assert parts.segments == (50, 100, 150, 200)
    assert [one.share for one in parts.parts] == pytest.approx([1, 3 / 4, 2 / 3, 1 / 2])
    chosen = nested_wait_thresholds(some, LLAMA, horizon_s=500.0)
    every = [nested_wait_thresholds(some, LLAMA, segments=count, horizon_s=500.0) for count in range(1, 33)]
    needed = [one.kv_tokens_needed for one in every if one.feasible and one.kv_tokens_needed is not None]
    assert chosen.kv_tokens_needed == min(needed)
    # As many iterations as fit 500 s, each with the prompts of n_1 requests at least.
    shortest_s = 0.015 + 2.6e-7 * 62 * chosen.thresholds[0]
    assert chosen.iterations == math.floor(500 / shortest_s)


def test_lengths_that_go_together_shift_the_prompts_of_later_segments():
    frame = pl.DataFrame({"prompt_tokens": [10, 10, 40], "output_tokens": [5, 10, 20]})
    joint = RequestClass(rate=3.0, lengths=iq.dist.Empirical(frame))
    found = nested_wait_thresholds(joint, LLAMA, segments=[5, 10, 20])
    assert [one.prompt_tokens for one in found.parts] == pytest.approx([20, 25, 40])
    assert [one.share for one in found.parts] == pytest.approx([1, 2 / 3, 1 / 2])
    met = {one.name: one.met for one in found.hypotheses}
    assert met["all prompts are equally long"] is False


def test_when_the_prompt_gives_the_first_token_the_last_stage_is_one_less():
    some = RequestClass(rate=30, prompt=10, output=iq.dist.Uniform(1, 20))
    assert nested_wait_thresholds(some, LLAMA, segments=2, first_token="prefill").segments == (9, 19)
    assert nested_wait_thresholds(some, LLAMA, segments=2, first_token="decode").segments == (10, 20)


def test_shares_that_change_ask_for_the_largest():
    kinds, classes = [(3.0, 10, 20), (1.0, 10, 60)], asked([(3.0, 10, 20), (1.0, 10, 60)])
    day = [(60.0, {"0": 3.0, "1": 1.0}), (60.0, {"0": 1.0, "1": 5.0})]
    found = nested_wait_thresholds(classes, LLAMA, segments=[20, 60], periods=day)
    assert found.feasible
    assert found.parts[1].share == pytest.approx(5 / 6)
    assert found.arrivals is not None and found.iteration_s is not None
    assert found.arrivals == pytest.approx(6 * found.iteration_s)
    for period in day:
        now = [(period[1][str(place)], prompt, output) for place, (_, prompt, output) in enumerate(kinds)]
        assert meets_10(now, LLAMA, [20, 60], found.thresholds)


def test_nested_demand_beyond_the_fluid_has_no_thresholds():
    _, classes = four(0.45)
    found = nested_wait_thresholds(classes, LLAMA, segments=[20, 40, 80, 160], rate=500)
    assert found.feasible is False and "not below 1" in found.reason
    assert (found.segments, found.thresholds, found.parts) == ((), (), ())
    assert found.stages_kv_tokens is found.kv_tokens_needed is found.iteration_s is None
    assert "infeasible" in found.explain() and "nan" not in found.explain()
    with pytest.raises(iq.ConfigError, match="thresholds: the load is"):
        found.scheduler()
    tight = nested_wait_thresholds(classes, LLAMA, segments=[20, 40, 80, 160], kv_tokens=80_549)
    assert "80,550 tokens of KV cache, it has 80,549" in tight.reason
    bounded = nested_wait_thresholds(
        classes, LLAMA, segments=[20, 40, 80, 160], kv_tokens=81_000, iterations=1000
    )
    assert "stages, queues and excursions need" in bounded.reason


@refused(
    ({"margin": -0.1}, "margin: must be non-negative"),
    ({"margin": math.nan}, "margin"),
    ({"rate": 0}, "rate"),
    ({"thresholds": 0}, "thresholds: must be an integer from 1"),
    ({"thresholds": {"short": 1}}, "thresholds: must have classes"),
    ({"thresholds": {"short": 1, "long": 1.5}}, r"thresholds\['long'\]"),
    ({"periods": []}, "periods"),
    ({"periods": [(0, {"short": 1, "long": 1})]}, r"periods\[0\]: seconds: must be positive"),
    ({"periods": [(1, {"short": 1})]}, r"periods\[0\]: must have classes"),
    ({"periods": [(1, {"short": -1, "long": 1})]}, "must be non-negative"),
    ({"periods": [(1, {"short": 0, "long": 1})]}, "class 'short' must have a positive rate"),
    ({"periods": [3]}, r"periods\[0\]: must be"),
    ({"kv_tokens": 5}, "hold no request of class 'short'"),
    ({"timing": iq.Constant(1.0)}, "MemoryLinear"),
)
def test_bad_input_of_wait_is_named(arguments: dict[str, object]):
    wait_thresholds(**{"workload": LOW, "timing": LLAMA, **arguments})  # type: ignore[arg-type]


@refused(
    ({"risk": 0}, "risk: must be positive"),
    ({"risk": 1.0}, "risk: must be below 1"),
    ({"iterations": 0}, "iterations: must be an integer from 1"),
    ({"iterations": 5, "horizon_s": 5.0}, "use only one of them"),
    ({"horizon_s": math.inf}, "horizon_s"),
    ({"segments": 0}, "segments: must be an integer from 1 to 2"),
    ({"segments": 3}, "segments: must be an integer from 1 to 2"),
    ({"segments": []}, "segments"),
    ({"segments": [20, 10]}, r"segments\[1\]: must be above the previous 20"),
    ({"segments": [5, 10]}, "must extend to the last stage 20"),
    ({"segments": [20, 30]}, "the last segment is empty"),
    ({"thresholds": [1, 1]}, "requires the last stage of each segment"),
    ({"segments": [10, 20], "thresholds": [1]}, "must be 2 numbers"),
    (
        {"workload": RequestClass(rate=1, prompt=1, output=iq.dist.Geometric(mean=5))},
        "lengths must be bounded",
    ),
)
def test_bad_input_of_nested_wait_is_named(arguments: dict[str, object]):
    nested_wait_thresholds(**{"workload": LOW, "timing": LLAMA, **arguments})  # type: ignore[arg-type]
