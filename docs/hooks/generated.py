"""Tables generated at build time: commands, TOML keys, columns, metrics, findings and deployments.

A line such as `::: commands` in a page is replaced by the tables that the function of that
name in `TABLES` returns. `explanation/design.md` is made of the file `DESIGN.md`.
"""

import dataclasses
import importlib.util
import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from typer.main import get_command

import inferq as iq
from inferq.cli import app
from inferq.inputs import parsed_toml

_MARK = re.compile(r"^::: (\w+)$", re.MULTILINE)


def on_page_markdown(markdown: str, **kwargs: Any) -> str:
    """Replace the marks of a page (a mkdocs hook)."""
    return _MARK.sub(lambda mark: TABLES[mark[1]]() if mark[1] in TABLES else mark[0], markdown)


def on_files(files: Files, config: MkDocsConfig, **kwargs: Any) -> Files:
    """Add the page of `DESIGN.md` (a mkdocs hook), with its links as seen from `docs/explanation/`."""
    text = Path(config.docs_dir, "..", "DESIGN.md").read_text(encoding="utf-8")
    text = text.replace("](docs/explanation/", "](").replace("](docs/", "](../")
    text = re.sub(r"\[([^\]]+)\]\((?:CONTRIBUTING|SECURITY|CHANGELOG|README)\.md[^)]*\)", r"\1", text)
    files.append(File.generated(config, "explanation/design.md", content=text))
    return files


# Commands


def commands() -> str:
    """Every command with its arguments and options, by group."""
    return "\n\n".join(_command(name, command) for name, command in _leaves("inferq", get_command(app)))


def _leaves(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """The commands that run, with their full names."""
    if not hasattr(command, "commands"):
        yield name, command
        return
    for inner, subcommand in command.commands.items():
        yield from _leaves(f"{name} {inner}", subcommand)


def _command(name: str, command: Any) -> str:
    parameters = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
    arguments = [parameter for parameter in parameters if parameter.param_type_name == "argument"]
    words = [_argument(parameter) for parameter in arguments]
    parts = [f"## {name}", *_help(command.help or "")]
    parts.append(f"```text\n{' '.join([name, *words, '[OPTIONS]'])}\n```")
    if arguments:
        rows = [(f"`{_argument(parameter)}`", _cell(parameter.help)) for parameter in arguments]
        parts.append(_table(("argument", "meaning"), rows))
    groups: dict[str, list[tuple[str, ...]]] = {}
    for parameter in parameters:
        if parameter.param_type_name == "option":
            group = parameter.rich_help_panel or "Options"
            groups.setdefault(group, []).append(
                (_option(parameter), _cell(parameter.help) + _default(parameter))
            )
    for group, rows in groups.items():
        parts += [*([f"**{group}**"] if len(groups) > 1 else []), _table(("option", "meaning"), rows)]
    return "\n\n".join(parts)


def _help(text: str) -> Iterator[str]:
    """The paragraphs of a help text; an example is a code block."""
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text).replace("\b", "")):
        before, example, command = paragraph.partition("Example: ")
        if before.strip():
            yield _cell(before)
        if example:
            yield f"```bash\n{' '.join(command.split())}\n```"


