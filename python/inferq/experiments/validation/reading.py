"""Reading of measured runs: CSV tables, results of vLLM's benchmark, exports of AIPerf."""

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
from inferq.experiments.validation.publishers import translated
from inferq.inputs import parsed_json, path_of, read_text

_VLLM = {"ttft": "ttft", "tpot": "tpot", "e2el": "e2e"}
"""Names of quantities in results of vLLM's benchmark; `mean_ttft_ms`, `median_ttft_ms`, `p99_ttft_ms`."""
_AIPERF = {"time_to_first_token": "ttft", "inter_token_latency": "tpot", "request_latency": "e2e"}
_UNITS = {"ms": 1e-3, "milliseconds": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0, "us": 1e-6, "ns": 1e-9}
_LOG = ("run", "arrival_s", "prompt_tokens", "output_tokens")


def read_runs(
    runs: str | os.PathLike[str],
    *,
    requests: str | os.PathLike[str] | None = None,
    given: Mapping[str, object] | None = None,
) -> list[MeasuredRun]:
    """Read measured runs from a file.

    Args:
        runs: CSV with one row per run, in the columns of `MeasuredRun`, of InferenceX or of llm-d; or JSON: a
            result of vLLM's `benchmark_serving` or AIPerf's `profile_export_aiperf.json`. The content
            determines the format.
        requests: CSV with one row per request: `run`, `arrival_s`, `prompt_tokens`, `output_tokens`. `run` is
            the id of a run, or its end with `/` for `-`.
        given: settings by column, for runs that lack them.

    Raises:
        TraceError: a value is wrong; it names file, row and column.
        ConfigError: the file has another format, or a setting in `given` is unknown.
        OSError: a file cannot be read.
    """
    place = path_of("runs", runs)
    settings = {name: str(value) for name, value in (given or {}).items()}
    for name in settings:
        if name not in SETTINGS:
            raise ConfigError("given", f"unknown setting {name!r}{nearest(name, SETTINGS)}")
    text = read_text(place, _refusing(place))
    rows = [_of_json(place, text)] if text.lstrip().startswith("{") else _of_csv(place, text)
    measured = []
    for where, cells, default_id in rows:
        known, uncertain = translated(cells)
        published = {name: cell for name, cell in known.items() if cell is not None and cell.strip()}
        measured.append(measured_run(where, {**settings, **published}, default_id, uncertain))
    names: dict[str, str] = {}
    for run in measured:
        if run.id in names:
            raise TraceError(f"{run.place}, id", f"duplicate {run.id!r}, first in {names[run.id]}")
        names[run.id] = run.place
    return measured if requests is None else _with_requests(measured, path_of("requests", requests))


def _refusing(place: Path) -> Callable[[str], ConfigError]:
    return lambda reason: ConfigError(place, reason)


_Row = tuple[str, Mapping[str, Any], str]


def _of_csv(place: Path, text: str) -> list[_Row]:
    rows: list[_Row] = []
    lines = csv.reader(text.splitlines(keepends=True), strict=True)
    try:
        names = [name.strip() for name in next(lines, [])]
        if "model" not in names or not set(names) & set(COLUMNS):
            raise ConfigError(
                place,
                "must be a table of measured runs with a column model, a result of vLLM's benchmark, or an "
                "export of AIPerf",
            )
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise TraceError(place, f"duplicate column {twice!r}")
        for number, cells in enumerate(lines, start=1):
            if not any(cell.strip() for cell in cells):
                continue
            where = f"{place}, row {number}"
            if len(cells) != len(names):
                raise TraceError(where, f"must have {len(names)} cells like the first line, got {len(cells)}")
            rows.append((where, dict(zip(names, cells, strict=True)), f"row {number}"))
    except csv.Error as error:
        raise TraceError(f"{place}, line {lines.line_num}", f"is not valid CSV: {error}") from None
    if not rows:
        raise TraceError(place, "has no rows")
    return rows


def _of_json(place: Path, text: str) -> _Row:
    content = parsed_json(text, _refusing(place))
    if "request_throughput" in content and isinstance(content["request_throughput"], (int, float)):
        return str(place), _vllm(place, content), place.stem
    if isinstance(content.get("request_throughput"), dict) or "input_config" in content:
        return str(place), _aiperf(place, content), place.stem
    raise ConfigError(place, "must be a result of vLLM's benchmark or an export of AIPerf")


