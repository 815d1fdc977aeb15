"""How long does one iteration take? Every model prices a batch from its shape alone.

The shape of a batch: chunks (`c` tokens of a prompt at context `x`) and decode rows (one token each at some
context), all as they stand before the iteration. Seconds mean what was typed: `0.0455` is exactly 45.5 ms in
the core. A batch that comes out at 0 seconds stops the run with a `SimulationError`.

Each file holds one model; adding one is such a file and its line in `__init__.pyi`.
"""

from inferq._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
