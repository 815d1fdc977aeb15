"""What does each scheduler ask for? One function each, written from its source and the design's section 7.

`replica` is the engine of `reference.py`, `rules` the scheduler as its to_json() gives it. A function adds
rows with `place` and `decode`, asks for `room`, and preempts. Requests are sorted by (arrival, id).
"""

from __future__ import annotations

from math import lcm
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from .reference import Replica, Request

Described = dict[str, Any]
NO_LIMIT = 1 << 60

ORDERS: dict[str, Callable[[Request], int]] = {  # the keys of a queue; ties by (arrival, id)
    "fcfs": lambda r: 0,
    "spf": lambda r: r.prompt,
    "srf": lambda r: r.prompt + r.output,
    "lpf": lambda r: -r.prompt,
}


def ordered(queue: list[Request], order: str) -> list[Request]:
    """Rule 12: where a queue has an order of its own, victims come to their place in it, not to its head."""
    return queue if order == "fcfs" else sorted(queue, key=lambda r: (ORDERS[order](r), r))


def most_seqs(rules: Described) -> int:
    names = {"Rad": "columns", "RadPhased": "requests_per_cycle", "Slai": "max_active"}
    limit = rules.get(names.get(rules["kind"], "max_seqs"))
    return NO_LIMIT if limit is None else int(limit)


def most_tokens(rules: Described) -> int:
    if rules["kind"] in ("Rad", "RadPhased"):
        return max(int(rules["columns"]), tile(rules))
    limit = rules.get("token_budget")
    return NO_LIMIT if limit is None else int(limit)


def never_runs(replica: Replica, r: Request) -> bool:
    """Rule 11: it is longer than its policy can batch, or takes more blocks than there are."""
    rules, longest = replica.limits, r.prompt + r.output - (not replica.decode_first)
    if replica.hands_over:
        longest = r.prompt
    if rules["kind"] in ("Orca", "FasterTransformer"):
        if r.prompt + r.output > rules["max_model_len"]:
            return True
        longest = rules["max_model_len"]
    whole = rules["kind"] == "VllmV0" or (rules["kind"] == "Orca" and not rules["chunked"])
    return (whole and r.prompt > replica.most_tokens) or replica.lacks(r, longest) > replica.total


# The engines' schedulers.


def sarathi(replica: Replica, rules: Described) -> None:
    replica.decode(replica.ready)  # C5.1
    replica.swap_in()  # before any admission
    for r in replica.unfinished:  # C5.2
        replica.place(r, r.owed)
    for r in ordered(replica.queue, rules["order"]):  # C5.3
        swapped = replica.of(replica.swapped)
        if swapped or r in replica.victims or not replica.budget or not replica.room(r, r.needs):
            return  # C8: a step that preempted may admit, but no victim of its own
        replica.place(r, r.owed, holding=r.needs)


def vllm_v0(replica: Replica, rules: Described) -> None:
    if rest := replica.unfinished:  # resumed, longer than the budget: alone
        return replica.place(rest[0], rest[0].owed)
    for r in replica.queue:  # C2.1: whole inputs; a longer (resumed) one only as the first
        if replica.swapped or (replica.rows and r.owed > replica.budget) or not replica.room(r, r.needs):
            break
        replica.place(r, r.owed, holding=r.needs)
    if not replica.rows:  # C2.2: whoever is admitted stalls the decodes
        replica.decode(replica.ready)  # C2.3
        replica.swap_in()  # C2.4


def vllm_v1(replica: Replica, rules: Described) -> None:
    def rank(r: Request) -> tuple[int, Request]:  # with fcfs the list runs by arrival: the last is worst
        return (r.priority if rules["policy"] == "priority" else 0, r)

    running = replica.of(replica.running)
    lone = len(running) + len(replica.queue) <= 1
    longest = rules["token_budget"] if lone else rules["long_prefill_threshold"] or rules["token_budget"]
    for r in running:  # C1.1, in list order
        if r in replica.running and replica.budget:
            tokens = min(r.owed, longest, replica.budget)  # C1.1.2
            while r in replica.running and replica.lacks(r, r.computed + tokens) > replica.free:
                replica.preempt(replica.victim(max(replica.of(replica.running), key=rank)))  # C1.1.4
            if r not in replica.running:
                break
            replica.place(r, tokens)  # C1.1.5
    for r in sorted(replica.queue, key=rank):  # C1.2
        tokens = min(r.owed, longest, replica.budget)  # C1.2.3
        checked = r.needs if rules["reserve_full_prompt"] else r.computed + tokens  # C1.2.4
        if replica.victims or not replica.budget or not replica.room(r, checked):
            return
        replica.place(r, tokens)  # C1.2.6


