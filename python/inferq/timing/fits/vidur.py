"""What Vidur's profiler timed, as iterations and as a table."""

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
"""What a layer does beside attention, in the names of Vidur's `mlp.csv`."""
_MAY_LACK = ("input_layernorm", "post_attention_layernorm", "add")
"""What some models do not have: without a column or a time it takes none."""
_KERNELS = ("time_stats.attn_prefill.median", "time_stats.attn_decode.median")
_SAVE = "time_stats.attn_kv_cache_save.median"
_REDUCE = "time_stats.all_reduce.median"
_WORKERS = "num_tensor_parallel_workers"
_APART = ("attention_backend", "block_size", "use_gated_mlp", "profile_method")
"""Columns of text whose values must not be mixed, where a file has them."""
_LEFT_OUT = "embedding, logits, sampling, host overhead"


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
        TraceError: naming the file: it is none of Vidur's, holds several models or kernels, lacks
            `tensor_parallel`, or attention was measured at more or fewer tokens than the linear layers.
        ConfigError: naming the argument.
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
            f"row {at} of this model: computes {tokens[at]:g} tokens, but {mlp.path} was measured from "
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
    """Make a `TimingTable` of the kernels that Vidur's profiler timed.

    Linear layers by tokens, `layers` times the sum of their medians; with `all_reduce`, two of those in each
    layer, of 2 bytes times the hidden size for each token, within one node. Attention of chunks and of
    decodes, with the writing of their keys and values.

    Vidur times attention up to the longest context of the model, so its grids lack a corner: no long chunk at
    a long context, no large batch at a long context. Of each axis at most `most_points` measured points are
    kept, a constant factor apart, those of chunks and batches only where two contexts were measured. A
    missing time lies on the line between the nearest contexts of its row; beyond the last, on the line
    through the last and the one at half that context, if it rises. `provenance` counts those, and says how
    far the grid is from every measured point. Of several measurements of a point, their median.

    Embedding, logits, sampling and the host's overhead are not in: for the last see `Overhead`. Vidur's own
    predictor adds a launch and a skew of each all-reduce, which are no measurements of the profile either.

    Args:
        linear: Vidur's `mlp.csv` of the model and the GPU.
        attention: its `attention.csv`.
        layers: of the model.
        tensor_parallel: GPUs that share a layer; the files hold several.
        all_reduce: Vidur's `all_reduce.csv` of the node, needed from two GPUs on.
        most_points: of each axis.

    Returns:
        The table, with provenance.

    Raises:
        TraceError: naming the file: it is none of Vidur's, holds several models or kernels, lacks
            `tensor_parallel`, has a hole that cannot be filled, or a time that is missing or negative.
        ConfigError: naming the argument.

    Source: Agrawal et al., Vidur (MLSys 2024), the layout of its `data/profiling`.
    """
    layers = whole("layers", layers, 1)
    tensor_parallel = whole("tensor_parallel", tensor_parallel, 1)
    most_points = whole("most_points", most_points, 2)
    if (all_reduce is None) != (tensor_parallel == 1):
        why = "one GPU has nothing to reduce" if tensor_parallel == 1 else f"{tensor_parallel} GPUs need it"
        raise ConfigError("all_reduce", f"{why}: Vidur's all_reduce.csv goes with tensor_parallel above 1")
    mlp, by_tokens, hidden = _linear_ms(linear, tensor_parallel)
    counts = by_tokens["num_tokens"].to_numpy().astype(np.float64)
    if counts.size < 2:
        raise mlp.error(f"num_tokens: only {counts[0]:g} was measured, a line needs two points")
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
        "chunk_points": chunk.told,
        "decode_points": decode.told,
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
    """A full grid made of measurements that are not one."""

    def __init__(
        self, rows: list[int], columns: list[int], ms: NDArray[np.float64], cells: dict[str, float]
    ) -> None:
        self.rows, self.columns, self.ms, self.told = rows, columns, ms, cells


def _filled(source: Source, axis: str, rows: pl.DataFrame, by: str, most: int) -> _Lattice:
    """Every kept row at every kept context; see `read_vidur_table` for the rule."""
    each = rows.group_by(by, "context").agg(pl.col("ms").median()).sort(by, "context")
    lines = {
        int(row): (own["context"].to_numpy(), own["ms"].to_numpy())
        for (row,), own in each.group_by(by, maintain_order=True)
        if own.height > 1
    }
    if len(lines) < 2:
        raise source.error(
            f"{axis}: {len(lines)} of its values were timed at several kv_cache_size, a grid needs two such"
        )
    kept = spread(np.array(list(lines), dtype=np.float64), most)
    there = np.unique(np.concatenate([lines[row][0] for row in kept]))
    columns = spread(there, most)
    grid = np.empty((len(kept), len(columns)))
    measured = inside = 0
    for place, row in enumerate(kept):
        contexts, ms = lines[row]
        grid[place] = np.interp(columns, contexts, ms)
        half = float(np.interp(contexts[-1] / 2, contexts, ms))
        start = max(contexts[-1] / 2, contexts[0])
        slope = max(float(ms[-1]) - half, 0.0) / (contexts[-1] - start)
        beyond = np.asarray(columns) > contexts[-1]
        grid[place, beyond] = ms[-1] + slope * (np.asarray(columns)[beyond] - contexts[-1])
        measured += int(np.isin(columns, contexts).sum())
        inside += int((~np.isin(columns, contexts) & ~beyond).sum())
    above, over = between(kept, each[by].to_numpy())
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
    return _Lattice(kept, columns, grid, cells)


