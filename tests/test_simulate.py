"""`simulate`: what its frames hold, every option, and what it refuses.

Runs that are worked out by hand are in `test_reference.py` and `policies/`, for the reference and the core.
"""

import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
import pytest

import inferq as iq

from .arriving import arriving
from .slots import engine, rows

ONE: dict[str, Any] = {"arrival_s": [0.0], "prompt_tokens": [10], "output_tokens": [3]}


def test_one_request_by_hand() -> None:
    # prompt in [0, 1) emits the first token at 1, two decodes end at 2 and 3
    result = iq.simulate(ONE, engine())
    assert result.requests.row(0, named=True) == {
        "id": 0,
        "class": "default",
        "replica": 0,
        "status": "finished",
        "measured": True,
        "arrival_s": 0.0,
        "admitted_s": 0.0,
        "first_token_s": 1.0,
        "finish_s": 3.0,
        "left_s": 3.0,
        "queue_s": 0.0,
        "ttft_s": 1.0,
        "tpot_s": 1.0,
        "max_itl_s": 1.0,
        "e2e_s": 3.0,
        "prompt_tokens": 10,
        "output_tokens": 3,
        "preemptions": 0,
        "cached_tokens": 0,
    }
    assert result.findings == []


def test_a_request_of_one_token_has_no_gaps() -> None:
    result = iq.simulate({**ONE, "output_tokens": [1]}, engine())
    assert rows(result, "finish_s", "tpot_s", "max_itl_s") == [(1.0, None, None)]
    assert result.itl.height == 0


def test_a_request_that_can_never_fit_is_rejected_and_found() -> None:
    two = {"arrival_s": [0.0, 2.0], "prompt_tokens": [10, 100], "output_tokens": [1, 1]}
    result = iq.simulate(two, engine(kv=iq.KvCache(tokens=64)))
    assert rows(result, "status", "left_s", "admitted_s", "finish_s") == [
        ("finished", 1.0, 0.0, 1.0),
        ("rejected", 2.0, None, None),
    ]
    assert any("rejected" in finding for finding in result.findings)


FOUR: dict[str, Any] = {
    "arrival_s": [0.0, 0.1, 0.2, 0.3],
    "prompt_tokens": [10, 20, 30, 20],
    "output_tokens": [1, 5, 1, 1],
}


@pytest.mark.parametrize(
    ("order", "served"),
    [
        ("fcfs", [0, 1, 2, 3]),
        ("spf", [0, 1, 3, 2]),
        ("lpf", [0, 2, 1, 3]),
        ("srf", [0, 3, 1, 2]),  # 25, 31 and 21 tokens in all
        (iq.ByKey(lambda request: -request.arrival_s), [0, 3, 2, 1]),
        (iq.ByKey(lambda request: request.prompt_tokens < 30), [0, 2, 1, 3]),
        (iq.ByKey(lambda request: 7), [0, 1, 2, 3]),
    ],
)
@pytest.mark.parametrize("kind", [iq.Sarathi, iq.research.Slai])
def test_the_queue_is_served_in_its_order(kind: Any, order: Any, served: list[int]) -> None:
    # the first takes the only seat before the others are there
    one_seat = kind(order=order, **{"max_seqs" if kind is iq.Sarathi else "max_active": 1})
    of_one = iq.Engine(timing=iq.Constant(1.0), scheduler=one_seat, kv=iq.KvCache.unlimited())
    assert iq.simulate(FOUR, of_one).requests.sort("admitted_s")["id"].to_list() == served


def test_a_key_function_is_asked_once_for_each_request_in_order() -> None:
    asked: list[Any] = []

    def key(request: Any) -> int:
        asked.append(request)
        return 0

    told = {
        "class": ["chat", "code", "chat", "code"],
        "priority": [3, -1, 0, 2],
        "itl_slo_s": [0.1, None, 0.5, None],
        "ttft_slo_s": [None, 1.0, None, 2.0],
        "session_id": ["a", "a", "b", None],
    }
    result = iq.simulate({**FOUR, **told}, engine(order=iq.ByKey(key)))
    assert result.requests["status"].to_list() == ["finished"] * 4
    assert [request.id for request in asked] == [0, 1, 2, 3]
    names = ("arrival_s", "prompt_tokens", "class_name", "priority", "itl_slo_s", "ttft_slo_s", "session_id")
    assert [tuple(getattr(request, name) for name in names) for request in asked] == [
        (0.0, 10, "chat", 3, 0.1, None, "a"),
        (0.1, 20, "code", -1, None, 1.0, "a"),
        (0.2, 30, "chat", 0, 0.5, None, "b"),
        (0.3, 20, "code", 2, None, 2.0, None),
    ]
    assert not hasattr(asked[0], "output_tokens")
    with pytest.raises(AttributeError):
        asked[0].priority = 1


