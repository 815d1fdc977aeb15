"""Is nothing called stable for its means, where requests come in an order that gathers them?"""

import random
from collections.abc import Sequence

import numpy as np
import pytest

import inferq as iq
from inferq.systems.pools import pools_of
from inferq.theory import RequestClass, observed, stability, tile_capacity
from inferq.theory.capacities.iteration_cost import Iteration
from inferq.theory.capacities.kv_capacity import kv_capacity
from inferq.theory.capacities.oldest_requests import Oldest
from inferq.theory.capacities.sequence_capacity import sequence_capacity
from inferq.theory.capacities.token_capacity import token_capacity
from inferq.theory.demands.demand import Order
from inferq.theory.demands.lengths import Lengths
from inferq.timing import TimingModel
from tests.test_theory_stability import engine, hypothesis_of, random_scenario

from .arriving import arriving
from .night import NIGHT

SHORT, LONG = (20, 10), (250, 200)


def recorded(lengths: Sequence[tuple[int, int]], arrival_s: Sequence[float], **more: object) -> iq.Workload:
    columns = {
        "arrival_s": list(arrival_s),
        "prompt_tokens": [prompt for prompt, _ in lengths],
        "output_tokens": [output for _, output in lengths],
    }
    return iq.Workload({**columns, **more})


def poisson(rate: float, requests: int, seed: int = 1) -> list[float]:
    gaps = np.random.default_rng(seed).exponential(1 / rate, requests)
    return [float(one) for one in gaps.cumsum()]


def turns(rate: float, requests: int = 4000) -> iq.Workload:
    """Two streams of equal distances, so that every second request is a long one."""

    def part(prompt: int, output: int) -> iq.Workload:
        arrivals = iq.dist.Deterministic(rate / 2)
        return arriving(requests, arrivals, prompt, output)

    return iq.Workload.mix({"short": part(*SHORT), "long": part(*LONG)}, requests=requests)


# ---- turns


@pytest.mark.parametrize(
    ("router", "verdict"),
    [(iq.RoundRobin(), "unknown"), (iq.LeastRequests(), "stable"), (iq.Random(), "stable")],
)
def test_turns_give_every_long_request_to_the_same_replica(router: iq.Router, verdict: str):
    # A long request asks for 450 tokens: 8 of them a second are 3,600, and a replica computes
    # 512 / 0.1799 = 2,846. Together the two have 5,692 for the 3,840 that are asked.
    fleet = iq.Cluster(engine(), replicas=2, router=router)
    found = stability(turns(16.0), fleet)
    assert found.load == pytest.approx(8 * (30 + 450) / (2 * 512 / 0.1799))
    assert found.verdict == verdict
    seen = observed(iq.simulate(turns(16.0), fleet)).verdict
    assert seen == ("unstable" if verdict == "unknown" else "stable")


def test_turns_are_fair_where_the_order_is_random():
    fleet = iq.Cluster(engine(), replicas=2, router=iq.RoundRobin())
    streams = [
        iq.Workload.synthetic(
            requests=4000, arrivals=iq.dist.Poisson(8), prompt=iq.dist.Fixed(p), output=iq.dist.Fixed(o)
        )
        for p, o in (SHORT, LONG)
    ]
    mix = iq.Workload.mix({"short": streams[0], "long": streams[1]})
    classes = [RequestClass(name=str(p), rate=8, prompt=p, output=o) for p, o in (SHORT, LONG)]
    one_class = iq.Workload.synthetic(
        requests=4000,
        arrivals=iq.dist.Deterministic(16),
        lengths=iq.dist.Empirical({"prompt_tokens": [20, 250], "output_tokens": [10, 200]}),
    )
    for asked in (mix, classes, one_class):
        assert stability(asked, fleet).verdict == "stable"
    assert observed(iq.simulate(mix, fleet, seed=3)).verdict != "unstable"


