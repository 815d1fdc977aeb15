"""Is the reference right about the papers' schedulers? Cases worked out by hand, in slots of one second.

Blocks of one token unless said. A batch is drawn as in `test_reference.py`: 'start: request+tokens …', a star
where a row emits.
"""

from typing import Any

import pytest

from .reference import Outcome, simulate
from .test_reference import SECOND, Described, drawn, engine, request, sarathi, used, vllm_v0


def orca(**changed: Any) -> Described:
    rules = {"max_seqs": 4, "max_model_len": 6, "token_budget": 8, "chunked": False}
    return {"kind": "Orca", **rules, **changed}


def faster_transformer(**changed: Any) -> Described:
    return {"kind": "FasterTransformer", "max_seqs": 2, "max_model_len": 5, "free": "each", **changed}


def k_fcfs(**changed: Any) -> Described:
    return {"kind": "KFcfs", "token_budget": 6, "k_prefill": 1, "k_decode": 2, **changed}


def rad(kind: str, **changed: Any) -> Described:
    return {"kind": kind, "rows": 2, "columns": 2, "reduction": 1, "requests_per_cycle": 2, **changed}


def slai(**changed: Any) -> Described:
    rules = {"token_budget": 4, "max_active": 4, "max_decodes": 4, "offset": 1, "order": "fcfs"}
    return {"kind": "Slai", **rules, "class_first": None, **changed}


def of_class(name: str, arrival_s: float, prompt_tokens: int, output_tokens: int) -> Described:
    return request(arrival_s, prompt_tokens, output_tokens, **{"class": name})


def bounds(outcome: Outcome) -> list[str]:
    return [iteration.bound for iteration in outcome.iterations]


def preemptions(outcome: Outcome) -> list[int]:
    return [r.preemptions for r in outcome.requests]


# Orca and FasterTransformer.


def test_orca_reserves_the_longest_request() -> None:
    """14 blocks: two reservations of 6. 0: p = 3, o = 3; 1: p = 5, o = 1; 2: p = 2, o = 2; all at 0.

    0  0 and 1, whole; 2 finds 2 of 6 blocks
    1  1 has left: 2's prompt first, then 0 decodes
    2  0 and 2 decode, their last
    """
    rows = [request(0, 3, 3), request(0, 5, 1), request(0, 2, 2)]
    outcome = simulate(rows, engine(orca(token_budget=10), tokens=14))
    assert drawn(outcome) == ["0: 0+3* 1+5*", "1: 2+2* 0+1*", "2: 0+1* 2+1*"]
    assert used(outcome) == [12, 12, 12]
    assert bounds(outcome) == ["memory", "nothing", "nothing"]


def test_orca_serves_prompts_before_decodes() -> None:
    """Budget 4. 0: p = 1, o = 3 at 0; 1: p = 4 at 0.5 takes the whole budget at 1, and 0 waits."""
    outcome = simulate([request(0, 1, 3), request(0.5, 4, 1)], engine(orca(token_budget=4)))
    assert drawn(outcome) == ["0: 0+1*", "1: 1+4*", "2: 0+1*", "3: 0+1*"]


def test_orca_stops_at_the_first_prompt_that_does_not_fit_the_budget() -> None:
    """Budget 4, prompts 3, 2, 1: 2 would fit beside 0, but 1 stands before it: "broken"."""
    rows = [request(0, 3, 1), request(0, 2, 1), request(0, 1, 1)]
    outcome = simulate(rows, engine(orca(token_budget=4)))
    assert drawn(outcome) == ["0: 0+3*", "1: 1+2* 2+1*"]
    assert bounds(outcome) == ["broken", "nothing"]


def test_orca_without_a_budget_takes_all() -> None:
    rows = [request(0, 3, 1), request(0, 4, 1), request(0, 5, 1)]
    assert drawn(simulate(rows, engine(orca(token_budget=None)))) == ["0: 0+3* 1+4* 2+5*"]


