"""Runs under gate and route with exponential services."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, cast

from inferq import _core
from inferq._lazy import np, pl
from inferq.errors import ConfigError
from inferq.results.finding import Finding
from inferq.results.tables import REQUESTS, RunTables
from inferq.systems.gate_and_route import GateAndRoute

_COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens")


def of_slots(
    cluster: GateAndRoute,
    frame: pl.DataFrame,
    options: dict[str, Any],
    progress: Callable[[int, int], object] | None,
) -> RunTables:
    """Run the requests of a frame on slots with exponential services.

    Args:
        cluster: the cluster under gate and route.
        frame: the requests.
        options: options of `simulate` in the core's format; those about iterations do not apply.
        progress: receives the progress.
    """
    for name in ("cooldown", "batches", "iterations", "stepping"):
        if options[name] not in (False, {"requests": 0}):
            raise ConfigError(name, "does not apply to exponential services; remove it")
    used = {name: options[name] for name in ("seed", "horizon_s", "warmup", "timeline_s")}
    scenario = {"gate_and_route": cluster.to_json(), **used}
    columns, classes = {name: frame[name].to_numpy() for name in _COLUMNS}, ["default"]
    if "class" in frame.columns:
        named = frame["class"]
        columns["class"] = named.to_physical().cast(pl.UInt32).to_numpy()
        classes = cast("pl.Enum", named.dtype).categories.to_list()
    tables = _core.simulate_exponential(json.dumps(scenario), columns, classes, progress)
    requests = tables["requests"]
    rows = requests["status"].size
    # quantities that the model lacks: one value broadcast to all rows
    requests["max_itl_s"] = np.broadcast_to(np.nan, rows)
    requests["preemptions"] = np.broadcast_to(np.int32(0), rows)
    requests["cached_tokens"] = np.broadcast_to(np.int32(0), rows)
    requests["prefilled_s"] = requests["first_token_s"]
    tables["requests"] = {name: requests[name] for name in REQUESTS}
    tables["itl_totals"] = [{"count": 0, "sum_as": 0, "max_s": None} for _ in classes]
    tables["findings"] = _findings(tables["totals"], rows, options)
    tables["totals"] |= {"iterations": 0, "stretches": 0, "stretched_iterations": 0}
    return RunTables({"class": classes}, frame, **tables)


def nothing_measured(options: Mapping[str, Any]) -> Finding:
    """The finding that the warm-up covers the whole run."""
    text = "the run ended within its warm-up; there are no averages and no revenue; shorten the warm-up"
    return Finding("nothing-measured", text, options["warmup"])


def _findings(totals: dict[str, Any], rows: int, options: Mapping[str, Any]) -> list[Finding]:
    findings = []
    prefills, decodes = totals["abandoned_prefills"], totals["abandoned_decodes"]
    abandoned = prefills + decodes
    if abandoned:
        findings.append(
            Finding(
                "abandoned",
                f"{abandoned:,} of {rows:,} requests ran out of patience, {prefills:,} before their prefill "
                f"and {decodes:,} before their decode",
                {"count": abandoned, "total": rows, "before_prefill": prefills, "before_decode": decodes},
            )
        )
    if not totals["measured_as"]:
        findings.append(nothing_measured(options))
    return findings
