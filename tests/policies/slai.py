"""Slai: critical decodes, started prompts, new prompts, then other decodes (bari2025)."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import inferq as iq

from ..policy import NO_COUNT, ORDERS, Described, Draw, Policy
from ..reference import ORDERS as KEYS
from ..reference import Replica, Request, ordered
from ..worked import SECOND, bounds, drawn, engine, of_class, request, simulate


def draw(dynamic: bool) -> Draw:
    """Its offset constant, or dependent on the fraction of used blocks."""

    def of_way(rng: random.Random, longest: int, classes: list[str]) -> Described:
        own: Described = {
            "kind": "Slai",
            "token_budget": rng.choice([3, 8, 16, 64, 512]),
            "max_active": rng.choice([1, 3, 8, 128]),
            "max_decodes": rng.choice([1, 2, 8, 128]),
            "offset": rng.choice([0.01, 1, 2.5, 10]),
        }
        if dynamic:
            shares = {"kv_share": rng.choice([0.0, 0.3, 0.65, 0.96])}
            own["offset"] = {"kind": "DynamicOffset", "low": rng.choice([0.01, 0.5]), "high": 3, **shares}
        return own | {"order": rng.choice(ORDERS), "class_first": rng.choice([None, *classes])}

    return of_way


def rule(replica: Replica, rules: Described) -> None:
    """bari2025 6: critical decodes, started prompts, new prompts, then other decodes."""
    early = replica.early()

    def last_time(r: Request) -> tuple[bool, int, int]:  # (8); without an objective never critical
        return (r.itl_slo is None, 0 if r.itl_slo is None else r.end + r.itl_slo - early, r.id)

    in_order = sorted(replica.ready, key=last_time)
    critical = [r for r in in_order if r.itl_slo is not None and replica.now >= last_time(r)[1]]
    placed = replica.decode(critical, rules["max_decodes"])
    for r in replica.unfinished:
        replica.place(r, r.owed)
    queue, first = ordered(replica.queue, rules["order"]), rules["class_first"]
    if first is not None:
        queue = sorted(queue, key=lambda r: (r.name != first, KEYS[rules["order"]](r), r))
    for r in queue:
        if r in replica.victims or not replica.budget or not replica.room(r, replica.to_next_token(r)):
            break
        replica.place(r, r.owed, holding=r.needs)
    replica.decode([r for r in in_order if r not in critical], rules["max_decodes"] - placed)


DESCRIBED = {
    "kind": "Slai",
    "token_budget": 512,
    "max_active": 128,
    "max_decodes": 128,
    "offset": 10,
    "order": "spf",
    "class_first": None,
}
OFFSET = {"kind": "DynamicOffset", "low": 5, "high": 10, "kv_share": 0.96}
NO_OFFSET = [-1, float("nan"), float("inf"), True, "5", None]
POLICY = Policy(
    examples=[
        (iq.research.Slai(), DESCRIBED),
        (
            iq.research.Slai(offset=2.5, class_first="paid"),
            {**DESCRIBED, "offset": 2.5, "class_first": "paid"},
        ),
        (iq.research.Slai(offset=iq.research.DynamicOffset()), {**DESCRIBED, "offset": OFFSET}),
    ],
    wrong={
        "token_budget": NO_COUNT,
        "max_active": NO_COUNT,
        "max_decodes": NO_COUNT,
        "offset": [0, -0.5, OFFSET, *NO_OFFSET],
        "order": ["ljf", None, len],
        "class_first": [1, ["paid"], True],
    },
    errors=[
        ({"offset": "10"}, "^offset: .*'10'"),
        ({"offset": {"kind": "Dynamic"}}, r"^offset\.kind: .*DynamicOffset"),
        ({"offset": {"kind": "DynamicOffset", "lo": 1}}, r"^offset: .*'lo'"),
        ({"offset": {"kind": "DynamicOffset", "low": "x"}}, r"^offset\.low: "),
    ],
    toml={
        'offset = 2.5\nclass_first = "default"': iq.research.Slai(offset=2.5, class_first="default"),
        'offset = { kind = "DynamicOffset", high = 20 }': iq.research.Slai(
            offset=iq.research.DynamicOffset(high=20)
        ),
    },
    variants={"Slai fixed": draw(False), "Slai dynamic": draw(True)},
    rule=rule,
    bounds=lambda rules: (rules["max_active"], rules["token_budget"]),
    on_real_traces={"slai": iq.research.Slai(offset=iq.research.DynamicOffset())},
)


@pytest.mark.parametrize("field", ["low", "high", "kv_share"])
def test_a_wrong_part_of_a_dynamic_offset_is_named(field: str) -> None:
    for bad in NO_OFFSET:
        with pytest.raises(iq.ConfigError, match=field):
            iq.research.DynamicOffset(**{field: bad})
    with pytest.raises(iq.ConfigError, match="kv_share"):
        iq.research.DynamicOffset(kv_share=1.01)
    with pytest.raises(iq.ConfigError, match=r"^offset: .*number or DynamicOffset"):
        iq.research.Slai(offset="10")  # type: ignore[arg-type]


def test_numpy_values_become_plain() -> None:
    assert iq.research.Slai(offset=np.float32(2.5)).to_json()["offset"] == 2.5


# Worked cases.


QUEUE = [of_class("free", 0, 4, 1), of_class("free", 0, 2, 4), of_class("paying", 0, 3, 1)]


def slai(**changed: Any) -> iq.research.Slai:
    rules: dict[str, Any] = {"token_budget": 4, "max_active": 4, "max_decodes": 4, "offset": 1}
    return iq.research.Slai(**{**rules, "order": "fcfs", **changed})


@pytest.mark.parametrize(
    ("offset", "batches"),
    [
        (1e-9, ["2: 1+4", "3: 1+4*", "4: 0+1*", "5: 0+1*"]),
        (1, ["2: 1+4", "3: 0+1* 1+3", "4: 1+1* 0+1*"]),
        (1.5, ["2: 1+4", "3: 0+1* 1+3", "4: 1+1* 0+1*"]),
        (2, ["2: 0+1* 1+3", "3: 1+4", "4: 0+1* 1+1*"]),
    ],
)
def test_slai_waits_until_the_last_schedulable_time(offset: float, batches: list[str]) -> None:
    """Budget 4, the mean is always 1 s. 0: p = 1, o = 3, ITL 3 s at 0; 1: p = 12 at 0.5.

    0's first token is at 1. Until it is critical, 1 has the budget.
    1e-9 from just before 1 + 3 = 4 on, when 1 has ended
    1    from 1 + 3 - 1 = 3 on: before 1. At 4, not critical before 4 + 3 - 1 = 6: after 1's last token
    1.5  from 2.5 on, which is at 3; then from 5.5 on
    2    from 1 + 3 - 2 = 2 on, then from 3 + 3 - 2 = 4 on
    """
    rows = [request(0, 1, 3, itl_slo_s=3), request(0.5, 12, 1)]
    assert drawn(simulate(rows, engine(slai(offset=offset)))) == ["0: 0+1*", "1: 1+4", *batches]


def test_slai_offset_follows_the_blocks() -> None:
    """24 blocks, low nearly 0, high 2 from half of them on. 0: p = 1, o = 2, ITL 3 s at 0; 1: p = 12 at 0.5.

    1  1 block: low. 0 is critical from 4 on; 1 takes 12 blocks
    2  13 blocks: high. 0 is critical from 1 + 3 - 2 = 2 on
    """
    offset = iq.research.DynamicOffset(low=1e-9, high=2, kv_share=0.5)
    rows = [request(0, 1, 2, itl_slo_s=3), request(0.5, 12, 1)]
    outcome = simulate(rows, engine(slai(offset=offset), tokens=24))
    assert drawn(outcome) == ["0: 0+1*", "1: 1+4", "2: 0+1* 1+3", "3: 1+4", "4: 1+1*"]
    outcome = simulate(rows, engine(slai(offset=replace(offset, kv_share=0)), tokens=None))
    assert drawn(outcome) == [
        "0: 0+1*",
        "1: 1+4",
        "2: 1+4",
        "3: 1+4*",
        "4: 0+1*",
    ]  # an unlimited cache is never full


@pytest.mark.parametrize(("itl_slo_s", "batch"), [(13, "6: 0+1* 1+3"), (13.5, "6: 1+4")])
def test_slai_mean_is_over_all_iterations(itl_slo_s: float, batch: str) -> None:
    """1 s for each token of a prompt, offset 3. 0: p = 2, o = 2 at 0, 2 s; 1: p = 16 at 1, 4 s for 4 tokens.

    At 6 the mean is (2 + 4) / 2 = 3: 0 is critical from 2 + 13 - 9 = 6 on, or from 6.5.
    """
    timing = {"kind": "MixedSolo", "alpha": 0, "beta": 1, "solo": 1}
    rows = [request(0, 2, 2, itl_slo_s=itl_slo_s), request(1, 16, 1)]
    outcome = simulate(rows, engine(slai(offset=3), timing))
    assert drawn(outcome)[:3] == ["0: 0+2*", "2: 1+4", batch]


def test_slai_without_an_objective_comes_last() -> None:
    """One decode at a time; 0 has no ITL, 1 has 100 s: neither is ever critical, 1 runs first."""
    rows = [request(0, 1, 3), request(0, 1, 3, itl_slo_s=100)]
    outcome = simulate(rows, engine(slai(max_decodes=1)))
    assert drawn(outcome) == ["0: 0+1* 1+1*", "1: 1+1*", "2: 1+1*", "3: 0+1*", "4: 0+1*"]
    assert bounds(outcome) == ["nothing", "broken", "broken", "nothing", "nothing"]


@pytest.mark.parametrize(
    ("order", "class_first", "admitted"),
    [
        ("fcfs", None, [0, 1, 5]),
        ("spf", None, [5, 0, 4]),
        ("lpf", None, [0, 2, 1]),
        ("srf", None, [1, 2, 0]),
        ("fcfs", "paying", [1, 2, 0]),
        ("spf", "paying", [5, 1, 0]),
    ],
)
def test_slai_queue(order: str, class_first: str | None, admitted: list[int]) -> None:
    outcome = simulate(QUEUE, engine(slai(order=order, class_first=class_first, max_active=1)))
    assert [r.admitted for r in outcome.requests] == [second * SECOND for second in admitted]


def test_slai_started_prompts_stay_before_the_first_class() -> None:
    """Budget 4. 0: free, p = 6 at 0; 1: paying, p = 4 at 0.5."""
    rows = [of_class("free", 0, 6, 1), of_class("paying", 0.5, 4, 1)]
    outcome = simulate(rows, engine(slai(class_first="paying")))
    assert drawn(outcome) == ["0: 0+4", "1: 0+2* 1+2", "2: 1+2*"]
