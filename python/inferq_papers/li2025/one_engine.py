"""Which schedulers serve every load that the hardware can serve? li2025 section 3 and Figure 1."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import inferq as iq
from inferq._lazy import alt, np, pl
from inferq.display import style
from inferq.interval import Interval
from inferq.theory.capacities.sequence_capacity import request_level_capacity, sequence_capacity
from inferq.theory.capacities.token_capacity import token_capacity
from inferq.theory.demands.demand import RequestClass
from inferq.theory.runs.observed import observed
from inferq.timing import TimingModel
from inferq_papers.edge import edge, unit
from inferq_papers.report import Picture, Row, Section, Table, interval

Tell = Callable[[str], None]

PROMPT_TOKENS, OUTPUT_TOKENS, TOKEN_BUDGET = 129, 112, 512
TIMING = iq.PiecewiseLinear(base=0.0455, per_token=0.0003, knee=64)
"""li2025 section 2.1: c = 45.5 ms, a = 0.30 ms a token, b0 = 64 tokens (the text swaps two units)."""
CHAT = RequestClass(rate=1.0, prompt=PROMPT_TOKENS, output=OUTPUT_TOKENS)
LIMIT = token_capacity(CHAT, TIMING, token_budget=TOKEN_BUDGET, first_token="decode").capacity_per_s
"""b / (t_b (m_p + m_d)), (2.7): 11.81 requests a second."""

PER_S = "requests/s"
MIXES, APART = "mixes prompts and decodes", "does not"
CAPPED = "mixes, but has too few seats to fill its budget"


@dataclass(frozen=True)
class Sizes:
    """How long the runs are."""

    requests: int
    steps: int
    tolerance: float
    """The share of the arrivals that may stay in a system that is taken for stable."""

    @classmethod
    def of(cls, quick: bool) -> Sizes:
        """Those of a quick or a full report."""
        return cls(60_000, 6, 0.005) if quick else cls(400_000, 9, 0.002)


@dataclass(frozen=True)
class Policy:
    """A policy, and what theory says about it."""

    name: str
    scheduler: iq.Scheduler
    kind: str
    theory: float | None
    note: str = ""


def policies() -> list[Policy]:
    """Those of section 3 under one budget: with seats for 512 requests, and with their default caps."""
    b = TOKEN_BUDGET
    found = [
        Policy("Sarathi, 512 seats", iq.Sarathi(token_budget=b, max_seqs=512), MIXES, LIMIT),
        Policy(
            "Orca, 512 seats",
            iq.research.Orca(token_budget=b, chunked=True, max_seqs=512),
            MIXES,
            LIMIT,
            "with `chunked=True`; whole prompts would leave the end of a budget empty",
        ),
        Policy("KFcfs, no cap", iq.research.KFcfs(token_budget=b, k_prefill=b, k_decode=b), MIXES, LIMIT),
        Policy(
            "VllmV0, 512 seats",
            iq.VllmV0(token_budget=b, max_seqs=512),
            APART,
            None,
            "prompts and decodes apart: no closed form; the paper says only that it may be unstable",
        ),
    ]
    for size in (64, 128, 256):
        scheduler = iq.research.FasterTransformer(max_seqs=size)
        by_hand = request_level_capacity(CHAT, engine(scheduler)).capacity_per_s
        note = "the paper states no limit on the batch; theory is that of full batches"
        found.append(Policy(f"FasterTransformer, {size} seats", scheduler, APART, by_hand, note))
    for name, capped in (
        ("Sarathi, 128 seats (default)", iq.Sarathi(token_budget=b)),
        ("Orca, 128 seats (default)", iq.research.Orca(token_budget=b, chunked=True)),
    ):
        bound = sequence_capacity(CHAT, engine(capped))
        assert bound.stable_below_per_s is not None
        note = f"theory: what no policy passes with 128 seats; sure are {bound.stable_below_per_s:.2f}"
        found.append(Policy(name, capped, CAPPED, bound.capacity_per_s, note))
    default = iq.VllmV0(token_budget=b)
    found.append(Policy("VllmV0, 256 seats (default)", default, APART, None, "no closed form"))
    return found


def engine(scheduler: iq.Scheduler, timing: TimingModel = TIMING, first_token: Any = "decode") -> iq.Engine:
    """An engine without a limit of memory, which counts a decode for each output token, as the paper does."""
    return iq.Engine(timing=timing, scheduler=scheduler, kv=iq.KvCache.unlimited(), first_token=first_token)


def poisson(requests: int, **lengths: Any) -> iq.Workload:
    """One arrival a second."""
    if not lengths:
        lengths = {"prompt": iq.dist.Fixed(PROMPT_TOKENS), "output": iq.dist.Fixed(OUTPUT_TOKENS)}
    return iq.Workload.synthetic(requests=requests, arrivals=iq.dist.Poisson(1.0), **lengths)


def found_edge(
    system: iq.Engine | iq.Cluster, asked: iq.Workload, low: float, high: float, sizes: Sizes
) -> Interval:
    """The largest stable rate between two, by bisection.

    Beyond its edge μ a system is always busy and lets requests go at μ whatever the arrivals do, so that the
    bisection ends where λ − μ is the share of λ that it tolerates: μ is that much below its end. The interval
    is that of what leaves in 20 parts of a run that is overloaded by 3 %, with the last step on top, and the
    tolerated share, within which the arrivals' waves can hide or feign a drift.
    """
    end = edge(
        lambda rate: iq.simulate(asked.speed(rate), system),
        low,
        high,
        steps=sizes.steps,
        tolerance=sizes.tolerance,
    )
    rate = end.rate * (1 - sizes.tolerance)
    busy = iq.simulate(asked.speed(1.03 * rate), system).requests
    last_s = float(busy["arrival_s"][-1])
    edges_s = np.linspace(last_s / 4, last_s, 21)
    gone = np.diff(np.searchsorted(np.sort(busy["left_s"].to_numpy()), edges_s)) / np.diff(edges_s)
    unsure = end.step + sizes.tolerance * rate
    served = interval(gone.tolist())
    return replace(served, mean=rate, half_width=served.half_width + unsure)


def edge_row(
    where: str,
    what: str,
    theory: float | None,
    system: iq.Engine | iq.Cluster,
    asked: iq.Workload,
    sizes: Sizes,
    tell: Tell,
    note: str = "",
) -> Row:
    """A row: the largest stable rate of a system beside the theory's."""
    tell(f"{where}: {what}")
    low, high = (0.5 * LIMIT, 1.1 * LIMIT) if theory is None else (0.9 * theory, 1.1 * theory)
    found = found_edge(system, asked, low, high, sizes)
    return Row.seen(where, what, PER_S, found, theory=theory, note=note)


