"""TimingTable: measured times on a grid."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass, field
from functools import lru_cache
from os import PathLike
from typing import Any, ClassVar

from inferq import _core
from inferq.checks import flag, whole
from inferq.description import alternatives, plain
from inferq.errors import ConfigError
from inferq.timing.models.timing_model import TimingModel
from inferq.timing.tables.archive import Key
from inferq.timing.tables.neighbors import NEIGHBORS, scaled
from inferq.timing.tables.parts import ChunkPart, DecodePart, Grids, LinearPart
from inferq.timing.tables.provenance import frozen, thawed, title
from inferq.timing.tables.shipped import archive, find
from inferq.timing.tables.table_file import existing, read_file, write_file

LONGEST_TOKEN_S = 2.0
"""Upper bound on the time of one decode of a served model, unless its times are in milliseconds: 8 billion
weights take 11 ms on an A100 and 4.8 ms on an H200."""


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class TimingTable(TimingModel):
    """Measured times on a grid, with linear interpolation.

    An iteration of τ tokens, with chunks of c tokens at context x and n decodes with contexts that sum to S,
    takes `linear(τ) + Σ chunk(c, x) − (k − 1)·shared + decode(n, S / n)` with k chunks, if any. In two
    dimensions, times are interpolated along the chunks (or decodes) first, then along the contexts. Each line
    rises by a whole number of attoseconds per token, rounded towards 0 once. Before the first point the first
    line is extended; no part is below 0, and no chunk below the shared time. After the last point the last
    line is extended, and the run has a finding that names the axis. A line may fall, because measurements do.

    Source: kernels timed one by one, as Vidur and aiconfigurator do; see `provenance`.

    Args:
        linear: time of everything except attention.
        chunk: attention time of a chunk.
        decode: attention time of the decodes.
        provenance: source of the times, JSON-ready: `source`, `version`, `date`, `license`, `model`, `gpu`,
            `tensor_parallel`, `backend`, `backend_version`, `held_out_error` … The file stores it. It is not
            part of the description that reproduces a run, and equality of tables ignores it.
        check_units: reject times that look like milliseconds: one decode at the first point of every axis
            takes more than 2 seconds.

    Raises:
        ConfigError: a hole in a grid, points that do not ascend, fewer than two points, a negative time, a
            row whose length differs from the axis, or times that look like milliseconds; it names the place.

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

    read_arguments: ClassVar[Mapping[str, Any]] = {"check_units": False}
    """Numbers in a description come from a run, which has checked them."""

    linear: LinearPart
    chunk: ChunkPart
    decode: DecodePart
    provenance: Mapping[str, Any] = field(default_factory=dict, compare=False)
    check_units: InitVar[bool] = True

    def __post_init__(self, check_units: bool) -> None:
        """Check the parts, then the whole."""
        if not isinstance(self.provenance, Mapping):
            raise ConfigError("provenance", f"must be a table, got {self.provenance!r}")
        object.__setattr__(self, "provenance", frozen("provenance", self.provenance))
        if self.provenance.get("tensor_parallel") is not None:
            whole("provenance.tensor_parallel", self.provenance["tensor_parallel"], 1)
        for name in ("linear", "chunk", "decode"):
            object.__setattr__(self, name, plain(name, getattr(self, name), alternatives(type(self))[name]))
        _core.check("timing", json.dumps(self.to_json()))
        if flag("check_units", check_units):
            refuse_milliseconds(self)

    def shortest_iteration_s(self) -> float:
        """A lower bound from the linear layers; 0 if their last line falls."""
        tokens, seconds = self.linear.tokens, self.linear.seconds
        if seconds[-1] < seconds[-2]:
            return 0.0
        slope_s = (seconds[1] - seconds[0]) / (tokens[1] - tokens[0])
        return max(0.0, min(*seconds, seconds[0] - slope_s * (tokens[0] - 1)))

    def to_json(self) -> dict[str, Any]:
        """Return the three parts as JSON-ready values, with the `kind`, as the core reads them."""
        parts = {name: getattr(self, name).to_json() for name in ("linear", "chunk", "decode")}
        return {"kind": "TimingTable", **parts}

    def __repr__(self) -> str:
        """Model and GPU, if known, and the number of points; `to_json()` has the numbers."""
        size = (
            f"linear {len(self.linear.tokens)}, "
            f"chunk {len(self.chunk.chunk)} × {len(self.chunk.context)}, "
            f"decode {len(self.decode.sequences)} × {len(self.decode.mean_context)}"
        )
        of = title(self.provenance)
        return f"TimingTable({of}: {size})" if of else f"TimingTable({size})"

    @classmethod
    def written_fields(cls) -> list[str]:
        """A file; a table has too many numbers for a command line."""
        return ["file"]

    @classmethod
    def from_elsewhere(cls, path: str, description: Mapping[str, Any]) -> TimingTable | None:
        """Read the table of a `file`, or the shipped table of a `model`; None if there are numbers."""
        reader: Callable[..., TimingTable]
        if "file" in description:
            reader, needed, optional = cls.read, ["file"], ["check_units"]
            why = "cannot be combined with file, which has the whole table"
        elif "model" in description or "gpu" in description:
            reader, needed = cls.shipped, ["model", "gpu"]
            optional = [
                "tensor_parallel",
                "expert_parallel",
                "data_parallel",
                "backend",
                "weights",
                "kv_dtype",
            ]
            why = "cannot be combined with model and gpu, which name a shipped table"
        elif not description:
            raise ConfigError(path, "no table: set file, or model and gpu of a shipped table")
        elif "provenance" in description:
            raise ConfigError(path, "unknown field 'provenance'; files of tables store it")
        else:
            return None
        for name in description:
            if name not in (*needed, *optional):
                raise ConfigError(f"{path}.{name}", why)
        for name in needed:
            if name not in description:
                raise ConfigError(f"{path}.{name}", "missing")
        try:
            return reader(**description)
        except ConfigError as error:
            raise error.within(path) from None

    @classmethod
    def read(cls, file: str | PathLike[str], *, check_units: bool = True) -> TimingTable:
        """Read a table and its provenance from a Parquet file.

        Args:
            file: its path. The schema is that of `write`.
            check_units: as for the class.

        Raises:
            ConfigError: no such file, not a Parquet file, another schema, no provenance, or an invalid table;
                it names the file, and the point of a hole in a grid.

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
        flag("check_units", check_units)
        path = existing(file)
        try:
            grids, provenance = read_file(path)
            return cls(**grids._asdict(), provenance=provenance, check_units=check_units)
        except ConfigError as error:
            raise ConfigError("file", f"{path}: {error}") from None

    def write(self, file: str | PathLike[str]) -> None:
        """Write the table as Parquet, atomically.

        One row for each point of a grid: `part` (text: `linear`, `chunk`, `decode`), `row` (int64: tokens,
        tokens of the chunk, sequences), `column` (int64: 0, context, mean context), `seconds` (float64). The
        file's metadata have the provenance as JSON under `inferq.timing_table`.

        Args:
            file: its path.

        Raises:
            ConfigError: the path is not valid for a file.
            OSError: the file cannot be written.
        """
        write_file(file, Grids(self.linear, self.chunk, self.decode), self.provenance)

    @classmethod
    def shipped(
        cls,
        model: str,
        gpu: str,
        *,
        tensor_parallel: int | None = None,
        expert_parallel: int = 1,
        data_parallel: int = 1,
        backend: str = "vllm",
        weights: str | None = None,
        kv_dtype: str | None = None,
    ) -> TimingTable:
        """Return a shipped table, see `shipped_tables`.

        The `a100-40gb` was not measured: its tables are those of the `a100-80gb`, each part scaled by the
        ratio of the rooflines, as `provenance["derived_from"]` records.

        Args:
            model: such as `llama-3.1-8b`.
            gpu: such as `h100-80gb`.
            tensor_parallel: GPUs that share an attention layer. Default: the smallest number with a table.
            expert_parallel: groups of GPUs, each with its own experts.
            data_parallel: copies of the attention layers. Times are those of one copy, with equal batches in
                all.
            backend: engine whose kernels were measured, `vllm`, `sglang` or `trtllm`.
            weights: number format of the weights, such as `fp8`. Default: `bf16` if measured.
            kv_dtype: number format of the KV cache, `bf16` or `fp8`. Default: `bf16` if measured.

        Raises:
            ConfigError: there is no such table; it lists the known ones.

        Example:
            >>> import inferq as iq
            >>> table = iq.TimingTable.shipped("llama-3.1-8b", "a100-80gb")
            >>> 0.010 < iq.timing.iteration_s(table, decodes=[1000]) < 0.013
            True
        """
        name = gpu.strip().lower() if isinstance(gpu, str) else gpu
        options: dict[str, Any] = {
            "tensor_parallel": tensor_parallel,
            "expert_parallel": expert_parallel,
            "data_parallel": data_parallel,
            "backend": backend,
            "weights": weights,
            "kv_dtype": kv_dtype,
        }
        if name not in NEIGHBORS:
            return _read_once(find(model, gpu, **options))
        near = find(model, NEIGHBORS[name], **options)
        table = _read_once(near)
        grids = Grids(table.linear, table.chunk, table.decode)
        return cls(
            **scaled(grids, near.model, name, near.tensor_parallel)._asdict(),
            provenance=_derived(table.provenance, name),
        )


def refuse_milliseconds(table: TimingTable) -> None:
    """Raise a `ConfigError` if the times of a table look like milliseconds."""
    token_s = table.linear.seconds[0] + table.decode.seconds[0][0]
    if token_s > LONGEST_TOKEN_S:
        raise ConfigError(
            "linear.seconds[0]",
            f"with decode.seconds[0][0], an iteration of one decode takes {token_s:.4g} "
            "s, which looks like milliseconds: divide the times by 1000, or set check_units=False",
        )


def _derived(provenance: Mapping[str, Any], gpu: str) -> dict[str, Any]:
    """The provenance of a table that was scaled to another GPU."""
    facts, near = thawed(provenance), NEIGHBORS[gpu]
    note = f"not measured: times of {near}, each part scaled by the ratio of the rooflines of both GPUs"
    return {**facts, "gpu": gpu, "notes": [*facts.get("notes", ()), note], "derived_from": near}


@lru_cache(maxsize=64)
def _read_once(key: Key) -> TimingTable:
    grids, provenance = archive().read(key)
    return TimingTable(**grids._asdict(), provenance=provenance)
