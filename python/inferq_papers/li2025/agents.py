"""The two networks of li2025 section 4.3: theory, runs and measures."""

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
"""Mean prompt and output tokens of the first and last task of a job, li2025 (4.4) and (4.5)."""

FORK_JOIN = {
    "one slow branch": {"0": (128, 64), "1": (512, 64), "2": (256, 128), "3": (192, 192)},
    "two slow branches": {"0": (128, 64), "1": (512, 64), "2": (288, 288), "3": (192, 192)},
}
"""Mean prompt and output tokens at each agent, not published. The slow agents have 576 tokens in total."""
BRANCHES = ("1", "2")

SHORT_TOKENS, LONG_TOKENS = sum(SHORT), sum(LONG)
CRITICAL_LOAD = (SHORT_TOKENS + LONG_TOKENS) / (2 * LONG_TOKENS)
"""Load at which the virtual station of Rybko and Stolyar is full, see `virtual_station_growth`: 0.559."""
SERVED = TOKEN_BUDGET / LONG_TOKENS
"""Jobs per slot that the virtual station completes: b/M."""


def rate_of(load: float) -> float:
    """Jobs of each type per slot of the Rybko–Stolyar network: λ = ρ·b/(m + M)."""
    return load * TOKEN_BUDGET / (SHORT_TOKENS + LONG_TOKENS)


def virtual_station_growth(load: float) -> float:
    """Growth of the Rybko–Stolyar network in requests per slot: max(0, 2λ − b/M).

    λ is the rate of each type, m = 64 and M = 544 the mean tokens of short and long tasks, b the budget. A1
    and B2 are the short first tasks (at agents 1 and 2), A2 and B1 the long last ones (at 2 and 1). Last
    tasks have priority: B1 before A1, A2 before B2. The fluid model ignores bounded quantities.

    Let n jobs wait at A1 and none elsewhere. Agent 1 has no B1, so A1 gets its whole budget and sends b/m =
    12 jobs per slot to A2. A2 serves b/M = 1.41, so it immediately has a backlog. While it has one, it fills
    the budget of agent 2 alone: a prompt may be cut, so there are always tokens to fill it with. B2 gets
    nothing, and no job reaches B1. So only A2 completes jobs: b/M per slot. After n/(b/m − λ) slots A1 is
    empty and forwards λ < b/M. A2 is empty at T with n + λT = T·b/M. By then n' = λT = n·λ/(b/M − λ) jobs
    wait at B2, and the same happens with A and B exchanged. (B2 now gets the budget that A2 leaves, at most
    (b − λM)/m jobs per slot. For ρ < 0.98 that is more than B1 serves, so B1 has a backlog and blocks A1.)

    At any time either A2 or B1 is served, at b/M, never both. Together they are one station, the virtual one,
    with load 2λM/b. Jobs arrive at 2λ and leave at b/M, so their number grows linearly, by 2λ − b/M, through
    all half-cycles. Each half-cycle is longer than the previous one by a factor of λ/(b/M − λ), which exceeds
    1 exactly if 2λM/b > 1, i.e. ρ > (m + M)/(2M). Below, n' < n and the network empties. For two stations
    this condition and ρ < 1 are sufficient for stability (Dai and Vande Vate, Operations Research 48, 2000).

    The model ignores the minimum duration of a task, 33 slots for short and long ones (1 of prompt, 32 of
    decodes). It matters when the agents exchange roles, by some requests per exchange. There are about
    ln(t) / ln(λ/(b/M − λ)) exchanges until slot t, so the slope changes by O(ln(t)/t): most near the critical
    load, where exchanges are frequent.
    """
    return max(0.0, 2 * rate_of(load) - SERVED)


def half_cycle_growth(load: float) -> float:
    """Length of a half-cycle divided by the previous one: λ/(b/M − λ), see `virtual_station_growth`."""
    return rate_of(load) / (SERVED - rate_of(load))


def fork_join_rate(load: float, tokens: int = 576) -> float:
    """Jobs per slot for a load of an agent with a mean of `tokens` per task: λ = ρ·b/(m_p + m_d), (4.3)."""
    return load * TOKEN_BUDGET / tokens


def fork_join_growth(load: float) -> float:
    """Growth of a fork-join network in jobs per slot: max(0, λ − b/m) for the slowest agent's m.

    Jobs arrive at both branches at λ (agent 0 is not overloaded); a branch completes at most b/m tasks. A job
    is joined when the later of its two tasks is done. So joins occur at the rate of the slower branch, and
    agent 3, which has more capacity, adds nothing. Tasks grow at each overloaded branch by λ − b/m. With one
    slow branch they are as many as the jobs, whose other tasks are done. With two, tasks grow by 2(λ − b/m).
    """
    return max(0.0, fork_join_rate(load) - fork_join_rate(1.0))


