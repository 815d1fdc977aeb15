"""Gate and route with exponential services: what is said, what is refused, what the fluid plan demands."""

import json
import math
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import polars as pl
import pytest

import inferq as iq
from inferq_papers.lin2026 import fleet as study

from .lin2026 import PRICES, TIMING, cluster
from .night import NIGHT
from .refusals import refused

WORK = {"arrival_s": [0.0, 0.1, 0.1], "prompt_tokens": [300, 3000, 300], "output_tokens": [1000, 400, 1000]}
# Student's t with 9 degrees of freedom, two-sided: 99.9 % lie within this many standard errors.
SEEDS, STUDENT_999 = range(1, 11), 4.781
WARM_UP_S = 500.0
# What is measured of a run is five times as long at night, and its intervals are √5 times as narrow.
LONGER = 5 if NIGHT else 1


# --- descriptions


def test_what_is_described_can_be_read_back():
    tables = {"prefill": {"a": 0.25, "b": 0}, "mixed": {"a": 1, "b": 2}, "solo": {"a": 1, "b": 0.5}}
    made = cluster(
        iq.research.Allocation(**tables),
        abandonment={"a": 0.1, "b": 0},
        gate="occupancy",
        router="general",
        replicas=np.int64(7),
    )
    told = json.loads(json.dumps(made.to_json()))
    assert told["kind"] == "GateAndRoute"
    assert told["allocation"]["mixed"] == {"a": 1, "b": 2}
    assert iq.research.GateAndRoute.from_json(told) == made
    assert iq.research.GateAndRoute.from_json(told | {"kv": "unlimited"}) == made
    assert hash(made) == hash(iq.research.GateAndRoute.from_json(told))


@refused(
    ({"replicas": 0}, "replicas: must be from 1"),
    ({"replicas": 1.5}, "replicas: must be a non-negative integer"),
    ({"slots": 1}, "slots: must be at least 2 with a plan"),
    ({"slots": 0, "planned": False}, "slots: must be from 1"),
    ({"chunk": 0}, "chunk: must be from 1"),
    ({"abandonment": -0.1}, "abandonment: must be 0, or from 1e-9"),
    ({"abandonment": {"default": -1}}, "abandonment.default: must be 0, or from 1e-9"),
    ({"abandonment": {"other": 1}}, r"abandonment.other: unknown class \(the workload has default\)"),
    ({"abandonment": {}}, "abandonment.default: missing: every class requires a rate"),
    (
        {"abandonment": "fast"},
        "abandonment: must be a finite number or a table of finite numbers by name or None",
    ),
    ({"prices": iq.Prices(prefill=-0.1, decode=0)}, "prices.prefill: must be from 0"),
    ({"prices": iq.Prices(prefill=0, decode=2e6)}, "prices.decode: must be from 0"),
    (
        {"timing": iq.research.MixedSolo(alpha=0, beta=0, solo=0.1)},
        "timing.alpha: an iteration must take more than 0 s",
    ),
    (
        {"timing": iq.research.MixedSolo(alpha=0.1, beta=0, solo=0)},
        "timing.solo: an iteration must take more than 0 s",
    ),
    ({"timing": iq.Constant(1.0)}, r"timing: must be MixedSolo\(…\)"),
    ({"gate": "fastest"}, "gate: must be 'occupancy' or 'queue'"),
    ({"gate": "queue"}, "allocation.prefill_queue: missing: required by the gate"),
    ({"router": "randomized"}, "allocation.mixed: missing: required by the router"),
    (
        {"router": "general", "planned": False},
        "planned: this router sends decodes to a solo and a mixed pool",
    ),
    ({"router": "immediate"}, "planned: the immediate router decodes on the replica of the prefill"),
    ({"router": "fcfs"}, "planned: the fcfs router has no pools"),
    ({"kv": iq.KvCache(tokens=1000)}, 'kv.tokens: a limit requires service="tokens"'),
    ({"kv": iq.KvCache(tokens=None, prefix_cache="radix")}, 'kv.prefix_cache: requires service="tokens"'),
    ({"service": "slots"}, "service: must be 'exponential' or 'tokens'"),
    pattern="^{}",
)
def test_a_description_that_makes_no_sense_names_its_field(fields: dict[str, Any]):
    cluster(**fields)


