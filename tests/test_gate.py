"""Does the gate stop what has become worse, let pass what has not, and say clearly what it cannot judge?"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

import inferq as iq
from inferq.cli import app
from inferq.experiments.gates.baseline import Record, read_baseline, text_of, write_baseline
from inferq.experiments.gates.gate import Trial, accepted, checked, maker
from inferq.experiments.gates.terms import Terms
from inferq.scenario import Scenario
from inferq.systems.system import System

from .arriving import arriving
from .lin2026 import cluster

DOCS = Path(__file__).parent.parent / "docs"
SCENARIO = """
[workload]
requests = 300
arrivals = { kind = "Poisson", rate = 5 }
prompt = { kind = "Uniform", low = 10, high = 500 }
output = { kind = "Geometric", mean = 40 }

[engine]
timing = { kind = "Constant", seconds = 0.02 }
scheduler = { kind = "Sarathi" }
kv = { tokens = 100_000 }

[run]
seed = 3
warmup = 10

[gate]
seeds = 4
confidence = 0.9
slo = { ttft_s = 0.5 }

[gate.tolerance]
request_goodput = "1%"
ttft_p99 = "5ms"
"""
FLOOD = """
[workload]
requests = 200
arrivals = { kind = "Deterministic", rate = 1_000_000 }
prompt = { kind = "Uniform", low = 10, high = 500 }
output = { kind = "Geometric", mean = 40 }

[engine]
timing = { kind = "Constant", seconds = 0.02 }
scheduler = { kind = "Sarathi", max_seqs = 8 }
kv = "unlimited"

