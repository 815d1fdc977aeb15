"""`inferq capacity`: find the largest rate at which a scenario meets an SLO."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from inferq.cli import arguments, gathered, show
from inferq.cli.arguments import option
from inferq.cli.objectives import Objectives, slo_of
from inferq.display.style import svg
from inferq.errors import ConfigError
from inferq.experiments.arguments import check_options, seeds_from
from inferq.experiments.capacity_search.capacity import capacity as largest_rate
from inferq.files import check_writable, write_text
from inferq.progress import watched


def capacity(
    scenario: arguments.Scenario,
    slo: Objectives,
    low: Annotated[float | None, option("R", "First and lowest rate, per second.")] = None,
    high: Annotated[float | None, option("R", "Largest rate, per second.")] = None,
    precision: Annotated[float, option("P", "Largest high / low - 1 of the bracket.")] = 0.02,
    seeds: Annotated[int, option("N", "Initial number of seeds at each rate.")] = 5,
    most_seeds: Annotated[
        int | None, option("N", "Maximum seeds at each rate. Default: four times --seeds.")
    ] = None,
    confidence: Annotated[float, option("C", "Confidence level, 0.5 to 1.")] = 0.95,
    threads: arguments.Threads = None,
    set_: arguments.Set = None,
    picture: Annotated[Path | None, option("FILE", "Write a chart of the search (.svg).")] = None,
) -> None:
    """Find the largest rate at which a scenario meets an SLO. Exit status 1 if there is none.

    The arrivals of the scenario are scaled; its seed is the first seed.

    Example: inferq capacity docs/chat.toml --slo ttft_p99=0.5 --slo itl_p99=0.05
    """
    plan = arguments.scenario(scenario, set_)
    objectives = slo_of(slo)
    run: dict[str, Any] = dict(plan.options)
    workers = run.pop("threads", None)
    check_options({name: run[name] for name in run if name != "seed"}, field="run.")
    numbers = seeds_from(run.pop("seed", 0), seeds)
    if picture is not None:
        if picture.suffix != ".svg":
            raise ConfigError("--picture", f"must end in .svg, got {picture}")
        check_writable(picture)
    show.lines([f"capacity {scenario}", *plan.notes])
    show.system(plan.system)
    with watched(True, "runs", in_a_pipe=True) as progress:
        answer = largest_rate(
            plan.workload,
            plan.system,
            objectives,
            low=low,
            high=high,
            precision=precision,
            seeds=numbers,
            most_seeds=most_seeds,
            confidence=confidence,
            threads=workers if threads is None else threads,
            log=show.log,
            progress=progress,
            **run,
        )
    for name in ("rate", "high", "reason", "upper_bound_per_s", "limited_by_length", "requests"):
        gathered.value(name, getattr(answer, name))
    gathered.value("slo", {str(objective): objective.limit for objective in answer.slo.objectives})
    gathered.value("probes", answer.probes.to_dicts())
    show.answer(answer.findings)
    if picture is not None:
        write_text(picture, svg(answer.plot()))
        show.lines([f"written to {picture}"])
    if answer.rate == 0:
        raise typer.Exit(1)
