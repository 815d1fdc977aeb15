"""Operations of prefill and decode under one backend, and replacements for untuned kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

UNTUNED, UNTUNED_BLOCKS = 3.0, 1.5
"""A kernel is untuned if its times exceed another backend's by this factor, in the median over batches; the
second factor is that of products in FP8 blocks.

Tuned kernels of two backends differ by less than 2; products in FP8 blocks under vLLM 0.24 by up to 50. vLLM
and SGLang run the same library for these, so smaller differences also show untuned kernels: Qwen3-32B on two
H200s takes 13.9 ms at batch 1 with vLLM's times, 8.6 ms with SGLang's, and 7.5 ms under TensorRT-LLM.
"""

_BATCHES = (1, 8, 32, 128, 512, 2048)
"""Tokens at which kernels of two backends are compared."""
_CHUNKS = ((16, 0), (16, 4096), (512, 0), (512, 8192))
_DECODES = ((1, 16), (1, 4096), (32, 64), (32, 8192))
"""Tokens and context of chunks, sequences and context of decodes: points that differ in context alone."""
_MILLISECOND = 1e-3

Operations = list[tuple[str, float, float, str]]


class Phase:
    """The operations of one phase, each with an index; times are for all layers.

    `attention` are the operations whose time depends on the context, `linear` the others, with the logits of
    one row (prefill) or of all sequences (decode).
    """

    def __init__(self, evaluate: Callable[..., Operations], is_prefill: bool) -> None:
        self._evaluate, self.is_prefill = evaluate, is_prefill
        self.sources: dict[str, set[str]] = {}
        self.names = _names(evaluate)
        everything = range(len(self.names))
        self.attention = [at for at in everything if self._depends_on_context(at)]
        self.linear = [at for at in everything if at not in self.attention]
        self.logits = [at for at in self.linear if "logits" in self.names[at]]

    def seconds(self, operations: Sequence[int], size: int, context: int = 0, count: int = 1) -> float:
        """Seconds of operations.

        Prefill: `count` chunks of `size` tokens at `context`. Decode: `size` sequences whose contexts, with
        the new token, are `context`.
        """
        if not operations:
            return 0.0
        if self.is_prefill:
            evaluated = self._evaluate(operations, batch_size=count, s=size, prefix=context)
        else:
            evaluated = self._evaluate(operations, batch_size=size, s=max(context, 1))
        for name, _, _, source in evaluated:
            self.sources.setdefault(source, set()).add(name)
        return sum(milliseconds for _, milliseconds, _, _ in evaluated) * _MILLISECOND

    def _depends_on_context(self, operation: int) -> bool:
        times: dict[int, set[float]] = {}
        for size, context in _CHUNKS if self.is_prefill else _DECODES:
            times.setdefault(size, set()).add(self.seconds([operation], size, context))
        return any(len(of_size) > 1 for of_size in times.values())


class Linear:
    """The linear operations of a phase, with another backend's times in place of those of untuned kernels.

    Args:
        phase: the operations of the backend.
        other: those of another backend, if any.
        has_same_experts: whether both run the same kernels for experts; the shorter of both times is used.
        routing_s: seconds that the experts of either phase lack, for choosing the experts of each token.
        untuned: the factor from which on a product is untuned.
    """

    def __init__(
        self,
        phase: Phase,
        other: Phase | None,
        *,
        has_same_experts: bool,
        routing_s: tuple[float, float] = (0.0, 0.0),
        untuned: float = UNTUNED,
    ) -> None:
        self.phase, self._other, self._has_same_experts = phase, other, has_same_experts
        self._routing_s, self._untuned = routing_s, untuned
        self._fixed_s = routing_s[0]
        """The routing of experts for which only one backend's times are used."""
        self.is_padded = False
        """Whether each operation takes no longer than with a batch of up to 8 times as many tokens."""
        self._own = list(phase.linear)
        self._replaced: list[int] = []
        self._experts: tuple[list[int], list[int]] = [], []
        if other is not None:
            for at in phase.linear:
                self._compare(at, other)

    @property
    def replaced(self) -> set[str]:
        """The products that the other backend measured."""
        names = self._other.names if self._other is not None else []
        return {names[at].partition("_")[2].removesuffix("_gemm") for at in self._replaced}

    @property
    def has_experts(self) -> bool:
        """Whether the shorter of both times is used for experts."""
        return bool(self._experts[0])

    def seconds(self, tokens: int) -> float:
        """Seconds for a batch of `tokens` tokens."""
        sizes = padded(tokens, 8 * tokens) if self.is_padded else (tokens,)
        return sum(min(map(time_s, sizes)) for time_s in self._terms())

    def _terms(self) -> Iterator[Callable[[int], float]]:
        """Times by tokens, to be added: one term for each operation of a padded batch."""
        for phase, operations in ((self.phase, self._own), (self._other, self._replaced)):
            groups = [[at] for at in operations] if self.is_padded else [operations]
            for group in groups:
                if phase is not None and group:
                    yield partial(phase.seconds, group)
        own, other = self._experts
        if self._other is not None and own:
            of_own, of_other = partial(self.phase.seconds, own), partial(self._other.seconds, other)
            own_s, other_s = self._routing_s
            yield lambda tokens: min(of_own(tokens) + own_s, of_other(tokens) + other_s)
        else:
            yield lambda tokens: self._fixed_s

    def _compare(self, own: int, other_phase: Phase) -> None:
        name = self.phase.names[own]
        if name not in other_phase.names:
            return
        other = other_phase.names.index(name)
        is_of_experts = "moe" in name
        if is_of_experts and self._has_same_experts:
            self._experts[0].append(own)
            self._experts[1].append(other)
        elif (
            (is_of_experts or "gemm" in name)
            and "dispatch" not in name
            and self._is_untuned(own, other_phase, other)
        ):
            self._replaced.append(other)
            if is_of_experts:
                self._fixed_s = self._routing_s[1]
        else:
            return
        self._own.remove(own)

    def _is_untuned(self, own: int, other_phase: Phase, other: int) -> bool:
        ratios = sorted(
            self.phase.seconds([own], tokens) / other_phase.seconds([other], tokens) for tokens in _BATCHES
        )
        return ratios[len(ratios) // 2] > self._untuned


def padded(tokens: int, most: int) -> tuple[int, ...]:
    """A batch, and the powers of two up to `most` to which an engine can pad it."""
    power = 1 << (tokens - 1).bit_length()
    doublings = (most // power).bit_length()
    return tokens, *(power << doubling for doubling in range(doublings))


def _names(evaluate: Callable[..., Any]) -> list[str]:
    """The operations of a phase, in the order of their indices; an index out of range ends the list."""
    names: list[str] = []
    while True:
        try:
            ((name, _, _, _),) = evaluate([len(names)], batch_size=1, s=16)
        except ValueError as error:
            if "out of range" not in str(error):
                raise
            return names
        names.append(name)
