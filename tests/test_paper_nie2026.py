"""Do the printed rates of nie2026 follow from its formula, and do replicas and queues do what it says?

Every interval has a confidence of 99 %: Student's t over independent seeds, which are fixed. Each test asks
for a narrow one.
"""

from pathlib import Path

import pytest

import inferq as iq
from inferq.theory import kv_capacity, observed, replicas_needed, slot
from inferq_papers import nie2026
from inferq_papers.nie2026 import runs
from inferq_papers.nie2026.runs import MEMORY_TOKENS, REPLICAS, SETTINGS
from inferq_papers.report import Report, Row, interval

from .night import NIGHT

REQUESTS, WIDER = (100_000, 1) if NIGHT else (40_000, 1.6)
"""Of a run in overload, and how much wider intervals are than those of the longer runs at night: √(10/4)."""


@pytest.fixture(scope="module")
def quick() -> Report:
    return nie2026.report(quick=True)


def row(report: Report, where: str, what: str) -> Row:
    (found,) = [
        one for part in report.sections for one in part.rows if (one.where, one.what) == (where, what)
    ]
    return found


# What the paper prints.


@pytest.mark.parametrize(("ratio", "printed"), [("1:1", "3.263"), ("2:1", "3.956"), ("1:2", "2.902")])
def test_the_formula_gives_the_printed_rates_to_the_last_digit(ratio: str, printed: str) -> None:
    assert f"{SETTINGS[ratio].capacity().mu:.3f}" == printed


@pytest.mark.parametrize("ratio", SETTINGS)
def test_only_chunks_as_a_real_number_give_them(ratio: str) -> None:
    setting = SETTINGS[ratio]
    assert f"{setting.capacity().mu_whole_chunks:.3f}" != f"{setting.printed_theory:.3f}"


def test_the_printed_rate_of_the_mixed_trace_does_not_follow() -> None:
    mixed = runs.mixed_capacity().mu
    assert mixed == pytest.approx(2 / (1 / 3.956 + 1 / 2.902), abs=5e-4)
    assert mixed < 0.99 * runs.PRINTED_MIXED


def test_the_printed_rate_of_eight_replicas_is_not_eight_times_that_of_one() -> None:
    assert SETTINGS["1:1"].capacity().mu * REPLICAS == pytest.approx(8 * 3.263, abs=8 * 5e-4)
    assert SETTINGS["1:1"].capacity().mu * REPLICAS > 1.01 * runs.PRINTED_EIGHT


@pytest.mark.parametrize("trim", runs.PRINTED_EIGHT_TO_ONE)
def test_the_slot_that_is_assumed_for_long_prompts_gives_the_printed_rate(trim: float) -> None:
    setting = runs.eight_to_one(trim)
    assert setting.capacity().mu == pytest.approx(runs.PRINTED_EIGHT_TO_ONE[trim], rel=1e-12)
    assert setting.prompt / setting.output == pytest.approx(8, rel=0.002)


def test_the_papers_fleet_at_90_percent() -> None:
    # ⌈40 / (3.263 · 0.9)⌉ = ⌈13.62⌉ and ⌈40 / 3.263⌉ = ⌈12.26⌉
    asked = {
        "workload": SETTINGS["1:1"].workload(40.0, 1),
        "kv_tokens": MEMORY_TOKENS,
        "slot_s": 0.0372,
        "first_token": "decode",
    }
    assert replicas_needed(**asked, utilization=0.9).replicas == 14
    assert replicas_needed(**asked, utilization=1.0).replicas == 13


# What replicas serve.


@pytest.mark.parametrize("ratio", SETTINGS)
def test_a_replica_in_overload_serves_between_the_bounds_of_the_theorems(ratio: str) -> None:
    limit, found = SETTINGS[ratio].capacity(), interval(runs.saturated_rates(SETTINGS[ratio], 1, REQUESTS, 6))
    assert limit.stable_below_per_s is not None
    assert found.half_width <= 0.005 * WIDER * limit.mu
    assert limit.stable_below_per_s < found.mean - found.half_width
    assert found.mean - found.half_width <= limit.mu_whole_chunks < limit.mu


@pytest.mark.parametrize("ratio", SETTINGS)
def test_every_slot_with_a_backlog_uses_what_the_theorem_promises(ratio: str) -> None:
    # The lemma in the proof of Theorem 4.2: no slot leaves as much free as the largest request needs.
    setting = SETTINGS[ratio]
    use, delta = runs.memory_use(setting.workload(5.0, 3_000), MEMORY_TOKENS), setting.capacity().delta
    assert delta is not None
    assert use.slots > 10_000
    assert 1 - delta <= use.least <= use.mean <= 1


