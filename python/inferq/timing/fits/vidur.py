"""Readers of Vidur's profiles, as iterations and as a table."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from inferq._lazy import np, pl
from inferq.checks import whole
from inferq.errors import ConfigError
from inferq.timing.fits.iteration_log import checked_source, source_of
from inferq.timing.fits.table_fit import between, spread
from inferq.timing.tables.parts import ChunkPart, DecodePart, LinearPart
from inferq.timing.tables.timing_table import TimingTable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from inferq.workload.traces.source import Source

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
"""Operations of a layer without attention, in the names of Vidur's `mlp.csv`."""
_MAY_LACK = ("input_layernorm", "post_attention_layernorm", "add")
"""Operations that some models lack: no column or no value means no time."""
_KERNELS = ("time_stats.attn_prefill.median", "time_stats.attn_decode.median")
_SAVE = "time_stats.attn_kv_cache_save.median"
_REDUCE = "time_stats.all_reduce.median"
_WORKERS = "num_tensor_parallel_workers"
_SINGLE_VALUED = ("attention_backend", "block_size", "use_gated_mlp", "profile_method")
"""Optional columns of text with a single value per file."""
_LEFT_OUT = "embedding, logits, sampling, host overhead"


def read_vidur_profile(
    linear: str | os.PathLike[str],
    attention: str | os.PathLike[str],
    *,
    layers: int,
    tensor_parallel: int = 1,
) -> pl.DataFrame:
    """Combine the kernel times of Vidur's profiler to iterations for `fit`.

    Each row of `attention` (a chunk at a context, or decodes at a context) becomes one iteration: `layers`
    times its attention, the writing of its keys and values, and the linear layers at its tokens, interpolated
    between the nearest counts in `linear`. Times are medians, converted to seconds. These files contain
    neither all-reduces nor host overhead: add them to the base.

    Args:
        linear: Vidur's `mlp.csv` of the model and the GPU.
        attention: Vidur's `attention.csv`.
        layers: layers of the model.
        tensor_parallel: GPUs that share a layer; the files contain several values.

    Returns:
        `duration_s`, `prefill_tokens`, `decodes`, `context_tokens`, `prefill_squares`, `prefill_products`,
        `prefill_context`; iterations of prefill or of decodes, not mixed.

    Raises:
        TraceError: a file that is not Vidur's, contains several models or kernels, lacks `tensor_parallel`,
            or has attention outside the token range of the linear layers; it names the file.
        ConfigError: an invalid argument.
    """
    layers = whole("layers", layers, 1)
    tensor_parallel = whole("tensor_parallel", tensor_parallel, 1)
    mlp, by_tokens, _ = _linear_ms(linear, tensor_parallel)
    source, rows = _attention_ms(attention, tensor_parallel)
    batch, chunk, context, timed_ms = (rows[name].to_numpy() for name in ("batch", "chunk", "context", "ms"))
    prefilling = chunk > 0
    tokens = batch * np.where(prefilling, chunk, 1.0)
    sizes = by_tokens["num_tokens"].cast(pl.Float64).to_numpy()
    outside = (tokens < sizes[0]) | (tokens > sizes[-1])
    if outside.any():
        at = int(outside.argmax())
        raise source.error(
            f"row {at} of this model: has {tokens[at]:g} tokens, outside the range of {mlp.path}, "
            f"{sizes[0]:g} to {sizes[-1]:g}"
        )
    layer_ms = timed_ms + np.interp(tokens, sizes, by_tokens["ms"].to_numpy())
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
    return checked_source(source, frame)


