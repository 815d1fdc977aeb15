"""What happens when this workload meets this engine?"""

from __future__ import annotations

import json
import math
import numbers
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from inferq import _core
from inferq.description import held, member
from inferq.engine import Engine
from inferq.errors import ConfigError
from inferq.result import Result
from inferq.scheduler import ByKey, Scheduler
from inferq.scheduler.order import queue_keys
from inferq.workload import Workload

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    from numpy.typing import NDArray

    from inferq.result import Tables

Progress = Callable[[int, int], object]

ONE_CLASS = "default"
"""The class of every request of a workload that names none."""

_SHOW_AFTER_S = 0.5
_SECONDS = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*s")


def simulate(
    workload: object,
    engine: Engine,
    *,
    seed: int = 0,
    horizon_s: float | None = None,
    warmup: int | str = 0,
    cooldown: int | str = 0,
    timeline_s: float | None = None,
    iterations: bool = False,
    batches: bool = False,
    stepping: bool = False,
    progress: bool | Progress | None = None,
) -> Result:
    """Send a workload through an engine and return what became of every request.

    The same arguments give the same bytes on every machine. The call reads no files and keeps no state.

    Args:
        workload: a `Workload`, or what `Workload` takes: a polars or pandas frame, or a dict of columns.
        engine: the replica that serves it.
        seed: draws the random parts of the workload, 0 to 2^64 − 1.
        horizon_s: the run ends at this instant, what happens at it included; an iteration still running emits
            nothing. None runs until nothing is left to do.
        warmup: requests that are served but not measured: the first so many (an int), or those of the first
            seconds of arrival time (`"30s"`).
        cooldown: the same at the end of the workload.
        timeline_s: seconds between two samples of `Result.timeline`; None takes 1/500 of the span.
        iterations: record `Result.iterations`.
        batches: record `Result.batches`, and the iterations that it refers to.
        stepping: advance iterations one by one; slower, equal in every result.
        progress: True shows a bar on a terminal once a run has lasted half a second, and nothing where
            standard error is no terminal; a callable gets (requests done, requests in all) now and then.

    Raises:
        ConfigError: an option outside its range, or one that does not apply; it names the option.
        TraceError: a workload that is wrong or lacks a column; it names the row or the column.
        SimulationError: the clock overflowed, or a policy broke a rule.
        KeyboardInterrupt: Ctrl-C stops a run at once; so does an exception that `progress`, the function of
            a `ByKey` or the `plan` of a scheduler of your own raises, which passes.

    Example:
        Under slots of one second a prompt takes one, and each further token one more:

        >>> import inferq as iq
        >>> engine = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.Sarathi(), kv=iq.KvCache(tokens=1000))
        >>> result = iq.simulate({"arrival_s": [0.0], "prompt_tokens": [10], "output_tokens": [3]}, engine)
        >>> result.requests.select("ttft_s", "tpot_s", "e2e_s").rows()
        [(1.0, 1.0, 3.0)]
    """
    member("engine", engine, (Engine,))
    scenario: dict[str, Any] = {
        "engine": engine.describe(),
        "seed": _seed(seed),
        "horizon_s": _seconds("horizon_s", horizon_s),
        "warmup": _cut("warmup", warmup),
        "cooldown": _cut("cooldown", cooldown),
        "timeline_s": _seconds("timeline_s", timeline_s),
        "iterations": _switch("iterations", iterations) | _switch("batches", batches),
        "batches": batches,
        "stepping": _switch("stepping", stepping),
    }
    if timeline_s == 0:
        raise ConfigError("timeline_s: must be above 0, is 0")
    source = workload if isinstance(workload, Workload) else Workload(workload)
    with _watched(progress) as watch:
        frame = source.ready(scenario["seed"])
        policy = engine.scheduler if engine.scheduler.is_written() else None
        order = next(held(engine, ByKey), None) if policy is None else None
        keys = None if order is None else queue_keys(order, frame)
        tables, classes = _run(scenario, frame, keys, policy, watch)
    return Result(tables, classes, frame, source, scenario)


