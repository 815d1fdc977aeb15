"""Does the verdict of theory hold where it is given, and is it silent where nothing is proved?"""

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

import inferq as iq
from inferq.theory import RequestClass, agree, observed, stability
from inferq.theory.bounds.stability import Stability
from inferq.timing import TimingModel
from inferq.workload.distributions import LengthDistribution

from .lin2026 import cluster
from .night import NIGHT
from .random_kernels import random_roofline, random_table

UNLIMITED = iq.KvCache.unlimited()
CHAT = RequestClass(rate=9, prompt=129, output=112)
TIMING = iq.PiecewiseLinear(base=0.0455, per_token=0.0003, knee=64)


def engine(scheduler: iq.Scheduler | None = None, **more: object) -> iq.Engine:
    parts: dict[str, object] = {"timing": TIMING, "kv": UNLIMITED, "first_token": "decode", **more}
    return iq.Engine(scheduler=scheduler or iq.Sarathi(token_budget=512, max_seqs=512), **parts)  # type: ignore[arg-type]


def hypothesis_of(found: Stability, name: str) -> list[bool | None]:
    return [one.met for bound in found.bounds for one in bound.hypotheses if one.name == name]


# ---- the verdict never contradicts a simulation


def random_scenario(
    chance: random.Random, kinds: Callable[[random.Random], list[TimingModel]] | None = None
) -> tuple[LengthDistribution, LengthDistribution, iq.Engine | iq.Cluster]:
    """A small engine of any timing model and scheduler, alone or in a fleet."""
    pick = chance.choice
    timing = pick(
        [
            iq.Constant(pick([0.5, 1.0])),
            iq.PiecewiseLinear(
                base=pick([0.5, 1.0]),
                per_token=pick([0.01, 0.05, 0.2]),
                knee=pick([0, 4, 16]),
                per_context_token=pick([0, 0.001]),
                per_prefill_square=pick([0, 0.001]),
                per_chunk_context=pick([0, 0.001, 0.002]),
            ),
            iq.research.MemoryLinear(base=1.0, per_kv_token=pick([0.001, 0.01])),
            iq.research.TiledGemm(
                rows=4, columns=2, reduction=2, width=8, layers=1,
                linear_s_per_tile=0.5, other_s_per_token=0.01, gemm_s=0.01, gemv_s=0.01,
            ),
            random_table(chance),
            random_roofline(chance),
        ]
        if kinds is None
        else kinds(chance)
    )  # fmt: skip
    budget, seats = pick([4, 8, 16, 32]), pick([2, 4, 8, 16, 64])
    schedulers = [
        iq.Sarathi(token_budget=budget, max_seqs=seats, order=pick(["fcfs", "spf"])),
        iq.VllmV1(
            token_budget=budget,
            max_seqs=seats,
            long_prefill_threshold=pick([0, 3]),
            async_scheduling=pick([False, False, False, True]),
        ),
        iq.VllmV0(token_budget=max(budget, 16), max_seqs=seats),
        iq.research.Orca(max_seqs=seats, max_model_len=24, token_budget=32, chunked=pick([True, False])),
        iq.research.FasterTransformer(max_seqs=seats, max_model_len=24, free=pick(["each", "batch"])),
        iq.research.KFcfs(token_budget=budget, k_prefill=pick([1, budget]), k_decode=pick([1, budget])),
        iq.research.Slai(token_budget=budget, max_active=seats, max_decodes=pick([2, seats])),
        iq.research.SlotGreedy(chunk=pick([4, 8])),
        iq.research.Wait(thresholds=pick([1, 2, 5])),
        iq.ClassPriority(order=["default"], inner=iq.Sarathi(token_budget=budget, max_seqs=seats)),
    ]
    if isinstance(timing, iq.research.TiledGemm):
        schedulers = [
            iq.research.Rad(rows=4, columns=2, reduction=2, requests_per_cycle=pick([1, 5, 50])),
            *schedulers[:2],
        ]
    kv = pick([UNLIMITED, iq.KvCache(tokens=pick([32, 64, 200]), block=pick([1, 4]))])
    host = pick([None, None, iq.Overhead(base_s=pick([0.2, 1.0]), per_sequence_s=pick([0, 0.05]),
                                         overlapped=pick([True, False]))])  # fmt: skip
    parts = {"timing": timing, "kv": kv, "overhead": host}
    one = engine(pick(schedulers), **parts, first_token=pick(["prefill", "decode"]))
    prompt, output = (
        pick([iq.dist.Fixed(9), iq.dist.Uniform(1, 16)]),
        pick([iq.dist.Fixed(5), iq.dist.Uniform(1, 8), iq.dist.Fixed(1)]),
    )
    replicas = pick([1, 1, 2, 3])
    router = pick([iq.RoundRobin(), iq.Random(), iq.LeastRequests(), iq.PowerOfTwo()])
    return prompt, output, one if replicas == 1 else iq.Cluster(one, replicas=replicas, router=router)


