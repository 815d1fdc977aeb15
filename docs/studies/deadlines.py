"""What do deadlines for tokens buy? bari2025 section 7, Figure 6, by simulation.

    python docs/studies/deadlines.py openchat_sharegpt4_8k.parquet   # prints the tables, writes deadlines.svg

Prompt and output lengths of openchat_sharegpt4 (a file with the columns prompt_tokens, output_tokens), at
most 8,192 tokens in all, Poisson arrivals; 5 % of the requests pay and want a token every 0.1 s, the others
every 0.5 s. The paper gives neither the memory left on its GPU nor its law of batch times: only the cost of a
token is fitted, so that Sarathi (first come, first served) has a median time to first token of 0.5 s at 1.15
requests a second, as in the paper; everything else is reckoned from the data sheet and varied below.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import show

import inferq as iq

LONGEST_TOKENS = 8192
PAYING_SHARE = 0.05
TBT_SLO_S = {"paying": 0.1, "free": 0.5}
TTFT_LIMIT_S = 0.5
FITTED_RATE, HIGH_RATE = 1.15, 1.6
REQUESTS, SEEDS = 20_000, (1, 2, 3)
SARATHI, SLAI = "Sarathi, fcfs", "Slai, spf, dynamic"


@dataclass(frozen=True)
class Hardware:
    """Mistral-7B on an RTX 6000 Ada with 48 GB and 960 GB/s.

    14.5 GB of weights are read in 15 ms, the 131,072 bytes of a token of cache in 0.137 µs; 229,000 of those
    are 30 GB.
    """

    base_s: float = 0.015
    per_context_token_s: float = 1.37e-7
    kv_tokens: int | None = 229_000

    def engine(self, per_token_s: float, scheduler: iq.Scheduler) -> iq.Engine:
        """An engine whose iterations cost so much for each token that they load."""
        timing = iq.PiecewiseLinear(
            base=self.base_s, per_token=per_token_s, per_context_token=self.per_context_token_s
        )
        kv = iq.KvCache.unlimited() if self.kv_tokens is None else iq.KvCache(tokens=self.kv_tokens)
        return iq.Engine(timing=timing, scheduler=scheduler, kv=kv)


POLICIES: dict[str, iq.Scheduler] = {
    "Sarathi, fcfs": iq.Sarathi(token_budget=512, max_seqs=128),
    "Sarathi, spf": iq.Sarathi(token_budget=512, max_seqs=128, order="spf"),
    "Slai, fcfs, fixed": iq.Slai(order="fcfs", offset=10),
    "Slai, spf, fixed": iq.Slai(order="spf", offset=10),
    "Slai, spf, dynamic": iq.Slai(order="spf", offset=iq.DynamicOffset(low=5, high=10, kv_share=0.96)),
    "VllmV0": iq.VllmV0(token_budget=8192, max_seqs=128),
}


def requests(lengths: pl.DataFrame, rate: float, seed: int = 1, number: int = REQUESTS) -> iq.Workload:
    """Requests drawn from the measured lengths, with their classes and deadlines."""
    law = iq.Workload.law(requests=number, arrivals=iq.Poisson(rate), lengths=iq.Empirical(lengths))
    frame = law.with_classes({"paying": PAYING_SHARE, "free": 1 - PAYING_SHARE}).draw(seed).frame
    slo = pl.col("class").cast(pl.String).replace_strict(TBT_SLO_S, return_dtype=pl.Float64)
    return iq.Workload(frame.with_columns(slo.alias("tbt_slo_s")))


def capped(lengths: pl.DataFrame) -> pl.DataFrame:
    """The pairs of lengths with at most 8,192 tokens in all: longer outputs are cut."""
    prompt = pl.col("prompt_tokens").clip(upper_bound=LONGEST_TOKENS - 1)
    output = pl.min_horizontal(pl.col("output_tokens"), LONGEST_TOKENS - prompt)
    return lengths.select(prompt, output.alias("output_tokens"))


def measure(workload: iq.Workload, engine: iq.Engine) -> dict[str, float]:
    """Median time to first token of all, and the 99th percentile of token gaps by class."""
    result = iq.simulate(workload, engine, warmup=workload.frame.height // 10)
    gaps = dict(result.summary(by="class").select("class", "p99_tbt_s").iter_rows())
    return {
        "p50_ttft_s": result.summary()["p50_ttft_s"].item(),
        "p99_tbt_s, paying": gaps["paying"],
        "p99_tbt_s, free": gaps["free"],
    }


def bisect(low: float, high: float, holds: Callable[[float], bool], steps: int = 12) -> float:
    """The largest number for which something holds, that holds up to it and not beyond."""
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return (low + high) / 2


def median_ttft_s(lengths: pl.DataFrame, rate: float, engine: iq.Engine, seed: int = 1) -> float:
    """Of all requests at a rate."""
    return measure(requests(lengths, rate, seed), engine)["p50_ttft_s"]


def fitted(lengths: pl.DataFrame, hardware: Hardware) -> float:
    """Seconds a token, such that Sarathi meets the limit at the paper's rate just so."""
    sarathi = POLICIES[SARATHI]
    return bisect(
        1e-5,
        1e-3,
        lambda cost: median_ttft_s(lengths, FITTED_RATE, hardware.engine(cost, sarathi)) <= TTFT_LIMIT_S,
    )


