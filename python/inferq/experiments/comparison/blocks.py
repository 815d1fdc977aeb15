"""Blocks of consecutive arrivals: how far may a number of one recorded trace be from the truth?

A trace that was recorded cannot be drawn again, so chance must be found inside it. Its measured requests are
cut into blocks of consecutive arrivals; the number is computed again without each block, and the spread of
what comes out tells how much it depends on which requests happened to come: the delete-a-block jackknife. It
works for means, shares, throughputs and percentiles alike, and for the difference of two systems that served
the same blocks.

It assumes that blocks are long beside what a queue remembers. Where neighboring blocks are alike, pairs of
them are joined, 16 to 8.

How often 95 % intervals held the truth, in percent: differences between two queues with Poisson arrivals and
equal services (M/D/1), 400 traces a cell, by the loads of the two and the requests in a trace. The nearer to
its limit a queue is, the longer a trace must be, and percentiles need more of it than means.

| loads | metric | 4,000 | 16,000 | 64,000 |
|---|---|---:|---:|---:|
| 0.5, 0.6 | mean | 95 | 95 | 93 |
| | p50 | 96 | 95 | 96 |
| | p99 | – | 90 | 91 |
| 0.7, 0.8 | mean | 92 | 92 | 95 |
| | p50 | 93 | 94 | 97 |
| | p99 | – | 82 | 92 |
| 0.85, 0.9 | mean | 84 | 93 | 93 |
| | p50 | 90 | 93 | 97 |
| | p99 | – | 71 | 81 |

Source: Quenouille (1949), Tukey (1958); for series Künsch (1989); for percentiles Shao and Wu (1989), whose
condition (a block has many more than √n of n values) blocks of n/16 meet from some thousand requests on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from inferq._lazy import NDArray, np
from inferq.results.costs import SECONDS_OF_HOUR, Bill, paid
from inferq.results.metric import Metric
from inferq.results.result import Result
from inferq.results.summary import in_time
from inferq.results.tables import STATUSES, has_failed
from inferq.systems.prices import Prices

COUNTS = (16, 8)
"""Into how many blocks a trace is cut, and what pairs of them are joined to. More of them make intervals that
look better known than they are: with 32 instead of 16 some 2 more of 100 intervals missed the truth."""

LEAST_IN_BLOCK = 50
"""Requests that a block has at least."""

LEAST_BEYOND = 10
"""Requests beyond a percentile that a block has on average at least. They come in bursts: with fewer, a trace
has met too few bursts to know how they differ."""

_ALIKE = 1.645
"""Correlation of neighbors, in units of 1/√blocks, that independent blocks exceed once in 20 times."""


def count_for(metric: Metric, requests: int) -> int | None:
    """Into how many blocks so many requests are cut for a metric; None where they are too few for any.

    A block has 50 requests at least, and 10 on average beyond the percentile that is asked: 8 blocks for a
    p99 need 8,000 requests. A maximum has no interval: it grows with the length of the trace.

    Example:
        >>> from inferq.experiments.comparison.blocks import count_for
        >>> from inferq.results.metric import Metric
        >>> [count_for(Metric.of(name), 2000) for name in ("ttft_mean", "ttft_p95", "ttft_p99")]
        [16, 8, None]
    """
    least = needed(metric, 1)
    return next((count for count in COUNTS if least is not None and requests >= count * least), None)


def needed(metric: Metric, blocks: int = COUNTS[-1]) -> int | None:
    """How many requests so many blocks need; None where no number is enough."""
    statistic = metric.statistic
    if statistic == "max":
        return None
    beyond = 100 - int(statistic[1:]) if statistic[1:].isdecimal() else 100 * LEAST_BEYOND
    return blocks * max(LEAST_IN_BLOCK, -(-100 * LEAST_BEYOND // beyond))


def edges(result: Result, count: int) -> NDArray[np.int64]:
    """The rows of the workload at which blocks begin, and the end of the last: `count + 1` numbers.

    Blocks hold equally many measured rows, but for one. Rows are those of the workload, which all systems
    share; a request of a network belongs to the row of its job.
    """
    rows = _rows(result)[result._tables.requests["measured"]]
    first, last = (int(rows.min()), int(rows.max()) + 1) if rows.size else (0, 0)
    return np.linspace(first, last, count + 1).round().astype(np.int64)


def pseudo_values(
    result: Result,
    metrics: Sequence[Metric],
    slo: Mapping[str, float | None] | None = None,
    of_class: str | None = None,
    prices: Prices | None = None,
) -> dict[Metric, NDArray[np.float64]]:
    """For each metric of requests that can be known from blocks, a number for each block.

    Their mean is the metric (without its bias of first order), their spread tells how well it is known: they
    are treated as independent samples.

    Args:
        result: of a run.
        metrics: those of `itl` are left out: gaps are kept in a histogram that does not know their requests;
            see `of_histograms`.
        slo: as of `Result.summary`.
        of_class: only requests of this class; None takes all, and money and energy are of all alone.
        prices: as of `Result.summary`.
    """
    columns = result._tables.requests
    keep = columns["measured"].copy()
    span = keep.copy()
    if of_class is not None:
        keep &= columns["class"] == result._tables.classes.index(of_class)
    rows = _rows(result)
    bill = None if prices is None else Bill.of(result._tables, result._served, prices)
    by_metric: dict[Metric, NDArray[np.float64]] = {}
    for metric in metrics:
        count = count_for(metric, int(keep.sum()))
        if count is None or metric.quantity == "itl" or (metric.needs_prices and of_class is not None):
            continue
        begins = edges(result, count)
        block = np.clip(np.searchsorted(begins, rows, side="right") - 1, 0, count - 1)
        if metric.unit == "s":
            column = columns[f"{metric.quantity}_s"]
            values = _without_each(column[keep], block[keep], count, metric.statistic)
        elif metric.needs_prices:
            assert bill is not None and prices is not None
            values = _of_bill(result, metric, bill, prices, span, block, count)
        else:
            values = _of_ratio(result, metric, keep, span, block, count, slo)
        if values is not None:
            by_metric[metric] = values
    return by_metric


def of_histograms(
    histograms: Sequence[Mapping[str, NDArray[Any]]], sums_s: Sequence[float], metric: Metric
) -> NDArray[np.float64] | None:
    """The same for a metric of gaps between tokens, of which each block has a histogram of its own.

    Inside a bin gaps are taken to lie evenly, so that a percentile moves a little when a block is left out;
    percentiles of the result itself are upper edges of bins.

    Args:
        histograms: of each block, columns `lower_s`, `upper_s`, `count`, in order.
        sums_s: of each block, the sum of all its gaps.
        metric: of `itl`.
    """
    statistic = metric.statistic
    lower_s, index = np.unique(np.concatenate([one["lower_s"] for one in histograms]), return_inverse=True)
    if statistic == "max" or lower_s.size == 0:
        return None
    upper_s, counts = np.empty_like(lower_s), np.zeros((len(histograms), lower_s.size))
    upper_s[index] = np.concatenate([one["upper_s"] for one in histograms])
    block = np.repeat(np.arange(len(histograms)), [one["lower_s"].size for one in histograms])
    np.add.at(counts, (block, index), np.concatenate([one["count"] for one in histograms]))
    whole = counts.sum(axis=0)
    total_s = math.fsum(sums_s)

    def of(held: NDArray[np.float64], sum_s: float) -> float:
        gaps = held.sum()
        if statistic == "mean" or gaps == 0:
            return float(sum_s / gaps) if gaps else math.nan
        reached = np.cumsum(held)
        place = int(np.searchsorted(reached, gaps * int(statistic[1:]) / 100))
        inside = (gaps * int(statistic[1:]) / 100 - (reached[place] - held[place])) / held[place]
        return float(lower_s[place] + inside * (upper_s[place] - lower_s[place]))

    kept = [of(whole - one, total_s - sum_s) for one, sum_s in zip(counts, sums_s, strict=True)]
    return _pseudo(of(whole, total_s), np.array(kept))


def joined(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], bool]:
    """The numbers of blocks, neighbors joined until they are not alike; and whether they still are."""
    while _correlation(values) > _ALIKE / math.sqrt(values.size):
        if values.size // 2 < COUNTS[-1]:
            return values, True
        values = np.asarray(values.reshape(-1, 2).mean(axis=1))
    return values, False


def _correlation(values: NDArray[np.float64]) -> float:
    """Of neighbors, 0 where all are equal."""
    rest = values - values.mean()
    squares = float(rest @ rest)
    return float(rest[1:] @ rest[:-1]) / squares if squares > 0 else 0.0


def _rows(result: Result) -> NDArray[np.int64]:
    """The row of the workload that each request comes from."""
    columns = result._tables.requests
    rows: NDArray[np.int64] = columns["job" if "job" in columns else "id"].astype(np.int64)
    return rows


def _pseudo(whole: float, kept: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """Tukey's pseudo-values; None where a part has no value."""
    values: NDArray[np.float64] = kept.size * whole - (kept.size - 1) * kept
    return values if np.isfinite(values).all() else None


