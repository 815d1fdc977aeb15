"""`simulate`: a run of a workload on an engine, a cluster or a network."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from inferq import _core
from inferq._lazy import NDArray, np, pl
from inferq.checks import flag, not_negative, positive, shown, whole
from inferq.description import member
from inferq.errors import ConfigError
from inferq.progress import Progress, watched
from inferq.results.finding import Finding
from inferq.results.findings import all_findings
from inferq.results.result import Result, scenario_of
from inferq.results.run_facts import RunFacts, common_facts
from inferq.results.store import Store
from inferq.results.stored_result import StoredResult
from inferq.results.tables import STATUSES, Columns, RequestColumns, RunTables, core_findings
from inferq.simulation.core_input import ONE_CLASS, CoreInput, SessionCodes
from inferq.simulation.slots import nothing_measured, of_slots
from inferq.systems.gate_and_route import GateAndRoute, earned
from inferq.systems.network import Network
from inferq.systems.network_jobs import expanded
from inferq.systems.pools import recorded
from inferq.systems.system import SYSTEMS, System
from inferq.workload.columns import Table, class_names, sha256
from inferq.workload.dependencies import Flow, session_flow
from inferq.workload.parts import FrameParts, Parts, Scanned
from inferq.workload.prefixes import Contents
from inferq.workload.rows import file_name
from inferq.workload.workload import Workload

_SECONDS = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*s")


def simulate(
    workload: Workload | Table,
    system: System,
    *,
    seed: int = 0,
    horizon_s: float | None = None,
    warmup: int | str = 0,
    cooldown: int | str = 0,
    max_in_flight: int | None = None,
    timeline_s: float | None = None,
    itl_limits_s: Sequence[float] = (),
    iterations: bool = False,
    batches: bool = False,
    stepping: bool = False,
    threads: int | None = None,
    progress: bool | Progress | None = None,
    out: str | os.PathLike[str] | None = None,
) -> Result:
    """Simulate a workload on an engine, a cluster or a network and return the times of every request.

    The same arguments give the same bytes on every machine. The call keeps no state and reads no files except
    those of a scanned workload.

    A request with `think_s` arrives that many seconds after the preceding request of its session finished. If
    that request does not finish, it never arrives; see `Workload`.

    Args:
        workload: a `Workload`, or data for one: a frame, a dict of columns, a list of dicts.
        system: an `Engine`, a `Cluster`, a `Disaggregated`, a cluster under `GateAndRoute`, or a `Network`,
            whose
            workload consists of jobs.
        seed: seed of all random draws (workload, lengths of stages, routers), 0 to 2^64 − 1.
        horizon_s: the run ends at this time, events at it included; an iteration in progress emits nothing.
            Default: the run ends when no work is left.
        warmup: requests (in a network: jobs) that are served but not measured: a number of requests (int) or
            seconds of arrival time (`"30s"`) from the start of the workload.
        cooldown: the same at the end of the workload.
        max_in_flight: concurrency limit of the clients, at least 1, as in load generators with a fixed number
            of
            connections. A request that is due while the limit is reached is sent when another one leaves, in
            order of due time; `arrival_s` and all latencies count from there. Default: no limit. Not
            available for networks and exponential slots.
        timeline_s: seconds between samples of `Result.timeline`. Default: 1/500 of the span.
        itl_limits_s: seconds at which the bins of `Result.itl` are split, which makes comparisons of ITL
            percentiles with these limits exact. `capacity` and `plan` set it from their SLO.
        iterations: record `Result.iterations`.
        batches: record `Result.batches` and the iterations that it refers to.
        stepping: advance iterations one by one. Slower; every result is the same.
        threads: threads for replicas that are independent of each other, at least 1. Default: all cores.
            Results do
            not depend on it.
        progress: True shows a bar in a terminal after half a second; a callable receives (finished requests,
            all
            requests).
        out: directory for the results, created if missing. The result is a `StoredResult`, whose `requests`
            are a
            lazy frame. Rows are written during the run, in order, and the workload is read in parts
            (`Workload.parts`). Memory holds the requests in the system and those behind the oldest of them;
            with a prefix cache also its contents and the prefixes that later rows continue. If requests wait
            for others (`think_s`, a `Network`, `max_in_flight`), under `GateAndRoute`, and with `iterations`
            or `batches`, the run stays in memory and is written at the end. The bytes are the same. A
            directory with a finished or different run is refused. If the same run was interrupted, its parts
            are kept with a warning and the run starts again.

    Raises:
        ConfigError: an option is out of range or does not apply; the message names it.
        OSError: `out` cannot be written; its content remains readable.
        TraceError: the workload is invalid or lacks a column; the message names the row or the column.
        SimulationError: the clock overflowed, or a policy broke a rule.
        KeyboardInterrupt: Ctrl-C stops a run at once. Exceptions raised by `progress`, by the function of a
            `ByKey`, or by a user's scheduler or router pass through unchanged.

    Example:
        With iterations of one second, a prompt takes one second and each further token one more:

        >>> import inferq as iq
        >>> engine = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.Sarathi(), kv=iq.KvCache(tokens=1000))
        >>> result = iq.simulate({"arrival_s": [0.0], "prompt_tokens": [10], "output_tokens": [3]}, engine)
        >>> result.requests.select("ttft_s", "tpot_s", "e2e_s").rows()
        [(1.0, 1.0, 3.0)]
    """
    member("system", system, SYSTEMS)
    options = core_options(
        seed=seed,
        horizon_s=horizon_s,
        warmup=warmup,
        cooldown=cooldown,
        max_in_flight=max_in_flight,
        timeline_s=timeline_s,
        itl_limits_s=itl_limits_s,
        iterations=iterations,
        batches=batches,
        stepping=stepping,
    )
    workers = None if threads is None else whole("threads", threads, 1, 2**16 - 1)
    source = workload if isinstance(workload, Workload) else Workload(workload)
    with watched(progress) as watch:
        if out is None:
            result = _served(source, system, options, workers, watch)
        else:
            result = _streamed(source, system, options, workers, watch, out)
        if watch is not None:
            rows = sum(result._tables.statuses)
            watch(rows, rows)
        return result


def core_options(
    *,
    seed: int = 0,
    horizon_s: float | None = None,
    warmup: int | str = 0,
    cooldown: int | str = 0,
    max_in_flight: int | None = None,
    timeline_s: float | None = None,
    itl_limits_s: Sequence[float] = (),
    iterations: bool = False,
    batches: bool = False,
    stepping: bool = False,
) -> dict[str, Any]:
    """Check the options of `simulate` that affect results and convert them for the core."""
    given: dict[str, Any] = {}
    if max_in_flight is not None:
        given["max_in_flight"] = whole("max_in_flight", max_in_flight, 1, 2**32 - 1)
    limits: Any = itl_limits_s
    if isinstance(limits, str) or not isinstance(limits, Iterable):
        raise ConfigError("itl_limits_s", f"must be a list of seconds, got {shown(limits)}")
    if limits := sorted({not_negative("itl_limits_s", limit) for limit in limits}):
        given["itl_limits_s"] = limits
    return {
        "seed": whole("seed", seed, 0, 2**64 - 1),
        "horizon_s": None if horizon_s is None else not_negative("horizon_s", horizon_s),
        "warmup": _cut("warmup", warmup),
        "cooldown": _cut("cooldown", cooldown),
        "timeline_s": None if timeline_s is None else positive("timeline_s", timeline_s),
        "iterations": flag("iterations", iterations) | flag("batches", batches),
        "batches": batches,
        "stepping": flag("stepping", stepping),
        **given,
    }


def _cut(name: str, value: object) -> dict[str, float]:
    """A warm-up or cool-down in the core's format."""
    text = _SECONDS.fullmatch(value.strip()) if isinstance(value, str) else None
    if text is not None and math.isfinite(float(text[1])):
        return {"seconds": float(text[1])}
    try:
        return {"requests": whole(name, value, 0, 2**32 - 1)}
    except ConfigError:
        raise ConfigError(
            name, f"must be a number of requests (1000) or seconds ('30s'), got {value!r}"
        ) from None


