"""Comparison of scheduling policies on real traces, and its page.

    python benches/engines_compared.py TRACES --page docs/guides/compare-engines.md

TRACES is a folder with the Parquet files `azure_llm_2023_conv`, `mooncake_conversation` and
`sharegpt_v3_multiturn_partial`; they are not part of the repository. Without `--page` the tables are printed.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import inferq as iq
from inferq.display.panels import powers
from inferq.display.style import BLUE, GRAY, ORANGE, VERMILION
from inferq_papers import pages
from inferq_papers.report import Picture, Report, Section, Table

LOADS = (0.5, 0.8, 0.95)
MAX_SEQS = 256
TPOT_S = 0.1
"""TPOT objective, seconds."""
GAP_S = 0.5
"""Objective for the longest gap between two tokens, seconds."""
THINK_S = 20.0
"""Mean think time between turns, seconds."""
TURNS = 20_000
"""Number of turns that are replayed, from the start of the file."""

ON = iq.Engine.on(
    "llama-3.1-8b", "a100-80gb", scheduler=iq.VllmV1(), gpu_memory_utilization=0.9, prefix_cache="none"
)
MEMORY = ON.kv.tokens or 0
ENGINES: dict[str, tuple[iq.Scheduler, str]] = {
    "VllmV1": (iq.VllmV1(token_budget=2048, max_seqs=MAX_SEQS, async_scheduling=False), "blocks"),
    "Sarathi": (iq.Sarathi(token_budget=512, max_seqs=MAX_SEQS), "blocks"),
    "Sglang(fcfs)": (iq.Sglang(policy="fcfs", max_seqs=MAX_SEQS, overlap=False), "radix"),
    "Sglang(lpm)": (iq.Sglang(policy="lpm", max_seqs=MAX_SEQS, overlap=False), "radix"),
}
COLORS = dict(zip(ENGINES, (BLUE, GRAY, ORANGE, VERMILION), strict=True))

CHANGED: list[tuple[str, str, dict[str, Any]]] = [
    ("VllmV1, budget 512", "VllmV1", {"token_budget": 512}),
    ("VllmV1, budget 2,048", "VllmV1", {}),
    ("VllmV1, four times the memory", "VllmV1", {"memory": 4}),
    ("VllmV1, budget 8,192", "VllmV1", {"token_budget": 8192}),
    ("Sarathi, budget 2,048", "Sarathi", {"token_budget": 2048}),
    ("Sglang(fcfs), chunks of 2,048", "Sglang(fcfs)", {"chunk_tokens": 2048}),
    ("Sglang(fcfs), mixed", "Sglang(fcfs)", {"mixed": True}),
    ("Sglang(fcfs), chunks of 2,048, mixed", "Sglang(fcfs)", {"chunk_tokens": 2048, "mixed": True}),
    ("Sglang(lpm), chunks of 2,048, mixed", "Sglang(lpm)", {"chunk_tokens": 2048, "mixed": True}),
]
"""Other settings of the same policies: label, policy, changed fields."""


def engine(name: str, memory: int = 1, **changed: Any) -> iq.Engine:
    """An engine with equal timing for all policies, and `memory` times the KV cache."""
    scheduler, prefix_cache = ENGINES[name]
    kv = replace(ON.kv, tokens=memory * MEMORY, prefix_cache=prefix_cache)
    return iq.Engine(timing=ON.timing, scheduler=replace(scheduler, **changed), kv=kv)


# The traces


@cache
def turns(folder: Path) -> pl.DataFrame:
    """Every turn of every conversation, without empty messages."""
    frame = pl.read_parquet(folder / "sharegpt_v3_multiturn_partial.parquet")
    kept = frame.filter((pl.col("prompt_tokens") > 0) & (pl.col("output_tokens") > 0))
    return kept.select("session_id", "turn", "prompt_tokens", "output_tokens").head(TURNS)


def sharegpt(folder: Path, sessions_per_s: float) -> iq.Workload:
    """Conversations with Poisson starts and think times between turns."""
    frame, rng = turns(folder), np.random.default_rng(1)
    first = frame["session_id"] != frame["session_id"].shift(1).fill_null("")
    begins_s = np.cumsum(rng.exponential(1 / sessions_per_s, int(first.sum())))
    think_s = np.where(first.to_numpy(), 0.0, rng.exponential(THINK_S, frame.height))
    session = np.cumsum(first.to_numpy()) - 1
    total = np.cumsum(think_s)
    nominal_s = begins_s[session] + total - total[first.to_numpy()][session]
    timed = frame.with_columns(
        pl.Series("arrival_s", nominal_s),
        think_s=pl.when(~first).then(pl.Series(think_s)),
    )
    return iq.Workload(timed.sort("arrival_s", maintain_order=True))


@dataclass(frozen=True)
class Trace:
    name: str
    about: str
    ttft_s: float
    """TTFT objective."""
    saturated: float
    """Requests per second, see `saturated_rate`."""
    at: dict[float, iq.Workload]
    """The trace at each load."""


def saturated_rate(workload: iq.Workload, served_by: iq.Engine) -> float:
    """Throughput when all requests arrive at time 0, in the order of the trace."""
    frame = workload.open_loop().frame.with_columns(arrival_s=pl.lit(0.0))
    left_s = iq.simulate(iq.Workload(frame), served_by).requests["left_s"].max()
    return frame.height / float(left_s)  # type: ignore[arg-type]


def traces(folder: Path) -> list[Trace]:
    traces = []
    for name, ttft_s, file, about in (
        (
            "Azure conversation",
            2.0,
            "azure_llm_2023_conv",
            "The trace has no information about shared prefixes",
        ),
        (
            "Mooncake conversation",
            10.0,
            "mooncake_conversation",
            "Prompts have hashes of blocks of 512 tokens",
        ),
    ):
        trace = iq.read_trace(folder / f"{file}.parquet")
        rate = saturated_rate(trace, engine("VllmV1"))
        traces.append(Trace(name, about, ttft_s, rate, {load: trace.at_rate(load * rate) for load in LOADS}))
    each = turns(folder).height / turns(folder)["session_id"].n_unique()
    rate = 5.0
    for _ in range(3):  # the hit rate depends on how conversations interleave, and so on the rate
        rate = saturated_rate(sharegpt(folder, rate / each), engine("VllmV1"))
    at = {load: sharegpt(folder, load * rate / each) for load in LOADS}
    about = f"A prompt contains the conversation so far: {each:.1f} turns, mean think time {THINK_S:.0f} s"
    return [*traces, Trace("ShareGPT, multi-turn", about, 2.0, rate, at)]


# One run


def measured(workload: iq.Workload, served_by: iq.Engine, ttft_s: float) -> dict[str, float]:
    """Latency of users, and work of the replica."""
    result = iq.simulate(workload, served_by, iterations=True, timeline_s=1.0)
    requests, summary = result.requests, result.summary().row(0, named=True)
    in_time = requests.filter(pl.col("ttft_s") <= ttft_s)
    steady = in_time.filter(pl.col("tpot_s").fill_null(0) <= TPOT_S).height
    smooth = in_time.filter(pl.col("max_itl_s").fill_null(0) <= GAP_S).height
    return {
        "TTFT p50, s": summary["ttft_p50"],
        "TTFT p99, s": summary["ttft_p99"],
        "ITL p50, ms": 1000 * summary["itl_p50"],
        "ITL p99, ms": 1000 * summary["itl_p99"],
        "good, %": 100 * steady / requests.height,
        "no long gap, %": 100 * smooth / requests.height,
        "goodput, req/s": steady / summary["duration_s"],
        "hit rate, %": 100 * requests["cached_tokens"].sum() / requests["prompt_tokens"].sum(),
        "preemptions per 1,000": 1000 * requests["preemptions"].sum() / requests.height,
        **work(result),
    }


def work(result: iq.Result) -> dict[str, float]:
    """Shares of time and batch sizes, over the busy time of the replica."""
    count = pl.col("count")
    spent_s = count * pl.col("first_s") + pl.col("growth_s") * count * (count - 1) / 2
    parts = result.iterations.with_columns(spent_s=spent_s)
    chunks, decodes = parts.filter(pl.col("prefill_tokens") > 0), parts.filter(pl.col("decodes") > 0)
    alone_s = chunks.filter(pl.col("decodes") == 0)["spent_s"].sum()
    timeline = result.timeline
    return {
        "prefill only, % of time": 100 * alone_s / parts["spent_s"].sum(),
        "prompt tokens per iteration": _mean(chunks, "prefill_tokens"),
        "decodes per iteration": _mean(decodes, "decodes"),
        "longest iteration, ms": 1000 * float(parts["first_s"].max()),  # type: ignore[arg-type]
        "KV cache used, %": 100 * float(timeline["kv_used_tokens"].mean()) / MEMORY,  # type: ignore[arg-type]
        "more than 128 waiting, % of time": 100 * float((timeline["waiting"] > 128).mean()),  # type: ignore[arg-type]
    }


def _mean(parts: pl.DataFrame, column: str) -> float:
    """The mean over iterations; a row holds `count` of them."""
    return float((parts[column] * parts["count"]).sum()) / float(parts["count"].sum())


# The page

USERS = ["TTFT p50, s", "TTFT p99, s", "ITL p50, ms", "ITL p99, ms", "good, %", "no long gap, %",
         "goodput, req/s", "hit rate, %", "preemptions per 1,000"]  # fmt: skip
WORK = ["prefill only, % of time", "prompt tokens per iteration", "decodes per iteration",
        "longest iteration, ms", "KV cache used, %", "more than 128 waiting, % of time"]  # fmt: skip
DECIMALS = {
    **dict.fromkeys([*USERS, *WORK], 1),
    **dict.fromkeys(["TTFT p50, s", "TTFT p99, s", "goodput, req/s", "preemptions per 1,000"], 2),
    **dict.fromkeys(["prompt tokens per iteration", "longest iteration, ms", "ITL p99, ms"], 0),
    "load": 2,
}


def pictured(frame: pl.DataFrame) -> Any:
    """One row per trace: good requests, TTFT and ITL."""
    import altair as alt

    names = list(COLORS)
    color = alt.Color(
        "policy:N",
        sort=names,
        scale=alt.Scale(domain=names, range=list(COLORS.values())),
        legend=alt.Legend(title=None, orient="top", columns=4),
    )
    at = alt.X("load:O", title="load", axis=alt.Axis(format=".2~f", labelAngle=0))
    offset = alt.XOffset("policy:N", sort=names)
    rows = []
    for name in frame["trace"].unique(maintain_order=True):
        of_trace = frame.filter(trace=name)
        row = []
        for column, words in (
            ("good, %", "good requests, %"),
            ("TTFT p99, s", "TTFT p99, s"),
            ("ITL p99, ms", "ITL p99, ms"),
        ):
            base = alt.Chart(of_trace.select("load", "policy", value=column), width=205, height=120)
            if column == "good, %":
                scale = alt.Scale(domain=[0, 100])
                axis = alt.Axis(values=[0, 50, 100])
                drawn = base.mark_bar()
            else:
                values = of_trace[column].cast(pl.Float64).to_list()
                scale = alt.Scale(type="log", domain=[min(values) / 1.4, max(values) * 1.4], nice=False)
                axis = alt.Axis(values=powers(min(values) / 1.4, max(values) * 1.4), format=",~g")
                drawn = base.mark_point(filled=True, size=70, opacity=1)
            height = alt.Y("value:Q", title=None, scale=scale, axis=axis)
            panel = drawn.encode(x=at, xOffset=offset, y=height, color=color)
            row.append(panel.properties(title=alt.TitleParams(words, fontWeight="normal")))
        rows.append(alt.hconcat(*row, spacing=16, title=name))
    return alt.vconcat(*rows, spacing=18)


def report(folder: Path) -> Report:
    at = traces(folder)
    rows, changed, served = [], [], []
    for trace in at:
        for load, workload in trace.at.items():
            for name in ENGINES:
                figures = measured(workload, engine(name), trace.ttft_s)
                rows.append({"trace": trace.name, "load": load, "policy": name, **figures})
        for label, name, change in CHANGED:
            figures = measured(trace.at[LOADS[-1]], engine(name, **change), trace.ttft_s)
            changed.append({"trace": trace.name, "policy": label, **figures})
        rates = {name: saturated_rate(trace.at[LOADS[-1]], engine(name)) for name in ENGINES}
        served.append({"trace": trace.name, **rates})
    frame, other = pl.DataFrame(rows), pl.DataFrame(changed)
    return Report(
        name="compare-engines",
        title="Compare engines",
        citation="`python benches/engines_compared.py TRACES --page docs/guides/compare-engines.md` writes "
        "this page.",
        setting=setting(),
        sections=(
            Section(
                title="Latency and goodput",
                text=about(at),
                pictures=(
                    Picture(
                        title="Good requests, TTFT and ITL by load",
                        caption="Shares of good requests, and 99th percentiles on logarithmic axes. For each "
                        "load, the policies are in the order of the legend.",
                        chart=lambda: pictured(frame),
                    ),
                ),
                tables=tuple(
                    Table(
                        title=trace.name,
                        frame=frame.filter(trace=trace.name).select("load", "policy", *USERS),
                        decimals=DECIMALS,
                    )
                    for trace in at
                ),
            ),
            Section(
                title="Explanation",
                text="The same runs from the view of the replica. *Prefill only* is the share of its "
                "busy time in which it computes prompts and no request decodes.",
                tables=(
                    Table(
                        title="At load 0.8",
                        frame=frame.filter(load=0.8).select("trace", "policy", *WORK),
                        decimals=DECIMALS,
                    ),
                    Table(
                        title="Throughput when all requests arrive at time 0, req/s",
                        frame=pl.DataFrame(served),
                    ),
                    Table(
                        title="Other settings, at load 0.95",
                        frame=other.select("trace", "policy", *USERS[1:6:2], *USERS[4:6:2], "hit rate, %"),
                        decimals=DECIMALS,
                    ),
                ),
                remarks=remarks(frame, other, pl.DataFrame(served)),
            ),
        ),
        slips=(),
        quick=False,
    )


OWN_TRACE = """\
One command compares engines on your own trace. It accepts a server (`vllm`, with its latest known version), a
version (`vllm-0.14`) or a scheduler. Each has the default settings of that server on the GPU.

