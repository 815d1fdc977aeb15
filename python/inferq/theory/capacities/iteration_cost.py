"""Iteration time as a function of tokens, and hypotheses about engines."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from inferq._lazy import np
from inferq.description import Answer
from inferq.errors import ConfigError
from inferq.scheduler.scheduler import Scheduler
from inferq.systems.engine import Engine
from inferq.systems.overhead import Overhead
from inferq.theory.demands.demand import Demand
from inferq.theory.demands.lengths import FirstToken, Lengths, Work, first_token_of, with_prompt
from inferq.theory.statement import Hypothesis, number
from inferq.timing.models.timing_model import TimingModel, TokenCost


@dataclass(frozen=True, slots=True)
class Iteration(TokenCost):
    """Iteration time: t(n) for its n tokens, plus context terms per request.

    t(n) = base + per_token·max(0, n − knee), li2025 (2.3). Context terms, li2025 (A.1) or ao2025 (1), depend
    on which tokens are loaded. Over the life of a request their sum depends on the schedule only through the
    cuts of its prompt. Host time that is not overlapped has the same form: `base_s` is part of the base, and
    `per_sequence_s` counts for each row, a chunk or a decode. `per_decode_s` counts for each decode.
    """

    per_row_s: float = 0.0

    @classmethod
    def of(cls, engine_or_timing: Engine | TimingModel) -> Iteration:
        """The cost of a timing model, or of an engine with its host.

        Raises:
            ConfigError: the time of the model is not a function of tokens plus context terms; or the host is
                overlapped, so that the time is the longer of two.
        """
        host = Overhead()
        if isinstance(engine_or_timing, Engine):
            timing, host = engine_or_timing.timing, engine_or_timing.overhead or host
        else:
            timing = engine_or_timing
        cost = timing.cost()
        if cost is None:
            raise ConfigError("timing", f"{type(timing).__name__} {timing.uncounted}")
        if host.launch_s or (host.overlapped and adds_time(host)):
            raise ConfigError(
                "overhead",
                f"{host!r} has no closed form here (the longer of two times); use stability() for bounds",
            )
        if host.beyond_graph_s:
            raise ConfigError("overhead", f"{host!r} jumps at a batch size; use stability() for bounds")
        terms = asdict(cost) | {"base_s": cost.base_s + host.base_s + host.exposed_s}
        return cls(**terms, per_row_s=host.per_sequence_s)

    @property
    def by_tokens(self) -> bool:
        """Whether the time depends on tokens alone, as in li2025 (2.7)."""
        context_terms = (
            self.per_context_token_s,
            self.per_prefill_square_s,
            self.per_chunk_context_s,
            self.per_kv_token_s,
            self.per_row_s,
            self.per_decode_s,
        )
        return not any(context_terms)

    @property
    def gains_with_tokens(self) -> bool:
        """Whether n/t(n) grows in n, i.e. base ≥ per_token·knee."""
        return self.base_s >= self.per_token_s * self.knee

    def seconds(self, tokens: float) -> float:
        """t(n) without context terms."""
        return self.base_s + self.per_token_s * max(0.0, tokens - self.knee)

    def best_tokens(self, most: float) -> float:
        """The n ≤ `most` with the largest n/t(n): the end, or the knee if later tokens take longer."""
        return most if self.gains_with_tokens else min(most, float(self.knee))

    def idle_s(self, tokens: float, budget: int) -> float:
        """t(n) − n·t(b)/b: the time of an iteration of n tokens beyond its share of full iterations."""
        return max(0.0, self.seconds(tokens) - tokens * self.seconds(budget) / budget)

    def decode_contexts_s(self, lengths: Lengths, first_token: FirstToken) -> float:
        """Mean seconds of contexts and rows over all decodes of a request, for any schedule."""
        if not (self.per_context_token_s or self.per_kv_token_s or self.per_row_s or self.per_decode_s):
            return 0.0
        return lengths.mean(self._decode_contexts_s(first_token))

    def _decode_contexts_s(self, first_token: FirstToken) -> Work:
        """The same for one request: d decodes at contexts s, s + 1, …: d·s + d(d − 1)/2, plus d."""
        less = with_prompt(first_token)
        per_s, per_kv_s = self.per_context_token_s, self.per_kv_token_s
        each_s = per_kv_s + self.per_row_s + self.per_decode_s

        def seconds(s: Any, o: Any) -> Any:
            contexts = (o - less) * s + (o - less) * (o - less - 1) / 2
            return (per_s + per_kv_s) * contexts + each_s * (o - less)

        return seconds

    def prompt_contexts_s(self, lengths: Lengths, budget: int | None) -> tuple[float, float]:
        """Mean seconds of contexts and rows of a prompt: the least and the most over all ways to cut it.

        Chunks c_i hold at most `budget` tokens, x_i = c_1 + … + c_{i−1}. Since Σ c_i·x_i = (s² − Σ c_i²)/2,
        α·Σ c² + ε·Σ c·x = ε·s²/2 + (α − ε/2)·Σ c². Σ c² lies between s (single tokens) and the value for full
        chunks; with ε = 2α it has no effect. For `MemoryLinear`, Σ (x_i + c_i) is least with as few chunks as
        possible, the shortest first, and most, s(s + 1)/2, with single tokens. The number of rows is between
        ⌈s/b⌉ and s.
        """
        if not (
            self.per_prefill_square_s or self.per_chunk_context_s or self.per_kv_token_s or self.per_row_s
        ):
            return 0.0, 0.0
        least, most = (lengths.mean(self._prompt_contexts_s(budget, dear=dear)) for dear in (False, True))
        return least, most

    def _prompt_contexts_s(self, budget: int | None, *, dear: bool) -> Work:
        """The same for one prompt, cut in the slowest or the fastest way."""
        per_square_s, kv_s = self.per_prefill_square_s - self.per_chunk_context_s / 2, self.per_kv_token_s

        def seconds(s: Any, o: Any) -> Any:
            size = np.maximum(s, 1.0) if budget is None else float(budget)
            full = np.floor(s / size)
            squares = s if (per_square_s > 0) != dear else full * size * size + (s - full * size) ** 2
            chunks = np.ceil(s / size)
            sums = s * (s + 1) / 2 if dear else chunks * s - size * chunks * (chunks - 1) / 2
            rows_s = self.per_row_s * (s if dear else chunks)
            return (
                self.per_chunk_context_s / 2 * s * s + per_square_s * squares + kv_s * sums + rows_s + 0 * o
            )

        return seconds

    def full_batch_work(self, budget: int, first_token: FirstToken, more_s: float = 0.0) -> Work:
        """Seconds of one request in full batches, its prompt cut in the slowest way.

        Args:
            budget: b, tokens of a full batch.
            first_token: whether the first token needs a decode.
            more_s: extra time for each of its 1 + m_d stages.
        """
        less = with_prompt(first_token)
        each_s = self.seconds(budget) / budget
        decodes, prompt = self._decode_contexts_s(first_token), self._prompt_contexts_s(budget, dear=True)

        def seconds(s: Any, o: Any) -> Any:
            return (s + o - less) * each_s + (1 + o - less) * more_s + decodes(s, o) + prompt(s, o)

        return seconds


def adds_time(host: Overhead | None) -> bool:
    """Whether a host takes any time."""
    return host is not None and any(
        (host.base_s, host.per_sequence_s, host.beyond_graph_s, host.launch_s, host.exposed_s)
    )


def is_counted(timing: TimingModel) -> bool:
    """Whether the time of a model is a function of tokens plus context terms."""
    return timing.cost() is not None


def has_closed_form(engine: Engine) -> bool:
    """Whether an engine has an `Iteration`: a model of this form, and equal host time for all batches."""
    host = engine.overhead
    has_none = host is not None and (
        bool(host.beyond_graph_s or host.launch_s) or (host.overlapped and adds_time(host))
    )
    return is_counted(engine.timing) and not has_none


def parts_of(
    engine_or_timing: Engine | TimingModel, first_token: FirstToken | None
) -> tuple[Engine | None, Iteration, FirstToken]:
    """The engine if there is one, the cost of its iterations, and its convention for first tokens."""
    engine = engine_or_timing if isinstance(engine_or_timing, Engine) else None
    timing: object = engine.timing if engine is not None else engine_or_timing
    if not isinstance(timing, TimingModel):
        raise ConfigError(
            "engine_or_timing", f"must be an Engine or a timing model such as Constant(0.02), got {timing!r}"
        )
    if first_token is None:
        first_token = engine.first_token if engine is not None else "prefill"
    return engine, Iteration.of(engine or timing), first_token_of(first_token)


def fills_budget(scheduler: Scheduler | None, token_budget: int) -> Hypothesis:
    """Whether a policy loads another token whenever budget, slots and memory allow it; li2025 (2.6)."""
    name, budget = type(scheduler).__name__, None if scheduler is None else scheduler.token_limit()
    if scheduler is None:
        answer = Answer(None, "no scheduler is configured")
    elif scheduler.is_user_defined():
        answer = scheduler.fills_budget()
    elif budget is None:
        answer = Answer(False, f"{name} has no budget to fill")
    elif budget != token_budget:
        why = f"{name} has a budget of {number(budget)} tokens, not {number(token_budget)}"
        answer = Answer(False, why)
    else:
        answer = scheduler.fills_budget()
    return Hypothesis(name="work conserving", met=answer.holds, why=answer.why)


def enough_sequences(scheduler: Scheduler | None, token_budget: int) -> Hypothesis:
    """Whether there are as many sequence slots as tokens in the budget, so that slots never bind."""
    max_seqs = None if scheduler is None else scheduler.sequence_limit()
    if scheduler is None:
        met, why = None, "no scheduler is configured"
    elif max_seqs is None:
        met, why = True, "the policy has no sequence limit"
    elif max_seqs >= token_budget:
        met, why = True, f"{number(max_seqs)} slots for {number(token_budget)} tokens"
    else:
        met, why = False, f"{number(max_seqs)} slots may run out below {number(token_budget)} tokens"
    return Hypothesis(name="sequence slots to spare", met=met, why=why)


def features_outside_theory(*engines: Engine) -> tuple[Hypothesis, ...]:
    """Hypotheses of all theorems that an engine with speculation or with groups of layers does not meet."""
    hypotheses = []
    for drafts in dict.fromkeys(engine.scheduler.speculative_decoding() for engine in engines):
        if drafts is None:
            continue
        mean, proposed = drafts.expected_tokens(), drafts.proposed_share()
        if mean is None or proposed is None:
            most = number(1 + drafts.tokens)
            effect = f"a row of up to {most} tokens emits up to {most}, depending on the workload"
        else:
            row = 1 + proposed * drafts.tokens
            tokens = f"{number(row)} tokens{'' if proposed == 1 else ' on average'}"
            effect = (
                f"a row of {tokens} emits {number(mean)} on average: {number(row / mean)} tokens "
                f"are loaded per emitted token, in 1/{number(mean)} of the iterations"
            )
        hypotheses.append(Hypothesis(name="one token per row", met=None, why=f"{drafts!r}: {effect}"))
    for groups in dict.fromkeys(engine.kv.groups for engine in engines):
        if groups is not None:
            why = "blocks leave windows, and states hold no tokens"
            hypotheses.append(Hypothesis(name="every layer keeps every token", met=None, why=why))
    return tuple(hypotheses)


def memory_slack(engine: Engine | None, lengths: Lengths) -> Hypothesis:
    """Whether the KV cache holds the largest requests in all sequence slots, and so never runs short."""
    met, why = (None, "no KV cache is configured") if engine is None else _slack(engine, lengths)
    return Hypothesis(name="memory to spare", met=met, why=why)


def _slack(engine: Engine, lengths: Lengths) -> tuple[bool | None, str]:
    tokens, block, scheduler = engine.kv.tokens, engine.kv.block, engine.scheduler
    max_seqs, reserved = scheduler.sequence_limit(), scheduler.reserved_tokens()
    if tokens is None:
        return True, "the KV cache has no limit"
    if max_seqs is None:
        return None, f"{number(tokens)} tokens for any number of requests"
    most = lengths.most(lambda s, o: s + o) if reserved is None else float(reserved)
    if math.isinf(most):
        return None, f"{number(tokens)} tokens, and requests have no longest length"
    blocks = tokens // block
    needed = max_seqs * math.ceil(most / block) + int(scheduler.admission_margin() * blocks)
    want = f"{number(max_seqs)} of the largest requests need {number(needed)}"
    if needed <= blocks:
        return True, f"{want} of {blocks:,} blocks"
    return None, f"{want} blocks, the cache has {blocks:,}"


def all_fit(engine: Engine, lengths: Lengths, first_token: FirstToken) -> Hypothesis:
    """Whether every request is short enough for the policy and the cache."""
    name, worst = "every request fits", never_served(engine, lengths, first_token)
    if worst is None:
        return Hypothesis(name=name, met=True, why="no request is too long")
    return Hypothesis(name=name, met=False, why=worst.why)


@dataclass(frozen=True, slots=True)
class NeverServed:
    """Requests that an engine rejects because they are too long for its policy or its cache."""

    share: float
    """Share of all requests."""
    field: str
    """The field of the engine that sets the limit."""
    why: str


def never_served(engine: Engine, lengths: Lengths, first_token: FirstToken) -> NeverServed | None:
    """Requests that an engine can never serve; None if it serves all."""
    # With groups of layers, the blocks of a request depend on windows, so the cache gives no limit here.
    scheduler, held = engine.scheduler, engine.kv.whole_tokens if engine.kv.groups is None else None
    budget, reserved = scheduler.token_limit(), scheduler.reserved_tokens()
    limits: list[tuple[str, str, float, float]] = []  # field, description, weight of the output, most tokens
    if not scheduler.chunks_prompts():
        most = math.inf if budget is None else float(budget)
        limits.append(("scheduler.token_budget", "prompts above the budget", 0.0, most))
    if reserved is not None:
        limits.append(("scheduler.max_model_len", "requests above max_model_len", 1.0, reserved))
    if held is not None:
        last = with_prompt(first_token)  # a request leaves with its last token, which no cache holds
        if reserved is not None and reserved > held:
            why = f"each request reserves {number(reserved)} tokens, the cache has {number(held)}"
            return NeverServed(1.0, "kv.tokens", why)
        limits.append(("kv.tokens", "requests larger than the cache", 1.0, held + last))
    for field, what, weight, limit in limits:
        share = _longer(lengths, weight, limit)
        if share > 0:
            part = "all" if share == 1 else f"{share:.3g} of all"
            return NeverServed(share, field, f"{part} are {what}, {number(limit)} tokens")
    return None


def _longer(lengths: Lengths, output_weight: float, limit: float) -> float:
    """The probability that a request is longer; exactly 1 if all are."""
    share = lengths.mean(lambda s, o: 1.0 * (s + output_weight * o > limit))
    if lengths.mean(lambda s, o: 1.0 * (s + output_weight * o <= limit)) == 0:
        return 1.0
    return share


def open_arrivals(demand: Demand) -> list[Hypothesis]:
    """Whether arrivals are independent, do not wait for responses, and do not abandon."""
    names = {True: "Poisson", False: demand.arrivals, None: f"{demand.arrivals}: only the rate is used"}
    hypotheses = [
        Hypothesis(name="independent arrivals", met=demand.poisson or None, why=names[demand.poisson])
    ]
    if demand.closed_loop:
        hypotheses.append(Hypothesis(name="open loop", met=False, why="requests wait for earlier responses"))
    if demand.gives_up:
        hypotheses.append(Hypothesis(name="no abandonment", met=False, why="waiting requests may abandon"))
    return hypotheses


def least_iteration_s(engine: Engine) -> float:
    """The shortest possible iteration: the kernels of one token and the host."""
    kernels_s, host = engine.timing.shortest_iteration_s(), engine.overhead
    if host is None:
        return kernels_s
    host_s = host.base_s + host.per_sequence_s
    return (max(kernels_s, host_s) if host.overlapped else kernels_s + host_s) + host.exposed_s
