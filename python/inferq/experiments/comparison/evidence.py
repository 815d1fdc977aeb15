"""The runs that a comparison needs, and what they show."""

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
    """The runs of several systems over seeds, reduced to their numbers."""

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
        self.chance: Literal["seeds", "blocks"] = "seeds"

    @property
    def seeds(self) -> tuple[int, ...]:
        """Of the runs, in the order in which they were asked for."""
        return tuple(self.runs[self._baseline])

    def over_seeds(self, seeds: Sequence[int], asked: Sequence[Margin], most: int) -> str:
        """Run the workload for each seed, and where a precision is asked for as many more as that takes.

        Args:
            seeds: to begin with.
            asked: what the intervals shall come down to.
            most: seeds at which to give up.

        Returns:
            Why there are so many runs.
        """
        if not asked:
            self._run(seeds, self._systems)
            return f"{counted(len(seeds), 'seed')}, as asked"
        count = max(len(seeds), LEAST_SEEDS)
        if most < count:
            raise ConfigError("most_seeds", f"{count} are run before the first look at until, is {most}")
        following = max(seeds) + 1
        if following + most > 2**64:
            raise ConfigError(
                "seeds", f"until goes on after the largest of them, and none follows {max(seeds)}"
            )
        self._run(seeds, self._systems)
        while True:
            have = len(self.seeds)
            self._run(range(following, following + count - have), self._systems)
            following += count - have
            widths = [(one, *self._width(one)) for one in asked]
            known = [
                (one, half, target) for one, half, target in widths if half is not None and target is not None
            ]
            if len(known) < len(widths):
                names = " and ".join(one.metric.name for one, half, _ in widths if half is None)
                return (
                    f"{counted(count, 'seed')}: no number of them is enough, since some run does not tell "
                    f"{names}"
                )
            excess = max(half / target if half > 0 else 0.0 for _, half, target in known)
            if excess <= 1 or count == most:
                why = "narrow enough" if excess <= 1 else "the most allowed, and not narrow enough"
                return f"{counted(count, 'seed')}, {why}: {', '.join(map(_width_of, known))}"
            count = next_count(count, most, excess)

    def over_blocks(self, seeds: Sequence[int], *, is_synthetic: bool) -> str:
        """Run a workload that no seed changes, for as many seeds as change anything.

        Args:
            seeds: of the runs.
            is_synthetic: that it is synthetic all the same, and draws nothing.

        Returns:
            Why there are so many runs.
        """
        self.chance = "blocks"
        self._run(seeds[:2], self._systems)
        first = seeds[0]
        repeats = {
            name: len(seeds) > 1 and runs[first].digest == runs[seeds[1]].digest
            for name, runs in self.runs.items()
        }
        drawing = [name for name, repeated in repeats.items() if not repeated]
        self._run(seeds[2:], drawing)
        blocks = [
            Run(name, seed, cut)
            for name, runs in self.runs.items()
            for seed in ([first] if repeats[name] else seeds)
            for cut in runs[seed].cuts
        ]
        gaps: dict[tuple[str, int], list[Mapping[str | None, Gaps]]] = {}
        for run, found in zip(blocks, self._replicated(blocks, self._measurement.of_block), strict=True):
            gaps.setdefault((run.system, run.seed), []).append(found)
        for (name, seed), parts in gaps.items():
            self._measurement.add_gaps(self.runs[name][seed], parts)
        kept = seeds if drawing else seeds[:1]
        for name, repeated in repeats.items():
            if repeated:
                self.runs[name] = {seed: self.runs[name][first] for seed in kept}
        if drawing or len(seeds) == 1:
            return f"{counted(len(seeds), 'seed')}, as asked"
        what = "the distributions of the workload draw nothing" if is_synthetic else "the trace is recorded"
        return f"one run of each system: {what} and no system draws, so every seed gives the same"

    def keys(self, *, only_told: bool) -> list[MetricKey]:
        """All metrics of all requests, then of each class; `only_told`: those that a run has."""
        has_value: dict[MetricKey, bool] = {}
        for runs in self.runs.values():
            for measured in runs.values():
                for key, value in measured.values.items():
                    has_value[key] = has_value.get(key, False) or value is not None
        ordered = sorted(has_value, key=lambda key: (key[0] is not None, key[0] or ""))
        return [key for key in ordered if has_value[key] or not only_told]

    def missing(self, name: str, key: MetricKey) -> int:
        """Runs of a system in which no request tells a metric."""
        return sum(measured.values.get(key) is None for measured in self.runs[name].values())

    def sample(self, name: str, key: MetricKey) -> Sample | None:
        """What the runs of a system tell about a metric; None where one of them does not tell it."""
        runs = list(self.runs[name].values())
        values = [measured.values.get(key) for measured in runs]
        numbers = [value for value in values if value is not None]
        if len(numbers) < len(values):
            return None
        mean = math.fsum(numbers) / len(numbers)
        if self.chance == "seeds":
            return Sample(mean, np.array(numbers), in_blocks=False)
        parts = [measured.pseudo.get(key) for measured in runs]
        blocks = [part for part in parts if part is not None]
        if len(blocks) < len(parts) or len({part.size for part in blocks}) > 1:
            return Sample(mean, np.array([mean]), in_blocks=True)
        return Sample(mean, np.mean(blocks, axis=0), in_blocks=True)

    def contrast(self, name: str, key: MetricKey) -> Contrast | None:
        """What distinguishes a system from the baseline; None where a run does not tell the metric."""
        base, other = self.sample(self._baseline, key), self.sample(name, key)
        if base is None or other is None:
            return None
        return contrast(base, other, self._confidence, key[1].better)

    def findings(self, keys: Sequence[MetricKey]) -> list[Finding]:
        """Observations that qualify the numbers of some metrics: about intervals, then about the runs."""
        lines: list[Finding] = []
        short: dict[tuple[int, int] | None, list[MetricKey]] = {}
        for key in keys:
            alike = []
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
                elif self.chance == "blocks" and name != self._baseline:
                    compared = self.contrast(name, key)
                    alike += [name] if compared is not None and compared.is_alike else []
            if alike:
                lines.append(
                    Finding(
                        "dependent-blocks",
                        f"{_named(key)}: neighboring blocks of the trace are correlated even with only 8 "
                        f"blocks ({', '.join(alike)}), so the interval is too narrow; use a longer trace",
                        {"metric": _named(key), "systems": ", ".join(alike)},
                    )
                )
            if self.chance == "blocks":
                self._note_short(key, short)
        for why, of in short.items():
            metrics = ", ".join(map(_named, of))
            reason, data = "a maximum grows with the length of the trace", {}
            if why is not None:
                reason = f"{why[0]:,} requests were measured and blocks need {why[1]:,}"
                data = {"count": why[0], "required": why[1]}
            lines.append(
                Finding(
                    "no-interval",
                    f"{metrics} has no interval, because {reason}",
                    {"metrics": metrics, **data},
                )
            )
        return [*lines, *_of_runs(self.runs)]

    def _note_short(self, key: MetricKey, short: dict[tuple[int, int] | None, list[MetricKey]]) -> None:
        """Note a metric about which blocks tell nothing under the reason, None for a maximum."""
        least = needed(key[1])
        if least is None:
            short.setdefault(None, []).append(key)
            return
        counts = [
            measured.requests.get(key[0], 0) for runs in self.runs.values() for measured in runs.values()
        ]
        if min(counts) < least:
            short.setdefault((min(counts), least), []).append(key)

    def _width(self, asked: Margin) -> tuple[float | None, float | None]:
        """The widest interval of a metric, half of it, and what it shall come down to."""
        key = (None, asked.metric)
        base = self.sample(self._baseline, key)
        others = [name for name in self.runs if name != self._baseline]
        if base is None:
            return None, None
        target = asked.at(base.mean)
        if not others:
            return base.interval(self._confidence).half_width, target
        contrasts = [self.contrast(name, key) for name in others]
        halves = [one.difference.half_width for one in contrasts if one is not None]
        return (max(halves) if len(halves) == len(contrasts) else None), target

    def _run(self, seeds: Sequence[int], systems: Sequence[str] | Mapping[str, System]) -> None:
        runs = [Run(name, seed) for seed in seeds for name in systems]
        in_blocks = self.chance == "blocks"
        measure = self._measurement.of_trace if in_blocks else self._measurement.of_run
        for run, measured in zip(runs, self._replicated(runs, measure), strict=True):
            self.runs[run.system][run.seed] = measured

    def _replicated(self, runs: Sequence[Run], measure: Callable[[Run, Result], T]) -> list[T]:
        before, self._done = self._done, self._done + len(runs)
        # a bar for each batch: how many runs there will be is known batch by batch
        with watched(self._progress, "runs") as tell:
            return replications(
                self._workload,
                self._systems,
                runs,
                measure,
                threads=self._threads,
                progress=None if tell is None else lambda done, total: tell(before + done, before + total),
                **self._options,
            )


def _width_of(width: tuple[Margin, float, float]) -> str:
    """How near an interval came to what was asked: metric, half width, and what it should be."""
    margin, half, target = width
    unit = "" if margin.metric.unit == "share" else f" {margin.metric.unit}"
    return f"{margin.metric.name} ± {number(half, 4)} (asked {number(target, 4)}){unit}"


def _named(key: MetricKey) -> str:
    """A metric, and of which class."""
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
