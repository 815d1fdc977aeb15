"""Does anything stop a sweep so that what was finished is lost?"""

import _thread
import errno
import io
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import polars as pl
import pytest

import inferq as iq

from .swept import ENGINE, GRID, TOML, chat, content, tiny

ON_POSIX = pytest.mark.skipif(os.name == "nt", reason="no SIGKILL there")


class Calls:
    def __init__(self) -> None:
        self.made: list[tuple[float, int]] = []

    def __repr__(self) -> str:
        return "Calls()"  # what it holds is no part of the scenario


def test_what_is_done_is_not_run_again(tmp_path: Path):
    points = tmp_path / "points.parquet"
    calls = Calls()
    ran = calls.made

    def scenario(rate, budget):
        calls.made.append((rate, budget))
        return chat(rate, budget)

    first = iq.sweep(scenario, resume=points, key="1", rate=[2, 4], budget=[64, 0])
    assert len(ran) == 4
    assert pl.read_parquet(points).drop("fingerprint").equals(first)
    again = iq.sweep(scenario, resume=points, key="1", rate=[2, 4], budget=[64, 0])
    assert sorted(ran[4:]) == [(2, 0), (4, 0)]  # what failed is tried once more
    assert content(again) == content(first)
    wider = iq.sweep(scenario, resume=points, key="1", budget=[64, 128], rate=[4, 6.5], seeds=[0, 1])
    assert len(ran) == 6 + 7
    assert content(wider) == content(iq.sweep(scenario, budget=[64, 128], rate=[4, 6.5], seeds=[0, 1]))
    narrow = iq.sweep(
        scenario, resume=points, key="1", rate=[2], budget=[64]
    )  # (2, 64) was not in the grid before this
    assert content(narrow) == content(iq.sweep(scenario, rate=[2], budget=[64]))
    assert len(ran) == 6 + 7 + 8 + 1
    kept = pl.read_parquet(points)
    assert kept.height == 9
    assert kept["rate"].dtype == pl.Float64
    assert set(kept["rate"]) == {2.0, 4.0, 6.5}


def test_a_file_of_another_sweep_is_refused_and_left_as_it_is(tmp_path: Path, chat_toml: Path):
    points = tmp_path / "points.parquet"

    def refused(said: str, scenario=chat, **arguments) -> None:
        before = points.read_bytes()
        with pytest.raises(iq.ConfigError, match=said):
            iq.sweep(scenario, resume=points, **{"rate": [2], **arguments})
        assert points.read_bytes() == before

    iq.sweep(chat, rate=[2], resume=points)
    refused("resume: .*points of another scenario", scenario=tiny)
    refused("resume: .*points of another scenario.*slo", slo={"ttft_s": 1.0})
    refused("contains points over rate, but this sweep is over rate, budget", budget=[64])
    refused("resume: rate is Int64 in .*, but text in this sweep", rate=["2"])
    points.write_bytes(b"no parquet")
    refused("cannot be read as Parquet")
    points.write_bytes(b"")
    refused("is empty")
    pl.DataFrame({"rate": [2]}).write_parquet(points)
    refused("is not a file of a sweep")
    points.unlink()
    rates = {"workload.arrivals.rate": [2]}
    iq.sweep(chat_toml, resume=points, **rates)
    chat_toml.write_text("# a comment changes nothing\n" + TOML)
    iq.sweep(chat_toml, resume=points, **rates)
    chat_toml.write_text(TOML.replace("0.05", "0.06"))
    with pytest.raises(iq.ConfigError, match="points of another scenario"):
        iq.sweep(chat_toml, resume=points, **rates)


def closure(rate_factor: float):
    return lambda rate: chat(rate * rate_factor)


@pytest.mark.parametrize(
    "scenario", [closure(1.0), partial(chat, budget=closure(1.0)), partial(closure(2.0))]
)
def test_a_function_whose_changes_cannot_be_detected_needs_a_key(scenario, tmp_path: Path):
    with pytest.raises(iq.ConfigError, match=r"resume: cannot detect changes of .*Set key="):
        iq.sweep(scenario, resume=tmp_path / "points.parquet", rate=[2])


