"""Capacity of a sequence limit (`max_seqs`), and of whole batches that run one after another."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from inferq._lazy import NDArray, np
from inferq.checks import MOST_COUNT, whole
from inferq.errors import ConfigError
from inferq.scheduler import FasterTransformer
from inferq.systems.engine import Engine
from inferq.theory.capacities.iteration_cost import (
    Iteration,
    all_fit,
    features_outside_theory,
    fills_budget,
    memory_slack,
    open_arrivals,
    parts_of,
)
from inferq.theory.demands.demand import Demand, WorkloadLike
from inferq.theory.demands.hits import RequestWork, no_hits, with_hit_rate
from inferq.theory.demands.lengths import FirstToken, Lengths, with_prompt
from inferq.theory.statement import Hypothesis, Statement, explained, number
from inferq.timing import TimingModel


@dataclass(frozen=True, kw_only=True, slots=True)
class SequenceCapacity(Statement):
    """The largest rate with a sequence limit; returned by `sequence_capacity`."""

    source: ClassVar[str] = "sequence limit (after li2025 Theorem 1)"

    rate: float | None
    """λ, requests per second of all classes; None if unknown."""
    max_seqs: int
    """S, the limit of running requests per engine."""
    token_budget: int | None
    """b; None without a token budget."""
    engines: int
    """K."""
    tokens_mean: float
    """m = m_p + m_d, tokens that a request loads."""
    iterations_mean: float
    """E[k], the least iterations for which a request takes a slot: ⌈s/b⌉ for its prompt, one per decode."""
    stages_mean: float
    """1 + m_d, iterations of a request that the budget never cuts."""
    tokens_per_iteration: float
    """The largest mean number of tokens per iteration: n = min(b, S·m/E[k])."""
    iteration_s: float
    """t(n) at the largest n/t(n) up to `tokens_per_iteration`."""
    idle_s: float | None
    """t(S) − S·t(b)/b: time of an iteration of S tokens beyond its share of full ones; None without b."""
    context_s_least: float
    """Seconds of context terms (attention) over a request's life, for any cut of its prompt."""
    context_s_most: float
    capacity_per_s: float
    """Requests per second that no policy can exceed."""
    stable_below_per_s: float | None
    """Requests per second below which every policy is stable that leaves no slot and no budget unused; None
    without b."""
    hypotheses: tuple[Hypothesis, ...]
    hit_rate: float | None = None
    """The share of prompt tokens found in a prefix cache that `capacity_per_s` assumes; None without hits."""
    stable_hit_rate: float | None = None
    """The hit rate that `stable_below_per_s` assumes."""
    stable: bool | None
    """False above the capacity, True below `stable_below_per_s` if the policy qualifies, else None."""

    @property
    def load(self) -> float | None:
        """λ / capacity; None without a rate."""
        return None if self.rate is None else self.rate / self.capacity_per_s

    def explain(self) -> str:
        """The inequality in symbols and in numbers, the conclusion, and the hypotheses."""
        lines = [*self._numbers(), f"no policy can exceed {number(self.capacity_per_s)} requests per second"]
        if self.stable_below_per_s is not None:
            lines.append(
                "policies that use every slot and token they can are stable below "
                f"{number(self.stable_below_per_s)}: the 1 + m_d = {number(self.stages_mean)} stages of a "
                f"request share the idle time of {number(self.idle_s)} s per iteration"
            )
        if self.rate is not None:
            lines.append(f"arrival rate {number(self.rate)} per second: load {number(self.load)}")
        symbols = f"Sequences ({self.source}): λ·(m·t(n)/n + A) ≤ K with n = min(b, S·m/E[k])"
        return explained(symbols, lines, self.stable, self.hypotheses)

    @property
    def inequality(self) -> str:
        """The inequality with its numbers, on one line."""
        return "; ".join(self._numbers())

    def _numbers(self) -> list[str]:
        k, slots, m = number(self.engines), number(self.max_seqs), number(self.tokens_mean)
        n, t_n = number(self.tokens_per_iteration), number(self.iteration_s)
        budget = "any number of" if self.token_budget is None else f"b = {number(self.token_budget)}"
        return [
            f"S = {slots} sequence slots, K = {k} engine{'s' if self.engines > 1 else ''}, {budget} tokens "
            f"per batch; a request loads m = {m} tokens in at least E[k] = {number(self.iterations_mean)} "
            "iterations",
            f"so the mean batch holds n ≤ {n} tokens, the fastest of these in t(n) = {t_n} s; contexts add "
            f"A = {number(self.context_s_least)} to {number(self.context_s_most)} s per request",
        ]


