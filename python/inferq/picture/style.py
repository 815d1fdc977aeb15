"""How do the pictures look? One palette, one style."""

from __future__ import annotations

import io
import re
from typing import Any

# Colours that people who do not see red or green can tell apart (Okabe and Ito). One meaning over all pages:
# blue is the policy that is compared with, grey the older engines, warm colours the policies under study and
# what a theory says.
BLUE, SKY = "#0072B2", "#56B4E9"
ORANGE, VERMILION = "#E69F00", "#D55E00"
GREY, INK = "#8A8A8A", "#222222"

FONT = "Liberation Sans, Arial, Helvetica, sans-serif"
"""Faces of one width, that of the letters by which the renderer lays a picture out: labels that fit there fit
in a browser too."""

_NAME = re.compile(r'\bid="([^"]+)"')
_NAMED = re.compile(r'(\bid="|\burl\(#|\bhref="#)([^")]+)')


def _styled(chart: Any) -> Any:
    """A chart in the common style."""
    return (
        chart.configure(background="white", font=FONT, padding=12)
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
    )


def svg(chart: Any, prefix: str = "part-") -> str:
    """An altair chart as SVG, in the common style; the same bytes whenever it is drawn.

    Args:
        chart: without a configuration of its own.
        prefix: with what every name inside begins, so that several pictures can stand in one page.

    Example:
        >>> import altair as alt, polars as pl
        >>> from inferq.picture.style import svg
        >>> line = alt.Chart(pl.DataFrame({"x": [0, 1], "y": [1, 3]})).mark_line().encode(x="x:Q", y="y:Q")
        >>> svg(line).startswith("<svg") and svg(line) == svg(line)
        True
    """
    drawn = io.StringIO()
    _styled(chart).save(drawn, format="svg")
    text = drawn.getvalue()
    # The renderer counts the names of clips on from picture to picture: here each picture counts its own.
    names = {
        name: f"{prefix}{place}" for place, name in enumerate(dict.fromkeys(_NAME.findall(text)), start=1)
    }
    return _NAMED.sub(lambda found: found[1] + names.get(found[2], found[2]), text)
