"""Duration of plans over a trace of one hour, and over a week with a replica schedule.

    python benches/plans.py conversation     Azure's conversations of 2023 ten times as fast, Llama-3.1-70B
    python benches/plans.py week             a week drawn from the same lengths, with its days and nights

Each prints the log of the search with elapsed seconds, the answer, and the peak memory of the process.
`workloads.py` describes where the trace is. `--requests N` sets the number of requests of the week.
"""

from __future__ import annotations

import argparse
import math
import resource
import time
from collections.abc import Callable

import workloads

import inferq as iq

CARDS = ("a100-80gb", "h100-80gb", "h200")
SLO = iq.Slo(ttft_p99=1.0)
HOUR_S = 3600


def conversation(_requests: int, log: Callable[[str], None]) -> str:
    """Three cards and four sizes of a replica for 54 requests a second."""
    trace = iq.read_trace(workloads.AZURE_TRACE).speed(10)
    return iq.plan(
        trace, SLO, model="llama-3.1-70b", gpus=CARDS, tensor_parallel=(1, 2, 4, 8), log=log
    ).explain()


def week(requests: int, log: Callable[[str], None]) -> str:
    """The plan of the busiest hour, what each hour needs, and the run that follows the schedule."""
    shape = [rate(hour) for hour in range(7 * 24)]
    scale = requests / (HOUR_S * sum(shape))
    arrivals = iq.dist.TimeVarying(
        times_s=[HOUR_S * hour for hour in range(7 * 24)], rates=[scale * one for one in shape]
    )
    lengths = iq.dist.Empirical(iq.read_trace(workloads.AZURE_TRACE).frame)
    drawn = iq.Workload.synthetic(requests=requests, arrivals=arrivals, lengths=lengths).draw(1)
    log(f"{requests:,} requests drawn")
    busiest = HOUR_S * max(range(7 * 24), key=shape.__getitem__)
    found = iq.plan(
        drawn.window(busiest, busiest + HOUR_S),
        SLO,
        model="llama-3.1-8b",
        gpus=CARDS,
        tensor_parallel=1,
        log=log,
    )
    hours = found.schedule(HOUR_S, startup_s=120, workload=drawn)
    log("schedule finished")
    return f"{found.explain()}\n{hours}"


def rate(hour: int) -> float:
    """The load of an hour of the week: three times as high by day as at night, and half on weekends."""
    day, of_day = divmod(hour, 24)
    return (2 - math.cos(2 * math.pi * (of_day - 3) / 24)) * (0.5 if day >= 5 else 1.0)


def main() -> None:
    """Run one case and print its times."""
    cases = {"conversation": conversation, "week": week}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("case", choices=cases)
    parser.add_argument("--requests", type=int, default=2_000_000)
    given = parser.parse_args()
    begun = time.perf_counter()

    def log(text: str) -> None:
        print(f"{time.perf_counter() - begun:7.1f} s  {text}", flush=True)

    answer = cases[given.case](given.requests, log)
    log(answer)
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB")


if __name__ == "__main__":
    main()
