"""Queue orders: by arrival, by length, or by a user-defined function."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

from inferq._lazy import NDArray, np, pl
from inferq.description import Description
from inferq.errors import ConfigError


class Request(NamedTuple):
    """The request that a key function receives; None for a column that the workload lacks.

    The output length is not included, because a server does not know it.
    """

    id: int
    """Its row in the workload."""
    arrival_s: float
    prompt_tokens: int
    class_name: str | None = None
    priority: int | None = None
    itl_slo_s: float | None = None
    ttft_slo_s: float | None = None
    session_id: str | int | None = None


@dataclass(frozen=True, slots=True)
class ByKey(Description):
    """Queue order by a user-defined function: lower first, ties by arrival, then `id`.

    The function is called once for each request, in the order of ids, before the run begins. A key never
    changes: a preempted request returns to its position. Keys are converted to float64. For a request that
    depends on others (sessions, networks), `arrival_s` is the value in the workload, not the actual arrival.

    The JSON form of an engine with this order holds `"ByKey"` only and cannot be read back.

    Args:
        key: accepts a `inferq.scheduler.Request` (`id`, `arrival_s`, `prompt_tokens`, `class_name`,
            `priority`, `itl_slo_s`, `ttft_slo_s`, `session_id`) and returns a finite number.

    Raises:
        ConfigError: `key` is not a function; in `simulate`, a result is not a finite number. An exception
            raised by the function passes through `simulate` unchanged.

    Example:
        Requests with an early TTFT deadline first:

        >>> import inferq as iq
        >>> urgent = iq.ByKey(lambda request: request.arrival_s + request.ttft_slo_s)
        >>> scheduler = iq.Sarathi(max_seqs=1, order=urgent)
        >>> scheduler.to_json()["order"]
        'ByKey'
        >>> engine = iq.Engine(timing=iq.Constant(1.0), scheduler=scheduler, kv=iq.KvCache.unlimited())
        >>> lengths = {"prompt_tokens": [10, 10, 10], "output_tokens": [1, 1, 1]}
        >>> workload = {"arrival_s": [0.0, 0.1, 0.2], **lengths, "ttft_slo_s": [5.0, 5.0, 1.0]}
        >>> iq.simulate(workload, engine).requests["finish_s"].to_list()
        [1.0, 3.0, 2.0]
    """

    unreadable: ClassVar[tuple[str, str] | None] = (
        "ByKey",
        "a key function cannot be read back from a description; create the scheduler again, with ByKey(f)",
    )

    key: Callable[[Request], float]

    def to_json(self) -> Any:
        """The kind only: JSON cannot represent the function."""
        return "ByKey"


Order: TypeAlias = Literal["fcfs", "spf", "srf", "lpf"] | ByKey
"""Arrival, shortest prompt first, shortest remaining first, longest prompt first, or a function."""


def queue_keys(order: ByKey, frame: pl.DataFrame, ids: Sequence[int] | None = None) -> NDArray[np.float64]:
    """Compute the key of every request of a workload's frame.

    Args:
        order: the order with the key function.
        frame: the requests.
        ids: ids of the requests. Default: counted from 0.
    """
    names = ("class" if name == "class_name" else name for name in Request._fields[1:])
    columns = (frame[name].to_list() if name in frame.columns else repeat(None) for name in names)
    keys = np.empty(frame.height)
    named = range(frame.height) if ids is None else ids
    for place, values in enumerate(zip(named, *columns, strict=False)):  # an absent column repeats None
        request = Request._make(values)
        keys[place] = _finite(request, order.key(request))
    return keys


def _finite(request: Request, key: object) -> float:
    try:
        number = float(key) if isinstance(key, numbers.Real) else math.nan
    except OverflowError:
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError("order", f"the key of request {request.id} must be a finite number, got {key!r}")
    return number