@refused(
    ({"prefill": {"a": 0.75, "b": 0.5}}, "prefill: must add up to at most 1 .*, got 1.25"),
    ({"prefill": {"a": -0.1}}, "prefill.a: must not be negative, got -0.1"),
    ({"prefill": {"a": 0.1}, "solo": {"b": 1}}, r"solo.b: unknown class \(the workload has a\)"),
    ({"prefill": {"a": 0.1, "b": 0}, "mixed": {"b": 1}}, "mixed.a: missing: every class requires a number"),
    (
        {"prefill": {"a": 0.1}, "decode_queue": {"a": 1e7}},
        "decode_queue.a: must be from 0 to 1000000, got 10000000",
    ),
    ({"prefill": [0.1]}, "prefill: must be a table of finite numbers by name"),
    pattern="^{}",
)
def test_an_allocation_that_makes_no_sense_names_table_and_class(tables: dict[str, Any]):
    iq.research.Allocation(**tables)


def test_no_allocation_is_needed_where_nothing_follows_one():
    sarathi = {"gate": "fcfs", "router": "immediate", "planned": False}
    made = iq.research.GateAndRoute(
        None, replicas=1, timing=TIMING, slots=1, chunk=256, prices=PRICES, **sarathi
    )
    assert iq.simulate(WORK, made).requests["status"].to_list() == ["finished"] * 3
    for needs in ({"planned": True, "router": "greedy"}, {"gate": "occupancy"}):
        with pytest.raises(iq.ConfigError, match=r"^allocation: missing|^planned"):
            replace(made, slots=2, **needs)


ONE = {"default": 1.0}


@refused(
    (
        {"prefill": {"a": 0.5}},
        {},
        r"^gate_and_route.allocation.prefill.a: unknown class \(the workload has default\)",
    ),
    ({"prefill": {"a": 0.5}}, {"class": ["a", "a", "b"]}, r"^gate_and_route.allocation.prefill.b: missing"),
    ({"prefill": {"default": 0.0}}, {}, "^allocation.prefill: must be positive for at least one class"),
    ({"prefill": ONE, "mixed": ONE, "solo": ONE}, {}, "^gate_and_route.replicas: all 2 replicas are mixed"),
)
def test_a_plan_that_does_not_fit_workload_or_cluster_is_refused(tables: dict[str, Any], more: Any):
    router = "randomized" if "solo" in tables else "greedy"
    iq.simulate(WORK | more, cluster(iq.research.Allocation(**tables), router=router))


# --- options


@refused(
    *(
        ({name: True}, {}, f"^{name}: does not apply to exponential services")
        for name in ("stepping", "iterations", "batches")
    ),
    *(({"cooldown": one}, {}, "^cooldown: does not apply to exponential services") for one in (1, "3s")),
    ({"warmup": 3}, {}, "^warmup: .*3 .*requests"),
    ({"warmup": "5s", "horizon_s": 5.0}, {}, "^warmup: must end before the run does, got 5 s"),
    ({"timeline_s": 0}, {}, "^timeline_s: must be positive"),
    ({"seed": -1}, {}, "^seed: must be an integer"),
    ({}, {"patience_s": [1.0, 1.0, 1.0]}, r"^patience_s: is not available under GateAndRoute"),
    ({}, {"output_tokens": None}, iq.TraceError, "no output_tokens"),
)
def test_a_wrong_option_or_column_is_refused(options: dict[str, Any], columns: dict[str, Any]):
    work = {name: values for name, values in (WORK | columns).items() if values}
    iq.simulate(work, cluster(), **options)


def test_results_of_slots_are_not_those_of_engines():
    engine = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.Sarathi(), kv=iq.KvCache.unlimited())
    plain = iq.simulate(WORK, engine)
    for name in ("occupancy", "revenue"):
        with pytest.raises(iq.ConfigError, match=f"^{name}: only runs of a GateAndRoute"):
            getattr(plain, name)
    slots = iq.simulate(WORK, cluster())
    for name in ("iterations", "batches"):
        with pytest.raises(iq.ConfigError, match=name):
            getattr(slots, name)
    with pytest.raises(iq.ConfigError, match=r"^work_conservation"):
        slots.work_conservation()


# --- results


def test_revenue_and_averages_count_from_the_warm_up():
    whole = iq.simulate(WORK, cluster(), seed=3, timeline_s=0.01)
    ends = whole.requests["finish_s"].to_list()
    paid = [230.0, 380.0, 230.0]
    for row in whole.revenue.iter_rows(named=True):
        done = [end <= row["time_s"] for end in ends]
        assert row["bundled"] == sum(money for money, yes in zip(paid, done, strict=True) if yes)
        assert row["bundled_per_replica_s"] == pytest.approx(row["bundled"] / (2 * row["time_s"]))
    assert whole.revenue["separate"][-1] == whole.revenue["bundled"][-1] == 840.0
    first, last = min(ends), max(ends)
    late = iq.simulate(WORK, cluster(), seed=3, warmup=f"{first + 1e-6}s")
    assert late.revenue["bundled"][-1] == 840.0 - paid[ends.index(first)]
    assert late.requests["measured"].to_list() == [False] * 3
    starts = whole.requests["first_token_s"].to_list()
    solo_s = sum(max(0.0, end - max(first + 1e-6, start)) for end, start in zip(ends, starts, strict=True))
    assert late.occupancy["solo"].item() == pytest.approx(solo_s / (2 * (last - first - 1e-6)))
    nothing = iq.simulate(WORK, cluster(), seed=3, warmup="1000000s")
    assert nothing.revenue.height == 0
    assert nothing.occupancy["solo"].to_list() == [None]
    assert any(finding.kind == "nothing-measured" for finding in nothing.findings)


