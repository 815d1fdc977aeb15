"""Which is the cheapest fleet that keeps an SLO?"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from hashlib import sha256
from json import dumps
from typing import Any

from inferq import checks
from inferq.checks import positive, whole
from inferq.description import member
from inferq.display.text import counted, number, seconds
from inferq.errors import ConfigError
from inferq.experiments.arguments import between, check_options, looks_of, recorded
from inferq.experiments.leaves import requests_of
from inferq.experiments.plans.choices import Choices, choices_of
from inferq.experiments.plans.fate import Fates
from inferq.experiments.plans.fleet_plan import FleetPlan
from inferq.experiments.plans.limits import NO_LIMIT, Ceilings, Limit, ceilings_of
from inferq.experiments.plans.probing import Prober
from inferq.experiments.plans.records import Records
from inferq.experiments.plans.search import Search
from inferq.experiments.plans.standing import Standings
from inferq.experiments.sweeps.executors import chosen
from inferq.files import held
from inferq.inputs import path_of
from inferq.results.slo import Objective, Slo
from inferq.systems.prices import Prices
from inferq.theory.demands.demand import Demand
from inferq.workload.columns import Table
from inferq.workload.workload import Workload

_MOST_WITHIN = 10.0
_LONG_S = 1.5
"""Theory that takes longer is told of."""
_SHARE = 4
"""Where there is a time budget theory has one such part of it, and the search for a first answer another."""


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
    tell: Callable[[str], object] | None = None,
    **run: Any,
) -> FleetPlan:
    """The cheapest fleet that keeps an SLO, and why no other is cheaper.

    What there is to choose from is a grid: cards, GPUs of a replica, schedulers, caches, pools, routers, and
    how many replicas of it all. Nothing of it is left out silently:

    1. A *ceiling* of theory (`inferq.theory.stability`, hypotheses met) says how many replicas no policy can
       do without, and a shortest iteration which limits nothing keeps. What is ruled out is never run.
    2. The others are run on the same requests, first on a short part of them, then on ever longer ones, and
       the more promising half goes on each time, until there is a fleet that keeps the SLO over all of them.
       How many replicas it needs is found by bisection; that more are not worse is checked, and where they
       are, every size is run.
    3. Every other candidate is then tried at the largest size that costs less. Often a part of the requests
       is proof: more of them are late already than may be late of all (the future does not change the past,
       law L11). Of what is drawn and comes at a steady rate a part counts too where its whole interval is
       beyond a limit: a queue that begins empty only grows towards what it is in the long run.
    4. Of those that cost the same the fastest is found by halving, in pairs on the same requests.

    So of a fixed workload the answer is exact: no candidate that was tried costs less by more than `within`,
    as far as more replicas are better. Of a drawn one it holds with the stated confidence, shared out among
    all candidates and all looks at more seeds. It does not depend on the number of threads, nor on the
    executor, nor on whether it was resumed.

    Without prices a fleet costs its GPUs, whatever the card.

    Args:
        workload: a `Workload` with arrivals, or what `Workload` takes.
        slo: what must be kept.
        model: what is served, as `Engine.on` takes it.
        gpus: cards, as `Engine.on` takes them; None: those that have a price; without prices those of which a
            table of the model is shipped, or where there is none every known card.
        tensor_parallel: GPUs of a replica; None: 1, 2, 4 and 8.
        schedulers: each None (the server's), a scheduler, or a table of some of its fields, such as
            `{"token_budget": 4096}`; None: the server's alone.
        caches: prefix caches, as `prefix_cache` of `Engine.on`; None: the server's alone.
        engine_options: further arguments of `Engine.on` for all of them.
        engines: an `Engine` or a table of engines by name, instead of all of these.
        pools: each `"together"`, or replicas that prefill and that decode, `"1:2"`; None: together alone. Of
            pools that are apart a replica is one such group.
        link: the way between them; None: 400 Gb/s, no latency, with a model's own bytes.
        routers: None: `LeastRequests()` alone.
        replicas: how many there may be, a number or several; None: 1 to 1,024.
        spare: so many replicas more than keep the SLO are in the fleet and its cost; 1 is N + 1.
        prices: what GPUs cost, or the path of a TOML file of them, see `Prices`.
        within: ε: the answer costs at most so much more than the best, as a share, 0 or above.
        seeds: of a drawn workload, two or more.
        most_seeds: the most seeds of a fleet, four times as many as `seeds` unless told.
        confidence: above 0.5 and below 1.
        threads: how many runs go on at once; None takes every core.
        executor: where the runs go, as of `inferq.sweep`.
        time_s: after so many seconds no run is begun, and what is undecided then is named.
        resume: a `.json` file that keeps what was run, written about once a second; with it a plan of the
            same workload, SLO and options goes on where it was, also one with further choices.
        tell: gets a sentence after each stage.
        **run: the other arguments of `inferq.simulate`.

    Returns:
        The answer with its cost, its risk and its runner-up; `candidates` with the fate of each; `frontier`;
        `explain()`; `sensitivity()`; `toml()`. Where nothing keeps the SLO `fleet` is None, and `reason` says
        what comes nearest and which bound forbids more.

    Raises:
        ConfigError: an argument outside its range, an unknown name, an axis without a choice, a grid in which
            nothing fits (with why), no price for a card.
        ResultError: a file to resume from that is damaged or of something else.
        TraceError: a workload without arrivals or lengths.
        SimulationError: a run that cannot go on.

    Example:
        Requests of one second each, 2.5 of them a second, Poisson: with two servers the queue grows without
        end, and theory says so; with three it is a queue of kind M/D/3.

        >>> import inferq as iq
        >>> server = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.Sarathi(max_seqs=1),
        ...                    kv=iq.KvCache.unlimited())
        >>> arrivals = iq.Workload.synthetic(
        ...     requests=2000, arrivals=iq.Poisson(2.5), prompt=iq.Fixed(8), output=iq.Fixed(1)
        ... )
        >>> found = iq.plan(arrivals, iq.Slo(queue_mean=2.0), engines=server)
        >>> found.units, found.fates[0].kind
        (3, 'cheapest')
    """
    member("slo", slo, (Slo,))
    numbers, looks = looks_of(seeds, most_seeds)
    within = checks.within("within", within, 0, _MOST_WITHIN)
    confidence = between("confidence", confidence, 0.5, 1)
    whole("spare", spare, 0, 1024)
    threads = None if threads is None else whole("threads", threads, 1, 2**16 - 1)
    for name in ("seed", "progress"):
        if name in run:
            raise ConfigError(name, f"not for plan, which takes {'seeds' if name == 'seed' else 'tell'}")
    check_options(run)
    begun = time.monotonic()
    deadline = math.inf if time_s is None else begun + positive("time_s", time_s)
    if tell is not None and not callable(tell):
        raise ConfigError("tell", f"must be a callable that gets a sentence, or None, is {tell!r}")
    source = workload if isinstance(workload, Workload) else Workload(workload)
    priced = Prices.of(prices)
    grid = choices_of(
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
    costs = [
        family.gpus
        * (1 if ratio is None else sum(ratio))
        * (1.0 if priced is None else priced.of_gpu(family.card))
        for family, ratio in grid.kinds
    ]
    path = None if resume is None else path_of("resume", resume, ".json file")
    if path is not None:
        if path.suffix != ".json":
            raise ConfigError("resume", f"must be the name of a .json file, is {str(resume)!r}")
        if not grid.is_described:
            raise ConfigError("resume", "a part written in Python has no record that tells it from another")
    alone = nullcontext() if path is None else held("resume", path, path.with_name(f".{path.name}.lock"))
    with alone:
        records = Records(path, _fingerprint(source, slo, run))
        try:
            frame = source.ready(numbers[0])
            drawn = _is_drawn(source, grid)
            if drawn and looks[0] < 2:
                raise ConfigError("seeds", "one run of what is drawn has no interval; give two or more")
            closed = "think_s" in frame.columns or "max_in_flight" in run
            demand = Demand.of(source)
            theory_s = math.inf if time_s is None else begun + time_s / _SHARE
            limits = _limits(demand, grid, slo.objectives, theory_s, tell)
            standings = Standings(grid, limits, costs, spare)
            left = len(standings.going())
            prober = Prober(
                workload=source,
                objectives=slo.objectives,
                seeds=numbers if drawn else numbers[:1],
                looks=looks if drawn else (1,),
                confidence=1 - (1 - confidence) / max(left, 1),
                exact=not drawn,
                steady=drawn and demand.busiest == 1 and demand.order is None,
                causal=not closed,
                options=run,
                threads=threads,
                executor=chosen(executor),
                records=records,
                deadline=deadline,
            )
            if tell is not None:
                tell(_begun(grid, left, prober.rungs, time.monotonic() - begun))
            screened_by = math.inf if time_s is None else begun + 2 * time_s / _SHARE
            search = Search(prober, standings, within, tell, screened_by)
            search.run()
        finally:
            records.write(now=True)
    unit = "GPUs" if priced is None else f"{priced.currency} an hour".strip()
    return FleetPlan(
        slo=slo,
        workload=source,
        rate=demand.rate,
        choices=grid,
        prices=priced,
        unit=unit,
        spare=spare,
        within=within,
        confidence=confidence,
        exact=not drawn,
        requests=prober.requests,
        seeds=prober.seeds,
        fates=Fates(standings, stopped=search.stopped, unit=unit),
        standings=standings,
        prober=prober,
        stopped=search.stopped,
        gaps=tuple(search.gaps),
        simulated=prober.simulated,
        runs=prober.runs,
        output_tokens_mean=float(frame["output_tokens"].mean()),  # type: ignore[arg-type]  # whole numbers
        scenario=recorded(source, prober.seeds, run, slo=repr(slo)),
    )


def _limits(
    demand: Demand,
    grid: Choices,
    objectives: tuple[Objective, ...],
    deadline: float,
    tell: Callable[[str], object] | None,
) -> list[Limit]:
    """What theory says of each kind; nothing of those that it has no time for.

    How long all of them take is told once, where it is long.
    """
    known: dict[tuple[int, bool], Ceilings] = {}
    begun, found = time.monotonic(), []
    ways = [ratio for _, ratio in grid.ways]
    all_of_them = len(grid.engines.families) * len({ratio is None for ratio in ways})
    for place, family in enumerate(grid.engines.families):
        for ratio in ways:
            key, now = (place, ratio is None), time.monotonic()
            if key not in known and now > deadline:
                found.append(NO_LIMIT)
                continue
            if tell is not None and key not in known and known and now - begun > _LONG_S:
                rest_s = (now - begun) / len(known) * (all_of_them - len(known))
                tell(
                    f"theory has judged {len(known):,} of {all_of_them:,} kinds of engines; the others take "
                    f"{seconds(rest_s)}"
                )
                tell = None
            if key not in known:
                link = None if ratio is None else grid.link
                known[key] = ceilings_of(demand, family, grid.routers[0], link, objectives)
            found.append(known[key].limit(ratio))
    return found


def _begun(grid: Choices, left: int, rungs: tuple[int, ...], elapsed_s: float) -> str:
    """How much there is to do, before it is done."""
    first, every = left * rungs[0], left * len(grid.units) * rungs[-1]
    return (
        f"{counted(len(grid), 'candidate')}, {len(grid) - left:,} ruled out by theory "
        f"in {seconds(elapsed_s)}; all sizes of the others over all requests would be "
        f"{number(every)} requests, {seconds(every / 500_000)} at half a million a second, one size of each "
        f"over the first {rungs[0]:,} {seconds(first / 500_000)}; halving begins"
    )


def _is_drawn(workload: Workload, grid: Choices) -> bool:
    """Whether another seed gives another run."""
    return workload.is_synthetic or any(one.draws is not False for one in grid.routers)


def _fingerprint(workload: Workload, slo: Slo, run: Mapping[str, Any]) -> str:
    """What all runs of a plan have in common."""
    told = dumps([requests_of(workload), repr(slo), dict(run)], sort_keys=True, default=repr)
    return sha256(told.encode()).hexdigest()
