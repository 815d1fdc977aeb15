"""`inferq compare`: scenarios that send the same requests through different systems."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from inferq.cli import arguments, gathered, show
from inferq.cli.arguments import option
from inferq.errors import ConfigError
from inferq.experiments.arguments import seeds_from
from inferq.experiments.comparison.compare import compare as compared
from inferq.experiments.comparison.scenarios import shared
from inferq.results.files import check_writable, write_table
from inferq.simulation.progress import watched


def compare(
    scenarios: Annotated[
        list[Path],
        typer.Argument(
            metavar="SCENARIO…", show_default=False, help="TOML files; the first is the baseline."
        ),
    ],
    seeds: Annotated[int, option("N", "Seeds to run, from that of the scenarios' [run] on.")] = 10,
    metric: Annotated[
        list[str] | None, option("NAME", "A metric such as ttft_p99; may be given several times.")
    ] = None,
    ttft_slo: Annotated[float | None, option("SECONDS", "Time to first token that counts as good.")] = None,
    tbt_slo: Annotated[
        float | None, option("SECONDS", "Longest gap between tokens that counts as good.")
    ] = None,
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
            "Write the table too, as .csv or .parquet. In a .csv file a ' stands before a text that a "
            "spreadsheet would take for a formula.",
        ),
    ] = None,
) -> None:
    """Compare systems that serve the same requests: scenarios that differ in the system alone.

    Example: inferq compare sarathi.toml vllm.toml --until "ttft_p99 +- 2%"
    """
    if out is not None and out.suffix not in (".csv", ".parquet"):
        raise ConfigError("--out", f"must end in .csv or .parquet, is {out}")
    if out is not None:
        check_writable(out)
    names = show.names(scenarios)
    plans = dict(zip(names, (arguments.scenario(file, set_) for file in scenarios), strict=True))
    workload, systems, run = shared(plans)
    numbers = seeds_from(run.pop("seed", 0), seeds)
    slo = {"ttft_s": ttft_slo, "tbt_s": tbt_slo}
    show.lines([f"compare {' '.join(map(str, scenarios))}", *plans[names[0]].notes])
    for name, system in systems.items():
        show.lines([name])
        show.system(system)
    with watched(True, "runs", in_a_pipe=True) as tell:
        comparison = compared(
            workload,
            systems,
            seeds=numbers,
            metrics=metric or None,
            slo={name: limit for name, limit in slo.items() if limit is not None} or None,
            by="class" if by_class else None,
            confidence=confidence,
            until=until or None,
            most_seeds=most_seeds,
            progress=tell,
            **run,
        )
    gathered.value("comparison", comparison.frame.to_dicts())
    show.lines(["", *comparison.explain(show.width()).splitlines()])
    if out is not None:
        write_table(out, comparison.frame)
        show.lines([f"written to {out}"])
