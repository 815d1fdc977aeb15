"""Where does the fluid settle: how long is an iteration, how much memory, and up to which rate?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from inferq.checks import MOST_TOKENS, whole
from inferq.errors import ConfigError
from inferq.scheduler import NestedWait, Scheduler, Wait
from inferq.systems.engine import Engine
from inferq.theory.capacities.iteration_cost import Iteration
from inferq.theory.demands.demand import Demand, WorkloadLike
from inferq.theory.demands.hits import no_hits
from inferq.theory.demands.lengths import FirstToken, Lengths, first_token_of, with_prompt
from inferq.theory.statement import Hypothesis, Statement, hypotheses_text, number
from inferq.timing import MemoryLinear, TimingModel


@dataclass(frozen=True, slots=True)
class FluidEngine:
    """What the formulas of ao2025 know of an engine."""

    base_s: float
    """d0."""
    per_kv_token_s: float
    """d1."""
    kv_tokens: int | None
    """C, in whole blocks; None without a limit."""
    first_token: FirstToken
    block: int
    scheduler: Scheduler | None
    no_hits: tuple[Hypothesis, ...] = ()
    """That a prefix cache finds nothing, where there is one."""

    @classmethod
    def of(
        cls, timing: TimingModel | Engine, kv_tokens: int | None, first_token: FirstToken | None
    ) -> FluidEngine:
        """The hardware of an engine, or of a timing model; what is given beside it wins."""
        block, scheduler, host_s, assumed = 1, None, 0.0, no_hits(timing)
        if isinstance(timing, Engine):
            block, scheduler = timing.kv.block, timing.scheduler
            kv_tokens = timing.kv.whole_tokens if kv_tokens is None else kv_tokens
            first_token = first_token or timing.first_token
            host = timing.overhead
            if host is not None and (
                host.per_sequence_s or host.beyond_graph_s or (host.overlapped and host.base_s)
            ):
                raise ConfigError(
                    "overhead",
                    f"{host!r} is no part of the formulas of ao2025, which know a base for every "
                    "iteration; base_s alone, not overlapped, is one",
                )
            host_s = 0.0 if host is None else float(host.base_s)
            timing = timing.timing
        if not isinstance(timing, MemoryLinear):
            raise ConfigError(
                "timing",
                f"the formulas of ao2025 are for MemoryLinear(…), alone or in an Engine, not for {timing!r}",
            )
        if timing.base + host_s == 0 and timing.per_kv_token == 0:
            raise ConfigError("timing", "base and per_kv_token are both 0, so an iteration lasts no time")
        if kv_tokens is not None:
            kv_tokens = whole("kv_tokens", kv_tokens, 1, MOST_TOKENS)
        base_s, per_kv_token_s = float(timing.base) + host_s, float(timing.per_kv_token)
        first_token = first_token_of(first_token or "prefill")
        return cls(base_s, per_kv_token_s, kv_tokens, first_token, block, scheduler, assumed)

    @property
    def shift(self) -> int:
        """Output tokens that need no decode: l' is the output less these."""
        return with_prompt(self.first_token)

    def iterations(self, lengths: Lengths) -> float:
        """E[l' + 1]: the iterations of a request, that of its prompt and one for each decode."""
        return lengths.output_mean - self.shift + 1

    def kv_token_iterations(self, lengths: Lengths) -> float:
        """E[(l' + 1)(l + l'/2)]: the tokens in the cache, summed over the iterations of a request."""
        return lengths.mean(lambda s, o: (o - self.shift + 1) * (s + (o - self.shift) / 2))

    def share_that_fits(self, lengths: Lengths) -> float:
        """Of the requests, those whose largest context, l + l', the cache can hold."""
        if self.kv_tokens is None:
            return 1.0
        limit = self.kv_tokens + self.shift
        return lengths.mean(lambda s, o: s + o <= limit)

    def hypotheses(self, demand: Demand) -> tuple[Hypothesis, ...]:
        """What the formulas assume of the engine and of the lengths."""
        return (
            Hypothesis(
                name="iterations are linear in the tokens of the cache",
                met=True,
                why=f"MemoryLinear, d0 = {number(self.base_s)} s, d1 = {number(self.per_kv_token_s)} s",
            ),
            self._whole_prompts(demand),
            Hypothesis(
                name="memory is counted by token",
                met=self.block == 1 or self.kv_tokens is None,
                why="the cache has no limit"
                if self.kv_tokens is None
                else f"blocks of {number(self.block)} tokens"
                + ("" if self.block == 1 else ", the last one of a request filled in part"),
            ),
            self._every_request_fits(demand),
            *self.no_hits,
        )

    def _whole_prompts(self, demand: Demand) -> Hypothesis:
        name = "prompts are computed in one iteration"
        if self.scheduler is None:
            return Hypothesis(name=name, met=None, why="no scheduler is given")
        if isinstance(self.scheduler, (Wait, NestedWait)):
            return Hypothesis(name=name, met=True, why=f"{type(self.scheduler).__name__} takes whole prompts")
        budget = getattr(self.scheduler, "token_budget", None) or getattr(self.scheduler, "chunk", None)
        if not isinstance(budget, int):
            return Hypothesis(
                name=name, met=None, why=f"{type(self.scheduler).__name__} states no token budget"
            )
        over = max(one.lengths.mean(lambda s, o: (s > budget) + 0 * o) for one in demand.classes)
        why = f"{type(self.scheduler).__name__} computes at most {number(budget)} tokens at once"
        if over:
            return Hypothesis(name=name, met=False, why=f"{why}, and there are longer prompts")
        return Hypothesis(name=name, met=None, why=f"{why}; that cuts a prompt while decodes fill it")

    def _every_request_fits(self, demand: Demand) -> Hypothesis:
        name = "every request fits the cache"
        if self.kv_tokens is None:
            return Hypothesis(name=name, met=True, why="the cache has no limit")
        for one in demand.classes:
            fits = self.share_that_fits(one.lengths)
            if fits == 0:
                raise ConfigError(
                    "kv_tokens", f"{number(self.kv_tokens)} tokens hold no request of class {one.name!r}"
                )
            if fits < 1 - 1e-12 or not one.lengths.is_bounded:
                left = max(0.0, 1 - fits)
                return Hypothesis(
                    name=name, met=False, why=f"class {one.name!r}: {number(left)} of them are too long"
                )
        return Hypothesis(name=name, met=True, why=f"none is longer than {number(self.kv_tokens)} tokens")


