"""Parts of a measured or modeled iteration, as piecewise linear functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

from inferq._lazy import np
from inferq.systems.engine import Engine
from inferq.systems.overhead import Overhead
from inferq.theory.demands.lengths import Lengths
from inferq.timing import Roofline, TimingTable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers: TypeAlias = NDArray[np.float64]
    Flags: TypeAlias = NDArray[np.bool_]

MOST_TOKENS_OF_A_BATCH = 2.0**40
"""Tokens of a batch without a token budget; the same constant as in the core."""
MOST_CONTEXT = 2.0**31
"""An upper bound of the length of any request."""
_STEP = 1.1
"""Step ratio for numbers of decodes if the cache may be full."""
_RATIO = 1.25
"""Step ratio for chunks if a linear function bounds a square."""


@dataclass(frozen=True, slots=True, eq=False)
class Chunks:
    """Chunks at the corners of a grid: (tokens, context) and the time of each."""

    tokens: Numbers
    context: Numbers
    seconds: Numbers


@dataclass(frozen=True, slots=True, eq=False)
class Kernels:
    """Parts of an iteration as functions that are linear between the points of their axes.

    An iteration of τ tokens, n of them decodes of mean context m, takes linear(τ) + decode(n, m) + Σ chunks
    plus the host time. A part is `None` if its extrapolation falls below 0 within reach, where the core cuts
    it off. For a lower bound it then counts 0; an upper bound is unknown.
    """

    budget: float
    """b, or more tokens than any batch holds."""
    max_seqs: float
    """S, at most b."""
    kv_tokens: float
    most_context: float
    linear_points: Sequence[int | float]
    linear_s: Sequence[float]
    decode_rows: Sequence[int]
    decode_columns: Sequence[int]
    decode_s: Sequence[Sequence[float]]
    timing: TimingTable | Roofline
    host: Overhead

    @classmethod
    def of(cls, engine: Engine, lengths: Lengths, *, above: bool = False) -> Kernels:
        """The kernels of an engine with a table or a roofline, for requests of these lengths.

        Args:
            engine: the engine.
            lengths: lengths of requests.
            above: whether parts without an exact form are bounded from above. Default: from below.
        """
        timing = engine.timing
        assert isinstance(timing, (TimingTable, Roofline))
        budget = float(engine.scheduler.token_limit() or MOST_TOKENS_OF_A_BATCH)
        max_seqs = min(float(engine.scheduler.sequence_limit() or budget), budget)
        kv = engine.kv
        kv_tokens = float("inf") if kv.whole_tokens is None else float(kv.whole_tokens)
        longest = min(lengths.most(lambda s, o: s + o), kv_tokens, MOST_CONTEXT)
        if isinstance(timing, TimingTable):
            points: Sequence[int | float] = timing.linear.tokens
            linear_s, decode = timing.linear.seconds, timing.decode
            rows, columns, decode_s = decode.sequences, decode.mean_context, decode.seconds
        else:
            points, linear_s = _roof(timing, budget, above)
            rows, columns = (1, 2), _window_ends(timing)
            decode_s = [[n * _decode_s(timing, m, above) for m in columns] for n in rows]
        return cls(
            budget=budget,
            max_seqs=max_seqs,
            kv_tokens=kv_tokens,
            most_context=max(1.0, longest),
            linear_points=points,
            linear_s=linear_s,
            decode_rows=rows,
            decode_columns=columns,
            decode_s=decode_s,
            timing=timing,
            host=engine.overhead or Overhead(),
        )

    @property
    def may_be_full(self) -> bool:
        """Whether decodes in all sequence slots, each at its longest, can exceed the cache."""
        return self.max_seqs * self.most_context > self.kv_tokens

    def tokens_at(self) -> Numbers:
        """Token counts where the linear layers bend, from 1 to b, and S."""
        return _within(self.linear_points, 1, self.budget, self.max_seqs)

    def decodes_at(self) -> Numbers:
        """Decode counts where the time bends, from 1 to S, and S − 1, the most next to a chunk.

        If the cache may be full, steps are small: between two counts the cache is assumed to hold what fits
        with the smaller count.
        """
        counts = _within(self.decode_rows, 1, self.max_seqs, self.max_seqs - 1)
        return in_steps(counts, _STEP) if self.may_be_full else counts

    def linear(self, tokens: Numbers) -> Numbers | None:
        """Time of the linear layers; None if it falls below 0 within reach."""
        points = np.asarray(self.linear_points, dtype=float)
        values = np.asarray(self.linear_s, dtype=float)
        if (_line(points, values, self.tokens_at()) < 0).any():
            return None
        return _line(points, values, tokens)

    def decodes(self, count: Numbers) -> tuple[Numbers, Numbers, Flags] | None:
        """Mean contexts to check, times of n decodes at each, and which corners are possible.

        Contexts fit the cache: between two counts of decodes, n ≤ n', batches have mean contexts of at most
        (tokens of the cache)/n, which are among the mean contexts to check.
        """
        rows = np.asarray(self.decode_rows, dtype=float)
        columns = np.asarray(self.decode_columns, dtype=float)
        by_row = np.asarray(self.decode_s, dtype=float)
        near = self.decodes_at()
        means = _within((*self.decode_columns, *(self.kv_tokens / near)), 0, self.most_context)

        def at(these: Numbers) -> Numbers:
            by_column = _line(rows, by_row, these)
            return _line(columns, by_column.T, means).T

        grid = at(self.decodes_at())
        if (grid < 0).any() or (_line(rows, by_row, self.decodes_at()) < 0).any():
            return None
        fewer = np.array([max(near[near < n], default=1.0) for n in count])
        return means, at(count), fewer[:, None] * means[None, :] <= self.kv_tokens * (1 + 1e-12)

    def chunks(self, longest: float, steps: bool) -> Chunks | None:
        """Chunks of a table without the shared part, at the corners of cells; None if one falls below 0.

        Args:
            longest: most tokens of a chunk and its context together.
            steps: whether to cut cells along the chunk into steps of a small ratio.
        """
        assert isinstance(self.timing, TimingTable)
        part = self.timing.chunk
        rows, columns = np.asarray(part.chunk, dtype=float), np.asarray(part.context, dtype=float)
        values = np.asarray(part.seconds, dtype=float) - part.shared_s
        tokens = _within(part.chunk, 1, min(self.budget, longest))
        contexts = _within(part.context, 0, longest - 1)
        if steps:
            tokens = in_steps(tokens, _RATIO)
        by_column = _line(rows, values, tokens)
        times = _line(columns, by_column.T, contexts).T
        if (times < 0).any() or (by_column < 0).any():
            return None
        before = np.concatenate([tokens[:1], tokens[:-1]])[:, None] + np.concatenate(
            [contexts[:1], contexts[:-1]]
        )
        within = before <= longest
        c, x = np.broadcast_arrays(tokens[:, None], contexts[None, :])
        return Chunks(c[within], x[within], times[within])


def _roof(timing: Roofline, budget: float, above: bool) -> tuple[list[float], list[float]]:
    """Time of a roofline without attention, at 1 token, at the bend, and at the budget.

    The share of experts that a batch reads is concave in its tokens: lines between points bound it from
    below, and all experts from above.
    """
    slope_s = timing.linear_flops_s_per_token - timing.linear_activation_s_per_token
    bend = timing.linear_weight_s / slope_s if slope_s > 0 else 0.0
    curve = () if above or not timing.experts else tuple(2.0**power for power in range(1, 14))
    inner = (at for at in (bend, *curve) if 1 < at < budget)
    points = sorted({1.0, max(2.0, budget), *inner})
    exchange = timing.exchange

    def experts_s(tokens: float) -> float:
        total_s = 0.0
        for part in timing.experts:
            share = 1 - (1 - part.active / part.experts) ** (tokens * part.ranks)
            total_s += part.base_s + part.s_per_token * tokens + part.weight_s * (1.0 if above else share)
        return total_s

    def seconds(tokens: float) -> float:
        computed_s = timing.linear_flops_s_per_token * tokens
        read_s = timing.linear_weight_s + timing.linear_activation_s_per_token * tokens
        exchanged_s = timing.all_reduce_latency_s + timing.all_reduce_s_per_token * tokens
        if exchange is not None:
            exchanged_s += exchange.latency_s + exchange.s_per_token * tokens
        return timing.base_s + exchanged_s + max(computed_s, read_s) + experts_s(tokens)

    return points, [seconds(tokens) for tokens in points]


def _window_ends(timing: Roofline) -> tuple[int, ...]:
    """Mean contexts between which the attention of decodes is linear."""
    ends = {0, 1}
    for window in timing.windows:
        ends |= {window.tokens - 1, window.tokens}
        if window.restarts:
            ends |= {max(0, window.tokens // 2 - 1), window.tokens // 2}
    return tuple(sorted(ends))


def _decode_s(timing: Roofline, context: float, above: bool) -> float:
    """Attention and states of a decode, whose context is the mean of all decodes.

    Windows that restart are not monotonic in the context. Their bound from above does not restart, and their
    bound from below has at most half a window.
    """
    total_s = (context + 1) * max(timing.decode_compute_s_per_token, timing.decode_memory_s_per_token)
    for window in timing.windows:
        limit = window.tokens // 2 if window.restarts and not above else window.tokens
        each_s = max(window.decode_compute_s_per_token, window.decode_memory_s_per_token)
        total_s += each_s * min(context + 1, limit)
    return total_s + (timing.states.s_per_decode if timing.states is not None else 0.0)


def _within(points: Sequence[int | float], low: float, high: float, *more: float) -> Numbers:
    """The two ends, and all points between them."""
    return np.array(sorted({low, high, *(float(at) for at in (*points, *more) if low <= at <= high)}))


def in_steps(points: Numbers, ratio: float = _RATIO) -> Numbers:
    """The points with more points in between, so that neighbors differ at most by the factor `ratio`."""
    pieces = [points[:1]]
    for low, high in pairwise(points):
        pieces.append(np.geomspace(low, high, 2 + int(math.log(high / low) / math.log(ratio)))[1:])
    return np.concatenate(pieces)


def _line(points: Numbers, values: Numbers, at: Numbers) -> Numbers:
    """Linear interpolation and extrapolation along the first axis."""
    place = np.clip(np.searchsorted(points, at, side="right") - 1, 0, len(points) - 2)
    share = (at - points[place]) / (points[place + 1] - points[place])
    share = share.reshape(-1, *([1] * (values.ndim - 1)))
    low, high = values[place], values[place + 1]
    values_at: Numbers = low + share * (high - low)
    return values_at
