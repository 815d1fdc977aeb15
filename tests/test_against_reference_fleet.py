"""Does the fast core agree with the slow reference on fleets, hand-offs, networks and sessions?

Every column of the requests, every batch of every replica, the totals, which requests were drained: exactly.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import polars as pl
import pytest

import inferq as iq

from . import reference_fleet
from .agreement import assert_batches, assert_calls, frame, gaps, seconds
from .grouped import grouped
from .night import chance, seeds
from .random_scenarios import (
    KINDS,
    engine_of,
    holds_all,
    horizon_of,
    lengths,
    requests,
    tight,
    with_sessions,
)
from .reference import exact
from .reference_fleet import ROUTERS, Outcome

Described = dict[str, Any]

_SEEDS = seeds(15)


class Service(NamedTuple):
    """What serves: its pools as the reference reads them, of which the first has a number; the real thing."""

    pools: Callable[[int], list[Described]]
    real: Callable[[], Any]


class Scenario(NamedTuple):
    system: list[Described]
    rows: list[Described]
    real: Callable[[], Any]
    workload: pl.DataFrame
    horizon_s: float | None


def _router(kind: str) -> Any:
    return getattr(iq, kind)()


def _real(engine: Described) -> iq.Engine:
    return iq.Engine.from_json(engine)


def _cluster(rng: random.Random, kind: str, rows: list[Described]) -> Service:
    longest = max(row["prompt_tokens"] + row["output_tokens"] for row in rows)
    router, replicas = rng.choice(list(ROUTERS)), rng.randint(1, 5)

    def engine(of_kind: str) -> Described:
        return engine_of(
            rng, of_kind, rows, tight(rng, longest), rng.choice(["prefill", "prefill", "decode"])
        )

    engines, counts = [engine(kind)], [replicas]
    if rng.random() < 0.4:  # not all alike
        engines += [engine(rng.choice([kind, rng.choice(KINDS)])) for _ in range(replicas - 1)]
        counts = [1] * replicas
    pool = {"engines": engines, "counts": counts, "router": {"kind": router}, "hands_to": None}

    def real() -> iq.Cluster:
        if len(engines) == replicas:
            return iq.Cluster([_real(each) for each in engines], router=_router(router))
        return iq.Cluster(_real(engines[0]), replicas=replicas, router=_router(router))

    return Service(lambda first: [pool], real)


def _disaggregated(rng: random.Random, kind: str, rows: list[Described]) -> Service:
    """The kind on one of the two sides, any on the other."""
    prompt = max(row["prompt_tokens"] for row in rows)
    first_token = rng.choice(["prefill", "prefill", "decode"])
    kinds = rng.sample([kind, rng.choice(KINDS)], 2)
    prefill = engine_of(rng, kinds[0], rows, tight(rng, prompt), first_token)
    decode = holds_all(rng, engine_of(rng, kinds[1], rows, tight(rng, prompt), first_token), rows)
    n, m = rng.choice([1, 1, 2, 3]), rng.choice([1, 1, 2, 3])
    routers = rng.choices(list(ROUTERS), k=2)
    link = {
        "latency_s": rng.choice([0, 0, 0.001, 0.01, 1.0]),
        "bytes_per_s": rng.choice([1000, 3e4, 1e12]),
        "bytes_per_token": rng.choice([0, 1, 2.5, 160]),
        "concurrent": rng.choice([None, 1, 1, 2, 3]),
    }

    def real() -> iq.Disaggregated:
        return iq.Disaggregated(
            prefill=(_real(prefill), n),
            decode=(_real(decode), m),
            link=iq.Link(**link),
            prefill_router=_router(routers[0]),
            decode_router=_router(routers[1]),
        )

    def pools(first: int) -> list[Described]:
        hands_to = {"pool": first + 1, "link": link}
        return [
            {"engines": [prefill], "counts": [n], "router": {"kind": routers[0]}, "hands_to": hands_to},
            {"engines": [decode], "counts": [m], "router": {"kind": routers[1]}, "hands_to": None},
        ]

    return Service(pools, real)


def _lone(rng: random.Random, kind: str, rows: list[Described]) -> Service:
    longest = max(row["prompt_tokens"] + row["output_tokens"] for row in rows)
    engine = engine_of(rng, kind, rows, tight(rng, longest), rng.choice(["prefill", "decode"]))
    pool = {"engines": [engine], "counts": [1], "router": None, "hands_to": None}
    return Service(lambda first: [pool], lambda: _real(engine))


def _waiting(rows: list[Described]) -> list[Described]:
    """The rows as the reference reads them."""
    before: dict[int, int] = {}
    told = []
    for at, row in enumerate(rows):
        session = row.get("session_id")
        turn = {}
        if session in before and row.get("think_s") is not None:
            turn = {"after": [before[session]], "delay_s": row["think_s"]}
        if session is not None:
            before[session] = at
        told.append(row | turn)
    return told


def _one_service(what: str, kind: str, seed: int) -> Scenario:
    rng = chance(f"{what} {kind} {seed}")
    thinking = what.startswith("sessions")
    rows = with_sessions(rng, requests(rng, *lengths(rng)), thinking)
    serve = {"cluster": _cluster, "disaggregated": _disaggregated, "alone": _lone}[what.split(" ")[-1]]
    service = serve(rng, kind, rows)
    return Scenario(service.pools(0), _waiting(rows), service.real, frame(rows), horizon_of(rng, rows))


# Networks.


def _workflow(rng: random.Random, name: str, engines: list[str], prompt: int, output: int) -> Described:
    """Stages by name, those that they wait for before them; one at least waits."""
    stages: dict[str, Described] = {}
    names = [f"s{at}" for at in range(rng.randint(2, 5))]
    for at, stage in enumerate(names):
        after = [] if at == 0 else rng.sample(names[:at], rng.choice([0, 1, 1, min(at, 2), at]))
        after = [names[0]] if at == 1 and not after else after
        ancestors = {other for direct in after for other in (direct, *stages[direct]["ancestors"])}
        stages[stage] = {
            "engine": rng.choice(engines),
            "prompt": rng.randint(1, prompt),
            "output": rng.randint(1, output),
            "after": after,
            "ancestors": sorted(ancestors),
            "includes": rng.sample(sorted(ancestors), rng.randint(0, len(ancestors))),
            "delay_s": rng.choice([0.0, 0.0, 0.01, 0.35, 1.0]),
            "class_name": rng.choice([None, None, "a", "b"]),
        }
    return {"name": name, "stages": stages}


def _expanded(workflow: Described, job: int, row: Described, first: int) -> list[Described]:
    """The calls of a job, the first of them at row `first`."""
    places = {name: first + at for at, name in enumerate(workflow["stages"])}
    common = {name: row[name] for name in ("arrival_s", "priority", "patience_s", "itl_slo_s")}
    return [
        {
            **common,
            "job": job,
            "session_id": job,  # its stages belong together
            "stage": name,
            "engine": stage["engine"],
            "prompt_tokens": stage["prompt"]
            + sum(workflow["stages"][n]["output"] for n in stage["includes"]),
            "output_tokens": stage["output"],
            "class": stage["class_name"] or workflow["name"],
            "after": [places[other] for other in stage["after"]],
            "delay_s": stage["delay_s"],
        }
        for name, stage in workflow["stages"].items()
    ]


def _real_workflow(workflow: Described) -> iq.Workflow:
    given = ("engine", "prompt", "output", "after", "includes", "delay_s", "class_name")
    stages = {
        name: iq.Stage(stage["engine"], **{key: stage[key] for key in given[1:]})
        for name, stage in workflow["stages"].items()
    }
    return iq.Workflow(workflow["name"], stages=stages)


def _network(kind: str, seed: int) -> Scenario:
    """One to three engines, clusters or pairs; one or two workflows, both used."""
    rng = chance(f"network {kind} {seed}")
    engines = ["x", "y", "z"][: rng.randint(1, 3)]
    workflows = [_workflow(rng, name, engines, *lengths(rng)) for name in ["v", "w"][: rng.randint(1, 2)]]
    jobs = requests(rng, 1, 1)
    while len(jobs) < len(workflows):
        jobs.append({**jobs[-1]})
    rows: list[Described] = []
    for job, row in enumerate(jobs):
        workflow = workflows[job] if job < len(workflows) else rng.choice(workflows)
        row["class"] = workflow["name"]
        rows += _expanded(workflow, job, row, len(rows))
    system: list[Described] = []
    services: dict[str, Callable[[], Any]] = {}
    pool: dict[str, int] = {}
    for at, name in enumerate(engines):
        serve = rng.choice([_lone, _lone, _cluster, _disaggregated])
        service = serve(rng, kind if at == 0 else rng.choice(KINDS), rows)
        pool[name], services[name] = len(system), service.real
        system += service.pools(len(system))
    rows = [{**row, "pool": pool[row["engine"]]} for row in rows]
    names = ["arrival_s", "class", "priority", "patience_s", "itl_slo_s"]
    workload = frame([{name: row[name] for name in names} for row in jobs])
    if len(workflows) == 1 and rng.random() < 0.5:
        workload = workload.drop("class")

    def real() -> iq.Network:
        made = {name: service() for name, service in services.items()}
        return iq.Network(made, [_real_workflow(workflow) for workflow in workflows])

    return Scenario(system, rows, real, workload, horizon_of(rng, jobs))


_WHAT = (
    "cluster",
    "disaggregated",
    "sessions alone",
    "sessions cluster",
    "sessions disaggregated",
    "network",
)


@cache
def _scenario(what: str, kind: str, seed: int) -> Scenario:
    return _network(kind, seed) if what == "network" else _one_service(what, kind, seed)


@cache
def _outcome(what: str, kind: str, seed: int) -> Outcome:
    system, rows, _, _, horizon_s = _scenario(what, kind, seed)
    return reference_fleet.simulate(rows, system, seed, horizon_s)


# What must come out.


def _assert_gaps(outcome: Outcome, result: iq.Result) -> None:
    expected: Counter[str] = Counter()
    for r in outcome.requests:
        expected[r.name] += len(gaps(r))
    counted = dict(result.itl.group_by("class").agg(pl.col("count").sum()).iter_rows())
    assert counted == {name: count for name, count in expected.items() if count}
    longest = max((gap for r in outcome.requests for gap in gaps(r)), default=None)
    if longest is not None:
        assert result.summary()["itl_max"].to_list() == [seconds(longest)]


@grouped(seed=_SEEDS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", _WHAT)
def test_the_core_agrees_with_the_reference(what: str, kind: str, seed: int) -> None:
    system, rows, real, workload, horizon_s = _scenario(what, kind, seed)
    outcome = _outcome(what, kind, seed)
    rng = random.Random(seed)
    stepping, threads = rng.random() < 0.2, rng.choice([None, 1, 2, 4])
    result = iq.simulate(
        workload, real(), seed=seed, horizon_s=horizon_s, batches=True, stepping=stepping, threads=threads
    )
    names = ("job", "stage", "engine") if what == "network" else ()
    hands_off = any(pool["hands_to"] for pool in system)
    assert_calls(result, outcome.requests, hands_off, lambda id: {name: rows[id][name] for name in names})
    ended = assert_batches(result, outcome.iterations, horizon_s)
    assert result.totals["iterations"] == sum(map(len, ended))
    _assert_gaps(outcome, result)
    assert result.drained.to_list() == outcome.drained
    assert result.totals["end_s"] == seconds(outcome.end)
    sojourn = sum((outcome.end if r.left is None else r.left) - r.arrival for r in outcome.requests)
    assert result.totals["in_system_as"] == result.totals["sojourn_as"] == sojourn
    if what == "network":
        assert result.jobs.to_dicts() == _jobs(outcome, rows, workload, horizon_s)


def _jobs(
    outcome: Outcome, rows: list[Described], workload: pl.DataFrame, horizon_s: float | None
) -> list[Described]:
    """The frame of jobs: each with all of its stages that arrived."""
    jobs = []
    for job, arrival_s in enumerate(workload["arrival_s"]):
        if horizon_s is not None and arrival_s > horizon_s:
            continue
        stages = [row for row in rows if row["job"] == job]
        arrived = [r for r in outcome.requests if rows[r.id]["job"] == job]
        counts = Counter(r.status for r in arrived)
        lost = "rejected" if counts["rejected"] else "abandoned" if counts["abandoned"] else None
        status = lost or ("finished" if counts["finished"] == len(stages) else "unfinished")
        left = [r.left for r in arrived if r.left is not None]
        gone = max(left) if status != "unfinished" and len(left) == len(arrived) else None
        finish = gone if status == "finished" else None
        at = exact(arrival_s, places=9)
        workflow = workload["class"][job] if "class" in workload.columns else "v"
        jobs.append(
            {
                "job": job,
                "workflow": workflow,
                "status": status,
                "measured": True,
                "arrival_s": seconds(at),
                "finish_s": seconds(finish),
                "left_s": seconds(gone),
                "e2e_s": None if finish is None else seconds(finish - at),
                "stages": len(arrived),
                "finished_stages": counts["finished"],
                "prompt_tokens": sum(r.prompt for r in arrived),
                "output_tokens": sum(r.output for r in arrived),
            }
        )
    return jobs


def _seen(what: str, kind: str) -> Counter[str]:
    """What the scenarios of a kind reach."""
    seen: Counter[str] = Counter()
    for seed in _SEEDS:
        rows, outcome = _scenario(what, kind, seed).rows, _outcome(what, kind, seed)
        seen.update(r.status for r in outcome.requests)
        seen["stopped"] += len(outcome.requests) < len(rows)
        seen["replicas used"] += len({r.replica for r in outcome.requests}) > 1
        for r in outcome.requests:
            if r.source is not None and r.prefilled is not None and r.resumed is not None:
                seen["handed over"] += 1
                seen["waited after it"] += r.resumed > r.came
                seen["preempted after it"] += r.finish is not None and r.preemptions > 0
            seen["waited for others"] += len(r.after) > 0
            seen["of several at once"] += len(r.after) > 1
            seen["at the end of another"] += len(r.after) > 0 and r.delay == 0
    return seen


@pytest.mark.parametrize("what", _WHAT)
def test_the_random_scenarios_reach_what_they_are_for(what: str) -> None:
    """Guards the test above, over all kinds together; each kind serves some request."""
    everything = {"finished", "rejected", "abandoned", "unfinished", "stopped"}
    if what != "sessions alone":
        everything.add("replicas used")
    if "disaggregated" in what or what == "network":
        everything |= {"handed over", "waited after it", "preempted after it"}
    if "sessions" in what or what == "network":
        everything |= {"waited for others", "at the end of another"}
    if what == "network":
        everything.add("of several at once")
    seen: Counter[str] = Counter()
    for kind in KINDS:
        of_kind = _seen(what, kind)
        assert of_kind["finished"] > len(_SEEDS), (kind, of_kind)
        seen += of_kind
    assert min(seen[name] for name in everything) > 10, seen
