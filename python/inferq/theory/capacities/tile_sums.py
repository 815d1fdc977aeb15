"""What do the tiles of one request cost, summed over its chunks and decodes without a loop over tokens?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from inferq._lazy import np
from inferq.timing import TiledGemm

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TilePrices:
    """Seconds of a request with a prompt of s and an output of o tokens, its prompt in chunks.

    Every method takes arrays that broadcast, and answers likewise. Lengths that are no whole numbers, the
    means of bins of a law, are between their neighbours.

    Source: (4), (5) and (6) of bari2025, with the symbols of `TiledGemm`.
    """

    timing: TiledGemm
    chunk_tokens: int
    emitted_before: int
    """Tokens that the prompt's last iteration emits: 1 or 0. So many decodes fewer than tokens."""

    def prompt_linear_s(self, s: Numbers, o: Numbers) -> Numbers:
        """The linear layers, for the tiles that chunks of the prompt take, each alone in its iteration."""
        return self.timing.linear_s_per_tile * _between(self._prompt_tiles, s) + 0 * o

    def prompt_attention_s(self, s: Numbers, o: Numbers) -> Numbers:
        """The attention of the same chunks, the last one with what is left."""
        return _between(self._chunks_s, s) + 0 * o

    def least_attention_s(self, s: Numbers, o: Numbers) -> Numbers:
        """The least that the prompt's attention costs in any chunks.

        A chunk of several times `columns` tokens costs more than as many chunks of `columns`, which end
        earlier. n chunks of at most `columns` tokens that end with the prompt end at s − j·`columns` or later
        for j = 0 … n − 1, and ⌈s / `columns`⌉ are the fewest: so those ends are the cheapest.
        """
        return _between(self._least_s, s) + 0 * o

    def decode_attention_s(self, s: Numbers, o: Numbers) -> Numbers:
        """The attention of the decodes, which compute tokens s + 1, s + 2 and so on."""
        decoded: Numbers = self.gemv_s(s + o - self.emitted_before) - self.gemv_s(s)
        return decoded

    def gemv_s(self, tokens: Any) -> Any:
        """Σ (5) over tokens 1 … `tokens`, each as a decode, in all layers."""
        t = self.timing
        tiles = t.width / t.columns * _stairs(tokens, t.rows) + t.width / t.rows * _stairs(tokens, t.columns)
        return t.layers * t.gemv_s * tiles

    def _prompt_tiles(self, prompt: Any) -> Any:
        wide, columns = self.chunk_tokens, self.timing.columns
        return prompt // wide * -(-wide // columns) + -(-(prompt % wide) // columns)

    def _pair_s(self, by_rows: Any, by_reduction: Any) -> Any:
        t = self.timing
        return t.layers * t.gemm_s * (t.width / t.reduction * by_rows + t.width / t.rows * by_reduction)

    def _chunks_s(self, prompt: Any) -> Any:
        t, wide = self.timing, self.chunk_tokens
        whole = prompt // wide
        sums = [ceilings(whole, wide, wide, size) for size in (t.rows, t.reduction)]
        last = -(-(prompt % wide) // t.columns)
        ends = [-(-prompt // size) for size in (t.rows, t.reduction)]
        tiles = -(-wide // t.columns)
        return self._pair_s(*(tiles * each + last * end for each, end in zip(sums, ends, strict=True)))

    def _least_s(self, prompt: Any) -> Any:
        t = self.timing
        chunks = -(-prompt // t.columns)
        first = prompt - (chunks - 1) * t.columns
        return self._pair_s(*(ceilings(chunks, first, t.columns, size) for size in (t.rows, t.reduction)))


def ceilings(terms: Any, first: Any, step: int, size: int) -> Numbers:
    """Σ ⌈(first + k·step) / size⌉ over k = 0 … terms − 1, for arrays of whole numbers, `first` at least 1.

    The lattice points below a line, counted as Euclid divides: with columns and rows exchanged the slope
    step / size becomes size mod step / step, so there are as many rounds as its continued fraction has terms.

    >>> import numpy as np
    >>> int(ceilings(np.int64(3), np.int64(5), 5, 4))  # ⌈5/4⌉ + ⌈10/4⌉ + ⌈15/4⌉
    9
    """
    terms, offset = np.broadcast_arrays(
        np.asarray(terms, dtype=np.int64), np.asarray(first, dtype=np.int64) + size - 1
    )
    total = np.zeros(terms.shape)
    while (terms > 0).any():
        total = total + terms * (terms - 1.0) / 2 * (step // size) + terms * (offset // size * 1.0)
        step, offset = step % size, offset % size
        height = step * terms + offset
        terms, offset = height // size, height % size
        step, size = size, step
        if size == 0:
            break
    return total


def _stairs(tokens: Any, size: int) -> Any:
    """Σ ⌈i / size⌉ over i = 1 … tokens; between whole numbers a straight line."""
    full = np.floor_divide(tokens, size)
    return size * full * (full + 1) / 2 + (tokens - full * size) * (full + 1)


def _between(f: Callable[[Any], Any], lengths: Numbers) -> Numbers:
    """Values of `f` at whole numbers of tokens, and a straight line between them elsewhere."""
    below = np.floor(lengths).astype(np.int64)
    part = lengths - below
    value = np.asarray(f(below), dtype=np.float64)
    if part.any():
        value = value + part * (f(below + 1) - value)
    return value
