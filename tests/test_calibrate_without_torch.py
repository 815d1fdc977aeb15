"""Is the extra `inferq[calibrate]` named where it is missing, and is CUDA asked in the right order?"""

import subprocess
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

import inferq as iq
from inferq.cli import app
from inferq.timing.calibration.stopwatch import CudaStopwatch, HostStopwatch


def test_without_pytorch_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(iq.ConfigError, match=r"requires PyTorch .* pip install 'inferq\[calibrate\]'"):
        iq.timing.calibrate("llama-3.1-8b")
    done = CliRunner().invoke(app, ["calibrate", "llama-3.1-8b", "--out", str(tmp_path / "here.parquet")])
    assert done.exit_code == 2 and "pip install 'inferq[calibrate]'" in done.output
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_judged_before_anything_is_timed(tmp_path):
    for out, says in (
        ("here.csv", "must be a .parquet file"),
        ("nowhere/here.parquet", "does not exist"),
    ):
        done = CliRunner().invoke(app, ["calibrate", "llama-3.1-8b", "--out", str(tmp_path / out)])
        assert done.exit_code == 2 and says in done.output


def test_to_name_calibrate_imports_no_pytorch():
    code = "import inferq as iq, sys; iq.timing.calibrate; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_host_is_warmed_up_once_and_then_timed():
    runs = []
    seconds = HostStopwatch().seconds(lambda: runs.append(1), 4)
    assert len(runs) == 5 and len(seconds) == 4 and min(seconds) >= 0


class Cuda:
    """Writes down what is asked of it; each replay takes one second more than the last."""

    def __init__(self):
        self.log = []
        self.clock_ms = 0.0
        self.replays = 0
        self.capturing = False

    def module(self):
        flushed = SimpleNamespace(zero_=self.flush)
        self.sizes = []

        def empty(size, dtype, device):
            self.sizes.append(size)
            return flushed

        cuda = SimpleNamespace(
            get_device_properties=lambda device: SimpleNamespace(L2_cache_size=1000),
            Event=self.event,
            Stream=lambda device: SimpleNamespace(wait_stream=lambda other: self.log.append("side waits")),
            current_stream=lambda device: SimpleNamespace(
                wait_stream=lambda other: self.log.append("main waits")
            ),
            stream=lambda stream: self.block("side"),
            synchronize=lambda device: self.log.append("synchronize"),
            CUDAGraph=lambda: SimpleNamespace(replay=self.replay),
            graph=lambda graph: self.block("capture"),
        )
        return SimpleNamespace(cuda=cuda, empty=empty, int8="int8")

    @contextmanager
    def block(self, name):
        self.log.append(f"{name} begins")
        yield
        self.log.append(f"{name} ends")

    def flush(self):
        self.log.append("flush")
        self.clock_ms += 77_000

    def replay(self):
        self.log.append("replay")
        self.replays += 1
        self.clock_ms += 1000 * self.replays

    def event(self, enable_timing):
        assert enable_timing
        event = SimpleNamespace(at=None)

        def record():
            event.at = self.clock_ms
            self.log.append("event")

        def elapsed_time(end):
            assert self.log[-1] == "synchronize"
            return end.at - event.at

        event.record, event.elapsed_time = record, elapsed_time
        return event


def test_cuda_is_warmed_up_beside_captured_once_and_replayed_from_a_cold_cache():
    cuda = Cuda()
    watch = CudaStopwatch(cuda.module(), "cuda")
    assert cuda.sizes == [2000]
    seconds = watch.seconds(lambda: cuda.log.append("work"), 3)
    assert seconds == [2.0, 3.0, 4.0]  # the first replay and what is written between are not counted
    repetition = ["flush", "event", "replay", "event"]
    assert cuda.log == [
        "side waits",
        *("side begins", "work", "work", "work", "side ends"),
        *("main waits", "synchronize"),
        *("capture begins", "work", "capture ends"),
        "replay",
        *(3 * repetition),
        "synchronize",
    ]
