"""What SGLang's scheduler does, said plainly: step by step, request by request.

Written from the rules of the recorded engine (`conformance/README.md`) alone, in their order.
A scenario, and what comes out, are as they are recorded there: whole numbers, times in microseconds.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .reference_cache import said
from .reference_radix import Run, Tree

MOST_RESERVED = 4096  # output tokens of one request for which room is set aside
STEPS_AHEAD = 20  # decode steps for which a retraction makes room
FEW = 32  # tokens: requests that hit no more are compared with the others that wait
MOST_SORTED = 128  # waiting requests; more keep their order
REFRESHED_EVERY = 32  # passes
ENDLESS = 1 << 60  # chunking off

Picked = tuple["Request", int]  # a request and its tokens


class OutOfMemory(Exception):
    """The engine's own; what it does then is not recorded."""


class Stuck(Exception):
    """A request waits, and would for ever."""


class Request:
    def __init__(self, at: int, row: dict[str, Any], tokens: list[Any]) -> None:
        self.id, self.arrival, self.said = at, row["arrival_us"], tokens
        self.prompt, self.output = row["prompt_tokens"], row["output_tokens"]
        self.limit = row.get("max_tokens", self.output)  # what the client allowed
        self.emitted = self.kv = self.retractions = 0
        self.prefix = 0  # tokens that need no computing: found, or its own earlier pieces
        self.cached = self.first_token = self.finish = -1  # the first: found when it was first put in a batch

    @property
    def known(self) -> int:
        return self.prompt + self.emitted

    @property
    def left(self) -> int:
        return self.limit - self.emitted

    @property
    def is_over(self) -> bool:
        return self.emitted == self.output


class Row(NamedTuple):  # as it was planned
    request: Request
    tokens: int
    reaches: int  # tokens that are computed with it
    emits: bool
    decodes: bool
    life: int  # the request has been retracted so often


