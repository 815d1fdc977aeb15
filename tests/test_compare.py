"""Are the requests the same for all systems, and is what a comparison says of them right?"""

import dataclasses
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import inferq as iq
from inferq.cli import app
from inferq.display.style import svg
from inferq.experiments.comparison.precision import LEAST_SEEDS, next_count, precisions
from inferq.experiments.replication import Run, replications, run_tasks
from inferq.progress import watched
from inferq.results.metric import Metric
from inferq.scenario import Scenario

from .arriving import arriving
from .compared import CHAT, PAIR, engine, md1, one_by_one
from .lin2026 import cluster
from .refusals import refused


def row(comparison: Any, system: str, metric: str, of_class: str | None = None) -> dict[str, Any]:
    rows = comparison.frame.filter(system=system, metric=metric)
    if comparison.by:
        rows = rows.filter(pl.col("class").eq_missing(pl.lit(of_class)))
    return rows.row(0, named=True)


# --- the same requests for all


GATE = cluster()
CHAIN = iq.Workflow(
    "chain",
    stages={
        "draft": iq.Stage("chat", prompt=iq.dist.Geometric(100), output=20),
        "check": iq.Stage("chat", prompt=50, output=iq.dist.Geometric(10), after="draft", includes="draft"),
    },
)
LINK = iq.Link(latency_s=0.01, bytes_per_s=1e9, bytes_per_token=1000)
SYSTEMS: dict[str, dict[str, Any]] = {
    "engines": {"a": PAIR["sarathi"], "b": PAIR["vllm-v0"]},
    "fleets": {
        "random": iq.Cluster(engine(), replicas=2, router=iq.Random()),
        "shortest": iq.Cluster(engine(), replicas=2, router=iq.LeastRequests()),
    },
    "hand-off": {
        "apart": iq.Disaggregated(prefill=(engine(), 1), decode=(engine(), 1), link=LINK),
        "together": iq.Cluster(engine(), replicas=2, router=iq.RoundRobin()),
    },
    "networks": {
        "one": iq.Network({"chat": engine()}, [CHAIN]),
        "two": iq.Network({"chat": iq.Cluster(engine(), replicas=2, router=iq.Random())}, [CHAIN]),
    },
    "slots": {"two": GATE, "three": dataclasses.replace(GATE, replicas=3)},
}


@pytest.mark.parametrize("kind", SYSTEMS)
def test_every_value_is_that_of_a_run_of_its_own(kind: str):
    systems, metrics = SYSTEMS[kind], ["ttft_p99", "e2e_mean", "output_throughput", "failed_share"]
    workload = CHAT
    if kind == "networks":
        workload = iq.Workload.synthetic(requests=60, arrivals=iq.dist.Poisson(2))
    cuts = {"warmup": 20, "cooldown": 10} if kind != "slots" else {"warmup": "5s"}
    found = iq.compare(workload, systems, seeds=[7, 3], metrics=metrics, **cuts)
    assert found.seeds == (7, 3) and found.variation == "seeds"
    for seed in found.seeds:
        for name, system in systems.items():
            run = iq.simulate(workload, system, seed=seed, **cuts)
            wanted = {
                metric: Metric.of(metric).of_row(run.summary().row(0, named=True)) for metric in metrics
            }
            assert (
                dict(found.values.filter(seed=seed, system=name).select("metric", "value").rows()) == wanted
            )


def test_the_number_of_threads_changes_nothing():
    fleets = SYSTEMS["fleets"]
    asked: dict[str, Any] = {"metrics": ["ttft_p99", "itl_p90"], "seeds": range(4)}
    for workload, more in (
        (CHAT, {}),
        (CHAT, {"until": "ttft_p99 ± 30%", "most_seeds": 20}),
        (CHAT.draw(1), {"by": "class"}),
    ):
        first, *others = (iq.compare(workload, fleets, threads=n, **asked, **more) for n in (1, 2, 5))
        for other in others:
            assert other.frame.equals(first.frame) and other.values.equals(first.values)
            assert (other.stopped, other.findings) == (first.stopped, first.findings)


def test_a_system_is_the_same_as_itself():
    found = iq.compare(CHAT, {"one": engine(), "other": engine()}, seeds=range(3))
    rows = found.frame.filter(system="other")
    assert set(rows["verdict"]) == {"same"} and set(rows["difference"]) == {0.0}
    assert not rows["significant_holm"].any()
    assert iq.compare(CHAT, {"one": engine(), "other": engine()}, seeds=[1]).frame["verdict"][1] == "same"


