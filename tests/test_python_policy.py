"""Schedulers written in Python: do they equal built-in ones, and is every broken rule named?"""

import gc
import json
import signal
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

import inferq as iq

from .slots import work

COLUMNS = (
    "id",
    "since_s",
    "prompt_left",
    "context",
    "emitted",
    "blocks",
    "decodes",
    "class_code",
    "priority",
    "ttft_slo_s",
    "itl_slo_s",
    "preemptions",
)


class Scripted(iq.Scheduler):
    """A function of the view and of how often it was asked, the first time as 1."""

    def __init__(self, script: Callable[[iq.View, int], Any], **attributes: Any) -> None:
        self.script = script
        self.asked = 0
        for name, value in attributes.items():
            setattr(self, name, value)

    def plan(self, view: iq.View) -> Any:
        self.asked += 1
        return self.script(view, self.asked)


class Fcfs(iq.Scheduler):
    """`VllmV0` where blocks are ample: whole prompts whenever one can be admitted, else all decode."""

    def __init__(self, token_budget: int, max_seqs: int, repeat: int = 1) -> None:
        self.token_budget, self.max_seqs, self.repeat = token_budget, max_seqs, repeat

    def plan(self, view: iq.View) -> iq.Batch:
        left, prompts = self.token_budget, []
        seats = self.max_seqs - len(view.running)
        for id, tokens in zip(view.waiting.id[:seats], view.waiting.prompt_left, strict=False):
            if tokens > left:
                break
            left -= tokens
            prompts.append((id, tokens))
        return iq.Batch(prefill=prompts) if prompts else iq.Batch(decode=view.running.id, repeat=self.repeat)


