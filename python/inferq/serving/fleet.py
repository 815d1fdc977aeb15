"""The core in wall time: requests are fed as they come, and each token is handed on at its instant."""

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
"""The event loop sleeps whole milliseconds, rounded up: it wakes by so much too late."""
_SHORT_S = 0.004
"""Of a sleep that is not longer, the end is not waited for awake, lest the server does nothing else."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What a client asks of the fleet: one answer."""

    prompt: Prompt
    output_tokens: int
    """That it will get."""
    most_tokens: int
    """That it allows."""
    session: str | None = None
    priority: int = 0
    salt: bytes = b""
    """Keeps apart prompts that must not be shared."""


class Listener(Protocol):
    """The client, which hears of the answer."""

    def token(self, at_s: float) -> None:
        """The next token is there, since an instant of the simulation."""
        ...

    def end(self, status: str) -> None:
        """Nothing more comes: as `status` of `Result.requests` has it, or `"failed"` where the run broke."""
        ...


class Clock:
    """Instants of the simulation for instants of the wall.

    Args:
        speed: seconds of the simulation in a second of the wall.
    """

    def __init__(self, speed: float) -> None:
        self._speed, self._began = speed, time.monotonic_ns()

    def now_ns(self) -> int:
        """The instant of the simulation that it is now."""
        return int((time.monotonic_ns() - self._began) * self._speed)

    def wall_s(self, span_ns: int) -> float:
        """Seconds of the wall that a span of the simulation takes."""
        return span_ns / self._speed / NANOSECONDS