[gate]
seeds = 3
tolerance = { request_goodput = "2%" }
"""
FIXED = {"arrival_s": [0.0, 0.5, 0.6], "prompt_tokens": [10, 20, 30], "output_tokens": [5, 9, 2]}


def engine(seconds: float = 0.02, scheduler: iq.Scheduler | None = None) -> iq.Engine:
    timing = iq.Constant(seconds)
    return iq.Engine(timing=timing, scheduler=scheduler or iq.Sarathi(), kv=iq.KvCache.unlimited())


def synthetic(requests: int = 200, rate: float = 5.0) -> iq.Workload:
    return arriving(requests, rate, 50, iq.dist.Geometric(mean=20))


def trial(system: object, workload: object = None, name: str = "chat", **terms: object) -> Trial:
    workload = synthetic() if workload is None else workload
    requests = workload if isinstance(workload, iq.Workload) else iq.Workload(workload)
    return Trial(name, requests, maker(system), {}, Terms(**{"seeds": 3, **terms}))


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "120"})


def error(*arguments: object) -> str:
    """The one line that misuse leaves on standard error, after those of the runs."""
    result = run(*arguments)
    assert result.exit_code == 2, (result.output, result.exception)
    line = result.stderr.splitlines()[-1]
    assert line.startswith("inferq: "), result.stderr
    return line.removeprefix("inferq: ")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory to be in, with one scenario."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chat.toml").write_text(SCENARIO)
    return tmp_path


# The gate catches what it promises


class Fcfs(iq.Scheduler):
    """Decodes first, then prompts as they came."""

    token_budget = 512
    max_seqs = 64

    def waits(self, view: iq.View) -> "np.ndarray":
        """The rows of the queue that may be admitted."""
        return np.arange(len(view.waiting.id))

    def plan(self, view: iq.View) -> iq.Batch:
        running, waiting = view.running, view.waiting
        decode, started = running.id[running.decodes], ~running.decodes
        prompts = list(zip(running.id[started], running.prompt_left[started], strict=True))
        may = self.waits(view)[: self.max_seqs - len(running)]
        prompts += zip(waiting.id[may], waiting.prompt_left[may], strict=True)
        left, prefill = self.token_budget - len(decode), []
        for id, owed in prompts:
            if left > 0:
                prefill.append((id, min(owed, left)))
                left -= prefill[-1][1]
        if len(decode) or prefill or not len(waiting.id):
            repeat = 1 if prefill or len(waiting.id) else 10**6
            return iq.Batch(decode=decode, prefill=prefill, repeat=repeat)
        return iq.Batch(wake_at_s=float(waiting.since_s[0]) + LATE_S)


LATE_S = 1.0
"""Beyond the objective for the first token."""


class ForgetsOneOf33(Fcfs):
    """One request of 33, 3 %, is kept back until its objective is over."""

    def waits(self, view: iq.View) -> "np.ndarray":
        forgotten = view.waiting.id % 33 == 0
        return np.flatnonzero(~forgotten | (view.waiting.since_s + LATE_S <= view.now_s))


def trials_of(scheduler: type[Fcfs]) -> list[Trial]:
    """Twenty scenarios of other seeds, loads and lengths."""
    terms = Terms(seeds=5, tolerance={"request_goodput": "1%"}, slo={"ttft_s": 0.5})
    found = []
    for number in range(20):
        workload = arriving(
            330,
            4 + number,
            iq.dist.Uniform(low=10, high=100 + 20 * number),
            iq.dist.Geometric(mean=5 + number % 7),
        )
        timing = iq.PiecewiseLinear(base=0.01, per_token=2e-5)
        served = iq.Engine(timing=timing, scheduler=scheduler(), kv=iq.KvCache.unlimited())
        found.append(Trial(f"scenario_{number}", workload, maker(served), {"seed": 100 * number}, terms))
    return found


def test_catches_3_percent_of_goodput_and_passes_the_unchanged_20_times_of_20(tmp_path: Path):
    baseline = tmp_path / "baseline.json"
    assert accepted(checked(trials_of(Fcfs), baseline, update=True)).written
    unchanged = checked(trials_of(Fcfs), baseline)
    assert unchanged.passed
    assert [one.verdict for one in unchanged.scenarios] == ["identical"] * 20
    planted = checked(trials_of(ForgetsOneOf33), baseline)
    assert [one.passed for one in planted.scenarios] == [False] * 20
    # 10 of the 330 requests of a run are forgotten: the loss is 1/33 where all others are good
    mean = -planted.frame["change"].mean()
    assert mean == pytest.approx(1 / 33, rel=0.1)


def test_a_loss_of_3_percent_in_every_iteration_is_told_as_that(folder: Path):
    (folder / "flood.toml").write_text(FLOOD)
    assert run("gate", "flood.toml", "--update").exit_code == 0
    (folder / "flood.toml").write_text(FLOOD.replace("seconds = 0.02", "seconds = 0.0206"))
    result = run("gate", "flood.toml", "--summary", "gate.md")
    assert result.exit_code == 1, result.output
    assert result.stdout.startswith("failed: 1 metric of 1 scenario is worse than tolerated\n")
    report = iq.gate("flood.toml", "inferq-baseline.json")
    row = report.frame.row(0, named=True)
    # all have arrived before the first iteration ends, so durations scale with its length
    assert row["change"] == pytest.approx(1 / 1.03 - 1, rel=1e-3)
    assert row["change_low"] <= row["change"] <= row["change_high"] < -0.02
    text = (folder / "gate.md").read_text()
    assert "**✗\u00a0worse**" in text and "`engine.timing.seconds: 0.02 → 0.0206`" in text
    assert "inferq gate flood.toml --baseline inferq-baseline.json --update" in text


# What is unchanged is identical


def test_the_baseline_is_the_same_bytes_in_other_processes_and_on_any_number_of_threads(folder: Path):
    (folder / "flood.toml").write_text(FLOOD)
    found = set()
    for number, threads in enumerate(("1", "3")):
        command = [sys.executable, "-m", "inferq.cli", "gate", ".", "--update", "--threads", threads]
        environment = {**os.environ, "PYTHONHASHSEED": str(number)}
        subprocess.run([*command, "--baseline", f"{threads}.json"], check=True, env=environment, timeout=100)
        found.add((folder / f"{threads}.json").read_bytes())
    assert run("gate", "chat.toml", "flood.toml", "--update").exit_code == 0
    found.add((folder / "inferq-baseline.json").read_bytes())
    assert len(found) == 1
    result = run("gate", ".", "--baseline", "1.json")
    assert result.exit_code == 0
    assert result.stdout.startswith("passed: 3 metrics of 2 scenarios are identical\n")


def test_the_committed_baseline_is_what_this_machine_finds(folder: Path):
    (folder / "gate-baseline.json").write_bytes((DOCS / "gate-baseline.json").read_bytes())
    report = iq.gate(DOCS / "gate.toml", "gate-baseline.json")
    assert [one.verdict for one in report.scenarios] == ["identical"]
    assert not iq.gate(DOCS / "gate.toml", "gate-baseline.json", update=True).written


def test_an_update_without_a_change_leaves_the_file_alone(folder: Path):
    assert iq.gate(folder, folder / "baseline.json", update=True).written
    before = (folder / "baseline.json").stat().st_mtime_ns
    again = iq.gate(folder, folder / "baseline.json", update=True)
    assert not again.written and str(again).startswith("unchanged: ")
    assert (folder / "baseline.json").stat().st_mtime_ns == before


def test_a_policy_that_remembers_begins_anew_in_every_run(tmp_path: Path):
    class Tiring(Fcfs):
        """Idles longer and longer before each first batch: a second run would differ."""

        def __init__(self) -> None:
            self.plans = 0

        def waits(self, view: iq.View) -> "np.ndarray":
            self.plans += 1
            return super().waits(view)[: 1 + self.plans // 100]

    baseline = tmp_path / "baseline.json"
    once = trial(engine(scheduler=Tiring()))
    accepted(checked([once], baseline, update=True))
    assert checked([once], baseline).scenarios[0].verdict == "identical"
    assert checked([trial(lambda: engine(scheduler=Tiring()))], baseline).scenarios[0].verdict == "identical"
    values = read_baseline(baseline)["chat"].values["ttft_p99"]
    alone = [iq.simulate(synthetic(), engine(scheduler=Tiring()), seed=seed) for seed in range(3)]
    assert values == tuple(one.summary()["ttft_p99"].item() for one in alone)


def test_the_values_are_those_of_simulate(folder: Path):
    iq.gate("chat.toml", "baseline.json", update=True)
    record = read_baseline(Path("baseline.json"))["chat"]
    plan = Scenario.read("chat.toml")
    assert record.seeds == (3, 4, 5, 6)
    for place, seed in enumerate(record.seeds):
        result = iq.simulate(plan.workload, plan.system, seed=seed, warmup=10)
        row = result.summary(slo={"ttft_s": 0.5}).row(0, named=True)
        assert record.values["request_goodput"][place] == row["request_goodput"]
        assert record.values["ttft_p99"][place] == row["ttft_p99"]


def test_a_fixed_trace_is_judged_exactly(tmp_path: Path):
    baseline = tmp_path / "baseline.json"
    asked = {"tolerance": {"e2e_mean": "1%"}, "seeds": 1}
    accepted(checked([trial(engine(), FIXED, **asked)], baseline, update=True))
    assert checked([trial(engine(0.0201), FIXED, **asked)], baseline).passed
    report = checked([trial(engine(0.0203), FIXED, **asked)], baseline)
    assert not report.passed
    change = report.scenarios[0].metrics[0].change
    assert change is not None and change.low == change.high == change.mean
    several = {**asked, "seeds": 4}
    accepted(checked([trial(engine(), FIXED, **several)], baseline, update=True))
    assert not checked([trial(engine(0.0203), FIXED, **several)], baseline).passed


# Improvements, changes and notes


def test_what_is_better_is_told_and_how_to_keep_it(folder: Path):
    run("gate", "chat.toml", "--update")
    (folder / "chat.toml").write_text(SCENARIO.replace("seconds = 0.02", "seconds = 0.01"))
    result = run("gate", "chat.toml")
    assert result.exit_code == 0
    assert "chat: ttft_p99 better: " in result.stdout
    assert "--update" in result.stdout.splitlines()[-1]


def test_a_long_list_that_changed_is_told_by_its_length(folder: Path):
    """Another card has another table of times: a line for each part, none of more than a terminal's."""
    engine = SCENARIO[SCENARIO.index("timing =") : SCENARIO.index("[run]")]
    other = SCENARIO.replace(engine, "model = 'llama-3.1-8b'\ngpu = 'a100-80gb'\n\n")
    (folder / "chat.toml").write_text(other)
    assert run("gate", "chat.toml", "--update").exit_code == 0
    (folder / "chat.toml").write_text(other.replace("a100-80gb", "h100-80gb"))
    shown = run("gate", "chat.toml").stdout.splitlines()
    assert "chat: engine.timing.decode.seconds: 400 values → 400 values, changed" in shown
    assert max(map(len, shown)) < 240


