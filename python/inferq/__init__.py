"""A bit-exact simulator of LLM inference serving, fast enough for real traces.

The road of a request: workload → router → replica (scheduler + KV cache + timing) → results.

Example:
    >>> import inferq as iq
    >>> engine = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.Sarathi(), kv=iq.KvCache.unlimited())
    >>> workload = iq.Workload({"arrival_s": [0.0], "prompt_tokens": [10], "output_tokens": [3]})
    >>> iq.simulate(workload, engine).requests.select("first_token_s", "finish_s").rows()
    [(1.0, 3.0)]
"""

from inferq._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, namespaces=("dist", "research"))
