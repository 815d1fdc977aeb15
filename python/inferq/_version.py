"""The version of the installed package, and the commit that it was built from."""

import subprocess
from importlib.metadata import version
from pathlib import Path

__version__ = version("inferq")


def commit() -> str | None:
    """The short hash of the commit: a wheel has it written in, a checkout asks git; else none is known."""
    from inferq import _core

    checkout = Path(__file__).parents[2]
    if _core.commit is not None or not (checkout / ".git").exists():
        return _core.commit
    asked = ["git", "-C", str(checkout), "rev-parse", "--short=9", "HEAD"]
    try:
        said = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return said.stdout.strip()
