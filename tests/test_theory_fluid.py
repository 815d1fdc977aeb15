"""Is the fluid of ao2025 where a step-by-step recursion of it settles, and what moves it?"""

import math
from functools import partial

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import inferq as iq
from inferq.theory import Fluid, RequestClass

from .arriving import arriving
from .refusals import refused

fluid = partial(iq.theory.fluid, first_token="decode")
"""ao2025 counts a decode for every output token."""
LLAMA = iq.research.MemoryLinear(base=0.015, per_kv_token=2.6e-7)
LOW = [
    RequestClass(name="short", rate=1000, prompt=10, output=10),
    RequestClass(name="long", rate=1000, prompt=10, output=20),
]


def kinds(*given: tuple[float, int, int]) -> list[RequestClass]:
    return [
        RequestClass(name=str(place), rate=rate, prompt=prompt, output=output)
        for place, (rate, prompt, output) in enumerate(given)
    ]


def work(prompt: int, decodes: int) -> int:
    """Tokens in the cache, stage by stage: the sum that (l' + 1)(l + l'/2) stands for."""
    return sum(prompt + stage for stage in range(decodes + 1))


@st.composite
def demands(
    draw: st.DrawFn, most_load: float = 0.85
) -> tuple[list[tuple[float, int, int]], iq.research.MemoryLinear]:
    """Classes and costs with a load below `most_load`."""
    lengths = draw(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 40)), min_size=1, max_size=4))
    weights = [draw(st.floats(0.1, 10)) for _ in lengths]
    load = draw(st.floats(0.02, most_load))
    base = draw(st.floats(1e-3, 1.0))
    per_token = draw(st.floats(1e-7, 1e-3))
    total = per_token * sum(w * work(p, o) for w, (p, o) in zip(weights, lengths, strict=True))
    asked = [(w * load / total, p, o) for w, (p, o) in zip(weights, lengths, strict=True)]
    return asked, iq.research.MemoryLinear(base=base, per_kv_token=per_token)


def step_by_step(
    asked: list[tuple[float, int, int]], timing: iq.research.MemoryLinear
) -> tuple[float, float, list[float]]:
    """Iterations with fractions of requests until nothing changes: length, tokens, requests by class."""
    stages = [[0.0] * (decodes + 1) for _, _, decodes in asked]
    lasts_s = timing.base
    while True:
        for (rate, _, _), row in zip(asked, stages, strict=True):
            row.insert(0, rate * lasts_s)
            row.pop()
        tokens = sum(
            count * (prompt + stage)
            for (_, prompt, _), row in zip(asked, stages, strict=True)
            for stage, count in enumerate(row)
        )
        following_s = timing.base + timing.per_kv_token * tokens
        settled = abs(following_s - lasts_s) < 1e-13 * following_s and all(row[-1] > 0 for row in stages)
        lasts_s = following_s
        if settled:
            return lasts_s, tokens, [sum(row) for row in stages]


@given(demands())
def test_the_equilibrium_is_where_the_recursion_settles(
    case: tuple[list[tuple[float, int, int]], iq.research.MemoryLinear],
):
    asked, timing = case
    found = fluid(kinds(*asked), timing)
    lasts_s, tokens, requests = step_by_step(asked, timing)
    assert found.iteration_s == pytest.approx(lasts_s, rel=1e-9)
    assert found.kv_tokens_needed == pytest.approx(tokens, rel=1e-9)
    assert [one.requests for one in found.classes] == pytest.approx(requests, rel=1e-9)
    assert found.requests == pytest.approx(sum(requests), rel=1e-9)


def test_the_low_demand_by_hand():
    # Work is 11·15 and 21·20; d1·1000·585 = 0.1521; ΔT = 15 ms / 0.8479; M* = ΔT·585,000.
    found = fluid(LOW, LLAMA, kv_tokens=125_000)
    assert found.cache_load == pytest.approx(0.1521)
    assert found.iteration_s == pytest.approx(0.015 / 0.8479)
    assert found.kv_tokens_needed == pytest.approx(0.015 / 0.8479 * 585_000)
    assert found.steps_per_s == pytest.approx(11_000 + 21_000)  # (8)
    assert found.output_tokens_per_s == pytest.approx(30_000)  # section 2.3
    assert found.time_capacity_per_s == pytest.approx(2 / (2.6e-7 * 585))
    assert found.capacity_per_s == pytest.approx(125_000 / (292.5 * (0.015 + 2.6e-7 * 125_000)))
    assert found.binding == "memory"
    assert found.fits is True and found.feasible is True


