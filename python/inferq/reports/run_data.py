"""Data of the charts of a run: a few hundred values, whatever the size of the run."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from inferq._lazy import NDArray, np, pl
from inferq.display.text import percent, seconds
from inferq.errors import ConfigError, TraceError
from inferq.reports.identity import load_of
from inferq.results.replicas import Replicas
from inferq.results.result import Result
from inferq.results.tables import FAILED
from inferq.systems.cluster import Cluster
from inferq.systems.pools import pools_of
from inferq.theory.bounds.stability import Stability, stability
from inferq.theory.demands.demand import Demand
from inferq.workload.load import Load

MEASURES = {
    "ttft": "TTFT: arrival to first token",
    "itl": "ITL: gap between two tokens",
    "tpot": "TPOT: mean gap of a request",
    "e2e": "E2E: arrival to last token",
    "queue": "Queue: wait for admission",
}
"""The latencies of percentile curves."""

MOST_CLASSES = 6
"""More curves are not distinguishable."""

POINTS = 250
"""Points of a line."""

BINS = 60
"""Bars of a histogram."""

_INNER = (0.5, 0.9, 0.95, 0.99)
"""Percentiles of the summary, which every curve contains."""

OF_SLOTS = ("prefill_queue", "decode_queue", "prefill", "mixed", "solo")
"""Locations of requests with `GateAndRoute`."""


def theory(result: Result) -> Stability | str:
    """Stability of the scenario of a run at its whole load, or the reason why theory does not apply.

    The long-run rate of a `TimeVarying` process without a period is that of its last step. A run is evaluated
    at the rate of all its arrivals instead, as if they repeated.
    """
    if result._system is None or result._workload is None:
        return "a stored run does not keep the system"
    try:
        if result.has_jobs:
            return stability(result._workload, result._system)
        demand = Demand.of(result._workload, needs_rate=False)
        if demand.busiest > 1 and demand.rate is not None and (load := load_of(result)) is not None:
            most = demand.rate * demand.busiest
            demand = replace(demand.at_rate(load.rate_per_s), busiest=max(1.0, most / load.rate_per_s))
        return stability(demand, result._system)
    except (ConfigError, TraceError) as error:
        return str(error)


def at_peak(result: Result, load: Load) -> dict[str, float | None]:
    """P99 of TTFT and E2E of the measured requests that arrived in the busiest window, in seconds."""
    arrived = pl.col("arrival_s").is_between(load.start_s, load.start_s + load.window_s, closed="left")
    p99 = pl.col("ttft_s", "e2e_s").quantile(0.99, "linear")
    rows = result.requests.lazy().filter("measured", arrived).select(p99).collect()
    return rows.row(0, named=True)


def sizes(result: Result) -> list[tuple[str, int]]:
    """Measured requests of each class, the largest class first."""
    counts = result.requests.lazy().filter("measured").group_by("class").agg(pl.len().alias("requests"))
    named = counts.collect().with_columns(pl.col("class").cast(pl.String))
    return named.sort("requests", "class", descending=[True, False]).rows()


def classes(result: Result) -> list[str]:
    """The `MOST_CLASSES` largest classes of the measured requests."""
    return [name for name, _ in sizes(result)[:MOST_CLASSES]]


def jobs(result: Result) -> list[dict[str, Any]]:
    """The measured jobs of a network by workflow, then all of them.

    Returns:
        `workflow` (None for all), `completed`, `failed`, and seconds from arrival to the last token (None if
        none finished): `mean`, `p50`, `p90`, `p95`, `p99`, `max`, percentiles as in `Result.summary`.
    """
    measured = result.jobs.filter("measured")
    rows = []
    for name in (*measured["workflow"].unique().sort().to_list(), None):
        of_name = measured if name is None else measured.filter(pl.col("workflow") == name)
        took_s = of_name["e2e_s"].drop_nulls()
        quantiles = {f"p{p}": took_s.quantile(p / 100, "linear") for p in (50, 90, 95, 99)}
        rows.append(
            {
                "workflow": name,
                "completed": int((of_name["status"] == "finished").sum()),
                "failed": int(of_name["status"].is_in(FAILED).sum()),
                "mean": took_s.mean(),
                **quantiles,
                "max": took_s.max(),
            }
        )
    return rows


def limits(result: Result) -> dict[str, list[float]]:
    """The objectives that all requests of the workload share, in seconds by latency.

    `ttft` bounds first tokens, `itl` the longest gap of a request.
    """
    limits = {}
    for measure in ("ttft", "itl"):
        column = result._tables.objective(f"{measure}_slo_s")
        if column is not None and column.size and (column == column[0]).all():
            limits[measure] = [float(column[0])]
    return limits


def latencies(result: Result, names: list[str] | None) -> pl.DataFrame:
    """Percentile curves of the measured requests of some classes; None: of all requests.

    Returns:
        `measure`, `class`, `share` and `seconds` (the percentile, as in `Result.summary`). Curves end before
        the slowest request. The values of ITL are upper edges of the histogram.
    """
    columns = [f"{measure}_s" for measure in MEASURES if measure != "itl"]
    measured = result.requests.lazy().filter("measured").select("class", *columns).collect()
    parts = []
    for name in [""] if names is None else names:
        of_class = measured if names is None or len(names) == 1 else measured.filter(pl.col("class") == name)
        for measure in MEASURES:
            if measure == "itl":
                curve = _gap_curve(_bins(result, None if names is None else [name]))
            else:
                values = np.sort(of_class[f"{measure}_s"].drop_nulls().to_numpy())
                shares = _shares(values.size)
                curve = pl.DataFrame({"share": shares, "seconds": _linear(values, shares)})
            if curve.is_empty():
                continue
            named = pl.lit(measure).alias("measure"), pl.lit(name).alias("class")
            parts.append(curve.select(*named, "share", "seconds"))
    schema = {"measure": pl.String, "class": pl.String, "share": pl.Float64, "seconds": pl.Float64}
    return pl.concat(parts) if parts else pl.DataFrame(schema=schema)


def _gap_curve(bins: pl.DataFrame) -> pl.DataFrame:
    """The percentile curve of a histogram of gaps."""
    counts = bins.group_by("upper_s").agg(pl.col("count").sum()).sort("upper_s")
    reached = counts["count"].cum_sum().to_numpy()
    total = int(reached[-1]) if reached.size else 0
    shares = _shares(min(total, 10**4))  # gaps beyond P99.99 are matters of single requests
    places = np.searchsorted(reached, shares * total).clip(0, max(0, reached.size - 1))
    return pl.DataFrame({"share": shares, "seconds": counts["upper_s"].to_numpy()[places]})


def _shares(values: int) -> NDArray[np.float64]:
    """Shares in equal steps of log(1 − share), so that the tail is as dense as the start."""
    if not values:
        return np.empty(0)
    last = 1 - 1 / values
    tail = 1 - np.power(10.0, -np.linspace(0.0, math.log10(values), 60))
    return np.unique(np.concatenate([tail.clip(0, last), [q for q in _INNER if q <= last]]))


def _linear(ordered: NDArray[np.float64], shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Percentiles of sorted values."""
    if not ordered.size:
        return np.empty(0)
    place = shares * (ordered.size - 1)
    below = np.floor(place).astype(np.int64)
    above = np.minimum(below + 1, ordered.size - 1)
    return np.asarray(ordered[below] + (place - below) * (ordered[above] - ordered[below]))


