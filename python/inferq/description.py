"""Descriptions: plain values that are checked when they are made, written as JSON and read back."""

from __future__ import annotations

import dataclasses
import inspect
import json
import numbers
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import NoneType, SimpleNamespace, UnionType
from typing import (
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from inferq import _core
from inferq.errors import ConfigError, Renamed
from inferq.workload.columns import nearest as nearest


class Answer(NamedTuple):
    """What a description says of itself: whether something holds, None where that is not known, and why."""

    holds: bool | None
    why: str


_INTERNAL = frozenset(
    {
        *("beside", "core_form", "described_inside", "from_elsewhere", "from_text", "name_of_kind", "part"),
        *("parts", "pools", "unreadable", "written_fields"),
    }
)
"""How descriptions are read and written: no names that a user types."""


class _Described(type):
    """What completion offers of a class of descriptions: what a user may ask of it."""

    def __dir__(cls) -> list[str]:
        renamed = {
            name for kind in cls.__mro__ for name, one in vars(kind).items() if isinstance(one, Renamed)
        }
        fields = set(field_names(cast("Any", cls))) if dataclasses.is_dataclass(cls) else set[str]()
        return [
            name
            for name in super().__dir__()
            if name in fields or (name not in _INTERNAL and name not in renamed)
        ]


class Description(metaclass=_Described):
    """Plain values that name a part of an engine, checked by the core when they are made."""

    __slots__ = ()

    def __dir__(self) -> list[str]:
        """What completion offers: as of the class."""
        offered = set(dir(type(self)))
        return [name for name in super().__dir__() if name in offered]

    part: ClassVar[str | None] = None
    """What the core calls this description; None for one that it reads only inside another."""
    parts: ClassVar[Mapping[str, tuple[type[Any], ...]]] = {}
    """For a field whose type is a family of descriptions: the classes of that family."""
    unreadable: ClassVar[tuple[str, str] | None] = None
    """What stands in a description for one that cannot be read back, and why; None where all can."""
    beside: ClassVar[Mapping[str, Any]] = {}
    """Arguments, no fields, with which the class is called when a description is read."""

    describe = Renamed("to_json")
    from_description = Renamed("from_json")

    def __post_init__(self) -> None:
        """Turn every field into a type that it names, then let the core judge the whole."""
        for name, options in alternatives(type(self)).items():
            object.__setattr__(self, name, plain(name, getattr(self, name), options))
        if self.part is not None:
            _core.check(self.part, json.dumps(self.to_json()))

    def to_json(self) -> dict[str, Any]:
        """The description as JSON-ready values, with its `kind`."""
        return {"kind": type(self).__name__, **fields_of(self)}

    @classmethod
    def written_fields(cls) -> list[str]:
        """The fields in which a user writes it, in order."""
        return field_names(cls)

    @classmethod
    def from_text(cls, text: str) -> Description | None:
        """What a text in place of a table of its fields stands for; None where it stands for nothing."""
        return None

    @classmethod
    def from_elsewhere(cls, path: str, description: Mapping[str, Any]) -> Description | None:
        """What a description at `path` that names a place stands for; None where it has the fields."""
        return None


D = TypeVar("D", bound=Description)


class Table(Mapping[str, Any]):
    """A mapping with text keys that cannot be changed, so that a description that holds it has a hash.

    Keys are in sorted order, so that equal tables are described in the same bytes; or, `as_given`, in theirs.
    """

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any], *, as_given: bool = False) -> None:
        self._values = {key: values[key] for key in (values if as_given else sorted(values))}

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(frozenset(self._values.items()))

    def __repr__(self) -> str:
        return repr(self._values)


def field_names(kind: type[Description]) -> list[str]:
    """The fields of a class of descriptions, in order.

    One that does not count in equality says only where the description comes from, and is no part of it.
    """
    return [field.name for field in dataclasses.fields(kind) if field.compare]  # type: ignore[arg-type]  # all are dataclasses


def fields_of(description: Description) -> dict[str, Any]:
    """The fields of a description as JSON-ready values, without its `kind`."""
    return {name: _json(getattr(description, name)) for name in field_names(type(description))}


def _json(value: object) -> object:
    if isinstance(value, Description):
        return value.to_json()
    if isinstance(value, Table):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value


def held(description: Description, kind: type[D]) -> Iterator[D]:
    """The descriptions of class `kind` in the fields of `description`, and in their fields."""
    for name in field_names(type(description)):
        value = getattr(description, name)
        if isinstance(value, kind):
            yield value
        elif isinstance(value, Description):
            yield from held(value, kind)


_ALTERNATIVES: dict[type[Any], dict[str, tuple[Any, ...]]] = {}


def alternatives(kind: type[Description]) -> dict[str, tuple[Any, ...]]:
    """For each field of a class of descriptions the types that may stand there, a family by its classes."""
    if kind not in _ALTERNATIVES:
        _ALTERNATIVES[kind] = _resolved(kind)
    return _ALTERNATIVES[kind]


