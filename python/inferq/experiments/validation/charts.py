"""The chart of a validation: errors by quantity and server."""

from __future__ import annotations

from itertools import cycle
from typing import Any

from inferq._lazy import alt, pl
from inferq.display.style import BLUE, GRAY, GREEN, INK, ORANGE, PURPLE, SKY, VERMILION, colored

_COLORS = (BLUE, ORANGE, GREEN, PURPLE, VERMILION, SKY, GRAY)
_PANELS = {
    "ttft_mean": "time to first token, mean",
    "tpot_mean": "time per output token, mean",
    "e2e_mean": "end to end, mean",
    "req_s": "requests per second",
    "out_tok_s": "output tokens per second",
}
_WIDTH = 230
MOST = 1.0
"""The largest error on the axis."""


def of_errors(frame: pl.DataFrame) -> Any:
    """Plot the error of every evaluated run: a row per server, a panel per quantity.

    Args:
        frame: `Validation.frame`.

    Returns:
        An Altair chart without a style. Errors beyond `MOST` are at the edge; a tick marks the median of each
        row.
    """
    server = pl.format("{} {}", pl.col("engine"), pl.col("engine_version").fill_null("?"))
    shown = frame.filter("evaluated").select("metric", "error", "run", server=server, model=pl.col("model"))
    servers = shown["server"].unique().sort().to_list()
    models = shown["model"].unique(maintain_order=True).to_list()
    color = colored("model", dict(zip(models, cycle(_COLORS), strict=False)), columns=2)
    scale = alt.Scale(domain=[-MOST, MOST], clamp=True, nice=False)
    panels: list[Any] = []
    for metric, title in _PANELS.items():
        rows = shown.filter(metric=metric)
        if not rows.height:
            continue
        y = alt.Y(
            "server:N",
            title=None,
            sort=servers,
            axis=alt.Axis(labels=len(panels) % 2 == 0, ticks=False),
            scale=alt.Scale(domain=servers),
        )
        axis = alt.Axis(format="+%", values=[-1, -0.5, 0, 0.5, 1])
        here = alt.Chart(rows)
        dots = here.mark_point(filled=True, size=26, opacity=0.7).encode(
            x=alt.X("error:Q", title="simulated / measured − 1", scale=scale, axis=axis), y=y, color=color
        )
        middle = here.mark_tick(thickness=2, size=18, color=INK).encode(
            x=alt.X("median(error):Q", scale=scale), y=y
        )
        zero = alt.Chart(pl.DataFrame([{"at": 0.0}])).mark_rule(color=INK, strokeDash=[5, 4])
        layers = alt.layer(zero.encode(x=alt.X("at:Q", scale=scale)), dots, middle)
        panels.append(layers.properties(width=_WIDTH, height=alt.Step(22), title=title))
    lines = [alt.hconcat(*panels[at : at + 2], spacing=20) for at in range(0, len(panels), 2)]
    return alt.vconcat(*lines, spacing=20)
