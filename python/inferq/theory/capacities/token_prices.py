"""Prices of what a request asks for, at least and at most, where iterations are measured.

Tables and rooflines have no length of an iteration by its tokens alone. Prices stand in for it: so much for a
token of a prompt, for a decode, for a token of its context, for a chunk, for a pair of tokens of a prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from inferq._lazy import np, optimize
from inferq.systems.engine import Engine
from inferq.systems.overhead import Overhead
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


MOST_TOKENS_OF_A_BATCH = 2.0**40
"""Where a policy has no budget: as the core has it, more than any batch holds."""
MOST_CONTEXT = 2.0**31
"""No request is longer."""
_STEP = 1.1
"""Numbers of decodes are looked at in steps of this ratio where the cache may be full."""
_RATIO = 1.25
"""Chunks are looked at in steps of this ratio where a square of them is put between two lines."""


@dataclass(frozen=True, slots=True, eq=False)
class Chunks:
    """Chunks at the corners of a grid: (tokens, context) and the time of each."""

    tokens: Numbers
    context: Numbers
    seconds: Numbers


@dataclass(frozen=True, slots=True, eq=False)
class Kernels:
    """The parts of an iteration as functions that are straight between the points of their axes.

    An iteration of τ tokens, n of them decodes of mean context m, takes linear(τ) + decode(n, m) + Σ chunks
    beside the host. `None` for a part that falls below 0 somewhere within reach, where it is cut: then from
    below it counts 0, and from above nothing is said.
    """

    budget: float
    """b, or more tokens than any batch holds."""
    seats: float
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
    def of(cls, engine: Engine, lengths: Lengths) -> Kernels:
        """Those of an engine with a table or a roofline, as far as requests of these lengths can reach."""
        timing = engine.timing
        assert isinstance(timing, (TimingTable, Roofline))
        budget = float(engine.scheduler.budget() or MOST_TOKENS_OF_A_BATCH)
        seats = min(float(engine.scheduler.seats() or budget), budget)
        kv = engine.kv
        kv_tokens = float("inf") if kv.whole_tokens is None else float(kv.whole_tokens)
        longest = min(lengths.most(lambda s, o: s + o), kv_tokens, MOST_CONTEXT)
        if isinstance(timing, TimingTable):
            points: Sequence[int | float] = timing.linear.tokens
            linear_s, decode = timing.linear.seconds, timing.decode
            rows, columns, decode_s = decode.sequences, decode.mean_context, decode.seconds
        else:
            points, linear_s = _roof(timing, budget)
            each_s = max(timing.decode_compute_s_per_token, timing.decode_memory_s_per_token)
            rows, columns = (1, 2), (0, 1)
            decode_s = [[n * (m + 1) * each_s for m in columns] for n in rows]
        return cls(
            budget=budget,
            seats=seats,
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
        """Can decodes on all seats, each at its longest, hold more than the cache?"""
        return self.seats * self.most_context > self.kv_tokens

    def tokens_at(self) -> Numbers:
        """Where the line of the linear layers bends, from 1 to b, with S."""
        return _within(self.linear_points, 1, self.budget, self.seats)

    def decodes_at(self) -> Numbers:
        """Where the decodes bend along their number, from 1 to S, with S − 1, the most beside a chunk.

        In small steps where the cache may be full: between two of them it is taken to hold what it can beside
        the fewer.
        """
        found = _within(self.decode_rows, 1, self.seats, self.seats - 1)
        return in_steps(found, _STEP) if self.may_be_full else found

    def linear(self, tokens: Numbers) -> Numbers | None:
        """The linear layers; None where they fall below 0 within reach."""
        points = np.asarray(self.linear_points, dtype=float)
        values = np.asarray(self.linear_s, dtype=float)
        if (_line(points, values, self.tokens_at()) < 0).any():
            return None
        return _line(points, values, tokens)

    def decodes(self, count: Numbers) -> tuple[Numbers, Numbers, Flags] | None:
        """The mean contexts to look at, the times of n decodes by them, and which corners are to be judged.

        Contexts fit the cache: between two numbers of decodes, n ≤ n', batches have mean contexts of at most
        (tokens of the cache)/n, which stand among those to look at.
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
        """A chunk of a table, less what chunks share, at the corners of cells; None where it falls below 0.

        Args:
            longest: most tokens of a chunk and its context together.
            steps: cut the cells along the chunk into steps of a small ratio.
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
        held = before <= longest
        c, x = np.broadcast_arrays(tokens[:, None], contexts[None, :])
        return Chunks(c[held], x[held], times[held])


def _roof(timing: Roofline, budget: float) -> tuple[list[float], list[float]]:
    """What a roofline takes for everything but attention, at 1 token, where it bends, and at the budget."""
    slope_s = timing.linear_flops_s_per_token - timing.linear_activation_s_per_token
    bend = timing.linear_weight_s / slope_s if slope_s > 0 else 0.0
    points = sorted({1.0, max(2.0, budget), *((bend,) if 1 < bend < budget else ())})

    def seconds(tokens: float) -> float:
        computed_s = timing.linear_flops_s_per_token * tokens
        read_s = timing.linear_weight_s + timing.linear_activation_s_per_token * tokens
        exchanged_s = timing.all_reduce_latency_s + timing.all_reduce_s_per_token * tokens
        return timing.base_s + exchanged_s + max(computed_s, read_s)

    return points, [seconds(tokens) for tokens in points]


def _within(points: Sequence[int | float], low: float, high: float, *more: float) -> Numbers:
    """The points between two ends, with the ends, and further ones that lie between them."""
    return np.array(sorted({low, high, *(float(at) for at in (*points, *more) if low <= at <= high)}))


def in_steps(points: Numbers, ratio: float = _RATIO) -> Numbers:
    """The points with others between them, so that none is more than `ratio` times the one before."""
    import math

    pieces = [points[:1]]
    for low, high in pairwise(points):
        pieces.append(np.geomspace(low, high, 2 + int(math.log(high / low) / math.log(ratio)))[1:])
    return np.concatenate(pieces)


def _line(points: Numbers, values: Numbers, at: Numbers) -> Numbers:
    """Straight lines from point to point, the first and the last going on; along the first axis."""
    place = np.clip(np.searchsorted(points, at, side="right") - 1, 0, len(points) - 2)
    share = (at - points[place]) / (points[place + 1] - points[place])
    share = share.reshape(-1, *([1] * (values.ndim - 1)))
    low, high = values[place], values[place + 1]
    found: Numbers = low + share * (high - low)
    return found


_NAMES = ("token", "decode", "context", "row", "chunk", "chunk_token", "pair")
"""Unknowns: for a prompt token and for a chunk what linear layers and seats ask, then what chunks ask."""
TOKEN, DECODE, CONTEXT, ROW, CHUNK, CHUNK_TOKEN, PAIR = range(len(_NAMES))
_FIRST_ROWS, _MORE_ROWS = 500, 100
"""Rows that a program begins with, and those that it gains at once."""
_FAR = 1e6
"""Bounds of an unknown in its own unit, which a solution does not come near."""
_TOLERANCE = 1e-7
"""Share of its limit by which a row may be broken before all unknowns are stretched."""


class PriceProgram:
    """Rows of a linear program: Σ coefficient·unknown ≤ limit."""

    def __init__(self) -> None:
        self._rows: list[Numbers] = []
        self._limits: list[Numbers] = []

    def at_most(self, limit: Any, **coefficients: Any) -> None:
        """Rows, one for each number of the arrays that are given."""
        given = np.broadcast_arrays(
            *(np.asarray(one, dtype=float) for one in (limit, *coefficients.values()))
        )
        rows = np.zeros((given[0].size, len(_NAMES)))
        for name, values in zip(coefficients, given[1:], strict=True):
            rows[:, _NAMES.index(name)] = values.ravel()
        self._rows.append(rows)
        self._limits.append(given[0].ravel())

    def least(self, costs: Sequence[float], *, free: Sequence[int], strict: float) -> Numbers | None:
        """The unknowns with the least costs; None where there is no solution.

        Args:
            costs: of each unknown.
            free: unknowns that may be below 0.
            strict: the sign in which all unknowns are stretched until every row with a limit is kept for
                certain: the solver keeps rows to within its tolerance.
        """
        rows, limits = np.concatenate(self._rows), np.concatenate(self._limits)
        limited = limits != 0
        if not limited.any():
            return np.zeros(len(_NAMES))
        # Seconds, tokens and pairs differ by many powers of ten: a row is measured by its limit, an unknown
        # by the largest factor that it then has.
        rows[limited] /= np.abs(limits[limited])[:, None]
        signs = np.sign(limits)
        unit = np.abs(rows[limited]).max(axis=0)
        unit[unit == 0] = 1.0
        rows /= unit
        heights = np.abs(rows[~limited]).max(axis=1)
        rows[~limited] /= np.where(heights > 0, heights, 1.0)[:, None]
        scaled = np.asarray(costs) / unit
        scaled /= np.abs(scaled).max() or 1.0
        box = [(-_FAR if place in free else 0.0, _FAR) for place in range(len(_NAMES))]
        # Few rows decide: some to begin with, then those that are most broken, until none is.
        kept = ~limited
        kept[:: max(1, len(rows) // _FIRST_ROWS)] = True
        while True:
            found = optimize.linprog(scaled, A_ub=rows[kept], b_ub=signs[kept], bounds=box, method="highs")
            if found.x is None or found.status != 0:
                return None
            beyond = rows @ found.x - signs
            broken = np.flatnonzero((beyond > _TOLERANCE) & ~kept)
            if not len(broken):
                break
            kept[broken[np.argsort(beyond[broken])[-_MORE_ROWS:]]] = True
        if np.abs(found.x).max() > _FAR / 2:
            return None
        widest = max(0.0, float(beyond[limited].max()))
        stretched: Numbers = found.x / unit * (1 + strict * widest)
        return stretched
