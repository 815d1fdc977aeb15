"""Autoscaling and failures: descriptions, errors, user-defined policies, results."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import inferq as iq
from inferq.reports import run_tables
from inferq.results.metric import Metric
from inferq.simulation.live import Live, Progress

ENGINE = iq.Engine(timing=iq.Constant(0.5), scheduler=iq.Sarathi(max_seqs=2), kv=iq.KvCache(tokens=1000))
ROWS = {"arrival_s": [0.2 * at for at in range(40)], "prompt_tokens": [9] * 40, "output_tokens": [6] * 40}
SCALER = iq.Autoscaler(iq.ByQueue(2), min=1, max=4, every_s=1, startup_s=1.5, cooldown_s=3)
FAILURES = iq.Failures(at=[(4.2, 0), (6.0, 1)], mtbf_s=30, repair_s=2, retries=1)


def _cluster(**parts: Any) -> iq.Cluster:
    return iq.Cluster(ENGINE, **{"router": iq.LeastRequests(), **parts})


def _any(wrong: object) -> Any:
    return wrong


WRONG: list[tuple[Callable[[], object], str]] = [
    (lambda: iq.Autoscaler(iq.ByQueue(1), min=3, max=2), "max: must be from min, 3"),
    (lambda: iq.Autoscaler(iq.ByQueue(1), min=0, max=2), "min: must be at least 1"),
    (lambda: iq.Autoscaler(iq.ByQueue(1), max=2, every_s=0), "every_s"),
    (lambda: iq.Autoscaler(iq.ByQueue(1), max=2, startup_s=-1), "startup_s"),
    (lambda: iq.Autoscaler(iq.ByQueue(1), max=2, cooldown_s=-1), "cooldown_s"),
    (lambda: iq.Autoscaler(_any(7), max=2), "policy"),
    (lambda: iq.Autoscaler(iq.ScalingPolicy(), max=2), "has no wanted"),
    (lambda: iq.ByQueue(0), "requests"),
    (lambda: iq.ByUtilization(1.5), "target"),
    (lambda: iq.ByUtilization(0.5, of=_any("gpu")), "of"),
    (lambda: iq.ByForecast(1, window_s=0), "window_s"),
    (lambda: iq.BySchedule([]), "steps"),
    (lambda: iq.BySchedule([(5, 1), (5, 2)]), r"steps\[1\]"),
    (lambda: iq.BySchedule([(0, 0)]), r"steps\[0\]"),
    (lambda: iq.BySchedule([(0, 1), (9, 2)], period_s=9), r"steps\[1\]"),
    (lambda: iq.BySchedule([(0, 1.5)]), r"steps\[0\]\[1\]"),
    (lambda: iq.Failures(), "must have at, mtbf_s, drains or starts"),
    (lambda: iq.Failures(at=[(-1, 0)]), r"at\[0\]"),
    (lambda: iq.Failures(at=[(1, 0), (1, 0)]), "fail twice"),
    (lambda: iq.Failures(drains=[(1, -1)]), r"drains\[0\]"),
    (lambda: iq.Failures(starts=[(1, 0), (1, 0)]), "start twice"),
    (lambda: iq.Failures(mtbf_s=0), "mtbf_s"),
    (lambda: iq.Failures(mtbf_s=9, repair_s=-1), "repair_s"),
    (lambda: iq.Failures(mtbf_s=9, retries=-1), "retries"),
    (lambda: _cluster(replicas=5, autoscaler=SCALER), "replicas: must be from 1 to 4"),
    (
        lambda: _cluster(replicas=2, failures=iq.Failures(at=[(1, 2)])),
        r"failures.at\[0\]: replica 2 does not",
    ),
    (
        lambda: _cluster(replicas=2, failures=iq.Failures(drains=[(1, 0), (2, 2)])),
        r"failures.drains\[1\]: replica 2 does not",
    ),
    (lambda: iq.Cluster([ENGINE, ENGINE], autoscaler=SCALER), "autoscaler: requires one engine"),
    (lambda: _cluster(autoscaler=3), "autoscaler"),
    (
        lambda: iq.Cluster.from_json({**_cluster().to_json(), "autoscaler": {"max": 2}}),
        "autoscaler.policy: mis",
    ),
]


@pytest.mark.parametrize(("wrong", "named"), WRONG, ids=range(len(WRONG)))
def test_invalid_autoscalers_and_failures_are_errors_with_a_path(
    wrong: Callable[[], object], named: str
) -> None:
    with pytest.raises(iq.ConfigError, match=named):
        wrong()


def test_utilization_without_a_limit_is_rejected() -> None:
    engine = iq.Engine(timing=iq.Constant(0.5), scheduler=iq.Sarathi(), kv=iq.KvCache.unlimited())
    scaler = iq.Autoscaler(iq.ByUtilization(0.5, of="kv"), max=2)
    with pytest.raises(iq.ConfigError, match=r"autoscaler.policy.of: .*no limit"):
        iq.simulate(ROWS, iq.Cluster(engine, autoscaler=scaler))


def test_descriptions_are_read_back_and_a_record_repeats_its_run() -> None:
    for policy in (iq.ByQueue(2), iq.ByUtilization(0.6), iq.ByForecast(2, 3, 1), iq.BySchedule([(0, 2)])):
        scaler = iq.Autoscaler(policy, min=1, max=4, every_s=1, startup_s=0.5)
        cluster = _cluster(autoscaler=scaler, failures=FAILURES)
        assert iq.Cluster.from_json(cluster.to_json()) == cluster
        result = iq.simulate(ROWS, cluster, seed=5)
        again = iq.simulate(ROWS, iq.Cluster.from_json(json.loads(result.scenario)["cluster"]), seed=5)
        assert again.requests.equals(result.requests) and again.fleet_events.equals(result.fleet_events)
    assert "autoscaler" not in _cluster().to_json()


def test_a_run_on_disk_has_the_same_rows_and_events(tmp_path: Path) -> None:
    cluster = _cluster(autoscaler=SCALER, failures=FAILURES)
    result = iq.simulate(ROWS, cluster, seed=3)
    stored = iq.simulate(ROWS, cluster, seed=3, out=tmp_path / "run")
    assert stored.requests.lazy().collect().equals(result.requests)
    assert stored.fleet_events.equals(result.fleet_events)
    assert stored.replica_s == result.replica_s
    result.write(tmp_path / "saved")
    assert iq.Result.read(tmp_path / "saved").fleet_events.equals(result.fleet_events)
    with pytest.raises(iq.ConfigError, match="autoscaler or failures"):
        _ = iq.simulate(ROWS, _cluster()).fleet_events


class _Mine(iq.ScalingPolicy):
    def __init__(self, answer: Callable[[Any], object]) -> None:
        self.answer = answer
        self.seen: list[tuple[float, int, int, int]] = []

    def wanted(self, fleet: Any) -> Any:
        self.seen.append((fleet.now_s, fleet.open, fleet.starting, fleet.arrived))
        return self.answer(fleet)


def test_a_user_defined_policy_is_called_at_each_evaluation() -> None:
    mine = _Mine(lambda fleet: 2 if fleet.now_s < 5 else 1)
    scaler = iq.Autoscaler(mine, max=3, every_s=1, startup_s=1)
    result = iq.simulate(ROWS, _cluster(autoscaler=scaler))
    assert mine.seen[:3] == [(1.0, 1, 0, 5), (2.0, 2, 0, 10), (3.0, 2, 0, 15)]
    assert result.fleet_events["event"].to_list() == ["ready", "asked", "ready", "drains", "ended"]
    assert result.fleet_events["at_s"].to_list()[:4] == [0.0, 1.0, 2.0, 5.0]


@pytest.mark.parametrize("answer", [-1, True, 1.5, None, "two"])
def test_an_invalid_result_of_a_policy_is_an_error(answer: object) -> None:
    scaler = iq.Autoscaler(_Mine(lambda fleet: answer), max=3, every_s=1)
    with pytest.raises(iq.SimulationError, match=r"the autoscaler violated a rule at 1"):
        iq.simulate(ROWS, _cluster(autoscaler=scaler))


def test_exceptions_of_a_policy_pass_unchanged() -> None:
    scaler = iq.Autoscaler(_Mine(lambda fleet: 1 // 0), max=3, every_s=1)
    with pytest.raises(ZeroDivisionError):
        iq.simulate(ROWS, _cluster(autoscaler=scaler))


class _OneByOne(iq.Scheduler):
    """Counts its calls, which replicas that start later must not share."""

    calls = 0

    def plan(self, view: iq.View) -> iq.Batch:
        self.calls += 1
        if len(view.running) == 0:
            waiting = view.waiting
            return iq.Batch(prefill=[(waiting.id[0], waiting.prompt_left[0])]) if len(waiting) else iq.Batch()
        return iq.Batch(decode=view.running.id)


def test_schedulers_and_routers_written_in_python_see_open_replicas() -> None:
    seen = set()

    class First(iq.Router):
        def route(self, request: iq.Arrival, fleet: iq.Fleet) -> int:
            seen.add(tuple(fleet.replicas.tolist()))
            return 0

    engine = iq.Engine(timing=iq.Constant(0.5), scheduler=_OneByOne(), kv=iq.KvCache(tokens=1000))
    failures = iq.Failures(at=[(1.2, 0), (3.2, 1)], repair_s=1.0)
    cluster = iq.Cluster(engine, replicas=2, router=First(), failures=failures)
    result = iq.simulate(ROWS, cluster)
    assert {(0, 1), (1,), (0,)} <= seen
    assert result.requests["status"].to_list() == ["finished"] * 40


def test_a_replica_that_fails_while_it_drains_does_not_return() -> None:
    """Replica 1 drains at 1 and fails at 2. With a repair of a second it would take requests from 3 on."""
    failures = iq.Failures(at=[(2.0, 1)], drains=[(1.0, 1)], repair_s=1.0)
    result = iq.simulate(ROWS, _cluster(replicas=2, failures=failures))
    here = result.fleet_events.filter(replica=1)
    assert here.select("at_s", "event").rows() == [(0.0, "ready"), (1.0, "drains"), (2.0, "died")]
    assert set(result.requests.filter(pl.col("arrival_s") >= 1)["replica"]) == {0}
    assert set(result.requests["status"]) == {"finished"}


def test_a_replica_that_an_autoscaler_drains_and_that_fails_does_not_return() -> None:
    """One replica is wanted from 1 on: replica 1 drains, and fails at 2. It is not repaired at 3."""
    scaler = iq.Autoscaler(iq.BySchedule([(0, 2), (0.5, 1)]), min=1, max=2, every_s=1)
    failures = iq.Failures(at=[(2.0, 1)], repair_s=1.0)
    result = iq.simulate(ROWS, _cluster(replicas=2, autoscaler=scaler, failures=failures))
    here = result.fleet_events.filter(replica=1)
    assert here.select("at_s", "event").rows() == [(0.0, "ready"), (1.0, "drains"), (2.0, "died")]


def test_each_cluster_of_a_network_has_its_own_autoscaler() -> None:
    parts: dict[str, iq.Engine | iq.Cluster | iq.Disaggregated] = {
        "a": _cluster(autoscaler=SCALER),
        "b": _cluster(replicas=2, failures=FAILURES),
        "c": ENGINE,
    }
    after = {"a": [], "b": ["a"], "c": ["b"]}
    stages = {name: iq.Stage(name, prompt=20, output=4, after=before) for name, before in after.items()}
    network = iq.Network(parts, [iq.Workflow("w", stages=stages)])
    result = iq.simulate({"arrival_s": ROWS["arrival_s"]}, network)
    assert set(result.fleet_events["replica"].unique()) >= {0, 4, 5}
    ended = result.jobs["status"].to_list()
    lost = result.requests.filter(status="lost")["job"].n_unique()
    assert ended.count("lost") == lost and ended.count("finished") + lost == 40


def test_lost_requests_are_counted_and_reported() -> None:
    cluster = _cluster(replicas=2, failures=iq.Failures(at=[(2.1, 0), (2.1, 1)], retries=0))
    result = iq.simulate(ROWS, cluster)
    lost = result.requests.filter(status="lost")
    assert lost.height == result.requests.filter(arrival_s=2.0).height + 10
    assert lost["left_s"].to_list() == [2.1] * lost.height and lost["finish_s"].null_count() == lost.height
    assert (
        result.requests.filter(status="unfinished").height
        == 40 - lost.height - result.requests.filter(status="finished").height
    )
    assert {"stranded", "lost"} <= {finding.kind for finding in result.findings}
    row, finished = result.summary().row(0, named=True), result.requests.filter(status="finished").height
    assert (row["completed"], row["failed"], row["lost"]) == (finished, lost.height, lost.height)
    assert Metric.of("failed_share").of_row(row) == lost.height / (lost.height + finished)
    shown = run_tables.counts([("all", row)])
    assert shown.header[2] == "lost" and shown.lines[0][2] == str(lost.height)
    never = iq.simulate(ROWS, _cluster(replicas=2)).summary().row(0, named=True)
    assert never["lost"] == 0 and "lost" not in run_tables.counts([("all", never)]).header


def test_patience_ends_at_the_first_admission_of_a_retried_request() -> None:
    rows = {"arrival_s": [0] * 3, "prompt_tokens": [9] * 3, "output_tokens": [6] * 3}
    rows |= {"cancel_s": [None, None, 0.2], "patience_s": [None, None, 1.1]}
    for system in (ENGINE, _cluster(autoscaler=SCALER)):
        result = iq.simulate(rows, system)
        assert result.requests.select("status", "left_s").rows()[2] == ("abandoned", 0.2)
        assert result.requests["status"].to_list()[:2] == ["finished"] * 2


def test_clients_cancel_requests_without_a_replica_or_on_a_failed_one() -> None:
    """A request without a replica is canceled immediately; one in its last iteration at the failure."""
    rows = {"arrival_s": [0, 0, 2.1, 2.2], "prompt_tokens": [9] * 4, "output_tokens": [6] * 4}
    cluster = _cluster(failures=iq.Failures(at=[(1.2, 0)], repair_s=2, retries=1))
    result = iq.simulate({**rows, "cancel_s": [2.0, 1.1, 0.5, None]}, cluster)
    assert result.requests.select("status", "replica", "admitted_s", "left_s", "retries").rows() == [
        ("abandoned", None, 0.0, 2.0, 1),
        ("abandoned", 0, 0.0, 1.2, 0),
        ("abandoned", None, None, 2.6, 0),
        ("finished", 0, 3.2, 6.2, 0),
    ]
    assert result.findings == ["canceled: clients canceled 3 of 4 requests"]


@pytest.mark.parametrize(("retries", "row"), [(1, ("finished", 4.7, 1, 6, 5)), (0, ("lost", 1.2, 0, 2, 2))])
def test_speculation_continues_after_a_failure(retries: int, row: tuple[object, ...]) -> None:
    """Four tokens precede the failure; the fifth comes with the prompt at 3.7, then the list continues."""
    scheduler = iq.VllmV1(speculation=iq.Speculation(tokens=2), async_scheduling=False)
    engine = iq.Engine(timing=iq.Constant(0.5), scheduler=scheduler, kv=iq.KvCache(tokens=1000))
    failures = iq.Failures(at=[(1.2, 0)], repair_s=2, retries=retries)
    rows = {"arrival_s": [0, 1.5], "prompt_tokens": [9, 9], "output_tokens": [10, 3]}
    rows |= {"accepted": [[0, 2, 0, 1, 2, 0, 0, 0, 0, 0], [0, 1, 1]]}
    result = iq.simulate(rows, iq.Cluster(engine, router=iq.LeastRequests(), failures=failures))
    columns = ["status", "left_s", "retries", "drafted_tokens", "accepted_tokens"]
    assert result.requests.select(columns).rows() == [row, ("finished", 4.2, 0, 2, 1)]


def test_cost_counts_the_paid_time_of_replicas() -> None:
    engine = iq.Engine.on("llama-3.1-8b", "h100-80gb")
    rows = {"arrival_s": [0.0, 3600.0], "prompt_tokens": [9, 9], "output_tokens": [6, 6]}
    prices = iq.Prices(gpu_hour={"h100-80gb": 3.0})
    scaler = iq.Autoscaler(iq.BySchedule([(0, 2), (1800, 4)]), min=1, max=4, every_s=60)
    result = iq.simulate(rows, iq.Cluster(engine, replicas=2, autoscaler=scaler))
    mean = result.replica_s / result.totals["end_s"]
    assert mean == pytest.approx(3.0, abs=0.01)
    assert result.summary(prices=prices)["cost_per_hour"][0] == pytest.approx(3.0 * mean)
    fixed = iq.simulate(rows, iq.Cluster(engine, replicas=4)).summary(prices=prices)
    assert fixed["cost_per_hour"][0] == 12.0


@pytest.mark.parametrize("seed", range(45))
def test_a_live_run_reports_tokens_of_retried_and_lost_requests(seed: int) -> None:
    """With random feeding: each token once, at its time, from any replica; and the ends of requests."""
    draw = random.Random(seed)
    gaps = [draw.choice((0.0, 0.05, 0.3, 5.0)) * draw.random() for _ in range(25)]
    prompts, outputs = draw.choices(range(1, 90), k=25), draw.choices(range(1, 30), k=25)
    at_ns = [round(at * 1e9) for at in accumulate(gaps)]
    policies = (iq.ByQueue(2), iq.ByForecast(2.0, window_s=1), iq.BySchedule([(0, 1), (2, 3), (4, 1)]))
    scaler = iq.Autoscaler(
        draw.choice(policies), max=draw.randint(1, 4), every_s=0.5, startup_s=draw.choice((0, 0.3, 1.2))
    )
    failures = iq.Failures(
        at=[(round(draw.random() * 5, 3), 0)],
        mtbf_s=draw.choice((None, 2.0, 8.0)),
        repair_s=draw.choice((None, 0, 0.5)),
        retries=draw.choice((0, 1, 3)),
    )
    fleet = iq.Cluster(
        replace(ENGINE, timing=iq.PiecewiseLinear(base=0.05, per_token=1e-3)),
        router=draw.choice((iq.LeastRequests(), iq.RoundRobin())),
        autoscaler=None if seed % 3 == 1 else scaler,
        failures=None if seed % 3 == 0 else failures,
    )
    rows = {"arrival_s": [at / 1e9 for at in at_ns], "prompt_tokens": prompts, "output_tokens": outputs}
    whole = iq.simulate(rows, fleet, seed=seed)
    live = Live(fleet, seed=seed)
    token_times: dict[int, list[float]] = {row: [] for row in range(25)}
    ended: dict[int, float] = {}
    left: dict[int, str] = {}

    def note(news: Progress) -> None:
        for tokens in news.tokens:
            for request in tokens.requests:
                token_times[request].append(tokens.at_s)
            ended.update(dict.fromkeys(tokens.finished, tokens.at_s))
        left.update(news.left)

    now_ns = 0
    for arrives_ns, prompt, output in zip(at_ns, prompts, outputs, strict=True):
        while draw.random() < 0.6:
            next_ns = min(arrives_ns, live.next_ns() or arrives_ns)
            now_ns = max(now_ns, draw.choice((arrives_ns, draw.randint(now_ns, arrives_ns), next_ns)))
            note(live.advance(now_ns))
        live.arrive(arrives_ns, prompt, output)
    news, tables = live.finish()
    note(news)
    for row in whole.requests.rows(named=True):
        request, status = row["id"], row["status"]
        assert left.get(request) == (None if status in ("finished", "unfinished") else status)
        assert ended.get(request) == row["finish_s"]
        if status == "finished":
            assert len(token_times[request]) == row["output_tokens"] and token_times[request] == sorted(
                token_times[request]
            )
            assert token_times[request][0] == row["first_token_s"]
    assert tables["fleet_events"]["at_s"].tolist() == whole.fleet_events["at_s"].to_list()


def test_live_runs_with_autoscaling_reject_policies_that_wait_for_full_batches() -> None:
    """A drain lets waiting requests continue, and no event reports that before the next request."""
    waits = replace(ENGINE, scheduler=iq.research.Wait(thresholds=2))
    with pytest.raises(iq.ConfigError, match="scheduler: Wait waits for full batches"):
        Live(iq.Cluster(waits, autoscaler=SCALER))
    Live(iq.Cluster(waits, replicas=2))


def test_theory_is_inconclusive_for_failing_replicas() -> None:
    workload = iq.Workload.synthetic(
        requests=100, arrivals=iq.dist.Poisson(0.05), prompt=iq.dist.Fixed(9), output=iq.dist.Fixed(6)
    )
    fixed = iq.theory.stability(workload, iq.Cluster(ENGINE, replicas=2, router=iq.LeastRequests()))
    dying = iq.theory.stability(workload, _cluster(replicas=2, failures=iq.Failures(mtbf_s=1)))
    assert (fixed.verdict, dying.verdict) == ("stable", "unknown")
