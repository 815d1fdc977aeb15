"""Findings: typed observations about a run, a comparison or a plan, and the table of their kinds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from inferq.errors import ConfigError

Severity = Literal["critical", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("critical", "warning", "info")
"""From the most to the least severe."""


class Kind(NamedTuple):
    """A kind of finding: how severe it is, what it means, and what to do."""

    severity: Severity
    meaning: str
    advice: str


ANSWER = "answer"
"""The kind of a line of an answer; its text has no prefix."""

KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        # The system did not serve requests, or served them in a growing queue.
        "overload": Kind(
            "critical",
            "At least 5 % of all requests (and 20) were still waiting at the last arrival, so the queue grew "
            "throughout the run.",
            "Lower the rate or add capacity. Until then, latencies grow with the length of the run.",
        ),
        "rejected": Kind(
            "critical",
            "Requests were rejected because they can never be served, such as a prompt larger than the KV "
            "cache.",
            "Read the reason in the message. Enlarge the limit that it names, or filter these requests.",
        ),
        "abandoned": Kind(
            "critical",
            "Requests left the queue because their patience (`patience_s` or `abandonment`) was exceeded.",
            "Add capacity, or report the share of abandoned requests together with the latencies.",
        ),
        "lost": Kind(
            "critical",
            "Requests failed with their replicas and were not retried.",
            "Raise `retries` of `Failures`, or count these requests as errors.",
        ),
        "stalled": Kind(
            "critical",
            "The scheduler left requests in its queue although no further event could change its decision.",
            "Fix the scheduling policy: it must admit a waiting request when it is idle.",
        ),
        "stranded": Kind(
            "critical",
            "Requests wait for a replica, but all replicas failed and none restarts.",
            "Set `repair_s` of `Failures`, or add an autoscaler.",
        ),
        "link": Kind(
            "critical",
            "Requests bring more KV bytes per second than the hand-off link transfers.",
            "Use a faster link, raise `concurrent` if the link has several paths, or do not disaggregate.",
        ),
        "nothing-arrived": Kind(
            "critical",
            "The run ended before the first request arrived.",
            "Use a longer `horizon_s`, or none.",
        ),
        "nothing-measured": Kind(
            "critical",
            "Warm-up and cool-down exclude every request, so all metrics are empty.",
            "Shorten warm-up and cool-down, or send more requests.",
        ),
        "nothing-finished": Kind(
            "critical",
            "No measured request finished, so there are no latencies.",
            "Use a longer `horizon_s`, or none.",
        ),
        "no-answer": Kind(
            "critical",
            "No rate or no fleet that was tried meets the SLO.",
            "Relax the SLO, use faster hardware, or widen the search.",
        ),
        # The numbers are not what they seem.
        "truncated": Kind(
            "warning",
            "Outputs end early because prompt and output together would exceed `max_model_len`.",
            "Raise `max_model_len`, or filter these requests.",
        ),
        "thrashing": Kind(
            "warning",
            "One request was preempted at least 100 times.",
            "Enlarge the KV cache or lower `max_seqs`.",
        ),
        "horizon": Kind(
            "warning",
            "At least 5 % of the measured requests were unfinished at the horizon. E2E and TPOT exclude "
            "them, queue and TTFT those without admission or first token; the others are faster.",
            "Remove `horizon_s`, or set `cooldown`.",
        ),
        "long-tail": Kind(
            "warning",
            "The P99 of TTFT or of hand-off time is at least 1 s and 10 times the median.",
            "Read where and when the slow requests waited: a burst, one replica, or one side of a "
            "disaggregated fleet.",
        ),
        "beyond-table": Kind(
            "warning",
            "Some iterations are larger than the measurements of the timing table; their times are "
            "extrapolated.",
            "Measure the table over a larger range, or lower the limit of the batch.",
        ),
        "kv-over-memory": Kind(
            "warning",
            "The KV cache is larger than the GPU memory allows for this model.",
            "Remove `kv`, or set it to the size in the message.",
        ),
        "kv-average": Kind(
            "warning",
            "The model has layers with a window or a state, so a token has no fixed size. The capacity of "
            "the KV cache is the engine's average over requests of the maximum length. A hand-off transfers "
            "only the layers that store every token.",
            "Set `max_model_len` close to the longest requests of the workload.",
        ),
        "model-unused": Kind(
            "warning",
            "The `config.json` of the model has keys that may change time or memory and are not simulated.",
            "Read the reasons in the message. Estimate their effect, or remove the keys if they have none.",
        ),
        "number-format": Kind(
            "warning",
            "The GPU has no rate for the number format of the weights; the roofline computes them in BF16.",
            "Measure a timing table. If the GPU computes in this format, set the rate of your `timing.Gpu`.",
        ),
        "across-servers": Kind(
            "warning",
            "A replica has more GPUs than one link joins, such as 8 of a server or 72 of a rack; the slower "
            "network between them is not simulated.",
            "Use fewer GPUs per replica, or set `domain` of your `timing.Gpu`.",
        ),
        "not-work-conserving": Kind(
            "warning",
            "Some iterations loaded fewer tokens than the token budget although more work was available.",
            "Check the scheduling policy. Capacity theorems for work-conserving policies do not apply.",
        ),
        "drained": Kind(
            "warning",
            "A policy that waits for full batches served its last requests below its thresholds, since no "
            "further requests arrived.",
            "Set a cool-down, or use a longer workload. `Result.drained` lists the requests.",
        ),
        "drafts-over-budget": Kind(
            "warning",
            "One row with all its drafts exceeds the token budget, so a request may never be admitted.",
            "Raise `token_budget`, or reduce the number of drafts.",
        ),
        "accepted-too-short": Kind(
            "warning",
            "The column `accepted` has fewer entries than a request needed; later drafts count as rejected.",
            "Add entries to the lists, or use an acceptance rate.",
        ),
        "proposals-assumed": Kind(
            "warning",
            "N-gram speculation has no proposal rate, so every decode step verifies drafts. An n-gram lookup "
            "proposes none if the last tokens do not occur earlier.",
            "Set `Speculation(proposal_rate=…)`, or add the column `proposal_rate`.",
        ),
        "drafts-free": Kind(
            "warning",
            "The timing model assigns no time to draft tokens, so speculative decoding appears free.",
            "Use a timing table, `Roofline` or `PiecewiseLinear`.",
        ),
        "early-turns": Kind(
            "warning",
            "Turns of a conversation arrive before the answer that their prompt contains has finished. "
            "Prefix cache hits are therefore wrong.",
            "Let turns follow the answer: `--think 20`, `.with_think(…)` or `.with_session_arrivals(…)`.",
        ),
        "delta-prompts": Kind(
            "warning",
            "Prompts of later turns are shorter than the conversation before them. If they hold only the new "
            "tokens, prefill, KV memory and cache hits are too low.",
            "Accumulate them: `--deltas`, `deltas = true` or `.accumulate_turns()`.",
        ),
        "unit": Kind(
            "warning",
            "A value is implausible in its unit, such as an SLO of 500 s or a link of 50 bytes per second.",
            "Convert the value. Times are in seconds, link bandwidths in bytes per second.",
        ),
        "coarse-arrivals": Kind(
            "warning",
            "Recorded arrival times are rounded to a coarse grid, so each grid point is a burst.",
            "Spread them within the grid step: `--spread`, `spread = true` or `.spread()`.",
        ),
        "time-origin": Kind(
            "warning",
            "Arrival times start far from 0. Warm-up, horizon and timeline count from 0.",
            "Move the times with `.window(start_s=…)`.",
        ),
        "no-prefix-cache": Kind(
            "warning",
            "The router selects replicas by cached prefixes, and no replica has a prefix cache.",
            "Set `prefix_cache='blocks'` (`--prefix-cache blocks`).",
        ),
        "no-prefixes": Kind(
            "warning",
            "The router selects replicas by prefixes, and the workload does not contain prefixes.",
            "Add `session_id` and `turn`, `prefix_hashes`, `prefix_parts` or `continues`.",
        ),
        "hash-too-long": Kind(
            "warning",
            "The router hashes more tokens than half of the prompts have, so later turns change replicas.",
            "Lower `prefix_tokens`, but keep it above the length of the prefix that all prompts share.",
        ),
        "hot-prefix": Kind(
            "warning",
            "Most requests share the hashed prefix and are routed to one replica.",
            "Raise `prefix_tokens`, or set `load_factor`.",
        ),
        "idle-replicas": Kind(
            "warning",
            "Some replicas served no request.",
            "Use fewer replicas, or check the router.",
        ),
        "never-arrived": Kind(
            "warning",
            "Requests depend on requests that did not finish. They are excluded from all metrics.",
            "Fix the cause: rejected, abandoned or lost requests of the same session or job.",
        ),
        "client-wait": Kind(
            "warning",
            "Requests waited at their clients (`max_in_flight` reached). This wait is in no latency.",
            "Raise `max_in_flight`, lower the rate, or read `client_s` together with the latencies.",
        ),
        "never-sent": Kind(
            "warning",
            "Requests were due while `max_in_flight` was reached. They are excluded from all metrics.",
            "Raise `max_in_flight`.",
        ),
        "events-ignored": Kind(
            "warning",
            "Scheduled failures, drains or starts named a replica to which they did not apply.",
            "Correct the times or the replica numbers of these events.",
        ),
        # Comparisons, capacity searches and plans.
        "model-error": Kind(
            "warning",
            "The margin of a verdict is smaller than the median error of the model on measured servers of "
            "this kind.",
            "Measure the systems, or rely on larger margins. Errors of compared systems may partly cancel.",
        ),
        "no-model-error": Kind(
            "info",
            "No server with this engine was compared with the model, so its error is unknown.",
            "Measure such a server and run `inferq validate`, or treat the result as a direction.",
        ),
        "one-seed": Kind(
            "warning",
            "The comparison has one seed, so there are no intervals and no verdicts.",
            "Use at least ten seeds.",
        ),
        "no-value": Kind(
            "warning",
            "A metric has no value in some runs, so it has no mean.",
            "Measure more requests, or select another metric.",
        ),
        "no-interval": Kind(
            "warning",
            "No interval can be computed for a metric from this trace.",
            "Use a longer trace, or another metric.",
        ),
        "dependent-blocks": Kind(
            "warning",
            "Neighboring blocks of the trace are correlated, so intervals are too narrow.",
            "Use a longer trace.",
        ),
        "no-limit": Kind(
            "warning",
            "An overloaded system has no steady state; means grow with the length of the run.",
            "Lower the rate. Compare overloaded systems by throughput.",
        ),
        "undecided": Kind(
            "warning",
            "The confidence interval contains the limit, so it is unknown whether the SLO is met.",
            "Raise `most_seeds`, or use longer runs.",
        ),
        "stopped": Kind(
            "warning",
            "The time limit ended the search. Undecided options may be cheaper.",
            "Run the search again with `resume`, or allow more time.",
        ),
        "run-length": Kind(
            "warning",
            "The answer depends on the number of requests in a run.",
            "Use more requests.",
        ),
        "not-monotonic": Kind(
            "warning",
            "A lower rate, or a larger fleet, was worse than a higher rate or a smaller fleet.",
            "Use more seeds. If this persists, check the policy.",
        ),
        "one-sample": Kind(
            "warning",
            "The workload is fixed: the answer holds for these requests, and others would give another "
            "answer.",
            "Use a synthetic workload, or several traces.",
        ),
        "no-prices": Kind(
            "warning",
            "No prices were given, so GPUs of every type cost the same.",
            "Set `prices`.",
        ),
        # What is worth knowing.
        "unmeasured": Kind(
            "info",
            "The iteration times of an engine are a roofline, because no measured table of the model is "
            "shipped for this GPU, number of GPUs and number formats.",
            "Install the extra `inferq[tables]`, with which `Engine.on` bakes the table, or set `timing`.",
        ),
        "canceled": Kind(
            "info",
            "Clients canceled requests, as the workload specifies (`cancel_s`).",
            "Nothing, if intended. Canceled requests count as abandoned.",
        ),
        "epoch-times": Kind(
            "info",
            "Arrival times were dates or counted from 1970; they are taken relative to the first request.",
            "Nothing, if the time of the first request in the message is correct.",
        ),
        "lpm-without-cache": Kind(
            "info",
            "SGLang's `lpm` policy orders requests as `fcfs` if there is no prefix cache.",
            "Set `prefix_cache='radix'`.",
        ),
        "mixed-without-chunks": Kind(
            "info",
            "`mixed=True` has no effect without `chunk_tokens`.",
            "Set `chunk_tokens`.",
        ),
        "first-token": Kind(
            "info",
            "Where first tokens of a disaggregated fleet are counted, which determines its TTFT.",
            'Set `first_token` of the engines: `"decode"` is what clients of vLLM, Dynamo and llm-d receive.',
        ),
        "assumption": Kind(
            "info",
            "An assumption that a plan makes.",
            "Check that it holds for your service.",
        ),
        ANSWER: Kind("info", "A line of the answer of a search or a plan.", "Nothing."),
    }
)
"""Every kind of finding, by its stable name."""


class Finding(str):
    """An observation about a run, a comparison or a plan: a text with a stable kind and its numbers.

    A finding is a `str`, `kind: message`, so that lists of findings print and join as texts. Test for
    `kind`, which is stable; texts may change. `data` holds the numbers of the message.

    Args:
        kind: a name in `KINDS`.
        message: what was observed, how much, what it means, and what to do.
        data: the numbers and names in the message, ready for JSON; names carry units.

    Raises:
        ConfigError: an unknown kind.

    Example:
        >>> import inferq as iq
        >>> engine = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.Sarathi(), kv=iq.KvCache(tokens=64))
        >>> workload = {"arrival_s": [0.0, 0.5], "prompt_tokens": [10, 900], "output_tokens": [3, 1]}
        >>> (finding,) = iq.simulate(workload, engine).findings
        >>> finding.kind, finding.severity, finding.data["count"]
        ('rejected', 'critical', 1)
    """

    _kind: str
    _message: str
    _data: dict[str, Any]

    def __new__(cls, kind: str, message: str, data: Mapping[str, Any] | None = None) -> Finding:
        """Join kind and message; a line of an answer has no prefix."""
        if kind not in KINDS:
            raise ConfigError("kind", f"{kind!r} is not a kind of finding; see inferq.results.finding.KINDS")
        finding = super().__new__(cls, message if kind == ANSWER else f"{kind}: {message}")
        vars(finding).update(_kind=kind, _message=str(message), _data=dict(data or {}))
        return finding

    @classmethod
    def from_json(cls, parts: Mapping[str, Any]) -> Finding:
        """The finding of a description, as `to_json` returns it."""
        return cls(parts["kind"], parts["message"], parts["data"])

    @property
    def kind(self) -> str:
        """The stable name of what was observed, a key of `KINDS`."""
        return self._kind

    @property
    def severity(self) -> Severity:
        """`"critical"`: requests were not served or nothing is measured; `"warning"`; or `"info"`."""
        return KINDS[self._kind].severity

    @property
    def message(self) -> str:
        """The text without the kind."""
        return self._message

    @property
    def data(self) -> Mapping[str, Any]:
        """The numbers and names in the message."""
        return MappingProxyType(self._data)

    def about(self, subject: str, **data: Any) -> Finding:
        """The same finding about a subject, such as the name of a system, which precedes the message."""
        return Finding(self._kind, f"{subject}: {self._message}", {**self._data, **data})

    def to_json(self) -> dict[str, Any]:
        """`kind`, `severity`, `message` and `data`."""
        return {
            "kind": self._kind,
            "severity": self.severity,
            "message": self._message,
            "data": dict(self._data),
        }

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Finding is read-only: cannot set {name}")

    def __reduce__(self) -> tuple[Any, ...]:
        return Finding, (self._kind, self._message, self._data)


ONE_SAMPLE = Finding(
    "one-sample", "a fixed workload is one sample: other requests of the same kind would give another answer"
)


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """Findings from the most to the least severe; those of one severity keep their order."""
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))
