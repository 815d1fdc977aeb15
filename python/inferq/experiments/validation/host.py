"""The engine of a run without the times of its server, and without planning ahead: what each is worth."""

from __future__ import annotations

import dataclasses
from typing import Any

from inferq.experiments.validation.measured_run import MeasuredRun
from inferq.experiments.validation.settings import Assumed, engine_for
from inferq.scheduler import VllmV1
from inferq.systems.engine import Engine


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
