"""`Result`: its frames, its summary against a plain recomputation, and what it writes."""

import json
import math
import pathlib
from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

import inferq as iq
from inferq.cli import show
from inferq.results.tables import RequestColumns

from .arriving import arriving
from .refusals import refused

QUANTITIES = ["ttft", "itl", "tpot", "e2e", "queue"]
STATISTICS = ["mean", "p50", "p90", "p95", "p99", "max"]


def busy(case: int, **options: Any) -> iq.Result:
    """A run with rejected, abandoned and preempted requests."""
    draw, requests = np.random.default_rng(case), 300
    workload = pl.DataFrame(
        {
            "arrival_s": np.sort(draw.uniform(0, 60, requests)),
            "prompt_tokens": draw.integers(1, 400, requests),
            "output_tokens": draw.integers(1, 60, requests),
            "class": draw.choice(["chat", "code", "batch"], requests),
            "patience_s": draw.choice([5.0, 20.0, 400.0], requests),
            "ttft_slo_s": draw.choice([1.0, 5.0, math.nan], requests),
            "itl_slo_s": draw.choice([0.05, 0.3, math.nan], requests),
        }
    ).with_columns(pl.col("ttft_slo_s", "itl_slo_s").fill_nan(None))
    engine = iq.Engine(
        timing=iq.PiecewiseLinear(base=0.02, per_token=0.0007, knee=16, per_context_token=1e-5),
        scheduler=iq.Sarathi(token_budget=96, max_seqs=12),
        kv=iq.KvCache(tokens=1_600, block=4),
    )
    too_long = pl.when(pl.int_range(pl.len()) % 50 == 49).then(5_000).otherwise("prompt_tokens")
    return iq.simulate(workload.with_columns(too_long.alias("prompt_tokens")), engine, **options)


def recomputed(result: iq.Result, by: list[str], ttft_slo: Any, itl_slo: Any) -> list[dict[str, Any]]:
    """The summary without token gaps, in plain Python, with objectives per request."""
    rows = [row for row in result.requests.iter_rows(named=True) if row["measured"]]
    finishes = [row["finish_s"] for row in rows if row["finish_s"] is not None]
    duration_s = max(finishes) - min(row["arrival_s"] for row in rows)
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in by), []).append(row)
    summary = []
    for key, members in groups.items():
        finished = [row for row in members if row["status"] == "finished"]
        good = [
            row
            for row in finished
            if (ttft_slo[row["id"]] is None or row["ttft_s"] <= ttft_slo[row["id"]])
            and (
                itl_slo[row["id"]] is None
                or row["max_itl_s"] is None
                or row["max_itl_s"] <= itl_slo[row["id"]]
            )
        ]
        outputs = sum(row["output_tokens"] for row in finished)
        prompts = sum(row["prompt_tokens"] for row in finished)
        told = {
            **dict(zip(by, key, strict=True)),
            "completed": len(finished),
            "failed": sum(row["status"] in ("rejected", "abandoned") for row in members),
            "duration_s": duration_s,
            "request_throughput": len(finished) / duration_s,
            "output_throughput": outputs / duration_s,
            "total_token_throughput": (prompts + outputs) / duration_s,
            "request_goodput": len(good) / duration_s,
        }
        for name in QUANTITIES:
            if name == "itl":
                continue
            values = [row[f"{name}_s"] for row in members if row[f"{name}_s"] is not None]
            told[f"{name}_mean"] = math.fsum(values) / len(values) if values else None
            told[f"{name}_max"] = max(values, default=None)
            for percent in (50, 90, 95, 99):
                told[f"{name}_p{percent}"] = float(np.percentile(values, percent)) if values else None
        summary.append(told)
    return summary


