"""The steady-state program of lin2026: two routes to its optimum, its laws, its limits, its refusals."""

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import inferq as iq
from inferq.theory import AllocationPlan, RequestClass, allocation

from .arriving import arriving
from .lin2026 import SLOTS, TIMING
from .night import NIGHT
from .refusals import refused


def paper_classes(rate: float = 0.5, abandonment: float = 0.1) -> list[RequestClass]:
    """Section 6.2."""
    return [
        RequestClass(name="decode-heavy", rate=rate, prompt=300, output=1000, abandonment=abandonment),
        RequestClass(name="prefill-heavy", rate=rate, prompt=3000, output=400, abandonment=abandonment),
    ]


def paper_plan(**changes: Any) -> AllocationPlan:
    return allocation(changes.pop("classes", paper_classes()), **{**SLOTS, **changes})


def closed_form(slots: int) -> tuple[float, float, float, float]:
    """Σx, Σy_m, Σy_s and R* of section 6.2 if class 1 is served in full and all slots are in use, q_d = 0.

    Tokens decoded per second are then ((B − 1)X / τ + B(1 − X)γ, linear in X = x_0 + x_1; class 1 makes
    λ_1 D_1 of them, class 0 the rest, D_0 μ_p,0 x_0: one equation for x_0.
    """
    tau, solo = 0.0174 + 6.2e-5 * 256, 0.022
    x_1 = 0.5 * 3000 * tau / 256
    made_by_x_0 = 1000 * 256 / (300 * tau)
    # made_by_x_0·x_0 + 0.5·400 = slots/solo + (x_0 + x_1)·slope
    slope = (slots - 1) / tau - slots / solo
    x_0 = (slots / solo + x_1 * slope - 0.5 * 400) / (made_by_x_0 - slope)
    x = x_0 + x_1
    served = (256 / (300 * tau) * x_0, 0.5)
    return x, (slots - 1) * x, slots * (1 - x), 230 * served[0] + 380 * served[1]


def paper_program(plan: AllocationPlan) -> tuple[np.ndarray, ...]:
    """(40) or (42) written down anew: c, A_ub, b_ub, A_eq, b_eq over x, y_m, y_s, q_p, q_d of all classes."""
    tau, solo = plan.timing.alpha + plan.timing.beta * plan.chunk, plan.timing.solo
    c_p, c_d, slots, count = plan.prices.prefill, plan.prices.decode, plan.slots, len(plan.classes)
    rate, prompt, output, leaving = (
        np.array([getattr(one, name) for one in plan.classes])
        for name in ("rate_per_s", "prompt_tokens", "output_tokens", "abandonment_per_s")
    )
    prefill, mixed, alone = plan.chunk / (prompt * tau), 1 / (output * tau), 1 / (output * solo)
    one, none, each = np.ones(count), np.zeros(count), np.eye(count)
    if plan.scheme == "bundled":
        worth = c_p * prompt + c_d * output
        cost = np.concatenate([none, worth * mixed, worth * alone, none, none])
    else:
        cost = np.concatenate([c_p * plan.chunk / tau * one, c_d / tau * one, c_d / solo * one, none, none])
    below = np.array(
        [
            np.concatenate([one, none, none, none, none]),
            np.concatenate([-(slots - 1) * one, one, none, none, none]),
            np.concatenate([slots * one, none, one, none, none]),
        ]
    )
    void = np.zeros((count, count))
    arrivals = np.hstack([np.diag(prefill), void, void, np.diag(leaving), void])
    decodes = np.hstack([-np.diag(prefill), np.diag(mixed), np.diag(alone), void, np.diag(leaving)])
    assert each.shape == void.shape
    equal = np.vstack([arrivals, decodes])
    return cost, below, np.array([1.0, 0.0, slots]), equal, np.concatenate([rate, none])


def point(plan: AllocationPlan) -> np.ndarray:
    tables = (plan.prefill, plan.mixed, plan.solo, plan.prefill_queue, plan.decode_queue_held)
    return np.array([table[one.name] for table in tables for one in plan.classes])


def prices_of(plan: AllocationPlan) -> tuple[np.ndarray, np.ndarray]:
    below = np.array([plan.price(name) for name in ("prefill slots", "mixed slots", "solo slots")])
    equal = np.array([plan.price(kind, one.name) for kind in ("arrivals", "decodes") for one in plan.classes])
    return below, equal


