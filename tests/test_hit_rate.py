"""Cache hit rates in summaries, comparisons, charts and pages."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner

import inferq as iq
from inferq.cli import app
from inferq.reports import run_data
from inferq.results.metric import Metric

COUNT = 400
WORKLOAD = iq.Workload(
    {
        "arrival_s": [0.4 * row for row in range(COUNT)],
        "prompt_tokens": [40 + row % 30 for row in range(COUNT)],
        "output_tokens": [5 + row % 7 for row in range(COUNT)],
        "class": ["even" if row % 2 == 0 else "odd" for row in range(COUNT)],
        "prefix_parts": [[{"text": f"text {row % 5}", "tokens": 30}] for row in range(COUNT)],
    }
)


def engine(prefix_cache: Any = "blocks", tokens: int = 2000) -> iq.Engine:
    timing = iq.PiecewiseLinear(base=0.05, per_token=0.001, knee=16)
    kv = iq.KvCache(tokens=tokens, block=8, prefix_cache=prefix_cache)
    return iq.Engine(timing=timing, scheduler=iq.VllmV1(token_budget=64, max_seqs=16), kv=kv)


FLEET = iq.Cluster(engine(), replicas=2, router=iq.RoundRobin())


@pytest.mark.parametrize("by", [None, "class", "replica"])
def test_the_hit_rate_is_the_share_of_prompt_tokens_of_admitted_requests(by: str | None):
    result = iq.simulate(WORKLOAD, FLEET, warmup=50, horizon_s=150.0)
    admitted = result.requests.filter(pl.col("measured") & pl.col("admitted_s").is_not_null())
    summary = result.summary(by=by)
    for row in summary.rows(named=True):
        group = admitted if by is None else admitted.filter(pl.col(by).cast(pl.String) == str(row[by]))
        assert row["cached_tokens"] == group["cached_tokens"].cast(pl.Int64).sum() > 0
        assert row["hit_rate"] == group["cached_tokens"].sum() / group["prompt_tokens"].sum()
    assert summary.schema["cached_tokens"] == pl.Int64


def test_without_a_prefix_cache_the_hit_rate_is_null():
    result = iq.simulate(WORKLOAD, engine(None))
    assert not result.has_prefix_cache
    assert result.summary().select("cached_tokens", "hit_rate").row(0) == (None, None)
    assert result.summary()["hit_rate"].item() is None
    cold = iq.simulate(WORKLOAD.head(1), engine())
    assert cold.summary().select("cached_tokens", "hit_rate").row(0) == (0, 0.0)
    unmeasured = iq.simulate(WORKLOAD, engine(), warmup=COUNT)
    assert unmeasured.summary()["hit_rate"].to_list() == [None]


def test_a_stored_run_has_the_same_hit_rate(tmp_path: Path):
    whole = iq.simulate(WORKLOAD, FLEET)
    stored = iq.simulate(WORKLOAD, FLEET, out=tmp_path / "run")
    assert stored.summary().equals(whole.summary())
    assert iq.Result.read(tmp_path / "run").has_prefix_cache


def test_the_hit_rate_is_a_metric_to_maximize():
    assert Metric.of("hit_rate") == Metric("hit_rate", "share", "higher")
    comparison = iq.compare(WORKLOAD, {"small": engine(tokens=160), "large": engine()}, baseline="small")
    rows = {row["system"]: row for row in comparison.frame.filter(metric="hit_rate").rows(named=True)}
    shares = [iq.simulate(WORKLOAD, engine(tokens=size)).summary()["hit_rate"].item() for size in (160, 2000)]
    assert [rows["small"]["mean"], rows["large"]["mean"]] == shares
    assert rows["large"]["difference"] == pytest.approx(shares[1] - shares[0])
    assert shares[1] > shares[0]
    plain = iq.compare(WORKLOAD, {"one": engine(None), "two": engine(None, 400)})
    assert "hit_rate" not in plain.frame["metric"]


def test_a_sweep_has_the_columns():
    frame = iq.sweep(lambda tokens: (WORKLOAD, engine(tokens=tokens)), tokens=[400, 2000])
    assert frame.schema["cached_tokens"] == pl.Int64
    assert frame["hit_rate"].to_list() == [
        iq.simulate(WORKLOAD, engine(tokens=size)).summary()["hit_rate"].item() for size in (400, 2000)
    ]


def test_a_gate_fails_if_the_hit_rate_decreases(tmp_path: Path):
    path = scenario(tmp_path, "blocks")
    text = path.read_text() + '[gate]\nseeds = 2\n[gate.tolerance]\nhit_rate = "0.01"\n'
    path.write_text(text)
    assert iq.gate(path, tmp_path / "baseline.json", update=True).passed
    assert iq.gate(path, tmp_path / "baseline.json").passed
    path.write_text(text.replace("tokens = 4000", "tokens = 160"))
    report = iq.gate(path, tmp_path / "baseline.json")
    assert not report.passed
    assert "hit_rate" in report.markdown()


# ---- pictures and pages


def panels(result: iq.Result) -> list[str]:
    """Return the titles of the timeline's panels."""
    spec = result.plot.timeline().to_dict()
    return [panel["title"]["text"] for panel in spec["vconcat"]]


