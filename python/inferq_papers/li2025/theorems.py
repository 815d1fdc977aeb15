"""Limit with other lengths and times, several engines and types; li2025 2.3, 4.1, 4.2, A.1."""

from __future__ import annotations

from typing import Any

import polars as pl

import inferq as iq
from inferq.theory import RequestClass, token_capacity
from inferq_papers.edge import unit
from inferq_papers.li2025.one_engine import (
    CHAT,
    OUTPUT_TOKENS,
    PER_S,
    PROMPT_TOKENS,
    TIMING,
    TOKEN_BUDGET,
    Sizes,
    Tell,
    edge_row,
    engine,
    found_edge,
    poisson,
)
from inferq_papers.report import Rows, Section, Table


def lengths_and_times(sizes: Sizes, tell: Tell) -> Section:
    """Theorem 1 with other length distributions, the other first-token convention, and other iterations."""
    sarathi = iq.Sarathi(token_budget=TOKEN_BUDGET, max_seqs=TOKEN_BUDGET)
    vllm = iq.VllmV1(token_budget=TOKEN_BUDGET, max_seqs=TOKEN_BUDGET, async_scheduling=False)
    random: dict[str, Any] = {
        "prompt": iq.dist.Geometric(PROMPT_TOKENS),
        "output": iq.dist.Geometric(OUTPUT_TOKENS),
    }
    spread: dict[str, Any] = {"prompt": iq.dist.Uniform(1, 1600), "output": iq.dist.Uniform(1, 223)}
    fixed: dict[str, Any] = {"prompt": iq.dist.Fixed(PROMPT_TOKENS), "output": iq.dist.Fixed(OUTPUT_TOKENS)}
    line: dict[str, Any] = {
        "base": TIMING.base,
        "per_token": TIMING.per_token,
        "knee": TIMING.knee,
        "per_context_token": 2e-6,
    }
    neutral = iq.PiecewiseLinear(**line, per_prefill_square=1e-6, per_chunk_context=2e-6)
    printed = iq.PiecewiseLinear(**line, per_prefill_square=1e-6)
    cases: list[tuple[str, str, iq.Engine, dict[str, Any]]] = [
        ("Theorem 1", "geometric lengths", engine(sarathi), random),
        ("Theorem 1", "prompts uniform to 1,600", engine(sarathi), spread),
        (
            "Theorem 1",
            "first token with the prompt",
            engine(vllm, first_token="prefill"),
            random,
        ),
        ("Section 4.3", "constant slots of 0.1 s", engine(sarathi, iq.Constant(0.1)), fixed),
        ("(A.1)", "attention, any cut costs the same", engine(sarathi, neutral), spread),
        ("(A.1)", "attention as printed", engine(sarathi, printed), fixed),
    ]
    rows = Rows()
    for where, what, system, lengths in cases:
        limit = token_capacity(RequestClass(rate=1.0, **lengths), system)
        workload = unit(poisson(sizes.requests, **lengths))
        if limit.capacity_per_s == limit.stable_below_per_s:
            rows.append(edge_row(where, what, limit.capacity_per_s, system, workload, sizes, tell))
            continue
        tell(f"{where}: {what}")
        measured = found_edge(
            system, workload, 0.95 * limit.stable_below_per_s, 1.05 * limit.capacity_per_s, sizes
        )
        note = (
            f"without the product of chunk and context, the cut of a prompt matters: (2.7) has a range of "
            f"{limit.stable_below_per_s:.2f} to {limit.capacity_per_s:.2f}"
        )
        rows.add(where, what, PER_S, measured, note=note)
    return Section(
        title="Other lengths and other iterations",
        text=(
            "Theorem 1 requires independent requests with any length distribution. (A.1) adds attention, "
            "β·Σ contexts of decodes + α·Σ c² for chunks of c tokens, which (2.7) does not cover. Summed "
            "over the life of a request it is a number of seconds A, and the condition becomes λ((m_p + "
            "m_d)·t_b/b + A) < 1. A depends on how the prompt is cut, unless a chunk also costs ε·c·x for "
            "its x tokens of context, with ε = 2α (α = 1 µs, β = 2 µs here)."
        ),
        rows=tuple(rows),
        remarks=(
            "**Means are enough** if time depends on tokens alone: geometric and uniform lengths reach the "
            "same limit as fixed lengths of the same mean. With attention they are not: A contains E[s²] and "
            "E[s·o], which `token_capacity` computes over the joint distribution.",
        ),
    )


