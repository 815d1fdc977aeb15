"""Fluid equilibrium: iteration time, memory and the largest rate without randomness."""

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
    """Parameters of an engine in the formulas of ao2025."""

    base_s: float
    """d0."""
    per_kv_token_s: float
    """d1."""
    kv_tokens: int | None
    """C, in whole blocks; None for no limit."""
    first_token: FirstToken
    block: int
    scheduler: Scheduler | None
    no_hits: tuple[Hypothesis, ...] = ()
    """The hypothesis that a prefix cache has no hits, if there is one."""

    @classmethod
    def of(
        cls, timing: TimingModel | Engine, kv_tokens: int | None, first_token: FirstToken | None
    ) -> FluidEngine:
        """The hardware of an engine or a timing model; explicit arguments take precedence."""
        block, scheduler, host_s, assumed = 1, None, 0.0, no_hits(timing)
        if isinstance(timing, Engine):
            block, scheduler = timing.kv.block, timing.scheduler
            kv_tokens = timing.kv.whole_tokens if kv_tokens is None else kv_tokens
            first_token = first_token or timing.first_token
            if timing.kv.groups is not None:
                raise ConfigError(
                    "kv.groups",
                    "is not supported by the formulas of ao2025, in which every layer keeps every token; "
                    "set groups to None",
                )
            host = timing.overhead
            if host is not None and (
                host.per_sequence_s
                or host.beyond_graph_s
                or host.launch_s
                or host.exposed_s
                or (host.overlapped and host.base_s)
            ):
                raise ConfigError(
                    "overhead",
                    f"{host!r} is not supported by the formulas of ao2025, which have a constant base per "
                    "iteration; use base_s alone, not overlapped",
                )
            host_s = 0.0 if host is None else float(host.base_s)
            timing = timing.timing
        if not isinstance(timing, MemoryLinear):
            raise ConfigError(
                "timing",
                f"must be MemoryLinear, alone or in an Engine, for the formulas of ao2025; got {timing!r}",
            )
        if timing.base + host_s == 0 and timing.per_kv_token == 0:
            raise ConfigError(
                "timing", "base and per_kv_token must not both be 0: iterations would take no time"
            )
        if kv_tokens is not None:
            kv_tokens = whole("kv_tokens", kv_tokens, 1, MOST_TOKENS)
        base_s, per_kv_token_s = float(timing.base) + host_s, float(timing.per_kv_token)
        first_token = first_token_of(first_token or "prefill")
        return cls(base_s, per_kv_token_s, kv_tokens, first_token, block, scheduler, assumed)

    @property
    def shift(self) -> int:
        """Output tokens that need no decode; l' is the output without them."""
        return with_prompt(self.first_token)

    def iterations(self, lengths: Lengths) -> float:
        """E[l' + 1]: iterations of a request, one for its prompt and one per decode."""
        return lengths.output_mean - self.shift + 1

    def kv_token_iterations(self, lengths: Lengths) -> float:
        """E[(l' + 1)(l + l'/2)]: tokens in the cache, summed over the iterations of a request."""
        return lengths.mean(lambda s, o: (o - self.shift + 1) * (s + (o - self.shift) / 2))

    def share_that_fits(self, lengths: Lengths) -> float:
        """Share of requests whose largest context, l + l', fits the cache."""
        if self.kv_tokens is None:
            return 1.0
        limit = self.kv_tokens + self.shift
        return lengths.mean(lambda s, o: s + o <= limit)

    def hypotheses(self, demand: Demand) -> tuple[Hypothesis, ...]:
        """Hypotheses of the formulas about the engine and the lengths."""
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
                + ("" if self.block == 1 else ", the last block of a request is partly filled"),
            ),
            self._every_request_fits(demand),
            *self.no_hits,
        )

    def _whole_prompts(self, demand: Demand) -> Hypothesis:
        name = "prompts are computed in one iteration"
        if self.scheduler is None:
            return Hypothesis(name=name, met=None, why="no scheduler is configured")
        if isinstance(self.scheduler, (Wait, NestedWait)):
            return Hypothesis(name=name, met=True, why=f"{type(self.scheduler).__name__} runs whole prompts")
        budget = getattr(self.scheduler, "token_budget", None) or getattr(self.scheduler, "chunk", None)
        if not isinstance(budget, int):
            return Hypothesis(
                name=name, met=None, why=f"{type(self.scheduler).__name__} has no known token budget"
            )
        over = max(
            request_class.lengths.mean(lambda s, o: (s > budget) + 0 * o) for request_class in demand.classes
        )
        why = f"{type(self.scheduler).__name__} computes at most {number(budget)} tokens per iteration"
        if over:
            return Hypothesis(name=name, met=False, why=f"{why}, and there are longer prompts")
        return Hypothesis(name=name, met=None, why=f"{why}; decodes may leave less for a prompt")

    def _every_request_fits(self, demand: Demand) -> Hypothesis:
        name = "every request fits the cache"
        if self.kv_tokens is None:
            return Hypothesis(name=name, met=True, why="the cache has no limit")
        for request_class in demand.classes:
            fits = self.share_that_fits(request_class.lengths)
            if fits == 0:
                raise ConfigError(
                    "kv_tokens",
                    f"{number(self.kv_tokens)} tokens hold no request of class {request_class.name!r}",
                )
            if fits < 1 - 1e-12 or not request_class.lengths.is_bounded:
                excess = max(0.0, 1 - fits)
                return Hypothesis(
                    name=name, met=False, why=f"class {request_class.name!r}: {number(excess)} are too long"
                )
        return Hypothesis(name=name, met=True, why=f"all have at most {number(self.kv_tokens)} tokens")


