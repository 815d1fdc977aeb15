"""Cache hit rate and TTFT with prefix caching on real traces.

    python benches/prefix_caches.py FOLDER

FOLDER holds `mooncake_conversation.parquet` and `sharegpt_v3_multiturn_partial.parquet`. The tables replace
those in `docs/guides/prefix-caching.md` between the marks with this name; charts are written next to it.

The engine is Llama-3.1-8B on one H200 under `VllmV1`. Mooncake's trace is stretched so that a replica
without a cache has the load `LOAD`. ShareGPT conversations are a Poisson process with think times between
turns. A fleet receives the same load per replica.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import altair as alt
import numpy as np
import polars as pl

import inferq as iq
from inferq.display.style import BLUE, GRAY, INK, ORANGE, SKY, VERMILION, styled, svg

PAGE = Path(__file__).parent.parent / "docs" / "guides" / "prefix-caching.md"
LOAD = 0.78
"""Share of what a replica without a cache serves at most."""
REPLICAS = 16
BLOCKS = (16, 512)
CACHES = ("blocks", "radix")
DELAYS_S = (0, 0.1, 1, 5, 10, 30, 60, 300)
MILLION = 1_000_000
SIZES = [MILLION // 4 * 2**power for power in range(10)]
"""Tokens of KV cache, from a quarter of a million to 128 millions."""

SCHEDULER = iq.VllmV1(token_budget=8192, max_seqs=256, async_scheduling=False)
ENGINE = replace(
    iq.Engine.on(
        "llama-3.1-8b",
        "h200",
        gpu_memory_utilization=0.9,
        overhead=iq.Overhead(),
        api_s=0,
        scheduler=SCHEDULER,
    ),
    max_model_len=None,
)
"""Kernel times alone, and no limit on the length of a request: one message of ShareGPT is very long."""
MEMORIES = (ENGINE.kv.tokens, 10 * MILLION, None)
"""Tokens of a replica's cache: the card's; with other memory, as if it were as near; and without limit."""
THINK_MEDIAN_S, THINK_MEAN_S = 20.0, 40.0
TALKS_PER_REPLICA = {1: 17_000, REPLICAS: 3_000}


class Source(NamedTuple):
    """A trace, as what comes to a number of replicas."""

    name: str
    workload: Callable[[int], iq.Workload]
    repeats: Callable[[int], int]
    """Tokens of prompts, to one replica, that were said before, in whole blocks of so many tokens."""
    beginning: int
    """Tokens from which on prompts that have nothing to do with each other differ."""
    weight: float
    """Of a token to compute, for `PrefixAffinity`: the more, the shorter prompts are."""

    def routers(self) -> dict[str, iq.Router]:
        """Those that know nothing of prompts, those that know sessions, and those that know prefixes."""
        start = self.beginning
        return {
            "RoundRobin()": iq.RoundRobin(),
            "LeastRequests()": iq.LeastRequests(),
            "BySession()": iq.BySession(),
            "BySession(spill=1.5)": iq.BySession(spill=1.5),
            f"PrefixHash(prefix_tokens={start})": iq.PrefixHash(prefix_tokens=start),
            "PrefixHash(…, load_factor=1.25)": iq.PrefixHash(prefix_tokens=start, load_factor=1.25),
            "PrefixAffinity(weight=1)": iq.PrefixAffinity(weight=1),
            f"PrefixAffinity(weight={self.weight:g})": iq.PrefixAffinity(weight=self.weight),
        }


def mooncake(path: Path) -> Source:
    trace = iq.read_trace(path)
    span_s = float(trace.frame["arrival_s"][-1])
    speed = LOAD * served(trace) / (trace.frame.height / span_s)

    def repeats(block: int) -> int:
        """With a set of everything that was said before, and nothing of inferq's."""
        said: set[tuple[int, int]] = set()  # the hash up to a block of 512, and how many tokens of it
        found = 0
        for prompt, hashes in pl.read_parquet(path).select("prompt_tokens", "prefix_hash_ids").iter_rows():
            ends = range(block, prompt + 1, block)
            parts = [(hashes[(end - 1) // 512], (end - 1) % 512) for end in ends]
            known = 0
            while known < (prompt - 1) // block and parts[known] in said:
                known += 1
            found += known * block
            said.update(parts)
        return found

    # All prompts have the first block of 512 in common.
    return Source("Mooncake conversation", lambda replicas: trace.speed(speed * replicas), repeats, 1024, 4)


def sharegpt(path: Path) -> Source:
    turns = iq.read_trace(path).frame
    rate = LOAD * served(iq.Workload(turns))
    turns_each = turns.height / turns["session_id"].n_unique()

    def workload(replicas: int) -> iq.Workload:
        talks = replicas * TALKS_PER_REPLICA[replicas]
        return conversations(turns, talks, rate * replicas / turns_each)

    def repeats(block: int) -> int:
        """All that its talk has said but the last token of the answer, which was never computed."""
        said: dict[int, int] = {}
        found = 0
        columns = ("session_id", "prompt_tokens", "output_tokens")
        for talk, prompt, output in workload(1).frame.sort("session_id", "turn").select(columns).iter_rows():
            before = said.get(talk, 0)
            if 0 < before <= prompt:
                found += min(before - 1, prompt - 1) // block * block
            said[talk] = prompt + output
        return found

    return Source("Multi-turn ShareGPT", workload, repeats, 16, 32)


def served(workload: iq.Workload) -> float:
    """Requests per second that a replica without a cache serves when all of them come at time 0."""
    flat = workload.frame.select("prompt_tokens", "output_tokens", arrival_s=pl.lit(0.0))
    return flat.height / iq.simulate(flat, ENGINE).totals["end_s"]


def conversations(turns: pl.DataFrame, talks: int, rate: float) -> iq.Workload:
    """So many talks from the trace, in its order and then drawn again, that begin at a rate.

    They begin as a Poisson process. From an answer to the next turn it takes a lognormal time.
    """
    draws = np.random.default_rng(1)
    names = turns["session_id"].unique(maintain_order=True)
    again = draws.integers(len(names), size=max(talks - len(names), 0))
    chosen = pl.DataFrame(
        {
            "session_id": pl.concat([names.head(talks), names.gather(again)]),
            "talk": np.arange(talks),
            "start_s": np.cumsum(draws.exponential(1 / rate, talks)),
        }
    )
    rows = chosen.join(turns, on="session_id", how="left", maintain_order="left_right")
    deviation = np.sqrt(2 * np.log(THINK_MEAN_S / THINK_MEDIAN_S))
    is_first = pl.int_range(pl.len()).over("talk") == 0
    think_s = pl.Series("think_s", draws.lognormal(np.log(THINK_MEDIAN_S), deviation, rows.height))
    rows = rows.with_columns(think_s).with_columns(think_s=pl.when(~is_first).then("think_s"))
    thought_s = pl.col("think_s").fill_null(0).cum_sum().over("talk")
    rows = rows.with_columns(arrival_s=pl.col("start_s") + thought_s, session_id="talk")
    columns = ("arrival_s", "prompt_tokens", "output_tokens", "session_id", "turn", "think_s")
    return iq.Workload(rows.sort("arrival_s", "talk", "turn").select(columns))


def engine(cache: str | None, tokens: int | None = ENGINE.kv.tokens, block: int = 16) -> iq.Engine:
    return replace(ENGINE, kv=iq.KvCache(tokens=tokens, block=block, prefix_cache=cache))  # type: ignore[arg-type]


def hit_rate(result: iq.Result) -> float:
    """Tokens of prompts that were found, as a share of all."""
    told = result.requests.select(pl.col("cached_tokens", "prompt_tokens").sum())
    return float(told["cached_tokens"].item() / told["prompt_tokens"].item())


def curve(source: Source) -> pl.DataFrame:
    """The hit rate of every cache at every size, and what the trace repeats."""
    workload = source.workload(1)
    prompts = int(workload.frame["prompt_tokens"].sum())
    rows = []
    for block in BLOCKS:
        own = source.repeats(block) / prompts
        for cache in CACHES:
            for tokens in [*SIZES, None]:
                found = hit_rate(iq.simulate(workload, engine(cache, tokens, block)))
                rows.append((cache, block, tokens, found, own))
    return pl.DataFrame(rows, schema=["cache", "block", "tokens", "hit_rate", "own"], orient="row")


def one_replica(source: Source) -> pl.DataFrame:
    """What requests wait for their first token, with and without caches."""
    workload = source.workload(1)
    rows = []
    for cache, tokens in (
        (None, ENGINE.kv.tokens),
        *((cache, size) for cache in CACHES for size in MEMORIES),
    ):
        result = iq.simulate(workload, engine(cache, tokens))
        rows.append({"cache": cache, "tokens": tokens, **told(result)})
    return pl.DataFrame(rows)


def behind(router: iq.Router, workload: iq.Workload, cache: str | None, tokens: int | None) -> dict[str, Any]:
    """A fleet behind a router; `busiest` is the share of prompts at one replica over that of the mean one."""
    cluster = iq.Cluster(engine(cache, tokens), replicas=REPLICAS, router=router)
    result = iq.simulate(workload, cluster)
    tokens_each = result.requests.group_by("replica").agg(pl.col("prompt_tokens").sum())["prompt_tokens"]
    busiest = int(tokens_each.max()) * REPLICAS / int(tokens_each.sum())  # type: ignore[arg-type]
    return {"cache": cache, "tokens": tokens, **told(result), "busiest": busiest}


def fleet(source: Source) -> pl.DataFrame:
    """Every router, on so many replicas at the same load of each."""
    workload = source.workload(REPLICAS)
    has_sessions = "session_id" in workload.frame.columns
    caches = ((None, ENGINE.kv.tokens), ("blocks", ENGINE.kv.tokens), ("blocks", None))
    return pl.DataFrame(
        [
            {"router": name, **behind(router, workload, *cache)}
            for name, router in source.routers().items()
            if has_sessions or not isinstance(router, iq.BySession)
            for cache in caches
        ]
    )


def delays(source: Source) -> pl.DataFrame:
    """A router that knows the caches as they were a while ago."""
    workload = source.workload(REPLICAS)
    rows = []
    for update_s in DELAYS_S:
        router = iq.PrefixAffinity(weight=source.weight, update_s=update_s or None)
        rows.append({"update_s": update_s, **behind(router, workload, "blocks", ENGINE.kv.tokens)})
    return pl.DataFrame(rows)


def told(result: iq.Result) -> dict[str, Any]:
    """What the tables say of a run."""
    summary = result.summary()
    if summary["failed"].item():
        raise SystemExit(f"requests failed: {result.findings}")
    overloaded = any(finding.kind == "overload" for finding in result.findings)
    operations = result.block_operations.select(pl.exclude("replica").sum())
    ttft = {name: float(summary[name].item()) for name in ("ttft_p50", "ttft_p90", "ttft_p99")}
    counted = sum(operations.row(0)) if result.block_operations.height else 0
    return {"hit_rate": hit_rate(result), **ttft, "overloaded": overloaded, "operations": counted}


def grid(header: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown; numbers are right-aligned."""
    rule = ["---" if cell.startswith(("`", "no ")) else "---:" for cell in rows[0]]
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, rule, *rows])


def size(tokens: float | None) -> str:
    """The size of a cache as text."""
    if tokens == ENGINE.kv.tokens:
        return "GPU memory"
    return "unlimited" if tokens is None else f"{tokens / MILLION:.3g} M"


def of_run(row: dict[str, Any]) -> list[str]:
    """Cells common to all tables of runs."""
    ttft = [f"{row[name] * 1000:,.0f}" for name in ("ttft_p50", "ttft_p90", "ttft_p99")]
    if row["overloaded"]:
        ttft = ["overloaded"] * 3
    cache = f"`{row['cache']}`, {size(row['tokens'])}" if row["cache"] else "no cache"
    return [cache, f"{row['hit_rate'] * 100:.1f} %", *ttft]


HEADER = ["cache, memory", "hit rate", "TTFT p50", "p90", "p99, ms"]


def of_curve(frame: pl.DataFrame) -> str:
    """One row per size, one column per cache, and the repeated tokens of the trace."""
    kinds = [(cache, block) for block in BLOCKS for cache in CACHES]
    cells = {row[:3]: row[3] for row in frame.iter_rows()}
    header = ["KV cache, tokens", *(f"`{cache}`, {block}" for cache, block in kinds)]
    rate = "{:.2%}".format
    rows = [[size(tokens), *(rate(cells[(*kind, tokens)]) for kind in kinds)] for tokens in [*SIZES, None]]
    own = dict(frame.select("block", "own").iter_rows())
    rows.append(["counted from the file", *(rate(own[block]) for _, block in kinds)])
    return grid(header, [[cell.replace("%", " %") for cell in row] for row in rows])


def drawn_curve(frame: pl.DataFrame) -> str:
    """Hit rate against memory; a rule marks the repeated tokens of the trace in blocks of 16."""
    points = frame.with_columns(
        kind=pl.format("{} of {}", "cache", "block"),
        million=pl.col("tokens") / MILLION,
        percent=pl.col("hit_rate") * 100,
    )
    ends = [f"{cache} of {block}" for block in BLOCKS for cache in CACHES]
    kinds = alt.Scale(domain=ends, range=[BLUE, ORANGE, SKY, VERMILION])
    key = alt.Legend(orient="bottom", symbolType="stroke")
    own = points.filter(block=BLOCKS[0])["own"][0] * 100
    x = alt.X(
        "million:Q",
        title="KV cache, million tokens",
        scale=alt.Scale(type="log", base=2),
        axis=alt.Axis(values=[s / MILLION for s in SIZES], labelExpr="format(datum.value, '~g')"),
    )
    y = alt.Y(
        "percent:Q",
        title="cache hit rate, %",
        scale=alt.Scale(domain=[0, float(np.ceil(own / 10) * 10)]),
    )
    # equal curves stay visible because of their widths
    lines = alt.layer(
        *(
            alt.Chart(points.drop_nulls("tokens").filter(kind=kind))
            .mark_line(strokeWidth=width)
            .encode(x=x, y=y, color=alt.Color("kind:N", scale=kinds, title=None, legend=key))
            for kind, width in zip(ends, (12, 8, 4.5, 1.5), strict=True)
        )
    )
    marks = pl.DataFrame(
        {"own": [own], "text": ["repeated tokens in the trace"], "million": [SIZES[0] / MILLION]}
    )
    rule = alt.Chart(marks).mark_rule(color=INK, strokeDash=[2, 2]).encode(y="own:Q")
    label = alt.Chart(marks).mark_text(align="left", dx=5, dy=-7, color=INK)
    card = pl.DataFrame(
        {"million": [ENGINE.kv.tokens / MILLION], "percent": [0], "text": ["memory of one H200"]}
    )
    mark = alt.Chart(card).mark_rule(color=GRAY, strokeDash=[2, 2]).encode(x=x)
    name = alt.Chart(card).mark_text(align="left", dx=4, dy=-8, color=INK).encode(x=x, y=y, text="text:N")
    whole = lines + rule + label.encode(x="million:Q", y="own:Q", text="text:N") + mark + name
    return svg(styled(whole.properties(width=720, height=300)))


def of_fleet(frame: pl.DataFrame) -> str:
    rows = [
        [f"`{row['router']}`", *of_run(row), f"{row['busiest']:.2f}"] for row in frame.iter_rows(named=True)
    ]
    return grid(["router", *HEADER, "busiest / mean"], rows)


def of_replica(frame: pl.DataFrame) -> str:
    rows = [[*of_run(row), f"{row['operations']:,}"] for row in frame.iter_rows(named=True)]
    return grid([*HEADER, "block operations"], rows)


def of_delays(frame: pl.DataFrame) -> str:
    rows = [
        [
            "no delay" if row["update_s"] == 0 else f"{row['update_s']:g}",
            *of_run(row)[1:],
            f"{row['busiest']:.2f}",
        ]
        for row in frame.iter_rows(named=True)
    ]
    return grid(["report interval, s", *HEADER[1:], "busiest / mean"], rows)


def drawn_fleet(frames: dict[str, pl.DataFrame]) -> str:
    """Hit rate and TTFT p90 of each router with the memory of the GPU, one panel per trace."""
    rows = pl.concat([frame.with_columns(trace=pl.lit(name)) for name, frame in frames.items()])
    points = rows.filter((pl.col("tokens") == ENGINE.kv.tokens) & ~pl.col("overloaded")).with_columns(
        cache=pl.when(pl.col("cache").is_null()).then(pl.lit("no cache")).otherwise(pl.lit("blocks")),
        p90_ms=pl.col("ttft_p90") * 1000,
        percent=pl.format("hit rate {} %", (pl.col("hit_rate") * 100).round(0).cast(pl.Int32)),
    )
    panels = []
    for name in frames:
        panel = points.filter(trace=name)
        x = alt.X("p90_ms:Q", title="TTFT p90, ms")
        y = alt.Y("router:N", title=None, sort=None, axis=alt.Axis(labelLimit=240))
        color = alt.Color(
            "cache:N",
            title=None,
            scale=alt.Scale(domain=["no cache", "blocks"], range=[GRAY, BLUE]),
            legend=alt.Legend(orient="bottom"),
        )
        dots = alt.Chart(panel).mark_point(filled=True, size=90, opacity=1).encode(x=x, y=y, color=color)
        cached = panel.filter(cache="blocks")
        text = alt.Chart(cached).mark_text(dy=-11, color=INK).encode(x=x, y=y, text="percent:N")
        panels.append((dots + text).properties(width=640, height=34 * panel["router"].n_unique(), title=name))
    return svg(styled(alt.vconcat(*panels)))


def parts(folder: Path) -> Iterator[tuple[str, str]]:
    """Every measured part of the page and every chart, with its name."""
    sources = {
        "mooncake": mooncake(folder / "mooncake_conversation.parquet"),
        "sharegpt": sharegpt(folder / "sharegpt_v3_multiturn_partial.parquet"),
    }
    fleets = {}
    for name, source in sources.items():
        hit_rates = curve(source)
        missed = hit_rates.filter(pl.col("tokens").is_null() & (pl.col("cache") == "blocks"))
        if (missed["hit_rate"] != missed["own"]).any():
            raise SystemExit(f"{source.name}: an unlimited cache does not find all repeated tokens")
        yield f"{name}-curve", of_curve(hit_rates)
        yield f"prefix-caching-{name}.svg", drawn_curve(hit_rates)
        yield f"{name}-replica", of_replica(one_replica(source))
        fleets[source.name] = fleet(source)
        yield f"{name}-fleet", of_fleet(fleets[source.name])
        yield f"{name}-delays", of_delays(delays(source))
    yield "prefix-caching-fleet.svg", drawn_fleet(fleets)


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("folder", type=Path, help="folder with the real traces")
    folder = arguments.parse_args().folder
    for name, text in parts(folder):
        if name.endswith(".svg"):
            (PAGE.parent / name).write_text(text, encoding="utf-8")
            continue
        marked = re.compile(rf"(<!-- prefix_caches.py: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        page = PAGE.read_text(encoding="utf-8")
        page, count = marked.subn(lambda mark, text=text: f"{mark[1]}\n{text}\n\n{mark[2]}", page)
        if count != 1:
            raise SystemExit(f"{PAGE.name}: has no mark for {name}")
        PAGE.write_text(page, encoding="utf-8")
        print(f"{name}\n\n{text}\n")


if __name__ == "__main__":
    main()
