"""Fingerprints of scenarios and grid values, which detect that a file to resume from is out of date."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from types import FunctionType
from typing import Any

from inferq.errors import ConfigError
from inferq.experiments.leaves import requests_of
from inferq.experiments.sweeps.point import Source
from inferq.inputs import sha256_of_file
from inferq.scenario import ScenarioFile
from inferq.timing.hardware.model_shape import is_path
from inferq.workload.workload import Workload

_FILES = ("trace", "tokenizer", "file")
"""Fields of a scenario that name a file; `model` also does if it is a path."""

_VALUES = "; values "
"""Separator between the scenario and the values of a point."""

_DIGITS = 16


def fingerprint(source: Source, slo: Mapping[str, float | None] | None, key: str | None = None) -> str:
    """The version, the scenario and the objectives, which are the same for all points.

    A TOML file counts with its tables, and with the content of the traces, timing tables and models that it
    names. A function counts with `key`. Without a key it must be defined at the top level of a module and
    counts with the source file of that module, in a notebook with its own source.

    Raises:
        ConfigError: the function needs a key.
    """
    if isinstance(source, ScenarioFile):
        scenario = f"TOML {digest(_of_tables(source.tables, source.directory))}"
    elif key is not None:
        scenario = f"key {key}"
    else:
        scenario = f"{_inner(source).__qualname__} {digest(_of_function(source))}"
    objectives = json.dumps(dict(sorted((slo or {}).items())))
    return f"inferq {version('inferq')}, {scenario}, slo {objectives}"


def digest(texts: Iterable[str]) -> str:
    """A short digest of texts."""
    hashed = hashlib.sha256()
    for text in texts:
        hashed.update(text.encode(errors="backslashreplace"))
        hashed.update(b"\0")
    return hashed.hexdigest()[:_DIGITS]


def digest_of_value(source: Source, name: str, value: Any) -> str | None:
    """A digest of what a grid value is beyond its label.

    Args:
        source: the scenario of the sweep.
        name: the name in the grid.
        value: one of its values.

    Returns:
        A digest of the content of a named file, of a workload, of a description, or of the source of a class
        or function. None if the label is complete.
    """
    if isinstance(source, ScenarioFile):
        files = list(_named({name.rpartition(".")[2]: value}))
        return digest(_content(source.directory / file) for file in files) if files else None
    if isinstance(value, (str, os.PathLike)):
        return _of_path(Path(value))
    return digest_of(value)


def digest_of(value: Any) -> str | None:
    """A digest of an object beyond its `repr`. None if there is nothing more to compare."""
    if isinstance(value, Workload):
        return digest([json.dumps(requests_of(value), sort_keys=True, default=str)])
    kind = value if isinstance(value, (type, FunctionType)) else type(value)
    texts = [] if kind.__module__ == "builtins" or kind.__module__.startswith("inferq.") else [_source(kind)]
    if not isinstance(value, type) and hasattr(value, "to_json"):
        with suppress(ConfigError):  # a policy written in Python has no JSON form
            texts.append(json.dumps(value.to_json(), sort_keys=True, default=str))
    return digest(texts) if texts else None


def joined(scenario: str, values: Mapping[str, str]) -> str:
    """The fingerprint of a point: of the scenario, and the digests of its values by name."""
    return scenario + (_VALUES + json.dumps(values, sort_keys=True) if values else "")


def parted(text: str) -> tuple[str, dict[str, str]]:
    """Split the fingerprint of a point into its parts.

    Raises:
        ConfigError: it is not a fingerprint of a point.
    """
    scenario, _, values = text.partition(_VALUES)
    try:
        digests = json.loads(values or "{}")
    except ValueError:
        digests = None
    if not isinstance(digests, dict):
        raise ConfigError("fingerprint", f"is not a fingerprint of a sweep: {text!r}")
    return scenario, digests


def _of_function(function: Any) -> Iterator[str]:
    """The source of a top-level function, and the arguments of a partial.

    Raises:
        ConfigError: another callable, a closure, or arguments without a stable `repr`.
    """
    inner = _inner(function)
    is_top_level = isinstance(inner, FunctionType) and inner.__qualname__.isidentifier()
    arguments = repr((function.args, function.keywords)) if isinstance(function, functools.partial) else ""
    source = _source(inner) if is_top_level else ""
    if not source or " at 0x" in arguments:
        name = getattr(inner, "__qualname__", type(inner).__name__)
        raise ConfigError(
            "resume",
            f"cannot detect changes of {name}: only functions at the top level of a module are compared. "
            "Set key='…', and change it whenever the function changes",
        )
    yield source
    yield arguments


def _source(thing: type | FunctionType) -> str:
    """The content of the file that defines a function or class, else its own source, else empty."""
    try:
        file = inspect.getsourcefile(thing)
        if file is not None and Path(file).is_file():
            return sha256_of_file(Path(file))
        return inspect.getsource(thing)
    except (OSError, TypeError):
        return ""


def _of_path(path: Path) -> str | None:
    """A digest of a file, and of the files that a scenario in TOML names."""
    try:
        if not path.is_file():
            return None
    except (OSError, ValueError):  # not a valid file name
        return None
    texts = [_content(path)]
    if path.suffix == ".toml":
        with suppress(ConfigError):  # not a scenario
            texts += _of_tables(ScenarioFile.read(path).tables, path.parent)
    return digest(texts)


def _of_tables(tables: Mapping[str, Any], directory: Path) -> Iterator[str]:
    """The tables of a scenario, and the content of the files that they name."""
    yield json.dumps(tables, sort_keys=True, default=str)
    for name in _named(tables):
        yield _content(directory / name)


def _named(tables: object) -> Iterator[str]:
    """The files that the tables of a scenario name."""
    if isinstance(tables, Mapping):
        for name, value in tables.items():
            if name in _FILES and isinstance(value, str):
                yield value
            elif name == "model" and isinstance(value, str) and is_path(value):
                yield value if value.endswith(".json") else f"{value}/config.json"  # without weights
            else:
                yield from _named(value)
    elif isinstance(tables, list):
        for value in tables:
            yield from _named(value)


def _content(path: Path) -> str:
    """A digest of a file or a directory. Points report missing files themselves."""
    if path.is_dir():
        files = (file for file in sorted(path.rglob("*")) if file.is_file())
        return digest(text for file in files for text in (file.relative_to(path).as_posix(), _content(file)))
    return sha256_of_file(path) if path.is_file() else "missing"


def _inner(function: Any) -> Any:
    """The function of a partial."""
    return _inner(function.func) if isinstance(function, functools.partial) else function
