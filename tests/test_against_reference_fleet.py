"""Does the fast core agree with the slow reference on fleets, hand-offs, networks and sessions?

Every column of the requests, every batch of every replica, the totals, who was drained: exactly.
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
from .grouped import grouped
from .reference import exact
from .reference_fleet import ROUTERS, Call, Outcome
from .test_against_reference import _KINDS, _requests, _scheduler, _seconds, _timing

Described = dict[str, Any]

_SEEDS = range(40)


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


def _engine(
    rng: random.Random, kind: str, rows: list[Described], kv: Described, first_token: str
) -> Described:
    classes = sorted({row["class"] for row in rows})
    longest = max(row["prompt_tokens"] + row["output_tokens"] for row in rows)
    scheduler = _scheduler(kind, rng, longest, classes)
    return {"timing": _timing(rng), "scheduler": scheduler, "kv": kv, "first_token": first_token}


def _tight(rng: random.Random, tokens: int) -> Described:
    """A cache of some requests, sometimes of none, sometimes without bounds."""
    block = rng.choice([1, 4, 7, 16])
    held = None if rng.random() < 0.2 else int(tokens * rng.uniform(0.7, 3)) + block
    return {"tokens": held, "block": block, "prefix_cache": None}


def _holds_all(rng: random.Random, engine: Described, rows: list[Described]) -> Described:
    """The engine with room for each of the rows, often not for two."""
    tokens = max(row["prompt_tokens"] + row["output_tokens"] for row in rows)
    limits = engine["scheduler"].get("inner", engine["scheduler"])
    tokens = max(tokens, limits.get("max_model_len", 0))
    block = engine["kv"]["block"]
    held = None if rng.random() < 0.2 else -(-int(tokens * rng.uniform(1, 2)) // block) * block
    return {**engine, "kv": {**engine["kv"], "tokens": held}}


def _router(kind: str) -> Any:
    return getattr(iq, kind)()


def _real(engine: Described) -> iq.Engine:
    return iq.Engine.from_json(engine)


def _cluster(rng: random.Random, kind: str, rows: list[Described]) -> Service:
    longest = max(row["prompt_tokens"] + row["output_tokens"] for row in rows)
    router, replicas = rng.choice(list(ROUTERS)), rng.randint(1, 5)

    def engine(of_kind: str) -> Described:
        return _engine(rng, of_kind, rows, _tight(rng, longest), rng.choice(["prefill", "prefill", "decode"]))

    engines, counts = [engine(kind)], [replicas]
    if rng.random() < 0.4:  # not all alike
        engines += [engine(rng.choice([kind, rng.choice(_KINDS)])) for _ in range(replicas - 1)]
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
    kinds = rng.sample([kind, rng.choice(_KINDS)], 2)
    prefill = _engine(rng, kinds[0], rows, _tight(rng, prompt), first_token)
    decode = _holds_all(rng, _engine(rng, kinds[1], rows, _tight(rng, prompt), first_token), rows)
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
    engine = _engine(rng, kind, rows, _tight(rng, longest), rng.choice(["prefill", "decode"]))
    pool = {"engines": [engine], "counts": [1], "router": None, "hands_to": None}
    return Service(lambda first: [pool], lambda: _real(engine))


def _horizon(rng: random.Random, rows: list[Described]) -> float | None:
    last = rows[-1]["arrival_s"]
    return None if rng.random() < 0.8 else round(rng.uniform(0, last * 1.5), 3)


def _frame(rows: list[Described]) -> pl.DataFrame:
    types = {"patience_s": pl.Float64, "tbt_slo_s": pl.Float64, "think_s": pl.Float64, "session_id": pl.Int64}
    return pl.DataFrame(rows, schema_overrides={name: t for name, t in types.items() if name in rows[0]})


def _lengths(rng: random.Random) -> tuple[int, int]:
    return rng.choice([20, 60, 200]), rng.choice([1, 5, 40])


def _with_sessions(rng: random.Random, rows: list[Described], thinking: bool) -> list[Described]:
    """Each row with its session, or none; a turn that thinks waits for the one before it."""
    sessions = rng.choice([1, 2, 5])
    thoughts = rng.choice([[0.0], [None, 0.0, 0.01, 0.5], [None, 1e-9, 0.003, 2.0]])
    for row in rows:
        row["session_id"] = rng.choice([None, *range(sessions)])
        if thinking:
            row["think_s"] = rng.choice(thoughts)
    return rows


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
    rng = random.Random(f"{what} {kind} {seed}")
    thinking = what.startswith("sessions")
    rows = _with_sessions(rng, _requests(rng, *_lengths(rng)), thinking)
    serve = {"cluster": _cluster, "disaggregated": _disaggregated, "alone": _lone}[what.split(" ")[-1]]
    service = serve(rng, kind, rows)
    return Scenario(service.pools(0), _waiting(rows), service.real, _frame(rows), _horizon(rng, rows))


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
    common = {name: row[name] for name in ("arrival_s", "priority", "patience_s", "tbt_slo_s")}
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
    rng = random.Random(f"network {kind} {seed}")
    engines = ["x", "y", "z"][: rng.randint(1, 3)]
    workflows = [_workflow(rng, name, engines, *_lengths(rng)) for name in ["v", "w"][: rng.randint(1, 2)]]
    jobs = _requests(rng, 1, 1)
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
        service = serve(rng, kind if at == 0 else rng.choice(_KINDS), rows)
        pool[name], services[name] = len(system), service.real
        system += service.pools(len(system))
    rows = [{**row, "pool": pool[row["engine"]]} for row in rows]
    names = ["arrival_s", "class", "priority", "patience_s", "tbt_slo_s"]
    frame = _frame([{name: row[name] for name in names} for row in jobs])
    if len(workflows) == 1 and rng.random() < 0.5:
        frame = frame.drop("class")

    def real() -> iq.Network:
        made = {name: service() for name, service in services.items()}
        return iq.Network(made, [_real_workflow(workflow) for workflow in workflows])

    return Scenario(system, rows, real, frame, _horizon(rng, jobs))


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


def _gaps(r: Call) -> list[int]:
    return [later - earlier for earlier, later in zip(r.tokens, r.tokens[1:], strict=False)]


def _row(r: Call, hands_off: bool) -> Described:
    """A row of the frame of requests, without what a network adds."""

    def since(instant: int | None, other: int | None = r.arrival) -> float | None:
        return None if instant is None or other is None else _seconds(instant - other)

    steps = r.output - 1
    row = {
        "id": r.id,
        "class": r.name,
        "replica": r.replica,
        "status": r.status,
        "measured": True,
        "arrival_s": _seconds(r.arrival),
        "admitted_s": _seconds(r.admitted),
        "first_token_s": _seconds(r.first_token),
        "finish_s": _seconds(r.finish),
        "left_s": _seconds(r.left),
        "queue_s": since(r.admitted),
        "ttft_s": since(r.first_token),
        "tpot_s": None if not steps or r.finish is None else _seconds((r.finish - r.tokens[0]) // steps),
        "max_tbt_s": _seconds(max(_gaps(r), default=None)),
        "e2e_s": since(r.finish),
        "prompt_tokens": r.prompt,
        "output_tokens": r.output,
        "preemptions": r.preemptions,
        "cached_tokens": 0,
    }
    if hands_off:
        row["prefill_replica"] = r.source
        row["prefilled_s"] = None if r.source is None else _seconds(r.prefilled)
        row["handoff_s"] = None if r.source is None else since(r.resumed, r.prefilled)
    return row


def _assert_iterations(outcome: Outcome, result: iq.Result, horizon_s: float | None) -> None:
    """Start, rows and blocks of every iteration of every replica that ended by the horizon."""
    horizon = None if horizon_s is None else exact(horizon_s)
    rows: dict[int, list[tuple[int, int, bool]]] = {}
    for iteration, request, tokens, emits in result.batches.iter_rows():
        rows.setdefault(iteration, []).append((request, tokens, emits))
    found: list[list[tuple[float | None, list[tuple[int, int, bool]], int | None]]]
    found = [[] for _ in outcome.iterations]
    columns = result.iterations.select("replica", "start_s", "count", "kv_used_tokens")
    for place, (replica, start, count, used) in enumerate(columns.iter_rows()):
        batch = sorted(rows[place])
        found[replica] += [(start, batch, used)] + [(None, batch, None)] * (count - 1)
    count = 0
    for iterations, here in zip(outcome.iterations, found, strict=True):
        ended = [i for i in iterations if horizon is None or i.start + i.length <= horizon]
        count += len(ended)
        assert [batch for _, batch, _ in here] == [sorted(i.rows) for i in ended]
        for (start, _, used), expected in zip(here, ended, strict=True):
            assert start is None or (start, used) == (_seconds(expected.start), expected.kv_used_tokens)
    assert result.totals["iterations"] == count


def _assert_gaps(outcome: Outcome, result: iq.Result) -> None:
    expected: Counter[str] = Counter()
    for r in outcome.requests:
        expected[r.name] += len(_gaps(r))
    counted = dict(result.tbt.group_by("class").agg(pl.col("count").sum()).iter_rows())
    assert counted == {name: count for name, count in expected.items() if count}
    longest = max((gap for r in outcome.requests for gap in _gaps(r)), default=None)
    if longest is not None:
        assert result.summary()["tbt_max"].to_list() == [_seconds(longest)]


@grouped(seed=_SEEDS)
@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("what", _WHAT)
def test_the_core_agrees_with_the_reference(what: str, kind: str, seed: int) -> None:
    system, rows, real, workload, horizon_s = _scenario(what, kind, seed)
    outcome = _outcome(what, kind, seed)
    rng = random.Random(seed)
    stepping, threads = rng.random() < 0.2, rng.choice([None, 1, 2, 4])
    result = iq.simulate(
        workload, real(), seed=seed, horizon_s=horizon_s, batches=True, stepping=stepping, threads=threads
    )
    expected = [_row(r, any(pool["hands_to"] for pool in system)) for r in outcome.requests]
    if what == "network":
        for row in expected:
            row |= {name: rows[row["id"]][name] for name in ("job", "stage", "engine")}
    if "class" not in result.requests.columns:
        for row in expected:
            del row["class"]
    found = result.requests.to_dicts()
    for one, other in zip(found, expected, strict=False):
        assert one == other
    assert len(found) == len(expected)
    _assert_iterations(outcome, result, horizon_s)
    _assert_gaps(outcome, result)
    assert result.drained.to_list() == outcome.drained
    assert result.totals["end_s"] == _seconds(outcome.end)
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
                "arrival_s": _seconds(at),
                "finish_s": _seconds(finish),
                "left_s": _seconds(gone),
                "e2e_s": None if finish is None else _seconds(finish - at),
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
    """Guards the test above, over all kinds together; each kind serves somebody."""
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
    for kind in _KINDS:
        of_kind = _seen(what, kind)
        assert of_kind["finished"] > len(_SEEDS), (kind, of_kind)
        seen += of_kind
    assert min(seen[name] for name in everything) >= 50, seen
