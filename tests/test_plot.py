"""Charts of a run: correct values, and only a few hundred of them."""

import math
import re
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import inferq as iq
from inferq.display.panels import powers
from inferq.display.points import points_of
from inferq.display.style import DARK, PAPER, dark, svg, unchecked
from inferq.display.text import number, seconds
from inferq.experiments.comparison.charts import shown_systems
from inferq.experiments.comparison.comparison import NUMBERS, Comparison
from inferq.reports import run_data
from inferq.reports.run_charts import drawn_limits

from .lin2026 import cluster
from .pictured import ENGINE, SHORT, run_of_a_fleet, synthetic

NAMES = ("latency", "timeline", "itl", "queue", "throughput")


@pytest.fixture(scope="module")
def fleet() -> iq.Result:
    return run_of_a_fleet()


def rows(chart: Any) -> int:
    """Number of data rows in a chart."""
    return sum(len(data) for data in chart.to_dict()["datasets"].values())


def test_every_picture_is_a_chart_of_some_hundred_numbers_that_dark_pages_know(fleet: iq.Result):
    rules = dark("figure")
    for name in NAMES:
        chart = getattr(fleet.plot, name)()
        assert 0 < rows(chart) <= 2000, name
        drawing = svg(chart)
        assert drawing.startswith("<svg")
        colors = set(re.findall(r'\b(?:fill|stroke)="([^"]*)"', drawing)) - {"none", "transparent", PAPER}
        assert colors <= set(DARK), name
        assert all(f'[fill="{color}"]' in rules and f'[stroke="{color}"]' in rules for color in colors)


def test_a_picture_is_the_same_without_the_check_of_its_parts(fleet: iq.Result):
    for name in NAMES:
        with unchecked():
            fast = svg(getattr(fleet.plot, name)())
        assert fast == svg(getattr(fleet.plot, name)()), name


def test_the_size_of_a_picture_does_not_grow_with_the_run():
    asked = synthetic(4000, 20, 50, 20)
    long = iq.simulate(asked, ENGINE, seed=1, timeline_s=0.01)
    assert long.timeline.height > 10_000
    for name in NAMES:
        assert rows(getattr(long.plot, name)()) <= 2000, name


def test_percentile_curves_pass_through_the_summary(fleet: iq.Result):
    names = run_data.classes(fleet)
    assert names == ["chat", "code"]  # the most frequent first
    curves = run_data.latencies(fleet, names)
    for row in fleet.summary(by="class").rows(named=True):
        for measure in run_data.MEASURES:
            curve = curves.filter(pl.col("measure") == measure, pl.col("class") == str(row["class"]))
            for percentile in (50, 90, 95, 99):
                found = curve.filter(pl.col("share") == percentile / 100)["seconds"].item()
                assert found == pytest.approx(row[f"{measure}_p{percentile}"], rel=1e-12)
            assert curve["seconds"].is_sorted() and curve["share"].max() < 1


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40), st.floats(0, 1))
def test_percentiles_of_values_in_order_are_linear(values: list[float], share: float):
    ordered = np.sort(np.array(values))
    found = run_data._linear(ordered, np.array([share]))[0]
    assert found == pytest.approx(np.quantile(ordered, share), rel=1e-9, abs=1e-9)


