"""The maximum request length of an engine, and the delay of its API."""

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
"""Iterations of one second, planned synchronously by default."""
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


# The maximum length


@pytest.mark.parametrize(
    "scheduler",
    [ONE_AT_A_TIME, iq.VllmV1(async_scheduling=True), iq.Sarathi(), iq.Sglang()],
)
def test_a_prompt_of_the_maximum_length_is_rejected_and_an_output_is_cut(scheduler: Any) -> None:
    # Limit of 12 tokens: 12 + 1 is rejected, 10 + 5 ends after 2, 7 + 5 is served whole, 11 + 9 after 1.
    workload = rows((0, 12, 1), (0, 10, 5), (0, 7, 5), (0, 11, 9))
    result = iq.simulate(workload, engine(scheduler=scheduler, max_model_len=12))
    seen = result.requests
    assert seen["status"].to_list() == ["rejected", "finished", "finished", "finished"]
    assert seen["output_tokens"].to_list()[1:] == [2, 5, 1]
    assert result.summary()["failed"].item() == 1
    assert result.summary()["output_throughput"].item() == pytest.approx(
        8 / result.summary()["duration_s"][0]
    )
    # One gap of a second, four in the longest output.
    assert seen["tpot_s"].to_list()[1:3] == [1.0, 1.0]
    refused, cut = result.findings[:2]
    assert refused.startswith("rejected: 1 of 4 requests (the first is 0)") and "max_model_len" in refused
    assert cut.kind == "truncated" and cut.data == {"count": 2, "total": 4, "first_request": 1}


def test_a_cut_output_equals_that_of_a_shorter_request() -> None:
    workload = rows(*((at / 7, 5 + at % 4, 1 + at % 9) for at in range(60)))
    shorter = {
        **workload,
        "output_tokens": [
            min(o, 9 - p) for p, o in zip(workload["prompt_tokens"], workload["output_tokens"], strict=True)
        ],
    }
    workload, shorter = ({**rows, "max_output_tokens": rows["output_tokens"]} for rows in (workload, shorter))
    for scheduler in (ONE_AT_A_TIME, iq.VllmV1(async_scheduling=True)):
        replica = engine(scheduler=scheduler)
        # The plan foresees the end of a cut output, like all ends here.
        cut = iq.simulate(workload, dataclasses.replace(replica, max_model_len=9)).requests
        assert cut.equals(iq.simulate(shorter, replica).requests)


def test_streams_and_stored_runs_and_fleets_cut_alike(tmp_path: Path) -> None:
    workload = rows(*((at / 5, 4 + at % 6, 1 + at % 11) for at in range(200)))
    single = engine(max_model_len=10)
    whole = iq.simulate(workload, single)
    stored = iq.simulate(workload, single, out=tmp_path / "out")
    assert stored.requests.collect().equals(whole.requests)
    assert iq.Result.read(tmp_path / "out").findings == whole.findings
    fleet = iq.simulate(workload, iq.Cluster(single, replicas=3, router=iq.RoundRobin()), threads=2)
    least_requests = iq.simulate(workload, iq.Cluster(single, replicas=1, router=iq.LeastRequests()))
    assert fleet.requests["output_tokens"].equals(whole.requests["output_tokens"])
    assert fleet.findings[:2] == whole.findings[:2]
    assert least_requests.requests["finish_s"].equals(whole.requests["finish_s"])


def test_both_sides_of_a_hand_off_have_the_same_maximum_length() -> None:
    link = iq.Link(0.0, 1e12, 1.0)
    workload = rows((0, 5, 9), (0, 8, 3))
    both = iq.Disaggregated(
        prefill=(engine(max_model_len=8), 1), decode=(engine(max_model_len=8), 1), link=link
    )
    seen = iq.simulate(workload, both).requests
    assert seen["status"].to_list() == ["finished", "rejected"] and seen["output_tokens"][0] == 3
    other = dataclasses.replace(both, decode=(engine(max_model_len=9), 1))
    with pytest.raises(iq.ConfigError, match="max_model_len: must be the same on both sides"):
        iq.simulate(workload, other)


