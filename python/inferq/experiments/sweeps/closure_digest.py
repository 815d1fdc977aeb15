"""Digests of values, functions and classes: they change when what is computed with these may change.

Texts that stay the same from one process to the next as long as what they are told of does.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import inspect
import io
import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from types import BuiltinMethodType, CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, WeakSet, WeakValueDictionary

from inferq.errors import ConfigError
from inferq.experiments.leaves import requests_of
from inferq.experiments.sweeps.user_modules import imports, is_own, told_files
from inferq.workload.columns import as_frame
from inferq.workload.workload import Workload

_DIGITS = 16
_ORDERED = (list, tuple, deque)
_WEAK = (ReferenceType, WeakKeyDictionary, WeakValueDictionary, WeakSet)
"""They hold what others hold, and are used for what is remembered between calls."""
_PLAIN = (type(None), bool, int, float, complex, str, bytes)


def digest_of(value: object, field: str) -> str:
    """A short digest of a value and of what it uses.

    Raises:
        ConfigError: it is nested too deeply to be looked through; `field` names it.
    """
    try:
        return digest(_Teller().told(value))
    except RecursionError:
        raise ConfigError(field, f"{type(value).__name__} is nested too deeply to be compared") from None


def digest(texts: Iterable[str]) -> str:
    """A short digest of texts."""
    summed = hashlib.sha256()
    for text in texts:
        summed.update(text.encode(errors="backslashreplace"))
        summed.update(b"\0")
    return summed.hexdigest()[:_DIGITS]


class _Teller:
    """Tells each object once: where it comes again, only which one it is."""

    def __init__(self, seen: Mapping[int, tuple[int, object]] | None = None) -> None:
        # the objects are held, so that none of them gives its identity to another
        self._seen: dict[int, tuple[int, object]] = dict(seen or {})

    def told(self, value: Any) -> Iterator[str]:
        """Texts that change when a value that a function uses does."""
        if isinstance(value, _PLAIN) and not is_own(type(value)):
            yield repr(value)
            return
        if id(value) in self._seen:
            yield f"number {self._seen[id(value)][0]} again"
            return
        self._seen[id(value)] = (len(self._seen), value)
        if isinstance(value, (functools.partial, functools.partialmethod)):
            yield "partial"
            yield from self.told(value.func)
            yield from self.told((value.args, value.keywords))
        elif inspect.ismethod(value):
            yield from self.told(value.__func__)
            owner = value.__self__
            yield from self.told(owner) if isinstance(owner, type) else self._of_state(owner)
        elif isinstance(value, FunctionType):
            yield f"{value.__module__}.{value.__qualname__}"
            if is_own(value):
                yield from self._of_function(value)
        elif isinstance(value, type):
            yield f"{value.__module__}.{value.__qualname__}"
            if is_own(value):
                yield from self._of_class(value)
        elif isinstance(value, ModuleType):
            yield value.__name__
            if is_own(value):
                yield from told_files(value.__name__)
        elif isinstance(value, (staticmethod, classmethod)):
            yield from self.told(value.__func__)
        elif isinstance(value, property):
            yield from self.told((value.fget, value.fset, value.fdel))
        elif isinstance(value, functools.cached_property):
            yield from self.told(value.func)
        elif isinstance(value, functools.singledispatchmethod):
            yield from self.told(dict(value.dispatcher.registry))
        elif isinstance(value, _WEAK):
            yield type(value).__qualname__
        elif isinstance(value, CodeType):
            yield from self._of_code(value)
        else:
            yield from self._of_value(value)

    def _of_value(self, value: Any) -> Iterator[str]:
        if is_own(type(value)):
            yield from self.told(type(value))
            if isinstance(value, (Mapping, *_ORDERED, set, frozenset)):
                yield from self.told(getattr(value, "__dict__", {}))
        if isinstance(value, _PLAIN):
            kind: Any = next(kind for kind in _PLAIN if isinstance(value, kind))
            yield kind.__repr__(value)
        elif isinstance(value, Workload):
            yield json.dumps(requests_of(value), sort_keys=True, default=str)
        elif isinstance(value, Mapping):
            yield f"{type(value).__qualname__} {len(value)}"
            for name, part in value.items():
                yield from self.told(name)
                yield from self.told(part)
        elif isinstance(value, _ORDERED):
            yield f"{type(value).__qualname__} {len(value)}"
            for part in value:
                yield from self.told(part)
        elif isinstance(value, (set, frozenset)):
            # of no order: each as if it were the first
            yield from sorted(digest(_Teller(self._seen).told(part)) for part in value)
        elif isinstance(value, SimpleNamespace):
            yield from self.told(vars(value))
        elif (hasattr(value, "write_ipc") or hasattr(value, "iloc")) and hasattr(value, "columns"):
            memory = io.BytesIO()
            as_frame(value).write_ipc(memory)
            yield hashlib.sha256(memory.getvalue()).hexdigest()
        elif hasattr(value, "tobytes") and hasattr(value, "dtype"):
            if value.dtype == object:
                yield from self.told(value.tolist())
            else:
                yield f"{value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
        elif isinstance(value, BuiltinMethodType):
            yield f"{value.__module__}.{value.__name__}"
            yield from self.told(value.__self__)
        elif is_own(type(value)) and not _has_own_repr(type(value)):
            yield from self._of_state(value)
        elif dataclasses.is_dataclass(value):
            yield type(value).__qualname__
            yield from self._of_fields(value)
        else:
            text = repr(value)
            yield type(value).__qualname__ if " at 0x" in text else text
            if " at 0x" in text and callable(value):
                yield from self.told(getattr(value, "__dict__", {}))

    def _of_state(self, value: Any) -> Iterator[str]:
        """The class of an object, and what it holds."""
        yield from self.told(type(value))
        if dataclasses.is_dataclass(value):
            yield from self._of_fields(value)
        elif not isinstance(value, enum.Enum):
            text = repr(value)  # by a library: what the object holds beside its attributes
            yield "" if " at 0x" in text else text
        yield from self.told(getattr(value, "__dict__", {}))
        for kind in type(value).__mro__:
            names = vars(kind).get("__slots__", ())
            for given in (names,) if isinstance(names, str) else names:
                is_private = given.startswith("__") and not given.endswith("__")
                name = f"_{kind.__name__.lstrip('_')}{given}" if is_private else given
                if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                    yield name
                    yield from self.told(getattr(value, name))

    def _of_fields(self, value: Any) -> Iterator[str]:
        for field in dataclasses.fields(value):
            yield field.name
            yield from self.told(getattr(value, field.name, None))

    def _of_class(self, kind: type) -> Iterator[str]:
        """Its source, what its bodies use, and the same of the classes of the user that it is made from."""
        yield _source(kind) or ""
        for base in (*kind.__mro__[1:], type(kind)):
            yield from self.told(base)
        for name, part in vars(kind).items():
            if not (name.startswith("__") and name.endswith("__")) or callable(part):
                yield name
                yield from self.told(part)

    def _of_function(self, function: FunctionType) -> Iterator[str]:
        code = function.__code__
        source = _source(code)
        # two lambdas may share a line
        yield from self._of_code(code) if source is None or "<lambda>" in function.__name__ else (source,)
        yield from self.told((function.__defaults__, function.__kwdefaults__))
        yield from self.told({name: part for name, part in vars(function).items() if name != "__wrapped__"})
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            yield name
            try:
                yield from self.told(cell.cell_contents)
            except ValueError:  # not bound yet
                continue
        names, scope = sorted(_names(code)), function.__globals__
        for name in names:
            if name in scope:
                yield name
                yield from self.told(scope[name])
                if isinstance(scope[name], ModuleType) and is_own(scope[name]):
                    yield from self._of_parts(scope[name], names)
        for name in imports(code, scope.get("__package__") or ""):
            yield from told_files(name)

    def _of_parts(self, module: ModuleType, names: Iterable[str]) -> Iterator[str]:
        """What a function may use of a module of the user: its values now, and its parts."""
        for name in names:
            part = vars(module).get(name)
            if isinstance(part, ModuleType) or part is None:
                yield from told_files(f"{module.__name__}.{name}")
            if part is not None:
                yield name
                yield from self.told(part)

    def _of_code(self, code: CodeType) -> Iterator[str]:
        """What stands for the source of a function that has none."""
        yield code.co_code.hex()
        yield repr(code.co_names)
        yield from self.told(code.co_consts)


def _has_own_repr(kind: type) -> bool:
    """Whether the user wrote how objects of a class are shown."""
    if dataclasses.is_dataclass(kind):
        return False
    return is_own(next(one for one in kind.__mro__ if "__repr__" in vars(one)))


def _source(thing: type | CodeType) -> str | None:
    try:
        return inspect.getsource(thing)
    except (OSError, TypeError):
        return None


def _names(code: CodeType) -> set[str]:
    """The names that code uses, also inside of it."""
    names = set(code.co_names)
    for one in code.co_consts:
        if isinstance(one, CodeType):
            names |= _names(one)
    return names
