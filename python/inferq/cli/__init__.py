"""What can be done from a shell? Run a trace or a scenario, compare, plan, sweep, gate, look, check.

Tables go to standard output, progress and errors to standard error. A user's error is one line and exit
status 2, a run that cannot go on is one line and 1, Ctrl-C is 130.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from inferq.cli import calibrate, capacity, compare, gate, report, sweep, timing
from inferq.errors import ConfigError, SimulationError, TraceError

if TYPE_CHECKING:
    from inferq.results.result import Result
    from inferq.workload.workload import Workload

__all__ = ["app"]


class Commands(TyperGroup):
    """Commands whose errors are one line on standard error."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command and turn what it raises into an exit status."""
        try:
            return super().invoke(ctx)
        except (ConfigError, TraceError) as error:
            _fail(str(error), 2)
        except SimulationError as error:
            _fail(str(error), 1)
        except BrokenPipeError:
            raise
        except OSError as error:
            named = error.filename and error.strerror
            _fail(f"{error.filename}: {error.strerror}" if named else str(error), 2)
        except KeyboardInterrupt:
            _fail("interrupted", 130)


def _fail(message: str, status: int) -> None:
    typer.echo(f"inferq: {' '.join(message.split())}", err=True)
    raise typer.Exit(status)


app = typer.Typer(
    cls=Commands,
    help="Simulate LLM inference serving, bit for bit the same on every machine.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
trace_app = typer.Typer(
    help="Look at traces.", no_args_is_help=True, add_completion=False, rich_markup_mode=None
)
app.add_typer(trace_app, name="trace")
app.add_typer(timing.app, name="timing")

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", show_default=False, help="A trace.")]
FormatOption = Annotated[
    str | None,
    typer.Option("--format", metavar="NAME", help="Format of the trace, else found from its content."),
]
ColumnsOption = Annotated[
    str | None,
    typer.Option("--columns", metavar="OURS=THEIRS,…", help="Names of the columns of a plain CSV file."),
]
TokenizerOption = Annotated[
    Path | None,
    typer.Option("--tokenizer", metavar="FILE", help="A tokenizer.json that counts the tokens of texts."),
]
TokensPerWordOption = Annotated[
    float | None,
    typer.Option("--tokens-per-word", metavar="RATIO", help="Count the tokens of texts by their words."),
]
OutOption = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Write the results as Parquet, the scenario as JSON."),
]


@app.callback()
def main() -> None:
    """Simulate LLM inference serving, bit for bit the same on every machine."""


@app.command()
def replay(
    file: FileArgument,
    format: FormatOption = None,
    columns: ColumnsOption = None,
    tokenizer: TokenizerOption = None,
    tokens_per_word: TokensPerWordOption = None,
    head: Annotated[int | None, typer.Option(metavar="N", help="Only the first N requests.")] = None,
    output_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Tokens that each request generates.")
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            metavar="R",
            help="Requests per second: scales arrival times, or draws Poisson arrivals where there are none.",
        ),
    ] = None,
    speed: Annotated[float | None, typer.Option(metavar="F", help="Divide the arrival times by F.")] = None,
    scheduler: Annotated[
        str,
        typer.Option(
            metavar="SPEC",
            help="sarathi, vllm-v1, vllm-v0, sglang, orca, faster-transformer, k-fcfs, rad, rad-phased, "
            "slai, wait or slot-greedy; with fields: Sarathi:order=spf. Fields that are lists or tables, and "
            "so nested-wait and class-priority, are for scenarios: inferq simulate.",
        ),
    ] = "sarathi",
    token_budget: Annotated[
        int | None, typer.Option(metavar="N", help="Tokens of one iteration, else the scheduler's default.")
    ] = None,
    max_seqs: Annotated[
        int | None, typer.Option(metavar="N", help="Requests that run at once, else the scheduler's default.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="A model by its name, as in llama-3.1-8b, or its config.json. It and --gpu decide timing "
            "and KV cache.",
        ),
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help="The GPU that serves --model, as in a100-80gb.")
    ] = None,
    tensor_parallel: Annotated[
        int | None,
        typer.Option(metavar="N", help="GPUs that share --model, else those of the shipped table."),
    ] = None,
    timing: Annotated[
        str | None,
        typer.Option(
            metavar="SPEC",
            show_default=False,
            help="Length of an iteration, as in Constant:0.05, "
            "PiecewiseLinear:base=0.006,per_token=3.2e-5, TimingTable:model=qwen3-8b,gpu=h200 (measured, see "
            "inferq timing show) or TimingTable:FILE. Without --model it is a100, an illustration, roughly a "
            "7-8B model on one A100-80GB.",
        ),
    ] = None,
    kv_tokens: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            show_default=False,
            help="Capacity of the KV cache in tokens, or unlimited; what the GPU leaves, or without --model "
            "432000.",
        ),
    ] = None,
    block: Annotated[
        int | None, typer.Option(metavar="N", help="Tokens of one block of the KV cache, else 16.")
    ] = None,
    prefix_cache: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="Find again what prompts have in common: blocks (by hash, as in vLLM) or radix (a tree of "
            "tokens, as in SGLang).",
        ),
    ] = None,
    first_token: Annotated[
        str, typer.Option(metavar="WHEN", help="The first token comes with the prefill, or one decode later.")
    ] = "prefill",
    replicas: Annotated[
        int | None, typer.Option(metavar="N", help="So many replicas of the engine behind a router.")
    ] = None,
    router: Annotated[
        str | None,
        typer.Option(
            metavar="SPEC",
            help="round-robin (the default), random, least-requests, least-tokens, power-of-two, least-kv, "
            "by-session, prefix-affinity or prefix-hash; with fields: prefix-affinity:weight=4. With "
            "--replicas.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of whatever is drawn.")] = 0,
    horizon: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="End the run at this instant.")
    ] = None,
    warmup: Annotated[
        str, typer.Option(metavar="CUT", help="Do not measure the first requests (500) or seconds (30s).")
    ] = "0",
    cooldown: Annotated[
        str, typer.Option(metavar="CUT", help="Do not measure the last requests (500) or seconds (30s).")
    ] = "0",
    out: OutOption = None,
) -> None:
    """Replay a trace through one replica, or through several behind a router.

    Example: inferq replay traces/azure_2023.csv --model llama-3.1-8b --gpu a100-80gb --rate 8
    """
    from inferq.cli import options, show
    from inferq.scenario import Scenario, adapted
    from inferq.scheduler import SCHEDULERS
    from inferq.systems.cluster import Cluster

    engine = options.engine(
        model,
        gpu,
        tensor_parallel,
        timing_spec=timing,
        kv_spec=kv_tokens,
        block=block,
        prefix_cache=prefix_cache,
        scheduler=options.description(
            "--scheduler", scheduler, SCHEDULERS, token_budget=token_budget, max_seqs=max_seqs
        ),
        first_token=first_token,
    )
    if replicas is None and router is not None:
        raise ConfigError("--router", "one replica has nothing to choose from; give --replicas too")
    system = (
        engine
        if replicas is None
        else Cluster(engine, replicas=replicas, router=options.router(router or "round-robin"))
    )
    trace = _read(file, format, columns, tokenizer, tokens_per_word)
    notes: list[str] = []
    workload = adapted(trace, head=head, output_tokens=output_tokens, rate=rate, speed=speed, notes=notes)
    run = {
        "seed": seed,
        "horizon_s": horizon,
        "warmup": options.cut(warmup),
        "cooldown": options.cut(cooldown),
    }
    show.lines([f"replay {file}", *notes])
    show.system(system, options.preset(timing, model))
    _finish(Scenario(workload, system, run).simulate(progress=True), out)


