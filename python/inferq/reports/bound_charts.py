"""How are the bounds of theory told in a table?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferq.reports.document import Grid
from inferq.reports.numbers import number, percent

if TYPE_CHECKING:
    from inferq.theory.bounds.stability import Stability


_HIT_RATES = (
    "Hit rate: the share of the prompt tokens that prefix caches are taken to find, at most where no policy "
    "passes a limit, at least where one is stable below it."
)


def bounds(said: Stability, rate: float | None = None) -> Grid:
    """Every bound with its capacity, the load, and whether its hypotheses are met.

    Args:
        said: of theory.
        rate: at which the loads are, per second; None takes that of `said`.
    """
    at = said.rate if rate is None else rate
    kinds = {"ceiling": "at most", "guarantee": "stable below"}
    cached = any(one.hit_rate is not None for one in said.bounds)
    lines = [
        [
            one.name,
            f"{kinds[one.kind]} {number(one.capacity_per_s)}",
            percent(one.load if rate is None else rate / one.capacity_per_s),
            *([percent(one.hit_rate)] if cached else []),
            "met" if one.applies else "not all met",
        ]
        for one in said.bounds
    ]
    load = "load" if at is None else f"load at {number(at)} per second"
    header = ("limit of theory", "per second", load, *(["hit rate"] if cached else []), "hypotheses")
    note = _HIT_RATES if cached else ""
    return Grid(title="", header=header, lines=lines, texts=2, last_is_text=True, note=note)
