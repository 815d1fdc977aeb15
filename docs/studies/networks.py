"""When does a network of engines drown, although no engine is overloaded? li2025 section 4.3, Figure 8.

    python docs/studies/networks.py             # prints the tables, writes networks.svg beside this file

Every iteration is one slot and loads at most 768 tokens; token counts are Poisson; a request decodes once for
each output token (the paper's count). All rates are per slot.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import show

import inferq as iq

TOKEN_BUDGET = 768
SHORT, LONG = (32, 32), (512, 32)
"""Mean prompt and output tokens of the first and of the last sub-task of a job, li2025 (4.4) and (4.5)."""

FORK_JOIN = {
    "one slow branch": {"0": (128, 64), "1": (512, 64), "2": (256, 128), "3": (192, 192)},
    "two slow branches": {"0": (128, 64), "1": (512, 64), "2": (288, 288), "3": (192, 192)},
}
"""Mean prompt and output tokens at each agent; the paper gives none. The slow ones have 576 tokens in all."""
BRANCHES = ("1", "2")

HORIZON, SEEDS = 200_000, 12
STUDENT_99 = {4: 5.8409, 8: 3.4995, 12: 3.1058}
"""Student's t: so many seeds, and within how many standard errors 99 % of their means lie."""

SHORT_TOKENS, LONG_TOKENS = sum(SHORT), sum(LONG)
CRITICAL_LOAD = (SHORT_TOKENS + LONG_TOKENS) / (2 * LONG_TOKENS)
"""Where the virtual station of Rybko and Stolyar is full, see `virtual_station_growth`: 0.559."""


def rate_of(load: float) -> float:
    """Jobs of each type per slot of the Rybko–Stolyar network: λ = ρ·b/(m + M)."""
    return load * TOKEN_BUDGET / (SHORT_TOKENS + LONG_TOKENS)


def virtual_station_growth(load: float) -> float:
    """By how many requests per slot the Rybko–Stolyar network grows: max(0, 2λ − b/M).

    λ is the rate of each type, m = 64 and M = 544 the mean tokens of short and long tasks, b the budget.
    A1 and B2 are the short first tasks (at agents 1 and 2), A2 and B1 the long last ones (at 2 and 1). Last
    tasks go first: B1 before A1, A2 before B2. The fluid model, which forgets what stays bounded:

    Let n jobs wait at A1 and nobody elsewhere. Agent 1 has no B1, so A1 gets all of its budget and feeds A2
    with b/m = 12 jobs a slot; A2 serves b/M = 1.41, so it has a backlog at once. As long as it has, it fills
    the budget of agent 2 by itself: a prompt may be cut, so there are always tokens to fill it with. B2 gets
    nothing, and no job reaches B1. So nobody but A2 lets jobs go: b/M per slot. After n/(b/m − λ) slots A1 is
    empty and passes on λ < b/M; A2 is empty at T, when n + λT = T·b/M. By then n' = λT = n·λ/(b/M − λ) jobs
    wait at B2, and all begins again with A and B exchanged. (What A2 leaves, B2 takes now, at most
    (b − λM)/m jobs a slot; for ρ < 0.98 that is more than B1 serves, so B1 gets a backlog and shuts A1 out.)

    At each instant one of A2 and B1 is served, at b/M, never both: together they are one station, the virtual
    one, with load 2λM/b. Jobs arrive at 2λ and leave at b/M, so their number grows in a straight line, by
    2λ − b/M, through all half-cycles. These get longer by λ/(b/M − λ), which is above 1 just when
    2λM/b > 1, that is when ρ > (m + M)/(2M). Below, n' < n and the network empties itself; for two stations
    this and ρ < 1 are sufficient for stability (Dai and Vande Vate, Operations Research 48, 2000).

    What a short task lasts at least (33 slots: 1 of prompt, 32 of decodes), and a long one (33 as well), is
    forgotten. It matters at each exchange, when the agents take turns, by some requests; there are about
    ln(t) / ln(λ/(b/M − λ)) exchanges until slot t, so the slope feels it by O(ln(t)/t): close to the critical
    load, where exchanges are many, first.
    """
    return max(0.0, 2 * rate_of(load) - TOKEN_BUDGET / LONG_TOKENS)


def half_cycle_growth(load: float) -> float:
    """How much longer each half-cycle is than the one before: λ/(b/M − λ), see `virtual_station_growth`."""
    return rate_of(load) / (TOKEN_BUDGET / LONG_TOKENS - rate_of(load))


def fork_join_rate(load: float, tokens: int = 576) -> float:
    """Jobs per slot that load an agent with so many mean tokens a task: λ = ρ·b/(m_p + m_d), li2025 (4.3)."""
    return load * TOKEN_BUDGET / tokens


