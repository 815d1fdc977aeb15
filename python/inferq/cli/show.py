"""Output of workloads, systems and results on a terminal."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

import typer

from inferq._lazy import pl
from inferq.cli import gathered
from inferq.display import terminal
from inferq.display.document import Grid
from inferq.display.text import NONE, counted, number, percent, seconds, visible
from inferq.errors import ConfigError
from inferq.reports import identity, run_tables
from inferq.results.finding import Finding, by_severity
from inferq.results.replicas import Replicas
from inferq.results.result import Result
from inferq.results.tables import STATUSES
from inferq.systems.cluster import Cluster
from inferq.systems.disaggregated import Disaggregated
from inferq.systems.engine import Engine
from inferq.systems.gate_and_route import GateAndRoute
from inferq.systems.prices import Prices
from inferq.systems.system import System
from inferq.theory.bounds.stability import Stability
from inferq.workload.workload import Workload

_QUANTITIES = ("count", "mean", "cv", "p50", "p90", "p99", "min", "max")


def width() -> int:
    """Width of the output: `COLUMNS`, the width of the terminal, or 80 in a pipe."""
    return shutil.get_terminal_size().columns


def lines(texts: Iterable[str]) -> None:
    """Print sentences on standard output, wrapped between words.

    A text of up to three words, such as a path with a verb, stays on one line.
    """
    for text in texts:
        if gathered.is_on():
            gathered.line(visible(text))
        elif len(text.split()) <= 3:
            typer.echo(visible(text))
        else:
            typer.echo("\n".join(terminal.wrapped(text, width(), "  ")))


def findings(items: Iterable[Finding]) -> None:
    """Print findings, the most severe first, or collect them for `--json`."""
    if gathered.is_on():
        gathered.findings(by_severity(items))
    else:
        lines(f"finding: {finding}" for finding in by_severity(items))


def answer(items: Sequence[Finding]) -> None:
    """Print the findings of an answer in order, or collect them for `--json`."""
    if gathered.is_on():
        gathered.findings(items)
    else:
        lines(items)


def log(text: str) -> None:
    """Print a progress message on standard error."""
    typer.echo(visible(text), err=True)


def names(files: Sequence[Path]) -> list[str]:
    """The names of scenarios: file names, or paths if file names are not unique.

    Raises:
        ConfigError: the same path twice.
    """
    short = [file.stem for file in files]
    if len(set(short)) < len(short):
        short = [str(file) for file in files]
    for place, name in enumerate(short):
        if name in short[:place]:
            raise ConfigError(name, "is given twice")
    return short


def system(described: System, timing: str | None = None) -> None:
    """Print the system; `timing` is the displayed name of its timing model."""
    hardware = identity.gpus(described)
    lines([*([f"hardware   {hardware}"] if hardware else []), *_system(described, timing)])


def _system(described: System, timing: str | None = None) -> list[str]:
    """The lines of a system, each with a name and a value."""
    if isinstance(described, Engine):
        return _engine(described, timing)
    if isinstance(described, Cluster):
        parts = [f"replicas   {described.replicas}, router {described.router!r}"]
        parts += [] if described.autoscaler is None else [f"autoscaler {described.autoscaler!r}"]
        parts += [] if described.failures is None else [f"failures   {described.failures!r}"]
        if isinstance(described.engines, Engine):
            return [*parts, *_engine(described.engines, timing)]
        for place, engine in enumerate(described.engines):
            parts += [f"replica {place}", *_indented(_engine(engine, timing))]
        return parts
    if isinstance(described, Disaggregated):
        parts = []
        for name in ("prefill", "decode"):
            (engine, replicas), router = getattr(described, name), getattr(described, f"{name}_router")
            parts += [
                f"{name:<9}  {replicas} replicas, router {router!r}",
                *_indented(_engine(engine, timing)),
            ]
        return [*parts, f"link       {described.link!r}"]
    if isinstance(described, GateAndRoute):
        plan = "planned" if described.planned else "without a plan"
        return [
            f"replicas   {described.replicas} of {described.slots} slots, {plan}",
            f"control    gate {described.gate}, router {described.router}",
            f"service    {described.service}, chunks of {described.chunk:,} tokens",
            f"timing     {described.timing!r}",
        ]
    parts = []
    for name, pool in described.engines.items():
        parts += [f"engine {name}", *_indented(_system(pool, timing))]
    for workflow in described.workflows:
        parts += [f"workflow {workflow.name}: {', '.join(workflow.stages)}"]
    return parts


def _engine(described: Engine, timing: str | None) -> list[str]:
    """The parts of an engine."""
    kv = described.kv
    memory = "unlimited" if kv.tokens is None else f"{kv.tokens:,} tokens in blocks of {kv.block}"
    if kv.prefix_cache is not None:
        memory += f", prefix cache {kv.prefix_cache!r}"
    if kv.groups is not None:
        memory += f", groups of {len(kv.groups.kinds)} kinds of layers"
    made_of = list(described.on_card.get("explained", ())) or [f"timing: {described.timing!r}"]
    if timing is not None:
        made_of[0] = f"timing: {timing}"
    return [
        f"scheduler  {described.scheduler!r}",
        f"kv cache   {memory}",
        *(re.sub(r"^(\w+): |^ +", lambda label: f"{label[1] or '':<11}", line) for line in made_of),
        *([] if described.on_card else _other_parts(described)),
    ]


def _other_parts(described: Engine) -> list[str]:
    """Optional parts of an engine."""
    lines = [] if described.overhead is None else [f"overhead   {described.overhead!r}"]
    if described.max_model_len is not None:
        lines.append(f"max length {described.max_model_len:,} tokens per request")
    if described.api_s:
        lines.append(f"api        TTFT and E2E include {seconds(described.api_s)} of API overhead")
    return lines


def _indented(texts: Iterable[str]) -> list[str]:
    return [f"  {text}" for text in texts]


def result(run: Result, prices: Prices | None = None) -> None:
    """Print the summary of a run (by class if there are several), its costs, and its findings."""
    rows = list(run_tables.rows(run))
    if prices is not None:
        rows[-1] = (rows[-1][0], run.summary(prices=prices).row(0, named=True))
    gathered.value("summary", [{"class": name, **row} for name, row in rows])
    gathered.value("scenario", json.loads(run.scenario))
    grid(run_tables.counts(rows))
    grid(run_tables.latencies(rows))
    lines(measured(run))
    if (load := identity.varying_load(run)) is not None:
        gathered.value("load", {**asdict(load), "peak_per_s": load.peak_per_s})
        lines([f"load: {load}"])
    if (replicas := Replicas.of(run._tables)) is not None:
        gathered.value("replicas", _of_replicas(replicas))
        lines([f"replicas: {replicas}"])
    lines(run_tables.LEGEND)
    if "client_mean" in rows[0][1]:
        lines([run_tables.CLIENT])
    if api := run_tables.at_the_api(run):
        lines([f"TTFT and E2E include {api} of API overhead"])
    if shares := run_tables.shares(run):
        grid(shares)
    if prices is not None:
        spent = run_tables.costs(rows[-1][1], prices)
        grid(spent)
        lines([spent.note])
    whole = rows[-1][1]
    if whole["hit_rate"] is not None:
        share, tokens = percent(whole["hit_rate"]), whole["cached_tokens"]
        lines([f"prefix cache: hit rate {share} of prompt tokens, {tokens:,} tokens."])
    if run.has_jobs:
        lines([_jobs(run)])
    if run.is_priced:
        lines(_earned(run))
    unfinished = run._tables.statuses[STATUSES.index("unfinished")]
    if unfinished:
        lines([f"{unfinished:,} requests were unfinished at the end of the run."])
    findings(run.findings)


def _of_replicas(replicas: Replicas) -> dict[str, float]:
    return {
        "minimum": replicas.least,
        "mean": replicas.mean,
        "maximum": replicas.most,
        "replica_hours": replicas.hours,
        **{f"{kind.replace(' ', '_')}s": count for kind, count in replicas.counts.items()},
    }


def grid(shown: Grid) -> None:
    """Print a table between blank lines; numbers are never truncated."""
    if gathered.is_on():
        gathered.table(shown)
    elif shown.lines:
        typer.echo(f"\n{terminal.table(shown, width())}\n")


def measured(run: Result) -> list[str]:
    """The measured requests, if warm-up or cool-down excludes some."""
    options = json.loads(run.scenario)["run"]
    cuts = [
        f"{name} {value if isinstance(value, str) else counted(value, 'request')}"
        for name, value in ((name, options[name]) for name in ("warmup", "cooldown"))
        if value not in (0, "0s")
    ]
    if not cuts:
        return []
    mask = run._tables.requests["measured"]
    return [f"measured: {int(mask.sum()):,} of {mask.size:,} requests ({', '.join(cuts)} excluded)"]


def written(run: Result, out: Path | None, prices: Prices | None = None) -> None:
    """Print a run, and write it to `out`."""
    result(run, prices)
    if out is not None:
        run.write(out)
        gathered.value("out", str(out))
        lines([f"written to {out}"])


def workload(trace: Workload) -> None:
    """Print the content of a trace."""
    if trace.is_synthetic:
        note = "requests are drawn at simulation; shown are the requests of seed 0"
        lines([*(f"{name}: {_text(value)}" for name, value in trace.metadata.items() if value), note])
        trace = trace.draw(0)
        trace = Workload(trace.frame)
    frame = trace.frame
    gathered.value("metadata", dict(trace.metadata))
    gathered.value("columns", frame.columns)
    gathered.value("describe", trace.describe().to_dicts())
    lines(f"{name}: {_text(value)}" for name, value in trace.metadata.items() if value)
    lines([f"columns: {', '.join(frame.columns)}"])
    if "class" in frame.columns:
        counts = frame["class"].value_counts().sort("class")
        lines([f"classes: {', '.join(f'{name} {count:,}' for name, count in counts.rows())}"])
    described = trace.describe().rows(named=True)
    single = ("rate_per_s", "reused_share")
    lines(f"{row['column']}: {number(row['mean'])}" for row in described if row["column"] in single)
    columns = [row for row in described if row["column"] not in single]
    lines_of = [[statistic, *(number(row[statistic]) for row in columns)] for statistic in _QUANTITIES]
    grid(Grid(title="", header=("", *(row["column"] for row in columns)), lines=lines_of))


def stability(verdict: Stability) -> None:
    """Print the theoretical bounds of a scenario."""
    for name in ("verdict", "rate", "capacity_per_s", "stable_below_per_s", "load", "margin"):
        gathered.value(name, getattr(verdict, name))
    gathered.value("bounds", verdict.frame().to_dicts())
    cached = any(bound.hit_rate is not None for bound in verdict.bounds)
    rows = [
        [
            bound.name,
            bound.kind,
            *(number(bound.capacity_per_s), number(bound.load)),
            *([percent(bound.hit_rate)] if cached else []),
            "met" if bound.applies else "not all met",
            NONE if bound.implies == "nothing" else bound.implies,
        ]
        for bound in verdict.bounds
    ]
    shares = ("hit rate",) if cached else ()
    header = ("limit", "kind", "per second", "load", *shares, "hypotheses", "implies")
    grid(Grid(title="", header=header, lines=rows, texts=2))
    lines(verdict.explain().splitlines())


def points(frame: pl.DataFrame, names: list[str], most: int) -> None:
    """Print up to `most` points of a sweep, with errors and findings."""
    gathered.value("points", frame.to_dicts())
    rates = {"request_throughput": "req/s", "request_goodput": "goodput"}
    latencies = ("ttft_p99", "itl_p99", "e2e_p99")
    short = [name.rpartition(".")[2] for name in names]  # last part of the path of a field
    heads = names if len(set(short)) < len(short) else short
    cached = frame["hit_rate"].is_not_null().any()
    hits = ["hit rate"] if cached else []
    measured = [*rates.values(), *(name.replace("_", " ") for name in latencies), *hits]
    rows = [
        [
            *(_text(row[name]) for name in names),
            str(row["seed"]),
            *(number(row[name]) for name in rates),
            *(seconds(row[name]) for name in latencies),
            *([percent(row["hit_rate"])] if cached else []),
        ]
        for row in frame.head(most).rows(named=True)
    ]
    if (frame["status"] != "failed").any():
        grid(Grid(title="", header=(*heads, "seed", *measured), lines=rows, texts=len(names)))
    if frame.height > most:
        lines([f"showing the first {most:,} of {frame.height:,} points"])
    for row in frame.filter(status="failed").head(most).rows(named=True):
        where = ", ".join(f"{name}={_text(row[name])}" for name in (*names, "seed"))
        lines([f"failed: {where}: {row['error']}"])
    with_findings = frame.filter(frame["findings"].is_not_null())
    for row in with_findings.head(most).rows(named=True):
        where = ", ".join(f"{name}={_text(row[name])}" for name in (*names, "seed"))
        lines([f"finding: {where}: {row['findings']}"])


def _earned(run: Result) -> list[str]:
    """Revenue of a gate-and-route cluster, and the mean number of requests by state."""
    if run.revenue.height == 0:
        return []
    last = run.revenue.row(-1, named=True)
    means = run.occupancy.drop("class").sum().row(0, named=True)
    states = ", ".join(f"{name} {number(mean)}" for name, mean in means.items())
    return [
        f"revenue per replica and second: {number(last['bundled_per_replica_s'])} bundled, "
        f"{number(last['separate_per_replica_s'])} separate",
        f"requests per replica: {states}",
    ]


def _jobs(run: Result) -> str:
    """Status counts and latency of the measured jobs of a network."""
    jobs = run.jobs.filter("measured")
    counts = [f"{n:,} {status}" for status, n in jobs["status"].value_counts().sort("status").rows()]
    e2e = jobs["e2e_s"]
    percentiles = ", ".join(f"p{p} {seconds(e2e.quantile(p / 100, 'linear'))}" for p in (50, 99))
    return f"jobs: {', '.join(counts) or 'none measured'}; arrival to last token: {percentiles}"


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_text(item)}" for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(_text(item) for item in value)
    return str(value)
