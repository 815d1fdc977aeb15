"""What does a limit on requests that run at once allow: seats, or whole batches one after another?"""

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
    fills_budget,
    memory_slack,
    open_arrivals,
    parts_of,
    token_by_token,
)
from inferq.theory.demands.demand import Demand, WorkloadLike
from inferq.theory.demands.hits import RequestWork, no_hits, with_hit_rate
from inferq.theory.demands.lengths import FirstToken, Lengths, with_prompt
from inferq.theory.statement import Hypothesis, Statement, explained, number
from inferq.timing import TimingModel


@dataclass(frozen=True, kw_only=True, slots=True)
class SeatsCapacity(Statement):
    """What no policy passes with so many seats, and what is sure; made by `seats_capacity`."""

    source: ClassVar[str] = "seats (beside li2025 Theorem 1)"

    rate: float | None
    """λ, requests per second of all classes; None where it is not known."""
    max_seqs: int
    """S, requests that may run at once on an engine."""
    token_budget: int | None
    """b; None where a batch may hold any number of tokens."""
    engines: int
    """K."""
    tokens_mean: float
    """m = m_p + m_d, tokens that a request loads."""
    iterations_mean: float
    """E[k], iterations for which a request takes a seat at least: ⌈s/b⌉ for its prompt, one a decode."""
    stages_mean: float
    """1 + m_d, iterations that it needs where the budget never cuts it."""
    tokens_per_iteration: float
    """The most tokens that an iteration holds in the mean: n = min(b, S·m/E[k])."""
    iteration_s: float
    """t(n) where n/t(n) is largest up to there."""
    idle_s: float | None
    """t(S) − S·t(b)/b: what an iteration of S tokens costs beyond its share of full ones; None without b."""
    context_s_least: float
    """Seconds that contexts (attention) add to a request's life, however its prompt is cut."""
    context_s_most: float
    capacity_per_s: float
    """Requests per second that no policy passes."""
    sure_per_s: float | None
    """Requests per second below which every policy is stable that leaves no seat and no budget unused; None
    without b."""
    hypotheses: tuple[Hypothesis, ...]
    hit_rate: float | None = None
    """The share of prompt tokens that `capacity_per_s` takes a prefix cache to find; None without hits."""
    sure_hit_rate: float | None = None
    """The share that `sure_per_s` counts on."""
    stable: bool | None
    """False above the capacity, True below what is sure if the policy is known to be such, else None."""

    @property
    def load(self) -> float | None:
        """λ / capacity; None without a rate."""
        return None if self.rate is None else self.rate / self.capacity_per_s

    def explain(self) -> str:
        """The inequality in symbols and in numbers, what follows, and what it assumes."""
        lines = [*self._numbers(), f"no policy passes {number(self.capacity_per_s)} requests per second"]
        if self.sure_per_s is not None:
            lines.append(
                f"one that uses every seat and token it can is stable below {number(self.sure_per_s)}: the "
                f"1 + m_d = {number(self.stages_mean)} stages of a request share idle time of "
                f"{number(self.idle_s)} s an iteration"
            )
        if self.rate is not None:
            lines.append(f"{number(self.rate)} per second are asked: load {number(self.load)}")
        symbols = f"Seats ({self.source}): λ·(m·t(n)/n + A) ≤ K with n = min(b, S·m/E[k])"
        return explained(symbols, lines, self.stable, self.hypotheses)

    @property
    def inequality(self) -> str:
        """The inequality with its numbers, in a line."""
        return "; ".join(self._numbers())

    def _numbers(self) -> list[str]:
        k, seats, m = number(self.engines), number(self.max_seqs), number(self.tokens_mean)
        n, t_n = number(self.tokens_per_iteration), number(self.iteration_s)
        budget = "any number of" if self.token_budget is None else f"b = {number(self.token_budget)}"
        return [
            f"S = {seats} seats, K = {k} engine{'s' if self.engines > 1 else ''}, {budget} tokens a batch; "
            f"a request loads m = {m} tokens in E[k] = {number(self.iterations_mean)} iterations or more",
            f"so the mean batch holds n ≤ {n} tokens, the fastest such in t(n) = {t_n} s; contexts add "
            f"A = {number(self.context_s_least)} to {number(self.context_s_most)} s a request",
        ]


