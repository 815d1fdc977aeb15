"""Does RAD serve all that tiles allow, and how far below do others stay? bari2025, Theorems 1 and 2."""

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
    """How much is simulated."""

    at_once: int
    """Requests that are all there at the start."""
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

    Narrower chunks are there to show that no cycle has an end to pay for: theirs is as long as a run.
    """
    return {
        "Rad": Rad(**TILE, requests_per_cycle=per_cycle),
        "RadPhased": RadPhased(**TILE, requests_per_cycle=per_cycle),
        NARROW: Rad(rows=64, columns=64, reduction=32, requests_per_cycle=100 * per_cycle),
        **{f"Sarathi, {budget}": Sarathi(token_budget=budget, max_seqs=128) for budget in BUDGETS},
    }


def engine(timing: TiledGemm, scheduler: Scheduler) -> Engine:
    """One replica with memory without limit."""
    return Engine(timing=timing, scheduler=scheduler, kv=KvCache.unlimited())


def arriving(requests: int) -> Workload:
    """One request a second: prompts of 8 to 24 whole chunks, outputs of 1 to 513 tokens, each pair alike."""
    prompts = pl.DataFrame({"prompt_tokens": [CHUNK * tiles for tiles in range(8, 25)]})
    pairs = prompts.join(pl.DataFrame({"output_tokens": list(range(1, 514))}), how="cross")
    return Workload.synthetic(requests=requests, arrivals=Poisson(1.0), lengths=Empirical(pairs))


def at_once(requests: int) -> Workload:
    """The same requests, all there at time 0."""
    return Workload(arriving(requests).draw(1).frame.with_columns(pl.lit(0.0).alias("arrival_s")))


def served(name: str, size: Size) -> pl.DataFrame:
    """What each policy serves when all are there at once, beside the limits for the very same requests.

    Columns: `costs`, `policy`, `requests per second`, `limit` (1/T^R), `of the limit`, `floor` (the most that
    any scheduler could serve).
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


def edge_row(asked: tuple[str, str], size: Size) -> Row:
    """The simulated edge of stability of (costs, policy) beside 1/T^R.

    The runs of a bisection share their requests, whose rate is exact. So it is the mean time of a request
    that chance leaves open: 2.58·c/√n at 99 % for n requests in the window, c the variation of that time.
    """
    name, policy = asked
    timing, work = COSTS[name], unit(arriving(size.arriving), seed=1)
    limit = tile_capacity(arriving(1), timing).capacity_per_s
    replica = engine(timing, schedulers(size.per_cycle)[policy])
    found = edge(
        lambda rate: simulate(work.speed(rate), replica), 0.75 * limit, 1.1 * limit, steps=size.steps
    )
    chance = 2.576 * _variation(timing) / math.sqrt(0.75 * size.arriving) * found.rate
    where, note = {
        "Rad": ("Theorems 1 and 2", "the paper proves it and has no number"),
        "RadPhased": ("Appendix D", "the paper says that the proof carries over, and has no number"),
    }.get(policy, ("Section 5", "beside 1/T^R, which the paper expects Sarathi to fall short of"))
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
    """Standard deviation of what a request takes under RAD, over its mean."""
    prompts, outputs = CHUNK * np.arange(8.0, 25.0)[:, None], np.arange(1.0, 514.0)[None, :]
    prices = TilePrices(timing, CHUNK, 1)
    prompt_s = prices.prompt_linear_s(prompts, outputs) + prices.prompt_attention_s(prompts, outputs)
    decode_s = (outputs - 1) * timing.linear_s_per_tile / timing.columns
    decode_s = decode_s + prices.decode_attention_s(prompts, outputs)
    times = prompt_s + decode_s + timing.other_s_per_token * (prompts + outputs - 1)
    return float(np.std(times) / np.mean(times))


