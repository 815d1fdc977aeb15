"""Changes of a trace before a run: the keys of `[workload]` in TOML and the options of the command line."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from inferq.checks import positive, whole
from inferq.errors import ConfigError
from inferq.workload.distributions import ArrivalProcess, DurationDistribution, Exponential, Gamma, Poisson
from inferq.workload.grid import grid_of
from inferq.workload.transforms import turns_by_session
from inferq.workload.workload import Workload

THINK = Exponential(mean_s=20.0)
"""Default think time if arrivals of conversations are drawn. Reading an answer of 250 tokens at 4 words per
second takes about 45 s, skimming it a few seconds. It determines what a prefix cache has evicted by the next
turn, so a run reports it."""


@dataclass(frozen=True, kw_only=True)
class TraceOptions:
    """Changes of a trace: cut, completed and rescaled.

    Args:
        head: Use only the first requests of the trace.
        output_tokens: Output tokens of every request.
        deltas: Prompts of later turns hold only the new tokens: add the earlier turns of the session.
        spread: Spread arrivals that share an instant of a coarse grid (whole seconds) over the grid step.
        rate: Requests per second: scales arrival times, of conversations their starts; draws Poisson arrivals
            if the trace has none.
        request_rate: Draw new arrivals at this rate, as load generators do; `inf` sends all requests at once.
        burstiness: Shape of the gamma gaps of `request_rate`; 1 is Poisson, smaller values are burstier.
        concurrency: Number of users in a closed loop; each sends its next request after the answer.
        ramp_s: Seconds over which the users of `concurrency` start.
        speed: Divide arrival times by this factor.
        think: Think time between turns: seconds or a distribution. Default: Exponential:20 if arrivals of
            conversations are drawn.
    """

    head: int | None = None
    output_tokens: int | None = None
    deltas: bool = False
    spread: bool = False
    rate: float | None = None
    request_rate: float | None = None
    burstiness: float | None = None
    concurrency: int | None = None
    ramp_s: float | None = None
    speed: float | None = None
    think: float | DurationDistribution | None = None

    def apply(
        self, trace: Workload, notes: list[str], needs: Sequence[str] = ("arrival_s", "output_tokens")
    ) -> Workload:
        """Return the changed workload.

        Args:
            trace: the trace.
            notes: receives a sentence for each change.
            needs: columns that must exist, or be filled in here.

        Raises:
            ConfigError: a value is out of range, options conflict, or a needed column is missing.
        """
        self._check()
        columns = trace._source.columns
        notes += _reading_notes(trace)
        trace = self._completed(trace, columns, notes, needs)
        if self.deltas:
            if not has_conversations(trace):
                raise ConfigError("deltas", "the trace has no turns of conversations")
            trace = trace.accumulate_turns()
            notes.append("prompts of later turns extended by the earlier turns of their session")
        if self.spread:
            trace = self._spread(trace, notes)
        if self.concurrency is not None:
            return self._closed_loop(trace, notes)
        if self.request_rate == math.inf:
            notes.append("all requests sent at once")
            return trace.at_once()
        if self.request_rate is not None:
            return self._redrawn(trace, self.request_rate, notes)
        if "arrival_s" not in columns:
            if self.rate is not None:
                return self._arriving(
                    trace, "arrival times not in the trace, drawn", "Poisson", Poisson, self.rate, notes
                )
            if "arrival_s" in needs:
                raise ConfigError("rate", "missing: the trace has no arrival times, so a rate is required")
        if self.think is not None:
            trace = trace.with_think(self.think)
            notes.append(f"later turns of a session follow the previous answer after {_duration(self.think)}")
        if self.rate is not None:
            trace = trace.at_rate(self.rate)
            notes.append(f"arrival times scaled to {self.rate:g} requests per second")
        if self.speed is not None:
            trace = trace.speed(self.speed)
            notes.append(f"arrival times divided by {self.speed:g}")
        return trace

    def _check(self) -> None:
        if self.rate is not None and self.speed is not None:
            raise ConfigError("speed", "cannot be combined with rate; both scale arrival times")
        if self.burstiness is not None and self.request_rate is None:
            raise ConfigError("burstiness", "requires request_rate, whose gaps it shapes")
        if self.request_rate is not None and (self.rate is not None or self.speed is not None):
            raise ConfigError(
                "request_rate", "cannot be combined with rate or speed: it draws new arrival times"
            )
        for name in ("rate", "request_rate", "speed"):
            if self.concurrency is not None and getattr(self, name) is not None:
                raise ConfigError("concurrency", f"cannot be combined with {name}: users wait for answers")
        if self.ramp_s is not None and self.concurrency is None:
            raise ConfigError("ramp_s", "requires concurrency, the number of users that start")
        if self.rate == math.inf:
            raise ConfigError(
                "rate", "must be finite; use request_rate inf (--request-rate inf) to send all at once"
            )
        for name in ("rate", "speed"):
            if getattr(self, name) is not None:
                positive(name, getattr(self, name))
        if self.head is not None:
            whole("head", self.head, 1, 2**63 - 1)

    def _completed(
        self, trace: Workload, columns: Sequence[str], notes: list[str], needs: Sequence[str]
    ) -> Workload:
        """The first requests, with output lengths."""
        if self.head is not None:
            rows = None if trace.is_synthetic else trace.frame.height
            trace = trace.head(self.head)
            count = (
                f"the first {self.head:,}"
                if rows is None
                else f"the first {trace.frame.height:,} of {rows:,}"
            )
            notes.append(f"{count} requests")
        if self.output_tokens is not None:
            trace = trace.with_outputs(self.output_tokens)
            done = "replaced by" if "output_tokens" in columns else "not in the trace, set to"
            notes.append(f"output lengths {done} {self.output_tokens:,} tokens each")
        elif "output_tokens" not in columns and "output_tokens" in needs:
            raise ConfigError(
                "output_tokens",
                "missing: the trace has no output lengths. Set a length for all requests "
                "(--output-tokens, .with_outputs(…)), or map a column of the file",
            )
        return trace

    def _spread(self, trace: Workload, notes: list[str]) -> Workload:
        """The requests with tied arrivals spread over the step of their grid."""
        if "arrival_s" not in trace._source.columns:
            raise ConfigError("spread", "the trace has no arrival times")
        grid = grid_of(trace.frame["arrival_s"].to_numpy())
        if grid is None:
            raise ConfigError("spread", "the trace has no coarse grid of tied arrival times")
        notes.append(f"{grid.tied:,} arrivals at shared instants spread over {grid.step_s:.4g} s (seed 0)")
        return trace.spread(grid.step_s)

    def _closed_loop(self, trace: Workload, notes: list[str]) -> Workload:
        users = whole("concurrency", self.concurrency, 1, 2**32 - 1)
        loop = trace.closed_loop(users, ramp_s=0.0 if self.ramp_s is None else self.ramp_s)
        notes.append(f"sent by {users:,} users, each of whom waits for the answer before the next request")
        if not trace.is_synthetic and (idle := users - trace.frame.height) > 0:
            notes.append(f"the trace has {trace.frame.height:,} requests: {idle:,} users send none")
        return loop

    def _redrawn(self, trace: Workload, rate: float, notes: list[str]) -> Workload:
        positive("request_rate", rate)
        shape = 1.0 if self.burstiness is None else positive("burstiness", self.burstiness)

        def process(mean: float) -> ArrivalProcess:
            return Poisson(mean) if shape == 1 else Gamma(mean, cv=shape**-0.5)

        name = f"gamma gaps of shape {shape:g}"
        return self._arriving(trace, "arrivals drawn", name, process, rate, notes)

    def _arriving(
        self,
        trace: Workload,
        reason: str,
        name: str,
        process: Callable[[float], ArrivalProcess],
        rate: float,
        notes: list[str],
    ) -> Workload:
        """The requests at drawn times; for conversations the starts are drawn."""
        if not has_conversations(trace):
            if self.think is not None:
                raise ConfigError("think", "the trace has no turns of conversations")
            notes.append(f"{reason}: {name} at {rate:g} requests per second")
            return trace.with_arrivals(process(rate))
        sessions, requests = turns_by_session(trace.frame)
        start_rate = rate * sessions / requests
        notes.append(
            f"{reason} for {sessions:,} conversations of {requests / sessions:.3g} turns: {name} at "
            f"{start_rate:.4g} starts per second, {rate:g} requests per second in the long run"
        )
        think = THINK if self.think is None else self.think
        notes.append(
            f"later turns follow the previous answer after {_duration(think)}"
            + (" (default of --think)" if self.think is None else "")
        )
        return trace.with_session_arrivals(process(start_rate), think)


def has_conversations(trace: Workload) -> bool:
    """Whether rows are turns of conversations, whose prompts contain the previous answers."""
    if trace.is_synthetic:
        return False
    frame = trace.frame
    turns = {"turn", "continues"} & {*frame.columns}
    return bool(turns) and "session_id" in frame.columns and turns_by_session(frame)[0] < frame.height


def _duration(think: float | DurationDistribution) -> str:
    """A think time as text."""
    return f"{think:g} s" if isinstance(think, (int, float)) else f"a think time of {think!r}"


def _reading_notes(trace: Workload) -> list[str]:
    """Notes about how the trace was read."""
    left_out = trace.metadata["rows_left_out"]
    notes = [
        f"{count:,} rows left out: {reason.replace('_', ' ')}" for reason, count in left_out.items() if count
    ]
    if "expected_requests" in trace.metadata:
        notes.append(
            f"requests drawn from {trace.metadata['clients']:,} clients' measured arrivals and lengths"
        )
    if without := trace.metadata.get("clients_left_out", {}).get("no_lengths"):
        notes.append(f"{len(without):,} clients left out: no lengths")
    if isinstance(trace.metadata["token_count"], dict):
        method = ", ".join(f"{name} {value}" for name, value in trace.metadata["token_count"].items())
        notes.append(f"tokens counted from texts: {method}")
    return notes
