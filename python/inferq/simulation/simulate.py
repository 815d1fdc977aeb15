"""A run: a workload sent through an engine, a cluster or a network."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from inferq import _core
from inferq._lazy import NDArray, np, pl
from inferq.checks import flag, not_negative, positive, whole
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
from inferq.simulation.core_input import ONE_CLASS, Crossing, SessionCodes
from inferq.simulation.slots import nothing_measured, of_slots
from inferq.systems.gate_and_route import GateAndRoute, earned
from inferq.systems.network import Network
from inferq.systems.network_jobs import expanded
from inferq.systems.pools import recorded
from inferq.systems.system import SYSTEMS, System
from inferq.workload.columns import Table, class_names, sha256
from inferq.workload.dependencies import Flow, of_sessions
from inferq.workload.parts import OfFrame, Parts, Scanned
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
    iterations: bool = False,
    batches: bool = False,
    stepping: bool = False,
    threads: int | None = None,
    progress: bool | Progress | None = None,
    out: str | os.PathLike[str] | None = None,
) -> Result:
    """Send a workload through an engine, a cluster or a network, and return what became of every request.

    The same arguments give the same bytes on every machine. The call keeps no state, and reads no files but
    those of a workload that is scanned.

    A request with `think_s` arrives so many seconds after the nearest earlier request of its session has
    finished, and never when that one does not finish; see `Workload`.

    Args:
        workload: a `Workload`, or what `Workload` takes: a frame, a dict of columns, a list of dicts.
        system: what serves it: an `Engine`, a `Cluster`, a `Disaggregated`, a cluster under `GateAndRoute`,
            or a `Network`, for which the rows of the workload are jobs.
        seed: draws the random parts of workload, lengths of stages and routers, 0 to 2^64 − 1.
        horizon_s: the run ends at this instant, what happens at it included; an iteration still running emits
            nothing. None runs until nothing is left to do.
        warmup: requests (for a network: jobs) that are served but not measured: the first so many (an int),
            or those of the first seconds of arrival time (`"30s"`). The order and time of arrival are those
            of the workload, also where requests wait for others.
        cooldown: the same at the end of the workload.
        max_in_flight: the clients send no request while so many are under way, 1 or above, as load generators
            with a fixed number of connections do. A request that is due then is sent when one has left, in
            the order in which they were due; its `arrival_s`, and every latency, counts from there. None:
            each is sent when it is due. Jobs of a network and exponential slots have no such limit.
        timeline_s: seconds between two samples of `Result.timeline`; None takes 1/500 of the span.
        iterations: record `Result.iterations`.
        batches: record `Result.batches`, and the iterations that it refers to.
        stepping: advance iterations one by one; slower, equal in every result.
        threads: how many may be used where replicas do not see each other, 1 or above; None takes every core.
            It changes no bit of a result.
        progress: True shows a bar on a terminal once a run has lasted half a second, and nothing where
            standard error is no terminal; a callable gets (requests done, requests in all) now and then.
        out: a directory for the results, made where it is missing; the result is then a `StoredResult`, whose
            `requests` are a lazy frame over it. Rows are written while the run goes on, as soon as all before
            them have left, and the workload is gone through in parts (`Workload.parts`): memory holds the
            requests in the system and those behind the oldest of them; with a prefix cache also what it
            knows, the names of texts, and for rows (or turns of sessions) that later parts continue with what
            they begin. Where requests wait for others (`think_s`, a `Network`, `max_in_flight`), under
            `GateAndRoute`, and with `iterations` or `batches`, the run is in memory and is written when it is
            over. The bytes are the same either way. A directory that holds a finished run or another one is
            refused; one in which the same run was stopped keeps its parts, with a warning that says how far
            it came, and the run goes through all again.

    Raises:
        ConfigError: an option outside its range, or one that does not apply; it names the option.
        OSError: `out` cannot be written; what is in it stays readable.
        TraceError: a workload that is wrong or lacks a column; it names the row or the column.
        SimulationError: the clock overflowed, or a policy broke a rule.
        KeyboardInterrupt: Ctrl-C stops a run at once; so does an exception that `progress`, the function of
            a `ByKey`, the `plan` of a scheduler or the `route` of a router of your own raises, which passes.

    Example:
        Under slots of one second a prompt takes one, and each further token one more:

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
    iterations: bool = False,
    batches: bool = False,
    stepping: bool = False,
) -> dict[str, Any]:
    """The options of `simulate` that change a result, checked, in the form that the core reads."""
    clients = (
        {}
        if max_in_flight is None
        else {"max_in_flight": whole("max_in_flight", max_in_flight, 1, 2**32 - 1)}
    )
    return {
        "seed": whole("seed", seed, 0, 2**64 - 1),
        "horizon_s": None if horizon_s is None else not_negative("horizon_s", horizon_s),
        "warmup": _cut("warmup", warmup),
        "cooldown": _cut("cooldown", cooldown),
        "timeline_s": None if timeline_s is None else positive("timeline_s", timeline_s),
        "iterations": flag("iterations", iterations) | flag("batches", batches),
        "batches": batches,
        "stepping": flag("stepping", stepping),
        **clients,
    }


def _cut(name: str, value: object) -> dict[str, float]:
    """What a warm-up or a cool-down cuts, in the form that the core reads."""
    text = _SECONDS.fullmatch(value.strip()) if isinstance(value, str) else None
    if text is not None and math.isfinite(float(text[1])):
        return {"seconds": float(text[1])}
    try:
        return {"requests": whole(name, value, 0, 2**32 - 1)}
    except ConfigError:
        raise ConfigError(
            name, f"must be requests such as 1000 or seconds such as '30s', is {value!r}"
        ) from None


