import json
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import inferq as iq

from .arriving import arriving
from .refusals import refused

LARGEST = 2**31 - 1


def three(**columns: object) -> dict[str, object]:
    return {"arrival_s": [0.0, 1.0, 3.0], "prompt_tokens": [10, 20, 30], "output_tokens": [1, 2, 3]} | columns


def synthetic(requests: int = 50, **parts: Any) -> iq.Workload:
    defaults = {
        "arrivals": iq.dist.Poisson(2.0),
        "prompt": iq.dist.Uniform(1, 100),
        "output": iq.dist.Geometric(20.0),
    }
    return iq.Workload.synthetic(requests=requests, **(defaults | parts))


@st.composite
def frames(draw: st.DrawFn, least: int = 1) -> pl.DataFrame:
    rows = draw(st.integers(least, 30))
    nanoseconds = sorted(draw(st.lists(st.integers(0, 10**12), min_size=rows, max_size=rows)))
    tokens = st.lists(st.integers(1, 10**6), min_size=rows, max_size=rows)
    return pl.DataFrame(
        {
            "arrival_s": [time / 1e9 for time in nanoseconds],
            "prompt_tokens": draw(tokens),
            "output_tokens": draw(tokens),
            "turn": list(range(rows)),
        }
    )


# A fixed frame


def test_a_column_name_of_another_tool_is_accepted() -> None:
    frame = iq.Workload(three(tbt_slo_s=[0.1, None, 0.2])).frame
    assert frame["itl_slo_s"].to_list() == [0.1, None, 0.2] and "tbt_slo_s" not in frame.columns
    with pytest.raises(iq.TraceError, match="tbt_slo_s and itl_slo_s are the same column"):
        iq.Workload(three(tbt_slo_s=[0.1] * 3, itl_slo_s=[0.1] * 3))


def test_columns_have_one_order_and_type() -> None:
    frame = iq.Workload(
        {
            "class": ["b", "a"],
            "output_tokens": [1.0, 2.0],
            "prompt_tokens": np.array([3, 4], dtype=np.uint64),
            "arrival_s": [0, 1],
            "priority": [-5, 5],
            "patience_s": [None, 2],
        }
    ).frame
    assert frame.schema == {
        "arrival_s": pl.Float64,
        "prompt_tokens": pl.Int32,
        "output_tokens": pl.Int32,
        "class": pl.Enum(["a", "b"]),
        "priority": pl.Int64,
        "patience_s": pl.Float64,
    }
    assert frame.row(0) == (0.0, 3, 1, "b", -5, None)


def test_an_enum_keeps_its_order_of_classes() -> None:
    kind = pl.Enum(["slow", "fast", "unused"])
    frame = iq.Workload(three(**{"class": pl.Series(["fast", "slow", "fast"], dtype=kind)})).frame
    assert frame["class"].dtype == kind


def test_integers_and_floats_may_mix_in_a_list() -> None:
    assert iq.Workload(three(arrival_s=[0, 0.5, 1])).frame["arrival_s"].to_list() == [0.0, 0.5, 1.0]


def test_a_pandas_frame_is_accepted_and_its_nan_is_null() -> None:
    pandas = pytest.importorskip("pandas")
    frame = iq.Workload(
        pandas.DataFrame(three(**{"class": ["x", "y", "x"], "patience_s": [1.0, None, 2.0]}))
    ).frame
    assert frame["patience_s"].to_list() == [1.0, None, 2.0]
    assert frame["class"].to_list() == ["x", "y", "x"]
    with pytest.raises(iq.TraceError, match="row 1: prompt_tokens is null"):
        iq.Workload(pandas.DataFrame(three(prompt_tokens=[1.0, None, 2.0])))


