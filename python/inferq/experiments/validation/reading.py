"""Measured runs from files: a table in CSV, a result of vLLM's benchmark, an export of AIPerf."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from inferq._lazy import pl
from inferq.checks import nearest
from inferq.errors import ConfigError, TraceError
from inferq.experiments.validation.measured_run import (
    COLUMNS,
    SETTINGS,
    STATISTICS,
    MeasuredRun,
    measured_run,
)
from inferq.inputs import parsed_json, path_of, read_text

_VLLM = {"ttft": "ttft", "tpot": "tpot", "e2el": "e2e"}
"""Names of quantities in a result of vLLM's benchmark; `mean_ttft_ms`, `median_ttft_ms`, `p99_ttft_ms`."""
_AIPERF = {"time_to_first_token": "ttft", "inter_token_latency": "tpot", "request_latency": "e2e"}
_UNITS = {"ms": 1e-3, "milliseconds": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0, "us": 1e-6, "ns": 1e-9}
_LOG = ("run", "arrival_s", "prompt_tokens", "output_tokens")


def read_runs(
    runs: str | os.PathLike[str],
    *,
    requests: str | os.PathLike[str] | None = None,
    given: Mapping[str, object] | None = None,
) -> list[MeasuredRun]:
    """The measured runs in a file.

    Args:
        runs: CSV with a row a run; or JSON: a result of vLLM's `benchmark_serving`, or AIPerf's
            `profile_export_aiperf.json`; which, is found from its content.
        requests: CSV with a row a request: `run`, `arrival_s`, `prompt_tokens`, `output_tokens`. A run is
            named by its id, or by its end with `/` for `-`.
        given: settings by their columns, for runs that do not say them.

    Raises:
        TraceError: naming file, row and column.
        ConfigError: a file that is none of these; an unknown setting in `given`.
        OSError: a file cannot be read.
    """
    place = path_of("runs", runs)
    settings = {name: str(value) for name, value in (given or {}).items()}
    for name in settings:
        if name not in SETTINGS:
            raise ConfigError("given", f"unknown setting {name!r}{nearest(name, SETTINGS)}")
    text = read_text(place, _refusing(place))
    rows = [_of_json(place, text)] if text.lstrip().startswith("{") else _of_csv(place, text)
    read = []
    for where, cells, otherwise in rows:
        said = {name: cell for name, cell in cells.items() if cell is not None and cell.strip()}
        read.append(measured_run(where, {**settings, **said}, otherwise))
    names: dict[str, str] = {}
    for run in read:
        if run.id in names:
            raise TraceError(f"{run.place}, id", f"{run.id!r} a second time, first in {names[run.id]}")
        names[run.id] = run.place
    return read if requests is None else _with_requests(read, path_of("requests", requests))


def _refusing(place: Path) -> Callable[[str], ConfigError]:
    return lambda why: ConfigError(place, why)


_Row = tuple[str, Mapping[str, Any], str]


def _of_csv(place: Path, text: str) -> list[_Row]:
    rows: list[_Row] = []
    lines = csv.reader(text.splitlines(keepends=True), strict=True)
    try:
        names = [name.strip() for name in next(lines, [])]
        if "model" not in names or not set(names) & set(COLUMNS):
            raise ConfigError(
                place,
                "is no table of measured runs (the first line has no column model), no result of vLLM's "
                "benchmark and no export of AIPerf",
            )
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise TraceError(place, f"two columns are called {twice!r}")
        for number, cells in enumerate(lines, start=1):
            if not any(cell.strip() for cell in cells):
                continue
            where = f"{place}, row {number}"
            if len(cells) != len(names):
                raise TraceError(
                    where, f"has {len(cells)} cells where the first line names {len(names)} columns"
                )
            rows.append((where, dict(zip(names, cells, strict=True)), f"row {number}"))
    except csv.Error as error:
        raise TraceError(f"{place}, line {lines.line_num}", f"is no CSV: {error}") from None
    if not rows:
        raise TraceError(place, "has no rows")
    return rows


def _of_json(place: Path, text: str) -> _Row:
    said = parsed_json(text, _refusing(place))
    if "request_throughput" in said and isinstance(said["request_throughput"], (int, float)):
        return str(place), _vllm(place, said), place.stem
    if isinstance(said.get("request_throughput"), dict) or "input_config" in said:
        return str(place), _aiperf(place, said), place.stem
    raise ConfigError(place, "is neither a result of vLLM's benchmark nor an export of AIPerf")


