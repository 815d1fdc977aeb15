"""What do whole tiles buy? RAD, its two-phase form and Sarathi beside the limit of bari2025 Theorem 1.

    python docs/studies/tiles.py                # prints the tables, writes tiles.svg beside this file

Iterations cost what tiles cost, also tiles that are not filled (bari2025 (7)). Prompts are multiples of the
tile, so that RAD wastes nothing on them. First all requests are there at once: how many are served in a
second? Then they come as a Poisson process: what do first tokens and gaps between tokens look like?
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from pathlib import Path

import polars as pl
import show

import inferq as iq

ROWS, COLUMNS, REDUCTION, WIDTH, LAYERS = 128, 64, 32, 4096, 32
TILE = 128
"""The least common multiple of the three tile sizes: a chunk of RAD."""
REQUESTS, REQUESTS_PER_CYCLE = 4_000, 2_000


@dataclass(frozen=True)
class Costs:
    """Seconds of a tile in the linear layers, and of a pair of tiles in a chunk's or a decode's attention."""

    linear_s: float
    gemm_s: float
    gemv_s: float
    other_s: float = 1e-6

    def timing(self) -> iq.TiledGemm:
        """The iteration time with these costs."""
        return iq.TiledGemm(
            rows=ROWS,
            columns=COLUMNS,
            reduction=REDUCTION,
            width=WIDTH,
            linear_s_per_tile=self.linear_s,
            other_s_per_token=self.other_s,
            gemm_s=self.gemm_s,
            gemv_s=self.gemv_s,
            layers=LAYERS,
        )


COSTS = {
    "attention dear": Costs(linear_s=1e-3, gemm_s=8e-9, gemv_s=1e-9),
    "about 7B on an A100": Costs(linear_s=4e-3, gemm_s=2e-9, gemv_s=8e-9),
}
"""Both meet Assumption 2, that decodes one by one cost more than one product of matrices: 32·gemv > gemm."""


def schedulers() -> dict[str, iq.Scheduler]:
    """RAD, its two-phase form, and Sarathi with budgets of 4 to 32 tiles of columns."""
    tile = {"rows": ROWS, "columns": COLUMNS, "reduction": REDUCTION}
    return {
        "Rad": iq.Rad(**tile, requests_per_cycle=REQUESTS_PER_CYCLE),
        "RadPhased": iq.RadPhased(**tile, requests_per_cycle=REQUESTS_PER_CYCLE),
        **{f"Sarathi, {b}": iq.Sarathi(token_budget=b, max_seqs=128) for b in (256, 512, 1024, 2048)},
    }


def requests(number: int = REQUESTS, seed: int = 1) -> pl.DataFrame:
    """Prompts of 8 to 24 tiles and outputs of 1 to 513 tokens, uniform, all there at time 0."""
    drawn = iq.Workload.law(
        requests=number, arrivals=iq.Deterministic(1.0), prompt=iq.Uniform(8, 24), output=iq.Uniform(1, 513)
    ).draw(seed)
    return drawn.frame.with_columns(pl.lit(0.0).alias("arrival_s"), pl.col("prompt_tokens") * TILE)


def least_s(frame: pl.DataFrame, costs: Costs) -> dict[str, float]:
    """T^R of Theorem 1, the mean seconds of a request when nothing is wasted, in its three parts.

    With the first token from the prompt's last iteration, an output of o tokens takes o − 1 decodes. The
    decode of the i-th token costs what (5) says, the attention of a prompt its p·(p + lcm) pairs of tokens.
    """
    decode_s = [0.0]
    for i in range(1, 24 * TILE + 513):
        tiles = WIDTH / COLUMNS * ceil(i / ROWS) + WIDTH / ROWS * ceil(i / COLUMNS)
        decode_s.append(decode_s[-1] + LAYERS * costs.gemv_s * tiles)
    pair_s = LAYERS * costs.gemm_s * WIDTH / (ROWS * COLUMNS * REDUCTION)
    linear = prompts = decodes = 0.0
    for p, o in frame.select("prompt_tokens", "output_tokens").iter_rows():
        linear += (p + o - 1) * (costs.linear_s / COLUMNS + costs.other_s)
        prompts += pair_s * p * (p + TILE)
        decodes += decode_s[p + o - 1] - decode_s[p]
    number = frame.height
    return {"linear": linear / number, "prompts": prompts / number, "decodes": decodes / number}


def run(frame: pl.DataFrame, costs: Costs, scheduler: iq.Scheduler, warmup: int = 0) -> iq.Result:
    """On one replica with memory without limit."""
    engine = iq.Engine(timing=costs.timing(), scheduler=scheduler, kv=iq.KvCache.unlimited())
    return iq.simulate(iq.Workload(frame), engine, warmup=warmup)


def saturated(name: str) -> pl.DataFrame:
    """Requests per second when all are there at once, beside 1/T^R."""
    costs, frame = COSTS[name], requests()
    limit = 1 / sum(least_s(frame, costs).values())
    rows = [{"costs": name, "policy": "1/T^R", "requests per second": limit, "of the limit": 1.0}]
    for policy, scheduler in schedulers().items():
        rate = frame.height / run(frame, costs, scheduler).totals["end_s"]
        row = {"costs": name, "policy": policy, "requests per second": rate, "of the limit": rate / limit}
        rows.append(row)
    return pl.DataFrame(rows)


def latencies(name: str, share: float) -> pl.DataFrame:
    """Waiting for the first token, and gaps, at a share of the limit's rate."""
    costs, lengths = COSTS[name], requests()
    rate = share / sum(least_s(lengths, costs).values())
    arrivals = iq.Workload(lengths.drop("arrival_s")).with_arrivals(iq.Poisson(rate)).draw(1).frame
    rows = []
    for policy in ("Rad", "RadPhased", "Sarathi, 512"):
        summary = run(arrivals, costs, schedulers()[policy], REQUESTS // 10).summary().row(0, named=True)
        wanted = {
            "median TTFT, s": "p50_ttft_s",
            "P99 TTFT, s": "p99_ttft_s",
            "median TBT, s": "p50_tbt_s",
            "P99 TBT, s": "p99_tbt_s",
            "max TBT, s": "max_tbt_s",
        }
        row = {"costs": name, "of the limit": share, "policy": policy}
        rows.append(row | {title: summary[column] for title, column in wanted.items()})
    return pl.DataFrame(rows)


def chart(rates: pl.DataFrame, path: Path) -> None:
    """Shares of the limit as bars, one panel for each set of costs."""
    import altair as alt

    colours = [show.VERMILION, show.ORANGE, *[show.BLUE] * 4]
    panels = []
    for name in COSTS:
        data = rates.filter((pl.col("costs") == name) & (pl.col("policy") != "1/T^R"))
        bars = alt.Chart(data).encode(
            x=alt.X(
                "of the limit:Q",
                title="served, of 1/T^R",
                scale=alt.Scale(domain=[0, 1]),
                axis=alt.Axis(format="%", tickCount=5),
            ),
            y=alt.Y("policy:N", sort=None, title=None),
        )
        colour = alt.Color("policy:N", legend=None, scale=alt.Scale(domain=list(schedulers()), range=colours))
        numbers = bars.mark_text(align="right", dx=-6, color="white", fontWeight="bold").encode(
            text=alt.Text("of the limit:Q", format=".1%")
        )
        panels.append(
            (bars.mark_bar().encode(color=colour) + numbers).properties(
                width=330, height=alt.Step(26), title=name
            )
        )
    show.save(alt.hconcat(*panels, spacing=30), path)


if __name__ == "__main__":
    for name, costs in COSTS.items():
        parts = least_s(requests(), costs)
        shares = ", ".join(f"{part} {seconds / sum(parts.values()):.0%}" for part, seconds in parts.items())
        print(f"{name}: T^R = {sum(parts.values()):.3f} s ({shares})")
    rates = pl.concat([saturated(name) for name in COSTS])
    print(show.table(rates, **{"requests per second": 3, "of the limit": 3}))
    waits = pl.concat([latencies(name, share) for name in COSTS for share in (0.5, 0.8)])
    print(show.table(waits, **{"of the limit": 1, "median TBT, s": 3, "P99 TBT, s": 3}))
    chart(rates, Path(__file__).with_suffix(".svg"))
