"""Commands of the published deployments: each runs with the stated times, or is refused with the reason."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from inferq.cli import app
from inferq.inputs import parsed_toml
from inferq.timing.baking import on_demand
from tests.test_docs import hook

ROOT = Path(__file__).parent.parent
PAGE = parsed_toml((ROOT / "docs" / "explanation" / "deployments.toml").read_text(encoding="utf-8"))
DEPLOYMENTS, MISSING = PAGE["deployment"], PAGE["missing"]
SHORT = """
[workload]
requests = 4
arrivals = { kind = "Poisson", rate = 5 }
prompt = { kind = "Uniform", low = 100, high = 300 }
output = { kind = "Uniform", low = 5, high = 9 }
"""
"""A workload of four requests, which replaces the trace of a scenario."""


@pytest.fixture(autouse=True)
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clone of the repository with four-request workloads, the files `config.json`, and no database."""
    (tmp_path / "traces").symlink_to(ROOT / "traces")
    (tmp_path / "docs").mkdir()
    for name in ("engine.toml", "disaggregated.toml"):
        text = (ROOT / "docs" / name).read_text(encoding="utf-8")
        trace = '[workload]\ntrace = "../traces/azure_2023.csv"\n'
        assert trace in text
        (tmp_path / "docs" / name).write_text(text.replace(trace, SHORT), encoding="utf-8")
    for model, keys in PAGE["config"].items():
        (tmp_path / model).mkdir()
        (tmp_path / model / "config.json").write_text(json.dumps(keys), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(on_demand, "is_installed", lambda: False)


def run(command: str, *options: str) -> Result:
    """Run a command as a shell would split it; a replay stops after four requests."""
    words = shlex.split(command.replace("\\\n", " "))
    assert words.pop(0) == "inferq"
    head = ["--head", "4"] if words[0] == "replay" else []
    return CliRunner().invoke(app, [*words, *head, *options])


def numbered() -> Any:
    """Every deployment, with its number on the page as the test's name."""
    return pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=range(1, len(DEPLOYMENTS) + 1))


def timing_models(value: Any) -> set[str]:
    """The classes of all timing models in a scenario, except those of drafters."""
    if isinstance(value, list):
        return set().union(*map(timing_models, value))
    if not isinstance(value, dict):
        return set()
    own = {value["timing"]["kind"]} if isinstance(value.get("timing"), dict) else set()
    return own.union(*(timing_models(part) for part in value.values()))


def engines(value: Any) -> list[dict[str, Any]]:
    """The parts `on` of all engines in a scenario: model, GPU, parallelism and formats."""
    if isinstance(value, list):
        return [engine for part in value for engine in engines(part)]
    if not isinstance(value, dict):
        return []
    own = [value["on"]] if isinstance(value.get("on"), dict) else []
    return own + [engine for part in value.values() for engine in engines(part)]


@numbered()
def test_the_command_has_the_mark_of_the_page(deployment: dict[str, Any]) -> None:
    missing = deployment.get("missing", [])
    if deployment["mark"] == "–":
        result = run(deployment["command"])
        assert result.exit_code == 2
        assert MISSING[missing[0]]["error"] in result.stderr
        assert "times" not in deployment
        return
    result = run(deployment["command"], "--json")
    assert result.exit_code == 0, result.stderr
    run_of = json.loads(result.stdout)
    assert run_of["summary"][0]["completed"] == 4
    assert timing_models(run_of["scenario"]) == {deployment["times"]}
    full = {"TimingTable": "T", "Roofline": "R"}[deployment["times"]]
    assert deployment["mark"] == ("F" if missing else full)


GPUS = {"A100": "a100-80gb", "H100": "h100-80gb", "RTX PRO 6000": "rtx-pro-6000"}
"""GPUs whose name on the page is not that of the catalog in capitals."""

WEIGHTS = {
    **{name: name for name in ("bf16", "fp8", "nvfp4", "mxfp4", "int4")},
    "fp8 in blocks": "fp8-block",
}
"""Number formats of weights, by their name on the page."""


@numbered()
def test_the_command_describes_the_deployment(deployment: dict[str, Any]) -> None:
    """GPU, parallelism, formats, roles, engine and speculation of the name are those of the command."""
    name, command = deployment["name"], deployment["command"]
    assert ("SGLang" in deployment["engine"]) == ("sglang" in command)
    assert ("TensorRT-LLM" in deployment["engine"]) == ("trtllm" in command)
    for word in ("LMCache", "HiCache", "offload", "host cache", "Mooncake"):
        assert word not in name or "tiers" in deployment["missing"]
    if deployment["mark"] == "–":
        return
    assert ("prefill" in name) == ("disaggregated" in command)
    speculates = any(word in name for word in ("EAGLE", "multi-token prediction"))
    assert speculates == ("speculation=" in command or "sglang-speculation" in deployment.get("missing", []))
    scenario = json.loads(run(command, "--json").stdout)["scenario"]
    gpu = re.search(r" on (?:\d+ × )?([A-Z0-9][A-Za-z0-9 ]+)", name)[1]
    for key, stated, default in (
        ("gpu", {GPUS.get(gpu, gpu.lower())}, None),
        ("tensor_parallel", {int(size) for size in re.findall(r"TP(\d+)", name)}, None),
        ("expert_parallel", {int(size) for size in re.findall(r"EP(\d+)", name)} or {1}, 1),
        ("weights", {WEIGHTS[re.search(r"fp8 in blocks|nvfp4|mxfp4|bf16|int4|fp8", name)[0]]}, None),
        ("kv_dtype", {"fp8" if "KV fp8" in name else "bf16"}, None),
    ):
        assert {engine.get(key, default) for engine in engines(scenario)} == stated, key


@pytest.mark.parametrize("feature", MISSING, ids=str)
def test_a_missing_feature_is_refused(feature: str) -> None:
    """When inferq supports the feature, this fails and the page must be renewed."""
    result = run(MISSING[feature]["command"])
    assert result.exit_code == 2
    assert MISSING[feature]["error"] in result.stderr


def test_every_missing_feature_is_used_and_defined() -> None:
    used = [feature for deployment in DEPLOYMENTS for feature in deployment.get("missing", [])]
    assert set(used) == set(MISSING)


def test_the_counts_of_the_page_are_those_of_its_table() -> None:
    generated = hook("generated")
    marks = [row.split(" | ")[3][0] for row in generated.deployments().splitlines()[2:]]
    last = generated.deployment_counts().splitlines()[-1].strip("| ").split(" | ")
    assert last == ["now", *(str(marks.count(mark)) for mark in "TRFH–")]
    assert len(marks) == 40
