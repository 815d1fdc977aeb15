"""Do the closed forms of nie2026 say what a sum slot by slot says, and do estimators count every slot?"""

import math
from functools import partial

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import inferq as iq
from inferq.errors import ConfigError
from inferq.theory import RequestClass, request_memory, slot

from .arriving import arriving
from .refusals import refused

kv_capacity = partial(iq.theory.kv_capacity, first_token="decode")
"""nie2026 counts a decode for every output token."""
replicas_needed = partial(iq.theory.replicas_needed, first_token="decode")
lengths = st.integers(1, 400)
chunks = st.integers(1, 200)


def held_slot_by_slot(s: int, decodes: int, pieces: list[int]) -> int:
    """What a request holds over its life when its prompt is computed in these pieces."""
    assert sum(pieces) == s
    return int(np.cumsum(pieces).sum()) + sum(s + j for j in range(1, decodes + 1))


def whole_pieces(s: int, chunk: int) -> list[int]:
    return [chunk] * (s // chunk) + ([s % chunk] if s % chunk else [])


# What a request occupies.


@given(lengths, lengths, chunks)
def test_memory_over_whole_chunks_is_the_sum_slot_by_slot(s: int, o: int, chunk: int) -> None:
    expected = held_slot_by_slot(s, o, whole_pieces(s, chunk))
    assert request_memory(s, o, chunk, whole_chunks=True) == expected


@given(st.integers(1, 20), lengths, chunks)
def test_the_papers_form_is_that_sum_for_prompts_of_whole_chunks(n: int, o: int, chunk: int) -> None:
    s = n * chunk
    assert request_memory(s, o, chunk) == pytest.approx(held_slot_by_slot(s, o, [chunk] * n), rel=1e-12)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(0, 30))
def test_no_way_to_cut_a_prompt_occupies_less_than_the_papers_form(pieces: list[int], decodes: int) -> None:
    s, chunk = sum(pieces), max(pieces)
    assert held_slot_by_slot(s, decodes, pieces) >= request_memory(s, decodes, chunk) * (1 - 1e-12)


@given(lengths, lengths, chunks)
def test_whole_chunks_add_what_the_docstring_says(s: int, o: int, chunk: int) -> None:
    rest = s % chunk
    more = ((s - rest) * (1 - rest / chunk) + (1 - rest / chunk) * rest / 2) if rest else 0.0
    difference = request_memory(s, o, chunk, whole_chunks=True) - request_memory(s, o, chunk)
    assert difference == pytest.approx(more, abs=1e-6)


@given(lengths, st.integers(0, 400), chunks, st.booleans())
def test_longer_requests_occupy_more(s: int, o: int, chunk: int, whole: bool) -> None:
    base = request_memory(s, o, chunk, whole_chunks=whole)
    assert request_memory(s + 1, o, chunk, whole_chunks=whole) > base
    assert request_memory(s, o + 1, chunk, whole_chunks=whole) == pytest.approx(base + s + o + 1)
    # Over whole chunks a longer chunk may occupy more: 4 tokens by 2 are 2 + 4, by 3 they are 3 + 4.
    assert request_memory(s, o, chunk + 1) < request_memory(s, o, chunk)


def test_memory_of_arrays_broadcasts() -> None:
    table = request_memory(np.array([[3], [5]]), np.array([1, 2, 4]), 2)
    assert table.shape == (2, 3)
    assert table[1, 2] == request_memory(5, 4, 2)


@refused(
    ((0, 1, 2), "prompt_tokens"),
    ((math.nan, 1, 2), "prompt_tokens"),
    ((math.inf, 1, 2), "prompt_tokens"),
    ((1, -1, 2), "output_tokens"),
    ((1, [1.0, math.nan], 2), "output_tokens"),
    ((1, 1, 0), "chunk"),
    ((1, 1, 2.5), "chunk"),
    error=ConfigError,
)
def test_memory_of_what_is_no_request_is_refused(arguments: tuple[object, ...]) -> None:
    request_memory(*arguments)  # type: ignore[call-overload]


