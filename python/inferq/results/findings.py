"""Findings that rows, clocks and settings of a run give: what to know before trusting its numbers.

What only the core sees (a stalled plan, thrash, iterations beyond a table) it says itself, in
`rust/src/results/findings.rs`; all else that a run tells of stands here. A finding has a name before its
colon, says when and how much, and ends with what mends it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from inferq._lazy import NDArray, np, pl
from inferq.display.text import counted, listed, number, percent
from inferq.results import tail
from inferq.results.percentiles import percentiles
from inferq.results.tables import STATUSES, Columns, RunTables, in_parts
from inferq.systems.engine import Engine
from inferq.systems.gate_and_route import GateAndRoute
from inferq.systems.pools import Pool, pools_of
from inferq.systems.system import System
from inferq.timing import Constant, MixedSolo

if TYPE_CHECKING:
    from inferq.workload.workload import Workload

_FEW = 20
"""Requests from which on a mean rate says something."""

_SLOW_ITERATION_S = 2.0
"""No engine of today takes that long for an iteration that has the least to do."""

_CUT_OFF = 0.05
"""Share of unfinished requests from which on those that finished are no fair sample."""

_SLOW_LINK = 1e6
"""Bytes per second: replicas that hand over caches of gigabytes have a thousand times that."""

_IDLE_RATE = 0.05
"""Requests per second below which a server that is mostly empty is asked about."""

_OBJECTIVE_S = {"ttft": 60.0, "itl": 10.0, "tpot": 10.0, "queue": 60.0, "e2e": 3600.0}
"""Objectives beyond these are asked about: written in milliseconds they would be strict and usual."""


@dataclass(frozen=True, slots=True)
class Run:
    """What findings are drawn from."""

    requests: Columns
    """Read in parts, since they may be more than memory holds."""
    timeline: Columns
    end_s: float
    system: System
    options: dict[str, Any]
    """Those of `simulate`, in the form that the core reads."""
    rows: int
    """Of the workload: requests, or jobs of a network."""
    columns: Sequence[str]
    """Of the workload."""
    column: Callable[[str], Iterator[pl.Series]]
    """One of them, in parts."""
    told: Sequence[str]
    """What the core has said."""
    notes: Sequence[str] = ()
    """How the times of the workload were read, where that is worth a finding."""

    def says(self, name: str) -> bool:
        """Whether the core has a finding of that name."""
        return any(text.startswith(f"{name}:") for text in self.told)

    def parts(self, *names: str) -> Iterator[tuple[NDArray[Any], ...]]:
        """Some columns of `requests`, part by part."""
        return in_parts(self.requests, names)

    def prompts(self) -> Iterator[NDArray[np.float64]]:
        """The lengths of the prompts, in tokens, part by part."""
        return (prompts.astype(float) for (prompts,) in self.parts("prompt_tokens"))


def of_tables(
    tables: RunTables, workload: Workload, system: System, options: dict[str, Any]
) -> dict[str, Any]:
    """The fields of a `Run` that are the same wherever its requests are."""
    return {
        "timeline": tables.timeline,
        "end_s": float(tables.totals["end_s"]),
        "system": system,
        "options": options,
        "told": tables.findings,
        "notes": tuple(workload.metadata.get("times", ())),
    }


def found(run: Run) -> list[str]:
    """All findings but those of the core, the gravest first."""
    return [text for one in _FINDINGS for text in one(run)]


def of_objective(name: str, limit_s: float) -> str | None:
    """What to ask about an objective such as `ttft_p99` or `ttft_s`; None where it can be meant."""
    most = _OBJECTIVE_S.get(name.partition("_")[0])
    if most is None or limit_s < most:
        return None
    return (
        f"unit: the objective {name} is {number(limit_s)} s; objectives are in seconds, "
        f"{number(limit_s)} milliseconds are {number(limit_s / 1000)}"
    )


def of_objectives(slo: Mapping[str, float | None] | None) -> list[str]:
    """What to ask about the objectives of a goodput."""
    limits = {name: limit for name, limit in (slo or {}).items() if limit is not None}
    return [asked for name, limit in limits.items() if (asked := of_objective(name, limit)) is not None]


def _nothing_measured(run: Run) -> Iterator[str]:
    if isinstance(run.system, GateAndRoute):
        return  # whose averages say so themselves
    rows, by_status = _measured(run)
    measured = sum(by_status)
    horizon_s = run.options.get("horizon_s")
    end_s = run.end_s if horizon_s is None else horizon_s
    if not rows:
        # a run over no more than a moment, or whose first request comes after its end
        yield (
            f"nothing arrived: the run ended at {number(end_s)} s, before the first of "
            f"{counted(run.rows, 'request')} came: every figure is of nothing; give a longer horizon or none"
        )
        return
    if not measured:
        cut = listed(
            f"{name} {_cut_text(run.options[name])}"
            for name in ("warmup", "cooldown")
            if _is_cut(run.options[name])
        )
        of = "" if rows == run.rows else f" of {run.rows:,}, which are all that arrived by the horizon"
        yield (
            f"nothing measured: {cut} leaves none of {rows:,} requests{of}: every figure is of nothing; "
            "cut less, or send more"
        )
    elif not by_status[STATUSES.index("finished")] and not run.says("rejected"):
        yield (
            f"nothing finished: none of {measured:,} measured requests had its last token when "
            f"the run ended at {number(end_s)} s: there are no latencies"
        )


def _measured(run: Run) -> tuple[int, list[int]]:
    """How many requests there are, and how many are measured, by status in the order of `STATUSES`."""
    rows, by_status = 0, np.zeros(len(STATUSES), dtype=np.int64)
    for measured, status in run.parts("measured", "status"):
        rows += measured.size
        by_status += np.bincount(status[measured], minlength=len(STATUSES))
    return rows, by_status.tolist()


def _cut_off(run: Run) -> Iterator[str]:
    """Requests that the horizon leaves unfinished: the long ones, which are missing where latencies are."""
    horizon_s = run.options.get("horizon_s")
    if horizon_s is None or "job" in run.requests:
        return
    _, by_status = _measured(run)
    count, left = sum(by_status), by_status[STATUSES.index("unfinished")]
    if left >= _CUT_OFF * count and left < count:
        yield (
            f"horizon: {left:,} of {count:,} measured requests were unfinished when the run ended at "
            f"{number(horizon_s)} s; e2e and tpot are of the others, which are the quicker ones: leave the "
            "horizon out, or set a cool-down"
        )


def _objectives(run: Run) -> Iterator[str]:
    """Objectives of the requests themselves that nothing would miss."""
    for name in ("ttft_slo_s", "itl_slo_s"):
        if name in run.columns:
            (limit_s,) = percentiles(partial(_there, run, name), [50])
            asked = of_objective(name, limit_s)
            if asked is not None:
                yield asked


def _there(run: Run, name: str) -> Iterator[NDArray[np.float64]]:
    """The numbers in a column of the workload, those that are there."""
    return (part.drop_nulls().cast(pl.Float64).to_numpy() for part in run.column(name))


def _links(run: Run) -> Iterator[str]:
    """Ways between replicas that are slower than any network: gigabytes taken for bytes."""
    links = {pool.hands_to[1] for pool in pools_of(run.system) if pool.hands_to is not None}
    for link in links:
        if link.bytes_per_s < _SLOW_LINK:
            yield (
                f"unit: the link moves {number(link.bytes_per_s)} bytes per second; if those are gigabytes, "
                f"give {number(link.bytes_per_s)}e9"
            )


def _clock(run: Run) -> Iterator[str]:
    yield from run.notes
    if "arrival_s" not in run.columns:
        return
    spans = [(part.size, part.min(), part.max()) for (part,) in run.parts("arrival_s") if part.size]
    rows = sum(size for size, _, _ in spans)
    if rows < 2:
        return
    first = float(min(first for _, first, _ in spans))
    span = float(max(last for _, _, last in spans)) - first
    if first > 1e6 and first > 100 * span:
        yield (
            f"origin: the first request arrives at {number(first)} s and all others within {number(span)} s; "
            "warm-up in seconds, horizon and timeline count from 0: move the times with "
            f".window(start_s={first:.0f})"
        )
    if rows < _FEW or not span > 0:
        return
    rate = (rows - 1) / span
    if rate >= _IDLE_RATE:
        return
    stays = (np.nansum(left - arrival) for left, arrival in run.parts("left_s", "arrival_s"))
    inside = math.fsum(stays) / span
    if inside < 0.1:
        yield (
            f"unit: the mean rate is {number(rate)} per second, and {percent(inside)} of the time "
            "a request was there; are the times in milliseconds? They are read as seconds unless "
            "--time-unit ms (time_unit='ms') says otherwise"
        )


def _iterations(run: Run) -> Iterator[str]:
    for engine, path in _engines(run.system):
        shortest_s = engine.timing.shortest_iteration_s()
        if shortest_s >= _SLOW_ITERATION_S:
            yield (
                f"unit: an iteration{path} takes {number(shortest_s)} s at least; timing models are in "
                f"seconds, {number(shortest_s)} milliseconds are {number(shortest_s / 1000)}"
            )


def _caches(run: Run) -> Iterator[str]:
    says = {"prefix_hashes", "prefix_parts", "continues"} & {*run.columns}
    says |= {"session_id", "turn"} if {"session_id", "turn"} <= {*run.columns} else set()
    for pool in pools_of(run.system):
        looks = pool.router is not None and pool.router.looks_at_caches
        if not looks and _hashed(pool) is None:
            continue
        if looks and not any(engine.kv.prefix_cache for engine in pool.engines):
            yield (
                f"router: {pool.router!r} sends prompts where they may be found again, and no replica keeps "
                "any: give prefix_cache='blocks' (--prefix-cache blocks)"
            )
        if not says and "job" not in run.requests:
            yield (
                f"router: {pool.router!r} looks at prefixes, and the requests do not say with what their "
                "prompts begin (session_id and turn, prefix_hashes, prefix_parts or continues)"
            )
    yield from _hashes(run)


def _drafts(run: Run) -> Iterator[str]:
    """Drafts under a timing model that has no price for them."""
    for timing in dict.fromkeys(
        engine.timing
        for pool in pools_of(run.system)
        for engine in pool.engines
        if engine.scheduler.speculates() is not None and isinstance(engine.timing, (Constant, MixedSolo))
    ):
        yield (
            f"drafts are free: {timing!r} takes as long for a row with drafts as for one without, and for a "
            "batch of them; a table, a roofline or a line in the tokens of a batch prices them"
        )


def _hashes(run: Run) -> Iterator[str]:
    """Beginnings of prompts that are hashed: longer than most prompts, or the same in all."""
    for pool in pools_of(run.system):
        router, replicas, hashed = pool.router, sum(pool.counts), _hashed(pool)
        if hashed is None or replicas < 2:
            continue
        rows, counts = 0, np.zeros(replicas, dtype=np.int64)
        for (at,) in run.parts("replica"):
            rows += at.size
            counts += np.bincount(at[at < replicas], minlength=replicas)
        if rows < tail.LEAST_REQUESTS:
            continue
        (middle,) = percentiles(run.prompts, [50])
        if hashed > middle:
            yield (
                f"router: {router!r} hashes {hashed:,} tokens, and half of the prompts have "
                f"{number(middle)} at most: those are hashed whole, and their later turns go elsewhere; "
                "give fewer prefix_tokens, yet more than all have in common"
            )
        most = int(counts.max())
        if most >= max(0.5, 2 / replicas) * rows:
            yield (
                f"router: {most:,} of {rows:,} requests went to one of {replicas} replicas: their first "
                f"{hashed:,} tokens are the same; give more prefix_tokens, or a load_factor"
            )


def _hashed(pool: Pool) -> int | None:
    """Tokens of the beginnings that a pool's router hashes; None where it hashes none."""
    return getattr(pool.router, "prefix_tokens", None)


