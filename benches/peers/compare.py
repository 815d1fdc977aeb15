"""Other simulators beside inferq on one machine: what a request costs, and what of vLLM they repeat.

    python benches/peers/compare.py PLACE speed [--requests 2000] [--rounds 3] [--only inferq,Vidur]
    python benches/peers/compare.py PLACE recorded

PLACE is a folder where each peer is installed once, from its index and nowhere else: Vidur by pip from PyPI,
AISimulate (the engine of Dynamo's mocker) and inference-lab as crates, built with `drivers/`. It runs in the
environment of inferq.

`speed`: all serve the same rows, lognormal prompts and outputs with Poisson arrivals, on one replica that
takes 6 ms an iteration and 20 µs for each token. What a further request costs is the difference of two runs
over that of their requests, in seconds of processor time, so that starting up and other work on the machine
count less. Of the peers the engine alone is driven, without their reports.

`recorded`: the cases of `tests/conformance`, in which every batch of vLLM 0.32 is known, are asked of each:
is every request's first token and end, and every preemption, at the recorded instant?
"""

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent))

Case = dict[str, Any]
RATE, LONGEST = 10.0, 16_384
PROMPT, OUTPUT = (6.5, 0.8), (5.0, 0.8)  # of the logarithm: mean and deviation
ENGINE: Case = {
    "kv_tokens": 16 * 27_000,
    "block_tokens": 16,
    "token_budget": 512,
    "max_seqs": 256,
    "long_prefill_threshold": 0,
    "policy": "fcfs",
    "prefix": False,
    "reserve_full_prompt": False,
    "price_us": {"base": 6000, "per_token": 20, "per_context_token": 0},
}
NOT_HERE = {
    "BLIS": "a Go module, which no index of packages that is reached here has",
    "Dynamo's routers and planner": "`ai-dynamo` 1.6.1 on PyPI needs `aisimulate`, there a placeholder",
}


def install(place: Path) -> None:
    """Each peer in a folder of its own, unless it is there."""
    if not (place / "vidur").exists():
        subprocess.run([sys.executable, "-m", "venv", place / "vidur"], check=True)
        pip = (place / "vidur/bin/python", "-m", "pip", "install", "--quiet")
        subprocess.run([*pip, "vidur==0.0.26"], check=True)
    built = {**os.environ, "CARGO_TARGET_DIR": str(place / "drivers")}
    build = ("cargo", "build", "--release", "--locked", "--quiet")
    subprocess.run(build, check=True, cwd=HERE / "drivers", env=built)


def peers(place: Path) -> dict[str, list[str]]:
    """The commands that take cases as JSON and give outcomes."""
    return {
        "AISimulate": [str(place / "drivers/release/aisimulate")],
        "inference-lab": [str(place / "drivers/release/inference_lab")],
        "Vidur": [str(place / "vidur/bin/python"), str(HERE / "vidur_driver.py")],
    }


