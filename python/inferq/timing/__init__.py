"""How long does one iteration take? The models, and what makes one of measurements.

| question | call |
|---|---|
| Which models are there? | `inferq.timing.models`, `TimingTable` |
| Which measured tables come with inferq? | `shipped_tables` |
| What do a model's shape and a datasheet alone say? | `Roofline`, `ModelShape`, `Gpu` |
| Which models and GPUs are known by name? | `known_models`, `known_gpus` |
| How far is that from measured kernels? | `roofline_against_tables` |
| How many tokens of context does a card keep? | `KvMemory` |
| What does a model say that an iteration takes? | `iteration_s` |
| Which model describes these measured iterations? | `fit` |
| How are measured iterations read from a file? | `read_iterations`, `read_vidur_profile` |
| How do the kernels that Vidur timed become a table? | `read_vidur_table` |
| Which iterations did a run have? | `iterations_of` |
| How long do the kernels take on the GPU at hand? | `calibrate` |

Example:
    >>> import inferq as iq
    >>> log = {"duration_s": [0.01, 0.011, 0.014], "prefill_tokens": [0, 0, 0], "decodes": [1, 2, 5],
    ...     "context_tokens": [100, 200, 500]}
    >>> fitted = iq.timing.fit(log, "PiecewiseLinear", fixed={"knee": 0, "per_context_token": 0})
    >>> round(fitted.model.base, 9), round(fitted.model.per_token, 9)
    (0.009, 0.001)
"""

from typing import TYPE_CHECKING

from inferq.timing.models import Constant, MemoryLinear, MixedSolo, PiecewiseLinear, TiledGemm
from inferq.timing.models import TimingModel as TimingModel
from inferq.timing.roofline import Roofline
from inferq.timing.table import ChunkPart, DecodePart, LinearPart, TimingTable

if TYPE_CHECKING:
    from inferq.timing.calibration.calibrating import calibrate
    from inferq.timing.card import KvMemory
    from inferq.timing.catalogue import known_gpus, known_models
    from inferq.timing.fits.fitting import Fit, fit
    from inferq.timing.fits.readers import iterations_of, read_iterations
    from inferq.timing.fits.vidur import read_vidur_profile, read_vidur_table
    from inferq.timing.gpu import Gpu
    from inferq.timing.measured.shipped import shipped_tables
    from inferq.timing.price import iteration_s
    from inferq.timing.residuals import roofline_against_tables
    from inferq.timing.shape import ModelShape

__all__ = [  # noqa: RUF022  # the models, then what makes one
    "Constant",
    "PiecewiseLinear",
    "MemoryLinear",
    "MixedSolo",
    "TiledGemm",
    "TimingTable",
    "LinearPart",
    "ChunkPart",
    "DecodePart",
    "shipped_tables",
    "Roofline",
    "ModelShape",
    "Gpu",
    "known_models",
    "known_gpus",
    "roofline_against_tables",
    "KvMemory",
    "iteration_s",
    "fit",
    "Fit",
    "read_iterations",
    "read_vidur_profile",
    "read_vidur_table",
    "iterations_of",
    "calibrate",
]

TIMING_MODELS = (Constant, PiecewiseLinear, MemoryLinear, MixedSolo, TiledGemm, TimingTable, Roofline)

if not TYPE_CHECKING:  # hidden from type checkers, which would otherwise take any name for an attribute
    _HOME = {
        "calibrate": "calibration.calibrating",
        "fit": "fits.fitting",
        "Fit": "fits.fitting",
        "Gpu": "gpu",
        "iteration_s": "price",
        "iterations_of": "fits.readers",
        "known_gpus": "catalogue",
        "known_models": "catalogue",
        "KvMemory": "card",
        "ModelShape": "shape",
        "read_iterations": "fits.readers",
        "read_vidur_profile": "fits.vidur",
        "read_vidur_table": "fits.vidur",
        "roofline_against_tables": "residuals",
        "shipped_tables": "measured.shipped",
    }

    def __getattr__(name):
        """Import what makes a model when it is first used: an engine needs none of it."""
        from importlib import import_module

        if name not in _HOME:
            raise AttributeError(f"module 'inferq.timing' has no attribute {name!r}")
        value = getattr(import_module(f"inferq.timing.{_HOME[name]}"), name)
        globals()[name] = value
        return value

    def __dir__():
        return sorted({*globals(), *__all__})
