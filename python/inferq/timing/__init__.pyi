from .calibration.calibrating import calibrate as calibrate
from .card import KvMemory as KvMemory
from .catalogue import known_gpus as known_gpus
from .catalogue import known_models as known_models
from .fits.fitting import Fit as Fit
from .fits.fitting import fit as fit
from .fits.readers import iterations_of as iterations_of
from .fits.readers import read_iterations as read_iterations
from .fits.vidur import read_vidur_profile as read_vidur_profile
from .fits.vidur import read_vidur_table as read_vidur_table
from .gpu import Gpu as Gpu
from .measured.shipped import shipped_tables as shipped_tables
from .models import Constant as Constant
from .models import MemoryLinear as MemoryLinear
from .models import MixedSolo as MixedSolo
from .models import PiecewiseLinear as PiecewiseLinear
from .models import TiledGemm as TiledGemm
from .models import TimingModel as TimingModel
from .price import iteration_s as iteration_s
from .residuals import roofline_against_tables as roofline_against_tables
from .roofline import Roofline as Roofline
from .shape import ModelShape as ModelShape
from .table import ChunkPart as ChunkPart
from .table import DecodePart as DecodePart
from .table import LinearPart as LinearPart
from .table import TimingTable as TimingTable

TIMING_MODELS: tuple[type[TimingModel], ...]
