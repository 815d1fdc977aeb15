"""Segments and thresholds of nested WAIT that keep it stable, and their memory for a given risk."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

from inferq._lazy import np
from inferq.checks import MOST_COUNT, whole, within
from inferq.errors import ConfigError
from inferq.scheduler import NestedWait
from inferq.systems.engine import Engine
from inferq.theory.capacities.fluid import FluidEngine
from inferq.theory.demands.demand import Demand, WorkloadLike
from inferq.theory.demands.lengths import FirstToken, Lengths
from inferq.theory.statement import Hypothesis, Statement, hypotheses_text, number
from inferq.theory.thresholds.wait_thresholds import Periods, arrival_hypotheses, enough, least, margin_of
from inferq.timing import MemoryLinear

_STEPS = 20_000
"""Most steps in the search for the least thresholds; longer searches would give large thresholds."""
_TRIED = 32
"""Most segments that are tried by default."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """A range of decode stages with one threshold."""

    first_stage: int
    last_stage: int
    threshold: int
    """n_i."""
    share: float
    """p_(i−1): the share of requests of the previous segment that continue here; 1 for the first."""
    prompt_tokens: float
    """E[l] of the requests in the segment."""
    kv_tokens: float
    """n_i·Σ (l + k) over its stages k: its part of M^π."""
    entry_kv_tokens: float
    """l + l'_(i−1): tokens of a request that waits at the entry; 0 for the first, whose queue has none."""
    exponent: float | None
    """θ_i of (16); None for the first segment, and if n_i ≥ n_(i−1), where the queue stays below n_i."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NestedWaitThresholds(Statement):
    """Segments and thresholds of nested WAIT with their properties. Both are empty if there are none."""

    source: ClassVar[str] = "ao2025 (10)-(16), Theorems 2 to 4"

    feasible: bool
    reason: str
    """The reason if not feasible; else empty."""
    segments: tuple[int, ...]
    """The last stage of each, in the format of `iq.research.NestedWait(segments=…)`."""
    thresholds: tuple[int, ...]
    """n_i."""
    parts: tuple[Segment, ...]
    rate: float
    """Σ λ_j in requests per second, in the long run."""
    base_s: float
    """d0."""
    per_kv_token_s: float
    """d1."""
    segment_load: float
    """d1·Σ λ·q_i·Σ (l + k), with q_i = p_1···p_(i−1): the load if no request leaves inside a segment."""
    margin: float
    """The share by which both lines of (10) hold."""
    iteration_s: float | None
    """ΔT: an iteration with n_i requests at every stage of every segment."""
    arrivals: float | None
    """Σ λ·ΔT, below n_1 (the busiest window, if rates change)."""
    batch_limit: int | None
    """Most requests in a batch."""
    stages_kv_tokens: float | None
    """M^π, the first term of (12) and (15)."""
    queues_kv_tokens: float | None
    """Σ (l + l'_(i−1))·n_i from the second segment on, the second term."""
    excursions_kv_tokens: float | None
    """Σ (l + l'_(i−1))·ln((L − 1)·S/δ)/θ_i, the third term; None without `iterations`."""
    kv_tokens_needed: float | None
    """Their sum, enough with a probability of at least 1 − δ; None without `iterations`."""
    kv_tokens: int | None
    """C."""
    iterations: int | None
    """S."""
    risk: float
    """δ."""
    hypotheses: tuple[Hypothesis, ...]

    def scheduler(self) -> NestedWait:
        """Nested WAIT with these segments and thresholds.

        Raises:
            ConfigError: the thresholds are not feasible.
        """
        if not self.feasible:
            raise ConfigError("thresholds", f"{self.reason}")
        return NestedWait(segments=list(self.segments), thresholds=list(self.thresholds))

    def explain(self) -> str:
        """Both conditions and the three terms of memory with their numbers."""
        lines = [
            f"Thresholds of nested WAIT ({self.source}): d0 + d1·M^π < n_1/Σλ and n_(i+1) > p_i·n_i, "
            f"with a margin of {number(self.margin)}",
            f"d0 = {number(self.base_s)} s, d1 = {number(self.per_kv_token_s)} s, "
            f"Σλ = {number(self.rate)}/s, load if requests stay to the end of segments "
            f"{number(self.segment_load)}",
        ]
        if self.iteration_s is not None:
            lines.append(
                f"ΔT = {number(self.iteration_s)} s has {number(self.arrivals)} arrivals, "
                f"n_1 = {number(self.thresholds[0])}"
            )
        for segment in self.parts:
            growth = "" if segment.exponent is None else f", θ = {number(segment.exponent)}"
            lines.append(
                f"  stages {segment.first_stage} to {segment.last_stage}: n = {number(segment.threshold)}, "
                f"p = {number(segment.share)}, l = {number(segment.prompt_tokens)}, "
                f"{number(segment.kv_tokens)} tokens, "
                f"{number(segment.entry_kv_tokens)} for each at the entry{growth}"
            )
        if self.parts:
            limit = "no limit" if self.kv_tokens is None else f"{number(self.kv_tokens)} tokens"
            lines.append(
                f"memory: stages M^π = {number(self.stages_kv_tokens)}, "
                f"queues {number(self.queues_kv_tokens)}, excursions {number(self.excursions_kv_tokens)} "
                f"(S = {number(self.iterations)} iterations, risk δ = {number(self.risk)}), "
                f"in all {number(self.kv_tokens_needed)}; the cache holds {limit}; "
                f"at most {number(self.batch_limit)} requests per batch"
            )
        lines.append("feasible" if self.feasible else f"infeasible: {self.reason}")
        return "\n".join([*lines, *hypotheses_text(self.hypotheses)])


@dataclass(frozen=True, slots=True)
class _Design:
    """Quantities of one choice of segments."""

    hardware: FluidEngine
    pace: Periods
    names: tuple[str, ...]
    ends: tuple[int, ...]
    shares: tuple[float, ...]
    """p_1 … p_(L−1), the largest of all periods."""
    prompts: tuple[float, ...]
    tokens: tuple[float, ...]
    """Σ (l + k) over the stages of each segment."""

    @classmethod
    def of(
        cls,
        hardware: FluidEngine,
        demand: Demand,
        pace: Periods,
        stages: Mapping[str, Stages],
        ends: tuple[int, ...],
    ) -> _Design:
        shares, prompts = [0.0] * (len(ends) - 1), [0.0] * len(ends)
        for rates in pace.rates:
            mixed = Stages.mixed(
                [
                    (rates[request_class.name], stages[request_class.name])
                    for request_class in demand.classes
                    if rates[request_class.name]
                ]
            )
            entered = [1.0, *(mixed.beyond(end) for end in ends[:-1])]
            for i, (before, after) in enumerate(pairwise(entered)):
                # The share in a window is between those of its instants, so the largest instant counts.
                shares[i] = max(shares[i], after / before if before else 0.0)
            for i, entry in enumerate([-1, *ends[:-1]]):
                prompts[i] = max(prompts[i], mixed.prompt_beyond(entry))
        tokens = tuple(
            (last - first + 1) * (prompt + (first + last) / 2)
            for (first, last), prompt in zip(runs(ends), prompts, strict=True)
        )
        return cls(hardware, pace, tuple(stages), ends, tuple(shares), tuple(prompts), tokens)

    def kv_tokens(self, n: Sequence[int]) -> float:
        return math.fsum(count * each for count, each in zip(n, self.tokens, strict=True))

    def iteration_s(self, n: Sequence[int]) -> float:
        return self.hardware.base_s + self.hardware.per_kv_token_s * self.kv_tokens(n)

    def arrivals(self, n: Sequence[int]) -> float:
        return self.pace.most(self.iteration_s(n), *self.names)

    def load(self, margin: float) -> float:
        """The load if n_(i+1) = (1 + margin)·p_i·n_i; thresholds exist if it is below 1/(1 + margin)."""
        entered, total = 1.0, self.tokens[0]
        for share, each in zip(self.shares, self.tokens[1:], strict=True):
            entered *= share * (1 + margin)
            total += entered * each
        return self.hardware.per_kv_token_s * self.pace.mean(*self.names) * total

    def least(self, margin: float) -> tuple[int, ...]:
        """The least n in every place; its load must be below 1/(1 + margin).

        Empty if none was found up to `MOST_COUNT`. The search starts from the real solution, whose iteration
        lasts at least d0/(1 − load).
        """
        headroom = 1 - self.load(margin) * (1 + margin)
        bound = (
            self.pace.mean(*self.names)
            * (1 + margin)
            * self.hardware.base_s
            / headroom
            * (1 - 1e-11 / headroom)
        )
        first = max(1, math.floor(min(max(bound, 0.0), MOST_COUNT + 1)))
        for _ in range(_STEPS):
            if first > MOST_COUNT:
                break
            n = [first]
            for share in self.shares:
                n.append(least(share * (1 + margin) * n[-1], strict=True))
            target = least(self.arrivals(n) * (1 + margin), strict=True)
            if target <= first:
                return tuple(n)
            first = target
        return ()


def nested_wait_thresholds(
    workload: WorkloadLike,
    timing: MemoryLinear | Engine,
    *,
    kv_tokens: int | None = None,
    first_token: FirstToken | None = None,
    rate: float | None = None,
    segments: int | Sequence[int] | None = None,
    thresholds: Sequence[int] | None = None,
    margin: float = 0.0,
    iterations: int | None = None,
    horizon_s: float | None = None,
    risk: float = 0.01,
    periods: Sequence[tuple[float, Mapping[str, float]]] | None = None,
) -> NestedWaitThresholds:
    """Compute the least integer thresholds that keep nested WAIT stable, or evaluate given thresholds.

    Output lengths are unknown in advance; only their distribution is known. Segment i covers the decode
    stages after l'_(i−1) up to l'_i (the first from stage 0, the prompt), and the share p_i of its requests
    continues. Condition (10): an iteration with n_i requests at every stage is shorter than n_1 arrivals, and
    n_(i+1) > p_i·n_i. As with `wait_thresholds` there is a least n, and it exists exactly if the load is
    below 1. The load counts requests up to the end of their segment, so it is larger with fewer segments.

    Memory, (12) and (15): M^π tokens in the stages, n_i requests at the entry of each segment from the second
    on, and an excursion of that queue, a walk with steps Binomial(n_(i−1), p) − n_i. With θ_i > 0 such that
    E[exp(θ_i·step)] = 1, no queue exceeds n_i + ln((L − 1)·S/δ)/θ_i in S iterations, with a probability of at
    least 1 − δ.

    Args:
        workload: joint distribution of lengths, and rate; classes do not matter.
        timing: d0 and d1, or an engine with its cache and its convention for first tokens.
        kv_tokens: C. Default: the cache of the engine, else no limit.
        first_token: see `fluid`; with `"prefill"` the last stage of a request is its output less 1.
        rate: total requests per second. Default: the rate of the workload.
        segments: the last stage of each segment in ascending order, the last one at least the longest output;
            or the number of segments, which then are equal parts of the occurring lengths (section 7.2).
            Default: the number, up to 32, with the least memory.
        thresholds: thresholds to evaluate, one per segment. Default: the least thresholds.
        margin: share by which both lines of (10) must hold, non-negative. A larger margin makes n larger and
            excursions of the queues shorter.
        iterations: S, the iterations for which the memory must suffice.
        horizon_s: time instead of `iterations`: as many as fit, each with the prompts of at least n_1
            requests.
        risk: δ, above 0 and below 1.
        periods: changing rates that repeat: `[(seconds, {class: requests per second}), …]`, instead of those
            of `workload`: (13), the busiest window of length ΔT, the largest p_i at any time.

    Raises:
        ConfigError: an argument is invalid; outputs are unbounded (draw the workload, or cap the lengths).

    Source: ao2025 (10)-(17), Lemma 8, sections 5 and 7, with n_i = `thresholds`, l'_i = `segments`. (11) and
        the M^π of 7.2 are right for at most two segments and lack the stage of the prompt: a segment holds
        n_i·Σ (l + k) over its stages k. (12) and (15) print 8·(n_j − n_(j−1)·p_j)/n_j as a lower bound of
        θ_j. Lemma 8, on which they are based, has n_(j−1) in the denominator, and θ_j is often smaller than
        the printed bound. Here θ_j is the root of (16) itself. They write m for the L − 1 of the proof.

    Example:
        Section 6.2, four lengths that are unknown in advance:

        >>> import inferq as iq
        >>> kinds = [
        ...     iq.theory.RequestClass(name=str(o), rate=o / 2, prompt=10, output=o)
        ...     for o in (20, 40, 80, 160)
        ... ]
        >>> timing = iq.research.MemoryLinear(base=0.015, per_kv_token=2.6e-7)
        >>> given = {"segments": [20, 40, 80, 160], "first_token": "decode"}
        >>> found = iq.theory.nested_wait_thresholds(
        ...     kinds, timing, kv_tokens=125_000, iterations=20_000, **given
        ... )
        >>> found.thresholds, round(found.stages_kv_tokens), round(found.kv_tokens_needed)
        ((5, 5, 5, 4), 62010, 63708)
        >>> printed = iq.theory.nested_wait_thresholds(kinds, timing, thresholds=[15, 14, 12, 8], **given)
        >>> print(printed.reason)
        segment 2: 14 of 15 requests continue, its threshold is 14, which (10) requires to be larger
    """
    hardware = replace(
        FluidEngine.of(timing, kv_tokens, first_token), scheduler=NestedWait(segments=[0], thresholds=[1])
    )
    demand = Demand.of(workload, rate=rate, needs_rate=periods is None)
    pace = Periods.of(demand, periods)
    margin = margin_of(margin)
    risk = within("risk", risk, 1e-100, 1)
    if risk == 1:
        raise ConfigError("risk", f"must be below 1, got {risk}")
    if iterations is not None and horizon_s is not None:
        raise ConfigError("horizon_s", "conflicts with iterations; use only one of them")
    if iterations is not None:
        iterations = whole("iterations", iterations, 1, 2**62)
    if horizon_s is not None:
        horizon_s = within("horizon_s", horizon_s, 1e-9, 1e15)
    for request_class in demand.classes:
        if not request_class.lengths.is_bounded:
            raise ConfigError(
                f"class {request_class.name!r}",
                "lengths must be bounded; draw the workload or cap the lengths",
            )
    stages = {
        request_class.name: Stages.of(request_class.lengths, hardware.shift)
        for request_class in demand.classes
    }
    lengths = sorted({end for stage in stages.values() for end in stage.ends})
    hypotheses = (*hardware.hypotheses(demand), *_hypotheses(demand, pace))

    def evaluated(ends: tuple[int, ...]) -> NestedWaitThresholds:
        design = _Design.of(hardware, demand, pace, stages, ends)
        load = design.load(margin)
        n: tuple[int, ...] = ()
        reason = ""
        if thresholds is not None:
            n = _validated(thresholds, ends)
            reason = _broken(design, n, margin)
        elif load * (1 + margin) < 1:
            n = design.least(margin)
            if not n:
                reason = (
                    f"the load is only {number(1 - load * (1 + margin))} below 1, too close for thresholds "
                    f"of at most {number(MOST_COUNT)}"
                )
        else:
            split = (
                f"{len(ends)} segments, if requests stay to the end of each"
                if len(ends) > 1
                else "one segment"
            )
            reason = f"the load is {number(load)} with {split}, not below {number(1 / (1 + margin))}"
        return _result(design, n, reason, load, margin, iterations, horizon_s, risk, hypotheses)

    if segments is not None and not isinstance(segments, int):
        return evaluated(_ends(segments, lengths))
    if thresholds is not None:
        raise ConfigError("thresholds", "requires the last stage of each segment; set segments=[…]")
    if segments is not None:
        return evaluated(_parts(lengths, whole("segments", segments, 1, len(lengths))))
    designs = [evaluated(_parts(lengths, count)) for count in range(1, min(len(lengths), _TRIED) + 1)]
    usable = [design for design in designs if design.feasible]
    return min(usable, key=_memory) if usable else designs[-1]


def _result(
    design: _Design,
    n: tuple[int, ...],
    reason: str,
    load: float,
    margin: float,
    iterations: int | None,
    horizon_s: float | None,
    risk: float,
    hypotheses: tuple[Hypothesis, ...],
) -> NestedWaitThresholds:
    hardware = design.hardware
    lasts_s = arrivals = in_stages = in_queues = in_excursions = needed = None
    parts: tuple[Segment, ...] = ()
    if n:
        lasts_s, arrivals, in_stages = design.iteration_s(n), design.arrivals(n), design.kv_tokens(n)
        if horizon_s is not None:
            shortest_s = hardware.base_s + hardware.per_kv_token_s * n[0] * design.prompts[0]
            iterations = max(1, math.floor(horizon_s / shortest_s))
        parts = tuple(_segment(design, n, i) for i in range(len(n)))
        in_queues = math.fsum(segment.entry_kv_tokens * segment.threshold for segment in parts)
        if iterations is not None and all(_is_stable(n, design.shares, i) for i in range(1, len(n))):
            depth = math.log(max(1, len(n) - 1) * iterations / risk)
            in_excursions = math.fsum(
                segment.entry_kv_tokens * depth / segment.exponent
                for segment in parts
                if segment.exponent is not None
            )
            needed = in_stages + in_queues + in_excursions
        tokens = needed if needed is not None else in_stages
        if not reason and hardware.kv_tokens is not None and tokens > hardware.kv_tokens:
            what = "stages alone" if needed is None else "stages, queues and excursions"
            reason = (
                f"the {what} need {number(tokens)} tokens of KV cache, it has {number(hardware.kv_tokens)}"
            )
    return NestedWaitThresholds(
        feasible=not reason,
        reason=reason,
        segments=design.ends if n else (),
        thresholds=n,
        parts=parts,
        rate=design.pace.mean(*design.names),
        base_s=hardware.base_s,
        per_kv_token_s=hardware.per_kv_token_s,
        segment_load=load,
        margin=margin,
        iteration_s=lasts_s,
        arrivals=arrivals,
        batch_limit=sum(c * (b - a + 1) for c, (a, b) in zip(n, runs(design.ends), strict=True))
        if n
        else None,
        stages_kv_tokens=in_stages,
        queues_kv_tokens=in_queues,
        excursions_kv_tokens=in_excursions,
        kv_tokens_needed=needed,
        kv_tokens=hardware.kv_tokens,
        iterations=iterations,
        risk=risk,
        hypotheses=hypotheses,
    )


def _segment(design: _Design, n: tuple[int, ...], i: int) -> Segment:
    first, last = runs(design.ends)[i]
    share = design.shares[i - 1] if i else 1.0
    is_stable = i > 0 and _is_stable(n, design.shares, i)
    return Segment(
        first_stage=first,
        last_stage=last,
        threshold=n[i],
        share=share,
        prompt_tokens=design.prompts[i],
        kv_tokens=n[i] * design.tokens[i],
        entry_kv_tokens=design.prompts[i] + first - 1 if i else 0.0,
        exponent=exponent(n[i - 1], n[i], share) if is_stable else None,
    )


def _is_stable(n: Sequence[int], shares: Sequence[float], i: int) -> bool:
    """Whether the queue at the entry of segment i has negative drift."""
    return enough(n[i], shares[i - 1] * n[i - 1], strict=True)


def _broken(design: _Design, n: Sequence[int], margin: float) -> str:
    """The violated line of (10); empty if both hold."""
    margin_text = f" (with a margin of {number(margin)})" if margin else ""
    arrivals = design.arrivals(n)
    if not enough(n[0], arrivals * (1 + margin), strict=True):
        return (
            f"an iteration of {number(design.iteration_s(n))} s has {number(arrivals)} "
            f"arrivals{margin_text}, the first threshold is {number(n[0])}, which (10) requires to be larger"
        )
    for i, share in enumerate(design.shares, start=1):
        if not enough(n[i], share * (1 + margin) * n[i - 1], strict=True):
            return (
                f"segment {i + 1}: {number(round(share * n[i - 1], 9))} of {number(n[i - 1])} requests "
                f"continue{margin_text}, its threshold is {number(n[i])}, which (10) requires to be larger"
            )
    return ""


def _memory(design: NestedWaitThresholds) -> float:
    if design.kv_tokens_needed is not None:
        return design.kv_tokens_needed
    return (design.stages_kv_tokens or 0.0) + (design.queues_kv_tokens or 0.0)


def _validated(thresholds: object, ends: Sequence[int]) -> tuple[int, ...]:
    if not isinstance(thresholds, Sequence) or len(thresholds) != len(ends):
        raise ConfigError("thresholds", f"must be {len(ends)} numbers, one per segment, got {thresholds!r}")
    return tuple(
        whole(f"thresholds[{place}]", threshold, 1, MOST_COUNT) for place, threshold in enumerate(thresholds)
    )


def _ends(segments: object, lengths: Sequence[int]) -> tuple[int, ...]:
    if not isinstance(segments, Sequence) or isinstance(segments, (str, bytes)) or not segments:
        raise ConfigError(
            "segments", f"must be a number, or the last stage of each segment, got {segments!r}"
        )
    ends = tuple(whole(f"segments[{place}]", end, 0, MOST_COUNT) for place, end in enumerate(segments))
    for place, (before, end) in enumerate(pairwise(ends)):
        if end <= before:
            raise ConfigError(f"segments[{place + 1}]", f"must be above the previous {before}, got {end}")
    if ends[-1] < lengths[-1]:
        raise ConfigError("segments", f"must extend to the last stage {lengths[-1]}, got {ends[-1]}")
    if len(ends) > 1 and ends[-2] >= lengths[-1]:
        raise ConfigError(
            "segments", f"the last segment is empty: requests have at most {lengths[-1]} stages"
        )
    return ends


def _parts(lengths: Sequence[int], count: int) -> tuple[int, ...]:
    """The ends of equal parts of the occurring lengths."""
    return tuple(lengths[len(lengths) * part // count - 1] for part in range(1, count + 1))


def _hypotheses(demand: Demand, pace: Periods) -> list[Hypothesis]:
    prompts = demand.lengths.mean(lambda s, o: s * s + 0 * o) - demand.lengths.prompt_mean**2
    alike = prompts <= 1e-9 * demand.lengths.prompt_mean**2
    return [
        *arrival_hypotheses(demand, pace),
        Hypothesis(
            name="all prompts are equally long",
            met=alike,
            why="they are" if alike else "the mean of the requests in each segment is used",
        ),
    ]


@dataclass(frozen=True, slots=True)
class Stages:
    """The distribution of a request's last stage, l', with its prompts."""

    ends: tuple[int, ...]
    """The last stages that occur, in ascending order."""
    reached: tuple[float, ...]
    """P(l' ≥ end) for each of them."""
    prompt: tuple[float, ...]
    """E[l; l' ≥ end] for each of them."""

    @classmethod
    def of(cls, lengths: Lengths, shift: int) -> Stages:
        """The stages of a length distribution, whose last stage is the output less `shift`.

        Binned lengths (see `Lengths`) count as the nearest integer.
        """
        weight: dict[int, tuple[float, float]] = {}
        outputs, chances, prompts = lengths.by_output()
        ends = np.rint(outputs - shift).astype(np.int64).tolist()
        for end, chance, tokens in zip(ends, chances.tolist(), prompts.tolist(), strict=True):
            before = weight.get(end, (0.0, 0.0))
            weight[end] = (before[0] + chance, before[1] + tokens)
        return cls._summed(weight)

    @classmethod
    def mixed(cls, parts: Sequence[tuple[float, Stages]]) -> Stages:
        """A mixture, with weights in any unit."""
        total = sum(share for share, _ in parts)
        weight: dict[int, tuple[float, float]] = {}
        for share, stages in parts:
            reached, prompt = (*stages.reached, 0.0), (*stages.prompt, 0.0)
            for k, end in enumerate(stages.ends):
                before = weight.get(end, (0.0, 0.0))
                weight[end] = (
                    before[0] + share / total * (reached[k] - reached[k + 1]),
                    before[1] + share / total * (prompt[k] - prompt[k + 1]),
                )
        return cls._summed(weight)

    @classmethod
    def _summed(cls, weight: dict[int, tuple[float, float]]) -> Stages:
        ends = sorted(end for end, (chance, _) in weight.items() if chance > 0)
        reached, prompt = [0.0], [0.0]
        for end in reversed(ends):
            reached.append(reached[-1] + weight[end][0])
            prompt.append(prompt[-1] + weight[end][1])
        # All requests reach the first stage: its sum is 1 up to rounding.
        scale = 1 / reached[-1]
        return cls(
            tuple(ends),
            tuple(value * scale for value in reached[:0:-1]),
            tuple(value * scale for value in prompt[:0:-1]),
        )

    def beyond(self, end: int) -> float:
        """P(l' > end)."""
        place = bisect_right(self.ends, end)
        return self.reached[place] if place < len(self.ends) else 0.0

    def prompt_beyond(self, end: int) -> float:
        """E[l | l' > end], 0 if no request continues."""
        place = bisect_right(self.ends, end)
        return self.prompt[place] / self.reached[place] if place < len(self.ends) else 0.0


def runs(ends: Sequence[int]) -> list[tuple[int, int]]:
    """The first and the last stage of each segment; stage 0 is the prompt."""
    return [(before + 1, end) for before, end in pairwise([-1, *ends])]


def exponent(before: int, count: int, share: float) -> float | None:
    """θ of (16): the positive root of E[exp(θ·(Binomial(before, share) − count))] = 1.

    None if the step is never positive (`count` ≥ `before`), so that the queue makes no excursion. Lemma 8:
    θ ≥ 8·(count − before·share)/before, which is the start of the search.

    >>> root = exponent(15, 13, 12 / 14)
    >>> root > 8 * (13 - 15 * 12 / 14) / 15
    True
    >>> round((12 / 14 * math.exp(root) + 2 / 14) ** 15 * math.exp(-13 * root), 9)
    1.0
    """
    if count >= before or share == 0:
        return None
    # ln E, with exp(θ) factored out of the binomial sum: no overflow for large θ.
    leave, go = 1 - share, share

    def log_moment(theta: float) -> float:
        return (before - count) * theta + before * math.log(go + leave * math.exp(-theta))

    low = 8 * (count - before * share) / before
    if low <= 0:
        raise ValueError(f"a queue with {before * share} arrivals for {count} slots has no such exponent")
    high = 2 * low
    while log_moment(high) < 0:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if log_moment(middle) < 0 else (low, middle)
    return low
