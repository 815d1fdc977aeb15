"""GateAndRoute: a cluster with a gate for prefills, a router for decodes, and revenue."""

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
    """Target numbers of requests per replica, by class and state.

    The solution of a linear program such as lin2026 (40), (42) or (49); `GateAndRoute` steers towards it. All
    numbers are per replica, by the names of the workload's classes (`"default"` if it has none), rounded to
    12 decimal places, because further digits are solver noise. All tables must have the same classes.

    Source: lin2026 section 3.1, x* = `prefill`, y_m* = `mixed`, y_s* = `solo`, q_p* = `prefill_queue`,
        q_d* = `decode_queue`.

    Args:
        prefill: running prefills; at most 1 in total, because a replica runs one at a time.
        mixed: decodes concurrent with a prefill; required by the routers `"randomized"` and `"general"`.
        solo: decodes on a replica without a prefill; required by the same routers.
        prefill_queue: requests waiting for prefill. Required by the gate `"queue"`; breaks ties of the gate
            `"occupancy"` (None: all 0).
        decode_queue: requests waiting for decode; for comparison only.

    Raises:
        ConfigError: a number outside 0 to 1,000,000, a sum of prefills above 1, tables with different
            classes; it names table and class.

    Example:
        >>> import inferq as iq
        >>> iq.research.Allocation(prefill={"chat": 0.25, "code": 0.5}).prefill["code"]
        0.5
    """

    part: ClassVar[str | None] = "allocation"

    prefill: Mapping[str, float]
    mixed: Mapping[str, float] | None = None
    solo: Mapping[str, float] | None = None
    prefill_queue: Mapping[str, float] | None = None
    decode_queue: Mapping[str, float] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the tables as JSON-ready values."""
        return fields_of(self)


class Planned:
    """A plan with an `Allocation`, from `inferq.theory.allocation`."""

    __slots__ = ()

    @property
    def allocation(self) -> Allocation:
        """The target numbers of requests per replica."""
        raise NotImplementedError

    def check_planned_for(self, cluster: GateAndRoute) -> None:
        """Raise a `ConfigError` for a cluster that differs from the planned one; it names the field."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class GateAndRoute(Description):
    """A cluster with a gate for prefills and a router for decodes.

    A replica has `slots` slots. At most one holds a prefill, and all decodes have one of two speeds: with a
    prefill an iteration takes τ = alpha + beta·`chunk` seconds, else `solo` seconds. With
    `service="exponential"` a prefill of P tokens takes an exponential time of mean (P / `chunk`)·τ, a decode
    of D tokens one of mean D·τ with a prefill and D·`solo` without, with each request's own P and D. Waiting
    requests abandon after an exponential time; patience is drawn separately for each of the two queues.

    With `service="tokens"` the same control applies to real iterations: an iteration computes a chunk of the
    prefill and a token of each decode (`SlotGreedy(chunk=…)`, `first_token="decode"`), and new requests join
    with the next iteration. The hand-off of keys and values takes no time; with a limited `kv`, requests that
    do not fit leave memory. The last chunk of a prompt takes the time of its tokens, which can be below τ.
    `Result.requests`, `itl`, `iterations` and the rest are then as for any cluster, and `Result.timeline` has
    a row for each replica.

    **Plan.** With `planned=True` the first M = ⌈n · Σ `allocation.prefill`⌉ replicas are *mixed*: each keeps
    one slot for prefills and decodes in the others. The rest are *solo* and only decode. With `planned=False`
    every replica runs a prefill and decodes, at most `slots` in total.

    **Gate**: the class that is admitted when a replica can begin a prefill, first come, first served within
    it. X_i prefills of class i run, Q_i requests of it wait, n is `replicas`.

    | `gate` | the class |
    |---|---|
    | `"occupancy"` | least (X_i − n·x_i*) / x_i*; ties: largest Q_i − n·q_p,i*; x_i* = 0 is last (4.1) |
    | `"queue"` | largest Q_i − n·q_p,i*: our interpretation of "queue-length based"; 6.3 has no formula |
    | `"priority"` | largest mean output over mean prompt of the class in the workload (4.2.1) |
    | `"fcfs"` | the class of the request with the longest wait |

    Remaining ties go to the first class of the workload. The replica is any that can begin a prefill.

    **Router**: the slot of a decode after its prefill. A freed slot takes the head of a buffer.

    | `router` | the slot |
    |---|---|
    | `"greedy"` | any free solo slot, else any free mixed slot, else one buffer (4.1) |
    | `"randomized"` | solo with probability p_s,i, else mixed; a buffer for each pool (5.1) |
    | `"general"` | the same, and a freed slot draws its class (EC.6) |
    | `"immediate"` | the slot of its prefill, immediately; requires `planned=False` |
    | `"fcfs"` | any free slot, if no prefill can begin; one buffer; requires `planned=False` |

    Without a plan, greedy treats a replica without a running prefill as solo. p_s,i = (y_s,i* / solo) /
    (y_s,i* / solo + y_m,i* / τ), and 1 if both are 0. Section 5.1 also draws "upon decode completion",
    when no request needs routing; here the only draw is at the end of the prefill.

    **The paper's policies**, of section 6.3 unless stated otherwise:

    | policy | `gate` | `router` | `planned` |
    |---|---|---|---|
    | GG-SP, gate-and-route (4.1) | `"occupancy"`, or `"queue"` in the words of 6.3 | `"greedy"` | True |
    | FI-WSP, "Sarathi" | `"fcfs"` | `"immediate"` | False |
    | GI-WSP | `"queue"` or `"occupancy"` | `"immediate"` | False |
    | GF-WSP | `"queue"` or `"occupancy"` | `"fcfs"` | False |
    | FG-SP | `"fcfs"` | `"greedy"` | True |
    | SLI-aware (5.1) | `"occupancy"` | `"randomized"` | True |
    | general SLI-aware (EC.6) | `"occupancy"` | `"general"` | True |
    | prioritize-and-route (4.2.1) | `"priority"` | `"greedy"` | True |

    `inferq.simulate(workload, GateAndRoute(…))` accepts `seed`, `horizon_s`, `warmup`, `timeline_s` and
    `progress`. `warmup` is the start of averages and revenue: a time (`"30s"`), or a number of requests whose
    arrivals precede it. `Result.occupancy` and `Result.revenue` are the quantities of the paper's figures. In
    `Result.requests`, `admitted_s` is the start of the prefill, `prefilled_s` its end (and also
    `first_token_s` with exponential service, which has no tokens), `handoff_s` the wait for a decode slot,
    `prefill_replica` and `replica` the replicas of both phases.

    Two policies with the same seed serve the same requests with the same work: the draws of a request depend
    on its row only. The rest of a decode is not redrawn when its speed changes; because an exponential is
    memoryless, this is the paper's model in distribution.

    Source: lin2026 sections 2.3 and 4 to 6. τ_mix(C) = alpha + beta·C, γ = 1/solo, B = `slots`, C = `chunk`,
        θ = `abandonment`.

    Args:
        allocation: targets per replica, or the plan of `inferq.theory.allocation` for the same timing, slots,
            chunk, prices and abandonment. None: neither plan, gate nor router uses one.
        replicas: n, at least 1.
        timing: the two speeds.
        slots: B, at least 1, with `planned` at least 2.
        chunk: C in tokens, at least 1.
        prices: prices of tokens.
        abandonment: rate per second at which waiting requests abandon: one rate, or one for each class. None
            or 0: never.
        gate: selects the class of the next prefill.
        router: selects the slot of a decode.
        planned: reserve replicas for prefills.
        service: `"exponential"`, or `"tokens"` for real iterations.
        kv: the KV cache of each replica; used by `service="tokens"` only.

    Raises:
        ConfigError: a number outside its range, inconsistent parts, a table that gate or router requires, a
            plan for another cluster; in `simulate`, the classes of workload and tables differ.

    Example:
        Two replicas, one of them for prefills; no request waits for a decode slot:

        >>> import inferq as iq
        >>> cluster = iq.research.GateAndRoute(
        ...     iq.research.Allocation(prefill={"default": 0.5}),
        ...     replicas=2,
        ...     timing=iq.research.MixedSolo(alpha=0.0174, beta=6.2e-5, solo=0.022),
        ...     slots=16,
        ...     chunk=256,
        ...     prices=iq.Prices(prefill=0.1, decode=0.2),
        ... )
        >>> work = {"arrival_s": [0.0, 0.1], "prompt_tokens": [300, 3000], "output_tokens": [1000, 400]}
        >>> result = iq.simulate(work, cluster, seed=1)
        >>> result.requests["handoff_s"].to_list(), result.revenue["bundled"][-1]
        ([0.0, 0.0], 610.0)
        >>> iq.research.GateAndRoute.from_json(cluster.to_json()) == cluster
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
        """Read the cluster from a table, the inverse of `to_json()`.

        Args:
            description: the `kind` and the fields; `kv` may be the text `"unlimited"`.

        Raises:
            ConfigError: an unknown or missing field or kind, with its path.
        """
        return read("gate_and_route", description, (cls,))

    def __post_init__(self) -> None:
        """Replace a plan by its allocation, then check every field."""
        plan = self.allocation if isinstance(self.allocation, Planned) else None
        if plan is not None:
            object.__setattr__(self, "allocation", plan.allocation)
        Description.__post_init__(self)
        if plan is not None:
            plan.check_planned_for(self)


_PLACES = ("prefill_queue", "prefill", "decode_queue", "mixed", "solo")


@dataclass(frozen=True, slots=True)
class StateIntervals:
    """The intervals of each request's states in nanoseconds; empty if the state was not reached."""

    queued: tuple[NDArray[np.int64], NDArray[np.int64]]
    prefilling: tuple[NDArray[np.int64], NDArray[np.int64]]
    buffered: tuple[NDArray[np.int64], NDArray[np.int64]]
    decoding: tuple[NDArray[np.int64], NDArray[np.int64]]

    @classmethod
    def of(cls, requests: Mapping[str, NDArray[Any]], start_ns: int, end_ns: int) -> StateIntervals:
        """Compute the intervals within a time range.

        Args:
            requests: the columns of `Result.requests`.
            start_ns: start of the range.
            end_ns: end of the run, which is also the end of unfinished requests.
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
    """Compute the tables `occupancy` and `revenue` of a run over real iterations.

    With exponential service the core computes these sums; over real iterations they follow from the requests.
    Times are rounded to nanoseconds, so that every sum is exact and the same on every machine.

    Args:
        requests: the columns of `Result.requests`.
        timeline: the columns of `Result.timeline`.
        cluster: the cluster.
        classes: number of classes.
        start_s: start of averages and revenue.
        end_s: end of averages and revenue.
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
    """Time averages per replica, the columns of `Result.occupancy`; NaN if no time was measured."""
    intervals = StateIntervals.of(requests, start_ns, end_ns)
    span_ns = (end_ns - start_ns) * replicas
    concurrent = _concurrent_with_prefill(intervals, requests["prefill_replica"], requests["replica"])
    of_place = dict.fromkeys(_PLACES, np.zeros(0, np.int64))
    of_place["prefill_queue"] = intervals.queued[1] - intervals.queued[0]
    of_place["prefill"] = intervals.prefilling[1] - intervals.prefilling[0]
    of_place["decode_queue"] = intervals.buffered[1] - intervals.buffered[0]
    of_place["mixed"] = concurrent
    of_place["solo"] = intervals.decoding[1] - intervals.decoding[0] - concurrent
    table: Columns = {"class": np.arange(classes, dtype=np.uint32)}
    for name, lengths in of_place.items():
        totals = [_exact_sum(lengths[requests["class"] == code]) for code in range(classes)]
        table[name] = np.array([total / span_ns if span_ns else np.nan for total in totals])
    return table


