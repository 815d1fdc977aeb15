"""Which segments and thresholds keep nested WAIT stable, and which memory holds it with what risk?"""

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
"""Steps after which the search for the least thresholds gives up: they are large where it takes so many."""
_TRIED = 32
"""Segments that are tried at most when none are given."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """A run of decode stages with one threshold."""

    first_stage: int
    last_stage: int
    threshold: int
    """n_i."""
    share: float
    """p_(i−1): of the requests in the segment before, the share that comes here; 1 for the first."""
    prompt_tokens: float
    """E[l] of the requests that come here."""
    kv_tokens: float
    """n_i·Σ (l + k) over its stages k: its part of M^π."""
    entry_kv_tokens: float
    """l + l'_(i−1): what a request that waits at its entry holds; 0 for the first, whose queue holds none."""
    exponent: float | None
    """θ_i of (16); None for the first segment, and where n_i ≥ n_(i−1), so that its queue stays below n_i."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NestedWaitThresholds(Statement):
    """Segments and thresholds of nested WAIT, and what follows. Both are empty where there are none."""

    source: ClassVar[str] = "ao2025 (10)-(16), Theorems 2 to 4"

    feasible: bool
    reason: str
    """Why not; empty where it is."""
    segments: tuple[int, ...]
    """The last stage of each, as `iq.research.NestedWait(segments=…)` takes them."""
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
    """d1·Σ λ·q_i·Σ (l + k), with q_i = p_1···p_(i−1): the load if none leaves inside a segment."""
    margin: float
    """Both lines of (10) hold with this share to spare."""
    iteration_s: float | None
    """ΔT: an iteration with n_i requests at every stage of every segment."""
    arrivals: float | None
    """Σ λ·ΔT, below n_1 (the fullest window, where rates change)."""
    batch_limit: int | None
    """Requests in a batch at most."""
    stages_kv_tokens: float | None
    """M^π, the first term of (12) and (15)."""
    queues_kv_tokens: float | None
    """Σ (l + l'_(i−1))·n_i from the second segment on, the second term."""
    excursions_kv_tokens: float | None
    """Σ (l + l'_(i−1))·ln((L − 1)·S/δ)/θ_i, the third term; None without `iterations`."""
    kv_tokens_needed: float | None
    """Their sum: enough with a chance of 1 − δ at least; None without `iterations`."""
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
            ConfigError: they are not feasible.
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
            f"Σλ = {number(self.rate)}/s, load with segments kept to their ends {number(self.segment_load)}",
        ]
        if self.iteration_s is not None:
            lines.append(
                f"ΔT = {number(self.iteration_s)} s brings {number(self.arrivals)} requests, "
                f"n_1 = {number(self.thresholds[0])}"
            )
        for one in self.parts:
            growth = "" if one.exponent is None else f", θ = {number(one.exponent)}"
            lines.append(
                f"  stages {one.first_stage} to {one.last_stage}: n = {number(one.threshold)}, "
                f"p = {number(one.share)}, l = {number(one.prompt_tokens)}, {number(one.kv_tokens)} tokens, "
                f"{number(one.entry_kv_tokens)} for each at the entry{growth}"
            )
        if self.parts:
            limit = "no limit" if self.kv_tokens is None else f"{number(self.kv_tokens)} tokens"
            lines.append(
                f"memory: stages M^π = {number(self.stages_kv_tokens)}, "
                f"queues {number(self.queues_kv_tokens)}, excursions {number(self.excursions_kv_tokens)} "
                f"(S = {number(self.iterations)} iterations, risk δ = {number(self.risk)}), "
                f"in all {number(self.kv_tokens_needed)}; the cache holds {limit}; "
                f"{number(self.batch_limit)} requests in a batch at most"
            )
        lines.append("feasible" if self.feasible else f"infeasible: {self.reason}")
        return "\n".join([*lines, *hypotheses_text(self.hypotheses)])