@pytest.mark.parametrize("case", range(4))
@pytest.mark.parametrize("by", [None, "class", ["class", "status"], ["preemptions"]])
@pytest.mark.parametrize("options", [{}, {"warmup": 40, "cooldown": "10s"}, {"horizon_s": 50.0}])
def test_the_summary_is_what_a_plain_recomputation_gives(case: int, by: Any, options: dict[str, Any]) -> None:
    result = busy(case, **options)
    frame = result._tables.workload
    keys = [] if by is None else [by] if isinstance(by, str) else by
    expected = recomputed(result, keys, frame["ttft_slo_s"].to_list(), frame["itl_slo_s"].to_list())
    summary = result.summary(by=by)
    assert summary.height == len(expected)
    if keys:
        assert summary.equals(summary.sort(keys))
    told = {tuple(row[name] for name in keys): row for row in summary.iter_rows(named=True)}
    for group in expected:
        row = told[tuple(group[name] for name in keys)]
        for name, value in group.items():
            expected_value = pytest.approx(value, rel=1e-12) if isinstance(value, float) else value
            assert row[name] == expected_value, name


def test_the_run_behind_these_tests_has_every_status() -> None:
    assert set(busy(0, horizon_s=50.0).requests["status"]) == {
        "finished",
        "rejected",
        "abandoned",
        "unfinished",
    }


def test_the_summary_has_these_columns_in_this_order() -> None:
    counts = ["completed", "failed", "lost", "duration_s"]
    rates = ["request_throughput", "output_throughput", "total_token_throughput", "request_goodput"]
    latencies = [f"{name}_{statistic}" for name in QUANTITIES for statistic in STATISTICS]
    assert busy(0).summary().columns == [*counts, *rates, *latencies, "api_mean", "cached_tokens", "hit_rate"]
    assert busy(0).summary(by=["replica", "class"]).columns[:2] == ["replica", "class"]


def gaps(result: iq.Result) -> dict[int, list[float]]:
    """All token gaps by request, from the batches of a run with stepping."""
    ends = result.iterations["start_s"] + result.iterations["first_s"]
    emitted: dict[int, list[float]] = {}
    for row in result.batches.filter("emits").iter_rows(named=True):
        emitted.setdefault(row["request"], []).append(ends[row["iteration"]])
    return {request: list(np.diff(times)) for request, times in emitted.items()}


