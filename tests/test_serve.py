"""The server: what clients see is what the simulation says, and what it records replays."""

import asyncio
import contextlib
import json
import random
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import polars as pl
import pytest

import inferq as iq
from inferq.errors import ConfigError
from inferq.serving.lengths import Lengths
from inferq.serving.record import Record
from inferq.serving.requests import ApiError, parsed
from inferq.serving.texts import Characters

aiohttp = pytest.importorskip("aiohttp")

SPEED = 200.0


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
    system: Any,
    clients: Callable[[Run], Awaitable[None]],
    tmp_path: Path | None = None,
    *,
    seed: int = 0,
    output: Any = None,
    admin_port: int | None = None,
    **others: Any,
) -> Run:
    """Serve a system while clients do what they do."""
    from inferq.serving.server import Server
    from inferq.serving.service import Settings

    run = Run(trace=None if tmp_path is None else tmp_path / "trace.parquet")
    others = {"speed": SPEED, **others}
    settings = Settings(
        model="inferq",
        texts=Characters(4),
        lengths=Lengths(output, seed),
        seed=seed,
        record=run.trace and Record(run.trace, engines_of(system)[0].kv.block),
        options={"take": run.rows.append, "batches": True, "timeline_s": 1.0},
        **others,
    )

    async def main() -> None:
        run.server = Server(system, settings, "127.0.0.1", 0, admin_port)
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
    """A scheduler of the user's own, which is asked anew in each iteration."""

    max_seqs = 8

    def plan(self, view: Any) -> iq.Batch:
        running, waiting = view.running, view.waiting
        first = waiting.prompt_left.argsort(kind="stable")[: self.max_seqs - len(running)]
        prompts = zip(waiting.id[first].tolist(), waiting.prompt_left[first].tolist(), strict=True)
        return iq.Batch(decode=running.id[running.decodes], prefill=list(prompts))


SYSTEMS = {
    "engine": lambda: engine(),
    "vllm": lambda: engine(scheduler=iq.VllmV1(token_budget=64, max_seqs=8, async_scheduling=True)),
    "radix": lambda: engine(scheduler=iq.Sglang(), kv=iq.KvCache(tokens=4096, block=1, prefix_cache="radix")),
    "no overlap": lambda: engine(
        scheduler=iq.Sglang(overlap=False), kv=iq.KvCache(tokens=4096, block=1, prefix_cache="radix")
    ),
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
        column: np.concatenate([part[column] for part in run.rows])
        for column in run.rows[0]
        if column != "class"
    }
    replayed = result._tables.requests
    for column, values in live.items():
        np.testing.assert_array_equal(values, replayed[column], err_msg=column)
    assert (live["status"] == 0).all()
    assert len(live["status"]) == 36
    for table in ("iterations", "batches", "itl", "timeline", "work"):
        for column, values in run.tables[table].items():
            np.testing.assert_array_equal(
                values, getattr(result._tables, table)[column], err_msg=f"{table} {column}"
            )
    assert run.tables["totals"] == {**result._tables.totals}
    assert run.tables["drained"].tolist() == list(result._tables.drained)
    hits = live["cached_tokens"].sum()
    assert (hits > 0) == any(one.kv.prefix_cache is not None for one in engines_of(system)), hits


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("tokens", [448, 512, 1024])
def test_the_record_replays_what_sglang_reserved_for_its_clients(
    overlap: bool, tokens: int, tmp_path: Path
) -> None:
    """Answers stop far below what the clients allow, so that the reserved memory decides who waits."""
    one = iq.Engine(
        timing=iq.Constant(0.01), scheduler=iq.Sglang(overlap=overlap), kv=iq.KvCache(tokens=tokens)
    )

    async def clients(run: Run) -> None:
        async def client(number: int) -> None:
            body = {"prompt": "x" * (40 * number + 40), "max_tokens": 100 + 50 * number}
            status, answer = await run.post("/v1/completions", body)
            assert status == 200, answer

        await asyncio.gather(*(client(number) for number in range(5)))

    run = served(one, clients, tmp_path, output=[30], speed=20.0)
    result = iq.simulate(iq.read_trace(run.trace), one, batches=True)
    for column in ("admitted_s", "first_token_s", "finish_s"):
        live = np.concatenate([part[column] for part in run.rows])
        np.testing.assert_array_equal(live, result._tables.requests[column], err_msg=column)
    for column, values in run.tables["batches"].items():
        np.testing.assert_array_equal(values, result._tables.batches[column], err_msg=column)


