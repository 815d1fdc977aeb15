"""Check of scenarios for a comparison: they may differ only in the system."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferq.checks import shown
from inferq.description import member
from inferq.errors import ConfigError
from inferq.experiments.arguments import check_options
from inferq.experiments.leaves import leaves, requests_of
from inferq.scenario import Scenario
from inferq.systems.system import System
from inferq.workload.workload import Workload


def shared(scenarios: Mapping[str, Scenario]) -> tuple[Workload, dict[str, System], dict[str, Any]]:
    """The common parts of scenarios, and their systems.

    Args:
        scenarios: one or more scenarios by name.

    Returns:
        The workload, the systems by name, and the options of the runs, including `seed` and `threads`.

    Raises:
        ConfigError: the workload or an option differs (the first one is named), or an option is not supported
            in experiments.

    Example:
        >>> import inferq as iq
        >>> from inferq.experiments.comparison.scenarios import shared
        >>> from inferq.scenario import Scenario
        >>> requests = iq.Workload({"arrival_s": [0.0], "prompt_tokens": [10], "output_tokens": [3]})
        >>> def under(scheduler):
        ...     kv = iq.KvCache.unlimited()
        ...     engine = iq.Engine(timing=iq.Constant(1.0), scheduler=scheduler, kv=kv)
        ...     return Scenario(requests, engine, {"seed": 3})
        >>> _, systems, run = shared({"sarathi": under(iq.Sarathi()), "vllm-v0": under(iq.VllmV0())})
        >>> list(systems), run
        (['sarathi', 'vllm-v0'], {'seed': 3})
    """
    for name, scenario in scenarios.items():
        member(f"systems.{name}", scenario, (Scenario,))
    baseline, first = next(iter(scenarios.items()))
    ours = _comparable(first)
    for name, scenario in scenarios.items():
        theirs = _comparable(scenario)
        for path in dict.fromkeys([*ours, *theirs]):
            if path in ours and path in theirs and ours[path] == theirs[path]:
                continue
            here, there = (shown(fields[path]) if path in fields else "unset" for fields in (ours, theirs))
            raise ConfigError(
                path,
                f"is {here} in {baseline} and {there} in {name}; compared scenarios may differ only in the "
                "system",
            )
    run = check_options(first.options, but=("seed", "threads"), field="run.")
    return first.workload, {name: scenario.system for name, scenario in scenarios.items()}, run


def _comparable(scenario: Scenario) -> dict[str, object]:
    """The requests and options of a scenario by path, without the source of the requests."""
    tables = {"workload": requests_of(scenario.workload), "run": scenario.options}
    return {path: value for path, value in leaves(tables) if value != {}}
