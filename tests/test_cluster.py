"""Clusters and disaggregation: descriptions, the input of the core, and runs.

Those that are worked out by hand, for routers and hand-offs, are in `test_reference_fleet.py`.
"""

import copy
import dataclasses
import json
from typing import Any

import numpy as np
import pytest

import inferq as iq
from inferq import _core
from inferq.scenario import Scenario
from inferq.systems.routers import ROUTERS

from .arriving import arriving
from .refusals import refused
from .slots import engine, rows, work

EXAMPLES = [
    *(kind() for kind in ROUTERS),
    iq.BySession(spill=1.5),
    iq.PrefixAffinity(weight=0.5, update_s=0.1),
    iq.PrefixHash(prefix_tokens=100, load_factor=1.25),
]
LINK = iq.Link(latency_s=0.5, bytes_per_s=100.0, bytes_per_token=10)


# descriptions


@pytest.mark.parametrize("router", EXAMPLES, ids=repr)
def test_a_cluster_is_read_back_from_its_description(router: iq.Router) -> None:
    assert router.to_json() == {"kind": type(router).__name__, **dataclasses.asdict(router)}
    for cluster in (
        iq.Cluster(engine(), replicas=3, router=router),
        iq.Cluster([engine(), engine(max_seqs=2)], router=router),
    ):
        described = json.loads(json.dumps(cluster.to_json()))
        again = iq.Cluster.from_json(described)
        assert again == cluster
        assert again.to_json() == described
        assert hash(again) == hash(cluster)


def test_a_cluster_reports_its_number_of_replicas() -> None:
    assert iq.Cluster(engine()).replicas == 1
    assert iq.Cluster([engine(), engine()]).replicas == 2
    assert iq.Cluster([engine(), engine()], replicas=2).replicas == 2
    assert iq.Cluster(engine(), replicas=np.int64(3)).to_json()["replicas"] == 3  # type: ignore[arg-type]


@refused(
    ({"engines": []}, r"^engines: must not be empty"),
    ({"engines": 5}, r"^engines: must be Engine"),
    ({"engines": [engine(), "two"]}, r"^engines\[1\]: must be Engine"),
    ({"engines": engine(), "replicas": 0}, r"^replicas: must be from 1"),
    ({"engines": engine(), "replicas": -1}, r"^replicas: "),
    ({"engines": engine(), "replicas": 1.5}, r"^replicas: "),
    ({"engines": engine(), "replicas": True}, r"^replicas: "),
    ({"engines": [engine()], "replicas": 2}, r"^replicas: must be 1, the number of engines, got 2"),
    ({"engines": engine(), "router": "RoundRobin"}, r"^router: must be Router"),
    ({"engines": engine(), "router": iq.RoundRobin}, r"^router: "),
    ({"engines": iq.Cluster(engine())}, r"^engines: must be Engine"),
)
def test_a_wrong_part_of_a_cluster_is_named(arguments: dict[str, Any]) -> None:
    iq.Cluster(**arguments)


@refused(
    ({"router": {"kind": "RoundRobbin"}}, r"^cluster\.router\.kind: .*RoundRobin\?"),
    ({"router": "LeastRequest"}, r"^cluster\.router: .*LeastRequests\?"),
    ({"router": {"kind": "Python", "name": "mine"}}, r"^cluster\.router: a router written in Python"),
    ({"replica": 3}, r"^cluster: unknown field 'replica'; did you mean replicas"),
    ({"replicas": 0}, r"^cluster\.replicas: "),
    ({"engines": {"timing": {"kind": "Constant"}}}, r"^cluster\.engines\.scheduler: missing"),
    ({"engines": [engine().to_json(), {}]}, r"^cluster\.engines\[1\]\.timing: missing"),
    ({"kind": "Clutter"}, r"^cluster\.kind: "),
)
def test_a_wrong_description_of_a_cluster_is_named(change: dict[str, Any]) -> None:
    described = iq.Cluster(engine()).to_json()
    iq.Cluster.from_json({**described, **change})


def test_a_disaggregated_system_is_read_back_from_its_description() -> None:
    split = iq.Disaggregated(
        prefill=(engine(max_seqs=1), 2),
        decode=(engine(), 3),
        link=iq.Link(0.001, 25e9, 131_072, concurrent=4),
        prefill_router=iq.LeastTokens(),
    )
    described = json.loads(json.dumps(split.to_json()))
    assert iq.Disaggregated.from_json(described) == split
    assert described["decode_router"] == {"kind": "LeastRequests"}
    assert described["link"]["concurrent"] == 4


