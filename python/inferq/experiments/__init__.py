"""Experiments over many runs: comparison, capacity, plans, sweeps, validation, gates."""

from inferq._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
