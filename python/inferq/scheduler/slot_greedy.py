"""SlotGreedy: the greedy policy of the KV-memory stability model, slot by slot."""

from __future__ import annotations

from dataclasses import dataclass

from inferq.scheduler.scheduler import Scheduler


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotGreedy(Scheduler):
    """Requests advance if their next step fits in memory, oldest first; the others leave memory at no cost.

    Each iteration visits the started requests by arrival. A request advances if its context after its next
    step (a decode, or a chunk of at most `chunk` tokens) fits next to those before it. Otherwise it leaves
    memory, keeps its context on the host and is skipped. Then it visits the queue by arrival, up to the first
    request whose first chunk does not fit. Memory is the only limit: there is no token budget and no limit on
    running requests. Leaving memory counts as a preemption; leaving and returning cost nothing.

    Source: nie2026 section 3, with ŝ = `chunk`; `KvCache(block=1)` and `Constant` timing make its slots. The
        paper uses s/ŝ as a real number of chunks, which its three printed rates μ require. Here the last
        chunk of a prompt is shorter and takes an iteration of its own.

    Args:
        chunk: maximum prompt tokens of a request in an iteration, at least 1.

    Raises:
        ConfigError: a number outside this range.

    Example:
        Ten tokens of memory hold both contexts up to five each; then the younger leaves for an iteration:

        >>> import inferq as iq
        >>> kv = iq.KvCache(tokens=10, block=1)
        >>> engine = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.research.SlotGreedy(chunk=4), kv=kv)
        >>> workload = {"arrival_s": [0.0, 0.0], "prompt_tokens": [4, 4], "output_tokens": [3, 3]}
        >>> iq.simulate(workload, engine).requests.select("finish_s", "preemptions").rows()
        [(3.0, 0), (4.0, 1)]
    """

    chunk: int = 512
