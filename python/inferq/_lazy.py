"""What is loaded when first used: numpy, polars, altair, scipy, torch, and the public names of packages.

They take longer to load than many a command takes to run: looking at help and importing inferq stay light.
"""

from __future__ import annotations

import difflib
import os
import sys
from importlib import import_module

TYPE_CHECKING = False  # as that of typing, which takes as long to load as all of this
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["NDArray", "alt", "attach", "functional", "homes", "np", "optimize", "pl", "special", "torch"]

if TYPE_CHECKING:
    import altair as alt
    import numpy as np
    import polars as pl
    import torch
    from numpy.typing import NDArray
    from scipy import optimize, special
    from torch.nn import functional
else:

    class _Module:
        """Stands for a module; every name of it that was used once is kept here.

        What inspects objects, as doctest does, asks for `__wrapped__` and its like: that loads nothing.
        """

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__") and name != "__version__":
                raise AttributeError(name)
            value = getattr(import_module(self._name), name)
            setattr(self, name, value)
            return value

    alt = _Module("altair")
    np = _Module("numpy")
    pl = _Module("polars")
    optimize, special = _Module("scipy.optimize"), _Module("scipy.special")
    torch, functional = _Module("torch"), _Module("torch.nn.functional")  # an extra, `inferq[calibrate]`
    NDArray = tuple  # in annotations alone, which nothing evaluates


RENAMED = {"inferq.timing.iterations_of": "Result.single_iterations"}
"""Public names of modules that are gone, and what has taken their place."""


def attach(package: str, **families: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package whose public names stand in its `__init__.pyi`.

    `from .file import Name as Name` there makes a name public, and `from .wing import *` those of a wing.

    Args:
        package: its name.
        families: for the name of a tuple the class whose public subclasses it holds, in the stub's order.
    """
    stub = f"{sys.modules[package].__file__}i"
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
        elif f"{package}.{name}" in RENAMED:
            raise AttributeError(f"{package}.{name} is now {RENAMED[f'{package}.{name}']}")
        else:
            by_lower = {one.lower(): one for one in public}
            near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
            hint = f"; did you mean {by_lower[near[0]]}?" if near else ""
            raise AttributeError(f"module {package!r} has no attribute {name!r}{hint}")
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: list(public), public


def homes(stub: str | os.PathLike[str], package: str) -> dict[str, tuple[str, str]]:
    """For each name in a stub its module and what it is called there; for a module no name.

    A stub holds imports of one name, of all names of a wing, and the types of families, a line each.
    """
    names: dict[str, tuple[str, str]] = {}
    with open(stub, encoding="utf-8") as lines:
        for line in lines:
            words = line.split()
            if words[:1] == ["from"]:
                module, name = words[1][1:], words[3]
                if not module:
                    names[name] = (f"{package}.{name}", "")
                elif name == "*":
                    wing = os.path.join(os.path.dirname(stub), *module.split("."), "__init__.pyi")
                    names |= homes(wing, f"{package}.{module}")
                else:
                    names[name] = (f"{package}.{module}", name)
            elif words and words[0].removesuffix(":").isupper():
                name = words[0].removesuffix(":")
                names[name] = (package, name)
    return names
