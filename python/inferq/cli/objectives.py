"""An SLO on a command line."""

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
        "An objective, once for each: ttft_p99=0.5 (seconds) or 500ms, chat.itl_p99=0.05 (of a class) or "
        f"failed_share=0.01 (0 unless told). Latencies are {listed(QUANTITIES)}, with "
        f"{listed((f'_{one}' for one in STATISTICS), 'or')}.",
        show_default=False,
    ),
]

Goodput = Annotated[
    str | None,
    option(
        "NAME=SECONDS,…", "What each request must keep to count as good: ttft_s=0.5,itl_s=50ms (its gaps)."
    ),
]


def goodput_of(text: str | None) -> dict[str, float] | None:
    """The objectives of a goodput, in seconds or with their unit; None where there are none."""
    if text is None:
        return None
    form = "ttft_s=0.5 or ttft_s=500ms"
    given = options.pairs("--slo", text.split(","), form)
    return {name: limit(name, one, form) for name, one in given.items()}


def slo_of(texts: list[str]) -> Slo:
    """The SLO that the options spell."""
    form, names = "ttft_p99=0.5 or chat.ttft_p99=0.5", r"(.+\.)?[^.]+"
    of_class: dict[str, dict[str, Any]] = {"": {}}
    for name, text in options.pairs("--slo", texts, form, names).items():
        class_name, _, metric = name.rpartition(".")
        of_class.setdefault(class_name, {})[metric] = limit(name, text, form)
    whole = of_class.pop("")
    return Slo(by_class={name: Slo(**limits) for name, limits in of_class.items()}, **whole)


def limit(name: str, text: str, form: str) -> float:
    """A limit: a number, of seconds or a share, or a time with its unit: `500ms`, `0.5s`."""
    number, unit = re.fullmatch(r"(.*?)\s*(ms|s)?", text, re.DOTALL).groups()  # type: ignore[union-attr]
    try:
        return float(number) / 1000 if unit == "ms" else float(number)
    except ValueError:
        raise ConfigError("--slo", f"'{name}={text}' is not of the form {form}") from None
