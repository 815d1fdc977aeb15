from .calibration.calibrate import calibrate as calibrate
from .fits.fit import Fit as Fit
from .fits.fit import fit as fit
from .fits.iteration_log import read_iterations as read_iterations
from .fits.vidur import read_vidur_profile as read_vidur_profile
from .fits.vidur import read_vidur_table as read_vidur_table
from .hardware.catalogue import known_gpus as known_gpus
from .hardware.catalogue import known_models as known_models
from .hardware.gpu import Gpu as Gpu
from .hardware.kv_memory import KvMemory as KvMemory
from .hardware.model_shape import ModelShape as ModelShape
from .models import Constant as Constant
from .models import MemoryLinear as MemoryLinear
from .models import MixedSolo as MixedSolo
from .models import PiecewiseLinear as PiecewiseLinear
from .models import TiledGemm as TiledGemm
from .models import TimingModel as TimingModel
from .models import iteration_s as iteration_s
from .roofline import Roofline as Roofline
from .tables.roofline_residuals import roofline_against_tables as roofline_against_tables
from .tables.shipped import shipped_tables as shipped_tables
from .timing_table import ChunkPart as ChunkPart
from .timing_table import DecodePart as DecodePart
from .timing_table import LinearPart as LinearPart
from .timing_table import TimingTable as TimingTable

TIMING_MODELS: tuple[type[TimingModel], ...]
