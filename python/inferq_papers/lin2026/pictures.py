"""Charts of lin2026."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import polars as pl

from inferq.display import BLUE, INK, ORANGE, SKY, VERMILION, colored

_SLOTS = {"B = 8": ORANGE, "B = 16": BLUE}
_SCHEMES = {"bundled": BLUE, "separate": SKY}
_SERIES = {
    "gate-and-route, bundled": BLUE,
    "gate-and-route, separate": SKY,
    "prioritize-and-route, separate": ORANGE,
}
_QUEUES = {
    "prefill 0": ("decode-heavy, before prefill", BLUE),
    "decode 0": ("decode-heavy, before decode", SKY),
    "prefill 1": ("prefill-heavy, before prefill", VERMILION),
    "decode 1": ("prefill-heavy, before decode", ORANGE),
}
_LOWEST = {16: 0.92, 8: 0.6}
"""Start of the axis of shares by B; intervals are clipped at its ends."""


def arrivals(frame: pl.DataFrame) -> Any:
    """Figure 2: for each scheme revenue above, waiting requests below."""
    names = {key: name for key, (name, _) in _QUEUES.items()}
    dashes = [[1, 0], [1, 0], [7, 5], [7, 5]]  # the second class is dashed, where lines lie upon each other
    waiting = frame.unpivot(index=["scheme", "rate"], on=list(_QUEUES), variable_name="queue").with_columns(
        pl.col("queue").replace_strict(names)
    )
    x = alt.X(
        "rate:Q", title="arrival rate λ of each class, per second and replica", axis=alt.Axis(grid=False)
    )
    columns: list[Any] = []
    for scheme in ("bundled", "separate"):
        revenue = (
            alt.Chart(frame.filter(pl.col("scheme") == scheme))
            .mark_line(strokeWidth=2.5, color=INK)
            .encode(
                x=alt.X("rate:Q", title=None, axis=alt.Axis(grid=False, labels=False)),
                y=alt.Y("revenue:Q", title="money/s per replica", scale=alt.Scale(domain=[0, 500])),
            )
            .properties(width=360, height=140, title=f"{scheme.capitalize()} prices")
        )
        queues = (
            alt.Chart(waiting.filter(pl.col("scheme") == scheme))
            .mark_line(strokeWidth=2.5)
            .encode(
                x=x,
                y=alt.Y("value:Q", title="waiting per replica", scale=alt.Scale(domain=[0, 12])),
                color=colored(
                    "queue", dict(_QUEUES.values()), columns=2, symbolType="stroke", symbolSize=400
                ),
                strokeDash=alt.StrokeDash(
                    "queue:N", scale=alt.Scale(domain=list(names.values()), range=dashes), legend=None
                ),
            )
            .properties(width=360, height=140)
        )
        columns.append(alt.vconcat(revenue, queues, spacing=8))
    return alt.hconcat(*columns, spacing=28).resolve_scale(color="shared")


def frontiers(frame: pl.DataFrame, limits: Sequence[str]) -> Any:
    """Figure 8: for each limit revenue above, its shadow price below, a line for each B."""
    columns: list[Any] = []
    for limit in limits:
        base = alt.Chart(frame.filter(pl.col("limit") == limit)).encode(
            color=colored("B", _SLOTS, symbolType="stroke", symbolSize=400)
        )
        zoomed = alt.Scale(zero=False, nice=False)
        ticks: dict[str, Any] = {"grid": False, "tickCount": 4, "labelFlush": False}
        revenue = base.mark_line(strokeWidth=2.5).encode(
            x=alt.X("value:Q", title=None, scale=zoomed, axis=alt.Axis(labels=False, **ticks)),
            y=alt.Y(
                "revenue:Q",
                title="money/s per replica" if limit == limits[0] else None,
                scale=alt.Scale(domain=[0, 300]),
            ),
        )
        price = base.mark_line(strokeWidth=2.5, interpolate="step-before").encode(
            x=alt.X("value:Q", title=limit, scale=zoomed, axis=alt.Axis(**ticks)),
            y=alt.Y(
                "price:Q",
                title="price, money/s per unit" if limit == limits[0] else None,
                axis=alt.Axis(format="~s", tickCount=5),
            ),
        )
        columns.append(
            alt.vconcat(
                revenue.properties(width=220, height=170, title=limit.split(",")[0]),
                price.properties(width=220, height=110),
                spacing=8,
            )
        )
    return alt.hconcat(*columns, spacing=20).resolve_scale(color="shared")


def hardware(frame: pl.DataFrame, parameters: Sequence[str]) -> Any:
    """Figure 9: for each parameter revenue above, TPOT below."""
    columns: list[Any] = []
    for parameter in parameters:
        base = alt.Chart(frame.filter(pl.col("parameter") == parameter))
        first = parameter == parameters[0]
        revenue = base.mark_line(strokeWidth=2.5, color=BLUE).encode(
            x=alt.X("value:Q", title=None, axis=alt.Axis(grid=False, labels=False, tickCount=5)),
            y=alt.Y(
                "revenue:Q",
                title="money/s per replica" if first else None,
                scale=alt.Scale(domain=[0, 310]),
            ),
        )
        slow = base.mark_line(strokeWidth=2.5, color=VERMILION).encode(
            x=alt.X("value:Q", title=parameter, axis=alt.Axis(grid=False, tickCount=5, labelFlush=False)),
            y=alt.Y(
                "tpot_ms:Q",
                title="TPOT, ms" if first else None,
                scale=alt.Scale(type="log", domain=[20, 1000]),
                axis=alt.Axis(values=[20, 50, 100, 200, 500, 1000], format=",d"),
            ),
        )
        columns.append(
            alt.vconcat(
                revenue.properties(width=160, height=150), slow.properties(width=160, height=120), spacing=8
            )
        )
    return alt.hconcat(*columns, spacing=16)


def landscapes(hardware: pl.DataFrame, prices: pl.DataFrame) -> Any:
    """Figure 10: revenue over B and β, and over both prices."""

    def heat(frame: pl.DataFrame, across: str, up: str, titles: tuple[str, str]) -> Any:
        color = alt.Color(
            "revenue:Q",
            title="money/s per replica",
            scale=alt.Scale(scheme="viridis"),
            legend=alt.Legend(orient="bottom", gradientLength=260, titleFontWeight="normal"),
        )
        values = sorted(frame[up].unique(), reverse=True)
        return (
            alt.Chart(frame)
            .mark_rect()
            .encode(
                x=alt.X(
                    f"{across}:O",
                    title=titles[0],
                    axis=alt.Axis(labelAngle=0, format="~g", labelOverlap=True),
                ),
                y=alt.Y(
                    f"{up}:O", title=titles[1], sort=values, axis=alt.Axis(format="~g", labelOverlap=True)
                ),
                color=color,
            )
            .properties(width=320, height=280)
        )

    left = heat(hardware, "B", "β", ("batch B", "β, s per token")).properties(title="Memory against speed")
    both = heat(prices, "c_p", "c_d", ("price of a prompt token c_p", "price of an output token c_d"))
    budget = (
        alt.Chart(prices.filter((pl.col("c_p") + pl.col("c_d") - 0.3).abs() < 0.011))
        .mark_line(color="white", strokeWidth=2, strokeDash=[4, 3])
        .encode(x="c_p:O", y=alt.Y("c_d:O", sort=sorted(prices["c_d"].unique(), reverse=True)))
    )
    right = alt.layer(both, budget).properties(title="Prices of tokens, B = 8")
    return alt.hconcat(left, right, spacing=40).resolve_scale(color="independent")


def _bounded(frame: pl.DataFrame, ends: tuple[float, float]) -> pl.DataFrame:
    """The frame with interval ends, clipped to the axis."""
    return frame.with_columns(
        (pl.col("share") - pl.col("half")).clip(*ends).alias("low"),
        (pl.col("share") + pl.col("half")).clip(*ends).alias("high"),
    )


def _optimum() -> Any:
    return alt.Chart(pl.DataFrame({"share": [1.0]})).mark_rule(color=INK, strokeDash=[2, 2])


def convergence(frame: pl.DataFrame, sizes: Sequence[int]) -> Any:
    """Figure 4a: revenue over the optimum against n, for each B."""
    columns: list[Any] = []
    for slots in frame["B"].unique(maintain_order=True):
        ends = (_LOWEST[slots], 1.02)
        scale = alt.Scale(domain=list(ends), nice=False)
        axis = alt.Axis(format=".0%", tickCount=6)
        base = alt.Chart(_bounded(frame.filter(pl.col("B") == slots), ends)).encode(
            x=alt.X(
                "n:Q",
                title="replicas n",
                scale=alt.Scale(type="log", domain=[4, 1.25 * max(sizes)], nice=False),
                axis=alt.Axis(values=list(sizes), format=",d", grid=False),
            ),
            color=colored("measure", _SERIES, columns=3, symbolType="stroke", symbolSize=400),
        )
        height = alt.Y("share:Q", title=None, scale=scale, axis=axis)
        lines = base.mark_line(strokeWidth=2.5, point=alt.OverlayMarkDef(size=40, filled=True))
        bars = base.mark_rule(strokeWidth=1.5).encode(y=alt.Y("low:Q", scale=scale), y2="high:Q")
        layers = alt.layer(_optimum().encode(y=height), bars, lines.encode(y=height))
        columns.append(
            layers.properties(width=400, height=230, title=f"Revenue over the optimum, B = {slots}")
        )
    return alt.hconcat(*columns, spacing=28).resolve_scale(color="shared")


def policies(frame: pl.DataFrame, names: Sequence[str]) -> Any:
    """Figure 7's policies: both revenues over their optima, for each B and n."""
    columns: list[Any] = []
    for slots, replicas in frame.select("B", "n").unique(maintain_order=True).iter_rows():
        ends = (_LOWEST[slots], 1.02)
        scale = alt.Scale(domain=list(ends), nice=False)
        axis = alt.Axis(format=".0%", tickCount=6)
        base = alt.Chart(_bounded(frame.filter(pl.col("B") == slots), ends)).encode(
            y=alt.Y(
                "policy:N",
                title=None,
                sort=list(names),
                axis=alt.Axis(labelLimit=220, grid=True, tickSize=0, labels=not columns),
            ),
            color=colored("scheme", _SCHEMES, columns=2, symbolType="circle"),
        )
        along = alt.X("share:Q", title=None, scale=scale, axis=axis)
        bars = base.mark_rule(strokeWidth=1.5).encode(x=alt.X("low:Q", scale=scale), x2="high:Q")
        marks = base.mark_point(size=70, filled=True, opacity=1).encode(x=along)
        layers = alt.layer(_optimum().encode(x=along), bars, marks)
        columns.append(
            layers.properties(
                width=380, height=230, title=f"Revenue over the optimum, B = {slots}, n = {replicas:,}"
            )
        )
    return alt.hconcat(*columns, spacing=28).resolve_scale(color="shared")


