"""Clients: closed loops of users, limits of requests in flight, backlogs, gamma gaps, cancellation."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

import inferq as iq
from inferq.cli import app

from .arriving import arriving
from .refusals import refused

SLOTS = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.Sarathi(), kv=iq.KvCache.unlimited())


def requests(outputs: list[int], arrivals: list[float] | None = None) -> dict[str, Any]:
    """Return requests with prompts of one token."""
    at = [0.0] * len(outputs) if arrivals is None else arrivals
    return {"arrival_s": at, "prompt_tokens": [1] * len(outputs), "output_tokens": outputs}


def random_requests(seed: int) -> pl.DataFrame:
    return arriving(60, 4.0, iq.dist.Uniform(low=1, high=40), iq.dist.Geometric(mean=8)).draw(seed).frame


# Limits of requests in flight


@pytest.mark.parametrize("seed", range(3))
def test_with_one_in_flight_each_request_is_sent_when_the_previous_one_finishes(seed: int) -> None:
    work = random_requests(seed)
    rows = iq.simulate(work, SLOTS, max_in_flight=1).requests
    finish_s = 0.0
    for due_s, sent_s, ends_s in zip(work["arrival_s"], rows["arrival_s"], rows["finish_s"], strict=True):
        assert sent_s == pytest.approx(max(due_s, finish_s), abs=1e-9)
        finish_s = ends_s
    # A request alone needs one iteration for its prompt and one for each further token.
    assert (rows["e2e_s"] - rows["output_tokens"]).abs().max() <= 1e-9  # type: ignore[operator]


@pytest.mark.parametrize("most", [2, 7])
def test_a_fleet_respects_the_limit_and_latencies_start_when_requests_are_sent(most: int) -> None:
    fleet = iq.Cluster(SLOTS, replicas=3, router=iq.LeastRequests())
    rows = iq.simulate(random_requests(5), fleet, max_in_flight=most).requests
    sent, left = rows["arrival_s"].to_numpy(), rows["finish_s"].to_numpy()
    assert max(int(((sent <= at) & (left > at)).sum()) for at in sent) == most
    assert np.allclose(rows["ttft_s"], rows["first_token_s"] - rows["arrival_s"], atol=1e-9)
    free = iq.simulate(random_requests(5), fleet, max_in_flight=60).requests
    assert free.equals(iq.simulate(random_requests(5), fleet).requests)


def test_the_limit_is_recorded_and_applies_to_stored_runs(tmp_path: Path) -> None:
    work = random_requests(1)
    result = iq.simulate(work, SLOTS, max_in_flight=3)
    assert iq.Scenario.read(result.scenario).run().requests.equals(result.requests)
    stored = iq.simulate(work, SLOTS, max_in_flight=3, out=tmp_path / "out")
    assert stored.requests.collect().equals(result.requests)
    assert "max_in_flight" not in iq.simulate(work, SLOTS).scenario


def test_a_request_with_zero_patience_is_replaced_immediately() -> None:
    # The second request has no patience and the batch is full: it leaves, and the third is sent.
    engine = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.Sarathi(max_seqs=1), kv=iq.KvCache.unlimited())
    work = requests([3, 1, 1]) | {"patience_s": [None, 0.0, None]}
    rows = iq.simulate(work, engine, max_in_flight=2).requests
    assert rows["status"].to_list() == ["finished", "abandoned", "finished"]
    assert rows["arrival_s"].to_list() == [0.0, 0.0, 0.0]


@refused(
    (0, "max_in_flight: must be an integer from 1"),
    (2.5, "max_in_flight: must be an integer"),
    (True, "max_in_flight: "),
)
def test_a_wrong_limit_is_an_error(most: Any) -> None:
    iq.simulate(requests([1]), SLOTS, max_in_flight=most)


def test_a_network_does_not_support_the_limit() -> None:
    ask = iq.Workflow("ask", stages={"answer": iq.Stage("chat", prompt=10, output=iq.dist.Fixed(2))})
    with pytest.raises(iq.ConfigError, match="max_in_flight: is not available for a Network"):
        iq.simulate({"arrival_s": [0.0]}, iq.Network({"chat": SLOTS}, [ask]), max_in_flight=2)


# A closed loop


def test_a_closed_loop_of_equal_requests_equals_a_backlog_with_a_limit() -> None:
    lengths = {"prompt_tokens": [16] * 24, "output_tokens": [6] * 24}
    loop = iq.simulate(iq.Workload(lengths).closed_loop(4), SLOTS).requests
    backlog = iq.simulate(iq.Workload(lengths).at_once(), SLOTS, max_in_flight=4).requests
    assert loop.equals(backlog)


def test_a_user_sends_the_next_request_a_think_time_after_the_answer() -> None:
    # Iterations of 1 s: two users with requests of 2 and 3 tokens and a think time of 0.5 s.
    loop = iq.Workload(requests([2, 3, 2, 3])).closed_loop(2, think=0.5)
    rows = iq.simulate(loop, SLOTS).requests
    # They finish at 2 and 3 s and send again at 2.5 and 3.5 s. Request 2 is in the batches at 3 and 4 s,
    # request 3 in those at 4, 5 and 6 s.
    assert rows["arrival_s"].to_list() == [0.0, 0.0, 2.5, 3.5]
    assert rows["finish_s"].to_list() == [2.0, 3.0, 5.0, 7.0]


def test_the_rate_of_a_closed_loop_follows_from_littles_law() -> None:
    # N users are either waiting for an answer or thinking.
    users, think_s = 8, 3.0
    lengths = {"prompt_tokens": [4] * 800, "output_tokens": [5] * 800}
    rows = iq.simulate(iq.Workload(lengths).closed_loop(users, ramp_s=8.0, think=think_s), SLOTS).requests
    span_s = rows["finish_s"].max() - rows["finish_s"][users - 1]  # type: ignore[operator]
    assert (800 - users) / span_s == pytest.approx(users / (rows["e2e_s"].mean() + think_s), rel=0.01)


def test_users_start_evenly_over_the_ramp() -> None:
    frame = iq.Workload({"prompt_tokens": [4] * 6}).closed_loop(4, ramp_s=2.0).frame
    assert frame["arrival_s"].to_list() == [0.0, 0.5, 1.0, 1.5, 1.5, 1.5]
    assert frame["think_s"].to_list() == [None] * 4 + [0.0, 0.0]


def test_a_random_think_time_is_drawn_with_the_seed_of_the_run() -> None:
    loop = iq.Workload(requests([2] * 12)).closed_loop(3, think=iq.dist.Exponential(mean_s=0.1))
    assert loop.is_synthetic
    first, second = (iq.simulate(loop, SLOTS, seed=seed) for seed in (1, 2))
    assert not first.requests["arrival_s"].equals(second.requests["arrival_s"])
    assert iq.Scenario.read(first.scenario).run().requests.equals(first.requests)


@refused(
    ({"users": 0}, "users: must be an integer from 1"),
    ({"users": 2, "ramp_s": -1}, "ramp_s: must be from 0"),
    ({"users": 2, "think": "long"}, "think: must be seconds"),
)
def test_a_wrong_closed_loop_is_an_error(arguments: dict[str, Any]) -> None:
    iq.Workload(requests([1])).closed_loop(**arguments)


def test_a_closed_loop_of_sessions_is_an_error() -> None:
    with pytest.raises(iq.TraceError, match="closed_loop: not supported with session_id"):
        iq.Workload(requests([1, 1]) | {"session_id": [1, 1]}).closed_loop(2)


# On the command line and in TOML


TRACE = "traces/azure_2023.csv"


def replayed(*arguments: str, out: Path) -> pl.DataFrame:
    done = CliRunner().invoke(app, ["replay", TRACE, "--head", "60", *arguments, "--out", str(out)])
    assert done.exit_code == 0, done.output
    return pl.read_parquet(out / "requests.parquet")


def test_the_command_line_supports_the_same_clients(tmp_path: Path) -> None:
    loop = replayed("--concurrency", "5", "--ramp", "1", out=tmp_path / "loop")
    assert loop["arrival_s"][:5].to_list() == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8])
    most = replayed("--request-rate", "inf", "--max-in-flight", "5", out=tmp_path / "most")
    assert (most["arrival_s"] == 0).sum() == 5
    drawn = replayed("--request-rate", "2", "--burstiness", "0.25", out=tmp_path / "gamma")
    trace = iq.read_trace(TRACE).head(60).with_arrivals(iq.dist.Gamma(2.0, cv=2.0)).draw(0).frame
    assert np.allclose(drawn["arrival_s"], trace["arrival_s"])


def toml(value: Any) -> str:
    """Return a JSON value in TOML, without null."""
    if isinstance(value, dict):
        fields = [f"{name} = {toml(field)}" for name, field in value.items() if field is not None]
        return "{" + ", ".join(fields) + "}"
    return json.dumps(value)


@pytest.mark.parametrize(
    ("flags", "workload", "run", "transformed"),
    [
        (
            ("--concurrency", "4", "--ramp", "2"),
            "concurrency = 4\nramp_s = 2.0",
            "",
            lambda trace: trace.closed_loop(4, ramp_s=2.0),
        ),
        (
            ("--request-rate", "inf", "--max-in-flight", "3"),
            "request_rate = inf",
            "max_in_flight = 3",
            lambda trace: trace.at_once(),
        ),
        (
            ("--request-rate", "2", "--burstiness", "0.25", "--max-in-flight", "7"),
            "request_rate = 2\nburstiness = 0.25",
            "max_in_flight = 7",
            lambda trace: trace.with_arrivals(iq.dist.Gamma(2.0, cv=2.0)),
        ),
    ],
)
def test_shell_toml_and_python_have_the_same_clients(
    tmp_path: Path, flags: tuple[str, ...], workload: str, run: str, transformed: Any
) -> None:
    shell = replayed(*flags, out=tmp_path / "shell")
    ran = json.loads((tmp_path / "shell" / "scenario.json").read_text(encoding="utf-8"))
    written = tmp_path / "written.toml"
    written.write_text(
        f'engine = {toml(ran["engine"])}\n[workload]\ntrace = "{Path(TRACE).resolve()}"\n'
        f"head = 60\n{workload}\n"
        f"[run]\nseed = 0\n{run}\n",
        encoding="utf-8",
    )
    scenario = iq.Scenario.read(written)
    assert scenario.run().requests.equals(shell)
    work = transformed(iq.read_trace(TRACE).head(60))
    bound = re.search(r"max_in_flight = (\d+)", run)
    more = {} if bound is None else {"max_in_flight": int(bound[1])}
    assert iq.simulate(work, scenario.system, seed=0, **more).requests.equals(shell)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--concurrency", "4", "--rate", "2"), "concurrency: cannot be combined with rate"),
        (("--ramp", "4"), "ramp_s: requires concurrency"),
        (("--burstiness", "0.5"), "burstiness: requires request_rate"),
        (("--request-rate", "2", "--rate", "2"), "request_rate: cannot be combined with rate or speed"),
        (("--request-rate", "2", "--burstiness", "0"), "burstiness: must be"),
        (("--max-in-flight", "0"), "max_in_flight: must be an integer from 1"),
        (("--concurrency", "0"), "concurrency: must be an integer from 1"),
    ],
)
def test_contradictory_clients_are_an_error(arguments: tuple[str, ...], message: str) -> None:
    done = CliRunner().invoke(app, ["replay", TRACE, *arguments])
    assert done.exit_code == 2 and message in done.output


@pytest.mark.parametrize("stepping", [False, True])
def test_patience_that_ends_when_a_batch_begins_changes_the_next_batch(stepping: bool) -> None:
    """Iterations of 1 s with async scheduling, 40 tokens: row 1 does not fit with row 0 and blocks row 2.

    The patience of row 1 ends at 5 s. The batch of that time was planned at 4 s; row 2 is in the next one.
    """
    work = {
        "arrival_s": [0.0, 1.0, 2.0],
        "prompt_tokens": [10, 35, 2],
        "output_tokens": [25, 5, 2],
        "patience_s": [None, 4.0, None],
    }
    ahead = iq.Engine(
        timing=iq.Constant(1.0), scheduler=iq.VllmV1(pause_s=0.0), kv=iq.KvCache(tokens=40, block=1)
    )
    rows = iq.simulate(work, ahead, stepping=stepping).requests
    assert rows["status"].to_list() == ["finished", "abandoned", "finished"]
    assert rows["admitted_s"].to_list() == [0.0, None, 6.0]


# Cancellation


def test_a_canceled_request_leaves_immediately_or_with_its_next_token() -> None:
    """`max_seqs` 1, iterations of a second, prompts of 10 tokens, 4 per iteration.

    Row 0 decodes from 3 s on; canceled at 4.6 s, it leaves with its token at 5 s. Row 1 is admitted then and
    canceled during its prompt at 5.5 s: it leaves with its first token at 8 s. Row 2 waits and leaves at
    6.25 s. Row 3 is canceled when it arrives. Row 4 starts at 8 s and finishes at 12 s, before cancellation.
    """
    scheduler = iq.Sarathi(token_budget=4, max_seqs=1)
    engine = iq.Engine(timing=iq.Constant(1.0), scheduler=scheduler, kv=iq.KvCache(tokens=64))
    work = {
        "arrival_s": [0.0, 1.0, 1.5, 2.0, 3.0],
        "prompt_tokens": [10] * 5,
        "output_tokens": [9, 9, 9, 9, 2],
        "cancel_s": [4.6, 4.5, 4.75, 0.0, 9.5],
    }
    for options in ({}, {"stepping": True}):
        result = iq.simulate(work, engine, **options)  # type: ignore[arg-type]
        assert "canceled: clients canceled 4 of 5 requests" in result.findings
        rows = result.requests
        assert rows["status"].to_list() == ["abandoned"] * 4 + ["finished"]
        assert rows["left_s"].to_list() == [5.0, 8.0, 6.25, 2.0, 12.0]
        assert rows["admitted_s"].to_list() == [0.0, 5.0, None, None, 8.0]
        assert rows["first_token_s"].to_list() == [3.0, 8.0, None, None, 11.0]
        assert rows["finish_s"].to_list() == [None] * 4 + [12.0]
    fleet = iq.Disaggregated(prefill=(engine, 1), decode=(engine, 1), link=iq.Link(5.0, 1e9, 1))
    rows = iq.simulate({name: values[:1] for name, values in work.items()}, fleet).requests
    # The KV cache is transferred from 3 to 8 s; the first decode ends an iteration later.
    assert rows.select("status", "left_s", "replica").rows() == [
        ("abandoned", pytest.approx(9.0, abs=1e-6), 1)
    ]
    with pytest.raises(iq.TraceError, match="row 0: cancel_s is -1"):
        iq.simulate({**work, "cancel_s": [-1.0, 1, 1, 1, 1]}, engine)
