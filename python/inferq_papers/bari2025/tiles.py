"""RAD and other schedulers compared with the tile capacity of bari2025, Theorems 1 and 2."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import altair as alt
import numpy as np
import polars as pl

from inferq import Engine, KvCache, Sarathi, Scheduler, Workload, simulate
from inferq.display import BLUE, ORANGE, SKY, VERMILION
from inferq.dist import Empirical, Poisson
from inferq.research import Rad, RadPhased, TiledGemm
from inferq.theory import TileCapacity, TilePrices, tile_capacity
from inferq_papers.bari2025.deadlines import together
from inferq_papers.edge import edge, unit
from inferq_papers.report import Chart, Row, Rows, Section, Table

TILE = {"rows": 128, "columns": 64, "reduction": 32}
CHUNK = 128
"""The least common multiple of the three."""
NARROW = "Rad, chunks of 64"
BUDGETS = (256, 512, 1024, 2048)


def _timing(linear_s: float, gemm_s: float, gemv_s: float) -> TiledGemm:
    return TiledGemm(
        **TILE,
        width=4096,
        layers=32,
        linear_s_per_tile=linear_s,
        other_s_per_token=1e-6,
        gemm_s=gemm_s,
        gemv_s=gemv_s,
    )


COSTS = {
    "attention dear": _timing(linear_s=1e-3, gemm_s=8e-9, gemv_s=1e-9),
    "about 7B on an A100": _timing(linear_s=4e-3, gemm_s=2e-9, gemv_s=8e-9),
}


@dataclass(frozen=True)
class Size:
    """Size of the simulations."""

    at_once: int
    """Requests that all arrive at time 0."""
    arriving: int
    """Requests of a run with Poisson arrivals for its edge."""
    measured: int
    """Requests of a run whose latencies are measured."""
    per_cycle: int
    steps: int
    """Of a bisection."""


FULL = Size(at_once=20_000, arriving=400_000, measured=20_000, per_cycle=1_000, steps=8)
QUICK = Size(at_once=10_000, arriving=100_000, measured=5_000, per_cycle=1_000, steps=6)


def schedulers(per_cycle: int) -> dict[str, Scheduler]:
    """RAD, its two-phase form, RAD with narrower chunks, and Sarathi with budgets of 4 to 32 tiles.

    The cycle with narrower chunks is as long as a run, so no cycle ends.
    """
    return {
        "Rad": Rad(**TILE, requests_per_cycle=per_cycle),
        "RadPhased": RadPhased(**TILE, requests_per_cycle=per_cycle),
        NARROW: Rad(rows=64, columns=64, reduction=32, requests_per_cycle=100 * per_cycle),
        **{f"Sarathi, {budget}": Sarathi(token_budget=budget, max_seqs=128) for budget in BUDGETS},
    }


def engine(timing: TiledGemm, scheduler: Scheduler) -> Engine:
    """One replica with unlimited memory."""
    return Engine(timing=timing, scheduler=scheduler, kv=KvCache.unlimited())


def arriving(requests: int) -> Workload:
    """One request per second: prompts of 8 to 24 chunks, outputs of 1 to 513 tokens, equally likely pairs."""
    prompts = pl.DataFrame({"prompt_tokens": [CHUNK * tiles for tiles in range(8, 25)]})
    pairs = prompts.join(pl.DataFrame({"output_tokens": list(range(1, 514))}), how="cross")
    return Workload.synthetic(requests=requests, arrivals=Poisson(1.0), lengths=Empirical(pairs))


def at_once(requests: int) -> Workload:
    """The same requests, all arriving at time 0."""
    return Workload(arriving(requests).draw(1).frame.with_columns(pl.lit(0.0).alias("arrival_s")))


def served(name: str, size: Size) -> pl.DataFrame:
    """Rate of each policy if all requests arrive at time 0, and the limits for the same requests.

    Columns: `costs`, `policy`, `requests per second`, `limit` (1/T^R), `of the limit`, `floor` (upper bound
    for any scheduler).
    """
    timing, work = COSTS[name], at_once(size.at_once)
    limit = tile_capacity(work, timing, rate=1.0)
    rows = []
    for policy, scheduler in schedulers(size.per_cycle).items():
        rate = size.at_once / simulate(work, engine(timing, scheduler)).totals["end_s"]
        rows.append(
            {
                "costs": name,
                "policy": policy,
                "requests per second": rate,
                "limit": limit.capacity_per_s,
                "of the limit": rate / limit.capacity_per_s,
                "floor": limit.most_per_s,
            }
        )
    return pl.DataFrame(rows)


def edge_row(case: tuple[str, str], size: Size) -> Row:
    """The simulated edge of stability of (costs, policy) and 1/T^R.

    The runs of a bisection share their requests, whose rate is exact. So only the mean time of a request is
    random: 2.58·c/√n at 99 % for n requests in the window, with c its coefficient of variation.
    """
    name, policy = case
    timing, work = COSTS[name], unit(arriving(size.arriving), seed=1)
    limit = tile_capacity(arriving(1), timing).capacity_per_s
    replica = engine(timing, schedulers(size.per_cycle)[policy])
    found = edge(
        lambda rate: simulate(work.speed(rate), replica), 0.75 * limit, 1.1 * limit, steps=size.steps
    )
    chance = 2.576 * _variation(timing) / math.sqrt(0.75 * size.arriving) * found.rate
    where, note = {
        "Rad": ("Theorems 1 and 2", "the paper proves it without a number"),
        "RadPhased": ("Appendix D", "the paper extends the proof without a number"),
    }.get(policy, ("Section 5", "theory: 1/T^R; the paper expects Sarathi to stay below"))
    return Row(
        where=f"{where}, {name}",
        what=f"stable up to: {policy}",
        unit="requests/s",
        theory=limit,
        simulation=found.rate,
        half_width=max(chance, found.step),
        note=note,
    )


def _variation(timing: TiledGemm) -> float:
    """Coefficient of variation of the time of a request under RAD."""
    prompts, outputs = CHUNK * np.arange(8.0, 25.0)[:, None], np.arange(1.0, 514.0)[None, :]
    prices = TilePrices(timing, CHUNK, 1)
    prompt_s = prices.prompt_linear_s(prompts, outputs) + prices.prompt_attention_s(prompts, outputs)
    decode_s = (outputs - 1) * timing.linear_s_per_tile / timing.columns
    decode_s = decode_s + prices.decode_attention_s(prompts, outputs)
    times = prompt_s + decode_s + timing.other_s_per_token * (prompts + outputs - 1)
    return float(np.std(times) / np.mean(times))


def latencies(name: str, share: float, size: Size) -> pl.DataFrame:
    """TTFT and ITL at a share of the limit's rate."""
    timing, work = COSTS[name], arriving(size.measured)
    rate = share * tile_capacity(work, timing).capacity_per_s
    rows = []
    for policy in ("Rad", "RadPhased", "Sarathi, 512"):
        replica = engine(timing, schedulers(size.per_cycle)[policy])
        run = simulate(work.speed(rate), replica, seed=1, warmup=size.measured // 10)
        summary = run.summary().row(0, named=True)
        columns = {
            "median TTFT, s": "ttft_p50",
            "P99 TTFT, s": "ttft_p99",
            "median ITL, s": "itl_p50",
            "P99 ITL, s": "itl_p99",
            "longest ITL, s": "itl_max",
        }
        row: dict[str, Any] = {"costs": name, "of the limit": share, "policy": policy}
        rows.append(row | {title: summary[column] for title, column in columns.items()})
    return pl.DataFrame(rows)


def cycle_lengths(name: str) -> pl.DataFrame:
    """Requests per cycle for a load: by Theorem 2, by the bound, and the rate with that number."""
    timing, rows = COSTS[name], []
    for load in (0.9, 0.95, 0.98, 0.99):
        unit = arriving(1)
        rate = load * tile_capacity(unit, timing).capacity_per_s
        capacity = tile_capacity(unit, timing, rate=rate)
        enough = capacity.requests_per_cycle_enough
        assert enough is not None  # lengths are bounded and the load is below 1
        work = at_once(20 * enough)
        limit = tile_capacity(work, timing).capacity_per_s
        replica = engine(timing, schedulers(enough)["Rad"])
        rate = 20 * enough / simulate(work, replica).totals["end_s"]
        rows.append(
            {
                "costs": name,
                "load": load,
                "n by Theorem 2": capacity.requests_per_cycle_theorem,
                "n enough": enough,
                "served with it, of 1/T^R": rate / limit,
            }
        )
    return pl.DataFrame(rows)


def served_rows(found: pl.DataFrame) -> list[Row]:
    """Rows of the rates if all requests arrive at time 0."""
    rows = Rows()
    for name, policy, rate, limit, _, floor in found.iter_rows():
        note = "the same requests in theory and simulation: no randomness"
        theory = limit
        if policy == NARROW:
            theory = floor
            note = f"theory: the floor of (7); one cycle; it serves {100 * rate / limit:.2f} % of 1/T^R"
        rows.add(
            f"Theorem 1, {name}",
            f"served, all there at once: {policy}",
            "requests/s",
            rate,
            theory=theory,
            note=note,
        )
    return rows


def printed_row(name: str) -> Row:
    """T^R as printed and corrected."""
    timing, unit = COSTS[name], arriving(1)
    printed = tile_capacity(unit, timing, first_token="decode").request_s
    right = tile_capacity(unit, timing).request_s
    return Row(
        where=f"Theorem 1, {name}",
        what="T^R",
        unit="s",
        paper=printed,
        theory=right,
        note=f"paper: its formula as printed, one more decode ({printed / right - 1:+.2%}); without numbers",
    )


def shares(found: TileCapacity) -> str:
    """The parts of T^R, in percent."""
    parts = {
        "linear layers": found.prompt_linear_s + found.decode_linear_s,
        "attention of prompts": found.prompt_attention_s,
        "attention of decodes": found.decode_attention_s,
        "other": found.other_s,
    }
    return ", ".join(f"{part} {100 * seconds / found.request_s:.0f} %" for part, seconds in parts.items())


def chart(found: pl.DataFrame) -> Any:
    """Shares of 1/T^R as bars, one panel for each set of costs, from 80 % on."""
    names = list(schedulers(1))
    colors = [VERMILION, ORANGE, SKY, *[BLUE] * len(BUDGETS)]
    panels = []
    for name in COSTS:
        data = found.filter(pl.col("costs") == name).with_columns(pl.lit(0.8).alias("start"))
        place = alt.Y("policy:N", sort=names, title=None, axis=alt.Axis(labelLimit=200))
        share = alt.X(
            "of the limit:Q",
            title="served, of 1/T^R (from 80 %)",
            scale=alt.Scale(domain=[0.8, 1.01], nice=False),
            axis=alt.Axis(format="%", values=[0.8, 0.85, 0.9, 0.95, 1.0]),
        )
        color = alt.Color("policy:N", legend=None, scale=alt.Scale(domain=names, range=colors))
        base = alt.Chart(data)
        bars = base.mark_bar().encode(x=share, x2="start:Q", y=place, color=color)
        numbers = base.mark_text(align="right", dx=-14, color="white", fontWeight="bold").encode(
            x=share, y=place, text=alt.Text("of the limit:Q", format=".1%")
        )
        rule = alt.Chart(pl.DataFrame({"of the limit": [1.0]})).mark_rule(strokeDash=[3, 3]).encode(x=share)
        panels.append((bars + rule + numbers).properties(width=330, height=alt.Step(26), title=name))
    return alt.hconcat(*panels, spacing=30)


def section(quick: bool, tell: Callable[[str], None]) -> Section:
    """Theorems 1 and 2 compared with simulation, and the latencies of RAD."""
    size = QUICK if quick else FULL
    tell("tiles: all requests at once")
    found = pl.concat([served(name, size) for name in COSTS])
    rows = [printed_row(name) for name in COSTS]
    tell("tiles: edges of stability")
    cases = [(name, policy) for name in COSTS for policy in ("Rad", "RadPhased", "Sarathi, 512")]
    rows += together(lambda case: edge_row(case, size), cases)
    rows += served_rows(found)
    tell("tiles: latencies and cycles")
    waits = pl.concat([latencies(name, share, size) for name in COSTS for share in (0.5, 0.8)])
    cycles = pl.concat([cycle_lengths(name) for name in COSTS])
    text = (
        "GPUs compute in tiles; a partly filled tile costs as much as a full tile (7). RAD computes "
        "prompts alone in whole tiles and decodes together in whole tiles. Tiles are 128 × 64 × 32, the "
        "model has width 4,096 and 32 layers, prompts are 8 to 24 times 128 tokens, outputs 1 to 513, memory "
        "is unlimited. Two sets of costs, chosen here because the paper prints none: in *attention dear* a "
        "tile of the linear layers costs 1 ms, a pair of tiles in the attention 8 ns (chunk) and 1 ns "
        "(decode); *about 7B on an A100* is 4 ms, 2 ns and 8 ns. Both meet Assumption 2, that separate "
        f"decodes cost more than one matrix product. A cycle has {size.per_cycle:,} requests. Edges are "
        f"found with {size.arriving:,} Poisson arrivals, the same in every run of a bisection."
    )
    return Section(
        title="Capacity with whole tiles (RAD)",
        text=text,
        rows=tuple(rows),
        tables=(
            Table(
                title="Poisson arrivals at a share of 1/T^R",
                frame=waits,
                decimals={"of the limit": 1, "median ITL, s": 3, "P99 ITL, s": 3},
            ),
            Table(
                title="Requests per cycle",
                frame=cycles,
                decimals={"served with it, of 1/T^R": 4},
                note="20 such cycles, all requests at time 0.",
            ),
        ),
        pictures=(
            Chart(
                title="Rate of each policy",
                caption="All requests at time 0; the dashed line is 1/T^R.",
                chart=lambda: chart(found),
            ),
        ),
        remarks=_remarks(found, rows, waits),
    )


def _remarks(found: pl.DataFrame, rows: list[Row], waits: pl.DataFrame) -> tuple[str, ...]:
    """Conclusions."""
    gaps = {
        policy: max(abs(row.gap or 0.0) for row in rows if row.what == f"stable up to: {policy}")
        for policy in ("Rad", "RadPhased")
    }
    dear, a100 = COSTS
    parts = {name: shares(tile_capacity(arriving(1), timing)) for name, timing in COSTS.items()}

    def share(name: str, policy: str) -> float:
        picked = found.filter((pl.col("costs") == name) & (pl.col("policy") == policy))
        return float(picked["of the limit"].item())

    def lost(name: str) -> str:
        below = sorted(1 - share(name, f"Sarathi, {budget}") for budget in BUDGETS)
        return f"{100 * below[0]:.1f} to {100 * below[-1]:.1f} %"

    longest = {
        policy: max(
            waits.filter((pl.col("costs") == a100) & (pl.col("policy") == policy))["longest ITL, s"].to_list()
        )
        for policy in ("Rad", "RadPhased", "Sarathi, 512")
    }
    over = max(share(name, NARROW) for name in COSTS)
    return (
        f"**Theorem 2 holds.** The edge of Rad is within {100 * gaps['Rad']:.2f} % of 1/T^R, that of "
        f"RadPhased within {100 * gaps['RadPhased']:.2f} %; with all requests at time 0 Rad serves "
        f"{100 * share(dear, 'Rad'):.1f} % and {100 * share(a100, 'Rad'):.1f} %. The rest is lost at the end "
        "of each cycle, when fewer requests decode than a tile has columns.",
        f"**Theorem 1 does not hold as printed.** RAD with chunks of 64 tokens instead of 128 serves "
        f"{100 * over:.2f} % of 1/T^R in long cycles, which contradicts the theorem. In (6) a chunk "
        "attends to all of its own tokens, so narrower chunks cost less as long as they fill the columns; "
        "the proof assumes that chunks of the least common multiple are the cheapest. The bound that follows "
        "from (7) is slightly higher (`least_s` of `tile_capacity`); the two agree if the least common "
        "multiple is the number of columns, as with 128 × 256 × 32.",
        f"**The loss of Sarathi depends on the cost of attention tiles.** Its budget is a "
        "multiple of the columns, so the linear layers lose nothing. Its chunks, the budget minus decodes, "
        f"do not fill the attention's tiles. With *{dear}* ({parts[dear]}) it loses {lost(dear)}; "
        f"with *{a100}* ({parts[a100]}) {lost(a100)}. A larger budget makes it worse: longer chunks waste "
        "more of the triangle that causal attention leaves empty.",
        "**The price of RAD is the gap between tokens**, as in the paper: all prompts run "
        f"before the decodes. The longest gap at {a100} is {longest['Rad']:.1f} s (RadPhased "
        f"{longest['RadPhased']:.1f} s, Sarathi {longest['Sarathi, 512']:.2f} s). RadPhased trades gaps for "
        "late first tokens. Its longest gap lies between the first token, produced with the prompt, and "
        "the second, which waits for all prompts of the cycle.",
        "**Cycles may be much shorter than Theorem 2 requires.** The end of a cycle lasts as long as the "
        "longest output at most and wastes less than one tile per iteration; the theorem charges every last "
        "request the time of the longest request, token by token.",
    )
