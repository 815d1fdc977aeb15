"""`inferq simulate`: a scenario written in TOML."""

from __future__ import annotations

from inferq.cli import arguments, show


def simulate(scenario: arguments.Scenario, set_: arguments.Set = None, out: arguments.Out = None) -> None:
    """Run a scenario written in TOML.

    Example: inferq simulate docs/chat.toml --out out
    """
    plan = arguments.scenario(scenario, set_)
    show.lines([f"simulate {scenario}", *plan.notes])
    show.system(plan.system)
    show.written(plan.run(progress=True), out)
