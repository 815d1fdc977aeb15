"""Network: named engines, and workflows of jobs that call them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias, cast

from inferq.checks import nearest
from inferq.description import Description, Table, fields_in, fields_of, plain, read_fields, table_of
from inferq.errors import ConfigError
from inferq.systems.cluster import Cluster
from inferq.systems.disaggregated import Disaggregated, read_disaggregated
from inferq.systems.engine import Engine
from inferq.workload.columns import MOST_TOKENS
from inferq.workload.distributions import (
    DURATION_DISTRIBUTIONS,
    LENGTH_DISTRIBUTIONS,
    DurationDistribution,
    Empirical,
    LengthDistribution,
)

System: TypeAlias = Engine | Cluster | Disaggregated
"""A system that serves stages of a network."""

_SYSTEMS = (Engine, Cluster, Disaggregated)


class InOrder(Table):
    """A table that keeps the order of its keys, which determines numbering."""

    __slots__ = ()

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, InOrder) and list(self.items()) == list(other.items())

    __hash__ = Table.__hash__


@dataclass(frozen=True, slots=True)
class Stage(Description):
    """One call of a job to an engine of its network.

    It arrives `delay_s` after the last stage in `after` has finished, or without `after`, `delay_s` after its
    job. If a stage in `after` is rejected or abandoned, it never arrives.

    Args:
        engine: name of the engine that serves it.
        prompt: prompt tokens, 1 or above; a distribution, drawn for each job; or recorded lengths: a list, a
            numpy array or a polars Series with a length for each job of the workflow, in the order of the
            workload. Tokens of `prefix`, `continues` and `includes` are added; with one of them it may be 0.
        output: output tokens, 1 or above, in the same three forms.
        after: stages of the same workflow that must finish first: a name, or several (a join). Several stages
            after the same stage are a fork.
        includes: stages whose output tokens are added to the prompt: a name, or several. Each must be in
            `after` or an ancestor of these. The tokens follow `prompt`, so they are computed again.
        continues: the stage whose prompt and output are the beginning of this prompt, such as the previous
            call of an agent with its growing context; a prefix cache of the engine can reuse them. It must
            finish before, and precede this stage in the workflow. At a join, it is the stage whose context
            continues; outputs of the others are added with `includes`.
        prefix: name of a shared text at the beginning, such as a system prompt: the same name is the same
            content in every stage, job and workflow. Not with `continues`.
        prefix_tokens: tokens of that text; 0 without one.
        delay_s: delay in seconds, such as a tool call, 0 or above; or a distribution, drawn for each job.
        class_name: the class in schedulers and results. Default: the name of the workflow.

    Raises:
        ConfigError: an invalid field; it names the field.

    Source: the sub-tasks of li2025 §4.3.

    Example:
        >>> import inferq as iq
        >>> lengths = {"prompt": 50, "output": iq.dist.Geometric(80)}
        >>> review = iq.Stage("critic", **lengths, after="draft", includes="draft")
        >>> review.after
        ('draft',)

        An agent with three calls, each with the whole context so far, and a tool between them:

        >>> step = {"prompt": 200, "output": 60, "delay_s": 1.5}
        >>> agent = iq.Workflow("agent", stages={
        ...     "plan": iq.Stage("chat", prompt=300, output=80, prefix="rules", prefix_tokens=2000),
        ...     "look": iq.Stage("chat", after="plan", continues="plan", **step),
        ...     "answer": iq.Stage("chat", after="look", continues="look", **step),
        ... })
        >>> kv = iq.KvCache(tokens=100_000, prefix_cache="blocks")
        >>> engine = iq.Engine(timing=iq.Constant(0.1), scheduler=iq.VllmV1(), kv=kv)
        >>> result = iq.simulate({"arrival_s": [0.0, 60.0]}, iq.Network({"chat": engine}, [agent]))
        >>> result.requests["prompt_tokens"].to_list()
        [2300, 2580, 2840, 2300, 2580, 2840]
        >>> result.requests["cached_tokens"].to_list()
        [0, 2368, 2624, 2000, 2368, 2624]

        Recorded lengths for three jobs:

        >>> ask = iq.Stage("chat", prompt=[310, 80, 95], output=40)
        >>> recorded = iq.Workflow("recorded", stages={"ask": ask})
        >>> jobs = {"arrival_s": [0.0, 1.0, 2.0]}
        >>> network = iq.Network({"chat": engine}, [recorded])
        >>> iq.simulate(jobs, network).requests["prompt_tokens"].to_list()
        [310, 80, 95]
    """

    parts: ClassVar[Mapping[str, tuple[type[Any], ...]]] = {
        "prompt": (int, *LENGTH_DISTRIBUTIONS, LengthDistribution, Sequence[int]),
        "output": (int, *LENGTH_DISTRIBUTIONS, LengthDistribution, Sequence[int]),
        "delay_s": (float, *DURATION_DISTRIBUTIONS, DurationDistribution),
    }

    engine: str
    prompt: int | LengthDistribution | Sequence[int] = field(kw_only=True)
    output: int | LengthDistribution | Sequence[int] = field(kw_only=True)
    after: str | Sequence[str] = field(default=(), kw_only=True)
    includes: str | Sequence[str] = field(default=(), kw_only=True)
    continues: str | None = field(default=None, kw_only=True)
    prefix: str | None = field(default=None, kw_only=True)
    prefix_tokens: int = field(default=0, kw_only=True)
    delay_s: float | DurationDistribution = field(default=0.0, kw_only=True)
    class_name: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Check the fields; the workflow checks names of other stages."""
        for name in ("after", "includes"):
            if isinstance(getattr(self, name), str):
                object.__setattr__(self, name, (getattr(self, name),))
        for name in ("prompt", "output"):
            if hasattr(getattr(self, name), "to_list"):  # polars
                object.__setattr__(self, name, getattr(self, name).to_list())
        Description.__post_init__(self)
        more = bool(self.includes or self.continues or self.prefix)
        for name, least in (("prompt", 0 if more else 1), ("output", 1)):
            length = getattr(self, name)
            if isinstance(length, Empirical):
                raise ConfigError(
                    name, f"must be a distribution of one length such as Fixed(100), got {length!r}"
                )
            if length == ():
                raise ConfigError(
                    name, "must not be empty: recorded lengths are one for each job of the workflow"
                )
            recorded = isinstance(length, tuple)
            for place, tokens in enumerate(length if recorded else (length,)):
                if isinstance(tokens, int) and not least <= tokens <= MOST_TOKENS:
                    where = f"{name}[{place}]" if recorded else name
                    raise ConfigError(where, f"must be from {least} to {MOST_TOKENS} tokens, got {tokens}")
        if isinstance(self.delay_s, (int, float)) and self.delay_s < 0:
            raise ConfigError("delay_s", f"must be non-negative, got {self.delay_s!r}")
        for name in ("engine", "class_name", "continues", "prefix"):
            if getattr(self, name) == "":
                raise ConfigError(name, "must not be empty")
        if self.prefix is not None and self.continues is not None:
            raise ConfigError(
                "prefix",
                f"cannot be combined with continues: the prompt begins with that of {self.continues!r}",
            )
        if self.prefix is None and self.prefix_tokens:
            raise ConfigError(
                "prefix_tokens", f"is {self.prefix_tokens}, but prefix, the name of the text, is missing"
            )
        if self.prefix is not None and not 1 <= self.prefix_tokens <= MOST_TOKENS:
            raise ConfigError(
                "prefix_tokens", f"must be from 1 to {MOST_TOKENS} for a prefix, got {self.prefix_tokens}"
            )
        if self.continues in self.includes:
            raise ConfigError("includes", f"the output of {self.continues!r} is already included (continues)")
        for name in ("after", "includes"):
            named = getattr(self, name)
            if len(set(named)) < len(named):
                raise ConfigError(name, f"duplicate stage in {list(named)}")

    def to_json(self) -> dict[str, Any]:
        """Return the stage as JSON-ready values."""
        return fields_of(self)


