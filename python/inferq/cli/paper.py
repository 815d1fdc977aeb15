"""`inferq paper`: the experiments of a paper, its numbers beside ours."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import inferq_papers as papers
from inferq.cli import show
from inferq.cli.arguments import option
from inferq.display.document import Grid
from inferq.display.text import listed
from inferq_papers import pages
from inferq_papers.report import Report


def paper(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", show_default=False, help=f"{listed(papers.PAPERS, 'or')}."),
    ],
    quick: Annotated[bool, option(None, "Smaller runs: a minute instead of some.", "--quick")] = False,
    out: Annotated[
        Path | None, option("FILE", "The page, .html or .md; NAME.html in this directory unless told.")
    ] = None,
    trace: Annotated[Path | None, option("FOLDER", "Where the real traces lie that some rows need.")] = None,
) -> None:
    """Run the experiments of a paper, print its numbers beside ours, and write a page with pictures.

    Example: inferq paper nie2026 --quick --out nie2026.html
    """
    name = papers.known(name)
    page = papers.writable(Path(f"{name}.html") if out is None else out)
    traces = None if trace is None else papers.folder(trace)
    reproduced = papers.run(name, quick=quick, traces=traces, tell=show.tell)
    _print(reproduced)
    pages.write(reproduced, page)
    show.lines([f"written to {page}"])


def _print(reproduced: Report) -> None:
    """Print the rows of a paper's report, section by section, with their notes below."""
    show.lines([reproduced.title])
    for section in reproduced.sections:
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
    if reproduced.slips:
        show.lines(["", "Where the paper slips"])
    show.lines(
        _plain(f"{slip.where}: printed {slip.printed}; right: {slip.right}") for slip in reproduced.slips
    )


def _plain(text: str) -> str:
    """A text in Markdown without its marks."""
    return " ".join(text.replace("**", "").replace("`", "").split())