def test_a_key_is_the_identity_of_a_function(tmp_path: Path):
    points = tmp_path / "points.parquet"
    first = iq.sweep(closure(1.0), resume=points, key="v1", rate=[2])
    assert iq.sweep(closure(3.0), resume=points, key="v1", rate=[2]).equals(first)
    with pytest.raises(iq.ConfigError, match=r"of another scenario, .*key v1.*this sweep has .*key v2"):
        iq.sweep(closure(3.0), resume=points, key="v2", rate=[2])


def test_arguments_of_a_partial_are_a_part_of_the_scenario(tmp_path: Path):
    points = tmp_path / "points.parquet"
    for _ in range(2):
        iq.sweep(partial(chat, budget=64), resume=points, rate=[2])
    with pytest.raises(iq.ConfigError, match="points of another scenario"):
        iq.sweep(partial(chat, budget=128), resume=points, rate=[2])


def test_a_trace_with_another_content_is_another_scenario(tmp_path: Path):
    path, points = tmp_path / "replay.toml", tmp_path / "points.parquet"
    drawn = TOML[TOML.index("requests =") : TOML.index("[engine.timing]")]
    path.write_text(TOML.replace(drawn, 'trace = "trace.csv"\n'))
    lines = "arrival_s,prompt_tokens,output_tokens\n0,10,3\n1,10,3\n"
    (tmp_path / "trace.csv").write_text(lines)
    iq.sweep(path, resume=points, **{"workload.speed": [1, 2]})
    (tmp_path / "trace.csv").write_text(lines + "2,10,3\n")
    with pytest.raises(iq.ConfigError, match="points of another scenario"):
        iq.sweep(path, resume=points, **{"workload.speed": [1, 2]})