def test_a_key_function_sees_none_where_the_workload_says_nothing() -> None:
    asked: list[Any] = []
    iq.simulate(ONE, engine(order=iq.ByKey(lambda request: asked.append(request) or 0)))
    absent = ("class_name", "priority", "itl_slo_s", "ttft_slo_s", "session_id")
    assert [getattr(asked[0], name) for name in absent] == [None] * 5


def test_a_key_function_inside_another_scheduler_is_asked() -> None:
    latest = iq.Sarathi(max_seqs=1, order=iq.ByKey(lambda request: -request.id))
    both = iq.ClassPriority(order=["default"], inner=latest)
    of_one = iq.Engine(timing=iq.Constant(1.0), scheduler=both, kv=iq.KvCache.unlimited())
    assert iq.simulate(FOUR, of_one).requests.sort("admitted_s")["id"].to_list() == [0, 3, 2, 1]


def test_what_a_key_function_raises_passes_untouched() -> None:
    class Mine(Exception):
        pass

    mine = Mine("here")

    def key(request: Any) -> int:
        if request.id == 2:
            raise mine
        return 0

    with pytest.raises(Mine) as caught:
        iq.simulate(FOUR, engine(order=iq.ByKey(key)))
    assert caught.value is mine


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, None, "1", 1j, [1], 10**400])
def test_a_key_that_is_no_finite_number_names_its_request(bad: Any) -> None:
    key = iq.ByKey(lambda request: bad if request.id == 2 else 0)
    with pytest.raises(iq.ConfigError, match=r"^order: .*request 2 .*finite number"):
        iq.simulate(FOUR, engine(order=key))


@pytest.mark.parametrize("number", [np.float32(0.5), np.int64(3), True, Fraction(1, 3), 2**62])
def test_any_finite_number_is_a_key(number: Any) -> None:
    result = iq.simulate(ONE, engine(order=iq.ByKey(lambda request: number)))
    assert result.requests["status"].to_list() == ["finished"]


@pytest.mark.parametrize(
    ("horizon_s", "left"),
    [
        (0.0, (None, None, "unfinished")),
        (0.999, (None, None, "unfinished")),
        (1.0, (1.0, None, "unfinished")),
        (2.999, (1.0, None, "unfinished")),
        (3.0, (1.0, 3.0, "finished")),
        (None, (1.0, 3.0, "finished")),
    ],
)
def test_the_horizon_is_inclusive(horizon_s: float | None, left: tuple[Any, ...]) -> None:
    result = iq.simulate(ONE, engine(), horizon_s=horizon_s)
    assert rows(result, "first_token_s", "finish_s", "status") == [left]


def test_requests_that_arrive_after_the_horizon_are_no_rows() -> None:
    three = {"arrival_s": [0.0, 5.0, 5.1], "prompt_tokens": [1] * 3, "output_tokens": [1] * 3}
    assert iq.simulate(three, engine(), horizon_s=5.0).requests["id"].to_list() == [0, 1]


TEN = {"arrival_s": [float(i) for i in range(10)], "prompt_tokens": [5] * 10, "output_tokens": [2] * 10}


@pytest.mark.parametrize(
    ("warmup", "cooldown", "measured"),
    [
        (0, 0, range(10)),
        (3, 0, range(3, 10)),
        (0, 3, range(7)),
        (3, 3, range(3, 7)),
        ("3s", "2s", range(3, 8)),
        ("2.5 s", "1.5s", range(3, 8)),
        ("0s", "0s", range(10)),
        (10, 0, []),
        (7, 7, []),
        (100, 100, []),
    ],
)
def test_warm_up_and_cool_down_are_served_but_not_measured(warmup: Any, cooldown: Any, measured: Any) -> None:
    result = iq.simulate(TEN, engine(), warmup=warmup, cooldown=cooldown)
    requests = result.requests
    assert requests.filter("measured")["id"].to_list() == list(measured)
    assert set(requests["status"]) == {"finished"}
    assert result.itl["count"].sum() == len(measured)  # one gap for each request
    assert result.summary()["completed"].item() == len(measured)


