"""`inferq theory`: evaluate the stability of a scenario."""

from __future__ import annotations

from typing import Annotated

from inferq.cli import arguments, show
from inferq.cli.arguments import option
from inferq.theory.bounds.stability import stability


def theory(
    scenario: arguments.Scenario,
    set_: arguments.Set = None,
    hit_rate: Annotated[
        float | None,
        option(
            None,
            "Hit rate of the prefix cache for the analysis, 0 to 1.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show whether a scenario is stable, its bounds, and their hypotheses.

    Example: inferq theory docs/chat.toml
    """
    plan = arguments.scenario(scenario, set_)
    show.lines([f"theory {scenario}", *plan.notes])
    show.system(plan.system)
    show.stability(stability(plan.workload, plan.system, hit_rate=hit_rate))