def engines_of(system: Any) -> list[iq.Engine]:
    from inferq.systems.pools import pools_of

    return [one for pool in pools_of(system) for one in pool.engines]


def test_answers_have_openais_form():
    async def clients(run: Run) -> None:
        status, answer = await run.post("/v1/chat/completions", chat("Hello there", max_tokens=5, n=2))
        assert (status, answer["object"]) == (200, "chat.completion")
        assert [choice["index"] for choice in answer["choices"]] == [0, 1]
        for choice in answer["choices"]:
            assert choice["finish_reason"] == "length"
            assert choice["message"]["role"] == "assistant"
            assert len(choice["message"]["content"]) == 5 * 4
        # Eleven characters are three tokens; eight are of the template.
        assert answer["usage"] == {"prompt_tokens": 11, "completion_tokens": 10, "total_tokens": 21}
        asked = chat("Hello there", max_tokens=None, max_completion_tokens=3, stop=["a"])
        events = await run.stream(
            "/v1/chat/completions", {**asked, "stream_options": {"include_usage": True}}
        )
        deltas = [event["choices"][0] for event in events[:-1]]
        assert deltas[0]["delta"] == {"role": "assistant", "content": ""}
        assert [len(one["delta"]["content"]) for one in deltas[1:-1]] == [4, 4, 4]
        assert (deltas[-1]["delta"], deltas[-1]["finish_reason"]) == ({}, "length")
        assert {event["object"] for event in events} == {"chat.completion.chunk"}
        assert len({event["id"] for event in events}) == 1
        assert events[-1]["choices"] == [] and events[-1]["usage"]["completion_tokens"] == 3
        asked = {"prompt": ["Hello there", [1, 2, 3, 4]], "max_tokens": 2, "model": "inferq"}
        status, answer = await run.post("/v1/completions", asked)
        assert (status, answer["object"]) == (200, "text_completion")
        assert [len(choice["text"]) for choice in answer["choices"]] == [8, 8]
        assert answer["usage"]["prompt_tokens"] == 7
        events = await run.stream("/v1/completions", {"prompt": "Hi", "max_tokens": 2})
        assert [len(event["choices"][0]["text"]) for event in events] == [4, 4, 0]
        async with run.client.get(f"{run.url}/v1/models") as got:
            assert [model["id"] for model in (await got.json())["data"]] == ["inferq"]
        assert await run.post("/tokenize", {"prompt": "Hello there"}) == (
            200,
            {
                "count": 3,
                "max_model_len": 4096,
                "tokens": [int.from_bytes(piece, "little") for piece in (b"Hell", b"o th", b"ere")],
                "token_strs": None,
            },
        )
        async with run.client.get(f"{run.url}/metrics") as got:
            lines = dict(line.rsplit(" ", 1) for line in (await got.text()).splitlines() if line[0] != "#")
        one = '{model_name="inferq",engine="0"}'
        assert lines[f"vllm:generation_tokens_total{one}"] == str(10 + 3 + 4 + 2)
        assert lines[f"vllm:num_requests_running{one}"] == "0"
        assert lines[f"vllm:time_to_first_token_seconds_count{one}"] == "6"
        assert (
            lines['vllm:request_success_total{model_name="inferq",engine="0",finished_reason="length"}']
            == "6"
        )
        async with run.client.get(f"{run.url}/health") as got:
            assert got.status == 200

    served(engine(), clients)