def over_time(result: Result) -> pl.DataFrame:
    """The timeline summed over all replicas, in at most `POINTS` intervals.

    Returns:
        `time_s` (middle of the interval), and for every column of the timeline the mean, minimum (`…_low`)
        and maximum (`…_high`) over the samples of the interval. With `GateAndRoute` columns are summed over
        classes.
    """
    names = [name for name in result.timeline.columns if name not in ("time_s", "replica", "class")]
    summed = result.timeline.group_by("time_s").agg(pl.col(names).sum()).sort("time_s")
    return _stretched(summed, names)


def has_hit_rates(result: Result) -> bool:
    """Whether the timeline has cache hits; that of `GateAndRoute` has none."""
    return result.has_prefix_cache and "cached_tokens_per_s" in result.timeline.columns


def hit_rates(result: Result, steps: int = 60) -> pl.DataFrame:
    """The cache hit rate over time, in few intervals so that each has prompts.

    Returns:
        `time_s` (middle of the interval), `hit_rate` (prompt tokens found in the prefix cache, of those found
        or computed on all replicas), `hit_rate_low` and `hit_rate_high` (lowest and highest replica).
        Intervals without prompts are left out.
    """
    hits, tokens = pl.col("found").sum(), (pl.col("found") + pl.col("computed")).sum()
    end_s = max(float(result.timeline["time_s"].max() or 0.0), 1e-300)  # type: ignore[arg-type]
    parts = (
        result.timeline.select(
            "replica",
            place=(pl.col("time_s") / end_s * steps).ceil().clip(1, steps),
            found="cached_tokens_per_s",
            computed="prefill_tokens_per_s",
        )
        .group_by("place", "replica")
        .agg(hits, pl.col("computed").sum())
        .filter(pl.col("found") + pl.col("computed") > 0)
    )
    each = pl.col("found") / (pl.col("found") + pl.col("computed"))
    shares = {"hit_rate": hits / tokens, "hit_rate_low": each.min(), "hit_rate_high": each.max()}
    return (
        parts.group_by("place")
        .agg(**shares)
        .sort("place")
        .select((pl.col("place") - 0.5).alias("time_s") / steps * end_s, *shares)
    )