def test_a_recorded_order_is_judged_by_the_work_of_the_busiest_replica():
    fleet = iq.Cluster(engine(), replicas=2, router=iq.RoundRobin())
    chance = random.Random(5)
    shuffled = [chance.choice((SHORT, LONG)) for _ in range(4000)]
    alternating = [SHORT, LONG] * 2000
    swapped = [SHORT, LONG] * 1000 + [LONG, SHORT] * 1000  # an even share in all, not in each half
    said = [
        stability(recorded(lengths, poisson(16, 4000)), fleet).verdict
        for lengths in (shuffled, alternating, swapped)
    ]
    assert said == ["stable", "unknown", "unknown"]
    # Three replicas get both kinds in turn.
    three = iq.Cluster(engine(), replicas=3, router=iq.RoundRobin())
    assert stability(recorded(alternating, poisson(16, 4000)), three).verdict == "stable"


@pytest.mark.parametrize("asked", [turns(14.0), recorded([SHORT, LONG] * 2000, poisson(14, 4000))])
def test_a_mixed_fleet_that_takes_turns_does_not_get_the_same_mix(asked: iq.Workload):
    # 7 · 450 = 3,150 tokens a second are above the 2,846 of either replica; 3,360 are below their sum.
    other = engine(timing=iq.PiecewiseLinear(base=0.0456, per_token=0.0003, knee=64))
    fleet = iq.Cluster([engine(), other], router=iq.RoundRobin())
    found = stability(asked, fleet)
    assert found.verdict == "unknown"
    assert set(hypothesis_of(found, "every replica gets the same mix")) == {None}
    assert observed(iq.simulate(asked, fleet)).verdict == "unstable"
    drawn = iq.Cluster([engine(), other], router=iq.Random())
    assert stability(asked, drawn).verdict == "stable"


def test_whole_batches_have_a_limit_only_in_random_order():
    # Two seats: in turns each batch has a long request, by chance three of four; in blocks half of them.
    whole = engine(iq.research.FasterTransformer(max_seqs=2), timing=iq.Constant(1.0))
    mixed = Lengths.mixed([(1, Lengths.of(4, 2)), (1, Lengths.of(4, 8))])
    batch_s = 1 + 0.75 * 8 + 0.25 * 2
    classes = [RequestClass(name=str(o), rate=1, prompt=4, output=o) for o in (2, 8)]
    found = stability(classes, whole)
    assert mixed.output_mean == 5
    assert found.stable_below_per_s == pytest.approx(2 / batch_s)
    lengths = [(4, 2), (4, 8)]
    in_turns = recorded(lengths * 2000, poisson(0.98 * 2 / batch_s, 4000))
    in_blocks = recorded(lengths[:1] * 2000 + lengths[1:] * 2000, poisson(1.1 * 2 / batch_s, 4000))
    for asked in (in_turns, in_blocks):
        assert stability(asked, whole).verdict == "unknown"


# ---- what a limit counts is what must be steady


def test_memory_is_judged_in_tokens_times_slots():
    # Both halves ask for 1,010 tokens a request, but the second for 510,510 tokens times slots, the first
    # for 512 + 1,000 + 10,055.
    lengths = [(1000, 10)] * 2000 + [(10, 1000)] * 2000
    asked = recorded(lengths, poisson(16.7, 4000))
    one = engine(iq.research.SlotGreedy(), timing=iq.Constant(0.02), kv=iq.KvCache(tokens=100_000, block=1))
    found = stability(asked, one)
    assert found.load is not None
    assert found.load < 0.9
    assert found.verdict == "unknown"
    assert stability(asked, one, rate=8).verdict == "stable"
    assert observed(iq.simulate(asked, one)).verdict == "unstable"


