"""Serve: a simulated fleet behind real clients of the OpenAI API."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from inferq.checks import positive, whole
from inferq.description import member
from inferq.errors import ConfigError
from inferq.serving.lengths import Lengths
from inferq.serving.record import Record
from inferq.serving.texts import Characters, Tokenizer
from inferq.systems.pools import pools_of
from inferq.systems.system import SYSTEMS, System
from inferq.workload.distributions import LengthDistribution
from inferq.workload.workload import Workload

if TYPE_CHECKING:
    from inferq.serving.server import Server
    from inferq.serving.service import Settings

CHARACTERS_PER_TOKEN = 4


def serve(
    system: System,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    speed: float = 1,
    seed: int = 0,
    model: str | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    characters_per_token: int | None = None,
    output: LengthDistribution | Workload | Sequence[int] | None = None,
    max_waiting: int | None = None,
    record: str | os.PathLike[str] | None = None,
    admin_port: int | None = None,
) -> None:
    """Answer clients of the OpenAI API as a fleet would, until SIGTERM or Ctrl-C.

    The fleet is simulated in wall time: a request is fed to the run as it comes, and each token of its answer
    is sent when the simulated iteration that brings it is over. So clients meet queues, batches, preemptions
    and prefix hits as `simulate` has them. The words mean nothing. It needs the extra `inferq[serve]`.

    Routes: `/v1/chat/completions`, `/v1/completions`, `/v1/models`, `/health`, `/metrics` (under the names of
    vLLM; in seconds of the simulation) and `/tokenize`. A prompt begins like another one as far as its tokens
    do, block by block; the next turn of a chat goes on from the answer before it. The header `X-Session-ID`,
    or `user`, names a session for a router that asks for it. A request of which prompt and answer are longer
    than `max_model_len` or the KV cache is refused with 400. One whose client goes away leaves.

    Args:
        system: an `Engine`, a `Cluster` or a `Disaggregated`.
        host: the address to listen on: by default only this machine reaches it.
        port: to listen on; 0 takes any that is free.
        speed: seconds of the simulation in a second of the wall. Clients see all times that much shorter.
        seed: of routers, of lengths and of faults.
        model: the name under which it serves; None: that of the engine's model, or `"inferq"`.
        tokenizer: a `tokenizer.json`, or a folder with one, that takes texts apart (the extra
            `inferq[tokenizers]`). The words of answers are then a token each.
        characters_per_token: counts tokens of texts instead; None: 4, where there is no tokenizer.
        output: how long answers are, where clients do not ask for all that they allow (`ignore_eos`): a
            distribution, a workload whose lengths are taken row by row, or a list of lengths. None: as many
            tokens as a client allows, or 128.
        max_waiting: requests that may wait in all queues; one more is refused with 503. None: any number.
        record: a Parquet file, written at the end, of the requests as they came. `simulate` of it, on the
            same system and with the same seed, is the run that was served, in each instant and batch.
        admin_port: on which faults are asked for, on the loopback address alone; None: on none. `POST
            /faults` takes `{"cut": {"share": 0.1, "after_tokens": 5}}`: so many connections break behind so
            many tokens; `{"refuse": {"share": 0.1, "status": 429}}`; `{"slow": {"replica": 0, "by_s": 0.1}}`:
            its tokens come so much later, in seconds of the simulation; `{"kill": {"replica": 0}}`, or
            `"drain"`, or `"start"`: what `Failures` says, now, of a replica of a `Cluster`. `GET /faults`
            shows them.

    Raises:
        ConfigError: an option outside its range, or a system whose requests wait for one another.
        SimulationError: a policy broke a rule, or the clock overflowed.
        OSError: the port cannot be opened, or the record not written.
    """
    member("system", system, SYSTEMS)
    try:
        from inferq.serving.service import Settings
    except ImportError:
        raise _no_extra() from None
    if tokenizer is not None and characters_per_token is not None:
        raise ConfigError("tokenizer, characters_per_token: give one of the two")
    if model is not None and (not isinstance(model, str) or not model):
        raise ConfigError("model", f"must be a name, is {model!r}")
    seed = whole("seed", seed, 0, 2**64 - 1)
    ratio = CHARACTERS_PER_TOKEN if characters_per_token is None else characters_per_token
    engine = pools_of(system)[0].engines[0]
    settings = Settings(
        model=model or _name(engine.on_card.get("model")),
        texts=Characters(ratio) if tokenizer is None else Tokenizer(tokenizer),
        lengths=Lengths(output, seed),
        seed=seed,
        speed=positive("speed", speed),
        max_waiting=None if max_waiting is None else whole("max_waiting", max_waiting, 1, 2**31 - 1),
        record=None if record is None else Record(record, engine.kv.block),
    )
    run(system, settings, host, port, admin_port, lambda line: print(line, file=sys.stderr, flush=True))


def run(
    system: System,
    settings: Settings,
    host: str,
    port: int,
    admin_port: int | None,
    said: Callable[[str], object],
) -> None:
    """Serve until a signal, and say how it went."""
    from inferq.serving.server import Server, serving

    whole("port", port, 0, 2**16 - 1)
    if admin_port is not None:
        whole("admin_port", admin_port, 0, 2**16 - 1)

    def began(server: Server) -> None:
        where = f"[{host}]" if ":" in host else host
        said(f"{settings.model} is served at http://{where}:{server.port}/v1, speed {settings.speed:g}")
        if server.admin_port is not None:
            said(f"faults are asked for at http://127.0.0.1:{server.admin_port}/faults")

    async def main() -> None:
        server = Server(system, settings, host, port, admin_port)
        try:
            # A garbage collection of all that was loaded at the start takes milliseconds.
            gc.freeze()
            await serving(server, said, began)
        finally:
            gc.unfreeze()
            if hasattr(server, "service"):
                fleet = server.service.fleet
                said(f"{fleet.asked} requests; the server was late by {fleet.lateness}")

    asyncio.run(main())


def _name(model: object) -> str:
    """What a model is called that an engine was made of."""
    if isinstance(model, str):
        return model
    if isinstance(model, Path):
        return model.parent.name or model.stem
    return "inferq"


def _no_extra() -> ConfigError:
    return ConfigError("serve", "needs aiohttp: pip install 'inferq[serve]'")
