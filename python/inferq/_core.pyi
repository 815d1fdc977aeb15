from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "ConfigError",
    "SimulationError",
    "TraceError",
    "check",
    "draw",
    "draw_arrivals",
    "draw_lengths",
    "draw_rows",
    "simulate",
    "summarise",
]

class ConfigError(ValueError): ...
class TraceError(ValueError): ...
class SimulationError(RuntimeError): ...

def check(part: str, description: str) -> None: ...
def draw(law: str, seed: int) -> dict[str, NDArray[Any]]: ...
def draw_arrivals(law: str, requests: int, seed: int) -> NDArray[np.float64]: ...
def draw_lengths(law: str, requests: int, seed: int, source: str) -> NDArray[np.int32]: ...
def draw_rows(rows: int, requests: int, seed: int) -> NDArray[np.uint32]: ...
def simulate(
    scenario: str,
    arrival_s: NDArray[np.float64],
    prompt_tokens: NDArray[np.int32],
    output_tokens: NDArray[np.int32],
    class_codes: NDArray[np.uint32] | None,
    classes: list[str],
    priority: NDArray[np.int64] | None,
    patience_s: NDArray[np.float64] | None,
    progress: Callable[[int, int], object] | None,
) -> dict[str, Any]: ...
def summarise(
    groups: NDArray[np.uint32], group_count: int, columns: dict[str, NDArray[np.float64]]
) -> dict[str, dict[str, NDArray[np.float64]]]: ...
