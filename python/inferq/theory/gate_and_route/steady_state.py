"""The steady state of a fleet with the largest revenue.

The linear program of lin2026 in its own symbols, scaled for HiGHS. Everything is per replica. A state has the
number of requests of each class i in each stage: x_i in prefill, y_m,i in decode next to a prefill, y_s,i in
decode without one, q_p,i and q_d,i waiting for prefill and decode.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Literal

from inferq._lazy import np
from inferq.theory.linear_program import minimize

Scheme = Literal["bundled", "separate"]
Stage = Literal["prefill", "mixed", "solo", "prefill_queue", "decode_queue"]
STAGES: tuple[Stage, ...] = ("prefill", "mixed", "solo", "prefill_queue", "decode_queue")

Key = tuple[str, int]
"""A variable or a constraint: its kind and the index of its class, −1 without a class."""

_TOLERANCE = 1e-10
"""Feasibility tolerance of a scaled constraint, the smallest that HiGHS accepts."""
_DUST = 1e-9
"""Distance below which two values of Σx, or of the scaled objective, count as equal."""
_BEYOND = 1e-6
"""Share by which the range of slopes of a penalty is widened."""


@dataclass(frozen=True, slots=True)
class FleetClass:
    """A class in the program, which needs only means."""

    name: str
    rate_per_s: float
    prompt_tokens: float
    output_tokens: float
    abandonment_per_s: float


@dataclass(frozen=True, slots=True)
class Constraint:
    """A constraint: the sum of `terms` is at most `bound`, or equal to it with `equal`."""

    key: Key
    terms: Mapping[Key, float]
    bound: float
    equal: bool = False


@dataclass(frozen=True, slots=True)
class Optimum:
    """An optimal state with the shadow price of each constraint."""

    values: Mapping[Key, float]
    objective: float
    prices: Mapping[Key, float]
    """The change of the objective per unit of a row's bound."""
    dual: float
    """The sum of bounds times prices: an upper bound of the objective of any state."""


