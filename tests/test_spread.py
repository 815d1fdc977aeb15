"""Arrivals on a coarse grid: the finding, and the transform that spreads them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

import inferq as iq
from inferq.cli import app
from inferq.workload.grid import grid_of
from inferq.workload.trace_options import TraceOptions

from .slots import engine


def _rounded(step_s: float, rows: int = 600, rate: float = 4.0) -> tuple[np.ndarray, iq.Workload]:
    """Poisson arrivals, and the same rounded down to a grid."""
    exact = np.cumsum(np.random.default_rng(1).exponential(1 / rate, rows))
    times = np.floor(exact / step_s) * step_s
    return exact, iq.Workload({"arrival_s": times, "prompt_tokens": [1] * rows, "output_tokens": [1] * rows})


@pytest.mark.parametrize("step_s", [1.0, 3.0])
@pytest.mark.parametrize("factor", [1.0, 0.37])
def test_a_grid_is_found_with_its_step_and_ties(step_s: float, factor: float) -> None:
    _, work = _rounded(step_s)
    times = work.frame["arrival_s"].to_numpy() / factor
    grid = grid_of(times)
    counts = np.unique(times, return_counts=True)[1]
    assert grid is not None and grid.step_s == pytest.approx(step_s / factor, rel=1e-3)
    assert (grid.tied, grid.most) == (counts[counts > 1].sum(), counts.max())


def test_continuous_arrivals_and_one_burst_have_no_grid() -> None:
    exact, _ = _rounded(1.0)
    assert grid_of(exact) is None
    assert grid_of(np.zeros(500)) is None
    assert grid_of(np.arange(500.0)) is None


def test_a_run_reports_the_grid_and_spreading_removes_it() -> None:
    _, work = _rounded(1.0)
    (finding,) = [one for one in iq.simulate(work, engine()).findings if one.kind == "coarse-arrivals"]
    times = work.frame["arrival_s"].to_numpy()
    counts = np.unique(times, return_counts=True)[1]
    assert finding.data == {
        "count": counts[counts > 1].sum(),
        "total": 600,
        "step_s": pytest.approx(1.0),
        "most": counts.max(),
    }
    spread = work.spread(seed=3)
    assert not [one for one in iq.simulate(spread, engine()).findings if one.kind == "coarse-arrivals"]


def test_spread_times_are_uniform_within_their_step_and_seeded() -> None:
    _, work = _rounded(3.0, rows=6000)
    before, after = work.frame["arrival_s"].to_numpy(), work.spread(3.0, seed=3).frame["arrival_s"].to_numpy()
    assert (np.floor(after / 3.0) * 3.0 == before).all()
    # The recorded times were uniform within their step, so the queue of the spread times is theirs: the gaps
    # are exponential again, with mean and standard deviation 0.25 s.
    gaps = np.diff(after)
    assert gaps.std() == pytest.approx(0.25, rel=0.05)
    assert np.diff(before).std() > 0.7
    assert work.spread(3.0, seed=3).frame.equals(work.spread(3.0, seed=3).frame)
    assert not work.spread(3.0, seed=3).frame.equals(work.spread(3.0, seed=4).frame)


def test_spread_is_recorded_and_read_from_toml(tmp_path: Path) -> None:
    _, work = _rounded(1.0, rows=90)
    work.frame.write_csv(tmp_path / "trace.csv")
    (tmp_path / "s.toml").write_text(
        '[workload]\ntrace = "trace.csv"\nspread = true\n'
        '[engine]\nkv = "unlimited"\ntiming = { kind = "Constant", seconds = 0.1 }\n'
        'scheduler = { kind = "Sarathi" }\n'
    )
    run = iq.Scenario.read(tmp_path / "s.toml").run()
    expected = iq.read_trace(tmp_path / "trace.csv").spread(1.0).frame["arrival_s"]
    assert run.requests["arrival_s"].to_list() == pytest.approx(expected.to_list(), abs=1e-9)
    assert iq.Scenario.read(run.scenario).run().requests.equals(run.requests)


def test_the_option_draws_within_the_detected_step(tmp_path: Path) -> None:
    """`--spread` finds the step of 3 s: arrivals stay within it, and a second run draws the same."""
    _, work = _rounded(3.0, rows=300)
    work.frame.write_csv(tmp_path / "trace.csv")
    times = []
    for name in ("first", "again"):
        command = ["replay", str(tmp_path / "trace.csv"), "--spread", "--kv-tokens", "1000000"]
        done = CliRunner().invoke(app, [*command, "--out", str(tmp_path / name)])
        assert done.exit_code == 0, done.output
        times.append(
            iq.Result.read(tmp_path / name).requests.select("arrival_s").collect()["arrival_s"].to_numpy()
        )
    before = work.frame["arrival_s"].to_numpy()
    assert (np.floor(times[0] / 3.0) * 3.0 == before).all()
    assert np.unique(times[0]).size == 300
    assert (times[0] == times[1]).all()


def test_spreading_a_workload_without_a_grid_is_an_error(tmp_path: Path) -> None:
    rows = {"arrival_s": [0.0, 0.3, 1.1], "prompt_tokens": [1] * 3, "output_tokens": [1] * 3}
    work = iq.Workload(rows)
    with pytest.raises(iq.TraceError, match="spread: found no grid"):
        work.spread().frame  # noqa: B018
    with pytest.raises(iq.TraceError, match="spread: no two requests arrive at the same instant"):
        work.spread(1.0).frame  # noqa: B018
    pl.DataFrame(rows).write_csv(tmp_path / "trace.csv")
    with pytest.raises(iq.ConfigError, match="spread: the trace has no coarse grid"):
        TraceOptions(spread=True).apply(iq.read_trace(tmp_path / "trace.csv"), [])
