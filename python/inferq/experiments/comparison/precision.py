"""How well a number shall be known before an experiment stops."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from inferq.checks import positive
from inferq.errors import ConfigError
from inferq.experiments.margin import Margin

LEAST_SEEDS = 10
"""Before that many repetitions nothing is stopped: of few the spread is too often found too small by chance,
and an experiment would stop just then."""

_TEXT = re.compile(r"\s*(\w+)\s*(?:±|\+/-|\+-)(.*)")


def precisions(texts: object) -> tuple[Margin, ...]:
    """The metrics that `until` names, each with the half width that its interval shall come down to.

    Args:
        texts: one such as `"ttft_p99 ± 2%"` (of the baseline's mean) or `"ttft_p99 +- 0.01s"`, or several;
            none for None.

    Raises:
        ConfigError: it is none of these, an amount is not above 0, a list names none, or a metric twice.

    Example:
        >>> from inferq.experiments.comparison.precision import precisions
        >>> [(one.metric.name, str(one)) for one in precisions(["ttft_p99 ± 2%", "itl_p99 +- 5 ms"])]
        [('ttft_p99', '2 %'), ('itl_p99', '5 ms')]
    """
    if texts is None:
        return ()
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        texts = (texts,)
    margins = tuple(_precision(text) for text in texts)
    if not margins:
        raise ConfigError("until", "none is named")
    if len({one.metric for one in margins}) < len(margins):
        raise ConfigError("until", "a metric is there twice")
    return margins


def _precision(text: object) -> Margin:
    match = _TEXT.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ConfigError("until", f"must be such as 'ttft_p99 ± 2%' or 'ttft_p99 ± 0.01s', is {text!r}")
    margin = Margin.of(match[1], match[2], "until")
    positive(f"until.{match[1]}", margin.amount)
    return margin


def next_count(count: int, most: int, excess: float) -> int:
    """How many repetitions to have at the next look, where the widest interval is `excess` times too wide.

    A half width falls with the root of the number of repetitions. Not more than twice as many at once, since
    the spread is known only roughly; few looks are better than many, since each is a chance to stop too soon.

    Example:
        >>> from inferq.experiments.comparison.precision import next_count
        >>> next_count(10, 100, 1.2), next_count(10, 100, 5.0), next_count(80, 100, 1.5)
        (15, 20, 100)
    """
    wanted = 2 * count if excess >= 2 else math.ceil(count * excess**2)
    return min(most, max(count + 1, min(wanted, 2 * count)))
