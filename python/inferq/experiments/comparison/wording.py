"""How is a comparison told in words?"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inferq.experiments.comparison.compare import Comparison
    from inferq.experiments.comparison.measurement import Key, Measured
    from inferq.experiments.comparison.precision import Precision

_NUMBER = re.compile(r"\d[\d.,]*")


def as_asked(seeds: int) -> str:
    """Why there are so many runs: somebody said so."""
    return f"{_seeds(seeds)}, as asked"


def nothing_drawn(*, is_synthetic: bool) -> str:
    """Why one run of each system is enough."""
    what = "the distributions of the workload draw nothing" if is_synthetic else "the trace is recorded"
    return f"one run of each system: {what} and no system draws, so every seed gives the same"


def reached(widths: Sequence[tuple[Precision, float, float]], seeds: int, *, is_met: bool) -> str:
    """How near the intervals came to what was asked: metric, half width, and what it should be."""
    parts = [
        f"{asked.metric.name} ± {_digits(half)} (asked {_digits(target)})" for asked, half, target in widths
    ]
    why = "narrow enough" if is_met else "the most allowed, and not narrow enough"
    return f"{_seeds(seeds)}, {why}: {', '.join(parts)} {widths[0][0].metric.unit}".rstrip()


def unreachable(asked: Sequence[Precision], seeds: int) -> str:
    """Why no number of seeds is enough."""
    names = " and ".join(one.metric.name for one in asked)
    return f"{_seeds(seeds)}: no number of them is enough, since some run does not tell {names}"


def missing(system: str, key: Key, runs: int, of: int) -> str:
    """A metric that not every run tells."""
    who = "prefix cache" if key[1].name == "hit_rate" else "request"
    return f"{_named(key)}: no {who} tells it in {runs} of {of} runs of {system}, so it has no mean"


def alike(key: Key, systems: Sequence[str]) -> str:
    """Blocks that are not long beside what the queue remembers."""
    return (
        f"{_named(key)}: neighbouring blocks of the trace are alike even where there are only 8 ("
        f"{', '.join(systems)}), so that the interval is too narrow; take a longer trace"
    )


def too_few(keys: Sequence[Key], requests: int, least: int) -> str:
    """A trace that is too short for an interval."""
    names = ", ".join(map(_named, keys))
    return f"{names}: no interval, since {requests:,} requests were measured and blocks need {least:,}"


def no_maximum(keys: Sequence[Key]) -> str:
    """Why a maximum has no interval."""
    return f"{', '.join(map(_named, keys))}: no interval, since a maximum grows with the length of the trace"


def one_seed() -> str:
    """Why there are no intervals at all."""
    return "one seed: no interval can be given and no difference judged; take ten"


def of_runs(runs: Mapping[str, Mapping[int, Measured]]) -> list[str]:
    """The findings of the runs of each system: those that differ in numbers only are told once."""
    found = []
    for name, measured in runs.items():
        kinds: dict[str, list[str]] = {}
        for one in measured.values():
            for text in one.findings:
                kinds.setdefault(_NUMBER.sub("#", text), []).append(text)
        for texts in kinds.values():
            count = (
                f" (in {len(texts)} of {len(measured)} runs; this is the first)" if len(measured) > 1 else ""
            )
            found.append(f"{name}: {texts[0]}{count}")
        if any(kind.startswith("overload") for kind in kinds):
            found.append(
                f"{name}: where the system is overloaded a mean has no limit as runs get longer; its "
                "intervals are about runs of just this length"
            )
    return found


def explained(comparison: Comparison) -> str:
    """Every difference, where chance was taken from, and the findings."""
    said = comparison
    others = [name for name in said.systems if name != said.baseline]
    against = f"{', '.join(others)} against {said.baseline}" if others else said.baseline
    lines = [f"{against}: the same requests for all" if others else against, said.stopped, _chance(said)]
    for name in others or [said.baseline]:
        rows = [row for row in said._rows if row["system"] == name]
        lines += ["", *_table(said, name, rows)]
    lines += ["", *_summed(said)] if others else [""]
    return "\n".join([*lines, *(f"finding: {text}" for text in said.findings)]).rstrip()


def _chance(said: Comparison) -> str:
    percent = f"{100 * said.confidence:g} % intervals"
    if said.chance == "seeds":
        return f"{percent} from independent runs (Student's t over the seeds), pair by pair"
    return (
        f"{percent} from blocks of consecutive arrivals of the trace (jackknife), pair by pair;\n"
        "they are about requests to come like these, if blocks are long beside what the queue remembers"
    )


def _table(said: Comparison, name: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The metrics of a system, in columns."""
    if name == said.baseline:
        head = ["", "unit", "mean", ""]
        body = [[_metric(row), row["unit"], _digits(row["mean"]), _half(row["half_width"])] for row in rows]
        return _aligned([head, *body])
    base = {
        (row.get("class"), row["metric"]): row["mean"] for row in said._rows if row["system"] == said.baseline
    }
    head = ["", "unit", said.baseline, name, "difference", "", "", ""]
    body = [
        [
            _metric(row),
            row["unit"],
            _digits(base[row.get("class"), row["metric"]]),
            _digits(row["mean"]),
            *_rounded(row["difference"], row["difference_half_width"]),
            _percent(row["relative"]),
            row["verdict"] or "not judged",
        ]
        for row in rows
    ]
    return _aligned([head, *body], last_left=True)


