"""Capacity by tokens: the largest rate that full batches can compute; li2025 (2.7), (4.1), (4.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from inferq.checks import MOST_COUNT, whole
from inferq.errors import ConfigError
from inferq.systems.engine import Engine
from inferq.theory.capacities.iteration_cost import (
    Iteration,
    all_fit,
    enough_sequences,
    features_outside_theory,
    fills_budget,
    memory_slack,
    open_arrivals,
    parts_of,
)
from inferq.theory.demands.demand import ClassDemand, Demand, WorkloadLike
from inferq.theory.demands.hits import RequestWork, with_hit_rate
from inferq.theory.demands.lengths import FirstToken
from inferq.theory.statement import Hypothesis, Statement, explained, number
from inferq.timing import TimingModel


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassTokens:
    """Mean tokens that a request of one class loads."""

    name: str
    rate: float | None
    """Requests per second; None if unknown."""
    share: float
    """Share of all requests."""
    prompt_tokens_mean: float
    decode_tokens_mean: float

    @classmethod
    def of(cls, request_class: ClassDemand, first_token: FirstToken) -> ClassTokens:
        """The means of a class."""
        return cls(
            name=request_class.name,
            rate=request_class.rate,
            share=request_class.share,
            prompt_tokens_mean=request_class.lengths.prompt_mean,
            decode_tokens_mean=request_class.lengths.decode_mean(first_token),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenCapacity(Statement):
    """The largest rate that full batches can compute; returned by `token_capacity`."""

    source: ClassVar[str] = "li2025 (2.7), (4.1), (4.2)"

    rate: float | None
    """λ, requests per second of all classes; None if unknown."""
    classes: tuple[ClassTokens, ...]
    prompt_tokens_mean: float
    """m_p of a request of any class."""
    decode_tokens_mean: float
    """m_d: E[o], less one if the first token is computed with the prompt (`first_token="prefill"`)."""
    first_token: FirstToken
    token_budget: int
    """b, tokens of a full batch."""
    iteration_s: float
    """t_b, seconds of an iteration with a full batch, without context terms."""
    engines: int
    """K."""
    best_tokens: int
    """The n ≤ b with the most tokens per second, n/t_n: b, unless base < per_token·knee."""
    best_iteration_s: float
    """t_n for `best_tokens`."""
    context_s_least: float
    """Seconds of context terms (attention) over a request's life, for any cut of its prompt; 0 for (2.7)."""
    context_s_most: float
    stable_below_per_s: float
    """Requests per second below which every work-conserving policy is stable."""
    capacity_per_s: float
    """Requests per second that no policy with batches of at most b tokens can exceed."""
    hypotheses: tuple[Hypothesis, ...]
    hit_rate: float | None = None
    """The share of prompt tokens found in a prefix cache that `capacity_per_s` assumes; None without a cache
    or without shared prompts."""
    computed_tokens_mean: float
    """Prompt tokens computed per request at this hit rate; m_p without a prefix cache."""
    stable_hit_rate: float | None = None
    """The hit rate that `stable_below_per_s` assumes: the configured rate, else 0."""
    stable: bool | None
    """True below `stable_below_per_s` if every hypothesis is met (without an engine: if none is violated),
    False above the capacity, else None."""

    @property
    def load(self) -> float | None:
        """ρ = λ / capacity; None without a rate."""
        return None if self.rate is None else self.rate / self.capacity_per_s

    @property
    def tokens_mean(self) -> float:
        """m_p + m_d, tokens that a request loads."""
        return self.prompt_tokens_mean + self.decode_tokens_mean

    def explain(self) -> str:
        """The inequality in symbols and in numbers, the conclusion, and the hypotheses."""
        symbols = "λ·(m_p + m_d) < K·b/t_b" if self._by_tokens else "λ·((m_p + m_d)·t_b/b + A) < K"
        symbols = f"Tokens ({self.source}): {symbols}"
        return explained(symbols, self._numbers(), self.stable, self.hypotheses)

    @property
    def inequality(self) -> str:
        """The inequality with its numbers, on one line."""
        return "; ".join(line.strip() for line in self._numbers())

    @property
    def _by_tokens(self) -> bool:
        return self.context_s_most == 0

    def _numbers(self) -> list[str]:
        per_s, by_tokens = " requests per second", self._by_tokens
        k, b, t_b = number(self.engines), number(self.token_budget), number(self.iteration_s)
        m_p, m_d = number(self.prompt_tokens_mean), number(self.decode_tokens_mean)
        if self.stable_hit_rate:
            m_p = number(self.computed_tokens_mean)
        lines = [
            f"m_p = {m_p} prompt tokens and m_d = {m_d} decodes per request (first token with the "
            f"{self.first_token})",
            f"K = {k} engine{'s' if self.engines > 1 else ''}, b = {b} tokens in t_b = {t_b} s",
        ]
        if self.hit_rate is not None:
            lines.append(self._found())
        if len(self.classes) > 1:
            for request_class in self.classes:
                rate = "" if request_class.rate is None else f", {number(request_class.rate)} per second"
                lines.append(
                    f"  {request_class.name}: {number(100 * request_class.share)} % of all{rate}, "
                    f"{number(request_class.prompt_tokens_mean)} + "
                    f"{number(request_class.decode_tokens_mean)} tokens"
                )
        if not by_tokens:
            lines.append(
                f"contexts add A = {number(self.context_s_least)} to {number(self.context_s_most)} s per "
                "request, depending on how its prompt is cut"
            )
        if self.best_tokens != self.token_budget:
            lines.append(
                f"batches of {number(self.best_tokens)} tokens in {number(self.best_iteration_s)} s, not "
                "full ones, compute the most tokens per second"
            )
        if self.rate is not None:
            rate = number(self.rate)
            if by_tokens:
                each = self.computed_tokens_mean if self.stable_hit_rate else self.prompt_tokens_mean
                left, right = (
                    self.rate * (each + self.decode_tokens_mean),
                    self.engines * self.token_budget / self.iteration_s,
                )
                sides = f"{rate}·({m_p} + {m_d}) = {number(left)}", f"{k}·{b}/{t_b} = {number(right)}"
                unit = " tokens per second"
            else:
                left = self.rate * self.engines / self.stable_below_per_s
                inside = f"({m_p} + {m_d})·{t_b}/{b} + {number(self.context_s_most)}"
                sides, right = (f"{rate}·({inside}) = {number(left)}", k), float(self.engines)
                unit = " busy engines"
            sign = "<" if left < right else "=" if left == right else ">"
            lines.append(f"{sides[0]} {sign} {sides[1]}{unit}")
        if self.stable_below_per_s == self.capacity_per_s:
            most = number(self.capacity_per_s)
            lines.append(
                f"no policy can exceed {most}{per_s}; policies that fill their budget are stable below"
            )
        else:
            lines.append(f"no policy with such batches can exceed {number(self.capacity_per_s)}{per_s}")
            lines.append(
                f"policies that fill their budget are stable below {number(self.stable_below_per_s)}"
            )
        if self.load is not None:
            lines.append(f"load {number(self.load)}")
        return lines

    def _found(self) -> str:
        """The part of a prompt that is computed, in words."""
        computed, all_of_it = number(self.computed_tokens_mean), number(self.prompt_tokens_mean)
        if self.stable_hit_rate:
            return (
                f"at the configured hit rate of {number(self.hit_rate)}: m_p = {computed} of {all_of_it} "
                "prompt tokens are computed"
            )
        return (
            f"a prefix cache finds at most {number(self.hit_rate)} of the prompt tokens: the capacity "
            f"assumes {computed} computed tokens, the guarantee assumes no hits"
        )