def test_the_timeline_has_a_panel_of_the_prefix_cache():
    with_cache, without = (iq.simulate(WORKLOAD, system) for system in (engine(), engine(None)))
    assert panels(with_cache) == [*panels(without), "cache hit rate"]


def test_the_chart_of_the_hit_rate_follows_the_samples():
    result = iq.simulate(WORKLOAD, FLEET, timeline_s=1.0)
    rates, samples = run_data.hit_rates(result, steps=7), result.timeline
    end_s = samples["time_s"].max()
    for row in rates.rows(named=True):
        low_s, high_s = row["time_s"] - end_s / 14, row["time_s"] + end_s / 14
        here = samples.filter(pl.col("time_s").is_between(low_s + 1e-9, high_s + 1e-9))
        shares = []
        for part in (here, *(here.filter(replica=replica) for replica in (0, 1))):
            cached, computed = part["cached_tokens_per_s"].sum(), part["prefill_tokens_per_s"].sum()
            shares.append(cached / (cached + computed))
        assert row["hit_rate"] == pytest.approx(shares[0])
        assert (row["hit_rate_low"], row["hit_rate_high"]) == pytest.approx(
            (min(shares[1:]), max(shares[1:]))
        )
    assert rates.height == 7


def test_the_page_of_a_run_has_the_hit_rate(tmp_path: Path):
    for name, system in (("with", FLEET), ("without", engine(None))):
        iq.report(iq.simulate(WORKLOAD, system), tmp_path / f"{name}.html")
    page, plain = ((tmp_path / f"{name}.html").read_text() for name in ("with", "without"))
    share = iq.simulate(WORKLOAD, FLEET).summary()["hit_rate"].item()
    assert f"{100 * share:.3g}\xa0%" in page
    assert "cache hit rate" in page
    assert "hit rate" not in plain.lower()


def test_a_trace_for_perfetto_has_the_cached_tokens_of_a_request(tmp_path: Path):
    result = iq.simulate(WORKLOAD, engine(), iterations=True)
    place = result.to_perfetto(tmp_path / "trace.json", requests=[7])
    events = json.loads(place.read_text())["traceEvents"]
    (arguments,) = [
        event["args"] for event in events if event.get("name") == "request 7" and event["ph"] == "X"
    ]
    assert arguments["cached_tokens"] == result.requests["cached_tokens"][7] > 0


def test_the_command_line_prints_the_hit_rate(tmp_path: Path):
    with_cache, without = (
        CliRunner().invoke(app, ["simulate", str(scenario(tmp_path, kind))]).output
        for kind in ("blocks", "none")
    )
    assert "prefix cache: hit rate" in with_cache
    assert "finished" in without or "completed" in without
    assert "prefix cache" not in without


def test_the_theory_command_accepts_a_hit_rate(tmp_path: Path):
    command = ["theory", str(scenario(tmp_path, "blocks")), "--hit-rate"]
    valid, invalid = (CliRunner().invoke(app, [*command, rate]) for rate in ("0.4", "0.9"))
    assert "hit rate 0.4 as configured" in valid.output
    assert "hit_rate: must be at most" in invalid.output
    assert invalid.exit_code != 0


def scenario(place: Path, kind: str) -> Path:
    """Write a scenario in TOML and its trace."""
    WORKLOAD.frame.write_parquet(place / "trace.parquet")
    cache = "" if kind == "none" else f'prefix_cache = "{kind}"\n'
    path = place / f"{kind}.toml"
    path.write_text(
        f'[workload]\ntrace = "trace.parquet"\n[engine]\n[engine.timing]\nkind = "Constant"\nseconds = 0.05\n'
        f'[engine.scheduler]\nkind = "VllmV1"\n[engine.kv]\ntokens = 4000\nblock = 8\n{cache}'
    )
    return path
