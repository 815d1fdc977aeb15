import importlib
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import settings

REPOSITORY = Path(__file__).parent.parent

# how long an example takes is the machine's affair
settings.register_profile("inferq", deadline=None)
settings.load_profile("inferq")


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