def test_a_replica_holds_what_the_formula_counts() -> None:
    # One request alone under the paper's policy: its memory, slot by slot, adds up to g over whole chunks.
    engine = iq.Engine(
        timing=iq.Constant(1.0),
        scheduler=iq.research.SlotGreedy(chunk=512),
        kv=iq.KvCache(tokens=4000, block=1),
        first_token="decode",
    )
    asked = {"arrival_s": [0.0], "prompt_tokens": [1300], "output_tokens": [40]}
    run = iq.simulate(asked, engine, iterations=True, stepping=True)
    assert run.iterations["kv_used_tokens"].sum() == request_memory(1300, 40, 512, whole_chunks=True)


# Capacity.


def test_without_an_engine_first_tokens_are_counted_as_engines_do_by_default() -> None:
    asked, theory = RequestClass(rate=1.0, prompt=100, output=50), iq.theory
    memory, cost = {"kv_tokens": 5000, "slot_s": 0.1}, iq.research.MemoryLinear(base=0.01, per_kv_token=1e-6)
    default = iq.Engine(timing=cost, scheduler=iq.VllmV1(), kv=iq.KvCache.unlimited()).first_token
    for said, stated in (
        (theory.kv_capacity(asked, **memory), theory.kv_capacity(asked, **memory, first_token=default)),
        (
            theory.replicas_needed(asked, **memory),
            theory.replicas_needed(asked, **memory, first_token=default),
        ),
        (theory.fluid(asked, cost), theory.fluid(asked, cost, first_token=default)),
        (theory.wait_thresholds(asked, cost), theory.wait_thresholds(asked, cost, first_token=default)),
    ):
        assert said == stated


def chat(rate: float = 1.0, prompt: object = 100, output: object = 50, name: str = "chat") -> RequestClass:
    return RequestClass(rate=rate, prompt=prompt, output=output, name=name)  # type: ignore[arg-type]


def test_capacity_is_memory_over_slots_and_the_mean_of_the_sum() -> None:
    limit = kv_capacity(
        chat(prompt=iq.dist.Uniform(1, 6), output=iq.dist.Uniform(2, 5)), kv_tokens=40, slot_s=0.5, chunk=4
    )
    pairs = [(s, o) for s in range(1, 7) for o in range(2, 6)]
    summed = [held_slot_by_slot(s, o, whole_pieces(s, 4)) for s, o in pairs]
    assert limit.mu_whole_chunks == pytest.approx(40 / (0.5 * np.mean(summed)), rel=1e-12)
    real = np.mean([((1 + s / 4) * s + 2 * o * s + (1 + o) * o) / 2 for s, o in pairs])
    assert limit.mu == pytest.approx(40 / (0.5 * real), rel=1e-12)
    assert limit.delta == 11 / 40
    assert limit.stable_below_per_s == pytest.approx((1 - 11 / 40) * limit.mu_whole_chunks)


@settings(max_examples=40)
@given(
    st.integers(1, 50), st.integers(1, 50), st.integers(200, 10**6), st.floats(1e-3, 10), st.integers(2, 9)
)
def test_capacity_is_linear_in_memory_and_in_slots_per_second(
    s: int, o: int, kv_tokens: int, slot_s: float, factor: int
) -> None:
    asked = chat(prompt=s, output=o)
    base = kv_capacity(asked, kv_tokens=kv_tokens, slot_s=slot_s)
    more = kv_capacity(asked, kv_tokens=factor * kv_tokens, slot_s=slot_s)
    slower = kv_capacity(asked, kv_tokens=kv_tokens, slot_s=factor * slot_s)
    assert more.mu == pytest.approx(factor * base.mu, rel=1e-12)
    assert slower.mu == pytest.approx(base.mu / factor, rel=1e-12)
    assert more.delta is not None and base.delta is not None
    assert more.delta == pytest.approx(base.delta / factor, rel=1e-12)
    assert base.mu >= base.mu_whole_chunks * (1 - 1e-12)


@settings(max_examples=40)
@given(lengths, lengths, chunks)
def test_capacity_falls_with_longer_prompts_outputs_and_shorter_chunks(s: int, o: int, chunk: int) -> None:
    def mu(s: int, o: int, chunk: int) -> float:
        return kv_capacity(chat(prompt=s, output=o), kv_tokens=10_000, slot_s=0.1, chunk=chunk).mu

    assert mu(s + 1, o, chunk) < mu(s, o, chunk) > mu(s, o + 1, chunk)
    assert mu(s, o, chunk + 1) >= mu(s, o, chunk)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.floats(0.01, 100), lengths, lengths), min_size=1, max_size=5))
