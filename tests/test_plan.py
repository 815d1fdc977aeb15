"""Fleet plans: compared with closed forms and brute force, and independent of threads and executors."""

import json
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import inferq as iq
from inferq.experiments.plans.candidate_grid import grid_of
from inferq.experiments.plans.limits import upper_bounds_of
from inferq.experiments.plans.prober import is_surely_violated
from inferq.results.metric import Metric
from inferq.results.slo import Objective
from inferq.theory.demands.demand import Demand

from .refusals import refused

ONE_SEAT = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.Sarathi(max_seqs=1), kv=iq.KvCache.unlimited())
FIXED = {"prompt": iq.dist.Fixed(8), "output": iq.dist.Fixed(1)}
LENGTHS = {"prompt": iq.dist.Uniform(10, 1500), "output": iq.dist.Uniform(5, 120)}


def card(speed: float, budget: int = 512, seats: int = 64) -> iq.Engine:
    """An engine that is so many times as fast."""
    timing = iq.PiecewiseLinear(base=0.01 / speed, per_token=8e-5 / speed, per_context_token=1e-7 / speed)
    scheduler = iq.Sarathi(token_budget=budget, max_seqs=seats)
    return iq.Engine(timing=timing, scheduler=scheduler, kv=iq.KvCache(tokens=100_000))


# -- closed forms


def test_m_d_1_behind_a_random_router():
    """n queues of M/D/1 at ρ = λ/n wait ρ/(2(1 − ρ)): 0.7 s at n = 6, 0.5 s at n = 7."""
    chat = iq.Workload.synthetic(requests=20_000, arrivals=iq.dist.Poisson(3.5), **FIXED)
    found = iq.plan(
        chat, iq.Slo(queue_mean=0.6), engines=ONE_SEAT, routers=iq.Random(), warmup=1000, within=0.0
    )
    assert found.units == 7
    assert found.outcomes[0].trial.worst.value == pytest.approx(0.5, rel=0.1)


def test_erlang_c_seats():
    """λ = 3, services of a second: Erlang C waits 0.509 s with four seats and 0.118 s with five."""
    engines = {
        f"{seats}": iq.Engine(
            timing=iq.Constant(0.01), scheduler=iq.Sarathi(max_seqs=seats), kv=iq.KvCache.unlimited()
        )
        for seats in range(2, 9)
    }
    prices = iq.Prices(gpu_hour={name: float(name) for name in engines})
    chat = iq.Workload.synthetic(
        requests=20_000, arrivals=iq.dist.Poisson(3.0), prompt=iq.dist.Fixed(8), output=iq.dist.Geometric(100)
    )
    found = iq.plan(
        chat, iq.Slo(queue_mean=0.3), engines=engines, replicas=1, prices=prices, warmup=1000, within=0.0
    )
    assert found.best.candidate.gpu == "5" and found.cost_per_hour == 5
    assert {one.candidate.gpu for one in found.outcomes if one.kind == "ruled out"} == {"2"}


def test_the_replica_counts_of_li2025_and_nie2026():
    """(2.7): K > λ(m_p + m_d)·t_b/b, and ⌈λ/μ⌉ of section 6; what is stable keeps a wait."""
    engine = iq.Engine(
        timing=iq.PiecewiseLinear(base=0.0455, per_token=0.0003, knee=64),
        scheduler=iq.Sarathi(token_budget=512, max_seqs=512),
        kv=iq.KvCache.unlimited(),
        first_token="decode",
    )
    li = iq.Workload.synthetic(
        requests=8000, arrivals=iq.dist.Poisson(50), prompt=iq.dist.Fixed(129), output=iq.dist.Fixed(112)
    )
    needed = math.floor(50 / iq.theory.token_capacity(li, engine).capacity_per_s) + 1
    found = iq.plan(li, iq.Slo(queue_p50=2.0), engines=engine, routers=iq.RoundRobin(), seeds=range(3))
    assert found.units == needed == 5
    assert found.states[0].limit.least == needed

    half = iq.dist.Uniform(10, 1600)
    slots = iq.Engine(
        timing=iq.Constant(0.0372),
        scheduler=iq.research.SlotGreedy(chunk=512),
        kv=iq.KvCache(tokens=131_000, block=1),
        first_token="decode",
    )
    nie = iq.Workload.synthetic(requests=20_000, arrivals=iq.dist.Poisson(24), prompt=half, output=half)
    counted = iq.theory.replicas_needed(
        nie, kv_tokens=131_000, slot_s=0.0372, utilization=1.0, first_token="decode"
    )
    found = iq.plan(nie, iq.Slo(queue_p50=5.0), engines=slots, routers=iq.RoundRobin(), seeds=range(2))
    assert found.units == counted.replicas == 8


