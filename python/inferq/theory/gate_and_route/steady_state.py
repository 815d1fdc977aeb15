"""Which steady state of a fleet earns most?

The linear program of lin2026 in its own symbols, scaled for HiGHS. Everything is per replica. A state says
for each class i how many requests are where: x_i in prefill, y_m,i in decode beside a prefill, y_s,i in
decode without one, q_p,i and q_d,i waiting for either.
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
"""A variable or a constraint: its kind and the place of its class, −1 where it has none."""

_TOLERANCE = 1e-10
"""By how much a scaled constraint may be missed: the least that HiGHS takes."""
_DUST = 1e-9
"""Two values of Σx, or of the scaled objective, that are no further apart count as one."""
_BEYOND = 1e-6
"""By which share the range of slopes of a penalty is widened."""


@dataclass(frozen=True, slots=True)
class FleetClass:
    """A class as the program sees it: means are all that enters."""

    name: str
    rate_per_s: float
    prompt_tokens: float
    output_tokens: float
    abandonment_per_s: float


@dataclass(frozen=True, slots=True)
class Constraint:
    """A constraint: the sum of `terms` is at most, or with `equal` exactly, `bound`."""

    key: Key
    terms: Mapping[Key, float]
    bound: float
    equal: bool = False


@dataclass(frozen=True, slots=True)
class Optimum:
    """An optimal state, and what each constraint's bound is worth."""

    values: Mapping[Key, float]
    objective: float
    prices: Mapping[Key, float]
    """By how much the objective grows for each unit by which a row's bound does."""
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
        """μ_p,i = C / (P_i τ), prefills per second by one that is always under way."""
        return self.chunk / (self.classes[i].prompt_tokens * self.mixed_s)

    def mixed_rate(self, i: int) -> float:
        """μ_m,i = 1 / (D_i τ)."""
        return 1 / (self.classes[i].output_tokens * self.mixed_s)

    def solo_rate(self, i: int) -> float:
        """μ_s,i = γ / D_i."""
        return 1 / (self.classes[i].output_tokens * self.solo_s)

    def worth(self, i: int) -> tuple[float, float]:
        """c_p P_i and c_d D_i, what a request pays for its prompt and for its output."""
        one = self.classes[i]
        return self.prefill_price * one.prompt_tokens, self.decode_price * one.output_tokens

    def tpot(self, prefills: float) -> float:
        """The left side of (47), in seconds: the mean iteration over all decode slots, used or not."""
        beside, alone = (self.slots - 1) * prefills, self.slots * (1 - prefills)
        return (self.mixed_s * beside + self.solo_s * alone) / (beside + alone)

    def tpot_slope(self, prefills: float) -> float:
        """Its derivative by Σx, B(B − 1)(τ − 1/γ) / (B − Σx)²: of one sign, so that (47) is monotone."""
        curved = self.slots * (self.slots - 1) * (self.mixed_s - self.solo_s)
        return curved / (self.slots - prefills) ** 2

    @property
    def has_prefill_spread(self) -> bool:
        """Whether max x_i − min x_i is looked at."""
        return self.prefill_fairness is not None or self.prefill_fairness_penalty > 0

    @property
    def has_solo_spread(self) -> bool:
        """Whether max y_s,i − min y_s,i is looked at."""
        return self.decode_fairness is not None or self.decode_fairness_penalty > 0

    @cached_property
    def units(self) -> dict[Key, float]:
        """The variables, each with the most that it can be, so that scaled ones are from 0 to 1."""
        largest: dict[Key, float] = {}
        for i, one in enumerate(self.classes):
            flow = min(one.rate_per_s, self.prefill_rate(i))
            wait_s = 1 / one.abandonment_per_s if one.abandonment_per_s else 0.0
            largest["prefill", i] = flow / self.prefill_rate(i)
            largest["mixed", i] = min(self.slots - 1, flow / self.mixed_rate(i))
            largest["solo", i] = min(self.slots, flow / self.solo_rate(i))
            largest["prefill_queue", i] = one.rate_per_s * wait_s
            largest["decode_queue", i] = flow * wait_s if self.decode_queue else 0.0
        if self.has_prefill_spread:
            largest |= {("most_prefill", -1): 1.0, ("least_prefill", -1): 1.0}
        if self.has_solo_spread:
            largest |= {("most_solo", -1): float(self.slots), ("least_solo", -1): float(self.slots)}
        return {key: unit for key, unit in largest.items() if unit}

    @cached_property
    def earned(self) -> dict[Key, float]:
        """What each variable adds to the objective, but for (48): revenue per second, less (44) and (46)."""
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
        """The constraints of (40) in its order, then those of the limits."""
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
        for i, one in enumerate(self.classes):
            through, leaving = self.prefill_rate(i), one.abandonment_per_s
            arriving = {("prefill", i): through, ("prefill_queue", i): leaving}
            rows.append(Constraint(("arrivals", i), arriving, one.rate_per_s, equal=True))
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
        for asked, stage, name, limit in spreads:
            most, least = (f"most_{stage}", -1), (f"least_{stage}", -1)
            for i in every if asked else ():
                rows.append(Constraint((f"most_{stage}", i), {(stage, i): 1.0, most: -1.0}, 0.0))
                rows.append(Constraint((f"least_{stage}", i), {least: 1.0, (stage, i): -1.0}, 0.0))
            if limit is not None:
                rows.append(Constraint((name, -1), {most: 1.0, least: -1.0}, limit))
        return rows

    @cached_property
    def money(self) -> float:
        """The most that one scaled variable adds to the objective."""
        return max(abs(self.earned[key]) * unit for key, unit in self.units.items() if key in self.earned)

    def best(self, *, per_prefill: float = 0.0) -> Optimum | None:
        """The state with the largest objective less `per_prefill`·Σx; None if there is no state."""
        terms = dict(self.earned)
        for i in range(len(self.classes)):
            terms["prefill", i] = terms.get(("prefill", i), 0.0) - per_prefill
        return self._solved(self.rows, self.units, terms, max(self.money, abs(per_prefill)))

    def feasible_share(self) -> float | None:
        """The largest s ≤ 1 for which there is a state if each class comes s times as often; None if none."""
        share: Key = ("share", -1)
        rows = [
            Constraint(row.key, {**row.terms, share: -row.bound}, 0.0, equal=True)
            if row.key[0] == "arrivals"
            else row
            for row in self.rows
        ]
        rows.append(Constraint(share, {share: 1.0}, 1.0))
        found = self._solved(rows, {**self.units, share: 1.0}, {share: 1.0}, 1.0)
        return None if found is None else found.objective

    def _solved(
        self,
        rows: list[Constraint],
        units: Mapping[Key, float],
        terms: Mapping[Key, float],
        money: float,
    ) -> Optimum | None:
        """The state that makes the sum of `terms` largest; None if no state satisfies the rows."""
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
    """The optimal state, and the linear program whose prices hold there; None if there is no state.

    They differ with the penalty η'_3 f(Σx) of (48) only. The best value of the rest is a concave, piecewise
    linear function V of Σx, and the optimum of V − η'_3 f is one of V − s·Σx too, with s = η'_3 f'(Σx). So
    only the kinks of V between the optima for the least and the largest such s matter. They are found
    exactly: where a chord is not V itself, the state that lies highest above it is one more. On each piece
    the best Σx is an end, or solves V' = η'_3 f' in closed form: the search is as accurate as the linear
    programs are, about 1e-9 of the objective. The prices are those of the program with the tangent of the
    penalty there, for which the state is optimal too.
    """
    penalty = program.tpot_penalty
    if not penalty:
        found = program.best()
        return None if found is None else (found, found)
    least, largest = sorted(penalty * program.tpot_slope(prefills) for prefills in (0.0, 1.0))
    # a little beyond both, so that of several optima for the same s none is missed
    right = program.best(per_prefill=least - _BEYOND * abs(least))
    left = program.best(per_prefill=largest + _BEYOND * abs(largest))
    if left is None or right is None:
        return None
    ends = [_Kink.of(program, one.values) for one in (left, right)]
    kinks = [ends[0], *_between(program, ends[0], ends[1]), ends[1]]
    tried = list(kinks)
    curved = program.slots * (program.slots - 1) * (program.mixed_s - program.solo_s)
    for low, high in pairwise(kinks):
        slope = (high.value - low.value) / (high.total - low.total) if high.total > low.total else 0.0
        if slope > 0 and curved > 0:
            flat = program.slots - math.sqrt(penalty * curved / slope)
            if low.total < flat < high.total:
                tried.append(low.towards(high, (flat - low.total) / (high.total - low.total)))
    tried.sort(key=lambda one: one.total)
    best = max(tried, key=lambda one: one.value - penalty * program.tpot(one.total))
    tangent = program.best(per_prefill=penalty * program.tpot_slope(best.total))
    assert tangent is not None, "there are states"
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
        value = math.fsum(factor * values.get(key, 0.0) for key, factor in program.earned.items())
        return cls(
            math.fsum(amount for (kind, _), amount in values.items() if kind == "prefill"), value, values
        )

    def towards(self, other: _Kink, share: float) -> _Kink:
        """The point so far on the straight way to another, where V is straight."""
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
    assert best is not None, "there are states, as the ends are"
    middle = _Kink.of(program, best.values)
    above = middle.value - low.value - chord * (middle.total - low.total)
    is_new = low.total + _DUST < middle.total < high.total - _DUST
    if above <= _DUST * max(program.money, abs(chord)) or not is_new:
        return []
    return [*_between(program, low, middle), middle, *_between(program, middle, high)]


