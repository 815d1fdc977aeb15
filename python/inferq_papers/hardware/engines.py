"""Engines of measured runs without server times and without asynchronous scheduling."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import inferq as iq


def without_times(run: iq.MeasuredRun, assumed: Any) -> iq.Engine:
    """The engine of `iq.engine_for` without the times of the host and of the API."""
    engine = iq.engine_for(run, assumed)
    for setting in ("overhead", "api_s"):
        assumed.assume(setting, "none", "as asked")
    return dataclasses.replace(engine, overhead=None, api_s=0)


def one_at_a_time(run: iq.MeasuredRun, assumed: Any) -> iq.Engine:
    """The engine of `without_times` without asynchronous scheduling."""
    engine = without_times(run, assumed)
    if "overlap" in engine.scheduler.written_fields():
        assumed.assume("overlap", "off", "as asked")
        kind: Any = type(engine.scheduler)
        fields = {name: getattr(engine.scheduler, name) for name in kind.written_fields()}
        return dataclasses.replace(engine, scheduler=kind(**{**fields, "overlap": False}))
    if not isinstance(engine.scheduler, iq.VllmV1) or not engine.scheduler.async_scheduling:
        return engine
    assumed.assume("async_scheduling", "off", "as asked")
    assumed.settings.pop("pause_s", None)
    scheduler = dataclasses.replace(engine.scheduler, async_scheduling=False, pause_s=0.0)
    return dataclasses.replace(engine, scheduler=scheduler)


def with_stand_in(run: iq.MeasuredRun, assumed: Any) -> iq.Engine:
    """The engine of `iq.engine_for`; for TensorRT-LLM, vLLM's scheduler without host and API times.

    TensorRT-LLM also uses continuous batching, and overlaps the host with the GPU. By default it admits a
    request only if the KV cache has room for its whole output, so it never preempts
    (`GUARANTEED_NO_EVICT`); here a sequence limit stands for this rule. Its chunked prefill is not simulated.
    """
    if run.engine != "trtllm":
        return iq.engine_for(run, assumed)
    settings = dataclasses.replace(run, engine="vllm", engine_version="0.13", async_scheduling=0)
    engine = without_times(settings, assumed)
    assumed.assume("engine", "vLLM's scheduler", "TensorRT-LLM's scheduler is not supported")
    if engine.kv.tokens is None or not isinstance(engine.scheduler, iq.VllmV1):
        return engine
    request_tokens = math.ceil((run.input_mean or 0) + (run.output_mean or 0))
    most = max(1, min(engine.scheduler.max_seqs, engine.kv.tokens // max(1, request_tokens)))
    return dataclasses.replace(engine, scheduler=dataclasses.replace(engine.scheduler, max_seqs=most))
