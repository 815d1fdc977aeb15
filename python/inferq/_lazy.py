"""numpy and polars, loaded when something of theirs is first used.

They take longer to load than many a command takes to run: looking at help and importing inferq stay light.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["np", "pl"]

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
else:

    class _Module:
        """Stands for a module; every name of it that was used once is kept here."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, name: str) -> Any:
            value = getattr(import_module(self._name), name)
            setattr(self, name, value)
            return value

    np = _Module("numpy")
    pl = _Module("polars")
