"""Tables sampled from a kernel database, with their errors on held-out points."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import date
from importlib import metadata
from typing import TYPE_CHECKING, Any, NamedTuple

from inferq._lazy import np
from inferq.checks import whole
from inferq.errors import ConfigError
from inferq.timing.tables.parts import ChunkPart, DecodePart, LinearPart
from inferq.timing.tables.timing_table import TimingTable

from . import lattice
from .kernels import CARRIED, SYSTEMS, KernelDatabase

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Whole = NDArray[np.int64]

MOST_CONTEXT_TOKENS = 2**21
"""Maximum of sequences times mean context; no known cache holds more, so the grid has no points there."""
LARGEST_CHUNK, MOST_DECODES, MOST_PROMPTS = 8192, 512, 64
"""Limits of the iterations on which the error is measured."""
SEED = 7


def bake(
    model: str | os.PathLike[str],
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
    """Sample a table from the kernel database of aiconfigurator, and measure its error on other points.

    Grid points are added one at a time where linear interpolation has the largest error.

    Source: aiconfigurator (NVIDIA, Apache-2.0), <https://github.com/ai-dynamo/aiconfigurator>. The page on
        measured tables lists what it measures.

    Args:
        model: a known model (`llama-3.1-8b`), a model of aiconfigurator (`Qwen/Qwen3-8B`), or a folder with
            the `config.json` of a model.
        system: a known GPU (`h100-80gb`), or a system of aiconfigurator (`h100_sxm`).
        backend: `vllm`, `sglang` or `trtllm`.
        version: version of the backend. Default: the current one of the database.
        tensor_parallel: GPUs that share the model; experts are cut the same way.
        quantization: modes by aiconfigurator's names, such as `{"gemm_quant_mode": "fp8"}`. Default: as in
            the model's `config.json`.
        most_tokens: largest batch, and largest chunk, of the grid.
        most_sequences: most decodes of the grid.
        most_context: largest context of the grid. Default: the model's, at most 131,072.
        held_out: random points off the grid on which the error of each part is measured; 0 for none.

    Raises:
        ConfigError: the package is missing, lacks the model, system, backend, version or quantization, or
            cannot split the model this way; it names the argument.
    """
    model = os.fspath(model) if isinstance(model, os.PathLike) else model
    for name, text in (("model", model), ("system", system), ("backend", backend)):
        if not isinstance(text, str) or not text:
            raise ConfigError(name, f"must be a name, got {text!r}")
    whole("tensor_parallel", tensor_parallel, 1, 1024)
    whole("most_tokens", most_tokens, 32, 1_048_576)
    whole("most_sequences", most_sequences, 4, 65_536)
    whole("held_out", held_out, 0, 1_000_000)
    if most_context is not None:
        whole("most_context", most_context, 32, 1_048_576)
    if quantization is not None and not isinstance(quantization, Mapping):
        raise ConfigError("quantization", f"must be a table of modes, got {quantization!r}")
    database = KernelDatabase(
        model,
        system,
        backend,
        version=version,
        tensor_parallel=tensor_parallel,
        quantization=quantization or {},
    )
    furthest = database.most_context if most_context is None else most_context
    candidates = Candidates.up_to(most_tokens, most_sequences, furthest)
    parts = _parts(database, candidates)
    provenance = {
        **_provenance(database, model, system, backend, tensor_parallel),
        **({"quantization": dict(quantization)} if quantization else {}),
    }
    if held_out:
        provenance["held_out_error"] = errors(database, parts, candidates, held_out)
    return TimingTable(**parts, provenance=provenance)


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


def _parts(database: KernelDatabase, candidates: Candidates) -> dict[str, Any]:
    """The database at enough points."""
    tokens, chunk, context, sequences, mean_context = candidates
    linear = np.array([database.linear(count) for count in tokens])
    chunk_s = lattice.values(database.chunk, chunk, context)
    decode_s = lattice.values(database.decode, sequences, mean_context)
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
    database: KernelDatabase, model: str, system: str, backend: str, tensor_parallel: int
) -> dict[str, Any]:
    ours = {theirs: name for name, theirs in SYSTEMS.items()}
    known = {theirs: name for name, theirs in CARRIED.items()}
    notes = [
        "chunks were measured at context 0 only; other contexts use a fraction of a whole prompt's time",
        "host time is not included",
        *database.corrections,
    ]
    if backend == "vllm" and database.system == "l40s" and tensor_parallel > 1:
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
        "model": known.get(database.model, model if model in CARRIED else database.model),
        "model_at_source": database.model,
        "gpu": ours.get(database.system, system),
        "gpu_at_source": database.system,
        "tensor_parallel": tensor_parallel,
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
