"""The page of lin2026: every row is there, numbers stand where they can, pictures are drawn."""

import math
from itertools import pairwise

import pytest

from inferq.display import style
from inferq_papers.lin2026 import planning, report, simulated
from inferq_papers.lin2026.fleet import POLICIES, QUICK, Effort, Instance, Limits, optimum, plan, planned
from inferq_papers.report import Report, Section

TINY = Effort(seeds=3, sizes=(5, 20), least_s=60, most_s=60, replica_seconds=1, warmup_s=20)


@pytest.fixture(scope="module")
def quick() -> Report:
    return report(quick=True)


def section(page: Report, title: str) -> Section:
    (found,) = (one for one in page.sections if title in one.title)
    return found


def test_the_quick_page_has_every_figure_and_every_row_says_what_it_is(quick: Report):
    rows = [row for one in quick.sections for row in one.rows]
    for figure in ("2", "4a", "4, queues", "5", "6", "7", "8a", "8b", "8c", "9", "10b"):
        assert any(
            row.where.startswith(f"Figure {figure},") or row.where == f"Figure {figure}" for row in rows
        )
    for row in rows:
        assert row.unit and row.what
        assert row.theory is not None and math.isfinite(row.theory)
        assert (row.simulation is None) == (row.half_width is None)
        assert (
            row.paper is not None
            or row.note
            or row.simulation is not None
            or row.where.startswith(("Section 6.2", "Figure 9", "Figure 5", "Figure 4, queues"))
        )
    assert len(quick.slips) >= 10 and quick.quick and quick.name == "lin2026"
    for one in quick.sections:
        assert one.text and (one.rows or one.tables)


def test_in_the_quick_page_revenue_comes_nearer_to_the_optimum_as_the_cluster_grows(quick: Report):
    rows = {
        row.where: row
        for row in section(quick, "Convergence").rows
        if row.what == "revenue, gate-and-route, bundled"
    }
    few, many = rows["Figure 4a, n = 5"], rows["Figure 4a, n = 500"]
    assert few.simulation is not None and few.half_width is not None
    assert many.simulation is not None and many.half_width is not None
    assert few.simulation + few.half_width < many.simulation - many.half_width
    assert many.simulation - many.half_width <= optimum(Instance()), "no policy earns more"


def test_in_the_quick_page_gate_and_route_loses_much_outside_proposition_1(quick: Report):
    greedy, general = section(quick, "Outside Proposition 1").rows
    assert greedy.simulation is not None and greedy.half_width is not None and greedy.theory is not None
    assert general.simulation is not None and general.half_width is not None
    assert greedy.simulation + greedy.half_width < 0.8 * greedy.theory, "much: a fifth at least"
    assert greedy.simulation + greedy.half_width < general.simulation - general.half_width


def test_every_picture_of_the_quick_page_is_drawn_alike_whenever_it_is(quick: Report):
    pictures = [one for part in quick.sections for one in part.pictures]
    assert len(pictures) >= 7
    for one in pictures:
        first, second = (style.svg(one.chart()) for _ in range(2))
        assert first == second and first.startswith("<svg")
        assert "NaN" not in first and one.title and one.caption


def test_the_rows_are_the_same_however_much_is_simulated():
    def names(effort: Effort) -> list[tuple[str, str, str]]:
        made = simulated.hypothesis_section(effort)
        return [(row.where, row.what, row.unit) for row in made.rows]

    assert names(TINY) == names(QUICK)


def test_the_printed_optimum_of_figure_2_is_that_of_the_program():
    rows = {row.what.split(",")[1].strip(): row for row in planning.arrivals_section().rows}
    separate, bundled = rows["separate"], rows["bundled"]
    assert separate.theory is not None and f"{separate.theory:.1f}" == str(separate.paper)
    assert bundled.theory == pytest.approx(bundled.paper, rel=0.002) and bundled.note, (
        "0.1 % off, and it says so"
    )


def test_figure_8_is_monotone_and_its_prices_fall():
    """A frontier is concave: the looser a limit, the more is earned and the less more of it is worth."""
    for _, argument, name, values in planning.LIMITS:
        for instance in (Instance(), Instance(slots=8)):
            plans = [plan(instance, "bundled", Limits(**{argument: value})) for value in values]
            earned = [planning.revenue(one) for one in plans]
            prices = [one.price(name) for one in plans]
            assert all(after >= before - 1e-9 for before, after in pairwise(earned))
            assert all(after <= before * (1 + 1e-9) + 1e-6 for before, after in pairwise(prices))
            assert prices[-1] == pytest.approx(0, abs=1e-6)
            assert earned[-1] == pytest.approx(optimum(instance), rel=1e-9)


def test_section_6_4_names_prefill_as_the_bottleneck_where_its_price_is_nothing():
    for slots in (8, 16):
        found = plan(Instance(slots=slots))
        assert found.price("prefill slots") == 0
        assert found.price("mixed slots") > 0 and found.price("solo slots") > 0


def test_decode_fairness_of_4_costs_nothing_at_16_slots_and_changes_the_split():
    fair = simulated.FAIR.limits
    assert optimum(Instance(), "bundled", fair) == pytest.approx(optimum(Instance()), rel=1e-9)
    held, free = planned(Instance(), "bundled", fair), planned(Instance())
    assert held["solo 0"] - held["solo 1"] == pytest.approx(4) and free["solo 0"] - free["solo 1"] > 5
    assert held["solo"] == pytest.approx(free["solo"]) and held["mixed"] == pytest.approx(free["mixed"])


def test_all_policies_of_section_6_3_are_there():
    assert {name.split(",")[0].split(" ")[0] for name in POLICIES} == {
        "GG-SP",
        "FG-SP",
        "GF-WSP",
        "GI-WSP",
        "FI-WSP",
    }
