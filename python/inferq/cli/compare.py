"""`inferq compare`: compare systems on the same requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from inferq.cli import arguments, gathered, show
from inferq.cli.arguments import option
from inferq.cli.groups import Only, TraceFormat, expanded
from inferq.cli.objectives import Goodput, goodput_of
from inferq.errors import ConfigError
from inferq.experiments.arguments import seeds_from
from inferq.experiments.comparison.compare import compare as compared
from inferq.experiments.comparison.comparison import Comparison
from inferq.experiments.comparison.engines import engines_on
from inferq.experiments.comparison.scenarios import shared
from inferq.experiments.report import report as write_report
from inferq.files import check_writable, write_table
from inferq.progress import watched
from inferq.workload.trace_options import TraceOptions

_ENGINES, _STATISTICS = "Engines on a trace", "Statistics"


@expanded
def compare(
    scenarios: Annotated[
        list[Path],
        typer.Argument(
            metavar="SCENARIO…|TRACE",
            show_default=False,
            help="TOML files, the first is the baseline; with --engines one trace.",
        ),
    ],
    trace_options: Annotated[TraceOptions, Only(("head", "deltas", "spread", "rate"))],
    trace_format: TraceFormat,
    engines: Annotated[
        str | None,
        option(
            "NAME,…",
            "Compare engines on a trace: vllm, sglang, a version such as vllm-0.14, or a scheduler such as "
            "sarathi. The first is the baseline. Requires --model and --gpu.",
            panel=_ENGINES,
        ),
    ] = None,
    model: Annotated[
        str | None, option("NAME|FILE", "Model of --engines: a name or a config.json.", panel=_ENGINES)
    ] = None,
    gpu: Annotated[str | None, option("NAME", "GPU of --engines.", panel=_ENGINES)] = None,
    tensor_parallel: Annotated[
        int | None,
        option("N", "Tensor-parallel size of --engines.", "--tensor-parallel", "--tp", panel=_ENGINES),
    ] = None,
    seeds: Annotated[
        int, option("N", "Number of seeds, from the seed of the scenarios.", panel=_STATISTICS)
    ] = 10,
    metric: Annotated[
        list[str] | None, option("NAME", "A metric such as ttft_p99. Repeatable.", panel=_STATISTICS)
    ] = None,
    slo: Goodput = None,
    prices: arguments.Prices = None,
    by_class: Annotated[
        bool, option(None, "Compare each class of requests, too.", "--by-class", panel=_STATISTICS)
    ] = False,
    until: Annotated[
        list[str] | None,
        option(
            "PRECISION",
            "Add seeds until an interval is narrow enough, such as 'ttft_p99 +- 2%'. Repeatable.",
            panel=_STATISTICS,
        ),
    ] = None,
    most_seeds: Annotated[
        int | None, option("N", "Maximum seeds for --until. Default: 200.", panel=_STATISTICS)
    ] = None,
    confidence: Annotated[float, option("C", "Confidence level.", panel=_STATISTICS)] = 0.95,
    set_: arguments.Set = None,
    out: Annotated[
        Path | None,
        option(
            "FILE",
            "Write the table as .csv or .parquet, or a page as .html. A ' precedes texts in .csv that a "
            "spreadsheet would evaluate.",
            panel="Output",
        ),
    ] = None,
) -> None:
    """Compare systems on the same requests: scenarios that differ only in the system, or engines.

    Example: inferq compare sarathi.toml vllm.toml --until "ttft_p99 +- 2%"

    Example: inferq compare --engines vllm,sglang traces/azure_2023.csv --model llama-3.1-8b --gpu h100-80gb
    """
    if out is not None:
        if out.suffix not in (".csv", ".parquet", ".html"):
            raise ConfigError("--out", f"must end in .csv, .parquet or .html, got {out}")
        check_writable(out)
    notes: list[str] = []
    run: dict[str, Any] = {}
    if engines is None:
        engine_options = {"model": model, "gpu": gpu, "rate": trace_options.rate, "head": trace_options.head}
        for name, value in engine_options.items():
            if value is not None:
                raise ConfigError(f"--{name}", "requires --engines; scenarios set it themselves")
        names = show.names(scenarios)
        plans = dict(zip(names, (arguments.scenario(file, set_) for file in scenarios), strict=True))
        workload, systems, run = shared(plans)
        notes += plans[names[0]].notes
    else:
        if len(scenarios) != 1:
            raise ConfigError("--engines", f"requires exactly one trace, got {len(scenarios)} files")
        workload = trace_options.apply(trace_format.read(scenarios[0]), notes)
        systems = dict(engines_on(engines.split(","), model, gpu, tensor_parallel=tensor_parallel))
    numbers = seeds_from(run.pop("seed", 0), seeds)
    _introduce(scenarios, notes, systems)
    with watched(True, "runs", in_a_pipe=True) as progress:
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
            progress=progress,
            **run,
        )
    gathered.value("comparison", comparison.frame.to_dicts())
    show.lines(["", *comparison._lines(show.width())])
    show.findings(comparison.findings)
    if out is not None:
        _write(comparison, out)


def _introduce(scenarios: Sequence[Path], notes: Sequence[str], systems: Mapping[str, Any]) -> None:
    show.lines([f"compare {' '.join(map(str, scenarios))}", *notes])
    for name, system in systems.items():
        show.lines([name])
        show.system(system)


def _write(comparison: Comparison, out: Path) -> None:
    if out.suffix == ".html":
        write_report(comparison, out)
    else:
        write_table(out, comparison.frame)
    show.lines([f"written to {out}"])
