"""Which replica serves a request that has just arrived?

A router is asked once for each request, at the instant of its arrival, and sees everything that happened
before it: iterations that end, hand-offs and patience that runs out at that instant, and the arrivals with
lower ids. Ties go to the lowest replica.

Example:
    A router of one's own that sends long prompts to the last replica, and all others to the emptiest of the
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
from inferq.errors import ConfigError, Renamed

NO_REPLICA = 2**32 - 1
"""The `replica` of a request that none served, and the `prefill_replica` of one not handed off."""


class Arrival(Protocol):
    """What a router of one's own is told about the request that it routes.

    Its output length is not among it: a server does not know it.
    """

    @property
    def id(self) -> int:
        """Its row in `Result.requests`."""

    @property
    def arrival_s(self) -> float:
        """This instant, in seconds."""

    @property
    def prompt_tokens(self) -> int:
        """Tokens of its prompt."""

    @property
    def class_name(self) -> str:
        """Its class; `"default"` where the workload names none."""

    @property
    def session(self) -> int | None:
        """Its session, numbered from 0 in the order in which the workload names them; None for none."""


class Fleet(Protocol):
    """What a router of one's own sees of its replicas: one number of each, made when asked for.

    It is valid during the call.
    """

    def __len__(self) -> int:
        """How many replicas there are to choose from."""

    @property
    def replicas(self) -> NDArray[np.int64]:
        """Their numbers in `Result.requests`."""

    @property
    def requests(self) -> NDArray[np.int64]:
        """Requests that are there, waiting and running."""

    @property
    def running(self) -> NDArray[np.int64]:
        """Requests that were admitted."""

    @property
    def waiting(self) -> NDArray[np.int64]:
        """Requests that wait for admission."""

    @property
    def tokens(self) -> NDArray[np.int64]:
        """Tokens of prompts not computed yet and of outputs not emitted yet."""

    @property
    def used_blocks(self) -> NDArray[np.int64]:
        """KV blocks taken."""

    @property
    def free_blocks(self) -> NDArray[np.int64]:
        """KV blocks free."""

    @property
    def cached_tokens(self) -> NDArray[np.int64]:
        """Tokens of this request's prompt that lie in the prefix cache there, at this instant.

        Whole blocks, at most all tokens but one; 0 without a prefix cache. A request that is handed off
        brings all tokens of its prompt along. Worked out when asked for, and only during the call: later it
        raises `SimulationError`.
        """


class Router(Description):
    """A rule that sends each request to a replica: a class of this module, or one derived from this.

    A class of your own has a method `route(request, fleet)`. It is called once for each request, in the order
    of their arrival, with an `Arrival` and a `Fleet`, and returns the place of a replica: a whole number from
    0 to `len(fleet) - 1`. What it raises passes through `simulate` untouched. An object that remembers
    something still does in its next run.

    Raises:
        ConfigError: used in a `Cluster`, a class without `route`.
        SimulationError: in `simulate`, a result that is no such number; it names the rule and the request.

    Example:
        See `inferq.systems.routers` and `docs/guides/run-a-fleet.md`.
    """

    __slots__ = ()
    is_written = Renamed("is_user_defined")
    part = "router"
    unreadable = (
        "Python",
        "a router written in Python cannot be read back from a description; build the cluster in Python",
    )
    draws: ClassVar[bool | None] = None
    """Whether it draws at random, so that another seed routes otherwise; None where that is not known."""
    looks_at_caches: ClassVar[bool] = False
    """Whether it asks which replica's prefix cache has a prompt; without a cache that says nothing."""
    looks_at_request: ClassVar[bool | None] = None
    """Whether the replica depends on the request that is sent; None where that is not known."""
    spreads: ClassVar[Literal["in turns", "by chance", "to the fewest"] | None] = None
    """How it gives every replica its share of the load; None where nothing is known of that."""

    def __post_init__(self) -> None:
        """The fields of a router of one's own are its own affair."""
        if not self.is_user_defined():
            Description.__post_init__(self)

    def __init_subclass__(cls) -> None:
        """What a router says of its choice holds for no router that is derived from it."""
        for name in ("draws", "looks_at_request", "spreads"):
            if name not in vars(cls):
                setattr(cls, name, None)

    def is_user_defined(self) -> bool:
        """Whether this is an object of a class that is no router of inferq itself."""
        return type(self) not in ROUTERS

    def to_json(self) -> dict[str, Any]:
        """The router as JSON-ready values, with its `kind`: `"Python"` for one of your own."""
        if not self.is_user_defined():
            return Description.to_json(self)
        kind = type(self)
        if not callable(getattr(self, "route", None)):
            raise ConfigError(
                "router", f"{kind.__name__} has no route(request, fleet), and is no router of inferq"
            )
        return {"kind": "Python", "name": f"{kind.__module__}.{kind.__qualname__}"}


