"""User-defined schedulers: the view that they receive and the batch that they return.

A class derived from `Scheduler` has a method `plan`, which receives a `View` and returns a `Batch`. See
`docs/guides/write-a-scheduler.md`.

Example:
    A policy that serves one request at a time:

    >>> import inferq as iq
    >>> class OneByOne(iq.Scheduler):
    ...     def plan(self, view: iq.View) -> iq.Batch:
    ...         running = view.running
    ...         if len(running) == 0:
    ...             waiting = view.waiting
    ...             return iq.Batch(prefill=[(waiting.id[0], waiting.prompt_left[0])])
    ...         return iq.Batch(decode=running.id)
    >>> engine = iq.Engine(timing=iq.Constant(1.0), scheduler=OneByOne(), kv=iq.KvCache.unlimited())
    >>> workload = {"arrival_s": [0.0, 0.0], "prompt_tokens": [8, 8], "output_tokens": [3, 2]}
    >>> iq.simulate(workload, engine).requests["finish_s"].to_list()
    [3.0, 5.0]
"""

from inferq._core import Batch, Requests, View

__all__ = ["Batch", "Requests", "View"]