def _memory(run: Run) -> Iterator[str]:
    for engine, path in _engines(run.system):
        room = engine.on_card.get("room_tokens")
        if room is not None and engine.kv.tokens is not None and engine.kv.tokens > room:
            card = engine.on_card
            yield (
                f"memory: the KV cache{path} is given as {engine.kv.tokens:,} tokens; {card['model']} on "
                f"{card['tensor_parallel']} × {card['gpu']} leaves room for {room:,}"
            )


def _turns(run: Run) -> Iterator[str]:
    """Turns whose prompt contains an answer that was not there yet."""
    if "job" in run.requests:
        return
    before = _turn_before(run)
    if before is None:
        return
    later = early = 0
    finished = np.full(run.rows, np.nan)  # a turn comes after those of its session before it
    for ids, finish_s, arrival_s in run.parts("id", "finish_s", "arrival_s"):
        finished[ids] = finish_s
        of_turn = before[ids]
        is_later = of_turn >= 0
        later += int(is_later.sum())
        early += int((~(finished[of_turn[is_later]] <= arrival_s[is_later])).sum())
    if early:
        yield (
            f"turns: {early:,} of {later:,} later turns were sent before the answer that their prompt "
            "contains had its last token, so what a prefix cache finds is not what it would find: let them "
            "follow the answer (--think 20, .with_think(…), .with_session_arrivals(…))"
        )