```sh
inferq compare --engines vllm,sglang,sarathi traces/azure_2023.csv \\
  --model llama-3.1-8b --gpu h100-80gb --rate 8
```

In Python, `iq.compare` accepts the same names. A trace of a few hundred requests, such as this one, is too
short for an interval of its p99. `--columns` reads your own CSV, and `--out page.html` writes a page with
charts.

```python
import inferq as iq

trace = iq.read_trace("traces/azure_2023.csv").at_rate(8)
comparison = iq.compare(trace, ["vllm", "sglang", "sarathi"], model="llama-3.1-8b", gpu="h100-80gb")
print(comparison)
```

The rest of this page compares policies on three real traces.
"""


def setting() -> str:
    """How to compare engines on another trace, and the common settings of this comparison."""
    return f"""
{OWN_TRACE}

## Setting

Four policies serve identical requests with identical timing and memory: measured kernel times of
Llama-3.1-8B on an A100-80GB (`iq.Engine.on(…, gpu_memory_utilization=0.9)`), {MEMORY:,} tokens of KV cache
in blocks of 16, at most {MAX_SEQS} sequences.

| policy | tokens per iteration | prefix cache |
| --- | --- | --- |
| `VllmV1` | budget of 2,048 | `blocks`, as in vLLM |
| `Sarathi` | budget of 512 | `blocks` |
| `Sglang` | prompt chunks of 8,192 | `radix`, as in SGLang |

