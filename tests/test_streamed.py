"""Runs with results in a directory equal runs in memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import inferq as iq
from inferq.results import store
from inferq.workload import parts

from .arriving import arriving
from .lin2026 import cluster

BUSY = iq.PiecewiseLinear(base=0.01, per_token=0.001, knee=4, per_context_token=1e-5)


def engine(scheduler: Any = None, **changes: Any) -> iq.Engine:
    scheduler = scheduler or iq.Sarathi(token_budget=16, max_seqs=4)
    return iq.Engine(
        **{"timing": BUSY, "scheduler": scheduler, "kv": iq.KvCache(tokens=200, block=4), **changes}
    )


def same(stored: iq.Result, whole: iq.Result) -> None:
    """Compare all frames, numbers and texts."""
    lazy: Any = stored.requests
    assert isinstance(lazy, pl.LazyFrame)
    assert lazy.collect_schema() == whole.requests.schema
    assert lazy.collect().equals(whole.requests)
    for name in ("itl", "timeline"):
        assert getattr(stored, name).equals(getattr(whole, name))
        assert getattr(stored, name).schema == getattr(whole, name).schema
    assert (stored.totals, stored.findings, stored.scenario) == (whole.totals, whole.findings, whole.scenario)
    assert stored.drained.equals(whole.drained)
    assert stored.stretched_share == whole.stretched_share
    for by in (None, "class", "status", ["class", "replica"]):
        assert stored.summary(by).equals(whole.summary(by))
    slo = {"ttft_s": 0.05, "itl_s": None}
    assert stored.summary(slo=slo).equals(whole.summary(slo=slo))
    first, *_, last = repr(whole).split("; ")
    assert repr(stored) == f"Stored{first}; {last}"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set small parts, so that few requests have several parts."""
    monkeypatch.setattr(parts, "ROWS", 4)
    monkeypatch.setattr(store, "PART_ROWS", 5)


def fixed(rows: int, seed: int, **more: Any) -> dict[str, Any]:
    """Requests in bursts, with ties; a few are too long for the cache."""
    import numpy as np

    chance = np.random.default_rng(seed)
    arrivals = np.sort(np.round(chance.uniform(0, rows / 20, rows), 1))
    return {
        "arrival_s": arrivals,
        "prompt_tokens": chance.integers(1, 60, rows),
        "output_tokens": np.where(chance.uniform(size=rows) < 0.05, 300, chance.integers(1, 40, rows)),
        **{name: make(chance, rows) for name, make in more.items()},
    }


COLUMNS = {
    "class": lambda chance, rows: chance.choice(["chat", "code", "zero"], rows),
    "priority": lambda chance, rows: chance.integers(-2, 3, rows),
    "patience_s": lambda chance, rows: pl.Series(chance.choice([0.0, 0.3, 5.0], rows)).set(
        pl.Series(chance.uniform(size=rows) < 0.5), None
    ),
    "session_id": lambda chance, rows: pl.Series(chance.integers(0, 6, rows)).set(
        pl.Series(chance.uniform(size=rows) < 0.2), None
    ),
    "ttft_slo_s": lambda chance, rows: chance.choice([0.1, 1.0], rows),
    "itl_slo_s": lambda chance, rows: chance.choice([0.02, 0.5], rows),
}

SYSTEMS: dict[str, Any] = {
    "one": engine(),
    "priority": engine(iq.VllmV1(token_budget=16, max_seqs=4, policy="priority")),
    "deadlines": engine(iq.research.Slai(token_budget=16, max_active=4, max_decodes=4, offset=1)),
    "by key": engine(iq.Sarathi(max_seqs=3, order=iq.ByKey(lambda request: request.id % 3))),
    "batch thresholds": engine(iq.research.Wait(thresholds=3), kv=iq.KvCache.unlimited()),
    "batch thresholds in a cluster": iq.Cluster(
        engine(iq.research.Wait(thresholds=3), kv=iq.KvCache.unlimited()), replicas=3, router=iq.RoundRobin()
    ),
    **{
        type(router).__name__: iq.Cluster(engine(), replicas=3, router=router)
        for router in (
            iq.RoundRobin(),
            iq.Random(),
            iq.LeastRequests(),
            iq.LeastTokens(),
            iq.PowerOfTwo(),
            iq.LeastKv(),
            iq.BySession(),
            iq.PrefixAffinity(update_s=0.5),
            iq.PrefixHash(),
        )
    },
    "handed off": iq.Disaggregated(
        prefill=(engine(kv=iq.KvCache.unlimited()), 2),
        decode=(engine(kv=iq.KvCache.unlimited()), 2),
        link=iq.Link(latency_s=0.01, bytes_per_s=1e6, bytes_per_token=100),
    ),
}


