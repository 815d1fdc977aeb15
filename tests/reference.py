"""What must happen, said plainly: the slow reference that the fast core is tested against.

One replica, iteration by iteration, request by request. "Rule n": the design's; "C1.2.4": a step of a real
engine (C1 vLLM v1, C2 vLLM v0, C5 Sarathi-Serve). A scheduler is one function, named in `SCHEDULERS` below.
"""

from collections import defaultdict
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any, NamedTuple

Described = dict[str, Any]  # an object as its describe() gives it, or a row of the workload
NEVER = 1 << 127  # later than every event


def exact(number: float, places: int = 18) -> int:
    """Rule 1: what was typed (the shortest decimal), half to even at so many places, in units of 1e-18."""
    value = int(Decimal(repr(float(number))).scaleb(places).to_integral_value(ROUND_HALF_EVEN))
    return int(value * 10 ** (18 - places))


def price(t: dict[str, int], chunks: list[tuple[int, int]], decodes: list[int]) -> int:
    """Section 6: chunks are (tokens, context before), decodes the contexts before. A term it lacks is 0."""
    if "solo" in t and not chunks:  # MixedSolo
        return t["solo"]
    prefill, contexts = sum(c for c, _ in chunks), sum(decodes)
    time = t["seconds"] + t["base"] + t["alpha"] + t["beta"] * prefill
    time += t["per_kv_token"] * (prefill + sum(x for _, x in chunks) + contexts + len(decodes))
    time += t["per_token"] * max(0, prefill + len(decodes) - t["knee"]) + t["per_context_token"] * contexts
    return time + sum(c * (t["per_prefill_square"] * c + t["per_chunk_context"] * x) for c, x in chunks)


class Request:  # what it asks for, holds now and has become; times in attoseconds, None = absent
    def __init__(self, at: int, row: Described, absent: int | None = None) -> None:
        self.id, self.prompt, self.output = at, int(row["prompt_tokens"]), int(row["output_tokens"])
        self.priority = row.get("priority") or 0
        self.arrival = exact(row["arrival_s"], places=9)  # rule 1: to the nearest nanosecond
        patience = row.get("patience_s")
        self.gives_up = NEVER if patience is None else self.arrival + exact(patience)
        self.goal = self.prompt  # to compute before it decodes; after a recompute, all it then knew (rule 7)
        self.computed = 0  # the context: tokens whose keys and values are in the cache, or on the host
        self.blocks = self.preemptions = 0
        self.status = "unfinished"
        self.admitted = self.first_token = self.finish = self.left = absent
        self.tokens: list[int] = []  # the instant of each output token

    @property
    def decodes(self) -> bool:
        return self.computed >= self.goal

    @property
    def owed(self) -> int:
        return max(1, self.goal - self.computed)

    def __lt__(self, other: "Request") -> bool:  # by arrival, then id
        return (self.arrival, self.id) < (other.arrival, other.id)


class Iteration(NamedTuple):
    start: int
    length: int
    rows: list[tuple[int, int, bool]]  # (request, tokens, emits) in the engine's order
    kv_used_tokens: int


class Outcome(NamedTuple):
    requests: list[Request]  # those that arrived by the horizon, by id
    iterations: list[Iteration]  # the last may run beyond the horizon: it emits nothing