def test_a_proved_verdict_is_never_contradicted_by_a_run():
    # `observed` calls a system that is neither with a chance of 1 in 100 at most (its confidence), and the
    # rates keep 3 % and more away from the bound, so that of these few verdicts none is expected to be wrong.
    scenarios = 600 if NIGHT else 200
    assert min(decisions(scenarios, None).values()) > scenarios / 15


def test_a_proved_verdict_on_tables_and_rooflines_is_never_contradicted_by_a_run():
    # A stream of their own: they are two kinds of six in the one above.
    scenarios = 240 if NIGHT else 80
    decided = decisions(scenarios, lambda chance: [random_table(chance), random_roofline(chance)])
    assert min(decided.values()) > scenarios / 20


def decisions(scenarios: int, kinds: Callable[[random.Random], list[TimingModel]] | None) -> dict[str, int]:
    """How often theory and a run agree on a verdict; none may contradict the other."""
    decided = {"stable": 0, "unstable": 0}
    for seed in range(scenarios):
        chance = random.Random(seed)
        prompt, output, system = random_scenario(chance, kinds)
        alone = stability(RequestClass(rate=1.0, prompt=prompt, output=output), system)
        limits = [limit for limit in (alone.capacity_per_s, alone.stable_below_per_s) if limit]
        if not limits:
            continue
        rate = chance.choice(limits) * chance.choice([0.5, 0.8, 0.9, 0.97, 1.03, 1.1, 1.3])
        work = iq.Workload.synthetic(
            requests=4000, arrivals=iq.dist.Poisson(rate), prompt=prompt, output=output
        )
        proved, seen = stability(work, system), observed(iq.simulate(work, system, seed=seed))
        contradicts = {proved.verdict, seen.verdict} == {"stable", "unstable"}
        assert not contradicts, f"seed {seed}: {proved.explain()}\n{seen.explain()}"
        if proved.verdict == seen.verdict and proved.verdict in decided:
            decided[proved.verdict] += 1
    return decided


# ---- which limit binds


@pytest.mark.parametrize(
    ("system", "resource"),
    [
        (engine(), "tokens"),
        (engine(iq.Sarathi(token_budget=512, max_seqs=100)), "sequences"),
        (engine(timing=iq.Constant(1.0), kv=iq.KvCache(tokens=400, block=1)), "memory"),
        (engine(iq.research.FasterTransformer(max_seqs=64)), "batches"),
    ],
)
def test_the_scarcest_resource_binds(system: iq.Engine, resource: str):
    # Whole batches of equal requests waste no seat; of unequal ones they do.
    found = stability(RequestClass(rate=9, prompt=129, output=iq.dist.Uniform(1, 223)), system)
    assert found.binding is not None
    assert found.binding.resource == resource
    assert found.load == CHAT.rate / found.binding.capacity_per_s
    assert found.margin == 1 - found.load


def test_the_limit_of_tokens_is_the_papers():
    # li2025 (2.7): b / (t_b·(m_p + m_d)), t_b = 45.5 ms + 0.3 ms·(512 − 64).
    found = stability(CHAT, engine())
    assert found.verdict == "stable"
    assert found.capacity_per_s == pytest.approx(512 / (0.1799 * (129 + 112)), rel=1e-12)
    assert found.stable_below_per_s == pytest.approx(found.capacity_per_s, rel=1e-12)


