"""Closed-loop sessions: dependencies between turns and their arrival times."""

from typing import Any

import numpy as np
import polars as pl
import pytest

import inferq as iq
from inferq.workload.dependencies import NO_SESSION, session_flow, sessions

from .slots import engine, rows


def turns(*rows: tuple[float, int, int, Any, float | None], **columns: Any) -> dict[str, Any]:
    """Requests as (arrival_s, prompt_tokens, output_tokens, session_id, think_s)."""
    names = ("arrival_s", "prompt_tokens", "output_tokens", "session_id", "think_s")
    return {**dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)), **columns}


# Dependencies


def test_a_turn_waits_for_the_nearest_earlier_turn_of_its_session() -> None:
    frame = iq.Workload(
        turns(
            (0.0, 1, 1, "a", 9.0),  # the first row of a session waits for no row
            (0.0, 1, 1, "b", None),
            (1.0, 1, 1, "a", 1.0),
            (1.0, 1, 1, None, 5.0),  # no session
            (1.0, 1, 1, "a", None),  # no think time
            (2.0, 1, 1, "b", 0.0),
            (2.0, 1, 1, "a", 2.5),  # its nearest earlier turn is row 4
            (3.0, 1, 1, None, 5.0),
        )
    ).frame
    flow = session_flow(frame)
    assert flow is not None
    assert flow.parents.tolist() == [0, 0, 1, 0, 0, 1, 1, 0]
    assert flow.delay_s.tolist() == [0, 0, 1.0, 0, 0, 0.0, 2.5, 0]
    assert flow.children_start.tolist() == [0, 1, 2, 2, 2, 3, 3, 3, 3]
    assert flow.children.tolist() == [2, 5, 6]
    kinds = {name: column.dtype for name, column in flow.columns().items()}
    whole = dict.fromkeys(("parents", "children_start", "children"), np.dtype(np.uint32))
    assert kinds == {**whole, "delay_s": np.dtype(np.float64)}


@pytest.mark.parametrize(
    "columns",
    [
        {},
        {"session_id": ["a", "a"]},
        {"session_id": ["a", "a"], "think_s": [None, None]},
        {"session_id": ["a", "b"], "think_s": [1.0, 1.0]},
        {"session_id": ["a", "a"], "think_s": [1.0, None]},
        {"think_s": [None, None]},
    ],
)
def test_without_dependencies_there_is_no_flow(columns: dict[str, Any]) -> None:
    frame = iq.Workload({"arrival_s": [0.0, 1.0], **columns}).frame
    assert session_flow(frame) is None


def test_think_times_without_sessions_are_an_error() -> None:
    work = {"arrival_s": [0.0], "prompt_tokens": [1], "output_tokens": [1], "think_s": [1.0]}
    with pytest.raises(iq.ConfigError, match=r"^workload\.think_s: requires the column session_id"):
        iq.simulate(work, engine())


@pytest.mark.parametrize("ids", [["b", None, "a", "b"], [7, None, -1, 7]])
def test_sessions_are_numbered_by_their_first_rows(ids: list[Any]) -> None:
    assert sessions(pl.Series(ids)).tolist() == [0, NO_SESSION, 1, 0]
    assert sessions(pl.Series([None, None, ids[0]])).tolist() == [NO_SESSION, NO_SESSION, 0]


def test_a_loop_over_the_rows_gives_the_same_flow() -> None:
    draw = np.random.default_rng(3)
    names = [None if number == 0 else f"s{number}" for number in draw.integers(0, 30, 500)]
    think = [None if seconds < 0.3 else float(seconds) for seconds in draw.uniform(size=500)]
    frame = iq.Workload({"arrival_s": np.arange(500.0), "session_id": names, "think_s": think}).frame
    last: dict[str, int] = {}
    waits: list[tuple[int, int]] = []
    for row, (name, seconds) in enumerate(zip(names, think, strict=True)):
        if name is None:
            continue
        if name in last and seconds is not None:
            waits.append((last[name], row))
        last[name] = row
    flow = session_flow(frame)
    assert flow is not None
    starts = flow.children_start.tolist()
    pairs = [
        (row, int(child)) for row in range(500) for child in flow.children[starts[row] : starts[row + 1]]
    ]
    assert pairs == sorted(waits)
    assert flow.parents.tolist() == [int(row in dict((b, a) for a, b in waits)) for row in range(500)]


# Runs


def test_a_turn_arrives_a_think_time_after_the_previous_answer() -> None:
    """Turn 0 in [0, 3), think time 0.5 s, turn 1 in [3.5, 5.5), think time 2 s, turn 2 in [7.5, 8.5)."""
    chat = turns((0.0, 10, 3, "a", None), (0.1, 10, 2, "a", 0.5), (0.2, 10, 1, "a", 2.0))
    result = iq.simulate(chat, engine())
    assert rows(result, "id", "arrival_s", "finish_s", "e2e_s") == [
        (0, 0.0, 3.0, 3.0),
        (1, 3.5, 5.5, 2.0),
        (2, 7.5, 8.5, 1.0),
    ]


def test_a_turn_with_think_time_0_arrives_immediately() -> None:
    """It can be in the batch that is planned when the previous answer ends."""
    chat = turns((0.0, 10, 2, "a", None), (0.0, 10, 1, "a", 0.0))
    result = iq.simulate(chat, engine(max_seqs=1))
    assert rows(result, "arrival_s", "queue_s", "finish_s") == [(0.0, 0.0, 2.0), (2.0, 0.0, 3.0)]


