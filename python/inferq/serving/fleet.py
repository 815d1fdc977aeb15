"""The simulation in wall time: requests are added on arrival, tokens are delivered at their time."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any, Protocol

from inferq.errors import ConfigError
from inferq.serving.lateness import Lateness
from inferq.serving.prompts import Prompt
from inferq.simulation.live import NANOSECONDS, Live, Tokens, full_batch_policy
from inferq.systems.cluster import Cluster
from inferq.systems.failures import COMMANDS, Failures
from inferq.systems.pools import pools_of
from inferq.systems.system import System

_POLL_S = 0.001
"""Resolution of the event loop's timers, which round up to whole milliseconds."""
_SHORT_S = 0.004
"""Sleeps up to this length are not finished by polling, which would block the server."""


@dataclass(frozen=True, slots=True)
class FleetRequest:
    """A request to the fleet for one answer."""

    prompt: Prompt
    output_tokens: int
    """Length of the answer."""
    max_tokens: int
    """Output limit of the client."""
    session: str | None = None
    priority: int = 0


class Listener(Protocol):
    """The receiver of an answer."""

    def token(self, at_s: float) -> None:
        """Receive the next token, with its simulated time."""
        ...

    def end(self, status: str) -> None:
        """Receive the end: a `status` of `Result.requests`, or `"failed"` after an error of the run."""
        ...


class Clock:
    """Simulated time as a function of wall time.

    Args:
        speed: simulated seconds per second of wall time.
    """

    def __init__(self, speed: float) -> None:
        self._speed, self._start_ns = speed, time.monotonic_ns()

    def now_ns(self) -> int:
        """The current simulated time."""
        return int((time.monotonic_ns() - self._start_ns) * self._speed)

    def wall_s(self, span_ns: int) -> float:
        """The wall time of a simulated span, in seconds."""
        return span_ns / self._speed / NANOSECONDS


