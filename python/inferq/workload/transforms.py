"""The transforms of a workload, on its frame.

Each function takes a canonical frame, the seed, the transform's own arguments, and returns a canonical frame.
Transforms without chance do not look at the seed. `APPLY` names them, so that a transform recorded on a
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

if TYPE_CHECKING:
    from inferq.workload.workload import Workload


def subseed(seed: int, *key: object) -> int:
    """A seed of its own for each source of chance that the core does not key itself."""
    text = json.dumps([seed, *key])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def duration(field: str, value: object) -> float | DurationDistribution:
    """`value`, a distribution of durations or seconds from 0 to 1e9, or a `ConfigError` naming `field`."""
    if isinstance(value, DurationDistribution):
        return value
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ConfigError(
            field, f"must be seconds or a distribution such as Exponential(mean_s=5), not {value!r}"
        )
    seconds = finite(field, value)
    if not 0 <= seconds <= 1e9:
        raise ConfigError(field, f"must be from 0 to 1e9 seconds, not {value!r}")
    return seconds


def duration_form(value: float | DurationDistribution) -> dict[str, Any]:
    """Seconds or a distribution of them, in the form that the core reads."""
    return value.to_json() if isinstance(value, DurationDistribution) else {"kind": "Fixed", "seconds": value}


def need(frame: pl.DataFrame, transform: str, name: str) -> None:
    """A `TraceError` unless the frame has the column that the transform works on."""
    if name not in frame.columns:
        how = "; give it some first: .with_arrivals(iq.dist.Poisson(rate=…))" if name == "arrival_s" else ""
        raise TraceError(transform, f"the workload has no {name}{how}")


def speed(frame: pl.DataFrame, seed: int, factor: float) -> pl.DataFrame:
    """Every arrival time divided by `factor`: one division each, correctly rounded."""
    need(frame, "speed", "arrival_s")
    # numpy divides; polars would multiply by the rounded inverse
    frame = frame.with_columns(pl.Series("arrival_s", frame["arrival_s"].to_numpy() / factor))
    check_sorted(frame["arrival_s"])
    return frame


def at_rate(frame: pl.DataFrame, seed: int, rate: float) -> pl.DataFrame:
    """`speed` by the wanted over the present mean rate."""
    need(frame, "at_rate", "arrival_s")
    arrivals = frame["arrival_s"]
    span = arrivals[-1] - arrivals[0]
    if not span > 0:
        raise TraceError("at_rate", "needs arrivals at two different instants at least")
    factor = rate / ((frame.height - 1) / span)
    if not 0 < factor < float("inf"):
        raise ConfigError(
            "at_rate", f"rate {rate} is out of reach from {(frame.height - 1) / span} requests per second"
        )
    return speed(frame, seed, factor)


def _cut(frame: pl.DataFrame, start: int, stop: int) -> pl.DataFrame:
    cut = frame.slice(start, stop - start)
    if not start or "continues" not in cut.columns:
        return cut
    moved = cut["continues"] - start
    if "prefix_parts" in cut.columns:
        # a row that lost the row it continued still begins with the parts with which that one began
        rows = pl.int_range(start, stop, eager=True)
        first = pl.Series(prefixes.firsts(frame["continues"])[start:stop])
        from_ = pl.select(pl.when((moved < 0).fill_null(False)).then(first).otherwise(rows)).to_series()
        cut = cut.with_columns(frame["prefix_parts"].gather(from_))
    return cut.with_columns(pl.select(pl.when(moved >= 0).then(moved)).to_series().rename("continues"))


def window(frame: pl.DataFrame, seed: int, start_s: float, end_s: float) -> pl.DataFrame:
    """Rows that arrive in `[start_s, end_s)`, on a clock that starts at `start_s`."""
    need(frame, "window", "arrival_s")
    first, last = (
        int(at) for at in frame["arrival_s"].to_numpy().searchsorted([start_s, end_s], side="left")
    )
    if first == last:
        raise TraceError("window", f"no request arrives from {start_s} to {end_s} s")
    cut = _cut(frame, first, last)
    return cut.with_columns(cut["arrival_s"] - start_s)


def head(frame: pl.DataFrame, seed: int, n: int) -> pl.DataFrame:
    """The first `n` rows."""
    return _cut(frame, 0, min(n, frame.height))


def part(frame: pl.DataFrame, seed: int, at: float, second: bool) -> pl.DataFrame:
    """The rows before, or from, row `at` (an int), or the row at that share of all (a float)."""
    row = at if isinstance(at, int) else round(at * frame.height)
    if not 0 < row < frame.height:
        raise TraceError("split", f"{at} leaves one part of {frame.height} requests empty")
    return _cut(frame, row, frame.height) if second else _cut(frame, 0, row)


def sample(frame: pl.DataFrame, seed: int, n: int, draw: int) -> pl.DataFrame:
    """`n` rows drawn with replacement; in order of arrival where there are arrivals."""
    if "continues" in frame.columns:
        raise TraceError(
            "sample", "a drawn row would lose the row that it continues; drop the column continues first"
        )
    rows = _core.draw_rows(frame.height, n, draw)
    return frame[np.sort(rows) if "arrival_s" in frame.columns else rows]


def _filled(frame: pl.DataFrame, name: str, values: object) -> pl.DataFrame:
    """The frame with one column replaced by values given by the user."""
    series = as_series(name, values)
    if series.len() != frame.height:
        raise TraceError(name, f"{series.len()} values for {frame.height} requests")
    return checked(frame.with_columns(series))


def with_arrivals(frame: pl.DataFrame, seed: int, arrivals: object) -> pl.DataFrame:
    """Arrivals from a process or given ones, the rows keeping their order."""
    if not isinstance(arrivals, ArrivalProcess):
        return _filled(frame, "arrival_s", arrivals)
    drawn = _core.draw_arrivals(json.dumps(arrivals.to_json()), frame.height, seed)
    return _ordered(frame.with_columns(pl.Series("arrival_s", drawn)))


def with_lengths(frame: pl.DataFrame, seed: int, name: str, lengths: object) -> pl.DataFrame:
    """One column of lengths from a distribution, or given ones."""
    if not isinstance(lengths, LengthDistribution):
        return _filled(frame, name, lengths if not isinstance(lengths, int) else [lengths] * frame.height)
    source = name.removesuffix("_tokens")
    if isinstance(lengths, Empirical):
        rows = _core.draw_rows(lengths.frame.height, frame.height, subseed(seed, "lengths", source))
        drawn = lengths.frame[name].to_numpy()[rows]
    else:
        drawn = _core.draw_lengths(json.dumps(lengths.to_json()), frame.height, seed, source)
    # checked again: a drawn length may be too long for the one beside it
    return checked(frame.with_columns(pl.Series(name, drawn.astype(np.int32, copy=False))))


def with_classes(frame: pl.DataFrame, seed: int, classes: object) -> pl.DataFrame:
    """One class for all, given classes, or a class for each request drawn by share."""
    if isinstance(classes, str):
        drawn = pl.Series("class", [classes], dtype=pl.Enum([classes])).new_from_index(0, frame.height)
        return _ordered(frame.with_columns(drawn))
    if not isinstance(classes, dict):
        return _filled(frame, "class", classes)
    steps = 2**31
    sums = np.cumsum(list(classes.values()))
    edges = np.rint(sums / sums[-1] * steps)  # the shares add up to 1 but for rounding
    codes = np.searchsorted(
        edges, _core.draw_rows(steps, frame.height, subseed(seed, "classes")), side="right"
    )
    names = sorted(classes)
    place = {name: k for k, name in enumerate(names)}
    ordered = np.array([place[name] for name in classes])[codes]
    return _ordered(frame.with_columns(pl.Series("class", names, dtype=pl.Enum(names))[ordered]))


def with_think(frame: pl.DataFrame, seed: int, think: float | DurationDistribution) -> pl.DataFrame:
    """`think_s` for all but the first row of each session; rows without a session have none."""
    need(frame, "with_think", "session_id")
    follows = frame["session_id"].is_not_null() & ~frame["session_id"].is_first_distinct()
    drawn = _durations(think, frame.height, seed, "think")
    return _ordered(frame.with_columns(think_s=pl.when(follows).then(pl.Series(drawn))))


def with_session_arrivals(
    frame: pl.DataFrame, seed: int, arrivals: ArrivalProcess, think: float | DurationDistribution
) -> pl.DataFrame:
    """Starts of sessions from a process, and think times for their later rows; rows go into that order."""
    need(frame, "with_session_arrivals", "session_id")
    first = _first_of_session(frame["session_id"])
    starts = first == np.arange(frame.height)
    drawn = _core.draw_arrivals(json.dumps(arrivals.to_json()), int(starts.sum()), seed)
    thought = np.where(starts, 0.0, np.asarray(_durations(think, frame.height, seed, "think")))
    since = pl.DataFrame({"first": first, "s": thought}).select(pl.col("s").cum_sum().over("first"))
    filled = frame.drop("arrival_s", "think_s", strict=False).with_columns(
        arrival_s=pl.Series(drawn[np.cumsum(starts)[first] - 1]) + since["s"],
        think_s=pl.when(pl.Series(~starts)).then(pl.Series(thought)),
    )
    return merged([filled], "with_session_arrivals", ["the workload"])


def _first_of_session(session_id: pl.Series) -> Any:
    """For each row the first row of its session; a row without one is its own."""
    rows = pl.int_range(session_id.len(), dtype=pl.Int64, eager=True)
    session, row = pl.col("session"), pl.col("row")
    first = pl.when(session.is_null()).then(row).otherwise(row.min().over("session"))
    return pl.DataFrame({"session": session_id, "row": rows}).select(first)["row"].to_numpy()


def turns_by_session(frame: pl.DataFrame) -> tuple[int, int]:
    """How many sessions a frame has, and how many requests; one without a session is a session."""
    first = _first_of_session(frame["session_id"])
    return int(np.unique(first).size), frame.height


def closed_loop(
    frame: pl.DataFrame, seed: int, users: int, ramp_s: float, think: float | DurationDistribution
) -> pl.DataFrame:
    """Row r is of user r mod `users`, who sends it `think` after the answer before it."""
    if "session_id" in frame.columns:
        raise TraceError("closed_loop", "the workload has a session_id, which says already who sends what")
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
    """Every arrival at 0."""
    return _ordered(frame.with_columns(pl.lit(0.0).alias("arrival_s")))


def open_loop(frame: pl.DataFrame, seed: int) -> pl.DataFrame:
    """Without `think_s`."""
    return frame.drop("think_s", strict=False)


def with_patience(frame: pl.DataFrame, seed: int, patience: Any) -> pl.DataFrame:
    """One patience for all, given ones, or one drawn for each row."""
    if isinstance(patience, pl.Series):
        return _filled(frame, "patience_s", patience)
    drawn = _durations(patience, frame.height, seed, "patience")
    return _ordered(frame.with_columns(patience_s=pl.Series(drawn)))


def _durations(distribution: float | DurationDistribution, n: int, seed: int, source: str) -> Any:
    return _core.draw_durations(json.dumps(duration_form(distribution)), n, seed, source, 0)


def with_prefix(frame: pl.DataFrame, seed: int, text: str, tokens: int) -> pl.DataFrame:
    """A shared text in front of every prompt; a row that continues another has it from there."""
    need(frame, "with_prefix", "prompt_tokens")
    frame = prefixes.with_links(frame, "with_prefix")
    if "prefix_hashes" in frame.columns and frame["prefix_hashes"].null_count() < frame.height:
        at = int(frame["prefix_hashes"].is_not_null().arg_max() or 0)
        raise TraceError(
            "with_prefix", f"row {at}: its prefix_hashes say already with what its prompt begins"
        )
    pair = pl.Struct({"text": pl.String, "tokens": pl.Int64})
    head = pl.Series([[{"text": text, "tokens": tokens}]], dtype=pl.List(pair)).new_from_index(
        0, frame.height
    )
    if "prefix_parts" in frame.columns:
        then = prefixes.spelled(frame["prefix_parts"])
        none = pl.Series([[]], dtype=pl.List(pair))
        head = pl.select(pl.concat_list(head, pl.when(then.is_null()).then(none).otherwise(then))).to_series()
    if "continues" in frame.columns:
        head = pl.select(pl.when(frame["continues"].is_null()).then(head)).to_series()
    longer = frame["prompt_tokens"].cast(pl.Int64) + tokens
    return checked(frame.with_columns(longer, head.rename("prefix_parts")))


def concat(frame: pl.DataFrame, seed: int, others: tuple[Workload, ...], step: int) -> pl.DataFrame:
    """All rows merged by arrival; at one instant in the order of the workloads."""
    # each workload draws from a seed of its own, or two equal ones would give equal requests
    frames = [frame, *(other.draw(subseed(seed, "concat", step, k)).frame for k, other in enumerate(others))]
    return merged(frames, "concat", [f"workload {k}" for k in range(len(frames))])


def merged(frames: list[pl.DataFrame], transform: str, names: list[str]) -> pl.DataFrame:
    """All rows of all frames by arrival, at one instant in the order of the frames; errors name a frame."""
    present = {name for one in frames for name in one.columns}
    for name, column in COLUMNS.items():
        if name not in present:
            continue
        for which, one in zip(names, frames, strict=True):
            if name not in one.columns and not (column.nullable or name == "priority"):
                raise TraceError(transform, f"{which} has no {name}, others have one")
    if present.intersection(prefixes.EXPLICIT):
        # a column that says with what prompts begin would silence the sessions of those that have none
        frames = [
            prefixes.with_links(one, f"{transform}: {name}") for name, one in zip(names, frames, strict=True)
        ]
        present = {name for one in frames for name in one.columns}
    offset = 0
    aligned = []
    mixes_classes = "class" in present and len({str(one["class"].dtype) for one in frames}) > 1
    kinds_of = {
        name: {one[name].dtype for one in frames if name in one.columns}
        for name in ("session_id", "prefix_hashes", "prefix_parts")
    }
    for one in frames:
        if "continues" in one.columns:
            one = one.with_columns(one["continues"] + offset)
        if mixes_classes:
            one = one.with_columns(one["class"].cast(pl.String))
        for name, kinds in kinds_of.items():
            if len(kinds) > 1 and name in one.columns:
                if name == "prefix_hashes":
                    raise TraceError(transform, f"{name} holds {' and '.join(sorted(map(str, kinds)))}")
                alike = one[name].cast(pl.String) if name == "session_id" else prefixes.spelled(one[name])
                one = one.with_columns(alike)
        if "priority" in present and "priority" not in one.columns:
            one = one.with_columns(priority=pl.lit(0, pl.Int64))
        aligned.append(one)
        offset += one.height
    rows = pl.concat(aligned, how="diagonal")
    if "arrival_s" in present:
        order = rows["arrival_s"].to_numpy().argsort(kind="stable")
        rows = rows[order]
        if "continues" in present:
            new = order.argsort(kind="stable")
            earlier = rows["continues"]
            moved = pl.Series("continues", new, dtype=pl.Int32)[earlier.fill_null(0)]
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
        window,
        head,
        part,
        sample,
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
"""Each transform by the name under which a workload records it."""