def test_an_answer_is_as_long_as_asked_or_as_a_law_has_it():
    async def lengths(run: Run, **fields: Any) -> list[tuple[int, str]]:
        found = []
        for _ in range(3):
            _, answer = await run.post("/v1/chat/completions", chat("Hi", **fields))
            found.append((answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]))
        return found

    async def by_list(run: Run) -> None:
        assert await lengths(run, max_tokens=9) == [(3, "stop"), (9, "length"), (9, "length")]
        assert await lengths(run, max_tokens=9, ignore_eos=True) == [(9, "length")] * 3
        assert await lengths(run, max_tokens=9, min_tokens=5) == [(5, "stop"), (9, "length"), (9, "length")]
        assert await lengths(run, max_tokens=None) == [(3, "stop"), (9, "stop"), (20, "stop")]

    async def by_law(run: Run) -> None:
        drawn = iq.dist.Geometric(9).draw_column(3, 7).tolist()
        assert [tokens for tokens, _ in await lengths(run, max_tokens=200)] == drawn

    async def unasked(run: Run) -> None:
        assert await lengths(run, max_tokens=None) == [(128, "stop")] * 3

    served(engine(), by_list, output=[3, 9, 20])
    served(engine(), by_law, output=iq.dist.Geometric(9), seed=7)
    served(engine(), unasked, speed=2000)


def test_what_cannot_be_is_refused_in_openais_form():
    refused = [
        (chat(), 400, "messages"),
        ({"messages": [{"role": "user"}]}, 400, "messages.0.content"),
        (chat("Hi", max_tokens=0), 400, "max_tokens"),
        (chat("Hi", max_tokens=True), 400, "max_tokens"),
        (chat("Hi", max_tokens=4096), 400, "messages"),
        (chat("x" * 4 * 4096, max_tokens=None), 400, "messages"),
        (chat("Hi", model="gpt-5"), 404, "model"),
        (chat("Hi", n=129), 400, "n"),
        (chat("\ud800"), 400, "messages.0.content"),
        (chat("Hi", logprobs=True), 400, "logprobs"),
        (chat("Hi", response_format={"type": "json_object"}), 400, "response_format"),
        (chat("Hi", stream_options={"include_usage": True}), 400, "stream_options"),
        (b"{", 400, None),
        (b"[" * 100_000, 400, None),
        (b"[1]", 400, None),
    ]

    async def clients(run: Run) -> None:
        for body, status, param in refused:
            got, answer = await run.post("/v1/chat/completions", body)
            assert (got, answer["error"]["param"]) == (status, param), (body, answer)
            assert answer["error"]["code"] == status and answer["error"]["message"]
        assert (await run.post("/v1/completions", {"prompt": []}))[0] == 400
        assert (await run.post("/nowhere", {}))[0] == 404
        async with run.client.get(f"{run.url}/v1/completions") as got:
            assert got.status == 405 and "error" in await got.json()

    assert len(served(engine(), clients).server.service.fleet.live.pools) == 1


def mutated(dice: random.Random, value: Any, depth: int = 0) -> Any:
    """The value with something in it changed."""
    odd = (None, True, -1, 0, 2**70, 1e308, float("nan"), "", "\ud800", "x" * 99, [], {}, [[[]]], {"a": {}})
    if isinstance(value, dict) and value and depth < 4 and dice.random() < 0.8:
        name = dice.choice(list(value))
        changed = {key: mutated(dice, one, depth + 1) if key == name else one for key, one in value.items()}
        if dice.random() < 0.2:
            del changed[name]
        return changed
    if isinstance(value, list) and value and depth < 4 and dice.random() < 0.8:
        place = dice.randrange(len(value))
        return [mutated(dice, one, depth + 1) if at == place else one for at, one in enumerate(value)]
    return dice.choice(odd)


