"""What does a sweep return, what does it refuse, and what does its command do?"""

import itertools
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import inferq as iq
from inferq.cli import app
from inferq.scenario import Scenario

from .arriving import arriving
from .swept import TOML, chat, content, tiny


def test_a_row_is_the_summary_of_the_run_at_its_point():
    frame = iq.sweep(chat, rate=[2, 4], budget=[64, 256], seeds=[5, 3])
    whole = frame.select("rate", "budget", "seed").rows()
    assert whole == [(*point, seed) for *point, seed in itertools.product([2, 4], [64, 256], [5, 3])]
    for row in frame.iter_slices(1):
        run = iq.simulate(*chat(row["rate"][0], row["budget"][0]), seed=row["seed"][0])
        assert row.select(run.summary().columns).equals(run.summary())
    summary = iq.simulate(*chat(2)).summary()
    assert frame.columns == ["rate", "budget", "seed", "status", "error", *summary.columns, "findings"]
    assert dict(frame.select(summary.columns).schema) == dict(summary.schema)
    assert frame["status"].unique().to_list() == ["done"]
    assert frame["error"].null_count() == frame.height


def test_a_point_that_raises_is_a_row_with_its_error_and_the_rest_goes_on():
    def moody(rate: float):
        if rate == 4:
            raise LookupError("no such\nrate")
        return (*chat(rate), {"horizon_s": -1.0} if rate == 8 else {})

    frame = iq.sweep(moody, rate=[2, 4, 8, 16])
    assert frame["status"].to_list() == ["done", "failed", "failed", "done"]
    assert frame["error"][1] == "LookupError: no such rate"
    assert frame["error"][2].startswith("ConfigError: horizon_s: must be")
    told = frame.filter(status="failed").drop("rate", "seed", "status", "error")
    assert told.null_count().row(0) == (2,) * told.width
    assert iq.sweep(moody, rate=[4]).schema == frame.schema


def test_a_scenario_may_be_given_in_each_of_its_forms():
    workload, engine = chat(4)
    plain = iq.sweep(lambda rate: (workload.at_rate(rate), engine), rate=[4, 6])
    with_options = iq.sweep(lambda rate: (workload.at_rate(rate), engine, {"warmup": 0}), rate=[4, 6])
    whole = iq.sweep(lambda rate: Scenario(workload.at_rate(rate), engine, {"warmup": 0}), rate=[4, 6])
    assert content(plain) == content(with_options) == content(whole)
    columns = {"arrival_s": [0.0], "prompt_tokens": [5], "output_tokens": [2]}
    assert iq.sweep(lambda: (columns, engine))["completed"].to_list() == [1]


def test_options_and_objectives_reach_the_run():
    cut = iq.sweep(lambda rate: (*chat(rate), {"warmup": 10}), rate=[4], slo={"ttft_s": 0.1}, seeds=[2])
    summary = iq.simulate(*chat(4), seed=2, warmup=10).summary(slo={"ttft_s": 0.1})
    assert cut.select(summary.columns).equals(summary)


def test_findings_are_told():
    def drowned(rate: float):
        kv = iq.KvCache(tokens=160)
        return arriving(40, rate, iq.dist.Uniform(100, 300), 10), iq.Engine(
            timing=iq.Constant(0.05), scheduler=iq.Sarathi(), kv=kv
        )

    frame = iq.sweep(drowned, rate=[4])
    assert frame["findings"][0] == "; ".join(iq.simulate(*drowned(4)).findings) != ""


def test_the_fields_of_a_file_are_set(chat_toml: Path, tmp_path: Path):
    names = {"workload.arrivals.rate": [2, 8], "engine.scheduler.token_budget": [64], "run.warmup": ["1s"]}
    frame = iq.sweep(chat_toml, **names)
    assert frame["seed"].to_list() == [7, 7]  # of the file
    edited = TOML.replace("rate = 4", "rate = 8").replace('"Sarathi"', '"Sarathi"\ntoken_budget = 64')
    (tmp_path / "edited.toml").write_text(edited + 'warmup = "1s"\n')
    summary = Scenario.read(tmp_path / "edited.toml").run().summary()
    assert frame[1].select(summary.columns).equals(summary)
    assert iq.sweep(str(chat_toml), seeds=[7]).drop("seed").equals(iq.sweep(chat_toml).drop("seed"))


