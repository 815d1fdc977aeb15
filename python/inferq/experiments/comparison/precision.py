"""Precision targets that stop a comparison."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from inferq.checks import positive
from inferq.errors import ConfigError
from inferq.experiments.margin import Margin

LEAST_SEEDS = 10
"""Minimum repetitions before stopping. With few, the spread is often underestimated, and the experiment would
stop just then."""

_TEXT = re.compile(r"\s*(\w+)\s*(?:±|\+/-|\+-)(.*)")


def precisions(texts: object) -> tuple[Margin, ...]:
    """The metrics of `until` with the target half widths of their intervals.

    Args:
        texts: a text such as `"ttft_p99 ± 2%"` (of the baseline's mean) or `"ttft_p99 +- 0.01s"`, several, or
            None.

    Raises:
        ConfigError: another text, an amount that is not positive, an empty list, or a duplicate metric.

    Example:
        >>> from inferq.experiments.comparison.precision import precisions
        >>> [(margin.metric.name, str(margin)) for margin in precisions(["ttft_p99 ± 2%", "itl_p99 +- 5 ms"])]
        [('ttft_p99', '2 %'), ('itl_p99', '5 ms')]
    """
    if texts is None:
        return ()
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        texts = (texts,)
    margins = tuple(_precision(text) for text in texts)
    if not margins:
        raise ConfigError("until", "must contain at least one precision")
    if len({margin.metric for margin in margins}) < len(margins):
        raise ConfigError("until", "contains the same metric twice")
    return margins


def _precision(text: object) -> Margin:
    match = _TEXT.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ConfigError("until", f"must be such as 'ttft_p99 ± 2%' or 'ttft_p99 ± 0.01s', got {text!r}")
    margin = Margin.of(match[1], match[2], "until")
    positive(f"until.{match[1]}", margin.amount)
    return margin


def next_count(count: int, most: int, excess: float) -> int:
    """Repetitions at the next look if the widest interval is `excess` times too wide.

    Half widths decrease with the square root of the repetitions. The number at most doubles, since the spread
    is known only roughly. Few looks are better than many, since each can stop too early.

    Example:
        >>> from inferq.experiments.comparison.precision import next_count
        >>> next_count(10, 100, 1.2), next_count(10, 100, 5.0), next_count(80, 100, 1.5)
        (15, 20, 100)
    """
    wanted = 2 * count if excess >= 2 else math.ceil(count * excess**2)
    return min(most, max(count + 1, min(wanted, 2 * count)))
