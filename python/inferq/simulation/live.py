"""A run that is fed while it goes on: requests as they come, tokens as they fall."""

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
from inferq.scheduler import ClassPriority, NestedWait, Wait
from inferq.simulation.core_input import ONE_CLASS, Crossing
from inferq.simulation.simulate import core_options
from inferq.systems.cluster import Cluster
from inferq.systems.engine import Engine
from inferq.systems.gate_and_route import GateAndRoute
from inferq.systems.network import Network
from inferq.systems.pools import Pool, keys
from inferq.systems.system import System
from inferq.workload.prefixes import OWN

NANOSECONDS = 1_000_000_000
"""In a second. Arrivals lie on the nanosecond."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of one iteration."""

    at_s: float
    """When it ended."""
    replica: int
    requests: list[int]
    """Each got one."""
    finished: list[int]
    """Those of them for which it was the last."""


@dataclass(frozen=True, slots=True)
class News:
    """What happened in a run since it was asked last."""

    tokens: list[Tokens]
    """In order of time."""
    left: list[tuple[int, str]]
    """Requests that left without their last token, and how: `"rejected"`, `"abandoned"` or `"lost"`."""


@dataclass(frozen=True, slots=True)
class Chain:
    """With what a prompt begins, as the core reads it: contents by number, and how many tokens of each."""

    contents: array[int] = field(default_factory=lambda: array("Q"))
    tokens: array[int] = field(default_factory=lambda: array("I"))

    @classmethod
    def of(cls, contents: Iterable[int], tokens: Iterable[int]) -> Chain:
        """In eight bytes and in four: servers remember many."""
        return cls(array("Q", contents), array("I", tokens))

    def after(self, request: int, context_tokens: int) -> Chain:
        """The chain of a prompt that goes on from a request whose prompt begins so, and from its answer."""
        own = context_tokens - sum(self.tokens)
        return Chain.of((*self.contents, OWN | request), (*self.tokens, own)) if own > 0 else self


class Live:
    """A run of a system that is fed while it goes on; the same loop as `simulate`, with the same results.

    What has happened before an instant is decided once no request can come before it any more. So the run
    goes up to an instant when it is told to, and tells of each token that fell before. Requests come with
    their arrivals in order, none before that instant. The run over the same rows with `simulate` is the same,
    bit for bit.

    Args:
        system: an `Engine`, a `Cluster` or a `Disaggregated`.
        sessions: whether requests say to which session they belong.
        takes_commands: whether replicas may be told to die, to drain and to start: those of a `Cluster` whose
            engines have one `max_model_len` and one `first_token`, and no policy that waits for company.
        take: gets the columns of `Result.requests` of requests that have left, in the order of their ids.
        options: of `simulate`: `seed`, `timeline_s`, `iterations`, `batches`.

    Raises:
        ConfigError: a system whose requests wait for one another, or before its replicas; an option.
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
            raise ConfigError(system.name_of_kind, "cannot be fed while it runs")
        if isinstance(system, Cluster) and not (
            system.autoscaler is None and system.failures is None and not takes_commands
        ):
            _check_company(system)
        crossing = Crossing(system, ["session_id"] if sessions else [], takes_commands=takes_commands)
        self.pools: Sequence[Pool] = crossing.pools
        self._has_keys = keys(self.pools, pl.DataFrame(), None) is not None
        self.knows_prefixes = crossing.knows_prefixes
        assert np.__version__  # so that it is loaded: no request should wait for that
        self._run = _core.Live(
            crossing.scenario(core_options(**options)),
            [ONE_CLASS],
            crossing.user_defined(),
            lambda rows: take(RequestColumns(rows)),
        )

    def __len__(self) -> int:
        """Requests that have come."""
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
        """A request arrives.

        Args:
            at_ns: when, in nanoseconds.
            prompt_tokens: of its prompt.
            output_tokens: that it will emit.
            max_output_tokens: that its client allows.
            session: its number.
            priority: lower is served first.
            chain: with what its prompt begins.

        Returns:
            Its id: its row, had it been in a workload.

        Raises:
            TraceError: numbers out of range, or an arrival that has passed.
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
        """The client of a request takes it back at an instant that has not come.

        It leaves at once where it waits for its first admission, else with its next token, and is abandoned.

        Returns:
            Whether it was still here: then its `cancel_s` in the workload is that instant, from its arrival.
        """
        return self._run.cancel(request, at_ns)

    def tell(self, replica: int, what: str, at_ns: int) -> float:
        """A replica is told to `"die"`, `"drain"` or `"start"` at an instant that has not come.

        Returns:
            When, in seconds: in the `Failures` of a cluster that is simulated it is the same instant.

        Raises:
            ConfigError: replicas that stay, or one that is told the same already.
        """
        # A float may lie before the nanosecond that it stands for; the next one does not.
        at_s = math.nextafter(at_ns / NANOSECONDS, math.inf)
        self._run.schedule_change(replica, at_s, what)
        return at_s

    def advance(self, until_ns: int) -> News:
        """Let happen all that happens before an instant, and tell of it.

        Raises:
            SimulationError: the clock overflowed, or a policy broke a rule; the run is over then.
        """
        return _news(self._run.advance(until_ns))

    def next_ns(self) -> int | None:
        """The first nanosecond behind what happens next, as far as is known; None where nothing does."""
        return self._run.next_ns()

    def replicas(self) -> list[list[int]]:
        """Of each replica what it has at the instant up to which the run went.

        Requests that wait, requests that run, tokens of KV cache taken; and since the run began prompt tokens
        computed, output tokens emitted, tokens found in the prefix cache.
        """
        return self._run.replicas()

    def finish(self) -> tuple[News, dict[str, Any]]:
        """No further request comes: let happen all that is left, and end the run.

        Returns:
            The last news, and the tables of the run beside those of its requests.
        """
        happened, tables = self._run.finish()
        del tables["measured"]
        return _news(happened), tables


def waits_for_company(cluster: Cluster) -> str | None:
    """The first policy of its engines that lets requests wait until others come, by name."""
    engines = [cluster.engines] if isinstance(cluster.engines, Engine) else cluster.engines
    for engine in engines:
        policy = engine.scheduler
        inner = policy.inner if isinstance(policy, ClassPriority) else policy
        if isinstance(inner, (Wait, NestedWait)):
            return type(inner).__name__
    return None


def _check_company(cluster: Cluster) -> None:
    """Refuse policies that wait for company where replicas come and go.

    A replica that drains or dies lets what waits there go on, but what happens to replicas alone happens only
    once a further request is known to come: its tokens would be told late.
    """
    if policy := waits_for_company(cluster):
        raise ConfigError(
            "scheduler",
            f"{policy} waits for company, and replicas come and go: tokens of a run that is fed "
            "would be told late",
        )


def _news(happened: Any) -> News:
    tokens, left, _ = happened
    return News([Tokens(*one) for one in tokens], [(request, STATUSES[status]) for request, status in left])
