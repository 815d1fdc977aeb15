"""Stability of the queue in a run and in the long run, as sentences and as a table."""

from __future__ import annotations

from inferq.display.document import Grid
from inferq.display.text import NONE, number, percent, seconds, sentence
from inferq.theory.bounds.stability import Bound, Stability
from inferq.theory.runs.observed import LEAST_ARRIVALS, Observed
from inferq.workload.load import Load

_HIT_RATES = (
    "Cache hits: the share of prompt tokens that is assumed to be in the prefix cache. Upper bounds use the "
    "largest possible share, stability guarantees the smallest."
)


def in_this_run(seen: Observed, arriving_s: float) -> str:
    """Whether the queue grew during the arrivals, in a sentence or two.

    Args:
        seen: the statistics of the run.
        arriving_s: time from the first arrival to the last.
    """
    if seen.rate_per_s is None:
        if seen.service_s is None:
            return f"Queue growth is unknown: no {seen.counted} were served."
        if seen.arrived < LEAST_ARRIVALS:
            return (
                f"Queue growth is unknown: {seen.arrived:,} {seen.counted} arrived after the system had "
                f"filled, and {LEAST_ARRIVALS} are needed."
            )
        return (
            f"The run is too short to measure queue growth: {seen.counted} arrived for "
            f"{seconds(arriving_s)}, and serving one takes {seconds(seen.service_s)}."
        )
    low, high, growth = (
        percent(max(0.0, (value or 0.0) / seen.rate_per_s))
        for value in (seen.low_per_s, seen.high_per_s, seen.drift_per_s)
    )
    confidence = f"{percent(seen.confidence, 6)} confidence"
    if seen.verdict == "stable":
        return (
            f"The queue did not grow: at most {high} of the arriving {seen.counted} accumulated "
            f"({confidence})."
        )
    if seen.verdict == "unstable":
        return (
            f"The queue grew: {growth} of the arriving {seen.counted} accumulated ({low} to {high}, "
            f"{confidence})."
        )
    if (seen.low_per_s or 0.0) > 0:
        return f"The queue grew slightly: {growth} of the arriving {seen.counted} accumulated."
    return (
        f"The run is too short to measure queue growth: {low} to {high} of the arriving {seen.counted} "
        "accumulated."
    )


def in_the_long_run(verdict: Stability, unit: str, *, given: str = "", load: Load | None = None) -> list[str]:
    """The long-run behavior of the queue according to theory, the tightest bound and the attainable rate.

    Args:
        verdict: the verdict of theory.
        unit: what is counted, `"requests"` or `"jobs"`.
        given: a condition in front, such as "At this rate".
        load: the load of a run that varies over time, whose peak is evaluated as well.
    """
    queue = _queue(verdict, unit, "" if given else " in the long run")
    answer = sentence(f"{given}, {queue}" if given else queue)
    binding = verdict.binding
    if binding is None or verdict.deciding is binding:
        return [answer]
    capacity = f"{number(binding.capacity_per_s)} {unit} per second"
    limit = f"Tightest upper bound: {capacity} ({binding.name}), which may not be attainable."
    return [answer, limit, *_attainable(verdict, unit, load)]


def above_at_peak(verdict: Stability, load: Load | None) -> str:
    """A sentence if the peak of a varying load exceeds the tightest upper bound that applies, else empty."""
    bounds = [bound for bound in verdict.bounds if bound.kind == "upper_bound" and bound.applies]
    limit = min(bounds, key=lambda bound: bound.capacity_per_s, default=None)
    if load is None or limit is None or load.peak_per_s <= limit.capacity_per_s:
        return ""
    return (
        f"At its peak ({load.when}) the load exceeds what any scheduler can sustain: "
        f"{number(load.peak_per_s)} {load.unit} per second arrived, and the upper bound is "
        f"{number(limit.capacity_per_s)} ({limit.name}). The queue grows during that time."
    )


def _attainable(verdict: Stability, unit: str, load: Load | None) -> list[str]:
    """The load as a share of the rate that a guarantee with the fewest missing hypotheses attains."""
    guarantees = [bound for bound in verdict.bounds if bound.kind == "guarantee" and bound.load is not None]
    if not guarantees:
        return []
    near = min(guarantees, key=lambda bound: (sum(not need.met for need in bound.hypotheses), bound.load))
    missing = [need.name for need in near.hypotheses if not need.met]
    condition = f", given {' and '.join(missing)}" if missing else ""
    rate = f"{number(near.capacity_per_s)} {unit} per second ({near.name}{condition})"
    if load is not None:
        whole, peak = (value / near.capacity_per_s for value in (load.rate_per_s, load.peak_per_s))
        above = ", where no theorem decides" if max(whole, peak) > 1 else ""
        text = f"{percent(whole)} of it over the whole run and {percent(peak)} at its peak ({load.when})"
        return [f"{'Guaranteed' if above else 'Attainable'}: {rate}; the load is {text}{above}."]
    if (near.load or 0.0) > 1:
        return [f"Guaranteed: {rate}; the load is above it, where no theorem decides."]
    return [f"Attainable: {rate}; the load is {percent(near.load or 0.0)} of it."]


