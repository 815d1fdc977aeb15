"""Requests that come: columns, distributions to draw them from, and traces of real services."""

from inferq._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
