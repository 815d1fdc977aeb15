"""Scenarios: a workload, what serves it and the options of a run, in Python, JSON and TOML.

```toml
[workload]                      # a trace; the path is relative to this file …
trace = "azure.csv"
rate = 12.0                     # or speed; other fields: head, output_tokens, think, patience,
                                # format, columns, tokenizer, tokens_per_word,
                                # and for ServeGen clients, start_s, end_s, rate_factor

[workload]                      # … or distributions
requests = 10_000
arrivals = { kind = "Poisson", rate = 12.0 }
prompt = { kind = "Lognormal", mean = 230, median = 90, cap = 4096 }
output = { kind = "Geometric", mean = 250 }     # or, instead of both: lengths = { trace = "azure.csv" }
patience = 30.0                 # optional in all four forms; or a distribution, as think below
prefix = { text = "system", tokens = 1200 }     # optional in all four forms: `Workload.with_prefix`

[workload]                      # … or sessions in a closed loop
sessions = 500
arrivals = { kind = "Poisson", rate = 0.5 }     # starts of the sessions
turns = { kind = "Geometric", mean = 4 }        # or a number, as prompt and output
prompt = 60
output = { kind = "Geometric", mean = 250 }
think = { kind = "Exponential", mean_s = 20 }   # or seconds
max_context = 32_768            # optional, as grows = true

[workload]                      # … or a mix of classes, each a workload as above
requests = 10_000               # optional: the total; then synthetic classes need no number
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
knee = 200                      # or kind = "TimingTable", file = "table.parquet" (relative to this file)

[engine.scheduler]
kind = "Sarathi"
token_budget = 512

[engine.kv]                     # or kv = "unlimited" under [engine]
tokens = 432_000
prefix_cache = "blocks"         # optional: or "radix"

[engine]                        # or: a model on a GPU, with the arguments of `Engine.on`
model = "llama-3.1-8b"          # or the path of a config.json, relative to this file
gpu = "a100-80gb"

[gate_and_route]                # instead of [engine] and [cluster]: the fields of `GateAndRoute`

[cluster]                       # optional: replicas of [engine] behind a router
replicas = 4
router = "LeastRequests"        # or [[cluster.engines]] instead of [engine] and replicas

[cluster.autoscaler]            # optional: a variable number of replicas, see `Autoscaler`
policy = { kind = "ByQueue", requests = 12 }
max = 8

[cluster.failures]              # optional: failures of replicas, see `Failures`
mtbf_s = 86_400

[run]                           # optional: the keyword arguments of `simulate`, except progress and out
seed = 1
warmup = "30s"

[gate]                          # optional: requirements of `inferq gate`, see `inferq.gate`; other commands
seeds = 10                      # ignore it
tolerance = { request_goodput = "1%", ttft_p99 = "20ms" }
```

Instead of `[cluster]` there may be `[disaggregated]`, with `prefill = { replicas = 2 }`, `decode`, `link` and
the two routers, or `[network]`, with `[network.engines.NAME]` and `[network.workflows.NAME.stages.NAME]`. A
cluster without `engines` and a pool without `engine`, also in a network, use `[engine]`. The workload of a
network consists of jobs: a synthetic one has no lengths, and `classes = { NAME = share }` for several
workflows.

`Scenario.read` reads both TOML, written by hand, and JSON, written by `Result.scenario` and `Scenario.write`.
The transforms of a workload are the list `transforms`, in both formats. Each entry has the method of
`Workload` as `kind` and its arguments: `{"kind": "at_rate", "rate": 12.0}`. A fixed frame of up to 100 rows
is `data`, its columns. A larger one is `rows`, `columns` and `sha256`, with the rows in `rows-….parquet` or
`workload.parquet` in the same folder.
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
from inferq.workload import rows as stored_rows
from inferq.workload.columns import as_frame
from inferq.workload.reading import read_workload
from inferq.workload.rows import RowStore
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
"""Options in `[run]`. The caller chooses where to write, not a file that may be from someone else."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Complete description of a run: a workload, a system and options of `simulate`.

    A record of a run reproduces it bit for bit: `Scenario.read(result.scenario).run()`. The same applies to
    the folder of `Result.write` or `simulate(..., out=…)`, which contains the requests. Otherwise a trace is
    read again from its path; if its requests have changed, an error is raised. A record contains up to 100
    rows of a frame. For more rows it has the SHA-256; the rows are in a file in the same folder, or passed as
    `rows`. Policies in Python and the function of a `ByKey` cannot be recorded; the error names such a part.

    Args:
        workload: the requests, or the jobs of a network.
        system: the system that serves them, as for `simulate`.
        options: keyword arguments of `simulate`, except `progress`.
        gate: requirements of `inferq gate`, a table as in a file. Default: none.

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
    """Changes of the trace before the run."""

    @classmethod
    def read(cls, source: str | os.PathLike[str] | Mapping[str, Any], *, rows: object = None) -> Scenario:
        """Read a scenario from a file or a record.

        Args:
            source: a file in TOML (`x.toml`) or JSON (`x.json`), whose paths are relative to its folder; a
                folder of `Result.write` or `simulate(..., out=…)`; the text of a record, `Result.scenario`;
                or a mapping with the same keys.
            rows: a `Workload` or frame, or a list of them, with rows that the record names by SHA-256.

        Raises:
            ConfigError: the file is not JSON or TOML; a field is unknown, missing or wrong (the error names
                its path); rows are missing; a trace has changed; or a part is written in Python.
            TraceError: a trace or its rows are wrong.
            OSError: the file or its trace cannot be read.
        """
        frames = tuple(_frames(rows))
        if isinstance(source, Mapping):
            return _scenario(source, RowStore(frames=frames))
        if isinstance(source, str) and source.lstrip().startswith("{"):
            return _scenario(table_of("", parsed_json(source)), RowStore(frames=frames))
        file = path_of("source", source, "scenario")
        if file.is_dir():
            file = file / "scenario.json"
        try:
            return _scenario(_parsed(file), RowStore(file.parent, frames, tuple(_streamed_from(file.parent))))
        except ConfigError as error:
            raise error.within(str(file), ": ") from None

    def run(self, **options: Any) -> Result:
        """Simulate the scenario.

        Args:
            options: options of `simulate` that override or extend those of the scenario, such as `out`.

        Raises:
            As `simulate`.
        """
        return simulate(self.workload, self.system, **{**self.options, **options})

    def to_json(self) -> dict[str, Any]:
        """Return the scenario as JSON-ready data: the content of `Result.scenario`, and `gate`."""
        options = {name: value for name, value in self.options.items() if name not in ("threads", "out")}
        options = {**recorded(self.system), **core_options(**options)}
        gate = {} if self.gate is None else {"gate": dict(self.gate)}
        return {**json.loads(scenario_of(self.workload, options)), **gate}

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the scenario as JSON, and the rows that it names by SHA-256 as `rows-….parquet` next to it.

        Args:
            path: a file whose name ends in `.json`; an existing file is replaced.

        Returns:
            The path.

        Raises:
            ConfigError: the name does not end in `.json`. TOML has no null, so it is not written.
            OSError: the files cannot be written.
        """
        file = path_of("path", path)
        if file.suffix != ".json":
            raise ConfigError("path", f"must end in .json, got {str(path)!r}")
        text = json.dumps(self.to_json(), indent=2) + "\n"
        stored_rows.write(self.workload.hashed_rows(), file.parent)
        write_text(file, text)
        return file


@dataclass(frozen=True, slots=True)
class ScenarioFile:
    """Scenario file whose fields can be changed."""

    file: Path
    tables: Mapping[str, Any]
    directory: Path
    """Base of relative paths in the file."""

    @classmethod
    def read(cls, path: str | Path) -> ScenarioFile:
        """Read the tables of a file without checking them.

        Raises:
            ConfigError: the file is not TOML or JSON.
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
        """Return the scenario with some fields changed.

        Args:
            fields: values by path, such as `engine.scheduler.token_budget`; list entries by number, such as
                `cluster.engines.0.kv.tokens`. The table of a field must exist, except `run`, `cluster`,
                `engine.scheduler`, `engine.kv`, `cluster.autoscaler` and `cluster.failures`.

        Raises:
            ConfigError: a path does not exist.
        """
        tables: Any = self.tables
        try:
            for path, value in fields.items():
                tables = _with(tables, path.split("."), value, path)
        except ConfigError as error:
            raise error.within(str(self.file), ": ") from None
        return ScenarioFile(self.file, tables, self.directory)

    def scenario(self) -> Scenario:
        """Return the scenario of the tables. It raises the errors of `Scenario.read`."""
        try:
            return _scenario(self.tables, RowStore(self.directory))
        except ConfigError as error:
            raise error.within(str(self.file), ": ") from None