def test_orca_chunked() -> None:
    """Budget 4. 0: p = 6, o = 2; 1: p = 3, o = 1. The started prompt first, then the queue, then decodes."""
    outcome = simulate(
        [request(0, 6, 2), request(0, 3, 1)], engine(orca(token_budget=4, chunked=True, max_model_len=8))
    )
    assert drawn(outcome) == ["0: 0+4", "1: 0+2* 1+2", "2: 1+1* 0+1*"]


@pytest.mark.parametrize(
    ("scheduler", "prompt", "output", "status"),
    [
        (orca(), 4, 2, "finished"),
        (orca(), 4, 3, "rejected"),  # 7 tokens, at most 6
        (orca(token_budget=3), 4, 2, "rejected"),  # its prompt never fits an iteration
        (orca(token_budget=3, chunked=True), 4, 2, "finished"),
        (orca(max_model_len=9), 1, 1, "rejected"),  # 9 blocks of 8
        (faster_transformer(), 4, 1, "finished"),
        (faster_transformer(), 4, 2, "rejected"),  # 6 tokens, at most 5
        (faster_transformer(max_model_len=9), 1, 1, "rejected"),
    ],
)
def test_what_can_never_fit_a_reservation(
    scheduler: Described, prompt: int, output: int, status: str
) -> None:
    outcome = simulate([request(0.5, prompt, output)], engine(scheduler, tokens=8))
    assert [r.status for r in outcome.requests] == [status]


@pytest.mark.parametrize(
    ("free", "blocks", "third"),
    [("each", [10, 10, 5, 5, 5], "broken"), ("batch", [10, 10, 10, 10, 5], "memory")],
)
def test_faster_transformer(free: str, blocks: list[int], third: str) -> None:
    """2 places, 10 blocks: two reservations of 5. 0: p = 2, o = 2; 1: p = 1, o = 4; 2: p = 1, o = 1.

    0     0 and 1 whole, in one iteration; 2 finds no place
    1     both decode, 0 leaves at 2
    2, 3  1 alone; a place is free, and with "each" blocks are, but the batch goes on
    4     2
    """
    rows = [request(0, 2, 2), request(0, 1, 4), request(0, 1, 1)]
    outcome = simulate(rows, engine(faster_transformer(free=free), tokens=10))
    assert drawn(outcome) == ["0: 0+2* 1+1*", "1: 0+1* 1+1*", "2: 1+1*", "3: 1+1*", "4: 2+1*"]
    assert used(outcome) == blocks
    assert bounds(outcome) == ["cap", "cap", third, third, "nothing"]


# li2025: (Kp, Kd)-FCFS.


def test_k_fcfs_loads_the_oldest_of_each_phase() -> None:
    """Budget 6, one prompt and two decodes at a time. 0, 1, 2: p = 1, o = 4; 3: p = 8, o = 1; all at 0.

    0-2  one prompt each, beside the decodes so far
    3    0 and 1 decode (2 is third), 3 computes 4 of 8
    4    1 and 2 decode, as 0 has left; 3 its last 4
    5, 6 2 decodes
    """
    rows = [*[request(0, 1, 4)] * 3, request(0, 8, 1)]
    outcome = simulate(rows, engine(k_fcfs()))
    assert drawn(outcome) == [
        "0: 0+1*", "1: 0+1* 1+1*", "2: 0+1* 1+1* 2+1*", "3: 0+1* 1+1* 3+4", "4: 1+1* 2+1* 3+4*",
        "5: 2+1*", "6: 2+1*",
    ]  # fmt: skip
    assert bounds(outcome)[:4] == ["broken"] * 4  # nobody asked for the second prompt, or 2's decode


def test_k_fcfs_admits_in_a_step_that_preempted_but_no_victim() -> None:
    """7 blocks, two prompts at a time. 0: p = 1, o = 3; 1: p = 4, o = 3; both at 0; 2: p = 1, o = 1 at 1.5.

    2  0 finds no block: 1 goes and is the head of the queue, so nobody is admitted
    """
    rows = [request(0, 1, 3), request(0, 4, 3), request(1.5, 1, 1)]
    outcome = simulate(rows, engine(k_fcfs(k_prefill=2, token_budget=8), tokens=7))
    assert drawn(outcome) == ["0: 0+1* 1+4*", "1: 0+1* 1+1*", "2: 0+1*", "3: 1+6* 2+1*"]


