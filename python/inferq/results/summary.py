"""Summary of a run: counts, throughput, goodput and latencies of groups of measured requests."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from inferq import _core
from inferq._lazy import NDArray, np, pl
from inferq.checks import nearest, not_negative
from inferq.errors import ConfigError
from inferq.results.metric import LATENCIES, PERCENTILES, QUANTITIES, STATISTICS, current_name
from inferq.results.tables import LOST, STATUSES, Columns, RunTables, has_failed, in_parts

_OBJECTIVES = {"ttft_s": ("ttft_s", "ttft_slo_s"), "itl_s": ("max_itl_s", "itl_slo_s")}
"""For each objective, the bounded column of `requests` and the column of the workload that sets it."""


class _Measured:
    """Measured requests in parts, with their groups."""

    def __init__(self, tables: RunTables, keys: Sequence[str]) -> None:
        self._columns = tables.requests
        self.named: pl.DataFrame | None = None
        """The sorted distinct rows of the keys; None for a single group."""
        self._groups: NDArray[np.unsignedinteger] | None = None
        self.count = 1
        """Number of groups."""
        if keys:
            named = pl.concat(frame.unique() for frame in self._keys(tables, keys)).unique().sort(keys)
            self.named, self.count = named, named.height
        if self.count > 1:
            numbered, kind = named.with_row_index("group"), np.min_scalar_type(named.height)
            joined = (
                frame.join(numbered, on=keys, how="left", nulls_equal=True, maintain_order="left")["group"]
                for frame in self._keys(tables, keys)
            )
            self._groups = np.concatenate([groups.to_numpy().astype(kind) for groups in joined])

    def _keys(self, tables: RunTables, keys: Sequence[str]) -> Iterator[pl.DataFrame]:
        measured = (pl.Series(flags) for (flags,) in in_parts(self._columns, ["measured"]))
        return (frame.filter(flags) for frame, flags in zip(tables.frames(keys), measured, strict=True))

    def parts(self, *names: str) -> Iterator[tuple[NDArray[np.uint32], dict[str, NDArray[Any]]]]:
        """Columns with the group of each row."""
        done = 0
        for flags, *columns in in_parts(self._columns, ["measured", *names]):
            rows = _places(flags)
            cut = {name: column[rows] for name, column in zip(names, columns, strict=True)}
            here = int(np.count_nonzero(flags))
            groups = None if self._groups is None else self._groups[done : done + here]
            yield np.zeros(here, np.uint32) if groups is None else groups.astype(np.uint32), cut
            done += here

    def statistics(self, name: str) -> dict[str, NDArray[np.float64]]:
        """Statistics of a column for each group."""
        statistics = _core.Statistics(self.count)
        while True:
            for groups, columns in self.parts(name):
                statistics.add(np.ascontiguousarray(columns[name]), groups)
            if not statistics.end_pass():
                return statistics.values()


def _places(flags: NDArray[np.bool_]) -> slice | NDArray[np.intp]:
    """Positions of set flags: usually a range between warm-up and cool-down, so that columns are views."""
    count = int(np.count_nonzero(flags))
    first = int(flags.argmax()) if count else 0
    return slice(first, first + count) if flags[first : first + count].all() else np.flatnonzero(flags)


def summary(
    tables: RunTables,
    by: str | Iterable[str] | None,
    slo: Mapping[str, float | None] | None,
    *,
    has_prefix_cache: bool,
    api_s: NDArray[np.float64],
) -> pl.DataFrame:
    """One row for each group of measured requests; see `Result.summary`.

    Args:
        tables: the tables of the run.
        by: one or several columns of `requests`; None for a single group.
        slo: objectives that replace those of the workload.
        has_prefix_cache: whether an engine had a prefix cache.
        api_s: API overhead of each replica in seconds, or one number for all; NaN if unknown.

    Raises:
        ConfigError: an unknown column or objective, or an objective that is not a number of seconds.
    """
    keys = _keys(by, tables.requests)
    measured = _Measured(tables, keys)
    named, count = measured.named, measured.count
    limits = _limits(tables, slo)
    sums: defaultdict[str, NDArray[np.float64]] = defaultdict(lambda: np.zeros(count))
    first_s, last_s = math.inf, -math.inf
    names = {"status", "arrival_s", "finish_s", "output_tokens", "prompt_tokens", *limits}
    if any(isinstance(limit, np.ndarray) for limit in limits.values()):
        names.add(_row_of(tables.requests))
    if api_s.size > 1:
        names.add("replica")
    if has_prefix_cache:
        names |= {"admitted_s", "cached_tokens"}
    for groups, columns in measured.parts(*sorted(names)):
        status = columns["status"]
        finished = status == STATUSES.index("finished")
        add = partial(_add, sums, groups)
        add("completed", finished)
        add("failed", has_failed(status))
        add("lost", status == LOST)
        add("good", _in_time(limits, columns))
        add("outputs", finished, columns["output_tokens"])
        add("prompts", finished, columns["prompt_tokens"])
        if api_s.size == 1:
            each_s = np.broadcast_to(api_s, status.size)
        else:  # by replica; a rejected request has none
            each_s = np.append(api_s, math.nan)[np.minimum(columns["replica"], api_s.size)]
        add("api_s", finished, each_s)
        if has_prefix_cache:
            admitted = ~np.isnan(columns["admitted_s"])
            add("cached_tokens", admitted, columns["cached_tokens"])
            add("admitted_tokens", admitted, columns["prompt_tokens"])
        first_s = min(first_s, columns["arrival_s"].min(initial=math.inf))
        last_s = max(last_s, columns["finish_s"][finished].max(initial=-math.inf))
    duration_s = float(last_s - first_s) if last_s > -math.inf else None
    span_s = duration_s or math.inf
    completed, outputs = sums["completed"], sums["outputs"]
    table: dict[str, Any] = {
        "completed": completed.astype(np.int64),
        "failed": sums["failed"].astype(np.int64),
        "lost": sums["lost"].astype(np.int64),
        "duration_s": pl.Series([duration_s] * count, dtype=pl.Float64),
        "request_throughput": completed / span_s,
        "output_throughput": outputs / span_s,
        "total_token_throughput": (outputs + sums["prompts"]) / span_s,
        "request_goodput": sums["good"] / span_s,
    }
    for name in QUANTITIES:  # one at a time: a stored result reads each column when needed
        is_gap = name == "itl"
        statistics = _gaps(tables, keys, named, count) if is_gap else measured.statistics(f"{name}_s")
        table.update({f"{name}_{kind}": pl.Series(statistics[kind], nan_to_null=True) for kind in STATISTICS})
    with np.errstate(invalid="ignore"):
        table["api_mean"] = pl.Series(sums["api_s"] / completed, nan_to_null=True)
    cached = prompts = np.full(count, math.nan)
    if has_prefix_cache:
        cached, prompts = sums["cached_tokens"], sums["admitted_tokens"]
    table["cached_tokens"] = pl.Series(cached, nan_to_null=True).cast(pl.Int64)
    with np.errstate(invalid="ignore"):
        table["hit_rate"] = pl.Series(cached / prompts, nan_to_null=True)
    summed = pl.DataFrame(table)
    return summed if named is None else pl.concat([named, summed], how="horizontal")


def _add(
    sums: defaultdict[str, NDArray[np.float64]],
    groups: NDArray[np.uint32],
    name: str,
    which: NDArray[np.bool_],
    weights: NDArray[Any] | None = None,
) -> None:
    """Add the weights of selected rows to the sum of each group; without weights, their number."""
    if sums[name].size == 1:  # one group: no copy
        sums[name] += which.sum() if weights is None else weights.sum(where=which)
        return
    kept = None if weights is None else weights[which]
    sums[name] += np.bincount(groups[which], kept, minlength=sums[name].size)


def _keys(by: str | Iterable[str] | None, columns: Columns) -> list[str]:
    keys = [] if by is None else [by] if isinstance(by, str) else list(by)
    for key in keys:
        if key not in columns:
            raise ConfigError("by", f"unknown column {key!r}{nearest(str(key), columns)}")
    if len(set(keys)) < len(keys):
        raise ConfigError("by", f"must not name a column twice, got {keys}")
    return keys


def in_time(tables: RunTables, slo: Mapping[str, float | None] | None, columns: Columns) -> NDArray[np.bool_]:
    """Rows of `requests` that finished within their objectives; `slo` replaces those of the workload."""
    return _in_time(_limits(tables, slo), columns)


def _in_time(limits: Mapping[str, Any], columns: Columns) -> NDArray[np.bool_]:
    good: NDArray[np.bool_] = columns["status"] == STATUSES.index("finished")
    for measure, limit in limits.items():
        each = limit[columns[_row_of(columns)]] if isinstance(limit, np.ndarray) else limit
        good &= ~(
            columns[measure] > each
        )  # a comparison with NaN is false: a missing latency meets the objective
    return good


def _limits(
    tables: RunTables, slo: Mapping[str, float | None] | None
) -> dict[str, float | NDArray[np.float64]]:
    """Limits by column of `requests`: one number, or one per row of the workload."""
    given = objectives(slo)
    limits = {
        measure: given[name] if name in given else tables.objective(objective)
        for name, (measure, objective) in _OBJECTIVES.items()
    }
    return {measure: limit for measure, limit in limits.items() if limit is not None}


def _row_of(columns: Columns) -> str:
    """The column of `requests` with the row of the workload."""
    return "job" if "job" in columns else "id"


def objectives(slo: object) -> Mapping[str, float | None]:
    """The objectives of `Result.summary` under their current names, empty for None.

    Raises:
        ConfigError: an unknown objective, or one that is not a number of seconds.
    """
    if slo is not None and not isinstance(slo, Mapping):
        raise ConfigError("slo", f"must be a mapping such as {{'ttft_s': 0.5}}, got {slo!r}")
    given = {
        current_name(name) if isinstance(name, str) else name: limit for name, limit in (slo or {}).items()
    }
    for name, limit in given.items():
        if name not in _OBJECTIVES:
            if f"{(quantity := str(name).partition('_')[0])}_s" in _OBJECTIVES and name in LATENCIES:
                raise ConfigError(
                    "slo", f"{name} is a metric of a run; the limit of a request is {quantity}_s"
                )
            raise ConfigError("slo", f"unknown objective {name!r}{nearest(str(name), _OBJECTIVES)}")
        if limit is not None:
            not_negative(f"slo.{name}", limit)
    return given


def _gaps(
    tables: RunTables, keys: list[str], named: pl.DataFrame | None, count: int
) -> dict[str, NDArray[np.float64]]:
    """Statistics of the token gaps of each group, NaN if the histogram has no such groups."""
    classes = tables.classes
    groups: list[list[int]] = [[]] * count
    if named is None:
        groups = [list(range(len(classes)))]
    elif keys == ["class"]:
        groups = [[classes.index(name)] for name in named["class"]]
    rows = [_gaps_of(tables, codes) for codes in groups]
    return {kind: np.array([row[kind] for row in rows], dtype=np.float64) for kind in STATISTICS}


def _gaps_of(tables: RunTables, codes: list[int]) -> dict[str, float]:
    """Statistics of the token gaps of some classes; counts are integers, so classes merge exactly."""
    bins, totals = tables.itl, [tables.itl_totals[code] for code in codes]
    gaps = sum(total["count"] for total in totals)
    if gaps == 0:
        return dict.fromkeys(STATISTICS, math.nan)
    here = np.isin(bins["class"], codes)
    order = np.argsort(bins["upper_s"][here], kind="stable")
    upper_s, reached = bins["upper_s"][here][order], np.cumsum(bins["count"][here][order])
    max_s = max(total["max_s"] for total in totals if total["count"])
    percentiles = {
        f"p{p}": min(float(upper_s[np.searchsorted(reached, -(-p * gaps // 100))]), max_s)
        for p in PERCENTILES
    }
    mean_s = sum(total["sum_as"] for total in totals) / (gaps * 10**18)  # integers, rounded once
    return {"mean": mean_s, **percentiles, "max": max_s}
