"""Does the page of ao2025 hold what its theorems say, and does the simulation agree?"""

import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import inferq as iq
from inferq_papers import ao2025
from inferq_papers.ao2025 import cases, memory, theorems, waiting
from inferq_papers.report import Report, Row


@pytest.fixture(scope="module")
def page() -> Report:
    return ao2025.report(quick=True)


def rows(page: Report, *words: str) -> list[Row]:
    found = [
        row
        for section in page.sections
        for row in section.rows
        if all(word in f"{row.where}: {row.what}" for word in words)
    ]
    assert found, words
    return found


@pytest.mark.parametrize("load", cases.LOADS)
def test_thresholds_satisfy_the_conditions_of_their_theorems(load: float):
    for instance in (cases.LOW, cases.HIGH):
        kinds = cases.at_load(instance, load)
        n = list(cases.wait_thresholds(kinds).thresholds.values())
        tokens = sum(
            count * (kind.output_tokens + 1) * (kind.prompt_tokens + kind.output_tokens / 2)
            for count, kind in zip(n, kinds, strict=True)
        )
        iteration_s = cases.BASE_S + cases.PER_TOKEN_S * tokens
        assert all(iteration_s < count / kind.rate for count, kind in zip(n, kinds, strict=True))
    kinds = cases.at_load(cases.NESTED, load)
    found = cases.nested_thresholds(kinds)
    n = list(found.thresholds)
    assert found.iteration_s is not None
    assert found.iteration_s < n[0] / sum(kind.rate for kind in kinds)
    # Output lengths and rates are 20:40:80:160, so of 15 that begin 14, 12 and 8 go on.
    for now, after, (these, next_ones) in zip(n, n[1:], [(15, 14), (14, 12), (12, 8)], strict=False):
        assert after * these > now * next_ones


def test_under_wait_a_request_takes_as_long_as_its_successors_take_to_arrive():
    # n_j newcomers for each iteration but the first, and the last one. The gaps of 5,000 arrivals of the
    # rarest type, half of the mean, are known to 1.4 %.
    kinds = cases.at_load(cases.HIGH, 0.15)
    n = list(cases.wait_thresholds(kinds).thresholds.values())
    result = cases.run(cases.workload(kinds, 30_000), cases.wait(kinds, n))
    assert waiting.in_service_s(result.requests).mean == pytest.approx(waiting.paced_s(kinds), rel=0.04)


def test_nested_wait_stays_within_the_memory_that_its_theorem_asks_for():
    kinds = cases.at_load(cases.NESTED, 0.3)
    n, requests = cases.nested_thresholds(kinds).thresholds, cases.workload(kinds, 20_000)
    iterations = cases.run(requests, cases.nested(kinds, n), None).totals["iterations"]
    bound = cases.nested_thresholds(kinds, n, iterations).kv_tokens_needed
    assert bound is not None
    held = cases.run(requests, cases.nested(kinds, n), math.floor(bound))
    assert held.requests["preemptions"].sum() == 0
    # The printed ratio meets (10) with equality: nothing pulls its queues back.
    printed = cases.nested_thresholds(kinds, waiting.PRINTED, iterations)
    assert printed.feasible is False and printed.kv_tokens_needed is None


def test_the_fluid_is_where_simulations_settle(page: Report):
    for what in ("ΔT", "M*", "n* of"):
        found = [row for row in rows(page, "6.", what) if row.unit in ("s", "tokens", "requests")]
        # Each interval holds its mean with 99 %: of the few dozen here one may miss, and not by far.
        beyond = [
            abs(row.simulation - row.theory) / row.half_width
            for row in found
            if row.simulation is not None and row.theory is not None and row.half_width
        ]
        assert len(beyond) == len(found)
        assert sum(share > 1 for share in beyond) <= 1
        assert max(beyond) < 1.6


def test_no_policy_serves_more_than_a_full_cache_can(page: Report):
    for row in rows(page, "largest rate, M* = C"):
        assert row.simulation is not None and row.theory is not None and row.half_width is not None
        assert row.simulation - row.half_width < row.theory
        assert row.simulation > 0.9 * row.theory


def test_what_is_printed_of_high_demand_has_no_equilibrium(page: Report):
    for where in ("6.1, high demand: ", "6.2, chats, 550/s"):
        (row,) = rows(page, where, "load")
        assert row.theory is not None and row.theory > 1
        assert "under any policy" in row.note


def test_the_overflow_of_a_3_by_trying_all_newcomers():
    """Step by step: the equilibrium's batch, then newcomers (x, y), and none after them."""
    listed, right = 0.0, 0.0
    for x in range(8):
        for y in range(8):
            chance = math.exp(-2) / (math.factorial(x) * math.factorial(y))
            stages = [(1, 0), (1, 1), (2, 0), (2, 1), (2, 2)]
            fits = True
            for step in range(2):
                stages = [(kind, stage + 1) for kind, stage in stages if stage < kind]
                if step == 0:
                    stages += [(1, 0)] * x + [(2, 0)] * y
                fits &= sum(1 + stage for _, stage in stages) <= theorems.KV_TOKENS
            right += chance * fits
            listed += chance * ((x, y) in [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0)])
    assert theorems.overflow_chances() == pytest.approx((1 - listed, 1 - right))
    assert 1 - listed == pytest.approx(theorems.CLAIMED_OVERFLOW, abs=5e-4)


