"""Errors for wrong input: what is wrong, where, and how to fix it.

A hundred wrong inputs of a new user, on the command line, in a scenario and in Python. Each message has
*what* is wrong (the value), *where* (option, field, row or line) and *how* to fix it (a known name, a range,
another option). There is no traceback, and every input is rejected.
"""

import inspect
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import inferq as iq
from inferq.cli import app

AZURE = str(Path(__file__).parent.parent / "traces" / "azure_2023.csv")
CHAT = str(Path(__file__).parent.parent / "docs" / "chat.toml")
CARD = ["--model", "llama-3.1-8b", "--gpu", "h100-80gb"]


def _values_of_another_type() -> list[tuple[Callable[..., Any], dict[str, Any]]]:
    """Calls whose arguments are replaced, one by one."""
    engine = iq.Engine(timing=iq.Constant(0.02), scheduler=iq.Sarathi(), kv=iq.KvCache(tokens=4096))
    work = iq.Workload({"arrival_s": [0.0, 1.0], "prompt_tokens": [5, 6], "output_tokens": [3, 4]})
    slo = iq.Slo(ttft_p99=1.0)
    card = {"model": "llama-3.1-8b", "gpu": "h100-80gb"}
    link = iq.Link(0.01, 1e9, 1000)
    return [
        (iq.Engine, {"timing": iq.Constant(0.02), "scheduler": iq.Sarathi(), "kv": iq.KvCache(tokens=99)}),
        *((iq.Engine.on, {**card, "server": server}) for server in (None, "vllm-0.11", "sglang-0.5")),
        (iq.Cluster, {"engines": engine, "replicas": 2}),
        (iq.Disaggregated, {"prefill": engine, "decode": engine, "link": link}),
        (iq.simulate, {"workload": work, "system": engine}),
        (iq.capacity, {"workload": work, "system": engine, "slo": slo}),
        (iq.compare, {"workload": work, "systems": {"a": engine, "b": engine}}),
        (iq.plan, {"workload": work, "slo": slo, "engines": engine}),
        (iq.Scenario, {"workload": work, "system": engine}),
        (iq.KvCache, {"tokens": 99}),
        (iq.Speculation, {"tokens": 3}),
        (iq.Autoscaler, {"policy": iq.ByQueue(2), "min": 1, "max": 4, "every_s": 0.1, "startup_s": 0.2}),
        (iq.Failures, {"mtbf_s": 5.0}),
        *((kind, {}) for kind in (iq.VllmV1, iq.Sglang, iq.Sarathi, iq.PrefixAffinity, iq.PrefixHash)),
        (iq.gate, {"scenarios": CHAT, "baseline": "missing.json"}),
        (iq.validate, {"runs": "missing.csv"}),
    ]


def test_arguments_of_another_type_are_named() -> None:
    """Each argument in turn becomes a number, a text, a list and more: no error of Python itself."""
    for call, arguments in _values_of_another_type():
        for name, parameter in inspect.signature(call).parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD or name in ("out", "threads", "progress", "update"):
                continue
            for value in (100_000, "x", 3.5, object(), [1], {"a": 1}, None, True):
                try:
                    call(**{**arguments, name: value})
                except (iq.ConfigError, iq.TraceError, iq.SimulationError, FileNotFoundError):
                    continue
                except Exception as error:
                    raise AssertionError(f"{call.__qualname__}({name}={value!r})") from error