class Sarathi(iq.Scheduler):
    """`Sarathi` without a watermark, preemption included."""

    def __init__(self, token_budget: int, max_seqs: int, repeat: int = 1) -> None:
        self.token_budget, self.max_seqs, self.repeat = token_budget, max_seqs, repeat

    def plan(self, view: iq.View) -> iq.Batch:
        running, waiting = view.running, view.waiting
        free = float("inf") if view.free_blocks is None else view.free_blocks
        held, size = running.blocks.tolist(), view.block_tokens
        placed: list[int] = []
        victims: list[int] = []
        for row in np.flatnonzero(running.decodes)[: self.token_budget].tolist():
            if row in victims:
                continue
            need = int(running.context[row] == held[row] * size)
            while need > free and row not in victims:
                others = [other for other in range(len(held)) if other not in (*placed, *victims, row)]
                victims.append(others[-1] if others else row)
                free += held[victims[-1]]
            if row not in victims:
                free -= need
                placed.append(row)
        left = self.token_budget - len(placed)
        chunks, taken = [], {}
        for row in np.flatnonzero(~running.decodes).tolist():
            tokens = min(left, int(running.prompt_left[row]))
            if tokens and row not in victims:
                left -= tokens
                chunks.append((running.id[row], tokens))
        seats = 0 if victims else self.max_seqs - len(running)
        for id, owed in zip(waiting.id[:seats].tolist(), waiting.prompt_left.tolist(), strict=False):
            blocks = -(-owed // size)
            if not left or blocks > free:
                break
            chunks.append((id, min(left, owed)))
            taken[id] = owed
            left, free = left - chunks[-1][1], free - blocks
        return iq.Batch(
            decode=running.id[placed],
            prefill=chunks,
            admit=taken,
            preempt=running.id[victims],
            repeat=1 if victims else self.repeat,
        )


def engine(scheduler: iq.Scheduler, kv: iq.KvCache | None = None, first_token: Any = "prefill") -> iq.Engine:
    """One second an iteration."""
    cache = iq.KvCache(tokens=64, block=4) if kv is None else kv
    return iq.Engine(timing=iq.Constant(1.0), scheduler=scheduler, kv=cache, first_token=first_token)


def shown(table: Any) -> dict[str, list[Any]]:
    return {name: getattr(table, name).tolist() for name in COLUMNS}


def assert_same(one: iq.Result, other: iq.Result, *names: str) -> None:
    for name in names:
        assert_frame_equal(getattr(one, name), getattr(other, name), check_exact=True)


@st.composite
def _workloads(draw: st.DrawFn) -> pl.DataFrame:
    rows = draw(st.integers(1, 20))

    def column(values: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(values, min_size=rows, max_size=rows))

    return pl.DataFrame(
        {
            "arrival_s": sorted(column(st.integers(0, 400).map(lambda n: n / 1000))),
            "prompt_tokens": column(st.integers(1, 60)),
            "output_tokens": column(st.integers(1, 40)),
            "patience_s": column(st.one_of(st.none(), st.integers(0, 200).map(lambda n: n / 1000))),
        },
        schema_overrides={"patience_s": pl.Float64},
    )


_TIMING = iq.PiecewiseLinear(base=0.01, per_token=0.0005, knee=8, per_context_token=0.00001)
_BUDGETS, _SEATS = st.integers(4, 64), st.integers(1, 12)
_REPEATS = st.sampled_from([1, 3, 10**6])
_CONVENTIONS = st.sampled_from(["prefill", "decode"])


@given(
    _workloads(), _BUDGETS, _SEATS, st.integers(100, 200), st.sampled_from([1, 4, 16]), _REPEATS, _CONVENTIONS
)
def test_sarathi_written_in_python_is_sarathi(
    frame: pl.DataFrame, budget: int, seats: int, tokens: int, block: int, repeat: int, first_token: Any
) -> None:
    def engine(scheduler: iq.Scheduler) -> iq.Engine:
        cache = iq.KvCache(tokens=tokens, block=block)
        return iq.Engine(timing=_TIMING, scheduler=scheduler, kv=cache, first_token=first_token)

    built_in = engine(iq.Sarathi(token_budget=budget, max_seqs=seats, watermark=0))
    expected = iq.simulate(frame, built_in, stepping=True, iterations=True)
    written = engine(Sarathi(budget, seats, repeat))
    stepped = iq.simulate(frame, written, stepping=True, iterations=True)
    assert_same(stepped, expected, "requests", "itl", "timeline", "iterations")
    # L8: with `repeat` the core advances many iterations at once, and nothing differs.
    stretched = iq.simulate(frame, written, iterations=True)
    assert_same(stretched, expected, "requests", "itl", "timeline")
    assert stretched.iterations["count"].sum() == expected.iterations.height
    assert repeat > 1 or stretched.iterations["count"].max() in (1, None)


@given(_workloads(), _SEATS, _REPEATS)
def test_whole_prompts_written_in_python_are_those_of_vllm_v0(
    frame: pl.DataFrame, seats: int, repeat: int
) -> None:
    def run(scheduler: iq.Scheduler, **options: Any) -> iq.Result:
        cache = iq.KvCache(tokens=10**6)
        return iq.simulate(frame, iq.Engine(timing=_TIMING, scheduler=scheduler, kv=cache), **options)

    expected = run(iq.VllmV0(token_budget=100, max_seqs=seats), stepping=True, iterations=True)
    stepped = run(Fcfs(100, seats, repeat), stepping=True, iterations=True)
    assert_same(stepped, expected, "requests", "itl", "timeline", "iterations")
    assert_same(run(Fcfs(100, seats, repeat)), expected, "requests", "itl", "timeline")


def test_the_view_follows_the_rules_and_hides_the_future() -> None:
    seen: list[tuple[Any, ...]] = []
    batches = [
        iq.Batch(prefill=[(0, 4)]),
        iq.Batch(prefill=[(0, 2), (1, 2)]),
        iq.Batch(prefill=[(1, 2)]),  # 0 could decode and pauses
        iq.Batch(decode=[1], preempt=[0]),
        iq.Batch(prefill=[(0, 4)]),
        iq.Batch(prefill=[(0, 2)]),
        iq.Batch(prefill=[(0, 1)]),
        iq.Batch(decode=[0]),
    ]

    def plan(view: iq.View, asked: int) -> iq.Batch:
        seen.append((view.now_s, view.free_blocks, shown(view.running), shown(view.waiting)))
        assert (view.token_budget, view.max_seqs, view.block_tokens) == (4, 3, 4)
        assert (view.classes, view.drain) == (("chat", "code"), False)
        return batches[asked - 1]

    workload = {
        **work((0.0, 6, 3), (0.5, 4, 2)),
        "class": ["code", "chat"],
        "priority": [7, -1],
        "ttft_slo_s": [2.0, None],
        "itl_slo_s": [None, 0.3],
    }
    result = iq.simulate(workload, engine(Scripted(plan, token_budget=4, max_seqs=3)))

    def table(*rows: tuple[int, int, int, int, int, bool, int]) -> dict[str, Any]:
        """Rows of id, prompt left, context, emitted, blocks, decodes, preemptions."""
        ids = [row[0] for row in rows]
        return {
            "id": ids,
            "since_s": [(0.0, 0.5)[id] for id in ids],
            "prompt_left": [row[1] for row in rows],
            "context": [row[2] for row in rows],
            "emitted": [row[3] for row in rows],
            "blocks": [row[4] for row in rows],
            "decodes": [row[5] for row in rows],
            "class_code": [(1, 0)[id] for id in ids],
            "priority": [(7, -1)[id] for id in ids],
            "ttft_slo_s": pytest.approx([(2.0, np.nan)[id] for id in ids], nan_ok=True, abs=0),
            "itl_slo_s": pytest.approx([(np.nan, 0.3)[id] for id in ids], nan_ok=True, abs=0),
            "preemptions": [row[6] for row in rows],
        }

    assert seen == [
        (0.0, 16, table(), table((0, 6, 0, 0, 0, False, 0))),
        (1.0, 15, table((0, 2, 4, 0, 1, False, 0)), table((1, 4, 0, 0, 0, False, 0))),
        (2.0, 13, table((0, 0, 6, 1, 2, True, 0), (1, 2, 2, 0, 1, False, 0)), table()),
        (3.0, 13, table((0, 0, 6, 1, 2, True, 0), (1, 0, 4, 1, 1, True, 0)), table()),
        # 0 lost its context: its prompt and the token that is out are owed anew; then its second is out.
        (4.0, 16, table(), table((0, 7, 0, 1, 0, False, 1))),
        (5.0, 15, table((0, 3, 4, 1, 1, False, 1)), table()),
        (6.0, 14, table((0, 1, 6, 1, 2, False, 1)), table()),
        (7.0, 14, table((0, 0, 7, 2, 2, True, 1)), table()),
    ]
    assert result.requests["finish_s"].to_list() == [8.0, 4.0]
    assert result.requests["preemptions"].to_list() == [1, 0]


def test_a_view_says_nothing_of_output_lengths() -> None:
    seen: list[iq.View] = []

    def plan(view: iq.View, asked: int) -> iq.Batch:
        seen.append(view)
        return iq.Batch(decode=view.running.id, prefill=[(id, 1) for id in view.waiting.id])

    iq.simulate(work((0.0, 1, 2)), engine(Scripted(plan), iq.KvCache.unlimited()))
    view = seen[-1]
    public = [name for part in (view, view.running) for name in dir(part) if not name.startswith("_")]
    assert set(public) == {
        *COLUMNS,
        *("now_s", "drain", "token_budget", "max_seqs", "free_blocks", "block_tokens", "classes"),
        *("running", "waiting", "queue_length"),
    }
    assert (view.token_budget, view.max_seqs, view.free_blocks, view.classes) == (
        None,
        None,
        None,
        ("default",),
    )
    # A view that is kept stays what it was, and nothing can write to it.
    assert (len(seen[0].waiting), len(seen[0].running), len(view.running)) == (1, 0, 1)
    with pytest.raises(ValueError, match="read-only"):
        view.running.context[0] = 5
    with pytest.raises(AttributeError):
        view.now_s = 3.0  # type: ignore[misc]
    assert view.running.context is view.running.context
    assert (view.running.id.dtype, view.running.context.dtype) == (np.uint32, np.int64)


def test_only_the_first_requests_of_the_queue_are_shown() -> None:
    seen: list[tuple[list[int], int]] = []

    def plan(view: iq.View, asked: int) -> iq.Batch:
        seen.append((view.waiting.id.tolist(), view.queue_length))
        if asked == 2:
            return iq.Batch(preempt=[0])
        return iq.Batch(prefill=[(id, 1) for id in view.waiting.id[:1]])

    # 1 s: 0 is preempted, and the scheduler asked again at once; 0 is back in its place. 1.5 s: 3 comes.
    workload = work((0.0, 1, 2), (0.0, 1, 1), (0.0, 1, 1), (1.5, 2, 1))
    iq.simulate(workload, engine(Scripted(plan, lookahead=2)), horizon_s=4.0)
    assert seen == [([0, 1], 3), ([1, 2], 2), ([0, 1], 3), ([1, 2], 3), ([2, 3], 2), ([3], 1)]


def test_a_batch_is_repeated_until_something_happens() -> None:
    asked_at: list[float] = []

    def plan(view: iq.View, asked: int) -> iq.Batch:
        asked_at.append(view.now_s)
        prompts = [(id, 1) for id in view.waiting.id]
        return iq.Batch(prefill=prompts) if prompts else iq.Batch(decode=view.running.id, repeat=8)

    # Contexts 1 … 20. An arrival at 5.5 asks anew at 6, its end at 7; after that every 8 iterations.
    result = iq.simulate(work((0.0, 1, 20), (5.5, 1, 1)), engine(Scripted(plan)))
    assert asked_at == [0.0, 1.0, 6.0, 7.0, 15.0]
    # Asked at 6, request 0 sat out for the new prompt.
    assert result.requests["finish_s"].to_list() == [21.0, 7.0]


def test_an_idle_scheduler_is_asked_at_the_time_that_it_names() -> None:
    def plan(view: iq.View, asked: int) -> iq.Batch:
        if view.now_s < 3.25:
            return iq.Batch(wake_at_s=3.25)
        return iq.Batch(prefill=[(0, 4)], wake_at_s=0.0)  # of no account: the batch is not empty

    result = iq.simulate(work((0.5, 4, 1)), engine(Scripted(plan)))
    assert result.requests["admitted_s"].to_list() == [3.25]


def test_a_scheduler_that_waits_for_company_is_drained() -> None:
    drained: list[bool] = []

    def plan(view: iq.View, asked: int) -> iq.Batch | None:
        drained.append(view.drain)
        if len(view.waiting) < 2 and not view.drain:
            return None
        return iq.Batch(prefill=np.column_stack((view.waiting.id, view.waiting.prompt_left)))

    result = iq.simulate(work((0.0, 4, 1), (1.0, 4, 1), (2.0, 4, 1)), engine(Scripted(plan)))
    assert result.requests["admitted_s"].to_list() == [1.0, 1.0, 2.0]
    assert drained == [False, False, False, True]


@pytest.mark.parametrize("nothing", [None, iq.Batch(), iq.Batch(decode=[], prefill=(), admit={}, preempt=[])])
def test_a_scheduler_that_never_asks_stalls(nothing: iq.Batch | None) -> None:
    result = iq.simulate(work((0.0, 4, 1)), engine(Scripted(lambda view, asked: nothing)))
    assert result.requests["status"].to_list() == ["unfinished"]
    assert result.findings[0].kind == "stalled"


def test_an_admission_takes_the_blocks_that_it_names() -> None:
    free: list[int | None] = []

    def plan(view: iq.View, asked: int) -> iq.Batch:
        free.append(view.free_blocks)
        if asked == 1:
            return iq.Batch(prefill={0: 4, 1: 4}, admit=[(1, 20)])
        return iq.Batch(decode=view.running.id)

    iq.simulate(work((0.0, 4, 2), (0.0, 4, 2)), engine(Scripted(plan)))
    assert free == [16, 16 - 1 - 5]


@pytest.mark.parametrize(
    "ids", [[0, 1], (0, 1), {0, 1}, iter([0, 1]), range(2), np.arange(2, dtype=np.uint8)]
)
def test_ids_come_in_any_kind_of_row(ids: Any) -> None:
    def plan(view: iq.View, asked: int) -> iq.Batch:
        if asked == 1:
            return iq.Batch(prefill=zip(view.waiting.id, view.waiting.prompt_left, strict=True))
        return iq.Batch(decode=ids)

    result = iq.simulate(work((0.0, 4, 2), (0.0, 4, 2)), engine(Scripted(plan)))
    assert result.requests["finish_s"].to_list() == [2.0, 2.0]


HERE = "a plan names only requests of this replica"
ONCE = "a request decodes once in an iteration"
CHUNK = "a chunk has from 1 token to all tokens that its request has still to compute"
ALONE = "only an admitted request can have a chunk in a batch, and only one"
BUDGET = "an iteration must not load more tokens than the budget"
SEATS = "at most max_seqs requests can be admitted"
BLOCKS = "a plan takes at most the free blocks"
WAITING = "only a waiting request can be admitted"
VICTIM = "only an admitted request can be preempted"
DECODE = "only an admitted request without a chunk in this batch can decode"
IDS = "decode and preempt list requests by id, an integer"
PAIRS = "prefill and admit list pairs (id, tokens) of integers"
REPEAT = "repeat is a positive integer"
WAKE = "wake_at_s is a time in seconds, after now_s if the batch is empty"
RETURNS = "plan(view) returns an iq.Batch or None"


@pytest.mark.parametrize(
    ("batch", "rule", "what"),
    [
        (iq.Batch(decode=[9]), HERE, "request 9"),
        (iq.Batch(decode=[-1]), HERE, "request -1"),
        (iq.Batch(decode=[2**70]), HERE, f"request {2**63 - 1}"),
        (iq.Batch(decode=[4]), HERE, "request 4"),  # it comes later
        (iq.Batch(prefill=[(9, 1)]), HERE, "request 9"),
        (iq.Batch(preempt=[9]), HERE, "request 9"),
        (iq.Batch(admit={9: 1}), HERE, "request 9"),
        (iq.Batch(decode=[0, 0]), ONCE, "request 0"),
        (iq.Batch(decode=[2]), DECODE, "request 2"),
        (iq.Batch(decode=[1]), "no decode before the prompt is complete", "request 1"),
        (iq.Batch(decode=[0], preempt=[0]), DECODE, "request 0"),
        (iq.Batch(preempt=[2]), VICTIM, "request 2"),
        (iq.Batch(preempt=[0, 0]), VICTIM, "request 0"),
        (iq.Batch(prefill=[(1, 0)]), CHUNK, "request 1"),
        (iq.Batch(prefill=[(1, -1)]), CHUNK, "request 1"),
        (iq.Batch(prefill=[(1, 13)]), CHUNK, "request 1"),
        (iq.Batch(prefill=[(2, 2**70)]), CHUNK, "request 2"),
        (iq.Batch(prefill=[(0, 1)]), CHUNK, "request 0"),  # its next row is a decode
        (iq.Batch(decode=[0], prefill=[(0, 1)]), CHUNK, "request 0"),
        (iq.Batch(prefill=[(1, 2), (1, 2)]), ALONE, "request 1"),
        (iq.Batch(decode=[0], prefill=[(1, 12), (2, 4)]), BUDGET, "request 2"),
        (iq.Batch(prefill=[(2, 1), (3, 1)]), SEATS, "request 3"),
        (iq.Batch(prefill=[(2, 1)], admit={2: 61}), BLOCKS, "request 2"),
        (iq.Batch(prefill=[(2, 1)], admit={2: 2**62}), BLOCKS, "request 2"),
        (iq.Batch(prefill=[(2, 1)], admit=[(2, -1)]), PAIRS, "admit: (2, -1)"),
        (iq.Batch(prefill=[(2, 1)], admit=[(2, 1), (2, 4)]), WAITING, "request 2"),
        (iq.Batch(prefill=[(1, 1)], admit={1: 1}), WAITING, "request 1"),
        (
            iq.Batch(admit={2: 1}),
            "a request is admitted by the batch that computes its first chunk",
            "request 2",
        ),
        (iq.Batch(decode=True), IDS, "decode: True"),
        (iq.Batch(decode=[True]), IDS, "decode: True"),
        (iq.Batch(decode=np.array([True, False])), IDS, "decode: True"),
        (iq.Batch(decode=[0.0]), IDS, "decode: 0.0"),
        (iq.Batch(decode=np.array([0.0])), IDS, "decode: 0.0"),
        (iq.Batch(decode=["0"]), IDS, "decode: '0'"),
        (iq.Batch(decode=[[0]]), IDS, "decode: [0]"),
        (iq.Batch(preempt=3), IDS, "preempt: 3"),
        (iq.Batch(prefill=[1, 2]), PAIRS, "prefill: 1"),
        (iq.Batch(prefill=[(1, 2, 3)]), PAIRS, "prefill: (1, 2, 3)"),
        (iq.Batch(prefill=[(1,)]), PAIRS, "prefill: (1,)"),
        (iq.Batch(prefill=[(1, 2.0)]), PAIRS, "prefill: (1, 2.0)"),
        (iq.Batch(prefill=[(1, None)]), PAIRS, "prefill: (1, None)"),
        (iq.Batch(prefill=np.zeros((1, 3), dtype=int)), PAIRS, "prefill: [0, 0, 0]"),
        (iq.Batch(prefill=5), PAIRS, "prefill: 5"),
        (iq.Batch(decode=[0], repeat=0), REPEAT, "repeat=0"),
        (iq.Batch(decode=[0], repeat=-(2**70)), REPEAT, "repeat=-1180591620717411303424"),
        (iq.Batch(decode=[0], repeat=1.5), REPEAT, "repeat=1.5"),
        (iq.Batch(decode=[0], repeat=True), REPEAT, "repeat=True"),
        (iq.Batch(wake_at_s=1.0), WAKE, "wake_at_s=1.0"),
        (iq.Batch(wake_at_s=float("inf")), WAKE, "wake_at_s=inf"),
        (iq.Batch(decode=[0], wake_at_s=-1), WAKE, "wake_at_s=-1"),
        (iq.Batch(decode=[0], wake_at_s="3"), WAKE, "wake_at_s='3'"),
        ([0], RETURNS, "test_python_policy.Scripted returned [0]"),
        ("x" * 200, RETURNS, f"test_python_policy.Scripted returned '{'x' * 78}…"),
    ],
    ids=str,
)
def test_a_broken_rule_is_named(batch: Any, rule: str, what: str) -> None:
    # At 1 s request 0 can decode, 1 owes 12 tokens of 16, 2 and 3 wait, 4 is not here yet.
    workload = work((0.0, 4, 3), (0.0, 16, 3), (0.0, 20, 3), (0.0, 4, 3), (9.0, 4, 3))

    def plan(view: iq.View, asked: int) -> Any:
        return iq.Batch(prefill=[(0, 4), (1, 4)]) if asked == 1 else batch

    scheduler = Scripted(plan, token_budget=16, max_seqs=3)
    with pytest.raises(iq.SimulationError) as caught:
        iq.simulate(workload, engine(scheduler))
    name = what.replace("test_python_policy.", f"{__name__}.")
    assert str(caught.value) == f"the scheduler violated a rule at 1 s: {rule} ({name})"


def test_decodes_that_lack_a_block_are_named() -> None:
    # Two prompts of 14 tokens fill a cache of 32 in blocks of 4; the third decodes need a block each.
    def plan(view: iq.View, asked: int) -> iq.Batch:
        return iq.Batch(decode=view.running.id, prefill=[(id, 14) for id in view.waiting.id])

    scheduler, cache = Scripted(plan), iq.KvCache(tokens=32, block=4)
    with pytest.raises(iq.SimulationError, match=rf"at 3 s: {BLOCKS} \(request 0\)"):
        iq.simulate(work((0.0, 14, 9), (0.0, 14, 9)), engine(scheduler, cache))


class _OwnError(Exception):
    pass


@pytest.mark.parametrize(
    "exception", [_OwnError("mine"), KeyboardInterrupt(), ValueError("x"), SystemExit(3)]
)
def test_an_exception_of_a_plan_passes_untouched(exception: BaseException) -> None:
    def plan(view: iq.View, asked: int) -> iq.Batch:
        if asked == 3:
            raise exception
        return iq.Batch(decode=view.running.id, prefill=[(id, 4) for id in view.waiting.id])

    with pytest.raises(type(exception)) as caught:
        iq.simulate(work((0.0, 4, 9)), engine(Scripted(plan)))
    assert caught.value is exception
    assert caught.value.__cause__ is None and caught.value.__context__ is None
    functions = [frame.name for frame in traceback.extract_tb(exception.__traceback__)]
    assert functions[-2:] == ["plan", "plan"]
    assert "simulate" in functions


def test_an_exception_of_what_a_plan_returns_passes_untouched() -> None:
    exception = _OwnError("halfway")

    def ids() -> Iterator[int]:
        yield 0
        raise exception

    with pytest.raises(_OwnError) as caught:
        iq.simulate(work((0.0, 4, 9)), engine(Scripted(lambda view, asked: iq.Batch(decode=ids()))))
    assert caught.value is exception


def test_ctrl_c_stops_a_run_inside_a_plan() -> None:
    def plan(view: iq.View, asked: int) -> iq.Batch:
        if asked == 50:
            signal.raise_signal(signal.SIGINT)
        return iq.Batch(decode=view.running.id, prefill=[(id, 4) for id in view.waiting.id])

    scheduler = Scripted(plan)
    # A shell that runs the tests in the background makes them ignore Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            iq.simulate(work((0.0, 4, 10**6)), engine(scheduler, iq.KvCache.unlimited()))
    finally:
        signal.signal(signal.SIGINT, before)
    assert scheduler.asked == 50


def test_an_error_of_progress_passes_untouched_beside_a_plan() -> None:
    exception = _OwnError("enough")

    def stop(done: int, total: int) -> None:
        raise exception

    def plan(view: iq.View, asked: int) -> iq.Batch:
        return iq.Batch(decode=view.running.id, prefill=[(id, 4) for id in view.waiting.id])

    with pytest.raises(_OwnError) as caught:
        iq.simulate(work((0.0, 4, 10**7)), engine(Scripted(plan), iq.KvCache.unlimited()), progress=stop)
    assert caught.value is exception


def test_a_run_leaves_nothing_behind() -> None:
    class Marked(Scripted):
        pass

    def run() -> None:
        scheduler = Marked(lambda view, asked: iq.Batch(prefill=[(0, 4)]))
        iq.simulate(work((0.0, 4, 1)), engine(scheduler))

    run()
    gc.collect()
    assert not [one for one in gc.get_objects() if type(one) is Marked]


def test_the_record_names_the_class_and_cannot_be_read_back() -> None:
    scheduler = Scripted(lambda view, asked: iq.Batch(prefill=[(0, 4)]), token_budget=np.int64(16))
    described = engine(scheduler).to_json()
    assert described["scheduler"] == {
        "kind": "Python",
        "name": f"{__name__}.Scripted",
        "token_budget": 16,
        "max_seqs": None,
        "lookahead": 256,
    }
    result = iq.simulate(work((0.0, 4, 1)), engine(scheduler))
    assert json.loads(result.scenario)["engine"] == described
    with pytest.raises(iq.ConfigError) as caught:
        iq.Engine.from_json(described)
    text = "a scheduler written in Python cannot be read back from a description; build the engine in Python"
    assert str(caught.value) == f"engine.scheduler: {text}"


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"token_budget": 0}, "scheduler.token_budget: must be from 1 to 2^40, got 0"),
        ({"max_seqs": 2**41}, f"scheduler.max_seqs: must be from 1 to 2^40, got {2**41}"),
        ({"lookahead": 0}, "scheduler.lookahead: must be from 1 to 2^40, got 0"),
        ({"token_budget": -1}, "scheduler.token_budget: must be a non-negative integer or None, got -1"),
        ({"max_seqs": True}, "scheduler.max_seqs: must be a non-negative integer or None, got True"),
        ({"lookahead": None}, "scheduler.lookahead: must be a non-negative integer, got None"),
    ],
)
def test_wrong_attributes_are_named(attributes: dict[str, Any], message: str) -> None:
    scheduler = Scripted(lambda view, asked: None, **attributes)
    with pytest.raises(iq.ConfigError) as caught:
        engine(scheduler)
    assert str(caught.value) == message
    # An attribute that is changed later is judged when the run begins.
    scheduler = Scripted(lambda view, asked: None)
    made = engine(scheduler)
    for name, value in attributes.items():
        setattr(scheduler, name, value)
    with pytest.raises(iq.ConfigError, match="scheduler"):
        iq.simulate(work((0.0, 4, 1)), made)


