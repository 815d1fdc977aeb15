"""Do the prices of tables and rooflines hold for every batch, and are formulas honest about the host?"""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import inferq as iq
from inferq.theory import RequestClass, stability
from inferq.theory.capacities.token_prices import (
    TokenPrices,
    least_prices,
    longest_iteration_s,
    saturated_prices,
)
from inferq.theory.demands.demand import Demand
from inferq.theory.demands.lengths import Lengths
from inferq.timing import ChunkPart, DecodePart, LinearPart, iteration_s

from .arriving import arriving
from .random_kernels import random_roofline, random_table

Chunk = tuple[int, int]
UNLIMITED = iq.KvCache.unlimited()
CHAT = RequestClass(
    rate=5,
    prompt=iq.dist.Lognormal(mean=900, median=500, cap=2800),
    output=iq.dist.Lognormal(mean=220, median=150, cap=700),
)
ONE_AT_A_TIME = {
    "scheduler": iq.VllmV1(async_scheduling=False),
    "prefix_cache": "none",
    "gpu_memory_utilization": 0.9,
}
MODELS = [("llama-3.1-8b", "a100-80gb"), ("llama-3.1-70b", "h200"), ("llama-3.2-3b", "l4")]


def seconds(engine: iq.Engine, chunks: list[Chunk], decodes: list[int]) -> float:
    """What the core takes for a batch, with its host."""
    kernels_s = iteration_s(engine.timing, chunks=chunks, decodes=decodes)
    host = engine.overhead or iq.Overhead()
    host_s = host.base_s + host.per_sequence_s * (len(chunks) + len(decodes))
    return max(kernels_s, host_s) if host.overlapped else kernels_s + host_s


def paid(prices: TokenPrices, chunks: list[Chunk], decodes: list[int], counted: int) -> float:
    return (
        prices.token_s * sum(c for c, _ in chunks)
        + prices.decode_s * len(decodes)
        + prices.context_s * sum(decodes)
        + prices.chunk_s * counted
        + prices.pair_s * sum(c * x + c * (c + 1) / 2 for c, x in chunks)
    )


def random_engine(chance: random.Random) -> tuple[iq.Engine, Lengths, int, int, int]:
    """An engine of kernels with its lengths, budget, seats and the longest request."""
    pick = chance.choice
    budget = pick([4, 9, 16, 40])
    seats = chance.randint(1, budget)
    longest = pick([7, 20, 30])
    engine = iq.Engine(
        timing=pick([random_table, random_roofline])(chance, unit_s=0.1),
        scheduler=iq.Sarathi(token_budget=budget, max_seqs=seats),
        kv=pick([UNLIMITED, iq.KvCache(tokens=pick([40, 100]), block=1)]),
        overhead=pick(
            [
                None,
                iq.Overhead(
                    base_s=pick([0.02, 0.1]),
                    per_sequence_s=pick([0, 0.005, 0.05]),
                    overlapped=pick([False, True]),
                ),
            ]
        ),
    )
    output = iq.dist.Uniform(1, 4)
    lengths = Lengths.of(iq.dist.Uniform(pick([1, 3]), longest - 4), output)
    return engine, lengths, budget, seats, longest


def random_batch(
    chance: random.Random, engine: iq.Engine, budget: int, seats: int, longest: int
) -> tuple[list[Chunk], list[int]]:
    """Any batch within budget, seats and cache, more often than not at an end of its range."""

    def within(low: int, high: int) -> int:
        return chance.choice([low, high, chance.randint(low, high)])

    while True:
        decodes = [within(1, longest - 1) for _ in range(within(0, seats))]
        left, chunks = budget - len(decodes), []
        for _ in range(within(0, seats - len(decodes))):
            if left:
                tokens = within(1, min(left, longest))
                chunks.append((tokens, within(0, longest - tokens)))
                left -= tokens
        held = sum(decodes) + len(decodes) + sum(c + x for c, x in chunks)
        room = engine.kv.tokens
        if (chunks or decodes) and (room is None or held <= room):
            return chunks, decodes


