"""When does a network of engines drown, although no engine is overloaded? li2025 section 4.3, Figure 8."""

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
from inferq_papers.report import Picture, Row, Rows, Section, Table, spelled

STATED, REVERSED = "last tasks first", "first tasks first"
PER_SLOT = "jobs/slot"


@dataclass(frozen=True)
class Sizes:
    """How long the runs are, in slots, and over how many seeds."""

    horizon: int
    seeds: int
    longest: int
    """The first half-cycle longer than this is compared with the next."""
    cycles: int
    """Slots of the runs whose half-cycles are compared."""
    exchanges: tuple[int, ...]
    """Horizons at which the price of the exchanges is told."""

    @classmethod
    def of(cls, quick: bool) -> Sizes:
        """Those of a quick or a full report."""
        if quick:
            return cls(30_000, 6, 2_000, 60_000, (15_000, 30_000))
        return cls(200_000, 12, 5_000, 150_000, (25_000, 100_000, 400_000))


def sections(quick: bool, tell: Callable[[str], None]) -> tuple[Section, ...]:
    """The two networks of section 4.3."""
    sizes = Sizes.of(quick)
    curves = paths()
    return _rybko_stolyar(sizes, tell, curves), _fork_join(sizes, tell, curves)


def _rows(where: str, what: str, found: Drift, growth: float, served: float, note: str = "") -> list[Row]:
    """Growth and departures of a network beside the theory's."""
    measures = (("growth", found.jobs, growth), ("departures", found.departures, served))
    return [
        Row.seen(where, f"{what}: {name}", PER_SLOT, measured, theory=theory, note=note)
        for name, measured, theory in measures
    ]


def _rybko_stolyar(sizes: Sizes, tell: Callable[[str], None], curves: pl.DataFrame) -> Section:
    rows, found = Rows(), {}
    for load, last_first in (*((load, True) for load in (0.5, 0.54, 0.58, 0.7, 0.8, 0.9)), (0.9, False)):
        order = STATED if last_first else REVERSED
        tell(f"Rybko-Stolyar network, {order}, load {load}")
        one = found[load, last_first] = rybko_stolyar_drift(load, last_first, sizes.horizon, sizes.seeds)
        growth = virtual_station_growth(load) if last_first else 0.0
        note = ""
        if load == 0.58:
            note = "close to the critical load the exchanges of the agents cost some jobs: see below"
        if load == 0.9:
            note = "Figure 8 shows " + ("growth" if last_first else "none") + ", without numbers"
        rows += _rows("Figure 8", f"{order}, load {load}", one, growth, 2 * rate_of(load) - growth, note)
    drowned = found[0.9, True]
    to_load = (SHORT_TOKENS + LONG_TOKENS) / (2 * TOKEN_BUDGET)
    rows.append(
        Row(
            where="Section 4.3",
            what="critical load",
            unit="–",
            theory=CRITICAL_LOAD,
            simulation=drowned.departures.mean * to_load,
            half_width=drowned.departures.half_width * to_load,
            note="the load at which 2λ is what leaves at load 0.9; the paper does not say where it lies",
        )
    )
    tell("lengths of half-cycles")
    ratio = half_cycle_ratios(0.9, sizes.longest, sizes.cycles, seeds=8)
    rows.add(
        "Figure 8", "a half-cycle over the one before, load 0.9", "–", ratio, theory=half_cycle_growth(0.9)
    )
    lacking = []
    for moved in (0, 28):
        for horizon in sizes.exchanges:
            tell(f"exchanges in {horizon} slots, {SHORT[1] - moved} output tokens")
            lacks = missing_departures(0.58, horizon, moved, sizes.seeds)
            lacking.append(
                {
                    "output tokens": SHORT[1] - moved,
                    "slots of the run": horizon,
                    "jobs lacking": lacks.mean,
                    "±": lacks.half_width,
                }
            )
    loads = network_capacity({"A": rate_of(0.9), "B": rate_of(0.9)}, rybko_stolyar())
    return Section(
        title="When does a network drown although no engine is overloaded? Section 4.3, Figure 8",
        text=(
            f"Two agents, each with a budget of {TOKEN_BUDGET} tokens a slot. Jobs of type A have a short "
            "task (32 prompt and 32 output tokens) at agent 1, then a long one (512 and 32) at agent 2; "
            "type B goes the other way round. Lengths are Poisson; both types arrive at the rate λ; an "
            f"agent's load is ρ = λ · {SHORT_TOKENS + LONG_TOKENS} / {TOKEN_BUDGET}. Each agent serves the "
            "tasks after which a job leaves first, decodes before prompts. The theory, which the paper "
            "does not spell out: as long as the long tasks of A fill agent 2, no B passes its short task "
            "there, so agent 1 has no long tasks, and then all is turned round. The two long stages never "
            "run at the same time, as if they were one station, the *virtual* one: it serves "
            f"{TOKEN_BUDGET}/{LONG_TOKENS} jobs a slot and is full at ρ = {CRITICAL_LOAD:.4f}. Beyond, the "
            f"number of jobs grows by 2λ − {TOKEN_BUDGET}/{LONG_TOKENS} a slot. Slopes are those of the "
            f"later half of {sizes.horizon:,} slots, with 99 % intervals over {sizes.seeds} seeds."
        ),
        rows=tuple(rows),
        tables=(
            Table(
                title="Jobs that the exchanges cost at load 0.58",
                frame=pl.DataFrame(lacking),
                decimals={"jobs lacking": 0, "±": 0},
                note="By how many departures the later half of a run falls short of b/M per slot.",
            ),
        ),
        pictures=(
            Picture(
                title="Two agents at load 0.9: requests and tokens over time",
                caption="Figure 8. Dashed: what the virtual station lets grow.",
                chart=lambda: two_agents_chart(curves),
            ),
        ),
        remarks=(
            "**The claim holds, and the virtual station says when and how fast.** At load 0.9 every engine "
            f"keeps a tenth of its capacity (`network_capacity`: {loads.loads['1']:.2f} each), and yet "
            f"{drowned.jobs.mean:.2f} jobs pile up a slot; from a load of {CRITICAL_LOAD:.2f} on. With "
            "priorities reversed it is calm at 0.9. All work is conserved in both.",
            "**Tokens are the wrong thing to watch.** Jobs grow in a straight line; their tokens jump "
            "whenever short tasks turn into long ones, and then fall for most of the time. Each half-cycle "
            f"is longer than the one before by λ / (b/M − λ): at 0.9 by {half_cycle_growth(0.9):.3f} in "
            f"theory, {spelled(ratio, 3)} in eight runs. A run that ends in a long fall looks stable.",
            "**Where the theory is rough.** Near the critical load the agents take turns often (at 0.58 "
            f"each half-cycle is only {half_cycle_growth(0.58):.2f} times the last), and at each turn some "
            "jobs fewer leave, because a task lasts 33 slots at least. The fluid ignores this rightly: the "
            "jobs that are lacking hardly grow with the length of the run, and with 4 output tokens "
            "instead of 32, and as many more in the prompt, hardly any lack.",
        ),
    )


