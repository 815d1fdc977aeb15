"""Does the fast core agree with the slow reference on every timestamp, batch and preemption?"""

import decimal
import math
import random
from collections import Counter
from functools import cache
from typing import Any

import polars as pl
import pytest

import inferq as iq

from . import reference, reference_policies
from .grouped import grouped

Scenario = tuple[dict[str, Any], list[dict[str, Any]], float | None]

_SEEDS = range(300)
_KINDS = (
    *("Sarathi", "VllmV1", "VllmV0", "Orca whole", "Orca chunked"),
    *("FasterTransformer each", "FasterTransformer batch", "KFcfs", "Rad", "RadPhased"),
    *("Slai fixed", "Slai dynamic", "Wait", "NestedWait single", "NestedWait grouped", "SlotGreedy"),
    *("ClassPriority Sarathi", "ClassPriority KFcfs", "ClassPriority Orca", "ClassPriority VllmV1"),
)


def _seconds(attoseconds: int | None) -> float | None:
    """The nearest double."""
    with decimal.localcontext(prec=60):
        return None if attoseconds is None else float(decimal.Decimal(attoseconds) / 10**18)


def _timing(rng: random.Random) -> dict[str, Any]:
    return rng.choice(
        [
            {"kind": "Constant", "seconds": rng.choice([0.01, 1.0])},
            {
                "kind": "PiecewiseLinear",
                "base": 0.006,
                "per_token": 3.2e-5,
                "knee": rng.choice([0, 20, 200]),
                "per_context_token": rng.choice([0.0, 4e-8]),
                "per_prefill_square": rng.choice([0.0, 6.5e-10]),
                "per_chunk_context": rng.choice([0.0, 1.3e-9]),
            },
            {"kind": "MemoryLinear", "base": 0.01, "per_kv_token": 1e-5},
            {"kind": "MixedSolo", "alpha": 0.0174, "beta": 6.2e-5, "solo": 0.022},
            {
                "kind": "TiledGemm",
                "rows": rng.choice([1, 4, 16]),
                "columns": rng.choice([2, 8]),
                "reduction": rng.choice([4, 16]),
                "width": 32,
                "linear_s_per_tile": 0.004,
                "other_s_per_token": rng.choice([0.0, 1e-5]),
                "gemm_s": 3.1e-6,
                "gemv_s": rng.choice([1.7e-6, 5e-5]),
                "layers": rng.choice([1, 3]),
            },
        ]
    )


def _table(rng: random.Random) -> dict[str, Any]:
    """A table with short axes, with lines that rise and fall, and that end inside and outside what runs."""

    def axis(least: int, most: int) -> list[int]:
        return sorted(rng.sample(range(least, most), rng.choice([2, 3, 6])))

    def grid(rows: list[int], columns: list[int]) -> list[list[float]]:
        return [[rng.choice([0.0, 1e-3, 2e-2]) * rng.random() for _ in columns] for _ in rows]

    tokens = [1, *axis(2, rng.choice([12, 90, 700]))]
    seconds = [0.002 + 0.01 * rng.random() for _ in tokens]
    seconds[-1] = max(seconds[-2:])  # an iteration of length 0 is an error
    chunk, context = axis(1, rng.choice([8, 60, 300])), axis(0, rng.choice([9, 60, 400]))
    sequences, mean = axis(1, rng.choice([8, 20])), axis(0, rng.choice([9, 60, 400]))
    of_chunk = grid(chunk, context)
    shared_s = rng.choice([0.0, min(map(min, of_chunk))])
    return {
        "kind": "TimingTable",
        "linear": {"tokens": tokens, "seconds": seconds},
        "chunk": {"chunk": chunk, "context": context, "seconds": of_chunk, "shared_s": shared_s},
        "decode": {"sequences": sequences, "mean_context": mean, "seconds": grid(sequences, mean)},
    }


def _roofline(rng: random.Random) -> dict[str, Any]:
    """Parts that cross from memory to computing within what runs, or do not."""
    return {
        "kind": "Roofline",
        "linear": {
            "flops_s_per_token": rng.choice([1e-5, 3.3e-4]),
            "weight_s": 0.004,
            "activation_s_per_token": 1.1e-6,
        },
        "chunk": {
            "compute_s_per_pair": rng.choice([1e-7, 3.1e-6]),
            "memory_s_per_token": rng.choice([1e-6, 6.4e-5]),
        },
        "decode": {"compute_s_per_token": 1e-7, "memory_s_per_token": rng.choice([1e-8, 1.7e-6])},
        "all_reduce": {"latency_s": rng.choice([0.0, 2e-5]), "s_per_token": 1e-6},
        "base_s": 0.0013,
    }


