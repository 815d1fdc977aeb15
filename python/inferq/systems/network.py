"""Network: engines with names, and the workflows of jobs that call them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias, cast

from inferq.description import Description, Table, fields_in, fields_of, nearest, plain, read_fields, table_of
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
"""What may serve the stages of a network."""

_SYSTEMS = (Engine, Cluster, Disaggregated)


class InOrder(Table):
    """A table whose keys keep the order in which they were given, because it numbers what they name."""

    __slots__ = ()

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, InOrder) and list(self.items()) == list(other.items())

    __hash__ = Table.__hash__


@dataclass(frozen=True, slots=True)
class Stage(Description):
    """One call of a job to an engine of its network.

    It arrives `delay_s` after the last of `after` has finished; a stage that waits for none, `delay_s` after
    its job has arrived. If one of them is rejected or abandoned, it never arrives.

    Args:
        engine: name of the engine that serves it.
        prompt: tokens of its prompt, 1 or above; a distribution, drawn for each job; or recorded lengths: a
            list, a numpy array or a polars Series with one for each job of the workflow, in the order of the
            workload. What `prefix`, `continues` and `includes` bring comes on top; with one of them it may
            be 0.
        output: tokens that it generates, 1 or above, in the same three ways.
        after: stages of the same workflow that must have finished: a name, or several. More than one is a
            join; several stages after the same one are a fork.
        includes: stages whose output tokens are added to the prompt: a name, or several. Each must have
            finished before, that is, be in `after` or before one of those. They stand behind `prompt`, so
            they are computed again.
        continues: the stage with whose prompt and output this one's prompt begins, as the next call of an
            agent does with its growing context: where the engine has a prefix cache it finds them. It must
            have finished before, and stand before this one in the workflow. Of several in `after`, a join, it
            is the one whose context goes on; the outputs of the others come in by `includes`.
        prefix: name of a shared text at the very beginning, a system prompt: the same name is the same
            content in every stage, job and workflow. A stage that continues another begins with that one's.
        prefix_tokens: how many tokens the text has; 0 without one.
        delay_s: seconds, 0 or above, that a tool takes first; or a distribution, drawn for each job.
        class_name: the class that schedulers and results see; the name of the workflow if not given.

    Raises:
        ConfigError: naming the field.

    Source: the sub-tasks of li2025 §4.3.

    Example:
        >>> import inferq as iq
        >>> review = iq.Stage("critic", prompt=50, output=iq.Geometric(80), after="draft", includes="draft")
        >>> review.after
        ('draft',)

        An agent of three calls, each with all that was said before, and a tool between them:

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

        Lengths that were recorded, one for each of three jobs:

        >>> seen = iq.Workflow("seen", stages={"ask": iq.Stage("chat", prompt=[310, 80, 95], output=40)})
        >>> jobs = {"arrival_s": [0.0, 1.0, 2.0]}
        >>> iq.simulate(jobs, iq.Network({"chat": engine}, [seen])).requests["prompt_tokens"].to_list()
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
        """Check the fields; names of other stages are checked by the workflow."""
        for name in ("after", "includes"):
            if isinstance(getattr(self, name), str):
                object.__setattr__(self, name, (getattr(self, name),))
        for name in ("prompt", "output"):
            if hasattr(getattr(self, name), "to_list"):  # of polars
                object.__setattr__(self, name, getattr(self, name).to_list())
        Description.__post_init__(self)
        more = bool(self.includes or self.continues or self.prefix)
        for name, least in (("prompt", 0 if more else 1), ("output", 1)):
            length = getattr(self, name)
            if isinstance(length, Empirical):
                raise ConfigError(
                    name, f"takes a distribution of one length such as Fixed(100), not {length!r}"
                )
            if length == ():
                raise ConfigError(name, "no length; recorded lengths are one for each job of the workflow")
            recorded = isinstance(length, tuple)
            for place, tokens in enumerate(length if recorded else (length,)):
                if isinstance(tokens, int) and not least <= tokens <= MOST_TOKENS:
                    where = f"{name}[{place}]" if recorded else name
                    raise ConfigError(where, f"must be from {least} to {MOST_TOKENS} tokens, is {tokens}")
        if isinstance(self.delay_s, (int, float)) and self.delay_s < 0:
            raise ConfigError("delay_s", f"must not be negative, is {self.delay_s!r}")
        for name in ("engine", "class_name", "continues", "prefix"):
            if getattr(self, name) == "":
                raise ConfigError(name, "must not be empty")
        if self.prefix is not None and self.continues is not None:
            raise ConfigError(
                "prefix", f"the prompt begins already with that of {self.continues!r} (continues)"
            )
        if self.prefix is None and self.prefix_tokens:
            raise ConfigError("prefix_tokens", f"{self.prefix_tokens} tokens of which text? Give prefix too")
        if self.prefix is not None and not 1 <= self.prefix_tokens <= MOST_TOKENS:
            raise ConfigError(
                "prefix_tokens", f"must be from 1 to {MOST_TOKENS} for a prefix, is {self.prefix_tokens}"
            )
        if self.continues in self.includes:
            raise ConfigError("includes", f"the output of {self.continues!r} is there already (continues)")
        for name in ("after", "includes"):
            named = getattr(self, name)
            if len(set(named)) < len(named):
                raise ConfigError(name, f"a stage twice in {list(named)}")

    def to_json(self) -> dict[str, Any]:
        """The stage as JSON-ready values."""
        return fields_of(self)


