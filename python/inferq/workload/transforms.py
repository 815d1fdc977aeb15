"""Transforms of a workload's frame.

Each function takes a canonical frame, the seed and the transform's arguments, and returns a canonical frame.
Deterministic transforms ignore the seed. `APPLY` names the functions, so that a transform recorded on a
synthetic workload is plain data (a name and its arguments) until it is drawn.
"""

from __future__ import annotations

import hashlib
import json
import numbers
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from inferq import _core
from inferq._lazy import np, pl
from inferq.checks import finite
from inferq.errors import ConfigError, TraceError
from inferq.workload import prefixes
from inferq.workload.columns import COLUMNS, as_series, check_sorted, checked
from inferq.workload.distributions import ArrivalProcess, DurationDistribution, Empirical, LengthDistribution
from inferq.workload.grid import grid_of, on_grid

if TYPE_CHECKING:
    from inferq.workload.workload import Workload


BLOCKS = 10
"""`resample` draws blocks of this part of a trace, so that bursts up to this length stay intact."""


_MIXER = 0x9E3779B97F4A7C15
"""Odd constant that separates the prefix hashes of copies (2^64 divided by the golden ratio)."""


def subseed(seed: int, *key: object) -> int:
    """Return a separate seed for each random source that the core does not key itself."""
    text = json.dumps([seed, *key])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def duration(field: str, value: object) -> float | DurationDistribution:
    """Check a distribution of durations, or seconds from 0 to 1e9. A `ConfigError` names `field`."""
    if isinstance(value, DurationDistribution):
        return value
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ConfigError(
            field, f"must be seconds or a distribution such as Exponential(mean_s=5), got {value!r}"
        )
    seconds = finite(field, value)
    if not 0 <= seconds <= 1e9:
        raise ConfigError(field, f"must be from 0 to 1e9 seconds, got {value!r}")
    return seconds


def duration_form(value: float | DurationDistribution) -> dict[str, Any]:
    """Return seconds or a distribution in the core's format."""
    return value.to_json() if isinstance(value, DurationDistribution) else {"kind": "Fixed", "seconds": value}


def need(frame: pl.DataFrame, transform: str, name: str) -> None:
    """Raise a `TraceError` unless the frame has a column that the transform requires."""
    if name not in frame.columns:
        fix = "; use .with_arrivals(iq.dist.Poisson(rate=…)) first" if name == "arrival_s" else ""
        raise TraceError(transform, f"requires {name}, which the workload does not have{fix}")


def speed(frame: pl.DataFrame, seed: int, factor: float) -> pl.DataFrame:
    """Divide every arrival time by `factor`, correctly rounded."""
    need(frame, "speed", "arrival_s")
    # numpy divides; polars would multiply by the rounded inverse.
    frame = frame.with_columns(pl.Series("arrival_s", frame["arrival_s"].to_numpy() / factor))
    check_sorted(frame["arrival_s"])
    return frame


def at_rate(frame: pl.DataFrame, seed: int, rate: float) -> pl.DataFrame:
    """Apply `speed` with the ratio of `rate` to the current mean rate."""
    need(frame, "at_rate", "arrival_s")
    current = mean_rate(frame)
    if current is None:
        raise TraceError("at_rate", "requires arrivals at two different instants or more")
    factor = rate / current
    if not 0 < factor < float("inf"):
        raise ConfigError("at_rate", f"rate {rate} is too far from the current {current} requests per second")
    return speed(frame, seed, factor)


def spread(frame: pl.DataFrame, seed: int, draw: int, step_s: float | None) -> pl.DataFrame:
    """Draw arrivals on a grid uniformly within the step after their instant. Rows keep their order."""
    need(frame, "spread", "arrival_s")
    arrivals = frame["arrival_s"].to_numpy()
    if step_s is None:
        grid = grid_of(arrivals)
        if grid is None:
            raise TraceError("spread", "found no grid of tied arrivals; set step_s")
        step_s = grid.step_s
    instants, counts = np.unique(arrivals, return_counts=True)
    if not (counts > 1).any():
        raise TraceError("spread", "no two requests arrive at the same instant")
    is_rounded = on_grid(arrivals - instants[counts > 1][0], step_s)
    offsets = np.random.Generator(np.random.PCG64(subseed(draw, "spread"))).random(arrivals.size) * step_s
    moved = np.sort(np.where(is_rounded, arrivals + offsets, arrivals))
    return frame.with_columns(pl.Series("arrival_s", moved))


