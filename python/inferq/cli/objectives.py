"""Parsing of SLOs and goodput objectives."""

from __future__ import annotations

import re
from typing import Annotated, Any

from inferq.cli import options
from inferq.cli.arguments import option
from inferq.display.text import listed
from inferq.errors import ConfigError
from inferq.results.metric import QUANTITIES, STATISTICS
from inferq.results.slo import Slo

Objectives = Annotated[
    list[str],
    option(
        "[CLASS.]METRIC=LIMIT",
        "Objective: ttft_p99=0.5 (seconds) or 500ms, chat.itl_p99=0.05 (of a class) or failed_share=0.01 "
        f"(default 0). Metrics: {listed(QUANTITIES)} with "
        f"{listed((f'_{statistic}' for statistic in STATISTICS), 'or')}. Repeatable.",
        show_default=False,
    ),
]

Goodput = Annotated[
    str | None,
    option("NAME=SECONDS,…", "Limits of a request for goodput: ttft_s=0.5,itl_s=50ms (each gap)."),
]


def goodput_of(text: str | None) -> dict[str, float] | None:
    """The limits of goodput in seconds, or None."""
    if text is None:
        return None
    form = "ttft_s=0.5 or ttft_s=500ms"
    given = options.pairs("--slo", text.split(","), form)
    return {name: limit(name, value, form) for name, value in given.items()}


def slo_of(texts: list[str]) -> Slo:
    """The SLO of the options."""
    form, names = "ttft_p99=0.5 or chat.ttft_p99=0.5", r"(.+\.)?[^.]+"
    of_class: dict[str, dict[str, Any]] = {"": {}}
    for name, text in options.pairs("--slo", texts, form, names).items():
        class_name, _, metric = name.rpartition(".")
        of_class.setdefault(class_name, {})[metric] = limit(name, text, form)
    whole = of_class.pop("")
    return Slo(by_class={name: Slo(**limits) for name, limits in of_class.items()}, **whole)


def limit(name: str, text: str, form: str) -> float:
    """A limit: seconds or a share as a number, or a time with a unit: `500ms`, `0.5s`."""
    number, unit = re.fullmatch(r"(.*?)\s*(ms|s)?", text, re.DOTALL).groups()  # type: ignore[union-attr]
    try:
        return float(number) / 1000 if unit == "ms" else float(number)
    except ValueError:
        raise ConfigError("--slo", f"must have the form {form}, got '{name}={text}'") from None
