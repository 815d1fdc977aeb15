"""Thresholds of WAIT that keep it stable, and their memory."""

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
"""Relative difference below which numbers count as equal; smaller differences are rounding errors."""
_STEPS = 100_000
"""Most steps in the search for the least thresholds; longer searches would give large thresholds."""


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
    """λ_j·ΔT: arrivals during one iteration (the busiest window, if rates change)."""
    slack: float
    """n_j / (λ_j·ΔT) − 1: 0 if (9) holds with equality, negative if it is violated."""
    queue_bound: float | None
    """Upper bound of E[requests waiting to start] at the ends of iterations; None without slack."""
    time_in_system_s: float
    """E[l'_j + 1]·n_j/λ_j: each iteration of a request waits for n_j arrivals of its class."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitThresholds(Statement):
    """Thresholds of WAIT with their properties. `thresholds` is empty if there are none."""

    source: ClassVar[str] = "ao2025 (9), Theorem 1"

    feasible: bool
    reason: str
    """The reason if not feasible; else empty."""
    thresholds: Mapping[str, int]
    """n_j by class, in the format of `iq.research.Wait(thresholds=…)`."""
    classes: tuple[WaitClass, ...]
    cache_load: float
    """d1·Σ λ_j E[(l'_j + 1)(l_j + l'_j/2)], at the rates of the long run."""
    base_s: float
    """d0."""
    per_kv_token_s: float
    """d1."""
    strict: bool
    """Whether (9) is required with < instead of ≤."""
    margin: float
    """n_j exceeds the arrivals of an iteration by at least this share of them."""
    iteration_s: float | None
    """ΔT of (9): an iteration with n_j requests at every stage of every class."""
    kv_tokens_needed: float | None
    """M^π of (9), with the longest lengths of each class; WAIT never holds more."""
    kv_tokens: int | None
    """C."""
    batch_limit: int | None
    """Σ n_j (l'_j + 1): most running requests; None if a class has unbounded outputs."""
    throughput_gap: str | None
    """Order of the loss against the fluid in the horizon T by Theorem 1: `"1/T"` or `"1/sqrt(T)"`."""
    hypotheses: tuple[Hypothesis, ...]

    def scheduler(self, *, max_seqs: int | None = None) -> Wait:
        """WAIT with these thresholds.

        Raises:
            ConfigError: the thresholds are not feasible.
        """
        if not self.feasible:
            raise ConfigError("thresholds", f"{self.reason}")
        return Wait(thresholds=dict(self.thresholds), max_seqs=max_seqs)

    def explain(self) -> str:
        """The inequality of each class with its numbers."""
        sign = "<" if self.strict else "≤"
        lines = [
            f"Thresholds of WAIT ({self.source}): d0 + d1·Σ n_j·(l'_j + 1)(l_j + l'_j/2) {sign} n_j/λ_j "
            f"for every class j, with a margin of {number(self.margin)}",
            f"d0 = {number(self.base_s)} s, d1 = {number(self.per_kv_token_s)} s, "
            f"load d1·Σ λ_j (l'_j + 1)(l_j + l'_j/2) = {number(self.cache_load)}",
        ]
        if self.iteration_s is not None:
            lines.append(f"ΔT = {number(self.iteration_s)} s")
        for wait_class in self.classes:
            bound = (
                "no bound"
                if wait_class.queue_bound is None
                else f"at most {number(wait_class.queue_bound)} on average"
            )
            lines.append(
                f"  class {wait_class.name!r}: n = {number(wait_class.threshold)}, "
                f"λ = {number(wait_class.rate)}/s, "
                f"{number(wait_class.iterations)} iterations and "
                f"{number(wait_class.kv_token_iterations)} tokens × "
                f"iterations each, {number(wait_class.arrivals)} arrivals per iteration, "
                f"slack {number(wait_class.slack)}; "
                f"waiting to start: {bound}; a request takes (l'+1)·n/λ = "
                f"{number(wait_class.time_in_system_s)} s"
            )
        limit = "no limit" if self.kv_tokens is None else f"{number(self.kv_tokens)} tokens"
        lines.append(
            f"memory M^π = {number(self.kv_tokens_needed)} tokens, the cache holds {limit}; "
            f"at most {number(self.batch_limit)} requests"
        )
        if self.feasible:
            lines.append(f"feasible: the throughput is within O({self.throughput_gap}) of the fluid's")
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
    """Compute the least integer thresholds that keep WAIT stable, or evaluate given thresholds.

    Condition (9): an iteration with n_j requests at every stage of every class takes no longer than the
    arrival of n_j requests of any class j. If two vectors satisfy it, their element-wise minimum does so too.
    So there is a least vector, and no smaller number in any place satisfies (9). It is the limit of
    n ← λ·ΔT(n), rounded up, starting from the real solution. It exists exactly if the load is below
    1 / (1 + margin); thresholds above 2,147,483,647 count as none.

    Args:
        workload: requests; WAIT uses only their classes.
        timing: d0 and d1, or an engine with its cache and its convention for first tokens.
        kv_tokens: C. Default: the cache of the engine, else no limit.
        first_token: see `fluid`.
        rate: total requests per second. Default: the rate of the workload.
        thresholds: thresholds to evaluate, one number for all classes or one per class. Default: the least
            thresholds.
        strict: require < in (9); Theorem 1 then has bounded queues and a loss of O(1/T). With ≤, queues grow
            like √T, and the loss is O(1/√T).
        margin: share by which n_j must exceed the arrivals of an iteration, non-negative.
        periods: changing rates that repeat: `[(seconds, {class: requests per second}), …]`, instead of those
            of `workload`. Arrivals per iteration are then those of the busiest window, as in the first line
            of (13), which the paper has for nested WAIT.

    Raises:
        ConfigError: an argument is invalid.

    Source: ao2025 (9), Theorem 1, appendix B (the bound of the queue: Kingman's, plus 2·n_j), with
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
        False class 'long': an iteration of 0.0176442 s has 17.6442 arrivals, its threshold is 14
    """
    hardware = replace(FluidEngine.of(timing, kv_tokens, first_token), scheduler=Wait(thresholds=1))
    demand = Demand.of(workload, rate=rate, needs_rate=periods is None)
    pace = Periods.of(demand, periods)
    margin = margin_of(margin)
    flag("strict", strict)
    assumed = (*arrival_hypotheses(demand, pace), equal_lengths(demand))
    hypotheses = (*hardware.hypotheses(demand), *assumed)
    names = [request_class.name for request_class in demand.classes]
    work = [hardware.kv_token_iterations(request_class.lengths) for request_class in demand.classes]
    load = hardware.per_kv_token_s * math.fsum(
        pace.mean(name) * each for name, each in zip(names, work, strict=True)
    )

    def iteration_s(n: Sequence[int]) -> float:
        tokens = math.fsum(count * each for count, each in zip(n, work, strict=True))
        return hardware.base_s + hardware.per_kv_token_s * tokens

    def result(n: list[int], reason: str) -> WaitThresholds:
        lasts_s = iteration_s(n) if n else None
        needed: float | None = None
        batch_limit: int | None = None
        if n and demand.lengths.is_bounded:
            top = [
                request_class.lengths.most(
                    lambda s, o: (o - hardware.shift + 1) * (s + (o - hardware.shift) / 2)
                )
                for request_class in demand.classes
            ]
            needed = math.fsum(count * each for count, each in zip(n, top, strict=True))
            longest = [request_class.lengths.most(lambda s, o: o + 0 * s) for request_class in demand.classes]
            batch_limit = sum(
                count * (round(each) - hardware.shift + 1) for count, each in zip(n, longest, strict=True)
            )
        classes = tuple(
            _class(hardware, request_class.name, pace, request_class.lengths, each, count, lasts_s or 0.0)
            for request_class, each, count in zip(demand.classes if n else (), work, n, strict=False)
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
            reason = f"{least} need {number(tokens)} tokens of KV cache, it has {number(hardware.kv_tokens)}"
        gap = None
        if not reason:
            gap = "1/T" if min(wait_class.slack for wait_class in classes) > _EVEN else "1/sqrt(T)"
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
            batch_limit=batch_limit,
            throughput_gap=gap,
            hypotheses=hypotheses,
        )

    if thresholds is not None:
        return result(_validated(names, thresholds), "")
    if load * (1 + margin) >= 1:
        with_margin = f", with the margin {number(load * (1 + margin))}" if margin else ""
        return result([], f"the load is {number(load)}{with_margin}, not below 1: no thresholds are stable")
    # n_j ≥ (1 + margin)·λ_j·ΔT for all j implies ΔT ≥ d0/(1 − load), which gives the first n.
    headroom = 1 - load * (1 + margin)
    shortest_s = hardware.base_s / headroom * max(0.0, 1 - 2 * _EVEN / headroom)
    n = [_threshold(pace, max(hardware.base_s, shortest_s), name, margin, strict) for name in names]
    for _ in range(_STEPS):
        if max(n) > MOST_COUNT:
            break
        lasts_s = iteration_s(n)
        targets = [_threshold(pace, lasts_s, name, margin, strict) for name in names]
        if all(after <= before for before, after in zip(n, targets, strict=True)):
            return result(n, "")
        n = [max(before, after) for before, after in zip(n, targets, strict=True)]
    return result(
        [],
        f"the load is only {number(headroom)} below 1, too close for thresholds of at most "
        f"{number(MOST_COUNT)}",
    )


def margin_of(margin: object) -> float:
    """The share by which thresholds exceed their minimum."""
    return within("margin", margin, 0, 1e6)


def _threshold(pace: Periods, lasts_s: float, name: str, margin: float, strict: bool) -> int:
    """The least threshold of a class that exceeds its arrivals during an iteration."""
    return least(pace.most(lasts_s, name) * (1 + margin), strict=strict)


def least(bound: float, *, strict: bool) -> int:
    """The least positive integer above `bound`, or equal to it unless strict."""
    if strict:
        return max(1, math.floor(bound * (1 + _EVEN)) + 1)
    return max(1, math.ceil(bound * (1 - _EVEN)))


def enough(count: float, bound: float, *, strict: bool) -> bool:
    """Whether `count` is above `bound`, or equal to it unless strict, up to rounding."""
    return count > bound * (1 + _EVEN) if strict else count >= bound * (1 - _EVEN)


def kingman(variance: float, drift: float) -> float:
    """Upper bound of E[supremum] of a random walk with steps of this variance and mean −`drift`."""
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
    """The class that violates (9); empty if none does."""
    for wait_class in classes:
        if not enough(wait_class.threshold, wait_class.arrivals * (1 + margin), strict=strict):
            margin_text = f" (with a margin of {number(margin)})" if margin else ""
            return (
                f"class {wait_class.name!r}: an iteration of {number(lasts_s)} s has "
                f"{number(wait_class.arrivals)} arrivals{margin_text}, its threshold is "
                f"{number(wait_class.threshold)}"
            )
    return ""


def _validated(names: Sequence[str], thresholds: object) -> list[int]:
    if isinstance(thresholds, Mapping):
        if set(thresholds) != set(names):
            raise ConfigError(
                "thresholds", f"must have classes {sorted(names)}, got {shown(sorted(map(str, thresholds)))}"
            )
        return [whole(f"thresholds[{name!r}]", thresholds[name], 1, MOST_COUNT) for name in names]
    return [whole("thresholds", thresholds, 1, MOST_COUNT)] * len(names)


def equal_lengths(demand: Demand) -> Hypothesis:
    """Whether all requests of a class have the same lengths."""
    mixed = [request_class.name for request_class in demand.classes if not request_class.lengths.is_fixed]
    return Hypothesis(
        name="all requests of a class have the same lengths",
        met=not mixed,
        why=f"not those of {', '.join(map(repr, mixed))}: (9) uses their means"
        if mixed
        else "each class has one pair of lengths",
    )


def arrival_hypotheses(demand: Demand, pace: Periods) -> list[Hypothesis]:
    """Hypotheses of the theorems about arrivals."""
    return [
        Hypothesis(name="Poisson arrivals", met=demand.poisson, why=demand.arrivals),
        Hypothesis(
            name="constant rates",
            met=pace.constant,
            why="one rate per class" if pace.constant else f"{number(len(pace.seconds))} periods",
        ),
    ]


@dataclass(frozen=True, slots=True)
class Periods:
    """Rates of each class that are constant for some time and then change, in a repeating cycle."""

    seconds: tuple[float, ...]
    rates: tuple[dict[str, float], ...]
    """Requests per second of each class, for each of `seconds`."""

    @classmethod
    def of(cls, demand: Demand, periods: object) -> Periods:
        """The configured periods, or one period with the rates of the demand.

        Raises:
            ConfigError: there is no period, a period takes no time, rates are negative or miss a class, or a
                class has no arrivals.
        """
        names = [request_class.name for request_class in demand.classes]
        if periods is None:
            return cls(
                (1.0,), ({request_class.name: request_class.rate or 0.0 for request_class in demand.classes},)
            )
        if isinstance(periods, (str, bytes)) or not isinstance(periods, Sequence) or not periods:
            raise ConfigError(
                "periods", "must be [(seconds, {class: rate per second}), …] with at least one period"
            )
        seconds, rates = [], []
        for index, period in enumerate(periods):
            path = f"periods[{index}]"
            if not isinstance(period, Sequence) or len(period) != 2 or not isinstance(period[1], Mapping):
                raise ConfigError(path, f"must be (seconds, {{class: rate per second}}), got {period!r}")
            seconds.append(within(f"{path}: seconds", period[0], 1e-9, 1e12))
            if set(period[1]) != set(names):
                raise ConfigError(path, f"must have classes {sorted(names)}, got {sorted(period[1])}")
            rate_by_class = {
                name: within(f"{path}: rate of {name!r}", period[1][name], 0, MOST_RATE) for name in names
            }
            rates.append(rate_by_class)
        for name in names:
            if not any(rate_by_class[name] for rate_by_class in rates):
                raise ConfigError(
                    "periods", f"class {name!r} must have a positive rate in at least one period"
                )
        return cls(tuple(seconds), tuple(rates))

    @property
    def constant(self) -> bool:
        """Whether there is a single period."""
        return len(self.seconds) == 1

    def mean(self, *names: str) -> float:
        """Requests per second of these classes together, in the long run."""
        whole = math.fsum(self.seconds)
        return (
            math.fsum(
                span * rate_by_class[name]
                for span, rate_by_class in zip(self.seconds, self.rates, strict=True)
                for name in names
            )
            / whole
        )

    def most(self, window_s: float, *names: str) -> float:
        """Expected arrivals of these classes in the busiest window of that length, Λ of ao2025 appendix D.

        The sum over a sliding window is linear between the times at which one of its ends meets a change.
        """
        totals = [math.fsum(rate_by_class[name] for name in names) for rate_by_class in self.rates]
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
