"""The search for the cheapest fleet: theory first, then partial runs of growing length, then whole runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

from inferq.display.text import amount, counted, number
from inferq.experiments.plans.candidate_state import CandidateState
from inferq.experiments.plans.prober import Prober, Trial
from inferq.interval import confidence_interval

Steps = Generator[tuple[int, int], Trial, None]
"""The trials that one candidate needs next: the place of a size, and the number of requests."""

_BATCH = 256
"""Candidates of a round that run between two checks of the deadline."""
_MOST_EXHAUSTIVE = 100_000
"""Requests that are spent on every cheaper size, so that small plans do not rely on monotonicity."""
_MOST_RUNNERS_UP = 3
"""Candidates that are tried as runner-up."""


class _OutOfTime(Exception):
    """The deadline has passed."""


@dataclass(slots=True, eq=False)
class Search:
    """One search, in rounds. All candidates of a round run side by side.

    A candidate is dropped for one of three reasons. It is proved too small at every cost below the best (by a
    theorem, by invariant L11 on a partial run, or by a whole run). It costs at least as much as the best. Or
    it costs the same and is slower. Successive halving determines the order: after each length the more
    promising half continues, and the rest waits until there is a fleet to compare with.

    Args:
        prober: makes the trials.
        states: the state of each candidate, in the order of the grid.
        within: ε, the accepted excess over the lowest cost.
        log: called with a sentence after each stage.
    """

    prober: Prober
    states: Sequence[CandidateState]
    within: float
    log: Callable[[str], object] | None
    stopped: bool = False
    """Whether the search ran out of time."""
    gaps: list[str] = field(default_factory=list)
    """Cases in which more replicas were worse."""

    def run(self) -> None:
        """Run all stages until the deadline."""
        try:
            self._screen()
            self._log("screening done")
            self._challenge()
            self._log("cheaper candidates tried")
            self._race()
            self._check_monotonicity()
            self._try_every_cheaper_size()
            self._find_runner_up()
        except _OutOfTime:
            self.stopped = True

    @property
    def sufficient(self) -> list[CandidateState]:
        """Candidates that meet the SLO."""
        return [state for state in self.states if state.meets_slo]

    @property
    def best(self) -> CandidateState | None:
        """The cheapest candidate that meets the SLO; at equal cost the one with the lowest latency."""
        return min(self.sufficient, key=lambda state: state.rank, default=None)

    @property
    def best_cost(self) -> float:
        """The cost of the best candidate; infinite if there is none."""
        costs = (state.cost(state.high) for state in self.sufficient if state.high is not None)
        return min(costs, default=math.inf)

    def open_states(self, below: float = math.inf) -> list[CandidateState]:
        """Candidates that may meet the SLO at a cost below `below`, cheapest first."""
        states = [state for state in self.states if state.least_cost < below]
        return sorted(states, key=lambda state: state.least_cost)

    def _log(self, stage: str) -> None:
        if self.log is None:
            return
        best, result = self.best, "no fleet meets the SLO yet"
        if best is not None and best.high is not None:
            size = best.sizes[best.high] + best.spare
            result = f"cheapest so far: {best.candidate.size(size)}"
        self.log(
            f"{stage}: {counted(len(self.states), 'candidate')}, {counted(self.prober.runs, 'run')} of "
            f"{number(self.prober.simulated)} requests; {result}"
        )

    def run_steps(self, searches: Sequence[tuple[CandidateState, Steps]]) -> None:
        """Run the steps of several candidates side by side, one round at a time."""
        active = [
            (state, steps, step) for state, steps in searches if (step := next(steps, None)) is not None
        ]
        while active:
            trials: list[Trial] = []
            for first in range(0, len(active), _BATCH):
                if self.prober.late:
                    raise _OutOfTime
                batch = active[first : first + _BATCH]
                trials += self.prober.run(
                    [(state.candidate, state.sizes[place], requests) for state, _, (place, requests) in batch]
                )
                for (state, _, (place, _)), trial in zip(batch, trials[first:], strict=True):
                    state.add(place, trial)
            remaining = []
            for (state, steps, _), trial in zip(active, trials, strict=True):
                try:
                    remaining.append((state, steps, steps.send(trial)))
                except StopIteration:
                    continue
            active = remaining

    def _screen(self) -> None:
        """Successive halving on partial runs; the most promising candidate continues to whole runs."""
        active = [state for state in self.open_states() if state.check_engine()]
        active = self._not_impossible(active)
        *parts, whole = self.prober.rungs
        for requests in parts:
            self.run_steps([(state, self._guess(state, requests)) for state in active])
            active = [state for state in active if state.guess is not None and state.low < len(state.sizes)]
            active.sort(
                key=lambda state: (state.cost(max(state.guess or 0, state.low)), state.candidate.place)
            )
            active = active[: -(-len(active) // 2)]
        self.run_steps([(state, self.resolve(state, whole)) for state in active[:1]])

    def _not_impossible(self, states: list[CandidateState]) -> list[CandidateState]:
        """The candidates whose single requests on idle replicas do not violate the SLO."""
        for first in range(0, len(states), _BATCH):
            if self.prober.late:
                raise _OutOfTime
            batch = states[first : first + _BATCH]
            for state, trial in zip(
                batch, self.prober.idle([state.candidate for state in batch]), strict=True
            ):
                if trial is not None:
                    state.idle, state.low = trial, len(state.sizes)
        return [state for state in states if state.idle is None]

    def _guess(self, state: CandidateState, requests: int) -> Steps:
        """Find the fewest units that look sufficient on the first requests."""
        start = max(state.low, state.guess or 0)
        small, place, step, last = start - 1, start, 1, len(state.sizes) - 1
        while place < len(state.sizes):
            trial = yield place, requests
            if trial.looks_met:
                break
            small = place
            if place == last:
                state.guess = None
                return
            place, step = min(place + step, last), 2 * step
        while place - small > 1:
            middle = (small + place) // 2
            trial = yield middle, requests
            small, place = (small, middle) if trial.looks_met else (middle, place)
        state.guess = place

    def resolve(self, state: CandidateState, whole: int) -> Steps:
        """Find the fewest units that meet the SLO on all requests: doubling steps up, then bisection down."""
        place, step, last = max(state.low, state.guess or 0), 1, len(state.sizes) - 1
        while state.high is None:
            if state.low > last:
                return
            place = min(max(place, state.low), last)
            yield place, whole
            place, step = place + step, 2 * step
        step = 1
        while state.low < state.high:
            high = state.high
            place = max(state.low, high - step)
            yield place, whole
            step = 2 * step if state.high == place else max(1, (state.high - state.low) // 2)

    def _challenge(self) -> None:
        """Try every candidate that may be cheaper than the best at the largest size that is cheaper."""
        self.run_steps([(state, self._challenged(state)) for state in self.open_states(self.best_cost)])

    def _cheaper(self, state: CandidateState) -> int:
        """The place of the largest size that is cheaper than the best by more than ε."""
        best = self.best_cost
        if math.isinf(best):
            return len(state.sizes) - 1
        place = state.place_within(best / (1 + self.within))
        while place >= 0 and state.cost(place) >= best:
            place -= 1
        return place

    def _challenged(self, state: CandidateState) -> Steps:
        *parts, whole = self.prober.rungs
        while not state.meets_slo and (place := self._cheaper(state)) >= state.low:
            for requests in parts:
                yield place, requests
                if state.low > place:
                    break
            else:
                yield place, whole
                if state.high is not None:
                    yield from self.resolve(state, whole)

    def _race(self) -> None:
        """Find the fastest of the candidates of equal cost by halving, in pairs on the same requests."""
        if self.best is None:
            return
        cost, places = self.best_cost, {}
        open_states = self.open_states(math.nextafter(cost, math.inf))
        for state in open_states:
            place = state.place_within(cost)
            if place >= state.low and (state.high is None or state.high == place):
                places[state.candidate.place] = place
        active = [state for state in open_states if state.candidate.place in places]
        *parts, whole = self.prober.rungs
        for requests in parts:
            if len(active) < 2:
                break
            self.run_steps([(state, _once(places[state.candidate.place], requests)) for state in active])
            active = self._faster(
                [state for state in active if state.low <= places[state.candidate.place]], requests
            )
        self.run_steps(
            [
                (state, _once(places[state.candidate.place], whole))
                for state in active
                if state.high is None and state.low <= places[state.candidate.place]
            ]
        )

    def _faster(self, active: list[CandidateState], requests: int) -> list[CandidateState]:
        """The faster half, and the candidates of the other half that are not significantly slower."""
        ordered = sorted(active, key=lambda state: (state.trials[-1].share, state.candidate.place))
        half = -(-len(ordered) // 2)
        faster, rest = ordered[:half], ordered[half:]
        if not faster:
            return faster
        ahead = faster[0].trials[-1]
        for state in rest:
            behind = state.trials[-1]
            differences = [b - a for a, b in zip(ahead.shares, behind.shares, strict=True)]
            finite = all(map(math.isfinite, differences))
            level = 1 - (1 - self.prober.confidence) / len(self.states)
            significant = (
                self.prober.exact
                or not finite
                or (len(differences) > 1 and confidence_interval(differences, level).low > 0)
            )
            if state.high is not None or not significant:
                faster.append(state)
                continue
            state.slower = behind
            worst = behind.worst
            state.slower_reason = (
                f"not cheaper by more than ε than one that is faster on the first {requests:,} requests: "
                f"{worst.objective} {amount(worst.value, worst.objective.metric.unit)} against "
                f"{amount(ahead.worst.value, ahead.worst.objective.metric.unit)}"
            )
        return faster

    def _check_monotonicity(self) -> None:
        """Check that more replicas are better, as bisection assumes. If not, run all smaller sizes."""
        best = self.best
        if best is None or best.high is None:
            return
        whole = self.prober.rungs[-1]
        larger = [place for place in (best.high + 1, best.high + 2) if place < len(best.sizes)]
        self.run_steps([(best, _once(place, whole)) for place in larger])
        for state in self.states:
            met = [trial.units for trial in state.whole if trial.verdict == "met"]
            violated = [trial.units for trial in state.whole if trial.verdict == "violated"]
            worse = [units for units in violated if met and units > min(met)]
            if worse:
                self.gaps.append(
                    f"more replicas are not always better: {state.candidate.size(min(met))} meets the SLO, "
                    f"{state.candidate.size(min(worse))} does not; all smaller sizes were run"
                )
                self.run_steps([(state, self._every(state, whole))])

    def _every(self, state: CandidateState, whole: int) -> Steps:
        """Run every size that theory allows and that is below the smallest sufficient one."""
        done = {trial.units for trial in state.whole}
        start = next((n for n, size in enumerate(state.sizes) if size >= state.limit.least), len(state.sizes))
        for place in range(start, state.high or 0):
            if state.sizes[place] not in done:
                trial = yield place, whole
                if trial.verdict == "met":
                    state.high = state.low = place
                    return

    def _try_every_cheaper_size(self) -> None:
        """Run every cheaper size of a small plan of fixed requests, the cheapest first.

        Fixed requests can be served in time by n replicas and too late by n + 1, which bisection misses.
        """
        if not self.prober.exact:
            return
        best, *parts = self.best_cost, *self.prober.rungs
        untried = sorted(
            (state.cost(place), state.candidate.place, place)
            for state in self.states
            if state.idle is None and not state.misfit and not math.isinf(state.limit.least)
            for tried in [{trial.units for trial in state.trials if trial.verdict != "open"}]
            for place, size in enumerate(state.sizes)
            if size not in tried
            and state.cost(place) < best
            and state.cost(place) * (1 + self.within) <= best
        )
        if len(untried) * parts[-1] > _MOST_EXHAUSTIVE:
            return
        by_place = {state.candidate.place: state for state in self.states}
        for _, number_of_state, place in untried:
            state = by_place[number_of_state]
            self.run_steps([(state, _until_proved(place, parts))])
            if state.trials[-1].whole and state.trials[-1].verdict == "met":
                state.high = state.low = place
                size = state.sizes[place]
                self.gaps.append(
                    f"more replicas are not always better: {state.candidate.size(size)} meets the SLO, a "
                    "larger fleet does not; every cheaper size was run"
                )
                return

    def _find_runner_up(self) -> None:
        """If only one candidate meets the SLO, resolve the most promising of the rest as runner-up."""
        if self.best is None:
            return
        rest = [state for state in self.states if state.high is None and state.low < len(state.sizes)]
        rest.sort(
            key=lambda state: (
                state.guess is None,
                state.cost(max(state.low, state.guess or 0)),
                state.candidate.place,
            )
        )
        for state in rest[:_MOST_RUNNERS_UP]:
            if len(self.sufficient) > 1:
                return
            self.run_steps([(state, self.resolve(state, self.prober.rungs[-1]))])


def _until_proved(place: int, lengths: Sequence[int]) -> Steps:
    for requests in lengths:
        trial = yield place, requests
        if trial.verdict == "violated":
            return


def _once(place: int, requests: int) -> Steps:
    yield place, requests