def test_the_maximum_length_of_a_model_is_the_default_and_is_reported(tmp_path: Path) -> None:
    # ShareGPT has a conversation of 161,272 tokens; the limit of Llama-3.1-8B is 131,072.
    workload = rows((0, 161_272, 5), (0, 100, 5))
    result = iq.simulate(workload, iq.Engine.on("llama-3.1-8b", "h100-80gb"))
    assert result.requests["status"].to_list() == ["rejected", "finished"]
    assert "max_model_len" in result.findings[0]
    trace = tmp_path / "trace.csv"
    pl.DataFrame(workload).write_csv(trace)
    for more in ([], ["--model", "llama-3.1-8b", "--gpu", "h100-80gb"]):
        done = CliRunner().invoke(app, ["replay", str(trace), "--max-model-len", "102", *more])
        assert done.exit_code == 0, done.output
        assert "rejected: 1 of 2" in done.output and "truncated: the outputs of 1 of 2" in done.output
    table = {"model": "llama-3.1-8b", "gpu": "h100-80gb", "max_model_len": 102, "api_s": 0.0}
    made = iq.Engine.from_json(table)
    assert (made.max_model_len, made.api_s) == (102, 0)
    assert iq.Engine.from_json(made.to_json()) == made


# The API


def test_the_api_delay_is_part_of_ttft_and_e2e_only() -> None:
    workload = rows(*((at / 3, 20 + at % 50, 1 + at % 7) for at in range(80)))
    plain, behind = (iq.simulate(workload, engine(api_s=api)).requests for api in (0, 0.25))
    for name in ("first_token_s", "finish_s", "left_s", "ttft_s", "e2e_s"):
        assert behind[name].to_list() == pytest.approx((plain[name] + 0.25).to_list(), abs=1e-12)
    same = ("arrival_s", "admitted_s", "queue_s", "tpot_s", "max_itl_s", "status", "preemptions")
    assert behind.select(same).equals(plain.select(same))


def test_reports_show_the_api_delay_next_to_latencies(tmp_path: Path) -> None:
    workload = rows((0, 5, 2), (1, 5, 2))
    alone = iq.simulate(workload, engine(api_s=0.25), out=tmp_path / "run").summary()
    assert (
        alone["api_mean"].item() == 0.25 and iq.simulate(workload, engine()).summary()["api_mean"].item() == 0
    )
    # Round robin over two replicas; then a request that is too long does not finish.
    two, turns = iq.Cluster([engine(api_s=0.25), engine()], router=iq.RoundRobin()), rows(*[(0, 5, 2)] * 4)
    assert iq.simulate(turns, two).summary()["api_mean"].item() == 0.125
    assert iq.simulate(turns, two).summary(by="replica")["api_mean"].to_list() == [0.25, 0.0]
    refused = iq.simulate(rows((0, 5, 2), (1, 500, 2)), engine(api_s=0.25, max_model_len=100))
    assert refused.summary(by="status")["api_mean"].to_list() == [0.25, None]
    assert at_the_api(iq.simulate(workload, engine())) == ""
    assert at_the_api(iq.simulate(workload, engine(api_s=0.25))) == "250.0 ms"
    page = iq.report(iq.simulate(workload, engine(api_s=0.25)), tmp_path / "run.html")
    text = html.unescape(page.read_text(encoding="utf-8")).replace("\xa0", " ")
    assert "250.0 ms" in text


def test_a_closed_loop_waits_for_the_api_like_think_time() -> None:
    workload = iq.Workload({"prompt_tokens": [9] * 30, "output_tokens": [3] * 30})
    think, api = (
        iq.simulate(workload.closed_loop(4, ramp_s=2, think=thought), engine(api_s=api)).requests
        for thought, api in ((0.75, 0), (0.5, 0.25))
    )
    assert api["arrival_s"].equals(think["arrival_s"])
    assert api["admitted_s"].equals(think["admitted_s"])
    assert api["finish_s"].to_list() == pytest.approx((think["finish_s"] + 0.25).to_list())