def capacity(lengths: pl.DataFrame, engine: iq.Engine, seed: int = 1) -> float:
    """The largest rate with a median time to first token within the limit."""
    return bisect(0.3, 2.5, lambda rate: median_ttft_s(lengths, rate, engine, seed) <= TTFT_LIMIT_S)


def curves(lengths: pl.DataFrame, hardware: Hardware, per_token_s: float) -> pl.DataFrame:
    """The three measures of every policy against the rate."""
    rates = [round(0.6 + 0.1 * step, 1) for step in range(11)]
    rows = [
        {
            "policy": name,
            "rate": rate,
            **measure(requests(lengths, rate), hardware.engine(per_token_s, scheduler)),
        }
        for rate in rates
        for name, scheduler in POLICIES.items()
    ]
    return pl.DataFrame(rows)


VARIANTS = {
    "as above": Hardware(),
    "base 0": Hardware(base_s=0.0),
    "base 30 ms": Hardware(base_s=0.03),
    "context at no cost": Hardware(per_context_token_s=0.0),
    "cache without limit": Hardware(kv_tokens=None),
    "cache of 150,000": Hardware(kv_tokens=150_000),
    "cache of 120,000": Hardware(kv_tokens=120_000),
}


def capacities(lengths: pl.DataFrame) -> pl.DataFrame:
    """For every hardware the fitted cost and the largest rate of each policy, its mean over the seeds."""
    rows = []
    for name, hardware in VARIANTS.items():
        cost = fitted(lengths, hardware)
        row: dict[str, object] = {"hardware": name, "µs a token": 1e6 * cost}
        for policy, scheduler in POLICIES.items():
            engine = hardware.engine(cost, scheduler)
            row[policy] = sum(capacity(lengths, engine, seed) for seed in SEEDS) / len(SEEDS)
        for policy in (SARATHI, SLAI):
            engine = hardware.engine(cost, POLICIES[policy])
            ttft_s = [median_ttft_s(lengths, HIGH_RATE, engine, seed) for seed in SEEDS]
            row[f"{policy}, TTFT"] = sum(ttft_s) / len(SEEDS)
        rows.append(row)
    return pl.DataFrame(rows)


def spread(lengths: pl.DataFrame, cost: float) -> pl.DataFrame:
    """The largest rate of each policy: mean, least and most over the seeds, and the gain over Sarathi."""
    rows = []
    for policy, scheduler in POLICIES.items():
        found = [capacity(lengths, Hardware().engine(cost, scheduler), seed) for seed in SEEDS]
        mean = sum(found) / len(found)
        rows.append({"policy": policy, "requests/s": mean, "least": min(found), "most": max(found)})
    sarathi = rows[0]["requests/s"]
    return pl.DataFrame(rows).with_columns((100 * (pl.col("requests/s") / sarathi - 1)).alias("gain, %"))


