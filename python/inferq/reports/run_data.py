"""What of a run is drawn: some hundred marks, whatever its size."""

from __future__ import annotations

import math
from typing import Any

from inferq._lazy import NDArray, np, pl
from inferq.display.text import percent, seconds
from inferq.errors import ConfigError, TraceError
from inferq.results.result import Result
from inferq.results.tables import FAILED
from inferq.systems.pools import pools_of
from inferq.theory.bounds.stability import Stability, stability

MEASURES = {
    "ttft": "TTFT: arrival to first token",
    "e2e": "E2E: arrival to last token",
    "tpot": "TPOT: mean gap of a request",
    "queue": "queue: wait for admission",
}
"""The latencies of a request that are drawn."""

MOST_CLASSES = 6
"""Curves of more classes cannot be told apart."""

POINTS = 250
"""Points of a line: more cannot be told apart."""

BINS = 60
"""Bars of a histogram."""

_INNER = (0.5, 0.9, 0.95, 0.99)
"""Percentiles of the summary, which every curve goes through."""

OF_SLOTS = ("prefill_queue", "decode_queue", "prefill", "mixed", "solo")
"""Where requests are under `GateAndRoute`."""


def theory(result: Result) -> Stability | str:
    """What theory says of the scenario of a run, or why it says nothing."""
    if result._system is None or result._workload is None:
        return "what served the requests is not kept"
    try:
        return stability(result._workload, result._system)
    except (ConfigError, TraceError) as error:
        return str(error)


def sizes(result: Result) -> list[tuple[str, int]]:
    """How many measured requests each class has, the most frequent first."""
    counts = result.requests.lazy().filter("measured").group_by("class").agg(pl.len().alias("requests"))
    named = counts.collect().with_columns(pl.col("class").cast(pl.String))
    return named.sort("requests", "class", descending=[True, False]).rows()


def classes(result: Result) -> list[str]:
    """The classes of the measured requests, the most frequent first, at most `MOST_CLASSES`."""
    return [name for name, _ in sizes(result)[:MOST_CLASSES]]


def jobs(result: Result) -> list[dict[str, Any]]:
    """The measured jobs of a network by workflow, then all of them.

    Returns:
        `workflow` (None for all), `completed`, `failed`, and in seconds from arrival to the last token, None
        where none finished: `mean`, `p50`, `p90`, `p95`, `p99`, `max`, percentiles as in `Result.summary`.
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
    """The objectives of the workload that all its requests share, in seconds, by what they bound.

    `ttft` bounds first tokens, `itl` the longest gap of a request.
    """
    found = {}
    for measure in ("ttft", "itl"):
        column = result._tables.objective(f"{measure}_slo_s")
        if column is not None and column.size and (column == column[0]).all():
            found[measure] = [float(column[0])]
    return found


def latencies(result: Result, names: list[str] | None) -> pl.DataFrame:
    """The percentile curves of the measured requests of some classes; None: of all together.

    Returns:
        `measure`, `class`, `share` (of the requests that have the latency), `seconds` (not above it in that
        share, linear between the two nearest values as in `Result.summary`); from the least value to the
        second largest, which is where a percentile stops being a matter of one request.
    """
    columns = [f"{measure}_s" for measure in MEASURES]
    kept = result.requests.lazy().filter("measured").select("class", *columns).collect()
    parts = []
    for name in [""] if names is None else names:
        of_class = kept if names is None or len(names) == 1 else kept.filter(pl.col("class") == name)
        for measure in MEASURES:
            values = np.sort(of_class[f"{measure}_s"].drop_nulls().to_numpy())
            if values.size == 0:
                continue
            shares = _shares(values.size)
            curve = pl.DataFrame({"share": shares, "seconds": _linear(values, shares)})
            named = pl.lit(measure).alias("measure"), pl.lit(name).alias("class")
            parts.append(curve.select(*named, "share", "seconds"))
    schema = {"measure": pl.String, "class": pl.String, "share": pl.Float64, "seconds": pl.Float64}
    return pl.concat(parts) if parts else pl.DataFrame(schema=schema)


def _shares(values: int) -> NDArray[np.float64]:
    """Shares as dense in the tail as at the start: equal steps of log(1 − share)."""
    last = 1 - 1 / values
    tail = 1 - np.power(10.0, -np.linspace(0.0, math.log10(values), 60))
    return np.unique(np.concatenate([tail.clip(0, last), [q for q in _INNER if q <= last]]))


def _linear(ordered: NDArray[np.float64], shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Percentiles of values that are in order."""
    place = shares * (ordered.size - 1)
    below = np.floor(place).astype(np.int64)
    above = np.minimum(below + 1, ordered.size - 1)
    return np.asarray(ordered[below] + (place - below) * (ordered[above] - ordered[below]))


