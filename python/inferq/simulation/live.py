"""Live runs: requests are added and tokens are reported while the run advances."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from inferq import _core
from inferq._lazy import NDArray, np, pl
from inferq.errors import ConfigError
from inferq.results.tables import STATUSES, Columns, RequestColumns
from inferq.simulation.core_input import ONE_CLASS, CoreInput
from inferq.simulation.simulate import core_options
from inferq.systems.cluster import Cluster
from inferq.systems.engine import Engine
from inferq.systems.gate_and_route import GateAndRoute
from inferq.systems.network import Network
from inferq.systems.pools import Pool, keys
from inferq.systems.system import System
from inferq.workload.prefixes import OWN

NANOSECONDS = 1_000_000_000
"""Nanoseconds per second; arrivals are whole nanoseconds."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens that one iteration emitted."""

    at_s: float
    """End of the iteration."""
    replica: int
    requests: list[int]
    """Requests that received a token."""
    finished: list[int]
    """The requests among them that finished."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Events of a run since the previous call."""

    tokens: list[Tokens]
    """In order of time."""
    left: list[tuple[int, str]]
    """Requests that left unfinished, with their status: `"rejected"`, `"abandoned"` or `"lost"`."""


@dataclass(frozen=True, slots=True)
class Chain:
    """The prefix of a prompt in the core's format: numbers of contents, and the tokens of each."""

    contents: array[int] = field(default_factory=lambda: array("Q"))
    tokens: array[int] = field(default_factory=lambda: array("I"))

    @classmethod
    def of(cls, contents: Iterable[int], tokens: Iterable[int]) -> Chain:
        """Store contents in eight bytes and tokens in four, since servers keep many chains."""
        return cls(array("Q", contents), array("I", tokens))

    def after(self, request: int, context_tokens: int) -> Chain:
        """The chain of a prompt that continues a request with this chain, including its output."""
        own = context_tokens - sum(self.tokens)
        return Chain.of((*self.contents, OWN | request), (*self.tokens, own)) if own > 0 else self


