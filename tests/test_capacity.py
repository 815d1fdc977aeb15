"""Does `capacity` find the largest rate that keeps an SLO, and does it say what that rests on?

Closed form: a server that takes one second a request, one at a time, is M/D/1, where the mean wait is
ρ/(2(1 − ρ)) seconds. A limit x on it is reached at ρ = 2x/(1 + 2x). Elsewhere the judge is a brute-force
grid: rates 3 % apart, many seeds that the search does not use, means of `Result.summary` held against limits.
"""

import math
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import inferq as iq
from inferq.cli import app
from inferq.display.style import svg
from inferq.experiments.capacity_search.capacity_plan import CapacityPlan
from inferq.experiments.capacity_search.run_length import longer

from .arriving import arriving
from .refusals import refused

SERVER = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.Sarathi(max_seqs=1), kv=iq.KvCache.unlimited())
ENGINE = iq.Engine(
    timing=iq.PiecewiseLinear(base=0.006, per_token=32e-6, knee=200, per_context_token=40e-9),
    scheduler=iq.Sarathi(token_budget=512, max_seqs=64),
    kv=iq.KvCache(tokens=120_000),
)


def one_by_one(requests: int) -> iq.Workload:
    """One token in, one token out, Poisson arrivals."""
    return arriving(requests, 1.0, 8, 1)


def by_rate(rate: float) -> iq.Workload:
    return arriving(50, rate, 8, 1)


def chat(requests: int, prompt: int = 230, output: int = 60) -> iq.Workload:
    return arriving(
        requests,
        8.0,
        iq.dist.Lognormal(mean=prompt, median=prompt / 2, cap=4096),
        iq.dist.Geometric(output, cap=1024),
    )


def m_d_1(limit: float) -> float:
    """The rate at which the mean wait is `limit` seconds."""
    return 2 * limit / (1 + 2 * limit)


@pytest.mark.parametrize("limit", [0.1, 0.5, 2.0])
def test_the_bracket_holds_the_exact_rate_of_m_d_1(limit: float):
    plan = iq.capacity(one_by_one(10_000), SERVER, iq.Slo(queue_mean=limit), warmup=1000)
    assert plan.high is not None
    assert plan.low <= m_d_1(limit) <= plan.high
    assert plan.high / plan.low < 1.08
    assert plan.limited_by_length is False
    assert not plan.contradictions


def test_an_objective_at_the_only_gap_there_is_is_kept() -> None:
    """All gaps are 20 ms, in a bin that ends above: P99 and maximum meet 20 ms at the same rates."""
    engine = iq.Engine(timing=iq.Constant(0.02), scheduler=iq.Sarathi(max_seqs=64), kv=iq.KvCache.unlimited())
    rows = {
        "arrival_s": [at * 0.05 for at in range(100)],
        "prompt_tokens": [9] * 100,
        "output_tokens": [9] * 100,
    }
    by_limit = [
        iq.capacity(rows, engine, iq.Slo(**limit)) for limit in ({"itl_max": 0.02}, {"itl_p99": 0.02})
    ]
    assert by_limit[0].rate == by_limit[1].rate > 0
    assert not iq.capacity(rows, engine, iq.Slo(itl_p99=0.0199)).rate


def test_the_answer_is_above_the_truth_no_more_often_than_stated():
    # 20 searches with seeds of their own: at 95 % more than 3 misses on either side have a chance of 1.6 %
    slo, exact = iq.Slo(queue_mean=0.5), m_d_1(0.5)
    plans = [
        iq.capacity(
            one_by_one(1500), SERVER, slo, warmup=100, precision=0.2, seeds=range(100 * k, 100 * k + 5)
        )
        for k in range(1, 21)
    ]
    assert sum(plan.low > exact for plan in plans) <= 3
    assert sum(plan.high is not None and plan.high < exact for plan in plans) <= 3


Limits = dict[tuple[str | None, str], float]