@dataclass(frozen=True, kw_only=True, slots=True)
class FluidClass:
    """One class in the fluid equilibrium."""

    name: str
    rate: float | None
    """λ_j in requests per second; None where nothing says when they come."""
    share: float
    """Of all requests."""
    iterations: float
    """E[l'_j + 1] of a request."""
    kv_token_iterations: float
    """E[(l'_j + 1)(l_j + l'_j/2)], the tokens in the cache summed over the iterations of a request."""
    requests: float | None
    """n*_j, in each iteration; None where there is no equilibrium."""
    kv_tokens: float | None
    """Its part of M*."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fluid(Statement):
    """The equilibrium of ao2025: as many requests come during an iteration as leave at its end.

    With no rate, or where the load is 1 or above, there is no equilibrium, and the fields that would
    describe it are None; `feasible` and `reason` say so.
    """

    source: ClassVar[str] = "ao2025 (2)-(8)"

    classes: tuple[FluidClass, ...]
    rate: float | None
    """Requests per second of all classes."""
    base_s: float
    """d0."""
    per_kv_token_s: float
    """d1."""
    first_token: FirstToken
    kv_tokens: int | None
    """C, tokens that the cache holds; None without a limit."""
    cache_load: float | None
    """d1·Σ λ_j E[(l'_j + 1)(l_j + l'_j/2)]: the share of time that work in proportion to the cache takes."""
    feasible: bool | None
    """Whether there is an equilibrium: `cache_load` < 1."""
    reason: str
    """Why there is none; empty where there is one."""
    iteration_s: float | None
    """ΔT, an iteration in equilibrium."""
    requests: float | None
    """Σ n*_j in each iteration."""
    kv_tokens_needed: float | None
    """M*, the tokens in the cache during an iteration."""
    fits: bool | None
    """Whether M* ≤ C; None without an equilibrium."""
    steps_per_s: float | None
    """Σ λ_j E[l'_j + 1], the throughput of (4) and (8), which counts the iteration of the prompt."""
    output_tokens_per_s: float | None
    """Σ λ_j E[o_j], the throughput of section 2.3."""
    time_capacity_per_s: float | None
    """The largest total rate with a `cache_load` of 1; None if d1 is 0."""
    memory_capacity_per_s: float | None
    """The largest total rate with M* ≤ C; None without a limit."""
    capacity_per_s: float | None
    """The smaller of the two: no policy serves more at this mix. None where nothing limits the rate."""
    binding: Literal["time", "memory", "none"]
    load: float | None
    """`rate / capacity_per_s`."""
    hypotheses: tuple[Hypothesis, ...]

    def explain(self) -> str:
        """The balance in symbols and with its numbers."""
        lines = [f"Fluid equilibrium ({self.source}), first_token={self.first_token!r}"]
        lines += [
            f"  class {one.name!r}: λ = {number(one.rate)}/s (share {number(one.share)}), "
            f"E[l'+1] = {number(one.iterations)} iterations, "
            f"E[(l'+1)(l + l'/2)] = {number(one.kv_token_iterations)} tokens × iterations"
            for one in self.classes
        ]
        if self.cache_load is None:
            lines.append(f"No equilibrium: {self.reason}.")
        else:
            lines.append(
                f"d1·Σ λ E[(l'+1)(l + l'/2)] = {number(self.per_kv_token_s)} · "
                f"{number(math.fsum((one.rate or 0.0) * one.kv_token_iterations for one in self.classes))} = "
                f"{number(self.cache_load)} {'<' if self.feasible else '≥'} 1 "
                f"at {number(self.rate)} requests/s"
            )
            lines += self._settled() if self.feasible else [f"No equilibrium: {self.reason}."]
            lines.append(
                f"throughput Σ λ E[l'+1] = {number(self.steps_per_s)} steps/s, "
                f"{number(self.output_tokens_per_s)} output tokens/s"
            )
        lines += self._limits()
        return "\n".join([*lines, *hypotheses_text(self.hypotheses)])

    def _settled(self) -> list[str]:
        lines = [f"ΔT = d0/(1 − load) = {number(self.base_s)}/(1 − {number(self.cache_load)}) = "]
        lines[0] += f"{number(self.iteration_s)} s"
        lines += [
            f"  class {one.name!r}: n* = λ·ΔT·E[l'+1] = {number(one.requests)} requests, "
            f"{number(one.kv_tokens)} tokens"
            for one in self.classes
        ]
        cache = "there is no limit"
        if self.kv_tokens is not None:
            cache = f"{'≤' if self.fits else '>'} C = {number(self.kv_tokens)}"
        lines.append(
            f"{number(self.requests)} requests in each iteration, "
            f"M* = {number(self.kv_tokens_needed)} tokens, {cache}"
        )
        return lines

    def _limits(self) -> list[str]:
        def said(limit: float | None) -> str:
            return "no limit" if limit is None else f"{number(limit)}/s"

        lines = [
            "largest rate at this mix: by time 1/(d1·E[(l'+1)(l + l'/2)]) = "
            f"{said(self.time_capacity_per_s)}, with M* ≤ C = {said(self.memory_capacity_per_s)}; "
            f"capacity {said(self.capacity_per_s)}, bound by {self.binding}"
        ]
        if self.load is not None:
            lines.append(f"load = rate / capacity = {number(self.load)}")
        return lines


def fluid(
    workload: WorkloadLike,
    timing: MemoryLinear | Engine,
    *,
    kv_tokens: int | None = None,
    first_token: FirstToken | None = None,
    rate: float | None = None,
) -> Fluid:
    """Where arrivals balance completions: iteration time, requests and memory, and the largest rate.

    A request has l' + 1 iterations, the one of its prompt and one for each decode, and is in the k-th of them
    (from 0) with l + k tokens: W = (l' + 1)(l + l'/2) in all. If each iteration lasts ΔT, λ_j·ΔT requests of
    a class begin in it, λ_j·ΔT·P(l' ≥ k) are in their k-th, and the batch holds M = ΔT·Σ λ_j E[W_j] tokens.
    With ΔT = d0 + d1·M this gives ΔT = d0 / (1 − d1·Σ λ_j E[W_j]); W is no function of the mean lengths, so
    its mean is taken over the joint distribution.

    No policy serves more than `capacity_per_s`, whatever it does: a batch of M tokens works off M of the
    Σ λ_j E[W_j] that come each second, in d0 + d1·M seconds, and M / (d0 + d1·M) grows with M ≤ C. Chunked
    prompts and recomputation only add work. That some policy comes close takes a cache that is not tight.

    Args:
        workload: what is asked, see `Demand`; without arrivals only the capacities are found.
        timing: d0 and d1; or an engine, whose cache and convention then count.
        kv_tokens: C, tokens that the cache holds; None: that of the engine, else without a limit.
        first_token: `"prefill"`: the iteration of the prompt gives the first token, and l' is the output less
            1; `"decode"`: l' is the output, so a request has one iteration more than output tokens, as in
            section 2.3. None: as the engine says, else `"prefill"`, the default of engines.
        rate: requests per second in all, instead of what `workload` says.

    Raises:
        ConfigError: another timing model, one that takes no time, a cache that holds no request of a class.

    Source: ao2025 (1)-(8), with d0 = `base`, d1 = `per_kv_token`, C = `kv_tokens`, M* = `kv_tokens_needed`,
        n*_j = `FluidClass.requests`, ΔT = `iteration_s`. Proposition 1 has d0 where d1 belongs; the balance
        of 3.2 lacks 1/(l'_j + 1), the first line of (8) d1, and A.2 has a factor too many in n*. (4) and (8)
        count the iteration of the prompt as a token (`steps_per_s`), section 2.3 does not
        (`output_tokens_per_s`; with `first_token="prefill"` the two agree).

    Example:
        The low demand of section 6.1 on Llama-2-7B and an A100:

        >>> import inferq as iq
        >>> low = [
        ...     iq.theory.RequestClass(name="short", rate=1000, prompt=10, output=10),
        ...     iq.theory.RequestClass(name="long", rate=1000, prompt=10, output=20),
        ... ]
        >>> timing = iq.research.MemoryLinear(base=0.015, per_kv_token=2.6e-7)
        >>> settled = iq.theory.fluid(low, timing, kv_tokens=125_000, first_token="decode")
        >>> round(settled.cache_load, 4), round(settled.iteration_s, 4), round(settled.kv_tokens_needed)
        (0.1521, 0.0177, 10349)
        >>> round(settled.capacity_per_s), settled.binding
        (8997, 'memory')
    """
    hardware = FluidEngine.of(timing, kv_tokens, first_token)
    demand = Demand.of(workload, rate=rate, needs_rate=False)
    work = [hardware.kv_token_iterations(one.lengths) for one in demand.classes]
    mixed = math.fsum(one.share * each for one, each in zip(demand.classes, work, strict=True))
    base_s, per_kv_token_s = hardware.base_s, hardware.per_kv_token_s
    cache_load = None if demand.rate is None else demand.rate * per_kv_token_s * mixed
    feasible = None if cache_load is None else cache_load < 1
    reason, iteration_s = "", None
    if cache_load is None:
        reason = f"no rate is known ({demand.arrivals})"
    elif cache_load >= 1:
        reason = (
            f"work in proportion to the cache takes {number(cache_load)} seconds of every second, "
            "so under any policy requests pile up"
        )
    else:
        iteration_s = base_s / (1 - cache_load)
    classes = tuple(
        FluidClass(
            name=one.name,
            rate=one.rate,
            share=one.share,
            iterations=hardware.iterations(one.lengths),
            kv_token_iterations=each,
            requests=None
            if iteration_s is None
            else (one.rate or 0.0) * iteration_s * hardware.iterations(one.lengths),
            kv_tokens=None if iteration_s is None else (one.rate or 0.0) * iteration_s * each,
        )
        for one, each in zip(demand.classes, work, strict=True)
    )
    needed = None if iteration_s is None else math.fsum(one.kv_tokens or 0.0 for one in classes)
    by_time = 1 / (per_kv_token_s * mixed) if per_kv_token_s else None
    cache = hardware.kv_tokens
    by_memory = None if cache is None else cache / (mixed * (base_s + per_kv_token_s * cache))
    binding: Literal["time", "memory", "none"] = "none" if by_time is None else "time"
    capacity = by_time
    if by_memory is not None and base_s > 0:
        binding, capacity = "memory", by_memory
    return Fluid(
        classes=classes,
        rate=demand.rate,
        base_s=base_s,
        per_kv_token_s=per_kv_token_s,
        first_token=hardware.first_token,
        kv_tokens=cache,
        cache_load=cache_load,
        feasible=feasible,
        reason=reason,
        iteration_s=iteration_s,
        requests=None if iteration_s is None else math.fsum(one.requests or 0.0 for one in classes),
        kv_tokens_needed=needed,
        fits=None if needed is None else cache is None or needed <= cache,
        steps_per_s=None
        if demand.rate is None
        else math.fsum((one.rate or 0.0) * one.iterations for one in classes),
        output_tokens_per_s=None if demand.rate is None else demand.rate * demand.lengths.output_mean,
        time_capacity_per_s=by_time,
        memory_capacity_per_s=by_memory,
        capacity_per_s=capacity,
        binding=binding,
        load=None if demand.rate is None or capacity is None else demand.rate / capacity,
        hypotheses=hardware.hypotheses(demand),
    )


@dataclass(frozen=True, slots=True)
class Settled:
    """The fluid balance of one replica: what every iteration would look like if nothing were random.

    In iterations of length T a request is under way for k = 1 + m_d of them, so by Little's law λ·T·k
    requests run, λ·T·m tokens are loaded, and λ·T·E[g] tokens are in the cache (g: tokens times
    iterations of a request, with half a block more that its last one wastes). T = t(λ·T·m) + λ·T·A, where
    A seconds of a request's life are due to contexts. The balance is that of ao2025 (2)-(8) for any model
    whose time is linear in tokens and contexts, with prompts in one iteration each (with fewer tokens
    than a batch holds that is what happens).

    What limits the rate: T has no solution (work), more tokens than the budget, more requests than seats, or
    more in the cache than it holds. These are means, so that a system whose batches vary needs more room.
    """

    rate: float
    iteration_s: float
    batch_tokens: float
    running: float
    kv_tokens: float

    @classmethod
    def at(cls, rate: float, engine: Engine, lengths: Lengths, first_token: FirstToken) -> Settled | None:
        """Where a replica settles at a rate; None if it is asked for more work than there is time."""
        return _Balance.of(engine, lengths, first_token).at(rate)


@dataclass(frozen=True, slots=True)
class _Balance:
    """What a request brings, and what a replica has."""

    cost: Iteration
    tokens: float
    contexts_s: float
    iterations: float
    held: float
    """Tokens of the cache times iterations of a request, its last block taken whole."""
    limits: tuple[float, float, float]
    """Budget, seats, tokens of the cache."""

    @classmethod
    def of(cls, engine: Engine, lengths: Lengths, first_token: FirstToken) -> _Balance:
        cost, decodes = Iteration.of(engine), lengths.decode_mean(first_token)
        budget, seats = engine.scheduler.token_limit(), engine.scheduler.sequence_limit()
        less = with_prompt(first_token)
        least_s, most_s = cost.prompt_contexts_s(lengths, budget)
        prompt_s = least_s if cost.per_kv_token_s or cost.per_row_s else (least_s + most_s) / 2
        kv = engine.kv
        return cls(
            cost=cost,
            tokens=lengths.prompt_mean + decodes,
            contexts_s=prompt_s + cost.decode_contexts_s(lengths, first_token),
            iterations=1 + decodes,
            held=lengths.mean(lambda s, o: (o - less + 1) * (s + (o - less) / 2 + (kv.block - 1) / 2)),
            limits=(
                math.inf if budget is None else float(budget),
                math.inf if seats is None else float(seats),
                math.inf if kv.whole_tokens is None else float(kv.whole_tokens),
            ),
        )

    def at(self, rate: float) -> Settled | None:
        """T = t(λ·T·m) + λ·T·A, on the flat part of t or beyond its knee."""
        flat = 1 - rate * self.contexts_s
        if flat <= 0:
            return None
        length_s = self.cost.base_s / flat
        if rate * length_s * self.tokens > self.cost.knee and self.cost.per_token_s:
            steep = flat - rate * self.tokens * self.cost.per_token_s
            beyond_s = self.cost.base_s - self.cost.per_token_s * self.cost.knee
            if steep <= 0 or beyond_s <= 0:
                return None
            length_s = beyond_s / steep
        begun = rate * length_s
        return Settled(rate, length_s, begun * self.tokens, begun * self.iterations, begun * self.held)

    def is_within(self, rate: float) -> bool:
        """Whether a rate keeps within the time there is and within every limit."""
        there = self.at(rate)
        if there is None:
            return False
        used = (there.batch_tokens, there.running, there.kv_tokens)
        return all(amount <= limit for amount, limit in zip(used, self.limits, strict=True))


def settled_capacity(engine: Engine, lengths: Lengths, first_token: FirstToken) -> float | None:
    """The largest rate at which the fluid of a replica settles within its limits; None if there is none."""
    balance = _Balance.of(engine, lengths, first_token)
    low, high = 0.0, 1.0
    while balance.is_within(high):
        low, high = high, 2 * high
        if high > 1e15:
            return None
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if balance.is_within(middle) else (low, middle)
    return low