@dataclass(frozen=True, kw_only=True)
class FleetProgram:
    """lin2026 (40) or (42), with the limits (43), (45), (47) and the penalties (44), (46), (48).

    τ = `mixed_s`, 1/γ = `solo_s`, B = `slots`, C = `chunk`, c_p and c_d the prices of a token,
    η_1, η_2, η_3 = `prefill_fairness`, `decode_fairness`, `tpot_s`, η'_1 to η'_3 the penalties.
    """

    classes: tuple[FleetClass, ...]
    mixed_s: float
    solo_s: float
    slots: int
    chunk: int
    prefill_price: float
    decode_price: float
    scheme: Scheme
    decode_queue: bool
    prefill_fairness: float | None
    decode_fairness: float | None
    tpot_s: float | None
    prefill_fairness_penalty: float
    decode_fairness_penalty: float
    tpot_penalty: float

    def prefill_rate(self, i: int) -> float:
        """μ_p,i = C / (P_i τ), prefills per second of a continuous prefill."""
        return self.chunk / (self.classes[i].prompt_tokens * self.mixed_s)

    def mixed_rate(self, i: int) -> float:
        """μ_m,i = 1 / (D_i τ)."""
        return 1 / (self.classes[i].output_tokens * self.mixed_s)

    def solo_rate(self, i: int) -> float:
        """μ_s,i = γ / D_i."""
        return 1 / (self.classes[i].output_tokens * self.solo_s)

    def worth(self, i: int) -> tuple[float, float]:
        """c_p P_i and c_d D_i, the revenue of a request's prompt and output."""
        fleet_class = self.classes[i]
        return self.prefill_price * fleet_class.prompt_tokens, self.decode_price * fleet_class.output_tokens

    def tpot(self, prefills: float) -> float:
        """The left side of (47), in seconds: the mean iteration over all decode slots, used or unused."""
        mixed, solo = (self.slots - 1) * prefills, self.slots * (1 - prefills)
        return (self.mixed_s * mixed + self.solo_s * solo) / (mixed + solo)

    def tpot_slope(self, prefills: float) -> float:
        """Its derivative by Σx, B(B − 1)(τ − 1/γ) / (B − Σx)²: its sign is constant, so (47) is monotone."""
        curved = self.slots * (self.slots - 1) * (self.mixed_s - self.solo_s)
        return curved / (self.slots - prefills) ** 2

    @property
    def has_prefill_spread(self) -> bool:
        """Whether max x_i − min x_i matters."""
        return self.prefill_fairness is not None or self.prefill_fairness_penalty > 0

    @property
    def has_solo_spread(self) -> bool:
        """Whether max y_s,i − min y_s,i matters."""
        return self.decode_fairness is not None or self.decode_fairness_penalty > 0

    @cached_property
    def units(self) -> dict[Key, float]:
        """The largest value of each variable, so that scaled variables are from 0 to 1."""
        largest: dict[Key, float] = {}
        for i, fleet_class in enumerate(self.classes):
            flow = min(fleet_class.rate_per_s, self.prefill_rate(i))
            wait_s = 1 / fleet_class.abandonment_per_s if fleet_class.abandonment_per_s else 0.0
            largest["prefill", i] = flow / self.prefill_rate(i)
            largest["mixed", i] = min(self.slots - 1, flow / self.mixed_rate(i))
            largest["solo", i] = min(self.slots, flow / self.solo_rate(i))
            largest["prefill_queue", i] = fleet_class.rate_per_s * wait_s
            largest["decode_queue", i] = flow * wait_s if self.decode_queue else 0.0
        if self.has_prefill_spread:
            largest |= {("most_prefill", -1): 1.0, ("least_prefill", -1): 1.0}
        if self.has_solo_spread:
            largest |= {("most_solo", -1): float(self.slots), ("least_solo", -1): float(self.slots)}
        return {key: unit for key, unit in largest.items() if unit}

    @cached_property
    def gains(self) -> dict[Key, float]:
        """The contribution of each variable to the objective without (48): revenue less (44) and (46)."""
        terms: dict[Key, float] = {}
        for i in range(len(self.classes)):
            prefill, decode = self.worth(i)
            if self.scheme == "bundled":
                decode += prefill
            else:
                terms["prefill", i] = prefill * self.prefill_rate(i)
            terms["mixed", i] = decode * self.mixed_rate(i)
            terms["solo", i] = decode * self.solo_rate(i)
        if self.prefill_fairness_penalty:
            terms["most_prefill", -1] = -self.prefill_fairness_penalty
            terms["least_prefill", -1] = self.prefill_fairness_penalty
        if self.decode_fairness_penalty:
            terms["most_solo", -1] = -self.decode_fairness_penalty
            terms["least_solo", -1] = self.decode_fairness_penalty
        return terms

    @cached_property
    def rows(self) -> list[Constraint]:
        """The constraints of (40) in its order, then the limits."""
        every = range(len(self.classes))
        slots = self.slots
        rows = [
            Constraint(("prefill", -1), {("prefill", i): 1.0 for i in every}, 1.0),
            Constraint(
                ("mixed", -1),
                {("mixed", i): 1.0 for i in every} | {("prefill", i): 1.0 - slots for i in every},
                0.0,
            ),
            Constraint(
                ("solo", -1),
                {("solo", i): 1.0 for i in every} | {("prefill", i): float(slots) for i in every},
                float(slots),
            ),
        ]
        for i, fleet_class in enumerate(self.classes):
            through, leaving = self.prefill_rate(i), fleet_class.abandonment_per_s
            arriving = {("prefill", i): through, ("prefill_queue", i): leaving}
            rows.append(Constraint(("arrivals", i), arriving, fleet_class.rate_per_s, equal=True))
            decoding = {
                ("prefill", i): -through,
                ("decode_queue", i): leaving,
                ("mixed", i): self.mixed_rate(i),
                ("solo", i): self.solo_rate(i),
            }
            rows.append(Constraint(("decodes", i), decoding, 0.0, equal=True))
        if self.tpot_s is not None:  # (47) times its denominator, B − Σx > 0: linear in Σx
            factor = self.mixed_s * (slots - 1) - self.solo_s * slots + self.tpot_s
            terms = {("prefill", i): factor for i in every}
            rows.append(Constraint(("tpot", -1), terms, slots * (self.tpot_s - self.solo_s)))
        spreads: tuple[tuple[bool, Stage, str, float | None], ...] = (
            (self.has_prefill_spread, "prefill", "prefill_fairness", self.prefill_fairness),
            (self.has_solo_spread, "solo", "decode_fairness", self.decode_fairness),
        )
        for has_spread, stage, name, limit in spreads:
            most, least = (f"most_{stage}", -1), (f"least_{stage}", -1)
            for i in every if has_spread else ():
                rows.append(Constraint((f"most_{stage}", i), {(stage, i): 1.0, most: -1.0}, 0.0))
                rows.append(Constraint((f"least_{stage}", i), {least: 1.0, (stage, i): -1.0}, 0.0))
            if limit is not None:
                rows.append(Constraint((name, -1), {most: 1.0, least: -1.0}, limit))
        return rows

    @cached_property
    def money(self) -> float:
        """The largest contribution of one scaled variable to the objective."""
        return max(abs(self.gains[key]) * unit for key, unit in self.units.items() if key in self.gains)

    def best(self, *, per_prefill: float = 0.0) -> Optimum | None:
        """The state with the largest objective less `per_prefill`·Σx; None if no state is feasible."""
        terms = dict(self.gains)
        for i in range(len(self.classes)):
            terms["prefill", i] = terms.get(("prefill", i), 0.0) - per_prefill
        return self._solved(self.rows, self.units, terms, max(self.money, abs(per_prefill)))

    def feasible_share(self) -> float | None:
        """The largest s ≤ 1 for which s times the arrival rates are feasible; None if there is none."""
        share: Key = ("share", -1)
        rows = [
            Constraint(row.key, {**row.terms, share: -row.bound}, 0.0, equal=True)
            if row.key[0] == "arrivals"
            else row
            for row in self.rows
        ]
        rows.append(Constraint(share, {share: 1.0}, 1.0))
        optimum = self._solved(rows, {**self.units, share: 1.0}, {share: 1.0}, 1.0)
        return None if optimum is None else optimum.objective

    def _solved(
        self,
        rows: list[Constraint],
        units: Mapping[Key, float],
        terms: Mapping[Key, float],
        money: float,
    ) -> Optimum | None:
        """The state with the largest sum of `terms`; None if no state satisfies the rows."""
        place = {key: column for column, key in enumerate(units)}
        unit = np.array(list(units.values()))
        cost = np.zeros(len(units))
        for key, factor in terms.items():
            if key in place:
                cost[place[key]] = -factor * units[key] / money
        matrix = np.zeros((len(rows), len(units)))
        for number, row in enumerate(rows):
            for key, factor in row.terms.items():
                if key in place:
                    matrix[number, place[key]] = factor * units[key]
        scale = 1 / np.maximum(np.abs(matrix).max(axis=1), 1e-300)
        bounds = np.array([row.bound for row in rows]) * scale
        matrix *= scale[:, None]
        equal = np.array([row.equal for row in rows])
        solution = minimize(
            cost, matrix, least=np.where(equal, bounds, -np.inf), most=bounds, tolerance=_TOLERANCE
        )
        if solution is None:
            return None
        dual = -solution.prices
        prices = dual * scale * money
        return Optimum(
            {key: float(value) for key, value in zip(units, solution.values * unit, strict=True)},
            float(-cost @ solution.values) * money,
            {row.key: float(price) for row, price in zip(rows, prices, strict=True)},
            float(dual @ bounds) * money,
        )


