"""The requests of a measured run, and how its client sends them.

`arrival` is read word by word:

| says | means |
|---|---|
| `constant` | exponential gaps, scaled so that the last request comes at the end (inference-perf) |
| `poisson` | exponential gaps |
| `gamma` | gamma gaps with the run's `burstiness` as shape, as vLLM's benchmark has them |
| `evenly spaced` | equal gaps |
| `at once` | all at time 0 |
| `closed loop` | `concurrency` users, each of whom waits for the answer before the next request |
| `trace (…)` | the arrivals of the run's own log |
| `…; at most N in flight` | no request is sent while N are under way |

`input_law` is `fixed`, or `N fixed prompts in rotation: S shared by G + O own`, N prompts one after the other
and again; the first S tokens of each are those of its group, of which each has G prompts.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from inferq._lazy import np, pl
from inferq.experiments.validation.measured_run import MeasuredRun
from inferq.experiments.validation.settings import Assumed
from inferq.workload.distributions import Deterministic, Gamma, Poisson
from inferq.workload.workload import Workload

_ROTATION = re.compile(r"(\d+) fixed prompts in rotation: (\d+) shared by (\d+) \+ (\d+) own")
_MOST = re.compile(r"at most (\d+) in flight")
_PER_USER = 10
"""Requests of each user of a closed loop whose number is not said."""
_LARGEST = 10_000_000


@dataclass(frozen=True, slots=True)
class Client:
    """The requests of a run and how they are sent."""

    frame: pl.DataFrame
    """`arrival_s`, `prompt_tokens`, `output_tokens`, and `prefix_parts` where prompts share something."""
    users: int | None = None
    """Users of a closed loop."""
    max_in_flight: int | None = None

    def workload(self) -> Workload:
        """The requests; the users of a closed loop start together."""
        workload = Workload(self.frame)
        return workload if self.users is None else workload.closed_loop(self.users)


def client_for(run: MeasuredRun, assumed: Assumed, seed: int) -> Client:
    """The client of a run; `assumed` gets a line for each thing that was not said."""
    if run.requests is not None:
        return Client(_with_ends(run, _with_lengths_of(run, run.requests), assumed))
    arrival = run.arrival
    if arrival is None:
        arrival = "closed loop" if run.concurrency and run.rate_rps is None else "poisson"
        assumed.take("arrival", arrival, "not said")
    kind = re.split(r"[;,(]", arrival)[0].strip().lower()
    limit = _MOST.search(arrival)
    most = int(limit[1]) if limit else None
    if kind == "trace":
        raise run.wrong("arrival", "its arrivals are in a log of requests, which was not given")
    count = _count(run, kind, assumed)
    frame = _with_ends(run, _lengths(run, count, assumed), assumed)
    if kind == "closed loop":
        if run.concurrency is None:
            raise run.wrong("concurrency", "is empty: how many users has the closed loop?")
        return Client(frame, users=run.concurrency, max_in_flight=most)
    return Client(frame.with_columns(arrival_s=_arrivals(run, kind, count, seed)), max_in_flight=most)


def _with_lengths_of(run: MeasuredRun, rows: pl.DataFrame) -> pl.DataFrame:
    try:
        return Workload(rows.sort("arrival_s", maintain_order=True)).frame
    except ValueError as error:
        raise run.wrong("requests", str(error)) from None


def _with_ends(run: MeasuredRun, frame: pl.DataFrame, assumed: Assumed) -> pl.DataFrame:
    """The requests with what the client allowed each to emit, which a server that plans ahead foresees."""
    law = run.output_law or ""
    if not (law.startswith("fixed") or "ignore_eos" in law or "pinned" in law):
        assumed.take("ends of outputs", "by a stop token", f"{law!r} says no more" if law else "not said")
        return frame
    return frame.with_columns(max_output_tokens=pl.col("output_tokens"))


def _count(run: MeasuredRun, kind: str, assumed: Assumed) -> int:
    count = run.n_requests
    if count is None and kind == "closed loop" and run.concurrency:
        count = assumed.take("n_requests", _PER_USER * run.concurrency, f"{_PER_USER} for each user")
    if count is None and run.rate_rps and run.duration_s and math.isfinite(run.rate_rps):
        count = assumed.take("n_requests", round(run.rate_rps * run.duration_s), "rate_rps · duration_s")
    if not count:
        raise run.wrong("n_requests", "is empty, and no rate and duration say it")
    if count > _LARGEST:
        raise run.wrong(
            "n_requests", f"{count:,} requests are more than {_LARGEST:,}, the most that are simulated"
        )
    return int(count)


def _arrivals(run: MeasuredRun, kind: str, count: int, seed: int) -> pl.Series:
    if kind in ("at once", "inf") or (run.rate_rps is not None and math.isinf(run.rate_rps)):
        return pl.Series([0.0]).new_from_index(0, count)
    if run.rate_rps is None:
        raise run.wrong("rate_rps", f"is empty: how many requests a second come ({kind})?")
    processes: dict[str, Any] = {
        "constant": lambda rate: Poisson(rate),
        "poisson": lambda rate: Poisson(rate),
        "evenly spaced": lambda rate: Deterministic(rate),
        "gamma": lambda rate: Gamma(rate, cv=(run.burstiness or 1.0) ** -0.5),
    }
    if kind not in processes:
        known = ", ".join([*processes, "at once", "closed loop", "trace"])
        raise run.wrong("arrival", f"must begin with one of {known}; is {run.arrival!r}")
    process = processes[kind](run.rate_rps)
    times = Workload.synthetic(requests=count, arrivals=process).draw(seed).frame["arrival_s"]
    if kind == "constant":
        end_s = run.duration_s or count / run.rate_rps
        times = pl.Series(times.to_numpy() * (end_s / float(times[-1])))
    return times


def _lengths(run: MeasuredRun, count: int, assumed: Assumed) -> pl.DataFrame:
    for column, mean in (("input_mean", run.input_mean), ("output_mean", run.output_mean)):
        if mean is None:
            raise run.wrong(column, "is empty")
        if mean < 1:
            raise run.wrong(column, f"must be at least 1 token, is {mean:g}")
    assert run.input_mean is not None and run.output_mean is not None
    rotation = _ROTATION.search(run.input_law or "")
    prompts = int(rotation[1]) if rotation else count
    for column, law in (("input_law", run.input_law), ("output_law", run.output_law)):
        if (law is None or not law.startswith("fixed")) and not (column == "input_law" and rotation):
            assumed.take(column, "all of the mean length", f"{law!r} says no more" if law else "not said")
    prompt, output = _around(run.input_mean, prompts), _around(run.output_mean, count)
    frame = pl.DataFrame({"prompt_tokens": np.resize(prompt, count), "output_tokens": output})
    if not rotation:
        return frame
    shared, each, own = (int(rotation[place]) for place in (2, 3, 4))
    assumed.take("order of prompts", "in rotation, group after group", "not said which comes next")
    assumed.take("prompt lengths", "the mean, to a token", "only the mean is published")
    parts = []
    for place in range(prompts):
        common = max(1, round(shared * int(prompt[place]) / (shared + own)))
        parts.append([(f"group {place // each}", common), (f"prompt {place}", int(prompt[place]) - common)])
    told = Workload({"prompt_tokens": prompt, "prefix_parts": parts}).frame["prefix_parts"]
    return frame.with_columns(told.gather(np.arange(count) % prompts))


def _around(mean: float, count: int) -> Any:
    """Whole lengths next to a mean, whose own mean is as near to it as can be."""
    return np.diff(np.floor(np.arange(count + 1) * mean)).astype(np.int64).clip(1)