def fork_join_growth(load: float) -> float:
    """By how many jobs per slot a fork-join network grows: max(0, λ − b/m) for the slowest agent's m.

    Jobs come to both branches at λ (agent 0 is not overloaded); a branch lets tasks go at b/m at most. A job
    is joined when the later of its two tasks is done, so joins come at the rate of the slower branch, and
    agent 3, which bears more, adds nothing. Tasks grow at each overloaded branch by λ − b/m: with one slow
    branch its tasks are as many as the jobs, whose other tasks are done and wait nowhere; with two, tasks
    grow by 2(λ − b/m).
    """
    return max(0.0, fork_join_rate(load) - fork_join_rate(1.0))


def fork_join_level(sizes: dict[str, tuple[int, int]], load: float) -> float:
    """Jobs that are under way where nobody waits: λ times the slots of the longest way, by Little's law.

    A task lasts a slot for its prompt and one for each output token; the branch with more output is longer.
    """
    slots = {name: 1 + output for name, (_, output) in sizes.items()}
    return fork_join_rate(load) * (slots["0"] + max(slots[name] for name in BRANCHES) + slots["3"])


def stage(
    at: str, sizes: tuple[int, int], after: Sequence[str] = (), class_name: str | None = None
) -> iq.Stage:
    """A task with Poisson prompt and output."""
    prompt, output = (iq.PoissonLength(mean) for mean in sizes)
    return iq.Stage(at, prompt=prompt, output=output, after=after, class_name=class_name)


def agent(order: Sequence[str] | None = None) -> iq.Engine:
    """Decodes first, then prompts in the order of arrival; with `order` one class before the other."""
    scheduler: iq.Scheduler
    scheduler = inner = iq.KFcfs(token_budget=TOKEN_BUDGET, k_prefill=TOKEN_BUDGET, k_decode=TOKEN_BUDGET)
    if order is not None:
        scheduler = iq.ClassPriority(order=order, inner=inner)
    kv = iq.KvCache.unlimited()
    return iq.Engine(timing=iq.Constant(1.0), scheduler=scheduler, kv=kv, first_token="decode")


def rybko_stolyar(last_first: bool = True, moved: int = 0) -> iq.Network:
    """Two agents; each prefers jobs that are about to leave, or, reversed, those that come.

    `moved` tokens of every mean output belong to the prompt instead.
    """
    short, long = ((prompt + moved, output - moved) for prompt, output in (SHORT, LONG))

    def workflow(name: str, first: str, second: str) -> iq.Workflow:
        stages = {
            "short": stage(first, short, (), f"{name} short"),
            "long": stage(second, long, ("short",), f"{name} long"),
        }
        return iq.Workflow(name, stages=stages)

    step = 1 if last_first else -1
    engines = {"1": agent(["B long", "A short"][::step]), "2": agent(["A long", "B short"][::step])}
    return iq.Network(engines, [workflow("A", "1", "2"), workflow("B", "2", "1")])


def fork_join(sizes: dict[str, tuple[int, int]]) -> iq.Network:
    """Four agents, 0 → {1, 2} → 3."""
    after = {"0": (), "1": ("0",), "2": ("0",), "3": BRANCHES}
    stages = {name: stage(name, sizes[name], waits) for name, waits in after.items()}
    return iq.Network({name: agent() for name in sizes}, [iq.Workflow("agent", stages=stages)])


def run(network: iq.Network, rate: float, horizon: int, seed: int) -> iq.Result:
    """Jobs at so many per slot, the types of equal rates, until the horizon."""
    expected = rate * horizon
    requests = math.ceil(expected + 8 * math.sqrt(expected) + 100)
    jobs = iq.Workload.law(requests=requests, arrivals=iq.Poisson(rate))
    if len(network.workflows) > 1:
        share = 1 / len(network.workflows)
        jobs = jobs.with_classes({workflow.name: share for workflow in network.workflows})
    return iq.simulate(jobs, network, seed=seed, horizon_s=float(horizon))


def left_by(rows: pl.DataFrame, at: np.ndarray) -> np.ndarray:
    """How many had left at each instant."""
    return np.searchsorted(np.sort(rows["left_s"].drop_nulls().to_numpy()), at, side="right")


def present(rows: pl.DataFrame, at: np.ndarray) -> np.ndarray:
    """How many have arrived and not left, at each instant."""
    return np.searchsorted(np.sort(rows["arrival_s"].to_numpy()), at, side="right") - left_by(rows, at)


