"""Do the capacities by tokens, seats and batches hold: in closed form, in scaling, and beside the simulation?

li2025 (2.7), (4.1), (4.2), (4.3). A stable edge is found by `inferq_papers.edge`, whose docstring derives its
error: with 30,000 requests it is 0.5 % high by what is tolerated and a step of the bisection (0.2 %), and low
by 2 % three times in 1,000; seeds are fixed.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import inferq as iq
from inferq.errors import ConfigError, TraceError
from inferq.theory import RequestClass, token_capacity
from inferq.theory.capacities.iteration_cost import Iteration, fills_budget, memory_slack
from inferq.theory.capacities.network_capacity import network_capacity
from inferq.theory.capacities.sequence_capacity import request_level_capacity, sequence_capacity
from inferq.theory.demands.lengths import Lengths
from inferq_papers.edge import edge, unit

TIMING = iq.PiecewiseLinear(base=0.0455, per_token=0.0003, knee=64)
UNLIMITED = iq.KvCache.unlimited()
FIXED: dict[str, Any] = {"prompt": iq.dist.Fixed(129), "output": iq.dist.Fixed(112)}
GEOMETRIC: dict[str, Any] = {"prompt": iq.dist.Geometric(129), "output": iq.dist.Geometric(112)}
UNIFORM: dict[str, Any] = {"prompt": iq.dist.Uniform(1, 1200), "output": iq.dist.Uniform(1, 223)}
SARATHI = iq.Sarathi(token_budget=512, max_seqs=512)


def engine(scheduler: iq.Scheduler, timing=TIMING, first_token="decode", kv=UNLIMITED) -> iq.Engine:
    return iq.Engine(timing=timing, scheduler=scheduler, kv=kv, first_token=first_token)


def chat(rate: float = 10.0, **lengths: Any) -> RequestClass:
    return RequestClass(rate=rate, **(lengths or FIXED))


def found(workload: iq.Workload, system: iq.Engine | iq.Cluster, theory: float) -> float:
    """The largest stable rate of a system, between 0.9 and 1.1 of what is expected."""
    asked = unit(workload, seed=1)
    return edge(lambda rate: iq.simulate(asked.speed(rate), system), 0.9 * theory, 1.1 * theory, steps=6).rate


def poisson(requests: int = 30_000, **lengths: Any) -> iq.Workload:
    return iq.Workload.synthetic(requests=requests, arrivals=iq.dist.Poisson(1.0), **(lengths or FIXED))


# Closed forms.


def test_the_limit_of_the_papers_engine_is_the_one_that_its_formula_gives():
    # t(512) = 45.5 ms + 0.30 ms · 448 = 179.9 ms; 512 / 0.1799 / 241.
    limit = token_capacity(chat(), engine(SARATHI))
    assert limit.iteration_s == pytest.approx(0.1799)
    assert limit.capacity_per_s == limit.stable_below_per_s == pytest.approx(512 / 0.1799 / 241)
    assert limit.load == pytest.approx(10 * 241 * 0.1799 / 512)
    assert limit.stable is True


def test_the_first_token_with_the_prompt_saves_one_decode():
    counted = token_capacity(chat(), engine(SARATHI, first_token="prefill"))
    assert counted.decode_tokens_mean == 111
    assert counted.capacity_per_s == pytest.approx(512 / 0.1799 / 240)
    # an engine's default is that of a timing model alone
    assert token_capacity(chat(), TIMING, token_budget=512).decode_tokens_mean == 111
    decode = token_capacity(chat(), TIMING, token_budget=512, first_token="decode")
    assert decode.decode_tokens_mean == 112


def test_a_mixture_counts_the_tokens_of_each_class_by_its_rate():
    # (4.2): 3·(100 + 50) + 1·(1000 + 10) tokens for 4 requests.
    two = [
        RequestClass(name="short", rate=3, prompt=100, output=50),
        RequestClass(name="long", rate=1, prompt=1000, output=10),
    ]
    mixed = token_capacity(two, iq.Constant(0.1), token_budget=500, first_token="decode")
    assert mixed.capacity_per_s == pytest.approx(5000 / ((3 * 150 + 1010) / 4))
    assert [one.name for one in mixed.classes] == ["short", "long"]
    assert mixed.load == pytest.approx((3 * 150 + 1010) / 5000)


def test_a_workload_is_asked_for_its_joint_lengths_and_its_rate():
    rows = {"arrival_s": [0.0, 1.0, 2.0], "prompt_tokens": [10, 20, 60], "output_tokens": [3, 2, 1]}
    asked = token_capacity(iq.Workload(rows), iq.Constant(0.5), token_budget=16, first_token="decode")
    assert asked.rate == 1.0
    assert asked.capacity_per_s == pytest.approx(32 / (30 + 2))
    without = token_capacity(
        iq.Workload({"prompt_tokens": [10], "output_tokens": [6]}),
        iq.Constant(0.5),
        token_budget=16,
        first_token="decode",
    )
    assert (without.rate, without.load, without.stable) == (None, None, None)
    assert without.capacity_per_s == pytest.approx(2.0)


def test_attention_adds_what_every_cut_of_the_prompt_adds_where_it_makes_no_difference():
    # ε = 2α: α·s² for the prompt; β·(d·s + d(d − 1)/2) for d decodes. Independent uniform lengths.
    line = replace(TIMING, per_context_token=2e-6, per_prefill_square=1e-6, per_chunk_context=2e-6)
    lengths = Lengths.of(UNIFORM["prompt"], UNIFORM["output"])
    s, d = np.arange(1, 1201), np.arange(1, 224)
    seconds = 1e-6 * np.mean(s**2) + 2e-6 * (s.mean() * d.mean() + np.mean(d * (d - 1)) / 2)
    limit = token_capacity(chat(**UNIFORM), line, token_budget=512, first_token="decode")
    assert limit.context_s_least == pytest.approx(limit.context_s_most) == pytest.approx(seconds)
    whole = (600.5 + 112) * 0.1799 / 512 + seconds
    assert limit.capacity_per_s == pytest.approx(1 / whole)
    assert lengths.prompt_mean == pytest.approx(600.5)


@given(
    prompt=st.integers(1, 40),
    budget=st.integers(1, 12),
    square=st.sampled_from([0.0, 1.0, 2.5]),
    chunk_context=st.sampled_from([0.0, 1.0, 5.0]),
    kv=st.sampled_from([0.0, 1.0]),
    data=st.data(),
)
def test_any_cut_of_a_prompt_costs_what_lies_between_the_bounds(
    prompt, budget, square, chunk_context, kv, data
):
    cost = Iteration(
        base_s=1.0, per_prefill_square_s=square, per_chunk_context_s=chunk_context, per_kv_token_s=kv
    )
    least, most = cost.prompt_contexts_s(Lengths.of(prompt, 1), budget)
    done, seconds = 0, 0.0
    while done < prompt:
        c = data.draw(st.integers(1, min(budget, prompt - done)))
        seconds += square * c * c + chunk_context * c * done + kv * (done + c)
        done += c
    assert least - 1e-9 <= seconds <= most + 1e-9


def test_a_line_steeper_than_its_floor_computes_most_at_the_knee():
    # base 0.01 < 0.001·64: 64 tokens in 0.01 s are 6,400 a second, 512 in 0.458 s only 1,118.
    steep = iq.PiecewiseLinear(base=0.01, per_token=0.001, knee=64)
    limit = token_capacity(chat(rate=10), steep, token_budget=512, first_token="decode")
    assert limit.best_tokens == 64
    assert limit.capacity_per_s == pytest.approx(6400 / 241)
    assert limit.stable_below_per_s == pytest.approx(512 / 0.458 / 241)
    assert limit.stable_below_per_s < 10 < limit.capacity_per_s
    assert limit.stable is None


def test_seats_that_never_bind_leave_the_limit_of_the_budget():
    # A full budget needs 512·113/241 = 240.06 requests.
    at_240 = sequence_capacity(chat(), TIMING, max_seqs=240, token_budget=512, first_token="decode")
    at_241 = sequence_capacity(chat(), TIMING, max_seqs=241, token_budget=512, first_token="decode")
    limit = token_capacity(chat(), TIMING, token_budget=512, first_token="decode").capacity_per_s
    assert at_240.capacity_per_s < limit
    assert at_241.capacity_per_s == pytest.approx(limit)
    assert sequence_capacity(chat(), engine(SARATHI)).stable_below_per_s == pytest.approx(limit)


def test_seats_bound_by_the_convex_line():
    # S / ((m_d + 1)·(c − a·b0) + a·S·(m_p + m_d)): 128 / (113·0.0263 + 0.0003·128·241).
    bound = sequence_capacity(chat(), TIMING, max_seqs=128, token_budget=512, first_token="decode")
    assert bound.capacity_per_s == pytest.approx(128 / (113 * 0.0263 + 0.0003 * 128 * 241))
    # On the flat part an iteration costs the base: 8 / (113·0.0455).
    few = sequence_capacity(chat(), TIMING, max_seqs=8, first_token="decode")
    assert few.capacity_per_s == pytest.approx(8 / (113 * 0.0455))
    assert few.stable_below_per_s is None


def test_full_batches_of_equal_requests_take_one_iteration_of_prompts_and_their_decodes():
    for size in (8, 64, 256):
        t = {n: 0.0455 + 0.0003 * max(0, n - 64) for n in (size, size * 129)}
        served = request_level_capacity(chat(), TIMING, max_seqs=size, first_token="decode")
        assert served.capacity_per_s == pytest.approx(size / (t[size * 129] + 112 * t[size]))


@pytest.mark.parametrize("first_token", ["decode", "prefill"])
def test_full_batches_of_random_requests_are_the_mean_of_all_batches(first_token):
    # Three requests with prompts 1 or 5 and outputs 1 to 4: all 8³ batches, one by one.
    line = iq.PiecewiseLinear(
        base=1.0, per_token=0.25, knee=2, per_context_token=0.01, per_prefill_square=0.1
    )
    pairs_drawn = iq.dist.Empirical({"prompt_tokens": [1, 5] * 4, "output_tokens": [1, 2, 3, 4, 4, 3, 2, 1]})
    pairs = list(pairs_drawn.frame.iter_rows())
    less = first_token == "prefill"
    lengths = []
    for batch in ((a, b, c) for a in pairs for b in pairs for c in pairs):
        prompts = [s for s, _ in batch]
        length = 1.0 + 0.25 * max(0, sum(prompts) - 2) + 0.1 * sum(s * s for s in prompts)
        for j in range(max(o for _, o in batch) - less):
            alive = [s + j for s, o in batch if o - less > j]
            length += 1.0 + 0.25 * max(0, len(alive) - 2) + 0.01 * sum(alive)
        lengths.append(length)
    served = request_level_capacity(
        RequestClass(rate=1, lengths=pairs_drawn), line, max_seqs=3, first_token=first_token
    )
    assert served.capacity_per_s == pytest.approx(3 / np.mean(lengths))
    # With a floor for more tokens than any batch has, the few prompts below it count too.
    flat = replace(line, knee=11)
    missing = np.mean([max(0, 11 - a - b - c) for a, _ in pairs for b, _ in pairs for c, _ in pairs])
    got = request_level_capacity(
        RequestClass(rate=1, lengths=pairs_drawn), flat, max_seqs=3, first_token=first_token
    )
    assert got.prompts_s == pytest.approx(1.0 + 0.25 * (9 - 11 + missing))


def test_a_small_cache_makes_smaller_batches():
    kv = iq.KvCache(tokens=10_000, block=16)
    scheduler = iq.research.FasterTransformer(max_seqs=64, max_model_len=1000)
    # 625 blocks, 63 for each request of up to 1,000 tokens: 9 at once.
    assert request_level_capacity(chat(), engine(scheduler, kv=kv)).batch == 9


# Scaling and order.

LENGTHS = st.integers(1, 400)


@settings(max_examples=40)
@given(
    prompt=LENGTHS,
    output=LENGTHS,
    budget=st.integers(1, 4000),
    seats=st.integers(1, 600),
    engines=st.integers(1, 9),
    base=st.floats(1e-3, 1.0),
    per_token=st.floats(1e-6, 1e-2),
    knee=st.integers(0, 300),
    times=st.sampled_from([0.25, 2.0, 8.0]),
    first_token=st.sampled_from(["prefill", "decode"]),
)
def test_capacities_scale_and_are_ordered(
    prompt, output, budget, seats, engines, base, per_token, knee, times, first_token
):
    def line(factor: float) -> iq.PiecewiseLinear:
        return iq.PiecewiseLinear(
            base=base * factor, per_token=per_token * factor, knee=knee, per_context_token=1e-7 * factor
        )

    def all_of(timing, b=budget, s=prompt, o=output, k=engines):
        asked = RequestClass(rate=1.0, prompt=s, output=o)
        common: dict[str, Any] = {"first_token": first_token, "engines": k}
        tokens = token_capacity(asked, timing, token_budget=b, **common)
        bound = sequence_capacity(asked, timing, max_seqs=seats, token_budget=b, **common)
        batches = request_level_capacity(asked, timing, max_seqs=seats, **common)
        return tokens, bound, batches

    tokens, bound, batches = all_of(line(1))
    for slow, usual in zip(all_of(line(times)), (tokens, bound, batches), strict=True):
        assert slow.capacity_per_s == pytest.approx(usual.capacity_per_s / times)
    for one, usual in zip(all_of(line(1), k=1), (tokens, bound, batches), strict=True):
        assert usual.capacity_per_s == pytest.approx(engines * one.capacity_per_s)
    for longer in (all_of(line(1), s=prompt + 1), all_of(line(1), o=output + 1)):
        for more, usual in zip(longer, (tokens, bound, batches), strict=True):
            assert more.capacity_per_s <= usual.capacity_per_s * (1 + 1e-12)
    # What is sure is less than what is possible; seats only take away; a larger budget allows more.
    assert tokens.stable_below_per_s <= tokens.capacity_per_s * (1 + 1e-12)
    assert bound.stable_below_per_s is not None
    assert (
        bound.stable_below_per_s <= bound.capacity_per_s * (1 + 1e-12) <= tokens.capacity_per_s * (1 + 1e-9)
    )
    assert bound.stable_below_per_s <= tokens.stable_below_per_s * (1 + 1e-12)
    assert all_of(line(1), b=budget + 64)[0].capacity_per_s >= tokens.capacity_per_s * (1 - 1e-12)


def test_splitting_a_class_in_two_changes_nothing():
    halves = [RequestClass(name=name, rate=5, **GEOMETRIC) for name in "ab"]
    for f in (
        lambda asked: token_capacity(asked, TIMING, token_budget=512),
        lambda asked: sequence_capacity(asked, TIMING, max_seqs=64, token_budget=512),
        lambda asked: request_level_capacity(asked, TIMING, max_seqs=64),
    ):
        assert f(halves).capacity_per_s == pytest.approx(f(chat(**GEOMETRIC)).capacity_per_s)
        assert f(halves).load == pytest.approx(f(chat(**GEOMETRIC)).load)


# Beside the simulation: the stable edge within 2 % where the hypotheses hold.

WHOLE = {
    "fixed": (FIXED, engine(SARATHI)),
    "geometric": (GEOMETRIC, engine(SARATHI)),
    "uniform, constant slots": (UNIFORM, engine(SARATHI, iq.Constant(0.1))),
    "first token with the prompt": (
        UNIFORM,
        engine(iq.VllmV1(token_budget=256, max_seqs=256), first_token="prefill"),
    ),
    "KFcfs": (FIXED, engine(iq.research.KFcfs(token_budget=512, k_prefill=512, k_decode=512))),
    "attention": (
        FIXED,
        engine(
            SARATHI,
            replace(TIMING, per_context_token=2e-6, per_prefill_square=1e-6, per_chunk_context=2e-6),
        ),
    ),
}


@pytest.mark.parametrize("name", WHOLE)
def test_the_edge_of_stability_is_where_tokens_say(name: str):
    lengths, system = WHOLE[name]
    said = token_capacity(chat(**lengths), system)
    assert said.capacity_per_s == pytest.approx(said.stable_below_per_s)
    assert found(poisson(60_000, **lengths), system, said.capacity_per_s) == pytest.approx(
        said.capacity_per_s, rel=0.02
    )


def test_the_edge_of_two_classes():
    types: dict[str, dict[str, Any]] = {
        "chat": FIXED,
        "document": {"prompt": iq.dist.Uniform(512, 1536), "output": iq.dist.Geometric(32)},
    }
    said = token_capacity(
        [RequestClass(name=n, rate=0.5, **one) for n, one in types.items()], engine(SARATHI)
    )
    parts = {
        name: iq.Workload.synthetic(requests=60_000, arrivals=iq.dist.Poisson(0.5), **one)
        for name, one in types.items()
    }
    mixed = iq.Workload.mix(parts, requests=60_000)
    assert token_capacity(mixed, engine(SARATHI)).capacity_per_s == pytest.approx(said.capacity_per_s)
    assert found(mixed, engine(SARATHI), said.capacity_per_s) == pytest.approx(said.capacity_per_s, rel=0.02)


@pytest.mark.parametrize("router", [iq.Random(), iq.LeastRequests(), iq.RoundRobin()])
def test_the_edge_of_four_engines_is_four_times_that_of_one(router: iq.Router):
    said = token_capacity(chat(), engine(SARATHI), engines=4).capacity_per_s
    fleet = iq.Cluster(engine(SARATHI), replicas=4, router=router)
    assert found(poisson(120_000), fleet, said) == pytest.approx(said, rel=0.02)


@pytest.mark.parametrize("lengths", [FIXED, GEOMETRIC], ids=["fixed", "geometric"])
@pytest.mark.parametrize("first_token", ["decode", "prefill"])
def test_the_edge_with_few_seats_lies_between_what_is_sure_and_what_is_possible(lengths, first_token):
    # Decodes are in every iteration, as 128 fit the budget, and a prompt takes an iteration or, cut, two:
    # within 2 % of what no policy passes.
    system = engine(iq.Sarathi(token_budget=512, max_seqs=128), first_token=first_token)
    said = sequence_capacity(chat(**lengths), system)
    rate = found(poisson(60_000, **lengths), system, said.capacity_per_s)
    assert said.stable_below_per_s is not None and said.stable_below_per_s < rate
    assert rate == pytest.approx(said.capacity_per_s, rel=0.02)


def test_below_what_is_sure_no_order_of_prompts_and_decodes_drowns():
    # Orca lets prompts go first, and its decodes keep their seats for longer: still above what is sure.
    system = engine(iq.research.Orca(token_budget=512, max_seqs=64, chunked=True))
    said = sequence_capacity(chat(**UNIFORM), system)
    rate = found(poisson(60_000, **UNIFORM), system, said.capacity_per_s)
    assert said.stable_below_per_s is not None
    assert said.stable_below_per_s < rate < 1.02 * said.capacity_per_s


@pytest.mark.parametrize("lengths", [FIXED, UNIFORM, GEOMETRIC], ids=["fixed", "uniform", "geometric"])
@pytest.mark.parametrize("size", [16, 64])
def test_the_edge_of_whole_batches_is_where_their_mean_length_says(lengths, size):
    system = engine(iq.research.FasterTransformer(max_seqs=size, max_model_len=100_000))
    said = request_level_capacity(chat(**lengths), system).capacity_per_s
    # A batch lasts as long as its longest request, which varies by a third at most: the standard error of the
    # mean of 3,000 batches is 0.6 %.
    requests = 60_000 if size == 16 else 240_000
    assert found(poisson(requests, **lengths), system, said) == pytest.approx(said, rel=0.02)


# Verdicts and what they assume.


@pytest.mark.parametrize(("share", "expected"), [(0.9, True), (1.0, None), (1.1, False)])
def test_the_verdict_is_that_of_the_two_inequalities(share: float, expected: bool | None):
    limit = token_capacity(chat(), engine(SARATHI)).capacity_per_s
    assert token_capacity(chat(), engine(SARATHI), rate=share * limit).stable is expected
    batches = engine(iq.research.FasterTransformer(max_seqs=64))
    limit = request_level_capacity(chat(), batches).capacity_per_s
    assert request_level_capacity(chat(), batches, rate=share * limit).stable is expected


def test_no_theorem_is_claimed_that_does_not_apply():
    def verdict(scheduler: iq.Scheduler, kv=UNLIMITED, rate=10.0, **more: Any) -> bool | None:
        return token_capacity(chat(rate), engine(scheduler, kv=kv), **more).stable

    assert verdict(iq.VllmV0(token_budget=512, max_seqs=512)) is None
    assert verdict(iq.research.Orca(token_budget=512, max_seqs=512)) is None
    assert verdict(iq.research.KFcfs(token_budget=512, k_prefill=1, k_decode=512)) is None
    assert verdict(iq.Sarathi(token_budget=512, max_seqs=128)) is None
    assert verdict(iq.VllmV1(token_budget=512, max_seqs=512, long_prefill_threshold=64)) is None
    # A cache that may run short: unknown; with room for all seats: stable. Overload stays overload.
    assert verdict(SARATHI, iq.KvCache(tokens=60_000)) is None
    assert verdict(SARATHI, iq.KvCache(tokens=160_000)) is True
    assert verdict(SARATHI, iq.KvCache(tokens=60_000), rate=12.0) is False
    # A policy that loads more than b is not bound by b.
    assert verdict(iq.research.FasterTransformer(max_seqs=256), rate=12.0, token_budget=512) is None
    # Nor does anything grow where waiting requests leave.
    leaving = RequestClass(rate=20, prompt=129, output=112, abandonment=0.1)
    assert token_capacity(leaving, engine(SARATHI)).stable is None


def test_seats_give_a_verdict_where_tokens_alone_do_not():
    few = engine(iq.Sarathi(token_budget=512, max_seqs=128))
    bound = sequence_capacity(chat(), few)
    assert token_capacity(chat(9.5), few).stable is None
    assert sequence_capacity(chat(9.5), few).stable is True
    assert bound.stable_below_per_s is not None and bound.stable_below_per_s < 10 < bound.capacity_per_s
    assert sequence_capacity(chat(10), few).stable is None
    assert sequence_capacity(chat(10.6), few).stable is False


def test_what_is_known_of_a_policy():
    urgent = iq.ClassPriority(order=["a"], inner=iq.Sarathi(token_budget=64, max_seqs=9))
    assert (urgent.token_limit(), urgent.sequence_limit()) == (64, 9)
    assert iq.research.Slai(max_active=7).sequence_limit() == 7
    assert fills_budget(urgent, 64).met is True
    assert fills_budget(urgent, 65).met is False
    assert fills_budget(None, 64).met is None
    assert fills_budget(iq.research.Wait(thresholds={"a": 1}), 64).met is False
    lengths = Lengths.of(iq.dist.Geometric(10), 5)
    assert (
        memory_slack(engine(SARATHI, kv=iq.KvCache(tokens=10**6)), lengths).met is None
    )  # no longest request


@pytest.mark.parametrize("first_token", ["decode", "prefill"])
def test_every_number_is_in_the_explanation(first_token):
    two = [RequestClass(name="a", rate=4, **GEOMETRIC), RequestClass(name="b", rate=1, prompt=3, output=9)]
    line = replace(TIMING, per_context_token=1e-6, per_prefill_square=1e-7)
    said = token_capacity(two, line, token_budget=512, engines=2, first_token=first_token)
    for value in ("512", "0.1799", "2 engines", "a: 80 %", "b: 20 %", "verdict: stable"):
        assert value in str(said)
    for line_of in said.hypotheses:
        assert str(line_of) in said.explain()
    bound = sequence_capacity(two, line, max_seqs=77, token_budget=512)
    assert "77 sequence slots" in bound.explain() and "no policy can exceed" in bound.explain()
    assert "S = 77" in request_level_capacity(two, line, max_seqs=77).explain()


# Networks.


def agents() -> iq.Network:
    one = engine(iq.research.KFcfs(token_budget=100, k_prefill=100, k_decode=100), iq.Constant(0.5))
    real = engine(iq.Sarathi(token_budget=200, max_seqs=200), iq.Constant(1.0), "prefill")
    jobs = iq.Workflow(
        "job",
        stages={
            "draft": iq.Stage("writer", prompt=iq.dist.Uniform(10, 30), output=20),
            "check": iq.Stage(
                "critic", prompt=0, output=iq.dist.Geometric(5), after="draft", includes="draft"
            ),
            "edit": iq.Stage("writer", prompt=7, output=3, after="check", includes=["draft", "check"]),
        },
    )
    asks = iq.Workflow("ask", stages={"answer": iq.Stage("critic", prompt=50, output=11)})
    return iq.Network({"writer": iq.Cluster(one, replicas=2), "critic": real}, [jobs, asks])


def test_an_engine_of_a_network_is_asked_for_the_tokens_of_all_its_stages():
    loads = network_capacity({"job": 2.0, "ask": 1.0}, agents())
    # writer: drafts 20 + 20, edits 7 + (20 + 5) + 3; two replicas of 200 tokens a second.
    # critic: checks 20 + (5 − 1), answers 50 + (11 − 1); 200 tokens a second.
    assert loads.loads == pytest.approx({"writer": 2 * 75 / 400, "critic": (2 * 24 + 60) / 200})
    assert loads.binding == "critic"
    assert loads.capacity_per_s == pytest.approx(3 / 0.54)
    assert loads.stable is None
    assert network_capacity({"job": 8.0}, agents()).stable is False
    assert "writer" in loads.explain()


def test_a_workload_of_jobs_is_counted():
    workload = iq.Workload.synthetic(requests=4_000, arrivals=iq.dist.Deterministic(3.0)).with_classes(
        {"job": 0.6, "ask": 0.4}
    )
    counted = network_capacity(workload, agents())
    assert counted.rate == pytest.approx(3.0)
    # The share of 4,000 draws is known to 0.8 %, three times that in 997 of 1,000.
    assert counted.rates["job"] == pytest.approx(1.8, abs=3 * 0.024)


# Bad input.


def test_what_cannot_be_answered_is_a_named_error():
    def refused(match: str, f) -> None:
        with pytest.raises(ConfigError, match=match):
            f()

    refused("token_budget", lambda: token_capacity(chat(), TIMING))
    refused("token_budget", lambda: token_capacity(chat(), TIMING, token_budget=0))
    refused("token_budget", lambda: token_capacity(chat(), TIMING, token_budget=True))
    refused(
        "token_budget: FasterTransformer",
        lambda: token_capacity(chat(), engine(iq.research.FasterTransformer())),
    )
    refused("engines", lambda: token_capacity(chat(), TIMING, token_budget=8, engines=0))
    refused("first_token", lambda: token_capacity(chat(), TIMING, token_budget=8, first_token="last"))  # type: ignore[arg-type]
    refused("rate", lambda: token_capacity(chat(), TIMING, token_budget=8, rate=0))
    refused("rate", lambda: token_capacity(chat(), TIMING, token_budget=8, rate=math.nan))
    refused("engine_or_timing", lambda: token_capacity(chat(), SARATHI))  # type: ignore[arg-type]
    refused("workload", lambda: token_capacity([], TIMING, token_budget=8))
    free = iq.PiecewiseLinear(base=0, per_token=0.001, knee=64)
    refused("0 s", lambda: token_capacity(chat(), free, token_budget=512))
    refused("0 s", lambda: token_capacity(chat(), iq.Constant(0), token_budget=512))
    tiles = iq.research.TiledGemm(
        rows=1,
        columns=1,
        reduction=1,
        width=1,
        linear_s_per_tile=1,
        other_s_per_token=0,
        gemm_s=0,
        gemv_s=0,
        layers=1,
    )
    refused("tile_capacity", lambda: token_capacity(chat(), tiles, token_budget=512))
    mixed = iq.research.MixedSolo(alpha=1, beta=1, solo=1)
    refused("allocation", lambda: token_capacity(chat(), mixed, token_budget=512))
    refused("max_seqs", lambda: sequence_capacity(chat(), TIMING, token_budget=8))
    refused("max_seqs", lambda: sequence_capacity(chat(), TIMING, max_seqs=0))
    refused("must run whole batches", lambda: request_level_capacity(chat(), engine(SARATHI)))
    small = engine(iq.research.FasterTransformer(max_model_len=1000), kv=iq.KvCache(tokens=900))
    refused("kv.tokens", lambda: request_level_capacity(chat(), small))
    refused("unknown workflow", lambda: network_capacity({"unknown": 1.0}, agents()))
    refused("workload", lambda: network_capacity({"job": 0.0}, agents()))
    refused("workload", lambda: network_capacity({}, agents()))
    attention = engine(SARATHI, replace(TIMING, per_context_token=1e-6))
    ask = iq.Workflow("ask", stages={"answer": iq.Stage("a", prompt=50, output=11)})
    refused("engines.a.timing", lambda: network_capacity({"ask": 1.0}, iq.Network({"a": attention}, [ask])))
    whole = engine(iq.research.FasterTransformer())
    refused("engines.a.scheduler", lambda: network_capacity({"ask": 1.0}, iq.Network({"a": whole}, [ask])))
    with pytest.raises(TraceError, match="output_tokens"):
        token_capacity(iq.Workload({"prompt_tokens": [1]}), TIMING, token_budget=8)


def test_a_cost_of_each_decode_adds_what_the_decodes_of_a_request_cost():
    """A run: 10 ms, 1 ms for each of 5 tokens above 2, 4 ms for each of 3 decodes. Theory: 4 ms · m_d more.

    Where a victim may be computed anew, a chunk may take a decode's place, and a ceiling may not count on it.
    """
    line = iq.PiecewiseLinear(base=0.01, per_token=0.001, knee=2, per_decode=0.004)
    assert iq.timing.iteration_s(line, chunks=[(4, 0)], decodes=[7, 8, 9]) == pytest.approx(
        0.01 + 0.005 + 0.012
    )
    work = iq.Workload({"prompt_tokens": [10], "output_tokens": [6]})
    for first_token, decodes in (("prefill", 5), ("decode", 6)):
        limit = token_capacity(work, line, token_budget=16, first_token=first_token)
        assert limit.capacity_per_s == pytest.approx(1 / ((10 + decodes) * 0.024 / 16 + decodes * 0.004))
    scheduler = iq.Sarathi(token_budget=16, max_seqs=16)
    roomy, tight = (
        iq.Engine(timing=line, scheduler=scheduler, kv=iq.KvCache(tokens=tokens, block=1))
        for tokens in (999, 20)
    )
    frame = iq.Workload({"arrival_s": [0.0, 1.0], "prompt_tokens": [10, 10], "output_tokens": [6, 6]})
    limits = [
        [
            bound.capacity_per_s
            for bound in iq.theory.stability(frame, one).bounds
            if bound.resource == "tokens"
        ]
        for one in (roomy, tight)
    ]
    assert max(limits[0]) == pytest.approx(1 / (15 * 0.024 / 16 + 5 * 0.004))
    assert max(limits[1]) == pytest.approx(1 / (15 * 0.024 / 16))
