"""What the host of a measured server takes for an iteration, from some rows, to be judged on the others.

The numbers are the best of a grid (0, 0.5, 1, 1.5, 2 and 3 ms; 0, 20, 40 and 60 µs a sequence) by the sum of
the median errors of mean TPOT and mean E2E over the rows they are taken on. No row serves for both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

from inferq.experiments.validation.measured_run import MeasuredRun
from inferq.experiments.validation.settings import Assumed, engine_for
from inferq.scheduler import VllmV1
from inferq.systems.engine import Engine, Overhead


class HostTime(NamedTuple):
    """The time of a release, and the rows it is taken on."""

    overhead: Overhead
    taken_on: str
    is_taken_on: Callable[[MeasuredRun], bool]


HOST_TIMES = {
    ("vllm", "0.11.0"): HostTime(
        Overhead(base_s=0.001, per_sequence_s=2e-5),
        "KubeCon's rows with 128 sequences",
        lambda run: run.max_num_seqs == 128,
    ),
    ("vllm", "0.12.0"): HostTime(
        Overhead(per_sequence_s=6e-5),
        "prompts below 1,500 tokens",
        lambda run: (run.input_mean or 0) < 1500,
    ),
    ("vllm", "0.15.1"): HostTime(
        Overhead(), "CodeLlama-34b", lambda run: "codellama" in (run.model or "").lower()
    ),
    ("sglang", "0.5.1.post1"): HostTime(
        Overhead(base_s=0.0005, per_sequence_s=2e-5),
        "prompts below 1,500 tokens",
        lambda run: (run.input_mean or 0) < 1500,
    ),
}
"""By server and release."""


def host_of(run: MeasuredRun) -> HostTime | None:
    """The host's time of a run's server; None where no rows of that release are known."""
    return HOST_TIMES.get(((run.engine or "").lower(), run.engine_version or ""))


def with_host(run: MeasuredRun, assumed: Assumed) -> Engine:
    """`engine_for` with the host's time of that release: for `validate(…, engine=with_host)`.

    Raises:
        TraceError: as `engine_for`.
    """
    engine, host = engine_for(run, assumed), host_of(run)
    if host is None:
        return engine
    assumed.take("host", f"{host.overhead!r}", f"taken on {host.taken_on}")
    return dataclasses.replace(engine, overhead=host.overhead)


def one_at_a_time(run: MeasuredRun, assumed: Assumed) -> Engine:
    """`engine_for` without planning ahead."""
    engine = engine_for(run, assumed)
    if not isinstance(engine.scheduler, VllmV1) or not engine.scheduler.async_scheduling:
        return engine
    assumed.take("async_scheduling", "off", "as asked")
    assumed.settings.pop("pause_s", None)
    scheduler = dataclasses.replace(engine.scheduler, async_scheduling=False, pause_s=0.0)
    return dataclasses.replace(engine, scheduler=scheduler)
