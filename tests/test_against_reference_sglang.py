"""Does `Sglang` in the fast core do what the slow reference does, step by step, beyond what was recorded?"""

from collections import Counter
from functools import cache
from typing import Any

import pytest

import inferq as iq

from .random_sglang import scenario
from .reference_sglang import OutOfMemory, Stuck, simulate
from .test_conformance import listed_iterations, microseconds
from .test_conformance_sglang import _engine, _kind, _workload

_GROUP = 25
_GROUPS = range(56)  # of so many scenarios each


@cache
def _expected(seed: int) -> dict[str, list[Any]] | None:
    """None where the engine itself would stop."""
    try:
        return simulate(scenario(seed))
    except (OutOfMemory, Stuck):
        return None


def _happened(result: iq.Result) -> dict[str, list[Any]]:
    """As a recording has it."""
    columns = result.iterations.select("prefill_tokens", "decodes", "count")
    kinds = [
        _kind(prefills, decodes) for prefills, decodes, count in columns.iter_rows() for _ in range(count)
    ]
    steps = zip(kinds, listed_iterations(result), strict=True)
    return {
        "first_token_us": microseconds(result.requests["first_token_s"]),
        "finish_us": microseconds(result.requests["finish_s"]),
        "retractions": result.requests["preemptions"].to_list(),
        "cached_tokens_at_admission": result.requests["cached_tokens"].to_list(),
        "iterations": [[start, kind, rows] for kind, (start, rows) in steps],
    }


@pytest.mark.parametrize("group", _GROUPS)
def test_the_core_agrees_with_the_reference(group: int) -> None:
    for seed in range(group * _GROUP, (group + 1) * _GROUP):
        asked, expected = scenario(seed), _expected(seed)
        workload, engine = _workload(asked["requests"]), _engine(asked)
        stretched = iq.simulate(workload, engine, batches=True)
        if expected is not None:
            assert _happened(stretched) == expected, f"seed {seed}"
        else:
            assert set(stretched.requests["status"]) <= {"finished", "rejected"}, f"seed {seed}"
        if seed % 5 == 0:
            stepped = iq.simulate(workload, engine, stepping=True)
            assert stretched.requests.equals(stepped.requests), f"seed {seed}"
            assert stretched.tbt.equals(stepped.tbt), f"seed {seed}"


def test_the_random_scenarios_reach_what_they_are_for() -> None:
    """Guards the test above."""
    seen: Counter[str] = Counter()
    for seed in range(500):
        expected = _expected(seed)
        if expected is None:
            seen["stopped"] += 1
            continue
        seen["retracted"] += sum(expected["retractions"]) > 0
        seen["stormy"] += sum(expected["retractions"]) > 4
        seen["to the brim"] += seed % 25 == 5
        seen["found"] += sum(tokens > 0 for tokens in expected["cached_tokens_at_admission"]) > 2
        seen.update({kind for _, kind, _ in expected["iterations"]})
    assert seen["retracted"] > 100 and seen["stormy"] > 20 and seen["stopped"] < 15
    assert seen["found"] > 150 and seen["mixed"] > 75
    assert seen["to the brim"] > 8