def figure_1(sizes: Sizes, tell: Tell) -> Section:
    """Section 3 and Figure 1: which policies are stable up to the limit."""
    asked = unit(poisson(sizes.requests))
    given = policies()
    rows = [
        edge_row("Section 3", one.name, one.theory, engine(one.scheduler), asked, sizes, tell, one.note)
        for one in given
    ]
    rates = {row.what: row.simulation or 0.0 for row in rows}
    shown = [one for one in given if one.kind == MIXES or (one.kind == APART and "default" not in one.name)]
    audit_rows, short = [], unit(poisson(min(sizes.requests, 40_000)))
    for one in shown:
        audited = iq.simulate(short.speed(0.98 * LIMIT), engine(one.scheduler)).work_conservation(
            TOKEN_BUDGET
        )
        audit_rows.append(
            {
                "policy": one.name,
                "work left undone, %": 100 * audited.share,
                "no seat free, %": 100 * audited.cap_share,
            }
        )
    audit = pl.DataFrame(audit_rows)
    curves, growth_rows = crowds(min(sizes.requests, 40_000))
    prompts_s = 256 * PROMPT_TOKENS / TOKEN_BUDGET * iteration_s(TOKEN_BUDGET)
    budgeted = 256 / (prompts_s + OUTPUT_TOKENS * iteration_s(256))
    seats = sequence_capacity(CHAT, TIMING, max_seqs=128, token_budget=TOKEN_BUDGET, first_token="decode")
    undone = dict(audit.select("policy", "work left undone, %").iter_rows())
    mixing = max(undone[one.name] for one in given if one.kind == MIXES)
    mixes = [rates[one.name] / LIMIT for one in given if one.kind == MIXES]
    limits = Table(
        title="Work left undone at 0.98 of the limit",
        frame=audit,
        decimals={name: 1 for name in audit.columns[1:]},
        note="Shares of iterations below the budget: although another token could have been added, and "
        "because no seat was free.",
    )
    return Section(
        title="Which schedulers serve every load that the hardware can serve? Section 3, Figure 1",
        text=(
            f"An iteration of n tokens takes t(n) = 45.5 ms + 0.30 ms · max(0, n − 64), (2.3); requests have "
            f"{PROMPT_TOKENS} prompt and {OUTPUT_TOKENS} output tokens, the lengths of Figure 1, and "
            f"m_d = {OUTPUT_TOKENS} decodes follow a prompt; the budget is b = {TOKEN_BUDGET} tokens; memory "
            f"has no limit. The theory, (2.7) and (2.8): no policy whose batches hold at most b tokens is "
            f"stable beyond b/(t(b)·(m_p + m_d)) = {LIMIT:.2f} requests a second, and policies that fill "
            f"their budget whenever they can are stable up to it. The largest stable rate is found by "
            f"bisection with {sizes.requests:,} requests a run, each run judged by `iq.theory.observed`."
        ),
        rows=(
            Row(
                where="Figure 1",
                what="arrival rate shown",
                unit=PER_S,
                paper=14.3,
                note="CodeLlama-34B on an A100: its c, a and b0 are not given. Here Llama-3-70B on two A100, "
                "for which section 2.1 gives them; only the order of the curves can be compared",
            ),
            *rows,
            *growth_rows,
        ),
        tables=(limits,),
        pictures=(
            Picture(
                title="The largest stable rate of each policy",
                caption="Bars: simulation. Dashed: the limit (2.7). FasterTransformer may pass it: its "
                "iteration of prompts is larger than the budget.",
                chart=lambda: rates_chart(given, rates),
            ),
            Picture(
                title=f"Requests in the system at {CROWD_RATE} per second",
                caption="Figure 1 for our parameters: below the limit, and beyond what the others sustain.",
                chart=lambda: crowds_chart(curves),
            ),
        ),
        remarks=(
            f"**The theorem holds.** The three policies that mix prompts and decodes and fill their budget "
            f"reach {100 * min(mixes):.1f} % of the limit or more. The audit finds work left undone in "
            f"{mixing:.1f} % of their iterations, and in {undone['VllmV0, 512 seats']:.1f} % of VllmV0's.",
            "**FasterTransformer depends on its batch size S**, which the paper does not state. Full "
            "batches one after another serve S / (t(S·m_p) + m_d·t(S)), which is what comes out. At S = "
            "256 that is *above* the limit, and no contradiction: its one iteration of prompts loads "
            f"{256 * PROMPT_TOKENS:,} tokens, far beyond the budget of {TOKEN_BUDGET}, so it pays the base "
            f"cost once where others pay it {math.ceil(256 * PROMPT_TOKENS / TOKEN_BUDGET)} times. With "
            f"prompts in batches of {TOKEN_BUDGET} it would serve {budgeted:.2f}. Taken literally, decodes "
            "before any prefill and one batch of prompts at a time, it would serve far less.",
            "**A cap on sequences can cost more than a poor policy.** A full budget needs "
            f"{math.floor(TOKEN_BUDGET * (1 + OUTPUT_TOKENS) / (PROMPT_TOKENS + OUTPUT_TOKENS))} requests "
            "at once. With S seats no scheduler passes one request for each m·t(n)/n seconds at n = "
            "S·m/(1 + m_d) tokens an iteration: a request holds a seat for m_d + 1 iterations at least. For "
            f"the usual default of 128 that is {seats.capacity_per_s:.2f}, "
            f"{100 * (1 - seats.capacity_per_s / LIMIT):.0f} % below the limit; a scheduler that uses every "
            f"seat and token is sure to serve {seats.stable_below_per_s:.2f} (`sequence_capacity`). Orca stays below "
            "the bound: prompts come first, and a decode that finds no budget left keeps its seat longer.",
            f"**How a rate is found.** A run counts as stable while less than {100 * sizes.tolerance:.1f} % "
            "of its arrivals stay in the system; a rate at which just so many stay is above the limit by "
            "that share, which is taken off.",
        ),
    )


