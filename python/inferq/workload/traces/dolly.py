"""Dolly: instructions with human answers, without times.

Source: databricks-dolly-15k, CC BY-SA 3.0.
"""

from __future__ import annotations

from inferq._lazy import pl
from inferq.workload.traces.source import Format, Options, Reading, Source


def _fits(source: Source) -> bool:
    return {"instruction", "response"} <= source.keys


def _read(source: Source, options: Options) -> Reading:
    """Read one row per instruction. The prompt is instruction and context; `class` is the category."""
    instructions, contexts = source.values("instruction", str), source.values("context", str)
    prompts = [
        f"{instruction}\n\n{context}" if context else instruction
        for instruction, context in zip(instructions, contexts, strict=True)
    ]
    columns = [
        pl.Series("prompt_tokens", options.count(prompts), dtype=pl.Int64),
        pl.Series("output_tokens", options.count(source.values("response", str)), dtype=pl.Int64),
        pl.Series("class", source.values("category", str), dtype=pl.String),
    ]
    keys = {key for entry in source.records[0] for key in entry}
    known = ("instruction", "context", "response", "category")
    return Reading(pl.DataFrame(columns), source.records[1], columns_left_out=sorted(keys.difference(known)))


DOLLY = Format("dolly", _fits, _read, counts_text=True)
