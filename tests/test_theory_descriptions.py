"""What theory hears of policies, routers and timing models: a built-in says it, the rest is unknown."""

from typing import Any

import polars as pl
import pytest

import inferq as iq
from inferq.systems.routers import ROUTERS
from inferq.timing import TIMING_MODELS

from .test_scheduler_descriptions import MADE

BUILT_IN = [*MADE, iq.VllmV0(), iq.VllmV1()]


@pytest.mark.parametrize("scheduler", BUILT_IN)
def test_a_built_in_policy_with_a_budget_says_whether_it_fills_it(scheduler: Any) -> None:
    assert scheduler.token_limit() is None or "fills_budget" in vars(type(scheduler))
    assert scheduler.fills_budget().why


@pytest.mark.parametrize("scheduler", BUILT_IN)
def test_batches_of_a_built_in_policy_keep_to_its_budget_and_its_seats_and_reach_them(scheduler: Any) -> None:
    classes = list(getattr(getattr(scheduler, "thresholds", None), "keys", lambda: ["paid"])())
    if isinstance(scheduler, iq.ClassPriority):
        classes = list(scheduler.order)
    count = 400
    workload = iq.Workload(
        {
            "arrival_s": [0.0] * count,
            "prompt_tokens": [20] * count,
            "output_tokens": [60] * count,
            "class": [classes[place % len(classes)] for place in range(count)],
        }
    )
    kv = iq.KvCache.unlimited()
    engine = iq.Engine(timing=iq.Constant(1.0), scheduler=scheduler, kv=kv)
    iterations = iq.simulate(workload, engine, iterations=True).iterations
    tokens = iterations.select((pl.col("prefill_tokens") + pl.col("decodes")).max()).item()
    decodes = iterations["decodes"].max()
    budget, seats = scheduler.token_limit(), scheduler.sequence_limit()
    if budget is not None:
        assert tokens <= budget
        assert tokens == budget or scheduler.fills_budget().holds is not True or seats < budget
    if seats is not None:
        assert decodes <= seats
    if seats is not None and seats < count and (budget is None or seats <= budget // 2):
        assert decodes == seats


def test_nothing_that_a_policy_says_of_its_batches_holds_for_one_derived_from_it() -> None:
    class Mine(iq.Sarathi):
        """Whatever it does, it is another policy."""

        def plan(self, view: iq.View) -> None:
            return None

    class Stated(Mine):
        """One that answers for itself."""

        def serves_oldest(self) -> bool:
            return True

    assert iq.Sarathi().fills_budget().holds and iq.Sarathi().serves_oldest()
    assert Mine().fills_budget() == (None, "Mine is written in Python")
    assert not Mine().serves_oldest()
    assert Stated().serves_oldest()


@pytest.mark.parametrize("kind", ROUTERS)
def test_a_built_in_router_says_whether_it_draws_and_one_derived_from_it_does_not(kind: Any) -> None:
    assert "is_random" in vars(kind)
    assert isinstance(kind.is_random, bool)
    derived = type("Mine", (kind,), {"route": lambda self, request, fleet: 0})
    assert (derived.is_random, derived.depends_on_request, derived.balancing) == (None, None, None)


@pytest.mark.parametrize("kind", TIMING_MODELS)
def test_a_built_in_timing_model_says_how_short_an_iteration_is_and_what_it_is_not_a_function_of(
    kind: Any,
) -> None:
    assert "shortest_iteration_s" in vars(kind)
    assert "cost" in vars(kind) or kind.uncounted
