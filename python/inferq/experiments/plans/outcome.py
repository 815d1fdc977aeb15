"""Outcomes of the candidates of a plan, with reasons."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from inferq.display.text import number
from inferq.experiments.model_error import ModelErrors
from inferq.experiments.plans.candidate import Candidate
from inferq.experiments.plans.candidate_state import CandidateState
from inferq.experiments.plans.prober import Trial

Kind = Literal[
    "chosen", "meets the SLO", "undecided", "not cheaper", "breaks the SLO", "ruled out", "does not fit"
]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""Kinds in display order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CandidateOutcome:
    """The outcome of one candidate."""

    candidate: Candidate
    kind: Kind
    """`"chosen"`: the cheapest. `"meets the SLO"`: at a higher cost, or slower at the same cost. `"not
    cheaper"`: too small at every lower cost, or slower at the same cost. `"breaks the SLO"`: at every size.
    `"ruled out"`: by a theorem, or because a single request
    on an idle replica is too slow. `"undecided"`: out of time, or not significant. `"does not
    fit"`: the choices make no engine."""
    units: int | None = None
    """The fewest units that meet the SLO, spare replicas included. None if unknown."""
    cost: float | None = None
    """Cost of `units` per hour, or their GPUs."""
    at_least: float | None = None
    """Lower bound of the cost of a fleet that meets the SLO. None if no fleet does."""
    reason: str
    trial: Trial | None = None
    """The run that shows it. None if there is no run."""

    @property
    def model_error(self) -> str:
        """The published error of the model, if the margin of the run is smaller or the error is unknown."""
        if self.trial is None:
            return ""
        return ModelErrors.of(self.candidate.engine).note_on(self.trial.worst)


def outcomes_of(
    states: Sequence[CandidateState], *, stopped: bool, unit: str
) -> tuple[CandidateOutcome, ...]:
    """The outcome of each candidate at the end of a search, in the order of the grid."""
    best = min((state for state in states if state.meets_slo), key=lambda state: state.rank, default=None)
    outcomes = (_outcome(state, best, stopped, unit) for state in states)
    return tuple(replace(outcome, reason=f"{outcome.reason}{outcome.model_error}") for outcome in outcomes)


def counts(outcomes: Iterable[CandidateOutcome]) -> Mapping[str, int]:
    """The number of outcomes of each kind, in display order."""
    counted = Counter(outcome.kind for outcome in outcomes)
    return {kind: counted[kind] for kind in KINDS if counted[kind]}


def ordered(outcomes: Iterable[CandidateOutcome]) -> list[CandidateOutcome]:
    """Outcomes by kind, then by their minimum cost, then by place."""
    return sorted(
        outcomes,
        key=lambda outcome: (
            KINDS.index(outcome.kind),
            math.inf if outcome.at_least is None else outcome.at_least,
            outcome.candidate.place,
        ),
    )


def _outcome(
    state: CandidateState, best: CandidateState | None, stopped: bool, unit: str
) -> CandidateOutcome:
    candidate = state.candidate
    if state.misfit:
        return CandidateOutcome(candidate=candidate, kind="does not fit", reason=state.misfit)
    if state.limit.reason and state.limit.least > state.sizes[-1]:
        return CandidateOutcome(candidate=candidate, kind="ruled out", reason=state.limit.reason)
    if state.idle is not None:
        return CandidateOutcome(
            candidate=candidate,
            kind="ruled out",
            reason=f"{candidate.size(1)}: single requests on idle replicas already violate the SLO: "
            f"{state.idle.worst}",
        )
    if state.high is not None:
        assert best is not None
        return _sufficient(state, state.high, best)
    last = _last(state)
    if state.low >= len(state.sizes):
        return CandidateOutcome(
            candidate=candidate,
            kind="undecided" if state.undecided else "breaks the SLO",
            reason=f"with {candidate.size(state.sizes[-1])}: {last.evidence}" if last else state.limit.reason,
            trial=last,
        )
    at_least = state.least_cost
    if state.slower_reason:
        return CandidateOutcome(
            candidate=candidate,
            kind="not cheaper",
            at_least=at_least,
            reason=state.slower_reason,
            trial=state.slower,
        )
    if best is None or best.high is None or (stopped and at_least < best.cost(best.high)):
        return CandidateOutcome(
            candidate=candidate, kind="undecided", at_least=at_least, reason="out of time", trial=last
        )
    unit = "GPU" if unit == "GPUs" and at_least == 1 else unit
    return CandidateOutcome(
        candidate=candidate,
        kind="undecided" if state.undecided else "not cheaper",
        at_least=at_least,
        reason=f"costs at least {number(at_least)} {unit}: {_too_small(state, last)}",
        trial=last,
    )


def _sufficient(state: CandidateState, high: int, best: CandidateState) -> CandidateOutcome:
    """The outcome of a candidate that meets the SLO."""
    assert best.high is not None
    units, cost = state.sizes[high] + state.spare, state.cost(high)
    trial = next((trial for trial in state.whole if trial.units == state.sizes[high]), None)
    incomplete = "" if state.low == high else "; smaller fleets were not tried (out of time)"
    reason = f"{trial.worst}{incomplete}" if trial is not None else incomplete
    if state is best:
        return CandidateOutcome(
            candidate=state.candidate,
            kind="chosen",
            units=units,
            cost=cost,
            at_least=cost,
            reason=reason,
            trial=trial,
        )
    more = cost / best.cost(best.high) - 1
    behind = f"costs {number(100 * more)} % more" if more > 0 else "same cost, but slower"
    return CandidateOutcome(
        candidate=state.candidate,
        kind="meets the SLO",
        units=units,
        cost=cost,
        at_least=cost if state.is_resolved else state.least_cost,
        reason=f"{behind}; {reason}",
        trial=trial,
    )


def _too_small(state: CandidateState, last: Trial | None) -> str:
    """The reason why fewer units are not enough."""
    if last is None or not state.low or last.units < state.sizes[state.low - 1]:
        return state.limit.reason or "one replica is the minimum"
    part = "" if last.whole else f" on the first {last.requests:,} requests"
    part += ", which proves it" if last.is_proof else ""
    verdict = {"violated": "breaks the SLO"}.get(last.verdict, "is undecided")
    return f"{state.candidate.size(last.units)} {verdict}{part}; {last.evidence}"


def _last(state: CandidateState) -> Trial | None:
    """The longest trial of the largest size that is too small."""
    tried = [trial for trial in state.trials if trial.verdict in ("violated", "undecided")]
    return max(tried, key=lambda trial: (trial.units, trial.requests), default=None)
