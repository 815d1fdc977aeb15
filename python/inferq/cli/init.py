"""`inferq init`: write a commented scenario for a trace, a model and a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from inferq.cli import gathered, options, show
from inferq.cli.arguments import option
from inferq.cli.groups import TraceFormat, expanded
from inferq.errors import ConfigError
from inferq.files import check_writable, write_text
from inferq.scenario import Scenario
from inferq.systems.engine import Engine
from inferq.timing.hardware.gpu import Gpu
from inferq.workload.trace_options import THINK, has_conversations


@expanded
def init(
    trace_format: TraceFormat,
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]", show_default=False, help="Trace file. Default: a synthetic workload."
        ),
    ] = None,
    model: Annotated[str, option("NAME|FILE", "Model, see inferq list models.")] = "llama-3.1-8b",
    gpu: Annotated[str, option("NAME", "GPU, see inferq list gpus.")] = "h100-80gb",
    rate: Annotated[float | None, option("R", "Requests per second. Default: the trace's, or 8.")] = None,
    server: Annotated[
        str | None, option("NAME", "Server version, see inferq list servers. Default: the latest vLLM.")
    ] = None,
    tensor_parallel: Annotated[
        int | None, option("N", "Tensor-parallel size.", "--tensor-parallel", "--tp")
    ] = None,
    replicas: Annotated[int | None, option("N", "Number of replicas behind the router.")] = None,
    out: Annotated[Path, option("FILE", "The scenario file, which must not exist.")] = Path("scenario.toml"),
) -> None:
    """Write a commented scenario for simulate, compare, capacity and gate.

    Example: inferq init traces/azure_2023.csv --model llama-3.1-8b --gpu h100-80gb --out my.toml
    """
    if out.suffix != ".toml":
        raise ConfigError("--out", f"must end in .toml, got {str(out)!r}")
    if out.exists():
        raise ConfigError("--out", f"{out} already exists; choose another name, or remove it")
    check_writable(out)
    if file is None:
        workload = _drawn(8.0 if rate is None else rate)
    else:
        trace = trace_format.read(file)
        given = {**vars(trace_format), "columns": options.columns(trace_format.columns)}
        needs_rate = rate is None and not trace.is_synthetic and "arrival_s" not in trace.frame.columns
        if not trace.is_synthetic and "output_tokens" not in trace.frame.columns:
            given["output_tokens"] = 256
        path = file.resolve()
        here = out.resolve().parent
        shown = path.relative_to(here) if path.is_relative_to(here) else path
        workload = _of_trace(str(shown), given, 8.0 if needs_rate else rate, has_conversations(trace))
    Engine.on(model, Gpu.of(gpu), server=server, tensor_parallel=tensor_parallel)  # check the arguments
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
        '[workload]                      # distributions; or: trace = "file"',
        "requests = 10_000",
        f'arrivals = {{ kind = "Poisson", rate = {rate:g} }}    # per second; inferq list arrivals',
        'prompt = { kind = "Lognormal", mean = 1000, median = 600, cap = 8192 }    # tokens',
        'output = { kind = "Geometric", mean = 250 }',
    ]


def _of_trace(path: str, given: Mapping[str, object], rate: float | None, conversations: bool) -> list[str]:
    lines = ["[workload]", f"trace = {_toml(path)}                 # relative to this file"]
    for name, value in given.items():
        if isinstance(value, dict):
            pairs = ", ".join(f"{key} = {_toml(item)}" for key, item in value.items())
            lines.append(f"columns = {{ {pairs} }}    # our column = column of the file")
        elif value is not None:
            lines.append(f"{name} = {_toml(value)}")
    if rate is None:
        lines.append("# rate = 8.0                    # requests per second; default: times of the trace")
    else:
        lines.append(f"rate = {rate:g}                      # requests per second")
    lines.append("# head = 1000                   # only the first requests")
    if conversations:
        seconds = THINK.mean_s
        lines.append(
            f'think = {{ kind = "Exponential", mean_s = {seconds:g} }}    # think time between turns'
        )
    return lines


def _engine(model: str, gpu: str, server: str | None, gpus: int | None) -> list[str]:
    share = f"tensor_parallel = {gpus}" if gpus is not None else "# tensor_parallel = 1"
    whose = f"server = {_toml(server)}" if server is not None else '# server = "vllm-0.33"'
    return [
        "[engine]                        # inferq list models, gpus, servers",
        f"model = {_toml(model)}          # or the path of a config.json",
        f"gpu = {_toml(gpu)}",
        f"{share:<31} # GPUs per replica",
        f"{whose:<31} # server whose defaults apply; default: latest vLLM",
        '# weights = "fp8"               # default: of the checkpoint; also kv_dtype',
        "# gpu_memory_utilization = 0.9  # share of GPU memory",
        "",
        "# [engine.scheduler]            # overrides of the server's scheduler",
        "# token_budget = 8192           # vLLM: max_num_batched_tokens",
        "# max_seqs = 256                # vLLM: max_num_seqs",
    ]


def _fleet(replicas: int | None) -> list[str]:
    off = "# " if replicas is None else ""
    return [
        "",
        f"{off}[cluster]                     # replicas behind a router",
        f"{off}replicas = {replicas or 2}",
        f'{off}router = "LeastRequests"      # inferq list routers',
    ]


_RUN = [
    "",
    "[run]",
    "seed = 0",
    'warmup = "0s"                   # excluded from metrics: time or number of requests',
    "",
    "# [gate]                        # for `inferq gate`",
    "# seeds = 10",
    '# tolerance = { ttft_p99 = "10%", request_goodput = "2%" }',
]


def _toml(value: object) -> str:
    if isinstance(value, (int, float)):
        return repr(value)
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
