"""One client request and its response."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from inferq.serving.answers import DONE, ResponseFormat
from inferq.serving.fleet import FleetRequest
from inferq.serving.metrics import Metrics
from inferq.serving.requests import ApiError
from inferq.serving.texts import Vocabulary

_MOST_UNREAD_BYTES = 8 << 20
"""Unread bytes above which a client is disconnected."""


class Exchange:
    """The response to one client request, complete or streamed.

    Tokens are written to the connection directly, without a task: at 20,000 tokens/s tasks are too slow.

    Args:
        form: response format.
        stream: whether tokens are streamed.
        include_usage: whether the stream ends with token counts.
        prompt_tokens: tokens of all prompts.
        cut_after: tokens after which the connection is cut. None: never.
    """

    def __init__(
        self,
        form: ResponseFormat,
        *,
        stream: bool,
        include_usage: bool,
        prompt_tokens: int,
        cut_after: int | None,
    ) -> None:
        self.form, self.is_stream, self._include_usage = form, stream, include_usage
        self._prompt_tokens, self._cut_after = prompt_tokens, cut_after
        self._choices: list[Choice] = []
        self._open = 0
        self._tokens = 0
        self._transport: asyncio.WriteTransport | None = None
        self._unsent: list[bytes] = []
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.error: ApiError | None = None

    def add(self, choice: Choice) -> None:
        """Add an answer."""
        self._choices.append(choice)
        self._open += 1

    def begin(self, transport: asyncio.WriteTransport) -> None:
        """Start streaming to a connection, after the response headers were sent."""
        self._transport = transport
        unsent, self._unsent = self._unsent, []
        for event in unsent:
            self._write(event)

    def token(self, choice: Choice, first: bool) -> None:
        """Process a new token of an answer."""
        self._tokens += 1
        if self.is_stream:
            event = choice.event()
            self._write(self.form.opening(choice.index) + event if first else event)
        if self._cut_after is not None and self._tokens > self._cut_after:
            self._break()

    def end(self, choice: Choice, error: ApiError | None) -> None:
        """Process the end of an answer."""
        self.error = self.error or error
        if self.is_stream and error is None:
            self._write(self.form.closing(choice.index, choice.reason))
        self._open -= 1
        if self._open or self.over.done():
            return
        if self.is_stream:
            if self.error is not None:
                self._write(b"data: %b\n\n" % json.dumps(self.error.body()).encode())
            elif self._include_usage:
                self._write(self.form.usage(self._prompt_tokens, self._tokens))
            self._write(DONE)
        self.over.set_result(None)

    def whole(self) -> dict[str, object]:
        """The complete response."""
        answers = [(choice.text(), choice.reason) for choice in self._choices]
        return self.form.whole(answers, self._prompt_tokens, self._tokens)

    def _write(self, event: bytes) -> None:
        transport = self._transport
        if transport is None:
            self._unsent.append(event)
        elif not transport.is_closing():
            transport.write(b"%x\r\n%b\r\n" % (len(event), event))
            if transport.get_write_buffer_size() > _MOST_UNREAD_BYTES:
                transport.abort()

    def _break(self) -> None:
        """Cut the connection (injected fault)."""
        if self._transport is not None:
            self._transport.abort()
        if not self.over.done():
            self.over.cancel()


class Choice:
    """One answer of a response; it receives the tokens.

    Args:
        exchange: the response that it belongs to.
        index: its index in the response.
        sent: request to the fleet.
        on_answer: called when the answer is complete.
        vocabulary: words of the answer.
        metrics: metrics to update.
    """

    def __init__(
        self,
        exchange: Exchange,
        index: int,
        sent: FleetRequest,
        on_answer: Callable[[Choice], object],
        vocabulary: Vocabulary,
        metrics: Metrics,
    ) -> None:
        self.index, self.sent = index, sent
        self._on_answer = on_answer
        self._exchange, self._vocabulary, self._metrics = exchange, vocabulary, metrics
        self._before, self._behind = exchange.form.around_token(index)
        self.request = 0
        self.tokens = 0
        self._arrived_s = self._last_s = 0.0
        exchange.add(self)

    def arrives(self, request: int, at_s: float) -> None:
        """Set the id and the arrival."""
        self.request, self._arrived_s = request, at_s

    @property
    def reason(self) -> str:
        """The finish reason: `length` at the client's limit, else `stop`."""
        return "length" if self.sent.output_tokens == self.sent.max_tokens else "stop"

    def event(self) -> bytes:
        """The event of the last token."""
        return self._before + self._vocabulary.word(self.request, self.tokens - 1) + self._behind

    def text(self) -> str:
        """The text of the answer."""
        words = (self._vocabulary.word(self.request, place) for place in range(self.tokens))
        return b"".join(words).decode()

    def token(self, at_s: float) -> None:
        """Process the next token."""
        first = self.tokens == 0
        if first:
            self._metrics.first_s.note(at_s - self._arrived_s)
        else:
            self._metrics.gap_s.note(at_s - self._last_s)
        self.tokens += 1
        self._last_s = at_s
        self._exchange.token(self, first)

    def end(self, status: str) -> None:
        """Process the end of the request."""
        error = None
        if status == "finished":
            self._metrics.ended[self.reason] += 1
            self._metrics.whole_s.note(self._last_s - self._arrived_s)
            self._metrics.answer.note(self.tokens)
            self._on_answer(self)
        elif status == "abandoned":
            self._metrics.ended["abort"] += 1
        elif status == "lost":
            self._metrics.ended["error"] += 1
            error = ApiError(502, "the replica that served the request failed", "bad_gateway")
        elif status == "rejected":
            self._metrics.ended["error"] += 1
            error = ApiError(400, "the request exceeds the capacity of the server")
        else:
            self._metrics.ended["error"] += 1
            error = ApiError(500, "the simulation stopped with an error", "internal_error")
        self._exchange.end(self, error)
