"""Perfetto traces: valid format, and correct slices and counters."""

import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import jsonschema
import polars as pl
import pytest

import inferq as iq

from .arriving import arriving
from .lin2026 import cluster

SCHEMA = json.loads((Path(__file__).parent / "trace_event_format.json").read_text(encoding="utf-8"))
ENGINE = iq.Engine(
    timing=iq.PiecewiseLinear(base=0.006, per_token=32e-6, knee=200, per_context_token=40e-9),
    scheduler=iq.Sarathi(token_budget=512, max_seqs=16),
    kv=iq.KvCache(tokens=6_000),
)
CHAT = arriving(150, 15, iq.dist.Geometric(200), iq.dist.Geometric(40))
LINK = iq.Link(latency_s=0.01, bytes_per_s=25e9, bytes_per_token=131_072)
PLAN = iq.research.Allocation(prefill={"default": 0.1}, prefill_queue={"default": 0.3})
SYSTEMS = {
    "engine": ENGINE,
    "cluster": iq.Cluster(ENGINE, replicas=3, router=iq.Random()),
    "disaggregated": iq.Disaggregated(prefill=(ENGINE, 1), decode=(ENGINE, 2), link=LINK),
    "gate and route": cluster(PLAN, replicas=4, abandonment=0.1, service="tokens"),
}


def events(result: iq.Result, folder: Path, **options: Any) -> list[dict[str, Any]]:
    path = result.to_perfetto(folder / "run.json", **options)
    trace = json.loads(path.read_text(encoding="utf-8"), parse_constant=pytest.fail)  # no NaN, no Infinity
    jsonschema.validate(trace, SCHEMA)
    found: list[dict[str, Any]] = trace["traceEvents"]
    return found


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_trace_keeps_to_the_format(name: str, tmp_path: Path):
    result = iq.simulate(CHAT, SYSTEMS[name], seed=2, iterations=True, horizon_s=12.0)
    told = events(result, tmp_path)
    threads = {event["tid"] for event in told if event["name"] == "thread_name"}
    assert {event["tid"] for event in told} <= threads  # every track has a name
    tracks: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for event in told:
        if event["ph"] != "M":
            tracks[event["ph"], event["pid"], event["tid"], event["ph"] == "C" and event["name"]].append(
                event
            )
    for (phase, *_), track in tracks.items():
        starts = [event["ts"] for event in track]
        assert starts == sorted(starts)
        if phase == "X":
            nest(track)


def nest(track: list[dict[str, Any]]) -> None:
    """Slices of a thread follow or contain one another, in integer nanoseconds."""
    open_ends: list[int] = []
    for event in track:
        start = round(event["ts"] * 1000)
        end = start + round(event["dur"] * 1000)
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        assert not open_ends or end <= open_ends[-1]
        open_ends.append(end)


def test_slices_are_the_stretches_of_the_run(tmp_path: Path):
    result = iq.simulate(CHAT, SYSTEMS["cluster"], seed=2, iterations=True)
    slices = [event for event in events(result, tmp_path) if event.get("cat") == "iterations"]
    rows = result.iterations.rows(named=True)
    assert len(slices) == len(rows)
    for event, row in zip(slices, rows, strict=True):
        count = row["count"]
        length_s = count * row["first_s"] + row["growth_s"] * count * (count - 1) / 2
        assert event["ts"] == pytest.approx(row["start_s"] * 1e6, abs=1e-3)
        assert event["dur"] == pytest.approx(length_s * 1e6, abs=2e-3)
        assert event["args"]["iterations"] == count
        for name in ("prefill_tokens", "decodes", "context_tokens", "kv_used_tokens"):
            assert event["args"][name] == row[name]
        kinds = {(True, True): "mixed", (True, False): "prefill", (False, True): "decode"}
        assert event["name"] == kinds[row["prefill_tokens"] > 0, row["decodes"] > 0]


def test_counters_are_the_timeline(tmp_path: Path):
    result = iq.simulate(CHAT, SYSTEMS["cluster"], seed=2, iterations=True)
    counters = [event for event in events(result, tmp_path) if event["ph"] == "C"]
    assert len(counters) == result.timeline.height
    of_one = result.timeline.filter(replica=1).sort("time_s")
    told = [event for event in counters if event["name"] == "replica 1"]
    assert [event["args"]["requests running"] for event in told] == of_one["running"].to_list()
    assert [event["args"]["requests waiting"] for event in told] == of_one["waiting"].to_list()
    assert [event["args"]["KV tokens"] for event in told] == of_one["kv_used_tokens"].to_list()


