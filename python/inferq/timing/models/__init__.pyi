from .constant import Constant as Constant
from .memory_linear import MemoryLinear as MemoryLinear
from .mixed_solo import MixedSolo as MixedSolo
from .piecewise_linear import PiecewiseLinear as PiecewiseLinear
from .roofline import Roofline as Roofline
from .tiled_gemm import TiledGemm as TiledGemm