def seats_capacity(
    workload: WorkloadLike,
    engine_or_timing: Engine | TimingModel,
    *,
    max_seqs: int | None = None,
    token_budget: int | None = None,
    engines: int = 1,
    first_token: FirstToken | None = None,
    rate: float | None = None,
    hit_rate: float | None = None,
) -> SeatsCapacity:
    """What can no policy pass that runs at most S requests at once, and what is every good one sure to serve?

    From above. I iterations have S·I seats to give, and a request takes one for k of them at least, ⌈s/b⌉ for
    its prompt and one for each decode. So R requests need I ≥ R·E[k]/S iterations, which hold n = R·m/I ≤
    S·m/E[k] tokens in the mean, and at most b. t is convex, so they last I·t(n) at least, besides what
    contexts add: R is at most one request for each m·t(n)/n + A seconds, at the best n within that bound.

    From below. Let a policy fill its budget whenever it has requests and seats. While a request waits, an
    iteration is full, and b tokens of work are done in t(b); or all S seats are taken and each one moves, a
    prompt by all that it has left, a decode by one: S stages of requests are done in an iteration of n ≥ S
    tokens, which costs at most t(S) − S·t(b)/b beyond n·t(b)/b. So the workload
    (tokens left)·t(b)/b + (stages left)·(t(S) − S·t(b)/b)/S, in seconds, falls by at least one second a
    second, and the policy is stable where λ·(m·t(b)/b + (1 + m_d)·(t(S) − S·t(b)/b)/S + A) < K. With S ≥ b
    this is li2025 (2.7).

    Args:
        workload: a workload with lengths, a class, or several.
        engine_or_timing: an engine, or a timing model.
        max_seqs: S; that of the engine's scheduler if not given (`max_active` of `Slai`).
        token_budget: b; that of the engine's scheduler if not given; none is no limit.
        engines: K, identical ones among which a router spreads the load.
        first_token: as for `token_capacity`.
        rate: requests per second in all, instead of the workload's; shares of classes stay.
        hit_rate: as for `token_capacity`.

    Raises:
        ConfigError: no seats or none given, as of `token_capacity` otherwise.
        TraceError: a workload without lengths.

    Source: our own, for homogeneous requests in the study of li2025's Figure 1; the drift argument is that of
        its Appendix B.

    Example:
        The default of 128 seats costs 11 % of what a budget of 512 tokens could serve:

        >>> import inferq as iq
        >>> from inferq.theory.capacities.seats_capacity import seats_capacity
        >>> timing = iq.PiecewiseLinear(base=0.0455, per_token=0.0003, knee=64)
        >>> chat = iq.theory.RequestClass(rate=10, prompt=129, output=112)
        >>> bound = seats_capacity(chat, timing, max_seqs=128, token_budget=512, first_token="decode")
        >>> round(bound.sure_per_s, 2), round(bound.capacity_per_s, 2), bound.stable
        (9.79, 10.47, None)
    """
    engine, cost, first_token = parts_of(engine_or_timing, first_token)
    if engine is not None:
        max_seqs = engine.scheduler.sequence_limit() if max_seqs is None else max_seqs
        token_budget = engine.scheduler.token_limit() if token_budget is None else token_budget
    if max_seqs is None:
        raise ConfigError("max_seqs", "no limit on requests that run at once is given")
    seats, k = whole("max_seqs", max_seqs, 1, MOST_COUNT), whole("engines", engines, 1, MOST_COUNT)
    b = None if token_budget is None else whole("token_budget", token_budget, 1, MOST_COUNT)
    demand = Demand.of(workload, rate=rate, needs_rate=False)
    if hit_rate is not None:
        demand = with_hit_rate(demand, hit_rate, engine)
    lengths, work = demand.lengths, RequestWork.of(demand, engine, cost, first_token, b)
    iterations = (_prompt_iterations(lengths, b) if work.hits is None else work.hits.chunks(b)) + work.decodes
    mean_batch = seats * work.tokens / iterations
    if b is not None:
        mean_batch = min(mean_batch, float(b))
    best = cost.best_tokens(mean_batch)
    fastest_s = work.tokens * cost.seconds(best) / best + work.least_s if best else 0.0
    if not fastest_s > 0:
        raise ConfigError("timing", f"an iteration of up to {number(max(best, 1))} tokens lasts 0 seconds")
    capacity = k / fastest_s
    idle_s = sure = None
    if b is not None:
        idle_s = cost.idle_s(min(seats, b), b)
        stages_s = (1 + work.decodes) * idle_s / min(seats, b)
        sure = k / (work.sure_tokens * cost.seconds(b) / b + stages_s + work.most_s)

    around = open_arrivals(demand)
    policy: list[Hypothesis] = []
    if engine is not None:
        if b is not None:
            policy.append(fills_budget(engine.scheduler, b))
        policy += token_by_token(engine)
        policy += [memory_slack(engine, lengths), all_fit(engine, lengths, first_token)]
    stays = all(one.met is not False for one in around)
    stable = None
    if demand.rate is not None and stays:
        drafts = () if engine is None else token_by_token(engine)
        if demand.rate > capacity and not drafts and (engine is None or policy[-1].met is True):
            stable = False
        elif sure is not None and demand.rate < sure and policy and all(one.met is True for one in policy):
            stable = True
    return SeatsCapacity(
        rate=demand.rate,
        max_seqs=seats,
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
        sure_per_s=sure,
        hypotheses=(*policy, *around, *work.hypotheses),
        hit_rate=work.hit_rate,
        sure_hit_rate=work.sure_hit_rate,
        stable=stable,
    )


