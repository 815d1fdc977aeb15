"""Does `Sglang` in the fast core do what the slow reference does, step by step, beyond what was recorded?"""

from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import inferq as iq

from .grouped import grouped
from .night import seeds
from .random_sglang import limited, overlapped, scenario
from .recordings import Scenario, sglang_engine, sglang_outcome, workload
from .reference_sglang import OutOfMemory, Stuck, simulate


@cache
def _expected(seed: int, drawn: Callable[[int], Scenario] = scenario) -> dict[str, list[Any]] | None:
    """None where the engine itself would stop."""
    try:
        return simulate(drawn(seed))
    except (OutOfMemory, Stuck):
        return None


def _agree(seed: int, drawn: Callable[[int], Scenario]) -> None:
    asked, expected = drawn(seed), _expected(seed, drawn)
    ends = asked.get("ends", "length" if asked.get("overlap") else "stop")
    requests, engine = workload(asked["requests"], ends), sglang_engine(asked)
    stretched = iq.simulate(requests, engine, batches=True)
    if expected is not None:
        assert sglang_outcome(stretched) == expected
    else:
        assert set(stretched.requests["status"]) <= {"finished", "rejected"}
    if seed % 5 == 0:
        stepped = iq.simulate(requests, engine, stepping=True)
        assert stretched.requests.equals(stepped.requests)
        assert stretched.itl.equals(stepped.itl)


@grouped(seed=seeds(525))
def test_the_core_agrees_with_the_reference(seed: int) -> None:
    _agree(seed, scenario)


@grouped(seed=seeds(200))
def test_the_core_agrees_with_the_reference_where_clients_allow_more(seed: int) -> None:
    _agree(seed, limited)


@grouped(seed=seeds(400))
def test_the_core_agrees_with_the_reference_where_steps_overlap(seed: int) -> None:
    _agree(seed, overlapped)


def test_the_random_scenarios_that_overlap_reach_what_they_are_for() -> None:
    seen: Counter[str] = Counter()
    for seed in range(400):
        asked, expected = overlapped(seed), _expected(seed, overlapped)
        if expected is not None:
            rows = Counter(r for _, _, step in expected["iterations"] for r, _, emits in step if emits)
            lost = sum(rows.values()) - sum(row["output_tokens"] for row in asked["requests"])
            seen["dropped by retraction"] += "ends" not in asked and lost > 0
            seen["in vain"] += "ends" in asked and lost > 0
            seen["found"] += sum(tokens > 0 for tokens in expected["cached_tokens_at_admission"]) > 2
    assert min(seen[what] for what in ("dropped by retraction", "in vain", "found")) > 40, seen


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