class Replica:  # one engine: who waits, runs and is swapped out, the free blocks, the batch under way
    def __init__(self, engine: Described) -> None:
        self.rules, kv, timing = engine["scheduler"], engine["kv"], engine["timing"]
        assert kv["prefix_cache"] is None and engine["first_token"] in ("prefill", "decode")
        self.decode_first = engine["first_token"] == "decode"
        times = {name: exact(value) for name, value in timing.items() if name not in ("kind", "knee")}
        self.times = defaultdict(int, times, knee=timing.get("knee", 0))  # the knee counts tokens
        self.swap = {k: exact(v) for k, v in self.rules.get("preemption", {}).items() if k != "kind"}
        self.block = kv["block"] or 16
        self.total = self.free = 1 << 100 if kv["tokens"] is None else kv["tokens"] // self.block  # rule 10
        self.watermark = exact(self.rules.get("watermark", 0)) * self.total // 10**18  # rule 11: rounded down
        self.waiting: list[Request] = []
        self.running: list[Request] = []  # in the order in which they got their places
        self.swapped: list[Request] = []
        self.iterations: list[Iteration] = []
        self.end = NEVER  # of the iteration under way
        self.budget = self.charge = 0  # tokens left to place; attoseconds of swapping for the next iteration

    def lacks(self, r: Request, tokens: int) -> int:  # blocks it must still get to hold so many tokens
        return max(0, -(-tokens // self.block) - r.blocks)

    def room(self, r: Request, tokens: int) -> bool:
        """Rule 11: a place, and blocks above the watermark, which counts only while any are held."""
        watermark = self.watermark if self.free < self.total else 0
        return len(self.running) < self.rules["max_seqs"] and self.free - self.lacks(r, tokens) >= watermark

    def hold(self, r: Request, tokens: int) -> None:
        """Give it a place, and blocks for so many tokens (rule 10). Asking too much is an error (rule 6)."""
        if r not in self.running:
            (self.swapped if r in self.swapped else self.waiting).remove(r)
            self.running.append(r)
        more = self.lacks(r, tokens)
        self.free, r.blocks = self.free - more, r.blocks + more
        assert self.free >= 0 and len(self.running) <= self.rules["max_seqs"], "blocks or sequences"

    def place(self, r: Request, tokens: int, holding: int = 0) -> None:
        """Add a row, cut to the budget; once that is spent, the request waits and keeps its blocks."""
        if tokens := min(tokens, self.budget):
            self.hold(r, max(holding, r.computed + tokens))
            assert r not in self.rows and tokens <= r.owed, "row"
            self.rows[r], self.budget = tokens, self.budget - tokens

    def preempt(self, r: Request) -> None:
        """Rule 12: blocks freed, tokens kept; the row that it may have leaves the batch (C1.1.4)."""
        self.running.remove(r)
        self.victims.append(r)
        self.budget += self.rows.pop(r, 0)
        self.free, r.blocks, r.preemptions = self.free + r.blocks, 0, r.preemptions + 1
        if self.swap:
            self.swapped.append(r)
            self.charge += self.swap["base"] + self.swap["per_token"] * r.computed
        else:  # queues are sorted when read: by its unchanged key it comes to its place, by arrival the head
            self.waiting.append(r)
            r.computed, r.goal = 0, r.prompt + len(r.tokens)

    def swap_in(self) -> None:
        """Rule 12: oldest first, each with the blocks for all it owes, up to the first that does not fit."""
        for r in sorted(self.swapped):
            if self.victims or not self.room(r, r.computed + r.owed):
                return
            self.hold(r, r.computed + r.owed)
            self.charge += self.swap["base"] + self.swap["per_token"] * r.computed
            if r.decodes:
                self.place(r, 1)

    def decode_by_arrival(self) -> None:
        """C2.3, C5.1: a token each, in the budget. No block: the latest not yet placed goes, itself last."""
        for r in sorted(r for r in self.running if r.decodes):
            while r in self.running and self.budget and self.lacks(r, r.computed + 1) > self.free:
                self.preempt(max((x for x in self.running if x is not r and x not in self.rows), default=r))
            if r in self.running:
                self.place(r, 1)

    def form_batch(self, now: int) -> bool:
        """Rules 5, 6: plan and price. An empty plan that preempted is asked again, any other one sleeps."""
        self.rows: dict[Request, int] = {}  # the tokens of each request, in batch order
        self.victims: list[Request] = []
        self.budget = self.rules["token_budget"]
        SCHEDULERS[self.rules["kind"]](self, self.rules)
        if not self.rows:
            return self.form_batch(now) if self.victims else False
        # Section 6: a decode is the last owed token of who has emitted before, or makes the next one.
        decodes = [r for r in self.rows if r.owed == 1 and (r.tokens or r.decodes)]
        chunks = [(n, r.computed) for r, n in self.rows.items() if r not in decodes]
        length = price(self.times, chunks, [r.computed for r in decodes]) + self.charge
        assert length > 0, "a non-empty iteration of length 0 (rule 1)"
        rows = [(r.id, n, False) for r, n in self.rows.items()]  # settle says who emits
        self.iterations.append(Iteration(now, length, rows, (self.total - self.free) * self.block))
        self.end, self.charge = now + length, 0
        for r in self.rows:
            r.admitted = now if r.admitted is None else r.admitted
        return True

    def settle(self, now: int) -> None:
        """Rules 7, 8: the last owed token emits or, with "decode", the decode after; who is done leaves."""
        for at, (r, n) in enumerate(self.rows.items()):
            emits = r.decodes if self.decode_first else n == r.owed
            self.iterations[-1].rows[at] = (r.id, n, emits)
            r.computed += n
            r.tokens += [now] if emits else []
            r.first_token = r.tokens[0] if r.tokens else None
            if len(r.tokens) == r.output:
                self.running.remove(r)
                self.free, r.blocks = self.free + r.blocks, 0
                r.status, r.finish, r.left = "finished", now, now
        self.end = NEVER


def simulate(requests: list[Described], engine: Described, horizon_s: float | None = None) -> Outcome:
    """Run requests, sorted by arrival, through an engine; all that falls on or before the horizon happens."""
    everyone, replica = [Request(at, row) for at, row in enumerate(requests)], Replica(engine)
    horizon = NEVER - 1 if horizon_s is None else exact(horizon_s)
    now = arrived = 0
    while True:  # rule 4: at one instant the iteration's end, patience (until first admitted), arrivals
        events = [(replica.end, 0, 0)]
        events += [(r.gives_up, 1, r.id) for r in replica.waiting if r.admitted is None]
        events += [(r.arrival, 2, r.id) for r in everyone[arrived : arrived + 1]]
        coming, kind, at = min(events)
        if coming > now and replica.end == NEVER and replica.form_batch(now):
            continue  # batches last; the new one's end is now among the events
        if coming > horizon:
            return Outcome(everyone[:arrived], replica.iterations)
        now, r = coming, everyone[at]
        if kind == 0:
            replica.settle(now)
        elif kind == 1:
            replica.waiting.remove(r)
            r.status, r.left = "abandoned", now
        else:
            arrived += 1
            too_long = replica.rules["kind"] == "VllmV0" and r.prompt > replica.rules["token_budget"]
            if too_long or replica.lacks(r, r.prompt + r.output - (not replica.decode_first)) > replica.total:
                r.status, r.left = "rejected", now  # rule 11: it could never run
            else:
                replica.waiting.append(r)


def sarathi(replica: Replica, rules: Described) -> None:
    replica.decode_by_arrival()  # C5.1
    replica.swap_in()  # before any admission
    for r in sorted(r for r in replica.running if not r.decodes):  # C5.2
        replica.place(r, r.owed)
    for r in sorted(replica.waiting, key=lambda r: (r.prompt if rules["order"] == "spf" else 0, r)):  # C5.3
        if replica.swapped or r in replica.victims or not replica.budget or not replica.room(r, r.owed):
            return  # C8: a step that preempted may admit, but no victim of its own
        replica.place(r, r.owed, holding=r.owed)


def vllm_v0(replica: Replica, rules: Described) -> None:
    if rest := [r for r in replica.running if not r.decodes]:  # resumed, longer than the budget: alone
        return replica.place(rest[0], rest[0].owed)
    for r in sorted(replica.waiting):  # C2.1: whole inputs; a longer (resumed) one only as the first
        if replica.swapped or (replica.rows and r.owed > replica.budget) or not replica.room(r, r.owed):
            break
        replica.place(r, r.owed, holding=r.owed)
    if not replica.rows:  # C2.2: whoever is admitted stalls the decodes
        replica.decode_by_arrival()  # C2.3
        replica.swap_in()  # C2.4


def vllm_v1(replica: Replica, rules: Described) -> None:
    by_priority = rules["policy"] == "priority"  # with fcfs the list runs by arrival: the last is worst
    lone = len(replica.running) + len(replica.waiting) <= 1
    longest = rules["token_budget"] if lone else rules["long_prefill_threshold"] or rules["token_budget"]
    for r in list(replica.running):  # C1.1, in list order
        if r in replica.running and replica.budget:
            tokens = min(r.owed, longest, replica.budget)  # C1.1.2
            while r in replica.running and replica.lacks(r, r.computed + tokens) > replica.free:
                replica.preempt(max(replica.running, key=lambda r: (by_priority and r.priority, r)))  # C1.1.4
            if r not in replica.running:
                break
            replica.place(r, tokens)  # C1.1.5
    for r in sorted(replica.waiting, key=lambda r: (by_priority and r.priority, r)):  # C1.2
        tokens = min(r.owed, longest, replica.budget)  # C1.2.3
        checked = r.owed if rules["reserve_full_prompt"] else tokens  # C1.2.4
        if replica.victims or not replica.budget or not replica.room(r, checked):
            return
        replica.place(r, tokens)  # C1.2.6


SCHEDULERS = {"Sarathi": sarathi, "VllmV0": vllm_v0, "VllmV1": vllm_v1}