def test_the_division_of_a_fleet_at_n_20():
    """lin2026 (40) with x of n = 20 replicas for prefills and the others for decodes alone.

    With τ(k) = 0.0174 s + 6.2e-5 s·k a replica prefills C = 256 tokens in τ(256), a request of 1,024 takes
    four of them; B = 16 decodes of 63 tokens take τ(16) each. Rates are equal at x = 12.95, and the largest
    rate of whole replicas is that of 13. At 95 % of it 12 and 14 are above a ceiling.
    """
    mixed_s, solo_s = 0.0174 + 6.2e-5 * 256, 0.0174 + 6.2e-5 * 16
    prefills, decodes = 256 / (1024 * mixed_s), 16 / (63 * solo_s)
    x = 20 * decodes / (prefills + decodes)
    best = max(range(1, 20), key=lambda n: min(n * prefills, (20 - n) * decodes))
    rate = 0.95 * min(best * prefills, (20 - best) * decodes)
    engine = iq.Engine(
        timing=iq.PiecewiseLinear(base=0.0174, per_token=6.2e-5),
        scheduler=iq.Sarathi(token_budget=256, max_seqs=16),
        kv=iq.KvCache.unlimited(),
    )
    chat = iq.Workload.synthetic(
        requests=4000, arrivals=iq.dist.Poisson(rate), prompt=iq.dist.Fixed(1024), output=iq.dist.Fixed(64)
    )
    found = iq.plan(
        chat,
        iq.Slo(ttft_p50=1.0, e2e_p50=4.0),
        engines=engine,
        pools=[f"{n}:{20 - n}" for n in range(1, 20)],
        replicas=1,
        link=iq.Link(0.0, 1e12, 1),
        seeds=range(2),
    )
    assert found.best.candidate.ratio == (13, 7) == (best, 20 - best)
    assert x == pytest.approx(12.95, abs=0.01)
    assert {one.kind for one in found.outcomes if one.candidate.ratio != (13, 7)} == {"ruled out"}


# -- brute force


def brute_force(found: iq.Workload, slo: iq.Slo, plan, seeds, most: int):
    """Every candidate and size over all requests: which keep the SLO in the mean over seeds; the cheapest."""
    kept, simulated = {}, 0
    drawn = [found.draw(seed) for seed in seeds]
    (metric, limit), *_ = slo.limits.items()
    for state in plan.states:
        for units in range(1, most + 1):
            values = []
            for seed, one in zip(seeds, drawn, strict=True):
                result = iq.simulate(one, state.candidate.system(units), seed=seed)
                values.append(result.summary()[metric].item())
                simulated += one.frame.height
            mean = math.fsum(values) / len(values)
            kept[state.candidate.place, units] = mean <= limit, mean / limit
    cost = {key: plan.states[key[0]].unit_cost * key[1] for key in kept}
    best = min((key for key in kept if kept[key][0]), key=lambda key: (cost[key], kept[key][1]), default=None)
    return best, kept, cost, simulated


GRIDS = {
    "cards": dict(
        engines={"slow": card(1), "middle": card(2), "fast": card(4)},
        prices=iq.Prices(gpu_hour={"slow": 1.0, "middle": 1.9, "fast": 4.4}),
    ),
    "budgets and routers": dict(
        engines={f"{budget}": card(1.5, budget) for budget in (128, 512, 2048)},
        routers=[iq.RoundRobin(), iq.LeastRequests()],
    ),
    "pools": dict(
        engines={"slow": card(1), "fast": card(3)},
        prices=iq.Prices(gpu_hour={"slow": 1.0, "fast": 2.6}),
        pools=["together", "1:1", "1:3"],
        link=iq.Link(0.001, 25e9, 131_072),
    ),
}


@pytest.mark.parametrize("name", GRIDS)
def test_brute_force_finds_the_same_with_ten_times_the_requests(name: str):
    """The answer for a fixed trace is exact; no upper bound of the long run rules a fleet out."""
    most = 24
    trace = iq.Workload(
        iq.Workload.synthetic(requests=2000, arrivals=iq.dist.Poisson(30), **LENGTHS).draw(3).frame
    )
    slo = iq.Slo(ttft_p99=1.0)
    found = iq.plan(trace, slo, replicas=range(1, most + 1), within=0.0, **GRIDS[name])
    best, kept, cost, simulated = brute_force(trace, slo, found, [0], most)
    answer = found.best
    assert answer is not None and best is not None
    assert answer.cost == cost[best]
    assert kept[answer.candidate.place, answer.units][0]
    assert found.simulated <= 0.1 * simulated
    assert all(state.limit.least == 1 for state in found.states)


def test_ceilings_hold_under_what_servers_do_unasked():
    """A plan ahead, a prefix cache, the API's time: a replica fewer than theory asks for keeps no SLO."""
    chat = iq.Workload.synthetic(requests=3000, arrivals=iq.dist.Poisson(150), **LENGTHS)
    slo = iq.Slo(ttft_p90=1.0)
    found = iq.plan(
        chat, slo, model="llama-3.1-8b", gpus=["a100-80gb", "h100-80gb"], tensor_parallel=[1, 2], within=0.0
    )
    ruled = [one for one in found.states if one.limit.least > 1]
    assert len(ruled) >= 2 and found.best is not None
    for one in ruled:
        run = iq.simulate(chat, one.candidate.system(int(one.limit.least) - 1), seed=2)
        assert run.summary()["ttft_p90"].item() > 1.0


