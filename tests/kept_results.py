"""200 scenarios over everything that inferq simulates, and digests of the tables of their results.

`python tests/kept_results.py > tests/kept/results.json` keeps those of the installed inferq. Digests are of
kinds and values alone, so that columns, classes and files may get other names without another digest. A
scenario is drawn from its number; what theory and fits say of some is kept to 12 significant digits.
"""

import hashlib
import json
import random
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

import inferq as iq

synthetic = iq.Workload.synthetic

CLASSES = ("chat", "code")
TRACES = Path(__file__).parent.parent / "traces"


class Chance(random.Random):
    """The draws of one scenario, `c` below, with the kinds that it drew."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.kinds: set[str] = set()

    def one(self, table: "Table", place: int | None = None) -> Any:
        """What the table makes of its entry at this place, counted round; at any place for None."""
        names = list(table)
        name = self.choice(names) if place is None else names[place % len(names)]
        self.kinds.add(name)
        return table[name](self)

    def s(self, low: int, high: int) -> float:
        """Whole milliseconds, in seconds."""
        return self.randint(low, high) / 1000

    def us(self, low: int, high: int) -> float:
        """Whole microseconds, in seconds."""
        return self.randint(low, high) / 1_000_000


Table = Mapping[str, Callable[[Chance], Any]]


class Shortest(iq.Scheduler):
    """Whole prompts, the shortest of the first few that fit; else all decode, and the last one makes room."""

    token_budget, max_seqs, lookahead = 600, 24, 16

    def plan(self, view: iq.View) -> iq.Batch:
        running, waiting = view.running, view.waiting
        free = 10**9 if view.free_blocks is None else view.free_blocks
        ready = running.id[running.decodes]
        if len(running) < 24 and len(waiting):
            owed = int(waiting.prompt_left.min())
            if owed <= 600 and -(-(owed + 1) // view.block_tokens) + len(running) <= free:
                return iq.Batch(prefill=[(int(waiting.id[int(waiting.prompt_left.argmin())]), owed)])
        grows = running.context[running.decodes] == running.blocks[running.decodes] * view.block_tokens
        if int(grows.sum()) > free:
            return iq.Batch(preempt=running.id[-1:])
        return iq.Batch(decode=ready, repeat=1 if bool(grows.any()) else 2)


class Emptiest(iq.Router):
    """The replica with the least ahead, less what it has cached; for every seventh request the next best."""

    def route(self, request: iq.Arrival, fleet: iq.Fleet) -> int:
        cost = np.argsort(fleet.tokens + fleet.used_blocks - fleet.cached_tokens, kind="stable")
        return int(cost[min(int(request.id % 7 == 3), len(fleet) - 1)])


# --- workloads

ARRIVALS: Table = {
    "Poisson": lambda c: iq.Poisson(c.randint(8, 60)),
    "Gamma": lambda c: iq.Gamma(c.randint(8, 60), cv=c.choice([0.5, 2.0, 3.5])),
    "Weibull": lambda c: iq.Weibull(c.randint(8, 60), shape=c.choice([0.6, 1.7])),
    "Deterministic": lambda c: iq.Deterministic(c.randint(8, 60)),
    "OnOff": lambda c: iq.OnOff(c.randint(30, 80), c.choice([0.0, 2.0]), mean_on_s=1.5, mean_off_s=2.0),
    "TimeVarying": lambda c: iq.TimeVarying([0, 3, 8], [c.randint(2, 9), 60, 15], c.choice([None, 10.0])),
}


def lengths(mean: int) -> Table:
    return {
        "Fixed": lambda c: iq.Fixed(mean),
        "Uniform": lambda c: iq.Uniform(1, 2 * mean),
        "LogUniform": lambda c: iq.LogUniform(max(1, mean // 10), 3 * mean),
        "Lognormal": lambda c: iq.Lognormal(mean=mean, median=0.6 * mean, cap=8 * mean),
        "Geometric": lambda c: iq.Geometric(mean, cap=c.choice([None, 4 * mean])),
        "PoissonLength": lambda c: iq.PoissonLength(mean, cap=c.choice([None, 3 * mean])),
    }


def drawn(c: Chance) -> iq.Workload:
    prompt, output = c.one(lengths(c.randint(30, 300))), c.one(lengths(c.randint(5, 80)))
    return synthetic(requests=c.randint(120, 240), arrivals=c.one(ARRIVALS), prompt=prompt, output=output)


def in_classes(c: Chance) -> iq.Workload:
    return drawn(c).with_classes(dict(zip(CLASSES, c.choice([(0.5, 0.5), (0.8, 0.2)]), strict=True)))


def empirical(c: Chance) -> iq.Workload:
    c.kinds.add("Empirical")
    rows = {"prompt_tokens": [c.randint(1, 500) for _ in range(30)], "output_tokens": list(range(1, 31))}
    workload = synthetic(requests=150, arrivals=c.one(ARRIVALS), lengths=iq.Empirical(pl.DataFrame(rows)))
    return workload.with_classes({"chat": 0.25, "code": 0.75}).with_patience(patience(c))


def patience(c: Chance) -> Any:
    c.kinds.add("Exponential")
    return iq.Exponential(mean_s=c.choice([0.3, 2.0, 30.0]))


def rows(c: Chance, **more: Callable[[int], Any]) -> dict[str, list[Any]]:
    """The columns of some requests, many of which arrive at one instant."""
    count, most = c.randint(100, 200), c.choice([60, 400])
    columns = {
        "arrival_s": lambda row: 0.0,
        "prompt_tokens": lambda row: c.randint(1, most),
        "output_tokens": lambda row: c.choice([1, c.randint(1, 20), c.randint(1, 150)]),
        "class": lambda row: CLASSES[row] if row < 2 else c.choice(CLASSES),
        **more,
    }
    made = {name: [of(row) for row in range(count)] for name, of in columns.items()}
    made["arrival_s"] = sorted(c.choice([c.s(0, 8000), c.randint(0, 16) / 2]) for _ in range(count))
    return made


def full(c: Chance) -> iq.Workload:
    return iq.Workload(
        rows(
            c,
            priority=lambda row: c.randint(-1, 2),
            patience_s=lambda row: c.choice([None, None, 0.0, c.s(0, 9000)]),
            ttft_slo_s=lambda row: c.choice([None, c.s(50, 2000)]),
            tbt_slo_s=lambda row: c.choice([None, c.s(10, 300)]),
            session_id=lambda row: c.choice([None, *range(12)]),
        )
    )


def verbs(c: Chance) -> iq.Workload:
    base = full(c)
    return c.choice(
        [
            lambda: base.at_rate(c.randint(5, 60)).with_outputs(c.one(lengths(20))),
            lambda: base.speed(c.choice([0.5, 3.0])).with_prompts(c.one(lengths(100))),
            lambda: base.window(0.5, 6.5).sample(150, seed=c.randint(0, 9)),
            lambda: base.with_arrivals(c.one(ARRIVALS)).head(90),
            lambda: base.split(0.5)[1].concat(base.split(60)[0]),
        ]
    )()


def mixed(c: Chance) -> iq.Workload:
    return iq.Workload.mix({"chat": drawn(c), "code": drawn(c)}, requests=c.choice([None, 150]))


def sessions(c: Chance) -> iq.Workload:
    c.kinds.add("Exponential")
    grows = c.random() < 0.7
    talk = iq.Workload.sessions(
        sessions=c.randint(25, 60),
        arrivals=c.one(ARRIVALS),
        turns=c.choice([3, iq.Geometric(4)]),
        prompt=c.one(lengths(40)),
        output=c.one(lengths(40)),
        think=c.choice([0.0, 0.4, iq.Exponential(1.0)]),
        grows=grows,
        max_context=2500 if grows else None,
    )
    return talk.with_classes({"chat": 0.6, "code": 0.4})


def thinking(c: Chance) -> iq.Workload:
    c.kinds.add("Exponential")
    talk = iq.Workload(rows(c, session_id=lambda row: c.choice([None, "a", "b", *"cdefghijkl"])))
    return talk.with_think(c.choice([0.05, iq.Exponential(0.2)]))


def parts(c: Chance) -> iq.Workload:
    table = rows(c, prefix_parts=lambda row: [[c.randint(0, 3), c.randint(1, 150)] for _ in range(row % 3)])
    table["prompt_tokens"] = [
        own + sum(tokens for _, tokens in said)
        for own, said in zip(table["prompt_tokens"], table["prefix_parts"], strict=True)
    ]
    return iq.Workload(table)


def hashes(c: Chance) -> iq.Workload:
    table = rows(c, prefix_block_tokens=lambda row: 16)
    table["prefix_hashes"] = [
        [number if number < alike else 1000 * row + number for number in range(tokens // 16)]
        for row, tokens in enumerate(table["prompt_tokens"])
        for alike in [c.choice([0, 4, 12])]
    ]
    return iq.Workload(table)


def continued(c: Chance) -> iq.Workload:
    table = rows(c, continues=lambda row: None if row < 3 or c.random() < 0.5 else c.randint(0, row - 1))
    before = zip(table["prompt_tokens"], table["output_tokens"], table["continues"], strict=True)
    said: list[int] = []
    for row, (prompt, output, earlier) in enumerate(before):
        begins = 0 if earlier is None else said[earlier]
        if begins > 900:
            begins, table["continues"][row] = 0, None
        table["prompt_tokens"][row] = prompt + begins
        said.append(prompt + begins + output)
    return iq.Workload(table)


WORKLOADS: Table = {
    "Workload.synthetic": in_classes,
    "lengths=": empirical,
    "all columns": full,
    "verbs": verbs,
    "Workload.mix": mixed,
    "Workload.sessions": sessions,
    "open_loop": lambda c: sessions(c).open_loop(),
    "with_think": thinking,
    "prefix_parts": parts,
    "prefix_hashes": hashes,
    "continues": continued,
    "with_prefix": lambda c: in_classes(c).with_prefix("rules", c.randint(20, 200)),
    "with_patience": lambda c: in_classes(c).with_patience(patience(c)),
}
"""Each with the two classes."""

SHARED: Table = {
    name: WORKLOADS[name]
    for name in (
        "Workload.sessions",
        "open_loop",
        "prefix_parts",
        "prefix_hashes",
        "continues",
        "with_prefix",
    )
}
"""Those whose prompts begin alike."""

PLAIN: Table = {
    "synthetic without verbs": drawn,
    "azure": lambda c: iq.read_trace(TRACES / "azure_2023.csv").speed(4),
    "burstgpt": lambda c: iq.read_trace(TRACES / "burstgpt.csv").at_rate(6),
    "mooncake": lambda c: iq.read_trace(TRACES / "mooncake.jsonl"),
    "Workload.scan": lambda c: iq.Workload.scan(TRACES / "inferq.parquet"),
    "servegen": lambda c: iq.read_trace(TRACES / "servegen").head(150),
}

# --- engines

KV: Table = {
    "unlimited": lambda c: iq.KvCache.unlimited(),
    "ample": lambda c: iq.KvCache(tokens=16 * c.randint(1200, 4000)),
    "small": lambda c: iq.KvCache(tokens=16 * c.randint(160, 240), block=c.choice([1, 16])),
    "tight": lambda c: iq.KvCache(tokens=16 * c.randint(40, 100), block=c.choice([1, 4, 16])),
    "blocks": lambda c: iq.KvCache(tokens=16 * c.randint(80, 400), block=16, prefix_cache="blocks"),
    "radix": lambda c: iq.KvCache(
        tokens=16 * c.randint(80, 400), block=c.choice([1, 16]), prefix_cache="radix"
    ),
}
SHORT: Table = {name: KV[name] for name in ("tight", "small")}
CACHES: Table = {name: KV[name] for name in ("blocks", "radix")}


def timing_table(c: Chance) -> iq.TimingTable:
    unit_s = c.us(800, 3000)
    return iq.TimingTable(
        linear=iq.timing.LinearPart([1, 64, 512], [2 * unit_s, 3 * unit_s, 11 * unit_s]),
        chunk=iq.timing.ChunkPart([1, 256], [0, 512], [[unit_s / 8, unit_s / 4], [unit_s, 2 * unit_s]]),
        decode=iq.timing.DecodePart([1, 32], [1, 400], [[unit_s / 9, unit_s / 5], [unit_s, 3 * unit_s]]),
    )


def roofline(c: Chance) -> iq.Roofline:
    model, gpu = c.choice([("llama-3.1-8b", "l40s"), ("qwen3-8b", "a10g"), ("qwen3-30b-a3b", "h200")])
    return iq.Roofline(model, gpu, c.choice([1, 2]), weights=c.choice(["bf16", "int8"]))


TIMINGS: Table = {
    "Constant": lambda c: iq.Constant(c.s(5, 40)),
    "PiecewiseLinear": lambda c: iq.PiecewiseLinear(
        base=c.s(4, 20),
        per_token=c.us(10, 200),
        knee=c.choice([0, 64]),
        per_context_token=c.us(0, 3),
        per_prefill_square=c.choice([0, 1e-7]),
        per_chunk_context=c.choice([0, 2e-7]),
    ),
    "MemoryLinear": lambda c: iq.MemoryLinear(base=c.s(4, 20), per_kv_token=c.us(1, 9)),
    "MixedSolo": lambda c: iq.MixedSolo(alpha=c.s(5, 20), beta=c.us(10, 100), solo=c.s(4, 15)),
    "TiledGemm": lambda c: iq.TiledGemm(
        rows=c.choice([16, 32]),
        columns=c.choice([8, 16]),
        reduction=c.choice([8, 32]),
        width=c.choice([32, 64]),
        linear_s_per_tile=c.us(1, 4),
        other_s_per_token=c.us(1, 5),
        gemm_s=c.us(5, 20),
        gemv_s=c.us(1, 6),
        layers=c.randint(2, 8),
    ),
    "TimingTable": timing_table,
    "Roofline": roofline,
}
PREEMPTIONS: Table = {
    "Recompute": lambda c: iq.Recompute(),
    "Swap": lambda c: iq.Swap(per_token=c.us(1, 30), base=c.s(0, 4)),
}
KEYS: Table = {
    "ByKey of lengths": lambda c: iq.ByKey(lambda request: -request.prompt_tokens % 7),
    "ByKey of rows": lambda c: iq.ByKey(lambda request: request.id % 5),
}


def order(c: Chance) -> str:
    return c.choice(["fcfs", "spf", "srf", "lpf"])


def limits(c: Chance) -> dict[str, Any]:
    return {"token_budget": c.choice([64, 256, 700]), "max_seqs": c.choice([10, 40, 128])}


def long(c: Chance) -> dict[str, Any]:
    """Limits under which prompts are not cut."""
    return {"max_seqs": c.choice([4, 16]), "max_model_len": c.choice([500, 630])}


def tiles(c: Chance) -> dict[str, int]:
    reduction, cycle = c.choice([1, 8]), c.randint(2, 12)
    return {"rows": 4, "columns": c.randint(2, 16), "reduction": reduction, "requests_per_cycle": cycle}


def sarathi(c: Chance) -> iq.Sarathi:
    watermark = c.choice([0.0, 0.01, 0.1])
    return iq.Sarathi(**limits(c), order=order(c), watermark=watermark, preemption=c.one(PREEMPTIONS))


def vllm_v1(c: Chance) -> iq.VllmV1:
    policy, whole, cut = c.choice(["fcfs", "priority"]), c.random() < 0.5, c.choice([0, 40])
    return iq.VllmV1(**limits(c), long_prefill_threshold=cut, policy=policy, reserve_full_prompt=whole)


def kfcfs(c: Chance) -> iq.KFcfs:
    return iq.KFcfs(token_budget=c.choice([64, 300]), k_prefill=c.randint(20, 300), k_decode=c.randint(4, 64))


def orca_chunked(c: Chance) -> iq.Orca:
    return iq.Orca(**long(c), token_budget=c.choice([64, 256]), chunked=True)


def by_class(inner: Callable[[Chance], Any]) -> Callable[[Chance], Any]:
    return lambda c: iq.ClassPriority(order=c.sample(CLASSES, 2), inner=inner(c))


SCHEDULERS: Table = {
    "Sarathi": sarathi,
    "VllmV1": vllm_v1,
    "VllmV0": lambda c: iq.VllmV0(
        token_budget=1200, max_seqs=c.choice([8, 64]), preemption=c.one(PREEMPTIONS)
    ),
    "Sglang": lambda c: iq.Sglang(
        policy=c.choice(["fcfs", "lpm"]),
        chunk_tokens=c.choice([None, 96, 512]),
        max_prefill_tokens=c.choice([600, 4096]),
        max_seqs=c.choice([8, 64]),
        mixed=c.random() < 0.5,
        conservativeness=c.choice([0.3, 1.0]),
        ignore_eos=c.random() < 0.3,
    ),
    "Orca": lambda c: iq.Orca(**long(c)),
    "Orca, chunked": orca_chunked,
    "FasterTransformer": lambda c: iq.FasterTransformer(**long(c), free=c.choice(["each", "batch"])),
    "KFcfs": kfcfs,
    "Rad": lambda c: iq.Rad(**tiles(c)),
    "RadPhased": lambda c: iq.RadPhased(**tiles(c)),
    "Slai": lambda c: iq.Slai(
        token_budget=c.choice([64, 512]),
        max_active=c.choice([8, 64]),
        max_decodes=c.choice([4, 64]),
        offset=c.choice([2.5, 10, iq.DynamicOffset(low=2, high=8, kv_share=0.8)]),
        order=order(c),
        class_first=c.choice([None, "code"]),
    ),
    "Wait": lambda c: iq.Wait(
        thresholds=c.choice([2, {"chat": 3, "code": 1}]), max_seqs=c.choice([None, 20])
    ),
    "NestedWait": lambda c: iq.NestedWait(
        segments=[0, 8], thresholds=[c.randint(1, 4), 2], prompt_groups=c.choice([(), (80,)])
    ),
    "SlotGreedy": lambda c: iq.SlotGreedy(chunk=c.choice([32, 512])),
    "ClassPriority of Sarathi": by_class(sarathi),
    "ClassPriority of VllmV1": by_class(vllm_v1),
    "ClassPriority of KFcfs": by_class(kfcfs),
    "ClassPriority of Orca": by_class(orca_chunked),
    "Sarathi by a key": lambda c: iq.Sarathi(order=c.one(KEYS), preemption=PREEMPTIONS["Swap"](c)),
    "Slai by a key": lambda c: iq.Slai(max_active=50, order=c.one(KEYS)),
    "Scheduler in Python": lambda c: Shortest(),
}
ANY_CLASSES: Table = {
    name: make
    for name, make in SCHEDULERS.items()
    if not name.startswith(("ClassPriority", "Slai", "Wait", "Scheduler"))
}
"""Those for workloads without the two classes and with prompts of any length."""


def engine(
    c: Chance, place: int | None = None, schedulers: Table = SCHEDULERS, kv: Table = KV, **fixed: Any
) -> iq.Engine:
    scheduler = c.one(schedulers, place)
    if isinstance(scheduler, iq.Sglang):
        kv = {name: make for name, make in kv.items() if name != "blocks"}
    overhead = iq.Overhead(base_s=c.s(0, 3), per_sequence_s=c.us(0, 90), overlapped=c.random() < 0.5)
    parts = {
        "timing": c.one(TIMINGS, place),
        "kv": c.one(kv),
        "first_token": c.choice(["prefill", "decode"]),
        "overhead": c.choice([None, None, overhead]),
    }
    return iq.Engine(scheduler=scheduler, **{**parts, **fixed})


# --- systems

ROUTERS: Table = {
    "RoundRobin": lambda c: iq.RoundRobin(),
    "Random": lambda c: iq.Random(),
    "LeastRequests": lambda c: iq.LeastRequests(),
    "LeastTokens": lambda c: iq.LeastTokens(),
    "PowerOfTwo": lambda c: iq.PowerOfTwo(),
    "LeastKv": lambda c: iq.LeastKv(),
    "BySession": lambda c: iq.BySession(),
    "BySession, spill": lambda c: iq.BySession(spill=1.5),
    "PrefixAffinity": lambda c: iq.PrefixAffinity(weight=c.choice([0.5, 2.0])),
    "PrefixAffinity, late": lambda c: iq.PrefixAffinity(update_s=c.choice([0.1, 2.0])),
    "PrefixHash": lambda c: iq.PrefixHash(prefix_tokens=c.choice([16, 200])),
    "PrefixHash, bounded": lambda c: iq.PrefixHash(prefix_tokens=64, load_factor=1.25),
    "Router in Python": lambda c: Emptiest(),
}


class Scenario(NamedTuple):
    workload: iq.Workload
    system: Any
    options: dict[str, Any]
    kinds: frozenset[str]


def on_one_engine(c: Chance, place: int) -> tuple[Any, Any]:
    workload = c.one(WORKLOADS, place)
    cached = c.kinds & set(SHARED) and c.random() < 0.7
    return workload, engine(c, place, kv=CACHES if cached else SHORT if place % 2 else KV)


def on_a_gpu(c: Chance, place: int) -> tuple[Any, Any]:
    model, gpu, more = [
        ("llama-3.1-8b", "a100-80gb", {}),
        ("qwen3-8b", "l40s", {"prefix_cache": "blocks"}),
        ("llama-3.1-70b", "h100-80gb", {"tensor_parallel": 4}),
        ("llama-3.1-8b", "l4", {"weights": "int8", "kv_dtype": "fp8", "utilisation": 0.95}),
        ("qwen3-4b", "h200", {"timing": "roofline", "first_token": "decode", "prefix_cache": "radix"}),
    ][place % 5]
    scheduler = c.choice([None, c.one(ANY_CLASSES)])
    if more.get("prefix_cache") == "blocks" and isinstance(scheduler, iq.Sglang):
        scheduler = None
    overhead = c.choice([None, iq.Overhead(base_s=0.001)])
    made = iq.Engine.on(model, gpu, scheduler=scheduler, overhead=overhead, **more)
    return c.one(PLAIN, place), made


def on_a_cluster(c: Chance, place: int) -> tuple[Any, Any]:
    router = c.one(ROUTERS, place)
    workloads = SHARED if isinstance(router, (iq.PrefixAffinity, iq.PrefixHash, Emptiest)) else WORKLOADS
    if isinstance(router, iq.BySession):
        workloads = {name: WORKLOADS[name] for name in ("all columns", "Workload.sessions", "open_loop")}
    kv = CACHES if workloads is SHARED and c.random() < 0.7 else KV
    if c.random() < 0.5:
        c.kinds.add("heterogeneous")
        first_token = c.choice(["prefill", "decode"])
        one_queue = {name: make for name, make in SCHEDULERS.items() if "by a key" not in name}
        engines = [engine(c, None, one_queue, kv, first_token=first_token) for _ in range(c.randint(2, 4))]
        return c.one(workloads), iq.Cluster(engines, router=router)
    return c.one(workloads), iq.Cluster(engine(c, place, kv=kv), replicas=c.randint(2, 4), router=router)


def disaggregated(c: Chance, schedulers: Table = SCHEDULERS) -> iq.Disaggregated:
    first_token = c.choice(["prefill", "decode"])
    roomy = {name: KV[name] for name in ("unlimited", "small")}
    prefill = engine(c, schedulers=schedulers, kv=KV, first_token=first_token)
    decode = engine(c, schedulers=schedulers, kv=roomy, first_token=first_token)
    return iq.Disaggregated(
        prefill=(prefill, c.randint(1, 3)),
        decode=(decode, c.randint(1, 3)),
        link=iq.Link(c.s(0, 20), 1e9, c.choice([0, 131_072]), c.choice([None, 1, 2])),
        prefill_router=c.one(ROUTERS),
        decode_router=c.one(ROUTERS),
    )


def on_both_sides(c: Chance, place: int) -> tuple[Any, Any]:
    return c.one({name: WORKLOADS[name] for name in ("Workload.sessions", "all columns")}), disaggregated(c)


def fork_join(c: Chance) -> list[iq.Workflow]:
    def stage(engine: str, **more: Any) -> iq.Stage:
        prompt, output = c.one(lengths(60)), c.one(lengths(15))
        delay_s = c.choice([0.0, 0.05, iq.Exponential(0.1)])
        return iq.Stage(engine, prompt=prompt, output=output, delay_s=delay_s, **more)

    stages = {
        "plan": stage("one", class_name="chat"),
        "search": stage("two", after="plan", includes="plan", class_name="code"),
        "draft": stage("one", after="plan", class_name="code"),
        "answer": stage("two", after=["search", "draft"], includes=["draft"], class_name="chat"),
    }
    return [iq.Workflow("jobs", stages=stages)]


def crossed(c: Chance) -> list[iq.Workflow]:
    """The network of Rybko and Stolyar: two routes through two engines, against each other."""

    def route(name: str, first: str, second: str) -> iq.Workflow:
        short, long = c.one(lengths(20)), c.one(lengths(50))
        entry = iq.Stage(first, prompt=short, output=8, class_name="chat")
        exit = iq.Stage(second, prompt=20, output=long, after="entry", includes="entry", class_name="code")
        return iq.Workflow(name, stages={"entry": entry, "exit": exit})

    return [route("there", "one", "two"), route("back", "two", "one")]


def agents(c: Chance) -> list[iq.Workflow]:
    """Calls with a growing context, a tool between them, and a judgement that joins two of them."""
    step: dict[str, Any] = {"prompt": c.one(lengths(40)), "output": c.one(lengths(20)), "class_name": "chat"}
    rules = {"prefix": "rules", "prefix_tokens": c.randint(50, 300)}
    stages = {
        "plan": iq.Stage("one", **step, **rules),
        "look": iq.Stage("one", after="plan", continues="plan", delay_s=iq.Exponential(0.3), **step),
        "act": iq.Stage("one", after="look", continues="look", delay_s=0.2, **step),
        "judge": iq.Stage(
            "two", prompt=30, output=10, after=["act", "look"], includes="act", class_name="code", **rules
        ),
    }
    return [iq.Workflow("agent", stages=stages)]


WORKFLOWS: Table = {"fork-join": fork_join, "crossed": crossed, "agents": agents}
SERVICES: Table = {
    "Engine in a Network": engine,
    "Cluster in a Network": lambda c: iq.Cluster(engine(c), replicas=2, router=c.one(ROUTERS)),
    "Disaggregated in a Network": disaggregated,
}


def on_a_network(c: Chance, place: int) -> tuple[Any, Any]:
    workflows = c.one(WORKFLOWS, place)
    network = iq.Network({"one": c.one(SERVICES), "two": c.one(SERVICES)}, workflows)
    jobs = synthetic(requests=c.randint(40, 80), arrivals=c.one(ARRIVALS))
    if len(workflows) > 1:
        jobs = jobs.with_classes({workflow.name: 0.5 for workflow in workflows})
    return jobs.with_patience(patience(c)) if c.random() < 0.3 else jobs, network


POLICIES: Table = {
    f"{gate}, {router}": lambda c, control=(gate, router, planned): control
    for gate, router, planned in (
        ("occupancy", "greedy", True),
        ("queue", "greedy", True),
        ("priority", "greedy", True),
        ("fcfs", "greedy", True),
        ("occupancy", "randomised", True),
        ("occupancy", "general", True),
        ("fcfs", "immediate", False),
        ("queue", "immediate", False),
        ("queue", "fcfs", False),
    )
}


def through_a_gate(c: Chance, place: int) -> tuple[Any, Any]:
    gate, router, planned = c.one(POLICIES, place)
    service = ("tokens", "exponential")[place // 9 % 2]
    c.kinds.add(f"GateAndRoute, {service}")
    allocation = iq.Allocation(
        prefill={"chat": 0.25, "code": 0.25},
        mixed={"chat": 1, "code": 1},
        solo={"chat": 1, "code": 2},
        prefill_queue={"chat": 0.5, "code": 0.5},
    )
    cluster = iq.GateAndRoute(
        allocation,
        replicas=c.randint(3, 6),
        timing=iq.MixedSolo(alpha=c.s(10, 20), beta=c.us(50, 100), solo=c.s(5, 10)),
        slots=c.randint(3, 8),
        chunk=c.choice([32, 128]),
        prices=iq.Prices(prefill=0.1, decode=0.2),
        abandonment=c.choice([None, 0.5, {"chat": 0.2, "code": 2.0}]),
        gate=gate,
        router=router,
        planned=planned,
        service=service,
        kv=iq.KvCache(tokens=c.choice([None, 2000]) if service == "tokens" else None, block=1),
    )
    return c.one({name: WORKLOADS[name] for name in ("Workload.synthetic", "Workload.mix")}), cluster


FAMILIES: tuple[tuple[int, str, Callable[[Chance, int], tuple[Any, Any]]], ...] = (
    (84, "Engine", on_one_engine),
    (15, "Engine.on", on_a_gpu),
    (39, "Cluster", on_a_cluster),
    (20, "Disaggregated", on_both_sides),
    (21, "Network", on_a_network),
    (21, "GateAndRoute", through_a_gate),
)
PLACES = [(name, make, place) for count, name, make in FAMILIES for place in range(count)]
COUNT = len(PLACES)
KINDS = frozenset().union(
    *(ARRIVALS, lengths(1), WORKLOADS, PLAIN, KV, TIMINGS, PREEMPTIONS, KEYS, SCHEDULERS, ROUTERS, WORKFLOWS),
    *(SERVICES, POLICIES, (name for _, name, _ in FAMILIES)),
    ("Empirical", "Exponential", "heterogeneous", "GateAndRoute, tokens", "GateAndRoute, exponential"),
    ("horizon_s", "warmup", "cooldown", "timeline_s", "iterations", "batches", "stepping", "threads", "out"),
)
"""Everything that some scenario has."""


def options(c: Chance, name: str) -> dict[str, Any]:
    drawn = {
        "seed": c.randint(0, 10**6),
        "horizon_s": c.choice([None, None, None, None, c.s(2000, 9000)]),
        "warmup": c.choice([0, 0, 15, "0.75s"]),
        "cooldown": c.choice([0, 0, 10, "0.5s"]),
        "timeline_s": c.choice([None, c.s(20, 400)]),
        "iterations": c.random() < 0.5,
        "batches": c.random() < 0.5,
        "stepping": c.random() < 0.15,
        "threads": c.choice([None, 1, 2]),
        "out": c.random() < 0.2,
    }
    if name == "exponential":
        drawn |= {"cooldown": 0, "iterations": False, "batches": False, "stepping": False}
    c.kinds.update(name for name, value in drawn.items() if value)
    return drawn


def scenario(number: int) -> Scenario:
    """The scenario of this number, alike everywhere."""
    c = Chance(number)
    name, make, place = PLACES[number]
    c.kinds.add(name)
    workload, system = make(c, place)
    chosen = options(c, getattr(system, "service", name))
    return Scenario(workload, system, chosen, frozenset(c.kinds))


# --- what is kept


def digest(columns: Iterable[pl.Series]) -> str:
    """Of kind, nulls and values of each column in turn, nothing of its name."""
    sha = hashlib.sha256()
    for column in columns:
        nulls = column.is_null().to_numpy().tobytes() if column.null_count() else b""
        if column.dtype.is_numeric() or column.dtype == pl.Boolean:
            values = (column.fill_null(0) if nulls else column).to_numpy()
            values = values.astype(values.dtype.newbyteorder("<"))
            kind, content = values.dtype.str, values.tobytes()
        else:
            kind, content = "text", json.dumps(column.to_list(), ensure_ascii=False).encode()
        for part in (kind.encode(), nulls, content):
            sha.update(len(part).to_bytes(8, "little") + part)
    return sha.hexdigest()[:16]


def rounded(value: float | None) -> str | None:
    return None if value is None else f"{value:.12g}"


def theory_of(workload: iq.Workload, system: Any) -> list[Any]:
    """What `stability` says; the kind of error where it refuses."""
    try:
        said = iq.theory.stability(workload, system)
    except ValueError as error:
        return [type(error).__name__]
    binding = None if said.binding is None else said.binding.resource
    return [said.verdict, binding, rounded(said.load), *(rounded(one.capacity_per_s) for one in said.bounds)]


def observed_in(result: iq.Result) -> list[Any]:
    try:
        said = iq.theory.observed(result)
    except ValueError as error:
        return [type(error).__name__]
    return [said.verdict, said.arrived, rounded(said.drift_per_s), rounded(said.high_per_s)]


def fit_of(result: iq.Result) -> list[Any]:
    """The coefficients; the kind of error where the iterations do not determine them."""
    try:
        fit = iq.timing.fit(result.single_iterations(), "PiecewiseLinear")
    except ValueError as error:
        return [type(error).__name__]
    return [rounded(value) for value in fit.coefficients["value"]]


def results(number: int, threads: int | None = None) -> dict[str, Any]:
    """Run a scenario: digests by table, the number of findings, and now and then what theory says.

    Args:
        number: of the scenario.
        threads: instead of its own.
    """
    workload, system, chosen, _ = scenario(number)
    chosen["threads"] = chosen["threads"] if threads is None else threads
    with tempfile.TemporaryDirectory() as folder:
        out = chosen.pop("out")
        result = iq.simulate(workload, system, **chosen, out=Path(folder) / "run" if out else None)
        tables = ["requests", "tbt", "timeline", "block_operations"]
        tables += [name for name in ("iterations", "batches") if chosen["batches"] or chosen[name]]
        tables += ["jobs"] if isinstance(system, iq.Network) else []
        tables += ["occupancy", "revenue"] if result.is_priced else []
        drawn, summary = workload.draw(chosen["seed"]).frame, result.summary(by="class")
        kept: dict[str, Any] = {
            "workload": digest(column for column in drawn if not column.dtype.is_nested()),
            **{name: digest(getattr(result, name).lazy().collect()) for name in tables},
            "drained": digest([result.drained]),
            "totals": digest([pl.Series(sorted(map(str, result.totals.values())))]),
            "summary": digest([pl.Series([str(sorted(map(str, row))) for row in summary.iter_rows()])]),
            "findings": len(result.findings),
        }
        if getattr(system, "service", "tokens") == "tokens":
            work = result.work_conservation(budget=64)
            counted = (work.share, work.cap_share, work.memory_share, work.iterations)
            kept["work"] = digest([pl.Series([str(one) for one in counted])])
        if number % 5 == 0:
            kept["theory"] = theory_of(workload, system)
            kept["observed"] = observed_in(result)
        if "batches" in tables and number % 6 == 0:
            kept["fit"] = fit_of(result)
    return kept


if __name__ == "__main__":
    print("{")
    for number in range(COUNT):
        kept = json.dumps(results(number, int(sys.argv[1]) if sys.argv[1:] else None))
        print(f'"{number}": {kept}{"," if number + 1 < COUNT else ""}')
    print("}")