SHELL: list[tuple[list[str], str, str, str]] = [
    # arguments; what, where, how
    (["replay", AZURE, "--think", "5s"], "5s", "--think", "did you mean|known names"),
    (["replay", AZURE, "--think", "20"], "session_id|turns", "with_think|think", "session|turns"),
    (["replay", AZURE, "--think", "-1"], "-1", "--think", "from 0 to 1e9"),
    (["replay", AZURE, "--time-unit", "ms"], "fixed unit", "time_unit", "tables and logs"),
    (["replay", AZURE, "--rate", "inf"], "finite", "rate", "request-rate inf"),
    (["replay", AZURE, "--rate", "-3"], "-3", "rate", "positive"),
    (["replay", AZURE, "--speed", "0"], "0", "speed", "positive"),
    (["replay", AZURE, "--head", "0"], "0", "head", "1"),
    (["replay", AZURE, "--warmup", "5m"], "5m", "warmup", "'30s'"),
    (["replay", AZURE, "--cooldown", "-1"], "-1", "cooldown", "'30s'|No such option"),
    (["replay", AZURE, "--horizon", "-2"], "-2", "horizon", "0 or above|not negative|negative"),
    (["replay", AZURE, "--seed", "-1"], "-1", "seed", "0"),
    (["replay", AZURE, "--replicas", "0"], "0", "replicas", "from 1"),
    (["replay", AZURE, "--router", "by-session"], "requires", "--router", "--replicas"),
    (
        ["replay", AZURE, "--replicas", "2", "--router", "least"],
        "least",
        "--router",
        "did you mean|known are",
    ),
    (
        ["replay", AZURE, "--replicas", "2", "--router", "prefix-affinity:weigth=2"],
        "weigth",
        "--router",
        "weight",
    ),
    (["replay", AZURE, "--replicas", "2", "--router", "prefix-hash:0"], "0", "prefix_tokens", "1"),
    (["replay", AZURE, "--scheduler", "vlm-v1"], "vlm-v1", "--scheduler", "VllmV1"),
    (
        ["replay", AZURE, "--scheduler", "vllm-v1:max_num_seqs=4"],
        "max_num_seqs",
        "--scheduler",
        "it is called max_seqs here",
    ),
    (["replay", AZURE, "--scheduler", "vllm-v1:0"], "0", "token_budget", "1"),
    (["replay", AZURE, "--scheduler", "wait"], "thresholds", "--scheduler", "missing"),
    (["replay", AZURE, "--token-budget", "0"], "0", "token_budget", "1"),
    (["replay", AZURE, "--max-seqs", "-4"], "-4", "max_seqs", "non-negative"),
    (["replay", AZURE, "--timing", "h100"], "h100", "--timing", "--gpu h100-80gb"),
    (["replay", AZURE, "--timing", "Constant:0"], "length 0", "timing", "must not"),
    (
        ["replay", AZURE, "--timing", "TimingTable:nothing.parquet"],
        "nothing.parquet",
        "--timing.file",
        "no such file",
    ),
    (["replay", AZURE, *CARD, "--timing", "a100"], "a100", "--timing", "cannot be combined with --model"),
    (
        ["replay", AZURE, "--model", "llama-3.1-8b", "--gpu", "rtx4090"],
        "rtx4090",
        "gpu",
        "known are|did you mean",
    ),
    (["replay", AZURE, "--model", "llama3-8b", "--gpu", "h100-80gb"], "llama3-8b", "model", "llama-3"),
    (
        ["replay", AZURE, "--model", "nowhere/config.json", "--gpu", "l4"],
        "nowhere",
        "model",
        "no such file",
    ),
    (
        ["replay", AZURE, "--model", "llama-3.1-8b", "--gpu", "mine.toml"],
        "mine.toml",
        "mine.toml",
        "No such file",
    ),
    (
        ["replay", AZURE, "--model", "llama-3.1-70b", "--gpu", "l4", "--tensor-parallel", "1"],
        "llama-3.1-70b",
        "l4",
        "tensor_parallel",
    ),
    (["replay", AZURE, *CARD, "--weights", "fp3"], "fp3", "weights", "fp8"),
    (["replay", AZURE, *CARD, "--kv-dtype", "fp15"], "fp15", "kv_dtype", "bf16"),
    (["replay", AZURE, *CARD, "--gpu-memory-utilization", "92"], "92", "utilization", "1"),
    (["replay", AZURE, *CARD, "--backend", "tgi"], "tgi", "backend", "vllm"),
    (["replay", AZURE, "--weights", "fp8"], "requires", "--weights", "--model"),
    (["replay", AZURE, *CARD, "--server", "vllm-1"], "vllm-1", "server", "vllm-0"),
    (["replay", AZURE, *CARD, "--prefix-cache", "on"], "on", "prefix_cache", "'blocks'"),
    (["replay", AZURE, "--kv-tokens", "lots"], "lots", "--kv-tokens", "unlimited"),
    (["replay", AZURE, "--block", "0"], "0", "block", "1"),
    (["replay", AZURE, "--first-token", "later"], "later", "first_token", "prefill"),
    (["replay", AZURE, "--format", "azzure"], "azzure", "format", "azure"),
    (["replay", AZURE, "--columns", "prompt_tokens"], "prompt_tokens", "--columns", "name_in_the_file"),
    (["replay", AZURE, "--tokens-per-word", "1.3"], "token counts", "tokens_per_word", "leave it out"),
    (["replay", "no-such.csv"], "no such file", "no-such.csv", "no such file"),
    (["replay", AZURE, "--tp", "2"], "requires", "--tensor-parallel", "--model"),
    (
        ["replay", AZURE, "--max-num-batched-tokens", "2048"],
        "--max-num-batched-tokens",
        "option",
        "--token-budget",
    ),
    (
        ["replay", AZURE, "--gpu-memory-utilization", "0.9"],
        "requires",
        "--gpu-memory-utilization",
        "--model",
    ),
    (
        ["replay", AZURE, "--enable-prefix-caching"],
        "--enable-prefix-caching",
        "option",
        "--prefix-cache blocks",
    ),
    (["replay", AZURE, "--kv-cache-dtype", "fp8"], "--kv-cache-dtype", "option", "--kv-dtype"),
    (["replay", AZURE, "--num-prompts", "10"], "--num-prompts", "option", "--head"),
    (["replay", AZURE, "--qps", "3"], "--qps", "option", "--rate"),
    (["replay", AZURE, "--slo", "ttft_p99=1"], "--slo", "option", "capacity"),
    (["capacity", CHAT, "--slo", "p99_ttft=0.5"], "p99_ttft", "metric|slo", "ttft_p99"),
    (["capacity", CHAT, "--slo", "ttft_p99=fast"], "fast", "--slo", "ttft_p99=0.5"),
    (["capacity", CHAT, "--slo", "ttft=1"], "ttft", "slo|metric", "ttft_p99|did you mean|known"),
    (["capacity", CHAT, "--slo", "ttft_p99=-1"], "-1", "ttft_p99", "0 or above|negative"),
    (["capacity", CHAT, "--slo", "ttft_p99=1", "--low", "9", "--high", "3"], "9", "low", "below high"),
    (["capacity", CHAT, "--slo", "ttft_p99=1", "--confidence", "95"], "95", "confidence", "below 1"),
    (["simulate", CHAT, "--set", "engine.schedular.token_budget=1"], "schedular", "engine", "scheduler"),
    (
        ["simulate", CHAT, "--set", "engine.scheduler.token_bugdet=1"],
        "token_bugdet",
        "engine.scheduler",
        "token_budget",
    ),
    (["simulate", CHAT, "--set", "seed=1"], "seed=1", "--set", "engine.scheduler.token_budget=4096"),
    (["simulate", CHAT, "--set", "run.seeds=1"], "seeds", "run", "seed"),
    (["simulate", "no-such.toml"], "No such file", "no-such.toml", "No such file"),
    (["theory", CHAT, "--hit-rate", "80"], "80", "hit_rate", "1"),
    (["compare", CHAT, CHAT], "twice", "chat", "twice"),
    (["compare", CHAT, "--metric", "ttft_99"], "ttft_99", "metric", "ttft_p99"),
    (
        ["compare", CHAT, "--out", "table.txt"],
        "table.txt",
        "--out",
        r"must end in \.csv, \.parquet or \.html",
    ),
    (
        ["sweep", CHAT, "--set", "engine.scheduler.token_budget=256", "--slo", "ttft_p99=1"],
        "ttft_p99",
        "slo",
        "ttft_s",
    ),
    (["list", "model-names"], "model-names", "WHAT", "models"),
    (["init", "--gpu", "h1000"], "h1000", "gpu", "h100"),
    (["init", "--out", "scenario.yaml"], "scenario.yaml", "--out", ".toml"),
    (["report", CHAT, "--out", "page.pdf"], "page.pdf", "out", ".html"),
    (["rplay", AZURE], "rplay", "command", "replay"),
]