def tops(plan: AllocationPlan) -> list[np.ndarray]:
    """The most that x, y_m, y_s, q_p and q_d of each class can be in any state."""
    one = np.ones(len(plan.classes))
    waiting = np.array([each.rate_per_s / (each.abandonment_per_s or math.inf) for each in plan.classes])
    return [one, (plan.slots - 1) * one, plan.slots * one, waiting, waiting]


def assert_is_optimal(plan: AllocationPlan) -> None:
    """Feasible, its prices dual feasible, and both objectives equal: both are optimal."""
    cost, below, limits, equal, flows = paper_program(plan)
    held = point(plan)
    upper, free = prices_of(plan)
    money = max(1e-300, float(np.abs(cost * held).max()), abs(plan.revenue_per_replica_s or 0.0))
    # primal
    assert (held >= 0).all()
    assert (below @ held <= limits + 1e-9 * plan.slots).all()
    rates = np.concatenate([flows[: len(plan.classes)]] * 2)
    assert np.abs(equal @ held - flows) == pytest.approx(0 * flows, abs=1e-9 * rates.max())
    # dual: no variable would earn more than the prices of what it uses
    assert (upper >= 0).all()
    reduced = upper @ below + free @ equal - cost
    if not plan.decode_queue:
        reduced = reduced[: -len(plan.classes)]
        held = held[: len(reduced)]
    most = np.concatenate(tops(plan))[: len(reduced)]
    assert (reduced * most >= -1e-8 * money).all(), "nor would all that there can be of it"
    # complementary slackness, and equal objectives
    assert upper * (limits - below @ point(plan)) == pytest.approx(np.zeros(3), abs=1e-7 * money)
    assert reduced * held == pytest.approx(0 * held, abs=1e-7 * money)
    assert plan.revenue_per_replica_s == pytest.approx(float(cost @ point(plan)), rel=1e-9)
    assert upper @ limits + free @ flows == pytest.approx(
        float(cost @ point(plan)), rel=1e-7, abs=1e-7 * money
    )


def best_vertex(plan: AllocationPlan) -> float:
    """The largest objective over all vertices: every choice of columns that solves the rows."""
    cost, below, limits, equal, flows = paper_program(plan)
    rows = np.vstack([np.hstack([below, np.eye(3)]), np.hstack([equal, np.zeros((len(flows), 3))])])
    right = np.concatenate([limits, flows])
    cost = np.concatenate([cost, np.zeros(3)])
    best = -math.inf
    for columns in itertools.combinations(range(len(cost)), len(right)):
        basis = rows[:, columns]
        if abs(np.linalg.det(basis)) > 1e-12:
            values = np.linalg.solve(basis, right)
            if (values >= -1e-9).all():
                best = max(best, float(cost[list(columns)] @ values))
    return best


# --- the optimum of section 6.2


@pytest.mark.parametrize("slots", [16, 8])
def test_the_plan_of_section_6_2_is_that_of_its_closed_form(slots: int):
    plan = paper_plan(slots=slots)
    x, beside, alone, earned = closed_form(slots)
    found = (plan.prefill_use, sum(plan.mixed.values()), sum(plan.solo.values()), plan.revenue_per_replica_s)
    assert found == pytest.approx((x, beside, alone, earned), rel=1e-9)
    assert plan.binding == ("mixed slots", "solo slots")
    assert plan.prefill_queue["prefill-heavy"] == pytest.approx(0, abs=1e-9)
    assert sum(plan.decode_queue_held.values()) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("scheme", ["bundled", "separate"])
@pytest.mark.parametrize("slots", [16, 8])
def test_the_plan_of_section_6_2_is_optimal_by_its_prices_and_by_all_vertices(slots: int, scheme: str):
    plan = paper_plan(slots=slots, scheme=scheme)
    assert_is_optimal(plan)
    assert plan.revenue_per_replica_s == pytest.approx(best_vertex(plan), rel=1e-9)


def test_figure_2_prints_the_separate_optimum_of_eight_slots_at_a_rate_of_1_2():
    """With γ = 45.45 as section 6.1 prints it; 1/0.022 s gives 452.953."""
    timing = iq.research.MixedSolo(alpha=0.0174, beta=6.2e-5, solo=1 / 45.45)
    plan = paper_plan(slots=8, classes=paper_classes(1.2), scheme="separate", timing=timing)
    assert plan.revenue_per_replica_s == pytest.approx(452.9, abs=0.05)


