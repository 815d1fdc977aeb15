"""`inferq theory`: can a scenario be stable, and which limit binds?"""

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
            "Share of the prompt tokens that prefix caches find, for a verdict at this hit rate.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Say whether a scenario can be stable, by which limit, and under which hypotheses.

    Example: inferq theory docs/chat.toml
    """
    plan = arguments.scenario(scenario, set_)
    show.lines([f"theory {scenario}", *plan.notes])
    show.system(plan.system)
    show.stability(stability(plan.workload, plan.system, hit_rate=hit_rate))
