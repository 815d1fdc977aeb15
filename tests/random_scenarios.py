"""Random scenarios for the fast core and the slow reference: engines, and requests that crowd them."""

import random
from functools import cache

from .night import chance
from .policies import POLICIES
from .policy import Described
from .timing_models import drawn_timing

Scenario = tuple[Described, list[Described], float | None]  # an engine, requests and a horizon

VARIANTS = {
    name: draw for policy in POLICIES.values() if policy.rule for name, draw in policy.variants.items()
}
KINDS = tuple(VARIANTS)


def _overhead(rng: random.Random) -> Described:
    """Nothing most of the time; else a host that works beside the GPU or after it."""
    if rng.random() < 0.7:
        return {}
    host = {"base_s": rng.choice([0.0, 0.002, 0.03]), "per_sequence_s": rng.choice([0.0, 2.5e-4])}
    graphs = {"largest_graph_tokens": rng.choice([0, 4, 16, 60]), "beyond_graph_s": 0.004}
    launches = rng.choice([{}, {"launch_s": rng.choice([0.003, 0.05])}, {"exposed_s": 0.0007}])
    return {
        "overhead": host | {"overlapped": rng.choice([True, False])} | rng.choice([{}, graphs]) | launches,
    }


def _longest(rng: random.Random, longest: int) -> Described:
    """Any request is served most of the time; else some are too long."""
    return {} if rng.random() < 0.8 else {"max_model_len": rng.randint(2, longest)}


def requests(rng: random.Random, prompt: int, output: int) -> list[Described]:
    """Arrivals often fall on the ends of iterations, often all together; some prompts are short."""
    grid, now, rows = rng.choice([0.01, 1.0, 0.001, 0.0062]), 0.0, []
    gaps = rng.choice([[0, 0, 1, 2, 5, 20], [0, 0, 1, 2, 5, 20], [0, 0, 0, 0, 0, 1], [0]])
    for _ in range(rng.randint(1, 18)):
        now = round(now + rng.choice(gaps) * grid, 9)
        rows.append(
            {
                "arrival_s": now,
                "prompt_tokens": rng.randint(1, rng.choice([prompt, prompt, 4])),
                "output_tokens": rng.randint(1, output),
                "class": rng.choice(["b", "a", "a"]),
                "priority": rng.randint(0, 2),
                "patience_s": None if rng.random() < 0.8 else round(rng.choice([0, 1, 5, 20]) * grid, 9),
                "itl_slo_s": rng.choice([None, 0.02, 0.035, 0.1, 2.5]),
            }
        )
    return rows


@cache
def scenario(kind: str, seed: int) -> Scenario:
    """An engine, requests and a horizon; KV is often tight."""
    rng = chance(f"{kind} {seed}")
    block, prompt, output = rng.choice([1, 4, 7, 16]), rng.choice([20, 60, 200]), rng.choice([1, 5, 40])
    tokens = None if rng.random() < 0.2 else int((prompt + output) * rng.uniform(0.7, 3)) + block
    rows = requests(rng, prompt, output)
    classes = sorted({row["class"] for row in rows})
    engine = {
        "timing": drawn_timing(chance(f"timing {kind} {seed}")),
        "scheduler": VARIANTS[kind](rng, prompt + output, classes),
        "kv": {"tokens": tokens, "block": block, "prefix_cache": None},
        "first_token": rng.choice(["prefill", "prefill", "decode"]),
        **_overhead(chance(f"host {kind} {seed}")),
        **_longest(chance(f"length {kind} {seed}"), prompt + output),
    }
    last = rows[-1]["arrival_s"]
    horizon_s = None if rng.random() < 0.8 else round(rng.uniform(0, last * 1.5), 3)
    return engine, rows, horizon_s


def shared(rng: random.Random, alone: list[Described]) -> list[Described]:
    """The same requests with prompts that begin with common texts, or with what an earlier one says."""
    rows: list[Described] = []
    for at, request in enumerate(alone):
        row = {**request, "continues": None, "prefix_parts": None}
        earlier = rng.randrange(at) if at else None
        said = 0 if earlier is None else rows[earlier]["prompt_tokens"] + rows[earlier]["output_tokens"]
        if earlier is not None and said < 400 and rng.random() < 0.3:
            row |= {"continues": earlier, "prompt_tokens": said + rng.choice([0, 1, 5, 20])}
        elif rng.random() < 0.8:
            prompt = row["prompt_tokens"]
            first = max(1, int(prompt * rng.choice([0.2, 0.5, 0.9, 1])))
            parts = [[rng.choice([7, 7, 8]), first]]
            if first < prompt and rng.random() < 0.5:
                parts.append([rng.choice([7, 9]), rng.randint(1, prompt - first)])
            row["prefix_parts"] = parts
        rows.append(row)
    return rows


@cache
def sharing(kind: str, seed: int) -> Scenario:
    """The same with prompts that begin alike, and a cache that knows it."""
    engine, rows, horizon_s = scenario(kind, seed)
    rng = chance(f"sharing {kind} {seed}")
    kv = {**engine["kv"], "prefix_cache": rng.choice(["blocks", "radix"])}
    return {**engine, "kv": kv}, shared(rng, rows), horizon_s


# Of fleets.


def lengths(rng: random.Random) -> tuple[int, int]:
    return rng.choice([20, 60, 200]), rng.choice([1, 5, 40])


def engine_of(
    rng: random.Random, kind: str, rows: list[Described], kv: Described, first_token: str
) -> Described:
    classes = sorted({row["class"] for row in rows})
    longest = max(row["prompt_tokens"] + row["output_tokens"] for row in rows)
    scheduler = VARIANTS[kind](rng, longest, classes)
    return {
        "timing": drawn_timing(rng),
        "scheduler": scheduler,
        "kv": kv,
        "first_token": first_token,
    }


def tight(rng: random.Random, tokens: int) -> Described:
    """A cache of some requests, sometimes of none, sometimes without bounds."""
    block = rng.choice([1, 4, 7, 16])
    held = None if rng.random() < 0.2 else int(tokens * rng.uniform(0.7, 3)) + block
    return {"tokens": held, "block": block, "prefix_cache": None}


def holds_all(rng: random.Random, engine: Described, rows: list[Described]) -> Described:
    """The engine with room for each of the rows, often not for two."""
    tokens = max(row["prompt_tokens"] + row["output_tokens"] for row in rows)
    limits = engine["scheduler"].get("inner", engine["scheduler"])
    tokens = max(tokens, limits.get("max_model_len", 0))
    block = engine["kv"]["block"]
    held = None if rng.random() < 0.2 else -(-int(tokens * rng.uniform(1, 2)) // block) * block
    return {**engine, "kv": {**engine["kv"], "tokens": held}}


def with_sessions(rng: random.Random, rows: list[Described], thinking: bool) -> list[Described]:
    """Each row with its session, or none; a turn that thinks waits for the one before it."""
    sessions = rng.choice([1, 2, 5])
    thoughts = rng.choice([[0.0], [None, 0.0, 0.01, 0.5], [None, 1e-9, 0.003, 2.0]])
    for row in rows:
        row["session_id"] = rng.choice([None, *range(sessions)])
        if thinking:
            row["think_s"] = rng.choice(thoughts)
    return rows


def horizon_of(rng: random.Random, rows: list[Described]) -> float | None:
    last = rows[-1]["arrival_s"]
    return None if rng.random() < 0.8 else round(rng.uniform(0, last * 1.5), 3)
