"""What stands between an engine and its clients: the longest request, and the time of the API."""

from __future__ import annotations

import dataclasses
import html
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner

import inferq as iq
from inferq.cli import app
from inferq.reports.run_tables import at_the_api

SLOTS = {"timing": iq.Constant(1.0), "kv": iq.KvCache.unlimited()}
"""Batches of a second, planned one at a time unless the scheduler says otherwise."""
ONE_AT_A_TIME = iq.VllmV1(async_scheduling=False)


def engine(**given: Any) -> iq.Engine:
    return iq.Engine(**{**SLOTS, "scheduler": ONE_AT_A_TIME, **given})


def rows(*requests: tuple[float, int, int]) -> dict[str, list[Any]]:
    return dict(
        zip(
            ("arrival_s", "prompt_tokens", "output_tokens"),
            map(list, zip(*requests, strict=True)),
            strict=True,
        )
    )


# The longest request


@pytest.mark.parametrize(
    "scheduler",
    [ONE_AT_A_TIME, iq.VllmV1(async_scheduling=True), iq.Sarathi(), iq.Sglang()],
)
def test_a_prompt_of_the_longest_length_is_refused_and_an_output_ends_with_it(scheduler: Any) -> None:
    # Of 12 tokens: 12 + 1 is refused, 10 + 5 ends after 2, 7 + 5 is served whole, 11 + 9 after 1.
    asked = rows((0, 12, 1), (0, 10, 5), (0, 7, 5), (0, 11, 9))
    result = iq.simulate(asked, engine(scheduler=scheduler, max_model_len=12))
    seen = result.requests
    assert seen["status"].to_list() == ["rejected", "finished", "finished", "finished"]
    assert seen["output_tokens"].to_list()[1:] == [2, 5, 1]
    assert result.summary()["failed"].item() == 1
    assert result.summary()["output_throughput"].item() == pytest.approx(
        8 / result.summary()["duration_s"][0]
    )
    # One gap of a second each, four in the longest.
    assert seen["tpot_s"].to_list()[1:3] == [1.0, 1.0]
    refused, cut = result.findings[:2]
    assert refused.startswith("rejected: 1 of 4 requests (the first is 0)") and "max_model_len" in refused
    assert cut.kind == "truncated" and cut.data == {"count": 2, "total": 4, "first_request": 1}


def test_the_output_that_is_cut_is_that_of_a_shorter_request() -> None:
    asked = rows(*((at / 7, 5 + at % 4, 1 + at % 9) for at in range(60)))
    shorter = {
        **asked,
        "output_tokens": [
            min(o, 9 - p) for p, o in zip(asked["prompt_tokens"], asked["output_tokens"], strict=True)
        ],
    }
    asked, shorter = ({**one, "max_output_tokens": one["output_tokens"]} for one in (asked, shorter))
    for scheduler in (ONE_AT_A_TIME, iq.VllmV1(async_scheduling=True)):
        one = engine(scheduler=scheduler)
        # The end of an output that is cut is foreseen, as all others are here.
        cut = iq.simulate(asked, dataclasses.replace(one, max_model_len=9)).requests
        assert cut.equals(iq.simulate(shorter, one).requests)


def test_streams_and_stored_runs_and_fleets_cut_alike(tmp_path: Path) -> None:
    asked = rows(*((at / 5, 4 + at % 6, 1 + at % 11) for at in range(200)))
    one = engine(max_model_len=10)
    whole = iq.simulate(asked, one)
    stored = iq.simulate(asked, one, out=tmp_path / "out")
    assert stored.requests.collect().equals(whole.requests)
    assert iq.Result.read(tmp_path / "out").findings == whole.findings
    fleet = iq.simulate(asked, iq.Cluster(one, replicas=3, router=iq.RoundRobin()), threads=2)
    looked = iq.simulate(asked, iq.Cluster(one, replicas=1, router=iq.LeastRequests()))
    assert fleet.requests["output_tokens"].equals(whole.requests["output_tokens"])
    assert fleet.findings[:2] == whole.findings[:2]
    assert looked.requests["finish_s"].equals(whole.requests["finish_s"])


