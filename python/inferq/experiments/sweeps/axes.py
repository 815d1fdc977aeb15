"""The axes of a grid: its points, and how their values are shown."""

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
from inferq.experiments.sweeps.closure_digest import digest_of
from inferq.experiments.sweeps.fingerprint import digest_of_value
from inferq.experiments.sweeps.point import Source
from inferq.results.metric import SUMMARY
from inferq.scenario import ScenarioFile
from inferq.workload.workload import Workload

Label: TypeAlias = bool | int | float | str | None
"""What stands in the frame for a value of the grid."""

OWN_COLUMNS = ("seed", "status", "error", *SUMMARY, "findings", "fingerprint")
"""Of the frame of a sweep and of its file, beside those of the grid."""


_SHOWN = 8
"""So many digits of a digest tell two values apart."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A name of the grid, its values, and what stands for them in the frame."""

    name: str
    values: tuple[Any, ...]
    labels: tuple[Label, ...]
    kind: str
    """`truth`, `whole`, `number` or `text`: what the column holds."""

    @classmethod
    def of(cls, name: str, values: object) -> Axis:
        """The axis that a keyword of `sweep` names.

        Raises:
            ConfigError: a name that is a column already, no values, or values that cannot be told apart.
        """
        if name in OWN_COLUMNS:
            raise ConfigError(name, "is a column of the result already; call it something else")
        if isinstance(values, (str, bytes, Mapping, set, frozenset)) or not isinstance(values, Iterable):
            raise ConfigError(name, f"must be a list of values such as [1, 2], is {values!r}")
        plain = tuple(_plain(value) for value in values)
        if not plain:
            raise ConfigError(name, "has no values")
        kind = _kind(plain)
        labels = _apart(name, plain, tuple(_label(name, value, kind) for value in plain))
        seen: set[Label] = set()
        for label in labels:
            if label in seen:
                raise ConfigError(name, f"two values are {label!r}")
            seen.add(label)
        return cls(name, plain, labels, kind)

    def digests(self, source: Source) -> dict[Label, str]:
        """By label, for values of which the frame does not show all, what they are."""
        digests = {
            label: digest_of_value(source, self.name, value)
            for label, value in zip(self.labels, self.values, strict=True)
        }
        return {label: digest for label, digest in digests.items() if digest is not None}


def _plain(value: Any) -> Any:
    """A number of numpy as one of Python; anything else as it is."""
    return (
        value.item() if type(value).__module__ == "numpy" and getattr(value, "shape", None) == () else value
    )


def _kind(values: Iterable[object]) -> str:
    """What a column of these values holds, as `Axis.kind` says."""
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
    """What stands in a column of that kind for a value."""
    if value is None or isinstance(value, str):
        return value
    if kind == "truth":
        return bool(value)
    if kind == "whole":
        return int(value)  # type: ignore[call-overload,no-any-return]  # its kind says so
    if kind == "number":
        try:
            number = float(value)  # type: ignore[arg-type]  # its kind says so
        except OverflowError:
            raise ConfigError(name, f"{value!r} is too large for a number") from None
        if math.isnan(number):
            raise ConfigError(name, "a value is NaN")
        return number
    text = repr(value)
    if isinstance(value, Workload) and not value.is_synthetic:
        text = f"{text} {value.sha256()[:_SHOWN]}"  # others may have its size and rate
    if " at 0x" in text:
        raise ConfigError(
            name,
            f"{text} has no lasting name to stand in the frame; "
            "name the choices by texts and look them up in the scenario",
        )
    return text


def _apart(name: str, values: tuple[Any, ...], labels: tuple[Label, ...]) -> tuple[Label, ...]:
    """The labels, with a digest where values that differ are shown alike."""
    shared = {label for label, count in Counter(labels).items() if count > 1 and isinstance(label, str)}
    return tuple(
        label
        if label not in shared or isinstance(value, str)
        else f"{label} {digest_of(value, name)[:_SHOWN]}"
        for value, label in zip(values, labels, strict=True)
    )


def dtype(kind: str) -> type[pl.DataType]:
    """The type of a column of that kind."""
    return {"truth": pl.Boolean, "whole": pl.Int64, "number": pl.Float64, "text": pl.String}[kind]


def axes_of(grid: Mapping[str, object], source: Source) -> tuple[Axis, ...]:
    """The axes of a grid, in its order, each of which the scenario knows what to do with.

    Raises:
        ConfigError: a name or a value that is wrong, or that the scenario does not take.
    """
    axes = tuple(Axis.of(name, values) for name, values in grid.items())
    if isinstance(source, ScenarioFile):
        run = source.tables.get("run", {})
        if "out" in run or any(axis.name == "run.out" for axis in axes):
            check_options({"out": None}, field="run.")
        for axis in axes:
            if axis.name == "run.seed":
                raise ConfigError("run.seed", "name the seeds of a sweep by seeds=[…]")
            source.with_fields({axis.name: axis.values[0]})
        return axes
    try:
        signature = inspect.signature(source)
    except ValueError:  # some functions of extension modules do not tell
        return axes
    try:
        signature.bind(**{axis.name: axis.values[0] for axis in axes})
    except TypeError as error:
        named = ", ".join(axis.name for axis in axes) or "no names"
        raise ConfigError("scenario", f"takes {signature}, and the grid has {named}: {error}") from None
    return axes


PointKey: TypeAlias = tuple[tuple[Label, ...], int]
"""The labels of a point and its seed."""


def keys(axes: Collection[Axis], seeds: tuple[int, ...]) -> Iterator[PointKey]:
    """Every point with every seed: the last axis faster than the one before, the seeds fastest."""
    return itertools.product(itertools.product(*(axis.labels for axis in axes)), seeds)


def points(axes: Collection[Axis], seeds: tuple[int, ...]) -> Iterator[tuple[dict[str, Any], int]]:
    """The values and the seed of each point, in the order of `keys`."""
    names = [axis.name for axis in axes]
    for values, seed in itertools.product(itertools.product(*(axis.values for axis in axes)), seeds):
        yield dict(zip(names, values, strict=True)), seed
