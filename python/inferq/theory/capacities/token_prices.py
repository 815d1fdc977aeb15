"""Prices of the parts of a request, as lower and upper bounds for measured iteration times.

With tables and rooflines the length of an iteration is not a function of its tokens alone. Prices replace
it: seconds per prompt token, per decode, per token of its context, per chunk, and per pair of prompt tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from inferq._lazy import np
from inferq.systems.engine import Engine
from inferq.theory.capacities.kernel_times import Kernels, in_steps
from inferq.theory.capacities.price_program import (
    CHUNK,
    CHUNK_TOKEN,
    CONTEXT,
    DECODE,
    PAIR,
    ROW,
    TOKEN,
    PriceProgram,
)
from inferq.theory.demands.hits import PrefixHits, finds_its_own
from inferq.theory.demands.lengths import FirstToken, Lengths, with_prompt
from inferq.theory.statement import number
from inferq.timing import Roofline, TimingModel, TimingTable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers: TypeAlias = NDArray[np.float64]
    Flags: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class MeanRequest:
    """Parts of a mean request, each with its own price."""

    prompt: float
    """Prompt tokens."""
    decodes: float
    contexts: float
    """Sum of the contexts of its decodes."""
    chunks: float
    """Chunks of its prompt."""
    pairs: float
    """Pairs of a prompt token and a token that it attends to: s(s + 1)/2 for any cut of the prompt."""


@dataclass(frozen=True, slots=True)
class TokenPrices:
    """Seconds for each part of a request.

    **Lower bound.** Let T(B) ≥ a·C + d·n + e·X + g·k + p·P for every possible batch B: C prompt tokens in k
    chunks with P pairs, n decodes whose contexts sum to X; C + n ≤ b, k + n ≤ S, X ≤ M. Summed over the
    iterations of a long run, the time is at least the price of all requests: s of C, at least ⌈s/b⌉ of k,
    s(s + 1)/2 of P for any cuts, and one decode with its context for each further token. Recomputation after
    a preemption replaces at most one decode at context x by x + 1 prompt tokens. Prices with a·(x + 1) + g ≥
    d + e·x, for x from the shortest prompt on, make that no cheaper. So no policy can exceed one request per
    price of a request, for any such prices. A linear program finds the best prices.

    **Upper bound.** Let a policy fill its budget whenever it has requests, slots and memory. While more
    requests wait than have a slot, one of two cases holds. Either an iteration is full, C + n = b, and at
    most one chunk, the last, leaves its prompt unfinished. Or all S slots are taken and every sequence
    advances, k + n = S, every prompt to its end. Let T(B) ≤ a·C + d·n + e·X + g·(prompts finished) + p·P for
    all these batches. Then the price of all remaining work falls by at least one second per second while any
    request waits. The system is stable if λ times the price of a request is below 1, by the drift argument of
    li2025 Appendix B.

    The bounds are checked at corners. Without the square of a chunk, all terms are bilinear in cells. For a
    fixed mean context they are linear in C and n between the lines C + n = (point of the table, S, b) and
    n = (point, S − 1, S). For fixed C and n they are linear in the mean context. So the extremes over a cell
    are at its corners. A chunk of c tokens at context x has c·x + c(c + 1)/2 pairs. For the lower bound the
    remainder is concave in c, so corners suffice. For the upper bound the tangent replaces c², in the middle
    of steps with a ratio of 1.25. The core rounds slopes to attoseconds, which is ignored here. Host time is
    part of T: `base_s` is constant, `per_sequence_s` counts per row, and an overlapped host contributes the
    longer of both times.

    Source: our own; for times by tokens alone it is li2025 Theorem 1 and `sequence_capacity`.
    """

    token_s: float
    decode_s: float
    context_s: float
    chunk_s: float
    pair_s: float
    budget: float
    """Tokens of the largest chunk for the lower bound; infinite if every prompt pays for one chunk."""

    def request_s(self, lengths: Lengths, first_token: FirstToken, hits: PrefixHits | None = None) -> float:
        """The price of a mean request."""
        return _sum(self, _mean_request(lengths, first_token, self.budget, hits))

    def work(self, first_token: FirstToken) -> Any:
        """The price of a request as a function of its lengths."""
        less = with_prompt(first_token)

        def seconds(s: Any, o: Any) -> Any:
            decodes = o - less
            contexts = decodes * s + decodes * (decodes - 1) / 2
            return (
                self.token_s * s
                + self.decode_s * decodes
                + self.context_s * contexts
                + self.chunk_s * np.ceil(s / self.budget if self.budget < np.inf else 0 * s + 1)
                + self.pair_s * s * (s + 1) / 2
            )

        return seconds

    def inequality(
        self,
        kind: str,
        lengths: Lengths,
        first_token: FirstToken,
        replicas: int,
        hits: PrefixHits | None = None,
    ) -> str:
        """The numbers of a bound, on one line."""
        request = _mean_request(lengths, first_token, self.budget, hits)
        sum_s = self.request_s(lengths, first_token, hits)
        return (
            f"{kind}: {number(request.prompt)} prompt tokens at {number(self.token_s)} s, "
            f"{number(request.decodes)} decodes at {number(self.decode_s)} s, their contexts of "
            f"{number(request.contexts)} tokens at {number(self.context_s)} s, {number(request.chunks)} "
            f"chunks at {number(self.chunk_s)} s, {number(request.pairs)} pairs of prompt tokens at "
            f"{number(self.pair_s)} s: {number(sum_s)} s per request; {replicas} / {number(sum_s)} = "
            f"{number(replicas / sum_s)} per second"
        )


def least_prices(
    engine: Engine,
    lengths: Lengths,
    first_token: FirstToken,
    *,
    by_sequences: bool,
    by_memory: bool,
    only: Literal["prompts", "decodes"] | None = None,
    hits: PrefixHits | None = None,
) -> TokenPrices | None:
    """Prices that no batch undercuts, with the largest price of a request; None if all are 0.

    Args:
        engine: an engine with a table or a roofline.
        lengths: lengths of requests.
        first_token: convention for the first token.
        by_sequences: whether the sequence limit counts.
        by_memory: whether the contexts of a batch must fit the cache.
        only: the half of a request that counts. Default: both.
        hits: hits of prefix caches; None for no hits. The contexts of requests that share blocks may exceed
            the cache, so `by_memory` must be False then.
    """
    kernels = Kernels.of(engine, lengths)
    if not by_sequences:
        kernels = replace(kernels, max_seqs=kernels.budget)
    if not by_memory:
        kernels = replace(kernels, kv_tokens=float("inf"))
    mean = _mean_request(lengths, first_token, kernels.budget, hits)
    if only == "prompts":
        mean = replace(mean, decodes=0.0, contexts=0.0)
    elif only == "decodes":
        mean = replace(mean, prompt=0.0, chunks=0.0, pairs=0.0)
    from_below = _Below(kernels, lengths)
    prices = from_below.solved(
        mean, not engine.scheduler.is_user_defined() and not finds_its_own(engine, lengths)
    )
    if kernels.host.overlapped:  # the longer of two times is at least either
        alone = from_below.host_alone(mean)
        if prices is None or (alone is not None and _sum(alone, mean) > _sum(prices, mean)):
            prices = alone
    if prices is None or only is None:
        return prices
    # Parts of the other half could only increase the price.
    rest = dict.fromkeys(
        ("decode_s", "context_s") if only == "prompts" else ("token_s", "chunk_s", "pair_s"), 0.0
    )
    return replace(prices, **rest)


def saturated_prices(engine: Engine, lengths: Lengths, first_token: FirstToken) -> TokenPrices | None:
    """The smallest prices that cover every full batch; None if none are known."""
    return _Above(Kernels.of(engine, lengths, above=True), lengths).solved(
        _mean_request(lengths, first_token, float("inf"))
    )


def longest_iteration_s(engine: Engine, lengths: Lengths, *, shared: bool = False) -> float | None:
    """An upper bound of the length of an iteration with a token budget; None if unknown.

    The sum of the linear layers, the decodes and all chunks, each at its longest: min(S, b) chunks of b
    tokens in total, each with the largest possible context. The contexts of decodes fit the cache unless they
    are `shared`.
    """
    kernels = Kernels.of(engine, lengths, above=True)
    if shared:
        kernels = replace(kernels, kv_tokens=float("inf"))
    return _Above(kernels, lengths).longest_s()


def has_prices(timing: TimingModel) -> bool:
    """Whether batches of a model can be priced at their corners."""
    return isinstance(timing, (TimingTable, Roofline))


def cache_may_fill(engine: Engine, lengths: Lengths) -> bool:
    """Whether decodes in all sequence slots, each at its longest, can exceed the cache."""
    return Kernels.of(engine, lengths).may_be_full


def _mean_request(
    lengths: Lengths, first_token: FirstToken, budget: float, hits: PrefixHits | None = None
) -> MeanRequest:
    less = with_prompt(first_token)
    if hits is not None:
        all_of_it = _mean_request(lengths, first_token, float("inf"))
        chunks = hits.chunks(None if budget == float("inf") else budget)
        return replace(all_of_it, prompt=hits.tokens, chunks=chunks, pairs=hits.pairs)
    return MeanRequest(
        prompt=lengths.prompt_mean,
        decodes=lengths.decode_mean(first_token),
        contexts=lengths.mean(lambda s, o: (o - less) * s + (o - less) * (o - less - 1) / 2),
        chunks=1.0 if budget == float("inf") else lengths.mean(lambda s, o: np.ceil(s / budget) + 0 * o),
        pairs=lengths.mean(lambda s, o: s * (s + 1) / 2 + 0 * o),
    )


def _sum(prices: TokenPrices, request: MeanRequest) -> float:
    return (
        prices.token_s * request.prompt
        + prices.decode_s * request.decodes
        + prices.context_s * request.contexts
        + prices.chunk_s * request.chunks
        + prices.pair_s * request.pairs
    )


def _costs(request: MeanRequest) -> list[float]:
    """The factor of each unknown in the price of a request."""
    token, chunk = request.prompt, request.chunks
    return [token, request.decodes, request.contexts, chunk, chunk, token, request.pairs]


class _Below:
    """Prices that no batch undercuts."""

    def __init__(self, kernels: Kernels, lengths: Lengths) -> None:
        self._kernels, self._lengths = kernels, lengths

    def solved(self, request: MeanRequest, decodes_are_decodes: bool) -> TokenPrices | None:
        """The largest price of a request."""
        kernels = self._kernels
        host = (0.0, 0.0) if kernels.host.overlapped else (kernels.host.base_s, kernels.host.per_sequence_s)
        program = PriceProgram()
        self._chunks(program)
        self._batches(program, *host)
        return self._best(program, request, host[1], decodes_are_decodes)

    def host_alone(self, request: MeanRequest) -> TokenPrices | None:
        """The same for host time: `base_s`, and `per_sequence_s` for each of at most S rows."""
        host = self._kernels.host
        row_s = host.per_sequence_s + host.base_s / self._kernels.max_seqs
        # A recomputed decode becomes a row of a chunk at the same price.
        prices = TokenPrices(0.0, row_s, 0.0, row_s, 0.0, self._kernels.budget)
        return prices if _sum(prices, request) > 0 else None

    def _best(
        self, program: PriceProgram, request: MeanRequest, row_s: float, decodes_are_decodes: bool
    ) -> TokenPrices | None:
        program.at_most(0.0, token=-1, chunk_token=-1)
        program.at_most(row_s, row=-1, chunk=-1)
        # Recomputing x + 1 tokens is no cheaper than a decode at context x ≥ shortest prompt.
        shortest = self._lengths.shortest_prompt
        program.at_most(0.0, context=1, token=-1, chunk_token=-1)
        program.at_most(
            row_s,
            decode=1,
            context=shortest,
            token=-(shortest + 1),
            chunk_token=-(shortest + 1),
            row=-1,
            chunk=-1,
        )
        if not decodes_are_decodes:  # a chunk of one token is no cheaper than a decode at its context
            program.at_most(row_s, decode=1, token=-1, chunk_token=-1, row=-1, chunk=-1, pair=-1)
            program.at_most(0.0, context=1, pair=-1)
        costs = [-cost for cost in _costs(request)]
        unknowns = program.least(costs, free=(TOKEN, CHUNK, CHUNK_TOKEN), strict=-1.0)
        if unknowns is None:
            return None
        prices = _prices(unknowns, row_s, self._kernels.budget)
        return prices if _sum(prices, request) > 0 else None

    def _chunks(self, program: PriceProgram) -> None:
        """The attention of each chunk (of all chunks for a roofline) is at least its price."""
        timing = self._kernels.timing
        if isinstance(timing, Roofline):
            compute_s, memory_s = timing.chunk_compute_s_per_pair, timing.chunk_memory_s_per_token
            program.at_most(0.0, chunk=1)
            if compute_s > 0 and memory_s > 0:  # the larger of two times is at least any mean of them
                program.at_most(1.0, pair=1 / compute_s, chunk_token=1 / memory_s)
            else:
                program.at_most(compute_s, pair=1)
                program.at_most(memory_s, chunk_token=1)
            program.at_most(0.0, chunk_token=-1)
            return
        longest = min(self._kernels.most_context, self._kernels.kv_tokens)
        corners = self._kernels.chunks(longest, steps=False)
        if corners is None:
            program.at_most(0.0, chunk=1)
            program.at_most(0.0, chunk_token=1)
            program.at_most(0.0, pair=1)
            return
        c, x = corners.tokens, corners.context
        program.at_most(corners.seconds, chunk=1, chunk_token=c, pair=c * x + c * (c + 1) / 2)

    def _batches(self, program: PriceProgram, base_s: float, row_s: float) -> None:
        """Rows for batches of C prompt tokens in at most min(C, S − n) chunks and n decodes."""
        kernels = self._kernels

        def linear(at: Numbers) -> Numbers:
            times = kernels.linear(at)
            return base_s + (np.zeros(at.shape) if times is None else times)

        sizes, counts = kernels.tokens_at(), kernels.decodes_at()
        program.at_most(linear(sizes), token=sizes, row=np.minimum(sizes, kernels.max_seqs))
        alone = np.array(sorted({*counts, *sizes[sizes <= kernels.max_seqs]}))
        for n, c in (
            (alone, np.zeros(len(alone))),
            *(
                (others, size - others)
                for size in sizes
                for others in [counts[(counts < size) & (counts < kernels.max_seqs)]]
                if len(others)
            ),
        ):
            chunks = np.minimum(c, kernels.max_seqs - n)
            time_s = linear(n + c) + row_s * n
            corners = kernels.decodes(n)
            if corners is None:
                program.at_most(time_s, token=c, decode=n, row=chunks)
                program.at_most(0.0, context=1)
                continue
            means, attention_s, near = corners
            limit, tokens, number_of, rows = np.broadcast_arrays(
                time_s[:, None] + attention_s, c[:, None], n[:, None], chunks[:, None]
            )
            contexts = n[:, None] * means[None, :]
            program.at_most(
                limit[near],
                token=tokens[near],
                decode=number_of[near],
                context=contexts[near],
                row=rows[near],
            )


def _has_more_chunk_parts(timing: Roofline) -> bool:
    """Whether chunks have other parts than full attention."""
    return bool(timing.windows or timing.states is not None or timing.chunk_compute_s_per_context_token)


class _Above:
    """Prices that cover every full batch."""

    def __init__(self, kernels: Kernels, lengths: Lengths) -> None:
        self._kernels, self._lengths = kernels, lengths

    def solved(self, request: MeanRequest) -> TokenPrices | None:
        """The smallest price of a request; None if none is known."""
        host = self._kernels.host
        base_s, row_s = (0.0, 0.0) if host.overlapped else (host.base_s, host.per_sequence_s)
        program = PriceProgram()
        if not self._chunks(program) or not self._batches(program, base_s, row_s):
            return None
        if host.overlapped:
            self._host(program)
        program.at_most(0.0, token=-1, chunk_token=-1)
        unknowns = program.least(_costs(request), free=(TOKEN, CHUNK_TOKEN), strict=1.0)
        if unknowns is None:
            return None
        prices = _prices(unknowns, row_s, float("inf"))
        return prices if _sum(prices, request) > 0 else None

    def longest_s(self) -> float | None:
        """The longest iteration."""
        kernels, host = self._kernels, self._kernels.host
        linear, decodes = kernels.linear(kernels.tokens_at()), kernels.decodes(kernels.decodes_at())
        program = PriceProgram()
        if linear is None or decodes is None or not self._chunks(program, of_prompts=False):
            return None
        _, attention_s, near = decodes
        rows, tokens = kernels.max_seqs, kernels.budget
        costs = [0.0, 0.0, 0.0, 0.0, rows, tokens, tokens * (kernels.most_context + 1)]
        unknowns = program.least(costs, free=(), strict=1.0)
        if unknowns is None:
            return None
        of_chunks_s = sum(cost * float(price) for cost, price in zip(costs, unknowns, strict=True))
        kernels_s = float(linear.max() + attention_s[near].max()) + of_chunks_s
        host_s = host.base_s + host.per_sequence_s * rows
        return max(kernels_s, host_s) if host.overlapped else kernels_s + host_s

    def _chunks(self, program: PriceProgram, of_prompts: bool = True) -> bool:
        """The attention of a chunk is at most its price."""
        kernels, timing = self._kernels, self._kernels.timing
        # Only recomputation makes a chunk longer than a prompt, and only if memory runs short.
        longest = kernels.most_context
        if of_prompts:
            longest = min(self._lengths.most(lambda s, o: s + 0 * o), longest)
        most = min(kernels.budget, longest)
        if isinstance(timing, Roofline) and _has_more_chunk_parts(timing):
            self._all_chunk_parts(program, timing, most, longest)
            return True
        if isinstance(timing, Roofline):
            program.at_most(-timing.chunk_compute_s_per_pair, pair=-1)
            program.at_most(0.0, chunk_token=-1)
            memory_s = timing.chunk_memory_s_per_token
            tokens = _steps_up_to(most)
            c, x = np.broadcast_arrays(tokens[:, None], np.array([[0.0, longest - 1]]))
            c, x, seconds = c.ravel(), x.ravel(), memory_s * (x + c).ravel()
        else:
            corners = kernels.chunks(longest, steps=True)
            if corners is None:
                return False
            # The shared part of chunks counts for each chunk, which keeps the upper bound valid.
            seconds = corners.seconds + timing.chunk.shared_s
            c, x = corners.tokens, corners.context
        # c² ≥ (low + high)·c − ((low + high)/2)² between low and high: the tangent in the middle.
        points = np.unique(c)
        for near, far in ((points[:-1], points[1:]), (points[1:], points[:-1])):
            for here, other in zip(near, far, strict=True):
                at = c == here
                middle = (here + other) / 2
                squares = (here + other) * here - middle * middle
                pairs = c[at] * x[at] + (squares + c[at]) / 2
                program.at_most(-seconds[at], chunk=-1, chunk_token=-c[at], pair=-pairs)
        if len(points) == 1:
            program.at_most(-seconds, chunk=-1, chunk_token=-c, pair=-(c * x + c * (c + 1) / 2))
        return True

    def _all_chunk_parts(self, program: PriceProgram, timing: Roofline, most: float, longest: float) -> None:
        """The sum of computing and reading in all parts covers their larger times.

        No window has more pairs, or reads more tokens, than full attention.
        """
        states = timing.states
        compute_s = timing.chunk_compute_s_per_pair
        compute_s += sum(window.chunk_compute_s_per_pair for window in timing.windows)
        memory_s = timing.chunk_memory_s_per_token
        memory_s += sum(window.chunk_memory_s_per_token for window in timing.windows)
        token_s, chunk_s = (
            (states.s_per_chunk_token, states.s_per_chunk) if states is not None else (0.0, 0.0)
        )
        program.at_most(-compute_s, pair=-1)
        program.at_most(0.0, chunk_token=-1)
        c = np.array([1.0, 1.0, most, most])
        x = np.array([0.0, longest - 1, 0.0, longest - 1])
        context_s = memory_s + timing.chunk_compute_s_per_context_token
        seconds = chunk_s + (memory_s + token_s) * c + context_s * x
        program.at_most(-seconds, chunk=-1, chunk_token=-c)

    def _batches(self, program: PriceProgram, base_s: float, row_s: float) -> bool:
        """Rows for full batches and for full sequence slots, with at most one chunk that ends no prompt."""
        kernels = self._kernels
        budget, max_seqs = kernels.budget, kernels.max_seqs
        sizes, counts = kernels.tokens_at(), kernels.decodes_at()
        linear_s = kernels.linear(sizes)
        if linear_s is None or kernels.decodes(counts) is None:
            return False

        def paid(n: Numbers, size: float, *, cut: bool, ended: Numbers) -> None:
            """Batches of a size with n decodes, of which `ended` prompts finish."""
            at = kernels.linear(np.array([size]))
            corners = kernels.decodes(n)
            assert at is not None
            assert corners is not None
            means, attention_s, near = corners
            time_s = base_s + float(at[0]) + row_s * (n + (1 if cut else 0))
            limit, tokens, number_of, rows = np.broadcast_arrays(
                time_s[:, None] + attention_s, (size - n)[:, None], n[:, None], ended[:, None]
            )
            contexts = n[:, None] * means[None, :]
            program.at_most(
                -limit[near],
                token=-tokens[near],
                decode=-number_of[near],
                context=-contexts[near],
                row=-rows[near],
                chunk=1.0 if cut else 0.0,
            )

        full_s = base_s + float(linear_s[sizes == budget][0])
        program.at_most(-full_s - row_s, token=-budget, chunk=1)
        others = counts[counts <= min(max_seqs - 1, budget - 1)]
        if len(others):
            paid(others, budget, cut=True, ended=np.zeros(len(others)))
        if max_seqs == budget:
            paid(np.array([budget]), budget, cut=False, ended=np.zeros(1))
        else:
            for size in sizes[sizes >= max_seqs]:
                at = kernels.linear(np.array([size]))
                assert at is not None
                program.at_most(-(base_s + float(at[0])), token=-size, row=-max_seqs)
                some = counts[counts <= max_seqs - 1]
                if len(some):
                    paid(some, float(size), cut=False, ended=max_seqs - some)
            paid(np.array([max_seqs]), float(max_seqs), cut=False, ended=np.zeros(1))
        return True

    def _host(self, program: PriceProgram) -> None:
        """An overlapped host alone takes no longer than the price of the same batches."""
        host, budget, max_seqs = self._kernels.host, self._kernels.budget, self._kernels.max_seqs
        base_s, row_s = host.base_s, host.per_sequence_s
        program.at_most(-row_s, row=-1, chunk=-1)
        for n in sorted({0.0, min(max_seqs, budget)}):
            program.at_most(
                -(base_s + row_s * (n + 1)), token=-(budget - n), chunk_token=-(budget - n), decode=-n
            )
        for n in (0.0, max_seqs):
            program.at_most(
                -(base_s + row_s * max_seqs),
                token=-(max_seqs - n),
                chunk_token=-(max_seqs - n),
                row=-(max_seqs - n),
                chunk=-(max_seqs - n),
                decode=-n,
            )


def _steps_up_to(most: float) -> Numbers:
    """The numbers 1, …, most in steps of a small ratio."""
    return in_steps(np.array(sorted({1.0, most})))


def _prices(unknowns: Numbers, row_s: float, budget: float) -> TokenPrices:
    """Prices from the unknowns; rounding keeps none below 0."""
    return TokenPrices(
        token_s=max(0.0, float(unknowns[TOKEN] + unknowns[CHUNK_TOKEN])),
        decode_s=max(0.0, float(unknowns[DECODE])),
        context_s=max(0.0, float(unknowns[CONTEXT])),
        chunk_s=max(0.0, float(row_s + unknowns[ROW] + unknowns[CHUNK])),
        pair_s=max(0.0, float(unknowns[PAIR])),
        budget=budget,
    )