# --- laws over random fleets

FLEETS = st.fixed_dictionaries(
    {
        "classes": st.lists(
            st.builds(
                RequestClass,
                rate=st.floats(0.01, 20),
                prompt=st.integers(1, 10_000),
                output=st.integers(1, 5_000),
                abandonment=st.floats(0.001, 2),
            ),
            min_size=1,
            max_size=4,
        ).map(lambda many: [replace(one, name=f"class {place}") for place, one in enumerate(many)]),
        "timing": st.builds(
            iq.research.MixedSolo,
            alpha=st.floats(0.001, 0.2),
            beta=st.floats(1e-6, 1e-3),
            solo=st.floats(0.005, 0.1),
        ),
        "slots": st.integers(2, 64),
        "chunk": st.integers(16, 2048),
        "prices": st.builds(iq.Prices, prefill=st.floats(0.01, 1), decode=st.floats(0.01, 1)),
        "scheme": st.sampled_from(["bundled", "separate"]),
    }
)
LIMITS = st.fixed_dictionaries(
    {},
    optional={
        "prefill_fairness": st.floats(0, 0.5),
        "decode_fairness": st.floats(0, 8),
        "tpot_s": st.floats(0.1, 0.3),
        "prefill_fairness_penalty": st.floats(0, 1000),
        "decode_fairness_penalty": st.floats(0, 50),
        "tpot_penalty": st.floats(0, 5000),
        "decode_queue": st.booleans(),
    },
)
some = settings(max_examples=60 if NIGHT else 30, suppress_health_check=[HealthCheck.too_slow])


def objective(fleet: dict[str, Any], **changes: Any) -> float:
    fields = {**fleet, **changes}
    plan = allocation(fields.pop("classes"), **fields)
    assert plan.feasible and plan.objective_per_replica_s is not None
    return plan.objective_per_replica_s


def no_less(more: float, less: float) -> bool:
    return more >= less - 1e-7 * max(1.0, abs(less))


@given(fleet=FLEETS)
@some
def test_a_plan_without_limits_is_feasible_and_its_prices_prove_that_it_is_optimal(fleet: dict[str, Any]):
    plan = allocation(fleet.pop("classes"), **fleet)
    assert plan.feasible
    assert_is_optimal(plan)
    assert plan.duality_gap is not None and plan.duality_gap < 1e-7


@given(fleet=FLEETS, limits=LIMITS)
@some
def test_the_duality_gap_is_below_a_ten_millionth_with_any_limits_and_penalties(
    fleet: dict[str, Any], limits: dict[str, Any]
):
    plan = allocation(fleet.pop("classes"), **fleet, **limits)
    assert plan.feasible, "an empty fleet satisfies all of them"
    assert plan.duality_gap is not None and plan.duality_gap < 1e-7
    assert plan.prefill_spread <= limits.get("prefill_fairness", 1) + 1e-9
    assert plan.solo_spread <= limits.get("decode_fairness", plan.slots) + 1e-8 * plan.slots
    cost, below, bounds, equal, flows = paper_program(plan)
    held = point(plan)
    assert (below @ held <= bounds + 1e-8 * plan.slots).all()
    assert np.abs(equal @ held - flows).max() <= 1e-8 * flows.max()
    for one in plan.shadow_prices:
        assert math.isfinite(one.price)
        if one.request_class is None:
            assert one.price >= 0 and one.slack >= 0
    if not plan.decode_queue:
        assert max(plan.decode_queue_held.values()) * min(one.abandonment_per_s for one in plan.classes) <= (
            1e-8 * flows.max()
        )
    assert len(cost) == len(held)


@given(fleet=FLEETS, times=st.integers(2, 1000), factor=st.floats(0.1, 10))
@some
def test_scaling_rates_with_replicas_changes_nothing_and_scaling_prices_scales_revenue(
    fleet: dict[str, Any], times: int, factor: float
):
    once = objective(fleet)
    more = [replace(one, rate=one.rate * times) for one in fleet["classes"]]
    assert objective(fleet, classes=more, replicas=times) == pytest.approx(once, rel=1e-8)
    prices = fleet["prices"]
    dearer = iq.Prices(prefill=prices.prefill * factor, decode=prices.decode * factor)
    assert objective(fleet, prices=dearer) == pytest.approx(factor * once, rel=1e-8)


