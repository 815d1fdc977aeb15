"""Pictures of results, and the pages that carry them."""

from inferq._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
