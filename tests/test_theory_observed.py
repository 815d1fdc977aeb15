"""Is the verdict on a run right, where it is known what must come out?"""

import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import inferq as iq
from inferq.theory import observed
from inferq.theory.runs.number_in_system import presence

from .arriving import arriving
from .lin2026 import cluster

KV = iq.KvCache.unlimited()
ONE_SERVER = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.Sarathi(max_seqs=1), kv=KV)
"""Serves one request after another, each in a second if its output is one token."""


def asked(requests: int, arrivals: object, output: int = 1) -> iq.Workload:
    return arriving(requests, arrivals, 10, output)


def md1(requests: int, load: float, seed: int) -> iq.theory.Observed:
    return observed(iq.simulate(asked(requests, iq.dist.Poisson(load)), ONE_SERVER, seed=seed))


@pytest.mark.parametrize("load", [1.02, 1.1, 1.5, 4.0])
def test_the_drift_of_equal_gaps_and_equal_services_is_exact(load: float):
    # N(t) is within 1 of (λ − μ)·t: the slope over a window of length T is within a few / T of λ − μ
    seen = observed(iq.simulate(asked(4000, iq.dist.Deterministic(load)), ONE_SERVER))
    assert seen.verdict == "unstable"
    length_s = seen.end_s - seen.start_s
    assert seen.drift_per_s == pytest.approx(load - 1, abs=4 / length_s)
    assert seen.rate_per_s == pytest.approx(load, abs=2 / length_s)
    assert seen.low_per_s <= seen.drift_per_s <= seen.high_per_s
    assert seen.arrived == pytest.approx(load * length_s, abs=2)


@pytest.mark.parametrize("load", [0.2, 0.9, 0.98, 1.0])
def test_equal_gaps_that_the_server_can_follow_are_stable(load: float):
    seen = observed(iq.simulate(asked(4000, iq.dist.Deterministic(load)), ONE_SERVER))
    assert seen.verdict == "stable"
    assert abs(seen.drift_per_s) < 0.001


@pytest.mark.parametrize(("load", "verdict"), [(0.9, "stable"), (1.05, "unstable")])
def test_twenty_thousand_requests_decide_five_percent_beside_the_limit(load: float, verdict: str):
    # 99 % of M/D/1 runs are decided (the docstring says so, from 400 seeds): that 4 of 30 are not has a
    # probability of 2·10⁻⁴; a wrong one was never seen
    said = [md1(20_000, load, seed).verdict for seed in range(30)]
    assert said.count(verdict) >= 27
    assert set(said) <= {verdict, "unknown"}


def test_it_is_hardly_ever_wrong_near_the_limit():
    # At most 3 of 400 such runs were wrong (the docstring's measurement): more than 2 of 40 have a
    # probability of 3·10⁻³.
    for load, wrong in ((0.98, "unstable"), (1.02, "stable")):
        said = [md1(5_000, load, seed).verdict for seed in range(40)]
        assert said.count(wrong) <= 2, said


def test_the_interval_holds_the_drift_of_an_overloaded_server():
    # M/D/1 at 1.2: N drifts with λ − μ = 0.2, and 99 % of the intervals hold it; fewer than 55 of 60 have a
    # probability of P(Binomial(60, 0.01) > 5) = 10⁻⁵
    held = 0
    for seed in range(60):
        seen = md1(3_000, 1.2, seed)
        held += seen.low_per_s <= 0.2 <= seen.high_per_s
    assert held >= 55


def test_a_stricter_confidence_makes_the_interval_wider():
    run = iq.simulate(asked(5000, iq.dist.Poisson(1.02)), ONE_SERVER, seed=1)
    widths = [
        seen.high_per_s - seen.low_per_s for seen in (observed(run, confidence=c) for c in (0.9, 0.999))
    ]
    assert widths[0] < widths[1]
    assert observed(run, confidence=0.9).drift_per_s == observed(run, confidence=0.999).drift_per_s