def test_an_entry_of_a_list_in_a_file_is_set_by_its_number(tmp_path: Path):
    engine = TOML[TOML.index("[engine.timing]") : TOML.index("[run]")].replace(
        "[engine.", "[cluster.engines."
    )
    path = tmp_path / "two.toml"
    path.write_text(TOML[: TOML.index("[engine.timing]")] + "[[cluster.engines]]\n" + engine)
    frame = iq.sweep(path, **{"cluster.engines.0.timing.seconds": [0.05, 0.1]})
    assert frame["ttft_mean"][0] < frame["ttft_mean"][1]
    with pytest.raises(iq.ConfigError, match=r"cluster\.engines is a list of 1 entries without an entry 1"):
        iq.sweep(path, **{"cluster.engines.1.timing.seconds": [0.05]})


@pytest.mark.parametrize(
    ("values", "labels", "dtype"),
    [
        ([3, 1], [3, 1], pl.Int64),
        ([3, 1.5], [3.0, 1.5], pl.Float64),
        ([True, False], [True, False], pl.Boolean),
        (["b", "a"], ["b", "a"], pl.String),
        ([None, 2], [None, 2], pl.Int64),
        ([1, "1.", True], ["1", "1.", "True"], pl.String),
        (range(2), [0, 1], pl.Int64),
        (pl.Series([0.5, 2]), [0.5, 2.0], pl.Float64),
        ([{"kind": "Fixed", "tokens": 3}], ["{'kind': 'Fixed', 'tokens': 3}"], pl.String),
        ([2**70, -1], [2.0**70, -1.0], pl.Float64),
    ],
)
def test_how_values_stand_in_the_frame(values, labels, dtype):
    frame = iq.sweep(tiny, value=values)
    assert (frame["value"].to_list(), frame["value"].dtype) == (labels, dtype)


def test_the_function_gets_the_values_and_the_frame_their_names():
    import numpy as np

    got = []

    def noted(scheduler, rate):
        got.append((scheduler, type(rate)))
        workload, engine = chat(rate)
        return workload, iq.Engine(timing=engine.timing, scheduler=scheduler, kv=engine.kv)

    schedulers = [iq.Sarathi(token_budget=64), iq.VllmV1()]
    frame = iq.sweep(noted, scheduler=schedulers, rate=np.array([2.0]), executor=ThreadPoolExecutor(1))
    assert got == [(one, float) for one in schedulers]
    assert frame["scheduler"].to_list() == [repr(one) for one in schedulers]


@settings(max_examples=25)
@given(
    grid=st.dictionaries(
        st.sampled_from(["a", "b", "c"]),
        st.lists(st.integers(-9, 9), min_size=1, max_size=3, unique=True),
        max_size=3,
    ),
    seeds=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=2, unique=True),
)
def test_the_rows_are_the_product_in_the_given_order(grid, seeds):
    frame = iq.sweep(tiny, seeds=seeds, **grid)
    rows = [(*point, seed) for *point, seed in itertools.product(*grid.values(), seeds)]
    assert frame.select(*grid, "seed").rows() == rows