def solved(program: FleetProgram) -> tuple[Optimum, Optimum] | None:
    """The optimal state, and the linear program whose prices hold there; None if no state is feasible.

    They differ only with the penalty η'_3 f(Σx) of (48). The best value of the rest is a concave, piecewise
    linear function V of Σx. The optimum of V − η'_3 f is also an optimum of V − s·Σx with s = η'_3 f'(Σx). So
    only the kinks of V between the optima for the least and the largest such s matter. They are found
    exactly: if a chord is not V itself, the state that lies highest above it is a further kink. On each piece
    the best Σx is an end, or solves V' = η'_3 f' in closed form. So the search is as accurate as the linear
    programs, about 1e-9 of the objective. The prices are those of the program with the tangent of the penalty
    at the optimum, for which the state is also optimal.
    """
    penalty = program.tpot_penalty
    if not penalty:
        optimum = program.best()
        return None if optimum is None else (optimum, optimum)
    least, largest = sorted(penalty * program.tpot_slope(prefills) for prefills in (0.0, 1.0))
    # Slightly beyond both slopes, so that no optimum for the same s is missed.
    right = program.best(per_prefill=least - _BEYOND * abs(least))
    left = program.best(per_prefill=largest + _BEYOND * abs(largest))
    if left is None or right is None:
        return None
    ends = [_Kink.of(program, kink.values) for kink in (left, right)]
    kinks = [ends[0], *_between(program, ends[0], ends[1]), ends[1]]
    tried = list(kinks)
    curved = program.slots * (program.slots - 1) * (program.mixed_s - program.solo_s)
    for low, high in pairwise(kinks):
        slope = (high.value - low.value) / (high.total - low.total) if high.total > low.total else 0.0
        if slope > 0 and curved > 0:
            flat = program.slots - math.sqrt(penalty * curved / slope)
            if low.total < flat < high.total:
                tried.append(low.towards(high, (flat - low.total) / (high.total - low.total)))
    tried.sort(key=lambda kink: kink.total)
    best = max(tried, key=lambda kink: kink.value - penalty * program.tpot(kink.total))
    tangent = program.best(per_prefill=penalty * program.tpot_slope(best.total))
    assert tangent is not None, "some states are feasible"
    return replace(tangent, values=best.values), tangent


