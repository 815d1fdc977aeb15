"""Networks: descriptions, conversion of jobs to rows, and runs computed by hand."""

import json
import math
import pickle
import time
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import polars as pl
import pytest

import inferq as iq
from inferq import _core
from inferq.scenario import Scenario
from inferq.systems.network_jobs import expanded
from inferq.systems.pools import pools_of
from inferq.theory.capacities.network_capacity import network_capacity
from inferq.workload.distributions import DurationDistribution

from .refusals import refused
from .slots import engine, rows


def stage(at: str = "a", prompt: Any = 10, output: Any = 2, **rest: Any) -> iq.Stage:
    return iq.Stage(at, prompt=prompt, output=output, **rest)


FORK_JOIN = iq.Workflow(
    "agent",
    stages={
        "plan": stage("a", output=3),
        "search": stage("b", output=2, after="plan", includes="plan"),
        "code": stage("c", output=5, after="plan", includes="plan"),
        "answer": stage("a", prompt=4, output=1, after=["search", "code"], includes=["search", "plan"]),
    },
)
AGENTS = iq.Network({"a": engine(), "b": engine(), "c": engine()}, [FORK_JOIN])


def rybko_stolyar(priority: bool) -> iq.Network:
    """li2025 (4.4), (4.5): each engine prefers the last stages of jobs, or the first ones."""

    def agent(last: str, first: str) -> iq.Engine:
        order = [last, first] if priority else [first, last]
        inner = iq.Sarathi(token_budget=768, max_seqs=100_000)
        scheduler = iq.ClassPriority(order=order, inner=inner)
        return iq.Engine(timing=iq.Constant(1.0), scheduler=scheduler, kv=iq.KvCache.unlimited())

    def two(name: str, first: str, second: str) -> iq.Workflow:
        return iq.Workflow(
            name,
            stages={
                "short": stage(first, 32, 32, class_name=f"{name} short"),
                "long": stage(second, 512, 32, after="short", class_name=f"{name} long"),
            },
        )

    engines = {"one": agent("B long", "A short"), "two": agent("A long", "B short")}
    return iq.Network(engines, [two("A", "one", "two"), two("B", "two", "one")])


# descriptions


@pytest.mark.parametrize(
    "network",
    [
        AGENTS,
        rybko_stolyar(True),
        iq.Network(
            {
                "many": iq.Cluster(engine(), replicas=2, router=iq.LeastTokens()),
                "split": iq.Disaggregated(
                    prefill=(engine(), 1), decode=(engine(), 2), link=iq.Link(0.1, 1e9, 1000)
                ),
            },
            [
                iq.Workflow(
                    "w",
                    stages={
                        "z": stage("many", iq.dist.Uniform(5, 9), iq.dist.Geometric(3)),
                        "y": stage("split", after="z", delay_s=1.5, class_name="slow"),
                    },
                )
            ],
        ),
    ],
    ids=["fork-join", "rybko-stolyar", "nested"],
)
def test_a_network_is_read_back_from_its_description(network: iq.Network) -> None:
    described = json.loads(json.dumps(network.to_json()))
    again = iq.Network.from_json(described)
    assert again == network
    assert list(again.engines) == list(network.engines)
    assert [list(flow.stages) for flow in again.workflows] == [
        list(flow.stages) for flow in network.workflows
    ]
    assert again.to_json() == described
    assert hash(again) == hash(network)
    assert pickle.loads(pickle.dumps(network)) == network


def test_the_order_of_engines_and_stages_is_part_of_a_network() -> None:
    turned = iq.Network(dict(reversed(list(AGENTS.engines.items()))), AGENTS.workflows)
    assert turned != AGENTS


@refused(
    ({"prompt": 0}, r"^prompt: must be from 1 "),
    ({"prompt": 2**31}, r"^prompt: "),
    ({"prompt": 1.5}, r"^prompt: "),
    ({"output": 0}, r"^output: must be from 1 "),
    ({"output": 0, "includes": ("x",)}, r"^output: must be from 1 "),
    ({"output": iq.dist.Poisson(1)}, r"^output: "),
    ({"prompt": iq.dist.Empirical({"prompt_tokens": [1], "output_tokens": [1]})}, r"^prompt: .*one length"),
    ({"delay_s": -1.0}, r"^delay_s: must be non-negative"),
    ({"delay_s": math.inf}, r"^delay_s: "),
    ({"delay_s": "1s"}, r"^delay_s: "),
    ({"after": [1]}, r"^after\[0\]: "),
    ({"after": ["x", "x"]}, r"^after: duplicate stage"),
    ({"class_name": ""}, r"^class_name: "),
    ({"at": ""}, r"^engine: "),
    ({"at": engine()}, r"^engine: "),
)
def test_a_wrong_field_of_a_stage_is_named(change: dict[str, Any]) -> None:
    stage(**change)