def test_slot_greedy_is_sure_below_the_papers_rate_and_not_above():
    # nie2026: s = 4, o = 2, chunk 4: g = 4 + 5 + 6 = 15; μ = M/(b̄·g), δ = 6/M.
    small = engine(
        iq.research.SlotGreedy(chunk=4), timing=iq.Constant(0.5), kv=iq.KvCache(tokens=60, block=1)
    )
    mu = 60 / (0.5 * 15)
    said = [
        stability(RequestClass(rate=share * mu, prompt=4, output=2), small).verdict
        for share in (0.89, 0.95, 1.01)
    ]
    assert said == ["stable", "unknown", "unstable"]


def test_replicas_and_seconds_scale_the_limits():
    def twice(timing: iq.PiecewiseLinear) -> iq.PiecewiseLinear:
        return iq.PiecewiseLinear(base=2 * timing.base, per_token=2 * timing.per_token, knee=timing.knee)

    for scheduler in (
        iq.Sarathi(),
        iq.VllmV1(),
        iq.research.Orca(chunked=True, token_budget=512),
        iq.research.FasterTransformer(),
    ):
        one = stability(CHAT, engine(scheduler))
        three = stability(CHAT, iq.Cluster(engine(scheduler), replicas=3))
        slow = stability(CHAT, engine(scheduler, timing=twice(TIMING)))
        assert [bound.capacity_per_s for bound in three.bounds] == pytest.approx(
            [3 * bound.capacity_per_s for bound in one.bounds]
        )
        assert [bound.capacity_per_s for bound in slow.bounds] == pytest.approx(
            [bound.capacity_per_s / 2 for bound in one.bounds]
        )


@given(
    prompt=st.integers(1, 500),
    output=st.integers(1, 300),
    seats=st.integers(1, 400),
    budget=st.integers(1, 2000),
    more=st.integers(1, 100),
)
def test_longer_requests_lower_every_ceiling_and_more_seats_raise_it(
    prompt: int, output: int, seats: int, budget: int, more: int
):
    def ceiling(prompt: int, output: int, seats: int) -> float:
        one = RequestClass(rate=1.0, prompt=prompt, output=output)
        scheduler = iq.Sarathi(token_budget=budget, max_seqs=seats)
        found = stability(one, engine(scheduler, kv=iq.KvCache(tokens=100_000, block=1)))
        assert found.capacity_per_s is not None
        return found.capacity_per_s

    here = ceiling(prompt, output, seats)
    assert ceiling(prompt + more, output, seats) <= here * (1 + 1e-12)
    assert ceiling(prompt, output + more, seats) <= here * (1 + 1e-12)
    assert ceiling(prompt, output, seats + more) >= here * (1 - 1e-12)


# ---- what is not known is said


def test_memory_that_may_run_short_leaves_only_what_the_oldest_are_sure_of():
    tight = iq.KvCache(tokens=20_000, block=16)
    one = engine(iq.Sarathi(token_budget=512, max_seqs=128), kv=tight)
    # 241 tokens are 16 blocks: 77 of 1,250 fit beside a watermark of 12. They move in at most t_b = 0.1799 s,
    # 129 prompt tokens in a budget of 512 less the 51 seats of others, or a 77th of 113 stages.
    sure = 1 / (0.1799 * (129 / (512 - 51) + 113 / 77))
    found = stability(CHAT, one, rate=0.99 * sure)
    assert (found.verdict, found.deciding and found.deciding.name) == ("stable", "oldest requests")
    assert found.stable_below_per_s == pytest.approx(sure)
    unknown = stability(CHAT, one, rate=1.01 * sure)
    assert unknown.verdict == "unknown"
    why = unknown.explain().splitlines()[0]
    assert why.startswith("unknown: stable by sequence limit, except for memory to spare: unknown")


@pytest.mark.parametrize(
    "scheduler",
    [iq.VllmV0(), iq.research.NestedWait(segments=(4,), thresholds=(3,)), iq.research.Slai(max_decodes=2)],
    ids=repr,
)
def test_a_policy_that_no_theorem_covers_is_unknown_below_the_ceiling(scheduler: iq.Scheduler):
    assert stability(CHAT, engine(scheduler), rate=0.1).verdict == "unknown"
    assert stability(CHAT, engine(scheduler), rate=5000).verdict == "unstable"


