"""SLAI measurements of bari2025 compared with simulation, and their dependence on unpublished settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import altair as alt
import polars as pl

from inferq.display import BLUE, GRAY, INK, ORANGE, VERMILION
from inferq_papers.bari2025.deadlines import (
    FULL,
    ITL_SLO_S,
    NEEDS,
    POLICIES,
    QUICK,
    SARATHI,
    SLAI,
    TTFT_LIMIT_S,
    Hardware,
    Simulated,
    Study,
    answered,
    curves,
    read_lengths,
    rows_of,
    run_lengths,
    sensitivity,
)
from inferq_papers.report import Chart, Section, Table

TITLE = "Token deadlines (SLAI)"
HARDWARE_TITLE = "Dependence on the hardware"

STYLES = {
    SARATHI: (BLUE, [1, 0]),
    "Sarathi, spf": (BLUE, [5, 3]),
    "Slai, fcfs, fixed": (ORANGE, [1, 0]),
    "Slai, spf, fixed": (ORANGE, [5, 3]),
    SLAI: (VERMILION, [1, 0]),
    "VllmV0": (GRAY, [1, 0]),
}
"""Color and dashes of each policy."""


def sections(quick: bool, traces: Path | None, tell: Callable[[str], None]) -> tuple[Section, ...]:
    """Section 7 compared with simulation, also for other hardware.

    Raises:
        ConfigError: the folder lacks the lengths.
    """
    text = (
        "SLAI delays tokens that are not yet due and computes prompts instead. The lengths are those of "
        "`openchat_sharegpt4`, at most 8,192 tokens in total; 5 % of the requests pay for a token every 0.1 "
        "s, free requests get a token every 0.5 s (50 % and 95 % in appendix F.3). Poisson arrivals, budget "
        "512, at most 128 requests and 128 decodes. The paper prints neither its model of batch times nor "
        "the memory available for the cache. Assumed: Mistral-7B on an RTX 6000 Ada by its data sheet: 15 "
        "ms to read the weights, 0.137 µs for each token of context, 229,000 tokens of cache. One number is "
        "fitted, the cost of a token, so that Sarathi (first come, first served) has a median time to first "
        "token (TTFT) of 0.5 s at 1.15 requests per second, as in the paper. High load is 1.6 requests per "
        "second."
    )
    other = (
        "The same with other assumptions for the unpublished values, with the cost of a token fitted for "
        "each: the time to read the weights (base), the cost of context, the memory for the cache."
    )
    if traces is None:
        tell("deadlines: no lengths, so no runs")
        return (
            Section(title=TITLE, text=text, rows=rows_of(None)),
            Section(title=HARDWARE_TITLE, text=other, remarks=(f"This {NEEDS}.",)),
        )
    study = Study(read_lengths(traces), QUICK if quick else FULL)
    tell("deadlines: the cost of a token")
    cost = study.fitted(Hardware())
    tell("deadlines: capacities and times to first token")
    answers = answered(study, cost)
    tell("deadlines: curves against the rate")
    lines = curves(study, cost)
    tell("deadlines: other hardware")
    variants, lengths = sensitivity(study), run_lengths(study, cost)
    text += (
        f" Each run has {study.size.requests:,} requests, of which the first tenth is warm-up; numbers "
        f"are means over {len(study.size.seeds)} seeds, shared by all policies."
    )
    return (
        Section(
            title=TITLE,
            text=text,
            rows=rows_of(answers),
            pictures=(
                Chart(
                    title="Time to first token and token gaps against the rate",
                    caption="The three charts of Figure 6, one seed; limits as dashed lines.",
                    chart=lambda: chart(lines),
                ),
            ),
            remarks=_remarks(answers, lines),
        ),
        Section(
            title=HARDWARE_TITLE,
            text=other,
            tables=(
                Table(
                    title="Rate with a median TTFT of at most 0.5 s, and median TTFT at 1.6 requests/s",
                    frame=variants,
                    decimals={"µs a token": 1},
                ),
                Table(
                    title="Median TTFT at 1.6 requests/s by the length of the run",
                    frame=lengths,
                    note="A short run that starts empty shows less of the queue.",
                ),
            ),
            pictures=(
                Chart(
                    title="Capacity by hardware",
                    caption="The rate with a median TTFT of at most 0.5 s; the paper prints 1.15 and 1.45.",
                    chart=lambda: hardware_chart(variants),
                ),
            ),
            remarks=_hardware_remarks(variants, lengths),
        ),
    )


def _value(answer: Simulated, unit: str, decimals: int = 2) -> str:
    return f"{answer.value:.{decimals}f} {unit}"


def _remarks(answers: Mapping[str, Simulated], lines: pl.DataFrame) -> tuple[str, ...]:
    """Conclusions on section 7."""

    def over_sarathi(name: str) -> str:
        return (
            f"{100 * (answers[f'capacity {name}'].value / answers[f'capacity {SARATHI}'].value - 1):+.0f} %"
        )

    gaps = " and ".join(
        f"{answers[f'itl {group} {SLAI}'].value:.4f} s ({group}, promised {limit})"
        for group, limit in ITL_SLO_S.items()
    )
    broken = lines.filter((pl.col("policy") == "VllmV0") & (pl.col("P99 ITL, paying") > ITL_SLO_S["paying"]))
    gain, fall = answers["gain"], answers["fall"]
    verdict = "holds" if gain.value > 0 and fall.value < 0 else "does not hold"
    return (
        f"**The claim {verdict}.** The paper reports +26 % capacity, and a median TTFT of 0.7 s instead of "
        f"1.5 s (−53 %) at 1.6 requests per second. Here capacity is {gain.value:+.0f} %, the TTFT "
        f"{_value(answers[f'ttft {SLAI}'], 's')} instead of {_value(answers[f'ttft {SARATHI}'], 's')} "
        f"({fall.value:+.0f} %). Its P99 ITL at that rate is {gaps}; the "
        "histogram has a resolution of 0.8 %.",
        f"**The gain has three parts.** Shortest prompt first, without deadlines, gives Sarathi "
        f"{over_sarathi('Sarathi, spf')}. A fixed offset alone gives {over_sarathi('Slai, fcfs, fixed')}, "
        f"both together {over_sarathi('Slai, spf, fixed')}, as long as ten mean iterations are shorter than "
        "0.5 s. Otherwise (near 1.6 per second) it delays nothing, and SLAI equals Sarathi with the same "
        f"order. The dynamic offset of five helps in that range: {over_sarathi(SLAI)}.",
        f"**VllmV0 has the lowest TTFT but violates its ITL limits**, that of 0.1 s from "
        f"{min(broken['rate'].to_list(), default=1.6):.1f} requests per second on. In the paper it is "
        "unstable at 1.6; with the hardware assumed here it is stable.",
        "**With more paying requests fewer tokens can be delayed**, as in appendix F.3: "
        f"{answers['gain'].value:+.0f} % with 5 %, {answers['50 gain'].value:+.0f} % with 50 %, "
        f"{answers['95 gain'].value:+.0f} % with 95 % (paper: +26, +22, +9 %). Sarathi ignores classes, so "
        "its TTFT at 1.6 is a single number; the paper measures 1.5, 1.5 and 2 s for the three shares, which "
        "shows the variation of its runs.",
        "**Paying requests first** (appendix F.2) changes their mean TTFT at 1.6 requests per second from "
        f"{_value(answers['plain paying'], 's')} to {_value(answers['first paying'], 's')}, and that of free "
        f"requests from {_value(answers['plain free'], 's')} to {_value(answers['first free'], 's')}. The "
        "paper calls the gain relatively small.",
        "**All these rates are far below the limit of the hardware.** With unlimited sequences and cache "
        f"Sarathi is stable up to {_value(answers['stable'], 'requests/s')}; a full budget in every "
        f"iteration gives {answers['stable'].theory or 0.0:.2f}.",
    )


def _hardware_remarks(variants: pl.DataFrame, lengths: pl.DataFrame) -> tuple[str, ...]:
    """Conclusions on the hardware."""
    rows = {row["hardware"]: row for row in variants.iter_rows(named=True)}
    gains = [100 * (row[SLAI] / row[SARATHI] - 1) for row in rows.values()]
    less = rows["cache of 150,000"]
    sarathi_s, slai_s = (less[f"TTFT at 1.6/s, {policy}"] for policy in (SARATHI, SLAI))
    least = rows["cache of 120,000"]
    by_length = lengths[f"{SARATHI}, s"].to_list()
    return (
        f"**The gain in capacity does not depend on the assumptions**: {min(gains):+.0f} to "
        f"{max(gains):+.0f} %, each time with Sarathi fitted to the paper.",
        "**The TTFT at 1.6 depends on the memory.** With 150,000 tokens of cache Sarathi's is "
        f"{sarathi_s:.2f} s and SLAI's {slai_s:.2f} s ({100 * (slai_s / sarathi_s - 1):+.0f} %), with a gain "
        f"in capacity of {100 * (less[SLAI] / less[SARATHI] - 1):+.0f} %; with 120,000 Sarathi has "
        f"{least[f'TTFT at 1.6/s, {SARATHI}']:.1f} s. "
        + (
            "The paper's 1.5 s is reached in between: a GPU with less free memory reproduces its numbers. "
            if rows["as above"][f"TTFT at 1.6/s, {SARATHI}"] < 1.5 < least[f"TTFT at 1.6/s, {SARATHI}"]
            else ""
        )
        + "The paper prints neither the memory nor the batch times.",
        f"**The length of the run matters little**: Sarathi has {min(by_length):.2f} to {max(by_length):.2f} "
        "s.",
        "A fixed offset stops helping if ten mean iterations are longer than 0.5 s (a base of 30 ms); the "
        "dynamic offset hardly differs from it if iterations are short (base 0) or the cache is full "
        "(120,000).",
    )


def chart(lines: pl.DataFrame) -> Any:
    """Three panels side by side, the limits as dashed lines."""
    names = list(STYLES)
    legend = alt.Legend(orient="bottom", columns=6, symbolType="stroke", symbolSize=400)
    colors = alt.Scale(domain=names, range=[color for color, _ in STYLES.values()])
    dashes = alt.Scale(domain=names, range=[dash for _, dash in STYLES.values()])
    panels = []
    sides: tuple[tuple[str, str, float, float, Literal["left", "right"]], ...] = (
        ("median TTFT", "median time to first token, s", TTFT_LIMIT_S, 1.2, "left"),
        ("P99 ITL, paying", "P99 of token gaps, paying, s", ITL_SLO_S["paying"], 0.2, "right"),
        ("P99 ITL, free", "P99 of token gaps, free, s", ITL_SLO_S["free"], 0.8, "left"),
    )
    for measured, title, limit, most, side in sides:
        data = lines.select("policy", "rate", pl.col(measured).alias("seconds"))
        drawn = (
            alt.Chart(data)
            .mark_line(clip=True, strokeWidth=2.5)
            .encode(
                x=alt.X(
                    "rate:Q", title="requests per second", scale=alt.Scale(domain=[0.6, 1.6], nice=False)
                ),
                y=alt.Y(
                    "seconds:Q", title=None, scale=alt.Scale(domain=[0, most]), axis=alt.Axis(tickCount=6)
                ),
                color=alt.Color("policy:N", title=None, scale=colors, legend=legend),
                strokeDash=alt.StrokeDash("policy:N", title=None, scale=dashes, legend=legend),
            )
        )
        rate = 0.6 if side == "left" else 1.6
        promise = alt.Chart(pl.DataFrame({"seconds": [limit], "text": ["limit"], "rate": [rate]}))
        rule = promise.mark_rule(color=INK, strokeDash=[2, 2]).encode(y="seconds:Q")
        text = promise.mark_text(align=side, baseline="bottom", dx=4 if side == "left" else -4, dy=-3).encode(
            x="rate:Q", y="seconds:Q", text="text:N"
        )
        panels.append((drawn + rule + text).properties(width=260, height=250, title=title))
    return alt.hconcat(*panels, spacing=24)


def hardware_chart(variants: pl.DataFrame) -> Any:
    """For each hardware a point for each policy."""
    names = list(STYLES)
    data = variants.unpivot(list(POLICIES), index="hardware", variable_name="policy", value_name="rate")
    place = alt.Y(
        "hardware:N", title=None, sort=variants["hardware"].to_list(), axis=alt.Axis(labelLimit=200)
    )
    rate = alt.X(
        "rate:Q",
        title="requests per second",
        scale=alt.Scale(domain=[1.0, 1.95], nice=False),
        axis=alt.Axis(tickCount=9),
    )
    colors = alt.Scale(domain=names, range=[color for color, _ in STYLES.values()])
    kinds = alt.Scale(domain=names, range=["circle", "square", "circle", "square", "diamond", "triangle-up"])
    legend = alt.Legend(orient="right")
    points = (
        alt.Chart(data)
        .mark_point(filled=True, size=90, opacity=0.9)
        .encode(
            x=rate,
            y=place,
            color=alt.Color("policy:N", title=None, scale=colors, legend=legend),
            shape=alt.Shape("policy:N", title=None, scale=kinds, legend=legend),
        )
    )
    return points.properties(width=520, height=alt.Step(32))
