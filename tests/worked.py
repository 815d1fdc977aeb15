"""Cases worked out by hand: the slow reference and the core must both do what they say.

An iteration lasts a second and a block holds a token, unless said. A batch is drawn as
'start: request+tokens …', a star where a row emits.
"""

from typing import Any

import inferq as iq

from . import reference
from .agreement import assert_agrees
from .reference import Outcome

Described = dict[str, Any]
SECOND = 10**18  # attoseconds
SLOT = {"kind": "Constant", "seconds": 1.0}
SWAP = iq.Swap(per_token=0.5, base=1)


def linear(base: float, per_token: float, per_context_token: float = 0, **changed: Any) -> Described:
    rest = {"knee": 0, "per_decode": 0, "per_prefill_square": 0, "per_chunk_context": 0}
    terms = {"base": base, "per_token": per_token, "per_context_token": per_context_token}
    return {"kind": "PiecewiseLinear", **terms, **rest, **changed}


def engine(scheduler: iq.Scheduler, timing: Described = SLOT, tokens: int | None = None, block: int = 1,
           first_token: str = "prefill") -> Described:  # fmt: skip
    kv = {"tokens": tokens, "block": block, "prefix_cache": None}
    return {"timing": timing, "scheduler": scheduler.to_json(), "kv": kv, "first_token": first_token}


def request(arrival_s: float, prompt_tokens: int, output_tokens: int, **rest: Any) -> Described:
    lengths = {"prompt_tokens": prompt_tokens, "output_tokens": output_tokens}
    return {"arrival_s": arrival_s, **lengths, "priority": 0, **rest}


def of_class(name: str, arrival_s: float, prompt_tokens: int, output_tokens: int) -> Described:
    return request(arrival_s, prompt_tokens, output_tokens, **{"class": name})


def simulate(rows: list[Described], engine: Described, horizon_s: float | None = None) -> Outcome:
    """What the reference does with them, and the core too."""
    outcome = reference.simulate(rows, engine, horizon_s)
    assert_agrees(rows, engine, horizon_s, outcome)
    return outcome


def drawn(outcome: Outcome, unit: int = SECOND) -> list[str]:
    """Each iteration as 'start: request+tokens …'; a star marks a row that emits."""
    lines = []
    for start, _, rows, *_ in outcome.iterations:
        assert start % unit == 0
        lines.append(f"{start // unit}: " + " ".join(f"{at}+{n}{'*' * emits}" for at, n, emits in rows))
    return lines


def instants(outcome: Outcome, unit: int = SECOND) -> list[list[float]]:
    return [[token / unit for token in r.tokens] for r in outcome.requests]


def used(outcome: Outcome) -> list[int]:
    return [iteration.kv_used_tokens for iteration in outcome.iterations]


def bounds(outcome: Outcome) -> list[str]:
    return [iteration.bound for iteration in outcome.iterations]


def preemptions(outcome: Outcome) -> list[int]:
    return [r.preemptions for r in outcome.requests]
