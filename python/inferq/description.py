"""Descriptions: plain values, checked on construction, with a JSON form."""

from __future__ import annotations

import dataclasses
import inspect
import json
import numbers
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
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
from inferq.checks import nearest
from inferq.elsewhere import names_of_other_tools
from inferq.errors import ConfigError


class Answer(NamedTuple):
    """Whether a property of a description holds (None if unknown), and why."""

    holds: bool | None
    why: str


class Description:
    """Plain values that describe a part of a system; the core checks them on construction."""

    __slots__ = ()

    part: ClassVar[str | None] = None
    """The core's name of this description. None: the core reads it only as part of another description."""
    parts: ClassVar[Mapping[str, tuple[type[Any] | str, ...]]] = {}
    """The classes that a field accepts, for fields whose type is a family of descriptions.

    `"module:FAMILY"` names a family of a package that depends on this description.
    """
    unreadable: ClassVar[tuple[str, str] | None] = None
    """The placeholder for a value that JSON cannot represent, with the reason; None if there is none."""
    read_arguments: ClassVar[Mapping[str, Any]] = {}
    """Arguments of the constructor, other than fields, that are passed when a description is read."""

    def __init_subclass__(cls) -> None:
        """Make parameter names of vLLM and SGLang raise an error with ours.

        `dataclass(slots=True)` creates the class a second time, which then has an `__init__`.
        """
        super().__init_subclass__()
        if "__init__" in vars(cls):
            cls.__init__ = names_of_other_tools(cls.__init__)  # type: ignore[method-assign]

    def __post_init__(self) -> None:
        """Convert every field to its declared type, then let the core check the description."""
        for name, options in alternatives(type(self)).items():
            object.__setattr__(self, name, plain(name, getattr(self, name), options))
        if self.part is not None:
            _core.check(self.part, json.dumps(self.to_json()))

    def to_json(self) -> dict[str, Any]:
        """Return the description as JSON-ready values, with its `kind`."""
        return {"kind": type(self).__name__, **fields_of(self)}

    @classmethod
    def written_fields(cls) -> list[str]:
        """The fields that a user writes, in order."""
        return field_names(cls)

    @classmethod
    def from_text(cls, text: str) -> Description | None:
        """The description for which `text` is a short form; None if there is none."""
        return None

    @classmethod
    def from_elsewhere(cls, path: str, description: Mapping[str, Any]) -> Description | None:
        """The description that a file, a GPU or a server defines; None if the fields are given."""
        return None


D = TypeVar("D", bound=Description)


class Table(Mapping[str, Any]):
    """An immutable, hashable mapping with text keys.

    Keys are sorted, so that equal tables have the same JSON. With `as_given`, they keep their order.
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

    Fields that equality ignores record where the description comes from and are left out.
    """
    return [field.name for field in dataclasses.fields(kind) if field.compare]  # type: ignore[arg-type]  # all are dataclasses


def fields_of(description: Description) -> dict[str, Any]:
    """Return the fields of a description as JSON-ready values, without its `kind`."""
    return {name: _json(getattr(description, name)) for name in field_names(type(description))}


def _json(value: object) -> object:
    if isinstance(value, Description):
        return value.to_json()
    if isinstance(value, Table):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value


def nested(description: Description, kind: type[D]) -> Iterator[D]:
    """The descriptions of class `kind` in the fields of `description`, at any depth."""
    for name in field_names(type(description)):
        value = getattr(description, name)
        if isinstance(value, kind):
            yield value
        elif isinstance(value, Description):
            yield from nested(value, kind)


_ALTERNATIVES: dict[type[Any], dict[str, tuple[Any, ...]]] = {}


def alternatives(kind: type[Description]) -> dict[str, tuple[Any, ...]]:
    """The types that each field of a class of descriptions accepts; a family is listed by its classes."""
    if kind not in _ALTERNATIVES:
        _ALTERNATIVES[kind] = _resolved(kind)
    return _ALTERNATIVES[kind]


def _hints(kind: type, names: Collection[str]) -> dict[str, Any]:
    """The types of the named fields only: Python 3.10 cannot resolve an `InitVar` among them."""
    resolved: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        own = {name: hint for name, hint in inspect.get_annotations(base).items() if name in names}
        module = vars(sys.modules[base.__module__])
        resolved |= get_type_hints(SimpleNamespace(__annotations__=own), module)
    return {name: resolved[name] for name in names}


def _resolved(kind: type[Description]) -> dict[str, tuple[Any, ...]]:
    accepted = {}
    for name, hint in _hints(kind, field_names(kind)).items():
        options = get_args(hint) if isinstance(hint, UnionType) or get_origin(hint) is Union else (hint,)
        accepted[name] = tuple(_expanded(kind.parts.get(name, options)))
    return accepted


def _expanded(options: tuple[Any, ...]) -> Iterator[Any]:
    """The options, with `"module:FAMILY"` replaced by the classes of that family."""
    for option in options:
        if isinstance(option, str):
            module, _, family = option.partition(":")
            yield from getattr(import_module(module), family)
        else:
            yield option


def _descriptions(options: tuple[Any, ...]) -> tuple[type[Description], ...]:
    """The readable classes of descriptions among the types of a field."""
    return tuple(option for option in options if get_origin(option) is None and _is_readable(option))


