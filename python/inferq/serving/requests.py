"""Parsing and validation of OpenAI API requests.

Fields that only affect the wording (temperature, seed, penalties, stop strings, tools) are accepted and
ignored, since the words have no meaning. Fields that change the response format and are not supported are
refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from inferq.checks import shown
from inferq.serving.texts import Texts

MOST_CHOICES = 128
_MOST_CONTAINERS = 1 << 18
_STRING_OR_CONTAINER = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[\[{]', re.DOTALL)
"""A JSON string, also an unterminated one, or the start of a list or object."""
_START, _END, _LINE = -1, -2, -3
"""Tokens of the chat template: `<|im_start|>`, role, newline; message; `<|im_end|>`, newline."""
_UNSUPPORTED = {
    "best_of": 1,
    "echo": False,
    "logprobs": False,
    "prompt_logprobs": None,
    "suffix": None,
    "top_logprobs": 0,
    "use_beam_search": False,
}
"""Unsupported fields, with the value that has no effect."""


class ApiError(Exception):
    """An error response."""

    def __init__(
        self, status: int, message: str, kind: str = "invalid_request_error", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.kind, self.param = status, kind, param

    def body(self) -> dict[str, Any]:
        """The error in OpenAI's format."""
        error = {"message": str(self), "type": self.kind, "param": self.param, "code": self.status}
        return {"error": error}


