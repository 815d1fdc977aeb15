"""What does each constraint of a plan cost, and why may there be no plan?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from inferq.theory.bounds.hypothesis import number
from inferq.theory.gate_and_route.division import Held, spread
from inferq.theory.gate_and_route.steady_state import Optimum, Program

_DUST = 1e-9
"""A share of a bound below which what is left of it counts as nothing."""
_ROUNDING = 1e-12
"""A share of what one class can pay below which a price counts as nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShadowPrice:
    """What a constraint of the program costs."""

    constraint: str
    """`"prefill slots"`, `"mixed slots"`, `"solo slots"`, `"arrivals"`, `"decodes"`, `"TPOT limit"`,
    `"prefill fairness"` or `"decode fairness"`."""
    request_class: str | None
    """Of a constraint that each class has."""
    price: float
    """By how much the objective, in money per replica and second, grows for each unit of the bound."""
    unit: str
    slack: float
    """What is left until the constraint binds, in units of the bound; 0 for a balance."""
    binds: bool

    def __str__(self) -> str:
        """One line."""
        worth = f"{number(self.price)} {self.unit}"
        if self.request_class is not None:
            return f"{self.constraint} of {self.request_class!r}: {worth}"
        return f"{self.constraint}: {worth} ({'binds' if self.binds else f'{number(self.slack)} left'})"


def shadow_prices(program: Program, held: Held, tangent: Optimum) -> Iterator[ShadowPrice]:
    """Those of the capacities, of the limits and of each class's balances.

    Args:
        program: what was solved.
        held: the occupancies of the plan.
        tangent: the optimum whose prices hold.
    """
    prefills, slots = math.fsum(held["prefill"]), program.slots

    def limit(kind: str, name: str, unit: str, slack: float, bound: float, by: float = 1.0) -> ShadowPrice:
        return ShadowPrice(
            constraint=name,
            request_class=None,
            price=_clean(max(0.0, tangent.prices[kind, -1]) * by, bound, program),
            unit=f"money/s per {unit}",
            slack=max(0.0, slack),
            binds=slack <= _DUST * bound,
        )

    yield limit("prefill", "prefill slots", "place for a prefill", 1 - prefills, 1)
    beside = (slots - 1) * prefills - math.fsum(held["mixed"])
    yield limit("mixed", "mixed slots", "slot beside a prefill", beside, slots)
    alone = slots * (1 - prefills) - math.fsum(held["solo"])
    yield limit("solo", "solo slots", "slot without a prefill beside it", alone, slots)
    if program.tpot_s is not None:
        # the row is (47) times B − Σx and has η_3 on both sides: one unit of η_3 moves its bound by B − Σx
        left_s = program.tpot_s - program.tpot(prefills)
        yield limit("tpot", "TPOT limit", "second of TPOT", left_s, program.tpot_s, slots - prefills)
    if program.prefill_fairness is not None:
        left = program.prefill_fairness - spread(held["prefill"])
        yield limit("prefill_fairness", "prefill fairness", "prefill of spread", left, 1)
    if program.decode_fairness is not None:
        left = program.decode_fairness - spread(held["solo"])
        yield limit("decode_fairness", "decode fairness", "decode of spread", left, slots)
    for kind, unit in (("arrivals", "arriving request"), ("decodes", "request that comes prefilled")):
        for i, one in enumerate(program.classes):
            yield ShadowPrice(
                constraint=kind,
                request_class=one.name,
                price=_clean(tangent.prices[kind, i], one.rate_per_s, program),
                unit=f"money per {unit}",
                slack=0.0,
                binds=True,
            )


def _clean(price: float, bound: float, program: Program) -> float:
    """The price, or 0 where the whole bound is worth no more than the solver's rounding."""
    return price if abs(price) * bound > _ROUNDING * program.money else 0.0


def infeasible(program: Program, share: float | None) -> str:
    """Why no state satisfies the constraints.

    Args:
        program: that has no state.
        share: the largest share of all rates for which it has one; None if none.
    """
    if share is None:
        return (
            f"no Σx that requests can bring about meets the TPOT limit of {number(program.tpot_s)} s: (47) "
            f"is {number(program.tpot(0.0))} s at Σx = 0 and {number(program.tpot(1.0))} s at Σx = 1"
        )
    patient = ", ".join(repr(one.name) for one in program.classes if not one.abandonment_per_s)
    return (
        f"of {patient} nobody gives up, so that all must be served, which is possible up to {number(share)} "
        "times the rates"
    )
