"""Is a sweep the same whatever runs its points, also when they die?"""

import multiprocessing
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import inferq as iq
from inferq.experiments.plans.fleet_plan import FleetPlan
from inferq.experiments.sweeps import executors

from .swept import GRID, chat, content

ON_POSIX = pytest.mark.skipif(os.name == "nt", reason="no SIGKILL there")


@pytest.fixture
def processes() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


class Backwards(Executor):
    """Runs what it has been given in an order of its own, and notes how much that ever was."""

    def __init__(self, workers: int) -> None:
        self._max_workers = workers
        self._open: list[tuple[Future, Callable]] = []
        self.most = 0

    def submit(self, fn, /, *args, **kwargs):
        future: Future = Future()
        self._open.append((future, partial(fn, *args, **kwargs)))
        self.most = max(self.most, len(self._open))
        threading.Timer(0.05, self._run_one).start()
        return future

    def _run_one(self) -> None:
        future, call = self._open.pop()
        if future.set_running_or_notify_cancel():
            future.set_result(call())


def test_any_number_of_threads_gives_the_same_bytes():
    expected = content(iq.sweep(chat, seeds=range(3), **GRID))
    for workers in (1, 2, 5):
        with ThreadPoolExecutor(workers) as pool:
            assert content(iq.sweep(chat, seeds=range(3), executor=pool, **GRID)) == expected
            assert pool.submit(int, "3").result() == 3  # it is left open


def test_any_order_gives_the_same_bytes_and_no_more_is_handed_out_than_keeps_workers_busy():
    backwards = Backwards(workers=3)
    found = iq.sweep(chat, seeds=range(3), executor=backwards, **GRID)
    assert content(found) == content(iq.sweep(chat, seeds=range(3), **GRID))
    assert backwards.most <= 6


def test_a_process_pool_gives_the_same_bytes(processes: ProcessPoolExecutor, swept, chat_toml: Path):
    found = iq.sweep(swept.chat, seeds=range(2), executor=processes, **GRID)
    assert content(found) == content(iq.sweep(chat, seeds=range(2), **GRID))
    rates = {"workload.arrivals.rate": [2, 4]}
    assert content(iq.sweep(chat_toml, executor=processes, **rates)) == content(iq.sweep(chat_toml, **rates))
    with pytest.raises(iq.ConfigError, match="scenario: cannot be sent to another process"):
        iq.sweep(lambda rate: chat(rate), rate=[2], executor=processes)


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork there")
def test_a_pool_of_forked_processes_is_refused(swept):
    with (
        ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool,
        pytest.raises(iq.ConfigError, match=r"executor: uses forked processes.*get_context\('spawn'\)"),
    ):
        iq.sweep(swept.chat, rate=[2], executor=pool)


@ON_POSIX
def test_a_killed_process_of_a_pool_loses_nothing(processes: ProcessPoolExecutor, swept, tmp_path: Path):
    with pytest.warns(RuntimeWarning, match="a worker process died"):
        found = iq.sweep(partial(swept.fragile, tmp_path), executor=processes, seeds=range(2), **GRID)
    assert (tmp_path / "killed").exists()
    assert content(found) == content(iq.sweep(chat, seeds=range(2), **GRID))


@ON_POSIX
def test_a_point_that_kills_every_process_fails_alone(processes: ProcessPoolExecutor, swept):
    with pytest.warns(RuntimeWarning, match="a worker process died"):
        found = iq.sweep(swept.deadly, executor=processes, **GRID)
    expected = iq.sweep(chat, **GRID)
    is_deadly = (pl.col("rate") == 4) & (pl.col("budget") == 256)
    assert found.filter(is_deadly)["error"].to_list() == ["BrokenProcessPool: the worker process died twice"]
    assert found.filter(~is_deadly).equals(expected.filter(~is_deadly))


def test_a_pool_whose_processes_never_start_says_so(swept):
    context = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(1, mp_context=context, initializer=swept.die) as pool,
        pytest.warns(RuntimeWarning, match="a worker process died"),
        pytest.raises(iq.SweepStopped, match="its processes die before any point is done") as stopped,
    ):
        iq.sweep(swept.chat, rate=[2, 3], executor=pool)
    assert stopped.value.frame.height == 0


def test_an_executor_that_gives_up_loses_nothing_that_was_finished():
    class Leaving(Executor):
        """Does four tasks, and then nothing more."""

        left = 4

        def submit(self, fn, /, *args, **kwargs):
            if self.left == 0:
                raise BrokenExecutor("the cluster is gone")
            self.left -= 1
            future: Future = Future()
            future.set_result(fn(*args, **kwargs))
            return future

    with pytest.raises(iq.SweepStopped, match="the cluster is gone; 4 of 9 points are done") as stopped:
        iq.sweep(chat, executor=Leaving(), **GRID)
    assert stopped.value.frame.equals(iq.sweep(chat, **GRID).head(4))
    closed = ThreadPoolExecutor(1)
    closed.shutdown()
    with pytest.raises(iq.SweepStopped, match="cannot schedule new futures after shutdown; 0 of 9 points"):
        iq.sweep(chat, executor=closed, **GRID)