def _linear_ms(path: str | os.PathLike[str], tensor_parallel: int) -> tuple[Source, pl.DataFrame, int]:
    """The linear layers of one layer by tokens, `num_tokens` and `ms`, and the hidden size."""
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
        raise mlp.error(f"num_tokens {at}: a kernel has no time")
    return mlp, by_tokens, int(table["n_embd"][0])


def _attention_ms(path: str | os.PathLike[str], tensor_parallel: int) -> tuple[Source, pl.DataFrame]:
    """Of one layer `batch`, `chunk` (0 for decodes), `context`, `ms` (keys and values saved included)."""
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
        reason = "has no time" if table["kernel"].is_nan()[at] else f"takes {table['ms'][at]:g} ms"
        raise source.error(f"row {at} of this model: its kernel {reason}")
    table = table.rename({"batch_size": "batch", "prefill_chunk_size": "chunk", "kv_cache_size": "context"})
    return source, table


def _reduced_ms(
    path: str | os.PathLike[str], tensor_parallel: int, hidden: int, tokens: list[int]
) -> NDArray[np.float64]:
    """One all-reduce of the activations of so many tokens, 2 bytes a number, among GPUs of one node."""
    source = source_of(path)
    counts, texts = ["size", "num_workers", "devices_per_node"], ["collective"]
    for name in (*counts, *texts, _REDUCE):
        if name not in source.columns:
            raise source.error(f"has no column {name}: it is no profile of Vidur's network")
    table = source.table([*counts, *texts, _REDUCE])
    table = table.with_columns(
        *(source.numbers(table[name], whole=True).cast(pl.Float64) for name in counts),
        source.numbers(table[_REDUCE], whole=False).cast(pl.Float64),
    )
    own = table.filter(num_workers=tensor_parallel, devices_per_node=tensor_parallel, collective="all_reduce")
    own = own.drop_nulls().group_by("size").agg(pl.col(_REDUCE).median()).sort("size")
    if own.is_empty():
        had = table.filter(collective="all_reduce")["num_workers"].unique().sort().to_list()
        raise source.error(
            f"has no all_reduce among {tensor_parallel} GPUs of one node, only with num_workers "
            f"{', '.join(f'{one:g}' for one in had)}"
        )
    sizes, ms = own["size"].to_numpy(), own[_REDUCE].to_numpy()
    wanted = 2.0 * hidden * np.asarray(tokens, dtype=np.float64)
    if wanted[-1] > sizes[-1] and sizes.size > 1:  # the bandwidth of the larger half goes on
        half = float(np.interp(sizes[-1] / 2, sizes, ms))
        rate = max(float(ms[-1]) - half, 0.0) / (sizes[-1] - max(sizes[-1] / 2, sizes[0]))
        return np.asarray(np.interp(wanted, sizes, ms) + rate * np.maximum(wanted - sizes[-1], 0.0))
    return np.asarray(np.interp(wanted, sizes, ms))


def _of_model(
    source: Source, tensor_parallel: int, shape: tuple[str, ...], whole_columns: list[str], parts: list[str]
) -> pl.DataFrame:
    """The rows of the one model in a file of Vidur's that are for so many GPUs; missing times are NaN."""
    needed = [*whole_columns, *parts, *shape, _WORKERS]
    for name in needed:
        if name not in source.columns:
            raise source.error(f"has no column {name}: it is no profile of Vidur's")
    apart = [name for name in _APART if name in source.columns]
    table = source.table([*needed, *apart])
    counts = [source.numbers(table[name], whole=True) for name in (*whole_columns, *shape, _WORKERS)]
    times = [source.numbers(table[name], whole=False).cast(pl.Float64) for name in parts]
    may_lack = [_SAVE, *(f"time_stats.{name}.median" for name in _MAY_LACK)]
    frame = pl.DataFrame([*counts, *times, *(table[name] for name in apart)]).with_columns(
        pl.col(name).fill_null(0.0 if name in may_lack else float("nan")) for name in parts
    )
    for name in (*whole_columns, *shape, _WORKERS):
        if frame[name].null_count():
            raise source.error(f"row {int(frame[name].is_null().to_numpy().argmax())}: {name} is missing")
    kept = frame.filter(pl.col(_WORKERS) == tensor_parallel)
    if kept.is_empty():
        had = ", ".join(str(one) for one in frame[_WORKERS].unique().sort())
        raise source.error(f"has nothing for tensor_parallel={tensor_parallel}, only for {had}")
    models = kept.select(shape).unique().height
    if models > 1:
        raise source.error(f"holds {models} models that differ in {', '.join(shape)}: give it one")
    for name in apart:
        if kept[name].n_unique() > 1:
            values = ", ".join(str(one) for one in kept[name].unique().sort())
            raise source.error(f"mixes {name} {values}: keep the rows of one")
    return kept
