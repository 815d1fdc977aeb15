"""`inferq replay`: a trace through one replica, or through several behind a router."""

from __future__ import annotations

from typing import Annotated

from inferq.checks import whole
from inferq.cli import arguments, options, show
from inferq.cli.arguments import option
from inferq.display.text import listed
from inferq.errors import ConfigError
from inferq.results.costs import hourly
from inferq.scenario import Scenario
from inferq.scheduler import SCHEDULERS
from inferq.systems.autoscaler import SCALING_POLICIES
from inferq.systems.cluster import MOST_REPLICAS, Cluster
from inferq.systems.engine import Engine
from inferq.systems.prices import Prices
from inferq.systems.routers import ROUTERS
from inferq.timing import TIMING_MODELS
from inferq.timing.hardware.catalog import entries
from inferq.workload.reading import adapted


def replay(
    file: arguments.Trace,
    format: arguments.Format = None,
    columns: arguments.Columns = None,
    tokenizer: arguments.Tokenizer = None,
    tokens_per_word: arguments.TokensPerWord = None,
    time_unit: arguments.TimeUnit = None,
    head: Annotated[int | None, option("N", "Only the first N requests.")] = None,
    output_tokens: Annotated[int | None, option("N", "Tokens that each request generates.")] = None,
    rate: Annotated[
        float | None,
        option(
            "R", "Requests per second: scales arrival times, or draws Poisson arrivals where there are none."
        ),
    ] = None,
    request_rate: Annotated[
        float | None, option("R", "Draw arrivals anew at this rate, as load generators do; inf: all at once.")
    ] = None,
    burstiness: Annotated[
        float | None,
        option("B", "Shape of the gamma gaps of --request-rate: 1 is Poisson, below 1 burstier."),
    ] = None,
    concurrency: Annotated[
        int | None, option("N", "N users send the requests, each when the one before is answered.")
    ] = None,
    ramp: Annotated[
        float | None, option("SECONDS", "Start the users of --concurrency over this time.")
    ] = None,
    max_in_flight: Annotated[
        int | None, option("N", "Send no request while N are under way; it waits at the client.")
    ] = None,
    speed: Annotated[float | None, option("F", "Divide the arrival times by F.")] = None,
    think: Annotated[
        str | None,
        option(
            "SECONDS|SPEC",
            "From an answer to the next turn of its conversation: 20, or drawn, as Exponential:20, which is "
            "taken where arrivals of conversations are drawn and nothing is said.",
        ),
    ] = None,
    scheduler: Annotated[
        str | None,
        option(
            "SPEC",
            f"{options.spelled(SCHEDULERS)}; with fields: Sarathi:order=spf. Fields that are lists or "
            f"tables, and so {options.unspelled(SCHEDULERS)}, are for scenarios: inferq simulate. Else "
            "vllm-v1, on a GPU as --server has it.",
        ),
    ] = None,
    token_budget: Annotated[
        int | None, option("N", "Tokens of one iteration, else the scheduler's default.")
    ] = None,
    max_seqs: Annotated[
        int | None, option("N", "Requests that run at once, else the scheduler's default.")
    ] = None,
    model: Annotated[
        str | None,
        option(
            "NAME|FILE",
            f"A model by its name ({listed(entries('models'), 'or')}), or its config.json. It and "
            "--gpu decide timing and KV cache.",
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        option(
            "NAME|FILE",
            f"The GPU that serves --model: {listed(entries('gpus'), 'or')}, or a card of your own in a TOML "
            "file: the fields of timing.Gpu.",
        ),
    ] = None,
    tensor_parallel: Annotated[
        int | None, option("N", "GPUs that share --model, else those of the shipped table.")
    ] = None,
    server: Annotated[
        str | None,
        option(
            "NAME",
            "What is not given is what this server does unasked on --gpu: vllm-0.11 to vllm-0.33 or "
            "sglang-0.5; else the newest.",
        ),
    ] = None,
    max_model_len: Annotated[
        int | None, option("N", "Tokens of the longest request, else the model's own.")
    ] = None,
    weights: Annotated[
        str | None, option("KIND", "How weights are kept: bf16, fp8, int8 or int4; bf16 unless told.")
    ] = None,
    kv_dtype: Annotated[
        str | None, option("KIND", "Numbers of the KV cache: bf16, fp8 or int8; bf16 unless told.")
    ] = None,
    gpu_memory_utilization: Annotated[
        float | None, option("SHARE", "Of the card's memory that the engine may use, else the server's.")
    ] = None,
    backend: Annotated[
        str | None, option("NAME", "Whose kernels were measured: vllm, sglang or trtllm, else the server's.")
    ] = None,
    timing: Annotated[
        str | None,
        option(
            "SPEC",
            f"Length of an iteration: {options.spelled(TIMING_MODELS)}, as in Constant:0.05, "
            "PiecewiseLinear:base=0.006,per_token=3.2e-5, TimingTable:model=qwen3-8b,gpu=h200 (measured, see "
            "inferq timing show) or TimingTable:FILE. Without --model it is a100, an illustration, roughly a "
            "7-8B model on one A100-80GB.",
            show_default=False,
        ),
    ] = None,
    kv_tokens: Annotated[
        str | None,
        option(
            "N",
            "Capacity of the KV cache in tokens, or unlimited; what the GPU leaves, or without --model "
            "432000.",
            show_default=False,
        ),
    ] = None,
    block: Annotated[int | None, option("N", "Tokens of one block of the KV cache, else 16.")] = None,
    prefix_cache: Annotated[
        str | None,
        option(
            "KIND",
            "Find again what prompts have in common: blocks (by hash, as in vLLM) or radix (a tree of "
            "tokens, as in SGLang); none, also where --server does. Without --model none.",
        ),
    ] = None,
    first_token: Annotated[
        str, option("WHEN", "The first token comes with the prefill, or one decode later.")
    ] = "prefill",
    overhead: Annotated[
        str | None,
        option(
            "FIELD=VALUE,…",
            "What the host adds to each iteration, as base_s=0.001,per_sequence_s=1e-5,overlapped=true; "
            "none; else what the server's does.",
        ),
    ] = None,
    replicas: Annotated[int | None, option("N", "So many replicas of the engine behind a router.")] = None,
    router: Annotated[
        str | None,
        option(
            "SPEC",
            f"{options.spelled(ROUTERS)}; with fields: prefix-affinity:weight=4. With --replicas; "
            "round-robin unless told.",
        ),
    ] = None,
    autoscale: Annotated[
        str | None,
        option(
            "SPEC",
            f"An autoscaler: {options.spelled(SCALING_POLICIES)}, with its fields and min, max, startup_s, "
            "every_s, cooldown_s, as in by-queue:requests=12,min=2,max=8,startup_s=60.",
        ),
    ] = None,
    failures: Annotated[
        str | None,
        option(
            "FIELD=VALUE,…",
            "When replicas die: mtbf_s=86400,repair_s=300,retries=3, or at=600:0+900:2, seconds and replica.",
        ),
    ] = None,
    seed: Annotated[int, option("N", "Seed of whatever is drawn.")] = 0,
    horizon: Annotated[float | None, option("SECONDS", "End the run at this instant.")] = None,
    warmup: Annotated[str, option("CUT", "Do not measure the first requests (500) or seconds (30s).")] = "0",
    cooldown: Annotated[str, option("CUT", "Do not measure the last requests (500) or seconds (30s).")] = "0",
    prices: arguments.Prices = None,
    out: arguments.Out = None,
) -> None:
    """Replay a trace through one replica, or through several behind a router.

    Example: inferq replay traces/azure_2023.csv --model llama-3.1-8b --gpu a100-80gb --rate 8
    """
    engine = options.engine(
        model,
        gpu,
        tensor_parallel,
        timing_spec=timing,
        kv_spec=kv_tokens,
        block=block,
        prefix_cache=prefix_cache,
        server=server,
        max_model_len=max_model_len,
        on_card={
            "weights": weights,
            "kv_dtype": kv_dtype,
            "gpu_memory_utilization": gpu_memory_utilization,
            "backend": backend,
        },
        scheduler=options.scheduler(scheduler, token_budget=token_budget, max_seqs=max_seqs),
        first_token=first_token,
        overhead=options.host(overhead),
    )
    priced = Prices.of(prices)
    if replicas is not None:
        whole("--replicas", replicas, 1, MOST_REPLICAS)
    scaler = None if autoscale is None else options.autoscaler(autoscale)
    dying = None if failures is None else options.failures(failures)
    is_fleet = not (replicas is None and scaler is None and dying is None)
    if router is not None and not is_fleet:
        raise ConfigError("--router", "one replica has nothing to choose from; give --replicas too")
    sent = options.router(router or "round-robin")
    system: Engine | Cluster = engine
    if is_fleet:
        try:
            system = Cluster(engine, replicas=replicas, router=sent, autoscaler=scaler, failures=dying)
        except ConfigError as error:
            raise error.within("--", "") from None
    trace = arguments.trace(file, format, columns, tokenizer, tokens_per_word, time_unit)
    notes: list[str] = []
    workload = adapted(
        trace,
        head=head,
        output_tokens=output_tokens,
        rate=rate,
        request_rate=request_rate,
        burstiness=burstiness,
        concurrency=concurrency,
        ramp_s=ramp,
        speed=speed,
        think=options.think(think),
        notes=notes,
    )
    run = {
        "seed": seed,
        "horizon_s": horizon,
        "warmup": options.cut(warmup),
        "cooldown": options.cut(cooldown),
        "max_in_flight": max_in_flight,
    }
    if priced is not None:
        hourly(system, priced)
    show.lines([f"replay {file}", *notes])
    show.system(system, options.preset(timing, model))
    show.written(Scenario(workload, system, run).run(progress=True), out, priced)
