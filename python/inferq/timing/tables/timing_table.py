"""Measured times on a grid: linear layers, attention of chunks, attention of decodes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar

from inferq import _core
from inferq.checks import flag, whole
from inferq.description import Description, Table, alternatives, field_names, fields_of, plain
from inferq.errors import ConfigError
from inferq.timing.models.timing_model import TimingModel

LONGEST_TOKEN_S = 2.0
"""A served model takes less for one decode, unless its times are in milliseconds: 8 billion weights take
11 ms on an A100 and 4.8 ms on an H200."""


class _Part(Description):
    """A grid of times; a hole in it is refused where it is, whatever stands for it."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for name in field_names(type(self)):
            object.__setattr__(self, name, _listed(getattr(self, name)))
        for place in _holes(self.seconds):  # type: ignore[attr-defined]  # every part has it
            raise ConfigError(f"seconds{place}", "a hole in the grid: every point needs a time")
        Description.__post_init__(self)

    def to_json(self) -> dict[str, Any]:
        """The part as JSON-ready values."""
        return {name: _listed(value) for name, value in fields_of(self).items()}


@dataclass(frozen=True, slots=True)
class LinearPart(_Part):
    """What all but attention takes, by the tokens of the whole batch.

    Args:
        tokens: tokens of the batch, from 1, ascending, at least two points.
        seconds: a time for each of them.

    Raises:
        ConfigError: a hole in the grid, or a value of another kind. Order and signs are judged by the table.

    Example:
        >>> from inferq.timing import LinearPart
        >>> LinearPart([1, 1024], [0.01, 0.05]).to_json()
        {'tokens': [1, 1024], 'seconds': [0.01, 0.05]}
    """

    tokens: Sequence[int]
    seconds: Sequence[float]