def test_other_parts_are_judged_beside_a_scheduler_in_python() -> None:
    scheduler = Scripted(lambda view, asked: None)
    with pytest.raises(iq.ConfigError, match="first_token"):
        engine(scheduler, first_token="now")
    with pytest.raises(iq.ConfigError, match="kv"):
        iq.Engine(timing=iq.Constant(1.0), scheduler=scheduler, kv=3)  # type: ignore[arg-type]


def test_a_class_without_a_plan_is_refused() -> None:
    class Nothing(iq.Scheduler):
        pass

    class Derived(iq.Sarathi):
        pass

    for kind in (Nothing, Derived, iq.Scheduler):
        text = f"scheduler: {kind.__name__} has no plan(view) and is not a built-in policy"
        with pytest.raises(iq.ConfigError) as caught:
            engine(kind())
        assert str(caught.value) == text
    with pytest.raises(iq.ConfigError, match=r"scheduler: must be ClassPriority\(…\) or"):
        engine(Scripted)  # type: ignore[arg-type]


def test_a_class_may_be_derived_from_a_policy() -> None:
    class Polite(iq.Sarathi):
        def plan(self, view: iq.View) -> iq.Batch:
            assert view.token_budget == self.token_budget == 64
            return iq.Batch(prefill=[(view.waiting.id[0], view.waiting.prompt_left[0])])

    scheduler = Polite(token_budget=64)
    assert scheduler.to_json()["name"].endswith("Polite")
    assert iq.simulate(work((0.0, 4, 1), (0.0, 4, 1)), engine(scheduler)).requests["finish_s"].to_list() == [
        1,
        2,
    ]


