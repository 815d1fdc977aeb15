"""What happens when this workload meets this engine, cluster or network?"""

from __future__ import annotations

import math
import numbers
import re
from typing import TYPE_CHECKING, Any

from inferq import _core
from inferq._lazy import np, pl
from inferq.description import member
from inferq.errors import ConfigError
from inferq.results.result import STATUSES, Result
from inferq.simulation.core_input import ONE_CLASS, Crossing
from inferq.simulation.progress import Progress, watched
from inferq.simulation.slots import NOTHING_MEASURED, of_slots
from inferq.systems.gate_and_route import GateAndRoute, earned
from inferq.systems.network import Network
from inferq.systems.network_jobs import expanded
from inferq.systems.system import SYSTEMS, System
from inferq.workload.columns import class_names
from inferq.workload.dependencies import Flow, of_sessions
from inferq.workload.workload import Workload

if TYPE_CHECKING:
    import os

    from numpy.typing import NDArray

_SECONDS = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*s")


def simulate(
    workload: object,
    system: System,
    *,
    seed: int = 0,
    horizon_s: float | None = None,
    warmup: int | str = 0,
    cooldown: int | str = 0,
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
        workload: a `Workload`, or what `Workload` takes: a polars or pandas frame, or a dict of columns.
        system: what serves it: an `Engine`, a `Cluster`, a `Disaggregated`, a cluster under `GateAndRoute`,
            or a `Network`, for which the rows of the workload are jobs.
        seed: draws the random parts of workload, lengths of stages and routers, 0 to 2^64 − 1.
        horizon_s: the run ends at this instant, what happens at it included; an iteration still running emits
            nothing. None runs until nothing is left to do.
        warmup: requests (for a network: jobs) that are served but not measured: the first so many (an int),
            or those of the first seconds of arrival time (`"30s"`). The order and time of arrival are those
            of the workload, also where requests wait for others.
        cooldown: the same at the end of the workload.
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
            they begin. Where requests wait for others (`think_s`, a `Network`), under `GateAndRoute`, and
            with `iterations` or `batches`, the run is in memory and is written when it is over. The bytes are
            the same either way. A directory that holds a finished run or another one is refused; one in which
            the same run was stopped keeps its parts, with a warning that says how far it came, and the run
            goes through all again.

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
        timeline_s=timeline_s,
        iterations=iterations,
        batches=batches,
        stepping=stepping,
    )
    workers = _threads(threads)
    source = workload if isinstance(workload, Workload) else Workload(workload)
    with watched(progress) as watch:
        if out is not None:
            from inferq.simulation.streamed import streamed

            stored = streamed(source, system, options, workers, watch, out)
            if watch is not None:
                watch(stored.height, stored.height)
            return stored
        result = served(source, system, options, workers, watch)
        if watch is not None:
            rows = result._tables["requests"]["status"].size
            watch(rows, rows)
        return result


def core_options(
    *,
    seed: int = 0,
    horizon_s: float | None = None,
    warmup: int | str = 0,
    cooldown: int | str = 0,
    timeline_s: float | None = None,
    iterations: bool = False,
    batches: bool = False,
    stepping: bool = False,
) -> dict[str, Any]:
    """The options of `simulate` that change a result, checked, in the form that the core reads."""
    if timeline_s == 0:
        raise ConfigError("timeline_s", "must be above 0, is 0")
    return {
        "seed": _seed(seed),
        "horizon_s": _seconds("horizon_s", horizon_s),
        "warmup": _cut("warmup", warmup),
        "cooldown": _cut("cooldown", cooldown),
        "timeline_s": _seconds("timeline_s", timeline_s),
        "iterations": _switch("iterations", iterations) | _switch("batches", batches),
        "batches": batches,
        "stepping": _switch("stepping", stepping),
    }