def occupancies(frame: pl.DataFrame) -> Any:
    """Figures 5 and 6: decodes by class under both routers, against the plan."""
    looks = {"greedy": BLUE, "SLI-aware": VERMILION}
    columns: list[Any] = []
    for place in frame["place"].unique(maintain_order=True):
        here = frame.filter(pl.col("place") == place)
        base = alt.Chart(here).encode(
            x=alt.X("n:N", title="replicas n", sort=None, axis=alt.Axis(labelAngle=0, grid=False)),
            xOffset=alt.XOffset("router:N", sort=list(looks)),
        )
        aim = alt.Chart(here.head(1)).mark_rule(color=INK, strokeDash=[2, 2]).encode(y="plan:Q")
        color = colored("router", looks, symbolType="circle")
        scale = alt.Scale(zero=False)
        bars = base.mark_rule(strokeWidth=1.5).encode(
            y=alt.Y("low:Q", title=None, scale=scale), y2="high:Q", color=color
        )
        dots = base.mark_point(size=70, filled=True, opacity=1).encode(
            y=alt.Y("mean:Q", title="per replica" if not columns else None, scale=scale), color=color
        )
        columns.append(alt.layer(aim, bars, dots).properties(width=160, height=200, title=place))
    return alt.hconcat(*columns, spacing=20).resolve_scale(color="shared")