def _of_hardware(rng: random.Random) -> dict[str, Any]:
    """For some engines a timing of a GPU, and a host; the others stay as they are."""
    changed: dict[str, Any] = {}
    if rng.random() < 0.35:
        changed["timing"] = rng.choice([_table, _table, _roofline])(rng)
    return changed | _overhead(rng)


def _overhead(rng: random.Random) -> dict[str, Any]:
    """Nothing most of the time; else a host that works beside the GPU or after it."""
    if rng.random() < 0.7:
        return {}
    host = {"base_s": rng.choice([0.0, 0.002, 0.03]), "per_sequence_s": rng.choice([0.0, 2.5e-4])}
    return {"overhead": host | {"overlapped": rng.choice([True, False])}}


def _fills(kind: str, rng: random.Random) -> dict[str, Any]:
    """A scheduler that fills a token budget."""
    whole_prompts = kind == "VllmV0"
    own: dict[str, Any] = {
        "kind": kind,
        "token_budget": rng.choice([8 if whole_prompts else 3, 8, 16, 64, 512]),
    }
    if kind == "KFcfs":
        return own | {"k_prefill": rng.choice([1, 2, 5]), "k_decode": rng.choice([1, 3, 64])}
    own["max_seqs"] = rng.choice([1, 2, 4, 8, 128])
    if kind == "VllmV1":
        own["long_prefill_threshold"] = rng.choice([0, 0, 4, 10])
        own["policy"] = rng.choice(["fcfs", "priority"])
        own["reserve_full_prompt"] = rng.choice([True, False])
    if kind in ("Sarathi", "VllmV0"):
        swap = {"kind": "Swap", "per_token": 1e-6, "base": 0.001}
        own["watermark"] = rng.choice([0.0, 0.01, 0.1])
        own["preemption"] = rng.choice([{"kind": "Recompute"}, swap])
    if kind == "Sarathi":
        own["order"] = rng.choice(["fcfs", "spf", "srf", "lpf"])
    return own


def _scheduler(kind: str, rng: random.Random, longest: int, classes: list[str]) -> dict[str, Any]:
    """One of a kind: its name, and of those that differ much the way, after a blank."""
    name, _, way = kind.partition(" ")
    own: dict[str, Any] = {"kind": name}
    if name == "Orca":
        own = _fills("Orca", rng) | {"chunked": way == "chunked"}
        own["max_model_len"] = int(longest * rng.uniform(0.5, 1.1)) + 1
        if way != "chunked" and rng.random() < 0.5:
            own["token_budget"] = None
    elif name == "FasterTransformer":
        own |= {
            "max_seqs": rng.choice([1, 2, 4, 128]),
            "max_model_len": int(longest * rng.uniform(0.5, 1)) + 1,
        }
        own["free"] = way
    elif name in ("Rad", "RadPhased"):
        own |= {"rows": rng.choice([2, 4, 8]), "columns": rng.choice([1, 2, 4, 6])}
        own |= {"reduction": rng.choice([3, 4, 8]), "requests_per_cycle": rng.choice([1, 2, 3, 10])}
    elif name == "Slai":
        own |= {"token_budget": rng.choice([3, 8, 16, 64, 512]), "max_active": rng.choice([1, 3, 8, 128])}
        own |= {"max_decodes": rng.choice([1, 2, 8, 128]), "offset": rng.choice([0.01, 1, 2.5, 10])}
        if way == "dynamic":
            shares = {"kv_share": rng.choice([0.0, 0.3, 0.65, 0.96])}
            own["offset"] = {"kind": "DynamicOffset", "low": rng.choice([0.01, 0.5]), "high": 3, **shares}
        own["order"] = rng.choice(["fcfs", "spf", "srf", "lpf"])
        own["class_first"] = rng.choice([None, *classes])
    elif name == "Wait":
        each = {one: rng.choice([1, 2, 3]) for one in classes}
        own |= {"thresholds": rng.choice([1, 2, 4, each]), "max_seqs": rng.choice([None, None, 2, 8])}
    elif name == "NestedWait":
        own["segments"] = sorted(rng.sample([0, 1, 2, 5, 9], rng.choice([1, 2, 3])))
        own["thresholds"] = [rng.choice([1, 2, 3]) for _ in own["segments"]]
        own["prompt_groups"] = (
            sorted(rng.sample([10, 30, 80], rng.choice([1, 2]))) if way == "grouped" else []
        )
    elif name == "SlotGreedy":
        own["chunk"] = rng.choice([4, 16, 512])
    elif name == "ClassPriority":
        inner = _scheduler("Orca chunked", rng, longest, []) if way == "Orca" else _fills(way, rng)
        own |= {"order": rng.sample(classes, len(classes)), "inner": inner}
    else:
        own = _fills(name, rng)
    return own