def test_both_sides_of_a_hand_off_have_one_longest_length() -> None:
    link = iq.Link(0.0, 1e12, 1.0)
    asked = rows((0, 5, 9), (0, 8, 3))
    both = iq.Disaggregated(
        prefill=(engine(max_model_len=8), 1), decode=(engine(max_model_len=8), 1), link=link
    )
    seen = iq.simulate(asked, both).requests
    assert seen["status"].to_list() == ["finished", "rejected"] and seen["output_tokens"][0] == 3
    other = dataclasses.replace(both, decode=(engine(max_model_len=9), 1))
    with pytest.raises(iq.ConfigError, match="max_model_len: must be the same on both sides"):
        iq.simulate(asked, other)


def test_the_longest_request_of_a_model_is_the_default_and_the_shell_says_it(tmp_path: Path) -> None:
    # ShareGPT has one conversation of 161,272 tokens; Llama-3.1-8B ends at 131,072.
    asked = rows((0, 161_272, 5), (0, 100, 5))
    result = iq.simulate(asked, iq.Engine.on("llama-3.1-8b", "h100-80gb"))
    assert result.requests["status"].to_list() == ["rejected", "finished"]
    assert "max_model_len" in result.findings[0]
    trace = tmp_path / "trace.csv"
    pl.DataFrame(asked).write_csv(trace)
    for more in ([], ["--model", "llama-3.1-8b", "--gpu", "h100-80gb"]):
        done = CliRunner().invoke(app, ["replay", str(trace), "--max-model-len", "102", *more])
        assert done.exit_code == 0, done.output
        assert "rejected: 1 of 2" in done.output and "truncated: the outputs of 1 of 2" in done.output
    table = {"model": "llama-3.1-8b", "gpu": "h100-80gb", "max_model_len": 102, "api_s": 0.0}
    made = iq.Engine.from_json(table)
    assert (made.max_model_len, made.api_s) == (102, 0)
    assert iq.Engine.from_json(made.to_json()) == made


# The API


def test_the_api_is_a_part_of_ttft_and_e2e_and_of_nothing_in_the_engine() -> None:
    asked = rows(*((at / 3, 20 + at % 50, 1 + at % 7) for at in range(80)))
    plain, behind = (iq.simulate(asked, engine(api_s=api)).requests for api in (0, 0.25))
    for name in ("first_token_s", "finish_s", "left_s", "ttft_s", "e2e_s"):
        assert behind[name].to_list() == pytest.approx((plain[name] + 0.25).to_list(), abs=1e-12)
    same = ("arrival_s", "admitted_s", "queue_s", "tpot_s", "max_itl_s", "status", "preemptions")
    assert behind.select(same).equals(plain.select(same))


def test_what_is_the_apis_is_said_beside_the_latencies(tmp_path: Path) -> None:
    asked = rows((0, 5, 2), (1, 5, 2))
    alone = iq.simulate(asked, engine(api_s=0.25), out=tmp_path / "run").summary()
    assert alone["api_mean"].item() == 0.25 and iq.simulate(asked, engine()).summary()["api_mean"].item() == 0
    # By turns at two replicas; and none that finishes where it is too long.
    two, turns = iq.Cluster([engine(api_s=0.25), engine()], router=iq.RoundRobin()), rows(*[(0, 5, 2)] * 4)
    assert iq.simulate(turns, two).summary()["api_mean"].item() == 0.125
    assert iq.simulate(turns, two).summary(by="replica")["api_mean"].to_list() == [0.25, 0.0]
    refused = iq.simulate(rows((0, 5, 2), (1, 500, 2)), engine(api_s=0.25, max_model_len=100))
    assert refused.summary(by="status")["api_mean"].to_list() == [0.25, None]
    assert at_the_api(iq.simulate(asked, engine())) == ""
    assert at_the_api(iq.simulate(asked, engine(api_s=0.25))) == "250.0 ms"
    page = iq.report(iq.simulate(asked, engine(api_s=0.25)), tmp_path / "run.html")
    held = html.unescape(page.read_text(encoding="utf-8")).replace("\xa0", " ")
    assert "Of every TTFT and E2E 250.0 ms are the API's" in held


def test_a_closed_loop_waits_for_the_api_as_for_a_thought() -> None:
    asked = iq.Workload({"prompt_tokens": [9] * 30, "output_tokens": [3] * 30})
    think, api = (
        iq.simulate(asked.closed_loop(4, ramp_s=2, think=thought), engine(api_s=api)).requests
        for thought, api in ((0.75, 0), (0.5, 0.25))
    )
    assert api["arrival_s"].equals(think["arrival_s"])
    assert api["admitted_s"].equals(think["admitted_s"])
    assert api["finish_s"].to_list() == pytest.approx((think["finish_s"] + 0.25).to_list())


