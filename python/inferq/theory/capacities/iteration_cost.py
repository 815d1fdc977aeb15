"""The length of an iteration by its tokens, and what theory asks of the engine that runs it."""

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
    """The length of an iteration: t(n) by its n tokens, plus what contexts add, request by request.

    t(n) = base + per_token·max(0, n − knee), li2025 (2.3). What contexts add, li2025 (A.1) or ao2025 (1),
    depends on which tokens are loaded; summed over the life of a request it is a number of seconds that
    depends on the schedule only through the cuts of its prompt. What a host that is not overlapped adds has
    the same form: `base_s` is part of the base, `per_sequence_s` is paid by each row, a chunk or a decode.
    `per_decode_s` is paid by each decode.
    """

    per_row_s: float = 0.0

    @classmethod
    def of(cls, engine_or_timing: Engine | TimingModel) -> Iteration:
        """The cost of a timing model, or of an engine with its host.

        Raises:
            ConfigError: a model whose time is neither a function of the tokens nor one plus context terms; a
                host that is overlapped, whose time is the longer of two.
        """
        host = Overhead()
        if isinstance(engine_or_timing, Engine):
            timing, host = engine_or_timing.timing, engine_or_timing.overhead or host
        else:
            timing = engine_or_timing
        cost = timing.cost()
        if cost is None:
            raise ConfigError("timing", f"{type(timing).__name__} {timing.uncounted}")
        if host.overlapped and adds_time(host):
            raise ConfigError(
                "overhead",
                f"{host!r} is the longer of two times, which has no closed form here; stability bounds it",
            )
        if host.beyond_graph_s:
            raise ConfigError("overhead", f"{host!r} jumps at a batch's size; stability bounds it")
        terms = asdict(cost) | {"base_s": cost.base_s + host.base_s}
        return cls(**terms, per_row_s=host.per_sequence_s)

    @property
    def by_tokens(self) -> bool:
        """Whether tokens alone decide, as li2025 (2.7) assumes."""
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
        """Whether n/t(n) grows in n: as long as base ≥ per_token·knee."""
        return self.base_s >= self.per_token_s * self.knee

    def seconds(self, tokens: float) -> float:
        """t(n), without what contexts add."""
        return self.base_s + self.per_token_s * max(0.0, tokens - self.knee)

    def best_tokens(self, most: float) -> float:
        """Where n/t(n) is largest for n ≤ `most`: the end, or the knee if what follows costs more."""
        return most if self.gains_with_tokens else min(most, float(self.knee))

    def idle_s(self, tokens: float, budget: int) -> float:
        """t(n) − n·t(b)/b: what an iteration of n tokens costs beyond its share of full ones."""
        return max(0.0, self.seconds(tokens) - tokens * self.seconds(budget) / budget)

    def decode_contexts_s(self, lengths: Lengths, first_token: FirstToken) -> float:
        """Mean seconds that contexts and rows add to all decodes of a request, whatever the schedule."""
        if not (self.per_context_token_s or self.per_kv_token_s or self.per_row_s or self.per_decode_s):
            return 0.0
        return lengths.mean(self._decode_contexts_s(first_token))

    def _decode_contexts_s(self, first_token: FirstToken) -> Work:
        """Those of one: d decodes begin at contexts s, s + 1, …: d·s + d(d − 1)/2; with themselves d more."""
        less = with_prompt(first_token)
        per_s, per_kv_s = self.per_context_token_s, self.per_kv_token_s
        each_s = per_kv_s + self.per_row_s + self.per_decode_s

        def seconds(s: Any, o: Any) -> Any:
            contexts = (o - less) * s + (o - less) * (o - less - 1) / 2
            return (per_s + per_kv_s) * contexts + each_s * (o - less)

        return seconds

    def prompt_contexts_s(self, lengths: Lengths, budget: int | None) -> tuple[float, float]:
        """Mean seconds that contexts and rows add to a prompt, least and most over all ways to cut it.

        Chunks c_i hold at most `budget` tokens, x_i = c_1 + … + c_{i−1}. Since Σ c_i·x_i = (s² − Σ c_i²)/2,
        α·Σ c² + ε·Σ c·x = ε·s²/2 + (α − ε/2)·Σ c², and Σ c² lies between s (single tokens) and that of full
        chunks; with ε = 2α it does not matter. For `MemoryLinear` Σ (x_i + c_i) is least with as few chunks
        as possible, the shortest first, and most, s(s + 1)/2, with single tokens. Rows are ⌈s/b⌉ to s.
        """
        if not (
            self.per_prefill_square_s or self.per_chunk_context_s or self.per_kv_token_s or self.per_row_s
        ):
            return 0.0, 0.0
        least, most = (lengths.mean(self._prompt_contexts_s(budget, dear=dear)) for dear in (False, True))
        return least, most

    def _prompt_contexts_s(self, budget: int | None, *, dear: bool) -> Work:
        """Those of one prompt, cut in the dearest or the cheapest way."""
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
        """Seconds of one request in full batches, its prompt cut in the dearest way.

        Args:
            budget: b, tokens of a full batch.
            first_token: whether the first token needs a decode.
            more_s: what each of its 1 + m_d stages adds.
        """
        less = with_prompt(first_token)
        each_s = self.seconds(budget) / budget
        decodes, prompt = self._decode_contexts_s(first_token), self._prompt_contexts_s(budget, dear=True)

        def seconds(s: Any, o: Any) -> Any:
            return (s + o - less) * each_s + (1 + o - less) * more_s + decodes(s, o) + prompt(s, o)

        return seconds