@refused(
    ({"prefill": engine()}, r"^prefill: must be a pair \(engine, replicas\)"),
    ({"prefill": (engine(), 0)}, r"^prefill\[1\]: "),
    ({"decode": (engine(), 1.0)}, r"^decode\[1\]: "),
    ({"decode": (2, engine())}, r"^decode\[0\]: "),
    ({"link": None}, r"^link: must be Link"),
    ({"decode_router": "RoundRobin"}, r"^decode_router: "),
    (
        {"decode": (engine(first_token="decode"), 1)},
        r"^decode: first_token is 'decode', but 'prefill' for prefill",
    ),
)
def test_a_wrong_part_of_a_hand_off_is_named(change: dict[str, Any]) -> None:
    iq.Disaggregated(**{"prefill": (engine(), 1), "decode": (engine(), 1), "link": LINK, **change})


@refused(
    ({"latency_s": -1.0}, "latency_s"),
    ({"latency_s": 1e-19}, "latency_s: must be 0 or at least an attosecond"),
    ({"latency_s": float("nan")}, "latency_s"),
    ({"latency_s": "1"}, "latency_s"),
    ({"bytes_per_s": 0}, "bytes_per_s: must be positive"),
    ({"bytes_per_s": -2.0}, "bytes_per_s"),
    ({"bytes_per_s": float("inf")}, "bytes_per_s"),
    ({"bytes_per_token": -1}, "bytes_per_token"),
    ({"concurrent": 0}, "concurrent"),
    ({"concurrent": 1.5}, "concurrent"),
    ({"concurrent": True}, "concurrent"),
    pattern="^{}",
)
def test_a_wrong_number_of_a_link_is_named(change: dict[str, Any]) -> None:
    iq.Link(**{"latency_s": 0.0, "bytes_per_s": 1.0, "bytes_per_token": 0, **change})


def test_a_link_moves_the_keys_and_values_of_the_prefill_model() -> None:
    """Llama-3.1-8B stores 2 · 32 layers · 8 heads · 128 numbers per token, of 2 bytes or 1."""
    way = iq.Link(latency_s=1e-4, bytes_per_s=25e9)
    for kv_dtype, size in (("bf16", 2), ("fp8", 1)):
        made = iq.Engine.on("llama-3.1-8b", "h100-80gb", tensor_parallel=2, kv_dtype=kv_dtype)
        split = iq.Disaggregated(prefill=(made, 1), decode=(made, 1), link=way)
        assert split.link.bytes_per_token == 2 * 32 * 8 * 128 * size
        read = iq.Disaggregated.from_json({**split.to_json(), "link": way.to_json()})
        assert read.link == split.link
    with pytest.raises(iq.ConfigError, match=r"^link\.bytes_per_token: .* Engine\.on"):
        iq.Disaggregated(prefill=(engine(), 1), decode=(engine(), 1), link=way)


def test_a_router_cannot_read_the_output_length() -> None:
    class Longest(iq.Router):
        def route(self, request: iq.Arrival, fleet: iq.Fleet) -> int:
            return int(request.output_tokens)  # type: ignore[attr-defined]

    with pytest.raises(AttributeError, match=r"output_tokens: the output length .* prompt_tokens"):
        iq.simulate(work((0, 5, 3)), iq.Cluster(engine(), replicas=2, router=Longest()))


def test_a_wrong_description_of_a_hand_off_is_named_by_its_path() -> None:
    described = iq.Disaggregated(prefill=(engine(), 1), decode=(engine(), 1), link=LINK).to_json()
    for change, message in [
        ({"link": {**described["link"], "latency_s": -1}}, r"^disaggregated\.link\.latency_s: "),
        ({"prefill": {"replicas": 2}}, r"^disaggregated\.prefill\.engine: missing"),
        ({"prefill": {**described["prefill"], "replicas": 0}}, r"^disaggregated\.prefill\[1\]: "),
        ({"decode": 3}, r"^disaggregated\.decode: "),
    ]:
        with pytest.raises(iq.ConfigError, match=message):
            iq.Disaggregated.from_json({**described, **change})


