"""Which requests join the next iteration, and who must leave when the cache is full?

A scheduler only asks; the replica checks the token budget, the cap on sequences and the KV blocks. Each file
holds one family of policies. In their rules

- "by arrival" means by arrival time, then `id`;
- a seat is free while fewer than `max_seqs` requests run;
- the known tokens of a request are its prompt and what it has generated so far;
- an iteration's `token_budget` bounds the sum of prompt tokens and decodes in it;
- a victim of a preemption loses its blocks and returns to the head of the queue, or, where the queue has an
  order of its own, to its place in it.
"""

from inferq.scheduler.by_key import ByKey, Order, Request
from inferq.scheduler.class_priority import ClassPriority
from inferq.scheduler.k_fcfs import KFcfs
from inferq.scheduler.orca import FasterTransformer, Orca
from inferq.scheduler.rad import Rad, RadPhased
from inferq.scheduler.sarathi import Sarathi
from inferq.scheduler.scheduler import Preemption, Recompute, Scheduler, Swap
from inferq.scheduler.sglang import Sglang
from inferq.scheduler.slai import DynamicOffset, Slai
from inferq.scheduler.slot_greedy import SlotGreedy
from inferq.scheduler.user_defined import Batch, Requests, View
from inferq.scheduler.vllm_v1 import VllmV0, VllmV1
from inferq.scheduler.wait import NestedWait, Wait

__all__ = [
    "SCHEDULERS",
    "Batch",
    "ByKey",
    "ClassPriority",
    "DynamicOffset",
    "FasterTransformer",
    "KFcfs",
    "NestedWait",
    "Orca",
    "Order",
    "Preemption",
    "Rad",
    "RadPhased",
    "Recompute",
    "Request",
    "Requests",
    "Sarathi",
    "Scheduler",
    "Sglang",
    "Slai",
    "SlotGreedy",
    "Swap",
    "View",
    "VllmV0",
    "VllmV1",
    "Wait",
]

SCHEDULERS = (
    Sarathi,
    VllmV1,
    VllmV0,
    Sglang,
    Orca,
    FasterTransformer,
    KFcfs,
    Rad,
    RadPhased,
    Slai,
    Wait,
    NestedWait,
    SlotGreedy,
    ClassPriority,
)
"""Every policy that an engine may be described with."""
