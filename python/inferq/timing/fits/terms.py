"""The terms of timing models: coefficients, and the columns that they multiply."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from inferq._lazy import np
from inferq.timing.models.memory_linear import MemoryLinear
from inferq.timing.models.mixed_solo import MixedSolo
from inferq.timing.models.piecewise_linear import PiecewiseLinear
from inferq.timing.models.timing_model import TimingModel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from inferq.timing.fits.iteration_log import Log

    Column = NDArray[np.float64]


LEAST_S = 1e-18
"""The core's unit of time; smaller values are 0."""


@dataclass(frozen=True, slots=True)
class Term:
    """One coefficient, and the column that it multiplies."""

    name: str
    unit: str
    counted: str
    """The name of the column in errors."""
    column: Callable[[Log], Column]
    needs: str | None = None
    """The required column of the log."""
    optional: bool = False
    """Whether the term is omitted if the log lacks that column."""


@dataclass(frozen=True, slots=True)
class Linear:
    """A timing model that is linear in its coefficients, given its knee."""

    kind: type[TimingModel]
    terms: tuple[Term, ...]
    kneed: str | None = None
    """The term whose column is `max(0, tokens − knee)`; None for a model without a knee."""


def tokens(log: Log) -> Column:
    """All tokens of an iteration: those of its chunks and one per decode."""
    return log["prefill_tokens"] + log["decodes"]


def _ones(log: Log) -> Column:
    return np.ones_like(log["duration_s"])


def _kv_tokens(log: Log) -> Column:
    context = log["prefill_context"] if "prefill_context" in log else 0.0 * log["duration_s"]
    return context + log["prefill_tokens"] + log["context_tokens"] + log["decodes"]


def _prefilling(log: Log) -> Column:
    return (log["prefill_tokens"] > 0).astype("float64")


LINEAR = {
    "PiecewiseLinear": Linear(
        PiecewiseLinear,
        (
            Term("base", "s", "iterations", _ones),
            Term("per_token", "s/token", "tokens", tokens),
            Term("per_context_token", "s/token", "context_tokens", lambda log: log["context_tokens"]),
            Term(
                "per_prefill_square",
                "s/token²",
                "prefill_squares",
                lambda log: log["prefill_squares"],
                needs="prefill_squares",
                optional=True,
            ),
            Term(
                "per_chunk_context",
                "s/token²",
                "prefill_products",
                lambda log: log["prefill_products"],
                needs="prefill_products",
                optional=True,
            ),
        ),
        kneed="per_token",
    ),
    "MemoryLinear": Linear(
        MemoryLinear,
        (
            Term("base", "s", "iterations", _ones),
            Term("per_kv_token", "s/token", "tokens in the cache", _kv_tokens, needs="prefill_context"),
        ),
    ),
    "MixedSolo": Linear(
        MixedSolo,
        (
            Term("alpha", "s", "a prefill", _prefilling),
            Term("beta", "s/token", "prefill_tokens", lambda log: log["prefill_tokens"]),
            Term("solo", "s", "decodes alone", lambda log: 1.0 - _prefilling(log)),
        ),
    ),
}
"""The linear models of `fit`, by name."""
