"""Do intervals hold what they claim, over seeds and over blocks of one recorded trace?"""

from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import inferq as iq
from inferq.experiments.comparison import blocks, evidence
from inferq.experiments.comparison.contrast import Sample, contrast, holm
from inferq.experiments.comparison.measurement import Measurement, RunNumbers
from inferq.experiments.comparison.precision import precisions
from inferq.experiments.replication import Run
from inferq.results.metric import Metric

from .arriving import arriving
from .compared import CHAT, PAIR, engine, md1, md1_wait_s, one_by_one
from .night import NIGHT

REPETITIONS = 1000 if NIGHT else 400

FLEETS = {
    "random": iq.Cluster(engine(), replicas=2, router=iq.Random()),
    "shortest": iq.Cluster(engine(), replicas=2, router=iq.LeastRequests()),
}


def row(comparison: Any, system: str, metric: str) -> dict[str, Any]:
    return comparison.frame.row(
        by_predicate=(pl.col("system") == system) & (pl.col("metric") == metric), named=True
    )


# --- intervals hold what they claim


def assert_as_often_as_said(held: np.ndarray, repetitions: int) -> None:
    """In 93 to 97 % of 1,000, a room of 2.9 standard deviations; on a change fewer have as many of them."""
    room = 0.02 if NIGHT else 0.02 * (1000 / repetitions) ** 0.5
    assert (np.abs(held / repetitions - 0.95) <= room).all(), held


def test_intervals_over_seeds_hold_a_known_mean_as_often_as_they_say():
    workload, systems = md1(600), {"a": one_by_one(0.3), "b": one_by_one(0.4)}
    a, b = md1_wait_s(0.3), md1_wait_s(0.4)
    held, narrowed = np.zeros(3), []
    for place in range(REPETITIONS):
        seeds = range(4 * place, 4 * place + 4)
        found = iq.compare(workload, systems, seeds=seeds, metrics=["queue_mean"], warmup=50)
        first, second = found._rows
        held += [
            abs(first["mean"] - a) <= first["half_width"],
            abs(second["mean"] - b) <= second["half_width"],
            abs(second["difference"] - (b - a)) <= second["difference_half_width"],
        ]
        narrowed.append(second["narrowed_by"])
    assert_as_often_as_said(held, REPETITIONS)
    assert np.median(narrowed) > 1.5


