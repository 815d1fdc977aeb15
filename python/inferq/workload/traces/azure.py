"""Azure LLM inference traces: times and lengths of production requests of 2023 and 2024.

Source: Azure/AzurePublicDataset; cite Patel et al., "Splitwise", ISCA 2024.
"""

from __future__ import annotations

from inferq._lazy import pl
from inferq.workload.traces.source import Format, Options, Reading, Source

_TIME, _PROMPT, _OUTPUT = "TIMESTAMP", "ContextTokens", "GeneratedTokens"


def _fits(source: Source) -> bool:
    return bool({_PROMPT, _OUTPUT} & set(source.columns))


def _read(source: Source, options: Options) -> Reading:
    """Read arrivals in seconds since the first row, exact to the 100 ns of the files.

    Times are `2023-11-16 18:17:03.9799600` (2023) or `2024-05-10 00:00:00.009930+00:00` (2024, no fraction
    for whole seconds), both in UTC.
    """
    frame = source.table([_TIME, _PROMPT, _OUTPUT])
    text = frame[_TIME].str.strip_chars()
    when = text.str.strip_suffix("+00:00").str.to_datetime(
        "%Y-%m-%d %H:%M:%S%.f", time_unit="ns", time_zone=None, strict=False
    )
    if when.null_count():
        at = int(when.is_null().to_numpy().argmax())
        raise source.error(
            f"row {at}: {_TIME} is {text[at]!r}, must be a time like 2024-05-10 00:00:00.009930+00:00"
        )
    place = "row {}".format
    return Reading(
        pl.DataFrame(
            [
                source.since_first(when.to_physical().rename(_TIME), place),
                source.numbers(frame[_PROMPT], whole=True).rename("prompt_tokens"),
                source.numbers(frame[_OUTPUT], whole=True).rename("output_tokens"),
            ]
        ),
        columns_left_out=[name for name in source.columns if name not in frame.columns],
    )


AZURE = Format("azure", _fits, _read, kinds=("csv", "parquet"))
