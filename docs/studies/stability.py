"""Which schedulers serve every load that the hardware can serve? li2025 section 3, Figure 1, by simulation.

    python docs/studies/stability.py            # prints the table, writes stability.svg beside this file

One replica with the iteration times that the paper measured (Llama-3-70B on two A100), homogeneous requests,
no limit of memory. A rate is stable when the number of requests in the system does not grow from the middle
of a long run to its end.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import show

import inferq as iq

PROMPT_TOKENS, OUTPUT_TOKENS = 129, 112
TOKEN_BUDGET = 512
# li2025 section 2.1: c = 45.5 ms, a = 0.30 ms a token, b0 = 64 tokens (the text swaps the last two units).
BASE_S, PER_TOKEN_S, KNEE = 0.0455, 0.0003, 64
TIMING = iq.PiecewiseLinear(base=BASE_S, per_token=PER_TOKEN_S, knee=KNEE)
WIDE, DEFAULT = "wide", "default"

GROWTH = 0.002
"""A run is unstable when more than this share of the requests of its later half stays in the system."""


def iteration_s(tokens: int) -> float:
    """t(n) = c + a·max(0, n − b0), li2025 (2.3)."""
    return BASE_S + PER_TOKEN_S * max(0, tokens - KNEE)


THEORY_RATE = TOKEN_BUDGET / iteration_s(TOKEN_BUDGET) / (PROMPT_TOKENS + OUTPUT_TOKENS)
"""b / (t_b (m_p + m_d)), li2025 (2.7): 11.81 requests a second."""


def faster_transformer_rate(size: int) -> float:
    """Full batches one after another: S / (t(S·m_p) + m_d·t(S)), one iteration of prompts, m_d of decodes."""
    return size / (iteration_s(size * PROMPT_TOKENS) + OUTPUT_TOKENS * iteration_s(size))


def capped_rate(seats: int) -> float:
    """What no policy can pass with so many seats, budget or not.

    In I iterations at most S·I seats are taken, and a request takes one for m_d + 1 of them at least, so
    R·(m_d + 1) ≤ S·I for R requests. Each iteration of n tokens lasts c + a·(n − b0) at least, together
    I·(c − a·b0) + a·R·(m_p + m_d). So R is at most S for each (m_d + 1)·(c − a·b0) + a·S·(m_p + m_d) seconds.
    """
    work_s = PER_TOKEN_S * seats * (PROMPT_TOKENS + OUTPUT_TOKENS)
    return seats / ((OUTPUT_TOKENS + 1) * (BASE_S - PER_TOKEN_S * KNEE) + work_s)


def policies(caps: str = WIDE) -> dict[str, iq.Scheduler]:
    """Every policy under one budget, with room for 512 sequences or with its default cap."""
    cap = {"max_seqs": 512} if caps == WIDE else {}
    found: dict[str, iq.Scheduler] = {
        "Sarathi": iq.Sarathi(token_budget=TOKEN_BUDGET, **cap),
        "Orca, chunked": iq.Orca(token_budget=TOKEN_BUDGET, chunked=True, **cap),
        "VllmV0": iq.VllmV0(token_budget=TOKEN_BUDGET, **cap),
    }
    if caps == WIDE:
        found["KFcfs"] = iq.KFcfs(token_budget=TOKEN_BUDGET, k_prefill=TOKEN_BUDGET, k_decode=TOKEN_BUDGET)
        for size in (64, 128, 256):
            found[f"FasterTransformer, {size}"] = iq.FasterTransformer(max_seqs=size)
    return found


def workload(requests: int, seed: int = 1) -> iq.Workload:
    """A Poisson process whose later half has one arrival a second, exactly."""
    drawn = iq.Workload.law(
        requests=requests,
        arrivals=iq.Poisson(1.0),
        prompt=iq.Fixed(PROMPT_TOKENS),
        output=iq.Fixed(OUTPUT_TOKENS),
    ).draw(seed)
    arrival_s = drawn.frame["arrival_s"]
    half = requests // 2
    span_s = arrival_s[-1] - arrival_s[half - 1]
    return iq.Workload(drawn.frame.with_columns(arrival_s * ((requests - half) / span_s)))


def run(scheduler: iq.Scheduler, unit: iq.Workload, rate: float) -> iq.Result:
    """The same requests faster or slower, under the paper's convention."""
    engine = iq.Engine(timing=TIMING, scheduler=scheduler, kv=iq.KvCache.unlimited(), first_token="decode")
    return iq.simulate(iq.Workload(unit.frame.with_columns(pl.col("arrival_s") / rate)), engine)


def growth(result: iq.Result) -> float:
    """Requests that stay in the system for each one that arrives, over the later half of the arrivals."""
    arrival_s, left_s = result.requests["arrival_s"].to_numpy(), np.sort(result.requests["left_s"].to_numpy())
    half, end = len(arrival_s) // 2, len(arrival_s)
    left_by_half, left_by_end = np.searchsorted(left_s, arrival_s[[half - 1, end - 1]], side="right")
    return float(1 - (left_by_end - left_by_half) / (end - half))