def test_brute_force_over_what_is_drawn():
    """The same answer, or one whose interval holds the limit."""
    chat = iq.Workload.synthetic(requests=1500, arrivals=iq.dist.Poisson(30), **LENGTHS)
    slo, seeds = iq.Slo(ttft_p90=0.7), range(5)
    found = iq.plan(chat, slo, replicas=range(1, 25), within=0.0, seeds=seeds, **GRIDS["cards"])
    best, _, cost, simulated = brute_force(chat, slo, found, seeds, 24)
    assert found.best.cost == cost[best] or any(
        one.low <= 0.7 <= one.high
        for trial in found.prober.trials.values()
        if trial.whole and (trial.candidate.place, trial.units) == best
        for one in trial.values
        if one.low is not None
    )
    assert found.simulated <= 0.1 * simulated


@given(
    st.integers(0, 2**32),
    st.sampled_from(("ttft_p90", "ttft_mean", "ttft_max", "e2e_p50", "queue_p95", "tpot_p90", "itl_max")),
    st.floats(0.05, 3.0),
    st.integers(20, 200),
)
@settings(max_examples=30, deadline=None)
def test_what_the_first_requests_prove_holds_of_all(seed: int, metric: str, limit: float, first: int):
    """Law L11 at work: a part that is proof is never contradicted by the whole."""
    whole = iq.Workload.synthetic(requests=240, arrivals=iq.dist.Poisson(14), **LENGTHS).draw(seed)
    part = iq.simulate(whole.head(first), card(0.8))
    objective = Objective(Metric.of(metric), limit)
    if is_surely_violated(objective, part, 240):
        assert iq.simulate(whole, card(0.8)).summary()[metric].item() > limit


# -- many candidates


def test_a_family_is_bounded_by_the_engine_that_may_do_all_that_the_others_may():
    """No member needs fewer replicas than its family; of pools apart a ratio is the bounds of 1:1, scaled."""
    chat = iq.Workload.synthetic(requests=50, arrivals=iq.dist.Poisson(900), **LENGTHS)
    demand, slo = Demand.of(chat), iq.Slo(ttft_p99=1.0)
    specs = [
        {"token_budget": budget, "max_seqs": seats} for budget in (256, 512, 8192) for seats in (16, 256)
    ]
    axes = {"model": "llama-3.1-8b", "gpus": ["a100-80gb"], "tensor_parallel": [1], "pools": ["1:1", "2:3"]}
    others = dict.fromkeys(("caches", "engines", "engine_options", "link", "routers", "replicas"))
    grid = grid_of(schedulers=specs, **axes, **others)
    (family,) = grid.engines.families
    assert family.members == 6 and family.batch_limits == "token_budget=8,192, max_seqs=256"
    assert family.largest.kv.tokens == max(choice.engine.kv.tokens for choice in grid.engines.choices)
    apart = upper_bounds_of(demand, family, iq.LeastRequests(), grid.link, slo.objectives)
    both = upper_bounds_of(demand, family, iq.LeastRequests(), None, slo.objectives).limit(None)
    assert both.least > 1 and "even with token_budget=8,192" in both.reason
    tighter = 0
    for spec in specs:
        alone = grid_of(schedulers=[spec], **axes, **others).engines.families[0]
        own = upper_bounds_of(demand, alone, iq.LeastRequests(), None, slo.objectives).limit(None)
        assert own.least >= both.least
        tighter += own.least > both.least
    assert tighter
    pair = grid.candidates[1].system(1)
    assert isinstance(pair, iq.Disaggregated) and (pair.prefill[1], pair.decode[1]) == (2, 3)
    sides = [(family.largest, count) for count in (2, 3)]
    asked = iq.theory.stability(chat, replace(pair, prefill=sides[0], decode=sides[1]))
    loads = [one.load for one in asked.bounds if one.kind == "upper_bound" and one.applies]
    assert apart.limit((2, 3)).least == math.ceil(max(loads)) > 1


def test_more_than_ten_thousand_candidates_are_refused():
    """The error names the number and what to change."""
    budgets = [{"token_budget": 256 + place} for place in range(5001)]
    with pytest.raises(
        iq.ConfigError, match=r"candidates: the axes make 10,002 combinations, at most 10,000"
    ):
        iq.plan(
            CHAT,
            iq.Slo(ttft_p99=1.0),
            model="llama-3.1-8b",
            gpus="h100-80gb",
            tensor_parallel=1,
            schedulers=budgets,
            pools=["together", "1:1"],
        )


# -- one answer, whatever runs it


def asked(**more):
    """A plan over a small grid."""
    chat = iq.Workload.synthetic(requests=1200, arrivals=iq.dist.Poisson(25), **LENGTHS)
    return iq.plan(chat, iq.Slo(ttft_p90=0.6), replicas=range(1, 17), **{**GRIDS["cards"], **more})


