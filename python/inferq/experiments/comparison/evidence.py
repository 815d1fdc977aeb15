"""Runs of a comparison, and their samples, contrasts and findings."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from inferq._lazy import np
from inferq.display.text import counted, number
from inferq.errors import ConfigError
from inferq.experiments.comparison.blocks import needed
from inferq.experiments.comparison.contrast import Contrast, Sample, contrast
from inferq.experiments.comparison.measurement import Gaps, Measurement, MetricKey, RunNumbers
from inferq.experiments.comparison.precision import LEAST_SEEDS, next_count
from inferq.experiments.margin import Margin
from inferq.experiments.replication import Run, replications
from inferq.progress import Progress, watched
from inferq.results.finding import Finding
from inferq.results.result import Result
from inferq.systems.system import System
from inferq.workload.workload import Workload

T = TypeVar("T")

_NUMBER = re.compile(r"\d[\d.,]*")


class Evidence:
    """Runs of several systems over seeds, reduced to their numbers."""

    def __init__(
        self,
        workload: Workload,
        systems: Mapping[str, System],
        baseline: str,
        measurement: Measurement,
        confidence: float,
        *,
        threads: int | None,
        progress: bool | Progress | None,
        options: Mapping[str, Any],
    ) -> None:
        self._workload, self._systems, self._baseline = workload, systems, baseline
        self._measurement, self._confidence = measurement, confidence
        self._threads, self._progress, self._options = threads, progress, options
        self._done = 0
        self.runs: dict[str, dict[int, RunNumbers]] = {name: {} for name in systems}
        self.variation: Literal["seeds", "blocks"] = "seeds"

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of the runs, in order."""
        return tuple(self.runs[self._baseline])

    def over_seeds(self, seeds: Sequence[int], targets: Sequence[Margin], most: int) -> str:
        """Run the workload for each seed, and for further seeds until the targets are reached.

        Args:
            seeds: initial seeds.
            targets: target half widths of the intervals.
            most: maximum number of seeds.

        Returns:
            The number of runs, and the reason for it.
        """
        if not targets:
            self._run(seeds, self._systems)
            return f"{counted(len(seeds), 'seed')}"
        count = max(len(seeds), LEAST_SEEDS)
        if most < count:
            raise ConfigError(
                "most_seeds",
                f"must be at least {count}, the seeds before the first look of until; got {most}",
            )
        following = max(seeds) + 1
        if following + most > 2**64:
            raise ConfigError(
                "seeds", f"must leave room for the further seeds of until, got a largest seed of {max(seeds)}"
            )
        self._run(seeds, self._systems)
        while True:
            have = len(self.seeds)
            self._run(range(following, following + count - have), self._systems)
            following += count - have
            widths = [(margin, *self._width(margin)) for margin in targets]
            known = [
                (margin, half, target)
                for margin, half, target in widths
                if half is not None and target is not None
            ]
            if len(known) < len(widths):
                names = " and ".join(margin.metric.name for margin, half, _ in widths if half is None)
                return f"{counted(count, 'seed')}: more are of no use, since some runs have no {names}"
            excess = max(half / target if half > 0 else 0.0 for _, half, target in known)
            if excess <= 1 or count == most:
                reason = "target reached" if excess <= 1 else "the maximum; target not reached"
                return f"{counted(count, 'seed')}, {reason}: {', '.join(map(_width_of, known))}"
            count = next_count(count, most, excess)

    def over_blocks(self, seeds: Sequence[int], *, is_synthetic: bool) -> str:
        """Run a fixed workload; systems without randomness run once.

        Args:
            seeds: seeds of the runs.
            is_synthetic: whether the fixed workload is synthetic.

        Returns:
            The number of runs, and the reason for it.
        """
        self.variation = "blocks"
        self._run(seeds[:2], self._systems)
        first = seeds[0]
        repeats = {
            name: len(seeds) > 1 and runs[first].digest == runs[seeds[1]].digest
            for name, runs in self.runs.items()
        }
        random = [name for name, repeated in repeats.items() if not repeated]
        self._run(seeds[2:], random)
        blocks = [
            Run(name, seed, cut)
            for name, runs in self.runs.items()
            for seed in ([first] if repeats[name] else seeds)
            for cut in runs[seed].cuts
        ]
        gaps: dict[tuple[str, int], list[Mapping[str | None, Gaps]]] = {}
        for run, of_block in zip(blocks, self._replicated(blocks, self._measurement.of_block), strict=True):
            gaps.setdefault((run.system, run.seed), []).append(of_block)
        for (name, seed), parts in gaps.items():
            self._measurement.add_gaps(self.runs[name][seed], parts)
        used = seeds if random else seeds[:1]
        for name, repeated in repeats.items():
            if repeated:
                self.runs[name] = {seed: self.runs[name][first] for seed in used}
        if random or len(seeds) == 1:
            return f"{counted(len(seeds), 'seed')}"
        workload = "workload" if is_synthetic else "trace"
        return f"nothing is random in the {workload} and the systems: one run per system"

    def keys(self, *, only_available: bool) -> list[MetricKey]:
        """Metrics of all requests, then of each class; `only_available`: those with a value in some run."""
        has_value: dict[MetricKey, bool] = {}
        for runs in self.runs.values():
            for measured in runs.values():
                for key, value in measured.values.items():
                    has_value[key] = has_value.get(key, False) or value is not None
        ordered = sorted(has_value, key=lambda key: (key[0] is not None, key[0] or ""))
        return [key for key in ordered if has_value[key] or not only_available]

    def missing(self, name: str, key: MetricKey) -> int:
        """The number of runs of a system without a value of a metric."""
        return sum(measured.values.get(key) is None for measured in self.runs[name].values())

    def sample(self, name: str, key: MetricKey) -> Sample | None:
        """The samples of a metric of a system. None if a run has no value."""
        runs = list(self.runs[name].values())
        values = [measured.values.get(key) for measured in runs]
        numbers = [value for value in values if value is not None]
        if len(numbers) < len(values):
            return None
        mean = math.fsum(numbers) / len(numbers)
        if self.variation == "seeds":
            return Sample(mean, np.array(numbers), in_blocks=False)
        parts = [measured.pseudo.get(key) for measured in runs]
        blocks = [part for part in parts if part is not None]
        if len(blocks) < len(parts) or len({part.size for part in blocks}) > 1:
            return Sample(mean, np.array([mean]), in_blocks=True)
        return Sample(mean, np.mean(blocks, axis=0), in_blocks=True)

    def contrast(self, name: str, key: MetricKey) -> Contrast | None:
        """The contrast of a system and the baseline. None if a run has no value."""
        base, other = self.sample(self._baseline, key), self.sample(name, key)
        if base is None or other is None:
            return None
        return contrast(base, other, self._confidence, key[1].better)

    def findings(self, keys: Sequence[MetricKey]) -> list[Finding]:
        """Observations that qualify the numbers of some metrics: about intervals, then about the runs."""
        lines: list[Finding] = []
        short: dict[tuple[int, int] | None, list[MetricKey]] = {}
        for key in keys:
            correlated = []
            for name in self.runs:
                if missing := self.missing(name, key):
                    runs = len(self.runs[name])
                    lines.append(
                        Finding(
                            "no-value",
                            f"{_named(key)} has no value in {missing} of {runs} runs of {name}, so no mean",
                            {"metric": _named(key), "system": name, "count": missing, "total": runs},
                        )
                    )
                elif self.variation == "blocks" and name != self._baseline:
                    compared = self.contrast(name, key)
                    correlated += [name] if compared is not None and compared.is_correlated else []
            if correlated:
                lines.append(
                    Finding(
                        "dependent-blocks",
                        f"{_named(key)}: neighboring blocks of the trace are correlated even with only 8 "
                        f"blocks ({', '.join(correlated)}), so the interval is too narrow; use a longer "
                        "trace",
                        {"metric": _named(key), "systems": ", ".join(correlated)},
                    )
                )
            if self.variation == "blocks":
                self._note_short(key, short)
        for counts, metric_keys in short.items():
            metrics = ", ".join(map(_named, metric_keys))
            reason, data = "a maximum grows with the length of the trace", {}
            if counts is not None:
                reason = f"{counts[0]:,} requests were measured and blocks need {counts[1]:,}"
                data = {"count": counts[0], "required": counts[1]}
            lines.append(
                Finding(
                    "no-interval",
                    f"{metrics} has no interval, because {reason}",
                    {"metrics": metrics, **data},
                )
            )
        return [*lines, *_of_runs(self.runs)]

    def _note_short(self, key: MetricKey, short: dict[tuple[int, int] | None, list[MetricKey]]) -> None:
        """Add a metric without intervals under its reason, None for a maximum."""
        least = needed(key[1])
        if least is None:
            short.setdefault(None, []).append(key)
            return
        counts = [
            measured.requests.get(key[0], 0) for runs in self.runs.values() for measured in runs.values()
        ]
        if min(counts) < least:
            short.setdefault((min(counts), least), []).append(key)

    def _width(self, margin: Margin) -> tuple[float | None, float | None]:
        """The largest half width of a metric, and its target."""
        key = (None, margin.metric)
        base = self.sample(self._baseline, key)
        others = [name for name in self.runs if name != self._baseline]
        if base is None:
            return None, None
        target = margin.at(base.mean)
        if not others:
            return base.interval(self._confidence).half_width, target
        contrasts = [self.contrast(name, key) for name in others]
        halves = [paired.difference.half_width for paired in contrasts if paired is not None]
        return (max(halves) if len(halves) == len(contrasts) else None), target

    def _run(self, seeds: Sequence[int], systems: Sequence[str] | Mapping[str, System]) -> None:
        runs = [Run(name, seed) for seed in seeds for name in systems]
        in_blocks = self.variation == "blocks"
        measure = self._measurement.of_trace if in_blocks else self._measurement.of_run
        for run, measured in zip(runs, self._replicated(runs, measure), strict=True):
            self.runs[run.system][run.seed] = measured

    def _replicated(self, runs: Sequence[Run], measure: Callable[[Run, Result], T]) -> list[T]:
        before, self._done = self._done, self._done + len(runs)
        # One bar per batch: the number of further runs is not known in advance.
        with watched(self._progress, "runs") as watch:
            return replications(
                self._workload,
                self._systems,
                runs,
                measure,
                threads=self._threads,
                progress=None if watch is None else lambda done, total: watch(before + done, before + total),
                **self._options,
            )


