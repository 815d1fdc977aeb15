"""Confidence intervals from blocks of one recorded trace (delete-a-block jackknife).

A recorded trace cannot be drawn again, so its variation is estimated from its parts. The measured requests
are split into blocks of consecutive arrivals. The metric is recomputed without each block; the spread of the
results estimates its dependence on the sampled requests. This works for means, shares, throughputs and
percentiles, and for the difference of two systems on the same blocks.

Blocks must be long compared with the memory of a queue. If neighboring blocks are correlated, pairs of them
are joined, 16 to 8.

Coverage of 95 % intervals, in percent: differences between two M/D/1 queues, 400 traces per cell, by their
loads and the requests of a trace. Queues close to saturation require longer traces, and percentiles longer
ones than means.

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
"""Numbers of blocks of a trace, before and after joining pairs. With 32 blocks instead of 16, intervals are
too narrow: coverage is about 2 percentage points lower."""

LEAST_IN_BLOCK = 50
"""Minimum requests of a block."""

LEAST_BEYOND = 10
"""Minimum mean number of requests of a block beyond a percentile. They occur in bursts; with fewer, a trace
contains too few bursts."""

_CORRELATED = 1.645
"""Correlation of neighbors in units of 1/√blocks that independent blocks exceed with probability 1/20."""


def count_for(metric: Metric, requests: int) -> int | None:
    """The number of blocks for a metric. None if there are too few requests.

    A block has at least 50 requests, and on average at least 10 beyond the percentile: 8 blocks for a p99
    require 8,000 requests. A maximum has no interval, since it grows with the length of the trace.

    Example:
        >>> from inferq.experiments.comparison.blocks import count_for
        >>> from inferq.results.metric import Metric
        >>> [count_for(Metric.of(name), 2000) for name in ("ttft_mean", "ttft_p95", "ttft_p99")]
        [16, 8, None]
    """
    least = needed(metric, 1)
    return next((count for count in COUNTS if least is not None and requests >= count * least), None)


def needed(metric: Metric, blocks: int = COUNTS[-1]) -> int | None:
    """The requests that a number of blocks requires. None if no number is enough."""
    statistic = metric.statistic
    if statistic == "max":
        return None
    beyond = 100 - int(statistic[1:]) if statistic[1:].isdecimal() else 100 * LEAST_BEYOND
    return blocks * max(LEAST_IN_BLOCK, -(-100 * LEAST_BEYOND // beyond))


def edges(result: Result, count: int) -> NDArray[np.int64]:
    """The first rows of the blocks, and the end of the last block: `count + 1` numbers.

    Blocks have the same number of measured rows, up to one. Rows are those of the workload, which all systems
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
    """Pseudo-values of each metric, one per block.

    Their mean is the metric without its first-order bias. They are treated as independent samples.

    Args:
        result: the result of a run.
        metrics: the metrics; `itl` is skipped, since its histogram is not per request (see `of_histograms`).
        slo: as for `Result.summary`.
        of_class: class of requests. Default: all; cost and energy exist for all requests only.
        prices: as for `Result.summary`.
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
    """Pseudo-values of an inter-token latency metric, from a histogram per block.

    Values are interpolated within a bin, so that percentiles change when a block is left out. Percentiles of
    the result itself are upper edges of bins. No bin ends above the largest gap.

    Args:
        histograms: columns `lower_s`, `upper_s`, `count` of each block, in order.
        sums_s: sum of all gaps of each block.
        metric: a metric of `itl`.
    """
    statistic = metric.statistic
    lower_s, index = np.unique(
        np.concatenate([histogram["lower_s"] for histogram in histograms]), return_inverse=True
    )
    if statistic == "max" or lower_s.size == 0:
        return None
    upper_s, counts = np.zeros_like(lower_s), np.zeros((len(histograms), lower_s.size))
    # Blocks end their last bin at their own maximum.
    np.maximum.at(upper_s, index, np.concatenate([histogram["upper_s"] for histogram in histograms]))
    block = np.repeat(np.arange(len(histograms)), [histogram["lower_s"].size for histogram in histograms])
    np.add.at(counts, (block, index), np.concatenate([histogram["count"] for histogram in histograms]))
    whole = counts.sum(axis=0)
    total_s = math.fsum(sums_s)

    def statistic_of(bins: NDArray[np.float64], sum_s: float) -> float:
        gaps = bins.sum()
        if statistic == "mean" or gaps == 0:
            return float(sum_s / gaps) if gaps else math.nan
        reached = np.cumsum(bins)
        place = int(np.searchsorted(reached, gaps * int(statistic[1:]) / 100))
        inside = (gaps * int(statistic[1:]) / 100 - (reached[place] - bins[place])) / bins[place]
        return float(lower_s[place] + inside * (upper_s[place] - lower_s[place]))

    without = [
        statistic_of(whole - bins, total_s - sum_s) for bins, sum_s in zip(counts, sums_s, strict=True)
    ]
    return _pseudo(statistic_of(whole, total_s), np.array(without))


def joined(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], bool]:
    """Join neighboring blocks until they are uncorrelated; also return whether correlation remains."""
    while _correlation(values) > _CORRELATED / math.sqrt(values.size):
        if values.size // 2 < COUNTS[-1]:
            return values, True
        values = np.asarray(values.reshape(-1, 2).mean(axis=1))
    return values, False


def _correlation(values: NDArray[np.float64]) -> float:
    """The correlation of neighbors; 0 if all values are equal."""
    rest = values - values.mean()
    squares = float(rest @ rest)
    return float(rest[1:] @ rest[:-1]) / squares if squares > 0 else 0.0


def _rows(result: Result) -> NDArray[np.int64]:
    """The row of the workload of each request."""
    columns = result._tables.requests
    rows: NDArray[np.int64] = columns["job" if "job" in columns else "id"].astype(np.int64)
    return rows


def _pseudo(whole: float, without: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """Tukey's pseudo-values from the values without each block. None if one of them is missing."""
    values: NDArray[np.float64] = without.size * whole - (without.size - 1) * without
    return values if np.isfinite(values).all() else None


def _without_each(
    values: NDArray[np.float64], block: NDArray[np.int64], count: int, statistic: str
) -> NDArray[np.float64] | None:
    """Pseudo-values of the mean or a percentile of the finite values."""
    finite = np.isfinite(values)
    values, block = values[finite], block[finite]
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
    without = [_percentile(values[block != left_out], int(statistic[1:])) for left_out in range(count)]
    return _pseudo(_percentile(values, int(statistic[1:])), np.array(without))


def _percentile(ordered: NDArray[np.float64], percent: int) -> float:
    """A percentile with linear interpolation, as in `Result.summary`."""
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
    """Pseudo-values of a share of requests, or of a rate."""
    columns = result._tables.requests
    finished, failed = columns["status"] == STATUSES.index("finished"), has_failed(columns["status"])

    def total(which: NDArray[np.bool_], *weights: str) -> NDArray[np.float64]:
        """The number of requests of each block, or the sum of columns."""
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
    """Pseudo-values of the ratio of two sums over blocks. None if a denominator is 0."""
    rest = lower.sum() - lower
    if not (rest > 0).all():
        return None
    return _pseudo(float(upper.sum() / lower.sum()), (upper.sum() - upper) / rest)


def _reached_s(
    result: Result, span: NDArray[np.bool_], block: NDArray[np.int64], count: int
) -> NDArray[np.float64]:
    """Start times of the blocks, and the end of the last: the running maximum of finish times.

    The blocks partition the run, whether arrivals or service limit the throughput.
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
    """Pseudo-values of cost and energy. Constants have equal values."""
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
