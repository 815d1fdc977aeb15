"""What must happen where replicas come and go, said plainly from the rules in DESIGN.md.

One pool of alike replicas before which a router stands, with an autoscaler, told deaths, drains and starts,
or both. One replica is `reference.py`'s; routers, sessions and the order of an instant are
`reference_fleet.py`'s.
"""

import math
from fractions import Fraction
from typing import Any, NamedTuple

from .reference import NEVER, Described, Iteration, exact, never_runs
from .reference_cache import said
from .reference_fleet import Call, Fleet, Member, Pool, Router, philox, present, ring
from .reference_fleet import calls as as_calls

Event = tuple[int, int, str, int, int, int]  # at, replica, what, then open, starting and draining replicas


class Outcome(NamedTuple):
    requests: list[Call]  # those that arrived by the horizon, by id
    iterations: list[list[Iteration]]  # of each place, one replica after the other
    drained: list[int]
    end: int
    events: list[Event]
    paid: int  # ∫ replicas paid for dt


class Figures(NamedTuple):
    now: int
    open: int
    starting: int
    waiting: int
    running: int
    seats: int
    used: int
    blocks: int
    arrived: int


# Policies: how many replicas should be open or starting?


class Policy:
    def __init__(self, described: Described) -> None:
        self.described = described
        self.looks: list[tuple[int, int]] = []  # when, and what had arrived

    def wanted(self, seen: Figures) -> int:
        answers = {
            "ByQueue": self.by_queue,
            "ByUtilization": self.by_utilization,
            "ByForecast": self.by_forecast,
            "BySchedule": self.by_schedule,
        }
        return answers[self.described["kind"]](seen)

    def by_queue(self, seen: Figures) -> int:
        return math.ceil((seen.waiting + seen.running) / float(self.described["requests"]))

    def by_utilization(self, seen: Figures) -> int:
        used, all_ = (
            (seen.running, seen.seats) if self.described["of"] == "seats" else (seen.used, seen.blocks)
        )
        ratio = used / all_ / self.described["target"] if all_ else 1.0
        if abs(ratio - 1) <= self.described["tolerance"]:
            return seen.open + seen.starting
        return math.ceil(seen.open * ratio)

    def by_forecast(self, seen: Figures) -> int:
        window_s, window = float(self.described["window_s"]), exact(self.described["window_s"])

        def before(windows: int) -> int:
            up_to = seen.now - windows * window
            return next((arrived for at, arrived in reversed(self.looks) if at <= up_to), 0)

        one, two = before(1), before(2)
        self.looks.append((seen.now, seen.arrived))
        last, last_but_one = seen.arrived - one, one - two
        expected = (last + (last - last_but_one) * (self.described["ahead_s"] / window_s)) / window_s
        return int(max(0, math.ceil(expected / float(self.described["requests_per_s"]))))

    def by_schedule(self, seen: Figures) -> int:
        period = self.described["period_s"]
        now = seen.now if period is None else seen.now % exact(period)
        begun = [replicas for at, replicas in self.described["steps"] if exact(at) <= now]
        if begun:
            return int(begun[-1])
        return seen.open + seen.starting if period is None else int(self.described["steps"][-1][1])


# Routers: of the replicas that are open.