def latencies(name: str, share: float, size: Size) -> pl.DataFrame:
    """Waiting for the first token, and gaps between tokens, at a share of the limit's rate."""
    timing, work = COSTS[name], arriving(size.measured)
    rate = share * tile_capacity(work, timing).capacity_per_s
    rows = []
    for policy in ("Rad", "RadPhased", "Sarathi, 512"):
        replica = engine(timing, schedulers(size.per_cycle)[policy])
        run = simulate(work.speed(rate), replica, seed=1, warmup=size.measured // 10)
        summary = run.summary().row(0, named=True)
        wanted = {
            "median TTFT, s": "ttft_p50",
            "P99 TTFT, s": "ttft_p99",
            "median ITL, s": "itl_p50",
            "P99 ITL, s": "itl_p99",
            "longest ITL, s": "itl_max",
        }
        row: dict[str, Any] = {"costs": name, "of the limit": share, "policy": policy}
        rows.append(row | {title: summary[column] for title, column in wanted.items()})
    return pl.DataFrame(rows)


def cycle_lengths(name: str) -> pl.DataFrame:
    """How many requests a cycle needs for a load: by Theorem 2, by the bound, and what that number serves."""
    timing, rows = COSTS[name], []
    for load in (0.9, 0.95, 0.98, 0.99):
        unit = arriving(1)
        rate = load * tile_capacity(unit, timing).capacity_per_s
        asked = tile_capacity(unit, timing, rate=rate)
        enough = asked.requests_per_cycle_enough
        assert enough is not None  # lengths are bounded and the load is below 1
        work = at_once(20 * enough)
        limit = tile_capacity(work, timing).capacity_per_s
        replica = engine(timing, schedulers(enough)["Rad"])
        rate = 20 * enough / simulate(work, replica).totals["end_s"]
        rows.append(
            {
                "costs": name,
                "load": load,
                "n by Theorem 2": asked.requests_per_cycle_theorem,
                "n enough": enough,
                "served with it, of 1/T^R": rate / limit,
            }
        )
    return pl.DataFrame(rows)


def served_rows(found: pl.DataFrame) -> list[Row]:
    """What is served when all are there at once, row by row."""
    rows = Rows()
    for name, policy, rate, limit, _, floor in found.iter_rows():
        note = "the very same requests in theory and simulation: no chance in it"
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
    """T^R as the paper prints it, beside what a lone full cycle takes."""
    timing, unit = COSTS[name], arriving(1)
    printed = tile_capacity(unit, timing, first_token="decode").request_s
    right = tile_capacity(unit, timing).request_s
    return Row(
        where=f"Theorem 1, {name}",
        what="T^R",
        unit="s",
        paper=printed,
        theory=right,
        note=f"paper: its formula as printed, a decode more ({printed / right - 1:+.2%}); it gives no "
        "numbers",
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
    """Theorems 1 and 2 beside simulation, and what RAD pays for it."""
    size = QUICK if quick else FULL
    tell("tiles: all requests at once")
    found = pl.concat([served(name, size) for name in COSTS])
    rows = [printed_row(name) for name in COSTS]
    tell("tiles: edges of stability")
    asked = [(name, policy) for name in COSTS for policy in ("Rad", "RadPhased", "Sarathi, 512")]
    rows += together(lambda one: edge_row(one, size), asked)
    rows += served_rows(found)
    tell("tiles: latencies and cycles")
    waits = pl.concat([latencies(name, share, size) for name in COSTS for share in (0.5, 0.8)])
    cycles = pl.concat([cycle_lengths(name) for name in COSTS])
    text = (
        "GPUs compute in tiles; a tile that is not full costs as much as one that is (7). RAD computes "
        "prompts alone in whole tiles and decodes together in whole tiles. Tiles are 128 × 64 × 32, the "
        "model has width 4,096 and 32 layers, prompts are 8 to 24 times 128 tokens, outputs 1 to 513, memory "
        "has no limit. Two sets of costs, chosen here, as the paper gives none: in *attention dear* a tile "
        "of the linear layers costs 1 ms, a pair of tiles in the attention 8 ns (chunk) and 1 ns (decode); "
        "*about 7B on an A100* is 4 ms, 2 ns and 8 ns. Both meet Assumption 2, that decodes one by one cost "
        f"more than one product of matrices. A cycle has {size.per_cycle:,} requests. Edges are found with "
        f"{size.arriving:,} Poisson arrivals, the same in every run of a bisection."
    )
    return Section(
        title="What do whole tiles allow?",
        text=text,
        rows=tuple(rows),
        tables=(
            Table(
                title="Poisson arrivals at a share of 1/T^R",
                frame=waits,
                decimals={"of the limit": 1, "median ITL, s": 3, "P99 ITL, s": 3},
            ),
            Table(
                title="Requests that a cycle needs",
                frame=cycles,
                decimals={"served with it, of 1/T^R": 4},
                note="20 such cycles, all requests there at once.",
            ),
        ),
        pictures=(
            Chart(
                title="What each policy serves",
                caption="All requests there at once; the dashed line is 1/T^R.",
                chart=lambda: chart(found),
            ),
        ),
        remarks=_remarks(found, rows, waits),
    )


def _remarks(found: pl.DataFrame, rows: list[Row], waits: pl.DataFrame) -> tuple[str, ...]:
    """What comes out."""
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
        f"RadPhased within {100 * gaps['RadPhased']:.2f} %; with all requests there at once Rad serves "
        f"{100 * share(dear, 'Rad'):.1f} % and {100 * share(a100, 'Rad'):.1f} %. What is missing is the end "
        "of each cycle, where fewer requests decode than a tile has columns.",
        f"**Theorem 1 does not hold as it stands.** RAD with chunks of 64 tokens instead of 128 serves "
        f"{100 * over:.2f} % of 1/T^R, which no scheduler should, in cycles long enough. In (6) a chunk "
        "attends to all of its own tokens, so narrower chunks cost less as long as they fill the columns; "
        "the proof takes chunks of the least common multiple to be the cheapest. The bound that (7) does "
        "give is a little higher (`least_s` of `tile_capacity`); the two agree where the least common "
        "multiple is the number of columns, as with 128 × 256 × 32.",
        f"**How far Sarathi falls behind depends on what the attention's tiles cost.** Its budget is a "
        "multiple of the columns, so the linear layers lose nothing. Its chunks, what decodes leave of the "
        f"budget, do not fill the attention's tiles. With *{dear}* ({parts[dear]}) it loses {lost(dear)}; "
        f"with *{a100}* ({parts[a100]}) {lost(a100)}. A larger budget makes it worse: longer chunks waste "
        "more of the triangle that causal attention leaves empty.",
        "**The price of RAD is the gap between tokens**, as the paper says: one prompt after another goes "
        f"before the decodes. The longest gap at {a100} is {longest['Rad']:.1f} s (RadPhased "
        f"{longest['RadPhased']:.1f} s, Sarathi {longest['Sarathi, 512']:.2f} s). RadPhased trades gaps for "
        "late first tokens; its longest gap is that between a first token, which comes with the prompt, and "
        "the second, which waits until all prompts of the cycle are done.",
        "**Cycles may be much shorter than Theorem 2 asks for.** The end of a cycle lasts as long as the "
        "longest output at most and wastes less than one tile an iteration; the theorem grants every last "
        "request the time of the longest one, token by token.",
    )
