"""Do routers that know prefixes choose in the fast core as in the slow reference, whatever the caches do?"""

import random
from collections import Counter
from functools import cache
from typing import Any

import pytest

import inferq as iq

from . import reference_fleet
from .agreement import assert_calls, frame
from .grouped import grouped
from .night import chance, seeds
from .random_scenarios import KINDS, engine_of, holds_all, lengths, requests, shared, tight, with_sessions
from .reference_fleet import Call, Outcome

Described = dict[str, Any]

_SEEDS = seeds(110)
_ROUTERS = ("spill", "live", "delayed", "hash", "bounded", "python", "hand-off")


class Written(iq.Router):
    """The longest cached prefix, less 20 tokens for a request that is there; of these the last replica."""

    def route(self, request: iq.Arrival, fleet: iq.Fleet) -> int:
        gain = fleet.cached_tokens - 20 * fleet.requests
        return len(fleet) - 1 - int(gain[::-1].argmax())


def _last(router: Any, r: Call, replicas: list[Any]) -> int:
    def gain(at: int) -> int:
        cached = r.prompt if r.source is not None else reference_fleet.cached_tokens(replicas[at], r)
        return cached - 20 * len(reference_fleet.present(replicas[at]))

    return max(range(len(replicas)), key=lambda at: (gain(at), at))


reference_fleet.WRITTEN["Written"] = _last


def _router(rng: random.Random, which: str) -> iq.Router:
    if which == "hand-off":
        which = rng.choice(["live", "delayed", "hash", "bounded", "python"])
    weight = rng.choice([0.0, 0.3, 1.0, 2.5])
    tokens = rng.choice([1, 5, 20, 60, 1000])
    if which == "spill":
        return iq.BySession(spill=rng.choice([1.0, 1.2, 2.0]))
    if which == "live":
        return iq.PrefixAffinity(weight=weight)
    if which == "delayed":
        every = rng.choice([1e-9, 0.01, 0.05, 0.3, 1.0, 7.0])
        return iq.PrefixAffinity(weight=weight or 1.0, update_s=every)
    if which == "python":
        return Written()
    return iq.PrefixHash(
        prefix_tokens=tokens, load_factor=rng.choice([1.01, 1.25, 3.0]) if which == "bounded" else None
    )


def _described(router: iq.Router) -> Described:
    return {"kind": "Written"} if isinstance(router, Written) else router.to_json()


class Scenario:
    def __init__(self, which: str, seed: int) -> None:
        rng = chance(f"{which} {seed}")
        plain = requests(rng, *lengths(rng))
        self.rows = with_sessions(rng, shared(rng, plain), thinking=False)
        longest = max(row["prompt_tokens"] + row["output_tokens"] for row in self.rows)
        caches = ["blocks", "radix", rng.choice(["blocks", "radix", None])]

        def engine() -> Described:
            kv = {**tight(rng, longest), "prefix_cache": rng.choice(caches)}
            return engine_of(rng, rng.choice(kinds), self.rows, kv, first_token)

        kinds = list(KINDS)
        if which == "hand-off":  # it counts what it holds for those that have left
            kinds += ["SlotGreedy"] * 3
        first_token = rng.choice(["prefill", "prefill", "decode"])
        engines = [engine() for _ in range(rng.randint(1, 3))]
        if len(engines) == 1:
            engines *= rng.randint(2, 4)
        router = _router(rng, which)
        pool = {"engines": engines, "counts": [1] * len(engines), "router": _described(router)}
        real = [iq.Engine.from_json(one) for one in engines]
        self.horizon_s = None if rng.random() < 0.8 else round(self.rows[-1]["arrival_s"], 3)
        if which != "hand-off":
            self.system = [{**pool, "hands_to": None}]
            self.real: Any = iq.Cluster(real, router=router)
            return
        latency_s, bytes_per_s = rng.choice([0, 0.001, 0.3]), rng.choice([1000.0, 1e12])
        link = {"latency_s": latency_s, "bytes_per_s": bytes_per_s, "bytes_per_token": 1, "concurrent": None}
        prefill, decode = engines[0], holds_all(rng, engines[-1], self.rows)
        n, m, other = rng.randint(1, 3), rng.randint(1, 3), _router(rng, which)
        pool = {"engines": [prefill], "counts": [n], "router": _described(router)}
        after = {"engines": [decode], "counts": [m], "router": _described(other), "hands_to": None}
        self.system = [{**pool, "hands_to": {"pool": 1, "link": link}}, after]
        self.real = iq.Disaggregated(
            prefill=(iq.Engine.from_json(prefill), n),
            decode=(iq.Engine.from_json(decode), m),
            link=iq.Link(**link),
            prefill_router=router,
            decode_router=other,
        )


@cache
def _scenario(which: str, seed: int) -> Scenario:
    return Scenario(which, seed)


@cache
def _outcome(which: str, seed: int) -> Outcome:
    scenario = _scenario(which, seed)
    return reference_fleet.simulate(scenario.rows, scenario.system, seed, scenario.horizon_s)


@grouped(seed=_SEEDS)
@pytest.mark.parametrize("which", _ROUTERS)
def test_the_core_agrees_with_the_reference(which: str, seed: int) -> None:
    scenario, outcome = _scenario(which, seed), _outcome(which, seed)
    rng = random.Random(seed)
    workload = iq.Workload(frame(scenario.rows))
    result = iq.simulate(
        workload, scenario.real, seed=seed, horizon_s=scenario.horizon_s, stepping=rng.random() < 0.3
    )
    assert_calls(result, outcome.requests, which == "hand-off")
    assert result.totals["end_s"] == outcome.end / 10**18


@pytest.mark.parametrize("which", _ROUTERS)
def test_the_random_scenarios_reach_what_they_are_for(which: str) -> None:
    """Guards the test above: prefixes are found, blocks run short, and replicas share the work."""
    seen: Counter[str] = Counter()
    for seed in _SEEDS:
        outcome = _outcome(which, seed)
        seen["found"] += sum(r.cached > 0 for r in outcome.requests)
        seen["preempted"] += sum(r.preemptions > 0 for r in outcome.requests)
        seen["several"] += len({r.replica for r in outcome.requests}) > 1
        seen["handed over"] += sum(r.source is not None and r.cached > 0 for r in outcome.requests)
    assert seen["found"] > 50 and seen["preempted"] > 2 and seen["several"] > 40, seen
    assert seen["handed over"] > 25 or which != "hand-off"
