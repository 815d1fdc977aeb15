"""The three parts of a table of measured times: linear layers, attention of chunks, attention of decodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from inferq.description import Description, field_names, fields_of
from inferq.errors import ConfigError


class _Part(Description):
    """A grid of times without holes."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for name in field_names(type(self)):
            object.__setattr__(self, name, _listed(getattr(self, name)))
        for place in _holes(self.seconds):  # type: ignore[attr-defined]  # every part has it
            raise ConfigError(f"seconds{place}", "a hole in the grid: every point needs a time")
        Description.__post_init__(self)

    def to_json(self) -> dict[str, Any]:
        """Return the part as JSON-ready values."""
        return {name: _listed(value) for name, value in fields_of(self).items()}


@dataclass(frozen=True, slots=True)
class LinearPart(_Part):
    """Time of everything except attention, by the tokens of the batch.

    Args:
        tokens: tokens of the batch, from 1, ascending, at least two points.
        seconds: a time for each point.

    Raises:
        ConfigError: a hole in the grid, or a value of the wrong type. The table checks order and signs.

    Example:
        >>> from inferq.timing import LinearPart
        >>> LinearPart([1, 1024], [0.01, 0.05]).to_json()
        {'tokens': [1, 1024], 'seconds': [0.01, 0.05]}
    """

    tokens: Sequence[int]
    seconds: Sequence[float]


@dataclass(frozen=True, slots=True)
class ChunkPart(_Part):
    """Attention time of one prefill chunk in all layers.

    The times of the chunks of a batch are added, except for the shared part, because engines run them as one
    kernel.

    Args:
        chunk: tokens of the chunk, from 1, ascending, at least two points.
        context: tokens of its request computed before, from 0, ascending, at least two points.
        seconds: a row for each chunk, with a time for each context.
        shared_s: the part of each time that a batch of chunks takes only once (the fixed cost of a kernel),
            at most the smallest time.

    Raises:
        ConfigError: a hole in the grid, or a value of the wrong type. The table checks order and signs.

    Example:
        >>> from inferq.timing import ChunkPart
        >>> ChunkPart(chunk=[1, 512], context=[0, 8192], seconds=[[0.0001, 0.0005], [0.002, 0.013]]).chunk
        (1, 512)
    """

    chunk: Sequence[int]
    context: Sequence[int]
    seconds: Sequence[Sequence[float]]
    shared_s: float = 0.0


@dataclass(frozen=True, slots=True)
class DecodePart(_Part):
    """Attention time of all decodes of a batch in all layers.

    Args:
        sequences: decodes of the batch, from 1, ascending, at least two points.
        mean_context: mean context of the decodes before the iteration, from 0, ascending, at least two
            points.
        seconds: a row for each number of decodes, with a time for each mean context.

    Raises:
        ConfigError: a hole in the grid, or a value of the wrong type. The table checks order and signs.

    Example:
        >>> from inferq.timing import DecodePart
        >>> DecodePart([1, 64], [0, 4096], [[0.0002, 0.0004], [0.0003, 0.02]]).mean_context
        (0, 4096)
    """

    sequences: Sequence[int]
    mean_context: Sequence[int]
    seconds: Sequence[Sequence[float]]


class Grids(NamedTuple):
    """The parts of a table."""

    linear: LinearPart
    chunk: ChunkPart
    decode: DecodePart


def _listed(value: Any) -> Any:
    """Convert arrays, columns of frames and rows to lists."""
    for name in ("tolist", "to_list"):
        if hasattr(value, name):
            value = getattr(value, name)()
    return [_listed(item) for item in value] if isinstance(value, (list, tuple)) else value


def _holes(seconds: Any, place: str = "") -> Iterator[str]:
    """The indices of None and NaN."""
    if isinstance(seconds, list):
        for index, item in enumerate(seconds):
            yield from _holes(item, f"{place}[{index}]")
    elif seconds is None or (isinstance(seconds, float) and seconds != seconds):
        yield place
