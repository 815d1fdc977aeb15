"""Are reference and core right about fleets? Cases worked out by hand, and what they share with one replica.

Slots of one second and blocks of one token unless said. A batch is drawn as in `worked.py`:
'start: request+tokens …', a star where a row emits.
"""

import random
from typing import Any

import pytest

import inferq as iq

from . import reference_fleet
from .agreement import assert_batches, assert_calls, frame
from .policies.sarathi import sarathi
from .policies.vllm_v0 import vllm_v0
from .policies.wait import wait
from .random_scenarios import KINDS, scenario
from .reference import simulate as alone
from .reference_fleet import ROUTERS, Call, Link, Member, Outcome, Router, philox
from .worked import SECOND, Described, engine, request

SEEDS = range(120)


def pool(*engines: Described, router: str = "RoundRobin", hands_to: Described | None = None) -> Described:
    ones = [1] * len(engines)
    return {"engines": list(engines), "counts": ones, "router": {"kind": router}, "hands_to": hands_to}


def link(
    latency_s: float = 0, bytes_per_s: float = 1, bytes_per_token: float = 0, concurrent: int | None = None
) -> Described:
    speed = {"bytes_per_s": bytes_per_s, "bytes_per_token": bytes_per_token}
    return {"pool": 1, "link": {"latency_s": latency_s, **speed, "concurrent": concurrent}}


def made(system: list[Described]) -> iq.Cluster | iq.Disaggregated:
    """One pool, or two of which the first hands over to the second."""
    engines = [[iq.Engine.from_json(one) for one in pool["engines"]] for pool in system]
    routers = [getattr(iq, pool["router"]["kind"])() for pool in system]
    if len(system) == 1:
        return iq.Cluster(engines[0], router=routers[0])
    prefill, decode = ((side[0], len(side)) for side in engines)
    over = iq.Link(**system[0]["hands_to"]["link"])
    routed = {"prefill_router": routers[0], "decode_router": routers[1]}
    return iq.Disaggregated(prefill=prefill, decode=decode, link=over, **routed)


def simulate(rows: list[Described], system: list[Described]) -> Outcome:
    """What the reference does with them, and the core too."""
    outcome = reference_fleet.simulate(rows, system)
    result = iq.simulate(iq.Workload(frame(rows)), made(system), batches=True)
    assert_calls(result, outcome.requests, len(system) > 1)
    assert_batches(result, outcome.iterations, None)
    return outcome


def drawn(outcome: Outcome) -> list[list[str]]:
    """The iterations of each replica."""
    return [
        [
            f"{i.start / SECOND:g}: " + " ".join(f"{at}+{n}{'*' * emits}" for at, n, emits in i.rows)
            for i in iterations
        ]
        for iterations in outcome.iterations
    ]


def instants(outcome: Outcome) -> list[list[float]]:
    return [[token / SECOND for token in r.tokens] for r in outcome.requests]


def homes(outcome: Outcome) -> list[int | None]:
    return [r.replica for r in outcome.requests]


# Chance and routers.


def test_philox_gives_the_published_words() -> None:
    """Random123, kat_vectors: philox4x64 with 10 rounds."""
    most = (1 << 64) - 1
    assert philox([0] * 4, [0] * 2) == [
        *(0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B)
    ]
    assert philox([most] * 4, [most] * 2) == [
        *(0x87B092C3013FE90B, 0x438C3C67BE8D0224, 0x9CC7D7C69CD777B6, 0xA09CAEBF594F0BA0)
    ]
    pi = [0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89]
    assert philox(pi, [0x452821E638D01377, 0xBE5466CF34E90C6C]) == [
        *(0xA528F45403E61D95, 0x38C72DBD566E9788, 0xA5A1610E72FD18B5, 0x57BD43B5E52B7FE6)
    ]


def test_drawn_routers_take_each_replica_alike() -> None:
    """3000 requests over 3: 1000 each; 5 standard deviations of a binomial are 129."""
    replicas = [Member(engine(sarathi()), []) for _ in range(3)]
    for kind in ("Random", "PowerOfTwo"):
        router = Router({"kind": kind}, seed=7, pool=0)
        taken = [router.choose(Call(at, request(0, 1, 1)), list(replicas)) for at in range(3000)]
        if kind == "Random":  # the lower of two different ones if they are alike: 2/3, 1/3, 0
            assert all(abs(taken.count(at) - 1000) < 130 for at in range(3))
        else:
            assert abs(taken.count(0) - 2000) < 130
            assert taken.count(2) == 0