def test_intervals_from_blocks_of_one_trace_hold_a_known_mean():
    workload, systems = md1(3000), {"a": one_by_one(0.3), "b": one_by_one(0.4)}
    a, b = md1_wait_s(0.3), md1_wait_s(0.4)
    held, narrowed = np.zeros(2), []
    for seed in range(REPETITIONS // 2):
        found = iq.compare(workload.draw(seed), systems, seeds=[0], metrics=["queue_mean"], warmup=50)
        assert found.variation == "blocks"
        second = found._rows[1]
        held += [
            abs(second["mean"] - b) <= second["half_width"],
            abs(second["difference"] - (b - a)) <= second["difference_half_width"],
        ]
        narrowed.append(second["narrowed_by"])
    assert_as_often_as_said(held, REPETITIONS // 2)
    assert np.median(narrowed) > 1.5


def test_stopping_when_narrow_enough_keeps_intervals_of_normal_numbers_at_93_to_97_percent(monkeypatch):
    """A run is a normal number here, so that 1,000 experiments with up to 200 seeds are quick."""
    metric = Metric.of("ttft_mean")
    chance = np.random.default_rng(5)

    def drawn(workload: Any, systems: Any, runs: list[Run], measure: Any, **options: Any) -> list[RunNumbers]:
        values = chance.normal(10.0, 1.0, len(runs))
        return [RunNumbers({(None, metric): float(v)}, (), {}, {}, (), b"") for v in values]

    monkeypatch.setattr(evidence, "replications", drawn)
    for target in (6, 4, 2.5):
        asked = precisions(f"ttft_mean ± {target}%")
        held = 0
        for _ in range(1000):
            one = evidence.Evidence(
                md1(1),
                {"a": one_by_one(1)},
                "a",
                Measurement([metric], None, None),
                0.95,
                threads=1,
                progress=None,
                options={},
            )
            one.over_seeds(range(10), asked, 200)
            sample = one.sample("a", (None, metric))
            assert sample is not None
            held += not sample.interval(0.95).excludes(10.0)
        assert 0.93 <= held / 1000 <= 0.97, (target, held)


@given(
    st.lists(
        st.tuples(st.floats(-100, 100, width=32), st.floats(-100, 100, width=32)), min_size=3, max_size=30
    ),
    st.sampled_from([0.8, 0.95, 0.99]),
)
def test_a_contrast_is_the_paired_t_test_and_welchs(pairs: list[tuple[float, float]], confidence: float):
    a, b = (np.array(values) for values in zip(*pairs, strict=True))
    if min(np.ptp(a), np.ptp(b), np.ptp(b - a)) < 1e-3:
        return
    found = contrast(Sample(a.mean(), a, False), Sample(b.mean(), b, False), confidence, "lower")
    paired, apart = stats.ttest_rel(b, a), stats.ttest_ind(b, a, equal_var=False)
    assert found.p_value == pytest.approx(paired.pvalue, rel=1e-6, abs=1e-12)
    assert found.difference.low == pytest.approx(
        paired.confidence_interval(confidence).low, rel=1e-6, abs=1e-9
    )
    assert found.unpaired == pytest.approx(np.ptp(apart.confidence_interval(confidence)) / 2, rel=1e-6)
    assert (found.verdict in ("better", "worse")) == (found.p_value < 1 - confidence)
    back = contrast(Sample(b.mean(), b, False), Sample(a.mean(), a, False), confidence, "lower")
    turned = {"better": "worse", "worse": "better"}
    assert turned.get(found.verdict, found.verdict) == back.verdict


def test_holm_is_that_of_the_textbook():
    """Holm's own steps: 0.01 ≤ 0.05/4, 0.013 ≤ 0.05/3, 0.03 > 0.05/2, and nothing after that."""
    assert holm([0.03, 0.01, 0.04, 0.013], 0.95) == [False, True, False, True]
    assert holm([], 0.95) == []


def test_pairing_narrows_the_interval_of_two_schedulers():
    found = iq.compare(CHAT, PAIR, seeds=range(10), metrics=["e2e_p50", "e2e_mean", "ttft_p99"])
    rows = found.frame.filter(system="vllm-v0")
    assert (rows["narrowed_by"] > 1).all()
    ratio = rows["unpaired_half_width"] / rows["difference_half_width"]
    assert (ratio - rows["narrowed_by"]).abs().max() < 1e-12


# --- blocks of one trace


def test_pseudo_values_of_a_mean_are_the_means_of_equal_blocks():
    values = np.random.default_rng(1).exponential(size=800)
    block = np.repeat(np.arange(16), 50)
    found = blocks._without_each(values, block, 16, "mean")
    assert found == pytest.approx(values.reshape(16, 50).mean(axis=1))


@pytest.mark.parametrize("percent", [50, 90, 99])
def test_pseudo_values_of_a_percentile_leave_one_block_out(percent: int):
    values = np.random.default_rng(2).exponential(size=805)
    block = np.minimum(np.arange(805) // 100, 7)
    found = blocks._without_each(values, block, 8, f"p{percent}")
    whole = np.percentile(values, percent)
    rest = np.array([np.percentile(values[block != one], percent) for one in range(8)])
    assert found == pytest.approx(8 * whole - 7 * rest)


def test_blocks_make_up_the_whole_run():
    """Throughputs without a block, and all gaps of all blocks."""
    lengths = {"prompt": iq.dist.Geometric(500), "output": iq.dist.Geometric(60)}
    fixed = iq.Workload.synthetic(requests=1000, arrivals=iq.dist.Poisson(2), **lengths).draw(5)
    result = iq.simulate(fixed, engine(), warmup=30)
    rates = [
        Metric.of(name) for name in ("request_throughput", "output_throughput", "total_token_throughput")
    ]
    measurement = Measurement([*rates, Metric.of("failed_share"), Metric.of("itl_mean")], None, None)
    whole = measurement.of_trace(Run("a", 0), result)
    assert whole.cuts[0]["warmup"] == 30 and whole.cuts[-1]["cooldown"] == 0
    parts = [measurement.of_block(Run("a", 0), iq.simulate(fixed, engine(), **cut)) for cut in whole.cuts]
    assert sum(part[None].count.sum() for part in parts) == result.itl["count"].sum()
    measurement.add_gaps(whole, parts)
    counts = np.array([part[None].count.sum() for part in parts])
    means_s = np.array([part[None].sum_s for part in parts]) / counts
    assert (counts * means_s).sum() / counts.sum() == pytest.approx(whole.values[None, Metric.of("itl_mean")])
    rest = (counts * means_s).sum() - counts * means_s
    wanted = len(parts) * (counts @ means_s / counts.sum()) - (len(parts) - 1) * rest / (
        counts.sum() - counts
    )
    assert whole.pseudo[None, Metric.of("itl_mean")] == pytest.approx(wanted)
    for metric in rates:
        pseudo = whole.pseudo[None, metric]
        assert pseudo.mean() == pytest.approx(whole.values[None, metric], rel=0.05)


def test_percentiles_of_gaps_are_within_a_bin_of_those_of_the_run():
    rng = np.random.default_rng(3)
    bins = 0.01 * 1.005 ** np.arange(300)
    parts = []
    for _ in range(8):
        places, counts = np.unique(rng.integers(0, 299, 2000), return_counts=True)
        parts.append({"lower_s": bins[places], "upper_s": bins[places + 1], "count": counts})
    found = blocks.of_histograms(parts, [1.0] * 8, Metric.of("itl_p99"))
    assert found is not None and found.mean() == pytest.approx(bins[296], rel=0.02)
    assert 0 < found.std(ddof=1) / bins[296] < 0.02
    assert blocks.of_histograms(parts, [1.0] * 8, Metric.of("itl_max")) is None


def test_neighbors_that_are_alike_are_joined():
    slow = np.repeat([0.0, 2.0, 2.0, 0.0, 0.0, 2.0, 2.0, 0.0], 2)
    joined, is_alike = blocks.joined(slow)
    assert joined.tolist() == slow[::2].tolist() and not is_alike
    _, is_alike = blocks.joined(np.arange(16.0))
    assert is_alike
    mixed = np.array([1.0, -1.0] * 8)
    assert blocks.joined(mixed)[0] is mixed


def test_a_trace_over_which_a_queue_only_grows_is_said_to_be_too_short():
    systems = {"calm": one_by_one(0.5), "late": one_by_one(1.3)}
    found = iq.compare(md1(1000).draw(1), systems, metrics=["queue_mean"])
    assert any(
        finding.kind == "dependent-blocks" and finding.data == {"metric": "queue_mean", "systems": "late"}
        for finding in found.findings
    )


def test_a_recorded_trace_is_run_once_where_nothing_draws():
    runs: list[tuple[int, int]] = []
    metrics = ["ttft_mean", "ttft_max", "e2e_p99"]
    found = iq.compare(
        CHAT.draw(1), PAIR, seeds=range(5), metrics=metrics, progress=lambda *told: runs.append(told)
    )
    assert (found.variation, found.seeds, runs[-1]) == ("blocks", (0,), (4, 4))
    assert (
        "nothing is random in the trace" in found.stopped
        and "blocks of consecutive arrivals" in found.explain()
    )
    mean, largest, tail = (row(found, "vllm-v0", name) for name in metrics)
    assert mean["half_width"] is None  # 300 requests are too few for 8 blocks of 50
    assert largest["difference_half_width"] is None and largest["verdict"] is None
    assert tail["difference_half_width"] is None
    why_not = [finding.message for finding in found.findings if finding.kind == "no-interval"]
    assert "ttft_max has no interval, because a maximum grows with the length of the trace" in why_not
    assert "e2e_p99 has no interval, because 300 requests were measured and blocks need 8,000" in why_not


def test_a_synthetic_workload_without_chance_is_a_recorded_trace():
    even = arriving(500, iq.dist.Deterministic(2), 100, 9)
    found = iq.compare(even, PAIR, seeds=range(3), metrics=["ttft_mean"])
    assert found.variation == "blocks"
    assert "nothing is random in the workload" in found.stopped and "recorded" not in str(found)


def test_a_random_router_over_a_recorded_trace_is_run_for_every_seed():
    found = iq.compare(CHAT.draw(1), FLEETS, seeds=range(3), metrics=["ttft_mean"])
    assert (found.variation, found.seeds) == ("blocks", (0, 1, 2))
    values = {name: found.values.filter(system=name)["value"] for name in found.systems}
    assert values["random"].n_unique() == 3 and values["shortest"].n_unique() == 1
    assert row(found, "random", "ttft_mean")["mean"] == pytest.approx(values["random"].mean())


def test_sessions_have_blocks_too():
    talk = iq.Workload.sessions(
        sessions=150, arrivals=iq.dist.Poisson(1), turns=4, prompt=50, output=iq.dist.Geometric(30), think=3.0
    ).draw(2)
    found = iq.compare(talk, PAIR, metrics=["e2e_mean"])
    assert row(found, "vllm-v0", "e2e_mean")["p_value"] is not None