def test_other_scenarios_of_the_baseline_stay_and_are_told(folder: Path):
    (folder / "flood.toml").write_text(FLOOD)
    run("gate", ".", "--update")
    (folder / "chat.toml").write_text(SCENARIO.replace("seconds = 0.02", "seconds = 0.01"))
    assert run("gate", "chat.toml", "--update").exit_code == 0
    assert sorted(read_baseline(folder / "inferq-baseline.json")) == ["chat", "flood"]
    assert "in the baseline but not run: flood" in run("gate", "chat.toml").stdout


def test_a_baseline_of_another_version_is_compared_and_told(folder: Path):
    run("gate", "chat.toml", "--update")
    path = folder / "inferq-baseline.json"
    path.write_text(path.read_text().replace('"inferq": "', '"inferq": "0.0.'))
    result = run("gate", "chat.toml")
    assert result.exit_code == 0 and "chat: the baseline is from inferq 0.0." in result.stdout


def test_code_that_changed_behind_the_same_description_is_told(tmp_path: Path):
    class Same(Fcfs):
        pass

    class Changed(ForgetsOneOf33):
        pass

    Changed.__qualname__ = Same.__qualname__
    baseline = tmp_path / "baseline.json"
    accepted(checked([trial(engine(scheduler=Same()))], baseline, update=True))
    report = checked([trial(engine(scheduler=Changed()))], baseline)
    assert not report.passed
    assert "the description of the system is unchanged, so the code changed" in report.scenarios[0].notes


