"""`inferq compare`: scenarios that send the same requests through different systems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from inferq.cli import show
from inferq.errors import ConfigError
from inferq.experiments.arguments import check_options, seeds_from
from inferq.experiments.comparison.compare import compare as compared
from inferq.results.files import check_writable
from inferq.scenario import read_scenario


def compare(
    scenarios: Annotated[
        list[Path],
        typer.Argument(
            metavar="SCENARIO…", show_default=False, help="TOML files; the first is the baseline."
        ),
    ],
    seeds: Annotated[
        int, typer.Option(metavar="N", help="Seeds to run, from that of the scenarios' [run] on.")
    ] = 10,
    metric: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A metric such as ttft_p99; may be given several times."),
    ] = None,
    ttft_slo: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Time to first token that counts as good.")
    ] = None,
    tbt_slo: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Longest gap between tokens that counts as good.")
    ] = None,
    by_class: Annotated[
        bool, typer.Option("--by-class", help="The same for each class of requests.")
    ] = False,
    until: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PRECISION",
            help="Go on with further seeds until an interval is narrow enough, as in 'ttft_p99 +- 2%'; may "
            "be given several times.",
        ),
    ] = None,
    most_seeds: Annotated[
        int | None, typer.Option(metavar="N", help="Where --until gives up, 200 unless told.")
    ] = None,
    confidence: Annotated[float, typer.Option(metavar="SHARE", help="Of the intervals.")] = 0.95,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the table too, as .csv or .parquet.")
    ] = None,
) -> None:
    """Compare systems that serve the same requests: scenarios that differ in the system alone.

    Example: inferq compare sarathi.toml vllm.toml --until "ttft_p99 +- 2%"
    """
    if out is not None and out.suffix not in (".csv", ".parquet"):
        raise ConfigError("--out", f"must end in .csv or .parquet, is {out}")
    if out is not None:
        check_writable(out)
    names = _names(scenarios)
    plans = dict(zip(names, (read_scenario(file) for file in scenarios), strict=True))
    first = plans[names[0]]
    for name, plan in plans.items():
        ours = {"workload": _described(first.workload), "run": dict(first.run)}
        theirs = {"workload": _described(plan.workload), "run": dict(plan.run)}
        if differing := _difference("", ours, theirs):
            path, one, other = differing
            raise ConfigError(
                path,
                f"is {one} in {names[0]} and {other} in {name}; what is compared must differ in the "
                "system alone",
            )
    run = dict(first.run)
    threads = run.pop("threads", None)
    check_options({name: run[name] for name in run if name != "seed"}, field="run.")
    numbers = seeds_from(run.pop("seed", 0), seeds)
    slo = {"ttft_s": ttft_slo, "tbt_s": tbt_slo}
    show.lines([f"compare {' '.join(map(str, scenarios))}", *first.notes])
    for name, plan in plans.items():
        show.lines([name])
        show.system(plan.system)
    found = compared(
        first.workload,
        {name: plan.system for name, plan in plans.items()},
        seeds=numbers,
        metrics=metric or None,
        slo={name: limit for name, limit in slo.items() if limit is not None} or None,
        by="class" if by_class else None,
        confidence=confidence,
        until=until or None,
        most_seeds=most_seeds,
        threads=threads,
        progress=True,
        **run,
    )
    show.lines(["", *found.explain().splitlines()])
    if out is not None:
        _ = found.frame.write_csv(out) if out.suffix == ".csv" else found.frame.write_parquet(out)
        show.lines([f"written to {out}"])


def _names(files: Sequence[Path]) -> list[str]:
    """What the systems are called: the names of their files, with folders where those are not enough."""
    names = [file.stem for file in files]
    if len(set(names)) < len(names):
        names = [str(file) for file in files]
    for place, name in enumerate(names):
        if name in names[:place]:
            raise ConfigError(name, "is there twice")
    return names


def _described(workload: Any) -> Any:
    """Which requests a workload has, without where they were read from."""
    return {name: value for name, value in workload.to_json().items() if name != "metadata"}


def _difference(path: str, one: Any, other: Any) -> tuple[str, str, str] | None:
    """The first place where two descriptions differ, and what stands there in each."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for name in dict.fromkeys([*one, *other]):
            inner = f"{path}.{name}" if path else str(name)
            if name not in one or name not in other:
                told = [repr(held[name]) if name in held else "not given" for held in (one, other)]
                return inner, told[0], told[1]
            if found := _difference(inner, one[name], other[name]):
                return found
        return None
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        found_inside = (
            _difference(f"{path}[{i}]", a, b) for i, (a, b) in enumerate(zip(one, other, strict=True))
        )
        return next((found for found in found_inside if found), None)
    return None if one == other else (path, repr(one), repr(other))
