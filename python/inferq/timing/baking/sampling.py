"""Tables sampled from a kernel database, with their errors on held-out points."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from datetime import date
from importlib import metadata
from typing import TYPE_CHECKING, Any, NamedTuple

from inferq._lazy import np
from inferq.checks import whole
from inferq.errors import ConfigError
from inferq.timing.baking import lattice
from inferq.timing.baking.checkpoints import CARRIED, KV_TYPES, WEIGHTS, Source
from inferq.timing.baking.kernels import SYSTEMS, KernelDatabase
from inferq.timing.tables.parts import ChunkPart, DecodePart, LinearPart
from inferq.timing.tables.timing_table import TimingTable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from inferq.progress import Progress

    Floats = NDArray[np.float64]
    Whole = NDArray[np.int64]

MOST_CONTEXT_TOKENS = 2**21
"""Maximum of sequences times mean context; no known cache holds more, so the grid has no points there."""
MOST_TOKENS, MOST_SEQUENCES = 16_384, 1024
"""The largest batch, which is also the largest chunk, and the most decodes of the grid."""
LARGEST_FALL = 0.1
"""Decrease of the decode time over growing batches beyond which a table is refused."""
LARGEST_CHUNK, MOST_DECODES, MOST_PROMPTS = 8192, 512, 64
"""Limits of the iterations on which the error is measured."""
SEED = 7


def bake(
    model: str | os.PathLike[str] | Source,
    gpu: str,
    backend: str = "vllm",
    *,
    version: str | None = None,
    tensor_parallel: int = 1,
    expert_parallel: int = 1,
    data_parallel: int = 1,
    weights: str | None = None,
    kv_dtype: str | None = None,
    held_out: int = 3000,
    progress: Progress | None = None,
) -> TimingTable:
    """Sample a table from the kernel database of aiconfigurator, and measure its error on other points.

    Grid points are added one at a time where linear interpolation has the largest error.

    Source: aiconfigurator (NVIDIA, Apache-2.0), <https://github.com/ai-dynamo/aiconfigurator>. The page on
        measured tables lists what it measures.

    Args:
        model: a known model (`llama-3.1-8b`), a model of aiconfigurator (`Qwen/Qwen3-8B`), or a folder with
            the `config.json` of a model.
        gpu: a known GPU (`h100-80gb`), or a system of aiconfigurator (`h100_sxm`).
        backend: `vllm`, `sglang` or `trtllm`.
        version: version of the backend. Default: the current one of the database.
        tensor_parallel: GPUs that share an attention layer.
        expert_parallel: groups of GPUs, each with its own experts; within a group, experts are cut.
        data_parallel: copies of the attention layers. Times are those of one copy, with equal batches in all.
        weights: number format of the weights. Default: the checkpoint's.
        kv_dtype: number format of the KV cache. Default: the checkpoint's.
        held_out: random points off the grid on which the error of each part is measured; 0 for none.
        progress: receives the completed and the total number of rows of the grids.

    Raises:
        ConfigError: the package is missing, or lacks the model, GPU, backend, version or format, or cannot
            split the model this way, or decodes become faster as the batch grows; it names the argument.
    """
    model = os.fspath(model) if isinstance(model, os.PathLike) else model
    names = {"gpu": gpu, "backend": backend, **({} if isinstance(model, Source) else {"model": model})}
    for name, text in names.items():
        if not isinstance(text, str) or not text:
            raise ConfigError(name, f"must be a name, got {text!r}")
    sizes = {
        "tensor_parallel": tensor_parallel,
        "expert_parallel": expert_parallel,
        "data_parallel": data_parallel,
    }
    for name, size in sizes.items():
        whole(name, size, 1, 1024)
    whole("held_out", held_out, 0, 1_000_000)
    for name, form, known in (("weights", weights, [*WEIGHTS]), ("kv_dtype", kv_dtype, [*KV_TYPES])):
        if form is not None and form not in known:
            raise ConfigError(name, f"must be one of {', '.join(known)}, got {form!r}")
    source = model if isinstance(model, Source) else Source.of(model)
    database = KernelDatabase(
        source, gpu, backend, version=version, **sizes, weights=weights, kv_dtype=kv_dtype
    )
    candidates = Candidates.up_to(MOST_TOKENS, MOST_SEQUENCES, source.most_context)
    _correct_falling_decodes(database, backend)
    parts = _parts(database, candidates, progress)
    provenance = {
        **_provenance(database, source, gpu, backend, sizes),
        "weights": weights or source.weights,
        "kv_dtype": kv_dtype or source.kv_dtype,
    }
    if held_out:
        provenance["held_out_error"] = errors(database, parts, candidates, held_out)
    database.forget()
    return TimingTable(**parts, provenance=provenance)


def _correct_falling_decodes(database: KernelDatabase, backend: str) -> None:
    """Pad batches if decodes take more than 10 % less time in a larger batch.

    Raises:
        ConfigError: they still do; the kernels are untuned.
    """
    if _fall(database) is None:
        return
    database.pad()
    if (fall := _fall(database)) is not None:
        (few, slow_s), (many, fast_s) = fall
        raise ConfigError(
            "backend",
            f"the kernels of {backend} are not tuned for this model: a decode iteration takes "
            f"{1000 * slow_s:.1f} ms with {few} sequences but {1000 * fast_s:.1f} ms with {many}; use "
            "another backend",
        )


def _fall(database: KernelDatabase) -> tuple[tuple[int, float], tuple[int, float]] | None:
    """Two numbers of sequences with their times, of which the larger takes more than 10 % less time."""
    slowest = 0, 0.0
    for sequences in lattice.powers(MOST_SEQUENCES):
        time_s = database.linear(sequences) + database.decode(sequences, 1000)
        if time_s < (1 - LARGEST_FALL) * slowest[1]:
            return slowest, (sequences, time_s)
        if time_s > slowest[1]:
            slowest = sequences, time_s
    return None


class Candidates(NamedTuple):
    """Points at which the database is evaluated; a table keeps some of them."""

    tokens: list[int]
    chunk: list[int]
    context: list[int]
    sequences: list[int]
    mean_context: list[int]

    @classmethod
    def up_to(cls, most_tokens: int, most_sequences: int, most_context: int) -> Candidates:
        """Points over orders of magnitude, and the measured points.

        Decodes were measured at powers of 2 of the context, including the new token.
        """
        measured = (power - 1 for power in lattice.powers(most_context + 1))
        return cls(
            tokens=lattice.batch_sizes(most_tokens),
            chunk=lattice.spread(1, most_tokens, 4),
            context=[0, *lattice.spread(16, most_context, 3)],
            sequences=sorted({*lattice.spread(1, most_sequences, 4), *lattice.powers(most_sequences)}),
            mean_context=sorted({*lattice.spread(7, most_context, 3), *measured, most_context}),
        )


def _parts(database: KernelDatabase, candidates: Candidates, progress: Progress | None) -> dict[str, Any]:
    """The database at enough points."""
    tokens, chunk, context, sequences, mean_context = candidates
    rows_done, total = itertools.count(1), len(chunk) + len(sequences)

    def report() -> None:
        if progress is not None:
            progress(next(rows_done), total)

    linear = np.array([database.linear(count) for count in tokens])
    chunk_s = lattice.values(database.chunk, chunk, context, report)
    decode_s = lattice.values(database.decode, sequences, mean_context, report)
    possible = np.multiply.outer(sequences, mean_context) <= MOST_CONTEXT_TOKENS
    points = lattice.line(tokens, linear)
    rows, columns = lattice.sides(chunk, context, chunk_s, np.ones_like(chunk_s, dtype=bool))
    groups, means = lattice.sides(sequences, mean_context, decode_s, possible)
    of_chunk = _rounded(chunk_s[np.ix_(rows, columns)])
    return {
        "linear": LinearPart([tokens[at] for at in points], _rounded(linear[points])),
        "chunk": ChunkPart(
            [chunk[at] for at in rows],
            [context[at] for at in columns],
            of_chunk,
            # A batch of chunks takes the time of an almost empty chunk once.
            shared_s=min(map(min, of_chunk)),
        ),
        "decode": DecodePart(
            [sequences[at] for at in groups],
            [mean_context[at] for at in means],
            _rounded(decode_s[np.ix_(groups, means)]),
        ),
    }


def _rounded(seconds: Floats) -> Any:
    """Round to nanoseconds, so that the file stores no noise."""
    return np.round(seconds, 9).tolist()


def _provenance(
    database: KernelDatabase, source: Source, gpu: str, backend: str, sizes: Mapping[str, int]
) -> dict[str, Any]:
    ours = {theirs: name for name, theirs in SYSTEMS.items()}
    known = {theirs: name for name, theirs in CARRIED.items()}
    notes = [
        "chunks were measured at context 0 only; other contexts use a fraction of a whole prompt's time",
        "host time is not included",
        *database.corrections,
    ]
    if backend == "vllm" and database.system == "l40s" and sizes["tensor_parallel"] > 1:
        notes.append("all-reduce was measured over PCIe, about 2.5 GB/s, and is most of a large batch")
    return {
        "source": "kernels timed by NVIDIA, from the database of aiconfigurator",
        "url": "https://github.com/ai-dynamo/aiconfigurator",
        "version": f"aiconfigurator-core {metadata.version('aiconfigurator-core')}",
        "date": date.today().isoformat(),
        "date_of_measurement": "not recorded by the source",
        "license": "Apache-2.0",
        "attribution": "Copyright (c) 2025-2026 NVIDIA CORPORATION & AFFILIATES. All rights reserved.",
        "changes": "summed over the operations of an iteration, sampled on a grid, rounded to nanoseconds",
        "model": known.get(source.name, source.name),
        "model_at_source": source.name,
        "gpu": ours.get(database.system, gpu),
        "gpu_at_source": database.system,
        **sizes,
        "backend": backend,
        "backend_version": database.version,
        "operations": {source: sorted(names) for source, names in sorted(database.sources.items())},
        "notes": notes,
    }


def errors(
    database: KernelDatabase, parts: Mapping[str, Any], candidates: Candidates, count: int
) -> dict[str, Any]:
    """The relative errors of a table against its database, on random points that its grid did not use.

    The points are log-uniform over the range of all candidates and none of them: batches and chunks, contexts
    (15 % of the chunks at context 0), decodes with at most `MOST_CONTEXT_TOKENS` tokens of context together.
    Mixed iterations have one chunk of at most `LARGEST_CHUNK` tokens and at most `MOST_DECODES` decodes;
    iterations of several prompts have 2 to `MOST_PROMPTS` whole prompts of equal length, with at most
    `LARGEST_CHUNK` tokens together.
    """
    rng = np.random.default_rng(SEED)
    linear, chunk, decode = parts["linear"], parts["chunk"], parts["decode"]
    # More points are drawn than kept: candidates, and caches larger than any GPU has, are left out.
    batches = _loguniform(rng, candidates.tokens[-1], 4 * count)
    batches = batches[~np.isin(batches, candidates.tokens)][:count]
    chunks = _loguniform(rng, candidates.chunk[-1], 2 * count)
    contexts = np.where(rng.random(2 * count) < 0.15, 0, _loguniform(rng, candidates.context[-1], 2 * count))
    is_kept = ~(np.isin(chunks, candidates.chunk) & np.isin(contexts, candidates.context))
    chunks, contexts = chunks[is_kept][:count], contexts[is_kept][:count]
    sequences = _loguniform(rng, candidates.sequences[-1], 4 * count)
    means = _loguniform(rng, candidates.mean_context[-1], 4 * count)
    is_kept = ~(np.isin(sequences, candidates.sequences) & np.isin(means, candidates.mean_context))
    is_kept &= sequences * means <= MOST_CONTEXT_TOKENS
    sequences, means = sequences[is_kept][:count], means[is_kept][:count]

    def linear_s(tokens: Whole) -> tuple[Floats, Floats]:
        """Times of the table and of the database."""
        predicted = np.interp(tokens, linear.tokens, linear.seconds)
        return predicted, np.array([database.linear(int(number)) for number in tokens])

    of_linear = linear_s(batches)
    of_chunk = (
        _of_grid(chunk.chunk, chunk.context, chunk.seconds, chunks, contexts),
        np.array([database.chunk(int(c), int(x)) for c, x in zip(chunks, contexts, strict=True)]),
    )
    of_decode = (
        _of_grid(decode.sequences, decode.mean_context, decode.seconds, sequences, means),
        np.array([database.decode(int(n), int(m)) for n, m in zip(sequences, means, strict=True)]),
    )
    both = min(len(chunks), len(sequences))
    small = (chunks[:both] <= LARGEST_CHUNK) & (sequences[:both] <= MOST_DECODES)
    linear_both = linear_s(chunks[:both][small] + sequences[:both][small])
    mixed = [linear_both[at] + of_chunk[at][:both][small] + of_decode[at][:both][small] for at in (0, 1)]
    alone = linear_s(sequences)
    prompts = _loguniform(rng, MOST_PROMPTS // 2, 4 * count) * 2
    lengths = _loguniform(rng, LARGEST_CHUNK // 2, 4 * count)
    is_kept = prompts * lengths <= LARGEST_CHUNK
    prompts, lengths = prompts[is_kept][:count], lengths[is_kept][:count]
    each = _of_grid(chunk.chunk, chunk.context, chunk.seconds, lengths, np.zeros_like(lengths))
    together = linear_s(prompts * lengths)
    several = (
        together[0] + prompts * each - (prompts - 1) * chunk.shared_s,
        together[1]
        + np.array([database.chunks(int(c), int(k)) for c, k in zip(lengths, prompts, strict=True)]),
    )
    return {
        "points": count,
        "seed": SEED,
        "linear": _error_quantiles(*of_linear),
        "chunk": _error_quantiles(*of_chunk),
        "decode": _error_quantiles(*of_decode),
        "mixed_iteration": _error_quantiles(mixed[0], mixed[1]),
        "decode_iteration": _error_quantiles(alone[0] + of_decode[0], alone[1] + of_decode[1]),
        "prompts_iteration": _error_quantiles(*several),
    }


def _loguniform(rng: np.random.Generator, last: int, count: int) -> Whole:
    return np.exp(rng.uniform(0, np.log(last), count)).round().astype(np.int64)


def _of_grid(rows: Any, columns: Any, seconds: Any, row: Whole, column: Whole) -> Floats:
    return lattice.interpolated(np.array(rows), np.array(columns), np.array(seconds), row, column)


def _error_quantiles(predicted: Floats, true: Floats) -> dict[str, float]:
    error = np.abs(predicted / true - 1)
    quantiles = {"median": np.median(error), "p95": np.quantile(error, 0.95), "max": error.max()}
    return {name: round(float(value), 5) for name, value in quantiles.items()}
