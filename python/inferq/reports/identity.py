"""The setup of a run: model, hardware, engine, fleet, memory, requests and load, one line each."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath
from typing import Any

from inferq._lazy import pl
from inferq.description import Description
from inferq.display.text import counted, listed, number, seconds
from inferq.errors import ConfigError, TraceError
from inferq.results.replicas import Replicas
from inferq.results.result import Result
from inferq.results.tables import in_parts
from inferq.scheduler import Scheduler
from inferq.systems.autoscaler import Autoscaler
from inferq.systems.cluster import Cluster
from inferq.systems.disaggregated import Disaggregated
from inferq.systems.engine import Engine
from inferq.systems.gate_and_route import GateAndRoute
from inferq.systems.pools import gpus_of, pools_of
from inferq.systems.servers import program_of
from inferq.systems.system import System
from inferq.timing import TimingTable
from inferq.workload.load import Load
from inferq.workload.workload import Workload

Lines = list[tuple[str, str]]


def of_run(result: Result) -> Lines:
    """The system of a run and its load."""
    system = result.system
    lines = [] if system is None else of_system(system)
    if result._workload is not None:
        lines.append(("Requests", _requests(result, result._workload)))
    lines.append(("Load", _load(result)))
    if (replicas := Replicas.of(result._tables)) is not None:
        lines.append(("Replicas", f"{replicas}"))
    measured = int(result.requests.lazy().select(pl.col("measured").sum()).collect().item())
    arrived = int(result.requests.lazy().select(pl.len()).collect().item())
    excluded = ""
    if measured != arrived:
        excluded = f"; {measured:,} of {arrived:,} requests measured, without warm-up and cool-down"
    lines.append(("Run", f"seed {result._options['seed']}{excluded}"))
    return lines


def of_system(system: System) -> Lines:
    """Model, hardware, engine, fleet, memory and source of the iteration times."""
    engines = _engines(system)
    lines: Lines = []
    if models := _unique(engine.on_card.get("model") for engine in engines):
        lines.append(("Model", listed(models) + _precision(engines)))
    if hardware := gpus(system):
        lines.append(("Hardware", hardware))
    lines.append(("Engine", listed(_unique(map(_engine, engines)))))
    if fleet := _fleet(system):
        lines.append(("Fleet", fleet))
    lines.append(("Memory", listed(_unique(map(_memory, engines)))))
    lines.append(("Timing", listed(_unique(map(_times, engines)))))
    return lines


def headline(result: Result) -> str:
    """System and load in one line, the default title of a page."""
    arrived = load_of(result)
    load = "" if arrived is None else f" at {arrived.short}"
    system = result.system
    return f"{'Simulation run' if system is None else name_of(system)}{load}"


def name_of(system: System) -> str:
    """A short name: the model, its GPUs and its engine, or the policy of the replicas."""
    engines = _engines(system)
    models, hardware = _unique(engine.on_card.get("model") for engine in engines), gpus(system)
    policies = listed(_unique(map(_policy, engines)))
    if models and hardware:
        return f"{listed(models)} on {hardware.partition(' (')[0]}, {policies}"
    if isinstance(system, GateAndRoute):
        return f"{system.replicas} replicas with GateAndRoute"
    replicas = counted(sum(sum(pool.counts) for pool in pools_of(system)), "replica")
    if (scaler := _autoscaler(system)) is not None:
        replicas = f"{scaler.min} to {counted(scaler.max, 'replica')}"
    return f"{replicas} with {policies}"


def gpus(system: System) -> str:
    """The number of GPUs of each type, and per replica. Empty if no engine names its GPU."""
    types = []
    for gpu, total in gpus_of(system).items():
        each = _unique(
            f"{int(engine.on_card['tensor_parallel']):,} per replica"
            for engine in _engines(system)
            if engine.on_card["gpu"] == gpu
        )
        most = "" if _autoscaler(system) is None else "up to "
        types.append(f"{most}{total:,} × {gpu} ({listed(each)})")
    return listed(types) if types else ""


def load_of(result: Result) -> Load | None:
    """Arrivals of requests, or of jobs of a network. None if all arrive at one instant."""
    if result.has_jobs:
        return Load.of(lambda: [result.jobs["arrival_s"].drop_nulls().to_numpy()], "jobs")
    return Load.of(lambda: (part for (part,) in in_parts(result._tables.requests, ["arrival_s"])))


def varying_load(result: Result) -> Load | None:
    """The load of a run whose rate varies over time; None for a steady one."""
    load = load_of(result)
    return load if load is not None and load.varies else None


def _autoscaler(system: System) -> Autoscaler | None:
    return system.autoscaler if isinstance(system, Cluster) else None


def _engines(system: System) -> list[Engine]:
    return [engine for pool in pools_of(system) for engine in pool.engines]


def _unique(texts: Iterable[Any]) -> list[str]:
    return list(dict.fromkeys(str(text) for text in texts if text))


def _precision(engines: list[Engine]) -> str:
    weights = _unique(engine.on_card.get("weights") for engine in engines)
    caches = _unique(engine.on_card.get("kv_dtype") for engine in engines)
    kinds = [dtype for dtype in weights if dtype != "bf16"]
    kinds += [f"KV cache in {dtype}" for dtype in caches if dtype != "bf16"]
    return f", {', '.join(kinds)}" if kinds else ""


def _policy(engine: Engine) -> str:
    server = engine.on_card.get("server") if program_of(engine.scheduler) else None
    return str(server or type(engine.scheduler).__name__)


def _engine(engine: Engine) -> str:
    """The server or policy with the limits of its batches."""
    scheduler: Scheduler | Description = engine.scheduler
    limits = [
        f"{getattr(scheduler, name):,} {words}"
        for name, words in (("token_budget", "tokens"), ("max_seqs", "sequences"))
        if isinstance(getattr(scheduler, name, None), int)
    ]
    policy, server = type(scheduler).__name__, engine.on_card.get("server")
    named = f"{server} ({policy})" if server else policy
    return f"{named}, up to {' and '.join(limits)} per batch" if limits else named


def _fleet(system: System) -> str:
    if isinstance(system, Cluster):
        behind = f"behind {type(system.router).__name__}"
        failing = "" if system.failures is None else ", with failures"
        if (scaler := system.autoscaler) is not None:
            policy = type(scaler.policy).__name__
            return f"{scaler.min} to {scaler.max} replicas, {policy}, {behind}{failing}"
        return f"{counted(system.replicas or 1, 'replica')} {behind}{failing}"
    if isinstance(system, Disaggregated):
        prefill, decode = (sum(pool.counts) for pool in pools_of(system))
        return f"{counted(prefill, 'prefill replica')}, {counted(decode, 'decode replica')}"
    if isinstance(system, GateAndRoute):
        return f"{system.replicas} replicas with {system.slots} slots each, behind gate-and-route"
    if isinstance(system, Engine):
        return "1 replica"
    return f"network of the engines {listed(system.engines)}"


def _memory(engine: Engine) -> str:
    kv = engine.kv
    size = "unlimited KV cache" if kv.tokens is None else f"{kv.tokens:,} tokens of KV cache per replica"
    return f"{size}, prefix caching ({kv.prefix_cache})" if kv.prefix_cache else f"{size}, no prefix caching"


def _times(engine: Engine) -> str:
    """The timing model; for a table with its source and license."""
    timing = engine.timing
    if not isinstance(timing, TimingTable):
        return f"{type(timing).__name__} (formula)"
    facts = timing.provenance
    named = " on ".join(str(facts[name]) for name in ("model", "gpu") if name in facts)
    rights = ". ".join(str(facts[name]).rstrip(".") for name in ("license", "attribution") if facts.get(name))
    if not facts and engine.on_card:  # a stored run keeps the numbers, and their source with the engine
        named = f"{engine.on_card['model']} on {engine.on_card['gpu']}"
        rights = str(engine.on_card.get("timing_source", "")).rstrip(".")
    measured = f"measured table of {named}" if named else "measured table"
    source = f": {facts['source']}" if facts.get("source") else ""
    return f"{measured}{source}{f' ({rights})' if rights else ''}"


def _requests(result: Result, workload: Workload) -> str:
    """Number, source and mean lengths of the requests."""
    rows = result.requests.lazy().select(
        pl.len().alias("n"), pl.col("prompt_tokens").mean(), pl.col("output_tokens").mean()
    )
    count, prompt, output = rows.collect().row(0)
    facts = workload.metadata
    source = "drawn from distributions" if workload.is_synthetic else "from a frame"
    if facts.get("source"):
        source = f"from {PurePath(str(facts['source'])).name}"
    elif "mix" in facts:
        source = "from a mix"
    jobs = f" in {result.jobs.height:,} jobs" if result.has_jobs else ""
    lengths = ""
    if count:
        lengths = f"; mean prompt {number(prompt, 3)} tokens, mean output {number(output, 3)} tokens"
    return f"{count:,} {source}{jobs}{lengths}"


def _load(result: Result) -> str:
    """Arrivals per second and the span of arrivals, the peak, and the limits of a closed loop."""
    load = load_of(result)
    text = (
        "all arrive at one instant"
        if load is None
        else f"{number(load.rate_per_s)} {load.unit} per second on average"
    )
    try:
        workload = result._tables.workload
    except (ConfigError, TraceError):
        return text
    arrived = result.requests.lazy().select(pl.col("arrival_s").min(), pl.col("arrival_s").max().alias("b"))
    first_s, last_s = arrived.collect().row(0)
    if load is not None:
        text += f" over {seconds(last_s - first_s)}"
        if load.varies:
            text += f"; peak {number(load.peak_per_s)} in {load.when} (windows of {load.length})"
    if "think_s" in workload.columns:
        text += "; turns wait for the previous answer"
    if most := result._options.get("max_in_flight"):
        text += f"; at most {most:,} requests in flight"
    return text
