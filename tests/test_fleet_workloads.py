"""Statistics of generated workloads: bursts, mixes, sessions and measured clients.

Seeds are fixed. Limits follow from the distribution at a stated significance level.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import inferq as iq
from inferq.description import read
from inferq.scenario import Scenario
from inferq.workload import generated
from inferq.workload.distributions import (
    ARRIVAL_PROCESSES,
    DURATION_DISTRIBUTIONS,
    LENGTH_DISTRIBUTIONS,
    ArrivalProcess,
    DurationDistribution,
    LengthDistribution,
)

from .refusals import refused

SHORT = {"prompt": iq.dist.Fixed(5), "output": iq.dist.Fixed(2)}
ARRIVALS: list[ArrivalProcess] = [
    iq.dist.Poisson(3.0),
    iq.dist.Gamma(3.0, cv=2.5),
    iq.dist.Weibull(3.0, shape=0.6),
    iq.dist.Deterministic(3.0),
    iq.dist.OnOff(10.0, 0.5, mean_on_s=2.0, mean_off_s=7.0),
    iq.dist.TimeVarying([0, 1.5, 4], [3, 0, 8.5], period_s=6),
]


def synthetic(requests: int, arrivals: ArrivalProcess, **parts: Any) -> iq.Workload:
    return iq.Workload.synthetic(requests=requests, arrivals=arrivals, **(parts or SHORT))


def arrivals(process: ArrivalProcess, requests: int, seed: int = 1) -> Any:
    return synthetic(requests, process).draw(seed).frame["arrival_s"].to_numpy()


def kolmogorov(sample: Any, cdf: Callable[[Any], Any]) -> float:
    """Return √n times the largest distance between the sample's distribution and `cdf`."""
    values, n = cdf(np.sort(sample)), len(sample)
    above, below = np.arange(1, n + 1) / n - values, values - np.arange(n) / n
    return float(math.sqrt(n) * max(above.max(), below.max()))


LEVEL = 2.69
"""P(√n·D > 2.69) ≈ 2·exp(−2·2.69²) = 1e-6 (Kolmogorov): a correct distribution fails for one seed in 10⁶."""


# Arrivals


@pytest.mark.parametrize("shape", [0.4, 0.8, 1.0, 3.5])
def test_weibull_gaps_have_their_distribution(shape: float) -> None:
    gaps = np.diff(arrivals(iq.dist.Weibull(0.01, shape), 20_000), prepend=0.0)
    scale = 100 / math.gamma(1 + 1 / shape)
    # Rounding to nanoseconds changes the distribution by at most (1e-9 / scale)^shape.
    rounded = math.sqrt(20_000) * (1e-9 / scale) ** shape
    assert rounded < 0.01
    assert kolmogorov(gaps, lambda x: 1 - np.exp(-((x / scale) ** shape))) < LEVEL + rounded


def test_weibull_of_shape_1_and_one_piece_are_poisson() -> None:
    plain = arrivals(iq.dist.Poisson(2.5), 5000)
    assert (arrivals(iq.dist.Weibull(2.5, shape=1), 5000) == plain).all()
    assert (arrivals(iq.dist.TimeVarying([0], [2.5]), 5000) == plain).all()


def test_the_first_phase_is_drawn_by_its_share() -> None:
    # The first arrival is early if the first phase is on, and late if it is off.
    on_off = iq.dist.OnOff(1e6, 0.0, mean_on_s=1.0, mean_off_s=3.0)
    first = np.array([arrivals(on_off, 1, seed)[0] for seed in range(4000)])
    share = float((first < 1e-4).mean())
    # A phase that ends within 0.1 ms is misclassified in 1 of 3000 draws.
    assert abs(share - 0.25) < 4.9 * math.sqrt(0.25 * 0.75 / 4000) + 1e-3  # level 1e-6


def test_an_on_off_process_has_its_mean_rate() -> None:
    on, off, rate = 2.0, 6.0, 20.0
    times = arrivals(iq.dist.OnOff(rate, 0.0, mean_on_s=on, mean_off_s=off), 200_000)
    # The variance of the count is v·t: a Poisson part and one of the phases (Fischer and Meier-Hellstern).
    mean = rate * on / (on + off)
    variance_per_s = mean + 2 * (rate * on * off) ** 2 / (on + off) ** 3
    t = float(times[-1])
    assert abs(200_000 - mean * t) < 4.9 * math.sqrt(variance_per_s * t)


