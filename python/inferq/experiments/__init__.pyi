from .capacity_search.capacity import capacity as capacity
from .comparison.compare import compare as compare
from .gates.gate import gate as gate
from .plans.plan import plan as plan
from .report import report as report
from .sweeps.sweep import sweep as sweep
from .validation.validate import validate as validate
