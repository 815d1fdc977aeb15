"""`inferq list`: what there is: models, GPUs, servers, schedulers, routers, formats, metrics."""

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
from inferq.timing.hardware.catalog import entries
from inferq.timing.hardware.model_shape import ModelShape
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
WHAT = ("models", "gpus", "servers", *_KINDS, "formats", "traces", "metrics")


def list(  # the word that the command line has
    what: Annotated[
        str, typer.Argument(metavar="WHAT", show_default=False, help=f"One of {', '.join(WHAT)}.")
    ],
) -> None:
    """List what can be named: models, GPUs, servers, schedulers, routers, trace formats, metrics.

    Example: inferq list gpus
    """
    show.grid(_grid(what.strip().lower()))


def _grid(what: str) -> Grid:
    if what == "models":
        models = [ModelShape.of(name) for name in entries("models")]
        gathered.value(
            what,
            [{"model": one.name, "parameters": one.parameters, "longest": one.max_model_len} for one in models],
        )
        rows = [(one.name, f"{one.parameters / 1e9:.1f} B", f"{one.max_model_len or 0:,}") for one in models]
        return _table(("model", "parameters", "longest"), rows)
    if what == "gpus":
        gathered.value(what, entries("gpus"))
        cards = entries("gpus").items()
        return _table(
            ("gpu", "memory GiB", "TB/s", "TFLOPS bf16"),
            (
                (
                    name,
                    f"{one['memory_bytes'] / 2**30:.0f}",
                    f"{one['bandwidth_bytes_per_s'] / 1e12:.2f}",
                    f"{one['bf16_flops'] / 1e12:.0f}",
                )
                for name, one in cards
            ),
        )
    if what == "servers":
        return _table(("server",), ((name,) for name in known_servers()))
    if what in ("formats", "traces"):
        return _table(("format", "what it is"), about_formats().items())
    if what == "metrics":
        units = dict.fromkeys(LATENCIES, "s") | RATES | dict.fromkeys(COUNTS, "count")
        units |= {"failed_share": "share", "hit_rate": "share"}
        return _table(("metric", "unit"), units.items())
    if what in _KINDS:
        return _table(
            ("name", "fields", "what it does"),
            (
                (options.option_name(one), ", ".join(one.written_fields()), _first_line(one))
                for one in _KINDS[what]
            ),
        )
    raise ConfigError("WHAT", f"nothing is called {what!r}{nearest(what, WHAT)}")


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Grid:
    return Grid(title="", header=header, lines=[[*row] for row in rows], texts=len(header))


def _first_line(kind: type[Any]) -> str:
    return (inspect.getdoc(kind) or "").partition("\n")[0]
