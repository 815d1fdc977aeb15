"""Workloads from descriptions: what `Workload.to_json` gives, and the shorter forms that a user writes."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from inferq.checks import nearest, positive, whole
from inferq.description import read, table_of
from inferq.errors import ConfigError
from inferq.workload.distributions import (
    ARRIVAL_PROCESSES,
    DURATION_DISTRIBUTIONS,
    LENGTH_DISTRIBUTIONS,
    ArrivalProcess,
    DurationDistribution,
    Empirical,
    Exponential,
    Gamma,
    LengthDistribution,
    Poisson,
)
from inferq.workload.generated import Origin
from inferq.workload.rows import Shelf
from inferq.workload.traces.read_trace import read_trace
from inferq.workload.transforms import duration, turns_by_session
from inferq.workload.workload import Workload

THINK = Exponential(mean_s=20.0)
"""From an answer to the next turn where arrivals of conversations are drawn and nothing is said: a user who
reads an answer of 250 tokens at 4 words a second takes about 45 s, one who glances at it a few. It matters
for what a prefix cache has forgotten by then, so a run says it."""

_RANGE = ("clients", "start_s", "end_s", "rate_factor")
_READING = ("trace", "format", "columns", "tokenizer", "tokens_per_word", "time_unit", *_RANGE, "sha256")
_SHORT = ("head", "output_tokens", "rate", "request_rate", "burstiness", "concurrency", "ramp_s", "speed")
_SYNTHETIC = ("requests", "arrivals", "prompt", "output", "lengths", "classes")
_SESSIONS = ("sessions", "arrivals", "turns", "prompt", "output", "think", "grows", "max_context")
_MIX = ("mix", "requests")
_ROWS = ("data", "rows", "columns", "sha256")
_ON_ALL = ("prefix", "patience", "metadata", "transforms")

TRANSFORMS = (
    *("at_rate", "speed", "window", "head", "sample", "with_arrivals", "with_prompts", "with_outputs"),
    *(
        "with_classes",
        "with_think",
        "with_session_arrivals",
        "closed_loop",
        "at_once",
        "open_loop",
        "with_patience",
        "with_prefix",
        "split",
        "concat",
    ),
)
"""What may be done to a workload: methods of `Workload`."""


def read_workload(
    path: str,
    description: object,
    shelf: Shelf,
    notes: list[str],
    *,
    requests: int | None = None,
    jobs: bool = False,
) -> Workload:
    """The workload that a table describes.

    Args:
        path: the table's.
        description: the table.
        shelf: where its files and rows are.
        notes: gets a sentence for each change of a trace.
        requests: the number of a synthetic workload that does not say its own.
        jobs: whether its rows are jobs of a network, which need no lengths.

    Raises:
        ConfigError: an unknown, missing or wrong field, named by its path.
        TraceError: a trace or rows in it are wrong.
        OSError: a trace in it cannot be read.
    """
    table = table_of(path, description)
    if "trace" in table:
        table_of(path, table, (*_READING, *_SHORT, "think", *_ON_ALL))
        short = {name: table[name] for name in _SHORT if name in table}
        if "think" in table:
            short["think"] = _duration(f"{path}.think", table["think"])
        trace = _trace(path, table, shelf)
        needs = () if "transforms" in table else ("arrival_s",) if jobs else ("arrival_s", "output_tokens")
        workload = adapted(trace, **short, notes=notes, needs=needs)
    elif "mix" in table:
        table_of(path, table, (*_MIX, *_ON_ALL))
        workload = _mix(path, table, shelf, notes, jobs)
    elif "sessions" in table:
        table_of(path, table, (*_SESSIONS, *_ON_ALL))
        workload = _sessions(path, table)
    elif "data" in table or "sha256" in table:
        table_of(path, table, (*_ROWS, *_ON_ALL))
        metadata = dict(table_of(f"{path}.metadata", table.get("metadata", {})))
        workload = Workload._of(shelf.rows(path, table), metadata=metadata)
    else:
        others = () if "requests" in table else ("trace", "mix", "sessions", "data")
        table_of(path, table, (*others, *_SYNTHETIC, *_ON_ALL))
        workload = _synthetic(path, table, shelf, requests, jobs or "transforms" in table)
    if "prefix" in table:
        prefix = table_of(f"{path}.prefix", table["prefix"], ("text", "tokens"), ("text", "tokens"))
        workload = _made(f"{path}.prefix", workload.with_prefix, **prefix)
    if "patience" in table:
        workload = workload.with_patience(_duration(f"{path}.patience", table["patience"]))
    steps = table.get("transforms", [])
    if not isinstance(steps, list):
        raise ConfigError(f"{path}.transforms", f"must be a list of tables, is {steps!r}")
    for place, step in enumerate(steps):
        workload = _transformed(workload, f"{path}.transforms[{place}]", step, shelf)
    return workload


def _made(path: str, make: Callable[..., Any], *arguments: Any, **fields: Any) -> Any:
    """What a call makes; an error names its place from `path` on."""
    try:
        return make(*arguments, **fields)
    except ConfigError as error:
        raise error.within(path) from None


def _transformed(workload: Workload, path: str, description: object, shelf: Shelf) -> Workload:
    """A workload after one transform, a table with its name as `kind` and its arguments."""
    table = dict(table_of(path, description))
    kind = table.pop("kind", None)
    if kind not in TRANSFORMS:
        raise ConfigError(f"{path}.kind", f"unknown transform {kind!r}{nearest(str(kind), TRANSFORMS)}")
    method = getattr(Workload, kind)
    parameters = [one for one in inspect.signature(method).parameters.values() if one.name != "self"]
    names = [one.name for one in parameters] + (["part"] if kind == "split" else [])
    needed = [
        one.name for one in parameters if one.default is one.empty and one.kind is not one.VAR_POSITIONAL
    ]
    table_of(path, table, names, needed)
    arguments = {name: _argument(f"{path}.{name}", name, value, shelf) for name, value in table.items()}
    others, part = arguments.pop("others", ()), arguments.pop("part", 0)
    changed = _made(path, method, workload, *others, **arguments)
    if kind != "split":
        return changed  # type: ignore[no-any-return]  # a workload
    if part not in (0, 1):
        raise ConfigError(f"{path}.part", f"must be 0 or 1, is {part!r}")
    return changed[part]  # type: ignore[no-any-return]


def _argument(path: str, name: str, value: Any, shelf: Shelf) -> Any:
    """An argument of a transform: a plain value, given values, a distribution, or workloads to merge."""
    if name == "others":
        if not isinstance(value, list):
            raise ConfigError(path, f"must be a list of workloads, is {value!r}")
        return [read_workload(f"{path}[{at}]", one, shelf, []) for at, one in enumerate(value)]
    if name == "end_s" and value is None:
        return math.inf
    if not isinstance(value, Mapping) or (name == "classes" and not {"values", "sha256"} & set(value)):
        return value
    if "values" in value:
        return value["values"]
    if "sha256" in value:
        return shelf.rows(path, value).to_series(0)
    if name == "arrivals":
        return read(path, value, ARRIVAL_PROCESSES)
    if name in ("prompts", "outputs"):
        kinds: tuple[type[Any], ...] = (*LENGTH_DISTRIBUTIONS, Empirical)
        return read(path, value, kinds)
    return read(path, value, DURATION_DISTRIBUTIONS)


def _synthetic(
    path: str, table: Mapping[str, Any], shelf: Shelf, requests: int | None, jobs: bool
) -> Workload:
    """The workload that the distributions of a table describe; `jobs` need no lengths."""
    for name in ("requests", "arrivals"):
        if name not in table and (name == "arrivals" or requests is None):
            raise ConfigError(
                f"{path}.{name}", "missing; a workload is a trace, or requests drawn from distributions"
            )
    parts: dict[str, Any] = {"arrivals": read(f"{path}.arrivals", table["arrivals"], ARRIVAL_PROCESSES)}
    if "lengths" in table:
        here, lengths = f"{path}.lengths", table_of(f"{path}.lengths", table["lengths"])
        if "kind" in lengths:
            parts["lengths"] = read(here, lengths, (Empirical,))
        else:
            table_of(here, lengths, _READING)
            parts["lengths"] = Empirical(_trace(here, lengths, shelf).frame)
    for name in ("prompt", "output"):
        if name in table:
            parts[name] = read(f"{path}.{name}", table[name], LENGTH_DISTRIBUTIONS)
        elif "lengths" not in table and (not jobs or "prompt" in table or "output" in table):
            raise ConfigError(f"{path}.{name}", "missing")
    drawn: Workload = _made(path, Workload.synthetic, requests=table.get("requests", requests), **parts)
    if "classes" in table:
        drawn = _made(path, drawn.with_classes, table_of("classes", table["classes"]))
    return drawn


def _sessions(path: str, table: Mapping[str, Any]) -> Workload:
    """The sessions that a table describes."""
    table_of(path, table, None, ("arrivals", "turns", "prompt", "output", "think"))
    parts = {name: value for name, value in table.items() if name not in _ON_ALL}
    parts["arrivals"] = read(f"{path}.arrivals", table["arrivals"], ARRIVAL_PROCESSES)
    for name in ("turns", "prompt", "output"):
        parts[name] = _length(f"{path}.{name}", table[name])
    parts["think"] = _duration(f"{path}.think", table["think"])
    return _made(path, Workload.sessions, **parts)  # type: ignore[no-any-return]


def _mix(path: str, table: Mapping[str, Any], shelf: Shelf, notes: list[str], jobs: bool) -> Workload:
    """The classes that a table describes, side by side; `jobs` need no lengths."""
    requests = table.get("requests")
    parts = {}
    for name, part in table_of(f"{path}.mix", table["mix"]).items():
        own: list[str] = []
        # any number does for a part of a mix that says how many it takes in all
        least = None if requests is None else 1
        parts[name] = read_workload(f"{path}.mix.{name}", part, shelf, own, requests=least, jobs=jobs)
        notes += [f"class {name}: {note}" for note in own]
    return _made(path, Workload.mix, parts, requests=requests)  # type: ignore[no-any-return]


def _length(path: str, value: object) -> int | LengthDistribution:
    """A number of tokens, or a distribution of it."""
    return read(path, value, LENGTH_DISTRIBUTIONS) if isinstance(value, Mapping) else value  # type: ignore[return-value]


def _duration(path: str, value: object) -> float | DurationDistribution:
    """Seconds, or a distribution of them."""
    if isinstance(value, Mapping):
        return read(path, value, DURATION_DISTRIBUTIONS)
    return duration(path, value)


def _trace(path: str, table: Mapping[str, Any], shelf: Shelf) -> Workload:
    """The trace that a table names; where it says a SHA-256, that trace or its rows, and no other."""
    for name in ("trace", "tokenizer"):
        if not isinstance(table.get(name, ""), str):
            raise ConfigError(f"{path}.{name}", f"must be the name of a file, not {table[name]!r}")
    table_of(path, table, None, ("trace",))
    columns, recorded = table.get("columns"), "sha256" in table
    file = shelf.path(table["trace"], recorded=recorded)
    frame = None if not recorded or file.exists() else shelf.find(str(table["sha256"]))
    if frame is not None:
        how = {name: table[name] for name in _READING if name in table and name != "sha256"}
        return Workload._of(frame, metadata=dict(table.get("metadata", {})), origin=Origin(how, frame))
    trace = read_trace(
        file,
        table.get("format"),
        columns=None if columns is None else table_of(f"{path}.columns", columns),
        tokenizer=shelf.path(table["tokenizer"], recorded=recorded) if "tokenizer" in table else None,
        tokens_per_word=table.get("tokens_per_word"),
        time_unit=table.get("time_unit"),
        **{name: table.get(name) for name in _RANGE},
    )
    if recorded and trace.to_json()["sha256"] != table["sha256"]:
        raise ConfigError(
            f"{path}.sha256", f"{table['trace']} holds other requests than those of this record"
        )
    return trace


def adapted(
    trace: Workload,
    *,
    head: int | None = None,
    output_tokens: int | None = None,
    rate: float | None = None,
    request_rate: float | None = None,
    burstiness: float | None = None,
    concurrency: int | None = None,
    ramp_s: float | None = None,
    speed: float | None = None,
    think: float | DurationDistribution | None = None,
    notes: list[str],
    needs: Sequence[str] = ("arrival_s", "output_tokens"),
) -> Workload:
    """The requests of a trace, cut, completed and rescaled; `notes` gets a sentence for each change.

    Args:
        trace: as it was read.
        head: so many requests are taken.
        output_tokens: of each request.
        rate: requests per second, to which arrivals are scaled.
        request_rate: the same, but arrivals are drawn anew, as load generators do; infinity: all at once.
        burstiness: shape of the gamma gaps that are drawn then, as vLLM's benchmark has it: 1 is Poisson,
            below 1 burstier.
        concurrency: so many users send the requests, each when the one before is answered.
        ramp_s: seconds over which these users start.
        speed: factor by which times are divided.
        think: from an answer to the next turn of its session; where arrivals of conversations are drawn and
            nothing is said, `THINK`.
        notes: gets the sentences.
        needs: columns that must be there, or be filled in here.

    Raises:
        ConfigError: a value outside its range, or a part that the trace lacks and nothing fills.
    """
    if rate is not None and speed is not None:
        raise ConfigError("speed", "scales the arrivals that rate sets; give only one of the two")
    if burstiness is not None and request_rate is None:
        raise ConfigError(
            "burstiness", "shapes the gaps of how many requests per second? Say request_rate too"
        )
    if request_rate is not None and (rate is not None or speed is not None):
        raise ConfigError(
            "request_rate", "draws the arrivals anew; leave out rate and speed, which scale them"
        )
    for name, other in (("rate", rate), ("request_rate", request_rate), ("speed", speed)):
        if concurrency is not None and other is not None:
            raise ConfigError("concurrency", f"users who wait for answers set the pace; leave out {name}")
    if ramp_s is not None and concurrency is None:
        raise ConfigError("ramp_s", "how many users start in that time? Say concurrency too")
    for name, value in (("rate", rate), ("speed", speed)):
        if value == math.inf and name == "rate":
            raise ConfigError(
                "rate", "must be finite; request_rate inf (--request-rate inf) sends all at once"
            )
        if value is not None:
            positive(name, value)
    if head is not None:
        whole("head", head, 1, 2**63 - 1)
    columns = trace._source.columns  # of a frame or of what is drawn
    notes += _notes(trace)
    if head is not None:
        rows = None if trace.is_synthetic else trace.frame.height
        trace = trace.head(head)
        count = f"the first {head:,}" if rows is None else f"the first {trace.frame.height:,} of {rows:,}"
        notes.append(f"{count} requests")
    if output_tokens is not None:
        trace = trace.with_outputs(output_tokens)
        done = "replaced by" if "output_tokens" in columns else "not in the trace, set to"
        notes.append(f"output lengths {done} {output_tokens:,} tokens each")
    elif "output_tokens" not in columns and "output_tokens" in needs:
        raise ConfigError(
            "output_tokens",
            "the trace has no output lengths; say how many tokens a request generates "
            "(--output-tokens, .with_outputs(…)), or which column says it",
        )
    if concurrency is not None:
        whole("concurrency", concurrency, 1, 2**32 - 1)
        loop = trace.closed_loop(concurrency, ramp_s=0.0 if ramp_s is None else ramp_s)
        notes.append(f"sent by {concurrency:,} users, each of whom waits for the answer before the next")
        if not trace.is_synthetic and (idle := concurrency - trace.frame.height) > 0:
            notes.append(f"there are {trace.frame.height:,} requests: of the users {idle:,} send none")
        return loop
    if request_rate == math.inf:
        notes.append("all requests sent at once")
        return trace.at_once()
    if request_rate is not None:
        positive("request_rate", request_rate)
        shape = 1.0 if burstiness is None else positive("burstiness", burstiness)
        process = f"gamma gaps of shape {shape:g}"

        def drawn(mean: float) -> ArrivalProcess:
            return Poisson(mean) if shape == 1 else Gamma(mean, cv=shape**-0.5)

        return _arriving(trace, "arrivals drawn", process, drawn, request_rate, think, notes)
    if "arrival_s" not in columns:
        if rate is not None:
            why = "arrival times not in the trace, drawn"
            return _arriving(trace, why, "Poisson", Poisson, rate, think, notes)
        if "arrival_s" in needs:
            raise ConfigError(
                "rate", "the trace has no arrival times; say how many requests arrive per second"
            )
    elif rate is not None:
        trace = trace.at_rate(rate)
        notes.append(f"arrival times scaled to {rate:g} requests per second")
    if speed is not None:
        trace = trace.speed(speed)
        notes.append(f"arrival times divided by {speed:g}")
    if think is not None:
        trace = trace.with_think(think)
        notes.append(f"later turns of a session follow the answer before them after {_said(think)}")
    return trace


def _arriving(
    trace: Workload,
    why: str,
    process: str,
    drawn: Callable[[float], ArrivalProcess],
    rate: float,
    think: float | DurationDistribution | None,
    notes: list[str],
) -> Workload:
    """The requests of a trace at drawn times; of conversations the starts are drawn."""
    if not is_of_talks(trace):
        if think is not None:
            raise ConfigError("think", "the trace has no turns of conversations that could follow an answer")
        notes.append(f"{why}: {process} at {rate:g} requests per second")
        return trace.with_arrivals(drawn(rate))
    sessions, requests = turns_by_session(trace.frame)
    of_starts = rate * sessions / requests
    notes.append(
        f"{why} for {sessions:,} conversations of {requests / sessions:.3g} turns: {process} at "
        f"{of_starts:.4g} starts per second, {rate:g} requests per second in the long run"
    )
    notes.append(
        f"later turns follow the answer before them after {_said(THINK if think is None else think)}"
        + (", unless --think (think) says otherwise" if think is None else "")
    )
    return trace.with_session_arrivals(drawn(of_starts), THINK if think is None else think)


def is_of_talks(trace: Workload) -> bool:
    """Whether rows are turns of conversations, whose prompts contain the answers before."""
    if trace.is_synthetic:
        return False
    frame = trace.frame
    says = {"turn", "continues"} & {*frame.columns}
    return bool(says) and "session_id" in frame.columns and turns_by_session(frame)[0] < frame.height


def _said(think: float | DurationDistribution) -> str:
    """A think time in words."""
    return f"{think:g} s" if isinstance(think, (int, float)) else f"a think time of {think!r}"


def _notes(trace: Workload) -> list[str]:
    """What a reader of the run should know about how the trace was read."""
    left_out = trace.metadata["rows_left_out"]
    notes = [f"{count:,} rows left out: {why.replace('_', ' ')}" for why, count in left_out.items() if count]
    if "expected_requests" in trace.metadata:
        notes.append(
            f"requests drawn from {trace.metadata['clients']:,} clients' measured arrivals and lengths"
        )
    if without := trace.metadata.get("clients_left_out", {}).get("no_lengths"):
        notes.append(f"{len(without):,} clients left out: no lengths")
    if isinstance(trace.metadata["token_count"], dict):
        how = ", ".join(f"{name} {value}" for name, value in trace.metadata["token_count"].items())
        notes.append(f"tokens counted from texts: {how}")
    return notes
