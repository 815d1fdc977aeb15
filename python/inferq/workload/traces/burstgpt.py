"""BurstGPT: times, lengths and log types of requests to ChatGPT and GPT-4 over several months.

Source: HPMLL/BurstGPT, CC BY 4.0; cite Wang et al., arXiv 2401.17644.
"""

from __future__ import annotations

from inferq._lazy import np, pl
from inferq.workload.traces.source import Format, Options, Reading, Source

_TIME, _PROMPT, _OUTPUT, _CLASS, _SESSION = (
    "Timestamp",
    "Request tokens",
    "Response tokens",
    "Log Type",
    "Session ID",
)


def _fits(source: Source) -> bool:
    return bool({_PROMPT, _OUTPUT} & set(source.columns))


def _read(source: Source, options: Options) -> Reading:
    """Read arrivals since the first successful request; `class` is the log type (conversation or API).

    According to the source, requests with 0 response tokens failed; they are left out and counted. A session
    id (release 2) becomes `session_id`.
    """
    names = [_TIME, _PROMPT, _OUTPUT, _CLASS, *([_SESSION] if _SESSION in source.columns else [])]
    frame = source.table(names)
    parts = frame[_TIME].str.strip_chars().str.extract_groups(r"^(\d{1,10})(?:\.(\d{0,9}))?$").struct
    fraction = parts.field("2").fill_null("").str.pad_end(9, "0").cast(pl.Int64)
    when = (parts.field("1").cast(pl.Int64) * 1_000_000_000 + fraction).rename(_TIME)
    if when.null_count():
        at = int(when.is_null().to_numpy().argmax())
        raise source.error(
            f"row {at}: {_TIME} is {frame[_TIME][at]!r}, must be seconds like 118 or 19440110.0"
        )
    outputs = source.numbers(frame[_OUTPUT], whole=True)
    # An empty field is not 0; the column check reports it.
    successful = np.flatnonzero((outputs != 0).fill_null(True).to_numpy())
    if not successful.size:
        raise source.error("contains failed requests only (Response tokens is 0 in every row)")

    def place(at: int) -> str:
        return f"row {int(successful[at])}"

    columns = [
        source.since_first(when[successful], place),
        source.numbers(frame[_PROMPT], whole=True)[successful].rename("prompt_tokens"),
        outputs[successful].rename("output_tokens"),
        frame[_CLASS][successful].rename("class"),
    ]
    if _SESSION in names:
        columns.append(frame[_SESSION][successful].rename("session_id"))
    return Reading(
        pl.DataFrame(columns),
        place,
        rows_left_out={"failed": frame.height - successful.size},
        columns_left_out=[name for name in source.columns if name not in names],
    )


BURSTGPT = Format("burstgpt", _fits, _read, kinds=("csv", "parquet"))
