"""`inferq capacity`: how many requests per second does a scenario serve within an SLO?"""

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
    low: Annotated[float | None, option("R", "A rate to begin with.")] = None,
    high: Annotated[float | None, option("R", "The largest rate that is tried.")] = None,
    precision: Annotated[float, option("P", "Of the bracket, high / low - 1.")] = 0.02,
    seeds: Annotated[int, option("N", "Runs at each rate, to begin with.")] = 5,
    most_seeds: Annotated[
        int | None, option("N", "The most runs at a rate; four times --seeds unless told.")
    ] = None,
    confidence: Annotated[float, option("C", "Above 0.5 and below 1.")] = 0.95,
    threads: arguments.Threads = None,
    set_: arguments.Set = None,
    picture: Annotated[Path | None, option("FILE", "Draw the search into this SVG file.")] = None,
) -> None:
    """Find the largest rate at which a scenario keeps an SLO. Exit status 1 when there is none.

    The arrivals of the scenario are scaled; its seed is the first one.

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
            raise ConfigError("--picture", f"must end in .svg, is {picture}")
        check_writable(picture)
    show.lines([f"capacity {scenario}", *plan.notes])
    show.system(plan.system)
    with watched(True, "runs", in_a_pipe=True) as tell:
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
            log=show.tell,
            progress=tell,
            **run,
        )
    for name in ("rate", "high", "reason", "upper_bound_per_s", "limited_by_length", "requests"):
        gathered.value(name, getattr(answer, name))
    gathered.value("slo", {str(one): one.limit for one in answer.slo.objectives})
    gathered.value("probes", answer.probes.to_dicts())
    show.answer(answer.findings)
    if picture is not None:
        write_text(picture, svg(answer.plot()))
        show.lines([f"written to {picture}"])
    if answer.rate == 0:
        raise typer.Exit(1)