def test_a_drift_below_what_is_tolerated_is_not_called_unstable_nor_stable():
    run = iq.simulate(asked(4000, iq.dist.Deterministic(1.02)), ONE_SERVER)
    assert observed(run, tolerance=0.05).verdict == "unknown"
    assert observed(run, tolerance=0.0).verdict == "unstable"


def test_few_arrivals_are_too_short():
    seen = observed(iq.simulate(asked(250, iq.dist.Deterministic(2.0)), ONE_SERVER))
    assert (seen.verdict, seen.arrived) == ("unknown", 187)
    assert "too short: 187 requests arrived" in seen.reasons[0]
    assert (seen.drift_per_s, seen.rate_per_s, seen.low_per_s, seen.high_per_s) == (None,) * 4
    assert seen.growth is None
    assert "187 requests arrived\n" in seen.explain()


@pytest.mark.parametrize("rate", [0.5, 4.0])
def test_a_window_that_requests_outlast_is_too_short(rate: float):
    # unlimited seats: nothing waits, a request takes 400 s; 1,000 arrivals come within 2,000 and 250 s
    engine = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.VllmV1(max_seqs=10_000), kv=KV)
    seen = observed(iq.simulate(asked(1000, iq.dist.Deterministic(rate), output=400), engine))
    assert seen.verdict == "unknown"
    assert "too short" in seen.reasons[0]
    assert rate == 4.0 or seen.service_s == pytest.approx(400, abs=2)


def test_filling_an_empty_system_is_no_drift():
    # 100 requests are in service at a time (Little: rate 1, 100 s each); they fill the system in 100 s
    engine = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.VllmV1(max_seqs=10_000), kv=KV)
    run = iq.simulate(asked(2000, iq.dist.Deterministic(1.0), output=100), engine)
    seen = observed(run, warmup=0)
    assert seen.verdict == "stable"
    assert seen.start_s == pytest.approx(3 * seen.service_s, abs=1.5)
    assert seen.present_start == pytest.approx(100, abs=2)


def test_what_drains_after_the_last_arrival_does_not_count():
    run = iq.simulate(asked(4000, iq.dist.Deterministic(1.5)), ONE_SERVER)
    seen = observed(run)
    assert seen.end_s == run.requests["arrival_s"].max()
    assert seen.present_end == pytest.approx(4000 / 3, abs=3)


def test_a_horizon_ends_the_window_and_leaves_the_unfinished_in_the_system():
    horizon_s = 2000.0
    run = iq.simulate(asked(10_000, iq.dist.Deterministic(1.5)), ONE_SERVER, horizon_s=horizon_s)
    seen = observed(run)
    assert seen.verdict == "unstable"
    assert horizon_s - 1 < seen.end_s <= horizon_s
    assert seen.present_end == pytest.approx(horizon_s / 2, abs=3)
    assert seen.drift_per_s == pytest.approx(0.5, abs=0.01)


def test_the_warmup_of_the_run_and_of_the_call():
    workload = asked(4000, iq.dist.Deterministic(0.9))
    plain = observed(iq.simulate(workload, ONE_SERVER))
    assert plain.start_s == pytest.approx(plain.end_s / 4, rel=0.01)
    own = iq.simulate(workload, ONE_SERVER, warmup=2000, cooldown=500)
    arrival_s = own.requests["arrival_s"]
    seen = observed(own)
    assert (seen.start_s, seen.end_s, seen.arrived) == (arrival_s[2000], arrival_s[3499], 1499)
    assert observed(own, warmup="2500s").start_s == 2500.0
    assert observed(own, warmup=1000).start_s == arrival_s[1000]
    short = iq.simulate(workload, ONE_SERVER, warmup="10s")
    assert observed(short).start_s == plain.start_s  # the later of the two


def test_patience_bounds_the_queue_and_is_named():
    workload = asked(6000, iq.dist.Deterministic(2.0)).with_patience(5.0)
    seen = observed(iq.simulate(workload, ONE_SERVER))
    assert seen.verdict == "stable"
    assert any("abandoned" in reason and "patience" in reason for reason in seen.reasons)