CROWD_RATE = 11.6
"""Requests a second of Figure 1's kind of picture: below the limit, above what VllmV0 sustains."""


def iteration_s(tokens: int) -> float:
    """t(n) = c + a·max(0, n − b0), li2025 (2.3)."""
    return TIMING.base + TIMING.per_token * max(0, tokens - TIMING.knee)


def crowds(requests: int) -> tuple[pl.DataFrame, list[Row]]:
    """The number in the system over time under three policies, and its growth as rows."""
    asked = unit(poisson(requests)).speed(CROWD_RATE)
    frames, rows = [], []
    for one in policies():
        if one.name not in ("Sarathi, 512 seats", "VllmV0, 512 seats", "FasterTransformer, 128 seats"):
            continue
        result = iq.simulate(asked, engine(one.scheduler))
        arrival_s, left_s = (np.sort(result.requests[name].to_numpy()) for name in ("arrival_s", "left_s"))
        at = np.linspace(0, arrival_s[-1], 400)
        present = np.searchsorted(arrival_s, at, side="right") - np.searchsorted(left_s, at, side="right")
        frames.append(pl.DataFrame({"policy": one.name, "second": at, "requests": present}))
        seen = observed(result)
        half_width = None
        if seen.low_per_s is not None and seen.high_per_s is not None:
            half_width = (seen.high_per_s - seen.low_per_s) / 2
        rows.append(
            Row(
                where="Figure 1",
                what=f"growth of the number in the system at {CROWD_RATE}/s, {one.name}",
                unit="requests/s",
                theory=None if one.theory is None else max(0.0, CROWD_RATE - one.theory),
                simulation=seen.drift_per_s,
                half_width=half_width,
                note="no closed form" if one.theory is None else "",
            )
        )
    return pl.concat(frames), rows


