"""Networks that are unstable although no engine is overloaded; li2025 section 4.3, Figure 8."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import numpy as np
import polars as pl
from numpy.typing import NDArray

from inferq.display import BLUE, SKY, VERMILION, colored
from inferq.theory import network_capacity
from inferq_papers.li2025.agents import (
    CRITICAL_LOAD,
    FORK_JOIN,
    LONG_TOKENS,
    SHORT,
    SHORT_TOKENS,
    TOKEN_BUDGET,
    Drift,
    fork_join,
    fork_join_drift,
    fork_join_growth,
    fork_join_level,
    fork_join_rate,
    half_cycle_growth,
    half_cycle_ratios,
    missing_departures,
    present,
    rate_of,
    run,
    rybko_stolyar,
    rybko_stolyar_drift,
    tokens_present,
    virtual_station_growth,
)
from inferq_papers.report import Chart, Row, Rows, Section, Table, with_half_width

STATED, REVERSED = "last tasks first", "first tasks first"
PER_SLOT = "jobs/slot"


@dataclass(frozen=True)
class Sizes:
    """Sizes of the runs: slots and seeds."""

    horizon: int
    seeds: int
    longest: int
    """Threshold of a long half-cycle, which is compared with the next."""
    cycles: int
    """Slots of the runs for the comparison of half-cycles."""
    exchanges: tuple[int, ...]
    """Horizons for the cost of the exchanges."""

    @classmethod
    def of(cls, quick: bool) -> Sizes:
        """The sizes of a quick or a full report."""
        if quick:
            return cls(30_000, 6, 2_000, 60_000, (15_000, 30_000))
        return cls(200_000, 12, 5_000, 150_000, (25_000, 100_000, 400_000))


def sections(quick: bool, tell: Callable[[str], None]) -> tuple[Section, ...]:
    """The two networks of section 4.3."""
    sizes = Sizes.of(quick)
    curves = paths()
    return _rybko_stolyar(sizes, tell, curves), _fork_join(sizes, tell, curves)


def _rows(where: str, what: str, drift: Drift, growth: float, served: float, note: str = "") -> list[Row]:
    """Growth and departures of a network compared with the theory."""
    measures = (("growth", drift.jobs, growth), ("departures", drift.departures, served))
    return [
        Row.seen(where, f"{what}: {name}", PER_SLOT, measured, theory=theory, note=note)
        for name, measured, theory in measures
    ]


def _rybko_stolyar(sizes: Sizes, tell: Callable[[str], None], curves: pl.DataFrame) -> Section:
    rows, drifts = Rows(), {}
    for load, last_first in (*((load, True) for load in (0.5, 0.54, 0.58, 0.7, 0.8, 0.9)), (0.9, False)):
        order = STATED if last_first else REVERSED
        tell(f"Rybko-Stolyar network, {order}, load {load}")
        drift = drifts[load, last_first] = rybko_stolyar_drift(load, last_first, sizes.horizon, sizes.seeds)
        growth = virtual_station_growth(load) if last_first else 0.0
        note = ""
        if load == 0.58:
            note = "near the critical load the exchanges of the agents cost some jobs: see below"
        if load == 0.9:
            note = "Figure 8 shows " + ("growth" if last_first else "no growth") + ", without numbers"
        rows += _rows("Figure 8", f"{order}, load {load}", drift, growth, 2 * rate_of(load) - growth, note)
    overloaded = drifts[0.9, True]
    to_load = (SHORT_TOKENS + LONG_TOKENS) / (2 * TOKEN_BUDGET)
    rows.append(
        Row(
            where="Section 4.3",
            what="critical load",
            unit="–",
            theory=CRITICAL_LOAD,
            simulation=overloaded.departures.mean * to_load,
            half_width=overloaded.departures.half_width * to_load,
            note="the load at which 2λ equals the departures at load 0.9; the paper does not state it",
        )
    )
    tell("lengths of half-cycles")
    ratio = half_cycle_ratios(0.9, sizes.longest, sizes.cycles, seeds=8)
    rows.add(
        "Figure 8",
        "half-cycle divided by the previous one, load 0.9",
        "–",
        ratio,
        theory=half_cycle_growth(0.9),
    )
    table_lines = []
    for moved in (0, 28):
        for horizon in sizes.exchanges:
            tell(f"exchanges in {horizon} slots, {SHORT[1] - moved} output tokens")
            missing = missing_departures(0.58, horizon, moved, sizes.seeds)
            table_lines.append(
                {
                    "output tokens": SHORT[1] - moved,
                    "slots of the run": horizon,
                    "missing jobs": missing.mean,
                    "±": missing.half_width,
                }
            )
    loads = network_capacity({"A": rate_of(0.9), "B": rate_of(0.9)}, rybko_stolyar())
    return Section(
        title="Instability without an overloaded engine: section 4.3, Figure 8",
        text=(
            f"Two agents, each with a budget of {TOKEN_BUDGET} tokens per slot. Jobs of type A have a short "
            "task (32 prompt and 32 output tokens) at agent 1, then a long one (512 and 32) at agent 2; "
            "type B has the opposite direction. Lengths are Poisson; both types arrive at the rate λ; an "
            f"agent's load is ρ = λ · {SHORT_TOKENS + LONG_TOKENS} / {TOKEN_BUDGET}. Each agent serves last "
            "tasks first, and decodes before prompts. The theory, which the paper does not spell out: while "
            "the long tasks of A fill agent 2, no B finishes its short task there. So agent 1 has no long "
            "tasks; then the roles are exchanged. The two long stages never run at the same time, as if they "
            f"were one station, the *virtual* one. It serves {TOKEN_BUDGET}/{LONG_TOKENS} jobs per slot and "
            f"is full at ρ = {CRITICAL_LOAD:.4f}. Above, the number of jobs grows by 2λ − "
            f"{TOKEN_BUDGET}/{LONG_TOKENS} per slot. Slopes are those of the second half of "
            f"{sizes.horizon:,} slots, with 99 % intervals over {sizes.seeds} seeds."
        ),
        rows=tuple(rows),
        tables=(
            Table(
                title="Cost of exchanges in jobs at load 0.58",
                frame=pl.DataFrame(table_lines),
                decimals={"missing jobs": 0, "±": 0},
                note="Departures in the second half of a run compared with b/M per slot.",
            ),
        ),
        pictures=(
            Chart(
                title="Two agents at load 0.9: requests and tokens over time",
                caption="Figure 8. Dashed: growth by the virtual station.",
                chart=lambda: two_agents_chart(curves),
            ),
        ),
        remarks=(
            "**The claim holds, and the virtual station explains threshold and growth.** At load 0.9 every "
            f"engine has a tenth of its capacity left (`network_capacity`: load {loads.loads['1']:.2f} "
            f"each), yet jobs grow by {overloaded.jobs.mean:.2f} per slot. Growth begins at a load of "
            f"{CRITICAL_LOAD:.2f}. With reversed priorities the network is stable at 0.9. All engines are "
            "work conserving in both cases.",
            "**Tokens are the wrong measure.** Jobs grow linearly; their tokens jump when short tasks turn "
            "into long ones, and then fall for most of the time. Each half-cycle is longer than the previous "
            f"one by a factor of λ / (b/M − λ): at 0.9 {half_cycle_growth(0.9):.3f} in theory, "
            f"{with_half_width(ratio, 3)} in eight runs. A run that ends in a long fall looks stable.",
            "**Limits of the theory.** Near the critical load the agents exchange roles often (at 0.58 each "
            f"half-cycle is only {half_cycle_growth(0.58):.2f} times the previous one), and each exchange "
            "costs some departures, because a task takes at least 33 slots. The fluid model ignores this "
            "rightly: the missing jobs hardly grow with the length of the run. With 4 output tokens instead "
            "of 32, and longer prompts, hardly any are missing.",
        ),
    )


def _fork_join(sizes: Sizes, tell: Callable[[str], None], curves: pl.DataFrame) -> Section:
    rows = Rows()
    for name, lengths in FORK_JOIN.items():
        slow = 1 if name == "one slow branch" else 2
        for load in (0.9, 1.05):
            tell(f"fork-join with {name}, load {load}")
            drift = fork_join_drift(name, load, sizes.horizon, sizes.seeds)
            growth, rate = fork_join_growth(load), fork_join_rate(load)
            nominal = network_capacity({"agent": rate}, fork_join(lengths))
            note = f"the paper states no lengths; agent {nominal.binding} has the largest load"
            rows += _rows("Conjecture 1", f"{name}, load {load}", drift, growth, rate - growth, note)
            rows.add(
                "Conjecture 1",
                f"{name}, load {load}: growth of tasks at 1 and 2",
                "tasks/slot",
                drift.tasks,
                theory=slow * growth,
            )
    return Section(
        title="Stability of a fork-join up to its slowest agent: section 4.3, Conjecture 1",
        text=(
            f"Four agents, 0 → {{1, 2}} → 3, each stable alone if λ(m_p + m_d) < b/t_b, (4.3). The "
            "paper states no lengths; here means are 128 + 64 at agent 0, 512 + 64 at agent 1, 192 + 192 at "
            "agent 3, and at agent 2 either 256 + 128 (one slow branch) or 288 + 288 (two). The load is λ "
            f"· 576 / {TOKEN_BUDGET}. Above 1, jobs grow by λ − {TOKEN_BUDGET}/576, and requests at the "
            "branches by the same number per slow branch: a job whose other task is done waits for the join, "
            "at no engine."
        ),
        rows=tuple(rows),
        pictures=(
            Chart(
                title="Jobs of a fork-join with two slow branches",
                caption="Dashed: theory at load 1.05, starting from the jobs in progress without waiting.",
                chart=lambda: fork_join_chart(curves),
            ),
        ),
        remarks=(
            "**The conjecture holds in all tests**, and above it jobs grow as predicted.",
            "The runs share their seeds, so the noise of arrivals, which dominates the intervals of growth, "
            "is the same in all rows of a load. Departures of an overloaded network do not have it.",
        ),
    )


def paths(horizon: int = 30_000, samples: int = 600, seed: int = 1) -> pl.DataFrame:
    """One run of each network over time: requests and tokens, and the line of the theory."""
    at = np.linspace(0, horizon, samples + 1)
    frames = []

    def add(panel: str, line: str, values: NDArray[Any]) -> None:
        frames.append(pl.DataFrame({"panel": panel, "line": line, "slot": at, "value": values.astype(float)}))

    for line, last_first in ((STATED, True), (REVERSED, False)):
        rows = run(rybko_stolyar(last_first), 2 * rate_of(0.9), horizon, seed).requests
        add("requests", line, present(rows, at))
        add("tokens", line, tokens_present(rows, at))
    add("requests", "theory", virtual_station_growth(0.9) * at)
    for load in (0.9, 1.05):
        result = run(fork_join(FORK_JOIN["two slow branches"]), fork_join_rate(load), horizon, seed)
        add("fork-join", f"load {load}", present(result.jobs, at))
    level = fork_join_level(FORK_JOIN["two slow branches"], 1.05)
    add("fork-join", "theory", level + fork_join_growth(1.05) * at)
    return pl.concat(frames)


def _panel(data: pl.DataFrame, name: str, title: str, lines: Sequence[str], width: int) -> Any:
    colors = {
        STATED: BLUE,
        REVERSED: SKY,
        "load 1.05": BLUE,
        "load 0.9": SKY,
        "theory": VERMILION,
    }

    def axis(ticks: int) -> alt.Axis:
        return alt.Axis(tickCount=ticks, format="~s", labelExpr="datum.value ? datum.label : '0'")

    base = alt.Chart(data.filter(pl.col("panel") == name)).encode(
        x=alt.X("slot:Q", title="slot", axis=axis(4)),
        y=alt.Y("value:Q", title=title, axis=axis(5)),
        color=colored("line", {line: colors[line] for line in lines}, direction="vertical"),
    )
    measured = base.transform_filter(alt.datum.line != "theory").mark_line(strokeWidth=2)
    theory = base.transform_filter(alt.datum.line == "theory").mark_line(strokeWidth=2, strokeDash=[6, 4])
    return (measured + theory).properties(width=width, height=220)


def two_agents_chart(curves: pl.DataFrame) -> Any:
    """Requests and tokens of the two agents over time."""
    panels = [
        _panel(curves, "requests", "requests at both agents", [STATED, REVERSED, "theory"], 300),
        _panel(curves, "tokens", "tokens at both agents", [STATED, REVERSED], 300),
    ]
    return alt.hconcat(*panels, spacing=24).resolve_scale(color="independent")


def fork_join_chart(curves: pl.DataFrame) -> Any:
    """Jobs of the four agents over time."""
    return _panel(curves, "fork-join", "jobs", ["load 1.05", "load 0.9", "theory"], 560)
