"""Charts of nie2026."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt
import polars as pl

from inferq.display import BLUE, GRAY, INK, ORANGE, SKY, VERMILION, colored

PLOTTED = 250
"""Points of a line: more are not distinguishable."""


def bounds(frame: pl.DataFrame) -> Any:
    """Rates of every row and the bounds of the two theorems, relative to the formula's μ.

    Columns: `row`, `low`, `found`, `found_low`, `found_high`, `printed`, `gpu`; null for missing values.
    """
    meanings = {
        "found": "served by the simulation",
        "printed": "μ that the paper prints",
        "gpu": "what the paper's GPU served",
    }
    color, shape = _marked(list(meanings.values()))
    rows = alt.Y("row:N", title=None, sort=frame["row"].to_list(), axis=alt.Axis(labelLimit=300, ticks=False))
    scale = alt.Scale(domain=[0.85, 1.15], clamp=True, nice=False)
    title = "requests per second over the formula's μ"
    marks = frame.unpivot(on=list(meanings), index="row", variable_name="meaning", value_name="share")
    marks = marks.drop_nulls().with_columns(meaning=pl.col("meaning").replace_strict(meanings))
    band = (
        alt.Chart(frame)
        .mark_bar(color=SKY, opacity=0.45, height=16)
        .encode(x=alt.X("low:Q", title=title, scale=scale), x2=alt.datum(1), y=rows)
    )
    spread = (
        alt.Chart(frame.drop_nulls("found"))
        .mark_rule(color=VERMILION, strokeWidth=2)
        .encode(x=alt.X("found_low:Q", scale=scale), x2="found_high:Q", y=rows)
    )
    points = (
        alt.Chart(marks)
        .mark_point(filled=True, size=80, opacity=1)
        .encode(x=alt.X("share:Q", title=title, scale=scale), y=rows, color=color, shape=shape)
    )
    return alt.layer(band, spread, points).properties(width=520, height=alt.Step(32))


def queues(
    calm: Mapping[float, pl.DataFrame],
    growing: Mapping[float, pl.DataFrame],
    limit_per_s: float,
    printed_most: int,
) -> Any:
    """Waiting requests over time by arrival rate; dashed: theory for an overloaded fleet.

    Args:
        calm: columns `time_s` and `waiting` by rates below the limit.
        growing: the same above it.
        limit_per_s: capacity of the fleet.
        printed_most: the paper's bound on the queue at the lower rates.
    """
    names = [f"λ = {rate:g}" for rate in (*calm, *growing)]
    color = colored("rate", dict(zip(names, (SKY, BLUE, GRAY, ORANGE, VERMILION), strict=False)))
    x, y = alt.X("time_s:Q", title="seconds"), alt.Y("waiting:Q", title="requests that wait")

    def lines(runs: Mapping[float, pl.DataFrame]) -> Any:
        parts = [
            _thinned(frame).with_columns(pl.lit(f"λ = {rate:g}").alias("rate"))
            for rate, frame in runs.items()
        ]
        chart = alt.Chart(pl.concat(parts)).mark_line(strokeWidth=1.8, interpolate="step-after")
        return chart.encode(x=x, y=y, color=color)

    bound = alt.Chart(pl.DataFrame({"waiting": [printed_most]}))
    below = alt.layer(lines(calm), bound.mark_rule(color=INK, strokeDash=[2, 3]).encode(y=y))
    dashed = [
        alt.Chart(pl.DataFrame({"time_s": [0.0, end_s], "waiting": [0.0, (rate - limit_per_s) * end_s]}))
        .mark_line(color=INK, strokeDash=[5, 4], strokeWidth=1.2)
        .encode(x=x, y=y)
        for rate, end_s in ((rate, float(frame["time_s"][-1])) for rate, frame in growing.items())
    ]
    above = alt.layer(lines(growing), *dashed)
    size = {"width": 330, "height": 230}
    return alt.hconcat(
        below.properties(title=f"below the limit of {limit_per_s:.2f} per second", **size),
        above.properties(title="above it", **size),
        spacing=50,
    )


def memory(frame: pl.DataFrame, kv_tokens: int, delta: float) -> Any:
    """Tokens in memory from an empty replica on, and a close-up once it is full.

    Columns: `start_s`, `kv_used_tokens`.
    """
    last_s = float(frame["start_s"][-1])
    close = frame.filter(pl.col("start_s") > last_s - 20)
    least = (1 - delta) * kv_tokens

    def panel(data: pl.DataFrame, title: str, low: float, names: bool) -> Any:
        scale = alt.Scale(domain=[low / 1000, (kv_tokens + 0.1 * (kv_tokens - low)) / 1000], nice=False)
        line = (
            alt.Chart(data.with_columns((pl.col("kv_used_tokens") / 1000).alias("used")))
            .mark_line(color=BLUE, strokeWidth=1.2, interpolate="step-after")
            .encode(
                x=alt.X(
                    "start_s:Q", title="seconds", scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=5)
                ),
                y=alt.Y("used:Q", title="thousand tokens in memory", scale=scale),
            )
        )
        rules = []
        for value, name, below in ((kv_tokens, "M", -8), (least, "(1 − δ)·M", 10)):
            bound = pl.DataFrame([{"y": value / 1000, "name": name}])
            rules.append(
                alt.Chart(bound)
                .mark_rule(color=VERMILION, strokeDash=[5, 4])
                .encode(y=alt.Y("y:Q", scale=scale))
            )
            if names:
                rules.append(
                    alt.Chart(bound)
                    .mark_text(align="left", dy=below, dx=4, color=VERMILION)
                    .encode(x=alt.value(0), y=alt.Y("y:Q", scale=scale), text="name:N")
                )
        return alt.layer(line, *rules).properties(width=330, height=210, title=title)

    whole = _thinned(frame)
    return alt.hconcat(
        panel(whole, "from an empty replica on", 0.0, False),
        panel(close, "the last 20 seconds, from close by", least - 0.15 * (kv_tokens - least), True),
        spacing=50,
    )


def slack(frame: pl.DataFrame) -> Any:
    """Share of memory used by slots against δ, with the share guaranteed by Theorem 4.2.

    Columns: `series`, `delta`, `mean`, `least`.
    """
    names = frame["series"].unique(maintain_order=True).to_list()
    color = colored("series", dict(zip(names, (BLUE, ORANGE), strict=False)))
    x = alt.X("delta:Q", title="δ, the largest request over the memory", scale=alt.Scale(domain=[0, 1]))
    y_scale = alt.Scale(domain=[0, 1.02], nice=False)
    y_title = "share of the memory in use"
    promise = (
        alt.Chart(pl.DataFrame([{"delta": 0, "y": 1}, {"delta": 1, "y": 0}]))
        .mark_line(color=INK, strokeDash=[5, 4])
        .encode(x=x, y=alt.Y("y:Q", scale=y_scale, title=y_title))
    )
    label = (
        alt.Chart(pl.DataFrame([{"delta": 0.5, "y": 0.5}]))
        .mark_text(align="left", dx=8, dy=-6, color=INK)
        .encode(x=x, y=alt.Y("y:Q", scale=y_scale), text=alt.value("1 − δ, promised"))
    )
    mean = (
        alt.Chart(frame)
        .mark_line(point=alt.OverlayMarkDef(filled=True, size=60))
        .encode(x=x, y=alt.Y("mean:Q", scale=y_scale, title=y_title), color=color)
    )
    least = (
        alt.Chart(frame)
        .mark_line(strokeDash=[2, 3], point=alt.OverlayMarkDef(filled=False, size=50, fill="white"))
        .encode(x=x, y=alt.Y("least:Q", scale=y_scale), color=color)
    )
    return alt.layer(promise, label, least, mean).properties(width=460, height=280)


def estimators(frame: pl.DataFrame, names: list[str]) -> Any:
    """μ by each estimator of the slot over the served rate, for each policy and length ratio.

    Columns: `lengths`, `policy`, and `μ, NAME` for each of the names.
    """
    long = frame.unpivot(
        on=[f"μ, {name}" for name in names],
        index=["lengths", "policy"],
        variable_name="estimator",
        value_name="share",
    ).with_columns(pl.col("estimator").str.strip_prefix("μ, "))
    color = colored("estimator", dict(zip(names, [VERMILION, ORANGE, SKY, GRAY], strict=True))).title(
        "slot by its"
    )
    ratios, policies = (frame[name].unique(maintain_order=True).to_list() for name in ("lengths", "policy"))
    scale = alt.Scale(type="log", domain=[0.7, 4], nice=False)
    panels = []
    for policy in policies:
        data = alt.Chart(long.filter(pl.col("policy") == policy))
        points = data.mark_point(filled=True, size=90, opacity=0.9).encode(
            x=alt.X(
                "share:Q",
                title="μ over what was served",
                scale=scale,
                axis=alt.Axis(values=[0.75, 1, 1.5, 2, 3, 4], format="~g"),
            ),
            y=alt.Y(
                "lengths:N",
                title="prompts to outputs" if policy == policies[0] else None,
                sort=ratios,
                axis=alt.Axis(labels=policy == policies[0], ticks=False),
            ),
            color=color,
        )
        exact = (
            alt.Chart(pl.DataFrame([{"share": 1}]))
            .mark_rule(color=INK, strokeDash=[5, 4])
            .encode(x=alt.X("share:Q", scale=scale))
        )
        panels.append(alt.layer(exact, points).properties(width=210, height=alt.Step(36), title=policy))
    return alt.hconcat(*panels, spacing=20)


def _marked(meanings: list[str]) -> tuple[alt.Color, alt.Shape]:
    """Color and shape of three meanings: simulated, printed, and other values."""
    shapes = alt.Scale(domain=meanings, range=["circle", "diamond", "square"])
    colors = dict(zip(meanings, (VERMILION, BLUE, GRAY), strict=True))
    return colored("meaning", colors), alt.Shape("meaning:N", title=None, scale=shapes)


def _thinned(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.gather_every(max(1, frame.height // PLOTTED))


def distances(rows: pl.DataFrame, settings: pl.DataFrame) -> Any:
    """Errors of simulated rates against measured rates, by row, and with one setting changed.

    Args:
        rows: columns `row`, `found`, `low`, `high`, `closed`: relative errors against the GPU.
        settings: columns `setting`, `row`, `share`: the same with each setting changed.
    """
    meanings = {"found": "simulated engine, as assumed", "closed": "the paper's closed form"}
    color, shape = _marked([*meanings.values(), "one setting changed"])
    y = alt.Y("row:N", title=None, sort=rows["row"].to_list(), axis=alt.Axis(labelLimit=300, ticks=False))
    x = alt.X(
        "share:Q", title="requests per second over the GPU's, less 1", axis=alt.Axis(format="+%", tickCount=6)
    )
    marks = rows.unpivot(on=list(meanings), index="row", variable_name="meaning", value_name="share")
    marks = marks.with_columns(meaning=pl.col("meaning").replace_strict(meanings))
    tick = (
        alt.Chart(settings.with_columns(meaning=pl.lit("one setting changed")))
        .mark_tick(thickness=2, size=16, opacity=0.7)
        .encode(x=x, y=y, color=color, tooltip=["setting:N", alt.Tooltip("share:Q", format="+.1%")])
    )
    zero = alt.Chart(pl.DataFrame([{"share": 0.0}])).mark_rule(color=INK, strokeDash=[5, 4]).encode(x=x)
    spread = alt.Chart(rows).mark_rule(color=VERMILION, strokeWidth=2)
    points = (
        alt.Chart(marks)
        .mark_point(filled=True, size=90, opacity=1)
        .encode(x=x, y=y, color=color, shape=shape)
    )
    within = spread.encode(x=alt.X("low:Q"), x2="high:Q", y=y)
    return alt.layer(zero, tick, within, points).properties(width=460, height=alt.Step(36))
