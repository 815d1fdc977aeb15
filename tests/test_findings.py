"""Findings: their kinds, their numbers, and the runs that produce them."""

import copy
import json
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import inferq as iq
from inferq import _core
from inferq.results import store, tables
from inferq.results.finding import KINDS, SEVERITIES, Finding, by_severity
from inferq.results.findings import of_objective
from inferq.results.percentiles import percentiles
from inferq.timing.hardware.catalog import entries
from inferq.workload import parts
from inferq.workload.trace_options import TraceOptions


def _engine(**changes: object) -> iq.Engine:
    parts: dict[str, object] = {
        "timing": iq.Constant(0.01),
        "scheduler": iq.Sarathi(token_budget=64, max_seqs=8, watermark=0.0),
        "kv": iq.KvCache(tokens=1000),
    }
    return iq.Engine(**{**parts, **changes})  # type: ignore[arg-type]


def test_every_kind_is_declared_once_and_described() -> None:
    assert {*_core.finding_kinds} <= {*KINDS} and len({*_core.finding_kinds}) == len(_core.finding_kinds)
    for name, kind in KINDS.items():
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", name)
        assert kind.severity in SEVERITIES and kind.meaning.endswith(".") and kind.advice.endswith(".")


def test_every_kind_occurs_in_the_source_and_in_a_test() -> None:
    root = Path(__file__).parent.parent
    places = [
        path for folder in ("python/inferq", "rust/src") for path in (root / folder).rglob("*.[pr][ys]")
    ]
    source = "".join(path.read_text() for path in places if path.name not in ("finding.py", "finding.rs"))
    tests = "".join(path.read_text() for path in (root / "tests").rglob("*.py"))
    in_plans = {"assumption", "no-prices", "stopped"}  # test_plan.py compares their texts
    for name in {*KINDS} - in_plans:
        in_core = f"Kind::{name.title().replace('-', '')}"
        assert f'"{name}"' in source or in_core in source or name in ("answer", "one-sample"), name
        assert re.search(rf"[\"']{name}[\"':]", tests), f"no test for {name}"


def test_idle_replicas_unsent_requests_and_ignored_events_are_counted() -> None:
    rows = {"arrival_s": [0.0, 5.0], "prompt_tokens": [1, 1], "output_tokens": [1, 1]}
    fleet = iq.Cluster(_engine(), replicas=3, router=iq.LeastRequests())
    (idle,) = iq.simulate(rows, fleet).findings
    assert idle.kind == "idle-replicas" and idle.data == {"count": 2, "total": 3}
    twice = iq.Cluster(
        _engine(), replicas=2, router=iq.LeastRequests(), failures=iq.Failures(at=[(1.0, 0), (2.0, 0)])
    )
    assert ("events-ignored", {"count": 1}) in [
        (one.kind, dict(one.data)) for one in iq.simulate(rows, twice).findings
    ]
    # The first request never ends before the horizon, and only one may be in flight.
    busy = {"arrival_s": [0.0, 0.1], "prompt_tokens": [1, 1], "output_tokens": [900, 1]}
    stalled = _engine(scheduler=Idle())
    findings = iq.simulate(busy, stalled, max_in_flight=1).findings
    assert ("never-sent", {"count": 1}) in [(one.kind, dict(one.data)) for one in findings]


class Idle(iq.Scheduler):
    """A policy that never plans anything."""

    def plan(self, view: iq.View) -> iq.Batch:
        return iq.Batch()


