"""Requests and clients of measured runs.

Values of the column `arrival`:

| value | meaning |
|---|---|
| `constant` | exponential gaps, scaled so that the last request arrives at the end (inference-perf) |
| `poisson` | exponential gaps |
| `gamma` | gamma gaps with the shape `burstiness`, as in vLLM's benchmark |
| `evenly spaced` | equal gaps |
| `at once` | all at time 0 |
| `closed loop` | `concurrency` users, each of whom waits for the answer before the next request |
| `trace (…)` | the arrivals of the run's own log |
| `…; at most N in flight` | no request is sent while N are in flight |

`input_law` and `output_law` are `fixed` (all of the mean length) or `uniform LOW-HIGH` (integers from LOW to
HIGH, both included, with equal probability). `input_law` can also be `N fixed prompts in rotation: S shared
by G + O own`: N prompts in a cycle, whose first S tokens are shared by groups of G prompts. `N fixed prompts
in rotation` share nothing.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from inferq._lazy import np, pl
from inferq.experiments.validation.measured_run import MeasuredRun
from inferq.experiments.validation.settings import Assumptions
from inferq.workload.distributions import Deterministic, Gamma, Poisson
from inferq.workload.workload import Workload

_ROTATION = re.compile(r"(\d+) fixed prompts in rotation(?:: (\d+) shared by (\d+) \+ (\d+) own)?")
_UNIFORM = re.compile(r"uniform (\d+)-(\d+)(?:,|$)")
_MOST = re.compile(r"at most (\d+) in flight")
_PER_USER = 10
"""Default requests per user of a closed loop."""
_LARGEST = 10_000_000


@dataclass(frozen=True, slots=True)
class Client:
    """The requests of a run and how they are sent."""

    frame: pl.DataFrame
    """`arrival_s`, `prompt_tokens`, `output_tokens`, and `prefix_parts` if prompts share prefixes."""
    users: int | None = None
    """Users of a closed loop."""
    max_in_flight: int | None = None

    def workload(self) -> Workload:
        """The workload. Users of a closed loop start together."""
        workload = Workload(self.frame)
        return workload if self.users is None else workload.closed_loop(self.users)


def client_for(run: MeasuredRun, assumptions: Assumptions, seed: int) -> Client:
    """The client of a run. `assumptions` receives each value that was not published."""
    if run.requests is not None:
        return Client(_with_ends(run, _with_lengths_of(run, run.requests), assumptions))
    arrival = run.arrival
    if arrival is None:
        arrival = "closed loop" if run.concurrency and run.rate_rps is None else "poisson"
        assumptions.assume("arrival", arrival, "not published")
    kind = re.split(r"[;,(]", arrival)[0].strip().lower()
    limit = _MOST.search(arrival)
    most = int(limit[1]) if limit else None
    if kind == "trace":
        raise run.wrong("arrival", "requires the log of requests (requests=…)")
    count = _count(run, kind, assumptions)
    frame = _with_ends(run, _lengths(run, count, assumptions, seed), assumptions)
    if kind == "closed loop":
        if run.concurrency is None:
            raise run.wrong("concurrency", "is empty: a closed loop requires a number of users")
        return Client(frame, users=run.concurrency, max_in_flight=most)
    return Client(frame.with_columns(arrival_s=_arrivals(run, kind, count, seed)), max_in_flight=most)


def _with_lengths_of(run: MeasuredRun, rows: pl.DataFrame) -> pl.DataFrame:
    try:
        return Workload(rows.sort("arrival_s", maintain_order=True)).frame
    except ValueError as error:
        raise run.wrong("requests", str(error)) from None


def _with_ends(run: MeasuredRun, frame: pl.DataFrame, assumptions: Assumptions) -> pl.DataFrame:
    """Add the output limits of clients, which a server with async scheduling anticipates."""
    lengths = run.output_law or ""
    if not (lengths.startswith("fixed") or "ignore_eos" in lengths or "pinned" in lengths):
        reason = f"not specified by {lengths!r}" if lengths else "not published"
        assumptions.assume("ends of outputs", "by a stop token", reason)
        return frame
    return frame.with_columns(max_output_tokens=pl.col("output_tokens"))


def _count(run: MeasuredRun, kind: str, assumptions: Assumptions) -> int:
    count = run.n_requests
    if count is None and kind == "closed loop" and run.concurrency:
        count = assumptions.assume("n_requests", _PER_USER * run.concurrency, f"{_PER_USER} per user")
    if count is None and run.rate_rps and run.duration_s and math.isfinite(run.rate_rps):
        count = assumptions.assume(
            "n_requests", round(run.rate_rps * run.duration_s), "rate_rps · duration_s"
        )
    if not count:
        raise run.wrong("n_requests", "is empty, and cannot be computed from rate and duration")
    if count > _LARGEST:
        raise run.wrong("n_requests", f"must be at most {_LARGEST:,}, got {count:,}")
    return int(count)


def _arrivals(run: MeasuredRun, kind: str, count: int, seed: int) -> pl.Series:
    if kind in ("at once", "inf") or (run.rate_rps is not None and math.isinf(run.rate_rps)):
        return pl.Series([0.0]).new_from_index(0, count)
    if run.rate_rps is None:
        raise run.wrong("rate_rps", f"is empty: {kind} arrivals require a rate")
    processes: dict[str, Any] = {
        "constant": lambda rate: Poisson(rate),
        "poisson": lambda rate: Poisson(rate),
        "evenly spaced": lambda rate: Deterministic(rate),
        "gamma": lambda rate: Gamma(rate, cv=(run.burstiness or 1.0) ** -0.5),
    }
    if kind not in processes:
        known = ", ".join([*processes, "at once", "closed loop", "trace"])
        raise run.wrong("arrival", f"must start with one of {known}; got {run.arrival!r}")
    process = processes[kind](run.rate_rps)
    times = Workload.synthetic(requests=count, arrivals=process).draw(seed).frame["arrival_s"]
    if kind == "constant":
        end_s = run.duration_s or count / run.rate_rps
        times = pl.Series(times.to_numpy() * (end_s / float(times[-1])))
    return times


def _lengths(run: MeasuredRun, count: int, assumptions: Assumptions, seed: int) -> pl.DataFrame:
    for column, mean in (("input_mean", run.input_mean), ("output_mean", run.output_mean)):
        if mean is None:
            raise run.wrong(column, "is empty")
        if mean < 1:
            raise run.wrong(column, f"must be at least 1 token, got {mean:g}")
    assert run.input_mean is not None and run.output_mean is not None
    rotation = _ROTATION.search(run.input_law or "")
    prompts = int(rotation[1]) if rotation else count
    for column, lengths in (("input_law", run.input_law), ("output_law", run.output_law)):
        is_known = lengths is not None and (lengths.startswith("fixed") or _UNIFORM.match(lengths))
        if not is_known and not (column == "input_law" and rotation):
            reason = f"not specified by {lengths!r}" if lengths else "not published"
            assumptions.assume(column, "all of the mean length", reason)
    prompt = _drawn(run.input_law, prompts, seed, 0, run.input_mean)
    output = _drawn(run.output_law, count, seed, 1, run.output_mean)
    frame = pl.DataFrame({"prompt_tokens": np.resize(prompt, count), "output_tokens": output})
    if not rotation:
        return frame
    shared, each, own = (int(rotation[place] or default) for place, default in ((2, 0), (3, 1), (4, 1)))
    assumptions.assume("order of prompts", "in rotation, group after group", "order not published")
    assumptions.assume("prompt lengths", "the mean, to a token", "only the mean is published")
    parts = []
    for place in range(prompts):
        common = max(1, round(shared * int(prompt[place]) / (shared + own))) if shared else 0
        group = [(f"group {place // each}", common)] if common else []
        parts.append([*group, (f"prompt {place}", int(prompt[place]) - common)])
    prefixes = Workload({"prompt_tokens": prompt, "prefix_parts": parts}).frame["prefix_parts"]
    return frame.with_columns(prefixes.gather(np.arange(count) % prompts))


def _drawn(law: str | None, count: int, seed: int, stream: int, mean: float) -> Any:
    """Lengths of a distribution; of the mean length if it is unknown."""
    bounds = _UNIFORM.match(law or "")
    if bounds is None:
        return _around(mean, count)
    low, high = max(1, int(bounds[1])), max(1, int(bounds[1]), int(bounds[2]))
    return np.random.default_rng((seed, stream)).integers(low, high, count, endpoint=True)


def _around(mean: float, count: int) -> Any:
    """Integer lengths next to a mean, with the closest possible mean."""
    return np.diff(np.floor(np.arange(count + 1) * mean)).astype(np.int64).clip(1)
