"""GateAndRoute: prefills that pass a gate, decodes that are routed, and what such a cluster earns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

from inferq._lazy import NDArray, np
from inferq.description import Description, fields_of, read
from inferq.systems.kv_cache import KvCache
from inferq.systems.prices import Prices
from inferq.systems.routers import NO_REPLICA
from inferq.timing.models.mixed_solo import MixedSolo

Columns: TypeAlias = "dict[str, NDArray[Any]]"


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
        mixed: decodes beside a prefill; only the routers `"randomized"` and `"general"` need it.
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


@dataclass(frozen=True, slots=True)
class GateAndRoute(Description):
    """A cluster whose prefills pass a gate and whose decodes are routed.

    A replica has `slots` slots. At most one holds a prefill, and all decodes run at one of two speeds: beside
    a prefill an iteration takes τ = alpha + beta·`chunk` seconds, else `solo` seconds. With
    `service="exponential"` a prefill of P tokens takes an exponential time of mean (P / `chunk`)·τ, a decode
    of D tokens one of mean D·τ beside a prefill and D·`solo` alone, each request by its own P and D. What
    waits gives up after an exponential time; patience is drawn anew for each of the two queues.

    With `service="tokens"` the same control decides over real iterations: a replica computes a chunk of its
    prefill and a token of each decode in one iteration (`SlotGreedy(chunk=…)`, `first_token="decode"`), and
    what it is given joins with the next one. Keys and values move in no time; where `kv` is limited, what
    does not fit steps out of memory. The last chunk of a prompt costs what its tokens do, less than τ where
    they are fewer. Then `Result.requests`, `itl`, `iterations` and the rest are those of any cluster, and
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
    | `"randomized"` | solo with probability p_s,i, else mixed; a buffer for each pool (5.1) |
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
    | SLI-aware (5.1) | `"occupancy"` | `"randomized"` | True |
    | general SLI-aware (EC.6) | `"occupancy"` | `"general"` | True |
    | prioritize-and-route (4.2.1) | `"priority"` | `"greedy"` | True |

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
        abandonment: how fast waiting requests give up, per second: one rate, or one for each class. None
            and 0: never.
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
        Two replicas, one of them for prefills; no request ever waits for a decode:

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
    router: Literal["greedy", "randomized", "general", "immediate", "fcfs"] = "greedy"
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
        return read("gate_and_route", description, (cls,))

    def __post_init__(self) -> None:
        """Take the allocation out of a plan, then check every field."""
        plan = self.allocation if isinstance(self.allocation, Planned) else None
        if plan is not None:
            object.__setattr__(self, "allocation", plan.allocation)
        Description.__post_init__(self)
        if plan is not None:
            plan.refuse_other(self)


_PLACES = ("prefill_queue", "prefill", "decode_queue", "mixed", "solo")


@dataclass(frozen=True, slots=True)
class Stays:
    """From when to when each request was where, in nanoseconds; a stay that never began is empty."""

    queued: tuple[NDArray[np.int64], NDArray[np.int64]]
    prefilling: tuple[NDArray[np.int64], NDArray[np.int64]]
    buffered: tuple[NDArray[np.int64], NDArray[np.int64]]
    decoding: tuple[NDArray[np.int64], NDArray[np.int64]]

    @classmethod
    def of(cls, requests: Mapping[str, NDArray[Any]], start_ns: int, end_ns: int) -> Stays:
        """The stays between two instants.

        Args:
            requests: the columns of `Result.requests`.
            start_ns: what was before does not count.
            end_ns: the end of the run, until when the unfinished stay.
        """

        def instants(seconds: NDArray[np.float64]) -> NDArray[np.int64]:
            known = np.where(np.isnan(seconds), end_ns / 1e9, seconds)
            return np.clip(np.rint(known * 1e9).astype(np.int64), start_ns, end_ns)

        left = instants(requests["left_s"])
        admitted = np.minimum(instants(requests["admitted_s"]), left)
        prefilled = np.minimum(instants(requests["prefilled_s"]), left)
        resumed = np.minimum(instants(requests["prefilled_s"] + requests["handoff_s"]), left)
        return cls(
            queued=(instants(requests["arrival_s"]), admitted),
            prefilling=(admitted, prefilled),
            buffered=(prefilled, resumed),
            decoding=(resumed, left),
        )


def earned(
    requests: Mapping[str, NDArray[Any]],
    timeline: Mapping[str, NDArray[Any]],
    cluster: GateAndRoute,
    classes: int,
    start_s: float,
    end_s: float,
) -> tuple[Columns, Columns]:
    """The tables `occupancy` and `revenue` of a run over real iterations.

    Over slots the core keeps these sums while it runs; over real iterations they follow from the rows of the
    requests. Instants are taken to whole nanoseconds, so that every sum is exact, the same on every machine.

    Args:
        requests: the columns of `Result.requests`.
        timeline: those of `Result.timeline`.
        cluster: under gate and route.
        classes: how many there are.
        start_s: from when averages and revenue count.
        end_s: until when.
    """
    start_ns, end_ns = (round(instant * 1e9) for instant in (min(start_s, end_s), end_s))
    sampled = np.unique(timeline["time_s"])
    times_s = np.append(sampled[sampled < end_s], end_s)
    return (
        occupancy(requests, classes, cluster.replicas, start_ns, end_ns),
        revenue(requests, cluster, times_s[times_s > start_s], start_s),
    )


