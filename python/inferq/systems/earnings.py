"""Where were the requests of a cluster under gate and route, and what did they pay?

Over slots the core keeps these sums while it runs; over real iterations they follow from the rows of the
requests. Instants are taken to whole nanoseconds, so that every sum is exact and the same on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from inferq._lazy import np
from inferq.results.result import NO_REPLICA

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from inferq.systems.gate_and_route import GateAndRoute

Columns = dict[str, "NDArray[Any]"]

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
    tables: Mapping[str, Any], cluster: GateAndRoute, classes: int, start_s: float, end_s: float
) -> dict[str, Columns]:
    """The tables `occupancy` and `revenue` of a run over real iterations.

    Args:
        tables: what the core returned.
        cluster: under gate and route.
        classes: how many there are.
        start_s: from when averages and revenue count.
        end_s: until when.
    """
    start_ns, end_ns = (round(instant * 1e9) for instant in (min(start_s, end_s), end_s))
    sampled = np.unique(tables["timeline"]["time_s"])
    times_s = np.append(sampled[sampled < end_s], end_s)
    return {
        "occupancy": occupancy(tables["requests"], classes, cluster.replicas, start_ns, end_ns),
        "revenue": revenue(tables["requests"], cluster, times_s[times_s > start_s], start_s),
    }


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
