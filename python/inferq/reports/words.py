"""How is told whether a queue grows: in this run, and in the long run?"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from inferq.reports.numbers import number, percent, seconds

if TYPE_CHECKING:
    from inferq.theory.bounds.stability import Stability
    from inferq.theory.runs.observed import Observed


def sentence(text: str, names: Iterable[str] = ()) -> str:
    """A text with a capital letter and a full stop.

    Args:
        text: a finding.
        names: with which it may begin, and which stay as they are.

    Example:
        >>> from inferq.reports.words import sentence
        >>> sentence("one seed: take ten"), sentence("a100: overload", ["a100"]), sentence("ttft_p99: none.")
        ('One seed: take ten.', 'a100: overload.', 'ttft_p99: none.')
    """
    named = "_" in text.split(" ", 1)[0] or any(text.startswith(name) for name in names)
    text = text if named else f"{text[:1].upper()}{text[1:]}"
    return text if text.endswith((".", "!", "?")) else f"{text}."


def in_this_run(seen: Observed, arriving_s: float) -> str:
    """Whether the queue grew while requests came, in a sentence or two.

    Args:
        seen: what the run shows.
        arriving_s: from the first arrival to the last.
    """
    from inferq.theory.runs.observed import LEAST_ARRIVALS

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
    sure = f"with {100 * seen.confidence:g} % confidence"
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


def in_the_long_run(said: Stability, unit: str, *, given: str = "") -> list[str]:
    """What theory says of the queue if requests keep coming like this, and the limit that binds.

    Args:
        said: the verdict of theory.
        unit: what is counted, `"requests"` or `"jobs"`.
        given: a condition in front, such as "If requests kept coming like these".
    """
    told = _queue(said, unit, "" if given else " in the long run")
    told = f"{given}, {told}" if given else told
    binding = said.binding
    if binding is None or said.deciding is binding:
        return [sentence(told)]
    load = "" if said.load is None else f", and the load is {percent(said.load)} of that"
    most = f"at most {number(binding.capacity_per_s)} {unit} per second"
    return [sentence(told), f"The tightest limit is {binding.name}: {most}{load}."]


def _queue(said: Stability, unit: str, lasting: str) -> str:
    """What becomes of the queue, as theory knows it."""
    deciding, unsure = said.deciding, f"theory cannot tell whether the queue stays bounded{lasting}"
    come = "" if said.rate is None else f"{number(said.rate)} {unit} per second"
    if said.verdict == "unstable" and deciding is not None:
        return (
            f"the queue grows without end{lasting}: {come} come, and no policy serves more than "
            f"{number(deciding.capacity_per_s)} ({deciding.name})"
        )
    if said.verdict == "stable" and deciding is not None:
        return (
            f"the queue stays bounded{lasting}: {come} come, and up to "
            f"{number(deciding.capacity_per_s)} are proved to be served ({deciding.name})"
        )
    if said.verdict == "stable":
        return "the queue cannot grow without end: whoever waits gives up in the end"
    if said.never_served:
        return f"{unsure}: {percent(said.never_served)} of the {unit} are too long ever to be served"
    if not said.bounds:
        return f"{unsure}: no theorem covers this system"
    if said.rate is None:
        return f"{unsure}: nothing says how many {unit} come per second"
    over = [one for one in said.bounds if one.kind == "ceiling" and one.load is not None and one.load > 1]
    if over:
        near = min(over, key=lambda one: one.capacity_per_s)
        return (
            f"{unsure}: {come} are more than {number(near.capacity_per_s)} ({near.name}), a limit that may "
            "not hold here"
        )
    sure = [one for one in said.bounds if one.kind == "guarantee" and one.load is not None and one.load < 1]
    if sure:
        near = min(sure, key=lambda one: sum(not need.met for need in one.hypotheses))
        lacking = [need for need in near.hypotheses if not need.met]
        known = "which is not so here" if any(one.met is False for one in lacking) else "which is not known"
        return (
            f"{unsure}: {come} would be few enough ({near.name}) given "
            f"{' and '.join(one.name for one in lacking)}, {known}"
        )
    return f"{unsure}: {come} exceed no limit, and no theorem says that they are few enough"