@given(fleet=FLEETS, factor=st.floats(0.1, 10))
@some
def test_scaling_all_times_scales_revenue_inversely(fleet: dict[str, Any], factor: float):
    timing = fleet["timing"]
    slower = iq.research.MixedSolo(
        alpha=timing.alpha * factor, beta=timing.beta * factor, solo=timing.solo * factor
    )
    rarer = [
        replace(one, rate=one.rate / factor, abandonment=one.abandonment / factor) for one in fleet["classes"]
    ]
    assert objective(fleet, timing=slower, classes=rarer) == pytest.approx(
        objective(fleet) / factor, rel=1e-8
    )


@given(fleet=FLEETS, which=st.integers(0, 3), factor=st.floats(1, 5))
@some
def test_revenue_grows_with_rates_slots_and_prices_and_with_each_looser_limit(
    fleet: dict[str, Any], which: int, factor: float
):
    once, classes, prices = objective(fleet), fleet["classes"], fleet["prices"]
    which %= len(classes)
    busier = [
        replace(one, rate=one.rate * factor) if place == which else one for place, one in enumerate(classes)
    ]
    assert no_less(objective(fleet, classes=busier), once)
    assert no_less(objective(fleet, slots=fleet["slots"] + 1), once)
    assert no_less(objective(fleet, prices=replace(prices, prefill=prices.prefill * factor)), once)
    assert no_less(objective(fleet, prices=replace(prices, decode=prices.decode * factor)), once)
    for name, limit in (("prefill_fairness", 0.01), ("decode_fairness", 0.3)):
        tight = objective(fleet, **{name: limit})
        assert no_less(objective(fleet, **{name: limit * factor}), tight)
        assert no_less(once, tight)


@given(fleet=FLEETS)
@some
def test_proposition_1_nobody_needs_to_wait_for_a_decode_where_solo_is_no_less_efficient(
    fleet: dict[str, Any],
):
    timing, slots = fleet["timing"], fleet["slots"]
    assume(timing.alpha + timing.beta * fleet["chunk"] >= timing.solo * (slots - 1) / slots)
    fleet["scheme"] = "bundled"
    assert no_less(objective(fleet, decode_queue=False), objective(fleet))


def test_proposition_1_fails_where_mixed_decodes_are_more_efficient():
    slow = iq.research.MixedSolo(alpha=0.0174, beta=6.2e-5, solo=0.1)
    assert 0.033272 / 0.1 < 15 / 16
    kept, emptied = (paper_plan(timing=slow, decode_queue=may) for may in (True, False))
    assert kept.revenue_per_replica_s is not None and emptied.revenue_per_replica_s is not None
    assert kept.revenue_per_replica_s > 1.001 * emptied.revenue_per_replica_s
    assert not next(one for one in kept.hypotheses if "Proposition 1" in one.name).met


def test_revenue_is_convex_in_the_prices_so_that_a_budget_belongs_on_one_of_them():
    """R* is a maximum of functions linear in the prices: section 6.4's best ratio is at an end."""
    budget = 0.3
    shares = np.linspace(0.01, 0.99, 25)
    earned = [
        paper_plan(slots=8, prices=iq.Prices(prefill=budget * one, decode=budget * (1 - one)))
        for one in shares
    ]
    values = np.array([plan.revenue_per_replica_s for plan in earned])
    assert (np.diff(values, 2) >= -1e-9 * values.max()).all()
    assert values.argmax() in (0, len(values) - 1)


# --- prices are derivatives


@pytest.mark.parametrize("slots", [16, 8])
@pytest.mark.parametrize(
    ("argument", "constraint", "value"),
    [
        ("tpot_s", "TPOT limit", 0.0225),
        ("prefill_fairness", "prefill fairness", 0.05),
        ("decode_fairness", "decode fairness", 0.5),
    ],
)
def test_a_shadow_price_is_what_a_looser_limit_earns(
    slots: int, argument: str, constraint: str, value: float
):
    step = 1e-6 * value
    plan, looser, tighter = (
        paper_plan(slots=slots, **{argument: one}) for one in (value, value + step, value - step)
    )
    assert looser.revenue_per_replica_s is not None and tighter.revenue_per_replica_s is not None
    slope = (looser.revenue_per_replica_s - tighter.revenue_per_replica_s) / (2 * step)
    assert plan.price(constraint) == pytest.approx(slope, rel=1e-4)
    assert plan.price(constraint) > 0 and constraint in plan.binding