def token_capacity(
    workload: WorkloadLike,
    engine_or_timing: Engine | TimingModel,
    *,
    token_budget: int | None = None,
    engines: int = 1,
    first_token: FirstToken | None = None,
    rate: float | None = None,
    hit_rate: float | None = None,
) -> TokenCapacity:
    r"""Compute the largest rate whose tokens an engine can process, b at a time.

    A request loads m_p prompt tokens and m_d decodes; K engines load at most K·b tokens in t_b seconds. So no
    policy with batches of at most b tokens is stable if λ(m_p + m_d) > K·b/t_b. Every policy that fills its
    budget whenever it can is stable if λ(m_p + m_d) < K·b/t_b. With several classes the means are weighted
    by their rates.

    Extensions of the paper, listed in `hypotheses` if they apply:

    - The paper assumes that b/t_b is the most tokens per second. With t(n) = base + per_token·max(0, n −
      knee) that requires base ≥ per_token·knee. Otherwise batches of `knee` tokens are faster:
      `capacity_per_s` uses the largest n/t_n and is above `stable_below_per_s`.
    - (2.7) requires times that depend on tokens alone. With attention terms, and for `MemoryLinear`, contexts
      add A seconds to the life of a request: an exact value for its decodes, and a range for its prompt,
      which can be cut in many ways. The condition becomes λ((m_p + m_d)·t_b/b + A) < K, by the drift argument
      of the paper with workload in seconds. The capacity uses the least A, `stable_below_per_s` the largest.
    - Host time is part of the base, and for each row part of A: ⌈s/b⌉ to s rows for the prompt.
    - A sequence limit (`max_seqs`) below b can keep a budget from being filled: see `sequence_capacity`.
    - Prompt tokens found in a prefix cache are not computed: m_p counts the rest. The hit rate is a property
      of a run. `capacity_per_s` assumes the hit rate of an infinite cache, `stable_below_per_s` assumes none.
      With the argument `hit_rate` both assume it, `stable_below_per_s` only if time depends on tokens alone.

    Args:
        workload: a workload with lengths, a class, or several.
        engine_or_timing: an engine, or a timing model of any work-conserving engine.
        token_budget: b. Default: the budget of the engine's scheduler.
        engines: K, number of identical engines behind a router that spreads the load.
        first_token: `"prefill"`: a request's first token is computed with its prompt, so m_d = E[o] − 1.
            `"decode"`: it needs a decode, as in the paper. Default: as the engine does, else `"prefill"`.
        rate: total requests per second. Default: the rate of the workload. Shares of classes stay.
        hit_rate: share of all prompt tokens found in a prefix cache. Default: unknown.

    Raises:
        ConfigError: the token budget is missing or below 1, there is no engine, the timing model has no
            closed form by tokens, or iterations last 0 seconds; the host is overlapped (`stability` bounds
            it); a class or rate is invalid; the hit rate is not a share, exceeds what prompts share, or there
            is no prefix cache.
        TraceError: a workload without lengths.

    Source: li2025 Theorem 1 (2.7), (2.8); Proposition 1 (4.1); (4.2), which prints t_p for t_b. Section 2.1
        prints the units of a and b0 swapped: a = `per_token` is in ms per token, b0 = `knee` in tokens.

    Example:
        The engine measured in the paper, Llama-3-70B on two A100, and the lengths of its Figure 1:

        >>> import inferq as iq
        >>> timing = iq.PiecewiseLinear(base=0.0455, per_token=0.0003, knee=64)
        >>> scheduler = iq.Sarathi(token_budget=512, max_seqs=512)
        >>> kv = iq.KvCache.unlimited()
        >>> engine = iq.Engine(timing=timing, scheduler=scheduler, kv=kv, first_token="decode")
        >>> chat = iq.theory.RequestClass(rate=10, prompt=129, output=112)
        >>> limit = iq.theory.token_capacity(chat, engine)
        >>> limit.stable, round(limit.capacity_per_s, 3), round(limit.load, 3)
        (True, 11.809, 0.847)
        >>> print("\n".join(limit.explain().splitlines()[:4]))
        Tokens (li2025 (2.7), (4.1), (4.2)): λ·(m_p + m_d) < K·b/t_b
          m_p = 129 prompt tokens and m_d = 112 decodes per request (first token with the decode)
          K = 1 engine, b = 512 tokens in t_b = 0.1799 s
          10·(129 + 112) = 2,410 < 1·512/0.1799 = 2,846.03 tokens per second
    """
    engine, cost, first_token = parts_of(engine_or_timing, first_token)
    if token_budget is None and engine is not None:
        token_budget = engine.scheduler.token_limit()
        if token_budget is None:
            kind = type(engine.scheduler).__name__
            raise ConfigError("token_budget", f"{kind} has no token budget; set token_budget=")
    if token_budget is None:
        raise ConfigError("token_budget", "a timing model has no token budget; set token_budget=")
    b = whole("token_budget", token_budget, 1, MOST_COUNT)
    k = whole("engines", engines, 1, MOST_COUNT)
    demand = Demand.of(workload, rate=rate, needs_rate=False)
    if hit_rate is not None:
        demand = with_hit_rate(demand, hit_rate, engine)
    lengths, scheduler = demand.lengths, None if engine is None else engine.scheduler
    work = RequestWork.of(demand, engine, cost, first_token, b)
    best = int(cost.best_tokens(b))
    needed_s = work.guaranteed_tokens * cost.seconds(b) / b + work.most_s
    fastest_s = work.tokens * cost.seconds(best) / best + work.least_s if best else 0.0
    if not fastest_s > 0:
        raise ConfigError(
            "timing",
            f"an iteration of up to {number(max(best, 1))} tokens lasts 0 s, so every rate is stable",
        )
    guaranteed, capacity = k / needed_s, k / fastest_s

    own = None if scheduler is None else scheduler.token_limit()
    within = None if scheduler is None else own is not None and own <= b
    reasons = {
        None: "no scheduler is configured",
        True: f"the policy's own limit is {number(own)} tokens",
        False: "the policy loads more tokens into a batch",
    }
    keeps = Hypothesis(name=f"batches of at most {number(b)} tokens", met=within, why=reasons[within])
    policy = [fills_budget(scheduler, b), enough_sequences(scheduler, b), memory_slack(engine, lengths)]
    if engine is not None:
        policy.append(all_fit(engine, lengths, first_token))
        policy += features_outside_theory(engine)
    arrivals = open_arrivals(demand)
    if k > 1:
        why = "proved for random routing and the fewest requests; round robin by the same argument"
        arrivals.append(Hypothesis(name="a router that spreads the load", met=None, why=why))
    about_time = _about_time(cost, best, b, work.least_s, work.most_s)
    hypotheses = (keeps, *policy, *about_time, *arrivals, *work.hypotheses)
    stays = all(hypothesis.met is not False for hypothesis in arrivals)
    may_be_stable = stays and all(
        hypothesis.met is not False if engine is None else bool(hypothesis.met)
        for hypothesis in (keeps, *policy)
    )
    # With drafts a context is read once for several tokens; each token is computed all the same.
    is_upper_bound = cost.by_tokens or not (engine and features_outside_theory(engine))
    fits = engine is None or (all_fit(engine, lengths, first_token).met is True and is_upper_bound)
    stable = None
    if demand.rate is not None and demand.rate > capacity and stays and fits and within is not False:
        stable = False
    elif demand.rate is not None and demand.rate < guaranteed and may_be_stable:
        stable = True
    return TokenCapacity(
        rate=demand.rate,
        classes=tuple(ClassTokens.of(request_class, first_token) for request_class in demand.classes),
        prompt_tokens_mean=lengths.prompt_mean,
        decode_tokens_mean=work.decodes,
        first_token=first_token,
        token_budget=b,
        iteration_s=cost.seconds(b),
        engines=k,
        best_tokens=best,
        best_iteration_s=cost.seconds(best),
        context_s_least=work.least_s,
        context_s_most=work.most_s,
        capacity_per_s=capacity,
        stable_below_per_s=guaranteed,
        hypotheses=hypotheses,
        hit_rate=work.hit_rate,
        computed_tokens_mean=lengths.prompt_mean if work.hits is None else work.hits.tokens,
        stable_hit_rate=work.stable_hit_rate,
        stable=stable,
    )


def _about_time(cost: Iteration, best: int, budget: int, least_s: float, most_s: float) -> list[Hypothesis]:
    """Hypotheses of (2.7) about the length of an iteration."""
    why = "the model has no context terms"
    if not cost.by_tokens:
        why = ("contexts and rows add " if cost.per_row_s else "contexts add ") + (
            f"{number(most_s)} s per request, for any cut of its prompt"
            if least_s == most_s
            else f"{number(least_s)} to {number(most_s)} s per request"
        )
        why += "; not covered by (2.7), but by the same drift argument in seconds"
    full = Hypothesis(
        name="a full batch computes the most tokens per second",
        met=best == budget,
        why="base ≥ per_token·knee"
        if cost.gains_with_tokens
        else f"base < per_token·knee: batches of {number(best)} tokens do",
    )
    return [Hypothesis(name="time by tokens alone", met=cost.by_tokens, why=why), full]
