"""Timing models: the duration of an iteration from the shape of its batch.

The shape of a batch is its chunks (`c` tokens of a prompt at context `x`) and its decode rows (one token each
at some context), before the iteration. Seconds are exact: `0.0455` is exactly 45.5 ms in the core. A batch of
0 seconds stops the run with a `SimulationError`.

Each file holds one model. To add a model, add such a file and its line in `__init__.pyi`.
"""

from inferq._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
