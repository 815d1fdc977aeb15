from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent


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
