"""Scenarios in Python, JSON and TOML, and records that reproduce runs bit for bit."""

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import inferq as iq
from inferq.workload.reading import TRANSFORMS

from .arriving import arriving
from .kept_results import SCENARIOS, scenario

TOGETHER = 25
FEW: dict[str, Any] = {
    "arrival_s": [0.0, 0.5, 2.0, 2.0],
    "prompt_tokens": [40, 8, 90, 5],
    "output_tokens": [7, 3, 1, 9],
}
ENGINE = iq.Engine(timing=iq.Constant(0.02), scheduler=iq.Sarathi(), kv=iq.KvCache(tokens=10**5))
CHAT = arriving(150, 9, iq.dist.Geometric(90), iq.dist.Geometric(20))
TRACE = Path(__file__).parent.parent / "traces" / "azure_2023.csv"


def many(rows: int = 150) -> iq.Workload:
    """Return more rows than a record contains."""
    whole = iq.Workload({name: values * 40 for name, values in FEW.items() if name != "arrival_s"})
    return whole.with_arrivals([0.25 * row for row in range(160)]).head(rows)


def same(left: iq.Result, right: iq.Result) -> bool:
    frames = (left.requests.lazy().collect(), right.requests.lazy().collect())
    return frames[0].equals(frames[1]) and left.findings == right.findings and left.itl.equals(right.itl)


def read_back(workload: Any, **options: Any) -> iq.Scenario:
    """Return the scenario read from a run's record, after comparing its results with the run's."""
    before = iq.Scenario(workload, ENGINE, options).run()
    read = iq.Scenario.read(before.scenario)
    assert same(read.run(), before)
    assert read.to_json() == json.loads(before.scenario) == iq.Scenario(workload, ENGINE, options).to_json()
    return read


# Records


@pytest.mark.parametrize("first", range(0, len(SCENARIOS), TOGETHER))
def test_a_record_reproduces_its_run(first: int, tmp_path: Path) -> None:
    for number in range(first, first + TOGETHER):
        result = scenario(number).run(out=None)
        place = result.write(tmp_path / str(number))
        if '"ByKey"' in result.scenario or '"kind": "Python"' in result.scenario:
            with pytest.raises(iq.ConfigError, match=r"written in Python|key function"):
                iq.Scenario.read(place)
            continue
        read = iq.Scenario.read(place)
        assert same(read.run(), result), number
        assert json.dumps(read.to_json(), indent=2) == result.scenario, number


def test_a_stored_run_is_reproduced_from_its_folder(tmp_path: Path) -> None:
    many().frame.write_parquet(tmp_path / "requests.parquet")
    for name, workload in {
        "drawn": CHAT,
        "fixed": many(),
        "scanned": iq.Workload.scan(tmp_path / "requests.parquet"),
        "merged": CHAT.concat(many()),
        "waiting": iq.Workload.sessions(
            sessions=9,
            arrivals=iq.dist.Poisson(2),
            turns=3,
            prompt=20,
            output=5,
            think=iq.dist.Exponential(2),
        ),
    }.items():
        out = tmp_path / name
        stored = iq.simulate(workload, ENGINE, seed=5, out=out)
        read = iq.Scenario.read(out)
        assert same(read.run(), stored), name
        assert read.run(out=tmp_path / f"{name} again").scenario == stored.scenario


# Workloads


@pytest.mark.parametrize(
    "change",
    [
        lambda work: work.at_rate(3.0),
        lambda work: work.speed(2),
        lambda work: work.window(0.25),
        lambda work: work.window(0.25, 9.0),
        lambda work: work.head(3),
        lambda work: work.sample(20, seed=4),
        lambda work: work.with_arrivals(iq.dist.Gamma(rate=4, cv=2)),
        lambda work: work.with_prompts(iq.dist.Uniform(4, 90)),
        lambda work: work.with_prompts(iq.dist.Empirical(pl.DataFrame(FEW))),
        lambda work: work.with_outputs(12),
        lambda work: work.with_classes({"chat": 0.25, "kind": 0.75}),
        lambda work: work.with_classes("chat"),
        lambda work: work.with_patience(iq.dist.Exponential(mean_s=3)),
        lambda work: work.with_patience(2.5),
        lambda work: work.with_prefix("rules", 64),
        lambda work: work.split(2)[1],
        lambda work: work.split(0.5)[0],
        lambda work: work.concat(iq.Workload(FEW), CHAT.head(30)),
        lambda work: work.speed(3).concat(CHAT).with_classes({"a": 0.5, "b": 0.5}).head(100).at_rate(5),
        lambda work: work.open_loop(),
    ],
)
@pytest.mark.parametrize(
    "base", [iq.Workload(FEW), CHAT, iq.read_trace(TRACE)], ids=["frame", "drawn", "trace"]
)
def test_every_transform_is_read_back(base: iq.Workload, change: Callable[[Any], iq.Workload]) -> None:
    read_back(change(base), seed=3, warmup="0.125s", cooldown=2)


