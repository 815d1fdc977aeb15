"""ShareGPT: conversations as text, without times.

Source: the layout of `ShareGPT_V3_unfiltered_cleaned_split.json`, which most serving benchmarks use.
"""

from __future__ import annotations

from collections import Counter as Tally

from inferq._lazy import pl
from inferq.workload.traces.source import Format, Options, Reading, Source

_ASSISTANTS = frozenset({"gpt", "assistant", "chatgpt", "bard", "bing", "claude", "model"})


def _fits(source: Source) -> bool:
    return "conversations" in source.keys


def _messages(source: Source, conversation: object, place: str) -> list[tuple[bool, str]]:
    """Return for each message of a conversation whether it is the assistant's, and its text."""
    if not isinstance(conversation, list):
        raise source.error(f"{place}: conversations must be a list")
    messages = []
    for number, message in enumerate(conversation):
        if not isinstance(message, dict):
            raise source.error(f"{place}: message {number} must be an object")
        for key in ("from", "value"):
            if not isinstance(message.get(key), str):
                raise source.error(f"{place}: message {number}: {key} must be a string")
        messages.append((message["from"].lower() in _ASSISTANTS, message["value"]))
    return messages


def _read(source: Source, options: Options) -> Reading:
    """Read one row per answer of the assistant. Its prompt is all text before it.

    Tokens are counted per message. `session_id` is the conversation's id (with `#2`, `#3`, … for repeated
    ids); `turn` starts at 0. Left out and counted: answers without text (`empty_answers`), and answers
    without text before them (`answers_without_prompt`, from truncated conversations; they are still part of
    later prompts).
    """
    entries, place = source.records
    conversations = [
        _messages(source, entry.get("conversations"), place(at)) for at, entry in enumerate(entries)
    ]
    counts = iter(options.count([text for messages in conversations for _, text in messages]))
    rows: list[tuple[int, int, str, int]] = []
    origin: list[int] = []
    left_out = {"empty_answers": 0, "answers_without_prompt": 0}
    seen: Tally[str] = Tally()
    for at, (entry, messages) in enumerate(zip(entries, conversations, strict=True)):
        session = str(entry.get("id", at))
        seen[session] += 1
        if seen[session] > 1:
            session = f"{session}#{seen[session]}"
        before = turn = 0
        for assistant, _ in messages:
            tokens = next(counts)
            if assistant and not tokens:
                left_out["empty_answers"] += 1
            elif assistant and not before:
                left_out["answers_without_prompt"] += 1
            elif assistant:
                rows.append((before, tokens, session, turn))
                origin.append(at)
                turn += 1
            before += tokens
    if not rows:
        raise source.error("must contain an answer with a prompt before it")
    schema = {"prompt_tokens": pl.Int64, "output_tokens": pl.Int64, "session_id": pl.String, "turn": pl.Int32}
    keys = {key for entry in entries for key in entry}
    return Reading(
        pl.DataFrame(rows, schema=schema, orient="row"),
        lambda at: place(origin[at]),
        rows_left_out=left_out,
        columns_left_out=sorted(keys - {"id", "conversations"}),
        metadata={"conversations": len(entries)},
    )


SHAREGPT = Format("sharegpt", _fits, _read, counts_text=True)
