"""What is asked of a system: how often requests of each class come, and how long they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from inferq._lazy import np, pl
from inferq.checks import finite, shown, within
from inferq.errors import ConfigError, Renamed
from inferq.theory.demands.lengths import Lengths, Work, chances
from inferq.theory.demands.shared_prefixes import Rows
from inferq.workload.distributions import (
    ArrivalProcess,
    Deterministic,
    Empirical,
    Gamma,
    LengthDistribution,
    OnOff,
    Poisson,
    TimeVarying,
    Weibull,
)
from inferq.workload.generated import Mix, Sessions, Synthetic
from inferq.workload.workload import Workload

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers: TypeAlias = NDArray[np.float64]


LEAST_RATE, MOST_RATE = 1e-9, 1e12
"""Requests per second that a demand may ask for: from one in 30 years to a thousand in a nanosecond."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestClass:
    """Requests of one kind: how often they come, and how long they are.

    Several classes stand for streams that know nothing of each other, as independent Poisson processes do:
    of which class a request is says nothing about the next one.

    Args:
        rate: requests per second, from 1e-9 to 1e12.
        prompt: prompt tokens: a number, or a distribution of one length.
        output: output tokens, likewise.
        lengths: joint distribution of both, instead of `prompt` and `output`.
        name: of the class; each in a list has its own.
        abandonment: how fast waiting requests give up, per second; only `allocation` looks at it.

    Raises:
        ConfigError: naming the argument.

    Source: λ_j, l_j and l'_j of ao2025, the classes of lin2026 section 2.1.

    Example:
        >>> import inferq as iq
        >>> chat = iq.theory.RequestClass(rate=10, prompt=iq.dist.Uniform(10, 1600), output=iq.dist.Geometric(mean=200))
        >>> round(chat.joint_lengths.prompt_mean), round(chat.joint_lengths.output_mean)
        (805, 200)
    """

    rate: float
    prompt: int | LengthDistribution | None = None
    output: int | LengthDistribution | None = None
    lengths: Empirical | None = None
    name: str = "default"
    abandonment: float = 0.0

    def __post_init__(self) -> None:
        """Check every argument."""
        if not isinstance(self.name, str) or not self.name:
            raise ConfigError("name", f"must be a text, not empty, is {self.name!r}")
        path = f"class {self.name!r}"
        rate_of(f"{path}: rate", self.rate)
        within(f"{path}: abandonment", self.abandonment, 0, MOST_RATE)
        if self.lengths is not None:
            if self.prompt is not None or self.output is not None:
                raise ConfigError(f"{path}: lengths", "is joint; give it alone, or prompt and output")
            if not isinstance(self.lengths, Empirical):
                raise ConfigError(
                    f"{path}: lengths", f"must be an Empirical distribution, not {self.lengths!r}"
                )
            return
        for side in ("prompt", "output"):
            try:
                chances(side, getattr(self, side))
            except ConfigError as error:
                raise error.within(path, ": ") from None

    law = Renamed("joint_lengths")

    @property
    def joint_lengths(self) -> Lengths:
        """The joint distribution of its lengths."""
        if self.lengths is not None:
            return _of_frame(self.lengths.frame)
        assert self.prompt is not None and self.output is not None
        return Lengths.of(self.prompt, self.output)