@dataclass(frozen=True, slots=True)
class Workflow(Description):
    """A type of job: dependent stages, each a call to an engine.

    Args:
        name: name of the workflow in the workload's column `class`.
        stages: the stages by name, one or more. Their order numbers the requests of a job and breaks ties of
            arrival; it may differ from the order of execution.

    Raises:
        ConfigError: no stage, an unknown stage in `after`, a cycle, or a stage in `includes` or `continues`
            that may not have finished; it names workflow, stage and field.

    Source: the AI-agent workloads of li2025 §4.3.

    Example:
        The fork-join of li2025 §4.3: two branches start after the first stage, and the last stage joins them:

        >>> import inferq as iq
        >>> agent = iq.Workflow("agent", stages={
        ...     "plan": iq.Stage("planner", prompt=200, output=40),
        ...     "search": iq.Stage("left", prompt=100, output=30, after="plan", includes="plan"),
        ...     "code": iq.Stage("right", prompt=100, output=90, after="plan", includes="plan"),
        ...     "answer": iq.Stage("writer", prompt=50, output=60, after=["search", "code"], includes="code"),
        ... })
        >>> list(agent.stages)
        ['plan', 'search', 'code', 'answer']
    """

    name: str
    stages: Mapping[str, Stage]

    def __post_init__(self) -> None:
        """Check names and dependencies."""
        plain("name", self.name, (str,))
        if not self.name:
            raise ConfigError("name", "must not be empty")
        here = f"workflows.{self.name}.stages"
        if not isinstance(self.stages, Mapping):
            raise ConfigError(here, f"must be a table of Stage(…) by name, got {self.stages!r}")
        if not self.stages:
            raise ConfigError(here, "must not be empty: a workflow has at least one stage")
        for name, stage in self.stages.items():
            if not isinstance(name, str) or not name:
                raise ConfigError(here, f"names must be non-empty text, got {name!r}")
            plain(f"{here}.{name}", stage, (Stage,))
            named = [
                (f"{column}[{place}]", other)
                for column in ("after", "includes")
                for place, other in enumerate(getattr(stage, column))
            ]
            if stage.continues is not None:
                named.append(("continues", stage.continues))
            for where, other in named:
                if other not in self.stages:
                    hint = nearest(other, self.stages)
                    raise ConfigError(f"{here}.{name}.{where}", f"unknown stage {other!r}{hint}")
        object.__setattr__(self, "stages", InOrder(self.stages))
        depth = {name: level for level, ready in enumerate(self._levels()) for name in ready}
        for name in depth:
            for place, other in enumerate(self.stages[name].includes):
                if not self._finished_before(other, name, depth):
                    raise ConfigError(
                        f"{here}.{name}.includes[{place}]",
                        f"{other!r} may not have finished before {name!r}; "
                        "add it, or a stage that depends on it, to after",
                    )
        place_of = {name: place for place, name in enumerate(self.stages)}
        for name, stage in self.stages.items():
            earlier = stage.continues
            if earlier is None:
                continue
            if not self._finished_before(earlier, name, depth):
                raise ConfigError(
                    f"{here}.{name}.continues",
                    f"{earlier!r} may not have finished before {name!r}; "
                    "add it, or a stage that depends on it, to after",
                )
            if place_of[earlier] > place_of[name]:
                raise ConfigError(f"{here}.{name}.continues", f"{earlier!r} must precede {name!r} in stages")

    def in_order(self) -> Iterator[str]:
        """The stages in topological order.

        Raises:
            ConfigError: a cycle; it names the stages.
        """
        for ready in self._levels():
            yield from ready

    def _levels(self) -> Iterator[list[str]]:
        """The stages by depth: without dependencies, then with dependencies on these, and so on."""
        place_of = {name: place for place, name in enumerate(self.stages)}
        waits_for = {name: len(stage.after) for name, stage in self.stages.items()}
        followers = self.followers()
        ready = [name for name, count in waits_for.items() if not count]
        while ready:
            yield ready
            freed = []
            for name in ready:
                del waits_for[name]
                for later in followers[name]:
                    waits_for[later] -= 1
                    if not waits_for[later]:
                        freed.append(later)
            ready = sorted(freed, key=place_of.__getitem__)
        if waits_for:
            raise ConfigError(
                f"workflows.{self.name}.stages.{next(iter(waits_for))}.after",
                f"dependency cycle; stages in the cycle or behind it: {', '.join(waits_for)}",
            )

    def followers(self) -> dict[str, list[str]]:
        """The stages that directly depend on each stage, in the order of the stages."""
        followers: dict[str, list[str]] = {name: [] for name in self.stages}
        for name, stage in self.stages.items():
            for other in stage.after:
                followers[other].append(name)
        return followers

    def _finished_before(self, other: str, name: str, depth: Mapping[str, int]) -> bool:
        """Whether a stage always finishes before another; `depth` is the index in `_levels`."""
        seen = set(self.stages[name].after)
        open_ = [] if other in seen else list(seen)
        while open_:
            for earlier in self.stages[open_.pop()].after:
                if earlier == other:
                    return True
                if depth[earlier] > depth[other] and earlier not in seen:
                    seen.add(earlier)
                    open_.append(earlier)
        return other in seen

    def class_of(self, stage: str) -> str:
        """The class of the requests of a stage."""
        return self.stages[stage].class_name or self.name

    def to_json(self) -> dict[str, Any]:
        """Return the stages as JSON-ready values; a network stores them by workflow name."""
        return {"stages": {name: stage.to_json() for name, stage in self.stages.items()}}