def read_vidur_table(
    linear: str | os.PathLike[str],
    attention: str | os.PathLike[str],
    *,
    layers: int,
    tensor_parallel: int = 1,
    all_reduce: str | os.PathLike[str] | None = None,
    most_points: int = 32,
) -> TimingTable:
    """Create a `TimingTable` from the kernel times of Vidur's profiler.

    Linear layers by tokens: `layers` times the sum of their medians; with `all_reduce`, two all-reduces per
    layer, of 2 bytes times the hidden size per token, within one node. Attention of chunks and of decodes,
    with the writing of their keys and values.

    Vidur measures attention up to the longest context of the model, so its grids lack a corner: no long chunk
    at a long context, no large batch at a long context. At most `most_points` measured points of each axis
    are selected, geometrically spaced; chunks and batches only if two contexts were measured. A missing time
    is interpolated between the nearest contexts of its row. Beyond the last context it is extrapolated from
    the last time and the time at half that context, if it rises. `provenance` counts these points, and has
    the error of the grid at all measured points. Repeated measurements are replaced by their median.

    Embedding, logits, sampling and host overhead are not included; for the last see `Overhead`. Vidur's
    rows_of predictor adds a launch and a skew to each all-reduce, which the profile does not contain either.

    Args:
        linear: Vidur's `mlp.csv` of the model and the GPU.
        attention: Vidur's `attention.csv`.
        layers: layers of the model.
        tensor_parallel: GPUs that share a layer; the files contain several values.
        all_reduce: Vidur's `all_reduce.csv` of the node, required for two GPUs or more.
        most_points: maximum points of each axis.

    Returns:
        The table, with provenance.

    Raises:
        TraceError: a file that is not Vidur's, contains several models or kernels, lacks `tensor_parallel`,
            or has a hole that cannot be filled or a missing or negative time; it names the file.
        ConfigError: an invalid argument.

    Source: Agrawal et al., Vidur (MLSys 2024), the layout of its `data/profiling`.
    """
    layers = whole("layers", layers, 1)
    tensor_parallel = whole("tensor_parallel", tensor_parallel, 1)
    most_points = whole("most_points", most_points, 2)
    if (all_reduce is None) != (tensor_parallel == 1):
        rule = "must be None for one GPU" if tensor_parallel == 1 else f"missing for {tensor_parallel} GPUs"
        raise ConfigError("all_reduce", f"{rule}: Vidur's all_reduce.csv belongs to tensor_parallel above 1")
    mlp, by_tokens, hidden = _linear_ms(linear, tensor_parallel)
    counts = by_tokens["num_tokens"].to_numpy().astype(np.float64)
    if counts.size < 2:
        raise mlp.error(f"num_tokens: only {counts[0]:g} was measured, two points are required")
    tokens = spread(counts, most_points)
    ms = np.interp(tokens, counts, by_tokens["ms"].to_numpy())
    if all_reduce is not None:
        ms = ms + 2 * _reduced_ms(all_reduce, tensor_parallel, hidden, tokens)
    source, rows = _attention_ms(attention, tensor_parallel)
    chunks = rows.filter((rows["chunk"] > 0) & (rows["batch"] == 1))
    decodes = rows.filter(rows["chunk"] == 0)
    scale = layers / 1e3
    chunk = _filled(source, "prefill_chunk_size", chunks, "chunk", most_points)
    decode = _filled(source, "batch_size", decodes, "batch", most_points)
    provenance: dict[str, Any] = {
        "source": "Vidur profile",
        "files": [os.path.basename(path) for path in (linear, attention, all_reduce) if path is not None],
        "layers": layers,
        "hidden_size": hidden,
        "tensor_parallel": tensor_parallel,
        "all_reduce": "2 a layer" if all_reduce is not None else "none",
        "left_out": _LEFT_OUT,
        "chunk_points": chunk.summary,
        "decode_points": decode.summary,
    }
    for name in ("attention_backend", "block_size"):
        if name in rows.columns:
            provenance[name] = str(rows[name][0])
    return TimingTable(
        linear=LinearPart(tokens, (scale * ms).tolist()),
        chunk=ChunkPart(chunk.rows, chunk.columns, (scale * chunk.ms).tolist()),
        decode=DecodePart(decode.rows, decode.columns, (scale * decode.ms).tolist()),
        provenance=provenance,
    )


class _Lattice:
    """A full grid from incomplete measurements."""

    def __init__(
        self, rows: list[int], columns: list[int], ms: NDArray[np.float64], cells: dict[str, float]
    ) -> None:
        self.rows, self.columns, self.ms, self.summary = rows, columns, ms, cells