@dataclass(frozen=True, slots=True, eq=False)
class ClassDemand:
    """A class as the formulas see it."""

    name: str
    rate: float | None
    """Requests per second; None where nothing says when they come."""
    share: float
    """Of all requests."""
    lengths: Lengths
    abandonment: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Demand:
    """All that is asked: classes with rates and joint distributions of lengths."""

    classes: tuple[ClassDemand, ...]
    rate: float | None
    """Requests per second of all classes; None where nothing says when they come."""
    arrivals: str
    """How they come, in words."""
    poisson: bool | None
    """Whether arrivals are known to be a Poisson process; None for those that were recorded."""
    closed_loop: bool = False
    """Whether requests wait for the answers to others, so that the rate follows the service."""
    gives_up: bool = False
    """Whether a request that waits may leave unserved."""
    alike: bool = False
    """Whether lengths and class of a request are known to be independent of those of all before it."""
    busiest: float = 1.0
    """Of arrivals whose rate changes over time: the largest rate, over the mean."""
    order: Order | None = None
    """The requests one after another, where they were recorded or drawn."""
    rows: Rows | None = None
    """The same with what they say about their prompts; None where they say nothing."""
    hit_rate: float | None = None
    """The share of prompt tokens that prefix caches find, where it is stated."""

    @classmethod
    def of(
        cls,
        asked: WorkloadLike,
        *,
        rate: float | None = None,
        seed: int = 0,
        needs_rate: bool = True,
    ) -> Demand:
        """What a workload or classes ask.

        A `Workload.synthetic`, and a mix of them, is taken exactly, with its own rate. Anything else is drawn
        with `seed` and taken as it is: its pairs of lengths, and (n − 1) / (last − first arrival).

        Args:
            asked: a workload, a class, or several; what is a `Demand` already stays as it is.
            rate: requests per second in all, instead of what `asked` says; shares of classes stay.
            seed: with which a workload whose distributions are not known exactly is drawn.
            needs_rate: whether a workload without arrivals is an error.

        Raises:
            ConfigError: what is asked is none of these, classes of one name, a rate that is not above 0, or
                none known where it is needed.
            TraceError: a workload without lengths.
        """
        if isinstance(asked, Demand):
            demand = asked
        else:
            demand = _of_workload(asked, seed) if isinstance(asked, Workload) else _of_classes(asked)
        if rate is not None:
            demand = demand.at_rate(rate_of("rate", rate))
        elif demand.rate is not None and demand is not asked:
            rate_of("workload: rate", demand.rate)
        if needs_rate and demand.rate is None:
            raise ConfigError("rate", f"{demand.arrivals}; give rate=, in requests per second")
        return demand

    @property
    def lengths(self) -> Lengths:
        """The joint distribution of a request of any class."""
        return Lengths.mixed((one.share, one.lengths) for one in self.classes)

    def shares(self) -> dict[str, float]:
        """The share of each class among all requests."""
        return {one.name: one.share for one in self.classes}

    def at_rate(self, rate: float) -> Demand:
        """The same at another total rate; shares of classes stay."""
        classes = tuple(
            ClassDemand(one.name, rate * one.share, one.share, one.lengths, one.abandonment)
            for one in self.classes
        )
        return replace(self, classes=classes, rate=rate)

    def peak(self, work: Work, *, turns: int = 1, name: str | None = None) -> float:
        """How many times the mean is asked for where most is: see `Order.peak`."""
        known = 1.0 if self.order is None else self.order.peak(work, turns=turns, name=name)
        return self.busiest * known


WorkloadLike: TypeAlias = Workload | RequestClass | Sequence[RequestClass] | Demand
"""What the functions of `inferq.theory` take: in public a workload, a class, or several."""


def rate_of(path: str, rate: object) -> float:
    """A rate per second, refused at `path` unless it is a number from `LEAST_RATE` to `MOST_RATE`."""
    try:
        number = finite(path, rate)
    except ConfigError:
        number = 0.0
    if number <= 0:
        raise ConfigError(path, f"must be a number per second above 0, is {shown(rate)}")
    if not LEAST_RATE <= number <= MOST_RATE:
        raise ConfigError(
            path, f"must be from {LEAST_RATE:g} to {MOST_RATE:g} requests per second, is {number:g}"
        )
    return number


