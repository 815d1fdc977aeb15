"""The chart of a fit: predicted against measured durations."""

from __future__ import annotations

from typing import Any

from inferq._lazy import alt, pl
from inferq.display.style import BLUE, GREEN, INK, ORANGE, PANEL, SKY, colored

_COLORS = {"decode small": SKY, "decode large": BLUE, "prefill": ORANGE, "mixed": GREEN}
_MOST = 2000
"""Maximum points of the chart."""
_HEIGHT = 240


def of_fit(predictions: pl.DataFrame, title: str) -> Any:
    """Chart predicted against measured duration with the diagonal, and the relative error by tokens.

    Args:
        predictions: `Fit.predictions`.
        title: title of the chart.

    Returns:
        An Altair chart without a style.
    """
    every = -(-predictions.height // _MOST)
    points = predictions.gather_every(every).with_columns(
        error=pl.col("predicted_s") / pl.col("measured_s") - 1
    )
    names = [name for name in _COLORS if name in points["regime"].to_list()]
    color = colored("regime", {name: _COLORS[name] for name in names}, orient="top")
    tooltips = [
        alt.Tooltip(field, format=".4g") for field in ("tokens:Q", "measured_s:Q", "predicted_s:Q", "error:Q")
    ]
    dots = alt.Chart(points).mark_circle(size=18, opacity=0.6).encode(color=color, tooltip=tooltips)
    seconds = points.select("measured_s", "predicted_s")
    ends = [min(seconds.min().row(0)), max(seconds.max().row(0))]
    scale, axis = _along(ends)
    diagonal = alt.Chart(_line("measured_s", ends, "predicted_s", ends)).mark_line(
        color=INK, strokeDash=[6, 4]
    )
    left = alt.layer(
        diagonal.encode(x=alt.X("measured_s:Q", scale=scale), y=alt.Y("predicted_s:Q", scale=scale)),
        dots.encode(
            x=alt.X("measured_s:Q", title="measured (s)", scale=scale, axis=axis),
            y=alt.Y("predicted_s:Q", title="predicted (s)", scale=scale, axis=axis),
        ),
    )
    reach = [float(end) for end in points["tokens"].sort().gather([0, -1])]
    zero = alt.Chart(_line("tokens", reach, "error", [0.0, 0.0])).mark_line(color=INK, strokeDash=[6, 4])
    by_tokens, tokens_axis = _along(reach)
    signed = alt.Axis(labelExpr="datum.value == 0 ? '0%' : format(datum.value, '+.2~%')")
    right = alt.layer(
        zero.encode(x=alt.X("tokens:Q", scale=by_tokens), y="error:Q"),
        dots.encode(
            x=alt.X("tokens:Q", title="tokens of the iteration", scale=by_tokens, axis=tokens_axis),
            y=alt.Y("error:Q", title="predicted / measured − 1", axis=signed),
        ),
    )
    panels = [panel.properties(width=PANEL, height=_HEIGHT) for panel in (left, right)]
    return alt.vconcat(*panels).properties(title=title)


def _along(ends: list[float]) -> tuple[Any, Any]:
    """Scale and axis for a range: logarithmic, with few grid lines, if the range is large."""
    low, high = ends
    if low <= 0 or high <= 20 * low:
        return alt.Scale(zero=False), alt.Axis(tickCount=6, format=",~g")
    steps = (1, 2, 5) if high < 300 * low else (1,)
    points = [step * 10.0**power for power in range(-9, 10) for step in steps]
    ticks = [point for point in points if low <= point <= high]
    return alt.Scale(type="log", nice=False, domain=[low, high]), alt.Axis(values=ticks, format=",~g")


def _line(x: str, places: list[Any], y: str, values: list[Any]) -> pl.DataFrame:
    return pl.DataFrame({x: places, y: values})
