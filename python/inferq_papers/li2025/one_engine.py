"""Stability of schedulers with one engine; li2025 section 3 and Figure 1."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import altair as alt
import numpy as np
import polars as pl

import inferq as iq
from inferq import Interval
from inferq.display import BLUE, GRAY, INK, ORANGE, SKY, VERMILION, colored
from inferq.theory import RequestClass, observed, request_level_capacity, sequence_capacity, token_capacity
from inferq.timing import TimingModel
from inferq_papers.edge import edge, unit
from inferq_papers.report import Chart, Row, Section, Table, interval

Tell = Callable[[str], None]

PROMPT_TOKENS, OUTPUT_TOKENS, TOKEN_BUDGET = 129, 112, 512
TIMING = iq.PiecewiseLinear(base=0.0455, per_token=0.0003, knee=64)
"""li2025 section 2.1: c = 45.5 ms, a = 0.30 ms per token, b0 = 64 tokens (the text swaps two units)."""
CHAT = RequestClass(rate=1.0, prompt=PROMPT_TOKENS, output=OUTPUT_TOKENS)
LIMIT = token_capacity(CHAT, TIMING, token_budget=TOKEN_BUDGET, first_token="decode").capacity_per_s
"""b / (t_b (m_p + m_d)), (2.7): 11.81 requests per second."""

PER_S = "requests/s"
MIXES, APART = "mixes prompts and decodes", "does not"
CAPPED = "mixes, but its sequence limit is below its budget"


@dataclass(frozen=True)
class Sizes:
    """Sizes of the runs."""

    requests: int
    steps: int
    tolerance: float
    """The share of arrivals that may stay in a system that counts as stable."""

    @classmethod
    def of(cls, quick: bool) -> Sizes:
        """The sizes of a quick or a full report."""
        return cls(60_000, 6, 0.005) if quick else cls(400_000, 9, 0.002)


@dataclass(frozen=True)
class Policy:
    """A policy with its theoretical limit."""

    name: str
    scheduler: iq.Scheduler
    kind: str
    theory: float | None
    note: str = ""


def policies() -> list[Policy]:
    """The policies of section 3 with one budget: with at most 512 sequences, and with their defaults."""
    b = TOKEN_BUDGET
    entries = [
        Policy("Sarathi, max_seqs 512", iq.Sarathi(token_budget=b, max_seqs=512), MIXES, LIMIT),
        Policy(
            "Orca, max_seqs 512",
            iq.research.Orca(token_budget=b, chunked=True, max_seqs=512),
            MIXES,
            LIMIT,
            "with `chunked=True`; whole prompts would leave the end of a budget unused",
        ),
        Policy("KFcfs, no limit", iq.research.KFcfs(token_budget=b, k_prefill=b, k_decode=b), MIXES, LIMIT),
        Policy(
            "VllmV0, max_seqs 512",
            iq.VllmV0(token_budget=b, max_seqs=512),
            APART,
            None,
            "separate batches of prompts and decodes: no closed form; the paper calls it possibly unstable",
        ),
    ]
    for size in (64, 128, 256):
        scheduler = iq.research.FasterTransformer(max_seqs=size)
        by_hand = request_level_capacity(CHAT, engine(scheduler)).capacity_per_s
        note = "the paper states no batch limit; theory: full batches"
        entries.append(Policy(f"FasterTransformer, max_seqs {size}", scheduler, APART, by_hand, note))
    for name, capped in (
        ("Sarathi, max_seqs 128 (default)", iq.Sarathi(token_budget=b)),
        ("Orca, max_seqs 128 (default)", iq.research.Orca(token_budget=b, chunked=True)),
    ):
        bound = sequence_capacity(CHAT, engine(capped))
        assert bound.stable_below_per_s is not None
        note = f"theory: upper bound with max_seqs 128; the guarantee is {bound.stable_below_per_s:.2f}"
        entries.append(Policy(name, capped, CAPPED, bound.capacity_per_s, note))
    default = iq.VllmV0(token_budget=b)
    entries.append(Policy("VllmV0, max_seqs 256 (default)", default, APART, None, "no closed form"))
    return entries


def engine(scheduler: iq.Scheduler, timing: TimingModel = TIMING, first_token: Any = "decode") -> iq.Engine:
    """An engine without a memory limit that needs a decode for each output token, as in the paper."""
    return iq.Engine(timing=timing, scheduler=scheduler, kv=iq.KvCache.unlimited(), first_token=first_token)


def poisson(requests: int, **lengths: Any) -> iq.Workload:
    """One arrival per second."""
    if not lengths:
        lengths = {"prompt": iq.dist.Fixed(PROMPT_TOKENS), "output": iq.dist.Fixed(OUTPUT_TOKENS)}
    return iq.Workload.synthetic(requests=requests, arrivals=iq.dist.Poisson(1.0), **lengths)


def found_edge(
    system: iq.Engine | iq.Cluster, workload: iq.Workload, low: float, high: float, sizes: Sizes
) -> Interval:
    """The largest stable rate between two rates, by bisection.

    Above its edge μ a system is always busy and completes requests at μ for any arrivals. So the bisection
    ends where λ − μ is the tolerated share of λ, and μ is below its end by that share. The interval is that
    of the departures in 20 parts of a run with 3 % overload, plus the last step, plus the tolerated share,
    within which fluctuations of the arrivals can hide or mimic a drift.
    """
    end = edge(
        lambda rate: iq.simulate(workload.speed(rate), system),
        low,
        high,
        steps=sizes.steps,
        tolerance=sizes.tolerance,
    )
    rate = end.rate * (1 - sizes.tolerance)
    busy = iq.simulate(workload.speed(1.03 * rate), system).requests
    last_s = float(busy["arrival_s"][-1])
    edges_s = np.linspace(last_s / 4, last_s, 21)
    departures = np.diff(np.searchsorted(np.sort(busy["left_s"].to_numpy()), edges_s)) / np.diff(edges_s)
    resolution = end.step + sizes.tolerance * rate
    served = interval(departures.tolist())
    return replace(served, mean=rate, half_width=served.half_width + resolution)


def edge_row(
    where: str,
    what: str,
    theory: float | None,
    system: iq.Engine | iq.Cluster,
    workload: iq.Workload,
    sizes: Sizes,
    tell: Tell,
    note: str = "",
) -> Row:
    """A row with the largest stable rate of a system and its theoretical value."""
    tell(f"{where}: {what}")
    low, high = (0.5 * LIMIT, 1.1 * LIMIT) if theory is None else (0.9 * theory, 1.1 * theory)
    limit = found_edge(system, workload, low, high, sizes)
    return Row.seen(where, what, PER_S, limit, theory=theory, note=note)


def figure_1(sizes: Sizes, tell: Tell) -> Section:
    """Section 3 and Figure 1: policies that are stable up to the limit."""
    workload = unit(poisson(sizes.requests))
    tested = policies()
    rows = [
        edge_row(
            "Section 3",
            policy.name,
            policy.theory,
            engine(policy.scheduler),
            workload,
            sizes,
            tell,
            policy.note,
        )
        for policy in tested
    ]
    rates = {row.what: row.simulation or 0.0 for row in rows}
    audited_policies = [
        policy
        for policy in tested
        if policy.kind == MIXES or (policy.kind == APART and "default" not in policy.name)
    ]
    audit_rows, short = [], unit(poisson(min(sizes.requests, 40_000)))
    for policy in audited_policies:
        audited = iq.simulate(short.speed(0.98 * LIMIT), engine(policy.scheduler)).work_conservation(
            TOKEN_BUDGET
        )
        audit_rows.append(
            {
                "policy": policy.name,
                "work left undone, %": 100 * audited.share,
                "no free slot, %": 100 * audited.cap_share,
            }
        )
    audit = pl.DataFrame(audit_rows)
    curves, growth_rows = crowds(min(sizes.requests, 40_000))
    prompts_s = 256 * PROMPT_TOKENS / TOKEN_BUDGET * iteration_s(TOKEN_BUDGET)
    budgeted = 256 / (prompts_s + OUTPUT_TOKENS * iteration_s(256))
    limited = sequence_capacity(CHAT, TIMING, max_seqs=128, token_budget=TOKEN_BUDGET, first_token="decode")
    undone = dict(audit.select("policy", "work left undone, %").iter_rows())
    mixing = max(undone[policy.name] for policy in tested if policy.kind == MIXES)
    mixes = [rates[policy.name] / LIMIT for policy in tested if policy.kind == MIXES]
    limits = Table(
        title="Work left undone at 0.98 of the limit",
        frame=audit,
        decimals={name: 1 for name in audit.columns[1:]},
        note="Shares of iterations below the budget: although another token could have been added, and "
        "because no sequence slot was free.",
    )
    return Section(
        title="Stability of schedulers: section 3, Figure 1",
        text=(
            f"An iteration of n tokens takes t(n) = 45.5 ms + 0.30 ms · max(0, n − 64), (2.3). Requests have "
            f"{PROMPT_TOKENS} prompt and {OUTPUT_TOKENS} output tokens, the lengths of Figure 1, and "
            f"m_d = {OUTPUT_TOKENS} decodes follow a prompt. The budget is b = {TOKEN_BUDGET} tokens; memory "
            f"has no limit. Theory, (2.7) and (2.8): no policy with batches of at most b tokens is stable "
            f"above b/(t(b)·(m_p + m_d)) = {LIMIT:.2f} requests per second. Policies that fill their budget "
            f"whenever they can are stable up to it. The largest stable rate is found by bisection with "
            f"{sizes.requests:,} requests per run, each run evaluated by `iq.theory.observed`."
        ),
        rows=(
            Row(
                where="Figure 1",
                what="arrival rate in the figure",
                unit=PER_S,
                paper=14.3,
                note="CodeLlama-34B on an A100, whose c, a and b0 are not published. Here Llama-3-70B on two "
                "A100 with the values of section 2.1, so only the order of the curves can be compared",
            ),
            *rows,
            *growth_rows,
        ),
        tables=(limits,),
        pictures=(
            Chart(
                title="Largest stable rate of each policy",
                caption="Bars: simulation. Dashed: the limit (2.7). FasterTransformer can exceed it: its "
                "iteration of prompts is larger than the budget.",
                chart=lambda: rates_chart(tested, rates),
            ),
            Chart(
                title=f"Requests in the system at {CROWD_RATE} per second",
                caption="Figure 1 with these parameters: below the limit, above the capacity of the others.",
                chart=lambda: crowds_chart(curves),
            ),
        ),
        remarks=(
            f"**The theorem holds.** The three policies that mix prompts and decodes and fill their budget "
            f"reach at least {100 * min(mixes):.1f} % of the limit. The audit finds undone work in "
            f"{mixing:.1f} % of their iterations, and in {undone['VllmV0, max_seqs 512']:.1f} % of VllmV0's.",
            "**FasterTransformer depends on its batch size S**, which the paper does not state. Full "
            "batches one after another serve S / (t(S·m_p) + m_d·t(S)), which the simulation confirms. At "
            "S = 256 that is *above* the limit, without contradiction: its one iteration of prompts loads "
            f"{256 * PROMPT_TOKENS:,} tokens, far above the budget of {TOKEN_BUDGET}. So it pays the base "
            f"time once, while others pay it {math.ceil(256 * PROMPT_TOKENS / TOKEN_BUDGET)} times. With "
            f"prompts in batches of {TOKEN_BUDGET} it would serve {budgeted:.2f}. With the literal rule, "
            "decodes before any prefill and one batch of prompts at a time, it would serve far less.",
            "**A sequence limit can cost more than a poor policy.** A full budget needs "
            f"{math.floor(TOKEN_BUDGET * (1 + OUTPUT_TOKENS) / (PROMPT_TOKENS + OUTPUT_TOKENS))} concurrent "
            "requests. With at most S sequences no scheduler can exceed one request per m·t(n)/n seconds "
            "at n = S·m/(1 + m_d) tokens per iteration, because a request takes a slot for at least m_d + "
            f"1 iterations. For the usual default of 128 that is {limited.capacity_per_s:.2f}, "
            f"{100 * (1 - limited.capacity_per_s / LIMIT):.0f} % below the limit. A scheduler that uses "
            f"every slot and token is guaranteed to serve {limited.stable_below_per_s:.2f} "
            "(`sequence_capacity`). Orca stays below the bound: prompts come first, and a decode without "
            "budget keeps its slot longer.",
            f"**Method.** A run counts as stable if less than {100 * sizes.tolerance:.1f} % of its arrivals "
            "stay in the system. The rate with exactly that share is above the limit by the share, which is "
            "subtracted.",
        ),
    )


CROWD_RATE = 11.6
"""Requests per second of the chart of Figure 1: below the limit, above the capacity of VllmV0."""


def iteration_s(tokens: int) -> float:
    """t(n) = c + a·max(0, n − b0), li2025 (2.3)."""
    return TIMING.base + TIMING.per_token * max(0, tokens - TIMING.knee)


def crowds(requests: int) -> tuple[pl.DataFrame, list[Row]]:
    """The number in the system over time under three policies, and its growth as rows."""
    workload = unit(poisson(requests)).speed(CROWD_RATE)
    frames, rows = [], []
    for policy in policies():
        if policy.name not in (
            "Sarathi, max_seqs 512",
            "VllmV0, max_seqs 512",
            "FasterTransformer, max_seqs 128",
        ):
            continue
        result = iq.simulate(workload, engine(policy.scheduler))
        arrival_s, left_s = (np.sort(result.requests[name].to_numpy()) for name in ("arrival_s", "left_s"))
        at = np.linspace(0, arrival_s[-1], 400)
        present = np.searchsorted(arrival_s, at, side="right") - np.searchsorted(left_s, at, side="right")
        frames.append(pl.DataFrame({"policy": policy.name, "second": at, "requests": present}))
        state = observed(result)
        half_width = None
        if state.low_per_s is not None and state.high_per_s is not None:
            half_width = (state.high_per_s - state.low_per_s) / 2
        rows.append(
            Row(
                where="Figure 1",
                what=f"growth of the number in the system at {CROWD_RATE}/s, {policy.name}",
                unit="requests/s",
                theory=None if policy.theory is None else max(0.0, CROWD_RATE - policy.theory),
                simulation=state.drift_per_s,
                half_width=half_width,
                note="no closed form" if policy.theory is None else "",
            )
        )
    return pl.concat(frames), rows


def rates_chart(tested: Sequence[Policy], rates: dict[str, float]) -> Any:
    """Bars with a line for the theory."""
    colors = {MIXES: BLUE, CAPPED: SKY, APART: GRAY}
    rank = {kind: place for place, kind in enumerate((MIXES, APART, CAPPED))}
    ordered = sorted(tested, key=lambda policy: (rank[policy.kind], -rates[policy.name]))
    data = pl.DataFrame(
        [{"policy": policy.name, "kind": policy.kind, "rate": rates[policy.name]} for policy in ordered]
    )
    bars = alt.Chart(data).encode(
        x=alt.X("rate:Q", title="largest stable rate, requests per second", scale=alt.Scale(domain=[0, 13])),
        y=alt.Y(
            "policy:N", sort=[policy.name for policy in ordered], title=None, axis=alt.Axis(labelLimit=300)
        ),
    )
    color = colored("kind", colors, direction="vertical")
    numbers = bars.mark_text(align="right", dx=-34, fontWeight="bold").encode(
        text=alt.Text("rate:Q", format=".2f"),
        color=alt.condition(alt.datum.kind == CAPPED, alt.value(INK), alt.value("white")),
    )
    theory = pl.DataFrame({"rate": [LIMIT], "text": [f"b / (t_b (m_p + m_d)) = {LIMIT:.2f}"]})
    line = alt.Chart(theory).encode(x="rate:Q")
    rule = line.mark_rule(color=VERMILION, strokeWidth=2, strokeDash=[6, 3])
    text = line.mark_text(align="right", baseline="bottom", color=VERMILION).encode(
        text="text:N", y=alt.value(-4)
    )
    return (bars.mark_bar().encode(color=color) + numbers + rule + text).properties(
        width=520, height=alt.Step(24)
    )


def crowds_chart(curves: pl.DataFrame) -> Any:
    """The number in the system over time."""
    colors = {
        "FasterTransformer, max_seqs 128": GRAY,
        "VllmV0, max_seqs 512": ORANGE,
        "Sarathi, max_seqs 512": BLUE,
    }
    return (
        alt.Chart(curves)
        .mark_line(strokeWidth=2)
        .encode(
            x=alt.X("second:Q", title="seconds", axis=alt.Axis(tickCount=8)),
            y=alt.Y("requests:Q", title="requests in the system"),
            color=colored("policy", colors, direction="vertical"),
        )
        .properties(width=560, height=240)
    )