@given(seed=st.integers(0, 2**32))
def test_no_batch_undercuts_the_prices_and_none_is_longer_than_the_longest(seed: int):
    chance = random.Random(seed)
    engine, lengths, budget, seats, longest = random_engine(chance)
    below = least_prices(
        engine, lengths, "prefill", by_sequences=chance.random() < 0.8, by_memory=chance.random() < 0.8
    )
    longest_s = longest_iteration_s(engine, lengths)
    for _ in range(60):
        chunks, decodes = random_batch(chance, engine, budget, seats, longest)
        taken_s = seconds(engine, chunks, decodes)
        if below is not None:
            assert paid(below, chunks, decodes, len(chunks)) <= taken_s * (1 + 1e-9) + 1e-15
        if longest_s is not None:
            assert taken_s <= longest_s * (1 + 1e-9)
    if below is not None:  # recomputing is no cheaper than the decode that it replaces
        for context in range(int(lengths.shortest_prompt), longest):
            recomputed = paid(below, [(context + 1, 0)], [], 1)
            assert paid(below, [], [context], 0) <= recomputed * (1 + 1e-6) + 1e-12


@given(seed=st.integers(0, 2**32))
def test_every_saturated_batch_is_paid_for(seed: int):
    chance = random.Random(seed)
    engine, workload, budget, seats, longest = random_engine(chance)
    engine = replace(engine, kv=UNLIMITED)
    above, most = saturated_prices(engine, workload, "prefill"), longest - 4
    if above is None:
        return
    for _ in range(60):
        count = chance.choice([0, seats, chance.randint(0, seats)])
        decodes = [chance.choice([1, longest - 1, chance.randint(1, longest - 1)]) for _ in range(count)]
        left, chunks, ended = budget - count, [], 0
        while left and len(chunks) + count < seats:
            prompt = chance.randint(1, most)
            done = chance.choice([0, prompt - 1, chance.randint(0, prompt - 1)])
            tokens = min(prompt - done, left)
            chunks.append((tokens, done))
            ended += tokens == prompt - done
            left -= tokens
        # Full, or on every seat a request that moves by all that is left.
        assert left == 0 or (len(chunks) + count == seats and ended == len(chunks))
        assert seconds(engine, chunks, decodes) <= paid(above, chunks, decodes, ended) * (1 + 1e-9) + 1e-15


def test_flat_kernels_have_the_papers_limit():
    # linear 0.1799 s for 512 tokens, and 0.0455 s up to 64: li2025 (2.7) with attention that costs nothing.
    nothing = [[0.0, 0.0], [0.0, 0.0]]
    table = iq.TimingTable(
        linear=LinearPart([1, 64, 512], [0.0455, 0.0455, 0.1799]),
        chunk=ChunkPart([1, 512], [0, 1000], nothing),
        decode=DecodePart([1, 512], [0, 1000], nothing),
    )
    chat = RequestClass(rate=9, prompt=129, output=112)
    linear = iq.PiecewiseLinear(base=0.0455, per_token=0.0003, knee=64)
    for seats in (512, 100):
        scheduler = iq.Sarathi(token_budget=512, max_seqs=seats)
        parts = {"scheduler": scheduler, "kv": UNLIMITED, "first_token": "decode"}
        found, known = (
            stability(chat, iq.Engine(timing=timing, **parts))  # type: ignore[arg-type]
            for timing in (table, linear)
        )
        assert (found.verdict, known.verdict) == ("stable", "stable")
        assert found.capacity_per_s == pytest.approx(known.capacity_per_s, rel=1e-6)
        assert found.stable_below_per_s == pytest.approx(known.stable_below_per_s, rel=1e-6)


def test_a_part_that_falls_to_nothing_counts_nothing_and_leaves_no_guarantee():
    def table(last_s: float) -> iq.Engine:
        made = iq.TimingTable(
            linear=LinearPart([1, 64], [1.0, 2.0]),
            chunk=ChunkPart([1, 64], [0, 100], [[0.0, 0.0], [0.0, 0.0]]),
            decode=DecodePart([1, 64], [0, 10], [[1.0, last_s], [1.0, last_s]]),
        )
        scheduler = iq.Sarathi(token_budget=64, max_seqs=8)
        return iq.Engine(timing=made, scheduler=scheduler, kv=UNLIMITED)

    lengths = Lengths.of(20, 20)
    flat, falls = table(1.0), table(0.5)  # at a mean of 20 it would be 0, and 39 is within reach
    assert saturated_prices(flat, lengths, "prefill") is not None
    assert saturated_prices(falls, lengths, "prefill") is None
    one, other = (
        least_prices(of, lengths, "prefill", by_sequences=True, by_memory=True) for of in (flat, falls)
    )
    assert one is not None
    assert other is not None
    # Eight decodes take 1 + 7/63 s, and with attention a second more.
    assert one.decode_s == pytest.approx((2 + 7 / 63) / 8, rel=1e-6)
    assert other.decode_s == pytest.approx((1 + 7 / 63) / 8, rel=1e-6)


