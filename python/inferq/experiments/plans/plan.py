"""`inferq.plan`: search for the cheapest fleet that meets an SLO."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from hashlib import sha256
from json import dumps
from typing import Any

from inferq import checks
from inferq.checks import between, positive, whole
from inferq.description import member
from inferq.display.text import counted, number, seconds
from inferq.errors import ConfigError
from inferq.experiments.arguments import check_log, check_options, looks_of, recorded
from inferq.experiments.leaves import requests_of
from inferq.experiments.plans.candidate_grid import CandidateGrid, grid_of
from inferq.experiments.plans.candidate_state import CandidateState
from inferq.experiments.plans.fleet_plan import FleetPlan
from inferq.experiments.plans.limits import NO_LIMIT, Limit, UpperBounds, upper_bounds_of
from inferq.experiments.plans.outcome import outcomes_of
from inferq.experiments.plans.prober import Prober
from inferq.experiments.plans.question import LONGER, Question, question_of
from inferq.experiments.plans.records import Records
from inferq.experiments.plans.search import Search
from inferq.experiments.sweeps.executors import chosen
from inferq.files import locked
from inferq.inputs import path_of
from inferq.results.slo import Objective, Slo, with_itl_limits
from inferq.systems.prices import Prices
from inferq.theory.demands.demand import Demand
from inferq.workload.columns import Table
from inferq.workload.workload import Workload

_MOST_WITHIN = 10.0
TUNED_BUDGETS = (256, 512, 1024, 2048, 4096)
"""Token budgets that `tune` compares with the server's default."""
_VERSION = 2
"""Version of the values that records store."""
_VERDICTS = {"violated": "breaks the SLO", "undecided": "does not surely meet the SLO"}


