"""Detection of changes of scenarios and grid values when a sweep is resumed."""

import importlib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest

import inferq as iq

from .swept import ENGINE, TOML, chat, content


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Callable[..., object]]:
    """Write a module and import its function `scenario`."""
    folder = tmp_path / "code"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def load(text: str) -> Callable[..., object]:
        (folder / "user_scenario.py").write_text(f"from tests.swept import chat\n{text}")
        monkeypatch.delitem(sys.modules, "user_scenario", raising=False)
        importlib.invalidate_caches()
        return importlib.import_module("user_scenario").scenario

    return load


def test_the_source_file_of_a_function_counts(user, tmp_path: Path):
    points = tmp_path / "points.parquet"
    text = "def helper(): return 64\ndef scenario(rate): return chat(rate, helper())\n"
    for _ in range(2):
        assert iq.sweep(user(text), resume=points, rate=[2])["error"].to_list() == [None]
    with pytest.raises(iq.ConfigError, match="points of another scenario"):
        iq.sweep(user(text.replace("64", "128")), resume=points, rate=[2])


def test_the_source_of_a_class_in_the_grid_counts(user, tmp_path: Path):
    text = "class Mine:\n    def plan(self): return 1\ndef scenario(policy): return chat(2)\n"
    points = tmp_path / "points.parquet"

    def swept(text: str, *others: object) -> pl.DataFrame:
        scenario = user(text)
        return iq.sweep(scenario, resume=points, key="1", policy=[scenario.__globals__["Mine"], *others])

    assert content(swept(text)) == content(swept(text))
    assert swept(text, iq.Sarathi).height == 2, "a further value is a further point"
    before = points.read_bytes()
    with pytest.raises(iq.ConfigError, match=r"points of another policy: .<class 'user_sc"):
        swept(text.replace("return 1", "return 2"))
    assert points.read_bytes() == before


def trace(*prompts: int) -> iq.Workload:
    return iq.Workload(
        {
            "arrival_s": [float(place) for place in range(len(prompts))],
            "prompt_tokens": list(prompts),
            "output_tokens": [3] * len(prompts),
        }
    )


def replayed(workload):
    return workload, ENGINE


def test_workloads_in_the_grid_are_their_requests(tmp_path: Path):
    points = tmp_path / "points.parquet"
    one, other = trace(10, 20), trace(10, 2000)
    assert repr(one) == repr(other)
    first = iq.sweep(replayed, resume=points, workload=[one])
    both = iq.sweep(replayed, resume=points, workload=[one, other])
    labels = both["workload"].to_list()
    assert len(set(labels)) == 2 and all(label.startswith(repr(one)) for label in labels)
    assert both.head(1).equals(first)
    again = iq.sweep(replayed, resume=points, workload=[other, trace(10, 20)])
    assert again.equals(both.reverse())
    with pytest.raises(iq.ConfigError, match="workload: two values have the same label"):
        iq.sweep(replayed, workload=[one, trace(10, 20)])


@dataclass
class Shown:
    """Its `repr` is incomplete."""

    hidden: int

    def __repr__(self) -> str:
        return "Shown()"


def of_shown(shown):
    return chat(shown.hidden)


def test_values_with_the_same_repr_are_refused():
    with pytest.raises(iq.ConfigError, match="shown: two values have the same label"):
        iq.sweep(of_shown, shown=[Shown(2), Shown(4)])


LINES = "arrival_s,prompt_tokens,output_tokens\n0,10,3\n1,10,3\n"


def test_files_that_the_grid_names_count_with_their_content(tmp_path: Path):
    drawn = TOML[TOML.index("requests =") : TOML.index("[engine.timing]")]
    replay = tmp_path / "replay.toml"
    replay.write_text(TOML.replace(drawn, 'trace = "one.csv"\n'))
    for name in ("one.csv", "two.csv", "three.csv"):
        (tmp_path / name).write_text(LINES)
    points, grid = tmp_path / "points.parquet", {"workload.trace": ["one.csv", "two.csv"]}
    first = iq.sweep(replay, resume=points, **grid)
    assert content(iq.sweep(replay, resume=points, **grid)) == content(first)
    (tmp_path / "two.csv").write_text(LINES + "2,10,3\n")
    with pytest.raises(iq.ConfigError, match=r"points of another workload\.trace: 'two\.csv'"):
        iq.sweep(replay, resume=points, **grid)
    assert iq.sweep(replay, resume=points, **{"workload.trace": ["one.csv", "three.csv"]}).height == 2


def test_timing_tables_and_models_count_with_their_content(tmp_path: Path):
    engines = {
        "table": '[engine]\nkv = "unlimited"\ntiming = {kind = "TimingTable", file = "t.parquet"}\n'
        'scheduler = {kind = "Sarathi"}\n',
        "model": '[engine]\nmodel = "./mine"\ngpu = "h200"\n',
    }
    (tmp_path / "mine").mkdir()
    config = {"model_type": "llama", "hidden_size": 512, "intermediate_size": 2048}
    config |= {"num_attention_heads": 8, "vocab_size": 1000}

    def written(gpu: str, layers: int) -> None:
        iq.TimingTable.shipped("qwen3-8b", gpu).write(tmp_path / "t.parquet")
        text = json.dumps({**config, "num_hidden_layers": layers})
        (tmp_path / "mine" / "config.json").write_text(text)

    for name, engine in engines.items():
        written("h200", 2)
        (tmp_path / "mine" / "weights").write_text(name)  # have no say, and may be large
        file, points = tmp_path / f"{name}.toml", tmp_path / f"points-{name}.parquet"
        file.write_text(TOML[: TOML.index("[engine.timing]")] + engine)
        assert iq.sweep(file, resume=points)["error"].to_list() == [None]
        (tmp_path / "mine" / "weights").write_text("others")
        iq.sweep(file, resume=points)
        written("l40s", 4)
        with pytest.raises(iq.ConfigError, match="points of another scenario"):
            iq.sweep(file, resume=points)


def of_file(scenario):
    from inferq.scenario import Scenario

    return Scenario.read(scenario)


@pytest.mark.parametrize("kind", [str, Path])
def test_scenarios_that_the_grid_names_count_with_their_traces(kind: type, tmp_path: Path):
    drawn = TOML[TOML.index("requests =") : TOML.index("[engine.timing]")]
    replay, points = tmp_path / "replay.toml", tmp_path / "points.parquet"
    replay.write_text(TOML.replace(drawn, 'trace = "one.csv"\n').replace("seed = 7", ""))
    (tmp_path / "one.csv").write_text(LINES)
    assert iq.sweep(of_file, resume=points, scenario=[kind(replay)])["error"].to_list() == [None]
    iq.sweep(of_file, resume=points, scenario=[kind(replay)])
    (tmp_path / "one.csv").write_text(LINES + "2,10,3\n")
    with pytest.raises(iq.ConfigError, match="points of another scenario"):
        iq.sweep(of_file, resume=points, scenario=[kind(replay)])