# the input of the core


class Door:
    """Records the input of the core, and runs nothing."""

    class Closed(Exception):
        pass

    def __call__(self, scenario: str, columns: Any, classes: Any, written: Any, threads: Any, progress: Any):
        self.scenario, self.columns, self.classes = json.loads(scenario), columns, classes
        self.written, self.threads = written, threads
        raise self.Closed

    def through(self, workload: Any, system: Any, **options: Any) -> "Door":
        with pytest.raises(self.Closed):
            iq.simulate(workload, system, **options)
        return self


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> Door:
    closed = Door()
    monkeypatch.setattr(_core, "simulate", closed)
    return closed


ONE = work((0.0, 10, 3))


def test_an_engine_is_a_pool_of_one(door: Door) -> None:
    door.through(ONE, engine(), threads=2)
    pool = {
        "engines": [engine().to_json()],
        "counts": [1],
        "paths": [""],
        "router": None,
        "hands_to": None,
    }
    assert door.scenario["pools"] == [pool]
    assert door.threads == 2
    assert door.written == {"schedulers": [], "routers": [], "scalers": []}
    assert sorted(door.columns) == ["arrival_s", "output_tokens", "prompt_tokens"]


def test_a_cluster_is_a_pool_and_a_disaggregated_system_two(door: Door) -> None:
    one, other = engine(), engine(max_seqs=1)
    (pool,) = door.through(ONE, iq.Cluster([one, one, other])).scenario["pools"]
    assert pool["counts"] == [2, 1]
    assert pool["engines"] == [one.to_json(), other.to_json()]
    assert pool["router"] == {"kind": "RoundRobin"}
    split = iq.Disaggregated(prefill=(one, 2), decode=(other, 3), link=LINK)
    first, second = door.through(ONE, split).scenario["pools"]
    assert (first["counts"], second["counts"]) == ([2], [3])
    assert first["hands_to"] == {"pool": 1, "link": LINK.to_json()}
    assert second["hands_to"] is None
    assert second["router"] == {"kind": "LeastRequests"}


def test_sessions_are_numbered_in_order(door: Door) -> None:
    five = work(*[(0.0, 1, 1)] * 5, session_id=["b", None, "a", "b", "a"])
    by_session = iq.Cluster(engine(), replicas=2, router=iq.BySession())
    session = door.through(five, by_session).columns["session"]
    assert session.dtype == np.uint32
    assert session.tolist() == [0, 2**32 - 1, 1, 0, 1]
    with pytest.raises(iq.ConfigError, match=r"^router: BySession .*session_id"):
        iq.simulate(ONE, by_session)


class Serial(iq.Scheduler):
    """Serves one request at a time, and records its calls."""

    def __init__(self) -> None:
        self.calls: list[float] = []

    def plan(self, view: iq.View) -> iq.Batch:
        self.calls.append(view.now_s)
        if len(view.running) == 0:
            waiting = view.waiting
            if len(waiting) == 0:
                return iq.Batch()
            return iq.Batch(prefill=[(waiting.id[0], waiting.prompt_left[0])])
        return iq.Batch(decode=view.running.id)


def test_each_replica_has_a_copy_of_a_user_defined_scheduler(door: Door) -> None:
    mine = Serial()
    written = iq.Engine(timing=iq.Constant(1.0), scheduler=mine, kv=iq.KvCache.unlimited())
    assert door.through(ONE, written).written["schedulers"] == [(0, 0, [mine])]
    ((pool, which, objects),) = door.through(ONE, iq.Cluster([engine(), written, written])).written[
        "schedulers"
    ]
    assert (pool, which, len(objects)) == (0, 1, 2)
    assert len({id(scheduler) for scheduler in (mine, *objects)}) == 3
    assert all(type(copy) is Serial and copy.calls is not mine.calls for copy in objects)


@pytest.mark.parametrize("bad", [0, -1, 1.0, "2", True, 2**20])
def test_a_wrong_number_of_threads_is_named(bad: Any) -> None:
    with pytest.raises(iq.ConfigError, match=r"^threads: "):
        iq.simulate(ONE, engine(), threads=bad)


