"""What clients ask, in OpenAI's form: read, checked, and refused in the same form.

A field that changes only which words come is taken and changes nothing: temperature, seeds, penalties, stop
texts and tools are of no consequence where the words mean nothing. A field that would change the form of the
answer, and is not simulated, is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inferq.serving.texts import Texts

MOST_CHOICES = 128
_START, _END, _LINE = -1, -2, -3
"""Tokens of the template: `<|im_start|>`, a role, a line; a message; `<|im_end|>`, a line."""
_UNSIMULATED = {
    "best_of": 1,
    "echo": False,
    "logprobs": False,
    "prompt_logprobs": None,
    "suffix": None,
    "top_logprobs": 0,
    "use_beam_search": False,
}
"""Fields that would change the form of an answer, and the value that does not."""


class ApiError(Exception):
    """What a client is told instead of an answer."""

    def __init__(
        self, status: int, message: str, kind: str = "invalid_request_error", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.kind, self.param = status, kind, param

    def body(self) -> dict[str, Any]:
        """In OpenAI's form."""
        error = {"message": str(self), "type": self.kind, "param": self.param, "code": self.status}
        return {"error": error}


def wrong(param: str, message: str) -> ApiError:
    """A field that is wrong."""
    return ApiError(400, f"{param}: {message}", param=param)


@dataclass(frozen=True, slots=True)
class Question:
    """One request of a client, which may want several answers."""

    prompts: list[tuple[list[int], list[int]]]
    """The tokens of each, and behind how many of them an answer of the conversation ends."""
    is_chat: bool
    choices: int
    stream: bool
    include_usage: bool
    most_tokens: int | None
    """That the client allows; None: it does not say."""
    least_tokens: int
    ignore_eos: bool
    priority: int
    session: str | None
    salt: bytes


def parsed(body: bytes) -> Mapping[str, Any]:
    """The object that a body holds."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is no JSON: {error}") from None
    if not isinstance(data, dict):
        raise ApiError(400, "the body must be a JSON object")
    return data


def whole(data: Mapping[str, Any], name: str, least: int, most: int = 2**31 - 1) -> int | None:
    """A field that is a whole number, or is not there."""
    value = data.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong(name, "must be a whole number")
    if not least <= value <= most:
        raise wrong(name, f"must be from {least} to {most}")
    return value


def flag(data: Mapping[str, Any], name: str) -> bool:
    """A field that is true or false; false where it is not there."""
    value = data.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise wrong(name, "must be true or false")
    return value


def text(param: str, value: object) -> str:
    """A text that can be written as UTF-8."""
    if not isinstance(value, str):
        raise wrong(param, "must be a text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise wrong(param, "has half a surrogate pair, which is no text") from None
    return value


def question(data: Mapping[str, Any], texts: Texts, is_chat: bool, session: str | None) -> Question:
    """What a body asks.

    Args:
        data: the body.
        texts: takes texts apart.
        is_chat: whether it has messages, else a prompt.
        session: the session that its headers name.

    Raises:
        ApiError: what is wrong with it.
    """
    for name, unchanged in _UNSIMULATED.items():
        if data.get(name) not in (None, unchanged, False):
            raise wrong(name, "is not simulated")
    form = data.get("response_format")
    if form is not None and (not isinstance(form, dict) or form.get("type", "text") != "text"):
        raise wrong("response_format", "is not simulated, but for text")
    stop = data.get("stop")
    stops = stop if isinstance(stop, list) else [] if stop is None else [stop]
    for one in stops:
        text("stop", one)
    stream = flag(data, "stream")
    about = data.get("stream_options")
    if about is not None and not (isinstance(about, dict) and stream):
        raise wrong("stream_options", "is an object that goes with stream")
    most = [whole(data, name, 1) for name in ("max_completion_tokens", "max_tokens")]
    user = data.get("user")
    salt = data.get("cache_salt")
    return Question(
        prompts=[messages(data, texts)] if is_chat else [(ids, []) for ids in prompts(data, texts)],
        is_chat=is_chat,
        choices=whole(data, "n", 1, MOST_CHOICES) or 1,
        stream=stream,
        include_usage=flag(about or {}, "include_usage"),
        most_tokens=most[0] if most[0] is not None and is_chat else most[1],
        least_tokens=whole(data, "min_tokens", 0) or 0,
        ignore_eos=flag(data, "ignore_eos"),
        priority=whole(data, "priority", -(2**31)) or 0,
        session=session if user is None else text("user", user),
        salt=b"" if salt is None else text("cache_salt", salt).encode(),
    )


def messages(data: Mapping[str, Any], texts: Texts) -> tuple[list[int], list[int]]:
    """The tokens of the messages of a chat, up to where the answer begins, and where answers in it end.

    Each message has five tokens around it, and the answer three before it, as with ChatML.
    """
    given = data.get("messages")
    if not isinstance(given, list) or not given:
        raise wrong("messages", "must be a list of messages, not empty")
    ids: list[int] = []
    ends: list[int] = []
    for place, message in enumerate(given):
        where = f"messages.{place}"
        if not isinstance(message, dict):
            raise wrong(where, "must be an object")
        role = text(f"{where}.role", message.get("role"))
        ids += (_START, _role(role), _LINE)
        ids += _content(where, message, texts)
        if role == "assistant":
            ends.append(len(ids))
        ids += (_END, _LINE)
    ids += (_START, _role("assistant"), _LINE)
    return ids, ends


def _role(role: str) -> int:
    """The token of a role, below those of the template."""
    return _LINE - 1 - int.from_bytes(role.encode()[:7], "little")


def _content(where: str, message: Mapping[str, Any], texts: Texts) -> list[int]:
    content = message.get("content")
    if content is None and message.get("role") == "assistant":
        return []
    if isinstance(content, str):
        return texts.ids(text(f"{where}.content", content))
    if not isinstance(content, list):
        raise wrong(f"{where}.content", "must be a text or a list of parts")
    ids: list[int] = []
    for place, part in enumerate(content):
        if not isinstance(part, dict) or part.get("type") != "text":
            raise wrong(f"{where}.content.{place}", "must be a part of type text")
        ids += texts.ids(text(f"{where}.content.{place}.text", part.get("text")))
    return ids


def prompts(data: Mapping[str, Any], texts: Texts) -> list[list[int]]:
    """The tokens of each prompt: a text, tokens, or a list of either."""
    given = data.get("prompt")
    if isinstance(given, str):
        given = [given]
    if not isinstance(given, list) or not given:
        raise wrong("prompt", "must be a text, tokens, or a list of them, not empty")
    if isinstance(given[0], int):
        given = [given]
    if len(given) > MOST_CHOICES:
        raise wrong("prompt", f"must be {MOST_CHOICES} prompts at most")
    found = []
    for place, one in enumerate(given):
        where = "prompt" if len(given) == 1 else f"prompt.{place}"
        if isinstance(one, str):
            ids = texts.ids(text(where, one))
        elif isinstance(one, list):
            if not all(isinstance(token, int) and 0 <= token < 2**31 for token in one):
                raise wrong(where, "tokens must be whole numbers from 0")
            ids = [int(token) for token in one]
        else:
            raise wrong(where, "must be a text or tokens")
        if not ids:
            raise wrong(where, "must have a token at least")
        found.append(ids)
    return found
