"""How short can an iteration be?"""

from __future__ import annotations

from inferq.errors import ConfigError
from inferq.systems.engine import Engine
from inferq.timing import (
    Constant,
    MemoryLinear,
    MixedSolo,
    PiecewiseLinear,
    Roofline,
    TiledGemm,
    TimingModel,
    TimingTable,
)


def least_iteration_s(engine: Engine) -> float:
    """No iteration is shorter: the kernels of one token and, as the engine has it, the host."""
    kernels_s = _least_of_kernels_s(engine.timing)
    host = engine.overhead
    if host is None:
        return kernels_s
    host_s = host.base_s + host.per_sequence_s
    return max(kernels_s, host_s) if host.overlapped else kernels_s + host_s


def _least_of_kernels_s(timing: TimingModel) -> float:
    if isinstance(timing, Constant):
        return timing.seconds
    if isinstance(timing, (PiecewiseLinear, MemoryLinear)):
        return timing.base
    if isinstance(timing, MixedSolo):
        return min(timing.alpha, timing.solo)
    if isinstance(timing, TiledGemm):
        return timing.linear_s_per_tile + timing.other_s_per_token
    if isinstance(timing, Roofline):
        return timing.base_s + timing.all_reduce_latency_s + timing.linear_weight_s
    if isinstance(timing, TimingTable):
        return _least_of_table_s(timing)
    raise ConfigError(f"timing: nothing is known of {type(timing).__name__}")


def _least_of_table_s(table: TimingTable) -> float:
    """What the linear layers take at least; 0 where their last line falls and goes on falling."""
    tokens, seconds = table.linear.tokens, table.linear.seconds
    if seconds[-1] < seconds[-2]:
        return 0.0
    slope_s = (seconds[1] - seconds[0]) / (tokens[1] - tokens[0])
    return max(0.0, min(*seconds, seconds[0] - slope_s * (tokens[0] - 1)))
