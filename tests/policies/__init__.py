"""One file for each built-in scheduler: its properties for the test suites, and worked cases.

To add a scheduler, copy the shortest file, `k_fcfs.py`: its `Policy`, and a drawn worked case for each
sentence of its rule. The suites collect the folder.
"""

import re
from importlib import import_module
from pathlib import Path

from inferq.scheduler import SCHEDULERS

from ..policy import Policy


def file_of(kind: str) -> str:
    """`VllmV1` is in `vllm_v1.py`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind).lower()


FILES = {path.stem for path in Path(__file__).parent.glob("*.py")} - {"__init__"}
POLICIES: dict[str, Policy] = {
    kind.__name__: import_module(f".{file_of(kind.__name__)}", __name__).POLICY
    for kind in SCHEDULERS
    if file_of(kind.__name__) in FILES
}
