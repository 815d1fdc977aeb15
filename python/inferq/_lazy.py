"""Modules and public names that load on first use.

numpy, polars, altair and torch take longer to import than many commands take to run, so importing inferq and
printing help must not load them.
"""

from __future__ import annotations

import difflib
import os
import sys
from importlib import import_module

TYPE_CHECKING = False  # `typing` itself takes as long to load as everything here
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["NDArray", "alt", "attach", "functional", "highspy", "homes", "np", "optimize", "pl", "torch"]

EXTRAS = {
    "altair": ("plots", "charts need Altair"),
    "vl_convert": ("plots", "SVG files need vl-convert"),
    "scipy": ("fit", "fits need SciPy"),
    "aiconfigurator_core": ("tables", "baking tables needs aiconfigurator"),
    "torch": ("calibrate", "calibration needs PyTorch"),
}
"""Optional packages: the extra that installs each, and what needs it."""

if TYPE_CHECKING:
    import altair as alt
    import highspy
    import numpy as np
    import polars as pl
    import torch
    from numpy.typing import NDArray
    from scipy import optimize
    from torch.nn import functional
else:

    class _Module:
        """A stand-in for a module; it keeps every name that was used once.

        Dunder names such as `__wrapped__`, which doctest looks up, do not load the module.
        """

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__") and name != "__version__":
                raise AttributeError(name)
            value = getattr(load(self._name), name)
            setattr(self, name, value)
            return value

    alt = _Module("altair")
    highspy = _Module("highspy")
    np = _Module("numpy")
    pl = _Module("polars")
    optimize = _Module("scipy.optimize")
    torch, functional = _Module("torch"), _Module("torch.nn.functional")
    NDArray = tuple  # for annotations only, which are never evaluated


def load(module: str) -> Any:
    """Import a module.

    Raises:
        ImportError: an optional package is missing; the message names the extra that installs it.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        hint = missing_extra(error)
        if hint is None:
            raise
        raise ImportError(hint, name=error.name) from None


def missing_extra(error: BaseException) -> str | None:
    """How to install the optional package that an import error is about; None for other errors."""
    name = (getattr(error, "name", None) or "").partition(".")[0]
    if not isinstance(error, ImportError) or name not in EXTRAS:
        return None
    extra, reason = EXTRAS[name]
    return f"{reason}: pip install 'inferq[{extra}]'"


def attach(
    package: str, *, namespaces: tuple[str, ...] = (), **families: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package with a stub of its public names.

    `from .file import Name as Name` in the stub makes a name public, `from .wing import *` those of a
    package.

    Args:
        package: name of the package.
        namespaces: modules whose names also resolve on the package, without being listed.
        families: for the name of a tuple, the class whose public subclasses it holds, in the stub's order.
    """
    stub = f"{sys.modules[package].__file__}i"
    names = homes(stub, package)
    public = sorted(name for name in names if not name.isupper())

    def get(name: str) -> Any:
        if name in families:
            base = get(families[name])
            members = (get(member) for member in names if not member.isupper())
            value: Any = tuple(
                member
                for member in members
                if isinstance(member, type) and issubclass(member, base) and member is not base
            )
        elif name in names:
            home, inside = names[name]
            value = import_module(home)
            value = getattr(value, inside) if inside else value
        elif name.startswith("_"):  # a submodule that is not loaded yet, such as _core
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        else:
            value = _in_namespace(package, name, namespaces)
            if value is None:
                by_lower = {known.lower(): known for known in public}
                for namespace in namespaces:
                    inside = import_module(f"{package}.{namespace}").__all__
                    by_lower |= {known.lower(): f"{namespace}.{known}" for known in inside}
                near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
                hint = f"; did you mean {by_lower[near[0]]}?" if near else ""
                raise AttributeError(f"module {package!r} has no attribute {name!r}{hint}")
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: list(public), public


def _in_namespace(package: str, name: str, namespaces: tuple[str, ...]) -> Any:
    """The value of a name of one of the namespaces; None if no namespace has it."""
    if name[:1].isupper():  # their names are all classes: nothing else loads them
        for namespace in namespaces:
            module = import_module(f"{package}.{namespace}")
            if name in module.__all__:
                return getattr(module, name)
    return None


def homes(stub: str | os.PathLike[str], package: str) -> dict[str, tuple[str, str]]:
    """For each name in a stub: its module, and its name there (empty for a module).

    A stub holds, one per line, imports of a name, imports of all names of a package, and types of families.
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