def test_one_request_has_one_key(door: Door) -> None:
    shortest, latest = (iq.ByKey(lambda r: r.prompt_tokens), iq.ByKey(lambda r: -r.id))
    both = iq.Cluster([engine(order=shortest), engine(order=latest)])
    with pytest.raises(iq.ConfigError, match=r"^engines\[1\]: .*engines\[0\].*same ByKey"):
        iq.simulate(ONE, both)
    split = iq.Disaggregated(prefill=(engine(order=shortest), 1), decode=(engine(order=latest), 1), link=LINK)
    with pytest.raises(iq.ConfigError, match=r"^decode: .*prefill.*same ByKey"):
        iq.simulate(ONE, split)
    same = iq.Cluster([engine(order=shortest), engine(order=shortest), engine()])
    assert door.through(ONE, same).columns["queue_key"].tolist() == [10.0]


# runs


def test_threads_change_nothing() -> None:
    workload = arriving(300, 3, iq.dist.Uniform(1, 600), iq.dist.Geometric(9))
    runs = [iq.simulate(workload, iq.Cluster(engine(), replicas=4), threads=n) for n in (None, 1, 3)]
    assert runs[0].requests.equals(runs[1].requests) and runs[0].requests.equals(runs[2].requests)
    assert runs[0].scenario == runs[1].scenario


@pytest.mark.parametrize("router", [iq.Random(), iq.PowerOfTwo()], ids=repr)
def test_random_routers_depend_on_the_seed(router: iq.Router) -> None:
    many = work(*[(float(at), 10, 1) for at in range(64)])
    fleet = iq.Cluster(engine(), replicas=4, router=router)
    one, same, other = (iq.simulate(many, fleet, seed=seed).requests["replica"] for seed in (1, 1, 2))
    assert one.equals(same)
    assert not one.equals(other)
    # each request ends before the next arrives, so that of two idle replicas the lower is selected
    assert set(one) == ({0, 1, 2} if isinstance(router, iq.PowerOfTwo) else {0, 1, 2, 3})


def test_replicas_may_differ() -> None:
    """Iterations of 0.5 s on replica 0, of 1 s on replica 1."""
    quick = iq.Engine(timing=iq.Constant(0.5), scheduler=iq.Sarathi(), kv=iq.KvCache.unlimited())
    two = work((0.0, 10, 4), (0.0, 10, 4))
    result = iq.simulate(two, iq.Cluster([quick, engine()]))
    assert rows(result, "replica", "finish_s") == [(0, 2.0), (1, 4.0)]
    assert result.summary(by="replica").select("replica", "completed", "e2e_max").rows() == [
        (0, 1, 2.0),
        (1, 1, 4.0),
    ]


def test_a_request_that_fits_no_cache_is_rejected_at_its_replica() -> None:
    small = engine(kv=iq.KvCache(tokens=16))
    two = work((0.0, 10, 1), (0.0, 100, 1))
    result = iq.simulate(two, iq.Cluster(small, replicas=2))
    assert rows(result, "replica", "status") == [(0, "finished"), (1, "rejected")]


def test_objectives_belong_to_their_requests_if_rows_are_missing() -> None:
    """Request 1, the next turn, never arrives; request 2 keeps its own objective."""
    three = work(
        (0.0, 999, 1),
        (1.0, 10, 1),
        (2.0, 10, 1),
        session_id=["a", "a", None],
        think_s=[None, 1.0, None],
        ttft_slo_s=[None, 9.0, 0.5],
    )
    result = iq.simulate(three, engine(kv=iq.KvCache(tokens=160)))
    assert rows(result, "id", "status") == [(0, "rejected"), (2, "finished")]
    assert result.summary()["request_goodput"].item() == 0.0  # a second is more than half a second


def test_work_conservation_needs_one_budget_for_all() -> None:
    fleet = iq.simulate(ONE, iq.Cluster([engine(), engine(token_budget=64)]))
    with pytest.raises(iq.ConfigError, match=r"^budget: required, .*: 512, 64"):
        fleet.work_conservation()
    assert fleet.work_conservation(budget=64).budget == 64
    assert iq.simulate(ONE, iq.Cluster(engine(), replicas=3)).work_conservation().budget == 512