def test_threads_executors_and_resuming_change_no_bit(tmp_path: Path):
    """One thread, several, an executor, a file: the same fates; what was run is not run again."""
    alone = asked(threads=1)
    with ThreadPoolExecutor(3) as pool:
        others = [asked(threads=2), asked(executor=pool), asked(resume=tmp_path / "plan.json")]
    again = asked(resume=tmp_path / "plan.json")
    for one in (*others, again):
        assert one.candidates.equals(alone.candidates)
        assert one.frontier.equals(alone.frontier)
        assert one.probes.equals(alone.probes)
    assert again.simulated == 0 < alone.simulated
    hurried = asked(time_s=1e-9, resume=tmp_path / "other.json")
    assert not any(one.limit.reason for one in hurried.states)  # theory looks at the clock too
    assert hurried.stopped and hurried.undecided and "the time limit ended the search" in hurried.explain()
    assert asked(resume=tmp_path / "other.json").candidates.equals(alone.candidates)

    kept = json.loads((tmp_path / "plan.json").read_text())
    for damage, said in (
        ({**kept, "plan": "0"}, "belongs to another workload"),
        ({**kept, "runs": [["a", 1]]}, r"runs\[0\]"),
        ({}, "contains no runs"),
    ):
        (tmp_path / "damaged.json").write_text(json.dumps(damage))
        with pytest.raises(iq.ResultError, match=said):
            asked(resume=tmp_path / "damaged.json")


def test_what_is_said_shown_and_repeated(tmp_path: Path):
    """Words, page, and a scenario in TOML that is the planned fleet."""
    found = asked(spare=1)
    answer = found.best
    assert answer.units == found.states[answer.candidate.place].sizes[0] * answer.units
    text = found.explain()
    assert "1 of them spare" in text and "runner-up: " in text and "with 95 % confidence" in text
    assert found.cost_per_hour == answer.cost
    (tmp_path / "fleet.toml").write_text(found.toml())
    read = iq.Scenario.read(tmp_path / "fleet.toml")
    assert read.system == found.fleet and read.workload.to_json() == found.workload.to_json()
    asks = (tmp_path / "fleet.toml", tmp_path / "baseline.json")
    assert iq.gate(*asks, update=True).written and iq.gate(*asks).passed
    held = iq.gate(*asks).frame["metric"].to_list()
    assert held == ["ttft_p90", "cost_per_million_output_tokens"]
    row = found.summary.row(0, named=True)
    assert row["cost_per_hour"] == answer.cost
    found = replace(found, command="inferq plan trace.csv --slo ttft_p90=0.6")
    page = iq.report(found, tmp_path / "plan.html").read_text(encoding="utf-8")
    for said in (
        "inferq plan trace.csv --slo ttft_p90=0.6",
        "cost per 10⁶ output tokens",
        "The cheapest fleet",
        "All candidates",
        "Sensitivity",
        "[cluster",
    ):
        assert said in page
    changed = found.sensitivity()
    assert changed["parameter"].to_list()[::2] == ["rate", "lengths", "engine times"]
    more, less = changed.filter(parameter="rate")["replicas"].to_list()
    assert less <= answer.units <= more


def test_times_are_the_rate_and_the_limits_scaled():
    """L10: an engine that takes 1.1 times as long needs what the table says, run as such."""
    fixed = iq.Workload(
        iq.Workload.synthetic(requests=900, arrivals=iq.dist.Poisson(25), **LENGTHS).draw(1).frame
    )
    found = iq.plan(fixed, iq.Slo(ttft_p90=0.6), engines=card(1.0))
    slower = iq.plan(fixed, iq.Slo(ttft_p90=0.6), engines=card(1 / 1.1))
    row = found.sensitivity().filter(parameter="engine times").row(0, named=True)
    assert row["replicas"] == slower.units


def test_nothing_keeps_it():
    """The closest size, or the bound that rules out every size."""
    chat = iq.Workload.synthetic(requests=600, arrivals=iq.dist.Poisson(5), **LENGTHS)
    found = iq.plan(chat, iq.Slo(tpot_p50=0.00251), engines={"slow": card(1), "fast": card(4)})
    assert found.fleet is None and found.units is None and found.toml() == ""
    assert "is below the shortest iteration" in found.reason
    assert [outcome.kind for outcome in found.outcomes] == ["ruled out", "ruled out"]
    assert "single requests on idle replicas already violate the SLO" in found.outcomes[1].reason
    few = iq.plan(chat, iq.Slo(queue_p90=0.001), engines=card(1), replicas=1)
    assert [outcome.kind for outcome in few.outcomes] == ["breaks the SLO"]
    assert "closest: " in few.explain()


def test_cards_that_do_not_fit_are_named():
    """Each with its reason; of a model without choices the default ones are taken."""
    chat = iq.Workload.synthetic(requests=300, arrivals=iq.dist.Poisson(2), **LENGTHS)
    found = iq.plan(
        chat,
        iq.Slo(ttft_p99=2.0),
        model="llama-3.1-70b",
        gpus=["l4", "h200"],
        tensor_parallel=[1, 2],
        engine_options={"max_model_len": 8192},
    )
    misfits = found.candidates.filter(outcome="does not fit")
    assert misfits.select("gpu", "tensor_parallel").rows() == [("l4", "1"), ("l4", "2"), ("h200", "1")]
    assert all("does not fit" in why for why in misfits["reason"])
    assert found.fleet == iq.Cluster(
        iq.Engine.on("llama-3.1-70b", "h200", tensor_parallel=2, max_model_len=8192),
        replicas=found.units,
        router=iq.LeastRequests(),
    )