def _of_classes(asked: object) -> Demand:
    given = [asked] if isinstance(asked, RequestClass) else asked
    if not isinstance(given, Sequence) or isinstance(given, (str, bytes)):
        raise ConfigError("workload", f"must be a Workload or RequestClass(…), one or several, is {asked!r}")
    if not given:
        raise ConfigError("workload", "no class; there must be one at least")
    for place, one in enumerate(given):
        if not isinstance(one, RequestClass):
            raise ConfigError(f"workload[{place}]", f"must be a RequestClass(…), is {one!r}")
        if one.name in [other.name for other in given[:place]]:
            raise ConfigError(f"workload[{place}].name", f"{one.name!r} is there already")
    total = math.fsum(one.rate for one in given)
    classes = tuple(
        ClassDemand(one.name, float(one.rate), one.rate / total, one.joint_lengths, float(one.abandonment))
        for one in given
    )
    gives_up = any(one.abandonment > 0 for one in given)
    return Demand(classes, total, "arrivals of given rates", None, gives_up=gives_up, alike=True)


def _of_workload(workload: Workload, seed: int) -> Demand:
    exact = _exact(workload)
    return _of_rows(workload, seed) if exact is None else exact


def _exact(workload: Workload) -> Demand | None:
    """The demand of a workload whose distributions are known to the last chance; None for any other."""
    source = workload._source
    if isinstance(source, Mix):
        if workload._steps:
            return None
        parts = [(name, _exact(part)) for name, part in source.parts]
        exact = [(name, part) for name, part in parts if part is not None and part.rate is not None]
        if len(exact) < len(parts):
            return None
        total = math.fsum(part.rate or 0.0 for _, part in exact)
        classes = tuple(
            ClassDemand(name, part.rate, (part.rate or 0.0) / total, part.lengths) for name, part in exact
        )
        ways = " and ".join(dict.fromkeys(part.arrivals for _, part in exact))
        poisson = all(part.poisson for _, part in exact)
        gives_up = any(part.gives_up for _, part in exact)
        busiest = max(part.busiest for _, part in exact)
        # Of independent streams only Poisson ones mix so that the next class owes nothing to the last.
        alike = all(part.alike for _, part in exact) and (len(exact) == 1 or poisson)
        return Demand(classes, total, ways, poisson, gives_up=gives_up, alike=alike, busiest=busiest)
    if not isinstance(source, Synthetic) or not source.lengths:
        return None
    arrivals, rate = source.arrivals, _rate(source.arrivals)
    lengths = dict(source.lengths)
    gives_up = False
    classes_of: object = None
    for step in workload._steps:
        if step.transform == "speed":
            rate *= step.arguments["factor"]
        elif step.transform == "with_patience":
            gives_up = True
        elif step.transform == "with_classes" and isinstance(step.arguments["classes"], (str, dict)):
            classes_of = step.arguments["classes"]
        else:
            return None
    if "lengths" in lengths:
        joint = _of_frame(lengths["lengths"].frame)  # type: ignore[attr-defined]  # only Empirical stands there
    else:
        joint = Lengths.of(lengths["prompt"], lengths["output"])
    shares = classes_of if isinstance(classes_of, dict) else {classes_of or "default": 1.0}
    whole = math.fsum(shares.values())
    classes = tuple(
        ClassDemand(str(name), rate * share / whole, share / whole, joint) for name, share in shares.items()
    )
    return Demand(
        classes,
        rate,
        f"{type(arrivals).__name__} arrivals",
        isinstance(arrivals, Poisson),
        gives_up=gives_up,
        alike=True,
        busiest=max(arrivals.rates) / _rate(arrivals) if isinstance(arrivals, TimeVarying) else 1.0,
    )


def _rate(arrivals: ArrivalProcess) -> float:
    """Requests per second in the long run."""
    if isinstance(arrivals, OnOff):
        on, off = arrivals.mean_on_s, arrivals.mean_off_s
        return (arrivals.on_rate * on + arrivals.off_rate * off) / (on + off)
    if isinstance(arrivals, TimeVarying):
        if arrivals.period_s is None:
            return float(arrivals.rates[-1])
        ends = (*arrivals.times_s[1:], arrivals.period_s)
        spans = (end - start for start, end in zip(arrivals.times_s, ends, strict=True))
        return (
            math.fsum(rate * span for rate, span in zip(arrivals.rates, spans, strict=True))
            / arrivals.period_s
        )
    assert isinstance(arrivals, (Poisson, Gamma, Weibull, Deterministic))
    return float(arrivals.rate)


