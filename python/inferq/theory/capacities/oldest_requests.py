"""A rate that is safe although memory may run short: the oldest requests always go on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from inferq.systems.engine import Engine
from inferq.theory.capacities.iteration_cost import Iteration
from inferq.theory.capacities.token_prices import has_prices, longest_iteration_s
from inferq.theory.demands.lengths import FirstToken, Lengths, with_prompt
from inferq.theory.statement import number


@dataclass(frozen=True, slots=True)
class Oldest:
    """What an engine serves for sure that runs the oldest requests and preempts the youngest.

    Let S' of the largest requests fit the cache at once. Under first come, first served, with the youngest
    preempted by recomputation, the running requests are always the oldest, and the oldest S' (or all, if
    there are fewer) run and are never preempted: among them there is always a block. Let T be the longest
    iteration. In each, either all the oldest S' move, a prompt by all that is left and a decode by one; or
    the budget is used up, by their prompts but for at most one token for each other decode, of which there
    are fewer than the seats S less S'. Count for each request its work, prompt tokens/(b − S + S') +
    stages/S' in units of T, in full while it is not among the oldest S', and what is left of it afterwards:
    this falls by T in every iteration of at most T, and a preemption, which only meets others, leaves it
    alone. So the engine is stable where

        λ·T·(m_p / (b − S + S') + (1 + m_d) / S') < 1.

    Requests that share the blocks of a prefix cache hold no more of them, so all of this stays; but their
    contexts may add up to more than the cache has, and T is then that of all seats at their longest.

    Source: our own, after the drift argument of li2025 Appendix B. It is far from tight.
    """

    at_once: int
    """S'."""
    longest_s: float
    """T."""
    capacity_per_s: float
    per_prompt_token: float
    """1 / (b − S + S')."""
    first_token: FirstToken

    def work(self, s: Any, o: Any) -> Any:
        """What a request of s prompt and o output tokens asks for, in units of T."""
        decodes = o - with_prompt(self.first_token)
        return s * self.per_prompt_token + (1 + decodes) / self.at_once

    @property
    def inequality(self) -> str:
        """The numbers of the bound."""
        return (
            f"the oldest {number(self.at_once)} always fit and go on, whatever the rest does, and no "
            f"iteration is longer than {number(self.longest_s)} s"
        )

    @classmethod
    def of(
        cls, engine: Engine, lengths: Lengths, first_token: FirstToken, *, shared: bool = False
    ) -> Oldest | None:
        """The bound of an engine, whose requests may share blocks; None where it does not apply."""
        scheduler, kv = engine.scheduler, engine.kv
        budget, seats = scheduler.token_limit(), scheduler.sequence_limit()
        if not scheduler.serves_oldest() or budget is None or seats is None:
            return None
        if kv.tokens is None or not lengths.is_bounded or budget <= seats:
            return None
        blocks, largest = kv.tokens // kv.block, lengths.most(lambda s, o: s + o)
        at_once = min(
            seats, (blocks - int(scheduler.admission_margin() * blocks)) // math.ceil(largest / kv.block)
        )
        if at_once < 1:
            return None
        if has_prices(engine.timing):
            most_s = longest_iteration_s(engine, lengths, shared=shared)
            if most_s is None:
                return None
            longest_s = most_s
        else:
            cost = Iteration.of(engine)
            most, each = (seats, largest) if shared else (blocks, kv.block)
            longest_s = (
                cost.seconds(budget)
                + (cost.per_row_s + cost.per_decode_s) * seats
                + (cost.per_context_token_s + cost.per_kv_token_s) * most * each
                + cost.per_prefill_square_s * budget**2
                + cost.per_chunk_context_s * budget * largest
            )
        stages = 1 + lengths.decode_mean(first_token)
        per_prompt_token = 1 / (budget - seats + at_once)
        work = lengths.prompt_mean * per_prompt_token + stages / at_once
        if longest_s <= 0:
            return None
        return cls(at_once, longest_s, 1 / (longest_s * work), per_prompt_token, first_token)