@pytest.mark.parametrize("slots", [16, 8])
def test_the_price_of_an_arrival_is_what_one_more_of_its_class_earns(slots: int):
    plan = paper_plan(slots=slots)
    step = 1e-6
    for place, one in enumerate(paper_classes()):
        more = paper_classes()
        more[place] = replace(one, rate=one.rate + step)
        richer = paper_plan(slots=slots, classes=more).revenue_per_replica_s
        assert richer is not None and plan.revenue_per_replica_s is not None
        assert plan.price("arrivals", one.name) == pytest.approx(
            (richer - plan.revenue_per_replica_s) / step, abs=1e-3
        )


# --- limits and penalties


@given(limit=st.floats(0.02201, 0.04), slots=st.sampled_from([4, 8, 16]))
@some
def test_the_linear_tpot_limit_is_the_fraction_of_47(limit: float, slots: int):
    plan = paper_plan(slots=slots, tpot_s=limit)
    x, tau, solo = plan.prefill_use, 0.033272, 0.022
    fraction = (tau * (slots - 1) * x + solo * slots * (1 - x)) / ((slots - 1) * x + slots * (1 - x))
    assert fraction <= limit + 1e-12
    assert plan.tpot_s == pytest.approx(fraction, rel=1e-12)
    free = paper_plan(slots=slots)
    assert plan.revenue_per_replica_s is not None and free.revenue_per_replica_s is not None
    if free.tpot_s is not None and free.tpot_s <= limit:
        assert plan.revenue_per_replica_s == pytest.approx(free.revenue_per_replica_s, rel=1e-9)
    else:
        assert fraction == pytest.approx(limit, rel=1e-9)
        assert plan.revenue_per_replica_s < free.revenue_per_replica_s


@pytest.mark.parametrize("slots", [16, 8])
@pytest.mark.parametrize("penalty", [20_000.0, 60_000.0, 1e6])
@pytest.mark.parametrize("solo", [0.022, 0.05])
def test_the_tpot_penalty_finds_what_a_fine_grid_of_limits_finds(slots: int, penalty: float, solo: float):
    """A TPOT limit walks through all Σx (from above where τ < 1/γ): revenue less penalty, point by point."""
    timing = replace(TIMING, solo=solo)
    best = paper_plan(slots=slots, timing=timing, tpot_penalty=penalty)
    assert best.duality_gap is not None and best.duality_gap < 1e-7
    assert best.penalty_per_replica_s == pytest.approx(penalty * (best.tpot_s or 0), rel=1e-12)
    tau, top = 0.033272, -math.inf
    for x in np.linspace(0, 0.2144484, 250):
        limit = (tau * (slots - 1) * x + solo * slots * (1 - x)) / (slots - x)
        tried = paper_plan(slots=slots, timing=timing, tpot_s=limit * (1 + 1e-12))
        if tried.feasible:
            assert tried.revenue_per_replica_s is not None and tried.tpot_s is not None
            top = max(top, tried.revenue_per_replica_s - penalty * tried.tpot_s)
    found = best.objective_per_replica_s
    assert found is not None
    assert no_less(found, top)
    assert found <= top + 0.002 * max(300.0, abs(top)), "the grid is that fine"


@pytest.mark.parametrize("slots", [16, 8])
@pytest.mark.parametrize("kind", ["prefill_fairness", "decode_fairness"])
@pytest.mark.parametrize("penalty", [1.0, 30.0, 900.0])
def test_a_fairness_penalty_finds_what_a_fine_grid_of_limits_finds(slots: int, kind: str, penalty: float):
    best = paper_plan(slots=slots, **{f"{kind}_penalty": penalty})
    widest = {"prefill_fairness": 0.2, "decode_fairness": float(slots)}[kind]
    top = -math.inf
    for limit in np.linspace(0, widest, 150):
        tried = paper_plan(slots=slots, **{kind: limit})
        spread = {"prefill_fairness": tried.prefill_spread, "decode_fairness": tried.solo_spread}[kind]
        assert tried.revenue_per_replica_s is not None
        top = max(top, tried.revenue_per_replica_s - penalty * spread)
    assert best.objective_per_replica_s is not None
    assert no_less(best.objective_per_replica_s, top)
    fine = {"prefill_fairness": 900 * 0.2, "decode_fairness": 900 * 16}[kind] / 149 + 2
    assert best.objective_per_replica_s <= top + fine