def test_ten_thousand_malformed_requests_are_refused_and_none_breaks_the_server():
    fields = {"n": 2, "stream": True, "stream_options": {"include_usage": True}, "stop": ["a"], "user": "u"}
    more = {"priority": 1, "cache_salt": "s", "ignore_eos": True, "min_tokens": 1, "temperature": 0.5}
    parts = [{"type": "text", "text": "Hi"}]
    bodies = [
        (True, {**chat("Hi", "there", "and"), **fields, **more}),
        (True, {"messages": [{"role": "user", "content": parts}], "max_completion_tokens": 3}),
        (False, {"prompt": ["Hi", [1, 2]], "max_tokens": 2, **fields, **more}),
    ]

    async def clients(run: Run) -> None:
        dice, refused = random.Random(1), 0
        for number in range(10_000):
            is_chat, body = bodies[number % 3]
            for _ in range(dice.randint(1, 3)):
                body = mutated(dice, body)
            data = json.dumps(body).encode()
            if number % 4 == 0:
                data = bytearray(data)
                for _ in range(3):
                    data[dice.randrange(len(data))] = dice.randrange(256)
            try:
                run.server.service.begin(parsed(bytes(data)), is_chat, None, 0)
            except ApiError as error:
                assert 400 <= error.status < 500, (data, error)
                refused += 1
            if number % 50 == 0:
                path = "/v1/chat/completions" if is_chat else "/v1/completions"
                async with run.client.post(f"{run.url}{path}", data=bytes(data)) as answer:
                    assert answer.status < 500, (data, await answer.read())
        assert 5_000 < refused < 10_000
        reader, writer = await asyncio.open_connection("127.0.0.1", run.server.port)
        writer.write(b"\x16\x03\x01 no HTTP at all\r\n\r\n")
        assert b" 400 " in (await reader.read()).split(b"\r\n")[0]
        writer.close()
        assert (await run.post("/v1/chat/completions", chat("Still there?")))[0] == 200

    served(engine(kv=iq.KvCache(tokens=2**20)), clients, speed=1e5)


def test_beyond_the_queue_a_request_is_refused_and_may_come_again():
    async def clients(run: Run) -> None:
        asks = [run.post("/v1/chat/completions", chat("Hi", max_tokens=50)) for _ in range(30)]
        answers = await asyncio.gather(*asks)
        statuses = sorted(status for status, _ in answers)
        assert statuses[0] == 200 and statuses[-1] == 503 and set(statuses) == {200, 503}
        assert {answer["error"]["type"] for status, answer in answers if status == 503} == {
            "overloaded_error"
        }
        assert (await run.post("/v1/chat/completions", chat("Now?")))[0] == 200

    served(engine(scheduler=iq.Sarathi(max_seqs=1)), clients, max_waiting=4, speed=20)


def test_faults_happen_on_demand_to_the_same_requests_again():
    async def clients(run: Run) -> None:
        at = f"http://127.0.0.1:{run.server.admin_port}/faults"
        asked = {"refuse": {"share": 0.3, "status": 429}, "cut": {"share": 0.4, "after_tokens": 2}}
        async with run.client.post(at, json=asked) as answer:
            assert (await answer.json())["cut"] == {"share": 0.4, "after_tokens": 2}
        for wrong in ({"cut": {"share": 2}}, {"slow": {"replica": 9, "by_s": 1}}, {"fire": {}}, {"cut": 1}):
            async with run.client.post(at, json=wrong) as answer:
                assert answer.status == 400 and "error" in await answer.json()
        for _ in range(40):
            body = {**chat("Hi", max_tokens=5), "stream": True}
            try:
                async with run.client.post(f"{run.url}/v1/chat/completions", json=body) as answer:
                    happened.append(answer.status)
                    await answer.read()
            except aiohttp.ClientError:
                happened[-1] = 0

    happened: list[int] = []
    served(engine(), clients, seed=3, admin_port=0)
    first, happened = happened, []
    served(engine(), clients, seed=3, admin_port=0)
    assert happened == first
    counts = {status: first.count(status) for status in (0, 200, 429)}
    assert sum(counts.values()) == 40 and all(5 <= count <= 25 for count in counts.values()), counts
    assert not served(engine(), lambda _: asyncio.sleep(0)).server.service.faults.cut_share


def fleet(**fields: Any) -> iq.Cluster:
    made = {"replicas": 3, "router": iq.LeastRequests(), **fields}
    return iq.Cluster(engine(), **made)