def sequence_capacity(
    workload: WorkloadLike,
    engine_or_timing: Engine | TimingModel,
    *,
    max_seqs: int | None = None,
    token_budget: int | None = None,
    engines: int = 1,
    first_token: FirstToken | None = None,
    rate: float | None = None,
    hit_rate: float | None = None,
) -> SequenceCapacity:
    """Compute the largest rate with at most S running requests, and the rate that good policies guarantee.

    **Upper bound.** I iterations have S·I slots. A request takes a slot in at least k of them, ⌈s/b⌉ for its
    prompt and one per decode. So R requests need I ≥ R·E[k]/S iterations, which hold n = R·m/I ≤ S·m/E[k]
    tokens on average, and at most b. t is convex, so they last at least I·t(n) plus the context terms. So R
    is at most one request per m·t(n)/n + A seconds, at the best n within that bound.

    **Guarantee.** Let a policy fill its budget whenever it has requests and slots. While a request waits, one
    of two cases holds. Either an iteration is full and completes b tokens of work in t(b). Or all S slots are
    taken and every sequence advances, a prompt by all its remaining tokens and a decode by one: then S stages
    of requests complete in an iteration of n ≥ S tokens, which takes at most t(S) − S·t(b)/b longer than
    n·t(b)/b. So the workload (tokens left)·t(b)/b + (stages left)·(t(S) − S·t(b)/b)/S, in seconds, falls by
    at least one second per second. The policy is stable if
    λ·(m·t(b)/b + (1 + m_d)·(t(S) − S·t(b)/b)/S + A) < K. With S ≥ b this is li2025 (2.7).

    Args:
        workload: a workload with lengths, a class, or several.
        engine_or_timing: an engine, or a timing model.
        max_seqs: S. Default: the limit of the engine's scheduler (`max_active` of `Slai`).
        token_budget: b. Default: the budget of the engine's scheduler; None for no budget.
        engines: K, number of identical engines behind a router that spreads the load.
        first_token: as for `token_capacity`.
        rate: total requests per second. Default: the rate of the workload. Shares of classes stay.
        hit_rate: as for `token_capacity`.

    Raises:
        ConfigError: the sequence limit is missing or below 1; otherwise as for `token_capacity`.
        TraceError: a workload without lengths.

    Source: our own, for homogeneous requests as in Figure 1 of li2025; the drift argument is from its
        Appendix B.

    Example:
        The default of 128 sequences costs 11 % of the capacity of a budget of 512 tokens:

        >>> import inferq as iq
        >>> from inferq.theory.capacities.sequence_capacity import sequence_capacity
        >>> timing = iq.PiecewiseLinear(base=0.0455, per_token=0.0003, knee=64)
        >>> chat = iq.theory.RequestClass(rate=10, prompt=129, output=112)
        >>> bound = sequence_capacity(chat, timing, max_seqs=128, token_budget=512, first_token="decode")
        >>> round(bound.stable_below_per_s, 2), round(bound.capacity_per_s, 2), bound.stable
        (9.79, 10.47, None)
    """
    engine, cost, first_token = parts_of(engine_or_timing, first_token)
    if engine is not None:
        max_seqs = engine.scheduler.sequence_limit() if max_seqs is None else max_seqs
        token_budget = engine.scheduler.token_limit() if token_budget is None else token_budget
    if max_seqs is None:
        raise ConfigError("max_seqs", "a sequence limit is required; set max_seqs=")
    slots, k = whole("max_seqs", max_seqs, 1, MOST_COUNT), whole("engines", engines, 1, MOST_COUNT)
    b = None if token_budget is None else whole("token_budget", token_budget, 1, MOST_COUNT)
    demand = Demand.of(workload, rate=rate, needs_rate=False)
    if hit_rate is not None:
        demand = with_hit_rate(demand, hit_rate, engine)
    lengths, work = demand.lengths, RequestWork.of(demand, engine, cost, first_token, b)
    iterations = (_prompt_iterations(lengths, b) if work.hits is None else work.hits.chunks(b)) + work.decodes
    mean_batch = slots * work.tokens / iterations
    if b is not None:
        mean_batch = min(mean_batch, float(b))
    best = cost.best_tokens(mean_batch)
    fastest_s = work.tokens * cost.seconds(best) / best + work.least_s if best else 0.0
    if not fastest_s > 0:
        raise ConfigError("timing", f"an iteration of up to {number(max(best, 1))} tokens lasts 0 seconds")
    capacity = k / fastest_s
    idle_s = guaranteed = None
    if b is not None:
        idle_s = cost.idle_s(min(slots, b), b)
        stages_s = (1 + work.decodes) * idle_s / min(slots, b)
        guaranteed = k / (work.guaranteed_tokens * cost.seconds(b) / b + stages_s + work.most_s)

    arrivals = open_arrivals(demand)
    policy: list[Hypothesis] = []
    if engine is not None:
        if b is not None:
            policy.append(fills_budget(engine.scheduler, b))
        policy += features_outside_theory(engine)
        policy += [memory_slack(engine, lengths), all_fit(engine, lengths, first_token)]
    open_loop = all(hypothesis.met is not False for hypothesis in arrivals)
    stable = None
    if demand.rate is not None and open_loop:
        drafts = () if engine is None else features_outside_theory(engine)
        if demand.rate > capacity and not drafts and (engine is None or policy[-1].met is True):
            stable = False
        elif (
            guaranteed is not None
            and demand.rate < guaranteed
            and policy
            and all(hypothesis.met is True for hypothesis in policy)
        ):
            stable = True
    return SequenceCapacity(
        rate=demand.rate,
        max_seqs=slots,
        token_budget=b,
        engines=k,
        tokens_mean=work.tokens,
        iterations_mean=iterations,
        stages_mean=1 + work.decodes,
        tokens_per_iteration=mean_batch,
        iteration_s=cost.seconds(best),
        idle_s=idle_s,
        context_s_least=work.least_s,
        context_s_most=work.most_s,
        capacity_per_s=capacity,
        stable_below_per_s=guaranteed,
        hypotheses=(*policy, *arrivals, *work.hypotheses),
        hit_rate=work.hit_rate,
        stable_hit_rate=work.stable_hit_rate,
        stable=stable,
    )


