"""LongBench v2: long documents with a question, without times and without outputs.

Source: THUDM/LongBench, MIT; the prompt is its zero-shot template, `prompts/0shot.txt`.
"""

from __future__ import annotations

import hashlib
from typing import Any

from inferq._lazy import pl
from inferq.workload.traces.source import Format, Options, Reading, Source

_TEXTS = ("context", "question", "choice_A", "choice_B", "choice_C", "choice_D")


_OPENING = "Please read the following text and answer the question below.\n\n<text>"


def _document(context: str) -> str:
    """What all questions about a document begin with."""
    return f"{_OPENING}\n{context.strip()}\n</text>\n\nWhat is the correct answer to this question:"


def _prompt(context: str, question: str, *choices: str) -> str:
    listed = "\n".join(f"({letter}) {choice.strip()}" for letter, choice in zip("ABCD", choices, strict=True))
    return (
        f"{_document(context)} {question.strip()}\n"
        f"Choices:\n{listed}\n\n"
        'Format your response as follows: "The correct answer is (insert answer here)".'
    )


def _fits(source: Source) -> bool:
    return {"context", "question"} <= source.keys or {"context", "choice_A"} <= source.keys


def _read(source: Source, options: Options) -> Reading:
    """One row for each question: `prompt_tokens` of the official zero-shot prompt, `class` is the domain.

    Questions about the same text share it: `prefix_parts` are the opening of the template, which all share,
    and the document up to the question, with the tokens that the counter gives these beginnings. A document
    is named by the SHA-256 of its text.

    The dataset has only the letter of the answer, so there is no `output_tokens`: choose one with
    `with_outputs` (the official script allows 128).
    """
    texts = [source.values(key, str) for key in _TEXTS]
    prompts = [_prompt(*parts) for parts in zip(*texts, strict=True)]
    counts = options.count(prompts)
    opening = options.count([_OPENING])[0]
    contexts = [context.strip() for context in texts[0]]
    documents = list(dict.fromkeys(contexts))
    beginnings = dict(zip(documents, options.count([_document(one) for one in documents]), strict=True))
    names = {one: f"document {hashlib.sha256(one.encode()).hexdigest()[:16]}" for one in documents}

    def parts(context: str, prompt: int) -> list[dict[str, Any]]:
        # a beginning that is counted alone may have a token more at its end than inside the prompt
        first = min(opening, prompt)
        rest = min(beginnings[context], prompt) - first
        document = [{"text": names[context], "tokens": rest}] if rest > 0 else []
        return [{"text": "LongBench v2", "tokens": first}, *document]

    columns = [
        pl.Series("prompt_tokens", counts, dtype=pl.Int64),
        pl.Series("class", source.values("domain", str), dtype=pl.String),
        pl.Series(
            "prefix_parts",
            [parts(context, prompt) for context, prompt in zip(contexts, counts, strict=True)],
            dtype=pl.List(pl.Struct({"text": pl.String, "tokens": pl.Int64})),
        ),
    ]
    keys = {key for entry in source.records[0] for key in entry}
    return Reading(
        pl.DataFrame(columns),
        source.records[1],
        columns_left_out=sorted(keys.difference(_TEXTS, ("domain",))),
        metadata={"documents": len(documents)},
    )


LONGBENCH = Format("longbench", _fits, _read, counts_text=True)