_MAY_BE_NEW = (
    *(("", "run"), ("", "cluster"), ("engine", "scheduler"), ("engine", "kv")),
    *(("cluster", "autoscaler"), ("cluster", "failures")),
)
"""Tables that `with_fields` creates, each with the table that contains it."""


def _with(tables: Any, parts: list[str], value: object, path: str) -> Any:
    """Return a copy of `tables` with the field at `parts`, the rest of `path`, set to `value`."""
    name, rest = parts[0], parts[1:]
    before = ".".join(path.split(".")[: -len(parts)])
    if isinstance(tables, list):
        if not name.isdecimal() or int(name) >= len(tables):
            raise ConfigError(path, f"{before} is a list of {len(tables)} entries without an entry {name}")
        return [
            (_with(entry, rest, value, path) if rest else value) if place == int(name) else entry
            for place, entry in enumerate(tables)
        ]
    if not isinstance(tables, Mapping):
        raise ConfigError(path, f"{before} must be a table, got {tables!r}")
    if not rest:
        return {**tables, name: value}
    if name not in tables and (before.split(".")[-1], name) not in _MAY_BE_NEW:
        known = nearest(name, tables) if tables else ""
        raise ConfigError(path, f"the file has no {f'{before}.' if before else ''}{name}{known}")
    return {**tables, name: _with(tables.get(name, {}), rest, value, path)}