def occupancy(
    requests: Mapping[str, NDArray[Any]], classes: int, replicas: int, start_ns: int, end_ns: int
) -> Columns:
    """Time averages per replica, as `Result.occupancy` shows them; NaN where no time was measured."""
    stays = Stays.of(requests, start_ns, end_ns)
    span_ns = (end_ns - start_ns) * replicas
    beside = _beside_a_prefill(stays, requests["prefill_replica"], requests["replica"])
    of_place = dict.fromkeys(_PLACES, np.zeros(0, np.int64))
    of_place["prefill_queue"] = stays.queued[1] - stays.queued[0]
    of_place["prefill"] = stays.prefilling[1] - stays.prefilling[0]
    of_place["decode_queue"] = stays.buffered[1] - stays.buffered[0]
    of_place["mixed"] = beside
    of_place["solo"] = stays.decoding[1] - stays.decoding[0] - beside
    table: Columns = {"class": np.arange(classes, dtype=np.uint32)}
    for name, lengths in of_place.items():
        totals = [_exact_sum(lengths[requests["class"] == one]) for one in range(classes)]
        table[name] = np.array([total / span_ns if span_ns else np.nan for total in totals])
    return table


def revenue(
    requests: Mapping[str, NDArray[Any]], cluster: GateAndRoute, times_s: NDArray[np.float64], start_s: float
) -> Columns:
    """What was earned since `start_s` by each of some instants, as `Result.revenue` shows it."""

    def earned(at_s: NDArray[np.float64], tokens: NDArray[np.int32]) -> NDArray[np.int64]:
        known = at_s >= start_s  # what never happened is NaN, and not
        order = np.argsort(at_s[known], kind="stable")
        sums = np.concatenate([[0], np.cumsum(tokens[known][order], dtype=np.int64)])
        which: NDArray[np.int64] = sums[np.searchsorted(at_s[known][order], times_s, side="right")]
        return which

    finished = np.where(requests["status"] == 0, requests["finish_s"], np.nan)
    prompts, outputs = requests["prompt_tokens"], requests["output_tokens"]
    prefill, decode = cluster.prices.prefill, cluster.prices.decode
    decodes = decode * earned(finished, outputs)
    bundled = prefill * earned(finished, prompts) + decodes
    separate = prefill * earned(requests["prefilled_s"], prompts) + decodes
    span = cluster.replicas * (times_s - start_s)
    with np.errstate(invalid="ignore", divide="ignore"):
        return {
            "time_s": times_s,
            "bundled": bundled,
            "separate": separate,
            "bundled_per_replica_s": bundled / span,
            "separate_per_replica_s": separate / span,
        }


def _beside_a_prefill(
    stays: Stays, prefill_replica: NDArray[np.uint32], replica: NDArray[np.uint32]
) -> NDArray[np.int64]:
    """How long each request decoded while its replica ran a prefill, of which it runs one at a time."""
    begin, end = stays.prefilling
    where = np.where(prefill_replica == NO_REPLICA, replica, prefill_replica)
    beside = np.zeros(begin.size, np.int64)
    order = np.lexsort((begin, where))
    edges = np.flatnonzero(np.diff(where[order])) + 1
    prefills = {int(where[rows[0]]): rows for rows in np.split(order, edges) if rows.size}
    decoders = np.argsort(replica, kind="stable")
    edges = np.flatnonzero(np.diff(replica[decoders])) + 1
    for rows in np.split(decoders, edges):
        own = prefills.get(int(replica[rows[0]])) if rows.size else None
        if own is None:
            continue
        starts, lengths = begin[own], (end - begin)[own]
        before = np.concatenate([[0], np.cumsum(lengths)])

        def until(
            instants: NDArray[np.int64],
            starts: NDArray[np.int64] = starts,
            lengths: NDArray[np.int64] = lengths,
            before: NDArray[np.int64] = before,
        ) -> NDArray[np.int64]:
            """The time that the replica's prefills took by an instant."""
            last = np.searchsorted(starts, instants, side="right") - 1
            some = np.maximum(last, 0)
            under_way = np.minimum(instants - starts[some], lengths[some])
            taken: NDArray[np.int64] = np.where(last >= 0, before[some] + under_way, 0)
            return taken

        beside[rows] = until(stays.decoding[1][rows]) - until(stays.decoding[0][rows])
    return beside


def _exact_sum(numbers: NDArray[np.int64]) -> int:
    """The sum of numbers below 2^62, beyond 64 bits if need be."""
    return (int((numbers >> 31).sum()) << 31) + int((numbers & (2**31 - 1)).sum())