def largest_stable_rate(scheduler: iq.Scheduler, requests: int = 400_000, steps: int = 10) -> float:
    """By bisection of 0.5 to 1.25 times the theory's rate, which all judge by the same arrivals.

    How wrong can it be, where the truth is μ? Above μ a server is always busy and lets requests go at its own
    rate whatever the arrivals do; their rate is known, so growth is 1 − μ/λ without noise, but for the batch
    that is under way: what is found is above μ by at most `GROWTH` + S/(n/2) + a step for S requests at once.
    Below μ the number in the system ends above x with a probability of about exp(−2(1 − ρ)x) (Poisson
    arrivals, equal requests, heavy traffic); x is `GROWTH`·n/2, so for n = 200,000 a stable ρ = 0.98 is
    missed three times in 10,000, and for n = 400,000 once in 10 million.
    """
    unit = workload(requests)
    low, high = 0.5 * THEORY_RATE, 1.25 * THEORY_RATE
    for _ in range(steps):
        middle = (low + high) / 2
        if growth(run(scheduler, unit, middle)) > GROWTH:
            high = middle
        else:
            low = middle
    return (low + high) / 2


def rates() -> pl.DataFrame:
    """The largest stable rate of each policy, over the theory's, and what can be worked out by hand."""
    rows = []
    for caps in (WIDE, DEFAULT):
        for name, scheduler in policies(caps).items():
            seats = getattr(scheduler, "max_seqs", None)
            by_hand = THEORY_RATE if seats is None else min(THEORY_RATE, capped_rate(seats))
            if isinstance(scheduler, iq.FasterTransformer):
                by_hand = faster_transformer_rate(scheduler.max_seqs)
            if isinstance(scheduler, iq.VllmV0):
                by_hand = None
            rate = largest_stable_rate(scheduler)
            rows.append({"policy": name, "caps": caps, "sequences": seats, "rate": rate, "by hand": by_hand})
    return pl.DataFrame(rows).with_columns((pl.col("rate") / THEORY_RATE).alias("of the theory"))


def audit(requests: int = 40_000) -> pl.DataFrame:
    """The shares of iterations below the budget, at 0.98 of the theory's rate: work left undone, no seat."""
    unit, rows = workload(requests), []
    for name, scheduler in policies().items():
        audited = run(scheduler, unit, 0.98 * THEORY_RATE).work_conservation(TOKEN_BUDGET)
        rows.append({"policy": name, "work left undone": audited.share, "no seat free": audited.cap_share})
    return pl.DataFrame(rows)


def chart(rows: pl.DataFrame, path: Path) -> None:
    """Bars beside the line of the theory."""
    import altair as alt

    label = pl.col("policy") + pl.when(pl.col("caps") == DEFAULT).then(
        pl.format(", {} (its default)", pl.col("sequences"))
    ).otherwise(pl.lit(""))
    kinds = {
        "mixes prompts and decodes": show.BLUE,
        "does not": show.GREY,
        "mixes, but has too few sequences to fill its budget": show.SKY,
    }
    mixes = pl.col("policy").is_in(["Sarathi", "Orca, chunked", "KFcfs"])
    capped = mixes & (pl.col("caps") == DEFAULT)
    full, apart, seats = kinds
    kind = pl.when(capped).then(pl.lit(seats)).when(mixes).then(pl.lit(full)).otherwise(pl.lit(apart))
    data = rows.with_columns(label.alias("label"), kind.alias("kind"))
    ranks = pl.col("kind").replace_strict({name: rank for rank, name in enumerate(kinds)})
    order = data.sort(ranks, -pl.col("rate"))["label"].to_list()
    bars = alt.Chart(data).encode(
        x=alt.X("rate:Q", title="largest stable rate, requests per second", scale=alt.Scale(domain=[0, 13])),
        y=alt.Y("label:N", sort=order, title=None, axis=alt.Axis(labelLimit=300)),
    )
    colour = alt.Color(
        "kind:N",
        title=None,
        scale=alt.Scale(domain=list(kinds), range=list(kinds.values())),
        legend=alt.Legend(orient="bottom"),
    )
    numbers = bars.mark_text(align="right", dx=-18, fontWeight="bold").encode(
        text=alt.Text("rate:Q", format=".2f"),
        color=alt.condition(alt.datum.kind == seats, alt.value(show.INK), alt.value("white")),
    )
    theory = pl.DataFrame({"rate": [THEORY_RATE], "text": [f"b / (t_b (m_p + m_d)) = {THEORY_RATE:.2f}"]})
    line = alt.Chart(theory).encode(x="rate:Q")
    rule = line.mark_rule(color=show.VERMILION, strokeWidth=2, strokeDash=[6, 3])
    text = line.mark_text(align="right", baseline="bottom", color=show.VERMILION).encode(
        text="text:N", y=alt.value(-4)
    )
    picture = (bars.mark_bar().encode(color=colour) + numbers + rule + text).properties(
        width=560, height=alt.Step(24)
    )
    show.save(picture, path)


if __name__ == "__main__":
    found = rates()
    print(show.table(found, **{"of the theory": 3}))
    prompts_in_budget_s = 256 * PROMPT_TOKENS / TOKEN_BUDGET * iteration_s(TOKEN_BUDGET)
    budgeted = 256 / (prompts_in_budget_s + OUTPUT_TOKENS * iteration_s(256))
    print(f"FasterTransformer, 256, with prompts in batches of {TOKEN_BUDGET}, by hand: {budgeted:.2f}")
    print(show.table(audit(), **{"work left undone": 4, "no seat free": 4}))
    chart(found, Path(__file__).with_suffix(".svg"))
