"""Routers: selection of the replica of a request on arrival.

A router is called once for each request, at its arrival, and sees all earlier events: ends of iterations,
hand-offs and expired patience at that time, and arrivals with lower ids. Ties: the lowest replica.

Example:
    A user-defined router that sends long prompts to the last replica and others to the least loaded of the
    rest:

    >>> import inferq as iq
    >>> class LongApart(iq.Router):
    ...     def route(self, request: iq.Arrival, fleet: iq.Fleet) -> int:
    ...         if request.prompt_tokens > 1000:
    ...             return len(fleet) - 1
    ...         return int(fleet.requests[:-1].argmin())
    >>> engine = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.Sarathi(), kv=iq.KvCache.unlimited())
    >>> workload = {"arrival_s": [0.0] * 3, "prompt_tokens": [10, 5000, 10], "output_tokens": [1] * 3}
    >>> three = iq.Cluster(engine, replicas=3, router=LongApart())
    >>> iq.simulate(workload, three).requests["replica"].to_list()
    [0, 2, 1]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

from inferq._lazy import NDArray, np
from inferq.description import Description
from inferq.errors import ConfigError

NO_REPLICA = 2**32 - 1
"""The `replica` of a request that none served, and the `prefill_replica` of one not handed off."""


class Arrival(Protocol):
    """The request that a user-defined router receives.

    The output length is not included, because a server does not know it.
    """

    @property
    def id(self) -> int:
        """Its row in `Result.requests`."""

    @property
    def arrival_s(self) -> float:
        """The current time, in seconds."""

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens."""

    @property
    def class_name(self) -> str:
        """Its class; `"default"` if the workload has no classes."""

    @property
    def session(self) -> int | None:
        """Its session, numbered from 0 in the order of the workload; None: no session."""


class Fleet(Protocol):
    """The state of the replicas that a user-defined router receives, computed on access.

    It is valid during the call.
    """

    def __len__(self) -> int:
        """Number of available replicas."""

    @property
    def replicas(self) -> NDArray[np.int64]:
        """Replica numbers in `Result.requests`."""

    @property
    def requests(self) -> NDArray[np.int64]:
        """Waiting and running requests."""

    @property
    def running(self) -> NDArray[np.int64]:
        """Running requests."""

    @property
    def waiting(self) -> NDArray[np.int64]:
        """Waiting requests."""

    @property
    def tokens(self) -> NDArray[np.int64]:
        """Remaining prompt tokens and output tokens."""

    @property
    def used_blocks(self) -> NDArray[np.int64]:
        """Used KV blocks."""

    @property
    def free_blocks(self) -> NDArray[np.int64]:
        """Free KV blocks."""

    @property
    def cached_tokens(self) -> NDArray[np.int64]:
        """Tokens of this request's prompt in each prefix cache, at this time.

        Whole blocks, at most all tokens but one; 0 without a prefix cache. A request that is handed off
        brings all tokens of its prompt. After the call, access raises `SimulationError`.
        """


