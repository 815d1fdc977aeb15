"""How are the totals of an optimal steady state divided among the classes, and what does it earn then?

An optimum of lin2026 (40) fixes who is prefilled and how many decode slots are in use, not who is in them.
The division here is a function of those numbers alone, so that it does not follow the solver's whim.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from inferq.theory.gate_and_route.steady_state import Optimum, Program, Stage

Held = Mapping[Stage, Sequence[float]]
"""How many requests of each class are where."""

_PLACES = 12
"""Decimal places that count in an `Allocation`."""


def divided(program: Program, optimum: Optimum) -> Held:
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


def _evenly_lost(program: Program, given: Sequence[float], lost: Sequence[float]) -> list[float]:
    """The same tokens lost in all, in each class that gives up the same share of those that it is given."""
    tokens = [rate * one.output_tokens for rate, one in zip(given, program.classes, strict=True)]
    may = [tokens[i] if one.abandonment_per_s else 0.0 for i, one in enumerate(program.classes)]
    total = math.fsum(rate * one.output_tokens for rate, one in zip(lost, program.classes, strict=True))
    share = min(1.0, total / math.fsum(may)) if total else 0.0
    return [share * rate if may[i] else 0.0 for i, rate in enumerate(given)]


def _within_spread(
    program: Program, values: Mapping[tuple[str, int], float], mixed: list[float], solo: list[float]
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


def revenue(program: Program, held: Held) -> float:
    """Money per replica and second, the objective of (40) or (42)."""
    earned = {key: factor for key, factor in program.earned.items() if key[1] >= 0}
    stages: tuple[Stage, ...] = ("prefill", "mixed", "solo")
    return math.fsum(
        earned.get((stage, i), 0.0) * amount for stage in stages for i, amount in enumerate(held[stage])
    )


def dual_gap(program: Program, held: Held, spreads: float, tangent: Optimum) -> float:
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
