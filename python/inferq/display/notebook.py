"""HTML views of objects in notebooks, by class."""

from __future__ import annotations

from functools import singledispatch
from importlib import import_module


@singledispatch
def view(value: object) -> str:
    """The HTML that a notebook shows for a value; each class registers its view."""
    raise TypeError(f"no notebook view of {type(value).__name__}")


class Viewed:
    """A class whose objects a notebook shows as `view` describes them."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        # The views need every class that is shown; they are loaded when a notebook first shows one.
        import_module("inferq.experiments.notebook")
        return view(self)