def _is_readable(kind: type) -> bool:
    return issubclass(kind, Description) and dataclasses.is_dataclass(kind)


_REFUSED = object()


def plain(path: str, value: object, options: tuple[Any, ...]) -> object:
    """Convert `value` to the first type of `options` that accepts it; numpy scalars are accepted.

    Raises:
        ConfigError: no type accepts the value.
    """
    for option in options:
        converted = _converted(path, value, option)
        if converted is not _REFUSED:
            return converted
    expected = [_expected(option) for option in options]
    raise ConfigError(path, f"must be {' or '.join(expected)}, got {value!r}{_call_hint(value)}")


def _call_hint(value: object) -> str:
    """The hint for a class where an instance is expected."""
    return f"; create one with {value.__name__}(…)" if isinstance(value, type) else ""


def _converted(path: str, value: object, option: Any) -> object:
    """`value` as the type `option`, or `_REFUSED`; a wrong entry raises an error with its own path."""
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
                raise ConfigError(path, f"keys must be strings, got {key!r}")
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
    int: "a non-negative integer",
    float: "a finite number",
    str: "a string",
}
_PLURAL = {int: "non-negative integers", float: "finite numbers", str: "strings"}


def _expected(option: Any) -> str:
    """The name of a type in an error message."""
    origin, inner = get_origin(option), get_args(option)
    if origin is Literal:
        return " or ".join(repr(name) for name in inner)
    if origin is Callable:
        return "a function"
    if origin is Sequence:
        return f"a list of {_PLURAL.get(inner[0], _expected(inner[0]))}"
    if origin is Mapping:
        return f"a table of {_PLURAL[inner[1]]} by name"
    return _SINGULAR.get(option, f"{option.__name__}(…)")


def member(path: str, value: object, kinds: tuple[type[Any], ...]) -> None:
    """Raise `ConfigError` unless `value` is an instance of one of `kinds`."""
    if not isinstance(value, kinds):
        *others, last = (kind.__name__ for kind in kinds)
        expected = f"{', '.join(others)} or {last}" if others else last
        raise ConfigError(path, f"must be an instance of {expected}, got {value!r}{_call_hint(value)}")


def plain_name(text: str) -> str:
    """A name in lower case without hyphens and underscores: `vllm-v1` and `VllmV1` are the same."""
    return text.strip().lower().replace("-", "").replace("_", "")


def spelled(name: object, names: Iterable[str]) -> str | None:
    """The member of `names` that equals `name` in any spelling; None if there is none."""
    return next((known for known in names if plain_name(known) == plain_name(str(name))), None)


def kind_of(name: object, kinds: tuple[type[D], ...]) -> type[D] | None:
    """The class with that name, in any spelling; None if there is none."""
    by_name = {kind.__name__: kind for kind in kinds}
    return by_name.get(spelled(name, by_name) or "")


def read(path: str, description: object, kinds: tuple[type[D], ...]) -> D:
    """Read a description of one of `kinds` from a table with a `kind` or from a name; inverts `to_json()`."""
    table = {"kind": description} if isinstance(description, str) else description
    if not isinstance(table, Mapping):
        raise ConfigError(path, f"must be a table with a 'kind', got {description!r}")
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
    """Read a description of class `kind` from its fields, nested descriptions included."""
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
        return kind(**values, **kind.read_arguments)
    except ConfigError as error:
        raise error.within(path) from None


def fields_in(
    path: str,
    description: object,
    names: Sequence[str],
    required: Sequence[str] = (),
    kind: str | None = None,
) -> Mapping[str, Any]:
    """The fields of a table that describes a `kind`; unknown and missing fields raise `ConfigError`."""
    if not isinstance(description, Mapping):
        raise ConfigError(path, f"must be a table of fields, got {description!r}")
    if kind is not None and "kind" in description and "kind" not in names and description["kind"] != kind:
        raise ConfigError(f"{path}.kind", f"must be {kind!r}, got {description['kind']!r}")
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
    """A table of a scenario; a key outside `names` (None: any key) or a missing one raises `ConfigError`."""
    if not isinstance(value, Mapping):
        raise ConfigError(path, f"must be a table, got {value!r}")
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
    """Read the value of a field; `kind` may be missing if only one class is accepted."""
    listed = next((get_args(option) for option in options if get_origin(option) is Sequence), ())
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)) and _descriptions(listed):
        return [_read_field(f"{path}[{place}]", entry, listed) for place, entry in enumerate(value)]
    kinds = _descriptions(options)
    _refuse_unreadable(path, value, kinds)
    accepts_text = any(option is str or get_origin(option) is Literal for option in options)
    is_name = isinstance(value, str) and not accepts_text
    if not kinds or not (is_name or isinstance(value, Mapping) or len(kinds) == len(options)):
        return value
    if len(kinds) == 1 and not (isinstance(value, Mapping) and "kind" in value):
        return read_fields(path, value, kinds[0])
    return read(path, value, kinds)


def _refuse_unreadable(path: str, name: object, kinds: tuple[type[Description], ...]) -> None:
    """Raise `ConfigError` for the placeholder of a value that JSON cannot represent."""
    for kind in kinds:
        if kind.unreadable is not None and name == kind.unreadable[0]:
            raise ConfigError(path, kind.unreadable[1])
