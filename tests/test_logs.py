"""Logs with any names, clocks and order, and files of load generators."""

import datetime
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import inferq as iq
from inferq.workload.clock import in_seconds
from tests.refusals import refused

EPOCH = 1_700_000_000
LENGTHS = {"prompt_tokens": [100, 200, 300], "output_tokens": [7, 8, 9]}


def lines(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def whole(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content))
    return path


def rows(work: iq.Workload) -> list[tuple[Any, ...]]:
    return work.frame.select("arrival_s", "prompt_tokens", "output_tokens").rows()


@pytest.mark.parametrize(
    ("times", "unit"),
    [
        ([0.0, 0.5, 2.0], None),
        ([EPOCH + 0.0, EPOCH + 0.5, EPOCH + 2.0], None),
        ([1000 * EPOCH, 1000 * EPOCH + 500, 1000 * EPOCH + 2000], None),
        ([10**9 * EPOCH, 10**9 * EPOCH + 5 * 10**8, 10**9 * EPOCH + 2 * 10**9], None),
        ([0, 500, 2000], "ms"),
        ([0, 500_000, 2_000_000], "us"),
        (["2026-11-20T09:00:00Z", "2026-11-20T09:00:00.5Z", "2026-11-20T09:00:02Z"], None),
        (["2026-11-20 10:00:00+01:00", "2026-11-20 09:00:00.500+00:00", "2026-11-20 09:00:02+00:00"], None),
        (["2026-11-20 09:00:00", "2026-11-20 09:00:00,500", "2026-11-20 09:00:02"], None),
    ],
)
def test_times_are_read_in_any_unit_and_from_any_origin(
    tmp_path: Path, times: list[Any], unit: str | None
) -> None:
    """Three requests at 0, 0.5 and 2 s, as JSON lines with nested fields and as CSV."""
    log = [
        {"at": time, "usage": {"in": prompt, "out": output}}
        for time, prompt, output in zip(times, *LENGTHS.values(), strict=True)
    ]
    dotted = {"arrival_s": "at", "prompt_tokens": "usage.in", "output_tokens": "usage.out"}
    expected = [(0.0, 100, 7), (0.5, 200, 8), (2.0, 300, 9)]
    read = iq.read_trace(lines(tmp_path / "a.jsonl", log), columns=dotted, time_unit=unit)
    assert rows(read) == expected
    flat = {"arrival_s": "at", "prompt_tokens": "in", "output_tokens": "out"}
    pl.DataFrame({"at": times, "in": LENGTHS["prompt_tokens"], "out": LENGTHS["output_tokens"]}).write_csv(
        tmp_path / "a.csv"
    )
    table = iq.read_trace(tmp_path / "a.csv", columns=flat, time_unit=unit)
    assert rows(table) == expected
    has_note = "times" in read.metadata
    assert has_note == (times[0] not in (0, 0.0)) == ("times" in table.metadata)
    if unit is None:
        shifted = iq.Workload({"arrival_s": times, **LENGTHS})
        assert rows(shifted) == expected and ("times" in shifted.metadata) == has_note


def test_a_shifted_origin_is_a_finding_and_warm_up_counts_from_it() -> None:
    work = iq.Workload(
        {
            "arrival_s": [EPOCH + row / 10 for row in range(200)],
            **{name: [values[0]] * 200 for name, values in LENGTHS.items()},
        }
    )
    engine = iq.Engine(timing=iq.Constant(0.01), scheduler=iq.Sarathi(), kv=iq.KvCache.unlimited())
    run = iq.simulate(work, engine, warmup="10s")
    assert run.findings == [
        "epoch-times: arrival times are counted from 1970 in s and are taken relative to the first request, "
        "2023-11-14 22:13:20 UTC"
    ]
    assert run.requests["measured"].sum() == 100  # arrivals from 10.0 s on
    assert iq.Scenario.read(run.scenario, rows=work).run(warmup="10s").requests.equals(run.requests)


class Arrow:
    """Table of another library with the Arrow interface only."""

    def __init__(self, frame: pl.DataFrame) -> None:
        self._frame = frame

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._frame.__arrow_c_stream__(requested_schema)


def test_frames_of_other_libraries_are_workloads() -> None:
    plain = {"arrival_s": [0.0, 0.5, 2.0], **LENGTHS}
    frame = pl.DataFrame(plain)
    start = datetime.datetime(2026, 11, 20, 9, tzinfo=datetime.timezone.utc)
    dated = {
        "arrival_s": [start + datetime.timedelta(seconds=time) for time in plain["arrival_s"]],
        **LENGTHS,
    }
    records = [dict(zip(plain, row, strict=True)) for row in zip(*plain.values(), strict=True)]
    for data in (frame, frame.lazy(), Arrow(frame), plain, records, pl.DataFrame(dated)):
        assert iq.Workload(data).frame.equals(iq.Workload(plain).frame)


