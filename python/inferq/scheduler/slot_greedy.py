"""SlotGreedy: the greedy policy of the KV-memory stability model, slot by slot."""

from __future__ import annotations

from dataclasses import dataclass

from inferq.scheduler.scheduler import Scheduler


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotGreedy(Scheduler):
    """Requests whose next step fits the memory advance, the oldest first; the others step out at no cost.

    Each iteration goes through the requests that have begun, by arrival: one whose context after its next
    step (a decode, or a chunk of at most `chunk` tokens) fits beside those before it advances; one that does
    not fit steps out of memory, keeps its context on the host and is skipped. Then the queue by arrival,
    until the first whose first chunk does not fit. Memory is the only limit: there is no token budget and no
    cap on how many run. Stepping out counts as a preemption and costs nothing, nor does coming back.

    Source: nie2026 section 3, with ŝ = `chunk`; `KvCache(block=1)` and `Constant` timing make its slots. The
        paper takes s/ŝ as a real number of chunks; only so do its three printed rates μ come out. Here the
        last chunk of a prompt is shorter and takes an iteration of its own.

    Args:
        chunk: most prompt tokens of one request in one iteration, at least 1.

    Raises:
        ConfigError: a number outside this range.

    Example:
        Ten tokens of memory hold both contexts up to five each; then the younger steps out for an iteration:

        >>> import inferq as iq
        >>> kv = iq.KvCache(tokens=10, block=1)
        >>> engine = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.SlotGreedy(chunk=4), kv=kv)
        >>> workload = {"arrival_s": [0.0, 0.0], "prompt_tokens": [4, 4], "output_tokens": [3, 3]}
        >>> iq.simulate(workload, engine).requests.select("finish_s", "preemptions").rows()
        [(3.0, 0), (4.0, 1)]
    """

    chunk: int = 512