def test_fairness_is_asked_of_plans_that_keep_nobody_waiting_for_a_decode():
    """(43) and (45) have q_d = 0; the separate optimum without them keeps 6.7 waiting at B = 8."""
    free = paper_plan(slots=8, scheme="separate")
    assert sum(free.decode_queue_held.values()) > 1
    for name in ("prefill_fairness", "decode_fairness", "prefill_fairness_penalty"):
        fair = paper_plan(slots=8, scheme="separate", **{name: 0.1})
        assert not fair.decode_queue and sum(fair.decode_queue_held.values()) == pytest.approx(0, abs=1e-8)
        asked = paper_plan(slots=8, scheme="separate", decode_queue=True, **{name: 0.1})
        assert asked.decode_queue
        assert no_less(asked.objective_per_replica_s or 0, fair.objective_per_replica_s or 0)


# --- the division among the classes


@pytest.mark.parametrize("scheme", ["bundled", "separate"])
def test_every_class_decodes_the_same_share_of_its_tokens_in_solo_slots(scheme: str):
    plan = paper_plan(slots=8, scheme=scheme)
    shares = [
        plan.solo[one.name] / 0.022 / (plan.solo[one.name] / 0.022 + plan.mixed[one.name] / 0.033272)
        for one in plan.classes
    ]
    assert shares[0] == pytest.approx(shares[1], rel=1e-12)
    if scheme == "separate":
        lost = [
            0.1
            * plan.decode_queue_held[one.name]
            / (256 / (one.prompt_tokens * 0.033272) * plan.prefill[one.name])
            for one in plan.classes
        ]
        assert lost[0] == pytest.approx(lost[1], rel=1e-9) and lost[0] > 0


def test_slack_decode_slots_are_filled_solo_first():
    plan = paper_plan(classes=paper_classes(0.05))
    assert sum(plan.mixed.values()) == 0
    assert sum(plan.solo.values()) == pytest.approx(0.05 * 1400 * 0.022, rel=1e-9)
    assert plan.revenue_per_replica_s == pytest.approx(0.05 * (230 + 380), rel=1e-9)
    assert plan.binding == ()


# --- what is asked


def test_classes_and_the_workload_with_the_same_distributions_have_the_same_plan():
    def part(prompt: int, output: int) -> iq.Workload:
        return arriving(100, 5, prompt, output)

    mixed = iq.Workload.mix({"decode-heavy": part(300, 1000), "prefill-heavy": part(3000, 400)})
    plan = allocation(mixed, abandonment=0.1, replicas=10, **SLOTS)
    assert plan.revenue_per_replica_s == pytest.approx(closed_form(16)[3], rel=1e-9)
    assert plan.prefill == pytest.approx(paper_plan().prefill)
    shared = allocation(mixed, abandonment={"decode-heavy": 0.1, "prefill-heavy": 0.1}, rate=1.0, **SLOTS)
    assert shared.revenue_per_replica_s == pytest.approx(plan.revenue_per_replica_s or 0, rel=1e-9)


def test_only_the_means_of_the_lengths_enter():
    spread = [
        RequestClass(
            name=one.name,
            rate=0.5,
            prompt=iq.dist.Uniform(1, 2 * int(one.prompt) - 1),  # type: ignore[arg-type]  # these are numbers
            output=iq.dist.Geometric(mean=int(one.output)),  # type: ignore[arg-type]
            abandonment=0.1,
        )
        for one in paper_classes()
    ]
    assert paper_plan(classes=spread).revenue_per_replica_s == pytest.approx(closed_form(16)[3], rel=1e-9)


def test_the_plan_is_what_gate_and_route_takes():
    plan = paper_plan()
    fields = {**SLOTS, "replicas": 20, "abandonment": 0.1}
    fleet = iq.research.GateAndRoute(plan, **fields)
    assert fleet == iq.research.GateAndRoute(plan.allocation, **fields)
    assert fleet.allocation == plan.allocation
    assert iq.research.GateAndRoute.from_json(fleet.to_json()) == fleet
    with pytest.raises(iq.ConfigError, match=r"^allocation: must be Allocation\(…\) or None, got 3"):
        iq.research.GateAndRoute(3, **fields)


