"""Which requests are served, and when do they arrive?

A `Workload` is either **fixed** (a frame of requests) or a **law** (drawn from the seed of the run). Both are
immutable; every verb returns a new workload. On a fixed workload a verb without chance acts at once;
everything else is recorded and done when the workload is drawn, so the same seed gives the same requests
under every scheduler.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from inferq import verbs
from inferq.columns import as_frame, as_series, checked, quantities
from inferq.errors import ConfigError, TraceError
from inferq.law import ArrivalLaw, Empirical, LengthLaw
from inferq.recipe import Law, Step, sha256
from inferq.verbs import finite, positive, whole

if TYPE_CHECKING:
    import polars as pl

__all__ = ["Workload"]

_FILLED_BY = {
    "arrival_s": "use .with_arrivals(iq.Poisson(rate=…)) or another law of arrivals",
    "prompt_tokens": "use .with_prompts(iq.Fixed(…)) or another law of lengths",
    "output_tokens": "use .with_outputs(iq.Fixed(…)) or another law of lengths",
}

_NOT_SIMULATED = {
    "think_s": "sessions that wait for their answer (closed loop) are not simulated yet; "
    "drop the column to replay every turn at its own arrival_s",
}


@dataclass(frozen=True, init=False, repr=False, eq=False, slots=True)
class Workload:
    """Requests: a fixed frame, or a law that is drawn from the seed when simulated.

    Args:
        data: a polars or pandas frame or a dict of columns, sorted by arrival. A run needs `arrival_s`,
            `prompt_tokens` and `output_tokens`; those that are not there are filled by `with_arrivals`,
            `with_prompts` and `with_outputs`. All other columns are optional:

            | column | meaning |
            |---|---|
            | `arrival_s` | seconds, 0 or above, sorted; the core takes the nearest nanosecond, half to even |
            | `prompt_tokens`, `output_tokens` | tokens, at least 1; their sum at most 2³¹ − 1 |
            | `class` | name of the request's class |
            | `priority` | whole number; lower is served first by policies that look at it |
            | `session_id`, `turn` | conversation (text or whole number) and turn in it, from 0 |
            | `think_s` | seconds from an answer to the next turn; a run refuses it until it can honour it |
            | `prefix_hashes`, `prefix_block_tokens` | the prompt's leading blocks, tokens in a block |
            | `prefix_parts` | lists; parts of the prompt that are shared |
            | `continues` | row (from 0) with whose prompt and output this prompt begins |
            | `max_output_tokens` | most tokens that the request may generate, as its scheduler knows it |
            | `patience_s` | seconds that it waits for admission; null for ever |
            | `ttft_slo_s`, `tbt_slo_s` | objectives in seconds; null for none |

            The columns about prefixes act where the KV cache has a prefix cache; elsewhere they are
            carried along.

    Raises:
        TraceError: naming the row and the column of the first wrong value, or an unknown column.
        ConfigError: for data that is no table.

    Source: the columns are those of the public serving traces that `read_trace` reads.

    Example:
        >>> import inferq as iq
        >>> chat = iq.Workload({"arrival_s": [0.0, 0.5], "prompt_tokens": [30, 80], "output_tokens": [10, 4]})
        >>> chat
        Workload(2 requests, 0.5 s, 2 per second)
        >>> even = iq.Deterministic(rate=2)
        >>> law = iq.Workload.law(requests=3, arrivals=even, prompt=iq.Fixed(9), output=iq.Fixed(5))
        >>> law.draw(seed=1).frame["arrival_s"].to_list()
        [0.5, 1.0, 1.5]
    """

    _source: Any  # a canonical frame or a `Law`
    _steps: tuple[Step, ...]
    _metadata: dict[str, Any]
    _digest: list[str]

    def __init__(self, data: object) -> None:
        """Check the columns and bring them to their types."""
        if isinstance(data, Workload):
            raise ConfigError("workload: is a Workload already")
        self._fill(checked(as_frame(data)), (), {})

    def _fill(self, source: pl.DataFrame | Law, steps: tuple[Step, ...], metadata: dict[str, Any]) -> None:
        object.__setattr__(self, "_source", source)
        object.__setattr__(self, "_steps", steps)
        object.__setattr__(self, "_metadata", metadata)
        object.__setattr__(self, "_digest", [])

    @classmethod
    def _of(
        cls, source: pl.DataFrame | Law, steps: tuple[Step, ...] = (), metadata: dict[str, Any] | None = None
    ) -> Workload:
        """A workload of a frame that is canonical and right already, or of a law."""
        made = cls.__new__(cls)
        made._fill(source, steps, metadata or {})
        return made

    @classmethod
    def law(
        cls,
        *,
        requests: int,
        arrivals: ArrivalLaw,
        prompt: LengthLaw | None = None,
        output: LengthLaw | None = None,
        lengths: Empirical | None = None,
    ) -> Workload:
        """A workload drawn from laws: `prompt` and `output` apart, or joint `lengths`.

        Args:
            requests: how many, at least 1.
            arrivals: law of arrival times.
            prompt: law of prompt tokens.
            output: law of output tokens.
            lengths: joint law of both, instead of `prompt` and `output`.

        Raises:
            ConfigError: naming the argument.

        Example:
            >>> import inferq as iq
            >>> w1 = iq.Workload.law(
            ...     requests=1000,
            ...     arrivals=iq.Poisson(rate=10),
            ...     prompt=iq.Lognormal(mean=230, median=90, cap=4096),
            ...     output=iq.Lognormal(mean=250, median=150, cap=4096),
            ... )
            >>> w1.draw(seed=7).frame.height
            1000
        """
        whole("requests", requests, 1, 2**32 - 1)
        if not isinstance(arrivals, ArrivalLaw):
            raise ConfigError(
                f"arrivals: must be a law of arrivals such as Poisson(rate=10), not {arrivals!r}"
            )
        if lengths is not None:
            if prompt is not None or output is not None:
                raise ConfigError("lengths: is joint; give it alone, or prompt and output")
            if not isinstance(lengths, Empirical):
                raise ConfigError(f"lengths: must be an Empirical law, not {lengths!r}")
            return cls._of(Law(int(requests), arrivals, (("lengths", lengths),)))
        for name, one in (("prompt", prompt), ("output", output)):
            if not isinstance(one, LengthLaw) or isinstance(one, Empirical):
                raise ConfigError(f"{name}: must be a law of one length such as Fixed(100), not {one!r}")
        assert prompt is not None and output is not None
        return cls._of(Law(int(requests), arrivals, (("prompt", prompt), ("output", output))))

    @property
    def is_law(self) -> bool:
        """Whether it has random parts, so that `draw` depends on the seed."""
        return isinstance(self._source, Law) or bool(self._steps)

    @property
    def frame(self) -> pl.DataFrame:
        """The requests of a fixed workload, one row each; a law must be drawn first.

        Raises:
            ConfigError: for a law.
        """
        if self.is_law:
            raise ConfigError("workload: is a law, its frame depends on the seed: use .draw(seed).frame")
        frame: pl.DataFrame = self._source
        return frame

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Where the requests come from: file, format, what was left out, token count, verbs applied."""
        return MappingProxyType(self._metadata)

    def draw(self, seed: int = 0) -> Workload:
        """The fixed workload that a run with this seed replays; a fixed workload is its own draw.

        Example:
            >>> import inferq as iq
            >>> lengths = iq.Workload({"prompt_tokens": [100, 200], "output_tokens": [5, 6]})
            >>> law = lengths.with_arrivals(iq.Poisson(rate=1))
            >>> law.draw(3).frame.equals(law.draw(3).frame)
            True
        """
        whole("seed", seed, 0, 2**64 - 1)
        if not self.is_law:
            return self
        source = self._source
        frame = source.draw(seed) if isinstance(source, Law) else source
        for step in self._steps:
            frame = verbs.APPLY[step.verb](frame, seed, **step.arguments)
        metadata = dict(self._metadata)
        if isinstance(source, Law):
            metadata["law"] = repr(source)
        return Workload._of(frame, metadata={**metadata, "seed": int(seed), **self._changes(*self._steps)})

    def ready(self, seed: int = 0) -> pl.DataFrame:
        """The frame of `draw(seed)`, refused where a run could not replay it. `simulate` calls this.

        Raises:
            TraceError: naming a missing column and the verb that fills it.
            ConfigError: naming a column that a run cannot honour.
        """
        frame = self.draw(seed).frame
        for name, how in _FILLED_BY.items():
            if name not in frame.columns:
                raise TraceError(f"workload: no {name}: {how}")
        for name, why in _NOT_SIMULATED.items():
            if name in frame.columns and frame[name].null_count() < frame.height:
                raise ConfigError(f"workload.{name}: {why}")
        return frame

    def at_rate(self, rate: float) -> Workload:
        """Scale all arrival times so that the mean rate, (n − 1) / (last − first), becomes `rate`.

        It is `speed(rate / present mean rate)`. For a law it acts on the drawn arrivals, whose mean rate is
        then `rate` exactly; to change the law itself, change its `arrivals`.

        Args:
            rate: requests per second, above 0 and finite.

        Raises:
            ConfigError: naming `rate`.
            TraceError: without arrivals at two different instants.

        Example:
            >>> import inferq as iq
            >>> work = iq.Workload({"arrival_s": [0, 1, 4], "prompt_tokens": [1, 1, 1]})
            >>> work.at_rate(4).frame["arrival_s"].to_list()
            [0.0, 0.125, 0.5]
        """
        return self._then("at_rate", rate=positive("rate", rate))

    def speed(self, factor: float) -> Workload:
        """Divide all arrival times by `factor`: 2 sends the same requests in half the time.

        Each time is divided once in float64; the core then takes it to the nearest nanosecond.

        Raises:
            ConfigError: unless `factor` is above 0 and finite.
        """
        return self._then("speed", factor=positive("factor", factor))

    def window(self, start_s: float = 0.0, end_s: float = math.inf) -> Workload:
        """The requests with `start_s` ≤ arrival < `end_s`, on a clock that starts at `start_s`.

        A request that continues one before the window continues nothing.

        Raises:
            ConfigError: unless `start_s` < `end_s`.
            TraceError: when no request is left.
        """
        start = finite("start_s", start_s)
        end = math.inf if end_s == math.inf else finite("end_s", end_s)
        if not start < end:
            raise ConfigError(f"end_s: must be above start_s, {start}, not {end}")
        return self._then("window", start_s=start, end_s=end)

    def head(self, n: int) -> Workload:
        """The first `n` requests, or all where there are fewer.

        Raises:
            ConfigError: for `n` below 1.
        """
        return self._then("head", n=whole("n", n, 1, 2**63 - 1))

    def sample(self, n: int, seed: int) -> Workload:
        """`n` requests drawn with replacement, from a seed of its own (not that of the run).

        With arrivals the drawn requests keep theirs and come in that order; without, they come as drawn.

        Raises:
            ConfigError: naming `n` or `seed`.
        """
        return self._then("sample", n=whole("n", n, 1, 2**32 - 1), draw=whole("seed", seed, 0, 2**64 - 1))

    def with_arrivals(self, arrivals: Any) -> Workload:
        """The same requests in the same order, arriving by a law or at given times.

        Args:
            arrivals: a law such as `Poisson(rate=…)`, or one time in seconds for each request, sorted.

        Raises:
            TraceError: naming the wrong row.
        """
        return self._with("with_arrivals", "arrival_s", arrivals, ArrivalLaw, "arrivals")

    def with_prompts(self, prompts: Any) -> Workload:
        """The same requests with other prompt lengths: a law, one number for all, or one number each."""
        return self._with(
            "with_lengths", "prompt_tokens", prompts, LengthLaw, "lengths", name="prompt_tokens"
        )

    def with_outputs(self, outputs: Any) -> Workload:
        """The same requests with other output lengths: a law, one number for all, or one number each.

        An `Empirical` law gives its outputs here, drawn apart from the prompts.

        Example:
            >>> import inferq as iq
            >>> documents = iq.Workload({"arrival_s": [0, 1], "prompt_tokens": [9000, 400]})
            >>> documents.with_outputs(128).frame["output_tokens"].to_list()
            [128, 128]
        """
        return self._with(
            "with_lengths", "output_tokens", outputs, LengthLaw, "lengths", name="output_tokens"
        )

    def with_classes(self, classes: Any) -> Workload:
        """The same requests with classes: one name for all, one name each, or drawn from `{name: share}`.

        Raises:
            ConfigError: when shares are negative or do not add up to 1.
            TraceError: when there are not as many names as requests.

        Example:
            >>> import inferq as iq
            >>> work = iq.Workload({"prompt_tokens": [5] * 4}).with_classes({"chat": 0.5, "code": 0.5})
            >>> set(work.draw(seed=1).frame["class"]) <= {"chat", "code"}
            True
        """
        if isinstance(classes, Mapping):
            shares = {}
            for name, share in classes.items():
                if not isinstance(name, str):
                    raise ConfigError(f"classes: names must be text, not {name!r}")
                shares[name] = finite(f"classes[{name!r}]", share)
                if shares[name] < 0:
                    raise ConfigError(f"classes[{name!r}]: must not be negative, is {share!r}")
            if abs(math.fsum(shares.values()) - 1) > 1e-9:
                raise ConfigError(f"classes: shares must add up to 1, not {math.fsum(shares.values())}")
            return self._then("with_classes", chance=True, classes=shares)
        if not isinstance(classes, str):
            classes = as_series("class", classes)
        return self._then("with_classes", classes=classes)

    def split(self, at: int | float) -> tuple[Workload, Workload]:
        """Two workloads: the first `at` requests (an int), or that share of them (a float), and the rest.

        Both keep their arrival times, so `first.concat(rest)` is the whole again, except that
        requests of the rest which continued one of the first part continue nothing.

        Raises:
            ConfigError: for a share outside (0, 1) or a number below 1.
            TraceError: when one part would be empty.
        """
        if isinstance(at, float):
            if not 0 < at < 1:
                raise ConfigError(f"at: a share must lie between 0 and 1, not {at}")
            cut: int | float = at
        else:
            cut = whole("at", at, 1, 2**63 - 1)
        return self._then("part", at=cut, second=False), self._then("part", at=cut, second=True)

    def concat(self, *others: Workload) -> Workload:
        """All requests of this and the other workloads, merged by arrival; at one instant in the order given.

        Laws among the others draw from seeds of their own, so two equal laws give different requests. Columns
        that only some have are null for the rest (`priority` is 0); `class`, arrivals and lengths must be in
        all or none. Sessions and prefix hashes with equal identities are taken to be the same.

        Raises:
            ConfigError: for something that is no workload.
            TraceError: naming a column that only some have.

        Example:
            >>> import inferq as iq
            >>> chat = iq.Workload({"arrival_s": [0, 2], "prompt_tokens": [50, 60]}).with_classes("chat")
            >>> code = iq.Workload({"arrival_s": [1], "prompt_tokens": [900]}).with_classes("code")
            >>> chat.concat(code).frame["class"].to_list()
            ['chat', 'code', 'chat']
        """
        for other in others:
            if type(other) is not Workload:
                raise ConfigError(f"concat: takes workloads, not {type(other).__name__}")
        chance = any(one.is_law for one in others)
        return self._then("concat", chance=chance, others=others, step=len(self._steps))

    def describe(self) -> pl.DataFrame:
        """Its lengths, gaps and rate: one row per quantity.

        Columns: `column, count, mean, cv, p50, p90, p99, min, max` (`cv`: standard deviation over mean;
        percentiles are linear). Rows: `prompt_tokens`, `output_tokens`, `gap_s` (seconds between successive
        arrivals) and `rate_per_s`, whose `mean` is (n − 1) / (last − first).

        Raises:
            ConfigError: for a law, which must be drawn first.

        Example:
            >>> import inferq as iq
            >>> work = iq.Workload({"arrival_s": [0, 1, 4], "prompt_tokens": [10, 20, 60]})
            >>> work.describe().select("column", "count", "mean", "p50").rows()
            [('prompt_tokens', 3, 30.0, 20.0), ('gap_s', 2, 2.0, 2.0), ('rate_per_s', 3, 0.5, None)]
        """
        return quantities(self.frame)

    def describe_json(self) -> dict[str, Any]:
        """JSON-ready data that says which workload it is: a law in full, a frame by rows and SHA-256."""
        source = self._source
        if isinstance(source, Law):
            described: dict[str, Any] = {"kind": "Law", "law": source.describe()}
        else:
            described = {
                "kind": "Frame",
                "rows": source.height,
                "columns": source.columns,
                "sha256": self.sha256(),
            }
        if self._metadata:
            described["metadata"] = self._metadata
        if self._steps:
            described["steps"] = [step.describe() for step in self._steps]
        return described

    def sha256(self) -> str:
        """SHA-256 over the columns of its frame, before the verbs that wait for the draw."""
        if not self._digest:
            if isinstance(self._source, Law):
                raise ConfigError("workload: is a law, which has no columns before it is drawn")
            self._digest.append(sha256(self._source))
        return self._digest[0]

    def __repr__(self) -> str:
        """Its size and rate, or the calls that make it."""
        source = self._source
        if isinstance(source, Law):
            text = repr(source)
        else:
            text = f"Workload({source.height} requests"
            if "arrival_s" in source.columns:
                span = source["arrival_s"][-1] - source["arrival_s"][0]
                text += f", {span:.6g} s" + (
                    f", {(source.height - 1) / span:.4g} per second" if span > 0 else ""
                )
            else:
                text += ", no arrivals"
            text += ")"
        return ".".join([text, *(repr(step) for step in self._steps)])

    def _then(self, verb: str, *, chance: bool = False, **arguments: Any) -> Workload:
        step = Step(verb, arguments)
        if chance or self.is_law:
            return Workload._of(self._source, (*self._steps, step), self._metadata)
        frame = verbs.APPLY[verb](self._source, 0, **arguments)
        return Workload._of(frame, metadata={**self._metadata, **self._changes(step)})

    def _with(self, verb: str, column: str, values: Any, law: type, what: str, **arguments: Any) -> Workload:
        if isinstance(values, (ArrivalLaw, LengthLaw)):
            if not isinstance(values, law):
                raise ConfigError(f"{column}: takes a law of {what}, not {values!r}")
            return self._then(verb, chance=True, **arguments, **{what: values})
        if isinstance(values, str) or values is None:
            raise ConfigError(f"{column}: must be a law or one number for each request, not {values!r}")
        if what == "lengths" and not hasattr(values, "__len__"):
            values = whole(column, values, 1, 2**31 - 1)
        else:
            values = as_series(column, values)
        return self._then(verb, **arguments, **{what: values})

    def _changes(self, *steps: Step) -> dict[str, list[str]]:
        return (
            {"changes": [*self._metadata.get("changes", []), *(repr(step) for step in steps)]}
            if steps
            else {}
        )
