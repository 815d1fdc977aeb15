"""Optima and shadow prices of the linear programs of lin2026, Figures 2 and 8 to 10."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import polars as pl

from inferq.theory import AllocationPlan
from inferq_papers.lin2026 import pictures
from inferq_papers.lin2026.fleet import CLASSES, STAGES, Instance, Limits, Scheme, optimum, plan, planned
from inferq_papers.report import Chart, Row, Rows, Section, Table

WIDE, NARROW = Instance(), Instance(slots=8)
"""B = 16 as in section 6.2, B = 8 as in Figures 2 and 8 to 10."""
PER_REPLICA = "money/s per replica"
SCHEMES: tuple[Scheme, ...] = ("bundled", "separate")


def revenue(found: AllocationPlan) -> float:
    """R* of a feasible plan."""
    assert found.revenue_per_replica_s is not None
    return found.revenue_per_replica_s


def tpot_s(found: AllocationPlan) -> float:
    """The left side of (47)."""
    assert found.tpot_s is not None
    return found.tpot_s


def prices() -> Table:
    """Every shadow price of the four plans."""
    rows: dict[tuple[str, str], dict[str, float]] = {}
    units: dict[tuple[str, str], str] = {}
    for instance in (WIDE, NARROW):
        for scheme in SCHEMES:
            for shadow in plan(instance, scheme).shadow_prices:
                key = (shadow.constraint, shadow.request_class or "")
                units[key] = shadow.unit
                rows.setdefault(key, {})[f"{scheme}, B = {instance.slots}"] = shadow.price
    frame = pl.DataFrame(
        [
            {"constraint": f"{name} {of}".strip(), "unit": units[name, of], **found}
            for (name, of), found in rows.items()
        ]
    )
    return Table(
        title="Shadow prices: revenue per additional unit of each bound",
        frame=frame,
        note="Prices per replica. Prefill slots are never scarce; decode slots bind.",
    )


def plans_section() -> Section:
    """Section 6.2: optima, occupancies, prices."""
    rows = Rows()
    for instance in (WIDE, NARROW):
        where = f"Section 6.2, B = {instance.slots}"
        for scheme in SCHEMES:
            rows.add(
                where,
                f"optimum R*, {scheme}",
                PER_REPLICA,
                theory=optimum(instance, scheme),
                note="Figure 4a draws R* without a number"
                if instance is WIDE and scheme == "bundled"
                else "",
            )
        occupancies = planned(instance)
        for stage, symbol in (("prefill", "Σx*"), ("mixed", "Σy_m*"), ("solo", "Σy_s*")):
            rows.add(where, f"{symbol}, bundled", "requests per replica", theory=occupancies[stage])
    frame = pl.DataFrame(
        [
            {"B": instance.slots, "scheme": scheme, "class": name}
            | {stage: planned(instance, scheme)[f"{stage} {i}"] for stage in STAGES}
            for instance in (WIDE, NARROW)
            for scheme in SCHEMES
            for i, name in enumerate(CLASSES)
        ]
    )
    occupied = Table(
        title="Occupancies of a replica at the optimum",
        frame=frame,
        decimals=dict.fromkeys(STAGES, 4),
        note="x*, q_p*, Σy_m* and Σy_s* are unique. The split of the decodes by class is our choice: the "
        "same share of each class's tokens in solo slots. With separate prices the split of q_d* is our "
        "choice, too.",
    )
    offered = sum(
        rate * prompt * WIDE.mixed_s / WIDE.chunk for rate, prompt in zip(WIDE.rate, WIDE.prompt, strict=True)
    )
    x = plan(WIDE).prefill_use
    return Section(
        title="The plan (section 6.2)",
        text="The linear programs (40), in which a request pays when it finishes (*bundled*), and (42), in "
        "which prompt and output pay on completion of each (*separate*), solved by HiGHS. A test verifies "
        "each optimum: constraints in an independent formulation, dual feasible prices, complementary "
        "slackness, equal objectives, and enumeration of all vertices of the polytope.",
        rows=tuple(rows),
        tables=(occupied, prices()),
        remarks=(
            f"At B = 16 the plan's prefill capacity Σx* = {x:.4f} is {100 * (1 - x / offered):.1f} % below "
            f"the offered {offered:.4f}, so sometimes no request waits for a prefill.",
            "Decode slots bind; the single prefill slot of each replica does not: its price is 0.",
        ),
    )


def arrivals_section() -> Section:
    """Figure 2."""
    measured = replace(NARROW, solo_s=1 / 45.45)
    printed_optima: tuple[tuple[Scheme, float, str], ...] = (
        ("bundled", 300.2, "instance not stated; γ = 45.45, B = 8 gives the other number to its last digit"),
        ("separate", 452.9, "γ = 45.45 as printed in 6.1"),
    )
    rows = tuple(
        Row(
            where="Figure 2",
            what=f"OPT, {scheme}, λ = 1.2 in each class, B = 8",
            unit=PER_REPLICA,
            paper=printed,
            theory=optimum(replace(measured, rate=(1.2, 1.2)), scheme),
            note=note,
        )
        for scheme, printed, note in printed_optima
    )
    frame = pl.DataFrame(
        [
            {"scheme": scheme, "rate": rate, **_waiting(replace(NARROW, rate=(rate, rate)), scheme)}
            for scheme in SCHEMES
            for rate in (0.02 * step for step in range(2, 61))
        ]
    )
    full = frame.filter((pl.col("scheme") == "bundled") & (pl.col("prefill 1") > 1e-6))["rate"][0]
    return Section(
        title="Congestion by stage (Figure 2)",
        text="Both optima against the arrival rate λ of each class, and the waiting requests of the plan by "
        "stage. The figure states neither B nor n; its printed separate optimum is that of B = 8.",
        rows=rows,
        pictures=(
            Chart(
                title="Revenue and waiting requests against the arrival rate, B = 8",
                caption="Optima of (40) and (42). With separate prices both classes wait equally before "
                "their decode, by our choice: only the lost tokens are unique.",
                chart=lambda: pictures.arrivals(frame),
            ),
        ),
        remarks=(
            "The figure is confirmed: under bundled plans no request waits for a decode; separate plans "
            f"prefill every request and make it wait there. From λ ≈ {full:.2f} the revenue of a bundled "
            "plan is constant.",
        ),
    )


def _waiting(instance: Instance, scheme: Scheme) -> dict[str, float]:
    occupancies = planned(instance, scheme)
    queues = {
        f"{name} {i}": occupancies[f"{name}_queue {i}"] for name in ("prefill", "decode") for i in (0, 1)
    }
    return {"revenue": optimum(instance, scheme), **queues}


def _grid(low: float, high: float, steps: int) -> list[float]:
    return [low + (high - low) * step / steps for step in range(steps + 1)]


LIMITS = (
    ("prefill fairness η1", "prefill_fairness", "prefill fairness", _grid(0, 0.3, 60)),
    ("decode fairness η2", "decode_fairness", "decode fairness", _grid(0, 6, 60)),
    ("TPOT limit η3, s", "tpot_s", "TPOT limit", _grid(0.022, 0.025, 60)),
)


def limits_section() -> Section:
    """Figure 8."""
    frame = pl.DataFrame(
        [
            {
                "limit": title,
                "B": f"B = {instance.slots}",
                "value": value,
                "revenue": optimum(instance, "bundled", Limits(**{argument: value})),
                "price": plan(instance, "bundled", Limits(**{argument: value})).price(name),
            }
            for title, argument, name, values in LIMITS
            for instance in (NARROW, WIDE)
            for value in values
        ]
    )
    cases = (
        ("Figure 8a", "prefill_fairness", "prefill fairness", (0.0, 0.1), "prefill of spread"),
        ("Figure 8b", "decode_fairness", "decode fairness", (0.0, 0.5), "decode of spread"),
        ("Figure 8c", "tpot_s", "TPOT limit", (0.0221, 0.0235), "second of TPOT"),
    )
    rows = [row for case in cases for row in _limited(*case)]
    lost = {
        (instance.slots, name): 1 - optimum(instance, "bundled", Limits(**{name: 0.0})) / optimum(instance)
        for instance in (NARROW, WIDE)
        for name in ("prefill_fairness", "decode_fairness")
    }
    close, far = (
        plan(NARROW, "bundled", Limits(tpot_s=value)).price("TPOT limit") for value in (0.0221, 0.0235)
    )
    return Section(
        title="Cost of service levels (Figure 8)",
        text="One limit at a time on the bundled plan: (43), (45), and (47), which is equivalent to a "
        "linear constraint. The figure's axes are those of B = 8; the instance of section 6.2 has B = 16. "
        "It has no numbers.",
        rows=tuple(rows),
        pictures=(
            Chart(
                title="Pareto frontiers and shadow prices",
                caption="Above: the optimum under one limit. Below: its slope, the shadow price from the "
                "dual program.",
                chart=lambda: pictures.frontiers(frame, [title for title, *_ in LIMITS]),
            ),
        ),
        remarks=(
            f"Equal prefills (η1 = 0) cost {100 * lost[8, 'prefill_fairness']:.0f} % of revenue at B = 8 and "
            f"{100 * lost[16, 'prefill_fairness']:.0f} % at B = 16, but not because prefill is the "
            "bottleneck, as in section 6.4: a prefill slot has price 0 in the unconstrained "
            "plan. A prefill-heavy request requires ten times the prefill, so equal x_i rejects most of "
            "that class.",
            f"Equal solo decodes (η2 = 0) cost {100 * lost[8, 'decode_fairness']:.1f} % at B = 8, the "
            '"nearly flat" '
            f"frontier of Figure 8b, and {100 * lost[16, 'decode_fairness']:.1f} % at B = 16, where it is "
            "not flat.",
            f"The price of TPOT grows towards 1/γ as in the paper: {far:,.0f} per second at 0.0235 s, "
            f"{close:,.0f} at 0.0221 s. It jumps when the limit leaves prefill only for the decode-heavy "
            "class, which earns more per second of prefill; on either side it is nearly constant.",
            "(47) averages the iteration over all slots, used or not. Over tokens the mean is lower, because "
            "fast slots produce more tokens.",
        ),
    )


def _limited(where: str, argument: str, name: str, values: tuple[float, ...], unit: str) -> Iterator[Row]:
    for instance in (NARROW, WIDE):
        for value in values:
            found = plan(instance, "bundled", Limits(**{argument: value}))
            at = f"{where}, B = {instance.slots}"
            yield Row(
                where=at,
                what=f"revenue, {name} {value:g}",
                unit=PER_REPLICA,
                theory=revenue(found),
                note="the figure has no numbers; its axes are those of B = 8",
            )
            yield Row(
                where=at,
                what=f"shadow price, {name} {value:g}",
                unit=f"money/s per {unit}",
                theory=found.price(name),
                note="the paper derives it from the slope",
            )


def hardware_section() -> Section:
    """Figure 9."""
    sweeps: tuple[tuple[str, str, list[Any], Any], ...] = (
        ("batch B", "slots", list(range(2, 36)), lambda value: value),
        ("α, s", "alpha_s", _grid(0.001, 0.1, 40), lambda value: value),
        ("β, s per token", "beta_s", _grid(0.00001, 0.001, 40), lambda value: value),
        ("γ, tokens/s", "solo_s", _grid(1, 50, 49), lambda value: 1 / value),
    )
    frame = pl.DataFrame(
        [
            {
                "parameter": title,
                "value": float(value),
                "revenue": optimum(made),
                "tpot_ms": 1000 * tpot_s(plan(made)),
            }
            for title, argument, values, as_field in sweeps
            for value in values
            for made in (replace(NARROW, **{argument: as_field(value)}),)
        ]
    )
    everything = sum(
        rate * (NARROW.prices[0] * prompt + NARROW.prices[1] * output)
        for rate, prompt, output in zip(NARROW.rate, NARROW.prompt, NARROW.output, strict=True)
    )
    enough = next(slots for slots in range(2, 64) if optimum(Instance(slots=slots)) > everything * (1 - 1e-9))
    rows = Rows()
    for slots in (8, 16, 32):
        note = '"saturates around B = 16"' if slots == 16 else ""
        earned = optimum(Instance(slots=slots))
        rows.add("Figure 9, B", f"revenue at B = {slots}", PER_REPLICA, theory=earned, note=note)
    for where, made in (
        ("α = 0.1", replace(NARROW, alpha_s=0.1)),
        ("β = 0.001", replace(NARROW, beta_s=0.001)),
        ("γ = 10", replace(NARROW, solo_s=0.1)),
    ):
        rows.add(
            f"Figure 9, {where}",
            "revenue, B = 8",
            PER_REPLICA,
            theory=optimum(made),
            note="the figure has no numbers; axes agree",
        )
        rows.add(f"Figure 9, {where}", "TPOT by (47), B = 8", "s", theory=tpot_s(plan(made)))
    # by the envelope theorem an additional slot per replica earns its shares of mixed and solo slots
    gains = {
        instance.slots: plan(instance).price("mixed slots") * plan(instance).prefill_use
        + plan(instance).price("solo slots") * (1 - plan(instance).prefill_use)
        for instance in (NARROW, WIDE)
    }
    return Section(
        title="Revenue by hardware parameter (Figure 9)",
        text="The optimum of (40) and its TPOT by (47) when one parameter changes. The panels of α, β and "
        "γ are those of B = 8: their revenue at α = 0.0174 is 220.6.",
        rows=tuple(rows),
        pictures=(
            Chart(
                title="Revenue and TPOT against batch size and the parameters of an iteration, B = 8",
                caption="Above revenue per replica and second, below TPOT on a logarithmic axis.",
                chart=lambda: pictures.hardware(frame, [title for title, *_ in sweeps]),
            ),
        ),
        remarks=(
            f"Revenue stops growing at B = {enough}, where all arrivals are served ({everything:g}); "
            "the paper prints around 16.",
            f"An additional slot per replica earns {gains[8]:.2f} at B = 8 and {gains[16]:.2f} at B = 16 by "
            f"the shadow prices; the next plans earn {optimum(Instance(slots=9)) - optimum(NARROW):.2f} "
            f"and {optimum(Instance(slots=17)) - optimum(WIDE):.2f} more (the last slot is not fully "
            "needed).",
        ),
    )


def configurations_section() -> Section:
    """Figure 10."""
    landscape = pl.DataFrame(
        [
            {"B": slots, "β": beta, "revenue": optimum(replace(NARROW, slots=slots, beta_s=beta))}
            for slots in range(2, 41, 2)
            for beta in _grid(0.00005, 0.001, 19)
        ]
    )
    pricing = pl.DataFrame(
        [
            {"c_p": c_p, "c_d": c_d, "revenue": optimum(replace(NARROW, prices=(c_p, c_d)))}
            for c_p in _grid(0.02, 0.3, 14)
            for c_d in _grid(0.02, 0.3, 14)
        ]
    )
    rows = Rows()
    best = {}
    for budget in (0.1, 0.2, 0.3):
        earned = {
            share: optimum(replace(NARROW, prices=(budget * share, budget * (1 - share))))
            for share in (0.001, *_grid(0.05, 0.95, 18), 0.999)
        }
        best[budget] = max(earned, key=lambda share: earned[share])
        rows.add(
            f"Figure 10b, c_p + c_d = {budget}",
            "best share of the budget on c_p",
            "1",
            theory=best[budget],
            note='"a unique, constant ratio"; no number is printed. Tested shares: 0.001 to 0.999',
        )
    rows.add(
        "Figure 10b",
        "revenue at c_p = c_d = 0.3, B = 8",
        PER_REPLICA,
        theory=optimum(replace(NARROW, prices=(0.3, 0.3))),
        note="the color scale ends above 500",
    )
    assert math.isclose(min(best.values()), max(best.values())), "R* scales with the prices"
    return Section(
        title="Configurations and prices (Figure 10)",
        text="The optimum of (40) over memory and speed, and over both prices.",
        rows=tuple(rows),
        pictures=(
            Chart(
                title="Revenue over B and β, and over both prices",
                caption="Left: prices of section 6.2. Right: B = 8; the dashed line is a budget of 0.3.",
                chart=lambda: pictures.landscapes(landscape, pricing),
            ),
        ),
        remarks=(
            "The best ratio of prices on a budget c_p + c_d = k is the same for every k, as the paper "
            "finds, which follows without data: R* is homogeneous in the prices. But it is no balance: R* is "
            "a maximum of functions that are linear in the prices, hence convex, and a convex function on a "
            "line is largest at an end. The best plan spends the whole budget on one price, here c_p: the "
            f"best tested share is {100 * best[0.3]:.1f} %.",
        ),
    )
