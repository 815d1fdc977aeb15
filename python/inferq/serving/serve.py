"""`serve`: an OpenAI-compatible server in front of a simulated fleet."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
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
    """Serve the OpenAI API from a simulated fleet, until SIGTERM or Ctrl-C.

    The fleet is simulated in wall time: a request joins the run on arrival, and each token is sent when its
    simulated iteration ends. Clients therefore see the queues, batches, preemptions and prefix-cache hits of
    `simulate`. The words have no meaning. Requires the extra `inferq[serve]`.

    Routes: `/v1/chat/completions`, `/v1/completions`, `/v1/models`, `/health`, `/metrics` (vLLM's names,
    simulated seconds) and `/tokenize`. Prompts share prefixes block by block; the next turn of a chat
    continues the previous answer. The header `X-Session-ID`, or the field `user`, sets the session for
    session routers. A request whose prompt and answer exceed `max_model_len` or the KV cache is refused with
    400. The request of a disconnected client is cancelled.

    Args:
        system: an `Engine`, a `Cluster` or a `Disaggregated`.
        host: address to listen on. The default is reachable from this machine only.
        port: port to listen on; 0 selects a free port.
        speed: simulated seconds per second of wall time; clients see all times divided by it.
        seed: seed of routers, lengths and faults.
        model: served model name. Default: the name of the engine's model, or `"inferq"`.
        tokenizer: a `tokenizer.json`, or a directory with one (requires the extra `inferq[tokenizers]`). Each
            word
            of an answer is then one token.
        characters_per_token: characters per token if there is no tokenizer. Default: 4.
        output: lengths of answers, unless the client sets `ignore_eos`: a distribution, a workload whose
            lengths
            are used row by row, or a list. Default: the client's `max_tokens`, or 128.
        max_waiting: upper limit of waiting requests over all queues; further requests are refused with 503.
            Default: no limit.
        record: Parquet file for the received requests. `simulate` on it, with the same system and seed,
            repeats the served run exactly. Requests are on disk within about a second and are merged into
            the file at the end. If the server is killed, the next start with the same file merges them.
        admin_port: port for fault injection, on the loopback address. Default: none. `POST /faults` accepts
            `{"cut": {"share": 0.1, "after_tokens": 5}}` (share of connections that are cut),
            `{"refuse": {"share": 0.1, "status": 429}}`, `{"slow": {"replica": 0, "by_s": 0.1}}` (delay of its
            tokens, in simulated seconds), and `{"kill": {"replica": 0}}`, `"drain"` or `"start"` for a
            replica of a `Cluster`, as in `Failures`. `GET /faults` returns the active faults.

    Raises:
        ConfigError: an option is out of range, or the system is a `Network` or under `GateAndRoute`.
        SimulationError: a policy broke a rule, or the clock overflowed.
        OSError: the port cannot be opened, or the record cannot be written.
    """
    check_extras(tokenizer=tokenizer is not None)
    from inferq.serving.service import Settings

    member("system", system, SYSTEMS)
    if tokenizer is not None and characters_per_token is not None:
        raise ConfigError("tokenizer and characters_per_token are mutually exclusive")
    if model is not None and (not isinstance(model, str) or not model):
        raise ConfigError("model", f"must be a non-empty string, got {model!r}")
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
        record=None if record is None else Record(record, engine.kv.block, _log),
    )
    try:
        run(system, settings, host, port, admin_port, _log)
    finally:
        if settings.record is not None:
            settings.record.release()


def run(
    system: System,
    settings: Settings,
    host: str,
    port: int,
    admin_port: int | None,
    log: Callable[[str], object],
) -> None:
    """Serve until a signal, and log a summary."""
    from inferq.serving.server import Server, serving

    whole("port", port, 0, 2**16 - 1)
    if admin_port is not None:
        whole("admin_port", admin_port, 0, 2**16 - 1)

    def started(server: Server) -> None:
        where = f"[{host}]" if ":" in host else host
        log(f"serving {settings.model} at http://{where}:{server.port}/v1, speed {settings.speed:g}")
        if server.admin_port is not None:
            log(f"fault injection at http://127.0.0.1:{server.admin_port}/faults")

    async def main() -> None:
        server = Server(system, settings, host, port, admin_port, log=log)
        try:
            # Without freezing, a garbage collection scans all loaded modules, which takes milliseconds.
            gc.freeze()
            await serving(server, log, started)
        finally:
            gc.unfreeze()
            if hasattr(server, "service"):
                fleet = server.service.fleet
                log(f"{fleet.asked} requests; server lateness: {fleet.lateness}")

    asyncio.run(main())


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _name(model: object) -> str:
    """The name of an engine's model."""
    if isinstance(model, str):
        return model
    if isinstance(model, Path):
        return model.parent.name or model.stem
    return "inferq"


def check_extras(*, tokenizer: bool) -> None:
    """Raise `ConfigError` if an optional library is missing.

    Args:
        tokenizer: whether a tokenizer file is read.
    """
    libraries = [("aiohttp", "serve"), *([("tokenizers", "tokenizers")] if tokenizer else [])]
    for library, extra in libraries:
        try:
            import_module(library)
        except ImportError:
            raise ConfigError(
                extra, f"requires the library {library}: pip install 'inferq[{extra}]'"
            ) from None
