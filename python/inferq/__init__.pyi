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
from .results import *
from .scenario import Scenario as Scenario
from .scheduler import *
from .serving.serve import serve as serve
from .simulation.simulate import simulate as simulate
from .systems import *
from .timing.models import *
from .timing.tables.timing_table import TimingTable as TimingTable
from .workload import *