class OpenRouter(Router):
    places = 0
    next = 0  # the turn: the first open one from here on

    def among(self, r: Call, replicas: list[Any], open_: list[int]) -> int:
        """The place of an open replica."""
        if self.kind == "RoundRobin":
            return self.turn_of(open_)
        if self.kind == "BySession":
            return self.home(r, replicas, open_)
        if self.kind == "PrefixHash":
            return self.on_ring(r, replicas, open_)
        return open_[self.choose(r, [replicas[at] for at in open_])]

    def turn_of(self, open_: list[int]) -> int:
        chosen = next((at for at in open_ if at >= self.next), open_[0])
        self.next = chosen + 1
        return chosen

    def home(self, r: Call, replicas: list[Any], open_: list[int]) -> int:
        if r.session is None:
            return self.turn_of(open_)
        if self.homes.get(r.session) not in open_:
            self.homes[r.session] = self.turn_of(open_)
        elif (spill := self.described.get("spill")) is not None:
            loads = {at: len(present(replicas[at])) for at in open_}
            if loads[self.homes[r.session]] * len(loads) > spill * sum(loads.values()):
                self.homes[r.session] = min(open_, key=lambda at: (loads[at], at))
        return self.homes[r.session]

    def on_ring(self, r: Call, replicas: list[Any], open_: list[int]) -> int:
        """The first of the ring, on which closed ones are passed over; with bounded loads also full ones."""
        everywhere = self.by_hash_places(r)
        around = [at for at in everywhere if at in open_]
        factor = self.described.get("load_factor")
        if factor is None:
            return around[0]
        loads = {at: len(present(replicas[at])) for at in open_}
        bound = -(-Fraction(factor) * (sum(loads.values()) + 1) // len(loads))
        return next(at for at in around if loads[at] < bound)

    def by_hash_places(self, r: Call) -> list[int]:
        """All places in the order in which the ring names them, from the prompt's own on."""
        position, named = self.position(r), ring(self.places)
        around = [at for where, at in named if where >= position] + [at for _, at in named]
        return list(dict.fromkeys(around))

    def position(self, r: Call) -> int:
        place = 0
        parts: list[list[Any]] = []
        for text, at in r.said[: min(self.described.get("prefix_tokens", 1024), r.prompt)]:
            if at == 0 or not parts:
                parts.append([text, 0])
            parts[-1][1] += 1
        for text, tokens in parts:
            place = philox([self.numbers[text], tokens, place, 0], [0, 16])[0]
        return place


class Place:  # where one replica stands after the other
    def __init__(self, engine: Described, classes: list[str]) -> None:
        self.engine, self.classes = engine, classes
        self.state = "closed"  # or starting, open, draining, broken
        self.until = NEVER  # when it opens, or is started again
        self.since = 0  # when it was asked for
        self.past: list[Iteration] = []  # of those that are no more
        self.replica = Member(engine, classes)

    def renew(self) -> None:
        self.past += self.replica.iterations
        self.replica = Member(self.engine, self.classes)


class Shifting(Fleet):
    def __init__(self, everyone: list[Call], pool: Described, classes: list[str], seed: int) -> None:
        (engine,) = pool["engines"]
        self.scaler, self.failures = pool["autoscaler"], pool["failures"]
        count = self.scaler["max"] if self.scaler else pool["replicas"]
        shell = Pool({"engines": [], "counts": [], "router": None, "hands_to": None}, [], 0, 0)
        self.places = [Place(engine, classes) for _ in range(count)]
        self.router = OpenRouter(pool["router"], seed, 0)
        self.router.places = count
        shell.replicas = [place.replica for place in self.places]
        super().__init__(everyone, [shell])
        self.line: list[Call] = []
        self.retries: dict[int, int] = {}
        self.events: list[Event] = []
        self.paid = self.arrived_so_far = 0
        self.changed: int | None = None
        if self.scaler:
            self.policy, self.every = Policy(self.scaler["policy"]), exact(self.scaler["every_s"])
            self.next_look = self.every
        kinds = ("at", "drains", "starts")
        told = [(name, *one) for name in kinds for one in (self.failures or {}).get(name, ())]
        self.told = sorted((exact(at), kinds.index(name), name, which) for name, at, which in told)
        for at in range(pool["replicas"]):
            self.open(at)

    # What a place is.

    def which(self, *states: str) -> list[int]:
        return [at for at, place in enumerate(self.places) if place.state in states]

    def note(self, at: int, what: str) -> None:
        counts = (len(self.which("open")), len(self.which("starting", "broken")), len(self.which("draining")))
        self.events.append((self.now, at, what, *counts))

    def open(self, at: int) -> None:
        place = self.places[at]
        place.since = self.now if place.state == "closed" else place.since
        place.state, place.until = "open", NEVER
        self.note(at, "ready")

    def ask(self, at: int) -> None:
        startup = exact(self.scaler["startup_s"]) if self.scaler else 0
        place = self.places[at]
        place.state, place.until, place.since = "starting", self.now + startup, self.now
        self.note(at, "asked")
        if place.until == self.now:
            self.open(at)

    def close(self, at: int, what: str, state: str = "closed", until: int = NEVER) -> None:
        place = self.places[at]
        if place.state != "broken":
            self.paid += self.now - place.since
        place.renew()
        self.replicas[at] = self.pools[0].replicas[at] = place.replica
        place.state, place.until = state, until
        self.note(at, what)

    # What happens to places at an instant.

    def change(self) -> None:
        while self.told and self.told[0][0] <= self.now:
            _, _, what, which = self.told.pop(0)
            state = self.places[which].state
            if what == "at" and state in ("starting", "open", "draining"):
                self.die(which)
            elif what == "drains" and state in ("starting", "open", "broken"):
                self.withdraw(which)
            elif what == "starts" and state in ("closed", "broken"):
                self.ask(which)
        for at, place in enumerate(self.places):
            if place.until == self.now and place.state == "broken":
                self.ask(at)
            elif place.until == self.now and place.state == "starting":
                self.open(at)
        if self.scaler and self.next_look == self.now:
            self.next_look += self.every
            self.look()

    def die(self, at: int) -> None:
        """What it has emitted counts; the iteration under way does not. One that drains is not repaired."""
        replica = self.places[at].replica
        repair = None if self.places[at].state == "draining" else self.failures["repair_s"]
        if replica.end != NEVER:
            replica.iterations.pop()
        for r in as_calls(present(replica)):
            if self.retries.get(r.id, 0) == self.failures["retries"]:
                r.status, r.left = "lost", self.now
                continue
            self.retries[r.id] = self.retries.get(r.id, 0) + 1
            r.computed, r.goal, r.blocks = 0, r.prompt + len(r.tokens), 0
            r.admission = r.stage = r.returned = r.ready = r.end = 0
            r.seeks, r.brought, r.replica = None, False, None
            self.line.append(r)
        until = NEVER if repair is None else self.now + exact(repair)
        self.close(at, "died", "closed" if repair is None else "broken", until)

    def look(self) -> None:
        open_, starting = self.which("open"), self.which("starting", "broken")
        members = [self.places[at].replica for at in open_]
        seen = Figures(
            self.now,
            len(open_),
            len(starting),
            sum(len(one.waiting) + len(one.swapped) for one in members) + len(self.line),
            sum(len(one.running) for one in members),
            sum(one.most_seqs for one in members),
            sum(one.total - one.free for one in members),
            sum(one.total for one in members),
            self.arrived_so_far,
        )
        wanted = min(max(self.policy.wanted(seen), self.scaler["min"]), self.scaler["max"])
        there = len(open_) + len(starting)
        for at in self.which("closed")[: max(0, wanted - there)]:
            self.ask(at)
            self.changed = self.now
        cool = self.changed is None or self.changed + exact(self.scaler["cooldown_s"]) <= self.now
        if wanted < there and cool:
            for at in (starting[::-1] + open_[::-1])[: there - wanted]:
                self.withdraw(at)
                self.changed = self.now

    def withdraw(self, at: int) -> None:
        """One that serves drains; one that only comes does not come."""
        if self.places[at].state == "open":
            self.places[at].state = "draining"
            self.note(at, "drains")
        else:
            self.close(at, "ended")

    # The order of an instant.

    def happen(self, now: int) -> None:
        self.now = now
        (pool,) = self.pools
        for replica in list(self.replicas):
            if replica.end == now:
                self.end_iteration(replica, pool)
        self.change()
        self.lose_patience()
        if self.which("open"):
            for r in sorted(self.line, key=lambda r: r.id):
                self.send(r)
            self.line = []
        for r in self.everyone:
            if r.due == now and not r.arrived:
                self.arrive(r)
        self.lose_patience()
        for replica in self.replicas:
            if replica.touched and replica.end == NEVER:
                self.form_batch(replica)
            replica.touched = False
        for at in self.which("draining"):
            replica = self.places[at].replica
            if replica.end == NEVER and present(replica):
                self.form_batch(replica, drain=True)
            elif replica.end == NEVER:
                self.close(at, "ended")

    def lose_patience(self) -> None:
        super().lose_patience()
        for r in [r for r in self.line if r.admitted is None and r.gives_up <= self.now]:
            self.line.remove(r)
            r.status, r.left = "abandoned", self.now

    def send(self, r: Call) -> None:
        """To the replica it is a request whose prompt is longer by what its client has."""
        at = self.router.among(r, list(self.replicas), self.which("open"))
        r.replica = at
        known = len(r.tokens)
        r.prompt, r.output = r.prompt + known, r.output - known
        refused = never_runs(self.replicas[at], r)
        r.prompt, r.output = r.prompt - known, r.output + known
        if refused:
            r.status, r.left = "rejected", self.now
        else:
            self.join(r, self.replicas[at])

    def arrive(self, r: Call) -> None:
        r.arrived = True
        self.arrived_so_far += 1
        if self.which("open"):
            self.send(r)
        elif never_runs(self.replicas[0], r):
            r.status, r.left, r.replica = "rejected", self.now, None
        else:
            self.line.append(r)

    def going_on(self) -> list[int]:
        return super().going_on() + [r.gives_up for r in self.line if r.admitted is None]

    def coming(self, until: int = NEVER) -> int:
        """When something happens next, of arrivals those up to the horizon."""
        others = min(self.going_on() + [r.due for r in self.everyone if not r.arrived and r.due <= until])
        changes = [place.until for place in self.places] + [self.told[0][0] if self.told else NEVER]
        change = min(changes + ([self.next_look] if self.scaler else []))
        is_told = any(what == "starts" for _, _, what, _ in self.told)
        is_awaited = self.line and (self.scaler or self.which("starting", "broken") or is_told)
        return change if change <= others and (others < NEVER or is_awaited) else others

    def run_all(self, horizon: int) -> Outcome:
        while True:
            coming = self.coming(horizon)
            if coming == NEVER:
                if any(horizon < r.due < NEVER for r in self.everyone) or not self.drain():
                    break
            elif coming > horizon:
                break
            else:
                self.happen(coming)
        end = self.now if self.coming(horizon) == NEVER else horizon
        for at in self.which("starting", "open", "draining"):
            self.paid += end - self.places[at].since
        iterations = [place.past + place.replica.iterations for place in self.places]
        requests = [r for r in self.everyone if r.arrived]
        return Outcome(requests, iterations, self.drained, end, self.events, self.paid)


def simulate(rows: list[Described], pool: Described, seed: int, horizon_s: float | None) -> Outcome:
    """Run rows, sorted by arrival, through the pool; all that falls on or before the horizon happens."""
    everyone = [Call(at, row) for at, row in enumerate(rows)]
    numbers: dict[Any, int] = {}
    for r, tokens in zip(everyone, said(rows), strict=True):
        r.said = tokens
        numbers["own", r.id] = (1 << 63) + r.id
    fleet = Shifting(everyone, pool, sorted({r.name for r in everyone}), seed)
    fleet.router.numbers = numbers
    outcome = fleet.run_all(NEVER - 1 if horizon_s is None else exact(horizon_s))
    for r in outcome.requests:
        r.retries = fleet.retries.get(r.id, 0)  # type: ignore[attr-defined]  # what only this fleet counts
    return outcome
