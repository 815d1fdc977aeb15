"""What became of the requests: tables, summaries, files."""

from inferq._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
