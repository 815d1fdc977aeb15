"""The axes of a grid, its points, and the labels of its values."""

from __future__ import annotations

import inspect
import itertools
import math
import numbers
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from inferq._lazy import pl
from inferq.errors import ConfigError
from inferq.experiments.arguments import check_options
from inferq.experiments.sweeps.fingerprint import digest_of, digest_of_value
from inferq.experiments.sweeps.point import Source
from inferq.results.metric import SUMMARY
from inferq.scenario import ScenarioFile
from inferq.workload.workload import Workload

Label: TypeAlias = bool | int | float | str | None
"""The value of a grid in the frame."""

OWN_COLUMNS = ("seed", "status", "error", *SUMMARY, "findings", "fingerprint")
"""Columns of the frame and the file of a sweep, in addition to those of the grid."""


_DIGITS = 8
"""Digits of a digest in a label."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A name of the grid, its values, and their labels in the frame."""

    name: str
    values: tuple[Any, ...]
    labels: tuple[Label, ...]
    kind: str
    """Type of the column: `truth`, `whole`, `number` or `text`."""

    @classmethod
    def of(cls, name: str, values: object) -> Axis:
        """The axis of a keyword of `sweep`.

        Raises:
            ConfigError: the name is a column of the result, or there are no values or duplicates.
        """
        if name in OWN_COLUMNS:
            raise ConfigError(name, "is already a column of the result; choose another name")
        if isinstance(values, (str, bytes, Mapping, set, frozenset)) or not isinstance(values, Iterable):
            raise ConfigError(name, f"must be a list of values such as [1, 2], got {values!r}")
        plain = tuple(_plain(value) for value in values)
        if not plain:
            raise ConfigError(name, "must have at least one value")
        kind = _kind(plain)
        labels = _unique(plain, tuple(_label(name, value, kind) for value in plain))
        seen: set[Label] = set()
        for label in labels:
            if label in seen:
                raise ConfigError(name, f"two values have the same label {label!r}")
            seen.add(label)
        return cls(name, plain, labels, kind)

    def digests(self, source: Source) -> dict[Label, str]:
        """Digests of values whose labels are incomplete, by label."""
        digests = {
            label: digest_of_value(source, self.name, value)
            for label, value in zip(self.labels, self.values, strict=True)
        }
        return {label: digest for label, digest in digests.items() if digest is not None}


def _plain(value: Any) -> Any:
    """Convert numpy numbers to Python; return other values unchanged."""
    return (
        value.item() if type(value).__module__ == "numpy" and getattr(value, "shape", None) == () else value
    )


def _kind(values: Iterable[object]) -> str:
    """The `Axis.kind` of values."""
    present = [value for value in values if value is not None]
    if all(isinstance(value, bool) for value in present):
        return "truth" if present else "text"
    if not any(isinstance(value, bool) for value in present):
        if all(isinstance(value, numbers.Integral) and -(2**63) <= int(value) < 2**63 for value in present):
            return "whole"
        if all(isinstance(value, (int, float)) for value in present):
            return "number"
    return "text"


def _label(name: str, value: object, kind: str) -> Label:
    """The label of a value."""
    if value is None or isinstance(value, str):
        return value
    if kind == "truth":
        return bool(value)
    if kind == "whole":
        return int(value)  # type: ignore[call-overload,no-any-return]  # as its kind implies
    if kind == "number":
        try:
            number = float(value)  # type: ignore[arg-type]  # as its kind implies
        except OverflowError:
            raise ConfigError(name, f"{value!r} is too large for a float") from None
        if math.isnan(number):
            raise ConfigError(name, "must not contain NaN")
        return number
    text = repr(value)
    if isinstance(value, Workload) and not value.is_synthetic:
        text = f"{text} {value.sha256()[:_DIGITS]}"  # its repr has only size and rate
    if " at 0x" in text:
        raise ConfigError(
            name,
            f"{text} has no stable repr; use texts as values and look them up in the scenario function",
        )
    return text


def _unique(values: tuple[Any, ...], labels: tuple[Label, ...]) -> tuple[Label, ...]:
    """The labels, with a digest if several values have the same label."""
    shared = {label for label, count in Counter(labels).items() if count > 1 and isinstance(label, str)}
    return tuple(
        f"{label} {(digest_of(value) or '')[:_DIGITS]}".rstrip()
        if label in shared and not isinstance(value, str)
        else label
        for value, label in zip(values, labels, strict=True)
    )


def dtype(kind: str) -> type[pl.DataType]:
    """The type of a column of that kind."""
    return {"truth": pl.Boolean, "whole": pl.Int64, "number": pl.Float64, "text": pl.String}[kind]


def axes_of(grid: Mapping[str, object], source: Source) -> tuple[Axis, ...]:
    """The axes of a grid, in order, checked against the scenario.

    Raises:
        ConfigError: a name or value is invalid, or not accepted by the scenario.
    """
    axes = tuple(Axis.of(name, values) for name, values in grid.items())
    if isinstance(source, ScenarioFile):
        run = source.tables.get("run", {})
        if "out" in run or any(axis.name == "run.out" for axis in axes):
            check_options({"out": None}, field="run.")
        for axis in axes:
            if axis.name == "run.seed":
                raise ConfigError("run.seed", "is set by the sweep; use seeds=[…]")
            source.with_fields({axis.name: axis.values[0]})
        return axes
    try:
        signature = inspect.signature(source)
    except ValueError:  # some extension functions have no signature
        return axes
    try:
        signature.bind(**{axis.name: axis.values[0] for axis in axes})
    except TypeError as error:
        named = ", ".join(axis.name for axis in axes) or "no names"
        raise ConfigError(
            "scenario", f"has the signature {signature}, but the grid has {named}: {error}"
        ) from None
    return axes


PointKey: TypeAlias = tuple[tuple[Label, ...], int]
"""The labels of a point and its seed."""


def keys(axes: Collection[Axis], seeds: tuple[int, ...]) -> Iterator[PointKey]:
    """All points with all seeds; the last axis varies fastest, seeds even faster."""
    return itertools.product(itertools.product(*(axis.labels for axis in axes)), seeds)


def points(axes: Collection[Axis], seeds: tuple[int, ...]) -> Iterator[tuple[dict[str, Any], int]]:
    """The values and the seed of each point, in the order of `keys`."""
    names = [axis.name for axis in axes]
    for values, seed in itertools.product(itertools.product(*(axis.values for axis in axes)), seeds):
        yield dict(zip(names, values, strict=True)), seed