def over_time(result: Result) -> pl.DataFrame:
    """The timeline of all replicas together, in at most `POINTS` stretches of time.

    Returns:
        `time_s` (middle of the stretch), and for every column of the timeline its mean over the samples of
        the stretch, and as `…_low` and `…_high` the least and the largest. Columns of requests, tokens and
        tokens per second are summed over replicas, for `GateAndRoute` over classes.
    """
    names = [name for name in result.timeline.columns if name not in ("time_s", "replica", "class")]
    summed = result.timeline.group_by("time_s").agg(pl.col(names).sum()).sort("time_s")
    return _stretched(summed, names)


def has_hit_rates(result: Result) -> bool:
    """Whether the timeline tells what prefix caches found; that of `GateAndRoute` does not."""
    return result.has_prefix_cache and "cached_tokens_per_s" in result.timeline.columns


def hit_rates(result: Result, steps: int = 60) -> pl.DataFrame:
    """Which share of the prompts prefix caches found, over few stretches of time, so that each has some.

    Returns:
        `time_s` (middle of the stretch), `hit_rate`: of the prompt tokens that were found or computed in the
        stretch on all replicas, those that were found; `hit_rate_low` and `hit_rate_high`: the same of the
        replica with the least and with the most. Stretches without prompts are left out.
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


def kv_tokens(result: Result) -> int | None:
    """Tokens of KV cache that all replicas have together; None where one of them has no limit."""
    if result._system is None:
        return None
    tokens = 0
    for pool in pools_of(result._system):
        for engine, count in zip(pool.engines, pool.counts, strict=True):
            if engine.kv.tokens is None:
                return None
            tokens += engine.kv.tokens * count
    return tokens


def waiting(result: Result) -> pl.DataFrame:
    """How many wait for their admission at a replica, in at most `POINTS` stretches of time.

    Returns:
        `time_s`, `mean` (over replicas, and over the samples of the stretch) and `most` (of the replica where
        most wait, and of the sample where most do). For `GateAndRoute`, whose requests wait in front of the
        whole cluster: `time_s`, `class` and `mean` of its prefill and decode queue together.
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
    """Samples in order of time, as many side by side taken together as leave `POINTS`."""
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
    """The histogram of token gaps in at most `BINS` bins of equal width on a scale of logarithms.

    Gaps of nothing, between tokens that come at one instant, are left out: the scale has no place for them.

    Args:
        result: of a run.
        names: classes; None takes all together.

    Returns:
        `class`, `lower_s`, `upper_s`, `share` (of the gaps of the class), `told` (the same in words).
    """
    bins = _bins(result, names).filter(pl.col("upper_s") > 0)
    if bins.is_empty():
        numbers = dict.fromkeys(("lower_s", "upper_s", "share"), pl.Float64)
        return pl.DataFrame(schema={"class": pl.String, **numbers, "told": pl.String})
    edges_s = bins["upper_s"].to_numpy()
    least, most = math.log10(edges_s.min()), math.log10(edges_s.max())
    step = max((most - least) / (BINS - 1), math.log10(1 + 1 / 64))
    place = ((pl.col("upper_s").log10() - least) / step).round()
    share = pl.col("count") / pl.col("count").sum().over("class")
    told = (
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
        for row in told.rows(named=True)
    ]
    return told.with_columns(pl.Series("told", words, dtype=pl.String))


def gap_percentiles(result: Result, names: list[str] | None) -> pl.DataFrame:
    """The p50 and p99 of the token gaps as in the summary, where not 0: `class`, `percentile`, `seconds`."""
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
    """The bins of the token gaps of some classes, or of all under the class of no name."""
    if names is None:
        return result.itl.with_columns(pl.lit("").alias("class"))
    bins = result.itl.with_columns(pl.col("class").cast(pl.String))
    return bins.filter(pl.col("class").is_in(names))


def rates(result: Result, steps: int = 100) -> pl.DataFrame:
    """How many arrived and how many finished per second, over equal stretches of the run.

    Returns:
        `time_s` (middle of the stretch), `arrived`, `finished`: requests per second, of a network jobs; all
        of them, measured or not. Empty where no request came, or all at one instant.
    """
    rows = (result.jobs if result.has_jobs else result.requests).lazy()
    kept = rows.select("arrival_s", "finish_s").collect()
    arrival_s, finish_s = kept["arrival_s"].to_numpy(), kept["finish_s"].drop_nulls().to_numpy()
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
