"""Speculation: speculative decoding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from inferq.description import Description, fields_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Speculation(Description):
    """Speculative decoding: a drafter proposes tokens, and the model verifies them in one iteration.

    A row is the part of an iteration that belongs to one request. After every row that emits a token,
    including the row that ends the prompt, the request's next row has `tokens` drafts. A row of d drafts has
    1 + d tokens, all of which count against the budget, accepted or not. It emits 1 + a tokens at the end of
    its iteration: a accepted drafts and one token of the model. Tokens beyond the request's output are
    dropped. The budget and the maximum request length limit the number of drafts, the output length does not.
    Short blocks cause a preemption as without drafts. A request keeps the blocks of its rejected drafts.

    The number of accepted drafts is a property of the request: entry m of its list in the workload's column
    `accepted` is for its m-th row that emits, from 0, preempted or not, and a draw depends on `seed`, the
    request and m only. An entry is unused if its row has no drafts, like entry 0 of the row that ends the
    prompt. After the end of a list no draft is accepted.

    An n-gram lookup (prompt lookup) proposes nothing if the request's last tokens do not occur earlier in
    its text. The row is then a plain decode: one token, of the budget too. `proposal_rate` is the share of
    rows with proposals; the draw for row m depends on `seed`, the request and m only. With async scheduling
    the plan does not know the outcome: it reserves budget and blocks for all drafts, and the row runs without
    the missing ones. This is vLLM's `ngram_gpu`; vLLM refuses its `ngram` with async scheduling.

    A timing model computes a row of 1 + d tokens as one decode, which reads its context once, with d
    additional tokens in the batch. Tables, rooflines and models with a cost per token include these tokens;
    `Constant` and `MixedSolo` do not, which a finding reports.

    In results, a token emitted together with the previous one has a gap of 0 s: `itl` includes it, so that
    its mean is the time between two tokens. `max_itl_s`, `tpot_s` and `e2e_s` are defined as without drafts.
    Each request has `drafted_tokens` (verified drafts) and `accepted_tokens` (drafts in its output);
    `batches` have `emitted_tokens`. Padding (next paragraph) is in none of them.

    A request that is admitted with one token to compute, into a batch of decodes, is padded to 1 + `tokens`
    with drafts that are never accepted, as in vLLM, so that all rows are alike. Such a prompt is cached but
    for its last token, or comes from another replica.

    Source: vLLM 0.33, whose recorded batches with an EAGLE drafter `VllmV1` reproduces. N-gram proposals
        follow vLLM's `ngram_proposer.py` and `ngram_proposer_gpu.py`, without recordings; the method is
        prompt lookup decoding (Saxena, 2023). Not modeled: fewer drafts than `tokens` in a proposal, a
        variable number, parallel drafters, drafters with slots of their own. No request is longer than the
        cache, as vLLM requires of its `max_model_len`.

    Args:
        tokens: drafts per row (`num_speculative_tokens`), 1 to 1,024.
        acceptance: a number: the probability of each draft, if all earlier ones are accepted (a geometric
            distribution: 1 + p + … + p^`tokens` tokens an iteration on average); a list with one entry for
            each draft: the probabilities that the first is accepted, the first two are, … (vLLM's acceptance
            rate per position). Default: the workload's column `accepted`.
        method: `"eagle"`: the drafter reads the model's states one token ahead, so that every row takes slots
            for `tokens` further tokens, and a cached block serves only a prompt that also has its next token;
            `"ngram"`: the drafter searches earlier text for the last tokens, without these costs.
        seed: seed of the draws, 0 or above.
        drafter: GPU time of drafting in every iteration, before host overhead. A number: a fraction of the
            iteration's time; a timing model, such as `Constant(0.002)`, a table or a fit: its time for the
            same batch. None: no time.
        proposal_rate: share of rows after the first for which `"ngram"` proposes drafts, 0 to 1. Default: the
            workload's column `proposal_rate`; without it every row has drafts, which a finding reports. None
            for `"eagle"`, which always proposes.

    Raises:
        ConfigError: a number outside these ranges; acceptance rates that are not one for each draft, or that
            rise; a drafter model that counts tiles; a proposal rate for `"eagle"`. In `simulate`, neither
            `acceptance` nor `accepted`.
        TraceError: in `simulate`, a list `accepted` that does not produce the request's output.

    Example:
        >>> import inferq as iq
        >>> vllm = iq.VllmV1(speculation=iq.Speculation(tokens=3, acceptance=0.7, drafter=0.1))
        >>> engine = iq.Engine(timing=iq.Constant(0.02), scheduler=vllm, kv=iq.KvCache(tokens=10**5))
        >>> workload = {"arrival_s": [0.0], "prompt_tokens": [100], "output_tokens": [8]}
        >>> traced = iq.Workload({**workload, "accepted": [[0, 3, 0, 2]]})
        >>> vllm = iq.VllmV1(speculation=iq.Speculation(tokens=3))
        >>> result = iq.simulate(traced, iq.Engine(timing=iq.Constant(0.02), scheduler=vllm, kv=engine.kv))
        >>> result.requests.select("e2e_s", "drafted_tokens", "accepted_tokens").row(0)
        (0.08, 9, 4)
        >>> lookup = iq.Speculation(tokens=3, acceptance=0.5, method="ngram", proposal_rate=0.4)
        >>> round(lookup.expected_tokens(), 6)  # 1 + 0.4 · (0.5 + 0.25 + 0.125)
        1.35
    """

    part: ClassVar[str | None] = "speculation"
    parts: ClassVar[Mapping[str, tuple[type[Any] | str, ...]]] = {
        "drafter": (float, "inferq.timing:TIMING_MODELS", type(None)),
    }

    tokens: int
    acceptance: float | Sequence[float] | None = None
    method: Literal["eagle", "ngram"] = "eagle"
    seed: int = 0
    drafter: float | Description | None = None
    proposal_rate: float | None = None

    def expected_tokens(self) -> float | None:
        """Mean tokens that a row emits before the output ends: 1 + r · Σ P(first i drafts accepted).

        r is the share of rows with proposals, and no row is cut to the budget. None: the workload determines
        acceptance or proposals.
        """
        proposed = self.proposed_share()
        if self.acceptance is None or proposed is None:
            return None
        if isinstance(self.acceptance, Sequence):
            return 1.0 + proposed * sum(self.acceptance)
        return 1.0 + proposed * sum(self.acceptance**place for place in range(1, self.tokens + 1))

    def proposed_share(self) -> float | None:
        """Share of rows with proposals; None: the workload determines it."""
        return self.proposal_rate if self.method == "ngram" else 1.0

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        return fields_of(self)
