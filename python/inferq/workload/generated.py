"""Synthetic workloads before they are drawn: distributions, transforms and their JSON."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from inferq import _core
from inferq._lazy import np, pl
from inferq.checks import whole
from inferq.description import Description
from inferq.errors import ConfigError, TraceError
from inferq.workload import rows, transforms
from inferq.workload.columns import as_series, sha256
from inferq.workload.distributions import (
    ArrivalProcess,
    DurationDistribution,
    Empirical,
    Fixed,
    LengthDistribution,
)
from inferq.workload.transforms import duration, duration_form, subseed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from inferq.workload.workload import Workload

_MOST = 2**32 - 1
"""Maximum number of requests and of sessions: the core numbers them with 32 bits."""


class Recipe:
    """Base class of the sources that a synthetic workload is drawn from."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready data in the form of a scenario."""
        raise NotImplementedError

    def draw(self, seed: int) -> pl.DataFrame:
        """Return the canonical frame for `seed`."""
        raise NotImplementedError

    @property
    def columns(self) -> list[str]:
        """Columns of the frame."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, repr=False)
class Synthetic(Recipe):
    """Requests with arrivals and lengths that the core draws."""

    requests: int
    arrivals: ArrivalProcess
    lengths: tuple[tuple[str, LengthDistribution], ...]
    """`prompt` and `output`, or the joint `lengths`, or no entry."""

    @classmethod
    def of(
        cls,
        requests: int,
        arrivals: ArrivalProcess,
        prompt: LengthDistribution | None,
        output: LengthDistribution | None,
        lengths: Empirical | None,
    ) -> Synthetic:
        """Check the arguments of `Workload.synthetic`."""
        whole("requests", requests, 1, _MOST)
        _arrivals(arrivals)
        if lengths is not None:
            if prompt is not None or output is not None:
                raise ConfigError("lengths", "cannot be combined with prompt or output: it draws both")
            if not isinstance(lengths, Empirical):
                raise ConfigError("lengths", f"must be an Empirical distribution, got {lengths!r}")
            return cls(int(requests), arrivals, (("lengths", lengths),))
        if prompt is None and output is None:
            return cls(int(requests), arrivals, ())
        for name, distribution in (("prompt", prompt), ("output", output)):
            if not isinstance(distribution, LengthDistribution) or isinstance(distribution, Empirical):
                raise ConfigError(
                    name, f"must be a distribution of one length such as Fixed(100), got {distribution!r}"
                )
        assert prompt is not None and output is not None
        return cls(int(requests), arrivals, (("prompt", prompt), ("output", output)))

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready data, which is also the core's format."""
        parts = {name: distribution.to_json() for name, distribution in self.lengths}
        return {"requests": self.requests, "arrivals": self.arrivals.to_json(), **parts}

    def __repr__(self) -> str:
        """Return the call that creates it."""
        parts = "".join(f", {name}={distribution!r}" for name, distribution in self.lengths)
        return f"Workload.synthetic(requests={self.requests}, arrivals={self.arrivals!r}{parts})"

    @property
    def columns(self) -> list[str]:
        """Arrivals and, if specified, lengths."""
        return ["arrival_s", *(("prompt_tokens", "output_tokens") if self.lengths else ())]

    def draw(self, seed: int) -> pl.DataFrame:
        """Return the canonical frame for `seed`."""
        columns = _core.draw(json.dumps(self.to_json()), seed)
        return pl.DataFrame({name: columns[name] for name in self.columns})