def test_a_plan_with_every_prefill_place_taken_is_an_allocation():
    busy = [RequestClass(name=str(i), rate=50, prompt=999, output=1, abandonment=0.1) for i in range(7)]
    plan = paper_plan(classes=busy)
    assert plan.prefill_use == pytest.approx(1) and "prefill slots" in plan.binding
    assert sum(plan.allocation.prefill.values()) <= 1 + 1e-12


def test_what_the_solver_adds_beyond_one_prefill_leaves_no_negative_decodes():
    busy = [
        RequestClass(name="long", rate=7, prompt=24, output=1, abandonment=1),
        RequestClass(name="short", rate=2, prompt=1, output=2, abandonment=1),
    ]
    timing = iq.research.MixedSolo(alpha=0.09375, beta=0.0004990902214252855, solo=0.0625)
    fields = {"timing": timing, "slots": 2, "chunk": 16, "prices": iq.Prices(prefill=1, decode=1)}
    plan = allocation(busy, **fields)
    assert min(plan.solo.values()) >= 0
    assert iq.research.GateAndRoute(plan, replicas=3, abandonment=1, **fields).allocation == plan.allocation


@pytest.mark.parametrize("limit", [0.0, 1e-13, 1e-12, 1e-10, 1e-9])
def test_a_fairness_limit_below_the_tolerance_of_the_solver_is_not_taken_for_infeasible(limit: float):
    """Equal prefills alone, then both: equal x and y_s at once leave section 6.2's fleet nothing but rest."""
    alone, exact = (paper_plan(prefill_fairness=one) for one in (limit, 0))
    assert alone.feasible
    assert alone.revenue_per_replica_s == pytest.approx(exact.revenue_per_replica_s or 0, rel=1e-7)
    both = paper_plan(prefill_fairness=limit, decode_fairness=limit)
    assert both.feasible and both.revenue_per_replica_s == pytest.approx(0, abs=1e-5)


def test_the_explanation_has_every_number():
    limits = {"prefill_fairness": 0.1, "decode_fairness": 3, "tpot_s": 0.024}
    penalties = {"prefill_fairness_penalty": 5, "decode_fairness_penalty": 6, "tpot_penalty": 7}
    text = paper_plan(replicas=2, slots=12, **limits, **penalties).explain()
    for told in ("0.5/2 = 0.25", "P = 3,000", "D = 400", "θ = 0.1", "c_p = 0.1", "c_d = 0.2", "B = 12"):
        assert told in text
    for told in ("C = 256", "0.033272 s", "0.022 s", "η_1 = 0.1", "η_2 = 3", "η_3 = 0.024 s", "η'_1 = 5"):
        assert told in text
    for told in ("η'_2 = 6", "η'_3 = 7", "R* =", "Σx =", "Σy_m =", "Σy_s =", "TPOT limit:", "q_p =", "q_d ="):
        assert told in text
    assert "separate prices" in paper_plan(scheme="separate").explain()
    assert str(paper_plan()) == paper_plan().explain()


# --- what is refused, and what cannot be