def tokens_present(rows: pl.DataFrame, at: np.ndarray) -> np.ndarray:
    """Prompt and output tokens of the requests that are at an agent, computed or not, at each instant."""
    sizes = rows["prompt_tokens"].to_numpy().astype(np.int64) + rows["output_tokens"].to_numpy()

    def until(column: str) -> np.ndarray:
        known = rows[column].is_not_null().to_numpy()
        instants, weights = rows[column].to_numpy()[known], sizes[known]
        order = np.argsort(instants, kind="stable")
        total = np.concatenate([[0], np.cumsum(weights[order])])
        return total[np.searchsorted(instants[order], at, side="right")]

    return until("arrival_s") - until("left_s")


@dataclass(frozen=True)
class Interval:
    """A mean over seeds, and how far from it the expected value lies with a confidence of 99 %."""

    mean: float
    half_width: float

    def holds(self, expected: float) -> bool:
        """Is the expected number inside?"""
        return abs(self.mean - expected) <= self.half_width

    def __str__(self) -> str:
        """As in the tables."""
        return f"{self.mean:.4f} ± {self.half_width:.4f}"


def interval(values: Sequence[float]) -> Interval:
    """Student's t over independent seeds."""
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return Interval(float(np.mean(values)), STUDENT_99[len(values)] * error)


@dataclass(frozen=True)
class Drift:
    """What happens per slot in the later half of a run."""

    jobs: Interval
    """Growth of the number of jobs. Its noise is that of the arrivals."""
    tasks: Interval
    """Growth of the number of requests at agents 1 and 2."""
    departures: Interval
    """Jobs that leave: in an overloaded network all but free of the arrivals' noise."""


def drift(
    network: Callable[[], iq.Network], rate: float, horizon: int = HORIZON, seeds: int = SEEDS
) -> Drift:
    """Slopes from the middle of the run to its end, over independent seeds."""
    jobs, tasks, departures = [], [], []
    at, slots = np.array([horizon / 2, horizon]), horizon / 2
    for seed in range(1, seeds + 1):
        result = run(network(), rate, horizon, seed)
        branches = result.requests.filter(pl.col("engine").cast(pl.String).is_in(BRANCHES))
        jobs.append(float(np.diff(present(result.jobs, at))[0]) / slots)
        tasks.append(float(np.diff(present(branches, at))[0]) / slots)
        departures.append(float(np.diff(left_by(result.jobs, at))[0]) / slots)
    return Drift(interval(jobs), interval(tasks), interval(departures))


def rybko_stolyar_drift(
    load: float, last_first: bool = True, horizon: int = HORIZON, seeds: int = SEEDS
) -> Drift:
    """Of the two agents with either order of priorities."""
    return drift(lambda: rybko_stolyar(last_first), 2 * rate_of(load), horizon, seeds)


def fork_join_drift(name: str, load: float, horizon: int = HORIZON, seeds: int = SEEDS) -> Drift:
    """Of the four agents with one or two slow branches."""
    return drift(lambda: fork_join(FORK_JOIN[name]), fork_join_rate(load), horizon, seeds)


def half_cycle_ratios(load: float, longest: int = 5_000, horizon: int = 150_000, seeds: int = 8) -> Interval:
    """The first half-cycle of more than so many slots: how much longer is the next one?

    They end where the agent with more last tasks changes. Whether a half-cycle is picked depends on the
    arrivals of one type, the length of the next one on those of the other, so that picking biases nothing.
    """
    at, ratios = np.arange(0, horizon + 1, 10), []
    for seed in range(1, seeds + 1):
        rows = run(rybko_stolyar(), 2 * rate_of(load), horizon, seed).requests
        names = rows["class"].cast(pl.String)
        more = present(rows.filter(names == "A long"), at) > present(rows.filter(names == "B long"), at)
        lengths = np.diff(at[np.flatnonzero(np.diff(more))])
        first = int(np.argmax(lengths > longest))
        ratios.append(float(lengths[first + 1] / lengths[first]))
    return interval(ratios)


def missing_departures(load: float, horizon: int, moved: int = 0, seeds: int = SEEDS) -> Interval:
    """By how many jobs the later half of a run falls short of b/M per slot: what the exchanges cost.

    With `moved` tokens in the prompts instead of the outputs tasks last fewer slots; all else is the same.
    """
    missing, at = [], np.array([horizon / 2, horizon])
    for seed in range(1, seeds + 1):
        left = left_by(run(rybko_stolyar(moved=moved), 2 * rate_of(load), horizon, seed).jobs, at)
        missing.append(horizon / 2 * TOKEN_BUDGET / LONG_TOKENS - float(left[1] - left[0]))
    return interval(missing)


