"""Hand-made runs: an engine whose iterations last a second each, requests, and the columns that come out."""

from typing import Any

import inferq as iq


def engine(kv: iq.KvCache | None = None, first_token: Any = "prefill", **scheduler: Any) -> iq.Engine:
    """One slot of a second for each iteration."""
    cache = iq.KvCache.unlimited() if kv is None else kv
    return iq.Engine(
        timing=iq.Constant(1.0), scheduler=iq.Sarathi(**scheduler), kv=cache, first_token=first_token
    )


def work(*requests: tuple[float, int, int], **columns: Any) -> dict[str, Any]:
    """Requests as (arrival_s, prompt_tokens, output_tokens)."""
    names = ("arrival_s", "prompt_tokens", "output_tokens")
    return {**dict(zip(names, map(list, zip(*requests, strict=True)), strict=True)), **columns}


def rows(result: iq.Result, *columns: str) -> list[tuple[Any, ...]]:
    return result.requests.select(columns).rows()