@refused(
    ({"arrival_s": [0.0, math.nan, 2.0]}, "row 1: arrival_s is nan"),
    ({"arrival_s": [math.nan, 1.0, 2.0]}, "row 0: arrival_s is nan"),
    ({"arrival_s": [0.0, None, 2.0]}, "row 1: arrival_s is null"),
    ({"arrival_s": [-0.5, 1.0, 2.0]}, "row 0: arrival_s is -0.5"),
    ({"arrival_s": [0.0, 1.0, math.inf]}, "row 2: arrival_s is inf"),
    ({"arrival_s": [0.0, 1.0, 1e10]}, "row 2: arrival_s is 1"),
    ({"arrival_s": [0.0, 2.0, 1.0]}, "row 2: arrival_s is 1.0, before the 2.0 of row 1"),
    ({"arrival_s": ["0", "1", "2"]}, "arrival_s: must contain seconds as numbers, got String"),
    ({"prompt_tokens": [1, 0, 2]}, "row 1: prompt_tokens is 0, must be at least 1"),
    ({"prompt_tokens": [1, 2, -7]}, "row 2: prompt_tokens is -7"),
    ({"prompt_tokens": [1.0, math.nan, 2.0]}, "row 1: prompt_tokens is nan"),
    ({"prompt_tokens": [1.0, math.inf, 2.0]}, "row 1: prompt_tokens is inf"),
    ({"prompt_tokens": [1.0, 2.5, 3.0]}, "row 1: prompt_tokens is 2.5, must be an integer"),
    ({"prompt_tokens": [1, None, 3]}, "row 1: prompt_tokens is null"),
    ({"prompt_tokens": [1, 2**31, 3]}, "row 1: prompt_tokens is 2147483648"),
    ({"prompt_tokens": [True, True, False]}, "prompt_tokens: must contain integers, got Boolean"),
    ({"prompt_tokens": ["1", "2", "3"]}, "prompt_tokens: must contain integers, got String"),
    ({"output_tokens": [1, 1, 0]}, "row 2: output_tokens is 0"),
    ({"prompt_tokens": [1, LARGEST, 1]}, "row 1: prompt_tokens [+] output_tokens is 2147483649"),
    ({"class": ["a", None, "b"]}, "row 1: class is null"),
    ({"class": [1.5, 2.5, 3.5]}, "class: must contain names, got Float64"),
    ({"priority": [1, None, 2]}, "row 1: priority is null"),
    ({"patience_s": [1.0, -2.0, None]}, "row 1: patience_s is -2.0"),
    ({"patience_s": [1.0, None, math.nan]}, "row 2: patience_s is nan"),
    ({"ttft_slo_s": [math.inf, 1.0, 1.0]}, "row 0: ttft_slo_s is inf"),
    ({"itl_slo_s": [0.1, -0.1, 0.1]}, "row 1: itl_slo_s is -0.1"),
    ({"think_s": [None, -1.0, 2.0]}, "row 1: think_s is -1.0"),
    ({"think_s": [None, 1.0, math.nan]}, "row 2: think_s is nan"),
    ({"turn": [0, -1, 0]}, "row 1: turn is -1"),
    ({"continues": [None, 1, 0]}, "row 1: continues is 1, must be the number of an earlier row"),
    ({"max_output_tokens": [1, 1, None]}, "row 1: output_tokens is 2, must be at most max_output_tokens, 1"),
    ({"prefix_hashes": [1, 2, 3]}, "prefix_hashes: must contain lists of integers, got Int64"),
    ({"prefix_block_tokens": [512, 0, 512]}, "row 1: prefix_block_tokens is 0"),
    ({"session_id": [1.5, 2.5, 3.5]}, "session_id: must contain strings or integers, got Float64"),
    ({"prompt_token": [1, 2, 3]}, "unknown column prompt_token; did you mean prompt_tokens?"),
    ({"arrival_s": [0.0, 1.0]}, "columns differ in length: arrival_s 2, prompt_tokens 3"),
    ({"arrival_s": [0.0, "x", 2.0]}, "arrival_s: cannot be read as a column"),
    error=iq.TraceError,
)
def test_a_wrong_value_is_an_error_with_its_row(columns: dict[str, object]) -> None:
    iq.Workload(three(**columns))


