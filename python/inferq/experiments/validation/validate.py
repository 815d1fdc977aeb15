"""`inferq.validate`: comparison of simulations with measured runs."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from inferq._lazy import np, pl
from inferq.checks import shown, whole
from inferq.display.text import counted
from inferq.errors import ConfigError, SimulationError, TraceError
from inferq.experiments.validation.calibration_rows import calibrated_on
from inferq.experiments.validation.clients import Client, client_for
from inferq.experiments.validation.measured_run import QUANTITIES, STATISTICS, MeasuredRun
from inferq.experiments.validation.reading import read_runs
from inferq.experiments.validation.settings import Assumptions, engine_for, timing_of
from inferq.experiments.validation.validated_run import ValidatedRun
from inferq.experiments.validation.validation import Validation
from inferq.simulation.simulate import simulate
from inferq.systems.engine import Engine

EngineFor = Callable[[MeasuredRun, Assumptions], Engine]

_STAGE = re.compile(r"(.*)-s(\d+)")
_KNOWN = re.compile(r"(; (use|describe) .*?)?; known names: .*", re.DOTALL)
"""Hints of an error that the list of runs leaves out."""
_BETWEEN_STAGES_S = 1.0
_MOST_FAILED = 0.05
"""Runs with a larger share of failed requests are not evaluated: the reaction of clients is unknown."""


def validate(
    runs: str | os.PathLike[str] | Sequence[MeasuredRun],
    *,
    requests: str | os.PathLike[str] | None = None,
    given: Mapping[str, object] | None = None,
    only: Mapping[str, object] | None = None,
    engine: EngineFor = engine_for,
    seed: int = 1,
) -> Validation:
    r"""Simulate measured runs with their published settings, and compare each metric.

    Each run is simulated once with the published settings of the server and load of the client. Nothing is
    fitted to the measured values. Missing settings are assumed by the rules of
    `experiments.validation.settings` and `clients`; `Validation.assumed` lists all assumptions.

    `Validation.runs` has the reason for each run that cannot be simulated: an unknown model, a feature that
    is not supported, a cache that is too small. Runs with a `doubt`, runs with unknown speculative decoding,
    and runs of the fold `fit` are simulated, but not evaluated.

    Users of a closed loop start together, and every request counts. Runs `name-s0`, `name-s1`, … are stages
    of one server; with prefix caching, a stage reuses the cache of earlier stages in the file.

    Args:
        runs: a file: CSV with one row per run, a JSON result of `vllm bench serve`, or AIPerf's
            `profile_export_aiperf.json`; or runs that were read. Columns are the fields of `MeasuredRun`, and
            `ttft_mean_s`, `ttft_p50_s`, …, `tpot_mean_s`, …, `e2e_mean_s`, …, `req_s`, `out_tok_s`.
        requests: CSV with the requests of runs that replay a trace: `run`, `arrival_s`, `prompt_tokens`,
            `output_tokens`.
        given: settings of runs that lack them, by column: `{"gpu": "h100-80gb", "tp": 2}`.
        only: select runs with these values, by column.
        engine: makes the engine of a run and records assumptions. Default: `engine_for`.
        seed: seed of arrivals.

    Returns:
        The measured and simulated metrics, and their errors.

    Raises:
        TraceError: a row is wrong (names file, row and column), or no run can be simulated.
        ConfigError: an argument is wrong, or the file has another format.
        SimulationError: no run can be simulated, and the first fails; it names the row.
        OSError: a file cannot be read.

    Source: relative errors by median and 90th percentile, as in published comparisons of simulators with
        servers.

    Example:
        >>> import inferq as iq, pathlib, tempfile
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "runs.csv"
        >>> _ = file.write_text(
        ...     "id,engine,engine_version,model,gpu,tp,concurrency,input_mean,output_mean,tpot_mean_s\n"
        ...     "mine,vllm,0.12.0,Qwen/Qwen3-32B,h100-80gb,2,8,1024,128,0.018\n"
        ... )
        >>> validation = iq.validate(file)
        >>> validation.frame.select("run", "metric", "measured").rows()
        [('mine', 'tpot_mean', 0.018)]
        >>> validation.assumed.filter(setting="max_num_seqs").select("value", "reason").row(0)
        ('1024', "vLLM's default for an API server on h100-80gb")
    """
    whole("seed", seed, 0, 2**64 - 1)
    for name, value in (("given", given), ("only", only)):
        if not isinstance(value, (Mapping, type(None))):
            raise ConfigError(name, f"must be a mapping of columns to values, got {shown(value)}")
    if not callable(engine):
        raise ConfigError("engine", f"must be a function, got {shown(engine)}")
    if isinstance(runs, (str, os.PathLike)):
        measured = read_runs(runs, requests=requests, given=given)
    else:
        if requests is not None or given is not None:
            raise ConfigError(
                "requests" if given is None else "given",
                "requires a file of runs, got runs that were already read",
            )
        is_several = isinstance(runs, Iterable)
        measured = list(runs) if is_several else []
        if not is_several or not all(isinstance(run, MeasuredRun) for run in measured):
            raise ConfigError("runs", f"must be a file or runs of read_runs, got {shown(runs)}")
    selected = _selected(measured, only or {})
    validated = [row for group in _groups(selected) for row in _simulated(group, engine, seed)]
    place = {run.id: at for at, run in enumerate(selected)}
    validated.sort(key=lambda row: place[row.run.id])
    if all(row.error for row in validated):
        assert validated[0].error is not None
        raise validated[0].error
    return Validation.of(validated)


def _selected(runs: list[MeasuredRun], only: Mapping[str, object]) -> list[MeasuredRun]:
    for name in only:
        if name not in MeasuredRun.__dataclass_fields__ or name in ("measured", "requests", "place"):
            raise ConfigError("only", f"runs have no column {name!r}")
    selected = [
        run for run in runs if all(str(getattr(run, name)) == str(value) for name, value in only.items())
    ]
    if not selected:
        raise ConfigError("only", f"matches none of {counted(len(runs), 'run')}: {dict(only)}")
    return selected


def _groups(runs: Iterable[MeasuredRun]) -> list[list[MeasuredRun]]:
    """Group the stages of a server in order; other runs are groups of one."""
    groups: dict[str, list[tuple[int, MeasuredRun]]] = {}
    for run in runs:
        stage = _STAGE.fullmatch(run.id)
        name, number = (stage[1], int(stage[2])) if stage else (f"{run.id}\0", 0)
        groups.setdefault(name, []).append((number, run))
    return [[run for _, run in sorted(group, key=lambda stage: stage[0])] for group in groups.values()]


def _simulated(stages: list[MeasuredRun], engine: EngineFor, seed: int) -> list[ValidatedRun]:
    """Simulate the stages of one server."""
    validated: list[ValidatedRun] = []
    before: list[pl.DataFrame] = []
    for run in stages:
        assumptions = Assumptions()
        try:
            if not run.measured:
                raise TraceError(run.place, "has no measured value of a compared metric")
            made = engine(run, assumptions)
            client = client_for(run, assumptions, seed)
            if made.kv.prefix_cache is None or client.users is not None:
                before = []
            if (
                not before
                and (stage := _STAGE.fullmatch(run.id))
                and int(stage[2]) > 0
                and made.kv.prefix_cache
            ):
                assumptions.assume("earlier stages", "none", "not in the file, so the cache is cold")
            simulated, facts, before = _simulate(made, client, before, seed, assumptions)
        except (SimulationError, ConfigError, TraceError) as error:
            reason = str(error).removeprefix(f"{run.place}, ").removeprefix(f"{run.place}: ")
            located = error if reason != str(error) else type(error)(f"{run.place}: {error}")
            exclusion = f"not simulated: {_KNOWN.sub('', reason)}"
            validated.append(ValidatedRun(run, assumptions, "", {}, exclusion, located))
            continue
        validated.append(
            ValidatedRun(run, assumptions, timing_of(made), simulated, _exclusion(run), facts=facts)
        )
    return validated


def _exclusion(run: MeasuredRun) -> str:
    """The reason why a simulated run is not evaluated, or an empty text."""
    failed = (run.failures or 0) / (run.n_requests or math.inf)
    if failed > _MOST_FAILED:
        return f"{100 * failed:.0f} % of the requests failed"
    if run.doubt:
        return f"doubtful: {run.doubt}"
    if run.speculation not in (None, "none"):
        return f"speculative decoding: {run.speculation}"
    if (rows := calibrated_on(run)) is not None:
        return f"used to calibrate the server ({rows})"
    return "in the fold that constants are calibrated on" if run.fold == "fit" else ""


def _simulate(
    engine: Engine, client: Client, before: list[pl.DataFrame], seed: int, assumptions: Assumptions
) -> tuple[dict[str, float], dict[str, Any], list[pl.DataFrame]]:
    """The metrics that the client measures, properties of the run, and all requests of the server so far."""
    options: dict[str, Any] = {"max_in_flight": client.max_in_flight, "seed": seed}
    if client.users is not None:
        assumptions.assume("start of users", "all at once", "not published; equal requests then stay in step")
        rows = simulate(client.workload(), engine, **options).requests
    else:
        frame = client.frame
        if before:
            earlier = pl.concat(before, how="diagonal")
            end_s = float(simulate(earlier, engine, **options).requests["finish_s"].max())  # type: ignore[arg-type]
            frame = frame.with_columns(pl.col("arrival_s") + (end_s + _BETWEEN_STAGES_S))
        before = [*before, frame]
        first = sum(stage.height for stage in before[:-1])
        requests = simulate(pl.concat(before, how="diagonal"), engine, **options).requests
        rows = requests.filter(pl.col("id") >= first)
    done = rows.filter(status="finished")
    if not done.height:
        raise ConfigError("kv_blocks", f"too small: none of {rows.height:,} simulated requests finished")
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
        # Little's law: every user always has one request in flight.
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
