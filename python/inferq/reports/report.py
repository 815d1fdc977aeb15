"""`iq.report`: one page about a run or an experiment, which opens without a network."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from inferq.errors import ConfigError
from inferq.experiments.capacity_search.capacity_plan import CapacityPlan
from inferq.experiments.comparison.comparison import Comparison
from inferq.experiments.plans.fleet_plan import FleetPlan
from inferq.experiments.validation.validation import Validation
from inferq.reports import capacity_page, comparison_page, plan_page, run_page, validation_page
from inferq.reports.document import Document
from inferq.reports.style import unchecked
from inferq.results.files import writable, write_text
from inferq.results.result import Result


def report(shown: Any, path: str | os.PathLike[str], title: str | None = None) -> Path:
    """Write a page about a run or an experiment: one HTML file that needs nothing beside it.

    Its pictures are inside, as SVG, and it asks the network for nothing: it can be mailed, kept with a pull
    request, opened years later. It reads on a phone, and follows the light or dark scheme of the screen.

    The page of a run: its findings in plain words, with what theory says of the scenario and which limit
    binds; the numbers that matter most; latency percentiles by class; queue and memory over time;
    the histogram of token gaps; throughput beside the limit of theory; the scenario, which repeats the run.

    Args:
        shown: what `simulate`, `compare`, `capacity`, `plan` or `validate` returned.
        path: of the page, ending in `.html`; a page that is there is replaced. Its folder must be there.
        title: heading of the page, instead of one that says what it is about.

    Returns:
        The path.

    Raises:
        ConfigError: something else to show, no path or one with another ending, no such folder, or a title
            that is no text.
        OSError: it cannot be written.

    Example:
        >>> import inferq as iq, tempfile, pathlib
        >>> engine = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.Sarathi(), kv=iq.KvCache(tokens=1000))
        >>> workload = {"arrival_s": [0.0, 0.5], "prompt_tokens": [10, 5], "output_tokens": [3, 1]}
        >>> result = iq.simulate(workload, engine)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     page = iq.report(result, pathlib.Path(folder) / "run.html", title="Two requests")
        ...     page.read_text(encoding="utf-8").count("<svg")
        5
    """
    page, title = checked(path), heading(title)
    with unchecked():
        text = _document(shown, title).html()
    write_text(page, text)
    return page


def checked(path: object, field: str = "path") -> Path:
    """The path of a page that can be written, made sure of before it costs anything.

    Raises:
        ConfigError: no path, another ending, a folder, or one in a folder that is not there; it names
            `field`.
    """
    page = writable(field, path)
    if page.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(field, f"a page ends in .html, not {page.name!r}")
    return page


def heading(title: object) -> str | None:
    """A title that can stand on top of a page; None where there is none.

    Raises:
        ConfigError: no text, or an empty one.
    """
    if title is None or (isinstance(title, str) and title.strip()):
        return title
    raise ConfigError("title", f"must be a text, not empty, is {title!r}")


def _document(shown: Any, title: str | None) -> Document:
    """The page of whatever can be shown."""
    if isinstance(shown, Result):
        return run_page.document(shown, title)
    if isinstance(shown, Comparison):
        return comparison_page.document(shown, title)
    if isinstance(shown, CapacityPlan):
        return capacity_page.document(shown, title)
    if isinstance(shown, FleetPlan):
        return plan_page.document(shown, title)
    if isinstance(shown, Validation):
        return validation_page.document(shown, title)
    raise ConfigError(
        "report",
        f"shows what simulate, compare, capacity, plan or validate returned, not a {type(shown).__name__}",
    )