def test_the_longest_request_is_accepted() -> None:
    assert iq.Workload({"prompt_tokens": [LARGEST - 1], "output_tokens": [1]}).frame.row(0) == (
        LARGEST - 1,
        1,
    )


def test_an_error_names_one_wrong_row_of_a_million() -> None:
    arrivals = np.arange(1_000_000) / 10
    arrivals[765_432] = 0.0
    with pytest.raises(iq.TraceError, match=r"row 765432: arrival_s is 0\.0, before the 76543\.1"):
        iq.Workload({"arrival_s": arrivals})


def test_a_workload_cannot_be_changed() -> None:
    work = iq.Workload(three())
    with pytest.raises(AttributeError):
        work._steps = ()  # type: ignore[misc]
    with pytest.raises(TypeError):
        work.metadata["source"] = "x"  # type: ignore[index]


# Transforms


def test_speed_divides_every_arrival() -> None:
    assert iq.Workload(three()).speed(2).frame["arrival_s"].to_list() == [0.0, 0.5, 1.5]


@given(frames(), st.floats(1e-3, 1e3))
def test_speed_is_one_division_each(frame: pl.DataFrame, factor: float) -> None:
    scaled = iq.Workload(frame).speed(factor).frame
    assert scaled["arrival_s"].to_list() == [arrival / factor for arrival in frame["arrival_s"]]
    assert scaled["prompt_tokens"].to_list() == frame["prompt_tokens"].to_list()


@given(frames(least=2), st.floats(1e-3, 1e6))
def test_at_rate_gives_the_mean_rate_and_keeps_the_shape(frame: pl.DataFrame, rate: float) -> None:
    old = frame["arrival_s"].to_numpy()
    if old[0] == old[-1]:
        with pytest.raises(iq.TraceError, match="two different instants"):
            iq.Workload(frame).at_rate(rate)
        return
    new = iq.Workload(frame).at_rate(rate).frame["arrival_s"].to_numpy()
    assert (len(new) - 1) / (new[-1] - new[0]) == pytest.approx(rate, rel=1e-3)
    assert new * old[-1] == pytest.approx(old * new[-1])


def test_a_window_includes_its_start_and_excludes_its_end() -> None:
    cut = iq.Workload(three()).window(1.0, 3.0).frame
    assert cut["arrival_s"].to_list() == [0.0]
    assert cut["prompt_tokens"].to_list() == [20]
    assert iq.Workload(three()).window(0.5).frame["arrival_s"].to_list() == [0.5, 2.5]


@given(frames(), st.floats(0, 1000))
def test_two_windows_contain_all_requests(frame: pl.DataFrame, at: float) -> None:
    work = iq.Workload(frame)
    turns: list[int] = []
    for start, end in ((0.0, at), (at, math.inf)):
        if frame.filter(pl.col("arrival_s").is_between(start, end, closed="left")).height:
            turns += work.window(start, end).frame["turn"].to_list()
    assert turns == frame["turn"].to_list()


def test_head_selects_the_first_requests_at_most_all() -> None:
    assert iq.Workload(three()).head(2).frame["prompt_tokens"].to_list() == [10, 20]
    assert iq.Workload(three()).head(99).frame.height == 3


@given(frames(), st.integers(1, 100), st.integers(0, 2**64 - 1))
def test_a_sample_has_rows_of_the_workload_in_order_of_arrival(
    frame: pl.DataFrame, n: int, seed: int
) -> None:
    work = iq.Workload(frame)
    drawn = work.sample(n, seed).frame
    assert drawn.height == n
    assert set(drawn.rows()) <= set(work.frame.rows())
    assert drawn["arrival_s"].is_sorted()
    assert drawn.equals(work.sample(n, seed).frame)


