"""Simulated occupancies and revenue of lin2026's policies, Figures 4 to 7."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from inferq import Interval
from inferq_papers.lin2026 import pictures
from inferq_papers.lin2026.fleet import (
    CLASSES,
    GREEDY,
    POLICIES,
    PRIORITY,
    SLI_AWARE,
    STAGES,
    Effort,
    Limits,
    Policy,
    Scheme,
    estimated,
    optimum,
    plan,
    planned,
)
from inferq_papers.lin2026.planning import NARROW, PER_REPLICA, SCHEMES, WIDE
from inferq_papers.report import Chart, Row, Rows, Section, Table, with_half_width

SERIES: tuple[tuple[str, Policy, Scheme], ...] = (
    ("gate-and-route, bundled", GREEDY, "bundled"),
    ("gate-and-route, separate", GREEDY, "separate"),
    ("prioritize-and-route, separate", PRIORITY, "separate"),
)
ROW_SIZES = (5, 20, 50, 200, 500)
"""Figure 4's n."""
FAIR = replace(SLI_AWARE, limits=Limits(decode_fairness=4.0))
GENERAL = Policy("occupancy", "general")
SLOW_ALONE = replace(WIDE, solo_s=0.1)
"""γ = 10, the least of section 6.3: γτ = 0.33, below (B − 1)/B."""


def convergence_section(effort: Effort) -> Section:
    """Figure 4."""
    values, rows = [], Rows()
    shares: dict[tuple[int, str, int], Interval] = {}
    for instance in (WIDE, NARROW):
        for n in effort.sizes:
            for name, policy, scheme in SERIES:
                found, best = estimated(effort, instance, n, policy)[scheme], optimum(instance, scheme)
                share = shares[instance.slots, name, n] = found.over(best)
                values.append((instance.slots, n, name, share.mean, share.half_width))
    for name, policy, scheme in SERIES:
        for n in ROW_SIZES:
            found = estimated(effort, WIDE, n, policy)[scheme]
            note = (
                "Figure 4a draws curves to R* without numbers" if policy is GREEDY else "Theorem 3; no figure"
            )
            rows.add(
                f"Figure 4a, n = {n}",
                f"revenue, {name}",
                PER_REPLICA,
                found,
                theory=optimum(WIDE, scheme),
                note=note,
            )
    held = planned(WIDE)
    for n in (50, 500):
        found_all = estimated(effort, WIDE, n, GREEDY)
        for stage, what in (("prefill_queue", "before prefill"), ("decode_queue", "before decode")):
            for i, name in enumerate(CLASSES):
                rows.add(
                    f"Figure 4, queues, n = {n}",
                    f"{name} waiting {what}",
                    "requests per replica",
                    found_all[f"{stage} {i}"],
                    theory=held[f"{stage} {i}"],
                    note='"the decode buffer remains negligible"' if stage == "decode_queue" else "",
                )
    frame = pl.DataFrame(values, schema=["B", "n", "measure", "share", "half"], orient="row")
    largest = effort.sizes[-1]
    wide, narrow = (shares[slots, SERIES[0][0], largest] for slots in (16, 8))
    return Section(
        title="Convergence in n (Figure 4)",
        text="Gate-and-route is the occupancy gate and the greedy router with the plan of (40), "
        "prioritize-and-route the priority gate with the plan of (42).",
        rows=tuple(rows),
        tables=tuple(_shares_table(frame, slots) for slots in (16, 8)),
        pictures=(
            Chart(
                title="Revenue over the optimum against n",
                caption="Vertical bars are 99 % intervals; the dashed line is the optimum.",
                chart=lambda: pictures.convergence(frame, effort.sizes),
            ),
        ),
        remarks=(
            f"**The theorems hold, slowly.** At B = 16 and n = {largest:,} bundled revenue is "
            f"{100 * (1 - wide.mean):.1f} % below the optimum: prefill capacity is only 0.6 % below the "
            "offered load, so sometimes no request waits for a prefill, and the decode buffer does not "
            "vanish.",
            f"**At B = 8 the plan is hard to follow**: {100 * narrow.mean:.1f} % of the bundled optimum at "
            f"n = {largest:,}. It restricts the decode-heavy class to x* = "
            f"{planned(NARROW)['prefill 0']:.4f}, about one prefill at n = 200, and serves the prefill-heavy "
            "class in full. Whenever the prefill-heavy queue is empty, the work-conserving gate assigns a "
            "free prefill slot to the decode-heavy class, and each such "
            "prefill adds 1,000 tokens to decode; these requests abandon in the decode buffer. Fluctuations "
            "of the number of prefills are of order √n, the target of order n.",
            "At B = 8 the separate revenue of gate-and-route falls towards "
            f"{_bundled_plan_separately():.3f}, the separate revenue of the bundled plan: it follows a plan "
            "for a different objective.",
        ),
    )