def test_an_interrupt_keeps_what_is_done(tmp_path: Path):
    def at_three(done: int, _total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    points = tmp_path / "points.parquet"
    with ThreadPoolExecutor(1) as pool, pytest.raises(iq.SweepInterrupted) as interrupted:
        iq.sweep(chat, executor=pool, progress=at_three, resume=points, **GRID)
    assert isinstance(interrupted.value, KeyboardInterrupt)
    assert "of 9 points are done, see `frame` of this exception and in" in str(interrupted.value)
    whole = iq.sweep(chat, **GRID)
    kept = interrupted.value.frame
    assert 3 <= kept.height < 9
    assert kept.equals(whole.head(kept.height))
    assert pl.read_parquet(points).drop("fingerprint").equals(kept)
    assert content(iq.sweep(chat, resume=points, **GRID)) == content(whole)
    with pytest.raises(iq.SweepInterrupted) as without:
        iq.sweep(chat, progress=at_three, **GRID)
    assert without.value.frame.height >= 3


def test_an_interrupt_keeps_what_was_done_and_not_yet_looked_at():
    class AtOnce(Executor):
        _max_workers = 2

        def submit(self, fn, /, *args, **kwargs):
            future: Future = Future()
            future.set_result(fn(*args, **kwargs))
            return future

    def at_one(done: int, _total: int) -> None:
        if done == 1:
            raise KeyboardInterrupt

    with pytest.raises(iq.SweepInterrupted) as interrupted:
        iq.sweep(chat, executor=AtOnce(), progress=at_one, **GRID)
    assert interrupted.value.frame.equals(iq.sweep(chat, **GRID).head(4))


def test_ctrl_c_ends_the_runs_that_threads_are_at():
    interrupts = iter([_thread.interrupt_main])

    def endless(rate):
        lengths = {"prompt": iq.dist.Fixed(1000), "output": iq.dist.Fixed(4000)}
        workload = iq.Workload.synthetic(requests=500_000, arrivals=iq.dist.Poisson(rate), **lengths)
        next(interrupts, int)()
        return workload, ENGINE, {"stepping": True}

    before = threading.active_count()
    with pytest.raises(iq.SweepInterrupted, match="0 of 2 points are done") as interrupted:
        iq.sweep(endless, rate=[0.01, 0.02])
    assert interrupted.value.frame.height == 0
    deadline = time.monotonic() + 60
    while threading.active_count() > before:  # one that was just being started is not waited for
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_the_progress_of_a_user_raises_passes_and_the_file_holds_what_is_done(tmp_path: Path):
    def at_three(done: int, _total: int) -> None:
        if done == 3:
            raise LookupError("enough")

    points = tmp_path / "points.parquet"
    with ThreadPoolExecutor(1) as pool, pytest.raises(LookupError, match="enough"):
        iq.sweep(chat, executor=pool, progress=at_three, resume=points, **GRID)
    assert pl.read_parquet(points).height >= 3


def test_progress_counts_points(tmp_path: Path):
    told: list[tuple[int, int]] = []
    points = tmp_path / "points.parquet"
    iq.sweep(chat, progress=lambda *now: told.append(now), resume=points, rate=[2, 4], budget=[64])
    assert told[0] == (0, 2)
    assert told[-1] == (2, 2)
    told.clear()
    iq.sweep(chat, progress=lambda *now: told.append(now), resume=points, rate=[2, 4, 8], budget=[64])
    assert told == [(2, 3), (3, 3)]


def test_a_full_disk_stops_the_sweep_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    points = tmp_path / "points.parquet"
    iq.sweep(chat, resume=points, rate=[2.0], budget=[64])
    before = points.read_bytes()
    writes = itertools.count()
    real = os.replace

    def full(*paths) -> None:
        if next(writes):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(*paths)

    monkeypatch.setattr(os, "replace", full)
    said = r"cannot be written \(No space left on device\); its last version is unchanged; 9 of 9"
    with pytest.raises(iq.SweepStopped, match=said) as stopped:
        iq.sweep(chat, resume=points, **GRID)
    assert content(stopped.value.frame) == content(iq.sweep(chat, **GRID))
    assert pl.read_parquet(points).equals(pl.read_parquet(io.BytesIO(before)))
    assert [path.name for path in tmp_path.iterdir()] == ["points.parquet"]
    with pytest.raises(OSError, match="nowhere"):
        iq.sweep(tiny, resume=tmp_path / "nowhere" / "points.parquet", rate=[1])


def in_another_process(swept, tmp_path: Path, points: Path) -> subprocess.Popen[str]:
    """A sweep of forty slow points over two threads."""
    program = textwrap.dedent(f"""
        import inferq as iq, swept
        from concurrent.futures import Executor, Future, ThreadPoolExecutor
        try:
            iq.sweep(swept.slow, rate=range(1, 201), resume={str(points)!r}, executor=ThreadPoolExecutor(2))
        except iq.SweepInterrupted as interrupted:
            print(interrupted.frame.height, flush=True)
            raise
    """)
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    child = subprocess.Popen(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": paths}, **pipes
    )
    deadline = time.monotonic() + 60
    while not (points.exists() and pl.read_parquet(points).height):
        assert child.poll() is None, child.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return child


@ON_POSIX
def test_kill_9_leaves_a_file_to_go_on_from(swept, tmp_path: Path):
    points = tmp_path / "points.parquet"
    child = in_another_process(swept, tmp_path, points)
    child.kill()
    child.communicate()
    kept = pl.read_parquet(points)
    assert 0 < kept.height < 200
    ran = []
    iq.sweep(swept.slow, rate=kept["rate"], resume=points, progress=lambda *now: ran.append(now))
    assert ran == [(kept.height, kept.height)]
    expected = iq.sweep(swept.chat, rate=kept["rate"])
    assert kept.drop("fingerprint").equals(expected)


@ON_POSIX
def test_ctrl_c_in_a_sweep_keeps_what_is_done(swept, tmp_path: Path):
    points = tmp_path / "points.parquet"
    child = in_another_process(swept, tmp_path, points)
    child.send_signal(signal.SIGINT)
    out, said = child.communicate(timeout=60)
    assert said.splitlines()[-1].startswith("inferq.errors.SweepInterrupted: ")
    assert pl.read_parquet(points).height == int(out) > 0


def test_a_file_that_cannot_be_written_is_called_as_it_was_named(tmp_path: Path):
    points = tmp_path / "nowhere" / "points.parquet"
    with pytest.raises(FileNotFoundError) as error:
        iq.sweep(chat, rate=[2], resume=points)
    assert error.value.filename == str(points)
    assert error.value.strerror == f"directory {points.parent} does not exist"