def test_every_transform_has_a_reader() -> None:
    methods = {
        name for name, value in vars(iq.Workload).items() if callable(value) and not name.startswith("_")
    }
    constructors = {"synthetic", "scan", "sessions", "mix"}
    queries = {"draw", "ready", "parts", "describe", "reuse", "to_json", "hashed_rows", "sha256"}
    assert methods - constructors - queries == set(TRANSFORMS)


def test_values_are_read_back(tmp_path: Path) -> None:
    few = CHAT.head(4).with_arrivals([0.0, 0.1, 5.5, 7.25]).with_patience([None, 3.0, 0.25, None])
    read_back(few.with_prompts([5, 6, 7, 8]).with_classes(["a", "b", "a", "a"]))
    many_values = CHAT.with_arrivals([0.125 * row for row in range(150)])
    result = iq.simulate(many_values, ENGINE)
    with pytest.raises(iq.ConfigError, match=r"workload\.transforms\[0\]\.arrivals\.sha256: no file .*rows-"):
        iq.Scenario.read(result.scenario)
    assert same(iq.Scenario.read(result.write(tmp_path)).run(), result)


def test_more_than_100_rows_are_in_a_file_or_passed(tmp_path: Path) -> None:
    result = iq.simulate(many(), ENGINE, seed=2)
    assert "data" not in json.loads(result.scenario)["workload"]
    with pytest.raises(iq.ConfigError, match=r"workload\.sha256: no file .*150 rows of arrival_s, .*rows="):
        iq.Scenario.read(result.scenario)
    with pytest.raises(iq.ConfigError, match=r"workload\.sha256"):
        iq.Scenario.read(result.scenario, rows=many(149))
    for rows in (many(), many().frame, [FEW, many().frame.to_dict(as_series=False)]):
        assert same(iq.Scenario.read(result.scenario, rows=rows).run(), result)
    path = iq.Scenario(many(), ENGINE, {"seed": 2}).write(tmp_path / "x.json")
    assert [file.name[:5] for file in tmp_path.glob("*.parquet")] == ["rows-"]
    assert same(iq.Scenario.read(path).run(), result)
    assert read_back(many(100)).workload.frame.equals(many(100).frame)


def test_a_changed_trace_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_bytes(TRACE.read_bytes())
    read = read_back(iq.read_trace(file).head(50).at_rate(20))
    assert read.workload.metadata["format"] == "azure"
    trace = iq.read_trace(file)
    before = iq.simulate(trace, ENGINE)
    record = before.scenario
    lines = file.read_text().splitlines()
    file.write_text("\n".join(lines[:-1]) + "\n")
    with pytest.raises(iq.ConfigError, match=r"workload\.sha256: .*trace\.csv contains other requests"):
        iq.Scenario.read(record)
    file.unlink()
    with pytest.raises(iq.TraceError, match=r"trace\.csv: no such file"):
        iq.Scenario.read(record)
    scenario = iq.Scenario.read(record, rows=trace)
    assert same(scenario.run(), before) and scenario.to_json() == json.loads(record)


def test_clients_of_servegen_are_read_again() -> None:
    read_back(iq.read_trace(TRACE.parent / "servegen", start_s=600, end_s=1800, rate_factor=2).head(200))


def test_classes_keep_their_order_and_identities_their_types() -> None:
    classes = pl.Series(["b", "a", "b", "a"], dtype=pl.Enum(["b", "a"]))
    sessions = pl.Series([7, 7, None, 9], dtype=pl.UInt16)
    table = iq.Workload({**FEW, "class": classes, "session_id": sessions})
    result = iq.simulate(table, ENGINE)
    read = iq.Scenario.read(result.scenario, rows=table)
    assert read.workload.frame.schema == table.frame.schema and same(read.run(), result)


# Systems


