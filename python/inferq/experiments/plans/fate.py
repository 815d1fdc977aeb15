"""What became of a candidate, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from inferq.experiments.plans.candidate import Candidate
from inferq.experiments.plans.probing import Trial
from inferq.experiments.plans.standing import Standing, rank_of
from inferq.reports.text import number

Kind = Literal["cheapest", "kept", "beaten", "breaks the SLO", "ruled out", "undecided", "does not fit"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fate:
    """What became of one candidate."""

    candidate: Candidate
    kind: Kind
    """`"cheapest"`: the answer. `"kept"`: it keeps the SLO, and costs more or is slower. `"beaten"`: wherever
    it costs less than the answer it is too small, or it costs the same and is slower. `"breaks the SLO"`: at
    every size. `"ruled out"`: by a theorem, before anything was run. `"undecided"`: the time was over, or
    chance does not tell."""
    units: int | None
    """The fewest that keep the SLO, with the spares; None where none are known to."""
    cost: float | None
    """Of them: an hour in money, or in GPUs."""
    at_least: float | None
    """No fleet of this candidate that keeps the SLO costs less; None where none keeps it."""
    why: str
    trial: Trial | None = None
    """The run that says it, where there is one."""


def fates_of(standings: Sequence[Standing], *, stopped: bool, unit: str) -> tuple[Fate, ...]:
    """The fate of each candidate, in the order of the grid."""
    kept = sorted((one for one in standings if one.high is not None), key=rank_of)
    best = kept[0] if kept else None
    return tuple(_fate(one, best, stopped, unit) for one in standings)


def _fate(one: Standing, best: Standing | None, stopped: bool, unit: str) -> Fate:
    candidate = one.candidate
    if one.limit.why and one.limit.least > one.sizes[-1]:
        return Fate(
            candidate=candidate, kind="ruled out", units=None, cost=None, at_least=None, why=one.limit.why
        )
    if one.high is not None:
        assert best is not None and best.high is not None
        units, cost = one.sizes[one.high] + one.spare, one.cost(one.high)
        trial = next((one_ for one_ in one.whole if one_.units == one.sizes[one.high]), None)
        sure = "" if one.low == one.high else "; fewer were not tried, there was no time"
        said = f"{trial.worst}{sure}" if trial is not None else sure
        if one is best:
            return Fate(
                candidate=candidate,
                kind="cheapest",
                units=units,
                cost=cost,
                at_least=cost,
                why=said,
                trial=trial,
            )
        more = cost / best.cost(best.high) - 1
        behind = f"costs {number(100 * more)} % more" if more > 0 else "costs the same and is slower"
        return Fate(
            candidate=candidate,
            kind="kept",
            units=units,
            cost=cost,
            at_least=cost if one.is_resolved else one.least_cost,
            why=f"{behind}; {said}",
            trial=trial,
        )
    last = _last(one)
    if one.low >= len(one.sizes):
        return Fate(
            candidate=candidate,
            kind="undecided" if one.undecided else "breaks the SLO",
            units=None,
            cost=None,
            at_least=None,
            why=f"with {candidate.size(one.sizes[-1])}: {last.worst}" if last else one.limit.why,
            trial=last,
        )
    if one.by:
        return Fate(
            candidate=candidate,
            kind="beaten",
            units=None,
            cost=None,
            at_least=one.least_cost,
            why=one.by,
            trial=one.beaten,
        )
    if best is None or best.high is None or (stopped and one.least_cost < best.cost(best.high)):
        return Fate(
            candidate=candidate,
            kind="undecided",
            units=None,
            cost=None,
            at_least=one.least_cost,
            why="the time was over",
            trial=last,
        )
    less = _too_small(one, last)
    dear = f"costs {number(one.least_cost)} {unit} at least"
    return Fate(
        candidate=candidate,
        kind="undecided" if one.undecided else "beaten",
        units=None,
        cost=None,
        at_least=one.least_cost,
        why=f"{dear}: {less}",
        trial=last,
    )


def _too_small(one: Standing, last: Trial | None) -> str:
    """Why fewer units are not enough."""
    if last is None or not one.low or last.units < one.sizes[one.low - 1]:
        return one.limit.why or "one replica is the least"
    part = "" if last.whole else f" on the first {last.requests:,} requests"
    part += ", which is proof" if last.sure else ""
    return f"with {one.candidate.size(last.units)} it is {last.verdict}{part}; {last.worst}"


def _last(one: Standing) -> Trial | None:
    """The trial of the largest size that is too small, the longest of them."""
    tried = [trial for trial in one.trials if trial.verdict in ("broken", "undecided")]
    return max(tried, key=lambda trial: (trial.units, trial.requests), default=None)
