"""Does the gate call worse what is worse, as surely as it says?"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferq.experiments.gates.metric_verdict import compare_metric
from inferq.experiments.margin import Margin


def test_the_unchanged_is_worse_with_at_most_the_chance_that_was_stated():
    # the change loses exactly the tolerance: the most that it may, where an alarm is false
    draws = np.random.default_rng(1)
    runs, tolerance = 2000, Margin.of("request_goodput", "2%", "tolerance")
    before = draws.normal(100, 5, (runs, 8))
    now = before * 0.98 + draws.normal(0, 1, (runs, 8))
    alarms = sum(
        compare_metric(tolerance, *pair, 0.95).verdict == "worse" for pair in zip(before, now, strict=True)
    )
    # binomial with 5 %: mean 100, standard deviation 9.7; four of them
    assert abs(alarms - 100) < 39


def test_pairs_see_what_means_alone_would_not():
    # seeds differ by 20 %, the loss is 2 % of each: far within the noise of either side
    before = [80.0, 90.0, 100.0, 110.0, 120.0]
    now = [value * 0.98 for value in before]
    judged = compare_metric(Margin.of("request_goodput", "1%", "tolerance"), before, now, 0.99)
    assert judged.verdict == "worse"
    assert judged.change is not None and judged.change.mean == pytest.approx(-0.02)
    assert judged.change.low == pytest.approx(judged.change.high)  # the ratio is the same in every pair


@pytest.mark.parametrize(
    ("metric", "text", "before", "now", "verdict"),
    [
        ("ttft_p99", "5%", [1.0, 1.0], [1.0, 1.0], "identical"),
        ("ttft_p99", "5%", [1.0, 1.0], [1.04, 1.04], "within"),
        ("ttft_p99", "5%", [1.0, 1.0], [1.06, 1.06], "worse"),
        ("ttft_p99", "5%", [1.0, 1.0], [0.94, 0.94], "better"),
        ("ttft_p99", "5%", [1.0, 1.0], [1.0, 1.12], "undecided"),
        ("ttft_p99", "50ms", [1.0], [1.06], "worse"),
        ("ttft_p99", "0.05 s", [1.0], [1.04], "within"),
        ("request_goodput", "3%", [8.0, 8.0], [7.7, 7.7], "worse"),
        ("request_goodput", "3%", [8.0, 8.0], [8.3, 8.3], "better"),
        ("request_goodput", "0.5 requests/s", [8.0, 8.0], [7.6, 7.6], "within"),
        ("failed_share", "0.01", [0.0, 0.0], [0.02, 0.02], "worse"),
        ("failed_share", "0.01", [0.0, 0.0], [0.005, 0.005], "within"),
        # of nothing, a share is nothing: whatever is worse is worse
        ("queue_p50", "10%", [0.0, 0.0, 0.0], [0.2, 0.21, 0.2], "worse"),
        # a baseline that is 0 but for one seed has no share that could be told, and yet it is worse
        ("queue_p50", "10%", [0.0, 0.0, 0.001], [0.2, 0.21, 0.2], "worse"),
        ("itl_p99", "5%", [0.1, 0.1, 0.1], [0.1, None, 0.1], "worse"),
        ("itl_p99", "5%", [None, 0.1, 0.1], [0.1, 0.1, 0.1], "within"),
        ("itl_p99", "5%", [None, None], [0.1, 0.1], "undecided"),
        ("itl_p99", "5%", [None, None], [None, None], "identical"),
    ],
)
def test_verdicts(metric: str, text: str, before: list, now: list, verdict: str):
    assert compare_metric(Margin.of(metric, text, "tolerance"), before, now, 0.95).verdict == verdict


PAIRS = st.lists(st.tuples(st.floats(0.5, 2), st.floats(0.5, 2)), min_size=2, max_size=12)


@given(PAIRS, st.floats(0.001, 0.5), st.floats(0.6, 0.99), st.sampled_from(["ttft_mean", "request_goodput"]))
def test_the_interval_that_is_shown_says_the_same_as_the_verdict(pairs, share, confidence, metric):
    tolerance = Margin.of(metric, f"{share * 100:.6f}%", "tolerance")
    judged = compare_metric(tolerance, *zip(*pairs, strict=True), confidence)
    if judged.change is None or not judged.change.is_relative:
        return
    sign = 1 if metric == "ttft_mean" else -1
    near, far = sorted((sign * judged.change.low, sign * judged.change.high))
    for edge in (
        near - tolerance.amount,
        far - tolerance.amount,
        near + tolerance.amount,
        far + tolerance.amount,
    ):
        if math.isclose(edge, 0, abs_tol=1e-9):
            return
    assert (judged.verdict == "worse") == (near > tolerance.amount)
    assert (judged.verdict == "better") == (far < -tolerance.amount)
    assert (judged.verdict == "undecided") == (near < tolerance.amount < far and far > -tolerance.amount)


@given(PAIRS, st.integers(-20, 20))
def test_a_percentage_does_not_depend_on_the_unit(pairs, power):
    tolerance = Margin.of("ttft_mean", "5%", "tolerance")
    before, now = zip(*pairs, strict=True)
    scaled = ([value * 2.0**power for value in column] for column in (before, now))
    assert (
        compare_metric(tolerance, *scaled, 0.95).verdict
        == compare_metric(tolerance, before, now, 0.95).verdict
    )


def test_undecided_says_how_many_seeds_would_tell():
    judged = compare_metric(Margin.of("ttft_p99", "5%", "tolerance"), [1.0] * 4, [1.0, 1.05, 1.1, 1.15], 0.95)
    # excess 0.025 with a standard error of 0.0323 and t = 2.35: 4 · (0.0760/0.025)² = 36.9
    assert (judged.verdict, judged.note) == ("undecided", "about 37 seeds are needed")