def wrong(param: str, message: str) -> ApiError:
    """An error about a field."""
    return ApiError(400, f"{param}: {message}", param=param)


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A validated client request."""

    prompts: list[tuple[list[int], list[int]]]
    """Tokens of each prompt, and the positions after which an answer of the conversation ends."""
    is_chat: bool
    choices: int
    stream: bool
    include_usage: bool
    max_tokens: int | None
    """Output limit of the client; None if it sets none."""
    min_tokens: int
    ignore_eos: bool
    priority: int
    session: str | None
    salt: bytes


def parsed(body: bytes) -> Mapping[str, Any]:
    """Parse the body as a JSON object without repeated keys."""
    if body.count(b"[") + body.count(b"{") > _MOST_CONTAINERS:
        _check_containers(body)
    try:
        data = json.loads(body, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise ApiError(400, "the body must be a JSON object")
    return data


def _check_containers(body: bytes) -> None:
    """Refuse bodies of many lists and objects, which occupy 30 times their bytes in memory."""
    containers = (match for match in _STRING_OR_CONTAINER.finditer(body) if match[0] in (b"[", b"{"))
    if next(islice(containers, _MOST_CONTAINERS, None), None) is not None:
        raise ApiError(400, f"the body has more than {_MOST_CONTAINERS:,} lists and objects")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ApiError(400, f"the body repeats the key {shown(repeated)}")
    return fields


def whole(data: Mapping[str, Any], name: str, least: int, most: int = 2**31 - 1) -> int | None:
    """An integer field; None if missing."""
    value = data.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong(name, "must be an integer")
    if not least <= value <= most:
        raise wrong(name, f"must be from {least} to {most}")
    return value


def flag(data: Mapping[str, Any], name: str) -> bool:
    """A boolean field; False if missing."""
    value = data.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise wrong(name, "must be true or false")
    return value


def text(param: str, value: object) -> str:
    """A string that UTF-8 can encode."""
    if not isinstance(value, str):
        raise wrong(param, "must be a string")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise wrong(param, "contains an unpaired surrogate") from None
    return value


class TooLong(ApiError):
    """The error of a prompt beyond the context length."""

    def __init__(self, longest: int, size: str, param: str) -> None:
        super().__init__(
            400, f"maximum context length is {longest} tokens, got {size} in the prompt", param=param
        )


def request_of(
    data: Mapping[str, Any], texts: Texts, is_chat: bool, session: str | None, longest: int
) -> ApiRequest:
    """Validate the body of a request.

    Args:
        data: the body.
        texts: tokenizer.
        is_chat: whether the body has messages or a prompt.
        session: session id from the headers.
        longest: upper limit of the tokens of a prompt.

    Raises:
        ApiError: a field is invalid or unsupported.
    """
    for name, unchanged in _UNSUPPORTED.items():
        if data.get(name) not in (None, unchanged, False):
            raise wrong(name, "is not supported")
    form = data.get("response_format")
    if form is not None and (not isinstance(form, dict) or form.get("type", "text") != "text"):
        raise wrong("response_format", "supports only type text")
    stop = data.get("stop")
    stops = stop if isinstance(stop, list) else [] if stop is None else [stop]
    for entry in stops:
        text("stop", entry)
    stream = flag(data, "stream")
    about = data.get("stream_options")
    if about is not None and not (isinstance(about, dict) and stream):
        raise wrong("stream_options", "must be an object and requires stream")
    most = [whole(data, name, 1) for name in ("max_completion_tokens", "max_tokens")]
    user = data.get("user")
    session = None if session is None else text("X-Session-ID", session)
    salt = data.get("cache_salt")
    return ApiRequest(
        prompts=[messages(data, texts, longest)]
        if is_chat
        else [(ids, []) for ids in prompts(data, texts, longest)],
        is_chat=is_chat,
        choices=whole(data, "n", 1, MOST_CHOICES) or 1,
        stream=stream,
        include_usage=flag(about or {}, "include_usage"),
        max_tokens=most[0] if most[0] is not None and is_chat else most[1],
        min_tokens=whole(data, "min_tokens", 0) or 0,
        ignore_eos=flag(data, "ignore_eos"),
        priority=whole(data, "priority", -(2**31)) or 0,
        session=session if user is None else text("user", user),
        salt=b"" if salt is None else text("cache_salt", salt).encode(),
    )


def _ids(value: str, texts: Texts, before: int, longest: int, param: str) -> list[int]:
    """Tokens of a text after `before` tokens; a text that is too long is not tokenized."""
    if texts.token_characters is not None:
        least = before + -(-len(value) // texts.token_characters)
        if least > longest:
            raise TooLong(longest, f"at least {least}", param)
    return texts.ids(value)


def messages(data: Mapping[str, Any], texts: Texts, longest: int) -> tuple[list[int], list[int]]:
    """Tokens of chat messages up to the start of the answer, and the ends of earlier answers.

    As in ChatML, each message has five template tokens, and three tokens precede the answer.
    """
    given = data.get("messages")
    if not isinstance(given, list) or not given:
        raise wrong("messages", "must be a non-empty list of messages")
    ids: list[int] = []
    ends: list[int] = []
    for place, message in enumerate(given):
        where = f"messages.{place}"
        if not isinstance(message, dict):
            raise wrong(where, "must be an object")
        role = text(f"{where}.role", message.get("role"))
        ids += (_START, _role(role), _LINE)
        ids += _content(where, message, texts, len(ids), longest)
        if role == "assistant":
            ends.append(len(ids))
        ids += (_END, _LINE)
    ids += (_START, _role("assistant"), _LINE)
    return ids, ends


def _role(role: str) -> int:
    """The token of a role, below the template tokens."""
    return _LINE - 1 - int.from_bytes(role.encode()[:7], "little")


def _content(where: str, message: Mapping[str, Any], texts: Texts, before: int, longest: int) -> list[int]:
    content = message.get("content")
    if content is None and message.get("role") == "assistant":
        return []
    if isinstance(content, str):
        return _ids(text(f"{where}.content", content), texts, before, longest, "messages")
    if not isinstance(content, list):
        raise wrong(f"{where}.content", "must be a string or a list of parts")
    ids: list[int] = []
    for place, part in enumerate(content):
        if not isinstance(part, dict) or part.get("type") != "text":
            raise wrong(f"{where}.content.{place}", "must be a part of type text")
        value = text(f"{where}.content.{place}.text", part.get("text"))
        ids += _ids(value, texts, before + len(ids), longest, "messages")
    return ids


def prompts(data: Mapping[str, Any], texts: Texts, longest: int) -> list[list[int]]:
    """Tokens of each prompt: a string, tokens, or a list of either."""
    given = data.get("prompt")
    if isinstance(given, str):
        given = [given]
    if not isinstance(given, list) or not given:
        raise wrong("prompt", "must be a text, tokens, or a list of them, not empty")
    if isinstance(given[0], int):
        given = [given]
    if len(given) > MOST_CHOICES:
        raise wrong("prompt", f"must be {MOST_CHOICES} prompts at most")
    tokens_of_prompts = []
    for place, prompt in enumerate(given):
        where = "prompt" if len(given) == 1 else f"prompt.{place}"
        if isinstance(prompt, str):
            ids = _ids(text(where, prompt), texts, 0, longest, "prompt")
        elif isinstance(prompt, list):
            if len(prompt) > longest:
                raise TooLong(longest, str(len(prompt)), "prompt")
            if not all(type(token) is int and 0 <= token < 2**31 for token in prompt):
                raise wrong(where, "tokens must be integers from 0")
            ids = prompt
        else:
            raise wrong(where, "must be a string or tokens")
        if not ids:
            raise wrong(where, "must not be empty")
        tokens_of_prompts.append(ids)
    return tokens_of_prompts
