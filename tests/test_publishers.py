"""Tables of publishers: every row is simulated or has a reason, and is simulated as it was measured."""

from __future__ import annotations

import csv
import hashlib
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import inferq as iq
from inferq.experiments.validation.clients import client_for
from inferq.experiments.validation.publishers import translated
from inferq.experiments.validation.reading import read_runs
from inferq.experiments.validation.settings import Assumptions, engine_for
from inferq_papers.hardware import deployments
from inferq_papers.hardware.engines import with_stand_in

MEASURED = Path(__file__).parent / "measured"
ROW = {
    "publisher": "InferenceX",
    "model": "meta-llama/Llama-3.3-70B-Instruct",
    "gpu": "h200",
    "engine": "vllm",
    "release": "0.18.0",
    "precision_weights": "fp8",
    "precision_kv": "fp8",
    "gpus": "2",
    "tp": "2",
    "pp": "1",
    "ep": "1",
    "attention_dp": "1",
    "disaggregated": "0",
    "spec": "none",
    "isl": "1024",
    "osl": "512",
    "length_law": "uniform 80-100 %",
    "concurrency": "8",
    "requests": "80",
    "ttft_mean_s": "0.1",
    "tpot_mean_s": "0.02",
    "out_tok_s_per_gpu_derived": "190",
    "server_flags": "seats $CONC; budget 8192; memory 0.9; prefix_cache off (ac1998a504df:70b_fp8_h200.sh)",
    "where": "a",
}


def table(folder: Path, *rows: dict[str, str]) -> Path:
    file = folder / "inferencex.csv"
    with file.open("w", newline="") as lines:
        writer = csv.DictWriter(lines, list(ROW))
        writer.writeheader()
        writer.writerows({**ROW, "where": f"row-{place}", **row} for place, row in enumerate(rows))
    return file


def rows_of(name: str) -> list[dict[str, str]]:
    with (MEASURED / name).open(newline="") as lines:
        return list(csv.DictReader(lines))


def iterations(run: Any, assumed: Any) -> iq.Engine:
    """An engine whose iterations take 20 ms."""
    scheduler = iq.VllmV1(async_scheduling=False, token_budget=65536)
    return iq.Engine(timing=iq.Constant(0.02), scheduler=scheduler, kv=iq.KvCache.unlimited())


@pytest.fixture(scope="module")
def all_rows() -> Any:
    return iq.validate(deployments.read(MEASURED), engine=with_stand_in)


# Every row


def test_every_row_is_simulated_or_has_a_reason(all_rows: Any) -> None:
    assert all_rows.runs.height == sum(len(rows_of(name)) for name in deployments.FILES) == 854
    simulated = set(all_rows.frame["run"])
    for row in all_rows.runs.select("run", "exclusion", "simulated_requests").rows(named=True):
        is_refused = row["exclusion"].startswith("not simulated: ")
        assert is_refused == (row["simulated_requests"] is None) == (row["run"] not in simulated), row
        if is_refused:
            # A reason names the column and the problem.
            assert row["exclusion"].removeprefix("not simulated: ").partition(": ")[2], row
    assert not all_rows.frame["simulated"].is_nan().any()


def test_disaggregated_and_speculative_rows_count_in_no_error(all_rows: Any) -> None:
    evaluated = set(all_rows.runs.filter("evaluated")["run"])
    rows = rows_of("inferencex.csv")
    assert len(rows) == 730
    for row in rows:
        counts = row["spec"] == "none" and row["disaggregated"] == "0" and not row["doubt"]
        assert (counts and row["fold"] == "hold") or row["where"] not in evaluated, row["where"]
    tables = deployments.not_simulated(all_rows)
    judged = deployments.judged(all_rows, None)["run"].n_unique()
    assert tables["runs"].sum() + judged == 854


def test_folds_hold_back_whole_deployments() -> None:
    key = ("model", "gpu", "engine", "precision_weights", "tp", "ep", "attention_dp")
    folds: dict[str, int] = {}
    for row in rows_of("inferencex.csv"):
        digest = hashlib.sha256("|".join(row[name] for name in key).encode()).hexdigest()
        assert row["fold"] == ("fit" if int(digest[0], 16) < 8 else "hold")
        folds[row["fold"]] = folds.get(row["fold"], 0) + 1
    assert folds == {"fit": 321, "hold": 409}


def test_throughput_follows_from_ttft_and_tpot() -> None:
    # A user receives m tokens in TTFT + (m − 1)·TPOT: a check of the lengths and of the column of throughput.
    for run in read_runs(MEASURED / "inferencex.csv"):
        mean = run.output_mean
        assert mean is not None and run.concurrency is not None
        e2e_s = run.measured["ttft_mean"] + (mean - 1) * run.measured["tpot_mean"]
        assert run.measured["out_tok_s"] == pytest.approx(run.concurrency * mean / e2e_s, rel=2e-3)