def test_what_the_least_are_counted_by() -> None:
    """0, 1 of 6 + 9 and 1 + 1 tokens, 2 of 3 + 1; they arrive together, each at the least one.

    Requests, tokens: 0 to the first, 1 to the second (0 there), 2 by requests to the first (1 = 1), by tokens
    (15, 2) and by blocks of waiting prompts (6, 1) to the second.
    """
    rows = [request(0, 6, 9), request(0, 1, 1), request(0, 3, 1)]
    for router, third in {"LeastRequests": 0, "LeastTokens": 1, "LeastKv": 1}.items():
        assert homes(simulate(rows, [pool(*[engine(sarathi())] * 2, router=router)])) == [0, 1, third]


def test_routers_see_the_state_before_them() -> None:
    """0: p = 2, o = 3 at 0 on the first, 1: p = 4, o = 1 at 0 on the second; 2 at 1, when 1 has ended.

    Requests 1, 0; tokens 2, 0; blocks 2, 0. At 0.5, before it, requests 1, 1; tokens 5, 5; blocks 2, 4.
    """
    for router in ("LeastRequests", "LeastTokens", "LeastKv"):
        for at, home in ((1, 1), (0.5, 0)):
            rows = [request(0, 2, 3), request(0, 4, 1), request(at, 1, 1)]
            assert homes(simulate(rows, [pool(*[engine(sarathi())] * 2, router=router)])) == [0, 1, home]


def test_sessions_stay_where_they_began() -> None:
    names = [1, None, 2, 1, 3, 2, None]
    rows = [request(0, 1, 1, session_id=name) for name in names]
    outcome = simulate(rows, [pool(*[engine(sarathi())] * 3, router="BySession")])
    assert homes(outcome) == [0, 1, 2, 0, 0, 2, 1]


# One replica, and replicas that never hear of each other.


def told(outcome: Any) -> list[Any]:
    return [(r.status, r.admitted, r.tokens, r.left, r.preemptions) for r in outcome.requests]