def _prompt_iterations(lengths: Lengths, budget: int | None) -> float:
    """E[⌈s/b⌉], the least iterations of a prompt."""
    return 1.0 if budget is None else lengths.mean(lambda s, o: np.ceil(s / budget) + 0 * o)


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestLevelCapacity(Statement):
    """The capacity of full batches that run one after another; returned by `request_level_capacity`."""

    source: ClassVar[str] = "request-level batching, li2025 section 3"

    rate: float | None
    """λ, requests per second of all classes; None if unknown."""
    batch: int
    """S, requests of a full batch: the sequence limit, or fewer if the cache has less room."""
    engines: int
    """K."""
    prompts_s: float
    """Mean seconds of the single iteration that computes all prompts of a batch, without context terms."""
    decodes_s: float
    """Mean seconds of all decode iterations of a batch, without context terms."""
    decode_iterations: float
    """E[longest], the number of decode iterations."""
    context_s: float
    """Mean seconds that contexts (attention) add to a batch."""
    capacity_per_s: float
    """S·K / (prompts + decodes + contexts), requests per second."""
    hypotheses: tuple[Hypothesis, ...]
    stable: bool | None
    """Whether the rate is below the capacity; None if a hypothesis is not met or the rate is unknown."""

    @property
    def load(self) -> float | None:
        """λ / capacity; None without a rate."""
        return None if self.rate is None else self.rate / self.capacity_per_s

    def explain(self) -> str:
        """The inequality in symbols and in numbers, the conclusion, and the hypotheses."""
        lines = [
            self.inequality,
            f"stable below {number(self.engines)}·{number(self.batch)}/({self._parts()}) = "
            f"{number(self.capacity_per_s)} requests per second",
        ]
        if self.rate is not None:
            lines.append(f"arrival rate {number(self.rate)} per second: load {number(self.load)}")
        symbols = f"Batches ({self.source}): λ·E[T_S] < K·S, T_S the length of a full batch"
        return explained(symbols, lines, self.stable, self.hypotheses)

    @property
    def inequality(self) -> str:
        """The numbers of the inequality, on one line."""
        return (
            f"S = {number(self.batch)} requests, K = {number(self.engines)} "
            f"engine{'s' if self.engines > 1 else ''}; E[T_S] = {self._parts()} s "
            f"(prompts, {number(self.decode_iterations)} iterations of decodes, contexts)"
        )

    def _parts(self) -> str:
        return f"{number(self.prompts_s)} + {number(self.decodes_s)} + {number(self.context_s)}"


