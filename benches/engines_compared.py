"""Which engine's policy suits which trace? Runs the comparison and writes its page.

    python benches/engines_compared.py TRACES --page docs/guides/compare-engines.md

TRACES is a folder with the Parquet files `azure_llm_2023_conv`, `mooncake_conversation` and
`sharegpt_v3_multiturn_partial`; they are no part of the project. Without `--page` the tables are printed.
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
from inferq_papers.report import Picture, Report, Section, Table

LOADS = (0.5, 0.8, 0.95)
MAX_SEQS = 256
TPOT_S = 0.1
"""Objective: mean time for each token after the first."""
GAP_S = 0.5
"""Objective: longest time between two tokens."""
THINK_S = 20.0
"""Mean time from an answer to what the user says next."""
TURNS = 20_000
"""Turns of the conversations that are replayed, the first of the file."""

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
"""Other settings of the same policies: a label, whose, and what is changed."""


def engine(name: str, memory: int = 1, **changed: Any) -> iq.Engine:
    """The same clock and the same memory for all, unless it is to be so many times as much."""
    scheduler, prefix_cache = ENGINES[name]
    kv = replace(ON.kv, tokens=memory * MEMORY, prefix_cache=prefix_cache)
    return iq.Engine(timing=ON.timing, scheduler=replace(scheduler, **changed), kv=kv)


# The traces


@cache
def turns(folder: Path) -> pl.DataFrame:
    """Every answer of every conversation; those with an empty message are left out."""
    frame = pl.read_parquet(folder / "sharegpt_v3_multiturn_partial.parquet")
    kept = frame.filter((pl.col("prompt_tokens") > 0) & (pl.col("output_tokens") > 0))
    return kept.select("session_id", "turn", "prompt_tokens", "output_tokens").head(TURNS)


def sharegpt(folder: Path, sessions_per_s: float) -> iq.Workload:
    """Conversations begin at random; between an answer and what the user says next, time to think."""
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
    """Objective for the first token."""
    saturated: float
    """Requests a second, see `saturated_rate`."""
    at: dict[float, iq.Workload]
    """The trace at each load."""


def saturated_rate(workload: iq.Workload, served_by: iq.Engine) -> float:
    """Requests a second that are served when all of them are there from the start, in the trace's order."""
    frame = workload.open_loop().frame.with_columns(arrival_s=pl.lit(0.0))
    left_s = iq.simulate(iq.Workload(frame), served_by).requests["left_s"].max()
    return frame.height / float(left_s)  # type: ignore[arg-type]


def traces(folder: Path) -> list[Trace]:
    found = []
    for name, ttft_s, file, about in (
        ("Azure conversation", 2.0, "azure_llm_2023_conv", "Nothing is known of what prompts share"),
        (
            "Mooncake conversation",
            10.0,
            "mooncake_conversation",
            "Of each block of 512 tokens of a prompt it is known which were the same",
        ),
    ):
        trace = iq.read_trace(folder / f"{file}.parquet")
        rate = saturated_rate(trace, engine("VllmV1"))
        found.append(Trace(name, about, ttft_s, rate, {load: trace.at_rate(load * rate) for load in LOADS}))
    each = turns(folder).height / turns(folder)["session_id"].n_unique()
    rate = 5.0
    for _ in range(3):  # how conversations lie between each other, and so what is found, depends on the rate
        rate = saturated_rate(sharegpt(folder, rate / each), engine("VllmV1"))
    at = {load: sharegpt(folder, load * rate / each) for load in LOADS}
    told = f"A prompt is the conversation so far: {each:.1f} turns, {THINK_S:.0f} s between them in the mean"
    return [*found, Trace("ShareGPT, multi-turn", told, 2.0, rate, at)]


# One run


