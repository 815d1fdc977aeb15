"""Largest hits of prefix caches, and the remaining work of a request."""

from __future__ import annotations

from dataclasses import dataclass, replace

from inferq.checks import within
from inferq.errors import ConfigError
from inferq.systems.engine import Engine
from inferq.theory.capacities.iteration_cost import Iteration, memory_slack
from inferq.theory.demands.demand import Demand
from inferq.theory.demands.lengths import FirstToken, Lengths
from inferq.theory.statement import Hypothesis, number

_NAME = "prefix cache hits"
COUNTED_IN_FULL = "every prompt is computed in full"


@dataclass(frozen=True, slots=True, eq=False)
class PrefixHits:
    """The hits of an engine's prefix caches that bounds assume."""

    tokens: float
    """Computed tokens of a mean prompt: the least, or exactly those of the configured rate."""
    pairs: float
    """Least pairs of a prompt token and a token that it attends to."""
    hit_rate: float
    """The share of all prompt tokens that is found."""
    configured: bool
    """Whether the rate is configured; else it is the most that the workload allows."""
    alone: Lengths | None
    """Prompt tokens that a request shares with no other, and its decodes; None if unknown."""
    prompt: float
    """Tokens of a mean prompt."""

    @property
    def hypothesis(self) -> Hypothesis:
        """The assumption of an upper bound."""
        computed = f"so {number(self.tokens)} of {number(self.prompt)} tokens of a prompt are computed"
        if self.configured:
            why = f"a configured hit rate of {number(self.hit_rate)}, {computed}"
        else:
            why = f"a hit rate of at most {number(self.hit_rate)}, that of an infinite cache, {computed}"
        return Hypothesis(name=_NAME, met=True, why=why)

    def chunks(self, budget: float | None) -> float:
        """Least number of chunks of a mean prompt."""
        return max(1.0, self.tokens / budget) if budget else 1.0

    def contexts_s(self, cost: Iteration, lengths: Lengths, budget: int | None) -> float:
        """Least seconds of contexts and rows for the computed part of a mean prompt.

        With P = Σ (c·x + c(c + 1)/2) over its chunks, ε·Σ c·x + α·Σ c² = ε·(P − C/2) + (α − ε/2)·Σ c², and
        Σ c² lies between C and the largest chunk times C. The last chunk attends to the whole prompt.
        """
        alpha, epsilon = cost.per_prefill_square_s, cost.per_chunk_context_s
        longest = lengths.most(lambda s, o: s + 0 * o)
        largest = longest if budget is None else min(longest, float(budget))
        squares = self.tokens if alpha >= epsilon / 2 else largest * self.tokens
        attention_s = -float("inf")
        if squares < float("inf"):
            attention_s = epsilon * (self.pairs - self.tokens / 2) + (alpha - epsilon / 2) * squares
        attention_s = max(attention_s, alpha * self.tokens)
        held_s = cost.per_kv_token_s * lengths.prompt_mean
        return attention_s + held_s + cost.per_row_s * self.chunks(budget)


def with_hit_rate(demand: Demand, hit_rate: object, *engines: Engine | None) -> Demand:
    """The demand with a configured hit rate; an engine of None is unknown.

    Raises:
        ConfigError: the rate is not a share, leaves no token to compute, or there is no prefix cache.
    """
    rate = within("hit_rate", hit_rate, 0, 1)
    if not any(engine is None or engine.kv.prefix_cache for engine in engines):
        raise ConfigError(
            "hit_rate", f"{number(rate)} requires a prefix cache; set prefix_cache of the KV cache"
        )
    return replace(demand, hit_rate=rate)


def prefix_hits(demand: Demand, engine: Engine | None) -> PrefixHits | None:
    """The hits of an engine's prefix cache; None without a cache or without shared prompts.

    Args:
        demand: the workload, with the configured hit rate if there is one.
        engine: None for a timing model, which has only the configured hit rate.

    Raises:
        ConfigError: the configured rate exceeds what the prompts share, or leaves no token to compute.
    """
    hit_rate = demand.hit_rate
    if (engine is None and hit_rate is None) or (engine is not None and engine.kv.prefix_cache is None):
        return None
    mean = demand.lengths.prompt_mean
    shared, alone, block = None if demand.rows is None else demand.rows.shared, None, 1
    if engine is not None:
        block = engine.kv.block
        alone = None if shared is None else shared.alone(block, engine.first_token)
    tokens, pairs = (mean, 0.0) if shared is None else shared.least(block)
    most = max(0.0, 1 - tokens / mean)
    if hit_rate is None:  # prompts that share nothing are computed in full
        return PrefixHits(tokens, pairs, most, False, alone, mean) if most else None
    if demand.rows is not None and hit_rate > most * (1 + 1e-9):
        raise ConfigError(
            "hit_rate",
            f"must be at most {number(most)} for the prompts of this workload (an infinite cache), got "
            f"{number(hit_rate)}",
        )
    tokens = (1 - hit_rate) * mean
    if tokens < 1:
        raise ConfigError(
            "hit_rate",
            f"{number(hit_rate)} leaves {number(tokens)} of {number(mean)} tokens of a "
            "mean prompt; a request computes at least one",
        )
    # x(x + 1)/2 is convex, and the computed tokens are the last ones.
    return PrefixHits(tokens, tokens * (tokens + 1) / 2, hit_rate, True, alone, mean)


