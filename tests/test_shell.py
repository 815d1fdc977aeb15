"""What commands share: --json, --set, --version, lists, scenarios to begin with, runs as input."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import inferq as iq
from inferq.cli import COMMANDS, app
from inferq.cli.list import WHAT
from inferq.timing import known_gpus, known_models

ROOT = Path(__file__).parent.parent
AZURE = str(ROOT / "traces" / "azure_2023.csv")
CARD = ["--model", "llama-3.1-8b", "--gpu", "h100-80gb"]
RUNS = ["tests/measured/runs.csv", "--requests", "tests/measured/requests.csv"]


def run(*arguments: str, status: int = 0) -> Result:
    """A command that ends with that status."""
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == status, (arguments, done.output, done.exception)
    return done


def said(*arguments: str, status: int = 0) -> Any:
    """What a command says as JSON."""
    return json.loads(run(*arguments, "--json", status=status).stdout)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two scenarios that differ in the server, and a run of each."""
    folder = tmp_path_factory.mktemp("shell")
    shutil.copy(AZURE, folder / "azure.csv")
    for name, server in (("one", "vllm-0.33"), ("two", "sglang-0.5")):
        trace, out = str(folder / "azure.csv"), str(folder / f"{name}.toml")
        run("init", trace, "--rate", "20", "--server", server, "--out", out)
        run("simulate", out, "--set", "workload.head=50", "--out", str(folder / name))
    return folder


JSON: dict[str, tuple[list[str], dict[str, type | tuple[type, ...]]]] = {
    # arguments, and what must be there with which type
    "replay": ([AZURE, *CARD, "--head", "9"], {"summary": list, "scenario": dict, "findings": list}),
    "simulate": (["one.toml", "--set", "workload.head=9"], {"summary": list, "findings": list}),
    "theory": (["one.toml"], {"verdict": str, "capacity_per_s": float, "bounds": list}),
    "compare": (["one.toml", "two.toml", "--set", "workload.head=9"], {"comparison": list}),
    "capacity": (
        ["one.toml", "--slo", "ttft_p99=9", "--set", "workload.head=9", "--high", "40", "--seeds", "1"],
        {"rate": float, "slo": dict, "probes": list, "findings": list},
    ),
    "plan": (
        [AZURE, "--head", "40", "--model", "llama-3.1-8b", "--slo", "ttft_p99=9", "--gpus", "h200"],
        {"candidates": list, "frontier": list, "findings": list},
    ),
    "sweep": (["one.toml", "--set", "workload.head=9,10"], {"points": list}),
    "gate": (
        ["one.toml", "--baseline", "gate.json", "--update", "--set", "workload.head=9"],
        {"passed": bool, "metrics": list, "failed": dict},
    ),
    "validate": ([*RUNS, "--only", "engine=sglang"], {"errors": list, "runs": list, "assumed": list}),
    "report": (["one.toml", "--set", "workload.head=9"], {"runs": dict, "page": str}),
    "trace": (["describe", AZURE], {"metadata": dict, "describe": list, "columns": list}),
    "timing": (["show", "llama-3.1-8b", "h200"], {"provenance": dict}),
    "list": (["gpus"], {"gpus": dict, "tables": list}),
    "init": (["azure.csv", "--out", "three.toml"], {"out": str}),
}
"""`calibrate` needs PyTorch, `paper` takes long, `serve` goes on until it is stopped."""


@pytest.mark.parametrize("command", [one for one in COMMANDS if one not in ("calibrate", "paper", "serve")])
def test_every_command_says_one_json_object(place: Path, monkeypatch: pytest.MonkeyPatch, command: str):
    """And in it what it found, with types and not as texts."""
    arguments, wanted = JSON[command]
    monkeypatch.chdir(place)
    shutil.copytree(ROOT / "tests" / "measured", place / "tests" / "measured", dirs_exist_ok=True)
    told = said(command, *arguments)
    for name, kind in wanted.items():
        assert isinstance(told[name], kind) and (told[name] or name in ("failed", "findings")), name


def test_every_list_names_what_there_is():
    """Models and cards with their numbers, and each word that can be asked for."""
    models, gpus = said("list", "models")["models"], said("list", "gpus")["gpus"]
    assert {one["model"] for one in models} == {*known_models()["model"]}
    assert {*gpus} == {*known_gpus()["gpu"]}
    assert all(isinstance(one["parameters"], (int, float)) for one in models)
    for what in WHAT:
        assert said("list", what)["tables"][0]["rows"], what


def test_the_version_is_that_of_the_package():
    assert run("--version").stdout.split()[:2] == ["inferq", iq.__version__]


def test_what_is_set_is_what_a_file_with_it_says(place: Path, monkeypatch: pytest.MonkeyPatch):
    """On every command that takes a scenario; a field that is not there is refused before anything runs."""
    monkeypatch.chdir(place)
    text = (place / "one.toml").read_text()
    (place / "edited.toml").write_text(text.replace("rate = 20", "rate = 20\nhead = 30"))
    both = ["--set", "workload.head=30"]
    for command, rest, value in (
        ("simulate", [], "summary"),
        ("theory", [], "bounds"),
        ("capacity", ["--slo", "ttft_p99=9", "--seeds", "1", "--high", "40"], "probes"),
        ("report", ["--out", "page.html"], "runs"),
        ("gate", ["--baseline", "set.json", "--update"], "metrics"),
    ):
        edited = said(command, "edited.toml", *rest)[value]
        given = said(command, "one.toml", *both, *rest)[value]
        assert json.dumps(given).replace('"one"', '"edited"') == json.dumps(edited), command
        wrong = run(command, "one.toml", *rest, "--set", "workload.haed=30", status=2)
        assert "workload.haed: unknown; did you mean head?" in wrong.stderr
    wrong = run("report", "one.toml", "one", *both, status=2)
    assert "one is a finished run" in wrong.stderr and "simulate one --set" in wrong.stderr