def rates_chart(given: Sequence[Policy], rates: dict[str, float]) -> Any:
    """Bars beside the line of the theory."""
    colors = {MIXES: style.BLUE, CAPPED: style.SKY, APART: style.GRAY}
    rank = {kind: place for place, kind in enumerate((MIXES, APART, CAPPED))}
    ordered = sorted(given, key=lambda one: (rank[one.kind], -rates[one.name]))
    data = pl.DataFrame([{"policy": one.name, "kind": one.kind, "rate": rates[one.name]} for one in ordered])
    bars = alt.Chart(data).encode(
        x=alt.X("rate:Q", title="largest stable rate, requests per second", scale=alt.Scale(domain=[0, 13])),
        y=alt.Y("policy:N", sort=[one.name for one in ordered], title=None, axis=alt.Axis(labelLimit=300)),
    )
    color = style.colored("kind", colors, direction="vertical")
    numbers = bars.mark_text(align="right", dx=-34, fontWeight="bold").encode(
        text=alt.Text("rate:Q", format=".2f"),
        color=alt.condition(alt.datum.kind == CAPPED, alt.value(style.INK), alt.value("white")),
    )
    theory = pl.DataFrame({"rate": [LIMIT], "text": [f"b / (t_b (m_p + m_d)) = {LIMIT:.2f}"]})
    line = alt.Chart(theory).encode(x="rate:Q")
    rule = line.mark_rule(color=style.VERMILION, strokeWidth=2, strokeDash=[6, 3])
    text = line.mark_text(align="right", baseline="bottom", color=style.VERMILION).encode(
        text="text:N", y=alt.value(-4)
    )
    return (bars.mark_bar().encode(color=color) + numbers + rule + text).properties(
        width=520, height=alt.Step(24)
    )


def crowds_chart(curves: pl.DataFrame) -> Any:
    """The number in the system over time."""
    colors = {
        "FasterTransformer, 128 seats": style.GRAY,
        "VllmV0, 512 seats": style.ORANGE,
        "Sarathi, 512 seats": style.BLUE,
    }
    return (
        alt.Chart(curves)
        .mark_line(strokeWidth=2)
        .encode(
            x=alt.X("second:Q", title="seconds", axis=alt.Axis(tickCount=8)),
            y=alt.Y("requests:Q", title="requests in the system"),
            color=style.colored("policy", colors, direction="vertical"),
        )
        .properties(width=560, height=240)
    )
