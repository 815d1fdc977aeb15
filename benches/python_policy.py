"""What does an iteration cost that a scheduler written in Python plans?

    python benches/python_policy.py

Each line has so many requests running in every iteration, and a queue behind them; all come at time 0. The
time is the processor's for `iq.simulate`, from the columns to the frames: the least of several runs, divided
by the number of iterations, in microseconds. Columns:

- `built-in`: `iq.Sarathi`, one iteration at a time (`stepping=True`), for comparison;
- `crossing`: the least that a plan can be: all decode, named by a list that is made once. None waits;
- `chunked`: `ShortestFirst` of `docs/guides/write-a-scheduler.md`, with a view of 256 waiting requests;
- `repeat`: the same, but a batch without prompts is asked for until something happens (`repeat=10**6`).
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from scaling import machine

import inferq as iq

RUNNING = (8, 64, 256)
SECONDS_A_CELL = 3.0


class Crossing(iq.Scheduler):
    """All run from the first batch to the last."""

    def __init__(self, running: int) -> None:
        self.all = list(range(running))

    def plan(self, view: iq.View) -> iq.Batch:
        if len(view.running) == 0:
            return iq.Batch(prefill=[(id, 1) for id in self.all])
        return iq.Batch(decode=self.all)


class ShortestFirst(iq.Scheduler):
    """Decodes first; then prompts in chunks: started ones, then the shortest of the queue."""

    def __init__(self, max_seqs: int, repeat: int = 1) -> None:
        self.token_budget, self.max_seqs, self.repeat = 512, max_seqs, repeat

    def plan(self, view: iq.View) -> iq.Batch:
        running, waiting = view.running, view.waiting
        decode = running.id[running.decodes]
        prompts: list[tuple[int, int]] = []
        if len(decode) < len(running):
            started = ~running.decodes
            prompts += zip(running.id[started].tolist(), running.prompt_left[started].tolist(), strict=True)
        if len(running) < self.max_seqs:
            first = waiting.prompt_left.argsort(kind="stable")[: self.max_seqs - len(running)]
            prompts += zip(waiting.id[first].tolist(), waiting.prompt_left[first].tolist(), strict=True)
        left, prefill = self.token_budget - len(decode), []
        for id, owed in prompts:
            if left > 0:
                prefill.append((id, min(owed, left)))
                left -= prefill[-1][1]
        return iq.Batch(decode=decode, prefill=prefill, repeat=1 if prefill else self.repeat)


def same(requests: int, output_tokens: int) -> dict[str, Any]:
    """All alike, so that all run from the first iteration to the last."""
    ones = np.ones(requests, dtype=np.int64)
    return {"arrival_s": ones * 0.0, "prompt_tokens": ones, "output_tokens": ones * output_tokens}


def mixed(running: int) -> dict[str, Any]:
    """Prompts of 1 to 400 tokens, outputs of 1 to 300; the queue is long for most of the run."""
    draw, requests = np.random.default_rng(1), 20 * running + 300
    lengths = {
        "prompt_tokens": draw.integers(1, 401, requests),
        "output_tokens": draw.integers(1, 301, requests),
    }
    return {"arrival_s": np.zeros(requests), **lengths}


def microseconds(workload: dict[str, Any], scheduler: iq.Scheduler, stepping: bool = False) -> float:
    """The least time for one iteration."""
    engine = iq.Engine(timing=iq.Constant(0.01), scheduler=scheduler, kv=iq.KvCache.unlimited())
    seconds: list[float] = []
    while sum(seconds) < SECONDS_A_CELL or len(seconds) < 3:
        start = time.process_time()
        result = iq.simulate(workload, engine, stepping=stepping)
        seconds.append(time.process_time() - start)
    return min(seconds) / result.totals["iterations"] * 1e6


def main() -> None:
    """Print the table."""
    print(machine())
    print("microseconds an iteration")
    print(f"{'running':>7} {'built-in':>9} {'crossing':>9} {'chunked':>9} {'repeat':>9}")
    for running in RUNNING:
        long = same(running, 10_000)
        queued = mixed(running)
        built_in = iq.Sarathi(token_budget=512, max_seqs=running, order="spf")
        cells = [
            microseconds(queued, built_in, stepping=True),
            microseconds(long, Crossing(running)),
            microseconds(queued, ShortestFirst(running)),
            microseconds(queued, ShortestFirst(running, repeat=10**6)),
        ]
        print(f"{running:7}", *(f"{cell:9.1f}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