CHAT = iq.Workload.synthetic(requests=50, arrivals=iq.dist.Poisson(2), **LENGTHS)


@refused(
    ({}, "model: missing; set model or engines"),
    ({"engines": card(1), "model": "llama-3.1-8b"}, "model: cannot be combined with engines"),
    ({"engines": {}}, "engines: must contain at least one"),
    ({"engines": card(1), "routers": []}, "routers: must contain at least one"),
    ({"engines": card(1), "replicas": []}, "replicas: must contain at least one"),
    ({"engines": card(1), "replicas": 3.5}, "replicas: must be an integer, got 3.5"),
    ({"engines": card(1), "replicas": object()}, "replicas: must be a number or several, got <object"),
    ({"engines": card(1), "replicas": 0}, "replicas: must be an integer from 1"),
    ({"engines": card(1), "pools": "0:2"}, r"pools\[0\]: must be 'together'"),
    ({"engines": card(1), "pools": "1:2"}, "link: missing; disaggregated pools"),
    (
        {"engines": card(1), "prices": iq.Prices(gpu_hour={"h200": 3.0})},
        "prices.gpu_hour.engine: missing: no price",
    ),
    ({"engines": card(1), "within": -0.1}, "within: must be"),
    ({"engines": card(1), "time_s": 0}, "time_s: "),
    ({"engines": card(1), "seeds": [1]}, "seeds: must be two or more"),
    ({"engines": card(1), "resume": "plan.txt"}, "resume: must be the name of a .json file"),
    ({"engines": card(1), "seed": 3}, "seed: is not an argument of plan; use seeds"),
    (
        {"model": "llama-3.1-70b", "gpus": "l4", "tensor_parallel": 1},
        "gpus: the model fits on no combination.* does not fit",
    ),
    ({"model": "llama-3.1-8b", "gpus": "h30"}, "gpu: unknown name 'h30'; describe your own"),
    ({"model": "llama-3.1-8b", "engine_options": {"gpu": "h200"}}, "engine_options.gpu: is an axis"),
)
def test_wrong_choices(choices: dict):
    """An error names the axis."""
    iq.plan(CHAT, iq.Slo(ttft_p99=1.0), **choices)


@pytest.mark.parametrize(("limit", "verdict"), [(0.5, "met"), (0.4, "violated")])
def test_a_spare_replica_is_held_against_a_death(limit: float, verdict: str):
    """A second of work every half second: two serve it, and a third one is to spare.

    The first moment with two requests is 0.5 s. Replica 0 dies then; its request begins anew at another one
    beside that of 0.5 s, the next waits from 1.0 to 1.5 s, and so does every one after it.
    """
    arrivals = [0.5 * place for place in range(40)]
    trace = iq.Workload({"arrival_s": arrivals, "prompt_tokens": [8] * 40, "output_tokens": [1] * 40})
    found = iq.plan(trace, iq.Slo(queue_max=limit), engines=ONE_SEAT, replicas=range(1, 9), spare=1)
    assert found.units == 3
    failure = found.replica_failure
    assert (failure.replicas, failure.at_s, failure.replica, failure.retried) == (3, 0.5, 0, 1)
    assert failure.verdict == verdict and failure.values[0].value == 0.5
    assert "failure of one of 3 replicas at peak load, at 500.0 ms (1 requests sent again)" in found.explain()
    assert f"the SLO is {verdict}" in found.explain()


def test_a_schedule_follows_the_load(tmp_path: Path):
    """Hours at 2, 6 and 3 a second of one-second requests: each needs its own, and the bill by hand."""
    hour = 400.0
    rates = {0: 2.0, 1: 6.0, 2: 3.0}
    gaps = [hour * k + i / rate for k, rate in rates.items() for i in range(int(hour * rate))]
    ones = {"prompt_tokens": [8] * len(gaps), "output_tokens": [1] * len(gaps)}
    trace = iq.Workload({"arrival_s": gaps, **ones})
    found = iq.plan(trace, iq.Slo(queue_max=0.0), engines=ONE_SEAT, replicas=range(1, 12), spare=1)
    day = found.schedule(hour, startup_s=40.0)
    assert [one.units for one in day.windows] == [2, 6, 3] and day.peak == 7
    assert all(one.longest_s == 1.0 for one in day.windows)
    # 3, 7 and 4 replicas with the spare; 3 + 4 are started, 3 drain after the second window and 4 at the end.
    seconds = hour * (3 + 7 + 4) + 40 * (3 + 4) + 1 * (3 + 4)
    assert day.replica_hours == pytest.approx(seconds / 3600)
    assert day.fixed_hours == pytest.approx(7 * (3 * hour + 40 + 1) / 3600)
    assert day.saved == pytest.approx(1 - day.replica_hours / day.fixed_hours)
    assert day.frame["replicas"].to_list() == [3, 7, 4] and "peak: 7 × engine" in day.explain()
    other = found.schedule(hour, workload=trace.window(hour, 2 * hour))
    assert [one.units for one in other.windows] == [6]
    # Simulated: 3, from the look at 345 s on 7, from that at 810 s on 4; each drains for a second at most.
    last_s = gaps[-1] + 1
    paid_s = 3 * last_s + 4 * (810 - 345) + (last_s - 810)
    assert paid_s <= 3600 * day.run.replica_hours <= paid_s + 3
    assert day.run.fixed_hours == pytest.approx(7 * last_s / 3600)
    assert day.run.meets_slo and "the SLO is met: queue_max" in day.explain()
    page = iq.report(replace(found, scheduled=day), tmp_path / "day.html").read_text(encoding="utf-8")
    assert "Replica schedule" in page and "replica-hours against" in page
    with pytest.raises(iq.ConfigError, match="every_s: must be positive"):
        found.schedule(0)
    with pytest.raises(iq.ConfigError, match="every_s: makes 1,1"):
        found.schedule(1e-3)


