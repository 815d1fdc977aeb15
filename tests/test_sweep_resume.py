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
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import polars as pl
import pytest

import inferq as iq
from inferq.experiments.sweeps.fingerprint import fingerprint

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

    first = iq.sweep(scenario, resume=points, rate=[2, 4], budget=[64, 0])
    assert len(ran) == 4
    assert pl.read_parquet(points).drop("fingerprint").equals(first)
    again = iq.sweep(scenario, resume=points, rate=[2, 4], budget=[64, 0])
    assert sorted(ran[4:]) == [(2, 0), (4, 0)]  # what failed is tried once more
    assert content(again) == content(first)
    wider = iq.sweep(scenario, resume=points, budget=[64, 128], rate=[4, 6.5], seeds=[0, 1])
    assert len(ran) == 6 + 7
    assert content(wider) == content(iq.sweep(scenario, budget=[64, 128], rate=[4, 6.5], seeds=[0, 1]))
    narrow = iq.sweep(
        scenario, resume=points, rate=[2], budget=[64]
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
    refused("resume: .*points of another scenario", scenario=lambda rate: chat(rate, 64))
    refused("resume: .*points of another scenario.*slo", slo={"ttft_s": 1.0})
    refused("holds points over rate, this sweep is over rate, budget", budget=[64])
    refused("resume: rate is Int64 in .*, and text in this sweep", rate=["2"])
    points.write_bytes(b"no parquet")
    refused("cannot be read as Parquet")
    points.write_bytes(b"")
    refused("is empty")
    pl.DataFrame({"rate": [2]}).write_parquet(points)
    refused("is no file of a sweep")
    points.unlink()
    rates = {"workload.arrivals.rate": [2]}
    iq.sweep(chat_toml, resume=points, **rates)
    chat_toml.write_text("# a comment changes nothing\n" + TOML)
    iq.sweep(chat_toml, resume=points, **rates)
    chat_toml.write_text(TOML.replace("0.05", "0.06"))
    with pytest.raises(iq.ConfigError, match="points of another scenario"):
        iq.sweep(chat_toml, resume=points, **rates)


def by_globals(**scope):
    exec("def scenario(rate):\n    return WORKLOAD.at_rate(rate * FACTOR), ENGINE", scope)
    return scope["scenario"]


def by_closure(WORKLOAD, ENGINE, FACTOR):
    return lambda rate: (WORKLOAD.at_rate(rate * FACTOR), ENGINE)


def by_default(WORKLOAD, ENGINE, FACTOR):
    def scenario(rate, *, factor=FACTOR, parts=(WORKLOAD, ENGINE)):
        return parts[0].at_rate(rate * factor), parts[1]

    return scenario


def by_partial(WORKLOAD, ENGINE, FACTOR):
    return partial(
        lambda workload, rate, **rest: (workload.at_rate(rate), rest["engine"]),
        WORKLOAD,
        **{"engine": ENGINE, "factor": FACTOR},
    )


@dataclass
class ByObject:
    WORKLOAD: iq.Workload
    ENGINE: iq.Engine
    FACTOR: float

    def __call__(self, rate):
        return self.WORKLOAD.at_rate(rate * self.FACTOR), self.ENGINE

    def method(self, rate):
        return self(rate)


def by_method(**parts):
    return ByObject(**parts).method


@pytest.mark.parametrize("make", [by_globals, by_closure, by_default, by_partial, ByObject, by_method])
def test_what_a_function_uses_from_around_it_is_a_part_of_the_scenario(make, tmp_path: Path):
    workload, engine = chat(4)
    points = tmp_path / "points.parquet"
    parts = {"WORKLOAD": workload, "ENGINE": engine, "FACTOR": 1.0}
    for _ in range(2):
        assert iq.sweep(make(**parts), resume=points, rate=[2])["error"].to_list() == [None]
    slower = iq.Engine(timing=iq.Constant(0.06), scheduler=engine.scheduler, kv=engine.kv)
    for changed in ({"ENGINE": slower}, {"WORKLOAD": workload.draw(1)}, {"FACTOR": 2.0}):
        with pytest.raises(iq.ConfigError, match="points of another scenario"):
            iq.sweep(make(**{**parts, **changed}), resume=points, rate=[2])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x = 1", "x = 2"),
        ("def x(): return y()\ndef y(): return 1", "def x(): return y()\ndef y(): return 2"),
        ("class x:\n    def plan(self): return 1", "class x:\n    def plan(self): return 2"),
        (
            "class c:\n    def plan(self): return 1\nx = c()",
            "class c:\n    def plan(self): return 2\nx = c()",
        ),
        ("import numpy\nx = numpy.arange(5000)", "import numpy\nx = numpy.arange(5000)[::-1]"),
        (
            "import polars\nx = polars.DataFrame({'a': range(99)})",
            "import polars\nx = polars.DataFrame({'a': range(98)})",
        ),
        ("x = {'a': [1, {2}]}", "x = {'a': [1, {3}]}"),
    ],
)
def test_a_change_of_what_a_function_uses_changes_its_fingerprint(before: str, after: str):
    def told(text: str) -> str:
        scope: dict[str, object] = {"__name__": "some_module_of_the_user"}
        exec(f"{text}\ndef scenario(rate):\n    return [x for _ in range(2)]", scope)
        return fingerprint(scope["scenario"], None)

    assert told(before) == told(before)
    assert told(before) != told(after)


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
    assert "of 9 points are done, in `frame` of this exception and in" in str(interrupted.value)
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
    said = r"cannot be written \(No space left on device\) and holds what was written last; 9 of 9"
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
    assert error.value.strerror == f"there is no folder {points.parent}"