def test_a_connection_is_free_when_the_answer_is_there() -> None:
    # One connection, two requests of two batches: 2 s, a half on the way, and 2 s again.
    one = iq.simulate(rows((0, 5, 2), (0, 5, 2)), engine(api_s=0.5), max_in_flight=1).requests
    assert one["arrival_s"].to_list() == [0.0, 2.5] and one["finish_s"].to_list() == [2.5, 5.0]
    two = iq.simulate(rows((0, 5, 1), (0, 5, 2), (0.2, 5, 1)), engine(api_s=0.5), max_in_flight=2).requests
    # Both start at 0; the first is there at 1.5, and the third is served from 2 to 3.
    assert two["arrival_s"].to_list() == [0.0, 0.0, 1.5] and two["finish_s"].to_list() == [1.5, 2.5, 3.5]


def test_streams_and_networks_have_the_api_too(tmp_path: Path) -> None:
    asked = rows(*((at / 2, 9, 2) for at in range(50)))
    whole, stored = iq.simulate(asked, engine(api_s=0.1)), iq.simulate(asked, engine(api_s=0.1), out=tmp_path)
    assert stored.requests.collect().equals(whole.requests)
    stages = {
        "a": iq.Stage(engine="e", prompt=5, output=1),
        "b": iq.Stage(engine="e", prompt=5, output=1, after=["a"]),
    }
    network = iq.Network(engines={"e": engine(api_s=0.5)}, workflows=[iq.Workflow("w", stages=stages)])
    # A second each, and twice half a second on the way.
    assert iq.simulate({"arrival_s": [0.0]}, network).jobs["e2e_s"].to_list() == [3.0]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"max_model_len": 1}, "max_model_len: must be at least 2 .*got 1"),
        ({"max_model_len": 0}, "max_model_len"),
        ({"max_model_len": "long"}, "max_model_len"),
        ({"api_s": -0.1}, "api_s"),
        ({"api_s": 7.5}, "api_s: 7.5 s looks like milliseconds"),
        ({"api_s": float("nan")}, "api_s"),
    ],
)
def test_what_is_no_length_and_no_time_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(iq.ConfigError, match=said):
        engine(**given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"beyond_graph_s": 0.001}, "largest_graph_tokens say one thing together"),
        ({"largest_graph_tokens": 512}, "largest_graph_tokens say one thing together"),
        ({"largest_graph_tokens": 0, "beyond_graph_s": 0.001}, "largest_graph_tokens"),
        ({"largest_graph_tokens": 512, "beyond_graph_s": 3}, "looks like milliseconds"),
    ],
)
def test_a_graph_has_a_size_and_a_batch_beyond_it_a_time(given: dict[str, Any], said: str) -> None:
    with pytest.raises(iq.ConfigError, match=said):
        iq.Overhead(**given)


def test_theory_takes_a_batch_beyond_the_graph_as_none_and_as_every() -> None:
    work = iq.Workload.synthetic(
        requests=9, arrivals=iq.dist.Poisson(1.0), prompt=iq.dist.Fixed(100), output=iq.dist.Fixed(10)
    )
    host = iq.Overhead(base_s=0.01, largest_graph_tokens=64, beyond_graph_s=0.02)
    capacity = {}
    for name, one in (
        ("host", host),
        ("none", iq.Overhead(base_s=0.01)),
        ("every", iq.Overhead(base_s=0.03)),
    ):
        found = iq.theory.stability(work, engine(timing=iq.Constant(0.05), overhead=one))
        capacity[name] = {
            kind: [b.capacity_per_s for b in found.bounds if b.kind == kind]
            for kind in ("upper_bound", "guarantee")
        }
    assert capacity["host"]["upper_bound"] == capacity["none"]["upper_bound"]
    assert capacity["host"]["guarantee"] == pytest.approx(capacity["every"]["guarantee"])
    with pytest.raises(iq.ConfigError, match="jumps at a batch's size"):
        iq.theory.token_capacity(work, engine(timing=iq.Constant(0.05), overhead=host))
