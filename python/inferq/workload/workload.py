"""The requests of a run: a fixed frame, or drawn from the seed of the run, and transforms of both.

A `Workload` is either **fixed** (a frame of requests) or **synthetic** (drawn from the seed of the run). Both
are immutable; every transform returns a new workload. On a fixed workload a transform without chance acts at
once; everything else is recorded and done when the workload is drawn, so the same seed gives the same
requests under every scheduler. What a transform does to a frame is in `inferq.workload.transforms`.
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
from inferq.workload.clock import of_frame
from inferq.workload.columns import MOST_TOKENS, Table, as_frame, as_series, checked, quantities, sha256
from inferq.workload.distributions import ArrivalProcess, DurationDistribution, Empirical, LengthDistribution
from inferq.workload.generated import Mix, Origin, Recipe, Sessions, Step, Synthetic
from inferq.workload.parts import OfFrame, OfSynthetic, Parts, Scanned
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
    """A `TraceError` that names the first column which is not there, and the transform that fills it."""
    for name in needs:
        if name not in columns:
            how = _FILLED_BY.get(name)
            raise TraceError("workload", f"no {name}{f': {how}' if how else ''}")


@dataclass(frozen=True, init=False, repr=False, eq=False, slots=True)
class Workload(Viewed):
    """Requests: a fixed frame, or synthetic: drawn from the seed when simulated.

    Args:
        data: a frame of polars (lazy too), pandas or pyarrow, a dict of columns or a list of dicts, sorted by
            arrival. Arrivals that are datetimes, or numbers that count from 1970, are taken relative to the
            first, which every run says. A run needs `arrival_s`,
            `prompt_tokens` and `output_tokens`; those that are not there are filled by `with_arrivals`,
            `with_prompts` and `with_outputs`. All other columns are optional:

            | column | meaning |
            |---|---|
            | `arrival_s` | seconds, 0 or above, sorted; the core takes the nearest nanosecond, half to even |
            | `prompt_tokens`, `output_tokens` | tokens, at least 1; their sum at most 2³¹ − 1 |
            | `class` | name of the request's class |
            | `priority` | whole number; lower is served first by policies that look at it |
            | `session_id`, `turn` | conversation (text or whole number) and turn in it, from 0 |
            | `think_s` | closed loop: seconds from the end of the session's row before to this one |
            | `prefix_hashes`, `prefix_block_tokens` | the prompt's leading blocks, tokens in a block |
            | `prefix_parts` | lists; parts of the prompt that are shared |
            | `continues` | row (from 0) with whose prompt and output this prompt begins |
            | `max_output_tokens` | most tokens that the request may generate, as its scheduler knows it |
            | `accepted` | list; accepted drafts of each row that emits, in order, see `Speculation` |
            | `patience_s` | seconds that it waits for admission; null for ever |
            | `cancel_s` | seconds from its arrival until its client takes it back; null for never |
            | `ttft_slo_s`, `itl_slo_s` | objectives in seconds; null for none |

            A row with `think_s` and an earlier row of its session arrives `think_s` after that row has
            finished: its own `arrival_s` then only says where it stands among the rows. If that row is
            rejected, abandoned or unfinished, it never arrives. `open_loop` drops the column.

            A policy that plans a batch while the previous one runs foresees the end of a request whose
            output reaches `max_output_tokens` or fills `max_model_len`. Any other end is a stop token, also
            if the column is missing or null. `Sglang` reserves memory for `max_output_tokens`, with and
            without `overlap`. No other policy reads the column.

            A request whose client takes it back leaves at once where it waits for its first admission, and
            with its next token otherwise; it is `abandoned`.

            The columns about prefixes act where the KV cache has a prefix cache; elsewhere they are
            carried along. A row says with what its prompt begins in one way: with `prefix_hashes`, one for
            each block of `prefix_block_tokens` tokens (the same number in all rows; the last block may be a
            partial one, with a hash or without); with `prefix_parts`, pairs of a text's name and how many of
            its first tokens; or with `continues`. What they leave of the prompt is its own. Where none of
            these columns is there, a turn of a session (`session_id` and `turn`) begins with the prompt and
            the output of the turn before it, if its prompt is long enough for that.

    Raises:
        TraceError: naming the row and the column of the first wrong value, or an unknown column.
        ConfigError: for data that is no table.

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
        """Check the columns and bring them to their types."""
        if isinstance(data, Workload):
            raise ConfigError("workload", "is a Workload already")
        frame, told = of_frame(as_frame(data))
        self._fill(checked(frame), (), {} if told is None else {"times": [told]})

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
        """A workload of a frame that is canonical and right already, or a synthetic one."""
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
        """A workload drawn from distributions: `prompt` and `output` apart, or joint `lengths`.

        Without any of the three it has arrivals alone: the jobs of a `Network`, whose stages have lengths.

        Args:
            requests: how many, at least 1.
            arrivals: when they arrive.
            prompt: distribution of prompt tokens.
            output: distribution of output tokens.
            lengths: joint distribution of both, instead of `prompt` and `output`.

        Raises:
            ConfigError: naming the argument.

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
        """The requests of Parquet files that are read when they are needed, and then part by part.

        A run with `simulate(..., out=…)` never has more than a part of them in memory, and checks each part
        as it comes. `frame` and every transform read the whole; so does a run without `out`.

        Args:
            path: a Parquet file, or a folder of them in the order of their names; columns named as those of
                a workload, such as the `workload.parquet` that `Result.write` leaves.

        Raises:
            TraceError: naming the file: no Parquet, an unknown column, no rows. A wrong value is found, with
                its row, when it is read.
            FileNotFoundError: there is no such file.

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
        """Conversations in a closed loop: each turn is sent a think time after the answer before it.

        The frame has one row for each turn, with `session_id` (from 0), `turn` (from 0) and `think_s` (null
        for turn 0), sorted by (`arrival_s`, session, turn). The `arrival_s` of a later turn is nominal, the
        earliest possible: the session's start and the think times up to it. Turn t of session s is drawn from
        numbers of its own, so neither the number of sessions nor the turns of the others reach it.

        Args:
            sessions: how many, at least 1.
            arrivals: of the sessions' starts.
            turns: turns of a session: a number, or a distribution of "tokens" that counts them.
            prompt: tokens that the user adds in a turn: a number or a distribution.
            output: tokens of an answer: a number or a distribution.
            think: seconds from an answer to the next turn: a number or a distribution.
            grows: whether a prompt carries the conversation so far (all prompts and answers before) in front
                of what the user adds.
            max_context: with `grows`: most tokens of a prompt and its answer. A conversation beyond it
                forgets its oldest tokens, as chat services do: no turn is dropped and no answer cut, the
                prompt is `max_context` less its answer.

        Raises:
            ConfigError: naming the argument; when drawn, for a turn whose own tokens exceed `max_context`,
                and without one for a conversation beyond 2³¹ − 1 tokens.

        Source: the closed loop of chat users; multi-turn benchmarks of serving engines.

        Example:
            >>> import inferq as iq
            >>> chat = iq.Workload.sessions(
            ...     sessions=1, arrivals=iq.dist.Deterministic(rate=1), turns=3, prompt=10, output=20, think=5.0
            ... )
            >>> chat.draw().frame.select("arrival_s", "prompt_tokens", "turn", "think_s").rows()
            [(1.0, 10, 0, None), (6.0, 40, 1, 5.0), (11.0, 70, 2, 5.0)]
        """
        return cls._of(Sessions.of(sessions, arrivals, turns, prompt, output, think, grows, max_context))

    @classmethod
    def mix(cls, parts: Mapping[str, Workload], *, requests: int | None = None) -> Workload:
        """Classes of requests side by side: each part sends its own, merged by arrival.

        At one instant parts come in the order given. The column `class` holds the part's name (in place of
        classes that it has), and a `session_id` becomes `name/id`, so that sessions of two parts stay apart.
        Texts and prefix hashes keep their identities: equal ones are the same content in all parts.
        Each part is drawn from a seed that only the run's seed and its name decide: changing, adding or
        dropping a part leaves the requests of the others alone.

        Args:
            parts: synthetic and fixed workloads with arrivals, by class. Columns that only some have are null
                for the rest (`priority` is 0); lengths must be in all or none.
            requests: how many in all, the first by arrival. A synthetic part is then drawn as long as
                that takes, whatever its own number says; all other parts (fixed ones, sessions, synthetic
                ones cut or scaled by a transform of the whole) end where they end. None: every part
                with its own number.

        Raises:
            ConfigError: naming the part or `requests`.
            TraceError: naming the part that lacks a column; when fewer than `requests` are there.

        Source: the request classes of lin2026 and li2025 §4.3: independent streams, superposed.

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
        """Whether it has random parts, so that `draw` depends on the seed."""
        return isinstance(self._source, Recipe) or bool(self._steps)

    @property
    def frame(self) -> pl.DataFrame:
        """The requests of a fixed workload, one row each; a synthetic one must be drawn first.

        Raises:
            ConfigError: for a synthetic workload.
        """
        if self.is_synthetic:
            raise NotThereError(
                "workload", "is synthetic, its frame depends on the seed: use .draw(seed).frame"
            )
        frame: pl.DataFrame = self._source.frame() if isinstance(self._source, Scanned) else self._source
        return frame

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Where the requests come from: file, format, what was left out, token count, transforms applied."""
        return MappingProxyType(self._metadata)

    def draw(self, seed: int = 0) -> Workload:
        """The fixed workload that a run with this seed replays; a fixed workload is its own draw.

        Example:
            >>> import inferq as iq
            >>> lengths = iq.Workload({"prompt_tokens": [100, 200], "output_tokens": [5, 6]})
            >>> poisson = lengths.with_arrivals(iq.dist.Poisson(rate=1))
            >>> poisson.draw(3).frame.equals(poisson.draw(3).frame)
            True
        """
        import numpy  # noqa: F401  # here, where Ctrl-C can interrupt it, and not first in the core

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
        """The frame of `draw(seed)`, refused where a run could not replay it. `simulate` calls this.

        Args:
            seed: that of the run.
            needs: columns that the run cannot do without; a network needs `arrival_s` alone.

        Raises:
            TraceError: naming a missing column and the transform that fills it.
        """
        frame = self.draw(seed).frame
        _need(frame.columns, needs)
        return frame

    def parts(self, seed: int = 0) -> Parts:
        """The rows of `ready(seed)` part by part. `simulate(..., out=…)` calls this.

        A synthetic workload without transforms is drawn, and a scanned file read, as far as it is needed.
        All other workloads are held or drawn whole: 16 to 24 bytes a request and column of each.

        Raises:
            TraceError: naming a missing column and the transform that fills it.
        """
        whole("seed", seed, 0, 2**64 - 1)
        source = self._source
        if isinstance(source, Scanned):
            parts: Parts = source
        elif isinstance(source, Synthetic) and not self._steps:
            parts = OfSynthetic(source.to_json(), source.columns, seed)
        else:
            parts = OfFrame(self.draw(seed).frame)
        _need(parts.columns)
        return parts

    def at_rate(self, rate: float) -> Workload:
        """Scale all arrival times so that the mean rate, (n − 1) / (last − first), becomes `rate`.

        It is `speed(rate / present mean rate)`. For a synthetic workload it acts on the drawn arrivals, whose
        mean rate is then `rate` exactly; to change the distribution itself, change its `arrivals`.

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

        A request that continues one before the window begins only with the `prefix_parts` with which that
        one's conversation began; what was said since is its own.

        Raises:
            ConfigError: unless `start_s` < `end_s`.
            TraceError: when no request is left.
        """
        start = finite("start_s", start_s)
        end = math.inf if end_s == math.inf else finite("end_s", end_s)
        if not start < end:
            raise ConfigError("end_s", f"must be above start_s, {start}, not {end}")
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
        Requests that say with what they begin keep it. Turns of sessions are drawn like all others, so they
        come twice or out of their order. A prefix cache refuses that, and so does a merge with a workload
        whose columns say with what prompts begin: drop the column `turn` then.

        Raises:
            ConfigError: naming `n` or `seed`.
            TraceError: requests continue others (`continues`), which need not be drawn.
        """
        return self._then("sample", n=whole("n", n, 1, 2**32 - 1), draw=whole("seed", seed, 0, 2**64 - 1))

    def with_arrivals(self, arrivals: Any) -> Workload:
        """The same requests in the same order, arriving by an arrival process or at given times.

        Args:
            arrivals: a process such as `Poisson(rate=…)`, or one time in seconds for each request, sorted.

        Raises:
            TraceError: naming the wrong row.
        """
        return self._with("with_arrivals", "arrival_s", arrivals, ArrivalProcess, "arrivals")

    def with_prompts(self, prompts: Any) -> Workload:
        """The same requests with other prompt lengths: a distribution, or one number for all or each."""
        return self._with(
            "with_lengths", "prompt_tokens", prompts, LengthDistribution, "lengths", name="prompt_tokens"
        )

    def with_outputs(self, outputs: Any) -> Workload:
        """The same requests with other output lengths: as prompt lengths of `with_prompts`.

        An `Empirical` distribution gives its outputs here, drawn apart from the prompts.

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
                    raise ConfigError("classes", f"names must be text, not {name!r}")
                shares[name] = finite(f"classes[{name!r}]", share)
                if shares[name] < 0:
                    raise ConfigError(f"classes[{name!r}]", f"must not be negative, is {share!r}")
            if abs(math.fsum(shares.values()) - 1) > 1e-9:
                raise ConfigError("classes", f"shares must add up to 1, not {math.fsum(shares.values())}")
            return self._then("with_classes", chance=True, classes=shares)
        if not isinstance(classes, str):
            classes = as_series("class", classes)
        return self._then("with_classes", classes=classes)

    def with_think(self, think: float | DurationDistribution) -> Workload:
        """The same requests as sessions whose users think: each turn is sent so long after the answer before.

        It fills `think_s` for every row but the first of its `session_id`, in the order of the rows; rows
        without a session get none. A run then sends such a row `think_s` after the nearest earlier row of its
        session has finished, whatever its own `arrival_s` says.

        Args:
            think: seconds, or a distribution of them; drawn for each row, keyed by the seed, a source of its
                own and the row.

        Raises:
            ConfigError: for something else.
            TraceError: where the workload has no `session_id`.

        Source: the closed loop of machine-repair and terminal models; users of chat services.

        Example:
            >>> import inferq as iq
            >>> talk = iq.Workload({"arrival_s": [0, 9], "prompt_tokens": [5, 20], "session_id": ["a", "a"]})
            >>> talk.with_think(2.5).frame["think_s"].to_list()
            [None, 2.5]
        """
        value = duration("think", think)
        return self._then("with_think", chance=isinstance(value, DurationDistribution), think=value)

    def with_session_arrivals(
        self, arrivals: ArrivalProcess, think: float | DurationDistribution
    ) -> Workload:
        """The same conversations, whose starts are drawn: later turns follow the answer before them.

        `with_arrivals` draws an arrival for every row, so that a turn may come before the answer that its
        prompt contains. Here the first row of each `session_id` takes the next arrival of the process, in the
        order of the rows, and every further one comes `think` after the row before it has finished. A row
        without a session starts one of its own. Rows are sorted by the earliest instant at which they can
        come, which their `arrival_s` says; arrivals that were there are left out.

        Args:
            arrivals: of the starts: for r requests per second its rate is r × sessions / requests.
            think: seconds, or a distribution of them; drawn for each row as in `with_think`.

        Raises:
            ConfigError: naming the argument.
            TraceError: where the workload has no `session_id`.

        Source: the closed loop of chat users; multi-turn benchmarks of serving engines.

        Example:
            >>> import inferq as iq
            >>> talk = iq.Workload({"prompt_tokens": [5, 20, 7], "session_id": ["a", "a", "b"]})
            >>> one_a_second = talk.with_session_arrivals(iq.dist.Deterministic(rate=1), think=5.0)
            >>> one_a_second.draw().frame.select("session_id", "arrival_s", "think_s").rows()
            [('a', 1.0, None), ('b', 2.0, None), ('a', 6.0, 5.0)]
        """
        if not isinstance(arrivals, ArrivalProcess):
            raise ConfigError(
                "arrivals", f"takes an arrival process such as Poisson(rate=2), not {arrivals!r}"
            )
        value = duration("think", think)
        if not self.is_synthetic:
            transforms.need(self.frame, "with_session_arrivals", "session_id")
        return self._then("with_session_arrivals", chance=True, arrivals=arrivals, think=value)

    def closed_loop(
        self, users: int, *, ramp_s: float = 0.0, think: float | DurationDistribution = 0.0
    ) -> Workload:
        """The same requests sent by so many users, each of whom waits for the answer before the next.

        Row r is of user r mod `users`. User u sends the first at u · `ramp_s` / `users`, each further one
        `think` after the last token of the one before: `--concurrency` of load generators. Arrivals that are
        there are left out. Equal requests that start together stay together; real clients do not, so give a
        ramp of about one request's length, or a `think` that varies.

        Args:
            users: at least 1.
            ramp_s: seconds over which the users start, evenly; 0: all at once.
            think: seconds, or a distribution of them, drawn for each row as in `with_think`: a jitter.

        Raises:
            ConfigError: naming the argument.
            TraceError: the rows have a `session_id`, which says already who sends what.

        Source: the closed loop of load generators (`--max-concurrency` of vLLM's, `--concurrency` of AIPerf).

        Example:
            >>> import inferq as iq
            >>> four = iq.Workload({"prompt_tokens": [5] * 4, "output_tokens": [2] * 4})
            >>> four.closed_loop(2, ramp_s=1).frame.select("arrival_s", "session_id", "think_s").rows()
            [(0.0, 0, None), (0.5, 1, None), (0.5, 0, 0.0), (0.5, 1, 0.0)]
        """
        ramp = finite("ramp_s", ramp_s)
        if not 0 <= ramp < 9e9:
            raise ConfigError("ramp_s", f"must be from 0 to below 9e9 seconds, not {ramp_s!r}")
        value = duration("think", think)
        return self._then(
            "closed_loop",
            chance=isinstance(value, DurationDistribution),
            users=whole("users", users, 1, 2**32 - 1),
            ramp_s=ramp,
            think=value,
        )

    def at_once(self) -> Workload:
        """The same requests all at time 0, in their order: `--request-rate inf` of load generators.

        With `simulate(..., max_in_flight=n)` this is a backlog that n connections work off.

        Example:
            >>> import inferq as iq
            >>> iq.Workload({"prompt_tokens": [5, 20]}).at_once().frame["arrival_s"].to_list()
            [0.0, 0.0]
        """
        return self._then("at_once")

    def open_loop(self) -> Workload:
        """The same requests without `think_s`: every turn comes at its own `arrival_s`, answered or not.

        Example:
            >>> import inferq as iq
            >>> talk = iq.Workload({"arrival_s": [0, 9], "prompt_tokens": [5, 20], "session_id": ["a", "a"]})
            >>> talk.with_think(2.5).open_loop().frame.columns
            ['arrival_s', 'prompt_tokens', 'session_id']
        """
        return self._then("open_loop")

    def with_patience(self, patience: Any) -> Workload:
        """The same requests with a patience: a request that is not admitted by then leaves.

        Args:
            patience: seconds for all, a distribution of them, or one number for each request (None for ever).
                A distribution is drawn for each row, keyed by the seed, a source of its own and the row.

        Raises:
            ConfigError: for something else.
            TraceError: naming the row of a wrong patience.

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
        """The same requests with a text in front of every prompt that all of them share: a system prompt.

        Prompts grow by `tokens`. A request that continues another one, by `continues` or as a turn of its
        session, begins with the text because that one does; sessions are written down as `continues` then.
        `prefix_parts` come behind the text. The same text in front of other workloads, merged by `mix` or
        `concat`, is the same content.

        Args:
            text: its name; the words themselves do not matter.
            tokens: how many, at least 1.

        Raises:
            ConfigError: naming the argument.
            TraceError: no `prompt_tokens`; a row with `prefix_hashes`, which say already with what its prompt
                begins; turns of sessions without lengths; a prompt that grows too long.

        Source: the system prompts of chat services and agents, the case for which prefix caches were made.

        Example:
            >>> import inferq as iq
            >>> chat = iq.Workload({"prompt_tokens": [30, 80]}).with_prefix("be kind", 500)
            >>> chat.frame["prompt_tokens"].to_list()
            [530, 580]
            >>> chat.reuse(block=100).to_list()
            [0, 500]
        """
        if not isinstance(text, str) or not text:
            raise ConfigError("text", f"must be the name of a text, not {text!r}")
        return self._then("with_prefix", text=text, tokens=whole("tokens", tokens, 1, 2**31 - 1))

    def split(self, at: int | float) -> tuple[Workload, Workload]:
        """Two workloads: the first `at` requests (an int), or that share of them (a float), and the rest.

        Both keep their arrival times, so `first.concat(rest)` is the whole again, except that
        requests of the rest which continued one of the first part begin only with the `prefix_parts` with
        which that one's conversation began; what was said since is their own.

        Raises:
            ConfigError: for a share outside (0, 1) or a number below 1.
            TraceError: when one part would be empty.
        """
        if isinstance(at, float):
            if not 0 < at < 1:
                raise ConfigError("at", f"a share must lie between 0 and 1, not {at}")
            cut: int | float = at
        else:
            cut = whole("at", at, 1, 2**63 - 1)
        return self._then("part", at=cut, second=False), self._then("part", at=cut, second=True)

    def concat(self, *others: Workload) -> Workload:
        """All requests of this and the other workloads, merged by arrival; at one instant in the order given.

        Synthetic ones among the others draw from seeds of their own, so two equal ones give different
        requests. Columns that only some have are null for the rest (`priority` is 0); `class`, arrivals and
        lengths must be in all or none. Sessions, texts and prefix hashes with equal identities are taken to
        be the same: traces that each number their blocks from 0 must be numbered apart before. Where one says
        with what prompts begin in a column and another by its sessions, these are written down as
        `continues`.

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
            if not isinstance(other, Workload):
                raise ConfigError("concat", f"takes workloads, not {type(other).__name__}")
        chance = any(one.is_synthetic for one in others)
        return self._then("concat", chance=chance, others=others, step=len(self._steps))

    def describe(self) -> pl.DataFrame:
        """Its lengths, gaps and rate: one row per quantity.

        Columns: `column, count, mean, cv, p50, p90, p99, min, max` (`cv`: standard deviation over mean;
        percentiles are linear). Rows: `prompt_tokens`, `output_tokens`, `gap_s` (seconds between successive
        arrivals) and `rate_per_s`, whose `mean` is (n − 1) / (last − first). Where prompts say with what they
        begin and outputs are known, `reused_tokens`: what an endless cache would have of each, in blocks of
        16 (see `reuse`); and `reused_share`, whose `mean` is their sum over that of the prompts.

        Raises:
            ConfigError: for a synthetic workload, which must be drawn first.
            TraceError: naming the row whose prompt cannot begin as it says.

        Example:
            >>> import inferq as iq
            >>> work = iq.Workload({"arrival_s": [0, 1, 4], "prompt_tokens": [10, 20, 60]})
            >>> work.describe().select("column", "count", "mean", "p50").rows()
            [('prompt_tokens', 3, 30.0, 20.0), ('gap_s', 2, 2.0, 2.0), ('rate_per_s', 3, 0.5, None)]
        """
        frame = self.frame
        says = any(name in frame.columns for name in EXPLICIT) or is_linked_by_session(frame)
        counts = says and {"prompt_tokens", "output_tokens"} <= set(frame.columns)
        return quantities(frame, self.reuse() if counts else None)

    def reuse(self, block: int = 16) -> pl.Series:
        """Tokens of each prompt that an endless prefix cache would have: `reused_tokens`, one for each row.

        Every request finds the whole blocks in which its prompt begins like one before it in the frame, and
        computes at least its last token; of the request before, all but the last token of its output has been
        computed. So it is the most that `KvCache(tokens=None, block=block, prefix_cache="blocks")` can find
        when every request has finished before the next comes. Without a column that says with what prompts
        begin, all are 0.

        Args:
            block: tokens of a block, at least 1; 1 for a cache of single tokens, as `"radix"` with `block=1`.

        Raises:
            ConfigError: for a synthetic workload, which must be drawn first; naming `block`.
            TraceError: no `prompt_tokens`, or rows continue others and there are no `output_tokens`; naming
                the row whose prompt cannot begin as it says.

        Source: the reuse of Mooncake's traces (Qin et al., FAST 2025), counted in its blocks of 512.

        Example:
            >>> import inferq as iq
            >>> kimi = iq.read_trace("traces/mooncake.jsonl")
            >>> found = kimi.reuse(block=512)
            >>> found.sum(), round(found.sum() / kimi.frame["prompt_tokens"].sum(), 3)
            (144384, 0.367)
        """
        block = whole("block", block, 1, MOST_TOKENS)
        frame = self.frame
        _need(frame.columns, ("prompt_tokens",))
        if "continues" in frame.columns or is_linked_by_session(frame):
            _need(frame.columns, ("output_tokens",))
        return pl.Series("reused_tokens", reused(frame, block))

    def to_json(self) -> dict[str, Any]:
        """JSON-ready data that says which workload it is, as the table `workload` of a scenario does.

        What is drawn is there in full, a trace by its path, how it was read, a SHA-256 of its columns and
        what was done to it, a frame by its rows (up to 100) or their number and SHA-256.
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

    def rows_beside(self) -> Iterator[pl.DataFrame]:
        """The rows that its description names by their SHA-256, but for those of traces and scanned files."""
        source, origin = self._source, self._origin
        inner = [part for _, part in source.parts] if isinstance(source, Mix) else []
        if (
            origin is None
            and isinstance(source, pl.DataFrame)
            and "sha256" in rows.to_json(source, self.sha256)
        ):
            yield source
        for step in self._steps if origin is None else origin.steps:
            yield from step.rows()
            inner += step.workloads()
        for workload in inner:
            yield from workload.rows_beside()

    def sha256(self) -> str:
        """SHA-256 over the columns of its frame, before the transforms that wait for the draw."""
        if not self._digest:
            if isinstance(self._source, Recipe):
                raise ConfigError("workload", "is synthetic and has no columns before it is drawn")
            scanned = isinstance(self._source, Scanned)
            self._digest.append(self._source.sha256() if scanned else sha256(self._source))
        return self._digest[0]

    def __len__(self) -> int:
        """How many requests it has.

        Raises:
            TypeError: they are not there before they are drawn.
        """
        if self.is_synthetic:
            raise TypeError(
                "a synthetic workload has no length: len(workload.draw(seed=0)) is that of one draw"
            )
        return int(self.frame.height)

    def __bool__(self) -> bool:
        """True: it is there, with requests or without."""
        return True

    def __repr__(self) -> str:
        """Its size and rate, or the calls that make it."""
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
                raise ConfigError(column, f"takes {kind}, not {values!r}")
            return self._then(transform, chance=True, **arguments, **{what: values})
        if isinstance(values, str) or values is None:
            raise ConfigError(
                column, f"must be a distribution or one number for each request, not {values!r}"
            )
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
    def _goes_on(self) -> bool:
        """Whether it is synthetic and can be drawn further without a change of what is drawn already."""
        return isinstance(self._source, Synthetic) and all(step.is_by_row for step in self._steps)

    def _first(self, requests: int, seed: int) -> pl.DataFrame:
        """The first requests of a synthetic workload that goes on, however many it says it has."""
        source = replace(self._source, requests=requests)
        return Workload._of(source, self._steps).draw(seed).frame

    def _changes(self, *steps: Step) -> dict[str, list[str]]:
        return (
            {"changes": [*self._metadata.get("changes", []), *(repr(step) for step in steps)]}
            if steps
            else {}
        )