@pytest.mark.parametrize(
    ("given", "overhead"),
    [
        ("none", iq.Overhead()),
        ("base_s=0.002", iq.Overhead(base_s=0.002)),
        (
            "base_s=0.001,per_sequence_s=1e-5,overlapped=true",
            iq.Overhead(base_s=0.001, per_sequence_s=1e-5, overlapped=True),
        ),
    ],
)
def test_the_time_of_the_host_can_be_given(given: str, overhead: iq.Overhead):
    """`--overhead` of a replay is that of `Engine.on`, and of an engine without a card."""
    for card in (CARD, []):
        described = said("replay", AZURE, *card, "--head", "3", "--overhead", given)["scenario"]["engine"]
        assert (iq.Engine.from_json(described).overhead or iq.Overhead()) == overhead


def test_a_record_says_how_many_gpus_there_were():
    """Of each card, whatever the system is made of."""
    small, large = (
        iq.Engine.on("llama-3.1-70b", "h100-80gb", tensor_parallel=4),
        iq.Engine.on("llama-3.1-70b", "h200", tensor_parallel=2),
    )
    link = iq.Link(latency_s=1e-4, bytes_per_s=50e9, bytes_per_token=131_072)
    trace = iq.read_trace(AZURE).head(5)
    for system, gpus in (
        (small, {"h100-80gb": 4}),
        (iq.Cluster(small, replicas=3), {"h100-80gb": 12}),
        (iq.Cluster([small, large, small]), {"h100-80gb": 8, "h200": 2}),
        (iq.Disaggregated(prefill=(large, 3), decode=(small, 2), link=link), {"h200": 6, "h100-80gb": 8}),
    ):
        result = iq.simulate(trace, system)
        assert json.loads(result.scenario)["gpus"] == gpus
        again = iq.Scenario.read(result.scenario)
        assert again.to_json() == json.loads(result.scenario)
    bare = iq.Engine(timing=iq.Constant(0.01), scheduler=iq.VllmV1(), kv=iq.KvCache.unlimited())
    record = json.loads(iq.simulate(trace, bare).scenario)
    assert "gpus" not in record
    with pytest.raises(iq.ConfigError, match=r"^gpus: unknown"):  # only a record says it
        iq.Scenario.read({name: one for name, one in record.items() if name != "inferq"} | {"gpus": {}})


def test_what_is_written_is_read(place: Path, monkeypatch: pytest.MonkeyPatch):
    """A folder of a run is a scenario, a side of a comparison, a page and a `Result`."""
    monkeypatch.chdir(place)
    for written in ("one", "one/scenario.json"):
        again = said("simulate", written)
        assert again["summary"][0]["completed"] == 50
    first, second = (iq.Result.read(name).summary() for name in ("one", "two"))
    assert said("simulate", "one")["summary"][0]["ttft_p99"] == first["ttft_p99"].item()
    rows = said("compare", "one", "two", "--metric", "ttft_mean")["comparison"]
    means = {row["system"]: row["mean"] for row in rows}
    for name, stored in (("one", first), ("two", second)):
        assert means[name] == pytest.approx(stored["ttft_mean"].item(), rel=1e-12)
    for shown in (["one"], ["one", "two"]):
        told = said("report", *shown, "--out", "page.html")
        assert [*told["runs"]] == shown
        page = (place / "page.html").read_text(encoding="utf-8")
        assert "table of llama-3.1-8b on h100-80gb" in page and "Apache-2.0" in page
        assert "vllm-0.33" in page and ("sglang-0.5" in page) == (len(shown) == 2)


def test_limits_that_look_like_milliseconds_are_asked_about(place: Path, monkeypatch: pytest.MonkeyPatch):
    """By every command that takes them."""
    monkeypatch.chdir(place)
    text = (place / "one.toml").read_text().replace("rate = 20", "rate = 20\nhead = 9")
    gated = "[gate]\nseeds = 1\nslo = { ttft_s = 500 }\ntolerance = { ttft_p99 = '10%' }\n"
    (place / "gated.toml").write_text(f"{text}\n{gated}")
    runs = ["--seeds", "1", "--set", "workload.head=9"]
    for arguments in (
        ["capacity", "one.toml", *runs, "--slo", "ttft_p99=500", "--high", "40"],
        ["report", "one", "--slo", "ttft_p99=500"],
        ["compare", "one.toml", "two.toml", *runs, "--slo", "ttft_s=500"],
        ["plan", AZURE, "--head", "40", "--model", "llama-3.1-8b", "--slo", "ttft_p99=500", "--gpus", "h200"],
        ["gate", "gated.toml", "--baseline", "gated.json", "--update"],
    ):
        assert "500 milliseconds are 0.5" in json.dumps(said(*arguments)), arguments[0]


def test_objectives_of_a_sweep_have_units(place: Path, monkeypatch: pytest.MonkeyPatch):
    """As those of `capacity`; in milliseconds without a unit they are asked about."""
    monkeypatch.chdir(place)
    points = [
        said("sweep", "one.toml", "--set", "workload.head=9", "--slo", given)["points"]
        for given in ("ttft_s=0.05", "ttft_s=50ms", "ttft_s=500")
    ]
    assert points[0] == points[1]
    assert "500 milliseconds are 0.5" in points[2][0]["findings"]
    assert "milliseconds" not in (points[0][0]["findings"] or "")
