"""Does the page of bari2025 hold what the paper says, what theory gives and what the simulation shows?"""

import math
from dataclasses import replace
from pathlib import Path

import pytest

import inferq as iq
from inferq.display.style import svg
from inferq.theory import tile_capacity
from inferq_papers import bari2025, pages
from inferq_papers.bari2025 import deadlines, slai, tiles
from inferq_papers.report import Report, Row

SMALL = tiles.Size(at_once=4_000, arriving=20_000, measured=2_000, per_cycle=2_000, steps=3)


@pytest.fixture(scope="module")
def page() -> Report:
    """Without lengths: a few seconds."""
    return bari2025.report(quick=True)


@pytest.mark.parametrize("costs", tiles.COSTS)
def test_whole_tiles_reach_the_limit_of_the_theory_and_sarathi_stays_below(costs: str):
    # The ends of the two cycles, with fewer decodes than a tile has columns: less than 512 tiles of the
    # linear layers each, shared by 2,000 requests. That no policy passes the floor is (7) itself.
    timing = tiles.COSTS[costs]
    found = tiles.served(costs, SMALL)
    served = dict(found.select("policy", "of the limit").iter_rows())
    limit, floor = found["limit"][0], found["floor"][0]
    wasted = 512 * timing.linear_s_per_tile / SMALL.per_cycle * limit
    assert wasted < 0.01
    for policy in ("Rad", "RadPhased"):
        assert 1 / (1 + wasted) <= served[policy] <= 1
    assert all(served[f"Sarathi, {budget}"] < served["Rad"] for budget in tiles.BUDGETS)
    assert all(share <= floor / limit for share in served.values())


def test_chunks_of_the_columns_pass_the_bound_of_theorem_1():
    found = tiles.served("attention dear", SMALL)
    served = dict(found.select("policy", "of the limit").iter_rows())
    assert 1 < served[tiles.NARROW] <= found["floor"][0] / found["limit"][0]


def by_name(rows: tuple[Row, ...]) -> dict[tuple[str, str], Row]:
    named = {(row.where, row.what): row for row in rows}
    assert len(named) == len(rows)
    return named


def test_the_edges_of_rad_are_the_theory_s_within_two_percent(page: Report):
    rows = by_name(page.sections[0].rows)
    for costs, timing in tiles.COSTS.items():
        limit = tile_capacity(tiles.arriving(1), timing).capacity_per_s
        for where, policy in (("Theorems 1 and 2", "Rad"), ("Appendix D", "RadPhased")):
            row = rows[f"{where}, {costs}", f"stable up to: {policy}"]
            assert row.theory == pytest.approx(limit, rel=1e-12)
            assert row.simulation == pytest.approx(limit, rel=0.02)
            assert row.half_width < 0.02 * limit
    dear = rows["Section 5, attention dear", "stable up to: Sarathi, 512"]
    assert dear.simulation + dear.half_width < 0.98 * dear.theory


def test_as_many_requests_a_cycle_as_are_enough_serve_the_load():
    for name in tiles.COSTS:
        for row in tiles.cycle_lengths(name).iter_rows(named=True):
            assert row["load"] <= row["served with it, of 1/T^R"] <= 1
            assert row["n enough"] < row["n by Theorem 2"]


def test_the_variation_of_a_request_s_time_is_that_of_its_parts():
    timing = tiles.COSTS["attention dear"]
    frame = tiles.arriving(300).draw(3).frame
    times = [
        tile_capacity(iq.Workload({"prompt_tokens": [p], "output_tokens": [o]}), timing).request_s
        for p, o in frame.select("prompt_tokens", "output_tokens").iter_rows()
    ]
    mean = sum(times) / len(times)
    drawn = math.sqrt(sum((each - mean) ** 2 for each in times) / len(times)) / mean
    # 300 draws know a standard deviation to 4 %, three of those are allowed.
    assert tiles._variation(timing) == pytest.approx(drawn, rel=0.12)


def test_without_lengths_every_row_says_what_it_needs(page: Report):
    rows = page.sections[1].rows
    assert len(by_name(rows)) == len(deadlines.ROWS)
    for row in rows:
        assert deadlines.FILE in row.note and "--trace" in row.note
        assert row.simulation is None and row.gap is None
    printed = {row.what: row.paper for row in rows if row.where == "Figure 6c"}
    assert printed[f"rate with median TTFT ≤ 0.5 s: {deadlines.SARATHI}"] == 1.15
    assert printed[f"rate with median TTFT ≤ 0.5 s: {deadlines.SLAI}"] == 1.45
    assert round(100 * (1.45 / 1.15 - 1)) == 26 and round(100 * (0.7 / 1.5 - 1)) == -53
    assert {row.paper for row in rows if row.unit == "%"} >= {26, -53}


