"""Findings computed from the rows, timing models and settings of a run.

The core computes further findings in `rust/src/results/findings.rs`. `finding.KINDS` lists all kinds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial

from inferq._lazy import NDArray, np, pl
from inferq.display.text import counted, listed, number, percent
from inferq.results import tail
from inferq.results.finding import Finding, by_severity
from inferq.results.metric import LABELS
from inferq.results.percentiles import percentiles
from inferq.results.run_facts import RunFacts
from inferq.results.tables import STATUSES
from inferq.systems.engine import Engine
from inferq.systems.gate_and_route import GateAndRoute
from inferq.systems.pools import Pool, pools_of
from inferq.systems.system import System
from inferq.timing import Constant, MixedSolo
from inferq.timing.hardware.gpu import RATES
from inferq.workload.grid import grid_of

_LEAST_REQUESTS = 20
"""A mean rate of fewer requests is not checked."""

_SLOW_ITERATION_S = 2.0
"""No engine takes this long for its shortest iteration."""

_CUT_OFF = 0.05
"""With this share of unfinished requests the finished ones are a biased sample."""

_SLOW_LINK = 1e6
"""Bytes per second. KV caches have gigabytes; links between replicas have a thousand times this bandwidth."""

_COARSE_S = 0.05
"""Seconds. A finer grid of arrivals is near the time of an iteration."""

_GRID_ROWS = 100_000
"""Rows of the workload that are searched for a grid of arrivals."""

_IDLE_RATE = 0.05
"""Requests per second. A lower rate on a mostly empty server suggests a wrong unit."""

_DELTA_SHARE = 0.5
"""Clients that cut long conversations shorten fewer turns."""

_OBJECTIVE_S = {"ttft": 60.0, "itl": 10.0, "tpot": 10.0, "queue": 60.0, "e2e": 3600.0}
"""Objectives from these on suggest a wrong unit: in milliseconds they would be common values."""


def all_findings(run: RunFacts) -> list[Finding]:
    """All findings of a run, the most severe first."""
    return by_severity([*run.of_core, *(finding for check in _CHECKS for finding in check(run))])


def of_objective(name: str, limit_s: float) -> Finding | None:
    """A finding about an objective such as `ttft_p99` or `ttft_s` whose unit looks wrong; else None."""
    least = _OBJECTIVE_S.get(name.partition("_")[0])
    if least is None or limit_s < least:
        return None
    return Finding(
        "unit",
        f"the objective {name} is {number(limit_s)} s; objectives are in seconds, "
        f"{number(limit_s)} milliseconds are {number(limit_s / 1000)}",
        {"objective": name, "limit_s": limit_s},
    )


def of_objectives(slo: Mapping[str, float | None] | None) -> list[Finding]:
    """Findings about the objectives of a goodput."""
    limits = {name: limit for name, limit in (slo or {}).items() if limit is not None}
    findings = (of_objective(name, limit) for name, limit in limits.items())
    return [finding for finding in findings if finding is not None]


def _nothing_measured(run: RunFacts) -> Iterator[Finding]:
    if isinstance(run.system, GateAndRoute):
        return  # it reports its own averages and findings
    rows, by_status = _measured(run)
    measured = sum(by_status)
    horizon_s = run.options.get("horizon_s")
    end_s = run.end_s if horizon_s is None else horizon_s
    if not rows:
        yield Finding(
            "nothing-arrived",
            f"the run ended at {number(end_s)} s, before the first of "
            f"{counted(run.rows, 'request')} arrived; there are no metrics; use a longer horizon or none",
            {"end_s": end_s, "total": run.rows},
        )
        return
    if not measured:
        cuts = listed(
            f"{name} {_cut_text(run.options[name])}"
            for name in ("warmup", "cooldown")
            if _is_cut(run.options[name])
        )
        arrived = "" if rows == run.rows else f" that arrived by the horizon (of {run.rows:,})"
        yield Finding(
            "nothing-measured",
            f"{cuts} excludes all {rows:,} requests{arrived}; there are no metrics; shorten it, or send more "
            "requests",
            {"arrived": rows, "total": run.rows},
        )
    elif not by_status[STATUSES.index("finished")] and not run.has("rejected"):
        yield Finding(
            "nothing-finished",
            f"none of {counted(measured, 'measured request')} finished before the run ended at "
            f"{number(end_s)} s; there are no latencies",
            {"measured": measured, "end_s": end_s},
        )


def _measured(run: RunFacts) -> tuple[int, list[int]]:
    """The number of requests, and of the measured ones by status in the order of `STATUSES`."""
    rows, by_status = 0, np.zeros(len(STATUSES), dtype=np.int64)
    for measured, status in run.parts("measured", "status"):
        rows += measured.size
        by_status += np.bincount(status[measured], minlength=len(STATUSES))
    return rows, by_status.tolist()


def _cut_off(run: RunFacts) -> Iterator[Finding]:
    """Requests unfinished at the horizon, which the latencies lack: the long ones and the late ones."""
    horizon_s = run.options.get("horizon_s")
    if horizon_s is None or "job" in run.requests:
        return
    _, by_status = _measured(run)
    count, unfinished = sum(by_status), by_status[STATUSES.index("unfinished")]
    if unfinished >= _CUT_OFF * count and unfinished < count:
        without = {"queue": 0, "ttft": 0}
        for measured, status, *times in run.parts("measured", "status", "admitted_s", "first_token_s"):
            here = measured & (status == STATUSES.index("unfinished"))
            for name, time in zip(without, times, strict=True):
                without[name] += int(np.isnan(time[here]).sum())
        lacks = [f"{LABELS[name]} lacks {lost:,}" for name, lost in without.items() if lost]
        yield Finding(
            "horizon",
            f"{unfinished:,} of {count:,} measured requests were unfinished when the run ended at "
            f"{number(horizon_s)} s: {', '.join([*lacks, f'E2E and TPOT lack {unfinished:,}'])} of them; the "
            "others are faster, so these latencies are too low; remove the horizon, or set a cool-down",
            {"count": unfinished, "total": count, "horizon_s": horizon_s}
            | {f"without_{name}": lost for name, lost in without.items()},
        )


def _client_waits(run: RunFacts) -> Iterator[Finding]:
    """Requests that waited at their clients, with the offered and the served rate."""
    if "client_s" not in run.requests:
        return
    rows = waiting = served = 0
    waited_s = longest_s = 0.0
    due, sent = [math.inf, -math.inf], [math.inf, -math.inf]
    for measured, arrival, finish, client in run.parts("measured", "arrival_s", "finish_s", "client_s"):
        here = client[measured]
        rows, waiting = rows + here.size, waiting + int((here > 0).sum())
        waited_s += float(here.sum())
        longest_s = max(longest_s, float(here.max(initial=0.0)))
        is_served = measured & ~np.isnan(finish)
        served += int(is_served.sum())
        for span, low, high in ((due, arrival - client, arrival - client), (sent, arrival, finish)):
            span[0] = min(span[0], float(low[is_served].min(initial=math.inf)))
            span[1] = max(span[1], float(high[is_served].max(initial=-math.inf)))
    if waiting < _CUT_OFF * rows or not waiting or not sent[1] > sent[0]:
        return
    rate = served / (sent[1] - sent[0])
    offered = (served - 1) / (due[1] - due[0]) if due[1] > due[0] else None
    load = "all requests at once" if offered is None else f"{number(offered)} requests per second"
    yield Finding(
        "client-wait",
        f"{waiting:,} of {counted(rows, 'request')} waited at the client, {number(waited_s / rows)} s on "
        f"average and up to {number(longest_s)} s (max_in_flight reached); offered: {load}, served: "
        f"{number(rate)} per second; latencies exclude this wait, see client_s",
        {
            **{"count": waiting, "total": rows, "client_mean_s": waited_s / rows, "client_max_s": longest_s},
            **{"offered_per_s": offered, "served_per_s": rate},
        },
    )


def _objectives(run: RunFacts) -> Iterator[Finding]:
    """Per-request objectives that every request would meet."""
    for name in ("ttft_slo_s", "itl_slo_s"):
        if name in run.columns:
            (limit_s,) = percentiles(partial(_values, run, name), [50])
            finding = of_objective(name, limit_s)
            if finding is not None:
                yield finding


def _values(run: RunFacts, name: str) -> Iterator[NDArray[np.float64]]:
    """The values in a column of the workload without nulls."""
    return (part.drop_nulls().cast(pl.Float64).to_numpy() for part in run.column(name))


def _links(run: RunFacts) -> Iterator[Finding]:
    """Links slower than any network, which suggests gigabytes."""
    links = {pool.hands_to[1] for pool in pools_of(run.system) if pool.hands_to is not None}
    for link in links:
        if link.bytes_per_s < _SLOW_LINK:
            yield Finding(
                "unit",
                f"the link moves {number(link.bytes_per_s)} bytes per second; for gigabytes, write "
                f"{number(link.bytes_per_s)}e9",
                {"link_bytes_per_s": link.bytes_per_s},
            )


def _kv_traffic(run: RunFacts) -> Iterator[Finding]:
    """KV traffic of completed prompts that exceeds a hand-off link."""
    if "prefilled_s" not in run.requests or "prefill_replica" not in run.requests:
        return
    first = 0
    for pool in pools_of(run.system):
        replicas, first = range(first, first + sum(pool.counts)), first + sum(pool.counts)
        if pool.hands_to is None:
            continue
        link, count, tokens, spans = pool.hands_to[1], 0, 0, [(math.inf, -math.inf)] * 2
        for prompts, at, arrived, ready, moved in run.parts(
            *("prompt_tokens", "prefill_replica", "arrival_s", "prefilled_s", "handoff_s")
        ):
            sent = ~np.isnan(ready) & ~np.isnan(moved) & (at >= replicas.start) & (at < replicas.stop)
            if sent.any():
                count += int(sent.sum())
                tokens += int(prompts[sent].sum())
                spans = [
                    (min(begin, float(times[sent].min())), max(end, float(times[sent].max())))
                    for (begin, end), times in zip(spans, (arrived, ready), strict=True)
                ]
        arriving_s, completing_s = (end - begin for begin, end in spans)
        kv_bytes = tokens * (link.bytes_per_token or 0)
        paths = link.concurrent if isinstance(link.concurrent, int) else 1
        busy_s = (count * link.latency_s + kv_bytes / link.bytes_per_s) / paths
        if count < _LEAST_REQUESTS or not busy_s > completing_s > 0:
            continue
        # A slow link blocks prefill replicas, so that prompts complete more slowly than requests arrive.
        traffic = kv_bytes / (min(arriving_s, completing_s) or completing_s)
        capacity = link.bytes_per_s * paths
        effect = (
            "no transfer waits (concurrent=None), so latencies are too low"
            if link.concurrent is None
            else "transfers wait ever longer"
        )
        yield Finding(
            "link",
            f"requests bring {number(traffic / 1e9)} GB/s of KV, {number(traffic / capacity)} times the "
            f"{number(capacity / 1e9)} GB/s of the hand-off link; {effect}; use a faster link",
            {"traffic_bytes_per_s": traffic, "capacity_bytes_per_s": capacity, "count": count},
        )


_FIRST_TOKENS = {
    "decode": "first tokens are counted on the decode side, after the hand-off, as clients of vLLM, Dynamo "
    "and llm-d receive them (first_token='decode')",
    "prefill": "first tokens are counted on the prefill side, before the hand-off; TTFT excludes the "
    "transfer and the decode queue, which clients of vLLM, Dynamo and llm-d include (first_token='prefill')",
}


def _first_tokens(run: RunFacts) -> Iterator[Finding]:
    """Where first tokens of disaggregated fleets are counted."""
    conventions = {pool.engines[0].first_token for pool in pools_of(run.system) if pool.hands_to is not None}
    for convention in sorted(conventions):
        yield Finding("first-token", _FIRST_TOKENS[convention], {"first_token": convention})


def _clock(run: RunFacts) -> Iterator[Finding]:
    for note in run.notes:
        yield Finding("epoch-times", note)
    if "arrival_s" not in run.columns:
        return
    spans = [(part.size, part.min(), part.max()) for (part,) in run.parts("arrival_s") if part.size]
    rows = sum(size for size, _, _ in spans)
    if rows < 2:
        return
    first = float(min(first for _, first, _ in spans))
    span = float(max(last for _, _, last in spans)) - first
    if first > 1e6 and first > 100 * span:
        yield Finding(
            "time-origin",
            f"the first request arrives at {number(first)} s and all others within {number(span)} s; "
            "warm-up in seconds, horizon and timeline count from 0; move the times with "
            f".window(start_s={first:.0f})",
            {"first_s": first, "span_s": span},
        )
    if rows < _LEAST_REQUESTS or not span > 0:
        return
    rate = (rows - 1) / span
    if rate >= _IDLE_RATE:
        return
    stays = (np.nansum(left - arrival) for left, arrival in run.parts("left_s", "arrival_s"))
    in_system = math.fsum(stays) / span
    if in_system < 0.1:
        yield Finding(
            "unit",
            f"the mean rate is {number(rate)} per second, and a request was present {percent(in_system)} of "
            "the time; times are read as seconds; for milliseconds, use --time-unit ms (time_unit='ms')",
            {"rate_per_s": rate, "requests_in_system": in_system},
        )


def _coarse_arrivals(run: RunFacts) -> Iterator[Finding]:
    """Arrivals on a coarse grid, which become bursts."""
    if "arrival_s" not in run.columns or "job" in run.requests:
        return
    parts: list[NDArray[np.float64]] = []
    for part in run.column("arrival_s"):
        parts.append(part.drop_nulls().cast(pl.Float64).to_numpy())
        if sum(map(len, parts)) >= _GRID_ROWS:
            break
    times = np.concatenate(parts)[:_GRID_ROWS]
    grid = grid_of(np.sort(times))
    if grid is not None and grid.step_s >= _COARSE_S:
        yield Finding(
            "coarse-arrivals",
            f"{percent(grid.tied / len(times))} of arrivals share their instant with another one, up to "
            f"{grid.most:,} at once, on a grid of {number(grid.step_s)} s; latencies are those of bursts; "
            "if the times were rounded, spread them: --spread, .spread()",
            {"count": grid.tied, "total": len(times), "step_s": grid.step_s, "most": grid.most},
        )


def _iterations(run: RunFacts) -> Iterator[Finding]:
    for engine, path in _engines(run.system):
        shortest_s = engine.timing.shortest_iteration_s()
        if shortest_s >= _SLOW_ITERATION_S:
            yield Finding(
                "unit",
                f"the shortest iteration{path} takes {number(shortest_s)} s; timing models are in seconds, "
                f"{number(shortest_s)} milliseconds are {number(shortest_s / 1000)}",
                {"shortest_iteration_s": shortest_s},
            )


def _caches(run: RunFacts) -> Iterator[Finding]:
    prefixes = {"prefix_hashes", "prefix_parts", "continues"} & {*run.columns}
    prefixes |= {"session_id", "turn"} if {"session_id", "turn"} <= {*run.columns} else set()
    for pool in pools_of(run.system):
        reads_caches = pool.router is not None and pool.router.uses_prefix_caches
        if not reads_caches and _hashed_tokens(pool) is None:
            continue
        if reads_caches and not any(engine.kv.prefix_cache for engine in pool.engines):
            yield Finding(
                "no-prefix-cache",
                f"{pool.router!r} selects replicas by cached prefixes, and no replica has a prefix cache; "
                "set prefix_cache='blocks' (--prefix-cache blocks)",
                {"router": repr(pool.router)},
            )
        if not prefixes and "job" not in run.requests:
            yield Finding(
                "no-prefixes",
                f"{pool.router!r} selects replicas by prefixes, and the workload has none; add session_id "
                "and turn, prefix_hashes, prefix_parts or continues",
                {"router": repr(pool.router)},
            )
    yield from _hashes(run)


def _drafts(run: RunFacts) -> Iterator[Finding]:
    """Speculative decoding with a timing model that ignores draft tokens."""
    for timing in dict.fromkeys(
        engine.timing
        for pool in pools_of(run.system)
        for engine in pool.engines
        if engine.scheduler.speculative_decoding() is not None
        and isinstance(engine.timing, (Constant, MixedSolo))
    ):
        yield Finding(
            "drafts-free",
            f"{timing!r} assigns no time to draft tokens; a timing table, a roofline or a line in the tokens "
            "of a batch does",
            {"timing": repr(timing)},
        )


def _proposals(run: RunFacts) -> Iterator[Finding]:
    """N-gram speculation without a proposal rate."""
    engines = [engine for pool in pools_of(run.system) for engine in pool.engines]
    for drafts in dict.fromkeys(engine.scheduler.speculative_decoding() for engine in engines):
        if drafts is None or drafts.proposed_share() is not None or "proposal_rate" in run.columns:
            continue
        yield Finding(
            "proposals-assumed",
            f"{drafts!r} has no proposal rate, so every decode step verifies "
            f"{counted(drafts.tokens, 'draft')}; an n-gram lookup proposes none if the last tokens do not "
            "occur earlier; set proposal_rate, or add the column proposal_rate",
            {"speculation": repr(drafts)},
        )


def _hashes(run: RunFacts) -> Iterator[Finding]:
    """Hashed prefixes that are longer than most prompts, or the same in most requests."""
    for pool in pools_of(run.system):
        router, replicas, hashed = pool.router, sum(pool.counts), _hashed_tokens(pool)
        if hashed is None or replicas < 2:
            continue
        rows, counts = 0, np.zeros(replicas, dtype=np.int64)
        for (at,) in run.parts("replica"):
            rows += at.size
            counts += np.bincount(at[at < replicas], minlength=replicas)
        if rows < tail.LEAST_REQUESTS:
            continue
        (median,) = percentiles(run.prompts, [50])
        if hashed > median:
            yield Finding(
                "hash-too-long",
                f"{router!r} hashes {hashed:,} tokens, and half of the prompts have at most "
                f"{number(median)}; their later turns are routed to other replicas; lower prefix_tokens, but "
                "keep it above the prefix that all prompts share",
                {"prefix_tokens": hashed, "prompt_tokens_p50": median},
            )
        most = int(counts.max())
        if most >= max(0.5, 2 / replicas) * rows:
            yield Finding(
                "hot-prefix",
                f"{most:,} of {rows:,} requests were routed to one of {replicas} replicas, because their "
                f"first {hashed:,} tokens are the same; raise prefix_tokens, or set load_factor",
                {"count": most, "total": rows, "replicas": replicas, "prefix_tokens": hashed},
            )


def _hashed_tokens(pool: Pool) -> int | None:
    """The prefix length that the router of a pool hashes; None if it hashes none."""
    return getattr(pool.router, "prefix_tokens", None)


def _memory(run: RunFacts) -> Iterator[Finding]:
    for engine, path in _engines(run.system):
        unused = engine.on_card.get("unused") or {}
        if unused:
            reasons = "; ".join(f"{key}: {reason}" for key, reason in unused.items())
            yield Finding(
                "model-unused",
                f"the config.json of {engine.on_card['model']}{path} has keys that are not used: {reasons}",
                {"keys": list(unused)},
            )
        average = engine.on_card.get("average_tokens")
        if average is not None:
            yield Finding(
                "kv-average",
                f"the KV cache{path} has {engine.kv.tokens:,} tokens, an average over requests of "
                f"{average:,} tokens; layers of {engine.on_card['model']} with a window or state use more "
                "bytes per token for shorter requests",
                {"kv_tokens": engine.kv.tokens, "max_model_len": average},
            )
        room = engine.on_card.get("room_tokens")
        if room is not None and engine.kv.tokens is not None and engine.kv.tokens > room:
            card = engine.on_card
            yield Finding(
                "kv-over-memory",
                f"the KV cache{path} has {engine.kv.tokens:,} tokens, but {card['model']} on "
                f"{card['tensor_parallel']} × {card['gpu']} has memory for {room:,}",
                {"kv_tokens": engine.kv.tokens, "memory_tokens": room},
            )


def _hardware(run: RunFacts) -> Iterator[Finding]:
    """Number formats that a GPU lacks, and replicas of more GPUs than its link joins."""
    for engine, path in _engines(run.system):
        card = engine.on_card
        if (used := card.get("computed_in")) is not None:
            own = RATES[card["weights"]][0]
            yield Finding(
                "number-format",
                f"{card['gpu']} has no {own.upper()} rate, so {card['weights']} weights{path} are computed "
                f"at the {used.upper()} rate; kernels that expand them first are slower in large batches; "
                f"measure a timing table, or set {own}_flops of your own Gpu",
                {"gpu": card["gpu"], "weights": card["weights"], "computed_in": used},
            )
        if (linked := card.get("linked_gpus")) is not None:
            yield Finding(
                "across-servers",
                f"a replica{path} has {card['tensor_parallel']} GPUs, but the link of {card['gpu']} joins "
                f"{linked}; all-reduces over the network between servers take longer than simulated; use at "
                f"most {linked} GPUs",
                {"gpus": card["tensor_parallel"], "linked_gpus": linked},
            )


def _timing(run: RunFacts) -> Iterator[Finding]:
    """Rooflines in place of tables that could be baked."""
    for engine, path in _engines(run.system):
        card = engine.on_card
        if (reason := card.get("unmeasured")) is not None:
            yield Finding(
                "unmeasured",
                f"iteration times{path} are a roofline, because no measured table of {card['model']} on "
                f"{card['tensor_parallel']} × {card['gpu']} is shipped; {reason}",
                {"model": card["model"], "gpu": card["gpu"], "tensor_parallel": card["tensor_parallel"]},
            )


def _turns(run: RunFacts) -> Iterator[Finding]:
    """Turns that arrive before the answer in their prompt is complete."""
    if "job" in run.requests:
        return
    before = _turn_before(run)
    if before is None:
        return
    later = early = 0
    finished = np.full(run.rows, np.nan)  # a turn follows the earlier turns of its session
    for ids, finish_s, arrival_s in run.parts("id", "finish_s", "arrival_s"):
        finished[ids] = finish_s
        of_turn = before[ids]
        is_later = of_turn >= 0
        later += int(is_later.sum())
        early += int((~(finished[of_turn[is_later]] <= arrival_s[is_later])).sum())
    if early:
        yield Finding(
            "early-turns",
            f"{early:,} of {later:,} later turns arrive before the answer in their prompt is complete, so "
            "prefix cache hits are wrong; let turns follow the answer (--think 20, .with_think(…), "
            ".with_session_arrivals(…))",
            {"count": early, "total": later},
        )


def _deltas(run: RunFacts) -> Iterator[Finding]:
    """Later turns whose prompts are shorter than the conversation before them."""
    if "job" in run.requests or not {"prompt_tokens", "output_tokens"} <= {*run.columns}:
        return
    before = _turn_before(run, waits=False)
    if before is None:
        return
    prompts, outputs = (
        pl.concat(run.column(name)).cast(pl.Int64).to_numpy() for name in ("prompt_tokens", "output_tokens")
    )
    later = np.flatnonzero(before >= 0)
    history = (prompts + outputs)[before[later]]
    short = prompts[later] < history
    if not later.size or short.sum() < _DELTA_SHARE * later.size:
        return
    first = int(short.argmax())
    yield Finding(
        "delta-prompts",
        f"{int(short.sum()):,} of {later.size:,} later turns have fewer prompt tokens than the conversation "
        f"before them (row {later[first]}: {prompts[later[first]]:,}, before it {history[first]:,}); if "
        "prompts hold only the new tokens, accumulate them: --deltas, .accumulate_turns()",
        {"count": int(short.sum()), "total": int(later.size), "row": int(later[first])},
    )


def _turn_before(run: RunFacts, waits: bool = True) -> NDArray[np.int64] | None:
    """For each row of the workload the row that its prompt continues; −1 if none.

    Args:
        run: the run.
        waits: whether rows that wait for the row before them count as −1.
    """
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
    if waits and "think_s" in names:
        is_waiting = pl.concat(run.column("think_s")).is_not_null()
        before = pl.select(pl.when(is_waiting).then(-1).otherwise(before)).to_series()
    values: NDArray[np.int64] = before.to_numpy()
    return values


def _engines(system: System) -> list[tuple[Engine, str]]:
    """Each distinct engine, with a label if there are several."""
    engines: list[tuple[Engine, str]] = []
    for pool in pools_of(system):
        for engine, path in zip(pool.engines, pool.paths, strict=True):
            if not any(engine is known for known, _ in engines):
                engines.append((engine, path))
    is_single = len(engines) == 1
    return [(engine, "" if is_single or not path else f" of {path}") for engine, path in engines]


def _is_cut(cut: dict[str, float]) -> bool:
    return any(value > 0 for value in cut.values())


def _cut_text(cut: dict[str, float]) -> str:
    if "seconds" in cut:
        return f"of {number(cut['seconds'])} s"
    return f"of {counted(int(cut['requests']), 'request')}"


_CHECKS = (
    *(_nothing_measured, _cut_off, tail.long_tails, _turns, _deltas, _client_waits),
    *(
        _clock,
        _coarse_arrivals,
        _iterations,
        _links,
        _kv_traffic,
        _first_tokens,
        _objectives,
        _memory,
        _hardware,
        _timing,
        _caches,
        _drafts,
        _proposals,
    ),
)