# bari2025: RAD, its other form, SLAI.


def test_rad() -> None:
    """Chunks of lcm(2, 2, 1) = 2, two prompts a cycle. 0: p = 3, o = 2; 1: p = 2, o = 3; 2: p = 1, o = 1.

    0, 1  0's prompt in two chunks, alone
    2     1's prompt, the second of the cycle
    3     both decode; 0 leaves at 4
    4     1 decodes alone: a column is free, but the cycle has had its prompts; 1 leaves at 5
    5     the next cycle: 2
    """
    rows = [request(0, 3, 2), request(0, 2, 3), request(0, 1, 1)]
    outcome = simulate(rows, engine(rad("Rad")))
    assert drawn(outcome) == ["0: 0+2", "1: 0+1*", "2: 1+2*", "3: 0+1* 1+1*", "4: 1+1*", "5: 2+1*"]
    assert used(outcome) == [3, 3, 5, 7, 4, 1]
    assert bounds(outcome) == ["broken", "broken", "broken", "cap", "broken", "nothing"]


def test_rad_decodes_when_the_columns_are_full() -> None:
    """One column, chunks of 2, three prompts a cycle: each request from its prompt to its end."""
    rows = [request(0, 1, 2), request(0, 1, 2)]
    outcome = simulate(rows, engine(rad("Rad", columns=1, requests_per_cycle=3)))
    assert drawn(outcome) == ["0: 0+1*", "1: 0+1*", "2: 1+1*", "3: 1+1*"]


@pytest.mark.parametrize("kind", ["Rad", "RadPhased"])
def test_a_cycle_of_outputs_of_one_token_ends(kind: str) -> None:
    """One prompt a cycle; nobody ever decodes, so that no decode can end a cycle."""
    outcome = simulate([request(0, 1, 1)] * 3, engine(rad(kind, requests_per_cycle=1)))
    assert drawn(outcome) == ["0: 0+1*", "1: 1+1*", "2: 2+1*"]


def test_rad_counts_a_recomputed_prompt_anew() -> None:
    """5 blocks, chunks of 2, two prompts a cycle. 0: p = 2, o = 4; 1: p = 2, o = 2; both at 0; 2: p = 1 at 1.

    0, 1  the prompts: 4 blocks
    2     0 takes the last block, 1 finds none: it is itself the last, goes and knows 3
    3, 4  the cycle has had two prompts: 0 decodes to its end, at 5
    5, 6  the next cycle: 1's 3 tokens, in two chunks: its second token
    7     2
    """
    rows = [request(0, 2, 4), request(0, 2, 2), request(1, 1, 1)]
    outcome = simulate(rows, engine(rad("Rad"), tokens=5))
    assert drawn(outcome) == [
        "0: 0+2*",
        "1: 1+2*",
        "2: 0+1*",
        "3: 0+1*",
        "4: 0+1*",
        "5: 1+2",
        "6: 1+1*",
        "7: 2+1*",
    ]
    assert used(outcome) == [2, 4, 3, 4, 5, 3, 3, 1]
    assert preemptions(outcome) == [0, 1, 0]


def test_rad_phased() -> None:
    """Chunks of 2, two columns, three prompts a cycle. p = 2, 3, 1, 1 and o = 3, 2, 2, 1, all at 0.

    0-3  the prompts of 0, 1 (two chunks) and 2
    4    0 and 1 decode, the first two that became ready; 1 leaves at 5
    5    2 takes its place; 0 and 2 leave at 6
    6    the next cycle: 3
    """
    rows = [request(0, 2, 3), request(0, 3, 2), request(0, 1, 2), request(0, 1, 1)]
    outcome = simulate(rows, engine(rad("RadPhased", requests_per_cycle=3)))
    assert drawn(outcome) == [
        "0: 0+2*", "1: 1+2", "2: 1+1*", "3: 2+1*", "4: 0+1* 1+1*", "5: 0+1* 2+1*", "6: 3+1*",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arrival", "batches"),
    [(5, ["5: 1+1*", "6: 2+1*", "7: 1+1*"]), (1, ["1: 1+1*", "2: 1+1*", "3: 2+1*"])],
)
def test_rad_phased_ends_its_cycle_when_nobody_is_there(arrival: float, batches: list[str]) -> None:
    """Two prompts a cycle; 0 (o = 1) has left at 1. 1: o = 2 and 2: o = 1 later, or at that very instant.

    Alg. 2 leaves its first loop when nobody waits: at 5 a cycle begins, 1 and 2 are its prompts. At 1 they
    are there in time: 1 is the second prompt of 0's cycle, and 2 must wait for the next.
    """
    rows = [request(0, 1, 1), request(arrival, 1, 2), request(arrival, 1, 1)]
    outcome = simulate(rows, engine(rad("RadPhased")))
    assert drawn(outcome) == ["0: 0+1*", *batches]


