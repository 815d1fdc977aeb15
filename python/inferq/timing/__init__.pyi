from .calibration.calibrate import calibrate as calibrate
from .fits.fit import Fit as Fit
from .fits.fit import fit as fit
from .fits.iteration_log import read_iterations as read_iterations
from .fits.vidur import read_vidur_profile as read_vidur_profile
from .fits.vidur import read_vidur_table as read_vidur_table
from .hardware.catalog import known_gpus as known_gpus
from .hardware.formats import Checkpoint as Checkpoint
from .hardware.gpu import Gpu as Gpu
from .hardware.kv_memory import KvMemory as KvMemory
from .hardware.layers import Attention as Attention
from .hardware.layers import Dense as Dense
from .hardware.layers import Experts as Experts
from .hardware.layers import LatentAttention as LatentAttention
from .hardware.layers import LayerGroup as LayerGroup
from .hardware.layers import Recurrent as Recurrent
from .hardware.layers import SparseIndex as SparseIndex
from .hardware.model_shape import ModelShape as ModelShape
from .hardware.model_shape import known_models as known_models
from .models import *
from .models.timing_model import TimingModel as TimingModel
from .models.timing_model import iteration_s as iteration_s
from .tables.parts import ChunkPart as ChunkPart
from .tables.parts import DecodePart as DecodePart
from .tables.parts import LinearPart as LinearPart
from .tables.roofline_residuals import roofline_against_tables as roofline_against_tables
from .tables.shipped import shipped_tables as shipped_tables
from .tables.timing_table import TimingTable as TimingTable

TIMING_MODELS: tuple[type[TimingModel], ...]