def _without_each(
    values: NDArray[np.float64], block: NDArray[np.int64], count: int, statistic: str
) -> NDArray[np.float64] | None:
    """The pseudo-values of the mean or a percentile of what is there."""
    there = np.isfinite(values)
    values, block = values[there], block[there]
    if values.size == 0:
        return None
    if statistic == "mean":
        sums = np.bincount(block, values, minlength=count)
        sizes = np.bincount(block, minlength=count)
        if (sizes == values.size).any():
            return None
        return _pseudo(float(sums.sum() / values.size), (sums.sum() - sums) / (values.size - sizes))
    order = np.argsort(values, kind="stable")
    values, block = values[order], block[order]
    kept = [_percentile(values[block != one], int(statistic[1:])) for one in range(count)]
    return _pseudo(_percentile(values, int(statistic[1:])), np.array(kept))


def _percentile(ordered: NDArray[np.float64], percent: int) -> float:
    """Linear between the two nearest values, as in `Result.summary`."""
    if ordered.size == 0:
        return math.nan
    place = (ordered.size - 1) * percent / 100
    low = int(place)
    high = min(low + 1, ordered.size - 1)
    return float(ordered[low] + (place - low) * (ordered[high] - ordered[low]))


def _of_ratio(
    result: Result,
    metric: Metric,
    keep: NDArray[np.bool_],
    span: NDArray[np.bool_],
    block: NDArray[np.int64],
    count: int,
    slo: Mapping[str, float | None] | None,
) -> NDArray[np.float64] | None:
    """The pseudo-values of a share of requests, or of something per second."""
    columns = result._tables.requests
    finished, failed = columns["status"] == STATUSES.index("finished"), has_failed(columns["status"])

    def total(which: NDArray[np.bool_], *weights: str) -> NDArray[np.float64]:
        """The sum over the requests of each block, of 1 or of some columns."""
        rows = keep & which
        each = np.ones(int(rows.sum())) if not weights else sum(columns[name][rows] * 1.0 for name in weights)
        return np.bincount(block[rows], each, minlength=count).astype(np.float64)

    if metric.name == "failed_share":
        upper, lower = total(failed), total(finished | failed)
    elif metric.name == "hit_rate":
        if not result.has_prefix_cache:
            return None
        admitted = ~np.isnan(columns["admitted_s"])
        upper, lower = total(admitted, "cached_tokens"), total(admitted, "prompt_tokens")
    else:
        lower = np.diff(_reached_s(result, span, block, count))
        if metric.name == "request_goodput":
            upper = total(in_time(result._tables, slo, columns))
        else:
            weights = {
                "request_throughput": (),
                "output_throughput": ("output_tokens",),
                "total_token_throughput": ("prompt_tokens", "output_tokens"),
            }[metric.name]
            upper = total(finished, *weights)
    return _of_sums(upper, lower)