class Memory(Tree):
    """The pool, and the prefix tree where the cache is on. The tree counts pages; here all is tokens."""

    def __init__(self, tokens: int, page: int, cached: bool) -> None:
        super().__init__(tokens // page, page)
        self.cached = cached

    def free_and_evictable(self) -> int:
        return self.left * self.block

    def evict_until(self, tokens: int) -> bool:
        """As far as possible; are so many free now?"""
        if self.free * self.block < tokens:
            self.evict(min(-(-tokens // self.block), self.left))
        return self.free * self.block >= tokens

    def find(self, r: Request, tokens: int) -> tuple[Run, int]:
        """Refreshes what it finds."""
        end, pages = self.refresh(self.pages[r][: tokens // self.block] if self.cached else [])
        return end, pages * self.block

    def publish(self, r: Request, tokens: int) -> None:
        if self.cached:
            self.computed(r, tokens)

    def grow(self, r: Request, tokens: int) -> None:
        pages = -(-(r.kv + tokens) // self.block) - -(-r.kv // self.block)
        if self.free < pages:
            raise OutOfMemory
        self.free, self.alone[r], r.kv = self.free - pages, self.alone[r] + pages, r.kv + tokens


class Scheduler:
    def __init__(self, scenario: dict[str, Any]) -> None:
        self.page, self.max_seqs, self.policy = (scenario[n] for n in ("page_tokens", "max_seqs", "policy"))
        self.chunk_tokens = scenario["chunk_tokens"] or ENDLESS
        self.mixed = scenario["mixed"] and scenario["chunk_tokens"] > 0
        self.max_prefill_tokens, self.ignore_eos = scenario["max_prefill_tokens"], scenario["ignore_eos"]
        self.memory = Memory(scenario["kv_tokens"], self.page, scenario["prefix"])
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.prefilled: list[Request] = []  # the last batch, if it was extend or mixed
        self.partial: Request | None = None
        self.flying: list[Request] = []  # whose next token is being computed while a batch is planned
        self.closed = False
        self.passes = 0
        self.high = self.ratio = min(0.7 * scenario["conservativeness"], 1)
        self.low = min(0.14 * self.high, 1)
        self.decay = (self.high - self.low) / 600

    # One step: its kind, its prefill rows, its decode rows.

    def step(self) -> tuple[str, list[Picked], list[Picked]] | None:
        if self.partial:
            self.memory.publish(self.partial, self.partial.kv)
            self.partial.prefix = self.partial.kv
        rest = [r for r in self.prefilled if not r.is_over and r is not self.partial]
        if len(rest) < len(self.prefilled) or (rest and not self.running):
            self.closed = False
        unfinished = [r for r in self.running + rest if not r.is_over]
        if len(unfinished) < len(self.running + rest):
            self.closed = False
        self.running, self.prefilled = unfinished, []
        if picked := self.prefill():
            self.prefilled = [r for r, _ in picked]
            if self.mixed and self.take_off_ending():
                self.closed = False
            if self.mixed and self.running and self.next_decode_fits():
                decodes = self.decode()
                self.prefilled, self.running = self.prefilled + self.running, []
                return "mixed", picked, decodes
            return "extend", picked, []
        if self.running:
            if ending := self.take_off_ending():
                self.closed = False
            if not self.running:
                return None
            if self.next_decode_fits():
                self.ratio = max(self.ratio - self.decay, self.low)
            elif ending:
                return None
            else:
                self.retract()
            return "decode", [], self.decode()
        if not (self.waiting or self.flying):
            self.ratio = self.high
        return None

    def take_off_ending(self) -> bool:
        """Those whose last token is being computed leave the running."""
        before = len(self.running)
        self.running = [r for r in self.running if r not in self.flying or r.left > 1]
        return len(self.running) < before

    # Prefill pass.

    def prefill(self) -> list[Picked]:
        if not self.running:
            self.closed = False
        if not self.partial and (self.closed or not self.waiting):
            return []
        if len(self.running) >= self.max_seqs and not self.partial:
            self.closed = True
            return []
        self.order()
        picked = Pass(self).pick()
        self.waiting = [r for r in self.waiting if r not in [one for one, _ in picked]]
        spare = self.page * len(picked) if self.page > 1 else 0
        self.memory.evict_until(sum(tokens for _, tokens in picked) + spare)
        for r, tokens in picked:
            r.cached, r.kv = (r.prefix if r.cached < 0 else r.cached), r.prefix
            self.memory.grow(r, tokens)
        return picked

    # Queue order.

    def order(self) -> None:
        if not self.memory.cached or not self.waiting:
            return
        if self.policy == "lpm" and len(self.waiting) <= MOST_SORTED:
            self.longest_match_first()
            return
        if self.passes % REFRESHED_EVERY == 0:
            for r in reversed(self.waiting[:MOST_SORTED]):
                self.memory.find(r, r.known)
        self.passes += 1

    def longest_match_first(self) -> None:
        place, alike = {}, []
        for r in self.waiting:
            _, found = self.memory.find(r, r.known)
            start = r.said[: min(FEW, r.known)]
            demoted = found <= FEW and len(start) == FEW and start in alike
            if found <= FEW and not demoted:
                alike.append(start)
            place[r] = demoted, 0 if demoted else -min(found, r.known - 1)
        self.waiting.sort(key=lambda r: place[r])

    # Decode and retraction.

    def next_decode_fits(self) -> bool:
        return self.memory.evict_until(self.page * sum(r.kv % self.page == 0 for r in self.running))

    def decode(self) -> list[Picked]:
        self.memory.evict_until(self.page * len(self.running))
        for r in self.running:
            self.memory.grow(r, 1)
        return [(r, 1) for r in self.running]

    def retract(self) -> None:
        rows = self.running
        rows.sort(key=lambda r: (r.emitted, -r.prompt), reverse=True)
        fits = False
        while not fits and len(rows) > 1:
            r = rows.pop()
            self.memory.release(r)
            r.kv, r.retractions = 0, r.retractions + 1
            self.memory.evict_until(STEPS_AHEAD * len(rows))
            self.waiting.append(r)
            self.closed = False
            fits = self.next_decode_fits()
        emitted, asked = sum(r.emitted for r in rows), sum(r.limit for r in rows)
        self.ratio = min(1, (emitted + STEPS_AHEAD * len(rows)) / (asked + 1))

    # After the step.

    def settle(self, rows: list[Row], now: int) -> None:
        for r, _, reaches, emits, decodes, life in rows:
            if not emits or r.is_over or r.retractions > life:
                continue
            r.emitted += 1
            if r.emitted == 1:
                r.first_token = now
            if r.is_over:
                r.finish = now
                self.memory.publish(r, min(r.kv, r.known))
                self.memory.release(r)
            elif not decodes:
                self.memory.publish(r, reaches)


class Pass:
    """One prefill pass: its budgets, and what is picked."""

    def __init__(self, of: Scheduler) -> None:
        self.of, self.page, self.memory = of, of.page, of.memory
        beside = len(of.running) if of.mixed else 0
        self.input = of.max_prefill_tokens - beside
        self.chunk = of.chunk_tokens - beside
        self.current = beside
        reserved: float = 0
        for r in of.running:  # one after the other, as IEEE doubles
            reserved += min(r.left, MOST_RESERVED) * (1 if of.ignore_eos else of.ratio)
        self.total = beside + reserved
        self.picked: list[Picked] = []
        self.to_emit: list[tuple[int, int]] | None = None  # rule B: (tokens still to emit, known tokens)

    @property
    def left_total(self) -> float:
        return self.memory.free_and_evictable() - self.total

    @property
    def left_current(self) -> int:
        return self.memory.free_and_evictable() - self.current

    def ceil(self, tokens: int) -> int:
        return -(-tokens // self.page) * self.page

    def admit(self, r: Request, tokens: int, whole: bool) -> str:
        """Takes it in, and gives the verdict."""
        charged = self.ceil(tokens)
        self.total += charged + self.page + (min(r.limit, MOST_RESERVED) if whole else 0)
        self.current += charged + self.page
        self.input, self.chunk = self.input - charged, self.chunk - charged
        self.picked.append((r, tokens))
        self.of.partial = None if whole else r
        return self.verdict()

    def verdict(self) -> str:
        if self.left_total <= 0 or self.left_current <= 0:
            return "memory"
        return "budget" if self.input <= 0 or self.chunk <= 0 else "go"

    def pick(self) -> list[Picked]:
        of = self.of
        if r := of.partial:
            room = min(self.chunk, int(self.left_total))
            tokens = min(r.known - r.prefix, room if room > 0 else self.chunk)
            self.admit(r, tokens, whole=tokens == r.known - r.prefix)
        for r in of.waiting:
            if self.verdict() == "budget":
                break
            if len(self.picked) >= of.max_seqs - len(of.running):
                of.closed = True
            if of.closed:
                break
            end, r.prefix = self.memory.find(r, r.known - 1)
            without_cache = of.ignore_eos and not self.memory.cached
            verdict = self.rule_b(r) if without_cache else self.rule_a(r, end)
            if verdict == "memory":
                of.closed = bool(self.picked or of.running)
            if verdict != "go":
                break
        return self.picked

    def rule_a(self, r: Request, end: Run) -> str:
        ext = r.known - r.prefix
        self.memory.lock(end, 1)
        refused, tokens = "", ext
        if not ext + min(r.left, MOST_RESERVED) + self.page < self.left_total:
            refused = "memory"
        elif self.of.chunk_tokens == ENDLESS:
            refused = "budget" if self.picked and self.ceil(ext) >= self.input else ""
        elif self.ceil(ext) > self.chunk:
            tokens = self.chunk // self.page * self.page
            refused = "" if tokens else "budget"
        if refused:
            self.memory.lock(end, -1)
            return refused
        self.memory.end[r], self.memory.owned[r] = end, r.prefix // self.page
        return self.admit(r, tokens, whole=tokens == ext)

    def rule_b(self, r: Request) -> str:
        ext = r.known - r.prefix
        need = self.ceil(ext) + self.page
        if need > min(self.left_current, self.left_total):
            return "memory"
        own = r.left, r.known
        if self.to_emit is None:
            others = [*self.of.running, *(one for one, _ in self.picked)]
            states = [own, *((one.left, one.known) for one in others)]
            self.to_emit = sorted((s for s in states if s[0] > 0), key=lambda s: s[0])
        else:
            later = [at for at, (left, _) in enumerate(self.to_emit) if left >= own[0]]
            self.to_emit.insert(later[0] if later else len(self.to_emit) - 1, own)
        freed = 0
        for at, (left, known) in enumerate(self.to_emit):
            behind = len(self.to_emit) - at
            if self.left_current - need + freed - left * behind <= behind:
                return "memory"
            freed += known
        tokens = min(ext, self.chunk)
        return self.admit(r, tokens, whole=tokens == ext)


def simulate(scenario: dict[str, Any]) -> dict[str, list[Any]]:
    """What is expected of the scenario."""
    scheduler, price, rows = Scheduler(scenario), scenario["price_us"], scenario["requests"]
    requests = [Request(at, *one) for at, one in enumerate(zip(rows, said(rows), strict=True))]
    coming = sorted(requests, key=lambda r: r.arrival)
    iterations: list[Any] = []
    now = end = 0
    flight: list[Row] = []  # the batch that is being computed, where the next one is planned meanwhile
    for r in requests:
        scheduler.memory.meet(r)
    while True:
        while coming and coming[0].arrival <= now:
            scheduler.waiting.append(coming.pop(0))
        before, flight = flight, []
        scheduler.flying = [row.request for row in before if row.emits]
        if step := scheduler.step():
            kind, prefills, decodes = step
            flight = [Row(r, n, r.kv, r is not scheduler.partial, False, r.retractions) for r, n in prefills]
            flight += [Row(r, n, r.kv, True, True, r.retractions) for r, n in decodes]
        if before:
            now = end
        if flight:
            iterations.append([now, kind, [[row.request.id, row.tokens, int(row.emits)] for row in flight]])
            tokens, contexts = sum(row.tokens for row in flight), sum(r.kv - 1 for r, _ in decodes)
            end = now + price["base"] + price["per_token"] * tokens + price["per_context_token"] * contexts
            if not scenario.get("overlap"):
                before, flight, now = flight, [], end
        if before:
            scheduler.settle(before, now)
        elif flight:
            continue
        elif coming:
            now = coming[0].arrival
        elif scheduler.waiting:
            raise Stuck
        else:
            return {
                "first_token_us": [r.first_token for r in requests],
                "finish_us": [r.finish for r in requests],
                "retractions": [r.retractions for r in requests],
                "cached_tokens_at_admission": [r.cached for r in requests],
                "iterations": iterations,
            }
