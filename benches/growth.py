"""Does the cost stay in proportion to what there is, along every axis on which a scenario can grow?

    python benches/growth.py                    # the table: three sizes of each axis, a hundredfold apart
    python benches/growth.py "VllmV0" chain     # axes of these names, or whose names contain it
    python benches/growth.py --quick            # two small sizes of some, in one process: half a minute
    python benches/growth.py --sizes 100 1000   # sizes of one's own, for the axes that are named

Counted are instructions, by callgrind, from the call to its result: Python, the border and the core. They do
not depend on what else the machine does. An axis has a unit: most often a request. Where what is asked for
grows faster than the size, the unit says it: the turns of a session repeat all that was said before, so that
their prompts have in all a number of tokens that grows with the square of the turns, and it is those that are
counted.

The exponent of a step from one size to the next is that of instructions over units: 1 is in proportion. Above
`MOST` is an error.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

import inferq as iq

MOST = 1.1
"""The greatest exponent of the last step that passes."""

QUICK_MOST = 1.2
"""The same for the quick form: between small sizes a fixed cost lowers it, and logarithms raise it."""

Call = Callable[[], Any]
Cache = Literal["blocks", "radix"]


@dataclass(frozen=True)
class Axis:
    """Something that can be large, and what is done with it."""

    name: str
    prepare: Callable[[int], tuple[Call, int]]
    """What is counted at a size, and how many units that is."""
    sizes: tuple[int, int, int]
    unit: str = "request"
    least: int = 0
    """The smaller size of the quick form, where the smallest of all tells nothing yet."""

    @property
    def quick(self) -> tuple[int, int]:
        """Two sizes that cost little."""
        smaller = self.least or self.sizes[0]
        return smaller, 5 * smaller


CONSTANT = iq.Constant(0.01)


def engine(
    scheduler: Any, tokens: int | None = None, block: int = 16, cache: Cache | None = None
) -> iq.Engine:
    """An engine of which only the scheduler and the memory matter."""
    return iq.Engine(
        timing=CONSTANT, scheduler=scheduler, kv=iq.KvCache(tokens=tokens, block=block, prefix_cache=cache)
    )


def lengths(requests: int, prompt: int, output: int) -> dict[str, Any]:
    """All at instant 0, of about these lengths."""
    dice = np.random.default_rng(requests)
    return {
        "arrival_s": np.zeros(requests),
        "prompt_tokens": dice.integers(1, 2 * prompt, requests),
        "output_tokens": dice.integers(1, 2 * output, requests),
    }


def run(workload: Any, system: Any, streamed: bool = False) -> Call:
    """A run on one thread, whose results stay in memory or are streamed into a directory."""
    workload = workload if isinstance(workload, iq.Workload) else iq.Workload(workload)
    if not streamed:
        return lambda: iq.simulate(workload, system, threads=1)

    def call() -> None:
        with tempfile.TemporaryDirectory() as folder:
            iq.simulate(workload, system, threads=1, out=folder)

    return call


def running(scheduler: Callable[[int], Any]) -> Callable[[int], tuple[Call, int]]:
    """All that come run at once, and there is memory for all of them."""
    return lambda size: (run(lengths(size, 20, 20), engine(scheduler(size))), size)


def waiting(scheduler: Any, tokens: int = 20_000) -> Callable[[int], tuple[Call, int]]:
    """All come at once, and there is memory for few of them."""
    return lambda size: (run(lengths(size, 100, 40), engine(scheduler, tokens)), size)


def overload(scheduler: Callable[[int], Any]) -> Callable[[int], tuple[Call, int]]:
    """Twice as many come as can be served, and all of them have seats: more and more of them run."""

    def prepare(size: int) -> tuple[Call, int]:
        workload = lengths(size, 20, 20) | {"arrival_s": np.arange(size) / 300}
        return run(workload, engine(scheduler(size))), size

    return prepare


def turns(
    gap_s: float, scheduler: Any, cache: Cache, unit: str = "token", replicas: int = 1, streamed: bool = False
) -> Callable[[int], tuple[Call, int]]:
    """One session whose turns do not wait for answers, and go to the replicas by turns."""

    def prepare(size: int) -> tuple[Call, int]:
        prompts = 40 + 60 * np.arange(size)
        workload = {
            "arrival_s": gap_s * np.arange(size),
            "prompt_tokens": prompts,
            "output_tokens": np.full(size, 20),
            "session_id": np.zeros(size, dtype=int),
            "turn": np.arange(size),
        }
        one: Any = engine(scheduler, cache=cache)
        system = one if replicas == 1 else iq.Cluster(one, replicas=replicas, router=iq.RoundRobin())
        call = run(workload, system, streamed)
        return call, size if unit == "turn" else int(prompts.sum())

    return prepare


def sessions(scheduler: Any, cache: Cache) -> Callable[[int], tuple[Call, int]]:
    """Sessions of five turns, all of which come at once."""

    def prepare(size: int) -> tuple[Call, int]:
        turn, session = np.divmod(np.arange(5 * size), size)
        workload = {
            "arrival_s": np.zeros(5 * size),
            "prompt_tokens": 40 + 60 * turn,
            "output_tokens": np.full(5 * size, 20),
            "session_id": session,
            "turn": turn,
        }
        return run(workload, engine(scheduler, cache=cache)), 5 * size

    return prepare


def classes(scheduler: Callable[[list[str]], Any]) -> Callable[[int], tuple[Call, int]]:
    """Many classes among six thousand requests: a batch may look at each class, and no more."""

    def prepare(size: int) -> tuple[Call, int]:
        names = [f"{code:06}" for code in range(size)]
        workload = lengths(6_000, 20, 5)
        workload["arrival_s"] = np.arange(6_000) / 100
        workload["class"] = [names[code] for code in np.random.default_rng(1).permutation(6_000) % size]
        return run(workload, engine(scheduler(names), 20_000)), size

    return prepare


def classes_that_wait(scheduler: Callable[[list[str]], Any]) -> Callable[[int], tuple[Call, int]]:
    """The same load for each class at any size, beyond what memory is there for: a batch that is planned may
    look at each class, and no more."""

    def prepare(size: int) -> tuple[Call, int]:
        names = [f"{code:06}" for code in range(size)]
        workload = lengths(20 * size, 20, 5)
        workload["arrival_s"] = 3 * np.arange(20 * size) / size
        workload["class"] = [names[code] for code in np.random.default_rng(1).permutation(20 * size) % size]
        call = run(workload, engine(scheduler(names), 20 * size))
        return call, size * call().totals["stretches"]

    return prepare


def mix(size: int) -> tuple[Call, int]:
    """Many laws side by side, each with ten requests."""
    length = iq.dist.Fixed(20)
    parts = {
        f"{part:06}": iq.Workload.synthetic(
            requests=10, arrivals=iq.dist.Poisson(1.0), prompt=length, output=length
        )
        for part in range(size)
    }
    mixed = iq.Workload.mix(parts)
    return lambda: mixed.draw(1), 10 * size


def workflow(size: int) -> tuple[Call, int]:
    """A chain of stages, and twenty jobs that go through it."""

    def call() -> Any:
        stages = {
            f"{number:06}": iq.Stage("one", prompt=20, output=5, after=f"{number - 1:06}" if number else ())
            for number in range(size)
        }
        network = iq.Network({"one": engine(iq.Sarathi())}, [iq.Workflow("chain", stages)])
        return iq.simulate({"arrival_s": np.arange(20.0)}, network, threads=1)

    return call, 20 * size


def growing(size: int) -> tuple[Call, int]:
    """A chain of stages each of which goes on from the one before, and one job."""
    stages = {
        f"{number:06}": iq.Stage(
            "one",
            prompt=20,
            output=5,
            after=f"{number - 1:06}" if number else (),
            continues=f"{number - 1:06}" if number else None,
        )
        for number in range(size)
    }
    network = iq.Network({"one": engine(iq.VllmV1(), cache="blocks")}, [iq.Workflow("chain", stages)])
    return lambda: iq.simulate({"arrival_s": [0.0]}, network, threads=1), 25 * size * (size + 1) // 2


def fleet(router: Any, cache: Cache | None = None) -> Callable[[int], tuple[Call, int]]:
    """Three requests for each of many replicas."""

    def prepare(size: int) -> tuple[Call, int]:
        workload = lengths(3 * size, 100, 40)
        workload["arrival_s"] = np.arange(3 * size) / (10 * size)
        if cache:
            texts = np.random.default_rng(2).integers(0, max(size // 4, 1), 3 * size)
            workload["prompt_tokens"] = 64 + workload["prompt_tokens"]
            workload["prefix_parts"] = [[[int(text), 64]] for text in texts]
        one = engine(iq.VllmV1(), 20_000, cache=cache)
        return run(workload, iq.Cluster(one, replicas=size, router=router)), 3 * size

    return prepare


MANY = 1 << 30
THOUSANDS = (300, 3_000, 30_000)
HUNDREDS = (30, 300, 3_000)

AXES = [
    *(
        Axis(f"running, memory for all, {name}", running(scheduler), THOUSANDS)
        for name, scheduler in {
            "Sarathi": lambda size: iq.Sarathi(max_seqs=size),
            "VllmV1": lambda size: iq.VllmV1(max_seqs=size),
            "VllmV0": lambda size: iq.VllmV0(max_seqs=size),
            "Sglang": lambda size: iq.Sglang(max_seqs=size),
            "Orca": lambda size: iq.research.Orca(
                max_seqs=size, max_model_len=100, token_budget=512, chunked=True
            ),
            "KFcfs": lambda size: iq.research.KFcfs(token_budget=512, k_prefill=MANY, k_decode=64),
            "Rad": lambda size: iq.research.Rad(rows=8, columns=size, reduction=64, requests_per_cycle=8),
            "Slai": lambda size: iq.research.Slai(max_active=size, max_decodes=256),
            "SlotGreedy": lambda size: iq.research.SlotGreedy(chunk=64),
        }.items()
    ),
    *(
        Axis(f"overload, a slot for each, {name}", overload(scheduler), THOUSANDS)
        for name, scheduler in {
            "Sarathi": lambda size: iq.Sarathi(max_seqs=size, token_budget=64),
            "VllmV1": lambda size: iq.VllmV1(max_seqs=size, token_budget=64),
            "VllmV0": lambda size: iq.VllmV0(max_seqs=size, token_budget=64),
            "Orca": lambda size: iq.research.Orca(
                max_seqs=size, max_model_len=100, token_budget=64, chunked=True
            ),
            "KFcfs": lambda size: iq.research.KFcfs(token_budget=64, k_prefill=MANY, k_decode=MANY),
            "Slai": lambda size: iq.research.Slai(max_active=size, max_decodes=64, token_budget=64),
        }.items()
    ),
    *(
        Axis(
            f"waiting, little memory, {type(scheduler).__name__}", waiting(scheduler), THOUSANDS, least=1_000
        )
        for scheduler in (
            iq.Sarathi(),
            iq.VllmV1(),
            iq.VllmV0(),
            iq.Sglang(),
            iq.research.Orca(max_model_len=400),
            iq.research.KFcfs(token_budget=512, k_prefill=MANY, k_decode=64),
            iq.research.Slai(),
            iq.research.SlotGreedy(chunk=64),
            iq.research.Wait(thresholds=8),
        )
    ),
    Axis(
        "turns of one session at once, blocks", turns(0.0, iq.VllmV1(), "blocks"), (40, 400, 4_000), "token"
    ),
    Axis(
        "turns of one session, a second apart, blocks",
        turns(1.0, iq.VllmV1(), "blocks", "turn"),
        (40, 400, 4_000),
        "turn",
        least=1_000,
    ),
    *(
        Axis(
            f"turns of one session, a second apart, {name}",
            turns(1.0, iq.VllmV1(), "blocks", "turn", **how),
            (40, 400, 4_000),
            "turn",
            least=1_000,
        )
        for name, how in {"streamed": {"streamed": True}, "4 replicas in turn": {"replicas": 4}}.items()
    ),
    Axis("turns of one session at once, radix", turns(0.0, iq.VllmV1(), "radix"), (40, 400, 4_000), "token"),
    Axis(
        "open-loop sessions of 5 turns at once, blocks", sessions(iq.VllmV1(), "blocks"), (200, 2_000, 20_000)
    ),
    Axis(
        "open-loop sessions of 5 turns at once, radix", sessions(iq.Sglang(), "radix"), (200, 2_000, 20_000)
    ),
    Axis("distributions in Workload.mix, drawing", mix, (40, 400, 4_000)),
    Axis(
        "classes, Wait",
        classes_that_wait(lambda names: iq.research.Wait(thresholds=1)),
        (30, 300, 3_000),
        "check",
    ),
    Axis(
        "classes, Wait by name",
        classes_that_wait(lambda names: iq.research.Wait(thresholds=dict.fromkeys(names, 1))),
        (30, 300, 3_000),
        "check",
    ),
    Axis(
        "classes, ClassPriority",
        classes(lambda names: iq.ClassPriority(order=names, inner=iq.Sarathi())),
        (30, 300, 3_000),
        "class",
    ),
    Axis("classes, Sarathi", classes(lambda names: iq.Sarathi()), (30, 300, 3_000), "class"),
    Axis("stages of a chain, 20 jobs", workflow, (20, 200, 2_000)),
    Axis("stages of a continuing chain, blocks", growing, (40, 400, 4_000), "token"),
    *(
        Axis(f"replicas, {type(router).__name__}", fleet(router), HUNDREDS, least=200)
        for router in (iq.LeastRequests(), iq.LeastTokens(), iq.LeastKv(), iq.RoundRobin())
    ),
    Axis("replicas, PrefixAffinity", fleet(iq.PrefixAffinity(weight=2.0), "blocks"), HUNDREDS, least=200),
    Axis(
        "replicas, PrefixAffinity, reports",
        fleet(iq.PrefixAffinity(weight=2.0, update_s=0.1), "blocks"),
        HUNDREDS,
    ),
]

QUICK = (
    "running, memory for all, KFcfs",
    "overload, a slot for each, VllmV0",
    "overload, a slot for each, Slai",
    "waiting, little memory, KFcfs",
    "waiting, little memory, Sglang",
    "open-loop sessions of 5 turns at once, blocks",
    "turns of one session at once, blocks",
    "turns of one session, a second apart, blocks",
    "classes, Wait",
    "classes, ClassPriority",
    "stages of a chain, 20 jobs",
    "replicas, LeastTokens",
    "replicas, LeastKv",
    "replicas, PrefixAffinity",
)
"""Axes of the quick form."""

COUNTED = "PyNumber_InPlaceMatrixMultiply"
"""What Python's `@=` calls, and nothing else does here: the instructions inside it are counted."""