def test_a_record_has_the_model_and_gpu_of_an_engine() -> None:
    engine = iq.Engine.on("llama-3.1-8b", "a100-80gb", scheduler=iq.Sarathi())
    record = json.loads(iq.simulate(CHAT, engine).scenario)
    named = {name: record["engine"]["on"][name] for name in ("model", "gpu", "tensor_parallel", "backend")}
    assert named == {"model": "llama-3.1-8b", "gpu": "a100-80gb", "tensor_parallel": 1, "backend": "vllm"}
    assert record["engine"]["on"]["backend_version"] == "0.14.0" and record["engine"]["kv"]["tokens"] > 10**5
    read = iq.Scenario.read(record).system
    assert isinstance(read, iq.Engine) and read == engine and read.explain() == engine.explain()


@pytest.mark.parametrize("name", ["vllm-v1", "VllmV1", "vllm_v1", "VLLMV1"])
def test_a_kind_has_one_name_in_any_spelling(name: str) -> None:
    parts = {"timing": {"kind": "constant", "seconds": 1}, "kv": "unlimited"}
    for scheduler in (name, {"kind": name}):
        assert iq.Engine.from_json({**parts, "scheduler": scheduler}).scheduler == iq.VllmV1()
    cluster = {"engines": {**parts, "scheduler": name}, "replicas": 2, "router": "least-requests"}
    assert iq.Cluster.from_json(cluster).router == iq.LeastRequests()


# TOML, JSON and Python


TOML = f"""
[workload]
trace = "{TRACE}"
head = 40
rate = 6.0
patience = {{ kind = "exponential", mean_s = 30 }}
[engine]
model = "qwen3-8b"
gpu = "h200"
scheduler = "sarathi"
[cluster]
replicas = 2
router = "power-of-two"
[run]
seed = 11
warmup = "2.5s"
[gate]
seeds = 3
"""