@given(st.integers(1, 3000), st.integers(0, 2**32))
def test_stretches_of_time_keep_mean_least_and_most(samples: int, seed: int):
    values = np.random.default_rng(seed).integers(0, 100, samples)
    frame = pl.DataFrame({"time_s": np.arange(samples) * 0.5, "waiting": values})
    told = run_data._stretched(frame, ["waiting"])
    assert told.height <= run_data.POINTS
    each = -(-samples // run_data.POINTS)
    sizes = np.full(told.height, each)
    sizes[-1] = samples - each * (told.height - 1)
    assert (told["waiting"].to_numpy() * sizes).sum() == pytest.approx(values.sum())
    assert told["waiting_low"].min() == values.min() and told["waiting_high"].max() == values.max()
    assert told["time_s"].is_sorted()


def test_panels_of_the_timeline_have_one_time_though_prompts_end_before_answers():
    engine = iq.Engine(
        timing=iq.Constant(0.01), scheduler=iq.VllmV1(), kv=iq.KvCache(tokens=None, prefix_cache="blocks")
    )
    result = iq.simulate({"arrival_s": [0, 1], "prompt_tokens": [9, 9], "output_tokens": [9, 500]}, engine)
    panels = result.plot.timeline().to_dict()["vconcat"]
    ends = [layer["encoding"]["x"]["scale"]["domain"] for panel in panels for layer in panel["layer"]]
    times = run_data.over_time(result)["time_s"]
    assert len(panels) == 6 and all(one == [times.min(), times.max()] for one in ends)


def test_time_is_that_of_the_replicas_together(fleet: iq.Result):
    told = run_data.over_time(fleet)
    samples = fleet.timeline.group_by("time_s").agg(pl.col("running").sum(), pl.col("waiting").max())
    assert told["running_high"].max() == samples["running"].max()
    queue = run_data.waiting(fleet)
    assert queue["most"].max() == fleet.timeline["waiting"].max() == samples["waiting"].max()
    assert (queue["mean"] <= queue["most"]).all()
    assert run_data.kv_tokens(fleet) == 3 * 40_000


def test_gaps_are_shares_of_their_class_on_a_few_bins(fleet: iq.Result):
    names = run_data.classes(fleet)
    bins = run_data.gaps(fleet, names)
    for name in names:
        of_class = bins.filter(pl.col("class") == name)
        assert of_class.height <= run_data.BINS
        assert of_class["share"].sum() == pytest.approx(1)
        assert (of_class["lower_s"] < of_class["upper_s"]).all()
    marks = run_data.gap_percentiles(fleet, names)
    for row in fleet.summary(by="class").rows(named=True):
        for percentile in ("p50", "p99"):
            found = marks.filter(pl.col("class") == str(row["class"]), pl.col("percentile") == percentile)
            assert found["seconds"].item() == row[f"itl_{percentile}"]


def test_rates_count_every_arrival_and_every_completion(fleet: iq.Result):
    told = run_data.rates(fleet)
    width_s = told["time_s"][1] - told["time_s"][0]
    assert told["arrived"].sum() * width_s == pytest.approx(fleet.requests.height)
    assert told["finished"].sum() * width_s == pytest.approx(fleet.requests["finish_s"].count())


def test_a_limit_of_theory_is_drawn_where_it_can_be_seen(fleet: iq.Result):
    said = run_data.theory(fleet)
    assert not isinstance(said, str) and said.binding is not None
    most = said.binding.capacity_per_s
    happened = run_data.rates(fleet)
    near = happened.with_columns(arrived=pl.lit(most / 2))
    assert [value for value, _ in drawn_limits(near, said).values()] == [most]
    assert f"{number(most)}" in next(iter(drawn_limits(near, said)))
    far = happened.with_columns(arrived=pl.lit(most / 10), finished=pl.lit(most / 10))
    assert drawn_limits(far, said) == {}
    assert drawn_limits(near, "nothing is known") == {}


def test_what_stands_beside_the_pointer_is_what_is_drawn(fleet: iq.Result):
    names, whole = run_data.classes(fleet), fleet.summary(by="class").rows(named=True)
    told = points_of(fleet.plot.latency())
    assert [one["name"] for one in told] == names * len(run_data.MEASURES)
    for row in whole:
        order = list(run_data.MEASURES)
        for quantity in ("ttft", "itl", "e2e"):
            line = told[names.index(row["class"]) + len(names) * order.index(quantity)]
            for percentile in (50, 90, 95, 99):
                at = line["x"].index(f"P{percentile}")
                assert line["y"][at] == seconds(row[f"{quantity}_p{percentile}"])
    over = points_of(fleet.plot.timeline())
    assert [one["name"].split(",")[0] for one in over] == [
        *("requests running", "requests waiting", "KV cache in use", "prompt tokens per second"),
        "output tokens per second",
    ]
    assert over[0]["y"] == [number(one) for one in run_data.over_time(fleet)["running"]]
    assert all(one.endswith(" s") for line in over for one in line["x"])


def test_called_it_is_an_overview(fleet: iq.Result):
    overview = fleet.plot().to_dict()["vconcat"]
    assert len(overview) == 3 and len(overview[0]["concat"]) == len(run_data.MEASURES)
    assert svg(fleet.plot(width=600))


def test_more_classes_than_colors_leave_the_rarest_out():
    kinds = {f"class {place}": synthetic(20 * (9 - place), 5, 50, 10) for place in range(8)}
    many = iq.simulate(iq.Workload.mix(kinds), ENGINE, seed=1)
    assert run_data.classes(many) == [f"class {place}" for place in range(6)]
    for name in NAMES:
        assert svg(getattr(many.plot, name)())


def test_what_cannot_be_drawn_is_said():
    rejected = iq.simulate({"arrival_s": [0.0], "prompt_tokens": [5000], "output_tokens": [3]}, SHORT)
    for name, said in {
        "latency": "served",
        "timeline": "too short",
        "itl": "two tokens",
        "queue": "too short",
        "throughput": "nothing arrived",
    }.items():
        with pytest.raises(iq.ConfigError, match=rf"^{name}: .*{said}"):
            getattr(rejected.plot, name)()
    one = iq.simulate({"arrival_s": [0.0], "prompt_tokens": [5], "output_tokens": [1]}, SHORT)
    with pytest.raises(iq.ConfigError, match=r"^itl: "):
        one.plot.itl()
    assert svg(one.plot.latency()) and svg(one.plot())
    with pytest.raises(iq.ConfigError, match=r"^plot: latency: .*served"):
        rejected.plot()


def test_gate_and_route_shows_queues_and_slots():
    plan = iq.research.Allocation(prefill={"a": 0.1, "b": 0.1}, prefill_queue={"a": 0.3, "b": 0.0})
    asked = iq.Workload.mix({"a": synthetic(200, 3, 300, 300), "b": synthetic(200, 3, 900, 100)})
    result = iq.simulate(asked, cluster(plan, replicas=5, abandonment=0.1), seed=1)
    for name in ("latency", "timeline", "queue", "throughput"):
        assert svg(getattr(result.plot, name)()), name
    assert set(run_data.waiting(result)["class"]) == {"a", "b"}
    assert run_data.over_time(result)["solo_high"].max() > 0


@given(st.floats(1e-7, 1e5), st.floats(1.3, 1e8))
def test_ticks_of_a_logarithmic_axis_are_few_and_inside(low: float, ratio: float):
    high = low * ratio
    ticks = powers(low, high)
    assert len(ticks) <= 7
    assert ticks == sorted(set(ticks))
    assert all(low * (1 - 1e-6) <= tick <= high * (1 + 1e-6) for tick in ticks)
    if ratio >= 2:
        assert ticks


def test_a_long_tail_gets_room(fleet: iq.Result):
    curve = run_data.latencies(fleet, run_data.classes(fleet)).filter(measure="ttft", **{"class": "chat"})
    tails = -np.log10(1 - curve["share"].to_numpy())
    assert np.diff(tails).max() < 0.1 and tails.max() > math.log10(500)


def test_a_class_of_one_request_is_a_point():
    few = {
        "class": ["rare", *["usual"] * 9],
        "arrival_s": [float(place) for place in range(10)],
        "prompt_tokens": [50] * 10,
        "output_tokens": [5] * 10,
    }
    chart = iq.simulate(iq.Workload(few), ENGINE).plot.latency()
    drawing = svg(chart)
    assert "mark-symbol" in drawing.split("mark-group role-legend")[0] or "filled point" in drawing
    many = svg(iq.simulate(synthetic(100, 5, 20, 5), ENGINE).plot.latency())
    assert "filled point" not in many


def test_what_is_always_zero_lies_at_the_foot_of_its_axis():
    idle = iq.simulate(synthetic(40, 0.1, 20, 5), ENGINE, seed=1)
    assert idle.timeline["waiting"].max() == 0
    (layer,) = idle.plot.queue().to_dict()["layer"]
    assert layer["encoding"]["y"]["scale"]["domain"] == [0, 1]


def comparison(systems: int, relative: dict[str, float]) -> Comparison:
    """A comparison with these relative differences for every system except the first."""
    names = tuple(f"system {place}" for place in range(systems))
    common = {
        **dict.fromkeys(NUMBERS),
        "unit": "s",
        "better": "lower",
        "samples": 5,
        "missing": 0,
        "mean": 1.0,
    }
    rows = [
        {**common, "metric": metric, "system": name, "verdict": None, "significant_holm": None}
        if name == names[0]
        else {
            **common,
            **{"metric": metric, "system": name, "relative": share, "relative_half_width": abs(share) / 4},
            **{"verdict": "worse" if share > 0 else "better", "significant_holm": True},
        }
        for metric, share in relative.items()
        for name in names
    ]
    return Comparison(
        systems=names,
        baseline=names[0],
        seeds=(0, 1),
        confidence=0.95,
        variation="seeds",
        stopped="2 seeds, as asked",
        findings=(),
        by=None,
        scenario="{}",
        requests="2 requests",
        _rows=tuple(rows),
        _values=(),
    )


def test_small_differences_are_seen_beside_huge_ones():
    drawing = svg(comparison(2, {"ttft_p99": 85.0, "itl_p99": -0.2, "e2e_p50": -0.05}).plot())
    points = re.findall(r'aria-roledescription="point" transform="translate\(([\d.]+)', drawing)
    assert len(points) == 3
    assert np.diff(sorted(map(float, points))).min() > 10  # pixels, of some 360


def test_the_picture_of_many_systems_is_bounded_and_says_so():
    metrics = {f"metric_{place}": 0.01 * (place + 1) for place in range(7)}
    many = comparison(30, metrics)
    shown = shown_systems(many.frame)
    assert shown == [f"system {place}" for place in range(1, 9)]
    drawing = svg(many.plot())
    high = re.search(r'<svg [^>]*\bheight="([\d.]+)"', drawing)
    assert high is not None and float(high[1]) < 2000
    assert "the first 8 of 29 systems" in drawing
    assert "the first" not in svg(comparison(5, metrics).plot())


def test_names_are_given_anew_in_tags_and_not_in_labels():
    import altair as alt

    label = 'id="clip0" url(#clip0) href="#clip0"'
    frame = pl.DataFrame({"x": [0.0, 1.0], "y": [1.0, 3.0], "which": [label] * 2})
    line = alt.Chart(frame).mark_line(clip=True).encode(x="x:Q", y="y:Q", color="which:N")
    drawing = svg(line, "part-")
    letters = re.sub(r"&quot;", '"', "".join(re.findall(r">([^<]+)</text>", drawing)))
    assert label in letters
    names = re.findall(r'\sid="([^"]+)"', re.sub(r">[^<]*<", "><", drawing))
    assert names and all(name.startswith("part-") for name in names)
    assert set(re.findall(r'clip-path="url\(#([^)]+)', drawing)) <= set(names)
