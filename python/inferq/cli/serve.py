"""`inferq serve`: a scenario behind real clients of the OpenAI API."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from inferq.cli import arguments, options, show
from inferq.cli.arguments import option
from inferq.serving.serve import serve as serve_system
from inferq.workload.distributions import LENGTH_DISTRIBUTIONS, LengthDistribution
from inferq.workload.workload import Workload


def serve(
    scenario: arguments.Scenario,
    set_: arguments.Set = None,
    host: Annotated[
        str, option("ADDRESS", "To listen on; by default only this machine reaches it.")
    ] = "127.0.0.1",
    port: Annotated[int, option("N", "To listen on; 0: any that is free.")] = 8000,
    speed: Annotated[float, option("F", "Seconds of the simulation in a second of the wall.")] = 1.0,
    seed: Annotated[
        int | None, option("N", "Of routers, lengths and faults, else that of the scenario.")
    ] = None,
    model: Annotated[str | None, option("NAME", "The name under which it serves.")] = None,
    tokenizer: arguments.Tokenizer = None,
    characters_per_token: Annotated[
        int | None,
        option("N", "Characters of a token, where no tokenizer is given; 4 unless told."),
    ] = None,
    output: Annotated[
        str | None,
        option(
            "SPEC|workload",
            "How long answers are, where clients do not ask for all that they allow: a distribution, as "
            "Geometric:250, or those of the scenario's workload, row by row. Else as long as clients allow.",
        ),
    ] = None,
    max_waiting: Annotated[
        int | None, option("N", "Requests that may wait; one more is refused with 503.")
    ] = None,
    record: Annotated[
        Path | None, option("FILE", "A Parquet file of the requests as they came, which a run can repeat.")
    ] = None,
    admin_port: Annotated[
        int | None, option("N", "Where faults are asked for, on the loopback address alone; else nowhere.")
    ] = None,
) -> None:
    """Answer clients of the OpenAI API as the fleet of a scenario would, until SIGTERM or Ctrl-C.

    Of the scenario the system counts, and its seed. Example: inferq serve docs/chat.toml --port 8000
    """
    plan = arguments.scenario(scenario, set_)
    show.system(plan.system)
    law: LengthDistribution | Workload | None = None
    if output == "workload":
        law = plan.workload
    elif output is not None:
        law = options.description("--output", output, LENGTH_DISTRIBUTIONS)
    serve_system(
        plan.system,
        host=host,
        port=port,
        speed=speed,
        seed=int(plan.options.get("seed", 0)) if seed is None else seed,
        model=model,
        tokenizer=tokenizer,
        characters_per_token=characters_per_token,
        output=law,
        max_waiting=max_waiting,
        record=record,
        admin_port=admin_port,
    )
