"""The state of the search for one candidate."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field

from inferq.errors import ConfigError
from inferq.experiments.plans.candidate import Candidate
from inferq.experiments.plans.limits import Limit
from inferq.experiments.plans.prober import Trial


@dataclass(slots=True, eq=False)
class CandidateState:
    """The bracket around the smallest size that meets the SLO, and all trials."""

    candidate: Candidate
    limit: Limit
    sizes: tuple[int, ...]
    """Possible numbers of units, ascending, without spare replicas."""
    spare: int
    unit_cost: float
    """Cost of one unit per hour, or its GPUs."""
    low: int = 0
    """Sizes before this place are too small, by theory or by a run."""
    high: int | None = None
    """Place of the smallest size that met the SLO in a run of all requests. None if there is none."""
    guess: int | None = None
    """Place of the smallest size that looks sufficient on the longest partial run."""
    trials: list[Trial] = field(default_factory=list)
    slower: Trial | None = None
    """The trial in which it lost against candidates of equal cost."""
    slower_reason: str = ""
    undecided: bool = False
    """Whether the result at the place before `high` is not significant."""
    idle: Trial | None = None
    """Latencies of single requests on idle replicas, if they violate the SLO."""
    misfit: str = ""
    """The reason why it makes no engine, if so."""

    def __post_init__(self) -> None:
        """Start at the smallest size that theory allows."""
        limit = self.limit
        self.low = len(self.sizes) if math.isinf(limit.least) else bisect_left(self.sizes, int(limit.least))

    def check_engine(self) -> bool:
        """Whether the candidate makes an engine. The reason is stored if it does not."""
        try:
            assert self.candidate.engine is not None
        except ConfigError as error:
            self.misfit, self.low = str(error), len(self.sizes)
        return not self.misfit

    def cost(self, place: int) -> float:
        """The cost of the size at a place, spare replicas included."""
        return self.unit_cost * (self.sizes[place] + self.spare)

    @property
    def least_cost(self) -> float:
        """A lower bound of the cost; infinite if no size meets the SLO."""
        return self.cost(self.low) if self.low < len(self.sizes) else math.inf

    def place_within(self, cost: float) -> int:
        """The largest place with at most this cost, or −1."""
        return bisect_right(range(len(self.sizes)), cost, key=self.cost) - 1

    @property
    def is_resolved(self) -> bool:
        """Whether the smallest sufficient size is known, or that there is none."""
        return self.low >= len(self.sizes) or self.high == self.low

    @property
    def meets_slo(self) -> bool:
        """Whether a size is known that meets the SLO."""
        return self.high is not None

    def add(self, place: int, trial: Trial) -> None:
        """Add a trial and narrow the bracket."""
        self.trials.append(trial)
        if trial.verdict == "violated" or (trial.whole and trial.verdict == "undecided"):
            if self.high is None or place < self.high:
                self.low = max(self.low, place + 1)
                self.undecided = trial.verdict == "undecided"
        elif trial.whole and (self.high is None or place < self.high):
            self.high = place

    @property
    def whole(self) -> list[Trial]:
        """Trials on all requests, by units."""
        return sorted((trial for trial in self.trials if trial.whole), key=lambda trial: trial.units)

    @property
    def rank(self) -> tuple[float, float, int]:
        """Sort key of candidates that meet the SLO: cost, then latency, then place in the grid."""
        assert self.high is not None
        units = self.sizes[self.high]
        share = next((trial.share for trial in self.whole if trial.units == units), math.inf)
        return self.cost(self.high), share, self.candidate.place