@dataclass(frozen=True, slots=True)
class Network(Description):
    """Named engines, and jobs that call them: directed graphs of stages with joins, delays and classes.

    The rows of its workload are jobs: a run requires only `arrival_s` and, for several workflows, `class`
    with the name of the job's workflow. `patience_s`, `cancel_s`, `priority`, `ttft_slo_s`, `itl_slo_s`,
    `proposal_rate` and `session_id` apply to every stage of the job. Stages define lengths, recorded or drawn
    from the seed of the run: each stage has its own draws, and those of a job do not depend on other jobs.

    `Result.requests` has a row for each stage that arrived, with `job`, `stage` and `engine` after its `id`;
    `Result.jobs` has a row for each job. `warmup` and `cooldown` count jobs. Replicas are numbered over all
    engines in the order of the table. A scheduler written in Python is copied (`copy.deepcopy`) for every
    replica.

    Source: li2025 §4.3, whose two networks are instances: fork-join (see `Workflow`) and Rybko–Stolyar.

    Args:
        engines: an `Engine`, a `Cluster` or a `Disaggregated` by name, one or more.
        workflows: one or more, with distinct names.

    Raises:
        ConfigError: no engine, no workflow, a part of the wrong type, a duplicate name, or a stage with an
            unknown engine; it names engine, workflow and stage.

    Example:
        The Rybko–Stolyar network of li2025 §4.3: each engine prefers the last stages of jobs, and the network
        is unstable although no engine is overloaded.

        >>> import inferq as iq
        >>> def agent(order):
        ...     inner = iq.Sarathi(token_budget=768, max_seqs=100_000)
        ...     scheduler = iq.ClassPriority(order=order, inner=inner)
        ...     return iq.Engine(timing=iq.Constant(1.0), scheduler=scheduler, kv=iq.KvCache.unlimited())
        >>> def two(name, first, second):
        ...     return iq.Workflow(name, stages={
        ...         "short": iq.Stage(first, prompt=32, output=32, class_name=f"{name} short"),
        ...         "long": iq.Stage(second, prompt=512, output=32, after="short", class_name=f"{name} long"),
        ...     })
        >>> network = iq.Network(
        ...     {"one": agent(["B long", "A short"]), "two": agent(["A long", "B short"])},
        ...     [two("A", "one", "two"), two("B", "two", "one")],
        ... )
        >>> jobs = {"arrival_s": [0.0, 0.0], "class": ["A", "B"]}
        >>> iq.simulate(jobs, network).jobs.select("workflow", "finish_s").rows()
        [('A', 64.0), ('B', 64.0)]
    """

    name_of_kind: ClassVar[str] = "network"

    engines: Mapping[str, System]
    workflows: Sequence[Workflow]

    def __post_init__(self) -> None:
        """Check the parts and the engines of all stages."""
        if not isinstance(self.engines, Mapping):
            raise ConfigError("engines", f"must be a table of engines by name, got {self.engines!r}")
        if not self.engines:
            raise ConfigError("engines", "must not be empty: a network has at least one engine")
        for name, engine in self.engines.items():
            if not isinstance(name, str) or not name:
                raise ConfigError("engines", f"names must be non-empty text, got {name!r}")
            plain(f"engines.{name}", engine, _SYSTEMS)
        if isinstance(self.workflows, (str, Mapping)) or not isinstance(self.workflows, Sequence):
            raise ConfigError("workflows", f"must be a list of Workflow(…), got {self.workflows!r}")
        if not self.workflows:
            raise ConfigError("workflows", "must not be empty: a network has at least one workflow")
        names = set()
        for place, workflow in enumerate(self.workflows):
            plain(f"workflows[{place}]", workflow, (Workflow,))
            if workflow.name in names:
                raise ConfigError(f"workflows[{place}].name", f"duplicate name {workflow.name!r}")
            names.add(workflow.name)
            for name, stage in workflow.stages.items():
                if stage.engine not in self.engines:
                    raise ConfigError(
                        f"workflows.{workflow.name}.stages.{name}.engine",
                        f"unknown engine {stage.engine!r}{nearest(stage.engine, self.engines)}",
                    )
        object.__setattr__(self, "engines", InOrder(self.engines))
        object.__setattr__(self, "workflows", tuple(self.workflows))

    def to_json(self) -> dict[str, Any]:
        """Return the network as JSON-ready values, with its `kind`; the inverse of `from_json`."""
        return {
            "kind": "Network",
            "engines": {name: engine.to_json() for name, engine in self.engines.items()},
            "workflows": {workflow.name: workflow.to_json() for workflow in self.workflows},
        }

    @classmethod
    def from_json(cls, description: Mapping[str, Any]) -> Network:
        """Read the network from a table of JSON or TOML.

        Args:
            description: `engines`: by name, a table for `Engine.from_json`, or a table with the `kind`
                `"Cluster"` or `"Disaggregated"`; `workflows`: by name, a table with `stages`, which are by
                name tables with the fields of `Stage`.

        Raises:
            ConfigError: an unknown, missing or wrong field, with its path; a scheduler or a router written in
                Python.

        Example:
            >>> import inferq as iq
            >>> kv = iq.KvCache(tokens=100_000)
            >>> engine = iq.Engine(timing=iq.Constant(0.02), scheduler=iq.Sarathi(), kv=kv)
            >>> answer = iq.Stage("chat", prompt=100, output=iq.dist.Fixed(20))
            >>> ask = iq.Workflow("ask", stages={"answer": answer})
            >>> network = iq.Network({"chat": iq.Cluster(engine, replicas=2)}, [ask])
            >>> iq.Network.from_json(network.to_json()) == network
            True
        """
        return read_network("network", description)