def test_memory_greedy_first_come_first_served_loses_and_wait_does_not(page: Report):
    for policy in ("FCFS, restarting", "VllmV1, d1 = 0"):
        row = rows(page, "growth of the queue of type 2", policy)[0]
        assert row.simulation is not None and row.half_width is not None
        # Proposition 4: a constant part is lost, but not the 0.3 per step of A.3, nor half of its chance.
        assert row.simulation - row.half_width > 0.005
        assert row.simulation + row.half_width < theorems.CLAIMED_OVERFLOW / 2
    lost = {row.what: row for row in rows(page, "throughput lost")}
    greedy = lost["throughput lost of Σ λ(l' + 1) = 5, VllmV1, d1 = 0"]
    waits = lost["throughput lost of Σ λ(l' + 1) = 5, Wait, d1 = 0"]
    assert greedy.simulation is not None and greedy.half_width is not None
    assert waits.simulation is not None and waits.half_width is not None
    assert greedy.simulation - greedy.half_width > waits.simulation + waits.half_width


def test_queues_of_wait_grow_like_the_root_of_time_at_equality():
    # A queue that gains Poisson(1) − 1 in each step and is kept at 0 has a mean of √(2t/π) in the long run.
    steps, runs = 10_000, 60
    ends = [
        float(
            theorems.waiting(theorems.run(iq.research.Wait(thresholds=1), "d1 = 0", steps, seed), [steps])[0]
        )
        for seed in range(runs)
    ]
    # The reflected walk is distributed as |normal|, of standard deviation √((1 − 2/π)·t): 99.9 % within 3.3.
    error = math.sqrt((1 - 2 / math.pi) * steps / runs)
    assert np.mean(ends) == pytest.approx(math.sqrt(2 * steps / math.pi), abs=3.3 * error + 2)


def test_the_gap_shrinks_with_the_rates_of_theorem_1(page: Report):
    for row in rows(page, "exponent of the gap"):
        assert row.theory is not None and row.simulation is not None and row.half_width is not None
        assert abs(row.simulation - row.theory) < 1.5 * row.half_width
        assert row.half_width < 0.15
    (row,) = rows(page, "√T · gap")
    assert row.theory == pytest.approx(math.sqrt(2 / math.pi) * 5)
    assert row.simulation is not None and row.half_width is not None and row.theory is not None
    assert abs(row.simulation - row.theory) < 1.5 * row.half_width
    (row,) = rows(page, "T · gap: strict")
    assert row.simulation is not None
    assert row.simulation < theorems.bound_tokens()


def test_requests_under_way_by_hand():
    arrivals = {"arrival_s": [0.0, 0.0, 1.0], "prompt_tokens": [1, 1, 1], "output_tokens": [1, 3, 2]}
    engine = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.Sarathi(), kv=iq.KvCache.unlimited())
    requests = iq.simulate(arrivals, engine).requests
    # Complete at 1, 3 and 3; of the 6 tokens that came 1 is complete after 1.
    assert theorems.unfinished(requests, [0.5, 1.0, 2.0, 3.0]) == [4, 5, 5, 0]


def test_the_exponent_of_a_power_law_is_found():
    horizons_s = 10.0 ** np.arange(1, 5)
    stream = np.random.default_rng(0)
    gaps = 3 * horizons_s**-0.7 * stream.uniform(0.9, 1.1, size=(200, 4))
    slope = theorems.exponent(horizons_s, gaps)
    assert abs(slope.mean + 0.7) < slope.half_width < 0.01


def test_figure_6_comes_out_row_for_row():
    assert memory.example() == memory.PROCESSED


def test_memory_of_many_segments_has_the_shape_of_figures_16_to_18():
    frame = memory.terms(*memory.FIGURES["Figure 17"][0])
    total = dict(frame.group_by("segments").agg(pl.col("tokens").sum()).iter_rows())
    best = min(total, key=lambda count: total[count])
    assert min(total) < best < max(total)
    assert total[min(total)] > 2 * total[best] < total[max(total)]
    terms = dict(frame.filter(pl.col("segments") == best).select("term", "tokens").iter_rows())
    assert terms["stages, M^π"] > 0.5 * sum(terms.values())


def test_the_page_has_its_rows_and_draws_its_pictures(page: Report, tmp_path: Path):
    assert (page.name, page.quick) == ("ao2025", True)
    for section in page.sections:
        assert section.rows or section.tables
        for row in section.rows:
            for value in (row.paper, row.theory, row.simulation, row.half_width):
                assert value is None or math.isfinite(value)
            assert row.theory is not None or row.simulation is not None
    pictures = [picture for section in page.sections for picture in section.pictures]
    assert len(pictures) == 6
    for place, picture in enumerate(pictures):
        drawn = []
        for name in ("first", "second"):
            path = tmp_path / f"{place}-{name}.svg"
            picture.chart().save(path)
            drawn.append(path.read_bytes())
        assert drawn[0] == drawn[1]
    assert all(slip.printed != slip.right for slip in page.slips)
