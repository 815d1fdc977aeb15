"""Is the cost of a request the same for few and for many, for short outputs and for long ones?

    python benches/scaling.py            10⁴, 10⁵, 10⁶ requests
    python benches/scaling.py --large    10⁷ as well: a minute or two, 3 GB

Each line is a process of its own, which reads its frame and runs it several times: `iq.Workload`,
`iq.simulate` and the frame `itl`, load 0.9 of what the engine serves when all requests come at once; in turns
without and with the frame `requests`. All figures are for one request: of each kind the least time of the
runs in nanoseconds and the median, and the greatest memory of the process after the first run of its kind,
less that before all runs, in bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import polars as pl
import workloads

import inferq as iq

LONG = "W1 with outputs of 4000"
SECONDS_A_LINE = 3.0
KINDS = ("run", "frame")
"""Without and with the frame `requests`."""


def measure(path: str) -> dict[str, float]:
    """Time and memory of one frame; runs in a process of its own."""
    frame = pl.read_ipc(path)
    frame.sum()  # what the file maps into memory is touched now
    once(frame.head(100))  # what is loaded only once is no cost of a request
    before = greatest_memory()
    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    memory: dict[str, int] = {}
    while sum(seconds["frame"]) < SECONDS_A_LINE or len(seconds["frame"]) < 3:
        for kind in KINDS:
            seconds[kind].append(once(frame, asks=kind == "frame"))
            memory.setdefault(kind, greatest_memory() - before)
    measured = {}
    for kind in KINDS:
        measured[f"{kind} least"] = min(seconds[kind]) / frame.height
        measured[f"{kind} median"] = statistics.median(seconds[kind]) / frame.height
        measured[f"{kind} bytes"] = memory[kind] / frame.height
    return measured


def once(frame: pl.DataFrame, *, asks: bool = True) -> float:
    """Seconds from the frame to the frames, that of the requests among them if it is asked for."""
    start = time.perf_counter()
    result = iq.simulate(iq.Workload(frame), workloads.ENGINE)
    assert result.itl.height > 0
    assert not asks or result.requests.height == frame.height
    return time.perf_counter() - start


def greatest_memory() -> int:
    """The greatest resident memory that this process ever had, in bytes."""
    greatest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return greatest if sys.platform == "darwin" else greatest * 1024


def machine() -> str:
    """Processor, cores, Python."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.split(":", 1)[1] for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0].strip() if names else model
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}"


def in_a_process(name: str, requests: int, rate: float) -> dict[str, float]:
    """Draw a workload, and measure it in a new process."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "workload.ipc")
        workloads.synthetic(name, requests, rate).draw(1).frame.write_ipc(path)
        done = subprocess.run([sys.executable, __file__, "--one", path], check=True, capture_output=True)
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def generation() -> float:
    """Seconds to draw one request of W1: the least of seven runs of a million."""
    workload = workloads.synthetic("W1", 10**6, rate=10.0)
    seconds = []
    for _ in range(7):
        start = time.perf_counter()
        assert workload.draw(1).frame.height == 10**6
        seconds.append(time.perf_counter() - start)
    return min(seconds) / 10**6


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--large", action="store_true", help="10⁷ requests as well")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one)))
        return
    print(machine())
    print(f"drawing W1: {generation() * 1e9:.0f} ns a request")
    of_kind = "".join(f" {kind + ', ns':>9} {'median':>7} {'bytes':>6}" for kind in KINDS)
    print(f"{'workload':24} {'requests':>10}{of_kind} {'ratio':>6}")
    lines = [("W1", 10**power) for power in range(4, 8 if arguments.large else 7)]
    rates = {name: 0.9 * workloads.saturated_rate(name) for name in ("W1", LONG)}
    reference = None
    for name, requests in [*lines, (LONG, 10**5)]:
        one = in_a_process(name, requests, rates[name])
        if (name, requests) == ("W1", 10**5):
            reference = one["frame least"]
        cells = ""
        for kind in KINDS:
            # Less than a few megabytes hides in what the process had before.
            memory = f"{one[f'{kind} bytes']:.0f}" if requests >= 10**6 else ""
            least, median = one[f"{kind} least"] * 1e9, one[f"{kind} median"] * 1e9
            cells += f" {least:9.0f} {median:7.0f} {memory:>6}"
        ratio = f"{one['frame least'] / reference:.2f}" if reference else ""
        print(f"{name:24} {requests:10}{cells} {ratio:>6}", flush=True)
    print(f"ratio: of the time with the frame to that of W1 with {10**5} requests")


if __name__ == "__main__":
    main()