def test_rad_phased_takes_blocks_from_who_pauses() -> None:
    """4 blocks, one column, chunks of 2. 0: p = 2, o = 3; 1: p = 2, o = 2; both at 0.

    2     0 finds no block: 1, which pauses, goes and knows 3
    4, 5  the next cycle: 1's 3 tokens, in two chunks: its second token
    """
    outcome = simulate([request(0, 2, 3), request(0, 2, 2)], engine(rad("RadPhased", columns=1), tokens=4))
    assert drawn(outcome) == ["0: 0+2*", "1: 1+2*", "2: 0+1*", "3: 0+1*", "4: 1+2", "5: 1+1*"]
    assert used(outcome) == [2, 4, 3, 4, 3, 3]
    assert preemptions(outcome) == [0, 1]


@pytest.mark.parametrize(
    ("offset", "batches"),
    [
        (0, ["2: 1+4", "3: 1+4*", "4: 0+1*", "5: 0+1*"]),
        (1, ["2: 1+4", "3: 0+1* 1+3", "4: 1+1* 0+1*"]),
        (1.5, ["2: 1+4", "3: 0+1* 1+3", "4: 1+1* 0+1*"]),
        (2, ["2: 0+1* 1+3", "3: 1+4", "4: 0+1* 1+1*"]),
    ],
)
def test_slai_waits_until_the_last_schedulable_time(offset: float, batches: list[str]) -> None:
    """Budget 4, the mean is always 1 s. 0: p = 1, o = 3, TBT 3 s at 0; 1: p = 12 at 0.5.

    0's first token is at 1. Until it is critical, 1 has the budget.
    0    from 1 + 3 - 0 = 4 on, when 1 has ended
    1    from 1 + 3 - 1 = 3 on: before 1. At 4, not critical before 4 + 3 - 1 = 6: after 1's last token
    1.5  from 2.5 on, which is at 3; then from 5.5 on
    2    from 1 + 3 - 2 = 2 on, then from 3 + 3 - 2 = 4 on
    """
    rows = [request(0, 1, 3, tbt_slo_s=3), request(0.5, 12, 1)]
    assert drawn(simulate(rows, engine(slai(offset=offset)))) == ["0: 0+1*", "1: 1+4", *batches]


def test_slai_offset_follows_the_blocks() -> None:
    """24 blocks, low 0, high 2 from half of them on. 0: p = 1, o = 2, TBT 3 s at 0; 1: p = 12 at 0.5.

    1  1 block: low. 0 is critical from 4 on; 1 takes 12 blocks
    2  13 blocks: high. 0 is critical from 1 + 3 - 2 = 2 on
    """
    offset = {"kind": "DynamicOffset", "low": 0, "high": 2, "kv_share": 0.5}
    rows = [request(0, 1, 2, tbt_slo_s=3), request(0.5, 12, 1)]
    outcome = simulate(rows, engine(slai(offset=offset), tokens=24))
    assert drawn(outcome) == ["0: 0+1*", "1: 1+4", "2: 0+1* 1+3", "3: 1+4", "4: 1+1*"]
    outcome = simulate(rows, engine(slai(offset={**offset, "kv_share": 0}), tokens=None))
    assert drawn(outcome) == [
        "0: 0+1*",
        "1: 1+4",
        "2: 1+4",
        "3: 1+4*",
        "4: 0+1*",
    ]  # no share of an endless cache