TROUBLED = {
    "fixed": lambda: fleet(),
    "caches": lambda: iq.Cluster([engine()] * 3, router=iq.PrefixAffinity()),
    "own failures": lambda: fleet(failures=iq.Failures(at=[(0.2, 1)], mtbf_s=2.0, repair_s=0.3, retries=99)),
    "autoscaler": lambda: fleet(
        autoscaler=iq.Autoscaler(iq.ByQueue(2), min=1, max=4, every_s=0.1, startup_s=0.2)
    ),
}


async def ask_for(run: Run, fault: str, replica: int) -> tuple[int, Any]:
    at = f"http://127.0.0.1:{run.server.admin_port}/faults"
    async with run.client.post(at, json={fault: {"replica": replica}}) as answer:
        return answer.status, await answer.json()


@pytest.mark.parametrize("name", TROUBLED)
def test_replicas_die_drain_and_start_on_demand_and_the_replay_knows_it(name: str, tmp_path: Path):
    async def clients(run: Run) -> None:
        async def long() -> None:
            assert (await run.post("/v1/chat/completions", chat("Hi", max_tokens=1500)))[0] == 200

        async def trouble() -> None:
            asked = [("kill", 0), ("drain", 2), ("start", 0), ("kill", 1), ("start", 2), ("start", 1)]
            for number, (fault, replica) in enumerate(asked):
                while run.server.service.fleet.asked < 4 * (number + 1):
                    await asyncio.sleep(0.001)
                status, faults = await ask_for(run, fault, replica)
                assert status == 200, faults
                assert len(faults["failures"][{"kill": "at"}.get(fault, f"{fault}s")]) > 0

        # Each replica has a request that is long enough to be there when it dies.
        await asyncio.gather(*(long() for _ in range(3)), conversations(run), trouble())

    system = TROUBLED[name]()
    run = served(system, clients, tmp_path, speed=40, admin_port=0)
    assert run.trace is not None
    failures = iq.Failures.from_json(json.loads(run.trace.with_suffix(".failures.json").read_text()))
    replayed = replace(system, failures=failures)
    result = iq.simulate(iq.read_trace(run.trace), replayed, batches=True, timeline_s=1.0)
    live = {column: np.concatenate([part[column] for part in run.rows]) for column in run.rows[0]}
    for column in live.keys() - {"class"}:
        np.testing.assert_array_equal(live[column], result._tables.requests[column], err_msg=column)
    for table in ("batches", "fleet_events", "work"):
        for column, values in run.tables[table].items():
            np.testing.assert_array_equal(values, getattr(result._tables, table)[column], err_msg=column)
    assert live["retries"].sum() > 0 and (live["status"] == 0).all()
    # One that fails of its own may be down already when it is told to drain.
    assert {"died"} | ({"drains"} if name != "own failures" else set()) <= set(result.fleet_events["event"])


def test_a_request_that_is_lost_with_its_replica_is_told_so():
    async def clients(run: Run) -> None:
        asked = run.post("/v1/chat/completions", chat("Hi", max_tokens=2000))
        waits = asyncio.ensure_future(asked)
        while not len(run.server.service.fleet):
            await asyncio.sleep(0.001)
        assert (await ask_for(run, "kill", 0))[0] == 200
        status, answer = await waits
        assert (status, answer["error"]["type"]) == (502, "bad_gateway")
        # Then one that waits until there is a replica.
        waits = asyncio.ensure_future(run.post("/v1/chat/completions", chat("Hi")))
        await asyncio.sleep(0.05)
        assert not waits.done()
        assert (await ask_for(run, "start", 0))[0] == 200
        assert (await waits)[0] == 200
        assert (await ask_for(run, "kill", 9))[0] == 400

    failures = iq.Failures(drains=[(1e6, 0)], retries=0)
    served(fleet(replicas=1, failures=failures), clients, speed=20, admin_port=0)

    async def others(run: Run) -> None:
        status, answer = await ask_for(run, "kill", 0)
        assert status == 400 and "Cluster" in answer["error"]["message"]

    # What a replica that drains would release there could only be told late.
    company = iq.Cluster(engine(scheduler=iq.research.Wait(thresholds=2)), replicas=2)
    for system in (engine(), company):
        served(system, others, admin_port=0)