def test_a_policy_written_in_python_has_ceilings_and_no_guarantee():
    class Mine(iq.Scheduler):
        def plan(self, view: iq.View) -> iq.Batch:
            return iq.Batch()

    assert stability(CHAT, engine(Mine()), rate=5000).verdict == "unstable"
    assert stability(CHAT, engine(Mine()), rate=0.01).verdict == "unknown"


def synthetic(rate: float = 9.0) -> iq.Workload:
    lengths = {"prompt": iq.dist.Fixed(129), "output": iq.dist.Fixed(112)}
    return iq.Workload.synthetic(requests=2000, arrivals=iq.dist.Poisson(rate), **lengths)


def test_those_who_give_up_keep_theory_from_saying_unstable():
    patient = stability(synthetic(20.0), engine())
    leaving = stability(synthetic(20.0).with_patience(1.0), engine())
    assert (patient.verdict, leaving.verdict) == ("unstable", "unknown")
    assert False in hypothesis_of(leaving, "no abandonment")
    assert stability(synthetic(5.0).with_patience(1.0), engine()).verdict == "stable"


def test_a_closed_loop_has_limits_and_no_load():
    chat = iq.Workload.sessions(
        sessions=9, arrivals=iq.dist.Poisson(1.0), turns=3, prompt=10, output=20, think=5.0
    )
    found = stability(chat, engine())
    assert (found.verdict, found.rate, found.load) == ("unknown", None, None)
    assert found.capacity_per_s is not None
    assert "the arrival rate is unknown" in found.explain()


def test_requests_that_can_never_fit_leave_no_guarantee():
    small = engine(kv=iq.KvCache(tokens=200, block=1))
    found = stability(RequestClass(rate=50, prompt=129, output=iq.dist.Uniform(1, 112)), small)
    assert found.verdict == "unknown"
    assert set(hypothesis_of(found, "every request fits")) == {False}


def test_a_recorded_surge_is_not_steady():
    def recorded(gaps: list[float]) -> iq.Workload:
        arrival_s, at = [], 0.0
        for gap in gaps:
            at += gap
            arrival_s.append(at)
        columns = {
            "arrival_s": arrival_s,
            "prompt_tokens": [129] * len(gaps),
            "output_tokens": [112] * len(gaps),
        }
        return iq.Workload(columns)

    even = stability(recorded([0.2] * 500), engine())
    surge = stability(recorded([0.4] * 100 + [0.04] * 400), engine())
    assert even.rate == pytest.approx(5.0)
    assert (even.verdict, surge.verdict) == ("stable", "unknown")
    assert surge.load is not None
    assert surge.load < 1
    assert "the busiest part has load" in surge.explain()


# ---- fleets


def test_a_router_that_no_theorem_covers_leaves_no_guarantee():
    pairs = {
        type(router).__name__: stability(CHAT, iq.Cluster(engine(), replicas=2, router=router)).verdict
        for router in (iq.RoundRobin(), iq.Random(), iq.LeastRequests(), iq.LeastTokens(), iq.PowerOfTwo())
    }
    assert pairs.pop("PowerOfTwo") == "unknown"
    assert set(pairs.values()) == {"stable"}


def test_blind_routers_are_bound_by_the_weakest_replica():
    slow = engine(timing=iq.PiecewiseLinear(base=0.455, per_token=0.003, knee=64))  # ten times slower
    alone = stability(CHAT, slow).capacity_per_s
    assert alone is not None
    even = iq.Cluster([engine(), slow], router=iq.RoundRobin())
    blind = stability(CHAT, even)
    assert blind.capacity_per_s == pytest.approx(2 * alone)
    assert blind.verdict == "unstable"
    assert (
        stability(CHAT, iq.Cluster([engine(), slow], router=iq.RoundRobin()), rate=1.9 * alone).verdict
        == "stable"
    )
    looking = stability(CHAT, iq.Cluster([engine(), slow], router=iq.LeastRequests()))
    assert looking.capacity_per_s == pytest.approx(11 * alone)
    assert looking.verdict == "unknown"