def plan(
    workload: Workload | Table,
    slo: Slo,
    *,
    model: Any = None,
    gpus: Any = None,
    tensor_parallel: Any = None,
    schedulers: Any = None,
    caches: Any = None,
    engine_options: Mapping[str, Any] | None = None,
    engines: Any = None,
    pools: Any = None,
    link: Any = None,
    routers: Any = None,
    replicas: Any = None,
    tune: bool | None = None,
    spare: int = 0,
    prices: Prices | str | os.PathLike[str] | None = None,
    within: float = 0.02,
    seeds: Iterable[int] | int = range(5),
    most_seeds: int | None = None,
    confidence: float = 0.95,
    threads: int | None = None,
    executor: Any = None,
    time_s: float | None = None,
    resume: str | os.PathLike[str] | None = None,
    log: Callable[[str], object] | None = None,
    **run: Any,
) -> FleetPlan:
    """Find the cheapest fleet that meets an SLO.

    The choices form a grid: GPUs, tensor-parallel sizes, schedulers, prefix caches, pools, routers, and the
    number of replicas. Each candidate of the grid gets an outcome with a reason:

    0. A workload that is drawn from distributions, or a trace that was scaled by `at_rate`, asks about a
       *rate* that holds for long. Any other trace asks about exactly its requests. A trace for a rate is
       extended in blocks (`Workload.resample`) until the answer also holds for runs four times as long. A
       fleet whose run has the finding "overload" does not meet an SLO at a rate.
    1. For a rate, theory gives an *upper bound* of the load of a replica (`inferq.theory.stability`,
       hypotheses met), so a minimum number of replicas for any policy. Limits that a single request on an
       idle replica exceeds are impossible. What is ruled out is not run further.
    2. The other candidates run on the same requests: first on a short part, then on longer ones. The more
       promising half continues each time, until a fleet meets the SLO over all requests. Bisection finds the
       number of replicas. It assumes that more replicas are better; that is checked, and if it fails every
       smaller size is run.
    3. Every other candidate is then tried at the largest size that costs less. Often a part of the requests
       is proof: more of them are late already than may be late in all (the future does not change the past,
       invariant L11). For random arrivals at a steady rate a part also counts if its whole confidence
       interval is beyond a limit: a queue that starts empty only grows towards its stationary length.
    4. Among candidates of equal cost the fastest is found by halving, in pairs on the same requests.
    5. If all cheaper sizes together have at most 100,000 requests of a fixed workload, each of them is run.

    For a fixed workload the answer is exact: no candidate that was tried costs less by more than `within`, if
    more replicas are better or step 5 applies. For a random workload it holds with the stated confidence,
    which is divided among all candidates and all looks at more seeds. It does not depend on the number of
    threads, the executor, or resuming.

    Without prices the cost of a fleet is its number of GPUs.

    Args:
        workload: a `Workload` with arrivals, or anything that `Workload` accepts.
        slo: the objectives.
        model: model to serve, as for `Engine.on`.
        gpus: GPUs to choose from, as for `Engine.on`. Default: GPUs with a price; without prices, GPUs with a
            measured table of the model; else every known GPU.
        tensor_parallel: tensor-parallel sizes to choose from. Default: 1, 2, 4 and 8.
        schedulers: schedulers to choose from: None (the server's default), a scheduler, or a table of fields
            such as `{"token_budget": 4096}`. Default: the server's.
        caches: prefix caches to choose from, as `prefix_cache` of `Engine.on`. Default: the server's.
        engine_options: further arguments of `Engine.on`, for all candidates.
        engines: an `Engine`, or a table of engines by name, instead of the arguments above.
        pools: `"together"`, or prefill and decode replicas such as `"1:2"`; several to choose from. A replica
            of a disaggregated fleet is one such group. Default: `"together"`.
        link: link between disaggregated pools. With `concurrent=None`, each prefill replica sends one context
            at a time. Default: such a link with 400 Gb/s, no latency and the model's KV bytes.
        routers: routers to choose from. Default: `LeastRequests()`.
        replicas: possible numbers of replicas. Default: 1 to 1,024.
        tune: whether to compare token budgets of 256 to 4,096 with the server's. A large budget shortens
            TTFT, a small one the gaps between tokens. Default: True if the SLO limits TTFT and also ITL or
            TPOT, and neither `schedulers` nor `engines` are given.
        spare: replicas in addition to those that meet the SLO, included in the cost; 1 is N + 1.
        prices: GPU prices, or the path of a TOML file, see `Prices`.
        within: ε, the accepted excess over the lowest cost, as a share, 0 or above.
        seeds: seeds of a random workload, two or more.
        most_seeds: maximum seeds per fleet. Default: four times the number of `seeds`.
        confidence: confidence level, above 0.5 and below 1.
        threads: concurrent runs. Default: all cores.
        executor: where runs execute, as for `inferq.sweep`.
        time_s: time limit in seconds; no run starts after it, and undecided candidates are named.
        resume: a `.json` file that stores the values of runs, written about once a second. A plan of the same
            workload, SLO and options continues from it, also with further choices.
        log: called with a sentence after each stage.
        **run: further arguments of `inferq.simulate`.

    Returns:
        The plan: the chosen fleet, its cost, its risk and the runner-up; `candidates`; `frontier`;
        `explain()`; `sensitivity()`; `toml()`. If no fleet meets the SLO, `fleet` is None and `reason`
        contains the closest candidate and the bound that rules out the others.

    Raises:
        ConfigError: an argument is out of range, unknown or empty, the grid has more than 10,000 candidates,
            the model fits on no choice, or a GPU has no price.
        ResultError: the file to resume from is damaged or belongs to another plan.
        TraceError: the workload has no arrivals or lengths.
        SimulationError: a run fails.

    Example:
        Requests of one second each arrive at 2.5 per second (Poisson). With two servers the queue grows
        without bound, which theory rules out. Three servers are a queue of type M/D/3.

        >>> import inferq as iq
        >>> server = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.Sarathi(max_seqs=1),
        ...                    kv=iq.KvCache.unlimited())
        >>> arrivals = iq.Workload.synthetic(
        ...     requests=2000, arrivals=iq.dist.Poisson(2.5), prompt=iq.dist.Fixed(8), output=iq.dist.Fixed(1)
        ... )
        >>> plan = iq.plan(arrivals, iq.Slo(queue_mean=2.0), engines=server)
        >>> plan.units, plan.outcomes[0].kind
        (3, 'chosen')
    """
    member("slo", slo, (Slo,))
    numbers, looks = looks_of(seeds, most_seeds)
    within = checks.within("within", within, 0, _MOST_WITHIN)
    confidence = between("confidence", confidence, 0.5, 1)
    whole("spare", spare, 0, 1024)
    threads = None if threads is None else whole("threads", threads, 1, 2**16 - 1)
    for name, instead in (("seed", "seeds"), ("progress", "log")):
        if name in run:
            raise ConfigError(name, f"is not an argument of plan; use {instead}")
    check_options(run)
    begun = time.monotonic()
    deadline = math.inf if time_s is None else begun + positive("time_s", time_s)
    check_log(log)
    source = workload if isinstance(workload, Workload) else Workload(workload)
    tuned = _is_tuned(tune, slo, schedulers, engines)
    if tuned:
        schedulers = (None, *budgets(engine_options))
    priced = Prices.of(prices)
    grid = grid_of(
        model=model,
        gpus=tuple(priced.gpu_hour) or None if gpus is None and engines is None and priced else gpus,
        tensor_parallel=tensor_parallel,
        schedulers=schedulers,
        caches=caches,
        engines=engines,
        engine_options=engine_options,
        pools=pools,
        link=link,
        routers=routers,
        replicas=replicas,
    )
    costs = _unit_costs(grid, priced)
    path = _resume_path(resume, grid)
    lock = nullcontext() if path is None else locked("resume", path, path.with_name(f".{path.name}.lock"))
    with lock:
        records = Records(path, _fingerprint(source, slo, run))
        try:
            frame = source.ready(numbers[0])
            demand = Demand.of(source, needs_rate=False)
            question = question_of(source, demand, frame, slo.objectives)
            drawn = _is_random(question.workload, grid)
            if drawn and looks[0] < 2:
                raise ConfigError("seeds", "must be two or more for a random workload: one has no interval")
            closed = "think_s" in frame.columns or "max_in_flight" in run
            long_run = demand if question.about_rate and demand.rate is not None else None
            limits = _limits(long_run, grid, slo.objectives, deadline)
            left = sum(limit.least <= grid.units[-1] for limit in limits)
            prober = Prober(
                workload=question.workload,
                objectives=slo.objectives,
                seeds=numbers if drawn else numbers[:1],
                looks=looks if drawn else (1,),
                confidence=1 - (1 - confidence) / max(left, 1),
                exact=not drawn,
                steady=drawn and demand.busiest == 1 and demand.order is None,
                causal=not closed,
                about_rate=question.about_rate,
                options=with_itl_limits(run, slo.objectives),
                threads=threads,
                executor=chosen(executor),
                records=records,
                deadline=deadline,
            )
            if log is not None:
                log(_start(grid, left, prober.rungs, time.monotonic() - begun))
            search = _searched(prober, grid, limits, spare, costs, within, log)
            is_stable = True
            while question.trace is not None and (best := search.best) is not None and not search.stopped:
                longer = None if prober.late else _longer(question, prober)
                if longer is None:
                    is_stable = False
                    break
                assert best.high is not None
                (trial,) = longer.run([(best.candidate, best.sizes[best.high], longer.requests)])
                prober.simulated, prober.runs = longer.simulated, longer.runs
                if trial.verdict == "met":
                    break
                if log is not None:
                    log(
                        f"{best.candidate.size(trial.units)} {_VERDICTS[trial.verdict]} in runs of "
                        f"{longer.requests:,} requests: {trial.evidence}; the search continues with these"
                    )
                question, prober = question.with_requests(longer.requests), longer
                search = _searched(prober, grid, limits, spare, costs, within, log)
        finally:
            records.write(now=True)
    unit = "GPUs" if priced is None else f"{priced.currency} per hour".strip()
    return FleetPlan(
        slo=slo,
        workload=question.workload,
        question=question,
        is_stable=is_stable,
        tuned=tuned,
        rate=question.rate,
        grid=grid,
        prices=priced,
        unit=unit,
        spare=spare,
        within=within,
        confidence=confidence,
        exact=not drawn,
        requests=prober.requests,
        seeds=prober.seeds,
        outcomes=outcomes_of(search.states, stopped=search.stopped, unit=unit),
        states=tuple(search.states),
        prober=prober,
        stopped=search.stopped,
        gaps=tuple(search.gaps),
        simulated=prober.simulated,
        runs=prober.runs,
        output_tokens_mean=float(frame["output_tokens"].mean()),  # type: ignore[arg-type]  # whole numbers
        scenario=recorded(question.workload, prober.seeds, run, slo=repr(slo)),
    )


