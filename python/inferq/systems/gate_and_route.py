"""Which requests may begin their prefill where, and where do they decode, on a whole cluster?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar, Literal

from inferq.description import Description, fields_of, read
from inferq.errors import ConfigError
from inferq.scheduler import SlotGreedy
from inferq.systems.engine import Engine, KvCache
from inferq.systems.pools import Pool
from inferq.timing import MixedSolo


@dataclass(frozen=True, kw_only=True, slots=True)
class Allocation(Description):
    """How many requests of each class a replica should hold on average, by where they are.

    The solution of a linear program such as lin2026 (40), (42) or (49); `GateAndRoute` steers towards it. All
    numbers are per replica, by the names of the workload's classes (`"default"` where it has none), and count
    to 12 decimal places: what a solver adds beyond them is dust. Every table that is given names the same
    classes.

    Source: lin2026 section 3.1, x* = `prefill`, y_m* = `mixed`, y_s* = `solo`, q_p* = `prefill_queue`,
        q_d* = `decode_queue`.

    Args:
        prefill: prefills under way; at most 1 in all, as a replica runs one at a time.
        mixed: decodes beside a prefill; only the routers `"randomised"` and `"general"` need it.
        solo: decodes on a replica that runs no prefill; needed by the same two.
        prefill_queue: requests that wait for their prefill. The gate `"queue"` needs it, the gate
            `"occupancy"` breaks ties by it (all 0 where it is None).
        decode_queue: requests that wait for their decode: to compare with, no decision looks at it.

    Raises:
        ConfigError: a number that is negative or above 1,000,000, prefills that add up to more than 1, tables
            of different classes; it names table and class.

    Example:
        >>> import inferq as iq
        >>> iq.Allocation(prefill={"chat": 0.25, "code": 0.5}).prefill["code"]
        0.5
    """

    part: ClassVar[str | None] = "allocation"

    prefill: Mapping[str, float]
    mixed: Mapping[str, float] | None = None
    solo: Mapping[str, float] | None = None
    prefill_queue: Mapping[str, float] | None = None
    decode_queue: Mapping[str, float] | None = None

    def to_json(self) -> dict[str, Any]:
        """The tables as JSON-ready values."""
        return fields_of(self)


class Planned:
    """What has an `Allocation` to follow: the plan that `inferq.theory.allocation` makes."""

    __slots__ = ()

    @property
    def allocation(self) -> Allocation:
        """What each replica should hold."""
        raise NotImplementedError

    def refuse_other(self, cluster: GateAndRoute) -> None:
        """Refuse a cluster that differs from what was planned for, with a `ConfigError` naming the field."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True, slots=True)
class Prices(Description):
    """What a token is sold for, in any currency.

    Under the *bundled* scheme a request pays `prefill`·P + `decode`·D when it is finished; under the
    *separate* scheme it pays the first when its prefill ends, the second when its decode does. Prices are
    exact decimals with up to 18 places, and revenue is summed in whole numbers.

    Source: lin2026 (21) to (23), c_p = `prefill`, c_d = `decode`.

    Args:
        prefill: of a prompt token, from 0 to 1,000,000.
        decode: of an output token, from 0 to 1,000,000.

    Raises:
        ConfigError: a price outside its range, once the prices are in a `GateAndRoute`.

    Example:
        >>> import inferq as iq
        >>> iq.Prices(prefill=0.1, decode=0.2).decode
        0.2
    """

    prefill: float
    decode: float

    def to_json(self) -> dict[str, Any]:
        """The prices as JSON-ready values."""
        return fields_of(self)