@refused(
    ({}, r"^workflows\.w\.stages: must not be empty"),
    (5, r"^workflows\.w\.stages: "),
    ({"x": 5}, r"^workflows\.w\.stages\.x: must be Stage"),
    ({"": stage()}, r"^workflows\.w\.stages: names must be non-empty text, got ''"),
    ({"x": stage(after="y")}, r"^workflows\.w\.stages\.x\.after\[0\]: unknown stage 'y'"),
    ({"x": stage(includes="y")}, r"^workflows\.w\.stages\.x\.includes\[0\]: unknown stage 'y'"),
    ({"x": stage(after="x")}, r"^workflows\.w\.stages\.x\.after: .*cycle.*: x$"),
    (
        {"r": stage(), "x": stage(after=["r", "z"]), "y": stage(after="x"), "z": stage(after="y")},
        r"^workflows\.w\.stages\.x\.after: .*cycle.*: x, y, z$",
    ),
    (
        {"x": stage(), "y": stage(includes="x")},
        r"^workflows\.w\.stages\.y\.includes\[0\]: 'x' may not have finished before 'y'",
    ),
    ({"x": stage(), "y": stage(after="x", includes="y")}, r"^workflows\.w\.stages\.y\.includes\[0\]: "),
)
def test_a_wrong_workflow_is_named(stages: Any) -> None:
    iq.Workflow("w", stages=stages)


W = iq.Workflow("w", stages={"x": stage("a")})


@refused(
    ({}, [W], r"^engines: must not be empty"),
    ([engine()], [W], r"^engines: must be a table"),
    ({"a": 5}, [W], r"^engines\.a: must be Engine"),
    ({"a": AGENTS}, [W], r"^engines\.a: must be Engine"),
    ({1: engine()}, [W], r"^engines: names must be non-empty text, got 1"),
    ({"a": engine()}, [], r"^workflows: must not be empty"),
    ({"a": engine()}, W, r"^workflows: must be a list"),
    ({"a": engine()}, [W, 5], r"^workflows\[1\]: must be Workflow"),
    ({"a": engine()}, [W, W], r"^workflows\[1\]\.name: duplicate name 'w'"),
    ({"aa": engine()}, [W], r"^workflows\.w\.stages\.x\.engine: unknown engine 'a'; did you mean aa"),
)
def test_a_wrong_network_is_named(engines: Any, workflows: Any) -> None:
    iq.Network(engines, workflows)


X = ("workflows", "w", "stages", "x")
AT_X = r"^network\.workflows\.w\.stages\.x"


@refused(
    (("engines", "a"), {"kind": "Clutser"}, r"^network\.engines\.a\.kind: .*Cluster"),
    (("engines", "a"), {"timing": 5}, r"^network\.engines\.a\.scheduler: missing"),
    (("engines",), 5, r"^network\.engines: "),
    ((*X, "output"), 0, AT_X + r"\.output: "),
    ((*X, "prompt"), {"kind": "Fixd"}, AT_X + r"\.prompt\.kind: .*Fixed"),
    ((*X, "afterr"), "y", AT_X + ": unknown field"),
    ((*X, "after"), "y", AT_X + r"\.after\[0\]: unknown stage"),
    (("workflows", "w", "stage"), {}, r"^network\.workflows\.w: unknown field 'stage'"),
    (("workflow",), {}, r"^network: unknown field 'workflow'; did you mean workflows"),
)
def test_a_wrong_description_of_a_network_is_named(path: tuple[str, ...], value: Any) -> None:
    described = iq.Network({"a": engine()}, [W]).to_json()
    inner = described
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    iq.Network.from_json(described)


# conversion of jobs to rows