@dataclass(frozen=True, slots=True)
class Workflow(Description):
    """A kind of jobs: stages, each a call to an engine, that wait for each other.

    Args:
        name: what the workload's column `class` calls jobs of this kind.
        stages: the stages by name, one or more. Their order numbers the requests of a job, and decides which
            is first where two arrive at the same instant; it need not be the order in which they run.

    Raises:
        ConfigError: no stage, a stage that waits for an unknown one or, in a circle, for itself, or that
            includes the output of one, or continues one, that need not have finished; it names workflow,
            stage and field.

    Source: the AI-agent workloads of li2025 §4.3.

    Example:
        The fork-join of li2025 §4.3: two branches start when the first stage is done, the last one joins
        them:

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
        """Check the names, and that no stage waits for itself."""
        plain("name", self.name, (str,))
        if not self.name:
            raise ConfigError("name", "must not be empty")
        here = f"workflows.{self.name}.stages"
        if not isinstance(self.stages, Mapping):
            raise ConfigError(here, f"must be a table of Stage(…) by name, is {self.stages!r}")
        if not self.stages:
            raise ConfigError(here, "no stage; a workflow has at least one")
        for name, stage in self.stages.items():
            if not isinstance(name, str) or not name:
                raise ConfigError(here, f"the name {name!r} must be a text, not empty")
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
                        f"{other!r} need not have finished before {name!r}; "
                        "name it in after, or a stage that comes after it",
                    )
        place_of = {name: place for place, name in enumerate(self.stages)}
        for name, stage in self.stages.items():
            earlier = stage.continues
            if earlier is None:
                continue
            if not self._finished_before(earlier, name, depth):
                raise ConfigError(
                    f"{here}.{name}.continues",
                    f"{earlier!r} need not have finished before {name!r}; "
                    "name it in after, or a stage that comes after it",
                )
            if place_of[earlier] > place_of[name]:
                raise ConfigError(
                    f"{here}.{name}.continues", f"{earlier!r} must stand before {name!r} in stages"
                )

    def in_order(self) -> Iterator[str]:
        """The stages so that each comes after all that it waits for.

        Raises:
            ConfigError: naming the stages that wait for each other.
        """
        for ready in self._levels():
            yield from ready

    def _levels(self) -> Iterator[list[str]]:
        """The stages that wait for none, then those whose last is among these, and so on."""
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
                f"these stages wait for each other in a circle, or for one that does: {', '.join(waits_for)}",
            )

    def followers(self) -> dict[str, list[str]]:
        """For each stage those that wait for it, in the order of the stages."""
        found: dict[str, list[str]] = {name: [] for name in self.stages}
        for name, stage in self.stages.items():
            for other in stage.after:
                found[other].append(name)
        return found

    def _finished_before(self, other: str, name: str, depth: Mapping[str, int]) -> bool:
        """Whether a stage must have finished before another; `depth` of each is its place in `_levels`."""
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
        """The stages as JSON-ready values; a network keeps them under the workflow's name."""
        return {"stages": {name: stage.to_json() for name, stage in self.stages.items()}}


