"""The summary of a run: counts, throughput, goodput and latencies of groups of its measured requests."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from inferq import _core
from inferq._lazy import NDArray, np, pl
from inferq.checks import not_negative
from inferq.errors import ConfigError
from inferq.results.metric import LATENCIES, PERCENTILES, QUANTITIES, STATISTICS
from inferq.results.tables import LOST, STATUSES, Columns, RunTables, has_failed
from inferq.workload.columns import nearest

_OBJECTIVES = {"ttft_s": ("ttft_s", "ttft_slo_s"), "tbt_s": ("max_tbt_s", "tbt_slo_s")}
"""For each objective, the column of `requests` that it bounds and the column of the workload that sets it."""


class Measured(Mapping[str, "NDArray[Any]"]):
    """The columns of the measured requests, each cut out when it is asked for."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        flags = columns["measured"]
        self.height = int(np.count_nonzero(flags))
        first = int(flags.argmax()) if self.height else 0
        # warm-up and cool-down cut the ends: as a rule the measured are a range, whose columns are views
        self.rows: slice | NDArray[np.intp] = slice(first, first + self.height)
        if not flags[self.rows].all():
            self.rows = np.flatnonzero(flags)

    def __getitem__(self, name: str) -> NDArray[Any]:
        cut: NDArray[Any] = self._columns[name][self.rows]
        return cut

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


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
        tables: of the run.
        by: a column of `requests`, or several; None makes one group of all.
        slo: objectives instead of those of the workload.
        has_prefix_cache: whether prompts could be found in a prefix cache.
        api_s: seconds between a client and each replica; one number for all of them; NaN: not known.

    Raises:
        ConfigError: an unknown column or objective, or an objective that is no number of seconds.
    """
    keys = _keys(by, tables.requests)
    values = Measured(tables.requests)
    named, groups, count = _grouped(tables.rows(keys, values.rows) if keys else None, values.height)

    status = values["status"]
    finished, failed, lost = (status == STATUSES.index("finished"), has_failed(status), status == LOST)
    good = in_time(tables, slo, values)

    def total(which: NDArray[np.bool_], weights: NDArray[Any] | None = None) -> NDArray[np.float64]:
        if count == 1:  # the sum of all, without a copy of each
            return np.array([which.sum() if weights is None else weights.sum(where=which)], np.float64)
        summed = np.bincount(groups[which], None if weights is None else weights[which], minlength=count)
        return summed.astype(np.float64)

    duration_s = float(np.nanmax(values["finish_s"]) - values["arrival_s"].min()) if finished.any() else None
    span_s = duration_s or math.inf
    completed, outputs = total(finished), total(finished, values["output_tokens"])
    table: dict[str, Any] = {
        "completed": completed.astype(np.int64),
        "failed": total(failed).astype(np.int64),
        "lost": total(lost).astype(np.int64),
        "duration_s": pl.Series([duration_s] * count, dtype=pl.Float64),
        "request_throughput": completed / span_s,
        "output_throughput": outputs / span_s,
        "total_token_throughput": (outputs + total(finished, values["prompt_tokens"])) / span_s,
        "request_goodput": total(good) / span_s,
    }
    for name in QUANTITIES:  # one after the other: of a stored result each is read when its turn comes
        if name == "tbt":
            statistics = _gaps(tables, keys, named, count)
        else:
            statistics = _core.summarise(groups, count, {name: values[f"{name}_s"]})[name]
        table.update({f"{name}_{kind}": pl.Series(statistics[kind], nan_to_null=True) for kind in STATISTICS})
    if api_s.size == 1:
        each_s = np.broadcast_to(api_s, values.height)
    else:  # by replica; a request that was refused has none
        each_s = np.append(api_s, math.nan)[np.minimum(values["replica"], api_s.size)]
    with np.errstate(invalid="ignore"):
        table["api_mean"] = pl.Series(total(finished, each_s) / completed, nan_to_null=True)
    cached = prompts = np.full(count, math.nan)
    if has_prefix_cache:
        admitted = ~np.isnan(values["admitted_s"])
        cached, prompts = (total(admitted, values[name]) for name in ("cached_tokens", "prompt_tokens"))
    table["cached_tokens"] = pl.Series(cached, nan_to_null=True).cast(pl.Int64)
    with np.errstate(invalid="ignore"):
        table["hit_rate"] = pl.Series(cached / prompts, nan_to_null=True)
    summed = pl.DataFrame(table)
    return summed if named is None else pl.concat([named, summed], how="horizontal")


def _keys(by: str | Iterable[str] | None, columns: Columns) -> list[str]:
    keys = [] if by is None else [by] if isinstance(by, str) else list(by)
    for key in keys:
        if key not in columns:
            raise ConfigError("by", f"unknown column {key!r}{nearest(str(key), columns)}")
    if len(set(keys)) < len(keys):
        raise ConfigError("by", f"a column twice in {keys}")
    return keys


def in_time(tables: RunTables, slo: Mapping[str, float | None] | None, columns: Columns) -> NDArray[np.bool_]:
    """Which rows of `requests` finished within their objectives; `slo` takes the place of the workload's."""
    given = objectives(slo)
    good: NDArray[np.bool_] = columns["status"] == STATUSES.index("finished")
    for name, (measure, objective) in _OBJECTIVES.items():
        limit: Any = given.get(name)
        if name not in given:
            limit = tables.objective(objective)
            limit = None if limit is None else limit[columns["job" if "job" in columns else "id"]]
        if limit is not None:
            good &= ~(
                columns[measure] > limit
            )  # a comparison with NaN is false: what is absent misses nothing
    return good