def run_lengths(lengths: pl.DataFrame, cost: float) -> pl.DataFrame:
    """Median time to first token at the high rate against the number of requests, mean over the seeds."""
    rows = []
    for number in (500, 2_000, 20_000, 100_000):
        row: dict[str, object] = {"requests": number}
        for policy in (SARATHI, SLAI):
            engine = Hardware().engine(cost, POLICIES[policy])
            drawn = [requests(lengths, HIGH_RATE, seed, number) for seed in SEEDS]
            row[policy] = sum(measure(each, engine)["p50_ttft_s"] for each in drawn) / len(drawn)
        rows.append(row)
    return pl.DataFrame(rows)


def chart(rows: pl.DataFrame, path: Path) -> None:
    """Three panels side by side, the limits as dashed lines."""
    import altair as alt

    looks = {
        "Sarathi, fcfs": (show.BLUE, [1, 0]),
        "Sarathi, spf": (show.BLUE, [5, 3]),
        "Slai, fcfs, fixed": (show.ORANGE, [1, 0]),
        "Slai, spf, fixed": (show.ORANGE, [5, 3]),
        "Slai, spf, dynamic": (show.VERMILION, [1, 0]),
        "VllmV0": (show.GREY, [1, 0]),
    }
    names = list(looks)
    legend = alt.Legend(orient="bottom", columns=6, symbolType="stroke", symbolSize=400)
    colours = alt.Scale(domain=names, range=[colour for colour, _ in looks.values()])
    dashes = alt.Scale(domain=names, range=[dash for _, dash in looks.values()])
    panels = []
    for measured, title, limit, most, side in (
        ("p50_ttft_s", "median time to first token, s", TTFT_LIMIT_S, 1.2, "left"),
        ("p99_tbt_s, paying", "P99 of token gaps, paying, s", TBT_SLO_S["paying"], 0.2, "right"),
        ("p99_tbt_s, free", "P99 of token gaps, free, s", TBT_SLO_S["free"], 0.8, "left"),
    ):
        data = rows.select("policy", "rate", pl.col(measured).alias("seconds"))
        lines = (
            alt.Chart(data)
            .mark_line(clip=True, strokeWidth=2.5)
            .encode(
                x=alt.X(
                    "rate:Q", title="requests per second", scale=alt.Scale(domain=[0.6, 1.6], nice=False)
                ),
                y=alt.Y(
                    "seconds:Q", title=None, scale=alt.Scale(domain=[0, most]), axis=alt.Axis(tickCount=6)
                ),
                color=alt.Color("policy:N", title=None, scale=colours, legend=legend),
                strokeDash=alt.StrokeDash("policy:N", title=None, scale=dashes, legend=legend),
            )
        )
        rate = 0.6 if side == "left" else 1.6
        promise = alt.Chart(pl.DataFrame({"seconds": [limit], "text": ["limit"], "rate": [rate]}))
        rule = promise.mark_rule(color=show.INK, strokeDash=[2, 2]).encode(y="seconds:Q")
        text = promise.mark_text(align=side, baseline="bottom", dx=4 if side == "left" else -4, dy=-3).encode(
            x="rate:Q", y="seconds:Q", text="text:N"
        )
        panels.append((lines + rule + text).properties(width=260, height=250, title=title))
    show.save(alt.hconcat(*panels, spacing=24), path)


if __name__ == "__main__":
    measured_lengths = capped(pl.read_parquet(sys.argv[1], columns=["prompt_tokens", "output_tokens"]))
    cost = fitted(measured_lengths, Hardware())
    print(f"fitted: {cost * 1e6:.1f} µs a token")
    found = curves(measured_lengths, Hardware(), cost)
    for column in ("p50_ttft_s", "p99_tbt_s, paying", "p99_tbt_s, free"):
        print(column)
        wide = found.pivot("policy", index="rate", values=column)
        print(show.table(wide, rate=1, **dict.fromkeys(POLICIES, 3)))
    print(show.table(spread(measured_lengths, cost), **{"gain, %": 0}))
    print(show.table(capacities(measured_lengths), **{"µs a token": 1}))
    print(show.table(run_lengths(measured_lengths, cost)))
    chart(found, Path(__file__).with_suffix(".svg"))