def grid(
    workload: iq.Workload, system: Any, limits: Limits, rates: list[float], seeds: int, **run: Any
) -> tuple[float, float]:
    """The largest rate of a grid where every mean over the seeds keeps its limit, and the next one."""
    kept = []
    for rate in rates:
        sums = dict.fromkeys(limits, 0.0)
        for seed in range(5000, 5000 + seeds):
            result = iq.simulate(workload.at_rate(rate), system, seed=seed, **run)
            assert set(result.requests["status"]) == {"finished"}
            rows = {None: result.summary().row(0, named=True)}
            if any(class_name for class_name, _ in limits):
                rows.update({row["class"]: row for row in result.summary(by="class").rows(named=True)})
            for class_name, column in limits:
                sums[class_name, column] += rows[class_name][column]
        kept.append(all(sums[one] / seeds <= limit for one, limit in limits.items()))
    assert kept[0] and not kept[-1], "the grid does not hold the answer"
    last = max(place for place, well in enumerate(kept) if well)
    return rates[last], rates[last + 1]


def ladder(low: float, high: float) -> list[float]:
    """Rates 3 % apart."""
    return [low * 1.03**k for k in range(math.ceil(math.log(high / low) / math.log(1.03)) + 1)]


def agree(plan: CapacityPlan, found: tuple[float, float]) -> None:
    """The brackets meet, and that of the search is narrow enough for this to say something."""
    assert plan.high is not None
    assert plan.high / plan.low < 1.12, plan
    assert plan.low <= found[1] and found[0] <= plan.high, (plan, found)


def test_one_replica_is_as_brute_force_finds_it():
    workload = chat(3000)
    plan = iq.capacity(workload, ENGINE, iq.Slo(ttft_p90=0.08, itl_p99=0.02), warmup=300)
    limits = {(None, "ttft_p90"): 0.08, (None, "itl_p99"): 0.02}
    agree(plan, grid(workload, ENGINE, limits, ladder(55, 80), seeds=10, warmup=300))


def test_a_fleet_is_as_brute_force_finds_it():
    workload = chat(4000)
    fleet = iq.Cluster(ENGINE, replicas=3, router=iq.LeastRequests())
    plan = iq.capacity(workload, fleet, iq.Slo(e2e_mean=0.65, ttft_p99=0.3), warmup=300)
    limits = {(None, "e2e_mean"): 0.65, (None, "ttft_p99"): 0.3}
    agree(plan, grid(workload, fleet, limits, ladder(230, 300), seeds=8, warmup=300))


def test_two_classes_are_as_brute_force_finds_them():
    parts = {"chat": chat(1), "code": chat(1, prompt=900, output=30).speed(0.25)}
    workload = iq.Workload.mix(parts, requests=2000)
    slo = iq.Slo(e2e_p99=20, by_class={"chat": iq.Slo(ttft_p90=0.1), "code": iq.Slo(ttft_mean=0.09)})
    plan = iq.capacity(workload, ENGINE, slo, warmup=200)
    limits: Limits = {("chat", "ttft_p90"): 0.1, ("code", "ttft_mean"): 0.09, (None, "e2e_p99"): 20}
    agree(plan, grid(workload, ENGINE, limits, ladder(36, 54), seeds=8, warmup=200))


def test_a_trace_is_as_brute_force_finds_it_and_said_to_be_one_sample(samples: Path):
    trace = iq.read_trace(samples / "azure_2023.csv")
    plan = iq.capacity(trace, ENGINE, iq.Slo(ttft_p90=0.3))
    found = grid(trace, ENGINE, {(None, "ttft_p90"): 0.3}, ladder(5, 30), seeds=1)
    assert plan.exact and plan.high is not None
    assert plan.low <= found[1] and found[0] <= plan.high
    assert plan.high / plan.low <= 1.02
    assert set(plan.probes["seeds"]) == {1}
    assert plan.probes["low"].null_count() == plan.probes.height
    assert "exactly these requests" in plan.explain() and "one-sample" in plan.explain()


class Wheel(iq.Router):
    """A router of one's own, which says nothing of what it draws."""

    def route(self, request: iq.Arrival, fleet: iq.Fleet) -> int:
        return int(np.random.default_rng(request.id).integers(len(fleet)))


