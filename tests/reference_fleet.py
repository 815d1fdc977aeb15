"""What must happen in a fleet, said plainly: routers, hand-offs, requests that wait for others.

A system is a list of pools: {"engines": descriptions, "counts": replicas of each, "router": one of ROUTERS,
"hands_to": None or {"pool": index, "link": {…}}}. The row of a request may name its "pool", the rows that it
waits for ("after") and its delay from the last of their ends ("delay_s"). One replica is `reference.py`'s.
"""

from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import cache
from itertools import takewhile
from typing import Any, NamedTuple

from .reference import NEVER, Described, Iteration, Replica, Request, exact, never_runs
from .reference_cache import said, whole_blocks


class Call(Request):  # a request on its way through a fleet
    def __init__(self, at: int, row: Described) -> None:
        super().__init__(at, row, row.get("class", "default"))
        self.pool: int = row.get("pool", 0)
        self.after: list[int] = row.get("after", [])
        self.delay = exact(row.get("delay_s", 0))  # from the end of the last that it waits for, or arrival_s
        self.session = row.get("session_id")
        if not self.after:  # what no other request delays
            self.arrival += self.delay
        self.due = NEVER if self.after else self.arrival  # when it arrives, as far as that is known
        self.arrived = False
        self.replica: int | None = None  # where it is, or was last
        self.source: int | None = None  # where its prompt was computed, once it has departed
        self.resumed: int | None = None  # the start of its first iteration after that


class Outcome(NamedTuple):
    requests: list[Call]  # those that arrived by the horizon, by id
    iterations: list[list[Iteration]]  # of each replica; the last may run beyond the horizon
    drained: list[int]  # requests there when nothing was to come and a batch was formed all the same, by id
    end: int  # the last instant at which anything happened; the horizon, if something goes on there


# Chance: Philox4x64 with 10 rounds (Salmon et al., SC 2011). The draw of a request depends on nothing else.


def philox(counter: list[int], key: list[int]) -> list[int]:
    """The four words of a counter under a key."""
    (a, b, c, d), (left, right), word = counter, key, (1 << 64) - 1
    for _ in range(10):
        first, second = 0xD2E7470EE14C6C93 * a, 0xCA5A826395121157 * c
        a, b = (second >> 64) ^ b ^ left, second & word
        c, d = (first >> 64) ^ d ^ right, first & word
        left, right = (left + 0x9E3779B97F4A7C15) & word, (right + 0xBB67AE8584CAA73B) & word
    return [a, b, c, d]


