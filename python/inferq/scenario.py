"""Scenarios: a workload, what serves it and the options of a run, in Python, JSON and TOML.

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

[cluster.autoscaler]            # optional: replicas that come and go, see `Autoscaler`
policy = { kind = "ByQueue", requests = 12 }
max = 8

[cluster.failures]              # optional: replicas that die, see `Failures`
mtbf_s = 86_400

[run]                           # optional: the keyword arguments of `simulate`, but for progress and out
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

All of it is one description with one reader, `Scenario.read`: TOML is what a user writes by hand, JSON what
`Result.scenario` and `Scenario.write` hold. In JSON what was done to a workload stands in `transforms`, a
list of tables with the method of `Workload` as `kind` and its arguments, in their order:
`{"kind": "at_rate", "rate": 12.0}`; a file in TOML may have it too. A fixed frame is `data`, its columns, up
to 100 rows; else `rows`, `columns` and `sha256`, with its rows beside in `rows-….parquet` or
`workload.parquet`.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from inferq._lazy import pl
from inferq.checks import nearest
from inferq.description import table_of
from inferq.errors import ConfigError
from inferq.files import write_text
from inferq.inputs import parsed_json, parsed_toml, path_of, read_text
from inferq.results.result import Result, scenario_of
from inferq.results.store import manifest
from inferq.simulation.simulate import core_options, simulate
from inferq.systems.cluster import Cluster
from inferq.systems.disaggregated import Disaggregated
from inferq.systems.engine import Engine
from inferq.systems.gate_and_route import GateAndRoute
from inferq.systems.network import Network
from inferq.systems.pools import recorded
from inferq.systems.system import SYSTEMS, System
from inferq.timing.hardware.model_shape import is_path
from inferq.workload import rows as rows_beside
from inferq.workload.columns import as_frame
from inferq.workload.reading import read_workload
from inferq.workload.rows import Shelf
from inferq.workload.workload import Workload

_OVER_ENGINES: tuple[type[Cluster | Disaggregated | Network | GateAndRoute], ...] = (
    *(Cluster, Disaggregated, Network),
    GateAndRoute,
)
_OPTIONS = tuple(
    name
    for name, parameter in inspect.signature(simulate).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY and name not in ("progress", "out")
)
"""What a file may say under `[run]`. Where to write is for the caller to say, not for a stranger's file."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """All that a run needs: which requests, what serves them, which options of `simulate`.

    A run can be repeated from its record, bit for bit: `Scenario.read(result.scenario).run()`, and the same
    of the folder that `Result.write` or `simulate(..., out=…)` left. A trace is read again from its path, and
    refused if it holds other requests than then. Rows of a frame stand in the record, up to 100; of more it
    has the SHA-256, and they are found beside the file, or given as `rows`. Policies written in Python, and
    the function of a `ByKey`, cannot stand in a record: reading one says which part it is.

    Args:
        workload: the requests, or the jobs of a network.
        system: what serves them, as for `simulate`.
        options: keyword arguments of `simulate`, but for `progress`.
        gate: what `inferq gate` asks of it, a table as in a file; None where nothing is said.

    Example:
        >>> import inferq as iq
        >>> engine = iq.Engine(timing=iq.Constant(0.02), scheduler=iq.Sarathi(), kv=iq.KvCache(tokens=10**5))
        >>> lengths = {"prompt": iq.dist.Geometric(200), "output": iq.dist.Geometric(100)}
        >>> chat = iq.Workload.synthetic(requests=500, arrivals=iq.dist.Poisson(rate=8), **lengths)
        >>> result = iq.Scenario(chat, engine, {"seed": 7}).run()
        >>> again = iq.Scenario.read(result.scenario).run()
        >>> again.requests.equals(result.requests)
        True
    """

    workload: Workload
    system: System
    options: Mapping[str, Any] = field(default_factory=dict)
    gate: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()
    """What was done to the trace before the run, in plain words."""

    @classmethod
    def read(cls, source: str | os.PathLike[str] | Mapping[str, Any], *, rows: object = None) -> Scenario:
        """The scenario of a file or of a record.

        Args:
            source: a file in TOML (`x.toml`) or JSON (`x.json`), in which paths start from its folder; a
                folder of `Result.write` or `simulate(..., out=…)`; the text of a record, `Result.scenario`;
                or a mapping with the same keys.
            rows: a `Workload` or frame, or a list of them: rows that the record names by their SHA-256.

        Raises:
            ConfigError: no JSON or TOML, an unknown, missing or wrong field, named by its path; rows that are
                not at hand; a trace that has changed; a part written in Python.
            TraceError: a trace or rows in it are wrong.
            OSError: the file, or a trace in it, cannot be read.
        """
        given = tuple(_frames(rows))
        if isinstance(source, Mapping):
            return _scenario(source, Shelf(given=given))
        if isinstance(source, str) and source.lstrip().startswith("{"):
            return _scenario(table_of("", parsed_json(source)), Shelf(given=given))
        file = path_of("source", source, "scenario")
        if file.is_dir():
            file = file / "scenario.json"
        try:
            return _scenario(_parsed(file), Shelf(file.parent, given, tuple(_streamed_from(file.parent))))
        except ConfigError as error:
            raise error.within(str(file), ": ") from None

    def run(self, **options: Any) -> Result:
        """Simulate it.

        Args:
            options: of `simulate`, instead of those of the scenario or beside them: `out`, `progress`, ….

        Raises:
            As `simulate`.
        """
        return simulate(self.workload, self.system, **{**self.options, **options})

    def to_json(self) -> dict[str, Any]:
        """The scenario as JSON-ready data: what `Result.scenario` holds, and `gate`."""
        options = {name: value for name, value in self.options.items() if name not in ("threads", "out")}
        options = {**recorded(self.system), **core_options(**options)}
        asked = {} if self.gate is None else {"gate": dict(self.gate)}
        return {**json.loads(scenario_of(self.workload, options)), **asked}

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write it as JSON, with the rows that it names by their SHA-256 as `rows-….parquet` beside it.

        Args:
            path: a file whose name ends in `.json`; it is replaced.

        Returns:
            The path.

        Raises:
            ConfigError: another ending: TOML has no null, and is for hands.
            OSError: the files cannot be written.
        """
        place = path_of("path", path)
        if place.suffix != ".json":
            raise ConfigError("path", f"must end in .json, is {str(path)!r}")
        text = json.dumps(self.to_json(), indent=2) + "\n"
        rows_beside.write(self.workload.rows_beside(), place.parent)
        write_text(place, text)
        return place