def _served(
    source: Workload, system: System, options: dict[str, Any], threads: int | None, progress: Progress | None
) -> Result:
    """Draw the workload, run it on the pools of the system, and collect the tables."""
    record = {**recorded(system), **options}
    if isinstance(system, Network):
        tables = _jobs(source, system, options, threads, progress)
    elif isinstance(system, GateAndRoute):
        tables = _gated(source, system, options, threads, progress)
    else:
        frame = source.ready(options["seed"])
        tables = _run(system, frame, session_flow(frame), None, options, threads, progress)[0]
        if "max_in_flight" in options:
            assert isinstance(tables.requests, RequestColumns)
            tables.requests = tables.requests.with_columns({"client_s": _client_s(tables, frame)})
    return Result(tables, record, source, system)


def _jobs(
    source: Workload,
    network: Network,
    options: dict[str, Any],
    threads: int | None,
    progress: Progress | None,
) -> RunTables:
    """Run the jobs of a network."""
    if "max_in_flight" in options:
        raise ConfigError(
            "max_in_flight",
            "is not available for a Network: it limits requests, and a job consists of several",
        )
    frame = source.draw(options["seed"]).frame
    jobs = expanded(network, frame, options["seed"])
    cuts = {name: jobs.cut(name, options[name]) for name in ("warmup", "cooldown")}
    tables, elapsed_s, measured = _run(
        network, jobs.frame, jobs.flow, jobs.pool, {**options, **cuts}, threads, progress
    )
    assert elapsed_s is not None  # stages wait for one another
    assert isinstance(tables.requests, RequestColumns)
    arrival_s = frame["arrival_s"].to_numpy()
    tables.workload = frame
    tables.names = {**jobs.names, **tables.names}
    tables.requests = tables.requests.with_columns(jobs.columns_of(tables.requests["id"]))
    tables.jobs = jobs.table(tables.requests, elapsed_s, arrival_s, options["horizon_s"], measured)
    return tables


