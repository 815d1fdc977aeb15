"""Stored runs: directories of interrupted runs, and reruns."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import inferq as iq
from inferq.results import store
from inferq.workload import parts

from .arriving import arriving

ENGINE = iq.Engine(timing=iq.Constant(0.01), scheduler=iq.Sarathi(), kv=iq.KvCache.unlimited())
SCRIPT = """
import resource, sys
import inferq as iq
from inferq.workload import parts
from inferq.results import store

parts.ROWS, store.PART_ROWS = 512, 1000
out, requests, rate, most_bytes = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
length = iq.dist.Fixed(3)
work = iq.Workload.synthetic(requests=requests, arrivals=iq.dist.Poisson(rate), prompt=length, output=length)
engine = iq.Engine(timing=iq.Constant(0.01), scheduler=iq.Sarathi(), kv=iq.KvCache.unlimited())
if most_bytes:
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
iq.simulate(work, engine, out=out)
"""


def synthetic(requests: int, rate: float = 50.0) -> iq.Workload:
    return arriving(requests, rate, 3, 3)


def told(out: Path) -> dict[str, Any]:
    return dict(json.loads((out / "manifest.json").read_text()))


def parts_are_those_of(out: Path, whole: pl.DataFrame) -> int:
    """Check the rows of each part in the manifest, and return their number."""
    rows = 0
    for part in told(out)["parts"]:
        frame = pl.read_parquet(out / part["file"])
        assert part["first"] == rows and frame.equals(whole.slice(rows, part["rows"]))
        rows += frame.height
    assert rows == told(out)["written"]
    return rows


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "ROWS", 512)
    monkeypatch.setattr(store, "PART_ROWS", 1000)


def stopped(out: Path, requests: int = 5000, rate: float = 50.0, seed: int = 0) -> None:
    """Interrupt a run at the first progress report after three parts."""

    class Enough(Exception):
        pass

    def stop(done: int, total: int) -> None:
        if (out / "manifest.json").exists() and len(told(out)["parts"]) >= 3:
            raise Enough

    taken = store.Store.take

    def take(self: store.Store, columns: Any) -> None:
        taken(self, columns)
        self.wait()
        stop(0, 0)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Enough):
        patch.setattr(store.Store, "take", take)
        iq.simulate(synthetic(requests, rate), ENGINE, seed=seed, out=out)


def test_what_is_written(small: None, tmp_path: Path) -> None:
    result = iq.simulate(synthetic(2500), ENGINE, out=tmp_path)
    assert [part["rows"] for part in told(tmp_path)["parts"]] == [1000, 1000, 500]
    assert told(tmp_path)["complete"] and told(tmp_path)["written"] == told(tmp_path)["rows"] == 2500
    assert {file.name for file in tmp_path.iterdir()} == {
        "manifest.json", "scenario.json", "findings.json", "totals.json", "requests", "itl.parquet",
        "timeline.parquet", "block_operations.parquet",
    }  # fmt: skip
    assert parts_are_those_of(tmp_path, iq.simulate(synthetic(2500), ENGINE).requests) == 2500
    again = iq.Result.read(tmp_path)
    assert again.summary().equals(result.summary()) and again.scenario == result.scenario
    assert result.directory == tmp_path
    with pytest.raises(iq.ConfigError, match="the result is stored in"):
        result.write(tmp_path / "elsewhere")


def test_nobody_arrives(small: None, tmp_path: Path) -> None:
    result = iq.simulate(synthetic(5), ENGINE, horizon_s=0.0, out=tmp_path / "out")
    whole = iq.simulate(synthetic(5), ENGINE, horizon_s=0.0)
    assert result.requests.collect().equals(whole.requests)
    assert result.summary().equals(whole.summary())
    assert repr(result) == "StoredResult(0 requests; 1 finding)"


def test_a_run_that_is_killed_leaves_parts_and_a_rerun_ends_it(small: None, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run = subprocess.Popen([sys.executable, "-c", SCRIPT, str(out), "400000", "50", "0"])
    try:
        limit = time.monotonic() + 60
        while not (out / "manifest.json").exists() or len(told(out)["parts"]) < 5:
            assert run.poll() is None and time.monotonic() < limit
            time.sleep(0.01)
    finally:
        run.send_signal(signal.SIGKILL)
        run.wait()
    before = told(out)
    assert not before["complete"] and 5 <= len(before["parts"]) < 400
    # Requests that arrive later change nothing before them: so the parts are those of a shorter run.
    whole = iq.simulate(synthetic(before["written"] + 1000), ENGINE).requests
    assert parts_are_those_of(out, whole) == before["written"]
    with pytest.raises(
        iq.ConfigError, match=r"contains a run that was interrupted after [\d,]+ of 400,000 requests"
    ):
        iq.Result.read(out)


def test_a_rerun_keeps_what_is_there_and_says_so(small: None, tmp_path: Path) -> None:
    stopped(tmp_path / "out")
    files = {
        part["file"]: (tmp_path / "out" / part["file"]).stat().st_mtime_ns
        for part in told(tmp_path / "out")["parts"]
    }
    (tmp_path / "out" / "requests" / ".part-00003.parquet.1-0.part").write_bytes(b"half a file")
    before = told(tmp_path / "out")
    del before["sha256"]
    before["parts"][0]["sha256"] = "a" * 64  # a hash of its rows, as it was at first
    (tmp_path / "out" / "manifest.json").write_text(store.manifest_text(before))
    says = "contains this run, interrupted after 3,000 of 5,000 requests; it is resumed"
    with pytest.warns(UserWarning, match=re.escape(says)):
        result = iq.simulate(synthetic(5000), ENGINE, out=tmp_path / "out")
    assert result.requests.collect().equals(iq.simulate(synthetic(5000), ENGINE).requests)
    for file, written in files.items():
        assert (tmp_path / "out" / file).stat().st_mtime_ns == written
    assert not list((tmp_path / "out").rglob(".*"))


def test_a_finished_run_is_never_overwritten(small: None, tmp_path: Path) -> None:
    iq.simulate(synthetic(1500), ENGINE, out=tmp_path / "out")
    before = {file: file.read_bytes() for file in (tmp_path / "out").rglob("*") if file.is_file()}
    with pytest.raises(
        iq.ConfigError, match=r"^out: .* contains this run, complete with 1,500 requests: read it"
    ):
        iq.simulate(synthetic(1500), ENGINE, out=tmp_path / "out")
    with pytest.raises(
        iq.ConfigError, match=r"^out: .* contains a run of another scenario, complete with 1,500"
    ):
        iq.simulate(synthetic(1500), ENGINE, seed=1, out=tmp_path / "out")
    assert before == {file: file.read_bytes() for file in (tmp_path / "out").rglob("*") if file.is_file()}


def test_a_stopped_run_of_another_scenario_is_not_overwritten(small: None, tmp_path: Path) -> None:
    stopped(tmp_path / "out")
    says = r"^out: .* contains a run of another scenario, interrupted after 3,000 of 5,000 requests: use"
    with pytest.raises(iq.ConfigError, match=says):
        iq.simulate(synthetic(5000), ENGINE, seed=1, out=tmp_path / "out")
    assert parts_are_those_of(tmp_path / "out", iq.simulate(synthetic(5000), ENGINE).requests) == 3000


def test_a_part_that_is_gone_is_told(small: None, tmp_path: Path) -> None:
    stopped(tmp_path / "out")
    (tmp_path / "out" / "requests" / "part-00001.parquet").unlink()
    with pytest.raises(iq.ConfigError, match=r"part-00001\.parquet: is missing"):
        iq.simulate(synthetic(5000), ENGINE, out=tmp_path / "out")


def test_other_rows_than_those_that_are_there_are_told(small: None, tmp_path: Path) -> None:
    """A scenario does not contain the body of a function, so the rows are compared."""

    def by(sign: int) -> iq.Engine:
        order = iq.ByKey(lambda request: sign * request.id)
        return iq.Engine(
            timing=iq.Constant(1.0), scheduler=iq.Sarathi(max_seqs=1, order=order), kv=iq.KvCache.unlimited()
        )

    work = {"arrival_s": [float(at // 3 * 20) for at in range(4000)], "prompt_tokens": [1] * 4000}
    work["output_tokens"] = [2] * 4000
    complete = store.Store.complete
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(store.Store, "complete", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
        iq.simulate(work, by(1), out=tmp_path / "out")
    assert complete is store.Store.complete
    with (
        pytest.warns(UserWarning),
        pytest.raises(iq.ConfigError, match="differs from the rows of this run"),
    ):
        iq.simulate(work, by(-1), out=tmp_path / "out")


def test_a_directory_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(iq.ConfigError, match=r"^out: .* is not empty and contains no run"):
        iq.simulate(synthetic(5), ENGINE, out=tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
    with pytest.raises(iq.ConfigError, match=r"contains no run"):
        iq.Result.read(tmp_path)
    for text in ("{", "[]", "{}", '{"complete": false}'):
        (tmp_path / "manifest.json").write_text(text)
        says = r"manifest\.json: (is not JSON|must be a table|inferq: missing)"
        with pytest.raises(iq.ResultError, match=says):
            iq.simulate(synthetic(5), ENGINE, out=tmp_path)
        with pytest.raises(iq.ResultError, match=r"manifest\.json: "):
            iq.Result.read(tmp_path)


def test_a_run_that_failed_at_once_is_no_obstacle(tmp_path: Path) -> None:
    wrong = {"arrival_s": [0.0], "prompt_tokens": [5], "output_tokens": [5], "session_id": ["a"]}
    router = type("Wrong", (iq.Router,), {"route": lambda self, request, fleet: 99})()
    with pytest.raises(iq.SimulationError):
        iq.simulate(wrong, iq.Cluster(ENGINE, replicas=2, router=router), out=tmp_path / "out")
    assert (tmp_path / "out" / "workload.parquet").exists()
    result = iq.simulate(synthetic(5), ENGINE, out=tmp_path / "out")
    assert result.height == 5 and not (tmp_path / "out" / "workload.parquet").exists()


def test_a_file_in_the_way_is_an_error_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(OSError, match="out"):
        iq.simulate(synthetic(5), ENGINE, out=tmp_path / "out")
    assert (tmp_path / "out").read_text() == "a file"


@pytest.mark.skipif(sys.platform == "win32", reason="limits the size of files as POSIX does")
def test_a_full_disk_is_an_error_and_loses_nothing(small: None, tmp_path: Path) -> None:
    """Parts grow with the queue, because all of its requests differ, until one exceeds the limit."""
    out = tmp_path / "out"
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(out), "8000", "50", "0"],
        capture_output=True,
        text=True,
        check=True,
    )
    sizes = [(out / part["file"]).stat().st_size for part in told(out)["parts"]]
    largest = max(sizes)
    full = tmp_path / "full"
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(full), "8000", "50", str(largest - 1)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    name = f"part-{sizes.index(largest):05}.parquet"
    assert run.returncode == 1
    last = run.stderr.strip().splitlines()[-1]
    assert (
        last.startswith("OSError: [Errno 27] File too large; the previous file is unchanged") and name in last
    )
    before = told(full)
    assert not before["complete"] and len(before["parts"]) == sizes.index(largest)
    assert parts_are_those_of(full, iq.simulate(synthetic(8000), ENGINE).requests) == before["written"]
    assert not list(full.rglob(".*"))
    with pytest.warns(UserWarning, match="interrupted after") if before["parts"] else _nothing():
        ended = iq.simulate(synthetic(8000), ENGINE, out=full)
    assert ended.requests.collect().equals(iq.simulate(synthetic(8000), ENGINE).requests)


def _nothing() -> Any:
    from contextlib import nullcontext

    return nullcontext()


def test_ctrl_c_leaves_what_was_written(small: None, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def stop(done: int, total: int) -> None:
        if len(told(out)["parts"]) >= 2:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        iq.simulate(synthetic(300_000), ENGINE, out=out, progress=stop)
    before = told(out)
    assert not before["complete"] and len(before["parts"]) >= 2
    assert parts_are_those_of(out, iq.simulate(synthetic(before["written"] + 1000), ENGINE).requests) > 0


def test_progress_ends_with_all(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    iq.simulate(
        synthetic(20_000),
        ENGINE,
        out=tmp_path / "out",
        progress=lambda done, total: calls.append((done, total)),
    )
    assert calls[-1] == (20_000, 20_000)
    assert all(total == 20_000 for _, total in calls) and calls == sorted(calls)


def test_objectives_of_a_scanned_workload_are_read_where_they_lie(small: None, tmp_path: Path) -> None:
    frame = synthetic(2000).draw(0).frame.with_columns(ttft_slo_s=pl.Series([0.01, 0.02] * 1000))
    frame.write_parquet(tmp_path / "work.parquet")
    whole = iq.simulate(frame, ENGINE)
    iq.simulate(iq.Workload.scan(tmp_path / "work.parquet"), ENGINE, out=tmp_path / "out")
    assert iq.Result.read(tmp_path / "out").summary().equals(whole.summary())
    goodput = whole.summary()["request_goodput"].item()
    assert 0 < goodput < whole.summary()["request_throughput"].item()