@pytest.mark.parametrize("router", [iq.Random(), Wheel()])
def test_a_fixed_trace_under_a_router_that_draws_has_intervals(samples: Path, router: iq.Router):
    trace = iq.read_trace(samples / "azure_2023.csv")
    fleet = iq.Cluster(ENGINE, replicas=3, router=router)
    plan = iq.capacity(trace, fleet, iq.Slo(ttft_p90=0.3), precision=0.3)
    assert not plan.exact
    assert plan.probes["low"].null_count() == 0


def test_a_short_run_is_said_to_limit_the_answer_and_a_long_one_not():
    slo, exact = iq.Slo(queue_mean=8.0), m_d_1(8.0)
    short = iq.capacity(one_by_one(200), SERVER, slo)
    assert short.rate > exact, "an empty start makes a short run look better than the long run is"
    assert short.limited_by_length
    assert "limited by the 200 requests" in short.explain()
    assert "run-length" in {finding.kind for finding in short.findings}
    long = iq.capacity(one_by_one(20_000), SERVER, slo, warmup=4000)
    assert long.limited_by_length is False
    assert long.high is not None and long.low <= exact <= long.high


def test_an_answer_at_the_ceiling_of_theory_is_limited_by_length():
    plan = iq.capacity(one_by_one(100), SERVER, iq.Slo(queue_max=1e6))
    assert plan.upper_bound_per_s == pytest.approx(1.0)
    assert (plan.rate, plan.high) == (plan.upper_bound_per_s, None)
    assert plan.limited_by_length
    assert plan.reason is not None and "theoretical upper bound" in plan.reason
    # more is given where more is asked, and reported
    beyond = iq.capacity(one_by_one(100), SERVER, iq.Slo(queue_max=1e6), high=3.0)
    assert (beyond.rate, beyond.limited_by_length) == (3.0, True)


def test_an_slo_that_is_always_kept_ends_where_all_come_at_once():
    # 60 requests with 1 s each are over after 60 s at the latest; impatient requests have no ceiling
    patient = one_by_one(60).with_patience(1e6)
    plan = iq.capacity(patient, SERVER, iq.Slo(e2e_max=60.5), seeds=range(2))
    assert plan.theory is not None and plan.upper_bound_per_s is None
    assert (plan.high, plan.limited_by_length) == (None, True)
    assert plan.reason is not None and "at any rate" in plan.reason
    tight = iq.capacity(patient, SERVER, iq.Slo(e2e_max=30.0), seeds=range(2))
    assert tight.high is not None and math.isfinite(tight.high)


def test_an_slo_that_no_rate_keeps_says_what_a_lone_request_takes():
    plan = iq.capacity(one_by_one(200), SERVER, iq.Slo(ttft_p50=0.5))
    assert (plan.rate, plan.low) == (0.0, 0.0)
    assert plan.reason is not None
    assert "cannot be met" in plan.reason and "ttft_p50 is 1.00 s" in plan.reason
    assert "limit 500.0 ms" in plan.reason
    assert plan.probes.height > 0 and set(plan.probes["verdict"]) == {"violated"}


@pytest.mark.parametrize("high", [1e7, 1e12])
def test_a_search_from_far_too_high_still_comes_down(high: float):
    plan = iq.capacity(one_by_one(400), SERVER, iq.Slo(queue_mean=0.5), high=high, precision=0.2)
    assert plan.high is not None and plan.high < 1
    assert 0.3 < plan.rate < 0.6 and plan.reason is None
    by_theory = iq.capacity(one_by_one(400), SERVER, iq.Slo(queue_mean=0.5), precision=0.2)
    assert (plan.rate, plan.high) == (by_theory.rate, by_theory.high), "it goes down from the ceiling"


def test_no_rate_at_all_is_said_only_of_a_lone_request():
    plan = iq.capacity(one_by_one(200), SERVER, iq.Slo(ttft_p50=0.5), high=1e9)
    assert plan.reason is not None and "cannot be met" in plan.reason
    lowest, requests = plan.probes["rate"].min(), 200
    assert isinstance(lowest, float) and requests / lowest > 4e9, "seconds of a run"