def revenue(
    requests: Mapping[str, NDArray[Any]], cluster: GateAndRoute, times_s: NDArray[np.float64], start_s: float
) -> Columns:
    """Cumulative revenue since `start_s` at the given times, the columns of `Result.revenue`."""

    def earned(at_s: NDArray[np.float64], tokens: NDArray[np.int32]) -> NDArray[np.int64]:
        known = at_s >= start_s  # NaN, for events that did not happen, is excluded
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


def _concurrent_with_prefill(
    intervals: StateIntervals, prefill_replica: NDArray[np.uint32], replica: NDArray[np.uint32]
) -> NDArray[np.int64]:
    """The time that each request decoded while its replica ran a prefill (one at a time)."""
    begin, end = intervals.prefilling
    where = np.where(prefill_replica == NO_REPLICA, replica, prefill_replica)
    concurrent = np.zeros(begin.size, np.int64)
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
            """The total time of the replica's prefills up to a time."""
            last = np.searchsorted(starts, instants, side="right") - 1
            some = np.maximum(last, 0)
            under_way = np.minimum(instants - starts[some], lengths[some])
            taken: NDArray[np.int64] = np.where(last >= 0, before[some] + under_way, 0)
            return taken

        concurrent[rows] = until(intervals.decoding[1][rows]) - until(intervals.decoding[0][rows])
    return concurrent


def _exact_sum(numbers: NDArray[np.int64]) -> int:
    """The exact sum of numbers below 2^62, which may exceed 64 bits."""
    return (int((numbers >> 31).sum()) << 31) + int((numbers & (2**31 - 1)).sum())
