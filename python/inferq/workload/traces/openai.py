"""Logs of OpenAI API responses with `usage.prompt_tokens` and `usage.completion_tokens`.

Source: the API reference of chat completions (`created` in whole seconds since 1970, `usage`). Gateways also
log the time of the request; batch files contain the response in `response.body`.
"""

from __future__ import annotations

from inferq.workload.traces.log import reading
from inferq.workload.traces.proposal import likely
from inferq.workload.traces.source import Format, Options, Reading, Source

_PROMPT, _OUTPUT = "usage.prompt_tokens", "usage.completion_tokens"


def _field(source: Source, end: str) -> str | None:
    return next((name for name in source.columns if f".{name}".endswith(f".{end}")), None)


def _fits(source: Source) -> bool:
    return source.kind == "json" and None not in (_field(source, _PROMPT), _field(source, _OUTPUT))


def _read(source: Source, options: Options) -> Reading:
    """Read arrivals and sessions from the fields with the most likely names, listed in the metadata.

    Records without usage (errors) and answers without tokens are left out and counted.
    """
    prompt, output = _field(source, _PROMPT), _field(source, _OUTPUT)
    assert prompt is not None and output is not None
    matches = likely(source.columns)
    used = {"arrival_s": matches["arrival_s"]} if "arrival_s" in matches else {}
    used |= {"prompt_tokens": prompt, "output_tokens": output}
    if {"session_id", "turn"} <= matches.keys():
        used |= {name: matches[name] for name in ("session_id", "turn")}
    frame = source.table(list(used.values()))
    values = {column: frame[field].to_list() for column, field in used.items()}
    answered = [
        at
        for at, pair in enumerate(zip(values["prompt_tokens"], values["output_tokens"], strict=True))
        if None not in pair and pair[1] != 0
    ]
    return reading(
        source,
        {name: [column[at] for at in answered] for name, column in values.items()},
        answered,
        source.records[1],
        unit=options.time_unit,
        left_out={"without_an_answer": frame.height - len(answered)},
        metadata={"columns_used": used},
    )


OPENAI = Format("openai", _fits, _read)