def test_tight_memory_leaves_what_the_oldest_are_sure_of():
    engine = iq.Engine.on("qwen3-32b", "h100-80gb", **ONE_AT_A_TIME)
    found = stability(CHAT, engine, rate=0.05)
    assert (found.verdict, found.deciding and found.deciding.name) == ("stable", "oldest requests")


@pytest.mark.parametrize(("model", "gpu"), MODELS)
@pytest.mark.parametrize(
    "host",
    [None, iq.Overhead(base_s=0.005, per_sequence_s=1e-4), iq.Overhead(base_s=0.03, overlapped=True)],
    ids=["no host", "host", "overlapped host"],
)
def test_the_rate_of_a_saturated_run_lies_between_guarantee_and_ceiling(
    model: str, gpu: str, host: iq.Overhead | None
):
    engine = iq.Engine.on(model, gpu, overhead=host, **ONE_AT_A_TIME)
    found = stability(CHAT, engine)
    flood = iq.Workload.synthetic(
        requests=3000,
        arrivals=iq.dist.Poisson(1000),
        prompt=CHAT.prompt,
        output=CHAT.output,  # type: ignore[arg-type]
    )
    ends = iq.simulate(flood, engine, seed=1).requests["finish_s"].sort()
    served = 2000 / (ends[2500] - ends[500])
    assert found.capacity_per_s is not None
    sure = min(
        one.capacity_per_s for one in found.bounds if one.kind == "guarantee" and "oldest" not in one.name
    )
    # 2,000 requests of random lengths: their mean work is off by 1.2/√2000 = 3 % with one standard deviation.
    assert 0.7 * served < sure < 1.05 * served
    assert served < 1.05 * found.capacity_per_s
    assert found.capacity_per_s < 1.25 * served


# ---- the host in formulas

LINEAR = iq.PiecewiseLinear(base=0.0455, per_token=0.0003, knee=64)


def engine(host: iq.Overhead | None, timing: iq.timing.TimingModel = LINEAR, **more: object) -> iq.Engine:
    parts = {"scheduler": iq.Sarathi(token_budget=512, max_seqs=512), "kv": UNLIMITED, **more}
    return iq.Engine(timing=timing, overhead=host, **parts)  # type: ignore[arg-type]


def test_a_base_of_the_host_is_a_longer_base():
    host = iq.Overhead(base_s=0.005)
    slower = iq.PiecewiseLinear(base=0.0505, per_token=0.0003, knee=64)
    chat = RequestClass(rate=9, prompt=129, output=112)
    for scheduler in (
        iq.Sarathi(),
        iq.VllmV1(),
        iq.research.FasterTransformer(max_seqs=64),
        iq.research.KFcfs(token_budget=512, k_prefill=512, k_decode=512),
    ):
        one = stability(chat, engine(host, scheduler=scheduler))
        other = stability(chat, engine(None, slower, scheduler=scheduler))
        assert [bound.capacity_per_s for bound in one.bounds] == pytest.approx(
            [bound.capacity_per_s for bound in other.bounds]
        )
        assert one.verdict == other.verdict
    assert iq.theory.token_capacity(chat, engine(host)).iteration_s == pytest.approx(0.1849)


def test_rows_of_whole_batches_are_counted_exactly():
    # Equal requests: one iteration of 8 prompts and 3 of 8 decodes, 8 rows each.
    parts = {"scheduler": iq.research.FasterTransformer(max_seqs=8), "timing": iq.Constant(1.0)}
    small = RequestClass(rate=0.1, prompt=5, output=4)
    plain = iq.theory.request_level_capacity(small, engine(None, **parts))  # type: ignore[arg-type]
    hosted = iq.theory.request_level_capacity(
        small,
        engine(iq.Overhead(base_s=0.5, per_sequence_s=0.01), **parts),  # type: ignore[arg-type]
    )
    assert plain.capacity_per_s == pytest.approx(8 / 4)
    assert hosted.capacity_per_s == pytest.approx(8 / (4 * (1 + 0.5 + 8 * 0.01)))


