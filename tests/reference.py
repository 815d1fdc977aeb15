"""A slow reference simulator that the fast core is compared with.

One replica, iteration by iteration, request by request. "R5": a rule of DESIGN.md; "C1.2.4": a step of a real
engine (C1 vLLM v1, C2 vLLM v0, C5 Sarathi-Serve). The rules of the schedulers are in `policies/`; many
replicas, hand-offs between them and requests that wait for others in `reference_fleet.py`.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any, NamedTuple

from .reference_cache import Cache, Token, said
from .reference_radix import Tree
from .timing_models import TIMINGS, each_time

Described = dict[str, Any]  # an object as its to_json() gives it, or a row of the workload
NEVER = 1 << 127  # later than every event
CACHES: dict[str | None, type[Cache | Tree] | None] = {None: None, "blocks": Cache, "radix": Tree}
UNLIMITED = 1 << 100  # more blocks than anybody takes
NO_LIMIT = 1 << 60


def exact(number: float, places: int = 18) -> int:
    """R1: what was typed (the shortest decimal), half to even at so many places, in units of 1e-18."""
    value = int(Decimal(repr(float(number))).scaleb(places).to_integral_value(ROUND_HALF_EVEN))
    return int(value * 10 ** (18 - places))


def with_host(host: dict[str, int], largest_graph: int | None, gpu: int, rows: Iterable[int]) -> int:
    """What an iteration takes with the host, which works after the GPU or meanwhile.

    A batch of more tokens than the largest graph has is launched kernel by kernel. Without graphs, no
    iteration is shorter than the launches and the host's other work. Exposed time comes on top.
    """
    tokens = [*rows]
    time = host["base_s"] + host["per_sequence_s"] * len(tokens)
    eager = host["beyond_graph_s"] if largest_graph is not None and sum(tokens) > largest_graph else 0
    whole = (max(gpu, time) if host["overlapped"] else gpu + time) + eager
    return (max(whole, host["launch_s"] + time) if host["launch_s"] else whole) + host["exposed_s"]


class Request:  # what it asks for, holds now and has become; times in attoseconds, None = absent
    def __init__(self, at: int, row: Described, name: str = "default", absent: int | None = None) -> None:
        self.id = at
        self.prompt: int = row["prompt_tokens"]
        self.output: int = row["output_tokens"]
        self.name, self.priority = name, row.get("priority") or 0  # of its class; where a policy looks at it
        self.arrival = self.came = exact(row["arrival_s"], places=9)  # R1: to the nearest nanosecond
        self.patience = None if row.get("patience_s") is None else exact(row["patience_s"])
        self.itl_slo = absent if row.get("itl_slo_s") is None else exact(row["itl_slo_s"])
        self.goal: int = self.prompt  # to compute before it decodes; recomputed: all it knew (R7)
        self._computed: int = 0
        self.said: list[Token] = []  # every token of its prompt and its output
        self.brought = False  # its context came with it, and it has not run here yet
        self.seeks: Cache | Tree | None = (
            None  # where it finds its beginning, while it waits with nothing computed
        )
        self.cached = 0  # tokens found when it was first admitted
        self.blocks = self.preemptions = 0
        self.admission = self.stage = 0  # its number among the replica's admissions; iterations since then
        self.returned = 0  # the plan that sent it back to the head of the queue
        self.ready = self.end = 0  # the ends of the batch that made it ready here, and of its last one
        self.status = "unfinished"
        self.admitted = self.first_token = self.finish = self.left = absent
        self.prefilled = absent  # the end of its prompt's last iteration, the first time
        self.tokens: list[int] = []  # the instant of each output token that it keeps
        self.discards: list[int] = []  # and of those that were thrown away

    @property
    def computed(self) -> int:  # the context: tokens whose keys and values are in the cache, or on the host
        return len(self.seeks.match(self)) * self.seeks.block if self.seeks else self._computed

    @computed.setter
    def computed(self, tokens: int) -> None:
        self._computed = tokens

    @property
    def decodes(self) -> bool:
        return self.computed >= self.goal

    @property
    def owed(self) -> int:
        return max(1, self.goal - self.computed)

    @property
    def needs(self) -> int:  # its context once all that it owes is computed
        return self.computed + self.owed

    @property
    def gives_up(self) -> int:
        return NEVER if self.patience is None else self.arrival + self.patience

    def __lt__(self, other: "Request") -> bool:  # by arrival at this replica, then id
        return (self.came, self.id) < (other.came, other.id)


ORDERS: dict[str, Callable[[Request], int]] = {  # the keys of a queue; ties by (arrival, id)
    "fcfs": lambda r: 0,
    "spf": lambda r: r.prompt,
    "srf": lambda r: r.prompt + r.output,
    "lpf": lambda r: -r.prompt,
}


def ordered(queue: list[Request], order: str) -> list[Request]:
    """R12: where a queue has an order of its own, victims come to their place in it, not to its head."""
    return queue if order == "fcfs" else sorted(queue, key=lambda r: (ORDERS[order](r), r))


class Iteration(NamedTuple):
    start: int
    length: int
    rows: list[tuple[int, int, bool]]  # (request, tokens, emits) in the engine's order
    kv_used_tokens: int
    bound: str  # why no token more: "cap", "memory", "nothing" is left to load, "broken" (one could be added)


class Outcome(NamedTuple):
    requests: list[Request]  # those that arrived by the horizon, by id
    iterations: list[Iteration]  # the last may run beyond the horizon: it emits nothing
    drains: int  # batches that were formed because nothing else was to come (R5)
    cache: Any  # the prefix cache, if there is one, as it is then


class Replica:  # one engine: requests waiting, running and swapped out, free blocks, the batch
    def __init__(self, engine: Described, classes: list[str]) -> None:
        from .policies import POLICIES  # whose files import this one

        self.rules, kv, timing = engine["scheduler"], engine["kv"], engine["timing"]
        assert kv["prefix_cache"] in CACHES and engine["first_token"] in ("prefill", "decode")
        self.decode_first = engine["first_token"] == "decode"
        self.price, self.times = TIMINGS[timing["kind"]].price, each_time(timing, exact)
        self.host: dict[str, int] = defaultdict(int)
        overhead = dict(engine.get("overhead", {}))
        self.largest_graph: int | None = overhead.pop("largest_graph_tokens", None)
        self.host |= {name: exact(value) for name, value in overhead.items()}
        self.longest: int = engine.get("max_model_len", NO_LIMIT)  # prompt and output together
        self.classes = classes  # sorted
        self.scope: str | None = None  # the one class that is planned now (ClassPriority), None for all
        self.closed = ""  # the limit that a higher class waits for (ClassPriority)
        self.limits = self.rules.get("inner", self.rules)
        self.rule, self.policy = POLICIES[self.rules["kind"]].rule, POLICIES[self.limits["kind"]]
        bounds = self.policy.bounds(self.limits)
        self.most_seqs, self.most_tokens = (NO_LIMIT if most is None else int(most) for most in bounds)
        self.swap = {k: exact(v) for k, v in self.limits.get("preemption", {}).items() if k != "kind"}
        self.restarts = self.limits.get("preemption", {}).get("kind") == "Restart"
        if self.rules["kind"] == "SlotGreedy":
            self.swap = {"base": 0, "per_token": 0}  # its requests step out of memory at no cost
        offset = self.limits.get("offset", 0)
        offsets = offset if isinstance(offset, dict) else {"low": offset, "high": offset, "kv_share": 1}
        self.offsets = {name: exact(offsets[name]) for name in ("low", "high", "kv_share")}
        self.block = kv["block"] or 16
        self.total = self.free = UNLIMITED if kv["tokens"] is None else kv["tokens"] // self.block  # R10
        kind = CACHES[kv["prefix_cache"]]
        self.cache = kind and kind(self.total, self.block)
        self.ended: list[Request] = []  # whose blocks are kept until their batch ends
        share = exact(self.limits.get("watermark", 0))
        self.watermark = share * self.total // 10**18  # R11: rounded down
        self.waiting: list[Request] = []
        self.running: list[Request] = []  # in the order in which they got their places
        self.swapped: list[Request] = []
        self.iterations: list[Iteration] = []
        self.rows: dict[Request, int] = {}  # the tokens of each request of the batch, in its order
        self.end = NEVER  # of the iteration under way
        self.budget = self.charge = 0  # tokens left to place; attoseconds of swapping for the next iteration
        self.admissions = self.plans = self.kept = 0  # so far; blocks of the ended whose batch goes on
        self.count, self.decoding = 0, False  # Rad, RadPhased: prompts of this cycle; in the mode of decodes
        self.active: list[Request] = []  # RadPhased
        self.hands_over = False  # it computes prompts; another replica goes on
        self.sent = 0  # blocks of those that are on their way there

    def of(self, requests: list[Request]) -> list[Request]:
        return [r for r in requests if self.scope in (None, r.name)]

    @property
    def queue(self) -> list[Request]:
        return sorted(self.of(self.waiting), key=lambda r: (-r.returned, r))

    @property
    def ready(self) -> list[Request]:  # those whose next row is a decode and not in this batch, by arrival
        return sorted(r for r in self.of(self.running) if r.decodes and r not in self.rows)

    @property
    def unfinished(self) -> list[Request]:  # those inside their prompt, by arrival
        return sorted(r for r in self.of(self.running) if not r.decodes)

    def lacks(self, r: Request, tokens: int) -> int:  # blocks it must still get to hold so many tokens
        if r.seeks:  # it takes what it finds, and of that the free blocks are free no more
            found = r.seeks.match(r)
            return max(0, -(-tokens // self.block) - len(found)) + r.seeks.idle(found)
        return max(0, -(-tokens // self.block) - r.blocks)

    def room(self, r: Request, tokens: int) -> bool:
        """R11: a place, and blocks above the watermark, which counts only while any are held."""
        watermark = self.watermark if self.free < self.total else 0
        if self.closed:
            self.refused = self.closed
        elif len(self.running) >= self.most_seqs:
            self.refused = "cap"
        elif self.free - self.lacks(r, tokens) < watermark:
            self.refused = "memory"
        else:
            return True
        return False

    def to_next_token(self, r: Request) -> int:
        """What must fit so that an admission leads to a token: with "decode" its input alone brings none."""
        return r.needs + (self.decode_first and not r.decodes)

    def hold(self, r: Request, tokens: int) -> None:
        """Give it a place, and blocks for so many tokens (R10). Asking too much is an error (R6)."""
        if r not in self.running:
            (self.swapped if r in self.swapped else self.waiting).remove(r)
            self.running.append(r)
            self.find(r)
            self.admissions += 1
            r.admission, r.stage, r.returned = self.admissions, 0, 0
        more = self.lacks(r, tokens)
        self.free, r.blocks = self.free - more, r.blocks + more
        if self.cache:
            self.cache.take(r, more)
            self.cache.register(r, r.computed)
            assert self.free == self.cache.left
        assert self.free >= 0 and len(self.running) <= self.most_seqs, "blocks or sequences"

    def wait(self, r: Request) -> None:
        """It waits; if nothing of it is computed, what the cache has of it counts as if it were."""
        self.waiting.append(r)
        r.seeks = None if r.computed else self.cache

    def find(self, r: Request) -> None:
        """It is admitted, and what it finds is its own."""
        if r.seeks:
            found = r.seeks.match(r)
            self.free -= r.seeks.idle(found)
            r.seeks.grab(r)
            r.blocks, r.computed = len(found), len(found) * self.block
            r.seeks = None
            r.cached = r.computed if r.admitted is None else r.cached

    def place(self, r: Request, tokens: int, holding: int = 0) -> None:
        """Add a row, cut to the budget; once that is spent, the request waits and keeps its blocks."""
        if tokens := min(tokens, self.budget):
            self.hold(r, max(holding, r.computed + tokens))
            assert r not in self.rows and tokens <= r.owed, "row"
            self.rows[r], self.budget = tokens, self.budget - tokens
            if self.cache:
                self.cache.register(r, r.computed + tokens)

    def preempt(self, r: Request) -> None:
        """R12: blocks freed, tokens kept; the row that it may have leaves the batch (C1.1.4)."""
        self.running.remove(r)
        self.victims.append(r)
        self.budget += self.rows.pop(r, 0)
        self.free, r.blocks, r.preemptions = self.free + r.blocks, 0, r.preemptions + 1
        if self.cache:
            self.cache.release(r)
            self.free = self.cache.left
        if self.swap:
            self.swapped.append(r)
            self.charge += self.swap["base"] + self.swap["per_token"] * r.computed
            return
        if self.restarts:  # ao2025 A.3: its tokens are lost, it begins again
            r.discards += r.tokens
            r.tokens = []
        # to the head; victims of one plan keep their order
        r.computed, r.goal, r.returned = 0, r.prompt + len(r.tokens), self.plans
        self.wait(r)

    def swap_in(self) -> None:
        """R12: oldest first, each with the blocks for all it owes, up to the first that does not fit."""
        for r in sorted(self.of(self.swapped)):
            if self.victims or not self.room(r, r.needs):
                return
            self.hold(r, r.needs)
            self.charge += self.swap["base"] + self.swap["per_token"] * r.computed
            if r.decodes:
                self.place(r, 1)

    def victim(self, own: Request) -> Request:
        """The victim for want of a block: with ClassPriority the latest of the lowest class, if below."""
        if self.scope is None:
            return own
        rank = self.rules["order"].index
        lowest = max(self.running, key=lambda r: (rank(r.name), r))
        return lowest if rank(lowest.name) > rank(self.scope) else own

    def decode(self, requests: Iterable[Request], most: int = UNLIMITED) -> int:
        """C2.3, C5.1: a token each, in the budget. No block: the latest not yet placed goes, itself last."""
        placed = 0
        for r in requests:
            if placed == most or not self.budget:
                break
            while r in self.running and self.lacks(r, r.computed + 1) > self.free:
                others = [x for x in self.of(self.running) if x is not r and x not in self.rows]
                self.preempt(self.victim(max(others, default=r)))
            if r in self.running:
                self.place(r, 1)
                placed += 1
        return placed

    def early(self) -> int:
        """Slai, bari2025 (8): the offset times the mean length of all iterations so far, both rounded."""
        share, used = self.offsets["kv_share"], self.total - self.free
        full = self.total < UNLIMITED and used * 10**18 >= share * self.total
        mean = sum(i.length for i in self.iterations) // max(1, len(self.iterations))
        return self.offsets["high" if full else "low"] * mean // 10**18

    def bound(self) -> str:
        """The audit of li2025 (2.6): what kept one token more out of the batch that was formed?"""
        left = [r for r in self.running if self.rows.get(r, 0) < r.owed]
        if any(self.lacks(r, r.computed + self.rows.get(r, 0) + 1) <= self.free for r in left):
            return "broken"
        if self.waiting or self.swapped:
            if self.victims or self.refused:  # it took blocks away, or asked for room, the last time in vain
                return "memory" if self.victims else self.refused
            if len(self.running) >= self.most_seqs:
                return "cap"
            return "broken" if self.free else "memory"
        return "memory" if left else "nothing"

    def form_batch(self, now: int, drain: bool = False) -> bool:
        """Rules 5, 6: plan and price. An empty plan that preempted is asked again, any other one sleeps."""
        self.now, self.drain, self.refused, self.plans = now, drain, "", self.plans + 1
        self.rows = {}
        self.victims: list[Request] = []
        self.budget = self.most_tokens
        self.rule(self, self.rules)
        if not self.rows:
            return self.form_batch(now, drain) if self.victims else False
        # Section 6: a decode is the last owed token after one was emitted, or makes the next one.
        decodes = [r for r in self.rows if r.owed == 1 and (r.tokens or r.decodes)]
        chunks = [(n, r.computed) for r, n in self.rows.items() if r not in decodes]
        length = self.price(self.times, chunks, [r.computed for r in decodes])
        length = with_host(self.host, self.largest_graph, length, self.rows.values()) + self.charge
        assert length > 0, "a non-empty iteration of length 0 (R1)"
        rows = [(r.id, n, False) for r, n in self.rows.items()]  # settle says which rows emit
        used = (self.total - self.free) * self.block
        self.iterations.append(Iteration(now, length, rows, used, self.bound()))
        self.end, self.charge = now + length, 0
        for r in self.rows:
            r.admitted = now if r.admitted is None else r.admitted
        return True

    def settle(self, now: int) -> None:
        """Rules 7, 8: the last owed token emits or, with "decode", the decode after; the finished leave."""
        departing: list[Request] = []
        for at, (r, n) in enumerate(self.rows.items()):
            emits = r.decodes if self.decode_first else n == r.owed
            self.iterations[-1].rows[at] = (r.id, n, emits)
            r.ready, decoded = r.ready if r.decodes and r.stage else now, r.decodes
            r.computed, r.stage, r.end = r.computed + n, r.stage + 1, now
            r.tokens += [now] if emits else []
            r.first_token = (r.discards + r.tokens or [None])[0]
            if len(r.tokens) == r.output:
                self.running.remove(r)
                self.kept, r.blocks = self.kept + r.blocks, 0
                self.ended.append(r)
                r.status, r.finish, r.left = "finished", now, now
            elif self.hands_over and r.decodes:  # it leaves; its blocks stay until the transfer ends
                self.running.remove(r)
                departing.append(r)
            elif self.cache and (r.brought or not decoded):
                self.cache.computed(r, r.computed)
            r.brought = False
            r.prefilled = now if r.prefilled is None and r.decodes else r.prefilled
        over = self.limits.get("free") != "batch" or not self.running  # R10
        if over:
            self.free, self.kept = self.free + self.kept, 0
        if self.cache:
            self.ended.sort(key=lambda r: (r.left, r.admission))
            for r in self.ended:
                if r.left == now:
                    self.cache.computed(r, r.computed)
                if over:
                    self.cache.release(r)
            for r in sorted(departing, key=lambda r: r.id):
                self.cache.computed(r, r.computed)
            self.free = self.cache.left
        self.ended = [] if over else self.ended
        self.end = NEVER


def never_runs(replica: Replica, r: Request) -> bool:
    """R11: it is longer than its policy can batch, or takes more blocks than there are.

    Before that the door: a prompt that fills the longest length is refused, an output ends with it.
    """
    if r.prompt >= replica.longest:
        return True
    r.output = min(r.output, replica.longest - r.prompt)
    longest = r.prompt if replica.hands_over else r.prompt + r.output - (not replica.decode_first)
    if reserved := replica.limits.get("max_model_len"):
        longest = reserved
        if r.prompt + r.output > reserved:
            return True
    whole = replica.policy.whole_prompts(replica.limits)
    return (whole and r.prompt > replica.most_tokens) or replica.lacks(r, longest) > replica.total


def simulate(requests: list[Described], engine: Described, horizon_s: float | None = None) -> Outcome:
    """Run requests, sorted by arrival, through an engine; all that falls on or before the horizon happens."""
    classes = sorted({row.get("class", "default") for row in requests})
    everyone = [Request(at, row, row.get("class", "default")) for at, row in enumerate(requests)]
    for r, tokens in zip(everyone, said(requests), strict=True):
        r.said = tokens
    replica, horizon = Replica(engine, classes), NEVER - 1 if horizon_s is None else exact(horizon_s)
    now = arrived = drains = 0
    while True:  # R4: at one instant the iteration's end, patience (until first admitted), arrivals
        events = [(replica.end, 0, 0)]
        events += [(r.gives_up, 1, r.id) for r in replica.waiting if r.admitted is None]
        events += [(r.arrival, 2, r.id) for r in everyone[arrived : arrived + 1]]
        coming, kind, at = min(events)
        if coming > now and replica.end == NEVER:
            if replica.form_batch(now):
                continue  # batches last; the new one's end is now among the events
            if coming == NEVER and replica.form_batch(now, drain=True):  # R5: nothing else is to come
                drains += 1
                continue
        if coming > horizon:
            return Outcome(everyone[:arrived], replica.iterations, drains, replica.cache)
        now, r = coming, everyone[at]
        if kind == 0:
            replica.settle(now)
        elif kind == 1:
            replica.waiting.remove(r)
            r.status, r.left = "abandoned", now
        else:
            arrived += 1
            if never_runs(replica, r):
                r.status, r.left = "rejected", now  # R11
            else:
                if replica.cache:
                    replica.cache.meet(r)
                replica.wait(r)