def test_rates_at_which_requests_fail_do_not_count_as_kept():
    # with a patience of 2 s no request waits longer: the wait of those that stay keeps its limit at any rate
    hasty = one_by_one(2000).with_patience(2.0)
    strict = iq.capacity(hasty, SERVER, iq.Slo(queue_max=2.0), precision=0.1)
    assert strict.rate < 0.5
    lenient = iq.capacity(hasty, SERVER, iq.Slo(queue_max=2.0, failed_share=0.2), precision=0.1)
    assert 0.8 < lenient.rate < 1.5
    assert "ran out of patience" in lenient.explain(), "what the run has found is told"
    at = {rate: share for rate, share in shares(lenient) if rate == lenient.rate}
    assert 0 < at[lenient.rate] <= 0.2


def shares(plan: CapacityPlan) -> list[tuple[float, float]]:
    return plan.probes.filter(metric="failed_share").select("rate", "value").rows()


def test_what_is_unfinished_at_a_horizon_counts_as_failed():
    slo = iq.Slo(queue_mean=0.5)
    cut = iq.capacity(one_by_one(400), SERVER, slo, horizon_s=300.0, low=0.4, high=3.0)
    assert cut.rate == 0 and "failed_share" in cut.explain()
    assert cut.findings[0].kind == "no-answer"
    spared = iq.capacity(
        one_by_one(400), SERVER, slo, horizon_s=3000.0, cooldown=20, low=0.2, high=3.0, precision=0.2
    )
    assert 0.3 < spared.rate < 0.6


def test_a_request_that_never_fits_is_named_whatever_the_rate():
    small = iq.Engine(timing=iq.Constant(0.01), scheduler=iq.Sarathi(), kv=iq.KvCache(tokens=400))
    plan = iq.capacity(chat(300), small, iq.Slo(ttft_p50=10))
    assert plan.rate == 0
    assert plan.reason is not None and "failed_share" in plan.reason


def test_rates_below_the_answer_that_break_the_slo_are_shown():
    # a policy that waits for eight serves them late when they come rarely
    company = iq.Engine(
        timing=iq.Constant(1.0), scheduler=iq.research.Wait(thresholds=8), kv=iq.KvCache.unlimited()
    )
    plan = iq.capacity(one_by_one(2000), company, iq.Slo(ttft_mean=4.0), warmup=100, cooldown=100)
    assert plan.rate > 1
    # found from below: the rate that the workload has is one of those that are too slow
    assert plan.high is not None and plan.high / plan.rate < 1.1
    assert plan.contradictions and all(one.rate < plan.rate for one in plan.contradictions)
    assert "not-monotonic" in {finding.kind for finding in plan.findings}


def test_jobs_of_a_network_are_judged_by_their_own_ends():
    chain = iq.Workflow(
        "chain",
        stages={
            "draft": iq.Stage("chat", prompt=10, output=1),
            "check": iq.Stage("chat", prompt=10, output=1, after="draft"),
        },
    )
    network = iq.Network({"chat": SERVER}, [chain])
    jobs = iq.Workload.synthetic(requests=400, arrivals=iq.dist.Poisson(1.0))
    plan = iq.capacity(jobs, network, iq.Slo(e2e_mean=4.0), precision=0.1)
    # a stage takes one second and a job two, so no more than one job in two seconds can last
    assert 0.2 < plan.rate < 0.5
    result = iq.simulate(jobs.at_rate(plan.rate), network, seed=0)
    own = plan.probes.filter(rate=plan.rate, metric="e2e_mean")["value"].item()
    assert own > 2.0
    assert abs(result.jobs["e2e_s"].mean() - own) < own  # type: ignore[operator]
    with pytest.raises(iq.ConfigError, match="stages of several classes"):
        iq.capacity(jobs, network, iq.Slo(by_class={"chain": iq.Slo(e2e_mean=4.0)}))