@dataclass(frozen=True, slots=True)
class RoundRobin(Router):
    """Replica 0, 1, 2, … and again from 0, in the order of arrival, whatever they are doing.

    Replicas then do not see each other: n replicas are n separate runs, on several threads where there are.

    Source: the default of most load balancers; the equal split that lets the one-engine results of li2025 and
        nie2026 speak of n engines.

    Example:
        >>> import inferq as iq
        >>> iq.RoundRobin().to_json()
        {'kind': 'RoundRobin'}
    """

    draws = False
    looks_at_request = False
    spreads = "in turns"


@dataclass(frozen=True, slots=True)
class Random(Router):
    """A replica drawn at random, each equally likely, from the seed of the run and the request's id.

    Poisson arrivals split so are independent Poisson arrivals at every replica.

    Source: the thinning of a Poisson process.

    Example:
        >>> import inferq as iq
        >>> iq.Random().to_json()
        {'kind': 'Random'}
    """

    draws = True
    looks_at_request = False
    spreads = "by chance"


@dataclass(frozen=True, slots=True)
class LeastRequests(Router):
    """The replica with the fewest requests, waiting and running together.

    Source: join the shortest queue; the router of vLLM's data-parallel front end counts so.

    Example:
        >>> import inferq as iq
        >>> iq.LeastRequests().to_json()
        {'kind': 'LeastRequests'}
    """

    draws = False
    looks_at_request = False
    spreads = "to the fewest"


@dataclass(frozen=True, slots=True)
class LeastTokens(Router):
    """The replica with the least work left: tokens of prompts not computed plus outputs not emitted.

    It knows output lengths, which no server does: a bound on what a predictor of lengths can gain.

    Source: join the least workload.

    Example:
        >>> import inferq as iq
        >>> iq.LeastTokens().to_json()
        {'kind': 'LeastTokens'}
    """

    draws = False
    looks_at_request = False
    spreads = "to the fewest"


@dataclass(frozen=True, slots=True)
class PowerOfTwo(Router):
    """Two different replicas drawn at random, then the one of them with fewer requests.

    The draws belong to the seed of the run and the request's id.

    Source: Mitzenmacher, The power of two choices in randomized load balancing (2001).

    Example:
        >>> import inferq as iq
        >>> iq.PowerOfTwo().to_json()
        {'kind': 'PowerOfTwo'}
    """

    draws = True
    looks_at_request = False


@dataclass(frozen=True, slots=True)
class LeastKv(Router):
    """The replica with the fewest KV blocks spoken for: those used, and those that waiting prompts will need.

    Source: routers that watch the KV cache, such as that of NVIDIA Dynamo, without their prefix overlap
        (`PrefixAffinity` has it).

    Example:
        >>> import inferq as iq
        >>> iq.LeastKv().to_json()
        {'kind': 'LeastKv'}
    """

    draws = False


@dataclass(frozen=True, slots=True)
class BySession(Router):
    """All requests of one session on one replica, sessions one after the other as `RoundRobin` would.

    It needs the workload's `session_id`. A request without a session counts as a session of its own. In a
    `Network` the requests of one job are a session where the workload names none.

    With `spill` a session does not stay at any price. Where its replica has, at the instant of a request,
    more than `spill` times the mean number of requests of all replicas (waiting and running, the newcomer not
    counted), the session moves to the replica with the fewest requests, and lives there from then on.

    Args:
        spill: how many times the mean is too many, at least 1; None: a session never moves, and replicas do
            not see each other.

    Raises:
        ConfigError: `spill` is below 1 or not finite.

    Source: sticky sessions, which keep the prefix of a conversation in one cache; gateways let them go when
        the instance is overloaded.

    Example:
        >>> import inferq as iq
        >>> iq.BySession().to_json()
        {'kind': 'BySession', 'spill': None}

        Three turns of one conversation, each while the one before is served. At 0.1 s its replica has one
        request, more than 1.5 times the mean of a half; at 0.2 s each of the two has one, and it stays:

        >>> engine = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.Sarathi(), kv=iq.KvCache.unlimited())
        >>> turns = {"arrival_s": [0.0, 0.1, 0.2], "prompt_tokens": [9] * 3, "output_tokens": [9] * 3}
        >>> turns["session_id"] = [7] * 3
        >>> pair = iq.Cluster(engine, replicas=2, router=iq.BySession(spill=1.5))
        >>> iq.simulate(turns, pair).requests["replica"].to_list()
        [0, 1, 1]
    """

    draws = False
    looks_at_request = True

    spill: float | None = None


