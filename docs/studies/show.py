"""How do the studies look? One palette, one style of picture, tables that can be pasted into the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl

# Colours that people who do not see red or green can tell apart (Okabe and Ito). One meaning over all
# studies: blue is the policy that is compared with, grey the older engines, warm colours the policies under
# study and what a theory says.
BLUE, SKY = "#0072B2", "#56B4E9"
ORANGE, VERMILION = "#E69F00", "#D55E00"
GREY, INK = "#8A8A8A", "#222222"


def table(frame: pl.DataFrame, **decimals: int) -> str:
    """A frame in Markdown: numbers with so many decimals (2 unless told), null as a dash."""

    def written(name: str, value: object) -> str:
        if value is None:
            return "–"
        if isinstance(value, float):
            return f"{value:,.{decimals.get(name, 2)}f}"
        return f"{value:,}" if isinstance(value, int) else str(value)

    alignment = ["---:" if frame[name].dtype.is_numeric() else "---" for name in frame.columns]
    rows = [[written(name, value) for name, value in row.items()] for row in frame.iter_rows(named=True)]
    return "\n".join(f"| {' | '.join(row)} |" for row in [frame.columns, alignment, *rows])


def save(chart: Any, path: Path) -> None:
    """Write a chart as SVG, the same bytes whenever it is drawn."""
    (
        chart.configure(background="white", font="sans-serif", padding=12)
        .configure_view(stroke=None)
        .configure_axis(
            labelFontSize=12,
            titleFontSize=12,
            titleFontWeight="normal",
            labelColor=INK,
            titleColor=INK,
            gridColor="#E6E6E6",
            domainColor=GREY,
            tickColor=GREY,
        )
        .configure_legend(
            labelFontSize=12, labelColor=INK, labelLimit=400, symbolStrokeWidth=2.5, symbolSize=90
        )
        .configure_title(fontSize=13, fontWeight="bold", color=INK, anchor="start")
        .configure_text(fontSize=12, color=INK)
        .save(path)
    )
