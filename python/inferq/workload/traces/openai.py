"""Logs of answers in the form of OpenAI's API: `usage.prompt_tokens`, `usage.completion_tokens` in each.

Source: the API reference of chat completions (`created` in whole seconds since 1970, `usage`); gateways log
the request's time beside them, and batch files hold the answer in `response.body`.
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
    """Arrivals by the field that looks most like the request's time, sessions by one that looks like theirs.

    Which fields were taken stands in the metadata. Records without usage, as of errors, and answers without a
    token are left out and counted.
    """
    prompt, output = _field(source, _PROMPT), _field(source, _OUTPUT)
    assert prompt is not None and output is not None
    near = likely(source.columns)
    taken = {"arrival_s": near["arrival_s"]} if "arrival_s" in near else {}
    taken |= {"prompt_tokens": prompt, "output_tokens": output}
    taken |= {name: near[name] for name in ("session_id", "turn") if {"session_id", "turn"} <= near.keys()}
    frame = source.table(list(taken.values()))
    values = {ours: frame[theirs].to_list() for ours, theirs in taken.items()}
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
        metadata={"columns_taken": taken},
    )


OPENAI = Format("openai", _fits, _read)