class Router(Description):
    """A rule that selects the replica of a request: a class of this module, or your own derived class.

    Your own class has a method `route(request, fleet)`. It is called once for each request, in the order of
    arrival, with an `Arrival` and a `Fleet`, and returns the index of a replica: an integer from 0 to
    `len(fleet) - 1`. An exception that it raises passes through `simulate` unchanged. An object keeps its
    state between runs.

    Raises:
        ConfigError: used in a `Cluster`, the class has no `route`.
        SimulationError: in `simulate`, a result that is not such a number, with the rule and the request.

    Example:
        See `inferq.systems.routers` and `docs/guides/run-a-fleet.md`.
    """

    __slots__ = ()
    part = "router"
    unreadable = (
        "Python",
        "a router written in Python cannot be read back from a description; build the cluster in Python",
    )
    is_random: ClassVar[bool | None] = None
    """Whether its choice depends on the seed; None: unknown."""
    uses_prefix_caches: ClassVar[bool] = False
    """Whether its choice depends on the contents of prefix caches."""
    depends_on_request: ClassVar[bool | None] = None
    """Whether its choice depends on the request; None: unknown."""
    balancing: ClassVar[Literal["round robin", "random", "shortest queue"] | None] = None
    """How it balances the load; None: unknown."""

    def __post_init__(self) -> None:
        """Check the fields of a built-in router; user-defined routers check their own."""
        if not self.is_user_defined():
            Description.__post_init__(self)

    def __init_subclass__(cls) -> None:
        """Reset properties of the choice that may not hold for a derived router."""
        super().__init_subclass__()
        for name in ("is_random", "depends_on_request", "balancing"):
            if name not in vars(cls):
                setattr(cls, name, None)

    def is_user_defined(self) -> bool:
        """Whether the class is not a built-in router."""
        return type(self) not in ROUTERS

    def to_json(self) -> dict[str, Any]:
        """Return the router as JSON-ready values, with its `kind`, `"Python"` for your own class."""
        if not self.is_user_defined():
            return Description.to_json(self)
        kind = type(self)
        if not callable(getattr(self, "route", None)):
            raise ConfigError(
                "router", f"{kind.__name__} has no route(request, fleet) and is not a built-in router"
            )
        return {"kind": "Python", "name": f"{kind.__module__}.{kind.__qualname__}"}


@dataclass(frozen=True, slots=True)
class RoundRobin(Router):
    """Replica 0, 1, 2, … and again from 0, in the order of arrival, regardless of load.

    Replicas are then independent: n replicas are n separate runs, on several threads if available.

    Source: the default of most load balancers; with the equal split, results of li2025 and nie2026 for one
        engine apply to n engines.

    Example:
        >>> import inferq as iq
        >>> iq.RoundRobin().to_json()
        {'kind': 'RoundRobin'}
    """

    is_random = False
    depends_on_request = False
    balancing = "round robin"


@dataclass(frozen=True, slots=True)
class Random(Router):
    """A uniformly random replica, drawn from the seed of the run and the request's id.

    Poisson arrivals are split into independent Poisson arrivals at every replica.

    Source: the thinning of a Poisson process.

    Example:
        >>> import inferq as iq
        >>> iq.Random().to_json()
        {'kind': 'Random'}
    """

    is_random = True
    depends_on_request = False
    balancing = "random"


@dataclass(frozen=True, slots=True)
class LeastRequests(Router):
    """The replica with the fewest waiting and running requests.

    Source: join the shortest queue; vLLM's data-parallel front end counts the same.

    Example:
        >>> import inferq as iq
        >>> iq.LeastRequests().to_json()
        {'kind': 'LeastRequests'}
    """

    is_random = False
    depends_on_request = False
    balancing = "shortest queue"


@dataclass(frozen=True, slots=True)
class LeastTokens(Router):
    """The replica with the least remaining work: remaining prompt tokens plus output tokens.

    It uses output lengths, which no server knows: an upper bound on the benefit of length prediction.

    Source: join the least workload.

    Example:
        >>> import inferq as iq
        >>> iq.LeastTokens().to_json()
        {'kind': 'LeastTokens'}
    """

    is_random = False
    depends_on_request = False
    balancing = "shortest queue"


@dataclass(frozen=True, slots=True)
class PowerOfTwo(Router):
    """Two different random replicas, then the one with fewer requests.

    The draws depend on the seed of the run and the request's id.

    Source: Mitzenmacher, The power of two choices in randomized load balancing (2001).

    Example:
        >>> import inferq as iq
        >>> iq.PowerOfTwo().to_json()
        {'kind': 'PowerOfTwo'}
    """

    is_random = True
    depends_on_request = False


@dataclass(frozen=True, slots=True)
class LeastKv(Router):
    """The replica with the fewest KV blocks used or required by waiting prompts.

    Source: routers by KV cache load, such as NVIDIA Dynamo's, without prefix overlap (`PrefixAffinity` has
        it).

    Example:
        >>> import inferq as iq
        >>> iq.LeastKv().to_json()
        {'kind': 'LeastKv'}
    """

    is_random = False