def local_scenario(folder: Path | None = None):
    """A function that only travels by value, and whose worker dies once in the middle where asked."""

    def scenario(rate, budget):
        if folder is not None and (rate, budget) == (4, 256) and not (folder / "killed").exists():
            (folder / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        arrivals, prompt, output = iq.dist.Poisson(rate), iq.dist.Geometric(100), iq.dist.Geometric(20)
        workload = iq.Workload.synthetic(requests=40, arrivals=arrivals, prompt=prompt, output=output)
        scheduler = iq.Sarathi(token_budget=budget)
        return workload, iq.Engine(timing=iq.Constant(0.05), scheduler=scheduler, kv=iq.KvCache.unlimited())

    return scenario


def shown_in_the_guide(start: str, instead: dict[str, str] | None = None) -> bytes:
    """The frame of the block of the guide that starts so, over a scenario of ours."""
    page = (Path(__file__).parent.parent / "docs" / "guides" / "parameter-sweeps.md").read_text(
        encoding="utf-8"
    )
    (block,) = (
        text for text in re.findall(r"^```py\n(.*?)^```$", page, re.M | re.S) if text.startswith(start)
    )
    for shown, real in (instead or {}).items():
        block = block.replace(shown, real)
    namespace: dict[str, Any] = {"iq": iq, "chat": local_scenario()}
    exec(block, namespace)
    return content(namespace["frame"])


def expected_by_the_guide() -> bytes:
    return content(iq.sweep(chat, rate=[6, 12, 24], budget=[256, 1024], seeds=range(3)))


def interrupted_over(cluster: object) -> None:
    """Ctrl-C leaves the cluster ready for the next sweep, and what was done in its frame."""

    def at_three(done: int, _total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(iq.SweepInterrupted) as interrupted:
        iq.sweep(local_scenario(), seeds=range(20), executor=cluster, progress=at_three, **GRID)
    kept = interrupted.value.frame
    assert 3 <= kept.height < 180
    whole = iq.sweep(chat, seeds=range(20), **GRID)
    assert kept.join(whole, on=["rate", "budget", "seed"], how="semi").height == kept.height


def planned(executor: object, folder: Path, *, resume: bool = False) -> FleetPlan:
    """The cheapest of some fleets; what an executor has run is kept."""
    engines = {f"{seats}": local_engine(seats) for seats in (2, 4)}
    kept = folder / "plan.json" if executor is not None or resume else None
    chat = iq.Workload.synthetic(
        requests=400, arrivals=iq.dist.Poisson(4), prompt=iq.dist.Fixed(100), output=iq.dist.Geometric(20)
    )
    slo, sizes = iq.Slo(ttft_mean=0.5), range(1, 7)
    return iq.plan(chat, slo, engines=engines, replicas=sizes, executor=executor, resume=kept)


def local_engine(seats: int) -> iq.Engine:
    return iq.Engine(
        timing=iq.Constant(0.05), scheduler=iq.Sarathi(max_seqs=seats), kv=iq.KvCache.unlimited()
    )


@pytest.mark.filterwarnings("ignore")  # of Dask and Python about each other
@pytest.mark.skipif(os.name == "nt", reason="no SIGKILL there")
def test_a_dask_cluster_gives_the_same_bytes_and_survives_a_killed_worker(tmp_path: Path):
    distributed = pytest.importorskip("distributed", reason="Dask is not installed: inferq[dask]")
    expected = content(iq.sweep(chat, seeds=range(2), **GRID))
    options = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": None}
    with (
        distributed.LocalCluster(**options, silence_logs=50) as cluster,
        distributed.Client(cluster) as client,
    ):
        whole = iq.sweep(local_scenario(), seeds=range(2), executor=client, **GRID)
        assert content(whole) == expected
        here, there = (planned(executor, tmp_path) for executor in (None, client))
        assert here.probes.equals(there.probes) and here.candidates.equals(there.candidates)
        assert planned(None, tmp_path, resume=True).runs == 0
        before = set(client.run(os.getpid).values())
        found = iq.sweep(local_scenario(tmp_path), seeds=range(2), executor=client, **GRID)
        assert (tmp_path / "killed").exists()
        assert content(found) == expected
        interrupted_over(client)
        address = {"tcp://scheduler:8786": cluster.scheduler_address}
        assert shown_in_the_guide("from dask", address) == expected_by_the_guide()
        client.wait_for_workers(2)
        assert set(client.run(os.getpid).values()) != before


@pytest.mark.filterwarnings("ignore")  # of Ray and Python about each other
@pytest.mark.skipif(os.name == "nt", reason="no SIGKILL there")
def test_a_ray_cluster_gives_the_same_bytes_and_survives_a_killed_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    ray = pytest.importorskip("ray", reason="Ray is not installed: inferq[ray]")
    expected = content(iq.sweep(chat, seeds=range(2), **GRID))
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        whole = iq.sweep(local_scenario(), seeds=range(2), executor=ray, **GRID)
        assert content(whole) == expected
        found = iq.sweep(local_scenario(tmp_path), seeds=range(2), executor=ray, **GRID)
        assert (tmp_path / "killed").exists()
        assert content(found) == expected
        interrupted_over(ray)
        options = executors.RayExecutor(num_cpus=2)
        assert content(iq.sweep(local_scenario(), seeds=range(2), executor=options, **GRID)) == expected
        monkeypatch.setattr(ray, "init", lambda: None)  # of the guide, once more
        assert shown_in_the_guide("import ray") == expected_by_the_guide()
    finally:
        ray.shutdown()


def test_ray_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(iq.ConfigError, match=r"Ray is not installed: pip install 'inferq\[ray\]'"):
        executors.RayExecutor()
