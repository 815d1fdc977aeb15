"""`inferq plan`: which is the cheapest fleet that keeps an SLO for a trace?"""

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
from inferq.cli.objectives import Objectives, slo_of
from inferq.errors import ConfigError
from inferq.experiments.plans.plan import plan as cheapest
from inferq.experiments.plans.tables import candidates, frontier, windows
from inferq.experiments.report import checked
from inferq.experiments.report import report as write_report
from inferq.files import check_writable, write_text
from inferq.progress import watched
from inferq.scheduler import SCHEDULERS
from inferq.systems.routers import ROUTERS
from inferq.workload.reading import adapted

_MOST_ROWS = 40


def plan(
    file: arguments.Trace,
    slo: Objectives,
    model: Annotated[
        str, option("NAME|FILE", "What is served: a name, or its config.json.", show_default=False)
    ],
    gpus: Annotated[
        str | None,
        option("NAME,…", "Cards to choose from; unless told those with measured tables of the model."),
    ] = None,
    tp: Annotated[str, option("N,…", "GPUs of a replica to choose from.")] = "1,2,4,8",
    scheduler: Annotated[
        list[str] | None,
        option(
            "SPEC", f"One to choose from, once for each ({options.spelled(SCHEDULERS)}); else the server's."
        ),
    ] = None,
    token_budget: Annotated[
        str | None, option("N,…", "Budgets of the server's scheduler to choose from; else its own.")
    ] = None,
    prefix_cache: Annotated[str | None, option("KIND,…", "blocks, radix or none; else the server's.")] = None,
    pools: Annotated[
        str, option("WAY,…", "together, or replicas that prefill and decode, as in together,1:1,1:2.")
    ] = "together",
    router: Annotated[
        list[str] | None,
        option(
            "SPEC", f"One to choose from, once for each ({options.spelled(ROUTERS)}); else least-requests."
        ),
    ] = None,
    most_replicas: Annotated[int, option("N", "No fleet has more.")] = 1024,
    spare: Annotated[int, option("N", "Replicas beside those that keep the SLO; 1 is N+1.")] = 0,
    prices: arguments.Prices = None,
    server: Annotated[str | None, option("NAME", "The server whose defaults hold, as for replay.")] = None,
    max_model_len: Annotated[int | None, option("N", "Tokens of the longest request of the server.")] = None,
    weights: Annotated[str | None, option("KIND", "bf16, fp8, int8 or int4.")] = None,
    format: arguments.Format = None,
    columns: arguments.Columns = None,
    tokenizer: arguments.Tokenizer = None,
    tokens_per_word: arguments.TokensPerWord = None,
    time_unit: arguments.TimeUnit = None,
    head: Annotated[int | None, option("N", "Only the first N requests.")] = None,
    output_tokens: Annotated[int | None, option("N", "Tokens that each request generates.")] = None,
    rate: Annotated[float | None, option("R", "Requests per second: scales arrival times.")] = None,
    speed: Annotated[float | None, option("F", "Divide the arrival times by F.")] = None,
    within: Annotated[float, option("E", "The answer costs at most this share more than the best.")] = 0.02,
    seeds: Annotated[int, option("N", "Runs of what is drawn, to begin with.")] = 5,
    confidence: Annotated[float, option("C", "Above 0.5 and below 1.")] = 0.95,
    threads: arguments.Threads = None,
    time: Annotated[
        float | None, option("SECONDS", "Begin no run after so long; say what is undecided.")
    ] = None,
    resume: Annotated[
        Path | None, option("FILE", "Keep what was run in this .json file, and go on from it.")
    ] = None,
    sensitivity: Annotated[
        bool, typer.Option("--sensitivity", help="Say what 10 % more or less would change.")
    ] = False,
    schedule: Annotated[
        float | None,
        option("SECONDS", "Say too how many replicas each part of the time needs, 3600 for each hour."),
    ] = None,
    startup: Annotated[float, option("SECONDS", "With --schedule: until a replica serves.")] = 0,
    page: Annotated[Path | None, option("FILE", "Write a page about it (.html).")] = None,
    out: Annotated[Path | None, option("FILE", "Write the fleet as a scenario, for gate (.toml).")] = None,
) -> None:
    """Find the cheapest fleet that keeps an SLO. Exit status 1 when there is none.

    Example: inferq plan traces/azure_2023.csv --slo ttft_p99=1 --model llama-3.1-8b --gpus a100-80gb,h200
    """
    objectives = slo_of(slo)
    for name, target, ending in (("--page", page, ".html"), ("--out", out, ".toml")):
        if target is not None and target.suffix != ending:
            raise ConfigError(name, f"must end in {ending}, is {target}")
    if page is not None:
        checked(page, "--page")
    if out is not None:
        check_writable(out)
    if scheduler is not None and token_budget is not None:
        raise ConfigError("--token-budget", "schedulers are given; put it there: VllmV1:token_budget=4096")
    if schedule is None and startup:
        raise ConfigError("--startup", "of which schedule? Give --schedule too")
    for name, seconds in (("--schedule", schedule), ("--startup", startup)):
        if seconds is not None:
            (positive if name == "--schedule" else not_negative)(name, seconds)
    trace = arguments.trace(file, format, columns, tokenizer, tokens_per_word, time_unit)
    notes: list[str] = []
    workload = adapted(trace, head=head, output_tokens=output_tokens, rate=rate, speed=speed, notes=notes)
    show.lines([f"plan {file}", *notes])
    own: dict[str, Any] = {"server": server, "max_model_len": max_model_len, "weights": weights}
    with watched(True, "answers", in_a_pipe=True):
        answer = cheapest(
            workload,
            objectives,
            model=model,
            gpus=None if gpus is None else _names(gpus),
            tensor_parallel=[_whole("--tp", one) for one in _names(tp)],
            schedulers=_schedulers(scheduler, token_budget),
            caches=None if prefix_cache is None else _names(prefix_cache),
            engine_options={name: value for name, value in own.items() if value is not None},
            pools=_names(pools),
            routers=None if router is None else [options.router(one) for one in router],
            replicas=range(1, _whole("--most-replicas", most_replicas) + 1),
            spare=spare,
            prices=prices,
            within=within,
            seeds=range(_whole("--seeds", seeds)),
            confidence=confidence,
            threads=threads,
            time_s=time,
            resume=resume,
            tell=show.tell,
        )
    if schedule is not None and answer.fleet is not None:
        with watched(True, "windows", in_a_pipe=True):
            answer = replace(answer, scheduled=answer.schedule(schedule, startup_s=startup))
    answer = replace(answer, command=shlex.join(["inferq", *sys.argv[1:]]))
    if gathered.is_on():
        gathered.value("candidates", answer.candidates.to_dicts())
    gathered.value("frontier", answer.frontier.to_dicts())
    show.answer(answer.findings)
    for grid in (candidates(answer, _MOST_ROWS), frontier(answer)):
        show.lines(["", grid.title])
        show.grid(grid)
    if answer.scheduled is not None:
        show.lines(answer.scheduled.explain().splitlines())
        show.grid(windows(answer, _MOST_ROWS))
    if sensitivity and answer.fleet is not None:
        show.lines(_changes(answer))
    if page is not None:
        with watched(True, "parts of the page", in_a_pipe=True) as progress:
            write_report(answer, page, progress=progress)
        show.lines([f"written to {page}"])
    if out is not None and answer.fleet is not None:
        write_text(out, answer.toml())
        show.lines([f"written to {out}"])
    if answer.fleet is None:
        raise typer.Exit(1)


def _changes(answer: Any) -> list[str]:
    """What would change the answer, a line each."""
    planned = answer.answer.candidate.replicas_of_unit * answer.units
    said = []
    for row in answer.sensitivity().rows(named=True):
        held = "still keeps the SLO" if row["keeps"] else "does not keep it"
        needs = "no size does" if row["replicas"] is None else f"{row['replicas']} replicas do"
        said.append(f"{row['what']} × {row['factor']:g}: the fleet of {planned} {held}; {needs}")
    return said


def _names(text: str) -> list[str]:
    return [one.strip() for one in text.split(",") if one.strip()]


def _whole(option_name: str, text: object) -> int:
    try:
        number = int(str(text))
    except ValueError:
        number = 0
    if number < 1:
        raise ConfigError(option_name, f"must be whole numbers from 1 on, is {text!r}")
    return number


def _schedulers(specs: list[str] | None, budgets: str | None) -> list[Any] | None:
    """The schedulers to choose from: as they are spelt, or the server's with some budgets."""
    if specs:
        return [options.description("--scheduler", one, SCHEDULERS) for one in specs]
    if budgets is None:
        return None
    return [{"token_budget": _whole("--token-budget", one)} for one in _names(budgets)]
