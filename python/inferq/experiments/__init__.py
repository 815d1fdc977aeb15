"""Conclusions from many runs: comparison, capacity, sweeps, a gate."""

from inferq._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
