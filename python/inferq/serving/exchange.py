"""One request of a client and its answers, from the first token to the last."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from inferq.serving.answers import DONE, Form
from inferq.serving.fleet import Ask
from inferq.serving.metrics import Metrics
from inferq.serving.requests import ApiError
from inferq.serving.texts import Vocabulary

_MOST_UNREAD_BYTES = 8 << 20
"""A client that leaves more than this unread is taken to be gone."""


class Exchange:
    """All answers to one request of a client, whole or as a stream.

    A token is written to the connection where it falls, without a task that wakes: at 20,000 tokens a second
    there is no time for one.

    Args:
        form: of the answers.
        stream: whether they are told token by token.
        include_usage: whether a stream ends with its counts.
        prompt_tokens: of all prompts.
        cut_after: tokens behind which the connection breaks; None: it does not.
    """

    def __init__(
        self, form: Form, *, stream: bool, include_usage: bool, prompt_tokens: int, cut_after: int | None
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
        """One more answer."""
        self._choices.append(choice)
        self._open += 1

    def begin(self, transport: asyncio.WriteTransport) -> None:
        """The head of the stream is sent: events go there from now on."""
        self._transport = transport
        unsent, self._unsent = self._unsent, []
        for event in unsent:
            self._write(event)

    def token(self, choice: Choice, first: bool) -> None:
        """An answer got a token."""
        self._tokens += 1
        if self.is_stream:
            event = choice.event()
            self._write(self.form.opening(choice.index) + event if first else event)
        if self._cut_after is not None and self._tokens > self._cut_after:
            self._break()

    def end(self, choice: Choice, error: ApiError | None) -> None:
        """An answer is over."""
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
        """All answers at once."""
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
        """The connection breaks, as it does on demand."""
        if self._transport is not None:
            self._transport.abort()
        if not self.over.done():
            self.over.cancel()


class Choice:
    """One answer: hears of its tokens.

    Args:
        exchange: that it belongs to.
        index: its number there.
        ask: what was asked.
        answered: called when it is whole.
        vocabulary: the words.
        metrics: are told.
    """

    def __init__(
        self,
        exchange: Exchange,
        index: int,
        ask: Ask,
        answered: Callable[[Choice], object],
        vocabulary: Vocabulary,
        metrics: Metrics,
    ) -> None:
        self.index, self.ask = index, ask
        self._answered = answered
        self._exchange, self._vocabulary, self._metrics = exchange, vocabulary, metrics
        self._before, self._behind = exchange.form.around_word(index)
        self.request = 0
        self.tokens = 0
        self._arrived_s = self._last_s = 0.0
        exchange.add(self)

    def arrives(self, request: int, at_s: float) -> None:
        """It has an id from now on."""
        self.request, self._arrived_s = request, at_s

    @property
    def reason(self) -> str:
        """Why it ends: its length, where its client allowed no more, else by itself."""
        return "length" if self.ask.output_tokens == self.ask.most_tokens else "stop"

    def event(self) -> bytes:
        """That of its last token."""
        return self._before + self._vocabulary.word(self.request, self.tokens - 1) + self._behind

    def text(self) -> str:
        """All of its words."""
        words = (self._vocabulary.word(self.request, place) for place in range(self.tokens))
        return b"".join(words).decode()

    def token(self, at_s: float) -> None:
        """The next token is there."""
        first = self.tokens == 0
        if first:
            self._metrics.first_s.note(at_s - self._arrived_s)
        else:
            self._metrics.gap_s.note(at_s - self._last_s)
        self.tokens += 1
        self._last_s = at_s
        self._exchange.token(self, first)

    def end(self, status: str) -> None:
        """Nothing more comes."""
        error = None
        if status == "finished":
            self._metrics.ended[self.reason] += 1
            self._metrics.whole_s.note(self._last_s - self._arrived_s)
            self._metrics.answer.note(self.tokens)
            self._answered(self)
        elif status == "abandoned":
            self._metrics.ended["abort"] += 1
        elif status == "lost":
            self._metrics.ended["error"] += 1
            error = ApiError(502, "the replica that served the request died", "bad_gateway")
        elif status == "rejected":
            self._metrics.ended["error"] += 1
            error = ApiError(400, "the request can never be served: it does not fit")
        else:
            self._metrics.ended["error"] += 1
            error = ApiError(500, "the simulation cannot go on", "internal_error")
        self._exchange.end(self, error)