def test_a_hand_off_is_bound_by_each_of_its_sides():
    def pair(prefills: int, decodes: int, concurrent: int | None = None) -> iq.Disaggregated:
        link = iq.Link(0.5, 1e12, 1.0, concurrent=concurrent)
        return iq.Disaggregated(prefill=(engine(), prefills), decode=(engine(), decodes), link=link)

    prefill = stability(CHAT, pair(1, 9), rate=100)
    # 512 prompt tokens in 0.1799 s are 22.06 prompts of 129 a second.
    assert prefill.capacity_per_s == pytest.approx(512 / 0.1799 / 129)
    assert prefill.verdict == "unstable"
    decode = stability(CHAT, pair(9, 1), rate=5)
    assert decode.binding is not None
    assert decode.binding.resource == "decodes"
    assert decode.capacity_per_s == pytest.approx(512 / 0.1799 / 112)
    assert decode.verdict == "unknown"
    link = stability(CHAT, pair(9, 9, concurrent=2), rate=4.1)
    assert (link.verdict, link.binding and link.binding.resource) == ("unstable", "link")
    assert link.capacity_per_s == pytest.approx(2 / 0.5, rel=1e-3)
    seen = [observed(iq.simulate(synthetic(rate), pair(9, 9, concurrent=2))).verdict for rate in (2.0, 8.0)]
    assert seen == ["stable", "unstable"]


def test_slots_behind_a_gate():
    one = RequestClass(rate=100.0, prompt=2560, output=10)
    found = stability(one, cluster(replicas=4))
    # Ten chunks of 17.4 ms + 256·0.062 ms = 33.272 ms each.
    assert found.capacity_per_s == pytest.approx(4 / (10 * 0.033272))
    assert found.verdict == "unstable"
    assert stability(one, cluster(replicas=4), rate=1.0).verdict == "unknown"
    leaving = stability(one, cluster(replicas=4, abandonment=0.1))
    assert leaving.verdict == "stable"
    assert "abandons" in leaving.explain().splitlines()[0]


def test_a_network_is_bound_by_its_engines_and_never_called_stable():
    policy = iq.research.KFcfs(token_budget=100, k_prefill=100, k_decode=100)
    agent = engine(policy, timing=iq.Constant(1.0))
    stages = {
        "draft": iq.Stage("writer", prompt=50, output=20),
        "check": iq.Stage("critic", prompt=10, output=5, after="draft", includes="draft"),
    }
    network = iq.Network({"writer": agent, "critic": agent}, [iq.Workflow("job", stages=stages)])
    low = stability({"job": 1.0}, network)
    assert (low.verdict, low.binding and low.binding.name) == ("unknown", "engines.writer")
    assert low.capacity_per_s == pytest.approx(100 / 70)
    assert stability({"job": 1.5}, network).verdict == "unstable"
    pair = iq.Disaggregated(prefill=(agent, 1), decode=(agent, 1), link=iq.Link(0, 1e9, 1))
    apart = iq.Network({"writer": pair, "critic": agent}, [iq.Workflow("job", stages=stages)])
    assert "engines.writer: Disaggregated" in stability({"job": 1.0}, apart).explain().splitlines()[0]
    with pytest.raises(iq.ConfigError, match="unknown workflow 'jib'"):
        stability({"jib": 1.0}, network)
    with pytest.raises(iq.ConfigError, match="rate"):
        stability({"job": 1.0}, network, rate=3.0)
    with pytest.raises(iq.ConfigError, match="require a Network"):
        stability({"job": 1.0}, agent)


@pytest.mark.parametrize("system", [None, 3, TIMING, iq.Sarathi()])
def test_what_is_no_system_is_refused(system: object):
    with pytest.raises(iq.ConfigError, match="cluster: must be an Engine"):
        stability(CHAT, system)  # type: ignore[arg-type]


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf"), True, "5"])
def test_a_rate_that_makes_no_sense_is_refused(rate: object):
    with pytest.raises(iq.ConfigError, match="rate: must be a positive number per second"):
        stability(CHAT, engine(), rate=rate)  # type: ignore[arg-type]


def test_the_explanation_holds_every_number():
    found = stability(CHAT, engine())
    text = found.explain()
    for part in (
        "stable: λ = 9 is below 11.8092",
        "129",
        "112",
        "0.1799",
        "512",
        "load 0.762",
        "margin 0.237",
    ):
        assert part in text
    assert found.frame().columns == [
        "limit", "resource", "kind", "capacity_per_s", "load", "applies", "implies", "source",
    ]  # fmt: skip
    assert "stable" in found.frame()["implies"].to_list()