@pytest.mark.parametrize("kv_tokens", [3_200, 6_400, 20_000])
def test_it_does_so_in_small_memories_too(kv_tokens: int) -> None:
    use = runs.memory_use(SETTINGS["1:1"].workload(5.0, 1_000), kv_tokens)
    assert 1 - 3_200 / kv_tokens <= use.least


def test_eight_replicas_in_overload_serve_eight_times_what_one_serves() -> None:
    setting = SETTINGS["1:1"]
    one, eight = (interval(runs.saturated_rates(setting, n, REQUESTS, 6)) for n in (1, REPLICAS))
    assert REPLICAS * one.half_width + eight.half_width <= 0.01 * WIDER * eight.mean
    assert abs(eight.mean - REPLICAS * one.mean) <= REPLICAS * one.half_width + eight.half_width


def test_round_robin_over_eight_is_eight_separate_replicas() -> None:
    setting = SETTINGS["1:1"]
    fleet = runs.overloaded(setting, REPLICAS, 4_000, seed=1).requests
    engine = runs.engine(iq.Constant(setting.slot_s))
    for place in range(REPLICAS):
        rows = fleet[place::REPLICAS]
        assert rows["replica"].unique().to_list() == [place]
        alone = iq.simulate(rows.select("arrival_s", "prompt_tokens", "output_tokens"), engine).requests
        assert alone["finish_s"].to_list() == rows["finish_s"].to_list()


# How queues grow.


@pytest.mark.parametrize("rate", [1.0, 3.0])
def test_below_the_limit_the_queue_is_bounded(rate: float) -> None:
    assert SETTINGS["1:1"].capacity().load is not None
    until_s = 60_000 / rate
    found = interval(
        [runs.growth_per_s(runs.queue_run(rate, 1, until_s, seed), until_s) for seed in range(1, 7)]
    )
    assert found.half_width <= 0.001 * rate
    assert abs(found.mean) <= found.half_width
    assert observed(runs.queue_run(rate, 1, until_s, 1)).verdict == "stable"


@pytest.mark.parametrize("rate", [5.0, 20.0, 50.0])
def test_above_it_the_queue_grows_by_what_is_not_served(rate: float) -> None:
    limit, until_s = SETTINGS["1:1"].capacity(), 60_000 / rate
    assert limit.stable_below_per_s is not None
    found = interval(
        [runs.growth_per_s(runs.queue_run(rate, 1, until_s, seed), until_s) for seed in range(1, 9)]
    )
    assert found.half_width <= 0.02 * (rate - limit.mu)
    # Theorem 4.1: at least λ − μ; Theorem 4.2: at most λ − (1 − δ)·μ.
    low, high = rate - limit.mu_whole_chunks, rate - limit.stable_below_per_s
    assert low - found.half_width <= found.mean <= high + found.half_width
    judged = observed(runs.queue_run(rate, 1, until_s, 1))
    assert judged.verdict == "unstable"
    assert judged.low_per_s is not None and judged.high_per_s is not None
    assert judged.low_per_s <= high and low <= judged.high_per_s


def test_at_the_lower_rate_at_most_five_wait_and_at_three_most_of_the_time() -> None:
    waits = {rate: runs.waiting(runs.queue_run(rate, 1, 10_000.0, 1))["waiting"] for rate in (1.0, 3.0)}
    assert waits[1.0].max() <= 5
    assert 0.5 < (waits[3.0] <= 5).mean() < 1


# Long prompts, and the average of the slot.


def test_longbench_requests_are_served_between_the_bounds(shared: Path) -> None:
    frame = runs.longbench(shared / "traces")
    assert frame.height == 503
    slot_s = 0.0126
    limit = kv_capacity(
        runs.longbench_workload(frame, 1), kv_tokens=MEMORY_TOKENS, slot_s=slot_s, first_token="decode"
    )
    assert limit.mu == pytest.approx(MEMORY_TOKENS / (slot_s * runs.longbench_memory(frame)))
    assert limit.delta == (120_000 + 128) / MEMORY_TOKENS
    found = interval(runs.longbench_rates(frame, slot_s, 800, 5))
    assert found.half_width < 0.1 * limit.mu
    assert limit.stable_below_per_s is not None
    assert limit.stable_below_per_s < found.mean - found.half_width < limit.mu
    # Seldom more than one of them is in memory as a whole, yet little of it is free.
    use = runs.memory_use(runs.longbench_workload(frame, 800), MEMORY_TOKENS)
    assert 1 - limit.delta <= use.least and use.mean > 0.9
    assert abs(found.mean - use.mean * limit.mu_whole_chunks) <= found.half_width