These are the defaults of each engine. `VllmV1` and `Sglang` form the batches of the real schedulers,
without async scheduling (`async_scheduling=False`, `overlap=False`) and without host overhead. Each trace
is one run: small differences may not transfer to other requests.

*Load* is the mean request rate divided by the throughput of `VllmV1` when all requests arrive at time 0."""


def _busiest(frame: pl.DataFrame) -> float:
    """Rate of the busiest twelfth of the trace, relative to the mean."""
    twelfth = frame["arrival_s"].max() / 12  # type: ignore[operator]
    return 12 * (frame["arrival_s"] // twelfth).value_counts()["count"].max() / frame.height  # type: ignore[operator]


def about(traces: list[Trace]) -> str:
    """The traces and their objectives."""
    lines = []
    for trace in traces:
        frame = trace.at[LOADS[0]].frame
        prompt, output = (frame[name].sum() / frame.height for name in ("prompt_tokens", "output_tokens"))
        lines.append(
            f"- **{trace.name}**: {frame.height:,} requests, mean prompt {prompt:,.0f} and mean output "
            f"{output:,.0f} tokens. {trace.about}. Load 1 is {trace.saturated:.2f} req/s. The busiest "
            f"twelfth of the trace has {_busiest(frame):.2f} times the mean rate. TTFT objective: "
            f"{trace.ttft_s:.0f} s."
        )
    listed = "\n".join(lines)
    return f"""
{listed}

