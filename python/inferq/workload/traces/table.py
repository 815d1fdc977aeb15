"""Tables whose columns are a workload's, or are named by the user: inferq's, Vidur's, any CSV or Parquet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferq._lazy import np, pl
from inferq.errors import ConfigError, TraceError
from inferq.workload.clock import in_seconds
from inferq.workload.columns import COLUMNS, Place
from inferq.workload.traces.mooncake import BLOCK_TOKENS
from inferq.workload.traces.proposal import proposed
from inferq.workload.traces.source import Format, Options, Reading, Source

_VIDUR = {
    "arrival_s": "arrived_at",
    "prompt_tokens": "num_prefill_tokens",
    "output_tokens": "num_decode_tokens",
}
_MOONCAKE_BLOCKS = "prefix_hash_ids"
"""The name of Mooncake's block ids where its traces are kept as Parquet."""

_DOCUMENT, _QUESTION, _CUT = "context_id", "question_tokens", "truncated"
"""Where lengths of LongBench are kept as Parquet: which document, how many tokens of the prompt come behind
it, and whether the middle of the prompt was cut out, as its official script does with long ones."""


def _wanted(source: Source, options: Options, others: Mapping[str, str]) -> dict[str, str]:
    """Which column of the file fills which: by the user's map, then by equal names, then by `others`."""
    wanted = {name: name for name in COLUMNS if name in source.columns}
    wanted |= {
        name: other for name, other in others.items() if other in source.columns and name not in wanted
    }
    wanted = source.named(wanted, options.columns, COLUMNS, "workload")
    if not {"prompt_tokens", "output_tokens"} & wanted.keys():
        raise source.error(
            f"has no column for prompt_tokens or output_tokens; it has {', '.join(source.columns[:20])}: "
            f"name them{proposed(source)}"
        )
    return {name: wanted[name] for name in COLUMNS if name in wanted}


def _read_table(source: Source, options: Options, others: Mapping[str, str]) -> Reading:
    wanted = _wanted(source, options, others)
    frame = source.table(sorted(set(wanted.values())))
    columns: dict[str, pl.Series] = {}
    empty = []
    told = None
    for name, other in wanted.items():
        series = frame[other]
        if series.null_count() == series.len():
            empty.append(other)  # a source without a value, not a row without one
        elif name == "arrival_s":
            columns[name], told = arrivals(source, series, options.time_unit)
        elif COLUMNS[name].kind in ("seconds", "tokens", "whole", "priority"):
            columns[name] = source.numbers(series, whole=COLUMNS[name].kind != "seconds").rename(name)
        else:
            columns[name] = series.rename(name)
    if not columns:
        raise source.error(f"has no value in {', '.join(empty)}")
    if wanted.get("prefix_hashes") == _MOONCAKE_BLOCKS and "prefix_block_tokens" not in columns:
        block = pl.Series([BLOCK_TOKENS], dtype=pl.Int32)
        columns["prefix_block_tokens"] = block.new_from_index(0, frame.height)
    metadata: dict[str, Any] = {"columns_empty": empty} if empty else {}
    if told is not None:
        metadata["times"] = [told]
    if options.time_unit is not None and "arrival_s" not in columns:
        raise ConfigError("time_unit", "there are no arrival times; name them with columns={'arrival_s': …}")
    used = set(wanted.values())
    if (
        {_DOCUMENT, _QUESTION} <= set(source.columns)
        and "prompt_tokens" in columns
        and not ({"prefix_hashes", "prefix_parts", "continues"} & columns.keys())
    ):
        columns["prefix_parts"] = _documents(source, columns["prompt_tokens"])
        used |= {_DOCUMENT, _QUESTION, _CUT}
    left_out = [name for name in source.columns if name not in used]
    made, place, rows_left_out = _without_empty_messages(pl.DataFrame(columns), source.place)
    return Reading(made, place, rows_left_out, left_out, metadata)


def _documents(source: Source, prompts: Any) -> Any:
    """The document with which each prompt begins, up to its question; half of a prompt that was cut."""
    cut = [_CUT] if _CUT in source.columns else []
    rows = source.table([_DOCUMENT, _QUESTION, *cut])
    document = rows[_DOCUMENT].cast(pl.String)
    tokens = prompts.cast(pl.Int64) - source.numbers(rows[_QUESTION], whole=True)
    if cut and rows[_CUT].dtype == pl.Boolean:
        tokens = pl.select(
            pl.when(rows[_CUT]).then(prompts.cast(pl.Int64) // 2).otherwise(tokens)
        ).to_series()
    pair = pl.struct(text="document " + document, tokens=tokens)
    counted = document.is_not_null() & (tokens > 0)
    return pl.select(prefix_parts=pl.when(counted).then(pl.concat_list(pair))).to_series()


def _without_empty_messages(frame: Any, place: Place) -> tuple[Any, Place, dict[str, int]]:
    """Leave out and count the empty messages that lengths of conversations may hold.

    Such a table has sessions and no arrivals. An engine can neither be sent an empty prompt nor emit an empty
    answer, so these rows are no requests; in any other table a 0 is wrong.
    """
    if "session_id" not in frame.columns or "arrival_s" in frame.columns:
        return frame, place, {}
    kept = np.ones(frame.height, dtype=bool)
    counts = {}
    for name, reason in (("prompt_tokens", "empty_prompts"), ("output_tokens", "empty_answers")):
        if name in frame.columns and frame[name].dtype.is_numeric():
            zero = (frame[name] == 0).fill_null(False).to_numpy() & kept
            counts[reason] = int(zero.sum())
            kept &= ~zero
    rows = np.flatnonzero(kept)
    return frame.filter(pl.Series(kept)), lambda at: place(int(rows[at])), counts


def arrivals(source: Source, times: pl.Series, unit: str | None) -> tuple[pl.Series, str | None]:
    """A column of a file as arrival times, and what was done to it; an error names the file."""
    try:
        seconds, told = in_seconds(times, unit, source.place)
    except TraceError as error:
        raise error.within(str(source.path)) from None
    return seconds.rename("arrival_s"), told


def _table(
    name: str,
    any_of: set[str],
    others: Mapping[str, str],
    kinds: tuple[str, ...] = ("parquet", "csv", "json"),
) -> Format:
    """A format of tables, known by any one of some columns."""
    return Format(
        name,
        lambda source: not any_of.isdisjoint(source.columns),
        lambda source, options: _read_table(source, options, others),
        maps_columns=True,
        kinds=kinds,
    )


def _read_named(source: Source, options: Options) -> Reading:
    if not options.columns:
        raise ConfigError(
            "columns", 'format "table" needs a map such as {"prompt_tokens": "input_len"}' + proposed(source)
        )
    return _read_table(source, options, {})


INFERQ = _table(
    "inferq", {"arrival_s", "prompt_tokens", "output_tokens"}, {"prefix_hashes": _MOONCAKE_BLOCKS}
)
VIDUR = _table("vidur", {"num_prefill_tokens", "num_decode_tokens"}, _VIDUR, ("parquet", "csv"))
TABLE = Format(
    "table", lambda source: False, _read_named, maps_columns=True, kinds=("parquet", "csv", "json")
)
