"""The chart of a validation: errors by quantity and server."""

from __future__ import annotations

from itertools import cycle
from typing import Any

from inferq._lazy import alt, pl
from inferq.display.style import BLUE, GRAY, GREEN, INK, ORANGE, PANEL, PURPLE, SKY, VERMILION, colored

_COLORS = (BLUE, ORANGE, GREEN, PURPLE, VERMILION, SKY, GRAY)
_PANELS = {
    "ttft_mean": "TTFT, mean",
    "tpot_mean": "TPOT, mean",
    "e2e_mean": "E2E, mean",
    "req_s": "requests per second",
    "out_tok_s": "output tokens per second",
}
MOST = 1.0
"""The largest error on the axis."""


def of_errors(frame: pl.DataFrame, width: int = 2 * PANEL) -> Any:
    """Plot the error of every evaluated run: a row per server, a panel per quantity.

    Args:
        frame: `Validation.frame`.
        width: width of the plots in pixels.

    Returns:
        An Altair chart without a style. Errors beyond `MOST` are at the edge; a tick marks the median of each
        row.
    """
    server = pl.format("{} {}", pl.col("engine"), pl.col("engine_version").fill_null("?"))
    shown = frame.filter("evaluated").select("metric", "error", "run", server=server, model=pl.col("model"))
    servers = shown["server"].unique().sort().to_list()
    models = shown["model"].unique(maintain_order=True).to_list()
    columns = 2 if width >= 600 else 1
    labels = 7 * max(map(len, servers), default=0) + 12
    each = (width + 46 - labels - 20 * (columns - 1)) // columns
    color = colored(
        "model",
        dict(zip(models, cycle(_COLORS), strict=False)),
        columns=3 if columns == 2 else 1,
        columnPadding=30,
    )
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
            axis=alt.Axis(
                labels=len(panels) % columns == 0,
                ticks=False,
                labelLimit=200,
                minExtent=0 if len(panels) % columns else labels,
            ),
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
        panels.append(layers.properties(width=each, height=alt.Step(22), title=title))
    lines = [alt.hconcat(*panels[at : at + columns], spacing=20) for at in range(0, len(panels), columns)]
    return alt.vconcat(*lines, spacing=20)
