"""How far is a simulation from measured runs? `inferq.validate`: both beside each other, run by run."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from inferq._lazy import np, pl
from inferq.checks import whole
from inferq.display.text import counted
from inferq.errors import ConfigError, SimulationError, TraceError
from inferq.experiments.validation.clients import Client, client_for
from inferq.experiments.validation.measured_run import QUANTITIES, STATISTICS, MeasuredRun
from inferq.experiments.validation.reading import read_runs
from inferq.experiments.validation.settings import Assumed, clock_of, engine_for
from inferq.experiments.validation.taken import taken_on
from inferq.experiments.validation.validation import Validation
from inferq.simulation.simulate import simulate
from inferq.systems.engine import Engine

EngineFor = Callable[[MeasuredRun, Assumed], Engine]

_STAGE = re.compile(r"(.*)-s(\d+)")
_BETWEEN_STAGES_S = 1.0
_MOST_FAILED = 0.05
"""A run of which a larger share failed is shown and not judged: what its client did is not known."""


def validate(
    runs: str | os.PathLike[str] | Sequence[MeasuredRun],
    *,
    requests: str | os.PathLike[str] | None = None,
    given: Mapping[str, object] | None = None,
    only: Mapping[str, object] | None = None,
    engine: EngineFor = engine_for,
    seed: int = 1,
) -> Validation:
    r"""Measured runs beside the simulation of the same settings, metric by metric.

    Of each run the server's settings and the client's load are taken as they were published, and simulated
    once. Nothing is fitted to what was measured. What a run does not say is assumed by the rules of
    `experiments.validation.settings` and `clients`; every assumption is listed in `Validation.assumed`.

    Users of a closed loop start together, and every request counts. Runs `name-s0`, `name-s1`, … are
    stages of one server: where it has a prefix cache, a stage finds what those before it in the file left.

    Args:
        runs: a file: CSV with a row a run, a JSON result of `vllm bench serve`, or AIPerf's
            `profile_export_aiperf.json`; or runs that were read. Columns are the fields of `MeasuredRun`, and
            `ttft_mean_s`, `ttft_p50_s`, …, `tpot_mean_s`, …, `e2e_mean_s`, …, `req_s`, `out_tok_s`.
        requests: CSV with the requests of runs whose arrivals are a trace: `run`, `arrival_s`,
            `prompt_tokens`, `output_tokens`.
        given: settings for runs that do not say them, by their columns: `{"gpu": "h100-80gb", "tp": 2}`.
        only: the runs that have these values, by columns.
        engine: makes the engine of a run, and notes what it assumes; the default is `engine_for`.
        seed: draws arrivals.

    Returns:
        What was measured, what was simulated, and how far they are apart.

    Raises:
        TraceError: a row is wrong, naming file, row and column; a setting that inferq cannot simulate.
        ConfigError: an argument that is wrong; a file that is none of these.
        SimulationError: a run that cannot go on, naming its row.
        OSError: a file cannot be read.

    Source: relative errors by median and 90th percentile, as published comparisons of simulators with servers
        state them.

    Example:
        >>> import inferq as iq, pathlib, tempfile
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "runs.csv"
        >>> _ = file.write_text(
        ...     "id,engine,engine_version,model,gpu,tp,concurrency,input_mean,output_mean,tpot_mean_s\n"
        ...     "mine,vllm,0.12.0,Qwen/Qwen3-32B,h100-80gb,2,8,1024,128,0.018\n"
        ... )
        >>> found = iq.validate(file)
        >>> found.frame.select("run", "metric", "measured").rows()
        [('mine', 'tpot_mean', 0.018)]
        >>> found.assumed.filter(setting="max_num_seqs").select("value", "why").row(0)
        ('1024', "vLLM's default for an API server on h100-80gb")
    """
    whole("seed", seed, 0, 2**64 - 1)
    if isinstance(runs, (str, os.PathLike)):
        read = read_runs(runs, requests=requests, given=given)
    else:
        if requests is not None or given is not None:
            raise ConfigError(
                "requests" if given is None else "given", "is for a file of runs; these are read already"
            )
        read = list(runs)
    chosen = _chosen(read, only or {})
    rows = [row for group in _groups(chosen) for row in _simulated(group, engine, seed)]
    place = {run.id: at for at, run in enumerate(chosen)}
    rows.sort(key=lambda row: place[row.run.id])
    return Validation.of(rows)


@dataclass(slots=True)
class Row:
    """A run, measured and simulated."""

    run: MeasuredRun
    assumed: Assumed
    clock: str
    simulated: Mapping[str, float]
    judged: bool
    why_not: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What the simulated run was like: mean requests in the batch, share of prompts found cached, …"""