def _filled(source: Source, axis: str, rows: pl.DataFrame, by: str, most: int) -> _Lattice:
    """All selected rows at all selected contexts; `read_vidur_table` documents the rule."""
    each = rows.group_by(by, "context").agg(pl.col("ms").median()).sort(by, "context")
    lines = {
        int(row): (rows_of["context"].to_numpy(), rows_of["ms"].to_numpy())
        for (row,), rows_of in each.group_by(by, maintain_order=True)
        if rows_of.height > 1
    }
    if len(lines) < 2:
        raise source.error(
            f"{axis}: {len(lines)} of its values were measured at several kv_cache_size, two are required"
        )
    selected = spread(np.array(list(lines), dtype=np.float64), most)
    there = np.unique(np.concatenate([lines[row][0] for row in selected]))
    columns = spread(there, most)
    grid = np.empty((len(selected), len(columns)))
    measured = inside = 0
    for place, row in enumerate(selected):
        contexts, ms = lines[row]
        grid[place] = np.interp(columns, contexts, ms)
        half = float(np.interp(contexts[-1] / 2, contexts, ms))
        start = max(contexts[-1] / 2, contexts[0])
        slope = max(float(ms[-1]) - half, 0.0) / (contexts[-1] - start)
        beyond = np.asarray(columns) > contexts[-1]
        grid[place, beyond] = ms[-1] + slope * (np.asarray(columns)[beyond] - contexts[-1])
        measured += int(np.isin(columns, contexts).sum())
        inside += int((~np.isin(columns, contexts) & ~beyond).sum())
    above, over = between(selected, each[by].to_numpy())
    left, along = between(columns, each["context"].to_numpy())
    low, high = (grid[at, left] * (1 - along) + grid[at, left + 1] * along for at in (above, above + 1))
    timed = each["ms"].to_numpy()
    error = np.abs(low * (1 - over) + high * over - timed) / np.maximum(timed, 1e-9)
    cells = {
        "measured": measured,
        "between_measured": inside,
        "beyond_measured": grid.size - measured - inside,
        "median_error": round(float(np.median(error)), 4),
        "p95_error": round(float(np.quantile(error, 0.95)), 4),
    }
    return _Lattice(selected, columns, grid, cells)


def _linear_ms(path: str | os.PathLike[str], tensor_parallel: int) -> tuple[Source, pl.DataFrame, int]:
    """The linear operations of a layer by tokens, `num_tokens` and `ms`, and the hidden size."""
    mlp = source_of(path)
    stats = {name: f"time_stats.{name}.median" for name in _LINEAR}
    parts = [column for name, column in stats.items() if name not in _MAY_LACK or column in mlp.columns]
    shape = ("n_head", "n_kv_head", "n_embd", "n_expanded_embd")
    table = _of_model(mlp, tensor_parallel, shape, ["num_tokens"], parts)
    by_tokens = (
        table.select("num_tokens", ms=pl.sum_horizontal(parts))
        .group_by("num_tokens")
        .agg(pl.col("ms").median())
        .sort("num_tokens")
    )
    if by_tokens["ms"].is_nan().any():
        at = int(by_tokens["num_tokens"][int(by_tokens["ms"].is_nan().arg_max() or 0)])
        raise mlp.error(f"num_tokens {at}: a kernel time is missing")
    return mlp, by_tokens, int(table["n_embd"][0])


def _attention_ms(path: str | os.PathLike[str], tensor_parallel: int) -> tuple[Source, pl.DataFrame]:
    """Attention of a layer: `batch`, `chunk` (0 for decodes), `context`, `ms` (including KV writes)."""
    source = source_of(path)
    saved = [_SAVE] if _SAVE in source.columns else []
    counts = ["batch_size", "prefill_chunk_size", "kv_cache_size"]
    shape = ("n_q_head", "n_kv_head", "n_embd")
    rows = _of_model(source, tensor_parallel, shape, counts, [*_KERNELS, *saved])
    kernel = pl.when(pl.col("prefill_chunk_size") > 0).then(_KERNELS[0]).otherwise(_KERNELS[1])
    for name in counts:
        rows = rows.with_columns(pl.col(name).cast(pl.Float64))
    table = rows.with_columns(kernel.alias("kernel")).with_columns(
        ms=pl.col("kernel") + (pl.col(_SAVE) if saved else 0.0)
    )
    wrong = table["kernel"].is_nan() | (table["ms"] < 0)
    if wrong.any():
        at = int(wrong.arg_max() or 0)
        problem = "is missing" if table["kernel"].is_nan()[at] else f"is {table['ms'][at]:g} ms"
        raise source.error(f"row {at} of this model: the kernel time {problem}")
    table = table.rename({"batch_size": "batch", "prefill_chunk_size": "chunk", "kv_cache_size": "context"})
    return source, table


