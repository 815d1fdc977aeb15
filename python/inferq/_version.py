"""Version and commit of the installed package."""

import subprocess
from importlib.metadata import version
from pathlib import Path

__version__ = version("inferq")


def commit() -> str | None:
    """The short hash of the commit, from the wheel or from git in a checkout; None if unknown."""
    from inferq import _core

    checkout = Path(__file__).parents[2]
    if _core.commit is not None or not (checkout / ".git").exists():
        return _core.commit
    command = ["git", "-C", str(checkout), "rev-parse", "--short=9", "HEAD"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return output.stdout.strip()
