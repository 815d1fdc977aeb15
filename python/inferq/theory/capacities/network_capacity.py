"""Load of each engine of a network of agents; li2025 section 4.3."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from inferq.errors import ConfigError
from inferq.systems.cluster import Cluster
from inferq.systems.engine import Engine
from inferq.systems.network import Network, Stage, Workflow
from inferq.systems.pools import pools_of
from inferq.theory.capacities.iteration_cost import Iteration, fills_budget
from inferq.theory.demands.demand import rate_of
from inferq.theory.demands.lengths import FirstToken, Lengths, with_prompt
from inferq.theory.statement import Hypothesis, Statement, hypotheses_text, number
from inferq.workload.workload import Workload


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineLoad:
    """The load of one engine of a network from the stages of all workflows."""

    name: str
    tokens_per_s: float
    """Σ rate·(m_p + m_d) over its stages, including outputs that prompts contain, all computed."""
    capacity_tokens_per_s: float
    """Σ b/t_b over its replicas."""
    most_tokens_per_s: float
    """Σ of the largest n/t_n, n ≤ b; differs only if the model's slope is steeper than its base allows."""
    least_tokens_per_s: float
    """The part of `tokens_per_s` that prefix caches cannot save: one token of each prompt, and the decodes;
    all of it without a prefix cache."""

    @property
    def load(self) -> float:
        """ρ_j, token demand divided by the tokens per second of full batches."""
        return self.tokens_per_s / self.capacity_tokens_per_s


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkCapacity(Statement):
    """The load of every engine of a network; returned by `network_capacity`."""

    source: ClassVar[str] = "li2025 (4.3)"

    rates: Mapping[str, float]
    """Jobs per second of each workflow."""
    engines: tuple[EngineLoad, ...]
    """One per engine, in the order of the network."""
    capacity_per_s: float
    """Jobs per second, at this mix, at which the first engine is full."""
    hypotheses: tuple[Hypothesis, ...]
    stable: bool | None
    """False if an engine is overloaded; else None, because the condition is necessary, not sufficient."""

    @property
    def rate(self) -> float:
        """Jobs per second of all workflows."""
        return math.fsum(self.rates.values())

    @property
    def binding(self) -> str:
        """The engine with the largest load."""
        return max(self.engines, key=lambda engine: engine.load).name

    @property
    def load(self) -> float:
        """The largest load of an engine."""
        return max(engine.load for engine in self.engines)

    @property
    def loads(self) -> dict[str, float]:
        """The load of each engine by its name."""
        return {engine.name: engine.load for engine in self.engines}

    def explain(self) -> str:
        """The inequality of every engine in numbers, the conclusion, and the hypotheses."""
        jobs = ", ".join(f"{name} {number(rate)}" for name, rate in self.rates.items())
        lines = [f"Network ({self.source}): Σ λ·(m_p + m_d) < b/t_b at each engine; jobs per second: {jobs}"]
        for engine in self.engines:
            sign = "<" if engine.load < 1 else "=" if engine.load == 1 else ">"
            most = (
                ""
                if engine.most_tokens_per_s == engine.capacity_tokens_per_s
                else (f", at most {number(engine.most_tokens_per_s)}")
            )
            lines.append(
                f"  {engine.name}: {number(engine.tokens_per_s)} {sign} "
                f"{number(engine.capacity_tokens_per_s)}{most} tokens per second, load {number(engine.load)}"
            )
        lines.append(
            f"  {self.binding} binds: at this mix no engine is overloaded below "
            f"{number(self.capacity_per_s)} jobs per second"
        )
        verdict = (
            "unstable"
            if self.stable is False
            else "unknown: no engine is overloaded, which is necessary but not sufficient"
        )
        return "\n".join([*lines, f"  verdict: {verdict}", *hypotheses_text(self.hypotheses)])


