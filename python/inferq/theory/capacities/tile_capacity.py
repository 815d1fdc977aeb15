"""Capacity of tiled matrix products: request time if no tile is wasted."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from inferq._lazy import np
from inferq.checks import MOST_COUNT, whole
from inferq.errors import ConfigError
from inferq.scheduler import Rad, RadPhased, Scheduler
from inferq.systems.engine import Engine
from inferq.theory.capacities.iteration_cost import adds_time
from inferq.theory.demands.demand import Demand, WorkloadLike
from inferq.theory.demands.hits import COUNTED_IN_FULL, no_hits
from inferq.theory.demands.lengths import FirstToken, Lengths, first_token_of, with_prompt
from inferq.theory.statement import Hypothesis, Statement, hypotheses_text, number
from inferq.timing import TiledGemm

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class TileCapacity(Statement):
    """The capacity of replicas whose iteration time counts tiles.

    RAD uses the same tiles for every request, whatever else runs, except at the end of a cycle, when fewer
    requests decode than a tile has columns. So a replica needs between T^R (`request_s`) and
    T^R + `cycle_end_s` / `requests_per_cycle` seconds per request, which decides its stability. Every
    scheduler needs at least `least_s`.

    Source: bari2025 Theorem 1 (T^R) and Theorem 2. Deviations:

        - The first token is computed with the prompt (Definition 1), so an output of o tokens takes o − 1
          decodes. T^R as printed counts o; that is `first_token="decode"`.
        - T^R as printed assumes prompts in whole tiles (Assumption 3). Here prompts of any length use the
          tiles that RAD really computes, with a shorter last chunk. Both agree under the assumption.
        - T^R is *not* a bound for every scheduler, contrary to Theorem 1, unless `columns` is the least
          common multiple of the tile. In (7) a chunk attends to all of its own tokens. So chunks of `columns`
          tokens are cheaper than chunks of lcm(`rows`, `columns`, `reduction`), with the same tiles in the
          linear layers; the proof takes the latter as the cheapest. `least_s` is the bound that follows from
          (7): chunks of at most `columns` tokens, the shorter one first.
        - Theorem 2 requires n > (t_col − 1)·T^max / (ε·T^R) requests per cycle
          (`requests_per_cycle_theorem`). The end of a cycle lasts at most as long as the longest output and
          wastes less than one tile per iteration, so far fewer are enough (`requests_per_cycle_enough`).
        - Algorithm 2 (`RadPhased`) holds all prompts of a cycle, more than the memory for t_col requests of
          Assumption 4.

    `timing`, `engines`, `chunk_tokens`, `requests_per_cycle`, `request_s`, `longest_request_s` are the tile
    costs, r, t_lcm, n, T^R and T^max of the paper.

    Example:
        >>> import inferq as iq
        >>> timing = iq.research.TiledGemm(
        ...     rows=128, columns=64, reduction=32, width=4096, layers=32,
        ...     linear_s_per_tile=4e-3, other_s_per_token=1e-6, gemm_s=2e-9, gemv_s=8e-9,
        ... )
        >>> chat = iq.theory.RequestClass(rate=3.0, prompt=2048, output=257)
        >>> limit = iq.theory.tile_capacity(chat, timing)
        >>> round(limit.capacity_per_s, 3), round(limit.load, 3), limit.stable
        (3.373, 0.89, True)
    """

    source: ClassVar[str] = "bari2025 Theorems 1 and 2"

    policy: str
    """The scheduler; `"Rad"` without an engine."""
    timing: TiledGemm
    first_token: FirstToken
    rate: float | None
    """λ, total requests per second; None if unknown."""
    engines: int
    """r, replicas with equal shares of the requests."""
    prompt_tokens_mean: float
    decode_tokens_mean: float
    """Mean number of decodes of a request."""
    chunk_tokens: int
    """Tokens of a chunk under RAD."""
    decodes_together: int
    """Decodes of a full iteration under RAD."""
    requests_per_cycle: int | None
    """None: as many as the load requires."""
    prompt_linear_s: float
    """Seconds of a mean request in the linear layers, for the tiles of its prompt's chunks."""
    prompt_attention_s: float
    """Seconds in the attention of its chunks."""
    decode_linear_s: float
    """Seconds in the linear layers, for its part of the full tiles of decodes."""
    decode_attention_s: float
    """Seconds in the attention of its decodes."""
    other_s: float
    """Seconds in everything with a cost per token."""
    least_s: float
    """Least seconds of a mean request under any scheduler that computes each token once."""
    cycle_end_s: float | None
    """Most seconds wasted at the end of a cycle; None for unbounded outputs."""
    longest_request_s: float | None
    """T^max: the longest request, token by token; None for unbounded lengths."""
    hypotheses: tuple[Hypothesis, ...]

    @property
    def request_s(self) -> float:
        """T^R: seconds of a mean request under RAD, without the end of a cycle."""
        prompt_s = self.prompt_linear_s + self.prompt_attention_s
        return prompt_s + self.decode_linear_s + self.decode_attention_s + self.other_s

    @property
    def capacity_per_s(self) -> float:
        """The largest rate at which RAD can be stable (and is, with long cycles): r / T^R."""
        return self.engines / self.request_s

    @property
    def most_per_s(self) -> float:
        """No scheduler is stable above this rate: r / `least_s`."""
        return self.engines / self.least_s

    @property
    def assured_per_s(self) -> float | None:
        """The rate up to which RAD is stable with cycles of this length; None if unknown."""
        if self.requests_per_cycle is None or self.cycle_end_s is None:
            return None
        return self.engines / (self.request_s + self.cycle_end_s / self.requests_per_cycle)

    def work_s(self, s: Any, o: Any) -> Any:
        """Seconds of a request of s prompt and o output tokens under RAD; their mean is r / `assured_per_s`.

        Without a number of requests per cycle, or with unbounded lengths, the mean is r / T^R.
        """
        emitted_before = with_prompt(self.first_token)
        prices = TilePrices(self.timing, self.chunk_tokens, emitted_before)
        each_s = self.decode_linear_s / self.decode_tokens_mean if self.decode_tokens_mean else 0.0
        end_s = (self.cycle_end_s or 0.0) / (self.requests_per_cycle or 1)
        prompt_s = prices.prompt_linear_s(s, o) + prices.prompt_attention_s(s, o)
        decodes_s = (o - emitted_before) * each_s + prices.decode_attention_s(s, o)
        return prompt_s + decodes_s + self.timing.other_s_per_token * (s + o - emitted_before) + end_s

    @property
    def load(self) -> float | None:
        """λ·T^R / r."""
        return None if self.rate is None else self.rate / self.capacity_per_s

    @property
    def requests_per_cycle_enough(self) -> int | None:
        """Requests per cycle that make RAD stable at this rate; None if no number does, or if unbounded."""
        spare = self._spare_s
        if spare is None or self.cycle_end_s is None:
            return None
        return math.floor(self.cycle_end_s / spare) + 1

    @property
    def requests_per_cycle_theorem(self) -> int | None:
        """The same by Theorem 2 as printed, which requires more."""
        spare = self._spare_s
        if spare is None or self.longest_request_s is None:
            return None
        return math.floor((self.decodes_together - 1) * self.longest_request_s / spare) + 1

    @property
    def _spare_s(self) -> float | None:
        """Seconds between two requests of a replica, less T^R; None if nothing is left."""
        if self.rate is None or self.rate >= self.capacity_per_s:
            return None
        spare_s = self.engines / self.rate - self.request_s
        return spare_s if spare_s > 0 else None  # rounding, just below the capacity

    @property
    def stable(self) -> bool | None:
        """Whether this policy is stable at this rate; None if the theorems do not decide."""
        met = {hypothesis.name: hypothesis.met for hypothesis in self.hypotheses}
        if self.rate is None or met[_PATIENCE] is False or COUNTED_IN_FULL in met:
            return None
        if self.rate >= self.most_per_s:
            return False
        if met[_POLICY] is False or met[_TILES] is False:
            return None
        if self.rate >= self.capacity_per_s:
            return False
        if any(met[name] is False for name in (_MEMORY, _BOUNDED, _POISSON, _ROUTING)):
            return None
        return met[_CYCLES] or None

    def explain(self) -> str:
        """The inequality in symbols and in numbers, the conclusion, and the hypotheses."""
        timing = self.timing
        lines = [
            f"{self.source}: RAD is stable if λ·T^R < r, and not if λ·T^R > r",
            f"  iterations: tiles of {timing.rows} × {timing.columns} × {timing.reduction}, width "
            f"{number(timing.width)}, {timing.layers} layers; {number(timing.linear_s_per_tile)} s per tile "
            f"of the linear layers, {number(timing.gemm_s)} s per pair of tiles of a chunk, "
            f"{number(timing.gemv_s)} s of a decode, "
            f"{number(timing.other_s_per_token)} s per token for the rest",
            f"  a mean request: {number(self.prompt_tokens_mean)} prompt tokens in chunks of "
            f"{number(self.chunk_tokens)}, {number(self.decode_tokens_mean)} decodes, "
            f"{self.decodes_together} at a time (first token with the {self.first_token})",
            f"  T^R = prompt {number(self.prompt_linear_s)} (linear) + {number(self.prompt_attention_s)} "
            f"(attention) + decodes {number(self.decode_linear_s)} (linear) + "
            f"{number(self.decode_attention_s)} (attention) + other {number(self.other_s)} "
            f"= {number(self.request_s)} s",
            f"  r / T^R = {self.engines} / {number(self.request_s)} = {number(self.capacity_per_s)} "
            "requests/s",
            f"  every scheduler needs at least {number(self.least_s)} s per request, and serves at most "
            f"{number(self.most_per_s)} requests/s",
        ]
        if self.cycle_end_s is not None:
            cycle = f"  the end of a cycle wastes at most {number(self.cycle_end_s)} s"
            if self.assured_per_s is not None:
                cycle += (
                    f"; with {number(self.requests_per_cycle)} requests per cycle "
                    f"{number(self.assured_per_s)} requests/s are guaranteed"
                )
            lines.append(cycle)
        if self.longest_request_s is not None:
            lines.append(f"  T^max = {number(self.longest_request_s)} s, the longest request token by token")
        if self.rate is not None:
            sign = "<" if self.rate < self.capacity_per_s else "≥"
            lines.append(
                f"  λ·T^R = {number(self.rate)} · {number(self.request_s)} = "
                f"{number(self.rate * self.request_s)} {sign} {self.engines}, a load of {number(self.load)}"
            )
            if self.requests_per_cycle_enough is not None:
                enough = (
                    f"  at this load {number(self.requests_per_cycle_enough)} requests per cycle are enough"
                )
                if self.requests_per_cycle_theorem is not None:
                    enough += f" (Theorem 2 requires {number(self.requests_per_cycle_theorem)})"
                lines.append(enough)
            verdict = {True: "stable", False: "not stable", None: "not decided by the theorems"}[self.stable]
            lines.append(f"{self.policy}: {verdict}")
        return "\n".join([*lines, *hypotheses_text(self.hypotheses)])