def test_the_timeline_is_sampled_at_the_period_asked_for() -> None:
    times = iq.simulate(TEN, engine(), timeline_s=2.0).timeline["time_s"].to_list()
    assert len(times) > 3
    assert all(b - a == 2.0 for a, b in pairwise(times[:-1]))


def test_the_seed_draws_the_workload_and_nothing_else() -> None:
    workload = arriving(50, 2, iq.dist.Uniform(1, 99), iq.dist.Geometric(5))
    one, same, other = (iq.simulate(workload, engine(), seed=seed).requests for seed in (1, 1, 2))
    assert one.equals(same)
    assert not one.equals(other)
    assert iq.simulate(workload.draw(1), engine(), seed=9).requests.equals(one)


def test_a_workload_may_be_given_as_what_makes_one() -> None:
    expected = iq.simulate(iq.Workload(ONE), engine()).requests
    assert iq.simulate(ONE, engine()).requests.equals(expected)
    assert iq.simulate(pl.DataFrame(ONE), engine()).requests.equals(expected)


def test_classes_keep_their_names() -> None:
    two = {
        "arrival_s": [0.0, 0.1],
        "prompt_tokens": [1, 1],
        "output_tokens": [2, 3],
        "class": ["code", "chat"],
    }
    result = iq.simulate(two, engine())
    assert result.requests["class"].to_list() == ["code", "chat"]
    assert dict(result.itl.group_by("class").agg(pl.col("count").sum()).rows()) == {"code": 1, "chat": 2}


def test_batches_bring_the_iterations_that_they_refer_to() -> None:
    result = iq.simulate(ONE, engine(), batches=True)
    assert result.batches["iteration"].max() == result.iterations.height - 1
    assert iq.simulate(ONE, engine(), iterations=True).iterations.equals(result.iterations)


BAD_OPTIONS = [
    *[("seed", bad) for bad in [-1, 2**64, 1.0, "1", None, True]],
    *[("horizon_s", bad) for bad in [-1.0, math.nan, math.inf, -math.inf, "10", True]],
    *[("timeline_s", bad) for bad in [0, -1.0, math.nan, math.inf, "1s", False]],
    *[
        (name, bad)
        for name in ("warmup", "cooldown")
        for bad in [
            -1,
            1.0,
            2**40,
            "30",
            "s",
            "-3s",
            "3 min",
            "1e3s",
            "nans",
            "9" * 400 + "s",
            "",
            None,
            True,
            [1],
        ]
    ],
    *[(name, bad) for name in ("iterations", "batches", "stepping") for bad in [1, 0, "yes", None]],
    *[("progress", bad) for bad in [1, "yes", []]],
]


@pytest.mark.parametrize(("option", "bad"), BAD_OPTIONS)
def test_a_wrong_option_is_named(option: str, bad: Any) -> None:
    options: dict[str, Any] = {"iterations": True, option: bad}
    with pytest.raises(iq.ConfigError, match=rf"^{option}: "):
        iq.simulate(ONE, engine(), **options)


@pytest.mark.parametrize("wrong", [None, "engine", iq.Sarathi(), iq.Engine, engine().to_json()])
def test_what_is_no_engine_is_an_error(wrong: Any) -> None:
    with pytest.raises(iq.ConfigError, match=r"^system: "):
        iq.simulate(ONE, wrong)


def test_options_are_keywords_and_unknown_ones_are_errors() -> None:
    with pytest.raises(TypeError):
        iq.simulate(ONE, engine(), 1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="sed"):
        iq.simulate(ONE, engine(), sed=1)  # type: ignore[call-arg]


@pytest.mark.parametrize("missing", ["arrival_s", "output_tokens"])
def test_a_workload_that_lacks_a_column_is_an_error_that_names_it(missing: str) -> None:
    with pytest.raises(iq.TraceError, match=missing):
        iq.simulate({name: values for name, values in ONE.items() if name != missing}, engine())