def test_schedulers_in_python_are_not_taken_for_one_another(tmp_path: Path):
    """Two orders by a key have one description; each keeps the trials that it has alone."""
    orders = {
        "short first": iq.ByKey(lambda one: one.prompt_tokens),
        "long first": iq.ByKey(lambda one: -one.prompt_tokens),
    }
    engines = {
        name: iq.Engine(
            timing=iq.PiecewiseLinear(base=0.01, per_token=8e-5),
            scheduler=iq.Sarathi(order=order, max_seqs=4),
            kv=iq.KvCache.unlimited(),
        )
        for name, order in orders.items()
    }
    trace = iq.Workload(
        iq.Workload.synthetic(requests=300, arrivals=iq.dist.Poisson(4), **LENGTHS).draw(1).frame
    )
    both = iq.plan(trace, iq.Slo(ttft_p90=1.0), engines=engines, replicas=[1, 2])
    for place, (name, engine) in enumerate(engines.items()):
        alone = iq.plan(trace, iq.Slo(ttft_p90=1.0), engines={name: engine}, replicas=[1, 2])
        mine = both.probes.filter(candidate=place).join(alone.probes, on=["replicas", "requests", "metric"])
        assert mine.height > 0 and mine["value"].equals(mine["value_right"])
    with pytest.raises(iq.ConfigError, match="resume: is not supported for policies written in Python"):
        iq.plan(trace, iq.Slo(ttft_p90=1.0), engines=engines, resume=tmp_path / "plan.json")


# -- exactly these requests, or a rate


def burst(requests: int = 1000, gap_s: float = 0.01) -> iq.Workload:
    """Requests of one token at equal gaps."""
    ones = {"prompt_tokens": [8] * requests, "output_tokens": [1] * requests}
    return iq.Workload({"arrival_s": [gap_s * place for place in range(requests)], **ones})


SERVER = replace(ONE_SEAT, timing=iq.Constant(0.1))


def test_a_burst_needs_no_fleet_for_its_rate():
    """1,000 requests of 0.1 s within 10 s end after 100 s on one replica; the slowest 1 % wait 89.1 s."""
    plan = iq.plan(burst(), iq.Slo(e2e_p99=600), engines=SERVER, replicas=range(1, 21))
    assert plan.units == 1
    assert plan.best.trial.worst.value == pytest.approx(0.1 + 989.01 * 0.09, abs=1e-3)
    assert "for exactly these 1,000 requests, which arrive within 9.99 s" in plan.explain()
    at_once = iq.plan(burst(gap_s=0.0), iq.Slo(e2e_max=25), engines=SERVER, replicas=range(1, 21))
    assert at_once.units == 4 and at_once.rate is None  # 1,000 × 0.1 s / 4 = 25 s


def test_an_overloaded_fleet_does_not_meet_an_slo_at_a_rate():
    """90 requests per second of 0.1 s need nine replicas in the long run, whatever the limit."""
    plan = iq.plan(burst().at_rate(85), iq.Slo(e2e_p99=5), engines=SERVER, replicas=range(1, 21))
    assert plan.units == 9  # 8.5 seconds of work per second
    assert plan.question.about_rate and "for 85 requests per second, with 95 % confidence" in plan.explain()
    assert not any(finding.kind == "overload" for finding in plan.findings)
    synthetic = iq.Workload.synthetic(requests=300, arrivals=iq.dist.Poisson(90), **FIXED)
    drawn = iq.plan(synthetic, iq.Slo(e2e_p99=60), engines=SERVER, replicas=range(1, 21))
    assert drawn.units >= 9 and not any(finding.kind == "overload" for finding in drawn.findings)


def test_a_short_trace_at_a_rate_is_extended():
    """300 requests are 7.5 s at 40 per second: one GPU serves them in time, but not the rate."""
    trace = iq.read_trace("traces/azure_2023.csv").at_rate(40)
    choice = {"model": "llama-3.1-8b", "gpus": "h100-80gb", "tensor_parallel": 1}
    these = iq.plan(iq.Workload(trace.frame), iq.Slo(ttft_p99=1), **choice)
    assert these.units == 1 and "which arrive within 7.4" in these.explain()
    plan = iq.plan(trace, iq.Slo(ttft_p99=1), **choice)
    assert plan.units > 1 and plan.requests >= 2000 and plan.is_stable
    run = iq.simulate(trace.resample(20_000).at_rate(40), plan.fleet, seed=11)
    assert run.summary()["ttft_p99"].item() <= 1
    assert not any(finding.kind == "overload" for finding in run.findings)


