"""An SLO on a command line."""

from __future__ import annotations

from typing import Annotated, Any

from inferq.cli import options
from inferq.cli.arguments import option
from inferq.experiments.capacity_search.slo import Slo
from inferq.reports.text import listed
from inferq.results.metric import QUANTITIES, STATISTICS

Objectives = Annotated[
    list[str],
    option(
        "[CLASS.]METRIC=LIMIT",
        "An objective, once for each: ttft_p99=0.5 (seconds), chat.tbt_p99=0.05 (of a class) or "
        f"failed_share=0.01 (0 unless told). Latencies are {listed(QUANTITIES)}, with "
        f"{listed((f'_{one}' for one in STATISTICS), 'or')}.",
        show_default=False,
    ),
]


def slo_of(texts: list[str]) -> Slo:
    """The SLO that the options spell."""
    form, names = "ttft_p99=0.5 or chat.ttft_p99=0.5", r"(.+\.)?[^.]+"
    of_class: dict[str, dict[str, Any]] = {"": {}}
    for name, limit in options.numbers("--slo", texts, form, names).items():
        class_name, _, metric = name.rpartition(".")
        of_class.setdefault(class_name, {})[metric] = limit
    whole = of_class.pop("")
    return Slo(by_class={name: Slo(**limits) for name, limits in of_class.items()}, **whole)