def _bundled_plan_separately() -> float:
    """The separate revenue of the bundled plan at B = 8, over the separate optimum."""
    held = planned(NARROW)
    prefill = sum(
        NARROW.prices[0] * NARROW.prompt[i] * NARROW.prefill_rate(i) * held[f"prefill {i}"] for i in (0, 1)
    )
    tokens = held["mixed"] / NARROW.mixed_s + held["solo"] / NARROW.solo_s
    return (prefill + NARROW.prices[1] * tokens) / optimum(NARROW, "separate")


def _cell() -> pl.Expr:
    """A share and the half-width of its interval as text."""
    return (
        pl.struct("share", "half")
        .map_elements(lambda pair: f"{pair['share']:.4f} ± {pair['half']:.4f}", return_dtype=pl.String)
        .alias("cell")
    )


def _shares_table(frame: pl.DataFrame, slots: int) -> Table:
    here = frame.filter(pl.col("B") == slots).with_columns(_cell())
    return Table(
        title=f"Revenue over the optimum, B = {slots}",
        frame=here.pivot("measure", index="n", values="cell"),
    )


def occupancies_section(effort: Effort) -> Section:
    """Figures 5 and 6, and the SLI-aware policy under decode fairness."""
    largest = effort.sizes[-1]
    sizes = tuple(dict.fromkeys((50, 500, largest)))
    targets = planned(WIDE)
    names = [*STAGES, *(f"{stage} {i}" for stage in ("prefill", "mixed", "solo") for i in (0, 1))]
    columns: dict[str, list[str]] = {"per replica": names, "plan": [f"{targets[name]:.4f}" for name in names]}
    for router, policy in (("greedy", GREEDY), ("SLI-aware", SLI_AWARE)):
        for n in sizes:
            found = estimated(effort, WIDE, n, policy)
            columns[f"{router}, n = {n:,}"] = [with_half_width(found[name], 4) for name in names]
    rows = Rows()
    for figure, policy in (("Figure 5", GREEDY), ("Figure 6", SLI_AWARE)):
        found = estimated(effort, WIDE, 500, policy)
        for stage, symbol in (("prefill", "x"), ("mixed", "y_m"), ("solo", "y_s")):
            rows.add(
                f"{figure}, n = 500",
                f"Σ{symbol}",
                "requests per replica",
                found[stage],
                theory=targets[stage],
            )
            for i in (0, 1):
                note = "no number in the figure"
                if policy is GREEDY and stage != "prefill":
                    note = "not unique at the optimum: no router must approach it"
                rows.add(
                    f"{figure}, n = 500",
                    f"{symbol}_{i}",
                    "requests per replica",
                    found[f"{stage} {i}"],
                    theory=targets[f"{stage} {i}"],
                    note=note,
                )
    fair, points = planned(WIDE, "bundled", FAIR.limits), []
    # the limit does not change x* and q_p*, the only inputs of greedy
    for router, policy in (("greedy", GREEDY), ("SLI-aware", FAIR)):
        for n in sizes:
            found = estimated(effort, WIDE, n, policy)
            for stage in ("mixed", "solo"):
                for i, name in enumerate(CLASSES):
                    one = found[f"{stage} {i}"]
                    place, aim = f"{stage}, {name}", fair[f"{stage} {i}"]
                    points.append((place, router, f"{n:,}", aim, one.mean, one.low, one.high))
    found = estimated(effort, WIDE, 500, FAIR)
    spread = abs(found["solo 0"].mean - found["solo 1"].mean)
    greedy = estimated(effort, WIDE, 500, GREEDY)
    rows.add(
        "Section 5, (45), n = 500",
        "revenue, SLI-aware, decode fairness 4",
        PER_REPLICA,
        found["bundled"],
        theory=optimum(WIDE, "bundled", FAIR.limits),
        note="our instance of Theorem 4",
    )
    for stage, symbol in (("mixed", "y_m"), ("solo", "y_s")):
        for i in (0, 1):
            rows.add(
                "Section 5, (45), n = 500",
                f"{symbol}_{i}, SLI-aware, decode fairness 4",
                "requests per replica",
                found[f"{stage} {i}"],
                theory=fair[f"{stage} {i}"],
                note="our instance of Theorem 4",
            )
    columns_of = ["place", "router", "n", "plan", "mean", "low", "high"]
    frame = pl.DataFrame(points, schema=columns_of, orient="row")
    return Section(
        title="Occupancies under both routers (Figures 5 and 6)",
        text="B = 16. The greedy router (gate-and-route) and the randomized one (SLI-aware, section 5.1), "
        "both with the occupancy gate, first with the plan of (40), then with that under decode fairness "
        "η2 = 4, which does not reduce revenue.",
        rows=tuple(rows),
        tables=(
            Table(
                title="Requests per replica by stage (0: decode-heavy, 1: prefill-heavy)",
                frame=pl.DataFrame(columns),
            ),
        ),
        pictures=(
            Chart(
                title="Decodes by class under decode fairness η2 = 4",
                caption="Dashed: the plan. The randomized router tracks it, the greedy router mixes the "
                "classes in order of arrival. Bars are 99 % intervals.",
                chart=lambda: pictures.occupancies(frame),
            ),
        ),
        remarks=(
            "**The SLI-aware router works as intended.** The sums are unique, their split by class is not. "
            "Greedy mixes the classes in order of arrival. The randomized router tracks the plan by class "
            "at a small cost: each pool has its own buffer, and fewer mixed slots are in "
            f"use. Under η2 = 4 its solo decodes differ by {spread:.2f} between the classes at n = 500, "
            f"those of the greedy router by {abs(greedy['solo 0'].mean - greedy['solo 1'].mean):.2f}.",
            "The last tick of Figures 5 and 6 for y_m,1 is 2.5, below the 3.2 of a vertex of the optima of "
            "(40) that serves class 1 only in mixed slots: the paper's solver probably returned "
            "another split of the same sums.",
        ),
    )


