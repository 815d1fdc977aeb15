"""Workloads from trace files. The format is detected from the content, not from the file's name.

To add a format: create a file in this folder with a `Format` (how to detect and read it), list it in
`_FORMATS`, add a synthetic sample to `traces/`, and test it in `tests/test_trace.py`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from inferq.checks import nearest
from inferq.errors import ConfigError, TraceError
from inferq.workload.columns import checked
from inferq.workload.generated import Origin
from inferq.workload.traces import servegen
from inferq.workload.traces.aiperf import AIPERF
from inferq.workload.traces.azure import AZURE
from inferq.workload.traces.burstgpt import BURSTGPT
from inferq.workload.traces.dolly import DOLLY
from inferq.workload.traces.guidellm import GUIDELLM
from inferq.workload.traces.longbench import LONGBENCH
from inferq.workload.traces.mooncake import MOONCAKE
from inferq.workload.traces.openai import OPENAI
from inferq.workload.traces.proposal import proposed
from inferq.workload.traces.sharegpt import SHAREGPT
from inferq.workload.traces.source import Format, Options, Source
from inferq.workload.traces.table import INFERQ, TABLE, VIDUR
from inferq.workload.traces.token_counters import counter
from inferq.workload.traces.vllm_bench import VLLM_BENCH
from inferq.workload.workload import Workload

__all__ = ["FORMATS", "read_trace"]

_FORMATS = (
    *(AZURE, BURSTGPT, VIDUR, AIPERF, VLLM_BENCH, GUIDELLM, OPENAI, MOONCAKE, SHAREGPT, LONGBENCH, DOLLY),
    *(INFERQ, TABLE),
)

_OF_TOOLS = (AIPERF, VLLM_BENCH, GUIDELLM, OPENAI)
"""Formats of tools that are detected from their fields."""

FORMATS = (*(form.name for form in _FORMATS), servegen.NAME)
"""Names that `read_trace` accepts as `format`."""

_SERVEGEN_ROW = re.compile(r"\d+(\.\d+)?")


def about_formats() -> dict[str, str]:
    """Return the description of each format from the table of `read_trace`."""
    rows = re.findall(r"^\s*\| `([a-z-]+)` \| (.+?) \|", read_trace.__doc__ or "", re.MULTILINE)
    return {name: description.replace("`", "") for name, description in rows}


def read_trace(
    path: str | os.PathLike[str],
    format: str | None = None,
    *,
    columns: Mapping[str, str] | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    tokens_per_word: float | None = None,
    time_unit: str | None = None,
    clients: Sequence[str] | None = None,
    start_s: float | None = None,
    end_s: float | None = None,
    rate_factor: float | None = None,
) -> Workload:
    """Read a serving trace or a dataset of prompts into a workload. Files may be compressed with gzip.

    | format | content | columns |
    |---|---|---|
    | `inferq` | Parquet or CSV with the columns of `Workload` | all of these columns |
    | `azure` | Azure LLM 2023 and 2024 CSV | arrivals, lengths |
    | `burstgpt` | BurstGPT CSV | arrivals, lengths, class (log type), sessions (release 2) |
    | `vidur` | Vidur CSV | lengths, arrivals if present |
    | `mooncake` | Mooncake JSONL | arrivals, lengths, prefix hashes of 512 tokens |
    | `sharegpt` | ShareGPT JSON, text | lengths, sessions, turns: one row per answer |
    | `longbench` | LongBench v2 JSON or JSONL, text | prompts, class (domain), shared documents |
    | `dolly` | Dolly JSONL, text | lengths, class (category) |
    | `vllm-bench` | output of `vllm bench serve --save-result --save-detailed` | arrivals, lengths |
    | `aiperf` | AIPerf `profile_export.jsonl` | arrivals, lengths, sessions and turns |
    | `guidellm` | GuideLLM `benchmarks.json` with one benchmark | arrivals, lengths |
    | `openai` | log of responses with `usage.prompt_tokens` etc. | arrivals, lengths |
    | `table` | any other CSV, Parquet, JSON or JSONL, with `columns` | the named columns |
    | `servegen` | a ServeGen folder: `NAME-trace.csv`, `NAME-dataset.json` per client | see below |

    A prefix cache can reuse shared prefixes: blocks with equal hashes (`mooncake`), turns that continue the
    previous turn (`sharegpt`, and tables with `session_id` and `turn`), and the document of several questions
    (`longbench`). Tables of LongBench lengths have `context_id` and `question_tokens`, the tokens after the
    document; if `truncated` is true, the middle of the prompt is cut and only its first half is shared.
    `burstgpt` and `servegen` publish no turns, so their requests share nothing. `Workload.reuse` counts
    shared tokens.

    `with_arrivals` and `with_outputs` fill columns that a source lacks. Arrivals of `azure`, `burstgpt`,
    `mooncake` and all logs are seconds since the first request. In tables, dates
    (`2026-11-20T09:00:00.028Z`) and Unix timestamps become relative to the first request, which the metadata
    and each run report.

    Nothing is dropped silently. The workload's `metadata` has `source`, `format`, `rows`, `rows_left_out`
    (failed requests of BurstGPT, empty messages of conversations), `columns_left_out`, `columns_empty` (null
    in every row, treated as absent) and `token_count`. Any other length of 0 is an error.

    ServeGen publishes statistics of clients instead of requests, so its folder becomes a synthetic workload.
    Each client is a renewal process. A gap has the published family and shape of the window in which it
    begins, and a scale that matches the published rate. (The published scale is a fit and its mean differs
    from 1 / rate.) A gap that crosses windows is mapped through the expected number of requests, which
    preserves the rates. Lengths are drawn from the client's histograms of that time, prompt and output
    independently, since only marginals are published. A multimodal prompt is its text plus the tokens of
    each image, audio and video. The class is the client's name. Clients with requests but without lengths
    are left out, unless `clients` names them, and counted in `metadata` with their expected requests. A
    window with empty histograms uses those of the previous or else the next window, and is counted.

    Args:
        path: the file, or the folder of ServeGen.
        format: one of the names above. Default: detected from the content.
        columns: for tables: the file's column for each column of the workload, such as
            `{"prompt_tokens": "num_prefill_tokens"}`. Columns with a workload's names are read too. Nested
            JSON fields are named with dots: `usage.prompt_tokens`. If a format is not recognized, the error
            proposes `columns`.
        tokenizer: for text: path of a `tokenizer.json` (requires the extra `inferq[tokenizers]`). Texts are
            counted without special tokens and without a chat template.
        tokens_per_word: for text: tokens per word, instead of a tokenizer.
        time_unit: for tables and JSON logs: unit of arrival times, `"s"`, `"ms"`, `"us"` or `"ns"`. Default:
            seconds; Unix timestamps by their size.
        clients: for ServeGen: names of clients, such as `["chunk-5"]`. Default: all.
        start_s: for ServeGen: start of the range in seconds, which becomes 0. Default: the first window.
        end_s: for ServeGen: end of the range. Default: the last window.
        rate_factor: for ServeGen: multiplies all rates; see `metadata["expected_requests"]`.

    Raises:
        TraceError: the file cannot be read; it names the file, the field, and the row (tables, from 0), line
            (JSONL, from 1) or entry (JSON list, from 0).
        ConfigError: an argument is wrong.

    Example:
        >>> import inferq as iq
        >>> chat = iq.read_trace("traces/azure_2023.csv")
        >>> chat.metadata["format"], chat.frame.height
        ('azure', 300)
        >>> conversations = iq.read_trace("traces/sharegpt.json", tokens_per_word=1.3)
        >>> conversations.metadata["token_count"]
        {'tokens_per_word': 1.3}
        >>> service = iq.read_trace("traces/servegen", start_s=600, end_s=1800, rate_factor=2)
        >>> service.metadata["expected_requests"], service.draw(seed=1).frame.columns
        (1080.0, ['arrival_s', 'prompt_tokens', 'output_tokens', 'class'])
    """
    if not isinstance(path, (str, os.PathLike)):
        raise ConfigError("path", f"must be a path, got {path!r}")
    chosen = None
    if format is not None:
        if format not in FORMATS:
            raise ConfigError("format", f"unknown format {format!r}{nearest(str(format), FORMATS)}")
        chosen = next((form for form in _FORMATS if form.name == format), None)
    if columns is not None and not isinstance(columns, Mapping):
        raise ConfigError(
            "columns", f"must map columns of a workload to columns of the file, got {columns!r}"
        )
    ranges = {"clients": clients, "start_s": start_s, "end_s": end_s, "rate_factor": rate_factor}
    if format == servegen.NAME or (format is None and os.path.isdir(path)):
        if columns is not None or tokenizer is not None or tokens_per_word is not None:
            raise ConfigError(
                "columns, tokenizer, tokens_per_word: not supported for ServeGen, which has its own columns "
                "and token counts"
            )
        if time_unit is not None:
            raise ConfigError("time_unit", "not supported for ServeGen, whose times are in seconds")
        if not os.path.isdir(path):
            raise TraceError(path, "is a file; servegen requires a folder")
        recipe, metadata = servegen.read(Path(path), servegen.Range.of(clients, start_s, end_s, rate_factor))
        return Workload._of(recipe, metadata=metadata)
    for name, value in ranges.items():
        if value is not None:
            raise ConfigError(
                name, "is for ServeGen only; cut and scale other traces with window, at_rate and speed"
            )
    source = Source(Path(path))
    form = chosen or _detected(source, columns is not None)
    if columns and not form.maps_columns:
        raise ConfigError("columns", f"{form.name} has fixed columns; use format='table' to map others")
    if form.counts_text and tokenizer is None and tokens_per_word is None:
        raise ConfigError(
            path, f"{form.name} contains text: set tokenizer or tokens_per_word to count its tokens"
        )
    if not form.counts_text and (tokenizer is not None or tokens_per_word is not None):
        name = "tokens_per_word" if tokenizer is None else "tokenizer"
        raise ConfigError(name, f"not supported for {form.name}, which has token counts; leave it out")
    if time_unit is not None and not (form.maps_columns or form is OPENAI):
        raise ConfigError(
            "time_unit", f"is for tables and logs; {form.name} has a fixed unit, so leave it out"
        )
    if source.kind not in form.kinds:
        raise source.error(f"is {source.kind}; {form.name} must be {' or '.join(form.kinds)}")
    if form in _OF_TOOLS and not form.fits(source):
        raise source.error(f"does not match {form.name}; it has the fields {', '.join(source.columns[:20])}")
    counts = counter(tokenizer, tokens_per_word)
    reading = form.read(source, Options(columns, counts, time_unit))
    try:
        frame = checked(reading.frame, reading.place)
    except TraceError as error:
        raise error.within(str(path)) from None
    metadata = {
        "source": str(path),
        "format": form.name,
        "rows": frame.height,
        "rows_left_out": reading.rows_left_out,
        "columns_left_out": reading.columns_left_out,
        **reading.metadata,
        "token_count": counts.to_json() if counts else "as in the source",
    }
    table: dict[str, object] = {"trace": str(path), "format": form.name}
    if columns is not None:
        table["columns"] = dict(columns)
    if tokenizer is not None:
        table["tokenizer"] = str(tokenizer)
    if tokens_per_word is not None:
        table["tokens_per_word"] = tokens_per_word
    if time_unit is not None:
        table["time_unit"] = time_unit
    return Workload._of(frame, metadata=metadata, origin=Origin(table, frame))


def _detected(source: Source, has_columns: bool) -> Format:
    """Return the format that matches the content."""
    for form in _FORMATS:
        # With a column map, logs of tools are read as tables. Formats with texts or hashes are still
        # detected, so that the map raises an error instead of dropping them.
        eligible = form.maps_columns or not has_columns or (source.kind == "json" and form not in _OF_TOOLS)
        if source.kind in form.kinds and form.fits(source) and eligible:
            return form
    if _is_servegen(source):
        raise source.error(
            "is part of ServeGen: pass the folder with NAME-trace.csv and NAME-dataset.json instead"
        )
    if has_columns:
        return TABLE
    if source.kind == "json":
        content = f"JSON with the fields {', '.join(sorted(source.columns)[:20])}"
    else:
        content = f"{source.kind} with the columns {', '.join(source.columns[:20])}"
    raise source.error(
        f"format not recognized: {content[:300]}; map the columns{proposed(source)}, "
        f"or set format= ({', '.join(FORMATS)})"
    )


def _is_servegen(source: Source) -> bool:
    if source.kind == "json":
        first = source.records[0][0]
        return any("output_tokens" in value for value in first.values() if isinstance(value, dict))
    if source.kind == "parquet":
        return {"workload", "client"} <= set(source.columns)
    # Rows without a header: start of the window, rate, cv, family, two parameters.
    names = source.columns
    return (
        len(names) == 6 and bool(_SERVEGEN_ROW.fullmatch(names[0])) and names[3] in ("", "Gamma", "Weibull")
    )
