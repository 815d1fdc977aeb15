"""Which of several systems serves these requests better, and is the difference real?"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from inferq.checks import nearest, whole
from inferq.description import member
from inferq.errors import ConfigError
from inferq.experiments.arguments import MOST_SEEDS as MOST_AT_ALL
from inferq.experiments.arguments import (
    between,
    check_options,
    check_progress,
    recorded,
    seeds_from,
    seeds_of,
)
from inferq.experiments.comparison.comparison import NUMBERS, Comparison
from inferq.experiments.comparison.contrast import Contrast, Sample, holm
from inferq.experiments.comparison.engines import engines_on
from inferq.experiments.comparison.evidence import Evidence
from inferq.experiments.comparison.measurement import Measurement, MetricKey
from inferq.experiments.comparison.precision import precisions
from inferq.experiments.comparison.scenarios import shared
from inferq.progress import Progress
from inferq.results.costs import hourly
from inferq.results.finding import Finding, by_severity
from inferq.results.findings import of_objectives
from inferq.results.metric import COSTS, Metric
from inferq.scenario import Scenario
from inferq.systems.prices import Prices
from inferq.systems.system import SYSTEMS, System
from inferq.timing.hardware.gpu import Gpu
from inferq.timing.hardware.model_shape import ModelShape
from inferq.workload.columns import Table
from inferq.workload.workload import Workload

METRICS = ("ttft_p50", "ttft_p99", "itl_p99", "e2e_p50", "e2e_p99", "output_throughput", "failed_share")
"""What is compared unless told otherwise; and `request_goodput` where there are objectives, `hit_rate` where
there is a prefix cache."""

MOST_SEEDS = 200
"""Where `until` gives up unless told otherwise."""


def compare(
    workload: Workload | Table,
    systems: Mapping[str, System] | Iterable[str] | None = None,
    *,
    model: ModelShape | str | Path | Mapping[str, Any] | None = None,
    gpu: Gpu | str | Mapping[str, Any] | None = None,
    tensor_parallel: int | None = None,
    seeds: Iterable[int] | int | None = None,
    baseline: str | None = None,
    metrics: Iterable[str] | None = None,
    slo: Mapping[str, float | None] | None = None,
    prices: Prices | str | os.PathLike[str] | None = None,
    by: Literal["class"] | None = None,
    confidence: float = 0.95,
    until: str | Iterable[str] | None = None,
    most_seeds: int | None = None,
    threads: int | None = None,
    progress: bool | Progress | None = None,
    **run: Any,
) -> Comparison:
    """Send the same requests through several systems, and say which differences are real.

    For every seed the workload is drawn once and served by each system. What the requests do to all of them
    (a burst, a long prompt) drops out of the differences, so that their intervals are far narrower than if
    each system had met requests of its own (common random numbers): `narrowed_by` says by how much.

    **Where chance comes from.** A synthetic workload is drawn anew for each seed. Runs of different seeds
    are independent, and intervals are Student's t over the seeds. A recorded trace is the same for every
    seed: its runs differ by what the system draws (a random router), or not at all, and an interval over
    seeds would claim a certainty about requests to come that one trace does not give. Intervals then come
    from blocks of consecutive arrivals inside the trace (the delete-a-block jackknife; 16 or 8 blocks, paired
    between systems), with numbers averaged over the seeds. That assumes that the trace is a fair sample of
    what will come, and that blocks are long beside what a queue remembers; neighbors that are alike are
    joined, and where they still are a finding says so. A system that makes the same of two seeds is not run
    for a third. Gaps between tokens are kept for a run as a whole, so that with `itl` among the metrics a
    recorded trace is run once more for each block. A maximum has no interval in a trace.

    **How many seeds.** With `until` further seeds follow those given (the whole numbers after their largest)
    until the interval of every named metric is narrow enough: that of each difference, or of the mean where
    there is one system. At least 10 seeds are run, and at most `most_seeds`. The number of seeds before the
    next look is what the present spread asks for, at most twice as many. Stopping when an interval looks
    narrow favors spreads that are too small by chance (Chow and Robbins 1965), which lowers coverage a
    little: of 6,000 experiments with normal numbers each, 95 % intervals that stopped after 14, 28, 68 and
    175 seeds (medians) held the mean in 94.0, 93.6, 94.3 and 94.7 %. Where numbers are as skewed as
    exponential ones it was 87 to 93 %; take more seeds to begin with, or longer runs.

    **Many rows.** Of twenty differences that are none, one looks real at 95 %. `holds_together` judges all
    rows together.

    Args:
        workload: a `Workload`, or what `Workload` takes; or scenarios by name, which differ in the system
            alone, and then no `systems`.
        systems: two or more by name; one alone gets intervals of its means. Schedulers and routers written in
            Python are copied for each run. Or names of engines on one `model` and `gpu`: `["vllm", "sglang",
            "sarathi"]`, a server's newest version or a stated one (`"vllm-0.14"`), or a scheduler.
        model: where systems are names, what they serve, as of `Engine.on`.
        gpu: likewise, on which card.
        tensor_parallel: likewise, on how many of them.
        seeds: of the runs, each once; None takes ten, from 0 or the seed of the scenarios on.
        baseline: the name of the system that the others are compared with; None takes the first.
        metrics: names such as `ttft_p99` (see `Metric.of`); None takes a common choice, without what no
            run has.
        slo: objectives for `request_goodput`, as `Result.summary` takes them.
        prices: of GPUs and tokens, or the path of their file: money, energy and GPUs are compared too.
        by: `"class"` adds the same rows for each class of requests.
        confidence: of the intervals, between 0 and 1.
        until: `"ttft_p99 ± 2%"` (of the baseline's mean), `"ttft_p99 ± 0.01s"`, or several of them; `+-` is
            as good as `±`.
        most_seeds: at which `until` gives up, 200 unless told.
        threads: how many runs may go on at once; None takes every core. It changes no bit of the result.
        progress: told (runs done, runs in all) after each run; True shows a bar on a terminal.
        run: further arguments of `simulate`, the same for all: `warmup`, `cooldown`, `horizon_s`, …; they
            take the place of those of scenarios.

    Raises:
        ConfigError: an argument outside its range; it names the argument. Scenarios that differ in more than
            the system: it names the field.
        TraceError, SimulationError: as of `simulate`.
        KeyboardInterrupt: Ctrl-C stops all runs at once.

    Source: Law, Simulation Modeling and Analysis, ch. 10 and 11 (paired t, common random numbers); the
        intervals from blocks: see `inferq.experiments.comparison.blocks`.

    Example:
        >>> import inferq as iq
        >>> def engine(scheduler):
        ...     timing = iq.PiecewiseLinear(base=0.02, per_token=0.0002)
        ...     return iq.Engine(timing=timing, scheduler=scheduler, kv=iq.KvCache(tokens=100_000))
        >>> chat = iq.Workload.synthetic(
        ...     requests=500, arrivals=iq.dist.Poisson(2), prompt=iq.dist.Geometric(500), output=iq.dist.Geometric(100)
        ... )
        >>> systems = {"sarathi": engine(iq.Sarathi()), "vllm-v0": engine(iq.VllmV0())}
        >>> found = iq.compare(chat, systems, seeds=range(5), metrics=["ttft_p99", "itl_p99"])
        >>> found.frame.filter(system="vllm-v0").select("metric", "verdict").rows()
        [('ttft_p99', 'better'), ('itl_p99', 'worse')]
        >>> found = iq.compare(chat, ["vllm", "sglang"], model="llama-3.1-8b", gpu="h100-80gb", seeds=[1])
        >>> found.systems
        ('vllm', 'sglang')
    """
    first_seed = 0
    if (
        systems is None
        and isinstance(workload, Mapping)
        and any(isinstance(one, Scenario) for one in workload.values())
    ):
        workload, systems, options = shared(workload)
        first_seed = options.pop("seed", 0)
        given = options.pop("threads", None)
        threads, run = given if threads is None else threads, {**options, **run}
    names = list(systems) if isinstance(systems, (list, tuple)) else []
    if names and all(isinstance(one, str) for one in names):
        systems = engines_on(names, model, gpu, tensor_parallel=tensor_parallel)
    elif (model, gpu, tensor_parallel) != (None, None, None):
        raise ConfigError("model", "is for systems that are names of engines, as in ['vllm', 'sglang']")
    named, priced = _systems(systems), Prices.of(prices)
    if priced is not None:
        for name, system in named.items():
            try:
                hourly(system, priced)
            except ConfigError as error:
                raise error.within(name, ": ") from None
    if baseline is None:
        baseline = next(iter(named))
    elif baseline not in named:
        raise ConfigError("baseline", f"unknown system {baseline!r}{nearest(str(baseline), named)}")
    confidence = between("confidence", confidence, 0, 1)
    if by not in (None, "class"):
        raise ConfigError("by", f"must be 'class' or None, is {by!r}")
    check_options(run)
    check_progress(progress)
    targets = precisions(until)
    if most_seeds is not None and not targets:
        raise ConfigError("most_seeds", "is for until, which is not given")
    most = whole("most_seeds", MOST_SEEDS if most_seeds is None else most_seeds, 2, MOST_AT_ALL)
    first = seeds_from(first_seed, 10) if seeds is None else seeds_of(seeds)
    source = workload if isinstance(workload, Workload) else Workload(workload)
    drawn = source.draw(first[0]).frame
    chosen = Metric.several(_usual(drawn.columns, slo, priced) if metrics is None else metrics)
    chosen += tuple(one.metric for one in targets if one.metric not in chosen)
    if priced is None:
        for one in chosen:
            if one.needs_prices:
                raise ConfigError("prices", f"{one.name} is told where GPUs have prices; give prices")
    is_fixed = not source.is_synthetic or drawn.equals(source.draw(first[0] ^ 1).frame)
    if is_fixed and targets:
        more = ("a longer trace does, or a synthetic workload", "more of them do, or distributions that draw")
        better = more[source.is_synthetic]
        raise ConfigError(
            "until",
            "the workload is the same for every seed, so that more seeds tell no more about its "
            f"requests; {better}",
        )
    evidence = Evidence(
        source,
        named,
        baseline,
        Measurement(chosen, slo, by, priced),
        confidence,
        threads=threads,
        progress=progress,
        options=run,
    )
    stopped = (
        evidence.over_blocks(first, is_synthetic=source.is_synthetic)
        if is_fixed
        else evidence.over_seeds(first, targets, most)
    )
    keys = evidence.keys(only_told=metrics is None)
    findings = []
    if not is_fixed and len(evidence.seeds) == 1:
        text = "there are no intervals and no verdicts; use at least ten seeds"
        findings.append(Finding("one-seed", text, {"seeds": 1}))
    findings += of_objectives(slo)
    return Comparison(
        systems=tuple(named),
        baseline=baseline,
        seeds=evidence.seeds,
        confidence=confidence,
        chance=evidence.chance,
        stopped=stopped,
        findings=tuple(by_severity([*findings, *evidence.findings(keys)])),
        by=by,
        scenario=recorded(
            source, evidence.seeds, run, systems={name: system.to_json() for name, system in named.items()}
        ),
        _rows=_rows(evidence, keys, named, baseline, confidence, priced),
        _values=_values(evidence, keys),
    )


def _rows(
    evidence: Evidence,
    keys: Iterable[MetricKey],
    systems: Iterable[str],
    baseline: str,
    confidence: float,
    prices: Prices | None,
) -> tuple[dict[str, Any], ...]:
    """The rows of the frame."""
    rows: list[dict[str, Any]] = []
    currency = (prices and prices.currency) or "money"
    for key in keys:
        base = evidence.sample(baseline, key)
        for name in systems:
            sample = evidence.sample(name, key)
            difference = None if name == baseline else evidence.contrast(name, key)
            rows.append(
                {
                    "class": key[0],
                    "metric": key[1].name,
                    "unit": currency if key[1].unit == "money" else key[1].unit,
                    "better": key[1].better,
                    "system": name,
                    **dict.fromkeys((*NUMBERS, "verdict", "holds_together")),
                    **_of_sample(sample, confidence),
                    **_of_contrast(difference, sample, base),
                    "missing": evidence.missing(name, key),
                }
            )
    judged = [row for row in rows if row["p_value"] is not None]
    for row, real in zip(judged, holm([row["p_value"] for row in judged], confidence), strict=True):
        row["holds_together"] = real
    return tuple(rows)


def _of_sample(sample: Sample | None, confidence: float) -> dict[str, Any]:
    if sample is None:
        return {"samples": 0}
    interval = sample.interval(confidence)
    return {"mean": sample.mean, "half_width": _known(interval.half_width), "samples": interval.samples}


def _of_contrast(found: Contrast | None, sample: Sample | None, base: Sample | None) -> dict[str, Any]:
    if found is None or sample is None or base is None:
        return {}
    half, scale = _known(found.difference.half_width), abs(base.mean)
    return {
        "difference": found.difference.mean,
        "difference_half_width": half,
        "relative": found.difference.mean / scale if scale else None,
        "relative_half_width": half / scale if scale and half is not None else None,
        "ratio": sample.mean / base.mean if scale else None,
        "unpaired_half_width": _known(found.unpaired),
        "narrowed_by": found.narrowed_by,
        "p_value": found.p_value,
        "verdict": found.verdict,
        "samples": found.difference.samples,
    }


def _known(half_width: float) -> float | None:
    return half_width if math.isfinite(half_width) else None


def _values(evidence: Evidence, keys: Iterable[MetricKey]) -> tuple[dict[str, Any], ...]:
    """The rows of the numbers of every run."""
    keys = list(keys)
    return tuple(
        {
            "seed": seed,
            "system": name,
            "class": key[0],
            "metric": key[1].name,
            "value": runs[seed].values.get(key),
        }
        for seed in evidence.seeds
        for name, runs in evidence.runs.items()
        for key in keys
    )


def _systems(systems: object) -> dict[str, System]:
    if not isinstance(systems, Mapping) or not systems:
        raise ConfigError(
            "systems", f"must be a table of systems by name such as {{'a': …}}, is a {type(systems).__name__}"
        )
    for name, system in systems.items():
        if not isinstance(name, str) or not name:
            raise ConfigError("systems", f"the name {name!r} must be a text")
        member(f"systems.{name}", system, SYSTEMS)
    return dict(systems)


def _usual(columns: Iterable[str], slo: object, prices: Prices | None) -> tuple[str, ...]:
    """What is compared unless told otherwise."""
    has_objectives = slo is not None or not {"ttft_slo_s", "itl_slo_s"}.isdisjoint(columns)
    metrics = (*METRICS, "request_goodput") if has_objectives else METRICS
    return (*metrics, "hit_rate", *(COSTS if prices else ()))  # without a prefix cache no run tells the rate
