"""Tables with columns of a workload, of Vidur, or mapped by the user."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferq._lazy import np, pl
from inferq.errors import ConfigError, TraceError
from inferq.workload.clock import in_seconds
from inferq.workload.columns import ALIASES, COLUMNS, Place
from inferq.workload.traces.mooncake import BLOCK_TOKENS
from inferq.workload.traces.proposal import proposed
from inferq.workload.traces.source import Format, Options, Reading, Source

_VIDUR = {
    "arrival_s": "arrived_at",
    "prompt_tokens": "num_prefill_tokens",
    "output_tokens": "num_decode_tokens",
}
_MOONCAKE_BLOCKS = "prefix_hash_ids"
"""Column of Mooncake's block ids in Parquet versions of its traces."""

_DOCUMENT, _QUESTION, _CUT = "context_id", "question_tokens", "truncated"
"""Columns of LongBench lengths in Parquet: the document, the tokens of the prompt after it, and whether the
middle of the prompt was cut, as the official script does with long prompts."""


def _mapping(source: Source, options: Options, others: Mapping[str, str]) -> dict[str, str]:
    """Return the file's column for each column: by the user's map, equal names, `ALIASES`, `others`."""
    mapping = {name: name for name in COLUMNS if name in source.columns}
    others = {**others, **{name: alias for alias, name in ALIASES.items()}}
    mapping |= {
        name: other for name, other in others.items() if other in source.columns and name not in mapping
    }
    mapping = source.named(mapping, options.columns, COLUMNS, "workload")
    if not {"prompt_tokens", "output_tokens"} & mapping.keys():
        raise source.error(
            f"has no column for prompt_tokens or output_tokens; it has {', '.join(source.columns[:20])}: "
            f"map them{proposed(source)}"
        )
    return {name: mapping[name] for name in COLUMNS if name in mapping}


def _read_table(source: Source, options: Options, others: Mapping[str, str]) -> Reading:
    mapping = _mapping(source, options, others)
    frame = source.table(sorted(set(mapping.values())))
    columns: dict[str, pl.Series] = {}
    empty = []
    note = None
    for name, other in mapping.items():
        series = frame[other]
        if series.null_count() == series.len():
            empty.append(other)  # treated as a missing column
        elif name == "arrival_s":
            columns[name], note = arrivals(source, series, options.time_unit)
        elif COLUMNS[name].kind in ("seconds", "tokens", "whole", "priority"):
            columns[name] = source.numbers(series, whole=COLUMNS[name].kind != "seconds").rename(name)
        else:
            columns[name] = series.rename(name)
    if not columns:
        raise source.error(f"has null in all rows of {', '.join(empty)}")
    if mapping.get("prefix_hashes") == _MOONCAKE_BLOCKS and "prefix_block_tokens" not in columns:
        block = pl.Series([BLOCK_TOKENS], dtype=pl.Int32)
        columns["prefix_block_tokens"] = block.new_from_index(0, frame.height)
    metadata: dict[str, Any] = {"columns_empty": empty} if empty else {}
    if note is not None:
        metadata["times"] = [note]
    if options.time_unit is not None and "arrival_s" not in columns:
        raise ConfigError("time_unit", "requires arrival times; map them with columns={'arrival_s': …}")
    used = set(mapping.values())
    if (
        {_DOCUMENT, _QUESTION} <= set(source.columns)
        and "prompt_tokens" in columns
        and not ({"prefix_hashes", "prefix_parts", "continues"} & columns.keys())
    ):
        columns["prefix_parts"] = _documents(source, columns["prompt_tokens"])
        used |= {_DOCUMENT, _QUESTION, _CUT}
    left_out = [name for name in source.columns if name not in used]
    filtered, place, rows_left_out = _without_empty_messages(pl.DataFrame(columns), source.place)
    return Reading(filtered, place, rows_left_out, left_out, metadata)


def _documents(source: Source, prompts: Any) -> Any:
    """Return the document at the start of each prompt, up to its question; half of a cut prompt."""
    cut = [_CUT] if _CUT in source.columns else []
    rows = source.table([_DOCUMENT, _QUESTION, *cut])
    document = rows[_DOCUMENT].cast(pl.String)
    tokens = prompts.cast(pl.Int64) - source.numbers(rows[_QUESTION], whole=True)
    if cut and rows[_CUT].dtype == pl.Boolean:
        tokens = pl.select(
            pl.when(rows[_CUT]).then(prompts.cast(pl.Int64) // 2).otherwise(tokens)
        ).to_series()
    pair = pl.struct(text="document " + document, tokens=tokens)
    has_document = document.is_not_null() & (tokens > 0)
    return pl.select(prefix_parts=pl.when(has_document).then(pl.concat_list(pair))).to_series()


def _without_empty_messages(frame: Any, place: Place) -> tuple[Any, Place, dict[str, int]]:
    """Leave out and count empty messages in tables of conversations, which have sessions but no arrivals.

    An engine neither accepts an empty prompt nor emits an empty answer, so these rows are not requests. In
    all other tables, a length of 0 is an error.
    """
    if "session_id" not in frame.columns or "arrival_s" in frame.columns:
        return frame, place, {}
    is_request = np.ones(frame.height, dtype=bool)
    counts = {}
    for name, reason in (("prompt_tokens", "empty_prompts"), ("output_tokens", "empty_answers")):
        if name in frame.columns and frame[name].dtype.is_numeric():
            zero = (frame[name] == 0).fill_null(False).to_numpy() & is_request
            counts[reason] = int(zero.sum())
            is_request &= ~zero
    rows = np.flatnonzero(is_request)
    return frame.filter(pl.Series(is_request)), lambda at: place(int(rows[at])), counts


def arrivals(source: Source, times: pl.Series, unit: str | None) -> tuple[pl.Series, str | None]:
    """Return a column of a file in seconds, and a note on the conversion; errors name the file."""
    try:
        seconds, note = in_seconds(times, unit, source.place)
    except TraceError as error:
        raise error.within(str(source.path)) from None
    return seconds.rename("arrival_s"), note


def _table(
    name: str,
    any_of: set[str],
    others: Mapping[str, str],
    kinds: tuple[str, ...] = ("parquet", "csv", "json"),
) -> Format:
    """Create a format of tables that is detected by any of some columns."""
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
            "columns",
            'format "table" requires a mapping such as {"prompt_tokens": "input_len"}' + proposed(source),
        )
    return _read_table(source, options, {})


INFERQ = _table(
    "inferq", {"arrival_s", "prompt_tokens", "output_tokens"}, {"prefix_hashes": _MOONCAKE_BLOCKS}
)
VIDUR = _table("vidur", {"num_prefill_tokens", "num_decode_tokens"}, _VIDUR, ("parquet", "csv"))
TABLE = Format(
    "table", lambda source: False, _read_named, maps_columns=True, kinds=("parquet", "csv", "json")
)