def _hints(kind: type, names: Collection[str]) -> dict[str, Any]:
    """The types of the named fields alone: Python 3.10 cannot read an `InitVar` that stands beside them."""
    resolved: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        own = {name: hint for name, hint in inspect.get_annotations(base).items() if name in names}
        module = vars(sys.modules[base.__module__])
        resolved |= get_type_hints(SimpleNamespace(__annotations__=own), module)
    return {name: resolved[name] for name in names}


def _resolved(kind: type[Description]) -> dict[str, tuple[Any, ...]]:
    found = {}
    for name, hint in _hints(kind, field_names(kind)).items():
        options = get_args(hint) if isinstance(hint, UnionType) or get_origin(hint) is Union else (hint,)
        found[name] = kind.parts.get(name, options)
    return found


def _descriptions(options: tuple[Any, ...]) -> tuple[type[Description], ...]:
    """The classes of descriptions among the types of a field, as far as they have fields to read."""
    return tuple(one for one in options if get_origin(one) is None and _is_readable(one))


def _is_readable(kind: type) -> bool:
    return issubclass(kind, Description) and dataclasses.is_dataclass(kind)


_REFUSED = object()


def plain(path: str, value: object, options: tuple[Any, ...]) -> object:
    """`value` as the first of the types `options` that it fits, numpy scalars too; or an error at `path`."""
    for option in options:
        taken = _taken(path, value, option)
        if taken is not _REFUSED:
            return taken
    wanted = [_wanted(option) for option in options]
    made = f"; make one: {value.__name__}(…)" if isinstance(value, type) else ""
    raise ConfigError(path, f"must be {' or '.join(wanted)}, is {value!r}{made}")


def _taken(path: str, value: object, option: Any) -> object:
    """`value` as the type `option`, or `_REFUSED`; an entry that does not fit is an error at its own path."""
    origin, inner = get_origin(option), get_args(option)
    number: Any = None if isinstance(value, bool) else value
    if origin is Literal:
        return value if isinstance(value, str) and value in inner else _REFUSED
    if origin is Callable:
        return value if callable(value) else _REFUSED
    if origin is Sequence:
        row = getattr(value, "ndim", None) == 1  # of numpy
        if not (row or isinstance(value, Sequence)) or isinstance(value, (str, bytes)):
            return _REFUSED
        entries: Any = value
        return tuple(plain(f"{path}[{place}]", entry, inner[:1]) for place, entry in enumerate(entries))
    if origin is Mapping:
        if not isinstance(value, Mapping):
            return _REFUSED
        for key in value:
            if not isinstance(key, str):
                raise ConfigError(path, f"the name {key!r} must be a text")
        return Table({str(key): plain(f"{path}.{key}", entry, inner[1:]) for key, entry in value.items()})
    if option is int:
        whole = isinstance(number, numbers.Integral) and 0 <= int(number) < 2**63
        return int(number) if whole else _REFUSED
    if option is float:
        if not isinstance(number, numbers.Real):
            return _REFUSED
        amount = int(number) if isinstance(number, numbers.Integral) else float(number)
        return amount if abs(amount) <= sys.float_info.max else _REFUSED
    if not isinstance(value, option):
        return _REFUSED
    return str(value) if option is str else value


_SINGULAR = {
    NoneType: "None",
    bool: "True or False",
    int: "a whole number, 0 or above",
    float: "a finite number",
    str: "a text",
}
_PLURAL = {int: "whole numbers", float: "finite numbers", str: "texts"}


def _wanted(option: Any) -> str:
    """What the type of a field is called in an error."""
    origin, inner = get_origin(option), get_args(option)
    if origin is Literal:
        return " or ".join(repr(name) for name in inner)
    if origin is Callable:
        return "a function"
    if origin is Sequence:
        return f"a list of {_PLURAL[inner[0]]}"
    if origin is Mapping:
        return f"a table of {_PLURAL[inner[1]]} by name"
    return _SINGULAR.get(option, f"{option.__name__}(…)")


def member(path: str, value: object, kinds: tuple[type[Any], ...]) -> None:
    """Refuse a `value` that is none of `kinds`."""
    if not isinstance(value, kinds):
        names = [kind.__name__ for kind in kinds]
        made = f"; make one: {value.__name__}(…)" if isinstance(value, type) else ""
        wanted = (
            f"is none of {', '.join(names)}" if len(names) > 1 else f"is no {names[0]}; give {names[0]}(…)"
        )
        raise ConfigError(path, f"{value!r} {wanted}{made}")


def plain_name(text: str) -> str:
    """A name without case, hyphens and underscores: `vllm-v1` and `VllmV1` are one."""
    return text.strip().lower().replace("-", "").replace("_", "")