def test_a_file_its_record_and_python_are_the_same_scenario(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(TOML)
    toml = iq.Scenario.read(tmp_path / "x.toml")
    workload = iq.read_trace(TRACE).head(40).at_rate(6.0).with_patience(iq.dist.Exponential(mean_s=30))
    cluster = iq.Cluster(
        iq.Engine.on("qwen3-8b", "h200", scheduler=iq.Sarathi()), replicas=2, router=iq.PowerOfTwo()
    )
    python = iq.Scenario(workload, cluster, {"seed": 11, "warmup": "2.5s"}, {"seeds": 3})
    written = iq.Scenario.read(python.write(tmp_path / "x.json"))
    assert toml.to_json() == python.to_json() == written.to_json()
    assert same(toml.run(), written.run()) and same(python.run(), written.run())
    assert toml.gate == written.gate == {"seeds": 3}


def test_toml_supports_transforms(tmp_path: Path) -> None:
    steps = '[{ kind = "speed", factor = 2 }, { kind = "head", n = 3 }]'
    lists = "\n".join(f"{name} = {values}" for name, values in FEW.items())
    engine = 'kv = "unlimited"\nscheduler = "sarathi"\ntiming = { kind = "constant", seconds = 0.02 }\n'
    text = f"[workload]\ntransforms = {steps}\n[workload.data]\n{lists}\n[engine]\n{engine}"
    (tmp_path / "x.toml").write_text(text)
    read = iq.Scenario.read(tmp_path / "x.toml")
    assert read.workload.frame.equals(iq.Workload(FEW).speed(2).head(3).frame)


def test_options_of_run_override_those_of_the_scenario() -> None:
    first = iq.Scenario(CHAT, ENGINE, {"seed": 3, "threads": 1})
    assert same(first.run(seed=4), iq.simulate(CHAT, ENGINE, seed=4))
    assert "threads" not in first.to_json()["run"]


# Errors

RECORD = iq.Scenario(
    CHAT.with_patience(4).window(0.5).concat(iq.Workload(FEW)), ENGINE, {"seed": 3}
).to_json()


def _set(path: str, value: Any) -> dict[str, Any]:
    """Return the record with one field changed or removed."""
    record: Any = copy.deepcopy(RECORD)
    table, *rest = record, *path.split(".")
    for name in rest[:-1]:
        table = table[int(name)] if isinstance(table, list) else table[name]
    if value is ...:
        del table[rest[-1]]
    else:
        table[rest[-1]] = value
    return record  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("workload", ..., r"^workload: missing"),
        ("workload", 3, r"^workload: must be a table, got 3"),
        ("workload.requests", "x", r"^workload\.requests: must be an integer"),
        ("workload.arrivals", ..., r"^workload\.arrivals: missing"),
        (
            "workload.arrivals.kind",
            "Poison",
            r"^workload\.arrivals\.kind: .*'Poison'; did you mean Poisson",
        ),
        ("workload.arrivals.rate", -1, r"^workload\.arrivals\.rate: "),
        ("workload.transforms", {}, r"^workload\.transforms: must be a list"),
        (
            "workload.transforms.0.kind",
            "with_patiance",
            r"^workload\.transforms\[0\]\.kind: .*with_patience",
        ),
        ("workload.transforms.0.patience", -4, r"^workload\.transforms\[0\]\.patience: "),
        ("workload.transforms.0.patience", ..., r"^workload\.transforms\[0\]\.patience: missing"),
        (
            "workload.transforms.0.patients",
            4,
            r"^workload\.transforms\[0\]\.patients: .*patience",
        ),
        ("workload.transforms.1.end_s", 0.25, r"^workload\.transforms\[1\]\.end_s: must be above start_s"),
        ("workload.transforms.2.others", 4, r"^workload\.transforms\[2\]\.others: must be a list"),
        (
            "workload.transforms.2.others.0.data",
            [1],
            r"^workload\.transforms\[2\]\.others\[0\]\.data: must",
        ),
        (
            "workload.transforms.2.others.0.dato",
            [1],
            r"^workload\.transforms\[2\]\.others\[0\]\.dato: ",
        ),
        (
            "engine.scheduler.kind",
            "Sarati",
            r"^engine\.scheduler\.kind: .*'Sarati'; did you mean Sarathi",
        ),
        ("engine.scheduler", {"kind": "Python", "name": "x"}, r"^engine\.scheduler: .*written in Python"),
        ("engine.scheduler.order", "ByKey", r"^engine\.scheduler\.order: a key function cannot be read back"),
        ("engine", ..., r"^engine: missing"),
        ("enigne", {}, r"^enigne: unknown; did you mean engine"),
        ("run.sede", 3, r"^run\.sede: unknown; did you mean seed"),
        ("gate", 3, r"^gate: must be a table"),
    ],
)
def test_an_error_names_the_wrong_field(path: str, value: Any, message: str, tmp_path: Path) -> None:
    record = _set(path, value)
    with pytest.raises(iq.ConfigError, match=message):
        iq.Scenario.read(record)
    (tmp_path / "x.json").write_text(json.dumps(record))
    with pytest.raises(iq.ConfigError, match=rf"x\.json: {message.removeprefix('^')}"):
        iq.Scenario.read(tmp_path / "x.json")


def test_an_error_names_the_wrong_row() -> None:
    record = copy.deepcopy(RECORD)
    record["workload"]["transforms"][2]["others"][0]["data"]["prompt_tokens"][1] = 0
    with pytest.raises(iq.TraceError, match=r"others\[0\]\.data: row 1: prompt_tokens is 0, must be at"):
        iq.Scenario.read(record)


@pytest.mark.parametrize("text", ["{", '{"a": }', "[1]", "\xff"])
def test_an_error_names_a_file_that_is_not_json(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(iq.ConfigError, match=r"x\.json: (is not JSON|must be a table|is not UTF-8)"):
        iq.Scenario.read(tmp_path / "x.json")


def test_only_json_is_written(tmp_path: Path) -> None:
    with pytest.raises(iq.ConfigError, match=r"path: must end in \.json"):
        iq.Scenario(CHAT, ENGINE).write(tmp_path / "x.toml")


def test_the_end_of_a_window_may_be_open() -> None:
    assert RECORD["workload"]["transforms"][1] == {"kind": "window", "start_s": 0.5, "end_s": None}
    assert read_back(CHAT.window(0.5, math.inf)).workload._steps[0].arguments["end_s"] == math.inf


def test_a_fit_accepts_any_spelling_of_a_model() -> None:
    log = {"duration_s": [0.01, 0.011, 0.014], "decodes": [1, 2, 5], "context_tokens": [100, 200, 500]}
    frame = {**log, "prefill_tokens": [0, 0, 0]}
    fixed = {"knee": 0, "per_context_token": 0}
    fits = [iq.timing.fit(frame, name, fixed=fixed) for name in ("PiecewiseLinear", "piecewise-linear")]
    assert fits[0].model == fits[1].model
