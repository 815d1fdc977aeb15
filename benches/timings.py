"""What does a measured table cost, beside a model that is linear?

    python benches/timings.py

Each model serves W1 at 0.9 of its own saturated rate; the runs are taken in turns. Processor time of
`iq.simulate` over a frame in memory, ns a request.
"""

import statistics
import time
from dataclasses import replace

import workloads

import inferq as iq

REQUESTS = 300_000
REPETITIONS = 7
MODELS = {
    "PiecewiseLinear": workloads.ENGINE.timing,
    "Roofline, llama-3.1-8b on a100-80gb": iq.Roofline("llama-3.1-8b", "a100-80gb"),
    **{
        f"TimingTable, {model} on {gpu}": iq.TimingTable.shipped(model, gpu)
        for model, gpu in (
            ("llama-3.1-8b", "a100-80gb"),
            ("llama-3.1-8b", "h100-80gb"),
            ("llama-3.1-70b", "h200"),
        )
    },
}


def main() -> None:
    runs = {}
    for name, timing in MODELS.items():
        engine = replace(workloads.ENGINE, timing=timing)
        saturated = workloads.saturated_rate("W1", engine=engine)
        runs[name] = (workloads.synthetic("W1", REQUESTS, 0.9 * saturated).draw(1), engine)
    costs_ns: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(REPETITIONS):
        for name, (workload, engine) in runs.items():
            began_s = time.process_time()
            iq.simulate(workload, engine, seed=1)
            costs_ns[name].append((time.process_time() - began_s) / REQUESTS * 1e9)
    beside = min(costs_ns["PiecewiseLinear"])
    for name, cost_ns in costs_ns.items():
        print(
            f"{name:40} {statistics.median(cost_ns):5.0f} ns a request "
            f"({min(cost_ns):.0f} to {max(cost_ns):.0f}), least / least {min(cost_ns) / beside:.2f}"
        )


if __name__ == "__main__":
    main()