def test_likely_columns_are_proposed(tmp_path: Path) -> None:
    log = [{"ts": at, "input_len": 5, "usage": {"completion_tokens": 4}, "chat_id": "a"} for at in range(3)]
    path = lines(tmp_path / "log.jsonl", log)
    with pytest.raises(iq.TraceError) as error:
        iq.read_trace(path)
    fits = "arrival_s=ts,prompt_tokens=input_len,output_tokens=usage.completion_tokens,session_id=chat_id"
    assert f"--columns {fits} " in str(error.value)
    columns = dict(pair.split("=") for pair in fits.split(","))
    assert rows(iq.read_trace(path, columns=columns)) == [(time, 5, 4) for time in (0.0, 1.0, 2.0)]


def test_a_result_of_vllm_bench_serve(tmp_path: Path) -> None:
    """The second request failed. The clock has an arbitrary origin; the order is that of the prompts."""
    result = {
        "request_throughput": 1.5,
        "mean_ttft_ms": 12.0,
        "input_lens": [100, 50, 300, 200],
        "output_lens": [7, 0, 9, 8],
        "start_times": [8000.25, 8000.5, 8002.25, 8000.75],
        "errors": ["", "timeout", "", ""],
    }
    read = iq.read_trace(whole(tmp_path / "bench.json", result))
    assert rows(read) == [(0.0, 100, 7), (0.5, 200, 8), (2.0, 300, 9)]
    assert read.metadata["format"] == "vllm-bench"
    assert read.metadata["rows_left_out"] == {"failed_requests": 1}
    assert read.metadata["rows_sorted_by"] == "arrival_s"
    old = iq.read_trace(whole(tmp_path / "old.json", {**result, "start_times": []}))
    assert old.frame.columns == ["prompt_tokens", "output_tokens"]


def test_the_records_of_aiperf(tmp_path: Path) -> None:
    """Two turns of a conversation, one of another, and a warm-up, a failed and a canceled request."""

    def record(at_ms: int, session: str, turn: int, prompt: int, output: int, **other: Any) -> dict[str, Any]:
        details = {
            "conversation_id": session,
            "turn_index": turn,
            "request_start_ns": 10**9 * EPOCH + at_ms * 10**6,
        }
        metrics = {
            "input_sequence_length": {"value": prompt, "unit": "tokens"},
            "output_sequence_length": {"value": output, "unit": "tokens"},
        }
        return {
            "metadata": {**details, **other.pop("metadata", {})},
            "metrics": metrics,
            "error": None,
            **other,
        }

    log = [
        record(2000, "a", 1, 300, 9),
        record(0, "a", 0, 100, 7),
        record(500, "b", 0, 200, 8),
        record(100, "c", 0, 1, 1, metadata={"benchmark_phase": "warmup"}),
        record(100, "c", 0, 1, 1, error={"type": "HTTP 500"}),
        record(100, "c", 0, 1, 1, metadata={"was_cancelled": True}),
    ]
    read = iq.read_trace(lines(tmp_path / "profile_export.jsonl", log))
    assert rows(read) == [(0.0, 100, 7), (0.5, 200, 8), (2.0, 300, 9)]
    assert read.frame.select("session_id", "turn").rows() == [("a", 0), ("b", 0), ("a", 1)]
    assert read.metadata["rows_left_out"] == {
        "failed_requests": 1,
        "canceled_requests": 1,
        "warm_up_requests": 1,
    }


@pytest.mark.parametrize("start", ["request_start_time", "start_time"])
def test_the_requests_of_guidellm(tmp_path: Path, start: str) -> None:
    requests = [
        {start: EPOCH + time, "prompt_tokens": prompt, "output_tokens": output}
        for time, prompt, output in ((0.5, 200, 8), (0.0, 100, 7), (2.0, 300, 9))
    ]
    content = {"benchmarks": [{"requests": {"successful": requests, "errored": [{}], "incomplete": []}}]}
    read = iq.read_trace(whole(tmp_path / "benchmarks.json", content))
    assert rows(read) == [(0.0, 100, 7), (0.5, 200, 8), (2.0, 300, 9)]
    assert read.metadata["rows_left_out"] == {"errored_requests": 1, "incomplete_requests": 0}


