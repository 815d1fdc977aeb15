"""Gate and route over real iterations: the hand-worked road of a request, the laws, averages and revenue."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import polars as pl
import pytest

import inferq as iq

from .arriving import arriving

ALPHA, BETA, SOLO = 0.02, 1e-4, 0.01
CLASSES = ("chat", "code")
POLICIES = [
    ("occupancy", "greedy", True),
    ("queue", "greedy", True),
    ("priority", "greedy", True),
    ("occupancy", "randomized", True),
    ("occupancy", "general", True),
    ("fcfs", "immediate", False),
    ("queue", "fcfs", False),
]


def cluster(gate: str = "occupancy", router: str = "greedy", planned: bool = True, **fields: Any) -> Any:
    plan = iq.research.Allocation(
        prefill={"chat": 0.25, "code": 0.25},
        mixed={"chat": 1, "code": 1},
        solo={"chat": 1, "code": 2},
        prefill_queue={"chat": 0.5, "code": 0.5},
    )
    given: dict[str, Any] = {
        "replicas": 4,
        "timing": iq.research.MixedSolo(alpha=ALPHA, beta=BETA, solo=SOLO),
        "slots": 4,
        "chunk": 64,
        "prices": iq.Prices(prefill=0.1, decode=0.2),
        "service": "tokens",
        **fields,
    }
    return iq.research.GateAndRoute(plan, gate=gate, router=router, planned=planned, **given)


def work(requests: int = 300, rate: float = 30.0) -> iq.Workload:
    workload = arriving(requests, rate, iq.dist.Uniform(1, 300), iq.dist.Geometric(mean=30))
    return workload.with_classes(dict.fromkeys(CLASSES, 0.5))


def test_a_prompt_goes_in_chunks_and_its_decodes_to_a_solo_replica():
    """100 tokens are chunks of 64 and 36 beside no decode; three decodes follow on the other replica."""
    plan = iq.research.Allocation(prefill={"default": 0.5})
    one = replace(cluster(replicas=2), allocation=plan)
    result = iq.simulate({"arrival_s": [1.0], "prompt_tokens": [100], "output_tokens": [3]}, one)
    prefilled = 1 + 2 * ALPHA + 100 * BETA
    columns = ("prefill_replica", "replica", "admitted_s", "handoff_s")
    assert result.requests.select(columns).row(0) == (0, 1, 1.0, 0.0)
    row = result.requests.row(0, named=True)
    instants = (row["prefilled_s"], row["first_token_s"], row["finish_s"])
    assert instants == pytest.approx((prefilled, prefilled + SOLO, prefilled + 3 * SOLO), rel=1e-12)
    assert result.revenue["bundled"][-1] == pytest.approx(100 * 0.1 + 3 * 0.2)
    occupancy = result.occupancy.row(0, named=True)
    end = row["finish_s"]
    assert occupancy["prefill"] == pytest.approx((prefilled - 1) / end / 2, rel=1e-6)
    assert occupancy["solo"] == pytest.approx(3 * SOLO / end / 2, rel=1e-6)
    assert occupancy["mixed"] == occupancy["decode_queue"] == 0


def test_who_waits_for_a_slot_waits_in_the_buffer():
    """Two slots on each of two replicas, one of them kept for prefills: the fourth decode finds none free."""
    plan = iq.research.Allocation(prefill={"default": 0.5})
    one = replace(cluster(replicas=2, slots=2), allocation=plan)
    four = {"arrival_s": [0.0] * 4, "prompt_tokens": [1] * 4, "output_tokens": [1000] * 4}
    requests = iq.simulate(four, one).requests
    assert requests["replica"].to_list()[:3] == [1, 1, 0]
    # the first to finish on replica 1 makes room; the next batch there begins at that very instant
    assert requests["prefilled_s"][3] + requests["handoff_s"][3] == pytest.approx(requests["finish_s"][0])


@pytest.mark.parametrize(("gate", "router", "planned"), POLICIES)
def test_the_laws_hold(gate: str, router: str, planned: bool):
    system = cluster(gate, router, planned, abandonment={"chat": 0.5, "code": 2.0})
    result = iq.simulate(work(), system, seed=3)
    totals = result.totals
    assert totals["in_system_as"] == totals["sojourn_as"]
    counts = dict(result.requests["status"].value_counts().iter_rows())
    assert sum(counts.values()) == 300
    assert counts["abandoned"] > 0
    assert not counts.get("unfinished")
    done = result.requests.filter(pl.col("status") == "finished")
    for before, after in zip(
        ("arrival_s", "admitted_s", "prefilled_s", "first_token_s"),
        ("admitted_s", "prefilled_s", "first_token_s", "finish_s"),
        strict=True,
    ):
        assert (done[before] <= done[after]).all()
    stepped = iq.simulate(work(), system, seed=3, stepping=True)
    for frame in ("requests", "itl", "timeline", "occupancy", "revenue"):
        assert getattr(stepped, frame).equals(getattr(result, frame)), frame


@pytest.mark.parametrize(("gate", "router", "planned"), POLICIES)
def test_averages_and_revenue_are_those_of_the_rows(gate: str, router: str, planned: bool):
    """Every request for itself, against every prefill of its replica."""
    system = cluster(gate, router, planned, abandonment=1.0)
    start, end = 2.0, 6.0
    result = iq.simulate(work(), system, seed=5, horizon_s=end, warmup=f"{start}s")
    rows = result.requests.to_dicts()

    def inside(begin: float | None, finish: float | None) -> tuple[float, float]:
        low = max(end if begin is None else begin, start)
        return low, max(low, min(end if finish is None else finish, end))

    prefills = [
        (row["prefill_replica"] if row["prefill_replica"] is not None else row["replica"], begin, finish)
        for row in rows
        if row["admitted_s"] is not None
        for begin, finish in [inside(row["admitted_s"], row["prefilled_s"])]
    ]
    sums = {name: dict.fromkeys(CLASSES, 0.0) for name in result.occupancy.columns[1:]}
    for row in rows:
        stays = {"prefill_queue": inside(row["arrival_s"], row["admitted_s"] or row["left_s"])}
        if row["admitted_s"] is not None:
            stays["prefill"] = inside(row["admitted_s"], row["prefilled_s"])
        if row["prefilled_s"] is not None:
            resumed = None if row["handoff_s"] is None else row["prefilled_s"] + row["handoff_s"]
            stays["decode_queue"] = inside(row["prefilled_s"], resumed or row["left_s"])
            if resumed is not None:
                begin, finish = inside(resumed, row["finish_s"])
                beside = [
                    max(0.0, min(finish, last) - max(begin, first))
                    for replica, first, last in prefills
                    if replica == row["replica"]
                ]
                sums["mixed"][row["class"]] += sum(beside)
                sums["solo"][row["class"]] += finish - begin - sum(beside)
        for name, (begin, finish) in stays.items():
            sums[name][row["class"]] += finish - begin
    for name, of_class in sums.items():
        expected = [of_class[one] / (end - start) / 4 for one in CLASSES]
        assert result.occupancy[name].to_list() == pytest.approx(expected, abs=1e-6), name

    def paid(instant: str, tokens: str, price: str) -> Fraction:
        return Fraction(price) * sum(row[tokens] for row in rows if (row[instant] or 0.0) >= start)

    decodes = paid("finish_s", "output_tokens", "0.2")
    last = result.revenue.row(-1, named=True)
    assert last["time_s"] == end
    assert last["separate"] == pytest.approx(float(paid("prefilled_s", "prompt_tokens", "0.1") + decodes))
    assert last["bundled"] == pytest.approx(float(paid("finish_s", "prompt_tokens", "0.1") + decodes))
    assert last["bundled_per_replica_s"] == pytest.approx(last["bundled"] / (end - start) / 4)
    assert (np.diff(result.revenue["bundled"]) >= 0).all()


def test_what_fits_no_cache_is_rejected_before_it_waits():
    small = cluster(kv=iq.KvCache(tokens=64, block=1))
    frame = {"arrival_s": [0.0, 0.0], "prompt_tokens": [50, 10], "output_tokens": [20, 5]}
    requests = iq.simulate({**frame, "class": ["chat", "code"]}, small).requests
    assert requests["status"].to_list() == ["rejected", "finished"]
    assert requests["replica"][0] is None


def test_a_limited_cache_is_kept_to():
    small = cluster(kv=iq.KvCache(tokens=700, block=1), slots=8)
    result = iq.simulate(work(), small, seed=1, iterations=True)
    assert result.iterations["kv_used_tokens"].max() <= 700
    assert result.requests.filter(status="finished").height > 0
    assert result.totals["in_system_as"] == result.totals["sojourn_as"]


def test_a_warm_up_that_leaves_nothing_is_an_error():
    with pytest.raises(iq.ConfigError, match=r"^warmup: excludes 300 of 300 requests"):
        iq.simulate(work(), cluster(), warmup=300)


@pytest.mark.parametrize("service", ["tokens", "exponential"])
def test_a_horizon_between_arrivals_is_the_end_of_what_is_averaged(service: str):
    """One request is over long before the horizon, the next one comes after it."""
    frame = {
        "arrival_s": [0.0, 100.0],
        "prompt_tokens": [10, 10],
        "output_tokens": [2, 2],
        "class": ["chat", "code"],
    }
    result = iq.simulate(frame, cluster(service=service), horizon_s=50.0)
    last = result.revenue.row(-1, named=True)
    assert (last["time_s"], last["bundled"]) == (50.0, pytest.approx(1.4))
    assert last["bundled_per_replica_s"] == pytest.approx(1.4 / 50 / 4)


@pytest.mark.parametrize("service", ["tokens", "exponential"])
def test_a_run_within_its_warm_up_says_so(service: str):
    result = iq.simulate(work(50), cluster(service=service), warmup="1000s")
    assert result.revenue.height == 0
    assert result.occupancy["prefill"].null_count() == 2
    assert [finding.kind for finding in result.findings] == ["nothing-measured"]


def test_sessions_are_served_by_tokens_and_refused_by_slots():
    turns = {
        "arrival_s": [0.0, 1.0],
        "prompt_tokens": [10, 10],
        "output_tokens": [2, 2],
        "class": ["chat", "code"],
        "session_id": [1, 1],
        "think_s": [None, 5.0],
    }
    requests = iq.simulate(turns, cluster()).requests
    assert requests["arrival_s"][1] == requests["finish_s"][0] + 5.0
    with pytest.raises(iq.ConfigError, match=r"^think_s: is not available with exponential services"):
        iq.simulate(turns, cluster(service="exponential"))


def test_the_audit_asks_for_a_budget():
    result = iq.simulate(work(50), cluster())
    with pytest.raises(iq.ConfigError, match=r"^budget: required, because slots have no token budget"):
        result.work_conservation()
    assert result.work_conservation(64).budget == 64
