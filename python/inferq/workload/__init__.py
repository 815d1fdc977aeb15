"""Workloads: requests from data, distributions and traces."""

from inferq._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