@dataclass(frozen=True, slots=True)
class GateAndRoute(Description):
    """A cluster whose prefills pass a gate and whose decodes are routed.

    A replica has `slots` slots. At most one holds a prefill, and all decodes run at one of two speeds: beside
    a prefill an iteration takes τ = alpha + beta·`chunk` seconds, else `solo` seconds. With
    `service="exponential"` a prefill of P tokens takes an exponential time of mean (P / `chunk`)·τ, a decode
    of D tokens one of mean D·τ beside a prefill and D·`solo` alone, each request by its own P and D. Who
    waits gives up after an exponential time; patience is drawn anew for each of the two queues.

    With `service="tokens"` the same control decides over real iterations: a replica computes a chunk of its
    prefill and a token of each decode in one iteration (`SlotGreedy(chunk=…)`, `first_token="decode"`), and
    what it is given joins with the next one. Keys and values move in no time; where `kv` is limited, whoever
    does not fit steps out of memory. The last chunk of a prompt costs what its tokens do, less than τ where
    they are fewer. Then `Result.requests`, `tbt`, `iterations` and the rest are those of any cluster, and
    `Result.timeline` has a row for each replica.

    **Plan.** With `planned=True` the first M = ⌈n · Σ `allocation.prefill`⌉ replicas are *mixed*: each keeps
    one slot for prefills and decodes in the others. The rest are *solo* and only decode. With `planned=False`
    every replica takes a prefill and decodes, at most `slots` in all.

    **Gate**: the class admitted when a replica can begin a prefill, first come, first served within it. X_i
    prefills of class i run, Q_i requests of it wait, n is `replicas`.

    | `gate` | the class |
    |---|---|
    | `"occupancy"` | least (X_i − n·x_i*) / x_i*; ties: largest Q_i − n·q_p,i*; x_i* = 0 comes last (4.1) |
    | `"queue"` | largest Q_i − n·q_p,i*: our reading of "queue-length based", 6.3 gives no formula |
    | `"priority"` | largest mean output over mean prompt of the class in the workload (4.2.1) |
    | `"fcfs"` | that of the request that has waited longest |

    What is still tied goes to the class that comes first in the workload. The replica is any that can begin a
    prefill, all alike.

    **Router**: where a decode goes when its prefill ends. A freed slot takes the head of a buffer.

    | `router` | the slot |
    |---|---|
    | `"greedy"` | any free solo one, else any free mixed one, else one buffer (4.1) |
    | `"randomised"` | solo with probability p_s,i, else mixed; a buffer for each pool (5.1) |
    | `"general"` | the same, and a freed slot draws the class that it serves (EC.6) |
    | `"immediate"` | the slot of its prefill, at once; needs `planned=False` |
    | `"fcfs"` | any free one, once no prefill can begin; one buffer; needs `planned=False` |

    Greedy without a plan takes a replica that runs no prefill now for a solo one. p_s,i = (y_s,i* / solo) /
    (y_s,i* / solo + y_m,i* / τ), and 1 where both are 0. Section 5.1 also draws "upon decode completion",
    where nothing is left to route: the draw is made once, when the prefill ends.

    **The paper's policies**, section 6.3 unless another is named:

    | policy | `gate` | `router` | `planned` |
    |---|---|---|---|
    | GG-SP, gate-and-route (4.1) | `"occupancy"`, or `"queue"` as 6.3 words it | `"greedy"` | True |
    | FI-WSP, "Sarathi" | `"fcfs"` | `"immediate"` | False |
    | GI-WSP | `"queue"` or `"occupancy"` | `"immediate"` | False |
    | GF-WSP | `"queue"` or `"occupancy"` | `"fcfs"` | False |
    | FG-SP | `"fcfs"` | `"greedy"` | True |
    | SLI-aware (5.1) | `"occupancy"` | `"randomised"` | True |
    | general SLI-aware (EC.6) | `"occupancy"` | `"general"` | True |
    | prioritise-and-route (4.2.1) | `"priority"` | `"greedy"` | True |

    `inferq.simulate(workload, GateAndRoute(…))` takes `seed`, `horizon_s`, `warmup`, `timeline_s` and
    `progress`. `warmup` says from when averages and revenue count: an instant (`"30s"`), or the arrival of
    the first request after so many. `Result.occupancy` and `Result.revenue` tell what the paper's figures
    show; in `Result.requests` `admitted_s` is the start of the prefill, `prefilled_s` its end (and so is
    `first_token_s` over slots, which have no tokens), `handoff_s` the wait for a slot to decode,
    `prefill_replica` and `replica` where each ran.

    Two policies under one seed meet the same requests with the same work: each request's draws depend on its
    row alone. What is left of a decode when its speed changes is not drawn anew; as an exponential has no
    memory, this is the paper's model in distribution.

    Source: lin2026 sections 2.3 and 4 to 6. τ_mix(C) = alpha + beta·C, γ = 1/solo, B = `slots`, C = `chunk`,
        θ = `abandonment`.

    Args:
        allocation: what each replica should hold, or the plan of `inferq.theory.allocation` for the same
            timing, slots, chunk, prices and abandonment, whose allocation is kept; None where neither plan,
            gate nor router follows one.
        replicas: n, at least 1.
        timing: the two speeds.
        slots: B, at least 1, with a plan at least 2.
        chunk: C in tokens, at least 1.
        prices: of tokens.
        abandonment: how fast those who wait give up, per second: one rate, or one for each class. None and 0:
            never.
        gate: which class is admitted to its prefill next.
        router: where a decode goes.
        planned: set replicas apart for prefills.
        service: `"exponential"`, or `"tokens"` for iterations of a batch, token by token.
        kv: the KV cache of each replica; only `service="tokens"` looks at it.

    Raises:
        ConfigError: a number outside its range, parts that do not go together, a table that a gate or router
            needs and lacks, a plan for another cluster; at the run a class of the workload that a table
            lacks or the reverse.

    Example:
        Two replicas, one of them for prefills; nobody ever waits for a decode:

        >>> import inferq as iq
        >>> cluster = iq.GateAndRoute(
        ...     iq.Allocation(prefill={"default": 0.5}),
        ...     replicas=2,
        ...     timing=iq.MixedSolo(alpha=0.0174, beta=6.2e-5, solo=0.022),
        ...     slots=16,
        ...     chunk=256,
        ...     prices=iq.Prices(prefill=0.1, decode=0.2),
        ... )
        >>> work = {"arrival_s": [0.0, 0.1], "prompt_tokens": [300, 3000], "output_tokens": [1000, 400]}
        >>> result = iq.simulate(work, cluster, seed=1)
        >>> result.requests["handoff_s"].to_list(), result.revenue["bundled"][-1]
        ([0.0, 0.0], 610.0)
        >>> iq.GateAndRoute.from_json(cluster.to_json()) == cluster
        True
    """

    part: ClassVar[str | None] = "gate_and_route"
    name_of_kind: ClassVar[str] = "gate_and_route"

    parts: ClassVar[Mapping[str, tuple[type[Any], ...]]] = {"allocation": (Allocation, type(None))}

    allocation: Allocation | Planned | None
    _: KW_ONLY
    replicas: int
    timing: MixedSolo
    slots: int
    chunk: int
    prices: Prices
    abandonment: float | Mapping[str, float] | None = None
    gate: Literal["occupancy", "queue", "priority", "fcfs"] = "occupancy"
    router: Literal["greedy", "randomised", "general", "immediate", "fcfs"] = "greedy"
    planned: bool = True
    service: Literal["exponential", "tokens"] = "exponential"
    kv: KvCache = field(default_factory=KvCache.unlimited)

    @classmethod
    def from_json(cls, description: Mapping[str, Any]) -> GateAndRoute:
        """The cluster that a table describes, the inverse of `to_json()`.

        Args:
            description: the `kind` and the fields, as read from JSON; `kv` may be the text `"unlimited"`.

        Raises:
            ConfigError: an unknown or missing field or kind, named by its path.
        """
        if not isinstance(description, Mapping):
            raise ConfigError(f"gate_and_route: {description!r} is not a table with a 'kind'")
        if description.get("kv") == "unlimited":
            description = {**description, "kv": {"tokens": None}}
        return read("gate_and_route", description, (cls,))

    def __post_init__(self) -> None:
        """Take the allocation out of a plan, then check every field."""
        plan = self.allocation if isinstance(self.allocation, Planned) else None
        if plan is not None:
            object.__setattr__(self, "allocation", plan.allocation)
        Description.__post_init__(self)
        if plan is not None:
            plan.refuse_other(self)

    def pools(self) -> tuple[Pool, ...]:
        """The cluster as the core runs it over real iterations: the control before it says who goes where."""
        scheduler = SlotGreedy(chunk=self.chunk)
        engine = Engine(timing=self.timing, scheduler=scheduler, kv=self.kv, first_token="decode")
        return (Pool((engine,), (self.replicas,), ("gate_and_route",)),)