def _summed(said: Comparison) -> list[str]:
    """How much pairing helped, and what is left when all rows are judged together."""
    judged = [row for row in said._rows if row["p_value"] is not None]
    if not judged:
        return []
    real = [row for row in judged if row["verdict"] in ("better", "worse")]
    together = sum(row["holds_together"] for row in judged)
    chance = (1 - said.confidence) * len(judged)
    lines = [
        f"real, taken one by one: {len(real)} of {len(judged)} differences ({chance:.2g} would look so by "
        f"chance if there were none); judged together (Holm): {together}"
    ]
    factors = [row["narrowed_by"] for row in judged if row["narrowed_by"] is not None]
    if factors:
        lines.append(
            "serving the same requests narrowed the intervals "
            f"{statistics.median(factors):.1f} times (median; {min(factors):.1f} to {max(factors):.1f})"
        )
    return lines


def _metric(row: Mapping[str, Any]) -> str:
    group = row.get("class")
    return row["metric"] if group is None else f"{row['metric']} of {group}"


def _named(key: Key) -> str:
    return key[1].name if key[0] is None else f"{key[1].name} of {key[0]}"


def _seeds(count: int) -> str:
    return f"{count} seed{'' if count == 1 else 's'}"


def _rounded(difference: float | None, half: float | None) -> tuple[str, str]:
    """A difference and half of its interval: two digits of the latter, as many places of the former."""
    if difference is None or not half:
        return _digits(difference, sign=True), _half(half)
    places = 1 - math.floor(math.log10(half))
    if places > 6:
        return f"{difference:+.2g}", f"± {half:.2g}"
    return f"{difference:+,.{max(places, 0)}f}", f"± {half:,.{max(places, 0)}f}"


def _percent(share: float | None) -> str:
    if share is None:
        return ""
    return f"{100 * share:+.1f} %" if abs(share) >= 0.0005 or share == 0 else f"{100 * share:+.1g} %"


def _half(value: float | None) -> str:
    return "" if value is None else f"± {_digits(value)}"


def _digits(value: float | None, *, sign: bool = False) -> str:
    if value is None:
        return "–"
    plus = "+" if sign else ""
    return f"{value:{plus},.0f}" if abs(value) >= 10_000 else f"{value:{plus}.4g}"


def _aligned(rows: Sequence[Sequence[str]], *, last_left: bool = False) -> list[str]:
    """Rows of texts in columns: the first two to the left, numbers to the right."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    left = {0, 1, len(widths) - 1} if last_left else {0, 1}
    return [
        "  "
        + "  ".join(
            cell.ljust(width) if place in left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
