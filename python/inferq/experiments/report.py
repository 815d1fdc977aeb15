"""`inferq.report`: the HTML page of a run or an experiment."""

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
    """Write a page about a run or an experiment, as a single HTML file.

    Charts are embedded as SVG and nothing is loaded from the network, so the page can be mailed, attached to
    a pull request, or printed. It works on phones and follows the light or dark color scheme. Charts show
    values under the pointer; drag to zoom in on a time range, double-click to reset.

    The page of a run contains the setup (model, hardware, engine, requests, load) and the verdict about its
    objectives; problems, caveats and notes; key figures; latency against the objectives; queue and memory
    over time; inter-token latency; the distance of the load to proved limits; and the scenario, which
    reproduces the run.

    Args:
        shown: the return value of `simulate`, `Result.read`, `compare`, `capacity`, `plan` or `validate`; or
            two to six runs, in a list or by name, for a page that compares them.
        path: path of the page, ending in `.html`. Its directory must exist. An existing page is replaced.
        title: heading. Default: a description of the run.
        slo: objectives of the runs. Default: objectives in their workload.
        prices: prices of GPUs and tokens, or the path of their file, to include cost, energy and revenue.
        progress: called with (parts done, parts in total) while the page is drawn. True shows a bar.

    Returns:
        The path.

    Raises:
        ConfigError: the object has no page, the path or title is invalid, or no request matches `slo`.
        OSError: the page cannot be written.

    Example:
        >>> import inferq as iq, tempfile, pathlib
        >>> engine = iq.Engine(timing=iq.Constant(1.0), scheduler=iq.Sarathi(), kv=iq.KvCache(tokens=1000))
        >>> workload = {"arrival_s": [0.0, 0.5], "prompt_tokens": [10, 5], "output_tokens": [3, 1]}
        >>> result = iq.simulate(workload, engine)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     page = iq.report(result, pathlib.Path(folder) / "run.html", slo=iq.Slo(ttft_p99=2.0))
        ...     "SLO met" in page.read_text(encoding="utf-8")
        True
    """
    page, title = checked(path), heading(title)
    if slo is not None and not isinstance(slo, Slo):
        raise ConfigError("slo", f"must be an Slo such as Slo(ttft_p99=0.5), got {slo!r}")
    with unchecked(), watched(progress, "parts of the page") as watch:
        text = _document(shown, title, slo, Prices.of(prices)).html(watch)
    write_text(page, text)
    return page


def checked(path: object, field: str = "path") -> Path:
    """Check that a page can be written to a path.

    Raises:
        ConfigError: not a path, another suffix, a directory, or a missing directory. It names `field`.
    """
    page = writable(field, path)
    if page.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(field, f"must end in .html, got {page.name!r}")
    return page


def heading(title: object) -> str | None:
    """Check a title.

    Raises:
        ConfigError: it is not a text, or empty.
    """
    if title is None or (isinstance(title, str) and title.strip()):
        return title
    raise ConfigError("title", f"must be a non-empty text, got {title!r}")


def _document(shown: Any, title: str | None, slo: Slo | None, prices: Prices | None) -> Document:
    """The page of a result."""
    if isinstance(shown, Result):
        return run_page.document(shown, title, slo, prices)
    if isinstance(shown, Mapping) or (isinstance(shown, Sequence) and not isinstance(shown, (str, bytes))):
        return runs_page.document(runs_page.named(shown), title, slo, prices)
    for name, given in (("slo", slo), ("prices", prices)):
        if given is not None:
            raise ConfigError(name, f"is supported for runs, not for a {type(shown).__name__}")
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
        f"supports results of simulate, compare, capacity, plan and validate, got a {type(shown).__name__}",
    )
