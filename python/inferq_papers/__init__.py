"""Papers: what they report, and what theory and simulation give beside it.

Each module named after a paper makes a `Report` of it: `inferq paper NAME` from a shell, or `run` here.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import cast

from inferq import ConfigError
from inferq_papers.pages import check_ending
from inferq_papers.report import Report

PAPERS = {
    "li2025": "Throughput-Optimal Scheduling Algorithms for LLM Inference and AI Agents",
    "ao2025": "Optimizing LLM Inference: Fluid-Guided Online Scheduling with Memory Constraints",
    "bari2025": "Optimal Scheduling Algorithms for LLM Inference: Theory and Practice",
    "lin2026": "Large-Scale LLM Inference with Heterogeneous Workloads",
    "nie2026": "A Queueing-Theoretic Framework for Stability Analysis of LLM Inference with KV Cache Memory "
    "Constraints",
    "hardware": "How far is it from hardware? What several papers measured, on one page",
}
"""The papers whose experiments run here, by first author and year; and a page on what several measured."""


def known(name: str) -> str:
    """The name of a paper, in any case.

    Raises:
        ConfigError: there is none of that name; it says which is nearest.
    """
    if name.strip().lower() not in PAPERS:
        near = difflib.get_close_matches(name.strip().lower(), PAPERS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known names: {', '.join(PAPERS)}"
        raise ConfigError("paper", f"unknown name {name!r}; {hint}")
    return name.strip().lower()


def writable(path: Path) -> Path:
    """A page that can be written, made sure of before a long run; its directory is made where it is missing.

    Raises:
        ConfigError: it ends neither in `.html` nor in `.md`.
        OSError: it cannot be written.
    """
    check_ending(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    is_new = not path.exists()
    path.open("ab").close()
    if is_new:
        path.unlink()
    return path


def folder(path: Path) -> Path:
    """A folder of traces.

    Raises:
        ConfigError: it is none.
    """
    if not path.is_dir():
        raise ConfigError("trace", f"{path} is no folder")
    return path


def run(
    name: str,
    *,
    quick: bool = False,
    traces: Path | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> Report:
    """Run the experiments of a paper that need no GPU.

    Args:
        name: one of `PAPERS`.
        quick: smaller runs, about a minute; the same rows with wider intervals.
        traces: a folder with the real traces that some rows need; without it these rows say so.
        tell: gets a line for each step.

    Raises:
        ConfigError: an unknown name, or no folder.
        TraceError: a trace in the folder is wrong.
    """
    try:
        made = import_module(f"inferq_papers.{known(name)}")
    except ModuleNotFoundError as error:
        if error.name != "altair":
            raise
        raise ImportError("charts need Altair: pip install 'inferq[plots]'", name=error.name) from None
    return cast("Report", made.report(quick=quick, traces=traces and folder(traces), tell=tell))