@settings(max_examples=40)
@given(demands(), st.floats(0.01, 100))
def test_faster_arrivals_on_a_faster_engine_change_nothing_but_time(
    case: tuple[list[tuple[float, int, int]], iq.research.MemoryLinear], factor: float
):
    asked, timing = case
    before = fluid(kinds(*asked), timing, kv_tokens=10**6)
    after = fluid(
        kinds(*((rate * factor, p, o) for rate, p, o in asked)),
        iq.research.MemoryLinear(base=timing.base / factor, per_kv_token=timing.per_kv_token / factor),
        kv_tokens=10**6,
    )
    assert after.kv_tokens_needed == pytest.approx(before.kv_tokens_needed, rel=1e-9)
    assert after.requests == pytest.approx(before.requests, rel=1e-9)
    assert after.load == pytest.approx(before.load, rel=1e-9)
    assert before.iteration_s is not None and before.capacity_per_s is not None
    assert after.iteration_s == pytest.approx(before.iteration_s / factor, rel=1e-9)
    assert after.capacity_per_s == pytest.approx(before.capacity_per_s * factor, rel=1e-9)


@settings(max_examples=40)
@given(demands(most_load=0.4), st.sampled_from(["rate", "prompt", "output"]))
def test_more_of_anything_needs_more_memory_and_leaves_less_capacity(
    case: tuple[list[tuple[float, int, int]], iq.research.MemoryLinear], what: str
):
    asked, timing = case
    rate, prompt, output = asked[0]
    more = {
        "rate": (rate * 1.1, prompt, output),
        "prompt": (rate, prompt + 1, output),
        "output": (rate, prompt, output + 1),
    }[what]
    before = fluid(kinds(*asked), timing, kv_tokens=10**6)
    after = fluid(kinds(more, *asked[1:]), timing, kv_tokens=10**6)
    assert before.cache_load is not None and after.cache_load is not None
    assert after.cache_load > before.cache_load
    if after.feasible:
        assert after.kv_tokens_needed is not None and before.kv_tokens_needed is not None
        assert after.kv_tokens_needed > before.kv_tokens_needed
    if what != "rate":  # which changes the mix, and may bring more of the short ones
        assert after.capacity_per_s is not None and before.capacity_per_s is not None
        assert after.capacity_per_s < before.capacity_per_s


@settings(max_examples=40)
@given(demands(), st.integers(200, 10**6))
def test_at_capacity_the_cache_is_full(
    case: tuple[list[tuple[float, int, int]], iq.research.MemoryLinear], kv_tokens: int
):
    asked, timing = case
    capacity = fluid(kinds(*asked), timing, kv_tokens=kv_tokens).capacity_per_s
    full = fluid(kinds(*asked), timing, kv_tokens=kv_tokens, rate=capacity)
    assert full.kv_tokens_needed == pytest.approx(kv_tokens, rel=1e-6)
    assert full.load == pytest.approx(1, rel=1e-9)
    assert capacity is not None
    assert fluid(kinds(*asked), timing, kv_tokens=kv_tokens, rate=capacity * 0.999).fits is True
    assert fluid(kinds(*asked), timing, kv_tokens=kv_tokens, rate=capacity * 1.001).fits in (False, None)


def test_a_larger_cache_comes_close_to_the_limit_of_time():
    unlimited = fluid(LOW, LLAMA).capacity_per_s
    assert unlimited is not None
    shares = [(fluid(LOW, LLAMA, kv_tokens=10**k).capacity_per_s or 0) / unlimited for k in (3, 5, 7, 9)]
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1, rel=1e-4)


def test_the_joint_distribution_counts_not_the_means():
    # Long prompts with long outputs: E[(o + 1)(s + o/2)] by hand, far above what the means give.
    frame = pl.DataFrame({"prompt_tokens": [10, 1000], "output_tokens": [10, 1000]})
    joint = RequestClass(rate=1.0, lengths=iq.dist.Empirical(frame))
    by_hand = (11 * 15 + 1001 * 1500) / 2
    assert fluid(joint, LLAMA).classes[0].kv_token_iterations == pytest.approx(by_hand)
    of_means = 506 * (505 + 252.5)
    assert by_hand > 1.9 * of_means
    apart = RequestClass(rate=1.0, prompt=iq.dist.Uniform(1, 9), output=iq.dist.Uniform(1, 5))
    sums = [work(p, o) for p in range(1, 10) for o in range(1, 6)]
    assert fluid(apart, LLAMA).classes[0].kv_token_iterations == pytest.approx(sum(sums) / len(sums))


def test_a_class_in_two_halves_is_the_same_class():
    whole = fluid(kinds((8.0, 20, 30)), LLAMA, kv_tokens=10**5)
    halves = fluid(kinds((3.0, 20, 30), (5.0, 20, 30)), LLAMA, kv_tokens=10**5)
    for name in ("iteration_s", "kv_tokens_needed", "requests", "capacity_per_s", "load", "steps_per_s"):
        assert getattr(halves, name) == pytest.approx(getattr(whole, name))


def test_when_the_prompt_gives_the_first_token_there_is_one_decode_less():
    emits = fluid(kinds((5.0, 20, 31)), LLAMA, first_token="prefill")
    not_yet = fluid(kinds((5.0, 20, 30)), LLAMA, first_token="decode")
    assert emits.kv_tokens_needed == pytest.approx(not_yet.kv_tokens_needed)
    assert emits.steps_per_s == emits.output_tokens_per_s == pytest.approx(5 * 31)
    assert not_yet.output_tokens_per_s == pytest.approx(5 * 30)