def policies_section(effort: Effort) -> Section:
    """Figure 7."""
    values, rows = [], Rows()
    shares: dict[tuple[int, str, str], float] = {}
    for instance, n in ((WIDE, 500), (NARROW, 200)):
        for name, policy in POLICIES.items():
            found = estimated(effort, instance, n, policy)
            for scheme in SCHEMES:
                share = found[scheme].over(optimum(instance, scheme))
                shares[instance.slots, name, scheme] = share.mean
                values.append((instance.slots, n, name, scheme, share.mean, share.half_width))
    for name, policy in POLICIES.items():
        rows.add(
            "Figure 7, n = 500",
            f"bundled revenue, {name}",
            PER_REPLICA,
            estimated(effort, WIDE, 500, policy)["bundled"],
            theory=optimum(WIDE),
            note="not comparable: the paper specifies neither the instances nor the normalized revenue",
        )
    frame = pl.DataFrame(values, schema=["B", "n", "policy", "scheme", "share", "half"], orient="row")
    column = pl.format("{}, B = {}, n = {}", "scheme", "B", "n").alias("column")
    wide = frame.with_columns(_cell(), column).pivot("column", index="policy", values="cell")
    coupled, ours = (
        {slots: shares[slots, name, "bundled"] for slots in (16, 8)}
        for name in ("GI-WSP, queue gate", "GG-SP, occupancy gate")
    )
    return Section(
        title="Baselines and ablations (Figure 7)",
        text="The policies of section 6.3, with the plan of (40) if they use one. That section calls "
        'the gate "queue-length based", section 4.1 has an occupancy gate: both are included.',
        rows=tuple(rows),
        tables=(Table(title="Revenue over the optimum", frame=wide),),
        pictures=(
            Chart(
                title="Both revenues over their optima, by policy",
                caption="Bars are 99 % intervals; the dashed line is the optimum.",
                chart=lambda: pictures.policies(frame, list(POLICIES)),
            ),
        ),
        remarks=(
            "**Coupling is not the cause of the loss.** If only finished requests pay, GI-WSP, without plan "
            f"or routing, earns {100 * coupled[16]:.1f} % and {100 * coupled[8]:.1f} % of the optimum at B = "
            f"16 and 8, gate-and-route {100 * ours[16]:.1f} % and {100 * ours[8]:.1f} % (if prompt and "
            "output pay separately, it earns less at B = 8). A prefill that keeps its slot for the "
            "decode can start only with a free slot, so no request waits for a decode, every slot is busy, "
            "and the gate only chooses the class.",
            "The paper's figure has GG-SP first. With the policies as described in section 6.3 the order on "
            "this instance differs. Revenue is lost without a gate (FI-WSP, FG-SP) if decode slots are "
            "scarce, and with priority for prefills (GF-WSP) if only finished requests pay.",
            '**Two gates.** Section 4.1 compares occupancies, section 6.3 has a "queue-length based" gate '
            ""
            "without a formula; interpreted as the largest Q_i − n q_p,i*, it is the better gate here.",
        ),
    )


