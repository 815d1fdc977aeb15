"""What a search knows of a candidate so far."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field

from inferq.experiments.plans.candidate import Candidate
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
    jumps: tuple[Trial, ...] = ()
    """Whole trials that keep the SLO with fewer units than one that breaks it."""

    def __post_init__(self) -> None:
        """Begin where theory allows."""
        least = self.limit.least
        self.low = len(self.sizes) if math.isinf(least) else bisect_left(self.sizes, int(least))

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


def rank_of(one: Standing) -> tuple[float, float, int]:
    """The order of fleets that keep the SLO: by cost, then by latency, then as they stand in the grid."""
    assert one.high is not None
    units = one.sizes[one.high]
    share = next((trial.share for trial in one.whole if trial.units == units), math.inf)
    return one.cost(one.high), share, one.candidate.place