def test_classes_mix_by_their_shares(classes: list[tuple[float, int, int]]) -> None:
    asked = [chat(rate, s, o, str(place)) for place, (rate, s, o) in enumerate(classes)]
    limit = kv_capacity(asked, kv_tokens=10_000, slot_s=0.02)
    total = sum(rate for rate, _, _ in classes)
    each = [kv_capacity(one, kv_tokens=10_000, slot_s=0.02) for one in asked]
    assert [one.mu for one in limit.classes] == pytest.approx([one.mu for one in each])
    parts = [rate / total / one.mu for (rate, _, _), one in zip(classes, each, strict=True)]
    assert 1 / limit.mu == pytest.approx(sum(parts), rel=1e-9)
    assert limit.load == pytest.approx(total / limit.mu)


def test_classes_that_come_one_after_another_have_slots_of_their_own() -> None:
    asked = [chat(1.0, 100, 50, "short"), chat(3.0, 400, 10, "long")]
    limit = kv_capacity(asked, kv_tokens=10_000, slot_s={"short": 0.02, "long": 0.05})
    g = {"short": request_memory(100, 50), "long": request_memory(400, 10)}
    assert limit.mu == pytest.approx(10_000 / (0.25 * 0.02 * g["short"] + 0.75 * 0.05 * g["long"]))
    assert limit.stable is None  # the theorems are about one slot


def test_lengths_that_belong_together_are_not_taken_apart() -> None:
    together = {"prompt_tokens": [10, 1000], "output_tokens": [1000, 10]}
    limit = kv_capacity(iq.Workload(together), kv_tokens=5000, slot_s=1.0, chunk=10**6)
    mean = (request_memory(10, 1000, 10**6) + request_memory(1000, 10, 10**6)) / 2
    assert limit.mu == pytest.approx(5000 / mean)
    assert limit.rate is None and limit.load is None and limit.stable is None
    assert limit.delta == 1010 / 5000
    assert "the arrival rate λ is unknown" in limit.explain()


def test_the_first_token_with_the_prompt_saves_a_decode() -> None:
    limit = kv_capacity(chat(prompt=100, output=50), kv_tokens=5000, slot_s=1.0, first_token="prefill")
    assert limit.mu == pytest.approx(5000 / request_memory(100, 49))
    assert limit.largest_request_tokens == 149


def test_verdicts_are_those_of_the_theorems() -> None:
    def stable(rate: float) -> bool | None:
        return kv_capacity(chat(rate, 512, 88), kv_tokens=6000, slot_s=0.1).stable

    mu = 6000 / (0.1 * request_memory(512, 88))
    assert stable(0.999 * 0.9 * mu) is True
    assert stable(1.001 * 0.9 * mu) is None and stable(0.999 * mu) is None
    assert stable(1.001 * mu) is False


def test_nothing_is_claimed_where_a_hypothesis_fails() -> None:
    lengths = {"prompt": iq.dist.Fixed(100), "output": iq.dist.Fixed(50)}
    known = {"kv_tokens": 5000, "slot_s": 0.01}
    for arrivals, stable in (
        (iq.dist.Poisson(1.0), True),
        (iq.dist.OnOff(2.0, mean_on_s=1.0, mean_off_s=1.0), None),
    ):
        asked = iq.Workload.synthetic(requests=10, arrivals=arrivals, **lengths)
        assert kv_capacity(asked, **known).stable is stable
    impatient = iq.Workload.synthetic(requests=10, arrivals=iq.dist.Poisson(1.0), **lengths).with_patience(
        5.0
    )
    assert kv_capacity(impatient, rate=1e6, **known).stable is None
    endless = kv_capacity(chat(0.1, 100, iq.dist.Geometric(mean=50)), **known)
    assert endless.delta is None and endless.stable_below_per_s is None and endless.stable is None
    assert kv_capacity(chat(1e6, 100, iq.dist.Geometric(mean=50)), **known).stable is False
    assert {one.name: one.met for one in endless.hypotheses}["memory slack, δ ≪ 1"] is False