@dataclass(frozen=True, slots=True, repr=False)
class Sessions(Recipe):
    """Conversations in a closed loop."""

    sessions: int
    arrivals: ArrivalProcess
    turns: LengthDistribution
    prompt: LengthDistribution
    output: LengthDistribution
    think: float | DurationDistribution
    grows: bool
    max_context: int | None

    @classmethod
    def of(
        cls,
        sessions: int,
        arrivals: ArrivalProcess,
        turns: int | LengthDistribution,
        prompt: int | LengthDistribution,
        output: int | LengthDistribution,
        think: float | DurationDistribution,
        grows: bool,
        max_context: int | None,
    ) -> Sessions:
        """Check the arguments of `Workload.sessions`."""
        whole("sessions", sessions, 1, _MOST)
        _arrivals(arrivals)
        distributions = []
        for name, value in (("turns", turns), ("prompt", prompt), ("output", output)):
            if isinstance(value, Empirical):
                raise ConfigError(name, f"must be a number or a distribution of one length, got {value!r}")
            distributions.append(
                value if isinstance(value, LengthDistribution) else Fixed(whole(name, value, 1, 2**31 - 1))
            )
        if not isinstance(grows, bool):
            raise ConfigError("grows", f"must be True or False, got {grows!r}")
        if max_context is not None:
            max_context = whole("max_context", max_context, 2, 2**31 - 1)
            if not grows:
                raise ConfigError("max_context", "requires grows=True; leave it out")
        think = duration("think", think)
        return cls(
            int(sessions),
            arrivals,
            distributions[0],
            distributions[1],
            distributions[2],
            think,
            grows,
            max_context,
        )

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {name: _described(value) for name, value in self._fields()}

    def __repr__(self) -> str:
        """Return the call that creates it."""
        return f"Workload.sessions({', '.join(f'{name}={value!r}' for name, value in self._fields())})"

    def _fields(self) -> list[tuple[str, Any]]:
        return [(field.name, getattr(self, field.name)) for field in dataclasses.fields(self)]

    @property
    def columns(self) -> list[str]:
        """Columns of conversations."""
        named = ["arrival_s", "prompt_tokens", "output_tokens", "session_id", "turn", "think_s"]
        return named if self._always_continues else [*named, "continues"]

    @property
    def _always_continues(self) -> bool:
        """Whether every prompt begins with the whole conversation before it."""
        return self.grows and self.max_context is None

    def draw(self, seed: int) -> pl.DataFrame:
        """Return the canonical frame for `seed`."""
        form = self.to_json() | {"think": duration_form(self.think)}
        columns = _core.draw_sessions(json.dumps(form), seed)
        names = [name for name in self.columns if name != "continues"]
        frame = pl.DataFrame({name: columns[name] for name in names}).with_columns(
            pl.col("session_id").cast(pl.Int64), think_s=pl.when(pl.col("turn") > 0).then("think_s")
        )
        if self._always_continues:
            return frame
        frame = frame.with_columns(pl.int_range(pl.len(), dtype=pl.Int32).alias("continues"))
        context = (pl.col("prompt_tokens") + pl.col("output_tokens")).shift(1).over("session_id")
        carries = pl.lit(self.grows) & (pl.col("prompt_tokens") > context)
        if self.max_context is not None:  # a full context may have dropped its oldest tokens
            carries &= pl.col("prompt_tokens") + pl.col("output_tokens") < self.max_context
        return frame.with_columns(
            continues=pl.when(carries).then(pl.col("continues").shift(1).over("session_id"))
        )


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Mix(Recipe):
    """Classes of requests, merged by arrival."""

    parts: tuple[tuple[str, Workload], ...]
    requests: int | None

    @classmethod
    def of(cls, parts: Mapping[str, Workload], requests: int | None) -> Mix:
        """Check the arguments of `Workload.mix`."""
        from inferq.workload.workload import Workload

        if not isinstance(parts, Mapping) or not parts:
            raise ConfigError("parts", f"must be a mapping of class names to workloads, got {parts!r}")
        for name, part in parts.items():
            if not isinstance(name, str) or not name:
                raise ConfigError("parts", f"class names must be strings, got {name!r}")
            if not isinstance(part, Workload):
                raise ConfigError(f"parts[{name!r}]", f"must be a Workload, got {type(part).__name__}")
        if requests is not None:
            requests = whole("requests", requests, 1, _MOST)
        return cls(tuple(parts.items()), requests)

    @property
    def is_synthetic(self) -> bool:
        """Whether the requests depend on the seed."""
        return any(part.is_synthetic for _, part in self.parts)

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        parts = {name: part.to_json() for name, part in self.parts}
        return {"mix": parts, "requests": self.requests}

    def __repr__(self) -> str:
        """Return the call that creates it."""
        parts = ", ".join(f"{name!r}: {part!r}" for name, part in self.parts)
        requests = "" if self.requests is None else f", requests={self.requests}"
        return f"Workload.mix({{{parts}}}{requests})"

    @property
    def columns(self) -> list[str]:
        """Columns of the frame for seed 0."""
        return self.draw(0).columns

    def draw(self, seed: int) -> pl.DataFrame:
        """Return the canonical frame for `seed`."""
        names = [f"part {name!r}" for name, _ in self.parts]
        frames = []
        for (name, _), frame in zip(self.parts, self._frames(seed), strict=True):
            if "session_id" in frame.columns:
                own = pl.lit(f"{name}/") + pl.col("session_id").cast(pl.String)
                frame = frame.with_columns(session_id=own)
            frames.append(transforms.with_classes(frame, seed, name))
        merged = transforms.merged(frames, "mix", names)
        if self.requests is None:
            return merged
        if merged.height < self.requests:
            raise TraceError(
                "mix", f"requests is {self.requests}, must be at most {merged.height}, the sum of all parts"
            )
        return transforms.head(merged, seed, self.requests)

    def _frames(self, seed: int) -> list[pl.DataFrame]:
        """Return the requests of each part, enough for the first `requests` of the mix."""
        drawn = [_Part(name, part, subseed(seed, "mix", name), self.requests) for name, part in self.parts]
        if self.requests is not None:
            for part in drawn:
                part.draw(-(-self.requests // len(drawn)))
            # The last request of the mix arrives at `latest` or before. A part that is drawn only up to
            # `latest` may lack requests that arrive by then, also at that instant.
            while True:
                latest = _nth([part.arrivals for part in drawn], self.requests)
                short = [part for part in drawn if part.is_extendable and part.last <= latest]
                if not short:
                    break
                for part in short:
                    part.draw(2 * part.frame.height)
        return [part.frame for part in drawn]


class _Part:
    """Part of a mix that is drawn incrementally."""

    def __init__(self, name: str, part: Workload, seed: int, most: int | None) -> None:
        self.seed, self.most, self.part = seed, most, part
        self.endless = most is not None and part._is_extendable
        self.frame = part.draw(seed).frame if not self.endless else part._first(1, seed)
        if "arrival_s" not in self.frame.columns:
            raise TraceError("mix", f"part {name!r} has no arrival_s: use .with_arrivals(…)")

    def draw(self, requests: int) -> None:
        """Draw the first `requests` of the part, but at most the number that the mix can use."""
        assert self.most is not None
        if self.endless:
            self.frame = self.part._first(min(requests, self.most), self.seed)

    @property
    def is_extendable(self) -> bool:
        """Whether the mix could use more requests than are drawn."""
        return self.endless and self.frame.height != self.most

    @property
    def last(self) -> float:
        """Last arrival drawn so far."""
        return float(self.arrivals[-1])

    @property
    def arrivals(self) -> NDArray[np.float64]:
        """Arrivals drawn so far."""
        arrivals: NDArray[np.float64] = self.frame["arrival_s"].to_numpy()
        return arrivals


def _nth(arrivals: list[NDArray[np.float64]], n: int) -> float:
    """Return the n-th of all arrivals; infinity if there are fewer."""
    merged = np.concatenate(arrivals)
    return float(np.partition(merged, n - 1)[n - 1]) if n <= merged.size else math.inf


def _arrivals(arrivals: object) -> None:
    if not isinstance(arrivals, ArrivalProcess):
        raise ConfigError(
            "arrivals", f"must be an arrival process such as Poisson(rate=10), got {arrivals!r}"
        )


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Step:
    """Transform that is applied when the workload is drawn: its name in `transforms.APPLY`, its arguments."""

    transform: str
    arguments: dict[str, Any]

    def __repr__(self) -> str:
        """Return the call that creates it."""
        arguments = ", ".join(f"{name}={_brief(value)}" for name, value in self.arguments.items())
        return f"{self.transform}({arguments})"

    @property
    def is_by_row(self) -> bool:
        """Whether the first rows do not depend on the number of later rows."""
        by_row = self.transform in (
            "speed",
            "with_lengths",
            "with_classes",
            "with_think",
            "with_patience",
            "with_prefix",
            "open_loop",
        )
        return by_row and not any(isinstance(value, pl.Series) for value in self.arguments.values())

    def to_json(self) -> dict[str, Any]:
        """Return the call as JSON-ready data: `kind` is the method of `Workload`."""
        kind, arguments = self.transform, dict(self.arguments)
        if kind == "with_lengths":
            column = arguments.pop("name").removesuffix("_tokens") + "s"
            kind, arguments = f"with_{column}", {column: arguments["lengths"]}
        elif kind == "part":
            kind, arguments = "split", {"at": arguments["at"], "part": int(arguments["second"])}
        elif kind in ("sample", "spread"):
            arguments["seed"] = arguments.pop("draw")
        elif kind == "concat":
            del arguments["step"]
        return {"kind": kind, **{name: _described(value) for name, value in arguments.items()}}

    def workloads(self) -> Iterator[Workload]:
        """Yield the workloads among the arguments."""
        yield from self.arguments.get("others", ())

    def rows(self) -> Iterator[pl.DataFrame]:
        """Yield the values that the description names by their SHA-256."""
        for value in self.arguments.values():
            if isinstance(value, pl.Series) and "sha256" in _described(value):
                yield value.to_frame()


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """Trace that a fixed workload was read from, and the transforms applied to it since."""

    table: dict[str, Any]
    """Arguments of `read_trace`, and the detected format."""

    frame: pl.DataFrame
    steps: tuple[Step, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready data with the SHA-256 of the requests."""
        return {**self.table, "sha256": sha256(self.frame)}


def _brief(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(_brief(entry) for entry in value)})"
    return f"<{value.len()} values>" if isinstance(value, pl.Series) else repr(value)


def _described(value: Any) -> Any:
    if isinstance(value, pl.Series):
        values = value.to_list()
        if len(values) <= rows.MOST_WRITTEN_OUT and as_series(value.name, values).equals(
            value, check_dtypes=True
        ):
            return {"values": values}
        return {"rows": len(values), "sha256": sha256(value.to_frame())}
    if isinstance(value, Description):
        return value.to_json()
    if isinstance(value, tuple):  # the workloads of a merge
        return [workload.to_json() for workload in value]
    if isinstance(value, float) and value == float("inf"):
        return None  # the open end of a window; JSON has no infinity
    return value