@pytest.mark.parametrize(("tbt_slo_s", "batch"), [(13, "6: 0+1* 1+3"), (13.5, "6: 1+4")])
def test_slai_mean_is_over_all_iterations(tbt_slo_s: float, batch: str) -> None:
    """1 s for each token of a prompt, offset 3. 0: p = 2, o = 2 at 0, 2 s; 1: p = 16 at 1, 4 s for 4 tokens.

    At 6 the mean is (2 + 4) / 2 = 3: 0 is critical from 2 + 13 - 9 = 6 on, or from 6.5.
    """
    timing = {"kind": "MixedSolo", "alpha": 0, "beta": 1, "solo": 1}
    rows = [request(0, 2, 2, tbt_slo_s=tbt_slo_s), request(1, 16, 1)]
    outcome = simulate(rows, engine(slai(offset=3), timing))
    assert drawn(outcome)[:3] == ["0: 0+2*", "2: 1+4", batch]


def test_slai_without_an_objective_comes_last() -> None:
    """One decode at a time; 0 has no TBT, 1 has 100 s: neither is ever critical, 1 goes first."""
    rows = [request(0, 1, 3), request(0, 1, 3, tbt_slo_s=100)]
    outcome = simulate(rows, engine(slai(max_decodes=1)))
    assert drawn(outcome) == ["0: 0+1* 1+1*", "1: 1+1*", "2: 1+1*", "3: 0+1*", "4: 0+1*"]
    assert bounds(outcome) == ["nothing", "broken", "broken", "nothing", "nothing"]


# p = 4, 2, 3 and p + o = 5, 6, 4; where there is one place, each has it for as many slots as it has outputs.
QUEUE = [of_class("free", 0, 4, 1), of_class("free", 0, 2, 4), of_class("paying", 0, 3, 1)]


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


@pytest.mark.parametrize(("order", "admitted"), [("srf", [1, 2, 0]), ("lpf", [0, 2, 1])])
def test_sarathi_queue(order: str, admitted: list[int]) -> None:
    outcome = simulate(QUEUE, engine(sarathi(order=order, max_seqs=1)))
    assert [r.admitted for r in outcome.requests] == [second * SECOND for second in admitted]


def test_slai_started_prompts_stay_before_the_first_class() -> None:
    """Budget 4. 0: free, p = 6 at 0; 1: paying, p = 4 at 0.5."""
    rows = [of_class("free", 0, 6, 1), of_class("paying", 0.5, 4, 1)]
    outcome = simulate(rows, engine(slai(class_first="paying")))
    assert drawn(outcome) == ["0: 0+4", "1: 0+2* 1+2", "2: 1+2*"]


# li2025: static priority.


def priority(order: list[str], inner: Described) -> Described:
    return {"kind": "ClassPriority", "order": order, "inner": inner}


def test_class_priority_takes_blocks_from_the_lowest_class() -> None:
    """4 blocks. 0: free, 1: gold, both p = 2, o = 3 at 0.

    0  gold first; 4 blocks
    1  1 finds no block: 0 goes, though 1 came later, and knows 3. It is back when 1 has left, at 3
    """
    rows = [of_class("free", 0, 2, 3), of_class("gold", 0, 2, 3)]
    outcome = simulate(rows, engine(priority(["gold", "free"], sarathi()), tokens=4))
    assert drawn(outcome) == ["0: 1+2* 0+2*", "1: 1+1*", "2: 1+1*", "3: 0+3*", "4: 0+1*"]
    assert preemptions(outcome) == [1, 0]


def test_class_priority_latest_of_the_lowest_and_own_victims() -> None:
    """8 blocks. 0: a, 1: b, 2 and 3: c, all p = 2, o = 2 at 0.

    1  0 finds no block: 3 goes, two blocks for 0 and 1. 2 finds none, no class is below: itself goes
    """
    rows = [of_class(name, 0, 2, 2) for name in "abcc"]
    outcome = simulate(rows, engine(priority(["a", "b", "c"], sarathi()), tokens=8))
    assert drawn(outcome) == ["0: 0+2* 1+2* 2+2* 3+2*", "1: 0+1* 1+1*", "2: 2+3* 3+3*"]
    assert preemptions(outcome) == [0, 0, 1, 1]


