"""Speculation: drafts that a request decodes by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from inferq.description import Description, fields_of
from inferq.timing import TIMING_MODELS, TimingModel


@dataclass(frozen=True, kw_only=True, slots=True)
class Speculation(Description):
    """Speculative decoding: a drafter proposes tokens, and the model verifies them in one iteration.

    Every request whose row emitted is offered `tokens` drafts for its next one, the row that ends its prompt
    included. A row of d drafts has 1 + d tokens, all of which count to the budget, accepted or not. It emits
    1 + a of them at one instant, the end of its iteration: a drafts are accepted, and one token is the
    model's own. What is beyond the request's output is dropped. Drafts are cut where the budget is short and
    where the longest request ends, not where the output does; where blocks are short a request is preempted
    as ever. What a row took beyond what it keeps stays with the request.

    How many drafts would be accepted belongs to the request: entry m of its list in the workload's column
    `accepted` is for the m-th of its rows that emit, from 0, preempted or not, and a draw depends on `seed`,
    the request and m alone. Entry 0 is idle: the row that ends a prompt has no drafts. Behind the end of a
    list no draft is accepted.

    A timing model prices a row of 1 + d tokens as one decode, which reads its context once, with d tokens
    more in the batch: tables, rooflines and all that is linear in the tokens of a batch have a price of
    those, `Constant` and `MixedSolo` have none, which a finding says.

    In the results a token that comes at the instant of the one before it has a gap of 0 s to it: `itl` counts
    them, so that its mean is still the time between two tokens. `max_itl_s`, `tpot_s` and `e2e_s` are as
    ever. Each request has `drafted_tokens` (drafts that were verified) and `accepted_tokens` (those that
    became tokens of its output); `batches` have `emitted_tokens`. Fillers, below, are in neither.

    A request that is admitted with one token to compute, into a batch of decodes, is filled up to 1 +
    `tokens` with drafts that are never accepted, as vLLM does so that all rows are alike: a prompt that is
    cached but for its last token, or one that comes from another replica.

    Source: vLLM 0.33, whose recorded batches with an EAGLE drafter `VllmV1` reproduces. Not there: fewer
        drafts on offer than `tokens`, a number that changes, drafters that propose in parallel or with slots
        of their own. No request is longer than the cache, as vLLM asks of its `max_model_len`.

    Args:
        tokens: drafts on offer (`num_speculative_tokens`), 1 to 1,024.
        acceptance: a number: the probability of each draft, if all before it are accepted (a geometric law:
            1 + p + … + p^`tokens` tokens an iteration on average); a list with one entry for each draft: the
            probabilities that the first is accepted, the first two are, … (vLLM's acceptance per position);
            None: as the workload's `accepted` says.
        method: `"eagle"`: the drafter reads the model's states one token ahead, so that every row takes slots
            for `tokens` tokens behind its own, and a cached block serves a prompt that has its next token
            too; `"ngram"`: it looks for the last tokens in what came before, and has neither.
        seed: of the draws, 0 or above.
        drafter: how long drafting takes in every iteration. A number: that share of the iteration's own time;
            a timing model: its price of the same batch, such as `Constant(0.002)`, a table or a fit; None:
            no time. It is on the GPU, before what the host adds.

    Raises:
        ConfigError: a number outside these ranges; rates that are not one for each draft, or that rise; a
            drafter by a model that counts tiles. In `simulate`, no `acceptance` and no column `accepted`.
        TraceError: in `simulate`, a list `accepted` that does not bring the request's output.

    Example:
        >>> import inferq as iq
        >>> vllm = iq.VllmV1(speculation=iq.Speculation(tokens=3, acceptance=0.7, drafter=0.1))
        >>> engine = iq.Engine(timing=iq.Constant(0.02), scheduler=vllm, kv=iq.KvCache(tokens=10**5))
        >>> asked = {"arrival_s": [0.0], "prompt_tokens": [100], "output_tokens": [8]}
        >>> known = iq.Workload({**asked, "accepted": [[0, 3, 0, 2]]})
        >>> told = iq.VllmV1(speculation=iq.Speculation(tokens=3))
        >>> result = iq.simulate(known, iq.Engine(timing=iq.Constant(0.02), scheduler=told, kv=engine.kv))
        >>> result.requests.select("e2e_s", "drafted_tokens", "accepted_tokens").row(0)
        (0.08, 9, 4)
    """

    part: ClassVar[str | None] = "speculation"
    parts: ClassVar[Mapping[str, tuple[type[Any], ...]]] = {
        "drafter": (float, *TIMING_MODELS, type(None)),
    }

    tokens: int
    acceptance: float | Sequence[float] | None = None
    method: Literal["eagle", "ngram"] = "eagle"
    seed: int = 0
    drafter: float | TimingModel | None = None

    def expected_tokens(self) -> float | None:
        """Tokens that a row with all its drafts emits on average, before its output ends; None: not known."""
        if self.acceptance is None:
            return None
        if isinstance(self.acceptance, Sequence):
            return 1.0 + sum(self.acceptance)
        return 1.0 + sum(self.acceptance**place for place in range(1, self.tokens + 1))

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON-ready values."""
        return fields_of(self)