@refused(
    ({"classes": []}, "workload: must contain at least one class"),
    ({"classes": 3}, "workload: must be a Workload, a RequestClass"),
    ({"classes": paper_classes()[:1] * 2}, r"workload\[1\].name: must be unique, got 'decode-heavy' twice"),
    ({"rate": 0}, "rate: must be a positive number per second, got 0"),
    ({"rate": -1.0}, "rate: must be"),
    ({"rate": math.nan}, "rate: must be"),
    ({"replicas": 0}, "replicas: must be an integer from 1 to 16777216, got 0"),
    ({"replicas": True}, "replicas: must be an integer"),
    ({"slots": 1}, "slots: must be an integer from 2 to 16777216, got 1"),
    ({"slots": 8.5}, "slots: must be an integer"),
    ({"chunk": 0}, "chunk: must be an integer from 1 to 16777216, got 0"),
    ({"prices": iq.Prices(prefill=0, decode=0.2)}, "prices.prefill: must be positive, got 0"),
    ({"prices": iq.Prices(prefill=0.1, decode=-1)}, "prices.decode: must be positive, got -1"),
    ({"prices": (0.1, 0.2)}, r"prices: must be Prices"),
    ({"timing": iq.Constant(1.0)}, r"timing: must be MixedSolo"),
    (
        {"timing": iq.research.MixedSolo(alpha=0, beta=0, solo=0.1)},
        "timing: iterations must take some time",
    ),
    (
        {"timing": iq.research.MixedSolo(alpha=0.1, beta=0, solo=0)},
        "timing: iterations must take some time",
    ),
    ({"scheme": "both"}, "scheme: must be 'bundled' or 'separate', got 'both'"),
    ({"decode_queue": 1}, "decode_queue: must be True, False or None, got 1"),
    ({"abandonment": -0.1}, "abandonment: must be non-negative, got -0.1"),
    ({"abandonment": math.inf}, "abandonment: must be finite, got inf"),
    (
        {"abandonment": {"decode-heavy": 0.1}},
        "abandonment.prefill-heavy: is missing; every class requires a rate",
    ),
    ({"abandonment": {"chat": 0.1}}, r"abandonment.chat: unknown class; classes: decode-heavy,"),
    ({"prefill_fairness": -0.1}, "prefill_fairness: must be non-negative"),
    ({"decode_fairness": math.nan}, "decode_fairness: must be finite, got nan"),
    ({"tpot_s": 0}, "tpot_s: must be positive"),
    ({"tpot_penalty": -1}, "tpot_penalty: must be non-negative"),
    ({"prefill_fairness_penalty": math.inf}, "prefill_fairness_penalty: must be"),
    ({"decode_fairness_penalty": "much"}, "decode_fairness_penalty: must be"),
    pattern="^{}",
)
def test_a_question_that_makes_no_sense_names_its_argument(changes: dict[str, Any]):
    paper_plan(**changes)


def test_a_workload_whose_requests_give_up_needs_the_rate_at_which_they_do():
    work = iq.Workload(
        {"arrival_s": [0.0, 1.0], "prompt_tokens": [9, 9], "output_tokens": [9, 9], "patience_s": [1.0, 1.0]}
    )
    with pytest.raises(iq.ConfigError, match=r"^abandonment: is required"):
        allocation(work, **SLOTS)
    assert allocation(work, abandonment=1.0, **SLOTS).feasible


def test_classes_that_never_give_up_must_be_served_and_more_than_fits_is_infeasible():
    """The largest share is that of the closed form: all decode slots in use, X = sΣλ_i/μ_p,i."""
    plan = paper_plan(classes=paper_classes(abandonment=0.0))
    tau, solo = 0.033272, 0.022
    x = 0.5 * (300 + 3000) * tau / 256
    share = (16 / solo) / (0.5 * 1400 - x * (15 / tau - 16 / solo))
    assert not plan.feasible and plan.feasible_share == pytest.approx(share, rel=1e-9)
    assert "abandons" in plan.reason and "times the rates" in plan.explain()
    assert plan.revenue_per_replica_s is plan.duality_gap is plan.tpot_s is None
    assert plan.shadow_prices == () and not plan.prefill
    with pytest.raises(iq.ConfigError, match=r"^allocation: infeasible: no request of 'decode-heavy'"):
        iq.research.GateAndRoute(plan, replicas=2, **SLOTS)
    with pytest.raises(iq.ConfigError, match=r"^constraint: unknown constraint 'solo slots'"):
        plan.price("solo slots")
    fits = paper_plan(classes=paper_classes(0.5 * share * (1 - 1e-9), abandonment=0.0))
    assert fits.feasible
    assert_is_optimal(fits)
    assert fits.revenue_per_replica_s == pytest.approx(0.5 * share * 610, rel=1e-8)


def test_a_tpot_limit_below_an_iteration_of_decodes_is_infeasible():
    plan = paper_plan(tpot_s=0.0219)
    assert not plan.feasible and plan.feasible_share is None
    assert "TPOT limit of 0.0219 s" in plan.reason and "no plan exists for any rates" in plan.explain()
    assert not paper_plan(tpot_s=0.0219, tpot_penalty=100.0).feasible
    still = paper_plan(tpot_s=0.022)
    assert still.feasible and still.revenue_per_replica_s == 0