def test_a_function_of_the_rate_serves_conversations():
    def talks(rate: float) -> iq.Workload:
        return iq.Workload.sessions(
            sessions=300, arrivals=iq.dist.Poisson(rate), turns=3, prompt=50, output=20, think=2.0
        )

    plan = iq.capacity(talks, ENGINE, iq.Slo(ttft_p90=0.05), low=1, high=200, precision=0.1)
    assert 1 < plan.rate < 200 and plan.theory is None
    with pytest.raises(iq.ConfigError, match="both are required"):
        iq.capacity(talks, ENGINE, iq.Slo(ttft_p90=0.05))
    with pytest.raises(iq.ConfigError, match="must return a Workload"):
        iq.capacity(lambda rate: None, ENGINE, iq.Slo(ttft_p90=0.05), low=1, high=2)
    scaled = iq.capacity(talks(1.0), ENGINE, iq.Slo(ttft_p90=0.05), precision=0.1)
    assert scaled.rate == pytest.approx(3 * plan.rate, rel=0.3)  # requests, three of them in a conversation
    users = iq.Workload(talks(1.0).draw(0).frame.drop("session_id", "turn", "think_s")).closed_loop(4)
    with pytest.raises(iq.ConfigError, match="workload: is a closed loop of users"):
        iq.capacity(users, ENGINE, iq.Slo(ttft_p90=0.05))


def test_any_number_of_threads_gives_the_same_plan():
    plans = [
        iq.capacity(chat(400), ENGINE, iq.Slo(ttft_p90=0.1), precision=0.1, threads=threads)
        for threads in (1, 2, 4)
    ]
    assert plans[0].probes.equals(plans[1].probes) and plans[0].probes.equals(plans[2].probes)
    assert len({plan.explain() for plan in plans}) == 1


def test_ctrl_c_stops_all_runs():
    messages: list[str] = []

    def log(text: str) -> None:
        messages.append(text)
        if len(messages) == 1:
            threading.Timer(0.2, lambda: signal.raise_signal(signal.SIGINT)).start()

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        iq.capacity(chat(100_000), ENGINE, iq.Slo(ttft_p90=0.1), high=1000, log=log, threads=2)
    for _ in range(100):
        if threading.active_count() <= before:
            break
        time.sleep(0.05)
    assert threading.active_count() <= before, "a run goes on although nothing waits for it"


def test_an_error_of_a_policy_passes_and_ends_the_other_runs():
    class Broken(iq.Router):
        def route(self, request: iq.Arrival, fleet: iq.Fleet) -> int:
            raise RuntimeError("out of order")

    fleet = iq.Cluster(ENGINE, replicas=2, router=Broken())
    with pytest.raises(RuntimeError, match="out of order"):
        iq.capacity(chat(100), fleet, iq.Slo(ttft_p90=0.1), threads=2)


@settings(max_examples=15)
@given(
    limit=st.floats(0.02, 5.0),
    low=st.none() | st.floats(0.01, 2.0),
    span=st.none() | st.floats(1.05, 50.0),
    patience=st.booleans(),
)
def test_a_search_ends_with_a_bracket_that_its_probes_carry(limit, low, span, patience):
    workload = one_by_one(80)
    if patience:
        workload = workload.with_patience(1e6)
    high = None if span is None else (low or 0.05) * span
    plan = iq.capacity(
        workload, SERVER, iq.Slo(queue_mean=limit), low=low, high=high, seeds=[3, 1], precision=0.05
    )
    by_verdict = {
        verdict: [one.rate for one in plan.probed if one.verdict == verdict]
        for verdict in ("met", "violated", "undecided")
    }
    assert plan.rate == max(by_verdict["met"], default=0.0)
    assert plan.high == min((rate for rate in by_verdict["violated"] if rate > plan.rate), default=None)
    rates = [one.rate for one in plan.probed]
    assert len(set(rates)) == len(rates) <= 80
    assert all((low or 0) <= rate <= (high or math.inf) for rate in rates)
    if plan.rate and plan.high:
        inside = sorted([plan.low, *(one.rate for one in plan.undecided), plan.high])
        assert inside[1] / inside[0] <= 1.05 * 1.000001 and inside[-1] / inside[-2] <= 1.05 * 1.000001
    assert (plan.reason is None) == (plan.rate > 0 and plan.high is not None)
    assert plan.explain() and repr(plan)
    plan.plot().to_dict()


def test_probes_look_again_only_while_they_are_undecided():
    plan = iq.capacity(one_by_one(1000), SERVER, iq.Slo(queue_mean=0.5), seeds=range(4), most_seeds=10)
    assert set(plan.probes["seeds"]) <= {4, 8, 10}
    undecided = plan.probes.filter(verdict="undecided")
    assert undecided.height > 0 and set(undecided["seeds"]) == {10}


