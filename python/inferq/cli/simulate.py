"""`inferq simulate`: run a scenario."""

from __future__ import annotations

from inferq.cli import arguments, show
from inferq.results.costs import hourly
from inferq.systems.prices import Prices


def simulate(
    scenario: arguments.Scenario,
    set_: arguments.Set = None,
    prices: arguments.Prices = None,
    out: arguments.Out = None,
) -> None:
    """Run a scenario of a TOML file or of a previous run.

    Example: inferq simulate docs/chat.toml --out out
    """
    priced = Prices.of(prices)
    plan = arguments.scenario(scenario, set_)
    if priced is not None:
        hourly(plan.system, priced)
    show.lines([f"simulate {scenario}", *plan.notes])
    show.system(plan.system)
    show.written(plan.run(progress=True), out, priced)
