"""Training runs of the profile-guided build, and runs that compare it with the plain build.

    python benches/train.py               # run every training scenario; `maturin build --pgo` calls this
    python benches/train.py --list        # print the names of the held-out scenarios
    python benches/train.py "VllmV1"      # run one held-out scenario, print its number of requests

`TRAINED` covers the engines and fleets that users run: `Engine.on` with the settings of vLLM and SGLang,
sessions, routers that read replicas, and half of the budget's cases. `HELD_OUT` names the other half: no
profile contains them, so they show what the profile does for runs that it has not seen. `.ci/wheels.py`
counts the instructions of some of them in both builds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
from workloads import ENGINE, synthetic

import inferq as iq

REQUESTS = 6_000

Run = tuple[iq.Workload, Any, dict[str, Any]]
"""A workload, the system that serves it, and options of `inferq.simulate`."""


def lengths(name: str, rate: float, requests: int = REQUESTS) -> iq.Workload:
    """The lengths of a workload of `benches/README.md`, as a Poisson process."""
    return synthetic(name, requests, rate).draw(1)


def documents(rate: float) -> iq.Workload:
    """Prompts of a few instructions, one of many documents, and a question."""
    random = np.random.default_rng(1)
    requests = REQUESTS // 2
    instruction = np.exp(random.uniform(0, np.log(30), requests)).astype(int)
    document = np.exp(random.uniform(0, np.log(400), requests)).astype(int)
    sizes = np.exp(random.uniform(np.log(50), np.log(1500), 400)).astype(int)
    parts = [
        [[int(first), int(sizes[first])], [1000 + int(second), 4 * int(sizes[second])]]
        for first, second in zip(instruction, document, strict=True)
    ]
    prompts = [first[1] + second[1] + 120 for first, second in parts]
    arrivals = np.cumsum(random.exponential(1 / rate, requests))
    columns = {"arrival_s": arrivals, "prompt_tokens": prompts, "output_tokens": 150, "prefix_parts": parts}
    return iq.Workload(pl.DataFrame(columns))


def sessions(rate: float, turns: int = 4) -> iq.Workload:
    """Conversations in a closed loop whose prompts grow."""
    return iq.Workload.sessions(
        sessions=REQUESTS // 2 // turns,
        arrivals=iq.dist.Poisson(rate),
        turns=turns,
        prompt=iq.dist.Lognormal(100, 60, cap=1000),
        output=iq.dist.Lognormal(250, 150, cap=2000),
        think=iq.dist.Exponential(mean_s=10.0),
    ).draw(1)


def with_deadlines(workload: iq.Workload) -> iq.Workload:
    """One request in twenty has an ITL objective of 0.1 s, the others of 0.5 s."""
    tight = pl.int_range(pl.len()) % 20 == 0
    return iq.Workload(workload.frame.with_columns(itl_slo_s=pl.when(tight).then(0.1).otherwise(0.5)))


def engine(scheduler: Any = ENGINE.scheduler, *, timing: Any = ENGINE.timing, cache: Any = None) -> iq.Engine:
    """The engine of the benches with another scheduler, timing model or prefix cache."""
    kv = iq.KvCache(tokens=432_000, block=16, prefix_cache=cache)
    return iq.Engine(timing=timing, scheduler=scheduler, kv=kv)


def vllm(*, asynchronous: bool) -> iq.VllmV1:
    return iq.VllmV1(token_budget=512, max_seqs=256, async_scheduling=asynchronous, reserve_full_prompt=True)


def sglang(*, overlap: bool, policy: str = "fcfs") -> iq.Sglang:
    return iq.Sglang(overlap=overlap, policy=policy, chunk_tokens=512, max_seqs=256)  # type: ignore[arg-type]


def served(**options: Any) -> iq.Engine:
    """A model and a GPU with a measured timing table, as a server runs them with default settings."""
    return iq.Engine.on("llama-3.1-8b", "h100-80gb", **options)


def two_and_two() -> iq.Disaggregated:
    link = iq.Link(latency_s=50e-6, bytes_per_s=50e9, bytes_per_token=131_072, concurrent=4)
    return iq.Disaggregated(prefill=(engine(), 2), decode=(engine(), 2), link=link)


def fleet(replicas: int, router: iq.Router, of: iq.Engine | None = None) -> iq.Cluster:
    return iq.Cluster(of or engine(), replicas=replicas, router=router)


TRAINED: dict[str, Callable[[], Run]] = {
    # What users run.
    "vLLM": lambda: (lengths("W1", 40), served(), {}),
    "vLLM, half the load": lambda: (lengths("W1", 22), served(), {}),
    "vLLM, no prefix cache": lambda: (lengths("W1", 40), served(prefix_cache="none"), {}),
    "vLLM, roofline": lambda: (lengths("W1", 40), served(timing="roofline"), {}),
    "vLLM, documents": lambda: (documents(6), served(), {}),
    "vLLM, sessions": lambda: (sessions(3, 8), served(), {}),
    "SGLang": lambda: (lengths("W1", 40), served(server="sglang-0.5"), {}),
    "SGLang, sessions": lambda: (sessions(3, 8), served(server="sglang-0.5"), {}),
    "8 × vLLM, LeastKv": lambda: (lengths("W1", 300), fleet(8, iq.LeastKv(), served()), {}),
    "8 × vLLM, PrefixAffinity": lambda: (sessions(24, 8), fleet(8, iq.PrefixAffinity(), served()), {}),
    # Half of the budget's cases, under the names that they have there.
    "W1 0.5": lambda: (lengths("W1", 24.8), engine(), {}),
    "W3 1.2": lambda: (lengths("W3", 1.35, 3_000), engine(), {}),
    "W4 0.9": lambda: (lengths("W4", 0.32, 4_000), engine(), {}),
    "W1 0.9, batches kept": lambda: (lengths("W1", 44.6, 1_000), engine(), {"batches": True}),
    "W1 0.9, table": lambda: (lengths("W1", 44.6), engine(timing=served().timing), {}),
    "W1 0.9, roofline": lambda: (lengths("W1", 38.2), engine(timing=served(timing="roofline").timing), {}),
    "prefixes, blocks": lambda: (documents(12.6), engine(vllm(asynchronous=False), cache="blocks"), {}),
    "prefixes, radix, SGLang": lambda: (
        documents(11),
        engine(sglang(overlap=False, policy="lpm"), cache="radix"),
        {},
    ),
    "sessions, radix": lambda: (sessions(2.6), engine(vllm(asynchronous=False), cache="radix"), {}),
    "64, LeastRequests": lambda: (lengths("W1", 2_850, 20_000), fleet(64, iq.LeastRequests()), {}),
    "8, RoundRobin": lambda: (lengths("W1", 357), fleet(8, iq.RoundRobin()), {}),
    "hand-off, 2 to 2": lambda: (lengths("W1", 138), two_and_two(), {}),
    "W1 0.9, VllmV1, asynchronous": lambda: (lengths("W1", 44), engine(vllm(asynchronous=True)), {}),
    "W1 0.9, VllmV0": lambda: (
        lengths("W1", 41.8),
        engine(iq.VllmV0(token_budget=4096, max_seqs=256, watermark=0.01)),
        {},
    ),
    "W1 0.9, Sglang, overlap": lambda: (lengths("W1", 41.5), engine(sglang(overlap=True)), {}),
    "W1 0.9, FasterTransformer": lambda: (
        lengths("W1", 4.6),
        engine(iq.research.FasterTransformer(max_seqs=256, max_model_len=8192, free="each")),
        {},
    ),
    "W1 0.9, Rad": lambda: (
        lengths("W1", 22.7),
        engine(iq.research.Rad(rows=128, columns=128, reduction=32, requests_per_cycle=2000)),
        {},
    ),
    "W1 0.9, Slai": lambda: (
        with_deadlines(lengths("W1", 44.8)),
        engine(iq.research.Slai(token_budget=512, max_active=256, max_decodes=256, offset=10, order="spf")),
        {},
    ),
    "W1 0.9, Wait": lambda: (lengths("W1", 43.6), engine(iq.research.Wait(thresholds=2)), {}),
}

HELD_OUT: dict[str, Callable[[], Run]] = {
    "W1 0.9": lambda: (lengths("W1", 44.6), engine(), {}),
    "W3 0.9": lambda: (lengths("W3", 1.01, 3_000), engine(), {}),
    "8, LeastRequests": lambda: (lengths("W1", 357, 12_000), fleet(8, iq.LeastRequests()), {}),
    "W1 0.9, VllmV1": lambda: (lengths("W1", 44), engine(vllm(asynchronous=False)), {}),
    "W1 0.9, Sglang": lambda: (lengths("W1", 41.5), engine(sglang(overlap=False)), {}),
    "W1 0.9, NestedWait": lambda: (
        lengths("W1", 43.2),
        engine(iq.research.NestedWait(segments=[150, 4096], thresholds=[1, 1])),
        {},
    ),
}
"""Also held out, and counted by the budget alone: W3 1.2 swap, both steppings, memory linear, tiled GEMM,
prefixes none cached, prefixes radix, sessions, Orca, KFcfs, RadPhased, SlotGreedy, ClassPriority."""


def run(scenario: Callable[[], Run]) -> int:
    """Simulate, read every column, and return the number of requests."""
    workload, system, options = scenario()
    result = iq.simulate(workload, system, threads=1, **options)
    return result.requests.height


def main() -> None:
    names = sys.argv[1:]
    if names == ["--list"]:
        print("\n".join(HELD_OUT))
    elif names:
        print(run(HELD_OUT[names[0]]))
    else:
        for name, scenario in TRAINED.items():
            print(f"{name}: {run(scenario)} requests", flush=True)


if __name__ == "__main__":
    main()
