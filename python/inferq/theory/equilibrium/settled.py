"""Where does a busy engine settle when as much comes as it completes?"""

from __future__ import annotations

import math
from dataclasses import dataclass

from inferq.systems.engine import Engine
from inferq.theory.capacities.iteration_cost import Iteration, budget_of, seats_of
from inferq.theory.demands.lengths import FirstToken, Lengths


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
    def at(cls, rate: float, engine: Engine, law: Lengths, first_token: FirstToken) -> Settled | None:
        """Where a replica settles at a rate; None if it is asked for more work than there is time."""
        return _Balance.of(engine, law, first_token).at(rate)


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
    def of(cls, engine: Engine, law: Lengths, first_token: FirstToken) -> _Balance:
        cost, decodes = Iteration.of(engine), law.decode_mean(first_token)
        budget, seats = budget_of(engine.scheduler), seats_of(engine.scheduler)
        less = 1 if first_token == "prefill" else 0
        least_s, most_s = cost.prompt_contexts_s(law, budget)
        prompt_s = least_s if cost.per_kv_token_s or cost.per_row_s else (least_s + most_s) / 2
        kv = engine.kv
        return cls(
            cost=cost,
            tokens=law.prompt_mean + decodes,
            contexts_s=prompt_s + cost.decode_contexts_s(law, first_token),
            iterations=1 + decodes,
            held=law.mean(lambda s, o: (o - less + 1) * (s + (o - less) / 2 + (kv.block - 1) / 2)),
            limits=(
                math.inf if budget is None else float(budget),
                math.inf if seats is None else float(seats),
                math.inf if kv.tokens is None else float(kv.tokens // kv.block * kv.block),
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


def settled_capacity(engine: Engine, law: Lengths, first_token: FirstToken) -> float | None:
    """The largest rate at which the fluid of a replica settles within its limits; None if there is none."""
    balance = _Balance.of(engine, law, first_token)
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