class Live:
    """A run that receives requests while it advances, with the same loop and results as `simulate`.

    Events before an instant are final once no request can arrive before it. `advance` runs up to an instant
    and reports every token before it. Requests are added in order of arrival, none before that instant.
    `simulate` on the same rows gives the same results, bit for bit.

    Args:
        system: an `Engine`, a `Cluster` or a `Disaggregated`.
        sessions: whether requests have sessions.
        takes_commands: whether replicas accept commands to fail, drain and start. It requires a `Cluster`
            whose
            engines share `max_model_len` and `first_token` and have no policy that waits for full batches.
        take: receives the columns of `Result.requests` for requests that left, in order of id.
        options: options of `simulate`: `seed`, `timeline_s`, `iterations`, `batches`.

    Raises:
        ConfigError: the system is a `Network` or under `GateAndRoute`, or an option is invalid.
    """

    def __init__(
        self,
        system: System,
        *,
        sessions: bool = False,
        takes_commands: bool = False,
        take: Callable[[Columns], object] = lambda _: None,
        **options: Any,
    ) -> None:
        if isinstance(system, (Network, GateAndRoute)):
            raise ConfigError(system.name_of_kind, "does not support live requests")
        if isinstance(system, Cluster) and not (
            system.autoscaler is None and system.failures is None and not takes_commands
        ):
            _check_full_batches(system)
        core_input = CoreInput(system, ["session_id"] if sessions else [], takes_commands=takes_commands)
        self.pools: Sequence[Pool] = core_input.pools
        self._has_keys = keys(self.pools, pl.DataFrame(), None) is not None
        self.knows_prefixes = core_input.knows_prefixes
        assert np.__version__  # load numpy now, so that no request waits for it
        self._run = _core.Live(
            core_input.scenario(core_options(**options)),
            [ONE_CLASS],
            core_input.user_defined(),
            lambda rows: take(RequestColumns(rows)),
        )

    def __len__(self) -> int:
        """Number of requests so far."""
        return len(self._run)

    def arrive(
        self,
        at_ns: int,
        prompt_tokens: int,
        output_tokens: int,
        *,
        max_output_tokens: int | None = None,
        session: int | None = None,
        priority: int | None = None,
        chain: Chain | None = None,
    ) -> int:
        """Add a request.

        Args:
            at_ns: arrival, in nanoseconds.
            prompt_tokens: length of the prompt.
            output_tokens: length of the output.
            max_output_tokens: output limit of the client.
            session: number of the session.
            priority: lower values are served first.
            chain: prefix of the prompt.

        Returns:
            The id of the request, which would be its row in a workload.

        Raises:
            TraceError: a number is out of range, or the arrival is in the past.
        """
        rows: dict[str, NDArray[Any]] = {
            "arrival_s": np.array([at_ns / NANOSECONDS]),
            "prompt_tokens": np.array([prompt_tokens], dtype=np.int32),
            "output_tokens": np.array([output_tokens], dtype=np.int32),
            "max_output_tokens": np.array([max_output_tokens or 0], dtype=np.int32),
            "priority": np.array([priority or 0], dtype=np.int64),
            "session": np.array([2**32 - 1 if session is None else session], dtype=np.uint32),
        }
        if self.knows_prefixes:
            chain = chain or Chain()
            rows["content_start"] = np.array([0, len(chain.contents)], dtype=np.uint64)
            rows["content_id"] = np.array(chain.contents, dtype=np.uint64)
            rows["content_tokens"] = np.array(chain.tokens, dtype=np.uint32)
        if self._has_keys:
            known = {name: rows[name] for name in ("arrival_s", "prompt_tokens", "output_tokens", "priority")}
            queue_key = keys(self.pools, pl.DataFrame(known), None, len(self))
            assert queue_key is not None
            rows["queue_key"] = queue_key
        return self._run.arrive(rows)

    def cancel(self, request: int, at_ns: int) -> bool:
        """Cancel a request at a future instant.

        A waiting request leaves at once, an admitted one with its next token; its status is `abandoned`.

        Returns:
            Whether the request was still in the system; if so, `cancel_s` in the workload is that instant,
            counted from the arrival.
        """
        return self._run.cancel(request, at_ns)

    def command(self, replica: int, action: str, at_ns: int) -> float:
        """Make a replica `"die"`, `"drain"` or `"start"` at a future instant.

        Returns:
            The instant in seconds, as in the `Failures` of a simulated cluster.

        Raises:
            ConfigError: replicas of this run accept no commands, or the same command is already scheduled.
        """
        # A float may be below the nanosecond that it represents; the next float is not.
        at_s = math.nextafter(at_ns / NANOSECONDS, math.inf)
        self._run.schedule_change(replica, at_s, action)
        return at_s

    def advance(self, until_ns: int) -> Progress:
        """Run up to an instant and return the events before it.

        Raises:
            SimulationError: the clock overflowed, or a policy broke a rule; the run has ended.
        """
        return _progress(self._run.advance(until_ns))

    def next_ns(self) -> int | None:
        """The first nanosecond after the next known event; None if there is none."""
        return self._run.next_ns()

    def replicas(self) -> list[list[int]]:
        """The state of each replica at the current instant.

        Per replica: waiting requests, running requests, used KV-cache tokens; and since the start of the run:
        computed prompt tokens, emitted output tokens, prefix-cache hits in tokens.
        """
        return self._run.replicas()

    def finish(self) -> tuple[Progress, dict[str, Any]]:
        """Run all remaining events and end the run; no further request arrives.

        Returns:
            The last events, and the tables of the run without its requests.
        """
        events, tables = self._run.finish()
        del tables["measured"]
        return _progress(events), tables


def full_batch_policy(cluster: Cluster) -> str | None:
    """The name of the first policy that makes requests wait for full batches; None if there is none."""
    engines = [cluster.engines] if isinstance(cluster.engines, Engine) else cluster.engines
    for engine in engines:
        policy = engine.scheduler.batching_policy()
        if policy.waits_for_full_batches():
            return type(policy).__name__
    return None


def _check_full_batches(cluster: Cluster) -> None:
    """Refuse policies that wait for full batches if replicas can drain or fail.

    Requests that wait at a draining or failed replica continue, but replica events are processed only once a
    further request is known, so their tokens would be reported late.
    """
    if policy := full_batch_policy(cluster):
        raise ConfigError(
            "scheduler",
            f"{policy} waits for full batches; a live run with autoscaling, failures or commands does not "
            "support it, since tokens would be reported late",
        )


def _progress(events: Any) -> Progress:
    tokens, left, _ = events
    return Progress(
        [Tokens(*iteration) for iteration in tokens],
        [(request, STATUSES[status]) for request, status in left],
    )