def several(sizes: Sizes, tell: Tell) -> Section:
    """Sections 4.1 and 4.2: engines in parallel, two types of requests."""
    engines = 4
    sarathi = engine(iq.Sarathi(token_budget=TOKEN_BUDGET, max_seqs=TOKEN_BUDGET))
    fcfs = engine(iq.research.KFcfs(token_budget=TOKEN_BUDGET, k_prefill=TOKEN_BUDGET, k_decode=TOKEN_BUDGET))
    limit = token_capacity(CHAT, sarathi, engines=engines).capacity_per_s
    workload = unit(poisson(sizes.requests))
    routers: tuple[iq.Router, ...] = (
        iq.Random(),
        iq.LeastRequests(),
        iq.LeastTokens(),
        iq.RoundRobin(),
        iq.PowerOfTwo(),
    )
    rows = []
    for router in routers:
        known = isinstance(router, (iq.Random, iq.LeastRequests, iq.LeastTokens))
        note = "" if known else "not named in the paper"
        fleet = iq.Cluster(fcfs, replicas=engines, router=router)
        what = f"{engines} engines, {type(router).__name__}"
        rows.append(edge_row("Section 4.1", what, limit, fleet, workload, sizes, tell, note))

    types: dict[str, dict[str, Any]] = {
        "chat": {"prompt": iq.dist.Uniform(1, 257), "output": iq.dist.Uniform(1, 223)},
        "document": {"prompt": iq.dist.Uniform(512, 1536), "output": iq.dist.Geometric(32)},
    }
    means = []
    for chat_share in (0.75, 0.5, 0.25):
        shares = {"chat": chat_share, "document": 1 - chat_share}
        classes = [RequestClass(name=name, rate=shares[name], **types[name]) for name in types]
        single = token_capacity(classes, sarathi)
        parts = {
            name: iq.Workload.synthetic(
                requests=sizes.requests, arrivals=iq.dist.Poisson(shares[name]), **types[name]
            )
            for name in types
        }
        mixed = unit(iq.Workload.mix(parts, requests=sizes.requests))
        what = f"{100 * chat_share:.0f} % chat, {100 * (1 - chat_share):.0f} % documents"
        rows.append(edge_row("Section 4.2", what, single.capacity_per_s, sarathi, mixed, sizes, tell))
        means.append({"mix": what, "m_p": single.prompt_tokens_mean, "m_d": single.decode_tokens_mean})
    return Section(
        title="Several engines, several types: sections 4.1 and 4.2",
        text=(
            f"K = {engines} engines with KFcfs behind a router, (4.1): λ(m_p + m_d) < K·b/t_b. Proposition "
            "1 proves it for random routing and for the fewest requests. Then one engine with two types, "
            "(4.2): the sum of rates times tokens must be below b/t_b. The paper states no lengths. "
            "Here chat has 1 to 257 prompt tokens and 1 to 223 output tokens, a document 512 to 1,536 and "
            "32 on average."
        ),
        rows=tuple(rows),
        tables=(
            Table(
                title="Mean tokens of the mixes",
                frame=pl.DataFrame(means),
                decimals={"m_p": 1, "m_d": 1},
                note="Weighted by rates.",
            ),
        ),
        remarks=(
            "**All these routers reach K times one engine.** Waiting times below the limit may still differ.",
            "**Only rates times tokens matter**, not the type that sends them.",
        ),
    )