def test_a_sample_draws_rows_uniformly() -> None:
    rows = iq.Workload({"prompt_tokens": list(range(1, 11))}).sample(100_000, seed=3).frame["prompt_tokens"]
    counts = rows.value_counts()["count"].cast(pl.Int64).to_numpy()
    # A count is binomial with mean 10,000 and standard deviation 95; ten of them are within 5 deviations.
    assert counts.size == 10
    assert np.abs(counts - 10_000).max() < 475


@given(frames(least=2), st.data())
def test_concatenating_the_parts_of_a_split_restores_the_workload(
    frame: pl.DataFrame, data: st.DataObject
) -> None:
    work = iq.Workload(frame)
    first, rest = work.split(data.draw(st.integers(1, frame.height - 1)))
    assert first.frame.height + rest.frame.height == frame.height
    assert first.concat(rest).frame.equals(work.frame)


def test_a_split_by_share() -> None:
    first, rest = iq.Workload({"prompt_tokens": list(range(1, 11))}).split(0.3)
    assert first.frame["prompt_tokens"].to_list() == [1, 2, 3]
    assert rest.frame.height == 7


@given(frames(), frames())
def test_a_merge_has_all_rows_by_arrival_then_workload(first: pl.DataFrame, second: pl.DataFrame) -> None:
    merged = iq.Workload(first).with_classes("a").concat(iq.Workload(second).with_classes("b")).frame
    rows = [*((row[0], 0, row[3]) for row in first.rows()), *((row[0], 1, row[3]) for row in second.rows())]
    selected = merged.select("arrival_s", pl.col("class").replace_strict({"a": 0, "b": 1}), "turn")
    assert selected.rows() == sorted(rows)


def test_a_merge_fills_columns_that_only_some_have() -> None:
    first = iq.Workload(
        {"arrival_s": [0.0, 2.0], "prompt_tokens": [1, 2], "priority": [3, 3], "patience_s": [1.0, 1.0]}
    )
    second = iq.Workload({"arrival_s": [1.0], "prompt_tokens": [9], "session_id": ["s"]})
    frame = first.concat(second).frame
    assert frame["priority"].to_list() == [3, 0, 3]
    assert frame["patience_s"].to_list() == [1.0, None, 1.0]
    assert frame["session_id"].to_list() == [None, "s", None]
    with pytest.raises(iq.TraceError, match="concat: workload 1 has no class"):
        first.with_classes("chat").concat(second)
    with pytest.raises(iq.TraceError, match="concat: workload 1 has no output_tokens"):
        first.with_outputs(5).concat(second)


def test_integer_and_string_sessions_merge_as_strings() -> None:
    first = iq.Workload({"prompt_tokens": [1], "session_id": [7]})
    second = iq.Workload({"prompt_tokens": [1], "session_id": ["x"]})
    assert first.concat(second).frame["session_id"].to_list() == ["7", "x"]


def test_transforms_preserve_continues() -> None:
    work = iq.Workload(
        {"arrival_s": [0.0, 1.0, 2.0, 3.0], "prompt_tokens": [1, 2, 3, 4], "continues": [None, 0, None, 2]}
    )
    assert work.head(2).frame["continues"].to_list() == [None, 0]
    assert work.window(1.0, 9.0).frame["continues"].to_list() == [None, None, 1]
    merged = work.concat(iq.Workload({"arrival_s": [0.5], "prompt_tokens": [9]}), work.speed(2)).frame
    prompts = merged["prompt_tokens"].to_list()
    followed = [
        (prompts[row], None if earlier is None else prompts[earlier])
        for row, earlier in enumerate(merged["continues"])
    ]
    assert sorted(pair for pair in followed if pair[1]) == [(2, 1), (2, 1), (4, 3), (4, 3)]
    with pytest.raises(iq.TraceError, match="sample"):
        work.sample(2, seed=0)


