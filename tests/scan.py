"""Far more random scenarios than a night tries, by hand, in one process, with the seeds of any night:

    INFERQ_NIGHT=wide python -m tests.scan 100000

Every policy, alone, where prompts begin alike, and in clusters, hand-offs, sessions and networks; vLLM's
and SGLang's schedulers too. Each is held against its reference, and its stretches against single steps. What
breaks is told with all that draws it again, and the scan goes on.
"""

from __future__ import annotations

import itertools
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import inferq as iq

from . import random_scenarios, random_sglang, reference
from . import test_against_reference as alone
from . import test_against_reference_fleet as fleet
from . import test_against_reference_sglang as sglang
from . import test_against_reference_vllm as vllm
from .agreement import assert_agrees, frame
from .random_scenarios import KINDS

DRAWN: tuple[Any, ...] = (
    *(random_scenarios.scenario, random_scenarios.sharing, alone._outcome, fleet._scenario, fleet._outcome),
    *(vllm._expected, vllm._expected_with_drafts, sglang._expected),
)
"""What the tests remember of their scenarios, which these are too many for."""

EVERY_S = 20.0
"""So often the scan says how far it is."""


def _steps_agree(run: Callable[..., iq.Result]) -> None:
    """Law eight, and Little's."""
    fast, slow = run(batches=True), run(batches=True, stepping=True)
    for name in ("requests", "itl", "timeline"):
        assert getattr(fast, name).equals(getattr(slow, name)), name
    assert fast.findings == slow.findings
    assert fast.drained.to_list() == slow.drained.to_list()
    assert fast.totals["in_system_as"] == fast.totals["sojourn_as"] == slow.totals["in_system_as"]


def _apart(kind: str, seed: int) -> None:
    alone._follows_the_laws(kind, seed)
    _agrees(*random_scenarios.scenario(kind, seed))


def _sharing(kind: str, seed: int) -> None:
    _agrees(*random_scenarios.sharing(kind, seed))


def _agrees(engine: Any, requests: Any, horizon_s: float | None) -> None:
    assert_agrees(requests, engine, horizon_s, reference.simulate(requests, engine, horizon_s))
    workload, real = iq.Workload(frame(requests)), iq.Engine.from_json(engine)
    _steps_agree(lambda **options: iq.simulate(workload, real, horizon_s=horizon_s, **options))


def _of_one(test: Any) -> Callable[..., None]:
    """A test of grouped scenarios, for one of them."""
    return test.__wrapped__  # type: ignore[no-any-return]


def _fleet(what: str, kind: str, seed: int) -> None:
    _of_one(fleet.test_the_core_agrees_with_the_reference)(what, kind, seed)
    _, _, real, workload, horizon_s = fleet._scenario(what, kind, seed)
    _steps_agree(lambda **options: iq.simulate(workload, real(), seed=seed, horizon_s=horizon_s, **options))


def _vllm(seed: int) -> None:
    _of_one(vllm.test_the_core_agrees_with_the_reference)(seed)


def _drafts(seed: int) -> None:
    _of_one(vllm.test_the_core_agrees_with_the_reference_on_drafts)(seed)


def _sglang(seed: int) -> None:
    sglang._agree(seed, random_sglang.scenario)


def _overlapped(seed: int) -> None:
    sglang._agree(seed, random_sglang.overlapped)


def scenarios() -> Iterator[tuple[Callable[..., None], tuple[Any, ...]]]:
    """Without end."""
    for seed in itertools.count():
        for at, kind in enumerate(KINDS):
            yield _apart, (kind, seed)
            yield _sharing, (kind, seed)
            yield _fleet, (fleet._WHAT[(seed + at) % len(fleet._WHAT)], kind, seed)
        for one in range(5 * seed, 5 * seed + 5):
            yield from ((agrees, (one,)) for agrees in (_vllm, _drafts, _sglang, _overlapped))
        for drawn in DRAWN:
            drawn.cache_clear()


def main() -> None:
    """Try so many, and tell how many broke."""
    broken, told = 0, time.monotonic()
    for tried, (agrees, given) in enumerate(itertools.islice(scenarios(), int(sys.argv[1])), 1):
        try:
            agrees(*given)
        except Exception:
            broken += 1
            print(f"BROKEN {agrees.__name__}{given}\n{traceback.format_exc()}", flush=True)
        if time.monotonic() - told > EVERY_S:
            told = time.monotonic()
            print(f"{tried} tried, {broken} broken", flush=True)
    print(f"{tried} tried, {broken} broken: all")
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