def test_a_time_varying_process_has_the_rate_of_each_piece() -> None:
    day = iq.dist.TimeVarying([0, 28_800, 72_000], [0.5, 6, 0], period_s=86_400)
    times = arrivals(day, 500_000) % 86_400
    days = int(arrivals(day, 500_000)[-1] // 86_400)
    full_days = times[: np.searchsorted(arrivals(day, 500_000), days * 86_400.0)]
    for start, end, rate in [(0, 28_800, 0.5), (28_800, 72_000, 6.0), (72_000, 86_400, 0.0)]:
        expected = rate * (end - start) * days
        count = int(((full_days >= start) & (full_days < end)).sum())
        assert abs(count - expected) <= 4.9 * math.sqrt(expected)  # Poisson counts, level 1e-6


@pytest.mark.parametrize("process", ARRIVALS, ids=lambda process: type(process).__name__)
@pytest.mark.parametrize("requests", [1, 4, 255, 257])
def test_the_first_requests_do_not_depend_on_the_number(process: ArrivalProcess, requests: int) -> None:
    assert (arrivals(process, requests) == arrivals(process, 1000)[:requests]).all()
    assert (np.diff(arrivals(process, 1000)) >= 0).all()


@pytest.mark.parametrize(
    ("fast", "slow"),
    [
        (iq.dist.Weibull(6, 0.7), iq.dist.Weibull(3, 0.7)),
        (iq.dist.OnOff(9, 1, mean_on_s=2, mean_off_s=3), iq.dist.OnOff(4.5, 0.5, mean_on_s=4, mean_off_s=6)),
        (iq.dist.TimeVarying([0, 1], [3, 8], 6), iq.dist.TimeVarying([0, 2], [1.5, 4], 12)),
        (iq.dist.TimeVarying([0, 1], [0, 8]), iq.dist.TimeVarying([0, 2], [0, 4])),
    ],
)
def test_half_the_rate_doubles_every_arrival(fast: ArrivalProcess, slow: ArrivalProcess) -> None:
    assert np.abs(2 * arrivals(fast, 2000) - arrivals(slow, 2000)).max() < 1.5e-9


def test_phases_do_not_depend_on_rates() -> None:
    slow, fast = (
        arrivals(iq.dist.OnOff(rate, 0.0, mean_on_s=50, mean_off_s=1e6), requests)
        for rate, requests in ((10.0, 20_000), (20.0, 40_000))
    )
    gaps_at = [set(np.round(times[:-1][np.diff(times) > 1e3], -1)) for times in (slow, fast)]
    assert len(gaps_at[0] & gaps_at[1]) > 0.5 * len(gaps_at[0])


# Lengths and durations


@pytest.mark.parametrize("mean", [4.0, 32.0, 512.0, 1e6])
def test_poisson_lengths_have_mean_and_variance(mean: float) -> None:
    n = 100_000
    drawn = iq.dist.PoissonLength(mean).draw_column(n, seed=3).astype(np.float64)
    assert abs(drawn.mean() - mean) < 4.9 * math.sqrt(mean / n) + math.exp(-mean)
    # E(X − m)⁴ = m + 3 m²; a draw of 0 becomes 1.
    deviation = math.sqrt((mean + 2 * mean**2) / n)
    assert abs(((drawn - mean) ** 2).mean() - mean) < 4.9 * deviation + 2 * mean * math.exp(-mean)


def test_durations_have_their_distribution_rounded_to_nanoseconds() -> None:
    drawn = iq.dist.Exponential(mean_s=3.0).draw(100_000, seed=5, stream=7)
    assert drawn.dtype == np.float64
    assert kolmogorov(drawn, lambda x: 1 - np.exp(-x / 3.0)) < LEVEL
    assert (drawn == np.rint(drawn * 1e9) / 1e9).all()


@pytest.mark.parametrize(
    "distribution", [iq.dist.Exponential(2.0), iq.dist.Uniform(1, 10**6), iq.dist.PoissonLength(50.0)]
)
def test_columns_depend_on_seed_stream_and_place_alone(distribution: Any) -> None:
    is_duration = isinstance(distribution, DurationDistribution)
    draw = distribution.draw if is_duration else distribution.draw_column
    column = draw(1000, 8, 3)
    assert (draw(10, 8, 3) == column[:10]).all()
    assert (draw(1000, 8, 3) == column).all()
    for other in (draw(1000, 8, 4), draw(1000, 9, 3), draw(1000, 8)):
        # Independent columns are uncorrelated: level 1e-6.
        assert abs(np.corrcoef(column, other)[0, 1]) < 4.9 / math.sqrt(1000)
    assert draw(0, 1, 0).size == 0


# Jobs


def test_a_synthetic_workload_without_lengths_is_jobs() -> None:
    jobs = iq.Workload.synthetic(requests=3, arrivals=iq.dist.Poisson(1.0))
    assert jobs.draw(2).frame.columns == ["arrival_s"]
    assert jobs.to_json() == {"requests": 3, "arrivals": {"kind": "Poisson", "rate": 1.0}}
    assert repr(jobs) == "Workload.synthetic(requests=3, arrivals=Poisson(rate=1.0))"
    assert (
        jobs.draw(2).frame["arrival_s"] == synthetic(3, iq.dist.Poisson(1.0)).draw(2).frame["arrival_s"]
    ).all()
    with pytest.raises(iq.TraceError, match="no prompt_tokens"):
        jobs.ready()


# Mixes


def chat(rate: float = 8.0, requests: int = 400) -> iq.Workload:
    return synthetic(
        requests, iq.dist.Poisson(rate), prompt=iq.dist.Uniform(1, 999), output=iq.dist.Geometric(20.0)
    )


def code(rate: float = 2.0, requests: int = 100) -> iq.Workload:
    return synthetic(
        requests, iq.dist.Gamma(rate, cv=2.0), prompt=iq.dist.Uniform(1000, 9999), output=iq.dist.Fixed(7)
    )


def only(mixed: iq.Workload, name: str, seed: int = 6) -> pl.DataFrame:
    frame = mixed.draw(seed).frame
    return frame.filter(pl.col("class") == name).drop("class")


def test_a_mix_merges_its_parts_by_arrival() -> None:
    frame = iq.Workload.mix({"chat": chat(), "code": code()}).draw(6).frame
    assert frame.height == 500 and frame["arrival_s"].is_sorted()
    assert frame["class"].dtype == pl.Enum(["chat", "code"])
    assert frame.filter(pl.col("class") == "code")["prompt_tokens"].min() >= 1000
    assert frame["class"].value_counts().sort("class")["count"].to_list() == [400, 100]


def test_a_class_does_not_depend_on_other_classes() -> None:
    alone = only(iq.Workload.mix({"chat": chat()}), "chat")
    for others in ({"code": code()}, {"code": code(9.0)}, {"a": chat(), "z": code()}):
        assert only(iq.Workload.mix({**others, "chat": chat()}), "chat").equals(alone)
    twice = iq.Workload.mix({"one": chat(), "two": chat()})
    assert not only(twice, "one").equals(only(twice, "two"))


def test_a_total_selects_the_first_requests_of_the_streams() -> None:
    parts = {"chat": chat(requests=1), "code": code(requests=1)}
    long = iq.Workload.mix({"chat": chat(requests=4000), "code": code(requests=4000)}).draw(3).frame
    for requests in (1, 2, 37, 1000):
        mixed = iq.Workload.mix(parts, requests=requests).draw(3).frame
        assert mixed.equals(long.head(requests))


def test_a_mix_of_a_rare_and_a_frequent_class() -> None:
    mixed = iq.Workload.mix({"frequent": chat(1e4), "rare": chat(1e-3)}, requests=2000)
    assert only(mixed, "frequent").height == 2000
    superposed = iq.Workload.mix({"a": chat(30.0), "b": chat(10.0)}, requests=20_000).draw(1).frame
    # The superposition is Poisson, and a request is of the first class with probability 3/4: level 1e-6.
    gaps = superposed["arrival_s"].diff().drop_nulls().to_numpy()
    assert kolmogorov(gaps, lambda x: 1 - np.exp(-40.0 * x)) < LEVEL
    share = (superposed["class"] == "a").mean()
    assert share is not None and abs(share - 0.75) < 4.9 * math.sqrt(0.75 * 0.25 / 20_000)


def test_fixed_parts_are_mixed_immediately() -> None:
    plain = iq.Workload({"arrival_s": [0, 2], "prompt_tokens": [1, 2], "output_tokens": [1, 1]})
    labeled = iq.Workload(
        {"arrival_s": [0, 1], "prompt_tokens": [3, 4], "output_tokens": [1, 1], "class": ["x", "y"]}
    )
    mixed = iq.Workload.mix({"b": plain, "a": labeled})
    assert not mixed.is_synthetic
    assert mixed.frame.select("prompt_tokens", "class").rows() == [(1, "b"), (3, "a"), (4, "a"), (2, "b")]
    assert iq.Workload.mix({"b": plain, "a": labeled}, requests=2).frame["prompt_tokens"].to_list() == [1, 3]
    with pytest.raises(iq.TraceError, match="requests is 5, must be at most 4"):
        iq.Workload.mix({"b": plain, "a": labeled}, requests=5)
    mixed_frame = iq.Workload.mix({"fixed": plain, "drawn": chat(1.0)}, requests=50).draw(1).frame
    assert mixed_frame.height == 50 and (mixed_frame["class"] == "fixed").sum() == 2


def test_sessions_of_two_parts_stay_separate() -> None:
    sessions = iq.Workload.sessions(
        sessions=3, arrivals=iq.dist.Poisson(1), turns=2, prompt=10, output=5, think=1.0
    )
    frame = iq.Workload.mix({"a": sessions, "b": sessions, "c": chat()}).draw(1).frame
    assert set(frame["session_id"].drop_nulls()) == {f"{part}/{k}" for part in "ab" for k in range(3)}
    assert frame.filter(pl.col("class") == "c")["think_s"].null_count() == 400


@refused(
    (lambda: iq.Workload.mix({}), "parts: must be a mapping of class names to workloads"),
    (lambda: iq.Workload.mix([chat()]), "parts: must be a mapping of class names to workloads"),  # type: ignore[arg-type]
    (lambda: iq.Workload.mix({"a": 5}), r"parts\['a'\]: must be a Workload"),  # type: ignore[dict-item]
    (lambda: iq.Workload.mix({1: chat()}), "parts: class names must be strings, got 1"),  # type: ignore[dict-item]
    (lambda: iq.Workload.mix({"a": chat()}, requests=0), "requests"),
    (
        lambda: iq.Workload.synthetic(requests=1, arrivals=iq.dist.Poisson(1), prompt=iq.dist.Fixed(1)),
        "output",
    ),
    (lambda: iq.dist.Weibull(1, 0.01), "shape"),
    (lambda: iq.dist.Weibull(0, 1), "rate"),
    (lambda: iq.dist.OnOff(0, mean_on_s=1, mean_off_s=1), "on_rate"),
    (lambda: iq.dist.OnOff(1, mean_on_s=0, mean_off_s=1), "mean_on_s"),
    (lambda: iq.dist.TimeVarying([0, 5], [1, 0]), "rates: must be positive"),
    (lambda: iq.dist.TimeVarying([0, 5], [0, 0], 9), "rates: must be positive"),
    (lambda: iq.dist.TimeVarying([1], [1]), "times_s: must begin with 0"),
    (lambda: iq.dist.TimeVarying([0, 5, 5], [1, 1, 1]), r"times_s\[2\]"),
    (lambda: iq.dist.TimeVarying([0, 5], [1, -1]), r"rates\[1\]"),
    (lambda: iq.dist.TimeVarying([0, 5], [1, 1], 5), "period_s"),
    (lambda: iq.dist.TimeVarying(5, [1]), "times_s: must be a list of finite numbers"),  # type: ignore[arg-type]
    (lambda: iq.dist.PoissonLength(0), "mean"),
    (lambda: iq.dist.PoissonLength(2e6), "mean"),
    (lambda: iq.dist.PoissonLength(2, cap=0), "cap"),
    (lambda: iq.dist.Exponential(0), "mean_s"),
    (lambda: iq.dist.Exponential(math.inf), "mean_s"),
    (lambda: iq.dist.Empirical({"prompt_tokens": [1], "output_tokens": [1]}).draw_column(1, 1), "Empirical"),
    (lambda: chat().with_patience(-1), "patience: must be from 0"),
    (lambda: chat().with_patience(math.nan), "patience: must be finite"),
    (lambda: chat().with_patience("long"), "patience: must be seconds"),
    (lambda: chat().with_think(iq.dist.Fixed(3)), "think: must be seconds"),  # type: ignore[arg-type]
)
def test_a_wrong_argument_is_named(make: Callable[[], object]) -> None:
    make()


def test_a_part_without_arrivals_or_lengths_is_named() -> None:
    bare = iq.Workload({"prompt_tokens": [1]})
    with pytest.raises(iq.TraceError, match="part 'b' has no arrival_s"):
        iq.Workload.mix({"a": chat(), "b": bare}).draw()
    jobs = iq.Workload.synthetic(requests=1, arrivals=iq.dist.Poisson(1))
    with pytest.raises(
        iq.TraceError, match="mix: part 'b' has no prompt_tokens, which must be in all or none"
    ):
        iq.Workload.mix({"a": chat(), "b": jobs}).draw()


# Sessions


def conversations(**parts: Any) -> iq.Workload:
    defaults: dict[str, Any] = {
        "sessions": 60,
        "arrivals": iq.dist.Poisson(2.0),
        "turns": iq.dist.Geometric(3.0),
        "prompt": iq.dist.Uniform(1, 50),
        "output": iq.dist.Geometric(20.0),
        "think": iq.dist.Exponential(4.0),
    }
    return iq.Workload.sessions(**(defaults | parts))


@given(
    seed=st.integers(0, 2**64 - 1),
    grows=st.booleans(),
    think=st.sampled_from([0.0, 0.3, iq.dist.Exponential(2.0)]),
)
@settings(max_examples=25)
def test_sessions_are_sorted_by_earliest_arrival(seed: int, grows: bool, think: Any) -> None:
    frame = conversations(grows=grows, think=think).draw(seed).frame
    keys = frame.select("arrival_s", "session_id", "turn").rows()
    assert keys == sorted(keys)
    iq.Workload(frame)
    starts = arrivals(iq.dist.Poisson(2.0), 60, seed)
    for (session,), rows in frame.sort("session_id", "turn").group_by(["session_id"], maintain_order=True):
        assert rows["turn"].to_list() == list(range(rows.height))
        think_ns = np.rint(rows["think_s"].fill_null(0.0).to_numpy() * 1e9).astype(np.int64)
        nominal = np.rint(starts[session] * 1e9).astype(np.int64) + np.cumsum(think_ns)  # type: ignore[index]
        assert (rows["arrival_s"].to_numpy() == nominal / 1e9).all()
        assert rows["think_s"].is_null().to_list() == [True] + [False] * (rows.height - 1)
        if grows and rows.height > 1:
            added = (
                rows["prompt_tokens"].to_numpy()[1:]
                - (rows["prompt_tokens"] + rows["output_tokens"]).to_numpy()[:-1]
            )
            assert ((added >= 1) & (added <= 50)).all()


def test_sessions_do_not_depend_on_other_sessions() -> None:
    few, many = conversations(sessions=5).draw(9).frame, conversations(sessions=80).draw(9).frame
    assert many.filter(pl.col("session_id") < 5).equals(few)
    other = conversations(sessions=5, turns=30).draw(9).frame
    assert (
        other.join(few, on=["session_id", "turn"], how="semi")
        .sort("session_id", "turn")
        .equals(few.sort("session_id", "turn"))
    )


def test_numbers_are_fixed_distributions() -> None:
    drawn = conversations(turns=iq.dist.Fixed(3), prompt=iq.dist.Fixed(4), output=iq.dist.Fixed(5), think=2)
    assert conversations(turns=3, prompt=4, output=5, think=2.0).draw(1).frame.equals(drawn.draw(1).frame)
    assert drawn.to_json()["think"] == 2.0


def test_a_conversation_beyond_max_context_is_truncated() -> None:
    short = conversations(sessions=1, turns=4, prompt=10, output=20, think=1, max_context=75)
    assert short.draw().frame["prompt_tokens"].to_list() == [10, 40, 55, 55]
    with pytest.raises(
        iq.ConfigError, match="max_context: is 25 tokens, less than the prompt and answer of turn 0"
    ):
        conversations(prompt=10, output=20, max_context=25).draw()
    with pytest.raises(iq.ConfigError, match="max_context: must be set"):
        conversations(turns=4, prompt=2**30, output=1).draw()


@refused(
    ({"sessions": 0}, "sessions"),
    ({"arrivals": 3}, "arrivals"),
    ({"turns": 0}, "turns"),
    ({"turns": "many"}, "turns"),
    ({"prompt": iq.dist.Empirical({"prompt_tokens": [1], "output_tokens": [1]})}, "prompt"),
    ({"output": None}, "output"),
    ({"think": -1}, "think"),
    ({"think": None}, "think"),
    ({"grows": 1}, "grows"),
    ({"max_context": 1}, "max_context"),
    ({"max_context": 99, "grows": False}, "max_context: requires grows=True"),
    pattern="^{}",
)
def test_wrong_sessions_are_named(parts: dict[str, Any]) -> None:
    conversations(**parts)


# Think times and patience


def conversation() -> iq.Workload:
    return iq.Workload(
        {
            "arrival_s": [0.0, 1.0, 2.0, 3.0, 4.0],
            "prompt_tokens": [5] * 5,
            "output_tokens": [5] * 5,
            "session_id": ["a", "b", "a", None, "a"],
        }
    )


def test_think_times_are_for_all_but_first_turns() -> None:
    thinking = conversation().with_think(1.5)
    assert thinking.frame["think_s"].to_list() == [None, None, 1.5, None, 1.5]
    assert thinking.open_loop().frame.equals(conversation().frame)
    assert conversation().open_loop().frame.equals(conversation().frame)
    drawn = conversation().with_think(iq.dist.Exponential(2.0))
    assert drawn.is_synthetic and drawn.draw(4).frame["think_s"].is_null().to_list() == [
        True,
        True,
        False,
        True,
        False,
    ]
    assert drawn.open_loop().draw(4).frame.equals(conversation().frame)
    with pytest.raises(iq.TraceError, match="with_think: requires session_id"):
        iq.Workload({"arrival_s": [0]}).with_think(1)


def test_patience_for_all_for_each_and_by_a_distribution() -> None:
    work = conversation()
    assert work.with_patience(2).frame["patience_s"].to_list() == [2.0] * 5
    assert work.with_patience([1, None, 2, 3, 0]).frame["patience_s"].to_list() == [1.0, None, 2.0, 3.0, 0.0]
    with pytest.raises(iq.TraceError, match="row 1: patience_s is -1"):
        work.with_patience([1, -1, 2, 3, 0])
    with pytest.raises(iq.TraceError, match="patience_s: must have 5 values, one per request; got 2"):
        work.with_patience([1, 2])
    many = (
        synthetic(50_000, iq.dist.Poisson(1.0))
        .with_patience(iq.dist.Exponential(30.0))
        .draw(2)
        .frame["patience_s"]
    )
    assert kolmogorov(many.to_numpy(), lambda x: 1 - np.exp(-x / 30.0)) < LEVEL
    thinking = (
        work.with_think(iq.dist.Exponential(30.0)).with_patience(iq.dist.Exponential(30.0)).draw(2).frame
    )
    assert thinking["think_s"][2] != thinking["patience_s"][2]


# ServeGen


def test_the_sample_of_servegen_has_its_rates_and_lengths(samples: Path) -> None:
    work = iq.read_trace(samples / "servegen", rate_factor=200)
    metadata = work.metadata
    # 200 · 600 s · (0.9 + 0.7 + 0.2)/s from clients with lengths, 200 · 600 s · 0.8/s from the one without.
    assert metadata["format"] == "servegen"
    assert (metadata["clients"], metadata["expected_requests"]) == (3, 216_000.0)
    assert metadata["clients_left_out"] == {"no_lengths": {"chunk-3": 96_000.0}}
    assert metadata["windows_with_borrowed_lengths"] == {"chunk-0": 1}
    frame = work.draw(1).frame
    assert frame.columns == ["arrival_s", "prompt_tokens", "output_tokens", "class"]
    poisson = frame.filter(pl.col("class") == "chunk-0")["arrival_s"]  # gamma gaps of shape 1
    assert abs(poisson.len() - 108_000) < 4.9 * math.sqrt(108_000)  # level 1e-6
    assert kolmogorov(poisson.to_numpy(), lambda x: x / 1800) < LEVEL
    assert poisson.max() < 1800
    weibull = frame.filter(pl.col("class") == "chunk-1")["arrival_s"].to_numpy()
    assert weibull.min() >= 600
    last = np.diff(weibull[weibull > 1800]) * 80.0  # rate 0.4 · 200, shape 0.5: cv² = Γ(5) / Γ(3)² − 1 = 5
    assert kolmogorov(last, lambda x: 1 - np.exp(-np.sqrt(2 * x))) < LEVEL
    images = frame.filter(pl.col("class") == "chunk-2")
    assert images.filter(pl.col("arrival_s").is_between(600, 1799.9)).height == 0
    lengths = json.loads((samples / "servegen" / "chunk-2-dataset.json").read_text())["0"]["text_tokens"]
    texts = {int(pair.split(":")[0]) for pair in lengths.strip("{}").split(",")}
    early = set(images.filter(pl.col("arrival_s") < 600)["prompt_tokens"])
    assert early == {text + images for text in texts for images in (256, 1024, 512, 1280, 2048)}


def test_a_range_of_servegen_starts_at_0(samples: Path) -> None:
    part = iq.read_trace(samples / "servegen", clients=["chunk-1"], start_s=900, end_s=1500, rate_factor=100)
    assert part.metadata["expected_requests"] == 100 * (300 * 0.1 + 300 * 0.2)
    frame = part.draw(3).frame
    assert set(frame["class"]) == {"chunk-1"} and frame["arrival_s"].max() < 600
    whole = iq.read_trace(samples / "servegen", rate_factor=20)
    alone = iq.read_trace(samples / "servegen", clients=["chunk-2"], rate_factor=20).draw(5).frame
    selected = whole.draw(5).frame.filter(pl.col("class") == "chunk-2")
    assert selected.drop("class").equals(alone.drop("class"))
    assert json.loads(json.dumps(whole.to_json()))["format"] == "servegen"
    assert whole.draw(5).frame.equals(iq.read_trace(samples / "servegen", rate_factor=20).draw(5).frame)


def test_published_clients_have_their_expected_counts(shared: Path) -> None:
    folder = shared / "traces/raw/servegen/data/multimodal/mm-image"
    work = iq.read_trace(folder, rate_factor=5)
    rows = (folder / "chunk-5-trace.csv").read_text().splitlines()
    expected = 5 * 600 * math.fsum(float(row.split(",")[1]) for row in rows)
    assert work.metadata["expected_requests"] == pytest.approx(expected)
    # The coefficient of variation of gaps is at most about 1.5, as published: level below 1e-6.
    assert abs(work.draw(1).frame.height - expected) < 4.9 * 2 * math.sqrt(expected)
    other = shared / "traces/raw/servegen/data/reason/deepseek-r1"
    assert iq.read_trace(other).metadata["columns_left_out"] == ["reason_ratio"]
    with pytest.raises(iq.TraceError, match="use one of its folders language/m-large"):
        iq.read_trace(shared / "traces/raw/servegen/data")


@pytest.fixture
def client(tmp_path: Path) -> Callable[[str, str], Path]:
    def write(trace: str, lengths: str) -> Path:
        (tmp_path / "one-trace.csv").write_text(trace)
        (tmp_path / "one-dataset.json").write_text(lengths)
        return tmp_path

    return write


TRACE = "0,1.0,1.0,Gamma,1.0,1.0\n600,0,0,,0,0\n"
LENGTHS = '{"0": {"input_tokens": "{5: 1.0}", "output_tokens": "{0: 0.5, 7: 0.5}"}}'


def test_outputs_of_0_are_left_out_and_counted(client: Callable[[str, str], Path]) -> None:
    work = iq.read_trace(client(TRACE, LENGTHS))
    assert set(work.draw(1).frame.select("prompt_tokens", "output_tokens").rows()) == {(5, 7)}
    assert work.metadata["zero_outputs_left_out"] == {"one": 0.5}


@refused(
    ("", LENGTHS, {}, "one-trace.csv: is empty"),
    ("0,1,1,Gamma,1\n", LENGTHS, {}, "row 0: has 5 fields"),
    ("0,1,1,Gamma,1,1\nx,1,1,Gamma,1,1\n", LENGTHS, {}, "row 1: start is 'x'"),
    ("0,-1,1,Gamma,1,1\n", LENGTHS, {}, "row 0: rate is '-1'"),
    ("0,nan,1,Gamma,1,1\n", LENGTHS, {}, "row 0: rate is 'nan'"),
    ("0,1,1,Normal,1,1\n", LENGTHS, {}, "row 0: has a rate, so it must have the family"),
    (
        "0,1,1,Gamma,1,1\n0,1,1,Gamma,1,1\n",
        LENGTHS,
        {},
        "row 1: start is 0.0, must be after the previous start, 0.0",
    ),
    (TRACE, "[]", {}, "must contain an object for each start"),
    (TRACE, "{", {}, "is not JSON"),
    (TRACE, '{"x": {}}', {}, "window x: the name of a window must be its start"),
    (TRACE, '{"0": {"input_tokens": "5", "output_tokens": "{}"}}', {}, "input_tokens must be a histogram"),
    (TRACE, '{"0": {"input_tokens": "{5: x}"}}', {}, "input_tokens contains 5: +x"),
    (TRACE, '{"0": {"input_tokens": "{5.5: 1}"}}', {}, "input_tokens contains 5.5"),
    (TRACE, '{"0": {}}', {}, "no client has lengths"),
    (TRACE, '{"0": {}}', {"clients": ["one"]}, "client one sends requests, but has no histogram"),
    (TRACE, LENGTHS, {"start_s": 600}, "no client sends requests in this range"),
    (TRACE, LENGTHS, {"start_s": 6e6}, "no client sends requests in this range"),
    error=iq.TraceError,
)
def test_a_bad_client_is_an_error_with_its_place(
    trace: str, lengths: str, arguments: dict[str, Any], client: Callable[[str, str], Path]
) -> None:
    iq.read_trace(client(trace, lengths), **arguments)


@refused(
    ({"clients": "one"}, "clients: must be a non-empty list of names"),
    ({"clients": []}, "clients: must be a non-empty list of names"),
    ({"clients": ["on"]}, "clients: .* has no client 'on'; did you mean one"),
    ({"clients": ["one", "one"]}, "clients: must be unique names, got one, one"),
    ({"start_s": 5, "end_s": 5}, "end_s"),
    ({"rate_factor": 0}, "rate_factor"),
    ({"rate_factor": 1e9}, "rate_factor: .* would send"),
    ({"columns": {}}, "not supported for ServeGen, which has its own columns"),
)
def test_a_wrong_range_is_named(arguments: dict[str, Any], client: Callable[[str, str], Path]) -> None:
    iq.read_trace(client(TRACE, LENGTHS), **arguments)


def test_a_range_is_for_servegen_alone(samples: Path, tmp_path: Path) -> None:
    with pytest.raises(iq.ConfigError, match="start_s: is for ServeGen"):
        iq.read_trace(samples / "azure_2023.csv", start_s=5)
    with pytest.raises(iq.TraceError, match="is a folder without clients of ServeGen"):
        iq.read_trace(tmp_path)


# Descriptions


@pytest.mark.parametrize(
    ("distribution", "kinds"),
    [
        *((process, ARRIVAL_PROCESSES) for process in ARRIVALS),
        (iq.dist.PoissonLength(32.0, cap=50), LENGTH_DISTRIBUTIONS),
        (iq.dist.Exponential(2.5), DURATION_DISTRIBUTIONS),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_distribution_is_read_back_from_its_description(distribution: Any, kinds: Any) -> None:
    assert read("arrivals", json.loads(json.dumps(distribution.to_json())), kinds) == distribution
    assert hash(distribution) == hash(read("arrivals", distribution.to_json(), kinds))


def test_scenarios_support_every_public_distribution() -> None:
    for family, kinds in (
        (ArrivalProcess, ARRIVAL_PROCESSES),
        (LengthDistribution, LENGTH_DISTRIBUTIONS),
        (DurationDistribution, DURATION_DISTRIBUTIONS),
    ):
        public = {getattr(iq.dist, name) for name in iq.dist.__all__}
        distributions = {kind for kind in public if issubclass(kind, family)} - {iq.dist.Empirical}
        assert distributions == set(kinds)


ENGINE = """
[engine]
kv = "unlimited"
timing = { kind = "Constant", seconds = 0.1 }
scheduler = { kind = "Sarathi" }
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Callable[[str], iq.Workload]:
    def read_workload(text: str) -> iq.Workload:
        (tmp_path / "scenario.toml").write_text(text + ENGINE)
        workload: iq.Workload = Scenario.read(tmp_path / "scenario.toml").workload
        return workload

    return read_workload


def test_sessions_and_mixes_are_read_from_toml(
    scenario: Callable[[str], iq.Workload], tmp_path: Path, samples: Path
) -> None:
    sessions = """
sessions = 60
arrivals = { kind = "Poisson", rate = 2.0 }
turns = { kind = "Geometric", mean = 3.0 }
prompt = { kind = "Uniform", low = 1, high = 50 }
output = { kind = "Geometric", mean = 20.0 }
think = { kind = "Exponential", mean_s = 4.0 }
"""
    assert scenario("[workload]" + sessions).to_json() == conversations().to_json()
    limited = scenario("[workload]" + sessions + "max_context = 4096\npatience = 9")
    assert limited.draw(1).frame.equals(conversations(max_context=4096).with_patience(9).draw(1).frame)
    (tmp_path / "load.csv").write_bytes((samples / "inferq.csv").read_bytes())
    mixed = scenario(
        f"""
[workload]
requests = 300
[workload.mix.talk]{sessions}
[workload.mix.code]
arrivals = {{ kind = "OnOff", on_rate = 20, mean_on_s = 3, mean_off_s = 9 }}
prompt = {{ kind = "PoissonLength", mean = 512 }}
output = {{ kind = "Fixed", tokens = 20 }}
patience = {{ kind = "Exponential", mean_s = 3 }}
[workload.mix.log]
trace = "load.csv"
"""
    )
    code = synthetic(
        1,
        iq.dist.OnOff(20, mean_on_s=3, mean_off_s=9),
        prompt=iq.dist.PoissonLength(512),
        output=iq.dist.Fixed(20),
    ).with_patience(iq.dist.Exponential(3))
    log = iq.read_trace(samples / "inferq.csv")
    same = iq.Workload.mix({"talk": conversations(), "code": code, "log": log}, requests=300)
    assert mixed.draw(2).frame.equals(same.draw(2).frame)


def test_servegen_and_thinking_traces_are_read_from_toml(
    scenario: Callable[[str], iq.Workload], samples: Path
) -> None:
    text = f'[workload]\ntrace = "{samples}/servegen"\nstart_s = 600\nrate_factor = 3\nhead = 100\n'
    same = iq.read_trace(samples / "servegen", start_s=600, rate_factor=3).head(100)
    assert scenario(text).draw(1).frame.equals(same.draw(1).frame)
    text = f'[workload]\ntrace = "{samples}/sharegpt.json"\ntokens_per_word = 1.3\nrate = 2\nthink = 4.5\n'
    assert scenario(text).draw(1).frame["think_s"].drop_nulls().unique().to_list() == [4.5]


@refused(
    ("[workload]\nsessions = 3\n", "workload.arrivals: missing"),
    ("[workload]\nsessions = 3\nrequests = 3\n", "workload.requests: unknown"),
    ('[workload]\nrequests = 3\narrivals = { kind = "Weibul", rate = 1 }\n', "did you mean Weibull"),
    ('[workload]\nrequests = 3\narrivals = { kind = "Weibull", rate = 1 }\n', "workload.arrivals.shape"),
    ("[workload.mix.a]\nrequest = 3\n", "workload.mix.a.request: unknown"),
    ("[workload.mix.a]\nrequests = 3\n", "workload.mix.a.arrivals: missing"),
    (
        '[workload]\nrequests = 3\narrivals = { kind = "Poisson", rate = 1 }\n'
        'prompt = { kind = "Fixed", tokens = 1 }\noutput = { kind = "Fixed", tokens = 1 }\n'
        "patience = -1\n",
        "workload.patience",
    ),
    (
        '[workload]\nrequests = 3\narrivals = { kind = "Poisson", rate = 1 }\n'
        'prompt = { kind = "Fixed", tokens = 1 }\noutput = { kind = "Fixed", tokens = 1 }\n'
        'patience = { kind = "X" }\n',
        "workload.patience.kind: unknown kind 'X'",
    ),
    (
        '[workload]\nrequests = 3\narrivals = { kind = "Poisson", rate = 1 }\n'
        'prompt = { kind = "Fixed", tokens = 1 }\n',
        "workload.output: missing",
    ),
)
def test_a_wrong_table_is_named(text: str, scenario: Callable[[str], iq.Workload]) -> None:
    scenario(text)


def test_the_rounds_of_a_mix_grow_with_the_logarithm_of_its_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each round checks all parts and doubles those that are short."""
    calls: list[float] = []
    nth = generated._nth

    def counting(arrivals: list[Any], n: int) -> float:
        calls.append(nth(arrivals, n))
        return calls[-1]

    monkeypatch.setattr(generated, "_nth", counting)
    parts = {f"c{k}": chat(rate=1 + k % 7) for k in range(64)}
    assert iq.Workload.mix(parts, requests=6400).draw(1).frame.height == 6400
    assert 1 <= len(calls) <= 2 + math.log2(64)
