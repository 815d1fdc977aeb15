"""The question of a plan: whether it is about exactly these requests, or about a rate that holds for long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from inferq._lazy import pl
from inferq.display.text import amount, counted, number
from inferq.results.slo import Objective
from inferq.theory.demands.demand import Demand, long_run_rate
from inferq.workload.distributions import ArrivalProcess, TimeVarying
from inferq.workload.generated import Recipe, Step
from inferq.workload.transforms import mean_rate
from inferq.workload.workload import Workload, is_closed_loop

LEAST_REQUESTS = 2000
"""Fewest requests of a run about a rate."""
MOST_REQUESTS = 200_000
"""A trace is not extended beyond this number of requests."""
LONGER = 4
"""An answer about a rate must hold for runs that are this many times as long."""
_LIMITS = 20
"""A run about a rate lasts at least this many times the largest limit of a wait.

A queue within the limit then holds less than a twentieth of the requests and is no "overload".
"""
_SESSIONS = 5
"""A run about a rate of conversations lasts at least this many mean think times of a conversation."""


@dataclass(frozen=True, slots=True)
class Question:
    """What a plan is about."""

    workload: Workload
    """The requests of the runs."""
    about_rate: bool
    """Whether the rate holds for long. Otherwise the plan is about exactly these requests."""
    rate: float | None
    """Requests per second in the long run. None if all requests arrive at the same time."""
    span_s: float
    """Seconds from the first to the last arrival of the first seed."""
    requests: int
    """Requests of the workload as given."""
    trace: Workload | None = None
    """The trace to draw blocks from, if a run can be extended."""

    @property
    def longest(self) -> int:
        """The largest number of requests of a run."""
        return max(MOST_REQUESTS, self.requests)

    def extended(self, requests: int) -> Workload | None:
        """The workload with this number of requests, drawn in blocks from the trace; None if impossible."""
        if self.trace is None:
            return None
        if not self.trace.is_synthetic:
            return self.trace.resample(requests).at_rate(_given(self.rate))
        steps = (Step("resample", {"n": requests}), *self.trace._steps)
        return Workload._of(self.trace._source, steps, dict(self.trace._metadata))

    def with_requests(self, requests: int) -> Question:
        """The question with longer runs."""
        longer = self.extended(requests)
        assert longer is not None
        return replace(self, workload=longer)

    def __str__(self) -> str:
        """The scope of the answer."""
        if self.about_rate:
            return (
                "any load of this kind" if self.rate is None else f"{number(self.rate)} requests per second"
            )
        count = counted(self.requests, "request")
        return f"exactly these {count}, which arrive within {amount(self.span_s, 's')}"


def _given(rate: float | None) -> float:
    assert rate is not None
    return rate


def question_of(
    workload: Workload, demand: Demand, frame: pl.DataFrame, objectives: Sequence[Objective]
) -> Question:
    """The question of a plan.

    It is about a rate if the workload is drawn from distributions, if arrivals are drawn by a process, or if
    the trace was scaled by `at_rate`. A trace is then extended in blocks (`Workload.resample`).

    Args:
        workload: the workload of the plan.
        demand: its demand.
        frame: its requests with the first seed.
        objectives: the limits of the SLO.
    """
    steps = workload._steps
    arrival_s = frame["arrival_s"]
    span_s = float(arrival_s[-1]) - float(arrival_s[0])
    is_recipe = isinstance(workload._source, Recipe)
    is_closed = is_closed_loop(workload)
    draws = any(isinstance(step.arguments.get("arrivals"), ArrivalProcess) for step in steps)
    scaled = any(step.transform == "at_rate" for step in steps) or any(
        text.startswith("at_rate(") for text in workload.metadata.get("changes", ())
    )
    changing = (is_recipe and "TimeVarying" in demand.arrivals) or any(
        isinstance(step.arguments.get("arrivals"), TimeVarying) for step in steps
    )
    rate = None if is_closed else mean_rate(frame) if changing else _rate(workload, demand, frame)
    about_rate = not is_closed and not changing and (is_recipe or draws or scaled) and rate is not None
    question = Question(workload, about_rate, rate, span_s, frame.height)
    if not about_rate or is_recipe or any(_has_values(step) for step in steps):
        return question
    question = replace(question, trace=workload)
    waits = [item.limit for item in objectives if item.metric.quantity in ("ttft", "queue", "e2e")]
    least = max(frame.height, LEAST_REQUESTS, int(_LIMITS * max(waits, default=0.0) * _given(rate)))
    if "think_s" in frame.columns and "session_id" in frame.columns:
        think_s = float(frame["think_s"].fill_null(0.0).sum()) / max(frame["think_s"].null_count(), 1)
        least = max(least, int(_SESSIONS * think_s * _given(rate)))
    return question.with_requests(min(least, question.longest))


def _rate(workload: Workload, demand: Demand, frame: pl.DataFrame) -> float | None:
    """Requests per second in the long run: of the process that draws arrivals, else of the requests."""
    drawn = mean_rate(frame)
    steps = [step for step in workload._steps if isinstance(step.arguments.get("arrivals"), ArrivalProcess)]
    scaled = any(step.transform in ("speed", "at_rate") for step in workload._steps)
    if not steps or scaled or drawn is None:
        return demand.rate or drawn
    process = steps[-1].arguments["arrivals"]
    starts = frame["think_s"].null_count() if "think_s" in frame.columns else frame.height
    return long_run_rate(process) * frame.height / starts


def _has_values(step: Step) -> bool:
    """Whether a step holds one value per request, so that the number of requests is fixed."""
    values: list[Any] = list(step.arguments.values())
    return any(isinstance(value, (pl.Series, tuple)) for value in values) or step.transform == "resample"
