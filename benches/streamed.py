"""How long does a run take that leaves its results in a directory, and how much memory?

    python benches/streamed.py            10⁶ and 10⁷ requests: half a minute, 1 GB of disk
    python benches/streamed.py --large    10⁸ as well: some minutes, 9 GB of disk
    python benches/streamed.py --out DIR  where the directories are made, and removed again

W1 at a load of 0.9 (see `workloads.py`), drawn part by part. Each line is a process of its own. `run` is
`iq.simulate(..., out=…)`, `memory` the greatest resident memory of the process up to its end, less that of a
run of a thousand requests before; `disk` is what the directory takes. `summary` is `result.summary()` of a
fresh process that reads the directory, and its memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import workloads

import inferq as iq


def memory() -> int:
    """The greatest resident memory that this process ever had, in bytes."""
    greatest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return greatest if sys.platform == "darwin" else greatest * 1024


def run(requests: int, rate: float, out: str) -> dict[str, float]:
    """One run into a directory."""
    with tempfile.TemporaryDirectory() as warm:  # what is loaded only once is no cost of a request
        iq.simulate(workloads.synthetic("W1", 1000, rate), workloads.ENGINE, out=warm).summary()
    before = memory()
    start = time.perf_counter()
    result = iq.simulate(workloads.synthetic("W1", requests, rate), workloads.ENGINE, out=out)
    seconds = time.perf_counter() - start
    assert result.height == requests
    return {"seconds": seconds, "bytes": memory() - before}


def read(out: str) -> dict[str, float]:
    """The summary of what is in a directory."""
    before = memory()
    start = time.perf_counter()
    result = iq.Result.read(out)
    assert result.summary()["completed"].item() == result.height
    return {"seconds": time.perf_counter() - start, "bytes": memory() - before}


def apart(*arguments: str) -> dict[str, float]:
    """What this file says when it is called with these arguments."""
    told = subprocess.run(
        [sys.executable, __file__, *arguments], check=True, capture_output=True, text=True
    ).stdout
    return dict(json.loads(told))


def main() -> None:
    """The table, or one cell of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--out", default=None)
    parser.add_argument("--run", nargs=3)
    parser.add_argument("--read")
    given = parser.parse_args()
    if given.run:
        print(json.dumps(run(int(given.run[0]), float(given.run[1]), given.run[2])))
        return
    if given.read:
        print(json.dumps(read(given.read)))
        return
    rate = 0.9 * workloads.saturated_rate("W1")
    print("requests  run s  ns/request  memory MB  disk GB  bytes/request  summary s  memory MB")
    for requests in (10**6, 10**7, *((10**8,) if given.large else ())):
        place = tempfile.mkdtemp(dir=given.out)
        try:
            ran, summed = apart("--run", str(requests), str(rate), place), apart("--read", place)
            disk = sum(file.stat().st_size for file in Path(place).rglob("*.parquet"))
        finally:
            shutil.rmtree(place)
        print(
            f"{requests:8.0e} {ran['seconds']:6.1f} {ran['seconds'] / requests * 1e9:11.0f} "
            f"{ran['bytes'] / 1e6:10.0f} {disk / 1e9:8.2f} {disk / requests:14.1f} "
            f"{summed['seconds']:10.2f} {summed['bytes'] / 1e6:10.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
