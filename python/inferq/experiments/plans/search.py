"""The search for the cheapest fleet: bounds, then growing parts of the same requests, then all of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from inferq._lazy import np
from inferq.display.text import amount, counted, number, seconds
from inferq.experiments.plans.probing import Prober, Trial
from inferq.experiments.plans.standing import Standing, Standings, rank_of
from inferq.interval import student

Steps = Generator[tuple[int, int], Trial, None]
"""What one candidate wants to know next: the place of a size, and on how many requests."""

_AT_ONCE = 256
"""So many candidates of a round are run between two looks at the clock."""
_BLOCK = 1024
"""So many candidates are compared with one another; of more, one block after the other, and the first fleet
that keeps the SLO is sought among so many, evenly from all of them."""
_LONG_S = 5.0
"""What takes longer is told before it begins."""
_SECONDS = 3
"""So many are tried as a runner-up."""


class _TimeIsOver(Exception):
    """The time that the search had is used up."""


@dataclass(slots=True, eq=False)
class Search:
    """One search, in rounds: all candidates of a round are run side by side, and none waits for the clock.

    A candidate is given up in three ways only: it is *proved* too small wherever it costs less than the best
    that is known (by a theorem, by law L11 on a part of the requests, or by a run of all of them); it costs
    no less; or it costs the same and is slower. Halving decides who goes first: after each length the more
    promising half goes on, and the others wait until there is a fleet to be measured against.

    Args:
        prober: makes the trials.
        standings: what is known of the candidates.
        within: ε, by which the answer may cost more than the best.
        tell: gets a sentence after each stage.
        screened_by: when the first fleet that keeps the SLO must be found, if there is no time for more.
    """

    prober: Prober
    standings: Standings
    within: float
    tell: Callable[[str], object] | None
    screened_by: float = math.inf
    stopped: bool = False
    """Whether the time was over before the end."""
    gaps: list[str] = field(default_factory=list)
    """Where more replicas were worse."""
    kept: dict[int, Standing] = field(default_factory=dict)
    """Those that are known to keep the SLO."""

    def run(self) -> None:
        """All stages, or as many as there is time for."""
        try:
            self._screen()
            self._told("screened")
            self._challenge()
            self._told("challenged")
            self._race()
            self._check()
            self._second()
        except _TimeIsOver:
            self.stopped = True

    @property
    def best(self) -> Standing | None:
        """The cheapest that is known to keep the SLO; of equals the one with the lowest latency."""
        return min(self.kept.values(), key=rank_of, default=None)

    @property
    def best_cost(self) -> float:
        """What it costs; infinite where there is none."""
        costs = (one.cost(one.high) for one in self.kept.values() if one.high is not None)
        return min(costs, default=math.inf)

    def _told(self, stage: str) -> None:
        if self.tell is None:
            return
        best = self.best
        said = "none keeps the SLO yet"
        if best is not None and best.high is not None:
            size = best.sizes[best.high] + best.spare
            said = f"the cheapest yet is {best.candidate.size(size)}"
        self.tell(
            f"{stage}: {counted(len(self.standings), 'candidate')}, "
            f"{counted(self.prober.runs, 'run')} of {number(self.prober.simulated)} requests; {said}"
        )

    def _foretell(self, count: int, what: str) -> None:
        """How long a look at so many candidates takes, at the pace so far, where it is long."""
        prober = self.prober
        if self.tell is not None and prober.runs:
            takes_s = count * prober.took_s / prober.runs
            if takes_s > _LONG_S:
                self.tell(
                    f"{count:,} {what}: a run of each takes {seconds(takes_s)}, at "
                    f"{number(prober.runs / prober.took_s)} runs a second so far"
                )

    def _together(self, searches: Sequence[tuple[Standing, Steps]], by: float = math.inf) -> None:
        """Let candidates take their steps side by side, a round at a time; until an instant at most."""
        going = [(one, steps, step) for one, steps in searches if (step := next(steps, None)) is not None]
        while going:
            trials: list[Trial] = []
            for first in range(0, len(going), _AT_ONCE):
                if time.monotonic() > min(by, self.prober.deadline):
                    raise _TimeIsOver
                some = going[first : first + _AT_ONCE]
                asked = [(one.candidate, one.sizes[place], requests) for one, _, (place, requests) in some]
                trials += self.prober.ask(asked)
                for (one, _, (place, _)), trial in zip(some, trials[first:], strict=True):
                    one.take(place, trial)
                    if one.high is not None:
                        self.kept[one.candidate.place] = one
            nexts = []
            for (one, steps, _), trial in zip(going, trials, strict=True):
                try:
                    nexts.append((one, steps, steps.send(trial)))
                except StopIteration:
                    continue
            going = nexts

    def _screen(self) -> None:
        """Halving: on ever longer parts of the requests the more promising half goes on, to the whole."""
        places = self.standings.going()
        if len(places) > _BLOCK:
            places = [places[at] for at in np.linspace(0, len(places) - 1, _BLOCK).astype(int)]
        going = [one for place in places if not (one := self.standings[place]).misfit]
        *parts, whole = self.prober.rungs
        for requests in parts:
            try:
                self._together([(one, self._guess(one, requests)) for one in going], self.screened_by)
            except _TimeIsOver:
                going.sort(key=lambda one: one.guess is None)
                break
            going = [one for one in going if one.guess is not None and one.low < len(one.sizes)]
            going.sort(key=lambda one: (one.cost(max(one.guess or 0, one.low)), one.candidate.place))
            going = going[: -(-len(going) // 2)]
        self._together([(one, self._resolve(one, whole)) for one in going[:1]])

    def _guess(self, one: Standing, requests: int) -> Steps:
        """The fewest units that look like enough on the first requests."""
        start = max(one.low, one.guess or 0)
        small, place, step, last = start - 1, start, 1, len(one.sizes) - 1
        while place < len(one.sizes):
            trial = yield place, requests
            if trial.looks_kept:
                break
            small = place
            if place == last:
                one.guess = None
                return
            place, step = min(place + step, last), 2 * step
        while place - small > 1:
            middle = (small + place) // 2
            trial = yield middle, requests
            small, place = (small, middle) if trial.looks_kept else (middle, place)
        one.guess = place

    def _resolve(self, one: Standing, whole: int) -> Steps:
        """The fewest units that keep the SLO over all requests: up until it is kept, then down by halves."""
        place, step, last = max(one.low, one.guess or 0), 1, len(one.sizes) - 1
        while one.high is None:
            if one.low > last:
                return
            place = min(max(place, one.low), last)
            yield place, whole
            place, step = place + step, 2 * step
        step = 1
        while one.low < one.high:
            high = one.high
            place = max(one.low, high - step)
            yield place, whole
            step = 2 * step if one.high == place else max(1, (one.high - one.low) // 2)

    def _challenge(self) -> None:
        """Whatever may cost less than the best is tried at the largest size that does."""
        places = self.standings.going(self.best_cost)
        places.sort(
            key=lambda place: place not in self.standings.touched
        )  # what looks good is known of these
        self._foretell(len(places), "may cost less")
        for block in _blocks(places):
            best = self.best_cost
            going = [one for place in block if (one := self.standings[place]).least_cost < best]
            self._together([(one, self._challenged(one)) for one in going])

    def _cheaper(self, one: Standing) -> int:
        """The place of the largest size that costs less than the best by more than ε."""
        best = self.best_cost
        if math.isinf(best):
            return len(one.sizes) - 1
        place = one.place_within(best / (1 + self.within))
        while place >= 0 and one.cost(place) >= best:
            place -= 1
        return place

    def _challenged(self, one: Standing) -> Steps:
        *parts, whole = self.prober.rungs
        while not one.is_kept() and (place := self._cheaper(one)) >= one.low:
            for requests in parts:
                yield place, requests
                if one.low > place:
                    break
            else:
                yield place, whole
                if one.is_kept():
                    yield from self._resolve(one, whole)

    def _race(self) -> None:
        """Of those that cost the same, which is the fastest? Halving on the same requests, in pairs."""
        if self.best is None:
            return
        cost = self.best_cost
        places = self.standings.going(math.nextafter(cost, math.inf))
        self._foretell(len(places), "may cost no more and be faster")
        for block in _blocks(places):
            best = self.best
            ahead = [] if best is None or best.candidate.place in block else [best]
            self._race_of([*ahead, *(self.standings[place] for place in block)], cost)

    def _race_of(self, among: list[Standing], cost: float) -> None:
        places = {}
        for one in among:
            place = one.place_within(cost)
            if place >= one.low and (one.high is None or one.high == place):
                places[one.candidate.place] = place
        going = [one for one in among if one.candidate.place in places]
        *parts, whole = self.prober.rungs
        for requests in parts:
            if len(going) < 2:
                break
            self._together([(one, _once(places[one.candidate.place], requests)) for one in going])
            going = self._faster([one for one in going if one.low <= places[one.candidate.place]], requests)
        self._together(
            [
                (one, _once(places[one.candidate.place], whole))
                for one in going
                if one.high is None and one.low <= places[one.candidate.place]
            ]
        )

    def _faster(self, going: list[Standing], requests: int) -> list[Standing]:
        """The faster half, and those of the others of which chance does not tell whether they are slower."""
        ordered = sorted(going, key=lambda one: (one.trials[-1].share, one.candidate.place))
        half = -(-len(ordered) // 2)
        stay, leave = ordered[:half], ordered[half:]
        if not stay:
            return stay
        ahead = stay[0].trials[-1]
        for one in leave:
            behind = one.trials[-1]
            apart = [b - a for a, b in zip(ahead.shares, behind.shares, strict=True)]
            finite = all(map(math.isfinite, apart))
            level = 1 - (1 - self.prober.confidence) / len(self.standings)
            sure = self.prober.exact or not finite or (len(apart) > 1 and student(apart, level).low > 0)
            if one.high is not None or not sure:
                stay.append(one)
                continue
            one.beaten = behind
            worst = behind.worst
            one.by = (
                f"costs no less, within ε, than one that is faster on the first {requests:,} requests: "
                f"{worst.objective} {amount(worst.value, worst.objective.metric.unit)} against "
                f"{amount(ahead.worst.value, ahead.worst.objective.metric.unit)}"
            )
        return stay

    def _check(self) -> None:
        """Are more replicas better, as bisection takes it? If not, all sizes below the answer are run."""
        best = self.best
        if best is None or best.high is None:
            return
        whole = self.prober.rungs[-1]
        further = [place for place in (best.high + 1, best.high + 2) if place < len(best.sizes)]
        self._together([(best, _once(place, whole)) for place in further])
        for _, one in sorted(self.standings.touched.items()):
            kept = [trial.units for trial in one.whole if trial.verdict == "kept"]
            broken = [trial.units for trial in one.whole if trial.verdict == "broken"]
            worse = [units for units in broken if kept and units > min(kept)]
            if worse:
                self.gaps.append(
                    f"more is not always better: {one.candidate.size(min(kept))} keep the SLO, "
                    f"{one.candidate.size(min(worse))} do not, so every size below was run"
                )
                self._together([(one, self._every(one, whole))])

    def _every(self, one: Standing, whole: int) -> Steps:
        """Every size below the answer that was not run and that theory allows."""
        run = {trial.units for trial in one.whole}
        start = next((n for n, size in enumerate(one.sizes) if size >= one.limit.least), len(one.sizes))
        for place in range(start, one.high or 0):
            if one.sizes[place] not in run:
                trial = yield place, whole
                if trial.verdict == "kept":
                    one.high = one.low = place
                    return

    def _second(self) -> None:
        """A runner-up, where only one is known to keep the SLO: the one that looks cheapest, or the next."""
        if self.best is None:
            return
        touched = self.standings.touched
        others = [one for one in touched.values() if one.high is None and one.low < len(one.sizes)]
        fresh = (place for place in self.standings.going() if place not in touched)
        others += [self.standings.untouched(place) for place in islice(fresh, _SECONDS)]
        others.sort(
            key=lambda one: (one.guess is None, one.cost(max(one.low, one.guess or 0)), one.candidate.place)
        )
        for one in others[:_SECONDS]:
            if len(self.kept) > 1:
                return
            known = self.standings[one.candidate.place]
            self._together([(known, self._resolve(known, self.prober.rungs[-1]))])


def _blocks(places: list[int]) -> Iterator[list[int]]:
    """Some after the other."""
    return (places[first : first + _BLOCK] for first in range(0, len(places), _BLOCK))


def _once(place: int, requests: int) -> Steps:
    yield place, requests