def test_resampled_requests_keep_blocks_and_conversations():
    """Blocks keep gaps and order; a conversation stays whole; copies share no prefix content."""
    trace = iq.Workload(
        {
            "arrival_s": [float(place**2) for place in range(40)],
            "prompt_tokens": list(range(1, 41)),
            "output_tokens": [1] * 40,
            "prefix_hashes": [[7, place] for place in range(40)],
            "prefix_block_tokens": [1] * 40,
        }
    )
    frame = trace.resample(1000).draw(3).frame
    assert frame.height == 1000
    rows = frame["prompt_tokens"].to_list()
    follows = [(b - a) % 40 == 1 for a, b in pairwise(rows)]
    assert sum(not follow for follow in follows) <= 250  # blocks of 4
    gaps = frame["arrival_s"].diff().to_list()[1:]
    assert all(gap == pytest.approx(2 * row - 3) for gap, row in zip(gaps, rows[1:], strict=True) if row > 1)
    shared = frame["prefix_hashes"].list.get(1)
    assert shared.n_unique() == 1000  # no block is drawn twice with the same content
    assert frame["prefix_hashes"].list.get(0).n_unique() <= 60  # rows of one copy share the first block

    talks = iq.Workload.sessions(
        sessions=30, arrivals=iq.dist.Poisson(1), turns=3, prompt=8, output=5, think=10.0
    ).draw(1)
    many = iq.Workload(talks.frame).resample(900).at_rate(5).draw(1).frame
    assert many.height == 900 and many["session_id"].n_unique() == 300
    starts = many.filter(many["think_s"].is_null())["arrival_s"]
    assert 3 * 299 / (starts[-1] - starts[0]) == pytest.approx(5)


SMALL = [
    (seed, engines, most)
    for seed, (engines, most) in enumerate([(1, 6), (2, 4), (1, 8), (2, 6), (1, 4), (2, 8)] * 10)
]


@pytest.mark.parametrize(("seed", "count", "most"), SMALL)
def test_small_plans_agree_with_brute_force(seed: int, count: int, most: int):
    """Every engine, router and size is run: the answer meets the SLO, and nothing that does is cheaper."""
    random = Random(seed)
    requests, span = random.choice([20, 60, 150, 300]), random.choice([0.0, 0.5, 5.0, 60.0])
    trace = iq.Workload(
        {
            "arrival_s": sorted(span * random.random() ** random.choice([1, 3]) for _ in range(requests)),
            "prompt_tokens": [random.choice([8, random.randint(1, 1500)]) for _ in range(requests)],
            "output_tokens": [random.choice([1, random.randint(1, 60)]) for _ in range(requests)],
        }
    )
    engines = {}
    for place in range(count):
        timing = random.choice(
            [
                iq.Constant(random.choice([0.01, 0.1])),
                iq.PiecewiseLinear(base=random.uniform(0.004, 0.03), per_token=random.uniform(1e-5, 2e-4)),
            ]
        )
        seqs = random.choice([1, 4, 32])
        scheduler = random.choice(
            [
                iq.Sarathi(token_budget=random.choice([64, 512]), max_seqs=seqs),
                iq.VllmV1(token_budget=512, max_seqs=seqs),
                iq.research.Orca(max_seqs=seqs),
            ]
        )
        engines[f"{place}"] = iq.Engine(timing=timing, scheduler=scheduler, kv=iq.KvCache.unlimited())
    routers = random.sample([iq.RoundRobin(), iq.LeastRequests(), iq.LeastTokens()], 2)
    prices = iq.Prices(gpu_hour={name: round(random.uniform(0.5, 3), 2) for name in engines})
    metric = random.choice(
        ["ttft_p99", "ttft_mean", "e2e_p99", "e2e_max", "queue_p90", "tpot_p90", "itl_max"]
    )
    values = {
        (name, place, units): iq.simulate(trace, iq.Cluster(engine, replicas=units, router=router))
        .summary()[metric]
        .item()
        for name, engine in engines.items()
        for place, router in enumerate(routers)
        for units in range(1, most + 1)
    }
    limit = random.choice(sorted(values.values())) * random.choice([0.99, 1.0, 1.2])
    plan = iq.plan(
        trace,
        iq.Slo(**{metric: limit}),
        engines=engines,
        routers=routers,
        prices=prices,
        replicas=range(1, most + 1),
        within=0.0,
        threads=1,
    )
    meets = {key for key, value in values.items() if value <= limit}
    if plan.best is None:
        assert not meets
        return
    best = plan.best.candidate
    assert (best.labels["engine"], routers.index(best.router), plan.units) in meets
    assert plan.cost_per_hour == pytest.approx(min(prices.gpu_hour[name] * units for name, _, units in meets))


# -- token budgets, conversations, impossible limits