def test_a_batch_shows_what_it_holds() -> None:
    batch = iq.Batch(decode=[1, 2], wake_at_s=3.0)
    assert (batch.decode, batch.prefill, batch.admit, batch.preempt, batch.repeat) == (
        [1, 2],
        None,
        None,
        None,
        1,
    )
    assert repr(batch) == "Batch(decode=[1, 2], repeat=1, wake_at_s=3.0)"
    with pytest.raises(AttributeError):
        batch.decode = []  # type: ignore[misc]
    with pytest.raises(TypeError):
        iq.Batch([1])  # type: ignore[misc]


class Recipe(iq.Scheduler):
    """The guide's: what waits computes what it owes, what runs decodes."""

    def plan(self, view: iq.View) -> iq.Batch:
        running, waiting = view.running, view.waiting
        return iq.Batch(decode=running.id, prefill=zip(waiting.id, waiting.prompt_left, strict=True))


@pytest.mark.parametrize(("first_token", "finish_s"), [("prefill", [3, 4]), ("decode", [4, 5])])
def test_a_request_that_was_handed_off_owes_a_token(first_token: Any, finish_s: list[int]) -> None:
    """R7: with "decode" it owes the decode that makes its first token; its prompt's iteration lasts 1 s.

    Outputs of 3 and 4 tokens: with "prefill" 2 and 3 decodes of a second each follow, with "decode" 3 and 4.
    """

    def engine(scheduler: iq.Scheduler) -> iq.Engine:
        kv = iq.KvCache(tokens=100, block=1)
        return iq.Engine(timing=iq.Constant(1.0), scheduler=scheduler, kv=kv, first_token=first_token)

    link = iq.Link(latency_s=0, bytes_per_s=1e9, bytes_per_token=0)
    system = iq.Disaggregated(prefill=(engine(iq.Sarathi()), 1), decode=(engine(Recipe()), 1), link=link)
    result = iq.simulate(work((0, 5, 3), (0, 7, 4)), system)
    assert result.requests["finish_s"].to_list() == finish_s
