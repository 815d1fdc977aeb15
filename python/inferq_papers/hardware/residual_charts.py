"""Chart of roofline errors against measured tables."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import altair as alt
import polars as pl

from inferq.display import BLUE, GRAY, GREEN, INK, ORANGE, PURPLE, VERMILION, colored

_COLORS = (BLUE, ORANGE, GREEN, PURPLE, VERMILION, GRAY)
_WIDTH = 230
_AXIS = [-0.6, -0.3, 0, 0.3, 0.6]
MOST = 0.75
"""The largest error on the axis."""


def of_residuals(frame: pl.DataFrame) -> Any:
    """The error of every table by regime: a dot at the median, a line from the 5th to the 95th percentile.

    Args:
        frame: result of `inferq.timing.roofline_against_tables`: columns `model`, `gpu`, `tensor_parallel`,
            `regime`, `error`.

    Returns:
        An altair chart without a style: a panel per regime, a row per model, a color per GPU. Errors beyond
        `MOST` are drawn at the edge.
    """
    quantiles = {"low": 0.05, "middle": 0.5, "high": 0.95}
    spans = (
        frame.group_by("regime", "model", "gpu", "tensor_parallel", maintain_order=True)
        .agg(pl.col("error").quantile(share, "linear").alias(name) for name, share in quantiles.items())
        .sort("model", "gpu")
    )
    gpus = spans["gpu"].unique().sort().to_list()
    color = colored("gpu", dict(zip(gpus, cycle(_COLORS), strict=False)))
    scale = alt.Scale(domain=[-MOST, MOST], clamp=True, nice=False)
    regimes = frame["regime"].unique(maintain_order=True).to_list()
    panels = []
    for place, regime in enumerate(regimes):
        errors = alt.Chart(spans.filter(pl.col("regime") == regime))
        y = alt.Y(
            "model:N",
            title=None,
            axis=alt.Axis(labels=place % 2 == 0, ticks=False, labelLimit=200),
        )
        offset = alt.YOffset("gpu:N", sort=gpus)
        title = "roofline / table − 1" if place >= len(regimes) - 2 else None
        x = alt.X("low:Q", title=title, scale=scale, axis=alt.Axis(format="+%", values=_AXIS))
        line = errors.mark_rule(strokeWidth=2).encode(x=x, x2="high:Q", y=y, yOffset=offset, color=color)
        mark = errors.mark_point(filled=True, size=45, opacity=1).encode(
            x=alt.X("middle:Q", scale=scale), y=y, yOffset=offset, color=color
        )
        zero = alt.Chart(pl.DataFrame([{"at": 0.0}])).mark_rule(color=INK, strokeDash=[5, 4])
        panels.append(
            alt.layer(zero.encode(x=alt.X("at:Q", scale=scale)), line, mark).properties(
                width=_WIDTH, height=alt.Step(9), title=regime
            )
        )
    rows = [alt.hconcat(*panels[at : at + 2], spacing=20) for at in range(0, len(panels), 2)]
    return alt.vconcat(*rows, spacing=20)
