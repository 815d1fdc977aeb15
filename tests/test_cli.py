"""Does the command line do what it says, and say what is wrong?"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner, Result

from inferq.cli import app
from inferq.cli.options import plain_name
from inferq.scheduler import SCHEDULERS
from inferq.systems.routers import ROUTERS

ROOT = Path(__file__).parent.parent
AZURE = str(ROOT / "traces" / "azure_2023.csv")
DOLLY = str(ROOT / "traces" / "dolly.jsonl")
TABLE = str(ROOT / "traces" / "table.csv")

SCENARIO = """
[workload]
requests = 200
arrivals = { kind = "Poisson", rate = 5 }
prompt = { kind = "Uniform", low = 10, high = 500 }
output = { kind = "Geometric", mean = 40 }

[engine.timing]
kind = "Constant"
seconds = 0.02

[engine.scheduler]
kind = "VllmV1"

[engine.kv]
tokens = 100_000

[run]
seed = 3
"""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "120"})


def error(*arguments: str) -> str:
    """The one line that a wrong command leaves on standard error."""
    result = run(*arguments)
    assert result.exit_code == 2, (result.output, result.exception)
    lines = result.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("inferq: "), result.stderr
    return lines[0].removeprefix("inferq: ")


@pytest.fixture
def scenario(tmp_path: Path):
    def write(text: str) -> str:
        path = tmp_path / "scenario.toml"
        path.write_text(text)
        return str(path)

    return write


def test_replay_shows_counts_and_latencies():
    result = run("replay", AZURE)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    assert re.search(r"^ *300 +0 ", result.stdout, re.MULTILINE)
    for row in ("ttft", "itl", "tpot", "e2e", "queue"):
        assert re.search(rf"^ *{row} ", result.stdout, re.MULTILINE)


def test_replay_agrees_with_the_package(tmp_path: Path):
    import inferq as iq
    from inferq.cli.options import A100

    out = tmp_path / "out"
    shown = run(
        "replay", AZURE, "--rate", "9", "--scheduler", "vllm-v0", "--max-seqs", "32", "--out", str(out)
    )
    assert shown.exit_code == 0, shown.output
    assert str(out) in shown.stdout
    engine = iq.Engine(timing=A100, scheduler=iq.VllmV0(max_seqs=32), kv=iq.KvCache(tokens=432_000))
    here = iq.simulate(iq.read_trace(AZURE).at_rate(9), engine)
    assert pl.read_parquet(out / "requests.parquet").equals(here.requests)
    assert json.loads((out / "scenario.json").read_text())["engine"] == engine.to_json()


@pytest.mark.parametrize("name", ["Sarathi", "sarathi", "VllmV1", "vllmv1", "vllm-v1", "vllm_v0", "VllmV0"])
def test_schedulers_by_any_spelling(name: str):
    result = run("replay", AZURE, "--scheduler", name, "--head", "20")
    assert result.exit_code == 0, result.output
    plain = name.lower().replace("-", "").replace("_", "")
    assert f"{plain}(" in result.stdout.lower()


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (
            "orca:token_budget=64,chunked=true",
            "Orca(max_seqs=128, max_model_len=8192, token_budget=64, chunked",
        ),
        ("faster-transformer:free=batch", "FasterTransformer(max_seqs=128, max_model_len=8192, free='batch'"),
        ("k-fcfs:512,2,64", "KFcfs(token_budget=512, k_prefill=2, k_decode=64)"),
        ("rad:128,256,32,50", "Rad(rows=128, columns=256, reduction=32, requests_per_cycle=50)"),
        ("rad-phased:rows=128,columns=256,reduction=32,requests_per_cycle=50", "RadPhased(rows=128,"),
        ("slai:offset=2.5,order=fcfs", "offset=2.5, order='fcfs'"),
        ("wait:thresholds=2", "Wait(thresholds=2, max_seqs=None)"),
        ("slot-greedy:256", "SlotGreedy(chunk=256)"),
        ("sarathi:order=srf", "order='srf'"),
    ],
)
def test_every_scheduler_with_plain_fields(given: str, shown: str):
    result = run("replay", AZURE, "--head", "20", "--scheduler", given)
    assert result.exit_code == 0, result.output
    assert shown in result.stdout


def test_scheduler_and_timing_with_fields():
    result = run(
        *("replay", AZURE, "--head", "20"),
        *("--scheduler", "sarathi:order=spf,watermark=0", "--timing", "Constant:0.05"),
    )
    assert result.exit_code == 0, result.output
    assert "order='spf', watermark=0" in result.stdout
    assert "Constant(seconds=0.05)" in result.stdout


def test_default_timing_is_called_an_illustration():
    assert "illustration" in run("replay", AZURE, "--head", "5").stdout
    assert "illustration" in " ".join(run("replay", "--help").stdout.split())


def test_classes_get_rows_of_their_own():
    result = run("replay", str(ROOT / "traces" / "inferq.csv"), "--timing", "Constant:0.02")
    assert result.exit_code == 0, result.output
    for name in ("chat", "code", "all"):
        assert re.search(rf"^ *{name} ", result.stdout, re.MULTILINE)


def test_findings_stand_under_the_table():
    result = run("replay", AZURE, "--kv-tokens", "400")
    assert result.exit_code == 0, result.output
    assert re.search(r"^finding: .*reject", result.stdout, re.MULTILINE)


def test_a_trace_without_arrivals_gets_poisson_arrivals_and_says_so():
    result = run("replay", DOLLY, "--tokens-per-word", "1.3", "--rate", "5")
    assert result.exit_code == 0, result.output
    assert "Poisson at 5 requests per second" in result.stdout
    assert "tokens counted from texts: tokens_per_word 1.3" in result.stdout
    assert run("replay", DOLLY, "--tokens-per-word", "1.3", "--rate", "5").stdout == result.stdout
    other = run("replay", DOLLY, "--tokens-per-word", "1.3", "--rate", "5", "--seed", "1")
    assert other.stdout != result.stdout


def test_rows_that_are_left_out_are_counted():
    result = run("replay", str(ROOT / "traces" / "burstgpt.csv"))
    assert result.exit_code == 0, result.output
    assert "13 rows left out: failed" in result.stdout


def test_outputs_and_columns_can_be_given():
    longbench = str(ROOT / "traces" / "longbench_v2.jsonl")
    result = run("replay", longbench, "--tokens-per-word", "1.3", "--rate", "1", "--output-tokens", "8")
    assert result.exit_code == 0, result.output
    assert "8 tokens each" in result.stdout
    names = "arrival_s=when,prompt_tokens=input_len,output_tokens=output_len,class=kind"
    assert run("replay", TABLE, "--columns", names).exit_code == 0


def test_describe_names_format_and_lengths():
    result = run("trace", "describe", AZURE)
    assert result.exit_code == 0, result.output
    assert "azure" in result.stdout
    for word in ("rows: 300", "prompt_tokens", "output_tokens", "gap_s", "rate_per_s"):
        assert word in result.stdout


def test_simulate_reads_a_synthetic_workload(scenario, tmp_path: Path):
    out = tmp_path / "out"
    result = run("simulate", scenario(SCENARIO), "--out", str(out))
    assert result.exit_code == 0, result.output
    assert "VllmV1(" in result.stdout
    assert pl.read_parquet(out / "requests.parquet").height == 200
    assert json.loads((out / "scenario.json").read_text())["run"]["seed"] == 3


def test_simulate_reads_a_trace_from_beside_the_file(scenario, tmp_path: Path):
    (tmp_path / "load.csv").write_bytes(Path(AZURE).read_bytes())
    engine = SCENARIO[SCENARIO.index("[engine.timing]") :]
    workload = '[workload]\ntrace = "load.csv"\nhead = 50\nrate = 20\n'
    result = run("simulate", scenario(workload + engine))
    assert result.exit_code == 0, result.output
    assert "the first 50 of 300 requests" in result.stdout
    joint = '[workload]\nrequests = 80\narrivals = { kind = "Gamma", rate = 4, cv = 2 }\n'
    result = run("simulate", scenario(joint + 'lengths = { trace = "load.csv" }\n' + engine))
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("seconds = 0.02", "secnods = 0.02", ["engine.timing", "secnods", "did you mean seconds?"]),
        ('kind = "VllmV1"', 'kind = "Vllm1"', ["engine.scheduler", "Vllm1", "did you mean VllmV1?"]),
        ('kind = "VllmV1"', 'kind = "VllmV1"\nmax_seqs = 0', ["engine.scheduler", "max_seqs"]),
        ('"VllmV1"', '"Wait"\nthresholds = { default = "x" }', ["engine.scheduler.thresholds.default"]),
        ('"VllmV1"', '"NestedWait"\nsegments = [0]', ["engine.scheduler.thresholds: missing"]),
        ('"VllmV1"', '"Slai"\noffset = { kind = "Dynamic" }', ["scheduler.offset.kind", "DynamicOffset"]),
        ('"VllmV1"', '"Sarathi"\norder = "ByKey"', ["engine.scheduler.order", "cannot be read back"]),
        ("seed = 3", "sede = 3", ["run.sede", "did you mean seed?"]),
        ("seed = 3", 'seed = "x"', ["seed"]),
        ("seed = 3", "horizon_s = -1", ["horizon_s"]),
        ("[run]", "[runs]", ["runs", "did you mean run?"]),
        ("requests = 200", "requests = 0", ["workload.requests"]),
        ("requests = 200", "request = 200", ["workload.request", "did you mean requests?"]),
        ("rate = 5", "rate = 0", ["workload.arrivals", "rate"]),
        ("rate = 5", "rate = inf", ["workload.arrivals", "rate"]),
        ("mean = 40", "mean = -1", ["workload.output", "mean"]),
        ('"Uniform"', '"Unifrom"', ["workload.prompt", "Unifrom", "did you mean Uniform?"]),
        ("[workload]\n", "[workload]\nrate = 4\n", ["workload.rate"]),
        ("[workload]", "[workload", ["TOML"]),
        ("requests = 200", 'trace = "absent.csv"', ["workload"]),
    ],
)
def test_a_wrong_scenario_names_the_field(scenario, old: str, new: str, words: list[str]):
    assert old in SCENARIO
    line = error("simulate", scenario(SCENARIO.replace(old, new, 1)))
    for word in ["scenario.toml", *words] if "seed = " not in new and "horizon" not in new else words:
        assert word in line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--scheduler", "sarati"], ["--scheduler", "Sarathi"]),
        (["--scheduler", "Sarathi:budget=3"], ["--scheduler", "budget", "token_budget"]),
        (["--scheduler", "Sarathi:token_budget=3", "--token-budget", "4"], ["token_budget", "twice"]),
        (["--scheduler", "kfcfs"], ["--scheduler.token_budget: missing"]),
        (["--scheduler", "k-fcfs", "--token-budget", "64"], ["--scheduler.k_prefill: missing"]),
        (["--scheduler", "rad:128,256"], ["--scheduler.reduction: missing"]),
        (["--scheduler", "wait"], ["--scheduler.thresholds: missing"]),
        (["--scheduler", "wait:thresholds=few"], ["--scheduler.thresholds", "integer", "'few'"]),
        (["--scheduler", "slot-greedy", "--max-seqs", "4"], ["--scheduler", "max_seqs", "chunk"]),
        (["--scheduler", "nested-wait:segments=0,thresholds=1"], ["--scheduler.segments", "list"]),
        (["--scheduler", "sarathi:order=ByKey"], ["--scheduler.order", "cannot be read back"]),
        (["--scheduler", "slia"], ["--scheduler", "did you mean Slai?"]),
        (["--token-budget", "0"], ["token_budget"]),
        (["--max-seqs", "-1"], ["max_seqs"]),
        (["--timing", "Constnat:1"], ["--timing", "Constant"]),
        (["--timing", "Constant"], ["--timing", "seconds"]),
        (["--timing", "Constant:1,2"], ["--timing", "'2'"]),
        (["--timing", "Constant:x"], ["--timing", "seconds"]),
        (["--timing", "Constant:nan"], ["seconds"]),
        (["--timing", "Constant:-1"], ["seconds"]),
        (["--kv-tokens", "many"], ["--kv-tokens", "many"]),
        (["--kv-tokens", "0"], ["tokens"]),
        (["--block", "0"], ["block"]),
        (["--first-token", "later"], ["first_token"]),
        (["--rate", "0"], ["rate"]),
        (["--rate", "inf"], ["rate"]),
        (["--rate", "2", "--speed", "2"], ["speed"]),
        (["--speed", "nan"], ["speed"]),
        (["--head", "0"], ["n"]),
        (["--output-tokens", "0"], ["output_tokens"]),
        (["--seed", "-1"], ["seed"]),
        (["--horizon", "-1"], ["horizon_s"]),
        (["--warmup", "soon"], ["warmup"]),
        (["--format", "azur"], ["format", "azure"]),
        (["--columns", "arrival_s"], ["--columns", "arrival_s"]),
        (["--tokens-per-word", "1.3"], ["tokens_per_word"]),
    ],
)
def test_a_wrong_option_is_one_line(arguments: list[str], words: list[str]):
    line = error("replay", AZURE, *arguments)
    for word in words:
        assert word in line


def test_a_trace_that_lacks_a_part_says_what_to_give():
    assert "rate" in error("replay", DOLLY, "--tokens-per-word", "1.3")
    longbench = str(ROOT / "traces" / "longbench_v2.jsonl")
    assert "output" in error("replay", longbench, "--tokens-per-word", "1.3", "--rate", "1")
    assert "tokens_per_word" in error("replay", DOLLY, "--rate", "1")


@pytest.mark.parametrize("command", [["replay"], ["simulate"], ["theory"], ["trace", "describe"]])
def test_bad_files_are_one_line(tmp_path: Path, command: list[str]):
    absent = tmp_path / "absent"
    assert "absent" in error(*command, str(absent))
    assert str(tmp_path) in error(*command, str(tmp_path))
    contents = {"empty": b"", "garbage": bytes(range(256)) * 20, "cut.gz": b"\x1f\x8b\x08\x00\x00"}
    for name, content in contents.items():
        path = tmp_path / name
        path.write_bytes(content)
        assert name in error(*command, str(path))


def test_an_out_that_cannot_be_written_is_one_line(tmp_path: Path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert str(blocked) in error("replay", AZURE, "--head", "5", "--out", str(blocked / "out"))


@pytest.mark.parametrize("command", [["replay"], ["simulate"], ["theory"], ["paper"], ["trace", "describe"]])
def test_each_help_shows_an_example(command: list[str]):
    result = run(*command, "--help")
    assert result.exit_code == 0
    assert f"Example: inferq {' '.join(command)} " in " ".join(result.stdout.split())


def test_the_help_of_replay_names_every_scheduler_and_every_router():
    said = plain_name(
        "".join(run("replay", "--help").stdout.split())
    )  # names may be cut at the end of a line
    assert [kind for kind in (*SCHEDULERS, *ROUTERS) if plain_name(kind.__name__) not in said] == []


def test_no_number_of_a_fleet_with_caches_is_cut():
    fleet = ("--replicas", "4", "--router", "prefix-affinity:weight=4")
    result = run(
        "replay", "traces/mooncake.jsonl", "--scheduler", "sglang", "--prefix-cache", "radix", *fleet
    )
    assert result.exit_code == 0, result.output
    assert "hit rate" in result.stdout and "…" not in result.stdout


def test_unknown_options_exit_with_2():
    assert run("replay", AZURE, "--schedular", "x").exit_code == 2
    assert run("replya").exit_code == 2


def test_the_installed_command_keeps_streams_apart(tmp_path: Path):
    def ran(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "inferq.cli", *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)

    good = ran("replay", AZURE)
    assert (good.returncode, good.stderr) == (0, "")
    assert "ttft" in good.stdout
    bad = ran("replay", "absent.csv")
    assert (bad.returncode, bad.stdout) == (2, "")
    assert "absent.csv" in bad.stderr and "Traceback" not in bad.stderr


def test_looking_at_help_and_importing_stay_light():
    heavy = ("polars", "numpy", "rich", "scipy", "altair", "vl_convert", "markdown_it")
    modules = "inferq, inferq.cli, inferq.theory, inferq_papers"
    code = f"import sys, {modules}; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.skipif(os.name == "nt", reason="no SIGINT for one child there")
def test_ctrl_c_ends_the_command_with_130(scenario):
    text = SCENARIO.replace("requests = 200", "requests = 300_000").replace("mean = 40", "mean = 2000")
    text = text.replace("rate = 5", "rate = 0.05").replace("seed = 3", "stepping = true")
    command = [sys.executable, "-m", "inferq.cli", "simulate", scenario(text)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stderr is not None
        assert child.stdout.readline().startswith("simulate ")
        time.sleep(2)  # past all imports: Python ends by the signal itself if one of them has met it
        child.send_signal(signal.SIGINT)
        said = child.stderr.read()
    assert (child.returncode, said) == (130, "inferq: interrupted\n")


def test_replay_through_several_replicas(tmp_path: Path):
    import inferq as iq

    out = tmp_path / "out"
    shown = run("replay", AZURE, "--replicas", "3", "--router", "least-requests", "--out", str(out))
    assert shown.exit_code == 0, shown.output
    assert "replicas   3, router LeastRequests()" in shown.stdout
    assert re.search(r"^ *replica +completed ", shown.stdout, re.MULTILINE)
    described = json.loads((out / "scenario.json").read_text())["cluster"]
    fleet = iq.Cluster.from_json(described)
    assert (fleet.replicas, fleet.router) == (3, iq.LeastRequests())
    assert pl.read_parquet(out / "requests.parquet").equals(iq.simulate(iq.read_trace(AZURE), fleet).requests)


def test_replicas_that_come_go_and_die_on_the_command_line(tmp_path: Path, scenario):
    import inferq as iq

    out = tmp_path / "out"
    given = ["--autoscale", "by-queue:4,max=3,startup_s=2,every_s=1", "--failures", "at=3:0+4:1,retries=0"]
    shown = run("replay", AZURE, *given, "--rate", "30", "--out", str(out))
    assert shown.exit_code == 0, shown.output
    fleet = iq.Scenario.read(out).system
    assert isinstance(fleet, iq.Cluster)
    assert fleet.autoscaler == iq.Autoscaler(iq.ByQueue(4), max=3, startup_s=2, every_s=1)
    assert fleet.failures == iq.Failures(at=[(3, 0), (4, 1)], retries=0)
    assert re.search(r"^ *completed +failed +lost ", shown.stdout, re.MULTILINE)
    repeated = run("simulate", str(out / "scenario.json"))
    assert repeated.exit_code == 0 and " lost " in repeated.stdout
    fields = ["cluster.replicas=2", "cluster.failures.mtbf_s=9", "cluster.failures.repair_s=1"]
    settings = [text for field in fields for text in ("--set", field)]
    shown = run("simulate", scenario(SCENARIO), *settings)
    assert "failures   Failures(at=(), mtbf_s=9, repair_s=1, retries=3" in shown.stdout, shown.output


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--router", "random"], "--router: requires --replicas"),
        (["--replicas", "0"], "--replicas: must be an integer from 1 to 65536, got 0"),
        (["--replicas", "2", "--router", "robin"], "--router: unknown name 'robin'; did you mean RoundRobin"),
        (["--replicas", "2", "--router", "random:7"], "--router: unexpected value '7'"),
        (["--replicas", "2", "--router", "by-session"], "router: BySession requires the column session_id"),
        (["--autoscale", "by-queue:12"], "--autoscale: requires max"),
        (["--autoscale", "by-kew:12,max=2"], "--autoscale: unknown name 'by-kew'"),
        (["--autoscale", "by-queue:requests=0,max=2"], "--autoscale.requests: "),
        (["--autoscale", "by-queue:9,max=2,min=3"], "--autoscale.max: must be from min, 3"),
        (["--autoscale", "by-queue:9,max=2", "--replicas", "3"], "--replicas: must be from 1 to 2"),
        (["--failures", "mtbf=9"], "--failures: must have the form mtbf=600:0"),
        (["--failures", "at=5"], "--failures: must have the form at=600:0"),
        (["--failures", "at=5:1"], "--failures.at[0]: replica 1 does not exist: replicas are 0 to 0"),
    ],
)
def test_a_wrong_fleet_on_the_command_line_is_one_line(given: list[str], said: str):
    assert error("replay", AZURE, *given).startswith(said)


PLAN = ("plan", AZURE, "--model", "llama-3.1-8b", "--tp", "1", "--most-replicas", "4")


def test_a_plan_with_a_spare_and_a_schedule(tmp_path: Path):
    asked = ["--gpus", "h200", "--rate", "30", "--slo", "ttft_p99=1", "--spare", "1"]
    out = tmp_path / "fleet.toml"
    shown = run(*PLAN, *asked, "--schedule", "5", "--startup", "1", "--out", str(out))
    assert shown.exit_code == 0, shown.output
    for said in ("failure of one of 3 replicas", "replica-hours against", "from   requests/s   replicas"):
        assert said in shown.stdout
    assert run("simulate", str(out)).exit_code == 0


def test_a_plan_that_nothing_keeps_says_what_comes_nearest_and_which_bound_forbids_more():
    shown = run(*PLAN, "--gpus", "h200,l4", "--slo", "tpot_p50=0.0045")
    assert shown.exit_code == 1
    assert "no fleet was found that meets" in shown.stdout and "single requests" in shown.stdout
    assert "tpot_p50 is 4." in " ".join(shown.stdout.split())


def test_conversations_are_planned_at_a_rate(tmp_path: Path):
    """The starts are drawn; the rate is that of all turns."""
    rows = "arrival_s,prompt_tokens,output_tokens,session_id\n" + "".join(
        f"{place},{50 * turn + 50},20,{place}\n" for place in range(20) for turn in range(3)
    )
    trace = tmp_path / "talks.csv"
    trace.write_text(rows)
    asked = ["--model", "llama-3.1-8b", "--tp", "1", "--gpus", "h200", "--slo", "ttft_p99=1"]
    shown = run("plan", str(trace), *asked, "--rate", "6", "--think", "5", "--most-replicas", "2")
    assert shown.exit_code == 0, shown.output
    assert "for 6 requests per second, with 95 % confidence" in " ".join(shown.stdout.split())
    scenario = tmp_path / "talks.toml"
    scenario.write_text(
        '[workload]\ntrace = "talks.csv"\nrate = 6\nthink = 5.0\n[engine]\nmodel = "llama-3.1-8b"\n'
        'gpu = "h200"\n'
    )
    shown = run("capacity", str(scenario), "--slo", "ttft_p99=0.05", "--precision", "0.5", "--seeds", "2")
    assert shown.exit_code == 0, shown.output
    assert "ttft_p99 ≤ 50.0 ms is met up to" in shown.stdout


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--slo", "ttft_p99=1", "--gpus", ","], "gpus: must contain at least one choice"),
        (["--slo", "ttft_p99=1", "--gpus", "h200", "--schedule", "0"], "--schedule: must be positive"),
        (["--slo", "ttft_p99=1", "--gpus", "h200", "--startup", "3"], "--startup: requires --schedule"),
        (["--slo", "ttft_p99=1", "--gpus", "h200", "--prices", "PRICES"], "prices.gpu_hour.h200: "),
        (
            ["--slo", "ttft_p99=1", "--gpus", "l4", "--model", "llama-3.1-70b"],
            "gpus: the model fits on no combination",
        ),
    ],
)
def test_a_wrong_plan_on_the_command_line_is_one_line(given: list[str], said: str, tmp_path: Path):
    prices = tmp_path / "prices.toml"
    prices.write_text("[gpu_hour]\nl40s = 0.9\n")
    given = [str(prices) if one == "PRICES" else one for one in given]
    assert error(*PLAN, *given).startswith(said)


def test_replay_of_a_model_on_a_gpu_is_the_engine_of_the_package(tmp_path: Path):
    import inferq as iq

    out = tmp_path / "out"
    where = ("--model", "llama-3.1-8b", "--gpu", "a100-80gb")
    shown = run("replay", AZURE, *where, "--max-seqs", "32", "--head", "50", "--out", str(out))
    assert shown.exit_code == 0, shown.output
    engine = iq.Engine.on("llama-3.1-8b", "a100-80gb", scheduler={"max_seqs": 32})
    lines = shown.stdout.splitlines()
    assert f"kv cache   {engine.kv.tokens:,} tokens in blocks of 16, prefix cache 'blocks'" in lines
    assert f"timing     {engine.timing!r}, measured" in lines
    assert "memory     80.00 GiB × 0.92 = 73.60 GiB" in lines
    assert f"           / 131,072 bytes a token = {engine.kv.tokens:,} tokens, in blocks of 16" in lines
    assert "illustration" not in shown.stdout
    described = json.loads((out / "scenario.json").read_text())["engine"]
    assert iq.Engine.from_json(described) == engine


@pytest.mark.parametrize(
    ("given", "settings"),
    [
        (["--tensor-parallel", "2"], {"tensor_parallel": 2}),
        (["--timing", "roofline"], {"timing": "roofline"}),
        (["--kv-tokens", "5_000", "--block", "8"], {"kv": {"tokens": 5000, "block": 8}}),
        (["--timing", "Constant:0.02"], {"timing": {"kind": "Constant", "seconds": 0.02}}),
        (["--first-token", "decode"], {"first_token": "decode"}),
        (["--prefix-cache", "radix"], {"prefix_cache": "radix"}),
        (
            ["--kv-tokens", "900", "--prefix-cache", "blocks"],
            {"kv": {"tokens": 900, "prefix_cache": "blocks"}},
        ),
    ],
)
def test_what_a_replay_of_a_model_is_given_goes_before_what_is_worked_out(
    tmp_path: Path, given: list[str], settings: dict[str, object]
):
    import inferq as iq

    where = {"model": "qwen3-8b", "gpu": "h200"}
    options = [f"--{name}={value}" for name, value in where.items()]
    shown = run("replay", AZURE, *options, *given, "--head", "5", "--out", str(tmp_path))
    assert shown.exit_code == 0, shown.output
    described = json.loads((tmp_path / "scenario.json").read_text())["engine"]
    wanted = iq.Engine.from_json({**where, **settings})
    assert iq.Engine.from_json(described) == wanted


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            ["--model", "qwen3-8b", "--gpu", "h200", "--timing", "a100"],
            "--timing: a100 cannot be combined with --model and --gpu",
        ),
        (["--timing", "h100"], "--timing: 'h100' is a GPU; use --model NAME --gpu h100-80gb"),
        (["--model", "qwen3-8b"], "--model: requires --gpu"),
        (["--gpu", "h200"], "--gpu: requires --model"),
        (["--tensor-parallel", "2"], "--tensor-parallel: requires --model and --gpu"),
        (["--model", "qwen3-8b", "--gpu", "h200", "--block", "32"], "--block: requires --kv-tokens"),
        (["--prefix-cache", "block"], "prefix_cache: must be 'blocks' or 'radix' or None, got 'block'"),
        (
            ["--model", "qwen3-8b", "--gpu", "h200", "--prefix-cache", "tree"],
            "prefix_cache: must be 'blocks'",
        ),
        (["--model", "qwen-8b", "--gpu", "h200"], "model: unknown name 'qwen-8b'; did you mean qwen3-8b?"),
        (
            ["--model", "falcon-40b", "--gpu", "h200"],
            "model: unknown name 'falcon-40b'; use the model's config.json instead",
        ),
        (["--model", "qwen3-8b", "--gpu", "h30"], "gpu: unknown name 'h30'; describe your own GPU"),
        (["--model", "llama-3.1-70b", "--gpu", "l4", "--tensor-parallel", "1"], "tensor_parallel: llama-3.1"),
        (["--timing", "roofline"], "--timing.model: missing"),
        (["--timing", "TimingTable"], "--timing: no table: set file"),
        (["--timing", "TimingTable:qwen3-8b,h200"], "--timing: unexpected value 'h200'"),
    ],
)
def test_a_wrong_model_or_gpu_on_the_command_line_is_one_line(given: list[str], said: str):
    assert error("replay", AZURE, "--head", "5", *given).startswith(said)


def test_theory_says_what_the_library_says(scenario):
    import inferq as iq
    from inferq.scenario import Scenario

    path = scenario(SCENARIO)
    shown = run("theory", path)
    assert shown.exit_code == 0, shown.output
    plan = Scenario.read(path)
    said = iq.theory.stability(plan.workload, plan.system)
    assert shown.stdout.startswith(f"theory {path}\nscheduler  VllmV1(")
    assert " ".join(shown.stdout.split()).endswith(" ".join(said.explain().split()))  # it is wrapped
    for bound in said.bounds:
        assert re.search(rf"^ {re.escape(bound.name)} +{bound.kind} ", shown.stdout, re.MULTILINE)
    assert "run.sede" in error("theory", scenario(SCENARIO.replace("seed = 3", "sede = 3")))