def _fork_join(sizes: Sizes, tell: Callable[[str], None], curves: pl.DataFrame) -> Section:
    rows = Rows()
    for name, lengths in FORK_JOIN.items():
        slow = 1 if name == "one slow branch" else 2
        for load in (0.9, 1.05):
            tell(f"fork-join with {name}, load {load}")
            found = fork_join_drift(name, load, sizes.horizon, sizes.seeds)
            growth, rate = fork_join_growth(load), fork_join_rate(load)
            nominal = network_capacity({"agent": rate}, fork_join(lengths))
            note = f"the paper gives no lengths; the largest load is that of agent {nominal.binding}"
            rows += _rows("Conjecture 1", f"{name}, load {load}", found, growth, rate - growth, note)
            rows.add(
                "Conjecture 1",
                f"{name}, load {load}: growth of tasks at 1 and 2",
                "tasks/slot",
                found.tasks,
                theory=slow * growth,
            )
    return Section(
        title="Is a fork-join stable up to its slowest agent? Section 4.3, Conjecture 1",
        text=(
            f"Four agents, 0 → {{1, 2}} → 3, each stable by itself if λ(m_p + m_d) < b/t_b, (4.3). The "
            "paper gives no lengths; here means are 128 + 64 at agent 0, 512 + 64 at agent 1, 192 + 192 at "
            "agent 3, and at agent 2 either 256 + 128 (one slow branch) or 288 + 288 (two). The load is λ "
            f"· 576 / {TOKEN_BUDGET}. Beyond 1 jobs grow by λ − {TOKEN_BUDGET}/576, requests at the "
            "branches by that for each slow branch: a job whose other task is done waits for the join, at "
            "no engine."
        ),
        rows=tuple(rows),
        pictures=(
            Picture(
                title="Jobs of a fork-join with two slow branches",
                caption="Dashed: the theory at load 1.05, from the jobs under way when no job waits.",
                chart=lambda: fork_join_chart(curves),
            ),
        ),
        remarks=(
            "**The conjecture holds where it was tried**, and jobs grow by the theory's number beyond it.",
            "The runs share their seeds, so the noise of arrivals, which makes most of the intervals of "
            "growth, is the same in all rows of a load. Departures of an overloaded network are free of it.",
        ),
    )


def paths(horizon: int = 30_000, samples: int = 600, seed: int = 1) -> pl.DataFrame:
    """One run of each network over time: requests and tokens, and the line that the theory expects."""
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