@dataclass(frozen=True, slots=True)
class ScenarioFile:
    """A scenario in a file whose fields can be set anew."""

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
        file = path_of("scenario", path)
        if file.is_dir():
            file = file / "scenario.json"
        try:
            return cls(file, _parsed(file), file.parent)
        except ConfigError as error:
            raise error.within(str(file), ": ") from None

    def with_fields(self, fields: Mapping[str, object]) -> ScenarioFile:
        """The scenario with some fields set.

        Args:
            fields: values by the path of a field, `engine.scheduler.token_budget`; an entry of a list by its
                number, `cluster.engines.0.kv.tokens`. The table that holds a field must be in the file,
                except `run`, `cluster`, the scheduler of an engine, and what makes replicas come and go.

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
        """The scenario that the tables describe; errors as those of `Scenario.read`."""
        try:
            return _scenario(self.tables, Shelf(self.directory))
        except ConfigError as error:
            raise error.within(str(self.file), ": ") from None


_MAY_BE_NEW = (
    *(("", "run"), ("", "cluster"), ("engine", "scheduler")),
    *(("cluster", "autoscaler"), ("cluster", "failures")),
)
"""Tables whose fields may be set where the file has none of them, and what they are in."""


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
    if name not in tables and (before.split(".")[-1], name) not in _MAY_BE_NEW:
        known = nearest(name, tables) if tables else ""
        raise ConfigError(path, f"the file has no {f'{before}.' if before else ''}{name}{known}")
    return {**tables, name: _with(tables.get(name, {}), rest, value, path)}


def _frames(rows: object) -> list[pl.DataFrame]:
    """The frames of what a user gives as rows."""
    if rows is None:
        return []
    given = rows if isinstance(rows, (list, tuple)) else [rows]
    return [one.frame if isinstance(one, Workload) else as_frame(one) for one in given]


def _streamed_from(place: Path) -> list[Path]:
    """The file from which a run in this folder scanned its requests."""
    record = manifest(place)
    return [Path(record["workload"])] if record is not None and record["workload"] else []


def _parsed(file: Path) -> Mapping[str, Any]:
    text = read_text(file)
    return table_of("", parsed_json(text) if file.suffix == ".json" else parsed_toml(text))


def _scenario(tables: Mapping[str, Any], shelf: Shelf) -> Scenario:
    names = ("inferq", "workload", *(kind.name_of_kind for kind in SYSTEMS), "run", "gate")
    if "inferq" in tables:  # a record, which says too how many GPUs that makes
        names = (*names, "gpus")
    table_of("", tables, names, ("workload",))
    if "out" in table_of("run", tables.get("run", {})):
        raise ConfigError("run.out", "a scenario does not say where to write: give out= or --out instead")
    options = table_of("run", tables.get("run", {}), _OPTIONS)
    system = _system(tables if shelf.directory is None else _placed(tables, shelf.directory))
    notes: list[str] = []
    is_network = isinstance(system, Network)
    workload = read_workload("workload", tables["workload"], shelf, notes, jobs=is_network)
    if "gate" in tables:
        table_of("gate", tables["gate"])
    return Scenario(workload, system, options, tables.get("gate"), tuple(notes))


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
    given = [kind for kind in _OVER_ENGINES if kind.name_of_kind in tables]
    if not given:
        if "engine" not in tables:
            raise ConfigError(
                "engine", "missing: what serves the requests? A table [engine] with model and gpu"
            )
        return Engine.from_json(tables["engine"])
    if len(given) > 1:
        names = " and ".join(kind.name_of_kind for kind in given)
        raise ConfigError(names, "a scenario has one of them")
    name = given[0].name_of_kind
    if given[0] is GateAndRoute:
        if "engine" in tables:
            raise ConfigError("engine", f"not used; {name} has slots and a timing of its own")
        return GateAndRoute.from_json({"kind": "GateAndRoute", **table_of(name, tables[name])})
    used: list[str] = []
    described = _with_engine(table_of(name, tables[name]), given[0].__name__, tables.get("engine"), used)
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