def _searched(
    prober: Prober,
    grid: CandidateGrid,
    limits: list[Limit],
    spare: int,
    costs: list[float],
    within: float,
    log: Callable[[str], object] | None,
) -> Search:
    """A finished search with the runs of a prober."""
    states = [
        CandidateState(candidate, limit, grid.units, spare, cost)
        for candidate, limit, cost in zip(grid.candidates, limits, costs, strict=True)
    ]
    search = Search(prober, states, within, log)
    search.run()
    return search


def _longer(question: Question, prober: Prober) -> Prober | None:
    """A prober for runs that are several times as long; None if they would be too long."""
    requests = min(LONGER * prober.requests, question.longest)
    if requests < 2 * prober.requests:
        return None
    return replace(
        prober,
        workload=question.with_requests(requests).workload,
        label=f"{requests} ",
        trials={},
        _keys={},
        _drawn={},
        _heads={},
    )


def budgets(engine_options: Mapping[str, Any] | None) -> tuple[dict[str, int], ...]:
    """The token budgets that `tune` adds to the server's default, as fields of its scheduler."""
    server = str((engine_options or {}).get("server", ""))
    name = "chunk_tokens" if server.startswith("sglang") else "token_budget"
    return tuple({name: tokens} for tokens in TUNED_BUDGETS)


