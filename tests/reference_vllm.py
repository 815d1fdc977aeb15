"""What vLLM does that plans a batch while the one before it runs, said plainly: its loop, turn by turn.

With drafts too. Written from the rules of the recorded engine (`conformance/README.md`) alone. A scenario,
and what comes out, are as they are recorded there: whole numbers, times in microseconds.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple

from .reference_cache import Cache, said
from .reference_fleet import word

MOST_OUT = {False: 1, True: 2}  # batches submitted and not settled: one runs, one may wait behind it


class Request:
    def __init__(self, at: int, row: dict[str, Any], tokens: list[Any], ends: str) -> None:
        self.id, self.arrival, self.said = at, row["arrival_us"], tokens
        self.prompt, self.output = row["prompt_tokens"], row["output_tokens"]
        self.priority = row.get("priority", 0)
        self.limit = row.get("max_output_tokens", self.output + (ends == "stop"))
        self.computed = self.emitted = self.preemptions = 0  # emitted: settled; the client has it
        self.pending = self.flying = 0  # outputs, drafts taken as accepted, and tokens of its rows in flight
        self.accepted: list[int] = row.get("accepted", [])  # drafts, by emission
        self.offer = self.emissions = 0  # drafts that its next row verifies; settled rows that emitted
        self.rate: float | None = row.get("proposal_rate")
        self.planned = 0  # rows that emit, planned so far
        self.is_past_chunks = False  # did its last row emit?
        self.cached = self.first_token = self.finish = -1

    @property
    def goal(self) -> int:
        return self.prompt + self.emitted

    @property
    def owed(self) -> int:
        return self.goal + self.pending + self.offer - self.computed

    @property
    def ends(self) -> bool:
        """Is its last token certain to be on its way?"""
        return self.pending > 0 and self.emitted + 1 >= self.limit


class Row(NamedTuple):
    request: Request
    tokens: int
    drafts: int
    missing: int  # drafts of its plan that were not proposed
    emits: bool
    fills: bool  # its drafts only fill it up: none is accepted
    life: int  # it has been preempted so often


class Memory(Cache):
    """Blocks, each with its content where the prefix cache is on."""

    def __init__(self, blocks: int, block: int, cached: bool, looks_ahead: bool) -> None:
        super().__init__(blocks, block)
        self.cached = cached
        self.beyond = int(looks_ahead)  # a block is named by its tokens and this many behind them

    def meet(self, r: Request) -> None:
        super().meet(r)
        if self.beyond:
            chain: Any = 0
            self.contents[r] = []
            for end in range(self.block, len(r.said), self.block):
                chain = self.names.setdefault(
                    (chain, tuple(r.said[end - self.block : end + 1])), len(self.names) + 1
                )
                self.contents[r].append(chain)

    def match(self, r: Request) -> list[int]:
        return super().match(r) if self.cached else []

    def register(self, r: Request, tokens: int) -> None:
        if self.cached:
            super().register(r, min(tokens, r.goal - self.beyond))

    def lacks(self, r: Request, tokens: int) -> int:
        """Free blocks that it uses up to hold so many tokens, with what it finds if it holds nothing."""
        found = self.match(r) if r.computed == 0 else []
        return -(-tokens // self.block) - len(self.held[r]) - len(found) + self.idle(found)


class Scheduler:
    def __init__(self, scenario: dict[str, Any]) -> None:
        names = ("token_budget", "max_seqs", "long_prefill_threshold", "reserve_full_prompt")
        self.budget, self.max_seqs, self.threshold, self.reserves = (scenario[name] for name in names)
        self.by_priority = scenario["policy"] == "priority"
        block, speculation = scenario["block_tokens"], scenario.get("speculation", {})
        self.drafts = speculation.get("tokens", 0)
        self.always_proposes = speculation.get("method") != "ngram"
        self.rate, self.seed = speculation.get("proposal_rate"), speculation.get("seed", 0)
        self.plans_ahead = scenario.get("async_scheduling", False)
        looks_ahead = speculation.get("method") == "eagle"
        self.lookahead = self.drafts * looks_ahead
        # Tokens of a request: so the recordings with drafts have it.
        longest = scenario.get("max_model_len", scenario["kv_tokens"])
        self.longest = longest if self.drafts else 1 << 60
        self.memory = Memory(scenario["kv_tokens"] // block, block, scenario["prefix"], looks_ahead)
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
            tokens = 0 if r.ends else max(0, min(r.owed, longest, left, self.longest - r.computed - 1))
            while tokens and self.memory.lacks(r, self.slots(r.computed + tokens)) > self.memory.left:
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
        only_decodes, fillers = all(r.is_past_chunks for r in rows), set()
        has_run = bool(rows)
        while self.waiting and not self.has_preempted and left and len(self.running) < self.max_seqs:
            r = self.waiting[0]
            found = len(self.memory.match(r)) * self.memory.block
            tokens = min(r.goal - found, longest, left)
            is_last = self.drafts and r.goal - found == 1 and found + 1 + self.drafts + 1 <= self.longest
            if is_last and only_decodes and (has_run or found):  # filled up, with drafts that are in vain
                tokens = 1 + self.drafts
                if tokens > left:
                    break
                fillers.add(r)
            slots = self.slots(found + tokens)
            if self.memory.lacks(r, max(r.goal, slots) if self.reserves else slots) > self.memory.left:
                break
            self.memory.grab(r)
            r.computed, r.cached = found, found if r.cached < 0 else r.cached
            self.running.append(self.waiting.pop(0))
            self.take(r, tokens)
            rows[r], left = tokens, left - tokens
        return [self.advance(r, tokens, r in fillers) for r, tokens in rows.items()]

    def slots(self, tokens: int) -> int:
        """What a row needs that computes up to so many tokens: room for the drafts behind it too."""
        return min(tokens + self.lookahead, self.longest)

    def take(self, r: Request, tokens: int) -> None:
        """Blocks for its row; those are known at once that the row fills with tokens that are known."""
        held = self.memory.held[r]
        self.memory.take(r, max(0, -(-self.slots(r.computed + tokens) // self.memory.block) - len(held)))
        self.memory.register(r, min(r.computed + tokens, r.goal))

    def advance(self, r: Request, tokens: int, fills: bool) -> Row:
        r.computed, r.flying = r.computed + tokens, r.flying + tokens
        emits = r.computed >= r.goal + r.pending
        drafts = max(0, r.computed - r.goal - r.pending)
        r.pending += (1 + drafts) * emits
        missing = 0 if fills or self.proposes(r, r.planned) else drafts
        r.planned += emits
        # A plan made ahead does not know whether a proposal follows the row in flight.
        will_propose = self.plans_ahead or self.proposes(r, r.planned)
        r.offer, r.is_past_chunks = self.drafts * (emits and will_propose), emits
        return Row(r, tokens, drafts, missing, emits, fills, r.preemptions)

    def proposes(self, r: Request, row: int) -> bool:
        """Proposals are source 19 of chance; row m is the m-th that emits."""
        rate = r.rate if self.rate is None else self.rate
        if self.always_proposes or rate is None:
            return True
        return Fraction(word(self.seed, 19, r.id, row) >> 1, 1 << 63) < Fraction(str(rate))

    def preempt(self, r: Request) -> None:
        """Its blocks are free at once; what is in flight of it is stale."""
        self.has_preempted = True
        self.running.remove(r)
        self.memory.release(r)
        r.computed = r.pending = r.flying = r.offer = 0
        r.is_past_chunks = False
        r.preemptions += 1
        self.wait(r, at=0)

    def settle(self, rows: list[Row], now: int) -> list[int]:
        """How many tokens come out of each row?"""
        return [self.settle_row(row, now) for row in rows]

    def settle_row(self, row: Row, now: int) -> int:
        r, tokens, drafts, missing, emits, fills, life = row
        is_stale = r.preemptions > life
        r.flying -= 0 if is_stale else tokens
        if not emits or r.finish >= 0:
            return 0
        # Without proposals more rows may be needed than a list has.
        right = r.accepted[r.emissions] if r.emissions < len(r.accepted) else 0
        accepted = min(right, drafts - missing) if not fills else 0
        out = min(1 + accepted, r.output - r.emitted)
        r.first_token = now if r.emitted == 0 else r.first_token
        r.emitted, r.emissions = r.emitted + out, r.emissions + 1
        if not is_stale:
            r.pending -= 1 + drafts
            r.computed -= 1 + drafts - out
            self.memory.register(r, r.computed - r.flying)
        if r.emitted == r.output:
            r.finish, self.unfinished = now, self.unfinished - 1
            (self.waiting if r in self.waiting else self.running).remove(r)
            self.memory.release(r)
        return out


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
    settled = 0  # batches
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
                    (
                        n - missing,
                        r.computed - n,
                        emits and n == 1 + drafts and r.emitted + r.pending > 1 + drafts,
                    )
                    for r, n, drafts, missing, emits, _, _ in rows
                ]
                end = start + length(scenario["price_us"], shapes)
                listed = [[row.request.id, row.tokens - row.missing, int(row.emits)] for row in rows]
                iterations.append([start, listed])
            out.append((end if rows else now, rows))
        elif not out:
            if not coming:
                break
            now = coming[0].arrival
            continue
        if not (len(out) < most_out and (rows or scheduler.unfinished)):
            over, oldest = out.pop(0)
            now, before = max(now, over), scheduler.unfinished
            emitted = scheduler.settle(oldest, now)
            if scheduler.drafts and oldest:  # how many; without drafts a row in vain counts as one
                for row, count in zip(iterations[settled][1], emitted, strict=True):
                    row[2] = count
                settled += 1
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