def network_capacity(workload: Mapping[str, float] | Workload, network: Network) -> NetworkCapacity:
    """Compute the load of every engine of a network of agents.

    Each job of a workflow loads its stages' prompts, the outputs that these prompts include, and their
    decodes. An engine must not receive more tokens than its full batches can compute. The condition is
    necessary. It is proved sufficient for one engine, and conjectured in the paper for a fork-join. In
    general it is not sufficient: in the network of Rybko and Stolyar (`inferq paper li2025`) engines take
    turns, as if two of their stages were one station, and jobs accumulate at a load of 0.56.

    Args:
        workload: jobs per second by workflow name, or a workload of jobs, drawn with seed 0.
        network: engines (or clusters) with timing by tokens alone and a token budget, and workflows.

    Raises:
        ConfigError: a rate is not positive, a workflow is unknown, or an engine has no token budget, other
            timing, or hand-offs.

    Source: li2025 section 4.3, (4.3), with the loads of all stages of an engine added up.

    Example:
        >>> import inferq as iq
        >>> from inferq.theory.capacities.network_capacity import network_capacity
        >>> policy = iq.research.KFcfs(token_budget=100, k_prefill=100, k_decode=100)
        >>> kv = iq.KvCache.unlimited()
        >>> agent = iq.Engine(timing=iq.Constant(1.0), scheduler=policy, kv=kv, first_token="decode")
        >>> draft = iq.Stage("writer", prompt=50, output=20)
        >>> check = iq.Stage("critic", prompt=10, output=5, after="draft", includes="draft")
        >>> job = iq.Workflow("job", stages={"draft": draft, "check": check})
        >>> loads = network_capacity({"job": 1.0}, iq.Network({"writer": agent, "critic": agent}, [job]))
        >>> loads.loads, round(loads.capacity_per_s, 3)
        ({'writer': 0.7, 'critic': 0.35}, 1.429)
    """
    if not isinstance(network, Network):
        raise ConfigError("network", f"must be a Network, got {network!r}")
    workflows = {workflow.name: workflow for workflow in network.workflows}
    rates, known = _rates(workload, workflows)
    steps: dict[str, list[tuple[float, float, float]]] = {name: [] for name in network.engines}
    for workflow, rate in rates.items():
        for engine_name, prompt, output in _steps(workflows[workflow]):
            steps[engine_name].append((rate, prompt, output))
    engines = []
    full = []
    for name, system in network.engines.items():
        members = _members(name, system)
        conventions = {engine.first_token for engine, _ in members}
        if len(conventions) > 1:
            raise ConfigError(f"engines.{name}", "all its replicas must have the same first_token")
        first_token: FirstToken = members[0][0].first_token
        tokens, least = (
            math.fsum(
                rate * ((min(1.0, prompt) if hits else prompt) + output - with_prompt(first_token))
                for rate, prompt, output in steps[name]
            )
            for hits in (False, any(engine.kv.prefix_cache is not None for engine, _ in members))
        )
        computed, most = [], []
        for place, (engine, count) in enumerate(members):
            path = f"engines.{name}" if len(members) == 1 else f"engines.{name}.engines[{place}]"
            cost, budget = _cost(path, engine)
            best = int(cost.best_tokens(budget))
            computed.append(count * budget / cost.seconds(budget))
            most.append(count * best / cost.seconds(best))
            full.append(fills_budget(engine.scheduler, budget))
        engines.append(
            EngineLoad(
                name=name,
                tokens_per_s=tokens,
                least_tokens_per_s=least,
                capacity_tokens_per_s=math.fsum(computed),
                most_tokens_per_s=math.fsum(most),
            )
        )
    load = max(engine.load for engine in engines)
    overloaded = any(engine.least_tokens_per_s > engine.most_tokens_per_s for engine in engines)
    not_full = [hypothesis for hypothesis in full if hypothesis.met is not True]
    hypotheses: tuple[Hypothesis, ...] = (
        not_full[0] if not_full else full[0],
        _forward(network),
        Hypothesis(name="job rates", met=True if known else None, why=known or "estimated from a workload"),
    )
    saving = [engine.name for engine in engines if engine.least_tokens_per_s < engine.tokens_per_s]
    if saving:
        why = (
            f"caches may find all but one token of each prompt at {', '.join(saving)}: an engine counts as "
            "overloaded only if it is so even then; loads and capacity count every prompt in full"
        )
        hypotheses = (*hypotheses, Hypothesis(name="prefix cache hits", met=True, why=why))
    return NetworkCapacity(
        rates=rates,
        engines=tuple(engines),
        capacity_per_s=math.fsum(rates.values()) / load,
        hypotheses=hypotheses,
        stable=False if overloaded else None,
    )