def test_arrivals_outputs_prompts_and_classes_from_values() -> None:
    work = iq.Workload({"prompt_tokens": [5, 6, 7]})
    full = (
        work.with_arrivals([0, 1, 2])
        .with_outputs(np.array([3, 4, 5]))
        .with_prompts(8)
        .with_classes(["a", "b", "a"])
    )
    assert full.frame.rows() == [(0.0, 8, 3, "a"), (1.0, 8, 4, "b"), (2.0, 8, 5, "a")]
    assert full.with_classes("one").frame["class"].to_list() == ["one"] * 3
    assert work.frame.columns == ["prompt_tokens"]


@refused(
    (lambda work: work.at_rate(0), "rate: must be positive"),
    (lambda work: work.at_rate(-1), "rate"),
    (lambda work: work.at_rate(math.inf), "rate: must be finite"),
    (lambda work: work.at_rate(math.nan), "rate: must be finite"),
    (lambda work: work.at_rate("5"), "rate: must be a number"),
    (lambda work: work.at_rate(True), "rate: must be a number"),
    (lambda work: work.at_rate(1e-300), iq.TraceError, "arrival_s"),
    (lambda work: work.head(1).at_rate(1), iq.TraceError, "two different instants"),
    (lambda work: work.speed(0), "factor"),
    (lambda work: work.speed(math.inf), "factor"),
    (lambda work: work.speed(1e-300), iq.TraceError, "arrival_s"),
    (lambda work: work.window(2, 1), "end_s"),
    (lambda work: work.window(math.nan, 1), "start_s"),
    (lambda work: work.window(1.5, 2.5), iq.TraceError, "no request arrives between 1.5 and 2.5 s"),
    (lambda work: work.head(0), "n: must be"),
    (lambda work: work.head(1.5), "n: must be"),
    (lambda work: work.sample(0, seed=1), "n: must be"),
    (lambda work: work.sample(1, seed=-1), "seed: must be"),
    (lambda work: work.split(1.0), "share"),
    (lambda work: work.split(math.nan), "share"),
    (lambda work: work.split(3), iq.TraceError, "leaves one of the parts of 3 requests empty"),
    (lambda work: work.concat([1]), "concat: arguments must be workloads, got "),
    (
        lambda work: work.with_arrivals([0, 1]),
        iq.TraceError,
        "arrival_s: must have 3 values, one per request; got 2",
    ),
    (lambda work: work.with_arrivals([0, 2, 1]), iq.TraceError, "row 2: arrival_s"),
    (lambda work: work.with_arrivals(iq.dist.Fixed(3)), "arrival_s: must be an arrival process"),
    (
        lambda work: work.with_outputs(iq.dist.Poisson(3)),
        "output_tokens: must be a distribution of lengths",
    ),
    (lambda work: work.with_outputs(0), "output_tokens: must be"),
    (lambda work: work.with_outputs([1, 0, 1]), iq.TraceError, "row 1: output_tokens is 0"),
    (lambda work: work.with_outputs(None), "output_tokens: must be a distribution"),
    (lambda work: work.with_outputs(LARGEST), iq.TraceError, "row 0: prompt_tokens [+] output_tokens"),
    (
        lambda work: work.with_classes(["a"]),
        iq.TraceError,
        "class: must have 3 values, one per request; got 1",
    ),
    (lambda work: work.with_classes({"a": 0.5, "b": 0.4}), "shares must add up to 1"),
    (lambda work: work.with_classes({"a": 1.5, "b": -0.5}), "'b'.*negative"),
    (lambda work: work.with_classes({}), "shares must add up to 1"),
)
def test_a_wrong_argument_is_an_error_that_names_it(transform: Callable[[iq.Workload], object]) -> None:
    transform(iq.Workload(three()))


# Synthetic workloads


