"""Workloads read from trace files. The format is found from the content, never from the file's name.

To add a format: write one file beside this one with a `Format` (how its content is known, how it is read),
list it in `_FORMATS`, put a sample that you made into `traces/`, and test it in `tests/test_trace.py`.
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
"""What is known by its fields alone."""

FORMATS = (*(one.name for one in _FORMATS), servegen.NAME)
"""The names that `read_trace` takes as `format`."""

_SERVEGEN_ROW = re.compile(r"\d+(\.\d+)?")


def about_formats() -> dict[str, str]:
    """Each format with a line that says what it is, from the table of `read_trace`."""
    rows = re.findall(r"^\s*\| `([a-z-]+)` \| (.+?) \|", read_trace.__doc__ or "", re.MULTILINE)
    return {name: what.replace("`", "") for name, what in rows}


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
    """Read a serving trace or a dataset of prompts into a workload; a file packed with gzip is read as it is.

    | format | what it is | fills |
    |---|---|---|
    | `inferq` | Parquet or CSV with the columns of `Workload` | those columns |
    | `azure` | Azure LLM 2023 and 2024 CSV | arrivals, lengths |
    | `burstgpt` | BurstGPT CSV | arrivals, lengths, class (log type), sessions (release 2) |
    | `vidur` | Vidur CSV | lengths, arrivals where it has them |
    | `mooncake` | Mooncake JSONL | arrivals, lengths, prefix hashes of 512 tokens |
    | `sharegpt` | ShareGPT JSON, text | lengths, sessions, turns: one row for each answer |
    | `longbench` | LongBench v2 JSON or JSONL, text | prompts, class (domain), shared documents |
    | `dolly` | Dolly JSONL, text | lengths, class (category) |
    | `vllm-bench` | what `vllm bench serve --save-result --save-detailed` writes | arrivals, lengths |
    | `aiperf` | AIPerf's `profile_export.jsonl` | arrivals, lengths, sessions and turns |
    | `guidellm` | the `benchmarks.json` of GuideLLM with one benchmark | arrivals, lengths |
    | `openai` | log of responses with `usage.prompt_tokens` and so on | arrivals, lengths |
    | `table` | any other CSV, Parquet, JSON or JSONL, with `columns` | the columns named |
    | `servegen` | a folder of ServeGen: `NAME-trace.csv`, `NAME-dataset.json` by client | see below |

    Prompts that begin alike share what a prefix cache keeps: blocks with equal hashes (`mooncake`), turns
    that go on from the turn before (`sharegpt`, and tables with `session_id` and `turn`), the document of
    several questions (`longbench`, and tables of its lengths with `context_id` and `question_tokens`, the
    tokens behind the document; where `truncated` says that the middle of a prompt was cut out, its first
    half). Sessions of `burstgpt` have no turns: what their prompts repeat is not published, so they share
    nothing; nor do the clients of `servegen`. `Workload.reuse` counts what is shared.

    What a source lacks (arrivals, outputs) is filled by `with_arrivals` and `with_outputs`. Arrivals of
    `azure`, `burstgpt`, `mooncake` and of all logs are seconds since the first request. Tables are taken as
    they are, but for times of day (`2026-11-20T09:00:00.028Z`) and times that count from 1970: those are
    taken relative to the first, which the metadata and each run say.

    Nothing is dropped silently: the workload's `metadata` holds `source`, `format`, `rows`, `rows_left_out`
    (BurstGPT's failed requests; empty messages of conversations), `columns_left_out`, `columns_empty` (null
    in every row, taken as absent) and `token_count`. Any other length of 0 is an error.

    ServeGen publishes no requests but measurements of clients, so its folder becomes a synthetic workload,
    drawn from the seed. Each client is a renewal process: gaps have the family and the shape of the window in
    which they begin, and the window's published rate (the published scale, whose mean differs from 1 / rate
    as a fit does, is not used); they run on over the edges of windows in expected requests, so the rates are
    kept. Lengths come from the client's histograms of the time, prompt and output apart: only marginals are
    published. A prompt of a multimodal client is its text and the tokens of each of its images, audios and
    videos. The client's name is the class. Clients with requests but without lengths are left out and counted
    in `metadata` with the requests they would have sent, unless `clients` names them; a window whose
    histograms are empty takes those before it, or the next, and is counted.

    Args:
        path: the file, or the folder of ServeGen.
        format: one of the names above, or None to find it from the content.
        columns: for tables: which column of the file fills which column of the workload, as
            `{"prompt_tokens": "num_prefill_tokens"}`; other columns with a workload's names are taken too.
            Fields of JSON within others are named with dots: `usage.prompt_tokens`. Where a format is not
            recognized the error proposes what would fit.
        tokenizer: for text: path of a `tokenizer.json` (needs the extra `inferq[tokenizers]`); texts are
            counted without special tokens and without a chat template.
        tokens_per_word: for text: tokens in a word, instead of a tokenizer.
        time_unit: for tables and logs of JSON: that of the arrival times, `"s"`, `"ms"`, `"us"` or `"ns"`;
            None for seconds, or by their size where they count from 1970.
        clients: for ServeGen: names of the clients that are wanted, such as `["chunk-5"]`; None for all.
        start_s: for ServeGen: start of the wanted time in seconds, which becomes 0; None for the first.
        end_s: for ServeGen: its end; None for the last.
        rate_factor: for ServeGen: multiplies all rates; `metadata["expected_requests"]` tells the outcome.

    Raises:
        TraceError: naming the file, the field, and the row (tables, from 0), line (JSONL, from 1) or entry
            (JSON list, from 0).
        ConfigError: naming the argument.

    Example:
        >>> import inferq as iq
        >>> chat = iq.read_trace("traces/azure_2023.csv")
        >>> chat.metadata["format"], chat.frame.height
        ('azure', 300)
        >>> talks = iq.read_trace("traces/sharegpt.json", tokens_per_word=1.3)
        >>> talks.metadata["token_count"]
        {'tokens_per_word': 1.3}
        >>> service = iq.read_trace("traces/servegen", start_s=600, end_s=1800, rate_factor=2)
        >>> service.metadata["expected_requests"], service.draw(seed=1).frame.columns
        (1080.0, ['arrival_s', 'prompt_tokens', 'output_tokens', 'class'])
    """
    if not isinstance(path, (str, os.PathLike)):
        raise ConfigError("path", f"must be a path, not {path!r}")
    chosen = None
    if format is not None:
        if format not in FORMATS:
            raise ConfigError("format", f"unknown format {format!r}{nearest(str(format), FORMATS)}")
        chosen = next((one for one in _FORMATS if one.name == format), None)
    if columns is not None and not isinstance(columns, Mapping):
        raise ConfigError(
            "columns", f"must map columns of a workload to columns of the file, not {columns!r}"
        )
    ranges = {"clients": clients, "start_s": start_s, "end_s": end_s, "rate_factor": rate_factor}
    if format == servegen.NAME or (format is None and Path(path).is_dir()):
        if columns is not None or tokenizer is not None or tokens_per_word is not None:
            raise ConfigError(
                "columns, tokenizer, tokens_per_word: ServeGen has columns and token counts of its own"
            )
        if time_unit is not None:
            raise ConfigError("time_unit", "ServeGen has a unit of its own")
        if not Path(path).is_dir():
            raise TraceError(path, "is a file, which servegen is not: it is a folder")
        recipe, about = servegen.read(Path(path), servegen.Range.of(clients, start_s, end_s, rate_factor))
        return Workload._of(recipe, metadata=about)
    for name, value in ranges.items():
        if value is not None:
            raise ConfigError(
                name, "is for ServeGen; cut and scale other traces with window, at_rate and speed"
            )
    source = Source(Path(path))
    form = chosen or _found(source, columns is not None)
    if columns and not form.maps_columns:
        raise ConfigError("columns", f"{form.name} has columns of its own; use format='table' to name others")
    if form.counts_text and tokenizer is None and tokens_per_word is None:
        raise ConfigError(
            path, f"{form.name} holds text: give tokenizer or tokens_per_word to count its tokens"
        )
    if not form.counts_text and (tokenizer is not None or tokens_per_word is not None):
        name = "tokens_per_word" if tokenizer is None else "tokenizer"
        raise ConfigError(name, f"{form.name} has token counts, there is nothing to count")
    if time_unit is not None and not (form.maps_columns or form is OPENAI):
        raise ConfigError("time_unit", f"{form.name} has a unit of its own; it is for tables and logs")
    if source.kind not in form.kinds:
        raise source.error(f"is {source.kind}, which {form.name} is not")
    if form in _OF_TOOLS and not form.fits(source):
        raise source.error(f"has the fields {', '.join(source.columns[:20])}, which {form.name} is not")
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


def _found(source: Source, named: bool) -> Format:
    """The format whose content this is."""
    for form in _FORMATS:
        # what a map would lose, as texts and hashes, is refused; a log of requests is a table like any other
        own = form.maps_columns or not named or (source.kind == "json" and form not in _OF_TOOLS)
        if source.kind in form.kinds and form.fits(source) and own:
            return form
    if _is_servegen(source):
        raise source.error(
            "is part of ServeGen: give the folder that holds NAME-trace.csv and NAME-dataset.json"
        )
    if named:
        return TABLE
    if source.kind == "json":
        seen = f"JSON with the fields {', '.join(sorted(source.columns)[:20])}"
    else:
        seen = f"{source.kind} with the columns {', '.join(source.columns[:20])}"
    raise source.error(
        f"format not recognized: {seen[:300]}; say which of them fill which column{proposed(source)}, "
        f"or give format= ({', '.join(FORMATS)})"
    )


def _is_servegen(source: Source) -> bool:
    if source.kind == "json":
        first = source.records[0][0]
        return any("output_tokens" in value for value in first.values() if isinstance(value, dict))
    if source.kind == "parquet":
        return {"workload", "client"} <= set(source.columns)
    # rows without a header: start of the window, rate, cv, family, two parameters
    names = source.columns
    return (
        len(names) == 6 and bool(_SERVEGEN_ROW.fullmatch(names[0])) and names[3] in ("", "Gamma", "Weibull")
    )