@dataclass(frozen=True, slots=True)
class _Design:
    """What one choice of segments asks."""

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
                [(rates[one.name], stages[one.name]) for one in demand.classes if rates[one.name]]
            )
            entered = [1.0, *(mixed.beyond(end) for end in ends[:-1])]
            for i, (before, after) in enumerate(pairwise(entered)):
                # The share of a window is between those of the instants in it, so the largest instant counts.
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
        """The load if n_(i+1) = (1 + margin)·p_i·n_i; there are thresholds if it is below 1/(1 + margin)."""
        entered, total = 1.0, self.tokens[0]
        for share, each in zip(self.shares, self.tokens[1:], strict=True):
            entered *= share * (1 + margin)
            total += entered * each
        return self.hardware.per_kv_token_s * self.pace.mean(*self.names) * total

    def least(self, margin: float) -> tuple[int, ...]:
        """The least n in every place; its load must be below 1/(1 + margin).

        Empty where none was found up to `MOST_COUNT`. The real solution, whose iteration lasts d0/(1 − load)
        at least, is where it begins.
        """
        left = 1 - self.load(margin) * (1 + margin)
        bound = self.pace.mean(*self.names) * (1 + margin) * self.hardware.base_s / left * (1 - 1e-11 / left)
        first = max(1, math.floor(min(max(bound, 0.0), MOST_COUNT + 1)))
        for _ in range(_STEPS):
            if first > MOST_COUNT:
                break
            n = [first]
            for share in self.shares:
                n.append(least(share * (1 + margin) * n[-1], strict=True))
            wanted = least(self.arrivals(n) * (1 + margin), strict=True)
            if wanted <= first:
                return tuple(n)
            first = wanted
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
    """The least whole thresholds with which nested WAIT keeps up, or what given ones are worth.

    How long an output will be is not known; only the distribution of the lengths is known. Segment i covers
    the decode stages after l'_(i−1) up to l'_i (the first from stage 0, the prompt, on), and of those in
    segment i the share p_i goes on. Condition (10): an iteration with n_i requests at every stage is shorter
    than n_1 requests take to arrive, and n_(i+1) > p_i·n_i. As with `wait_thresholds` there is a least n, and
    one exists exactly if the load is below 1; but the load counts what enters a segment to its end, and the
    fewer segments the larger it is.

    Memory, (12) and (15): M^π tokens in the stages, n_i requests at the entry of each segment from the second
    on, and an excursion of that queue, whose walk has Binomial(n_(i−1), p) − n_i for a step. With θ_i > 0 for
    which E[exp(θ_i·step)] = 1, no queue exceeds n_i + ln((L − 1)·S/δ)/θ_i in S iterations, with a chance of
    1 − δ at least.

    Args:
        workload: what is asked; only the joint distribution of lengths and the rate count, not the class of a
            request.
        timing: d0 and d1; or an engine, whose cache and convention then count.
        kv_tokens: C; None: that of the engine, else without a limit.
        first_token: see `fluid`; with `"prefill"` the last stage of a request is its output less 1.
        rate: requests per second in all, instead of what `workload` says.
        segments: the last stage of each, ascending, the last one as far as the longest output; or how many
            there are, for so many equal parts of the lengths that occur (section 7.2); None: the number, up
            to 32, whose memory is least.
        thresholds: judge these, one for each of `segments`, instead of finding the least.
        margin: share by which both lines of (10) must hold, 0 or above. A larger one makes n larger and
            excursions of the queues shorter.
        iterations: S, over which the memory must suffice.
        horizon_s: instead of `iterations`: as many as fit, each with the prompts of n_1 requests at least.
        risk: δ, above 0 and below 1.
        periods: rates that change: `[(seconds, {class: requests per second}), …]`, over and over, instead
            of those of `workload`: (13), the fullest window of length ΔT, the largest p_i of any instant.

    Raises:
        ConfigError: naming the argument; outputs without a longest one (draw the workload, or give the
            lengths a cap).

    Source: ao2025 (10)-(17), Lemma 8, sections 5 and 7, with n_i = `thresholds`, l'_i = `segments`. (11) and
        the M^π of 7.2 are right for two segments at most and leave out the stage of the prompt: a segment
        holds n_i·Σ (l + k) over its stages k. (12) and (15) print 8·(n_j − n_(j−1)·p_j)/n_j as a lower bound
        of θ_j; Lemma 8, which they rest on, has n_(j−1) below, and θ_j is often smaller than what (12)
        prints. Here θ_j is the root of (16) itself. They write m for the L − 1 of the proof.

    Example:
        Section 6.2, four lengths that are not known beforehand:

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
        segment 2: 14 of the 15 before go on, its threshold is 14, (10) asks for more
    """
    hardware = replace(
        FluidEngine.of(timing, kv_tokens, first_token), scheduler=NestedWait(segments=[0], thresholds=[1])
    )
    demand = Demand.of(workload, rate=rate, needs_rate=periods is None)
    pace = Periods.of(demand, periods)
    margin = margin_of(margin)
    risk = within("risk", risk, 1e-100, 1)
    if risk == 1:
        raise ConfigError("risk", f"must be below 1, is {risk}")
    if iterations is not None and horizon_s is not None:
        raise ConfigError("horizon_s", "give it or iterations, not both")
    if iterations is not None:
        iterations = whole("iterations", iterations, 1, 2**62)
    if horizon_s is not None:
        horizon_s = within("horizon_s", horizon_s, 1e-9, 1e15)
    for one in demand.classes:
        if not one.lengths.is_bounded:
            raise ConfigError(
                f"class {one.name!r}", "its lengths have no end; draw the workload or give the lengths a cap"
            )
    stages = {one.name: Stages.of(one.lengths, hardware.shift) for one in demand.classes}
    lengths = sorted({end for one in stages.values() for end in one.ends})
    hypotheses = (*hardware.hypotheses(demand), *_hypotheses(demand, pace))

    def judged(ends: tuple[int, ...]) -> NestedWaitThresholds:
        design = _Design.of(hardware, demand, pace, stages, ends)
        load = design.load(margin)
        n: tuple[int, ...] = ()
        reason = ""
        if thresholds is not None:
            n = _given(thresholds, ends)
            reason = _broken(design, n, margin)
        elif load * (1 + margin) < 1:
            n = design.least(margin)
            if not n:
                reason = (
                    f"the load is only {number(1 - load * (1 + margin))} below 1, so near that none up to "
                    f"{number(MOST_COUNT)} were found"
                )
        else:
            kept = (
                f"{len(ends)} segments, requests kept to the end of each" if len(ends) > 1 else "one segment"
            )
            reason = f"the load is {number(load)} with {kept}, not below {number(1 / (1 + margin))}"
        return _worth(design, n, reason, load, margin, iterations, horizon_s, risk, hypotheses)

    if segments is not None and not isinstance(segments, int):
        return judged(_ends(segments, lengths))
    if thresholds is not None:
        raise ConfigError("thresholds", "give the last stage of each segment too, segments=[…]")
    if segments is not None:
        return judged(_parts(lengths, whole("segments", segments, 1, len(lengths))))
    designs = [judged(_parts(lengths, count)) for count in range(1, min(len(lengths), _TRIED) + 1)]
    usable = [one for one in designs if one.feasible]
    return min(usable, key=_memory) if usable else designs[-1]