def _prompt_iterations(lengths: Lengths, budget: int | None) -> float:
    """E[⌈s/b⌉], iterations that a prompt takes at least."""
    return 1.0 if budget is None else lengths.mean(lambda s, o: np.ceil(s / budget) + 0 * o)


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestLevelCapacity(Statement):
    """What full batches serve that run one after another; made by `request_level_capacity`."""

    source: ClassVar[str] = "request-level batching, li2025 section 3"

    rate: float | None
    """λ, requests per second of all classes; None where it is not known."""
    batch: int
    """S, requests of a full batch: seats, or fewer where the cache has no room for as many."""
    engines: int
    """K."""
    prompts_s: float
    """Mean seconds of the one iteration that computes all prompts of a batch, without what contexts add."""
    decodes_s: float
    """Mean seconds of all its iterations of decodes, likewise."""
    decode_iterations: float
    """E[the longest], how many these are."""
    context_s: float
    """Mean seconds that contexts (attention) add to a batch."""
    capacity_per_s: float
    """S·K / (prompts + decodes + contexts), requests per second."""
    hypotheses: tuple[Hypothesis, ...]
    stable: bool | None
    """Whether the rate is below the capacity; None where a hypothesis is not met, or the rate not known."""

    @property
    def load(self) -> float | None:
        """λ / capacity; None without a rate."""
        return None if self.rate is None else self.rate / self.capacity_per_s

    def explain(self) -> str:
        """The inequality in symbols and in numbers, what follows, and what it assumes."""
        lines = [
            self.inequality,
            f"stable below {number(self.engines)}·{number(self.batch)}/({self._parts()}) = "
            f"{number(self.capacity_per_s)} requests per second",
        ]
        if self.rate is not None:
            lines.append(f"{number(self.rate)} per second are asked: load {number(self.load)}")
        symbols = f"Batches ({self.source}): λ·E[T_S] < K·S, T_S the length of a full batch"
        return explained(symbols, lines, self.stable, self.hypotheses)

    @property
    def inequality(self) -> str:
        """What enters the inequality, in a line."""
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
    """How many requests per second do full batches serve that run until their last request ends?

    A batch of S requests takes one iteration for all prompts, t(Σ s) with whole prompts, then one for each
    decode of its longest request, t(N_j) with the N_j requests that have j decodes or more. While S or more
    wait, batches are full, alike and independent, so that exactly λ·E[T_S] < K·S is stable. For equal
    requests T_S = t(S·m_p) + m_d·t(S); else N_j is binomial, and E[T_S] a sum over j.

    Args:
        workload: a workload with lengths, a class, or several; requests of a batch are independent.
        engine_or_timing: an engine with `FasterTransformer`, or a timing model.
        max_seqs: S; that of the scheduler if not given, or fewer where the cache has room for fewer
            `max_model_len`.
        engines: K, identical ones among which a router spreads the load.
        first_token: as for `token_capacity`.
        rate: requests per second in all, instead of the workload's; shares of classes stay.

    Raises:
        ConfigError: another scheduler, no seats, room for no request, as of `token_capacity` otherwise.
        TraceError: a workload without lengths.

    Source: FasterTransformer of li2025 section 3, which does not state its batch size, nor this formula.

    Example:
        >>> import inferq as iq
        >>> from inferq.theory.capacities.seats_capacity import request_level_capacity
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
                f"{type(scheduler).__name__} runs no whole batches, FasterTransformer does",
            )
        max_seqs = scheduler.max_seqs if max_seqs is None else max_seqs
        policy.append(all_fit(engine, lengths, first_token))
        if engine.kv.tokens is not None:
            reserved = -(-scheduler.max_model_len // engine.kv.block)
            max_seqs = min(max_seqs, engine.kv.tokens // engine.kv.block // reserved)
            if not max_seqs:
                raise ConfigError(
                    "kv.tokens", f"{engine.kv.tokens} hold no request of {scheduler.max_model_len} tokens"
                )
    if max_seqs is None:
        raise ConfigError("max_seqs", "a timing model has none; give max_seqs=")
    seats, k = whole("max_seqs", max_seqs, 1, MOST_COUNT), whole("engines", engines, 1, MOST_COUNT)

    prompts_s = cost.base_s + cost.per_token_s * (seats * lengths.prompt_mean - cost.knee)
    if seats < cost.knee:
        prompts_s += cost.per_token_s * _missing_prompts(lengths, seats, cost.knee)
    decodes, above = _decodes(lengths, first_token)
    decode_iterations, decodes_s = _decode_iterations(cost, seats, decodes, above)
    # A whole prompt is one chunk at context 0.
    squares = lengths.mean(lambda s, o: s * s + 0 * o) if cost.per_prefill_square_s else 0.0
    prompt_contexts_s = (
        cost.per_prefill_square_s * squares + cost.per_kv_token_s * lengths.prompt_mean + cost.per_row_s
    )
    context_s = seats * (cost.decode_contexts_s(lengths, first_token) + prompt_contexts_s)
    batch_s = prompts_s + decodes_s + context_s
    if not batch_s > 0:
        raise ConfigError("timing", "a batch lasts 0 seconds")
    capacity = k * seats / batch_s
    hypotheses = (*policy, *open_arrivals(demand), *no_hits(engine))
    judged = demand.rate is not None and demand.rate != capacity and not no_hits(engine)
    stable = None
    if judged and demand.rate is not None and all(one.met is not False for one in hypotheses):
        stable = demand.rate < capacity
    return RequestLevelCapacity(
        rate=demand.rate,
        batch=seats,
        engines=k,
        prompts_s=prompts_s,
        decodes_s=decodes_s,
        decode_iterations=decode_iterations,
        context_s=context_s,
        capacity_per_s=capacity,
        hypotheses=hypotheses,
        stable=stable,
    )


def _missing_prompts(lengths: Lengths, seats: int, knee: int) -> float:
    """E[max(0, knee − Σ s)] over S independent prompts."""

    def chance(tokens: int) -> float:
        return lengths.mean(lambda s, o: 1.0 * (s == tokens) + 0 * o)

    below = np.array([chance(tokens) for tokens in range(knee)])
    total = np.zeros(knee)
    total[0] = 1.0
    for _ in range(seats):
        total = np.convolve(total, below)[:knee]
    return float((total * (knee - np.arange(knee))).sum())


def _decodes(lengths: Lengths, first_token: FirstToken) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The numbers of decodes that requests have, ascending, and how likely one has so many or more."""
    values, chances, _ = lengths.by_output()
    decodes = values - with_prompt(first_token)
    return decodes, np.minimum(1.0, np.cumsum(chances[::-1])[::-1])


def _decode_iterations(
    cost: Iteration, seats: int, decodes: NDArray[np.float64], above: NDArray[np.float64]
) -> tuple[float, float]:
    """How many iterations of decodes a batch has in the mean, and how long they last together.

    Iteration j is run if N_j ≥ 1 and holds N_j tokens; N_j is binomial with S and the chance of j decodes.
    """
    widths = np.diff(decodes, prepend=0.0)
    runs = -np.expm1(seats * np.log1p(-np.minimum(above, 1 - 1e-16)))
    iterations = float((widths * runs).sum())
    beyond = np.zeros_like(above)
    if cost.per_token_s and seats > cost.knee:
        beyond = seats * above - cost.knee  # E[max(0, N − knee)] = E[N] − knee + E[max(0, knee − N)]
        chance = np.clip(above, 1e-300, 1 - 1e-16)
        for n in range(cost.knee):
            ways = math.lgamma(seats + 1) - math.lgamma(n + 1) - math.lgamma(seats - n + 1)
            at_n = np.exp(ways + n * np.log(chance) + (seats - n) * np.log1p(-chance))
            beyond += (cost.knee - n) * at_n
    return iterations, cost.base_s * iterations + cost.per_token_s * float((widths * beyond).sum())
