"""What a search knows of a candidate so far."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from inferq._lazy import np
from inferq.errors import ConfigError
from inferq.experiments.plans.candidate import Candidate
from inferq.experiments.plans.choices import Choices
from inferq.experiments.plans.limits import Limit
from inferq.experiments.plans.probing import Trial


@dataclass(slots=True, eq=False)
class Standing:
    """Between which numbers of units the fewest that keep the SLO lie."""

    candidate: Candidate
    limit: Limit
    sizes: tuple[int, ...]
    """How many units there may be, in order; spares included."""
    spare: int
    unit_cost: float
    """Of one unit, an hour or in GPUs."""
    low: int = 0
    """Sizes before this place are too small, proved or run."""
    high: int | None = None
    """The place of the smallest size that was run whole and keeps the SLO; None where none is known."""
    guess: int | None = None
    """The place that looks like the smallest on the longest part that was run."""
    trials: list[Trial] = field(default_factory=list)
    beaten: Trial | None = None
    """At equal cost: the trial in which it was slower than those that went on."""
    by: str = ""
    """What beat it, in words."""
    undecided: bool = False
    """Whether at the place before `high` chance does not tell."""
    misfit: str = ""
    """Why it makes no engine, where it does not."""

    def __post_init__(self) -> None:
        """Begin where theory allows."""
        self.low = first_of(self.sizes, self.limit)

    def cost(self, place: int) -> float:
        """Of the size at a place, with its spares."""
        return self.unit_cost * (self.sizes[place] + self.spare)

    @property
    def least_cost(self) -> float:
        """Below this it costs in no case."""
        return self.cost(self.low) if self.low < len(self.sizes) else math.inf

    def place_within(self, cost: float) -> int:
        """The largest place that costs no more; −1 where none does."""
        return bisect_right(range(len(self.sizes)), cost, key=self.cost) - 1

    @property
    def is_resolved(self) -> bool:
        """Whether the fewest units are known, or that none are enough."""
        return self.low >= len(self.sizes) or self.high == self.low

    def is_kept(self) -> bool:
        """Whether a size is known that keeps the SLO."""
        return self.high is not None

    def take(self, place: int, trial: Trial) -> None:
        """Learn from a trial."""
        self.trials.append(trial)
        if trial.verdict == "broken" or (trial.whole and trial.verdict == "undecided"):
            if self.high is None or place < self.high:
                self.low = max(self.low, place + 1)
                self.undecided = trial.verdict == "undecided"
        elif trial.whole and (self.high is None or place < self.high):
            self.high = place

    @property
    def whole(self) -> list[Trial]:
        """The trials on all requests, by units."""
        return sorted((one for one in self.trials if one.whole), key=lambda one: one.units)


class Standings(Sequence[Standing]):
    """What a search knows of all candidates: of those that it has not touched what their kind has in common.

    So a grid takes some bytes a candidate, and the rest is in proportion to what was run.
    """

    def __init__(
        self, choices: Choices, limits: Sequence[Limit], unit_costs: Sequence[float], spare: int
    ) -> None:
        """Nothing is known but what theory says of each kind, and what a unit of it costs."""
        self.choices, self.limits, self.unit_costs, self.spare = choices, limits, unit_costs, spare
        self.kind_of = choices.kind_of()
        self.touched: dict[int, Standing] = {}
        costs = [
            math.inf if place == len(choices.units) else cost * (choices.units[place] + spare)
            for limit, cost in zip(limits, unit_costs, strict=True)
            for place in [first_of(choices.units, limit)]
        ]
        self._least_costs = np.array(costs)[self.kind_of]

    def __len__(self) -> int:
        """How many candidates."""
        return len(self.choices)

    def __getitem__(self, place: Any) -> Any:
        """That of a candidate; it is touched by it."""
        place = int(place)
        if place not in self.touched:
            one = self.untouched(place)
            try:
                assert one.candidate.engine is not None
            except ConfigError as error:
                one.misfit, one.low = str(error), len(one.sizes)
            self.touched[place] = one
        return self.touched[place]

    def untouched(self, place: int) -> Standing:
        """What is known of a candidate of which nothing was run."""
        kind = self.kind_of[place]
        candidate = self.choices[place]
        return Standing(candidate, self.limits[kind], self.choices.units, self.spare, self.unit_costs[kind])

    def going(self, below: float = math.inf) -> list[int]:
        """The places of those that may keep the SLO at a lower cost, the cheapest first."""
        costs = self._least_costs
        for place, one in self.touched.items():
            costs[place] = one.least_cost
        places = np.flatnonzero(costs < below)
        found: list[int] = places[np.argsort(costs[places], kind="stable")].tolist()
        return found


def first_of(sizes: Sequence[int], limit: Limit) -> int:
    """The place of the smallest size that theory allows."""
    return len(sizes) if math.isinf(limit.least) else bisect_left(sizes, int(limit.least))


def rank_of(one: Standing) -> tuple[float, float, int]:
    """The order of fleets that keep the SLO: by cost, then by latency, then as they stand in the grid."""
    assert one.high is not None
    units = one.sizes[one.high]
    share = next((trial.share for trial in one.whole if trial.units == units), math.inf)
    return one.cost(one.high), share, one.candidate.place
