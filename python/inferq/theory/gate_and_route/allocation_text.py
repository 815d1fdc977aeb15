"""How does the plan of a fleet read: its program, its optimum, what binds and what that costs?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from inferq.theory.bounds.hypothesis import hypotheses_text, number

if TYPE_CHECKING:
    from inferq.theory.gate_and_route.allocation import AllocationPlan


def explained(plan: AllocationPlan) -> str:
    """What `AllocationPlan.explain` says."""
    return "\n".join([*_program(plan), *(_optimum(plan) if plan.feasible else _none(plan))])


def _program(plan: AllocationPlan) -> Iterator[str]:
    tau, gamma, slots = plan.mixed_s, 1 / plan.timing.solo, plan.slots
    equation, pays = {
        "bundled": ("(40)", "Σ (c_p P_i + c_d D_i)(μ_m,i y_m,i + μ_s,i y_s,i)"),
        "separate": ("(42)", "c_p (C/τ) Σx_i + (c_d/τ) Σy_m,i + c_d γ Σy_s,i"),
    }[plan.scheme]
    yield f"lin2026 {equation}, {plan.scheme} prices: per replica, maximise {pays}"
    yield "  with Σx_i ≤ 1, Σy_m,i ≤ (B − 1)Σx_i, Σy_s,i ≤ B(1 − Σx_i),"
    yield "  λ_i = μ_p,i x_i + θ_i q_p,i, μ_p,i x_i = μ_m,i y_m,i + μ_s,i y_s,i + θ_i q_d,i"
    yield (
        f"c_p = {number(plan.prices.prefill)} and c_d = {number(plan.prices.decode)} per token, B = "
        f"{number(slots)} slots, C = {number(plan.chunk)} tokens, "
        f"τ = α + βC = {number(plan.timing.alpha)} + {number(plan.timing.beta)}·{number(plan.chunk)} = "
        f"{number(tau)} s, 1/γ = {number(plan.timing.solo)} s"
    )
    for one in plan.classes:
        prompt, output = one.prompt_tokens, one.output_tokens
        whole = plan.prices.prefill * prompt + plan.prices.decode * output
        yield (
            f"class {one.name!r}: λ = {number(one.rate_per_s * plan.replicas)}/{number(plan.replicas)} = "
            f"{number(one.rate_per_s)} per replica and second, P = {number(prompt)}, D = {number(output)}, "
            f"θ = {number(one.abandonment_per_s)}/s; μ_p = {number(plan.chunk / (prompt * tau))}, "
            f"μ_m = {number(1 / (output * tau))}, μ_s = {number(gamma / output)} per second; "
            f"pays {number(whole)}"
        )
    limits = (
        ("max x_i − min x_i ≤ η_1", plan.prefill_fairness, "(43)", ""),
        ("max y_s,i − min y_s,i ≤ η_2", plan.decode_fairness, "(45)", ""),
        ("(τ(B − 1)Σx + B(1 − Σx)/γ) / (B − Σx) ≤ η_3", plan.tpot_limit_s, "(47)", " s"),
    )
    for text, bound, where, unit in limits:
        if bound is not None:
            yield f"limit {where}: {text} = {number(bound)}{unit}"
    penalties = (
        ("(44): η'_1 (max x_i − min x_i)", "η'_1", plan.prefill_fairness_penalty),
        ("(46): η'_2 (max y_s,i − min y_s,i)", "η'_2", plan.decode_fairness_penalty),
        ("(48): η'_3 (τ(B − 1)Σx + B(1 − Σx)/γ) / (B − Σx)", "η'_3", plan.tpot_penalty),
    )
    for text, name, weight in penalties:
        if weight:
            yield f"penalty {text}, {name} = {number(weight)}"
    if not plan.decode_queue:
        yield "nobody is planned to wait for a decode: q_d,i = 0"


def _none(plan: AllocationPlan) -> Iterator[str]:
    share = plan.feasible_share
    yield f"infeasible: {plan.reason}"
    yield f"plans exist up to {number(share)} times the rates" if share else "no plan exists for any rates"


def _optimum(plan: AllocationPlan) -> Iterator[str]:
    slots, prefills = plan.slots, plan.prefill_use
    yield f"optimum: R* = {number(plan.revenue_per_replica_s)} per replica and second"
    if plan.penalty_per_replica_s:
        less = number(plan.penalty_per_replica_s)
        yield f"  less penalties of {less}: {number(plan.objective_per_replica_s)}"
    beside, alone = math.fsum(plan.mixed.values()), math.fsum(plan.solo.values())
    yield f"prefill slots: Σx = {number(prefills)} of 1, {prefills:.1%} in use"
    yield (
        f"mixed slots: Σy_m = {number(beside)} of (B − 1)Σx = {number((slots - 1) * prefills)}, "
        f"{plan.mixed_use:.1%} in use"
    )
    yield (
        f"solo slots: Σy_s = {number(alone)} of B(1 − Σx) = {number(slots * (1 - prefills))}, "
        f"{plan.solo_use:.1%} in use"
    )
    yield (
        f"spread of x {number(plan.prefill_spread)}, of y_s {number(plan.solo_spread)}; TPOT by (47) "
        f"{number(plan.tpot_s)} s"
    )
    for one in plan.classes:
        name = one.name
        yield (
            f"class {name!r}: x = {number(plan.prefill[name])}, y_m = {number(plan.mixed[name])}, "
            f"y_s = {number(plan.solo[name])}, q_p = {number(plan.prefill_queue[name])}, "
            f"q_d = {number(plan.decode_queue_held[name])}"
        )
    yield "what one more unit of each bound is worth (at a kink, a value between both one-sided ones):"
    yield from (f"  - {price}" for price in plan.shadow_prices)
    yield f"the dual program agrees but for a share of {plan.duality_gap:.1e}"
    yield from hypotheses_text(plan.hypotheses)