@pytest.mark.parametrize("policy", ["SlotGreedy", "VllmV1, 2,048 a batch"])
def test_with_the_mean_slot_the_formula_holds_for_slots_that_differ(policy: str) -> None:
    # A full replica serves M / (mean slot · E[g]); so many requests know that to 0.8/√45,000 = 0.4 %.
    found = runs.estimated(SETTINGS["1:1"], policy, 50_000)
    assert found["μ, mean"] == pytest.approx(1, abs=0.015)
    held = found["memory used"]
    assert isinstance(held, float) and held > 0.99


def test_the_slot_of_the_papers_own_replica_is_its_constant() -> None:
    setting = SETTINGS["2:1"]
    asked, server = setting.workload(5.0, 500), runs.engine(iq.Constant(setting.slot_s))
    run = iq.simulate(asked, server, iterations=True)
    for estimator in ("median", "mean", "trimmed"):
        assert slot(run, estimator) == pytest.approx(0.043, rel=1e-12)


# The report.


def test_the_report_has_all_rows(quick: Report) -> None:
    for ratio, setting in SETTINGS.items():
        told = row(quick, f"Table 1, {ratio}", "stable rate")
        assert told.paper == setting.printed_theory and told.theory is not None
        assert round(told.theory, 3) == told.paper
        assert told.simulation is not None and told.half_width is not None
    printed = {
        "Table 1, 2:1 then 1:2": (3.385, 3.137),
        "Table 2, LongBench v2": (0.561, 0.610),
        "Table 3, 1:1": (25.808, 26.710),
        "Table 4, 8:1, 5 % trimmed": (4.977, 5.470),
        "Table 4, 8:1, 10 % trimmed": (5.862, 5.470),
    }
    for where, (theory, gpu) in printed.items():
        assert row(quick, where, "stable rate").paper == theory
        measured = row(quick, where, "rate of the GPU")
        assert measured.paper == gpu and measured.simulation is None and "last section" in measured.note
    for figure, rates in (("Figure 2", (1, 3, 5, 20, 50)), ("Figure 4", (8, 24, 40, 160, 400))):
        for rate in rates:
            assert "observed" in row(quick, f"{figure}, λ = {rate}", "growth of the queue").note
    assert "--trace" in row(quick, "Table 2, LongBench v2", "stable rate").note


def test_no_verdict_of_the_report_is_wrong(quick: Report) -> None:
    limit = SETTINGS["1:1"].capacity().mu
    for part in quick.sections:
        for one in part.rows:
            if one.what == "growth of the queue":
                replicas = 1 if one.where.startswith("Figure 2") else REPLICAS
                rate = float(one.where.rsplit(" ", 1)[1])
                wrong = "unstable" if rate < replicas * limit else ": stable"
                assert wrong not in one.note


def test_pictures_can_be_drawn(quick: Report) -> None:
    drawn = [picture for part in quick.sections for picture in part.pictures]
    assert len(drawn) == 7
    for picture in drawn:
        assert picture.chart().to_dict()["config"]


def test_the_report_with_traces_fills_the_row_of_longbench(shared: Path) -> None:
    sizes = runs.Sizes(seeds=2, requests=4_000, arrivals=1, longbench=200, policies=1)
    section, rows = nie2026.long_prompts(sizes, shared / "traces")
    told = next(one for one in section.rows if one.where == "Table 2, LongBench v2")
    assert told.theory == pytest.approx(0.561) and told.simulation is not None
    assert [one.name for one in rows][-1] == "LongBench v2"
    # Answers of 128 tokens to prompts of up to 120,000: 131,000 / (0.561 · E[g]) seconds.
    (table,) = section.tables
    occupied = runs.longbench_memory(runs.longbench(shared / "traces"))
    slot_ms = 1000 * MEMORY_TOKENS / (0.561 * occupied)
    assert table.frame["b̄ for outputs of 128, ms"][-1] == pytest.approx(slot_ms)
