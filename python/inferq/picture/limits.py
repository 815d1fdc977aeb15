"""How are the bounds of theory told in a table?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferq.picture.document import Grid
from inferq.picture.numbers import number, percent

if TYPE_CHECKING:
    from inferq.theory.verdict import Stability


def bounds(said: Stability) -> Grid:
    """Every bound with its capacity, the load, and whether its hypotheses are met."""
    kinds = {"ceiling": "at most", "guarantee": "stable below"}
    lines = [
        [
            one.name,
            f"{kinds[one.kind]} {number(one.capacity_per_s)}",
            percent(one.load),
            "met" if one.applies else "not all met",
        ]
        for one in said.bounds
    ]
    header = ("limit of theory", "per second", "load", "hypotheses")
    return Grid(title="", header=header, lines=lines, texts=2, last_is_text=True)