@pytest.mark.parametrize("case", range(3))
@pytest.mark.parametrize("warmup", [0, 60])
def test_token_gaps_are_all_counted_and_percentiles_are_upper_edges(case: int, warmup: int) -> None:
    result = busy(case, warmup=warmup, stepping=True, batches=True)
    named = result.requests["class"]
    every = {request: values for request, values in gaps(result).items() if request >= warmup}
    by_class = {
        name: sorted(gap for request, values in every.items() if named[request] == name for gap in values)
        for name in ("batch", "chat", "code")
    }
    by_class["all"] = sorted(gap for values in by_class.values() for gap in values)
    summary = {row["class"]: row for row in result.summary(by="class").iter_rows(named=True)}
    summary["all"] = result.summary().row(0, named=True)
    for name, values in by_class.items():
        bins = result.itl if name == "all" else result.itl.filter(pl.col("class") == name)
        assert bins["count"].sum() == len(values)
        row = summary[name]
        assert row["itl_mean"] == pytest.approx(np.mean(values), rel=1e-9)
        assert row["itl_max"] == pytest.approx(values[-1], rel=1e-9)
        for percent in (50, 90, 95, 99):
            exact = values[-(-percent * len(values) // 100) - 1]
            told = row[f"itl_p{percent}"]
            assert told in bins["upper_s"] or told == row["itl_max"]
            assert exact * (1 - 1e-9) <= told <= exact * (1 + 1 / 128 + 1e-9)
            assert told <= row["itl_max"]


@pytest.mark.parametrize("case", range(3))
@pytest.mark.parametrize("threads", [1, 2])
def test_percentiles_of_gaps_are_exact_at_the_limits_of_the_run(case: int, threads: int) -> None:
    """Limits at percentiles themselves, a little below and a little above, against all gaps one by one."""
    every = sorted(gap for values in gaps(busy(case, stepping=True, batches=True)).values() for gap in values)
    exact = {percent: every[-(-percent * len(every) // 100) - 1] for percent in (50, 90, 95, 99)}
    limits = [value * factor for value in exact.values() for factor in (0.9999, 0.999999, 1.000001, 1.0001)]
    result = busy(case, itl_limits_s=limits, threads=threads)
    row, plain = result.summary().row(0, named=True), busy(case).summary().row(0, named=True)
    for percent, value in exact.items():
        told = row[f"itl_p{percent}"]
        for limit in limits:
            assert (told <= limit) == (value <= limit), (percent, limit)
        assert told <= plain[f"itl_p{percent}"]
    assert result.itl["count"].sum() == len(every)
    assert {name: row[name] for name in row if not name.startswith("itl_p")} == {
        name: plain[name] for name in plain if not name.startswith("itl_p")
    }


@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 40)), min_size=1, max_size=12), st.integers(1, 64)
)
def test_no_percentile_of_gaps_is_above_the_largest_gap(rows: list[tuple[int, int]], seqs: int) -> None:
    timing = iq.PiecewiseLinear(base=0.01, per_token=1e-4, knee=1, per_context_token=1e-6)
    engine = iq.Engine(timing=timing, scheduler=iq.Sarathi(max_seqs=seqs), kv=iq.KvCache.unlimited())
    prompts, outputs = zip(*rows, strict=True)
    workload = {"arrival_s": [0.0] * len(rows), "prompt_tokens": prompts, "output_tokens": outputs}
    row = iq.simulate(workload, engine).summary().row(0, named=True)
    told = [row[f"itl_{name}"] for name in ("p50", "p90", "p95", "p99", "max")]
    assert told == sorted(told, key=lambda value: (value is None, value))


def test_token_gaps_are_known_by_class_only() -> None:
    summary = busy(1).summary(by=["class", "replica"])
    for statistic in STATISTICS:
        assert summary[f"itl_{statistic}"].null_count() == summary.height


def test_objectives_given_take_the_place_of_the_workloads() -> None:
    result = busy(2)
    columns = result._tables.workload
    rows = columns.height

    def goodput(**slo: float | None) -> float:
        return float(result.summary(slo=slo)["request_goodput"].item())

    def expected(ttft: list[Any], itl: list[Any]) -> float:
        return float(recomputed(result, [], ttft, itl)[0]["request_goodput"])

    ttft, itl = columns["ttft_slo_s"].to_list(), columns["itl_slo_s"].to_list()
    assert goodput() == expected(ttft, itl)
    assert goodput(ttft_s=2.0) == expected([2.0] * rows, itl)
    assert goodput(itl_s=0.1) == expected(ttft, [0.1] * rows)
    assert goodput(ttft_s=2.0, itl_s=None) == expected([2.0] * rows, [None] * rows)
    assert goodput(ttft_s=None, itl_s=None) == result.summary()["request_throughput"].item()


SLOTS = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.Sarathi(), kv=iq.KvCache(tokens=160))
TWO: dict[str, Any] = {"arrival_s": [0.0, 0.5], "prompt_tokens": [10, 5], "output_tokens": [3, 1]}


def test_an_objective_that_is_just_met_is_met() -> None:
    result = iq.simulate(TWO, SLOTS)  # ttft 1.0 and 1.5, gaps of 1.0
    assert result.summary(slo={"ttft_s": 1.5, "itl_s": 1.0})["request_goodput"].item() == 2 / 3
    assert result.summary(slo={"ttft_s": 1.0, "itl_s": 1.0})["request_goodput"].item() == 1 / 3
    assert result.summary(slo={"itl_s": 0.999})["request_goodput"].item() == 1 / 3  # one token has no gap


@refused(
    ({"ttft": 1.0}, "ttft"),
    ({"ttft_s": -1.0}, "ttft_s"),
    ({"ttft_s": math.nan}, "ttft_s"),
    ({"itl_s": math.inf}, "itl_s"),
    ({"itl_s": "1"}, "itl_s"),
    ({"itl_s": True}, "itl_s"),
    (1.0, "slo"),
    ([1.0, 2.0], "slo"),
)
def test_a_wrong_objective_is_named(slo: Any) -> None:
    iq.simulate(TWO, SLOTS).summary(slo=slo)


@pytest.mark.parametrize("by", ["clas", ["class", "sesion"], ["class", "class"], [1]])
def test_a_wrong_grouping_is_an_error(by: Any) -> None:
    with pytest.raises(iq.ConfigError, match="by: "):
        iq.simulate(TWO, SLOTS).summary(by=by)


