"""How do measurements of iterations come out of files, and out of runs?"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from inferq.amounts import whole
from inferq.columns import nearest
from inferq.errors import ConfigError, TraceError
from inferq.timing.log import COLUMNS, NEEDED, checked_log
from inferq.trace.source import Source

if TYPE_CHECKING:
    import polars as pl

    from inferq.result import Result

UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
"""How many of a unit of time make a second."""

_LINEAR = (
    "input_layernorm",
    "attn_pre_proj",
    "attn_rope",
    "attn_post_proj",
    "post_attention_layernorm",
    "mlp_up_proj",
    "mlp_act",
    "mlp_down_proj",
    "add",
)
"""What a layer does beside attention, in the names of Vidur's `mlp.csv`."""
_MAY_LACK = ("input_layernorm", "post_attention_layernorm", "add")
"""What some models do not have: without a column or a time it takes none."""
_SAVE = "time_stats.attn_kv_cache_save.median"


def read_iterations(
    path: str | os.PathLike[str], *, columns: Mapping[str, str] | None = None, unit: str = "s"
) -> pl.DataFrame:
    r"""Read measured iterations from CSV or Parquet, as `fit` takes them.

    Args:
        path: the file, also packed with gzip.
        columns: which column of the file fills which, as `{"duration_s": "step_ms", "decodes": "n_decode"}`;
            others that have the names of `fit` are taken too.
        unit: of the times in the file: `s`, `ms`, `us` or `ns`.

    Returns:
        Those of the columns of `fit` that the file has, times in seconds.

    Raises:
        TraceError: naming the file and what is wrong with it, with its row (from 0).
        ConfigError: naming the argument.

    Example:
        >>> import inferq as iq, pathlib, tempfile
        >>> log = pathlib.Path(tempfile.mkdtemp(), "steps.csv")
        >>> _ = log.write_text("ms,prefill_tokens,decodes,context_tokens\n12.5,0,4,900\n")
        >>> iq.timing.read_iterations(log, columns={"duration_s": "ms"}, unit="ms")["duration_s"].to_list()
        [0.0125]
    """
    import polars as pl

    if not isinstance(unit, str) or unit not in UNITS:
        raise ConfigError(f"unit: {unit!r} is no unit of time{nearest(str(unit), UNITS)}")
    if columns is not None and not isinstance(columns, Mapping):
        raise ConfigError(f"columns: must map columns of fit to columns of the file, not {columns!r}")
    source = _source(path)
    wanted = {name: name for name in COLUMNS if name in source.columns}
    for name, other in (columns or {}).items():
        if name not in COLUMNS:
            raise ConfigError(f"columns: {name!r} is no column of a log{nearest(str(name), COLUMNS)}")
        if other not in source.columns:
            raise source.error(f"has no column {other!r}{nearest(str(other), source.columns)}")
        wanted[name] = other
    for name in NEEDED:
        if name not in wanted:
            raise source.error(
                f"has no column for {name}; it has {', '.join(source.columns[:20])}: "
                f'name it with columns={{"{name}": …}}'
            )
    table = source.table(sorted(set(wanted.values())))
    filled = {
        name: source.numbers(table[other], whole=not name.endswith("_s")).rename(name)
        for name, other in wanted.items()
    }
    frame = pl.DataFrame([filled[name] for name in COLUMNS if name in filled])
    frame = frame.with_columns(pl.col(name) / UNITS[unit] for name in frame.columns if name.endswith("_s"))
    return _checked(source, frame)