def test_requests_go_through_their_phases(tmp_path: Path):
    result = iq.simulate(CHAT, SYSTEMS["disaggregated"], seed=2, iterations=True)
    chosen = [3, 70]
    slices = [event for event in events(result, tmp_path, requests=chosen) if event.get("cat") == "requests"]
    assert {event["name"] for event in slices if event["args"]} == {"request 3", "request 70"}
    for number in chosen:
        row = result.requests.row(number, named=True)
        thread = next(event["tid"] for event in slices if event["name"] == f"request {number}")
        spans = {event["name"]: event for event in slices if event["tid"] == thread}
        outer = spans.pop(f"request {number}")
        assert outer["ts"] == pytest.approx(row["arrival_s"] * 1e6, abs=1e-3)
        assert outer["dur"] == pytest.approx(row["e2e_s"] * 1e6, abs=2e-3)
        assert sum(event["dur"] for event in spans.values()) == pytest.approx(outer["dur"], abs=1e-2)
        assert spans["hand-off"]["dur"] == pytest.approx(row["handoff_s"] * 1e6, abs=2e-3)
        assert spans["decode"]["ts"] == pytest.approx((row["prefilled_s"] + row["handoff_s"]) * 1e6, abs=1e-2)
        assert outer["args"]["output_tokens"] == row["output_tokens"]


def test_the_slowest_are_shown_unless_told_which(tmp_path: Path):
    result = iq.simulate(CHAT, ENGINE, seed=2, iterations=True)
    slowest = result.requests.sort("e2e_s", descending=True)["id"]

    def shown(**options: Any) -> set[int]:
        told = [event for event in events(result, tmp_path, **options) if event.get("cat") == "requests"]
        return {int(event["name"].split()[1]) for event in told if event["name"].startswith("request ")}

    assert shown() == set(slowest.head(50))
    assert shown(requests=5) == set(slowest.head(5))
    assert shown(requests=pl.Series([8, 2])) == {2, 8}
    assert shown(requests=0) == shown(requests=[]) == set()


def test_who_left_early_or_is_still_there_ends_where_the_run_ends(tmp_path: Path):
    workload = CHAT.at_rate(60).with_patience(0.2)
    result = iq.simulate(workload, ENGINE, seed=2, iterations=True, horizon_s=2.4)
    kinds = result.requests.filter(pl.col("status") != "finished")
    assert {"abandoned", "unfinished"} <= set(kinds["status"])
    told = events(result, tmp_path, requests=kinds["id"].to_list())
    ends = {
        int(event["name"].split()[1]): event["ts"] + event["dur"]
        for event in told
        if event.get("cat") == "requests" and event["args"]
    }
    for row in kinds.rows(named=True):
        end_s = row["left_s"] if row["left_s"] is not None else result.totals["end_s"]
        assert ends[row["id"]] == pytest.approx(end_s * 1e6, abs=1e-2)


def test_a_packed_trace_is_the_same(tmp_path: Path):
    result = iq.simulate(CHAT, ENGINE, seed=2, iterations=True)
    plain = result.to_perfetto(tmp_path / "run.json")
    packed = result.to_perfetto(tmp_path / "run.json.gz")
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["run.json", "run.json.gz"]


def test_names_of_classes_are_quoted(tmp_path: Path):
    odd = CHAT.with_classes({'say "hi" \\ {}': 1.0})
    names = [
        event["args"]["name"]
        for event in events(iq.simulate(odd, ENGINE, iterations=True), tmp_path)[:9]
        if event["ph"] == "M"
    ]
    assert any(name.endswith('(say "hi" \\ {})') for name in names)


def test_what_cannot_be_told_is_refused(tmp_path: Path):
    result = iq.simulate(CHAT, ENGINE, seed=2)
    with pytest.raises(iq.ConfigError, match=r"^iterations: not recorded"):
        result.to_perfetto(tmp_path / "run.json")
    recorded = iq.simulate(CHAT, ENGINE, seed=2, iterations=True)
    for wrong, said in (
        (-1, "at least 0"),
        ([150], "no request with id 150"),
        ("all", "ids"),
        (True, "integer"),
        ([1.5], "integer"),
    ):
        with pytest.raises(iq.ConfigError, match=rf"^requests: .*{said}"):
            recorded.to_perfetto(tmp_path / "run.json", requests=wrong)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
    for path, said in (
        (tmp_path / "nowhere" / "run.json", "does not exist"),
        (3, "path of a file"),
        ("a\0b", "path"),
    ):
        with pytest.raises(iq.ConfigError, match=rf"^path: .*{said}"):
            recorded.to_perfetto(path)  # type: ignore[arg-type]