@pytest.mark.parametrize(
    ("grid", "said"),
    [
        ({"seed": [1]}, "seed: is already a column of the result"),
        ({"rate": [1], "ttft_p99": [1]}, "ttft_p99: is already a column of the result"),
        ({"fingerprint": [1]}, "fingerprint: is already a column"),
        ({"rate": []}, "rate: must have at least one value"),
        ({"rate": 3}, "rate: must be a list of values such as [1, 2], got 3"),
        ({"rate": "abc"}, "rate: must be a list of values"),
        ({"rate": {1, 2}}, "rate: must be a list of values"),
        ({"rate": [1, 2, 1]}, "rate: two values have the same label 1"),
        ({"rate": [1, 1.0]}, "rate: two values have the same label 1.0"),
        ({"rate": [float("nan")]}, "rate: must not contain NaN"),
        ({"rate": [object()]}, "has no stable repr"),
        ({"rat": [1]}, "scenario: has the signature (rate: float, budget: int = 256), but the grid has rat"),
        ({}, "the grid has no names: missing a required argument: 'rate'"),
        ({"rate": [1], "seeds": 1.5}, "seeds: must be integers such as range(10), got 1.5"),
        ({"rate": [1], "seeds": []}, "seeds: must contain at least one seed"),
        ({"rate": [1], "seeds": [1, 1]}, "seeds: contains the same seed twice"),
        ({"rate": [1], "seeds": range(10**20)}, "seeds: has too many values"),
        ({"rate": [1], "seeds": [-1]}, "seeds: must be an integer from 0"),
        ({"rate": [1], "slo": {"ttft": 1}}, "slo: unknown objective 'ttft'"),
        ({"rate": [1], "executor": 3}, "executor: must be a concurrent.futures.Executor"),
        ({"rate": [1], "resume": "points.csv"}, "resume: must be the name of a .parquet file"),
        ({"rate": [1], "progress": 3}, "progress: must be True, False, None or a callable"),
    ],
)
def test_what_is_no_grid_is_refused_before_anything_runs(grid, said):
    ran = []

    def scenario(rate: float, budget: int = 256):
        ran.append(rate)
        return chat(rate, budget)

    with pytest.raises(iq.ConfigError) as error:
        iq.sweep(scenario, **grid)
    assert said in str(error.value)
    assert ran == []


def test_a_scenario_that_is_none_is_refused(chat_toml: Path):
    with pytest.raises(iq.ConfigError, match="scenario: must be a function that returns"):
        iq.sweep(3)
    with pytest.raises(OSError, match="nowhere"):
        iq.sweep("nowhere.toml")
    for grid in ({"run.out": ["a"]}, {}):
        with pytest.raises(iq.ConfigError, match=r"run\.out: is not supported in experiments"):
            iq.sweep(chat_toml, **grid)
        chat_toml.write_text(chat_toml.read_text() + 'out = "folder"\n')
    chat_toml.write_text(TOML)
    with pytest.raises(iq.ConfigError, match=r"run\.seed: is set by the sweep; use seeds="):
        iq.sweep(chat_toml, **{"run.seed": [1, 2]})
    with pytest.raises(iq.ConfigError, match=r"the file has no engine\.sched; did you mean scheduler\?"):
        iq.sweep(chat_toml, **{"engine.sched.token_budget": [1]})
    with pytest.raises(iq.ConfigError, match=r"workload\.requests must be a table, got 40"):
        iq.sweep(chat_toml, **{"workload.requests.mean": [1]})
    (wrong,) = iq.sweep(lambda rate: rate, rate=[5])["error"]
    assert wrong.endswith("(workload, system, options) or a Scenario, got int")
    (seeded,) = iq.sweep(lambda rate: (*chat(rate), {"seed": 3}), rate=[2])["error"]
    assert seeded == "ConfigError: seed: is set by the sweep; use seeds=[…] instead of the option"


def shell(*arguments: object):
    return CliRunner().invoke(app, [str(one) for one in arguments], env={"COLUMNS": "100"})


def test_the_command_does_what_the_function_does(chat_toml: Path, tmp_path: Path):
    out = tmp_path / "points.parquet"
    wanted = ["--set", "engine.scheduler.token_budget=64,256", "--set", "workload.arrivals.rate=2, 4"]
    done = shell(
        "sweep", chat_toml, *wanted, "--seeds", 2, "--slo", "ttft_s=0.1", "--threads", 2, "--out", out
    )
    assert done.exit_code == 0, done.output
    grid = {"engine.scheduler.token_budget": [64, 256], "workload.arrivals.rate": [2, 4]}
    expected = iq.sweep(chat_toml, seeds=range(2), slo={"ttft_s": 0.1}, **grid)
    assert pl.read_parquet(out).drop("fingerprint").equals(expected)
    assert "token_budget" in done.stdout and f"written to {out}" in done.stdout
    table = tmp_path / "points.csv"
    assert shell("sweep", chat_toml, *wanted, "--out", table).exit_code == 0
    assert pl.read_csv(table)["seed"].to_list() == [7] * 4