def fork_join_level(sizes: dict[str, tuple[int, int]], load: float) -> float:
    """Jobs in progress if none waits: λ times the slots of the longest path, by Little's law.

    A task takes one slot for its prompt and one per output token; the branch with more output is longer.
    """
    slots = {name: 1 + output for name, (_, output) in sizes.items()}
    return fork_join_rate(load) * (slots["0"] + max(slots[name] for name in BRANCHES) + slots["3"])


def stage(
    at: str, sizes: tuple[int, int], after: Sequence[str] = (), class_name: str | None = None
) -> iq.Stage:
    """A task with Poisson prompt and output lengths."""
    prompt, output = (iq.dist.PoissonLength(mean) for mean in sizes)
    return iq.Stage(at, prompt=prompt, output=output, after=after, class_name=class_name)


def agent(order: Sequence[str] | None = None) -> iq.Engine:
    """Decodes first, then prompts in order of arrival; with `order` one class before the other."""
    inner = iq.research.KFcfs(token_budget=TOKEN_BUDGET, k_prefill=TOKEN_BUDGET, k_decode=TOKEN_BUDGET)
    scheduler: iq.Scheduler = inner if order is None else iq.ClassPriority(order=order, inner=inner)
    kv = iq.KvCache.unlimited()
    return iq.Engine(timing=iq.Constant(1.0), scheduler=scheduler, kv=kv, first_token="decode")


def rybko_stolyar(last_first: bool = True, moved: int = 0) -> iq.Network:
    """Two agents that prefer last tasks, or, reversed, first tasks.

    `moved` tokens of every mean output are moved to the prompt.
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
    """Jobs at a rate per slot, with equal rates of all types, until the horizon."""
    expected = rate * horizon
    requests = math.ceil(expected + 8 * math.sqrt(expected) + 100)
    jobs = iq.Workload.synthetic(requests=requests, arrivals=iq.dist.Poisson(rate))
    if len(network.workflows) > 1:
        share = 1 / len(network.workflows)
        jobs = jobs.with_classes({workflow.name: share for workflow in network.workflows})
    return iq.simulate(jobs, network, seed=seed, horizon_s=float(horizon))


def left_by(rows: pl.DataFrame, at: NDArray[Any]) -> NDArray[Any]:
    """Number of departures up to each time."""
    return np.asarray(np.searchsorted(np.sort(rows["left_s"].drop_nulls().to_numpy()), at, side="right"))


def present(rows: pl.DataFrame, at: NDArray[Any]) -> NDArray[Any]:
    """Number in the system at each time."""
    arrived = np.searchsorted(np.sort(rows["arrival_s"].to_numpy()), at, side="right")
    return np.asarray(arrived - left_by(rows, at))


def tokens_present(rows: pl.DataFrame, at: NDArray[Any]) -> NDArray[Any]:
    """Prompt and output tokens of the requests at an agent, computed or not, at each time."""
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
    """Rates per slot in the second half of a run."""

    jobs: Interval
    """Growth of the number of jobs, with the noise of the arrivals."""
    tasks: Interval
    """Growth of the number of requests at agents 1 and 2."""
    departures: Interval
    """Departures of jobs: in an overloaded network almost without the noise of the arrivals."""


def drift(network: Callable[[], iq.Network], rate: float, horizon: int, seeds: int) -> Drift:
    """Slopes from the middle to the end of the run, over independent seeds."""
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
    """Drift of the two agents with either order of priorities."""
    return drift(lambda: rybko_stolyar(last_first), 2 * rate_of(load), horizon, seeds)


def fork_join_drift(name: str, load: float, horizon: int, seeds: int) -> Drift:
    """Drift of the four agents with one or two slow branches."""
    return drift(lambda: fork_join(FORK_JOIN[name]), fork_join_rate(load), horizon, seeds)


def half_cycle_ratios(load: float, longest: int, horizon: int, seeds: int) -> Interval:
    """Length ratio of the half-cycle after the first long one, which has more than `longest` slots.

    Half-cycles end when the agent with more last tasks changes. The selection depends on the arrivals of one
    type, and the length of the next half-cycle on those of the other, so the selection causes no bias.
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
    """Missing departures compared with b/M per slot in the second half of a run: the cost of exchanges.

    With `moved` tokens in the prompts instead of the outputs, tasks take fewer slots; the rest is the same.
    """
    missing, at = [], np.array([horizon / 2, horizon])
    for seed in range(1, seeds + 1):
        left = left_by(run(rybko_stolyar(moved=moved), 2 * rate_of(load), horizon, seed).jobs, at)
        missing.append(horizon / 2 * SERVED - float(left[1] - left[0]))
    return interval(missing)