def _number(place: Path, name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TraceError(f"{place}, {name}", f"must be a number, got {value!r}")
    return float(value)


def _vllm(place: Path, content: Mapping[str, Any]) -> dict[str, str]:
    """The cells of a result of `vllm bench serve --save-result`."""
    cells: dict[str, object] = {"engine": "vllm", "model": content.get("model_id")}
    completed = _number(place, "completed", content.get("completed"))
    if not completed > 0:
        raise TraceError(f"{place}, completed", "must be positive: no request was completed")
    sent = _number(place, "num_prompts", content.get("num_prompts", completed))
    cells["n_requests"] = int(sent)
    cells["failures"] = max(0, int(sent - completed))
    for name, column in (("total_input_tokens", "input_mean"), ("total_output_tokens", "output_mean")):
        cells[column] = _number(place, name, content.get(name)) / completed
    rate = content.get("request_rate")
    at_once = rate is None or str(rate) == "inf" or rate == float("inf")
    most = content.get("max_concurrency")
    cells["arrival"] = ("at once" if at_once else "gamma") + (
        "" if most is None else f"; at most {most} in flight"
    )
    if not at_once:
        cells["rate_rps"], cells["burstiness"] = rate, content.get("burstiness", 1.0)
    if most is not None:
        cells["concurrency"] = most
    for name, quantity in _VLLM.items():
        for theirs, ours in (
            ("mean", "mean"),
            ("median", "p50"),
            *((which, which) for which in STATISTICS[1:]),
        ):
            value = content.get(f"{theirs}_{name}_ms")
            if value is not None:
                seconds = 1e-3 * _number(place, f"{theirs}_{name}_ms", value)
                cells[f"{quantity}_{ours}_s"] = seconds or None
    cells["req_s"] = content["request_throughput"]
    cells["out_tok_s"] = content.get("output_throughput")
    # Settings from --metadata NAME=VALUE are on the same level as metrics.
    cells |= {name: content[name] for name in SETTINGS if name in content and name not in cells}
    return {name: str(value) for name, value in cells.items() if value is not None}


def _aiperf(place: Path, content: Mapping[str, Any]) -> dict[str, str]:
    """The cells of a `profile_export_aiperf.json`."""

    def metric(name: str, which: str = "avg") -> float | None:
        values = content.get(name)
        if not isinstance(values, Mapping) or values.get(which) is None:
            return None
        return _number(place, f"{name}.{which}", values[which])

    config = content.get("input_config") or {}
    loadgen = config.get("loadgen") or {}
    models = (config.get("endpoint") or {}).get("model_names") or [None]
    cells: dict[str, object] = {"model": models[0]}
    for name, quantity in _AIPERF.items():
        unit = (content.get(name) or {}).get("unit", "ms")
        if unit not in _UNITS:
            raise TraceError(f"{place}, {name}", f"unknown unit {unit!r}{nearest(str(unit), [*_UNITS])}")
        for theirs, ours in (("avg", "mean"), *((which, which) for which in STATISTICS[1:])):
            value = metric(name, theirs)
            cells[f"{quantity}_{ours}_s"] = None if value is None else (value * _UNITS[unit] or None)
    cells["req_s"], cells["out_tok_s"] = metric("request_throughput"), metric("output_token_throughput")
    cells["input_mean"] = metric("input_sequence_length")
    cells["output_mean"] = metric("output_sequence_length")
    count = metric("request_count")
    cells["n_requests"] = None if count is None else int(count)
    errors = content.get("error_request_count")
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
    """Add the logs of requests to runs."""
    text = read_text(place, _refusing(place))
    try:
        log = pl.read_csv(io.BytesIO(text.encode()), infer_schema_length=None)
    except pl.exceptions.PolarsError as error:
        raise TraceError(place, f"is not valid CSV ({str(error).splitlines()[0]})") from None
    for name in _LOG:
        if name not in log.columns:
            raise TraceError(place, f"missing column {name}; a log of requests requires {', '.join(_LOG)}")
        if log[name].null_count():
            row = int(log[name].is_null().arg_max() or 0) + 1
            raise TraceError(f"{place}, row {row}, {name}", "is empty")
        if name != "run" and not log[name].dtype.is_numeric():
            wrong = log[name].cast(pl.Float64, strict=False).is_null()
            row = int(wrong.arg_max() or 0)
            raise TraceError(f"{place}, row {row + 1}, {name}", f"must be a number, got {log[name][row]!r}")
    left = {str(name): rows for (name,), rows in log.group_by("run", maintain_order=True)}
    merged = []
    for run in runs:
        own = next((name for name in left if _names(name, run)), None)
        merged.append(run if own is None else replace(run, requests=left.pop(own).select(_LOG[1:])))
    if left:
        raise TraceError(f"{place}, run", f"unknown run {next(iter(left))!r}")
    return merged


def _names(name: str, run: MeasuredRun) -> bool:
    return name == run.id or run.id.endswith("-" + name.replace("/", "-"))
