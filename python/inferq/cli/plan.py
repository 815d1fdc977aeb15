"""`inferq plan`: find the cheapest fleet that meets an SLO for a trace."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from inferq.checks import not_negative, positive
from inferq.cli import arguments, gathered, options, show
from inferq.cli.arguments import option
from inferq.cli.groups import Only, TraceFormat, expanded
from inferq.cli.objectives import Objectives, slo_of
from inferq.display.text import counted
from inferq.errors import ConfigError
from inferq.experiments.plans.fleet_plan import FleetPlan
from inferq.experiments.plans.plan import plan as cheapest
from inferq.experiments.plans.tables import candidates, frontier, windows
from inferq.experiments.report import checked
from inferq.experiments.report import report as write_report
from inferq.files import check_writable, write_text
from inferq.progress import watched
from inferq.scheduler import SCHEDULERS
from inferq.systems.routers import ROUTERS
from inferq.workload.trace_options import TraceOptions

_MOST_ROWS = 40
_CHOICES, _SEARCH = "Choices", "Search"


@expanded
def plan(
    file: arguments.Trace,
    slo: Objectives,
    model: Annotated[
        str,
        option("NAME|FILE", "Model to serve: a name or a config.json.", show_default=False, panel=_CHOICES),
    ],
    trace_options: Annotated[
        TraceOptions, Only(("head", "output_tokens", "deltas", "spread", "rate", "speed", "think"))
    ],
    trace_format: TraceFormat,
    gpus: Annotated[
        str | None,
        option("NAME,…", "GPUs. Default: those with a measured table of the model.", panel=_CHOICES),
    ] = None,
    tensor_parallel: Annotated[
        str, option("N,…", "Tensor-parallel sizes.", "--tensor-parallel", "--tp", panel=_CHOICES)
    ] = "1,2,4,8",
    scheduler: Annotated[
        list[str] | None,
        option(
            "SPEC",
            f"Scheduling policy: {options.spelled(SCHEDULERS)}. Repeatable. Default: the server's.",
            panel=_CHOICES,
        ),
    ] = None,
    token_budget: Annotated[
        str | None,
        option("N,…", "Token budgets of the server's scheduler. Default: the server's.", panel=_CHOICES),
    ] = None,
    prefix_cache: Annotated[
        str | None,
        option("KIND,…", "Prefix caching: blocks, radix or none. Default: the server's.", panel=_CHOICES),
    ] = None,
    pools: Annotated[
        str,
        option(
            "POOLS,…",
            "together, or prefill and decode replicas of a disaggregated fleet: together,1:1,1:2.",
            panel=_CHOICES,
        ),
    ] = "together",
    router: Annotated[
        list[str] | None,
        option(
            "SPEC",
            f"Routing policy: {options.spelled(ROUTERS)}. Repeatable. Default: least-requests.",
            panel=_CHOICES,
        ),
    ] = None,
    tune: Annotated[
        bool | None,
        option(
            None,
            "Compare token budgets of 256 to 4,096 with the server's. Default: if TTFT and ITL or TPOT are "
            "limited.",
            "--tune/--no-tune",
            show_default=False,
            panel=_CHOICES,
        ),
    ] = None,
    most_replicas: Annotated[int, option("N", "Maximum number of replicas.", panel=_CHOICES)] = 1024,
    server: Annotated[
        str | None,
        option("NAME", "Server version whose defaults apply. Default: the latest.", panel=_CHOICES),
    ] = None,
    max_model_len: Annotated[
        int | None, option("N", "Maximum tokens of a request. Default: the model's.", panel=_CHOICES)
    ] = None,
    weights: Annotated[
        str | None,
        option(
            "TYPE", "Data type of the weights, such as fp8 or awq. Default: the checkpoint's.", panel=_CHOICES
        ),
    ] = None,
    spare: Annotated[
        int, option("N", "Replicas in addition to those that meet the SLO; 1 is N+1.", panel=_CHOICES)
    ] = 0,
    within: Annotated[
        float, option("E", "Accepted excess over the lowest cost, as a share.", panel=_SEARCH)
    ] = 0.02,
    seeds: Annotated[int, option("N", "Initial number of seeds of a random workload.", panel=_SEARCH)] = 5,
    confidence: Annotated[float, option("C", "Confidence level, 0.5 to 1.", panel=_SEARCH)] = 0.95,
    threads: arguments.Threads = None,
    time: Annotated[
        float | None, option("SECONDS", "Time limit; undecided candidates are listed.", panel=_SEARCH)
    ] = None,
    resume: Annotated[
        Path | None,
        option("FILE", "Store finished runs in this .json file and continue from it.", panel=_SEARCH),
    ] = None,
    prices: arguments.Prices = None,
    sensitivity: Annotated[
        bool,
        option(None, "Show the effect of 10 % changes of the load.", "--sensitivity", panel="Output"),
    ] = False,
    schedule: Annotated[
        float | None,
        option("SECONDS", "Show the replicas needed in each window, such as 3600.", panel="Output"),
    ] = None,
    startup: Annotated[
        float, option("SECONDS", "Startup time of a replica, for --schedule.", panel="Output")
    ] = 0,
    page: Annotated[Path | None, option("FILE", "Write a page (.html).", panel="Output")] = None,
    out: Annotated[
        Path | None, option("FILE", "Write the fleet as a scenario for inferq gate (.toml).", panel="Output")
    ] = None,
) -> None:
    """Find the cheapest fleet that meets an SLO. Exit status 1 if there is none.

    Example: inferq plan traces/azure_2023.csv --rate 40 --slo ttft_p99=1 --model llama-3.1-8b --gpus h200
    """
    objectives = slo_of(slo)
    _check_files(page, out)
    _check_schedule(schedule, startup)
    schedulers = _schedulers(scheduler, token_budget)
    notes: list[str] = []
    workload = trace_options.apply(trace_format.read(file), notes)
    show.lines([f"plan {file}", *notes])
    engine_options: dict[str, Any] = {"server": server, "max_model_len": max_model_len, "weights": weights}
    with watched(True, "answers", in_a_pipe=True):
        fleet_plan = cheapest(
            workload,
            objectives,
            model=model,
            gpus=None if gpus is None else _names(gpus),
            tensor_parallel=[_whole("--tensor-parallel", size) for size in _names(tensor_parallel)],
            schedulers=schedulers,
            caches=None if prefix_cache is None else _names(prefix_cache),
            engine_options={name: value for name, value in engine_options.items() if value is not None},
            pools=_names(pools),
            routers=None if router is None else [options.router(text) for text in router],
            replicas=range(1, _whole("--most-replicas", most_replicas) + 1),
            tune=tune,
            spare=spare,
            prices=prices,
            within=within,
            seeds=range(_whole("--seeds", seeds)),
            confidence=confidence,
            threads=threads,
            time_s=time,
            resume=resume,
            log=show.log,
        )
    if schedule is not None and fleet_plan.fleet is not None:
        with watched(True, "windows", in_a_pipe=True):
            fleet_plan = replace(fleet_plan, scheduled=fleet_plan.schedule(schedule, startup_s=startup))
    fleet_plan = replace(fleet_plan, command=shlex.join(["inferq", *sys.argv[1:]]))
    _show(fleet_plan, sensitivity=sensitivity)
    _write(fleet_plan, page, out)
    if fleet_plan.fleet is None:
        raise typer.Exit(1)


def _check_files(page: Path | None, out: Path | None) -> None:
    """Check the output files before the search."""
    for name, target, suffix in (("--page", page, ".html"), ("--out", out, ".toml")):
        if target is not None and target.suffix != suffix:
            raise ConfigError(name, f"must end in {suffix}, got {target}")
    if page is not None:
        checked(page, "--page")
    if out is not None:
        check_writable(out)


def _check_schedule(schedule: float | None, startup: float) -> None:
    if schedule is None and startup:
        raise ConfigError("--startup", "requires --schedule")
    if schedule is not None:
        positive("--schedule", schedule)
    not_negative("--startup", startup)


def _show(fleet_plan: FleetPlan, *, sensitivity: bool) -> None:
    """Print the plan."""
    if gathered.is_on():
        gathered.value("candidates", fleet_plan.candidates.to_dicts())
    gathered.value("frontier", fleet_plan.frontier.to_dicts())
    show.answer(fleet_plan.findings)
    for grid in (candidates(fleet_plan, _MOST_ROWS), frontier(fleet_plan)):
        show.lines(["", grid.title])
        show.grid(grid)
    if fleet_plan.scheduled is not None:
        show.lines(fleet_plan.scheduled.explain().splitlines())
        show.grid(windows(fleet_plan, _MOST_ROWS))
    if sensitivity and fleet_plan.fleet is not None:
        show.lines(_sensitivity(fleet_plan))


def _write(fleet_plan: FleetPlan, page: Path | None, out: Path | None) -> None:
    if page is not None:
        with watched(True, "parts of the page", in_a_pipe=True) as progress:
            write_report(fleet_plan, page, progress=progress)
        show.lines([f"written to {page}"])
    if out is not None and fleet_plan.fleet is not None:
        write_text(out, fleet_plan.toml())
        show.lines([f"written to {out}"])


def _sensitivity(fleet_plan: FleetPlan) -> list[str]:
    """The effect of changes of the load, one per line."""
    assert fleet_plan.best is not None and fleet_plan.units is not None
    fleet = counted(fleet_plan.best.candidate.replicas_of_unit * fleet_plan.units, "replica")
    lines = []
    for row in fleet_plan.sensitivity().rows(named=True):
        verdict = "still meets the SLO" if row["meets_slo"] else "does not meet the SLO"
        needs = "no size is enough"
        if row["replicas"] is not None:
            needs = f"{counted(row['replicas'], 'replica')} needed"
        lines.append(f"{row['parameter']} × {row['factor']:g}: the fleet of {fleet} {verdict}; {needs}")
    return lines


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _whole(option_name: str, text: object) -> int:
    try:
        number = int(str(text))
    except ValueError:
        number = 0
    if number < 1:
        raise ConfigError(option_name, f"must be positive integers, got {text!r}")
    return number


def _schedulers(specs: list[str] | None, budgets: str | None) -> list[Any] | None:
    """The schedulers to choose from: given ones, or the server's with token budgets."""
    if specs is not None and budgets is not None:
        raise ConfigError(
            "--token-budget", "cannot be combined with --scheduler; use VllmV1:token_budget=4096"
        )
    if specs:
        return [options.description("--scheduler", spec, SCHEDULERS) for spec in specs]
    if budgets is None:
        return None
    return [{"token_budget": _whole("--token-budget", budget)} for budget in _names(budgets)]