def test_a_run_ignores_the_table(folder: Path):
    assert run("simulate", "chat.toml").exit_code == 0
    (folder / "chat.toml").write_text(SCENARIO.replace("confidence", "confidense"))
    assert run("simulate", "chat.toml").exit_code == 0
    assert error("gate", "chat.toml", "--update").endswith(
        "gate: unknown field 'confidense'; did you mean confidence?"
    )


def test_a_failed_run_fails_the_gate_loses_no_other_verdict_and_is_no_baseline(tmp_path: Path):
    class Greedy(Fcfs):
        def plan(self, view: iq.View) -> iq.Batch:
            return iq.Batch(prefill=[(0, 10**6)])

    baseline = tmp_path / "baseline.json"
    good, bad = trial(engine()), trial(engine(scheduler=Greedy()), name="greedy")
    accepted(checked([good, trial(engine(), name="greedy")], baseline, update=True))
    before = baseline.read_bytes()
    report = checked([good, bad], baseline)
    assert not report.passed and report.scenarios[0].verdict == "identical"
    assert report.scenarios[1].error.startswith("seed 0: ")
    assert "a run failed in greedy" in report.headline
    report = accepted(checked([good, bad], baseline, update=True))
    assert not report.passed and not report.written and baseline.read_bytes() == before
    assert "is unchanged" in report.markdown()