def _argument(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def _option(parameter: Any) -> str:
    names = ", ".join(f"`{name}`" for name in [*parameter.opts, *parameter.secondary_opts])
    return f"{names} `{parameter.metavar}`" if parameter.metavar else names


def _default(parameter: Any) -> str:
    default = parameter.default
    if parameter.required:
        return " **Required.**"
    shown = parameter.show_default is True and default not in (None, False, (), [])
    return f" Default: `{default}`." if shown else ""


# TOML


def toml() -> str:
    """Every key of a scenario, by table."""
    parts = []
    for title, text, sections in _scenario():
        parts += [f"## {title}", text]
        for heading, rows in sections:
            parts += [*([f"### {heading}"] if heading else []), _keys(rows)]
    return "\n\n".join(part for part in parts if part)


Rows = list[tuple[str, str, str, str]]
"""Key, type, default and meaning."""


def _scenario() -> Iterator[tuple[str, str, list[tuple[str, Rows]]]]:
    """Title, text and tables of each part of a scenario."""
    from inferq.experiments.gates.terms import Terms
    from inferq.workload import reading
    from inferq.workload.trace_options import TraceOptions

    trace = {**_arguments(iq.read_trace), **_arguments(TraceOptions)}
    workload = [
        ("A trace", _named(trace, [*reading._READING, *reading._CHANGES], path="trace")),
        ("Distributions", _named(_arguments(iq.Workload.synthetic), reading._SYNTHETIC)),
        ("Closed-loop sessions", _named(_arguments(iq.Workload.sessions), reading._SESSIONS)),
    ]
    yield (
        "`[workload]`",
        (
            "One of three forms, or `[workload.mix.NAME]`: classes side by side, each in one of these forms. "
            "`patience`, `prefix = { text, tokens }` and `transforms` can be added to each."
        ),
        workload,
    )
    families = (
        ("arrivals", "ArrivalProcess", "Arrival processes", "`arrivals = { kind = … }`"),
        ("lengths", "LengthDistribution", "Lengths", "`prompt` and `output`: a number or `{ kind = … }`"),
        (
            "durations",
            "DurationDistribution",
            "Durations",
            "`think` and `patience`: seconds or `{ kind = … }`",
        ),
    )
    for _, base, title, text in families:
        yield title, text, _family(base)
    engine = [("A model on a GPU", _rows(iq.Engine.on)), ("Single parts", _rows(iq.Engine))]
    yield "`[engine]`", "Either `model` and `gpu`, or each part by itself.", engine
    yield "`[engine.kv]`", "", [("", _rows(iq.KvCache))]
    yield "`[engine.kv.groups]`", "", [("", _rows(iq.KvGroups)), ("kinds", _rows(iq.CachedLayers))]
    yield "`[engine.overhead]`", "", [("", _rows(iq.Overhead))]
    yield "`[engine.scheduler]`", "`kind` selects one of these.", _family("Scheduler")
    yield "`[engine.scheduler.speculation]`", "", [("", _rows(iq.Speculation))]
    text = (
        "`kind` selects one of these. A `TimingTable` has `file`, or `model`, `gpu` and optionally "
        "`tensor_parallel`, `backend` and `weights`."
    )
    models = [part for part in _family("TimingModel") if part[0] != "TimingTable"]
    yield "`[engine.timing]`", text, models
    yield "`[cluster]`", "Replicas of `[engine]` behind a router.", [("", _rows(iq.Cluster))]
    yield "`router`", "A name, or `{ kind = … }`.", _family("Router")
    yield "`[cluster.autoscaler]`", "", [("", _rows(iq.Autoscaler)), *_family("ScalingPolicy")]
    yield "`[cluster.failures]`", "", [("", _rows(iq.Failures))]
    yield (
        "`[disaggregated]`",
        "Prefill/decode disaggregation. `prefill = { replicas = 2 }` takes `[engine]`.",
        [("", _rows(iq.Disaggregated)), ("link", _rows(iq.Link))],
    )
    network = [
        ("", _rows(iq.Network)),
        ("workflows.NAME", _rows(iq.Workflow)),
        ("stages.NAME", _rows(iq.Stage)),
    ]
    yield "`[network]`", "Engines that serve jobs of several calls.", network
    yield "`[gate_and_route]`", "", [("", _rows(iq.research.GateAndRoute))]
    options = [row for row in _rows(iq.simulate) if row[0] not in ("workload", "system", "progress", "out")]
    yield "`[run]`", "Options of the simulation.", [("", options)]
    yield "`[gate]`", "Limits of a [CI gate](../guides/gate-in-ci.md).", [("", _rows(Terms))]
    yield "Prices", "A file of its own, for `--prices`.", [("", _rows(iq.Prices))]
    yield "GPU", "A file of its own, for `--gpu card.toml`.", [("", _rows(iq.timing.Gpu))]


def _family(base: str) -> list[tuple[str, Rows]]:
    """The public classes of a family, each with its keys."""
    kinds = [value for name in _public() if isinstance(value := _value(name), type)]
    family = next(kind for kind in _bases(kinds) if kind.__name__ == base)
    members = [kind for kind in dict.fromkeys(kinds) if issubclass(kind, family) and kind is not family]
    return [(kind.__name__, _rows(kind)) for kind in members if dataclasses.is_dataclass(kind)]


def _bases(kinds: list[type]) -> list[type]:
    return [base for kind in kinds for base in kind.__mro__]


def _rows(described: Callable[..., Any]) -> Rows:
    """The keys that a class or a function accepts."""
    return list(_arguments(described).values())


def _arguments(described: Callable[..., Any]) -> dict[str, tuple[str, str, str, str]]:
    """Key, type, default and meaning of each documented argument."""
    meanings = _documented(described)
    rows = {}
    for name, parameter in inspect.signature(described).parameters.items():
        if name in meanings:
            hint = parameter.annotation if isinstance(parameter.annotation, str) else ""
            if hint.startswith("InitVar"):
                continue  # an argument of the class, not a key
            rows[name] = (name, _type(hint), _toml_default(parameter), meanings[name])
    return rows


def _named(
    rows: Mapping[str, tuple[str, str, str, str]], names: list[str] | tuple[str, ...], path: str | None = None
) -> Rows:
    """The rows of some keys; `path` is the key of the first argument."""
    given = dict(rows)
    if path is not None:
        given[path] = (path, "file", "required", given.get("path", ("", "", "", "a trace"))[3])
    return [given[name] for name in dict.fromkeys(names) if name in given]


def _documented(described: Callable[..., Any]) -> dict[str, str]:
    """The section Args of a docstring."""
    docstring = griffe.Docstring(inspect.getdoc(described) or "", parser="google")
    sections = docstring.parse("google", warnings=False)
    return {
        argument.name: " ".join(argument.description.split())
        for section in sections
        if section.kind is griffe.DocstringSectionKind.parameters
        for argument in section.value
    }


_TYPES = {
    "Mapping": "table",
    "Sequence": "list",
    "tuple": "table",
    "str": "text",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
}
"""What TOML calls a type of Python."""
_PYTHON_ONLY = {"None", "Path", "os.PathLike", "ModelShape", "Gpu", "pl.DataFrame"}


def _type(hint: str) -> str:
    """The type of a key, without the alternatives that only Python has."""
    literal = re.fullmatch(r"Literal\[(.*)\](?: \| None)?", hint)
    if literal:
        return " or ".join(f"`{name.strip()}`" for name in literal[1].replace("'", '"').split(","))
    names = [option.strip().partition("[")[0] for option in re.split(r" \| (?![^\[]*\])", hint)]
    return " or ".join(dict.fromkeys(_TYPES.get(name, name) for name in names if name not in _PYTHON_ONLY))


def _toml_default(parameter: inspect.Parameter) -> str:
    default = parameter.default
    if default is inspect.Parameter.empty:
        return "required"
    if default is None or "factory" in repr(default):
        return ""
    return f"`{str(default).lower() if isinstance(default, bool) else repr(default)}`".replace("'", '"')


def _keys(rows: Rows) -> str:
    if not rows:
        return "No keys."
    cells = [(f"`{name}`", _cell(hint), default, _cell(meaning)) for name, hint, default, meaning in rows]
    return _table(("key", "type", "default", "meaning"), cells)


# Names


def _public() -> list[str]:
    return list(_lists().public_names())


def _lists() -> ModuleType:
    """The hook `lists.py`, which is not in a package."""
    spec = importlib.util.spec_from_file_location("lists", Path(__file__).parent / "lists.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _value(name: str) -> Any:
    value: Any = iq
    for part in name.split(".")[1:]:
        value = getattr(value, part)
    return value


# Tables in Markdown


def _table(header: tuple[str, ...], rows: list[Any]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(text: str | None) -> str:
    """A text in one line, without characters that end a cell or start markup."""
    words = " ".join((text or "").split()).replace("|", "\\|")
    return re.sub(r"(?<!`)<(\w+)>", r"&lt;\1&gt;", re.sub(r"(?<=\s)\*(?=\s)", r"\\*", words))


def names() -> str:
    """Names of other tools, by our name."""
    from inferq import elsewhere

    theirs: dict[str, list[str]] = {}
    for other, ours in elsewhere.NAMES.items():
        theirs.setdefault(ours, []).append(f"`{other}`")
    return _table(
        ("inferq", "vLLM, SGLang, load generators"),
        [(f"`{ours}`", ", ".join(others)) for ours, others in theirs.items()],
    )


# Metrics and findings


def metrics() -> str:
    """The metrics of a run, by family."""
    from inferq.results import metric

    seconds = [
        f"`{quantity}_{statistic}`" for quantity in metric.QUANTITIES for statistic in metric.STATISTICS
    ]
    size = len(metric.STATISTICS)
    rows = [(", ".join(seconds[at : at + size]), "s", "lower") for at in range(0, len(seconds), size)]
    others = [*metric.RATES, "failed_share", "hit_rate", *metric.COSTS]
    found = [metric.Metric.of(name) for name in others]
    rows += [(f"`{one.name}`", one.unit or "count", one.better) for one in found]
    return _table(("metric", "unit", "better"), rows)


def findings() -> str:
    """The kinds of findings, by severity."""
    from inferq.results import finding

    parts = []
    for severity in finding.SEVERITIES:
        kinds = {name: kind for name, kind in finding.KINDS.items() if kind.severity == severity}
        rows = [(f"`{name}`", _cell(kind.meaning), _cell(kind.advice)) for name, kind in kinds.items()]
        parts += [f"### {severity.capitalize()}", _table(("kind", "meaning", "what to do"), rows)]
    return "\n\n".join(parts)


# Deployments


def _deployments() -> dict[str, Any]:
    """The published deployments and the features that inferq lacks."""
    path = Path(__file__).parent.parent / "explanation" / "deployments.toml"
    return parsed_toml(path.read_text(encoding="utf-8"))


def deployment_counts() -> str:
    """The number of deployments with each mark, and before layer groups, FP4 and expert parallelism."""
    marks = Counter(deployment["mark"] for deployment in _deployments()["deployment"])
    before = {"T": 8, "R": 4, "F": 7, "H": 7, "–": 14}
    rows = [
        (name, *(str(counts.get(mark, 0)) for mark in before))
        for name, counts in (("before layer groups, FP4 and expert parallelism", before), ("now", marks))
    ]
    return _table(("deployments", *before), rows)


def deployments() -> str:
    """Every deployment with its mark and the features that its command leaves out."""
    described = _deployments()
    rows = []
    for number, deployment in enumerate(described["deployment"], 1):
        mark, missing = deployment["mark"], deployment.get("missing", [])
        source = {"TimingTable": " (T)", "Roofline": " (R)"}[deployment["times"]] if mark == "F" else ""
        names = ", ".join(described["missing"][key]["name"] for key in missing)
        rows.append(
            (
                str(number),
                deployment["name"],
                deployment["engine"],
                mark + source,
                names,
                deployment["source"],
            )
        )
    return _table(("", "deployment", "engine", "mark", "missing", "source"), rows)


def missing() -> str:
    """The features that inferq lacks, with the number of deployments that have them."""
    described = _deployments()
    uses = Counter(key for deployment in described["deployment"] for key in deployment.get("missing", []))
    rows = [
        (feature["name"], str(uses[key]), feature["meaning"], feature["effect"])
        for key, feature in sorted(described["missing"].items(), key=lambda item: -uses[item[0]])
    ]
    return _table(("feature", "deployments", "limit", "effect"), rows)


def deployment_commands() -> str:
    """The command of every deployment."""
    commands = [
        f"# {number}. {deployment['name']} ({deployment['engine']})\n{deployment['command']}"
        for number, deployment in enumerate(_deployments()["deployment"], 1)
    ]
    return "```sh\n" + "\n\n".join(commands) + "\n```"


TABLES: dict[str, Callable[[], str]] = {
    "commands": commands,
    "names": names,
    "toml": toml,
    "metrics": metrics,
    "findings": findings,
    "deployment_counts": deployment_counts,
    "deployments": deployments,
    "missing": missing,
    "deployment_commands": deployment_commands,
}
