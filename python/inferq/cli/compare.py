"""`inferq compare`: scenarios that send the same requests through different systems."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from inferq.cli import arguments, gathered, show
from inferq.cli.arguments import option
from inferq.cli.objectives import Goodput, goodput_of
from inferq.errors import ConfigError
from inferq.experiments.arguments import seeds_from
from inferq.experiments.comparison.compare import compare as compared
from inferq.experiments.comparison.engines import engines_on
from inferq.experiments.comparison.scenarios import shared
from inferq.experiments.report import report as write_report
from inferq.files import check_writable, write_table
from inferq.progress import watched
from inferq.workload.reading import adapted


def compare(
    scenarios: Annotated[
        list[Path],
        typer.Argument(
            metavar="SCENARIO…|TRACE",
            show_default=False,
            help="TOML files, the first is the baseline; with --engines one trace.",
        ),
    ],
    engines: Annotated[
        str | None,
        option(
            "NAME,…",
            "Compare engines on a trace of your own: vllm, sglang, a version such as vllm-0.14, or a "
            "scheduler such as sarathi; the first is the baseline. With --model and --gpu.",
        ),
    ] = None,
    model: Annotated[
        str | None, option("NAME|FILE", "What --engines serve: a name, or a config.json.")
    ] = None,
    gpu: Annotated[str | None, option("NAME", "The GPU of --engines.")] = None,
    tensor_parallel: Annotated[int | None, option("N", "GPUs of each of --engines.")] = None,
    rate: Annotated[
        float | None,
        option("R", "Requests per second of the trace: scales its times, or draws Poisson arrivals."),
    ] = None,
    head: Annotated[int | None, option("N", "Only the first N requests of the trace.")] = None,
    format: arguments.Format = None,
    columns: arguments.Columns = None,
    tokenizer: arguments.Tokenizer = None,
    tokens_per_word: arguments.TokensPerWord = None,
    time_unit: arguments.TimeUnit = None,
    seeds: Annotated[int, option("N", "Seeds to run, from that of the scenarios' [run] on.")] = 10,
    metric: Annotated[
        list[str] | None, option("NAME", "A metric such as ttft_p99; may be given several times.")
    ] = None,
    slo: Goodput = None,
    prices: arguments.Prices = None,
    by_class: Annotated[bool, option(None, "The same for each class of requests.", "--by-class")] = False,
    until: Annotated[
        list[str] | None,
        option(
            "PRECISION",
            "Go on with further seeds until an interval is narrow enough, as in 'ttft_p99 +- 2%'; may "
            "be given several times.",
        ),
    ] = None,
    most_seeds: Annotated[int | None, option("N", "Where --until gives up, 200 unless told.")] = None,
    confidence: Annotated[float, option("SHARE", "Of the intervals.")] = 0.95,
    set_: arguments.Set = None,
    out: Annotated[
        Path | None,
        option(
            "FILE",
            "Write the table too, as .csv or .parquet, or a page with pictures, as .html. In a .csv file "
            "a ' stands before a text that a spreadsheet would take for a formula.",
        ),
    ] = None,
) -> None:
    """Compare systems that serve the same requests: scenarios that differ in the system alone.

    Example: inferq compare sarathi.toml vllm.toml --until "ttft_p99 +- 2%"

    Example: inferq compare --engines vllm,sglang traces/azure_2023.csv --model llama-3.1-8b --gpu h100-80gb
    """
    if out is not None and out.suffix not in (".csv", ".parquet", ".html"):
        raise ConfigError("--out", f"must end in .csv, .parquet or .html, is {out}")
    if out is not None:
        check_writable(out)
    if engines is None:
        for option_name, given in (("--model", model), ("--gpu", gpu), ("--rate", rate), ("--head", head)):
            if given is not None:
                raise ConfigError(option_name, "is for --engines; a scenario says it itself")
        names = show.names(scenarios)
        plans = dict(zip(names, (arguments.scenario(file, set_) for file in scenarios), strict=True))
        workload, systems, run = shared(plans)
        notes = list(plans[names[0]].notes)
    else:
        if len(scenarios) != 1:
            raise ConfigError("--engines", f"serve one trace, not {len(scenarios)} files")
        notes, run = [], {}
        trace = arguments.trace(scenarios[0], format, columns, tokenizer, tokens_per_word, time_unit)
        workload = adapted(trace, head=head, rate=rate, notes=notes)
        systems = dict(engines_on(engines.split(","), model, gpu, tensor_parallel=tensor_parallel))
    numbers = seeds_from(run.pop("seed", 0), seeds)
    show.lines([f"compare {' '.join(map(str, scenarios))}", *notes])
    for name, system in systems.items():
        show.lines([name])
        show.system(system)
    with watched(True, "runs", in_a_pipe=True) as tell:
        comparison = compared(
            workload,
            systems,
            seeds=numbers,
            metrics=metric or None,
            slo=goodput_of(slo),
            prices=prices,
            by="class" if by_class else None,
            confidence=confidence,
            until=until or None,
            most_seeds=most_seeds,
            progress=tell,
            **run,
        )
    gathered.value("comparison", comparison.frame.to_dicts())
    show.lines(["", *comparison._lines(show.width())])
    show.findings(comparison.findings)
    if out is not None:
        if out.suffix == ".html":
            write_report(comparison, out)
        else:
            write_table(out, comparison.frame)
        show.lines([f"written to {out}"])
