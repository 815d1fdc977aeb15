"""A run of the fast core, held against the slow reference: every timestamp, batch and preemption, exactly."""

from __future__ import annotations

import decimal
import itertools
import math
from collections.abc import Callable
from typing import Any

import polars as pl

import inferq as iq

from .reference import Iteration, Outcome, Request

Described = dict[str, Any]
TYPES = {
    "patience_s": pl.Float64,
    "itl_slo_s": pl.Float64,
    "think_s": pl.Float64,
    "session_id": pl.Int64,
    "continues": pl.Int32,
    "prefix_parts": pl.List(pl.List(pl.Int64)),
}


def frame(rows: list[Described]) -> pl.DataFrame:
    """Rows as a workload has them, also where a column is empty."""
    return pl.DataFrame(rows, schema_overrides={name: TYPES[name] for name in TYPES if name in rows[0]})


def seconds(attoseconds: int | None) -> float | None:
    """The nearest double."""
    with decimal.localcontext(decimal.Context(prec=60)):
        return None if attoseconds is None else float(decimal.Decimal(attoseconds) / 10**18)


def _request_rows(outcome: Outcome, restarts: bool) -> list[Described]:
    """What the frame of requests must hold."""
    rows = []
    for request in outcome.requests:
        rows.append(
            {
                "status": request.status,
                "admitted_s": seconds(request.admitted),
                "first_token_s": seconds(request.first_token),
                "finish_s": seconds(request.finish),
                "left_s": seconds(request.left),
                "max_itl_s": seconds(max(gaps(request), default=None)),
                "preemptions": request.preemptions,
                "cached_tokens": request.cached,
                **({"discarded_tokens": len(request.discards)} if restarts else {}),
            }
        )
    return rows


def gaps(r: Request) -> list[int]:
    emitted = r.discards + r.tokens
    return [later - earlier for earlier, later in itertools.pairwise(emitted)]


def call_row(r: Any, hands_off: bool, restarts: bool = False) -> Described:
    """A row of the frame of requests, without what a network adds."""

    def since(instant: int | None, other: int | None = r.arrival) -> float | None:
        return None if instant is None or other is None else seconds(instant - other)

    steps = r.output - 1
    row = {
        "id": r.id,
        "class": r.name,
        "replica": r.replica,
        "status": r.status,
        "measured": True,
        "arrival_s": seconds(r.arrival),
        "admitted_s": seconds(r.admitted),
        "first_token_s": seconds(r.first_token),
        "finish_s": seconds(r.finish),
        "left_s": seconds(r.left),
        "queue_s": since(r.admitted),
        "ttft_s": since(r.first_token),
        "tpot_s": None if not steps or r.finish is None else seconds((r.finish - r.first_token) // steps),
        "max_itl_s": seconds(max(gaps(r), default=None)),
        "e2e_s": since(r.finish),
        "prompt_tokens": r.prompt,
        "output_tokens": r.output,
        "preemptions": r.preemptions,
        "cached_tokens": r.cached,
    }
    if restarts:
        row["discarded_tokens"] = len(r.discards)
    if hands_off:
        row["prefill_replica"] = r.source
        row["prefilled_s"] = None if r.source is None else seconds(r.prefilled)
        row["handoff_s"] = None if r.source is None else since(r.resumed, r.prefilled)
    return row


def assert_calls(
    result: iq.Result, calls: list[Any], hands_off: bool, more: Callable[[int], Described] = lambda id: {}
) -> None:
    """The frame of requests holds these calls, with more of each by its id."""
    restarts = "discarded_tokens" in result.requests.columns  # or nothing was thrown away
    assert restarts or not any(r.discards for r in calls)
    expected = [{**call_row(r, hands_off, restarts), **more(r.id)} for r in calls]
    if "class" not in result.requests.columns:
        for row in expected:
            del row["class"]
    found = result.requests.to_dicts()
    for one, other in zip(found, expected, strict=False):
        assert one == other
    assert len(found) == len(expected)


def batches(result: iq.Result) -> list[list[tuple[float | None, list[tuple[int, int, bool]], int | None]]]:
    """Of each replica start, rows and blocks of its iterations; of a stretch's after the first the rows."""
    rows: dict[int, list[tuple[int, int, bool]]] = {}
    for iteration, request, tokens, emits in result.batches.iter_rows():
        rows.setdefault(iteration, []).append((request, tokens, emits))
    listed: dict[int, list[tuple[float | None, list[tuple[int, int, bool]], int | None]]] = {}
    columns = result.iterations.select("replica", "start_s", "count", "kv_used_tokens")
    for place, (replica, start, count, used) in enumerate(columns.iter_rows()):
        batch = sorted(rows[place])
        listed.setdefault(replica, []).extend([(start, batch, used)] + [(None, batch, None)] * (count - 1))
    return [listed.get(replica, []) for replica in range(max(listed, default=0) + 1)]


def assert_batches(
    result: iq.Result, iterations: list[list[Iteration]], horizon_s: float | None
) -> list[list[Iteration]]:
    """The iterations of each replica that ended by the horizon, which are those of the result."""
    horizon = math.inf if horizon_s is None else horizon_s
    ended = [[i for i in own if (seconds(i.start + i.length) or 0.0) <= horizon] for own in iterations]
    listed = batches(result)
    listed += [[]] * (len(ended) - len(listed))
    for expected, found in zip(ended, listed, strict=True):
        assert [rows for _, rows, _ in found] == [sorted(i.rows) for i in expected]
        for (start, _, used), iteration in zip(found, expected, strict=True):
            assert start is None or (start, used) == (seconds(iteration.start), iteration.kv_used_tokens)
    return ended


def _work(ended: list[Iteration], budget: int) -> list[float]:
    """The shares of iterations below the budget that nothing, the cap and memory kept there."""
    below = [row.bound for row in ended if sum(tokens for _, tokens, _ in row.rows) < budget]
    return [below.count(bound) / max(1, len(ended)) for bound in ("broken", "cap", "memory")]


def assert_agrees(
    requests: list[Described], engine: Described, horizon_s: float | None, outcome: Outcome
) -> None:
    """The core does what the reference did, and audits it alike."""
    result = iq.simulate(
        iq.Workload(frame(requests)),
        iq.Engine.from_json(engine),
        horizon_s=horizon_s,
        batches=True,
    )
    own = engine["scheduler"].get("inner", engine["scheduler"])
    restarts = own.get("preemption", {}).get("kind") == "Restart"
    assert ("discarded_tokens" in result.requests.columns) == restarts
    expected = _request_rows(outcome, restarts)
    assert (
        result.requests.select(*expected[0]).to_dicts() == expected
        if expected
        else result.requests.is_empty()
    )
    (ended,) = assert_batches(result, [outcome.iterations], horizon_s)
    if outcome.cache:
        known = outcome.cache
        assert result.block_operations.row(0) == (0, known.found, known.learned, known.forgotten)
        return
    most = own.get("token_budget")
    for budget in (most or 24, 5, 1):
        work = result.work_conservation(None if budget == most else budget)
        assert (work.budget, work.iterations) == (budget, len(ended))
        assert [work.share, work.cap_share, work.memory_share] == _work(ended, budget)
