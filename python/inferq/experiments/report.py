"""`iq.report`: one page about a run or an experiment, which opens without a network."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from inferq.display.document import Document
from inferq.display.style import unchecked
from inferq.errors import ConfigError
from inferq.experiments.capacity_search import page as capacity_page
from inferq.experiments.capacity_search.capacity_plan import CapacityPlan
from inferq.experiments.comparison import page as comparison_page
from inferq.experiments.comparison.comparison import Comparison
from inferq.experiments.plans import page as plan_page
from inferq.experiments.plans.fleet_plan import FleetPlan
from inferq.experiments.validation import page as validation_page
from inferq.experiments.validation.validation import Validation
from inferq.files import writable, write_text
from inferq.progress import Progress, watched
from inferq.reports import run_page, runs_page
from inferq.results.result import Result
from inferq.results.slo import Slo
from inferq.systems.prices import Prices


def report(
    shown: Any,
    path: str | os.PathLike[str],
    title: str | None = None,
    *,
    slo: Slo | None = None,
    prices: Prices | str | os.PathLike[str] | None = None,
    progress: bool | Progress | None = None,
) -> Path:
    """Write a page about a run or an experiment: one HTML file that needs nothing beside it.

    Its pictures are inside, as SVG, and it asks the network for nothing: it can be mailed, kept with a pull
    request, printed, opened years later. It reads on a phone, and follows the light or dark scheme of the
    screen. Under the pointer a picture tells its numbers, and a stretch of time that is dragged over becomes
    as wide as the picture; a double click shows the whole.

    The page of a run: what ran (model, hardware, engine, requests, load) and whether it keeps its objectives;
    problems, what to know before trusting it, and good news, apart; the numbers that matter most; latency
    against the objectives; queue and memory over time; gaps between tokens; how far the load is from what is
    proved and from what is impossible; the scenario, which repeats the run.

    Args:
        shown: what `simulate`, `Result.read`, `compare`, `capacity`, `plan` or `validate` returned; or two to
            six runs, in a list or by name, which are shown side by side.
        path: of the page, ending in `.html`; a page that is there is replaced. Its folder must be there.
        title: heading of the page, instead of one that says what ran.
        slo: objectives that runs are held against; None takes those that their workload carries.
        prices: of GPUs and tokens, or the path of their file: what runs cost, take and earn is told.
        progress: told (parts done, parts in all) while it is drawn; True shows a bar.

    Returns:
        The path.

    Raises:
        ConfigError: something else to show, no path or one with another ending, no such folder, a title
            that is no text, or an `slo` of which no request tells anything.
        OSError: it cannot be written.

    Example:
        >>> import inferq as iq, tempfile, pathlib
        >>> engine = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.Sarathi(), kv=iq.KvCache(tokens=1000))
        >>> workload = {"arrival_s": [0.0, 0.5], "prompt_tokens": [10, 5], "output_tokens": [3, 1]}
        >>> result = iq.simulate(workload, engine)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     page = iq.report(result, pathlib.Path(folder) / "run.html", slo=iq.Slo(ttft_p99=2.0))
        ...     "The SLO is kept" in page.read_text(encoding="utf-8")
        True
    """
    page, title = checked(path), heading(title)
    if slo is not None and not isinstance(slo, Slo):
        raise ConfigError("slo", f"must be an Slo such as Slo(ttft_p99=0.5), is {slo!r}")
    with unchecked(), watched(progress, "parts of the page") as tell:
        text = _document(shown, title, slo, Prices.of(prices)).html(tell)
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


def _document(shown: Any, title: str | None, slo: Slo | None, prices: Prices | None) -> Document:
    """The page of whatever can be shown."""
    if isinstance(shown, Result):
        return run_page.document(shown, title, slo, prices)
    if isinstance(shown, Mapping) or (isinstance(shown, Sequence) and not isinstance(shown, (str, bytes))):
        return runs_page.document(runs_page.named(shown), title, slo, prices)
    for name, given in (("slo", slo), ("prices", prices)):
        if given is not None:
            raise ConfigError(name, f"is for runs, not for a {type(shown).__name__}")
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