def test_values_on_the_command_line_are_those_of_toml_or_texts(chat_toml: Path):
    done = shell(
        "sweep", chat_toml, "--set", "engine.scheduler.kind=Sarathi,VllmV1", "--set", "run.warmup=1s,10"
    )
    assert done.exit_code == 0, done.output
    schedulers = "engine.scheduler={kind='Sarathi'},{kind='VllmV1', token_budget=64}"
    done = shell("sweep", chat_toml, "--set", schedulers)
    assert done.exit_code == 0, done.output
    assert "VllmV1" in done.stdout


def test_points_that_fail_are_named_and_end_the_command_with_1(chat_toml: Path, tmp_path: Path):
    out = tmp_path / "points.csv"
    done = shell("sweep", chat_toml, "--set", "engine.scheduler.token_budget=64,0", "--out", out)
    assert done.exit_code == 1
    assert "failed: engine.scheduler.token_budget=0, seed=7: ConfigError: " in done.stdout.replace(
        "\n  ", " "
    )
    assert done.stderr == "inferq: 1 of 2 points failed\n"
    assert pl.read_csv(out)["status"].to_list() == ["done", "failed"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--set", "rate"], "--set: must have the form engine.scheduler.token_budget=256,512, got 'rate'"),
        (["--set", "run.warmup=1", "--set", "run.warmup=2"], "--set: run.warmup is given twice"),
        (["--seeds", "0"], "--seeds: must be an integer from 1 to 100000"),
        (["--threads", "0"], "--threads: must be an integer of at least 1"),
        (["--slo", "ttft_s"], "--slo: must have the form ttft_s=0.5 or ttft_s=500ms, got 'ttft_s'"),
        (["--set", "seeds=1,2"], "got 'seeds=1,2'"),
        (["--out", "nowhere/points.csv"], "nowhere/points.csv: directory nowhere does not exist"),
        (["--out", "points.txt"], "--out: must be a .parquet or .csv file"),
        (["--set", "enginge.kv.tokens=1"], "the file has no enginge; did you mean engine?"),
    ],
)
def test_a_wrong_option_is_one_line_and_status_2(chat_toml: Path, given, said):
    done = shell("sweep", chat_toml, *given)
    assert done.exit_code == 2
    assert said in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.skipif(os.name == "nt", reason="no SIGINT for one child there")
def test_ctrl_c_ends_the_command_with_130_and_shows_what_is_done(chat_toml: Path, tmp_path: Path):
    out = tmp_path / "points.parquet"
    chat_toml.write_text(
        TOML.replace("requests = 40", "requests = 5_000").replace("seed = 7", "stepping = true")
    )
    rates = ",".join(map(str, range(1, 3001)))
    command = [sys.executable, "-m", "inferq.cli", "sweep", chat_toml, "--out", out]
    command += ["--set", f"workload.arrivals.rate={rates}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        while not (out.exists() and pl.read_parquet(out).height):
            assert child.poll() is None, child.communicate()
            time.sleep(0.02)
        child.send_signal(signal.SIGINT)
        shown, said = child.communicate(timeout=60)
    assert child.returncode == 130
    assert said.endswith("inferq: interrupted\n") and "of 3,000 points are done" in said
    assert f"written to {out}" in shown
    assert 0 < pl.read_parquet(out).height < 3000


class Named:
    """A path of a class that is no `pathlib.Path`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __fspath__(self) -> str:
        return str(self.path)


def test_any_path_names_a_scenario(chat_toml: Path):
    assert iq.sweep(Named(chat_toml))["status"].to_list() == ["done"]


def test_an_option_of_a_point_that_is_for_one_run_is_its_error(tmp_path: Path):
    frame = iq.sweep(lambda out: (*chat(2), {"out": out}), out=[str(tmp_path / "results")])
    assert frame["error"].item().startswith("ConfigError: out: is not supported in experiments")
    assert not (tmp_path / "results").exists()