def word(seed: int, source: int, item: int, draw: int) -> int:
    """64 bits of an item; four neighboring ones share a counter."""
    return philox([item // 4, draw, 0, 0], [seed, source])[item % 4]


def drawn(seed: int, request: int, draw: int, count: int) -> int:
    """A whole number below `count`: routers are source 7."""
    return word(seed, 7, request, draw) * count >> 64


@cache
def ring(replicas: int) -> list[tuple[int, int]]:
    """128 places of each replica, in order: source 15, under no seed."""
    return sorted((word(0, 15, at, turn), at) for at in range(replicas) for turn in range(128))


# Routers (section 8). They see what happened before; a tie goes to the lowest replica.


class Router:
    def __init__(self, described: Described, seed: int, pool: int) -> None:
        self.kind, self.described = described["kind"], described
        self.seed, self.draw = seed, 2 * pool  # each pool has draws of its own
        self.turns = 0
        self.homes: dict[Any, int] = {}  # of the sessions
        every = described.get("update_s")
        self.every = None if every is None else exact(every)
        self.reported = -1  # the instant of the last report
        self.reports: list[set[int]] = []  # what each replica knew then
        self.numbers: dict[Any, int] = {}  # of the contents of prompts

    def looks(self) -> bool:
        """Whether it looks at any replica."""
        limit = {"BySession": "spill", "PrefixHash": "load_factor"}.get(self.kind)
        return self.kind not in BLIND and (limit is None or self.described.get(limit) is not None)

    def report(self, now: int, replicas: "list[Member]") -> None:
        """At every multiple of `update_s`, of what was before it: nothing has happened at `now` yet."""
        if self.every is not None and (at := now // self.every * self.every) > self.reported:
            self.reported = at
            self.reports = [replica.cache.seen() if replica.cache else set() for replica in replicas]

    def choose(self, r: Call, replicas: list[Replica]) -> int:
        return (ROUTERS | WRITTEN)[self.kind](self, r, replicas)

    def by_prefix(self, r: Call, replicas: list[Replica]) -> int:
        """Tokens to compute, weighted, and tokens of the blocks ahead; handed-off ones have computed all."""

        def cost(at: int) -> tuple[float, int]:
            replica, cached = replicas[at], r.prompt
            if r.source is None:
                seen = None if self.every is None else self.reports[at]
                cached = cached_tokens(replica, r, seen)
            ahead = blocks_ahead(replica) * replica.block
            return self.described.get("weight", 1.0) * (r.prompt - cached) + ahead, at

        return min(map(cost, range(len(replicas))))[1]

    def by_hash(self, r: Call, replicas: list[Replica]) -> int:
        """The first of the ring from the prefix on; with bounded loads the first that is not full."""
        place = 0
        parts: list[list[Any]] = []  # of what is said at the beginning, and how much of it
        for text, at in r.said[: min(self.described.get("prefix_tokens", 1024), r.prompt)]:
            if at == 0 or not parts:
                parts.append([text, 0])
            parts[-1][1] += 1
        for text, tokens in parts:
            place = philox([self.numbers[text], tokens, place, 0], [0, 16])[0]
        places = ring(len(replicas))
        around = [at for where, at in places if where >= place] + [at for _, at in places]
        factor, loads = self.described.get("load_factor"), [len(present(replica)) for replica in replicas]
        if factor is None:
            return around[0]
        bound = -(-Fraction(factor) * (sum(loads) + 1) // len(loads))
        return next(at for at in around if loads[at] < bound)

    def turn(self, r: Call, replicas: list[Replica]) -> int:
        self.turns += 1
        return (self.turns - 1) % len(replicas)

    def random(self, r: Call, replicas: list[Replica]) -> int:
        return drawn(self.seed, r.id, self.draw, len(replicas))

    def by_session(self, r: Call, replicas: list[Replica]) -> int:
        if r.session is None:
            return self.turn(r, replicas)
        if r.session not in self.homes:
            self.homes[r.session] = self.turn(r, replicas)
        elif (spill := self.described.get("spill")) is not None:
            loads = [len(present(replica)) for replica in replicas]
            if loads[self.homes[r.session]] * len(loads) > spill * sum(loads):
                self.homes[r.session] = loads.index(min(loads))
        return self.homes[r.session]

    def power_of_two(self, r: Call, replicas: list[Replica]) -> int:
        """Two different ones are drawn; fewer requests."""
        if len(replicas) == 1:
            return 0
        one = drawn(self.seed, r.id, self.draw, len(replicas))
        other = drawn(self.seed, r.id, self.draw + 1, len(replicas) - 1)
        other += other >= one
        return min(one, other, key=lambda at: (len(present(replicas[at])), at))


def present(replica: Replica) -> list[Request]:
    return replica.waiting + replica.running + replica.swapped


def tokens_ahead(replica: Replica) -> int:
    """Prompt tokens not computed and output tokens not emitted: it knows lengths."""
    return sum(max(0, r.prompt - r.computed) + r.output - len(r.tokens) for r in present(replica))


def blocks_ahead(replica: Replica) -> int:
    """Blocks used and those of waiting prompts."""
    return replica.total - replica.free + sum(-(-r.prompt // replica.block) for r in replica.waiting)


def cached_tokens(replica: Replica, r: Call, seen: set[int] | None = None) -> int:
    """Of the prompt of a request that comes; at this instant, or as it was seen."""
    cache = replica.cache
    if cache is None:
        return 0
    blocks = whole_blocks(cache.names, r.said[: r.prompt - 1], cache.block)
    known = cache.seen() if seen is None else seen
    return len(list(takewhile(known.__contains__, blocks))) * cache.block


def least(number: Callable[[Replica], int]) -> Callable[[Router, Call, list[Replica]], int]:
    return lambda router, r, replicas: min(range(len(replicas)), key=lambda at: (number(replicas[at]), at))


ROUTERS: dict[str, Callable[[Router, Call, list[Replica]], int]] = {
    "RoundRobin": Router.turn,
    "Random": Router.random,
    "BySession": Router.by_session,
    "PowerOfTwo": Router.power_of_two,
    "LeastRequests": least(lambda replica: len(present(replica))),
    "LeastTokens": least(tokens_ahead),
    "LeastKv": least(blocks_ahead),
    "PrefixAffinity": Router.by_prefix,
    "PrefixHash": Router.by_hash,
}
WRITTEN: dict[str, Callable[[Router, Call, list[Replica]], int]] = {}  # those that tests write themselves
BLIND = ("RoundRobin", "Random")  # these look at no replica


# Replicas, hand-offs.


class Member(Replica):  # a replica of a fleet
    def __init__(self, engine: Described, classes: list[str]) -> None:
        super().__init__(engine, classes)
        self.given_up = 0  # blocks whose transfer ended while an iteration runs here
        self.gone: list[Request] = []  # and whose they were
        self.touched = False  # something happened here at this instant

    def release(self, blocks: int, r: Request | None = None) -> None:
        """What was handed over is free once no iteration runs here that could not know."""
        self.given_up, self.touched = self.given_up + blocks, True
        self.gone += [r] if r else []
        if self.end == NEVER:
            self.sent -= self.given_up
            self.free, self.given_up = self.free + self.given_up, 0
            if self.cache:
                for gone in self.gone:
                    self.cache.release(gone)
                self.free = self.cache.left
            self.gone = []


class Transfer(NamedTuple):
    end: int
    request: Call
    source: Member
    blocks: int  # that the source holds until the end


class Link:  # first come, first served
    def __init__(self, described: Described) -> None:
        self.latency = exact(described["latency_s"])
        per_token, per_s = (Fraction(repr(described[name])) for name in ("bytes_per_token", "bytes_per_s"))
        self.per_token = per_token / per_s  # seconds
        self.lanes = described["concurrent"] or NEVER
        self.queue: list[tuple[Call, Member, int]] = []  # with the blocks that the source holds
        self.busy: list[Transfer] = []

    def duration(self, tokens: int) -> int:  # whole attoseconds, rounded down
        return self.latency + int(tokens * self.per_token * 10**18)


class Pool:
    def __init__(self, described: Described, classes: list[str], seed: int, place: int) -> None:
        engines = zip(described["engines"], described["counts"], strict=True)
        self.replicas = [Member(engine, classes) for engine, count in engines for _ in range(count)]
        self.router = Router(described["router"] or {"kind": "RoundRobin"}, seed, place)
        self.link: Link | None = None
        if hand_over := described["hands_to"]:
            self.receiver: int = hand_over["pool"]
            self.link = Link(hand_over["link"])
            for replica in self.replicas:
                replica.hands_over = True

    def alone(self, replica: Member) -> "Pool":
        pool = Pool({"engines": [], "counts": [], "router": None, "hands_to": None}, [], 0, 0)
        pool.replicas = [replica]
        return pool

    def choose(self, r: Call) -> Member:
        return self.replicas[self.router.choose(r, list(self.replicas))]


class Fleet:  # all that has a state, and what happens at one instant
    def __init__(self, everyone: list[Call], pools: list[Pool]) -> None:
        self.everyone, self.pools = everyone, pools
        self.replicas = list(dict.fromkeys(replica for pool in pools for replica in pool.replicas))
        self.now = 0
        self.drained: list[int] = []

    def happen(self, now: int) -> None:
        self.now = now
        for pool in self.pools:
            pool.router.report(now, pool.replicas)
        for pool in self.pools:  # 1
            for replica in pool.replicas:
                if replica.end == now:
                    self.end_iteration(replica, pool)
        for pool in self.pools:  # 2
            if pool.link is not None:
                self.hand_off(pool.link, self.pools[pool.receiver])
        self.lose_patience()  # 3
        for r in self.everyone:  # 4, by id
            if r.due == now and not r.arrived:
                self.arrive(r)
        self.lose_patience()  # 5: of those without any
        for replica in self.replicas:  # 6
            if replica.touched and replica.end == NEVER:
                self.form_batch(replica)
            replica.touched = False

    def end_iteration(self, replica: Member, pool: Pool) -> None:
        """A finished request releases those that wait for it; a prefilled one that owes output departs."""
        replica.settle(self.now)
        replica.release(0)
        for r in sorted(calls(replica.rows), key=lambda r: r.id):
            if r.status == "finished":
                for other in self.everyone:
                    if r.id in other.after and all(self.everyone[at].finish for at in other.after):
                        other.due = other.arrival = self.now + other.delay
            elif pool.link is not None and r.decodes:
                pool.link.queue.append((r, replica, r.blocks))
                replica.sent += r.blocks
                r.source, r.blocks = r.replica, 0

    def hand_off(self, link: Link, receiver: Pool) -> None:
        """Transfers start while a lane is free; of those that end the lowest id comes and frees its lane."""
        while True:
            while link.queue and len(link.busy) < link.lanes:
                r, source, blocks = link.queue.pop(0)
                link.busy.append(Transfer(self.now + link.duration(r.computed), r, source, blocks))
            over = [transfer for transfer in link.busy if transfer.end == self.now]
            if not over:
                return
            first = min(over, key=lambda transfer: transfer.request.id)
            link.busy.remove(first)
            first.source.release(first.blocks, first.request)
            first.request.brought = True
            self.join(first.request, receiver.choose(first.request))

    def waiting(self) -> list[tuple[int, int, Member, Call]]:
        """Those whose patience runs, by the instant at which it ends, then id."""
        waiting = [(replica, r) for replica in self.replicas for r in calls(replica.waiting)]
        return sorted((r.gives_up, r.id, replica, r) for replica, r in waiting if r.admitted is None)

    def lose_patience(self) -> None:
        for gives_up, _, replica, r in self.waiting():
            if gives_up <= self.now:
                replica.waiting.remove(r)
                replica.touched = True
                r.status, r.left = "abandoned", self.now

    def arrive(self, r: Call) -> None:
        """It is routed; one that could not go on there, or after the hand-off, is rejected at once."""
        pool, r.arrived = self.pools[r.pool], True
        home = pool.choose(r)
        r.replica = self.replicas.index(home)
        goes_on = pool.link is not None and (home.decode_first or r.output > 1)
        others = self.pools[pool.receiver].replicas[:1] if goes_on else []
        if any(never_runs(replica, r) for replica in (home, *others)):
            r.status, r.left = "rejected", self.now
        else:
            self.join(r, home)

    def join(self, r: Call, replica: Member) -> None:
        """It waits there from now on."""
        r.replica, r.came = self.replicas.index(replica), self.now
        if replica.cache:
            replica.cache.meet(r)
        replica.wait(r)
        replica.touched = True

    def form_batch(self, replica: Member, drain: bool = False) -> bool:
        formed = replica.form_batch(self.now, drain)
        for r in calls(replica.rows):
            if r.source is not None and r.resumed is None:
                r.resumed = self.now
        return formed

    def drain(self) -> bool:
        """R5: nothing is left to come, and each replica that holds requests is asked once more."""
        here = sorted(r.id for replica in self.replicas for r in present(replica))
        asked = [self.form_batch(replica, drain=True) for replica in self.replicas if present(replica)]
        if any(asked):
            self.drained = sorted({*self.drained, *here})
        return any(asked)

    def going_on(self) -> list[int]:
        """When something happens that has begun."""
        instants = [replica.end for replica in self.replicas]
        instants += [transfer.end for pool in self.pools if pool.link for transfer in pool.link.busy]
        instants += [gives_up for gives_up, *_ in self.waiting()]
        return instants + [r.due for r in self.everyone if r.after and not r.arrived]

    def run(self, horizon: int) -> Outcome:
        while True:
            coming = min(self.going_on() + [r.due for r in self.everyone if not r.arrived])
            if coming == NEVER:
                if not self.drain():
                    break
            elif coming > horizon:
                break
            else:
                self.happen(coming)
        end = self.now if min(self.going_on()) == NEVER else horizon
        iterations = [replica.iterations for replica in self.replicas]
        return Outcome([r for r in self.everyone if r.arrived], iterations, self.drained, end)


def calls(requests: Iterable[Request]) -> list[Call]:
    return [r for r in requests if isinstance(r, Call)]


def simulate(
    rows: list[Described], system: list[Described], seed: int = 0, horizon_s: float | None = None
) -> Outcome:
    """Run rows, sorted by arrival, through the pools; all that falls on or before the horizon happens."""
    everyone = [Call(at, row) for at, row in enumerate(rows)]
    numbers: dict[Any, int] = {}  # texts from 2^62 on as they come, what a request says from 2^63 on
    for r, tokens in zip(everyone, said(rows), strict=True):
        r.said = tokens
        texts = dict.fromkeys(text for text, _ in tokens if text not in numbers and text != ("own", r.id))
        numbers |= {text: (1 << 62) + len(numbers) - r.id + at for at, text in enumerate(texts)}
        numbers["own", r.id] = (1 << 63) + r.id
    classes = sorted({r.name for r in everyone})
    pools = [Pool(described, classes, seed, at) for at, described in enumerate(system)]
    for pool in pools:
        pool.router.numbers = numbers
    horizon = NEVER - 1 if horizon_s is None else exact(horizon_s)
    looks = any(pool.router.looks() and len(pool.replicas) > 1 for pool in pools)
    if looks or any(pool.link for pool in pools) or any(r.after for r in everyone):
        return Fleet(everyone, pools).run(horizon)
    # Replicas that never hear of each other: each is a run of its own, drained once nothing can come to it.
    parts: list[Outcome] = []
    for at, pool in enumerate(pools):
        homes = [(pool.choose(r), r) for r in everyone if r.pool == at]
        for replica in pool.replicas:
            ours = [r for home, r in homes if home is replica]
            part = Fleet(ours, [pool.alone(replica)] * len(pools)).run(horizon)  # whatever pool a row names
            for r in part.requests:
                r.replica = len(parts)
            parts.append(part)
    requests = sorted((r for part in parts for r in part.requests), key=lambda r: r.id)
    drained = sorted(at for part in parts for at in part.drained)
    return Outcome(requests, [part.iterations[0] for part in parts], drained, max(part.end for part in parts))
