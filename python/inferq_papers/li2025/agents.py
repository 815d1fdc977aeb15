"""What does theory say of the two networks of li2025 section 4.3, and how are they run and measured?"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

import inferq as iq
from inferq import Interval
from inferq_papers.report import interval

TOKEN_BUDGET = 768
SHORT, LONG = (32, 32), (512, 32)
"""Mean prompt and output tokens of the first and of the last sub-task of a job, li2025 (4.4) and (4.5)."""

FORK_JOIN = {
    "one slow branch": {"0": (128, 64), "1": (512, 64), "2": (256, 128), "3": (192, 192)},
    "two slow branches": {"0": (128, 64), "1": (512, 64), "2": (288, 288), "3": (192, 192)},
}
"""Mean prompt and output tokens at each agent; the paper gives none. The slow ones have 576 tokens in all."""
BRANCHES = ("1", "2")

SHORT_TOKENS, LONG_TOKENS = sum(SHORT), sum(LONG)
CRITICAL_LOAD = (SHORT_TOKENS + LONG_TOKENS) / (2 * LONG_TOKENS)
"""Where the virtual station of Rybko and Stolyar is full, see `virtual_station_growth`: 0.559."""
SERVED = TOKEN_BUDGET / LONG_TOKENS
"""Jobs per slot that it lets go: b/M."""


def rate_of(load: float) -> float:
    """Jobs of each type per slot of the Rybko–Stolyar network: λ = ρ·b/(m + M)."""
    return load * TOKEN_BUDGET / (SHORT_TOKENS + LONG_TOKENS)


def virtual_station_growth(load: float) -> float:
    """By how many requests per slot the Rybko–Stolyar network grows: max(0, 2λ − b/M).

    λ is the rate of each type, m = 64 and M = 544 the mean tokens of short and long tasks, b the budget.
    A1 and B2 are the short first tasks (at agents 1 and 2), A2 and B1 the long last ones (at 2 and 1). Last
    tasks go first: B1 before A1, A2 before B2. The fluid model, which forgets what stays bounded:

    Let n jobs wait at A1 and none elsewhere. Agent 1 has no B1, so A1 gets all of its budget and feeds A2
    with b/m = 12 jobs a slot; A2 serves b/M = 1.41, so it has a backlog at once. As long as it has, it fills
    the budget of agent 2 by itself: a prompt may be cut, so there are always tokens to fill it with. B2 gets
    nothing, and no job reaches B1. So only A2 lets jobs go: b/M per slot. After n/(b/m − λ) slots A1 is
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
    return max(0.0, 2 * rate_of(load) - SERVED)


def half_cycle_growth(load: float) -> float:
    """How much longer each half-cycle is than the one before: λ/(b/M − λ), see `virtual_station_growth`."""
    return rate_of(load) / (SERVED - rate_of(load))


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
    """Jobs that are under way where none waits: λ times the slots of the longest way, by Little's law.

    A task lasts a slot for its prompt and one for each output token; the branch with more output is longer.
    """
    slots = {name: 1 + output for name, (_, output) in sizes.items()}
    return fork_join_rate(load) * (slots["0"] + max(slots[name] for name in BRANCHES) + slots["3"])


def stage(
    at: str, sizes: tuple[int, int], after: Sequence[str] = (), class_name: str | None = None
) -> iq.Stage:
    """A task with Poisson prompt and output."""
    prompt, output = (iq.dist.PoissonLength(mean) for mean in sizes)
    return iq.Stage(at, prompt=prompt, output=output, after=after, class_name=class_name)


def agent(order: Sequence[str] | None = None) -> iq.Engine:
    """Decodes first, then prompts in the order of arrival; with `order` one class before the other."""
    inner = iq.research.KFcfs(token_budget=TOKEN_BUDGET, k_prefill=TOKEN_BUDGET, k_decode=TOKEN_BUDGET)
    scheduler: iq.Scheduler = inner if order is None else iq.ClassPriority(order=order, inner=inner)
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
    after: dict[str, tuple[str, ...]] = {"0": (), "1": ("0",), "2": ("0",), "3": BRANCHES}
    stages = {name: stage(name, sizes[name], waits) for name, waits in after.items()}
    return iq.Network({name: agent() for name in sizes}, [iq.Workflow("agent", stages=stages)])