def test_a_run_in_which_nothing_finished_has_counts_and_no_latencies() -> None:
    result = iq.simulate({"arrival_s": [0.0], "prompt_tokens": [999], "output_tokens": [1]}, SLOTS)
    row = result.summary().row(0, named=True)
    assert (row["completed"], row["failed"], row["duration_s"]) == (0, 1, None)
    assert row["request_throughput"] == row["output_throughput"] == row["request_goodput"] == 0
    assert all(row[f"{name}_{statistic}"] is None for name in QUANTITIES for statistic in STATISTICS)


def test_a_run_in_which_nothing_is_measured_has_no_groups() -> None:
    result = iq.simulate(TWO, SLOTS, warmup=2)
    assert result.summary(by="class").height == 0
    assert result.summary()["completed"].item() == 0


def test_columns_are_numpys_own_memory() -> None:
    result = iq.simulate(TWO, SLOTS)
    columns = result._tables.requests
    adopted = [name for name in columns if name not in ("class", "status", "measured", "tpot_s", "max_itl_s")]
    assert len(adopted) == 14
    for name in adopted:
        ours = result.requests[name].to_numpy(allow_copy=False)
        assert ours.__array_interface__["data"][0] == columns[name].__array_interface__["data"][0], name


def test_columns_of_the_workload_are_shared_and_what_is_one_is_made_once() -> None:
    workload = iq.Workload({**TWO, "class": ["code", "chat"]})
    columns = iq.simulate(workload, SLOTS).requests
    given = workload.draw(0).frame
    for name in ("prompt_tokens", "output_tokens"):
        assert np.shares_memory(columns[name].to_numpy(), given[name].to_numpy()), name
    assert np.shares_memory(columns["left_s"].to_numpy(), columns["finish_s"].to_numpy())


