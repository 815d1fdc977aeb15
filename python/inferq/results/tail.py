"""The finding of a long tail: a few requests that wait out of all proportion."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from inferq._lazy import NDArray, np
from inferq.display.text import counted, number, percent, seconds
from inferq.results.percentiles import percentiles
from inferq.systems.pools import pools_of

if TYPE_CHECKING:
    from inferq.results.findings import Run

LEAST_REQUESTS = 100
"""Of fewer a 99th percentile is a request or two, and no finding is made of it."""

_LONG_TAIL = 10.0
"""A 99th percentile this many times the median …"""
_LONG_WAIT_S = 1.0
"""… and of a second at least is told: a person waits that long for one request in a hundred."""


def found(run: Run) -> Iterator[str]:
    """A few requests that wait out of all proportion: when, for how long, and where."""
    if "job" in run.requests:
        return
    for name, waited, side in (("ttft", "queue_s", "prefill"), ("handoff", "handoff_s", "decode")):
        if f"{name}_s" not in run.requests:
            continue
        kept = partial(_kept, run, f"{name}_s")
        rows = late = 0
        for took in kept():
            rows, late = rows + took.size, late + int((took >= _LONG_WAIT_S).sum())
        if rows < LEAST_REQUESTS or 100 * late < rows - 1:  # then their 99th percentile is below
            continue
        p50, p99 = percentiles(kept, [50, 99])
        if p99 >= max(_LONG_WAIT_S, _LONG_TAIL * p50):
            slow = _slow(run, f"{name}_s", waited, max(_LONG_WAIT_S, _LONG_TAIL / 2 * p50))
            told = f"tail: {name} p99 is {seconds(p99)} beside a p50 of {seconds(p50)}"
            if slow.count:
                yield f"{told}: {_of_slow(run, slow, side)}"


def _kept(run: Run, latency: str) -> Iterator[NDArray[np.float64]]:
    """A latency of the measured requests that have it."""
    for measured, took in run.parts("measured", latency):
        yield took[measured & ~np.isnan(took)]


_Spells: TypeAlias = "tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]"
"""When each begins, when it ends, and how many intervals it is made of."""


@dataclass(slots=True)
class _Slow:
    """The requests that are slow in one latency."""

    latency: str
    beyond_s: float
    by_replica: NDArray[np.int64]
    count: int = 0
    waited_s: list[float] = field(default_factory=list)
    """Sums of what they waited in a queue, and …"""
    latency_s: list[float] = field(default_factory=list)
    """… of what they took; one of each part."""
    spells: _Spells = field(default_factory=lambda: (np.empty(0), np.empty(0), np.empty(0, np.int64)))
    """The times during which at least one of them was slow; see `_spells`."""


def _slow(run: Run, latency: str, waited: str, beyond_s: float) -> _Slow:
    """The measured requests that took more than so long."""
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


def _prompts(run: Run, slow: _Slow) -> Iterator[NDArray[np.float64]]:
    """The lengths of their prompts."""
    for measured, took, prompts in run.parts("measured", slow.latency, "prompt_tokens"):
        yield prompts[measured & (took > slow.beyond_s)].astype(float)


def _of_slow(run: Run, slow: _Slow, side: str) -> str:
    """What made them slow."""
    if math.fsum(slow.waited_s) / math.fsum(slow.latency_s) < 0.5:
        (of_slow,), (of_all,) = (
            percentiles(each, [50]) for each in (partial(_prompts, run, slow), run.prompts)
        )
        return (
            f"{counted(slow.count, 'request')} took long to be computed, and did not wait for "
            f"admission (prompts of {number(of_slow)} tokens in the middle, {number(of_all)} of all)"
        )
    begins, ends, counts = slow.spells
    longest = int(np.argmax(ends - begins))
    begin, end = float(begins[longest]), float(ends[longest])
    came = _Came.between(run, begin, end)
    share = (end - begin) / (run.end_s - came.first_s or 1.0)
    text = (
        f"{counted(slow.count, 'request')} waited. The longest queue was there from {number(begin)} s to "
        f"{number(end)} s ({percent(share)} of the run) and held {counts[longest]:,} of them"
    )
    where = _where(run, slow, side)
    if where:
        text += f", {where}"
    if run.says("overload") and end >= came.last_s:
        return f"{text}; it was still there when the last request arrived"
    rate, mean = came.inside / max(end - begin, 1e-9), came.rows / max(came.last_s - came.first_s, 1e-9)
    if rate >= 1.2 * mean:
        return (
            f"{text}; requests came at {number(rate)} per second then, {number(mean)} on average: a burst "
            "that this system does not carry"
        )
    heavy = came.tokens_inside / came.inside / (came.tokens / came.rows) if came.inside else 1.0
    if heavy >= 1.2:
        return f"{text}; requests were {number(heavy)} times as long then as on average"
    return f"{text}; requests came no faster than on average: the system is too near its limit to work it off"


@dataclass(slots=True)
class _Came:
    """What arrived in all, and within a time."""

    rows: int = 0
    inside: int = 0
    tokens: int = 0
    tokens_inside: int = 0
    first_s: float = math.nan
    """The arrival of the first row, and …"""
    last_s: float = math.nan
    """… of the last."""

    @classmethod
    def between(cls, run: Run, begin: float, end: float) -> _Came:
        """Both of them included."""
        came = cls()
        for arrival, prompts, outputs in run.parts("arrival_s", "prompt_tokens", "output_tokens"):
            if not arrival.size:
                continue
            within = (arrival >= begin) & (arrival <= end)
            tokens = prompts.astype(np.int64) + outputs
            came.first_s = came.first_s if came.rows else float(arrival[0])
            came.last_s = float(arrival[-1])
            came.rows += arrival.size
            came.inside += int(within.sum())
            came.tokens += int(tokens.sum())
            came.tokens_inside += int(tokens[within].sum())
        return came


def _spells(intervals: _Spells) -> _Spells:
    """The times during which at least one of some intervals goes on, and how many begin in each.

    An interval may be a spell itself, with a count of its own: so spells of parts become those of all.
    """
    begins, ends, counts = intervals
    if not begins.size:
        return intervals
    order = np.argsort(begins, kind="stable")
    starts, stops = begins[order], np.maximum.accumulate(ends[order])
    fresh = np.flatnonzero(np.concatenate([[True], starts[1:] > stops[:-1]]))
    last = np.concatenate([fresh[1:], [starts.size]]) - 1
    return starts[fresh], stops[last], np.add.reduceat(counts[order], fresh)


def _where(run: Run, slow: _Slow, side: str) -> str:
    """The replicas at which most of the slow requests waited, where that is not all of them."""
    pools = pools_of(run.system)
    replicas = slow.by_replica.size
    if any(pool.hands_to is not None for pool in pools):
        first = sum(pools[0].counts)
        here = range(first) if side == "prefill" else range(first, replicas)
        waiting = {name: _most_waiting(run, part) for name, part in _sides(first, replicas).items()}
        other = "decode" if side == "prefill" else "prefill"
        return (
            f"at the {len(here)} {side} replicas (up to {waiting[side]:,} waiting there, {waiting[other]:,} "
            f"at the {other} replicas): that side is too small"
        )
    if replicas < 3:
        return ""
    counts, most = slow.by_replica, int(slow.by_replica.argmax())
    if counts[most] >= 0.5 * counts.sum() and counts[most] >= 3 * counts.sum() / replicas:
        return f"{percent(counts[most] / counts.sum())} of them on replica {most} of {replicas}"
    return ""


def _sides(first: int, replicas: int) -> dict[str, range]:
    return {"prefill": range(first), "decode": range(first, replicas)}


def _most_waiting(run: Run, replicas: range) -> int:
    """The longest queue of some replicas together, over the samples of the timeline."""
    table = run.timeline
    if "waiting" not in table or not table["time_s"].size:
        return 0
    here = np.isin(table["replica"], replicas)
    if not here.any():
        return 0
    _, at = np.unique(table["time_s"][here], return_inverse=True)
    return int(np.bincount(at, weights=table["waiting"][here]).max())
