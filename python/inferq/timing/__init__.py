"""Timing: models of the duration of an iteration, measured tables, and fits to measurements.

| task | call |
|---|---|
| Choose a model | `inferq.timing.models`, one per file |
| List the shipped measured tables | `shipped_tables` |
| Estimate from a model's shape and a datasheet | `Roofline`, `ModelShape`, `Gpu` |
| Describe a model by its layers | `ModelShape`, `LayerGroup`, `Attention`, `Experts` and others |
| List known models and GPUs | `known_models`, `known_gpus` |
| Compare rooflines with measured kernels | `roofline_against_tables` |
| Compute the KV cache size of a GPU | `KvMemory` |
| Compute the duration of one iteration | `iteration_s` |
| Fit a model to measured iterations | `fit` |
| Read measured iterations from a file | `read_iterations`, `read_vidur_profile` |
| Convert Vidur's kernel times to a table | `read_vidur_table` |
| Extract the iterations of a run | `Result.single_iterations` |
| Measure kernels on the local GPU | `calibrate` |

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
