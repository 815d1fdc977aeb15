"""How does a description become the JSON that the core reads, and come back from it?"""

from __future__ import annotations

import dataclasses
import json
import numbers
import re
import sys
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from inferq import _core
from inferq.columns import nearest as nearest
from inferq.errors import ConfigError


class Description:
    """Plain values that name a part of an engine, checked by the core when they are made."""

    __slots__ = ()
    part: ClassVar[str | None] = None
    """What the core calls this description; None for one that it reads only inside another."""
    parts: ClassVar[Mapping[str, tuple[type[Any], ...]]] = {}
    """Fields that are descriptions themselves, with the classes that may stand there."""

    def __post_init__(self) -> None:
        """Turn every field into the type that it names, then let the core judge the whole."""
        for name, hint in hints(type(self)).items():
            value = getattr(self, name)
            if name in self.parts:
                member(name, value, self.parts[name])
            else:
                object.__setattr__(self, name, plain(name, value, hint))
        if self.part is not None:
            _core.check(self.part, json.dumps(self.describe()))

    def describe(self) -> dict[str, Any]:
        """The description as JSON-ready values, with its `kind`."""
        return {"kind": type(self).__name__, **fields_of(self)}


D = TypeVar("D", bound=Description)


def field_names(kind: type[Description]) -> list[str]:
    """The fields of a class of descriptions, in order."""
    return [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]  # all are dataclasses


def fields_of(description: Description) -> dict[str, Any]:
    """The fields of a description as JSON-ready values, without its `kind`."""
    values = {name: getattr(description, name) for name in field_names(type(description))}
    return {name: value.describe() if name in description.parts else value for name, value in values.items()}


def hints(kind: type[Any]) -> dict[str, Any]:
    """The fields of a class of descriptions with their types."""
    resolved = get_type_hints(kind)
    return {name: resolved[name] for name in field_names(kind)}


def plain(path: str, value: object, hint: Any) -> object:
    """`value` as the type that a field's `hint` names, numpy scalars too; or an error at `path`."""
    options = get_args(hint) if isinstance(hint, UnionType) or get_origin(hint) is Union else (hint,)
    number: Any = None if isinstance(value, bool) else value
    wanted = []
    for option in options:
        if option is NoneType:
            if value is None:
                return None
            wanted.append("None")
        elif get_origin(option) is Literal:
            names = get_args(option)
            if isinstance(value, str) and value in names:
                return value
            wanted += [repr(name) for name in names]
        elif option is bool:
            if isinstance(value, bool):
                return value
            wanted.append("True or False")
        elif option is int:
            if isinstance(number, numbers.Integral) and 0 <= int(number) < 2**63:
                return int(number)
            wanted.append("a whole number, 0 or above")
        else:
            if isinstance(number, numbers.Real):
                amount = int(number) if isinstance(number, numbers.Integral) else float(number)
                if abs(amount) <= sys.float_info.max:
                    return amount
            wanted.append("a finite number")
    raise ConfigError(f"{path}: must be {' or '.join(wanted)}, is {value!r}")


def member(path: str, value: object, kinds: tuple[type[Any], ...]) -> None:
    """Refuse a `value` that is none of `kinds`."""
    if not isinstance(value, kinds):
        raise ConfigError(f"{path}: {value!r} is none of {', '.join(kind.__name__ for kind in kinds)}")


def read(path: str, description: object, kinds: tuple[type[D], ...]) -> D:
    """The member of `kinds` that `description` names, the inverse of `describe()`."""
    if not isinstance(description, Mapping):
        raise ConfigError(f"{path}: {description!r} is not a table with a 'kind'")
    names = [kind.__name__ for kind in kinds]
    if "kind" not in description:
        raise ConfigError(f"{path}.kind: missing (known: {', '.join(names)})")
    name = description["kind"]
    if name not in names:
        raise ConfigError(f"{path}.kind: unknown kind {name!r}{nearest(str(name), names)}")
    return read_fields(path, {k: v for k, v in description.items() if k != "kind"}, kinds[names.index(name)])


def read_fields(path: str, description: object, kind: type[D]) -> D:
    """The description of class `kind` with the given fields, descriptions among them read too."""
    if not isinstance(description, Mapping):
        raise ConfigError(f"{path}: {description!r} is not a table of fields")
    names = field_names(kind)
    for key in description:
        if key not in names:
            known = nearest(str(key), names) if names else "; it has none"
            raise ConfigError(f"{path}: unknown field {key!r}{known}")
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and field.name not in description:
            raise ConfigError(f"{path}.{field.name}: missing")
    values = dict(description)
    for name in kind.parts.keys() & values.keys():
        values[name] = read_part(f"{path}.{name}", values[name], kind.parts[name])
    try:
        return kind(**values)
    except ConfigError as error:
        at_field = re.match(r"\w*", str(error)).group() in names  # type: ignore[union-attr]  # it always matches
        raise ConfigError(f"{path}{'.' if at_field else ': '}{error}") from None


def read_part(path: str, description: object, kinds: tuple[type[D], ...]) -> D:
    """A description inside another; where only one class may stand, no `kind` is asked."""
    return read_fields(path, description, kinds[0]) if len(kinds) == 1 else read(path, description, kinds)