@pytest.mark.parametrize(
    "work",
    [
        synthetic(),
        synthetic(lengths=iq.dist.Empirical(three()), prompt=None, output=None),
        synthetic().at_rate(7.0).window(1.0, 4.0),
        iq.Workload(three()).with_arrivals(iq.dist.Gamma(1.0, cv=3.0)),
        iq.Workload(three()).with_outputs(iq.dist.Lognormal(50, 20)).with_classes({"a": 0.2, "b": 0.8}),
        iq.Workload(three()).concat(synthetic()),
    ],
    ids=repr,
)
def test_a_draw_depends_on_the_seed_alone(work: iq.Workload) -> None:
    assert work.is_synthetic
    assert work.draw(5).frame.equals(work.draw(5).frame)
    assert not work.draw(5).frame.equals(work.draw(6).frame)
    iq.Workload(work.draw(5).frame)  # a drawn frame is valid
    with pytest.raises(iq.ConfigError, match=r"\.draw\(seed\)"):
        _ = work.frame
    with pytest.raises(iq.ConfigError, match=r"\.draw\(seed\)"):
        work.describe()
    copied = pickle.loads(pickle.dumps(work))
    assert copied.draw(5).frame.equals(work.draw(5).frame)


def test_transforms_of_a_synthetic_workload_equal_those_of_its_draw() -> None:
    drawn = synthetic().draw(9)
    for transform in (
        lambda work: work.at_rate(3.0),
        lambda work: work.speed(3.0),
        lambda work: work.window(2.0, 8.0),
        lambda work: work.head(7),
        lambda work: work.sample(7, seed=1),
        lambda work: work.split(0.5)[1],
        lambda work: work.with_outputs(4),
        lambda work: work.with_classes("chat"),
        lambda work: work.concat(iq.Workload(three())),
    ):
        assert transform(synthetic()).draw(9).frame.equals(transform(drawn).frame)


def test_columns_drawn_separately_equal_those_of_the_whole() -> None:
    whole = synthetic().draw(11).frame
    parts = (
        iq.Workload({"prompt_tokens": [1] * 50})
        .with_prompts(iq.dist.Uniform(1, 100))
        .with_outputs(iq.dist.Geometric(20.0))
    )
    assert parts.with_arrivals(iq.dist.Poisson(2.0)).draw(11).frame.equals(whole)


def test_a_change_of_one_distribution_keeps_other_columns() -> None:
    base, changed = synthetic().draw(2).frame, synthetic(output=iq.dist.Fixed(3)).draw(2).frame
    assert changed.drop("output_tokens").equals(base.drop("output_tokens"))


def test_two_equal_workloads_in_a_merge_draw_different_requests() -> None:
    frame = synthetic(2000).concat(synthetic(2000)).draw(4).frame
    # There would be only 2,000 different arrivals if the second workload repeated the first.
    assert frame["arrival_s"].n_unique() == 4000


def test_a_poisson_process_has_its_rate_and_variation() -> None:
    gaps = np.diff(
        synthetic(40_000, arrivals=iq.dist.Poisson(8.0)).draw(1).frame["arrival_s"].to_numpy(), prepend=0.0
    )
    # The mean of 40,000 exponential gaps and their cv have relative standard deviations of about 1/200.
    assert gaps.mean() == pytest.approx(1 / 8, rel=5 / 200)
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, rel=5 / 200)


def test_classes_are_drawn_by_share_independently_of_lengths() -> None:
    work = iq.Workload({"prompt_tokens": [1] * 40_000}).with_prompts(iq.dist.Uniform(1, 1000))
    frame = work.with_classes({"b": 0.75, "never": 0.0, "a": 0.25}).draw(3).frame
    share = (frame["class"] == "b").mean()
    # Binomial: the standard deviation of the share is 0.0022.
    assert share == pytest.approx(0.75, abs=0.011)
    assert "never" not in frame["class"].to_list()
    means = frame.group_by("class").agg(pl.col("prompt_tokens").mean())["prompt_tokens"]
    # The mean of 10,000 uniform lengths has a standard deviation of 2.9.
    assert means.to_list() == pytest.approx([500.5, 500.5], abs=15)


