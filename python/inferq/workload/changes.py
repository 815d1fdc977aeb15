"""What can be changed in a workload?

The verbs of `Workload`: each returns a new workload. What they do to a frame is in
 `inferq.workload.transforms`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from inferq.checks import finite, positive, whole
from inferq.errors import ConfigError
from inferq.workload.columns import as_series
from inferq.workload.distributions import ArrivalProcess, DurationDistribution, LengthDistribution
from inferq.workload.generated import Step
from inferq.workload.transforms import duration

if TYPE_CHECKING:
    from inferq.workload.workload import Workload


class Changes:
    """The verbs of a workload. Times that are no arrivals (`think_s`, `patience_s`) stay as they are."""

    __slots__ = ()
    _steps: tuple[Step, ...]

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
        """The same requests with a patience: who is not admitted by then leaves.

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
            >>> work.with_patience(iq.Exponential(mean_s=30)).is_synthetic
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
            text: its name; nobody looks at the words.
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
            raise ConfigError(f"text: must be the name of a text, not {text!r}")
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
                raise ConfigError(f"at: a share must lie between 0 and 1, not {at}")
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
            if not isinstance(other, Changes):
                raise ConfigError(f"concat: takes workloads, not {type(other).__name__}")
        chance = any(one.is_synthetic for one in others)
        return self._then("concat", chance=chance, others=others, step=len(self._steps))

    def _then(self, verb: str, *, chance: bool = False, **arguments: Any) -> Workload:
        raise NotImplementedError("a workload says how a verb is done")

    @property
    def is_synthetic(self) -> bool:
        """Whether it has random parts, so that `draw` depends on the seed."""
        raise NotImplementedError("a workload says whether it is synthetic")

    def _with(
        self, verb: str, column: str, values: Any, distribution: type, what: str, **arguments: Any
    ) -> Workload:
        if isinstance(values, (ArrivalProcess, LengthDistribution)):
            if not isinstance(values, distribution):
                kind = "an arrival process" if what == "arrivals" else "a distribution of lengths"
                raise ConfigError(f"{column}: takes {kind}, not {values!r}")
            return self._then(verb, chance=True, **arguments, **{what: values})
        if isinstance(values, str) or values is None:
            raise ConfigError(
                f"{column}: must be a distribution or one number for each request, not {values!r}"
            )
        if what == "lengths" and not hasattr(values, "__len__"):
            values = whole(column, values, 1, 2**31 - 1)
        else:
            values = as_series(column, values)
        return self._then(verb, **arguments, **{what: values})