def test_rejected_requests_never_were_in_the_system():
    frame = asked(4000, iq.dist.Deterministic(0.9)).draw(0).frame
    huge = pl.when(pl.int_range(pl.len()) % 4 == 0).then(10_000).otherwise(pl.col("prompt_tokens"))
    engine = iq.Engine(
        timing=iq.Constant(1.0),
        scheduler=iq.Sarathi(max_seqs=1, token_budget=512),
        kv=iq.KvCache(tokens=2048),
    )
    run = iq.simulate(iq.Workload(frame.with_columns(prompt_tokens=huge)), engine)
    assert run.requests.filter(status="rejected").height == 1000
    seen = observed(run)
    assert seen.verdict == "stable"
    assert seen.rate_per_s == pytest.approx(0.9 * 3 / 4, rel=0.01)
    assert any("1,000 of 4,000 requests were rejected" in reason for reason in seen.reasons)
    nothing = iq.simulate(iq.Workload(frame.with_columns(prompt_tokens=pl.lit(10_000))), engine)
    assert observed(nothing).verdict == "unknown"
    assert observed(nothing).arrived == 0


def test_requests_that_all_come_at_once_are_no_rate():
    run = iq.simulate(
        {"arrival_s": [1.0] * 500, "prompt_tokens": [5] * 500, "output_tokens": [1] * 500}, ONE_SERVER
    )
    seen = observed(run)
    assert (seen.verdict, seen.start_s, seen.end_s) == ("unknown", 1.0, 1.0)


def test_a_fixed_number_of_users_is_bounded_and_said_so():
    users, turns = 5, 400
    frame = pl.DataFrame(
        {
            "arrival_s": sorted(0.01 * user + 0.0 * turn for user in range(users) for turn in range(turns)),
            "prompt_tokens": 10,
            "output_tokens": 1,
            "session_id": [f"{user}" for user in range(users) for _ in range(turns)],
            "think_s": [None if turn == 0 else 0.1 for _ in range(users) for turn in range(turns)],
        }
    )
    run = iq.simulate(frame, ONE_SERVER)
    assert run.requests.height == users * turns
    seen = observed(run)
    assert (seen.verdict, seen.counted) == ("unknown", "sessions")
    assert any("users wait for responses" in reason for reason in seen.reasons)


@pytest.mark.parametrize(("rate", "verdict"), [(0.3, "stable"), (0.7, "unstable")])
def test_sessions_that_come_faster_than_they_end_drift(rate: float, verdict: str):
    # two turns of one second each: the server ends half a session a second
    workload = iq.Workload.sessions(
        sessions=4000,
        arrivals=iq.dist.Deterministic(rate),
        turns=2,
        prompt=10,
        output=1,
        think=3.0,
        grows=False,
    )
    seen = observed(iq.simulate(workload, ONE_SERVER))
    assert (seen.verdict, seen.counted) == (verdict, "sessions")
    if verdict == "unstable":
        # every session's second turn queues behind the newer ones' first: at most 0.5 sessions end a second
        assert seen.drift_per_s >= rate - 0.5 - 0.01
    assert presence(iq.simulate(workload, ONE_SERVER)).arrival_s.size == 4000


def test_a_session_under_a_horizon_is_here_until_its_last_turn():
    rows = {
        "arrival_s": [0.0, 0.0, 0.5],
        "prompt_tokens": [1, 1, 1],
        "output_tokens": [1, 1, 1],
        "session_id": ["a", "a", "b"],
        "think_s": [None, 50.0, None],
    }
    cut = presence(iq.simulate(rows, ONE_SERVER, horizon_s=10.0))
    assert (cut.at(0.2), cut.at(1.5), cut.at(5.0)) == (1, 2, 1)  # b has left at 2, a thinks
    whole = presence(iq.simulate(rows, ONE_SERVER))
    assert (whole.at(40.0), whole.at(52.5)) == (1, 0)  # its second turn runs from 51 to 52