def shell_of(arguments: list[str]) -> str:
    done = CliRunner().invoke(app, arguments, env={"COLUMNS": "80"})
    assert done.exit_code in (1, 2) and done.exception is not None, done.output
    assert isinstance(done.exception, SystemExit), done.exception
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", done.output).split())


WORKLOAD: dict[str, Any] = {"arrival_s": [0.0, 1.0], "prompt_tokens": [10, 20], "output_tokens": [5, 5]}
ENGINE = iq.Engine(timing=iq.Constant(0.01), scheduler=iq.Sarathi(), kv=iq.KvCache(tokens=1000))


def run(**changes: Any) -> Callable[[], Any]:
    return lambda: iq.simulate({**WORKLOAD, **changes}, ENGINE)


PYTHON: list[tuple[Callable[[], Any], str, str, str]] = [
    (lambda: iq.simulate("log.csv", ENGINE), "log.csv", "workload", "read_trace"),
    (lambda: iq.simulate(123, ENGINE), "int", "workload", "polars"),
    (lambda: iq.simulate([1, 2], ENGINE), "list", "workload", "list of dicts"),
    (lambda: iq.simulate(WORKLOAD, "vllm"), "vllm", "system", "Engine"),
    (lambda: iq.simulate(WORKLOAD, ENGINE, warmup="1m"), "1m", "warmup", "'30s'"),
    (run(arrival_s=[1.0, 0.5]), "0.5", "row 1", "sort"),
    (run(arrival_s=["a", "b"]), "'a'", "row 0", "2026-11-20T09"),
    (run(prompt_tokens=[10, 0]), "0", "row 1", "at least 1"),
    (run(prompt_tokens=[10, 2.5]), "2.5", "row 1", "integer"),
    (run(tokens=[1, 2]), "tokens", "column", "prompt_tokens|known are"),
    (run(input_len=[1, 2]), "input_len", "column", "it is called prompt_tokens here"),
    (lambda: iq.VLLM, "VLLM", "inferq", "VllmV1"),
    (lambda: iq.Slo(p99_ttft=1.0), "p99_ttft", "metric|p99", "ttft_p99"),
    (lambda: iq.KvCache(tokens=-1), "-1", "tokens", "1"),
    (lambda: iq.Engine.on("llama-3.1-8b", "h100"), "h100", "gpu", "h100-80gb"),
    (
        lambda: iq.Engine.from_json({"model": "llama-3.1-8b", "gpu": "l4", "tp": 2}),
        "tp",
        "engine",
        "tensor_parallel",
    ),
    (lambda: iq.Workload({"prompt_tokens": [5]}).at_rate(2), "arrival_s", "at_rate", "with_arrivals"),
    (
        lambda: iq.Workload(WORKLOAD).with_session_arrivals(iq.dist.Poisson(1), 2),
        "session_id",
        "with_session_arrivals",
        "requires session_id",
    ),
    (lambda: iq.Workload(WORKLOAD).with_session_arrivals(5, 2), "5", "arrivals", "Poisson"),
    (lambda: iq.read_trace(AZURE, "azzure"), "azzure", "format", "azure"),
    (lambda: iq.Result.read("nowhere"), "nowhere", "directory", "out="),
    (lambda: iq.compare(WORKLOAD, {"a": ENGINE}, metrics=["ttft"]), "ttft", "metric", "ttft_"),
    (lambda: iq.simulate(WORKLOAD, ENGINE).jobs, "jobs", "jobs", "Network"),
    (lambda: iq.Scenario.read({"workload": {"data": WORKLOAD}}), "missing", "engine", "missing"),
    (
        lambda: iq.Scenario.read(
            json.dumps({"workload": {"trace": AZURE, "arrivals": {}}, "engine": ENGINE.to_json()})
        ),
        "arrivals",
        "workload|engine",
        "rate|missing",
    ),
]