def test_a_finding_is_a_text_with_parts_that_cannot_change() -> None:
    finding = Finding("overload", "3 of 9 requests were waiting", {"count": 3, "total": 9})
    assert finding == "overload: 3 of 9 requests were waiting" and isinstance(finding, str)
    assert (finding.kind, finding.severity) == ("overload", "critical")
    assert finding.message == "3 of 9 requests were waiting" and finding.data == {"count": 3, "total": 9}
    for other in (pickle.loads(pickle.dumps(finding)), copy.deepcopy(finding), copy.copy(finding)):
        assert (other, other.kind, other.data) == (finding, finding.kind, finding.data)
    assert Finding.from_json(json.loads(json.dumps(finding.to_json()))).data == finding.data
    about = finding.about("a100", system="a100")
    assert about == "overload: a100: 3 of 9 requests were waiting"
    assert about.data == {"count": 3, "total": 9, "system": "a100"}
    with pytest.raises(AttributeError, match="read-only"):
        finding.kind = "lost"  # type: ignore[misc]
    with pytest.raises(TypeError):
        finding.data["count"] = 4  # type: ignore[index]
    with pytest.raises(iq.ConfigError, match="'late' is not a kind of finding"):
        Finding("late", "")


def test_findings_are_sorted_by_severity_and_keep_their_order() -> None:
    texts = [Finding(kind, "") for kind in ("unit", "canceled", "lost", "horizon", "overload")]
    kinds = [finding.kind for finding in by_severity(texts)]
    assert kinds == ["lost", "overload", "unit", "horizon", "canceled"]


def test_a_request_that_is_preempted_a_hundred_times_is_thrash():
    """While the first emits 780 tokens, the prompt of the second never fits, but its first chunk does."""
    workload = {"arrival_s": [0.0, 0.0], "prompt_tokens": [200, 950], "output_tokens": [780, 1]}
    scheduler = iq.VllmV1(token_budget=512, max_seqs=8, reserve_full_prompt=False)
    result = iq.simulate(workload, _engine(scheduler=scheduler, kv=iq.KvCache(tokens=1000, block=1)))
    times = result.requests["preemptions"][1]
    assert times >= 100
    (finding,) = result.findings
    assert finding.kind == "thrashing" and finding.data == {"preemptions": times}
    roomy = iq.simulate(workload, _engine(scheduler=scheduler, kv=iq.KvCache(tokens=2000, block=1)))
    assert roomy.findings == []


def test_a_queue_that_grows_all_the_time_is_overload():
    """Each request needs the only slot for ten iterations, 0.1 s; 20 arrive per second."""
    rows = 200
    workload = {
        "arrival_s": [row / 20 for row in range(rows)],
        "prompt_tokens": [1] * rows,
        "output_tokens": [10] * rows,
    }
    one_place = _engine(scheduler=iq.Sarathi(max_seqs=1))
    assert _kinds(iq.simulate(workload, one_place)) == ["overload"]
    assert iq.simulate(workload, _engine()).findings == []


def test_what_can_never_fit_is_rejected_and_said_with_the_first_of_them():
    workload = {"arrival_s": [0.0, 1.0, 2.0], "prompt_tokens": [10, 1200, 10**7], "output_tokens": [5, 5, 5]}
    result = iq.simulate(workload, _engine())
    assert result.requests["status"].to_list() == ["finished", "rejected", "rejected"]
    (finding,) = result.findings
    assert finding.startswith("rejected: 2 of 3 requests (the first is 1)")
    reason = finding.data["reason"]
    assert finding.data == {"count": 2, "total": 3, "first_request": 1, "reason": reason}
    assert finding.message.endswith(reason)
    assert result.requests["left_s"].to_list()[1:] == [1.0, 2.0]


def _kinds(result: iq.Result) -> list[str]:
    return [finding.kind for finding in result.findings]


def _even(rows: int, every_s: float = 1.0, start_s: float = 0.0) -> dict[str, list[float]]:
    arrivals = [start_s + row * every_s for row in range(rows)]
    return {"arrival_s": arrivals, "prompt_tokens": [10] * rows, "output_tokens": [5] * rows}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"warmup": 30}, "nothing-measured: warmup of 30 requests excludes all 30"),
        ({"warmup": "40s"}, "nothing-measured: warmup of 40 s excludes all 30"),
        ({"warmup": 10, "cooldown": 20}, "warmup of 10 requests and cooldown of 20 requests excludes all"),
        ({"horizon_s": 0.5}, "nothing-arrived: the run ended at 0.5 s, before the first of 30 requests"),
        ({"horizon_s": 1.005}, "nothing-finished: none of 1 measured request finished"),
    ],
)
@pytest.mark.parametrize("stored", [False, True])
def test_a_measurement_of_nothing_is_said(
    options: dict[str, Any], says: str, stored: bool, tmp_path: Path
) -> None:
    out = {"out": tmp_path / "run"} if stored else {}
    (finding,) = iq.simulate(_even(30, start_s=1.0), _engine(), **options, **out).findings
    assert says in finding and finding.severity == "critical"


