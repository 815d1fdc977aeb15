"""Is T^R of bari2025 the sum of what the tiles of a request cost, and the limit of what RAD serves?"""

import dataclasses
import math

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import inferq as iq
from inferq.theory import RequestClass, TileCapacity, tile_capacity

from .arriving import arriving

TILE = {"rows": 128, "columns": 64, "reduction": 32}
DEAR = iq.research.TiledGemm(
    **TILE, width=4096, layers=32, linear_s_per_tile=1e-3, other_s_per_token=1e-6, gemm_s=8e-9, gemv_s=1e-9
)
"""The attention of prompts is a quarter of all time."""


def chunks_of(prompt: int, chunk: int) -> list[int]:
    """RAD's chunks: whole ones, then what is left."""
    return [chunk] * (prompt // chunk) + ([prompt % chunk] if prompt % chunk else [])


def priced(timing: iq.research.TiledGemm, chunks: list[int], decodes: list[int]) -> float:
    """(7) as `TiledGemm` states it: chunks of one prompt one after another, each alone, decodes together.

    `decodes` holds for every iteration of decodes the token that each of its rows computes.
    """
    t, seconds, context = timing, 0.0, 0
    for tokens in chunks:
        seconds += t.linear_s_per_tile * math.ceil(tokens / t.columns) + t.other_s_per_token * tokens
        context += tokens
        by_rows, by_reduction = math.ceil(context / t.rows), math.ceil(context / t.reduction)
        tiles = t.width / t.reduction * by_rows + t.width / t.rows * by_reduction
        seconds += t.layers * t.gemm_s * math.ceil(tokens / t.columns) * tiles
    for token in decodes:
        tiles = t.width / t.columns * math.ceil(token / t.rows)
        tiles += t.width / t.rows * math.ceil(token / t.columns)
        # A full iteration of decodes takes one tile in the linear layers for all of them.
        seconds += t.linear_s_per_tile / t.columns + t.other_s_per_token + t.layers * t.gemv_s * tiles
    return seconds


def rad_s(timing: iq.research.TiledGemm, prompt: int, output: int, first_token: str) -> float:
    """T^R of one request, iteration by iteration."""
    chunk = math.lcm(timing.rows, timing.columns, timing.reduction)
    last = prompt + output - (1 if first_token == "prefill" else 0)
    return priced(timing, chunks_of(prompt, chunk), list(range(prompt + 1, last + 1)))


def parts_s(found: TileCapacity) -> list[float]:
    return [
        found.prompt_linear_s,
        found.prompt_attention_s,
        found.decode_linear_s,
        found.decode_attention_s,
        found.other_s,
    ]


def rad(timing: iq.research.TiledGemm, requests_per_cycle: int = 1_000, **changed: object) -> iq.Engine:
    tile = {"rows": timing.rows, "columns": timing.columns, "reduction": timing.reduction}
    engine = iq.Engine(
        timing=timing,
        scheduler=iq.research.Rad(**tile, requests_per_cycle=requests_per_cycle),
        kv=iq.KvCache.unlimited(),
    )
    return dataclasses.replace(engine, **changed)


def at_once(pairs: list[tuple[int, int]]) -> iq.Workload:
    prompts, outputs = zip(*pairs, strict=True)
    return iq.Workload({"arrival_s": [0.0] * len(pairs), "prompt_tokens": prompts, "output_tokens": outputs})


@st.composite
def tile_times(draw: st.DrawFn) -> iq.research.TiledGemm:
    """Small tiles of any ratio, and costs that are multiples of a nanosecond."""
    sizes = [draw(st.sampled_from([1, 2, 3, 4, 6, 8, 12])) for _ in range(3)]
    costs = [draw(st.integers(1, 1_000)) * 1e-9 for _ in range(4)]
    return iq.research.TiledGemm(
        rows=sizes[0],
        columns=sizes[1],
        reduction=sizes[2],
        width=24,
        layers=draw(st.integers(1, 3)),
        linear_s_per_tile=costs[0],
        other_s_per_token=costs[1],
        gemm_s=costs[2],
        gemv_s=costs[3],
    )


pairs_of = st.lists(st.tuples(st.integers(1, 70), st.integers(1, 40)), min_size=1, max_size=12)


@given(timing=tile_times(), pairs=pairs_of, first_token=st.sampled_from(["prefill", "decode"]))
def test_the_time_of_a_request_is_the_sum_over_its_iterations(
    timing: iq.research.TiledGemm, pairs: list[tuple[int, int]], first_token: str
):
    found = tile_capacity(at_once(pairs), timing, first_token=first_token)
    by_hand = math.fsum(rad_s(timing, p, o, first_token) for p, o in pairs) / len(pairs)
    assert found.request_s == pytest.approx(by_hand, rel=1e-12)
    assert found.request_s == pytest.approx(math.fsum(parts_s(found)), rel=1e-15)


def cheapest_s(timing: iq.research.TiledGemm, prompt: int) -> float:
    """The least attention of a prompt over all ways to cut it into chunks, by trying the last chunk."""
    free = dataclasses.replace(timing, linear_s_per_tile=0, other_s_per_token=0)
    best = [0.0] * (prompt + 1)
    for end in range(1, prompt + 1):
        best[end] = min(
            best[end - c] + priced(free, [end - c, c], []) - priced(free, [end - c], []) if c < end
            else priced(free, [end], [])
            for c in range(1, end + 1)
        )  # fmt: skip
    return best[prompt]


@given(timing=tile_times(), prompt=st.integers(1, 40), output=st.integers(1, 6))
def test_the_floor_is_the_cheapest_of_all_ways_to_cut_a_prompt(
    timing: iq.research.TiledGemm, prompt: int, output: int
):
    found = tile_capacity(at_once([(prompt, output)]), timing)
    tokens = prompt + output - 1
    rest = tokens * (timing.linear_s_per_tile / timing.columns + timing.other_s_per_token)
    by_hand = cheapest_s(timing, prompt) + rest + found.decode_attention_s
    assert found.least_s == pytest.approx(by_hand, rel=1e-12)
    assert found.least_s <= found.request_s * (1 + 1e-12)


@given(
    timing=tile_times(),
    pairs=pairs_of,
    scheduler=st.sampled_from(
        [
            iq.Sarathi(token_budget=8, max_seqs=4),
            iq.Sarathi(token_budget=64, max_seqs=64, order="spf"),
            iq.VllmV0(token_budget=80, max_seqs=16),
            iq.research.Rad(rows=2, columns=4, reduction=2, requests_per_cycle=5),
            iq.research.RadPhased(rows=2, columns=3, reduction=1, requests_per_cycle=5),
        ]
    ),
)
def test_no_scheduler_serves_faster_than_the_floor(
    timing: iq.research.TiledGemm, pairs: list[tuple[int, int]], scheduler: iq.Scheduler
):
    engine = iq.Engine(timing=timing, scheduler=scheduler, kv=iq.KvCache.unlimited())
    taken_s = iq.simulate(at_once(pairs), engine).totals["end_s"]
    assert taken_s >= len(pairs) * tile_capacity(at_once(pairs), engine).least_s * (1 - 1e-9)


@given(timing=tile_times(), pairs=pairs_of, first_token=st.sampled_from(["prefill", "decode"]))
def test_one_request_alone_takes_its_parts_with_a_whole_tile_for_every_decode(
    timing: iq.research.TiledGemm, pairs: list[tuple[int, int]], first_token: str
):
    prompt, output = pairs[0]
    engine = rad(timing, first_token=first_token)
    taken_s = iq.simulate(at_once([(prompt, output)]), engine).totals["end_s"]
    found = tile_capacity(at_once([(prompt, output)]), engine)
    alone_s = found.request_s + found.decode_linear_s * (timing.columns - 1)
    assert taken_s == pytest.approx(alone_s, rel=1e-12)


@settings(max_examples=40)
@given(timing=tile_times(), pairs=pairs_of, kind=st.sampled_from(["Rad", "RadPhased"]))
def test_as_many_alike_as_a_tile_has_columns_take_exactly_so_many_times_that_long(
    timing: iq.research.TiledGemm, pairs: list[tuple[int, int]], kind: str
):
    tile = {"rows": timing.rows, "columns": timing.columns, "reduction": timing.reduction}
    scheduler = getattr(iq, kind)(**tile, requests_per_cycle=timing.columns)
    work = at_once([pairs[0]] * 3 * timing.columns)
    engine = rad(timing, scheduler=scheduler)
    taken_s = iq.simulate(work, engine).totals["end_s"]
    assert taken_s == pytest.approx(3 * timing.columns * tile_capacity(work, engine).request_s, rel=1e-12)


@given(
    timing=tile_times(),
    pairs=st.lists(st.tuples(st.integers(1, 70), st.integers(1, 40)), min_size=4, max_size=60),
    kind=st.sampled_from(["Rad", "RadPhased"]),
    requests_per_cycle=st.integers(1, 30),
    sizes=st.tuples(*[st.sampled_from([1, 2, 3, 4, 6, 8, 12])] * 3),
)
def test_cycles_take_what_their_requests_take_and_at_most_one_end(
    timing: iq.research.TiledGemm,
    pairs: list[tuple[int, int]],
    kind: str,
    requests_per_cycle: int,
    sizes: tuple[int, int, int],
):
    # The tiles of the policy may be others than those of the GPU. With 65 decodes in tiles of 64 fewer can
    # cost less than their part of full iterations, and only the end of a cycle has a bound.
    tile = dict(zip(("rows", "columns", "reduction"), sizes, strict=True))
    scheduler = getattr(iq, kind)(**tile, requests_per_cycle=requests_per_cycle)
    engine = rad(timing, scheduler=scheduler)
    found = tile_capacity(at_once(pairs), engine)
    taken_s = iq.simulate(at_once(pairs), engine).totals["end_s"]
    assert found.cycle_end_s is not None
    cycles = math.ceil(len(pairs) / requests_per_cycle)
    work_s = len(pairs) * found.request_s
    assert taken_s <= (work_s + cycles * found.cycle_end_s) * (1 + 1e-12)
    if met(found)["full decodes take the fewest tiles"]:
        assert taken_s >= work_s * (1 - 1e-12)


@given(timing=tile_times(), pairs=pairs_of, factor=st.integers(2, 9))
def test_costs_times_a_factor_divide_the_capacity_by_it(
    timing: iq.research.TiledGemm, pairs: list[tuple[int, int]], factor: int
):
    names = ("linear_s_per_tile", "other_s_per_token", "gemm_s", "gemv_s")
    slow = dataclasses.replace(timing, **{name: factor * getattr(timing, name) for name in names})
    fast, slowed = (tile_capacity(at_once(pairs), each, rate=1.0) for each in (timing, slow))
    assert slowed.capacity_per_s * factor == pytest.approx(fast.capacity_per_s, rel=1e-12)
    assert slowed.load == pytest.approx(factor * fast.load, rel=1e-12)
    assert slowed.least_s == pytest.approx(factor * fast.least_s, rel=1e-12)
    many = tile_capacity(at_once(pairs), timing, rate=1.0, engines=factor)
    assert many.capacity_per_s == pytest.approx(factor * fast.capacity_per_s, rel=1e-12)


@given(timing=tile_times(), pairs=pairs_of, more=st.tuples(st.integers(0, 5), st.integers(0, 5)))
def test_longer_requests_take_longer_and_the_distribution_mixes_linearly(
    timing: iq.research.TiledGemm, pairs: list[tuple[int, int]], more: tuple[int, int]
):
    found = tile_capacity(at_once(pairs), timing)
    longer = tile_capacity(at_once([(p + more[0], o + more[1]) for p, o in pairs]), timing)
    assert longer.request_s >= found.request_s * (1 - 1e-12)
    assert longer.least_s >= found.least_s * (1 - 1e-12)
    classes = [RequestClass(name=str(k), rate=1.0 + k, prompt=p, output=o) for k, (p, o) in enumerate(pairs)]
    alone = [tile_capacity(one, timing).request_s for one in classes]
    mixed = math.fsum(one.rate * s for one, s in zip(classes, alone, strict=True))
    together = tile_capacity(classes, timing)
    assert together.request_s == pytest.approx(mixed / math.fsum(one.rate for one in classes), rel=1e-12)


def test_a_distribution_is_summed_exactly_also_for_outputs_of_thousands():
    workload = RequestClass(rate=1.0, prompt=iq.dist.Uniform(100, 131), output=iq.dist.Uniform(1, 4_000))
    found = tile_capacity(workload, DEAR)
    by_hand, number = 0.0, 0
    for prompt in range(100, 132):
        lasted = rad_s(DEAR, prompt, 1, "prefill")
        for output in range(1, 4_001):
            if output > 1:
                lasted += priced(DEAR, [], [prompt + output - 1])
            by_hand, number = by_hand + lasted, number + 1
    assert found.request_s == pytest.approx(by_hand / number, rel=1e-9)


def test_the_formula_of_the_paper_holds_for_prompts_in_whole_tiles():
    # T^R as Theorem 1 prints it, but for the number of decodes.
    prompts, outputs = [128 * k for k in (8, 9, 24)], [1, 200, 513]
    pair_s = 32 * 8e-9 * 4096 / (128 * 64 * 32)
    by_hand = 0.0
    for p, o in zip(prompts, outputs, strict=True):
        by_hand += (p + o - 1) * (1e-3 / 64 + 1e-6) + pair_s * p * (p + 128)
        by_hand += sum(
            32 * 1e-9 * (64 * math.ceil(i / 128) + 32 * math.ceil(i / 64)) for i in range(p + 1, p + o)
        )
    found = tile_capacity(at_once(list(zip(prompts, outputs, strict=True))), DEAR)
    assert found.request_s == pytest.approx(by_hand / 3, rel=1e-12)
    printed = tile_capacity(at_once(list(zip(prompts, outputs, strict=True))), DEAR, first_token="decode")
    assert printed.decode_tokens_mean == found.decode_tokens_mean + 1


def test_smaller_chunks_serve_more_than_theorem_1_allows():
    # Chunks of one tile of columns fill all that chunks of 128 fill, and attend to fewer of their own tokens.
    lengths = [(128 * p, o) for p, o in zip(range(8, 25), range(1, 514, 32), strict=True)] * 80
    paper = tile_capacity(at_once(lengths), rad(DEAR))
    small = rad(DEAR, scheduler=iq.research.Rad(rows=64, columns=64, reduction=32, requests_per_cycle=10**6))
    served_per_s = len(lengths) / iq.simulate(at_once(lengths), small).totals["end_s"]
    assert paper.capacity_per_s < served_per_s < paper.most_per_s
    judged = {one.name: one.met for one in paper.hypotheses}
    assert judged["every scheduler needs at least T^R"] is False
    assert judged["prompts fill their chunks"] is True
    # With tiles as wide as their least common multiple the two limits are one.
    square = tile_capacity(at_once(lengths), dataclasses.replace(DEAR, columns=128))
    assert square.least_s == pytest.approx(square.request_s, rel=1e-12)
    assert {one.name: one.met for one in square.hypotheses}["every scheduler needs at least T^R"] is True


def stable_at(load: float, engine: iq.Engine, requests: int, seed: int) -> tuple[TileCapacity, iq.Result]:
    """What theory says of a load, and a run at it: prompts in whole tiles, Poisson arrivals."""
    lengths = pl.DataFrame({"prompt_tokens": [256, 512, 1024], "output_tokens": [200, 60, 20]})
    work = iq.Workload.synthetic(
        requests=requests, arrivals=iq.dist.Poisson(1.0), lengths=iq.dist.Empirical(lengths)
    )
    rate = load * tile_capacity(work, engine).capacity_per_s
    found = tile_capacity(work, engine, rate=rate)
    return found, iq.simulate(work.speed(rate), engine, seed=seed)


@pytest.mark.parametrize("kind", ["Rad", "RadPhased"])
def test_rad_is_stable_up_to_two_percent_below_the_limit_and_not_two_percent_above(kind: str):
    # A million requests with a variation of 0.7 in their time know the load of a run to 0.1 %, and the end
    # of a cycle of 1,000 takes at most 1.3 %, which RadPhased, whose cycles swing, shows only in long runs.
    engine = rad(DEAR, scheduler=getattr(iq, kind)(**TILE, requests_per_cycle=1_000))
    for load, verdict in ((0.98, "stable"), (1.02, "unstable")):
        theory, run = stable_at(load, engine, 1_000_000, seed=5)
        assert theory.stable is (verdict == "stable")
        assert iq.theory.observed(run).verdict == verdict


def test_short_cycles_move_the_edge_as_far_as_their_ends_allow():
    # Four requests a cycle: at 0.98 of the limit the theorems say nothing, and the run drowns; the rate that
    # is certainly served is served.
    engine = rad(DEAR, requests_per_cycle=4)
    theory, run = stable_at(0.98, engine, 20_000, seed=1)
    assert theory.stable is None
    assert theory.requests_per_cycle_enough > 4
    assert iq.theory.observed(run).verdict == "unstable"
    assert theory.assured_per_s < theory.capacity_per_s
    share = 0.98 * theory.assured_per_s / theory.capacity_per_s
    theory, run = stable_at(share, engine, 200_000, seed=1)
    assert theory.stable is True
    assert iq.theory.observed(run).verdict == "stable"


def test_theorem_2_asks_for_more_requests_a_cycle_than_are_enough():
    found = tile_capacity(at_once([(128, 65)] * 3 + [(256, 3)]), DEAR, rate=1.0)
    spare_s = 1 - found.request_s
    assert found.cycle_end_s == pytest.approx(64 * 63 / 64 * 1e-3, rel=1e-12)
    assert found.requests_per_cycle_enough == math.floor(found.cycle_end_s / spare_s) + 1
    # T^max: 256 + 64 tokens one by one, each with a tile of its own and as a decode.
    gemv = sum(32 * 1e-9 * (64 * math.ceil(i / 128) + 32 * math.ceil(i / 64)) for i in range(1, 321))
    assert found.longest_request_s == pytest.approx(320 * (1e-3 + 1e-6) + gemv, rel=1e-12)
    assert found.requests_per_cycle_theorem == math.floor(63 * found.longest_request_s / spare_s) + 1
    assert found.requests_per_cycle_enough < found.requests_per_cycle_theorem


def met(found: TileCapacity) -> dict[str, bool | None]:
    return {one.name: one.met for one in found.hypotheses}


def test_every_hypothesis_is_judged():
    work = arriving(10, 1.0, 256, iq.dist.Uniform(1, 65))
    free = tile_capacity(work, rad(DEAR))
    assert free.stable is True
    assert all(one for name, one in met(free).items() if name != "every scheduler needs at least T^R")
    # 64 requests of 256 + 64 tokens of context: 20 blocks of 16 each.
    for blocks, fits in ((64 * 20, True), (64 * 20 - 1, False)):
        found = tile_capacity(work, rad(DEAR, kv=iq.KvCache(tokens=16 * blocks)))
        assert met(found)["memory slack"] is fits
        assert found.stable is (True if fits else None)
    # RadPhased holds the prompts of its whole cycle.
    phased = iq.research.RadPhased(**TILE, requests_per_cycle=1_000)
    found = tile_capacity(work, rad(DEAR, scheduler=phased, kv=iq.KvCache(tokens=16 * 64 * 20)))
    assert met(found)["memory slack"] is False
    wide = iq.research.Rad(rows=128, columns=65, reduction=32, requests_per_cycle=1_000)
    found = tile_capacity(work, rad(DEAR, scheduler=wide))
    assert met(found)["full decodes take the fewest tiles"] is False and found.stable is None
    sarathi = tile_capacity(work, rad(DEAR, scheduler=iq.Sarathi()))
    assert met(sarathi)["the policy is RAD"] is False and sarathi.stable is None
    assert tile_capacity(work, rad(DEAR, scheduler=iq.Sarathi()), rate=1e6).stable is False
    endless = arriving(10, 1.0, 256, iq.dist.Geometric(mean=30))
    found = tile_capacity(endless, rad(DEAR))
    assert met(found)["lengths are bounded"] is False and found.stable is None
    assert found.cycle_end_s is None and found.longest_request_s is None
    even = arriving(10, iq.dist.Gamma(1.0, cv=3), 256, 9)
    assert tile_capacity(even, rad(DEAR)).stable is None
    assert tile_capacity(work.with_patience(5.0), rad(DEAR), rate=1e6).stable is None
    assert met(tile_capacity(work, DEAR))["memory slack"] is None
    assert met(tile_capacity(work, rad(DEAR), engines=2))["replicas share evenly"] is None
    odd = tile_capacity(RequestClass(rate=1.0, prompt=iq.dist.Uniform(1, 256), output=9), DEAR)
    assert met(odd)["prompts fill their chunks"] is False
    assert odd.prompt_linear_s == pytest.approx(1e-3 * (1 + 2 + 3 + 4) / 4, rel=1e-12)
    cheap = dataclasses.replace(DEAR, gemv_s=1e-10)
    assert met(tile_capacity(work, cheap))["decodes cost less in one product"] is False


def test_an_explanation_holds_every_number():
    work = RequestClass(rate=2.0, prompt=iq.dist.Uniform(100, 300), output=iq.dist.Uniform(1, 65))
    found = tile_capacity(work, rad(DEAR, requests_per_cycle=77), engines=3)
    told = found.explain()
    assert str(found) == told
    shown = [*parts_s(found), found.request_s, found.least_s, found.capacity_per_s, found.most_per_s]
    shown += [found.cycle_end_s, found.assured_per_s, found.longest_request_s, found.load, found.rate]
    shown += [found.prompt_tokens_mean, found.decode_tokens_mean, found.chunk_tokens, found.engines, 77]
    shown += [found.requests_per_cycle_enough, found.requests_per_cycle_theorem, found.decodes_together]
    shown += [getattr(DEAR, name) for name in ("rows", "columns", "reduction", "width", "layers")]
    shown += [DEAR.linear_s_per_tile, DEAR.other_s_per_token, DEAR.gemm_s, DEAR.gemv_s]
    for value in shown:
        assert iq.theory.statement.number(value) in told
    assert "Rad: stable" in told
    for one in found.hypotheses:
        assert str(one) in told


def test_what_cannot_be_asked_is_refused():
    work = RequestClass(rate=1.0, prompt=128, output=9)
    free = iq.research.TiledGemm(
        **TILE, width=4096, layers=1, linear_s_per_tile=0, other_s_per_token=0, gemm_s=0, gemv_s=0
    )
    constant = dataclasses.replace(rad(DEAR), timing=iq.Constant(1.0))
    refused = [
        (lambda: tile_capacity(work, iq.Constant(1.0)), "engine"),
        (lambda: tile_capacity(work, constant), "engine.timing"),
        (lambda: tile_capacity(work, free), "timing"),
        (lambda: tile_capacity(work, DEAR, rate=0.0), "rate"),
        (lambda: tile_capacity(work, DEAR, rate=-1.0), "rate"),
        (lambda: tile_capacity(work, DEAR, rate=math.nan), "rate"),
        (lambda: tile_capacity(work, DEAR, rate=math.inf), "rate"),
        (lambda: tile_capacity(work, DEAR, engines=0), "engines"),
        (lambda: tile_capacity(work, DEAR, engines=1.5), "engines"),
        (lambda: tile_capacity(work, DEAR, requests_per_cycle=0), "requests_per_cycle"),
        (lambda: tile_capacity(work, rad(DEAR), requests_per_cycle=9), "requests_per_cycle"),
        (lambda: tile_capacity(work, DEAR, first_token="both"), "first_token"),
        (lambda: tile_capacity(work, rad(DEAR), first_token="decode"), "first_token"),
        (lambda: tile_capacity([], DEAR), "workload"),
    ]
    for call, where in refused:
        with pytest.raises(iq.ConfigError, match=f"^{where}"):
            call()


def test_a_rate_is_not_needed_and_never_guessed():
    found = tile_capacity(iq.Workload({"prompt_tokens": [128], "output_tokens": [9]}), DEAR)
    assert (found.rate, found.load, found.stable) == (None, None, None)
    assert found.requests_per_cycle_enough is None and found.assured_per_s is None
    assert "λ·T^R = " not in found.explain()