@app.command()
def simulate(
    scenario: Annotated[Path, typer.Argument(metavar="SCENARIO", show_default=False, help="A TOML file.")],
    out: OutOption = None,
) -> None:
    """Run a scenario written in TOML.

    Example: inferq simulate docs/chat.toml --out out
    """
    from inferq.cli import show
    from inferq.scenario import read_scenario

    plan = read_scenario(scenario)
    show.lines([f"simulate {scenario}", *plan.notes])
    show.system(plan.system)
    _finish(plan.simulate(progress=True), out)


@app.command()
def theory(
    scenario: Annotated[Path, typer.Argument(metavar="SCENARIO", show_default=False, help="A TOML file.")],
    hit_rate: Annotated[
        float | None,
        typer.Option(
            show_default=False,
            help="Share of the prompt tokens that prefix caches find, for a verdict at this hit rate.",
        ),
    ] = None,
) -> None:
    """Say whether a scenario can be stable, by which limit, and under which hypotheses.

    Example: inferq theory docs/chat.toml
    """
    from inferq.cli import show
    from inferq.scenario import read_scenario
    from inferq.theory import stability

    plan = read_scenario(scenario)
    show.lines([f"theory {scenario}", *plan.notes])
    show.system(plan.system)
    show.stability(stability(plan.workload, plan.system, hit_rate=hit_rate))


@app.command()
def paper(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", show_default=False, help="li2025, ao2025, bari2025, lin2026 or nie2026."
        ),
    ],
    quick: Annotated[bool, typer.Option("--quick", help="Smaller runs: a minute instead of some.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The page, .html or .md; NAME.html in this directory unless told."),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where the real traces lie that some rows need."),
    ] = None,
) -> None:
    """Run the experiments of a paper, print its numbers beside ours, and write a page with pictures.

    Example: inferq paper nie2026 --quick --out nie2026.html
    """
    from inferq import papers
    from inferq.cli import show

    name = papers.known(name)
    page = papers.writable(Path(f"{name}.html") if out is None else out)
    traces = None if trace is None else papers.folder(trace)
    reproduced = papers.run(name, quick=quick, traces=traces, tell=lambda text: typer.echo(text, err=True))
    show.report(reproduced)
    reproduced.write(page)
    show.lines([f"written to {page}"])


for command in (
    compare.compare,
    capacity.capacity,
    sweep.sweep,
    gate.gate,
    report.report,
    calibrate.calibrate,
):
    app.command()(command)


@trace_app.command()
def describe(
    file: FileArgument,
    format: FormatOption = None,
    columns: ColumnsOption = None,
    tokenizer: TokenizerOption = None,
    tokens_per_word: TokensPerWordOption = None,
) -> None:
    """Show what a trace holds.

    Example: inferq trace describe traces/azure_2023.csv
    """
    from inferq.cli import show

    show.workload(_read(file, format, columns, tokenizer, tokens_per_word))


def _read(
    file: Path, format: str | None, columns: str | None, tokenizer: Path | None, tokens_per_word: float | None
) -> Workload:
    from inferq.cli import options
    from inferq.workload.traces.read_trace import read_trace

    mapped = options.columns(columns)
    return read_trace(file, format, columns=mapped, tokenizer=tokenizer, tokens_per_word=tokens_per_word)


def _finish(result: Result, out: Path | None) -> None:
    """Show a result and write it where asked."""
    from inferq.cli import show

    show.result(result)
    if out is not None:
        result.write(out)
        show.lines([f"written to {out}"])
