"""Which thresholds keep WAIT stable, and how much memory do they need?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import ClassVar

from inferq.checks import MOST_COUNT, flag, shown, whole, within
from inferq.description import Table
from inferq.errors import ConfigError
from inferq.scheduler import Wait
from inferq.systems.engine import Engine
from inferq.theory.capacities.fluid import FluidEngine
from inferq.theory.demands.demand import MOST_RATE, Demand, WorkloadLike
from inferq.theory.demands.lengths import FirstToken, Lengths
from inferq.theory.statement import Hypothesis, Statement, hypotheses_text, number
from inferq.timing import MemoryLinear

_EVEN = 1e-12
"""Numbers that differ by a smaller share are equal: what is left of them is rounding."""
_STEPS = 100_000
"""Steps after which the search for the least thresholds gives up: they are large where it takes so many."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitClass:
    """One class under WAIT."""

    name: str
    rate: float
    """λ_j in requests per second, in the long run."""
    iterations: float
    """E[l'_j + 1]."""
    kv_token_iterations: float
    """E[(l'_j + 1)(l_j + l'_j/2)]."""
    threshold: int
    """n_j."""
    arrivals: float
    """λ_j·ΔT: arrivals during one iteration (the fullest one, where rates change)."""
    slack: float
    """n_j / (λ_j·ΔT) − 1: 0 where (9) holds with equality, negative where it does not hold."""
    queue_bound: float | None
    """E[requests that wait to begin] at the ends of iterations is at most this; None without slack."""
    time_in_system_s: float
    """E[l'_j + 1]·n_j/λ_j: each iteration of a request waits for n_j newcomers of its class."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitThresholds(Statement):
    """Thresholds of WAIT, and what follows from them. `thresholds` is empty where there are none."""

    source: ClassVar[str] = "ao2025 (9), Theorem 1"

    feasible: bool
    reason: str
    """Why not; empty where it is."""
    thresholds: Mapping[str, int]
    """n_j by class, as `iq.research.Wait(thresholds=…)` takes them."""
    classes: tuple[WaitClass, ...]
    cache_load: float
    """d1·Σ λ_j E[(l'_j + 1)(l_j + l'_j/2)], at the rates of the long run."""
    base_s: float
    """d0."""
    per_kv_token_s: float
    """d1."""
    strict: bool
    """Whether (9) is asked for with <, not with ≤."""
    margin: float
    """n_j exceeds the arrivals of an iteration by at least this share of them."""
    iteration_s: float | None
    """ΔT of (9): an iteration with n_j requests at every stage of every class."""
    kv_tokens_needed: float | None
    """M^π of (9): with the longest lengths of each class; WAIT never holds more."""
    kv_tokens: int | None
    """C."""
    batch_limit: int | None
    """Σ n_j (l'_j + 1): requests that WAIT holds at most; None where a class has no longest output."""
    throughput_gap: str | None
    """How the loss against the fluid shrinks with the horizon T by Theorem 1: `"1/T"` or `"1/sqrt(T)"`."""
    hypotheses: tuple[Hypothesis, ...]

    def scheduler(self, *, max_seqs: int | None = None) -> Wait:
        """WAIT with these thresholds.

        Raises:
            ConfigError: they are not feasible.
        """
        if not self.feasible:
            raise ConfigError("thresholds", f"{self.reason}")
        return Wait(thresholds=dict(self.thresholds), max_seqs=max_seqs)

    def explain(self) -> str:
        """The inequality of each class with its numbers."""
        asked = "<" if self.strict else "≤"
        lines = [
            f"Thresholds of WAIT ({self.source}): d0 + d1·Σ n_j·(l'_j + 1)(l_j + l'_j/2) {asked} n_j/λ_j "
            f"for every class j, with a margin of {number(self.margin)}",
            f"d0 = {number(self.base_s)} s, d1 = {number(self.per_kv_token_s)} s, "
            f"load d1·Σ λ_j (l'_j + 1)(l_j + l'_j/2) = {number(self.cache_load)}",
        ]
        if self.iteration_s is not None:
            lines.append(f"ΔT = {number(self.iteration_s)} s")
        for one in self.classes:
            bound = "no bound" if one.queue_bound is None else f"at most {number(one.queue_bound)} on average"
            lines.append(
                f"  class {one.name!r}: n = {number(one.threshold)}, λ = {number(one.rate)}/s, "
                f"{number(one.iterations)} iterations and {number(one.kv_token_iterations)} tokens × "
                f"iterations each, {number(one.arrivals)} arrivals in an iteration, "
                f"slack {number(one.slack)}; "
                f"waiting to begin: {bound}; a request takes (l'+1)·n/λ = {number(one.time_in_system_s)} s"
            )
        limit = "no limit" if self.kv_tokens is None else f"{number(self.kv_tokens)} tokens"
        lines.append(
            f"memory M^π = {number(self.kv_tokens_needed)} tokens, the cache holds {limit}; "
            f"{number(self.batch_limit)} requests at most"
        )
        if self.feasible:
            lines.append(f"feasible: the throughput comes within O({self.throughput_gap}) of the fluid's")
        else:
            lines.append(f"infeasible: {self.reason}")
        return "\n".join([*lines, *hypotheses_text(self.hypotheses)])


def wait_thresholds(
    workload: WorkloadLike,
    timing: MemoryLinear | Engine,
    *,
    kv_tokens: int | None = None,
    first_token: FirstToken | None = None,
    rate: float | None = None,
    thresholds: int | Mapping[str, int] | None = None,
    strict: bool = True,
    margin: float = 0.0,
    periods: Sequence[tuple[float, Mapping[str, float]]] | None = None,
) -> WaitThresholds:
    """The least whole thresholds with which WAIT keeps up, or what given ones are worth.

    Condition (9): an iteration with n_j requests at every stage of every class lasts no longer than n_j
    requests of any class j take to arrive. Of two vectors that satisfy it the smaller of each pair of numbers
    does so too, hence one is least in every place, and nothing below it, in any place, satisfies (9). It is
    the limit of n ← λ·ΔT(n), rounded up, begun at the real solution, and exists exactly if the load is below
    1 / (1 + margin); beyond 2,147,483,647 it counts as none.

    Args:
        workload: what is asked; WAIT knows a request's class and nothing else.
        timing: d0 and d1; or an engine, whose cache and convention then count.
        kv_tokens: C; None: that of the engine, else without a limit.
        first_token: see `fluid`.
        rate: requests per second in all, instead of what `workload` says.
        thresholds: judge these, one number for all classes or one for each, instead of finding the least.
        strict: ask for < in (9), with which Theorem 1 has bounded queues and a loss of O(1/T). With ≤
            equality is enough, queues grow like √T, and the loss is O(1/√T).
        margin: share by which n_j must exceed the arrivals of an iteration, 0 or above.
        periods: rates that change: `[(seconds, {class: requests per second}), …]`, over and over, instead
            of those of `workload`. Arrivals of an iteration are then those of the fullest window, as in the
            first line of (13), which the paper has for nested WAIT.

    Raises:
        ConfigError: naming the argument.

    Source: ao2025 (9), Theorem 1, appendix B (the bound on the queue: Kingman's, on top of 2·n_j), with
        n_j = `thresholds`, M^π = `kv_tokens_needed`, ΔT = `iteration_s`. The rule of section 6.1,
        n_j = B·ρ_j / (l'_j + 1), is not proportional to λ_j and satisfies (9) only for large B.

    Example:
        The low demand of section 6.1, and the rule of 6.1 for the same number of requests:

        >>> import inferq as iq
        >>> low = [
        ...     iq.theory.RequestClass(name="short", rate=1000, prompt=10, output=10),
        ...     iq.theory.RequestClass(name="long", rate=1000, prompt=10, output=20),
        ... ]
        >>> timing = iq.research.MemoryLinear(base=0.015, per_kv_token=2.6e-7)
        >>> found = iq.theory.wait_thresholds(low, timing, kv_tokens=125_000, first_token="decode")
        >>> found.thresholds, found.kv_tokens_needed, found.batch_limit
        ({'short': 18, 'long': 18}, 10530.0, 576)
        >>> found.scheduler() == iq.research.Wait(thresholds={"short": 18, "long": 18})
        True
        >>> rule = {"short": 26, "long": 14}
        >>> printed = iq.theory.wait_thresholds(low, timing, first_token="decode", thresholds=rule)
        >>> print(printed.feasible, printed.reason)
        False class 'long': an iteration of 0.0176442 s brings 17.6442 requests, its threshold is 14
    """
    hardware = replace(FluidEngine.of(timing, kv_tokens, first_token), scheduler=Wait(thresholds=1))
    demand = Demand.of(workload, rate=rate, needs_rate=periods is None)
    pace = Periods.of(demand, periods)
    margin = margin_of(margin)
    flag("strict", strict)
    assumed = (*arrival_hypotheses(demand, pace), equal_lengths(demand))
    hypotheses = (*hardware.hypotheses(demand), *assumed)
    names = [one.name for one in demand.classes]
    work = [hardware.kv_token_iterations(one.lengths) for one in demand.classes]
    load = hardware.per_kv_token_s * math.fsum(
        pace.mean(name) * each for name, each in zip(names, work, strict=True)
    )

    def iteration_s(n: Sequence[int]) -> float:
        tokens = math.fsum(count * each for count, each in zip(n, work, strict=True))
        return hardware.base_s + hardware.per_kv_token_s * tokens

    def said(n: list[int], reason: str) -> WaitThresholds:
        lasts_s = iteration_s(n) if n else None
        needed: float | None = None
        held: int | None = None
        if n and demand.lengths.is_bounded:
            top = [
                one.lengths.most(lambda s, o: (o - hardware.shift + 1) * (s + (o - hardware.shift) / 2))
                for one in demand.classes
            ]
            needed = math.fsum(count * each for count, each in zip(n, top, strict=True))
            longest = [one.lengths.most(lambda s, o: o + 0 * s) for one in demand.classes]
            held = sum(
                count * (round(each) - hardware.shift + 1) for count, each in zip(n, longest, strict=True)
            )
        classes = tuple(
            _class(hardware, one.name, pace, one.lengths, each, count, lasts_s or 0.0)
            for one, each, count in zip(demand.classes if n else (), work, n, strict=False)
        )
        if not reason:
            reason = _broken(classes, lasts_s or 0.0, strict, margin)
        tokens = needed
        if tokens is None and n:
            tokens = math.fsum(count * each for count, each in zip(n, work, strict=True))
        if (
            not reason
            and hardware.kv_tokens is not None
            and tokens is not None
            and tokens > hardware.kv_tokens
        ):
            least = "these thresholds" if thresholds is not None else "the least thresholds"
            reason = f"{least} need {number(tokens)} tokens of cache, it holds {number(hardware.kv_tokens)}"
        gap = None
        if not reason:
            gap = "1/T" if min(one.slack for one in classes) > _EVEN else "1/sqrt(T)"
        return WaitThresholds(
            feasible=not reason,
            reason=reason,
            thresholds=Table(dict(zip(names, n, strict=False)), as_given=True),
            classes=classes,
            cache_load=load,
            base_s=hardware.base_s,
            per_kv_token_s=hardware.per_kv_token_s,
            strict=strict,
            margin=margin,
            iteration_s=lasts_s,
            kv_tokens_needed=needed,
            kv_tokens=hardware.kv_tokens,
            batch_limit=held,
            throughput_gap=gap,
            hypotheses=hypotheses,
        )

    if thresholds is not None:
        return said(_given(names, thresholds), "")
    if load * (1 + margin) >= 1:
        with_margin = f", with the margin {number(load * (1 + margin))}" if margin else ""
        return said([], f"the load is {number(load)}{with_margin}, not below 1: no thresholds keep up")
    # n_j ≥ (1 + margin)·λ_j·ΔT for all j makes ΔT at least d0/(1 − load), in which the least n is begun.
    left = 1 - load * (1 + margin)
    shortest_s = hardware.base_s / left * max(0.0, 1 - 2 * _EVEN / left)
    n = [_wanted(pace, max(hardware.base_s, shortest_s), name, margin, strict) for name in names]
    for _ in range(_STEPS):
        if max(n) > MOST_COUNT:
            break
        lasts_s = iteration_s(n)
        wanted = [_wanted(pace, lasts_s, name, margin, strict) for name in names]
        if all(after <= before for before, after in zip(n, wanted, strict=True)):
            return said(n, "")
        n = [max(before, after) for before, after in zip(n, wanted, strict=True)]
    return said(
        [],
        f"the load is only {number(left)} below 1, so near that no thresholds up to "
        f"{number(MOST_COUNT)} were found",
    )


def margin_of(margin: object) -> float:
    """A share by which thresholds exceed what they must."""
    return within("margin", margin, 0, 1e6)


def _wanted(pace: Periods, lasts_s: float, name: str, margin: float, strict: bool) -> int:
    """The least threshold of a class that exceeds what comes in so long an iteration."""
    return least(pace.most(lasts_s, name) * (1 + margin), strict=strict)


def least(bound: float, *, strict: bool) -> int:
    """The least whole number, 1 or above, that is above `bound`, or at it unless strict."""
    if strict:
        return max(1, math.floor(bound * (1 + _EVEN)) + 1)
    return max(1, math.ceil(bound * (1 - _EVEN)))


def enough(count: float, bound: float, *, strict: bool) -> bool:
    """Whether `count` is above `bound`, or at it unless strict, but for rounding."""
    return count > bound * (1 + _EVEN) if strict else count >= bound * (1 - _EVEN)


def kingman(variance: float, drift: float) -> float:
    """E of the supremum of a random walk is at most this, with steps of that variance and mean −`drift`."""
    return variance / (2 * drift)


def _class(
    hardware: FluidEngine, name: str, pace: Periods, lengths: Lengths, work: float, count: int, lasts_s: float
) -> WaitClass:
    arrivals = pace.most(lasts_s, name)
    bound = None
    if enough(count, arrivals, strict=True):
        bound = 2 * count + kingman(arrivals, count - arrivals)
    iterations = hardware.iterations(lengths)
    return WaitClass(
        name=name,
        rate=pace.mean(name),
        iterations=iterations,
        kv_token_iterations=work,
        threshold=count,
        arrivals=arrivals,
        slack=count / arrivals - 1,
        queue_bound=bound,
        time_in_system_s=iterations * count / pace.mean(name),
    )


def _broken(classes: Sequence[WaitClass], lasts_s: float, strict: bool, margin: float) -> str:
    """Which class breaks (9), empty if none does."""
    for one in classes:
        if not enough(one.threshold, one.arrivals * (1 + margin), strict=strict):
            beside = f" (with a margin of {number(margin)})" if margin else ""
            return (
                f"class {one.name!r}: an iteration of {number(lasts_s)} s brings {number(one.arrivals)} "
                f"requests{beside}, its threshold is {number(one.threshold)}"
            )
    return ""


def _given(names: Sequence[str], thresholds: object) -> list[int]:
    if isinstance(thresholds, Mapping):
        if set(thresholds) != set(names):
            raise ConfigError(
                "thresholds", f"has {shown(sorted(map(str, thresholds)))}, the classes are {sorted(names)}"
            )
        return [whole(f"thresholds[{name!r}]", thresholds[name], 1, MOST_COUNT) for name in names]
    return [whole("thresholds", thresholds, 1, MOST_COUNT)] * len(names)


def equal_lengths(demand: Demand) -> Hypothesis:
    """Is the class of a request all that there is to know about it?"""
    mixed = [one.name for one in demand.classes if not one.lengths.is_fixed]
    return Hypothesis(
        name="all requests of a class have the same lengths",
        met=not mixed,
        why=f"not those of {', '.join(map(repr, mixed))}: (9) is taken with means"
        if mixed
        else "each has one pair",
    )


def arrival_hypotheses(demand: Demand, pace: Periods) -> list[Hypothesis]:
    """What the theorems assume of arrivals."""
    return [
        Hypothesis(name="Poisson arrivals", met=demand.poisson, why=demand.arrivals),
        Hypothesis(
            name="rates stay",
            met=pace.constant,
            why="one rate for each class" if pace.constant else f"{number(len(pace.seconds))} periods",
        ),
    ]


@dataclass(frozen=True, slots=True)
class Periods:
    """Rates of each class that stay for a while and then change, over and over."""

    seconds: tuple[float, ...]
    rates: tuple[dict[str, float], ...]
    """Requests per second of each class, for each of `seconds`."""

    @classmethod
    def of(cls, demand: Demand, given: object) -> Periods:
        """The periods that were given, or one with the rates of the demand.

        Raises:
            ConfigError: no period, one that takes no time, rates that are negative or leave out a class, or a
                class that never comes.
        """
        names = [one.name for one in demand.classes]
        if given is None:
            return cls((1.0,), ({one.name: one.rate or 0.0 for one in demand.classes},))
        if isinstance(given, (str, bytes)) or not isinstance(given, Sequence) or not given:
            raise ConfigError(
                "periods", "must be [(seconds, {class: rate per second}), …], one period at least"
            )
        seconds, rates = [], []
        for place, period in enumerate(given):
            path = f"periods[{place}]"
            if not isinstance(period, Sequence) or len(period) != 2 or not isinstance(period[1], Mapping):
                raise ConfigError(path, f"must be (seconds, {{class: rate per second}}), is {period!r}")
            seconds.append(within(f"{path}: seconds", period[0], 1e-9, 1e12))
            if set(period[1]) != set(names):
                raise ConfigError(path, f"has rates of {sorted(period[1])}, the classes are {sorted(names)}")
            here = {
                name: within(f"{path}: rate of {name!r}", period[1][name], 0, MOST_RATE) for name in names
            }
            rates.append(here)
        for name in names:
            if not any(here[name] for here in rates):
                raise ConfigError("periods", f"class {name!r} has a rate of 0 in all of them")
        return cls(tuple(seconds), tuple(rates))

    @property
    def constant(self) -> bool:
        """Whether nothing changes."""
        return len(self.seconds) == 1

    def mean(self, *names: str) -> float:
        """Requests per second of these classes together, in the long run."""
        whole = math.fsum(self.seconds)
        return (
            math.fsum(
                span * here[name]
                for span, here in zip(self.seconds, self.rates, strict=True)
                for name in names
            )
            / whole
        )

    def most(self, window_s: float, *names: str) -> float:
        """Expected arrivals of these classes in the fullest window of that length, Λ of ao2025 appendix D.

        The sum over a sliding window is linear between the instants at which one of its ends meets a change.
        """
        totals = [math.fsum(here[name] for name in names) for here in self.rates]
        if self.constant:
            return totals[0] * window_s
        starts = [0.0, *accumulate(self.seconds)]
        whole_s = starts.pop()
        counts = [0.0, *accumulate(span * rate for span, rate in zip(self.seconds, totals, strict=True))]

        def until(at_s: float) -> float:
            turns, rest_s = divmod(at_s, whole_s)
            place = max(k for k, start in enumerate(starts) if start <= rest_s)
            return turns * counts[-1] + counts[place] + totals[place] * (rest_s - starts[place])

        opens = [*starts, *((start - window_s) % whole_s for start in starts)]
        return max(until(at_s + window_s) - until(at_s) for at_s in opens)
