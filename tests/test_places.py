"""Places that name a scheduler, router or timing model, compared with the table in CONTRIBUTING."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import inferq as iq
from inferq.scheduler import SCHEDULERS
from inferq.systems.routers import ROUTERS
from inferq.timing import TIMING_MODELS

from .policies import file_of

ROOT = Path(__file__).parent.parent
SOURCES = ("rust/src/**/*.rs", "python/src/**/*.rs", "python/inferq/**/*.py", "python/inferq/**/*.pyi")
KINDS = {"scheduler": SCHEDULERS, "router": ROUTERS, "timing": TIMING_MODELS}

TOY = '''"""A toy."""

from dataclasses import dataclass

from inferq.scheduler.scheduler import Scheduler


@dataclass(frozen=True, kw_only=True, slots=True)
class Example(Scheduler):
    """A toy."""

    token_budget: int
'''


def listed() -> list[str]:
    """The files in CONTRIBUTING's table for a scheduler `Example`."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return re.findall(r"^\| \d \| `([^`]+)` \|", page, re.MULTILINE)


def naming(kind: str) -> set[str]:
    """The source files that name a kind, without the namespace that exports it."""
    word = re.compile(rf"\b{kind}\b")
    files = {file for pattern in SOURCES for file in ROOT.glob(pattern)}
    files -= {ROOT / "python" / "inferq" / name for name in ("research.py", "__init__.pyi")}
    return {
        file.relative_to(ROOT).as_posix() for file in files if word.search(file.read_text(encoding="utf-8"))
    }


@pytest.mark.parametrize("kind", ["Sglang", "Slai"])
def test_a_scheduler_is_named_where_contributing_says_and_nowhere_else(kind: str):
    """No example and no theorem mentions the names of these two."""
    places = {place.replace("example", file_of(kind)) for place in listed()}
    assert len(places) == 6
    for place in places:
        assert (ROOT / place).exists(), place
    exceptions = {
        "Slai": {"python/inferq/theory/capacities/sequence_capacity.py"},
        # The scheduler of a measured server.
        "Sglang": {"python/inferq/experiments/validation/settings.py"},
    }[kind]
    assert naming(kind) - exceptions == {place for place in places if place.startswith(("rust/", "python/"))}


@pytest.mark.parametrize("kind", ["LeastTokens", "LeastKv", "PrefixAffinity"])
def test_a_router_is_named_in_four_files(kind: str):
    systems = {"python/inferq/systems/routers.py", "python/inferq/systems/__init__.pyi"}
    assert naming(kind) == {f"rust/src/router/{file_of(kind)}.rs", "rust/src/router/mod.rs", *systems}


def test_a_timing_model_is_named_in_four_files():
    """The theorems about this model name it too."""
    models, theory = "python/inferq/timing/models", "python/inferq/theory"
    theorems = {"bounds/engine_bounds.py", "bounds/stability.py", "capacities/tile_capacity.py"}
    places = {"rust/src/timing/tiled_gemm.rs", "rust/src/timing/mod.rs"}
    places |= {f"{models}/tiled_gemm.py", f"{models}/__init__.pyi"}
    assert naming("TiledGemm") == places | {f"{theory}/{file}" for file in theorems}


@pytest.mark.parametrize("folder", KINDS)
def test_the_core_and_the_package_list_the_same_kinds(folder: str):
    """Every class has one line of `kinds!`."""
    text = (ROOT / "rust" / "src" / folder / "mod.rs").read_text(encoding="utf-8")
    lines = re.search(r"^kinds! \{(.*?)^\}", text, re.DOTALL | re.MULTILINE)
    assert lines is not None
    kinds = re.findall(r"^ +\w+::(\w+),$", lines[1], re.MULTILINE)
    assert sorted(kinds) == sorted(kind.__name__ for kind in KINDS[folder])


def test_a_file_and_a_line_make_a_scheduler_available_everywhere(tmp_path: Path):
    """Checked in a copy of the package, in a separate process."""
    copy = tmp_path / "inferq"
    shutil.copytree(Path(iq.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__", "*.parquet"))
    (copy / "scheduler" / "example.py").write_text(TOY)
    with (copy / "scheduler" / "__init__.pyi").open("a") as stub:
        stub.write("from .example import Example as Example\n")
    code = "\n".join(
        (
            "from inferq.scheduler import SCHEDULERS, Example",
            "from typer.testing import CliRunner",
            "from inferq.cli import app",
            "assert Example in SCHEDULERS",
            "page = CliRunner().invoke(app, ['replay', '--help'], env={'COLUMNS': '200'}).output",
            "assert ' example' in page and 'k-fcfs' in page, page",
        )
    )
    environment = {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