class Count:
    """`count @= call` makes the call inside of `COUNTED`."""

    def __imatmul__(self, call: Call) -> Count:
        call()
        return self


def count_here(cases: list[tuple[str, list[int]]]) -> None:
    """Counts axes at some sizes, and prints the units of each; what is loaded only once comes before."""
    count = Count()
    for name, sizes in cases:
        axis = next(axis for axis in AXES if axis.name == name)
        axis.prepare(sizes[0] // 4 or 1)[0]()
        for size in sizes:
            call, units = axis.prepare(size)
            count @= call
            print(units, flush=True)


def counted(cases: list[tuple[str, list[int]]]) -> list[list[tuple[int, int]]]:
    """Units and instructions at each size of each axis, counted in one process under callgrind."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "profile"
        command = ["valgrind", "--tool=callgrind", "--quiet", f"--callgrind-out-file={out}"]
        command += [f"--toggle-collect={COUNTED}", f"--dump-after={COUNTED}", sys.executable, __file__]
        command += ["--count", json.dumps(cases)]
        environment = os.environ | {"PYTHONHASHSEED": "0", "POLARS_MAX_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode:
            raise SystemExit(f"{cases}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
        units = [int(line) for line in done.stdout.split()]
        if not out.with_name(f"{out.name}.{len(units)}").exists():
            raise SystemExit(f"{sys.executable} has no symbol {COUNTED}: nothing was counted")
        parts = [(out.parent / f"{out.name}.{part}").read_text() for part in range(1, len(units) + 1)]
    totals = ("summary:", "totals:")
    instructions = [
        next(int(line.split()[1]) for line in text.splitlines() if line.startswith(totals)) for text in parts
    ]
    points = iter(zip(units, instructions, strict=True))
    return [[next(points) for _ in sizes] for _, sizes in cases]


def exponents(points: list[tuple[int, int]]) -> list[float]:
    """That of each step."""
    return [
        math.log(cost / cost_before) / math.log(units / units_before)
        for (units_before, cost_before), (units, cost) in pairwise(points)
    ]


def main() -> None:
    """Count, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "axes", nargs="*", metavar="AXIS", help="names of axes, or parts of them; all if none"
    )
    parser.add_argument("--quick", action="store_true", help="two small sizes of each")
    parser.add_argument("--sizes", nargs="+", type=int, help="these sizes instead")
    parser.add_argument("--most", type=float, help="the greatest exponent of the last step that passes")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="how many are counted side by side")
    parser.add_argument("--count", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.count:
        count_here(arguments.count)
        return
    if shutil.which("valgrind") is None or platform.machine() != "x86_64":
        print("NOTHING IS COUNTED: that takes valgrind, on x86-64 (apt-get install valgrind)")
        return
    most = arguments.most or (QUICK_MOST if arguments.quick else MOST)
    named = [axis for axis in AXES if any(part in axis.name for part in arguments.axes or [""])]
    axes = [axis for axis in named if not arguments.quick or axis.name in QUICK]

    def points(axes: list[Axis]) -> list[list[tuple[int, int]]]:
        sizes = [arguments.sizes or list(axis.quick if arguments.quick else axis.sizes) for axis in axes]
        return counted([(axis.name, of_axis) for axis, of_axis in zip(axes, sizes, strict=True)])

    together = [axes] if arguments.quick else [[axis] for axis in axes]
    print(f"{'axis':48} {'unit':8} {'units: instructions a unit':58} exponents of the steps")
    steep = []
    with ThreadPoolExecutor(arguments.jobs) as pool:
        each_found = (found for process in pool.map(points, together) for found in process)
        for axis, found in zip(axes, each_found, strict=True):
            each = ", ".join(f"{units:,}: {cost / units:,.0f}" for units, cost in found)
            steps = exponents(found)
            told = ", ".join(f"{step:.2f}" for step in steps)
            is_steep = steps[-1] > most
            print(f"{axis.name:48} {axis.unit:8} {each:58} {told}{'  STEEP' if is_steep else ''}", flush=True)
            steep += [axis.name] if is_steep else []
    if steep:
        raise SystemExit(f"grows faster than its units^{most}: {'; '.join(steep)}")


if __name__ == "__main__":
    main()