def test_a_folder_without_the_lengths_is_an_error(tmp_path: Path):
    with pytest.raises(iq.ConfigError, match=r"^trace: .*openchat_sharegpt4_8k"):
        slai.sections(True, tmp_path, lambda line: None)


def test_the_slips_and_every_number_of_the_page_are_there(page: Report):
    assert page.name == "bari2025" and page.quick
    assert any("Theorem 1" in slip.where for slip in page.slips)
    assert all(slip.printed and slip.right for slip in page.slips)
    for section in page.sections:
        for row in section.rows:
            for value in (row.paper, row.theory, row.simulation, row.half_width):
                assert value is None or math.isfinite(value)
            assert row.paper is not None or row.note
        for table in section.tables:
            assert table.frame.height and set(table.decimals) <= set(table.frame.columns)


def test_the_pictures_are_drawn(page: Report):
    drawn = [svg(picture.chart()) for section in page.sections for picture in section.pictures]
    assert drawn and all(one.startswith("<svg") for one in drawn)
    assert pages.html(page).count("<svg") == len(drawn)


@pytest.fixture(scope="module")
def study(shared: Path) -> deadlines.Study:
    lengths = deadlines.read_lengths(shared / "traces")
    size = deadlines.Size(2_000, (1, 2, 3), (1,), steps=6, fit_steps=8, edge_steps=4, rate_step=0.5)
    return deadlines.Study(lengths, size)


def test_lengths_are_cut_to_what_the_paper_allows(study: deadlines.Study):
    lengths = study.lengths
    assert (lengths["prompt_tokens"] + lengths["output_tokens"]).max() <= 8192
    assert lengths["output_tokens"].min() >= 1
    found = deadlines.described(lengths)
    for key, printed in (
        ("prompt p50", 1730),
        ("prompt p90", 5696),
        ("output p50", 415),
        ("output p90", 834),
    ):
        assert found[key].value == printed
    assert round(found["prompt std"].value) in (2088, 2089)
    assert found["output std"].value > 2 * 101  # the printed one is a slip


def test_the_deadlines_part_answers_every_row(study: deadlines.Study):
    cost = study.fitted(deadlines.Hardware())
    engine = deadlines.Hardware().engine(cost, deadlines.POLICIES[deadlines.SARATHI])
    # Fitted: Sarathi meets the limit at the paper's rate, to what a bisection of 0.3 ms in 2^8 parts leaves.
    assert study.median_ttft_s(engine, 1.15, 1) == pytest.approx(0.5, rel=0.03)
    answers = deadlines.answered(study, cost)
    rows = deadlines.rows_of(answers)
    assert all(row.simulation is not None and row.half_width is not None for row in rows[7:])
    named = by_name(rows)
    # Of the budget that every iteration could hold, 2 % are within the interval of 20,000 requests.
    stable = named["Section 7", "stable up to: Sarathi, unlimited sequences and cache"]
    assert stable.half_width < 0.05 * stable.theory
    assert abs(stable.simulation - stable.theory) < stable.half_width + 0.01 * stable.theory
    # Deadlines buy capacity, the more the fewer pay.
    gains = [answers[key].value for key in ("gain", "50 gain", "95 gain")]
    assert gains[0] > gains[1] > gains[2] > 0
    assert answers["fall"].value < 0
    # Sarathi knows no classes.
    half = replace(study, paying=0.5)
    assert half.median_ttft_s(engine, 1.15, 1) == study.median_ttft_s(engine, 1.15, 1)


def test_the_hardware_part_has_a_row_for_each_guess(study: deadlines.Study):
    small = replace(study, size=replace(study.size, requests=800, steps=2, fit_steps=3))
    variants, lengths = deadlines.sensitivity(small), deadlines.run_lengths(small, 1e-4)
    assert variants["hardware"].to_list() == list(deadlines.VARIANTS)
    assert lengths["requests"].to_list() == [20, 80, 800, 4_000]
    lines = deadlines.curves(small, 1e-4)
    for chart in (slai.chart(lines), slai.hardware_chart(variants)):
        assert svg(chart).startswith("<svg")
    assert all(slai._hardware_remarks(variants, lengths))
