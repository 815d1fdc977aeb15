"""`inferq paper`: the experiments of a paper, its numbers beside ours."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from inferq import papers
from inferq.cli import show
from inferq.reports.text import listed


def paper(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", show_default=False, help=f"{listed(papers.PAPERS, 'or')}."),
    ],
    quick: Annotated[bool, typer.Option("--quick", help="Smaller runs: a minute instead of some.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The page, .html or .md; NAME.html in this directory unless told."),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where the real traces lie that some rows need."),
    ] = None,
) -> None:
    """Run the experiments of a paper, print its numbers beside ours, and write a page with pictures.

    Example: inferq paper nie2026 --quick --out nie2026.html
    """
    name = papers.known(name)
    page = papers.writable(Path(f"{name}.html") if out is None else out)
    traces = None if trace is None else papers.folder(trace)
    reproduced = papers.run(name, quick=quick, traces=traces, tell=lambda text: typer.echo(text, err=True))
    show.report(reproduced)
    reproduced.write(page)
    show.lines([f"written to {page}"])