def test_the_scenario_repeats_the_run_of_a_cluster() -> None:
    fleet = iq.Cluster(engine(), replicas=2, router=iq.PowerOfTwo())
    two = work((0.0, 10, 3), (0.0, 10, 3))
    result = iq.simulate(two, fleet, seed=4)
    scenario = json.loads(result.scenario)
    assert "engine" not in scenario and "threads" not in scenario
    again = iq.simulate(two, iq.Cluster.from_json(scenario["cluster"]), seed=scenario["run"]["seed"])
    assert again.requests.equals(result.requests)


# user-defined routers


class Scripted(iq.Router):
    def __init__(self, script: Any) -> None:
        self.script = script
        self.seen: list[tuple[Any, ...]] = []

    def route(self, request: iq.Arrival, fleet: iq.Fleet) -> Any:
        arrival = (request.id, request.arrival_s, request.prompt_tokens, request.class_name, request.session)
        self.seen.append((arrival, fleet.requests.tolist(), fleet.running.tolist(), fleet.waiting.tolist()))
        return self.script(request, fleet)


def test_a_user_defined_router_sees_the_fleet_at_each_arrival() -> None:
    """`max_seqs=1`. Request 0 runs on replica 1 until 2, request 1 waits for it, request 2 arrives at 2."""
    mine = Scripted(lambda request, fleet: 1)
    three = work((0.0, 10, 2), (0.5, 11, 1), (2.0, 12, 1), session_id=["a", None, "a"])
    result = iq.simulate(three, iq.Cluster(engine(max_seqs=1), replicas=2, router=mine))
    assert rows(result, "replica", "admitted_s") == [(1, 0.0), (1, 2.0), (1, 3.0)]
    assert mine.seen == [
        ((0, 0.0, 10, "default", 0), [0, 0], [0, 0], [0, 0]),
        ((1, 0.5, 11, "default", None), [0, 1], [0, 1], [0, 0]),
        ((2, 2.0, 12, "default", 0), [0, 1], [0, 0], [0, 1]),
    ]


def test_a_user_defined_router_sees_tokens_and_blocks() -> None:
    """Caches of 4 blocks of 16. A prompt of 20 takes 2; at 1.5 it is computed and one token is emitted."""
    seen = []

    def route(request: iq.Arrival, fleet: iq.Fleet) -> int:
        names = ("tokens", "used_blocks", "free_blocks", "replicas")
        seen.append(tuple(getattr(fleet, name).tolist() for name in names))
        return 0

    small = iq.Cluster(engine(kv=iq.KvCache(tokens=64)), replicas=2, router=Scripted(route))
    network = iq.Network(
        {"first": engine(), "second": small},
        [iq.Workflow("w", stages={"x": iq.Stage("second", prompt=20, output=5)})],
    )
    iq.simulate({"arrival_s": [0.0, 1.5]}, network)
    assert seen == [([0, 0], [0, 0], [4, 4], [1, 2]), ([4, 0], [2, 0], [2, 4], [1, 2])]


def test_a_user_defined_router_can_equal_a_built_in_one() -> None:
    workload = arriving(300, 1, iq.dist.Uniform(1, 900), iq.dist.Geometric(9))
    mine = Scripted(lambda request, fleet: int(np.argmin(fleet.requests)))
    one, other = (
        iq.simulate(workload, iq.Cluster(engine(), replicas=3, router=router)).requests
        for router in (mine, iq.LeastRequests())
    )
    assert one.equals(other)


@pytest.mark.parametrize("bad", [2, -1, 0.0, "0", None, [0]])
def test_a_router_without_a_valid_replica_is_an_error(bad: Any) -> None:
    fleet = iq.Cluster(engine(), replicas=2, router=Scripted(lambda request, fleet: bad))
    with pytest.raises(iq.SimulationError, match="router"):
        iq.simulate(ONE, fleet)


def test_exceptions_of_a_router_pass_unchanged() -> None:
    mine = KeyError("here")

    def route(request: iq.Arrival, fleet: iq.Fleet) -> int:
        raise mine

    with pytest.raises(KeyError) as caught:
        iq.simulate(ONE, iq.Cluster(engine(), replicas=2, router=Scripted(route)))
    assert caught.value is mine


def test_a_class_without_route_is_rejected() -> None:
    class Lost(iq.Router):
        pass

    with pytest.raises(iq.ConfigError, match=r"^router: Lost has no route"):
        iq.Cluster(engine(), router=Lost())