def systems() -> dict[str, System]:
    one = engine()
    link = iq.Link(latency_s=0.001, bytes_per_s=1e10, bytes_per_token=1000)
    workflow = iq.Workflow(
        "chain", stages={"draft": iq.Stage("chat", prompt=10, output=iq.dist.Geometric(mean=9))}
    )
    return {
        "cluster": iq.Cluster(one, replicas=2, router=iq.PowerOfTwo()),
        "disaggregated": iq.Disaggregated(prefill=(one, 1), decode=(one, 1), link=link),
        "gate_and_route": cluster(),
        "network": iq.Network({"chat": one}, [workflow]),
    }


def test_every_system_can_be_gated(tmp_path: Path):
    asked = {"tolerance": {"request_goodput": "1%", "e2e_p99": "2%"}}
    jobs = iq.Workload.synthetic(
        requests=200, arrivals=iq.dist.Poisson(5)
    )  # the stages of a network have lengths
    trials = [
        trial(system, jobs if name == "network" else None, name=name, **asked)
        for name, system in systems().items()
    ]
    baseline = tmp_path / "baseline.json"
    assert accepted(checked(trials, baseline, update=True)).written
    assert checked(trials, baseline, threads=1).headline == "passed: 8 metrics of 4 scenarios are identical"


@pytest.mark.parametrize("threads", ["1", "2"])
def test_ctrl_c_stops_the_runs_at_once_and_leaves_no_file(folder: Path, threads: str):
    text = SCENARIO.replace("requests = 300", "requests = 300_000").replace("mean = 40", "mean = 2000")
    text = text.replace("rate = 5", "rate = 0.05").replace("seed = 3", "stepping = true\nseed = 3")
    (folder / "chat.toml").write_text(text)
    command = [sys.executable, "-m", "inferq.cli", "gate", "chat.toml", "--update", "--threads", threads]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        assert child.stderr.readline() == "chat: 4 runs\n"
        time.sleep(0.5)
        child.send_signal(signal.SIGINT)
        said = child.stderr.read()
    assert (child.returncode, said) == (130, "inferq: interrupted\n")
    assert [path.name for path in folder.iterdir()] == ["chat.toml"]


def test_an_exception_of_ones_own_passes_untouched(tmp_path: Path):
    class Broken(Fcfs):
        def plan(self, view: iq.View) -> iq.Batch:
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        checked([trial(engine(scheduler=Broken()))], tmp_path / "baseline.json", update=True)


# Misuse


def test_without_a_baseline_it_says_how_to_make_one(folder: Path):
    said = error("gate", "chat.toml", "--summary", "gate.md")
    assert said == (
        "inferq-baseline.json: does not exist; create it with inferq gate chat.toml --baseline "
        "inferq-baseline.json --update and commit it"
    )
    assert "nothing was compared" in (folder / "gate.md").read_text()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("rate = 5", "rate = 6", "has another scenario chat: the requests differ: "),
        ("seeds = 4", "seeds = 5", "the seeds differ: [3, 4, 5, 6] in the baseline, 3 to 7 (5) now"),
        (
            "warmup = 10",
            "warmup = 11",
            'the options of the run differ: {"warmup": 10} in the baseline, {"warmup": 11}',
        ),
        ("ttft_s = 0.5", "ttft_s = 0.6", 'the objectives differ: {"ttft_s": 0.5} in the baseline'),
        ('ttft_p99 = "5ms"', 'itl_max = "5ms"', "lacks itl_max of chat"),
    ],
)
def test_a_baseline_of_another_scenario_is_refused_before_anything_runs(folder: Path, old, new, said):
    run("gate", "chat.toml", "--update")
    (folder / "chat.toml").write_text(SCENARIO.replace(old, new))
    result = run("gate", "chat.toml")
    assert result.exit_code == 2 and "runs" not in result.stderr
    assert said in result.stderr and "--update" in result.stderr
    assert ("the requests differ" in result.stderr) == ("rate" in old)
    assert run("gate", "chat.toml", "--update").exit_code == 0
    assert run("gate", "chat.toml").exit_code == 0


