"""The fingerprint of a scenario: was it this one that the points of a file were computed for?"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from inferq.errors import ConfigError
from inferq.experiments.sweeps.closure_digest import digest, digest_of
from inferq.experiments.sweeps.point import Source
from inferq.inputs import sha256_of_file
from inferq.scenario import ScenarioFile
from inferq.timing.hardware.model_shape import is_path

_FILES = ("trace", "tokenizer", "file")
"""Fields of a scenario that name a file; `model` does where it is a path."""

_VALUES = "; values "
"""What separates the scenario from the values of its point."""


def fingerprint(source: Source, slo: Mapping[str, float | None] | None) -> str:
    """What decides about the numbers of all points beside their values: version, scenario, objectives.

    Of a file that is what its tables say, and the content of the traces, timing tables and models that they
    name. Of a function it is
    its source, and what it uses by name from around it: values, workloads, the functions and classes of the
    user with what they use and are made from, and the files of the modules that it imports.

    Raises:
        ConfigError: what a function uses is nested too deeply.
    """
    if isinstance(source, ScenarioFile):
        what = f"TOML {digest(_of_tables(source.tables, source.directory))}"
    else:
        name = getattr(_inner(source), "__qualname__", type(source).__name__)
        what = f"{name} {digest_of(source, 'scenario')}"
    objectives = json.dumps(dict(sorted((slo or {}).items())))
    return f"inferq {version('inferq')}, {what}, slo {objectives}"


def digest_of_value(source: Source, name: str, value: Any) -> str | None:
    """What decides about the numbers of a point beside what the frame shows of a value of the grid.

    Args:
        source: of the sweep.
        name: of the grid.
        value: one of its values.

    Returns:
        A short digest: of the content of a file that is named, of a workload, of a class with its source.
        None where the value is all there is: a number, a truth, a text that names no file.

    Raises:
        ConfigError: the value is nested too deeply.
    """
    if isinstance(source, ScenarioFile):
        files = list(_named({name.rpartition(".")[2]: value}))
        return digest(_content(source.directory / file) for file in files) if files else None
    if isinstance(value, (str, os.PathLike)):
        return _of_path(Path(value))
    if value is None or isinstance(value, (bool, int, float)):
        return None
    return digest_of(value, name)


def joined(scenario: str, values: Mapping[str, str]) -> str:
    """The fingerprint of a point: that of the scenario, and the digests of its values by their names."""
    return scenario + (_VALUES + json.dumps(values, sort_keys=True) if values else "")


def parted(text: str) -> tuple[str, dict[str, str]]:
    """What `joined` joined.

    Raises:
        ConfigError: it did not make this text.
    """
    scenario, _, values = text.partition(_VALUES)
    try:
        digests = json.loads(values or "{}")
    except ValueError:
        digests = None
    if not isinstance(digests, dict):
        raise ConfigError("fingerprint", f"{text!r} is none of a sweep")
    return scenario, digests


def _of_path(path: Path) -> str | None:
    """A digest of the file that a text names, and of the traces that a scenario in TOML names."""
    try:
        if not path.is_file():
            return None
    except (OSError, ValueError):  # a text that can be no name
        return None
    texts = [_content(path)]
    if path.suffix == ".toml":
        with suppress(ConfigError):  # it is no scenario
            texts += _of_tables(ScenarioFile.read(path).tables, path.parent)
    return digest(texts)


def _of_tables(tables: Mapping[str, Any], directory: Path) -> Iterator[str]:
    """What the tables of a scenario say, and the content of the files that they name."""
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
                yield value if value.endswith(".json") else f"{value}/config.json"  # no weights
            else:
                yield from _named(value)
    elif isinstance(tables, list):
        for value in tables:
            yield from _named(value)


def _content(path: Path) -> str:
    """A digest of a file or a folder; what is missing is for the points to complain about."""
    if path.is_dir():
        return digest(part for one in sorted(path.rglob("*")) if one.is_file() for part in _part(path, one))
    if not path.is_file():
        return "missing"
    return sha256_of_file(path)


def _part(folder: Path, file: Path) -> tuple[str, str]:
    return file.relative_to(folder).as_posix(), _content(file)


def _inner(function: object) -> object:
    """What a partial is a part of."""
    return _inner(function.func) if isinstance(function, functools.partial) else function
