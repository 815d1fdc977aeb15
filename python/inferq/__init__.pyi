from . import dist as dist
from . import research as research
from . import theory as theory
from . import timing as timing
from ._version import __version__ as __version__
from .errors import ConfigError as ConfigError
from .errors import ResultError as ResultError
from .errors import SimulationError as SimulationError
from .errors import SweepInterrupted as SweepInterrupted
from .errors import SweepStopped as SweepStopped
from .errors import TraceError as TraceError
from .experiments import *
from .interval import Interval as Interval
from .interval import confidence_interval as confidence_interval
from .results import *
from .scenario import Scenario as Scenario
from .scheduler.by_key import ByKey as ByKey
from .scheduler.class_priority import ClassPriority as ClassPriority
from .scheduler.preemption import Recompute as Recompute
from .scheduler.preemption import Swap as Swap
from .scheduler.sarathi import Sarathi as Sarathi
from .scheduler.scheduler import Scheduler as Scheduler
from .scheduler.sglang import Sglang as Sglang
from .scheduler.speculation import Speculation as Speculation
from .scheduler.user_defined import Batch as Batch
from .scheduler.user_defined import View as View
from .scheduler.vllm_v0 import VllmV0 as VllmV0
from .scheduler.vllm_v1 import VllmV1 as VllmV1
from .serving.serve import serve as serve
from .simulation.simulate import simulate as simulate
from .systems import *
from .timing.models.constant import Constant as Constant
from .timing.models.piecewise_linear import PiecewiseLinear as PiecewiseLinear
from .timing.models.roofline import Roofline as Roofline
from .timing.tables.timing_table import TimingTable as TimingTable
from .workload.traces.read_trace import read_trace as read_trace
from .workload.workload import Workload as Workload
