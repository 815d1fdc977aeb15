"""Other simulators on the same law of requests, in turns in one run: what a further request costs.

    python benches/peers/compare.py PLACE [--requests 2000] [--rounds 3] [--only inferq,Vidur]

PLACE is a folder where each peer is installed once, from its index and nowhere else: Vidur by pip,
inference-lab by cargo. It runs in the environment of inferq. Everything serves prompts and outputs that
are lognormal, with Poisson arrivals, on one replica that takes 6 ms an iteration and 32 µs for each token
above 200 (inference-lab: its own linear cost of a step with the same two numbers). Rows are not the same,
laws are; what a request costs is compared, not what is said of it. Times are of the processor, so that
other work on the machine counts less.
"""

import argparse
import csv
import os
import random
import resource
import statistics
import subprocess
import sys
from pathlib import Path

RATE, BUDGET, SEATS, BLOCKS = 10, 512, 256, 27_000
PROMPT, OUTPUT = (6.5, 0.8), (5.0, 0.8)  # of the logarithm: mean and deviation
LONGEST = 32_768
NOT_HERE = {
    "AISimulate, Dynamo's mocker": "on PyPI a placeholder that fetches its wheel from another index",
    "BLIS": "a Go module that is on no index of packages",
}

OURS = f"""
import math, sys
import inferq as iq
def lognormal(mean, deviation):
    return iq.Lognormal(math.exp(mean + deviation**2 / 2), math.exp(mean), cap={LONGEST // 2})
workload = iq.Workload.synthetic(
    requests=int(sys.argv[1]), arrivals=iq.Poisson(rate={RATE}),
    prompt=lognormal{PROMPT}, output=lognormal{OUTPUT},
)
engine = iq.Engine(
    timing=iq.PiecewiseLinear(base=0.006, per_token=32e-6, knee=200, per_context_token=0.0),
    scheduler=iq.Sarathi(token_budget={BUDGET}, max_seqs={SEATS}), kv=iq.KvCache(tokens={16 * BLOCKS}),
)
print(iq.simulate(workload, engine, seed=1).summary().select("completed", "ttft_p50", "e2e_p50"))
"""


def install(place: Path) -> None:
    """Each peer in a folder of its own, unless it is there."""
    if not (place / "vidur").exists():
        run([sys.executable, "-m", "venv", place / "vidur"])
        run([place / "vidur/bin/python", "-m", "pip", "install", "--quiet", "vidur==0.0.26"])
    if not (place / "inference-lab/bin/inference-lab").exists():
        run(["cargo", "install", "--locked", "--root", place / "inference-lab", "inference-lab@1.0.0"])


def run(command: list[str | Path]) -> float:
    """Seconds of processor time of a command and what it starts."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{command[0]} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def of_inferq(place: Path, requests: int) -> list[str | Path]:
    return [sys.executable, "-c", OURS, str(requests)]


def of_vidur(place: Path, requests: int) -> list[str | Path]:
    draw, lengths = random.Random(1), place / "lengths.csv"
    with lengths.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["num_prefill_tokens", "num_decode_tokens"])
        for _ in range(requests):
            rows.writerow([1 + int(draw.lognormvariate(*PROMPT)), 1 + int(draw.lognormvariate(*OUTPUT))])
    options = {
        "replica_config_model_name": "meta-llama/Llama-3-8B",
        "replica_config_device": "h100",
        "replica_config_network_device": "h100_dgx",
        "replica_config_num_pipeline_stages": 1,
        "cache_config_num_blocks": BLOCKS,
        "replica_scheduler_config_type": "sarathi",
        "sarathi_scheduler_config_chunk_size": BUDGET,
        "sarathi_scheduler_config_batch_size_cap": SEATS,
        "synthetic_request_generator_config_num_requests": requests,
        "synthetic_request_generator_config_max_tokens": LONGEST,
        "length_generator_config_type": "trace",
        "trace_request_length_generator_config_trace_file": lengths,
        "trace_request_length_generator_config_max_tokens": LONGEST,
        "poisson_request_interval_generator_config_qps": RATE,
        "metrics_config_output_dir": place / "out",
    }
    off = ("store_plots", "enable_chrome_trace", "write_json_trace")
    given = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    script = Path(__file__).with_name("vidur_linear.py")
    native = "--no-random_forrest_execution_time_predictor_config_use_native_execution_time_predictor"
    return [
        place / "vidur/bin/python",
        script,
        *given,
        *(f"--no-metrics_config_{name}" for name in off),
        native,
    ]


def of_inference_lab(place: Path, requests: int) -> list[str | Path]:
    config, workload = place / "model.toml", place / "workload.toml"
    config.write_text(
        'model = "llama-3.1-8b-instruct"\n'
        f"[scheduler]\nmax_num_batched_tokens = {BUDGET}\nmax_num_seqs = {SEATS}\n"
        'policy = "fcfs"\nenable_chunked_prefill = true\nblock_size = 16\n[hardware.h100]\ntp = 1\n'
        'step_cost = { model = "linear", t0 = 0.006, tp = 3.2e-5, td = 0.0, tk = 0.0 }\n'
    )
    laws = ((f"{name}_len_dist", law) for name, law in (("input", PROMPT), ("output", OUTPUT)))
    workload.write_text(
        f'arrival_pattern = "poisson"\narrival_rate = {RATE}.0\nnum_requests = {requests}\nseed = 1\n'
        + "".join(
            f'[{name}]\ntype = "lognormal"\nmean = {mean}\nstd_dev = {dev}\n' for name, (mean, dev) in laws
        )
    )
    return [
        place / "inference-lab/bin/inference-lab",
        "--config",
        config,
        "--hardware",
        "h100",
        "--workload",
        workload,
    ]


# Each with as many times the requests as make its run some seconds long.
PEERS = {"inferq": (of_inferq, 200), "inference-lab": (of_inference_lab, 50), "Vidur": (of_vidur, 1)}


def main() -> None:
    asked = argparse.ArgumentParser(prog="compare", description=__doc__.splitlines()[0])
    asked.add_argument("place", type=Path)
    asked.add_argument("--requests", type=int, default=2000)
    asked.add_argument("--rounds", type=int, default=3)
    asked.add_argument("--only", default=",".join(PEERS), help="names of peers, by commas")
    options = asked.parse_args()
    place = options.place.resolve()
    place.mkdir(parents=True, exist_ok=True)
    install(place)
    load = os.getloadavg()[0]
    print(f"{options.rounds} rounds in turns, load average {load:.1f}")
    names = options.only.split(",")
    further_s: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(options.rounds):
        for name in names:
            command, times = PEERS[name]
            many, few = options.requests * times, options.requests * times // 10
            cost = run(command(place, many)) - run(command(place, few))
            further_s[name].append(cost / (many - few))
    print("| | requests | a further request, µs of processor, median (least to greatest) |\n|---|---|---|")
    for name, costs in further_s.items():
        least, middle, most = (1e6 * pick(costs) for pick in (min, statistics.median, max))
        requests = options.requests * PEERS[name][1]
        print(f"| {name} | {requests:,} | {middle:,.2f} ({least:,.2f}–{most:,.2f}) |")
    for name, reason in NOT_HERE.items():
        print(f"| {name} | not here: {reason} | |")


if __name__ == "__main__":
    main()
