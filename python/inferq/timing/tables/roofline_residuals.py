"""Errors of rooflines against measured tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

from inferq._lazy import pl
from inferq.timing.models.roofline import Roofline
from inferq.timing.models.timing_model import iteration_s
from inferq.timing.tables.shipped import known_tables
from inferq.timing.tables.timing_table import TimingTable

CONTEXTS = (128, 512, 2048, 8192)
"""Tokens of context of the compared batches."""


class ComparedBatch(NamedTuple):
    """A batch whose duration both models compute."""

    regime: str
    chunks: tuple[tuple[int, int], ...]
    decodes: tuple[int, ...]


def compared_batches() -> Iterator[ComparedBatch]:
    """The batches of the comparison: few and many decodes, prompts, and both together."""
    for count, context in product((1, 2, 4, 8, 16), CONTEXTS):
        yield ComparedBatch("decode, 1 to 16", (), (context,) * count)
    for count, context in product((32, 64, 128, 256), CONTEXTS):
        if count * context <= 2**19:
            yield ComparedBatch("decode, 32 to 256", (), (context,) * count)
    for chunk, context in product((128, 256, 512, 1024, 2048, 4096, 8192), (0, 2048, 8192)):
        yield ComparedBatch("prefill, 128 to 8192", ((chunk, context),), ())
    for chunk, count, context in product((256, 512, 1024, 2048), (8, 32, 128), (512, 2048)):
        yield ComparedBatch("mixed", ((chunk, context),), (context,) * count)


def shipped_models() -> list[tuple[str, str, int, TimingTable]]:
    """The shipped tables of vLLM with 16-bit weights: model, GPU, number of GPUs, table."""
    return [
        (
            key.model,
            key.gpu,
            key.tensor_parallel,
            TimingTable.shipped(key.model, key.gpu, tensor_parallel=key.tensor_parallel),
        )
        for key in known_tables()
        if (key.backend, key.weights, key.kv_dtype) == ("vllm", "bf16", "bf16")
        and key.expert_parallel == key.data_parallel == 1
    ]


def roofline_against_tables(
    models: Sequence[str] | None = None, gpus: Sequence[str] | None = None, **efficiencies: float
) -> pl.DataFrame:
    """Compare a `Roofline` with the shipped tables, batch by batch.

    Args:
        models: models of the tables. Default: all.
        gpus: GPUs of the tables. Default: all.
        efficiencies: arguments of `Roofline`. Default: its defaults, fitted to 24 tables together.

    Returns:
        A row for each table and batch: `model`, `gpu`, `tensor_parallel`, `regime`, `prefill_tokens`,
        `decodes`, `context_tokens` (of each row), `table_s`, `roofline_s` and `error` = roofline / table − 1.
        Median and 95th percentile by regime:

        `frame.group_by("regime").agg(pl.col("error").median(),
        pl.col("error").abs().quantile(0.95).alias("p95"))`

    Raises:
        ConfigError: an argument that `Roofline` rejects.

    Example:
        >>> import inferq as iq
        >>> frame = iq.timing.roofline_against_tables(models=["llama-3.1-8b"], gpus=["a100-80gb"])
        >>> frame["regime"].unique().sort().to_list()
        ['decode, 1 to 16', 'decode, 32 to 256', 'mixed', 'prefill, 128 to 8192']
    """
    rows = []
    for model, gpu, tensor_parallel, table in shipped_models():
        if (models is not None and model not in models) or (gpus is not None and gpu not in gpus):
            continue
        roofline = Roofline(model, gpu, tensor_parallel, **efficiencies)  # type: ignore[arg-type]  # all are floats
        for regime, chunks, decodes in compared_batches():
            table_s = iteration_s(table, chunks=chunks, decodes=decodes)
            roofline_s = iteration_s(roofline, chunks=chunks, decodes=decodes)
            rows.append(
                {
                    "model": model,
                    "gpu": gpu,
                    "tensor_parallel": tensor_parallel,
                    "regime": regime,
                    "prefill_tokens": sum(tokens for tokens, _ in chunks),
                    "decodes": len(decodes),
                    "context_tokens": decodes[0] if decodes else chunks[0][1],
                    "table_s": table_s,
                    "roofline_s": roofline_s,
                    "error": roofline_s / table_s - 1,
                }
            )
    return pl.DataFrame(rows)