def test_joint_lengths_are_pairs_unless_drawn_separately() -> None:
    pairs = {"prompt_tokens": [10, 1000], "output_tokens": [500, 1]}
    joint = synthetic(500, lengths=iq.dist.Empirical(pairs), prompt=None, output=None).draw(1).frame
    assert set(joint.select("prompt_tokens", "output_tokens").rows()) == {(10, 500), (1000, 1)}
    whole = synthetic(500, lengths=iq.dist.Empirical(pairs), prompt=None, output=None)
    separate = whole.with_outputs(iq.dist.Empirical(pairs)).draw(1).frame
    lengths = {(10, 500), (10, 1), (1000, 500), (1000, 1)}
    assert set(separate.select("prompt_tokens", "output_tokens").rows()) == lengths
    named = whole.with_classes({"a": 0.5, "b": 0.5}).draw(1).frame
    assert set(named.select("prompt_tokens", "class").rows()) == {
        (10, "a"),
        (10, "b"),
        (1000, "a"),
        (1000, "b"),
    }


@refused(
    (lambda: iq.dist.Poisson(0), "rate"),
    (lambda: iq.dist.Poisson(-1.0), "rate"),
    (lambda: iq.dist.Poisson(math.inf), "rate"),
    (lambda: iq.dist.Poisson(math.nan), "rate"),
    (lambda: iq.dist.Poisson("fast"), "rate"),
    (lambda: iq.dist.Gamma(1.0, cv=0.0), "cv"),
    (lambda: iq.dist.Gamma(1.0, cv=math.inf), "cv"),
    (lambda: iq.dist.Deterministic(0.0), "rate"),
    (lambda: iq.dist.Fixed(0), "tokens"),
    (lambda: iq.dist.Fixed(2.5), "tokens"),
    (lambda: iq.dist.Fixed(2**31), "tokens"),
    (lambda: iq.dist.Uniform(0, 5), "low"),
    (lambda: iq.dist.Uniform(6, 5), "high|low"),
    (lambda: iq.dist.LogUniform(6, 5), "high|low"),
    (lambda: iq.dist.Lognormal(mean=10, median=20), "mean|median"),
    (lambda: iq.dist.Lognormal(mean=10, median=0), "median"),
    (lambda: iq.dist.Lognormal(mean=10, median=5, cap=0), "cap"),
    (lambda: iq.dist.Geometric(0.5), "mean"),
    (lambda: iq.dist.Geometric(math.nan), "mean"),
    (lambda: iq.dist.Geometric(5.0, cap=1.5), "cap"),
    (
        lambda: iq.dist.Empirical({"prompt_tokens": [1]}),
        "Empirical.frame: requires the columns .*; output_tokens is missing",
    ),
    (lambda: arriving(0, 1, 1, 1), "requests"),
    (
        lambda: iq.dist.Empirical({"prompt_tokens": [1, 2], "output_tokens": [3, 0]}),
        iq.TraceError,
        "row 1: output_tokens is 0",
    ),
    (lambda: iq.Workload({name: [] for name in three()}), iq.TraceError, "no rows"),
    (lambda: iq.Workload([1, 2, 3]), "must be a frame of polars, pandas or pyarrow"),
    (lambda: synthetic(arrivals=iq.dist.Fixed(1)), "arrivals"),
    (lambda: synthetic(output=None), "output"),
    (lambda: synthetic(prompt=iq.dist.Poisson(1)), "prompt"),
    (lambda: synthetic(lengths=iq.dist.Empirical(three())), "lengths"),
    (lambda: synthetic().draw(-1), "seed"),
    (lambda: synthetic().draw(2**64), "seed"),
)
def test_a_wrong_workload_or_distribution_names_its_field(make: Callable[[], object]) -> None:
    make()