def read_vidur_profile(
    linear: str | os.PathLike[str],
    attention: str | os.PathLike[str],
    *,
    layers: int,
    tensor_parallel: int = 1,
) -> pl.DataFrame:
    """Put the kernels that Vidur's profiler timed together to iterations, as `fit` takes them.

    Each row of `attention` (a chunk at a context, or decodes at a context) becomes one iteration:
    `layers` times its attention, the writing of its keys and values, and the linear layers at its tokens,
    linear between the two nearest counts in `linear`. Medians; Vidur's milliseconds become seconds. Neither
    the all-reduce of tensor parallelism nor the host's overhead is in these files: add them to the base.

    Args:
        linear: Vidur's `mlp.csv` of the model and the GPU.
        attention: its `attention.csv`.
        layers: of the model.
        tensor_parallel: GPUs that share a layer; the files hold several.

    Returns:
        `duration_s`, `prefill_tokens`, `decodes`, `context_tokens`, `prefill_squares`, `prefill_products`,
        `prefill_context`; iterations of prefill or of decodes, none that mixes them.

    Raises:
        TraceError: naming the file: it is none of Vidur's, holds several models, lacks `tensor_parallel`, or
            attention was measured at more or fewer tokens than the linear layers.
        ConfigError: naming the argument.
    """
    import numpy as np
    import polars as pl

    layers = whole("layers", layers, 1)
    tensor_parallel = whole("tensor_parallel", tensor_parallel, 1)
    mlp = _source(linear)
    stats = {name: f"time_stats.{name}.median" for name in _LINEAR}
    parts = [column for name, column in stats.items() if name not in _MAY_LACK or column in mlp.columns]
    shape = ("n_head", "n_kv_head", "n_embd", "n_expanded_embd")
    table = _of_model(mlp, tensor_parallel, shape, ["num_tokens"], parts)
    by_tokens = (
        table.select("num_tokens", total=pl.sum_horizontal(parts))
        .group_by("num_tokens")
        .agg(pl.col("total").median())
        .sort("num_tokens")
    )
    source = _source(attention)
    kernels = ["time_stats.attn_prefill.median", "time_stats.attn_decode.median"]
    saved = [_SAVE] if _SAVE in source.columns else []
    whole_columns = ["batch_size", "prefill_chunk_size", "kv_cache_size"]
    rows = _of_model(
        source, tensor_parallel, ("n_q_head", "n_kv_head", "n_embd"), whole_columns, kernels + saved
    )
    batch, chunk, context = (rows[name].cast(pl.Float64).to_numpy() for name in whole_columns)
    prefilling = chunk > 0
    tokens = batch * np.where(prefilling, chunk, 1.0)
    known = by_tokens["num_tokens"].cast(pl.Float64).to_numpy()
    outside = (tokens < known[0]) | (tokens > known[-1])
    if outside.any():
        at = int(outside.argmax())
        raise source.error(
            f"row {at} of this model: computes {tokens[at]:g} tokens, but {mlp.path} was measured from "
            f"{known[0]:g} to {known[-1]:g}"
        )
    timed_ms = np.where(prefilling, rows[kernels[0]].to_numpy(), rows[kernels[1]].to_numpy())
    if np.isnan(timed_ms).any():
        raise source.error(f"row {int(np.isnan(timed_ms).argmax())} of this model: its kernel has no time")
    timed_ms = timed_ms + sum(rows[name].to_numpy() for name in saved)
    layer_ms = timed_ms + np.interp(tokens, known, by_tokens["total"].to_numpy())
    chunks = np.where(prefilling, batch, 0.0)
    frame = pl.DataFrame(
        {
            "duration_s": layers * layer_ms / 1e3,
            "prefill_tokens": chunks * chunk,
            "decodes": np.where(prefilling, 0.0, batch),
            "context_tokens": np.where(prefilling, 0.0, batch * context),
            "prefill_squares": chunks * chunk**2,
            "prefill_products": chunks * chunk * context,
            "prefill_context": chunks * context,
        }
    )
    frame = frame.with_columns(pl.exclude("duration_s").cast(pl.Int64))
    return _checked(source, frame)