def accumulate_turns(frame: pl.DataFrame, seed: int) -> pl.DataFrame:
    """Add to each turn's prompt the prompts and outputs of the earlier turns of its session."""
    for name in ("session_id", "output_tokens"):
        need(frame, "accumulate_turns", name)
    for name in ("prefix_hashes", "prefix_parts", "continues"):
        if name in frame.columns:
            raise TraceError("accumulate_turns", f"not supported with {name}, which describes whole prompts")
    tokens = (pl.col("prompt_tokens") + pl.col("output_tokens")).cast(pl.Int64)
    history = (tokens.cum_sum() - tokens).over("session_id")
    prompts = pl.col("prompt_tokens") + pl.when(pl.col("session_id").is_null()).then(0).otherwise(history)
    return checked(frame.with_columns(prompts.alias("prompt_tokens")))


def mean_rate(frame: pl.DataFrame) -> float | None:
    """Requests per second, (n − 1) / (last − first arrival); None if all arrive at the same time.

    Later turns of conversations wait for answers. So the rate of conversations is that of their starts, times
    the requests of a conversation: the rate in the long run.
    """
    arrivals, requests_per_start = frame["arrival_s"], 1.0
    if "think_s" in frame.columns and frame["think_s"].is_not_null().any():
        arrivals = arrivals.filter(frame["think_s"].is_null())
        requests_per_start = frame.height / max(arrivals.len(), 1)
    span = arrivals[-1] - arrivals[0] if arrivals.len() else 0.0
    return (arrivals.len() - 1) * requests_per_start / span if span > 0 else None


def _cut(frame: pl.DataFrame, start: int, stop: int) -> pl.DataFrame:
    cut = frame.slice(start, stop - start)
    if not start or "continues" not in cut.columns:
        return cut
    moved = cut["continues"] - start
    if "prefix_parts" in cut.columns:
        # A row whose continued row is cut off still begins with that row's prefix_parts.
        rows = pl.int_range(start, stop, eager=True)
        first = pl.Series(prefixes.firsts(frame["continues"])[start:stop])
        from_ = pl.select(pl.when((moved < 0).fill_null(False)).then(first).otherwise(rows)).to_series()
        cut = cut.with_columns(frame["prefix_parts"].gather(from_))
    return cut.with_columns(pl.select(pl.when(moved >= 0).then(moved)).to_series().rename("continues"))


def window(frame: pl.DataFrame, seed: int, start_s: float, end_s: float) -> pl.DataFrame:
    """Select arrivals in `[start_s, end_s)`, relative to `start_s`."""
    need(frame, "window", "arrival_s")
    first, last = (
        int(at) for at in frame["arrival_s"].to_numpy().searchsorted([start_s, end_s], side="left")
    )
    if first == last:
        raise TraceError(
            "window", f"no request arrives between {start_s} and {end_s} s; choose another range"
        )
    cut = _cut(frame, first, last)
    return cut.with_columns(cut["arrival_s"] - start_s)


def head(frame: pl.DataFrame, seed: int, n: int) -> pl.DataFrame:
    """Select the first `n` rows."""
    return _cut(frame, 0, min(n, frame.height))


def part(frame: pl.DataFrame, seed: int, at: float, second: bool) -> pl.DataFrame:
    """Select the rows before or from row `at`: a number (int) or a share of all rows (float)."""
    row = at if isinstance(at, int) else round(at * frame.height)
    if not 0 < row < frame.height:
        raise TraceError("split", f"at={at} leaves one of the parts of {frame.height} requests empty")
    return _cut(frame, row, frame.height) if second else _cut(frame, 0, row)