@pytest.mark.parametrize(("rate", "verdict"), [(0.3, "stable"), (0.45, "stable"), (0.6, "unstable")])
def test_a_network_is_judged_by_its_jobs(rate: float, verdict: str):
    # both stages of a job on one server: it ends half a job a second
    chain = iq.Workflow(
        "chain",
        stages={
            "a": iq.Stage("one", prompt=5, output=1),
            "b": iq.Stage("one", prompt=5, output=1, after="a"),
        },
    )
    jobs = iq.Workload.synthetic(requests=4000, arrivals=iq.dist.Deterministic(rate))
    seen = observed(iq.simulate(jobs, iq.Network({"one": ONE_SERVER}, [chain])))
    assert (seen.verdict, seen.counted) == (verdict, "jobs")
    assert seen.rate_per_s == pytest.approx(rate, rel=0.01)


def test_slots_with_exponential_services_are_judged_too():
    # 4 replicas of 4 slots; a prefill of one chunk takes 0.1 s, a decode 10 tokens of 0.05 s: plenty
    plan = iq.research.Allocation(prefill={"default": 0.5}, prefill_queue={"default": 0.0})
    timing = iq.research.MixedSolo(alpha=0.1, beta=0.0, solo=0.05)
    fleet = cluster(plan, replicas=4, timing=timing, slots=4, abandonment=0.0)
    for rate, verdict in ((4.0, "stable"), (200.0, "unstable")):
        assert observed(iq.simulate(asked(8000, iq.dist.Poisson(rate), output=10), fleet)).verdict == verdict


def test_waves_of_arrivals_are_named():
    calm = iq.simulate(asked(4000, iq.dist.Poisson(0.5)), ONE_SERVER)
    assert not any("bursty" in reason for reason in observed(calm).reasons)
    waves = iq.dist.TimeVarying(times_s=[0, 1500], rates=[0.1, 0.9], period_s=3000)
    told = observed(iq.simulate(asked(4000, waves), ONE_SERVER)).reasons
    assert any("bursty" in reason for reason in told)


@given(
    gaps=st.lists(st.floats(0.0, 3.0), min_size=1, max_size=60),
    at=st.floats(0.0, 200.0),
)
def test_the_number_in_the_system_is_what_counting_gives(gaps: list[float], at: float):
    arrival_s = np.cumsum(gaps)
    rows = {"arrival_s": arrival_s, "prompt_tokens": [3] * len(gaps), "output_tokens": [1] * len(gaps)}
    run = iq.simulate(rows, ONE_SERVER)
    came, left = run.requests["arrival_s"].to_numpy(), run.requests["left_s"].to_numpy()
    present = presence(run)
    assert present.at(at) == int(((came <= at) & (left > at)).sum())
    # ∫ N dt to the end is the sum of all times in the system (Little)
    whole = float(present.integral(np.array([left.max()]))[0])
    assert math.isclose(whole, float((left - came).sum()), rel_tol=1e-9, abs_tol=1e-9)


def test_explain_has_every_number():
    seen = md1(3000, 1.3, 0)
    text = str(seen)
    from inferq.theory.statement import number

    for value in (
        seen.rate_per_s,
        seen.drift_per_s,
        seen.low_per_s,
        seen.high_per_s,
        seen.start_s,
        seen.end_s,
    ):
        assert number(value) in text
    assert "observed: unstable" in text and "99 %" in text and "0.5 %" in text


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"confidence": 1.0}, "confidence: must be a number above 0 and below 1"),
        ({"confidence": 0}, "confidence: must be"),
        ({"confidence": math.nan}, "confidence: must be"),
        ({"tolerance": -0.1}, "tolerance: must be a number of at least 0 and below 1"),
        ({"tolerance": 1}, "tolerance: must be"),
        ({"tolerance": "1"}, "tolerance: must be"),
        ({"warmup": -1}, "warmup: must be requests"),
        ({"warmup": True}, "warmup: must be requests"),
        ({"warmup": "soon"}, "warmup: must be requests"),
    ],
)
def test_wrong_arguments_are_named(given: dict, said: str):
    run = iq.simulate(asked(10, iq.dist.Poisson(1.0)), ONE_SERVER)
    with pytest.raises(iq.ConfigError, match=said):
        observed(run, **given)
    with pytest.raises(iq.ConfigError, match="result: must be a Result"):
        observed(run.requests)