_POLICY = "the policy is RAD"
_TILES = "full decodes take the fewest tiles"
_PROMPTS = "prompts fill their chunks"
_BOUND = "every scheduler needs at least T^R"
_PRODUCTS = "decodes cost less in one product"
_MEMORY = "memory slack"
_BOUNDED = "lengths are bounded"
_CYCLES = "cycles are long"
_POISSON = "Poisson arrivals"
_ROUTING = "replicas share evenly"
_PATIENCE = "no abandonment"


def tile_capacity(
    workload: WorkloadLike,
    engine: Engine | TiledGemm,
    *,
    rate: float | None = None,
    requests_per_cycle: int | None = None,
    engines: int = 1,
    first_token: FirstToken | None = None,
) -> TileCapacity:
    """Compute the largest rate if no tile is wasted: λ·T^R < r.

    Args:
        workload: joint distribution of lengths; arrivals may be missing.
        engine: an engine with `TiledGemm` timing, or the timing alone: then the scheduler is RAD with long
            enough cycles and enough memory.
        rate: total requests per second. Default: the rate of the workload.
        requests_per_cycle: n. Default: as configured in the scheduler.
        engines: r, replicas with equal shares of the requests.
        first_token: convention for the first token. Default: as the engine does, else `"prefill"` as in the
            paper's Definition 1.

    Returns:
        T^R with its parts, the limits in requests per second, and the checked hypotheses.

    Raises:
        ConfigError: the timing is not `TiledGemm` or takes no time, a rate is not positive, a number of
            replicas or requests per cycle is below 1, or an argument conflicts with the engine.
        TraceError: a workload without lengths.

    Source: bari2025 Theorems 1 and 2, corrected as described in `TileCapacity`.

    Example:
        >>> import inferq as iq
        >>> timing = iq.research.TiledGemm(
        ...     rows=4, columns=2, reduction=2, width=8, layers=1,
        ...     linear_s_per_tile=1, other_s_per_token=0, gemm_s=0, gemv_s=0,
        ... )
        >>> work = iq.Workload({"prompt_tokens": [4], "output_tokens": [3]})
        >>> limit = iq.theory.tile_capacity(work, timing)
        >>> limit.prompt_linear_s, limit.decode_linear_s, round(limit.capacity_per_s, 3)
        (2.0, 1.0, 0.333)
    """
    timing, scheduler, first_token = _parts(engine, first_token)
    engines = whole("engines", engines, 1, MOST_COUNT)
    policy: Rad | RadPhased | None = scheduler if isinstance(scheduler, (Rad, RadPhased)) else None
    if requests_per_cycle is not None:
        requests_per_cycle = whole("requests_per_cycle", requests_per_cycle, 1, MOST_COUNT)
        if policy is not None:
            raise ConfigError(
                "requests_per_cycle", "is set by the scheduler; use it with a timing model alone"
            )
    elif policy is not None:
        requests_per_cycle = policy.requests_per_cycle
    demand = Demand.of(workload, rate=rate, needs_rate=False)
    lengths = demand.lengths
    tile = timing if policy is None else policy
    chunk, together = math.lcm(tile.rows, tile.columns, tile.reduction), tile.columns
    emitted_before = with_prompt(first_token)
    prices = TilePrices(timing, chunk, emitted_before)
    decodes = lengths.decode_mean(first_token)
    full_s = timing.linear_s_per_tile * -(-together // timing.columns)
    tokens = lengths.prompt_mean + decodes
    decode_attention_s = lengths.mean(prices.decode_attention_s)
    other_s = timing.other_s_per_token * tokens
    least_linear_s = timing.linear_s_per_tile * tokens / timing.columns
    least_s = least_linear_s + lengths.mean(prices.least_attention_s) + decode_attention_s + other_s
    if least_s == 0:
        raise ConfigError("timing", "takes no time for these requests, so their rate has no limit")
    cycle_end_s = longest_s = None
    if lengths.is_bounded:
        most_decodes = lengths.most(lambda s, o: o + 0 * s) - emitted_before
        cycle_end_s = most_decodes * timing.linear_s_per_tile * _waste(together, timing.columns)
        longest = lengths.most(lambda s, o: s + 0 * o) + most_decodes
        longest_s = longest * (timing.linear_s_per_tile + timing.other_s_per_token)
        longest_s += float(prices.gemv_s(longest))
    limit = TileCapacity(
        policy="Rad" if scheduler is None else type(scheduler).__name__,
        timing=timing,
        first_token=first_token,
        rate=demand.rate,
        engines=engines,
        prompt_tokens_mean=lengths.prompt_mean,
        decode_tokens_mean=decodes,
        chunk_tokens=chunk,
        decodes_together=together,
        requests_per_cycle=requests_per_cycle,
        prompt_linear_s=lengths.mean(prices.prompt_linear_s),
        prompt_attention_s=lengths.mean(prices.prompt_attention_s),
        decode_linear_s=decodes * full_s / together,
        decode_attention_s=decode_attention_s,
        other_s=other_s,
        least_s=least_s,
        cycle_end_s=cycle_end_s,
        longest_request_s=longest_s,
        hypotheses=(),
    )
    return replace(limit, hypotheses=_hypotheses(limit, demand, engine))


def _parts(engine: object, first_token: FirstToken | None) -> tuple[TiledGemm, Scheduler | None, FirstToken]:
    """The iteration times, the scheduler if there is one, and the convention for the first token."""
    first_token = None if first_token is None else first_token_of(first_token)
    if isinstance(engine, Engine):
        if not isinstance(engine.timing, TiledGemm):
            raise ConfigError("engine.timing", f"must be TiledGemm, got {engine.timing!r}")
        if adds_time(engine.overhead):
            raise ConfigError(
                "engine.overhead",
                f"{engine.overhead!r} takes no tiles and is not part of bari2025 (7); "
                "use the timing alone, or an engine without overhead",
            )
        if first_token not in (None, engine.first_token):
            raise ConfigError(
                "first_token", f"{first_token!r} conflicts with the engine's {engine.first_token!r}"
            )
        return engine.timing, engine.scheduler, engine.first_token
    if isinstance(engine, TiledGemm):
        return engine, None, first_token or "prefill"
    raise ConfigError("engine", f"must be an Engine with TiledGemm timing, or TiledGemm, got {engine!r}")


def _waste(together: int, columns: int) -> float:
    """Most tiles that an iteration with fewer than `together` decodes takes beyond their part of full ones.

    j decodes take ⌈j / columns⌉ tiles; their part is j times that of one decode in a full iteration. The
    difference is largest just after a step, and changes monotonically from step to step.
    """
    if together == 1:
        return 0.0
    part = -(-together // columns) / together
    last_step = (together - 2) // columns
    return max(0.0, *(k + 1 - (k * columns + 1) * part for k in (0, last_step)))


def _hypotheses(limit: TileCapacity, demand: Demand, engine: Engine | TiledGemm) -> tuple[Hypothesis, ...]:
    """The checked hypotheses of the theorems."""
    timing, lengths, chunk = limit.timing, demand.lengths, limit.chunk_tokens
    is_rad = limit.policy in ("Rad", "RadPhased")
    why_not = (
        "in its cycles" if is_rad else f"{limit.policy} is not RAD; only the lower bound of time applies"
    )
    hypotheses = [
        Hypothesis(name=_POLICY, met=is_rad, why=f"{limit.policy}, {why_not}" if is_rad else why_not)
    ]
    columns = f"{limit.decodes_together} decodes in tiles of {timing.columns} columns"
    # With 65 decodes and tiles of 64, 64 decodes take fewer tiles than 65, so T^R is no lower bound.
    fewest = limit.decodes_together < timing.columns or limit.decodes_together % timing.columns == 0
    hypotheses.append(Hypothesis(name=_TILES, met=fewest, why=columns))
    short = lengths.mean(lambda s, o: (s % chunk != 0) + 0 * o)
    why = f"{short:.1%} of the prompts are not multiples of {chunk}; T^R includes the waste of last chunks"
    if short == 0:
        why = f"all are multiples of {chunk}"
    hypotheses.append(Hypothesis(name=_PROMPTS, met=short == 0, why=why))
    beaten = 1 - limit.least_s / limit.request_s
    why = f"(7) itself allows {beaten:.2%} less: chunks of {timing.columns} tokens, tails shared with decodes"
    if beaten < 1e-12:
        beaten, why = 0.0, f"chunks of {chunk} tokens are the cheapest"
    hypotheses.append(Hypothesis(name=_BOUND, met=beaten == 0, why=why))
    why = f"{timing.reduction} · {number(timing.gemv_s)} s compared with {number(timing.gemm_s)} s"
    hypotheses.append(
        Hypothesis(name=_PRODUCTS, met=timing.reduction * timing.gemv_s > timing.gemm_s, why=why)
    )
    hypotheses.append(_memory(limit, lengths, engine))
    ended = "lengths have a maximum" if lengths.is_bounded else "lengths have no maximum"
    hypotheses.append(Hypothesis(name=_BOUNDED, met=lengths.is_bounded, why=ended))
    hypotheses.append(_cycles(limit))
    hypotheses.append(Hypothesis(name=_POISSON, met=demand.poisson, why=demand.arrivals))
    routing = (
        "there is one replica" if limit.engines == 1 else "proved for random routing; a router may differ"
    )
    hypotheses.append(Hypothesis(name=_ROUTING, met=limit.engines == 1 or None, why=routing))
    patience = "waiting requests may abandon" if demand.gives_up else "requests wait until they are served"
    hypotheses.append(Hypothesis(name=_PATIENCE, met=not demand.gives_up, why=patience))
    return (*hypotheses, *no_hits(engine))


def _memory(limit: TileCapacity, lengths: Lengths, engine: Engine | TiledGemm) -> Hypothesis:
    """Assumption 4: memory for all requests that RAD holds together, each of the largest size."""
    if isinstance(engine, TiledGemm):
        return Hypothesis(name=_MEMORY, met=None, why="no cache is configured")
    capacity, block = engine.kv.tokens, engine.kv.block
    if capacity is None:
        return Hypothesis(name=_MEMORY, met=True, why="the cache has no limit")
    if not lengths.is_bounded:
        return Hypothesis(name=_MEMORY, met=False, why="lengths are unbounded, the cache is not")
    before = with_prompt(limit.first_token)
    largest = math.ceil(lengths.most(lambda s, o: s + o - before) / block)
    running, needed = limit.decodes_together, limit.decodes_together * largest
    if limit.policy == "RadPhased" and limit.requests_per_cycle is not None:
        running = max(limit.requests_per_cycle, running)
        needed += (running - limit.decodes_together) * math.ceil(lengths.most(lambda s, o: s + 0 * o) / block)
    why = f"{number(running)} requests need at most {number(needed)} of {number(capacity // block)} blocks"
    return Hypothesis(name=_MEMORY, met=needed <= capacity // block, why=why)


def _cycles(limit: TileCapacity) -> Hypothesis:
    """Theorem 2: n is large enough for this load."""
    enough, requests = limit.requests_per_cycle_enough, limit.requests_per_cycle
    if limit.rate is None:
        return Hypothesis(name=_CYCLES, met=None, why="the rate is unknown")
    if limit.rate >= limit.capacity_per_s:
        return Hypothesis(name=_CYCLES, met=False, why="no number is enough at a load of 1 or above")
    if enough is None:
        return Hypothesis(name=_CYCLES, met=None, why="outputs are unbounded")
    if requests is None:
        return Hypothesis(name=_CYCLES, met=True, why=f"as many as required, {number(enough)}")
    why = f"{number(requests)} requests; {number(enough)} are enough"
    # The number is sufficient, not necessary: the ends of cycles may waste less than the bound.
    return Hypothesis(name=_CYCLES, met=True if requests >= enough else None, why=why)


@dataclass(frozen=True, slots=True)
class TilePrices:
    """Seconds of a request with a prompt of s and an output of o tokens, its prompt in chunks.

    Methods take and return arrays that broadcast. Lengths that are not integers (means of bins of a
    distribution) are interpolated.

    Source: (4), (5) and (6) of bari2025, with the symbols of `TiledGemm`.
    """

    timing: TiledGemm
    chunk_tokens: int
    emitted_before: int
    """Tokens that the prompt's last iteration emits: 1 or 0. Decodes are the output less these."""

    def prompt_linear_s(self, s: Numbers, o: Numbers) -> Numbers:
        """The linear layers, for the tiles of the prompt's chunks, each chunk alone in its iteration."""
        return self.timing.linear_s_per_tile * _between(self._prompt_tiles, s) + 0 * o

    def prompt_attention_s(self, s: Numbers, o: Numbers) -> Numbers:
        """The attention of the same chunks, with a shorter last chunk."""
        return _between(self._chunks_s, s) + 0 * o

    def least_attention_s(self, s: Numbers, o: Numbers) -> Numbers:
        """The least attention time of the prompt over all ways to cut it.

        A chunk of several times `columns` tokens takes longer than as many chunks of `columns`, which end
        earlier. n chunks of at most `columns` tokens that end with the prompt end at s − j·`columns` or later
        for j = 0 … n − 1, and at least ⌈s / `columns`⌉ chunks are needed: so these ends are the cheapest.
        """
        return _between(self._least_s, s) + 0 * o

    def decode_attention_s(self, s: Numbers, o: Numbers) -> Numbers:
        """The attention of the decodes, which compute tokens s + 1, s + 2 and so on."""
        decoded: Numbers = self.gemv_s(s + o - self.emitted_before) - self.gemv_s(s)
        return decoded

    def gemv_s(self, tokens: Any) -> Any:
        """Σ (5) over the tokens 1 … `tokens`, each as a decode, in all layers."""
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
    """Σ ⌈(first + k·step) / size⌉ over k = 0 … terms − 1, for arrays of integers, `first` at least 1.

    Counts lattice points below a line with Euclid's algorithm: exchanging columns and rows turns the slope
    step / size into size mod step / step, so the number of rounds is the length of its continued fraction.

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
    """Σ ⌈i / size⌉ over i = 1 … tokens; linear between integers."""
    full = np.floor_divide(tokens, size)
    return size * full * (full + 1) / 2 + (tokens - full * size) * (full + 1)


def _between(f: Callable[[Any], Any], lengths: Numbers) -> Numbers:
    """Values of `f` at integers, linearly interpolated between them."""
    below = np.floor(lengths).astype(np.int64)
    part = lengths - below
    value = np.asarray(f(below), dtype=np.float64)
    if part.any():
        value = value + part * (f(below + 1) - value)
    return value
