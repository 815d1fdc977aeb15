"""LongBench v2: long documents with a question, without times and without outputs.

Source: THUDM/LongBench, MIT; the prompt is its zero-shot template, `prompts/0shot.txt`.
"""

from __future__ import annotations

from inferq.trace.source import Format, Options, Reading, Source

_TEXTS = ("context", "question", "choice_A", "choice_B", "choice_C", "choice_D")


def _prompt(context: str, question: str, *choices: str) -> str:
    listed = "\n".join(f"({letter}) {choice.strip()}" for letter, choice in zip("ABCD", choices, strict=True))
    return (
        "Please read the following text and answer the question below.\n\n"
        f"<text>\n{context.strip()}\n</text>\n\n"
        f"What is the correct answer to this question: {question.strip()}\n"
        f"Choices:\n{listed}\n\n"
        'Format your response as follows: "The correct answer is (insert answer here)".'
    )


def _fits(source: Source) -> bool:
    return {"context", "question"} <= source.keys or {"context", "choice_A"} <= source.keys


def _read(source: Source, options: Options) -> Reading:
    """One row for each question: `prompt_tokens` of the official zero-shot prompt, `class` is the domain.

    The dataset has only the letter of the answer, so there is no `output_tokens`: choose one with
    `with_outputs` (the official script allows 128).
    """
    import polars as pl

    texts = [source.values(key, str) for key in _TEXTS]
    prompts = [_prompt(*parts) for parts in zip(*texts, strict=True)]
    columns = [
        pl.Series("prompt_tokens", options.count(prompts), dtype=pl.Int64),
        pl.Series("class", source.values("domain", str), dtype=pl.String),
    ]
    keys = {key for entry in source.records[0] for key in entry}
    return Reading(
        pl.DataFrame(columns),
        source.records[1],
        columns_left_out=sorted(keys.difference(_TEXTS, ("domain",))),
    )


LONGBENCH = Format("longbench", _fits, _read, counts_text=True)