def _served(
    source: Workload, system: System, options: dict[str, Any], threads: int | None, progress: Progress | None
) -> Result:
    """Draw the workload, take it through the pools of the system, and keep what came out: the one road."""
    record = {**recorded(system), **options}
    if isinstance(system, Network):
        tables = _jobs(source, system, options, threads, progress)
    elif isinstance(system, GateAndRoute):
        tables = _gated(source, system, options, threads, progress)
    else:
        frame = source.ready(options["seed"])
        tables = _run(system, frame, of_sessions(frame), None, options, threads, progress)[0]
    return Result(tables, record, source, system)


def _jobs(
    source: Workload,
    network: Network,
    options: dict[str, Any],
    threads: int | None,
    progress: Progress | None,
) -> RunTables:
    """Jobs through a network."""
    if "max_in_flight" in options:
        raise ConfigError("max_in_flight", "counts requests, and a job of a network is several of them")
    frame = source.draw(options["seed"]).frame
    jobs = expanded(network, frame, options["seed"])
    cuts = {name: jobs.cut(name, options[name]) for name in ("warmup", "cooldown")}
    tables, elapsed_s, measured = _run(
        network, jobs.frame, jobs.flow, jobs.pool, {**options, **cuts}, threads, progress
    )
    assert elapsed_s is not None  # stages wait for others
    assert isinstance(tables.requests, RequestColumns)
    arrival_s = frame["arrival_s"].to_numpy()
    tables.workload = frame
    tables.names = {**jobs.names, **tables.names}
    tables.requests = jobs.placed(tables.requests)
    tables.jobs = jobs.table(tables.requests, elapsed_s, arrival_s, options["horizon_s"], measured)
    return tables


def _gated(
    source: Workload,
    system: GateAndRoute,
    options: dict[str, Any],
    threads: int | None,
    progress: Progress | None,
) -> RunTables:
    """A cluster under gate and route, and what it earned."""
    frame = source.ready(options["seed"])
    if "patience_s" in frame.columns:
        raise ConfigError("patience_s", "under GateAndRoute patience is drawn by its `abandonment`")
    if "cancel_s" in frame.columns:
        raise ConfigError("cancel_s", "under GateAndRoute clients take nothing back")
    sessions = of_sessions(frame)
    if system.service == "exponential":
        if "max_in_flight" in options:
            raise ConfigError("max_in_flight", "exponential services know no clients: use service='tokens'")
        if sessions is not None:
            raise ConfigError(
                "think_s", "exponential services know no sessions: use .open_loop(), or service='tokens'"
            )
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


def _end_s(tables: RunTables, horizon_s: float | None) -> float:
    """Until when averages and revenue count: the horizon, where something is left to come after it."""
    unfinished = tables.statuses[STATUSES.index("unfinished")]
    is_over = sum(tables.statuses) == tables.workload.height and not unfinished
    return float(tables.totals["end_s"]) if horizon_s is None or is_over else horizon_s


def _counted_from(warmup: dict[str, float], frame: pl.DataFrame) -> float:
    """The instant from which averages and revenue count."""
    if "seconds" in warmup:
        return warmup["seconds"]
    rows = int(warmup["requests"])
    if rows >= frame.height:
        raise ConfigError("warmup", f"{rows} requests of {frame.height}: none is left to measure")
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
    """Take the columns of a ready frame through the core: the one door.

    Returns the tables; where requests wait for others the time from the `arrival_s` of each in the frame to
    its last token; and the rows that warm-up and cool-down leave, from the first to before the second.

    Args:
        system: whose pools serve the requests.
        frame: the requests.
        flow: which of them wait for others.
        entered: the pool that each enters; None where all enter the first.
        options: of `simulate`, in the form that the core reads.
        threads: how many may be used.
        progress: gets how far the run is.
    """
    crossing = Crossing(system, frame.columns)
    columns = crossing.columns(frame, entered)
    if flow is not None:
        columns.update(flow.columns())
    classes = class_names(frame) or [ONE_CLASS]
    tables = _core.simulate(
        crossing.scenario(options), columns, classes, crossing.user_defined(), threads, progress
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
    """The same into a directory, with as little in memory as can be."""
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
            rows, names, column = drawn.height, drawn.columns, OfFrame(drawn).column
            store.frame("workload.parquet", drawn)
            store.names = tables.names
            store.take(tables.requests)
        else:
            tables = _part_by_part(parts, system, options, threads, progress, store)
            drawn = parts.frame if isinstance(parts, OfFrame) else tables.workload
            rows, names, column = parts.rows, parts.columns, parts.column
        for frame in source.rows_beside():
            if frame is not drawn:
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
    """Run over the parts of a workload: its `requests` go to the store, the other tables come back."""
    crossing = Crossing(system, parts.columns)
    classes = parts.classes or [ONE_CLASS]
    if isinstance(parts, OfFrame):
        store.frame("workload.parquet", parts.frame)
    store.names = {"class": classes, "status": STATUSES}

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
        lambda rows: store.take(RequestColumns(rows)),
        classes,
        crossing.user_defined(),
        threads,
        progress,
    )
    del tables["measured"]
    tables["findings"] = core_findings(tables["findings"])
    return RunTables(store.names, pl.DataFrame(), {}, **tables)
