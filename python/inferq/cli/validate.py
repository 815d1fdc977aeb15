"""`inferq validate`: compare simulations with measured runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from inferq.cli import arguments, gathered, options, show
from inferq.cli.arguments import option
from inferq.display.text import counted
from inferq.errors import ConfigError
from inferq.experiments.report import checked, report
from inferq.experiments.validation import page as validation_page
from inferq.experiments.validation.validate import validate as validated
from inferq.files import check_writable, write_text

_MOST_NAMED = 3
"""Runs named per reason why they are not evaluated."""


def validate(
    runs: Annotated[
        Path,
        typer.Argument(
            metavar="RUNS",
            show_default=False,
            help="Measured runs: CSV with one row per run (also tables of InferenceX and llm-d), a JSON "
            "result of vllm bench serve, or AIPerf's profile_export_aiperf.json.",
        ),
    ],
    requests: Annotated[
        Path | None, option("FILE", "CSV with the requests of runs that replay a trace.")
    ] = None,
    given: Annotated[
        list[str] | None,
        option("NAME=VALUE", "Setting of runs that lack it: gpu=h100-80gb. Repeatable.", "--set"),
    ] = None,
    only: Annotated[
        list[str] | None, option("NAME=VALUE", "Only runs with this setting: engine=vllm. Repeatable.")
    ] = None,
    by: Annotated[
        list[str] | None,
        option(
            "NAME",
            "Group errors by engine, engine_version, model, gpu, tp, ep, dtype, kv_dtype, load, timing, "
            "source or fold. Repeatable.",
        ),
    ] = None,
    metric: Annotated[
        str | None, option("NAME", "Metric that selects the worst runs. Default: mean E2E if available.")
    ] = None,
    worst: Annotated[int, option("N", "Number of worst runs to show.")] = 5,
    max_median: Annotated[
        list[str] | None,
        option("METRIC=SHARE", "Fail if the median error is larger: ttft_mean=0.25. Repeatable."),
    ] = None,
    max_p90: Annotated[
        list[str] | None,
        option("METRIC=SHARE", "Fail if the 90th percentile of the error is larger. Repeatable."),
    ] = None,
    assumed: Annotated[bool, option(None, "List the assumptions about each run.", "--assumed")] = False,
    out: Annotated[Path | None, option("FILE", "Write a page (.html).")] = None,
    summary: arguments.Summary = None,
) -> None:
    """Simulate measured runs with their published settings, and show the error of each metric.

    Missing settings are assumed by documented rules; --assumed lists them. Runs that cannot be simulated are
    listed with the reason. Exit status 1: an error exceeds
    --max-median or --max-p90. Exit status 2: nothing was compared.

    Example: inferq validate tests/measured/runs.csv --requests tests/measured/requests.csv
    """
    if out is not None:
        check_writable(checked(out, "--out"))
    if summary is not None:
        check_writable(summary)
    medians = options.numbers("--max-median", max_median or (), "ttft_mean=0.25")
    p90s = options.numbers("--max-p90", max_p90 or (), "ttft_mean=0.25")
    validation = validated(
        runs,
        requests=requests,
        given=options.pairs("--set", given or (), "gpu=h100-80gb"),
        only=options.pairs("--only", only or (), "engine=vllm"),
    )
    chosen = metric if metric is not None else _first(validation.frame["metric"].to_list())
    try:
        beyond = validation.beyond(medians, p90s)
    except ConfigError as error:
        raise error.within("--max-median or --max-p90", ": ") from None
    gathered.value("errors", validation.errors().to_dicts())
    gathered.value("metrics", validation.frame.to_dicts())
    gathered.value("runs", validation.runs.to_dicts())
    gathered.value("assumed", validation.assumed.to_dicts())
    gathered.value("failed", beyond)
    show.lines([f"validate {runs}: {counted(validation.runs.height, 'run')}"])
    show.grid(validation_page.errors_grid(validation))
    if by:
        show.grid(validation_page.errors_grid(validation, by, validation_page.MAIN))
    show.lines([f"Worst runs by {validation_page.NAMES.get(chosen, chosen)}, and their common settings:"])
    show.grid(validation_page.worst_grid(validation, chosen, worst))
    if (common := validation_page.common_grid(validation, chosen)).lines:
        show.grid(common)
    for reason, runs_left_out in validation_page.not_evaluated(validation):
        rest = len(runs_left_out) - _MOST_NAMED
        names = ", ".join(runs_left_out[:_MOST_NAMED]) + (f" and {rest:,} more" if rest > 0 else "")
        show.lines([f"not evaluated: {counted(len(runs_left_out), 'run')}: {reason} ({names})"])
    if assumed:
        show.lines(validation_page.assumptions(validation))
    elif validation.assumed.height:
        settings = counted(validation.assumed["setting"].n_unique(), "setting")
        show.lines([f"assumed: {settings} that runs lack; --assumed lists them"])
    if out is not None:
        report(validation, out)
        show.lines([f"written to {out}"])
    if summary is not None:
        write_text(summary, validation_page.markdown(validation, beyond, chosen))
    show.lines(f"failed: {line}" for line in beyond)
    if beyond:
        raise typer.Exit(1)


def _first(metrics: list[str]) -> str:
    """Mean E2E if available, else the first metric."""
    return "e2e_mean" if "e2e_mean" in metrics else metrics[0]
