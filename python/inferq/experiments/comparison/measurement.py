"""Numbers of a run that remain after its result is dropped."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from inferq._lazy import NDArray, np
from inferq.experiments.comparison.blocks import count_for, edges, of_histograms, pseudo_values
from inferq.experiments.replication import Run
from inferq.results.finding import Finding
from inferq.results.metric import Metric
from inferq.results.result import Result
from inferq.systems.prices import Prices

MetricKey = tuple["str | None", Metric]
"""A class (None for all requests) and a metric."""


@dataclass(frozen=True, slots=True)
class Gaps:
    """A histogram of inter-token latencies."""

    lower_s: NDArray[np.float64]
    upper_s: NDArray[np.float64]
    count: NDArray[np.float64]
    sum_s: float


@dataclass(slots=True)
class RunNumbers:
    """The numbers of a run."""

    values: dict[MetricKey, float | None]
    """Value of each metric. None if missing."""

    findings: tuple[Finding, ...]

    pseudo: dict[MetricKey, NDArray[np.float64]]
    """Pseudo-values of the blocks of a recorded trace, if available."""

    requests: dict[str | None, int]
    """Measured requests of a recorded trace, by class."""

    cuts: tuple[Mapping[str, int], ...]
    """Warm-up and cool-down that measure a single block of a recorded trace, per block, for ITL."""

    digest: bytes
    """Hash of all request rows."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """The measurement of every run of a comparison."""

    metrics: Sequence[Metric]
    slo: Mapping[str, float | None] | None
    by: Literal["class"] | None
    prices: Prices | None = None

    def of_run(self, run: Run, result: Result) -> RunNumbers:
        """The metrics of a run."""
        return RunNumbers(self._values(result), tuple(result.findings), {}, {}, (), b"")

    def of_trace(self, run: Run, result: Result) -> RunNumbers:
        """The metrics of a run over a recorded trace, and the pseudo-values of its blocks."""
        columns = result._tables.requests
        measured = columns["measured"]
        values = self._values(result)
        requests: dict[str | None, int] = {None: int(measured.sum())}
        pseudo: dict[MetricKey, NDArray[np.float64]] = {}
        for group in dict.fromkeys(group for group, _ in values):
            if group is not None:
                code = result._tables.classes.index(group)
                requests[group] = int((columns["class"][measured] == code).sum())
            by_metric = pseudo_values(result, self.metrics, self.slo, group, self.prices)
            pseudo.update({(group, metric): values for metric, values in by_metric.items()})
        gaps = [key[1] for key in self._of_gaps(values) if key[0] is None]
        count = max((count_for(metric, requests[None]) or 0 for metric in gaps), default=0)
        cuts: list[Mapping[str, int]] = []
        if count:
            begins, rows = edges(result, count).tolist(), result._tables.workload.height
            cuts = [{"warmup": begin, "cooldown": rows - end} for begin, end in pairwise(begins)]
        digest = hashlib.blake2b()
        for name in sorted(columns):
            digest.update(columns[name].tobytes())
        return RunNumbers(values, tuple(result.findings), pseudo, requests, tuple(cuts), digest.digest())

    def of_block(self, run: Run, result: Result) -> dict[str | None, Gaps]:
        """The inter-token latencies of a run that measured one block, by class."""
        bins, totals = result._tables.itl, result._tables.itl_totals
        names = [None, *result._tables.classes] if self.by else [None]
        gaps: dict[str | None, Gaps] = {}
        for name in names:
            codes = range(len(totals)) if name is None else [result._tables.classes.index(name)]
            rows = np.isin(bins["class"], list(codes))
            sum_s = sum(int(totals[code]["sum_as"]) for code in codes) / 10**18
            count = bins["count"][rows].astype(np.float64)
            max_s = max((totals[code]["max_s"] for code in codes if totals[code]["count"]), default=0.0)
            upper_s = np.minimum(bins["upper_s"][rows], max_s)
            gaps[name] = Gaps(bins["lower_s"][rows], upper_s, count, sum_s)
        return gaps

    def add_gaps(self, measured: RunNumbers, blocks: Sequence[Mapping[str | None, Gaps]]) -> None:
        """Add the pseudo-values of inter-token latencies to the numbers of a run."""
        for group, metric in self._of_gaps(measured.values):
            count = count_for(metric, measured.requests[group])
            if count is None:
                continue
            each = len(blocks) // count
            parts = [
                _together([block[group] for block in blocks[place : place + each]])
                for place in range(0, len(blocks), each)
            ]
            values = of_histograms([_columns(part) for part in parts], [part.sum_s for part in parts], metric)
            if values is not None:
                measured.pseudo[group, metric] = values

    def _of_gaps(self, values: Mapping[MetricKey, float | None]) -> list[MetricKey]:
        return [key for key, value in values.items() if key[1].name.startswith("itl_") and value is not None]

    def _values(self, result: Result) -> dict[MetricKey, float | None]:
        row = result.summary(slo=self.slo, prices=self.prices).row(0, named=True)
        values: dict[MetricKey, float | None] = {
            (None, metric): metric.of_row(row) for metric in self.metrics
        }
        if self.by is not None:
            for row in result.summary(by=self.by, slo=self.slo).rows(named=True):
                of_classes = [metric for metric in self.metrics if not metric.needs_prices]
                values.update({(row[self.by], metric): metric.of_row(row) for metric in of_classes})
        return values


def _together(parts: Sequence[Gaps]) -> Gaps:
    joined = {name: np.concatenate([_columns(part)[name] for part in parts]) for name in _columns(parts[0])}
    return Gaps(**joined, sum_s=sum(part.sum_s for part in parts))


def _columns(part: Gaps) -> dict[str, NDArray[np.float64]]:
    return {"lower_s": part.lower_s, "upper_s": part.upper_s, "count": part.count}
