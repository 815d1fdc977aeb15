"""A table sampled from a kernel database, and how far it is from that."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import date
from importlib import metadata
from typing import TYPE_CHECKING, Any, NamedTuple

from inferq._lazy import np
from inferq.checks import whole
from inferq.errors import ConfigError
from inferq.timing.tables.baking import lattice
from inferq.timing.tables.baking.kernels import CARRIED, SYSTEMS, KernelDatabase
from inferq.timing.tables.timing_table import ChunkPart, DecodePart, LinearPart, TimingTable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Whole = NDArray[np.int64]

MOST_CONTEXT_TOKENS = 2**21
"""Sequences times mean context beyond this fit in no cache that we know of, so no points are spent there."""
LARGEST_CHUNK, MOST_DECODES, MOST_PROMPTS = 8192, 512, 64
"""Of the iterations whose error is measured."""
SEED = 7


def sampled(
    model: str | os.PathLike[str],
    system: str,
    backend: str,
    *,
    version: str | None,
    tensor_parallel: int,
    quantization: Mapping[str, str] | None,
    most_tokens: int,
    most_sequences: int,
    most_context: int | None,
    held_out: int,
) -> TimingTable:
    """A table of a kernel database; see `TimingTable.from_aiconfigurator`."""
    model = os.fspath(model) if isinstance(model, os.PathLike) else model
    for name, text in (("model", model), ("system", system), ("backend", backend)):
        if not isinstance(text, str) or not text:
            raise ConfigError(name, f"must be a name, is {text!r}")
    whole("tensor_parallel", tensor_parallel, 1, 1024)
    whole("most_tokens", most_tokens, 32, 1_048_576)
    whole("most_sequences", most_sequences, 4, 65_536)
    whole("held_out", held_out, 0, 1_000_000)
    if most_context is not None:
        whole("most_context", most_context, 32, 1_048_576)
    if quantization is not None and not isinstance(quantization, Mapping):
        raise ConfigError("quantization", f"must be a table of modes, is {quantization!r}")
    database = KernelDatabase(
        model,
        system,
        backend,
        version=version,
        tensor_parallel=tensor_parallel,
        quantization=quantization or {},
    )
    furthest = database.most_context if most_context is None else most_context
    tried = Tried.up_to(most_tokens, most_sequences, furthest)
    parts = _parts(database, tried)
    provenance = {
        **_provenance(database, model, system, backend, tensor_parallel),
        **({"quantization": dict(quantization)} if quantization else {}),
    }
    if held_out:
        provenance["held_out_error"] = errors(database, parts, tried, held_out)
    return TimingTable(**parts, provenance=provenance)


class Tried(NamedTuple):
    """The points at which the database is asked before those are chosen that a table keeps."""

    tokens: list[int]
    chunk: list[int]
    context: list[int]
    sequences: list[int]
    mean_context: list[int]

    @classmethod
    def up_to(cls, most_tokens: int, most_sequences: int, most_context: int) -> Tried:
        """Spreads over orders of magnitude, and what was measured.

        Decodes were measured at powers of 2; the context there counts the new token too.
        """
        measured = (power - 1 for power in lattice.powers(most_context + 1))
        return cls(
            tokens=lattice.batch_sizes(most_tokens),
            chunk=lattice.spread(1, most_tokens, 4),
            context=[0, *lattice.spread(16, most_context, 3)],
            sequences=sorted({*lattice.spread(1, most_sequences, 4), *lattice.powers(most_sequences)}),
            mean_context=sorted({*lattice.spread(7, most_context, 3), *measured, most_context}),
        )


def _parts(database: KernelDatabase, tried: Tried) -> dict[str, Any]:
    """The database at points that suffice."""
    tokens, chunk, context, sequences, mean_context = tried
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
            # What a chunk takes that has next to nothing in it, a batch of chunks takes once.
            shared_s=min(map(min, of_chunk)),
        ),
        "decode": DecodePart(
            [sequences[at] for at in groups],
            [mean_context[at] for at in means],
            _rounded(decode_s[np.ix_(groups, means)]),
        ),
    }


def _rounded(seconds: Floats) -> Any:
    """To nanoseconds, with no noise in the last digits to store."""
    return np.round(seconds, 9).tolist()


def _provenance(
    database: KernelDatabase, model: str, system: str, backend: str, tensor_parallel: int
) -> dict[str, Any]:
    ours = {theirs: name for name, theirs in SYSTEMS.items()}
    known = {theirs: name for name, theirs in CARRIED.items()}
    notes = [
        "chunks were measured at context 0 only; beyond it their attention is a share of a whole prompt's",
        "the time of the host is not in it",
        *database.mended,
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


def errors(database: KernelDatabase, parts: Mapping[str, Any], tried: Tried, count: int) -> dict[str, Any]:
    """The relative errors of a table against its database on random points that had no say in its grid.

    The points are log-uniform over all that was tried, and none of it: batches and chunks, contexts (15 % of
    the chunks at context 0), decodes with at most `MOST_CONTEXT_TOKENS` tokens of context in all. Mixed
    iterations have one chunk of at most `LARGEST_CHUNK` tokens beside at most `MOST_DECODES` decodes; those
    of several prompts 2 to `MOST_PROMPTS` whole ones of a length, of at most `LARGEST_CHUNK` tokens together.
    """
    rng = np.random.default_rng(SEED)
    linear, chunk, decode = parts["linear"], parts["chunk"], parts["decode"]
    # More are drawn than are kept: what was tried, and caches of sizes that no GPU has, are left out.
    batches = _loguniform(rng, tried.tokens[-1], 4 * count)
    batches = batches[~np.isin(batches, tried.tokens)][:count]
    chunks = _loguniform(rng, tried.chunk[-1], 2 * count)
    contexts = np.where(rng.random(2 * count) < 0.15, 0, _loguniform(rng, tried.context[-1], 2 * count))
    apart = ~(np.isin(chunks, tried.chunk) & np.isin(contexts, tried.context))
    chunks, contexts = chunks[apart][:count], contexts[apart][:count]
    sequences = _loguniform(rng, tried.sequences[-1], 4 * count)
    means = _loguniform(rng, tried.mean_context[-1], 4 * count)
    apart = ~(np.isin(sequences, tried.sequences) & np.isin(means, tried.mean_context))
    apart &= sequences * means <= MOST_CONTEXT_TOKENS
    sequences, means = sequences[apart][:count], means[apart][:count]

    def linear_s(tokens: Whole) -> tuple[Floats, Floats]:
        """What the table says, and what the database says."""
        predicted = np.interp(tokens, linear.tokens, linear.seconds)
        return predicted, np.array([database.linear(int(number)) for number in tokens])

    of_linear = linear_s(batches)
    of_chunk = (
        _said(chunk.chunk, chunk.context, chunk.seconds, chunks, contexts),
        np.array([database.chunk(int(c), int(x)) for c, x in zip(chunks, contexts, strict=True)]),
    )
    of_decode = (
        _said(decode.sequences, decode.mean_context, decode.seconds, sequences, means),
        np.array([database.decode(int(n), int(m)) for n, m in zip(sequences, means, strict=True)]),
    )
    both = min(len(chunks), len(sequences))
    small = (chunks[:both] <= LARGEST_CHUNK) & (sequences[:both] <= MOST_DECODES)
    beside = linear_s(chunks[:both][small] + sequences[:both][small])
    mixed = [beside[at] + of_chunk[at][:both][small] + of_decode[at][:both][small] for at in (0, 1)]
    alone = linear_s(sequences)
    prompts = _loguniform(rng, MOST_PROMPTS // 2, 4 * count) * 2
    lengths = _loguniform(rng, LARGEST_CHUNK // 2, 4 * count)
    apart = prompts * lengths <= LARGEST_CHUNK
    prompts, lengths = prompts[apart][:count], lengths[apart][:count]
    each = _said(chunk.chunk, chunk.context, chunk.seconds, lengths, np.zeros_like(lengths))
    together = linear_s(prompts * lengths)
    several = (
        together[0] + prompts * each - (prompts - 1) * chunk.shared_s,
        together[1]
        + np.array([database.chunks(int(c), int(k)) for c, k in zip(lengths, prompts, strict=True)]),
    )
    return {
        "points": count,
        "seed": SEED,
        "linear": _judged(*of_linear),
        "chunk": _judged(*of_chunk),
        "decode": _judged(*of_decode),
        "mixed_iteration": _judged(mixed[0], mixed[1]),
        "decode_iteration": _judged(alone[0] + of_decode[0], alone[1] + of_decode[1]),
        "prompts_iteration": _judged(*several),
    }


def _loguniform(rng: np.random.Generator, last: int, count: int) -> Whole:
    return np.exp(rng.uniform(0, np.log(last), count)).round().astype(np.int64)


def _said(rows: Any, columns: Any, seconds: Any, row: Whole, column: Whole) -> Floats:
    return lattice.interpolated(np.array(rows), np.array(columns), np.array(seconds), row, column)


def _judged(predicted: Floats, true: Floats) -> dict[str, float]:
    error = np.abs(predicted / true - 1)
    quantiles = {"median": np.median(error), "p95": np.quantile(error, 0.95), "max": error.max()}
    return {name: round(float(value), 5) for name, value in quantiles.items()}
