"""Scenarios for sweeps, which other processes find as a module of this name."""

import io
import os
import signal
import time
from pathlib import Path

import polars as pl

import inferq as iq

ENGINE = iq.Engine(timing=iq.Constant(0.05), scheduler=iq.Sarathi(), kv=iq.KvCache.unlimited())
GRID = {"rate": [2.0, 4, 8], "budget": [64, 0, 256]}
"""A budget of 0 is an error, so a third of the points fail."""

TOML = """
[workload]
requests = 40
arrivals = { kind = "Poisson", rate = 4 }
prompt = { kind = "Geometric", mean = 100 }
output = { kind = "Geometric", mean = 20 }
[engine.timing]
kind = "Constant"
seconds = 0.05
[engine.scheduler]
kind = "Sarathi"
[engine.kv]
tokens = 100_000
[run]
seed = 7
"""


def chat(rate: float, budget: int = 256):
    arrivals, prompt, output = iq.dist.Poisson(rate), iq.dist.Geometric(100), iq.dist.Geometric(20)
    workload = iq.Workload.synthetic(requests=40, arrivals=arrivals, prompt=prompt, output=output)
    scheduler = iq.Sarathi(token_budget=budget)
    return workload, iq.Engine(timing=iq.Constant(0.05), scheduler=scheduler, kv=iq.KvCache.unlimited())


def tiny(**_point):
    return {"arrival_s": [0.0], "prompt_tokens": [5], "output_tokens": [2]}, ENGINE


def fragile(folder, **point):
    """Kills the process that runs it once, at a point in the middle."""
    mark = Path(folder) / "killed"
    if point == {"rate": 4, "budget": 256} and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return chat(**point)


def deadly(**point):
    """Kills every process that runs it at a point in the middle."""
    if point == {"rate": 4, "budget": 256}:
        os.kill(os.getpid(), signal.SIGKILL)
    return chat(**point)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def slow(rate):
    time.sleep(0.05)
    return chat(rate)


def content(frame: pl.DataFrame) -> bytes:
    memory = io.BytesIO()
    frame.write_ipc(memory)
    return memory.getvalue()
