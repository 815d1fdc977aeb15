"""`result.plot`: latency, queue and memory over time, token gaps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from inferq._lazy import alt, pl
from inferq.errors import ConfigError
from inferq.reports import run_data
from inferq.reports.style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PANEL,
    PURPLE,
    SKY,
    VERMILION,
    coloured,
    styled,
)
from inferq.reports.text import number
from inferq.results.result import Result
from inferq.theory.bounds.stability import Stability

OF_CLASSES = (BLUE, ORANGE, GREEN, PURPLE, SKY, GREY)
"""The colours of classes, in the order of `run_data.classes`."""

_OF_MEASURES = {"ttft": BLUE, "e2e": GREY, "tpot": SKY, "queue": ORANGE}
_FARTHEST = 8
"""A limit so many times above all that happened is told and not drawn: it would flatten the rest."""

_SECONDS = (
    "datum.value < 1 ? format(datum.value * 1000, '.6~g') + ' ms' : format(datum.value, ',.6~g') + ' s'"
)
_COUNT = "datum.value < 10000 ? format(datum.value, ',.6~g') : format(datum.value, '.3~s')"
_PERCENT = "format(100 * datum.value, '.3~g') + ' %'"
_SHARE = "format(100 * (1 - pow(10, -datum.value)), '.7~g') + ' %'"


@dataclass(frozen=True, slots=True)
class Pictures:
    """The pictures of a run as Altair charts; `result.plot`.

    Each holds some hundred numbers (up to about 1,500 with six classes), however many requests there were, so
    that a notebook shows it at once and `chart.save("latency.svg")` writes a small file. All are in one
    style, whose colours people who do not see red or green can tell apart.

    Example:
        >>> import inferq as iq
        >>> kv = iq.KvCache(tokens=1000)
        >>> engine = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.Sarathi(), kv=kv)
        >>> arrivals, prompt, output = iq.Poisson(0.2), iq.Fixed(10), iq.Fixed(5)
        >>> workload = iq.Workload.synthetic(requests=50, arrivals=arrivals, prompt=prompt, output=output)
        >>> result = iq.simulate(workload, engine, seed=1)
        >>> type(result.plot.latency()).__name__
        'Chart'
    """

    _result: Result

    def latency(self) -> Any:
        """Percentile curves of the measured requests: which latency is not exceeded by which share of them.

        `ttft`, `e2e`, `tpot` and `queue` in one picture; with several classes one panel for each latency and
        a curve for each class, the six most frequent ones. The scale of the shares is that of log(1 − share),
        which gives the slowest tenth, hundredth, … equal room. A curve begins where its latency is above 0
        and ends before the single slowest request.

        Raises:
            ConfigError: no measured request has a latency.
        """
        names = run_data.classes(self._result)
        curves = run_data.latencies(self._result, names).filter(pl.col("seconds") > 0)
        if curves.is_empty():
            raise ConfigError("latency", "no measured request was served")
        curves = curves.with_columns(tail=-(1 - pl.col("share")).log10())
        if len(names) == 1:
            measures = [one for one in run_data.MEASURES if one in curves["measure"]]
            colours = [_OF_MEASURES[one] for one in measures]
            return styled(_curves(curves, _key("measure", measures, colours), PANEL, 240), names)
        panels = [
            _curves(part, _classes(names), PANEL // 2 - 40, 130).properties(title=run_data.MEASURES[measure])
            for measure in run_data.MEASURES
            if not (part := curves.filter(measure=measure)).is_empty()
        ]
        return styled(alt.concat(*panels, columns=2, spacing=16), names)

    def timeline(self) -> Any:
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
        samples, time = _in_time(samples)
        if cached:
            hits = samples.filter(pl.col("hit_rate").is_not_null())
            samples = samples.filter(pl.col("hit_rate").is_null())
        if "prefill_queue" in samples.columns:
            queues = {"prefill_queue": ("prefill queue", ORANGE), "decode_queue": ("decode queue", VERMILION)}
            slots = {"prefill": ("prefill", BLUE), "mixed": ("decode beside a prefill", SKY)}
            panels = [
                _lines(samples, time, queues, "requests waiting"),
                _lines(samples, time, {**slots, "solo": ("decode alone", GREY)}, "requests in slots"),
            ]
        else:
            counts = {"running": ("running", BLUE), "waiting": ("waiting", ORANGE)}
            tokens = {
                "prefill_tokens_per_s": ("prompt tokens", SKY),
                "output_tokens_per_s": ("output tokens", BLUE),
            }
            panels = [
                _lines(samples, time, counts, "requests"),
                self._memory(samples, time),
                _lines(samples, time, tokens, "tokens per second"),
            ]
            if cached and hits.height:
                word = {"hit_rate": ("hit rate", PURPLE)}
                panels.append(_lines(hits, time, word, "prompts found", legend=False, most=1.0))
        return styled(_stacked(panels).resolve_scale(color="independent"))

    def tbt(self) -> Any:
        """Histogram of the gaps between tokens of measured requests, by class, both scales logarithmic.

        A bar is the share of the gaps of its class in one of up to 60 bins of equal ratio; rules mark p50 and
        p99 as `Result.summary` has them.

        Raises:
            ConfigError: no measured request emitted two tokens.
        """
        names = run_data.classes(self._result)
        bins = run_data.gaps(self._result, names)
        if bins.is_empty():
            raise ConfigError("tbt", "no measured request emitted two tokens")
        marks = run_data.gap_percentiles(self._result, names)
        names = [one for one in names if one in bins["class"]]
        if len(names) == 1:
            return styled(_histogram(bins, marks, BLUE, 220), names)
        height = max(60, 240 // len(names))
        panels = [
            _histogram(
                bins.filter(**{"class": name}), marks.filter(**{"class": name}), colour, height, bins
            ).properties(title=name)
            for name, colour in zip(names, OF_CLASSES, strict=False)
        ]
        return styled(_stacked(panels), names)

    def queue(self) -> Any:
        """How many wait for their admission over time: on average over replicas, and at the worst of them.

        With one replica: mean and maximum of the samples of each of up to 250 stretches of time. For
        `GateAndRoute`: the queues in front of the whole cluster by class, the six with most on average.

        Raises:
            ConfigError: the run was too short for a sample.
        """
        samples = run_data.waiting(self._result)
        if samples.is_empty():
            raise ConfigError("queue", "the run was too short for a sample; give a smaller timeline_s")
        samples, time = _in_time(samples)
        if "class" in samples.columns:
            order = samples.group_by("class").agg(pl.col("mean").mean()).sort("mean", descending=True)
            names = order["class"].head(run_data.MOST_CLASSES).to_list()
            queue = samples.filter(pl.col("class").is_in(names)).rename(
                {"class": "which", "mean": "requests"}
            )
            key = _key("which", names, list(OF_CLASSES[: len(names)]))
        else:
            several = self._result.timeline["replica"].n_unique() > 1
            words = {
                "mean": "mean of the replicas" if several else "mean",
                "most": "longest queue" if several else "longest",
            }
            if samples["mean"].equals(samples["most"]):
                words = {"mean": "waiting"}
            queue = samples.unpivot(
                on=list(words), index="time", variable_name="which", value_name="requests"
            )
            queue = queue.with_columns(pl.col("which").replace_strict(words))
            key = _key("which", list(words.values()), [BLUE, ORANGE][: len(words)])
        some = alt.Scale() if queue["requests"].max() else alt.Scale(domain=[0, 1])
        waiting = alt.Y("requests:Q", title="requests waiting", axis=_few(True), scale=some)
        line = alt.Chart(queue).mark_line(strokeWidth=1.5).encode(x=time, y=waiting, color=key)
        return styled(line.properties(width=PANEL, height=170), queue["which"].unique().to_list())

    def throughput(self) -> Any:
        """Requests (of a network: jobs) that arrived and that finished per second, and what theory allows.

        The ceiling is the binding limit of `inferq.theory.stability`, which no policy passes in the long run;
        below the other line the policy is known to be stable. A limit far above all that came is left out.

        Raises:
            ConfigError: no request came, or all at one instant.
        """
        return throughput(self._result, run_data.theory(self._result))

    def _memory(self, samples: pl.DataFrame, time: Any) -> Any:
        """KV cache in use, of what there is."""
        capacity = run_data.kv_tokens(self._result)
        names = [name for name in samples.columns if name.startswith("kv_used_tokens")]
        word = {"kv_used_tokens": ("KV cache", GREEN)}
        if capacity is None:
            return _lines(samples, time, word, "KV tokens", legend=False)
        filled = samples.with_columns(pl.col(names) / capacity)
        return _lines(filled, time, word, "KV cache used", legend=False, most=1.0)


def throughput(result: Result, verdict: Stability | str) -> Any:
    """The picture of `Pictures.throughput`, with what `run_data.theory` says of the run."""
    happened = run_data.rates(result)
    if happened.is_empty():
        raise ConfigError("throughput", "no request came, or all at one instant")
    happened, time = _in_time(happened)
    top = max(happened["arrived"].max(), happened["finished"].max())  # type: ignore[type-var]
    limits = {label: value for label, value, _ in _limits(verdict) if value <= _FARTHEST * float(top)}  # type: ignore[arg-type]
    labels = ["arrived", "finished", *limits]
    colours = [GREY, BLUE, *(colour for label, _, colour in _limits(verdict) if label in limits)]
    dashes = [[1, 0], [1, 0], *([5, 3] for _ in limits)]
    points = happened.unpivot(
        on=["arrived", "finished"], index="time", variable_name="which", value_name="rate"
    )
    ends = [happened["time"].min(), happened["time"].max()]
    lines = [(end, label, value) for label, value in limits.items() for end in ends]
    points = pl.concat([points, pl.DataFrame(lines, schema=points.schema, orient="row")])
    unit = "jobs" if result.has_jobs else "requests"
    legend = alt.Legend(orient="top", title=None, columns=2 if not limits else 1, symbolType="stroke")
    rate = alt.Y("rate:Q", title=f"{unit} per second", axis=_few())
    colour = alt.Color("which:N", scale=alt.Scale(domain=labels, range=colours), legend=legend)
    dash = alt.StrokeDash("which:N", scale=alt.Scale(domain=labels, range=dashes), legend=legend)
    line = alt.Chart(points).mark_line(strokeWidth=1.5).encode(x=time, y=rate, color=colour, strokeDash=dash)
    return styled(line.properties(width=PANEL, height=190), labels)


def _limits(verdict: Stability | str) -> list[tuple[str, float, str]]:
    """What theory says of the rate: in words, the rate, a colour."""
    limits: list[tuple[str, float, str]] = []
    if isinstance(verdict, str):
        return limits
    if verdict.binding is not None:
        ceiling = verdict.binding.capacity_per_s
        limits.append((f"no policy passes {number(ceiling)}: {verdict.binding.name}", ceiling, VERMILION))
    if verdict.sure_per_s is not None:
        limits.append((f"known to be stable below {number(verdict.sure_per_s)}", verdict.sure_per_s, GREEN))
    return limits


def _curves(curves: pl.DataFrame, colour: Any, width: int, height: int) -> Any:
    """Percentile curves, a colour each; one of a single request is a point."""
    tails = [*([-math.log10(0.5)] if width == PANEL else []), *(float(nines) for nines in range(1, 8))]
    shares = alt.Axis(values=tails, labelExpr=_SHARE, labelOverlap="greedy", labelFlush=False, labelPadding=4)
    last = max(float(curves["tail"].max()), 0.302)  # type: ignore[arg-type]
    along = alt.Scale(domain=[0, last], nice=False)
    base = alt.Chart(curves.select("tail", "seconds", colour.shorthand.split(":")[0])).encode(
        x=alt.X("tail:Q", title="share of requests", scale=along, axis=shares),
        y=_log_seconds("seconds", [float(one) for one in curves["seconds"]]),
        color=colour,
    )
    line = base.mark_line(strokeWidth=2)
    alone = curves.filter(pl.len().over("measure", "class") == 1)
    if not alone.is_empty():
        points = base.mark_point(filled=True, opacity=1, size=50).properties(
            data=alone.select("tail", "seconds", colour.shorthand.split(":")[0])
        )
        return alt.layer(line, points).properties(width=width, height=height)
    return line.properties(width=width, height=height)


def _histogram(
    bins: pl.DataFrame,
    marks: pl.DataFrame,
    colour: str,
    height: int,
    scale_of: pl.DataFrame | None = None,
) -> Any:
    """Bars of shares, with rules where percentiles are; on the scales of all classes."""
    every = bins if scale_of is None else scale_of
    low, high = float(every["lower_s"].min()), float(every["upper_s"].max())  # type: ignore[arg-type]
    if high < 2 * low:
        low, high = low / 1.5, high * 1.5
    floor = 10.0 ** math.floor(math.log10(every["share"].min()) - 1e-9)  # type: ignore[arg-type]
    across = alt.X(
        "lower_s:Q",
        title="gap between tokens",
        scale=alt.Scale(type="log", domain=[low, high], nice=False),
        axis=_decades(low, high),
    )
    shares = alt.Axis(values=_powers(floor, 1.0), labelExpr=_PERCENT)
    bars = (
        alt.Chart(bins.with_columns(floor=pl.lit(floor)))
        .mark_rect(color=colour)
        .encode(
            x=across,
            x2="upper_s",
            y=alt.Y(
                "share:Q",
                title="share of gaps",
                scale=alt.Scale(type="log", domain=[floor, 1], nice=False),
                axis=shares,
            ),
            y2="floor",
        )
    )
    rules = alt.Chart(marks).mark_rule(color=INK, strokeDash=[4, 3]).encode(x=alt.X("seconds:Q"))
    layers = [bars, rules]
    for place, (name, row) in enumerate(zip(marks["percentile"], marks.iter_slices(1), strict=True)):
        at_end = float(row["seconds"].item()) > math.sqrt(low * high)
        layers.append(
            alt.Chart(row)
            .mark_text(
                text=name,
                color=INK,
                y=8 + 14 * place,
                dx=-4 if at_end else 4,
                align="right" if at_end else "left",
            )
            .encode(x=alt.X("seconds:Q"))
        )
    return alt.layer(*layers).properties(width=PANEL, height=height)


def _lines(
    samples: pl.DataFrame,
    time: Any,
    words: dict[str, tuple[str, str]],
    title: str,
    *,
    legend: bool = True,
    most: float | None = None,
) -> Any:
    """Means over time with the band of what they are means of; `most` is a whole, whose shares are shown.

    Args:
        samples: of `run_data.over_time`.
        time: the axis.
        words: how a column is called, and its colour.
        title: of the other axis.
        legend: whether there is one.
        most: where the axis ends.
    """
    parts = [
        samples.select(
            "time",
            pl.lit(word).alias("which"),
            pl.col(name).alias("mean"),
            pl.col(f"{name}_low").alias("low"),
            pl.col(f"{name}_high").alias("high"),
        )
        for name, (word, _) in words.items()
    ]
    points = pl.concat(parts)
    colour = _key("which", [word for word, _ in words.values()], [one for _, one in words.values()], legend)
    axis = _few(True) if most is None else alt.Axis(tickCount=4, labelExpr=_PERCENT)
    if most is None and not points["high"].max():
        most = 1.0
    scale = alt.Scale() if most is None else alt.Scale(domain=[0, most])
    base = alt.Chart(points).encode(x=time, color=colour)
    mean = base.mark_line(strokeWidth=1.5).encode(y=alt.Y("mean:Q", title=title, axis=axis, scale=scale))
    layers = [mean]
    if not (points["low"].equals(points["mean"]) and points["high"].equals(points["mean"])):
        band = base.mark_area(opacity=0.22, line=False).encode(
            y=alt.Y("low:Q", title=title, axis=axis, scale=scale), y2="high"
        )
        layers = [band, mean]
    return alt.layer(*layers).properties(width=PANEL, height=96)


def _stacked(panels: list[Any]) -> Any:
    """Panels one above the other, over one time or one scale of gaps: it is named below the last."""
    for panel in panels[:-1]:
        for layer in panel.layer:
            layer.encoding.x = layer.encoding.x.copy()
            layer.encoding.x.title = None
    return alt.vconcat(*panels, spacing=12)


def _in_time(samples: pl.DataFrame) -> tuple[pl.DataFrame, Any]:
    """Samples with `time` in a unit that can be read, and its axis."""
    first_s, last_s = (float(end) for end in (samples["time_s"].min(), samples["time_s"].max()))  # type: ignore[arg-type]
    unit, seconds = "s", 1.0
    for name, longer, least_s in (
        ("min", 60.0, 600.0),
        ("h", 3600.0, 14_400.0),
        ("days", 86_400.0, 345_600.0),
    ):
        if last_s >= least_s:
            unit, seconds = name, longer
    axis = alt.Axis(tickCount=6, grid=False, labelFlush=False)
    samples = samples.with_columns(time=pl.col("time_s") / seconds).drop("time_s")
    # the ends are said, so that panels one above the other have the same, whichever samples each has
    ends = alt.Undefined if first_s == last_s else [first_s / seconds, last_s / seconds]
    scale = alt.Scale(nice=False, domain=ends)
    return samples, alt.X("time:Q", title=f"time, {unit}", axis=axis, scale=scale)


def _key(column: str, names: list[str], colours: list[str], legend: bool = True) -> Any:
    """A colour for each name, told above the picture."""
    colour_of = dict(zip(names, colours, strict=True))
    key = coloured(column, colour_of, orient="top", symbolType="stroke", symbolOpacity=1, labelLimit=160)
    return key if legend else key.legend(None)


def _classes(names: list[str]) -> Any:
    columns = min(3, len(names))
    colours = dict(zip(names, OF_CLASSES, strict=False))
    return coloured("class", colours, orient="top", symbolType="stroke", labelLimit=120, columns=columns)


def _few(whole: bool = False) -> Any:
    """An axis of counts, in whole steps, or of rates: few ticks, thousands as k."""
    return alt.Axis(tickCount=4, tickMinStep=1 if whole else alt.Undefined, labelExpr=_COUNT)


def _log_seconds(column: str, values: list[float]) -> Any:
    low, high = min(values), max(values)
    if high < 2 * low:
        low, high = low / 1.5, high * 1.5
    scale = alt.Scale(type="log", domain=[low, high], nice=False)
    return alt.Y(f"{column}:Q", title=None, scale=scale, axis=_decades(low, high))


def _decades(low: float, high: float) -> Any:
    """The axis of seconds on a scale of logarithms, whose ticks can be told apart."""
    return alt.Axis(values=_powers(low, high), labelExpr=_SECONDS, labelOverlap="greedy")


def _powers(low: float, high: float) -> list[float]:
    """Round numbers within a range for a scale of logarithms: at most seven.

    >>> _powers(0.01, 100.0), _powers(0.006, 0.017), _powers(0.03, 0.5)
    ([0.01, 0.1, 1.0, 10.0, 100.0], [0.006, 0.008, 0.01, 0.012, 0.014, 0.016], [0.03, 0.1, 0.3])
    """
    if high < 4 * low:
        step = 10.0 ** math.floor(math.log10(high - low))
        step = next(step * part for part in (0.2, 0.5, 1.0, 2.0) if (high - low) / (step * part) <= 7)
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        return [float(f"{place * step:.12g}") for place in range(first, last + 1)]
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    marks: list[float] = []
    for steps in ((1,), (1, 3), (1, 2, 5)):
        every = [float(f"{step}e{power}") for power in powers for step in steps]
        marks = [one for one in every if low * (1 - 1e-9) <= one <= high * (1 + 1e-9)]
        if len(marks) >= 3:
            break
    return marks[:: -(-len(marks) // 7)]