@pytest.mark.parametrize(
    ("workload", "changes", "says"),
    [
        (_even(30, every_s=218.0), {}, r"unit: the mean rate is 0\.00459 per second.*--time-unit ms"),
        (_even(30), {"timing": iq.Constant(50.0)}, r"unit: the shortest iteration takes 50 s.*are 0\.05$"),
        (
            _even(30, start_s=5e8),
            {},
            r"time-origin: the first request arrives at 500,000,000 s and all others within",
        ),
    ],
)
def test_numbers_in_another_unit_or_from_another_origin_are_asked_about(
    workload: dict[str, Any], changes: dict[str, Any], says: str
) -> None:
    findings = iq.simulate(workload, _engine(**changes)).findings
    assert any(re.search(says, text) for text in findings)
    assert _kinds(iq.simulate(_even(30), _engine())) == []


def test_turns_before_the_answer_that_they_contain_are_counted() -> None:
    """An answer takes 50 ms; five of ten conversations continue after 20 ms, and five after 60 ms."""
    talk = iq.Workload(
        {
            "arrival_s": [one for row in range(10) for one in (row, row + (0.02 if row % 2 else 0.06))],
            "prompt_tokens": [10, 20] * 10,
            "output_tokens": [5, 5] * 10,
            "session_id": [row for row in range(10) for _ in "ab"],
            "turn": [0, 1] * 10,
        }
    )
    early = iq.simulate(talk, _engine())
    (finding,) = early.findings
    assert finding.kind == "early-turns" and finding.data == {"count": 5, "total": 10}
    follow = talk.with_session_arrivals(iq.dist.Poisson(1.0), think=0.0)
    assert _kinds(iq.simulate(follow, _engine())) == []
    assert _kinds(iq.simulate(talk.with_think(0.0), _engine())) == []
    drawn = follow.draw(3).frame
    assert drawn.filter(pl.col("think_s").is_null())["turn"].to_list() == [0] * 10
    assert drawn["arrival_s"].is_sorted() and drawn.height == 20