def test_a_tolerance_may_change_without_a_new_baseline(folder: Path):
    run("gate", "chat.toml", "--update")
    (folder / "chat.toml").write_text(SCENARIO.replace('"5ms"', '"1%"').replace("0.9", "0.99"))
    assert run("gate", "chat.toml").exit_code == 0


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            '"1%"',
            '"-1%"',
            "gate.tolerance.request_goodput: must be a text such as '3 %' or '3 requests/s', got '-1%'",
        ),
        ('"1%"', "0.01", "gate.tolerance.request_goodput: must be a text such as"),
        ('"1%"', '"100%"', "gate.tolerance.request_goodput: must be below 100 %"),
        ('"5ms"', '"5 tokens"', "gate.tolerance.ttft_p99: must be a text such as '3 %' or '3 s' or '3 ms'"),
        ("ttft_p99 =", "ttft_p98 =", "gate.tolerance: unknown metric 'ttft_p98'; did you mean"),
        ("seeds = 4", "seeds = 0", "gate.seeds: must be an integer from 1 to 10000, got 0"),
        ("seeds = 4", "seeds = 1", "chat: seeds: must be 2 or more for a random workload"),
        ("confidence = 0.9", "confidence = 95", "gate.confidence: must be above 0.5 and below 1, got 95"),
        ("{ ttft_s = 0.5 }", "{ ttft = 0.5 }", "gate.slo: unknown objective 'ttft'; did you mean ttft_s?"),
        ("{ ttft_s = 0.5 }", "0.5", "gate.slo: must be a table of finite numbers by name or None, got 0.5"),
    ],
)
def test_a_wrong_field_is_named(folder: Path, old: str, new: str, said: str):
    text = SCENARIO.replace(old, new)
    assert text != SCENARIO
    (folder / "chat.toml").write_text(text)
    assert said in error("gate", "chat.toml", "--update")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text[:100], "is not JSON: "),
        (lambda text: "<<<<<<< ours\n" + text, "contains a merge conflict"),
        (lambda text: "[]", "format: must be 'inferq gate baseline, version 1', got None"),
        (lambda text: text.replace("version 1", "version 2"), "got 'inferq gate baseline, version 2'"),
        (lambda text: text.replace('"seeds": [3,', '"seeds": ["3",'), "scenarios.chat.seeds: must be a list"),
        (
            lambda text: text.replace('"ttft_p99": [', '"ttft_p99": [1, '),
            "values.ttft_p99: must be a list of 4",
        ),
        (lambda text: text.replace('"slo"', '"sol"'), "scenarios.chat.slo: missing"),
        (lambda text: "[" * 100_000 + "]" * 100_000, "is nested too deeply"),
        (lambda text: "[" * 300 + "]" * 300, "is nested too deeply"),
    ],
)
def test_a_broken_baseline_is_refused_and_left_alone(folder: Path, change: Callable[[str], str], said: str):
    run("gate", "chat.toml", "--update")
    path = folder / "inferq-baseline.json"
    path.write_text(change(path.read_text()))
    before = path.read_bytes()
    for update in ([], ["--update"]):
        told = error("gate", "chat.toml", *update)
        assert told.startswith("inferq-baseline.json: ") and said in told
    assert path.read_bytes() == before


def test_names_and_paths_that_are_wrong(folder: Path):
    (folder / "empty").mkdir()
    assert error("gate", "empty", "--update") == "empty: contains no .toml file"
    (folder / "empty" / "chat.toml").write_text(SCENARIO)
    assert "has the same name as" in error("gate", "chat.toml", "empty", "--update")
    assert "nowhere.toml: No such file" in error("gate", "nowhere.toml", "--update")
    assert "nowhere.toml: No such file" in error("gate", "nowhere.toml", "--summary", "told.md")
    assert "nothing was compared" in (folder / "told.md").read_text()
    (folder / "out.toml").write_text(SCENARIO.replace("seed = 3", 'seed = 3\nout = "results"'))
    assert "out.toml: run.out: not supported in a scenario" in error("gate", "out.toml", "--update")
    assert "threads: must be an integer" in error("gate", "chat.toml", "--update", "--threads", "0")
    assert "empty: is a directory" in error("gate", "chat.toml", "--update", "--baseline", "empty")
    assert "no/where.md: directory no does not exist" in error(
        "gate", "chat.toml", "--update", "--summary", "no/where.md"
    )


