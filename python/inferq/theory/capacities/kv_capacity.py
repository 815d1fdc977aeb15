"""Capacity of the KV cache, where each request occupies memory while it is served."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, overload

from inferq._lazy import np
from inferq.checks import MOST_TOKENS, flag, shown, whole, within
from inferq.errors import ConfigError
from inferq.theory.demands.demand import Demand, WorkloadLike
from inferq.theory.demands.lengths import FirstToken, Lengths, first_token_of, with_prompt
from inferq.theory.statement import Hypothesis, Statement, hypotheses_text, number

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers: TypeAlias = NDArray[np.float64]


@overload
def request_memory(
    prompt_tokens: float, output_tokens: float, chunk: int = 512, *, whole_chunks: bool = False
) -> float: ...
@overload
def request_memory(
    prompt_tokens: Any, output_tokens: Any, chunk: int = 512, *, whole_chunks: bool = False
) -> Any: ...
def request_memory(
    prompt_tokens: Any, output_tokens: Any, chunk: int = 512, *, whole_chunks: bool = False
) -> Any:
    """Compute the tokens times slots that a request occupies over its life: g(s, o) of nie2026.

    Chunk j of the prompt occupies j·ŝ tokens for a slot, decode j occupies s + j:

        g = (ŝ + 2ŝ + … + s) + ((s + 1) + … + (s + o)) = ((1 + s/ŝ)·s + 2·o·s + (1 + o)·o) / 2

    The paper assumes that s/ŝ is an integer and then uses it as a real number. No way to cut the prompt into
    chunks of at most ŝ tokens occupies less. In engines the last chunk is the short one and takes a slot of
    its own. `whole_chunks` computes this case: min(ŝ, s) + min(2ŝ, s) + … + s for the prompt. With r, the
    remainder of s modulo ŝ, above 0 that is (s − r)·(1 − r/ŝ) + (1 − r/ŝ)·r/2 tokens times slots more.

    Source: nie2026 section 4, s = `prompt_tokens`, o = `output_tokens`, ŝ = `chunk`.

    Args:
        prompt_tokens: tokens of the prompt, positive; a number or an array.
        output_tokens: decodes after the prompt, non-negative; a number or an array. (With
            `first_token="prefill"` that is the output less one.)
        chunk: most prompt tokens of a request in a slot.
        whole_chunks: whether the last chunk of a prompt takes a slot of its own.

    Returns:
        A float for two numbers, else an array of the broadcast shape.

    Raises:
        ConfigError: an argument is invalid.

    Example:
        A prompt of 600 tokens has chunks of 512 and 88 tokens; two decodes follow:

        >>> from inferq.theory import request_memory
        >>> request_memory(600, 2, chunk=512, whole_chunks=True) == 512 + 600 + 601 + 602
        True
        >>> request_memory(600, 2, chunk=512)
        1854.5625
    """
    whole("chunk", chunk, 1, MOST_TOKENS)
    flag("whole_chunks", whole_chunks)
    s, o = _tokens("prompt_tokens", prompt_tokens), _tokens("output_tokens", output_tokens)
    if not (s > 0).all():
        raise ConfigError("prompt_tokens", f"must be positive, got {shown(prompt_tokens)}")
    try:
        np.broadcast_shapes(s.shape, o.shape)
    except ValueError:
        raise ConfigError(
            "output_tokens", f"shape {o.shape} does not broadcast with prompt_tokens of shape {s.shape}"
        ) from None
    occupied = occupied_by(s, o, chunk, whole_chunks)
    return float(occupied) if occupied.ndim == 0 else occupied


def _tokens(field: str, tokens: Any) -> Numbers:
    """Numbers of tokens from 0 to `_LONGEST` as an array of floats."""
    try:
        values = np.asarray(tokens)
    except ValueError:
        values = np.asarray(None)
    if values.dtype.kind not in "iuf" and values.size:
        raise ConfigError(field, f"must be a number or an array of numbers, got {shown(tokens)}")
    numbers = values.astype(np.float64)
    if not ((numbers >= 0) & (numbers <= _LONGEST)).all():
        raise ConfigError(field, f"must be from 0 to {_LONGEST:g}, got {shown(tokens)}")
    return numbers


_LONGEST = 1e100
"""Most tokens whose square is a finite float."""


def occupied_by(s: Numbers, decodes: Numbers, chunk: int, whole_chunks: bool) -> Numbers:
    """`request_memory` for valid arrays."""
    full = np.ceil(s / chunk) - 1
    prompt = chunk * full * (full + 1) / 2 + s if whole_chunks else (1 + s / chunk) * s / 2
    occupied: Numbers = prompt + decodes * s + decodes * (decodes + 1) / 2
    return occupied


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassMemory:
    """Memory use of a class."""

    name: str
    share: float
    """q, share of all requests."""
    slot_s: float
    """b̄ while the class is served, in seconds."""
    memory_token_slots: float
    """E[g], tokens times slots per request, with s/ŝ as a real number."""
    memory_token_slots_whole_chunks: float
    """E[g] with the last chunk of a prompt in a slot of its own."""
    mu: float
    """M / (b̄·E[g]), requests per second of a replica that serves only this class."""
    mu_whole_chunks: float


@dataclass(frozen=True, kw_only=True, slots=True)
class KvCapacity(Statement):
    """The largest rate that fits the KV cache; returned by `kv_capacity`."""

    source: ClassVar[str] = "nie2026 (1), Theorems 4.1 and 4.2"

    rate: float | None
    """λ, requests per second; None if unknown."""
    kv_tokens: int
    """M."""
    chunk: int
    """ŝ, tokens."""
    first_token: FirstToken
    """`"decode"`: o decodes follow the prompt; `"prefill"`: o − 1."""
    classes: tuple[ClassMemory, ...]
    mu: float
    """μ of (1), requests per second: no policy with at most ŝ prompt tokens of a request per slot can exceed
    it."""
    mu_whole_chunks: float
    """μ if the last chunk of each prompt is the short one; a simulation can reach it."""
    largest_request_tokens: float | None
    """Most tokens that a request ever holds; None for unbounded lengths."""
    delta: float | None
    """δ, the largest request divided by M; None for unbounded lengths."""
    utilization: float
    """ρ, the target utilization of a replica as a share of μ."""
    hypotheses: tuple[Hypothesis, ...]

    @property
    def capacity_per_s(self) -> float:
        """μ, requests per second: no policy is stable above it."""
        return self.mu

    @property
    def target_per_s(self) -> float:
        """ρ·μ, requests per second at the target utilization."""
        return self.utilization * self.mu

    @property
    def stable_below_per_s(self) -> float | None:
        """(1 − δ)·μ over whole chunks, requests per second; None for unbounded lengths."""
        return None if self.delta is None else (1 - self.delta) * self.mu_whole_chunks

    def work(self, s: Any, o: Any) -> Any:
        """Tokens times slots of a request with s prompt and o output tokens over whole chunks."""
        less = with_prompt(self.first_token)
        return occupied_by(s, o - less, self.chunk, whole_chunks=True)

    @property
    def load(self) -> float | None:
        """λ/μ; None without a rate."""
        return None if self.rate is None else self.rate / self.mu

    @property
    def stable(self) -> bool | None:
        """The conclusion for one replica: True below (1 − δ)·μ, False above μ, else None.

        Also None without a rate, or if a required hypothesis is violated. Unknown hypotheses
        (`Hypothesis.met` is None) are assumed to hold: the policy and its slots are unknown here.
        """
        not_met = {hypothesis.name for hypothesis in self.hypotheses if hypothesis.met is False}
        if self.rate is None or not_met & {_OPEN, _ONE_SLOT}:
            return None
        if self.rate > self.mu:
            return False
        below = self.stable_below_per_s
        known = below is not None and self.rate < below and not not_met & {_INDEPENDENT}
        return True if known else None

    def explain(self) -> str:
        """The formula with its numbers, the two bounds, the conclusion, and the hypotheses."""
        lines = []
        if len(self.classes) > 1:
            for memory in self.classes:
                lines += _formula(f"class {memory.name!r}: μ_l", memory, self.kv_tokens)
            parts = " + ".join(f"{number(memory.share)}/{number(memory.mu)}" for memory in self.classes)
            lines.append(f"μ = 1 / Σ q/μ_l = 1 / ({parts}) = {number(self.mu)} requests/s")
            lines.append(f"  over whole chunks μ = {number(self.mu_whole_chunks)}")
        else:
            lines += _formula("μ", self.classes[0], self.kv_tokens)
        decodes = "o decodes follow" if self.first_token == "decode" else "o − 1 decodes follow"
        lines.append(
            f"  chunks of ŝ = {number(self.chunk)} tokens; {decodes} a prompt "
            f'(first_token="{self.first_token}")'
        )
        if self.delta is None:
            lines.append("δ = max(s + o)/M: lengths are unbounded, so no rate is proved stable")
        else:
            lines += [
                f"δ = max(s + o)/M = {number(self.largest_request_tokens)} / {number(self.kv_tokens)} = "
                f"{number(self.delta)}",
                f"stable below (1 − δ)·μ over whole chunks = {number(self.stable_below_per_s)} requests/s, "
                f"unstable above μ = {number(self.mu)}, unknown in between",
            ]
        lines.append(
            f"at a utilization of ρ = {number(self.utilization)} a replica serves ρ·μ = "
            f"{number(self.target_per_s)} "
            "requests/s"
        )
        if self.rate is None:
            lines.append("the arrival rate λ is unknown")
        else:
            lines.append(
                f"λ = {number(self.rate)} requests/s is a load λ/μ of {number(self.load)}: "
                f"{_VERDICTS[self.stable]}"
            )
        return "\n".join([*lines, *hypotheses_text(self.hypotheses)])


_VERDICTS = {
    True: "stable",
    False: "overloaded under any policy",
    None: "not decided by the theorems",
}


def _formula(left: str, memory: ClassMemory, kv_tokens: int) -> list[str]:
    return [
        f"{left} = M / (b̄·E[g]) = {number(kv_tokens)} / ({number(memory.slot_s)} s · "
        f"{number(memory.memory_token_slots)}) = {number(memory.mu)} requests/s",
        f"  over whole chunks E[g] = {number(memory.memory_token_slots_whole_chunks)}, "
        f"μ = {number(memory.mu_whole_chunks)}",
    ]


def kv_capacity(
    workload: WorkloadLike,
    *,
    kv_tokens: int,
    slot_s: float | Mapping[str, float],
    chunk: int = 512,
    rate: float | None = None,
    utilization: float = 1.0,
    first_token: FirstToken = "prefill",
) -> KvCapacity:
    """Compute the rate that a replica can serve if its KV cache is the limit.

    Every slot lasts b̄ and supplies M tokens of memory. A request occupies g(s, o) tokens times slots over
    its life (`request_memory`). So no policy with chunks of ŝ can exceed

        μ = M / (b̄·E[g(s, o)])            and over classes 1/μ = Σ q_l/μ_l.

    A policy that leaves out no request whose next step fits is stable below (1 − δ)·μ, δ = max(s + o)/M:
    while it leaves out a request, less than the largest request is free. The paper's proof assumes prompts of
    whole chunks. For other prompts the proved rate is (1 − δ) times `mu_whole_chunks`, which counts the
    shorter last chunk as engines do; μ remains an upper bound.

    Source: nie2026 (1), Theorems 4.1 and 4.2, and section 5.2 for mixtures; M = `kv_tokens`, b̄ = `slot_s`,
        ŝ = `chunk`, λ = `rate`. The mixed row of the paper's Table 1 prints 3.385 where this rule of mixtures
        gives 3.348.

    Args:
        workload: lengths, shares and rate of requests; arrivals may be missing.
        kv_tokens: memory of a replica in tokens, at least the largest request.
        slot_s: length of a slot in seconds, measured or estimated by `slot` from a run; or one length per
            class by name, for classes that are served one after another.
        chunk: most prompt tokens of one request in a slot.
        rate: total requests per second. Default: the rate of the workload.
        utilization: ρ, target utilization as a share of μ, above 0 and at most 1.
        first_token: convention of the engine. `"prefill"`: o − 1 decodes follow a prompt; `"decode"`, as in
            nie2026: o decodes.

    Raises:
        ConfigError: an argument is invalid; `kv_tokens` is below a possible request, which could never be
            served (unbounded distributions require a cap).
        TraceError: a workload without lengths.

    Example:
        >>> import inferq as iq
        >>> half = iq.dist.Uniform(10, 1600)
        >>> chat = iq.theory.RequestClass(rate=3.0, prompt=half, output=half)
        >>> given = {"kv_tokens": 131_000, "slot_s": 0.0372, "first_token": "decode"}
        >>> limit = iq.theory.kv_capacity(chat, **given)
        >>> round(limit.mu, 3), round(limit.delta, 4), limit.stable
        (3.263, 0.0244, True)
    """
    demand = Demand.of(workload, rate=rate, needs_rate=False)
    tokens = whole("kv_tokens", kv_tokens, 1, MOST_TOKENS)
    step = whole("chunk", chunk, 1, MOST_TOKENS)
    used = within("utilization", utilization, 1e-9, 1.0)
    first_token = first_token_of(first_token)
    slots = _slots_of(slot_s, [request_class.name for request_class in demand.classes])
    less = with_prompt(first_token)
    classes = []
    largest: float | None = 0.0
    for request_class in demand.classes:
        top = _largest(request_class.lengths, tokens, less, request_class.name)
        largest = None if top is None or largest is None else max(largest, top)
        real = request_class.lengths.mean(lambda s, o: occupied_by(s, o - less, step, whole_chunks=False))
        in_chunks = request_class.lengths.mean(lambda s, o: occupied_by(s, o - less, step, whole_chunks=True))
        length_s = slots[request_class.name]
        classes.append(
            ClassMemory(
                name=request_class.name,
                share=request_class.share,
                slot_s=length_s,
                memory_token_slots=real,
                memory_token_slots_whole_chunks=in_chunks,
                mu=tokens / (length_s * real),
                mu_whole_chunks=tokens / (length_s * in_chunks),
            )
        )
    return KvCapacity(
        rate=demand.rate,
        kv_tokens=tokens,
        chunk=step,
        first_token=first_token,
        classes=tuple(classes),
        mu=1 / math.fsum(memory.share / memory.mu for memory in classes),
        mu_whole_chunks=1 / math.fsum(memory.share / memory.mu_whole_chunks for memory in classes),
        largest_request_tokens=largest,
        delta=None if largest is None else largest / tokens,
        utilization=used,
        hypotheses=_hypotheses(demand, classes, step, largest, tokens),
    )


_WORK_CONSERVING = "every request whose next step fits is served"
_ONE_SLOT = "slots of one length"
_SLACK = "memory slack, δ ≪ 1"
_WHOLE = "prompts of whole chunks"
_INDEPENDENT = "arrivals independent from slot to slot"
_OPEN = "open loop without abandonment"


def _hypotheses(
    demand: Demand, classes: Sequence[ClassMemory], chunk: int, largest: float | None, kv_tokens: int
) -> tuple[Hypothesis, ...]:
    lengths_s = sorted({memory.slot_s for memory in classes})
    lengths_text = " and ".join(f"{number(memory)} s" for memory in lengths_s)
    alike = all(memory.lengths.mean(lambda s, o: (s % chunk > 0) + 0.0 * o) == 0 for memory in demand.classes)
    if largest is None:
        slack: tuple[bool | None, str] = (False, "lengths are unbounded")
    else:
        delta = largest / kv_tokens
        why = f"δ = {number(delta)}, the relative distance of the two bounds"
        slack = (True if delta <= _SMALL else None if delta < 1 else False, why)
    violations = [demand.arrivals] if demand.closed_loop else []
    violations += ["requests may abandon"] if demand.gives_up else []
    return (
        Hypothesis(
            name=_WORK_CONSERVING,
            met=None,
            why="SlotGreedy does so if stepping out is free; admission that reserves s + o does not",
        ),
        Hypothesis(
            name=_ONE_SLOT,
            met=None if len(lengths_s) == 1 else False,
            why=f"b̄ = {lengths_text}"
            + ("" if len(lengths_s) == 1 else ", for classes that are served one after another"),
        ),
        Hypothesis(name=_SLACK, met=slack[0], why=slack[1]),
        Hypothesis(
            name=_WHOLE,
            met=alike,
            why=f"ŝ = {number(chunk)}"
            + ("" if alike else "; μ over whole chunks counts the shorter last chunk and is below μ"),
        ),
        Hypothesis(name=_INDEPENDENT, met=demand.poisson, why=demand.arrivals),
        Hypothesis(
            name=_OPEN,
            met=not violations,
            why="; ".join(violations) or "no request waits for responses or abandons",
        ),
    )


_SMALL = 0.1
"""Largest δ that counts as much smaller than 1: the two bounds are within 10 %."""


_SLOT_S = (1e-12, 1e9)
"""Shortest and longest slot in seconds."""


def _slots_of(slot_s: object, names: Sequence[str]) -> dict[str, float]:
    """The slot length of each class."""
    if not isinstance(slot_s, Mapping):
        return dict.fromkeys(names, within("slot_s", slot_s, *_SLOT_S))
    for name in slot_s:
        if name not in names:
            raise ConfigError("slot_s", f"unknown class {name!r}; classes: {', '.join(map(repr, names))}")
    for name in names:
        if name not in slot_s:
            raise ConfigError("slot_s", f"the length for class {name!r} is missing")
    return {name: within(f"slot_s[{name!r}]", slot_s[name], *_SLOT_S) for name in names}


def _largest(lengths: Lengths, kv_tokens: int, less: int, name: str) -> float | None:
    """Most tokens that a request of the class holds, if bounded; an error if one exceeds the memory."""
    above = lengths.mean(lambda s, o: (s + o - less > kv_tokens) * 1.0)
    top = lengths.most(lambda s, o: s + o - less)
    if above > 0 or (math.isfinite(top) and top > kv_tokens):
        size = f"up to {number(top)} tokens" if math.isfinite(top) else "without a cap"
        raise ConfigError(
            "kv_tokens",
            f"{number(kv_tokens)} is too small for class {name!r}: a share of {number(above)} of its "
            f"requests is larger ({size}) and can never be served; cap the lengths or remove the class",
        )
    return top if math.isfinite(top) else None