@dataclass(frozen=True, slots=True)
class BySession(Router):
    """All requests of a session on one replica, sessions assigned as by `RoundRobin`.

    It requires the workload's `session_id`. A request without a session is a session of its own. In a
    `Network` the requests of a job are a session if the workload has none.

    With `spill` a session can move. If its replica has, when a request arrives, more than `spill` times the
    mean number of requests of all replicas (waiting and running, without the new one), the session moves to
    the replica with the fewest requests.

    Args:
        spill: multiple of the mean load above which a session moves, at least 1. None: sessions never move,
            and replicas are independent.

    Raises:
        ConfigError: `spill` is below 1 or not finite.

    Source: sticky sessions, which keep the prefix of a conversation in one cache; gateways move them when
        the instance is overloaded.

    Example:
        >>> import inferq as iq
        >>> iq.BySession().to_json()
        {'kind': 'BySession', 'spill': None}

        Three overlapping turns of a conversation. At 0.1 s its replica has one request, more than 1.5 times
        the mean of 0.5; at 0.2 s both replicas have one request, and it stays:

        >>> engine = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.Sarathi(), kv=iq.KvCache.unlimited())
        >>> turns = {"arrival_s": [0.0, 0.1, 0.2], "prompt_tokens": [9] * 3, "output_tokens": [9] * 3}
        >>> turns["session_id"] = [7] * 3
        >>> pair = iq.Cluster(engine, replicas=2, router=iq.BySession(spill=1.5))
        >>> iq.simulate(turns, pair).requests["replica"].to_list()
        [0, 1, 1]
    """

    is_random = False
    depends_on_request = True

    spill: float | None = None


@dataclass(frozen=True, slots=True)
class PrefixAffinity(Router):
    """The replica with the lowest cost of prefix misses and load, in tokens.

    The cost of a replica is

        weight × (tokens of the prompt that it would have to compute)
        + tokens of the KV blocks that are used or required by waiting prompts.

    Ties: the lowest replica. Tokens in the replica's prefix cache need no computation (whole blocks, at most
    all tokens but the last). `weight=0` is `LeastKv` in tokens; a large weight selects the longest cached
    prefix regardless of load. A request that is handed off brings its keys and values, so only load counts.

    With `update_s` the router uses reports of the caches at 0, update_s, 2·update_s, … A report includes all
    events before its time. Load is always current. The run time of a report grows with the changes since the
    previous one.

    Args:
        weight: cost of a computed token relative to a used token of KV cache; finite, 0 or above. Dynamo's
            default is 1. But a used token costs nothing until memory is full: on conversations, weight 1 has
            a quarter to a third fewer cache hits than `BySession`. The default of 16 was measured with
            Llama-3.1-8B on H100s, see the table. Compared with weight 1, P99 TTFT was 7 to 20 % lower on
            ShareGPT and 1 to 10 % higher on Mooncake, where mean E2E was between 5 % lower and 1 % higher; 64
            was no better than 16. Cache hit rate by weight and for `BySession`:

            | workload | req/s | replicas | 1 | 16 | 64 | `BySession` |
            |---|---|---|---|---|---|---|
            | ShareGPT | 30 | 4 | 52 % | 80 % | 82 % | 82 % |
            | ShareGPT | 120 | 4 | 33 % | 57 % | 58 % | 58 % |
            | ShareGPT, 500-token system prompt | 90 | 4 | 60 % | 77 % | 77 % | 78 % |
            | Mooncake, conversations | 8 | 8 | 9.8 % | 14.6 % | 14.8 % | |
            | Mooncake, synthetic | 8 | 8 | 25 % | 34 % | 33 % | |
        update_s: seconds between two reports of the caches, above 0. None: current contents.

    Raises:
        ConfigError: a number outside these ranges.

    Source: the cost of the KV router of NVIDIA Dynamo, overlap_score_weight × prefill_blocks + decode_blocks
        (docs.nvidia.com/dynamo, "KV cache routing"), at the lowest cost
        (`router_temperature=0`). Dynamo counts both terms in blocks of one size; here they are tokens, so
        that replicas with different block sizes are comparable: the choice is the same for equal sizes.
        Dynamo's router counts the blocks that it has sent and receives cache events; here load is the
        engine's, waiting prompts included, and `update_s` is the delay of events.

    Example:
        With a high weight, the second request goes to the replica that caches its document, although the
        other is empty:

        >>> import inferq as iq
        >>> engine = iq.Engine(
        ...     timing=iq.Constant(1.0),
        ...     scheduler=iq.VllmV1(),
        ...     kv=iq.KvCache(tokens=100_000, block=16, prefix_cache="blocks"),
        ... )
        >>> workload = iq.Workload(
        ...     {
        ...         "arrival_s": [0.0, 5.0],
        ...         "prompt_tokens": [4000, 4000],
        ...         "output_tokens": [9, 9],
        ...         "prefix_parts": [[[1, 3900]], [[1, 3900]]],  # of document 1
        ...     }
        ... )
        >>> for router in (iq.PrefixAffinity(weight=2.0), iq.PrefixAffinity(weight=0.5)):
        ...     result = iq.simulate(workload, iq.Cluster(engine, replicas=2, router=router))
        ...     print(result.requests["replica"].to_list(), result.requests["cached_tokens"].to_list())
        [0, 0] [0, 3888]
        [0, 1] [0, 0]
    """

    is_random = False
    uses_prefix_caches = True
    depends_on_request = True

    weight: float = 16.0
    update_s: float | None = None


