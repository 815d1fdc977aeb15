"""Systems: engines, replicas behind a router, prefill/decode disaggregation, networks."""

from inferq._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