def orca(replica: Replica, rules: Described) -> None:
    """C6; li2025 3: prompts first, beside the decodes; who has the longest's blocks is never preempted."""
    for r in replica.unfinished:
        replica.place(r, r.owed)
    for r in replica.queue:
        wanted = 1 if rules["chunked"] else r.owed
        if wanted > replica.budget or not replica.room(r, rules["max_model_len"]):
            break
        replica.place(r, r.owed, holding=rules["max_model_len"])
    replica.decode(replica.ready)


def faster_transformer(replica: Replica, rules: Described) -> None:
    """C7; bari2025 Alg. 3: a batch of whole prompts in one iteration, then its decodes until all end."""
    if replica.running:
        replica.decode(replica.ready)
        return
    for r in replica.queue:
        if not replica.room(r, rules["max_model_len"]):
            return
        replica.place(r, r.owed, holding=rules["max_model_len"])


# The papers' schedulers.


def k_fcfs(replica: Replica, rules: Described) -> None:
    """li2025 2.3: tokens of the k oldest requests in each phase, decodes before prompts."""
    replica.decode(replica.ready[: rules["k_decode"]])
    prompts = replica.unfinished[: rules["k_prefill"]]
    for r in prompts:
        replica.place(r, r.owed)
    for r in replica.queue[: rules["k_prefill"] - len(prompts)]:
        if r in replica.victims or not replica.budget or not replica.room(r, r.needs):
            return
        replica.place(r, r.owed, holding=r.needs)


def tile(rules: Described) -> int:
    return lcm(rules["rows"], rules["columns"], rules["reduction"])


def rad(replica: Replica, rules: Described) -> None:
    """bari2025 Alg. 1: a chunk of one tile alone, or all decodes; a cycle has so many prompts."""

    def chunk(r: Request) -> None:
        replica.count += r.owed <= tile(rules)  # its prompt is complete
        replica.decoding = False
        replica.place(r, min(tile(rules), r.owed), holding=r.goal)

    if under_way := replica.unfinished:
        return chunk(under_way[0])
    if not replica.ready and (replica.decoding or replica.count >= rules["requests_per_cycle"]):
        replica.count = 0  # the end of a cycle, also of one whose outputs all had length 1
    for head in replica.queue[:1]:
        if replica.count < rules["requests_per_cycle"] and replica.room(head, head.needs):
            return chunk(head)
    replica.decoding = bool(replica.decode(replica.ready))


def rad_phased(replica: Replica, rules: Described) -> None:
    """bari2025 Alg. 2: the prompts of a cycle one after another, then its decodes, so many at once.

    A cycle ends as soon as nobody is left of it, also when the replica then stands empty (lines 4 and 16).
    """
    if under_way := replica.unfinished:
        return replica.place(under_way[0], min(tile(rules), under_way[0].owed))
    if not replica.decoding:
        for head in replica.queue[:1]:
            if replica.count < rules["requests_per_cycle"] and replica.room(head, head.needs):
                replica.count += 1
                return replica.place(head, min(tile(rules), head.owed), holding=head.needs)
    active = [r for r in replica.active if r in replica.running]
    others = sorted((r for r in replica.ready if r not in active), key=lambda r: (r.ready, r.id))
    replica.active = active + others[: rules["columns"] - len(active)]
    replica.decoding = bool(replica.active)
    replica.decode(sorted(replica.active))
    if not replica.active:  # the next cycle begins, once: nobody of it may fit beside what is on its way
        begins = replica.count > 0
        replica.count = 0
        if replica.waiting and begins:
            rad_phased(replica, rules)


def slai(replica: Replica, rules: Described) -> None:
    """bari2025 6: decodes that can wait no longer, started prompts, new ones, then the other decodes."""
    early = replica.early()

    def last_time(r: Request) -> tuple[bool, int, int]:  # (8); whoever has no objective is never critical
        return (r.tbt_slo is None, 0 if r.tbt_slo is None else r.end + r.tbt_slo - early, r.id)

    in_order = sorted(replica.ready, key=last_time)
    critical = [r for r in in_order if r.tbt_slo is not None and replica.now >= last_time(r)[1]]
    placed = replica.decode(critical, rules["max_decodes"])
    for r in replica.unfinished:
        replica.place(r, r.owed)
    queue, first = ordered(replica.queue, rules["order"]), rules["class_first"]
    if first is not None:
        queue = sorted(queue, key=lambda r: (r.name != first, ORDERS[rules["order"]](r), r))
    for r in queue:
        if r in replica.victims or not replica.budget or not replica.room(r, replica.to_next_token(r)):
            break
        replica.place(r, r.owed, holding=r.needs)
    replica.decode([r for r in in_order if r not in critical], rules["max_decodes"] - placed)


