"""What became of a candidate, and why."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

from inferq._lazy import NDArray, np
from inferq.display.text import number
from inferq.experiments.plans.candidate import Candidate
from inferq.experiments.plans.probing import Trial
from inferq.experiments.plans.standing import Standing, Standings, rank_of

Kind = Literal["cheapest", "kept", "undecided", "beaten", "breaks the SLO", "ruled out", "does not fit"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""In the order in which they are shown."""


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


class Fates(Sequence[Fate]):
    """The fate of each candidate, in the order of the grid; told where it is asked for.

    Candidates of a kind of which nothing was run share theirs.
    """

    def __init__(self, standings: Standings, *, stopped: bool, unit: str) -> None:
        """Those at the end of a search."""
        self._standings, self._stopped, self._unit = standings, stopped, unit
        kept = [one for one in standings.touched.values() if one.high is not None]
        self._best = min(kept, key=rank_of, default=None)
        self.of_touched = {place: self._of(one) for place, one in sorted(standings.touched.items())}
        """Of those that were looked at, by place."""

    def __len__(self) -> int:
        """How many candidates."""
        return len(self._standings)

    def __getitem__(self, place: Any) -> Any:
        """That of a candidate."""
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(len(self)))]
        place = range(len(self))[place]
        known = self.of_touched.get(place)
        return known if known is not None else self._of(self._standings.untouched(place))

    def _of(self, one: Standing) -> Fate:
        return _fate(one, self._best, self._stopped, self._unit)

    @cached_property
    def told(self) -> tuple[list[Fate], NDArray[Any]]:
        """The fates that differ, and for each candidate which of them is its own, but for its name."""
        fates = list(self.of_touched.values())
        which = self._standings.kind_of + len(fates)
        which[list(self.of_touched)] = np.arange(len(fates))
        others, first = np.unique(which[which >= len(fates)], return_index=True)
        places = np.flatnonzero(which >= len(fates))[first]
        of_kind = np.full(int(which.max()) + 1, -1)
        of_kind[: len(fates)] = np.arange(len(fates))
        of_kind[others] = len(fates) + np.arange(len(others))
        return [*fates, *(self[place] for place in places.tolist())], of_kind[which]

    @cached_property
    def counts(self) -> Mapping[str, int]:
        """How many there are of each kind, those that keep the SLO first."""
        fates, which = self.told
        found: dict[str, int] = dict.fromkeys(KINDS, 0)
        for fate, count in zip(fates, np.bincount(which).tolist(), strict=True):
            found[fate.kind] += count
        return {kind: count for kind, count in found.items() if count}

    def of_kind(self, kind: Kind) -> Iterator[Fate]:
        """Those of a kind, in the order of the grid."""
        fates, which = self.told
        are = np.array([one.kind == kind for one in fates])[which]
        return (self[place] for place in np.flatnonzero(are).tolist())

    def ordered(self, most: int | None = None) -> list[Fate]:
        """The first so many: by kind, then by the cost that they have at least, then by place."""
        fates, which = self.told
        kinds = np.array([KINDS.index(one.kind) for one in fates])[which]
        costs = np.array([math.inf if one.at_least is None else one.at_least for one in fates])[which]
        places = np.lexsort((costs, kinds))[:most]
        return [self[place] for place in places.tolist()]


def _fate(one: Standing, best: Standing | None, stopped: bool, unit: str) -> Fate:
    candidate = one.candidate
    if one.misfit:
        return Fate(
            candidate=candidate, kind="does not fit", units=None, cost=None, at_least=None, why=one.misfit
        )
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
    named = "GPU" if unit == "GPUs" and one.least_cost == 1 else unit
    dear = f"costs {number(one.least_cost)} {named} at least"
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
