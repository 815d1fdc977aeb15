"""Prices: revenue per token, and cost and power of GPUs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from inferq.checks import not_negative
from inferq.description import Description, Table, fields_of, read_fields
from inferq.errors import ConfigError
from inferq.inputs import parsed_toml, path_of, read_text
from inferq.timing.hardware.catalog import gpu_name

_OF_GPUS = ("gpu_hour", "busy_watts", "idle_watts", "currency", "card")


@dataclass(frozen=True, kw_only=True, slots=True)
class Prices(Description):
    """Revenue per token, in any currency, and cost and power of GPUs.

    Under the *bundled* scheme a request pays `prefill`·P + `decode`·D when it finishes; under the *separate*
    scheme it pays the first part at the end of its prefill, the second at the end of its decode. Token prices
    are exact decimals with up to 18 places, and revenue is an exact sum.

    The user supplies GPU prices: none is shipped. Default for watts: the values of `timing.known_gpus()`, if
    they have a source.

    Source: lin2026 (21) to (23), c_p = `prefill`, c_d = `decode`.

    Args:
        prefill: price of a prompt token, from 0 to 1,000,000.
        decode: price of an output token, from 0 to 1,000,000.
        gpu_hour: price of a GPU hour by GPU name, 0 or above.
        busy_watts: power of a busy GPU by GPU name.
        idle_watts: power of an idle GPU by GPU name.
        currency: unit of the prices, appended to them.
        card: GPU name for engines without one, with one GPU per replica. Default: such an engine is an error.

    Raises:
        ConfigError: a negative or infinite price or power; a token price outside its range in a
            `GateAndRoute`, which accepts token prices only.

    Example:
        >>> import inferq as iq
        >>> iq.Prices(prefill=0.1, decode=0.2).decode
        0.2
        >>> iq.Prices(gpu_hour={"h100-80gb": 2.5}, currency="USD").of_gpu("h100-80gb")
        2.5
    """

    prefill: float = 0
    decode: float = 0
    gpu_hour: Mapping[str, float] = field(default_factory=dict)
    busy_watts: Mapping[str, float] = field(default_factory=dict)
    idle_watts: Mapping[str, float] = field(default_factory=dict)
    currency: str = ""
    card: str = ""

    def __post_init__(self) -> None:
        """Check prices and power of GPUs."""
        Description.__post_init__(self)
        for name in ("gpu_hour", "busy_watts", "idle_watts"):
            numbers: dict[str, float] = {}
            for card, number in getattr(self, name).items():
                if gpu_name(card) in numbers:
                    raise ConfigError(f"{name}.{card}", f"{gpu_name(card)} has a value already; set one")
                numbers[gpu_name(card)] = not_negative(f"{name}.{card}", number)
            object.__setattr__(self, name, Table(numbers))
        object.__setattr__(self, "card", gpu_name(self.card))

    @classmethod
    def read(cls, file: str | os.PathLike[str]) -> Prices:
        """Read prices from a TOML file with the fields of this class.

        ```toml
        currency = "USD"
        [gpu_hour]
        h100-80gb = 2.5
        [idle_watts]
        h100-80gb = 75
        ```

        Raises:
            ConfigError: not TOML, an unknown field, an invalid number; it names the file and the field.
            OSError: the file cannot be read.
        """
        path = path_of("prices", file, ".toml file")
        refuse = partial(ConfigError, str(path))
        return read_fields(str(path), parsed_toml(read_text(path, refuse), refuse), cls)

    @classmethod
    def of(cls, prices: Prices | str | os.PathLike[str] | None) -> Prices | None:
        """Return prices that are given as an object, as the path of a file, or as None.

        Raises:
            ConfigError: another type, or as for `read`.
        """
        if prices is None or isinstance(prices, Prices):
            return prices
        if isinstance(prices, (str, os.PathLike)):
            return cls.read(prices)
        raise ConfigError("prices", f"must be Prices(…) or the path of a TOML file, got {prices!r}")

    @property
    def sells(self) -> bool:
        """Whether a token has a price."""
        return bool(self.prefill or self.decode)

    def of_gpu(self, card: str) -> float:
        """Return the price of a GPU hour.

        Raises:
            ConfigError: the GPU has no price; it names the GPU.
        """
        if (card := gpu_name(card)) not in self.gpu_hour:
            known = ", ".join(self.gpu_hour) or "none"
            raise ConfigError(
                f"prices.gpu_hour.{card}", f"missing: no price for this GPU; known names: {known}"
            )
        return self.gpu_hour[card]

    def to_json(self) -> dict[str, Any]:
        """Return the prices as JSON-ready values, without empty fields of GPUs."""
        return {name: value for name, value in fields_of(self).items() if value or name not in _OF_GPUS}