@dataclass(frozen=True, kw_only=True, slots=True)
class FluidClass:
    """One class in the fluid equilibrium."""

    name: str
    rate: float | None
    """λ_j in requests per second; None if unknown."""
    share: float
    """Share of all requests."""
    iterations: float
    """E[l'_j + 1] per request."""
    kv_token_iterations: float
    """E[(l'_j + 1)(l_j + l'_j/2)], tokens in the cache summed over the iterations of a request."""
    requests: float | None
    """n*_j, requests per iteration; None without an equilibrium."""
    kv_tokens: float | None
    """Share of the class in M*."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fluid(Statement):
    """The equilibrium of ao2025: as many requests arrive during an iteration as leave at its end.

    Without a rate, or at a load of at least 1, there is no equilibrium. `feasible` and `reason` report this,
    and the fields that describe the equilibrium are None.
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
    """C, tokens that the cache holds; None for no limit."""
    cache_load: float | None
    """d1·Σ λ_j E[(l'_j + 1)(l_j + l'_j/2)]: the share of time spent on work in proportion to the cache."""
    feasible: bool | None
    """Whether there is an equilibrium: `cache_load` < 1."""
    reason: str
    """The reason why there is none; else empty."""
    iteration_s: float | None
    """ΔT, the length of an iteration in equilibrium."""
    requests: float | None
    """Σ n*_j per iteration."""
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
    """The largest total rate with M* ≤ C; None for no limit."""
    capacity_per_s: float | None
    """The smaller of the two: no policy can exceed it at this mix. None if the rate has no limit."""
    binding: Literal["time", "memory", "none"]
    load: float | None
    """`rate / capacity_per_s`."""
    hypotheses: tuple[Hypothesis, ...]

    def explain(self) -> str:
        """The balance in symbols and with its numbers."""
        lines = [f"Fluid equilibrium ({self.source}), first_token={self.first_token!r}"]
        lines += [
            f"  class {fluid_class.name!r}: λ = {number(fluid_class.rate)}/s "
            f"(share {number(fluid_class.share)}), "
            f"E[l'+1] = {number(fluid_class.iterations)} iterations, "
            f"E[(l'+1)(l + l'/2)] = {number(fluid_class.kv_token_iterations)} tokens × iterations"
            for fluid_class in self.classes
        ]
        if self.cache_load is None:
            lines.append(f"No equilibrium: {self.reason}.")
        else:
            work = math.fsum((one.rate or 0.0) * one.kv_token_iterations for one in self.classes)
            lines.append(
                f"d1·Σ λ E[(l'+1)(l + l'/2)] = {number(self.per_kv_token_s)} · {number(work)} = "
                f"{number(self.cache_load)} {'<' if self.feasible else '≥'} 1 "
                f"at {number(self.rate)} requests/s"
            )
            lines += self._equilibrium() if self.feasible else [f"No equilibrium: {self.reason}."]
            lines.append(
                f"throughput Σ λ E[l'+1] = {number(self.steps_per_s)} steps/s, "
                f"{number(self.output_tokens_per_s)} output tokens/s"
            )
        lines += self._limits()
        return "\n".join([*lines, *hypotheses_text(self.hypotheses)])

    def _equilibrium(self) -> list[str]:
        lines = [f"ΔT = d0/(1 − cache load) = {number(self.base_s)}/(1 − {number(self.cache_load)}) = "]
        lines[0] += f"{number(self.iteration_s)} s"
        lines += [
            f"  class {fluid_class.name!r}: n* = λ·ΔT·E[l'+1] = {number(fluid_class.requests)} requests, "
            f"{number(fluid_class.kv_tokens)} tokens"
            for fluid_class in self.classes
        ]
        cache = "no limit"
        if self.kv_tokens is not None:
            cache = f"{'≤' if self.fits else '>'} C = {number(self.kv_tokens)}"
        lines.append(
            f"{number(self.requests)} requests per iteration, "
            f"M* = {number(self.kv_tokens_needed)} tokens, {cache}"
        )
        return lines

    def _limits(self) -> list[str]:
        def rate_text(limit: float | None) -> str:
            return "no limit" if limit is None else f"{number(limit)}/s"

        lines = [
            "largest rate at this mix: by time 1/(d1·E[(l'+1)(l + l'/2)]) = "
            f"{rate_text(self.time_capacity_per_s)}, with M* ≤ C = {rate_text(self.memory_capacity_per_s)}; "
            f"capacity {rate_text(self.capacity_per_s)}, limited by {self.binding}"
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
    """Compute the fluid equilibrium (iteration time, requests, memory) and the largest rate.

    A request has l' + 1 iterations, one for its prompt and one per decode. In its k-th iteration (from 0) it
    has l + k tokens, in total W = (l' + 1)(l + l'/2). If each iteration lasts ΔT, λ_j·ΔT requests of a class
    start in it, λ_j·ΔT·P(l' ≥ k) are in their k-th, and the batch holds M = ΔT·Σ λ_j E[W_j] tokens. With
    ΔT = d0 + d1·M this gives ΔT = d0 / (1 − d1·Σ λ_j E[W_j]). W is not a function of the mean lengths, so
    its mean is taken over the joint distribution.

    No policy can exceed `capacity_per_s`: a batch of M tokens completes M of the Σ λ_j E[W_j] that arrive
    each second, in d0 + d1·M seconds, and M / (d0 + d1·M) grows with M ≤ C. Chunked prompts and recomputation
    only add work. Some policy comes close to it only if the cache is not tight.

    Args:
        workload: requests, see `Demand`; without arrivals only the capacities are computed.
        timing: d0 and d1, or an engine with its cache and its convention for first tokens.
        kv_tokens: C, tokens that the cache holds. Default: the cache of the engine, else no limit.
        first_token: `"prefill"`: the iteration of the prompt emits the first token, and l' is the output less
            1. `"decode"`: l' is the output, so a request has one iteration more than output tokens, as in
            section 2.3. Default: as the engine does, else `"prefill"`.
        rate: total requests per second. Default: the rate of the workload.

    Raises: ConfigError: another timing model, one that takes no time, or a cache that holds no request of a
        class.

    Source: ao2025 (1)-(8), with d0 = `base`, d1 = `per_kv_token`, C = `kv_tokens`, M* = `kv_tokens_needed`,
        n*_j = `FluidClass.requests`, ΔT = `iteration_s`. Proposition 1 prints d0 for d1; the balance of 3.2
        lacks 1/(l'_j + 1), the first line of (8) lacks d1, and n* in A.2 has an extra factor. (4) and (8)
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
    work = [hardware.kv_token_iterations(request_class.lengths) for request_class in demand.classes]
    mixed = math.fsum(
        request_class.share * each for request_class, each in zip(demand.classes, work, strict=True)
    )
    base_s, per_kv_token_s = hardware.base_s, hardware.per_kv_token_s
    cache_load = None if demand.rate is None else demand.rate * per_kv_token_s * mixed
    feasible = None if cache_load is None else cache_load < 1
    reason, iteration_s = "", None
    if cache_load is None:
        reason = f"the rate is unknown ({demand.arrivals})"
    elif cache_load >= 1:
        reason = (
            f"work in proportion to the cache takes {number(cache_load)} seconds per second, "
            "so requests accumulate under any policy"
        )
    else:
        iteration_s = base_s / (1 - cache_load)
    classes = tuple(
        FluidClass(
            name=request_class.name,
            rate=request_class.rate,
            share=request_class.share,
            iterations=hardware.iterations(request_class.lengths),
            kv_token_iterations=each,
            requests=None
            if iteration_s is None
            else (request_class.rate or 0.0) * iteration_s * hardware.iterations(request_class.lengths),
            kv_tokens=None if iteration_s is None else (request_class.rate or 0.0) * iteration_s * each,
        )
        for request_class, each in zip(demand.classes, work, strict=True)
    )
    needed = (
        None if iteration_s is None else math.fsum(fluid_class.kv_tokens or 0.0 for fluid_class in classes)
    )
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
        requests=None
        if iteration_s is None
        else math.fsum(fluid_class.requests or 0.0 for fluid_class in classes),
        kv_tokens_needed=needed,
        fits=None if needed is None else cache is None or needed <= cache,
        steps_per_s=None
        if demand.rate is None
        else math.fsum((fluid_class.rate or 0.0) * fluid_class.iterations for fluid_class in classes),
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
    """The fluid balance of one replica: every iteration if nothing were random.

    With iterations of length T a request runs for k = 1 + m_d of them. By Little's law λ·T·k requests run,
    λ·T·m tokens are loaded, and λ·T·E[g] tokens are in the cache (g: tokens times iterations of a request,
    plus half a block for its last one). T = t(λ·T·m) + λ·T·A, where contexts add A seconds to a request's
    life. The balance generalizes ao2025 (2)-(8) to any model whose time is linear in tokens and contexts,
    with prompts in one iteration each (true if prompts are shorter than the token budget).

    Limits of the rate: T has no solution (work), more tokens than the budget, more requests than the sequence
    limit, or more tokens than the cache holds. These are means, so systems with varying batches need more.
    """

    rate: float
    iteration_s: float
    batch_tokens: float
    running: float
    kv_tokens: float

    @classmethod
    def at(cls, rate: float, engine: Engine, lengths: Lengths, first_token: FirstToken) -> Settled | None:
        """The balance of a replica at a rate; None if the rate exceeds its capacity for work."""
        return _Balance.of(engine, lengths, first_token).at(rate)


@dataclass(frozen=True, slots=True)
class _Balance:
    """Requirements of a request and limits of a replica."""

    cost: Iteration
    tokens: float
    contexts_s: float
    iterations: float
    held: float
    """Tokens in the cache times iterations of a request, with its last block counted in full."""
    limits: tuple[float, float, float]
    """Token budget, sequence limit, tokens of the cache."""

    @classmethod
    def of(cls, engine: Engine, lengths: Lengths, first_token: FirstToken) -> _Balance:
        cost, decodes = Iteration.of(engine), lengths.decode_mean(first_token)
        budget, max_seqs = engine.scheduler.token_limit(), engine.scheduler.sequence_limit()
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
                math.inf if max_seqs is None else float(max_seqs),
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
        started = rate * length_s
        return Settled(rate, length_s, started * self.tokens, started * self.iterations, started * self.held)

    def is_within(self, rate: float) -> bool:
        """Whether a rate stays within the available time and every limit."""
        state = self.at(rate)
        if state is None:
            return False
        used = (state.batch_tokens, state.running, state.kv_tokens)
        return all(amount <= limit for amount, limit in zip(used, self.limits, strict=True))


def settled_capacity(engine: Engine, lengths: Lengths, first_token: FirstToken) -> float | None:
    """The largest rate at which the fluid of a replica stays within its limits; None if there is none."""
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