def test_a_job_is_a_row_for_each_stage() -> None:
    jobs = expanded(AGENTS, iq.Workload({"arrival_s": [0.0, 2.0]}).frame, 0)
    assert jobs.frame["arrival_s"].to_list() == [0.0] * 4 + [2.0] * 4
    assert jobs.frame["prompt_tokens"].to_list() == [10, 13, 13, 9] * 2  # with the outputs they include
    assert jobs.frame["output_tokens"].to_list() == [3, 2, 5, 1] * 2
    assert jobs.frame["class"].to_list() == ["agent"] * 8
    assert jobs.flow.parents.tolist() == [0, 1, 1, 2] * 2
    assert jobs.flow.children_start.tolist() == [0, 2, 3, 4, 4, 6, 7, 8, 8]
    assert jobs.flow.children.tolist() == [1, 2, 3, 3, 5, 6, 7, 7]
    assert jobs.pool.tolist() == [0, 1, 2, 0] * 2
    assert jobs.job.tolist() == [0] * 4 + [1] * 4
    kinds = {name: column.dtype for name, column in jobs.flow.columns().items()}
    whole = dict.fromkeys(("parents", "children_start", "children"), np.dtype(np.uint32))
    assert kinds == {**whole, "delay_s": np.dtype(np.float64)}


def test_workflows_of_different_sizes_follow_each_other() -> None:
    single = iq.Workflow("single", stages={"only": stage("b", prompt=7, delay_s=2.5, class_name="fast")})
    network = iq.Network(AGENTS.engines, [FORK_JOIN, single])
    frame = iq.Workload({"arrival_s": [0.0, 1.0, 1.0], "class": ["single", "agent", "single"]}).frame
    jobs = expanded(network, frame, 0)
    assert jobs.first.tolist() == [0, 1, 5, 6]
    assert jobs.frame["prompt_tokens"].to_list() == [7, 10, 13, 13, 9, 7]
    assert jobs.frame["class"].to_list() == ["fast", "agent", "agent", "agent", "agent", "fast"]
    assert jobs.frame["class"].dtype == pl.Enum(["agent", "fast"])
    assert jobs.flow.children_start.tolist() == [0, 0, 2, 3, 4, 4, 4]
    assert jobs.flow.children.tolist() == [2, 3, 4, 4]
    assert jobs.flow.delay_s.tolist() == [2.5, 0, 0, 0, 0, 2.5]
    for name, expected in [("warmup", [0, 1, 5, 6, 6]), ("cooldown", [0, 1, 5, 6, 6])]:
        assert [jobs.cut(name, {"requests": n})["requests"] for n in range(5)] == expected
    assert jobs.cut("warmup", {"seconds": 3.0}) == {"seconds": 3.0}


def test_pools_are_counted_over_all_engines() -> None:
    split = iq.Disaggregated(prefill=(engine(), 1), decode=(engine(), 2), link=iq.Link(0.1, 1.0, 0))
    stages = {name: stage(name) for name in "xyz"}
    workflow = iq.Workflow("w", stages=stages)
    network = iq.Network({"x": split, "y": iq.Cluster(engine()), "z": split}, [workflow])
    assert [pool.hands_to and pool.hands_to[0] for pool in pools_of(network)] == [1, None, None, 4, None]
    jobs = expanded(network, iq.Workload({"arrival_s": [0.0]}).frame, 0)
    assert jobs.pool.tolist() == [0, 2, 3]


def drawn(output: Any, *, other: Any = 5, seed: int = 0, jobs: int = 50) -> tuple[list[int], list[int]]:
    stages = {"x": stage("a", output=output), "y": stage("a", output=other, after="x")}
    network = iq.Network({"a": engine()}, [iq.Workflow("w", stages=stages)])
    tokens = expanded(network, iq.Workload({"arrival_s": [0.0] * jobs}).frame, seed).frame["output_tokens"]
    return tokens[::2].to_list(), tokens[1::2].to_list()


def test_each_stage_has_draws_of_its_own() -> None:
    lengths = iq.dist.Uniform(1, 10**6)
    first, second = drawn(lengths, other=lengths)
    assert first != second
    assert drawn(lengths)[0] == first  # independent of the other stage
    assert drawn(lengths, jobs=20)[0] == first[:20]  # independent of the other jobs
    assert drawn(lengths, seed=1)[0] != first


@dataclass(frozen=True, slots=True)
class Steps(DurationDistribution):
    """Half a second more for every job."""

    part: ClassVar[str | None] = None

    first_s: float = 0.5

    def draw(self, n: int, seed: int, stream: int) -> Any:
        return self.first_s + np.arange(n) / 2


