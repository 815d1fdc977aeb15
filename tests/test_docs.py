"""Documentation: complete reference, complete navigation, short lines, a true code map."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

import inferq as iq
from inferq.results.finding import KINDS

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
FOLDERS = ("benches", "docs", "tests", "traces")
PAGES = sorted([*ROOT.glob("*.md"), *(page for name in FOLDERS for page in (ROOT / name).rglob("*.md"))])


def hook(name: str) -> ModuleType:
    """A hook of mkdocs."""
    spec = importlib.util.spec_from_file_location(name, DOCS / "hooks" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def entries(page: Path) -> list[str]:
    """The entries of a page of the reference, with its lists expanded."""
    text = hook("lists").on_page_markdown(page.read_text(encoding="utf-8"))
    return re.findall(r"^::: (\S+)$", text, re.MULTILINE)


def test_every_public_name_is_in_the_reference_once():
    documented = [name for page in (DOCS / "reference").glob("*.md") for name in entries(page)]
    modules = {"dist": iq.dist, "research": iq.research, "theory": iq.theory, "timing": iq.timing}
    names = {f"inferq.{name}" for name in iq.__all__ if name not in (*modules, "__version__")}
    at_top = {*iq.__all__, *iq.research.__all__}
    for name, module in modules.items():
        known = at_top if name == "timing" else set()
        names |= {f"inferq.{name}.{member}" for member in module.__all__ if member not in known}
    public = [
        name for name in documented if re.fullmatch(r"inferq\.((dist|research|theory|timing)\.)?\w+", name)
    ]
    assert sorted(public) == sorted({*names, "inferq.scenario"})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_line_of_prose_is_beyond_120_characters(page: Path):
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    long = [line for line in prose.splitlines() if len(line) > 120 and not line.startswith("|")]
    assert not long, long[0]


def test_every_page_is_in_the_navigation():
    listed = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    generated = [DOCS / "explanation" / "design.md"]
    generated += [notebook.with_suffix(".md") for notebook in DOCS.rglob("*.ipynb")]
    pages = [*DOCS.rglob("*.md"), *generated]
    assert listed == {str(page.relative_to(DOCS)) for page in pages}


def test_the_code_map_is_true():
    """Every path in it exists, and it has every folder of the package and of the core."""
    text = (DOCS / "explanation" / "code-map.md").read_text(encoding="utf-8")
    roots: list[str] = []
    drawn = set()
    for line in re.findall(r"^(?:[│├└─ ]*)[\w./-]+(?:, [\w./-]+)*  .*$", text, re.MULTILINE):
        depth = len(re.match(r"[│├└─ ]*", line)[0]) // 4
        for path in re.split(", ", line.lstrip("│├└─ ").split("  ")[0]):
            whole = "".join(roots[:depth]) + path
            assert (ROOT / whole).exists(), whole
            drawn.add(whole.rstrip("/"))
        roots[depth:] = [path]
    rooms = {path for top in ("python/inferq", "rust/src") for path in (ROOT / top).iterdir()}
    rooms |= {path for path in (ROOT / "python" / "inferq" / "theory").iterdir() if path.is_dir()}
    names = {
        path.relative_to(ROOT).as_posix() for path in rooms if not path.name.startswith(("__", "_core.abi"))
    }
    assert names - drawn <= {"python/inferq/py.typed", "rust/src/lib.rs"}


def test_generated_reference_is_complete():
    """Commands, keys, metrics and findings of the pages are those of the package."""
    tables = {name: table() for name, table in hook("generated").TABLES.items()}
    for text in ("## inferq replay", "`--token-budget`", "## inferq trace describe"):
        assert text in tables["commands"]
    for text in ("| `token_budget` |", "### Sglang", "### PrefixAffinity", "| `tolerance` |", "| `rate` |"):
        assert text in tables["toml"]
    assert all(f"`{name}`" in tables["metrics"] for name in ("ttft_p99", "itl_max", "hit_rate", "watts"))
    assert all(f"| `{name}` |" in tables["findings"] for name in KINDS)


@pytest.fixture(scope="module")
def runs() -> list[iq.Result]:
    """One run for each feature that adds columns."""
    kv = iq.KvCache(tokens=4_000, block=16, prefix_cache="blocks")
    speculation = iq.Speculation(tokens=2, acceptance=0.5)
    engine = iq.Engine(
        timing=iq.Constant(0.02), scheduler=iq.VllmV1(speculation=speculation, pause_s=None), kv=kv
    )
    restart = iq.Engine(
        timing=iq.Constant(0.02), scheduler=iq.Sarathi(preemption=iq.research.Restart()), kv=kv
    )
    requests = {"arrival_s": [0.0, 0.1], "prompt_tokens": [50, 60], "output_tokens": [9, 9]}
    failing = iq.Cluster(restart, replicas=2, failures=iq.Failures(at=[(0.05, 1)], repair_s=1))
    link = iq.Link(latency_s=0.001, bytes_per_s=1e9, bytes_per_token=1)
    plain = iq.Engine(timing=iq.Constant(0.02), scheduler=iq.Sarathi(), kv=kv)
    apart = iq.Disaggregated(prefill=(plain, 1), decode=(plain, 1), link=link)
    network = iq.Network(
        {"chat": plain}, [iq.Workflow("w", stages={"a": iq.Stage("chat", prompt=9, output=2)})]
    )
    return [
        iq.simulate(requests, engine, iterations=True, batches=True),
        iq.simulate(requests, failing),
        iq.simulate(requests, apart),
        iq.simulate({"arrival_s": [0.0]}, network),
    ]


@pytest.mark.parametrize(
    "name",
    [
        "requests",
        "itl",
        "timeline",
        "iterations",
        "batches",
        "block_operations",
        "fleet_events",
        "jobs",
        "summary",
    ],
)
def test_every_column_is_documented(name: str, runs: list[iq.Result]):
    text = (DOCS / "reference" / "columns-and-metrics.md").read_text(encoding="utf-8")
    heading = "## `result.summary()`" if name == "summary" else f"## `result.{name}`"
    section = text.partition(f"{heading}\n")[2].partition("\n## ")[0]
    documented = {
        column
        for row in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
        for column in re.findall(r"`(\w+)`", row)
    }
    statistics = re.compile(r"(itl|tpot|e2e|queue|ttft)_(mean|p\d\d|max)")
    columns = set()
    for run in runs:
        try:
            frame = run.summary() if name == "summary" else getattr(run, name)
        except iq.ConfigError:
            continue
        columns |= {
            column for column in frame.columns if not (name == "summary" and statistics.fullmatch(column))
        }
    assert columns and columns <= documented, sorted(columns - documented)
