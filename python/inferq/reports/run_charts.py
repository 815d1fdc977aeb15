"""`result.plot`: latency, queue and memory over time, gaps between tokens, and how near the limit is."""

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
from inferq.results.result import Result
from inferq.theory.bounds.stability import Stability

_FARTHEST = 3
"""A limit so many times above all that happened is told and not drawn: it would flatten the rest."""
Limits = Mapping[str, Sequence[float]]
"""Seconds that a latency should keep, by its name: of an SLO, or of the workload's objectives."""


@dataclass(frozen=True, slots=True)
class RunCharts:
    """The pictures of a run as Altair charts; `result.plot`.

    Called, it gives an overview: latency, what waits, arrivals and completions. Each picture holds some
    hundred numbers (up to about 1,500 with six classes), however many requests there were, so that a notebook
    shows it at once and `chart.save("latency.svg")` writes a small file. All are in one style, whose colors
    people who do not see red or green can tell apart. `width` is the pixels that they plot on.

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
        """An overview of the run: percentiles of its latencies, what waits, arrivals and completions.

        Raises:
            ConfigError: the run has nothing to draw: no measured request was served.
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
        """Percentile curves of the measured requests: which latency is not exceeded by which share of them.

        A panel each for the time to first token, the mean gap of a request, arrival to last token, and the
        wait for admission; with several classes a curve for each, the six most frequent ones. The scale of
        the shares is that of log(1 − share), which gives the slowest tenth, hundredth, … equal room. A curve
        begins where its latency is above 0 and ends before the single slowest request. Objectives of the
        workload are dashed.

        Raises:
            ConfigError: no measured request has a latency.
        """
        names = run_data.classes(self._result)
        return styled(latency({"": self._result}, width, run_data.limits(self._result)), names)

    def timeline(self, width: int = PANEL) -> Any:
        """What the replicas did over time, all together: requests, memory, tokens per second.

        Lines are means over up to 250 stretches of time, bands go from the least to the largest sample of
        each. Memory is in percent of what all replicas have, or in tokens where it is unlimited. Where there
        is a prefix cache: the share of the prompts that was found, of all replicas together, with a band
        from the replica with the least to the one with the most. For `GateAndRoute`: the queues in front of
        the cluster, and what its slots do.

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
                "mixed": ("slots that decode beside a prefill", SKY, None),
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
            found = ("prompt tokens found in the prefix cache", PURPLE, 1.0)
            drawn.append(_banded(hits, time, "hit_rate", *found, width))
        return styled(panels.stacked(drawn))

    def itl(self, width: int = PANEL) -> Any:
        """Histogram of the gaps between tokens of measured requests, by class, both scales logarithmic.

        A bar is the share of the gaps of its class in one of up to 60 bins of equal ratio; rules mark p50 and
        p99 as `Result.summary` has them, in red the objective of the workload.

        Raises:
            ConfigError: no measured request emitted two tokens.
        """
        names = run_data.classes(self._result)
        return styled(gaps({"": self._result}, width, run_data.limits(self._result)), names)

    def queue(self, width: int = PANEL) -> Any:
        """How many wait for their admission over time: on average over replicas, and at the worst of them.

        The line is the mean over replicas and over each of up to 250 stretches of time, the band goes up to
        the longest queue in it. For `GateAndRoute`: the queues in front of the whole cluster by class, the
        six with most on average.

        Raises:
            ConfigError: the run was too short for a sample.
        """
        return styled(panels.stacked(_waiting(self._result, width)), run_data.classes(self._result))

    def throughput(self, width: int = PANEL) -> Any:
        """Requests (of a network: jobs) that arrived and that finished per second, and what theory allows.

        The ceiling is the binding limit of `inferq.theory.stability`, which no policy passes in the long run;
        below the other line the policy is known to be stable. A limit far above all that came is left out.

        Raises:
            ConfigError: no request came, or all at one instant.
        """
        return styled(throughput(self._result, run_data.theory(self._result), width))


def latency(results: Mapping[str, Result], width: int, limits: Limits) -> Any:
    """The picture of `RunCharts.latency` without a style; of several runs a curve for each of them.

    Args:
        results: one run, whose classes have curves; or several by name.
        width: pixels to plot on.
        limits: dashed where a latency has some.
    """
    which = _only(results)
    if which is not None:
        names = run_data.classes(which)
        curves = run_data.latencies(which, names)
    else:
        names = list(results)
        curves = pl.concat([_of_run(name, run_data.latencies, one) for name, one in results.items()])
    curves = curves.filter(pl.col("seconds") > 0).with_columns(tail=-(1 - pl.col("share")).log10())
    if curves.is_empty():
        raise ConfigError("latency", "no measured request was served")
    channels = panels.series("class", names, width)
    columns, each = panels.half(width)
    drawn = []
    for measure, words in run_data.MEASURES.items():
        part = curves.filter(measure=measure).drop("measure")
        if part.is_empty():
            continue
        asked = limits.get(measure, ())
        panel = panels.percentiles(part, channels, each, 150, asked)
        said = [f"limit {' and '.join(map(seconds, asked))}, dashed"] if asked else []
        drawn.append(panels.titled(panel, words, *said))
    return alt.concat(*drawn, columns=columns, spacing=panels.GAP)


def gaps(results: Mapping[str, Result], width: int, limits: Limits) -> Any:
    """The picture of `RunCharts.itl` without a style; of several runs a panel for each of them."""
    which = _only(results)
    if which is not None:
        names = run_data.classes(which)
        bins, marks = run_data.gaps(which, names), run_data.gap_percentiles(which, names)
    else:
        names = list(results)
        bins = pl.concat([_of_run(name, run_data.gaps, one) for name, one in results.items()])
        marks = pl.concat([_of_run(name, run_data.gap_percentiles, one) for name, one in results.items()])
    if bins.is_empty():
        raise ConfigError("itl", "no measured request emitted two tokens")
    names = [one for one in names if one in bins["class"]]
    asked = limits.get("itl", ())
    drawn = []
    for name, color in zip(names, panels.OF_SERIES, strict=False):
        of_name = marks.filter(**{"class": name})
        p50, p99 = (seconds(of_name.filter(percentile=one)["seconds"].item()) for one in ("p50", "p99"))
        height = 200 if len(names) == 1 else max(70, 240 // len(names))
        panel = panels.histogram(bins.filter(**{"class": name}), of_name, color, width, height, bins, asked)
        said = [f"limit {' and '.join(map(seconds, asked))}, red"] if asked else []
        title = "share of the gaps" if len(names) == 1 else name
        drawn.append(panels.titled(panel, title, f"p50 {p50} and p99 {p99}, dashed", *said))
    return panels.stacked(drawn)


def waiting(results: Mapping[str, Result], width: int) -> Any:
    """Requests that wait over time; of several runs a line for each of them."""
    which = _only(results)
    if which is not None:
        return panels.stacked(_waiting(which, width))
    parts = []
    for name, one in results.items():
        samples = run_data.waiting(one)
        if "class" in samples.columns:
            samples = samples.group_by("time_s", maintain_order=True).agg(pl.col("mean").sum())
        parts.append(samples.select("time_s", "mean", pl.lit(name).alias("class")))
    samples = pl.concat(parts)
    if samples.is_empty():
        raise ConfigError("queue", "the runs were too short for a sample; give a smaller timeline_s")
    samples, time = panels.in_time(samples)
    channels = panels.series("class", list(results), width)
    return panels.line(
        samples, time, ("requests waiting", "mean of the replicas"), channels, width, 150, band=False
    )


def throughput(result: Result, verdict: Stability | str, width: int) -> Any:
    """The picture of `RunCharts.throughput` without a style, with what `run_data.theory` says of the run."""
    happened = run_data.rates(result)
    if happened.is_empty():
        raise ConfigError("throughput", "no request came, or all at one instant")
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
    came = alt.Chart(happened.select("time", "arrived")).mark_area(color=GRAY, opacity=0.35, line=False)
    line = alt.Chart(points).mark_line(strokeWidth=1.6)
    layers = (
        came.encode(x=time, y=alt.Y("arrived:Q", title=None, axis=axis)),
        line.encode(x=time, y=alt.Y("rate:Q", title=None, axis=axis), color=color, strokeDash=dash),
    )
    panel = alt.layer(*layers).properties(width=width, height=170)
    return panels.titled(panel, f"{unit} per second", "gray ground: what arrived")


def drawn_limits(happened: pl.DataFrame, verdict: Stability | str) -> dict[str, tuple[float, str]]:
    """The limits of theory that the picture has room for: in words, the rate and the color.

    Args:
        happened: of `run_data.rates`.
        verdict: what theory says.
    """
    if isinstance(verdict, str):
        return {}
    limits = {}
    if verdict.binding is not None:
        most = verdict.binding.capacity_per_s
        limits[f"no scheduler serves more for long: {number(most)}"] = (most, VERMILION)
    if verdict.sure_per_s is not None:
        limits[f"proved to be served: {number(verdict.sure_per_s)}"] = (verdict.sure_per_s, GREEN)
    top = max(float(happened[name].max() or 0.0) for name in ("arrived", "finished"))  # type: ignore[arg-type]
    return {label: one for label, one in limits.items() if one[0] <= _FARTHEST * top}


def limits_of(verdict: Stability, rate: float, width: int) -> Any:
    """A rate on the scale of what is proved to be served, what is not known, and what cannot be.

    Args:
        verdict: of theory.
        rate: of the run, requests per second.
        width: pixels to plot on.
    """
    ceilings = [one.capacity_per_s for one in verdict.bounds if one.kind == "ceiling" and one.applies]
    sure, most = verdict.sure_per_s or 0.0, min(ceilings, default=None)
    end = 1.25 * max(rate, sure, most or 0.0)
    zones = [
        ("proved to be served", 0.0, sure, GREEN),
        ("not proved either way", sure, end if most is None else most, GRAY),
        ("more than any scheduler serves", end if most is None else most, end, VERMILION),
    ]
    zones = [one for one in zones if one[2] > one[1]]
    schema = {"what": pl.String, "from": pl.Float64, "to": pl.Float64, "told": pl.String}
    rows = [
        (what, low, high, f"{what}: {number(low)} to {number(high)} per second")
        for what, low, high, _ in zones
    ]
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    scale = alt.Scale(domain=[one[0] for one in zones], range=[one[3] for one in zones])
    legend = alt.Legend(orient="top", title=None, columns=1 if width < 600 else 3, labelLimit=280)
    axis = alt.Axis(tickCount=8 if width >= 600 else 4, labelExpr=COUNT, grid=False)
    across = alt.X(
        "from:Q", title="per second", axis=axis, scale=alt.Scale(domain=[0, end], nice=False, zero=True)
    )
    bar = (
        alt.Chart(frame)
        .mark_rect(opacity=0.4)
        .encode(
            x=across, x2="to:Q", color=alt.Color("what:N", scale=scale, legend=legend), description="told:N"
        )
    )
    here = alt.Chart(pl.DataFrame({"rate": [rate], "told": [f"this load: {number(rate)} per second"]}))
    mark = here.mark_rule(color=INK, strokeWidth=3).encode(x=alt.X("rate:Q"), description="told:N")
    panel = alt.layer(bar, mark).properties(width=width + 54, height=34)  # there is no axis beside it
    return panels.titled(panel, f"this load is the mark at {number(rate)}")


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
    further = ("mean of the replicas, and up to the longest queue",) if several else ()
    title = ("requests waiting", *further)
    points = samples.with_columns(low=pl.col("mean"), high=pl.col("most"))
    return [panels.line(points, time, title, ORANGE, width, 170)]


def _banded(
    samples: pl.DataFrame, time: Any, name: str, title: str, color: str, most: float | None, width: int
) -> Any:
    """A column of `run_data.over_time` in a panel of its own."""
    points = samples.select(
        "time",
        pl.col(name).alias("mean"),
        pl.col(f"{name}_low").alias("low"),
        pl.col(f"{name}_high").alias("high"),
    )
    axis = COUNT if most is None else PERCENT
    return panels.line(points, time, (title,), color, width, 84, most=most, axis=axis)


def _only(results: Mapping[str, Result]) -> Result | None:
    """The run, where there is one."""
    return next(iter(results.values())) if len(results) == 1 else None


def _of_run(
    name: str, read: Callable[[Result, list[str] | None], pl.DataFrame], result: Result
) -> pl.DataFrame:
    """What is read of all classes of a run together, under the name of the run."""
    return read(result, None).with_columns(pl.lit(name).alias("class"))