def test_a_later_recorded_arrival_does_not_delay_a_turn() -> None:
    chat = turns((0.0, 10, 1, "a", None), (50.0, 10, 1, "a", 1.0))
    assert rows(iq.simulate(chat, engine()), "arrival_s") == [(0.0,), (2.0,)]


def test_an_open_loop_sends_every_turn_as_recorded() -> None:
    chat = turns((0.0, 10, 3, "a", None), (0.5, 10, 2, "a", 0.5))
    result = iq.simulate(iq.Workload(chat).open_loop(), engine())
    assert rows(result, "arrival_s", "finish_s") == [(0.0, 3.0), (0.5, 3.0)]


def test_a_closed_loop_slows_down_with_the_server() -> None:
    """Four users, `max_seqs` 1, iterations of a second: a turn waits for at most three requests."""
    rows = [(0.001 * at, 10, 1, f"u{at % 4}", None if at < 4 else 0.0) for at in range(40)]
    closed = iq.simulate(turns(*rows), engine(max_seqs=1))
    opened = iq.simulate(iq.Workload(turns(*rows)).open_loop(), engine(max_seqs=1))
    assert opened.requests["queue_s"].max() > 38
    assert closed.requests["queue_s"].max() == 3.0
    assert closed.requests["finish_s"].max() == 40.0


@pytest.mark.parametrize(
    ("first", "change", "status"),
    [((0.0, 999, 1, "a", None), {}, "rejected"), ((0.0, 10, 5, "a", None), {"horizon_s": 3.0}, "unfinished")],
)
def test_a_turn_after_an_unfinished_one_never_arrives(first: Any, change: Any, status: str) -> None:
    chat = turns(first, (0.5, 10, 1, "a", 0.0), (1.0, 10, 1, "b", None), (1.5, 10, 1, "a", 0.0))
    result = iq.simulate(chat, engine(kv=iq.KvCache(tokens=160)), **change)
    assert rows(result, "id", "status") == [(0, status), (2, "finished")]


def test_a_turn_after_an_abandoned_one_never_arrives() -> None:
    chat = turns(
        (0.0, 10, 3, "b", None),
        (0.0, 10, 1, "a", None),
        (0.0, 10, 1, "a", 0.0),
        patience_s=[None, 0.5, None],
    )
    result = iq.simulate(chat, engine(max_seqs=1))
    assert rows(result, "id", "status") == [(0, "finished"), (1, "abandoned")]


def test_warm_up_counts_in_recorded_order() -> None:
    """Row 1 arrives last, at 10, but is the second row of the workload."""
    chat = turns(
        (0.0, 10, 1, "a", None), (1.0, 10, 1, "a", 9.0), (2.0, 10, 1, "b", None), (3.0, 10, 1, "c", None)
    )
    for warmup in (2, "2s"):
        result = iq.simulate(chat, engine(), warmup=warmup)
        assert rows(result, "id", "measured") == [(0, False), (1, False), (2, True), (3, True)]
        assert result.summary()["duration_s"].item() == 2.0  # from 2 to 4
    every = iq.simulate(chat, engine()).summary()
    assert every["duration_s"].item() == 11.0


def test_sessions_close_their_loops_over_clusters_and_hand_offs() -> None:
    chat = turns((0.0, 10, 2, "a", None), (0.0, 10, 2, "b", None), (0.1, 10, 2, "a", 1.0))
    both = iq.simulate(chat, iq.Cluster(engine(), replicas=2, router=iq.BySession()))
    assert rows(both, "replica", "arrival_s", "finish_s") == [(0, 0.0, 2.0), (1, 0.0, 2.0), (0, 3.0, 5.0)]
    link = iq.Link(latency_s=0.5, bytes_per_s=1.0, bytes_per_token=0, concurrent=None)
    split = iq.Disaggregated(prefill=(engine(), 1), decode=(engine(), 1), link=link)
    handed = iq.simulate(chat, split)
    assert rows(handed, "arrival_s", "finish_s") == [(0.0, 2.5), (0.0, 2.5), (3.5, 6.0)]


def test_stepping_and_threads_change_nothing() -> None:
    draw = np.random.default_rng(2)
    chat = {
        "arrival_s": np.sort(draw.uniform(0, 50, 200)).round(3),
        "prompt_tokens": draw.integers(1, 700, 200),
        "output_tokens": draw.integers(1, 20, 200),
        "session_id": draw.integers(0, 40, 200),
        "think_s": draw.choice([0.0, 0.5, 3.0], 200),
    }
    runs = [
        iq.simulate(chat, iq.Cluster(engine(), replicas=3), stepping=stepping, threads=threads)
        for stepping, threads in ((False, None), (True, None), (False, 1))
    ]
    for other in runs[1:]:
        assert runs[0].requests.equals(other.requests)


def test_turns_that_never_arrive_are_a_finding() -> None:
    turns = {
        "arrival_s": [0.0, 1.0, 2.0],
        "prompt_tokens": [10, 99, 10],
        "output_tokens": [1, 1, 1],
        "session_id": ["a", "b", "b"],
        "think_s": [None, None, 1.0],
    }
    small = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.Sarathi(), kv=iq.KvCache(tokens=32))
    findings = iq.simulate(turns, small).findings
    assert [finding.data for finding in findings if finding.kind == "never-arrived"] == [{"count": 1}]
