"""Orders of a queue: by arrival, by length, or by a function of one's own."""

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
    """What a key function is told about a request; None where the workload does not say.

    Its output length is not among it: a server does not know it.
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
    """The queue in the order of a function of your own: lower first, ties by arrival, then `id`.

    The function is called once for each request of the workload, in the order of their ids, before the run
    begins, so a key is fixed whatever happens later: a preempted request returns to its place. Its result is
    taken as a float64. Where a request waits for others (sessions, networks) its `arrival_s` is therefore not
    the instant at which it will arrive, but the one in the workload.

    An engine that holds one is described with `"ByKey"` in its place and cannot be read back.

    Args:
        key: takes a `inferq.scheduler.Request` (`id`, `arrival_s`, `prompt_tokens`, `class_name`, `priority`,
            `itl_slo_s`, `ttft_slo_s`, `session_id`) and returns a finite number.

    Raises:
        ConfigError: `key` is no function; in `simulate`, a result that is no finite number, naming the
            request. What the function itself raises passes through `simulate` untouched.

    Example:
        Requests that must have their first token early come first:

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
        "a key function cannot be read back from a description; make the scheduler anew, with ByKey(f)",
    )

    key: Callable[[Request], float]

    def to_json(self) -> Any:
        """Its kind alone: JSON cannot hold the function."""
        return "ByKey"


Order: TypeAlias = Literal["fcfs", "spf", "srf", "lpf"] | ByKey
"""By arrival, shortest prompt first, shortest remaining first, longest prompt first, or by a function."""


def queue_keys(order: ByKey, frame: pl.DataFrame, ids: Sequence[int] | None = None) -> NDArray[np.float64]:
    """The key of every request of a workload's frame, each asked for once.

    Args:
        order: whose function is asked.
        frame: the requests.
        ids: what they are called; None counts them from 0.
    """
    names = ("class" if name == "class_name" else name for name in Request._fields[1:])
    columns = (frame[name].to_list() if name in frame.columns else repeat(None) for name in names)
    keys = np.empty(frame.height)
    named = range(frame.height) if ids is None else ids
    for place, values in enumerate(zip(named, *columns, strict=False)):  # an absent column has no end
        request = Request._make(values)
        keys[place] = _finite(request, order.key(request))
    return keys


def _finite(request: Request, key: object) -> float:
    try:
        number = float(key) if isinstance(key, numbers.Real) else math.nan
    except OverflowError:
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError("order", f"the key of request {request.id} must be a finite number, is {key!r}")
    return number