def test_a_connection_is_free_after_the_response() -> None:
    # One connection, two requests of two batches: 2 s, 0.5 s of API delay, and 2 s again.
    result = iq.simulate(rows((0, 5, 2), (0, 5, 2)), engine(api_s=0.5), max_in_flight=1).requests
    assert result["arrival_s"].to_list() == [0.0, 2.5] and result["finish_s"].to_list() == [2.5, 5.0]
    two = iq.simulate(rows((0, 5, 1), (0, 5, 2), (0.2, 5, 1)), engine(api_s=0.5), max_in_flight=2).requests
    # Both start at 0; the first response arrives at 1.5, and the third request is served from 2 to 3.
    assert two["arrival_s"].to_list() == [0.0, 0.0, 1.5] and two["finish_s"].to_list() == [1.5, 2.5, 3.5]


def test_streams_and_networks_have_the_api_too(tmp_path: Path) -> None:
    workload = rows(*((at / 2, 9, 2) for at in range(50)))
    whole, stored = (
        iq.simulate(workload, engine(api_s=0.1)),
        iq.simulate(workload, engine(api_s=0.1), out=tmp_path),
    )
    assert stored.requests.collect().equals(whole.requests)
    stages = {
        "a": iq.Stage(engine="e", prompt=5, output=1),
        "b": iq.Stage(engine="e", prompt=5, output=1, after=["a"]),
    }
    network = iq.Network(engines={"e": engine(api_s=0.5)}, workflows=[iq.Workflow("w", stages=stages)])
    # One second each, and twice half a second of API delay.
    assert iq.simulate({"arrival_s": [0.0]}, network).jobs["e2e_s"].to_list() == [3.0]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_model_len": 1}, "max_model_len: must be at least 2 .*got 1"),
        ({"max_model_len": 0}, "max_model_len"),
        ({"max_model_len": "long"}, "max_model_len"),
        ({"api_s": -0.1}, "api_s"),
        ({"api_s": 7.5}, "api_s: 7.5 s looks like milliseconds"),
        ({"api_s": float("nan")}, "api_s"),
    ],
)
def test_invalid_lengths_and_delays_are_rejected(given: dict[str, Any], message: str) -> None:
    with pytest.raises(iq.ConfigError, match=message):
        engine(**given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"beyond_graph_s": 0.001}, "requires largest_graph_tokens"),
        ({"largest_graph_tokens": 512}, "requires largest_graph_tokens"),
        ({"largest_graph_tokens": -1, "beyond_graph_s": 0.001}, "largest_graph_tokens"),
        ({"launch_s": 12}, "launch_s: 12 s looks like milliseconds"),
        ({"exposed_s": 2}, "exposed_s: 2 s looks like milliseconds"),
        ({"largest_graph_tokens": 512, "beyond_graph_s": 3}, "looks like milliseconds"),
    ],
)
def test_a_graph_size_requires_a_time_beyond_it(given: dict[str, Any], message: str) -> None:
    with pytest.raises(iq.ConfigError, match=message):
        iq.Overhead(**given)


def test_theory_bounds_a_batch_beyond_the_graph_from_both_sides() -> None:
    work = iq.Workload.synthetic(
        requests=9, arrivals=iq.dist.Poisson(1.0), prompt=iq.dist.Fixed(100), output=iq.dist.Fixed(10)
    )
    host = iq.Overhead(base_s=0.01, largest_graph_tokens=64, beyond_graph_s=0.02)
    capacity = {}
    for name, host_time in (
        ("host", host),
        ("none", iq.Overhead(base_s=0.01)),
        ("every", iq.Overhead(base_s=0.03)),
    ):
        result = iq.theory.stability(work, engine(timing=iq.Constant(0.05), overhead=host_time))
        capacity[name] = {
            kind: [b.capacity_per_s for b in result.bounds if b.kind == kind]
            for kind in ("upper_bound", "guarantee")
        }
    assert capacity["host"]["upper_bound"] == capacity["none"]["upper_bound"]
    assert capacity["host"]["guarantee"] == pytest.approx(capacity["every"]["guarantee"])
    with pytest.raises(iq.ConfigError, match="jumps at a batch size"):
        iq.theory.token_capacity(work, engine(timing=iq.Constant(0.05), overhead=host))