def _chosen(runs: list[MeasuredRun], only: Mapping[str, object]) -> list[MeasuredRun]:
    for name in only:
        if name not in MeasuredRun.__dataclass_fields__ or name in ("measured", "requests", "place"):
            raise ConfigError("only", f"runs have no column {name!r}")
    found = [
        run for run in runs if all(str(getattr(run, name)) == str(value) for name, value in only.items())
    ]
    if not found:
        raise ConfigError("only", f"of {counted(len(runs), 'run')} none has {dict(only)}")
    return found


def _groups(runs: Iterable[MeasuredRun]) -> list[list[MeasuredRun]]:
    """Stages of one server together, in their order; every other run by itself."""
    groups: dict[str, list[tuple[int, MeasuredRun]]] = {}
    for run in runs:
        stage = _STAGE.fullmatch(run.id)
        name, number = (stage[1], int(stage[2])) if stage else (f"{run.id}\0", 0)
        groups.setdefault(name, []).append((number, run))
    return [[run for _, run in sorted(group, key=lambda one: one[0])] for group in groups.values()]


def _simulated(stages: list[MeasuredRun], engine: EngineFor, seed: int) -> list[Row]:
    """The rows of one server, whose stages follow each other."""
    rows: list[Row] = []
    before: list[pl.DataFrame] = []
    for run in stages:
        assumed = Assumed()
        made = engine(run, assumed)
        client = client_for(run, assumed, seed)
        try:
            if made.kv.prefix_cache is None or client.users is not None:
                before = []
            if (
                not before
                and (stage := _STAGE.fullmatch(run.id))
                and int(stage[2]) > 0
                and made.kv.prefix_cache
            ):
                assumed.take("stages before", "none", "they are not in the file: the cache is cold")
            measured, facts, before = _one(run, made, client, before, seed, assumed)
        except (SimulationError, ConfigError, TraceError) as error:
            raise type(error)(f"{run.place}: {error}") from None
        failed = (run.failures or 0) / (run.n_requests or math.inf)
        why = f"{100 * failed:.0f} % of its requests failed" if failed > _MOST_FAILED else ""
        if not why and (taken := taken_on(run)) is not None:
            why = f"a number of its server was taken on it ({taken})"
        rows.append(Row(run, assumed, clock_of(made), measured, not why, why, facts))
    return rows


def _one(
    run: MeasuredRun, engine: Engine, client: Client, before: list[pl.DataFrame], seed: int, assumed: Assumed
) -> tuple[dict[str, float], dict[str, Any], list[pl.DataFrame]]:
    """What the client of a run would have measured, and the requests of the server until then."""
    options: dict[str, Any] = {"max_in_flight": client.max_in_flight, "seed": seed}
    if client.users is not None:
        assumed.take("start of users", "all at once", "not said; equal requests then stay together")
        rows = simulate(client.workload(), engine, **options).requests
    else:
        frame = client.frame
        if before:
            earlier = pl.concat(before, how="diagonal")
            end_s = float(simulate(earlier, engine, **options).requests["finish_s"].max())  # type: ignore[arg-type]
            frame = frame.with_columns(pl.col("arrival_s") + (end_s + _BETWEEN_STAGES_S))
        before = [*before, frame]
        first = sum(one.height for one in before[:-1])
        requests = simulate(pl.concat(before, how="diagonal"), engine, **options).requests
        rows = requests.filter(pl.col("id") >= first)
    done = rows.filter(status="finished")
    if not done.height:
        raise ConfigError("kv_blocks", f"of {rows.height:,} simulated requests that were sent none finished")
    values: dict[str, float] = {}
    for quantity in QUANTITIES:
        column = done[f"{quantity}_s"].drop_nulls()
        for which in STATISTICS:
            if column.len():
                value = (
                    np.mean(column.to_numpy())
                    if which == "mean"
                    else column.quantile(float(which[1:]) / 100, "linear")
                )
                values[f"{quantity}_{which}"] = float(value)  # type: ignore[arg-type]
    tokens = float(done["output_tokens"].sum())
    if client.users is not None:
        # As many tokens a second as that many users get, each of whom always has a request under way.
        values["req_s"] = client.users / values["e2e_mean"]
        values["out_tok_s"] = values["req_s"] * tokens / done.height
    else:
        span_s = float(done["finish_s"].max()) - float(rows["arrival_s"].min())  # type: ignore[arg-type]
        values["req_s"], values["out_tok_s"] = done.height / span_s, tokens / span_s
    facts = {
        "simulated_requests": rows.height,
        "unserved": rows.height - done.height,
        "preemptions": int(rows["preemptions"].sum()),
        "cached_share": int(rows["cached_tokens"].sum()) / int(rows["prompt_tokens"].sum()),
        "in_flight": values["req_s"] * values["e2e_mean"],
        "queue_share": float(np.mean(done["queue_s"].to_numpy())) / values["e2e_mean"],
    }
    return values, facts, before
