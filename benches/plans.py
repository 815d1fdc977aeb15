"""How long does a plan take over a trace of an hour, and over a week with a schedule of replicas?

    python benches/plans.py conversation     Azure's conversations of 2023 ten times as fast, Llama-3.1-70B
    python benches/plans.py week             a week drawn from the same lengths, with its days and nights
    python benches/plans.py million          10⁶ candidates with a minute of time

Each prints what the search tells with the seconds since the start, the answer, and the greatest memory of the
process. The trace is found as `workloads.py` says. `--requests N` sets how many the week has.
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


def conversation(_requests: int, tell: Callable[[str], None]) -> str:
    """Three cards and four sizes of a replica for 54 requests a second."""
    trace = iq.read_trace(workloads.AZURE_TRACE).speed(10)
    return iq.plan(
        trace, SLO, model="llama-3.1-70b", gpus=CARDS, tensor_parallel=(1, 2, 4, 8), tell=tell
    ).explain()


def week(requests: int, tell: Callable[[str], None]) -> str:
    """The plan of the busiest hour, what each hour needs, and the run that follows the schedule."""
    shape = [rate(hour) for hour in range(7 * 24)]
    scale = requests / (HOUR_S * sum(shape))
    arrivals = iq.dist.TimeVarying(
        times_s=[HOUR_S * hour for hour in range(7 * 24)], rates=[scale * one for one in shape]
    )
    lengths = iq.dist.Empirical(iq.read_trace(workloads.AZURE_TRACE).frame)
    drawn = iq.Workload.synthetic(requests=requests, arrivals=arrivals, lengths=lengths).draw(1)
    tell(f"{requests:,} requests are drawn")
    busiest = HOUR_S * max(range(7 * 24), key=shape.__getitem__)
    found = iq.plan(
        drawn.window(busiest, busiest + HOUR_S),
        SLO,
        model="llama-3.1-8b",
        gpus=CARDS,
        tensor_parallel=1,
        tell=tell,
    )
    hours = found.schedule(HOUR_S, startup_s=120, workload=drawn)
    tell("the hours are planned")
    return f"{found.explain()}\n{hours}"


def rate(hour: int) -> float:
    """The load of an hour of the week: three times as much by day as at night, and half of it on two days."""
    day, of_day = divmod(hour, 24)
    return (2 - math.cos(2 * math.pi * (of_day - 3) / 24)) * (0.5 if day >= 5 else 1.0)


def million(_requests: int, tell: Callable[[str], None]) -> str:
    """Four cards, four sizes, 3,125 budgets, two caches, five ways to divide the fleet, two routers."""
    trace = iq.read_trace(workloads.AZURE_TRACE).head(8000).at_rate(40)
    found = iq.plan(
        trace,
        SLO,
        model="llama-3.1-8b",
        gpus=(*CARDS, "l40s"),
        schedulers=[{"token_budget": 256 + 2 * place} for place in range(3125)],
        caches=("none", "blocks"),
        pools=("together", "1:1", "1:2", "1:3", "2:1"),
        routers=(iq.LeastRequests(), iq.RoundRobin()),
        prices=iq.Prices(gpu_hour={"a100-80gb": 1.6, "h100-80gb": 2.5, "h200": 3.3, "l40s": 0.9}),
        time_s=60,
        tell=tell,
    )
    return f"{found.explain()}\n{found.candidates.height:,} rows of candidates"


def main() -> None:
    """Run one of them and print its times."""
    cases = {"conversation": conversation, "week": week, "million": million}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("case", choices=cases)
    parser.add_argument("--requests", type=int, default=2_000_000)
    given = parser.parse_args()
    begun = time.perf_counter()

    def tell(text: str) -> None:
        print(f"{time.perf_counter() - begun:7.1f} s  {text}", flush=True)

    said = cases[given.case](given.requests, tell)
    tell(said)
    print(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB at most")


if __name__ == "__main__":
    main()