def _requests(rng: random.Random, prompt: int, output: int) -> list[dict[str, Any]]:
    """Arrivals often fall on the ends of iterations, often all together."""
    grid, now, requests = rng.choice([0.01, 1.0, 0.001, 0.0062]), 0.0, []
    gaps = rng.choice([[0, 0, 1, 2, 5, 20], [0, 0, 0, 0, 0, 1]])
    for _ in range(rng.randint(1, 18)):
        now = round(now + rng.choice(gaps) * grid, 9)
        requests.append(
            {
                "arrival_s": now,
                "prompt_tokens": rng.randint(1, prompt),
                "output_tokens": rng.randint(1, output),
                "class": rng.choice(["b", "a", "a"]),
                "priority": rng.randint(0, 2),
                "patience_s": None if rng.random() < 0.8 else round(rng.choice([0, 1, 5, 20]) * grid, 9),
                "tbt_slo_s": rng.choice([None, 0.02, 0.035, 0.1, 2.5]),
            }
        )
    return requests


@cache
def _scenario(kind: str, seed: int) -> Scenario:
    """An engine, requests and a horizon; KV is often tight."""
    rng = random.Random(f"{kind} {seed}")
    block, prompt, output = rng.choice([1, 4, 7, 16]), rng.choice([20, 60, 200]), rng.choice([1, 5, 40])
    tokens = None if rng.random() < 0.2 else int((prompt + output) * rng.uniform(0.7, 3)) + block
    requests = _requests(rng, prompt, output)
    classes = sorted({row["class"] for row in requests})
    engine = {
        "timing": _timing(rng),
        "scheduler": _scheduler(kind, rng, prompt + output, classes),
        "kv": {"tokens": tokens, "block": block, "prefix_cache": None},
        "first_token": rng.choice(["prefill", "prefill", "decode"]),
        **_of_hardware(random.Random(f"hardware {kind} {seed}")),
    }
    last = requests[-1]["arrival_s"]
    horizon_s = None if rng.random() < 0.8 else round(rng.uniform(0, last * 1.5), 3)
    return engine, requests, horizon_s


@cache
def _outcome(kind: str, seed: int) -> reference.Outcome:
    engine, requests, horizon_s = _scenario(kind, seed)
    return reference.simulate(requests, engine, horizon_s)


def _rows(outcome: reference.Outcome) -> list[dict[str, Any]]:
    """What the frame of requests must hold."""
    rows = []
    for request in outcome.requests:
        gaps = [later - earlier for earlier, later in zip(request.tokens, request.tokens[1:], strict=False)]
        rows.append(
            {
                "status": request.status,
                "admitted_s": _seconds(request.admitted),
                "first_token_s": _seconds(request.first_token),
                "finish_s": _seconds(request.finish),
                "left_s": _seconds(request.left),
                "max_tbt_s": _seconds(max(gaps, default=None)),
                "preemptions": request.preemptions,
            }
        )
    return rows


def _batches(result: iq.Result) -> list[tuple[float | None, list[tuple[int, int, bool]], int | None]]:
    """Start, rows and blocks of every iteration; start and blocks only of the first of each stretch."""
    rows: dict[int, list[tuple[int, int, bool]]] = {}
    for iteration, request, tokens, emits in result.batches.iter_rows():
        rows.setdefault(iteration, []).append((request, tokens, emits))
    listed: list[tuple[float | None, list[tuple[int, int, bool]], int | None]] = []
    columns = result.iterations.select("start_s", "count", "kv_used_tokens")
    for place, (start, count, used) in enumerate(columns.iter_rows()):
        listed += [(start, sorted(rows[place]), used)] + [(None, sorted(rows[place]), None)] * (count - 1)
    return listed


def _frame(requests: list[dict[str, Any]]) -> pl.DataFrame:
    return pl.DataFrame(requests, schema_overrides={"patience_s": pl.Float64, "tbt_slo_s": pl.Float64})


def _ended(kind: str, seed: int) -> list[reference.Iteration]:
    """The iterations that ended by the horizon."""
    horizon_s = _scenario(kind, seed)[2]
    horizon = math.inf if horizon_s is None else horizon_s
    iterations = _outcome(kind, seed).iterations
    return [row for row in iterations if (_seconds(row.start + row.length) or 0.0) <= horizon]


def _work(ended: list[reference.Iteration], budget: int) -> list[float]:
    """The shares of iterations below the budget that nothing, the cap and memory kept there."""
    below = [row.bound for row in ended if sum(tokens for _, tokens, _ in row.rows) < budget]
    return [below.count(bound) / max(1, len(ended)) for bound in ("broken", "cap", "memory")]


