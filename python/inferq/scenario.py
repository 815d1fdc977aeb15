"""How does a scenario written in TOML become a workload, what serves it, and the options of a run?

```toml
[workload]                      # a trace, its path from this file's directory …
trace = "azure.csv"
rate = 12.0                     # or speed; further fields: head, output_tokens, think, patience,
                                # format, columns, tokenizer, tokens_per_word,
                                # and for ServeGen clients, start_s, end_s, rate_factor

[workload]                      # … or distributions
requests = 10_000
arrivals = { kind = "Poisson", rate = 12.0 }
prompt = { kind = "Lognormal", mean = 230, median = 90, cap = 4096 }
output = { kind = "Geometric", mean = 250 }     # or, instead of both: lengths = { trace = "azure.csv" }
patience = 30.0                 # optional, of each of the four; or a distribution, as think below
prefix = { text = "system", tokens = 1200 }     # optional, of each of the four: `Workload.with_prefix`

[workload]                      # … or sessions in a closed loop
sessions = 500
arrivals = { kind = "Poisson", rate = 0.5 }     # of the sessions' starts
turns = { kind = "Geometric", mean = 4 }        # or a number, as prompt and output
prompt = 60
output = { kind = "Geometric", mean = 250 }
think = { kind = "Exponential", mean_s = 20 }   # or seconds
max_context = 32_768            # optional, as grows = true

[workload]                      # … or classes side by side, each a workload as above
requests = 10_000               # optional: in all; then a synthetic class needs no number of its own
[workload.mix.chat]
arrivals = { kind = "OnOff", on_rate = 20, off_rate = 2, mean_on_s = 30, mean_off_s = 90 }
prompt = { kind = "PoissonLength", mean = 512 }
output = { kind = "Geometric", mean = 250 }
[workload.mix.code]
trace = "azure.csv"

[engine.timing]
kind = "PiecewiseLinear"
base = 0.006
per_token = 32e-6
knee = 200                      # or kind = "TimingTable", file = "table.parquet" (from this file's directory)

[engine.scheduler]
kind = "Sarathi"
token_budget = 512

[engine.kv]                     # or kv = "unlimited" under [engine]
tokens = 432_000
prefix_cache = "blocks"         # optional: or "radix"

[engine]                        # or: a model on a GPU, with the arguments of `Engine.on`
model = "llama-3.1-8b"          # or the path of a config.json, from this file's directory
gpu = "a100-80gb"

[gate_and_route]                # instead of [engine] and [cluster]: the fields of `GateAndRoute`

[cluster]                       # optional: replicas of [engine] behind a router
replicas = 4
router = "LeastRequests"        # or [[cluster.engines]] instead of [engine] and replicas

[run]                           # optional: the keyword arguments of `simulate`, but for progress
seed = 1
warmup = "30s"

[gate]                          # optional: what `inferq gate` asks of it, see `inferq.gate`; a run of its own
seeds = 10                      # does not look at it
tolerance = { request_goodput = "1%", ttft_p99 = "20ms" }
```

Instead of `[cluster]` there may be `[disaggregated]`, with `prefill = { replicas = 2 }`, `decode`, `link` and
the two routers, or `[network]`, with `[network.engines.NAME]` and `[network.workflows.NAME.stages.NAME]`. A
cluster without `engines` and a side without `engine`, in a network too, take `[engine]`. The workload of a
network is jobs: a synthetic one has no lengths, and `classes = { NAME = share }` where workflows are several.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from inferq.description import nearest, read, read_fields
from inferq.errors import ConfigError
from inferq.experiments.gates.terms import Terms
from inferq.results.result import Result
from inferq.simulation.simulate import simulate
from inferq.systems.cluster import Cluster
from inferq.systems.disaggregated import Disaggregated
from inferq.systems.engine import Engine
from inferq.systems.gate_and_route import GateAndRoute
from inferq.systems.network import Network
from inferq.systems.system import SYSTEMS, System
from inferq.timing.hardware.model_shape import is_path
from inferq.workload.distributions import (
    Deterministic,
    DurationDistribution,
    Empirical,
    Exponential,
    Fixed,
    Gamma,
    Geometric,
    LengthDistribution,
    Lognormal,
    LogUniform,
    OnOff,
    Poisson,
    PoissonLength,
    TimeVarying,
    Uniform,
    Weibull,
)
from inferq.workload.traces.read_trace import read_trace
from inferq.workload.transforms import duration
from inferq.workload.workload import Workload

ARRIVAL_PROCESSES = (Poisson, Gamma, Weibull, Deterministic, OnOff, TimeVarying)
LENGTH_DISTRIBUTIONS = (Fixed, Uniform, LogUniform, Lognormal, Geometric, PoissonLength)
DURATION_DISTRIBUTIONS = (Exponential,)

_RANGE = ("clients", "start_s", "end_s", "rate_factor")
_READING = ("trace", "format", "columns", "tokenizer", "tokens_per_word", *_RANGE)
_CHANGES = ("head", "output_tokens", "rate", "speed")
_SYNTHETIC = ("requests", "arrivals", "prompt", "output", "lengths", "classes")
_SESSIONS = ("sessions", "arrivals", "turns", "prompt", "output", "think", "grows", "max_context")
_MIX = ("mix", "requests")
_ON_ALL = ("prefix", "patience")
_SYSTEMS: tuple[type[Cluster | Disaggregated | Network | GateAndRoute], ...] = (
    *(Cluster, Disaggregated, Network),
    GateAndRoute,
)
_RUN = tuple(
    name
    for name, parameter in inspect.signature(simulate).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY and name != "progress"
)


@dataclass(frozen=True, slots=True)
class Scenario:
    """All that a run needs: which requests, what serves them, which options of `simulate`."""

    workload: Workload
    system: System
    run: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    """What was done to the trace before the run, in plain words."""

    gate: Terms | None = None
    """What the gate asks of it; None where the file does not say."""

    def simulate(self, progress: bool = False) -> Result:
        """Run it."""
        return simulate(self.workload, self.system, progress=progress, **self.run)


@dataclass(frozen=True, slots=True)
class ScenarioFile:
    """A scenario in TOML whose fields can be set anew."""

    file: Path
    tables: Mapping[str, Any]
    directory: Path
    """Where paths in the file start."""

    @classmethod
    def read(cls, path: str | Path) -> ScenarioFile:
        """The tables of a file, not looked at yet.

        Raises:
            ConfigError: the file is no TOML.
            OSError: the file cannot be read.
        """
        file = Path(path)
        try:
            return cls(file, _parsed(file), file.parent)
        except ConfigError as error:
            raise error.within(str(file), ": ") from None

    def with_fields(self, fields: Mapping[str, object]) -> ScenarioFile:
        """The scenario with some fields set.

        Args:
            fields: values by the path of a field, `engine.scheduler.token_budget`; an entry of a list by its
                number, `cluster.engines.0.kv.tokens`. The table that holds a field must be in the file,
                except `run`.

        Raises:
            ConfigError: a path that leads nowhere.
        """
        tables: Any = self.tables
        try:
            for path, value in fields.items():
                tables = _with(tables, path.split("."), value, path)
        except ConfigError as error:
            raise error.within(str(self.file), ": ") from None
        return ScenarioFile(self.file, tables, self.directory)

    def scenario(self) -> Scenario:
        """The scenario that the tables describe.

        Raises:
            ConfigError: an unknown, missing or wrong field, named by its path.
            TraceError: a trace in it is wrong.
            OSError: a trace in it cannot be read.
        """
        try:
            return _scenario(self.tables, self.directory)
        except ConfigError as error:
            raise error.within(str(self.file), ": ") from None


def _with(tables: Any, parts: list[str], value: object, path: str) -> Any:
    """A copy of `tables`, which holds what is left of `path`, in which that field has `value`."""
    name, rest = parts[0], parts[1:]
    before = ".".join(path.split(".")[: -len(parts)])
    if isinstance(tables, list):
        if not name.isdecimal() or int(name) >= len(tables):
            raise ConfigError(path, f"{before} is a list of {len(tables)}, and has no entry {name}")
        return [
            (_with(one, rest, value, path) if rest else value) if place == int(name) else one
            for place, one in enumerate(tables)
        ]
    if not isinstance(tables, Mapping):
        raise ConfigError(path, f"{before} is {tables!r}, not a table")
    if not rest:
        return {**tables, name: value}
    if name not in tables and path != f"run.{rest[0]}":
        known = nearest(name, tables) if tables else ""
        raise ConfigError(path, f"the file has no {f'{before}.' if before else ''}{name}{known}")
    return {**tables, name: _with(tables.get(name, {}), rest, value, path)}


def read_scenario(path: str | Path) -> Scenario:
    """The scenario in a TOML file; paths in it start from the file's directory.

    Raises:
        ConfigError: the file is no TOML, or has an unknown, missing or wrong field, named by its path.
        TraceError: a trace in it is wrong.
        OSError: the file cannot be read.
    """
    return ScenarioFile.read(path).scenario()


def _parsed(file: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(file.read_bytes().decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"is no UTF-8 text (byte {error.start})") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"is no TOML: {error}") from None


def _scenario(tables: Mapping[str, Any], directory: Path) -> Scenario:
    _known("", tables, ("workload", *(kind.name_of_kind for kind in SYSTEMS), "run", "gate"))
    if "workload" not in tables:
        raise ConfigError("workload", "missing")
    workload, run = _table("workload", tables["workload"]), _table("run", tables.get("run", {}))
    _known("run", run, _RUN)
    system = _system(_placed(tables, directory))
    is_network = isinstance(system, Network)
    notes: list[str] = []
    drawn = _workload("workload", workload, directory, notes, jobs=is_network)
    asked = read_fields("gate", tables["gate"], Terms) if "gate" in tables else None
    return Scenario(drawn, system, run, tuple(notes), asked)


def _workload(
    path: str,
    table: Mapping[str, Any],
    directory: Path,
    notes: list[str],
    *,
    requests: int | None = None,
    jobs: bool = False,
) -> Workload:
    """The workload that a table describes; `requests` is for a synthetic one without a number of its own.

    `jobs` need no lengths.
    """
    if "trace" in table:
        _known(path, table, (*_READING, *_CHANGES, "think", *_ON_ALL))
        changes = {name: table[name] for name in _CHANGES if name in table}
        made = adapted(_read(path, table, directory), **changes, notes=notes, jobs=jobs)
        if "think" in table:
            made = made.with_think(_duration(f"{path}.think", table["think"]))
    elif "mix" in table:
        _known(path, table, (*_MIX, *_ON_ALL))
        made = _mix(path, table, directory, notes, jobs)
    elif "sessions" in table:
        _known(path, table, (*_SESSIONS, *_ON_ALL))
        made = _sessions(path, table)
    else:
        others = () if "requests" in table else ("trace", "mix", "sessions")
        _known(path, table, (*others, *_SYNTHETIC, *_ON_ALL))
        made = _synthetic(path, table, directory, requests, jobs)
    if "prefix" in table:
        prefix = _table(f"{path}.prefix", table["prefix"])
        _known(f"{path}.prefix", prefix, ("text", "tokens"))
        for name in ("text", "tokens"):
            if name not in prefix:
                raise ConfigError(f"{path}.prefix.{name}", "missing")
        with _at(f"{path}.prefix"):
            made = made.with_prefix(**prefix)
    if "patience" in table:
        made = made.with_patience(_duration(f"{path}.patience", table["patience"]))
    return made


def _placed(tables: Any, directory: Path) -> Any:
    """The tables of a file, in which the files of timing tables and models are named from `directory`."""
    if isinstance(tables, list):
        return [_placed(one, directory) for one in tables]
    if not isinstance(tables, Mapping):
        return tables
    file = tables.get("file")
    if tables.get("kind") == "TimingTable" and isinstance(file, str) and file:
        return {**tables, "file": str(directory / file)}
    if "gpu" in tables and is_path(tables.get("model")):
        tables = {**tables, "model": str(directory / tables["model"])}
    return {name: _placed(one, directory) for name, one in tables.items()}


def _system(tables: Mapping[str, Any]) -> System:
    """What serves the workload: the engine, or what is made of it."""
    given = [kind for kind in _SYSTEMS if kind.name_of_kind in tables]
    if not given:
        if "engine" not in tables:
            raise ConfigError("engine", "missing")
        return Engine.from_json(tables["engine"])
    if len(given) > 1:
        names = " and ".join(kind.name_of_kind for kind in given)
        raise ConfigError(names, "a scenario has one of them")
    name = given[0].name_of_kind
    if given[0] is GateAndRoute:
        if "engine" in tables:
            raise ConfigError("engine", f"not used; {name} has slots and a timing of its own")
        return GateAndRoute.from_json({"kind": "GateAndRoute", **_table(name, tables[name])})
    used: list[str] = []
    described = _with_engine(_table(name, tables[name]), given[0].__name__, tables.get("engine"), used)
    made = given[0].from_json(described)
    if "engine" in tables and not used:
        raise ConfigError("engine", f"not used; every part of {name} has an engine of its own")
    return made


def _with_engine(described: Mapping[str, Any], kind: str, engine: Any, used: list[str]) -> Mapping[str, Any]:
    """A description whose parts without an engine have that of the file; `used` gets an entry for each."""
    full = dict(described)

    def fill(table: Any, name: str) -> Any:
        if not isinstance(table, Mapping) or name in table or engine is None:
            return table
        used.append(name)
        return {**table, name: engine}

    if kind == "Cluster":
        return cast("Mapping[str, Any]", fill(full, "engines"))
    if kind == "Disaggregated":
        return {
            name: fill(value, "engine") if name in ("prefill", "decode") else value
            for name, value in full.items()
        }
    if isinstance(full.get("engines"), Mapping):
        full["engines"] = {
            name: _with_engine(one, one["kind"], engine, used)
            if isinstance(one, Mapping) and one.get("kind") in ("Cluster", "Disaggregated")
            else one
            for name, one in full["engines"].items()
        }
    return full


def _synthetic(
    path: str, table: Mapping[str, Any], directory: Path, requests: int | None, jobs: bool
) -> Workload:
    """The workload that the distributions of a table describe; `jobs` need no lengths."""
    for name in ("requests", "arrivals"):
        if name not in table and (name == "arrivals" or requests is None):
            raise ConfigError(
                f"{path}.{name}", "missing; a workload is a trace, or requests drawn from distributions"
            )
    parts: dict[str, Any] = {"arrivals": read(f"{path}.arrivals", table["arrivals"], ARRIVAL_PROCESSES)}
    if "lengths" in table:
        lengths = _table(f"{path}.lengths", table["lengths"])
        _known(f"{path}.lengths", lengths, _READING)
        parts["lengths"] = Empirical(_read(f"{path}.lengths", lengths, directory).frame)
    for name in ("prompt", "output"):
        if name in table:
            parts[name] = read(f"{path}.{name}", table[name], LENGTH_DISTRIBUTIONS)
        elif "lengths" not in table and (not jobs or "prompt" in table or "output" in table):
            raise ConfigError(f"{path}.{name}", "missing")
    with _at(path):
        drawn = Workload.synthetic(requests=table.get("requests", requests), **parts)
        return drawn.with_classes(_table("classes", table["classes"])) if "classes" in table else drawn


def _sessions(path: str, table: Mapping[str, Any]) -> Workload:
    """The sessions that a table describes."""
    for name in ("arrivals", "turns", "prompt", "output", "think"):
        if name not in table:
            raise ConfigError(f"{path}.{name}", "missing")
    parts = {name: value for name, value in table.items() if name not in _ON_ALL}
    parts["arrivals"] = read(f"{path}.arrivals", table["arrivals"], ARRIVAL_PROCESSES)
    for name in ("turns", "prompt", "output"):
        parts[name] = _length(f"{path}.{name}", table[name])
    parts["think"] = _duration(f"{path}.think", table["think"])
    with _at(path):
        return Workload.sessions(**parts)


def _mix(path: str, table: Mapping[str, Any], directory: Path, notes: list[str], jobs: bool) -> Workload:
    """The classes that a table describes, side by side; `jobs` need no lengths."""
    requests = table.get("requests")
    parts = {}
    for name, part in _table(f"{path}.mix", table["mix"]).items():
        own = f"{path}.mix.{name}"
        told: list[str] = []
        # any number does for a synthetic part of a mix that says how many it takes in all
        parts[name] = _workload(
            own, _table(own, part), directory, told, requests=None if requests is None else 1, jobs=jobs
        )
        notes += [f"class {name}: {note}" for note in told]
    with _at(path):
        return Workload.mix(parts, requests=requests)


@contextmanager
def _at(path: str) -> Iterator[None]:
    """Say in which table a value is wrong."""
    try:
        yield
    except ConfigError as error:
        raise error.within(path) from None


def _length(path: str, value: object) -> int | LengthDistribution:
    """A number of tokens, or a distribution of it."""
    return read(path, value, LENGTH_DISTRIBUTIONS) if isinstance(value, Mapping) else value  # type: ignore[return-value]


def _duration(path: str, value: object) -> float | DurationDistribution:
    """Seconds, or a distribution of them."""
    if isinstance(value, Mapping):
        return read(path, value, DURATION_DISTRIBUTIONS)
    return duration(path, value)


def _read(path: str, table: Mapping[str, Any], directory: Path) -> Workload:
    """The trace that a table names, relative to `directory`."""
    for name in ("trace", "tokenizer"):
        if not isinstance(table.get(name, ""), str):
            raise ConfigError(f"{path}.{name}", f"must be the name of a file, not {table[name]!r}")
    if "trace" not in table:
        raise ConfigError(f"{path}.trace", "missing")
    columns = table.get("columns")
    return read_trace(
        directory / table["trace"],
        table.get("format"),
        columns=None if columns is None else _table(f"{path}.columns", columns),
        tokenizer=directory / table["tokenizer"] if "tokenizer" in table else None,
        tokens_per_word=table.get("tokens_per_word"),
        **{name: table.get(name) for name in _RANGE},
    )


def adapted(
    trace: Workload,
    *,
    head: int | None = None,
    output_tokens: int | None = None,
    rate: float | None = None,
    speed: float | None = None,
    notes: list[str],
    jobs: bool = False,
) -> Workload:
    """The requests of a trace, cut, completed and rescaled; `notes` gets a sentence for each change.

    The `jobs` of a network need no output lengths.

    Raises:
        ConfigError: a value outside its range, or a part that the trace lacks and nobody gave.
    """
    if rate is not None and speed is not None:
        raise ConfigError("speed", "scales the arrivals that rate sets; give only one of the two")
    columns = trace._source.columns  # of a frame or of what is drawn
    notes += _reading(trace)
    if head is not None:
        rows = None if trace.is_synthetic else trace.frame.height
        trace = trace.head(head)
        count = f"the first {head:,}" if rows is None else f"the first {trace.frame.height:,} of {rows:,}"
        notes.append(f"{count} requests")
    if output_tokens is not None:
        trace = trace.with_outputs(output_tokens)
        done = "replaced by" if "output_tokens" in columns else "not in the trace, set to"
        notes.append(f"output lengths {done} {output_tokens:,} tokens each")
    elif "output_tokens" not in columns and not jobs:
        raise ConfigError(
            "output_tokens", "the trace has no output lengths; say how many tokens a request generates"
        )
    if "arrival_s" not in columns:
        if rate is None:
            raise ConfigError(
                "rate", "the trace has no arrival times; say how many requests arrive per second"
            )
        notes.append(f"arrival times not in the trace, drawn: Poisson at {rate:g} requests per second")
        return trace.with_arrivals(Poisson(rate))
    if rate is not None:
        trace = trace.at_rate(rate)
        notes.append(f"arrival times scaled to {rate:g} requests per second")
    if speed is not None:
        trace = trace.speed(speed)
        notes.append(f"arrival times divided by {speed:g}")
    return trace


def _reading(trace: Workload) -> list[str]:
    """What a reader of the run should know about how the trace was read."""
    left_out = trace.metadata["rows_left_out"]
    notes = [f"{count:,} rows left out: {why.replace('_', ' ')}" for why, count in left_out.items()]
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


def _table(path: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(path, f"must be a table, not {value!r}")
    return value


def _known(path: str, table: Mapping[str, Any], names: Iterable[str]) -> None:
    """Refuse a key of `table` that is none of `names`."""
    names = list(names)
    for key in table:
        if key not in names:
            raise ConfigError(f"{f'{path}.' if path else ''}{key}: unknown{nearest(key, names)}")
