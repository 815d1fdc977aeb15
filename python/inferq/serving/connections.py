"""Timeouts of idle connections, and one-line logs of malformed requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

IDLE_S = 75.0
"""Seconds after which a connection without a request is closed, as in nginx."""
_SWEEP_S = 5.0

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Connections:
    """The connections of one port, closed when they are idle.

    aiohttp closes idle connections only after their first request.

    Args:
        app: the routes of the port.
        idle_s: seconds after which an idle connection is closed.
    """

    def __init__(self, app: web.Application, idle_s: float) -> None:
        self._idle_s = idle_s
        self._active: set[Any] = set()
        self._idle_since: dict[Any, float] = {}

        @web.middleware
        async def track(request: web.Request, handler: Handler) -> web.StreamResponse:
            connection = request.protocol
            self._active.add(connection)
            self._idle_since.pop(connection, None)
            try:
                return await handler(request)
            finally:
                self._active.discard(connection)

        app.middlewares.insert(0, track)

    async def close_idle(self, runner: web.AppRunner) -> None:
        """Close idle connections, until cancelled."""
        while True:
            await asyncio.sleep(min(_SWEEP_S, self._idle_s / 4))
            now = asyncio.get_running_loop().time()
            connections = () if runner.server is None else runner.server.connections
            idle = [connection for connection in connections if connection not in self._active]
            self._idle_since = {connection: self._idle_since.get(connection, now) for connection in idle}
            for connection, since in self._idle_since.items():
                if now - since >= self._idle_s:
                    connection.force_close()


class OneLineLogger(logging.Logger):
    """A logger that reports the error of a malformed request in one line, without a traceback."""

    def __init__(self, log: Callable[[str], object]) -> None:
        super().__init__("inferq.serving", logging.INFO)
        self.addHandler(_OneLine(log))


class _OneLine(logging.Handler):
    def __init__(self, log: Callable[[str], object]) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            line = f"{line}: {type(error).__name__}: {error}"
        line = " ".join(line.split()).encode("ascii", "backslashreplace").decode()
        self._log("".join(letter if letter.isprintable() else "?" for letter in line)[:300])
