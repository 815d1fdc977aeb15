"""The server: ports, signals and log lines."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Any

from aiohttp import web

from inferq.serving.connections import IDLE_S, Connections, OneLineLogger
from inferq.serving.routes import administration, application
from inferq.serving.service import Service, Settings
from inferq.systems.system import System

LOOPBACK = "127.0.0.1"


class Server:
    """A service on its ports, inside a running event loop.

    Args:
        system: the simulated system.
        settings: settings of the service.
        host: address for clients.
        port: port for clients; 0 selects a free port.
        admin_port: port for fault injection, on the loopback address. None: no such port.
        log: receives a line for each malformed request.
        idle_s: seconds after which an idle connection is closed.
    """

    def __init__(
        self,
        system: System,
        settings: Settings,
        host: str,
        port: int,
        admin_port: int | None = None,
        *,
        log: Callable[[str], object] = print,
        idle_s: float = IDLE_S,
    ) -> None:
        self._system, self._settings = system, settings
        self._log, self._idle_s = log, idle_s
        self._at = (host, port)
        self._admin_at = None if admin_port is None else (LOOPBACK, admin_port)
        self._runners: list[web.AppRunner] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.stopping = asyncio.Event()
        self.service: Service

    async def start(self) -> None:
        """Open the ports."""
        takes_commands = self._admin_at is not None
        self.service = Service(self._system, self._settings, self._on_error, takes_commands=takes_commands)
        self.port = await self._open(application(self.service), *self._at)
        self.admin_port: int | None = None
        if self._admin_at is not None:
            self.admin_port = await self._open(administration(self.service), *self._admin_at)
        self._tasks.append(asyncio.create_task(self.service.write_record()))

    async def _open(self, app: web.Application, host: str, port: int) -> int:
        connections = Connections(app, self._idle_s)
        runner = web.AppRunner(
            app,
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=self._idle_s,
            logger=OneLineLogger(self._log),
        )
        await runner.setup()
        self._runners.append(runner)
        self._tasks.append(asyncio.create_task(connections.close_idle(runner)))
        await web.TCPSite(runner, host, port, reuse_address=True, backlog=4096).start()
        return int(runner.addresses[0][1])

    def _on_error(self, error: Exception) -> None:
        self.stopping.set()

    async def stop(self, *, drain: bool = True) -> dict[str, Any] | None:
        """Refuse new requests, finish current ones, close the ports and end the run; return its tables."""
        self.service.is_draining = True
        if drain:
            await self.service.fleet.drained()
        for runner in self._runners:
            await runner.cleanup()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        return self.service.close()


async def serving(
    server: Server, log: Callable[[str], object], started: Callable[[Server], object] | None = None
) -> None:
    """Serve until a signal: the first one finishes current answers, a second one aborts them.

    Args:
        server: the server.
        log: receives log lines.
        started: called when the ports are open.
    """
    await server.start()
    signals = 0
    now = asyncio.Event()

    def on_signal() -> None:
        nonlocal signals
        signals += 1
        server.stopping.set()
        if signals > 1:
            now.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    try:
        if started is not None:
            started(server)
        await server.stopping.wait()
        left = len(server.service.fleet)
        if left:
            log(f"draining: {left} answers in progress; a second signal aborts them")
        server.service.is_draining = True
        waits = [asyncio.ensure_future(server.service.fleet.drained()), asyncio.ensure_future(now.wait())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        await server.stop(drain=False)
    if server.service.fleet.error is not None:
        raise server.service.fleet.error