@dataclass(frozen=True, slots=True)
class PrefixHash(Router):
    """Consistent hashing: prompts with the same beginning on one replica, independent of caches.

    The first `prefix_tokens` tokens of a prompt are hashed onto a ring on which every replica has 128 points;
    the prompt goes to the replica with the next point. An additional replica takes about 1/(n + 1) of the
    prefixes of the n others, and no prefix moves among them. A prompt that shares fewer tokens is hashed with
    tokens of its own and goes to an arbitrary replica.

    The points of replicas are the same in every run, independent of the seed. The hash uses the workload's
    numbering of contents: the same workload is always routed equally, but the same texts in another order may
    not be.

    With `load_factor` = c, loads are bounded: of n replicas, those with at least c × (requests in the fleet +
    1) / n requests, rounded up, are skipped for the next one on the ring. Without it, replicas are
    independent.

    Args:
        prefix_tokens: length of the hashed beginning, at least 1. It must exceed the common part of all
            prompts, such as a system prompt; otherwise all prompts go to one replica. It should be below most
            prompt lengths: a shorter prompt is hashed as a whole, and later turns of its conversation go
            elsewhere. The default of 1,024 exceeds common system prompts but is poor for short prompts, which
            a finding reports. On ShareGPT at 30 req/s it has a cache hit rate of 51 %, where 64 has 80 %;
            with a system prompt of 500 tokens 75 %, where 64 or 256 send everything to one replica.
        load_factor: bound on loads, above 1. None: no bound.

    Raises:
        ConfigError: a number outside these ranges.

    Source: Karger et al., Consistent hashing and random trees (1997); Mirrokni, Thorup and Zadimoghaddam,
        Consistent hashing with bounded loads (2018). Gateways name it prefix hash or session affinity.

    Example:
        >>> import inferq as iq
        >>> engine = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.Sarathi(), kv=iq.KvCache.unlimited())
        >>> workload = iq.Workload(
        ...     {
        ...         "arrival_s": [0.0, 0.1, 0.2, 0.3],
        ...         "prompt_tokens": [1200] * 4,
        ...         "output_tokens": [9] * 4,
        ...         "prefix_parts": [[[1, 1100]]] * 4,  # the same document
        ...     }
        ... )
        >>> def used_replicas(router: iq.Router) -> int:
        ...     fleet = iq.Cluster(engine, replicas=4, router=router)
        ...     return iq.simulate(workload, fleet).requests["replica"].n_unique()
        >>> used_replicas(iq.PrefixHash()), used_replicas(iq.PrefixHash(load_factor=2.0))
        (1, 2)
    """

    is_random = False
    depends_on_request = True

    prefix_tokens: int = 1024
    load_factor: float | None = None


ROUTERS: tuple[type[Router], ...] = tuple(
    kind for kind in vars().values() if isinstance(kind, type) and Router in kind.__bases__
)
"""All built-in routers."""
