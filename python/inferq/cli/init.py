"""`inferq init`: a commented scenario to begin with, of a trace, a model and a card."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from inferq.cli import arguments, gathered, options, show
from inferq.cli.arguments import option
from inferq.errors import ConfigError
from inferq.files import check_writable, write_text
from inferq.scenario import Scenario
from inferq.systems.engine import Engine
from inferq.timing.hardware.gpu import Gpu
from inferq.workload.reading import THINK, is_of_talks


def init(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", show_default=False, help="A trace; without one requests are drawn."),
    ] = None,
    format: arguments.Format = None,
    columns: arguments.Columns = None,
    tokenizer: arguments.Tokenizer = None,
    tokens_per_word: arguments.TokensPerWord = None,
    time_unit: arguments.TimeUnit = None,
    model: Annotated[str, option("NAME|FILE", "See inferq list models.")] = "llama-3.1-8b",
    gpu: Annotated[str, option("NAME", "See inferq list gpus.")] = "h100-80gb",
    rate: Annotated[float | None, option("R", "Requests per second; else those of the trace, or 8.")] = None,
    server: Annotated[
        str | None, option("NAME", "Whose defaults are taken, see inferq list servers; else the newest vLLM.")
    ] = None,
    tensor_parallel: Annotated[int | None, option("N", "GPUs of one replica.")] = None,
    replicas: Annotated[int | None, option("N", "Replicas behind a router.")] = None,
    out: Annotated[Path, option("FILE", "The scenario; it must not be there yet.")] = Path("scenario.toml"),
) -> None:
    """Write a scenario with a comment at each line, which simulate, compare, capacity and gate read.

    Example: inferq init traces/azure_2023.csv --model llama-3.1-8b --gpu h100-80gb --out my.toml
    """
    if out.suffix != ".toml":
        raise ConfigError("--out", f"must end in .toml, is {str(out)!r}")
    if out.exists():
        raise ConfigError("--out", f"{out} is there already; give another name, or remove it")
    check_writable(out)
    if file is None:
        workload = _drawn(8.0 if rate is None else rate)
    else:
        trace = arguments.trace(file, format, columns, tokenizer, tokens_per_word, time_unit)
        given = {
            "format": format,
            "columns": options.columns(columns),
            "tokenizer": tokenizer,
            "tokens_per_word": tokens_per_word,
            "time_unit": time_unit,
        }
        needs_rate = rate is None and not trace.is_synthetic and "arrival_s" not in trace.frame.columns
        if not trace.is_synthetic and "output_tokens" not in trace.frame.columns:
            given["output_tokens"] = 256
        path = file.resolve()
        here = out.resolve().parent
        shown = path.relative_to(here) if path.is_relative_to(here) else path
        workload = _of_trace(str(shown), given, 8.0 if needs_rate else rate, is_of_talks(trace))
    Engine.on(model, Gpu.of(gpu), server=server, tensor_parallel=tensor_parallel)  # refused here and now
    text = (
        "\n".join([*workload, "", *_engine(model, gpu, server, tensor_parallel), *_fleet(replicas), *_RUN])
        + "\n"
    )
    write_text(out, text)
    try:
        Scenario.read(out)
    except Exception:
        out.unlink()
        raise
    gathered.value("out", str(out))
    show.lines([f"written to {out}; run it with: inferq simulate {out}"])


def _drawn(rate: float) -> list[str]:
    return [
        '[workload]                      # requests from distributions; or: trace = "file"',
        "requests = 10_000",
        f'arrivals = {{ kind = "Poisson", rate = {rate:g} }}    # per second; inferq list arrivals',
        'prompt = { kind = "Lognormal", mean = 1000, median = 600, cap = 8192 }    # tokens',
        'output = { kind = "Geometric", mean = 250 }',
    ]


def _of_trace(path: str, given: Mapping[str, object], rate: float | None, talks: bool) -> list[str]:
    lines = ["[workload]", f"trace = {_toml(path)}                 # from this file's folder"]
    for name, value in given.items():
        if isinstance(value, dict):
            pairs = ", ".join(f"{key} = {_toml(one)}" for key, one in value.items())
            lines.append(f"columns = {{ {pairs} }}    # ours = theirs")
        elif value is not None:
            lines.append(f"{name} = {_toml(value)}")
    if rate is None:
        lines.append("# rate = 8.0                    # requests per second; else the times of the trace")
    else:
        lines.append(f"rate = {rate:g}                      # requests per second")
    lines.append("# head = 1000                   # only the first of them")
    if talks:
        seconds = THINK.mean_s
        lines.append(
            f'think = {{ kind = "Exponential", mean_s = {seconds:g} }}    # from an answer to the next turn'
        )
    return lines


def _engine(model: str, gpu: str, server: str | None, gpus: int | None) -> list[str]:
    share = f"tensor_parallel = {gpus}" if gpus is not None else "# tensor_parallel = 1"
    whose = f"server = {_toml(server)}" if server is not None else '# server = "vllm-0.33"'
    return [
        "[engine]                        # inferq list models, gpus, servers",
        f"model = {_toml(model)}          # or the path of a config.json",
        f"gpu = {_toml(gpu)}",
        f"{share:<31} # GPUs of one replica",
        f"{whose:<31} # whose defaults are taken; the newest vLLM unless told",
        '# weights = "fp8"               # bf16, fp8, int8 or int4; kv_dtype likewise',
        "# gpu_memory_utilization = 0.9             # share of the card's memory",
        "",
        "# [engine.scheduler]            # fields that replace those of the server",
        "# token_budget = 8192           # vLLM: max_num_batched_tokens",
        "# max_seqs = 256                # vLLM: max_num_seqs",
    ]


def _fleet(replicas: int | None) -> list[str]:
    off = "# " if replicas is None else ""
    return [
        "",
        f"{off}[cluster]                     # several replicas behind a router",
        f"{off}replicas = {replicas or 2}",
        f'{off}router = "LeastRequests"      # inferq list routers',
    ]


_RUN = [
    "",
    "[run]",
    "seed = 0",
    'warmup = "0s"                   # of arrival time, or a number of requests: not measured',
    "",
    "# [gate]                        # what `inferq gate` holds it to",
    "# seeds = 10",
    '# tolerance = { ttft_p99 = "10%", request_goodput = "2%" }',
]


def _toml(value: object) -> str:
    if isinstance(value, (int, float)):
        return repr(value)
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
