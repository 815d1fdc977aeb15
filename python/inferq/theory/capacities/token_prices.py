"""Prices of what a request asks for, at least and at most, where iterations are measured.

Tables and rooflines have no length of an iteration by its tokens alone. Prices stand in for it: so much for a
token of a prompt, for a decode, for a token of its context, for a chunk, for a pair of tokens of a prompt.
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
    """What a mean request brings: the numbers that prices are for."""

    prompt: float
    """Tokens of its prompt."""
    decodes: float
    contexts: float
    """Sum of the contexts of its decodes."""
    chunks: float
    """Chunks of its prompt."""
    pairs: float
    """Pairs of a prompt token and one that it attends to: s(s + 1)/2, however the prompt is cut."""


@dataclass(frozen=True, slots=True)
class TokenPrices:
    """Seconds for what a request brings.

    **From below.** Let T(B) ≥ a·C + d·n + e·X + g·k + p·P for every batch B that can be: C prompt tokens in k
    chunks with P pairs, n decodes whose contexts sum to X; C + n ≤ b, k + n ≤ S, X ≤ M. Summed over the
    iterations of a long run, time is at least what all requests are asked for, s of C, ⌈s/b⌉ of k at least,
    s(s + 1)/2 of P whatever the cuts, and one decode for each further token with its context. Recomputing
    after a preemption replaces at most one decode at context x by x + 1 prompt tokens; prices with a·(x + 1)
    + g ≥ d + e·x for x from the shortest prompt on make that no cheaper. So no policy passes one request for
    each such sum, whatever the prices: the best ones are those of a linear program.

    **From above.** Let a policy fill its budget whenever it has requests, seats and memory. While more wait
    than have a seat, an iteration is full, C + n = b, and at most one chunk, the last, leaves its prompt
    unfinished; or all S seats are taken and each one moves, k + n = S, every prompt to its end. Let
    T(B) ≤ a·C + d·n + e·X + g·(prompts finished) + p·P for all of these. Then what is still to pay for all
    requests in the system falls by at least a second a second while any of them has to wait, and the system
    is stable where λ times the price of a request is below 1, by the drift argument of li2025 Appendix B.

    That a bound holds for all batches is tested at corners. Without the square of a chunk everything is
    bilinear in cells: for a fixed mean context linear in C and n between the lines C + n = (point of the
    table, S, b) and n = (point, S − 1, S), for fixed C and n linear in the mean context. So the extremes over
    a cell are at its corners. Of a chunk of c tokens at context x the pairs are c·x + c(c + 1)/2: from below
    what is left is concave along c, and corners suffice; from above c² is replaced by its tangent in the
    middle of steps of a ratio of 1.25. Slopes of the core are rounded to the attosecond; that is left out.
    What the host adds is in T: `base_s` a constant, `per_sequence_s` for each row, the longer of both where
    it is overlapped.

    Source: our own; for times by tokens alone it is li2025 Theorem 1 and `seats_capacity`.
    """

    token_s: float
    decode_s: float
    context_s: float
    chunk_s: float
    pair_s: float
    budget: float
    """Tokens of a largest chunk from below; infinite where every prompt pays for one chunk."""

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
        """The numbers of a bound in a line."""
        asked = _mean_request(lengths, first_token, self.budget, hits)
        sum_s = self.request_s(lengths, first_token, hits)
        return (
            f"{kind}: {number(asked.prompt)} prompt tokens at {number(self.token_s)} s, "
            f"{number(asked.decodes)} decodes at {number(self.decode_s)} s, their contexts of "
            f"{number(asked.contexts)} tokens at {number(self.context_s)} s, {number(asked.chunks)} chunks "
            f"at {number(self.chunk_s)} s, {number(asked.pairs)} pairs of prompt tokens at "
            f"{number(self.pair_s)} s are {number(sum_s)} s a request; {replicas} / {number(sum_s)} = "
            f"{number(replicas / sum_s)} per second"
        )


def least_prices(
    engine: Engine,
    lengths: Lengths,
    first_token: FirstToken,
    *,
    seats: bool,
    memory: bool,
    only: Literal["prompts", "decodes"] | None = None,
    hits: PrefixHits | None = None,
) -> TokenPrices | None:
    """Prices that no batch undercuts, those that make the requests the dearest; None if all are 0.

    Args:
        engine: with a table or a roofline.
        lengths: of the requests.
        first_token: how the first token is counted.
        seats: does the limit on requests that run at once count?
        memory: do the contexts of a batch have to fit the cache?
        only: the half of a request that counts: what the other half brings is not asked.
        hits: what prefix caches find; None: nothing. Requests that share blocks may have contexts of more
            tokens than the cache has, so that `memory` says nothing of their sum.
    """
    kernels = Kernels.of(engine, lengths)
    if not seats:
        kernels = replace(kernels, seats=kernels.budget)
    if not memory:
        kernels = replace(kernels, kv_tokens=float("inf"))
    wanted = _mean_request(lengths, first_token, kernels.budget, hits)
    if only == "prompts":
        wanted = replace(wanted, decodes=0.0, contexts=0.0)
    elif only == "decodes":
        wanted = replace(wanted, prompt=0.0, chunks=0.0, pairs=0.0)
    from_below = _Below(kernels, lengths)
    found = from_below.solved(
        wanted, not engine.scheduler.is_user_defined() and not finds_its_own(engine, lengths)
    )
    if kernels.host.overlapped:  # the longer of both is at least either
        alone = from_below.host_alone(wanted)
        if found is None or (alone is not None and _sum(alone, wanted) > _sum(found, wanted)):
            found = alone
    if found is None or only is None:
        return found
    # What the other half brings would only add.
    rest = dict.fromkeys(
        ("decode_s", "context_s") if only == "prompts" else ("token_s", "chunk_s", "pair_s"), 0.0
    )
    return replace(found, **rest)


def sure_prices(engine: Engine, lengths: Lengths, first_token: FirstToken) -> TokenPrices | None:
    """Prices that pay for every saturated batch, the least for these lengths; None where none are known."""
    return _Above(Kernels.of(engine, lengths), lengths).solved(
        _mean_request(lengths, first_token, float("inf"))
    )


def longest_iteration_s(engine: Engine, lengths: Lengths, *, shared: bool = False) -> float | None:
    """No iteration of an engine with a budget is longer; None where that is not known.

    The linear layers, the decodes and all chunks together each at their longest: min(S, b) chunks of b tokens
    in all that attend to no more than the largest request has. The contexts of decodes fit the cache, but
    where they are `shared`.
    """
    kernels = Kernels.of(engine, lengths)
    if shared:
        kernels = replace(kernels, kv_tokens=float("inf"))
    return _Above(kernels, lengths).longest_s()


def has_prices(timing: TimingModel) -> bool:
    """Is a model one of those whose batches are priced at their corners?"""
    return isinstance(timing, (TimingTable, Roofline))


def cache_may_fill(engine: Engine, lengths: Lengths) -> bool:
    """Can decodes on all seats, each at its longest, hold more than the cache?"""
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


def _sum(prices: TokenPrices, asked: MeanRequest) -> float:
    return (
        prices.token_s * asked.prompt
        + prices.decode_s * asked.decodes
        + prices.context_s * asked.contexts
        + prices.chunk_s * asked.chunks
        + prices.pair_s * asked.pairs
    )


def _costs(asked: MeanRequest) -> list[float]:
    """What each unknown counts for in the price of a request."""
    token, chunk = asked.prompt, asked.chunks
    return [token, asked.decodes, asked.contexts, chunk, chunk, token, asked.pairs]


class _Below:
    """Prices that no batch undercuts."""

    def __init__(self, kernels: Kernels, lengths: Lengths) -> None:
        self._kernels, self._lengths = kernels, lengths

    def solved(self, asked: MeanRequest, decodes_are_decodes: bool) -> TokenPrices | None:
        """The dearest for what is asked."""
        kernels = self._kernels
        host = (0.0, 0.0) if kernels.host.overlapped else (kernels.host.base_s, kernels.host.per_sequence_s)
        program = PriceProgram()
        self._chunks(program)
        self._batches(program, *host)
        return self._best(program, asked, host[1], decodes_are_decodes)

    def host_alone(self, asked: MeanRequest) -> TokenPrices | None:
        """The same for the time of the host: `base_s` and `per_sequence_s` for each of at most S rows."""
        host = self._kernels.host
        row_s = host.per_sequence_s + host.base_s / self._kernels.seats
        # A recomputed decode becomes a row of a chunk, which costs as much.
        prices = TokenPrices(0.0, row_s, 0.0, row_s, 0.0, self._kernels.budget)
        return prices if _sum(prices, asked) > 0 else None

    def _best(
        self, program: PriceProgram, asked: MeanRequest, row_s: float, decodes_are_decodes: bool
    ) -> TokenPrices | None:
        program.at_most(0.0, token=-1, chunk_token=-1)
        program.at_most(row_s, row=-1, chunk=-1)
        # Recomputing x + 1 tokens is no cheaper than a decode at context x ≥ the shortest prompt.
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
        costs = [-cost for cost in _costs(asked)]
        unknowns = program.least(costs, free=(TOKEN, CHUNK, CHUNK_TOKEN), strict=-1.0)
        if unknowns is None:
            return None
        prices = _prices(unknowns, row_s, self._kernels.budget)
        return prices if _sum(prices, asked) > 0 else None

    def _chunks(self, program: PriceProgram) -> None:
        """The attention of each chunk, or of all chunks of a roofline, is at least what it is priced."""
        timing = self._kernels.timing
        if isinstance(timing, Roofline):
            compute_s, memory_s = timing.chunk_compute_s_per_pair, timing.chunk_memory_s_per_token
            program.at_most(0.0, chunk=1)
            if compute_s > 0 and memory_s > 0:  # the larger of two is at least any mean of them
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
        """All else, of batches of C prompt tokens in at most min(C, S − n) chunks and n decodes."""
        kernels = self._kernels

        def linear(at: Numbers) -> Numbers:
            found = kernels.linear(at)
            return base_s + (np.zeros(at.shape) if found is None else found)

        sizes, counts = kernels.tokens_at(), kernels.decodes_at()
        program.at_most(linear(sizes), token=sizes, row=np.minimum(sizes, kernels.seats))
        alone = np.array(sorted({*counts, *sizes[sizes <= kernels.seats]}))
        for n, c in (
            (alone, np.zeros(len(alone))),
            *(
                (beside, size - beside)
                for size in sizes
                for beside in [counts[(counts < size) & (counts < kernels.seats)]]
                if len(beside)
            ),
        ):
            chunks = np.minimum(c, kernels.seats - n)
            time_s = linear(n + c) + row_s * n
            given = kernels.decodes(n)
            if given is None:
                program.at_most(time_s, token=c, decode=n, row=chunks)
                program.at_most(0.0, context=1)
                continue
            means, attention_s, near = given
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


class _Above:
    """Prices that pay for every saturated batch."""

    def __init__(self, kernels: Kernels, lengths: Lengths) -> None:
        self._kernels, self._lengths = kernels, lengths

    def solved(self, asked: MeanRequest) -> TokenPrices | None:
        """The least for what is asked; None where none are known."""
        host = self._kernels.host
        base_s, row_s = (0.0, 0.0) if host.overlapped else (host.base_s, host.per_sequence_s)
        program = PriceProgram()
        if not self._chunks(program) or not self._batches(program, base_s, row_s):
            return None
        if host.overlapped:
            self._host(program)
        program.at_most(0.0, token=-1, chunk_token=-1)
        found = program.least(_costs(asked), free=(TOKEN, CHUNK_TOKEN), strict=1.0)
        if found is None:
            return None
        prices = _prices(found, row_s, float("inf"))
        return prices if _sum(prices, asked) > 0 else None

    def longest_s(self) -> float | None:
        """The longest iteration."""
        kernels, host = self._kernels, self._kernels.host
        linear, decodes = kernels.linear(kernels.tokens_at()), kernels.decodes(kernels.decodes_at())
        program = PriceProgram()
        if linear is None or decodes is None or not self._chunks(program, of_prompts=False):
            return None
        _, attention_s, near = decodes
        rows, tokens = kernels.seats, kernels.budget
        costs = [0.0, 0.0, 0.0, 0.0, rows, tokens, tokens * (kernels.most_context + 1)]
        found = program.least(costs, free=(), strict=1.0)
        if found is None:
            return None
        of_chunks_s = sum(cost * float(price) for cost, price in zip(costs, found, strict=True))
        kernels_s = float(linear.max() + attention_s[near].max()) + of_chunks_s
        host_s = host.base_s + host.per_sequence_s * rows
        return max(kernels_s, host_s) if host.overlapped else kernels_s + host_s

    def _chunks(self, program: PriceProgram, of_prompts: bool = True) -> bool:
        """The attention of a chunk is at most what it is priced."""
        kernels, timing = self._kernels, self._kernels.timing
        # Only recomputing makes a chunk of more than a prompt, and only where memory runs short.
        longest = kernels.most_context
        if of_prompts:
            longest = min(self._lengths.most(lambda s, o: s + 0 * o), longest)
        most = min(kernels.budget, longest)
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
            # What the chunks share is counted for each: from above that is no error.
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

    def _batches(self, program: PriceProgram, base_s: float, row_s: float) -> bool:
        """All else, and one chunk that does not end its prompt, of full batches and of full seats."""
        kernels = self._kernels
        budget, seats = kernels.budget, kernels.seats
        sizes, counts = kernels.tokens_at(), kernels.decodes_at()
        linear_s = kernels.linear(sizes)
        if linear_s is None or kernels.decodes(counts) is None:
            return False

        def paid(n: Numbers, size: float, *, cut: bool, ended: Numbers) -> None:
            """Batches of a size with n decodes, and `ended` prompts that come to their end."""
            at = kernels.linear(np.array([size]))
            given = kernels.decodes(n)
            assert at is not None
            assert given is not None
            means, attention_s, near = given
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
        beside = counts[counts <= min(seats - 1, budget - 1)]
        if len(beside):
            paid(beside, budget, cut=True, ended=np.zeros(len(beside)))
        if seats == budget:
            paid(np.array([budget]), budget, cut=False, ended=np.zeros(1))
        else:
            for size in sizes[sizes >= seats]:
                at = kernels.linear(np.array([size]))
                assert at is not None
                program.at_most(-(base_s + float(at[0])), token=-size, row=-seats)
                some = counts[counts <= seats - 1]
                if len(some):
                    paid(some, float(size), cut=False, ended=seats - some)
            paid(np.array([seats]), float(seats), cut=False, ended=np.zeros(1))
        return True

    def _host(self, program: PriceProgram) -> None:
        """The host alone takes no longer than the same batches pay for, where it is overlapped."""
        host, budget, seats = self._kernels.host, self._kernels.budget, self._kernels.seats
        base_s, row_s = host.base_s, host.per_sequence_s
        program.at_most(-row_s, row=-1, chunk=-1)
        for n in sorted({0.0, min(seats, budget)}):
            program.at_most(
                -(base_s + row_s * (n + 1)), token=-(budget - n), chunk_token=-(budget - n), decode=-n
            )
        for n in (0.0, seats):
            program.at_most(
                -(base_s + row_s * seats),
                token=-(seats - n),
                chunk_token=-(seats - n),
                row=-(seats - n),
                chunk=-(seats - n),
                decode=-n,
            )


def _steps_up_to(most: float) -> Numbers:
    """1, …, most in steps of a small ratio."""
    return in_steps(np.array(sorted({1.0, most})))


def _prices(found: Numbers, row_s: float, budget: float) -> TokenPrices:
    """The prices that the unknowns add up to; rounding keeps none below 0."""
    return TokenPrices(
        token_s=max(0.0, float(found[TOKEN] + found[CHUNK_TOKEN])),
        decode_s=max(0.0, float(found[DECODE])),
        context_s=max(0.0, float(found[CONTEXT])),
        chunk_s=max(0.0, float(row_s + found[ROW] + found[CHUNK])),
        pair_s=max(0.0, float(found[PAIR])),
        budget=budget,
    )