@pytest.mark.parametrize("nothing", [None, 5, "trace.csv"])
def test_what_is_no_workload_is_an_error(nothing: Any) -> None:
    with pytest.raises(iq.ConfigError, match="workload"):
        iq.simulate(nothing, engine())


# Tens of millions of iterations, one by one: about a second, in no memory.
LONG: dict[str, Any] = {"arrival_s": [0.0], "prompt_tokens": [1], "output_tokens": [30_000_000]}


def test_progress_tells_a_callable_how_far_the_run_is() -> None:
    seen: list[tuple[int, int]] = []
    workload = arriving(20_000, 1, 5, iq.dist.Geometric(200))
    result = iq.simulate(
        workload, engine(), stepping=True, progress=lambda done, total: seen.append((done, total))
    )
    assert seen == sorted(seen)
    assert all(0 <= done <= total == 20_000 for done, total in seen)
    assert result.requests.equals(iq.simulate(workload, engine()).requests)


def test_an_exception_of_a_progress_callable_passes_untouched() -> None:
    class Enough(Exception):
        pass

    def stop(done: int, total: int) -> None:
        raise Enough

    with pytest.raises(Enough):
        iq.simulate(LONG, engine(), stepping=True, progress=stop)


RUN_LONG = f"""
import inferq as iq
engine = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.Sarathi(), kv=iq.KvCache.unlimited())
iq.simulate({LONG!r}, engine, stepping=True, progress=True)
"""


def test_the_progress_bar_is_silent_in_a_pipe() -> None:
    run = subprocess.run([sys.executable, "-c", RUN_LONG], capture_output=True, check=True, timeout=60)
    assert (run.stdout, run.stderr) == (b"", b"")


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_the_progress_bar_shows_on_a_terminal() -> None:
    import pty

    parent, child = pty.openpty()
    run = subprocess.Popen([sys.executable, "-c", RUN_LONG], stderr=child, stdout=subprocess.DEVNULL)
    os.close(child)
    shown = b""
    while True:
        try:
            part = os.read(parent, 4096)
        except OSError:  # the other side is closed
            break
        if not part:
            break
        shown += part
    os.close(parent)
    assert run.wait(60) == 0
    assert b"requests" in shown


