"""What do routers that know prefixes say of themselves, and what do routers in Python see of the caches?"""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import inferq as iq

from .refusals import refused


def engine(tokens: int | None = None, block: int = 4, kind: Any = "blocks", **scheduler: Any) -> iq.Engine:
    """Iterations of a second."""
    return iq.Engine(
        timing=iq.Constant(1.0),
        scheduler=iq.Sarathi(**scheduler),
        kv=iq.KvCache(tokens=tokens, block=block, prefix_cache=kind),
    )


def work(*rows: tuple[float, int, int, list[list[int]]]) -> iq.Workload:
    """Requests as (arrival_s, prompt_tokens, output_tokens, parts of prefixes)."""
    names = ("arrival_s", "prompt_tokens", "output_tokens", "prefix_parts")
    return iq.Workload(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))


class Spy(iq.Router):
    """By turns, and writes down what the caches have."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []
        self.fleet: iq.Fleet | None = None

    def route(self, request: iq.Arrival, fleet: iq.Fleet) -> int:
        assert not fleet.cached_tokens.flags.writeable and fleet.cached_tokens.dtype == "int64"
        self.seen.append(fleet.cached_tokens.tolist())
        self.fleet = fleet
        return request.id % len(fleet)


@pytest.mark.parametrize(("kind", "second"), [("blocks", 8), ("radix", 0), (None, 0)])
def test_a_router_in_python_sees_what_each_cache_has(kind: Any, second: int) -> None:
    """Text 1 on the first replica, computed from 0 to 1: blocks are known once scheduled, pages at the end.

    At 0.5 request 1 of 9 tokens could find min(10 shared, 9 - 1) = 8 in blocks of 4, and goes elsewhere.
    At 2.5 both replicas have text 1, request 2 has 20 tokens of which 10 are text 1: two whole blocks.
    """
    spy = Spy()
    rows = work(
        (0.0, 12, 1, [[1, 10]]), (0.5, 9, 1, [[1, 9]]), (2.5, 20, 1, [[1, 10]]), (3.0, 20, 1, [[2, 9]])
    )
    pair = iq.Cluster(engine(kind=kind), replicas=2, router=spy)
    iq.simulate(rows, pair)
    after = 8 if kind else 0
    assert spy.seen == [[0, 0], [second, 0], [after, after], [0, 0]]
    assert spy.fleet is not None
    with pytest.raises(iq.SimulationError, match="only during the call of route"):
        _ = spy.fleet.cached_tokens
    assert spy.fleet.requests.tolist() == [1, 0]  # copies stay


def test_who_is_handed_off_brings_its_prompt() -> None:
    spies = Spy(), Spy()
    link = iq.Link(latency_s=0.1, bytes_per_s=1e9, bytes_per_token=1)
    pools = {"prefill": (engine(), 2), "decode": (engine(), 2)}
    pair = iq.Disaggregated(**pools, link=link, prefill_router=spies[0], decode_router=spies[1])
    iq.simulate(work((0.0, 12, 3, [[1, 12]]), (5.0, 12, 3, [[1, 12]])), pair)
    assert spies[0].seen == [[0, 0], [8, 0]]
    assert spies[1].seen == [[12, 12], [12, 12]]


def test_what_decodes_have_said_is_seen_before_they_are_over() -> None:
    """Request 0 has 8 + 20 tokens; its first decode begins at 1, so 5 are computed or under way at 5.5."""
    rows = {"arrival_s": [0.0, 5.5], "prompt_tokens": [8, 40], "output_tokens": [20, 1]}
    for kind, cached in (("blocks", 12), ("radix", 8)):
        spy = Spy()
        pair = iq.Cluster(engine(kind=kind), replicas=2, router=spy)
        iq.simulate(iq.Workload(rows | {"continues": [None, 0]}), pair)
        assert spy.seen == [[0, 0], [cached, 0]]


def test_a_report_tells_of_what_was_before_it() -> None:
    """Text 1 is known on replica 0 from 0 s on, and lies there until the end.

    Before it comes again another request takes replica 0, so that only what is known there leads to it.
    """
    text, other = [[1, 9]], [[2, 1]]
    rows = work(
        (0.0, 9, 1, text), (10.0, 1, 8, other), (15.0, 9, 1, text), (30.0, 1, 8, other), (35.0, 9, 1, text)
    )

    def homes(update_s: float | None, kind: str = "blocks") -> list[int]:
        router = iq.PrefixAffinity(weight=10.0, update_s=update_s)
        pair = iq.Cluster(engine(kind=kind), replicas=2, router=router)
        return iq.simulate(rows, pair).requests["replica"].to_list()

    # The blocker holds 8 tokens there (2 blocks of 4): more than nothing, less than 10 × 8 saved.
    assert homes(None) == homes(1e-9) == homes(7.0) == [0, 0, 0, 0, 0]
    assert homes(15.0) == [0, 0, 0, 0, 0]  # the report at 15 tells of all before it
    # At 15 there was none since 0; at 30.000002 both have text 1, and the blocker weighs.
    assert homes(15.000001) == homes(1e9) == [0, 0, 1, 0, 1]
    # What is known from 0 on was not known before 0; pages are known at 1, and not before.
    again = work((0.0, 9, 5, [[1, 9]]), (1.0, 9, 1, [[1, 9]]))
    for kind, late, home in (("blocks", 1.0, 0), ("radix", 1.0, 1), ("radix", None, 0), ("blocks", 2.0, 1)):
        router = iq.PrefixAffinity(weight=10.0, update_s=late)
        pair = iq.Cluster(engine(kind=kind), replicas=2, router=router)
        assert iq.simulate(again, pair).requests["replica"].to_list() == [0, home], (kind, late)


def test_replicas_of_different_blocks_are_compared_in_tokens() -> None:
    """The cost of 40 tokens: the first replica has blocks of 16, the second of 1, the third no cache."""
    fleet = [engine(block=16), engine(block=1), engine(block=4, kind=None)]
    parts = [[1, 40]]
    rows = work((0.0, 40, 30, parts), (0.5, 40, 30, parts), (1.5, 40, 30, parts))
    router = iq.PrefixAffinity(weight=0.5)
    # 0.5: 0.5 × (40 - 32) + 48 ahead against 20: the second.
    # 1.5: 52, 0.5 × (40 - 39) + 41, 20: the third.
    found = iq.simulate(rows, iq.Cluster(fleet, router=router)).requests["replica"].to_list()
    assert found == [0, 1, 2]
    # 0.5: 3 × (40 - 32) + 48 = 72 against 120. 1.5: another block is taken, 88.
    found = iq.simulate(rows, iq.Cluster(fleet, router=iq.PrefixAffinity(weight=3.0))).requests
    assert found.select("replica", "cached_tokens").rows() == [(0, 0), (0, 32), (0, 32)]


def test_a_full_session_moves_and_stays() -> None:
    """Session 0 leaves a replica that has more than 1.5 × the mean; request 2 is of another session."""
    rows = {
        "arrival_s": [0.0, 0.1, 0.2, 0.3, 50.0],
        "prompt_tokens": [9] * 5,
        "output_tokens": [9] * 5,
        "session_id": [0, 0, 1, 0, 0],
    }
    pair = iq.Cluster(engine(), replicas=2, router=iq.BySession(spill=1.5))
    # 0.1: 1 > 1.5 × 0.5, to the second. Session 1: the second by turns. 0.3: 2 > 1.5 × 1.5 is not so.
    assert iq.simulate(rows, pair).requests["replica"].to_list() == [0, 1, 1, 1, 1]
    pair = iq.Cluster(engine(), replicas=2, router=iq.BySession())
    assert iq.simulate(rows, pair).requests["replica"].to_list() == [0, 0, 1, 0, 0]


@refused(
    (lambda: iq.PrefixAffinity(weight=-1.0), r"weight: must be a finite non-negative number, got -1"),
    (lambda: iq.PrefixAffinity(weight=float("nan")), r"weight: must be a finite number"),
    (lambda: iq.PrefixAffinity(weight="1"), r"weight: must be a finite number"),  # type: ignore[arg-type]
    (lambda: iq.PrefixAffinity(update_s=0.0), r"update_s: must be positive, got 0"),
    (lambda: iq.PrefixAffinity(update_s=-1.0), r"update_s: must be .*got -1"),
    (lambda: iq.PrefixAffinity(update_s=1e-19), r"update_s: .*must be 0 or at least 1e-18 s"),
    (lambda: iq.PrefixHash(prefix_tokens=0), r"prefix_tokens: must be at least 1, got 0"),
    (lambda: iq.PrefixHash(prefix_tokens=1.5), r"prefix_tokens: must be a non-negative integer"),  # type: ignore[arg-type]
    (lambda: iq.PrefixHash(prefix_tokens=-1), r"prefix_tokens: must be a non-negative integer"),
    (lambda: iq.PrefixHash(load_factor=1.0), r"load_factor: must be a finite number above 1, got 1"),
    (lambda: iq.BySession(spill=0.9), r"spill: must be a finite number, at least 1, got 0\.9"),
    (lambda: iq.BySession(spill=float("inf")), r"spill: must be a finite number"),
)
def test_a_wrong_number_is_an_error_that_names_it(make: Any) -> None:
    make()


def _hashed(hashes: list[list[int]]) -> iq.Workload:
    rows = len(hashes)
    columns = {"arrival_s": [float(at) for at in range(rows)], "prompt_tokens": [8] * rows}
    frame = pl.DataFrame(
        {**columns, "output_tokens": [1] * rows, "prefix_hashes": hashes, "prefix_block_tokens": [4] * rows}
    )
    return iq.Workload(frame)


def test_the_future_does_not_change_where_a_prefix_goes() -> None:
    """L11: rows that come later, with hashes that are smaller, number none of the contents before anew."""
    hashes = [[900 + at % 7, at] for at in range(60)]
    fleet = iq.Cluster(engine(), replicas=5, router=iq.PrefixHash(prefix_tokens=4))
    whole = iq.simulate(_hashed([*hashes, *([100 + at, 2000] for at in range(40))]), fleet).requests
    part = iq.simulate(_hashed(hashes), fleet).requests
    assert whole["replica"][:60].to_list() == part["replica"].to_list()
    homes = dict(zip((row[0] for row in hashes), part["replica"], strict=True))
    assert part["replica"].to_list() == [homes[row[0]] for row in hashes]


@pytest.mark.parametrize("router", [iq.PrefixHash(prefix_tokens=6), iq.PrefixAffinity(update_s=2.5)])
def test_results_in_a_directory_are_those_in_memory(router: iq.Router, tmp_path: Path) -> None:
    workload = _hashed([[900 - at % 7, at] for at in range(60)])
    fleet = iq.Cluster(engine(), replicas=3, router=router)
    stored = iq.simulate(workload, fleet, out=tmp_path / "run")
    replicas = iq.simulate(workload, fleet).requests["replica"]
    assert stored.requests.collect()["replica"].to_list() == replicas.to_list()
