"""What ran: model, hardware, engine, fleet, memory, requests and load, each in a line."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath
from typing import Any

from inferq._lazy import pl
from inferq.description import Description
from inferq.display.text import counted, listed, number, seconds
from inferq.errors import ConfigError, TraceError
from inferq.results.result import Result
from inferq.scheduler import Scheduler
from inferq.systems.cluster import Cluster
from inferq.systems.disaggregated import Disaggregated
from inferq.systems.engine import Engine
from inferq.systems.gate_and_route import GateAndRoute
from inferq.systems.pools import gpus_of, pools_of
from inferq.systems.system import System
from inferq.timing import TimingTable
from inferq.workload.workload import Workload

Lines = list[tuple[str, str]]


def of_run(result: Result) -> Lines:
    """What served a run, and what was asked of it."""
    system = result.system
    lines = [] if system is None else of_system(system)
    if result._workload is not None:
        lines.append(("Requests", _requests(result, result._workload)))
    lines.append(("Load", _load(result)))
    measured = int(result.requests.lazy().select(pl.col("measured").sum()).collect().item())
    arrived = int(result.requests.lazy().select(pl.len()).collect().item())
    cut = (
        ""
        if measured == arrived
        else f"; {measured:,} of {arrived:,} measured, without warm-up and cool-down"
    )
    lines.append(("Run", f"seed {result._options['seed']}{cut}"))
    return lines


def of_system(system: System) -> Lines:
    """What serves: model, hardware, engine, fleet, memory, and where the times are from."""
    engines = _engines(system)
    lines: Lines = []
    if models := _unique(one.on_card.get("model") for one in engines):
        lines.append(("Model", listed(models) + _precision(engines)))
    if hardware := gpus(system):
        lines.append(("Hardware", hardware))
    lines.append(("Engine", listed(_unique(map(_engine, engines)))))
    if fleet := _fleet(system):
        lines.append(("Fleet", fleet))
    lines.append(("Memory", listed(_unique(map(_memory, engines)))))
    lines.append(("Times", listed(_unique(map(_times, engines)))))
    return lines


def headline(result: Result) -> str:
    """What ran and at which load, in a line: the title of a page that has no other."""
    rate = arrival_rate(result)
    at = "" if rate is None else f" at {number(rate)} {'jobs' if result.has_jobs else 'requests'} per second"
    system = result.system
    return f"{'A run' if system is None else name_of(system)}{at}"


def name_of(system: System) -> str:
    """A system in a few words: the model on its GPUs under its engine, or the policy of its replicas."""
    engines = _engines(system)
    models, hardware = _unique(one.on_card.get("model") for one in engines), gpus(system)
    policies = listed(_unique(_policy(one) for one in engines))
    if models and hardware:
        return f"{listed(models)} on {hardware.partition(' (')[0]}, {policies}"
    if isinstance(system, GateAndRoute):
        return f"{system.replicas} replicas under GateAndRoute"
    replicas = sum(sum(pool.counts) for pool in pools_of(system))
    return f"{counted(replicas, 'replica')} under {policies}"


def gpus(system: System) -> str:
    """How many GPUs of which kind, and how many a replica has; empty where no engine names its card."""
    told = []
    for card, whole in gpus_of(system).items():
        each = _unique(
            f"{int(engine.on_card['tensor_parallel']):,} a replica"
            for engine in _engines(system)
            if engine.on_card["gpu"] == card
        )
        told.append(f"{whole:,} × {card} ({listed(each)})")
    return listed(told) if told else ""


def arrival_rate(result: Result) -> float | None:
    """Requests, of a network jobs, that arrived per second; None where all came at once."""
    rows = (result.jobs if result.has_jobs else result.requests).lazy()
    first_s, last_s, count = (
        rows.select(pl.col("arrival_s").min(), pl.col("arrival_s").max().alias("last"), pl.len().alias("n"))
        .collect()
        .row(0)
    )
    return (count - 1) / (last_s - first_s) if count > 1 and last_s > first_s else None


def _engines(system: System) -> list[Engine]:
    return [engine for pool in pools_of(system) for engine in pool.engines]


def _unique(texts: Iterable[Any]) -> list[str]:
    return list(dict.fromkeys(str(one) for one in texts if one))


def _precision(engines: list[Engine]) -> str:
    kinds = _unique(one.on_card.get("weights") for one in engines if one.on_card.get("weights") != "bf16")
    kinds += [
        f"KV cache in {one}"
        for one in _unique(one.on_card.get("kv_dtype") for one in engines)
        if one != "bf16"
    ]
    return f", {', '.join(kinds)}" if kinds else ""


def _policy(engine: Engine) -> str:
    return str(engine.on_card.get("server") or type(engine.scheduler).__name__)


def _engine(engine: Engine) -> str:
    """A server by its name or a policy, with the limits of a batch."""
    scheduler: Scheduler | Description = engine.scheduler
    limits = [
        f"{getattr(scheduler, name):,} {words}"
        for name, words in (("token_budget", "tokens"), ("max_seqs", "requests"))
        if isinstance(getattr(scheduler, name, None), int)
    ]
    policy, server = type(scheduler).__name__, engine.on_card.get("server")
    named = f"{server} ({policy})" if server else policy
    return f"{named}, up to {' and '.join(limits)} a batch" if limits else named


def _fleet(system: System) -> str:
    if isinstance(system, Cluster):
        behind = f"behind {type(system.router).__name__}"
        dying = "" if system.failures is None else ", some of which die"
        if (scaler := system.autoscaler) is not None:
            policy = type(scaler.policy).__name__
            return f"{scaler.min} to {scaler.max} replicas, {policy}, {behind}{dying}"
        return f"{counted(system.replicas or 1, 'replica')} {behind}{dying}"
    if isinstance(system, Disaggregated):
        prefill, decode = (sum(pool.counts) for pool in pools_of(system))
        return f"{prefill} replicas for prefill, {decode} for decode"
    if isinstance(system, GateAndRoute):
        return f"{system.replicas} replicas of {system.slots} slots behind gate and route"
    if isinstance(system, Engine):
        return "1 replica"
    return f"a network of the engines {listed(system.engines)}"


def _memory(engine: Engine) -> str:
    kv = engine.kv
    size = "unlimited KV cache" if kv.tokens is None else f"{kv.tokens:,} tokens of KV cache a replica"
    return f"{size}, prefix cache by {kv.prefix_cache}" if kv.prefix_cache else f"{size}, no prefix cache"


def _times(engine: Engine) -> str:
    """Where the times come from; of a table with the license of its source."""
    timing = engine.timing
    if not isinstance(timing, TimingTable):
        return f"{type(timing).__name__}, a formula"
    facts = timing.provenance
    named = " on ".join(str(facts[name]) for name in ("model", "gpu") if name in facts)
    rights = ". ".join(str(facts[name]).rstrip(".") for name in ("license", "attribution") if facts.get(name))
    if not facts and engine.on_card:  # of a stored run the numbers are kept, and beside them their source
        named = f"{engine.on_card['model']} on {engine.on_card['gpu']}"
        rights = str(engine.on_card.get("timing_source", "")).rstrip(".")
    measured = f"table of {named}" if named else "a table"
    source = f": {facts['source']}" if facts.get("source") else ""
    return f"{measured}{source}{f' ({rights})' if rights else ''}"


def _requests(result: Result, workload: Workload) -> str:
    """How many, where they come from, and how long they are."""
    rows = result.requests.lazy().select(
        pl.len().alias("n"), pl.col("prompt_tokens").mean(), pl.col("output_tokens").mean()
    )
    many, prompt, output = rows.collect().row(0)
    facts = workload.metadata
    source = "drawn from distributions" if workload.is_synthetic else "from a frame"
    if facts.get("source"):
        source = f"of {PurePath(str(facts['source'])).name}"
    elif "mix" in facts:
        source = "of a mix"
    jobs = f" of {result.jobs.height:,} jobs" if result.has_jobs else ""
    long = (
        f"; prompts of {number(prompt, 3)} and answers of {number(output, 3)} tokens in the mean"
        if many
        else ""
    )
    return f"{many:,} {source}{jobs}{long}"


def _load(result: Result) -> str:
    """How many came per second, or how many users there were."""
    rate, unit = arrival_rate(result), "jobs" if result.has_jobs else "requests"
    told = "all at once" if rate is None else f"{number(rate)} {unit} per second in the mean"
    try:
        workload = result._tables.workload
    except (ConfigError, TraceError):
        return told
    arrived = result.requests.lazy().select(pl.col("arrival_s").min(), pl.col("arrival_s").max().alias("b"))
    first_s, last_s = arrived.collect().row(0)
    if rate is not None:
        told += f", over {seconds(last_s - first_s)}"
    if "think_s" in workload.columns:
        told += "; turns wait for the answer before them"
    if most := result._options.get("max_in_flight"):
        told += f"; at most {most:,} under way at once"
    return told