def objectives(slo: object) -> Mapping[str, float | None]:
    """The objectives that `Result.summary` takes, empty for None.

    Raises:
        ConfigError: an unknown objective, or one that is no number of seconds.
    """
    if slo is not None and not isinstance(slo, Mapping):
        raise ConfigError("slo", f"must be a mapping such as {{'ttft_s': 0.5}}, is {slo!r}")
    given: Mapping[str, Any] = slo or {}
    for name, limit in given.items():
        if name not in _OBJECTIVES:
            if f"{(quantity := str(name).partition('_')[0])}_s" in _OBJECTIVES and name in LATENCIES:
                raise ConfigError("slo", f"{name} is of a run: a limit for each request is {quantity}_s")
            raise ConfigError("slo", f"unknown objective {name!r}{nearest(str(name), _OBJECTIVES)}")
        if limit is not None:
            not_negative(f"slo.{name}", limit)
    return given


def _gaps(
    tables: RunTables, keys: list[str], named: pl.DataFrame | None, count: int
) -> dict[str, NDArray[np.float64]]:
    """The statistics of the token gaps of each group, NaN where the histogram cannot tell them."""
    classes = tables.classes
    groups: list[list[int]] = [[]] * count
    if named is None:
        groups = [list(range(len(classes)))]
    elif keys == ["class"]:
        groups = [[classes.index(name)] for name in named["class"]]
    rows = [_gaps_of(tables, codes) for codes in groups]
    return {kind: np.array([row[kind] for row in rows], dtype=np.float64) for kind in STATISTICS}


def _grouped(keys: pl.DataFrame | None, height: int) -> tuple[pl.DataFrame | None, NDArray[np.uint32], int]:
    """The distinct rows of `keys`, sorted; which of them each row is; how many there are."""
    if keys is None:
        return None, np.zeros(height, dtype=np.uint32), 1
    numbered = keys.with_columns(pl.int_range(keys.height, eager=True).alias("row"))
    grouped = numbered.group_by(keys.columns).agg("row").sort(keys.columns)
    groups = np.empty(height, dtype=np.uint32)
    sizes = grouped["row"].list.len().to_numpy()
    groups[grouped["row"].explode().to_numpy()] = np.repeat(np.arange(grouped.height, dtype=np.uint32), sizes)
    return grouped.drop("row"), groups, grouped.height


def _gaps_of(tables: RunTables, codes: list[int]) -> dict[str, float]:
    """The statistics of all token gaps of some classes: whole counts, so classes merge exactly."""
    bins, totals = tables.tbt, [tables.tbt_totals[code] for code in codes]
    gaps = sum(one["count"] for one in totals)
    if gaps == 0:
        return dict.fromkeys(STATISTICS, math.nan)
    here = np.isin(bins["class"], codes)
    order = np.argsort(bins["upper_s"][here], kind="stable")
    upper_s, reached = bins["upper_s"][here][order], np.cumsum(bins["count"][here][order])
    percentiles = {
        f"p{p}": float(upper_s[np.searchsorted(reached, -(-p * gaps // 100))]) for p in PERCENTILES
    }
    mean_s = sum(one["sum_as"] for one in totals) / (gaps * 10**18)  # of whole numbers, rounded once
    return {"mean": mean_s, **percentiles, "max": max(one["max_s"] for one in totals if one["count"])}
