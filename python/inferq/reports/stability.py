"""Does a queue grow, in a run and in the long run? What theory says of it, in sentences and in a table."""

from __future__ import annotations

from inferq.display.document import Grid
from inferq.display.text import NONE, number, percent, seconds, sentence
from inferq.theory.bounds.stability import Bound, Stability
from inferq.theory.runs.observed import LEAST_ARRIVALS, Observed

_HIT_RATES = (
    "Of the prompts found: the share of their tokens that prefix caches are taken to find, at most where "
    "something is impossible, at least where it is proved to be served."
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


def planned(verdict: Stability, unit: str, rate: float | None = None) -> Grid:
    """What is proved, what is possible and what is not known about a rate, a line each.

    Args:
        verdict: of theory.
        unit: what is counted, `"requests"` or `"jobs"`.
        rate: which is judged, per second; None takes that of `verdict`.
    """
    at = verdict.rate if rate is None else rate
    ceilings = [one for one in verdict.bounds if one.kind == "ceiling" and one.applies]
    proved = [one for one in verdict.bounds if one.kind == "guarantee" and one.applies]
    hoped = [one for one in verdict.bounds if one.kind == "guarantee" and not one.applies]
    sure = max(proved, key=lambda one: one.capacity_per_s, default=None)
    most = min(ceilings, key=lambda one: one.capacity_per_s, default=None)
    lines = [
        ["Proved to be served", *_told(sure, "up to", "nothing is proved: no theorem covers this")],
    ]
    if hoped:
        near = max(hoped, key=lambda one: (-sum(not need.met for need in one.hypotheses), one.capacity_per_s))
        lacking = [
            f"{need.name} ({'not so' if need.met is False else 'not known'})"
            for need in near.hypotheses
            if not need.met
        ]
        if sure is None or near.capacity_per_s > sure.capacity_per_s:
            why = f"{near.name}; it takes {' and '.join(lacking)}"
            lines.append(["Served if more holds", f"up to {number(near.capacity_per_s)}", why])
    lines.append(["Impossible for any scheduler", *_told(most, "above", "no limit is known")])
    if at is not None:
        lines.append(["This load", number(at), _standing(at, sure, most)])
    assumed = {number(one.hit_rate) for one in verdict.bounds if one.hit_rate is not None}
    header = ("", f"{unit} per second", "why")
    return Grid(title="", header=header, lines=lines, texts=3, wraps=True, note=_HIT_RATES if assumed else "")


def _told(bound: Bound | None, word: str, otherwise: str) -> tuple[str, str]:
    if bound is None:
        return NONE, otherwise
    hits = "" if bound.hit_rate is None else f", with {percent(bound.hit_rate)} of the prompts found"
    return f"{word} {number(bound.capacity_per_s)}", f"{bound.name}{hits}"


def _standing(rate: float, sure: Bound | None, most: Bound | None) -> str:
    """Where a rate stands between what is proved and what is impossible."""
    if most is not None and rate > most.capacity_per_s:
        return f"{number(rate / most.capacity_per_s)} times what any scheduler serves for long"
    share = (
        "" if most is None else f"{percent(rate / most.capacity_per_s)} of what is possible at the very most"
    )
    if sure is not None and rate < sure.capacity_per_s:
        return f"proved to be served{f'; {share}' if share else ''}"
    between = "not proved either way: what a run shows is the evidence there is"
    return f"{share}; {between}" if share else between