def test_what_cannot_be_written_is_said_before_the_runs(folder: Path):
    result = run("gate", "chat.toml", "--update", "--baseline", "no/where.json")
    assert result.exit_code == 2 and "runs" not in result.stderr
    assert "where.json." not in result.stderr, "no temporary file"
    assert "no/where.json: directory no does not exist" in result.stderr


def test_a_disk_that_fills_up_leaves_the_old_baseline_and_shows_what_was_found(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    run("gate", "chat.toml", "--update")
    before = (folder / "inferq-baseline.json").read_bytes()
    (folder / "chat.toml").write_text(SCENARIO.replace("seconds = 0.02", "seconds = 0.03"))

    fsync = os.fsync

    def full(_: int) -> None:  # until the first file is given up
        monkeypatch.setattr("os.fsync", fsync)
        raise OSError(28, "No space left on device", "inferq-baseline.json")

    monkeypatch.setattr("os.fsync", full)
    result = run("gate", "chat.toml", "--update", "--summary", "gate.md")
    assert result.exit_code == 2
    assert "No space left on device" in result.stderr and "chat: ttft_p99 worse: " in result.stdout
    assert "ttft_p99" in (folder / "gate.md").read_text()
    assert (folder / "inferq-baseline.json").read_bytes() == before
    assert not list(folder.glob(".*.part"))


# The file


VALUES = st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False))
RECORDS = st.builds(
    Record,
    inferq=st.text(),
    requests=st.text(),
    requests_sha256=st.text(),
    run=st.dictionaries(st.text(), st.one_of(st.integers(), st.text())),
    seeds=st.just((1, 2)),
    slo=st.one_of(st.none(), st.dictionaries(st.text(), st.floats(0, 10))),
    prices=st.one_of(st.none(), st.dictionaries(st.text(), st.one_of(st.text(), st.floats(0, 10)))),
    system=st.dictionaries(
        st.text(), st.one_of(st.integers(), st.lists(st.dictionaries(st.text(), st.text())))
    ),
    values=st.dictionaries(st.text(), st.tuples(VALUES, VALUES)),
)


@given(st.dictionaries(st.text(), RECORDS, max_size=2))
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_baseline_reads_back_as_it_was_written(tmp_path: Path, records):
    path = tmp_path / "baseline.json"
    write_baseline(path, records)
    assert read_baseline(path) == records
    assert text_of(read_baseline(path)) == path.read_text(encoding="utf-8")


def test_a_metric_is_one_line_and_keys_are_sorted(folder: Path):
    run("gate", "chat.toml", "--update")
    text = (folder / "inferq-baseline.json").read_text()
    (line,) = (line for line in text.splitlines() if '"ttft_p99"' in line)
    assert len(json.loads(line.partition(": ")[2].rstrip(","))) == 4
    assert text == text_of(read_baseline(folder / "inferq-baseline.json"))
    data = json.loads(text)
    assert list(data["scenarios"]["chat"]) == sorted(data["scenarios"]["chat"])


def test_names_are_no_markdown(tmp_path: Path):
    from markdown_it import MarkdownIt

    baseline = tmp_path / "baseline.json"
    name = "a|b <b>*bold*</b> `code`"
    accepted(checked([trial(engine(), name=name)], baseline, update=True))
    html = MarkdownIt("gfm-like", {"linkify": False}).render(
        checked([trial(engine(0.021), name=name)], baseline).markdown()
    )
    assert "a|b &lt;b&gt;*bold*&lt;/b&gt; `code`" in html
    assert html.count("<table>") == 1 and html.count("<tr>") == 4
    identical = MarkdownIt("gfm-like", {"linkify": False}).render(
        checked([trial(engine(), name=name)], baseline).markdown()
    )
    assert "<summary>✓ a|b &lt;b&gt;*bold*&lt;/b&gt; `code`: identical</summary>" in identical
