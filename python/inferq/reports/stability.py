"""Does a queue grow, in a run and in the long run? What theory says of it, in sentences and in a table."""

from __future__ import annotations

from inferq.reports.document import Grid
from inferq.reports.text import number, percent, seconds, sentence
from inferq.theory.bounds.stability import Stability
from inferq.theory.runs.observed import LEAST_ARRIVALS, Observed

_HIT_RATES = (
    "Hit rate: the share of the prompt tokens that prefix caches are taken to find, at most where no policy "
    "passes a limit, at least where one is stable below it."
)


def in_this_run(seen: Observed, arriving_s: float) -> str:
    """Whether the queue grew while requests came, in a sentence or two.

    Args:
        seen: what the run shows.
        arriving_s: from the first arrival to the last.
    """
    if seen.rate_per_s is None:
        if seen.service_s is None:
            return f"Whether the queue grew cannot be told: no {seen.counted} were served."
        if seen.arrived < LEAST_ARRIVALS:
            return (
                f"Too few {seen.counted} came to tell whether the queue grew: {seen.arrived:,} once the "
                f"system had filled, and {LEAST_ARRIVALS} are needed."
            )
        return (
            f"The run is too short to tell whether the queue grew: {seen.counted} came for "
            f"{seconds(arriving_s)}, and serving one takes {seconds(seen.service_s)}."
        )
    low, high, growth = (
        percent(max(0.0, (value or 0.0) / seen.rate_per_s))
        for value in (seen.low_per_s, seen.high_per_s, seen.drift_per_s)
    )
    sure = f"with {percent(seen.confidence, 6)} confidence"
    if seen.verdict == "stable":
        return (
            f"The queue did not grow while {seen.counted} came: at most {high} of them stayed behind, {sure}."
        )
    if seen.verdict == "unstable":
        return (
            f"The queue grew while {seen.counted} came: {growth} of them stayed behind "
            f"({low} to {high}, {sure})."
        )
    if (seen.low_per_s or 0.0) > 0:
        return f"The queue grew, but hardly: {growth} of the {seen.counted} stayed behind."
    return (
        f"The run is too short to tell whether the queue grew: between {low} and {high} of the "
        f"{seen.counted} stayed behind."
    )


def in_the_long_run(verdict: Stability, unit: str, *, given: str = "") -> list[str]:
    """What theory says of the queue if requests keep coming like this, and the limit that binds.

    Args:
        verdict: of theory.
        unit: what is counted, `"requests"` or `"jobs"`.
        given: a condition in front, such as "If requests kept coming like these".
    """
    queue = _queue(verdict, unit, "" if given else " in the long run")
    answer = sentence(f"{given}, {queue}" if given else queue)
    binding = verdict.binding
    if binding is None or verdict.deciding is binding:
        return [answer]
    load = "" if verdict.load is None else f", and the load is {percent(verdict.load)} of that"
    most = f"at most {number(binding.capacity_per_s)} {unit} per second"
    return [answer, f"The tightest limit is {binding.name}: {most}{load}."]


def _queue(verdict: Stability, unit: str, lasting: str) -> str:
    """What becomes of the queue, as theory knows it."""
    deciding, unsure = verdict.deciding, f"theory cannot tell whether the queue stays bounded{lasting}"
    come = "" if verdict.rate is None else f"{number(verdict.rate)} {unit} per second"
    if verdict.verdict == "unstable" and deciding is not None:
        return (
            f"the queue grows without end{lasting}: {come} come, and no policy serves more than "
            f"{number(deciding.capacity_per_s)} ({deciding.name})"
        )
    if verdict.verdict == "stable" and deciding is not None:
        return (
            f"the queue stays bounded{lasting}: {come} come, and up to "
            f"{number(deciding.capacity_per_s)} are proved to be served ({deciding.name})"
        )
    if verdict.verdict == "stable":
        return "the queue cannot grow without end: a request that waits gives up in the end"
    if verdict.never_served:
        return f"{unsure}: {percent(verdict.never_served)} of the {unit} are too long ever to be served"
    if not verdict.bounds:
        return f"{unsure}: no theorem covers this system"
    if verdict.rate is None:
        return f"{unsure}: nothing says how many {unit} come per second"
    over = [one for one in verdict.bounds if one.kind == "ceiling" and one.load is not None and one.load > 1]
    if over:
        near = min(over, key=lambda one: one.capacity_per_s)
        return (
            f"{unsure}: {come} are more than {number(near.capacity_per_s)} ({near.name}), a limit that may "
            "not hold here"
        )
    sure = [
        one for one in verdict.bounds if one.kind == "guarantee" and one.load is not None and one.load < 1
    ]
    if sure:
        near = min(sure, key=lambda one: sum(not need.met for need in one.hypotheses))
        lacking = [need for need in near.hypotheses if not need.met]
        state = "which is not so here" if any(one.met is False for one in lacking) else "which is not known"
        return (
            f"{unsure}: {come} would be few enough ({near.name}) given "
            f"{' and '.join(one.name for one in lacking)}, {state}"
        )
    return f"{unsure}: {come} exceed no limit, and no theorem says that they are few enough"


def bounds(verdict: Stability, rate: float | None = None) -> Grid:
    """Every bound with its capacity, the load, and whether its hypotheses are met.

    Args:
        verdict: of theory.
        rate: at which the loads are, per second; None takes that of `verdict`.
    """
    at = verdict.rate if rate is None else rate
    kinds = {"ceiling": "at most", "guarantee": "stable below"}
    cached = any(one.hit_rate is not None for one in verdict.bounds)
    lines = [
        [
            one.name,
            f"{kinds[one.kind]} {number(one.capacity_per_s)}",
            percent(one.load if rate is None else rate / one.capacity_per_s),
            *([percent(one.hit_rate)] if cached else []),
            "met" if one.applies else "not all met",
        ]
        for one in verdict.bounds
    ]
    load = "load" if at is None else f"load at {number(at)} per second"
    header = ("limit of theory", "per second", load, *(["hit rate"] if cached else []), "hypotheses")
    note = _HIT_RATES if cached else ""
    return Grid(title="", header=header, lines=lines, texts=2, last_is_text=True, note=note)
