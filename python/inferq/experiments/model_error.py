"""Published errors of the model by kind of engine, for verdicts whose margin is smaller.

The table is the table "Errors by engine" of docs/explanation/accuracy.md, as data. A row names the properties
of the measured engines (`engine`), a metric, and the absolute errors. `properties_of` returns the properties
of a simulated engine. A further property, such as the GPU or the weights, is a key of both: no caller
changes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from inferq.display.text import counted, listed, percent
from inferq.experiments.objective_value import ObjectiveValue
from inferq.results.finding import Finding
from inferq.results.metric import Metric
from inferq.systems.engine import Engine
from inferq.systems.pools import pools_of
from inferq.systems.servers import program_of
from inferq.systems.system import System

TABLE = Path(__file__).parent / "published_errors.json"
_MEASURED_UNITS = ("s", "requests/s", "tokens/s")
"""Units of metrics that benchmarks of servers publish. Counts and costs follow from them."""


@dataclass(frozen=True, slots=True)
class PublishedError:
    """The absolute error of a metric on measured servers, as shares of the measured value."""

    kind: Mapping[str, str]
    """Properties of the measured engines."""
    metric: str
    runs: int
    median: float
    p90: float

    def covers(self, properties: Mapping[str, str]) -> bool:
        """Whether an engine with these properties is of this kind."""
        return self.kind.items() <= properties.items()


@cache
def published() -> tuple[PublishedError, ...]:
    """All rows of the table."""
    rows = json.loads(TABLE.read_text(encoding="utf-8"))["rows"]
    return tuple(PublishedError(**row) for row in rows)


def properties_of(engine: Engine) -> Mapping[str, str] | None:
    """The properties of an engine that rows of the table can name. None for an engine without a GPU.

    Example:
        >>> import inferq as iq
        >>> from inferq.experiments.model_error import properties_of
        >>> properties_of(iq.Engine.on("llama-3.1-8b", "h100-80gb", server="sglang-0.5"))
        {'engine': 'sglang'}
        >>> properties_of(iq.Engine.on("llama-3.1-8b", "h100-80gb", scheduler=iq.Sarathi()))
        {'engine': 'Sarathi'}
    """
    if not engine.on_card:
        return None
    program = program_of(engine.scheduler) or type(engine.scheduler).__name__
    drafts = getattr(engine.scheduler, "speculation", None) is not None
    return {"engine": f"{program} with speculation" if drafts else program}


@dataclass(frozen=True, slots=True)
class ModelErrors:
    """Published errors for the engines of one or several systems.

    Empty if no engine names its GPU: times of such an engine are an assumption, not a model of a server.
    """

    kinds: tuple[Mapping[str, str], ...]
    """The distinct properties of the engines."""

    @classmethod
    def of(cls, *systems: System) -> ModelErrors:
        """The published errors for all engines of these systems."""
        engines = (engine for system in systems for pool in pools_of(system) for engine in pool.engines)
        kinds: list[Mapping[str, str]] = []
        for properties in map(properties_of, engines):
            if properties is not None and properties not in kinds:
                kinds.append(properties)
        return cls(tuple(kinds))

    @property
    def unmeasured(self) -> tuple[str, ...]:
        """Names of the kinds of engine for which no error is published."""
        return tuple(_name(kind) for kind in self.kinds if not any(row.covers(kind) for row in published()))

    def by_kind(self, metric: str) -> dict[str, PublishedError | None]:
        """The error of a metric for each kind of engine, or None. The row with the most properties counts."""
        errors: dict[str, PublishedError | None] = {}
        for kind in self.kinds:
            rows = [row for row in published() if row.metric == metric and row.covers(kind)]
            errors[_name(kind)] = max(rows, key=lambda row: len(row.kind), default=None)
        return errors

    def median(self, metric: str) -> float | None:
        """The largest median error over the kinds of engine. None if none is published."""
        return max((row.median for row in self.by_kind(metric).values() if row is not None), default=None)

    def note(self, metric: Metric, margin: float | None) -> str:
        """The median error of a metric as text, if it exceeds a margin or was not measured.

        Args:
            metric: the metric of a verdict.
            margin: relative distance from the value that decides the verdict. None: undefined.

        Example:
            >>> import inferq as iq
            >>> from inferq.experiments.model_error import ModelErrors
            >>> from inferq.results.metric import Metric
            >>> errors = ModelErrors.of(iq.Engine.on("llama-3.1-8b", "h100-80gb", server="vllm-0.15"))
            >>> errors.note(Metric.of("ttft_p99"), 0.02), errors.note(Metric.of("ttft_p99"), 0.2)
            ('model error: vllm 14.3 %', '')
            >>> errors.note(Metric.of("itl_p99"), 0.02)
            'model error: vllm not measured'
        """
        if margin is None or metric.unit not in _MEASURED_UNITS:
            return ""
        texts = [
            f"{name} not measured" if row is None else f"{name} {percent(row.median)}"
            for name, row in self.by_kind(metric.name).items()
            if row is None or abs(margin) < row.median
        ]
        return f"model error: {', '.join(texts)}" if texts else ""

    def note_on(self, value: ObjectiveValue) -> str:
        """The same for an objective and its limit, in brackets after a space. Empty without a note."""
        limit, margin = value.objective.limit, value.share - 1
        note = self.note(value.objective.metric, margin if limit > 0 else None)
        return f" [{note}]" if note else ""

    def findings(self, finer: Iterable[str]) -> list[Finding]:
        """Findings about verdicts with a smaller margin than the error, and about unmeasured engines.

        Args:
            finer: metrics of verdicts whose margin is smaller than the median error.
        """
        rows = {metric: self.by_kind(metric) for metric in dict.fromkeys(finer)}
        texts = [
            f"{metric} ({name}: median {percent(row.median)}, P90 {percent(row.p90)}, "
            f"{counted(row.runs, 'run')})"
            for metric, errors in rows.items()
            for name, row in errors.items()
            if row is not None
        ]
        findings = []
        if texts:
            findings.append(
                Finding(
                    "model-error",
                    f"verdicts are finer than the published error on measured servers in {', '.join(texts)}; "
                    "intervals cover only the randomness of the runs",
                    {metric: self.median(metric) for metric in rows},
                )
            )
        if self.unmeasured:
            findings.append(
                Finding(
                    "no-model-error",
                    f"no measured error exists for {listed(self.unmeasured)}: no server of this kind was "
                    "compared with the model",
                    {"engines": list(self.unmeasured)},
                )
            )
        return findings

    def findings_on(self, values: Iterable[ObjectiveValue]) -> list[Finding]:
        """The same for the objectives of an SLO and their limits."""
        return self.findings(
            value.objective.metric.name
            for value in values
            if value.objective.limit > 0 and self.exceeds(value.objective.metric.name, value.share - 1)
        )

    def exceeds(self, metric: str, margin: float | None) -> bool:
        """Whether the median error of a kind of engine is larger than a relative margin."""
        median = self.median(metric)
        return margin is not None and median is not None and abs(margin) < median


def with_errors(rows: Iterable[dict[str, Any]], errors: Mapping[str, ModelErrors]) -> list[str]:
    """Add `model_error` and `note` to rows of a comparison with a verdict.

    Args:
        rows: rows of `Comparison.frame`; they are changed.
        errors: published errors for the engines of each system and of the baseline.

    Returns:
        The metrics with a significant difference that is smaller than the median error.
    """
    finer = []
    for row in rows:
        if row["verdict"] is None:
            continue
        of_row, metric = errors[row["system"]], Metric.of(row["metric"])
        row["model_error"] = of_row.median(metric.name)
        if row["verdict"] in ("better", "worse"):
            row["note"] = of_row.note(metric, row["relative"]) or None
            if of_row.exceeds(metric.name, row["relative"]):
                finer.append(metric.name)
    return finer


def _name(kind: Mapping[str, str]) -> str:
    return " ".join(kind.values())
