"""What serves requests: engines, replicas behind a router, prefill and decode apart, networks."""

from inferq._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
