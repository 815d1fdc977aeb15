"""Responses of the OpenAI API, complete and as event streams."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

DONE = b"data: [DONE]\n\n"


class ResponseFormat:
    """The response format of one client request.

    Args:
        number: number of the request, part of its id.
        model: model name in the response.
        is_chat: whether the response has messages (chat completions) or text (completions).
    """

    def __init__(self, number: int, model: str, is_chat: bool) -> None:
        self.name = f"{'chatcmpl' if is_chat else 'cmpl'}-{number}"
        self._model, self._is_chat, self._created = model, is_chat, int(time.time())
        head = self._head(stream=True)
        self._chunk_head = json.dumps(head, separators=(",", ":"))[:-1].encode()

    def _head(self, stream: bool) -> dict[str, Any]:
        kind = "text_completion"
        if self._is_chat:
            kind = "chat.completion.chunk" if stream else "chat.completion"
        return {"id": self.name, "object": kind, "created": self._created, "model": self._model}

    def _event(self, choices: str) -> bytes:
        return b'data: %b,"choices":[%b]}\n\n' % (self._chunk_head, choices.encode())

    def opening(self, choice: int) -> bytes:
        """The event before the first token; empty for completions."""
        if not self._is_chat:
            return b""
        delta = '{"role":"assistant","content":""}'
        return self._event(f'{{"index":{choice},"delta":{delta},"logprobs":null,"finish_reason":null}}')

    def around_token(self, choice: int) -> tuple[bytes, bytes]:
        """The event of a token, split around its word. Words need no escape sequences."""
        before, behind = ('"delta":{"content":"', '"}') if self._is_chat else ('"text":"', '"')
        event = self._event(f'{{"index":{choice},{before}\0{behind},"logprobs":null,"finish_reason":null}}')
        parts = event.split(b"\0")
        return parts[0], parts[1]

    def closing(self, choice: int, reason: str) -> bytes:
        """The event after the last token."""
        content = '"delta":{}' if self._is_chat else '"text":""'
        return self._event(f'{{"index":{choice},{content},"logprobs":null,"finish_reason":"{reason}"}}')

    def usage(self, prompt_tokens: int, tokens: int) -> bytes:
        """The event with the token counts."""
        event = {**self._head(stream=True), "choices": [], "usage": usage(prompt_tokens, tokens)}
        return b"data: %b\n\n" % json.dumps(event, separators=(",", ":")).encode()

    def whole(self, answers: Sequence[tuple[str, str]], prompt_tokens: int, tokens: int) -> dict[str, Any]:
        """The complete response; each answer has its finish reason."""
        choices: list[Mapping[str, Any]] = []
        for index, (text, reason) in enumerate(answers):
            content = {"message": {"role": "assistant", "content": text}} if self._is_chat else {"text": text}
            choices.append({"index": index, **content, "logprobs": None, "finish_reason": reason})
        return {**self._head(stream=False), "choices": choices, "usage": usage(prompt_tokens, tokens)}


def usage(prompt_tokens: int, tokens: int) -> dict[str, int]:
    """Token counts of prompt and completion."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": tokens,
        "total_tokens": prompt_tokens + tokens,
    }