Held = Mapping[Stage, Sequence[float]]
"""How many requests of each class are where."""

_PLACES = 12
"""Decimal places that count in an `Allocation`."""


def divided(program: FleetProgram, optimum: Optimum) -> Held:
    """The occupancies of an optimum.

    Solo slots are filled first, as the greedy router does, and each class has the same share of its tokens
    decoded there. With separate pricing, where it does not matter whose tokens are decoded, each class that
    gives up loses the same share of them. Under decode fairness the solver's division is moved towards this
    one as far as its spread stays within the limit, or, under a penalty, is the solver's.
    """
    classes = program.classes
    every = range(len(classes))
    values = {key: max(0.0, value) for key, value in optimum.values.items()}
    prefill = [values.get(("prefill", i), 0.0) for i in every]
    given = [program.prefill_rate(i) * prefill[i] for i in every]
    waiting = [
        max(0.0, (one.rate_per_s - given[i]) / one.abandonment_per_s) if one.abandonment_per_s else 0.0
        for i, one in enumerate(classes)
    ]
    lost = [
        min(given[i], one.abandonment_per_s * values.get(("decode_queue", i), 0.0))
        for i, one in enumerate(classes)
    ]
    if program.scheme == "separate" and not program.has_solo_spread:
        lost = _evenly_lost(program, given, lost)
    tokens = [(given[i] - lost[i]) * one.output_tokens for i, one in enumerate(classes)]
    total = math.fsum(tokens)
    free = max(0.0, program.slots * (1 - math.fsum(prefill)))  # Σx may be above 1 by what the solver allows
    alone = min(free, total * program.solo_s)
    beside = max(0.0, total - alone / program.solo_s) * program.mixed_s
    mixed = [beside * one / total if total else 0.0 for one in tokens]
    solo = [alone * one / total if total else 0.0 for one in tokens]
    if program.has_solo_spread:
        mixed, solo = _within_spread(program, values, mixed, solo)
    queued = [
        lost[i] / one.abandonment_per_s if one.abandonment_per_s else 0.0 for i, one in enumerate(classes)
    ]
    return {
        "prefill": prefill,
        "mixed": mixed,
        "solo": solo,
        "prefill_queue": waiting,
        "decode_queue": queued,
    }