def served(
    source: Workload, system: System, options: dict[str, Any], threads: int | None, progress: Progress | None
) -> Result:
    """Draw the workload, take it through the pools of the system, and keep what came out: the one road."""
    seed = options["seed"]
    scenario = {system.name_of_kind: system.to_json(), **options}
    if isinstance(system, Network):
        frame = source.draw(seed).frame
        jobs = expanded(system, frame, seed)
        cuts = {name: jobs.cut(name, options[name]) for name in ("warmup", "cooldown")}
        tables, classes, elapsed_s = _run(
            system, jobs.frame, jobs.flow, jobs.pool, {**options, **cuts}, threads, progress
        )
        tables["elapsed_s"] = elapsed_s
        tables["requests"] = jobs.placed(tables["requests"])
        return Result(tables, classes, frame, source, scenario, jobs, system)
    frame = source.ready(seed)
    if isinstance(system, GateAndRoute):
        if "patience_s" in frame.columns:
            raise ConfigError("patience_s", "under GateAndRoute patience is drawn by its `abandonment`")
        if system.service == "exponential":
            if of_sessions(frame) is not None:
                raise ConfigError(
                    "think_s", "exponential services know no sessions: use .open_loop(), or service='tokens'"
                )
            return Result(*of_slots(system, frame, options, progress), frame, source, scenario, None, system)
    tables, classes, _ = _run(system, frame, of_sessions(frame), None, options, threads, progress)
    if isinstance(system, GateAndRoute):
        start_s = _counted_from(options["warmup"], frame)
        end_s = _end_s(tables, frame, options["horizon_s"])
        tables.update(earned(tables, system, len(classes), start_s, end_s))
        if start_s >= end_s:
            tables["findings"].append(NOTHING_MEASURED)
    return Result(tables, classes, frame, source, scenario, None, system)


def _end_s(tables: dict[str, Any], frame: pl.DataFrame, horizon_s: float | None) -> float:
    """Until when averages and revenue count: the horizon, where something is left to come after it."""
    status = tables["requests"]["status"]
    is_over = status.size == frame.height and not (status == STATUSES.index("unfinished")).any()
    return float(tables["totals"]["end_s"]) if horizon_s is None or is_over else horizon_s


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
) -> tuple[dict[str, Any], list[str], NDArray[np.float64] | None]:
    """Take the columns of a ready frame through the core: the one door.

    Returns what the core does, the names of the classes, and where requests wait for others the time from the
    `arrival_s` of each in the frame to its last token.

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
    tables: dict[str, Any] = _core.simulate(
        crossing.scenario(options), columns, classes, crossing.written(), threads, progress
    )
    return tables, classes, tables["requests"].pop("elapsed_s", None)


def _threads(threads: object) -> int | None:
    if threads is None:
        return None
    if (
        isinstance(threads, bool)
        or not isinstance(threads, numbers.Integral)
        or not 1 <= int(threads) < 2**16
    ):
        raise ConfigError(
            "threads", f"must be a whole number, 1 or above, or None for every core; is {threads!r}"
        )
    return int(threads)


def _seed(seed: object) -> int:
    if isinstance(seed, bool) or not isinstance(seed, numbers.Integral) or not 0 <= int(seed) < 2**64:
        raise ConfigError("seed", f"must be a whole number from 0 to 2^64 - 1, is {seed!r}")
    return int(seed)


def _seconds(name: str, value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 <= float(value) < math.inf:
        raise ConfigError(name, f"must be a finite number of seconds, 0 or above, or None; is {value!r}")
    return float(value)


def _cut(name: str, value: object) -> dict[str, float]:
    """What a warm-up or a cool-down cuts, in the form that the core reads."""
    requests = -1 if isinstance(value, bool) else value
    if isinstance(requests, numbers.Integral) and 0 <= int(requests) < 2**32:
        return {"requests": int(requests)}
    text = _SECONDS.fullmatch(value.strip()) if isinstance(value, str) else None
    if text is None or not math.isfinite(float(text[1])):
        raise ConfigError(name, f"must be requests such as 1000 or seconds such as '30s', is {value!r}")
    return {"seconds": float(text[1])}


def _switch(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(name, f"must be True or False, is {value!r}")
    return value