def measured(workload: iq.Workload, served_by: iq.Engine, ttft_s: float) -> dict[str, float]:
    """What users see, and what the replica did."""
    result = iq.simulate(workload, served_by, iterations=True, timeline_s=1.0)
    requests, told = result.requests, result.summary().row(0, named=True)
    in_time = requests.filter(pl.col("ttft_s") <= ttft_s)
    steady = in_time.filter(pl.col("tpot_s").fill_null(0) <= TPOT_S).height
    smooth = in_time.filter(pl.col("max_itl_s").fill_null(0) <= GAP_S).height
    return {
        "TTFT p50, s": told["ttft_p50"],
        "TTFT p99, s": told["ttft_p99"],
        "ITL p50, ms": 1000 * told["itl_p50"],
        "ITL p99, ms": 1000 * told["itl_p99"],
        "good, %": 100 * steady / requests.height,
        "good without a gap, %": 100 * smooth / requests.height,
        "goodput, requests/s": steady / told["duration_s"],
        "hit rate, %": 100 * requests["cached_tokens"].sum() / requests["prompt_tokens"].sum(),
        "preempted per 1,000": 1000 * requests["preemptions"].sum() / requests.height,
        **work(result),
    }


def work(result: iq.Result) -> dict[str, float]:
    """Which requests computed and which waited, over the time in which the replica computed."""
    count = pl.col("count")
    spent_s = count * pl.col("first_s") + pl.col("growth_s") * count * (count - 1) / 2
    parts = result.iterations.with_columns(spent_s=spent_s)
    chunks, decodes = parts.filter(pl.col("prefill_tokens") > 0), parts.filter(pl.col("decodes") > 0)
    alone_s = chunks.filter(pl.col("decodes") == 0)["spent_s"].sum()
    timeline = result.timeline
    return {
        "prompts alone, % of time": 100 * alone_s / parts["spent_s"].sum(),
        "prompt tokens an iteration": _mean(chunks, "prefill_tokens"),
        "decodes an iteration": _mean(decodes, "decodes"),
        "longest iteration, ms": 1000 * float(parts["first_s"].max()),  # type: ignore[arg-type]
        "memory used, %": 100 * float(timeline["kv_used_tokens"].mean()) / MEMORY,  # type: ignore[arg-type]
        "over 128 wait, % of time": 100 * float((timeline["waiting"] > 128).mean()),  # type: ignore[arg-type]
    }


def _mean(parts: pl.DataFrame, column: str) -> float:
    """Over iterations: each row is `count` of them."""
    return float((parts[column] * parts["count"]).sum()) / float(parts["count"].sum())


# The page

USERS = ["TTFT p50, s", "TTFT p99, s", "ITL p50, ms", "ITL p99, ms", "good, %", "good without a gap, %",
         "goodput, requests/s", "hit rate, %", "preempted per 1,000"]  # fmt: skip
WORK = ["prompts alone, % of time", "prompt tokens an iteration", "decodes an iteration",
        "longest iteration, ms", "memory used, %", "over 128 wait, % of time"]  # fmt: skip
DECIMALS = {
    **dict.fromkeys([*USERS, *WORK], 1),
    **dict.fromkeys(["TTFT p50, s", "TTFT p99, s", "goodput, requests/s", "preempted per 1,000"], 2),
    **dict.fromkeys(["prompt tokens an iteration", "longest iteration, ms", "ITL p99, ms"], 0),
    "load": 2,
}


def pictured(frame: pl.DataFrame) -> Any:
    """A row for each trace: how many requests are good, and how late first tokens and others come."""
    import altair as alt

    names = list(COLORS)
    color = alt.Color(
        "policy:N",
        sort=names,
        scale=alt.Scale(domain=names, range=list(COLORS.values())),
        legend=alt.Legend(title=None, orient="top", columns=4),
    )
    at = alt.X("load:O", title="load", axis=alt.Axis(format=".2~f", labelAngle=0))
    beside = alt.XOffset("policy:N", sort=names)
    rows = []
    for name in frame["trace"].unique(maintain_order=True):
        of_trace = frame.filter(trace=name)
        row = []
        for column, words in (
            ("good, %", "good requests, %"),
            ("TTFT p99, s", "TTFT p99, s"),
            ("ITL p99, ms", "ITL p99, ms"),
        ):
            told = alt.Chart(of_trace.select("load", "policy", value=column), width=205, height=120)
            if column == "good, %":
                scale = alt.Scale(domain=[0, 100])
                axis = alt.Axis(values=[0, 50, 100])
                drawn = told.mark_bar()
            else:
                values = [float(one) for one in of_trace[column]]
                scale = alt.Scale(type="log", domain=[min(values) / 1.4, max(values) * 1.4], nice=False)
                axis = alt.Axis(values=powers(min(values) / 1.4, max(values) * 1.4), format=",~g")
                drawn = told.mark_point(filled=True, size=70, opacity=1)
            height = alt.Y("value:Q", title=None, scale=scale, axis=axis)
            panel = drawn.encode(x=at, xOffset=beside, y=height, color=color)
            row.append(panel.properties(title=alt.TitleParams(words, fontWeight="normal")))
        rows.append(alt.hconcat(*row, spacing=16, title=name))
    return alt.vconcat(*rows, spacing=18)