def test_an_engine_brings_its_cache_and_convention():
    engine = iq.Engine(
        timing=LLAMA, scheduler=iq.research.Wait(thresholds=18), kv=iq.KvCache(tokens=125_009, block=16)
    )
    found = fluid(LOW, engine, first_token=None)
    assert (found.kv_tokens, found.first_token) == (125_008, "prefill")
    assert found.load == fluid(LOW, LLAMA, kv_tokens=125_008, first_token="prefill").load
    met = {one.name: one.met for one in found.hypotheses}
    assert met["prompts are computed in one iteration"] is True
    assert met["memory is counted by token"] is False
    chunked = iq.Engine(timing=LLAMA, scheduler=iq.Sarathi(token_budget=8), kv=iq.KvCache.unlimited())
    met = {one.name: one.met for one in fluid(LOW, chunked).hypotheses}
    assert met["prompts are computed in one iteration"] is False


def test_a_workload_is_taken_with_its_own_rate():
    workload = arriving(10, 40, 20, 30)
    assert fluid(workload, LLAMA).kv_tokens_needed == pytest.approx(
        fluid(kinds((40.0, 20, 30)), LLAMA).kv_tokens_needed
    )
    lengths_only = iq.Workload({"prompt_tokens": [20], "output_tokens": [30]})
    found = fluid(lengths_only, LLAMA, kv_tokens=10**5, first_token="decode")
    assert found.rate is None and found.load is None and found.feasible is None
    assert found.capacity_per_s == pytest.approx(fluid(workload, LLAMA, kv_tokens=10**5).capacity_per_s)


def said_numbers(found: Fluid) -> str:
    text = found.explain()
    assert "nan" not in text.lower() and "inf " not in text.lower()
    return text


def test_above_the_load_of_1_there_is_no_equilibrium_and_no_number_for_it():
    found = fluid(LOW, LLAMA, kv_tokens=125_000, rate=200_000)
    assert found.feasible is False
    assert "accumulate" in found.reason
    assert found.iteration_s is found.kv_tokens_needed is found.requests is found.fits is None
    assert all(one.requests is one.kv_tokens is None for one in found.classes)
    assert found.load is not None and found.load > 1
    assert "No equilibrium" in said_numbers(found)


def test_the_explanation_has_the_numbers():
    text = said_numbers(fluid(LOW, LLAMA, kv_tokens=125_000))
    for number in ("0.1521", "0.0176908", "10,349.1", "194.598", "371.506", "32,000", "30,000", "8,996.85"):
        assert number in text
    assert "≤ C = 125,000" in text


def test_a_cost_of_nothing_per_token_leaves_no_limit_of_time():
    found = fluid(LOW, iq.research.MemoryLinear(base=0.01, per_kv_token=0))
    assert (found.capacity_per_s, found.binding, found.load) == (None, "none", None)
    assert found.kv_tokens_needed == pytest.approx(0.01 * 585_000)
    limited = fluid(LOW, iq.research.MemoryLinear(base=0.01, per_kv_token=0), kv_tokens=5850)
    assert limited.load == pytest.approx(1)


def test_requests_that_do_not_fit_are_named():
    with pytest.raises(iq.ConfigError, match="hold no request of class 'long'"):
        fluid(LOW, LLAMA, kv_tokens=25)
    some = RequestClass(rate=1, prompt=10, output=iq.dist.Uniform(1, 100))
    fits = next(one for one in fluid(some, LLAMA, kv_tokens=60).hypotheses if "fits" in one.name)
    assert fits.met is False
    endless = RequestClass(rate=1, prompt=10, output=iq.dist.Geometric(mean=5))
    fits = next(one for one in fluid(endless, LLAMA, kv_tokens=10**6).hypotheses if "fits" in one.name)
    assert fits.met is False


@refused(
    ({"kv_tokens": 0}, "kv_tokens: must be an integer"),
    ({"kv_tokens": 1.5}, "kv_tokens"),
    ({"rate": 0.0}, "rate: must be a positive number per second"),
    ({"rate": -1.0}, "rate"),
    ({"rate": math.nan}, "rate"),
    ({"rate": math.inf}, "rate"),
    ({"first_token": "both"}, "first_token"),
    (
        {"timing": iq.Constant(0.1)},
        "timing: must be MemoryLinear, alone or in an Engine, for the formulas of ao2025",
    ),
    ({"timing": iq.research.MemoryLinear(base=0, per_kv_token=0)}, "would take no time"),
    ({"workload": []}, "must contain at least one class"),
)
def test_bad_input_is_named(arguments: dict[str, object]):
    given = {"workload": LOW, "timing": LLAMA, **arguments}
    fluid(**given)  # type: ignore[arg-type]