def test_a_warm_up_of_requests_ends_with_the_first_that_is_measured():
    by_requests = iq.simulate(WORK, cluster(), seed=3, warmup=1)
    by_seconds = iq.simulate(WORK, cluster(), seed=3, warmup="0.1s")
    assert by_requests.requests["measured"].to_list() == [False, True, True]
    assert by_requests.occupancy.equals(by_seconds.occupancy)


def test_who_gives_up_is_told_by_where_it_waited(tmp_path: Path):
    work = {"arrival_s": [0.0] * 50, "prompt_tokens": [300] * 50, "output_tokens": [1000] * 50}
    result = iq.simulate(work, cluster(slots=2, abandonment=2.0), seed=1)
    rows = result.requests.filter(pl.col("status") == "abandoned")
    before = rows.filter(pl.col("admitted_s").is_null())
    totals = result.totals
    assert totals["abandoned_prefills"] == before.height > 0
    assert totals["abandoned_decodes"] == rows.height - before.height > 0
    assert before["replica"].null_count() == before["prefill_replica"].null_count() == before.height
    assert rows["finish_s"].null_count() == rows.height
    assert f"{rows.height} of 50 requests ran out of patience" in result.findings[0]
    assert totals["in_system_as"] == totals["sojourn_as"]
    written = result.write(tmp_path / "run")
    assert pl.read_parquet(written / "occupancy.parquet").equals(result.occupancy)
    assert pl.read_parquet(written / "revenue.parquet").equals(result.revenue)
    assert json.loads((written / "scenario.json").read_text())["gate_and_route"]["slots"] == 2


def test_the_summary_counts_as_for_engines():
    work = {"arrival_s": [0.0, 0.5], "prompt_tokens": [300, 300], "output_tokens": [1000, 1]}
    result = iq.simulate(
        work | {"class": ["a", "b"]}, cluster(iq.research.Allocation(prefill={"a": 0.25, "b": 0.25})), seed=1
    )
    summary = result.summary(by="class")
    assert summary["completed"].to_list() == [1, 1]
    assert summary["ttft_max"].to_list() == result.requests["ttft_s"].to_list()
    assert summary["itl_p50"].to_list() == [None, None]
    assert result.requests["tpot_s"][1] is None


def test_the_timeline_has_the_five_counts_of_each_class():
    work = {
        "arrival_s": [1.0, 1.0],
        "prompt_tokens": [300, 3000],
        "output_tokens": [1000, 400],
        "class": ["a", "b"],
    }
    result = iq.simulate(
        work,
        cluster(iq.research.Allocation(prefill={"a": 0.25, "b": 0.25})),
        seed=1,
        timeline_s=0.5,
        horizon_s=1.25,
    )
    assert result.timeline.columns == [
        "time_s",
        "class",
        "prefill_queue",
        "prefill",
        "decode_queue",
        "mixed",
        "solo",
    ]
    assert result.timeline["time_s"].to_list() == [0.5, 0.5, 1.0, 1.0]
    assert result.timeline["class"].to_list() == ["a", "b"] * 2
    # a sample shows the cluster after all that happens at its instant: one begins, the other waits
    assert result.timeline.select("prefill_queue", "prefill", "solo").sum().row(0) == (1, 1, 0)
    assert result.timeline["prefill"].to_list() in ([0, 0, 0, 1], [0, 0, 1, 0])


def test_the_same_seed_gives_the_same_bytes_and_the_same_work_under_every_policy():
    rng = np.random.default_rng(1)
    work = {
        "arrival_s": np.sort(rng.uniform(0, 100, 500)),
        "prompt_tokens": rng.integers(1, 3000, 500),
        "output_tokens": rng.integers(1, 500, 500),
    }
    greedy = cluster(slots=64)
    first, again = (iq.simulate(work, greedy, seed=9) for _ in range(2))
    assert first.requests.equals(again.requests)
    other = iq.simulate(work, replace(greedy, router="immediate", planned=False), seed=9)

    def prefill_s(result: iq.Result) -> list[float]:
        return (result.requests["first_token_s"] - result.requests["admitted_s"]).to_list()

    assert prefill_s(first) == pytest.approx(prefill_s(other), rel=1e-9)
    assert prefill_s(first) != pytest.approx(prefill_s(iq.simulate(work, greedy, seed=8)), rel=1e-3)