def request_level_capacity(
    workload: WorkloadLike,
    engine_or_timing: Engine | TimingModel,
    *,
    max_seqs: int | None = None,
    engines: int = 1,
    first_token: FirstToken | None = None,
    rate: float | None = None,
) -> RequestLevelCapacity:
    """Compute the capacity of full batches that run until their last request ends.

    A batch of S requests takes one iteration for all whole prompts, t(Σ s), and one iteration per decode of
    its longest request, t(N_j) with the N_j requests that have at least j decodes. While at least S requests
    wait, batches are full, identical in distribution and independent. So the system is stable exactly if
    λ·E[T_S] < K·S. For equal requests T_S = t(S·m_p) + m_d·t(S); otherwise N_j is binomial, and E[T_S] is a
    sum over j.

    Args:
        workload: a workload with lengths, a class, or several; requests of a batch are independent.
        engine_or_timing: an engine with `FasterTransformer`, or a timing model.
        max_seqs: S. Default: the limit of the scheduler, or fewer if the cache has room for fewer requests of
            `max_model_len`.
        engines: K, number of identical engines behind a router that spreads the load.
        first_token: as for `token_capacity`.
        rate: total requests per second. Default: the rate of the workload. Shares of classes stay.

    Raises:
        ConfigError: another scheduler, no sequence limit, or room for no request; otherwise as for
            `token_capacity`.
        TraceError: a workload without lengths.

    Source: FasterTransformer of li2025 section 3, which states neither its batch size nor this formula.

    Example:
        >>> import inferq as iq
        >>> from inferq.theory.capacities.sequence_capacity import request_level_capacity
        >>> timing = iq.PiecewiseLinear(base=0.0455, per_token=0.0003, knee=64)
        >>> chat = iq.theory.RequestClass(rate=10, prompt=129, output=112)
        >>> round(request_level_capacity(chat, timing, max_seqs=64, first_token="decode").capacity_per_s, 2)
        8.42
    """
    engine, cost, first_token = parts_of(engine_or_timing, first_token)
    policy: list[Hypothesis] = []
    demand = Demand.of(workload, rate=rate, needs_rate=False)
    lengths = demand.lengths
    if engine is not None:
        scheduler = engine.scheduler
        if not isinstance(scheduler, FasterTransformer):
            raise ConfigError(
                "engine_or_timing",
                f"must run whole batches (FasterTransformer), got {type(scheduler).__name__}",
            )
        max_seqs = scheduler.max_seqs if max_seqs is None else max_seqs
        policy.append(all_fit(engine, lengths, first_token))
        if engine.kv.tokens is not None:
            reserved = -(-scheduler.max_model_len // engine.kv.block)
            max_seqs = min(max_seqs, engine.kv.tokens // engine.kv.block // reserved)
            if not max_seqs:
                raise ConfigError(
                    "kv.tokens",
                    f"{engine.kv.tokens} tokens hold no request of {scheduler.max_model_len} tokens",
                )
    if max_seqs is None:
        raise ConfigError("max_seqs", "a timing model has no sequence limit; set max_seqs=")
    slots, k = whole("max_seqs", max_seqs, 1, MOST_COUNT), whole("engines", engines, 1, MOST_COUNT)

    prompts_s = cost.base_s + cost.per_token_s * (slots * lengths.prompt_mean - cost.knee)
    if slots < cost.knee:
        prompts_s += cost.per_token_s * _missing_prompts(lengths, slots, cost.knee)
    decodes, above = _decodes(lengths, first_token)
    decode_iterations, decodes_s = _decode_iterations(cost, slots, decodes, above)
    # A whole prompt is one chunk at context 0.
    squares = lengths.mean(lambda s, o: s * s + 0 * o) if cost.per_prefill_square_s else 0.0
    prompt_contexts_s = (
        cost.per_prefill_square_s * squares + cost.per_kv_token_s * lengths.prompt_mean + cost.per_row_s
    )
    context_s = slots * (cost.decode_contexts_s(lengths, first_token) + prompt_contexts_s)
    batch_s = prompts_s + decodes_s + context_s
    if not batch_s > 0:
        raise ConfigError("timing", "a batch lasts 0 seconds")
    capacity = k * slots / batch_s
    hypotheses = (*policy, *open_arrivals(demand), *no_hits(engine))
    decided = demand.rate is not None and demand.rate != capacity and not no_hits(engine)
    stable = None
    if decided and demand.rate is not None and all(hypothesis.met is not False for hypothesis in hypotheses):
        stable = demand.rate < capacity
    return RequestLevelCapacity(
        rate=demand.rate,
        batch=slots,
        engines=k,
        prompts_s=prompts_s,
        decodes_s=decodes_s,
        decode_iterations=decode_iterations,
        context_s=context_s,
        capacity_per_s=capacity,
        hypotheses=hypotheses,
        stable=stable,
    )


def _missing_prompts(lengths: Lengths, slots: int, knee: int) -> float:
    """E[max(0, knee − Σ s)] over S independent prompts."""

    def chance(tokens: int) -> float:
        return lengths.mean(lambda s, o: 1.0 * (s == tokens) + 0 * o)

    below = np.array([chance(tokens) for tokens in range(knee)])
    total = np.zeros(knee)
    total[0] = 1.0
    for _ in range(slots):
        total = np.convolve(total, below)[:knee]
    return float((total * (knee - np.arange(knee))).sum())


def _decodes(lengths: Lengths, first_token: FirstToken) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The numbers of decodes of requests in ascending order, and the probability of at least as many."""
    values, chances, _ = lengths.by_output()
    decodes = values - with_prompt(first_token)
    return decodes, np.minimum(1.0, np.cumsum(chances[::-1])[::-1])


def _decode_iterations(
    cost: Iteration, slots: int, decodes: NDArray[np.float64], above: NDArray[np.float64]
) -> tuple[float, float]:
    """The mean number of decode iterations of a batch, and their total length.

    Iteration j takes place if N_j ≥ 1 and holds N_j tokens; N_j is binomial with S and the probability of at
    least j decodes.
    """
    widths = np.diff(decodes, prepend=0.0)
    runs = -np.expm1(slots * np.log1p(-np.minimum(above, 1 - 1e-16)))
    iterations = float((widths * runs).sum())
    beyond = np.zeros_like(above)
    if cost.per_token_s and slots > cost.knee:
        beyond = slots * above - cost.knee  # E[max(0, N − knee)] = E[N] − knee + E[max(0, knee − N)]
        chance = np.clip(above, 1e-300, 1 - 1e-16)
        for n in range(cost.knee):
            ways = math.lgamma(slots + 1) - math.lgamma(n + 1) - math.lgamma(slots - n + 1)
            at_n = np.exp(ways + n * np.log(chance) + (slots - n) * np.log1p(-chance))
            beyond += (cost.knee - n) * at_n
    return iterations, cost.base_s * iterations + cost.per_token_s * float((widths * beyond).sum())