def test_sigterm_lets_answers_end_and_writes_the_record(tmp_path: Path):
    scenario = tmp_path / "scenario.json"
    iq.Scenario(
        iq.Workload({"arrival_s": [0.0], "prompt_tokens": [1], "output_tokens": [7]}), engine()
    ).write(scenario)
    record = tmp_path / "trace.parquet"
    options = ["--port", "0", "--speed", "2", "--record", str(record), "--output", "workload"]
    command = [sys.executable, "-m", "inferq.cli", "serve", str(scenario), *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "http://" in line)
        port = int(line.split("127.0.0.1:")[1].split("/")[0])
        with socket.create_connection(("127.0.0.1", port)) as client:
            body = json.dumps({**chat("Hi", max_tokens=60, ignore_eos=True), "stream": True}).encode()
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            client.sendall(head.encode() + body)
            got = client.recv(1 << 16)
            while b"content" not in got:
                got += client.recv(1 << 16)
            process.send_signal(signal.SIGTERM)
            while not got.endswith(b"0\r\n\r\n"):
                got += client.recv(1 << 16)
        assert got.count(b'"content":" ') == 60 and b"[DONE]" in got
        said = process.stderr.read()
        assert process.wait() == 0, said
    assert "1 requests; server lateness" in said
    trace = pl.read_parquet(record)
    assert trace.select("prompt_tokens", "output_tokens", "max_output_tokens").rows() == [(9, 60, 60)]


def test_what_cannot_be_served_is_said_before_a_port_is_opened(tmp_path: Path):
    wrong = [
        ({"speed": 0}, "speed"),
        ({"port": 70_000}, "port"),
        ({"output": 7}, "output"),
        ({"output": [0]}, "output.0"),
        ({"characters_per_token": 0}, "characters_per_token"),
        ({"tokenizer": "x", "characters_per_token": 4}, "tokenizer"),
        ({"tokenizer": str(tmp_path)}, "tokenizer"),
        ({"record": "trace.csv"}, "record"),
        ({"model": ""}, "model"),
        ({"max_waiting": 0}, "max_waiting"),
    ]
    for options, named in wrong:
        with pytest.raises(ConfigError, match=named):
            iq.serve(engine(), **options)
    network = iq.Network({"a": engine()}, [iq.Workflow("w", stages={"s": iq.Stage("a", prompt=1, output=1)})])
    with pytest.raises(ConfigError, match="does not support live requests"):
        iq.serve(network, port=0)


@pytest.mark.parametrize("name", ["engine", "vllm", "affinity", "round robin", "disaggregated"])
def test_clients_that_vanish_are_noticed_and_the_replay_knows_it(name: str, tmp_path: Path):
    """Half of the clients hang up, behind some tokens or before the first."""

    async def clients(run: Run) -> None:
        url, fleet = f"{run.url}/v1/chat/completions", run.server.service.fleet

        async def stays(number: int) -> None:
            status, _ = await run.post("/v1/chat/completions", chat(f"{number} {'word ' * number}"))
            assert status == 200

        async def hangs_up(number: int) -> None:
            body = chat(f"{'word ' * number} {number}", max_tokens=2000, stream=number % 3 > 0)
            before = fleet.asked
            async with (
                run.client.post(url, json=body) if body["stream"] else contextlib.nullcontext() as answer
            ):
                for _ in range(number if answer else 0):
                    await answer.content.readline()
                if answer:
                    return
            waits = asyncio.ensure_future(run.client.post(url, json=body))
            while fleet.asked == before:
                await asyncio.sleep(0.001)
            waits.cancel()

        await asyncio.gather(*(one(number) for number in range(15) for one in (stays, hangs_up)))
        await fleet.drained()

    system = SYSTEMS[name]()
    run = served(system, clients, tmp_path, speed=5)
    trace = iq.read_trace(run.trace)
    assert trace.frame["cancel_s"].count() == 15
    result = iq.simulate(trace, system, batches=True, timeline_s=1.0)
    live = {column: np.concatenate([part[column] for part in run.rows]) for column in run.rows[0]}
    for column, values in live.items():
        if column != "class":
            np.testing.assert_array_equal(values, result._tables.requests[column], err_msg=column)
    for column, values in run.tables["batches"].items():
        np.testing.assert_array_equal(values, result._tables.batches[column], err_msg=column)
    abandoned = int((live["status"] == 2).sum())
    assert abandoned == run.server.service.metrics.ended["abort"] == 15
    assert result.requests.filter(status="abandoned")["finish_s"].null_count() == abandoned