def test_an_overlapped_host_leaves_ceilings_and_lowers_guarantees():
    chat = RequestClass(rate=9, prompt=129, output=112)
    host = iq.Overhead(base_s=0.02, overlapped=True)
    found, plain, added = (
        stability(chat, engine(one)) for one in (host, None, replace(host, overlapped=False))
    )
    assert found.capacity_per_s == plain.capacity_per_s
    assert found.stable_below_per_s == added.stable_below_per_s
    assert found.stable_below_per_s < plain.stable_below_per_s  # type: ignore[operator]


def test_formulas_that_cannot_carry_a_host_say_so():
    chat = RequestClass(rate=9, prompt=129, output=112)
    overlapped, by_row = iq.Overhead(base_s=0.01, overlapped=True), iq.Overhead(per_sequence_s=0.001)
    for call in (iq.theory.token_capacity, iq.theory.sequence_capacity):
        with pytest.raises(iq.ConfigError, match=r"overhead: .*longer of two times"):
            call(chat, engine(overlapped))
        assert call(chat, engine(by_row)).capacity_per_s < call(chat, engine(None)).capacity_per_s
    memory = iq.research.MemoryLinear(base=0.015, per_kv_token=2.6e-7)
    for host in (overlapped, by_row):
        for of_memory in (iq.theory.fluid, iq.theory.wait_thresholds):
            with pytest.raises(iq.ConfigError, match=r"overhead: .*not supported by the formulas of ao2025"):
                of_memory(chat, engine(host, memory))
    longer = iq.research.MemoryLinear(base=0.025, per_kv_token=2.6e-7)
    host = iq.Overhead(base_s=0.01)
    settled = [iq.theory.fluid(chat, one) for one in (engine(host, memory), engine(None, longer))]
    assert settled[0].iteration_s == pytest.approx(settled[1].iteration_s)
    tiles = iq.research.TiledGemm(
        rows=4, columns=2, reduction=2, width=8, layers=1,
        linear_s_per_tile=0.5, other_s_per_token=0.01, gemm_s=0.01, gemv_s=0.01,
    )  # fmt: skip
    with pytest.raises(iq.ConfigError, match=r"engine.overhead: .*takes no tiles"):
        iq.theory.tile_capacity(
            chat,
            engine(
                host, tiles, scheduler=iq.research.Rad(rows=4, columns=2, reduction=2, requests_per_cycle=5)
            ),
        )
    with pytest.raises(iq.ConfigError, match="TimingTable has no closed form"):
        iq.theory.token_capacity(chat, engine(None, iq.TimingTable.shipped("qwen3-8b", "h200")))


def test_a_side_of_a_hand_off_with_a_table_has_a_ceiling():
    one = iq.Engine.on("llama-3.1-8b", "a100-80gb", **ONE_AT_A_TIME)
    pair = iq.Disaggregated(prefill=(one, 1), decode=(one, 1), link=iq.Link(0.0, 1e12, 1.0))
    found = stability(CHAT, pair)
    names = {bound.name: bound.capacity_per_s for bound in found.bounds}
    alone = stability(CHAT, one).capacity_per_s
    assert alone is not None
    assert {"prefill side: tokens", "decode side: tokens"} <= set(names)
    # Each half costs less than the whole.
    assert min(names["prefill side: tokens"], names["decode side: tokens"]) > alone
    seen = (
        iq.simulate(
            arriving(1500, 1000, CHAT.prompt, CHAT.output),  # type: ignore[arg-type]
            pair,
        )
        .requests["finish_s"]
        .sort()
    )
    assert 1000 / (seen[1250] - seen[250]) < 1.05 * found.capacity_per_s  # type: ignore[operator]


def test_a_cache_that_may_be_full_lowers_the_ceiling():
    engine = iq.Engine.on("qwen3-32b", "h100-80gb", **ONE_AT_A_TIME)
    found = stability(CHAT, engine)
    names = [bound.name for bound in found.bounds if bound.kind == "upper_bound"]
    assert names[0] == "batches that fit the cache"
    assert found.binding is not None
    assert found.binding.resource == "memory"
    assert Demand.of(CHAT).lengths.is_bounded
