"""What prefix caches find at most, and what a request then asks of an engine."""

from __future__ import annotations

from dataclasses import dataclass, replace

from inferq.checks import within
from inferq.errors import ConfigError
from inferq.systems.engine import Engine
from inferq.theory.capacities.iteration_cost import Iteration, memory_slack
from inferq.theory.demands.demand import Demand
from inferq.theory.demands.lengths import FirstToken, Lengths
from inferq.theory.statement import Hypothesis, number

_NAME = "what prefix caches find"
COUNTED_IN_FULL = "all of every prompt is computed"


@dataclass(frozen=True, slots=True, eq=False)
class PrefixHits:
    """What bounds take the prefix caches of an engine to find."""

    tokens: float
    """Tokens of its prompt that a mean request computes: at least, or where the rate is stated, exactly."""
    pairs: float
    """Pairs of a prompt token and one that it attends to, at least."""
    hit_rate: float
    """The share of all prompt tokens that is found."""
    stated: bool
    """Whether it was stated; else it is the most that the workload allows."""
    alone: Lengths | None
    """Of each request the tokens of its prompt that it alone holds, and its decodes; None where that is not
    known."""
    prompt: float
    """Tokens of a mean prompt."""

    @property
    def hypothesis(self) -> Hypothesis:
        """What a ceiling assumes."""
        computed = f"so that {number(self.tokens)} of {number(self.prompt)} tokens of a prompt are computed"
        if self.stated:
            why = f"a hit rate of {number(self.hit_rate)}, as stated, {computed}"
        else:
            why = f"a hit rate of {number(self.hit_rate)} at most, that of an endless cache, {computed}"
        return Hypothesis(name=_NAME, met=True, why=why)

    def chunks(self, budget: float | None) -> float:
        """Chunks of a mean prompt at least."""
        return max(1.0, self.tokens / budget) if budget else 1.0

    def contexts_s(self, cost: Iteration, lengths: Lengths, budget: int | None) -> float:
        """Seconds that contexts and rows add at least to what is computed of a mean prompt.

        With P = Σ (c·x + c(c + 1)/2) over its chunks, ε·Σ c·x + α·Σ c² = ε·(P − C/2) + (α − ε/2)·Σ c², and
        Σ c² lies between C and the largest chunk times C. The last chunk holds all of the prompt.
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
    """The demand with a stated hit rate, for engines; None is one of which nothing is known.

    Raises:
        ConfigError: a rate that is no share, that leaves no token to compute, or that nothing could find.
    """
    rate = within("hit_rate", hit_rate, 0, 1)
    if not any(engine is None or engine.kv.prefix_cache for engine in engines):
        raise ConfigError("hit_rate", f"is {number(rate)}, and there is no prefix cache that finds anything")
    return replace(demand, hit_rate=rate)


def prefix_hits(demand: Demand, engine: Engine | None) -> PrefixHits | None:
    """What the prefix cache of an engine finds; None where there is none, or nothing that it could find.

    Args:
        demand: what is asked, with a hit rate where one is stated.
        engine: None: a timing model, of whose cache only the hit rate tells.

    Raises:
        ConfigError: a stated rate above what the prompts share, or that leaves no token to compute.
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
    if hit_rate is None:  # prompts that share nothing are computed as without a cache
        return PrefixHits(tokens, pairs, most, False, alone, mean) if most else None
    if demand.rows is not None and hit_rate > most * (1 + 1e-9):
        raise ConfigError(
            "hit_rate",
            f"is {number(hit_rate)}, and an endless cache finds {number(most)} of the prompt "
            "tokens of this workload",
        )
    tokens = (1 - hit_rate) * mean
    if tokens < 1:
        raise ConfigError(
            "hit_rate",
            f"is {number(hit_rate)}, which leaves {number(tokens)} of {number(mean)} tokens of a "
            "mean prompt; a request computes one at least",
        )
    # x(x + 1)/2 is convex, and the tokens that are computed are the last.
    return PrefixHits(tokens, tokens * (tokens + 1) / 2, hit_rate, True, alone, mean)