def _reduced_ms(
    path: str | os.PathLike[str], tensor_parallel: int, hidden: int, tokens: list[int]
) -> NDArray[np.float64]:
    """One all-reduce of the activations of `tokens`, 2 bytes per number, within a node."""
    source = source_of(path)
    counts, texts = ["size", "num_workers", "devices_per_node"], ["collective"]
    for name in (*counts, *texts, _REDUCE):
        if name not in source.columns:
            raise source.error(f"has no column {name}: it is not a network profile of Vidur")
    table = source.table([*counts, *texts, _REDUCE])
    table = table.with_columns(
        *(source.numbers(table[name], whole=True).cast(pl.Float64) for name in counts),
        source.numbers(table[_REDUCE], whole=False).cast(pl.Float64),
    )
    rows_of = table.filter(
        num_workers=tensor_parallel, devices_per_node=tensor_parallel, collective="all_reduce"
    )
    rows_of = rows_of.drop_nulls().group_by("size").agg(pl.col(_REDUCE).median()).sort("size")
    if rows_of.is_empty():
        known = table.filter(collective="all_reduce")["num_workers"].unique().sort().to_list()
        raise source.error(
            f"has no all_reduce of {tensor_parallel} GPUs of one node, only num_workers "
            f"{', '.join(f'{workers:g}' for workers in known)}"
        )
    sizes, ms = rows_of["size"].to_numpy(), rows_of[_REDUCE].to_numpy()
    sizes_needed = 2.0 * hidden * np.asarray(tokens, dtype=np.float64)
    if sizes_needed[-1] > sizes[-1] and sizes.size > 1:  # extrapolate the bandwidth of the larger half
        half = float(np.interp(sizes[-1] / 2, sizes, ms))
        rate = max(float(ms[-1]) - half, 0.0) / (sizes[-1] - max(sizes[-1] / 2, sizes[0]))
        return np.asarray(
            np.interp(sizes_needed, sizes, ms) + rate * np.maximum(sizes_needed - sizes[-1], 0.0)
        )
    return np.asarray(np.interp(sizes_needed, sizes, ms))


def _of_model(
    source: Source, tensor_parallel: int, shape: tuple[str, ...], whole_columns: list[str], parts: list[str]
) -> pl.DataFrame:
    """The rows of a file's only model for `tensor_parallel`; missing times are NaN."""
    needed = [*whole_columns, *parts, *shape, _WORKERS]
    for name in needed:
        if name not in source.columns:
            raise source.error(f"has no column {name}: it is not a profile of Vidur")
    single_valued = [name for name in _SINGLE_VALUED if name in source.columns]
    table = source.table([*needed, *single_valued])
    counts = [source.numbers(table[name], whole=True) for name in (*whole_columns, *shape, _WORKERS)]
    times = [source.numbers(table[name], whole=False).cast(pl.Float64) for name in parts]
    may_lack = [_SAVE, *(f"time_stats.{name}.median" for name in _MAY_LACK)]
    frame = pl.DataFrame([*counts, *times, *(table[name] for name in single_valued)]).with_columns(
        pl.col(name).fill_null(0.0 if name in may_lack else float("nan")) for name in parts
    )
    for name in (*whole_columns, *shape, _WORKERS):
        if frame[name].null_count():
            raise source.error(f"row {int(frame[name].is_null().to_numpy().argmax())}: {name} is missing")
    selected = frame.filter(pl.col(_WORKERS) == tensor_parallel)
    if selected.is_empty():
        known = ", ".join(str(workers) for workers in frame[_WORKERS].unique().sort())
        raise source.error(f"has no rows for tensor_parallel={tensor_parallel}, only for {known}")
    models = selected.select(shape).unique().height
    if models > 1:
        raise source.error(
            f"contains {models} models that differ in {', '.join(shape)}: keep the rows of one model"
        )
    for name in single_valued:
        if selected[name].n_unique() > 1:
            values = ", ".join(str(value) for value in selected[name].unique().sort())
            raise source.error(f"has several values of {name}, {values}: keep the rows of one")
    return selected