def test_a_limit_on_gaps_searches_the_token_budget():
    """Every budget and size is run: 512 tokens on one GPU, the server's 8,192 on five."""
    trace = iq.Workload(iq.read_trace("traces/azure_2023.csv").at_rate(20).frame)
    slo = iq.Slo(ttft_p99=0.5, itl_p99=0.03)
    choice = {"model": "llama-3.1-8b", "gpus": "h100-80gb", "tensor_parallel": 1, "replicas": range(1, 7)}
    meets = {}
    for budget in (None, 256, 512, 1024, 2048, 4096):
        fields = None if budget is None else {"token_budget": budget}
        engine = iq.Engine.on("llama-3.1-8b", "h100-80gb", scheduler=fields)
        for units in range(1, 7):
            row = iq.simulate(trace, iq.Cluster(engine, replicas=units)).summary().row(0, named=True)
            if row["ttft_p99"] <= 0.5 and row["itl_p99"] <= 0.03:
                meets.setdefault(budget, units)
    plan = iq.plan(trace, slo, **choice)
    assert plan.tuned and plan.units == min(meets.values()) == meets[512] == 1
    assert "setting: token_budget=512; the server's default: " in plan.explain()
    default = iq.plan(trace, slo, tune=False, **choice)
    assert default.units == meets[None] == 5
    none = iq.plan(trace, slo, tune=False, **{**choice, "replicas": 2})
    assert none.fleet is None and "tune=True" in none.reason
    assert not iq.plan(trace, iq.Slo(itl_p99=0.03), **choice).tuned
    with pytest.raises(iq.ConfigError, match="tune: cannot be combined with schedulers or engines"):
        iq.plan(trace, slo, engines=SERVER, tune=True)
    with pytest.raises(iq.ConfigError, match="tune: must be True, False or None"):
        iq.plan(trace, slo, tune=1, **choice)


def test_conversations_at_a_rate():
    """Two turns of 0.1 s at 15 requests per second are 1.5 servers of work, whatever the think time.

    With 150 conversations and a think time of 20 s the requests as given reach half of that rate at most.
    """
    turns = {
        "arrival_s": [float(place) for place in range(150) for _ in (0, 1)],
        "prompt_tokens": [8, 9] * 150,
        "output_tokens": [1] * 300,
        "session_id": [place for place in range(150) for _ in (0, 1)],
    }
    talks = iq.Workload(turns).with_think(20.0).at_rate(15)
    starts = talks.frame.filter(talks.frame["think_s"].is_null())["arrival_s"]
    assert 2 * 149 / (starts[-1] - starts[0]) == pytest.approx(15)
    plan = iq.plan(talks, iq.Slo(queue_mean=1.0), engines=SERVER, replicas=range(1, 9))
    assert plan.units == 2 and plan.rate == pytest.approx(15)
    assert plan.requests >= 5 * 20 * 15  # five think times
    drawn = iq.Workload(turns).with_session_arrivals(iq.dist.Poisson(7.5), think=20.0)
    again = iq.plan(drawn, iq.Slo(queue_mean=1.0), engines=SERVER, replicas=range(1, 9))
    assert again.units == 2 and again.rate == pytest.approx(15)


@pytest.mark.parametrize("metric", ["ttft_p50", "e2e_mean", "e2e_max"])
def test_an_impossible_limit_is_ruled_out_at_once(metric: str):
    """A single request takes 0.1 s; no number of replicas is faster."""
    plan = iq.plan(
        burst(300, 1.0), iq.Slo(**{metric: 0.15}), engines=replace(SERVER, timing=iq.Constant(0.2))
    )
    assert plan.fleet is None and plan.outcomes[0].kind == "ruled out"
    ids = replace(SERVER, timing=iq.PiecewiseLinear(base=0.1, per_token=0.01))
    plan = iq.plan(burst(300, 1.0), iq.Slo(**{metric: 0.15}), engines=ids)
    assert plan.fleet is None and plan.outcomes[0].kind == "ruled out"
    assert plan.reason == (
        "1 × engine: single requests on idle replicas already violate the SLO: "
        f"{metric} is 180.0 ms, limit 150.0 ms"
    )
    assert plan.simulated <= 600
    assert iq.plan(burst(300, 1.0), iq.Slo(**{metric: 0.18}), engines=ids).units == 1


def test_idle_replicas_rule_nothing_out_by_prefix_hits():
    """Each prompt repeats the last one, so a limit below the time of a cold prompt is possible."""
    requests = 40
    trace = iq.Workload(
        {
            "arrival_s": [1.0 * place for place in range(requests)],
            "prompt_tokens": [1001] * requests,
            "output_tokens": [1] * requests,
            "prefix_hashes": [[1, 2]] * requests,
            "prefix_block_tokens": [500] * requests,
        }
    )
    engine = iq.Engine(
        timing=iq.PiecewiseLinear(base=0.01, per_token=1e-3),
        scheduler=iq.VllmV1(),
        kv=iq.KvCache(tokens=20_000, prefix_cache="blocks"),
    )
    value = iq.simulate(trace, engine).summary()["ttft_p50"].item()
    assert value < 0.1
    assert iq.plan(trace, iq.Slo(ttft_p50=value), engines=engine, replicas=range(1, 4)).units == 1
