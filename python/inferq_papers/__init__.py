"""Reproductions of papers: their numbers compared with theory and simulation.

Each module named after a paper produces a `Report`: `inferq paper NAME` in a shell, or `run` in Python.
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
    "hardware": "Accuracy against measurements on hardware, from several papers",
}
"""Reproduced papers by first author and year, and a page on measurements of several papers."""


def known(name: str) -> str:
    """The canonical name of a paper, from any case.

    Raises:
        ConfigError: the name is unknown; the message has a suggestion.
    """
    if name.strip().lower() not in PAPERS:
        near = difflib.get_close_matches(name.strip().lower(), PAPERS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known names: {', '.join(PAPERS)}"
        raise ConfigError("paper", f"unknown name {name!r}; {hint}")
    return name.strip().lower()


def writable(path: Path) -> Path:
    """A page that can be written, checked before a long run; creates its directory.

    Raises:
        ConfigError: the extension is neither `.html` nor `.md`.
        OSError: the file cannot be written.
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
        ConfigError: the path is not a folder.
    """
    if not path.is_dir():
        raise ConfigError("trace", f"must be a folder, got {path}")
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
        quick: smaller runs of about a minute; the same rows with wider intervals.
        traces: folder with the real traces that some rows require. Default: these rows stay empty.
        tell: receives one line per step.

    Raises:
        ConfigError: the name is unknown, or `traces` is not a folder.
        TraceError: a trace in the folder is invalid.
    """
    try:
        module = import_module(f"inferq_papers.{known(name)}")
    except ModuleNotFoundError as error:
        if error.name != "altair":
            raise
        raise ImportError("charts need Altair: pip install 'inferq[plots]'", name=error.name) from None
    return cast("Report", module.report(quick=quick, traces=traces and folder(traces), tell=tell))