def _gated(
    source: Workload,
    system: GateAndRoute,
    options: dict[str, Any],
    threads: int | None,
    progress: Progress | None,
) -> RunTables:
    """Run a cluster under gate and route, and compute its revenue."""
    frame = source.ready(options["seed"])
    if "patience_s" in frame.columns:
        raise ConfigError("patience_s", "is not available under GateAndRoute; set its `abandonment` instead")
    if "cancel_s" in frame.columns:
        raise ConfigError("cancel_s", "is not available under GateAndRoute; remove the column")
    sessions = session_flow(frame)
    if system.service == "exponential":
        if "max_in_flight" in options:
            raise ConfigError(
                "max_in_flight", "is not available with exponential services; use service='tokens'"
            )
        if sessions is not None:
            raise ConfigError(
                "think_s", "is not available with exponential services; use .open_loop() or service='tokens'"
            )
        options = {name: value for name, value in options.items() if name != "itl_limits_s"}
        return of_slots(system, frame, options, progress)
    tables, _, _ = _run(system, frame, sessions, None, options, threads, progress)
    start_s = _counted_from(options["warmup"], frame)
    end_s = _end_s(tables, options["horizon_s"])
    tables.occupancy, tables.revenue = earned(
        tables.requests, tables.timeline, system, len(tables.classes), start_s, end_s
    )
    if start_s >= end_s:
        tables.findings.append(nothing_measured(options))
    return tables


def _client_s(tables: RunTables, frame: pl.DataFrame) -> NDArray[np.float64]:
    """For each request the time from when it was due to when its client sent it."""
    due_s, flow = frame["arrival_s"].to_numpy().copy(), session_flow(frame)
    ids, finish_s = tables.requests["id"], np.full(frame.height, np.nan)
    finish_s[ids] = tables.requests["finish_s"]
    if flow is not None:
        before, after = np.repeat(np.arange(frame.height), np.diff(flow.children_start)), flow.children
        due_s[after] = finish_s[before] + flow.delay_s[after]
    waited_s: NDArray[np.float64] = np.maximum(tables.requests["arrival_s"] - due_s[ids], 0.0)
    return waited_s


def _end_s(tables: RunTables, horizon_s: float | None) -> float:
    """End of averages and revenue: the horizon if work is left after it, else the end of the run."""
    unfinished = tables.statuses[STATUSES.index("unfinished")]
    is_over = sum(tables.statuses) == tables.workload.height and not unfinished
    return float(tables.totals["end_s"]) if horizon_s is None or is_over else horizon_s


def _counted_from(warmup: dict[str, float], frame: pl.DataFrame) -> float:
    """Start of averages and revenue."""
    if "seconds" in warmup:
        return warmup["seconds"]
    rows = int(warmup["requests"])
    if rows >= frame.height:
        raise ConfigError(
            "warmup", f"excludes {rows} of {frame.height} requests, so none is measured; reduce it"
        )
    return float(frame["arrival_s"][rows]) if rows else 0.0