class Tires(iq.Scheduler):
    """Serves one after the other; after 30 batches it computes one token of a prompt at a time."""

    def __init__(self) -> None:
        self.plans = 0

    def plan(self, view: iq.View) -> iq.Batch:
        self.plans += 1
        one = view.running if len(view.running) else view.waiting
        if one.prompt_left[0] == 0:
            return iq.Batch(decode=one.id)
        return iq.Batch(prefill=[(one.id[0], 1 if self.plans > 30 else one.prompt_left[0])])


def test_a_scheduler_that_remembers_begins_every_run_anew():
    workload = arriving(20, 1, 5, 3)
    scheduler = Tires()
    asked: dict[str, Any] = {"metrics": ["e2e_mean"], "seeds": [1, 2, 1 + 2]}
    found = iq.compare(workload, {"tires": engine(scheduler)}, **asked)
    alone = [iq.simulate(workload, engine(Tires()), seed=s).summary()["e2e_mean"].item() for s in (1, 2, 3)]
    assert found.values["value"].to_list() == alone
    assert scheduler.plans == 0
    again = iq.simulate(workload, engine(scheduler), seed=1).summary()["e2e_mean"].item()
    assert again == alone[0]
    assert iq.simulate(workload, engine(scheduler), seed=1).summary()["e2e_mean"].item() != alone[0]


def test_a_scheduler_that_cannot_be_copied_is_named():
    scheduler = Tires()
    scheduler.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(iq.ConfigError, match=r"^systems\.tires: a part written in Python cannot be copied"):
        iq.compare(CHAT, {"sarathi": engine(), "tires": engine(scheduler)})


def test_jobs_of_a_network_have_blocks_too():
    jobs = iq.Workload.synthetic(requests=300, arrivals=iq.dist.Poisson(2)).draw(3)
    found = iq.compare(jobs, SYSTEMS["networks"], seeds=[0], metrics=["e2e_mean", "itl_mean"])
    assert found.variation == "blocks"
    assert found.frame.filter(system="two")["p_value"].null_count() == 0


# --- how many seeds


@pytest.mark.parametrize(
    ("text", "metric", "amount", "is_relative"),
    [
        ("ttft_p99 ± 2%", "ttft_p99", 0.02, True),
        ("ttft_p99 ±2 %", "ttft_p99", 0.02, True),
        ("ttft_p99 +- 0.5%", "ttft_p99", 0.005, True),
        ("itl_p99+/-5 ms", "itl_p99", 0.005, False),
        (" e2e_mean ± 1e-2s ", "e2e_mean", 0.01, False),
        ("request_goodput ± 0.1 requests/s", "request_goodput", 0.1, False),
        ("failed_share ± 0.01 share", "failed_share", 0.01, False),
    ],
)
def test_a_precision_is_read(text: str, metric: str, amount: float, is_relative: bool):
    (found,) = precisions(text)
    assert (found.metric.name, found.is_relative) == (metric, is_relative)
    assert found.amount == pytest.approx(amount)
    assert precisions(f"{metric} ± {found}")[0].amount == pytest.approx(amount)


@given(st.integers(2, 500), st.integers(2, 1000), st.floats(1.0, 1e6))
def test_the_next_look_is_later_and_not_beyond_the_most(count: int, most: int, excess: float):
    if count < most:
        assert count < next_count(count, most, excess) <= min(most, max(2 * count, count + 1))


def test_until_goes_on_until_the_interval_is_narrow():
    found = iq.compare(CHAT, PAIR, until="e2e_mean ± 0.5%", metrics=["ttft_p50"], seeds=[40, 2])
    found_row, base = row(found, "vllm-v0", "e2e_mean"), row(found, "sarathi", "e2e_mean")
    assert found_row["difference_half_width"] <= 0.005 * base["mean"]
    assert found.seeds[:2] == (40, 2) and found.seeds[2:] == tuple(range(41, 39 + len(found.seeds)))
    assert len(found.seeds) >= LEAST_SEEDS and "target reached" in found.stopped
    again = iq.compare(CHAT, PAIR, metrics=["e2e_mean"], seeds=found.seeds)
    assert row(again, "vllm-v0", "e2e_mean")["difference"] == found_row["difference"]


def test_until_gives_up_and_says_so():
    found = iq.compare(
        CHAT, PAIR, until=["ttft_p99 ± 1 us", "itl_p99 ± 50%"], most_seeds=12, metrics=["ttft_p99"]
    )
    assert len(found.seeds) == 12
    assert found.stopped.startswith("12 seeds, the maximum; target not reached: ttft_p99 ± ")