def hypothesis_section(effort: Effort) -> Section:
    """An instance to which Proposition 1 does not apply."""
    n = 200
    routers = {"greedy": ("gate-and-route", GREEDY), "general": ("general SLI-aware (EC.6)", GENERAL)}
    found = {router: estimated(effort, SLOW_ALONE, n, policy) for router, (_, policy) in routers.items()}
    share = {router: one["bundled"].over(optimum(SLOW_ALONE)).mean for router, one in found.items()}
    usual = estimated(effort, WIDE, n, GREEDY)["bundled"].over(optimum(WIDE)).mean
    held = planned(SLOW_ALONE)
    names = [f"{stage} {i}" for stage in STAGES for i in (0, 1)]
    columns = {"per replica": names, "plan": [f"{held[name]:.4f}" for name in names]}
    columns |= {
        f"{router}, n = {n}": [with_half_width(one[name], 4) for name in names]
        for router, one in found.items()
    }
    efficiency = plan(SLOW_ALONE).hypotheses[0]
    return Section(
        title="Outside Proposition 1",
        text=f"Section 6.3 goes down to γ = 10. With τ of section 6.2 this violates the hypothesis of "
        f"Proposition 1, γτ ≥ (B − 1)/B: {efficiency.why}. B = 16, n = {n}.",
        rows=tuple(
            Row.seen(
                "Section 6.3, γ = 10",
                f"bundled revenue, {name}",
                PER_REPLICA,
                found[router]["bundled"],
                theory=optimum(SLOW_ALONE),
                note="γτ < (B − 1)/B: Proposition 1 does not hold, so Theorem 2 does not apply"
                if router == "greedy"
                else "made for plans with q_d* > 0",
            )
            for router, (name, _) in routers.items()
        ),
        tables=(
            Table(
                title="Requests per replica by stage (0: decode-heavy, 1: prefill-heavy)",
                frame=pl.DataFrame(columns),
            ),
        ),
        remarks=(
            f"Gate-and-route earns {100 * share['greedy']:.1f} % of the optimum, against {100 * usual:.1f} "
            "% with γ = 45.45. The best plan prefills decode-heavy requests to obtain mixed "
            f"slots, in which a decode is faster, and lets {held['decode_queue 0']:.1f} of them per replica "
            "wait for a decode until they abandon (q_d* of the other class is "
            f"{held['decode_queue 1']:.0f}). A first-come, first-served buffer cannot restrict "
            "one class.",
            "The router of EC.6 draws the class for a freed slot by the plan's weights "
            f"and can: it earns {100 * share['general']:.1f} %.",
        ),
    )