def rybko_stolyar_table() -> pl.DataFrame:
    """Growth and departures for loads around the critical one."""
    rows = []
    for load, last_first in [*((load, True) for load in (0.5, 0.54, 0.58, 0.7, 0.8, 0.9)), (0.9, False)]:
        found = rybko_stolyar_drift(load, last_first)
        growth = virtual_station_growth(load) if last_first else 0.0
        rows.append(
            {
                "first": "last tasks" if last_first else "first tasks",
                "load": load,
                "growth, theory": growth,
                "growth, found": str(found.jobs),
                "departures, theory": 2 * rate_of(load) - growth,
                "departures, found": str(found.departures),
            }
        )
    return pl.DataFrame(rows)


def fork_join_table() -> pl.DataFrame:
    """Growth of jobs, and of tasks at the two branches."""
    rows = []
    for name in FORK_JOIN:
        for load in (0.9, 1.05):
            found, growth = fork_join_drift(name, load), fork_join_growth(load)
            slow = 1 if name == "one slow branch" else 2
            rows.append(
                {
                    "network": name,
                    "load": load,
                    "jobs, theory": growth,
                    "jobs, found": str(found.jobs),
                    "tasks at 1 and 2, theory": slow * growth,
                    "tasks, found": str(found.tasks),
                    "departures, theory": fork_join_rate(load) - growth,
                    "departures, found": str(found.departures),
                }
            )
    return pl.DataFrame(rows)


STATED, REVERSED = "last tasks first", "first tasks first"


def paths(horizon: int = 30_000, samples: int = 600, seed: int = 1) -> pl.DataFrame:
    """One run of each network over time: requests and tokens, and the line that the theory expects."""
    at = np.linspace(0, horizon, samples + 1)
    frames = []

    def add(panel: str, line: str, values: np.ndarray) -> None:
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


def chart(data: pl.DataFrame, path: Path) -> None:
    """Requests and tokens of the two agents, and jobs of the four, over time."""
    import altair as alt

    colours = {
        STATED: show.BLUE,
        REVERSED: show.SKY,
        "load 1.05": show.BLUE,
        "load 0.9": show.SKY,
        "theory": show.VERMILION,
    }

    def axis(ticks: int) -> alt.Axis:
        return alt.Axis(tickCount=ticks, format="~s", labelExpr="datum.value ? datum.label : '0'")

    def panel(name: str, title: str, lines: Sequence[str]) -> alt.LayerChart:
        rows = data.filter(pl.col("panel") == name)
        base = alt.Chart(rows).encode(
            x=alt.X("slot:Q", title="slot", axis=axis(4)),
            y=alt.Y("value:Q", title=None, axis=axis(5)),
            color=alt.Color(
                "line:N",
                title=None,
                scale=alt.Scale(domain=list(lines), range=[colours[line] for line in lines]),
                legend=alt.Legend(orient="bottom", direction="vertical"),
            ),
        )
        measured = base.transform_filter(alt.datum.line != "theory").mark_line(strokeWidth=2)
        theory = base.transform_filter(alt.datum.line == "theory").mark_line(strokeWidth=2, strokeDash=[6, 4])
        return (measured + theory).properties(width=245, height=220, title=title)

    panels = [
        panel("requests", "two agents, load 0.9: requests", [STATED, REVERSED, "theory"]),
        panel("tokens", "two agents, load 0.9: tokens", [STATED, REVERSED]),
        panel("fork-join", "fork-join: jobs", ["load 1.05", "load 0.9", "theory"]),
    ]
    show.save(alt.hconcat(*panels, spacing=24).resolve_scale(color="independent"), path)


if __name__ == "__main__":
    print(f"critical load of the virtual station: {CRITICAL_LOAD:.4f}")
    print(show.table(rybko_stolyar_table(), **{"growth, theory": 4, "departures, theory": 4}))
    print(f"next half-cycle at 0.9, theory {half_cycle_growth(0.9):.3f}, found {half_cycle_ratios(0.9)}")
    for horizon, moved in ((25_000, 0), (100_000, 0), (400_000, 0), (25_000, 28), (100_000, 28)):
        lacks = missing_departures(0.58, horizon, moved)
        said = f"{SHORT[1] - moved} output tokens, later half of {horizon:,} slots"
        print(f"load 0.58, {said}: lacks {lacks.mean:.0f} ± {lacks.half_width:.0f} jobs")
    exact = {"jobs, theory": 4, "tasks at 1 and 2, theory": 4, "departures, theory": 4}
    print(show.table(fork_join_table(), **exact))
    chart(paths(), Path(__file__).with_suffix(".svg"))