def _rates(workload: object, workflows: Mapping[str, Workflow]) -> tuple[dict[str, float], str]:
    """Jobs per second of each workflow, and the source of these rates."""
    if isinstance(workload, Mapping):
        rates = {str(name): rate_of(f"workload[{name!r}]", rate) for name, rate in workload.items()}
        if not rates:
            raise ConfigError("workload", "no workflow has a rate")
        source = "configured"
    elif isinstance(workload, Workload):
        frame = workload.ready(0, needs=("arrival_s",))
        span_s = float(frame["arrival_s"][-1] - frame["arrival_s"][0]) if frame.height else 0.0
        if not span_s > 0:
            raise ConfigError("workload", "all jobs arrive at the same time; set rates by workflow")
        total = (frame.height - 1) / span_s
        if "class" in frame.columns:
            counts = frame["class"].cast(str).value_counts().rows()
        elif len(workflows) == 1:
            counts = [(next(iter(workflows)), frame.height)]
        else:
            raise ConfigError("workload", "the column class, the workflow of each job, is missing")
        rates = {str(name): total * count / frame.height for name, count in sorted(counts)}
        source = ""
    else:
        raise ConfigError("workload", f"must be rates by workflow or a Workload of jobs, got {workload!r}")
    for name in rates:
        if name not in workflows:
            raise ConfigError("workload", f"unknown workflow {name!r}; workflows: {', '.join(workflows)}")
    return rates, source


def _members(name: str, system: object) -> list[tuple[Engine, int]]:
    """The engines behind a name, each with its number of replicas."""
    if isinstance(system, Engine):
        return [(system, 1)]
    if isinstance(system, Cluster):
        return [
            (engine, count)
            for pool in pools_of(system)
            for engine, count in zip(pool.engines, pool.counts, strict=True)
        ]
    raise ConfigError(
        f"engines.{name}",
        f"{type(system).__name__} splits a stage between two engines, which is not supported",
    )


def _cost(path: str, engine: Engine) -> tuple[Iteration, int]:
    if engine.overhead is not None and engine.overhead.per_sequence_s:
        raise ConfigError(
            f"{path}.overhead.per_sequence_s", "must be 0: (4.3) requires times that depend on tokens alone"
        )
    try:
        cost = Iteration.of(engine)
    except ConfigError as error:
        raise error.within(path) from None
    if not cost.by_tokens:
        raise ConfigError(f"{path}.timing", "must depend on tokens alone, as (4.3) requires")
    budget = engine.scheduler.token_limit()
    if budget is None:
        raise ConfigError(f"{path}.scheduler", f"{type(engine.scheduler).__name__} has no token budget")
    if not cost.seconds(cost.best_tokens(budget)) > 0:
        raise ConfigError(f"{path}.timing", "an iteration lasts 0 seconds")
    return cost, budget


def _steps(workflow: Workflow) -> Iterator[tuple[str, float, float]]:
    """The engine of each stage of a workflow, with the mean lengths of its prompt and its output."""
    outputs = {name: _output(stage) for name, stage in workflow.stages.items()}
    ends: dict[str, float] = {}
    """Mean tokens at the end of a stage, with which a stage that continues it begins."""
    for name, stage in workflow.stages.items():
        begun = float(stage.prefix_tokens) if stage.continues is None else ends[stage.continues]
        new = _new(stage)
        included = [outputs[other] for other in stage.includes]
        ends[name] = math.fsum([begun, new, outputs[name], *included])
        yield stage.engine, begun + new + math.fsum(included), outputs[name]


def _new(stage: Stage) -> float:
    """Mean tokens that a stage itself adds to its prompt."""
    if isinstance(stage.prompt, Sequence):
        return math.fsum(stage.prompt) / len(stage.prompt)
    return 0.0 if stage.prompt == 0 else Lengths.of(stage.prompt, 1).prompt_mean


def _output(stage: Stage) -> float:
    """Mean tokens that a stage generates."""
    if isinstance(stage.output, Sequence):
        return math.fsum(stage.output) / len(stage.output)
    return Lengths.of(1, stage.output).output_mean


def _forward(network: Network) -> Hypothesis:
    """Whether all jobs pass the engines in one order, so that no two engines starve each other."""
    successors: dict[str, set[str]] = {name: set() for name in network.engines}
    predecessors: dict[str, set[str]] = {name: set() for name in network.engines}
    for workflow in network.workflows:
        for stage in workflow.stages.values():
            for before in stage.after:
                successors[workflow.stages[before].engine].add(stage.engine)
                predecessors[stage.engine].add(workflow.stages[before].engine)
    onward = {name: len(to) for name, to in successors.items()}
    ends = [name for name, count in onward.items() if count == 0]
    for end in ends:
        for name in predecessors[end]:
            onward[name] -= 1
            if onward[name] == 0:
                ends.append(name)
    if len(ends) < len(successors):
        circle = [name for name, count in onward.items() if count]
        why = f"jobs return, or cross, among {', '.join(circle)}: some priorities may starve them"
        return Hypothesis(name="one direction of jobs through the engines", met=False, why=why)
    return Hypothesis(
        name="one direction of jobs through the engines",
        met=True,
        why="as in Conjecture 1 for a fork-join",
    )