@grouped(seed=_SEEDS)
@pytest.mark.parametrize("kind", _KINDS)
def test_the_core_agrees_with_the_reference(kind: str, seed: int) -> None:
    engine, requests, horizon_s = _scenario(kind, seed)
    result = iq.simulate(
        iq.Workload(_frame(requests)),
        iq.Engine.from_json(engine),
        horizon_s=horizon_s,
        batches=True,
    )
    columns = ["status", "admitted_s", "first_token_s", "finish_s", "left_s", "max_tbt_s", "preemptions"]
    assert result.requests.select(columns).to_dicts() == _rows(_outcome(kind, seed))

    ended, batches = _ended(kind, seed), _batches(result)
    assert len(batches) == len(ended)
    for (start, rows, used), expected in zip(batches, ended, strict=True):
        assert rows == sorted(expected.rows)
        assert start is None or (start, used) == (_seconds(expected.start), expected.kv_used_tokens)

    own = engine["scheduler"].get("inner", engine["scheduler"]).get("token_budget")
    for budget in (own or 24, 5, 1):
        work = result.work_conservation(None if budget == own else budget)
        assert (work.budget, work.iterations) == (budget, len(ended))
        assert [work.share, work.cap_share, work.memory_share] == _work(ended, budget)


def _pauses(outcome: reference.Outcome) -> int:
    """Requests that were left out of a batch between two of theirs, never preempted."""
    places: dict[int, list[int]] = {r.id: [] for r in outcome.requests if r.preemptions == 0}
    for at, iteration in enumerate(outcome.iterations):
        for request, _, _ in iteration.rows:
            places.get(request, []).append(at)
    return sum(at[-1] - at[0] >= len(at) for at in places.values() if at)


@pytest.mark.parametrize("kind", _KINDS)
def test_the_random_scenarios_reach_what_they_are_for(kind: str) -> None:
    """Guards the test above: all that a policy can meet happens, and every reason in the audit."""
    never: set[str] = set()
    if "Orca" in kind or "FasterTransformer" in kind:
        never.add("preempted")  # who runs has all the blocks that it will ever need
    if "Wait" not in kind:
        never.add("drained")
    if "NestedWait" in kind or "KFcfs" in kind or kind == "SlotGreedy":
        never.add("cap")
    seldom: set[str] = set()
    if "FasterTransformer" in kind or kind in ("Sarathi", "VllmV1", "SlotGreedy"):
        seldom.add("paused")  # their decodes nearly always fit the budget
    everything = {"finished", "rejected", "abandoned", "unfinished", "preempted", "paused", "drained"}
    everything |= {"broken", "cap", "memory", "nothing"}
    seen: Counter[str] = Counter()
    for seed in _SEEDS:
        outcome = _outcome(kind, seed)
        seen.update(request.status for request in outcome.requests)
        seen.update({iteration.bound for iteration in outcome.iterations})
        seen["preempted"] += sum(request.preemptions > 0 for request in outcome.requests)
        seen["paused"] += _pauses(outcome)
        seen["drained"] += outcome.drains
    assert min(seen[what] for what in everything - never - seldom) >= 5, seen
    assert not any(seen[what] for what in never), seen


def _follows_the_laws(kind: str, seed: int) -> None:
    engine, requests, horizon_s = _scenario(kind, seed)
    rules, kv, outcome = engine["scheduler"], engine["kv"], _outcome(kind, seed)
    limits = rules.get("inner", rules)
    assert horizon_s is not None or len(outcome.requests) == len(requests)
    for before, after in zip(outcome.iterations, outcome.iterations[1:], strict=False):
        assert before.start + before.length <= after.start
    for iteration in outcome.iterations:
        assert 0 < len(iteration.rows) <= reference_policies.most_seqs(limits)
        assert len({request for request, _, _ in iteration.rows}) == len(iteration.rows)
        assert sum(tokens for _, tokens, _ in iteration.rows) <= reference_policies.most_tokens(limits)
        assert kv["tokens"] is None or iteration.kv_used_tokens <= kv["tokens"]
    emitted = Counter(at for row in outcome.iterations for at, _, emits in row.rows if emits)
    for r in outcome.requests:
        assert r.status in ("finished", "rejected", "abandoned") or horizon_s is not None
        assert len(r.tokens) == emitted[r.id] <= r.output
        assert (len(r.tokens) == r.output) == (r.status == "finished")
        assert r.blocks == 0 or r.status == "unfinished"
        if r.status == "finished":
            assert r.admitted is not None and r.arrival <= r.admitted < r.tokens[0] == r.first_token
            assert r.tokens[-1] == r.finish == r.left


@pytest.mark.parametrize("kind", _KINDS)
def test_the_reference_follows_the_laws(kind: str) -> None:
    """L1 to L5 and L7; who is `unfinished` at the end of a run without a horizon has been forgotten."""
    for seed in _SEEDS:
        _follows_the_laws(kind, seed)
