"""The chart of the README: one and two GPUs under a recorded hour of traffic.

    python benches/first_page.py TRACES

TRACES is a folder with `azure_llm_2023_conv.parquet`, the conversation trace that Azure published in 2023
(CC BY 4.0, Patel et al., "Splitwise", ISCA 2024), which is not part of the repository. The trace is
compressed to 9 requests per second.
"""

import sys
from pathlib import Path
from typing import Any

import altair as alt
import polars as pl

import inferq as iq
from inferq.display.style import BLUE, GRAY, INK, VERMILION, dark, svg

DOCS = Path(__file__).parent.parent / "docs"
WIDTH = 800
RATE = 9.0


def chart(trace: iq.Workload) -> Any:
    """Arrivals against the capacity of one GPU, and p99 TTFT of one and two GPUs, per minute."""
    engine = iq.Engine.on("llama-3.1-8b", "a100-80gb")
    systems = {"1 × A100": engine, "2 × A100": iq.Cluster(engine, replicas=2, router=iq.LeastRequests())}
    minute = (pl.col("arrival_s") // 60 + 0.5).alias("minute")
    rates, latencies = [], []
    for name, system in systems.items():
        requests = iq.simulate(trace, system, seed=1).requests
        ttft = requests.group_by(minute).agg(pl.col("ttft_s").quantile(0.99).alias("ttft_p99"))
        latencies.append(ttft.sort("minute").with_columns(system=pl.lit(name)))
        rates.append(requests.group_by(minute).agg(rate=pl.len() / 60).sort("minute"))
    binding = iq.theory.stability(trace, engine).binding
    assert binding is not None
    top = arrivals(rates[0], binding.capacity_per_s)
    bottom = ttft_panel(pl.concat(latencies))
    return alt.vconcat(top, bottom, spacing=14)


def arrivals(rates: pl.DataFrame, capacity: float) -> Any:
    """Arrivals as a gray area, and the theoretical capacity of one GPU as a dashed line."""
    x = alt.X(
        "minute:Q",
        title=None,
        axis=alt.Axis(labels=False, grid=False, ticks=False),
        scale=alt.Scale(domain=[0, 36], nice=False),
    )
    scale = alt.Scale(domain=[0, 16], nice=False)
    y = alt.Y("rate:Q", title=None, axis=alt.Axis(values=[0, 5, 10, 15]), scale=scale)
    area = alt.Chart(rates).mark_area(color=GRAY, opacity=0.35).encode(x=x, y=y)
    line = pl.DataFrame(
        {
            "rate": [capacity],
            "minute": [0.3],
            "text": [f"theoretical capacity of one A100: {capacity:.1f} req/s"],
        }
    )
    rule = alt.Chart(line).mark_rule(color=INK, strokeDash=[6, 4], strokeWidth=1.3).encode(y="rate:Q")
    text = alt.Chart(line).mark_text(align="left", dy=-8, fontSize=13, color=INK)
    label = pl.DataFrame({"minute": [0.8], "rate": [2.2], "text": ["arrivals"]})
    name = alt.Chart(label).mark_text(align="left", fontSize=13, color=INK)
    layers = (area, rule, text.encode(x=x, y="rate:Q", text="text:N"), name.encode(x=x, y=y, text="text:N"))
    return alt.layer(*layers).properties(width=WIDTH, height=120, title="Requests per second")


def ttft_panel(latencies: pl.DataFrame) -> Any:
    """p99 TTFT of the requests that arrive in each minute, on a logarithmic axis."""
    x = alt.X(
        "minute:Q",
        title="minutes since the start of the trace",
        axis=alt.Axis(tickCount=8, grid=False),
        scale=alt.Scale(domain=[0, 36], nice=False),
    )
    axis = alt.Axis(values=[0.1, 1, 10, 100], format="~g")
    y = alt.Y("ttft_p99:Q", title=None, axis=axis, scale=alt.Scale(type="log", domain=[0.1, 300], nice=False))
    names = latencies["system"].unique(maintain_order=True).to_list()
    color = alt.Color("system:N", legend=None, scale=alt.Scale(domain=names, range=[VERMILION, BLUE]))
    line = alt.Chart(latencies).mark_line(strokeWidth=2.2).encode(x=x, y=y, color=color)
    ends = latencies.filter(pl.col("minute") == 28.5)
    text = alt.Chart(ends).mark_text(align="left", dx=6, dy=-14, fontSize=13, fontWeight="bold")
    title = "Time to first token, seconds (99th percentile, log scale)"
    layers = (line, text.encode(x=x, y=y, color=color, text="system:N"))
    return alt.layer(*layers).properties(width=WIDTH, height=150, title=title)


def main() -> None:
    """Write the chart; its style sheet follows the color scheme of the reader."""
    trace = iq.Workload(pl.read_parquet(Path(sys.argv[1]) / "azure_llm_2023_conv.parquet"))
    drawing = svg(chart(trace.at_rate(RATE)))
    rules = f"<style>@media (prefers-color-scheme: dark) {{\n{dark('')}\n}}</style>"
    head, tail = drawing.split(">", 1)
    (DOCS / "first-page.svg").write_text(f"{head}>{rules}{tail}", encoding="utf-8")


if __name__ == "__main__":
    main()