| column | meaning |
| --- | --- |
| good | TTFT objective met, and TPOT at most {1000 * TPOT_S:.0f} ms |
| no long gap | TTFT objective met, and no gap between tokens above {1000 * GAP_S:.0f} ms |
| goodput | good requests per second |
| hit rate | share of prompt tokens found in the prefix cache |
| preemptions | preemptions and SGLang's retractions |

ITL percentiles are over all gaps of all requests."""


SHORT = {
    "azure": "Azure conversation",
    "mooncake": "Mooncake conversation",
    "chat": "ShareGPT, multi-turn",
    "vllm": "VllmV1",
    "sarathi": "Sarathi",
    "fcfs": "Sglang(fcfs)",
    "lpm": "Sglang(lpm)",
    "vllm-memory": "VllmV1, four times the memory",
    "sarathi-2048": "Sarathi, budget 2,048",
    "fcfs-2048": "Sglang(fcfs), chunks of 2,048",
    "mixed": "Sglang(fcfs), chunks of 2,048, mixed",
    "lpm-mixed": "Sglang(lpm), chunks of 2,048, mixed",
    "ttft50": "TTFT p50, s",
    "ttft99": "TTFT p99, s",
    "itl99": "ITL p99, ms",
    "good": "good, %",
    "smooth": "no long gap, %",
    "hits": "hit rate, %",
    "alone": "prefill only, % of time",
    "chunk": "prompt tokens per iteration",
    "longest": "longest iteration, ms",
    "memory": "KV cache used, %",
    "crowd": "more than 128 waiting, % of time",
    "preempted": "preemptions per 1,000",
}
"""Names of table cells in the remarks: `<azure vllm 0.8 itl99>`; without a load, of the other settings at the
last load; `<azure fcfs served>`: throughput relative to VllmV1 when all requests arrive at time 0, in %."""

REMARKS = (
    """
