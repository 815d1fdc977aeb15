from .by_key import ByKey as ByKey
from .class_priority import ClassPriority as ClassPriority
from .faster_transformer import FasterTransformer as FasterTransformer
from .k_fcfs import KFcfs as KFcfs
from .nested_wait import NestedWait as NestedWait
from .orca import Orca as Orca
from .preemption import Recompute as Recompute
from .preemption import Restart as Restart
from .preemption import Swap as Swap
from .rad import Rad as Rad
from .rad_phased import RadPhased as RadPhased
from .sarathi import Sarathi as Sarathi
from .scheduler import Scheduler as Scheduler
from .sglang import Sglang as Sglang
from .slai import DynamicOffset as DynamicOffset
from .slai import Slai as Slai
from .slot_greedy import SlotGreedy as SlotGreedy
from .speculation import Speculation as Speculation
from .user_defined import Batch as Batch
from .user_defined import View as View
from .vllm_v0 import VllmV0 as VllmV0
from .vllm_v1 import VllmV1 as VllmV1
from .wait import Wait as Wait

SCHEDULERS: tuple[type[Scheduler], ...]
"""Every policy that an engine may be described with."""