def _queue(verdict: Stability, unit: str, when: str) -> str:
    """The long-run behavior of the queue."""
    deciding, unknown = verdict.deciding, f"theory does not decide whether the queue is stable{when}"
    rate = "" if verdict.rate is None else f"{number(verdict.rate)} {unit} per second"
    if verdict.verdict == "unstable" and deciding is not None:
        return (
            f"the queue is unstable{when}: {rate} arrive, and no scheduler can sustain more than "
            f"{number(deciding.capacity_per_s)} ({deciding.name})"
        )
    if verdict.verdict == "stable" and deciding is not None:
        return (
            f"the queue is stable{when}: {rate} arrive, and up to {number(deciding.capacity_per_s)} are "
            f"guaranteed to be served ({deciding.name})"
        )
    if verdict.verdict == "stable":
        return "the queue is bounded, because waiting requests run out of patience"
    if verdict.never_served:
        return f"{unknown}: {percent(verdict.never_served)} of the {unit} are too long to be served"
    if not verdict.bounds:
        return f"{unknown}: no theorem covers this system"
    if verdict.rate is None:
        return f"{unknown}: the arrival rate is unknown"
    exceeded = [
        bound
        for bound in verdict.bounds
        if bound.kind == "upper_bound" and bound.load is not None and bound.load > 1
    ]
    if exceeded:
        near = min(exceeded, key=lambda bound: bound.capacity_per_s)
        return (
            f"{unknown}: {rate} exceed {number(near.capacity_per_s)} ({near.name}), an upper bound whose "
            "hypotheses are not met"
        )
    guarantees = [
        bound
        for bound in verdict.bounds
        if bound.kind == "guarantee" and bound.load is not None and bound.load < 1
    ]
    if guarantees:
        near = min(guarantees, key=lambda bound: sum(not need.met for need in bound.hypotheses))
        missing = [need for need in near.hypotheses if not need.met]
        state = "is not met" if any(need.met is False for need in missing) else "is not known"
        return (
            f"{unknown}: {rate} are below a stability guarantee ({near.name}) that requires "
            f"{' and '.join(need.name for need in missing)}, which {state}"
        )
    return f"{unknown}: {rate} are below every known upper bound, but no stability theorem applies"


def planned(verdict: Stability, unit: str, rate: float | None = None, *, varying: Load | None = None) -> Grid:
    """Stability guarantee, upper bound and load, one line each.

    Args:
        verdict: the verdict of theory.
        unit: what is counted, `"requests"` or `"jobs"`.
        rate: the load per second. Default: the rate of `verdict`.
        varying: the load of a run that varies over time, whose peak gets a line.
    """
    load = verdict.rate if rate is None else rate
    upper_bounds = [bound for bound in verdict.bounds if bound.kind == "upper_bound" and bound.applies]
    proved = [bound for bound in verdict.bounds if bound.kind == "guarantee" and bound.applies]
    conditional = [bound for bound in verdict.bounds if bound.kind == "guarantee" and not bound.applies]
    guarantee = max(proved, key=lambda bound: bound.capacity_per_s, default=None)
    limit = min(upper_bounds, key=lambda bound: bound.capacity_per_s, default=None)
    lines = [["Guaranteed stable", *_cells(guarantee, "up to", "no stability theorem applies")]]
    if conditional:
        near = max(
            conditional,
            key=lambda bound: (-sum(not need.met for need in bound.hypotheses), bound.capacity_per_s),
        )
        missing = [
            f"{need.name} ({'not met' if need.met is False else 'unknown'})"
            for need in near.hypotheses
            if not need.met
        ]
        if guarantee is None or near.capacity_per_s > guarantee.capacity_per_s:
            why = f"{near.name}; requires {' and '.join(missing)}"
            lines.append(["Stable under further conditions", f"up to {number(near.capacity_per_s)}", why])
    lines.append(["Unstable with any scheduler", *_cells(limit, "above", "no upper bound is known")])
    if load is not None:
        name = "This load" if varying is None else "This load, whole run"
        lines.append([name, number(load), _position(load, guarantee, limit)])
    if varying is not None:
        peak = varying.peak_per_s
        lines.append([f"Its peak, {varying.when}", number(peak), _position(peak, guarantee, limit)])
    assumed = {number(bound.hit_rate) for bound in verdict.bounds if bound.hit_rate is not None}
    header = ("", f"{unit} per second", "reason")
    return Grid(title="", header=header, lines=lines, texts=3, wraps=True, note=_HIT_RATES if assumed else "")


def _cells(bound: Bound | None, word: str, otherwise: str) -> tuple[str, str]:
    if bound is None:
        return NONE, otherwise
    hits = "" if bound.hit_rate is None else f", with {percent(bound.hit_rate)} cache hits"
    return f"{word} {number(bound.capacity_per_s)}", f"{bound.name}{hits}"


def _position(rate: float, guarantee: Bound | None, limit: Bound | None) -> str:
    """The position of a rate between guarantee and upper bound."""
    if limit is not None and rate > limit.capacity_per_s:
        return f"{number(rate / limit.capacity_per_s)} times the upper bound"
    share = "" if limit is None else f"{percent(rate / limit.capacity_per_s)} of the upper bound"
    if guarantee is not None and rate < guarantee.capacity_per_s:
        return f"guaranteed stable{f'; {share}' if share else ''}"
    between = "theory decides neither way; the run is the evidence"
    return f"{share}; {between}" if share else between