def _evenly_lost(program: FleetProgram, given: Sequence[float], lost: Sequence[float]) -> list[float]:
    """The same tokens lost in all, in each class that gives up the same share of those that it is given."""
    tokens = [rate * one.output_tokens for rate, one in zip(given, program.classes, strict=True)]
    may = [tokens[i] if one.abandonment_per_s else 0.0 for i, one in enumerate(program.classes)]
    total = math.fsum(rate * one.output_tokens for rate, one in zip(lost, program.classes, strict=True))
    share = min(1.0, total / math.fsum(may)) if total else 0.0
    return [share * rate if may[i] else 0.0 for i, rate in enumerate(given)]


def _within_spread(
    program: FleetProgram, values: Mapping[tuple[str, int], float], mixed: list[float], solo: list[float]
) -> tuple[list[float], list[float]]:
    """The point on the way from the solver's division to this one that is nearest to it and fair enough."""
    every = range(len(program.classes))
    own = {stage: [values.get((stage, i), 0.0) for i in every] for stage in ("mixed", "solo")}
    limit = spread(own["solo"])
    if not program.decode_fairness_penalty:
        limit = max(limit, program.decode_fairness or 0.0)
    step = 1.0
    for i in every:
        for j in every:
            now = own["solo"][i] - own["solo"][j]
            then = solo[i] - solo[j]
            if then > limit:
                step = min(step, (limit - now) / (then - now))
    return (
        [one + step * (aim - one) for one, aim in zip(own["mixed"], mixed, strict=True)],
        [one + step * (aim - one) for one, aim in zip(own["solo"], solo, strict=True)],
    )


def spread(values: Collection[float]) -> float:
    """S(v) = max v_i − min v_i; 0 of nothing."""
    return max(values) - min(values) if values else 0.0


def revenue(program: FleetProgram, held: Held) -> float:
    """Money per replica and second, the objective of (40) or (42)."""
    earned = {key: factor for key, factor in program.earned.items() if key[1] >= 0}
    stages: tuple[Stage, ...] = ("prefill", "mixed", "solo")
    return math.fsum(
        earned.get((stage, i), 0.0) * amount for stage in stages for i, amount in enumerate(held[stage])
    )


def dual_gap(program: FleetProgram, held: Held, spreads: float, tangent: Optimum) -> float:
    """How far the division is from the dual objective.

    Args:
        program: with its penalties.
        held: the division.
        spreads: what (44) and (46) take off.
        tangent: the optimum whose prices are told; (48) enters by its tangent.

    Returns:
        The distance as a share of the objective, or, if more, of the most that one class can pay.
    """
    prefills = math.fsum(held["prefill"])
    slope = program.tpot_penalty * program.tpot_slope(prefills) if program.tpot_penalty else 0.0
    primal = revenue(program, held) - spreads - slope * prefills
    return abs(primal - tangent.dual) / max(program.money, abs(primal))


def within_one(prefill: Mapping[str, float]) -> dict[str, float]:
    """The prefills to the places that count, no more than 1 in all: the largest gives what rounding adds."""
    rounded = {name: round(value, _PLACES) for name, value in prefill.items()}
    beyond = math.fsum(rounded.values()) - 1
    if beyond > 0:
        largest = max(rounded, key=lambda name: rounded[name])
        rounded[largest] = round(rounded[largest] - beyond, _PLACES)
    return rounded
