"""200 scenarios over everything that inferq simulates, and digests of the tables of their results.

They stand in `kept/scenarios.json`, one a line, as `iq.Scenario` reads them, with paths from `traces/`. What
is written in Python has a stand-in there; `in_python` says in which fields what of `IN_PYTHON` belongs.

`python -m tests.kept_results > tests/kept/results.json` keeps the digests of the installed inferq. They are
of kinds and values alone, so that columns, classes and files may get other names without another digest. What
theory and fits say of some scenarios is kept to 9 significant digits.
"""

import dataclasses
import hashlib
import json
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import inferq as iq
from inferq.scenario import ScenarioFile

TRACES = Path(__file__).parent.parent / "traces"
FILE = Path(__file__).parent / "kept" / "scenarios.json"
SCENARIOS: list[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))


class Shortest(iq.Scheduler):
    """Whole prompts, the shortest of the first few that fit; else all decode, and the last one makes room."""

    token_budget, max_seqs, lookahead = 600, 24, 16

    def plan(self, view: iq.View) -> iq.Batch:
        running, waiting = view.running, view.waiting
        free = 10**9 if view.free_blocks is None else view.free_blocks
        ready = running.id[running.decodes]
        if len(running) < 24 and len(waiting):
            owed = int(waiting.prompt_left.min())
            if owed <= 600 and -(-(owed + 1) // view.block_tokens) + len(running) <= free:
                return iq.Batch(prefill=[(int(waiting.id[int(waiting.prompt_left.argmin())]), owed)])
        grows = running.context[running.decodes] == running.blocks[running.decodes] * view.block_tokens
        if int(grows.sum()) > free:
            return iq.Batch(preempt=running.id[-1:])
        return iq.Batch(decode=ready, repeat=1 if bool(grows.any()) else 2)


class Emptiest(iq.Router):
    """The replica with the least ahead, less what it has cached; for every seventh request the next best."""

    def route(self, request: iq.Arrival, fleet: iq.Fleet) -> int:
        cost = np.argsort(fleet.tokens + fleet.used_blocks - fleet.cached_tokens, kind="stable")
        return int(cost[min(int(request.id % 7 == 3), len(fleet) - 1)])


IN_PYTHON: dict[str, Any] = {
    "Shortest": Shortest(),
    "Emptiest": Emptiest(),
    "by_length": iq.ByKey(lambda request: -request.prompt_tokens % 7),
    "by_row": iq.ByKey(lambda request: request.id % 5),
    "scanned": iq.Workload.scan(TRACES / "inferq.parquet"),
}


def with_part(whole: Any, path: list[str], part: Any) -> Any:
    """A copy of `whole` that has the part at the path of fields, keys and places."""
    if not path:
        return part
    name, *rest = path
    if isinstance(whole, Mapping):
        return {**whole, name: with_part(whole[name], rest, part)}
    if isinstance(whole, (list, tuple)):
        place = int(name)
        return (*whole[:place], with_part(whole[place], rest, part), *whole[place + 1 :])
    return dataclasses.replace(whole, **{name: with_part(getattr(whole, name), rest, part)})


def scenario(number: int) -> iq.Scenario:
    """The scenario of this number."""
    kept = SCENARIOS[number]
    run = dict(kept["scenario"].get("run", {}))
    out = {"out": run.pop("out")} if "out" in run else {}  # no file says where to write
    read = ScenarioFile(FILE, {**kept["scenario"], "run": run}, TRACES).scenario()
    read = dataclasses.replace(read, options={**read.options, **out})
    for path, name in kept.get("in_python", {}).items():
        read = with_part(read, path.split("."), IN_PYTHON[name])
    return read


_WIDE = (
    "count hit_blocks cached_blocks evicted_blocks kv_used_tokens prefill_tokens context_tokens "
    "prefill_queue prefill decode_queue mixed solo"
)
_NARROW = "preemptions waiting running decodes tokens stages finished_stages"
UNSIGNED = {**dict.fromkeys(_WIDE.split(), pl.UInt64), **dict.fromkeys(_NARROW.split(), pl.UInt32)}
"""Counts were unsigned when the digests were made."""


def as_kept(frame: pl.DataFrame) -> Iterable[pl.Series]:
    """The columns that there were then, in the types that they had."""
    for column in frame.drop("tokens_in_system", strict=False):
        was = UNSIGNED.get(column.name)
        yield column if was is None or column.dtype.is_float() else column.cast(was)


def digest(columns: Iterable[pl.Series]) -> str:
    """Of kind, nulls and values of each column in turn, nothing of its name."""
    sha = hashlib.sha256()
    for column in columns:
        nulls = column.is_null().to_numpy().tobytes() if column.null_count() else b""
        if column.dtype.is_numeric() or column.dtype == pl.Boolean:
            values = (column.fill_null(0) if nulls else column).to_numpy()
            values = values.astype(values.dtype.newbyteorder("<"))
            kind, content = values.dtype.str, values.tobytes()
        else:
            kind, content = "text", json.dumps(column.to_list(), ensure_ascii=False).encode()
        for part in (kind.encode(), nulls, content):
            sha.update(len(part).to_bytes(8, "little") + part)
    return sha.hexdigest()[:16]


def rounded(value: float | None) -> str | None:
    return None if value is None else f"{value:.9g}"


def theory_of(workload: iq.Workload, system: Any) -> list[Any]:
    """What `stability` says; the kind of error where it refuses."""
    try:
        said = iq.theory.stability(workload, system)
    except ValueError as error:
        return [type(error).__name__]
    binding = None if said.binding is None else said.binding.resource
    return [said.verdict, binding, rounded(said.load), *(rounded(one.capacity_per_s) for one in said.bounds)]


def observed_in(result: iq.Result) -> list[Any]:
    try:
        said = iq.theory.observed(result)
    except ValueError as error:
        return [type(error).__name__]
    return [said.verdict, said.arrived, rounded(said.drift_per_s), rounded(said.high_per_s)]


def fit_of(result: iq.Result) -> list[Any]:
    """The coefficients; the kind of error where the iterations do not determine them."""
    try:
        fit = iq.timing.fit(result.single_iterations(), "PiecewiseLinear")
    except ValueError as error:
        return [type(error).__name__]
    return [rounded(value) for value in fit.coefficients["value"]]


def results(number: int) -> dict[str, Any]:
    """Run a scenario: digests by table, the number of findings, and now and then what theory says."""
    one = scenario(number)
    workload, system, options = one.workload, one.system, one.options
    with tempfile.TemporaryDirectory() as folder:
        result = one.run(out=Path(folder) / options["out"] if "out" in options else None)
        tables = ["requests", "itl", "timeline", "block_operations"]
        tables += [name for name in ("iterations", "batches") if options.get("batches") or options.get(name)]
        tables += ["jobs"] if isinstance(system, iq.Network) else []
        tables += ["occupancy", "revenue"] if result.is_priced else []
        # Columns that came since: each has tests of its own.
        summary = result.summary(by="class").drop("api_mean", "lost", strict=False)
        drawn = workload.draw(options["seed"]).frame
        kept: dict[str, Any] = {
            "workload": digest(column for column in drawn if not column.dtype.is_nested()),
            **{name: digest(as_kept(getattr(result, name).lazy().collect())) for name in tables},
            "drained": digest([result.drained]),
            "totals": digest([pl.Series(sorted(map(str, result.totals.values())))]),
            "summary": digest([pl.Series([str(sorted(map(str, row))) for row in summary.iter_rows()])]),
            "findings": len(result.findings),
        }
        if getattr(system, "service", "tokens") == "tokens":
            work = result.work_conservation(budget=64)
            counted = (work.share, work.cap_share, work.memory_share, work.iterations)
            kept["work"] = digest([pl.Series([str(one) for one in counted])])
        if number % 5 == 0:
            kept["theory"] = theory_of(workload, system)
            kept["observed"] = observed_in(result)
        if "batches" in tables and number % 6 == 0:
            kept["fit"] = fit_of(result)
    return kept


if __name__ == "__main__":
    kept = (f'"{number}": {json.dumps(results(number))}' for number in range(len(SCENARIOS)))
    print("{\n" + ",\n".join(kept) + "\n}")
