"""What does theory say where a prefix cache finds part of the prompts?"""

import random
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

import inferq as iq
from inferq.systems.pools import pools_of
from inferq.theory import RequestClass, agree, observed, stability, token_capacity
from inferq.theory.capacities.sequence_capacity import request_level_capacity
from inferq.theory.demands.shared_prefixes import Shared

from .lin2026 import cluster
from .night import NIGHT
from .refusals import refused
from .test_theory_stability import random_scenario

TIMING = iq.PiecewiseLinear(base=0.05, per_token=0.001, knee=16)
CHAT = RequestClass(rate=1.0, prompt=100, output=20)


def engine(**more: object) -> iq.Engine:
    parts: dict[str, object] = {
        "timing": TIMING,
        "scheduler": iq.VllmV1(token_budget=256, max_seqs=256, async_scheduling=False),
        "kv": iq.KvCache(tokens=None, prefix_cache="blocks"),
        **more,
    }
    return iq.Engine(**parts)  # type: ignore[arg-type]


# ---- how much a workload's prompts share, counted apart


def random_requests(chance: random.Random, count: int, rate: float) -> pl.DataFrame:
    """Prompts that begin with shared texts, with equal hashes, or with what an earlier request said."""
    at, rows = 0.0, []
    way = chance.choice(["parts", "hashes", "continues"])
    for row in range(count):
        at += chance.expovariate(rate)
        one: dict[str, object] = {"arrival_s": at, "output_tokens": chance.randint(1, 6)}
        if way == "parts":
            texts = [(chance.choice("ab"), chance.choice([3, 5, 8])) for _ in range(chance.randint(0, 2))]
            own = chance.randint(0 if texts else 1, 6)
            one["prompt_tokens"] = sum(tokens for _, tokens in texts) + own
            one["prefix_parts"] = [{"text": text, "tokens": tokens} for text, tokens in texts]
        elif way == "hashes":
            one["prompt_tokens"] = chance.randint(1, 16)
            first = chance.randint(0, 3)
            one["prefix_hashes"] = [first * 10 + place for place in range(-(-one["prompt_tokens"] // 4))]  # type: ignore[operator]
            one["prefix_block_tokens"] = 4
        else:
            before = chance.choice([None, *range(max(0, row - 20), row)])
            said = 0 if before is None else rows[before]["prompt_tokens"] + rows[before]["output_tokens"]  # type: ignore[operator]
            if said > 30:
                before, said = None, 0
            one["prompt_tokens"] = said + chance.randint(0 if said else 1, 6)
            one["continues"] = before
        rows.append(one)
    return pl.DataFrame(rows, schema_overrides={"continues": pl.Int64} if way == "continues" else None)


def by_hand(frame: pl.DataFrame, block: int) -> tuple[int, int]:
    """Tokens that must be computed whatever is found, and the sum of their positions: token by token."""
    said: list[list[object]] = []
    decoded: set[tuple[object, ...]] = set()
    for row, one in enumerate(frame.iter_rows(named=True)):
        prompt = one["prompt_tokens"]
        tokens: list[object] = []
        for part in one.get("prefix_parts") or []:
            tokens += [(part["text"], place) for place in range(part["tokens"])]
        for place, code in enumerate(one.get("prefix_hashes") or []):
            tokens += [(code, place, inside) for inside in range(4)]
        if one.get("continues") is not None:
            tokens += said[one["continues"]]
        tokens = tokens[:prompt]
        tokens += [("own", row, place) for place in range(len(tokens), prompt + one["output_tokens"])]
        decoded.update((row, place) for place in range(prompt, prompt + one["output_tokens"]))
        said.append(tokens)
    computed: list[int] = []
    known, ends = set(), set()
    for row, tokens in enumerate(said):
        prompt = frame["prompt_tokens"][row]
        for end in range(block, prompt + 1, block):
            content, last = tuple(tokens[:end]), tokens[end - 1]
            filled_by_decode = isinstance(last, tuple) and last[0] == "own" and last[1:] in decoded
            if (content not in known and not filled_by_decode) or (end == prompt and content in ends):
                computed += range(end - block + 1, end + 1)
            known.add(content)
        computed += range(prompt // block * block + 1, prompt + 1)
        if prompt % block == 0:
            ends.add(tuple(tokens[:prompt]))
    return len(computed), sum(computed)


def test_what_must_be_computed_is_what_a_count_token_by_token_says():
    for seed in range(120):
        chance = random.Random(seed)
        frame, block = random_requests(chance, 40, 1.0), chance.choice([1, 2, 4, 5])
        shared = Shared.of(iq.Workload(frame).frame)
        assert shared is not None or not {"prefix_hashes", "prefix_parts", "continues"} & set(frame.columns)
        if shared is not None:
            tokens, pairs = shared.least(block)
            assert (round(40 * tokens), round(40 * pairs)) == by_hand(frame, block), (seed, block)


@pytest.mark.parametrize("block", [512, 16])
def test_ceilings_of_a_real_trace_take_what_an_endless_cache_finds(block: int, shared: Path):
    trace = iq.read_trace(shared / "traces" / "mooncake_conversation.parquet")
    endless = iq.KvCache(tokens=None, block=block, prefix_cache="blocks")
    one = engine(
        kv=endless,
        timing=iq.Constant(0.1),
        scheduler=iq.VllmV1(token_budget=8192, max_seqs=256, async_scheduling=False),
    )
    found = iq.simulate(trace, one).summary()["hit_rate"].item()
    rates = {bound.hit_rate for bound in stability(trace, one).bounds if bound.kind == "upper_bound"}
    assert len(rates) == 1
    assert rates.pop() == pytest.approx(found, rel=1e-12)


# ---- no verdict is contradicted, and no ceiling passed


def cached(system: iq.Engine | iq.Cluster, kind: str | None) -> iq.Engine | iq.Cluster:
    """The same with another prefix cache."""
    engine = pools_of(system)[0].engines[0]
    engine = replace(engine, kv=replace(engine.kv, prefix_cache=kind))
    if isinstance(system, iq.Engine):
        return engine
    return iq.Cluster(engine, replicas=system.replicas, router=system.router)


def test_hits_contradict_no_verdict_and_pass_no_ceiling():
    # Prompts that share their beginnings, and one in three times prompts that share nothing: then only who
    # was preempted finds anything. All at once no run is faster than a ceiling: these rows are the demand.
    decided, judged = {"stable": 0, "unstable": 0}, 0
    scenarios = 240 if NIGHT else 120
    for seed in range(scenarios):
        chance = random.Random(seed)
        system = cached(random_scenario(chance)[2], chance.choice(["blocks", "radix"]))
        frame = random_requests(chance, 1000, 1.0)
        if seed % 3 == 0:
            frame = frame.select("arrival_s", "prompt_tokens", "output_tokens")
        alone = stability(iq.Workload(frame), system)
        at_once = iq.Workload(frame.with_columns(pl.col("arrival_s") * 1e-6))
        run = iq.simulate(at_once, system, seed=seed).summary().row(0, named=True)
        for bound in alone.bounds:
            assert bound.hit_rate is not None, bound
            if bound.kind == "upper_bound" and bound.applies and run["completed"] == frame.height:
                assert run["request_throughput"] <= bound.capacity_per_s * (1 + 1e-9), (seed, bound)
                assert run["hit_rate"] <= bound.hit_rate + 1e-12, (seed, bound)
                judged += 1
        sure = [one.capacity_per_s for one in alone.bounds if one.kind == "guarantee"]
        limits = [limit for limit in (alone.capacity_per_s, alone.stable_below_per_s) if limit]
        if sure and chance.random() < 0.85:
            rate = chance.choice(sure) * chance.choice([0.3, 0.5, 0.7, 0.8, 0.9, 0.97])
        elif limits:
            rate = chance.choice(limits) * chance.choice([0.5, 0.8, 0.9, 0.97, 1.03, 1.1, 1.3])
        else:
            continue
        work = iq.Workload(frame).at_rate(rate)
        proved, seen = stability(work, system), observed(iq.simulate(work, system, seed=seed))
        contradicts = {proved.verdict, seen.verdict} == {"stable", "unstable"}
        assert not contradicts, f"seed {seed}: {proved.explain()}\n{seen.explain()}"
        if proved.verdict == seen.verdict and proved.verdict in decided:
            decided[proved.verdict] += 1
    assert judged > 100
    assert min(decided.values()) > scenarios // 40, decided


def test_where_nothing_is_shared_a_prefix_cache_changes_no_limit():
    kept = iq.KvCache(tokens=400_000, block=4)
    plain = engine(kv=kept, scheduler=iq.VllmV1(token_budget=512, max_seqs=256, async_scheduling=False))
    with_cache = cached(plain, "blocks")
    without, found = stability(CHAT, plain), stability(CHAT, with_cache)
    assert [one.capacity_per_s for one in found.bounds] == [one.capacity_per_s for one in without.bounds]
    assert found.verdict == without.verdict == "stable"
    assert {one.hit_rate for one in found.bounds} == {0.0}
    assert {one.hit_rate for one in without.bounds} == {None}
    assert "prefix cache" not in without.explain()
    assert "hit_rate" not in without.frame().columns


# ---- which hit rate is assumed


def sharing(rate: float, count: int = 2000) -> iq.Workload:
    """Prompts of 100 tokens of which 60 are the same for all, every 1/rate seconds."""
    return iq.Workload(
        {
            "arrival_s": [row / rate for row in range(count)],
            "prompt_tokens": [100] * count,
            "output_tokens": [20] * count,
            "prefix_parts": [[{"text": "system", "tokens": 60}]] * count,
        }
    )


def test_ceilings_take_all_that_is_shared_and_guarantees_nothing():
    one = engine(kv=iq.KvCache(tokens=None, block=4, prefix_cache="blocks"))
    # 60 tokens once, 40 of each: of 2,000 requests 40.03 on average; t_b = 0.05 + 240·0.001 s for 256 tokens.
    computed = 40 + 60 / 2000
    found = stability(sharing(9.0), one)
    by_tokens = {one.kind: one for one in found.bounds if one.resource == "tokens"}
    assert by_tokens["upper_bound"].capacity_per_s == pytest.approx(256 / (0.29 * (computed + 19)))
    assert by_tokens["upper_bound"].hit_rate == pytest.approx(1 - computed / 100)
    assert by_tokens["guarantee"].capacity_per_s == pytest.approx(256 / (0.29 * 119))
    assert by_tokens["guarantee"].hit_rate == 0
    said = found.explain()
    assert "prefix cache: upper bounds assume at most 0.5997 of the prompt tokens found" in said
    assert "prefix cache: guarantees assume at least 0 of them found" in said
    assert "at a hit rate of at most 0.5997" in said
    assert found.frame()["hit_rate"].to_list() == [bound.hit_rate for bound in found.bounds]
    # Between both nothing is proved; above the ceiling it is, however much is found.
    assert [stability(sharing(rate), one).verdict for rate in (7.0, 10.0, 15.5)] == [
        "stable",
        "unknown",
        "unstable",
    ]
    seen = observed(iq.simulate(sharing(10.0), one))
    assert (seen.verdict, round(seen.hit_rate or 0, 3)) == ("stable", 0.6)
    assert "hit rate of prefix caches: 0.6 of the prompt tokens" in seen.explain()


def test_a_stated_hit_rate_gives_a_verdict_at_this_rate():
    said = stability(CHAT, engine(), rate=9.0, hit_rate=0.6)
    # 40 of 100 prompt tokens are computed.
    assert said.stable_below_per_s == pytest.approx(256 / (0.29 * 59))
    assert said.capacity_per_s == pytest.approx(256 / (0.29 * 59))
    assert (said.verdict, said.hit_rate) == ("stable", 0.6)
    assert "hit rate 0.6 as configured" in said.explain()
    assert stability(CHAT, engine(), rate=9.0).verdict == "unstable"
    limit = token_capacity(CHAT, engine(), hit_rate=0.6)
    assert (limit.capacity_per_s, limit.stable_below_per_s) == (said.capacity_per_s, said.stable_below_per_s)
    assert "at the configured hit rate of 0.6: m_p = 40 of 100 prompt tokens are computed" in limit.explain()
    alone = token_capacity(CHAT, TIMING, token_budget=256, first_token="prefill", hit_rate=0.6)
    assert alone.capacity_per_s == limit.capacity_per_s
    # Where contexts take time too, what is sure counts on no hit.
    attends = engine(timing=replace(TIMING, per_prefill_square=1e-5, per_chunk_context=2e-5))
    curved = stability(CHAT, attends, hit_rate=0.6)
    rates = {(one.kind, one.hit_rate) for one in curved.bounds}
    assert rates == {("upper_bound", 0.6), ("guarantee", 0.0)}


@refused(
    (CHAT, "blocks", 1.5, "hit_rate: must be"),
    (CHAT, "blocks", -0.1, "hit_rate: must be"),
    (CHAT, "blocks", True, "hit_rate: must be"),
    (CHAT, "blocks", 0.995, "a request computes at least one"),
    (CHAT, None, 0.5, "requires a prefix cache"),
    (sharing(1.0, 100), "blocks", 0.7, "must be at most 0.594"),
)
def test_a_hit_rate_that_cannot_be_is_refused(asked: object, kind: str | None, hit_rate: object):
    one = engine(kv=iq.KvCache(tokens=None, block=4, prefix_cache=kind))
    stability(asked, one, hit_rate=hit_rate)  # type: ignore[arg-type]


def test_the_oldest_are_sure_of_less_where_others_may_share_their_blocks():
    # 2,000 tokens hold 16 of the largest, of 120 tokens each. Where blocks may be shared the contexts of all
    # 64 seats may be attended to, and not only as many as the cache holds, each token for 0.1 ms.
    timing = replace(TIMING, per_context_token=1e-4)
    kept = iq.KvCache(tokens=2000, block=4, prefix_cache="radix")
    one = engine(
        kv=kept, timing=timing, scheduler=iq.VllmV1(token_budget=256, max_seqs=64, async_scheduling=False)
    )
    for asked, contexts in ((sharing(0.1), 64 * 120), (CHAT, 2000)):
        bounds = stability(asked, one, rate=0.1).bounds
        (oldest,) = (bound for bound in bounds if bound.name == "oldest requests")
        longest_s = 0.29 + 1e-4 * contexts
        assert oldest.capacity_per_s == pytest.approx(1 / (longest_s * (100 / (256 - 64 + 16) + 20 / 16)))
        assert (oldest.implies, oldest.hit_rate) == ("stable", 0.0)


def test_what_is_not_shown_with_hits_is_not_known():
    def named(one: iq.Engine, name: str) -> list[bool | None]:
        found = stability(sharing(0.1), one)
        return [need.met for bound in found.bounds for need in bound.hypotheses if need.name == name]

    # A rest of a prompt that attends to what was found may cost more than the whole prompt alone.
    whole = iq.research.FasterTransformer(max_seqs=4, max_model_len=200)
    dear = replace(TIMING, per_prefill_square=1e-5, per_chunk_context=1e-4)
    assert named(engine(scheduler=whole), "hits only help") == [True]
    assert named(engine(scheduler=whole, timing=dear), "hits only help") == [None]


def test_formulas_that_know_no_hits_say_so():
    memory = iq.research.MemoryLinear(base=0.015, per_kv_token=2.6e-7)
    loaded = engine(timing=memory, kv=iq.KvCache(tokens=100_000, block=1, prefix_cache="blocks"))
    tiled = iq.research.TiledGemm(
        rows=4, columns=2, reduction=2, width=8, layers=1,
        linear_s_per_tile=0.5, other_s_per_token=0.01, gemm_s=0.01, gemv_s=0.01,
    )  # fmt: skip
    batches = engine(scheduler=iq.research.FasterTransformer(max_seqs=4, max_model_len=200))
    said = [
        iq.theory.fluid(CHAT, loaded),
        iq.theory.wait_thresholds(CHAT, loaded),
        iq.theory.tile_capacity(CHAT, engine(timing=tiled)),
        request_level_capacity(CHAT, batches),
    ]
    for one in said:
        assert "a hit rate of 0 is assumed" in one.explain(), one
    assert iq.theory.tile_capacity(replace(CHAT, rate=1e6), engine(timing=tiled)).stable is None


def test_the_sides_of_a_hand_off_and_a_gate_know_hits():
    one = engine(kv=iq.KvCache(tokens=None, block=4, prefix_cache="blocks"))
    pair = iq.Disaggregated(prefill=(one, 1), decode=(one, 9), link=iq.Link(0, 1e12, 1.0))
    prefill = stability(sharing(5.0), pair).bounds[0]
    assert prefill.capacity_per_s == pytest.approx(256 / (0.29 * 40.03))
    assert prefill.hit_rate == pytest.approx(0.5997)
    assert stability(CHAT, pair, hit_rate=0.6).bounds[0].capacity_per_s == pytest.approx(256 / (0.29 * 40))
    kept = iq.KvCache(tokens=None, block=4, prefix_cache="blocks")
    gate = cluster(replicas=4, service="tokens", kv=kept)
    most = {bound.name: bound for bound in stability(sharing(5.0), gate).bounds}["prefills"]
    assert most.capacity_per_s == pytest.approx(4 / (40.03 / 256 * (0.0174 + 6.2e-5 * 256)))


def test_a_network_is_overloaded_only_where_it_is_so_with_every_prompt_found():
    policy = iq.research.KFcfs(token_budget=100, k_prefill=100, k_decode=100)
    kept = iq.KvCache(tokens=None, prefix_cache="blocks")
    agent = engine(scheduler=policy, timing=iq.Constant(1.0), kv=kept)
    job = iq.Workflow("job", stages={"only": iq.Stage("agent", prompt=50, output=20)})
    network = iq.Network({"agent": agent}, [job])
    # One prompt token and 19 decodes in batches of 100 tokens.
    assert stability({"job": 4.9}, network).verdict == "unknown"
    assert stability({"job": 5.1}, network).verdict == "unstable"
    with pytest.raises(iq.ConfigError, match="hit_rate: not supported for a network"):
        stability({"job": 1.0}, network, hit_rate=0.5)


def test_agree_puts_the_measured_hit_rate_beside():
    one = engine(kv=iq.KvCache(tokens=None, block=4, prefix_cache="blocks"))
    rows = {row["quantity"]: row for row in agree(sharing(9.0), one).frame.rows(named=True)}
    assert rows["hit rate"]["theory"] == pytest.approx(0.5997)
    assert rows["hit rate"]["simulation"] == pytest.approx(0.6)  # the first one alone found nothing
    assert rows["capacity"]["fluid"] is None
    plain = agree(sharing(5.0), cached(one, None)).frame
    assert "hit rate" not in plain["quantity"]