def test_twice_the_workload_goes_on_as_the_workload_did():
    half, whole = one_by_one(50).speed(3.0), longer(one_by_one(50).speed(3.0))
    assert whole is not None
    assert whole.draw(4).frame.head(50).equals(half.draw(4).frame)
    mixed = iq.Workload.mix({"a": one_by_one(1), "b": one_by_one(1)}, requests=40)
    twice = longer(mixed)
    assert twice is not None and twice.draw(4).frame.head(40).equals(mixed.draw(4).frame)
    surge = iq.Workload.synthetic(requests=9, arrivals=iq.dist.TimeVarying([0, 5], [1.0, 9.0]))
    fixed_part = iq.Workload.mix({"a": one_by_one(9), "b": one_by_one(9).draw(1)}, requests=12)
    for none in (surge, fixed_part, one_by_one(9).draw(1), one_by_one(9).head(5)):
        assert longer(none) is None


def test_the_picture_has_a_panel_for_each_objective():
    slo = iq.Slo(queue_mean=0.5, ttft_p99=9.0)
    plan = iq.capacity(one_by_one(300), SERVER, slo, precision=0.2)
    drawn = svg(plan.plot())
    assert all(
        word in drawn for word in ("queue_mean, dashed: limit", "ttft_p99, dashed: limit", "is stable above")
    )
    assert "failed_share" not in drawn
    assert svg(plan.plot()) == drawn


@refused(
    ({}, "must have at least one limit"),
    ({"ttft_p99": -0.1}, "slo.ttft_p99: must be non-negative"),
    ({"ttft_p99": float("nan")}, "slo.ttft_p99: must be finite"),
    ({"ttft_p98": 1.0}, "did you mean ttft_p99"),
    ({"request_goodput": 3.0}, "must be a latency"),
    ({"p99_ttft_s": 2.0}, "p99_ttft_s is now ttft_p99"),
    ({"failed_share": 1.5}, "failed_share: must be from 0 to 1"),
    ({"by_class": {"chat": 0.5}}, "mapping from class to Slo"),
    ({"by_class": {"chat": iq.Slo(by_class={"a": iq.Slo(ttft_p50=1)})}}, "must not have by_class"),
)
def test_a_wrong_slo_is_refused_by_name(limits: dict[str, Any]):
    iq.Slo(**limits)


def test_an_slo_is_a_value():
    slo = iq.Slo(ttft_p99=0.5, failed_share=0.1, by_class={"chat": iq.Slo(itl_p99=0.05)})
    assert eval(repr(slo), {"Slo": iq.Slo}) == slo
    assert len({slo, eval(repr(slo), {"Slo": iq.Slo})}) == 1
    assert [str(one) for one in slo.objectives] == ["ttft_p99", "failed_share", "itl_p99 of chat"]


@refused(
    ({"low": 0}, "low: must be positive"),
    ({"low": 1e-300}, "low: must be from 1e-09 to 1e"),
    ({"low": 5e-9}, "low: must be 1.1e-08 per second or above, so that the last of 50 requests"),
    ({"low": 2e-9, "high": 1.0, "workload": by_rate}, "low: the requests at 2e-09 per second cannot be"),
    ({"high": 1e300}, "high: must be from 1e-09 to 1e"),
    ({"seeds": range(10**20)}, "seeds: has too many values"),
    ({"log": 3}, "log: must be a callable"),
    ({"warmupp": 1}, "warmupp: unknown option of simulate; did you mean warmup"),
    ({"out": "folder"}, "out: is not supported in experiments"),
    ({"low": 2, "high": 1}, "low must be below high"),
    ({"high": float("inf")}, "high: must be finite"),
    ({"confidence": 1}, "confidence"),
    ({"confidence": 0.5}, "confidence"),
    ({"precision": 0}, "precision"),
    ({"seeds": []}, "seeds: must contain at least one"),
    ({"seeds": [1, 1]}, "seeds: contains the same seed twice"),
    ({"seeds": 1.5}, "seeds: must be integers"),
    ({"seeds": [1]}, "no interval"),
    ({"most_seeds": 3}, "most_seeds"),
    ({"threads": 0}, "threads"),
    ({"seed": 1}, "seed: is not an argument of capacity"),
    ({"progress": 3}, "progress: must be True, False, None or a callable"),
    ({"warmup": 1000}, "has a value"),
    ({"slo": {"ttft_p99": 1}}, "slo:"),
    ({"slo": iq.Slo(by_class={"chatt": iq.Slo(ttft_p50=1)})}, "no class 'chatt'"),
    ({"slo": iq.Slo(itl_p99=1)}, "two or more tokens"),
    ({"system": "engine"}, "system:"),
    ({"workload": iq.Workload({"prompt_tokens": [1, 1], "output_tokens": [1, 1]})}, "with_arrivals"),
    ({"workload": {"arrival_s": [1, 1], "prompt_tokens": [1, 1], "output_tokens": [1, 1]}}, "no rate"),
    error=(iq.ConfigError, iq.TraceError),
)
def test_a_wrong_argument_is_refused_by_name(arguments: dict[str, Any]):
    given = {"workload": one_by_one(50), "system": SERVER, "slo": iq.Slo(queue_mean=0.5), **arguments}
    iq.capacity(given.pop("workload"), given.pop("system"), given.pop("slo"), **given)