def test_one_system_alone_has_intervals_of_its_means():
    found = iq.compare(CHAT, {"sarathi": engine()}, until="e2e_mean ± 5%")
    mean = row(found, "sarathi", "e2e_mean")
    assert mean["half_width"] <= 0.05 * mean["mean"] and mean["difference"] is None
    assert "e2e_mean" in found.explain()
    with pytest.raises(iq.ConfigError, match=r"^plot: there is no difference to plot"):
        found.plot()


def test_one_seed_has_no_interval():
    found = iq.compare(CHAT, PAIR, seeds=[3], metrics=["ttft_p99"])
    second = row(found, "vllm-v0", "ttft_p99")
    assert second["difference"] is not None
    assert [second[name] for name in ("difference_half_width", "half_width", "p_value", "verdict")] == [
        None
    ] * 4
    assert found.findings[0].kind == "one-seed"
    assert "no verdict" in str(found)


# --- what a run does not tell, and what a reader should know


def test_a_number_that_a_run_does_not_tell_has_no_mean():
    """Prompts of 1,000 tokens never fit: in runs where both requests are long none finishes."""
    long_or_short = arriving(2, 1, iq.dist.Uniform(1, 2000), 2)
    small = {"small": engine(kv=iq.KvCache(tokens=1000)), "large": engine()}
    found = iq.compare(long_or_short, small, seeds=range(20), metrics=["ttft_mean", "failed_share"])
    told, untold = row(found, "large", "ttft_mean"), row(found, "small", "ttft_mean")
    assert (told["mean"] is not None, untold["mean"], told["difference"]) == (True, None, None)
    assert 0 < untold["missing"] < 20 and told["missing"] == 0
    numbers = found.frame.select(pl.selectors.float())
    assert not any(numbers[name].is_nan().any() for name in numbers.columns)
    assert any(text.startswith("no-value: ttft_mean has no value in ") for text in found.findings)
    assert "ttft_mean" in found.explain()
    stopped = iq.compare(long_or_short, small, until="ttft_mean ± 1%").stopped
    assert stopped.endswith("more are of no use, since some runs have no ttft_mean")


def test_metrics_that_no_run_has_are_left_out_unless_asked_for():
    systems = {"a": one_by_one(0.5), "b": one_by_one(0.6)}
    assert "itl_p99" not in iq.compare(md1(50), systems, seeds=[1, 2]).frame["metric"]
    asked = iq.compare(md1(50), systems, seeds=[1, 2], metrics=["itl_p99"])
    assert asked.frame["missing"].to_list() == [2, 2]


def test_an_overloaded_system_is_named():
    found = iq.compare(
        md1(2000, rate=1.0), {"calm": one_by_one(0.5), "late": one_by_one(1.3)}, seeds=range(3)
    )
    overload, no_limit = (finding for finding in found.findings if finding.data.get("system") == "late")
    assert overload.startswith("overload: late: ")
    assert overload.endswith("(in 3 of 3 runs; this is the first)") and overload.data["runs"] == 3
    assert no_limit.kind == "no-limit"
    assert not any(finding.data.get("system") == "calm" for finding in found.findings)
    assert all(text in found.explain() for text in found.findings)


def test_objectives_and_classes():
    both = iq.Workload.mix({"chat": CHAT, "code": CHAT})
    found = iq.compare(both, PAIR, seeds=[4, 5], slo={"ttft_s": 0.3}, by="class", metrics=["request_goodput"])
    for name, system in PAIR.items():
        runs = [iq.simulate(both, system, seed=seed) for seed in (4, 5)]
        by_class = pl.concat([run.summary(by="class", slo={"ttft_s": 0.3}) for run in runs])
        wanted = by_class.filter(pl.col("class") == "code")["request_goodput"].mean()
        assert row(found, name, "request_goodput", "code")["mean"] == pytest.approx(wanted)
    assert found.frame["class"].to_list() == [None, None, "chat", "chat", "code", "code"]
    assert found.values.columns == ["seed", "system", "class", "metric", "value"]
    assert "request_goodput" in iq.compare(CHAT, PAIR, seeds=[1], slo={"ttft_s": 1.0}).frame["metric"]
    assert "request_goodput of code" in found.explain()