def _turn_before(run: Run) -> NDArray[np.int64] | None:
    """For each row of the workload that does not wait for it the row that its prompt continues; else −1."""
    names = {*run.columns}
    if "continues" in names:
        before = pl.concat(run.column("continues")).fill_null(-1).cast(pl.Int64)
    elif {"session_id", "turn"} <= names and not {"prefix_hashes", "prefix_parts"} & names:
        frame = pl.DataFrame({name: pl.concat(run.column(name)) for name in ("session_id", "turn")})
        rows = pl.int_range(frame.height, dtype=pl.Int64, eager=True)
        is_turn = pl.col("session_id").is_not_null() & pl.col("turn").is_not_null()
        row_before = pl.when(is_turn).then(pl.col("row").shift(1).over("session_id")).otherwise(None)
        before = frame.with_columns(row=rows).select(row_before.alias("before"))["before"].fill_null(-1)
    else:
        return None
    waits = pl.concat(run.column("think_s")).is_not_null() if "think_s" in names else None
    if waits is not None:
        before = pl.select(pl.when(waits).then(-1).otherwise(before)).to_series()
    values: NDArray[np.int64] = before.to_numpy()
    return values


def _engines(system: System) -> list[tuple[Engine, str]]:
    """Each different engine, with what it is called where there are several."""
    engines: list[tuple[Engine, str]] = []
    for pool in pools_of(system):
        for engine, path in zip(pool.engines, pool.paths, strict=True):
            if not any(engine is one for one, _ in engines):
                engines.append((engine, path))
    alone = len(engines) == 1
    return [(engine, "" if alone or not path else f" of {path}") for engine, path in engines]


def _is_cut(cut: dict[str, float]) -> bool:
    return any(value > 0 for value in cut.values())


def _cut_text(cut: dict[str, float]) -> str:
    if "seconds" in cut:
        return f"of {number(cut['seconds'])} s"
    return f"of {counted(int(cut['requests']), 'request')}"


_FINDINGS = (
    *(_nothing_measured, _cut_off, tail.found, _turns),
    *(_clock, _iterations, _links, _objectives, _memory, _caches, _drafts),
)
