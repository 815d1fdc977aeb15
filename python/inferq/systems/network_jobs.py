"""Jobs of a network: conversion to requests, and results of jobs.

A job is a row of the workload. Its stages are requests: the rows of the core, ordered by job and within a job
by the order of stages in its workflow, so that their nominal arrivals (of the jobs) ascend.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inferq._lazy import NDArray, np, pl
from inferq.checks import nearest
from inferq.errors import ConfigError, TraceError
from inferq.systems.network import Network, Workflow
from inferq.systems.pools import entries
from inferq.workload.columns import MOST_SECONDS, MOST_TOKENS
from inferq.workload.dependencies import Flow, starts
from inferq.workload.distributions import DurationDistribution, LengthDistribution

_STAGE_WIDE = ("priority", "session_id", "patience_s", "cancel_s", "ttft_slo_s", "itl_slo_s", "proposal_rate")
"""Columns of a job that apply to each of its requests."""

_REFUSED = {
    "prompt_tokens": "must be absent: the stages of a network define lengths",
    "output_tokens": "must be absent: the stages of a network define lengths",
    "max_output_tokens": "must be absent: the stages of a network define lengths",
    "think_s": "must be absent: jobs are independent; use .open_loop() to send each at its arrival_s",
}

_STREAMS = {"prompt": 0, "output": 1, "delay_s": 2}
"""Random streams of a stage: stage k of all workflows has 3·k to 3·k + 2."""


@dataclass(frozen=True, slots=True, eq=False)
class Jobs:
    """The requests of all jobs of a network, in the core's order."""

    frame: pl.DataFrame
    """Columns as in a workload; `arrival_s` is the job's."""
    flow: Flow
    pool: NDArray[np.uint32]
    """The entry pool of each request."""
    first: NDArray[np.int64]
    """The first row of each job, then the number of rows."""
    workflow: NDArray[np.uint32]
    """The workflow of each job; then job, stage and engine of each row, as indices into the names."""
    job: NDArray[np.uint32]
    stage: NDArray[np.uint32]
    engine: NDArray[np.uint32]
    names: dict[str, list[str]]

    def cut(self, which: str, cut: dict[str, float]) -> dict[str, float]:
        """Convert a warm-up or cool-down in jobs to rows; seconds refer to arrivals of jobs."""
        if "requests" not in cut:
            return cut
        jobs, rows = self.first.size - 1, int(self.first[-1])
        count = min(int(cut["requests"]), jobs)
        return {
            "requests": int(self.first[count]) if which == "warmup" else rows - int(self.first[jobs - count])
        }

    @property
    def _at_once(self) -> NDArray[np.bool_]:
        """The rows that arrive together with their job."""
        immediate: NDArray[np.bool_] = (self.flow.parents == 0) & (self.flow.delay_s == 0)
        return immediate

    def columns_of(self, rows: NDArray[Any]) -> dict[str, NDArray[np.uint32]]:
        """The columns `job`, `stage` and `engine` of requests, by their ids."""
        return {name: getattr(self, name)[rows] for name in ("job", "stage", "engine")}

    def table(
        self,
        requests: Mapping[str, NDArray[Any]],
        elapsed_s: NDArray[np.float64],
        arrival_s: NDArray[np.float64],
        horizon_s: float | None,
        measured: tuple[int, int],
    ) -> dict[str, NDArray[Any]]:
        """Compute the columns of `Result.jobs` for the jobs that arrived by the horizon.

        Args:
            requests: the core's columns, with those of `columns_of`.
            elapsed_s: seconds from the arrival of its job to the end of each request.
            arrival_s: arrivals of all jobs of the workload.
            horizon_s: end of the run, or None.
            measured: the range of measured rows.
        """
        job = requests["job"].astype(np.int64)
        seen = int(job.max()) + 1 if job.size else 0
        # A job whose first stages are still delayed has no request yet.
        by_then = int(np.searchsorted(arrival_s, math.inf if horizon_s is None else horizon_s, "right"))
        count = max(seen, by_then)
        finished, rejected, abandoned, unfinished, lost = (
            np.bincount(job[requests["status"] == code], minlength=count) for code in range(5)
        )
        arrived = np.bincount(job, minlength=count)
        whole = finished == np.diff(self.first)[:count]
        status = np.select([rejected > 0, abandoned > 0, lost > 0, whole], [1, 2, 4, 0], 3).astype(np.uint8)

        last_s = np.full(count, -math.inf)
        left_s = requests["left_s"]
        np.maximum.at(last_s, job, np.where(np.isnan(left_s), -math.inf, left_s))
        has_ended = (status != 3) & (unfinished == 0)
        finish_s = np.where(status == 0, last_s, math.nan)
        # Use the core's rounding if a request of the job has its arrival.
        shown_s, at_once = arrival_s[:count].copy(), self._at_once[requests["id"]]
        shown_s[job[at_once]] = requests["arrival_s"][at_once]
        first = self.first[:count]
        longest_s = np.full(count, -math.inf)
        np.fmax.at(longest_s, job, elapsed_s)

        def total(tokens: NDArray[Any]) -> NDArray[np.int64]:
            summed = np.zeros(count, dtype=np.int64)
            np.add.at(summed, job, tokens.astype(np.int64))
            return summed

        return {
            "job": np.arange(count, dtype=np.uint32),
            "workflow": self.workflow[:count],
            "status": status,
            "measured": (measured[0] <= first) & (first < measured[1]),
            "arrival_s": shown_s,
            "finish_s": finish_s,
            "left_s": np.where(has_ended, last_s, math.nan),
            "e2e_s": np.where(status == 0, longest_s, math.nan),
            "stages": arrived.astype(np.int32),
            "finished_stages": finished.astype(np.int32),
            "prompt_tokens": total(requests["prompt_tokens"]),
            "output_tokens": total(requests["output_tokens"]),
        }