# Required columns


@refused(
    ("arrival_s", "no arrival_s: use .with_arrivals"),
    ("prompt_tokens", "no prompt_tokens: use .with_prompts"),
    ("output_tokens", "no output_tokens: use .with_outputs"),
    error=iq.TraceError,
)
def test_an_error_names_a_missing_column_and_the_transform_that_fills_it(column: str) -> None:
    iq.Workload({name: values for name, values in three().items() if name != column}).ready()


def test_ready_checks_the_required_columns() -> None:
    jobs = iq.Workload({"arrival_s": [0.0, 1.0]})
    assert jobs.ready(needs=("arrival_s",)).columns == ["arrival_s"]
    with pytest.raises(iq.TraceError, match=r"no prompt_tokens: use \.with_prompts"):
        jobs.ready()
    with pytest.raises(iq.TraceError, match=r"no class$"):
        jobs.ready(needs=("arrival_s", "class"))


def test_ready_accepts_think_times() -> None:
    assert iq.Workload(three(think_s=[None, 1.0, None])).ready()["think_s"].to_list() == [None, 1.0, None]


# Descriptions


def test_describe_by_hand() -> None:
    table = iq.Workload(three()).describe()
    prompt, _, gap, rate = table.rows(named=True)
    deviation = math.sqrt(200 / 3)
    assert (prompt["count"], prompt["mean"], prompt["p50"], prompt["p90"]) == (3, 20.0, 20.0, 28.0)
    assert prompt["cv"] == pytest.approx(deviation / 20)
    assert (gap["column"], gap["count"], gap["mean"], gap["min"], gap["max"]) == ("gap_s", 2, 1.5, 1.0, 2.0)
    assert (rate["column"], rate["mean"]) == ("rate_per_s", 2 / 3)


def test_the_description_of_a_synthetic_workload_is_complete() -> None:
    work = (
        synthetic(lengths=iq.dist.Empirical(three()), prompt=None, output=None)
        .at_rate(4)
        .with_classes({"a": 1.0})
    )
    described = json.loads(json.dumps(work.to_json(), allow_nan=False))
    assert described == {
        "requests": 50,
        "arrivals": {"kind": "Poisson", "rate": 2.0},
        "lengths": {"kind": "Empirical", "prompt_tokens": [10, 20, 30], "output_tokens": [1, 2, 3]},
        "transforms": [{"kind": "at_rate", "rate": 4.0}, {"kind": "with_classes", "classes": {"a": 1.0}}],
    }
    every = synthetic().window(1.0).concat(iq.Workload(three())).with_arrivals(list(range(53)))
    assert json.dumps(every.to_json(), allow_nan=False)


def test_the_hash_of_a_frame_changes_with_any_value() -> None:
    base = three(patience_s=[None, 1.0, 0.0], session_id=["a", "b", None])
    hashes = {iq.Workload(base).sha256()}
    assert iq.Workload(pl.DataFrame(base)).sha256() in hashes
    for change in (
        {"arrival_s": [0.0, 1.0, 3.0000001]},
        {"prompt_tokens": [10, 20, 31]},
        {"patience_s": [0.0, 1.0, 0.0]},
        {"session_id": ["a", "b", ""]},
    ):
        hashes.add(iq.Workload(base | change).sha256())
    assert len(hashes) == 5


def test_metadata_lists_transforms() -> None:
    work = iq.Workload(three()).at_rate(5).with_arrivals(iq.dist.Poisson(1.0))
    assert work.draw(3).metadata == {
        "seed": 3,
        "changes": ["at_rate(rate=5.0)", "with_arrivals(arrivals=Poisson(rate=1.0))"],
    }
    assert "Poisson(rate=2.0)" in synthetic().draw(1).metadata["drawn_from"]
