"""`inferq validate`: how far is the simulation from measured runs?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from inferq.cli import gathered, options, show
from inferq.cli.arguments import option
from inferq.display.text import counted
from inferq.errors import ConfigError
from inferq.experiments.report import checked, report
from inferq.experiments.validation import page as validation_page
from inferq.experiments.validation.validate import validate as validated
from inferq.files import check_writable, write_text

_NAMED = 3
"""So many runs of those that are not judged for one reason are named."""


def validate(
    runs: Annotated[
        Path,
        typer.Argument(
            metavar="RUNS",
            show_default=False,
            help="Measured runs: CSV with a row a run, a JSON result of vllm bench serve, or AIPerf's "
            "profile_export_aiperf.json.",
        ),
    ],
    requests: Annotated[
        Path | None, option("FILE", "CSV with the requests of runs whose arrivals are a trace.")
    ] = None,
    given: Annotated[
        list[str] | None,
        option(
            "NAME=VALUE", "A setting of runs that do not say it: gpu=h100-80gb. As often as needed.", "--set"
        ),
    ] = None,
    only: Annotated[
        list[str] | None, option("NAME=VALUE", "Only the runs with this: engine=vllm. As often as needed.")
    ] = None,
    by: Annotated[
        list[str] | None,
        option("NAME", "Errors by engine_version, gpu, tp, load, model, source, clock. As often as needed."),
    ] = None,
    metric: Annotated[
        str | None, option("NAME", "By which the worst runs are chosen, else mean E2E if it is there.")
    ] = None,
    worst: Annotated[int, option("N", "How many of the worst runs are shown.")] = 5,
    max_median: Annotated[
        list[str] | None,
        option("METRIC=SHARE", "Fail where the median error is larger: ttft_mean=0.25. As often as needed."),
    ] = None,
    max_p90: Annotated[
        list[str] | None, option("METRIC=SHARE", "The same for the 90th percentile of the error.")
    ] = None,
    assumed: Annotated[bool, option(None, "List what was assumed of each run.", "--assumed")] = False,
    out: Annotated[Path | None, option("FILE", "Write a page with the picture, in HTML.")] = None,
    summary: Annotated[
        Path | None, option("FILE", "Write the report as Markdown, for a pull request.")
    ] = None,
) -> None:
    """Simulate measured runs with the settings that were published, and show how far off each metric is.

    What a run does not say is assumed by stated rules, and counted; --assumed lists it. Exit status 1: an
    error is larger than --max-median or --max-p90 allow. Exit status 2: nothing was compared, and the line
    says why.

    Example: inferq validate tests/measured/runs.csv --requests tests/measured/requests.csv
    """
    if out is not None:
        check_writable(checked(out, "--out"))
    if summary is not None:
        check_writable(summary)
    medians = options.numbers("--max-median", max_median or (), "ttft_mean=0.25")
    p90s = options.numbers("--max-p90", max_p90 or (), "ttft_mean=0.25")
    found = validated(
        runs,
        requests=requests,
        given=options.pairs("--set", given or (), "gpu=h100-80gb"),
        only=options.pairs("--only", only or (), "engine=vllm"),
    )
    chosen = metric if metric is not None else _first(found.frame["metric"].to_list())
    try:
        beyond = found.beyond(medians, p90s)
    except ConfigError as error:
        raise error.within("--max-median or --max-p90", ": ") from None
    gathered.value("errors", found.errors().to_dicts())
    gathered.value("metrics", found.frame.to_dicts())
    gathered.value("runs", found.runs.to_dicts())
    gathered.value("assumed", found.assumed.to_dicts())
    gathered.value("failed", beyond)
    show.lines([f"validate {runs}: {counted(found.runs.height, 'run')}"])
    show.grid(validation_page.errors_grid(found))
    if by:
        show.grid(validation_page.errors_grid(found, by, validation_page.MAIN))
    show.lines([f"The worst by {validation_page.NAMES.get(chosen, chosen)}, and what they have in common:"])
    show.grid(validation_page.worst_grid(found, chosen, worst))
    if (common := validation_page.common_grid(found, chosen)).lines:
        show.grid(common)
    for why, left_out in validation_page.unjudged(found):
        more = f" and {len(left_out) - _NAMED:,} more" if len(left_out) > _NAMED else ""
        which = f"{', '.join(left_out[:_NAMED])}{more}"
        show.lines([f"not judged: {counted(len(left_out), 'run')}: {why} ({which})"])
    if assumed:
        show.lines(validation_page.assumptions(found))
    elif found.assumed.height:
        settings = counted(found.assumed["setting"].n_unique(), "setting")
        show.lines([f"assumed: {settings} that runs do not say; --assumed lists them"])
    if out is not None:
        report(found, out)
        show.lines([f"written to {out}"])
    if summary is not None:
        write_text(summary, validation_page.markdown(found, beyond, chosen))
    show.lines(f"failed: {line}" for line in beyond)
    if beyond:
        raise typer.Exit(1)


def _first(metrics: list[str]) -> str:
    """Mean E2E, or the first metric that there is."""
    return "e2e_mean" if "e2e_mean" in metrics else metrics[0]