@dataclass(frozen=True, slots=True)
class PrefixAffinity(Router):
    """Where most of the prompt is cached, if that is not too full: the lowest cost, in tokens.

    The cost of a replica is

        weight × (tokens of the prompt that would have to be computed there)
        + tokens of the KV blocks that are used there or that waiting prompts will need,

    ties to the lowest replica. A token that the replica's prefix cache has, in whole blocks and at most all
    but the last, need not be computed; replicas without a prefix cache have none. So `weight=0` is `LeastKv`
    counted in tokens, and a large weight goes to the longest prefix whatever stands in line there. A request
    that is handed off brings its keys and values along: it costs only what lies ahead.

    With `update_s` the caches are not looked at, but report what they know every so many seconds, at 0,
    update_s, 2·update_s, …; a report tells of everything before its instant and of nothing at it. What lies
    ahead is always of this instant. A report costs what has changed since the one before.

    Args:
        weight: of a token to compute against a token whose place is taken; finite, not negative. Dynamo's
            own default is 1, which trades a found token for one place less taken, although a place costs the
            replica nothing until its memory is full: on conversations it finds a quarter to a third less
            than `BySession`. The default of 16 was measured on Llama-3.1-8B and H100s, share of prompt tokens
            found, in turn for weights 1, 16 and 64, beside `BySession`: ShareGPT over 4 replicas at 30
            requests a second 52, 80, 82 and 82 %, at 120 a second 33, 57, 58 and 58 %, with a system prompt
            of 500 tokens at 90 a second 60, 77, 77 and 78 %; Mooncake's conversations over 8 replicas at 8 a
            second 9.8, 14.6 and 14.8 %, its synthetic trace 25, 34 and 33 %. Against a weight of 1 its p99
            of TTFT was 7 to 20 % lower on ShareGPT, and 1 to 10 % higher on Mooncake, whose mean E2E was
            from 5 % lower to 1 % higher; 64 was no better than 16.
        update_s: seconds between two reports of the caches, above 0; None: the caches are looked at.

    Raises:
        ConfigError: a number outside these ranges.

    Source: the cost of the KV router of NVIDIA Dynamo, overlap_score_weight × prefill_blocks + decode_blocks
        (docs.nvidia.com/dynamo, "KV cache routing"), with the lowest cost taken (`router_temperature=0`).
        There both terms are counted in blocks of one size, here in tokens, so that replicas with blocks of
        different sizes can be compared: the same choice where all are equal. There the router counts the
        blocks that it has sent and hears of the caches by events; here what lies ahead is what the engine
        holds, waiting prompts included, and `update_s` is what the events are late.

    Example:
        The second request goes where its document lies, though the other replica is empty:

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

    draws = False
    looks_at_caches = True
    looks_at_request = True

    weight: float = 16.0
    update_s: float | None = None


@dataclass(frozen=True, slots=True)
class PrefixHash(Router):
    """Prompts that begin alike on one replica, without a look at any cache: consistent hashing.

    The first `prefix_tokens` tokens of a prompt are hashed onto a ring on which every replica has 128 places;
    the prompt goes to the replica whose place comes next. So prompts with the same beginning meet, a replica
    more takes about 1/(n + 1) of the prefixes from the n others, and nothing moves between these. A prompt of
    which less is shared is hashed with what is its own, and goes anywhere.

    The places of replicas are the same in every run, whatever its seed. What is hashed are the contents of
    the workload as it numbers them: the same workload is routed alike every time, another one that holds the
    same texts in another order need not be.

    With `load_factor` = c loads are bounded: of n replicas those are passed over that have at least
    c × (requests in the fleet + 1) / n requests, rounded up, and the next on the ring is taken. Without it
    replicas do not see each other.

    Args:
        prefix_tokens: so many tokens are the beginning of a prompt, at least 1. Give more than what all
            prompts have in common, such as a system prompt: otherwise all go to one replica. Give less than
            most prompts have: a shorter one is hashed as a whole, and no later turn of its conversation
            meets it. The default of 1,024 is beyond common system prompts and loses on short prompts, which
            a run tells: on ShareGPT at 30 a second it finds 51 % where 64 find 80 %, and behind a system
            prompt of 500 tokens 75 %, where 64 or 256 send everything to one replica.
        load_factor: see above; above 1. None: loads are not looked at.

    Raises:
        ConfigError: a number outside these ranges.

    Source: Karger et al., Consistent hashing and random trees (1997); Mirrokni, Thorup and Zadimoghaddam,
        Consistent hashing with bounded loads (2018). Gateways call it prefix hash or session affinity.

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
        >>> def homes(router: iq.Router) -> int:
        ...     fleet = iq.Cluster(engine, replicas=4, router=router)
        ...     return iq.simulate(workload, fleet).requests["replica"].n_unique()
        >>> homes(iq.PrefixHash()), homes(iq.PrefixHash(load_factor=2.0))
        (1, 2)
    """

    draws = False
    looks_at_request = True

    prefix_tokens: int = 1024
    load_factor: float | None = None


ROUTERS: tuple[type[Router], ...] = tuple(
    kind for kind in vars().values() if isinstance(kind, type) and Router in kind.__bases__
)
"""Every router that a cluster may be described with."""