def test_an_explanation_has_every_number() -> None:
    asked = [chat(2.0, 600, 50, "short"), chat(3.0, 400, 10, "long")]
    limit = kv_capacity(asked, kv_tokens=13_579, slot_s=0.0213, utilization=0.87)
    told = limit.explain()
    for part in (
        "13,579",
        "0.0213",
        "ŝ = 512",
        "650 / 13,579",
        "0.87",
        "λ = 5 ",
        "'short'",
        "'long'",
        "decode",
    ):
        assert part in told, part
    for value in (limit.mu, limit.mu_whole_chunks, limit.stable_below_per_s, limit.target_per_s, limit.load):
        assert f"{value:.6g}" in told
    for one in limit.classes:
        assert f"{one.mu:.6g}" in told and f"{one.share:.6g}" in told
    assert str(limit) == told
    assert all(str(one) in told for one in limit.hypotheses)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"kv_tokens": 149}, "kv_tokens: 149 is too small for class"),
        ({"kv_tokens": 0}, "kv_tokens"),
        ({"kv_tokens": 1e4}, "kv_tokens"),
        ({"slot_s": 0}, "slot_s"),
        ({"slot_s": math.nan}, "slot_s"),
        ({"slot_s": {"code": 0.1}}, "slot_s: unknown class 'code'"),
        ({"slot_s": {}}, "slot_s: the length for class 'chat' is missing"),
        ({"slot_s": {"chat": -1}}, r"slot_s\['chat'\]"),
        ({"chunk": 0}, "chunk"),
        ({"rate": 0}, "rate"),
        ({"rate": math.inf}, "rate"),
        ({"utilization": 0}, "utilization"),
        ({"utilization": 1.01}, "utilization"),
        ({"utilization": True}, "utilization"),
        ({"first_token": "last"}, "first_token"),
        ({"workload": []}, "workload"),
    ],
)
def test_bad_arguments_are_named(changed: dict[str, object], named: str) -> None:
    arguments = {"workload": chat(), "kv_tokens": 5000, "slot_s": 0.1, **changed}
    for theory in (kv_capacity, replicas_needed):
        with pytest.raises(ConfigError, match=named):
            theory(**arguments)  # type: ignore[arg-type]


def test_a_distribution_without_an_end_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"a share of .* is larger \(without a cap\)"):
        kv_capacity(chat(output=iq.dist.Geometric(mean=50)), kv_tokens=400, slot_s=0.1)


def test_a_fleet_needs_a_rate() -> None:
    with pytest.raises(ConfigError, match="rate"):
        replicas_needed(iq.Workload({"prompt_tokens": [5], "output_tokens": [5]}), kv_tokens=50, slot_s=0.1)


# Replicas.


@given(st.floats(1e-3, 1e4), st.floats(0.01, 1.0))
def test_the_fleet_is_the_least_that_stays_within_its_utilization(rate: float, utilization: float) -> None:
    fleet = replicas_needed(chat(rate), kv_tokens=5000, slot_s=0.1, utilization=utilization)
    assert fleet.load <= utilization * (1 + 1e-8)
    assert fleet.target_per_s >= rate * (1 - 1e-8)
    if fleet.replicas > 1:
        assert (fleet.replicas - 1) * fleet.replica.target_per_s < rate
    assert fleet.replica.rate == pytest.approx(rate / fleet.replicas)


def test_rounding_asks_for_no_further_replica() -> None:
    mu = kv_capacity(chat(), kv_tokens=5000, slot_s=0.1).mu
    for whole in range(1, 200):
        assert (
            replicas_needed(chat(whole * mu * 0.7), kv_tokens=5000, slot_s=0.1, utilization=0.7).replicas
            == whole
        )


def test_the_explanation_of_a_fleet_has_every_number() -> None:
    fleet = replicas_needed(chat(40.0), kv_tokens=5000, slot_s=0.1, utilization=0.8)
    told = fleet.explain()
    assert f"= {fleet.replicas}\n" in told
    for value in (fleet.load, fleet.target_per_s, fleet.capacity_per_s, fleet.stable_below_per_s):
        assert f"{value:.6g}" in told
    for line in fleet.replica.explain().splitlines():
        assert line in told


# The slot.

stretches = st.lists(
    st.tuples(st.integers(1, 30), st.floats(1e-3, 1.0), st.sampled_from([0.0, 1e-3, 3.3e-4, -1e-5])),
    min_size=1,
    max_size=30,
)


def columns(rows: list[tuple[int, float, float]]) -> dict[str, list[float]]:
    return dict(zip(("count", "first_s", "growth_s"), map(list, zip(*rows, strict=True)), strict=True))