def spelled(name: object, names: Iterable[str]) -> str | None:
    """The one of some names that a text is, in any spelling; None where it is none."""
    return next((one for one in names if plain_name(one) == plain_name(str(name))), None)


def kind_of(name: object, kinds: tuple[type[D], ...]) -> type[D] | None:
    """The class of that name, in any spelling; None where none is called so."""
    by_name = {kind.__name__: kind for kind in kinds}
    return by_name.get(spelled(name, by_name) or "")


def read(path: str, description: object, kinds: tuple[type[D], ...]) -> D:
    """The member of `kinds` that a table with a `kind`, or its name alone, describes: `to_json()` back."""
    table = {"kind": description} if isinstance(description, str) else description
    if not isinstance(table, Mapping):
        raise ConfigError(path, f"{description!r} is not a table with a 'kind'")
    names = [kind.__name__ for kind in kinds]
    if "kind" not in table:
        raise ConfigError(f"{path}.kind", f"missing (known: {', '.join(names)})")
    name = table["kind"]
    _refuse_unreadable(path, name, kinds)
    kind = kind_of(name, kinds)
    if kind is None:
        place, what = (path, kinds[0].part) if table is not description else (f"{path}.kind", "kind")
        raise ConfigError(place, f"unknown {what} {name!r}{nearest(str(name), names)}")
    return read_fields(path, {k: v for k, v in table.items() if k != "kind"}, kind)


def read_fields(path: str, description: object, kind: type[D]) -> D:
    """The description of class `kind` with the given fields, descriptions among them read too."""
    short = kind.from_text(description) if isinstance(description, str) else None
    if short is not None:
        return cast("D", short)
    elsewhere = kind.from_elsewhere(path, description) if isinstance(description, Mapping) else None
    if elsewhere is not None:
        return cast("D", elsewhere)
    required = [
        field.name
        for field in dataclasses.fields(kind)  # type: ignore[arg-type]
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    table = fields_in(path, description, field_names(kind), required, kind.__name__)
    options = alternatives(kind)
    values = {name: _read_field(f"{path}.{name}", value, options[name]) for name, value in table.items()}
    try:
        return kind(**values, **kind.beside)
    except ConfigError as error:
        raise error.within(path) from None


def fields_in(
    path: str,
    description: object,
    names: Sequence[str],
    required: Sequence[str] = (),
    kind: str | None = None,
) -> Mapping[str, Any]:
    """The fields of a table that describes a `kind`, refused where one is unknown or missing."""
    if not isinstance(description, Mapping):
        raise ConfigError(path, f"{description!r} is not a table of fields")
    if kind is not None and "kind" in description and "kind" not in names and description["kind"] != kind:
        raise ConfigError(f"{path}.kind", f"must be {kind!r}, is {description['kind']!r}")
    table = {name: value for name, value in description.items() if name != "kind" or name in names}
    for name in table:
        if name not in names:
            known = nearest(str(name), names) if names else "; it has none"
            raise ConfigError(path, f"unknown field {name!r}{known}")
    for name in required:
        if name not in table:
            raise ConfigError(f"{path}.{name}", "missing")
    return table


def table_of(
    path: str, value: object, names: Iterable[str] | None = None, required: Sequence[str] = ()
) -> Mapping[str, Any]:
    """A table of a scenario, refused where a key is none of `names` (None: any), or one is missing."""
    if not isinstance(value, Mapping):
        raise ConfigError(path, f"must be a table, not {value!r}")
    known = None if names is None else list(names)
    before = f"{path}." if path else ""
    for key in value:
        if known is not None and key not in known:
            raise ConfigError(f"{before}{key}", f"unknown{nearest(str(key), known)}")
    for name in required:
        if name not in value:
            raise ConfigError(f"{before}{name}", "missing")
    return value


def _read_field(path: str, value: object, options: tuple[Any, ...]) -> object:
    """The value of a field, read where it describes something; where one class may, no `kind` is asked."""
    listed = next((get_args(one) for one in options if get_origin(one) is Sequence), ())
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)) and _descriptions(listed):
        return [_read_field(f"{path}[{place}]", one, listed) for place, one in enumerate(value)]
    kinds = _descriptions(options)
    _refuse_unreadable(path, value, kinds)
    is_name = isinstance(value, str) and not any(one is str or get_origin(one) is Literal for one in options)
    if not kinds or not (is_name or isinstance(value, Mapping) or len(kinds) == len(options)):
        return value
    if len(kinds) == 1 and not (isinstance(value, Mapping) and "kind" in value):
        return read_fields(path, value, kinds[0])
    return read(path, value, kinds)


def _refuse_unreadable(path: str, name: object, kinds: tuple[type[Description], ...]) -> None:
    """Refuse the name that stands in a description for what no description can hold."""
    for kind in kinds:
        if kind.unreadable is not None and name == kind.unreadable[0]:
            raise ConfigError(path, kind.unreadable[1])