def test_delays_may_be_drawn() -> None:
    stages = {"x": stage(), "y": stage(after="x", delay_s=Steps())}
    network = iq.Network({"a": engine()}, [iq.Workflow("w", stages=stages)])
    jobs = expanded(network, iq.Workload({"arrival_s": [0.0] * 3}).frame, 0)
    assert jobs.flow.delay_s.tolist() == [0, 0.5, 0, 1.0, 0, 1.5]
    wrong = iq.Workflow("w", stages={"x": stage(delay_s=Steps(-0.5))})
    with pytest.raises(iq.TraceError, match=r"^row 0: stage 'x' of workflow 'w' has a delay of -0\.5 s"):
        iq.simulate({"arrival_s": [0.0]}, iq.Network({"a": engine()}, [wrong]))


def test_columns_of_a_job_apply_to_every_stage() -> None:
    columns = {
        "priority": [3, 4],
        "patience_s": [None, 2.0],
        "itl_slo_s": [0.5, None],
        "session_id": ["s", "t"],
    }
    jobs = expanded(AGENTS, iq.Workload({"arrival_s": [0.0, 1.0], **columns}).frame, 0)
    for name, (first, second) in columns.items():
        assert jobs.frame[name].to_list() == [first] * 4 + [second] * 4
    alone = expanded(AGENTS, iq.Workload({"arrival_s": [0.0, 1.0]}).frame, 0)
    assert alone.frame["session_id"].to_list() == [0] * 4 + [1] * 4  # a job is a session


@refused(
    ({"prompt_tokens": [1]}, r"^workload\.prompt_tokens: .* the stages .* define lengths"),
    ({"output_tokens": [1]}, r"^workload\.output_tokens: .* the stages .* define lengths"),
    ({"session_id": ["s"], "think_s": [1.0]}, r"^workload\.think_s: .*open_loop"),
    ({"class": ["agnet"]}, iq.TraceError, r"^row 0: unknown workflow 'agnet' .*did you mean agent"),
)
def test_a_column_that_jobs_do_not_have_is_named(columns: Any) -> None:
    iq.simulate({"arrival_s": [0.0], **columns}, AGENTS)


def test_jobs_require_arrivals_and_a_class_for_several_workflows() -> None:
    with pytest.raises(iq.TraceError, match=r"no arrival_s: .*with_arrivals"):
        iq.simulate({"priority": [1]}, AGENTS)
    with pytest.raises(iq.ConfigError, match=r"^workload\.class: .*A, B"):
        iq.simulate({"arrival_s": [0.0]}, rybko_stolyar(True))


def test_a_stage_that_is_too_long_is_named() -> None:
    long = {"x": stage(output=2**31 - 100), "y": stage(prompt=90, output=50, after="x", includes="x")}
    network = iq.Network({"a": engine()}, [iq.Workflow("w", stages=long)])
    with pytest.raises(iq.TraceError, match=r"^row 0: stage 'y' of workflow 'w' has 2147483638 prompt"):
        iq.simulate({"arrival_s": [0.0]}, network)


def test_engines_of_a_network_may_have_different_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, int]] = []
    by_prompt = iq.ByKey(lambda request: calls.append((request.id, request.prompt_tokens)) or 5)
    engines = {"a": engine(order=by_prompt), "b": engine(order=iq.ByKey(lambda r: -r.id)), "c": engine()}
    given: dict[str, Any] = {}

    def door(scenario: str, columns: dict[str, Any], *rest: Any) -> Any:
        given.update(columns)
        raise InterruptedError

    monkeypatch.setattr(_core, "simulate", door)
    with pytest.raises(InterruptedError):
        iq.simulate({"arrival_s": [0.0]}, iq.Network(engines, [FORK_JOIN]))
    assert calls == [(0, 10), (3, 9)]
    assert given["queue_key"].tolist() == [5, -1, 0, 5]


def test_a_million_jobs_become_rows_in_seconds() -> None:
    frame = iq.Workload({"arrival_s": np.arange(1e6)}).frame
    started = time.perf_counter()
    assert expanded(AGENTS, frame, 0).frame.height == 4_000_000
    assert time.perf_counter() - started < 20


# runs


