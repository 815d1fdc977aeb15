"""What is loaded when it is first used: numpy, polars and altair, and the public names of packages.

They take longer to load than many a command takes to run: looking at help and importing inferq stay light.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

__all__ = ["alt", "attach", "homes", "np", "pl"]

if TYPE_CHECKING:
    import altair as alt
    import numpy as np
    import polars as pl
else:

    class _Module:
        """Stands for a module; every name of it that was used once is kept here."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, name: str) -> Any:
            value = getattr(import_module(self._name), name)
            setattr(self, name, value)
            return value

    alt = _Module("altair")
    np = _Module("numpy")
    pl = _Module("polars")


def attach(package: str, **families: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package whose public names stand in its `__init__.pyi`.

    `from .file import Name as Name` there makes a name public, and `from .wing import *` those of a wing.

    Args:
        package: its name.
        families: for the name of a tuple the class whose public subclasses it holds, in the stub's order.
    """
    stub = Path(str(sys.modules[package].__file__)).with_suffix(".pyi")
    names = homes(stub, package)
    public = sorted(name for name in names if not name.isupper())

    def get(name: str) -> Any:
        if name in families:
            base = get(families[name])
            members = (get(one) for one in names if not one.isupper())
            value: Any = tuple(
                one for one in members if isinstance(one, type) and issubclass(one, base) and one is not base
            )
        elif name in names:
            home, inside = names[name]
            value = import_module(home)
            value = getattr(value, inside) if inside else value
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: list(public), public


def homes(stub: Path, package: str) -> dict[str, tuple[str, str]]:
    """For each name in a stub its module and what it is called there; for a module no name."""
    names: dict[str, tuple[str, str]] = {}
    for line in ast.parse(stub.read_text(encoding="utf-8")).body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            names[line.target.id] = (package, line.target.id)
        if not isinstance(line, ast.ImportFrom) or line.level != 1:
            continue
        home = f"{package}.{line.module}"
        for one in line.names:
            if line.module is None:
                names[one.name] = (f"{package}.{one.name}", "")
            elif one.name == "*":
                names |= homes(stub.parent / line.module / "__init__.pyi", home)
            else:
                names[one.name] = (home, one.name)
    return names