def least_cost(cost: Iteration, engine: Engine | None, lengths: Lengths) -> Iteration:
    """Least cost of decodes if requests may be preempted.

    A recomputation replaces a decode without the cost per decode. With a prefix cache it may find its own
    blocks again; then it is a chunk as short as a decode and has the context cost of chunks.
    """
    if engine is None or memory_slack(engine, lengths).met:
        return cost
    cost = replace(cost, per_decode_s=0.0)
    if engine.kv.prefix_cache is None:
        return cost
    return replace(cost, per_context_token_s=min(cost.per_context_token_s, cost.per_chunk_context_s))


@dataclass(frozen=True, slots=True, eq=False)
class RequestWork:
    """Work of a mean request: the least possible, and a guaranteed upper bound."""

    decodes: float
    tokens: float
    """Least computed tokens: prompt and decodes, less the most hits of prefix caches."""
    guaranteed_tokens: float
    """The same less guaranteed hits: those of a configured rate, if time depends on tokens alone."""
    least_s: float
    """Seconds of contexts and rows, for any cut of the prompt."""
    most_s: float
    hits: PrefixHits | None

    @classmethod
    def of(
        cls,
        demand: Demand,
        engine: Engine | None,
        cost: Iteration,
        first_token: FirstToken,
        budget: int | None,
    ) -> RequestWork:
        """The work on an engine, or on a timing model alone, with batches of `budget` tokens."""
        lengths, hits = demand.lengths, prefix_hits(demand, engine)
        decodes, lean = lengths.decode_mean(first_token), least_cost(cost, engine, lengths)
        tokens = guaranteed_tokens = lengths.prompt_mean + decodes
        least_s, most_s = cost.prompt_contexts_s(lengths, budget)
        most_s += cost.decode_contexts_s(lengths, first_token)
        if hits is not None:
            tokens, least_s = hits.tokens + decodes, hits.contexts_s(cost, lengths, budget)
            guaranteed_tokens = tokens if hits.configured and cost.by_tokens else guaranteed_tokens
        least_s += lean.decode_contexts_s(lengths, first_token)
        return cls(decodes, tokens, guaranteed_tokens, least_s, most_s, hits)

    @property
    def hit_rate(self) -> float | None:
        """The largest share of prompt tokens that is found; None without hits."""
        return None if self.hits is None else self.hits.hit_rate

    @property
    def stable_hit_rate(self) -> float | None:
        """The guaranteed share."""
        if self.hits is None:
            return None
        return self.hits.hit_rate if self.guaranteed_tokens == self.tokens else 0.0

    @property
    def hypotheses(self) -> tuple[Hypothesis, ...]:
        """The assumptions of the least work about prefix caches."""
        return () if self.hits is None else (self.hits.hypothesis,)


def finds_its_own(engine: Engine, lengths: Lengths) -> bool:
    """Whether a preempted request may find its own blocks, so that one token replaces its next decode."""
    return engine.kv.prefix_cache is not None and not memory_slack(engine, lengths).met


def no_hits(engine: object) -> tuple[Hypothesis, ...]:
    """The hypothesis of formulas that count prompts in full; empty without a prefix cache."""
    kv = getattr(engine, "kv", None)
    if kv is None or kv.prefix_cache is None:
        return ()
    why = "a hit rate of 0 is assumed, a run may have hits; stability and token_capacity support hit rates"
    return (Hypothesis(name=COUNTED_IN_FULL, met=None, why=why),)


def nothing_shared(demand: Demand) -> Hypothesis:
    """The assumption of an upper bound for a workload whose prompts share nothing."""
    source = "classes" if demand.rows is None else "rows"
    why = f"a hit rate of 0: according to the {source} of the workload, no two prompts begin alike"
    return Hypothesis(name=_NAME, met=True, why=why)


def only_helps(hits: PrefixHits | None, met: bool | None, why: str) -> tuple[Hypothesis, ...]:
    """Whether hits can only help a policy whose theorem assumes prompts that are computed in full."""
    return () if hits is None else (Hypothesis(name="hits only help", met=met, why=why),)
