"""`inferq paper`: reproduce the experiments of a paper."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from inferq.cli import show
from inferq.cli.arguments import option
from inferq.display.document import Grid


def paper(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            show_default=False,
            help="Paper: li2025, ao2025, bari2025, lin2026 or nie2026; or hardware.",
        ),
    ],
    quick: Annotated[bool, option(None, "Smaller runs, about a minute.", "--quick")] = False,
    out: Annotated[
        Path | None, option("FILE", "The page (.html or .md). Default: NAME.html in this directory.")
    ] = None,
    trace: Annotated[Path | None, option("DIR", "Directory of the real traces that some rows need.")] = None,
) -> None:
    """Reproduce the experiments of a paper, compare the numbers, and write a page with charts.

    Example: inferq paper nie2026 --quick --out nie2026.html
    """
    papers, pages = import_module("inferq_papers"), import_module("inferq_papers.pages")
    name = papers.known(name)
    page = papers.writable(Path(f"{name}.html") if out is None else out)
    traces = None if trace is None else papers.folder(trace)
    report = papers.run(name, quick=quick, traces=traces, tell=show.log)
    _print(report, pages)
    pages.write(report, page)
    show.lines([f"written to {page}"])


def _print(report: Any, pages: Any) -> None:
    """Print the rows of a report by section, with notes below."""
    show.lines([report.title])
    for section in report.sections:
        if not section.rows:
            continue
        numbers, notes = pages.noted(section.rows)
        header = (*pages.HEADER, "note") if notes else pages.HEADER
        rows = [
            [*pages.cells_of_row(row), *([note] if notes else [])]
            for row, note in zip(section.rows, numbers, strict=True)
        ]
        show.lines(["", section.title])
        show.grid(Grid(title="", header=header, lines=rows, texts=2))
        show.lines(f" {place}. {_plain(note)}" for place, note in enumerate(notes, start=1))
    if report.slips:
        show.lines(["", "Errors in the paper"])
    show.lines(
        _plain(f"{slip.where}: printed {slip.printed}; correct: {slip.right}") for slip in report.slips
    )


def _plain(text: str) -> str:
    """Markdown without bold and code marks."""
    return " ".join(text.replace("**", "").replace("`", "").split())