def _is_tuned(tune: bool | None, slo: Slo, schedulers: Any, engines: Any) -> bool:
    """Whether token budgets are searched."""
    is_given = schedulers is not None or engines is not None
    if tune is None:
        limited = {objective.metric.quantity for objective in slo.objectives}
        return not is_given and "ttft" in limited and bool(limited & {"itl", "tpot"})
    if not isinstance(tune, bool):
        raise ConfigError("tune", f"must be True, False or None, got {tune!r}")
    if tune and is_given:
        raise ConfigError("tune", "cannot be combined with schedulers or engines, which set the token budget")
    return tune


def _unit_costs(grid: CandidateGrid, prices: Prices | None) -> list[float]:
    """The cost of one unit of each candidate: money per hour, or GPUs."""
    return [
        candidate.gpus
        * candidate.replicas_of_unit
        * (1.0 if prices is None else prices.of_gpu(candidate.gpu))
        for candidate in grid.candidates
    ]


def _resume_path(resume: str | os.PathLike[str] | None, grid: CandidateGrid) -> Any:
    """The checked path of the file to resume from."""
    if resume is None:
        return None
    path = path_of("resume", resume, ".json file")
    if path.suffix != ".json":
        raise ConfigError("resume", f"must be the name of a .json file, got {str(resume)!r}")
    if not grid.is_serializable:
        raise ConfigError(
            "resume", "is not supported for policies written in Python, which have no JSON form"
        )
    return path


def _limits(
    demand: Demand | None, grid: CandidateGrid, objectives: tuple[Objective, ...], deadline: float
) -> list[Limit]:
    """The proved minimum size of each candidate; after the deadline no further bounds are computed."""
    known: dict[tuple[int, bool], UpperBounds] = {}
    limits = []
    for candidate in grid.candidates:
        key = (id(candidate.choice.family), candidate.ratio is None)
        if key not in known and time.monotonic() <= deadline:
            known[key] = upper_bounds_of(
                demand, candidate.choice.family, grid.routers[0], candidate.link, objectives
            )
        limits.append(known[key].limit(candidate.ratio) if key in known else NO_LIMIT)
    return limits


def _start(grid: CandidateGrid, left: int, rungs: tuple[int, ...], elapsed_s: float) -> str:
    """The size of the task, for the log."""
    every = left * len(grid.units) * rungs[-1]
    return (
        f"{counted(len(grid), 'candidate')}, {len(grid) - left:,} ruled out by theory in "
        f"{seconds(elapsed_s)}; running every size of the rest on all requests would take {number(every)} "
        "requests; successive halving starts"
    )


def _is_random(workload: Workload, grid: CandidateGrid) -> bool:
    """Whether another seed gives another run."""
    return workload.is_synthetic or any(router.is_random is not False for router in grid.routers)


def _fingerprint(workload: Workload, slo: Slo, run: Mapping[str, Any]) -> str:
    """A hash of what all runs of a plan share."""
    shared = dumps([_VERSION, requests_of(workload), repr(slo), dict(run)], sort_keys=True, default=repr)
    return sha256(shared.encode()).hexdigest()
