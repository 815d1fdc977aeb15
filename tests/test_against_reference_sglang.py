"""Does `Sglang` in the fast core do what the slow reference does, step by step, beyond what was recorded?"""

from collections import Counter
from functools import cache
from typing import Any

import inferq as iq

from .grouped import grouped
from .night import seeds
from .random_sglang import scenario
from .recordings import sglang_engine, sglang_outcome, workload
from .reference_sglang import OutOfMemory, Stuck, simulate


@cache
def _expected(seed: int) -> dict[str, list[Any]] | None:
    """None where the engine itself would stop."""
    try:
        return simulate(scenario(seed))
    except (OutOfMemory, Stuck):
        return None


@grouped(seed=seeds(525))
def test_the_core_agrees_with_the_reference(seed: int) -> None:
    asked, expected = scenario(seed), _expected(seed)
    requests, engine = workload(asked["requests"]), sglang_engine(asked)
    stretched = iq.simulate(requests, engine, batches=True)
    if expected is not None:
        assert sglang_outcome(stretched) == expected
    else:
        assert set(stretched.requests["status"]) <= {"finished", "rejected"}
    if seed % 5 == 0:
        stepped = iq.simulate(requests, engine, stepping=True)
        assert stretched.requests.equals(stepped.requests)
        assert stretched.tbt.equals(stepped.tbt)


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
