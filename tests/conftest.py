import importlib
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import settings

from .night import NIGHT

REPOSITORY = Path(__file__).parent.parent
collect_ignore = ["user_script.py"]  # mypy reads it; looking for doctests would run it, and write its page

# On a change always the same examples; at night more, and others. How long one takes is the machine's affair.
settings.register_profile("change", deadline=None, derandomize=True, max_examples=30)
settings.register_profile("night", deadline=None, max_examples=600)
settings.load_profile("night" if NIGHT else "change")


@pytest.fixture(scope="session")
def samples() -> Path:
    """The small traces of this repository."""
    return REPOSITORY / "traces"


@pytest.fixture(scope="session")
def shared() -> Path:
    """Real traces and recordings, beside a working copy of this repository."""
    folder = REPOSITORY.parent / "shared"
    if not folder.is_dir():
        pytest.skip("needs the folder shared/ beside the repository (real traces, recordings)")
    return folder


@pytest.fixture
def swept(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module of scenarios for sweeps, under a name by which other processes find it too."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    return importlib.import_module("swept")


@pytest.fixture
def chat_toml(tmp_path: Path, swept: ModuleType) -> Path:
    """A small scenario of a chat service."""
    path = tmp_path / "chat.toml"
    path.write_text(swept.TOML)
    return path