def _number(place: Path, name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TraceError(f"{place}, {name}", f"must be a number, is {value!r}")
    return float(value)


def _vllm(place: Path, said: Mapping[str, Any]) -> dict[str, str]:
    """The cells of a result that `vllm bench serve --save-result` writes."""
    cells: dict[str, object] = {"engine": "vllm", "model": said.get("model_id")}
    completed = _number(place, "completed", said.get("completed"))
    if not completed > 0:
        raise TraceError(f"{place}, completed", "no request was completed")
    asked = said.get("num_prompts", completed)
    cells["n_requests"] = int(_number(place, "num_prompts", asked))
    cells["failures"] = max(0, int(_number(place, "num_prompts", asked) - completed))
    for name, column in (("total_input_tokens", "input_mean"), ("total_output_tokens", "output_mean")):
        cells[column] = _number(place, name, said.get(name)) / completed
    rate = said.get("request_rate")
    at_once = rate is None or str(rate) == "inf" or rate == float("inf")
    most = said.get("max_concurrency")
    cells["arrival"] = ("at once" if at_once else "gamma") + (
        "" if most is None else f"; at most {most} in flight"
    )
    if not at_once:
        cells["rate_rps"], cells["burstiness"] = rate, said.get("burstiness", 1.0)
    if most is not None:
        cells["concurrency"] = most
    for name, quantity in _VLLM.items():
        for theirs, ours in (("mean", "mean"), ("median", "p50"), *((one, one) for one in STATISTICS[1:])):
            value = said.get(f"{theirs}_{name}_ms")
            if value is not None:
                seconds = 1e-3 * _number(place, f"{theirs}_{name}_ms", value)
                cells[f"{quantity}_{ours}_s"] = seconds or None
    cells["req_s"] = said["request_throughput"]
    cells["out_tok_s"] = said.get("output_throughput")
    # What was noted with --metadata NAME=VALUE stands beside the figures.
    cells |= {name: said[name] for name in SETTINGS if name in said and name not in cells}
    return {name: str(value) for name, value in cells.items() if value is not None}


def _aiperf(place: Path, said: Mapping[str, Any]) -> dict[str, str]:
    """The cells of a `profile_export_aiperf.json`."""

    def metric(name: str, which: str = "avg") -> float | None:
        one = said.get(name)
        if not isinstance(one, Mapping) or one.get(which) is None:
            return None
        return _number(place, f"{name}.{which}", one[which])

    config = said.get("input_config") or {}
    loadgen = config.get("loadgen") or {}
    models = (config.get("endpoint") or {}).get("model_names") or [None]
    cells: dict[str, object] = {"model": models[0]}
    for name, quantity in _AIPERF.items():
        unit = (said.get(name) or {}).get("unit", "ms")
        if unit not in _UNITS:
            raise TraceError(f"{place}, {name}", f"unknown unit {unit!r}{nearest(str(unit), [*_UNITS])}")
        for theirs, ours in (("avg", "mean"), *((one, one) for one in STATISTICS[1:])):
            value = metric(name, theirs)
            cells[f"{quantity}_{ours}_s"] = None if value is None else (value * _UNITS[unit] or None)
    cells["req_s"], cells["out_tok_s"] = metric("request_throughput"), metric("output_token_throughput")
    cells["input_mean"] = metric("input_sequence_length")
    cells["output_mean"] = metric("output_sequence_length")
    count = metric("request_count")
    cells["n_requests"] = None if count is None else int(count)
    errors = said.get("error_request_count")
    cells["failures"] = int(errors["avg"]) if isinstance(errors, Mapping) and errors.get("avg") else None
    cells["concurrency"], cells["rate_rps"] = loadgen.get("concurrency"), loadgen.get("request_rate")
    if cells["rate_rps"] is not None:
        mode = str(loadgen.get("request_rate_mode", "poisson"))
        arrival = "evenly spaced" if mode == "constant" else "poisson"
        cells["arrival"] = arrival + (
            f"; at most {cells['concurrency']} in flight" if cells["concurrency"] else ""
        )
    elif cells["concurrency"] is not None:
        cells["arrival"] = "closed loop"
    return {name: str(value) for name, value in cells.items() if value is not None}


def _with_requests(runs: list[MeasuredRun], place: Path) -> list[MeasuredRun]:
    """The runs with the rows of their logs."""
    text = read_text(place, _refusing(place))
    try:
        log = pl.read_csv(io.BytesIO(text.encode()), infer_schema_length=None)
    except pl.exceptions.PolarsError as error:
        raise TraceError(place, f"is no CSV ({str(error).splitlines()[0]})") from None
    for name in _LOG:
        if name not in log.columns:
            raise TraceError(place, f"no column {name}; a log of requests has {', '.join(_LOG)}")
        if log[name].null_count():
            row = int(log[name].is_null().arg_max() or 0) + 1
            raise TraceError(f"{place}, row {row}, {name}", "is empty")
        if name != "run" and not log[name].dtype.is_numeric():
            wrong = log[name].cast(pl.Float64, strict=False).is_null()
            row = int(wrong.arg_max() or 0)
            raise TraceError(f"{place}, row {row + 1}, {name}", f"must be a number, is {log[name][row]!r}")
    left = {str(name): rows for (name,), rows in log.group_by("run", maintain_order=True)}
    found = []
    for run in runs:
        own = next((name for name in left if _names(name, run)), None)
        found.append(run if own is None else replace(run, requests=left.pop(own).select(_LOG[1:])))
    if left:
        raise TraceError(f"{place}, run", f"no run is called {next(iter(left))!r}")
    return found


def _names(name: str, run: MeasuredRun) -> bool:
    return name == run.id or run.id.endswith("-" + name.replace("/", "-"))
