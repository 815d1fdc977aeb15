"""Are the results of 200 scenarios still those that were kept, bit for bit?"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from .kept_results import FILE, IN_PYTHON, SCENARIOS, results

KEPT = json.loads(FILE.with_name("results.json").read_text(encoding="utf-8"))
TOGETHER = 25

EVERYTHING = {
    "systems": "engine cluster engines disaggregated network gate_and_route tokens exponential",
    "workloads": "requests sessions mix data trace lengths Empirical transforms class priority patience_s "
    "ttft_slo_s itl_slo_s session_id prefix_parts prefix_hashes continues",
    "traces": "azure burstgpt mooncake servegen inferq.parquet",
    "transforms": "at_rate speed window head sample with_arrivals with_prompts with_outputs with_classes "
    "with_think open_loop with_patience with_prefix split concat",
    "arrivals": "Poisson Gamma Weibull Deterministic OnOff TimeVarying",
    "distributions": "Fixed Uniform LogUniform Lognormal Geometric PoissonLength Exponential",
    "schedulers": "Sarathi VllmV1 VllmV0 Sglang Orca FasterTransformer KFcfs Rad RadPhased Slai Wait "
    "NestedWait SlotGreedy ClassPriority Recompute Swap DynamicOffset fcfs spf srf lpf",
    "timing": "Constant PiecewiseLinear MemoryLinear MixedSolo TiledGemm TimingTable Roofline roofline "
    "overhead",
    "caches": "blocks radix",
    "routers": "RoundRobin Random LeastRequests LeastTokens PowerOfTwo LeastKv BySession PrefixAffinity "
    "PrefixHash spill update_s load_factor",
    "control": "occupancy queue priority greedy randomized general immediate planned abandonment",
    "options": "seed horizon_s warmup cooldown timeline_s iterations batches stepping threads out",
    "in Python": " ".join(IN_PYTHON),
}


def words(table: Any) -> Iterator[str]:
    """The keys of a table and of those in it, and their texts."""
    if isinstance(table, str):
        yield table
    elif isinstance(table, (dict, list)):
        yield from table if isinstance(table, dict) else ()
        for value in table.values() if isinstance(table, dict) else table:
            yield from words(value)


@pytest.mark.parametrize("first", range(0, 200, TOGETHER))
def test_results_are_the_kept_ones(first: int):
    different = []
    for number in range(first, first + TOGETHER):
        kept, now = KEPT[str(number)], results(number)
        tables = sorted(name for name in kept.keys() | now.keys() if kept.get(name) != now.get(name))
        if tables:
            different.append(f"scenario {number}: {', '.join(tables)}")
    assert not different, "results other than the kept ones:\n" + "\n".join(different)


def test_the_scenarios_have_everything():
    assert len(KEPT) == len(SCENARIOS) == 200
    found = set(words(SCENARIOS))
    missing = {part: set(names.split()) - found for part, names in EVERYTHING.items()}
    assert not any(missing.values()), missing