def test_a_join_waits_for_the_later_branch() -> None:
    """plan [0, 3); search [3, 5), code [3, 8); answer [8, 9)."""
    result = iq.simulate({"arrival_s": [0.0]}, AGENTS)
    assert rows(result, "id", "job", "stage", "engine", "replica", "arrival_s", "finish_s") == [
        (0, 0, "plan", "a", 0, 0.0, 3.0),
        (1, 0, "search", "b", 1, 3.0, 5.0),
        (2, 0, "code", "c", 2, 3.0, 8.0),
        (3, 0, "answer", "a", 0, 8.0, 9.0),
    ]
    assert result.requests.columns[:4] == ["id", "job", "stage", "engine"]
    assert result.jobs.row(0, named=True) == {
        "job": 0,
        "workflow": "agent",
        "status": "finished",
        "measured": True,
        "arrival_s": 0.0,
        "finish_s": 9.0,
        "left_s": 9.0,
        "e2e_s": 9.0,
        "stages": 4,
        "finished_stages": 4,
        "prompt_tokens": 45,
        "output_tokens": 11,
    }


def test_a_tool_takes_its_time() -> None:
    """x [1, 3); y arrives 0.25 s later, [3.25, 5.25); z 2 s after the job, [2, 4)."""
    stages = {
        "x": stage("a", delay_s=1.0),
        "y": stage("b", after="x", delay_s=0.25),
        "z": stage("c", delay_s=2.0),
    }
    network = iq.Network(AGENTS.engines, [iq.Workflow("w", stages=stages)])
    result = iq.simulate({"arrival_s": [0.0, 100.0]}, network)
    assert rows(result, "stage", "arrival_s", "finish_s")[:3] == [
        ("x", 1.0, 3.0),
        ("y", 3.25, 5.25),
        ("z", 2.0, 4.0),
    ]
    assert result.jobs["e2e_s"].to_list() == [5.25, 5.25]


def test_a_stage_arrives_at_the_end_of_its_dependencies() -> None:
    """One engine: the batch formed at the end of the first stage can include the second."""
    stages = {"x": stage(), "y": stage(after="x")}
    network = iq.Network({"a": engine(max_seqs=1)}, [iq.Workflow("w", stages=stages)])
    result = iq.simulate({"arrival_s": [0.0]}, network)
    assert rows(result, "arrival_s", "queue_s", "finish_s") == [(0.0, 0.0, 2.0), (2.0, 0.0, 4.0)]


def test_jobs_follow_the_network_of_rybko_and_stolyar() -> None:
    """Short tasks of 32 slots overlap; within a budget of 768 every prompt takes one slot."""
    result = iq.simulate({"arrival_s": [0.0, 0.0], "class": ["A", "B"]}, rybko_stolyar(True))
    assert rows(result, "job", "stage", "engine", "class", "arrival_s", "finish_s") == [
        (0, "short", "one", "A short", 0.0, 32.0),
        (0, "long", "two", "A long", 32.0, 64.0),
        (1, "short", "two", "B short", 0.0, 32.0),
        (1, "long", "one", "B long", 32.0, 64.0),
    ]
    assert result.jobs["workflow"].to_list() == ["A", "B"]


def test_preferring_last_stages_is_unstable_and_first_stages_is_stable() -> None:
    """li2025 §4.3 at load 0.9: 0.9·768 / 608 jobs per slot in total, half of each type.

    Each engine serves every job's 64 or 544 tokens, 608 for a pair A and B. Under the bad priority the jobs
    in the network grow with the length of the run, under the other they do not.
    """
    rate = 2 * 0.9 * 768 / 608
    left: dict[tuple[bool, int], int] = {}
    for slots in (3_000, 12_000):
        draw = np.random.default_rng(5)
        arrival_s = np.cumsum(draw.exponential(1 / rate, int(rate * slots))).round(6)
        named = draw.choice(["A", "B"], arrival_s.size)
        for bad in (True, False):
            jobs = {"arrival_s": arrival_s, "class": named}
            run = iq.simulate(jobs, rybko_stolyar(bad), horizon_s=float(slots))
            left[bad, slots] = run.jobs.filter(status="unfinished").height
    assert left[True, 12_000] > 5 * left[False, 12_000]
    assert left[True, 12_000] > 2 * left[True, 3_000]


def test_a_job_with_a_rejected_stage_is_rejected_and_its_stages_are_accounted() -> None:
    """search has 13 prompt tokens and no room; code continues until 8; answer never arrives."""
    engines = {**AGENTS.engines, "b": engine(kv=iq.KvCache(tokens=8, block=1))}
    result = iq.simulate({"arrival_s": [0.0]}, iq.Network(engines, [FORK_JOIN]))
    assert rows(result, "stage", "status", "left_s") == [
        ("plan", "finished", 3.0),
        ("search", "rejected", 3.0),
        ("code", "finished", 8.0),
    ]
    row = result.jobs.select("status", "finish_s", "left_s", "e2e_s", "stages", "finished_stages")
    assert row.rows() == [("rejected", None, 8.0, None, 3, 2)]


