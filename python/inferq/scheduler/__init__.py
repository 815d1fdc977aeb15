"""Which requests join the next iteration, and which must leave when the cache is full?

A scheduler only asks; the replica checks the token budget, the cap on sequences and the KV blocks. Each file
holds one policy; adding one is such a file and its line in `__init__.pyi`. In their rules

- "by arrival" means by arrival time, then `id`;
- a seat is free while fewer than `max_seqs` requests run;
- the known tokens of a request are its prompt and what it has generated so far;
- an iteration's `token_budget` bounds the sum of prompt tokens and decodes in it;
- a victim of a preemption loses its blocks and returns to the head of the queue, or, where the queue has an
  order of its own, to its place in it;
- the head of a queue that cannot be admitted blocks those behind it, whatever room there is for them. So does
  a victim that has become the head, with all that it must compute anew, and with `Swap` every request that is
  still on the host. In `Wait` and `ClassPriority` it blocks its own class alone, in `NestedWait` its own
  group of prompts. Where a policy puts victims elsewhere, its own page says so.
"""

from inferq._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, SCHEDULERS="Scheduler")
