"""Does a new scheduler, router or timing model need the places that CONTRIBUTING lists, and no other?"""

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
    """The files in CONTRIBUTING's table of what a scheduler `Example` takes."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return re.findall(r"^\| \d \| `([^`]+)` \|", page, re.MULTILINE)


def naming(kind: str) -> set[str]:
    """The files of the sources that name a kind; papers, which nothing else imports, aside."""
    word = re.compile(rf"\b{kind}\b")
    files = {file for pattern in SOURCES for file in ROOT.glob(pattern)}
    files -= set((ROOT / "python" / "inferq" / "papers").rglob("*"))
    return {
        file.relative_to(ROOT).as_posix() for file in files if word.search(file.read_text(encoding="utf-8"))
    }


@pytest.mark.parametrize("kind", ["Sglang", "Slai"])
def test_a_scheduler_is_named_where_contributing_says_and_nowhere_else(kind: str):
    """These two are the ones whose names no example and no theorem about them mentions."""
    places = {place.replace("example", file_of(kind)) for place in listed()}
    assert len(places) == 6
    for place in places:
        assert (ROOT / place).exists(), place
    about_it = {
        "Slai": {"python/inferq/theory/capacities/sequence_capacity.py"},
        # Which scheduler stands for a measured server.
        "Sglang": {"python/inferq/experiments/validation/settings.py"},
    }[kind]
    assert naming(kind) - about_it == {place for place in places if place.startswith(("rust/", "python/"))}


@pytest.mark.parametrize("kind", ["LeastTokens", "LeastKv", "PrefixAffinity"])
def test_a_router_is_named_in_four_files(kind: str):
    systems = {"python/inferq/systems/routers.py", "python/inferq/systems/__init__.pyi"}
    assert naming(kind) == {f"rust/src/router/{file_of(kind)}.rs", "rust/src/router/mod.rs", *systems}


def test_a_timing_model_is_named_in_four_files():
    """And by the theorems about it, whose subject is this one model."""
    models, theory = "python/inferq/timing/models", "python/inferq/theory"
    theorems = {"bounds/engine_bounds.py", "bounds/stability.py", "capacities/tile_capacity.py"}
    places = {"rust/src/timing/tiled_gemm.rs", "rust/src/timing/mod.rs"}
    places |= {f"{models}/tiled_gemm.py", f"{models}/__init__.pyi"}
    assert naming("TiledGemm") == places | {f"{theory}/{file}" for file in theorems}


@pytest.mark.parametrize("room", KINDS)
def test_the_core_and_the_package_list_the_same_kinds(room: str):
    """A line of `kinds!` for each class, and no more."""
    text = (ROOT / "rust" / "src" / room / "mod.rs").read_text(encoding="utf-8")
    lines = re.search(r"^kinds! \{(.*?)^\}", text, re.DOTALL | re.MULTILINE)
    assert lines is not None
    kinds = re.findall(r"^ +\w+::(\w+),$", lines[1], re.MULTILINE)
    assert sorted(kinds) == sorted(kind.__name__ for kind in KINDS[room])


def test_a_file_and_a_line_make_a_scheduler_public_everywhere(tmp_path: Path):
    """In a copy of the package, which is asked in a process of its own."""
    copy = tmp_path / "inferq"
    shutil.copytree(Path(iq.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__", "*.parquet"))
    (copy / "scheduler" / "example.py").write_text(TOY)
    with (copy / "scheduler" / "__init__.pyi").open("a") as stub:
        stub.write("from .example import Example as Example\n")
    code = "\n".join(
        (
            "import inferq as iq",
            "from inferq.scheduler import SCHEDULERS",
            "from typer.testing import CliRunner",
            "from inferq.cli import app",
            "assert iq.Example in SCHEDULERS and 'Example' in iq.__all__",
            "page = CliRunner().invoke(app, ['replay', '--help'], env={'COLUMNS': '200'}).output",
            "assert ' example' in page and 'k-fcfs' in page, page",
        )
    )
    environment = {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