def test_a_job_ends_with_its_last_stage() -> None:
    engines = {**AGENTS.engines, "b": engine(kv=iq.KvCache(tokens=8, block=1))}
    network = iq.Network(engines, [FORK_JOIN])
    cut = iq.simulate({"arrival_s": [0.0]}, network, horizon_s=7.0)
    assert cut.jobs.select("status", "left_s").rows() == [("rejected", None)]
    early = iq.simulate({"arrival_s": [0.0, 50.0]}, AGENTS, horizon_s=7.0)
    row = early.jobs.select("status", "left_s", "stages", "finished_stages")
    assert row.rows() == [("unfinished", None, 3, 2)]


def test_a_job_whose_stage_loses_patience_is_abandoned() -> None:
    """`max_seqs=1`: job 0 runs until 2, and job 1 waits half a second."""
    network = iq.Network({"a": engine(max_seqs=1)}, [W])
    result = iq.simulate({"arrival_s": [0.0, 0.0], "patience_s": [None, 0.5]}, network)
    assert result.jobs.select("status", "left_s").rows() == [("finished", 2.0), ("abandoned", 0.5)]


def test_a_job_exists_before_its_first_stage() -> None:
    late = iq.Workflow("w", stages={"x": stage("a", delay_s=5.0)})
    network = iq.Network({"a": engine()}, [late])
    result = iq.simulate({"arrival_s": [0.0, 1.0, 9.0]}, network, horizon_s=2.0)
    assert result.requests.height == 0
    assert result.jobs.select("job", "status", "measured", "stages").rows() == [
        (0, "unfinished", True, 0),
        (1, "unfinished", True, 0),
    ]


def test_warm_up_and_cool_down_count_jobs() -> None:
    single = iq.Workflow("single", stages={"only": stage("b")})
    network = iq.Network(AGENTS.engines, [FORK_JOIN, single])
    jobs = {"arrival_s": [0.0, 20.0, 40.0, 60.0], "class": ["single", "agent", "single", "agent"]}
    result = iq.simulate(jobs, network, warmup=1, cooldown=1)
    assert result.jobs["measured"].to_list() == [False, True, True, False]
    assert result.requests.filter("measured")["job"].to_list() == [1, 1, 1, 1, 2]
    assert json.loads(result.scenario)["run"]["warmup"] == 1
    seconds = iq.simulate(jobs, network, warmup="20s", cooldown="1s")
    assert seconds.jobs["measured"].to_list() == [False, True, True, False]


def test_summaries_by_stage_and_engine() -> None:
    result = iq.simulate({"arrival_s": [0.0, 100.0]}, AGENTS)
    assert result.summary(by="stage").select("stage", "completed", "e2e_max").rows() == [
        ("plan", 2, 3.0),
        ("search", 2, 2.0),
        ("code", 2, 5.0),
        ("answer", 2, 1.0),
    ]
    by_engine = result.summary(by=["engine"])
    assert by_engine.select("engine", "completed").rows() == [("a", 4), ("b", 2), ("c", 2)]
    assert result.summary(by="job")["completed"].to_list() == [4, 4]


def test_objectives_of_a_job_apply_to_its_stages() -> None:
    jobs = {"arrival_s": [0.0, 100.0], "ttft_slo_s": [0.5, None]}  # every stage takes a second
    summary = iq.simulate(jobs, AGENTS).summary(by="job")
    assert summary["request_goodput"].to_list() == [0.0, 4 / 109.0]


def test_only_networks_have_jobs() -> None:
    one = {"arrival_s": [0.0], "prompt_tokens": [1], "output_tokens": [1]}
    with pytest.raises(iq.ConfigError, match=r"^jobs: .*Network"):
        _ = iq.simulate(one, engine()).jobs


def test_jobs_may_be_synthetic() -> None:
    workload = iq.Workload.synthetic(requests=5, arrivals=iq.dist.Deterministic(rate=0.01))
    result = iq.simulate(workload, AGENTS)
    assert result.jobs.select("status", "e2e_s").rows() == [("finished", 9.0)] * 5


