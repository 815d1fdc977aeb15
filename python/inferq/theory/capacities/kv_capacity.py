"""How many requests does the KV cache carry, when each occupies memory for as long as it is served?"""

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
    """Tokens times slots that a request occupies in its life: g(s, o) of nie2026.

    Chunk j of the prompt holds j·ŝ tokens for a slot, decode j holds s + j:

        g = (ŝ + 2ŝ + … + s) + ((s + 1) + … + (s + o)) = ((1 + s/ŝ)·s + 2·o·s + (1 + o)·o) / 2

    The paper assumes that s/ŝ is whole and then takes it as a real number. No way to cut the prompt into
    chunks of at most ŝ tokens occupies less than this. An engine whose last chunk is the short one, in a slot
    of its own, occupies what `whole_chunks` gives: min(ŝ, s) + min(2ŝ, s) + … + s for the prompt, which is
    more by (s − r)·(1 − r/ŝ) + (1 − r/ŝ)·r/2 tokens times slots, where r is the rest of s modulo ŝ and above
    0.

    Source: nie2026 section 4, s = `prompt_tokens`, o = `output_tokens`, ŝ = `chunk`.

    Args:
        prompt_tokens: tokens of the prompt, above 0; a number or an array.
        output_tokens: decodes after the prompt, 0 or above; a number or an array. (With
            `first_token="prefill"` that is one less than the output.)
        chunk: most prompt tokens of a request in a slot.
        whole_chunks: whether the last chunk of a prompt takes a slot of its own.

    Returns:
        A float for two numbers, else an array of the shape to which both broadcast.

    Raises:
        ConfigError: naming the argument.

    Example:
        600 tokens are a chunk of 512 and one of 88; two decodes follow:

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
        raise ConfigError("prompt_tokens", f"must be above 0, is {shown(prompt_tokens)}")
    try:
        np.broadcast_shapes(s.shape, o.shape)
    except ValueError:
        raise ConfigError(
            "output_tokens", f"of shape {o.shape}, which does not go with prompt_tokens of shape {s.shape}"
        ) from None
    occupied = occupied_by(s, o, chunk, whole_chunks)
    return float(occupied) if occupied.ndim == 0 else occupied


def _tokens(field: str, given: Any) -> Numbers:
    """Numbers of tokens from 0 to `_LONGEST`, as an array of floats."""
    try:
        values = np.asarray(given)
    except ValueError:
        values = np.asarray(None)
    if values.dtype.kind not in "iuf" and values.size:
        raise ConfigError(field, f"must be a number or an array of numbers, is {shown(given)}")
    numbers = values.astype(np.float64)
    if not ((numbers >= 0) & (numbers <= _LONGEST)).all():
        raise ConfigError(field, f"must be from 0 to {_LONGEST:g}, is {shown(given)}")
    return numbers


_LONGEST = 1e100
"""Tokens whose square is still a number."""


def occupied_by(s: Numbers, decodes: Numbers, chunk: int, whole_chunks: bool) -> Numbers:
    """`request_memory` of arrays that are known to be right."""
    full = np.ceil(s / chunk) - 1
    prompt = chunk * full * (full + 1) / 2 + s if whole_chunks else (1 + s / chunk) * s / 2
    occupied: Numbers = prompt + decodes * s + decodes * (decodes + 1) / 2
    return occupied


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassMemory:
    """What a class asks of the memory."""

    name: str
    share: float
    """q, of all requests."""
    slot_s: float
    """b̄ while it is served, in seconds."""
    memory_token_slots: float
    """E[g], tokens times slots of a request, with s/ŝ as a real number."""
    memory_token_slots_whole_chunks: float
    """The same with the last chunk of a prompt in a slot of its own."""
    mu: float
    """M / (b̄·E[g]), requests per second of a replica that serves this class alone."""
    mu_whole_chunks: float


@dataclass(frozen=True, kw_only=True, slots=True)
class KvCapacity(Statement):
    """How many requests per second fit the KV cache; made by `kv_capacity`."""

    source: ClassVar[str] = "nie2026 (1), Theorems 4.1 and 4.2"

    rate: float | None
    """λ, requests per second; None where nothing says when they come."""
    kv_tokens: int
    """M."""
    chunk: int
    """ŝ, tokens."""
    first_token: FirstToken
    """With "decode" o decodes follow the prompt, with "prefill" o − 1."""
    classes: tuple[ClassMemory, ...]
    mu: float
    """μ of (1), requests per second: no policy that computes at most ŝ prompt tokens of a request in a
    slot serves more."""
    mu_whole_chunks: float
    """The same where the last chunk of each prompt is the short one: what a simulation can reach."""
    largest_request_tokens: float | None
    """Most tokens that a request ever holds; None for lengths without an end."""
    delta: float | None
    """δ, that over M; None for lengths without an end."""
    utilization: float
    """ρ, to which share of μ a replica shall be used."""
    hypotheses: tuple[Hypothesis, ...]

    @property
    def capacity_per_s(self) -> float:
        """μ, requests per second: above it no policy is stable."""
        return self.mu

    @property
    def target_per_s(self) -> float:
        """ρ·μ, requests per second: what a replica serves when it is used as planned."""
        return self.utilization * self.mu

    @property
    def stable_below_per_s(self) -> float | None:
        """(1 − δ)·μ over whole chunks, requests per second; None where lengths have no end."""
        return None if self.delta is None else (1 - self.delta) * self.mu_whole_chunks

    def work(self, s: Any, o: Any) -> Any:
        """What a request occupies, of s prompt and o output tokens over whole chunks, tokens times slots."""
        less = with_prompt(self.first_token)
        return occupied_by(s, o - less, self.chunk, whole_chunks=True)

    @property
    def load(self) -> float | None:
        """λ/μ; None without a rate."""
        return None if self.rate is None else self.rate / self.mu

    @property
    def stable(self) -> bool | None:
        """What the theorems say of one replica: True below (1 − δ)·μ, False above μ, else None.

        None as well without a rate, and where a hypothesis that the theorem needs is known not to hold. One
        that is not known (`Hypothesis.met` is None) is taken to hold: the policy and its slots are not known
        here.
        """
        not_met = {one.name for one in self.hypotheses if one.met is False}
        if self.rate is None or not_met & {_OPEN, _ONE_SLOT}:
            return None
        if self.rate > self.mu:
            return False
        below = self.stable_below_per_s
        known = below is not None and self.rate < below and not not_met & {_INDEPENDENT}
        return True if known else None

    def explain(self) -> str:
        """The formula with its numbers, the two bounds, what follows, and the hypotheses."""
        lines = []
        if len(self.classes) > 1:
            for one in self.classes:
                lines += _formula(f"class {one.name!r}: μ_l", one, self.kv_tokens)
            parts = " + ".join(f"{number(one.share)}/{number(one.mu)}" for one in self.classes)
            lines.append(f"μ = 1 / Σ q/μ_l = 1 / ({parts}) = {number(self.mu)} requests/s")
            lines.append(f"  over whole chunks μ = {number(self.mu_whole_chunks)}")
        else:
            lines += _formula("μ", self.classes[0], self.kv_tokens)
        follow = "o decodes follow" if self.first_token == "decode" else "o − 1 decodes follow"
        lines.append(
            f"  chunks of ŝ = {number(self.chunk)} tokens; {follow} a prompt "
            f'(first_token="{self.first_token}")'
        )
        if self.delta is None:
            lines.append("δ = max(s + o)/M: lengths have no end, so no rate is known to be stable")
        else:
            lines += [
                f"δ = max(s + o)/M = {number(self.largest_request_tokens)} / {number(self.kv_tokens)} = "
                f"{number(self.delta)}",
                f"stable below (1 − δ)·μ over whole chunks = {number(self.stable_below_per_s)} requests/s, "
                f"unstable above μ = {number(self.mu)}, between them not known",
            ]
        lines.append(
            f"used to ρ = {number(self.utilization)} a replica serves ρ·μ = {number(self.target_per_s)} "
            "requests/s"
        )
        if self.rate is None:
            lines.append("nothing says how often requests come, so there is no λ to compare with")
        else:
            lines.append(
                f"λ = {number(self.rate)} requests/s is a load λ/μ of {number(self.load)}: "
                f"{_VERDICTS[self.stable]}"
            )
        return "\n".join([*lines, *hypotheses_text(self.hypotheses)])


_VERDICTS = {
    True: "stable",
    False: "overloaded, whatever the policy",
    None: "the theorems do not say whether that is stable",
}


def _formula(left: str, one: ClassMemory, kv_tokens: int) -> list[str]:
    return [
        f"{left} = M / (b̄·E[g]) = {number(kv_tokens)} / ({number(one.slot_s)} s · "
        f"{number(one.memory_token_slots)}) = {number(one.mu)} requests/s",
        f"  over whole chunks E[g] = {number(one.memory_token_slots_whole_chunks)}, "
        f"μ = {number(one.mu_whole_chunks)}",
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
    """How many requests per second a replica can serve whose limit is its KV cache.

    Every slot lasts b̄ and supplies M tokens of memory for its length; a request occupies g(s, o) tokens times
    slots in its life (`request_memory`). So no policy with chunks of ŝ serves more than

        μ = M / (b̄·E[g(s, o)])            and over classes 1/μ = Σ q_l/μ_l,

    and one that leaves no request out whose next step fits is stable below (1 − δ)·μ, δ = max(s + o)/M: while
    a request is left out, less than the largest request is free. The paper's proof takes prompts of whole
    chunks; for others the rate that is stable for sure is (1 − δ) times `mu_whole_chunks`, which counts the
    last, shorter chunk as an engine does, and μ stays an upper bound.

    Source: nie2026 (1), Theorems 4.1 and 4.2, and section 5.2 for mixtures; M = `kv_tokens`, b̄ = `slot_s`,
        ŝ = `chunk`, λ = `rate`. The mixed row of the paper's Table 1 prints 3.385 where this rule of mixtures
        gives 3.348.

    Args:
        workload: what comes; only its lengths, shares and rate are looked at. Arrivals may be missing.
        kv_tokens: memory of a replica in tokens, at least the largest request.
        slot_s: length of a slot in seconds, as given or as `slot` estimates it from a run; or that of each
            class by name, for classes that come one after another and not side by side.
        chunk: most prompt tokens of one request in a slot.
        rate: requests per second in all, instead of what the workload says.
        utilization: ρ, the share of μ to which a replica shall be used, above 0 and at most 1.
        first_token: the engine's. With `"prefill"` o − 1 decodes follow a prompt; with `"decode"`, nie2026's
            convention, o.

    Raises:
        ConfigError: naming the argument; `kv_tokens` below a request that may come, which then would never
            be served (of a distribution without an end: give it a cap).
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
    slots = _slots_of(slot_s, [one.name for one in demand.classes])
    less = with_prompt(first_token)
    classes = []
    largest: float | None = 0.0
    for one in demand.classes:
        top = _largest(one.lengths, tokens, less, one.name)
        largest = None if top is None or largest is None else max(largest, top)
        real = one.lengths.mean(lambda s, o: occupied_by(s, o - less, step, whole_chunks=False))
        in_chunks = one.lengths.mean(lambda s, o: occupied_by(s, o - less, step, whole_chunks=True))
        length_s = slots[one.name]
        classes.append(
            ClassMemory(
                name=one.name,
                share=one.share,
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
        mu=1 / math.fsum(one.share / one.mu for one in classes),
        mu_whole_chunks=1 / math.fsum(one.share / one.mu_whole_chunks for one in classes),
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
_OPEN = "requests come whatever happens, and stay"


def _hypotheses(
    demand: Demand, classes: Sequence[ClassMemory], chunk: int, largest: float | None, kv_tokens: int
) -> tuple[Hypothesis, ...]:
    lengths_s = sorted({one.slot_s for one in classes})
    told = " and ".join(f"{number(one)} s" for one in lengths_s)
    alike = all(one.lengths.mean(lambda s, o: (s % chunk > 0) + 0.0 * o) == 0 for one in demand.classes)
    if largest is None:
        slack: tuple[bool | None, str] = (False, "lengths have no end")
    else:
        delta = largest / kv_tokens
        why = f"δ = {number(delta)}; the two bounds are that share apart"
        slack = (True if delta <= _SMALL else None if delta < 1 else False, why)
    left = [demand.arrivals] if demand.closed_loop else []
    left += ["requests give up"] if demand.gives_up else []
    return (
        Hypothesis(
            name=_WORK_CONSERVING,
            met=None,
            why="SlotGreedy does so at no cost for stepping out; admission that reserves s + o does not",
        ),
        Hypothesis(
            name=_ONE_SLOT,
            met=None if len(lengths_s) == 1 else False,
            why=f"b̄ = {told}" + ("" if len(lengths_s) == 1 else ", for classes that come one after another"),
        ),
        Hypothesis(name=_SLACK, met=slack[0], why=slack[1]),
        Hypothesis(
            name=_WHOLE,
            met=alike,
            why=f"ŝ = {number(chunk)}"
            + ("" if alike else "; μ over whole chunks counts the last, shorter one, and is below μ"),
        ),
        Hypothesis(name=_INDEPENDENT, met=demand.poisson, why=demand.arrivals),
        Hypothesis(
            name=_OPEN, met=not left, why="; ".join(left) or "no request waits for answers or gives up"
        ),
    )


_SMALL = 0.1
"""Up to here δ counts as much smaller than 1: the two bounds are within a tenth."""


_SLOT_S = (1e-12, 1e9)
"""Seconds that a slot may last, at least and at most."""


def _slots_of(slot_s: object, names: Sequence[str]) -> dict[str, float]:
    """The length of a slot of each class."""
    if not isinstance(slot_s, Mapping):
        return dict.fromkeys(names, within("slot_s", slot_s, *_SLOT_S))
    for name in slot_s:
        if name not in names:
            raise ConfigError("slot_s", f"no class {name!r}; there are {', '.join(map(repr, names))}")
    for name in names:
        if name not in slot_s:
            raise ConfigError("slot_s", f"no length for class {name!r}")
    return {name: within(f"slot_s[{name!r}]", slot_s[name], *_SLOT_S) for name in names}


def _largest(lengths: Lengths, kv_tokens: int, less: int, name: str) -> float | None:
    """Most tokens that a request of the class holds, if there is an end; none may exceed the memory."""
    above = lengths.mean(lambda s, o: (s + o - less > kv_tokens) * 1.0)
    top = lengths.most(lambda s, o: s + o - less)
    if above > 0 or (math.isfinite(top) and top > kv_tokens):
        held = f"up to {number(top)} tokens" if math.isfinite(top) else "without a cap"
        raise ConfigError(
            "kv_tokens",
            f"{number(kv_tokens)} is below a request of class {name!r}: a share of "
            f"{number(above)} is larger, {held}; what never fits is never served: cap the lengths or leave "
            "it out",
        )
    return top if math.isfinite(top) else None
