"""How long does one iteration take? The models, and what makes one of measurements.

| question | call |
|---|---|
| Which models are there? | `inferq.timing.models`, one a file |
| Which measured tables come with inferq? | `shipped_tables` |
| What do a model's shape and a datasheet alone say? | `Roofline`, `ModelShape`, `Gpu` |
| Which models and GPUs are known by name? | `known_models`, `known_gpus` |
| How far is that from measured kernels? | `roofline_against_tables` |
| How many tokens of context does a card keep? | `KvMemory` |
| What does a model say that an iteration takes? | `iteration_s` |
| Which model describes these measured iterations? | `fit` |
| How are measured iterations read from a file? | `read_iterations`, `read_vidur_profile` |
| How do the kernels that Vidur timed become a table? | `read_vidur_table` |
| Which iterations did a run have? | `Result.single_iterations` |
| How long do the kernels take on the GPU at hand? | `calibrate` |

Example:
    >>> import inferq as iq
    >>> log = {"duration_s": [0.01, 0.011, 0.014], "prefill_tokens": [0, 0, 0], "decodes": [1, 2, 5],
    ...     "context_tokens": [100, 200, 500]}
    >>> fitted = iq.timing.fit(log, "PiecewiseLinear", fixed={"knee": 0, "per_context_token": 0})
    >>> round(fitted.model.base, 9), round(fitted.model.per_token, 9)
    (0.009, 0.001)
"""

from inferq._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, TIMING_MODELS="TimingModel")