def test_no_number_of_a_run_makes_the_frame_of_its_requests(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """Nor all columns: each number reads only the columns that it needs."""

    def refuse(*_: object) -> None:
        raise AssertionError("the frame of requests was asked for")

    monkeypatch.setattr(RequestColumns, "whole", refuse)
    with pytest.raises(AssertionError, match="frame of requests"):
        _ = iq.simulate(TWO, SLOTS).requests
    engine = replace(SLOTS, timing=iq.Constant(0.1))
    drawn = arriving(60, 2.0, 8, iq.dist.Geometric(5))
    traced = iq.simulate(drawn, engine)._tables.workload.with_columns(
        pl.Series("class", ["code", "chat"] * 30), pl.lit(0.5).alias("ttft_slo_s")
    )
    for by in (None, "class", ["class", "status"]):
        assert iq.simulate(traced, engine).summary(by=by, slo={"itl_s": 1.0}).height > 0
    systems = {"one": engine, "other": replace(engine, timing=iq.Constant(0.2))}
    assert iq.compare(drawn, systems, seeds=[1, 2]).frame.height > 0
    assert iq.compare(traced, systems, by="class").frame.height > 0
    slo = iq.Slo(ttft_p90=5.0, failed_share=0.1, by_class={"code": iq.Slo(e2e_mean=20.0)})
    assert iq.capacity(traced, engine, slo).rate > 0
    assert iq.sweep(lambda rate: (drawn.at_rate(rate), engine), rate=[1.0, 2.0]).height == 2
    show.result(iq.simulate(traced, iq.Cluster(engine, replicas=2), horizon_s=20.0, warmup=3))
    scenario = tmp_path / "scenario.toml"
    scenario.write_text(
        """
        [workload]
        requests = 50
        arrivals = { kind = "Poisson", rate = 2 }
        prompt = { kind = "Fixed", tokens = 8 }
        output = { kind = "Fixed", tokens = 5 }
        [engine]
        timing = { kind = "Constant", seconds = 0.1 }
        scheduler = { kind = "Sarathi" }
        kv = { tokens = 1000 }
        [gate]
        seeds = 2
        """
    )
    assert iq.gate(scenario, tmp_path / "baseline.json", update=True).written


def test_frames_are_made_once() -> None:
    result = iq.simulate(TWO, SLOTS)
    assert result.requests is result.requests
    assert result.itl is result.itl


def test_frames_have_these_columns_and_types() -> None:
    result = iq.simulate(TWO, SLOTS, batches=True)
    seconds = ["arrival_s", "admitted_s", "first_token_s", "finish_s", "left_s"]
    latencies = ["queue_s", "ttft_s", "tpot_s", "max_itl_s", "e2e_s"]
    assert dict(result.requests.schema) == {
        "id": pl.UInt32,
        "class": pl.Enum(["default"]),
        "replica": pl.UInt32,
        "status": pl.Enum(["finished", "rejected", "abandoned", "unfinished", "lost"]),
        "measured": pl.Boolean,
        **dict.fromkeys(seconds + latencies, pl.Float64),
        "prompt_tokens": pl.Int32,
        "output_tokens": pl.Int32,
        "preemptions": pl.Int32,
        "cached_tokens": pl.Int32,
    }
    assert result.requests.columns == [
        *["id", "class", "replica", "status", "measured", *seconds, *latencies],
        *["prompt_tokens", "output_tokens", "preemptions", "cached_tokens"],
    ]
    assert result.itl.columns == ["class", "lower_s", "upper_s", "count"]
    assert result.timeline.columns == [
        *["time_s", "replica", "waiting", "running", "kv_used_tokens"],
        *["tokens_in_system", "prefill_tokens_per_s", "output_tokens_per_s", "cached_tokens_per_s"],
    ]
    assert result.iterations.columns == [
        *["start_s", "replica", "count", "first_s", "growth_s", "prefill_tokens", "decodes"],
        *["context_tokens", "kv_used_tokens"],
    ]
    assert result.batches.columns == ["iteration", "request", "tokens", "emits"]
    unsigned = {"id", "class", "replica", "iteration", "request"}
    for name in ("requests", "itl", "timeline", "iterations", "batches", "block_operations"):
        for column, kind in getattr(result, name).schema.items():
            assert column in unsigned or not kind.is_unsigned_integer(), (name, column)
    assert np.repeat(result.iterations["start_s"], result.iterations["count"]).size > 0


@pytest.mark.parametrize("frame", ["iterations", "batches"])
def test_what_was_not_recorded_says_how_to_record_it(frame: str) -> None:
    with pytest.raises(iq.ConfigError, match=f"{frame}=True"):
        getattr(iq.simulate(TWO, SLOTS), frame)


def test_a_result_is_frozen_and_shows_its_counts() -> None:
    result = iq.simulate({**TWO, "prompt_tokens": [10, 999]}, SLOTS)
    row = result.summary().row(0, named=True)
    main = f"ttft p50 {row['ttft_p50']:.2f} s, p99 {row['ttft_p99']:.2f} s; e2e p99 {row['e2e_p99']:.2f} s"
    rate = f"{row['request_throughput']:.3g} requests/s"
    assert repr(result) == f"Result(2 requests: 1 finished, 1 rejected; {main}; {rate}; 1 finding)"
    with pytest.raises(FrozenInstanceError):
        result.requests = pl.DataFrame()
    result.findings.clear()
    assert len(result.findings) == 1


def test_totals_obey_littles_law() -> None:
    totals = busy(3).totals
    assert totals["in_system_as"] == totals["sojourn_as"] > 0


def test_the_scenario_repeats_the_run(tmp_path: pathlib.Path) -> None:
    result = busy(4, warmup=5, cooldown="2s", seed=3)
    scenario = json.loads(result.scenario)
    assert scenario["workload"]["sha256"] == iq.Workload(result._tables.workload).sha256()
    assert (scenario["run"]["warmup"], scenario["run"]["cooldown"]) == (5, "2.0s")
    workload = pl.read_parquet(result.write(tmp_path) / "workload.parquet")
    engine = iq.Engine.from_json(scenario["engine"])
    again = iq.simulate(workload, engine, seed=scenario["run"]["seed"], warmup=5, cooldown="2s")
    assert_frame_equal(again.requests, result.requests, check_exact=True)
    assert again.scenario == result.scenario


def test_a_synthetic_workload_is_in_the_scenario_in_full() -> None:
    synthetic = arriving(9, 2, 5, iq.dist.Geometric(5))
    workload = json.loads(iq.simulate(synthetic, SLOTS).scenario)["workload"]
    assert workload["arrivals"] == {"kind": "Poisson", "rate": 2}


def test_what_is_written_is_what_the_frames_hold(tmp_path: pathlib.Path) -> None:
    result = busy(5, batches=True)
    place = result.write(tmp_path / "new" / "place")
    assert {file.name for file in place.iterdir()} == {
        *["requests.parquet", "itl.parquet", "timeline.parquet", "iterations.parquet", "batches.parquet"],
        *["workload.parquet", "block_operations.parquet"],
        *["scenario.json", "findings.json", "totals.json", "manifest.json"],
    }
    for name in ("requests", "itl", "timeline", "iterations", "batches"):
        frame = pl.read_parquet(place / f"{name}.parquet")
        assert_frame_equal(frame, getattr(result, name), check_exact=True)
    assert json.loads((place / "scenario.json").read_text()) == json.loads(result.scenario)
    assert json.loads((place / "findings.json").read_text()) == [one.to_json() for one in result.findings]


def test_writing_again_leaves_nothing_of_the_run_before(tmp_path: pathlib.Path) -> None:
    busy(5, batches=True).write(tmp_path)
    workload = arriving(9, 2, 5, iq.dist.Geometric(5))
    iq.simulate(workload, SLOTS).write(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {
        *["requests.parquet", "itl.parquet", "timeline.parquet", "workload.parquet"],
        *["block_operations.parquet", "scenario.json", "findings.json", "totals.json", "manifest.json"],
    }


def audited(scheduler: Any, **tables: Any) -> iq.Result:
    """A run with this scheduler and replaced tables of the core."""
    engine = iq.Engine(timing=iq.Constant(1.0), scheduler=scheduler, kv=iq.KvCache.unlimited())
    result = iq.simulate({"arrival_s": [0.0], "prompt_tokens": [4], "output_tokens": [3]}, engine)
    return replace(result, _tables=replace(result._tables, **tables))


def work(*rows: tuple[int, int, int, int, int]) -> dict[str, Any]:
    """The table of loads; rows are (load, iterations, broken, cap, memory)."""
    names = ("load", "iterations", "broken", "cap", "memory")
    columns = zip(*rows, strict=True) if rows else [()] * 5
    return {name: np.array(column, dtype=np.uint64) for name, column in zip(names, columns, strict=True)}


WORK = work((1, 10, 4, 3, 2), (63, 6, 3, 1, 2), (64, 20, 5, 10, 5), (512, 4, 2, 0, 0))


@pytest.mark.parametrize(
    ("budget", "share", "cap_share", "memory_share"),
    [
        (1, 0, 0, 0),  # no iteration loaded less
        (2, 4 / 40, 3 / 40, 2 / 40),
        (64, 7 / 40, 4 / 40, 4 / 40),  # those of 64 tokens are full
        (np.int64(65), 12 / 40, 14 / 40, 9 / 40),
        (512, 12 / 40, 14 / 40, 9 / 40),
        (2**70, 14 / 40, 14 / 40, 9 / 40),
    ],
)
def test_work_conservation_counts_the_iterations_below_the_budget(
    budget: Any, share: float, cap_share: float, memory_share: float
) -> None:
    told = audited(iq.Sarathi(), work=WORK).work_conservation(budget=budget)
    assert told.share == share
    assert (told.cap_share, told.memory_share) == (cap_share, memory_share)
    assert (told.budget, told.iterations) == (budget, 40)


@pytest.mark.parametrize(
    ("scheduler", "budget"),
    [
        (iq.Sarathi(token_budget=64), 64),
        (iq.VllmV1(), 2048),
        (iq.VllmV0(), 4096),
        (iq.research.Orca(token_budget=64), 64),
        (iq.research.KFcfs(token_budget=64, k_prefill=1, k_decode=8), 64),
        (iq.research.Slai(token_budget=64), 64),
        (iq.ClassPriority(order=["default"], inner=iq.Sarathi(token_budget=64)), 64),
    ],
)
def test_work_conservation_is_held_against_the_schedulers_own_budget(scheduler: Any, budget: int) -> None:
    told = audited(scheduler, work=WORK)
    assert told.work_conservation().budget == budget
    assert told.work_conservation() == told.work_conservation(budget=budget)


@pytest.mark.parametrize(
    "scheduler",
    [
        iq.research.Orca(),
        iq.research.FasterTransformer(),
        iq.research.Rad(rows=2, columns=2, reduction=2, requests_per_cycle=2),
        iq.research.Wait(thresholds=1),
        iq.research.NestedWait(segments=[0], thresholds=[1]),
        iq.research.SlotGreedy(),
    ],
)
def test_a_scheduler_without_a_budget_must_be_given_one(scheduler: Any) -> None:
    told = audited(scheduler, work=WORK)
    with pytest.raises(
        iq.ConfigError, match=f"budget: required, because {type(scheduler).__name__} has no token budget"
    ):
        told.work_conservation()
    assert told.work_conservation(budget=64).share == 7 / 40


@pytest.mark.parametrize("bad", [0, -1, 2.5, "64", True, math.nan])
def test_a_wrong_budget_is_named(bad: Any) -> None:
    with pytest.raises(iq.ConfigError, match="budget"):
        audited(iq.Sarathi(), work=WORK).work_conservation(budget=bad)


def test_work_conservation_of_no_iterations_is_kept() -> None:
    told = audited(iq.Sarathi(), work=work()).work_conservation()
    assert (told.share, told.cap_share, told.memory_share, told.iterations) == (0, 0, 0, 0)


def test_an_unchunked_prompt_that_runs_alone_breaks_work_conservation() -> None:
    """Four iterations: prompt 0, prompt 1 alone while request 0 could decode, its two decodes."""
    two = {"arrival_s": [0.0, 0.5], "prompt_tokens": [4, 4], "output_tokens": [3, 1]}
    shares = []
    for scheduler in (iq.VllmV0(token_budget=8), iq.Sarathi(token_budget=8)):
        engine = iq.Engine(timing=iq.Constant(1.0), scheduler=scheduler, kv=iq.KvCache.unlimited())
        shares.append(iq.simulate(two, engine).work_conservation().share)
    assert shares == [1 / 4, 0]


def test_who_was_still_here_when_nothing_was_to_come() -> None:
    """Three requests and a threshold of two: the third request waits until no arrival is left."""
    engine = iq.Engine(
        timing=iq.Constant(1.0), scheduler=iq.research.Wait(thresholds=2), kv=iq.KvCache.unlimited()
    )
    three = {"arrival_s": [0.0, 0.0, 9.0], "prompt_tokens": [4] * 3, "output_tokens": [1, 2, 1]}
    result = iq.simulate(three, engine)
    # [0, 1): both prompts; request 0 ends, request 1 pauses for want of two in the queue
    assert result.drained.equals(pl.Series("id", [1, 2], dtype=pl.UInt32), check_dtypes=True)
    assert result.requests["finish_s"].to_list() == [1.0, 10.0, 10.0]
    assert busy(0).drained.equals(pl.Series("id", [], dtype=pl.UInt32), check_dtypes=True)


@pytest.mark.parametrize(("stretched", "iterations", "share"), [(30, 40, 0.75), (0, 40, 0.0), (0, 0, 0.0)])
def test_the_share_that_went_in_stretches(stretched: int, iterations: int, share: float) -> None:
    totals = {"stretched_iterations": stretched, "iterations": iterations}
    assert audited(iq.Sarathi(), totals=totals).stretched_share == share


def test_nothing_is_stretched_where_every_iteration_is_stepped() -> None:
    long = {"arrival_s": [0.0], "prompt_tokens": [4], "output_tokens": [1000]}
    engine = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.Sarathi(), kv=iq.KvCache.unlimited())
    assert iq.simulate(long, engine).stretched_share > 0.9
    assert iq.simulate(long, engine, stepping=True).stretched_share == 0