def sample(frame: pl.DataFrame, seed: int, n: int, draw: int) -> pl.DataFrame:
    """Draw `n` rows with replacement, sorted by arrival if they have arrivals."""
    if "continues" in frame.columns:
        raise TraceError(
            "sample", "not supported with the column continues, whose rows may not be drawn; drop it first"
        )
    rows = _core.draw_rows(frame.height, n, draw)
    return frame[np.sort(rows) if "arrival_s" in frame.columns else rows]


def resample(frame: pl.DataFrame, seed: int, n: int) -> pl.DataFrame:
    """Draw blocks of consecutive requests, or conversations, with replacement until there are `n` rows."""
    session = _first_of_session(frame["session_id"]) if "session_id" in frame.columns else None
    if session is None or np.unique(session).size == frame.height:
        chained = "continues" in frame.columns
        session = prefixes.firsts(frame["continues"]) if chained else np.arange(frame.height)
    firsts, unit = np.unique(session, return_inverse=True)
    order = np.argsort(unit, kind="stable")
    counts = np.bincount(unit)
    offsets = np.cumsum(counts) - counts
    drawn = -(-n * firsts.size // frame.height)
    block = -(-firsts.size // BLOCKS)
    starts = np.asarray(_core.draw_rows(firsts.size, -(-drawn // block), subseed(seed, "resample")))
    picked = ((starts[:, None] + np.arange(block)) % firsts.size).ravel()[:drawn]
    copies = (
        pl.DataFrame({"unit": picked}).select(pl.int_range(pl.len()).over("unit").alias("n"))["n"].to_numpy()
    )
    size = counts[picked]
    base = np.cumsum(size) - size
    of = np.repeat(np.arange(drawn), size)
    inside = np.arange(of.size) - base[of]
    rows = order[offsets[picked][of] + inside]
    made = frame[rows]
    columns: list[Any] = []
    if "arrival_s" in frame.columns:
        arrival_s = frame["arrival_s"].to_numpy()
        gap_s = np.diff(arrival_s[firsts], prepend=np.nan)
        gap_s[0] = float(np.mean(gap_s[1:])) if firsts.size > 1 else 0.0
        start_s = np.cumsum(gap_s[picked]) - gap_s[picked[0]]
        columns.append(pl.Series("arrival_s", start_s[of] + arrival_s[rows] - arrival_s[firsts[picked]][of]))
    if "session_id" in frame.columns:
        columns.append(
            pl.select(pl.when(made["session_id"].is_not_null()).then(pl.Series(of)))
            .to_series()
            .rename("session_id")
        )
    if "continues" in frame.columns:
        rank = np.empty(frame.height, np.int64)
        rank[order] = np.arange(frame.height) - offsets[unit[order]]
        link = made["continues"].fill_null(-1).to_numpy()
        own = (link >= 0) & (unit[link] == picked[of])
        columns.append(pl.Series("continues", np.where(own, base[of] + rank[link], -1)).cast(pl.Int32))
        columns[-1] = columns[-1].set(columns[-1] < 0, None)
    columns += _own_prefixes(made, copies[of])
    made = made.with_columns(columns)
    return merged([made], "resample", ["the workload"]) if "arrival_s" in made.columns else checked(made)


def _own_prefixes(frame: pl.DataFrame, copies: Any) -> list[pl.Series]:
    """Prefix columns in which copies of a row share content only with copies of the same number."""
    made = []
    for name in ("prefix_hashes", "prefix_parts"):
        if name not in frame.columns or not copies.any():
            continue
        column = frame[name] if name == "prefix_hashes" else prefixes.spelled(frame[name])
        lengths = column.list.len().fill_null(0).to_numpy()
        items, copy = column.list.explode(empty_as_null=False, keep_nulls=False), np.repeat(copies, lengths)
        if name == "prefix_hashes":
            kind = items.dtype if items.dtype == pl.UInt64 else pl.Int64
            mixed = items.cast(kind).to_numpy().view(np.uint64) + copy.astype(np.uint64) * np.uint64(_MIXER)
            own = pl.Series(mixed.view(np.uint64 if kind == pl.UInt64 else np.int64))
        else:
            text = items.struct.field("text") + "#" + pl.Series(copy).cast(pl.String)
            own = pl.DataFrame({"text": text, "tokens": items.struct.field("tokens")}).to_struct()
        rows = pl.DataFrame({"row": np.repeat(np.arange(frame.height), lengths), name: own})
        lists = rows.group_by("row", maintain_order=True).agg(name)
        filled = pl.DataFrame({"row": np.arange(frame.height)}).join(
            lists, on="row", how="left", maintain_order="left"
        )[name]
        if (column.is_not_null() & (column.list.len() == 0)).any():
            filled = pl.select(
                pl.when(column.is_not_null()).then(filled.fill_null(pl.Series([[]], dtype=filled.dtype)))
            ).to_series()
        made.append(filled.rename(name))
    return made


def _filled(frame: pl.DataFrame, name: str, values: object) -> pl.DataFrame:
    """Replace one column by the user's values."""
    series = as_series(name, values)
    if series.len() != frame.height:
        raise TraceError(name, f"must have {frame.height} values, one per request; got {series.len()}")
    return checked(frame.with_columns(series))


def with_arrivals(frame: pl.DataFrame, seed: int, arrivals: object) -> pl.DataFrame:
    """Set arrivals from a process or values. Rows keep their order."""
    if not isinstance(arrivals, ArrivalProcess):
        return _filled(frame, "arrival_s", arrivals)
    drawn = _core.draw_arrivals(json.dumps(arrivals.to_json()), frame.height, seed)
    return _ordered(frame.with_columns(pl.Series("arrival_s", drawn)))


def with_lengths(frame: pl.DataFrame, seed: int, name: str, lengths: object) -> pl.DataFrame:
    """Set one column of lengths from a distribution or values."""
    if not isinstance(lengths, LengthDistribution):
        return _filled(frame, name, lengths if not isinstance(lengths, int) else [lengths] * frame.height)
    source = name.removesuffix("_tokens")
    if isinstance(lengths, Empirical):
        rows = _core.draw_rows(lengths.frame.height, frame.height, subseed(seed, "lengths", source))
        drawn = lengths.frame[name].to_numpy()[rows]
    else:
        drawn = _core.draw_lengths(json.dumps(lengths.to_json()), frame.height, seed, source)
    # Check again: the sum of prompt and output may be too large.
    return checked(frame.with_columns(pl.Series(name, drawn.astype(np.int32, copy=False))))


def with_classes(frame: pl.DataFrame, seed: int, classes: object) -> pl.DataFrame:
    """Set one class, values, or classes drawn by share."""
    if isinstance(classes, str):
        drawn = pl.Series("class", [classes], dtype=pl.Enum([classes])).new_from_index(0, frame.height)
        return _ordered(frame.with_columns(drawn))
    if not isinstance(classes, dict):
        return _filled(frame, "class", classes)
    steps = 2**31
    sums = np.cumsum(list(classes.values()))
    edges = np.rint(sums / sums[-1] * steps)  # shares add up to 1 except for rounding
    codes = np.searchsorted(
        edges, _core.draw_rows(steps, frame.height, subseed(seed, "classes")), side="right"
    )
    names = sorted(classes)
    places = {name: k for k, name in enumerate(names)}
    ordered = np.array([places[name] for name in classes])[codes]
    return _ordered(frame.with_columns(pl.Series("class", names, dtype=pl.Enum(names))[ordered]))


def with_think(frame: pl.DataFrame, seed: int, think: float | DurationDistribution) -> pl.DataFrame:
    """Set `think_s` for all rows of a session except the first; null for rows without a session."""
    need(frame, "with_think", "session_id")
    follows = frame["session_id"].is_not_null() & ~frame["session_id"].is_first_distinct()
    drawn = _durations(think, frame.height, seed, "think")
    return _ordered(frame.with_columns(think_s=pl.when(follows).then(pl.Series(drawn))))


def with_session_arrivals(
    frame: pl.DataFrame, seed: int, arrivals: ArrivalProcess, think: float | DurationDistribution
) -> pl.DataFrame:
    """Draw starts of sessions and think times of later rows, and sort the rows by earliest arrival."""
    need(frame, "with_session_arrivals", "session_id")
    first = _first_of_session(frame["session_id"])
    starts = first == np.arange(frame.height)
    drawn = _core.draw_arrivals(json.dumps(arrivals.to_json()), int(starts.sum()), seed)
    think_s = np.where(starts, 0.0, np.asarray(_durations(think, frame.height, seed, "think")))
    since = pl.DataFrame({"first": first, "s": think_s}).select(pl.col("s").cum_sum().over("first"))
    filled = frame.drop("arrival_s", "think_s", strict=False).with_columns(
        arrival_s=pl.Series(drawn[np.cumsum(starts)[first] - 1]) + since["s"],
        think_s=pl.when(pl.Series(~starts)).then(pl.Series(think_s)),
    )
    return merged([filled], "with_session_arrivals", ["the workload"])


def _first_of_session(session_id: pl.Series) -> Any:
    """Return the first row of each row's session; the row itself if it has no session."""
    rows = pl.int_range(session_id.len(), dtype=pl.Int64, eager=True)
    session, row = pl.col("session"), pl.col("row")
    first = pl.when(session.is_null()).then(row).otherwise(row.min().over("session"))
    return pl.DataFrame({"session": session_id, "row": rows}).select(first)["row"].to_numpy()


def turns_by_session(frame: pl.DataFrame) -> tuple[int, int]:
    """Return the numbers of sessions and requests; a request without a session counts as a session."""
    first = _first_of_session(frame["session_id"])
    return int(np.unique(first).size), frame.height


def closed_loop(
    frame: pl.DataFrame, seed: int, users: int, ramp_s: float, think: float | DurationDistribution
) -> pl.DataFrame:
    """Assign row r to user r mod `users`, who sends it `think` after the previous answer."""
    if "session_id" in frame.columns:
        raise TraceError(
            "closed_loop",
            "not supported with session_id, which already assigns requests to users; drop the column, or use "
            "with_think",
        )
    user = pl.int_range(frame.height, eager=True, dtype=pl.Int64) % users
    first = pl.int_range(frame.height, eager=True) < users
    start_s = user.cast(pl.Float64) * (ramp_s / users)
    last_s = float(start_s[: min(users, frame.height)][-1])
    drawn = pl.Series(_durations(think, frame.height, seed, "think"))
    loop = frame.drop("think_s", "turn", strict=False).with_columns(
        arrival_s=pl.when(first).then(start_s).otherwise(last_s),
        session_id=user,
        think_s=pl.when(~first).then(drawn),
    )
    return _ordered(loop)


def at_once(frame: pl.DataFrame, seed: int) -> pl.DataFrame:
    """Set every arrival to 0."""
    return _ordered(frame.with_columns(pl.lit(0.0).alias("arrival_s")))


def open_loop(frame: pl.DataFrame, seed: int) -> pl.DataFrame:
    """Drop `think_s`."""
    return frame.drop("think_s", strict=False)


def with_patience(frame: pl.DataFrame, seed: int, patience: Any) -> pl.DataFrame:
    """Set one patience, values, or patience drawn for each row."""
    if isinstance(patience, pl.Series):
        return _filled(frame, "patience_s", patience)
    drawn = _durations(patience, frame.height, seed, "patience")
    return _ordered(frame.with_columns(patience_s=pl.Series(drawn)))


def _durations(distribution: float | DurationDistribution, n: int, seed: int, source: str) -> Any:
    return _core.draw_durations(json.dumps(duration_form(distribution)), n, seed, source, 0)


def with_prefix(frame: pl.DataFrame, seed: int, text: str, tokens: int) -> pl.DataFrame:
    """Prepend a shared text to every prompt. A row that continues another inherits it from that row."""
    need(frame, "with_prefix", "prompt_tokens")
    frame = prefixes.with_links(frame, "with_prefix")
    if "prefix_hashes" in frame.columns and frame["prefix_hashes"].null_count() < frame.height:
        at = int(frame["prefix_hashes"].is_not_null().arg_max() or 0)
        raise TraceError(
            "with_prefix", f"row {at}: not supported with prefix_hashes, which already define the prefix"
        )
    pair = pl.Struct({"text": pl.String, "tokens": pl.Int64})
    head = pl.Series([[{"text": text, "tokens": tokens}]], dtype=pl.List(pair)).new_from_index(
        0, frame.height
    )
    if "prefix_parts" in frame.columns:
        parts = prefixes.spelled(frame["prefix_parts"])
        empty = pl.Series([[]], dtype=pl.List(pair))
        filled = pl.when(parts.is_null()).then(empty).otherwise(parts)
        head = pl.select(pl.concat_list(head, filled)).to_series()
    if "continues" in frame.columns:
        head = pl.select(pl.when(frame["continues"].is_null()).then(head)).to_series()
    longer = frame["prompt_tokens"].cast(pl.Int64) + tokens
    return checked(frame.with_columns(longer, head.rename("prefix_parts")))


def concat(frame: pl.DataFrame, seed: int, others: tuple[Workload, ...], step: int) -> pl.DataFrame:
    """Merge all rows by arrival; ties are in the order of the workloads."""
    # Each workload has its own seed, so that two equal ones give different requests.
    frames = [frame, *(other.draw(subseed(seed, "concat", step, k)).frame for k, other in enumerate(others))]
    return merged(frames, "concat", [f"workload {k}" for k in range(len(frames))])


def merged(frames: list[pl.DataFrame], transform: str, names: list[str]) -> pl.DataFrame:
    """Merge all frames by arrival; ties are in the order of the frames. Errors name a frame."""
    present = {name for frame in frames for name in frame.columns}
    for name, column in COLUMNS.items():
        if name not in present:
            continue
        for frame_name, frame in zip(names, frames, strict=True):
            if name not in frame.columns and not (column.nullable or name == "priority"):
                raise TraceError(transform, f"{frame_name} has no {name}, which must be in all or none")
    if present.intersection(prefixes.EXPLICIT):
        # With such a column, sessions no longer imply links, so the links are made explicit.
        frames = [
            prefixes.with_links(frame, f"{transform}: {name}")
            for name, frame in zip(names, frames, strict=True)
        ]
        present = {name for frame in frames for name in frame.columns}
    offset = 0
    aligned = []
    mixes_classes = "class" in present and len({str(frame["class"].dtype) for frame in frames}) > 1
    types = {
        name: {frame[name].dtype for frame in frames if name in frame.columns}
        for name in ("session_id", "prefix_hashes", "prefix_parts")
    }
    for frame in frames:
        if "continues" in frame.columns:
            frame = frame.with_columns(frame["continues"] + offset)
        if mixes_classes:
            frame = frame.with_columns(frame["class"].cast(pl.String))
        for name, kinds in types.items():
            if len(kinds) > 1 and name in frame.columns:
                if name == "prefix_hashes":
                    raise TraceError(
                        transform, f"{name} must have one type, got {' and '.join(sorted(map(str, kinds)))}"
                    )
                series = frame[name]
                cast = series.cast(pl.String) if name == "session_id" else prefixes.spelled(series)
                frame = frame.with_columns(cast)
        if "priority" in present and "priority" not in frame.columns:
            frame = frame.with_columns(priority=pl.lit(0, pl.Int64))
        aligned.append(frame)
        offset += frame.height
    rows = pl.concat(aligned, how="diagonal")
    if "arrival_s" in present:
        order = rows["arrival_s"].to_numpy().argsort(kind="stable")
        rows = rows[order]
        if "continues" in present:
            new_rows = order.argsort(kind="stable")
            earlier = rows["continues"]
            moved = pl.Series("continues", new_rows, dtype=pl.Int32)[earlier.fill_null(0)]
            rows = rows.with_columns(
                pl.select(pl.when(earlier.is_not_null()).then(moved)).to_series().rename("continues")
            )
    return checked(rows)


def _ordered(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.select(name for name in COLUMNS if name in frame.columns)


APPLY: dict[str, Callable[..., Any]] = {
    transform.__name__: transform
    for transform in (
        speed,
        at_rate,
        spread,
        accumulate_turns,
        window,
        head,
        part,
        sample,
        resample,
        with_arrivals,
        with_lengths,
        with_classes,
        with_think,
        with_session_arrivals,
        closed_loop,
        at_once,
        open_loop,
        with_patience,
        with_prefix,
        concat,
    )
}
"""Transforms by the name that a workload records."""