def expanded(network: Network, frame: pl.DataFrame, seed: int) -> Jobs:
    """Create the requests of the jobs in `frame`, with lengths and delays drawn from `seed`.

    Raises:
        ConfigError: a column that jobs cannot have, or no `class` for several workflows.
        TraceError: no arrivals, an unknown workflow, or a stage that is too long; it names the job.
    """
    for name, reason in _REFUSED.items():
        if name in frame.columns and frame[name].null_count() < frame.height:
            raise ConfigError(f"workload.{name}", reason)
    if "arrival_s" not in frame.columns:
        raise TraceError(
            "workload", "no arrival_s: use .with_arrivals(iq.dist.Poisson(rate=…)) or another arrival process"
        )
    workflow = _workflows(network, frame)
    stages = np.array([len(kind.stages) for kind in network.workflows])[workflow]
    first = np.concatenate([[0], np.cumsum(stages)])
    rows = int(first[-1])
    if rows >= 2**32:
        raise ConfigError("workload", f"{frame.height} jobs have {rows} stages, the maximum is 2^32 - 1")

    names = _names(network)
    place = {kind: {name: code for code, name in enumerate(listed)} for kind, listed in names.items()}
    enters = entries(network)
    codes_of = {
        name: np.empty(rows, dtype=np.uint32)
        for name in ("pool", "stage", "engine", "class", "parents", "next")
    }
    lengths = {name: np.empty(rows, dtype=np.int32) for name in ("prompt", "output")}
    continues = np.full(rows, -1, dtype=np.int64)
    heads: list[list[dict[str, Any]] | None] = []
    head = np.empty(rows, dtype=np.uint32)
    delay_s = np.zeros(rows)
    number = 0  # of the first stage, over all workflows
    for code, kind in enumerate(network.workflows):
        here = np.flatnonzero(workflow == code)
        drawn = _lengths(kind, number, frame.height, seed, here)
        followers = kind.followers()
        place_in = {name: at for at, name in enumerate(kind.stages)}
        for at, (name, stage) in enumerate(kind.stages.items()):
            mine = first[here] + at
            engine = place["engine"][stage.engine]
            codes_of["pool"][mine], codes_of["engine"][mine] = enters[engine], engine
            codes_of["stage"][mine] = place["stage"][name]
            codes_of["class"][mine] = place["class"][kind.class_of(name)]
            codes_of["parents"][mine] = len(stage.after)
            codes_of["next"][mine] = len(followers[name])
            lengths["prompt"][mine], lengths["output"][mine] = drawn[name]
            delay_s[mine] = _delays(kind, name, number + at, frame.height, seed, here)
            if stage.continues is not None:
                continues[mine] = first[here] + place_in[stage.continues]
            head[mine] = len(heads)
            texts = {"text": stage.prefix, "tokens": stage.prefix_tokens}
            heads.append(None if stage.prefix is None else [texts])
        number += len(kind.stages)

    columns = {
        "arrival_s": np.repeat(frame["arrival_s"].to_numpy(), stages),
        "prompt_tokens": lengths["prompt"],
        "output_tokens": lengths["output"],
    }
    job = np.repeat(np.arange(frame.height, dtype=np.uint32), stages)
    classes = pl.Series("class", names["class"], dtype=pl.Enum(names["class"]))
    wide: list[Any] = [name for name in _STAGE_WIDE if name in frame.columns]
    if "session_id" not in wide:  # the requests of a job are a session
        wide.append(pl.int_range(pl.len(), dtype=pl.UInt32).alias("session_id"))
    named = classes.gather(pl.Series(codes_of["class"]))
    requests = pl.DataFrame(columns).with_columns(named, *frame.select(wide)[job].get_columns())
    if (continues >= 0).any():
        link = pl.Series("continues", continues)
        requests = requests.with_columns(link.set(link < 0, None))
    if any(head_texts is not None for head_texts in heads):
        pair = pl.Struct({"text": pl.String, "tokens": pl.Int64})
        texts_of = pl.Series("prefix_parts", heads, dtype=pl.List(pair))
        requests = requests.with_columns(texts_of.gather(pl.Series(head)))
    children_start = starts(codes_of["next"])
    flow = Flow(
        codes_of["parents"], children_start, _children(network, workflow, first, children_start), delay_s
    )
    rows_of = (job, codes_of["stage"], codes_of["engine"])
    return Jobs(requests, flow, codes_of["pool"], first, workflow, *rows_of, names)


