"""The service behind the routes: from client requests to requests of the fleet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any, TypeVar

from inferq.errors import ConfigError
from inferq.serving.answers import ResponseFormat
from inferq.serving.exchange import Choice, Exchange
from inferq.serving.faults import Faults
from inferq.serving.fleet import Fleet, FleetRequest
from inferq.serving.lengths import Lengths
from inferq.serving.metrics import Metrics
from inferq.serving.prompts import Prompt, Prompts
from inferq.serving.record import Record
from inferq.serving.requests import ApiError, ApiRequest, messages, prompts, request_of
from inferq.serving.texts import Texts, Vocabulary
from inferq.systems.pools import Pool, pools_of
from inferq.systems.system import System

_UNLIMITED = 2**31 - 1
_MOST_BYTES, _LEAST_BYTES = 64 << 20, 4 << 20
"""Limits of the upper limit of a request body."""
_TOKEN_BYTES = 128
"""Bytes of a body per token of the longest prompt: several prompts, numbers or escape sequences."""
_LONG_BYTES = 1 << 14
"""Size above which a body is processed in a thread."""
_Work = TypeVar("_Work")
_FLUSH_S = 1.0
"""Interval at which the record is written to disk."""
_MOST_ANSWERS = 1024
"""Upper limit of answers per client request."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a service."""

    model: str
    texts: Texts
    lengths: Lengths
    seed: int
    speed: float
    max_waiting: int | None = None
    record: Record | None = None
    options: Mapping[str, Any] | None = None
    """Options of `Live`."""


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A client request with its tokenized and hashed prompts."""

    request: ApiRequest
    prompts: list[Prompt]


class Service:
    """A simulated system that answers clients, inside a running event loop.

    Args:
        system: the system.
        settings: settings of the service.
        on_error: called with the exception if the simulation stops with an error.
        takes_commands: whether replicas accept commands to fail, drain and start.
    """

    def __init__(
        self,
        system: System,
        settings: Settings,
        on_error: Callable[[Exception], object],
        *,
        takes_commands: bool = False,
    ) -> None:
        pools = pools_of(system)
        engines = [engine for pool in pools for engine in pool.engines]
        self.settings = settings
        self.longest = min(
            (
                size
                for engine in engines
                for size in (engine.max_model_len, engine.kv.whole_tokens)
                if size is not None
            ),
            default=_UNLIMITED,
        )
        characters = settings.texts.token_characters or 0
        self.most_bytes = min(
            _MOST_BYTES, max(_LEAST_BYTES, self.longest * max(_TOKEN_BYTES, 8 * characters))
        )
        """Upper limit of a request body."""
        self._reader = ThreadPoolExecutor(1, "inferq-bodies")
        self.prompts = Prompts(pools[0].engines[0].kv.block)
        self.vocabulary = Vocabulary(settings.texts)
        self.metrics = Metrics(settings.model, list(chain.from_iterable(_kv_tokens(pool) for pool in pools)))
        self.faults = Faults(settings.seed)
        self.is_draining = False
        self._received = 0
        self.fleet = Fleet(
            system,
            speed=settings.speed,
            on_error=on_error,
            on_arrival=self._on_arrival,
            on_cancel=self._on_cancel,
            takes_commands=takes_commands,
            seed=settings.seed,
            **(settings.options or {}),
        )

    def _on_arrival(self, at_ns: int, sent: FleetRequest, request: int) -> None:
        self.metrics.prompt.note(len(sent.prompt.ids))
        if self.settings.record is not None:
            self.settings.record.add(at_ns, sent)

    def _on_cancel(self, request: int, after_ns: int) -> None:
        if self.settings.record is not None:
            self.settings.record.cancel(request, after_ns)

    async def write_record(self) -> None:
        """Write received requests to disk every second, until cancelled."""
        record = self.settings.record
        while record is not None:
            await asyncio.sleep(_FLUSH_S)
            await asyncio.shield(asyncio.to_thread(record.flush, self.fleet.failures))

    async def in_turn(self, body: bytes, work: Callable[[bytes], _Work]) -> _Work:
        """Process a body, in a thread if it is long: it must not delay the tokens of other clients."""
        if len(body) <= _LONG_BYTES:
            return work(body)
        return await asyncio.get_running_loop().run_in_executor(self._reader, work, body)

    def read(self, data: Mapping[str, Any], is_chat: bool, session: str | None) -> PreparedRequest:
        """Validate, tokenize and hash a client request; may run in a thread.

        Args:
            data: the body.
            is_chat: whether the body has messages or a prompt.
            session: session id from the headers.

        Raises:
            ApiError: a field is invalid, or a prompt is too long.
        """
        self.check_model(data)
        request = request_of(data, self.settings.texts, is_chat, session, self.longest)
        for ids, _ in request.prompts:
            asked = request.max_tokens
            if self.longest - len(ids) < (asked or 1):
                completion = "" if asked is None else f" and {asked} in the completion"
                raise ApiError(
                    400,
                    f"maximum context length is {self.longest} tokens, "
                    f"got {len(ids)} in the prompt{completion}",
                    param="prompt" if not request.is_chat else "messages",
                )
        return PreparedRequest(
            request, [self.prompts.read(ids, ends, request.salt) for ids, ends in request.prompts]
        )

    def begin(self, prepared: PreparedRequest, received_ns: int) -> tuple[Exchange, list[int]]:
        """Send a client request to the fleet; return the exchange and the ids of its requests.

        Args:
            prepared: the result of `read`.
            received_ns: simulated time at which the body was received.

        Raises:
            ApiError: the request is refused.
        """
        request = prepared.request
        number = self._received
        self._admit(request, number)
        fleet_requests = self._fleet_requests(prepared)
        self._received += 1
        form = ResponseFormat(number, self.settings.model, request.is_chat)
        exchange = Exchange(
            form,
            stream=request.stream,
            include_usage=request.include_usage,
            prompt_tokens=sum(len(ids) for ids, _ in request.prompts),
            cut_after=self.faults.cuts_after(number),
        )
        ids = []
        for index, sent in enumerate(fleet_requests):
            choice = Choice(exchange, index, sent, self._on_answer, self.vocabulary, self.metrics)
            request_id = self.fleet.send(sent, choice, received_ns)
            choice.arrives(request_id, self.fleet.now_s)
            ids.append(request_id)
        return exchange, ids

    def check_model(self, data: Mapping[str, Any]) -> None:
        """Refuse a request for another model."""
        model = data.get("model")
        if model is not None and model != self.settings.model:
            shown = model if isinstance(model, str) and len(model) < 200 else "of this request"
            raise ApiError(404, f"the model {shown!r} does not exist", "not_found_error", "model")

    def _admit(self, request: ApiRequest, number: int) -> None:
        """Refuse requests beyond the queue limit or by fault injection."""
        if self.is_draining or self.fleet.error is not None:
            raise ApiError(503, "the server is shutting down", "service_unavailable")
        refused = self.faults.refuses(number)
        if refused is not None:
            self._received += 1
            raise refused
        if len(request.prompts) * request.choices > _MOST_ANSWERS:
            raise ApiError(400, f"n: at most {_MOST_ANSWERS} answers per request", param="n")
        most = self.settings.max_waiting
        if most is not None and self.fleet.waiting() >= most:
            raise ApiError(503, f"the queue is full ({most} requests)", "overloaded_error")

    def _fleet_requests(self, prepared: PreparedRequest) -> list[FleetRequest]:
        """The fleet requests of a client request."""
        request = prepared.request
        fleet_requests: list[FleetRequest] = []
        for prompt in prepared.prompts:
            room, asked = self.longest - len(prompt.ids), request.max_tokens
            for _ in range(request.choices):
                tokens = self.settings.lengths.of(
                    self.fleet.asked + len(fleet_requests),
                    allowed=room if asked is None else asked,
                    limit=asked,
                    least=request.min_tokens,
                    ignore_eos=request.ignore_eos,
                )
                most = room if asked is None else asked
                fleet_requests.append(FleetRequest(prompt, tokens, most, request.session, request.priority))
        return fleet_requests

    def _on_answer(self, choice: Choice) -> None:
        """Store a complete answer, which later prompts may continue."""
        sent = choice.sent
        answer = self.vocabulary.ids(choice.request, choice.tokens)
        self.prompts.remember(sent.prompt, answer, choice.request)

    def tokenized(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Tokens of a prompt or of messages."""
        self.check_model(data)
        texts = self.settings.texts
        ids = (
            messages(data, texts, self.longest)[0]
            if "messages" in data
            else prompts(data, texts, self.longest)[0]
        )
        return {"count": len(ids), "max_model_len": self.longest, "tokens": ids, "token_strs": None}

    def models(self) -> dict[str, Any]:
        """The list of models, with the served one."""
        model = {
            "id": self.settings.model,
            "object": "model",
            "created": 0,
            "owned_by": "inferq",
            "root": self.settings.model,
            "parent": None,
            "max_model_len": self.longest,
        }
        return {"object": "list", "data": [model]}

    def change_faults(self, data: Mapping[str, Any]) -> None:
        """Change the active faults; `serve` documents the format."""
        commands = self.faults.set(data, len(self.fleet.live.replicas()))
        self.fleet.slow_s.update(self.faults.slow_s)
        try:
            for action, replica in commands:
                self.fleet.command(action, replica)
        except ConfigError as error:
            raise ApiError(400, str(error), param="replica") from None

    def current_faults(self) -> dict[str, Any]:
        """The active faults and the commands so far."""
        failures = self.fleet.failures
        return {**self.faults.to_json(), "failures": None if failures is None else failures.to_json()}

    def close(self) -> dict[str, Any] | None:
        """End the run and write the record; return the tables, or None after an error."""
        self._reader.shutdown(wait=False, cancel_futures=True)
        try:
            return None if self.fleet.error is not None else self.fleet.close()
        finally:
            if self.settings.record is not None:
                self.settings.record.close(self.fleet.failures)


def _kv_tokens(pool: Pool) -> list[int | None]:
    """KV-cache tokens of each replica of a pool."""
    parts = zip(pool.engines, pool.counts, strict=True)
    return list(chain.from_iterable(repeat(engine.kv.whole_tokens, count) for engine, count in parts))