@dataclass(frozen=True, slots=True)
class ChunkPart(_Part):
    """What the attention of one chunk takes in all layers.

    The chunks of a batch are summed, but for what they share: engines run them as one kernel.

    Args:
        chunk: tokens that the chunk computes, from 1, ascending, at least two points.
        context: tokens of its request that were computed before, from 0, ascending, at least two points.
        seconds: a row for each chunk, in it a time for each context.
        shared_s: seconds of each of these times that the chunks of a batch take together, once: what a kernel
            takes whatever is in it. At most the least of them.

    Raises:
        ConfigError: a hole in the grid, or a value of another kind. Order and signs are judged by the table.

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
    """What the attention of all decodes of a batch takes in all layers.

    Args:
        sequences: decodes in the batch, from 1, ascending, at least two points.
        mean_context: the mean of their contexts before the iteration, from 0, ascending, at least two points.
        seconds: a row for each number of decodes, in it a time for each mean.

    Raises:
        ConfigError: a hole in the grid, or a value of another kind. Order and signs are judged by the table.

    Example:
        >>> from inferq.timing import DecodePart
        >>> DecodePart([1, 64], [0, 4096], [[0.0002, 0.0004], [0.0003, 0.02]]).mean_context
        (0, 4096)
    """

    sequences: Sequence[int]
    mean_context: Sequence[int]
    seconds: Sequence[Sequence[float]]


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class TimingTable(TimingModel):
    """Measured times on a grid, in straight lines between its points.

    An iteration of τ tokens, with chunks of c tokens at context x and n decodes with contexts that sum to S,
    lasts `linear(τ) + Σ chunk(c, x) − (k − 1)·shared + decode(n, S / n)` with k chunks, if any. In two
    dimensions the lines go along the chunks (or the decodes) first, then along the contexts; each rises by a
    whole number of attoseconds a token, rounded towards 0 once. Before the first point the first line goes
    on, and no part falls below 0, no chunk below what is shared. Beyond the last point the last line goes on,
    and the run has a finding that names the axis. A line may fall: measurements do.

    Source: kernels timed one by one, as Vidur and aiconfigurator do; `provenance` says which.

    Args:
        linear: what all but attention takes.
        chunk: what the attention of a chunk takes.
        decode: what the attention of the decodes takes.
        provenance: where the times come from, JSON-ready: `source`, `version`, `date`, `license`, `model`,
            `gpu`, `tensor_parallel`, `backend`, `backend_version`, `held_out_error` … It is kept in the file,
            and is no part of the description that repeats a run, nor of what makes two tables equal.
        check_units: refuse times that look like milliseconds: one decode at the first point of every axis
            takes more than 2 seconds.

    Raises:
        ConfigError: a hole in a grid, points that do not ascend, fewer than two of them, a negative time,
            rows of another length than the axis, or times that look like milliseconds; it names the place.

    Example:
        >>> import inferq as iq
        >>> from inferq.timing import ChunkPart, DecodePart, LinearPart
        >>> table = iq.TimingTable(
        ...     linear=LinearPart([1, 1001], [0.010, 0.060]),
        ...     chunk=ChunkPart([1, 501], [0, 1000], [[0, 0.001], [0.001, 0.003]]),
        ...     decode=DecodePart([1, 101], [0, 1000], [[0, 0.0001], [0.0002, 0.0102]]),
        ... )
        >>> table
        TimingTable(linear 2, chunk 2 × 2, decode 2 × 2)
        >>> round(iq.timing.iteration_s(table, decodes=[500] * 101), 9)  # 15 ms and 5.2 ms of attention
        0.0202
    """

    beside: ClassVar[Mapping[str, Any]] = {"check_units": False}
    """A description with numbers is what a run was made of: it was judged then."""

    linear: LinearPart
    chunk: ChunkPart
    decode: DecodePart
    provenance: Mapping[str, Any] = field(default_factory=dict, compare=False)
    check_units: InitVar[bool] = True

    def __post_init__(self, check_units: bool) -> None:
        """Judge the parts, then the whole."""
        if not isinstance(self.provenance, Mapping):
            raise ConfigError("provenance", f"must be a table, is {self.provenance!r}")
        object.__setattr__(self, "provenance", frozen("provenance", self.provenance))
        if self.provenance.get("tensor_parallel") is not None:
            whole("provenance.tensor_parallel", self.provenance["tensor_parallel"], 1)
        for name in ("linear", "chunk", "decode"):
            object.__setattr__(self, name, plain(name, getattr(self, name), alternatives(type(self))[name]))
        _core.check("timing", json.dumps(self.to_json()))
        if flag("check_units", check_units):
            refuse_milliseconds(self)

    def shortest_iteration_s(self) -> float:
        """What the linear layers take at least; 0 where their last line falls and goes on falling."""
        tokens, seconds = self.linear.tokens, self.linear.seconds
        if seconds[-1] < seconds[-2]:
            return 0.0
        slope_s = (seconds[1] - seconds[0]) / (tokens[1] - tokens[0])
        return max(0.0, min(*seconds, seconds[0] - slope_s * (tokens[0] - 1)))

    def to_json(self) -> dict[str, Any]:
        """The three parts as JSON-ready values, with the `kind`: what the core reads."""
        parts = {name: getattr(self, name).to_json() for name in ("linear", "chunk", "decode")}
        return {"kind": "TimingTable", **parts}

    def __repr__(self) -> str:
        """What it is of, where that is known, and how many points it has; the numbers are in `to_json()`."""
        size = (
            f"linear {len(self.linear.tokens)}, "
            f"chunk {len(self.chunk.chunk)} × {len(self.chunk.context)}, "
            f"decode {len(self.decode.sequences)} × {len(self.decode.mean_context)}"
        )
        of = title(self.provenance)
        return f"TimingTable({of}: {size})" if of else f"TimingTable({size})"

    @classmethod
    def written_fields(cls) -> list[str]:
        """A file, or by name a model and a GPU: the numbers are too many for a command line."""
        return ["file"]

    @classmethod
    def from_elsewhere(cls, path: str, description: Mapping[str, Any]) -> TimingTable | None:
        """The table in the `file`, or the shipped one of the `model`, that a description names.

        None where it has the numbers.
        """
        reader: Callable[..., TimingTable]
        if "file" in description:
            reader, needed, optional = cls.read, ["file"], ["check_units"]
            why = "not beside file, which has the whole table"
        elif "model" in description or "gpu" in description:
            reader, needed = cls.shipped, ["model", "gpu"]
            optional = ["tensor_parallel", "backend", "weights"]
            why = "not beside model and gpu, which name a shipped table"
        elif not description:
            raise ConfigError(path, "which table? Give its file, or model and gpu of one that is shipped")
        elif "provenance" in description:
            raise ConfigError(path, "unknown field 'provenance'; it is kept in files of tables")
        else:
            return None
        for name in description:
            if name not in (*needed, *optional):
                raise ConfigError(f"{path}.{name}", f"{why}")
        for name in needed:
            if name not in description:
                raise ConfigError(f"{path}.{name}", "missing")
        try:
            return reader(**description)
        except ConfigError as error:
            raise error.within(path) from None

    @classmethod
    def read(cls, file: str | PathLike[str], *, check_units: bool = True) -> TimingTable:
        """The table in a Parquet file, with its provenance.

        Args:
            file: its path. The schema is that of `write`.
            check_units: as for the class.

        Raises:
            ConfigError: no such file, no Parquet file, another schema, no provenance, or a table that the
                class refuses; it names the file, and in a grid with a hole the point.

        Example:
            >>> import pathlib, tempfile
            >>> import inferq as iq
            >>> table = iq.TimingTable.shipped("qwen3-8b", "l40s")
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     table.write(pathlib.Path(folder) / "table.parquet")
            ...     again = iq.TimingTable.read(pathlib.Path(folder) / "table.parquet")
            >>> again == table, dict(again.provenance) == dict(table.provenance)
            (True, True)
        """
        from inferq.timing.tables.table_file import read

        return read(file, flag("check_units", check_units))

    def write(self, file: str | PathLike[str]) -> None:
        """Write the table as Parquet; an earlier file is lost only once the new one is whole.

        One row for each point of a grid: `part` (text: `linear`, `chunk`, `decode`), `row` (int64: tokens,
        tokens of the chunk, sequences), `column` (int64: 0, context, mean context), `seconds` (float64). The
        file's metadata have `inferq.timing_table`: the provenance as JSON.

        Args:
            file: its path.

        Raises:
            ConfigError: it cannot be the path of a file.
            OSError: it cannot be written.
        """
        from inferq.timing.tables.table_file import write

        write(self, file)

    @classmethod
    def shipped(
        cls,
        model: str,
        gpu: str,
        *,
        tensor_parallel: int | None = None,
        backend: str = "vllm",
        weights: str = "bf16",
    ) -> TimingTable:
        """A table that comes with inferq, see `shipped_tables`.

        Of the `a100-40gb` there are no measurements: its tables are those of the `a100-80gb`, each part
        longer by the ratio of their rooflines; `provenance["derived_from"]` says so.

        Args:
            model: such as `llama-3.1-8b`.
            gpu: such as `h100-80gb`.
            tensor_parallel: GPUs that share the model; None is what there is a table for, the fewest if
                several.
            backend: the engine whose kernels were measured, `vllm` or `sglang`.
            weights: `bf16`, or `fp8` where that was measured.

        Raises:
            ConfigError: there is no such table; it says what is there.

        Example:
            >>> import inferq as iq
            >>> table = iq.TimingTable.shipped("llama-3.1-8b", "a100-80gb")
            >>> 0.010 < iq.timing.iteration_s(table, decodes=[1000]) < 0.013
            True
        """
        from inferq.timing.tables.neighbors import NEIGHBORS, as_on
        from inferq.timing.tables.shipped import find

        card = gpu.strip().lower() if isinstance(gpu, str) else gpu
        if card not in NEIGHBORS:
            return _read_once(find(model, gpu, tensor_parallel, backend, weights).file)
        found = find(model, NEIGHBORS[card], tensor_parallel, backend, weights)
        return as_on(_read_once(found.file), found.model, card, found.tensor_parallel)

    @classmethod
    def from_aiconfigurator(
        cls,
        model: str | PathLike[str],
        system: str,
        backend: str = "vllm",
        *,
        version: str | None = None,
        tensor_parallel: int = 1,
        quantization: Mapping[str, str] | None = None,
        most_tokens: int = 16_384,
        most_sequences: int = 1024,
        most_context: int | None = None,
        held_out: int = 3000,
    ) -> TimingTable:
        """A table sampled from the kernel database of aiconfigurator, its error measured on other points.

        Needs the package: `pip install 'inferq[aiconfigurator]'` (80 MB; Linux on x86-64, Python 3.11 or
        newer). Nothing is looked up on a network. The grid's points are put one after the other where
        the lines between those so far are most wrong.

        Source: aiconfigurator (NVIDIA, Apache-2.0), <https://github.com/ai-dynamo/aiconfigurator>. What is
            measured in it and what is not: see the guide on measured tables.

        Args:
            model: one of inferq's names (`llama-3.1-8b`), a name that aiconfigurator carries
                (`Qwen/Qwen3-8B`), or a folder with the `config.json` of a model.
            system: one of inferq's GPUs (`h100-80gb`), or a system of aiconfigurator (`h100_sxm`).
            backend: `vllm`, `sglang` or `trtllm`.
            version: of the backend; None is the current one of the database.
            tensor_parallel: GPUs that share the model; experts are cut the same way.
            quantization: modes by aiconfigurator's names, such as `{"gemm_quant_mode": "fp8"}`; what is left
                out is as in the model's `config.json`.
            most_tokens: largest batch, and largest chunk, of the grid.
            most_sequences: most decodes of the grid.
            most_context: largest context of the grid; None is the model's, at most 131,072.
            held_out: random points beside the grid at which the error of each part is measured; 0 for none.

        Raises:
            ConfigError: the package is missing, or has no such model, system, backend, version or
                quantization, or cannot cut the model like this; it names the argument.

        Example:
            ```python
            table = iq.TimingTable.from_aiconfigurator("qwen3-8b", "h200")
            table.write("qwen3-8b_h200.parquet")
            ```
        """
        from inferq.timing.tables.baking.sampling import sampled

        return sampled(
            model,
            system,
            backend,
            version=version,
            tensor_parallel=tensor_parallel,
            quantization=quantization,
            most_tokens=most_tokens,
            most_sequences=most_sequences,
            most_context=most_context,
            held_out=held_out,
        )


def refuse_milliseconds(table: TimingTable) -> None:
    """A `ConfigError` for a table whose times look like milliseconds."""
    token_s = table.linear.seconds[0] + table.decode.seconds[0][0]
    if token_s > LONGEST_TOKEN_S:
        raise ConfigError(
            "linear.seconds[0]",
            f"with decode.seconds[0][0], an iteration of one decode takes {token_s:.4g} "
            "s, which looks like milliseconds: divide the times by 1000, or say check_units=False",
        )


def title(provenance: Mapping[str, Any]) -> str:
    """What a table is of, in a few words; empty where its provenance does not say."""
    model, gpu = provenance.get("model"), provenance.get("gpu")
    if not model or not gpu:
        return ""
    backend = f"{provenance.get('backend', '')} {provenance.get('backend_version') or ''}".strip()
    shared = provenance.get("tensor_parallel", 1)
    return f"{model} on {f'{shared} × ' if shared != 1 else ''}{gpu}{f', {backend}' if backend else ''}"


def frozen(path: str, value: Any) -> Any:
    """JSON-ready values that cannot be changed, or an error where one is not JSON-ready."""
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ConfigError(path, f"the name {key!r} must be a text")
        return Table({key: frozen(f"{path}.{key}", one) for key, one in value.items()}, as_given=True)
    if isinstance(value, (list, tuple)):
        return tuple(frozen(f"{path}[{place}]", one) for place, one in enumerate(value))
    if (
        value is None
        or isinstance(value, (str, bool, int))
        or (isinstance(value, float) and value - value == 0)
    ):
        return value
    raise ConfigError(path, f"{value!r} is nothing that JSON can hold")


def thawed(value: Any) -> Any:
    """The inverse of `frozen`, as lists and dicts."""
    if isinstance(value, Mapping):
        return {key: thawed(one) for key, one in value.items()}
    return [thawed(one) for one in value] if isinstance(value, tuple) else value


@lru_cache(maxsize=64)
def _read_once(file: Path) -> TimingTable:
    return TimingTable.read(file)


def _listed(value: Any) -> Any:
    """Arrays, columns of frames and rows as lists."""
    for name in ("tolist", "to_list"):
        if hasattr(value, name):
            value = getattr(value, name)()
    return [_listed(one) for one in value] if isinstance(value, (list, tuple)) else value


def _holes(seconds: Any, place: str = "") -> Iterator[str]:
    """The places of what is no time: None or NaN."""
    if isinstance(seconds, list):
        for at, one in enumerate(seconds):
            yield from _holes(one, f"{place}[{at}]")
    elif seconds is None or (isinstance(seconds, float) and seconds != seconds):
        yield place
