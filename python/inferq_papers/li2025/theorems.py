"""Does the limit hold for any lengths and times, several engines and types? li2025 2.3, 4.1, 4.2, A.1."""

from __future__ import annotations

from typing import Any

import inferq as iq
from inferq._lazy import pl
from inferq.theory.capacities.token_capacity import token_capacity
from inferq.theory.demands.demand import RequestClass
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
    """Theorem 1 with other distributions of lengths, the other convention, and other iterations."""
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
        said = token_capacity(RequestClass(rate=1.0, **lengths), system)
        asked = unit(poisson(sizes.requests, **lengths))
        if said.capacity_per_s == said.stable_below_per_s:
            rows.append(edge_row(where, what, said.capacity_per_s, system, asked, sizes, tell))
            continue
        tell(f"{where}: {what}")
        found = found_edge(system, asked, 0.95 * said.stable_below_per_s, 1.05 * said.capacity_per_s, sizes)
        note = (
            f"without the product of chunk and context, the cut of a prompt matters: (2.7) gives "
            f"{said.stable_below_per_s:.2f} to {said.capacity_per_s:.2f}"
        )
        rows.add(where, what, PER_S, found, note=note)
    return Section(
        title="Does it hold for other lengths and other iterations?",
        text=(
            "Theorem 1 asks for independent requests with any distribution of lengths. (A.1) adds attention, "
            "β·Σ contexts of decodes + α·Σ c² for chunks of c tokens, which (2.7) does not cover: summed "
            "over the life of a request it is a number of seconds, and the condition becomes λ((m_p + "
            "m_d)·t_b/b + A) < 1. A depends on how the prompt is cut, unless a chunk also pays ε·c·x for "
            "its x tokens of context, with ε = 2α (α = 1 µs, β = 2 µs here)."
        ),
        rows=tuple(rows),
        remarks=(
            "**Means are enough** where time goes by tokens: geometric and uniform lengths reach the same "
            "limit as fixed ones of the same mean. With attention they are not: A holds E[s²] and E[s·o], "
            "which `token_capacity` takes over the joint distribution.",
        ),
    )


def several(sizes: Sizes, tell: Tell) -> Section:
    """Sections 4.1 and 4.2: engines in parallel, two types of requests."""
    engines = 4
    sarathi = engine(iq.Sarathi(token_budget=TOKEN_BUDGET, max_seqs=TOKEN_BUDGET))
    fcfs = engine(iq.research.KFcfs(token_budget=TOKEN_BUDGET, k_prefill=TOKEN_BUDGET, k_decode=TOKEN_BUDGET))
    limit = token_capacity(CHAT, sarathi, engines=engines).capacity_per_s
    asked = unit(poisson(sizes.requests))
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
        rows.append(edge_row("Section 4.1", what, limit, fleet, asked, sizes, tell, note))

    types: dict[str, dict[str, Any]] = {
        "chat": {"prompt": iq.dist.Uniform(1, 257), "output": iq.dist.Uniform(1, 223)},
        "document": {"prompt": iq.dist.Uniform(512, 1536), "output": iq.dist.Geometric(32)},
    }
    means = []
    for chat_share in (0.75, 0.5, 0.25):
        shares = {"chat": chat_share, "document": 1 - chat_share}
        classes = [RequestClass(name=name, rate=shares[name], **types[name]) for name in types]
        said = token_capacity(classes, sarathi)
        parts = {
            name: iq.Workload.synthetic(
                requests=sizes.requests, arrivals=iq.dist.Poisson(shares[name]), **types[name]
            )
            for name in types
        }
        mixed = unit(iq.Workload.mix(parts, requests=sizes.requests))
        what = f"{100 * chat_share:.0f} % chat, {100 * (1 - chat_share):.0f} % documents"
        rows.append(edge_row("Section 4.2", what, said.capacity_per_s, sarathi, mixed, sizes, tell))
        means.append({"mix": what, "m_p": said.prompt_tokens_mean, "m_d": said.decode_tokens_mean})
    return Section(
        title="Several engines, several types. Sections 4.1 and 4.2",
        text=(
            f"K = {engines} engines with KFcfs behind a router, (4.1): λ(m_p + m_d) < K·b/t_b. Proposition "
            "1 has a proof for random routing and for the fewest requests. Then one engine with two types, "
            "(4.2): the rates of both times their tokens must be below b/t_b; the paper gives no lengths. "
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
            "**Any of these routers reaches K times one engine.** That they differ in how long requests wait "
            "below the limit is another question.",
            "**Only rates times tokens matter**, not which type sends them.",
        ),
    )
