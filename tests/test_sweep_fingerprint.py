"""Does a file of points notice that what they were computed for has changed?"""

import importlib
import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest

import inferq as iq
from inferq.experiments.sweeps.fingerprint import fingerprint

from .swept import ENGINE, TOML, chat, content

HELPERS = {
    "helpers.py": "import helpers_deep\ndef engine(): return helpers_deep.engine()\n",
    "helpers_deep.py": "from helpers_pack import engine\n",
    "helpers_pack/__init__.py": "from .inner import engine\n",
    "helpers_pack/inner.py": """
        import inferq as iq
        def engine():
            return iq.Engine(timing=iq.Constant(0.05), scheduler=iq.Sarathi(), kv=iq.KvCache.unlimited())
        """,
}
THROUGH = {
    "a module": "import helpers\ndef scenario(rate): return chat(rate)[0], helpers.engine()\n",
    "a name": "from helpers import engine\ndef scenario(rate): return chat(rate)[0], engine()\n",
    "a package": "import helpers_pack.inner\n"
    "def scenario(rate): return chat(rate)[0], helpers_pack.inner.engine()\n",
    "an import inside": "def scenario(rate):\n    import helpers\n"
    "    return chat(rate)[0], helpers.engine()\n",
}


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Callable[..., object]]:
    """Write modules of a user, and import the function `scenario` of one of them anew."""
    folder = tmp_path / "code"
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def load(text: str, **files: str) -> Callable[..., object]:
        texts = {**HELPERS, "user_scenario.py": f"from tests.swept import chat\n{text}"}
        for name, written in {**texts, **files}.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(textwrap.dedent(written))
        for name in [name for name in sys.modules if name.startswith(("helpers", "user_scenario"))]:
            monkeypatch.delitem(sys.modules, name)
        importlib.invalidate_caches()
        return importlib.import_module("user_scenario").scenario

    return load


@pytest.mark.parametrize("way", THROUGH)
def test_code_that_is_reached_through_modules_counts(way: str, user, tmp_path: Path):
    points = tmp_path / "points.parquet"
    for _ in range(2):
        first = iq.sweep(user(THROUGH[way]), resume=points, rate=[2])
    assert first["error"].to_list() == [None]
    slower = {"helpers_pack/inner.py": HELPERS["helpers_pack/inner.py"].replace("0.05", "0.06")}
    with pytest.raises(iq.ConfigError, match="points of another scenario"):
        iq.sweep(user(THROUGH[way], **slower), resume=points, rate=[2])


POLICY = """
import functools
LIMIT = 3
class Base:
    def plan(self): return self.most()
class Middle(Base): pass
def counted(function):
    @functools.wraps(function)
    def call(*given): return function(*given)
    return call
class Policy(Middle):
    limit = LIMIT
    def __init__(self, budget): self.budget = budget
    @staticmethod
    def least(): return few()
    @property
    def half(self): return few() / 2
    @counted
    def most(self): return 1
    def other(self): return many()
def few(): return 1
def many(): return 5
policy = Policy(8)
def scenario(rate): return USED
"""


@pytest.mark.parametrize("used", ["policy", "[Policy, policy.plan]"])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return self.most()", "return self.most() + 1"),  # of a base
        ("LIMIT = 3", "LIMIT = 4"),
        ("Policy(8)", "Policy(9)"),
        ("def few(): return 1", "def few(): return 2"),
        ("def many(): return 5", "def many(): return 6"),
        ("call(*given): return function", "call(*given): return 2 * function"),
    ],
)
def test_a_class_counts_with_its_bases_its_parts_and_what_an_object_of_it_holds(user, used, old, new):
    text = POLICY.replace("USED", used)
    assert fingerprint(user(text), None) == fingerprint(user(text), None)
    assert fingerprint(user(text), None) != fingerprint(user(text.replace(old, new)), None)


def test_the_source_of_a_class_in_the_grid_counts(user, tmp_path: Path):
    text = "class Mine:\n    def plan(self): return 1\ndef scenario(policy): return chat(2)\n"
    points = tmp_path / "points.parquet"

    def swept(text: str, *others: object) -> pl.DataFrame:
        scenario = user(text)
        return iq.sweep(scenario, resume=points, policy=[scenario.__globals__["Mine"], *others])

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
    with pytest.raises(iq.ConfigError, match="workload: two values are"):
        iq.sweep(replayed, workload=[one, trace(10, 20)])


@dataclass
class Shown:
    """Shows less than it holds."""

    hidden: int

    def __repr__(self) -> str:
        return "Shown()"


def of_shown(shown):
    return chat(shown.hidden)


def test_values_that_are_shown_alike_are_told_apart(tmp_path: Path):
    points = tmp_path / "points.parquet"
    frame = iq.sweep(of_shown, shown=[Shown(2), Shown(4)])
    assert frame["shown"].n_unique() == 2
    iq.sweep(of_shown, resume=points, shown=[Shown(2)])
    with pytest.raises(iq.ConfigError, match=r"points of another shown: 'Shown\(\)'"):
        iq.sweep(of_shown, resume=points, shown=[Shown(4)])


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
    config = {"hidden_size": 512, "intermediate_size": 2048, "num_attention_heads": 8, "vocab_size": 1000}

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


def test_what_refers_to_itself_is_told_once():
    ring: list[object] = [1]
    ring.append(ring)
    table: dict[str, object] = {"ring": ring}
    table["table"] = table

    class Node:
        def __init__(self) -> None:
            self.next, self.table = self, table

    node = Node()
    told = fingerprint(lambda rate: (node, ring, table, rate), None)
    assert told == fingerprint(lambda rate: (node, ring, table, rate), None)
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(iq.ConfigError, match="scenario: function is nested too deeply"):
        fingerprint(lambda rate: deep, None)


def test_the_hash_of_texts_changes_no_fingerprint():
    code = """
        from inferq.experiments.sweeps.fingerprint import fingerprint
        scope = {"__name__": "some_module_of_the_user", "SET": {"a", "b", "c", ("d", "e")}}
        exec("def scenario(rate): return rate in {'x', 'y', 'z', 'w'}, SET", scope)
        print(fingerprint(scope["scenario"], None))
    """
    told = {
        subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            env={"PYTHONPATH": ":".join(filter(None, sys.path)), "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in "012"
    }
    assert len(told) == 1


KINDS = """
import collections, enum, functools, types
class Text(str): pass
class Items(list): pass
class Slotted:
    __slots__ = ("__held",)
    def __init__(self, held): self.__held = held
class Deque(collections.deque): pass
class Kind(enum.Enum):
    ONE = {1, 2}
class Partly:
    def run(self, number): return number
    again = functools.partialmethod(run, VALUE)
def items():
    made = Items([1])
    made.more = VALUE
    return made
def scenario(rate): return USED
USED = MADE
"""


@pytest.mark.parametrize(
    "made",
    [
        "Text(VALUE)",
        "Items([VALUE])",
        "items()",
        "Slotted(VALUE)",
        "Deque([VALUE])",
        "collections.deque([Slotted(VALUE)])",
        "types.SimpleNamespace(held=Slotted(VALUE))",
        "{Kind.ONE: {Slotted(VALUE)}}",
        "functools.partial(Slotted, Slotted(VALUE))",
        "[Slotted(VALUE)].append",
        "Partly()",
    ],
)
def test_objects_of_every_kind_count_with_what_they_hold(user, made: str):
    one, other = (KINDS.replace("MADE", made).replace("VALUE", value) for value in ("12", "34"))
    assert fingerprint(user(one), None) == fingerprint(user(one), None)
    assert fingerprint(user(one), None) != fingerprint(user(other), None)
