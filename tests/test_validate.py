"""`inferq validate`: is a measured run simulated as it was run, and are its errors what is said?"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner

import inferq as iq
from inferq.cli import app
from inferq.experiments.validation.clients import client_for
from inferq.experiments.validation.measured_run import MeasuredRun
from inferq.experiments.validation.reading import read_runs
from inferq.experiments.validation.settings import Assumptions, engine_for
from inferq.systems.servers import Server, sglang_share
from inferq.timing.hardware.gpu import Gpu
from inferq.timing.hardware.model_shape import ModelShape
from inferq_papers.hardware.engines import one_at_a_time, without_times

MEASURED = Path(__file__).parent / "measured"
RUNS, REQUESTS = MEASURED / "runs.csv", MEASURED / "requests.csv"
HEADER = (
    "id,engine,engine_version,model,gpu,tp,concurrency,n_requests,input_mean,output_mean,"
    "ttft_mean_s,e2e_mean_s"
)
ROW = "one,vllm,0.12.0,Qwen/Qwen3-8B,h100-80gb,1,1,10,10,5,0.04,0.08"


def written(folder: Path, *lines: str, name: str = "runs.csv") -> Path:
    file = folder / name
    file.write_text("\n".join(lines) + "\n")
    return file


def slots(run: MeasuredRun, assumed: Assumptions) -> iq.Engine:
    """An engine of slots of 20 ms instead of a server."""
    return iq.Engine(
        timing=iq.Constant(0.02), scheduler=iq.VllmV1(async_scheduling=False), kv=iq.KvCache.unlimited()
    )


@pytest.fixture(scope="module")
def all_runs() -> iq.experiments.validation.validation.Validation:
    return iq.validate(RUNS, requests=REQUESTS)


# What an error is


def test_errors_are_simulated_over_measured_less_one(tmp_path: Path) -> None:
    # One user under slots of 20 ms: TTFT 20 ms, five tokens in 100 ms.
    found = iq.validate(written(tmp_path, HEADER, ROW), engine=slots)
    assert found.frame.select("metric", "measured", "simulated").rows() == [
        ("ttft_mean", 0.04, pytest.approx(0.02)),
        ("e2e_mean", 0.08, pytest.approx(0.1)),
    ]
    assert found.frame["error"].to_list() == pytest.approx([-0.5, 0.25])
    errors = found.errors()
    assert errors["median"].to_list() == pytest.approx([0.5, 0.25])
    assert errors["bias"].to_list() == pytest.approx([-0.5, 0.25])


def test_median_and_percentile_are_of_sizes_and_groups_are_apart(tmp_path: Path) -> None:
    # TTFT of 20 ms against 25, 20, 16 and 10 ms: errors −20, 0, 25 and 100 %.
    rows = [
        f"r{place},vllm,0.{place // 2}.0,qwen3-8b,h100-80gb,1,1,4,10,5,{ttft},1"
        for place, ttft in enumerate((0.025, 0.020, 0.016, 0.010))
    ]
    found = iq.validate(written(tmp_path, HEADER, *rows), engine=slots)
    whole = found.errors().filter(metric="ttft_mean").row(0, named=True)
    # Sizes in order: 0, 0.2, 0.25, 1; the 90th percentile is 0.25 + 0.7 · 0.75.
    assert (whole["median"], whole["p90"]) == (pytest.approx(0.225), pytest.approx(0.775))
    assert whole["bias"] == pytest.approx(0.125)
    by = found.errors("engine_version").filter(metric="ttft_mean")
    assert by["median"].to_list() == pytest.approx([0.1, 0.625])
    assert found.worst("ttft_mean", 2)["run"].to_list() == ["r3", "r2"]
    common = found.in_common("ttft_mean").row(0, named=True)
    assert (common["column"], common["value"], common["of_all"]) == ("engine_version", "0.1.0", 0.5)
    assert found.beyond({"ttft_mean": 0.23}, {"ttft_mean": 0.7}) == [
        "p90 error of ttft_mean is 77.5 %, the limit is 70 %"
    ]


# How a run is simulated


def run(**settings: Any) -> MeasuredRun:
    told = dict(
        id="one",
        place="here",
        engine="vllm",
        engine_version="0.15.1",
        model="meta-llama/Llama-3.1-8B-Instruct",
        gpu="h100-80gb",
        tp=1,
        input_mean=100.0,
        output_mean=20.0,
    )
    return MeasuredRun(**{**told, **settings})


def test_a_constant_rate_is_exponential_gaps_scaled_to_the_length_of_the_stage() -> None:
    client = client_for(
        run(arrival="constant", rate_rps=5.0, n_requests=300, duration_s=60.0), Assumptions(), 1
    )
    arrivals = client.frame["arrival_s"]
    assert arrivals[-1] == 60.0 and arrivals.len() == 300
    gaps = arrivals.diff().drop_nulls()
    assert gaps.std() / gaps.mean() == pytest.approx(1, abs=0.15)  # type: ignore[operator]


def test_prompts_in_rotation_share_what_their_group_shares() -> None:
    law = "20 fixed prompts in rotation: 30 shared by 5 + 60 own, retokenised"
    told = run(
        arrival="constant", rate_rps=5.0, n_requests=50, duration_s=10.0, input_law=law, input_mean=99.5
    )
    assumed = Assumptions()
    frame = client_for(told, assumed, 1).frame
    assert frame["prompt_tokens"][:20].mean() == 99.5
    assert frame["prompt_tokens"][:20].equals(frame["prompt_tokens"][20:40])
    work = iq.Workload(frame)
    reused = work.reuse(block=1)
    shared = frame["prompt_tokens"] * 30 / 90
    # First of a group: nothing; others of the group: the shared part; from the second round on all but one.
    for place in range(20):
        expected = 0 if place % 5 == 0 else shared[place]
        assert reused[place] == pytest.approx(expected, abs=1)
    assert (frame["prompt_tokens"][20:] - reused[20:]).to_list() == [1] * 30
    assert {"order of prompts", "prompt lengths"} <= set(assumed.settings)


def test_stages_of_one_server_find_the_cache_of_those_before(tmp_path: Path) -> None:
    header = (
        "id,engine,engine_version,model,gpu,tp,arrival,rate_rps,n_requests,duration_s,prefix_cache,kv_blocks,"
        "input_law,input_mean,output_mean,ttft_mean_s"
    )
    law = '"10 fixed prompts in rotation: 100 shared by 5 + 100 own"'
    rows = [
        f"x-s{stage},vllm,0.15.1,qwen3-8b,h100-80gb,1,constant,5,40,8,{{cache}},4000,{law},200,9,0.01"
        for stage in (0, 1)
    ]
    both = iq.validate(written(tmp_path, header, *(row.format(cache="blocks") for row in rows)))
    alone = iq.validate(written(tmp_path, header, rows[1].format(cache="blocks")))
    without = iq.validate(written(tmp_path, header, *(row.format(cache="none") for row in rows)))
    first, second = both.runs["cached_share"].to_list()
    # Of the first 10 of 40 prompts only what the group shares is there, of the others whole blocks.
    assert 0.6 < first < second and second == pytest.approx(192 / 200, abs=1e-9)
    assert alone.runs["cached_share"][0] == pytest.approx(first)
    assert "earlier stages" in alone.assumed["setting"] and "earlier stages" not in both.assumed["setting"]
    assert without.runs["cached_share"].to_list() == [0.0, 0.0]


def test_in_flight_limits_bursts_and_closed_loops_are_those_of_the_words() -> None:
    most = client_for(
        run(arrival="constant; at most 7 in flight", rate_rps=9.0, n_requests=20), Assumptions(), 1
    )
    assert most.max_in_flight == 7 and most.users is None
    backlog = client_for(run(arrival="at once; at most 3 in flight", n_requests=9), Assumptions(), 1)
    assert backlog.frame["arrival_s"].to_list() == [0.0] * 9 and backlog.max_in_flight == 3
    assumed = Assumptions()
    loop = client_for(run(arrival="closed loop", concurrency=8), assumed, 1)
    assert (loop.users, loop.frame.height) == (8, 80) and "n_requests" in assumed.settings
    bursts = client_for(
        run(arrival="gamma", rate_rps=10.0, burstiness=0.25, n_requests=4000), Assumptions(), 1
    )
    gaps = bursts.frame["arrival_s"].diff().drop_nulls()
    assert gaps.std() / gaps.mean() == pytest.approx(2, rel=0.1)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {"token_budget": 8192, "max_seqs": 1024, "reserve_full_prompt": False}),
        ({"max_num_seqs": 128, "max_num_batched_tokens": 2048}, {"token_budget": 2048, "max_seqs": 128}),
        ({"gpu": "a100-80gb"}, {"token_budget": 2048, "max_seqs": 256}),
        ({"gpu": "l40s", "engine_version": "0.33.0"}, {"max_seqs": 256, "reserve_full_prompt": True}),
        ({"max_num_seqs": 4, "max_model_len": 512}, {"token_budget": 2048, "max_seqs": 4}),
    ],
)
def test_what_a_row_does_not_say_is_the_default_of_that_server_on_that_card(
    settings: dict[str, Any], expected: dict[str, Any]
) -> None:
    assumed = Assumptions()
    engine = engine_for(run(**settings), assumed)
    assert {name: getattr(engine.scheduler, name) for name in expected} == expected
    assert ("max_num_seqs" in assumed.settings) == ("max_num_seqs" not in settings)


def test_blocks_that_are_said_are_taken_less_the_one_that_vllm_keeps() -> None:
    engine = engine_for(run(kv_blocks=7463, prefix_cache="none"), Assumptions())
    assert (engine.kv.tokens, engine.kv.block, engine.kv.prefix_cache) == (7462 * 16, 16, None)


def test_the_share_of_a_card_that_sglang_takes_follows_its_rules() -> None:
    # 81,559 MiB less 10 GiB before 0.5.3; less 512 + 12,288 + 512 + 128 MiB since.
    card = Gpu.of("h100-80gb")
    mib = card.memory_bytes / 2**20
    assert sglang_share(card, 1, (0, 5, 1)) == round((mib - 10 * 1024) / mib, 3)
    assert sglang_share(card, 1, (0, 5, 8)) == round((mib - 13_440) / mib, 3)
    # A card of 44.99 GiB has chunks of 4,096 and graphs of 32 since 0.5.3, and chunks of 8,192 before.
    card = Gpu.of("l40s")
    mib = card.memory_bytes / 2**20
    assert sglang_share(card, 1, (0, 5, 8)) == round((mib - 512 - 1.5 * 4096 - 2 * 32 - 128) / mib, 3)
    assert [Server.of(name, card).limits()["chunk_tokens"] for name in ("sglang-0.5.1", "sglang-0.5.8")] == [
        8192,
        4096,
    ]


def test_sglang_takes_its_share_of_what_is_free_before_the_weights() -> None:
    # 1.2 GiB of the card are gone by then; 65.5 GB of weights; 262,144 bytes a token.
    of_two = run(engine="sglang", model="Qwen/Qwen3-32B", tp=2, gpu_mem_util=0.9)
    card, engine = Gpu.of("h100-80gb"), engine_for(of_two, Assumptions())
    free = card.memory_bytes - 1.2 * 2**30
    weights = ModelShape.of("qwen3-32b").weight_bytes()
    assert engine.kv.tokens == int((0.9 * free - weights / 2) // 131_072)
    named = iq.Engine.on(
        "qwen3-32b", "h100-80gb", tensor_parallel=2, server="sglang-0.5", gpu_memory_utilization=0.9
    )
    assert named.kv == engine.kv
    # Without a share of its own, a row has that of the server's release in `Engine.on`.
    for release in ("0.5.1", "0.5.8"):
        row = run(engine="sglang", engine_version=release, model="Qwen/Qwen3-32B", tp=2, gpu_mem_util=None)
        named = iq.Engine.on("qwen3-32b", "h100-80gb", tensor_parallel=2, server=f"sglang-{release}")
        assert engine_for(row, Assumptions()).kv == named.kv


def test_a_server_without_graphs_launches_its_kernels(tmp_path: Path) -> None:
    # 32 layers of ten operations of 50 µs on an H100.
    for eager, launch_s in ((None, 0.0), (0, 0.0), (1, 320 * 50e-6)):
        host = engine_for(run(model="llama-2-7b", eager=eager), Assumptions()).overhead
        assert host is not None and host.launch_s == pytest.approx(launch_s)
    columns = "engine,model,gpu,tp,eager,rate_rps,n_requests,input_mean,output_mean,ttft_mean_s"
    file = written(tmp_path, columns, "vllm,llama-2-7b,h100_sxm,1,1,5,10,100,20,0.1")
    (row,) = read_runs(file)
    assert row.eager == 1


@pytest.mark.parametrize(("engine", "newest"), [("vllm", "0.33"), ("sglang", "0.5")])
def test_a_row_without_release_or_kind_of_weights_lists_what_was_taken(engine: str, newest: str) -> None:
    assumed = Assumptions()
    bare = dataclasses.replace(
        run(), engine=engine, engine_version=None, dtype=None, gpu_mem_util=None, kv_blocks=None
    )
    engine_for(bare, assumed)
    taken = {name: assumed.settings[name][0] for name in ("engine_version", "dtype")}
    assert taken == {"engine_version": newest, "dtype": "bf16"}
    assert "gpu_mem_util" in assumed.settings


# The measured runs


SAID = (
    *("max_num_seqs", "max_num_batched_tokens", "prefix_cache", "kv_blocks", "arrival"),
    *("engine_version", "dtype"),
)


def test_nothing_that_a_row_does_not_say_is_silent(all_runs: Any) -> None:
    listed = {run: set(rows["setting"]) for (run,), rows in all_runs.assumed.group_by("run")}
    for one in read_runs(RUNS, requests=REQUESTS):
        for name in SAID:
            assert (getattr(one, name) is None) == (name in listed[one.id]), (one.id, name)
        share_is_needed = one.gpu_mem_util is None and one.kv_blocks is None
        assert share_is_needed == ("gpu_mem_util" in listed[one.id]), one.id
    assert all_runs.assumed.null_count().sum_horizontal().item() == 0


def test_every_run_is_simulated_whole_and_none_judges_what_was_taken_from_it(all_runs: Any) -> None:
    assert all_runs.runs.height == 100 and all_runs.runs["unserved"].sum() == 0
    left_out = all_runs.runs.filter(~pl.col("evaluated"))
    failed = left_out.filter(pl.col("exclusion").str.contains("failed"))
    assert failed.height == 3 and failed["run"].str.contains("reasoning").all()
    taken = left_out.filter(pl.col("exclusion").str.contains("used to calibrate"))
    assert failed.height + taken.height == left_out.height == 43
    # KubeCon's of 128 sequences, CodeLlama, short prompts of two servers, and three with a full cache.
    by = taken.group_by("source", "engine_version").len().rows()
    assert sorted(count for _, _, count in by) == [6, 7, 12, 15]
    assert not all_runs.frame["simulated"].is_nan().any()


HELD = {
    # Release: the most that medians and 90th percentiles of mean E2E, mean TTFT and throughput may be.
    "0.11.0": {"e2e_mean": (0.02, 0.04), "ttft_mean": (0.03, 0.20), "req_s": (0.01, 0.02)},
    "0.12.0": {"e2e_mean": (0.05, 0.12), "ttft_mean": (0.10, 0.31), "out_tok_s": (0.05, 0.14)},
    "0.15.1": {"e2e_mean": (0.05, 0.07), "ttft_mean": (0.08, 0.221), "req_s": (0.001, 0.001)},
    "0.5.1.post1": {"e2e_mean": (0.04, 0.07), "ttft_mean": (0.15, 0.19), "out_tok_s": (0.04, 0.08)},
    "0.5.8.post1": {"e2e_mean": (0.02, 0.03), "ttft_mean": (0.02, 0.07), "out_tok_s": (0.03, 0.03)},
}


def test_the_errors_are_no_larger_than_the_page_says(all_runs: Any) -> None:
    held = {"ttft_mean": (0.08, 0.25), "tpot_mean": (0.04, 0.10), "e2e_mean": (0.03, 0.08)}
    assert (
        all_runs.beyond(
            {metric: median for metric, (median, _) in held.items()} | {"out_tok_s": 0.04},
            {metric: p90 for metric, (_, p90) in held.items()},
        )
        == []
    )
    errors = all_runs.errors("engine_version")
    for release, metrics in HELD.items():
        for metric, (median, p90) in metrics.items():
            row = errors.filter(engine_version=release, metric=metric).row(0, named=True)
            assert row["median"] <= median and row["p90"] <= p90, (release, metric, row)


def test_rules_alone_are_further_off_and_one_batch_at_a_time_furthest(all_runs: Any) -> None:
    judged = set(all_runs.runs.filter("evaluated")["run"])
    runs = [one for one in read_runs(RUNS, requests=REQUESTS) if one.id in judged]
    by_rule, before = (iq.validate(runs, engine=one) for one in (without_times, one_at_a_time))
    ttft = [
        one.errors("engine_version").filter(engine_version="0.15.1", metric="ttft_mean")["median"].item()
        for one in (before, by_rule, all_runs)
    ]
    # Planning ahead is a rule and halves it, the API's time halves it again.
    assert ttft[1] < ttft[0] / 2 and ttft[2] < ttft[1] / 2
    for metric in ("e2e_mean", "tpot_mean", "out_tok_s"):
        medians = [one.errors().filter(metric=metric)["median"].item() for one in (before, by_rule, all_runs)]
        assert medians[2] < 0.75 * min(medians[:2]), (metric, medians)
    assert by_rule.assumed.filter(setting="overhead")["value"].unique().to_list() == ["none"]
    assert all_runs.assumed.filter(setting="overhead")["reason"].str.contains("calibrated on").all()


def test_a_log_of_requests_is_the_engines_own_and_a_longest_length_is_enforced() -> None:
    assumed = Assumptions()
    rows = pl.DataFrame({"arrival_s": [0.0], "prompt_tokens": [5], "output_tokens": [5]})
    assert (
        engine_for(run(requests=rows), assumed).api_s == 0
        and "log of requests" in assumed.settings["api_s"][1]
    )
    engine = engine_for(run(max_model_len=512), Assumptions())
    assert engine.max_model_len == 512 and engine.api_s == 0.0075


@pytest.mark.parametrize(("version", "ahead"), [("0.12.0", False), ("0.14.0", True), ("0.33.0", True)])
def test_releases_plan_ahead_from_0_14_on(version: str, ahead: bool) -> None:
    assumed = Assumptions()
    scheduler = engine_for(run(engine_version=version), assumed).scheduler
    assert isinstance(scheduler, iq.VllmV1) and scheduler.async_scheduling is ahead
    assert assumed.settings["async_scheduling"][0] == ("on" if ahead else "off")


def test_what_the_page_shows_is_what_is_computed(all_runs: Any) -> None:
    page = (Path(__file__).parent.parent / "docs" / "explanation" / "accuracy.md").read_text(encoding="utf-8")
    for row in all_runs.errors().rows(named=True):
        name = row["metric"].replace("_", " ")
        numbers = " | ".join(f"{100 * row[which]:,.1f}" for which in ("median", "p90", "bias", "worst"))
        assert f"| {name} | {row['runs']} | {numbers} |" in page
    for row in all_runs.errors("engine").rows(named=True):
        name = f"{row['engine']} | {row['metric'].replace('_', ' ')}"
        numbers = " | ".join(f"{100 * row[which]:,.1f}" for which in ("median", "p90", "bias", "worst"))
        assert f"| {name} | {row['runs']} | {numbers} |" in page


def test_the_picture_and_the_page_can_be_made(all_runs: Any, tmp_path: Path) -> None:
    chart = all_runs.chart().to_dict()
    titles = [panel["title"] for line in chart["vconcat"] for panel in line["hconcat"]]
    assert len(titles) == 5
    page = iq.report(all_runs, tmp_path / "runs.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 2 and "Assumptions" in page


# Other files


def test_a_result_of_vllms_benchmark_is_read(tmp_path: Path) -> None:
    told = {
        "model_id": "Qwen/Qwen3-8B",
        "num_prompts": 50,
        "completed": 48,
        "total_input_tokens": 48 * 256,
        "total_output_tokens": 48 * 64,
        "request_rate": 4.0,
        "burstiness": 0.5,
        "max_concurrency": 16,
        "request_throughput": 3.9,
        "output_throughput": 249.6,
        "mean_ttft_ms": 25.0,
        "median_ttft_ms": 24.0,
        "p99_ttft_ms": 60.0,
        "mean_tpot_ms": 8.0,
        "gpu": "h100-80gb",
    }
    file = written(tmp_path, json.dumps(told), name="bench.json")
    (read,) = read_runs(file, given={"tp": 1, "engine_version": "0.15.1"})
    assert (read.id, read.gpu, read.tp, read.failures, read.n_requests) == ("bench", "h100-80gb", 1, 2, 50)
    assert (read.input_mean, read.output_mean, read.burstiness) == (256.0, 64.0, 0.5)
    assert dict(read.measured) == {
        "ttft_mean": 0.025,
        "ttft_p50": 0.024,
        "ttft_p99": 0.06,
        "tpot_mean": 0.008,
        "req_s": 3.9,
        "out_tok_s": 249.6,
    }
    client = client_for(read, Assumptions(), 1)
    assert client.max_in_flight == 16 and client.frame.height == 50
    all_at_once = written(tmp_path, json.dumps(told | {"request_rate": "inf"}), name="inf.json")
    assert client_for(read_runs(all_at_once)[0], Assumptions(), 1).frame["arrival_s"].sum() == 0
    assert iq.validate(file, given={"tp": 1}).frame.height == 6


def test_an_export_of_aiperf_is_read(tmp_path: Path) -> None:
    told = {
        "request_throughput": {"unit": "requests/sec", "avg": 13.2},
        "request_latency": {"unit": "ms", "avg": 655.0, "p50": 580.0, "p99": 938.0},
        "time_to_first_token": {"unit": "ms", "avg": 58.8, "p50": 57.7},
        "inter_token_latency": {"unit": "ms", "avg": 6.5},
        "output_sequence_length": {"unit": "tokens", "avg": 96.85},
        "input_sequence_length": {"unit": "tokens", "avg": 550.0},
        "request_count": {"unit": "requests", "avg": 200.0},
        "input_config": {"endpoint": {"model_names": ["Qwen/Qwen3-8B"]}, "loadgen": {"concurrency": 10}},
    }
    file = written(tmp_path, json.dumps(told), name="profile_export_aiperf.json")
    given = {"engine": "sglang", "engine_version": "0.5.8", "gpu": "h100-80gb", "tp": 1}
    (read,) = read_runs(file, given=given)
    assert (read.concurrency, read.arrival, read.n_requests) == (10, "closed loop", 200)
    assert read.measured["e2e_p99"] == pytest.approx(0.938)
    assert read.measured["tpot_mean"] == pytest.approx(0.0065)
    found = iq.validate(file, given=given)
    assert found.runs["engine"][0] == "sglang" and "input_law" in found.assumed["setting"]


# What is wrong is told with its place


def without(name: str, text: str = "") -> Callable[[Path], Path]:
    """The file in which one cell of the first row is another."""

    def make(folder: Path) -> Path:
        cells = dict(zip(HEADER.split(","), ROW.split(","), strict=True))
        cells[name] = text
        return written(folder, HEADER, ",".join(cells.values()))

    return make


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (without("gpu"), r"row 1, gpu: is empty"),
        (without("gpu", "h100-80"), r"row 1, gpu: unknown name 'h100-80'; did you mean h100-80gb"),
        (without("model", "Qwen/Qwen3-7B"), r"row 1, model: unknown name 'qwen3-7b'.*qwen3-"),
        (without("model"), r"row 1, model: is empty"),
        (without("engine", "trtllm"), r"row 1, engine: must be vllm or sglang, got 'trtllm'"),
        (without("tp", "two"), r"row 1, tp: must be an integer of at least 1, got 'two'"),
        (without("tp", "0"), r"row 1, tp: must be an integer of at least 1"),
        (without("concurrency"), r"row 1, rate_rps: is empty"),
        (without("output_mean"), r"row 1, output_mean: is empty"),
        (without("ttft_mean_s", "-0.1"), r"row 1, ttft_mean_s: must be a positive number, got '-0.1'"),
        (without("ttft_mean_s", "nan"), r"row 1, ttft_mean_s: must be a positive number"),
        (lambda folder: written(folder, HEADER, ROW, ROW), r"row 2, id: duplicate 'one'"),
        (
            lambda folder: written(folder, HEADER, ROW + ",9"),
            r"row 1: must have 12 cells like the first line, got 13",
        ),
        (lambda folder: written(folder, HEADER), r"runs.csv: has no rows"),
        (
            lambda folder: written(folder, HEADER + ",ttft_p5_s", ROW + ",1"),
            "row 1: unknown column 'ttft_p5_s'",
        ),
        (lambda folder: written(folder, "a,b", "1,2"), "must be a table of measured runs"),
        (lambda folder: written(folder, "model,gpu", "qwen3-8b,h200"), "row 1: has no measured value"),
        (lambda folder: written(folder, '{"a": 1}'), "must be a result of vLLM's benchmark or"),
        (lambda folder: written(folder, '{"request_throughput": 2.0,'), "is not JSON"),
        (
            lambda folder: written(folder, '{"request_throughput": 2.0}'),
            "completed: must be a number, got None",
        ),
        (
            lambda folder: written(folder, HEADER + ",ttft_p50_s,ttft_p90_s", ROW + ",0.2,0.1"),
            "row 1, ttft_p90_s: must be at least ttft_p50_s",
        ),
        (lambda folder: written(folder, HEADER + ",pp", ROW + ",2"), "row 1, pp: must be 1"),
        (lambda folder: written(folder, HEADER + ",dtype", ROW + ",int3"), "row 1, dtype: must be one of"),
        (
            lambda folder: written(folder, HEADER + ",prefix_cache", ROW + ",radix"),
            "row 1, prefix_cache: must be blocks or none for vllm",
        ),
        (
            lambda folder: written(folder, HEADER + ",arrival", ROW + ",at noon"),
            "row 1, rate_rps: is empty",
        ),
        (
            lambda folder: written(folder, HEADER + ",arrival,rate_rps", ROW + ",at noon,2"),
            "row 1, arrival: must start with one of constant",
        ),
        (
            lambda folder: written(folder, HEADER + ",kv_blocks", ROW.replace(",10,5,", ",1000,5,") + ",9"),
            "row 1: kv_blocks: too small: none of 1 simulated requests finished",
        ),
    ],
)
def test_a_damaged_file_is_an_error_with_row_and_column(
    make: Callable[[Path], Path], said: str, tmp_path: Path
) -> None:
    with pytest.raises((iq.TraceError, iq.ConfigError), match=said):
        iq.validate(make(tmp_path))


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (("run,arrival_s", "one,0"), "missing column prompt_tokens"),
        (("run,arrival_s,prompt_tokens,output_tokens", "two,0,5,5"), "run: unknown run 'two'"),
        (("run,arrival_s,prompt_tokens,output_tokens", "one,0,,5"), "row 1, prompt_tokens: is empty"),
        (
            ("run,arrival_s,prompt_tokens,output_tokens", "one,0,5,5", "one,1,x,5"),
            "row 2, prompt_tokens: must be",
        ),
        (("run,arrival_s,prompt_tokens,output_tokens", "one,0,0,5"), "row 1, requests: row 0"),
    ],
)
def test_a_damaged_log_of_requests_too(lines: tuple[str, ...], said: str, tmp_path: Path) -> None:
    log = written(tmp_path, *lines, name="requests.csv")
    with pytest.raises(iq.TraceError, match=said):
        iq.validate(written(tmp_path, HEADER, ROW), requests=log)


def test_an_absurd_version_is_named(tmp_path: Path) -> None:
    for version in ("9" * 5000, f"0.{'9' * 5000}.1"):
        with pytest.raises(iq.TraceError, match=r"engine_version: must be a version such as 0\.11\.0"):
            iq.validate(written(tmp_path, HEADER, ROW.replace("0.12.0", version)))


def test_arguments_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    file = written(tmp_path, HEADER, ROW)
    for arguments, said in (
        ({"given": {"gpus": 2}}, "given: unknown setting 'gpus'; did you mean gpu"),
        ({"only": {"card": "x"}}, "only: runs have no column 'card'"),
        ({"only": {"tp": 2}}, "only: matches none of 1 run"),
        ({"seed": -1}, "seed"),
        ({"given": 3}, "given: must be a mapping of columns to values, got 3"),
        ({"only": [1]}, "only: must be a mapping"),
        ({"engine": "vllm"}, "engine: must be a function, got 'vllm'"),
    ):
        with pytest.raises(iq.ConfigError, match=said):
            iq.validate(file, **arguments)  # type: ignore[arg-type]
    for runs in (3, None, [1]):
        with pytest.raises(iq.ConfigError, match="runs: must be a file or runs of read_runs"):
            iq.validate(runs)  # type: ignore[arg-type]
    found = iq.validate(file, engine=slots)
    with pytest.raises(iq.ConfigError, match="by: unknown column 'card'"):
        found.errors("card")
    with pytest.raises(iq.ConfigError, match="metric: no evaluated run has 'tpot_mean'"):
        found.worst("tpot_mean")
    with pytest.raises(iq.ConfigError, match="max_median: no run has 'ttft_men'; did you mean ttft_mean"):
        found.beyond({"ttft_men": 0.1})


# On the command line


def command(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["validate", *arguments], env={"COLUMNS": "100"})


def test_the_exit_status_says_whether_errors_are_as_large_as_they_may_be(tmp_path: Path) -> None:
    file = str(written(tmp_path, HEADER, ROW))
    passed = command(
        file, "--max-median", "e2e_mean=9", "--by", "tp", "--assumed", "--out", f"{tmp_path}/a.html"
    )
    assert passed.exit_code == 0, passed.output
    assert "max_num_seqs = 1024 (vLLM's default" in passed.output and (tmp_path / "a.html").is_file()
    failed = command(file, "--max-p90", "e2e_mean=0.000001", "--summary", f"{tmp_path}/a.md")
    assert failed.exit_code == 1 and "failed: p90 error of e2e_mean is" in failed.output
    assert "✗ p90 error of e2e_mean" in (tmp_path / "a.md").read_text(encoding="utf-8")
    for arguments, said in (
        (("--max-median", "e2e_mean"), "must have the form ttft_mean=0.25"),
        (("--max-median", "e2e=1"), "no run has 'e2e'"),
        (("--set", "gpus=2"), "unknown setting 'gpus'"),
        (("--only", "tp=7"), "matches none of"),
        (("--by", "card"), "unknown column 'card'"),
    ):
        wrong = command(file, *arguments)
        assert wrong.exit_code == 2 and said in wrong.output, wrong.output
    missing = command(str(tmp_path / "none.csv"))
    assert missing.exit_code == 2 and "none.csv" in missing.output