def _worth(
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
        in_queues = math.fsum(one.entry_kv_tokens * one.threshold for one in parts)
        if iterations is not None and all(_falls(n, design.shares, i) for i in range(1, len(n))):
            depth = math.log(max(1, len(n) - 1) * iterations / risk)
            in_excursions = math.fsum(
                one.entry_kv_tokens * depth / one.exponent for one in parts if one.exponent is not None
            )
            needed = in_stages + in_queues + in_excursions
        asked = needed if needed is not None else in_stages
        if not reason and hardware.kv_tokens is not None and asked > hardware.kv_tokens:
            what = "stages alone" if needed is None else "stages, queues and excursions"
            reason = f"the {what} need {number(asked)} tokens of cache, it holds {number(hardware.kv_tokens)}"
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
    falls = i > 0 and _falls(n, design.shares, i)
    return Segment(
        first_stage=first,
        last_stage=last,
        threshold=n[i],
        share=share,
        prompt_tokens=design.prompts[i],
        kv_tokens=n[i] * design.tokens[i],
        entry_kv_tokens=design.prompts[i] + first - 1 if i else 0.0,
        exponent=exponent(n[i - 1], n[i], share) if falls else None,
    )


def _falls(n: Sequence[int], shares: Sequence[float], i: int) -> bool:
    """Whether the queue at the entry of segment i is pulled back."""
    return enough(n[i], shares[i - 1] * n[i - 1], strict=True)


def _broken(design: _Design, n: Sequence[int], margin: float) -> str:
    """Which line of (10) does not hold, empty if both do."""
    beside = f" (with a margin of {number(margin)})" if margin else ""
    arrivals = design.arrivals(n)
    if not enough(n[0], arrivals * (1 + margin), strict=True):
        return (
            f"an iteration of {number(design.iteration_s(n))} s brings {number(arrivals)} requests{beside}, "
            f"the first threshold is {number(n[0])}, (10) asks for more"
        )
    for i, share in enumerate(design.shares, start=1):
        if not enough(n[i], share * (1 + margin) * n[i - 1], strict=True):
            return (
                f"segment {i + 1}: {number(round(share * n[i - 1], 9))} of the {number(n[i - 1])} before "
                f"go on{beside}, its threshold is {number(n[i])}, (10) asks for more"
            )
    return ""


def _memory(one: NestedWaitThresholds) -> float:
    if one.kv_tokens_needed is not None:
        return one.kv_tokens_needed
    return (one.stages_kv_tokens or 0.0) + (one.queues_kv_tokens or 0.0)


def _given(thresholds: object, ends: Sequence[int]) -> tuple[int, ...]:
    if not isinstance(thresholds, Sequence) or len(thresholds) != len(ends):
        raise ConfigError(
            "thresholds", f"must be {len(ends)} numbers, one for each segment, is {thresholds!r}"
        )
    return tuple(whole(f"thresholds[{place}]", one, 1, MOST_COUNT) for place, one in enumerate(thresholds))


def _ends(segments: object, lengths: Sequence[int]) -> tuple[int, ...]:
    if not isinstance(segments, Sequence) or isinstance(segments, (str, bytes)) or not segments:
        raise ConfigError("segments", f"must be a number, or the last stage of each segment, is {segments!r}")
    ends = tuple(whole(f"segments[{place}]", one, 0, MOST_COUNT) for place, one in enumerate(segments))
    for place, (before, end) in enumerate(pairwise(ends)):
        if end <= before:
            raise ConfigError(f"segments[{place + 1}]", f"must be above the {before} before it, is {end}")
    if ends[-1] < lengths[-1]:
        raise ConfigError("segments", f"the last stage is {lengths[-1]}, the last segment ends at {ends[-1]}")
    if len(ends) > 1 and ends[-2] >= lengths[-1]:
        raise ConfigError("segments", f"no request comes to the last, the longest has {lengths[-1]} stages")
    return ends


def _parts(lengths: Sequence[int], count: int) -> tuple[int, ...]:
    """The ends of so many equal parts of the lengths that occur."""
    return tuple(lengths[len(lengths) * part // count - 1] for part in range(1, count + 1))


def _hypotheses(demand: Demand, pace: Periods) -> list[Hypothesis]:
    prompts = demand.lengths.mean(lambda s, o: s * s + 0 * o) - demand.lengths.prompt_mean**2
    alike = prompts <= 1e-9 * demand.lengths.prompt_mean**2
    return [
        *arrival_hypotheses(demand, pace),
        Hypothesis(
            name="all prompts are equally long",
            met=alike,
            why="they are" if alike else "the mean of the requests that come to a segment is taken",
        ),
    ]


@dataclass(frozen=True, slots=True)
class Stages:
    """The distribution of the last stage, l', of a request, and the prompts that go with it."""

    ends: tuple[int, ...]
    """The last stages that occur, ascending."""
    reached: tuple[float, ...]
    """P(l' ≥ end) for each of them."""
    prompt: tuple[float, ...]
    """E[l; l' ≥ end] for each of them."""

    @classmethod
    def of(cls, lengths: Lengths, shift: int) -> Stages:
        """Those of a distribution of lengths, whose last stage is the output less `shift`.

        What is binned in it (see `Lengths`) counts as the whole number next to it.
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
        for share, one in parts:
            reached, prompt = (*one.reached, 0.0), (*one.prompt, 0.0)
            for k, end in enumerate(one.ends):
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
        # All reach the first one: its sum is 1 but for rounding.
        scale = 1 / reached[-1]
        return cls(
            tuple(ends),
            tuple(one * scale for one in reached[:0:-1]),
            tuple(one * scale for one in prompt[:0:-1]),
        )

    def beyond(self, end: int) -> float:
        """P(l' > end)."""
        place = bisect_right(self.ends, end)
        return self.reached[place] if place < len(self.ends) else 0.0

    def prompt_beyond(self, end: int) -> float:
        """E[l | l' > end], 0 where no request goes on."""
        place = bisect_right(self.ends, end)
        return self.prompt[place] / self.reached[place] if place < len(self.ends) else 0.0


def runs(ends: Sequence[int]) -> list[tuple[int, int]]:
    """The first and the last stage of each segment; stage 0 is the prompt."""
    return [(before + 1, end) for before, end in pairwise([-1, *ends])]


def exponent(before: int, count: int, share: float) -> float | None:
    """θ of (16): the positive root of E[exp(θ·(Binomial(before, share) − count))] = 1.

    None where the step is never positive, `count` ≥ `before`, so that the queue makes no excursion. Lemma 8:
    θ ≥ 8·(count − before·share)/before, which is where the search begins.

    >>> root = exponent(15, 13, 12 / 14)
    >>> root > 8 * (13 - 15 * 12 / 14) / 15
    True
    >>> round((12 / 14 * math.exp(root) + 2 / 14) ** 15 * math.exp(-13 * root), 9)
    1.0
    """
    if count >= before or share == 0:
        return None
    # ln E, with exp(θ) taken out of the binomial sum: no overflow, however large θ is.
    stay, go = 1 - share, share

    def log_moment(theta: float) -> float:
        return (before - count) * theta + before * math.log(go + stay * math.exp(-theta))

    low = 8 * (count - before * share) / before
    if low <= 0:
        raise ValueError(f"a queue with {before * share} newcomers for {count} places has no such exponent")
    high = 2 * low
    while log_moment(high) < 0:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if log_moment(middle) < 0 else (low, middle)
    return low