# ---- theory, fluid and simulation side by side


@pytest.mark.parametrize("rate", [9.0, 13.0])
def test_theory_fluid_and_simulation_agree(rate: float):
    found = agree(
        RequestClass(rate=rate, prompt=129, output=112), engine(), requests=20_000, seeds=range(1, 6)
    )
    assert found.agrees is True
    rows = {row["quantity"]: row for row in found.frame.iter_rows(named=True)}
    served = min(rate, 512 / (0.1799 * 241))
    assert rows["throughput"]["theory"] == pytest.approx(served)
    assert rows["throughput"]["low"] <= served <= rows["throughput"]["high"]
    assert rows["output tokens"]["theory"] == pytest.approx(112 * served)
    growth = rows["growth of the backlog"]
    assert growth["low"] <= rate - served <= growth["high"]
    # The fluid's iteration: T = c + a·(λ·T·m − b0), at most that of a full batch.
    settled = min((0.0455 - 0.0003 * 64) / (1 - 0.0003 * 241 * served), 0.1799)
    assert rows["iteration"]["fluid"] == pytest.approx(settled)
    assert abs(rows["iteration"]["gap"]) < 0.06
    assert found.frame["gap"].is_null().sum() < found.frame.height


def test_the_fluid_of_memory_bound_iterations_is_the_papers():
    low = [
        RequestClass(name="short", rate=1000, prompt=10, output=10),
        RequestClass(name="long", rate=1000, prompt=10, output=20),
    ]
    timing = iq.research.MemoryLinear(base=0.015, per_kv_token=2.6e-7)
    scheduler = iq.VllmV1(max_seqs=4000, token_budget=8192)
    one = engine(scheduler, timing=timing, kv=iq.KvCache(tokens=125_000, block=1))
    rows = {
        row["quantity"]: row
        for row in agree(low, one, requests=40_000, seeds=[1]).frame.iter_rows(named=True)
    }
    fluid = iq.theory.fluid(low, one)
    assert rows["iteration"]["fluid"] == pytest.approx(fluid.iteration_s)
    assert rows["KV cache in use on a replica"]["fluid"] == pytest.approx(fluid.kv_tokens_needed)
    assert rows["iteration"]["low"] is None
    assert abs(rows["iteration"]["gap"]) < 0.02


def test_agree_covers_every_kind_of_system():
    pair = iq.Disaggregated(prefill=(engine(), 1), decode=(engine(), 1), link=iq.Link(0.01, 1e9, 1.0))
    for system in (cluster(replicas=4), pair, iq.Cluster([engine(), engine(iq.VllmV1())])):
        found = agree(CHAT, system, requests=500, seeds=[1])
        assert found.frame.filter(quantity="throughput")["simulation"].item() > 0
        assert "simulation:" in found.explain()
    stage = iq.Workflow("job", stages={"only": iq.Stage("agent", prompt=129, output=112)})
    jobs = iq.Workload.synthetic(requests=300, arrivals=iq.dist.Poisson(2.0))
    network = agree(jobs, iq.Network({"agent": engine()}, [stage]), seeds=[1, 2])
    assert network.theory.load == pytest.approx(2 / 11.8092, rel=0.2)


def test_where_nothing_limits_the_rate_there_is_no_capacity():
    free = engine(iq.research.SlotGreedy(), timing=iq.Constant(0.01))
    assert stability(CHAT, free).explain().startswith("unknown: no theorem covers this system")
    found = agree(CHAT, free, requests=500, seeds=[1]).frame.filter(quantity="capacity")
    assert found.select("theory", "fluid").row(0) == (None, None)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"seeds": []}, "seeds: must contain at least one seed"),
        ({"warmup": 1.0}, "warmup"),
        ({"requests": 1}, "requests"),
    ],
)
def test_agree_refuses_what_makes_no_sense(more: dict[str, object], said: str):
    with pytest.raises(iq.ConfigError, match=said):
        agree(CHAT, engine(), **more)  # type: ignore[arg-type]
    with pytest.raises(iq.ConfigError, match="requests: is for classes with rates; a workload has its own"):
        agree(synthetic(), engine(), requests=5)
