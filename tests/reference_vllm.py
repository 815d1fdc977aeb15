"""What vLLM does that plans a batch while the one before it runs, said plainly: its loop, turn by turn.

Written from the rules of the recorded engine (`conformance/README.md`) alone. A scenario, and what comes out,
are as they are recorded there: whole numbers, times in microseconds.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .reference_cache import Cache, said

MOST_OUT = {False: 1, True: 2}  # batches submitted and not settled: one runs, one may wait behind it


class Request:
    def __init__(self, at: int, row: dict[str, Any], tokens: list[Any], ends: str) -> None:
        self.id, self.arrival, self.said = at, row["arrival_us"], tokens
        self.prompt, self.output = row["prompt_tokens"], row["output_tokens"]
        self.priority = row.get("priority", 0)
        self.limit = row.get("max_output_tokens", self.output + (ends == "stop"))
        self.computed = self.emitted = self.preemptions = 0  # emitted: settled; the client has it
        self.pending = self.flying = 0  # outputs and tokens of its rows in flight
        self.cached = self.first_token = self.finish = -1

    @property
    def goal(self) -> int:
        return self.prompt + self.emitted

    @property
    def owed(self) -> int:
        return self.goal + self.pending - self.computed

    @property
    def ends(self) -> bool:
        """Is its last token certain to be on its way?"""
        return self.pending > 0 and self.emitted + self.pending >= self.limit


class Row(NamedTuple):
    request: Request
    tokens: int
    emits: bool
    life: int  # it has been preempted so often


class Memory(Cache):
    """Blocks, each with its content where the prefix cache is on."""

    def __init__(self, blocks: int, block: int, cached: bool) -> None:
        super().__init__(blocks, block)
        self.cached = cached

    def match(self, r: Request) -> list[int]:
        return super().match(r) if self.cached else []

    def register(self, r: Request, tokens: int) -> None:
        if self.cached:
            super().register(r, tokens)

    def lacks(self, r: Request, tokens: int) -> int:
        """Free blocks that it uses up to hold so many tokens, with what it finds if it holds nothing."""
        found = self.match(r) if r.computed == 0 else []
        return -(-tokens // self.block) - len(self.held[r]) - len(found) + self.idle(found)


class Scheduler:
    def __init__(self, scenario: dict[str, Any]) -> None:
        names = ("token_budget", "max_seqs", "long_prefill_threshold", "reserve_full_prompt")
        self.budget, self.max_seqs, self.threshold, self.reserves = (scenario[name] for name in names)
        self.by_priority = scenario["policy"] == "priority"
        block = scenario["block_tokens"]
        self.memory = Memory(scenario["kv_tokens"] // block, block, scenario["prefix"])
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.unfinished = 0
        self.has_preempted = False

    def rank(self, r: Request) -> tuple[int, int, int]:
        return r.priority, r.arrival, r.id

    def wait(self, r: Request, at: int) -> None:
        self.waiting.insert(at, r)
        if self.by_priority:
            self.waiting.sort(key=self.rank)

    def plan(self) -> list[Row]:
        self.has_preempted = False
        rows: dict[Request, int] = {}
        lone = len(self.running) + len(self.waiting) <= 1
        longest = self.budget if lone or not self.threshold else self.threshold
        at, left = 0, self.budget
        while at < len(self.running) and left:
            r = self.running[at]
            tokens = 0 if r.ends else min(r.owed, longest, left)
            while tokens and self.memory.lacks(r, r.computed + tokens) > self.memory.left:
                victim = max(self.running, key=self.rank) if self.by_priority else self.running[-1]
                at -= self.running.index(victim) < at
                left += rows.pop(victim, 0)
                self.preempt(victim)
                tokens *= victim is not r
            if r not in self.running[at:]:  # its own victim: by priority the walk goes on in its place
                if not self.by_priority:
                    break
                continue
            if tokens:
                self.take(r, tokens)
                rows[r], left = tokens, left - tokens
            at += 1
        while self.waiting and not self.has_preempted and left and len(self.running) < self.max_seqs:
            r = self.waiting[0]
            found = len(self.memory.match(r)) * self.memory.block
            tokens = min(r.goal - found, longest, left)
            if self.memory.lacks(r, r.goal if self.reserves else found + tokens) > self.memory.left:
                break
            self.memory.grab(r)
            r.computed, r.cached = found, found if r.cached < 0 else r.cached
            self.running.append(self.waiting.pop(0))
            self.take(r, tokens)
            rows[r], left = tokens, left - tokens
        return [self.advance(r, tokens) for r, tokens in rows.items()]

    def take(self, r: Request, tokens: int) -> None:
        """Blocks for its row; those are known at once that the row fills with tokens that are known."""
        held = self.memory.held[r]
        self.memory.take(r, max(0, -(-(r.computed + tokens) // self.memory.block) - len(held)))
        self.memory.register(r, min(r.computed + tokens, r.goal))

    def advance(self, r: Request, tokens: int) -> Row:
        emits = tokens == r.owed
        r.computed, r.flying, r.pending = r.computed + tokens, r.flying + tokens, r.pending + emits
        return Row(r, tokens, emits, r.preemptions)

    def preempt(self, r: Request) -> None:
        """Its blocks are free at once; what is in flight of it is stale."""
        self.has_preempted = True
        self.running.remove(r)
        self.memory.release(r)
        r.computed = r.pending = r.flying = 0
        r.preemptions += 1
        self.wait(r, at=0)

    def settle(self, rows: list[Row], now: int) -> None:
        for r, tokens, emits, life in rows:
            is_stale = r.preemptions > life
            r.flying -= 0 if is_stale else tokens
            if not emits or r.finish >= 0:
                continue
            r.emitted += 1
            r.first_token = now if r.emitted == 1 else r.first_token
            if not is_stale:
                r.pending -= 1
                self.memory.register(r, r.computed - r.flying)
            if r.emitted == r.output:
                r.finish, self.unfinished = now, self.unfinished - 1
                (self.waiting if r in self.waiting else self.running).remove(r)
                self.memory.release(r)


def length(price: dict[str, int], rows: list[tuple[int, int, bool]]) -> int:
    """Of a batch: rows are tokens, context before them, is it a decode?"""
    tokens, contexts = sum(n for n, _, _ in rows), sum(c for _, c, decodes in rows if decodes)
    return price["base"] + price["per_token"] * tokens + price["per_context_token"] * contexts


def simulate(scenario: dict[str, Any]) -> dict[str, list[Any]]:
    """What is expected of the scenario."""
    scheduler, asked, pause = Scheduler(scenario), scenario["requests"], scenario.get("pause_us", 0)
    ends = scenario.get("ends", "length")
    requests = [Request(at, *one, ends) for at, one in enumerate(zip(asked, said(asked), strict=True))]
    coming = sorted(requests, key=lambda r: r.arrival)
    for r in requests:
        scheduler.memory.meet(r)
    most_out = MOST_OUT[scenario.get("async_scheduling", False)]
    iterations: list[Any] = []
    out: list[tuple[int, list[Row]]] = []  # the end of each batch and its rows; an empty one is over
    now = end = 0  # the end of the last batch submitted
    is_news = False  # a request finished, and no plan was made since
    while True:  # a turn
        while coming and coming[0].arrival <= now:
            scheduler.unfinished += 1
            scheduler.wait(coming.pop(0), at=len(scheduler.waiting))
        rows: list[Row] = []
        if scheduler.unfinished or is_news:
            rows, is_news = scheduler.plan(), False
            if rows:
                start = max(now, end)
                shapes = [
                    (n, r.computed - n, emits and n == 1 and r.emitted + r.pending > 1)
                    for r, n, emits, _ in rows
                ]
                end = start + length(scenario["price_us"], shapes)
                iterations.append([start, [[r.id, n, int(emits)] for r, n, emits, _ in rows]])
            out.append((end if rows else now, rows))
        elif not out:
            if not coming:
                break
            now = coming[0].arrival
            continue
        if not (len(out) < most_out and (rows or scheduler.unfinished)):
            over, oldest = out.pop(0)
            now, before = max(now, over), scheduler.unfinished
            scheduler.settle(oldest, now)
            is_news |= scheduler.unfinished < before
        if not rows and (scheduler.unfinished or is_news):
            now += pause
    outcome = {
        "first_token_us": [r.first_token for r in requests],
        "finish_us": [r.finish for r in requests],
        "preemptions": [r.preemptions for r in requests],
        "iterations": iterations,
    }
    return outcome | (
        {"cached_tokens_at_admission": [r.cached for r in requests]} if scenario["prefix"] else {}
    )