def replicas(result: Result) -> pl.DataFrame:
    """Open and paid replicas over time, as steps.

    Returns:
        `time_s`, `open`, `paid`: one row per change; for more than 2 · `POINTS` changes, at equal distances.
        Empty for a run without an autoscaler and without failures.
    """
    seen = Replicas.of(result._tables)
    if seen is None:
        return pl.DataFrame(schema={"time_s": pl.Float64, "open": pl.Int64, "paid": pl.Int64})
    steps = seen.over_time
    if steps.height <= 2 * POINTS:
        return steps
    at_s = np.linspace(0.0, float(steps["time_s"][-1]), 2 * POINTS)
    even = pl.DataFrame({"time_s": at_s}).join_asof(steps, on="time_s", strategy="backward")
    return even.drop_nulls()


def kv_tokens(result: Result) -> int | None:
    """Tokens of KV cache of all replicas; None if one of them is unlimited."""
    if result._system is None:
        return None
    tokens = 0
    for pool in pools_of(result._system):
        for engine, count in zip(pool.engines, pool.counts, strict=True):
            if engine.kv.tokens is None:
                return None
            tokens += engine.kv.tokens * count
    return tokens


def kv_use(result: Result) -> float | None:
    """The mean share of the KV cache in use over the samples; None if unlimited or without samples.

    With an autoscaler the cache is that of the mean number of paid replicas.
    """
    tokens, timeline = kv_tokens(result), result.timeline
    if tokens and isinstance(result.system, Cluster) and result.system.autoscaler is not None:
        paid = result.replica_s / max(float(result.totals["end_s"]), 1e-300)
        tokens = max(1, round(tokens * paid / result.system.places))
    if not tokens or "kv_used_tokens" not in timeline.columns or timeline.is_empty():
        return None
    return float(timeline["kv_used_tokens"].sum()) / timeline["time_s"].n_unique() / tokens


def waiting(result: Result) -> pl.DataFrame:
    """Requests waiting for admission at a replica, in at most `POINTS` intervals.

    Returns:
        `time_s`, `mean` (over replicas and samples of the interval) and `most` (maximum over replicas and
        samples). With `GateAndRoute`, whose queues are in front of the cluster: `time_s`, `class` and `mean`
        of prefill and decode queue together.
    """
    timeline = result.timeline
    if "class" in timeline.columns:
        queued = timeline.select("time_s", "class", queue=pl.col("prefill_queue") + pl.col("decode_queue"))
        parts = [
            _stretched(part.select("time_s", "queue").sort("time_s"), ["queue"]).select(
                "time_s", pl.lit(str(name)).alias("class"), pl.col("queue").alias("mean")
            )
            for (name,), part in queued.group_by("class", maintain_order=True)
        ]
        return pl.concat(parts)
    over = timeline.group_by("time_s").agg(
        pl.col("waiting").mean().alias("mean"), pl.col("waiting").max().cast(pl.Float64).alias("most")
    )
    stretches = _stretched(over.sort("time_s"), ["mean", "most"])
    return stretches.select("time_s", "mean", pl.col("most_high").alias("most"))