def test_rates_draw_the_starts_of_conversations() -> None:
    """Sessions of two turns at 4 requests per second: 2 starts per second, and no turn is early."""
    rows = 4000
    talks = iq.Workload(
        {
            "prompt_tokens": [10, 20] * (rows // 2),
            "output_tokens": [5] * rows,
            "session_id": [row // 2 for row in range(rows)],
            "turn": [0, 1] * (rows // 2),
        }
    )
    object.__setattr__(talks, "_metadata", {"rows_left_out": {}, "token_count": "as in the source"})
    notes: list[str] = []
    work = TraceOptions(rate=4.0).apply(talks, notes)
    assert any("2,000 conversations of 2 turns: Poisson at 2 starts per second" in note for note in notes)
    assert any("Exponential(mean_s=20.0) (default of --think)" in note for note in notes)
    starts = work.draw(1).frame.filter(pl.col("turn") == 0)["arrival_s"]
    assert abs(starts.len() / starts[-1] - 2.0) < 4 * 2.0 / starts.len() ** 0.5  # four standard errors
    run = iq.simulate(work, _engine(), seed=1)
    assert not any(name in ("early-turns", "overload") for name in _kinds(run))
    with pytest.raises(iq.ConfigError, match="think: the trace has no turns"):
        single = iq.Workload({"prompt_tokens": [5], "output_tokens": [5]})
        object.__setattr__(single, "_metadata", {"rows_left_out": {}, "token_count": ""})
        TraceOptions(rate=4.0, think=2.0).apply(single, [])


def test_a_burst_is_named_with_when_and_how_long() -> None:
    """One slot of 50 ms, one request per second for 1,000 s, and 100 more at second 500, which take 5 s."""
    arrivals = sorted([float(row) for row in range(1000)] + [500.001] * 100)
    rows = len(arrivals)
    work = {"arrival_s": arrivals, "prompt_tokens": [10] * rows, "output_tokens": [5] * rows}
    one_place = _engine(scheduler=iq.Sarathi(max_seqs=1))
    (finding,) = [one for one in iq.simulate(work, one_place).findings if one.kind == "long-tail"]
    begin, end, rate = (finding.data[name] for name in ("queue_start_s", "queue_end_s", "rate_per_s"))
    assert begin == 500.001 and abs(end - 505.3) < 0.3 and rate > 15
    assert "lasted from 500.00 s to" in finding and "a burst" in finding
    calm = {
        "arrival_s": [float(row) for row in range(200)],
        "prompt_tokens": [10] * 200,
        "output_tokens": [5] * 200,
    }
    assert _kinds(iq.simulate(calm, one_place)) == []


def test_the_side_that_starves_is_named() -> None:
    """One prefill replica, 0.64 s per prompt at 2 per second, and four decode replicas."""
    slow = _engine(timing=iq.PiecewiseLinear(base=0.001, per_token=0.01, knee=0))
    fast = _engine(scheduler=iq.Sarathi(max_seqs=64), kv=iq.KvCache.unlimited())
    link = iq.Link(latency_s=0.0, bytes_per_s=1e12, bytes_per_token=1.0)
    fleet = iq.Disaggregated(prefill=(slow, 1), decode=(fast, 4), link=link)
    rows = 400
    arrivals = [row * 2.0 for row in range(300)] + [600 + row * 0.1 for row in range(100)]
    work = {"arrival_s": arrivals, "prompt_tokens": [64] * rows, "output_tokens": [5] * rows}
    (finding,) = [one for one in iq.simulate(work, fleet).findings if one.kind == "long-tail"]
    assert "at the 1 prefill replica (up to" in finding
    assert "0 at the decode replicas): that side is too small" in finding


def test_contradictions_of_settings_are_said() -> None:
    workload = _even(30)
    prefixes = {**workload, "prefix_parts": [[[1, 8]]] * 30}
    cached = _engine(kv=iq.KvCache(tokens=1000, prefix_cache="blocks"))
    lost = iq.simulate(prefixes, iq.Cluster(_engine(), replicas=2, router=iq.PrefixAffinity()))
    assert "no-prefix-cache" in _kinds(lost)
    useful = iq.simulate(prefixes, iq.Cluster(cached, replicas=2, router=iq.PrefixAffinity()))
    assert not {"no-prefix-cache", "no-prefixes"} & {*_kinds(useful)}
    blind = iq.simulate(workload, iq.Cluster(cached, replicas=2, router=iq.PrefixAffinity()))
    assert "no-prefixes" in _kinds(blind)
    huge = iq.Engine.on("llama-3.1-8b", "h100-80gb", kv=iq.KvCache(tokens=10**9))
    (finding,) = [one for one in iq.simulate(workload, huge).findings if one.kind == "kv-over-memory"]
    room = iq.timing.KvMemory.of(
        "llama-3.1-8b",
        "h100-80gb",
        gpu_memory_utilization=huge.on_card["gpu_memory_utilization"],
        batched_tokens=huge.scheduler.token_budget,
        sampled_rows=huge.scheduler.max_seqs,  # type: ignore[attr-defined]
    ).tokens
    assert finding.data == {"kv_tokens": 10**9, "memory_tokens": room}


def test_unused_keys_of_a_model_and_an_average_capacity_are_findings_of_the_run() -> None:
    workload = _even(30)
    assert not {"model-unused", "kv-average"} & {
        *_kinds(iq.simulate(workload, iq.Engine.on("llama-3.1-8b", "h200")))
    }
    config = {**entries("models")["mistral-7b"]["config"], "vision_config": {"depth": 2}}
    engine = iq.Engine.on(config, "h200", max_model_len=16_384)
    findings = {finding.kind: finding for finding in iq.simulate(workload, engine).findings}
    assert findings["model-unused"].data == {"keys": ["vision_config"]}
    assert "images are not encoded" in findings["model-unused"].message
    assert findings["kv-average"].data == {"kv_tokens": engine.kv.tokens, "max_model_len": 16_384}
    given = iq.Engine.on(config, "h200", kv=iq.KvCache(tokens=100_000))
    assert "kv-average" not in _kinds(iq.simulate(workload, given))


def test_hashed_beginnings_that_are_too_long_or_all_the_same_are_said() -> None:
    cached = _engine(kv=iq.KvCache(tokens=10_000, prefix_cache="blocks"))
    rows = 120
    work = {
        **_even(rows),
        "prompt_tokens": [100] * rows,
        "prefix_parts": [[[row % 5, 90]] for row in range(rows)],
    }
    long = iq.simulate(work, iq.Cluster(cached, replicas=3, router=iq.PrefixHash()))
    (finding,) = [one for one in long.findings if one.kind == "hash-too-long"]
    assert finding.data == {"prefix_tokens": 1024, "prompt_tokens_p50": 100.0}
    same = {**work, "prefix_parts": [[[7, 90]]] * rows}
    hot = iq.simulate(same, iq.Cluster(cached, replicas=3, router=iq.PrefixHash(prefix_tokens=64)))
    (finding,) = [one for one in hot.findings if one.kind == "hot-prefix"]
    assert finding.data == {"count": 120, "total": 120, "replicas": 3, "prefix_tokens": 64}


def test_objectives_in_milliseconds_are_asked_about() -> None:
    assert of_objective("ttft_p99", 0.5) is None and of_objective("e2e_mean", 120.0) is None
    assert "500 milliseconds are 0.5" in str(of_objective("ttft_p99", 500.0))
    asked = "unit: the objective itl_s is 50 s; objectives are in seconds, 50 milliseconds are 0.05"
    rows, slo = _even(30), {"ttft_s": 0.5, "itl_s": 50.0}
    compared = iq.compare(rows, {"a": _engine(), "b": _engine()}, metrics=["ttft_mean"], slo=slo)
    assert asked in compared.findings
    swept = iq.sweep(lambda rows: (_even(rows), _engine()), rows=[20, 30], slo=slo)
    assert swept["findings"].to_list() == [asked] * 2
    own = iq.simulate({**rows, "ttft_slo_s": [500.0] * 30, "itl_slo_s": [0.05] * 30}, _engine()).findings
    assert len(own) == 1 and "the objective ttft_slo_s is 500 s" in own[0]


@pytest.mark.parametrize("stored", [False, True])
def test_what_a_horizon_cuts_off_is_counted(stored: bool, tmp_path: Path) -> None:
    """25 of 40 requests that arrive together and take 2 to 80 iterations need more than 0.5 s."""
    outputs = [2 * row + 2 for row in range(40)]
    rows = {"arrival_s": [0.0] * 40, "prompt_tokens": [1] * 40, "output_tokens": outputs}
    wide = _engine(scheduler=iq.Sarathi(token_budget=64, max_seqs=40), kv=iq.KvCache.unlimited())
    out = {"out": tmp_path / "run"} if stored else {}
    findings = iq.simulate(rows, wide, horizon_s=0.505, **out).findings
    (finding,) = [one for one in findings if one.kind != "overload"]
    late = sum(1 for one in outputs if one > 50)
    assert finding.kind == "horizon" and finding.data == {
        "count": late,
        "total": 40,
        "horizon_s": 0.505,
        "without_queue": 0,
        "without_ttft": 0,
    }
    whole = iq.simulate(rows, wide, horizon_s=9.0)
    assert "horizon" not in _kinds(whole)


def test_gigabytes_taken_for_bytes_are_asked_about() -> None:
    for speed, wanted in ((50.0, True), (50e9, False)):
        link = iq.Link(latency_s=1e-4, bytes_per_s=speed, bytes_per_token=131_072)
        fleet = iq.Disaggregated(prefill=(_engine(), 1), decode=(_engine(), 1), link=link)
        findings = [one for one in iq.simulate(_even(30), fleet).findings if "link_bytes_per_s" in one.data]
        assert bool(findings) == wanted and all("write 50e9" in finding for finding in findings)


def test_users_without_a_request_are_counted() -> None:
    trace = iq.read_trace(Path(__file__).parent.parent / "traces" / "azure_2023.csv")
    for users, idle in ((40, True), (30, False)):
        notes: list[str] = []
        TraceOptions(head=30, concurrency=users).apply(trace, notes)
        assert ("the trace has 30 requests: 10 users send none" in notes) == idle


def test_a_plan_that_cannot_know_what_came_since_is_not_called_idle() -> None:
    # What comes while a batch runs is in no plan made before: the audit counts that, no finding tells it.
    fields: dict[str, Any] = {"token_budget": 64, "max_seqs": 64}
    for ahead in (iq.VllmV1(**fields), iq.Sglang(chunk_tokens=64)):
        run = iq.simulate(_even(200, 0.013), _engine(scheduler=ahead, kv=iq.KvCache(tokens=1024)))
        assert "not-work-conserving" not in _kinds(run)
        assert run.work_conservation(budget=64).share > 0


_ONE_PLACE = _engine(scheduler=iq.Sarathi(max_seqs=1))
_LONG_PROMPT = _engine(
    timing=iq.PiecewiseLinear(base=0.01, per_token=0.01, knee=0), kv=iq.KvCache(tokens=4000)
)
_CACHED = _engine(kv=iq.KvCache(tokens=10_000, prefix_cache="blocks"))


def _with(rows: int, places: range, column: str, value: int, every_s: float = 1.0) -> dict[str, Any]:
    work = _even(rows, every_s)
    work[column] = [value if row in places else one for row, one in enumerate(work[column])]
    return work


def _burst(rows: int, more: int) -> dict[str, Any]:
    arrivals = sorted([*map(float, range(rows)), *[rows // 2 + 0.001] * more])
    return {**_even(rows + more), "arrival_s": arrivals}


_TURNS = {
    "arrival_s": [one for row in range(150) for one in (float(row), row + (0.02 if row % 2 else 0.06))],
    "prompt_tokens": [10, 20] * 150,
    "output_tokens": [5, 5] * 150,
}
_CASES: dict[str, tuple[str, dict[str, Any], Any, dict[str, Any]]] = {
    "a burst": ("a burst beyond the capacity of this system", _burst(1000, 100), _ONE_PLACE, {}),
    "a burst at one replica": (
        "of them on replica 1 of 4",
        {**_burst(1000, 100), "session_id": [int(450 < row < 650) for row in range(1100)]},
        iq.Cluster(_ONE_PLACE, replicas=4, router=iq.BySession()),
        {},
    ),
    "longer outputs": (
        "times as long then",
        _with(600, range(300, 330), "output_tokens", 300),
        _ONE_PLACE,
        {},
    ),
    "longer prompts": (
        "took long to compute",
        _with(400, range(7, 400, 40), "prompt_tokens", 300, every_s=20),
        _LONG_PROMPT,
        {},
    ),
    "a queue to the end": (
        "still there at the last arrival",
        {
            **_even(400),
            "arrival_s": [float(row) if row < 250 else 250 + (row - 250) * 0.01 for row in range(400)],
        },
        _ONE_PLACE,
        {},
    ),
    "decodes starve": (
        "long-tail: handoff.*at the 1 decode replica ",
        {**_burst(300, 100), "output_tokens": [20] * 400},
        iq.Disaggregated(
            prefill=(_engine(scheduler=iq.Sarathi(max_seqs=64)), 4),
            decode=(_ONE_PLACE, 1),
            link=iq.Link(latency_s=0.0, bytes_per_s=1e12, bytes_per_token=1.0),
        ),
        {},
    ),
    "hashed beginnings": (
        "their first 64 tokens are the same",
        {**_even(120), "prompt_tokens": [100] * 120, "prefix_parts": [[[7, 90]]] * 120},
        iq.Cluster(_CACHED, replicas=3, router=iq.PrefixHash(prefix_tokens=64)),
        {},
    ),
    "turns": (
        "early-turns: 75 of 150 later turns",
        {**_TURNS, "session_id": [row // 2 for row in range(300)], "turn": [0, 1] * 150},
        _engine(),
        {},
    ),
    "continuations": (
        "early-turns: 75 of 150 later turns",
        {**_TURNS, "continues": pl.Series([None if row % 2 == 0 else row - 1 for row in range(300)])},
        _engine(),
        {},
    ),
    "milliseconds": (
        r"the mean rate is 0\.00\d+ per second.*--time-unit ms",
        _even(130, 218.0),
        _engine(),
        {},
    ),
    "another origin": (
        "time-origin: the first request arrives at 500,000,000 s",
        _even(130, start_s=5e8),
        _engine(),
        {},
    ),
    "objectives": (
        "the objective ttft_slo_s is 500 s",
        {**_even(130), "ttft_slo_s": pl.Series([None, 400.0, 500.0, 500.0, 600.0] * 26)},
        _engine(),
        {},
    ),
    "nothing measured": ("excludes all 130", _even(130), _engine(), {"warmup": 130}),
    "cut off": ("horizon: 66 of 96 measured", _burst(70, 65), _ONE_PLACE, {"horizon_s": 35.04, "warmup": 5}),
}


@pytest.mark.parametrize("name", _CASES)
def test_a_stored_run_has_the_same_findings_and_reads_a_part_at_a_time(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    says, work, system, options = _CASES[name]
    pl.DataFrame(work).write_parquet(tmp_path / "work.parquet")
    whole = iq.simulate(work, system, **options)
    assert any(re.search(says, text) for text in whole.findings), whole.findings
    read, heights = pl.read_parquet, list[int]()

    def noted(file: Path, **options: Any) -> pl.DataFrame:
        frame = read(file, **options)
        heights.extend([frame.height] if file.parent.name == "requests" else [])
        return frame

    monkeypatch.setattr(tables.StoredColumns, "__getitem__", lambda columns, name: pytest.fail(name))
    monkeypatch.setattr(tables.pl, "read_parquet", noted)
    monkeypatch.setattr(parts, "ROWS", 64)
    monkeypatch.setattr(store, "PART_ROWS", 64)
    scanned = iq.Workload.scan(tmp_path / "work.parquet")
    stored = iq.simulate(scanned, system, **options, out=tmp_path / "run")
    assert stored.findings == whole.findings
    for by in (None, ["status", "replica"]):
        assert stored.summary(by).equals(whole.summary(by))
    assert len(heights) > 1 and max(heights) <= 64


def test_a_wait_of_exactly_a_second_is_no_long_tail() -> None:
    """One prompt in twenty takes exactly 1 s, and no request takes longer."""
    work = _with(200, range(7, 200, 20), "prompt_tokens", 99, every_s=5)
    exact = iq.PiecewiseLinear(base=0.01, per_token=0.01, knee=0)
    result = iq.simulate(work, _engine(timing=exact, scheduler=iq.Sarathi(token_budget=128)))
    assert float(np.percentile(result.requests["ttft_s"], 99)) == result.requests["ttft_s"].max() == 1.0
    assert result.findings == []


@settings(max_examples=20)
@given(
    cut=st.lists(
        st.lists(st.sampled_from([0.0, -0.0, 0.25, 3.0]) | st.floats(0, allow_infinity=False), max_size=9),
        min_size=1,
        max_size=6,
    )
)
def test_percentiles_of_parts_are_those_of_numpy(cut: list[list[float]]) -> None:
    each = [np.array(part, dtype=float) for part in cut]
    percents = [0, 25, 50, 90, 99, 100]
    with np.errstate(over="ignore", invalid="ignore"):  # on the way from the least numbers to the largest
        told = percentiles(lambda: iter(each), percents)
        whole = np.concatenate(each)
        assert np.array_equal(
            told, np.percentile(whole, percents) if whole.size else [np.nan] * 6, equal_nan=True
        )


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize(
    ("bytes_per_s", "paths", "times"),
    [
        # 40 prompts of 100 tokens arrive, and without a slow link complete, within 39 s: 4000 / 39 bytes/s.
        (10.0, {}, 4000 / 39 / 10),
        (10.0, {"concurrent": None}, 4000 / 39 / 10),
        (10.0, {"concurrent": 4}, 4000 / 39 / 40),
        (10.0, {"concurrent": 20}, None),
        (200.0, {}, None),
    ],
)
def test_kv_traffic_is_compared_with_the_link(
    tmp_path: Path, bytes_per_s: float, paths: dict[str, Any], times: float | None, stored: bool
) -> None:
    rows = {
        "arrival_s": [float(at) for at in range(40)],
        "prompt_tokens": [100] * 40,
        "output_tokens": [2] * 40,
    }
    link = iq.Link(latency_s=0.0, bytes_per_s=bytes_per_s, bytes_per_token=1.0, **paths)
    engine = _engine(kv=iq.KvCache.unlimited())
    fleet = iq.Disaggregated(prefill=(engine, 1), decode=(engine, 1), link=link)
    run = iq.simulate(rows, fleet, **({"out": tmp_path / "run"} if stored else {}))
    findings = [finding for finding in run.findings if finding.kind == "link"]
    ratios = [one.data["traffic_bytes_per_s"] / one.data["capacity_bytes_per_s"] for one in findings]
    assert ratios == ([] if times is None else [pytest.approx(times)])


def test_transfers_share_the_link_by_default() -> None:
    # Both prompts complete at 1 s. Each transfer of 100 bytes takes 10 s, one after the other.
    engine = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.Sarathi(), kv=iq.KvCache.unlimited())
    rows = {"arrival_s": [0.0, 0.0], "prompt_tokens": [100, 100], "output_tokens": [2, 2]}
    for paths, expected in (({}, [10.0, 20.0]), ({"concurrent": None}, [10.0, 10.0])):
        link = iq.Link(0.0, 10.0, 1.0, **paths)
        fleet = iq.Disaggregated(prefill=(engine, 1), decode=(engine, 1), link=link)
        assert iq.simulate(rows, fleet).requests["handoff_s"].to_list() == expected
        assert iq.Disaggregated.from_json(fleet.to_json()) == fleet
    assert iq.Link(0.0, 10.0, 1.0, concurrent="unlimited") == iq.Link(0.0, 10.0, 1.0, concurrent=None)


def test_the_horizon_names_every_latency_that_it_cuts() -> None:
    # One sequence at a time, 0.1 s per token: requests 0, 1, 2 have 50, 2 and 50 tokens and are served in
    # [0, 5), [5, 5.2) and from 5.2 s on. At 10 s, 3 of 40 have a first token, and 2 have finished.
    engine = iq.Engine(
        timing=iq.Constant(0.1),
        scheduler=iq.VllmV1(token_budget=64, max_seqs=1, async_scheduling=False, pause_s=0),
        kv=iq.KvCache(tokens=6000),
    )
    rows = [
        {"arrival_s": i * 0.1, "prompt_tokens": 10, "output_tokens": 2 if i % 2 else 50} for i in range(40)
    ]
    run = iq.simulate(iq.Workload(rows), engine, horizon_s=10.0)
    (finding,) = [finding for finding in run.findings if finding.kind == "horizon"]
    assert finding.data["count"] == 38 and finding.data["without_ttft"] == finding.data["without_queue"] == 37
    assert "queue lacks 37, TTFT lacks 37, E2E and TPOT lack 38 of them" in finding