def test_thresholds_are_judged_class_by_class():
    # Each class comes with 16.9 a second in its own half; an iteration is at least 0.2 s: 3.4 of them.
    n, at = 4000, poisson(16.9, 4000)
    kinds = {"class": ["a"] * (n // 2) + ["b"] * (n // 2)}
    changing = recorded([(10, 10)] * n, at, **kinds)
    shuffled = recorded([(10, 10)] * n, at, **{"class": ["a", "b"] * (n // 2)})

    def said(asked: iq.Workload, threshold: int) -> str:
        scheduler = iq.research.Wait(thresholds=threshold)
        timing = iq.research.MemoryLinear(base=0.2, per_kv_token=1e-6)
        return stability(asked, engine(scheduler, timing=timing)).verdict

    assert [said(changing, one) for one in (2, 3, 5)] == ["unknown", "unknown", "stable"]
    assert [said(shuffled, one) for one in (1, 2, 3)] == ["unknown", "stable", "stable"]


@pytest.mark.parametrize("timing", [
    iq.Constant(0.5),
    iq.PiecewiseLinear(
        base=0.5, per_token=0.05, knee=4,
        per_context_token=0.001, per_prefill_square=0.001, per_chunk_context=0.003,
    ),
    iq.PiecewiseLinear(base=0.5, per_token=0.05, knee=4, per_prefill_square=0.002),
    iq.research.MemoryLinear(base=0.5, per_kv_token=0.01),
])  # fmt: skip
@pytest.mark.parametrize("first_token", ["prefill", "decode"])
def test_the_unit_of_a_guarantee_is_that_of_its_capacity(timing: TimingModel, first_token: str):
    """1 / E[what a request asks for] is the rate up to which one replica is stable."""
    lengths = Lengths.observed([1, 7, 30, 64], [5, 1, 12, 3])
    asked = iq.Workload({"prompt_tokens": [1, 7, 30, 64], "output_tokens": [5, 1, 12, 3]})
    kv = iq.KvCache(tokens=400, block=4)
    one = engine(iq.Sarathi(token_budget=16, max_seqs=6), timing=timing, kv=kv, first_token=first_token)
    cost = Iteration.of(timing)
    seats, tokens = sequence_capacity(asked, one), token_capacity(asked, one)
    more_s = (seats.idle_s or 0.0) / 6
    full, seated = (cost.full_batch_work(16, one.first_token, more) for more in (0.0, more_s))
    assert 1 / lengths.mean(full) == pytest.approx(tokens.stable_below_per_s, rel=1e-12)
    assert 1 / lengths.mean(seated) == pytest.approx(seats.stable_below_per_s, rel=1e-12)
    oldest = Oldest.of(one, lengths, one.first_token)
    assert oldest is not None
    assert 1 / (oldest.longest_s * lengths.mean(oldest.work)) == pytest.approx(
        oldest.capacity_per_s, rel=1e-12
    )
    held = kv_capacity(asked, kv_tokens=400, slot_s=0.5, chunk=16, first_token=one.first_token)
    assert 400 / (0.5 * lengths.mean(held.work)) == pytest.approx(held.mu_whole_chunks, rel=1e-12)


@pytest.mark.parametrize("first_token", ["prefill", "decode"])
def test_the_unit_of_whole_cycles_is_that_of_their_capacity(first_token: str):
    timing = iq.research.TiledGemm(
        rows=4, columns=2, reduction=2, width=8, layers=1,
        linear_s_per_tile=0.5, other_s_per_token=0.01, gemm_s=0.01, gemv_s=0.01,
    )  # fmt: skip
    scheduler = iq.research.Rad(rows=4, columns=2, reduction=2, requests_per_cycle=5)
    one = engine(scheduler, timing=timing, first_token=first_token)
    asked = iq.Workload({"prompt_tokens": [1, 7, 30], "output_tokens": [5, 1, 12]})
    found = tile_capacity(asked, one)
    lengths = Lengths.observed([1, 7, 30], [5, 1, 12])
    assert 1 / lengths.mean(found.work_s) == pytest.approx(found.assured_per_s, rel=1e-12)


def test_the_busiest_part_is_that_of_the_busiest_replica():
    rows = iq.Workload({"arrival_s": [float(k) for k in range(20)], "prompt_tokens": [1, 3] * 10,
                        "output_tokens": [1] * 20})  # fmt: skip
    order = Order.of(rows.frame, timed=True)
    assert order.peak(lambda s, o: s) == pytest.approx(1)
    # One of two that take turns gets 3 of every 4 tokens.
    assert order.peak(lambda s, o: s, turns=2) == pytest.approx(2 * 3 / 4)
    assert order.peak(lambda s, o: o, turns=2) == pytest.approx(1)


# ---- nothing stable drifts


def in_some_order(chance: random.Random, count: int) -> list[tuple[int, int]]:
    kinds = [(chance.randint(1, 16), chance.randint(1, 8)) for _ in range(2)]
    every = chance.choice([2, 3])
    rule = chance.choice([
        lambda k: k % every == 0,
        lambda k: k < count // 2,
        lambda k: k * 3 // count == 1,
        lambda k: (k % every == 0) == (k < count // 2),
        lambda k: chance.random() < 0.5,
    ])  # fmt: skip
    return [kinds[bool(rule(k))] for k in range(count)]


def ordered_scenario(chance: random.Random, requests: int) -> tuple[iq.Workload, iq.Engine | iq.Cluster]:
    """Streams at even distances, or a trace in some order, one request a second, and what serves it."""
    _, _, system = random_scenario(chance)
    if chance.random() < 0.3:  # a fleet of two kinds
        other = random_scenario(chance)[2]
        router = chance.choice([iq.RoundRobin(), iq.Random(), iq.LeastRequests()])
        pair = [pools_of(one)[0].engines[0] for one in (system, other)]
        system = iq.Cluster(pair, router=router)
    if chance.random() < 0.3:
        parts = {
            name: arriving(requests, iq.dist.Deterministic(rate), chance.randint(1, 16), chance.randint(1, 8))
            for name, rate in (("a", 0.5), ("b", 0.5))
        }
        return iq.Workload.mix(parts, requests=requests), system
    lengths = in_some_order(chance, requests)
    at = poisson(1.0, requests, chance.randrange(99)) if chance.random() < 0.5 else range(requests)
    more: dict[str, object] = {}
    if chance.random() < 0.5:
        more["class"] = [str(one) for one in lengths]
    return recorded(lengths, [float(one) for one in at], **more), system


def test_nothing_is_called_stable_that_drifts_in_whatever_order():
    agreed = {"stable": 0, "unstable": 0}
    scenarios = 560 if NIGHT else 200
    for seed in range(scenarios):
        chance = random.Random(seed)
        asked, system = ordered_scenario(chance, 3000)
        if "ClassPriority" in repr(system):  # which has no place for these classes
            continue
        alone = stability(asked, system)
        sure = [one.capacity_per_s for one in alone.bounds if one.kind == "guarantee"]
        limits = [one for one in (alone.capacity_per_s, *sure) if one]
        if not limits:
            continue
        assert alone.rate is not None
        faster = chance.choice(limits) * chance.choice([0.5, 0.8, 0.9, 0.97, 1.1]) / alone.rate
        work = asked.speed(faster)
        proved, seen = stability(work, system), observed(iq.simulate(work, system, seed=seed))
        said = (proved.verdict, seen.verdict)
        assert set(said) != {"stable", "unstable"}, f"seed {seed}: {proved.explain()}\n{seen.explain()}"
        if said[0] == said[1] and said[0] in agreed:
            agreed[said[0]] += 1
    assert min(agreed.values()) > scenarios / 50, "so few say nothing"


def test_an_ordinary_surge_is_told_from_the_order():
    # All alike: turns divide them evenly, whatever their order.
    asked = recorded([(129, 112)] * 3000, poisson(15, 3000))
    fleet = iq.Cluster(engine(), replicas=2)
    assert stability(asked, fleet).verdict == "stable"