def _stretched(samples: pl.DataFrame, names: list[str]) -> pl.DataFrame:
    """Samples in order of time, grouped into at most `POINTS` intervals."""
    each = -(-samples.height // POINTS) or 1
    place = pl.int_range(pl.len()) // each
    return (
        samples.with_columns(pl.col(names).cast(pl.Float64))
        .group_by(place.alias("place"))
        .agg(
            ((pl.col("time_s").first() + pl.col("time_s").last()) / 2).alias("time_s"),
            pl.col(names).mean(),
            pl.col(names).min().name.suffix("_low"),
            pl.col(names).max().name.suffix("_high"),
        )
        .sort("place")
        .drop("place")
    )


def gaps(result: Result, names: list[str] | None) -> pl.DataFrame:
    """The histogram of token gaps in at most `BINS` bins of equal width on a logarithmic scale.

    Gaps of 0 s are left out, because a logarithmic scale cannot show them.

    Args:
        result: a run.
        names: classes; None combines all classes.

    Returns:
        `class`, `lower_s`, `upper_s`, `share` (of the gaps of the class), `label` (the same as text).
    """
    bins = _bins(result, names).filter(pl.col("upper_s") > 0)
    if bins.is_empty():
        numbers = dict.fromkeys(("lower_s", "upper_s", "share"), pl.Float64)
        return pl.DataFrame(schema={"class": pl.String, **numbers, "label": pl.String})
    edges_s = bins["upper_s"].to_numpy()
    least, most = math.log10(edges_s.min()), math.log10(edges_s.max())
    step = max((most - least) / (BINS - 1), math.log10(1 + 1 / 64))
    place = ((pl.col("upper_s").log10() - least) / step).round()
    share = pl.col("count") / pl.col("count").sum().over("class")
    shares = (
        bins.group_by("class", place.alias("place"))
        .agg(pl.col("count").sum())
        .with_columns(share=share)
        .sort("class", "place")
        .select(
            "class",
            lower_s=10.0 ** (least + (pl.col("place") - 0.5) * step),
            upper_s=10.0 ** (least + (pl.col("place") + 0.5) * step),
            share="share",
        )
    )
    words = [
        f"{seconds(row['lower_s'])} to {seconds(row['upper_s'])}: {percent(row['share'])} of the gaps"
        for row in shares.rows(named=True)
    ]
    return shares.with_columns(pl.Series("label", words, dtype=pl.String))


def gap_percentiles(result: Result, names: list[str] | None) -> pl.DataFrame:
    """P50 and P99 of the token gaps as in the summary, if above 0: `class`, `percentile`, `seconds`."""
    every, parts = _bins(result, names), []
    for name in [""] if names is None else names:
        bins = every.filter(pl.col("class") == name).group_by("upper_s").agg(pl.col("count").sum())
        if bins.is_empty():
            continue
        bins = bins.sort("upper_s")
        reached, total = bins["count"].cum_sum(), int(bins["count"].sum())
        for percentile in (50, 99):
            place = reached.search_sorted(-(-percentile * total // 100))
            parts.append((name, f"p{percentile}", bins["upper_s"][int(place)]))
    schema = {"class": pl.String, "percentile": pl.String, "seconds": pl.Float64}
    return pl.DataFrame(parts, schema=schema, orient="row").filter(pl.col("seconds") > 0)


def _bins(result: Result, names: list[str] | None) -> pl.DataFrame:
    """The bins of the token gaps of some classes; None combines all under an empty class name."""
    totals = dict(zip(result._tables.classes, result._tables.itl_totals, strict=True))
    max_s = {name: total["max_s"] for name, total in totals.items() if total["count"]}
    bins = result.itl.with_columns(pl.col("class").cast(pl.String))
    if names is None:
        most = pl.lit(max(max_s.values(), default=0.0))
        return bins.with_columns(pl.min_horizontal("upper_s", most), pl.lit("").alias("class"))
    most = pl.col("class").replace_strict(max_s, default=0.0, return_dtype=pl.Float64)
    bins = bins.filter(pl.col("class").is_in(names))
    return bins.with_columns(pl.min_horizontal("upper_s", most))


def rates(result: Result, steps: int = 100) -> pl.DataFrame:
    """Arrivals and completions per second, over equal intervals of the run.

    Returns:
        `time_s` (middle of the interval), `arrived`, `finished`: requests, or jobs of a network, per second,
        measured or not. Empty if nothing arrived, or everything at one instant.
    """
    rows = (result.jobs if result.has_jobs else result.requests).lazy()
    times = rows.select("arrival_s", "finish_s").collect()
    arrival_s, finish_s = times["arrival_s"].to_numpy(), times["finish_s"].drop_nulls().to_numpy()
    schema = dict.fromkeys(("time_s", "arrived", "finished"), pl.Float64)
    if arrival_s.size == 0:
        return pl.DataFrame(schema=schema)
    start_s = float(arrival_s.min())
    end_s = float(max(arrival_s.max(), finish_s.max(initial=0.0)))
    if not end_s > start_s:
        return pl.DataFrame(schema=schema)
    each_s = (end_s - start_s) / steps

    def per_second(instants: NDArray[np.float64]) -> NDArray[np.float64]:
        place = ((instants - start_s) / each_s).astype(np.int64).clip(0, steps - 1)
        return np.asarray(np.bincount(place, minlength=steps) / each_s)

    middles = start_s + (np.arange(steps) + 0.5) * each_s
    return pl.DataFrame(
        {"time_s": middles, "arrived": per_second(arrival_s), "finished": per_second(finish_s)}, schema=schema
    )
