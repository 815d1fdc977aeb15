"""`inferq serve`: serve a scenario to real clients of the OpenAI API."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from inferq.cli import arguments, options, show
from inferq.cli.arguments import option
from inferq.serving.serve import check_extras
from inferq.serving.serve import serve as serve_system
from inferq.workload.distributions import LENGTH_DISTRIBUTIONS, LengthDistribution
from inferq.workload.workload import Workload


def serve(
    scenario: arguments.Scenario,
    set_: arguments.Set = None,
    host: Annotated[str, option("ADDRESS", "Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, option("N", "Port to listen on; 0 selects a free one.")] = 8000,
    speed: Annotated[float, option("F", "Simulated seconds per second of wall time.")] = 1.0,
    seed: Annotated[
        int | None, option("N", "Seed of routers, lengths and faults. Default: the scenario's.")
    ] = None,
    model: Annotated[str | None, option("NAME", "Model name in the API.")] = None,
    tokenizer: Annotated[
        Path | None, option("FILE", "A tokenizer.json to count the tokens of texts.")
    ] = None,
    characters_per_token: Annotated[
        int | None,
        option("N", "Characters per token without a tokenizer. Default: 4."),
    ] = None,
    output: Annotated[
        str | None,
        option(
            "SPEC|workload",
            "Output length: a distribution such as Geometric:250, or the rows of the scenario's workload. "
            "Clients can limit it. Default: the limit of the client.",
        ),
    ] = None,
    max_waiting: Annotated[
        int | None, option("N", "Maximum waiting requests; further ones get status 503.")
    ] = None,
    record: Annotated[
        Path | None, option("FILE", "Write the received requests as Parquet, to replay them.")
    ] = None,
    admin_port: Annotated[
        int | None, option("N", "Port for fault injection, on the loopback address only. Default: off.")
    ] = None,
) -> None:
    """Serve clients of the OpenAI API like the fleet of a scenario, until SIGTERM or Ctrl-C.

    Uses the system and the seed of the scenario. Example: inferq serve docs/chat.toml --port 8000
    """
    check_extras(tokenizer=tokenizer is not None)
    plan = arguments.scenario(scenario, set_)
    show.system(plan.system)
    lengths: LengthDistribution | Workload | None = None
    if output == "workload":
        lengths = plan.workload
    elif output is not None:
        lengths = options.description("--output", output, LENGTH_DISTRIBUTIONS)
    serve_system(
        plan.system,
        host=host,
        port=port,
        speed=speed,
        seed=int(plan.options.get("seed", 0)) if seed is None else seed,
        model=model,
        tokenizer=tokenizer,
        characters_per_token=characters_per_token,
        output=lengths,
        max_waiting=max_waiting,
        record=record,
        admin_port=admin_port,
    )