@dataclass(frozen=True, slots=True)
class _Kink:
    """A point of V with its state."""

    total: float
    """Σx."""
    value: float
    values: Mapping[Key, float]

    @classmethod
    def of(cls, program: FleetProgram, values: Mapping[Key, float]) -> _Kink:
        value = math.fsum(factor * values.get(key, 0.0) for key, factor in program.gains.items())
        return cls(
            math.fsum(amount for (kind, _), amount in values.items() if kind == "prefill"), value, values
        )

    def towards(self, other: _Kink, share: float) -> _Kink:
        """The point at a share of the straight line to another point, where V is linear."""
        values = {key: (1 - share) * self.values[key] + share * other.values[key] for key in self.values}
        return _Kink(
            (1 - share) * self.total + share * other.total,
            (1 - share) * self.value + share * other.value,
            values,
        )


def _between(program: FleetProgram, low: _Kink, high: _Kink) -> list[_Kink]:
    """The kinks of V between two of its points, from left to right."""
    if high.total - low.total <= _DUST:
        return []
    chord = (high.value - low.value) / (high.total - low.total)
    best = program.best(per_prefill=chord)
    assert best is not None, "some states are feasible, such as the ends"
    middle = _Kink.of(program, best.values)
    above = middle.value - low.value - chord * (middle.total - low.total)
    is_new = low.total + _DUST < middle.total < high.total - _DUST
    if above <= _DUST * max(program.money, abs(chord)) or not is_new:
        return []
    return [*_between(program, low, middle), middle, *_between(program, middle, high)]


Occupancies = Mapping[Stage, Sequence[float]]
"""Number of requests of each class in each stage."""

_PLACES = 12
"""Significant decimal places of an `Allocation`."""


def divided(program: FleetProgram, optimum: Optimum) -> Occupancies:
    """The occupancies of an optimum.

    Solo slots are filled first, as by the greedy router, and each class has the same share of its tokens
    decoded there. With separate prices the objective does not depend on the class of decoded tokens, so each
    class with abandonment loses the same share of its tokens. With a decode fairness limit the solver's
    division is moved towards this division as far as its spread allows. With a decode fairness penalty it is
    the solver's.
    """
    classes = program.classes
    every = range(len(classes))
    values = {key: max(0.0, value) for key, value in optimum.values.items()}
    prefill = [values.get(("prefill", i), 0.0) for i in every]
    prefill_rates = [program.prefill_rate(i) * prefill[i] for i in every]
    waiting = [
        max(0.0, (fleet_class.rate_per_s - prefill_rates[i]) / fleet_class.abandonment_per_s)
        if fleet_class.abandonment_per_s
        else 0.0
        for i, fleet_class in enumerate(classes)
    ]
    lost = [
        min(prefill_rates[i], fleet_class.abandonment_per_s * values.get(("decode_queue", i), 0.0))
        for i, fleet_class in enumerate(classes)
    ]
    if program.scheme == "separate" and not program.has_solo_spread:
        lost = _evenly_lost(program, prefill_rates, lost)
    tokens = [
        (prefill_rates[i] - lost[i]) * fleet_class.output_tokens for i, fleet_class in enumerate(classes)
    ]
    total = math.fsum(tokens)
    free = max(0.0, program.slots * (1 - math.fsum(prefill)))  # Σx may exceed 1 by the solver's tolerance
    solo_total = min(free, total * program.solo_s)
    mixed_total = max(0.0, total - solo_total / program.solo_s) * program.mixed_s
    mixed = [mixed_total * fleet_class / total if total else 0.0 for fleet_class in tokens]
    solo = [solo_total * fleet_class / total if total else 0.0 for fleet_class in tokens]
    if program.has_solo_spread:
        mixed, solo = _within_spread(program, values, mixed, solo)
    queued = [
        lost[i] / fleet_class.abandonment_per_s if fleet_class.abandonment_per_s else 0.0
        for i, fleet_class in enumerate(classes)
    ]
    return {
        "prefill": prefill,
        "mixed": mixed,
        "solo": solo,
        "prefill_queue": waiting,
        "decode_queue": queued,
    }