def test_a_written_network_repeats_its_run(tmp_path: Any) -> None:
    result = iq.simulate({"arrival_s": [0.0, 1.0]}, AGENTS)
    place = result.write(tmp_path)
    assert pl.read_parquet(place / "jobs.parquet").equals(result.jobs)
    network = iq.Network.from_json(json.loads((place / "scenario.json").read_text())["network"])
    again = iq.simulate(pl.read_parquet(place / "workload.parquet"), network)
    assert again.requests.equals(result.requests)
    one = {"arrival_s": [0.0], "prompt_tokens": [1], "output_tokens": [1]}
    iq.simulate(one, engine()).write(tmp_path)
    assert not (place / "jobs.parquet").exists()


SCENARIO = """
[workload]
requests = 20
arrivals = { kind = "Deterministic", rate = 0.01 }
classes = { agent = 0.5, ask = 0.5 }

[engine]
kv = "unlimited"
timing = { kind = "Constant", seconds = 1.0 }
scheduler = { kind = "Sarathi" }

[network.engines.planner]
kind = "Cluster"
replicas = 2

[network.engines.writer]
kind = "Disaggregated"
prefill = { replicas = 1 }
decode = { replicas = 1 }
link = { latency_s = 0.5, bytes_per_s = 100, bytes_per_token = 10 }

[network.workflows.agent.stages]
plan = { engine = "planner", prompt = 10, output = { kind = "Fixed", tokens = 3 } }
write = { engine = "writer", prompt = 5, output = 4, after = ["plan"], includes = ["plan"], delay_s = 0.5 }

[network.workflows.ask.stages.answer]
engine = "planner"
prompt = 10
output = 2
"""


def test_a_scenario_may_have_a_network(tmp_path: Any) -> None:
    path = tmp_path / "scenario.toml"
    path.write_text(SCENARIO)
    network = Scenario.read(path).system
    assert isinstance(network, iq.Network)
    link = iq.Link(0.5, 100, 10)
    split = iq.Disaggregated(prefill=(engine(), 1), decode=(engine(), 1), link=link)
    assert dict(network.engines) == {"planner": iq.Cluster(engine(), replicas=2), "writer": split}
    assert [workflow.name for workflow in network.workflows] == ["agent", "ask"]
    result = Scenario.read(path).run()
    assert set(result.jobs["workflow"]) == {"agent", "ask"}
    # plan 3 s, tool 0.5 s; prompt of 5 + 3 tokens 1 s, hand-off 0.5 + 0.8 s, three more tokens: total 8.8 s
    assert set(result.jobs.filter(workflow="agent")["e2e_s"].round(9)) == {8.8}
    assert set(result.jobs.filter(workflow="ask")["e2e_s"].round(9)) == {2.0}


# Recorded lengths


def test_recorded_lengths_repeat_the_run_that_drew_them(tmp_path: Any) -> None:
    """Stage k draws its prompts from stream 3·k and its outputs from 3·k + 1; a list, an array, a Series."""
    jobs, seed = 40, 5
    laws = {
        "plan": (iq.dist.Uniform(5, 30), iq.dist.Geometric(4)),
        "look": (iq.dist.Geometric(20), iq.dist.Uniform(1, 6)),
    }
    ask = {"ask": (iq.dist.Uniform(1, 50), iq.dist.Geometric(9))}
    place = np.arange(jobs) % 3 == 0  # every third job is a question

    def network(lengths: Any) -> iq.Network:
        made = {name: stage("a", *lengths(k, *law)) for k, (name, law) in enumerate((laws | ask).items())}
        look = stage("b", made["look"].prompt, made["look"].output, after="plan", includes="plan")
        agent = iq.Workflow("agent", stages={"plan": made["plan"], "look": look})
        return iq.Network(
            {"a": engine(), "b": engine()}, [agent, iq.Workflow("question", stages={"ask": made["ask"]})]
        )

    def recorded(kind: Any) -> Any:
        def column(k: int, *law: Any) -> list[Any]:
            mine = place if k == 2 else ~place
            return [kind(one.draw_column(jobs, seed, 3 * k + part)[mine]) for part, one in enumerate(law)]

        return column

    workload = {
        "arrival_s": np.arange(jobs) * 2.0,
        "class": np.where(place, "question", "agent").tolist(),
    }
    drawn = iq.simulate(workload, network(lambda _, *law: law), seed=seed)
    for kind in (np.asarray, pl.Series, list):
        given = iq.simulate(workload, network(recorded(kind)), seed=seed)
        assert given.requests.equals(drawn.requests) and given.jobs.equals(drawn.jobs)
    given.write(tmp_path)
    again = Scenario.read(tmp_path / "scenario.json").run()
    assert again.requests.equals(drawn.requests) and again.scenario == given.scenario


