"""How does a run leave its results in a directory, with as little of it in memory as can be?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferq import _core
from inferq.results.result import STATUSES, Result, scenario_of
from inferq.results.store import Store
from inferq.results.stored_result import FRAMES, StoredResult
from inferq.simulation.core_input import ONE_CLASS, Crossing, SessionCodes
from inferq.systems.gate_and_route import GateAndRoute
from inferq.systems.network import Network
from inferq.workload.columns import sha256
from inferq.workload.parts import OfFrame, Parts, Scanned
from inferq.workload.prefixes import Contents
from inferq.workload.rows import file_name

if TYPE_CHECKING:
    import os

    from numpy.typing import NDArray

    from inferq.simulation.progress import Progress
    from inferq.systems.system import System
    from inferq.workload.workload import Workload


def streamed(
    source: Workload,
    system: System,
    options: dict[str, Any],
    threads: int | None,
    progress: Progress | None,
    out: str | os.PathLike[str],
) -> StoredResult:
    """Take a workload through a system, its results into a directory; arguments as those of `simulate`."""
    from inferq.simulation.simulate import served

    asked = {system.name_of_kind: system.to_json(), **options}
    scenario = scenario_of(source, asked)
    parts = None if isinstance(system, (Network, GateAndRoute)) else source.parts(options["seed"])
    in_memory = options["iterations"] or options["batches"]
    if parts is None or in_memory or "think_s" in parts.columns:
        store = Store(out, scenario)
        result = served(source, system, options, threads, progress)
        store.frame("workload.parquet", result._workload_frame)
        store.name({"class": result._classes, "status": STATUSES, **result._names()})
        store.take(result._tables["requests"])
    else:
        scanned = Path(parts.path) if isinstance(parts, Scanned) else None
        store = Store(out, scenario, rows=parts.rows, workload=scanned)
        tables, classes = _part_by_part(parts, system, options, threads, progress, store)
        result = Result(tables, classes, next(parts.frames()).head(0), source, asked)
    kept = parts.frame if isinstance(parts, OfFrame) else result._workload_frame
    for rows in source.rows_beside():
        if rows is not kept:
            store.frame(file_name(sha256(rows)), rows)
    store.close()
    _rest(store, result)
    return StoredResult.opened(out)


def _part_by_part(
    parts: Parts,
    system: System,
    options: dict[str, Any],
    threads: int | None,
    progress: Progress | None,
    store: Store,
) -> tuple[dict[str, Any], list[str]]:
    """Run over the parts of a workload: its `requests` go to the store, the other tables come back."""
    crossing = Crossing(system, parts.columns)
    classes = parts.classes or [ONE_CLASS]
    if isinstance(parts, OfFrame):
        store.frame("workload.parquet", parts.frame)
    store.name({"class": classes, "status": STATUSES})

    def columns() -> Iterator[dict[str, NDArray[Any]]]:
        coded, first = SessionCodes(), 0
        contents = Contents(parts.later()) if crossing.knows_prefixes else None
        for frame in parts.frames():
            yield crossing.columns(frame, None, first, coded, contents)
            first += frame.height

    tables = _core.simulate_streamed(
        crossing.scenario(options),
        parts.arrivals,
        columns(),
        store.take,
        classes,
        crossing.written(),
        threads,
        progress,
    )
    return tables, classes


def _rest(store: Store, result: Result) -> None:
    """Write everything but the rows of `requests`, and say that the run is over."""
    tables = result._tables
    for name in FRAMES:
        recorded = result._jobs if name == "jobs" else tables.get(name)
        if recorded is not None:
            store.frame(f"{name}.parquet", getattr(result, name))
    work = tables["work"]
    store.json("findings.json", result.findings)
    totals = {
        "classes": result._classes,
        "statuses": store.statuses,
        "totals": result.totals,
        "tbt_totals": tables["tbt_totals"],
        "work": None if work is None else {name: column.tolist() for name, column in work.items()},
        "drained": result.drained.to_list(),
    }
    store.json("totals.json", totals)
    store.complete()