def _run(
    scenario: dict[str, Any],
    frame: pl.DataFrame,
    queue_key: NDArray[np.float64] | None,
    policy: Scheduler | None,
    progress: Progress | None,
) -> tuple[Tables, list[str]]:
    """Take the columns of a ready frame through the core: the one door."""
    import polars as pl

    codes, classes = None, [ONE_CLASS]
    if "class" in frame.columns:
        named = frame["class"]
        codes = named.to_physical().cast(pl.UInt32).to_numpy()
        classes = cast("pl.Enum", named.dtype).categories.to_list()
    priority = frame["priority"].to_numpy() if "priority" in frame.columns else None
    patience, ttft_slo, tbt_slo = (
        frame[name].fill_null(math.nan).to_numpy() if name in frame.columns else None
        for name in ("patience_s", "ttft_slo_s", "tbt_slo_s")
    )
    named_columns = {
        "class": codes,
        "priority": priority,
        "patience_s": patience,
        "ttft_slo_s": ttft_slo,
        "tbt_slo_s": tbt_slo,
        "queue_key": queue_key,
    }
    columns = {name: frame[name].to_numpy() for name in ("arrival_s", "prompt_tokens", "output_tokens")}
    columns |= {name: column for name, column in named_columns.items() if column is not None}
    options = {name: value for name, value in scenario.items() if name != "engine"}
    pool = {"engines": [scenario["engine"]], "counts": [1], "router": None, "hands_to": None}
    written = {"schedulers": [] if policy is None else [(0, 0, [policy])], "routers": []}
    tables: Tables = _core.simulate(
        json.dumps({"pools": [pool], **options}), columns, classes, written, None, progress
    )
    return tables, classes


def _seed(seed: object) -> int:
    if isinstance(seed, bool) or not isinstance(seed, numbers.Integral) or not 0 <= int(seed) < 2**64:
        raise ConfigError(f"seed: must be a whole number from 0 to 2^64 - 1, is {seed!r}")
    return int(seed)


def _seconds(name: str, value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 <= float(value) < math.inf:
        raise ConfigError(f"{name}: must be a finite number of seconds, 0 or above, or None; is {value!r}")
    return float(value)


def _cut(name: str, value: object) -> dict[str, float]:
    """What a warm-up or a cool-down cuts, in the form that the core reads."""
    requests = -1 if isinstance(value, bool) else value
    if isinstance(requests, numbers.Integral) and 0 <= int(requests) < 2**32:
        return {"requests": int(requests)}
    text = _SECONDS.fullmatch(value.strip()) if isinstance(value, str) else None
    if text is None or not math.isfinite(float(text[1])):
        raise ConfigError(f"{name}: must be requests such as 1000 or seconds such as '30s', is {value!r}")
    return {"seconds": float(text[1])}


def _switch(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{name}: must be True or False, is {value!r}")
    return value


@contextmanager
def _watched(progress: object) -> Iterator[Progress | None]:
    """The callable that the core shall tell how far it is, or None."""
    if progress is None or progress is False:
        yield None
    elif callable(progress):
        yield progress
    elif progress is not True:
        raise ConfigError(f"progress: must be True, False, None or a callable, is {progress!r}")
    elif not sys.stderr.isatty():
        yield None
    else:
        bar = _Bar()
        try:
            yield bar
        finally:
            bar.close()


class _Bar:
    """A progress bar on standard error that appears only when a run takes its time."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._shown: Any = None
        self._task: Any = None

    def __call__(self, done: int, total: int) -> None:
        if self._shown is None:
            if time.monotonic() - self._started < _SHOW_AFTER_S:
                return
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("requests"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._shown = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._shown.add_task("requests", total=total)
            self._shown.start()
        self._shown.update(self._task, completed=done)

    def close(self) -> None:
        if self._shown is not None:
            self._shown.stop()