def _run(
    system: System,
    frame: pl.DataFrame,
    flow: Flow | None,
    entered: NDArray[np.uint32] | None,
    options: dict[str, Any],
    threads: int | None,
    progress: Progress | None,
) -> tuple[RunTables, NDArray[np.float64] | None, tuple[int, int]]:
    """Run the core on the columns of a frame.

    Returns:
        The tables; the time from the `arrival_s` of each request to its last token, if requests wait for
        others; and the range of measured rows.

    Args:
        system: the system, whose pools serve the requests.
        frame: the requests.
        flow: dependencies between requests.
        entered: the pool that each request enters. None: the first pool.
        options: options of `simulate` in the core's format.
        threads: maximum number of threads.
        progress: receives the progress.
    """
    core_input = CoreInput(system, frame.columns)
    columns = core_input.columns(frame, entered)
    if flow is not None:
        columns.update(flow.columns())
    classes = class_names(frame) or [ONE_CLASS]
    tables = _core.simulate(
        core_input.scenario(options), columns, classes, core_input.user_defined(), threads, progress
    )
    measured, rows = tables.pop("measured"), tables.pop("requests")
    tables["findings"] = core_findings(tables["findings"])
    elapsed_s = None if flow is None else rows.column("elapsed_s")
    return RunTables({"class": classes}, frame, RequestColumns(rows), **tables), elapsed_s, measured


def _streamed(
    source: Workload,
    system: System,
    options: dict[str, Any],
    threads: int | None,
    progress: Progress | None,
    out: str | os.PathLike[str],
) -> StoredResult:
    """Run into a directory, with little in memory."""
    scenario = scenario_of(source, {**recorded(system), **options})
    parts = None if isinstance(system, (Network, GateAndRoute)) else source.parts(options["seed"])
    in_memory = options["iterations"] or options["batches"] or "max_in_flight" in options
    is_whole = parts is None or in_memory or "think_s" in parts.columns
    scanned = Path(parts.path) if isinstance(parts, Scanned) and not is_whole else None
    known = None if parts is None or is_whole else parts.rows
    column: Callable[[str], Iterator[pl.Series]]
    with Store.opened(out, scenario, rows=known, workload=scanned) as store:
        if parts is None or is_whole:
            tables = _served(source, system, options, threads, progress)._tables
            drawn = tables.workload
            rows, names, column = drawn.height, drawn.columns, FrameParts(drawn).column
            store.frame("workload.parquet", drawn)
            store.names = tables.names
            store.take(tables.requests)
        else:
            tables = _part_by_part(parts, system, options, threads, progress, store)
            drawn = parts.frame if isinstance(parts, FrameParts) else tables.workload
            rows, names, column = parts.rows, parts.columns, parts.column
        for frame in source.hashed_rows(traces=True):
            if not frame.equals(drawn):
                store.frame(file_name(sha256(frame)), frame)
        facts = common_facts(tables, source, system, options)

        def findings_of(requests: Columns) -> list[Finding]:
            return all_findings(RunFacts(**facts, requests=requests, rows=rows, columns=names, column=column))

        store.finish(tables, findings_of)
        return StoredResult.opened(out, is_known=True)


def _part_by_part(
    parts: Parts,
    system: System,
    options: dict[str, Any],
    threads: int | None,
    progress: Progress | None,
    store: Store,
) -> RunTables:
    """Run over the parts of a workload: write `requests` to the store and return the other tables."""
    core_input = CoreInput(system, parts.columns)
    classes = parts.classes or [ONE_CLASS]
    if isinstance(parts, FrameParts):
        store.frame("workload.parquet", parts.frame)
    store.names = {"class": classes, "status": STATUSES}

    def columns() -> Iterator[dict[str, NDArray[Any]]]:
        coded, first = SessionCodes(), 0
        contents = Contents(parts.later_links()) if core_input.knows_prefixes else None
        for frame in parts.frames():
            yield core_input.columns(frame, None, first, coded, contents)
            first += frame.height

    tables = _core.simulate_streamed(
        core_input.scenario(options),
        parts.arrivals,
        columns(),
        lambda rows: store.take(RequestColumns(rows)),
        classes,
        core_input.user_defined(),
        threads,
        progress,
    )
    del tables["measured"]
    tables["findings"] = core_findings(tables["findings"])
    return RunTables(store.names, pl.DataFrame(), {}, **tables)
