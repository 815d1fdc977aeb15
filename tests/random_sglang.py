"""Random scenarios for SGLang's scheduler, wider than the recorded ones, in the same form."""

from __future__ import annotations

import random
from typing import Any

from .night import chance

Scenario = dict[str, Any]

SLACK = 64  # tokens that each request leaves of the pool at least, as in the recorded scenarios


def _arrivals(rng: random.Random, count: int, base_us: int) -> list[int]:
    """Often at one instant, often at the instants at which steps end."""
    grid = rng.choice([base_us, base_us, 1, 137, base_us // 2])
    gaps = rng.choice([[0], [0, 0, 0, 1], [0, 1, 2, 5], [0, 0, 1, 20], [0, 0, 0, 0, 0, 0, 40]])
    now, arrivals, rest = rng.choice([0, 500]), [], rng.randrange(2 * count)
    for at in range(count):
        now += rng.choice(gaps) * grid + (at == rest) * 40 * base_us
        arrivals.append(now)
    return arrivals


def _shares(rng: random.Random, requests: list[dict[str, Any]], most: int) -> None:
    """Lets prompts begin with common texts, or with what an earlier request says."""
    texts = rng.sample(range(6), rng.choice([1, 1, 2, 4]))
    parted, continued = rng.choice([(0.8, 0.0), (0.9, 0.2), (0.4, 0.5), (0.1, 0.8)])
    usual = [rng.randint(1, 2 * most) for _ in range(2)]  # lengths at which common texts are left
    for at, row in enumerate(requests):
        earlier = requests[rng.randrange(max(0, at - 8), at)] if at else None
        said = earlier["prompt_tokens"] + earlier["output_tokens"] if earlier else 0
        if earlier and said <= 3 * most and rng.random() < continued:
            row["continues"] = requests.index(earlier)
            row["prompt_tokens"] = said + rng.choice([0, 0, 1, 7, 40])
        elif rng.random() < parted:
            first = rng.choice([*usual, rng.randint(1, row["prompt_tokens"])])
            row["prefix_parts"] = [[rng.choice(texts), first]]
            if rng.random() < 0.3:
                row["prefix_parts"].append([rng.choice(texts), rng.randint(1, most)])
            own = rng.choice([0, rng.randint(0, most)])
            row["prompt_tokens"] = sum(tokens for _, tokens in row["prefix_parts"]) + own


def _requests(rng: random.Random, count: int, most: tuple[int, int], base_us: int) -> list[dict[str, Any]]:
    prompt, output = most
    least = output if rng.random() < 0.2 else 1  # all as long as each other: ties
    return [
        {
            "arrival_us": arrival,
            "prompt_tokens": rng.randint(1, rng.choice([3, prompt, prompt])),
            "output_tokens": 1 if rng.random() < 0.1 else rng.randint(least, output),
        }
        for arrival in _arrivals(rng, count, base_us)
    ]


def _budgets(rng: random.Random, page: int, least_seqs: int) -> dict[str, Any]:
    """Chunks of a page and up; where decodes ride along, above the cap on requests."""
    max_seqs = max(least_seqs, rng.choice([1, 2, 4, 8, 8, 16, 24, 200]))
    mixed = rng.random() < 0.4
    chunk = rng.choice([0, page, 2 * page + 1, 16, 48, 64, 100, 256])
    if mixed and 0 < chunk <= max_seqs:
        chunk = max_seqs + rng.choice([1, page, 40])
    return {
        "max_seqs": max_seqs,
        "chunk_tokens": max(chunk, page) if chunk else 0,
        "mixed": mixed,
        "max_prefill_tokens": rng.choice([10, 64, 100, 256, 16384, 16384]),
    }


def _by_ends(seed: int) -> Scenario:
    """Outputs known and no cache: each candidate is held against the ends of many others."""
    asked, rng = scenario(seed - seed % 25 + 6), chance(f"sglang by ends {seed}")
    page, rows, longest = asked["page_tokens"], asked["requests"], rng.choice([60, 200])
    for row in rows:
        row.pop("prefix_parts", None)
        row.pop("continues", None)
        row |= {"prompt_tokens": rng.randint(1, 60), "output_tokens": rng.randint(1, longest)}
    largest = max(row["prompt_tokens"] + row["output_tokens"] for row in rows) + SLACK
    return asked | {
        "kv_tokens": -(-(largest + rng.choice([0, 100, 300, 800])) // page) * page,
        "max_seqs": max(16, asked["max_seqs"]),
        "max_prefill_tokens": 16384,
        **{"prefix": False, "policy": "fcfs", "ignore_eos": True, "mixed": False},
    }


def _brim(seed: int) -> Scenario:
    """Large pages, and a request that leaves just so many tokens that it can be served, or too few."""
    asked, rng = scenario(seed - seed % 25 + 7), chance(f"sglang brim {seed}")
    page = rng.choice([32, 32, 64, 128])
    slack = rng.choice([SLACK, SLACK, max(SLACK, page + 1), max(SLACK, 2 * page - 1)])
    said = [row["prompt_tokens"] + row["output_tokens"] for row in asked["requests"]]
    pool = -(-(max(said) + slack) // page) * page
    largest = asked["requests"][said.index(max(said))]
    largest[rng.choice(["prompt_tokens", "output_tokens"])] += pool - slack - max(said)
    for row in asked["requests"]:
        row.pop("continues", None)  # its prompt would be too short now
    chunk = asked["chunk_tokens"]
    return asked | {
        "page_tokens": page,
        "kv_tokens": pool,
        "chunk_tokens": max(chunk, page, asked["max_seqs"] + 1) if chunk else 0,
        "ignore_eos": rng.random() < 0.6,
    }


def overlapped(seed: int) -> Scenario:
    """The same with overlap; in half of them ends are stop tokens, below what the client allowed."""
    asked, rng = scenario(seed), chance(f"sglang overlap {seed}")
    asked["overlap"] = True
    if rng.random() < 0.5:
        asked["ends"] = "stop"
        for row in asked["requests"]:
            row["max_tokens"] = row["output_tokens"] + rng.choice([0, 0, 1, 3, 40])
        largest = max(row["prompt_tokens"] + row["max_tokens"] for row in asked["requests"]) + SLACK
        page = asked["page_tokens"]
        asked["kv_tokens"] = max(asked["kv_tokens"], -(-largest // page) * page)
    return asked


def limited(seed: int) -> Scenario:
    """Without overlap, and with ends by stop tokens, below what the client allowed."""
    asked = overlapped(seed)
    asked = asked if "ends" in asked else overlapped(seed + 1_000_000)
    return {name: value for name, value in asked.items() if name != "overlap"}


def scenario(seed: int) -> Scenario:
    """One of six kinds: most are of the first."""
    rng = chance(f"sglang {seed}")
    kind = {0: "crowd", 1: "long", 2: "crowd"}.get(seed % 25) or rng.choice(
        ["usual", "usual", "storm", "storm"]
    )
    if seed % 25 in (3, 4, 5):
        return _brim(seed) if seed % 25 == 5 else _by_ends(seed)
    count, spares = rng.randint(1, 24), [0, 20, 100, 300, 2000]
    most = rng.choice([8, 40, 120]), rng.choice([1, 6, 30, 80])  # tokens of a prompt, of an output
    if kind == "crowd":  # more wait than are sorted
        count, most, spares = (
            rng.randint(130, 240),
            (rng.choice([4, 20, 40]), rng.choice([1, 3])),
            [0, 30, 300],
        )
    elif kind == "long":  # more output than is reserved
        outputs = rng.choice([900, 900, 7000])
        count, most, spares = rng.randint(2, 4 if outputs > 900 else 10), (60, outputs), [0, 100, 1000, 4000]
    elif kind == "storm":  # many decode beside each other, for whose output too little is reserved
        count, most, spares = rng.randint(16, 48), (rng.choice([8, 30]), rng.choice([30, 80])), [0, 120, 400]
    page = rng.choice([1, 1, 1, 16, 16, 2, 5, 8, 32])
    price = {"base": rng.choice([1000, 10000]), "per_token": rng.choice([0, 0, 60, 100])}
    price["per_context_token"] = rng.choice([0, 1])
    requests = _requests(rng, count, most, price["base"])
    prefix = rng.random() < 0.65
    if prefix or rng.random() < 0.1:
        _shares(rng, requests, most[0])
    largest = max(row["prompt_tokens"] + row["output_tokens"] for row in requests) + SLACK
    return {
        "page_tokens": page,
        "kv_tokens": -(-(largest + rng.choice(spares)) // page) * page,
        **_budgets(rng, page, 24 if kind == "storm" else 1),
        "policy": rng.choice(["fcfs", "lpm"]) if prefix else "fcfs",
        "prefix": prefix,
        "conservativeness": rng.choice(
            [0, 0.02, 0.1] if kind == "storm" else [0, 0.1, 0.3, 0.5, 1.0, 1.3, 2.0]
        ),
        "ignore_eos": kind != "storm" and rng.random() < 0.4,
        "price_us": price,
        "requests": requests,
    }