def test_class_priority_gives_what_is_left() -> None:
    """Budget 6, two places: gold's prompts and decodes first, then one of free, cut to the budget.

    0  1 (gold, p = 4), then 2 of 0's 3; no place for 2 (free)
    1  1 decodes, 0 its last 1; 3 (gold, at 0.5) finds no place, nor does 2
    2  both have left: 3 before 2
    """
    rows = [
        of_class("free", 0, 3, 1),
        of_class("gold", 0, 4, 2),
        of_class("free", 0, 1, 1),
        of_class("gold", 0.5, 2, 1),
    ]
    for inner in (sarathi(token_budget=6, max_seqs=2), orca(token_budget=6, max_seqs=2, chunked=True)):
        outcome = simulate(rows, engine(priority(["gold", "free"], inner)))
        assert drawn(outcome) == ["0: 1+4* 0+2", "1: 1+1* 0+1*", "2: 3+2* 2+1*"]
        assert bounds(outcome)[1] == "cap"


def test_class_priority_k_fcfs_counts_in_each_class() -> None:
    """One prompt and two decodes at a time, of each class."""
    rows = [
        of_class("free", 0, 1, 1),
        of_class("free", 0, 1, 1),
        of_class("gold", 0, 1, 1),
        of_class("gold", 0, 1, 1),
    ]
    outcome = simulate(rows, engine(priority(["gold", "free"], k_fcfs())))
    assert drawn(outcome) == ["0: 2+1* 0+1*", "1: 3+1* 1+1*"]


# The price in tiles, and the audit of the engines' schedulers.


def test_tiled_gemm() -> None:
    """bari2025 (7): two layers of width 16, tiles of 2 rows, 4 columns and 8 to reduce.

    1 s for each tile, 10 s for a token; budget 4, p = 6, o = 2.


    chunk of 4 at 0:  1 + 40 + 2 · 1·((16/8)·2 + (16/2)·1) = 65
    chunk of 2 at 4:  1 + 20 + 2 · 1·((16/8)·3 + (16/2)·1) = 49
    decode, i = 7:    1 + 10 + 2 · ((16/4)·4 + (16/2)·2) = 75
    """
    timing = {"kind": "TiledGemm", "rows": 2, "columns": 4, "reduction": 8, "width": 16, "layers": 2,
              "linear_s_per_tile": 1, "other_s_per_token": 10, "gemm_s": 1, "gemv_s": 1}  # fmt: skip
    outcome = simulate([request(0, 6, 2)], engine(sarathi(token_budget=4), timing))
    assert [i.length // SECOND for i in outcome.iterations] == [65, 49, 75]


def test_audit_of_vllm_v0() -> None:
    """li2025 (2.6): at 1 the prompt of 1 keeps 0's decode out, for which budget and blocks are there."""
    outcome = simulate([request(0, 4, 3), request(0.5, 4, 1)], engine(vllm_v0()))
    assert drawn(outcome) == ["0: 0+4*", "1: 1+4*", "2: 0+1*", "3: 0+1*"]
    assert bounds(outcome) == ["nothing", "broken", "nothing", "nothing"]


@pytest.mark.parametrize(
    ("changed", "tokens", "bound"),
    [
        ({"max_seqs": 1}, None, "cap"),
        ({}, 5, "memory"),
        ({"watermark": 0.5}, 10, "memory"),  # 6 of 10 blocks are free, 5 stay so
        ({"max_seqs": 1}, 5, "cap"),  # places are looked at first
        ({"token_budget": 4}, None, "broken"),  # full: a larger budget would have loaded more
        ({}, None, "nothing"),
    ],
)
def test_audit_of_sarathi(changed: Described, tokens: int | None, bound: str) -> None:
    """Two prompts of 4 and 2 tokens, at 0."""
    outcome = simulate([request(0, 4, 1), request(0, 2, 1)], engine(sarathi(**changed), tokens=tokens))
    assert outcome.iterations[0].bound == bound
