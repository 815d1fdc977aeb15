"""Fixed and synthetic workloads, and their transforms.

A `Workload` is either **fixed** (a frame of requests) or **synthetic** (drawn from the seed of the run). Both
are immutable; every transform returns a new workload. A deterministic transform of a fixed workload is
applied immediately. All others are recorded and applied when the workload is drawn, so the same seed gives
the same requests under every scheduler. `inferq.workload.transforms` implements the transforms.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from inferq._lazy import pl
from inferq.checks import finite, positive, whole
from inferq.display.notebook import Viewed
from inferq.errors import ConfigError, NotThereError, TraceError
from inferq.workload import rows, transforms
from inferq.workload.clock import with_seconds
from inferq.workload.columns import MOST_TOKENS, Table, as_frame, as_series, checked, quantities, sha256
from inferq.workload.distributions import ArrivalProcess, DurationDistribution, Empirical, LengthDistribution
from inferq.workload.generated import Mix, Origin, Recipe, Sessions, Step, Synthetic
from inferq.workload.parts import FrameParts, Parts, Scanned, SyntheticParts
from inferq.workload.prefixes import EXPLICIT, is_linked_by_session, reused
from inferq.workload.transforms import duration

__all__ = ["Workload"]

_FILLED_BY = {
    "arrival_s": "use .with_arrivals(iq.dist.Poisson(rate=…)) or another arrival process",
    "prompt_tokens": "use .with_prompts(iq.dist.Fixed(…)) or another distribution of lengths",
    "output_tokens": "use .with_outputs(iq.dist.Fixed(…)) or another distribution of lengths",
}

_NEEDED = ("arrival_s", "prompt_tokens", "output_tokens")


def _need(columns: Sequence[str], needs: Sequence[str] = _NEEDED) -> None:
    """Raise a `TraceError` for the first missing column, with the transform that fills it."""
    for name in needs:
        if name not in columns:
            fix = _FILLED_BY.get(name)
            raise TraceError("workload", f"no {name}{f': {fix}' if fix else ''}")


@dataclass(frozen=True, init=False, repr=False, eq=False, slots=True)
class Workload(Viewed):
    """Requests of a run: a fixed frame, or synthetic requests drawn from the seed.

    Args:
        data: a frame of polars (also lazy), pandas or pyarrow, a dict of columns or a list of dicts, sorted
            by arrival. Dates and Unix timestamps become seconds since the first arrival, which every run
            reports. A run requires `arrival_s`, `prompt_tokens` and `output_tokens`; `with_arrivals`,
            `with_prompts` and `with_outputs` fill missing ones. All other columns are optional:

            | column | meaning |
            |---|---|
            | `arrival_s` | seconds, non-negative, sorted; rounded to nanoseconds, half to even |
            | `prompt_tokens`, `output_tokens` | tokens, at least 1; their sum at most 2³¹ − 1 |
            | `class` | name of the request's class |
            | `priority` | integer; priority policies serve lower values first |
            | `session_id`, `turn` | conversation (string or integer) and turn in it, from 0 |
            | `think_s` | closed loop: seconds from the end of the session's previous row to this row |
            | `prefix_hashes`, `prefix_block_tokens` | hashes of the prompt's blocks, tokens per block |
            | `prefix_parts` | lists of shared parts of the prompt |
            | `continues` | row (from 0) whose prompt and output are the prefix of this prompt |
            | `max_output_tokens` | limit of output tokens, known to the scheduler |
            | `accepted` | list of accepted draft tokens per decode step, see `Speculation` |
            | `proposal_rate` | share of decode steps with n-gram proposals, 0 to 1, see `Speculation` |
            | `patience_s` | maximum wait for admission in seconds; null for no limit |
            | `cancel_s` | seconds from arrival until the client cancels; null for never |
            | `ttft_slo_s`, `itl_slo_s` | SLOs in seconds; null for none. `tbt_slo_s` is an alias |

            A row with `think_s` and an earlier row of its session arrives `think_s` after that row finishes;
            its own `arrival_s` only determines its position. If that row is rejected, abandoned or
            unfinished, the row never arrives. `open_loop` drops the column.

            A policy that plans a batch while the previous one runs foresees the end of a request whose
            output reaches `max_output_tokens` or fills `max_model_len`. Any other end is a stop token, also
            if the column is missing or null. SGLang's policy reserves memory for `max_output_tokens`,
            with and without overlap. No other policy reads the column.

            A request that is canceled before its first admission leaves immediately, otherwise with its next
            token. Its status is `abandoned`.

            The prefix columns have an effect only if the KV cache has a prefix cache. A row uses one of
            three columns. `prefix_hashes` has one hash for each block of `prefix_block_tokens` tokens (the
            same size in all rows; a partial last block may have a hash). `prefix_parts` has pairs of a text's
            name and the number of its leading tokens. `continues` names an earlier row. The rest of the
            prompt is not shared. If none of these columns exists, a turn of a session (`session_id` and
            `turn`) starts with the prompt and output of the previous turn, if its prompt is long enough.

    Raises:
        TraceError: a column is unknown or a value is wrong; it names the row and the column.
        ConfigError: the data is not a table.

    Source: the columns are those of the public serving traces that `read_trace` reads.

    Example:
        >>> import inferq as iq
        >>> chat = iq.Workload({"arrival_s": [0.0, 0.5], "prompt_tokens": [30, 80], "output_tokens": [10, 4]})
        >>> chat
        Workload(2 requests, 0.5 s, 2 per second)
        >>> even = iq.dist.Deterministic(rate=2)
        >>> lengths = {"prompt": iq.dist.Fixed(9), "output": iq.dist.Fixed(5)}
        >>> workload = iq.Workload.synthetic(requests=3, arrivals=even, **lengths)
        >>> workload.draw(seed=1).frame["arrival_s"].to_list()
        [0.5, 1.0, 1.5]
    """

    _source: Any  # a canonical frame, a `Scanned` file or a `Recipe`
    _steps: tuple[Step, ...]
    _metadata: dict[str, Any]
    _origin: Origin | None
    _digest: list[str]

    def __init__(self, data: Table) -> None:
        """Check the columns and convert them to their types."""
        if isinstance(data, Workload):
            raise ConfigError("workload", "must be a table, got a Workload; use it directly")
        frame, note = with_seconds(as_frame(data))
        self._fill(checked(frame), (), {} if note is None else {"times": [note]})

    def _fill(
        self,
        source: pl.DataFrame | Scanned | Recipe,
        steps: tuple[Step, ...],
        metadata: dict[str, Any],
        origin: Origin | None = None,
    ) -> None:
        object.__setattr__(self, "_source", source)
        object.__setattr__(self, "_steps", steps)
        object.__setattr__(self, "_metadata", metadata)
        object.__setattr__(self, "_origin", origin)
        object.__setattr__(self, "_digest", [])

    @classmethod
    def _of(
        cls,
        source: pl.DataFrame | Scanned | Recipe,
        steps: tuple[Step, ...] = (),
        metadata: dict[str, Any] | None = None,
        origin: Origin | None = None,
    ) -> Workload:
        """Create a workload from a checked canonical frame or from a recipe."""
        workload = cls.__new__(cls)
        workload._fill(source, steps, metadata or {}, origin)
        return workload

    @classmethod
    def synthetic(
        cls,
        *,
        requests: int,
        arrivals: ArrivalProcess,
        prompt: LengthDistribution | None = None,
        output: LengthDistribution | None = None,
        lengths: Empirical | None = None,
    ) -> Workload:
        """Create a workload from distributions: `prompt` and `output`, or joint `lengths`.

        Without any of the three, the workload has arrivals only, for the jobs of a `Network`.

        Args:
            requests: number of requests, at least 1.
            arrivals: arrival process.
            prompt: distribution of prompt tokens.
            output: distribution of output tokens.
            lengths: joint distribution of both, instead of `prompt` and `output`.

        Raises:
            ConfigError: an argument is wrong.

        Example:
            >>> import inferq as iq
            >>> w1 = iq.Workload.synthetic(
            ...     requests=1000,
            ...     arrivals=iq.dist.Poisson(rate=10),
            ...     prompt=iq.dist.Lognormal(mean=230, median=90, cap=4096),
            ...     output=iq.dist.Lognormal(mean=250, median=150, cap=4096),
            ... )
            >>> w1.draw(seed=7).frame.height
            1000
            >>> iq.Workload.synthetic(requests=2, arrivals=iq.dist.Deterministic(rate=1)).draw().frame.columns
            ['arrival_s']
        """
        return cls._of(Synthetic.of(requests, arrivals, prompt, output, lengths))

    @classmethod
    def scan(cls, path: str | os.PathLike[str]) -> Workload:
        """Create a workload from Parquet files that are read lazily, part by part.

        A run with `simulate(..., out=…)` has one part in memory at a time and checks each part. `frame`,
        transforms and runs without `out` read all rows.

        Args:
            path: a Parquet file, or a folder of files in the order of their names, with the columns of a
                workload, such as the `workload.parquet` of `Result.write`.

        Raises:
            TraceError: the file is not Parquet, has an unknown column or no rows. Wrong values are reported
                when they are read.
            FileNotFoundError: the file does not exist.

        Example:
            >>> import inferq as iq, pathlib, tempfile
            >>> lengths = {"prompt_tokens": [30, 8], "output_tokens": [9, 4]}
            >>> work = iq.Workload({"arrival_s": [0.0, 0.5], **lengths})
            >>> path = pathlib.Path(tempfile.mkdtemp()) / "requests.parquet"
            >>> work.frame.write_parquet(path)
            >>> iq.Workload.scan(path).frame.equals(work.frame)
            True
        """
        return cls._of(Scanned(path))

    @classmethod
    def sessions(
        cls,
        *,
        sessions: int,
        arrivals: ArrivalProcess,
        turns: int | LengthDistribution,
        prompt: int | LengthDistribution,
        output: int | LengthDistribution,
        think: float | DurationDistribution,
        grows: bool = True,
        max_context: int | None = None,
    ) -> Workload:
        """Create conversations in a closed loop: users send each turn a think time after the previous answer.

        The frame has one row per turn, with `session_id` and `turn` from 0 and `think_s` (null for turn 0),
        sorted by (`arrival_s`, session, turn). The `arrival_s` of a later turn is its earliest possible
        arrival: the session's start plus think times. Turn t of session s does not depend on the number of
        sessions or on other sessions.

        Args:
            sessions: number of sessions, at least 1.
            arrivals: arrival process of the sessions' starts.
            turns: turns of a session: a number, or a length distribution that counts turns.
            prompt: tokens that the user adds in a turn: a number or a distribution.
            output: tokens of an answer: a number or a distribution.
            think: seconds from an answer to the next turn: a number or a distribution.
            grows: each prompt contains the conversation so far (all prompts and answers) before the tokens
                that the user adds.
            max_context: with `grows`: maximum tokens of a prompt and its answer. Longer conversations drop
                their oldest tokens, as chat services do: the prompt becomes `max_context` minus the answer.

        Raises:
            ConfigError: an argument is wrong. When drawn: a turn's own tokens exceed `max_context`, or a
                conversation exceeds 2³¹ − 1 tokens.

        Source: the closed loop of chat users; multi-turn benchmarks of serving engines.

        Example:
            >>> import inferq as iq
            >>> chat = iq.Workload.sessions(
            ...     sessions=1, arrivals=iq.dist.Deterministic(1), turns=3, prompt=10, output=20, think=5.0
            ... )
            >>> chat.draw().frame.select("arrival_s", "prompt_tokens", "turn", "think_s").rows()
            [(1.0, 10, 0, None), (6.0, 40, 1, 5.0), (11.0, 70, 2, 5.0)]
        """
        return cls._of(Sessions.of(sessions, arrivals, turns, prompt, output, think, grows, max_context))

    @classmethod
    def mix(cls, parts: Mapping[str, Workload], *, requests: int | None = None) -> Workload:
        """Merge workloads by arrival, each as a class of requests.

        Ties are in the order of the parts. The column `class` has the part's name (in place of the part's own
        classes), and a `session_id` becomes `name/id`, so that sessions of different parts stay separate.
        Equal texts and prefix hashes are the same content in all parts. The seed of a part depends only on
        the run's seed and the part's name: other parts do not change its requests.

        Args:
            parts: workloads with arrivals, by class. Columns that only some have are null in the rest
                (`priority` is 0); lengths must be in all or none.
            requests: total number of requests, the first by arrival. Synthetic parts are then drawn as long
                as necessary, regardless of their own number. All other parts (fixed workloads, sessions,
                synthetic workloads with a transform of all rows) keep their end. Default: all requests of
                each part.

        Raises:
            ConfigError: a part or `requests` is wrong.
            TraceError: a part lacks a column, or there are fewer than `requests` requests.

        Source: the request classes of lin2026 and li2025 §4.3: superposed independent streams.

        Example:
            >>> import inferq as iq
            >>> def part(rate, tokens):
            ...     arrivals = iq.dist.Poisson(rate)
            ...     same = iq.dist.Fixed(tokens)
            ...     return iq.Workload.synthetic(requests=100, arrivals=arrivals, prompt=same, output=same)
            >>> both = iq.Workload.mix({"chat": part(8, 50), "code": part(2, 900)}, requests=1000)
            >>> counts = both.draw(1).frame["class"].value_counts().sort("class").rows()
            >>> [name for name, _ in counts], sum(count for _, count in counts)
            (['chat', 'code'], 1000)
        """
        mixed = Mix.of(parts, requests)
        return cls._of(mixed) if mixed.is_synthetic else cls._of(mixed.draw(0), metadata={"mix": repr(mixed)})

    @property
    def is_synthetic(self) -> bool:
        """Whether the requests depend on the seed."""
        return isinstance(self._source, Recipe) or bool(self._steps)

    @property
    def frame(self) -> pl.DataFrame:
        """Requests of a fixed workload, one per row. A synthetic workload must be drawn first.

        Raises:
            ConfigError: the workload is synthetic.
        """
        if self.is_synthetic:
            raise NotThereError(
                "workload", "is synthetic, so its frame depends on the seed: use .draw(seed).frame"
            )
        frame: pl.DataFrame = self._source.frame() if isinstance(self._source, Scanned) else self._source
        return frame

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Origin of the requests: file, format, rows left out, token count, transforms."""
        return MappingProxyType(self._metadata)

    def draw(self, seed: int = 0) -> Workload:
        """Return the fixed workload of a run with this seed. A fixed workload returns itself.

        Example:
            >>> import inferq as iq
            >>> lengths = iq.Workload({"prompt_tokens": [100, 200], "output_tokens": [5, 6]})
            >>> poisson = lengths.with_arrivals(iq.dist.Poisson(rate=1))
            >>> poisson.draw(3).frame.equals(poisson.draw(3).frame)
            True
        """
        import numpy  # noqa: F401  # imported here, not in the core, so that Ctrl-C can interrupt it

        whole("seed", seed, 0, 2**64 - 1)
        if not self.is_synthetic:
            return self
        source = self._source
        frame = source.draw(seed) if isinstance(source, Recipe) else self._source
        for step in self._steps:
            frame = transforms.APPLY[step.transform](frame, seed, **step.arguments)
        metadata = dict(self._metadata)
        if isinstance(source, Recipe):
            metadata["drawn_from"] = repr(source)
        return Workload._of(frame, metadata={**metadata, "seed": int(seed), **self._changes(*self._steps)})

    def ready(self, seed: int = 0, needs: Sequence[str] = _NEEDED) -> pl.DataFrame:
        """Return the frame of `draw(seed)` after checking that a run can replay it. `simulate` calls this.

        Args:
            seed: seed of the run.
            needs: required columns; a network requires only `arrival_s`.

        Raises:
            TraceError: a column is missing; it names the transform that fills it.
        """
        frame = self.draw(seed).frame
        _need(frame.columns, needs)
        return frame

    def parts(self, seed: int = 0) -> Parts:
        """Return the rows of `ready(seed)` in parts. `simulate(..., out=…)` calls this.

        Synthetic workloads without transforms and scanned files are drawn or read on demand. All other
        workloads are in memory: 16 to 24 bytes per request and column.

        Raises:
            TraceError: a column is missing; it names the transform that fills it.
        """
        whole("seed", seed, 0, 2**64 - 1)
        source = self._source
        if isinstance(source, Scanned):
            parts: Parts = source
        elif isinstance(source, Synthetic) and not self._steps:
            parts = SyntheticParts(source.to_json(), source.columns, seed)
        else:
            parts = FrameParts(self.draw(seed).frame)
        _need(parts.columns)
        return parts

    def at_rate(self, rate: float) -> Workload:
        """Scale all arrival times so that the mean rate, (n − 1) / (last − first), becomes `rate`.

        It is `speed(rate / current mean rate)`. For conversations (`think_s`) it scales their starts, and the
        rate is that of starts times the requests of a conversation. For a synthetic workload it scales the
        drawn arrivals, whose mean rate is then exactly `rate`; to change the distribution itself, change its
        `arrivals`.

        Args:
            rate: requests per second, positive and finite.

        Raises:
            ConfigError: `rate` is out of range.
            TraceError: there are no arrivals at two different instants.

        Example:
            >>> import inferq as iq
            >>> work = iq.Workload({"arrival_s": [0, 1, 4], "prompt_tokens": [1, 1, 1]})
            >>> work.at_rate(4).frame["arrival_s"].to_list()
            [0.0, 0.125, 0.5]
        """
        return self._then("at_rate", rate=positive("rate", rate))

    def speed(self, factor: float) -> Workload:
        """Divide all arrival times by `factor`: 2 sends the same requests in half the time.

        Times are divided in float64; the core then rounds them to nanoseconds.

        Raises:
            ConfigError: `factor` is not positive and finite.
        """
        return self._then("speed", factor=positive("factor", factor))

    def spread(self, step_s: float | None = None, *, seed: int = 0) -> Workload:
        """Draw arrivals on a coarse grid uniformly within the step after their instant.

        Published times are often rounded (BurstGPT to 1 s, Mooncake to 3 s), and read literally each grid
        point is a burst. The grid contains the first instant with ties. Arrivals off the grid do not move.
        Rows keep their order; the sorted times are assigned in that order.

        Args:
            step_s: step of the grid in seconds. Default: the most frequent gap between instants with ties.
            seed: seed of the draw, separate from that of the run.

        Raises:
            ConfigError: an argument is out of range.
            TraceError: there are no arrivals, no ties, or no grid was found.

        Example:
            >>> import inferq as iq
            >>> rounded = iq.Workload({"arrival_s": [0, 0, 0, 1, 1, 5], "prompt_tokens": [9] * 6})
            >>> times = rounded.spread(1.0, seed=1).frame["arrival_s"]
            >>> times.floor().to_list(), times.n_unique()
            ([0.0, 0.0, 0.0, 1.0, 1.0, 5.0], 6)
        """
        step = None if step_s is None else positive("step_s", step_s)
        return self._then("spread", draw=whole("seed", seed, 0, 2**64 - 1), step_s=step)

    def accumulate_turns(self) -> Workload:
        """Add to each turn's prompt the prompts and outputs of the earlier turns of its session.

        For logs whose prompts hold only the new tokens of a turn. A server receives the whole conversation.

        Raises:
            TraceError: there are no sessions or no outputs, or a column describes whole prompts
                (`prefix_hashes`, `prefix_parts`, `continues`).

        Example:
            >>> import inferq as iq
            >>> turns = {"session_id": ["a", "a"], "turn": [0, 1], "arrival_s": [0, 30]}
            >>> log = iq.Workload({**turns, "prompt_tokens": [1000, 32], "output_tokens": [50, 10]})
            >>> log.accumulate_turns().frame["prompt_tokens"].to_list()
            [1000, 1082]
        """
        return self._then("accumulate_turns")

    def window(self, start_s: float = 0.0, end_s: float = math.inf) -> Workload:
        """Select requests with `start_s` ≤ arrival < `end_s`, with arrivals relative to `start_s`.

        A request that continues one before the window keeps only the `prefix_parts` at the start of that
        conversation; the rest of its prompt is not shared.

        Raises:
            ConfigError: `start_s` is not below `end_s`.
            TraceError: no request is left.
        """
        start = finite("start_s", start_s)
        end = math.inf if end_s == math.inf else finite("end_s", end_s)
        if not start < end:
            raise ConfigError("end_s", f"must be above start_s, {start}; got {end}")
        return self._then("window", start_s=start, end_s=end)

    def head(self, n: int) -> Workload:
        """Select the first `n` requests, or all if there are fewer.

        Raises:
            ConfigError: `n` is below 1.
        """
        return self._then("head", n=whole("n", n, 1, 2**63 - 1))

    def sample(self, n: int, seed: int) -> Workload:
        """Draw `n` requests with replacement, with a separate seed (not that of the run).

        Drawn requests keep their arrivals and are sorted by them; without arrivals they are in the order of
        drawing. They keep prefix hashes and parts. Turns of sessions may repeat or be out of order, which
        raises an error with a prefix cache or in a merge with prefix columns: drop the column `turn` then.

        Raises:
            ConfigError: `n` or `seed` is out of range.
            TraceError: the workload has the column `continues`, whose rows may not be drawn.
        """
        return self._then("sample", n=whole("n", n, 1, 2**32 - 1), draw=whole("seed", seed, 0, 2**64 - 1))

    def resample(self, n: int) -> Workload:
        """Draw blocks of consecutive requests with replacement until there are about `n`.

        A short trace becomes a stream of any length with similar gaps, lengths and bursts (block bootstrap).
        A block is a tenth of the trace; a conversation stays whole. The seed of the run draws the blocks. A
        request that is drawn again has prefix content of its own, so that it hits no cache by repetition.

        Raises:
            ConfigError: `n` is out of range.

        Source: circular block bootstrap; Politis and Romano 1992.

        Example:
            >>> import inferq as iq
            >>> trace = iq.Workload({"arrival_s": [0, 1, 4], "prompt_tokens": [5, 6, 7]})
            >>> trace.resample(1000).draw(1).frame.height
            1000
        """
        return self._then("resample", chance=True, n=whole("n", n, 1, 2**31 - 1))

    def with_arrivals(self, arrivals: Any) -> Workload:
        """Replace arrival times, in the same order of requests.

        Args:
            arrivals: a process such as `Poisson(rate=…)`, or one time in seconds for each request, sorted.

        Raises:
            TraceError: a time is wrong; it names the row.
        """
        return self._with("with_arrivals", "arrival_s", arrivals, ArrivalProcess, "arrivals")

    def with_prompts(self, prompts: Any) -> Workload:
        """Replace prompt lengths: by a distribution, one number, or one number per request."""
        return self._with(
            "with_lengths", "prompt_tokens", prompts, LengthDistribution, "lengths", name="prompt_tokens"
        )

    def with_outputs(self, outputs: Any) -> Workload:
        """Replace output lengths: by a distribution, one number, or one number per request.

        Outputs of an `Empirical` distribution are drawn independently of the prompts.

        Example:
            >>> import inferq as iq
            >>> documents = iq.Workload({"arrival_s": [0, 1], "prompt_tokens": [9000, 400]})
            >>> documents.with_outputs(128).frame["output_tokens"].to_list()
            [128, 128]
        """
        return self._with(
            "with_lengths", "output_tokens", outputs, LengthDistribution, "lengths", name="output_tokens"
        )

    def with_classes(self, classes: Any) -> Workload:
        """Replace classes: by one name, one name per request, or `{name: share}` to draw from.

        Raises:
            ConfigError: shares are negative or do not add up to 1.
            TraceError: the numbers of names and requests differ.

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
                    raise ConfigError("classes", f"names must be strings, got {name!r}")
                shares[name] = finite(f"classes[{name!r}]", share)
                if shares[name] < 0:
                    raise ConfigError(f"classes[{name!r}]", f"must be non-negative, got {share!r}")
            if abs(math.fsum(shares.values()) - 1) > 1e-9:
                raise ConfigError("classes", f"shares must add up to 1, got {math.fsum(shares.values())}")
            return self._then("with_classes", chance=True, classes=shares)
        if not isinstance(classes, str):
            classes = as_series("class", classes)
        return self._then("with_classes", classes=classes)

    def with_think(self, think: float | DurationDistribution) -> Workload:
        """Add think times: users send each turn `think` after the previous answer.

        It fills `think_s` for all rows of a session except the first; rows without a session have null. A run
        sends a row with `think_s` that long after the nearest earlier row of its session finishes, regardless
        of its `arrival_s`.

        Args:
            think: seconds, or a distribution that is drawn for each row.

        Raises:
            ConfigError: `think` is neither seconds nor a distribution of durations.
            TraceError: the workload has no `session_id`.

        Source: the closed loop of machine-repair and terminal models; users of chat services.

        Example:
            >>> import inferq as iq
            >>> chat = iq.Workload({"arrival_s": [0, 9], "prompt_tokens": [5, 20], "session_id": ["a", "a"]})
            >>> chat.with_think(2.5).frame["think_s"].to_list()
            [None, 2.5]
        """
        value = duration("think", think)
        return self._then("with_think", chance=isinstance(value, DurationDistribution), think=value)

    def with_session_arrivals(
        self, arrivals: ArrivalProcess, think: float | DurationDistribution
    ) -> Workload:
        """Draw starts of conversations: later turns follow the previous answer.

        `with_arrivals` draws an arrival for every row, so a turn may arrive before the answer that its prompt
        contains. Here, the first row of each `session_id` has the next arrival of the process, in the order
        of rows. Every later row arrives `think` after the previous row finishes. A row without a session is a
        session of its own. The new `arrival_s` is the earliest possible arrival, and rows are sorted by it.

        Args:
            arrivals: arrival process of the starts. For r requests per second, its rate is
                r × sessions / requests.
            think: seconds, or a distribution that is drawn for each row.

        Raises:
            ConfigError: an argument is wrong.
            TraceError: the workload has no `session_id`.

        Source: the closed loop of chat users; multi-turn benchmarks of serving engines.

        Example:
            >>> import inferq as iq
            >>> chat = iq.Workload({"prompt_tokens": [5, 20, 7], "session_id": ["a", "a", "b"]})
            >>> loop = chat.with_session_arrivals(iq.dist.Deterministic(rate=1), think=5.0)
            >>> loop.draw().frame.select("session_id", "arrival_s", "think_s").rows()
            [('a', 1.0, None), ('b', 2.0, None), ('a', 6.0, 5.0)]
        """
        if not isinstance(arrivals, ArrivalProcess):
            raise ConfigError(
                "arrivals", f"must be an arrival process such as Poisson(rate=2), got {arrivals!r}"
            )
        value = duration("think", think)
        if not self.is_synthetic:
            transforms.need(self.frame, "with_session_arrivals", "session_id")
        return self._then("with_session_arrivals", chance=True, arrivals=arrivals, think=value)

    def closed_loop(
        self, users: int, *, ramp_s: float = 0.0, think: float | DurationDistribution = 0.0
    ) -> Workload:
        """Send the requests from concurrent users, like `--concurrency` of load generators.

        Each user waits for an answer before sending the next request. User r mod `users` sends row r. User u
        sends the first request at u · `ramp_s` / `users` and each later one `think` after the previous
        answer. Existing arrivals are dropped. Equal requests that start together stay synchronized, unlike
        those of real clients: set a ramp of about one request's duration, or a random `think`.

        Args:
            users: number of users, at least 1.
            ramp_s: seconds over which the users start evenly. Default: all at once.
            think: seconds, or a distribution that is drawn for each row.

        Raises:
            ConfigError: an argument is wrong.
            TraceError: the workload has a `session_id`, which already assigns requests to users.

        Source: the closed loop of load generators (vLLM's `--max-concurrency`, AIPerf's `--concurrency`).

        Example:
            >>> import inferq as iq
            >>> four = iq.Workload({"prompt_tokens": [5] * 4, "output_tokens": [2] * 4})
            >>> four.closed_loop(2, ramp_s=1).frame.select("arrival_s", "session_id", "think_s").rows()
            [(0.0, 0, None), (0.5, 1, None), (0.5, 0, 0.0), (0.5, 1, 0.0)]
        """
        ramp = finite("ramp_s", ramp_s)
        if not 0 <= ramp < 9e9:
            raise ConfigError("ramp_s", f"must be from 0 to below 9e9 seconds, got {ramp_s!r}")
        value = duration("think", think)
        return self._then(
            "closed_loop",
            chance=isinstance(value, DurationDistribution),
            users=whole("users", users, 1, 2**32 - 1),
            ramp_s=ramp,
            think=value,
        )

    def at_once(self) -> Workload:
        """Send all requests at time 0, in their order: `--request-rate inf` of load generators.

        With `simulate(..., max_in_flight=n)`, n connections process the backlog.

        Example:
            >>> import inferq as iq
            >>> iq.Workload({"prompt_tokens": [5, 20]}).at_once().frame["arrival_s"].to_list()
            [0.0, 0.0]
        """
        return self._then("at_once")

    def open_loop(self) -> Workload:
        """Drop `think_s`: every turn arrives at its `arrival_s`, even if the previous answer is unfinished.

        Example:
            >>> import inferq as iq
            >>> chat = iq.Workload({"arrival_s": [0, 9], "prompt_tokens": [5, 20], "session_id": ["a", "a"]})
            >>> chat.with_think(2.5).open_loop().frame.columns
            ['arrival_s', 'prompt_tokens', 'session_id']
        """
        return self._then("open_loop")

    def with_patience(self, patience: Any) -> Workload:
        """Set the patience: a request that is not admitted by then leaves.

        Args:
            patience: seconds, a distribution that is drawn for each row, or one number per request (None for
                no limit).

        Raises:
            ConfigError: `patience` is none of these.
            TraceError: a patience is wrong; it names the row.

        Source: the abandonment of lin2026.

        Example:
            >>> import inferq as iq
            >>> work = iq.Workload({"arrival_s": [0, 1], "prompt_tokens": [5, 20]})
            >>> work.with_patience(30).frame["patience_s"].to_list()
            [30.0, 30.0]
            >>> work.with_patience(iq.dist.Exponential(mean_s=30)).is_synthetic
            True
        """
        if hasattr(patience, "__len__") and not isinstance(patience, str):
            return self._then("with_patience", patience=as_series("patience_s", patience))
        value = duration("patience", patience)
        return self._then("with_patience", chance=isinstance(value, DurationDistribution), patience=value)

    def with_prefix(self, text: str, tokens: int) -> Workload:
        """Prepend a shared text, such as a system prompt, to every prompt.

        Prompts grow by `tokens`. A request that continues another one, by `continues` or as a turn of a
        session, inherits the text from it; turns of sessions become `continues`. Existing `prefix_parts`
        follow the text. The same text in other workloads, merged by `mix` or `concat`, is the same content.

        Args:
            text: name of the text; its words do not matter.
            tokens: length of the text, at least 1.

        Raises:
            ConfigError: an argument is wrong.
            TraceError: `prompt_tokens` is missing, a row has `prefix_hashes`, turns of sessions have no
                lengths, or a prompt becomes too long.

        Source: the system prompts of chat services and agents, the main use of prefix caches.

        Example:
            >>> import inferq as iq
            >>> chat = iq.Workload({"prompt_tokens": [30, 80]}).with_prefix("be kind", 500)
            >>> chat.frame["prompt_tokens"].to_list()
            [530, 580]
            >>> chat.reuse(block=100).to_list()
            [0, 500]
        """
        if not isinstance(text, str) or not text:
            raise ConfigError("text", f"must be a non-empty string, got {text!r}")
        return self._then("with_prefix", text=text, tokens=whole("tokens", tokens, 1, 2**31 - 1))

    def split(self, at: int | float) -> tuple[Workload, Workload]:
        """Split into the first `at` requests (int) or that share of them (float), and the rest.

        Both keep their arrival times, so `first.concat(rest)` restores the workload with one exception:
        requests of the rest that continue one of the first part keep only the `prefix_parts` at the start of
        that conversation.

        Raises:
            ConfigError: a share is outside (0, 1), or a number is below 1.
            TraceError: one part is empty.
        """
        if isinstance(at, float):
            if not 0 < at < 1:
                raise ConfigError("at", f"must be between 0 and 1 if it is a share, got {at}")
            cut: int | float = at
        else:
            cut = whole("at", at, 1, 2**63 - 1)
        return self._then("part", at=cut, second=False), self._then("part", at=cut, second=True)

    def concat(self, *others: Workload) -> Workload:
        """Merge the requests of several workloads by arrival; ties are in the order of the workloads.

        Each synthetic workload has its own seed, so two equal ones give different requests. Columns that only
        some workloads have are null in the rest (`priority` is 0); `class`, arrivals and lengths must be in
        all or none. Equal sessions, texts and prefix hashes are the same content: renumber traces that each
        number their blocks from 0. If one workload has a prefix column, the sessions of the others become
        `continues`.

        Raises:
            ConfigError: an argument is not a workload.
            TraceError: only some workloads have a required column.

        Example:
            >>> import inferq as iq
            >>> chat = iq.Workload({"arrival_s": [0, 2], "prompt_tokens": [50, 60]}).with_classes("chat")
            >>> code = iq.Workload({"arrival_s": [1], "prompt_tokens": [900]}).with_classes("code")
            >>> chat.concat(code).frame["class"].to_list()
            ['chat', 'code', 'chat']
        """
        for other in others:
            if not isinstance(other, Workload):
                raise ConfigError("concat", f"arguments must be workloads, got {type(other).__name__}")
        chance = any(other.is_synthetic for other in others)
        return self._then("concat", chance=chance, others=others, step=len(self._steps))

    def describe(self) -> pl.DataFrame:
        """Summarize lengths, gaps, rate and prefix reuse, one row per quantity.

        Columns: `column, count, mean, cv, p50, p90, p99, min, max` (`cv`: standard deviation divided by mean;
        percentiles are linear). Rows: `prompt_tokens`, `output_tokens`, `gap_s` (seconds between successive
        arrivals) and `rate_per_s`, whose `mean` is (n − 1) / (last − first). If prefixes and outputs are
        known, also `reused_tokens`, the reuse of each prompt in blocks of 16 (see `reuse`), and
        `reused_share`, whose `mean` is the sum of reused tokens divided by the sum of prompt tokens.

        Raises:
            ConfigError: the workload is synthetic; draw it first.
            TraceError: a prefix is wrong; it names the row.

        Example:
            >>> import inferq as iq
            >>> work = iq.Workload({"arrival_s": [0, 1, 4], "prompt_tokens": [10, 20, 60]})
            >>> work.describe().select("column", "count", "mean", "p50").rows()
            [('prompt_tokens', 3, 30.0, 20.0), ('gap_s', 2, 2.0, 2.0), ('rate_per_s', 3, 0.5, None)]
        """
        frame = self.frame
        has_prefixes = any(name in frame.columns for name in EXPLICIT) or is_linked_by_session(frame)
        has_lengths = {"prompt_tokens", "output_tokens"} <= set(frame.columns)
        return quantities(frame, self.reuse() if has_prefixes and has_lengths else None)

    def reuse(self, block: int = 16) -> pl.Series:
        """Return the tokens of each prompt that an unlimited prefix cache contains: `reused_tokens`.

        A request reuses the whole blocks that its prompt shares with earlier rows, but computes at least its
        last token. The last output token of the earlier row is not in the cache. So the result is an upper
        bound on the hits of `KvCache(tokens=None, block=block, prefix_cache="blocks")`, reached if every
        request finishes before the next arrives. Without prefix columns, all values are 0.

        Args:
            block: tokens of a block, at least 1; 1 for a cache of single tokens, such as `"radix"` with
                `block=1`.

        Raises:
            ConfigError: the workload is synthetic (draw it first), or `block` is out of range.
            TraceError: `prompt_tokens` is missing, `output_tokens` is missing for linked rows, or a prefix is
                wrong; it names the row.

        Source: the reuse of Mooncake's traces (Qin et al., FAST 2025), counted in its blocks of 512.

        Example:
            >>> import inferq as iq
            >>> kimi = iq.read_trace("traces/mooncake.jsonl")
            >>> reused = kimi.reuse(block=512)
            >>> reused.sum(), round(reused.sum() / kimi.frame["prompt_tokens"].sum(), 3)
            (144384, 0.367)
        """
        block = whole("block", block, 1, MOST_TOKENS)
        frame = self.frame
        _need(frame.columns, ("prompt_tokens",))
        if "continues" in frame.columns or is_linked_by_session(frame):
            _need(frame.columns, ("output_tokens",))
        return pl.Series("reused_tokens", reused(frame, block))

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready data that identifies the workload: the table `workload` of a scenario.

        It contains distributions in full; for a trace the path, the options of reading, the SHA-256 and the
        transforms; for a frame its rows (up to 100), or their number and SHA-256.
        """
        source, origin = self._source, self._origin
        if origin is not None:
            described = origin.to_json()
        elif isinstance(source, Recipe):
            described = source.to_json()
        elif isinstance(source, Scanned) and source.rows > rows.MOST_WRITTEN_OUT:
            described = {"rows": source.rows, "columns": source.columns, "sha256": self.sha256()}
        else:
            frame = source.frame() if isinstance(source, Scanned) else source
            described = rows.to_json(frame, self.sha256)
        if self._metadata:
            described["metadata"] = self._metadata
        steps = self._steps if origin is None else origin.steps
        if steps:
            described["transforms"] = [step.to_json() for step in steps]
        return described

    def hashed_rows(self, *, traces: bool = False) -> Iterator[pl.DataFrame]:
        """Yield the rows that the description names by SHA-256, except those of scanned files.

        Args:
            traces: include the rows of traces, which the description names by their path too.
        """
        source, origin = self._source, self._origin
        inner = [part for _, part in source.parts] if isinstance(source, Mix) else []
        if (
            origin is None
            and isinstance(source, pl.DataFrame)
            and "sha256" in rows.to_json(source, self.sha256)
        ):
            yield source
        if origin is not None and traces:
            yield origin.frame
        for step in self._steps if origin is None else origin.steps:
            yield from step.rows()
            inner += step.workloads()
        for workload in inner:
            yield from workload.hashed_rows(traces=traces)

    def sha256(self) -> str:
        """Return the SHA-256 of the columns, before transforms that wait for the draw."""
        if not self._digest:
            if isinstance(self._source, Recipe):
                raise ConfigError("workload", "is synthetic and has no columns yet: use .draw(seed)")
            is_scanned = isinstance(self._source, Scanned)
            self._digest.append(self._source.sha256() if is_scanned else sha256(self._source))
        return self._digest[0]

    def __len__(self) -> int:
        """Return the number of requests.

        Raises:
            TypeError: the workload is synthetic.
        """
        if self.is_synthetic:
            raise TypeError(
                "a synthetic workload has no length before it is drawn: use len(workload.draw(seed=0))"
            )
        return int(self.frame.height)

    def __bool__(self) -> bool:
        """Return True, whatever the number of requests."""
        return True

    def __repr__(self) -> str:
        """Return the size and rate, or the calls that create it."""
        source = self._source
        if isinstance(source, (Recipe, Scanned)):
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

    def _with(
        self, transform: str, column: str, values: Any, distribution: type, what: str, **arguments: Any
    ) -> Workload:
        if isinstance(values, (ArrivalProcess, LengthDistribution)):
            if not isinstance(values, distribution):
                kind = "an arrival process" if what == "arrivals" else "a distribution of lengths"
                raise ConfigError(column, f"must be {kind}, got {values!r}")
            return self._then(transform, chance=True, **arguments, **{what: values})
        if isinstance(values, str) or values is None:
            raise ConfigError(column, f"must be a distribution or one number per request, got {values!r}")
        if what == "lengths" and not hasattr(values, "__len__"):
            values = whole(column, values, 1, 2**31 - 1)
        else:
            values = as_series(column, values)
        return self._then(transform, **arguments, **{what: values})

    def _then(self, transform: str, *, chance: bool = False, **arguments: Any) -> Workload:
        step = Step(transform, arguments)
        source = self._source.frame() if isinstance(self._source, Scanned) else self._source
        origin = self._origin and replace(self._origin, steps=(*self._origin.steps, step))
        if chance or self.is_synthetic:
            return Workload._of(source, (*self._steps, step), self._metadata, origin)
        frame = transforms.APPLY[transform](source, 0, **arguments)
        return Workload._of(frame, (), {**self._metadata, **self._changes(step)}, origin)

    @property
    def _is_extendable(self) -> bool:
        """Whether more requests can be drawn without changing the first ones."""
        return isinstance(self._source, Synthetic) and all(step.is_by_row for step in self._steps)

    def _first(self, requests: int, seed: int) -> pl.DataFrame:
        """Draw the first requests of an extendable workload, regardless of its own number."""
        source = replace(self._source, requests=requests)
        return Workload._of(source, self._steps).draw(seed).frame

    def _changes(self, *steps: Step) -> dict[str, list[str]]:
        return (
            {"changes": [*self._metadata.get("changes", []), *(repr(step) for step in steps)]}
            if steps
            else {}
        )


def is_closed_loop(workload: Workload) -> bool:
    """Whether `closed_loop` made the users of a workload wait for answers, so that it has no rate."""
    changes = (*workload.metadata.get("changes", ()), *map(repr, workload._steps))
    return any(change.startswith("closed_loop(") for change in changes)