def test_the_picture_has_every_relative_difference():
    found = iq.compare(CHAT, {**PAIR, "vllm-v1": engine(iq.VllmV1())}, seeds=range(3))
    drawn = json.loads(found.plot().to_json())
    (points,) = drawn["datasets"].values()
    wanted = found.frame.filter(pl.col("relative").is_not_null())
    assert len(points) == wanted.height
    assert {point["system"] for point in points} == {"vllm-v0", "vllm-v1"}
    assert svg(found.plot()).startswith("<svg")


# --- threads and errors


def test_tasks_come_back_in_order_and_the_first_error_passes():
    def late(watch: Any) -> int:
        time.sleep(0.05)
        return 1

    assert run_tasks([late, lambda watch: 2, late], threads=3) == [1, 2, 1]

    def until_stopped(watch: Any) -> int:
        while True:
            time.sleep(0.005)
            watch(0, 1)

    def wrong(watch: Any) -> int:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run_tasks([late, wrong, until_stopped], threads=3)
    with pytest.raises(KeyError, match="mine"):
        run_tasks([late, wrong], threads=1)


def test_an_error_of_a_scheduler_of_ones_own_passes_as_it_is():
    class Fails(iq.Scheduler):
        def plan(self, view: iq.View) -> iq.Batch:
            raise LookupError("no plan today")

    with pytest.raises(LookupError, match="no plan today"):
        iq.compare(CHAT, {"fine": engine(), "fails": engine(Fails())}, threads=2)


def test_a_workload_is_drawn_once_for_a_seed():
    draws: list[int] = []
    source = SimpleNamespace(draw=lambda seed: draws.append(seed) or CHAT.draw(seed))
    runs = [Run(name, seed) for seed in (1, 2) for name in PAIR]
    replications(source, PAIR, runs, lambda run, result: None, threads=2)  # type: ignore[arg-type]
    assert sorted(draws) == [1, 2]


LONG = """
import inferq as iq
long = iq.Workload.synthetic(
    requests=300_000,
    arrivals=iq.dist.Poisson(0.05),
    prompt=iq.dist.Fixed(100),
    output=iq.dist.Geometric(2000),
)
engine = iq.Engine(timing=iq.Constant(0.01), scheduler=iq.Sarathi(), kv=iq.KvCache.unlimited())
print("begun", flush=True)
iq.compare(long, {"a": engine, "b": engine}, stepping=True, threads=%s)
"""


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.skipif(os.name == "nt", reason="no SIGINT for a child on Windows")
def test_ctrl_c_stops_all_runs(threads: int):
    command = [sys.executable, "-c", LONG % threads]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stderr is not None
        assert child.stdout.readline() == "begun\n"
        time.sleep(1.5)
        child.send_signal(signal.SIGINT)
        said = child.stderr.read()
    assert child.returncode != 0 and said.strip().endswith("KeyboardInterrupt")


@refused(
    ({"systems": {}}, "systems: must be a table of systems by name"),
    ({"systems": [engine()]}, "systems: must be a table of systems by name"),
    ({"systems": {"a": engine(), "b": "sarathi"}}, "systems.b: must be an instance of Engine"),
    ({"systems": {1: engine()}}, "systems: must have non-empty texts as names, got 1"),
    ({"baseline": "saratih"}, "baseline: unknown system 'saratih'; did you mean sarathi"),
    ({"baseline": ["sarathi"]}, r"baseline: unknown system \['sarathi'\]"),
    ({"seeds": 1.5}, r"seeds: must be integers such as range\(10\), got 1.5"),
    ({"seeds": []}, "seeds: must contain at least one seed"),
    ({"seeds": [1, 1]}, "seeds: contains the same seed twice"),
    ({"seeds": [-1]}, "seeds: must be an integer from 0"),
    ({"seeds": range(10**20)}, "seeds: has too many values"),
    ({"until": "ttft_p99 ± 2%", "most_seeds": 10**20}, "most_seeds: must be an integer from 2 to 100000"),
    ({"progress": 3}, "progress: must be True, False, None or a callable"),
    ({"out": "folder"}, "out: is not supported in experiments"),
    ({"metrics": ["ttft_p98"]}, "metrics: unknown metric 'ttft_p98'"),
    ({"metrics": []}, "metrics: must name at least one metric"),
    ({"slo": {"ttft": 1}}, "slo: unknown objective 'ttft'"),
    ({"by": "replica"}, "by: must be 'class' or None"),
    ({"confidence": 95}, "confidence: must be above 0 and below 1"),
    ({"until": "ttft_p99 2%"}, "until: must be such as"),
    ({"until": "ttft_p99 ± 2"}, "until.ttft_p99: must be a text such as '3 %' or '3 s' or '3 ms'"),
    ({"until": "ttft_p99 ± 0%"}, "until.ttft_p99: must be positive"),
    ({"until": "ttft_p99 ± 1.2.3%"}, "until.ttft_p99: must be a text such as"),
    ({"until": "tttf_p99 ± 2%"}, "until: unknown metric 'tttf_p99'; did you mean ttft_p99"),
    ({"until": []}, "until: must contain at least one precision"),
    ({"until": ["ttft_p99 ± 2%", "ttft_p99 ± 3%"]}, "until: contains the same metric twice"),
    ({"until": "ttft_p99 ± 2%", "most_seeds": 5}, "most_seeds: must be at least 10"),
    ({"until": "ttft_p99 ± 2%", "seeds": [2**64 - 1]}, "seeds: must leave room for the further seeds"),
    (
        {"until": "ttft_p99 ± 2%", "workload": CHAT.draw(1)},
        "until: has no effect: the workload is the same for every seed",
    ),
    ({"most_seeds": 20}, "most_seeds: requires until"),
    ({"threads": 0}, "threads: must be an integer"),
    ({"warm_up": 10}, "warm_up: unknown option of simulate; did you mean warmup"),
    ({"seed": 1}, "seed: is not an option here; the experiment sets it"),
    pattern="^{}",
)
def test_what_is_wrong_is_named(given: dict[str, Any]):
    call: dict[str, Any] = {"workload": CHAT, "systems": PAIR, **given}
    iq.compare(call.pop("workload"), call.pop("systems"), **call)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("shown", "asked"), [(True, True), (False, None)])