RUN_FOR_EVER = f"""
import inferq as iq
engine = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.Sarathi(), kv=iq.KvCache.unlimited())
workload = iq.Workload({LONG!r}).with_outputs(2_000_000_000)
told = []
def tell(*_):
    if not told:
        told.append(print("running", flush=True))
try:
    iq.simulate(workload, engine, stepping=True, progress=tell)
except KeyboardInterrupt:
    print("stopped", flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGINT")
def test_ctrl_c_stops_a_run_within_a_tenth_of_a_second() -> None:
    took_s = []
    for _ in range(3):  # the best of three: the machine may be busy with something else
        with subprocess.Popen([sys.executable, "-c", RUN_FOR_EVER], stdout=subprocess.PIPE, text=True) as run:
            assert run.stdout is not None
            assert run.stdout.readline() == "running\n"
            time.sleep(0.3)
            sent = time.monotonic()
            run.send_signal(signal.SIGINT)
            assert run.stdout.readline() == "stopped\n"
            took_s.append(time.monotonic() - sent)
    assert min(took_s) < 0.1


def test_the_timeline_has_the_tokens_in_the_system() -> None:
    """10 prompt tokens, 5 an iteration of a second, and 3 output tokens, the first with the prompt."""
    engine = iq.Engine(
        timing=iq.Constant(1.0), scheduler=iq.Sarathi(token_budget=5), kv=iq.KvCache.unlimited()
    )
    timeline = iq.simulate(
        {"arrival_s": [0.0], "prompt_tokens": [10], "output_tokens": [3]}, engine, timeline_s=0.5
    ).timeline
    assert timeline["time_s"].to_list() == [0.5, 1, 1.5, 2, 2.5, 3, 3.5]
    assert timeline["tokens_in_system"].to_list() == [13, 8, 8, 2, 2, 1, 1]


@pytest.mark.parametrize("horizon_s", [None, 10.0, 29.0, 30.0, 100.0])
def test_a_horizon_does_not_keep_requests_waiting_that_no_arrival_can_join(horizon_s: float | None):
    """One request at a time, two for a batch: each runs alone, as no other can come before it has left."""
    engine = iq.Engine(
        timing=iq.Constant(1.0), scheduler=iq.research.Wait(thresholds=2), kv=iq.KvCache.unlimited()
    )
    rows = {"arrival_s": [0.0, 1.0, 2.0, 30.0], "prompt_tokens": [5] * 4, "output_tokens": [2] * 4}
    result = iq.simulate(rows, engine, max_in_flight=1, horizon_s=horizon_s)
    assert result.requests["finish_s"].to_list()[:3] == [2.0, 4.0, 6.0]
    assert result.drained.to_list()[:3] == [0, 1, 2]


@pytest.mark.parametrize(
    ("output", "limit", "iterations"),
    [(3, 3, 3), (3, 1000, 3), (3, None, 3), (4, 4, 3), (4, 1000, 3), (2, 1000, 3), (2, 2, 2)],
)
def test_a_request_that_reaches_max_model_len_has_no_row_in_vain(
    output: int, limit: int | None, iterations: int
):
    """Prompt 100, limit 103: a third token is the last. A second one may end by itself: a row is lost."""
    engine = iq.Engine(
        timing=iq.Constant(0.01),
        scheduler=iq.VllmV1(pause_s=0),
        kv=iq.KvCache(tokens=10**4),
        max_model_len=103,
    )
    rows = {"arrival_s": [0.0], "prompt_tokens": [100], "output_tokens": [output]}
    rows |= {} if limit is None else {"max_output_tokens": [limit]}
    assert iq.simulate(rows, engine).totals["iterations"] == iterations


@pytest.mark.parametrize("others", [[], [iq.VllmV1()], [iq.Sglang()], [iq.Sarathi()]])
@pytest.mark.parametrize("limit", [300, 30])
def test_sglang_reserves_what_clients_allow_whatever_runs_beside_it(others: list[iq.Scheduler], limit: int):
    """448 tokens, prompts of 50: outputs of at most 300 fit one at a time, of at most 30 all at once."""
    one = iq.Engine(timing=iq.Constant(0.01), scheduler=iq.Sglang(overlap=False), kv=iq.KvCache(tokens=448))
    engines = [one, *(replace(one, scheduler=other) for other in others)]
    rows = [
        {"arrival_s": 0.0, "prompt_tokens": 50, "output_tokens": 30, "max_output_tokens": limit}
        for _ in range(4 * len(engines))
    ]
    result = iq.simulate(rows, iq.Cluster(engines, router=iq.RoundRobin())).requests
    finish_s = result.filter(replica=0)["finish_s"].to_list()
    assert finish_s == ([0.3, 0.6, 0.9, 1.2] if limit == 300 else [0.3] * 4)


@pytest.mark.parametrize("overlap", [True, False])
def test_sglang_reserves_no_more_than_the_maximum_length_leaves(overlap: bool):
    """512 tokens, four prompts of 50. Outputs of 300 fit one at a time, of 80 − 50 = 30 all at once."""
    one = iq.Engine(timing=iq.Constant(0.01), scheduler=iq.Sglang(overlap=overlap), kv=iq.KvCache(tokens=512))
    rows = {name: [each] * 4 for name, each in (("arrival_s", 0.0), ("prompt_tokens", 50))}
    rows |= {"output_tokens": [20] * 4, "max_output_tokens": [300] * 4}
    admitted = [
        iq.simulate(rows, replace(one, max_model_len=most)).requests["admitted_s"] for most in (None, 80)
    ]
    assert admitted[0].n_unique() > 1 and admitted[1].to_list() == [0.0] * 4


def test_nothing_is_woken_for_a_request_that_has_given_up():
    """The engine sleeps after an empty plan; what came meanwhile leaves before it wakes."""
    asked = {"prompt_tokens": [10, 5], "output_tokens": [2, 3], "max_output_tokens": [2, 3]}
    workload = iq.Workload({**asked, "arrival_s": [0.0, 0.0205], "patience_s": [None, 0.00005]})
    engine = iq.Engine(timing=iq.Constant(0.01), scheduler=iq.VllmV1(), kv=iq.KvCache.unlimited())
    assert iq.simulate(workload, engine).requests["status"].to_list() == ["finished", "abandoned"]
