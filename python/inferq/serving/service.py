"""The service behind the routes: what it knows, and how a question becomes requests of the fleet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any

from inferq.errors import ConfigError
from inferq.serving.answers import Form
from inferq.serving.exchange import Choice, Exchange
from inferq.serving.faults import Faults
from inferq.serving.fleet import Ask, Fleet
from inferq.serving.lengths import Lengths
from inferq.serving.metrics import Metrics
from inferq.serving.prompts import Prompts
from inferq.serving.record import Record
from inferq.serving.requests import ApiError, Question, messages, prompts
from inferq.serving.requests import question as read_question
from inferq.serving.texts import Texts, Vocabulary
from inferq.systems.pools import Pool, pools_of
from inferq.systems.system import System

_UNLIMITED = 2**31 - 1
_MOST_ANSWERS = 1024
"""To one request of a client."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How a system is served."""

    model: str
    texts: Texts
    lengths: Lengths
    seed: int
    speed: float
    max_waiting: int | None = None
    record: Record | None = None
    options: Mapping[str, Any] | None = None
    """Of `Live`."""


class Service:
    """A system that answers clients, inside a running event loop.

    Args:
        system: what serves.
        settings: how.
        broke: called where the simulation cannot go on, with what was raised.
        takes_commands: whether replicas may be told to die, to drain and to start.
    """

    def __init__(
        self,
        system: System,
        settings: Settings,
        broke: Callable[[Exception], object],
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
        self.prompts = Prompts(pools[0].engines[0].kv.block)
        self.vocabulary = Vocabulary(settings.texts)
        self.metrics = Metrics(settings.model, list(chain.from_iterable(_kv_tokens(pool) for pool in pools)))
        self.faults = Faults(settings.seed)
        self.is_draining = False
        self._questions = 0
        self.fleet = Fleet(
            system,
            speed=settings.speed,
            broke=broke,
            heard=self._heard,
            taken_back=self._taken_back,
            takes_commands=takes_commands,
            seed=settings.seed,
            **(settings.options or {}),
        )

    def _heard(self, at_ns: int, ask: Ask, request: int) -> None:
        self.metrics.prompt.note(len(ask.prompt.ids))
        if self.settings.record is not None:
            self.settings.record.add(at_ns, ask, request)

    def _taken_back(self, request: int, after_ns: int) -> None:
        if self.settings.record is not None:
            self.settings.record.take_back(request, after_ns)

    def begin(
        self, data: Mapping[str, Any], is_chat: bool, session: str | None, came_ns: int
    ) -> tuple[Exchange, list[int]]:
        """Ask the fleet what a client asks. Returns the exchange, and the ids of its requests.

        Args:
            data: the body.
            is_chat: whether it has messages, else a prompt.
            session: the session that its headers name.
            came_ns: the instant of the simulation at which the body was there.

        Raises:
            ApiError: the client is told that.
        """
        self.check_model(data)
        question = read_question(data, self.settings.texts, is_chat, session)
        number = self._questions
        self._admit(question, number)
        asks = self._asks(question)
        self._questions += 1
        form = Form(number, self.settings.model, is_chat)
        exchange = Exchange(
            form,
            stream=question.stream,
            include_usage=question.include_usage,
            prompt_tokens=sum(len(ids) for ids, _ in question.prompts),
            cut_after=self.faults.cuts_after(number),
        )
        requests = []
        for index, ask in enumerate(asks):
            choice = Choice(exchange, index, ask, self._answered, self.vocabulary, self.metrics)
            request = self.fleet.ask(ask, choice, came_ns)
            choice.arrives(request, self.fleet.now_s)
            requests.append(request)
        return exchange, requests

    def check_model(self, data: Mapping[str, Any]) -> None:
        """Refuse a request for another model."""
        model = data.get("model")
        if model is not None and model != self.settings.model:
            said = model if isinstance(model, str) and len(model) < 200 else "that was asked for"
            raise ApiError(404, f"the model {said!r} does not exist", "not_found_error", "model")

    def _admit(self, question: Question, number: int) -> None:
        """Refuse what goes beyond the queue, or is refused on demand."""
        if self.is_draining or self.fleet.broken is not None:
            raise ApiError(503, "the server is shutting down", "service_unavailable")
        refused = self.faults.refuses(number)
        if refused is not None:
            self._questions += 1
            raise refused
        if len(question.prompts) * question.choices > _MOST_ANSWERS:
            raise ApiError(400, f"n: more than {_MOST_ANSWERS} answers to one request", param="n")
        most = self.settings.max_waiting
        if most is not None and self.fleet.waiting() >= most:
            raise ApiError(503, f"{most} requests wait already", "overloaded_error")

    def _asks(self, question: Question) -> list[Ask]:
        """The requests of the fleet that a question is."""
        asks: list[Ask] = []
        for ids, ends in question.prompts:
            room, asked = self.longest - len(ids), question.most_tokens
            if room < (asked or 1):
                wants = "" if asked is None else f" and {asked} in the answer"
                raise ApiError(
                    400,
                    f"this model's maximum context length is {self.longest} tokens, and there are {len(ids)} "
                    f"in the prompt{wants}",
                    param="prompt" if not question.is_chat else "messages",
                )
            prompt = self.prompts.read(ids, ends, question.salt)
            for _ in range(question.choices):
                tokens = self.settings.lengths.of(
                    self.fleet.asked + len(asks),
                    allowed=room if asked is None else asked,
                    asked=asked,
                    least=question.least_tokens,
                    ignore_eos=question.ignore_eos,
                )
                most = room if asked is None else asked
                asks.append(Ask(prompt, tokens, most, question.session, question.priority, question.salt))
        return asks

    def _answered(self, choice: Choice) -> None:
        """An answer is whole: prompts may go on from it."""
        ask = choice.ask
        answer = self.vocabulary.ids(choice.request, choice.tokens)
        self.prompts.answered(ask.prompt, answer, choice.request, ask.salt)

    def counted(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """The tokens of a prompt, or of messages."""
        self.check_model(data)
        texts = self.settings.texts
        ids = messages(data, texts)[0] if "messages" in data else prompts(data, texts)[0]
        return {"count": len(ids), "max_model_len": self.longest, "tokens": ids, "token_strs": None}

    def models(self) -> dict[str, Any]:
        """The one model that there is."""
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
        """Let some things go wrong, or no more; see `serve` for the form."""
        told = self.faults.set(data, len(self.fleet.live.replicas()))
        self.fleet.slow_s.update(self.faults.slow_s)
        try:
            for what, replica in told:
                self.fleet.tell(what, replica)
        except ConfigError as error:
            raise ApiError(400, str(error), param="replica") from None

    def faults_now(self) -> dict[str, Any]:
        """What goes wrong, and when which replica was told what."""
        failures = self.fleet.failures
        return {**self.faults.to_json(), "failures": None if failures is None else failures.to_json()}

    def close(self) -> dict[str, Any] | None:
        """End the run, and write what is recorded. Returns its tables; None where it broke."""
        tables = None if self.fleet.broken is not None else self.fleet.close()
        if self.settings.record is not None:
            self.settings.record.close(self.fleet.failures)
        return tables


def _kv_tokens(pool: Pool) -> list[int | None]:
    """The capacity of each replica of a pool."""
    parts = zip(pool.engines, pool.counts, strict=True)
    return list(chain.from_iterable(repeat(engine.kv.whole_tokens, count) for engine, count in parts))
