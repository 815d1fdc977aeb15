"""`inferq paper`: the experiments of a paper, its numbers beside ours."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from inferq import papers
from inferq.cli import show
from inferq.cli.arguments import option
from inferq.papers import pages
from inferq.papers.report import Report
from inferq.reports.text import listed


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


def _print(report: Report) -> None:
    """Print the rows of a paper's report, section by section, with their notes below."""
    console = Console(highlight=False)
    show.lines([report.title])
    for section in report.sections:
        if not section.rows:
            continue
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        numbers, notes = pages.noted(section.rows)
        for name in pages.HEADER:
            text = name in ("where", "what")
            table.add_column(name, justify="left" if text else "right", overflow="fold", no_wrap=not text)
        if notes:
            table.add_column("note", justify="right", no_wrap=True)
        for row, note in zip(section.rows, numbers, strict=True):
            table.add_row(*map(Text, pages.cells_of_row(row)), *([note] if notes else []))
        console.print(Text(f"\n{section.title}", style="bold"))
        console.print(table)
        for place, note in enumerate(notes, start=1):
            console.print(_paragraph(f"{place}. {note}"))
    if report.slips:
        console.print(Text("\nWhere the paper slips", style="bold"))
    for slip in report.slips:
        console.print(_paragraph(f"{slip.where}: printed {slip.printed}; right: {slip.right}"))


def _paragraph(text: str) -> Padding:
    """A text in Markdown, without its marks, under a table."""
    plain = " ".join(text.replace("**", "").replace("`", "").split())
    return Padding(Text(plain), (0, 0, 0, 1))