def ask(command: list[str], cases: list[Case]) -> list[dict[str, Any]]:
    """What a peer makes of the cases: `Ok` an outcome, or `Err` why not."""
    done = subprocess.run(command, input=json.dumps(cases), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{command[0]} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    outcomes: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return outcomes


def rows(requests: int) -> list[Case]:
    """The workload: the same for all."""
    draw, now_us, drawn = random.Random(1), 0.0, []
    for _ in range(requests):
        now_us += draw.expovariate(RATE) * 1e6
        prompt, output = (1 + int(min(draw.lognormvariate(*law), LONGEST)) for law in (PROMPT, OUTPUT))
        drawn.append({"arrival_us": round(now_us), "prompt_tokens": prompt, "output_tokens": output})
    return drawn


OURS = """
import json, sys
import polars as pl
import inferq as iq
from tests.recordings import vllm_engine
requests = pl.read_csv(sys.argv[1])
engine = vllm_engine(json.loads(sys.argv[2]))
result = iq.simulate(iq.Workload(requests), engine)
print(json.dumps({"finish_s": result.requests["finish_s"].sum()}))
"""


def command_of_inferq(place: Path, case: Case) -> list[str]:
    """Its rows in a file, read as a user reads them."""
    file = place / "rows.csv"
    lines = ["arrival_s,prompt_tokens,output_tokens"]
    for row in case["requests"]:
        lines.append(f"{row['arrival_us'] / 1e6},{row['prompt_tokens']},{row['output_tokens']}")
    file.write_text("\n".join(lines) + "\n")
    described = json.dumps({name: value for name, value in case.items() if name != "requests"})
    return [sys.executable, "-c", OURS, str(file), described]


def processor_s(place: Path, name: str, case: Case) -> float:
    """Seconds of processor time that a peer takes for a case, from its start to its end."""
    ours = command_of_inferq(place, case) if name == "inferq" else []
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    if ours:
        subprocess.run(ours, check=True, capture_output=True, cwd=HERE.parent.parent)
    else:
        (outcome,) = ask(peers(place)[name], [case])
        if "Err" in outcome:
            sys.exit(f"{name}: {outcome['Err']}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


# Each with as many times the requests as make its run some seconds long.
TIMES = {"inferq": 500, "AISimulate": 10, "inference-lab": 50, "Vidur": 1}


def speed(place: Path, requests: int, rounds: int, names: list[str]) -> None:
    """A table of what a further request costs."""
    print(f"{rounds} rounds in turns, load average {os.getloadavg()[0]:.1f}")
    further_s: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            many, few = requests * TIMES[name], requests * TIMES[name] // 10
            costs = [processor_s(place, name, {**ENGINE, "requests": rows(count)}) for count in (many, few)]
            further_s[name].append((costs[0] - costs[1]) / (many - few))
    print("| | requests | a further request, µs of processor, median (least to greatest) |\n|---|---|---|")
    for name, costs in further_s.items():
        least, middle, most = (1e6 * pick(costs) for pick in (min, statistics.median, max))
        print(f"| {name} | {requests * TIMES[name]:,} | {middle:,.2f} ({least:,.2f} to {most:,.2f}) |")
    for name, reason in NOT_HERE.items():
        print(f"| {name} | not here: {reason} | |")


def with_tokens(case: Case) -> Case:
    """The prompts themselves: the first tokens of texts, and then tokens of their own."""
    told = []
    for number, row in enumerate(case["requests"]):
        tokens = [text * 100_000 + n for text, count in row.get("prefix_parts", []) for n in range(count)]
        own = range(10_000_000 + 100_000 * number, 10_000_000 + 100_000 * number + row["prompt_tokens"])
        told.append({**row, "tokens": [*tokens, *own][: row["prompt_tokens"]]})
    return {**case, "requests": told}


def is_recorded(outcome: Case, expected: Case) -> bool:
    """Every first token and every end within half a microsecond, and every preemption."""
    instants = ("first_token_us", "finish_us")
    return outcome["preemptions"] == expected["preemptions"] and all(
        abs((mine if mine is not None else -1e9) - theirs) < 0.5
        for name in instants
        for mine, theirs in zip(outcome[name], expected[name], strict=True)
    )


def of_inferq(cases: list[Case]) -> list[dict[str, Any]]:
    """What inferq makes of recorded cases, in the form in which peers answer."""
    from tests.recordings import vllm_engine, vllm_outcome, workload

    import inferq as iq

    scenarios = [case["scenario"] for case in cases]
    runs = (iq.simulate(workload(one["requests"]), vllm_engine(one), batches=True) for one in scenarios)
    return [{"Ok": vllm_outcome(run)} for run in runs]


def recorded(place: Path, names: list[str]) -> None:
    """A table of the recorded cases that each repeats; one that it breaks over is asked, and not repeated."""
    from tests.recordings import recorded as of_vllm

    print("| | plain: asked | repeated | prefix cache: asked | repeated | not asked, or broken over |")
    print("|---|---|---|---|---|---|")
    for name in names:
        line, reasons = [], set()
        for file in ("vllm_v1", "vllm_v1_prefix"):
            cases = of_vllm(file)
            told = [with_tokens(case["scenario"]) for case in cases]
            outcomes = of_inferq(cases) if name == "inferq" else ask(peers(place)[name], told)
            failed = [outcome["Err"] for outcome in outcomes if "Err" in outcome]
            reasons |= set(failed)
            pairs = zip(outcomes, cases, strict=True)
            repeated = [
                is_recorded(outcome["Ok"], case["expected"]) for outcome, case in pairs if "Ok" in outcome
            ]
            refused = sum(reason.startswith("it has no") for reason in failed)
            line += [str(len(cases) - refused), str(sum(repeated))]
        print(f"| {name} | {' | '.join(line)} | {'; '.join(sorted(reasons))} |")


def main() -> None:
    asked = argparse.ArgumentParser(prog="compare", description=__doc__.splitlines()[0])
    asked.add_argument("place", type=Path)
    asked.add_argument("what", choices=["speed", "recorded"])
    asked.add_argument("--requests", type=int, default=2000)
    asked.add_argument("--rounds", type=int, default=3)
    asked.add_argument("--only", default=",".join(TIMES), help="names of peers, by commas")
    options = asked.parse_args()
    place = options.place.resolve()
    place.mkdir(parents=True, exist_ok=True)
    install(place)
    names = options.only.split(",")
    if options.what == "speed":
        speed(place, options.requests, options.rounds, names)
    else:
        recorded(place, names)


if __name__ == "__main__":
    main()