def test_a_user_defined_router_is_written_by_name() -> None:
    described = iq.Cluster(engine(), router=Scripted(None)).to_json()["router"]
    assert described["kind"] == "Python" and described["name"].endswith(".Scripted")


def test_copies_of_a_scheduler_do_not_share_state() -> None:
    mine = Serial()
    written = iq.Engine(timing=iq.Constant(1.0), scheduler=mine, kv=iq.KvCache.unlimited())
    two = work((0.0, 10, 2), (0.0, 10, 2))
    result = iq.simulate(two, iq.Cluster(written, replicas=2))
    assert rows(result, "replica", "finish_s") == [(0, 2.0), (1, 2.0)]
    assert mine.calls == []
    iq.simulate(two, written)
    assert mine.calls != []


# disaggregation


def split(n: int = 1, m: int = 1, link: iq.Link = LINK, **change: Any) -> iq.Disaggregated:
    parts = {"prefill": (engine(), n), "decode": (engine(), m), "link": link}
    return iq.Disaggregated(**{**parts, **change})


def test_a_request_that_fits_no_decode_replica_is_an_error() -> None:
    tight = engine(kv=iq.KvCache(tokens=16, block=16))
    with pytest.raises(iq.ConfigError, match=r"row 1\b"):
        iq.simulate(work((0.0, 10, 2), (0.0, 100, 2)), split(decode=(tight, 1)))


# files and the command line

SCENARIO = """
[workload]
requests = 40
arrivals = { kind = "Poisson", rate = 2 }
prompt = { kind = "Uniform", low = 10, high = 500 }
output = { kind = "Geometric", mean = 5 }

[engine]
kv = "unlimited"
timing = { kind = "Constant", seconds = 1.0 }
scheduler = { kind = "Sarathi" }
"""
BARE = SCENARIO.split("[engine]")[0]
OF_ONE = SCENARIO[len(BARE) :].replace("[engine]", "[[cluster.engines]]")
HANDS = """
[disaggregated]
decode_router = "LeastKv"
prefill = { replicas = 2 }
decode = { replicas = 3 }
link = { latency_s = 0.5, bytes_per_s = 100, bytes_per_token = 10 }
"""


@pytest.mark.parametrize(
    ("text", "system"),
    [
        (SCENARIO, engine()),
        (
            SCENARIO + '[cluster]\nreplicas = 3\nrouter = "PowerOfTwo"\n',
            iq.Cluster(engine(), replicas=3, router=iq.PowerOfTwo()),
        ),
        (SCENARIO + '[cluster]\nrouter = { kind = "Random" }\n', iq.Cluster(engine(), router=iq.Random())),
        (SCENARIO + '[cluster]\nrouter = "PrefixHash"\n', iq.Cluster(engine(), router=iq.PrefixHash())),
        (
            SCENARIO + '[cluster]\nrouter = { kind = "PrefixAffinity", update_s = 0.5 }\n',
            iq.Cluster(engine(), router=iq.PrefixAffinity(update_s=0.5)),
        ),
        (BARE + OF_ONE + OF_ONE, iq.Cluster([engine(), engine()])),
        (SCENARIO + HANDS, split(2, 3, decode_router=iq.LeastKv())),
    ],
)
def test_a_scenario_may_have_a_fleet(text: str, system: Any, tmp_path: Any) -> None:
    path = tmp_path / "scenario.toml"
    path.write_text(text)
    assert Scenario.read(path).system == system


@refused(
    (BARE, r"engine: missing"),
    (BARE + "[cluster]\nreplicas = 2\n", r"cluster\.engines: missing"),
    (SCENARIO + OF_ONE, r"engine: not used"),
    (
        SCENARIO + "[network.engines.large]\nreplicas = 2\n[network.workflows]\n",
        r"network\.engines\.large: unknown field 'replicas'",
    ),
    (SCENARIO + "[cluster]\nreplicas = 0\n", r"cluster\.replicas: "),
    (SCENARIO + HANDS + "[cluster]\n", r"cluster and disaggregated: "),
    (SCENARIO + '[cluster]\nrouter = "Robin"\n', r"cluster\.router: unknown router 'Robin'"),
    (SCENARIO + '[cluster]\nrouter = { kind = "BySession", spill = 0.5 }\n', r"router\.spill: must"),
    (SCENARIO + "[clusters]\n", r"clusters: unknown; did you mean cluster"),
    (SCENARIO + "cluster = 5\n", r"engine: unknown field 'cluster'"),
    ("cluster = 5\n" + SCENARIO, r"cluster: must be a table"),
)
def test_a_wrong_fleet_in_a_scenario_is_named(text: str, tmp_path: Any) -> None:
    path = tmp_path / "scenario.toml"
    path.write_text(text)
    Scenario.read(path)