def least_cost(cost: Iteration, engine: Engine | None, lengths: Lengths) -> Iteration:
    """What a decode costs at least, where a request may be preempted.

    A recomputation takes the place of a decode, and pays nothing for being one. With a prefix cache, where it
    may find its own blocks again, it is a chunk as short as a decode, and pays for its context as chunks do.
    """
    if engine is None or memory_slack(engine, lengths).met:
        return cost
    cost = replace(cost, per_decode_s=0.0)
    if engine.kv.prefix_cache is None:
        return cost
    return replace(cost, per_context_token_s=min(cost.per_context_token_s, cost.per_chunk_context_s))


@dataclass(frozen=True, slots=True, eq=False)
class RequestWork:
    """What a mean request asks of iterations: at the least, and what is enough for sure."""

    decodes: float
    tokens: float
    """Tokens that are computed at least: prompt and decodes, less what prefix caches find at the most."""
    sure_tokens: float
    """The same less what they find for sure: what is stated, where time depends on tokens alone."""
    least_s: float
    """Seconds that contexts and rows add, however its prompt is cut."""
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
        """Of a demand on an engine, or on a timing model alone, with batches of so many tokens."""
        lengths, hits = demand.lengths, prefix_hits(demand, engine)
        decodes, lean = lengths.decode_mean(first_token), least_cost(cost, engine, lengths)
        tokens = sure_tokens = lengths.prompt_mean + decodes
        least_s, most_s = cost.prompt_contexts_s(lengths, budget)
        most_s += cost.decode_contexts_s(lengths, first_token)
        if hits is not None:
            tokens, least_s = hits.tokens + decodes, hits.contexts_s(cost, lengths, budget)
            sure_tokens = tokens if hits.stated and cost.by_tokens else sure_tokens
        least_s += lean.decode_contexts_s(lengths, first_token)
        return cls(decodes, tokens, sure_tokens, least_s, most_s, hits)

    @property
    def hit_rate(self) -> float | None:
        """The share of prompt tokens that is found at the most; None without hits."""
        return None if self.hits is None else self.hits.hit_rate

    @property
    def stable_hit_rate(self) -> float | None:
        """The share that is found for sure."""
        if self.hits is None:
            return None
        return self.hits.hit_rate if self.sure_tokens == self.tokens else 0.0

    @property
    def hypotheses(self) -> tuple[Hypothesis, ...]:
        """What the least assumes of prefix caches."""
        return () if self.hits is None else (self.hits.hypothesis,)


def finds_its_own(engine: Engine, lengths: Lengths) -> bool:
    """May a preempted request find what it had computed, so that one token stands for its next decode?"""
    return engine.kv.prefix_cache is not None and not memory_slack(engine, lengths).met


def no_hits(engine: object) -> tuple[Hypothesis, ...]:
    """What formulas assume that count all of every prompt; nothing where there is no prefix cache."""
    kv = getattr(engine, "kv", None)
    if kv is None or kv.prefix_cache is None:
        return ()
    why = "a hit rate of 0 is assumed, and a run may have another: stability and token_capacity know of hits"
    return (Hypothesis(name=COUNTED_IN_FULL, met=None, why=why),)


def nothing_shared(demand: Demand) -> Hypothesis:
    """What a ceiling assumes of a workload whose prompts share nothing that a cache could find."""
    told = "classes" if demand.rows is None else "rows"
    why = f"a hit rate of 0: nothing that the {told} of the workload say begins two prompts alike"
    return Hypothesis(name=_NAME, met=True, why=why)


def only_helps(found: PrefixHits | None, met: bool | None, why: str) -> tuple[Hypothesis, ...]:
    """Can hits only help a policy? Its theorem is about prompts that are computed in full."""
    return () if found is None else (Hypothesis(name="hits only help", met=met, why=why),)
