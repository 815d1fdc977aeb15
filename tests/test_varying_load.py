"""Loads that vary over time, and fleets that follow them: rates, peaks and replicas derived by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import inferq as iq
from inferq.reports import identity, run_data, run_page, verdicts
from inferq.reports.stability import above_at_peak, in_the_long_run
from inferq.results.replicas import Replicas
from inferq.workload.load import WINDOWS_S, Load

from .test_cli import run

# 1 request per second for 12 minutes, 19 per second from minute 12 to 13, and 1 per second until minute 20.
STEPS = np.sort(np.concatenate([np.arange(0, 1200, 1.0), 720 + np.arange(1080) * (60 / 1080)]))
SERVER = iq.Engine(timing=iq.Constant(0.05), scheduler=iq.Sarathi(max_seqs=1), kv=iq.KvCache.unlimited())
"""One request at a time, 50 ms each: 20 requests per second."""


def requests(arrival_s: np.ndarray, **columns: object) -> iq.Workload:
    columns = {"prompt_tokens": 8, "output_tokens": 1, **columns}
    return iq.Workload(
        pl.DataFrame({"arrival_s": arrival_s}).with_columns(
            **{name: pl.lit(value) for name, value in columns.items()}
        )
    )


def load_of(*parts: np.ndarray) -> Load:
    load = Load.of(lambda: parts)
    assert load is not None
    return load


def test_the_whole_rate_and_the_peak_by_hand() -> None:
    load = load_of(STEPS)
    # 2,280 arrivals in 1,199 s. A hundredth of the span is 12 s, and 100 arrivals take 53 s at the mean rate:
    # the next length is 60 s. Minute 12 to 13 has 60 + 1,080 arrivals.
    assert load.rate_per_s == 2279 / 1199
    assert (load.window_s, load.start_s, load.arrivals, load.peak_per_s) == (60, 720, 1140, 19.0)
    assert load.varies and load.when == "minute 12 to 13"
    assert str(load) == "1.90 requests/s over the whole run, peak 19 (minute 12 to 13)"
    assert load.short == "1.90 requests/s, peak 19"
    # parts in any order give the same
    assert load_of(STEPS[1000:], STEPS[:0], STEPS[:1000]) == load


def test_windows_start_at_multiples_of_their_length() -> None:
    late = load_of(STEPS + 7200)
    assert (late.start_s, late.arrivals) == (7920, 1140)


@pytest.mark.parametrize(
    ("rate", "span_s", "window_s"),
    [
        (10.0, 600, 10),  # a hundredth of the span is 6 s; 100 arrivals take 10 s
        (10.0, 36_000, 600),  # 360 s at least
        (1000.0, 36_000, 600),
        (1.0, 300, 0),  # 100 arrivals take 100 s, and five windows of two minutes do not fit
        (1.0, 600, 120),
        (0.002, 86_400 * 10, 86_400),
    ],
)
def test_the_window_is_the_shortest_that_has_enough(rate: float, span_s: int, window_s: int) -> None:
    load = load_of(np.linspace(0, span_s, round(rate * span_s) + 1))
    assert load.window_s == window_s and not load.varies
    assert window_s == 0 or window_s in WINDOWS_S


def test_chance_is_no_peak() -> None:
    for seed in range(50):
        gaps = np.random.default_rng(seed).exponential(0.2, 4000)
        assert not load_of(np.cumsum(gaps)).varies


def test_simultaneous_arrivals_have_no_load() -> None:
    assert Load.of(lambda: [np.zeros(9)]) is None and Load.of(lambda: []) is None


# The page of a run


def test_a_run_with_steps_is_judged_by_its_whole_load() -> None:
    # 300 s at 2 per second, 300 s at 12, then 4: over 900 s 6 per second. The last step has 4.
    steps = iq.dist.TimeVarying(times_s=[0, 300, 600], rates=[2, 12, 4])
    work = iq.Workload.synthetic(
        requests=5400, arrivals=steps, prompt=iq.dist.Fixed(8), output=iq.dist.Fixed(1)
    )
    result = iq.simulate(work, SERVER)
    assert iq.theory.stability(work, SERVER).rate == 4
    theory, load = run_data.theory(result), identity.varying_load(result)
    assert load is not None and not isinstance(theory, str)
    assert theory.rate == load.rate_per_s == pytest.approx(6, rel=0.05)
    assert 300 <= load.start_s < 600 and load.peak_per_s == pytest.approx(12, rel=0.25)
    page = run_page.document(result, None)
    assert re.fullmatch(r"1 replica with Sarathi at (5|6)\.\d+ requests/s, peak 1\d\.?\d*", page.title)
    assert not any("4 requests per second" in note.text for note in page.notes)
    assert any(note.text.startswith("If the load of this run repeats, ") for note in page.notes)
    (capacity,) = [chapter for chapter in page.chapters if chapter.title == "Capacity"]
    named = {line[0]: line[1] for line in capacity.grids[0].lines}
    assert named["This load, whole run"] == f"{load.rate_per_s:.2f}"
    assert float(named[f"Its peak, {load.when}"]) == pytest.approx(load.peak_per_s, abs=0.005)
    # At most 20 requests per second are attainable: 50 ms each, one at a time.
    (shares,) = [text for text in in_the_long_run(theory, "requests", load=load) if "Attainable" in text]
    attainable, whole, peak = map(float, re.findall(r"[\d.]+(?= requests per second| % )", shares)[:3])
    assert 19.5 < attainable <= 20 and f"% at its peak ({load.when})" in shares
    assert whole == pytest.approx(100 * load.rate_per_s / attainable, abs=0.06)
    assert peak == pytest.approx(100 * load.peak_per_s / attainable, abs=0.06)


def test_a_peak_above_the_upper_bound_is_reported() -> None:
    result = iq.simulate(requests(STEPS), SERVER)
    theory, load = run_data.theory(result), identity.varying_load(result)
    assert load is not None and not isinstance(theory, str)
    assert above_at_peak(theory, load) == ""  # 19 of 20 per second
    slow = iq.Engine(timing=iq.Constant(0.1), scheduler=iq.Sarathi(max_seqs=1), kv=iq.KvCache.unlimited())
    overloaded = iq.simulate(requests(STEPS), slow)
    verdict = run_data.theory(overloaded)
    assert not isinstance(verdict, str)
    text = above_at_peak(verdict, load)
    assert "19 requests per second arrived, and the upper bound is 10" in text
    notes = {note.text: note.kind for note in run_page.document(overloaded, None).notes}
    assert notes[text] == "warning"


def test_an_slo_is_judged_at_the_peak_as_well() -> None:
    # At 10 requests per second the server has time for 600 of the 1,140 in the peak minute. Of all requests
    # less than half wait, so that the median is met; of those of the peak, nearly all wait.
    slow = iq.Engine(timing=iq.Constant(0.1), scheduler=iq.Sarathi(max_seqs=1), kv=iq.KvCache.unlimited())
    result = iq.simulate(requests(np.concatenate([STEPS, np.arange(1200, 4000, 1.0)])), slow)
    load = identity.varying_load(result)
    verdict = verdicts.of_run(result, iq.Slo(ttft_p50=0.2), load).verdict
    assert verdict is not None and verdict.kind == "warning"
    assert verdict.text.startswith("SLO met over the whole run: TTFT P50 ≤ 200.0 ms; missed at the peak (")
    steady = verdicts.of_run(result, iq.Slo(ttft_p50=0.2), None).verdict
    assert steady is not None and steady.kind == "good"


def test_objectives_of_the_workload_are_judged_at_the_peak_as_well() -> None:
    slow = iq.Engine(timing=iq.Constant(0.1), scheduler=iq.Sarathi(max_seqs=1), kv=iq.KvCache.unlimited())
    result = iq.simulate(requests(STEPS, ttft_slo_s=0.2), slow)
    load = identity.varying_load(result)
    assert load is not None
    there = result.requests.filter(pl.col("arrival_s").is_between(load.start_s, load.start_s + 60, "left"))
    share = (there["ttft_s"] <= 0.2).mean()
    verdict = verdicts.of_run(result, None, load).verdict
    assert (
        verdict is not None
        and f"; {100 * share:.3g} % of the requests that arrived at the peak" in verdict.text
    )


# Replicas


def plan(*steps: tuple[float, int], **options: object) -> iq.Autoscaler:
    return iq.Autoscaler(iq.BySchedule(list(steps)), max=2, every_s=1, **options)


ONE_S = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.Sarathi(), kv=iq.KvCache.unlimited())
TWO = {"arrival_s": [0.0, 6.0], "prompt_tokens": [9, 9], "output_tokens": [2, 2]}


def test_replicas_over_time_by_hand() -> None:
    # The second replica is asked for at 2 s, opens at 3 s and closes at 4 s. The run ends at 8 s: one open
    # replica for 8 s and another for 1 s, paid for 8 + 2 s.
    result = iq.simulate(TWO, iq.Cluster(ONE_S, autoscaler=plan((2, 2), (4, 1), startup_s=1)))
    seen = Replicas.of(result._tables)
    assert seen is not None and (seen.least, seen.mean, seen.most) == (1, 9 / 8, 2)
    assert seen.replica_s == 10 and seen.hours == 10 / 3600
    assert seen.over_time.rows() == [
        (0.0, 1, 1),
        (2.0, 1, 2),
        (3.0, 2, 2),
        (4.0, 1, 1),
        (8.0, 1, 1),
    ]
    assert seen.counts == {"start": 1, "drain": 1}
    assert str(seen) == "minimum 1, mean 1.12, maximum 2; 0.00278 replica-hours; 1 start, 1 drain"
    assert seen.events["event"].to_list() == ["open", "start", "open", "drain", "closed"]
    assert seen.events["open"].to_list() == [1, 1, 2, 1, 1]


def test_failures_and_restarts_by_hand() -> None:
    # Replica 0 fails at 1.5 s and opens again 2 s later; replica 1 is open all the time.
    fleet = iq.Cluster(ONE_S, replicas=2, failures=iq.Failures(at=[(1.5, 0)], repair_s=2, retries=1))
    result = iq.simulate(TWO, fleet)
    seen = Replicas.of(result._tables)
    assert seen is not None and (seen.least, seen.most) == (1, 2)
    end_s = float(result.totals["end_s"])
    assert seen.mean == pytest.approx((2 * end_s - 2) / end_s)
    assert seen.counts == {"failure": 1, "restart": 1}
    assert seen.replica_s == pytest.approx(2 * end_s - 2)


def test_a_fixed_fleet_has_no_changes() -> None:
    result = iq.simulate(TWO, iq.Cluster(ONE_S, replicas=2))
    assert Replicas.of(result._tables) is None
    with pytest.raises(iq.ConfigError, match="no autoscaler and no failures"):
        result.plot.replicas()
    assert "Replicas" not in dict(identity.of_run(result))


def test_the_page_of_a_scaled_run(tmp_path: Path) -> None:
    fleet = iq.Cluster(
        ONE_S,
        autoscaler=plan((2, 2), startup_s=1),
        failures=iq.Failures(at=[(4.5, 0)], retries=1),
    )
    result = iq.simulate(TWO, fleet)
    page = run_page.document(result, None)
    assert page.title.startswith("1 to 2 replicas with Sarathi at ")
    (chapter,) = [chapter for chapter in page.chapters if chapter.title == "Autoscaling and failures"]
    # The autoscaler replaces the failed replica at its next evaluation, at 5 s.
    assert "1 start, 1 failure, 1 restart" in chapter.text and chapter.charts
    ((line, events),) = chapter.folded
    assert line == "6 events" and "4.50 s\t0\tfailure\t1" in events
    facts = dict(page.facts)
    assert facts["open replicas, range"] == "1 to 2" and "replica-hours" in facts
    chart = result.plot.replicas().to_dict()
    assert "failure" in json.dumps(chart)
    assert iq.report(result, tmp_path / "page.html").exists()


SCALED = """
[workload]
requests = 2500
arrivals = { kind = "TimeVarying", times_s = [0, 60, 120], rates = [5, 30, 5] }
prompt = { kind = "Fixed", tokens = 100 }
output = { kind = "Fixed", tokens = 20 }
[cluster]
router = "LeastRequests"
[cluster.engines]
timing = { kind = "Constant", seconds = 0.02 }
scheduler = { kind = "Sarathi", max_seqs = 16 }
kv = { tokens = 100_000 }
[cluster.autoscaler]
policy = { kind = "BySchedule", steps = [[0, 1], [60, 2], [120, 1]] }
max = 2
every_s = 5
"""


def test_the_terminal_shows_load_and_replicas(tmp_path: Path) -> None:
    file = tmp_path / "scaled.toml"
    file.write_text(SCALED, encoding="utf-8")
    shown = " ".join(run("simulate", str(file)).stdout.split())
    assert re.search(r"load: [\d.]+ requests/s over the whole run, peak [\d.]+ \((seconds|minute) ", shown)
    assert re.search(
        r"replicas: minimum 1, mean 1\.\d+, maximum 2; [\d.]+ replica-hours; 1 start, 1 drain", shown
    )
    given = json.loads(run("simulate", str(file), "--json").stdout)
    assert given["replicas"]["minimum"] == 1 and given["replicas"]["starts"] == 1
    assert given["load"]["peak_per_s"] > given["load"]["rate_per_s"]


# Plans


def test_a_plan_names_the_whole_load_and_the_peak() -> None:
    steps = iq.dist.TimeVarying(times_s=[0, 300, 600], rates=[2, 12, 4])
    work = iq.Workload.synthetic(
        requests=5400, arrivals=steps, prompt=iq.dist.Fixed(8), output=iq.dist.Fixed(1)
    )
    answer = iq.plan(work, iq.Slo(ttft_p99=1.0), engines=SERVER, seeds=2)
    assert answer.rate == pytest.approx(6, rel=0.05)  # not 4, the last step
    assert answer.varying_load is not None and 300 <= answer.varying_load.start_s < 600