def _of_frame(frame: pl.DataFrame) -> Lengths:
    return Lengths.observed(frame["prompt_tokens"].to_numpy(), frame["output_tokens"].to_numpy())


def _of_rows(workload: Workload, seed: int) -> Demand:
    """The demand of a workload as it is drawn."""
    frame = workload.ready(seed, needs=("prompt_tokens", "output_tokens"))
    if not frame.height:
        raise ConfigError("workload", "has no request")
    closed = isinstance(workload._source, Sessions) or (
        "think_s" in frame.columns and bool(frame["think_s"].is_not_null().any())
    )
    gives_up = any(
        name in frame.columns and bool(frame[name].is_not_null().any()) for name in ("patience_s", "cancel_s")
    )
    rate, arrivals = None, "the workload has no arrivals"
    if closed:
        arrivals = "the workload is a closed loop, whose rate follows the service"
    elif "arrival_s" in frame.columns:
        span_s = float(frame["arrival_s"][-1]) - float(frame["arrival_s"][0])
        rate = (frame.height - 1) / span_s if span_s > 0 else None
        arrivals = "recorded arrivals" if rate else "all requests of the workload arrive at one instant"
    if "class" in frame.columns:
        parts = [(str(name), rows) for (name,), rows in frame.group_by("class", maintain_order=True)]
    else:
        parts = [("default", frame)]
    classes = tuple(
        ClassDemand(
            name,
            None if rate is None else rate * rows.height / frame.height,
            rows.height / frame.height,
            _of_frame(rows),
        )
        for name, rows in parts
    )
    order = Order.of(frame, timed=rate is not None)
    return Demand(classes, rate, arrivals, None, closed, gives_up, order=order, rows=Rows.of(frame))


PARTS = 10
"""Stretches of equal length into which the span of arrivals is cut."""


def each(s: Any, o: Any) -> Any:
    """Requests, each of which counts 1."""
    return 1.0 + 0 * s + 0 * o


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """Requests in the order in which they were recorded."""

    at: Numbers
    """When each arrives; its place, as of arrivals at even distances, where nothing says when."""
    prompt: Numbers
    output: Numbers
    names: tuple[str, ...]
    """The class of each; empty where all are of one."""

    @classmethod
    def of(cls, frame: pl.DataFrame, *, timed: bool) -> Order:
        """The requests of a frame; their own arrivals count where they are `timed`."""
        at = frame["arrival_s"].to_numpy() if timed else np.arange(frame.height)
        return cls(
            at.astype(np.float64),
            frame["prompt_tokens"].to_numpy().astype(np.float64),
            frame["output_tokens"].to_numpy().astype(np.float64),
            tuple(map(str, frame["class"])) if "class" in frame.columns else (),
        )

    def peak(self, work: Work, *, turns: int = 1, name: str | None = None) -> float:
        """How many times the mean is asked for where most is asked for.

        Args:
            work: what a request asks for.
            turns: replicas that take turns. What the one asks for that is asked for the most then stands
                beside an equal share.
            name: of a class, if only its requests count.

        Returns:
            The most work in a tenth of the span of arrivals, of one replica, times `turns`, over the mean.
        """
        asked = np.asarray(work(self.prompt, self.output), dtype=np.float64)
        if name is not None and self.names:
            asked = asked * (np.array(self.names) == name)
        first, last = float(self.at[0]), float(self.at[-1])
        if not asked.sum() > 0:
            return 1.0
        part = np.zeros(len(asked), dtype=np.int64)
        if last > first:
            part = np.minimum((self.at - first) / (last - first) * PARTS, PARTS - 1).astype(np.int64)
        cell = part * turns + np.arange(len(asked)) % turns
        most = np.bincount(cell, weights=asked, minlength=PARTS * turns).max()
        return float(most * turns * PARTS / asked.sum())