def adds_time(host: Overhead | None) -> bool:
    """Does a host take any time?"""
    return host is not None and bool(host.base_s or host.per_sequence_s or host.beyond_graph_s)


def is_counted(timing: TimingModel) -> bool:
    """Is the time of a model a function of the tokens, or one plus context terms?"""
    return timing.cost() is not None


def has_closed_form(engine: Engine) -> bool:
    """Has an engine an `Iteration`: a model that has one, and a host that adds the same to all batches?"""
    host = engine.overhead
    has_none = host is not None and (bool(host.beyond_graph_s) or (host.overlapped and adds_time(host)))
    return is_counted(engine.timing) and not has_none


def parts_of(
    engine_or_timing: Engine | TimingModel, first_token: FirstToken | None
) -> tuple[Engine | None, Iteration, FirstToken]:
    """The engine if there is one, the cost of its iterations, and how it counts first tokens."""
    engine = engine_or_timing if isinstance(engine_or_timing, Engine) else None
    timing: object = engine.timing if engine is not None else engine_or_timing
    if not isinstance(timing, TimingModel):
        raise ConfigError(
            "engine_or_timing", f"must be an Engine or a timing model such as Constant(0.02), is {timing!r}"
        )
    if first_token is None:
        first_token = engine.first_token if engine is not None else "prefill"
    return engine, Iteration.of(engine or timing), first_token_of(first_token)


def fills_budget(scheduler: Scheduler | None, token_budget: int) -> Hypothesis:
    """Does a policy load another token whenever budget, seats and memory have room for one? li2025 (2.6)."""
    name, budget = type(scheduler).__name__, None if scheduler is None else scheduler.token_limit()
    if scheduler is None:
        answer = Answer(None, "no scheduler is given")
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


def enough_seats(scheduler: Scheduler | None, token_budget: int) -> Hypothesis:
    """Are there as many seats as the budget has tokens, so that they never keep it from being filled?"""
    seats = None if scheduler is None else scheduler.sequence_limit()
    if scheduler is None:
        met, why = None, "no scheduler is given"
    elif seats is None:
        met, why = True, "the policy has no limit on them"
    elif seats >= token_budget:
        met, why = True, f"{number(seats)} seats for {number(token_budget)} tokens"
    else:
        met, why = False, f"{number(seats)} seats may run out below {number(token_budget)} tokens"
    return Hypothesis(name="seats to spare", met=met, why=why)


def token_by_token(*engines: Engine) -> tuple[Hypothesis, ...]:
    """That a row emits one token, as all theorems here have it, where requests decode by drafts."""
    found = []
    for drafts in dict.fromkeys(engine.scheduler.speculative_decoding() for engine in engines):
        if drafts is None:
            continue
        mean, row = drafts.expected_tokens(), 1 + drafts.tokens
        if mean is None:
            said = f"a row of {number(row)} tokens emits up to as many; how many, the workload says"
        else:
            said = (
                f"a row of {number(row)} tokens emits {number(mean)} on average: {number(row / mean)} tokens "
                f"are loaded for each, in 1/{number(mean)} of the iterations"
            )
        found.append(Hypothesis(name="one token a row", met=None, why=f"{drafts!r}: {said}"))
    return tuple(found)


def memory_slack(engine: Engine | None, lengths: Lengths) -> Hypothesis:
    """Can the KV cache never run short: all seats taken by the largest requests?"""
    met, why = (None, "no KV cache is given") if engine is None else _slack(engine, lengths)
    return Hypothesis(name="memory to spare", met=met, why=why)