def test_ctrl_c_and_progress_pass_through():
    work = {
        "arrival_s": np.arange(300_000) * 0.01,
        "prompt_tokens": [300] * 300_000,
        "output_tokens": [10] * 300_000,
    }

    class Stop(Exception):
        pass

    def stop(done: int, total: int) -> None:
        assert 0 <= done <= total == 300_000
        raise Stop

    with pytest.raises(Stop):
        iq.simulate(work, cluster(), progress=stop)


# --- the plan


def interval(values: list[float]) -> tuple[float, float]:
    """The 99.9 % interval of the mean."""
    half = STUDENT_999 * stdev(values) / math.sqrt(len(values))
    return fmean(values) - half, fmean(values) + half


def runs(
    instance: study.Instance, replicas: int, policy: study.Policy, until_s: float
) -> list[study.Measured]:
    return [study.measure(instance, replicas, policy, until_s, seed, WARM_UP_S) for seed in SEEDS]


@pytest.mark.parametrize("name", ["SLI-aware", *study.POLICIES])
@pytest.mark.parametrize("slots", [8, 16])
def test_averages_satisfy_the_balances_of_the_fluid_plan_at_every_size(name: str, slots: int):
    """λ_i − θ q_p,i = μ_p,i x_i, and that − θ q_d,i = μ_m,i y_m,i + μ_s,i y_s,i, in expectation for any n.

    In a run the sides differ by chance, and by what came into the system less what left it over the window;
    after the warm-up the mean of that is nothing.
    """
    instance = replace(study.Instance(), slots=slots)
    policy = study.SLI_AWARE if name == "SLI-aware" else study.POLICIES[name]
    found = runs(instance, 20, policy, WARM_UP_S + 1500.0 * LONGER)
    for i in (0, 1):
        prefills = [instance.prefill_rate(i) * run[f"prefill {i}"] for run in found]
        arrived = [instance.rate[i] - instance.impatience * run[f"prefill_queue {i}"] for run in found]
        decoded = [
            instance.impatience * run[f"decode_queue {i}"]
            + instance.decode_rate(i, solo=False) * run[f"mixed {i}"]
            + instance.decode_rate(i, solo=True) * run[f"solo {i}"]
            for run in found
        ]
        for left, right in ((prefills, arrived), (prefills, decoded)):
            low, high = interval([one - other for one, other in zip(left, right, strict=True)])
            assert low <= 0 <= high, (name, i)
            assert high - low < 0.045 / math.sqrt(LONGER), "narrow enough to tell: 9 % of the arrivals"


@pytest.mark.parametrize("name", study.POLICIES)
def test_no_policy_earns_more_than_the_optimum(name: str):
    """Its averages satisfy every constraint of the linear program, so its value is a bound at every n."""
    for slots in (8, 16):
        instance = replace(study.Instance(), slots=slots)
        found = runs(instance, 20, study.POLICIES[name], WARM_UP_S + 700.0 * LONGER)
        for scheme in ("bundled", "separate"):
            low, _ = interval([run[scheme] for run in found])
            assert low <= study.optimum(instance, scheme)  # type: ignore[arg-type]


def test_the_occupancies_come_closer_to_the_plan_as_the_cluster_grows():
    """Σx*, Σy_m* and Σy_s* of section 6.2, and the bundled revenue.

    For these n the share M / n of mixed replicas is within 0.1 % of Σx*, so that the ceiling is not what one
    sees. The rest is off at any finite n: prefills are overloaded by 0.6 % only, so that now and then none
    waits for one, and a decode beside the idle slot counts as solo. So no interval has to hold the limit; the
    larger cluster must come closer to it by more than the intervals of both.
    """
    instance = study.Instance()
    wanted = {stage: study.planned(instance)[stage] for stage in ("prefill", "mixed", "solo")}
    wanted["bundled"] = study.optimum(instance)
    lengths_s = {75: WARM_UP_S + 900.0 * LONGER, 605: WARM_UP_S + 200.0 * LONGER}
    for n in lengths_s:
        assert math.ceil(n * wanted["prefill"]) / n == pytest.approx(wanted["prefill"], rel=0.001)
    found = {n: runs(instance, n, study.GREEDY, until_s) for n, until_s in lengths_s.items()}
    for name, limit in wanted.items():
        (near, _), (_, nearest) = (
            interval([abs(run[name] - limit) for run in of_size]) for of_size in found.values()
        )
        assert nearest < near, (name, limit)