**SGLang lets decodes wait for prefill.** At load 0.8, prefill runs alone for <azure fcfs 0.8 alone>,
<mooncake fcfs 0.8 alone> and <chat fcfs 0.8 alone> % of the time (Azure, Mooncake, ShareGPT). `VllmV1`
mixes decodes and prefill: <azure vllm 0.8 alone>, <mooncake vllm 0.8 alone> and <chat vllm 0.8 alone> %. No
token is emitted meanwhile. On Azure, p99 ITL is <azure fcfs 0.8 itl99> ms, compared with
<azure vllm 0.8 itl99> ms under `VllmV1` and <azure sarathi 0.8 itl99> ms under `Sarathi`.
<azure fcfs 0.8 smooth> % of the requests have no long gap, compared with <azure vllm 0.8 smooth> % under
`VllmV1`.""",
    """
**Token percentiles hide rare long gaps.** On Mooncake at load 0.5, p99 ITL is <mooncake fcfs 0.5 itl99> ms
under `Sglang(fcfs)` and <mooncake vllm 0.5 itl99> ms under `VllmV1`. Still, <mooncake fcfs 0.5 smooth> % of
the requests have no long gap, compared with <mooncake vllm 0.5 smooth> %. Prompts are computed in few
iterations, of <mooncake fcfs 0.5 chunk> tokens on average and up to <mooncake fcfs 0.5 longest> ms: few
gaps, but most requests have one.""",
    """
**Prefill-only iterations reduce throughput**, because each iteration reads the weights whether or not
requests decode. When all requests arrive at time 0, the throughput of `Sglang(fcfs)` relative to `VllmV1`
is <azure fcfs served>, <mooncake fcfs served> and <chat fcfs served> %. `Sarathi` reads the weights more
often, since its iterations have at most 512 tokens: <azure sarathi served>, <mooncake sarathi served> and
<chat sarathi served> %. Queues at equal rates differ accordingly. On Azure at load 0.8, p99 TTFT is
<azure vllm 0.8 ttft99> s under `VllmV1`, <azure fcfs 0.8 ttft99> s under `Sglang(fcfs)` and
<azure sarathi 0.8 ttft99> s under `Sarathi`.""",
    """
