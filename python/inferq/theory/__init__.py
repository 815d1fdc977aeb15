"""Queueing theory for scenarios: capacities, stability, thresholds and allocations.

Every function accepts a `Workload` or request classes with rates, and returns a frozen result with all its
numbers; `explain()` inserts the numbers into the inequality. The formulas are from five papers on LLM
serving, named in each docstring.

| question | function |
|---|---|
| How many tokens can be computed? | `token_capacity` (li2025) |
| What do the sequence limit or whole batches allow? | `sequence_capacity`, `request_level_capacity` |
| What is the load of each engine of a network? | `network_capacity` (li2025) |
| How many requests fit the KV cache over time? | `kv_capacity`, `replicas_needed`, `slot` (nie2026) |
| What do whole tiles allow? | `tile_capacity` (bari2025) |
| What is the fluid equilibrium? | `fluid` (ao2025) |
| Which thresholds should WAIT use? | `wait_thresholds`, `nested_wait_thresholds` (ao2025) |
| How should a fleet be divided? | `allocation` (lin2026) |
| Is a scenario stable, and which limit binds? | `stability` |
| Was a run stable? | `observed` |
| How far is a run from the theory? | `agree` |
Example:
    >>> import inferq as iq
    >>> chat = iq.theory.RequestClass(rate=10.0, prompt=129, output=112)
    >>> timing = iq.PiecewiseLinear(base=0.0455, per_token=0.0003, knee=64)
    >>> limit = iq.theory.token_capacity(chat, timing, token_budget=512, first_token="decode")
    >>> round(limit.capacity_per_s, 2), limit.stable
    (11.81, True)
"""

from inferq._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
