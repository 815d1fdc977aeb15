"""Do the laws of DESIGN.md hold through the public face, for engines, fleets, hand-offs and networks?"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

import inferq as iq
from inferq.systems.routers import ROUTERS

from .policies import POLICIES
from .policy import Draw
from .timing_models import TIMINGS, drawn_timing, each_time, read

CLASSES = ["chat", "code"]
_VARIANTS = [draw for policy in POLICIES.values() for draw in policy.variants.values()]


def _scheduler(draw: Draw, chance: random.Random) -> iq.Scheduler:
    described = {"timing": {"kind": "Constant", "seconds": 1}, "kv": "unlimited"}
    rules = draw(chance, 120, CLASSES)
    if rules["kind"] == "VllmV1" and chance.random() < 0.5:
        rules |= {"async_scheduling": True, "pause_s": chance.choice([0.0, 0.001])}
    return iq.Engine.from_json({**described, "scheduler": rules}).scheduler


def _kv(block: int, tokens: int) -> iq.KvCache:
    return iq.KvCache(tokens=-(-tokens // block) * block, block=block)  # `Sglang` asks for whole pages


MODELS = st.builds(drawn_timing, st.randoms(), st.sampled_from(sorted(TIMINGS))).map(read)
SCHEDULERS = st.builds(_scheduler, st.sampled_from(_VARIANTS), st.randoms())
CACHES: Any = st.sampled_from([None, None, "blocks", "radix"])


def _engine(cache: Any, kv: iq.KvCache, **parts: Any) -> iq.Engine:
    if cache == "blocks" and isinstance(parts["scheduler"], iq.Sglang):
        cache = "radix"
    return iq.Engine(kv=replace(kv, prefix_cache=cache), **parts)


ENGINES = st.builds(
    _engine,
    cache=CACHES,
    timing=MODELS,
    scheduler=SCHEDULERS,
    kv=st.one_of(
        st.just(iq.KvCache.unlimited()),
        st.builds(_kv, st.sampled_from([1, 4, 16]), st.integers(20, 200)),
    ),
    first_token=st.sampled_from(["prefill", "decode"]),
    max_model_len=st.sampled_from([None, None, None, 40]),
)


@st.composite
def workloads(draw: st.DrawFn) -> pl.DataFrame:
    rows = draw(st.integers(1, 25))

    def column(values: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(values, min_size=rows, max_size=rows))

    latest_ms = draw(st.sampled_from([0, 400, 400]))
    prompts = column(st.one_of(st.integers(1, 80), st.integers(1, 4)))  # a short one fits beside long ones
    outputs = column(st.integers(1, 40))
    begins = column(st.tuples(st.integers(0, 2), st.sampled_from([0.2, 0.5, 1.0])))
    return pl.DataFrame(
        {
            "arrival_s": sorted(column(st.integers(0, latest_ms).map(lambda n: n / 1000))),
            "prompt_tokens": prompts,
            "output_tokens": outputs,
            "max_output_tokens": [tokens + draw(st.sampled_from([0, 0, 1, 9])) for tokens in outputs],
            "prefix_parts": [
                [[text, max(1, int(share * prompt))]] if text else None
                for (text, share), prompt in zip(begins, prompts, strict=True)
            ],
            "class": column(st.sampled_from(CLASSES)),
            "priority": column(st.integers(0, 2)),
            "patience_s": column(st.one_of(st.none(), st.integers(0, 200).map(lambda n: n / 1000))),
            "itl_slo_s": column(st.one_of(st.none(), st.integers(0, 200).map(lambda n: n / 1000))),
        },
        schema_overrides={
            "class": pl.Enum(CLASSES),
            "patience_s": pl.Float64,
            "itl_slo_s": pl.Float64,
            "prefix_parts": pl.List(pl.List(pl.Int64)),
        },
    )


_ROUTERS = tuple(kind.__name__ for kind in ROUTERS)
_FRAMES = ("requests", "itl", "timeline", "iterations", "batches")
_TIMES = {
    *("arrival_s", "patience_s", "itl_slo_s", "think_s", "latency_s", "bytes_per_token", "delay_s"),
    *("base", "per_token"),  # of `Swap`
    "pause_s",
}
_THREADS = st.sampled_from([None, 1, 2, 4])


def _router(kind: str) -> Any:
    return getattr(iq, kind)()


def _times(described: dict[str, Any], factor: int) -> dict[str, Any]:
    """A description with all of its times so many times as long."""
    inner = {name: _times(value, factor) for name, value in described.items() if isinstance(value, dict)}
    times = {name: value for name, value in described.items() if name in _TIMES and value is not None}
    own = {name: value * factor for name, value in times.items()}
    return {**described, **own, **inner}


def _slower(engine: iq.Engine, factor: int) -> iq.Engine:
    described = engine.to_json()
    timing = each_time(described["timing"], lambda seconds: factor * seconds)
    return iq.Engine.from_json({**_times(described, factor), "timing": timing})


class Fleet(NamedTuple):
    engines: list[iq.Engine]
    router: str

    def made(self, factor: int = 1) -> Any:
        engines = [_slower(engine, factor) for engine in self.engines]
        return iq.Cluster(engines, router=_router(self.router))

    def replicas(self) -> list[iq.Engine]:
        return self.engines


class Alone(NamedTuple):
    engine: iq.Engine

    def made(self, factor: int = 1) -> Any:
        return _slower(self.engine, factor)

    def replicas(self) -> list[iq.Engine]:
        return [self.engine]


class Pair(NamedTuple):
    prefill: tuple[iq.Engine, int]
    decode: tuple[iq.Engine, int]
    link: dict[str, Any]
    routers: tuple[str, str]

    def made(self, factor: int = 1) -> Any:
        (one, n), (two, m) = self.prefill, self.decode
        return iq.Disaggregated(
            prefill=(_slower(one, factor), n),
            decode=(_slower(two, factor), m),
            link=iq.Link(**_times(self.link, factor)),
            prefill_router=_router(self.routers[0]),
            decode_router=_router(self.routers[1]),
        )

    def replicas(self) -> list[iq.Engine]:
        return [self.prefill[0]] * self.prefill[1] + [self.decode[0]] * self.decode[1]


class Jobs(NamedTuple):
    services: dict[str, Fleet | Pair]
    stages: dict[str, dict[str, Any]]

    def made(self, factor: int = 1) -> Any:
        stages = {name: iq.Stage(**_times(stage, factor)) for name, stage in self.stages.items()}
        services = {name: service.made(factor) for name, service in self.services.items()}
        return iq.Network(services, [iq.Workflow("work", stages=stages)])

    def replicas(self) -> list[iq.Engine]:
        return [engine for service in self.services.values() for engine in service.replicas()]


System = Alone | Fleet | Pair | Jobs

_ALONE = st.builds(Alone, ENGINES)
_FLEETS = st.one_of(
    st.builds(Fleet, st.lists(ENGINES, min_size=1, max_size=4), st.sampled_from(_ROUTERS)),
    st.builds(
        lambda engine, n, router: Fleet([engine] * n, router),
        *(ENGINES, st.integers(2, 4), st.sampled_from(_ROUTERS)),
    ),
)


@st.composite
def _pairs(draw: st.DrawFn) -> Pair:
    """Room for the longest request (120 tokens, or as many as are reserved) after the hand-off."""
    first_token = draw(st.sampled_from(["prefill", "decode"]))

    def side(kv: st.SearchStrategy[Any]) -> tuple[iq.Engine, int]:
        timing, scheduler = draw(MODELS), draw(SCHEDULERS)
        engine = iq.Engine(timing=timing, scheduler=scheduler, kv=draw(kv), first_token=first_token)
        return engine, draw(st.integers(1, 3))

    unlimited, blocks = st.just(iq.KvCache.unlimited()), st.sampled_from([1, 4, 16])
    prefill = side(st.one_of(unlimited, st.builds(_kv, blocks, st.integers(60, 200))))
    decode = side(st.one_of(unlimited, st.builds(_kv, blocks, st.integers(140, 300))))
    link = {
        "latency_s": draw(st.sampled_from([0.0, 0.001, 0.02])),
        "bytes_per_s": draw(st.sampled_from([1000, 1e9])),
        "bytes_per_token": draw(st.sampled_from([0, 1, 5])),
        "concurrent": draw(st.sampled_from([None, 1, 2])),
    }
    routers = st.sampled_from(_ROUTERS)
    return Pair(prefill, decode, link, (draw(routers), draw(routers)))


@st.composite
def _jobs(draw: st.DrawFn) -> Jobs:
    """Stages of at most 40 + 10 tokens, so that with the outputs of all others none has more than 120."""
    names = ["one", "two", "three"][: draw(st.integers(1, 3))]
    services = {name: draw(st.one_of(_ALONE, _FLEETS, _pairs())) for name in names}
    stages: dict[str, dict[str, Any]] = {}
    for at in range(draw(st.integers(1, 4))):
        before = list(stages)
        after = draw(st.lists(st.sampled_from(before), unique=True)) if before else []
        stages[f"s{at}"] = {
            "engine": draw(st.sampled_from(names)),
            "prompt": draw(st.one_of(st.integers(1, 40), st.just(iq.dist.Uniform(1, 40)))),
            "output": draw(st.one_of(st.integers(1, 10), st.just(iq.dist.Uniform(1, 10)))),
            "after": after,
            "includes": draw(st.lists(st.sampled_from(after), unique=True)) if after else [],
            "delay_s": draw(st.sampled_from([0.0, 0.0, 0.01, 0.25])),
            "class_name": draw(st.sampled_from(CLASSES)),
        }
    # The policies name these classes, so some request must have each.
    for name, stage in zip(CLASSES, list(stages.values())[:2], strict=False):
        stage["class_name"] = name
    if len(stages) == 1:
        stages["also"] = {**stages["s0"], "class_name": CLASSES[1]}
    return Jobs(services, stages)


@st.composite
def _scenarios(draw: st.DrawFn, systems: st.SearchStrategy[System] | None = None) -> Scenario:
    """A workload and what serves it; some rows wait for the turn before."""
    frame = draw(workloads())
    system = draw(systems if systems is not None else st.one_of(_ALONE, _FLEETS, _pairs(), _jobs()))
    if isinstance(system, Jobs):
        return Scenario(frame.select("arrival_s", "priority", "patience_s", "itl_slo_s"), system)

    def column(values: list[Any]) -> list[Any]:
        return draw(st.lists(st.sampled_from(values), min_size=frame.height, max_size=frame.height))

    frame = frame.with_columns(pl.Series("session_id", column([None, 1, 2, 3]), dtype=pl.Int64))
    if draw(st.booleans()):
        frame = frame.with_columns(pl.Series("think_s", column([None, 0.0, 0.001, 0.1]), dtype=pl.Float64))
    return Scenario(frame, system)


class Scenario(NamedTuple):
    frame: pl.DataFrame
    system: System

    def run(self, **options: Any) -> iq.Result:
        return iq.simulate(self.frame, self.system.made(), **options)


def _batches(result: iq.Result) -> list[tuple[int, list[tuple[Any, ...]]]]:
    """The replica and the rows of every iteration, by replica."""
    rows: dict[int, list[tuple[Any, ...]]] = {}
    for iteration, *row in result.batches.iter_rows():
        rows.setdefault(iteration, []).append(tuple(row))
    listed: list[tuple[int, list[tuple[Any, ...]]]] = []
    for place, (replica, count) in enumerate(result.iterations.select("replica", "count").iter_rows()):
        listed += [(replica, sorted(rows[place]))] * count
    return sorted(listed, key=lambda one: one[0])


def _emitted(requests: pl.DataFrame) -> pl.Expr:
    """The tokens that finished requests emitted, those that were thrown away among them."""
    discarded = pl.col("discarded_tokens") if "discarded_tokens" in requests.columns else pl.lit(0)
    return pl.col("output_tokens").cast(pl.Int64) + discarded


@given(_scenarios(), _THREADS)
def test_laws_one_to_five_seven_and_nine(scenario: Scenario, threads: int | None) -> None:
    frame, system = scenario
    result = scenario.run(batches=True, timeline_s=0.005, threads=threads)
    requests = result.requests
    # L1: each that arrived ended in one way. What waits for a request that never finished did not arrive.
    assert set(requests["status"].unique()) <= {"finished", "rejected", "abandoned"}
    assert requests["id"].is_sorted() and requests["id"].is_unique().all()
    if isinstance(system, Jobs):
        assert result.jobs["job"].to_list() == list(range(frame.height))
        assert result.jobs["stages"].sum() == requests.height
    elif "think_s" not in frame.columns:
        assert requests["id"].to_list() == list(range(frame.height))
    # L2.
    finished = requests.filter(pl.col("status") == "finished")
    assert (finished["arrival_s"] <= finished["admitted_s"]).all()
    assert (finished["admitted_s"] < finished["first_token_s"]).all()
    assert (finished["first_token_s"] <= finished["finish_s"]).all()
    if "handoff_s" in requests.columns:
        handed = finished.filter(pl.col("prefill_replica").is_not_null())
        assert (handed["admitted_s"] < handed["prefilled_s"]).all()
        assert (handed["prefilled_s"] < handed["finish_s"]).all()
        assert (handed["handoff_s"] >= 0).all()
    # L3.
    iterations = result.iterations
    assert iterations["start_s"].is_sorted()
    # L5: emitted tokens by request, each row of a batch `count` times. A row that was planned ahead for a
    # request whose end was not foreseen begins when the request has finished: its token goes to no output.
    emits = result.batches.filter("emits")
    counted = emits.with_columns(
        times=iterations["count"].gather(emits["iteration"]),
        start_s=iterations["start_s"].gather(emits["iteration"]),
    )
    ends = requests.select("finish_s", request=pl.col("id").cast(emits.schema["request"]))
    counted = counted.join(ends, on="request").filter(
        pl.col("finish_s").is_null() | (pl.col("start_s") < pl.col("finish_s"))
    )
    emitted = dict(counted.group_by("request").agg(pl.col("times").sum()).iter_rows())
    assert emitted == dict(finished.select("id", _emitted(finished)).iter_rows())
    # L7, and of L4 what can be seen.
    rows = result.batches.group_by("iteration").len()
    rows = rows.with_columns(replica=iterations["replica"].gather(rows["iteration"]))
    for replica, engine in enumerate(system.replicas()):
        here = iterations.filter(pl.col("replica") == replica)
        rules = engine.scheduler.to_json()
        rules = rules.get("inner", rules)
        most_seqs, most_tokens = POLICIES[rules["kind"]].bounds(rules)
        assert most_tokens is None or (here["prefill_tokens"] + here["decodes"] <= most_tokens).all()
        assert most_seqs is None or (rows.filter(pl.col("replica") == replica)["len"] <= most_seqs).all()
        if engine.kv.tokens is not None:
            samples = result.timeline.filter(pl.col("replica") == replica)
            for used in (here["kv_used_tokens"], samples["kv_used_tokens"]):
                assert (used <= engine.kv.tokens).all()
    # L9.
    assert result.totals["in_system_as"] == result.totals["sojourn_as"]


@given(_scenarios(), st.one_of(st.none(), st.integers(0, 600).map(lambda n: n / 1000)))
def test_law_six_threads_change_no_byte(scenario: Scenario, horizon_s: float | None) -> None:
    one, *others = [scenario.run(batches=True, horizon_s=horizon_s, threads=n) for n in (1, 2, 4, None)]
    for other in others:
        for name in _FRAMES:
            assert_frame_equal(getattr(one, name), getattr(other, name), check_exact=True)
        assert (one.scenario, one.totals) == (other.scenario, other.totals)
        assert (one.findings, one.drained.to_list()) == (other.findings, other.drained.to_list())


@given(_scenarios(), st.one_of(st.none(), st.integers(0, 600).map(lambda n: n / 1000)), _THREADS)
def test_law_eight_stretches_equal_stepping(
    scenario: Scenario, horizon_s: float | None, threads: int | None
) -> None:
    fast = scenario.run(horizon_s=horizon_s, batches=True, threads=threads)
    slow = scenario.run(horizon_s=horizon_s, batches=True, threads=threads, stepping=True)
    for name in ("requests", "itl", "timeline"):
        assert_frame_equal(getattr(fast, name), getattr(slow, name), check_exact=True)
    assert _batches(fast) == _batches(slow)
    assert fast.findings == slow.findings
    assert fast.drained.to_list() == slow.drained.to_list()
    assert fast.work_conservation(16) == slow.work_conservation(16)
    for total in ("iterations", "in_system_as", "sojourn_as", "end_s"):
        assert fast.totals[total] == slow.totals[total]


@st.composite
def _ticks(draw: st.DrawFn, ahead: list[iq.Scheduler]) -> tuple[dict[str, Any], iq.Cluster]:
    """Iterations of a second, and requests and evaluations at their ends, on replicas that share a router."""
    kv = iq.KvCache(tokens=draw(st.sampled_from([60, 200, 4000])), block=draw(st.sampled_from([1, 2, 4])))
    cache: Any = draw(st.sampled_from([None, "cache"]))
    engines = []
    for scheduler in draw(st.lists(st.sampled_from(ahead), min_size=2, max_size=3)):
        kind = cache and ("radix" if isinstance(scheduler, iq.Sglang) else "blocks")
        engines.append(
            iq.Engine(timing=iq.Constant(1.0), scheduler=scheduler, kv=replace(kv, prefix_cache=kind))
        )
    policy = draw(
        st.sampled_from([None, iq.ByQueue(1), *(iq.ByUtilization(0.1, of=of) for of in ("kv", "seats"))])
    )
    capacity: dict[str, Any] = {"replicas": len(engines)}
    if policy is not None:
        engines = engines[:1]
        most = {"max": 4, "every_s": draw(st.sampled_from([1.0, 2.0])), "startup_s": draw(st.integers(0, 3))}
        capacity = {"autoscaler": iq.Autoscaler(policy, **most)}
    elif draw(st.booleans()):
        failures = iq.Failures(at=[(draw(st.integers(1, 20)), 0)], repair_s=draw(st.integers(0, 5)))
        capacity["failures"] = failures
    router = _router(draw(st.sampled_from(_ROUTERS)))
    if isinstance(router, iq.PrefixAffinity):
        router = replace(router, update_s=draw(st.sampled_from([None, 1.0, 2.5])))
    rows = draw(st.integers(2, 14))

    def column(values: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(values, min_size=rows, max_size=rows))

    prompts, outputs = column(st.integers(1, 12)), column(st.integers(1, 20))
    workload = {
        "arrival_s": sorted(float(at) for at in column(st.integers(0, 25))),
        "prompt_tokens": prompts,
        "output_tokens": outputs,
        "max_output_tokens": [tokens + draw(st.sampled_from([0, 0, 2])) for tokens in outputs],
        "prefix_parts": [[[draw(st.sampled_from([7, 8])), tokens]] for tokens in prompts],
        "session_id": column(st.integers(1, 3)),
    }
    return workload, iq.Cluster(engines if len(engines) > 1 else engines[0], router=router, **capacity)


AHEAD: list[iq.Scheduler] = [
    *(iq.VllmV1(async_scheduling=ahead, pause_s=0, max_seqs=8) for ahead in (True, False)),
    *(iq.Sglang(overlap=ahead, max_seqs=8) for ahead in (True, False)),
]


@settings(max_examples=600)
@given(_ticks(AHEAD))
def test_law_eight_holds_where_requests_arrive_as_iterations_end(scenario: tuple[Any, iq.Cluster]) -> None:
    """A batch that was planned ahead has taken its blocks at the instant at which the last iteration ends."""
    workload, cluster = scenario
    fast, slow = (iq.simulate(workload, cluster, stepping=stepping) for stepping in (False, True))
    for name in ("requests", "itl", "timeline"):
        assert_frame_equal(getattr(fast, name), getattr(slow, name), check_exact=True)
    if cluster.autoscaler is not None or cluster.failures is not None:
        assert_frame_equal(fast.fleet_events, slow.fleet_events, check_exact=True)


@pytest.mark.parametrize("router", [iq.LeastKv(), iq.PrefixAffinity()])
@pytest.mark.parametrize("stepping", [False, True])
def test_a_batch_planned_ahead_holds_its_blocks_as_the_last_one_ends(
    router: iq.Router, stepping: bool
) -> None:
    """Blocks of one token. Request 0 (p = 3) computes its prompt in [0, 1), then one token per second.

    2  replica 0 holds 3 blocks of the prompt and the blocks of [1, 2) and [2, 3): 5. Replica 1 took 3 blocks
       at 1, and one at 2: 4. So request 2 goes to replica 1
    """
    rows = {"arrival_s": [0.0, 1.0, 2.0], "prompt_tokens": [3, 3, 1], "output_tokens": [9, 2, 5]}
    one = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.VllmV1(), kv=iq.KvCache(tokens=None, block=1))
    cluster = iq.Cluster(one, replicas=2, router=router)
    assert iq.simulate(rows, cluster, stepping=stepping).requests["replica"].to_list() == [0, 1, 1]


_INNER = st.sampled_from(
    [
        iq.Sarathi(token_budget=16),
        iq.Sarathi(token_budget=16, preemption=iq.Swap(per_token=0, base=0)),
        iq.VllmV1(async_scheduling=False, token_budget=16),
        iq.research.Orca(max_seqs=8, max_model_len=60, token_budget=16, chunked=True),
    ]
)


@settings(max_examples=400)
@given(workloads(), _INNER, st.integers(60, 200), st.sampled_from([4, 128]))
def test_no_lower_class_is_admitted_while_a_higher_one_waits(
    frame: pl.DataFrame, inner: Any, tokens: int, seqs: int
) -> None:
    frame = frame.drop("patience_s", "itl_slo_s", "max_output_tokens", "prefix_parts")
    inner = replace(inner, max_seqs=seqs)
    scheduler = iq.ClassPriority(order=CLASSES, inner=inner)
    one = iq.Engine(timing=iq.Constant(0.01), scheduler=scheduler, kv=iq.KvCache(tokens=tokens, block=1))
    rows = iq.simulate(frame, one).requests.filter(status="finished")
    higher, lower = rows.filter(pl.col("class") == CLASSES[0]), rows.filter(pl.col("class") == CLASSES[1])
    for at in lower["admitted_s"]:
        assert higher.filter(pl.col("arrival_s") <= at, pl.col("admitted_s") > at).is_empty()


@given(_scenarios())
def test_law_ten_twice_the_times_give_twice_the_latencies(scenario: Scenario) -> None:
    frame, system = scenario
    for engine in system.replicas():
        if isinstance(engine.scheduler, iq.research.Slai) or isinstance(engine.timing, iq.TimingTable):
            return  # means of iteration times and slopes of lines are rounded
    once = scenario.run()
    doubled = frame.with_columns(pl.col(name) * 2 for name in frame.columns if name in _TIMES)
    twice = iq.simulate(doubled, system.made(2))
    times = [name for name in once.requests.columns if name.endswith("_s") and name != "tpot_s"]
    expected = once.requests.with_columns(pl.col(name) * 2 for name in times)
    assert_frame_equal(twice.requests.drop("tpot_s"), expected.drop("tpot_s"), check_exact=True)


@given(_scenarios(), st.floats(0, 1))
def test_law_eleven_the_future_does_not_change_the_past(scenario: Scenario, share: float) -> None:
    """The last rows are dropped; what happened before the first of them arrived is as it was."""
    frame, system = scenario
    kept = int(frame.height * share)
    whole = scenario.run()
    part = iq.simulate(frame.head(kept), system.made()) if kept else None
    if part is None or not (whole.drained.is_empty() and part.drained.is_empty()):
        return
    row = "job" if isinstance(system, Jobs) else "id"
    t = whole.requests.filter(pl.col(row) >= kept)["arrival_s"].min()
    if t is None:
        t = float("inf")
    instants = ["arrival_s", "admitted_s", "first_token_s", "finish_s", "left_s"]

    def past(result: iq.Result) -> pl.DataFrame:
        before = result.requests.filter(pl.col("arrival_s") < t)
        seen = (pl.when(pl.col(name) < t).then(pl.col(name)).alias(name) for name in instants)
        return before.select("id", "replica", *instants).with_columns(*seen)

    first, second = past(whole), past(part)
    moved = first["left_s"].is_null()  # it may yet be handed over
    assert_frame_equal(first.drop("replica"), second.drop("replica"), check_exact=True)
    assert first.filter(~moved)["replica"].to_list() == second.filter(~moved)["replica"].to_list()


@given(_scenarios(st.one_of(_ALONE, _FLEETS, _pairs())))
def test_law_four_nothing_is_held_after_the_last_request(scenario: Scenario) -> None:
    frame, system = scenario
    alone = scenario.run()
    if not alone.drained.is_empty():
        return  # one more arrival is the company that they waited for
    end_s = alone.totals["end_s"]
    blank = {name: None for name in ("patience_s", "session_id", "think_s") if name in frame.columns}
    late = max(end_s, frame["arrival_s"].max()) + 1.0
    last = frame.head(1).with_columns(
        arrival_s=pl.lit(late), **{k: pl.lit(v, frame.schema[k]) for k, v in blank.items()}
    )
    timeline = iq.simulate(pl.concat([frame, last]), system.made(), timeline_s=0.01).timeline
    # arrivals are taken to the nearest nanosecond: the last may come a little before the number that names it
    between = timeline.filter((pl.col("time_s") > end_s) & (pl.col("time_s") < late - 1e-9))
    assert between.height > 90
    assert between["kv_used_tokens"].sum() == between["running"].sum() == between["waiting"].sum() == 0


_HORIZONS = st.one_of(st.none(), st.integers(0, 600).map(lambda n: n / 1000))


def _assert_separate(frame: pl.DataFrame, engine: iq.Engine, n: int, **options: Any) -> None:
    """So many replicas by turns are so many runs."""
    whole = iq.simulate(frame, iq.Cluster(engine, replicas=n), **options)
    used = range(min(n, frame.height))  # the others have none
    parts = [iq.simulate(frame.gather_every(n, at), engine, **options) for at in used]
    for at, part in enumerate(parts):
        requests = whole.requests.filter(pl.col("id") % n == at)
        assert requests["replica"].unique().to_list() in ([], [at])
        assert requests["id"].to_list() == (part.requests["id"].cast(pl.Int64) * n + at).to_list()
        assert_frame_equal(
            requests.drop("id", "replica"), part.requests.drop("id", "replica"), check_exact=True
        )
        if options.get("iterations"):
            iterations = whole.iterations.filter(pl.col("replica") == at)
            assert_frame_equal(iterations.drop("replica"), part.iterations.drop("replica"), check_exact=True)
    counts = (
        pl.concat([part.itl for part in parts])
        .group_by("class", "lower_s", "upper_s")
        .agg(pl.col("count").sum())
    )
    assert sorted(whole.itl.rows()) == sorted(counts.select(whole.itl.columns).rows())
    for total in ("iterations", "stretches", "stretched_iterations"):
        assert whole.totals[total] == sum(part.totals[total] for part in parts)
    drained = [row * n + at for at, part in enumerate(parts) for row in part.drained]
    assert whole.drained.to_list() == sorted(drained)


@given(workloads(), ENGINES, st.integers(2, 4), _HORIZONS, _THREADS)
def test_round_robin_is_so_many_separate_runs(
    frame: pl.DataFrame, engine: iq.Engine, n: int, horizon_s: float | None, threads: int | None
) -> None:
    _assert_separate(frame, engine, n, horizon_s=horizon_s, iterations=True, threads=threads)


@pytest.mark.parametrize("router", _ROUTERS)
@given(workloads(), ENGINES, _HORIZONS, st.integers(0, 10))
def test_a_cluster_of_one_is_its_engine(
    router: str, frame: pl.DataFrame, engine: iq.Engine, horizon_s: float | None, warmup: int
) -> None:
    frame = frame.with_columns(session_id=pl.lit(1))
    options: dict[str, Any] = {"horizon_s": horizon_s, "warmup": warmup, "batches": True}
    alone = iq.simulate(frame, engine, **options)
    one = iq.simulate(frame, iq.Cluster(engine, replicas=1, router=_router(router)), **options)
    for name in _FRAMES:
        assert_frame_equal(getattr(alone, name), getattr(one, name), check_exact=True)
    of_the_engine = [finding for finding in one.findings if "router" not in finding.data]
    assert (alone.totals, alone.findings) == (one.totals, of_the_engine)
    assert alone.drained.to_list() == one.drained.to_list()


@given(_scenarios(st.one_of(_ALONE, _FLEETS, _pairs())), st.integers(0, 15), st.integers(0, 15))
def test_warm_up_cuts_rows_and_their_gaps(scenario: Scenario, warmup: int, cooldown: int) -> None:
    """What is measured changes no row; without a horizon each admitted request finishes, with o − 1 gaps."""
    rows = scenario.frame.height
    every, some = scenario.run(), scenario.run(warmup=warmup, cooldown=cooldown)
    assert_frame_equal(every.requests.drop("measured"), some.requests.drop("measured"), check_exact=True)
    inside = pl.col("id").is_between(warmup, rows - cooldown, closed="left")
    measured = some.requests.filter("measured")
    assert measured["id"].to_list() == some.requests.filter(inside)["id"].to_list()
    finished = measured.filter(pl.col("status") == "finished")
    assert some.itl["count"].sum() == (finished.select(_emitted(finished) - 1)).sum().item()


def test_blocks_that_are_sent_off_are_taken_in_a_batch_that_was_formed_before() -> None:
    """Batches of 3 tokens, planned ahead, a second each. The prompt of 4 tokens ends in [4, 5) and has
    crossed the link at 6.5, when [5.5, 6.5) ends and the batch of [6.5, 7.5) is formed already: 6 tokens of
    the last prompt are in the cache beside those 4.
    """
    prefill = iq.Engine(
        timing=iq.Constant(1.0),
        scheduler=iq.VllmV1(token_budget=3, max_seqs=2, async_scheduling=True, pause_s=0.0),
        kv=iq.KvCache(tokens=20, block=1),
    )
    decode = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.Sarathi(), kv=iq.KvCache.unlimited())
    link = iq.Link(latency_s=1.5, bytes_per_s=1, bytes_per_token=0)
    pair = iq.Disaggregated(prefill=(prefill, 1), decode=(decode, 1), link=link)
    work = {"arrival_s": [0.0] * 3, "prompt_tokens": [11, 4, 7], "output_tokens": [4, 4, 2]}
    fast, slow = (iq.simulate(work, pair, timeline_s=0.25, stepping=stepping) for stepping in (False, True))
    assert_frame_equal(fast.timeline, slow.timeline, check_exact=True)
    used = dict(fast.timeline.filter(replica=0).select("time_s", "kv_used_tokens").iter_rows())
    assert [used[time_s] for time_s in (6.25, 6.5, 7.5)] == [7, 10, 7]


def test_a_real_trace_over_four_replicas(shared: Path) -> None:
    path = shared / "traces" / "azure_llm_2023_conv.parquet"
    if not path.exists():
        pytest.skip("azure_llm_2023_conv.parquet is not here")
    timing = iq.PiecewiseLinear(
        base=0.006, per_token=32e-6, knee=200, per_context_token=40e-9, per_prefill_square=650e-12
    )
    engine = iq.Engine(
        timing=timing, scheduler=iq.Sarathi(token_budget=2048, max_seqs=256), kv=iq.KvCache(tokens=60_000)
    )
    frame = iq.read_trace(path).frame
    _assert_separate(frame, engine, 4, iterations=True)
    for router in set(_ROUTERS) - {"BySession"}:  # the trace has none
        result = iq.simulate(frame, iq.Cluster(engine, replicas=4, router=_router(router)))
        assert result.requests["status"].unique().to_list() == ["finished"]
        assert result.totals["in_system_as"] == result.totals["sojourn_as"]
        assert result.itl["count"].sum() == (frame["output_tokens"].cast(pl.Int64) - 1).sum()


@pytest.mark.parametrize(
    ("first_token", "finish_s"),
    [("prefill", [8.0, 8.0, 11.0, 10.0]), ("decode", [9.0, 9.0, 13.0, 12.0])],
)
def test_a_prompt_is_admitted_after_the_last_swapped_request_is_back(
    first_token: Any, finish_s: list[float]
) -> None:
    """Five blocks: the second request takes the third's for its 65th token, the fourth waits from the start.

    When the first two are done, one iteration swaps the third in, the next is the fourth's prompt alone.
    """
    requests = {"arrival_s": [0.0] * 4, "prompt_tokens": [33, 59, 1, 1], "output_tokens": [8, 8, 8, 1]}
    policy = iq.VllmV0(max_seqs=8, watermark=0, preemption=iq.Swap(per_token=0, base=0))
    kv = iq.KvCache(tokens=160, block=32)
    one = iq.Engine(timing=iq.Constant(1.0), kv=kv, scheduler=policy, first_token=first_token)
    for stepping in (False, True):
        assert iq.simulate(requests, one, stepping=stepping).requests["finish_s"].to_list() == finish_s


@pytest.mark.parametrize("stepping", [False, True])
def test_a_request_taken_back_as_an_iteration_ends_leaves_with_the_next_one(stepping: bool) -> None:
    """Iterations of a second: the token of the instant comes first, and the next one is the last."""
    requests = {"arrival_s": [0.0], "prompt_tokens": [1], "output_tokens": [9], "cancel_s": [4.0]}
    one = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.Sarathi(), kv=iq.KvCache.unlimited())
    left = iq.simulate(requests, one, stepping=stepping).requests.row(0, named=True)
    assert (left["status"], left["left_s"]) == ("abandoned", 5.0)


@pytest.mark.parametrize("stepping", [False, True])
def test_a_run_that_the_batch_evicts_is_not_found_by_the_next_plan(stepping: bool) -> None:
    """17 tokens. At 9 request 0 has left: its prompt and its answer are cached, in runs of 6 and 7 tokens.
    Request 2 continues them and needs one token more than is free next to the 4 of request 1. Request 1, of a
    lower class, takes its fifth token: the run of 7 is evicted as a whole. At 10 request 2 finds the run of 6
    and computes the 8 others by 13, 3 at a time. Request 1 is preempted for it and emits its last 4 tokens
    from 13 on.
    """
    requests = {
        "arrival_s": [0.0, 6.0, 8.5],
        "prompt_tokens": [6, 3, 14],
        "output_tokens": [8, 7, 1],
        "class": ["a", "b", "a"],
        "continues": pl.Series([None, None, 0], dtype=pl.Int32),
    }
    inner = iq.VllmV1(token_budget=3, reserve_full_prompt=False, async_scheduling=False)
    one = iq.Engine(
        timing=iq.Constant(1.0),
        scheduler=iq.ClassPriority(order=["a", "b"], inner=inner),
        kv=iq.KvCache(tokens=17, block=1, prefix_cache="radix"),
    )
    assert iq.simulate(requests, one, stepping=stepping).requests["finish_s"].to_list() == [9.0, 17.0, 13.0]


@pytest.mark.parametrize("stepping", [False, True])
def test_a_request_that_gave_up_closed_the_batch_of_sglang(stepping: bool) -> None:
    """One seat: the first request has it until 4, a row in vain included, as its end is not foreseen. The
    second waits from 0.5 to 2.7. Of [1, 2), [2, 3) and [3, 4), each planned a second before, seats keep the
    others out: the plan of 1 finds the batch full, and nothing that opens it again has left at 2.
    """
    requests = {
        "arrival_s": [0.0, 0.5, 2.7],
        "prompt_tokens": [1, 1, 1],
        "output_tokens": [2, 1, 1],
        "patience_s": [None, 2.2, None],
    }
    policy = iq.Sglang(max_seqs=1, max_prefill_tokens=1, chunk_tokens=512)
    kv = iq.KvCache(tokens=576, block=16)
    one = iq.Engine(timing=iq.Constant(1.0), scheduler=policy, first_token="decode", kv=kv)
    work = iq.simulate(requests, one, stepping=stepping).work_conservation(2)
    assert (work.iterations, work.share, work.cap_share) == (7, 0.0, 3 / 7)