def singly(rows: list[tuple[int, float, float]]) -> np.ndarray:
    return np.sort([first + j * growth for count, first, growth in rows for j in range(count)])


@given(stretches, st.floats(0, 0.99))
def test_estimators_count_every_iteration_of_a_stretch(
    rows: list[tuple[int, float, float]], trim: float
) -> None:
    each = singly(rows)
    kept = each[: len(each) - math.floor(trim * len(each))]
    assert slot(columns(rows), "median") == pytest.approx(float(np.median(each)), rel=1e-9)
    assert slot(columns(rows), "mean") == pytest.approx(float(each.mean()), rel=1e-9)
    assert slot(columns(rows), "trimmed", trim=trim) == pytest.approx(float(kept.mean()), rel=1e-9)


def test_trimming_leaves_out_the_longest_alone() -> None:
    rows = {"count": [9, 1], "first_s": [0.1, 5.0], "growth_s": [0.0, 0.0]}
    assert slot(rows, "trimmed", trim=0.1) == pytest.approx(0.1)
    assert slot(rows, "trimmed", trim=0.09) == slot(rows, "mean") == pytest.approx(0.59)
    assert slot(rows) == 0.1


def test_the_slot_of_a_run_is_that_of_its_single_iterations() -> None:
    timing = iq.research.MemoryLinear(base=0.01, per_kv_token=1e-6)
    engine = iq.Engine(timing=timing, scheduler=iq.Sarathi(), kv=iq.KvCache(tokens=20_000))
    asked = arriving(300, 8.0, iq.dist.Uniform(10, 900), iq.dist.Uniform(10, 200))
    fast, slow = (iq.simulate(asked, engine, seed=3, iterations=True, stepping=one) for one in (False, True))
    assert fast.iterations.height < slow.iterations.height
    for estimator in ("median", "mean", "trimmed"):
        assert slot(fast, estimator) == pytest.approx(slot(slow, estimator), rel=1e-12)
    assert slot(slow, "median") == pytest.approx(slow.iterations["first_s"].median(), rel=1e-12)
    assert slot(fast.iterations, "mean") == slot(fast, "mean")


def test_a_constant_slot_is_found_by_every_estimator() -> None:
    engine = iq.Engine(timing=iq.Constant(0.25), scheduler=iq.Sarathi(), kv=iq.KvCache.unlimited())
    asked = {"arrival_s": [0.0, 9.0], "prompt_tokens": [5, 5], "output_tokens": [7, 3]}
    fleet = iq.Cluster(engine, replicas=2, router=iq.RoundRobin())
    run = iq.simulate(asked, fleet, iterations=True)
    assert {slot(run, one) for one in ("median", "mean", "trimmed")} == {0.25}


@refused(
    ({"count": [1], "first_s": [0.1]}, "growth_s"),
    ({"count": [], "first_s": [], "growth_s": []}, "at least one iteration"),
    ({"count": [1, 2], "first_s": [0.1], "growth_s": [0.0]}, "one length"),
    ({"count": [1, 0], "first_s": [0.1, 0.1], "growth_s": [0.0, 0.0]}, "row 1"),
    ({"count": [3], "first_s": [0.1], "growth_s": [-0.1]}, "row 0"),
    ({"count": [1], "first_s": [math.nan], "growth_s": [0.0]}, "row 0"),
    (17, "recorded"),
    error=ConfigError,
)
def test_what_is_no_record_of_iterations_is_refused(recorded: object) -> None:
    slot(recorded)  # type: ignore[arg-type]


def test_bad_estimators_are_named() -> None:
    rows = pl.DataFrame({"count": [1], "first_s": [0.1], "growth_s": [0.0]})
    for trim in (-0.1, 1.0, math.nan):
        with pytest.raises(ConfigError, match="trim"):
            slot(rows, "trimmed", trim=trim)
    with pytest.raises(ConfigError, match="estimator"):
        slot(rows, "mode")  # type: ignore[arg-type]
    engine = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.Sarathi(), kv=iq.KvCache.unlimited())
    unrecorded = iq.simulate({"arrival_s": [0.0], "prompt_tokens": [1], "output_tokens": [1]}, engine)
    with pytest.raises(ConfigError, match="iterations"):
        slot(unrecorded)
