"""`inferq.compare`: paired comparison of systems on the same requests."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath
from typing import Any, Literal

from inferq._lazy import pl
from inferq.checks import between, nearest, whole
from inferq.description import member
from inferq.display.text import counted, number
from inferq.errors import ConfigError
from inferq.experiments.arguments import MOST_SEEDS as MOST_AT_ALL
from inferq.experiments.arguments import (
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
from inferq.experiments.model_error import ModelErrors, with_errors
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
from inferq.workload.load import Load
from inferq.workload.workload import Workload

METRICS = ("ttft_p50", "ttft_p99", "itl_p99", "e2e_p50", "e2e_p99", "output_throughput", "failed_share")
"""Default metrics; plus `request_goodput` with objectives, and `hit_rate` with a prefix cache."""

MOST_SEEDS = 200
"""Default of `most_seeds`."""


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
    """Compare systems on the same requests, and test which differences are significant.

    The workload of each seed is drawn once and served by every system (common random numbers). Effects of the
    requests on all systems, such as a burst or a long prompt, cancel in the differences, so intervals are
    much narrower than with separate requests: `narrowed_by` is the factor.

    **Source of the intervals.** A synthetic workload is drawn anew for each seed. Runs of different seeds are
    independent, and intervals are Student's t over the seeds. A recorded trace is the same for every seed, so
    an interval over seeds would overstate the certainty about future requests. Intervals then come from
    blocks of consecutive arrivals of the trace (delete-a-block jackknife; 16 or 8 blocks, paired between
    systems), with values averaged over the seeds. This assumes that the trace is representative, and that
    blocks are long compared with the memory of a queue; correlated neighbors are joined, and a finding
    reports remaining correlation. A system with identical runs for two seeds is not run for a third.
    Inter-token latencies are stored per run, so with `itl` metrics a recorded trace runs once more per block.
    A maximum has no interval on a trace.

    **Number of seeds.** With `until`, further seeds (the next integers) are run until the interval of every
    named metric is narrow enough: of each difference, or of the mean for a single system. At least 10 and at
    most `most_seeds` seeds are run. The number before the next look depends on the present spread and at most
    doubles. Stopping when an interval looks narrow favors spreads that are too small by chance (Chow and
    Robbins 1965), which reduces coverage slightly. In 6,000 experiments with normal values, 95 % intervals
    that stopped after 14, 28, 68 and 175 seeds (medians) covered the mean in 94.0, 93.6, 94.3 and 94.7 %.
    With values as skewed as exponential ones it was 87 to 93 %; use more initial seeds, or longer runs.

    **Many rows.** Of twenty differences of zero, one is significant at 95 % on average. `significant_holm`
    corrects for the number of rows.

    Args:
        workload: a `Workload`, anything that `Workload` accepts, or scenarios by name that differ only in the
            system; then without `systems`.
        systems: two or more systems by name; a single one gets intervals of its means. Schedulers and routers
            written in Python are copied for each run. Or names of engines for one `model` and `gpu`:
            `["vllm", "sglang", "sarathi"]`, a version (`"vllm-0.14"`), or a scheduler.
        model: model of named engines, as for `Engine.on`.
        gpu: GPU of named engines.
        tensor_parallel: tensor-parallel size of named engines.
        seeds: seeds of the runs. Default: ten, from 0 or the seed of the scenarios.
        baseline: name of the baseline. Default: the first system.
        metrics: names such as `ttft_p99` (see `Metric.of`). Default: common metrics that have values.
        slo: objectives for `request_goodput`, as for `Result.summary`.
        prices: prices of GPUs and tokens, or the path of their file, to compare cost and energy, too.
        by: `"class"` adds rows for each class of requests.
        confidence: confidence level, between 0 and 1.
        until: precision such as `"ttft_p99 ± 2%"` (of the baseline's mean) or `"ttft_p99 ± 0.01s"`; `+-` is
            equivalent to `±`. Several are possible.
        most_seeds: maximum seeds for `until`. Default: 200.
        threads: concurrent runs. Default: all cores. It does not change the result.
        progress: called with (runs done, runs in total) after each run. True shows a progress bar.
        run: further arguments of `simulate` for all runs, such as `warmup`, `cooldown` or `horizon_s`; they
            override those of scenarios.

    Raises:
        ConfigError: an argument is out of range, or scenarios differ in more than the system; it names the
            argument or field.
        TraceError, SimulationError: as for `simulate`.
        KeyboardInterrupt: Ctrl-C stops all runs immediately.

    Source: Law, Simulation Modeling and Analysis, ch. 10 and 11 (paired t, common random numbers). Intervals
        from blocks: see `inferq.experiments.comparison.blocks`.

    Example:
        >>> import inferq as iq
        >>> def engine(scheduler):
        ...     timing = iq.PiecewiseLinear(base=0.02, per_token=0.0002)
        ...     return iq.Engine(timing=timing, scheduler=scheduler, kv=iq.KvCache(tokens=100_000))
        >>> chat = iq.Workload.synthetic(
        ...     requests=500,
        ...     arrivals=iq.dist.Poisson(2),
        ...     prompt=iq.dist.Geometric(500),
        ...     output=iq.dist.Geometric(100),
        ... )
        >>> systems = {"sarathi": engine(iq.Sarathi()), "vllm-v0": engine(iq.VllmV0())}
        >>> comparison = iq.compare(chat, systems, seeds=range(5), metrics=["ttft_p99", "itl_p99"])
        >>> comparison.frame.filter(system="vllm-v0").select("metric", "verdict").rows()
        [('ttft_p99', 'better'), ('itl_p99', 'worse')]
        >>> served = {"model": "llama-3.1-8b", "gpu": "h100-80gb"}
        >>> comparison = iq.compare(chat, ["vllm", "sglang"], **served, seeds=[1])
        >>> comparison.systems
        ('vllm', 'sglang')
    """
    first_seed = 0
    if (
        systems is None
        and isinstance(workload, Mapping)
        and any(isinstance(scenario, Scenario) for scenario in workload.values())
    ):
        workload, systems, options = shared(workload)
        first_seed = options.pop("seed", 0)
        given = options.pop("threads", None)
        threads, run = given if threads is None else threads, {**options, **run}
    names = list(systems) if isinstance(systems, (list, tuple)) else []
    if names and all(isinstance(name, str) for name in names):
        systems = engines_on(names, model, gpu, tensor_parallel=tensor_parallel)
    elif (model, gpu, tensor_parallel) != (None, None, None):
        raise ConfigError("model", "requires names of engines as systems, such as ['vllm', 'sglang']")
    named, priced = _systems(systems), Prices.of(prices)
    if priced is not None:
        for name, system in named.items():
            try:
                hourly(system, priced)
            except ConfigError as error:
                raise error.within(name, ": ") from None
    if baseline is None:
        baseline = next(iter(named))
    elif not isinstance(baseline, str) or baseline not in named:
        raise ConfigError("baseline", f"unknown system {baseline!r}{nearest(str(baseline), named)}")
    confidence = between("confidence", confidence, 0, 1)
    if by not in (None, "class"):
        raise ConfigError("by", f"must be 'class' or None, got {by!r}")
    check_options(run)
    check_progress(progress)
    targets = precisions(until)
    if most_seeds is not None and not targets:
        raise ConfigError("most_seeds", "requires until")
    most = whole("most_seeds", MOST_SEEDS if most_seeds is None else most_seeds, 2, MOST_AT_ALL)
    first = seeds_from(first_seed, 10) if seeds is None else seeds_of(seeds)
    source = workload if isinstance(workload, Workload) else Workload(workload)
    drawn = source.draw(first[0]).frame
    chosen = Metric.several(_usual(drawn.columns, slo, priced) if metrics is None else metrics)
    chosen += tuple(target.metric for target in targets if target.metric not in chosen)
    if priced is None:
        for metric in chosen:
            if metric.needs_prices:
                raise ConfigError("prices", f"required by the metric {metric.name}")
    is_fixed = not source.is_synthetic or drawn.equals(source.draw(first[0] ^ 1).frame)
    if is_fixed and targets:
        fixes = ("use a longer trace, or a synthetic workload", "use more requests, or random distributions")
        raise ConfigError(
            "until",
            "has no effect: the workload is the same for every seed, so more seeds add no information; "
            f"{fixes[source.is_synthetic]}",
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
    keys = evidence.keys(only_available=metrics is None)
    findings = []
    if not is_fixed and len(evidence.seeds) == 1:
        text = "there are no intervals and no verdicts; use at least ten seeds"
        findings.append(Finding("one-seed", text, {"seeds": 1}))
    findings += of_objectives(slo)
    rows = _rows(evidence, keys, named, baseline, confidence, priced)
    errors = {name: ModelErrors.of(named[baseline], system) for name, system in named.items()}
    findings += ModelErrors.of(*named.values()).findings(with_errors(rows, errors))
    return Comparison(
        systems=tuple(named),
        baseline=baseline,
        seeds=evidence.seeds,
        confidence=confidence,
        variation=evidence.variation,
        stopped=stopped,
        findings=tuple(by_severity([*findings, *evidence.findings(keys)])),
        by=by,
        scenario=recorded(
            source, evidence.seeds, run, systems={name: system.to_json() for name, system in named.items()}
        ),
        requests=_requests(source, drawn),
        _rows=rows,
        _values=_values(evidence, keys),
    )


def _requests(source: Workload, drawn: pl.DataFrame) -> str:
    """The number, the source and the mean rate of the requests of the first seed."""
    facts = source.metadata
    origin = "drawn from distributions" if source.is_synthetic else "from a frame"
    if facts.get("source"):
        origin = f"from {PurePath(str(facts['source'])).name}"
    text = f"{counted(drawn.height, 'request')} {origin}"
    load = Load.of_frame(drawn)
    if load is None:
        return text
    run = " in the first run" if source.is_synthetic else ""
    peak = f", peak {number(load.peak_per_s)} ({load.when})" if load.varies else ""
    return f"{text} at {number(load.rate_per_s)} per second{peak}{run}"


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
                    **dict.fromkeys((*NUMBERS, "verdict", "significant_holm", "model_error", "note")),
                    **_of_sample(sample, confidence),
                    **_of_contrast(difference, sample, base),
                    "missing": evidence.missing(name, key),
                }
            )
    tested = [row for row in rows if row["p_value"] is not None]
    for row, significant in zip(tested, holm([row["p_value"] for row in tested], confidence), strict=True):
        row["significant_holm"] = significant
    return tuple(rows)


def _of_sample(sample: Sample | None, confidence: float) -> dict[str, Any]:
    if sample is None:
        return {"samples": 0}
    interval = sample.interval(confidence)
    return {"mean": sample.mean, "half_width": _known(interval.half_width), "samples": interval.samples}


def _of_contrast(contrast: Contrast | None, sample: Sample | None, base: Sample | None) -> dict[str, Any]:
    if contrast is None or sample is None or base is None:
        return {}
    half, scale = _known(contrast.difference.half_width), abs(base.mean)
    return {
        "difference": contrast.difference.mean,
        "difference_half_width": half,
        "relative": contrast.difference.mean / scale if scale else None,
        "relative_half_width": half / scale if scale and half is not None else None,
        "ratio": sample.mean / base.mean if scale else None,
        "unpaired_half_width": _known(contrast.unpaired),
        "narrowed_by": contrast.narrowed_by,
        "p_value": contrast.p_value,
        "verdict": contrast.verdict,
        "samples": contrast.difference.samples,
    }


def _known(half_width: float) -> float | None:
    return half_width if math.isfinite(half_width) else None


def _values(evidence: Evidence, keys: Iterable[MetricKey]) -> tuple[dict[str, Any], ...]:
    """The rows of `Comparison.values`."""
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
            "systems",
            f"must be a table of systems by name such as {{'a': …}}, got a {type(systems).__name__}",
        )
    for name, system in systems.items():
        if not isinstance(name, str) or not name:
            raise ConfigError("systems", f"must have non-empty texts as names, got {name!r}")
        member(f"systems.{name}", system, SYSTEMS)
    return dict(systems)


def _usual(columns: Iterable[str], slo: object, prices: Prices | None) -> tuple[str, ...]:
    """The default metrics."""
    has_objectives = slo is not None or not {"ttft_slo_s", "itl_slo_s"}.isdisjoint(columns)
    metrics = (*METRICS, "request_goodput") if has_objectives else METRICS
    return (*metrics, "hit_rate", *(COSTS if prices else ()))  # hit_rate has no value without a prefix cache
