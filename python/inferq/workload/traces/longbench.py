"""LongBench v2: long documents with questions, without times and outputs.

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
    """Return the shared beginning of all questions about a document."""
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
    """Read one row per question: `prompt_tokens` of the official zero-shot prompt; `class` is the domain.

    Questions about the same document share it: `prefix_parts` are the opening of the template, shared by all,
    and the document up to the question. Documents are named by the SHA-256 of their texts.

    The dataset has only the letter of the answer, so there is no `output_tokens`: choose one with
    `with_outputs` (the official script allows 128).
    """
    texts = [source.values(key, str) for key in _TEXTS]
    prompts = [_prompt(*parts) for parts in zip(*texts, strict=True)]
    counts = options.count(prompts)
    opening = options.count([_OPENING])[0]
    contexts = [context.strip() for context in texts[0]]
    documents = list(dict.fromkeys(contexts))
    counted = options.count([_document(document) for document in documents])
    beginnings = dict(zip(documents, counted, strict=True))
    names = {text: f"document {hashlib.sha256(text.encode()).hexdigest()[:16]}" for text in documents}

    def parts(context: str, prompt: int) -> list[dict[str, Any]]:
        # A beginning that is tokenized alone may have one more token than inside the prompt.
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
