"""Prices: what a token is sold for, and what a GPU costs by the hour and in watts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from inferq.checks import not_negative
from inferq.description import Description, fields_of, read_fields
from inferq.errors import ConfigError
from inferq.inputs import parsed_toml, path_of, read_text

_OF_GPUS = ("gpu_hour", "busy_watts", "idle_watts", "currency", "card")


@dataclass(frozen=True, kw_only=True, slots=True)
class Prices(Description):
    """What a token is sold for, in any currency, and what a GPU costs.

    Under the *bundled* scheme a request pays `prefill`·P + `decode`·D when it is finished; under the
    *separate* scheme it pays the first when its prefill ends, the second when its decode does. Prices of
    tokens are exact decimals with up to 18 places, and revenue is summed in whole numbers.

    What GPUs cost is the user's to say: no price comes with inferq. Watts that are not given are those of
    `timing.known_gpus()`, as far as it has a source for them.

    Source: lin2026 (21) to (23), c_p = `prefill`, c_d = `decode`.

    Args:
        prefill: of a prompt token, from 0 to 1,000,000.
        decode: of an output token, from 0 to 1,000,000.
        gpu_hour: for the name of a card what one of them costs an hour, 0 or above.
        busy_watts: for the name of a card the power of one that computes.
        idle_watts: the same of one that waits.
        currency: what the prices are in, a word or a sign that is put behind them.
        card: the name under which an engine is priced that says no card, as one GPU a replica; empty: that is
            an error.

    Raises:
        ConfigError: a price or a power that is negative or not finite; of a token outside its range once the
            prices are in a `GateAndRoute`, which takes no other prices.

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
        """Check the numbers of GPUs."""
        Description.__post_init__(self)
        for name in ("gpu_hour", "busy_watts", "idle_watts"):
            for card, number in getattr(self, name).items():
                not_negative(f"{name}.{card}", number)

    @classmethod
    def read(cls, file: str | os.PathLike[str]) -> Prices:
        """The prices that a TOML file of the user's own holds, with the fields of this class.

        ```toml
        currency = "USD"
        [gpu_hour]
        h100-80gb = 2.5
        [idle_watts]
        h100-80gb = 75
        ```

        Raises:
            ConfigError: no TOML, an unknown field, a number that cannot be one; it names the file and the
                field.
            OSError: the file cannot be read.
        """
        path = path_of("prices", file, ".toml file")
        refuse = partial(ConfigError, str(path))
        return read_fields(str(path), parsed_toml(read_text(path, refuse), refuse), cls)

    @classmethod
    def of(cls, prices: Prices | str | os.PathLike[str] | None) -> Prices | None:
        """Prices as they are given to a call: themselves, the path of their file, or None.

        Raises:
            ConfigError: something else, or as of `read`.
        """
        if prices is None or isinstance(prices, Prices):
            return prices
        if isinstance(prices, (str, os.PathLike)):
            return cls.read(prices)
        raise ConfigError("prices", f"must be Prices(…) or the path of a TOML file, is {prices!r}")

    @property
    def sells(self) -> bool:
        """Whether a token has a price."""
        return bool(self.prefill or self.decode)

    def of_gpu(self, card: str) -> float:
        """What one GPU of that name costs an hour.

        Raises:
            ConfigError: no price is known for it; it names the card.
        """
        if card not in self.gpu_hour:
            known = ", ".join(self.gpu_hour) or "none"
            raise ConfigError(f"prices.gpu_hour.{card}", f"no price for a card (known are {known})")
        return self.gpu_hour[card]

    def to_json(self) -> dict[str, Any]:
        """The prices as JSON-ready values; those of GPUs where there are any."""
        return {name: one for name, one in fields_of(self).items() if one or name not in _OF_GPUS}