def iterations_of(result: Result) -> pl.DataFrame:
    """The iterations of a run that recorded them, one row each, as `fit` takes them.

    With them a rich timing model can be put into the words of a simple one that a theory knows.

    Args:
        result: of `simulate(..., iterations=True)`.

    Returns:
        `start_s`, `duration_s`, `prefill_tokens`, `decodes`, `context_tokens`.

    Raises:
        ConfigError: the run did not record its iterations.

    Example:
        >>> import inferq as iq
        >>> kv = iq.KvCache.unlimited()
        >>> engine = iq.Engine(timing=iq.Constant(0.5), scheduler=iq.Sarathi(), kv=kv)
        >>> workload = {"arrival_s": [0.0], "prompt_tokens": [10], "output_tokens": [3]}
        >>> run = iq.simulate(workload, engine, iterations=True)
        >>> iq.timing.iterations_of(run).select("start_s", "prefill_tokens", "context_tokens").rows()
        [(0.0, 10, 0), (0.5, 0, 10), (1.0, 0, 11)]
    """
    import polars as pl

    stretches = result.iterations
    turn = pl.int_ranges(pl.col("count")).alias("turn")
    each = stretches.with_columns(turn).explode("turn").filter(pl.col("turn").is_not_null())
    j = pl.col("turn")
    return each.select(
        start_s=pl.col("start_s") + j * pl.col("first_s") + (j * (j - 1) // 2) * pl.col("growth_s"),
        duration_s=pl.col("first_s") + j * pl.col("growth_s"),
        prefill_tokens=pl.col("prefill_tokens").cast(pl.Int64),
        decodes=pl.col("decodes").cast(pl.Int64),
        context_tokens=pl.col("context_tokens").cast(pl.Int64) + j * pl.col("decodes").cast(pl.Int64),
    )


def _source(path: str | os.PathLike[str]) -> Source:
    if not isinstance(path, (str, os.PathLike)):
        raise ConfigError(f"path: must be a path, not {path!r}")
    source = Source(Path(path))
    if source.kind == "json":
        raise source.error("is json, not a table")
    return source


def _checked(source: Source, frame: pl.DataFrame) -> pl.DataFrame:
    """The frame, if `fit` could take it; durations in the wrong unit are left for `fit` to find."""
    try:
        checked_log(frame, check_units=False)
    except ConfigError as error:
        raise TraceError(f"{source.path}: {error}") from None
    return frame


def _of_model(
    source: Source, tensor_parallel: int, shape: tuple[str, ...], whole_columns: list[str], parts: list[str]
) -> pl.DataFrame:
    """The rows of the one model in a file of Vidur's that are for so many GPUs; missing times are NaN."""
    import polars as pl

    workers = "num_tensor_parallel_workers"
    needed = [*whole_columns, *parts, *shape, workers]
    for name in needed:
        if name not in source.columns:
            raise source.error(f"has no column {name}: it is no profile of Vidur's")
    table = source.table(needed)
    counts = [source.numbers(table[name], whole=True) for name in (*whole_columns, *shape, workers)]
    times = [source.numbers(table[name], whole=False).cast(pl.Float64) for name in parts]
    may_lack = [_SAVE, *(f"time_stats.{name}.median" for name in _MAY_LACK)]
    frame = pl.DataFrame([*counts, *times]).with_columns(
        pl.col(name).fill_null(0.0 if name in may_lack else float("nan")) for name in parts
    )
    for name in (*whole_columns, *shape, workers):
        if frame[name].null_count():
            raise source.error(f"row {int(frame[name].is_null().to_numpy().argmax())}: {name} is missing")
    kept = frame.filter(pl.col(workers) == tensor_parallel)
    if kept.is_empty():
        had = ", ".join(str(one) for one in frame[workers].unique().sort())
        raise source.error(f"has nothing for tensor_parallel={tensor_parallel}, only for {had}")
    models = kept.select(shape).unique().height
    if models > 1:
        raise source.error(f"holds {models} models that differ in {', '.join(shape)}: give it one")
    return kept