**Two settings matter more than the engine**: the token budget, and whether decodes and prefill share a
batch. With 2,048 tokens, and `mixed=True` for SGLang, the three policies are nearly equal. At load 0.95,
good requests under `VllmV1`, `Sarathi` and `Sglang(fcfs)` are <azure vllm 0.95 good>,
<azure sarathi-2048 good> and <azure mixed good> % on Azure, <mooncake vllm 0.95 good>,
<mooncake sarathi-2048 good> and <mooncake mixed good> % on Mooncake, <chat vllm 0.95 good>,
<chat sarathi-2048 good> and <chat mixed good> % on ShareGPT. Chunks of 2,048 without mixed batches do not
help SGLang: <azure fcfs-2048 good> % on Azure, compared with <azure fcfs 0.95 good> % with chunks of
8,192.""",
    """
**The cache holds earlier turns until a queue forms.** On ShareGPT, the hit rate under `VllmV1` is
<chat vllm 0.5 hits> % at load 0.5, <chat vllm 0.8 hits> % at 0.8 and <chat vllm 0.95 hits> % at 0.95. While
a turn waits, the earlier turns are evicted; computing them again makes other requests wait longer. A
slightly slower policy is affected first: at 0.8, `Sglang(fcfs)` has a hit rate of <chat fcfs 0.8 hits> %
and a p99 TTFT of <chat fcfs 0.8 ttft99> s, compared with <chat vllm 0.8 ttft99> s under `VllmV1`.""",
    """
**`lpm` needs shared prefixes and a short queue.** Azure has no prefix information, so both orders are
equal. On Mooncake at load 0.95, the hit rate is <mooncake lpm 0.95 hits> % with `lpm` and
<mooncake fcfs 0.95 hits> % with `fcfs`; the median TTFT is <mooncake lpm 0.95 ttft50> and
<mooncake fcfs 0.95 ttft50> s. SGLang uses `fcfs` while more than 128 requests wait. On ShareGPT at 0.95
this is <chat lpm 0.95 crowd> % of the time; good requests are <chat lpm 0.95 good> and
<chat fcfs 0.95 good> %, and in mixed batches of 2,048 tokens <chat lpm-mixed good> and
<chat mixed good> %.""",
    """
**Memory acts through the hit rate, not through preemption.** With four times the memory, the hit rate of
`VllmV1` at load 0.95 is <mooncake vllm-memory hits> % on Mooncake and <chat vllm-memory hits> % on
ShareGPT, compared with <mooncake vllm 0.95 hits> and <chat vllm 0.95 hits> %. Good requests are
<mooncake vllm-memory good> and <chat vllm-memory good> % instead of <mooncake vllm 0.95 good> and
<chat vllm 0.95 good> %. Preemptions occur only on Mooncake, where a few prompts fill the cache:
<mooncake vllm 0.95 preempted> per 1,000 requests under `VllmV1`, and <mooncake fcfs 0.95 preempted> under
`Sglang(fcfs)`, which admits a request only if its whole output fits next to the expected needs of the
others.""",
)


def remarks(frame: pl.DataFrame, other: pl.DataFrame, served: pl.DataFrame) -> tuple[str, ...]:
    """The remarks, with all numbers taken from the tables."""

    def looked_up(call: re.Match[str]) -> str:
        trace, policy, *load, column = call[1].split()
        if column == "served":
            row = served.filter(trace=SHORT[trace])
            return f"{100 * (row[SHORT[policy]].item() / row['VllmV1'].item() - 1):+.1f}".replace("-", "−")
        table = frame.filter(load=float(load[0])) if load else other
        value = table.filter(trace=SHORT[trace], policy=SHORT[policy])[SHORT[column]].item()
        return f"{value:,.{DECIMALS[SHORT[column]]}f}"

    return tuple(re.sub(r"<([^>]+)>", looked_up, " ".join(text.split())) for text in REMARKS)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("traces", type=Path)
    parser.add_argument("--page", type=Path, help="write the page here, with its charts next to it")
    arguments = parser.parse_args()
    page = report(arguments.traces)
    if arguments.page:
        pages.write(page, arguments.page)
        return
    with pl.Config(tbl_rows=-1, tbl_cols=-1, tbl_width_chars=250):
        for section in page.sections:
            for table in section.tables:
                print(table.title, table.frame, sep="\n")


if __name__ == "__main__":
    main()
