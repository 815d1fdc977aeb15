"""Charts of runs: latency, queue and memory over time, inter-token latency, and capacity."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inferq._lazy import alt, pl
from inferq.display import panels
from inferq.display.points import COUNT, PERCENT
from inferq.display.style import BLUE, GRAY, GREEN, INK, ORANGE, PANEL, PURPLE, SKY, VERMILION, styled
from inferq.display.text import number, seconds
from inferq.errors import ConfigError
from inferq.reports import run_data
from inferq.results.replicas import Replicas
from inferq.results.result import Result
from inferq.theory.bounds.stability import Stability

_FARTHEST = 3
"""A limit this many times above all values is not drawn, because it would flatten them."""
Limits = Mapping[str, Sequence[float]]
"""Limits of latencies in seconds, by name: from an SLO, or from the objectives of the workload."""


@dataclass(frozen=True, slots=True)
class RunCharts:
    """The charts of a run as Altair charts; `result.plot`.

    A call returns an overview: latency, waiting requests, arrivals and completions. Each chart holds a few
    hundred values (up to about 1,500 with six classes), however many requests there were, so that notebooks
    are fast and `chart.save("latency.svg")` writes a small file. Colors are distinguishable without red or
    green. `width` is the width of the plot in pixels.

    Example:
        >>> import inferq as iq
        >>> kv = iq.KvCache(tokens=1000)
        >>> engine = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.Sarathi(), kv=kv)
        >>> arrivals, prompt, output = iq.dist.Poisson(0.2), iq.dist.Fixed(10), iq.dist.Fixed(5)
        >>> workload = iq.Workload.synthetic(requests=50, arrivals=arrivals, prompt=prompt, output=output)
        >>> result = iq.simulate(workload, engine, seed=1)
        >>> type(result.plot()).__name__, type(result.plot.latency()).__name__
        ('VConcatChart', 'ConcatChart')
    """

    _result: Result

    def __call__(self, width: int = PANEL) -> Any:
        """An overview: latency percentiles, waiting requests, arrivals and completions.

        Raises:
            ConfigError: no measured request was served.
        """
        names = run_data.classes(self._result)
        parts: list[Any] = []
        makers: tuple[Callable[[], Any], ...] = (
            lambda: latency({"": self._result}, width, run_data.limits(self._result)),
            lambda: panels.stacked(_waiting(self._result, width)),
            lambda: throughput(self._result, run_data.theory(self._result), width),
        )
        for make in makers:
            try:
                parts.append(make())
            except ConfigError as error:
                if not parts:
                    raise error.within("plot", ": ") from None
        apart = alt.vconcat(*parts, spacing=panels.GAP).resolve_scale(
            color="independent", strokeDash="independent"
        )
        return styled(apart, names)

    def latency(self, width: int = PANEL) -> Any:
        """Percentile curves of the measured requests.

        One panel each for TTFT, ITL, TPOT, E2E and queueing time, with a curve for each of the six largest
        classes. The scale of log(1 − share) gives P90, P99, … equal room. A curve starts above 0 and ends
        before the slowest request. Objectives of the workload are dashed.

        Raises:
            ConfigError: no measured request has a latency.
        """
        names = run_data.classes(self._result)
        return styled(latency({"": self._result}, width, run_data.limits(self._result)), names)

    def timeline(self, width: int = PANEL) -> Any:
        """Requests, KV cache and tokens per second over time, totals over all replicas.

        Lines are means over up to 250 intervals, bands cover their samples. KV cache is in percent, or in
        tokens if it is unlimited. With a prefix cache: the hit rate over all replicas, with a band over the
        replicas. With `GateAndRoute`: the queues in front of the cluster, and the state of its slots.

        Raises:
            ConfigError: the run was too short for a sample.
        """
        samples = run_data.over_time(self._result)
        if samples.is_empty():
            raise ConfigError("timeline", "the run was too short for a sample; give a smaller timeline_s")
        cached = run_data.has_hit_rates(self._result)
        if cached:
            samples = pl.concat([samples, run_data.hit_rates(self._result)], how="diagonal")
        samples, time = panels.in_time(samples)
        if cached:
            hits = samples.filter(pl.col("hit_rate").is_not_null())
            samples = samples.filter(pl.col("hit_rate").is_null())
        shown: dict[str, tuple[str, str, float | None]]
        if "prefill_queue" in samples.columns:
            shown = {
                "prefill_queue": ("requests in the prefill queue", ORANGE, None),
                "decode_queue": ("requests in the decode queue", VERMILION, None),
                "prefill": ("slots with a prefill", BLUE, None),
                "mixed": ("slots that decode next to a prefill", SKY, None),
                "solo": ("slots that decode alone", GRAY, None),
            }
        else:
            kv_tokens = run_data.kv_tokens(self._result)
            used = [name for name in samples.columns if name.startswith("kv_used_tokens")]
            memory: tuple[str, str, float | None] = ("KV cache in use, tokens", GREEN, None)
            if kv_tokens is not None:
                samples = samples.with_columns(pl.col(used) / kv_tokens)
                most = min(1.0, 1.25 * float(samples["kv_used_tokens_high"].max() or 0.8))  # type: ignore[arg-type]
                memory = (f"KV cache in use, of {kv_tokens:,} tokens", GREEN, most)
            shown = {
                "running": ("requests running", BLUE, None),
                "waiting": ("requests waiting", ORANGE, None),
                "kv_used_tokens": memory,
                "prefill_tokens_per_s": ("prompt tokens per second", SKY, None),
                "output_tokens_per_s": ("output tokens per second", BLUE, None),
            }
        drawn = [_banded(samples, time, name, *how, width) for name, how in shown.items()]
        if cached and hits.height:
            drawn.append(_banded(hits, time, "hit_rate", "cache hit rate", PURPLE, 1.0, width))
        return styled(panels.stacked(drawn))

    def itl(self, width: int = PANEL) -> Any:
        """Histogram of ITL of measured requests by class, with logarithmic scales.

        A bar is the share of the gaps of its class in one of up to 60 bins of equal ratio. Rules mark P50 and
        P99 as in `Result.summary`, and in red the objective of the workload.

        Raises:
            ConfigError: no measured request emitted two tokens.
        """
        names = run_data.classes(self._result)
        return styled(gaps({"": self._result}, width, run_data.limits(self._result)), names)

    def queue(self, width: int = PANEL) -> Any:
        """Waiting requests over time: mean over the replicas, and the longest queue.

        The line is the mean over replicas and over each of up to 250 intervals, the band reaches the longest
        queue. With `GateAndRoute`: the queues in front of the cluster for the six classes with the longest.

        Raises:
            ConfigError: the run was too short for a sample.
        """
        return styled(panels.stacked(_waiting(self._result, width)), run_data.classes(self._result))

    def replicas(self, width: int = PANEL) -> Any:
        """Open and paid replicas over time, with failures as marks.

        A replica is paid from its start request to its end or failure, and open while it accepts requests.

        Raises:
            ConfigError: the run has no autoscaler and no failures.
        """
        return styled(replicas(self._result, width))

    def throughput(self, width: int = PANEL) -> Any:
        """Arrivals and completions of requests (or jobs) per second, with the limits of theory.

        Lines mark the tightest upper bound and the stability guarantee of `inferq.theory.stability`, unless
        they are far above all rates.

        Raises:
            ConfigError: nothing arrived, or everything at one instant.
        """
        return styled(throughput(self._result, run_data.theory(self._result), width))


def latency(
    results: Mapping[str, Result],
    width: int,
    limits: Limits,
    measures: Sequence[str] = tuple(run_data.MEASURES),
) -> Any:
    """The chart of `RunCharts.latency` without a style; with several runs one curve for each.

    Args:
        results: one run, with curves for its classes; or several runs by name.
        width: width of the plot in pixels.
        limits: limits to draw dashed.
        measures: the latencies, one panel each.
    """
    which = _only(results)
    if which is not None:
        names = run_data.classes(which)
        curves = run_data.latencies(which, names)
    else:
        names = list(results)
        curves = pl.concat([_of_run(name, run_data.latencies, result) for name, result in results.items()])
    curves = curves.filter(pl.col("seconds") > 0).with_columns(tail=-(1 - pl.col("share")).log10())
    if curves.is_empty():
        raise ConfigError("latency", "no measured request was served")
    channels = panels.series("class", names, width)
    parts = {measure: curves.filter(measure=measure).drop("measure") for measure in measures}
    parts = {measure: part for measure, part in parts.items() if not part.is_empty()}
    if not parts:
        raise ConfigError("latency", "no measured request was served")
    columns, each = panels.columns(width, len(parts))
    drawn = []
    for measure, part in parts.items():
        bounds = limits.get(measure, ())
        panel = panels.percentiles(part, channels, each, 150, bounds)
        subtitle = [f"limit {' and '.join(map(seconds, bounds))}, dashed"] if bounds else []
        drawn.append(panels.titled(panel, run_data.MEASURES[measure], *subtitle))
    return alt.concat(*drawn, columns=columns, spacing=panels.GAP)


def gaps(results: Mapping[str, Result], width: int, limits: Limits) -> Any:
    """The chart of `RunCharts.itl` without a style; with several runs one panel for each."""
    which = _only(results)
    if which is not None:
        names = run_data.classes(which)
        bins, marks = run_data.gaps(which, names), run_data.gap_percentiles(which, names)
    else:
        names = list(results)
        bins = pl.concat([_of_run(name, run_data.gaps, result) for name, result in results.items()])
        marks = pl.concat(
            [_of_run(name, run_data.gap_percentiles, result) for name, result in results.items()]
        )
    if bins.is_empty():
        raise ConfigError("itl", "no measured request emitted two tokens")
    names = [name for name in names if name in bins["class"]]
    bounds = limits.get("itl", ())
    drawn = []
    for name, color in zip(names, panels.OF_SERIES, strict=False):
        of_name = marks.filter(**{"class": name})
        p50, p99 = (seconds(of_name.filter(percentile=p)["seconds"].item()) for p in ("p50", "p99"))
        height = 200 if len(names) == 1 else max(70, 240 // len(names))
        panel = panels.histogram(bins.filter(**{"class": name}), of_name, color, width, height, bins, bounds)
        subtitle = [f"limit {' and '.join(map(seconds, bounds))}, red"] if bounds else []
        title = "share of gaps" if len(names) == 1 else name
        drawn.append(panels.titled(panel, title, f"P50 {p50} and P99 {p99}, dashed", *subtitle))
    return panels.stacked(drawn)


def waiting(results: Mapping[str, Result], width: int) -> Any:
    """Waiting requests over time; with several runs one line for each."""
    which = _only(results)
    if which is not None:
        return panels.stacked(_waiting(which, width))
    parts = []
    for name, result in results.items():
        samples = run_data.waiting(result)
        if "class" in samples.columns:
            samples = samples.group_by("time_s", maintain_order=True).agg(pl.col("mean").sum())
        parts.append(samples.select("time_s", "mean", pl.lit(name).alias("class")))
    samples = pl.concat(parts)
    if samples.is_empty():
        raise ConfigError("queue", "the runs were too short for a sample; give a smaller timeline_s")
    samples, time = panels.in_time(samples)
    channels = panels.series("class", list(results), width)
    return panels.line(
        samples, time, ("requests waiting", "mean over the replicas"), channels, width, 150, band=False
    )


def replicas(result: Result, width: int) -> Any:
    """The chart of `RunCharts.replicas` without a style."""
    seen, steps = Replicas.of(result._tables), run_data.replicas(result)
    if seen is None:
        raise ConfigError("replicas", "the run has no autoscaler and no failures")
    steps, time = panels.in_time(steps)
    scale = float(steps["time"][-1]) / max(float(seen.over_time["time_s"][-1]), 1e-300)
    failed = seen.events.filter(event="failure").select(time=pl.col("time_s") * scale, open="open")
    names, colors = ["open", "paid", "failure"], [BLUE, GRAY, VERMILION]
    shown = names[: 2 + bool(failed.height)]
    legend = alt.Legend(orient="top", title=None, columns=3, symbolType="stroke")
    axis = alt.Axis(tickCount=4, tickMinStep=1, labelExpr=COUNT)
    scale_y = alt.Scale(domain=[0, max(seen.most, int(seen.over_time["paid"].max() or 1))], nice=True)  # type: ignore[arg-type]
    color = alt.Color("which:N", scale=alt.Scale(domain=shown, range=colors[: len(shown)]), legend=legend)
    points = pl.concat(
        steps.select("time", which=pl.lit(name), count=pl.col(name)) for name in ("paid", "open")
    )
    count = alt.Y("count:Q", title=None, axis=axis, scale=scale_y)
    layers = [
        alt.Chart(points)
        .mark_line(interpolate="step-after", strokeWidth=1.6)
        .encode(x=time, y=count, color=color)
    ]
    if failed.height:
        marks = failed.select("time", which=pl.lit("failure"), count=pl.col("open"))
        layers.append(
            alt.Chart(marks)
            .mark_point(filled=True, size=60, shape="triangle-down", opacity=1)
            .encode(x=time, y=count, color=color)
        )
    return panels.titled(alt.layer(*layers).properties(width=width, height=150), "replicas")


def throughput(result: Result, verdict: Stability | str, width: int) -> Any:
    """The chart of `RunCharts.throughput` without a style, with the verdict of `run_data.theory`."""
    happened = run_data.rates(result)
    if happened.is_empty():
        raise ConfigError("throughput", "nothing arrived, or everything at one instant")
    limits = drawn_limits(happened, verdict)
    happened, time = panels.in_time(happened)
    ends = [happened["time"].min(), happened["time"].max()]
    unit = "jobs" if result.has_jobs else "requests"
    labels = ["finished", *limits]
    colors = [BLUE, *(color for _, color in limits.values())]
    dashes = [[1, 0], *([7, 3] if color == VERMILION else [2, 3] for _, color in limits.values())]
    points = happened.select("time", pl.lit("finished").alias("which"), pl.col("finished").alias("rate"))
    rows = [(end, label, value) for label, (value, _) in limits.items() for end in ends]
    points = pl.concat([points, pl.DataFrame(rows, schema=points.schema, orient="row")])
    legend = alt.Legend(
        orient="top", title=None, columns=1 if width < 600 else 3, symbolType="stroke", labelLimit=280
    )
    axis = alt.Axis(tickCount=4, labelExpr=COUNT)
    color = alt.Color("which:N", scale=alt.Scale(domain=labels, range=colors), legend=legend)
    dash = alt.StrokeDash("which:N", scale=alt.Scale(domain=labels, range=dashes), legend=legend)
    arrivals = alt.Chart(happened.select("time", "arrived")).mark_area(color=GRAY, opacity=0.35, line=False)
    line = alt.Chart(points).mark_line(strokeWidth=1.6)
    layers = (
        arrivals.encode(x=time, y=alt.Y("arrived:Q", title=None, axis=axis)),
        line.encode(x=time, y=alt.Y("rate:Q", title=None, axis=axis), color=color, strokeDash=dash),
    )
    panel = alt.layer(*layers).properties(width=width, height=170)
    return panels.titled(panel, f"{unit} per second", "gray area: arrivals")


def drawn_limits(happened: pl.DataFrame, verdict: Stability | str) -> dict[str, tuple[float, str]]:
    """The limits of theory that fit the chart: rate and color by label.

    Args:
        happened: the result of `run_data.rates`.
        verdict: the verdict of theory.
    """
    if isinstance(verdict, str):
        return {}
    limits = {}
    if verdict.binding is not None:
        most = verdict.binding.capacity_per_s
        limits[f"upper bound: {number(most)}"] = (most, VERMILION)
    if verdict.stable_below_per_s is not None:
        limits[f"guaranteed stable: {number(verdict.stable_below_per_s)}"] = (
            verdict.stable_below_per_s,
            GREEN,
        )
    top = max(float(happened[name].max() or 0.0) for name in ("arrived", "finished"))  # type: ignore[arg-type]
    return {label: limit for label, limit in limits.items() if limit[0] <= _FARTHEST * top}


def limits_of(verdict: Stability, rate: float, width: int, peak: float | None = None) -> Any:
    """A rate on a scale with the zones that are guaranteed stable, undecided and unstable.

    Args:
        verdict: the verdict of theory.
        rate: the load, requests per second.
        width: width of the plot in pixels.
        peak: the load in the busiest window, if it varies over time.
    """
    bounds = [
        bound.capacity_per_s for bound in verdict.bounds if bound.kind == "upper_bound" and bound.applies
    ]
    stable, most = verdict.stable_below_per_s or 0.0, min(bounds, default=None)
    end = 1.25 * max(rate, peak or 0.0, stable, most or 0.0)
    limit = end if most is None else most
    zones = [
        ("guaranteed stable", 0.0, stable, GREEN),
        ("undecided by theory", stable, limit, GRAY),
        ("unstable with any scheduler", limit, end, VERMILION),
    ]
    zones = [zone for zone in zones if zone[2] > zone[1]]
    schema = {"zone": pl.String, "from": pl.Float64, "to": pl.Float64, "label": pl.String}
    rows = [
        (name, low, high, f"{name}: {number(low)} to {number(high)} per second")
        for name, low, high, _ in zones
    ]
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    scale = alt.Scale(domain=[zone[0] for zone in zones], range=[zone[3] for zone in zones])
    legend = alt.Legend(
        orient="top", title=None, columns=1 if width < 600 else 3, columnPadding=24, labelLimit=280
    )
    axis = alt.Axis(tickCount=8 if width >= 600 else 4, labelExpr=COUNT, grid=False)
    across = alt.X(
        "from:Q",
        title="requests per second",
        axis=axis,
        scale=alt.Scale(domain=[0, end], nice=False, zero=True),
    )
    bar = (
        alt.Chart(frame)
        .mark_rect(opacity=0.4)
        .encode(
            x=across, x2="to:Q", color=alt.Color("zone:N", scale=scale, legend=legend), description="label:N"
        )
    )
    load = alt.Chart(pl.DataFrame({"rate": [rate], "label": [f"this load: {number(rate)} per second"]}))
    marks = [load.mark_rule(color=INK, strokeWidth=3).encode(x=alt.X("rate:Q"), description="label:N")]
    further = []
    if peak is not None:
        label = f"peak of this load: {number(peak)} per second"
        of_peak = alt.Chart(pl.DataFrame({"rate": [peak], "label": [label]}))
        rule = of_peak.mark_rule(color=INK, strokeWidth=2, strokeDash=[4, 3])
        marks.append(rule.encode(x=alt.X("rate:Q"), description="label:N"))
        further.append(f"peak {number(peak)}, dashed")
    panel = alt.layer(bar, *marks).properties(width=width + 54, height=34)  # it has no vertical axis
    return panels.titled(panel, f"load: {number(rate)} requests per second (black mark)", *further)


def _waiting(result: Result, width: int) -> list[Any]:
    """The panels of `RunCharts.queue`."""
    samples = run_data.waiting(result)
    if samples.is_empty():
        raise ConfigError("queue", "the run was too short for a sample; give a smaller timeline_s")
    samples, time = panels.in_time(samples)
    if "class" in samples.columns:
        order = samples.group_by("class").agg(pl.col("mean").mean()).sort("mean", descending=True)
        names = order["class"].head(run_data.MOST_CLASSES).to_list()
        shown = samples.filter(pl.col("class").is_in(names))
        channels = panels.series("class", names, width)
        return [panels.line(shown, time, ("requests waiting",), channels, width, 170, band=False)]
    several = result.timeline["replica"].n_unique() > 1
    further = ("mean of replicas; band: longest queue",) if several else ()
    title = ("requests waiting", *further)
    points = samples.with_columns(low=pl.col("mean"), high=pl.col("most"))
    return [panels.line(points, time, title, ORANGE, width, 170)]


def _banded(
    samples: pl.DataFrame, time: Any, name: str, title: str, color: str, most: float | None, width: int
) -> Any:
    """A panel for a column of `run_data.over_time`."""
    points = samples.select(
        "time",
        pl.col(name).alias("mean"),
        pl.col(f"{name}_low").alias("low"),
        pl.col(f"{name}_high").alias("high"),
    )
    axis = COUNT if most is None else PERCENT
    return panels.line(points, time, (title,), color, width, 84, most=most, axis=axis)


def _only(results: Mapping[str, Result]) -> Result | None:
    """The run if there is exactly one."""
    return next(iter(results.values())) if len(results) == 1 else None


def _of_run(
    name: str, read: Callable[[Result, list[str] | None], pl.DataFrame], result: Result
) -> pl.DataFrame:
    """The data of all classes of a run combined, with the name of the run."""
    return read(result, None).with_columns(pl.lit(name).alias("class"))
