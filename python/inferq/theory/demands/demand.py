"""Demand on a system: arrival rates and length distributions of request classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from inferq._lazy import np, pl
from inferq.checks import finite, shown, within
from inferq.errors import ConfigError
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
"""Allowed requests per second: from one in 30 years to a thousand per nanosecond."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestClass:
    """Requests of one kind: their arrival rate and their lengths.

    Several classes are independent streams, such as Poisson processes: the class of a request is independent
    of the next one.

    Args:
        rate: requests per second, from 1e-9 to 1e12.
        prompt: prompt tokens: a number, or a distribution of one length.
        output: output tokens: a number, or a distribution of one length.
        lengths: joint distribution of both, instead of `prompt` and `output`.
        name: name of the class, unique in a list.
        abandonment: abandonment rate of waiting requests, per second; used only by `allocation`.

    Raises:
        ConfigError: an argument is invalid.

    Source: λ_j, l_j and l'_j of ao2025, the classes of lin2026 section 2.1.

    Example:
        >>> import inferq as iq
        >>> prompt, output = iq.dist.Uniform(10, 1600), iq.dist.Geometric(mean=200)
        >>> chat = iq.theory.RequestClass(rate=10, prompt=prompt, output=output)
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
            raise ConfigError("name", f"must be a non-empty string, got {self.name!r}")
        path = f"class {self.name!r}"
        rate_of(f"{path}: rate", self.rate)
        within(f"{path}: abandonment", self.abandonment, 0, MOST_RATE)
        if self.lengths is not None:
            if self.prompt is not None or self.output is not None:
                raise ConfigError(
                    f"{path}: lengths", "conflicts with prompt and output; use only one of them"
                )
            if not isinstance(self.lengths, Empirical):
                raise ConfigError(
                    f"{path}: lengths", f"must be an Empirical distribution, got {self.lengths!r}"
                )
            return
        for side in ("prompt", "output"):
            try:
                chances(side, getattr(self, side))
            except ConfigError as error:
                raise error.within(path, ": ") from None

    @property
    def joint_lengths(self) -> Lengths:
        """The joint distribution of its lengths."""
        if self.lengths is not None:
            return _of_frame(self.lengths.frame)
        assert self.prompt is not None and self.output is not None
        return Lengths.of(self.prompt, self.output)


@dataclass(frozen=True, slots=True, eq=False)
class ClassDemand:
    """A class in the formulas."""

    name: str
    rate: float | None
    """Requests per second; None if unknown."""
    share: float
    """Share of all requests."""
    lengths: Lengths
    abandonment: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Demand:
    """The demand on a system: classes with rates and joint distributions of lengths."""

    classes: tuple[ClassDemand, ...]
    rate: float | None
    """Requests per second of all classes; None if unknown."""
    arrivals: str
    """Description of the arrival process."""
    poisson: bool | None
    """Whether arrivals are a Poisson process; None for recorded arrivals."""
    closed_loop: bool = False
    """Whether requests wait for earlier responses, so that the rate follows the service."""
    gives_up: bool = False
    """Whether waiting requests may abandon."""
    alike: bool = False
    """Whether lengths and class of a request are known to be independent of all earlier requests."""
    busiest: float = 1.0
    """The largest arrival rate divided by the mean, for rates that change over time."""
    order: Order | None = None
    """The sequence of requests, if recorded or drawn."""
    rows: Rows | None = None
    """The requests with the shared prefixes of their prompts; None without such columns."""
    hit_rate: float | None = None
    """The configured share of prompt tokens found in prefix caches."""

    @classmethod
    def of(
        cls,
        workload_like: WorkloadLike,
        *,
        rate: float | None = None,
        seed: int = 0,
        needs_rate: bool = True,
    ) -> Demand:
        """The demand of a workload or of classes.

        A `Workload.synthetic`, or a mix of them, is used exactly, with its own rate. Other workloads are
        drawn with `seed`, and their pairs of lengths and the rate (n − 1) / (last − first arrival) are used.

        Args:
            workload_like: a workload, a class, or several; a `Demand` is returned unchanged.
            rate: total requests per second. Default: the rate of the workload. Shares of classes stay.
            seed: seed for workloads that must be drawn.
            needs_rate: whether a workload without arrivals is an error.

        Raises: ConfigError: the workload has another type, two classes have one name, or a rate is not
            positive or missing.
            TraceError: a workload without lengths.
        """
        if isinstance(workload_like, Demand):
            demand = workload_like
        else:
            demand = (
                _of_workload(workload_like, seed)
                if isinstance(workload_like, Workload)
                else _of_classes(workload_like)
            )
        if rate is not None:
            demand = demand.at_rate(rate_of("rate", rate))
        elif demand.rate is not None and demand is not workload_like:
            rate_of("workload: rate", demand.rate)
        if needs_rate and demand.rate is None:
            raise ConfigError("rate", f"{demand.arrivals}; set rate= in requests per second")
        return demand

    @property
    def lengths(self) -> Lengths:
        """The joint distribution of lengths over all classes."""
        return Lengths.mixed((request_class.share, request_class.lengths) for request_class in self.classes)

    def shares(self) -> dict[str, float]:
        """The share of each class among all requests."""
        return {request_class.name: request_class.share for request_class in self.classes}

    def at_rate(self, rate: float) -> Demand:
        """The same demand at another total rate; shares of classes stay."""
        classes = tuple(
            ClassDemand(
                request_class.name,
                rate * request_class.share,
                request_class.share,
                request_class.lengths,
                request_class.abandonment,
            )
            for request_class in self.classes
        )
        return replace(self, classes=classes, rate=rate)

    def peak(self, work: Work, *, turns: int = 1, name: str | None = None) -> float:
        """The peak of the work relative to its mean: see `Order.peak`."""
        known = 1.0 if self.order is None else self.order.peak(work, turns=turns, name=name)
        return self.busiest * known


WorkloadLike: TypeAlias = Workload | RequestClass | Sequence[RequestClass] | Demand
"""Input of the functions of `inferq.theory`: publicly a workload, a class, or several."""


def rate_of(path: str, rate: object) -> float:
    """A rate per second from `LEAST_RATE` to `MOST_RATE`; otherwise an error at `path`."""
    try:
        number = finite(path, rate)
    except ConfigError:
        number = 0.0
    if number <= 0:
        raise ConfigError(path, f"must be a positive number per second, got {shown(rate)}")
    if not LEAST_RATE <= number <= MOST_RATE:
        raise ConfigError(
            path, f"must be from {LEAST_RATE:g} to {MOST_RATE:g} requests per second, got {number:g}"
        )
    return number


def _of_classes(classes: object) -> Demand:
    items = [classes] if isinstance(classes, RequestClass) else classes
    if not isinstance(items, Sequence) or isinstance(items, (str, bytes)):
        raise ConfigError(
            "workload", f"must be a Workload, a RequestClass or a list of them, got {classes!r}"
        )
    if not items:
        raise ConfigError("workload", "must contain at least one class")
    for place, item in enumerate(items):
        if not isinstance(item, RequestClass):
            raise ConfigError(f"workload[{place}]", f"must be a RequestClass, got {item!r}")
        if item.name in [other.name for other in items[:place]]:
            raise ConfigError(f"workload[{place}].name", f"must be unique, got {item.name!r} twice")
    total = math.fsum(item.rate for item in items)
    demands = tuple(
        ClassDemand(
            item.name, float(item.rate), item.rate / total, item.joint_lengths, float(item.abandonment)
        )
        for item in items
    )
    gives_up = any(item.abandonment > 0 for item in items)
    return Demand(demands, total, "arrivals of given rates", None, gives_up=gives_up, alike=True)


def _of_workload(workload: Workload, seed: int) -> Demand:
    exact = _exact(workload)
    return _of_rows(workload, seed) if exact is None else exact


def _exact(workload: Workload) -> Demand | None:
    """The demand of a workload with exactly known distributions; None for any other workload."""
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
        # Only a mix of Poisson streams keeps the class of a request independent of the previous one.
        alike = all(part.alike for _, part in exact) and (len(exact) == 1 or poisson)
        return Demand(classes, total, ways, poisson, gives_up=gives_up, alike=alike, busiest=busiest)
    if not isinstance(source, Synthetic) or not source.lengths:
        return None
    arrivals, rate = source.arrivals, long_run_rate(source.arrivals)
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
        busiest=max(arrivals.rates) / long_run_rate(arrivals) if isinstance(arrivals, TimeVarying) else 1.0,
    )


def long_run_rate(arrivals: ArrivalProcess) -> float:
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
    """The demand of a drawn workload."""
    frame = workload.ready(seed, needs=("prompt_tokens", "output_tokens"))
    if not frame.height:
        raise ConfigError("workload", "must contain at least one request")
    closed = isinstance(workload._source, Sessions) or (
        "think_s" in frame.columns and bool(frame["think_s"].is_not_null().any())
    )
    gives_up = any(
        name in frame.columns and bool(frame[name].is_not_null().any()) for name in ("patience_s", "cancel_s")
    )
    rate, arrivals = None, "the workload has no arrivals"
    if closed:
        arrivals = "the workload is a closed loop, so its rate follows the service"
    elif "arrival_s" in frame.columns:
        span_s = float(frame["arrival_s"][-1]) - float(frame["arrival_s"][0])
        rate = (frame.height - 1) / span_s if span_s > 0 else None
        arrivals = "recorded arrivals" if rate else "all requests of the workload arrive at the same time"
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
"""Parts of equal length into which the span of arrivals is divided."""


def each(s: Any, o: Any) -> Any:
    """1 for each request."""
    return 1.0 + 0 * s + 0 * o


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """Requests in their recorded order."""

    at: Numbers
    """Arrival times; positions if there are no arrival times."""
    prompt: Numbers
    output: Numbers
    names: tuple[str, ...]
    """Class of each request; empty with a single class."""

    @classmethod
    def of(cls, frame: pl.DataFrame, *, timed: bool) -> Order:
        """The requests of a frame; arrival times count if they are `timed`."""
        at = frame["arrival_s"].to_numpy() if timed else np.arange(frame.height)
        return cls(
            at.astype(np.float64),
            frame["prompt_tokens"].to_numpy().astype(np.float64),
            frame["output_tokens"].to_numpy().astype(np.float64),
            tuple(map(str, frame["class"])) if "class" in frame.columns else (),
        )

    def peak(self, work: Work, *, turns: int = 1, name: str | None = None) -> float:
        """The peak of the work relative to its mean.

        Args: work: work of a request. turns: number of replicas that take turns; the busiest replica counts,
            compared with an equal share.
            name: a class, if only its requests count.

        Returns: The most work of one replica in a tenth of the span of arrivals, times `turns`, divided by
            the mean.
        """
        work_of = np.asarray(work(self.prompt, self.output), dtype=np.float64)
        if name is not None and self.names:
            work_of = work_of * (np.array(self.names) == name)
        first, last = float(self.at[0]), float(self.at[-1])
        if not work_of.sum() > 0:
            return 1.0
        part = np.zeros(len(work_of), dtype=np.int64)
        if last > first:
            part = np.minimum((self.at - first) / (last - first) * PARTS, PARTS - 1).astype(np.int64)
        cell = part * turns + np.arange(len(work_of)) % turns
        most = np.bincount(cell, weights=work_of, minlength=PARTS * turns).max()
        return float(most * turns * PARTS / work_of.sum())