def _width_of(width: tuple[Margin, float, float]) -> str:
    """Metric, half width and target."""
    margin, half, target = width
    unit = "" if margin.metric.unit == "share" else f" {margin.metric.unit}"
    return f"{margin.metric.name} ± {number(half, 4)} (target {number(target, 4)}){unit}"


def _named(key: MetricKey) -> str:
    """A metric, with its class."""
    return key[1].name if key[0] is None else f"{key[1].name} of {key[0]}"


def _of_runs(runs: Mapping[str, Mapping[int, RunNumbers]]) -> list[Finding]:
    """The findings of the runs of each system; findings that differ only in numbers are reported once."""
    lines = []
    for name, measured in runs.items():
        alike: dict[str, list[Finding]] = {}
        for numbers in measured.values():
            for finding in numbers.findings:
                alike.setdefault(_NUMBER.sub("#", finding), []).append(finding)
        for first, *others in alike.values():
            in_runs = ""
            if len(measured) > 1:
                in_runs = f" (in {1 + len(others)} of {len(measured)} runs; this is the first)"
            system = {"system": name, "runs": 1 + len(others)}
            text = f"{name}: {first.message}{in_runs}"
            lines.append(Finding(first.kind, text, {**first.data, **system}))
        if any(first.kind == "overload" for first, *_ in alike.values()):
            lines.append(
                Finding(
                    "no-limit",
                    f"{name}: the system is overloaded, so means grow with the length of the run; the "
                    "intervals hold for runs of this length only",
                    {"system": name},
                )
            )
    return lines