# One row


def test_lengths_are_uniform_between_80_and_100_percent(tmp_path: Path) -> None:
    (run,) = read_runs(table(tmp_path, {"requests": "4000"}))
    # From int(0.8 · 1024) = 819 to 1024, mean 921.5; from 409 to 512, mean 460.5.
    assert (run.input_law, run.input_mean) == ("uniform 819-1024", 921.5)
    assert (run.output_law, run.output_mean) == ("uniform 409-512, ignore_eos", 460.5)
    assumed = Assumptions()
    frame = client_for(run, assumed, 1).frame
    for column, low, high in (("prompt_tokens", 819, 1024), ("output_tokens", 409, 512)):
        lengths = frame[column]
        assert (lengths.min(), lengths.max()) == (low, high)
        # The standard deviation of n equally likely integers is √((n² − 1)/12).
        deviation = (((high - low + 1) ** 2 - 1) / 12) ** 0.5
        assert abs(lengths.mean() - (low + high) / 2) < 4 * deviation / 4000**0.5  # type: ignore[operator]
    assert frame["max_output_tokens"].equals(frame["output_tokens"].rename("max_output_tokens"))
    assert not {"input_law", "output_law", "ends of outputs"} & set(assumed.settings)
    correlation = pl.DataFrame(frame).select(pl.corr("prompt_tokens", "output_tokens")).item()
    assert abs(correlation) < 4 / 4000**0.5


def test_users_of_a_closed_loop_always_have_a_request(tmp_path: Path) -> None:
    # 20 ms per iteration and no limit: TTFT and TPOT are 20 ms, and 8 users get 50 tokens per second each.
    file = table(tmp_path, {"out_tok_s_per_gpu_derived": "200", "ttft_mean_s": "0.02"})
    validation = iq.validate(file, engine=iterations)
    simulated = dict(validation.frame.select("metric", "simulated").rows())
    assert simulated == pytest.approx({"ttft_mean": 0.02, "tpot_mean": 0.02, "out_tok_s": 8 / 0.02})
    assert validation.frame.filter(metric="out_tok_s")["measured"].to_list() == [400]
    assert validation.runs["simulated_requests"].to_list() == [80]


@pytest.mark.parametrize(
    ("flags", "settings", "uncertain"),
    [
        ("seats $CONC; budget 8192; memory 0.9; prefix_cache off", (8, 8192, 0.9, "none"), set()),
        ("budget $((ISL * 2 ))", (None, 2048, None, None), set()),
        # (8 + 1024 + 64 + 63) / 64 · 64 in whole numbers: 18 · 64.
        ("budget $(( ($CONC+$ISL+64+63)/64*64 ))", (None, 1152, None, None), set()),
        ("seats 128 or 32; memory 0.82 or 0.95", (128, None, 0.82, None), {"max_num_seqs", "gpu_mem_util"}),
        ("seats 512|256", (512, None, None, None), {"max_num_seqs"}),
        ("seats $MAX_BATCH_SIZE; budget 1/0", (None,) * 4, {"max_num_seqs", "max_num_batched_tokens"}),
        ("budget __import__('os').getcwd()", (None,) * 4, {"max_num_batched_tokens"}),
        ("prefix_cache default; stream 30", (None,) * 4, {"stream_interval"}),
        ("color blue", (None,) * 4, {"server_flags"}),
    ],
)
def test_server_flags_are_settings(
    flags: str, settings: tuple[Any, ...], uncertain: set[str], tmp_path: Path
) -> None:
    (run,) = read_runs(table(tmp_path, {"server_flags": f"{flags} (ac1998a504df:70b.sh)"}))
    assert (run.max_num_seqs, run.max_num_batched_tokens, run.gpu_mem_util, run.prefix_cache) == settings
    assert set(run.uncertain) == uncertain
    assumed = Assumptions()
    engine_for(run, assumed)
    assert uncertain <= set(assumed.settings)


@pytest.mark.parametrize(
    ("precision", "model", "dtype"),
    [
        ("fp4", "openai/gpt-oss-120b", "mxfp4"),
        ("fp4", "deepseek-ai/DeepSeek-R1-0528", "nvfp4"),
        ("int4", "moonshotai/Kimi-K2.5", "int4"),
        ("bf16", "Qwen/Qwen3-32B", "bf16"),
    ],
)
def test_four_bits_are_the_format_of_the_checkpoint(precision: str, model: str, dtype: str) -> None:
    cells, _ = translated({**ROW, "precision_weights": precision, "model": model})
    assert cells["dtype"] == dtype