def test_answers_in_the_form_of_openai(tmp_path: Path) -> None:
    """Responses alone and in the lines of a batch file. An error has no usage."""
    answers = [
        {"created": EPOCH + time, "usage": {"prompt_tokens": prompt, "completion_tokens": output}}
        for time, prompt, output in ((2, 300, 9), (0, 100, 7), (1, 200, 8))
    ] + [{"created": EPOCH, "usage": None}]
    expected = [(0.0, 100, 7), (1.0, 200, 8), (2.0, 300, 9)]
    read = iq.read_trace(lines(tmp_path / "log.jsonl", answers))
    assert rows(read) == expected and read.metadata["rows_left_out"] == {"without_an_answer": 1}
    assert read.metadata["columns_used"]["arrival_s"] == "created"
    # The user's mapping has precedence over the format.
    named = {"arrival_s": "created", "prompt_tokens": "usage.prompt_tokens"}
    in_order = sorted(answers[:-1], key=lambda answer: answer["created"])
    own = lines(tmp_path / "own.jsonl", in_order)
    assert rows(iq.read_trace(own, columns={**named, "output_tokens": "usage.completion_tokens"})) == expected
    batch = [{"custom_id": "x", "response": {"body": answer}} for answer in answers]
    assert rows(iq.read_trace(lines(tmp_path / "batch.jsonl", batch))) == expected


def test_mooncake_without_hashes(tmp_path: Path) -> None:
    log = [
        {"timestamp": time, "input_length": prompt, "output_length": output}
        for time, prompt, output in ((0, 100, 7), (500, 200, 8), (2000, 300, 9))
    ]
    read = iq.read_trace(lines(tmp_path / "m.jsonl", log))
    assert rows(read) == [(0.0, 100, 7), (0.5, 200, 8), (2.0, 300, 9)]
    assert "prefix_hashes" not in read.frame.columns


GOOD = {"at": 1.0, "in": 5, "out": 4}
MAP = {"arrival_s": "at", "prompt_tokens": "in", "output_tokens": "out"}


@refused(
    ([GOOD, {**GOOD, "at": "yesterday"}], {}, r"line 2: at is a string, must be a number as in line 1"),
    (
        [{**GOOD, "at": "noon"}],
        {},
        r"entry 0: at is 'noon', must be a number or a time such as 2026-11-20T09",
    ),
    ([GOOD, {**GOOD, "in": None}], {}, r"line 2: prompt_tokens is null"),
    ([GOOD, {**GOOD, "out": 0}], {}, r"line 2: output_tokens is 0, must be at least 1"),
    ([GOOD, {**GOOD, "at": 0.5}], {}, r"line 2: arrival_s is 0\.5, before the 1\.0 of line 1"),
    ([GOOD], {"columns": {**MAP, "prompt_tokens": "inn"}}, r"has no column 'inn'; did you mean in\?"),
    (
        [GOOD],
        {"columns": {**MAP, "max_tokens": "in"}},
        iq.ConfigError,
        r"'max_tokens' .*; it is called max_output_tokens here",
    ),
    ([GOOD], {"time_unit": "h"}, iq.ConfigError, r"time_unit: must be 's', 'ms', 'us' or 'ns', got 'h'"),
    (
        [{"metadata": {"request_start_ns": 1}, "metrics": {}}],
        {"columns": None},
        r"metrics must have input_sequence_length",
    ),
    ([{"benchmarks": []}], {"columns": None}, r"benchmarks must be a list with one benchmark"),
    ([{"benchmarks": [{}, {}]}], {"columns": None}, r"contains 2 benchmarks, must contain one"),
    (
        [{"request_throughput": 1.0, "mean_ttft_ms": 2.0}],
        {"columns": None},
        r"run the benchmark with --save-detailed",
    ),
    (
        [{"input_lens": [1], "output_lens": [1, 2]}],
        {"columns": None},
        r"output_lens must be a list with as many entries",
    ),
    (
        [{"input_lens": [1], "output_lens": [0]}],
        {"columns": None},
        r"contains no successful requests: 1 failed",
    ),
    error=iq.TraceError,
)
def test_an_error_in_a_log_names_its_line(log: Any, arguments: dict[str, Any], tmp_path: Path) -> None:
    iq.read_trace(lines(tmp_path / "log.jsonl", log), **{"columns": MAP, **arguments})


def test_a_unit_is_only_for_numbers() -> None:
    with pytest.raises(iq.ConfigError, match="not supported: ts contains dates; leave time_unit out"):
        in_seconds(pl.Series("ts", ["2026-11-20T09:00:00Z"]), "ms")
