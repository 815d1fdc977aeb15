"""Random scenarios for vLLM's scheduler, wider than the recorded ones, in the same form."""

from __future__ import annotations

import random
from typing import Any

from .night import chance

Scenario = dict[str, Any]


def _requests(rng: random.Random, base_us: int, shares: bool) -> list[dict[str, Any]]:
    """Arrivals often come at one instant, or when an iteration ends; ends are foreseen, or stop tokens."""
    prompt, output = rng.choice([8, 40, 100]), rng.choice([1, 3, 12, 60])
    grid, gaps = rng.choice([base_us, 1, 137]), rng.choice([[0], [0, 0, 1, 2], [0, 1, 5, 30], [0, 0, 0, 40]])
    spare, now = rng.choice([[0], [1], [0, 0, 1]]), 0
    rows: list[dict[str, Any]] = []
    for at in range(rng.randint(1, 24)):
        now += rng.choice(gaps) * grid
        row: dict[str, Any] = {
            "arrival_us": now,
            "prompt_tokens": rng.randint(1, prompt),
            "output_tokens": rng.randint(1, output),
            "priority": rng.randint(0, 2),
        }
        earlier = rng.randrange(at) if at else 0
        said = sum(rows[earlier][name] for name in ("prompt_tokens", "output_tokens")) if at else 0
        if shares and at and said < 150 and rng.random() < 0.3:
            row |= {"continues": earlier, "prompt_tokens": said + rng.choice([0, 1, 7])}
        elif shares and rng.random() < 0.8:
            row["prefix_parts"] = [[rng.choice([1, 1, 2]), rng.randint(1, row["prompt_tokens"])]]
        rows.append(row | {"max_output_tokens": row["output_tokens"] + rng.choice(spare)})
    return rows


def with_drafts(seed: int) -> Scenario:
    """The same with speculative decoding; some n-gram lookups have a proposal rate, stated or per request."""
    asked, rng = scenario(seed), chance(f"drafts {seed}")
    tokens = rng.randint(1, 5)
    for row in asked["requests"]:
        most = rng.choice([0, tokens, tokens, tokens + 2])
        row["accepted"] = [rng.randint(0, most) for _ in range(row["output_tokens"])]
    largest = max(row["prompt_tokens"] + row["output_tokens"] for row in asked["requests"])
    speculation: dict[str, Any] = {"tokens": tokens, "method": rng.choice(["eagle", "eagle", "ngram"])}
    rates, share = chance(f"proposals {seed}"), [0.0, 0.2, 0.5, 0.875, 1.0]
    if speculation["method"] == "ngram":
        speculation["seed"] = rates.randrange(3)
        if rates.random() < 0.5:
            speculation["proposal_rate"] = rates.choice(share)
        if rates.random() < 0.5:
            for row in asked["requests"]:
                row["proposal_rate"] = rates.choice(share)
    return asked | {
        "speculation": speculation,
        "max_model_len": rng.randint(largest, asked["kv_tokens"]),
        "token_budget": max(asked["token_budget"], 1 + tokens),  # else what fills a row up is never admitted
    }


def scenario(seed: int) -> Scenario:
    """Memory is often short, and so are seats and budgets."""
    rng = chance(f"vllm {seed}")
    price = {"base": rng.choice([1000, 8000]), "per_token": rng.choice([0, 60, 100])}
    prefix, block = rng.random() < 0.4, rng.choice([1, 4, 16, 16])
    requests = _requests(rng, price["base"], prefix)
    largest = max(row["prompt_tokens"] + row["output_tokens"] for row in requests)
    ahead = rng.random() < 0.85
    return {
        "block_tokens": block,
        "kv_tokens": -(-int(largest * rng.choice([1, 1.3, 2, 10])) // block) * block,
        "token_budget": rng.choice([3, 16, 64, 512]),
        "max_seqs": rng.choice([1, 2, 4, 8, 128]),
        "policy": rng.choice(["fcfs", "priority"]),
        "long_prefill_threshold": rng.choice([0, 0, 4, 24]),
        "reserve_full_prompt": rng.choice([True, False]),
        "prefix": prefix,
        "async_scheduling": ahead,
        "pause_us": rng.choice([0, 0, 1000]) if ahead else 0,
        "price_us": price | {"per_context_token": rng.choice([0, 1])},
        "requests": requests,
    }