def test_async_scheduling_of_an_old_release_overlaps_the_host(tmp_path: Path) -> None:
    flags = "async on (ac1998a504df:70b.sh)"
    old = {"release": "0.10.2", "model": "meta-llama/Llama-3.1-8B-Instruct", "tp": "1"}
    with_flag, without = read_runs(
        table(tmp_path, {**old, "server_flags": flags}, {**old, "server_flags": ""})
    )
    engines = [engine_for(run, Assumptions()) for run in (with_flag, without)]
    assert [engine.scheduler.async_scheduling for engine in engines] == [True, False]  # type: ignore[attr-defined]
    assert [engine.overhead.overlapped for engine in engines] == [True, False]  # type: ignore[union-attr]


# Rows that cannot be simulated


REFUSED = {
    "disaggregated": (
        {"disaggregated": "1", "tp": "", "ep": "", "attention_dp": ""},
        "disaggregated: must be 0",
    ),
    "attention": ({"attention_dp": "4"}, "dp: must be 1"),
    "pipeline": ({"pp": "2"}, "pp: must be 1"),
    "draft": ({"spec": "mtp"}, "speculation: must be none"),
    "probable draft": ({"spec": "likely mtp"}, "speculation: must be none"),
    "unknown draft": ({"spec": "eagle3"}, "speculation: must be none"),
    "engine": ({"engine": "trtllm"}, "engine: must be vllm or sglang"),
    "no engine": ({"engine": ""}, "engine: must be vllm or sglang"),
    "model": ({"model": "example/never-published"}, "model: unknown name"),
    "gpu": ({"gpu": "tpu-v9"}, "gpu: unknown name"),
    "weights": ({"precision_weights": "int3"}, "dtype: must be"),
    "cache": ({"precision_kv": "int3"}, "kv_dtype: must be"),
    "length": ({"isl": ""}, "input_mean: is empty"),
    "users": ({"concurrency": ""}, "concurrency: is empty"),
    "heads": ({"tp": "3"}, "model: "),
}


def test_rows_that_cannot_be_simulated_are_listed_with_the_others(tmp_path: Path) -> None:
    small = {"model": "meta-llama/Llama-3.1-8B-Instruct", "tp": "1"}
    rows = [small, *({**small, **change} for change, _ in REFUSED.values())]
    validation = iq.validate(table(tmp_path, *rows))
    assert validation.frame["run"].unique().to_list() == ["row-0"]
    exclusions = validation.runs["exclusion"].to_list()
    assert exclusions[0] == ""
    for exclusion, (name, (_, reason)) in zip(exclusions[1:], REFUSED.items(), strict=True):
        assert exclusion.startswith(f"not simulated: {reason}"), (name, exclusion)
    with pytest.raises(iq.TraceError, match="row 1, disaggregated: must be 0"):
        iq.validate(table(tmp_path, {"disaggregated": "1"}))


def test_doubtful_rows_and_unknown_speculation_are_shown_and_count_in_no_error(tmp_path: Path) -> None:
    small = {"model": "meta-llama/Llama-3.1-8B-Instruct", "tp": "1"}
    rows = [{**small, "spec": spec} for spec in ("none", "unknown", "likely none")]
    validation = iq.validate(table(tmp_path, *rows))
    assert validation.runs["evaluated"].to_list() == [True, False, False]
    assert validation.frame["run"].n_unique() == 3
    assert validation.errors()["runs"].to_list() == [1, 1, 1]


def test_a_stage_of_a_fleet_is_refused_and_that_of_a_replica_is_simulated(tmp_path: Path) -> None:
    fleet = rows_of("llmd.csv")[0]
    cells, _ = translated(fleet)
    assert cells["input_law"] == "750 fixed prompts in rotation: 6000 shared by 5 + 1200 own"
    assert (cells["input_mean"], cells["output_mean"], cells["replicas"]) == ("7200", "1000", "8")
    replica = {**fleet, "id": "replica", "replicas": "1", "rate_rps": "0.4", "n_requests": "8", "fold": ""}
    ladder = {
        **fleet,
        "id": "ladder",
        "scope": "ladder",
        "rate_rps": "3-60",
        "ttft_mean_s": "",
        "ttft_p90_s": "",
    }
    ladder |= {"replicas": "1", "out_tok_s": ""}
    file = tmp_path / "llmd.csv"
    with file.open("w", newline="") as lines:
        writer = csv.DictWriter(lines, list(fleet))
        writer.writeheader()
        writer.writerows([fleet, replica, ladder])
    runs = iq.validate(file).runs
    assert runs["simulated_requests"].to_list() == [None, 8, None]
    exclusions = runs["exclusion"].to_list()
    assert exclusions[0] == "not simulated: replicas: must be 1 (fleets are not supported), got 8"
    assert exclusions[1:] == ["", "not simulated: has no measured value of a compared metric"]