class Fleet:
    """A system that serves in wall time, inside a running event loop.

    Args:
        system: what serves.
        speed: seconds of the simulation in a second of the wall.
        broke: called where the run cannot go on, with what was raised.
        heard: gets the arrival, the ask and the id of each request.
        taken_back: gets the id of each whose client went away before its answer was over, and how many
            nanoseconds after its arrival that was.
        takes_commands: whether replicas may be told to die, to drain and to start.
        options: of `Live`.
    """

    def __init__(
        self,
        system: System,
        *,
        speed: float,
        broke: Callable[[Exception], object],
        heard: Callable[[int, Ask, int], object] = lambda *_: None,
        taken_back: Callable[[int, int], object] = lambda *_: None,
        takes_commands: bool = False,
        **options: Any,
    ) -> None:
        self._system = system
        self._takes_commands = takes_commands and _may_come_and_go(system)
        self.live = Live(system, sessions=True, takes_commands=self._takes_commands, **options)
        self.told: dict[str, list[tuple[float, int]]] = {what: [] for what in COMMANDS}
        self.lateness = Lateness()
        self.broken: Exception | None = None
        self._broke, self._heard, self._taken_back = broke, heard, taken_back
        self._api_s = list(chain.from_iterable(_api_s(pool) for pool in self.live.pools))
        self._listeners: dict[int, Listener] = {}
        self._arrived_ns: dict[int, int] = {}
        self._sessions: dict[str, int] = {}
        self.slow_s: dict[int, float] = {}
        self._on_their_way: list[tuple[float, int, Tokens]] = []
        self._sent = 0
        self.asked = 0
        self._last_ns = 0
        self._coming = 0
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.Handle | None = None
        self._wake_ns = 0
        self._empty = asyncio.Event()
        self._empty.set()
        self.clock = Clock(speed)

    def __len__(self) -> int:
        """Requests whose answers are not over; `asked` are all of them."""
        return len(self._listeners)

    @property
    def now_s(self) -> float:
        """The instant at which the last request arrived, or up to which the run went since."""
        return self._last_ns / NANOSECONDS

    def waiting(self) -> int:
        """Requests in the queues of all replicas, and those that come at this instant."""
        return sum(replica[0] for replica in self.live.replicas()) + self._coming

    def ask(self, ask: Ask, listener: Listener, came_ns: int) -> int:
        """A request arrives, which came at an instant that is not long ago. Returns its id."""
        self._last_ns = at_ns = max(came_ns, self._last_ns)
        request = self.live.arrive(
            at_ns,
            len(ask.prompt.ids),
            ask.output_tokens,
            max_output_tokens=ask.most_tokens,
            session=None if ask.session is None else self._session(ask.session),
            priority=ask.priority,
            chain=ask.prompt.chain,
        )
        self._listeners[request] = listener
        self._arrived_ns[request] = at_ns
        self._empty.clear()
        self._coming += 1
        self.asked += 1
        self._heard(at_ns, ask, request)
        self._sleep()
        return request

    def take_back(self, request: int) -> None:
        """The client has gone: its request leaves, unless the answer is over."""
        if request not in self._listeners or self.broken is not None:
            return
        self._last_ns = at_ns = max(self.clock.now_ns(), self._last_ns)
        if self.live.cancel(request, at_ns):
            self._taken_back(request, at_ns - self._arrived_ns[request])
        self._end(request, "abandoned")
        self._sleep()

    def tell(self, what: str, replica: int) -> None:
        """A replica is told to `"die"`, to `"drain"` or to `"start"` now.

        Raises:
            ConfigError: replicas that stay.
        """
        if not self._takes_commands:
            what = (
                "those of a Cluster come and go, where all have one max_model_len and one first_token "
                "and none waits for company as Wait and NestedWait do"
            )
            raise ConfigError("replica", f"{replica} stays: only {what}")
        self._last_ns = at_ns = max(self.clock.now_ns(), self._last_ns)
        self.told[what].append((self.live.command(replica, what, at_ns), replica))
        self._sleep()

    @property
    def failures(self) -> Failures | None:
        """Those of the system, and what its replicas were told beside; None where they were told nothing."""
        if not any(self.told.values()):
            return None
        known = self._system.failures if isinstance(self._system, Cluster) else None
        all_ = {} if known is None else known.to_json()
        for what, pairs in self.told.items():
            all_[COMMANDS[what]] = [*all_.get(COMMANDS[what], ()), *pairs]
        return Failures.from_json(all_)

    async def drained(self) -> None:
        """Return when the answer of each request is over."""
        await self._empty.wait()

    def close(self) -> dict[str, Any]:
        """End the run. Returns its tables beside those of its requests."""
        if self._timer is not None:
            self._timer.cancel()
        return self.live.finish()[1]

    def _session(self, name: str) -> int:
        return self._sessions.setdefault(name, len(self._sessions))

    def _sleep(self) -> None:
        """Until something happens next."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        next_ns = self.live.next_ns()
        if self._on_their_way:
            due_ns = int(self._on_their_way[0][0] * NANOSECONDS) + 1
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
            self._go_on()
        except Exception as error:  # of a policy of the user's too
            self.broken = error
            listeners, self._listeners = self._listeners, {}
            for listener in listeners.values():
                listener.end("failed")
            self._empty.set()
            self._broke(error)
            return
        self._sleep()

    def _go_on(self) -> None:
        """Let happen what has by now, and hand on what is due."""
        self._last_ns = now_ns = max(self.clock.now_ns(), self._last_ns)
        news = self.live.advance(now_ns)
        self._coming = 0
        for tokens in news.tokens:
            self._sent += 1
            at_client = tokens.at_s + self._api_s[tokens.replica] + self.slow_s.get(tokens.replica, 0.0)
            heapq.heappush(self._on_their_way, (at_client, self._sent, tokens))
        now_s = now_ns / NANOSECONDS
        while self._on_their_way and self._on_their_way[0][0] <= now_s:
            at_s, _, tokens = heapq.heappop(self._on_their_way)
            self.lateness.note(self.clock.wall_s(now_ns - int(at_s * NANOSECONDS)))
            self._hand_on(at_s, tokens)
        for request, status in news.left:
            self._end(request, status)

    def _hand_on(self, at_s: float, tokens: Tokens) -> None:
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


def _may_come_and_go(system: System) -> bool:
    """Whether another replica can go on with a request whose own is gone, and tell its tokens in time."""
    if not isinstance(system, Cluster) or full_batch_policy(system):
        return False
    (pool,) = pools_of(system)
    return len({(engine.max_model_len, engine.first_token) for engine in pool.engines}) == 1


def _api_s(pool: Any) -> Sequence[float]:
    """From each replica of a pool to the client."""
    parts = zip(pool.engines, pool.counts, strict=True)
    return list(chain.from_iterable(repeat(engine.api_s, count) for engine, count in parts))