@pytest.mark.parametrize("name", SYSTEMS)
@settings(max_examples=5)
@given(data=st.data())
def test_the_directory_is_the_run_in_memory(
    name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rows, seed = data.draw(st.integers(1, 60)), data.draw(st.integers(0, 99))
    columns = {column for column in COLUMNS if data.draw(st.booleans())} | (
        {"session_id"} if name == "BySession" else set()
    )
    work = iq.Workload(
        fixed(rows, seed, **{column: COLUMNS[column] for column in COLUMNS if column in columns})
    )
    cuts = st.one_of(st.integers(0, 20), st.sampled_from(["0.2s", "1s", "99s"]))
    options: dict[str, Any] = {
        "seed": seed,
        "horizon_s": data.draw(st.none() | st.sampled_from([0.0, 0.5, 1.3, 50.0])),
        "warmup": data.draw(cuts),
        "cooldown": data.draw(cuts),
        "timeline_s": data.draw(st.none() | st.sampled_from([0.1, 1.0])),
        "stepping": data.draw(st.booleans()),
        "threads": data.draw(st.none() | st.integers(1, 3)),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "ROWS", data.draw(st.sampled_from([4, 8, 1000])))
        patch.setattr(store, "PART_ROWS", data.draw(st.sampled_from([7, 1000])))
        stored = iq.simulate(work, SYSTEMS[name], out=tmp_path_factory.mktemp("run") / "out", **options)
    same(stored, iq.simulate(work, SYSTEMS[name], **options))


ARRIVALS = [
    iq.dist.Poisson(rate=30),
    iq.dist.Gamma(rate=30, cv=2),
    iq.dist.Gamma(rate=30, cv=0.4),
    iq.dist.Weibull(rate=30, shape=0.7),
    iq.dist.Deterministic(rate=7),
    iq.dist.OnOff(on_rate=90, off_rate=1, mean_on_s=0.3, mean_off_s=0.5),
    iq.dist.TimeVarying(times_s=[0, 1, 1.5], rates=[10, 0, 80], period_s=2.5),
]
LENGTHS: list[dict[str, Any]] = [
    {"prompt": iq.dist.Lognormal(mean=20, median=9, cap=60), "output": iq.dist.Geometric(mean=9, cap=40)},
    {"prompt": iq.dist.Uniform(1, 60), "output": iq.dist.PoissonLength(mean=12, cap=60)},
    {"prompt": iq.dist.LogUniform(2, 60), "output": iq.dist.PoissonLength(mean=3, cap=60)},
    {"prompt": iq.dist.Fixed(9), "output": iq.dist.Fixed(5)},
    {"lengths": iq.dist.Empirical(pl.DataFrame({"prompt_tokens": [5, 50, 9], "output_tokens": [20, 1, 4]}))},
]


@pytest.mark.parametrize("arrivals", ARRIVALS, ids=str)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_a_workload_drawn_in_parts_equals_the_whole(
    arrivals: Any, lengths: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for rows, part in ((1, 4), (4, 4), (1000, 64), (1001, 256), (515, 260)):
        workload = iq.Workload.synthetic(requests=rows, arrivals=arrivals, **lengths)
        monkeypatch.setattr(parts, "ROWS", part)
        drawn = workload.parts(seed=5)
        whole = workload.draw(5).frame
        assert (drawn.rows, drawn.columns) == (whole.height, whole.columns)
        assert pl.concat(drawn.frames()).equals(whole)
        assert pl.Series([time for part_of_arrivals in drawn.arrivals() for time in part_of_arrivals]).equals(
            whole["arrival_s"]
        )


@pytest.mark.parametrize("arrivals", ARRIVALS, ids=str)
def test_a_synthetic_workload_is_simulated_part_by_part(arrivals: Any, small: None, tmp_path: Path) -> None:
    workload = iq.Workload.synthetic(requests=41, arrivals=arrivals, **LENGTHS[0])
    same(
        iq.simulate(workload, engine(), seed=3, out=tmp_path / "out"), iq.simulate(workload, engine(), seed=3)
    )
    assert not (tmp_path / "out" / "workload.parquet").exists()


def test_too_late_arrivals_are_an_error_before_the_run(tmp_path: Path) -> None:
    workload = iq.Workload.synthetic(requests=100_000, arrivals=iq.dist.Poisson(rate=1e-9), **LENGTHS[0])
    with pytest.raises(iq.ConfigError, match=r"^arrivals\.rate: is too low"):
        iq.simulate(workload, engine(), out=tmp_path / "out")


# Scanned files


@pytest.fixture
def scanned(tmp_path: Path, small: None) -> iq.Workload:
    iq.Workload(fixed(50, 1, **COLUMNS)).frame.write_parquet(tmp_path / "work.parquet")
    return iq.Workload.scan(tmp_path / "work.parquet")


def test_a_scanned_file_equals_its_frame(scanned: iq.Workload, tmp_path: Path) -> None:
    frame = iq.Workload(fixed(50, 1, **COLUMNS))
    assert scanned.frame.equals(frame.frame)
    assert scanned.frame.schema == frame.frame.schema
    assert (scanned.sha256(), scanned.to_json()) == (frame.sha256(), frame.to_json())
    assert not scanned.is_synthetic and scanned.draw(3) is scanned
    whole = iq.simulate(frame, SYSTEMS["BySession"])
    same(iq.simulate(scanned, SYSTEMS["BySession"], out=tmp_path / "out"), whole)
    assert not (tmp_path / "out" / "workload.parquet").exists()
    assert iq.simulate(scanned, SYSTEMS["BySession"]).requests.equals(whole.requests)


def test_a_column_name_of_another_tool_is_scanned(small: None, tmp_path: Path) -> None:
    frame = pl.DataFrame(fixed(12, 3)).with_columns(itl_slo_s=0.5)
    frame.rename({"itl_slo_s": "tbt_slo_s"}).write_parquet(tmp_path / "work.parquet")
    assert iq.Workload.scan(tmp_path / "work.parquet").frame.equals(iq.Workload(frame).frame)


def test_transforms_of_a_scanned_file_equal_those_of_its_frame(scanned: iq.Workload) -> None:
    frame = iq.Workload(scanned.frame)
    assert scanned.head(7).frame.equals(frame.head(7).frame)
    assert (
        scanned.with_arrivals(iq.dist.Poisson(rate=3))
        .draw(2)
        .frame.equals(frame.with_arrivals(iq.dist.Poisson(rate=3)).draw(2).frame)
    )
    assert scanned.describe().equals(frame.describe())


def test_a_folder_is_scanned_in_the_order_of_its_names(scanned: iq.Workload, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    frame = scanned.frame
    frame.slice(30).write_parquet(folder / "b.parquet")
    frame.head(30).write_parquet(folder / "a.parquet")
    assert iq.Workload.scan(folder).frame.equals(frame)


def test_names_of_classes_come_from_all_rows(small: None, tmp_path: Path) -> None:
    """A later part may have a class that sorts before those of earlier parts."""
    work = fixed(12, 3) | {"class": ["m"] * 10 + ["a", "z"]}
    pl.DataFrame(work).write_parquet(tmp_path / "work.parquet")
    stored = iq.simulate(iq.Workload.scan(tmp_path / "work.parquet"), engine(), out=tmp_path / "out")
    same(stored, iq.simulate(work, engine()))


@pytest.mark.parametrize(
    ("column", "row", "value", "message"),
    [
        ("arrival_s", 30, -1.0, "arrival_s is -1"),
        ("arrival_s", 28, 0.0, "before"),
        ("arrival_s", 31, None, "arrival_s is null"),
        ("prompt_tokens", 33, 0, "prompt_tokens is 0, must be at least 1"),
        ("output_tokens", 21, None, "output_tokens is null"),
        ("patience_s", 49, -2.0, "patience_s is -2"),
        ("class", 17, None, "class is null"),
    ],
)
def test_an_error_names_a_wrong_row_of_a_scanned_file(
    column: str, row: int, value: object, message: str, small: None, tmp_path: Path
) -> None:
    frame = pl.DataFrame(fixed(50, 1, **COLUMNS))
    values = frame[column].to_list()
    values[row] = value
    frame.with_columns(pl.Series(column, values, dtype=frame[column].dtype)).write_parquet(
        tmp_path / "w.parquet"
    )
    with pytest.raises(iq.TraceError, match=f"row {row}: .*{message}"):
        iq.simulate(iq.Workload.scan(tmp_path / "w.parquet"), engine(), out=tmp_path / "out")


def test_a_file_that_is_not_a_workload_is_an_immediate_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        iq.Workload.scan(tmp_path / "nothing.parquet")
    (tmp_path / "text.parquet").write_text("no Parquet at all")
    with pytest.raises(iq.TraceError, match=r"text\.parquet: cannot be read as Parquet"):
        iq.Workload.scan(tmp_path / "text.parquet")
    for frame, message in (
        (pl.DataFrame({"arival_s": [1.0]}), "unknown column arival_s; did you mean arrival_s"),
        (pl.DataFrame({"arrival_s": []}, schema={"arrival_s": pl.Float64}), "no rows"),
        (pl.DataFrame({"arrival_s": ["1"]}), "arrival_s: must contain seconds as numbers, got String"),
    ):
        frame.write_parquet(tmp_path / "wrong.parquet")
        with pytest.raises(iq.TraceError, match=message):
            iq.Workload.scan(tmp_path / "wrong.parquet")
    pl.DataFrame({"arrival_s": [1.0], "prompt_tokens": [1]}).write_parquet(tmp_path / "short.parquet")
    with pytest.raises(iq.TraceError, match=r"no output_tokens: use \.with_outputs"):
        iq.simulate(iq.Workload.scan(tmp_path / "short.parquet"), engine(), out=tmp_path / "out")


def test_a_row_may_continue_a_row_of_an_earlier_part(small: None, tmp_path: Path) -> None:
    frame = pl.DataFrame(fixed(12, 3)).with_columns(
        continues=pl.Series([None] * 9 + [2, 9, None], dtype=pl.Int32)
    )
    frame.write_parquet(tmp_path / "w.parquet")
    iq.simulate(iq.Workload.scan(tmp_path / "w.parquet"), engine(), out=tmp_path / "good")
    frame = frame.with_columns(continues=pl.Series([None] * 9 + [9, 9, None], dtype=pl.Int32))
    frame.write_parquet(tmp_path / "w.parquet")
    with pytest.raises(iq.TraceError, match="row 9: continues is 9, must be the number of an earlier row"):
        iq.simulate(iq.Workload.scan(tmp_path / "w.parquet"), engine(), out=tmp_path / "bad")


# Runs in memory with results in a directory


def chats() -> iq.Workload:
    return iq.Workload.sessions(
        sessions=5, arrivals=iq.dist.Poisson(rate=9), turns=3, prompt=9, output=7, think=0.2, max_context=60
    )


def test_sessions_are_stored(small: None, tmp_path: Path) -> None:
    same(iq.simulate(chats(), engine(), seed=2, out=tmp_path / "out"), iq.simulate(chats(), engine(), seed=2))


def test_iterations_are_stored(small: None, tmp_path: Path) -> None:
    whole = iq.simulate(fixed(30, 2), engine(), batches=True)
    stored = iq.simulate(fixed(30, 2), engine(), batches=True, out=tmp_path / "out")
    same(stored, whole)
    assert stored.iterations.equals(whole.iterations)
    assert stored.batches.equals(whole.batches)
    assert stored.work_conservation() == whole.work_conservation()
    without = iq.simulate(fixed(30, 2), engine(), out=tmp_path / "without")
    with pytest.raises(iq.ConfigError, match="not recorded"):
        _ = without.iterations


def test_observed_stability_is_the_same(tmp_path: Path) -> None:
    workload = arriving(3000, 2, 9, 5)
    for name, work in (("synthetic", workload), ("sessions", chats())):
        whole, stored = iq.simulate(work, engine()), iq.simulate(work, engine(), out=tmp_path / name)
        assert str(iq.theory.observed(stored)) == str(iq.theory.observed(whole))


def test_jobs_of_a_network_are_stored(small: None, tmp_path: Path) -> None:
    chain = iq.Workflow(
        "chain",
        stages={
            "draft": iq.Stage("chat", prompt=iq.dist.Uniform(5, 20), output=6),
            "check": iq.Stage("chat", prompt=5, output=2, after="draft", includes="draft"),
        },
    )
    network = iq.Network({"chat": engine()}, [chain])
    work = {"arrival_s": [0.1 * job for job in range(20)], "ttft_slo_s": [0.05, 9.0] * 10}
    whole, stored = iq.simulate(work, network), iq.simulate(work, network, out=tmp_path / "out")
    same(stored, whole)
    assert stored.jobs.equals(whole.jobs)
    assert stored.summary(by="stage").equals(whole.summary(by="stage"))


@pytest.mark.parametrize("service", ["exponential", "tokens"])
def test_revenue_is_stored(service: Any, small: None, tmp_path: Path) -> None:
    served = cluster(service=service)
    work = fixed(40, 6)
    whole, stored = iq.simulate(work, served, seed=4), iq.simulate(work, served, seed=4, out=tmp_path / "out")
    same(stored, whole)
    assert stored.is_priced and not iq.simulate(work, engine(), out=tmp_path / "other").is_priced
    assert stored.occupancy.equals(whole.occupancy) and stored.revenue.equals(whole.revenue)


# Policies written in Python


class Seen(iq.Scheduler):
    """First come, first served, one request at a time; records the SLOs of the requests it sees."""

    token_budget = 100
    max_seqs = 1

    def __init__(self, seen: set[tuple[Any, ...]]) -> None:
        self.seen = seen

    def __deepcopy__(self, memo: object) -> Seen:
        return Seen(self.seen)  # replicas share the recorded set

    def plan(self, view: iq.View) -> iq.Batch:
        for rows in (view.running, view.waiting):
            columns = (rows.id, rows.class_code, rows.ttft_slo_s, rows.itl_slo_s)
            self.seen.update(zip(*(column.tolist() for column in columns), strict=True))
        running, waiting = view.running, view.waiting
        decode = running.id[running.decodes].tolist()
        prefill = list(zip(running.id[~running.decodes], running.prompt_left[~running.decodes], strict=True))
        if not len(running) and len(waiting):
            prefill = [(waiting.id[0], waiting.prompt_left[0])]
        return iq.Batch(decode=decode, prefill=prefill)


@pytest.mark.parametrize("router", [None, iq.RoundRobin(), iq.LeastRequests()])
def test_a_python_scheduler_sees_the_slos_of_each_request(router: Any, small: None, tmp_path: Path) -> None:
    work = iq.Workload(fixed(40, 8, **{name: COLUMNS[name] for name in ("class", "ttft_slo_s", "itl_slo_s")}))
    frame = work.frame
    codes = frame["class"].to_physical().to_list()
    known = set(zip(range(40), codes, frame["ttft_slo_s"], frame["itl_slo_s"], strict=True))

    def system(seen: set[tuple[Any, ...]]) -> Any:
        alone = engine(Seen(seen), kv=iq.KvCache.unlimited())
        return alone if router is None else iq.Cluster(alone, replicas=2, router=router)

    seen_whole: set[tuple[Any, ...]] = set()
    seen_parts: set[tuple[Any, ...]] = set()
    whole = iq.simulate(work, system(seen_whole))
    same(iq.simulate(work, system(seen_parts), out=tmp_path / "out"), whole)
    assert seen_whole == known and seen_parts == known


class ByLength(iq.Router):
    """Routes sessions by number and all other requests by length."""

    def route(self, request: iq.Arrival, fleet: iq.Fleet) -> int:
        return (request.prompt_tokens if request.session is None else request.session) % len(fleet)


def test_a_python_router_sees_the_same_sessions(small: None, tmp_path: Path) -> None:
    system = iq.Cluster(engine(), replicas=3, router=ByLength())
    work = fixed(60, 9, session_id=COLUMNS["session_id"])
    same(iq.simulate(work, system, out=tmp_path / "out"), iq.simulate(work, system))


def test_an_exception_of_a_policy_is_raised_and_keeps_written_files(small: None, tmp_path: Path) -> None:
    class Mine(Exception):
        pass

    mine = Mine("no")

    class Fails(iq.Router):
        def route(self, request: iq.Arrival, fleet: iq.Fleet) -> int:
            if request.id == 35:
                raise mine
            return 0

    with pytest.raises(Mine) as caught:
        iq.simulate(fixed(40, 9), iq.Cluster(engine(), replicas=2, router=Fails()), out=tmp_path / "out")
    assert caught.value is mine
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert not manifest["complete"] and 0 < manifest["written"] < 35