def python_of(make: Callable[[], Any]) -> str:
    with pytest.raises((ValueError, AttributeError)) as error:
        make()
    return str(error.value)


def covered(message: str, parts: tuple[str, str, str]) -> tuple[bool, bool, bool]:
    what, where, how = (re.search(part, message, re.IGNORECASE) is not None for part in parts)
    return what, where, how


def test_errors_of_a_hundred_wrong_inputs_have_what_where_and_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(SHELL) + len(PYTHON) == 100
    errors = [(" ".join(arguments), shell_of(arguments), parts) for arguments, *parts in SHELL]
    errors += [(f"Python {place}", python_of(make), parts) for place, (make, *parts) in enumerate(PYTHON)]
    lacking = [
        f"{name}: {message} (what, where, how: {parts_found})"
        for name, message, parts in errors
        if not all(parts_found := covered(message, (parts[0], parts[1], parts[2])))
    ]
    assert not lacking, f"{100 - len(lacking)} of 100 say all three:\n" + "\n".join(lacking)
    assert not any("Traceback" in message for _, message, _ in errors)
    assert all(len(message) < 1200 for _, message, _ in errors)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: iq.VllmV1(max_num_seqs=3), "max_num_seqs is called max_seqs here: VllmV1(max_seqs=3)"),
        (
            lambda: iq.Engine.on("llama-3.1-8b", "h100-80gb", tp=2),
            "tp is called tensor_parallel here: Engine.on(tensor_parallel=2)",
        ),
        (
            lambda: iq.Engine.on("llama-3.1-8b", "h100-80gb", enable_prefix_caching=True),
            "enable_prefix_caching is called prefix_cache here: Engine.on(prefix_cache='blocks')",
        ),
        (
            lambda: iq.KvCache(num_gpu_blocks=27_000),
            "num_gpu_blocks is called tokens here: KvCache(tokens=27000 * block)",
        ),
        (lambda: iq.Cluster(ENGINE, dp=4), "dp is called replicas here: Cluster(replicas=4)"),
        (lambda: iq.Sglang(mem_fraction_static=0.8), "unexpected keyword argument 'mem_fraction_static'"),
        (lambda: iq.VllmV1(max_sequences=3), "unexpected keyword argument 'max_sequences'"),
    ],
)
def test_a_parameter_name_of_another_tool_raises_an_error_with_ours(call: Callable[[], Any], message: str):
    with pytest.raises(TypeError, match=re.escape(message)):
        call()


def test_help_shows_the_parameters_of_descriptions():
    assert list(inspect.signature(iq.Cluster).parameters) == [
        *("engines", "replicas", "router", "autoscaler", "failures")
    ]
    assert "tensor_parallel" in inspect.signature(iq.Engine.on).parameters
