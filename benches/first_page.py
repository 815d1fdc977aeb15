"""The picture on the first page: a real hour, at 1.6 times its own rate, on one card.

    python benches/first_page.py TRACES

TRACES is a folder with `azure_llm_2023_conv.parquet`, the conversation trace that Azure published in 2023
(CC BY 4.0, Patel et al., "Splitwise", ISCA 2024), which is no part of the project.
"""

import sys
from pathlib import Path

import polars as pl

import inferq as iq
from inferq.display.style import dark, svg

DOCS = Path(__file__).parent.parent / "docs"


def main() -> None:
    trace = iq.Workload(pl.read_parquet(Path(sys.argv[1]) / "azure_llm_2023_conv.parquet"))
    engine = iq.Engine.on("llama-3.1-8b", "a100-80gb")
    result = iq.simulate(trace.at_rate(9), engine, seed=1)
    print(result.summary().select("completed", "duration_s", "ttft_p50", "ttft_p99"))
    drawing = svg(result.plot.throughput(width=820))
    # One file for both: inside a picture rules need no page around them.
    seen = f"<style>@media (prefers-color-scheme: dark) {{\n{dark('')}\n}}</style>"
    head, tail = drawing.split(">", 1)
    (DOCS / "first-page.svg").write_text(f"{head}>{seen}{tail}", encoding="utf-8")


if __name__ == "__main__":
    main()