def test_theory_uses_the_mean_of_recorded_lengths() -> None:

    seen = iq.Workflow("seen", stages={"x": stage(prompt=[1, 2, 6], output=[3, 3, 9])})
    policy = iq.Sarathi(token_budget=100)
    one = iq.Engine(timing=iq.Constant(1.0), scheduler=policy, kv=iq.KvCache.unlimited())
    loads = network_capacity({"seen": 2.0}, iq.Network({"a": one}, [seen]))
    assert loads.engines[0].tokens_per_s == 2.0 * (3 + 5 - 1)  # the prefill emits the first token


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([], "prompt: must not be empty"),
        ([5, -1], r"prompt\[1\]: must be a non-negative integer, got -1"),
        ([5, 0], r"prompt\[1\]: must be from 1 to"),
        ([5, 2**31], r"prompt\[1\]: must be from 1 to"),
        ([5, 2.0], r"prompt\[1\]: must be a non-negative integer"),
        (np.array([5.0, 2.0]), r"prompt\[0\]: must be a non-negative integer"),
        (np.array([[5, 2]]), "prompt: must be"),
        (pl.Series([5, None]), r"prompt\[1\]: must be a non-negative integer"),
        ([5, True], r"prompt\[1\]: must be a non-negative integer"),
        (["5"], r"prompt\[0\]: must be a non-negative integer"),
        ("55", "prompt: must be"),
    ],
)
def test_wrong_recorded_lengths_are_named(lengths: Any, message: str) -> None:
    with pytest.raises(iq.ConfigError, match=message):
        stage(prompt=lengths)


@pytest.mark.parametrize("count", [1, 3])
def test_recorded_lengths_must_match_the_number_of_jobs(count: int) -> None:
    workflow = iq.Workflow("seen", stages={"x": stage(output=[2] * count)})
    message = (
        rf"workflows\.seen\.stages\.x\.output: must have a length .* 2 jobs of this workflow, got {count}"
    )
    with pytest.raises(iq.ConfigError, match=message):
        iq.simulate({"arrival_s": [0.0, 1.0]}, iq.Network({"a": engine()}, [workflow]))


def test_a_stage_that_may_not_have_finished_is_rejected_in_any_graph() -> None:
    """Compared with the transitive closure of `after`, in graphs with stages in any order."""
    draw = np.random.default_rng(18)
    taken = 0
    for _ in range(150):
        count = int(draw.integers(2, 9))
        names = [f"s{k}" for k in draw.permutation(count)]
        after = {
            name: [earlier for earlier in names[:k] if draw.random() < 0.35] for k, name in enumerate(names)
        }
        before: dict[str, set[str]] = {}
        for name in names:
            before[name] = set(after[name]).union(*(before[earlier] for earlier in after[name]))
        here, other = draw.choice(names, 2, replace=False).tolist()
        listed = draw.permutation(names).tolist()
        stages = {name: stage(after=after[name], includes=other if name == here else ()) for name in listed}
        fits = other in before[here]
        taken += fits
        if not fits:
            with pytest.raises(iq.ConfigError, match=rf"stages\.{here}\.includes\[0\]: '{other}' may not"):
                iq.Workflow("any", stages=stages)
            continue
        workflow = iq.Workflow("any", stages=stages)
        seen: set[str] = set()
        for name in workflow.in_order():
            assert before[name] <= seen
            seen.add(name)
    assert 20 < taken < 130


def test_the_load_of_a_long_chain_is_the_sum_of_its_prompts_and_outputs() -> None:
    """Deeper than Python's stack: stage k begins with the 7·k tokens before it and adds 5 and 2."""
    count = 3000
    stages = {
        f"s{k}": iq.Stage(
            "a",
            prompt=5,
            output=2,
            after=f"s{k - 1}" if k else (),
            continues=f"s{k - 1}" if k else None,
        )
        for k in range(count)
    }
    policy = iq.research.KFcfs(token_budget=100, k_prefill=100, k_decode=100)
    alone = iq.Engine(
        timing=iq.Constant(1.0), scheduler=policy, kv=iq.KvCache.unlimited(), first_token="decode"
    )
    capacity = network_capacity({"w": 1e-6}, iq.Network({"a": alone}, [iq.Workflow("w", stages=stages)]))
    assert capacity.load == pytest.approx(1e-6 * 7 * count * (count + 1) / 2 / 100)