def test_the_load_test_of_the_guide_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    root = Path(__file__).parent.parent
    page = (root / "docs" / "guides" / "mock-server.md").read_text(encoding="utf-8")
    code = page.split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(root)
    names: dict[str, Any] = {}
    exec(compile(code, "mock-server.md", "exec"), names)
    names["test_a_burst_of_64_users_meets_the_slo"](tmp_path)


def test_no_client_gets_a_token_before_the_instant_that_the_simulation_says(tmp_path: Path):
    """By the clock of the server, which the client reads where it sends and where it has an event."""
    seen: dict[int, tuple[int, list[int]]] = {}

    async def clients(run: Run) -> None:
        dice, clock = random.Random(4), run.server.service.fleet.clock

        async def one() -> None:
            body = {**chat("word " * dice.randint(1, 60), max_tokens=dice.randint(2, 20)), "stream": True}
            sent, instants = clock.now_ns(), []
            async with run.client.post(f"{run.url}/v1/chat/completions", json=body) as answer:
                async for line in answer.content:
                    if b'"content":" ' in line:
                        instants.append(clock.now_ns())
                        number = json.loads(line.removeprefix(b"data: "))["id"].removeprefix("chatcmpl-")
            seen[int(number)] = (sent, instants)

        users = []
        for _ in range(40):
            users.append(asyncio.ensure_future(one()))
            await asyncio.sleep(dice.expovariate(60))
        await asyncio.gather(*users)

    run = served(SYSTEMS["affinity"](), clients, tmp_path, speed=2)
    trace = iq.read_trace(run.trace)
    said = iq.simulate(trace, SYSTEMS["affinity"]()).requests
    assert len(seen) == said.height == 40
    for row in said.iter_rows(named=True):
        sent, instants = seen[row["id"]]
        assert len(instants) == row["output_tokens"]
        assert sent <= row["arrival_s"] * 1e9
        assert instants[0] >= row["first_token_s"] * 1e9 and instants[-1] >= row["finish_s"] * 1e9


def test_the_commands_of_the_guide_run(tmp_path: Path):
    """Those that serve and those that ask, on ports that are free; the fleet is two of the page's replica."""
    root = Path(__file__).parent.parent
    page = (root / "docs" / "guides" / "mock-server.md").read_text(encoding="utf-8")
    blocks = [block.split("```")[0] for block in page.split("```bash\n")[1:]]
    lines = [shlex.split(line) for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    (serves,) = [line for line in lines if line[:2] == ["inferq", "serve"]]
    asks = [line for line in lines if line[0] == "curl"]
    assert len(asks) == 7
    plan = iq.Scenario.read(root / serves[2])
    assert isinstance(plan.system, iq.Engine)
    scenario = tmp_path / "scenario.json"
    fleet_of_two = iq.Cluster(plan.system, replicas=2, router=iq.LeastRequests())
    iq.Scenario(plan.workload, fleet_of_two).write(scenario)
    options = ["--port", "0", "--admin-port", "0", "--speed", "20"]
    assert serves[3] == options[0]
    command = [sys.executable, "-m", "inferq.cli", "serve", str(scenario), *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        ports = {}
        for line, port in zip(process.stderr, ("8000", "9000"), strict=False):
            ports[port] = line.split("127.0.0.1:")[1].split("/")[0]
            if len(ports) == 2:
                break
        for _, url, *others in asks:
            told = dict(zip(others[::2], others[1::2], strict=True))
            asked = url.split(":")[2].split("/")[0]
            head = dict([told["-H"].split(": ")] if "-H" in told else [])
            request = Request(url.replace(asked, ports[asked]), told["-d"].encode(), head)
            with urlopen(request) as answer:
                assert answer.status == 200 and answer.read()
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
