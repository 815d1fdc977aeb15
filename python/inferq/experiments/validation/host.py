"""What of a server's preset was taken on measured rows, and the engine of a run without it.

The times of the host and of the API in `servers.json` are the only numbers of a preset that no source of the
server says. Each was chosen on some rows of a publisher, and those rows judge nothing (`taken_on`).

The host's are of a grid (0, 0.5, 1 and 2 ms an iteration; 0, 10, 20, 40 and 60 µs a sequence; under vLLM
0.11 also 0, 2, 3 and 4 ms above 512 tokens), by the sum of the median errors of mean TPOT and mean E2E:
SGLang's the best by 1.1 points; vLLM 0.11's the second of 80, 0.2 points behind one that has nothing for a
sequence; vLLM 0.12's, with the base of 0.11, the third of 20, 0.4 points behind. The API's are the median of
what is missing from the mean TTFT below saturation, to half a millisecond.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from inferq.experiments.validation.measured_run import MeasuredRun
from inferq.experiments.validation.settings import Assumed, engine_for
from inferq.scheduler import VllmV1
from inferq.systems.engine import Engine


class Taken(NamedTuple):
    """Rows that a preset's numbers were taken on."""

    rows: str
    is_one: Callable[[MeasuredRun], bool]


TAKEN = {
    ("kubernetes-sigs/inference-perf", "0.11.0"): Taken(
        "KubeCon's rows with 128 sequences", lambda run: run.max_num_seqs == 128
    ),
    ("ai-dynamo/aiconfigurator", "0.12.0"): Taken(
        "prompts below 1,500 tokens", lambda run: (run.input_mean or 0) < 1500
    ),
    ("inference-sim/training", "0.15.1"): Taken(
        "CodeLlama-34b", lambda run: "codellama" in (run.model or "").lower()
    ),
    ("ai-dynamo/aiconfigurator", "0.5.1.post1"): Taken(
        "prompts below 1,500 tokens", lambda run: (run.input_mean or 0) < 1500
    ),
}
"""By publisher and release."""


def taken_on(run: MeasuredRun) -> str | None:
    """The rows, in words, that a preset was taken on, if this run is one of them."""
    for (source, release), taken in TAKEN.items():
        if (run.source or "").startswith(source) and run.engine_version == release and taken.is_one(run):
            return taken.rows
    return None


def without_times(run: MeasuredRun, assumed: Assumed) -> Engine:
    """`engine_for` by rules alone: without times of the host and of the API."""
    engine = engine_for(run, assumed)
    for setting in ("overhead", "api_s"):
        assumed.take(setting, "none", "as asked")
    return dataclasses.replace(engine, overhead=None, api_s=0)


def one_at_a_time(run: MeasuredRun, assumed: Assumed) -> Engine:
    """`without_times`, and without planning ahead."""
    engine = without_times(run, assumed)
    if "overlap" in engine.scheduler.written_fields():
        assumed.take("overlap", "off", "as asked")
        kind: Any = type(engine.scheduler)
        fields = {name: getattr(engine.scheduler, name) for name in kind.written_fields()}
        return dataclasses.replace(engine, scheduler=kind(**{**fields, "overlap": False}))
    if not isinstance(engine.scheduler, VllmV1) or not engine.scheduler.async_scheduling:
        return engine
    assumed.take("async_scheduling", "off", "as asked")
    assumed.settings.pop("pause_s", None)
    scheduler = dataclasses.replace(engine.scheduler, async_scheduling=False, pause_s=0.0)
    return dataclasses.replace(engine, scheduler=scheduler)
