"""`inferq replay`: replay a trace on one replica, or on several behind a router."""

from __future__ import annotations

from inferq.cli import arguments, options, show
from inferq.cli.groups import EngineOptions, FleetOptions, RunOptions, TraceFormat, expanded
from inferq.results.costs import hourly
from inferq.scenario import Scenario
from inferq.systems.prices import Prices
from inferq.workload.trace_options import TraceOptions


@expanded
def replay(
    file: arguments.Trace,
    trace_options: TraceOptions,
    trace_format: TraceFormat,
    engine_options: EngineOptions,
    fleet: FleetOptions,
    run: RunOptions,
    prices: arguments.Prices = None,
    out: arguments.Out = None,
) -> None:
    """Replay a trace on one replica, or on several behind a router.

    Example: inferq replay traces/azure_2023.csv --model llama-3.1-8b --gpu a100-80gb --rate 8
    """
    engine = engine_options.engine()
    priced = Prices.of(prices)
    system = fleet.system(engine)
    notes: list[str] = []
    workload = trace_options.apply(trace_format.read(file), notes)
    scenario = Scenario(workload, system, run.as_options())
    if priced is not None:
        hourly(system, priced)
    show.lines([f"replay {file}", *notes])
    show.system(system, options.preset(engine_options.timing, engine_options.model))
    show.written(scenario.run(progress=True), out, priced)