def test_equal_clusters_copy_and_pickle() -> None:
    import pickle

    for system in (iq.Cluster(engine(), replicas=2), iq.Cluster([engine()]), split()):
        assert pickle.loads(pickle.dumps(system)) == copy.deepcopy(system) == system


def test_a_request_that_ends_with_its_prompt_needs_no_decode_replica() -> None:
    small = engine(kv=iq.KvCache(tokens=16))
    split = iq.Disaggregated(prefill=(engine(), 1), decode=(small, 1), link=iq.Link(0.0, 1.0, 0.0))
    (row,) = rows(iq.simulate(work((0.0, 40, 1)), split), "status", "prefill_replica", "replica")
    assert row == ("finished", None, 0)


def test_the_last_call_of_progress_reports_the_end() -> None:
    calls: list[tuple[int, int]] = []
    iq.simulate(
        ONE, iq.Cluster(engine(), replicas=2), progress=lambda done, total: calls.append((done, total))
    )
    assert calls[-1] == (1, 1)


def test_a_large_fleet_has_fewer_samples_and_not_more_memory() -> None:
    """Sampling starts with at most 2.5 million samples, so that 20,000 replicas have 125 to 250 each."""
    fleet = iq.Cluster(engine(), replicas=20_000)
    timeline = iq.simulate(work((0.0, 10, 1), (1000.0, 10, 1)), fleet).timeline
    assert 100 <= timeline["time_s"].n_unique() <= 250
    with pytest.raises(iq.SimulationError, match="timeline_s is too short"):
        iq.simulate(work((0.0, 10, 1), (1000.0, 10, 1)), fleet, timeline_s=0.1)


def test_first_tokens_of_a_server_come_from_the_decode_side() -> None:
    # Prefill 0.1 s, hand-off 0.05 + 1000 · 1000 / 1e7 = 0.15 s, decode 0.1 s, one sequence at a time.
    # The first request decodes in [0.25, 0.75); the second waits for it until 0.75 s.
    rows = {"arrival_s": [0.0, 0.0], "prompt_tokens": [1000, 1000], "output_tokens": [5, 5]}
    for options, times in (({}, [0.35, 0.85]), ({"first_token": "prefill"}, [0.1, 0.2])):
        served = iq.Engine.on(
            "llama-3.1-8b",
            "h100-80gb",
            timing=iq.Constant(0.1),
            scheduler=iq.VllmV1(max_seqs=1, token_budget=4096, async_scheduling=False),
            kv=iq.KvCache(tokens=100_000),
            overhead=iq.Overhead(),
            api_s=0,
            **options,
        )
        link = iq.Link(latency_s=0.05, bytes_per_s=1e7, bytes_per_token=1000, concurrent=None)
        fleet = iq.Disaggregated(prefill=(served, 1), decode=(served, 1), link=link)
        assert fleet.prefill[0] is fleet.decode[0] and fleet.prefill[0].on_card["model"] == "llama-3.1-8b"
        assert iq.Disaggregated.from_json(fleet.to_json()) == fleet
        run = iq.simulate(rows, fleet)
        assert run.requests["ttft_s"].to_list() == pytest.approx(times)
        (finding,) = [finding for finding in run.findings if finding.kind == "first-token"]
        assert finding.data == {"first_token": options.get("first_token", "decode")}


def test_an_engine_with_an_open_convention_follows_the_other_side() -> None:
    served = iq.Engine.on("llama-3.1-8b", "h100-80gb")
    plain = dataclasses.replace(served, first_token="prefill")
    for sides in ((served, plain), (plain, served)):
        fleet = iq.Disaggregated(
            prefill=(sides[0], 1), decode=(sides[1], 1), link=iq.Link(0.0, 1e9, bytes_per_token=1)
        )
        assert fleet.prefill[0].first_token == fleet.decode[0].first_token == "prefill"
    assert served.first_token == "prefill"
