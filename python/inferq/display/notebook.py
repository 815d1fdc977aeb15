"""HTML views of objects in notebooks, by class."""

from __future__ import annotations

from functools import singledispatch
from importlib import import_module


@singledispatch
def view(value: object) -> str:
    """The HTML that a notebook shows for a value; each class registers its view."""
    raise TypeError(f"no notebook view of {type(value).__name__}")


class Viewed:
    """A class whose objects have a notebook view."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        # Views import every class that they show, so they are loaded on first use.
        import_module("inferq.experiments.notebook")
        return view(self)
