"""Scheduling policies: admission to the next iteration, and preemption when the cache is full.

A scheduler proposes a batch; the replica enforces token budget, sequence limit and KV blocks. Each file holds
one policy. To add a policy, add such a file and its line in `__init__.pyi`. Definitions:

- "by arrival" means by arrival time, then `id`;
- a sequence slot is free while fewer than `max_seqs` requests run;
- the known tokens of a request are its prompt and the tokens generated so far;
- an iteration's `token_budget` limits the sum of prompt tokens and decodes;
- a preempted request (the victim) loses its blocks and returns to the head of the queue, or to its position
  if the queue is ordered;
- the head of a queue that cannot be admitted blocks later requests, even if they would fit. So does a victim
  at the head, with all tokens that it must recompute, and with `Swap` every request on the host. In `Wait`
  and `ClassPriority` it blocks only its class, in `NestedWait` only its group of prompts. Policies that
  differ document it.
"""

from inferq._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, SCHEDULERS="Scheduler")
