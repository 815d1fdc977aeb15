"""Keys: the keys of a `config.json`, with errors that name the file, and a record of the keys read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from inferq.checks import flag, positive, shown, whole
from inferq.errors import ConfigError

_LARGEST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of a decoder in a `config.json`.

    A key with the value null is missing, as in the library transformers.
    """

    where: str
    config: Mapping[str, Any]
    read: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Reject keys that are not a table."""
        if not isinstance(self.config, Mapping):
            raise ConfigError(self.where, f"must be a table, got {shown(self.config)}")

    @property
    def model_type(self) -> str:
        """The type of the decoder."""
        return str(self.config.get("model_type", ""))

    def wrong(self, key: str, problem: str) -> ConfigError:
        """An error at a key."""
        return ConfigError(self.where, f"{key}: {problem}")

    def has(self, key: str) -> bool:
        """Whether a key has a value."""
        self.read.add(key)
        return self.config.get(key) is not None

    def value(self, key: str, default: Any = None) -> Any:
        """The value of a key, of any type."""
        return self.config[key] if self.has(key) else default

    def first(self, *keys: str) -> str | None:
        """The first of several names of a key that has a value."""
        return next((key for key in keys if self.has(key)), None)

    def ignore(self, *keys: str) -> None:
        """Record keys that this model type does not need as read."""
        self.read.update(keys)

    def require(self, *keys: str) -> None:
        """Reject a file that lacks one of the keys.

        Raises:
            ConfigError: all missing keys, with the model type that needs them.
        """
        if missing := [key for key in keys if not self.has(key)]:
            reason = f" (model_type {self.model_type!r} requires these keys)" if self.model_type else ""
            raise ConfigError(self.where, f"missing {', '.join(missing)}{reason}")

    def size(self, key: str, default: int | None = None, least: int = 1) -> int:
        """An integer of at least `least`; a missing key without a default is an error."""
        if default is not None and not self.has(key):
            return default
        self.require(key)
        return whole(f"{self.where}: {key}", self.config[key], least, _LARGEST)

    def sizes(self, key: str, count: int, default: int) -> list[int]:
        """A size per layer, from a list of `count` sizes or from one size for all layers."""
        value = self.value(key, default)
        if isinstance(value, str) or not isinstance(value, Sequence):
            return [whole(f"{self.where}: {key}", value, 0, _LARGEST)] * count
        if len(value) != count:
            raise self.wrong(key, f"must have {count} values, one per layer, got {len(value)}")
        return [whole(f"{self.where}: {key}[{layer}]", size, 0, _LARGEST) for layer, size in enumerate(value)]

    def numbers(self, key: str) -> list[int]:
        """The integers of a list; empty without the key."""
        items = self.items(key)
        return [whole(f"{self.where}: {key}[{place}]", item, 0, _LARGEST) for place, item in enumerate(items)]

    def items(self, key: str) -> Sequence[Any]:
        """The items of a list; empty without the key."""
        items = self.value(key, ())
        if isinstance(items, str) or not isinstance(items, Sequence):
            raise self.wrong(key, f"must be a list, got {shown(items)}")
        return items

    def table(self, key: str) -> Keys:
        """The keys of a table; none without the key."""
        return Keys(f"{self.where}: {key}", self.value(key, {}))

    def number(self, key: str) -> float:
        """A positive number."""
        self.require(key)
        return positive(f"{self.where}: {key}", self.config[key])

    def flag(self, key: str, default: bool = False) -> bool:
        """True or False."""
        return flag(f"{self.where}: {key}", self.config[key]) if self.has(key) else default

    def words(self, key: str, count: int, words: tuple[str, ...]) -> list[str] | None:
        """A word per layer, of `words`; None without the key.

        Raises:
            ConfigError: an unknown word; a list of another length.
        """
        if not self.has(key):
            return None
        value = self.config[key]
        if not isinstance(value, Sequence) or len(value) < count:
            raise self.wrong(key, f"must have {count} values, one per layer, got {shown(value)}")
        for word in value[:count]:
            if word not in words:
                raise self.wrong(key, f"must contain only {', '.join(map(repr, words))}, got {shown(word)}")
        return list(value[:count])