def run(network: iq.Network, rate: float, horizon: int, seed: int) -> iq.Result:
    """Jobs at so many per slot, the types of equal rates, until the horizon."""
    expected = rate * horizon
    requests = math.ceil(expected + 8 * math.sqrt(expected) + 100)
    jobs = iq.Workload.synthetic(requests=requests, arrivals=iq.dist.Poisson(rate))
    if len(network.workflows) > 1:
        share = 1 / len(network.workflows)
        jobs = jobs.with_classes({workflow.name: share for workflow in network.workflows})
    return iq.simulate(jobs, network, seed=seed, horizon_s=float(horizon))


def left_by(rows: pl.DataFrame, at: NDArray[Any]) -> NDArray[Any]:
    """How many had left at each instant."""
    return np.asarray(np.searchsorted(np.sort(rows["left_s"].drop_nulls().to_numpy()), at, side="right"))


def present(rows: pl.DataFrame, at: NDArray[Any]) -> NDArray[Any]:
    """How many have arrived and not left, at each instant."""
    arrived = np.searchsorted(np.sort(rows["arrival_s"].to_numpy()), at, side="right")
    return np.asarray(arrived - left_by(rows, at))


def tokens_present(rows: pl.DataFrame, at: NDArray[Any]) -> NDArray[Any]:
    """Prompt and output tokens of the requests that are at an agent, computed or not, at each instant."""
    sizes = rows["prompt_tokens"].to_numpy().astype(np.int64) + rows["output_tokens"].to_numpy()

    def until(column: str) -> Any:
        known = rows[column].is_not_null().to_numpy()
        instants, weights = rows[column].to_numpy()[known], sizes[known]
        order = np.argsort(instants, kind="stable")
        total = np.concatenate([[0], np.cumsum(weights[order])])
        return total[np.searchsorted(instants[order], at, side="right")]

    return np.asarray(until("arrival_s") - until("left_s"))


@dataclass(frozen=True)
class Drift:
    """What happens per slot in the later half of a run."""

    jobs: Interval
    """Growth of the number of jobs. Its noise is that of the arrivals."""
    tasks: Interval
    """Growth of the number of requests at agents 1 and 2."""
    departures: Interval
    """Jobs that leave: in an overloaded network all but free of the arrivals' noise."""


def drift(network: Callable[[], iq.Network], rate: float, horizon: int, seeds: int) -> Drift:
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


def rybko_stolyar_drift(load: float, last_first: bool, horizon: int, seeds: int) -> Drift:
    """Of the two agents with either order of priorities."""
    return drift(lambda: rybko_stolyar(last_first), 2 * rate_of(load), horizon, seeds)


def fork_join_drift(name: str, load: float, horizon: int, seeds: int) -> Drift:
    """Of the four agents with one or two slow branches."""
    return drift(lambda: fork_join(FORK_JOIN[name]), fork_join_rate(load), horizon, seeds)


def half_cycle_ratios(load: float, longest: int, horizon: int, seeds: int) -> Interval:
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


def missing_departures(load: float, horizon: int, moved: int, seeds: int) -> Interval:
    """By how many jobs the later half of a run falls short of b/M per slot: what the exchanges cost.

    With `moved` tokens in the prompts instead of the outputs tasks last fewer slots; all else is the same.
    """
    missing, at = [], np.array([horizon / 2, horizon])
    for seed in range(1, seeds + 1):
        left = left_by(run(rybko_stolyar(moved=moved), 2 * rate_of(load), horizon, seed).jobs, at)
        missing.append(horizon / 2 * SERVED - float(left[1] - left[0]))
    return interval(missing)
