"""Does the fast core agree with the slow reference where replicas come, drain and die?

Every column of the requests, every batch, every event of a replica, what was paid for: exactly.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest

import inferq as iq
from inferq.simulation.live import Live
from inferq.systems.failures import COMMANDS

from . import reference_capacity
from .agreement import assert_batches, assert_calls, frame, seconds
from .grouped import grouped
from .night import chance, seeds
from .random_scenarios import KINDS, engine_of, horizon_of, lengths, requests, tight, with_sessions
from .reference_fleet import ROUTERS, word
from .test_against_reference_fleet import _waiting

Described = dict[str, Any]


def _policy(rng: random.Random, engine: Described) -> Described:
    kinds = ["ByQueue", "ByForecast", "BySchedule"]
    limits = iq.Engine.from_json(engine).scheduler.to_json()
    of = [
        name for name, limit in (("seats", limits.get("max_seqs")), ("kv", engine["kv"]["tokens"])) if limit
    ]
    kind = rng.choice(kinds + ["ByUtilization"] * bool(of))
    if kind == "ByQueue":
        return {"kind": kind, "requests": rng.choice([0.5, 1, 2.5, 6])}
    if kind == "ByUtilization":
        target, tolerance = rng.choice([0.05, 0.3, 0.9]), rng.choice([0, 0.1, 0.4])
        return {"kind": kind, "target": target, "of": rng.choice(of), "tolerance": tolerance}
    if kind == "ByForecast":
        window_s, ahead_s = rng.choice([0.02, 0.07, 1.0]), rng.choice([0, 0.05, 2.0])
        return {
            "kind": kind,
            "requests_per_s": rng.choice([0.5, 20.0, 300.0]),
            "window_s": window_s,
            "ahead_s": ahead_s,
        }
    steps = sorted(rng.sample([0.0, 0.013, 0.05, 0.2, 1.0, 2.5], rng.randint(1, 4)))
    period_s = rng.choice([None, steps[-1] + rng.choice([0.01, 0.5])])
    return {"kind": kind, "steps": [[at, rng.randint(1, 5)] for at in steps], "period_s": period_s}


def _pool(rng: random.Random, kind: str, rows: list[Described]) -> Described:
    """A cluster as its description says it, but for the engine, which stands in a list."""
    longest = max(row["prompt_tokens"] + row["output_tokens"] for row in rows)
    engine = engine_of(rng, kind, rows, tight(rng, longest), rng.choice(["prefill", "prefill", "decode"]))
    replicas = rng.randint(1, 4)
    scaler: Described | None = None
    failures: Described | None = None
    what = rng.choice(["scaler", "failures", "both"])
    if what != "failures":
        least = rng.randint(1, 2)
        most = least + rng.randint(0, 3)
        replicas = rng.randint(least, most)
        scaler = {
            "policy": _policy(rng, engine),
            "max": most,
            "min": least,
            "startup_s": rng.choice([0, 0, 0.01, 0.0123, 0.3]),
            "every_s": rng.choice([0.003, 0.01, 0.01, 0.1, 1.0]),
            "cooldown_s": rng.choice([0, 0, 0.02, 0.5]),
        }
    if what != "scaler":
        places = scaler["max"] if scaler else replicas
        grid = rng.choice([0.001, 0.01, 0.0062])

        def told(most: int) -> list[list[float]]:
            one = {(round(rng.randint(0, 60) * grid, 9), rng.randrange(places)) for _ in range(most)}
            return [list(pair) for pair in sorted(one)]

        failures = {
            "at": told(rng.randint(1, 6)),
            **({name: told(rng.randint(1, 4)) for name in ("drains", "starts") if rng.random() < 0.4}),
            "repair_s": rng.choice([None, 0, 0.01, 0.05, 1.0]),
            "retries": rng.choice([0, 1, 1, 3]),
        }
    router = {"kind": rng.choice(list(ROUTERS))}
    return {
        "engines": [engine],
        "replicas": replicas,
        "router": router,
        "autoscaler": scaler,
        "failures": failures,
    }


def _agree(kind: str, seed: int) -> reference_capacity.Outcome:
    rng = chance(f"capacity {kind} {seed}")
    rows = requests(rng, *lengths(rng))
    rows = with_sessions(rng, rows, rng.random() < 0.4)
    pool, horizon_s = _pool(rng, kind, rows), horizon_of(rng, rows)
    outcome = reference_capacity.simulate(_waiting(rows), pool, seed, horizon_s)
    described = {**pool, "engines": pool["engines"][0]}
    cluster = iq.Cluster.from_json({name: one for name, one in described.items() if one is not None})
    stepping = rng.random() < 0.2
    result = iq.simulate(
        frame(rows), cluster, seed=seed, horizon_s=horizon_s, batches=True, stepping=stepping
    )
    retries = {r.id: r.retries for r in outcome.requests}  # type: ignore[attr-defined]
    sent = (lambda id: {"retries": retries[id]}) if pool["failures"] else (lambda id: {})
    assert_calls(result, outcome.requests, False, sent)
    assert_batches(result, outcome.iterations, horizon_s)
    assert result.drained.to_list() == outcome.drained
    assert result.totals["end_s"] == seconds(outcome.end)
    sojourn = sum((outcome.end if r.left is None else r.left) - r.arrival for r in outcome.requests)
    assert result.totals["in_system_as"] == result.totals["sojourn_as"] == sojourn
    assert result.fleet_events.rows() == [(seconds(at), *others) for at, *others in outcome.events]
    assert result.totals["replica_time_as"] == outcome.paid
    return outcome


@grouped(seed=seeds(25))
@pytest.mark.parametrize("kind", KINDS)
def test_the_core_agrees_with_the_reference_on_replicas_that_come_and_go(kind: str, seed: int) -> None:
    _agree(kind, seed)


def test_deaths_by_chance_are_exponential_from_the_opening_on() -> None:
    """Each is the draw of its place and of how often a replica opened there, whatever the requests do."""
    engine = iq.Engine(timing=iq.Constant(0.5), scheduler=iq.Sarathi(), kv=iq.KvCache.unlimited())
    failures = iq.Failures(mtbf_s=20.0, repair_s=3.0, retries=100)
    cluster = iq.Cluster(engine, replicas=3, router=iq.LeastRequests(), failures=failures)
    rows = {"arrival_s": [float(at) for at in range(200)]}
    rows |= {"prompt_tokens": [5] * 200, "output_tokens": [9] * 200}
    events = iq.simulate(rows, cluster, seed=11).fleet_events
    assert events.filter(event="died").height > 15
    for place in range(3):
        opened, life = 0.0, 0
        for at_s, event in events.filter(replica=place).select("at_s", "event").iter_rows():
            if event == "ready":
                opened, life = at_s, life + 1
            elif event == "died":
                uniform = ((word(11, 18, place, life - 1) >> 12) + 0.5) / 2**52
                assert at_s == pytest.approx(opened - 20.0 * math.log(uniform), abs=1e-9)


@grouped(seed=seeds(60))
def test_what_replicas_are_told_while_a_run_goes_on_is_what_its_failures_say(seed: int) -> None:
    """Rows and commands are fed at their instants, with looks in between; the whole run is the same."""
    rng = chance(f"told {seed}")
    engine = iq.Engine(
        timing=iq.PiecewiseLinear(base=0.01, per_token=1e-3, knee=8),
        scheduler=rng.choice(
            [iq.Sarathi(token_budget=32, max_seqs=4), iq.VllmV1(max_seqs=3), iq.research.Orca(max_seqs=2)]
        ),
        kv=iq.KvCache(tokens=rng.choice([160, 4096]), block=8, prefix_cache=rng.choice([None, "blocks"])),
    )
    scaler = iq.Autoscaler(iq.ByQueue(2), min=1, max=3, every_s=0.05, startup_s=rng.choice([0, 0.08]))
    known = iq.Failures(at=[(0.3, 0)], repair_s=rng.choice([None, 0.1]), retries=rng.choice([0, 1, 9]))
    system = iq.Cluster(
        engine,
        replicas=rng.randint(1, 3) if (scaled := rng.random() < 0.4) else 3,
        router=rng.choice([iq.RoundRobin(), iq.LeastRequests(), iq.BySession(), iq.LeastKv()]),
        autoscaler=scaler if scaled else None,
        failures=rng.choice([None, known]),
    )
    at = sorted(rng.sample(range(10**9), rng.randint(3, 40)))
    rows = [(ns, rng.randint(1, 60), rng.randint(1, 20), rng.randint(0, 4)) for ns in at]
    asked = [
        (rng.randrange(10**9), rng.choice(["die", "drain", "start"]), rng.randrange(3))
        for _ in range(rng.randint(1, 8))
    ]
    parts: list[dict[str, Any]] = []
    live = Live(system, sessions=True, takes_commands=True, take=parts.append, batches=True)
    told: dict[str, list[tuple[float, int]]] = {"die": [], "drain": [], "start": []}
    sessions: dict[int, int] = {}
    seen = 0
    for ns, what, *numbers in sorted(
        [(row[0], "row", *row[1:]) for row in rows] + asked, key=lambda one: one[0]
    ):
        if rng.random() < 0.7:
            live.advance(seen := rng.randint(seen, ns))
        if what == "row":
            prompt, output, session = numbers
            live.arrive(ns, prompt, output, session=sessions.setdefault(session, len(sessions)))
        else:
            told[what].append((live.command(numbers[0], what, ns), numbers[0]))
    tables = live.finish()[1]
    all_ = {} if system.failures is None else system.failures.to_json()
    all_ |= {name: [*all_.get(name, []), *told[what]] for what, name in COMMANDS.items()}
    columns = zip(*rows, strict=True)
    names = ("arrival_s", "prompt_tokens", "output_tokens", "session_id")
    frame_ = pl.DataFrame(dict(zip(names, map(list, columns), strict=True)))
    workload = iq.Workload(frame_.with_columns(pl.col("arrival_s") / 10**9))
    whole = iq.simulate(workload, replace(system, failures=iq.Failures.from_json(all_)), batches=True)
    for column in parts[0].keys() - {"class"}:
        left = np.concatenate([part[column] for part in parts])
        np.testing.assert_array_equal(left, whole._tables.requests[column], err_msg=column)
    for table in ("batches", "fleet_events"):
        for column, values in tables[table].items():
            np.testing.assert_array_equal(values, getattr(whole._tables, table)[column], err_msg=column)