@dataclass(frozen=True, slots=True)
class Network(Description):
    """Engines with names, and jobs that call them: directed graphs of stages with joins, delays and classes.

    The rows of its workload are jobs: a run needs only `arrival_s`, and, where there are several workflows,
    `class` with the name of the job's. `patience_s`, `cancel_s`, `priority`, `ttft_slo_s`, `itl_slo_s` and
    `session_id` go to every stage of the job. Lengths come from the stages, recorded or drawn from the seed
    of the run: each stage has draws of its own, and those of a job do not depend on the other jobs.

    `Result.requests` has a row for each stage that arrived, with `job`, `stage` and `engine` beside its `id`;
    `Result.jobs` has a row for each job. `warmup` and `cooldown` count jobs. Replicas are numbered over all
    engines in the order of the table. A scheduler written in Python is copied (`copy.deepcopy`) for every
    replica.

    Source: li2025 §4.3, whose two networks are instances: fork-join (see `Workflow`) and Rybko–Stolyar.

    Args:
        engines: an `Engine`, a `Cluster` or a `Disaggregated` under each name, one or more.
        workflows: one or more, each with a name of its own.

    Raises:
        ConfigError: nothing there, a part of the wrong kind, a name twice, or a stage at an unknown engine;
            it names engine, workflow and stage.

    Example:
        The Rybko–Stolyar network of li2025 §4.3: each engine prefers the jobs that are about to leave, and
        the network is unstable although no engine is overloaded.

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
        """Check the parts, and that every stage has its engine."""
        if not isinstance(self.engines, Mapping):
            raise ConfigError("engines", f"must be a table of engines by name, is {self.engines!r}")
        if not self.engines:
            raise ConfigError("engines", "no engine; a network has at least one")
        for name, engine in self.engines.items():
            if not isinstance(name, str) or not name:
                raise ConfigError("engines", f"the name {name!r} must be a text, not empty")
            plain(f"engines.{name}", engine, _SYSTEMS)
        if isinstance(self.workflows, (str, Mapping)) or not isinstance(self.workflows, Sequence):
            raise ConfigError("workflows", f"must be a list of Workflow(…), is {self.workflows!r}")
        if not self.workflows:
            raise ConfigError("workflows", "no workflow; a network has at least one")
        names = set()
        for place, workflow in enumerate(self.workflows):
            plain(f"workflows[{place}]", workflow, (Workflow,))
            if workflow.name in names:
                raise ConfigError(f"workflows[{place}].name", f"{workflow.name!r} is there already")
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
        """The network as JSON-ready values, with its `kind`; the inverse of `from_json`."""
        return {
            "kind": "Network",
            "engines": {name: engine.to_json() for name, engine in self.engines.items()},
            "workflows": {workflow.name: workflow.to_json() for workflow in self.workflows},
        }

    @classmethod
    def from_json(cls, description: Mapping[str, Any]) -> Network:
        """The network that a table describes, as read from JSON or TOML.

        Args:
            description: `engines`, under each name a table as `Engine.from_json` takes it, or one with
                the `kind` `"Cluster"` or `"Disaggregated"`; `workflows`, under each name a table with
                `stages`, under each name of these a table with the fields of `Stage`.

        Raises:
            ConfigError: an unknown, missing or wrong field, named by its path; a scheduler or a router
                written in Python.

        Example:
            >>> import inferq as iq
            >>> kv = iq.KvCache(tokens=100_000)
            >>> engine = iq.Engine(timing=iq.Constant(0.02), scheduler=iq.Sarathi(), kv=kv)
            >>> ask = iq.Workflow("ask", stages={"answer": iq.Stage("chat", prompt=100, output=iq.Fixed(20))})
            >>> network = iq.Network({"chat": iq.Cluster(engine, replicas=2)}, [ask])
            >>> iq.Network.from_json(network.to_json()) == network
            True
        """
        return read_network("network", description)


def read_network(path: str, description: object) -> Network:
    """The network that a table describes; an error names its place from `path` on."""
    table = fields_in(path, description, ("engines", "workflows"), ("engines", "workflows"), "Network")
    engines, workflows = (table_of(f"{path}.{name}", table[name]) for name in ("engines", "workflows"))
    systems = {name: _read_system(f"{path}.engines.{name}", told) for name, told in engines.items()}
    read: list[Workflow] = []
    for name, told in workflows.items():
        here = f"{path}.workflows.{name}"
        stages = table_of(f"{here}.stages", fields_in(here, told, ("stages",), ("stages",))["stages"])
        made = {stage: read_fields(f"{here}.stages.{stage}", one, Stage) for stage, one in stages.items()}
        read.append(_at(path, Workflow, name, made))
    return cast("Network", _at(path, Network, systems, read))


def _read_system(path: str, told: object) -> System:
    """What serves one name of a network: an engine, or what the table's `kind` says."""
    kind = told.get("kind") if isinstance(told, Mapping) else None
    if kind == "Cluster":
        return read_fields(path, told, Cluster)
    if kind == "Disaggregated":
        return read_disaggregated(path, told)
    if kind is not None:
        known = nearest(str(kind), ("Cluster", "Disaggregated"))
        raise ConfigError(f"{path}.kind", f"unknown kind {kind!r}{known}; a table without kind is an engine")
    return read_fields(path, told, Engine)


def _at(path: str, kind: Any, *arguments: object) -> Any:
    """What a class makes of `arguments`; an error names its place from `path` on."""
    try:
        return kind(*arguments)
    except ConfigError as error:
        raise error.within(path) from None
