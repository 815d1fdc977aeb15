"""What distinguishes the systems, in a picture: every difference with its interval."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from inferq.errors import ConfigError
from inferq.picture.style import BLUE, GREY, PANEL, VERMILION

if TYPE_CHECKING:
    from inferq.experiment.comparing.comparison import Comparison

COLOURS = {"better": BLUE, "worse": VERMILION, "not distinguishable": GREY, "same": GREY}
SHAPES = {
    "better": "triangle-up",
    "worse": "triangle-down",
    "not distinguishable": "circle",
    "same": "square",
}


def chart(comparison: Comparison, width: int = PANEL) -> Any:
    """The relative difference of every metric with its interval, a panel for each system but the baseline.

    Colour and shape say the verdict. A metric whose baseline is 0 has no relative difference and is left out,
    as is one that some run does not tell. An altair chart without a configuration of its own.

    Args:
        comparison: of two systems or more.
        width: of a panel, in pixels.

    Raises:
        ConfigError: there is no difference to be drawn.
    """
    import altair as alt
    import polars as pl

    label = pl.col("metric")
    if comparison.by is not None:
        label = pl.when(pl.col("class").is_null()).then(label).otherwise(label + " of " + pl.col("class"))
    half = pl.col("relative_half_width")
    drawn = (
        comparison.frame.filter(pl.col("relative").is_not_null())
        .with_columns(pl.col("verdict").fill_null("not distinguishable"))
        .select(
            "system",
            "verdict",
            label.alias("metric"),
            (100 * pl.col("relative")).alias("percent"),
            (100 * (pl.col("relative") - half)).alias("low"),
            (100 * (pl.col("relative") + half)).alias("high"),
        )
    )
    if drawn.is_empty():
        raise ConfigError("plot: there is no difference to draw")
    order = drawn["metric"].unique(maintain_order=True).to_list()
    verdicts = [verdict for verdict in COLOURS if verdict in set(drawn["verdict"])]
    colour = alt.Color("verdict:N", title=None).scale(
        domain=verdicts, range=[COLOURS[verdict] for verdict in verdicts]
    )
    shape = alt.Shape("verdict:N", title=None).scale(
        domain=verdicts, range=[SHAPES[verdict] for verdict in verdicts]
    )
    rows = alt.Chart().encode(y=alt.Y("metric:N", title=None, sort=order))
    title = f"difference to {comparison.baseline} (%), {100 * comparison.confidence:g} % interval"
    layers = alt.layer(
        alt.Chart().mark_rule(color=GREY).encode(x=alt.datum(0)),
        rows.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q", title=title), x2="high:Q", color=colour),
        rows.mark_point(filled=True, size=70, opacity=1).encode(x="percent:Q", color=colour, shape=shape),
        data=drawn,
    ).properties(width=width, height=alt.Step(26))
    systems = [name for name in comparison.systems if name != comparison.baseline]
    if len(systems) == 1:
        return layers.properties(title=f"{systems[0]} against {comparison.baseline}")
    header = alt.Header(labelOrient="top", labelAnchor="start", labelFontSize=13, labelFontWeight="bold")
    return layers.facet(row=alt.Row("system:N", title=None, sort=systems, header=header))
