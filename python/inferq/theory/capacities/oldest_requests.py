"""A guaranteed rate although memory may run short: the oldest requests always advance."""

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
    """The guaranteed rate of an engine that runs the oldest requests and preempts the youngest.

    Let S' of the largest requests fit the cache together. With first come, first served, and preemption of
    the youngest by recomputation, the running requests are always the oldest. The oldest S' (or all, if
    fewer) run and are never preempted, because they always have blocks. Let T be the longest iteration. In
    each iteration one of two cases holds. Either all the oldest S' advance, a prompt by all its remaining
    tokens and a decode by one. Or their prompts use up the budget, except for at most one token for each
    other decode, of which there are fewer than S − S'.

    Count the work of each request, prompt tokens/(b − S + S') + stages/S' in units of T: in full until it is
    among the oldest S', and its remaining work afterwards. The total falls by T in every iteration of at most
    T. A preemption affects only other requests, so it does not change the total. So the engine is stable if

        λ·T·(m_p / (b − S + S') + (1 + m_d) / S') < 1.

    Requests that share blocks of a prefix cache need no more of them, so the argument still holds. But their
    contexts may add up to more than the cache, so T is then computed with all slots at their longest.

    Source: our own, after the drift argument of li2025 Appendix B. The bound is far from tight.
    """

    concurrent: int
    """S'."""
    longest_s: float
    """T."""
    capacity_per_s: float
    per_prompt_token: float
    """1 / (b − S + S')."""
    first_token: FirstToken

    def work(self, s: Any, o: Any) -> Any:
        """Work of a request with s prompt and o output tokens, in units of T."""
        decodes = o - with_prompt(self.first_token)
        return s * self.per_prompt_token + (1 + decodes) / self.concurrent

    @property
    def inequality(self) -> str:
        """The numbers of the bound."""
        return (
            f"the oldest {number(self.concurrent)} always fit and advance, and no iteration is longer than "
            f"{number(self.longest_s)} s"
        )

    @classmethod
    def of(
        cls, engine: Engine, lengths: Lengths, first_token: FirstToken, *, shared: bool = False
    ) -> Oldest | None:
        """The bound of an engine whose requests may share blocks; None if it does not apply."""
        scheduler, kv = engine.scheduler, engine.kv
        budget, max_seqs = scheduler.token_limit(), scheduler.sequence_limit()
        if not scheduler.serves_oldest() or budget is None or max_seqs is None:
            return None
        if kv.tokens is None or not lengths.is_bounded or budget <= max_seqs:
            return None
        blocks, largest = kv.tokens // kv.block, lengths.most(lambda s, o: s + o)
        concurrent = min(
            max_seqs, (blocks - int(scheduler.admission_margin() * blocks)) // math.ceil(largest / kv.block)
        )
        if concurrent < 1:
            return None
        if has_prices(engine.timing):
            most_s = longest_iteration_s(engine, lengths, shared=shared)
            if most_s is None:
                return None
            longest_s = most_s
        else:
            cost = Iteration.of(engine)
            most, each = (max_seqs, largest) if shared else (blocks, kv.block)
            longest_s = (
                cost.seconds(budget)
                + (cost.per_row_s + cost.per_decode_s) * max_seqs
                + (cost.per_context_token_s + cost.per_kv_token_s) * most * each
                + cost.per_prefill_square_s * budget**2
                + cost.per_chunk_context_s * budget * largest
            )
        stages = 1 + lengths.decode_mean(first_token)
        per_prompt_token = 1 / (budget - max_seqs + concurrent)
        work = lengths.prompt_mean * per_prompt_token + stages / concurrent
        if longest_s <= 0:
            return None
        return cls(concurrent, longest_s, 1 / (longest_s * work), per_prompt_token, first_token)
