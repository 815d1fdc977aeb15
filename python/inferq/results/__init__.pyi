from .finding import Finding as Finding
from .result import Result as Result
from .slo import Slo as Slo
from .stored_result import StoredResult as StoredResult
from .work_conservation import WorkConservation as WorkConservation