def read_network(path: str, description: object) -> Network:
    """Read the network from a table; errors name the place below `path`."""
    table = fields_in(path, description, ("engines", "workflows"), ("engines", "workflows"), "Network")
    engines, workflows = (table_of(f"{path}.{name}", table[name]) for name in ("engines", "workflows"))
    systems = {name: _read_system(f"{path}.engines.{name}", table) for name, table in engines.items()}
    read: list[Workflow] = []
    for name, workflow in workflows.items():
        here = f"{path}.workflows.{name}"
        stages = table_of(f"{here}.stages", fields_in(here, workflow, ("stages",), ("stages",))["stages"])
        parts = {
            stage: read_fields(f"{here}.stages.{stage}", table, Stage) for stage, table in stages.items()
        }
        read.append(_at(path, Workflow, name, parts))
    return cast("Network", _at(path, Network, systems, read))


def _read_system(path: str, description: object) -> System:
    """Read an engine of a network, or the system of the table's `kind`."""
    kind = description.get("kind") if isinstance(description, Mapping) else None
    if kind == "Cluster":
        return read_fields(path, description, Cluster)
    if kind == "Disaggregated":
        return read_disaggregated(path, description)
    if kind is not None:
        known = nearest(str(kind), ("Cluster", "Disaggregated"))
        raise ConfigError(f"{path}.kind", f"unknown kind {kind!r}{known}; a table without kind is an engine")
    return read_fields(path, description, Engine)


def _at(path: str, kind: Any, *arguments: object) -> Any:
    """Call a class; errors name the place below `path`."""
    try:
        return kind(*arguments)
    except ConfigError as error:
        raise error.within(path) from None
