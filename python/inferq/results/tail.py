"""Findings about long tails: a few requests whose latency is far above the median."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from inferq._lazy import NDArray, np
from inferq.display.text import counted, number, percent, seconds
from inferq.results.finding import Finding
from inferq.results.percentiles import percentiles
from inferq.results.run_facts import RunFacts
from inferq.systems.pools import pools_of

LEAST_REQUESTS = 100
"""A 99th percentile of fewer requests rests on one or two of them."""

_LONG_TAIL = 10.0
"""A tail is long if the 99th percentile is at least this many times the median …"""
_LONG_WAIT_S = 1.0
"""… and at least this long."""


def long_tails(run: RunFacts) -> Iterator[Finding]:
    """Long tails of TTFT and of hand-off time: when, for how long, and where requests waited."""
    if "job" in run.requests:
        return
    for name, waited, side in (("ttft", "queue_s", "prefill"), ("handoff", "handoff_s", "decode")):
        if f"{name}_s" not in run.requests:
            continue
        latencies = partial(_measured, run, f"{name}_s")
        rows = slow_rows = 0
        for latency in latencies():
            rows += latency.size
            slow_rows += int((latency >= _LONG_WAIT_S).sum())
        if rows < LEAST_REQUESTS or 100 * slow_rows < rows - 1:  # then the 99th percentile is below
            continue
        p50, p99 = percentiles(latencies, [50, 99])
        if p99 >= max(_LONG_WAIT_S, _LONG_TAIL * p50):
            slow = _slow(run, f"{name}_s", waited, max(_LONG_WAIT_S, _LONG_TAIL / 2 * p50))
            if slow.count:
                reason, data = _reason(run, slow, side)
                yield Finding(
                    "long-tail",
                    f"{name} P99 is {seconds(p99)}, P50 is {seconds(p50)}: {reason}",
                    {"metric": name, "p50_s": p50, "p99_s": p99, "count": slow.count, **data},
                )


def _measured(run: RunFacts, latency: str) -> Iterator[NDArray[np.float64]]:
    """A latency of the measured requests that have it."""
    for measured, values in run.parts("measured", latency):
        yield values[measured & ~np.isnan(values)]


_Spells: TypeAlias = "tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]"
"""Start, end and number of intervals of each spell."""


@dataclass(slots=True)
class _Slow:
    """The requests that are slow in one latency."""

    latency: str
    beyond_s: float
    by_replica: NDArray[np.int64]
    count: int = 0
    waited_s: list[float] = field(default_factory=list)
    """Sums of their queueing times, one for each part."""
    latency_s: list[float] = field(default_factory=list)
    """Sums of their latencies, one for each part."""
    spells: _Spells = field(default_factory=lambda: (np.empty(0), np.empty(0), np.empty(0, np.int64)))
    """The times during which at least one of them was slow; see `_spells`."""


def _slow(run: RunFacts, latency: str, waited: str, beyond_s: float) -> _Slow:
    """The measured requests whose latency exceeds `beyond_s`."""
    replicas = sum(sum(pool.counts) for pool in pools_of(run.system))
    slow = _Slow(latency, beyond_s, np.zeros(replicas, np.int64))
    for measured, arrival, took, queue, at in run.parts("measured", "arrival_s", latency, waited, "replica"):
        here = measured & (took > beyond_s)  # a comparison with NaN is false
        slow.count += int(here.sum())
        slow.waited_s.append(np.nansum(queue[here]))
        slow.latency_s.append(np.nansum(took[here]))
        spells = _spells((arrival[here], (arrival + took)[here], np.ones(int(here.sum()), np.int64)))
        begins, ends, counts = (np.concatenate(both) for both in zip(slow.spells, spells, strict=True))
        slow.spells = _spells((begins, ends, counts))
        slow.by_replica += np.bincount(at[here & (at < replicas)], minlength=replicas)
    return slow


def _prompts(run: RunFacts, slow: _Slow) -> Iterator[NDArray[np.float64]]:
    """The prompt lengths of the slow requests."""
    for measured, took, prompts in run.parts("measured", slow.latency, "prompt_tokens"):
        yield prompts[measured & (took > slow.beyond_s)].astype(float)


def _reason(run: RunFacts, slow: _Slow, side: str) -> tuple[str, dict[str, Any]]:
    """Why they were slow, and the numbers in that text."""
    if math.fsum(slow.waited_s) / math.fsum(slow.latency_s) < 0.5:
        (of_slow,), (of_all,) = (
            percentiles(each, [50]) for each in (partial(_prompts, run, slow), run.prompts)
        )
        text = (
            f"{counted(slow.count, 'request')} took long to compute and did not wait for admission (median "
            f"prompt {number(of_slow)} tokens, {number(of_all)} over all requests)"
        )
        return text, {"prompt_tokens_p50": of_slow, "prompt_tokens_p50_of_all": of_all}
    begins, ends, counts = slow.spells
    longest = int(np.argmax(ends - begins))
    begin, end = float(begins[longest]), float(ends[longest])
    arrivals = _Arrivals.between(run, begin, end)
    share = (end - begin) / (run.end_s - arrivals.first_s or 1.0)
    text = (
        f"{counted(slow.count, 'request')} waited. The longest queue lasted from {number(begin)} s to "
        f"{number(end)} s ({percent(share)} of the run) and held {counts[longest]:,} of them"
    )
    data = {"queue_start_s": begin, "queue_end_s": end, "queued": int(counts[longest])}
    where = _where(run, slow, side)
    if where:
        text += f", {where}"
    if run.has("overload") and end >= arrivals.last_s:
        return f"{text}; it was still there at the last arrival", data
    rate = arrivals.inside / max(end - begin, 1e-9)
    mean = arrivals.rows / max(arrivals.last_s - arrivals.first_s, 1e-9)
    data |= {"rate_per_s": rate, "mean_rate_per_s": mean}
    if rate >= 1.2 * mean:
        return (
            f"{text}; requests arrived at {number(rate)} per second then and at {number(mean)} on average: a "
            "burst beyond the capacity of this system",
            data,
        )
    heavy = (
        arrivals.tokens_inside / arrivals.inside / (arrivals.tokens / arrivals.rows)
        if arrivals.inside
        else 1.0
    )
    if heavy >= 1.2:
        return f"{text}; requests were {number(heavy)} times as long then as on average", data
    return (
        f"{text}; requests arrived no faster than on average: the system has too little spare capacity to "
        "drain the queue",
        data,
    )


@dataclass(slots=True)
class _Arrivals:
    """Totals of all arrivals, and of those within an interval."""

    rows: int = 0
    inside: int = 0
    tokens: int = 0
    tokens_inside: int = 0
    first_s: float = math.nan
    """Arrival of the first row."""
    last_s: float = math.nan
    """Arrival of the last row."""

    @classmethod
    def between(cls, run: RunFacts, begin: float, end: float) -> _Arrivals:
        """Totals over a run, with the interval from `begin` to `end`, both included."""
        totals = cls()
        for arrival, prompts, outputs in run.parts("arrival_s", "prompt_tokens", "output_tokens"):
            if not arrival.size:
                continue
            within = (arrival >= begin) & (arrival <= end)
            tokens = prompts.astype(np.int64) + outputs
            totals.first_s = totals.first_s if totals.rows else float(arrival[0])
            totals.last_s = float(arrival[-1])
            totals.rows += arrival.size
            totals.inside += int(within.sum())
            totals.tokens += int(tokens.sum())
            totals.tokens_inside += int(tokens[within].sum())
        return totals


def _spells(intervals: _Spells) -> _Spells:
    """The times covered by at least one interval, and how many intervals start in each.

    An interval may be a spell with its own count, so that spells of parts merge into spells of the whole.
    """
    begins, ends, counts = intervals
    if not begins.size:
        return intervals
    order = np.argsort(begins, kind="stable")
    starts, stops = begins[order], np.maximum.accumulate(ends[order])
    fresh = np.flatnonzero(np.concatenate([[True], starts[1:] > stops[:-1]]))
    last = np.concatenate([fresh[1:], [starts.size]]) - 1
    return starts[fresh], stops[last], np.add.reduceat(counts[order], fresh)


def _where(run: RunFacts, slow: _Slow, side: str) -> str:
    """The replicas at which most of the slow requests waited; empty if spread over all."""
    pools = pools_of(run.system)
    replicas = slow.by_replica.size
    if any(pool.hands_to is not None for pool in pools):
        first = sum(pools[0].counts)
        here = range(first) if side == "prefill" else range(first, replicas)
        waiting = {name: _most_waiting(run, part) for name, part in _sides(first, replicas).items()}
        other = "decode" if side == "prefill" else "prefill"
        return (
            f"at the {counted(len(here), f'{side} replica')} (up to {waiting[side]:,} waiting there, "
            f"{waiting[other]:,} at the {other} replicas): that side is too small"
        )
    if replicas < 3:
        return ""
    counts, most = slow.by_replica, int(slow.by_replica.argmax())
    if counts[most] >= 0.5 * counts.sum() and counts[most] >= 3 * counts.sum() / replicas:
        return f"{percent(counts[most] / counts.sum())} of them on replica {most} of {replicas}"
    return ""


def _sides(first: int, replicas: int) -> dict[str, range]:
    return {"prefill": range(first), "decode": range(first, replicas)}


def _most_waiting(run: RunFacts, replicas: range) -> int:
    """The longest total queue of several replicas over the samples of the timeline."""
    table = run.timeline
    if "waiting" not in table or not table["time_s"].size:
        return 0
    here = np.isin(table["replica"], replicas)
    if not here.any():
        return 0
    _, at = np.unique(table["time_s"][here], return_inverse=True)
    return int(np.bincount(at, weights=table["waiting"][here]).max())
