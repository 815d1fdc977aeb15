"""Scenarios that may be compared: they differ in the system alone."""

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
    """What scenarios have in common, and in what they differ.

    Args:
        scenarios: one or more, by name.

    Returns:
        The workload, the systems by name, and the options of the runs, `seed` and `threads` among them.

    Raises:
        ConfigError: a workload or an option that differs; it names the first. Or an option that the runs of
            an experiment cannot have.

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
    ours = _said(first)
    for name, scenario in scenarios.items():
        theirs = _said(scenario)
        for path in dict.fromkeys([*ours, *theirs]):
            if path in ours and path in theirs and ours[path] == theirs[path]:
                continue
            here, there = (shown(said[path]) if path in said else "not given" for said in (ours, theirs))
            raise ConfigError(
                path,
                f"is {here} in {baseline} and {there} in {name}; what is compared must differ in the "
                "system alone",
            )
    run = check_options(first.options, but=("seed", "threads"), field="run.")
    return first.workload, {name: scenario.system for name, scenario in scenarios.items()}, run


def _said(scenario: Scenario) -> dict[str, object]:
    """Which requests come and how they are run, by path; not where the requests were read from."""
    said = {"workload": requests_of(scenario.workload), "run": scenario.options}
    return {path: value for path, value in leaves(said) if value != {}}
