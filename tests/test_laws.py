"""Do the laws of DESIGN.md hold through the public face, for any workload and any engine?"""

import random
from typing import Any

import polars as pl
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

import inferq as iq

from .policies import POLICIES
from .policy import Draw

_MILLI = st.integers(1, 50).map(lambda n: n / 1000)
_MICRO = st.integers(0, 100).map(lambda n: n / 1_000_000)
TIMINGS = st.one_of(
    st.builds(iq.Constant, _MILLI),
    st.builds(
        iq.PiecewiseLinear,
        base=_MILLI,
        per_token=_MICRO,
        knee=st.integers(0, 100),
        per_context_token=_MICRO,
        per_prefill_square=_MICRO,
        per_chunk_context=_MICRO,
    ),
    st.builds(iq.MemoryLinear, base=_MILLI, per_kv_token=_MICRO),
    st.builds(iq.MixedSolo, alpha=_MILLI, beta=_MICRO, solo=_MILLI),
)
CLASSES = ["chat", "code"]
_WAYS = [draw for policy in POLICIES.values() for draw in policy.ways.values()]


def _scheduler(draw: Draw, chance: random.Random) -> iq.Scheduler:
    described = {"timing": {"kind": "Constant", "seconds": 1}, "kv": "unlimited"}
    return iq.Engine.from_json({**described, "scheduler": draw(chance, 120, CLASSES)}).scheduler


def _kv(block: int, tokens: int) -> iq.KvCache:
    return iq.KvCache(tokens=-(-tokens // block) * block, block=block)  # `Sglang` asks for whole pages


SCHEDULERS = st.builds(_scheduler, st.sampled_from(_WAYS), st.randoms())
ENGINES = st.builds(
    iq.Engine,
    timing=TIMINGS,
    scheduler=SCHEDULERS,
    kv=st.one_of(
        st.just(iq.KvCache.unlimited()),
        st.builds(_kv, st.sampled_from([1, 4, 16]), st.integers(20, 200)),
    ),
    first_token=st.sampled_from(["prefill", "decode"]),
)


@st.composite
def workloads(draw: st.DrawFn) -> pl.DataFrame:
    rows = draw(st.integers(1, 25))

    def column(values: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(values, min_size=rows, max_size=rows))

    return pl.DataFrame(
        {
            "arrival_s": sorted(column(st.integers(0, 400).map(lambda n: n / 1000))),
            "prompt_tokens": column(st.integers(1, 80)),
            "output_tokens": column(st.integers(1, 40)),
            "class": column(st.sampled_from(CLASSES)),
            "priority": column(st.integers(0, 2)),
            "patience_s": column(st.one_of(st.none(), st.integers(0, 200).map(lambda n: n / 1000))),
            "tbt_slo_s": column(st.one_of(st.none(), st.integers(0, 200).map(lambda n: n / 1000))),
        },
        schema_overrides={"class": pl.Enum(CLASSES), "patience_s": pl.Float64, "tbt_slo_s": pl.Float64},
    )


@given(workloads(), ENGINES)
def test_laws_one_to_three_five_seven_and_nine(frame: pl.DataFrame, engine: iq.Engine):
    result = iq.simulate(frame, engine, batches=True)
    requests = result.requests
    # L1: everybody arrived, and ended in one way; without a horizon nobody is left over.
    assert requests.height == frame.height
    assert set(requests["status"].unique()) <= {"finished", "rejected", "abandoned"}
    # L2.
    finished = requests.filter(pl.col("status") == "finished")
    assert (finished["arrival_s"] <= finished["admitted_s"]).all()
    assert (finished["admitted_s"] < finished["first_token_s"]).all()
    assert (finished["first_token_s"] <= finished["finish_s"]).all()
    # L3.
    iterations = result.iterations
    assert iterations["start_s"].is_sorted()
    # L5: emitted tokens by request, each row of a batch `count` times.
    counted = result.batches.filter("emits").with_columns(
        times=iterations["count"].gather(result.batches.filter("emits")["iteration"])
    )
    emitted = dict(counted.group_by("request").agg(pl.col("times").sum()).iter_rows())
    for row in finished.select("id", "output_tokens").iter_rows():
        assert emitted[row[0]] == row[1]
    # L7.
    rules = engine.scheduler.to_json()
    limits = rules.get("inner", rules)
    most_seqs, most_tokens = POLICIES[limits["kind"]].bounds(limits)
    tokens = iterations["prefill_tokens"] + iterations["decodes"]
    assert most_tokens is None or (tokens <= most_tokens).all()
    rows = result.batches.group_by("iteration").len()["len"]
    assert most_seqs is None or rows.is_empty() or rows.max() <= most_seqs
    if engine.kv.tokens is not None and not iterations.is_empty():
        assert iterations["kv_used_tokens"].max() <= engine.kv.tokens
    # L9.
    assert result.totals["in_system_as"] == result.totals["sojourn_as"]


@given(workloads(), ENGINES, st.one_of(st.none(), st.integers(0, 600).map(lambda n: n / 1000)))
def test_law_eight_stretches_equal_stepping(frame: pl.DataFrame, engine: iq.Engine, horizon_s: float | None):
    fast = iq.simulate(frame, engine, horizon_s=horizon_s)
    slow = iq.simulate(frame, engine, horizon_s=horizon_s, stepping=True)
    for name in ("requests", "tbt", "timeline"):
        assert_frame_equal(getattr(fast, name), getattr(slow, name), check_exact=True)
    assert fast.findings == slow.findings
    assert fast.work_conservation(16) == slow.work_conservation(16)


@given(workloads(), ENGINES)
def test_law_six_the_same_scenario_gives_the_same_bytes(frame: pl.DataFrame, engine: iq.Engine):
    first, second = iq.simulate(frame, engine), iq.simulate(frame, engine)
    for name in ("requests", "tbt", "timeline"):
        assert_frame_equal(getattr(first, name), getattr(second, name), check_exact=True)
    assert first.scenario == second.scenario


@given(workloads(), ENGINES)
def test_law_four_nothing_is_held_after_the_last_request(frame: pl.DataFrame, engine: iq.Engine):
    alone = iq.simulate(frame, engine)
    if not alone.drained.is_empty():
        return  # one more arrival is the company that they waited for
    end_s = alone.totals["end_s"]
    last = frame.head(1).with_columns(arrival_s=pl.lit(end_s + 1.0), patience_s=pl.lit(None, pl.Float64))
    timeline = iq.simulate(pl.concat([frame, last]), engine, timeline_s=0.01).timeline
    # a microsecond from both ends: what rounding to a float can move is far less
    between = timeline.filter(pl.col("time_s").is_between(end_s + 1e-6, end_s + 1.0 - 1e-6))
    assert between.height > 90
    assert between["kv_used_tokens"].sum() == between["running"].sum() == between["waiting"].sum() == 0