@pytest.mark.parametrize("router", ROUTERS)
def test_a_fleet_of_one_is_the_replica(router: str) -> None:
    for seed in SEEDS:
        described, rows, _ = scenario(KINDS[seed % len(KINDS)], seed)
        for horizon_s in (None, rows[len(rows) // 2]["arrival_s"]):
            one = alone(rows, described, horizon_s)
            fleet = reference_fleet.simulate(rows, [pool(described, router=router)], seed, horizon_s)
            assert told(fleet) == told(one)
            assert fleet.iterations == [one.iterations]


def test_round_robin_is_so_many_runs() -> None:
    for seed in SEEDS:
        described, rows, _ = scenario(KINDS[seed % len(KINDS)], seed)
        fleet = reference_fleet.simulate(rows, [pool(*[described] * 3)])
        parts = [alone(rows[at::3], described) for at in range(3)]
        for r in fleet.requests:
            assert r.replica == r.id % 3
            one = parts[r.id % 3].requests[r.id // 3]
            assert (r.status, r.tokens, r.left) == (one.status, one.tokens, one.left)
        for at, iterations in enumerate(fleet.iterations):
            renumbered = [
                [(3 * row + at, n, emits) for row, n, emits in i.rows] for i in parts[at].iterations
            ]
            assert [i.rows for i in iterations] == renumbered
            assert [i[:2] for i in iterations] == [i[:2] for i in parts[at].iterations]


def test_drain() -> None:
    """WAIT with a threshold of 2: 0 at 0 and 1 at 5, each on a replica of its own; a slot each.

    Round robin: nothing can come to the first after 0, nor to the second after 5: 0 runs at 0, 1 at 5.
    Fewest requests: more may come to the first until all have arrived: both at 5.
    """
    rows = [request(0, 1, 1), request(5, 1, 1)]
    for router, first in {"RoundRobin": 0, "LeastRequests": 5}.items():
        outcome = simulate(rows, [pool(*[engine(wait(2))] * 2, router=router)])
        assert drawn(outcome) == [[f"{first}: 0+1*"], ["5: 1+1*"]]
        assert outcome.drained == [0, 1]


# Hand-offs: the first pool computes prompts, the second goes on.


def split(sender: Described, receiver: Described, **of_link: Any) -> list[Described]:
    return [pool(sender, hands_to=link(**of_link)), pool(receiver)]


def test_hand_off() -> None:
    """0 and 1: p = 4, o = 3 at 0, budget 4; the link takes 0.5 s + 4 tokens x 0.1 s.

    prefill  0: 0, its first token at 1. 1: 1, at 2
    link     1 to 1.9: 0. 2 to 2.9: 1
    decode   1.9: 0. 2.9: 0 and 1. 3.9: 1
    """
    prompts = engine(sarathi(token_budget=4))
    rows = [request(0, 4, 3), request(0, 4, 3), request(9, 4, 1)]
    outcome = simulate(
        rows, split(prompts, engine(sarathi()), latency_s=0.5, bytes_per_s=20, bytes_per_token=2)
    )
    assert drawn(outcome) == [["0: 0+4*", "1: 1+4*", "9: 2+4*"], ["1.9: 0+1*", "2.9: 0+1* 1+1*", "3.9: 1+1*"]]
    assert instants(outcome) == [[1, 2.9, 3.9], [2, 3.9, 4.9], [10]]
    assert [(r.source, r.replica) for r in outcome.requests] == [(0, 1), (0, 1), (None, 0)]
    assert [r.resumed for r in outcome.requests] == [19 * SECOND // 10, 29 * SECOND // 10, None]


def test_hand_off_with_the_papers_convention() -> None:
    """No token with the prompt, so that also o = 1 is handed over. p = 4, o = 1 and 2; hand-offs of 1 s."""
    rows = [request(0, 4, 1), request(0, 4, 2)]
    engines = [engine(sarathi(), first_token="decode")] * 2
    outcome = simulate(rows, split(*engines, latency_s=1))
    assert drawn(outcome) == [["0: 0+4 1+4"], ["2: 0+1* 1+1*", "3: 1+1*"]]


@pytest.mark.parametrize(("concurrent", "starts"), [(1, [2, 3, 4]), (2, [2, 2, 3]), (None, [2, 2, 2])])
def test_hand_offs_wait_for_a_lane(concurrent: int | None, starts: list[int]) -> None:
    """Three prompts of 1 end at 1; a hand-off takes 1 s. A request that comes at 2 runs there from 2 on."""
    rows = [request(0, 1, 2)] * 3
    outcome = simulate(rows, split(engine(sarathi()), engine(sarathi()), latency_s=1, concurrent=concurrent))
    assert [r.resumed for r in outcome.requests] == [start * SECOND for start in starts]


def test_the_source_keeps_its_blocks_until_the_transfer_ends() -> None:
    """4 blocks, budget 8. 0: p = 3 at 0; 1: p = 2 at 0; 2: p = 1 at 0.5; o = 2. A hand-off takes 2.5 s.

    0    0; 1 does not fit, and 2 comes after it
    1    0 has left and still holds 3 of 4
    3.5  its transfer ends: 1 and 2, at once
    """
    rows = [request(0, 3, 2), request(0, 2, 2), request(0.5, 1, 2)]
    outcome = simulate(rows, split(engine(sarathi(), tokens=4), engine(sarathi()), latency_s=2.5))
    assert drawn(outcome)[0] == ["0: 0+3*", "3.5: 1+2* 2+1*"]
    assert [i.kv_used_tokens for i in outcome.iterations[0]] == [3, 3]


def test_blocks_given_up_during_an_iteration_are_free_after_it() -> None:
    """4 blocks. 0: p = 3 at 0; 1: p = 1 at 1; 2: p = 2 at 1; o = 2. A hand-off takes 0.5 s.

    1    0 is on its way with 3 blocks: 1, and 2 does not fit
    2    the blocks came back at 1.5: 2, beside the one of 1
    The router of the least blocks would count 4 until 2.
    """
    rows = [request(0, 3, 2), request(1, 1, 2), request(1, 2, 2)]
    outcome = simulate(rows, split(engine(sarathi(), tokens=4), engine(sarathi()), latency_s=0.5))
    assert drawn(outcome)[0] == ["0: 0+3*", "1: 1+1*", "2: 2+2*"]
    assert [i.kv_used_tokens for i in outcome.iterations[0]] == [3, 4, 3]


def test_the_seat_is_free_at_once() -> None:
    """One seat, hand-offs of 9 s: the prompts follow each other."""
    rows = [request(0, 1, 2)] * 2
    outcome = simulate(rows, split(engine(sarathi(max_seqs=1)), engine(sarathi()), latency_s=9))
    assert drawn(outcome) == [["0: 0+1*", "1: 1+1*"], ["10: 0+1*", "11: 1+1*"]]


def test_hand_offs_wait_for_blocks_and_are_preempted() -> None:
    """p = 3, o = 4 twice at 0; 8 blocks for decodes. A hand-off takes no time: both come at 1, knowing 4.

    1    0 and 1: 4 blocks each
    2    0 wants a 5th: 1 goes, has lost its context and knows 5
    3    0: its last token. 4 1: all 5, its third token. 5 the fourth
    """
    rows = [request(0, 3, 4)] * 2
    outcome = simulate(rows, split(engine(sarathi()), engine(sarathi(), tokens=8)))
    assert drawn(outcome)[1] == ["1: 0+1* 1+1*", "2: 0+1*", "3: 0+1*", "4: 1+5*", "5: 1+1*"]
    assert [r.preemptions for r in outcome.requests] == [0, 1]
    # With 7 blocks 1 does not get in: it waits with its context.
    outcome = simulate(rows, split(engine(sarathi()), engine(sarathi(), tokens=7)))
    assert drawn(outcome)[1] == ["1: 0+1*", "2: 0+1*", "3: 0+1*", "4: 1+1*", "5: 1+1*", "6: 1+1*"]
    assert [r.preemptions for r in outcome.requests] == [0, 0]


def test_a_hand_off_is_priced_as_a_decode() -> None:
    """1 s + 1 s per prompt token when a chunk is there, else 0.25 s; p = 3, o = 3."""
    mixed = {"kind": "MixedSolo", "alpha": 1, "beta": 1, "solo": 0.25}
    outcome = simulate([request(0, 3, 3)], split(engine(sarathi(), mixed), engine(sarathi(), mixed)))
    assert instants(outcome) == [[4, 4.25, 4.5]]


def test_the_queue_after_a_hand_off_is_by_its_instant() -> None:
    """One seat for decodes, one lane of 1 s per token: 0: p = 3 and 1: p = 1 at 0, o = 2; 2 lanes.

    1    both start; 1 comes at 2, 0 at 4
    """
    rows = [request(0, 3, 4), request(0, 1, 4)]
    system = split(engine(sarathi()), engine(sarathi(max_seqs=1)), bytes_per_token=1, concurrent=2)
    assert drawn(simulate(rows, system))[1][::3] == ["2: 1+1*", "5: 0+1*"]


def test_hand_offs_of_one_instant_come_by_id() -> None:
    """Two prefill replicas by turns, two for decodes by turns: prompts of 2 s and 1 s, links of no time."""
    sender = pool(
        engine(sarathi(token_budget=1)), engine(sarathi(token_budget=1)), hands_to=link(latency_s=0)
    )
    system = [sender, pool(engine(sarathi()), engine(sarathi()))]
    outcome = simulate([request(0, 2, 2), request(1, 1, 2), request(5, 1, 2)], system)
    assert homes(outcome) == [2, 3, 2]
    assert [r.source for r in outcome.requests] == [0, 1, 0]


def test_who_could_not_go_on_is_rejected_at_once() -> None:
    """The prompt must fit the first; the second batches inputs up to 3."""
    small = {"token_budget": 3, "max_seqs": 4}
    system = split(engine(sarathi(), tokens=4), engine(vllm_v0(**small), tokens=50))
    outcome = simulate([request(0, 5, 2), request(0, 4, 2), request(0, 3, 40)], system)
    assert [r.status for r in outcome.requests] == ["rejected", "rejected", "finished"]


# Rows that wait for rows.


def test_fork_and_join() -> None:
    """0 then 1 and 2 on a replica each, 3 after both and 0.5 s; 4 slots: prompts of 1, outputs 1, 1, 2, 1."""
    rows = [
        request(0, 1, 1, pool=0),
        request(0, 1, 1, pool=0, after=[0]),
        request(0, 1, 2, pool=1, after=[0]),
        request(0, 1, 1, pool=1, after=[1, 2], delay_s=0.5),
    ]
    outcome = reference_fleet.simulate(rows, [pool(engine(sarathi())), pool(engine(sarathi()))])
    assert drawn(outcome) == [["0: 0+1*", "1: 1+1*"], ["1: 2+1*", "2: 2+1*", "3.5: 3+1*"]]
    assert [r.arrival / SECOND for r in outcome.requests] == [0, 1, 1, 3.5]


def test_a_release_is_an_arrival_of_its_instant() -> None:
    """One seat. 0 ends at 1; 2 waits for it and arrives at 1, like 1: by id. 3 arrived at 0.5."""
    rows = [request(0, 1, 1), request(0.5, 1, 1), request(1, 1, 1), request(1, 1, 1, after=[0])]
    rows = [rows[0], {**rows[3], "arrival_s": 0.25}, rows[1], rows[2]]
    outcome = reference_fleet.simulate(rows, [pool(engine(sarathi(max_seqs=1)))])
    assert drawn(outcome) == [["0: 0+1*", "1: 2+1*", "2: 1+1*", "3: 3+1*"]]


def test_who_waits_for_nobody_that_ends_never_arrives() -> None:
    """0 does not fit, 2 has no patience for the slot; 1 and 3 wait for them, 4 for 3 alone."""
    rows = [
        request(0, 9, 9),
        request(0, 1, 1, after=[0]),
        request(0, 1, 3),
        request(0.5, 1, 1, patience_s=0.25),
        request(0.5, 1, 1, after=[3]),
    ]
    outcome = reference_fleet.simulate(rows, [pool(engine(sarathi(max_seqs=1), tokens=4))])
    assert [(r.id, r.status) for r in outcome.requests] == [
        (0, "rejected"),
        (2, "finished"),
        (3, "abandoned"),
    ]


def test_horizon() -> None:
    """0 ends at 1, 1 arrives a second later: at a horizon of 2, not of 1.5."""
    rows = [request(0, 1, 1), request(0, 1, 1, after=[0], delay_s=1)]
    system = [pool(engine(sarathi()))]
    assert [r.status for r in reference_fleet.simulate(rows, system, horizon_s=2).requests] == [
        "finished",
        "unfinished",
    ]
    short = reference_fleet.simulate(rows, system, horizon_s=1.5)
    assert ([r.status for r in short.requests], short.end) == (["finished"], 3 * SECOND // 2)


# The laws, on random systems: L1, L2, L5, L4.


def system(draw: random.Random, described: Described) -> list[Described]:
    speed = {
        "bytes_per_token": draw.choice([0, 3]),
        "bytes_per_s": 1000,
        "concurrent": draw.choice([1, 2, None]),
    }
    roomy = {**described, "kv": {**described["kv"], "tokens": None}}
    receiver = roomy if draw.random() < 0.5 else described
    kinds = draw.choices(list(ROUTERS), k=2)
    sender = [described] * draw.choice([1, 2])
    hand_over = link(latency_s=draw.choice([0, 0.004]), **speed)
    return [pool(*sender, router=kinds[0], hands_to=hand_over), pool(*[receiver] * 2, router=kinds[1])]


def test_laws_of_hand_offs() -> None:
    handed = preempted = 0
    for seed in range(5 * len(SEEDS)):
        described, rows, _ = scenario(("Sarathi", "VllmV1", "VllmV0")[seed % 3], seed)
        outcome = reference_fleet.simulate(rows, system(random.Random(seed), described), seed)
        assert len(outcome.requests) == len(rows)
        for r in outcome.requests:
            assert r.status in ("finished", "rejected", "abandoned")
            assert r.blocks == 0
            assert len(r.tokens) == (r.output if r.status == "finished" else 0)
            if r.source is not None:
                handed += 1
                preempted += r.preemptions
                assert r.admitted is not None and r.prefilled is not None and r.resumed is not None
                assert r.arrival <= r.admitted < r.prefilled <= r.came <= r.resumed < r.tokens[-1]
    assert handed > 200 and preempted > 20


def test_transfers_take_whole_attoseconds() -> None:
    """Rounded down: a third of a second, and what was typed."""
    described = {"latency_s": 0.1, "bytes_per_s": 3, "bytes_per_token": 0.5, "concurrent": None}
    assert Link(described).duration(2) == SECOND // 10 + SECOND // 3


def test_a_lane_is_free_once_its_transfer_is_over() -> None:
    """Two lanes and hand-offs of no time; 0, 2 end on the first replica and 1 on the second, all at 1.

    The queue is 0, 2, 1. 0 and 2 start and are over; 0 comes, so that 1 starts, is over and comes before 2.
    By turns: 0 to the first of two, 1 to the second, 2 to the first.
    """
    sender = pool(engine(sarathi()), engine(sarathi()), hands_to=link(concurrent=2))
    outcome = simulate([request(0, 1, 2)] * 3, [sender, pool(engine(sarathi()), engine(sarathi()))])
    assert homes(outcome) == [2, 3, 2]


def test_the_queue_does_not_tell_in_which_order_one_instant_brought_it() -> None:
    """One lane and hand-offs of no time: 0, 2 and then 1 come at 1. One seat: they run by id all the same."""
    sender = pool(engine(sarathi()), engine(sarathi()), hands_to=link(concurrent=1))
    outcome = simulate([request(0, 1, 2)] * 3, [sender, pool(engine(sarathi(max_seqs=1)))])
    assert drawn(outcome)[2] == ["1: 0+1*", "2: 1+1*", "3: 2+1*"]
