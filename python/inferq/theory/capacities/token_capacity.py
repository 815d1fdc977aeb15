"""How many tokens can be computed, and how many requests is that? li2025 (2.7), (4.1), (4.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from inferq.checks import MOST_COUNT, whole
from inferq.errors import ConfigError
from inferq.systems.engine import Engine
from inferq.theory.capacities.iteration_cost import (
    Iteration,
    all_fit,
    enough_seats,
    fills_budget,
    memory_slack,
    open_arrivals,
    parts_of,
    token_by_token,
)
from inferq.theory.demands.demand import ClassDemand, Demand, WorkloadLike
from inferq.theory.demands.hits import RequestWork, with_hit_rate
from inferq.theory.demands.lengths import FirstToken
from inferq.theory.statement import Hypothesis, Statement, explained, number
from inferq.timing import TimingModel


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassTokens:
    """What a request of one class loads on average."""

    name: str
    rate: float | None
    """Requests per second; None where it is not known."""
    share: float
    """Of all requests."""
    prompt_tokens_mean: float
    decode_tokens_mean: float

    @classmethod
    def of(cls, one: ClassDemand, first_token: FirstToken) -> ClassTokens:
        """The means of a class."""
        return cls(
            name=one.name,
            rate=one.rate,
            share=one.share,
            prompt_tokens_mean=one.lengths.prompt_mean,
            decode_tokens_mean=one.lengths.decode_mean(first_token),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenCapacity(Statement):
    """Up to which rate full batches keep up; made by `token_capacity`."""

    source: ClassVar[str] = "li2025 (2.7), (4.1), (4.2)"

    rate: float | None
    """λ, requests per second of all classes; None where it is not known."""
    classes: tuple[ClassTokens, ...]
    prompt_tokens_mean: float
    """m_p of a request of any class."""
    decode_tokens_mean: float
    """m_d: E[o], less the token that comes with the prompt where `first_token` is `"prefill"`."""
    first_token: FirstToken
    token_budget: int
    """b, tokens of a full batch."""
    iteration_s: float
    """t_b, seconds of an iteration with a full batch, without what contexts add."""
    engines: int
    """K."""
    best_tokens: int
    """The n ≤ b with the most tokens per second, n/t_n: b, unless base < per_token·knee."""
    best_iteration_s: float
    """t_n for these."""
    context_s_least: float
    """Seconds that contexts (attention) add to a request's life, however its prompt is cut; 0 for (2.7)."""
    context_s_most: float
    sure_per_s: float
    """Requests per second below which every work-conserving policy is stable."""
    capacity_per_s: float
    """Requests per second that no policy passes whose batches hold at most b tokens."""
    hypotheses: tuple[Hypothesis, ...]
    hit_rate: float | None = None
    """The share of prompt tokens that `capacity_per_s` takes a prefix cache to find; None where there is
    none, or nothing that it could find."""
    computed_tokens_mean: float
    """Prompt tokens of a request that are then computed; m_p without a prefix cache."""
    sure_hit_rate: float | None = None
    """The share that `sure_per_s` counts on: what is stated, else 0."""
    stable: bool | None
    """True below what is sure if every hypothesis is met (without an engine: as far as they can be judged),
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
        """The inequality in symbols and in numbers, what follows, and what it assumes."""
        symbols = "λ·(m_p + m_d) < K·b/t_b" if self._by_tokens else "λ·((m_p + m_d)·t_b/b + A) < K"
        symbols = f"Tokens ({self.source}): {symbols}"
        return explained(symbols, self._numbers(), self.stable, self.hypotheses)

    @property
    def inequality(self) -> str:
        """The inequality with its numbers, in a line."""
        return "; ".join(line.strip() for line in self._numbers())

    @property
    def _by_tokens(self) -> bool:
        return self.context_s_most == 0

    def _numbers(self) -> list[str]:
        per_s, by_tokens = " requests per second", self._by_tokens
        k, b, t_b = number(self.engines), number(self.token_budget), number(self.iteration_s)
        m_p, m_d = number(self.prompt_tokens_mean), number(self.decode_tokens_mean)
        if self.sure_hit_rate:
            m_p = number(self.computed_tokens_mean)
        lines = [
            f"m_p = {m_p} prompt tokens and m_d = {m_d} decodes a request (first token with the "
            f"{self.first_token})",
            f"K = {k} engine{'s' if self.engines > 1 else ''}, b = {b} tokens in t_b = {t_b} s",
        ]
        if self.hit_rate is not None:
            lines.append(self._found())
        if len(self.classes) > 1:
            for one in self.classes:
                rate = "" if one.rate is None else f", {number(one.rate)} per second"
                lines.append(
                    f"  {one.name}: {number(100 * one.share)} % of all{rate}, "
                    f"{number(one.prompt_tokens_mean)} + {number(one.decode_tokens_mean)} tokens"
                )
        if not by_tokens:
            lines.append(
                f"contexts add A = {number(self.context_s_least)} to {number(self.context_s_most)} s a "
                "request, as its prompt is cut"
            )
        if self.best_tokens != self.token_budget:
            lines.append(
                f"the most tokens per second come with {number(self.best_tokens)} of them in "
                f"{number(self.best_iteration_s)} s, not with a full budget"
            )
        if self.rate is not None:
            rate = number(self.rate)
            if by_tokens:
                each = self.computed_tokens_mean if self.sure_hit_rate else self.prompt_tokens_mean
                left, right = (
                    self.rate * (each + self.decode_tokens_mean),
                    self.engines * self.token_budget / self.iteration_s,
                )
                sides = f"{rate}·({m_p} + {m_d}) = {number(left)}", f"{k}·{b}/{t_b} = {number(right)}"
                unit = " tokens per second"
            else:
                left = self.rate * self.engines / self.sure_per_s
                inside = f"({m_p} + {m_d})·{t_b}/{b} + {number(self.context_s_most)}"
                sides, right = (f"{rate}·({inside}) = {number(left)}", k), float(self.engines)
                unit = " busy engines"
            sign = "<" if left < right else "=" if left == right else ">"
            lines.append(f"{sides[0]} {sign} {sides[1]}{unit}")
        if self.sure_per_s == self.capacity_per_s:
            most = number(self.capacity_per_s)
            lines.append(f"no policy passes {most}{per_s}, those that fill their budget are stable below")
        else:
            lines.append(f"no policy with such batches passes {number(self.capacity_per_s)}{per_s}")
            lines.append(f"those that fill their budget are stable below {number(self.sure_per_s)}")
        if self.load is not None:
            lines.append(f"load {number(self.load)}")
        return lines

    def _found(self) -> str:
        """What is computed of a prompt."""
        computed, all_of_it = number(self.computed_tokens_mean), number(self.prompt_tokens_mean)
        if self.sure_hit_rate:
            return (
                f"at the stated hit rate of {number(self.hit_rate)}: m_p = {computed} of {all_of_it} "
                "prompt tokens are computed"
            )
        return (
            f"a prefix cache finds {number(self.hit_rate)} of the prompt tokens at most: the capacity is "
            f"that of {computed} which are computed, and what is sure counts on no hit"
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
    r"""Up to which rate can an engine compute the tokens that are asked, b at a time?

    A request loads m_p prompt tokens and m_d decodes; K engines load at most K·b tokens in t_b seconds. So no
    policy with batches of at most b tokens is stable where λ(m_p + m_d) > K·b/t_b, and every policy that
    fills its budget whenever it can is stable where λ(m_p + m_d) < K·b/t_b. Of several classes the means are
    weighted by their rates.

    Four things go beyond the paper, and are said in `hypotheses` where they matter:

    - It takes b/t_b for the most tokens per second. With t(n) = base + per_token·max(0, n − knee) that is so
      if base ≥ per_token·knee; else `knee` tokens are computed faster than b: `capacity_per_s` uses
      the largest n/t_n and lies above `sure_per_s`.
    - (2.7) is about times that depend on tokens alone. With attention terms, and for `MemoryLinear`, contexts
      add A seconds to the life of a request: exactly for its decodes, between two bounds for its prompt,
      which can be cut in many ways. The condition is then λ((m_p + m_d)·t_b/b + A) < K, by the drift argument
      of the paper with workload counted in seconds; the capacity has the least A, `sure_per_s` the largest.
    - What an engine's host adds is in the base, and for each row in A: ⌈s/b⌉ to s rows for the prompt.
    - Seats (`max_seqs`) below b can keep a budget from being filled: see `seats_capacity`.
    - What a prefix cache finds is not computed: m_p counts the rest. How much it finds is a property of a
      run. `capacity_per_s` takes the most that the prompts of the workload allow, that of an endless cache;
      `sure_per_s` takes none. With a stated `hit_rate` both count on it, `sure_per_s` only where time depends
      on tokens alone.

    Args:
        workload: a workload with lengths, a class, or several.
        engine_or_timing: an engine, or a timing model whose engine may be anything work-conserving.
        token_budget: b; that of the engine's scheduler if not given.
        engines: K, identical ones among which a router spreads the load.
        first_token: `"prefill"` counts a request's first token with its prompt, so m_d = E[o] − 1; `"decode"`
            counts a decode for each, as the paper does. The engine's if not given, else `"prefill"`.
        rate: requests per second in all, instead of the workload's; shares of classes stay.
        hit_rate: share of all prompt tokens that a prefix cache finds, for an answer at this hit rate.

    Raises:
        ConfigError: no budget, one below 1, no engine, a timing model without a closed form by tokens, or
            one whose iterations last 0 seconds; an overlapped host, which `stability` bounds; a class or rate
            that is wrong; a hit rate that is no share, above what the workload's prompts share, or where
            there is no prefix cache.
        TraceError: a workload without lengths.

    Source: li2025 Theorem 1 (2.7), (2.8); Proposition 1 (4.1); (4.2), which prints t_p for t_b. Section 2.1
        prints the units of a and b0 swapped: a = `per_token` is in ms per token, b0 = `knee` in tokens.

    Example:
        The engine that the paper measures, Llama-3-70B on two A100, and the lengths of its Figure 1:

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
          m_p = 129 prompt tokens and m_d = 112 decodes a request (first token with the decode)
          K = 1 engine, b = 512 tokens in t_b = 0.1799 s
          10·(129 + 112) = 2,410 < 1·512/0.1799 = 2,846.03 tokens per second
    """
    engine, cost, first_token = parts_of(engine_or_timing, first_token)
    if token_budget is None and engine is not None:
        token_budget = engine.scheduler.token_limit()
        if token_budget is None:
            kind = type(engine.scheduler).__name__
            raise ConfigError("token_budget", f"{kind} has none; give token_budget= to ask about one")
    if token_budget is None:
        raise ConfigError("token_budget", "a timing model has none; give token_budget=")
    b = whole("token_budget", token_budget, 1, MOST_COUNT)
    k = whole("engines", engines, 1, MOST_COUNT)
    demand = Demand.of(workload, rate=rate, needs_rate=False)
    if hit_rate is not None:
        demand = with_hit_rate(demand, hit_rate, engine)
    lengths, scheduler = demand.lengths, None if engine is None else engine.scheduler
    work = RequestWork.of(demand, engine, cost, first_token, b)
    best = int(cost.best_tokens(b))
    needed_s = work.sure_tokens * cost.seconds(b) / b + work.most_s
    fastest_s = work.tokens * cost.seconds(best) / best + work.least_s if best else 0.0
    if not fastest_s > 0:
        raise ConfigError(
            "timing", f"an iteration of up to {number(max(best, 1))} tokens lasts 0 s; no rate is too high"
        )
    sure, capacity = k / needed_s, k / fastest_s

    own = None if scheduler is None else scheduler.token_limit()
    within = None if scheduler is None else own is not None and own <= b
    reasons = {
        None: "no scheduler is given",
        True: f"the policy's own limit is {number(own)} tokens",
        False: "the policy loads more into a batch",
    }
    keeps = Hypothesis(name=f"batches of at most {number(b)} tokens", met=within, why=reasons[within])
    policy = [fills_budget(scheduler, b), enough_seats(scheduler, b), memory_slack(engine, lengths)]
    if engine is not None:
        policy.append(all_fit(engine, lengths, first_token))
        policy += token_by_token(engine)
    around = open_arrivals(demand)
    if k > 1:
        why = "random routing and the fewest requests are proved; round robin by the same argument"
        around.append(Hypothesis(name="a router that spreads the load", met=None, why=why))
    about_time = _about_time(cost, best, b, work.least_s, work.most_s)
    hypotheses = (keeps, *policy, *about_time, *around, *work.hypotheses)
    stays = all(one.met is not False for one in around)
    may_be_stable = stays and all(
        one.met is not False if engine is None else bool(one.met) for one in (keeps, *policy)
    )
    # With drafts a context is read for several tokens at once; each is computed all the same.
    is_ceiling = cost.by_tokens or not (engine and token_by_token(engine))
    fits = engine is None or (all_fit(engine, lengths, first_token).met is True and is_ceiling)
    stable = None
    if demand.rate is not None and demand.rate > capacity and stays and fits and within is not False:
        stable = False
    elif demand.rate is not None and demand.rate < sure and may_be_stable:
        stable = True
    return TokenCapacity(
        rate=demand.rate,
        classes=tuple(ClassTokens.of(one, first_token) for one in demand.classes),
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
        sure_per_s=sure,
        hypotheses=hypotheses,
        hit_rate=work.hit_rate,
        computed_tokens_mean=lengths.prompt_mean if work.hits is None else work.hits.tokens,
        sure_hit_rate=work.sure_hit_rate,
        stable=stable,
    )


def _about_time(cost: Iteration, best: int, budget: int, least_s: float, most_s: float) -> list[Hypothesis]:
    """What (2.7) assumes about the length of an iteration."""
    why = "the model has no context terms"
    if not cost.by_tokens:
        why = ("contexts and rows add " if cost.per_row_s else "contexts add ") + (
            f"{number(most_s)} s a request, however it is cut"
            if least_s == most_s
            else f"{number(least_s)} to {number(most_s)} s a request"
        )
        why += "; (2.7) does not cover it, the same drift counted in seconds does"
    full = Hypothesis(
        name="a full batch computes the most tokens per second",
        met=best == budget,
        why="base ≥ per_token·knee"
        if cost.gains_with_tokens
        else f"base < per_token·knee, {number(best)} tokens do",
    )
    return [Hypothesis(name="time by tokens alone", met=cost.by_tokens, why=why), full]