def _slack(engine: Engine, lengths: Lengths) -> tuple[bool | None, str]:
    tokens, block, scheduler = engine.kv.tokens, engine.kv.block, engine.scheduler
    seats, reserved = scheduler.sequence_limit(), scheduler.reserved_tokens()
    if tokens is None:
        return True, "the KV cache has no limit"
    if seats is None:
        return None, f"any number of requests may want its {number(tokens)} tokens"
    most = lengths.most(lambda s, o: s + o) if reserved is None else float(reserved)
    if math.isinf(most):
        return None, f"{number(tokens)} tokens, and no longest request"
    blocks = tokens // block
    needed = seats * math.ceil(most / block) + int(scheduler.admission_margin() * blocks)
    want = f"{number(seats)} of the largest requests need {number(needed)}"
    if needed <= blocks:
        return True, f"{want} of its {blocks:,} blocks"
    return None, f"{want} blocks, it has {blocks:,}"


def all_fit(engine: Engine, lengths: Lengths, first_token: FirstToken) -> Hypothesis:
    """Is no request so long that its policy or the cache can never take it?"""
    name, worst = "every request fits", never_served(engine, lengths, first_token)
    if worst is None:
        return Hypothesis(name=name, met=True, why="none is too long to be served")
    return Hypothesis(name=name, met=False, why=worst.why)


@dataclass(frozen=True, slots=True)
class NeverServed:
    """Requests that an engine rejects, because they are too long for its policy or its cache."""

    share: float
    """Of all."""
    field: str
    """Of the engine, which says how much it can take."""
    why: str


def never_served(engine: Engine, lengths: Lengths, first_token: FirstToken) -> NeverServed | None:
    """What an engine can never serve; None where it serves everything."""
    scheduler, held = engine.scheduler, engine.kv.whole_tokens
    budget, reserved = scheduler.token_limit(), scheduler.reserved_tokens()
    limits: list[tuple[str, str, float, float]] = []  # field, what, weight of the output, most tokens
    if not scheduler.chunks_prompts():
        most = math.inf if budget is None else float(budget)
        limits.append(("scheduler.token_budget", "prompts beyond the budget", 0.0, most))
    if reserved is not None:
        limits.append(("scheduler.max_model_len", "requests beyond max_model_len", 1.0, reserved))
    if held is not None:
        last = with_prompt(first_token)  # it leaves with its last token, which no cache holds
        if reserved is not None and reserved > held:
            why = f"it reserves {number(reserved)} tokens for each, the cache has {number(held)}"
            return NeverServed(1.0, "kv.tokens", why)
        limits.append(("kv.tokens", "requests larger than the cache", 1.0, held + last))
    for field, what, weight, limit in limits:
        share = _longer(lengths, weight, limit)
        if share > 0:
            part = "all" if share == 1 else f"{share:.3g} of all"
            return NeverServed(share, field, f"{part} are {what}, {number(limit)} tokens")
    return None


def _longer(lengths: Lengths, output_weight: float, limit: float) -> float:
    """How likely a request is longer; 1 exactly where all are."""
    share = lengths.mean(lambda s, o: 1.0 * (s + output_weight * o > limit))
    if lengths.mean(lambda s, o: 1.0 * (s + output_weight * o <= limit)) == 0:
        return 1.0
    return share


def open_arrivals(demand: Demand) -> list[Hypothesis]:
    """Do requests come by themselves, independent of each other, and stay until they are served?"""
    names = {True: "Poisson", False: demand.arrivals, None: f"{demand.arrivals}: taken by its rate alone"}
    hypotheses = [
        Hypothesis(name="independent arrivals", met=demand.poisson or None, why=names[demand.poisson])
    ]
    if demand.closed_loop:
        hypotheses.append(Hypothesis(name="open loop", met=False, why="requests wait for answers to others"))
    if demand.gives_up:
        hypotheses.append(
            Hypothesis(name="requests stay", met=False, why="waiting requests may leave unserved")
        )
    return hypotheses


def least_iteration_s(engine: Engine) -> float:
    """No iteration is shorter: the kernels of one token and, as the engine has it, the host."""
    kernels_s, host = engine.timing.shortest_iteration_s(), engine.overhead
    if host is None:
        return kernels_s
    host_s = host.base_s + host.per_sequence_s
    return max(kernels_s, host_s) if host.overlapped else kernels_s + host_s