def test_true_shows_a_bar_of_the_runs_on_a_terminal(shown: bool, asked: bool | None, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr("inferq.progress._SHOW_AFTER_S", 0.0)
    iq.compare(CHAT, PAIR, seeds=range(2), progress=asked)
    assert ("runs" in terminal.getvalue() and "4/4" in terminal.getvalue()) == shown


def test_a_bar_shows_that_something_goes_on_before_anything_is_told(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr("inferq.progress._PULSE_AFTER_S", 0.01)
    with watched(True, "parts") as tell:
        while "parts" not in terminal.getvalue():
            time.sleep(0.01)
    shown = terminal.getvalue()
    assert tell is not None
    tell(1, 2)  # after its end it shows nothing more
    assert terminal.getvalue() == shown


# --- the command


SCENARIO = """
[workload]
requests = 200
arrivals = { kind = "Poisson", rate = 3.0 }
prompt = { kind = "Geometric", mean = 200 }
output = { kind = "Geometric", mean = 40 }

[engine]
scheduler = { kind = "SCHEDULER" }
timing = { kind = "PiecewiseLinear", base = 0.02, per_token = 0.0002 }
kv = { tokens = 100_000 }

[run]
seed = 5
warmup = 20
"""


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    found = []
    for name in ("Sarathi", "VllmV0"):
        (tmp_path / f"{name.lower()}.toml").write_text(SCENARIO.replace("SCHEDULER", name), encoding="utf-8")
        found.append(str(tmp_path / f"{name.lower()}.toml"))
    return found


def test_the_command_says_what_the_function_says(files: list[str], tmp_path: Path):
    out = tmp_path / "table.parquet"
    asked = ["--seeds", "4", "--metric", "ttft_p99", "--metric", "itl_p99", "--out", str(out)]
    done = CliRunner().invoke(app, ["compare", *files, *asked])
    assert done.exit_code == 0, done.output
    workload = arriving(200, 3.0, iq.dist.Geometric(200), iq.dist.Geometric(40))
    systems = {"sarathi": engine(), "vllmv0": engine(iq.VllmV0())}
    found = iq.compare(workload, systems, seeds=range(5, 9), metrics=["ttft_p99", "itl_p99"], warmup=20)
    assert found.explain() in done.stdout.replace("\n  ", " ")
    assert pl.read_parquet(out).equals(found.frame)


@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [
        ("rate = 3.0", "rate = 4.0", "workload.arrivals.rate: is 3.0 in sarathi and 4.0 in vllmv0"),
        ("warmup = 20", "warmup = 30", "run.warmup: is 20 in sarathi and 30 in vllmv0"),
        ("warmup = 20", "", "run.warmup: is 20 in sarathi and unset in vllmv0"),
    ],
)
def test_scenarios_that_differ_in_more_than_the_system_are_refused(
    files: list[str], ours: str, theirs: str, said: str
):
    second = Path(files[1])
    second.write_text(second.read_text(encoding="utf-8").replace(ours, theirs), encoding="utf-8")
    done = CliRunner().invoke(app, ["compare", *files])
    assert done.exit_code == 2 and said in done.stderr


def test_scenarios_are_compared_in_python_as_on_the_command_line(files: list[str]):
    sarathi, vllm = map(Scenario.read, files)
    found = iq.compare({"sarathi": sarathi, "vllmv0": vllm}, metrics=["ttft_p99"], seeds=range(5, 8))
    systems = {"sarathi": sarathi.system, "vllmv0": vllm.system}
    wanted = iq.compare(sarathi.workload, systems, metrics=["ttft_p99"], seeds=range(5, 8), warmup=20)
    assert found.frame.equals(wanted.frame)
    assert iq.compare({"one": sarathi}, metrics=["ttft_p99"]).seeds == tuple(range(5, 15))
    later = dataclasses.replace(vllm, options={**vllm.options, "warmup": 30})
    with pytest.raises(
        iq.ConfigError, match=r"run\.warmup: is 20 in one and 30 in two; .* differ only in the system"
    ):
        iq.compare({"one": sarathi, "two": later})


def test_other_mistakes_on_the_command_line_are_one_line(files: list[str], tmp_path: Path):
    for arguments, said in (
        ([files[0], files[0]], "is given twice"),
        ([*files, "--out", "table.txt"], "--out: must end in .csv, .parquet or .html"),
        ([*files, "--metric", "speed"], "metrics: unknown metric 'speed'"),
        ([*files, "--until", "ttft_p99"], "until: must be such as"),
        ([*files, "--seeds", "99999999999999999999"], "--seeds: must be an integer from 1 to 100000"),
        ([*files, "--out", "nowhere/table.csv"], "nowhere/table.csv: directory nowhere does not exist"),
        ([*files, "--seeds", "0"], "--seeds: must be an integer from 1 to 100000"),
    ):
        done = CliRunner().invoke(app, ["compare", *arguments])
        assert done.exit_code == 2 and said in done.stderr, done.output


AZURE = str(Path(__file__).parent.parent / "traces" / "azure_2023.csv")
ON_CARD = ("--model", "llama-3.1-8b", "--gpu", "h100-80gb")


def test_engines_by_name_serve_a_trace_of_ones_own(tmp_path: Path):
    page = tmp_path / "page.html"
    asked = ["compare", "--engines", "vllm-0.14,sarathi", AZURE, *ON_CARD, "--head", "60", "--rate", "9"]
    done = CliRunner().invoke(app, [*asked, "--seeds", "1", "--out", str(page)], env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    trace = iq.read_trace(AZURE).head(60).at_rate(9)
    names = ["vllm-0.14", "sarathi"]
    found = iq.compare(trace, names, model="llama-3.1-8b", gpu="h100-80gb", seeds=[0])
    assert found.explain() in done.stdout.replace("\n  ", " ")
    assert "llama-3.1-8b on 1 × h100-80gb" in page.read_text("utf-8")
    by_hand = {
        "vllm-0.14": iq.Engine.on("llama-3.1-8b", "h100-80gb", server="vllm-0.14"),
        "sarathi": iq.Engine.on("llama-3.1-8b", "h100-80gb", scheduler=iq.Sarathi()),
    }
    assert iq.compare(trace, by_hand, seeds=[0]).frame.equals(found.frame)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--engines", "vllm,sglan", AZURE, *ON_CARD], "unknown engine 'sglan'; did you mean"),
        (["--engines", "vllm,vllm", AZURE, *ON_CARD], "engines: contains vllm twice"),
        (["--engines", "vllm,", AZURE, *ON_CARD], "engines: contains an empty name"),
        (["--engines", "vllm,nested-wait", AZURE, *ON_CARD], "nested-wait has fields without a default"),
        (["--engines", "vllm,sarathi", AZURE], "engines: requires model and gpu"),
        (
            ["--engines", "vllm,sarathi", AZURE, AZURE, *ON_CARD],
            "--engines: requires exactly one trace, got 2 files",
        ),
        (["a.toml", "b.toml", "--rate", "3"], "--rate: requires --engines"),
    ],
)
def test_wrong_engines_are_one_line(given: list[str], said: str):
    done = CliRunner().invoke(app, ["compare", *given])
    assert done.exit_code == 2 and said in done.stderr and done.stderr.count("\n") == 1