def _workflows(network: Network, frame: pl.DataFrame) -> NDArray[np.uint32]:
    """The index of each job's workflow."""
    names = [kind.name for kind in network.workflows]
    if "class" not in frame.columns:
        if len(names) > 1:
            raise ConfigError(
                "workload.class",
                f"missing: set the workflow of each job; the network has {', '.join(names)}",
            )
        return np.zeros(frame.height, dtype=np.uint32)
    given = frame["class"]
    categories = given.dtype.categories.to_list()  # type: ignore[attr-defined]  # a class is an Enum
    known = pl.Series([names.index(name) if name in names else None for name in categories], dtype=pl.UInt32)
    codes = known.gather(given.to_physical())
    if codes.null_count():
        row = int(codes.is_null().to_numpy().argmax())
        raise TraceError(f"row {row}: unknown workflow {given[row]!r} in class{nearest(given[row], names)}")
    workflow: NDArray[np.uint32] = codes.to_numpy()
    return workflow


def _names(network: Network) -> dict[str, list[str]]:
    """The names of codes: workflows, stages and engines in order, classes sorted."""
    every = [(kind, name) for kind in network.workflows for name in kind.stages]
    return {
        "workflow": [kind.name for kind in network.workflows],
        "stage": list(dict.fromkeys(name for _, name in every)),
        "engine": list(network.engines),
        "class": sorted({kind.class_of(name) for kind, name in every}),
    }


def _lengths(
    workflow: Workflow, number: int, jobs: int, seed: int, here: NDArray[np.int64]
) -> dict[str, tuple[Any, Any]]:
    """Prompt and output tokens of each stage, for the jobs `here`; the first stage has `number`."""
    place_in = {name: at for at, name in enumerate(workflow.stages)}
    drawn: dict[str, tuple[Any, Any]] = {}
    for name in workflow.in_order():  # outputs precede the prompts that include them
        stage, mine = workflow.stages[name], number + place_in[name]
        output, prompt = (
            _length(workflow, name, part, mine, jobs, seed, here) for part in ("output", "prompt")
        )
        prompt = prompt + stage.prefix_tokens
        for other in stage.includes:
            prompt = prompt + drawn[other][1]
        if stage.continues is not None:
            prompt = prompt + sum(drawn[stage.continues])
        wrong = prompt + output > MOST_TOKENS
        if wrong.any():
            at = int(wrong.argmax())
            raise TraceError(
                f"row {here[at]}: stage {name!r} of workflow {workflow.name!r} has {prompt[at]} prompt "
                f"and {output[at]} output tokens, the maximum sum is {MOST_TOKENS}"
            )
        drawn[name] = (prompt, output)
    return drawn


def _length(
    workflow: Workflow, name: str, part: str, number: int, jobs: int, seed: int, here: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The tokens of one part of a stage, for the jobs `here`."""
    length = getattr(workflow.stages[name], part)
    if isinstance(length, tuple):
        if len(length) != here.size:
            raise ConfigError(
                f"workflows.{workflow.name}.stages.{name}.{part}",
                f"must have a length for each of the {here.size} jobs of this workflow, got {len(length)}",
            )
        return np.array(length, dtype=np.int64)
    if not isinstance(length, LengthDistribution):
        return np.full(here.size, length, dtype=np.int64)
    # Drawn for every job, so that the draws of a job do not depend on other jobs.
    return length.draw_column(jobs, seed, 3 * number + _STREAMS[part])[here].astype(np.int64)


def _delays(
    workflow: Workflow, name: str, number: int, jobs: int, seed: int, here: NDArray[np.int64]
) -> float | NDArray[np.float64]:
    """The delays of a stage of the jobs `here` in seconds."""
    delay = workflow.stages[name].delay_s
    if not isinstance(delay, DurationDistribution):
        return delay
    drawn = delay.draw(jobs, seed, 3 * number + _STREAMS["delay_s"])[here]
    wrong = ~((drawn >= 0) & (drawn < MOST_SECONDS))
    if wrong.any():
        at = int(wrong.argmax())
        raise TraceError(
            f"row {here[at]}: stage {name!r} of workflow {workflow.name!r} has a delay of {drawn[at]} s, "
            f"which must be from 0 to below {MOST_SECONDS:g} s"
        )
    return drawn


def _children(
    network: Network,
    workflow: NDArray[np.uint32],
    first: NDArray[np.int64],
    children_start: NDArray[np.uint32],
) -> NDArray[np.uint32]:
    """The dependents of each row, row by row."""
    children = np.empty(int(children_start[-1]), dtype=np.uint32)
    for code, kind in enumerate(network.workflows):
        base = first[np.flatnonzero(workflow == code)]
        place_in = {name: at for at, name in enumerate(kind.stages)}
        for name, followers in kind.followers().items():
            for place, later in enumerate(followers):
                at = children_start[base + place_in[name]].astype(np.int64) + place
                children[at] = base + place_in[later]
    return children
