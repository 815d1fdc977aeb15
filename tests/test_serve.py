"""The server: what clients see is what the simulation says, and what it records replays."""

import asyncio
import json
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import inferq as iq
from inferq.errors import ConfigError
from inferq.serving.requests import ApiError, parsed
from inferq.serving.serve import settings_of

aiohttp = pytest.importorskip("aiohttp")

SPEED = 200.0
CLASSES = ("serve", "dispatch")


def engine(**fields: Any) -> iq.Engine:
    """A small engine that batches, chunks and caches."""
    made = {
        "timing": iq.PiecewiseLinear(base=0.02, per_token=1e-4, knee=16),
        "scheduler": iq.Sarathi(token_budget=64, max_seqs=8),
        "kv": iq.KvCache(tokens=4096, prefix_cache="blocks"),
    }
    return iq.Engine(**{**made, **fields})


@dataclass
class Run:
    """A server in a test, and what it leaves."""

    url: str = ""
    server: Any = None
    client: Any = None
    rows: list[dict[str, Any]] = field(default_factory=list)
    tables: Any = None
    trace: Path | None = None

    async def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.client.post(f"{self.url}{path}", data=data, headers=headers) as answer:
            return answer.status, await answer.json()

    async def stream(self, path: str, body: dict[str, Any]) -> list[Any]:
        """The events of a stream, read as JSON but for the last."""
        async with self.client.post(f"{self.url}{path}", json={**body, "stream": True}) as answer:
            assert answer.status == 200
            assert answer.headers["Content-Type"].startswith("text/event-stream")
            lines = (await answer.read()).decode().split("\n\n")
        assert lines[-2:] == ["data: [DONE]", ""]
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


def served(
    system: Any, clients: Callable[[Run], Awaitable[None]], tmp_path: Path | None = None, **settings: Any
) -> Run:
    """Serve a system while clients do what they do."""
    from dataclasses import replace

    from inferq.serving.server import Server

    run = Run(trace=None if tmp_path is None else tmp_path / "trace.parquet")
    kept = {"take": run.rows.append, "batches": True, "timeline_s": 1.0}
    made = settings_of(system, **{"speed": SPEED, "record": run.trace, **settings})

    async def main() -> None:
        run.server = Server(system, replace(made, options=kept), "127.0.0.1", 0, 0)
        await run.server.start()
        run.url = f"http://127.0.0.1:{run.server.port}"
        async with aiohttp.ClientSession() as run.client:
            await clients(run)
        run.tables = await run.server.stop()

    asyncio.run(main())
    return run


def chat(*said: str, **fields: Any) -> dict[str, Any]:
    """A body: messages of the user and the assistant by turns."""
    roles = ("user", "assistant")
    messages = [{"role": roles[turn % 2], "content": text} for turn, text in enumerate(said)]
    return {"messages": messages, "max_tokens": 8, **fields}


async def conversations(run: Run, users: int = 12, turns: int = 3) -> None:
    """Users that ask, read the whole answer and go on, all at once."""

    async def user(number: int) -> None:
        dice = random.Random(number)
        said = [f"system text that all begin with, for one and all. {number % 3}"]
        for _ in range(turns):
            fields = {"max_tokens": dice.randint(1, 12), "user": f"user {number}", "priority": number % 2}
            status, answer = await run.post("/v1/chat/completions", chat(*said, **fields))
            assert status == 200, answer
            said += [answer["choices"][0]["message"]["content"], f"and then? {dice.random()}"]

    await asyncio.gather(*(user(number) for number in range(users)))


class Shortest(iq.Scheduler):
    """A scheduler of the user's own, which asks itself anew in each iteration."""

    def plan(self, view: Any) -> Any:
        running, waiting = view.running, view.waiting
        ready = running.id[running.decodes]
        admit = {int(one): int(left) for one, left in zip(waiting.id[:2], waiting.prompt_left[:2], strict=True)}
        return iq.Batch(decode=ready, admit=admit)


SYSTEMS = {
    "engine": lambda: engine(),
    "vllm": lambda: engine(scheduler=iq.VllmV1(token_budget=64, max_seqs=8, async_scheduling=True)),
    "radix": lambda: engine(scheduler=iq.Sglang(), kv=iq.KvCache(tokens=4096, block=1, prefix_cache="radix")),
    "round robin": lambda: iq.Cluster([engine()] * 3, router=iq.RoundRobin()),
    "affinity": lambda: iq.Cluster([engine(api_s=0.003)] * 3, router=iq.PrefixAffinity()),
    "prefixes": lambda: iq.Cluster([engine()] * 3, router=iq.PrefixHash(prefix_tokens=32)),
    "sessions": lambda: iq.Cluster([engine()] * 3, router=iq.BySession()),
    "disaggregated": lambda: iq.Disaggregated(
        prefill=(engine(), 2), decode=(engine(kv=iq.KvCache(tokens=8192)), 2), link=iq.Link(0.01, 1e9, 1000)
    ),
    "python": lambda: engine(scheduler=Shortest(), kv=iq.KvCache(tokens=2**20)),
    "keys": lambda: engine(scheduler=iq.Sarathi(order=iq.ByKey(lambda request: -request.prompt_tokens))),
}


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_recorded_trace_replays_the_run_in_every_instant_and_batch(name: str, tmp_path: Path):
    system = SYSTEMS[name]()
    run = served(system, conversations, tmp_path, seed=5)
    trace = iq.read_trace(run.trace)
    result = iq.simulate(trace, system, seed=5, batches=True, timeline_s=1.0)
    live = {
        column: np.concatenate([part[column] for part in run.rows]) for column in run.rows[0] if column != "class"
    }
    replayed = result._tables.requests
    for column, values in live.items():
        np.testing.assert_array_equal(values, replayed[column], err_msg=column)
    assert (live["status"] == 0).all()
    assert len(live["status"]) == 36
    for table in ("iterations", "batches", "tbt", "timeline", "work"):
        for column, values in run.tables[table].items():
            np.testing.assert_array_equal(values, getattr(result._tables, table)[column], err_msg=f"{table} {column}")
    assert run.tables["totals"] == {**result._tables.totals}
    assert run.tables["drained"].tolist() == list(result._tables.drained)
    hits = live["cached_tokens"].sum()
    assert (hits > 0) == any(one.kv.prefix_cache is not None for one in engines_of(system)), hits


def engines_of(system: Any) -> list[iq.Engine]:
    from inferq.systems.pools import pools_of

    return [one for pool in pools_of(system) for one in pool.engines]
