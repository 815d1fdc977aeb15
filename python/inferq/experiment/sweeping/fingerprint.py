"""Is this the scenario that the points of a file were computed for?"""

from __future__ import annotations

import functools
import hashlib
import inspect
import io
import json
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from inferq.columns import as_frame
from inferq.experiment.sweeping.point import Source
from inferq.scenario import ScenarioFile
from inferq.workload import Workload

_DIGITS = 16
_FILES = ("trace", "tokenizer")
"""Fields of a scenario that name a file."""


def fingerprint(source: Source, slo: Mapping[str, float | None] | None) -> str:
    """What decides about the numbers of a point beside the point: version, scenario, objectives.

    Of a file that is what its tables say, and the content of the traces that they name. Of a function it is
    its source, and what it uses by name from around it: values, workloads, and the functions and classes of
    the user with what they use. What it reads from files or asks of an object is not seen.
    """
    if isinstance(source, ScenarioFile):
        told = [json.dumps(source.tables, sort_keys=True, default=str)]
        told += [_content(source.directory / name) for name in _named(source.tables)]
        what = f"TOML {_digest(told)}"
    else:
        name = getattr(_inner(source), "__qualname__", type(source).__name__)
        what = f"{name} {_digest(_told(source, set()))}"
    objectives = json.dumps(dict(sorted((slo or {}).items())))
    return f"inferq {version('inferq')}, {what}, slo {objectives}"


def _digest(texts: list[str] | Iterator[str]) -> str:
    summed = hashlib.sha256()
    for text in texts:
        summed.update(text.encode())
        summed.update(b"\0")
    return summed.hexdigest()[:_DIGITS]


def _named(tables: object) -> Iterator[str]:
    """The files that the tables of a scenario name."""
    if isinstance(tables, Mapping):
        for name, value in tables.items():
            if name in _FILES and isinstance(value, str):
                yield value
            else:
                yield from _named(value)
    elif isinstance(tables, list):
        for value in tables:
            yield from _named(value)


def _content(file: Path) -> str:
    """A digest of a file; one that is missing is for the points to complain about."""
    if not file.is_file():
        return "missing"
    summed = hashlib.sha256()
    with file.open("rb") as opened:
        while block := opened.read(1 << 20):
            summed.update(block)
    return summed.hexdigest()


def _inner(function: object) -> object:
    """What a partial is a part of."""
    return _inner(function.func) if isinstance(function, functools.partial) else function


def _told(value: Any, seen: set[int]) -> Iterator[str]:
    """Texts that change when a value that a function uses does."""
    if id(value) in seen:
        return
    if isinstance(value, functools.partial):
        yield from _told(value.func, seen)
        yield from _told((value.args, value.keywords), seen)
    elif inspect.ismethod(value):
        yield from _told(value.__func__, seen)
        yield from _told(getattr(value.__self__, "__dict__", value.__self__), seen)
    elif isinstance(value, FunctionType):
        seen.add(id(value))
        yield f"{value.__module__}.{value.__qualname__}"
        if _is_own(value):
            yield from _told_function(value, seen)
    elif isinstance(value, type):
        seen.add(id(value))
        yield f"{value.__module__}.{value.__qualname__}"
        if _is_own(value):
            yield _source(value) or ""
            for part in vars(value).values():
                yield from _told(part, seen) if isinstance(part, FunctionType) else ()
    elif isinstance(value, ModuleType):
        yield value.__name__
    else:
        yield from _told_value(value, seen)


def _told_value(value: Any, seen: set[int]) -> Iterator[str]:
    if isinstance(value, Workload):
        yield json.dumps(value.describe_json(), sort_keys=True, default=str)
    elif isinstance(value, Mapping):
        for name, part in value.items():
            yield repr(name)
            yield from _told(part, seen)
    elif isinstance(value, (list, tuple)):
        yield f"{type(value).__name__} {len(value)}"
        for part in value:
            yield from _told(part, seen)
    elif isinstance(value, (set, frozenset)):
        yield from sorted(map(repr, value))
    elif hasattr(value, "columns") and (hasattr(value, "write_ipc") or hasattr(value, "iloc")):
        memory = io.BytesIO()
        as_frame(value).write_ipc(memory)
        yield hashlib.sha256(memory.getvalue()).hexdigest()
    elif hasattr(value, "tobytes") and hasattr(value, "dtype"):
        yield f"{value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    else:
        text = repr(value)
        yield type(value).__qualname__ if " at 0x" in text else text
        if _is_own(type(value)):
            yield from _told(type(value), seen)
        if " at 0x" in text and callable(value):
            yield from _told(getattr(value, "__dict__", {}), seen)


def _told_function(function: FunctionType, seen: set[int]) -> Iterator[str]:
    code = function.__code__
    yield _source(function) or _compiled(code)
    yield from _told((function.__defaults__, function.__kwdefaults__), seen)
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        yield name
        try:
            yield from _told(cell.cell_contents, seen)
        except ValueError:  # not bound yet
            continue
    for name in sorted(_names(code)):
        if name in function.__globals__:
            yield name
            yield from _told(function.__globals__[name], seen)


def _is_own(thing: Any) -> bool:
    """Whether a function or a class is the user's, not of a library."""
    name = thing.__module__ or ""
    if name.partition(".")[0] in (*sys.stdlib_module_names, "inferq") and name != "__main__":
        return False
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return "site-packages" not in Path(file).parts


def _source(thing: Any) -> str | None:
    try:
        return inspect.getsource(thing)
    except (OSError, TypeError):
        return None


def _compiled(code: CodeType) -> str:
    """What stands for the source of a function that has none."""
    parts = [code.co_code.hex(), repr(code.co_names)]
    parts += [_compiled(one) if isinstance(one, CodeType) else repr(one) for one in code.co_consts]
    return " ".join(parts)


def _names(code: CodeType) -> set[str]:
    """The names that code uses, also inside of it."""
    found = set(code.co_names)
    for one in code.co_consts:
        if isinstance(one, CodeType):
            found |= _names(one)
    return found