def _frames(rows: object) -> list[pl.DataFrame]:
    """Return the frames of the argument `rows`."""
    if rows is None:
        return []
    entries = rows if isinstance(rows, (list, tuple)) else [rows]
    return [entry.frame if isinstance(entry, Workload) else as_frame(entry) for entry in entries]


def _streamed_from(place: Path) -> list[Path]:
    """Return the file from which a run in this folder scanned its requests."""
    record = manifest(place)
    return [Path(record["workload"])] if record is not None and record["workload"] else []


def _parsed(file: Path) -> Mapping[str, Any]:
    text = read_text(file)
    return table_of("", parsed_json(text) if file.suffix == ".json" else parsed_toml(text))


def _scenario(tables: Mapping[str, Any], store: RowStore) -> Scenario:
    names = ("inferq", "workload", *(kind.name_of_kind for kind in SYSTEMS), "run", "gate")
    if "inferq" in tables:  # a record, which also contains the number of GPUs
        names = (*names, "gpus")
    table_of("", tables, names, ("workload",))
    if "out" in table_of("run", tables.get("run", {})):
        raise ConfigError("run.out", "not supported in a scenario: use out= or --out instead")
    options = table_of("run", tables.get("run", {}), _OPTIONS)
    system = _system(tables if store.directory is None else _placed(tables, store.directory))
    notes: list[str] = []
    is_network = isinstance(system, Network)
    workload = read_workload("workload", tables["workload"], store, notes, jobs=is_network)
    if "gate" in tables:
        table_of("gate", tables["gate"])
    return Scenario(workload, system, options, tables.get("gate"), tuple(notes))


def _placed(tables: Any, directory: Path) -> Any:
    """Return the tables of a file with the paths of timing tables and models relative to `directory`."""
    if isinstance(tables, list):
        return [_placed(entry, directory) for entry in tables]
    if not isinstance(tables, Mapping):
        return tables
    file = tables.get("file")
    if tables.get("kind") == "TimingTable" and isinstance(file, str) and file:
        return {**tables, "file": str(directory / file)}
    if "gpu" in tables and is_path(tables.get("model")):
        tables = {**tables, "model": str(directory / tables["model"])}
    return {name: _placed(table, directory) for name, table in tables.items()}


def _system(tables: Mapping[str, Any]) -> System:
    """Return the system: the engine, or a fleet of engines."""
    kinds = [kind for kind in _OVER_ENGINES if kind.name_of_kind in tables]
    if not kinds:
        if "engine" not in tables:
            raise ConfigError("engine", "missing: add a table [engine] with model and gpu")
        return Engine.from_json(tables["engine"])
    if len(kinds) > 1:
        names = " and ".join(kind.name_of_kind for kind in kinds)
        raise ConfigError(names, "cannot be combined; a scenario has one of them")
    name = kinds[0].name_of_kind
    if kinds[0] is GateAndRoute:
        if "engine" in tables:
            raise ConfigError("engine", f"not used, because {name} has its own slots and timing; remove it")
        return GateAndRoute.from_json({"kind": "GateAndRoute", **table_of(name, tables[name])})
    used: list[str] = []
    description = _with_engine(table_of(name, tables[name]), kinds[0].__name__, tables.get("engine"), used)
    system = kinds[0].from_json(description)
    if "engine" in tables and not used:
        raise ConfigError("engine", f"not used, because every part of {name} has its own engine; remove it")
    return system


def _with_engine(
    description: Mapping[str, Any], kind: str, engine: Any, used: list[str]
) -> Mapping[str, Any]:
    """Fill in the file's engine for parts without one; `used` receives an entry for each."""
    full = dict(description)

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
            name: _with_engine(part, part["kind"], engine, used)
            if isinstance(part, Mapping) and part.get("kind") in ("Cluster", "Disaggregated")
            else part
            for name, part in full["engines"].items()
        }
    return full