def _of_sums(upper: NDArray[np.float64], lower: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """The pseudo-values of the ratio of two sums over blocks; None where the rest of a block has none."""
    rest = lower.sum() - lower
    if not (rest > 0).all():
        return None
    return _pseudo(float(upper.sum() / lower.sum()), (upper.sum() - upper) / rest)


def _reached_s(
    result: Result, span: NDArray[np.bool_], block: NDArray[np.int64], count: int
) -> NDArray[np.float64]:
    """When blocks begin and the last of them ends: by how much each moves the last finish of all before it.

    All blocks together make the whole, whether arrivals or the service set the pace.
    """
    columns = result._tables.requests
    last_s = np.full(count, -math.inf)
    over = span & (columns["status"] == STATUSES.index("finished"))
    np.maximum.at(last_s, block[over], columns["finish_s"][over])
    first_s = columns["arrival_s"][span].min()
    return np.concatenate([[first_s], np.maximum.accumulate(np.maximum(last_s, first_s))])


def _of_bill(
    result: Result,
    metric: Metric,
    bill: Bill,
    prices: Prices,
    span: NDArray[np.bool_],
    block: NDArray[np.int64],
    count: int,
) -> NDArray[np.float64] | None:
    """The pseudo-values of money and energy; what is the same for every block has equal ones."""
    constant = {"gpus": bill.gpus, "nodes": bill.nodes, "cost_per_hour": bill.per_hour}
    if metric.name in constant:
        return np.full(count, float(constant[metric.name]))
    columns = result._tables.requests
    served = span & (columns["status"] == STATUSES.index("finished"))
    ends_s = _reached_s(result, span, block, count)
    seconds = np.diff(ends_s)
    if metric.name == "revenue_per_hour":
        pays = paid(result._tables, prices)
        return _of_sums(_summed(block, count, pays), seconds / SECONDS_OF_HOUR)
    takes = [bill.mean_watts(first, last) for first, last in pairwise(ends_s.tolist())]
    joules = seconds * np.array(takes)
    if metric.name == "watts":
        return _of_sums(joules, seconds)
    upper = joules if metric.name.startswith("joules") else seconds * bill.per_hour / SECONDS_OF_HOUR
    if metric.name.endswith("_request"):
        return _of_sums(upper, _summed(block, count, served * 1.0))
    return _of_sums(1e6 * upper, _summed(block, count, served * columns["output_tokens"]))


def _summed(block: NDArray[np.int64], count: int, each: NDArray[np.float64]) -> NDArray[np.float64]:
    """The sum over the requests of each block."""
    return np.bincount(block, each, minlength=count).astype(np.float64)
