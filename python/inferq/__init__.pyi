from . import theory as theory
from . import timing as timing
from ._version import __version__ as __version__
from .errors import ConfigError as ConfigError
from .errors import SimulationError as SimulationError
from .errors import SweepInterrupted as SweepInterrupted
from .errors import SweepStopped as SweepStopped
from .errors import TraceError as TraceError
from .experiments import *
from .reports import *
from .results.result import Result as Result
from .results.stored_result import StoredResult as StoredResult
from .results.work_conservation import WorkConservation as WorkConservation
from .scenario import Scenario as Scenario
from .scheduler import *
from .simulation.simulate import simulate as simulate
from .systems import *
from .timing import Constant as Constant
from .timing import MemoryLinear as MemoryLinear
from .timing import MixedSolo as MixedSolo
from .timing import PiecewiseLinear as PiecewiseLinear
from .timing import Roofline as Roofline
from .timing import TiledGemm as TiledGemm
from .timing import TimingTable as TimingTable
from .workload.distributions import Deterministic as Deterministic
from .workload.distributions import Empirical as Empirical
from .workload.distributions import Exponential as Exponential
from .workload.distributions import Fixed as Fixed
from .workload.distributions import Gamma as Gamma
from .workload.distributions import Geometric as Geometric
from .workload.distributions import Lognormal as Lognormal
from .workload.distributions import LogUniform as LogUniform
from .workload.distributions import OnOff as OnOff
from .workload.distributions import Poisson as Poisson
from .workload.distributions import PoissonLength as PoissonLength
from .workload.distributions import TimeVarying as TimeVarying
from .workload.distributions import Uniform as Uniform
from .workload.distributions import Weibull as Weibull
from .workload.traces.read_trace import read_trace as read_trace
from .workload.workload import Workload as Workload
