"""Schedulers, timing models and controls of research papers, in one namespace.

| what | classes |
|---|---|
| schedulers | `FasterTransformer`, `KFcfs`, `NestedWait`, `Orca`, `Rad`, `RadPhased` |
| | `Slai`, `SlotGreedy`, `Wait` |
| their settings | `DynamicOffset` (of `Slai`), `Restart` (preemption of `Wait` and `NestedWait`) |
| timing models | `MemoryLinear`, `MixedSolo`, `TiledGemm` |
| control of a fleet | `GateAndRoute` with an `Allocation` |

The schedulers of real engines are at the root: `iq.VllmV1`, `iq.VllmV0`, `iq.Sglang`, `iq.Sarathi`.

Example:
    >>> import inferq as iq
    >>> iq.research.Orca(max_seqs=32, max_model_len=4096)
    Orca(max_seqs=32, max_model_len=4096, token_budget=None, chunked=False)
"""

from inferq.scheduler.faster_transformer import FasterTransformer
from inferq.scheduler.k_fcfs import KFcfs
from inferq.scheduler.nested_wait import NestedWait
from inferq.scheduler.orca import Orca
from inferq.scheduler.preemption import Restart
from inferq.scheduler.rad import Rad
from inferq.scheduler.rad_phased import RadPhased
from inferq.scheduler.slai import DynamicOffset, Slai
from inferq.scheduler.slot_greedy import SlotGreedy
from inferq.scheduler.wait import Wait
from inferq.systems.gate_and_route import Allocation, GateAndRoute
from inferq.timing.models.memory_linear import MemoryLinear
from inferq.timing.models.mixed_solo import MixedSolo
from inferq.timing.models.tiled_gemm import TiledGemm

__all__ = [
    "Allocation",
    "DynamicOffset",
    "FasterTransformer",
    "GateAndRoute",
    "KFcfs",
    "MemoryLinear",
    "MixedSolo",
    "NestedWait",
    "Orca",
    "Rad",
    "RadPhased",
    "Restart",
    "Slai",
    "SlotGreedy",
    "TiledGemm",
    "Wait",
]
