"""`inferq list`: list models, GPUs, tables, servers, schedulers, routers, formats and metrics."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from inferq.checks import nearest
from inferq.cli import gathered, options, show
from inferq.display.document import Grid
from inferq.errors import ConfigError
from inferq.results.metric import COUNTS, LATENCIES, RATES
from inferq.scheduler import SCHEDULERS
from inferq.systems.routers import ROUTERS
from inferq.systems.servers import known_servers
from inferq.timing import TIMING_MODELS
from inferq.timing.hardware.catalog import DOMAIN, entries
from inferq.timing.hardware.model_shape import ModelShape
from inferq.timing.tables.shipped import known_tables
from inferq.workload.distributions import ARRIVAL_PROCESSES, DURATION_DISTRIBUTIONS, LENGTH_DISTRIBUTIONS
from inferq.workload.traces.read_trace import about_formats

_KINDS: dict[str, tuple[type[Any], ...]] = {
    "schedulers": SCHEDULERS,
    "routers": ROUTERS,
    "timings": TIMING_MODELS,
    "arrivals": ARRIVAL_PROCESSES,
    "lengths": LENGTH_DISTRIBUTIONS,
    "durations": DURATION_DISTRIBUTIONS,
}
WHAT = ("models", "gpus", "tables", "servers", *_KINDS, "formats", "traces", "metrics")


def list(  # named after the command
    what: Annotated[
        str, typer.Argument(metavar="WHAT", show_default=False, help=f"One of {', '.join(WHAT)}.")
    ],
) -> None:
    """List available models, GPUs, measured tables, servers, schedulers, routers, trace formats or metrics.

    Example: inferq list gpus
    """
    show.grid(_grid(what.strip().lower()))


def _grid(what: str) -> Grid:
    if what == "models":
        models = [ModelShape.of(name) for name in entries("models")]
        gathered.value(what, [_facts(model) for model in models])
        header = (
            "model",
            "parameters",
            "active",
            "weights",
            "KV B/token",
            "in window",
            "state MB",
            "max length",
        )
        rows = [
            (
                model.name,
                f"{model.parameters / 1e9:.1f} B",
                f"{model.active_parameters / 1e9:.1f} B",
                model.checkpoint.weights,
                f"{model.kv_bytes_per_token():,}" if model.kv_bytes_per_token() else "–",
                f"{model.window_bytes_per_token():,}" if model.window_bytes_per_token() else "–",
                f"{model.state_bytes() / 1e6:.1f}" if model.state_bytes() else "–",
                f"{model.max_model_len:,}" if model.max_model_len else "–",
            )
            for model in models
        ]
        return _table(header, rows)
    if what == "gpus":
        gathered.value(what, entries("gpus"))
        return _table(
            ("gpu", "memory GiB", "TB/s", "TFLOPS bf16", "fp8", "fp4", "GPUs linked"),
            (
                (
                    name,
                    f"{gpu['memory_bytes'] / 2**30:.0f}",
                    f"{gpu['bandwidth_bytes_per_s'] / 1e12:.2f}",
                    *(
                        f"{gpu[rate] / 1e12:,.0f}" if rate in gpu else "–"
                        for rate in ("bf16_flops", "fp8_flops", "fp4_flops")
                    ),
                    str(gpu.get("domain", DOMAIN)),
                )
                for name, gpu in entries("gpus").items()
            ),
        )
    if what == "tables":
        return _tables()
    if what == "servers":
        return _table(("server",), ((name,) for name in known_servers()))
    if what in ("formats", "traces"):
        return _table(("format", "description"), about_formats().items())
    if what == "metrics":
        units = dict.fromkeys(LATENCIES, "s") | RATES | dict.fromkeys(COUNTS, "count")
        units |= {"failed_share": "share", "hit_rate": "share"}
        return _table(("metric", "unit"), units.items())
    if what in _KINDS:
        return _table(
            ("name", "fields", "description"),
            (
                (options.option_name(kind), ", ".join(kind.written_fields()), _first_line(kind))
                for kind in _KINDS[what]
            ),
        )
    raise ConfigError("WHAT", f"must be one of {', '.join(WHAT)}, got {what!r}{nearest(what, WHAT)}")


def _tables() -> Grid:
    """The shipped tables: a row for each model, GPU, backend and number formats."""
    gathered.value("measured_tables", [key._asdict() for key in known_tables()])
    sizes: dict[tuple[str, ...], dict[str, None]] = {}
    for key in known_tables():
        names = (key.model, key.gpu, key.backend, key.weights, key.kv_dtype)
        sizes.setdefault(names, {})[key.parallelism] = None
    header = ("model", "gpu", "backend", "weights", "KV cache", "tensor (expert, data) parallel")
    return _table(header, ((*names, ", ".join(parallel)) for names, parallel in sizes.items()))


def _facts(model: ModelShape) -> dict[str, Any]:
    """The facts of a model that the machine-readable output lists."""
    return {
        "model": model.name,
        "parameters": model.parameters,
        "active_parameters": model.active_parameters,
        "weights": model.checkpoint.weights,
        "kv_bytes_per_token": model.kv_bytes_per_token(),
        "window_bytes_per_token": model.window_bytes_per_token(),
        "index_bytes_per_token": model.index_bytes_per_token,
        "state_bytes": model.state_bytes(),
        "layer_groups": [
            {"layers": str(group), "kv_bytes_per_token": model.group_kv_bytes(group), "limit": group.limit}
            for group in model.groups
        ],
        "max_model_len": model.max_model_len,
    }


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Grid:
    return Grid(title="", header=header, lines=[[*row] for row in rows], texts=len(header))


def _first_line(kind: type[Any]) -> str:
    return (inspect.getdoc(kind) or "").partition("\n")[0]