def wait(replica: Replica, rules: Described) -> None:
    """ao2025 Alg. 1: every stage of the types whose stage 0 holds its threshold; the others pause."""
    thresholds = rules["thresholds"]
    entries = {name: [r for r in replica.queue if r.name == name] for name in replica.classes}
    least = {
        name: thresholds if isinstance(thresholds, int) else thresholds[name] for name in replica.classes
    }
    eligible = [name for name in replica.classes if replica.drain or len(entries[name]) >= least[name]]
    decodes = [r for r in replica.ready if r.name in eligible]
    batch_or_overflow(replica, decodes, [entries[name][: least[name]] for name in eligible])


def nested_wait(replica: Replica, rules: Described) -> None:
    """ao2025 Alg. 2: in each group of prompts the segments before the first entry below its threshold."""
    ends = [*rules["prompt_groups"], NO_LIMIT]
    firsts = [0, *(last + 1 for last in rules["segments"])]  # the first stage of each segment
    decodes: list[Request] = []
    admitting: list[list[Request]] = []
    for low, high in zip([0, *ends], ends, strict=False):
        queue = [r for r in replica.queue if low < r.prompt <= high]
        group = sorted(
            (r for r in replica.ready if low < r.prompt <= high), key=lambda r: (r.end, r.admission)
        )
        for at, least in enumerate(rules["thresholds"]):
            entry = queue if at == 0 else [r for r in group if r.stage == firsts[at]]
            if len(entry) < least and not replica.drain:
                break
            after = NO_LIMIT if at + 1 == len(rules["thresholds"]) else firsts[at + 1]
            decodes += [r for r in group if firsts[at] < r.stage < after]
            if at == 0:
                admitting.append(entry[:least])
            else:
                decodes += entry[:least]
    batch_or_overflow(replica, decodes, admitting)


def batch_or_overflow(replica: Replica, decodes: list[Request], admitting: list[list[Request]]) -> None:
    """ao2025 4.1: blocks short, the latest admitted goes back to stage 0, and nobody is admitted."""
    while sum(replica.lacks(r, r.computed + 1) for r in decodes if r in replica.running) > replica.free:
        if replica.cache:
            replica.cache.forget_free()  # those who find blocks have taken them
        replica.preempt(max(replica.running, key=lambda r: r.admission))
    replica.decode(decodes)
    for entry in admitting if not replica.victims else []:
        for r in entry:
            if not replica.room(r, replica.to_next_token(r)):
                break
            replica.place(r, r.owed, holding=r.needs)


def slot_greedy(replica: Replica, rules: Described) -> None:
    """nie2026 3: by arrival whoever fits with its next step, the others out of memory; then new ones."""
    left = replica.free + sum(r.blocks for r in replica.running)  # what is on its way elsewhere stays
    if replica.cache:  # everybody counts with all blocks, as if nobody shared them
        left = replica.total - replica.sent
    steps: dict[Request, int] = {}
    for r in sorted(replica.running + replica.swapped):
        step = min(rules["chunk"], r.owed)
        if (blocks := r.blocks + replica.lacks(r, r.computed + step)) <= left:
            left, steps[r] = left - blocks, step
        else:
            replica.refused = "memory"
    for r in [r for r in replica.running if r not in steps]:
        replica.preempt(r)
    for r, step in steps.items():
        replica.place(r, step)
    for r in replica.queue:
        tokens = r.computed + min(rules["chunk"], r.owed)
        if not replica.room(r, tokens):
            return
        if (left := left + tokens // -replica.block) < 0 and replica.cache:
            replica.refused = "memory"
            return
        replica.place(r, min(rules["chunk"], r.owed))


def class_priority(replica: Replica, rules: Described) -> None:
    """li2025 4.3: the inner policy for one class after another, over what is left."""
    for name in rules["order"]:
        replica.scope = name
        SCHEDULERS[rules["inner"]["kind"]](replica, rules["inner"])
    replica.scope = None


SCHEDULERS: dict[str, Callable[[Replica, Described], None]] = {
    "Sarathi": sarathi,
    "VllmV0": vllm_v0,
    "VllmV1": vllm_v1,
    "Orca": orca,
    "FasterTransformer": faster_transformer,
    "KFcfs": k_fcfs,
    "Rad": rad,
    "RadPhased": rad_phased,
    "Slai": slai,
    "Wait": wait,
    "NestedWait": nested_wait,
    "SlotGreedy": slot_greedy,
    "ClassPriority": class_priority,
}