def report(folder: Path) -> Report:
    at = traces(folder)
    rows, changed, served = [], [], []
    for trace in at:
        for load, workload in trace.at.items():
            for name in ENGINES:
                told = measured(workload, engine(name), trace.ttft_s)
                rows.append({"trace": trace.name, "load": load, "policy": name, **told})
        for label, name, change in CHANGED:
            told = measured(trace.at[LOADS[-1]], engine(name, **change), trace.ttft_s)
            changed.append({"trace": trace.name, "policy": label, **told})
        rates = {name: saturated_rate(trace.at[LOADS[-1]], engine(name)) for name in ENGINES}
        served.append({"trace": trace.name, **rates})
    frame, other = pl.DataFrame(rows), pl.DataFrame(changed)
    return Report(
        name="compare-engines",
        title="Which engine's policy suits my trace?",
        citation="Every number and picture of this page comes from `python benches/engines_compared.py "
        "TRACES --page docs/guides/compare-engines.md`.",
        setting=setting(),
        sections=(
            Section(
                title="What do users see?",
                text=about(at),
                pictures=(
                    Picture(
                        title="Requests served well, first tokens and gaps between tokens, by load",
                        caption="The shares of good requests, and 99th percentiles on logarithmic axes: for "
                        "each load the policies side by side, in the order of the key.",
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
                title="What explains it?",
                text="The same runs, seen from the replica. *Prompts alone*: the share of its working "
                "time in which it computes prompts and no request decodes.",
                tables=(
                    Table(
                        title="At load 0.8",
                        frame=frame.filter(load=0.8).select("trace", "policy", *WORK),
                        decimals=DECIMALS,
                    ),
                    Table(
                        title="Requests a second when all of them are there from the start",
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
On a trace of your own this is one command. It takes a server's newest version, a stated one (`vllm-0.14`) or
a scheduler, each with what it does unasked on that card, and says which differences are real:

```sh
inferq compare --engines vllm,sglang,sarathi traces/azure_2023.csv \\
  --model llama-3.1-8b --gpu h100-80gb --rate 8
```

In Python `iq.compare` takes the same names. A trace of a few hundred requests, as this one, has no intervals
for its slowest hundredth; give `--columns` for a CSV of your own, and `--out page.html` for a page with
pictures.

```python
import inferq as iq

trace = iq.read_trace("traces/azure_2023.csv").at_rate(8)
found = iq.compare(trace, ["vllm", "sglang", "sarathi"], model="llama-3.1-8b", gpu="h100-80gb")
print(found)
```

What follows are three real traces, in full.
"""


def setting() -> str:
    """How to ask it of another trace; then what is the same for all of these, and what is not."""
    return f"""
{OWN_TRACE}

Four policies serve the same requests with the same clock and the same memory: the measured times of
Llama-3.1-8B on an A100 of 80 GB (`iq.Engine.on(…, gpu_memory_utilization=0.9)`), {MEMORY:,} tokens of KV cache
in blocks of 16, at most {MAX_SEQS} requests at once. Each has the budget with which its engine comes:
`VllmV1` computes up to 2,048 tokens in an iteration, `Sarathi` 512, `Sglang` chunks of 8,192 of prompts; what
other budgets change stands below. `VllmV1` and `Sarathi` find prefixes with the cache of vLLM
(`prefix_cache="blocks"`), `Sglang` with its own (`"radix"`). `VllmV1` and `Sglang` form the batches that the
real schedulers form, scheduling and GPU one after the other (`async_scheduling=False`, `overlap=False`);
host time is left out. Each trace is one run: differences are
differences on these requests, and small ones say little about others.

*Load* is the rate of requests over the rate at which `VllmV1` serves the same requests when all of them are
there from the start: what memory and clock allow when a request is always there. It is the mean over the
trace, whose rate rises and falls."""


def _busiest(frame: pl.DataFrame) -> float:
    """How many times the mean rate arrives in the fullest twelfth of the trace's time."""
    twelfth = frame["arrival_s"].max() / 12  # type: ignore[operator]
    return 12 * (frame["arrival_s"] // twelfth).value_counts()["count"].max() / frame.height  # type: ignore[operator]


def about(traces: list[Trace]) -> str:
    """The traces, and what counts as good."""
    lines = []
    for trace in traces:
        frame = trace.at[LOADS[0]].frame
        prompt, output = (frame[name].sum() / frame.height for name in ("prompt_tokens", "output_tokens"))
        lines.append(
            f"- **{trace.name}**: {frame.height:,} requests, prompts of {prompt:,.0f} and answers of "
            f"{output:,.0f} tokens in the mean. {trace.about}. Load 1 is {trace.saturated:.2f} requests a "
            f"second; in the busiest twelfth of its time {_busiest(frame):.2f} times the mean arrive. In "
            f"time: first token within {trace.ttft_s:.0f} s."
        )
    listed = "\n".join(lines)
    return f"""
{listed}

TTFT is the time to the first token, ITL the time between two tokens of a request (percentiles over all of
them). *Good* is a request whose first token comes in time and whose others take at most
{1000 * TPOT_S:.0f} ms each in the mean; *good without a gap* one whose first comes in time and that never
waits longer than {1000 * GAP_S:.0f} ms for another. Goodput counts the good ones. The hit rate is the share
of prompt tokens that were found in the cache; *preempted* counts preemptions, and SGLang's retractions."""


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
    "smooth": "good without a gap, %",
    "hits": "hit rate, %",
    "alone": "prompts alone, % of time",
    "chunk": "prompt tokens an iteration",
    "longest": "longest iteration, ms",
    "memory": "memory used, %",
    "crowd": "over 128 wait, % of time",
    "preempted": "preempted per 1,000",
}
"""How the remarks call the cells of the tables: `<azure vllm 0.8 itl99>`; without a load, those of other
settings, at the last load; `<azure fcfs served>`: in %, how many more are served than by VllmV1 when all are
there from the start."""

REMARKS = (
    """
**SGLang lets decodes wait for prompts.** At load 0.8 prompts are computed alone during
<azure fcfs 0.8 alone>, <mooncake fcfs 0.8 alone> and <chat fcfs 0.8 alone> % of the time (Azure,
Mooncake, ShareGPT); under `VllmV1`, which decodes beside prompts, during <azure vllm 0.8 alone>,
<mooncake vllm 0.8 alone> and <chat vllm 0.8 alone> %. Meanwhile no token is emitted: the 99th percentile
of ITL on Azure is <azure fcfs 0.8 itl99> ms, that of `VllmV1` <azure vllm 0.8 itl99> and of `Sarathi`
<azure sarathi 0.8 itl99>; and <azure fcfs 0.8 smooth> % of the requests are good without a gap, under
`VllmV1` <azure vllm 0.8 smooth> %.""",
    """
**Percentiles over tokens hide rare long gaps.** On Mooncake at load 0.5 the 99th percentile of ITL under
`Sglang(fcfs)` is <mooncake fcfs 0.5 itl99> ms, under `VllmV1` <mooncake vllm 0.5 itl99>; and yet
<mooncake fcfs 0.5 smooth> % of the requests are good without a gap, under `VllmV1`
<mooncake vllm 0.5 smooth> %. Prompts are computed in few iterations, of <mooncake fcfs 0.5 chunk> tokens
in the mean, the longest <mooncake fcfs 0.5 longest> ms: few gaps, but most requests meet one.""",
    """
**A policy that computes prompts alone serves fewer requests**, since an iteration reads the weights
whether or not requests decode beside the prompts. When all are there from the start, `Sglang(fcfs)` serves
<azure fcfs served>, <mooncake fcfs served> and <chat fcfs served> % beside `VllmV1`; `Sarathi`, whose
iterations of at most 512 tokens read the weights more often, <azure sarathi served>,
<mooncake sarathi served> and <chat sarathi served> %. So queues differ at one rate: the 99th percentile
of TTFT on Azure at load 0.8 is <azure vllm 0.8 ttft99> s under `VllmV1`, <azure fcfs 0.8 ttft99> s under
`Sglang(fcfs)` and <azure sarathi 0.8 ttft99> s under `Sarathi`.""",
    """
**The name of the engine says less than two settings**: the budget, and whether decodes go on beside
prompts. With 2,048 tokens, and `mixed=True` for SGLang, `VllmV1`, `Sarathi` and `Sglang(fcfs)` are nearly
one: at load 0.95 good are <azure vllm 0.95 good>, <azure sarathi-2048 good> and <azure mixed good> % on
Azure, <mooncake vllm 0.95 good>, <mooncake sarathi-2048 good> and <mooncake mixed good> % on Mooncake,
<chat vllm 0.95 good>, <chat sarathi-2048 good> and <chat mixed good> % on ShareGPT. Chunks of 2,048
without decodes beside them do not help SGLang: good are <azure fcfs-2048 good> % on Azure, with chunks of
8,192 <azure fcfs 0.95 good> %.""",
    """
**The cache holds the earlier turns of conversations, until a queue forms.** On ShareGPT `VllmV1` finds
<chat vllm 0.5 hits> % of the prompt tokens at load 0.5, <chat vllm 0.8 hits> % at 0.8 and
<chat vllm 0.95 hits> % at 0.95: while a turn waits, the turns before it are evicted; they must be
computed again, and other requests wait the longer. A slightly slower policy falls first: at 0.8
`Sglang(fcfs)` finds <chat fcfs 0.8 hits> %, and its 99th percentile of TTFT is <chat fcfs 0.8 ttft99> s,
that of `VllmV1` <chat vllm 0.8 ttft99> s.""",
    """
**`lpm` needs something to find, and a queue that is not too long.** On Azure nothing is known of
prefixes, and both orders do the same. On Mooncake at load 0.95 `lpm` finds <mooncake lpm 0.95 hits> %,
`fcfs` <mooncake fcfs 0.95 hits> %, and the median TTFT is <mooncake lpm 0.95 ttft50> and
<mooncake fcfs 0.95 ttft50> s. On ShareGPT at 0.95 more than 128 wait during <chat lpm 0.95 crowd> % of
the time, in which it is `fcfs`; good are <chat lpm 0.95 good> and <chat fcfs 0.95 good> %, in mixed
batches of 2,048 tokens <chat lpm-mixed good> and <chat mixed good> %.""",
    """
**Memory decides through what is found, not through preemption.** With four times the memory `VllmV1`
finds <mooncake vllm-memory hits> % on Mooncake and <chat vllm-memory hits> % on ShareGPT at load 0.95,
with this memory <mooncake vllm 0.95 hits> and <chat vllm 0.95 hits> %; good are
<mooncake vllm-memory good> and <chat vllm-memory good> %, not <mooncake vllm 0.95 good> and
<chat vllm 0.95 good> %. Requests are preempted on Mooncake alone, where a few prompts fill the cache:
<mooncake vllm 0.95 preempted> of 1,000 under `VllmV1`, <mooncake fcfs 0.95 preempted> under
`Sglang(fcfs)`, which admits a request only if its whole output fits beside what the others are expected
to need.""",
)


def remarks(frame: pl.DataFrame, other: pl.DataFrame, served: pl.DataFrame) -> tuple[str, ...]:
    """What the numbers say; every one is looked up."""

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
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("traces", type=Path)
    asked.add_argument("--page", type=Path, help="where the page is written, its picture beside it")
    given = asked.parse_args()
    made = report(given.traces)
    if given.page:
        made.write(given.page)
        return
    with pl.Config(tbl_rows=-1, tbl_cols=-1, tbl_width_chars=250):
        for section in made.sections:
            for table in section.tables:
                print(table.title, table.frame, sep="\n")


if __name__ == "__main__":
    main()