def _evenly_lost(program: FleetProgram, prefill_rates: Sequence[float], lost: Sequence[float]) -> list[float]:
    """The same total of lost tokens, with the same share in each class with abandonment."""
    tokens = [
        rate * fleet_class.output_tokens
        for rate, fleet_class in zip(prefill_rates, program.classes, strict=True)
    ]
    can_lose = [
        tokens[i] if fleet_class.abandonment_per_s else 0.0 for i, fleet_class in enumerate(program.classes)
    ]
    total = math.fsum(
        rate * fleet_class.output_tokens for rate, fleet_class in zip(lost, program.classes, strict=True)
    )
    share = min(1.0, total / math.fsum(can_lose)) if total else 0.0
    return [share * rate if can_lose[i] else 0.0 for i, rate in enumerate(prefill_rates)]


def _within_spread(
    program: FleetProgram, values: Mapping[tuple[str, int], float], mixed: list[float], solo: list[float]
) -> tuple[list[float], list[float]]:
    """The nearest point to the target on the line from the solver's division, within the fairness limit."""
    every = range(len(program.classes))
    own = {stage: [values.get((stage, i), 0.0) for i in every] for stage in ("mixed", "solo")}
    limit = spread(own["solo"])
    if not program.decode_fairness_penalty:
        limit = max(limit, program.decode_fairness or 0.0)
    step = 1.0
    for i in every:
        for j in every:
            before = own["solo"][i] - own["solo"][j]
            after = solo[i] - solo[j]
            if after > limit:
                step = min(step, (limit - before) / (after - before))
    return (
        [amount + step * (aim - amount) for amount, aim in zip(own["mixed"], mixed, strict=True)],
        [amount + step * (aim - amount) for amount, aim in zip(own["solo"], solo, strict=True)],
    )


def spread(values: Collection[float]) -> float:
    """S(v) = max v_i − min v_i; 0 if empty."""
    return max(values) - min(values) if values else 0.0


def revenue(program: FleetProgram, occupancies: Occupancies) -> float:
    """Revenue per replica and second, the objective of (40) or (42)."""
    gains = {key: factor for key, factor in program.gains.items() if key[1] >= 0}
    stages: tuple[Stage, ...] = ("prefill", "mixed", "solo")
    return math.fsum(
        gains.get((stage, i), 0.0) * amount for stage in stages for i, amount in enumerate(occupancies[stage])
    )


def dual_gap(program: FleetProgram, occupancies: Occupancies, spreads: float, tangent: Optimum) -> float:
    """The relative distance of the division from the dual objective.

    Args:
        program: the program with its penalties.
        occupancies: the division.
        spreads: the penalties (44) and (46).
        tangent: the optimum whose prices are reported; (48) enters by its tangent.

    Returns:
        The distance as a share of the objective, or, if larger, of the most that one class can pay.
    """
    prefills = math.fsum(occupancies["prefill"])
    slope = program.tpot_penalty * program.tpot_slope(prefills) if program.tpot_penalty else 0.0
    primal = revenue(program, occupancies) - spreads - slope * prefills
    return abs(primal - tangent.dual) / max(program.money, abs(primal))


def within_one(prefill: Mapping[str, float]) -> dict[str, float]:
    """The rounded prefills with a sum of at most 1; the largest absorbs the rounding error."""
    rounded = {name: round(value, _PLACES) for name, value in prefill.items()}
    beyond = math.fsum(rounded.values()) - 1
    if beyond > 0:
        largest = max(rounded, key=lambda name: rounded[name])
        rounded[largest] = round(rounded[largest] - beyond, _PLACES)
    return rounded
