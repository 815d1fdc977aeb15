"""The files of the user that code imports, and digests of them."""

from __future__ import annotations

import dis
import hashlib
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import resolve_name
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

_LIBRARIES = ("site-packages", "dist-packages")


def is_own(thing: Any) -> bool:
    """Whether a module, a function, a class or the class of an object is the user's, not of a library."""
    if isinstance(thing, ModuleType):
        name = thing.__name__
    else:
        name = getattr(thing, "__module__", None) or ("" if callable(thing) else type(thing).__module__)
    return _is_own_name(name) and not _is_library(getattr(sys.modules.get(name), "__file__", None))


def told_files(name: str) -> Iterator[str]:
    """The name and a digest of the file of a module, and of those of the user that it imports, and so on.

    Args:
        name: of a module, in full; one that is not there or not the user's tells nothing.
    """
    open_names, found = [name], set[str]()
    while open_names:
        full = open_names.pop()
        if full in found or not full or not _is_own_name(full):
            continue
        found.add(full)
        open_names += [full.rpartition(".")[0]]
        file = _file(full)
        if file is None:
            continue
        content = file.read_bytes()
        yield f"{full} {hashlib.sha256(content).hexdigest()}"
        if file.suffix == ".py":
            try:
                code = compile(content, str(file), "exec", dont_inherit=True)
            except (SyntaxError, ValueError):
                continue  # importing it says so
            package = full if file.name == "__init__.py" else full.rpartition(".")[0]
            open_names += sorted(imports(code, package), reverse=True)


def imports(code: CodeType, package: str) -> list[str]:
    r"""The full names of what code imports, also inside of it, in order; some may be names within a module.

    Example:
        >>> from inferq.experiments.sweeps.user_modules import imports
        >>> imports(compile("import a.b\nfrom .c import d", "", "exec"), "here")
        ['a.b', 'here.c', 'here.c.d']
    """
    found = set()
    before: list[Any] = [None, None]
    for one in dis.get_instructions(code):
        if one.opname == "IMPORT_NAME":
            level, names = before
            full = f"{'.' * (level or 0)}{one.argval}"
            try:
                full = resolve_name(full, package) if level else full
            except ImportError:
                continue  # importing it says so
            found |= {full, *(f"{full}.{name}" for name in names or () if name != "*")}
        before = [before[1], one.argval]
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            found |= set(imports(inner, package))
    return sorted(found)


def _is_own_name(name: str) -> bool:
    return name == "__main__" or name.partition(".")[0] not in (*sys.stdlib_module_names, "inferq")


def _is_library(file: str | None) -> bool:
    return any(part in _LIBRARIES for part in Path(file or "").parts)


def _file(full: str) -> Path | None:
    """The file of a module of the user; None where there is none. Nothing is imported."""
    file = getattr(sys.modules.get(full), "__file__", None)
    if file is None:
        path, spec, so_far = None, None, ""
        for part in full.split("."):
            so_far = f"{so_far}.{part}" if so_far else part
            spec = _spec(so_far, path)
            if spec is None:
                return None
            path = list(spec.submodule_search_locations or ())
        file = spec.origin if spec is not None and spec.has_location else None
    return Path(file) if file and not _is_library(file) and Path(file).is_file() else None


def _spec(full: str, path: list[str] | None) -> ModuleSpec | None:
    return PathFinder.find_spec(full, path) if path is None or path else None