SCENARIO = """
[workload]
requests = 400
arrivals = { kind = "Poisson", rate = 1.0 }
prompt = { kind = "Fixed", tokens = 8 }
output = { kind = "Fixed", tokens = 1 }
[engine]
timing = { kind = "Constant", seconds = 1.0 }
scheduler = { kind = "Sarathi", max_seqs = 1 }
kv = { tokens = 100_000 }
[run]
seed = 4
warmup = 50
"""


def test_the_command_says_what_the_function_says(tmp_path: Path):
    scenario, picture = tmp_path / "one.toml", tmp_path / "plan.svg"
    scenario.write_text(SCENARIO)
    command = ["capacity", str(scenario), "--precision", "0.1", "--picture", str(picture)]
    done = CliRunner().invoke(app, [*command, "--slo", "queue_mean=0.5", "--slo", "default.ttft_p99=9"])
    assert done.exit_code == 0, done.output
    slo = iq.Slo(queue_mean=0.5, by_class={"default": iq.Slo(ttft_p99=9)})
    engine = iq.Engine(timing=SERVER.timing, scheduler=SERVER.scheduler, kv=iq.KvCache(tokens=100_000))
    plan = iq.capacity(one_by_one(400), engine, slo, seeds=range(4, 9), warmup=50, precision=0.1)
    assert plan.explain() in done.stdout.replace("\n  ", " ")
    assert picture.read_text().startswith("<svg")
    never = CliRunner().invoke(app, ["capacity", str(scenario), "--slo", "ttft_p50=0.5"])
    assert never.exit_code == 1 and "cannot be met" in never.stdout


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--slo", "ttft_p99"], "must have the form"),
        (["--slo", "ttft_p99=soon"], "must have the form"),
        (["--slo", ".ttft_p99=1"], "must have the form"),
        (["--slo", "ttft_p99=1", "--slo", "ttft_p99=2"], "given twice"),
        (["--slo", "ttft_p999=1"], "did you mean ttft_p99"),
        (["--slo", "code.ttft_p99=1"], "no class 'code'"),
        (["--slo", "ttft_p99=1", "--seeds", "0"], "--seeds"),
        (["--slo", "ttft_p99=1", "--seeds", "99999999999999999999"], "--seeds"),
        (["--slo", "ttft_p99=1", "--picture", "x.foo"], "--picture: must end in .svg"),
        (
            ["--slo", "ttft_p99=1", "--picture", "nowhere/x.svg"],
            "nowhere/x.svg: directory nowhere does not exist",
        ),
        (["--slo", "ttft_p99=1", "--precision", "2"], "precision"),
    ],
)
def test_a_wrong_option_is_one_line_and_status_2(options: list[str], says: str, tmp_path: Path):
    scenario = tmp_path / "one.toml"
    scenario.write_text(SCENARIO)
    done = CliRunner().invoke(app, ["capacity", str(scenario), *options])
    assert done.exit_code == 2
    assert says in done.stderr and done.stderr.count("\n") == 1