class Fleet:
    """A simulated system that serves in wall time, inside a running event loop.

    Args:
        system: the system.
        speed: simulated seconds per second of wall time.
        on_error: called with the exception if the run stops with an error.
        on_arrival: receives arrival, request and id of each request.
        on_cancel: receives the id of each request whose client disconnected early, and the nanoseconds since
            its
            arrival.
        takes_commands: whether replicas accept commands to fail, drain and start.
        options: options of `Live`.
    """

    def __init__(
        self,
        system: System,
        *,
        speed: float,
        on_error: Callable[[Exception], object],
        on_arrival: Callable[[int, FleetRequest, int], object] = lambda *_: None,
        on_cancel: Callable[[int, int], object] = lambda *_: None,
        takes_commands: bool = False,
        **options: Any,
    ) -> None:
        self._system = system
        self._takes_commands = takes_commands and _supports_commands(system)
        self.live = Live(system, sessions=True, takes_commands=self._takes_commands, **options)
        self.commands: dict[str, list[tuple[float, int]]] = {command: [] for command in COMMANDS}
        self.lateness = Lateness()
        self.error: Exception | None = None
        self._on_error, self._on_arrival, self._on_cancel = on_error, on_arrival, on_cancel
        self._api_s = list(chain.from_iterable(_api_s(pool) for pool in self.live.pools))
        self._listeners: dict[int, Listener] = {}
        self._arrived_ns: dict[int, int] = {}
        self._sessions: dict[str, int] = {}
        self.slow_s: dict[int, float] = {}
        self._in_transit: list[tuple[float, int, Tokens]] = []
        self._sent = 0
        self.asked = 0
        self._last_ns = 0
        self._arriving = 0
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.Handle | None = None
        self._wake_ns = 0
        self._empty = asyncio.Event()
        self._empty.set()
        self.clock = Clock(speed)

    def __len__(self) -> int:
        """Number of unfinished requests; `asked` counts all requests."""
        return len(self._listeners)

    @property
    def now_s(self) -> float:
        """The current time of the run, in simulated seconds."""
        return self._last_ns / NANOSECONDS

    def waiting(self) -> int:
        """Requests in the queues of all replicas, including arrivals at this instant."""
        return sum(replica[0] for replica in self.live.replicas()) + self._arriving

    def send(self, sent: FleetRequest, listener: Listener, received_ns: int) -> int:
        """Add a request that was received at `received_ns`; return its id."""
        self._last_ns = at_ns = max(received_ns, self._last_ns)
        request = self.live.arrive(
            at_ns,
            len(sent.prompt.ids),
            sent.output_tokens,
            max_output_tokens=sent.max_tokens,
            session=None if sent.session is None else self._session(sent.session),
            priority=sent.priority,
            chain=sent.prompt.chain,
        )
        self._listeners[request] = listener
        self._arrived_ns[request] = at_ns
        self._empty.clear()
        self._arriving += 1
        self.asked += 1
        self._on_arrival(at_ns, sent, request)
        self._sleep()
        return request

    def cancel(self, request: int) -> None:
        """Cancel the request of a disconnected client, unless it has finished."""
        if request not in self._listeners or self.error is not None:
            return
        self._last_ns = at_ns = max(self.clock.now_ns(), self._last_ns)
        if self.live.cancel(request, at_ns):
            self._on_cancel(request, at_ns - self._arrived_ns[request])
        self._end(request, "abandoned")
        self._sleep()

    def command(self, action: str, replica: int) -> None:
        """Make a replica `"die"`, `"drain"` or `"start"` now.

        Raises:
            ConfigError: the replicas of this system accept no commands.
        """
        if not self._takes_commands:
            raise ConfigError(
                "replica",
                f"{replica} accepts no commands: they require a Cluster whose engines share "
                "max_model_len and first_token and whose scheduler is not Wait or NestedWait",
            )
        self._last_ns = at_ns = max(self.clock.now_ns(), self._last_ns)
        self.commands[action].append((self.live.command(replica, action, at_ns), replica))
        self._sleep()

    @property
    def failures(self) -> Failures | None:
        """The failures of the system including commands so far; None if there were no commands."""
        if not any(self.commands.values()):
            return None
        known = self._system.failures if isinstance(self._system, Cluster) else None
        failures = {} if known is None else known.to_json()
        for action, pairs in self.commands.items():
            failures[COMMANDS[action]] = [*failures.get(COMMANDS[action], ()), *pairs]
        return Failures.from_json(failures)

    async def drained(self) -> None:
        """Wait until every request has ended."""
        await self._empty.wait()

    def close(self) -> dict[str, Any]:
        """End the run and return its tables, without the requests."""
        if self._timer is not None:
            self._timer.cancel()
        return self.live.finish()[1]

    def _session(self, name: str) -> int:
        return self._sessions.setdefault(name, len(self._sessions))

    def _sleep(self) -> None:
        """Sleep until the next event."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        next_ns = self.live.next_ns()
        if self._in_transit:
            due_ns = int(self._in_transit[0][0] * NANOSECONDS) + 1
            next_ns = due_ns if next_ns is None else min(next_ns, due_ns)
        if next_ns is not None:
            delay_s = max(0.0, self.clock.wall_s(next_ns - self.clock.now_ns()))
            is_long = delay_s > _SHORT_S
            self._wake_ns = next_ns if is_long else 0
            self._timer = self._loop.call_later(delay_s - _POLL_S if is_long else delay_s, self._wake)

    def _wake(self) -> None:
        if self.clock.now_ns() < self._wake_ns:
            self._timer = self._loop.call_soon(self._wake)
            return
        self._timer = None
        try:
            self._advance()
        except Exception as error:  # also of a user-defined policy
            self.error = error
            listeners, self._listeners = self._listeners, {}
            for listener in listeners.values():
                listener.end("failed")
            self._empty.set()
            self._on_error(error)
            return
        self._sleep()

    def _advance(self) -> None:
        """Run up to now and deliver the tokens that are due."""
        self._last_ns = now_ns = max(self.clock.now_ns(), self._last_ns)
        events = self.live.advance(now_ns)
        self._arriving = 0
        for tokens in events.tokens:
            self._sent += 1
            at_client = tokens.at_s + self._api_s[tokens.replica] + self.slow_s.get(tokens.replica, 0.0)
            heapq.heappush(self._in_transit, (at_client, self._sent, tokens))
        now_s = now_ns / NANOSECONDS
        while self._in_transit and self._in_transit[0][0] <= now_s:
            at_s, _, tokens = heapq.heappop(self._in_transit)
            self.lateness.note(self.clock.wall_s(now_ns - int(at_s * NANOSECONDS)))
            self._deliver(at_s, tokens)
        for request, status in events.left:
            self._end(request, status)

    def _deliver(self, at_s: float, tokens: Tokens) -> None:
        listeners = self._listeners
        for request in tokens.requests:
            listener = listeners.get(request)
            if listener is not None:
                listener.token(at_s)
        for request in tokens.finished:
            self._end(request, "finished")

    def _end(self, request: int, status: str) -> None:
        listener = self._listeners.pop(request, None)
        if listener is not None:
            del self._arrived_ns[request]
            listener.end(status)
            if not self._listeners:
                self._empty.set()


def _supports_commands(system: System) -> bool:
    """Whether another replica can take over a request and report its tokens in time."""
    if not isinstance(system, Cluster) or full_batch_policy(system):
        return False
    (pool,) = pools_of(system)
    return len({(engine.max_model_len, engine.first_token) for engine in pool.engines}) == 1


def _api_s(pool: Any) -> Sequence[float]:
    """API overhead of each replica of a pool, in seconds."""
    parts = zip(pool.engines, pool.counts, strict=True)
    return list(chain.from_iterable(repeat(engine.api_s, count) for engine, count in parts))
